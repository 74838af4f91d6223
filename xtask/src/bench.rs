//! Measures performance and compares it with targets. Most targets are ratios of CPU times from the
//! same run, so that they mean the same on a slow, a fast and a busy machine. Only start-up, the
//! lab's lists and the rate of the simulation depend on the machine.
//!
//! The workloads are in the benches of core, the examples of the store and the program; this module
//! builds, runs and judges them. Must not compare with numbers of another run.

mod actions;
mod ansible;
mod build;
mod child;
mod engine;
mod evidence;
mod live;
mod report;

use std::path::Path;

use serde_json::{Value, json};

use crate::shell::{TaskError, TaskResult};
use build::BenchPrograms;
use child::ProcessCost;
use engine::SimulatorBench;
use report::TargetBound::AtMost;
use report::{BenchReport, BenchTarget};

/// The options of `bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BenchOptions {
    /// Print the report as JSON instead of a table.
    pub(crate) json: bool,
    /// Also count instructions with valgrind: repeatable and slow; not judged.
    pub(crate) callgrind: bool,
    /// Measure only this part.
    pub(crate) only_part: Option<BenchPart>,
}

/// A part that can be measured on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BenchPart {
    /// The cost of evidence.
    Evidence,
    /// The rate of the simulation.
    Simulator,
}

/// The path of the report.
const REPORT: &str = "target/bench.json";
/// The directory of the generated fleet.
const FLEET_DIRECTORY: &str = "target/bench";
const FLEET_GUESTS: &str = "100000";
/// How often each workload runs, alternating with its baseline; the lowest CPU time counts.
const TURNS: u32 = 9;
const START_COUNT: u32 = 200;

/// One part of the measurement.
type MeasureFn = fn(&BenchPrograms, &mut BenchReport) -> TaskResult;
/// All parts of a full measurement.
const MEASUREMENTS: [MeasureFn; 13] = [
    measure_allocations,
    measure_end_to_end,
    measure_yaml,
    measure_start_up,
    live::measure_audits,
    live::measure_lists,
    ansible::measure_noop,
    engine::measure_schedule,
    engine::measure_journal,
    engine::measure_journal_ratio,
    |programs, report| evidence::measure_evidence(&programs.store.evidence, report),
    actions::measure_actions,
    actions::measure_provisioning,
];
/// Planning is measured only before every nth part, because writing the largest fleet takes 15 seconds.
const MEASUREMENTS_PER_PLAN_TURN: usize = 4;

/// Builds, measures and judges, and writes the report; a missed target is an error.
pub(crate) fn run_bench(options: BenchOptions) -> TaskResult {
    let mut report = BenchReport::default();
    match options.only_part {
        None => measure_everything(options, &mut report)?,
        Some(BenchPart::Evidence) => evidence::measure_evidence(&build::build_store_programs()?.evidence, &mut report)?,
        Some(BenchPart::Simulator) => {
            let mut simulator = SimulatorBench::new(build::build_simulation()?);
            (0..TURNS).try_for_each(|_| simulator.measure_turn())?;
            simulator.add_targets(&mut report)?;
        }
    }
    let text = report.to_json();
    std::fs::write(REPORT, &text).map_err(|error| TaskError::new(format!("cannot write `{REPORT}`: {error}")))?;
    print!("{}", if options.json { text } else { report.render_table() });
    report.check_targets()
}

/// Measures all parts. Other load on the machine comes and goes within minutes. The workloads that depend most on shared caches run between
/// the other parts, so that not all their turns fall into the same busy minute.
fn measure_everything(options: BenchOptions, report: &mut BenchReport) -> TaskResult {
    let programs = build::build_programs()?;
    let (mut planning, mut simulator) = (PlanningBench::NONE, SimulatorBench::new(build::build_simulation()?));
    child::run_for_json(&programs.decode, &["write", FLEET_DIRECTORY, FLEET_GUESTS])?;
    for (at, measure) in MEASUREMENTS.into_iter().enumerate() {
        if at % MEASUREMENTS_PER_PLAN_TURN == 0 {
            planning.measure_turn(&programs)?;
        }
        simulator.measure_turn()?;
        measure(&programs, report)?;
    }
    planning.add_targets(report);
    simulator.add_targets(report)?;
    if options.callgrind { count_instructions(&programs, report) } else { Ok(()) }
}

/// Planning compared with a bare sorted merge, at two sizes.
struct PlanningBench {
    small: PlanCost,
    large: PlanCost,
}

/// The lowest time of each.
#[derive(Clone, Copy)]
struct PlanCost {
    plan_ns: f64,
    merge_ns: f64,
}

impl PlanningBench {
    /// Nothing measured yet.
    const NONE: Self = Self { small: PlanCost::NONE, large: PlanCost::NONE };
    const SMALL: &str = "100000";
    const LARGE: &str = "1000000";
    const REPETITIONS: &str = "3";

    fn measure_turn(&mut self, programs: &BenchPrograms) -> TaskResult {
        for (guests, least) in [(Self::SMALL, &mut self.small), (Self::LARGE, &mut self.large)] {
            let measured = child::run_for_json(&programs.plan, &[guests, Self::REPETITIONS])?;
            let cost = PlanCost { plan_ns: read_number(&measured, "plan_ns")?, merge_ns: read_number(&measured, "merge_ns")? };
            *least = least.best_of(cost);
        }
        Ok(())
    }

    fn add_targets(&self, report: &mut BenchReport) {
        let Self { small, large } = self;
        report.add_measurement("plan", json!({ Self::SMALL: small.to_json(), Self::LARGE: large.to_json() }));
        report.add_target(BenchTarget {
            name: "plan",
            value: large.ratio(),
            bound: AtMost(10.0),
            unit: "x a bare merge, 1,000,000 guests",
        });
        let growth = large.ratio() / small.ratio();
        report.add_target(BenchTarget { name: "plan-growth", value: growth, bound: AtMost(1.2), unit: "x the ratio at 100,000 guests" });
    }
}

impl PlanCost {
    /// Nothing measured yet: its ratio is NaN and meets no target.
    const NONE: Self = Self { plan_ns: f64::INFINITY, merge_ns: f64::INFINITY };

    fn best_of(self, other: Self) -> Self {
        Self { plan_ns: self.plan_ns.min(other.plan_ns), merge_ns: self.merge_ns.min(other.merge_ns) }
    }

    fn ratio(self) -> f64 {
        self.plan_ns / self.merge_ns
    }

    fn to_json(self) -> Value {
        json!({ "plan_ns": self.plan_ns, "merge_ns": self.merge_ns })
    }
}

/// Allocations of planning for a guest without changes.
fn measure_allocations(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let count = |guests: &str| read_number(&child::run_for_json(&programs.allocations, &[guests])?, "allocations");
    let (few, many) = (count("1000")?, count("101000")?);
    report.add_measurement("allocations", json!({ "guests-1000": few, "guests-101000": many }));
    report.add_target(BenchTarget {
        name: "plan-allocations",
        value: (many - few) / 100_000.0,
        bound: AtMost(0.0),
        unit: "per converged guest",
    });
    Ok(())
}

/// `converger plan` on two JSON files, compared with a typed, owned parse of the same files with serde_json; whole processes.
fn measure_end_to_end(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let (mut parse, mut plan) = (ProcessCost::NONE, ProcessCost::NONE);
    for _ in 0..TURNS {
        parse = parse.best_of(child::measure_program(&programs.decode, &["serde", "."], FLEET_DIRECTORY, &[0])?);
        plan = plan.best_of(measure_plan(programs, "desired.json", FLEET_DIRECTORY)?);
    }
    let yaml = measure_plan(programs, "desired.yaml", FLEET_DIRECTORY)?;
    let bytes = json!({
        "desired.json": file_size("desired.json")?, "desired.yaml": file_size("desired.yaml")?, "current.json": file_size("current.json")?
    });
    let memory =
        |cost: ProcessCost, desired: &str| Ok(cost.peak_bytes / (read_number(&bytes, desired)? + read_number(&bytes, "current.json")?));
    let (of_json, of_yaml): (f64, f64) = (memory(plan, "desired.json")?, memory(yaml, "desired.yaml")?);
    report
        .add_measurement("end-to-end", json!({ "serde": parse.to_json(), "json": plan.to_json(), "yaml": yaml.to_json(), "bytes": bytes }));
    report.add_target(BenchTarget {
        name: "end-to-end",
        value: plan.cpu_ms / parse.cpu_ms,
        bound: AtMost(4.0),
        unit: "x a serde_json parse, 100,000 guests",
    });
    report.add_target(BenchTarget {
        name: "peak-memory",
        value: of_json.max(of_yaml),
        bound: AtMost(4.0),
        unit: "x the size of the files",
    });
    Ok(())
}

/// Plans the fleet. The exit code is 3, because the default limits refuse a run over 25,000 guests.
fn measure_plan(programs: &BenchPrograms, desired: &str, fleet: &str) -> Result<ProcessCost, TaskError> {
    child::measure_program(&programs.converger, &["plan", desired, "--replay", "current.json"], fleet, &[3])
}

/// Parsing desired.yaml, compared with a bare pass over the parser's events.
fn measure_yaml(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let measured = child::run_for_json(&programs.decode, &["yaml", FLEET_DIRECTORY, &TURNS.to_string()])?;
    let ratio = read_number(&measured, "desired_ns")? / read_number(&measured, "events_ns")?;
    report.add_measurement("yaml", measured);
    report.add_target(BenchTarget { name: "yaml", value: ratio, bound: AtMost(2.0), unit: "x a bare event pass, 100,000 guests" });
    Ok(())
}

/// The mean of many starts; a single one is too short to measure.
fn measure_start_up(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let mut total_ms = 0.0;
    for _ in 0..START_COUNT {
        total_ms += child::measure_program(&programs.converger, &["--version"], ".", &[0])?.cpu_ms;
    }
    let mean_ms = total_ms / f64::from(START_COUNT);
    report.add_measurement("start-up", json!({ "starts": START_COUNT, "mean_ms": mean_ms }));
    report.add_target(BenchTarget { name: "start-up", value: mean_ms, bound: AtMost(5.0), unit: "ms of CPU" });
    Ok(())
}

/// Instructions of the same workloads on smaller fleets. SHA-256 counts in full, because valgrind has no SHA instructions.
fn count_instructions(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    const SMALL: &str = "target/bench-small";
    child::run_for_json(&programs.decode, &["write", SMALL, "10000"])?;
    let plan = |function| child::count_instructions_in(&programs.plan, &["100000", "1"], ".", function);
    let yaml = |function| child::count_instructions_in(&programs.decode, &["yaml", ".", "1"], SMALL, function);
    let counted = json!({
        "plan-100000": { "merge": plan("merge_once")?, "plan": plan("plan_once")? },
        "yaml-10000": { "events": yaml("events_once")?, "desired": yaml("desired_once")? },
        "end-to-end-10000": {
            "serde": child::count_instructions(&programs.decode, &["serde", "."], SMALL)?,
            "json": child::count_instructions(&programs.converger, &["plan", "desired.json", "--replay", "current.json"], SMALL)?,
        },
        "start-up": child::count_instructions(&programs.converger, &["--version"], ".")?,
    });
    report.add_measurement("instructions", counted);
    Ok(())
}

fn read_number(measured: &Value, key: &str) -> Result<f64, TaskError> {
    measured.get(key).and_then(Value::as_f64).ok_or_else(|| TaskError::new(format!("a bench did not report `{key}`: {measured}")))
}

fn file_size(name: &str) -> Result<u64, TaskError> {
    let path = Path::new(FLEET_DIRECTORY).join(name);
    path.metadata().map(|file| file.len()).map_err(|error| TaskError::new(format!("cannot read `{}`: {error}", path.display())))
}
