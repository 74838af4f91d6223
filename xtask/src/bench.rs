//! How fast the program is, held against its targets: ratios of CPU time taken in one run, so that
//! they mean the same on a slow, a fast and a busy machine. Only the start-up, the lab's lists and the rate of the simulation are of this machine.
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
use engine::Simulator;
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

/// A part of the measurement.
type Measure = fn(&Programs, &mut Report) -> Outcome;
/// Everything that is measured in one go.
const PARTS: [Measure; 11] = [
    allocations,
    end_to_end,
    yaml,
    start_up,
    live::audits,
    live::lists,
    ansible::noop,
    engine::schedule,
    engine::journal,
    engine::ratio,
    |programs, report| evidence::all(&programs.of_store.evidence, report),
];
/// Planning is measured before the first of so many parts, because the largest fleet takes a quarter of a minute to write.
const PARTS_A_PLAN: usize = 4;

/// Build, measure, judge, and write the report; a missed target is a failure.
pub(crate) fn run(wish: Wish) -> Outcome {
    let mut report = Report::default();
    match wish.only {
        None => everything(wish, &mut report)?,
        Some(Part::Evidence) => evidence::all(&build::of_store()?.evidence, &mut report)?,
        Some(Part::Simulator) => {
            let mut simulator = Simulator::of(build::simulate()?);
            (0..TURNS).try_for_each(|_| simulator.turn())?;
            simulator.judge(&mut report)?;
        }
    }
    let text = report.json();
    std::fs::write(REPORT, &text).map_err(|error| Failure::new(format!("cannot write `{REPORT}`: {error}")))?;
    print!("{}", if wish.json { text } else { report.table() });
    report.verdict()
}

/// Neighbours of a machine come and go in minutes. What they disturb most, because it lives on the caches that they share, has its turns between the other parts,
/// and not all of them in a minute of theirs.
fn everything(wish: Wish, report: &mut Report) -> Outcome {
    let programs = build::programs()?;
    let (mut planning, mut simulator) = (Planning::NONE, Simulator::of(build::simulate()?));
    child::output(&programs.decode, &["write", FLEET, FLEET_GUESTS])?;
    for (at, measure) in PARTS.into_iter().enumerate() {
        if at % PARTS_A_PLAN == 0 {
            planning.turn(&programs)?;
        }
        simulator.turn()?;
        measure(&programs, report)?;
    }
    planning.judge(report);
    simulator.judge(report)?;
    if wish.callgrind { instructions(&programs, report) } else { Ok(()) }
}

/// Planning against a bare sorted merge, at two sizes.
struct Planning {
    small: PlanCost,
    large: PlanCost,
}

/// The least that each took.
#[derive(Clone, Copy)]
struct PlanCost {
    plan_ns: f64,
    merge_ns: f64,
}

impl Planning {
    /// Nothing measured yet.
    const NONE: Self = Self { small: PlanCost::NONE, large: PlanCost::NONE };
    const SMALL: &str = "100000";
    const LARGE: &str = "1000000";
    const REPETITIONS: &str = "3";

    fn turn(&mut self, programs: &Programs) -> Outcome {
        for (guests, least) in [(Self::SMALL, &mut self.small), (Self::LARGE, &mut self.large)] {
            let measured = child::output(&programs.plan, &[guests, Self::REPETITIONS])?;
            let cost = PlanCost { plan_ns: number(&measured, "plan_ns")?, merge_ns: number(&measured, "merge_ns")? };
            *least = least.and(cost);
        }
        Ok(())
    }

    fn judge(&self, report: &mut Report) {
        let Self { small, large } = self;
        report.measured("plan", json!({ Self::SMALL: small.json(), Self::LARGE: large.json() }));
        report.target(Target { name: "plan", value: large.ratio(), bound: AtMost(10.0), unit: "x a bare merge, 1,000,000 guests" });
        let growth = large.ratio() / small.ratio();
        report.target(Target { name: "plan-growth", value: growth, bound: AtMost(1.2), unit: "x the ratio at 100,000 guests" });
    }
}

impl PlanCost {
    /// Nothing measured yet: a ratio of it is no number, and meets no target.
    const NONE: Self = Self { plan_ns: f64::INFINITY, merge_ns: f64::INFINITY };

    fn and(self, other: Self) -> Self {
        Self { plan_ns: self.plan_ns.min(other.plan_ns), merge_ns: self.merge_ns.min(other.merge_ns) }
    }

    fn ratio(self) -> f64 {
        self.plan_ns / self.merge_ns
    }

    fn json(self) -> Value {
        json!({ "plan_ns": self.plan_ns, "merge_ns": self.merge_ns })
    }
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
