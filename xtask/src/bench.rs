//! How fast the program is, held against its targets: ratios of CPU time taken in one run, so that
//! they mean the same on a slow, a fast and a busy machine. Only the rate of the simulation is one of this machine.
//!
//! The works themselves live in the benches of core, in the examples of the store and in the program; here they are built, run
//! and judged. What never enters here: how a work is done, and any number of another run.

mod ansible;
mod build;
mod child;
mod engine;
mod evidence;
mod live;
mod report;

use std::path::Path;

use serde_json::{Value, json};

use crate::shell::{Failure, Outcome};
use build::Programs;
use child::Cost;
use report::Bound::AtMost;
use report::{Report, Target};

/// What was asked for besides the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Print the report as JSON, and no table.
    pub(crate) json: bool,
    /// Count instructions with valgrind too: repeatable, slow, not judged.
    pub(crate) callgrind: bool,
    /// Measure one part and nothing else.
    pub(crate) only: Option<Part>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What evidence costs.
    Evidence,
    /// How many schedules the simulation tells.
    Simulator,
}

/// Where the report is written.
const REPORT: &str = "target/bench.json";
/// Where the fleet is written, as files.
const FLEET: &str = "target/bench";
const FLEET_GUESTS: &str = "100000";
/// Each work is done so often, in turns with what it is compared with; the least CPU time counts.
const TURNS: u32 = 9;
const STARTS: u32 = 200;

/// Build, measure, judge, and write the report; a missed target is a failure.
pub(crate) fn run(wish: Wish) -> Outcome {
    let mut report = Report::default();
    if wish.only.is_none() {
        everything_else(wish, &mut report)?;
    }
    if wish.only != Some(Part::Evidence) {
        engine::simulator(&build::simulate()?, &mut report)?;
    }
    if wish.only != Some(Part::Simulator) {
        evidence::all(&build::of_store()?.evidence, &mut report)?;
    }
    let text = report.json();
    std::fs::write(REPORT, &text).map_err(|error| Failure::new(format!("cannot write `{REPORT}`: {error}")))?;
    print!("{}", if wish.json { text } else { report.table() });
    report.verdict()
}

fn everything_else(wish: Wish, report: &mut Report) -> Outcome {
    let programs = build::programs()?;
    planning(&programs, report)?;
    allocations(&programs, report)?;
    child::output(&programs.decode, &["write", FLEET, FLEET_GUESTS])?;
    end_to_end(&programs, report)?;
    yaml(&programs, report)?;
    start_up(&programs, report)?;
    live::audits(&programs, report)?;
    live::lists(&programs, report)?;
    ansible::noop(&programs, report)?;
    engine::schedule(&programs, report)?;
    engine::journal(&programs, report)?;
    engine::ratio(&programs, report)?;
    if wish.callgrind { instructions(&programs, report) } else { Ok(()) }
}

/// Planning against a bare sorted merge, at two sizes.
fn planning(programs: &Programs, report: &mut Report) -> Outcome {
    let mut ratio = |guests: &str| -> Result<f64, Failure> {
        let measured = child::output(&programs.plan, &[guests, &TURNS.to_string()])?;
        let ratio = number(&measured, "plan_ns")? / number(&measured, "merge_ns")?;
        report.measured(&format!("plan-{guests}"), measured);
        Ok(ratio)
    };
    let (small, large) = (ratio("100000")?, ratio("1000000")?);
    report.target(Target { name: "plan", value: large, bound: AtMost(10.0), unit: "x a bare merge, 1,000,000 guests" });
    report.target(Target { name: "plan-growth", value: large / small, bound: AtMost(1.2), unit: "x the ratio at 100,000 guests" });
    Ok(())
}

/// What planning allocates for a guest with nothing to do.
fn allocations(programs: &Programs, report: &mut Report) -> Outcome {
    let count = |guests: &str| number(&child::output(&programs.allocations, &[guests])?, "allocations");
    let (few, many) = (count("1000")?, count("101000")?);
    report.measured("allocations", json!({ "guests-1000": few, "guests-101000": many }));
    report.target(Target { name: "plan-allocations", value: (many - few) / 100_000.0, bound: AtMost(0.0), unit: "per converged guest" });
    Ok(())
}

/// `converger plan` on two JSON files against a typed, owned parse of the same files with serde_json: whole processes.
fn end_to_end(programs: &Programs, report: &mut Report) -> Outcome {
    let (mut parse, mut plan) = (Cost::NONE, Cost::NONE);
    for _ in 0..TURNS {
        parse = parse.and(child::cost(&programs.decode, &["serde", "."], FLEET, &[0])?);
        plan = plan.and(planned(programs, "desired.json", FLEET)?);
    }
    let yaml = planned(programs, "desired.yaml", FLEET)?;
    let bytes = json!({
        "desired.json": size("desired.json")?, "desired.yaml": size("desired.yaml")?, "current.json": size("current.json")?
    });
    let memory = |cost: Cost, desired: &str| Ok(cost.peak_bytes / (number(&bytes, desired)? + number(&bytes, "current.json")?));
    let (of_json, of_yaml): (f64, f64) = (memory(plan, "desired.json")?, memory(yaml, "desired.yaml")?);
    report.measured("end-to-end", json!({ "serde": parse.json(), "json": plan.json(), "yaml": yaml.json(), "bytes": bytes }));
    report.target(Target {
        name: "end-to-end",
        value: plan.cpu_ms / parse.cpu_ms,
        bound: AtMost(4.0),
        unit: "x a serde_json parse, 100,000 guests",
    });
    report.target(Target { name: "peak-memory", value: of_json.max(of_yaml), bound: AtMost(4.0), unit: "x the files" });
    Ok(())
}

/// A plan of the fleet; 3 is its exit code, because the default limits refuse a run over 25,000 guests.
fn planned(programs: &Programs, desired: &str, fleet: &str) -> Result<Cost, Failure> {
    child::cost(&programs.converger, &["plan", desired, "--replay", "current.json"], fleet, &[3])
}

/// Parsing desired.yaml against a bare pass over the parser's events.
fn yaml(programs: &Programs, report: &mut Report) -> Outcome {
    let measured = child::output(&programs.decode, &["yaml", FLEET, &TURNS.to_string()])?;
    let ratio = number(&measured, "desired_ns")? / number(&measured, "events_ns")?;
    report.measured("yaml", measured);
    report.target(Target { name: "yaml", value: ratio, bound: AtMost(2.0), unit: "x a bare event pass, 100,000 guests" });
    Ok(())
}

/// The mean of many starts: one is too short to be measured.
fn start_up(programs: &Programs, report: &mut Report) -> Outcome {
    let mut total_ms = 0.0;
    for _ in 0..STARTS {
        total_ms += child::cost(&programs.converger, &["--version"], ".", &[0])?.cpu_ms;
    }
    let mean_ms = total_ms / f64::from(STARTS);
    report.measured("start-up", json!({ "starts": STARTS, "mean_ms": mean_ms }));
    report.target(Target { name: "start-up", value: mean_ms, bound: AtMost(5.0), unit: "ms of CPU" });
    Ok(())
}

/// Instructions of the same works, on smaller fleets. SHA-256 counts in full, because valgrind has no SHA instructions.
fn instructions(programs: &Programs, report: &mut Report) -> Outcome {
    const SMALL: &str = "target/bench-small";
    child::output(&programs.decode, &["write", SMALL, "10000"])?;
    let plan = |function| child::instructions_in(&programs.plan, &["100000", "1"], ".", function);
    let yaml = |function| child::instructions_in(&programs.decode, &["yaml", ".", "1"], SMALL, function);
    let counted = json!({
        "plan-100000": { "merge": plan("merge_once")?, "plan": plan("plan_once")? },
        "yaml-10000": { "events": yaml("events_once")?, "desired": yaml("desired_once")? },
        "end-to-end-10000": {
            "serde": child::instructions(&programs.decode, &["serde", "."], SMALL)?,
            "json": child::instructions(&programs.converger, &["plan", "desired.json", "--replay", "current.json"], SMALL)?,
        },
        "start-up": child::instructions(&programs.converger, &["--version"], ".")?,
    });
    report.measured("instructions", counted);
    Ok(())
}

fn number(measured: &Value, key: &str) -> Result<f64, Failure> {
    measured.get(key).and_then(Value::as_f64).ok_or_else(|| Failure::new(format!("a bench did not say `{key}`: {measured}")))
}

fn size(name: &str) -> Result<u64, Failure> {
    let path = Path::new(FLEET).join(name);
    path.metadata().map(|file| file.len()).map_err(|error| Failure::new(format!("cannot read `{}`: {error}", path.display())))
}
