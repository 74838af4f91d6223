//! The cost of the engine: how close a run comes to its ideal schedule in virtual time, how much
//! each operation makes durable (counted at the store and at the kernel), and the cost of a
//! simulated schedule.
//!
//! `strace` counts syncs, so that the real requests of SQLite are counted. How long they take
//! depends on the disk, so the ratio to bare inserts is reported and not judged.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::build::BenchPrograms;
use super::child::ProcessCost;
use super::report::TargetBound::{AtLeast, AtMost};
use super::report::{BenchReport, BenchTarget};
use super::{child, read_number};
use crate::shell::{self, TaskError, TaskResult};

const GUESTS: &str = "1000";
const NODES: &str = "10";
/// How long a start takes, in milliseconds. The shortest is reported and not judged: the requests of an operation are 8 % of it before
/// anything waits (docs/decisions/0012).
const START_DURATIONS_MS: [&str; 4] = ["2000", "5000", "10000", "20000"];
/// Commits for the start and the end of a run.
const COMMITS_PER_RUN: f64 = 2.0;
/// Counted from the first seed. A schedule that violates an invariant is an error here too.
const SCHEDULES: u32 = 5_000;
/// Two numbers of schedules; the difference of their instructions is the cost of the schedules alone.
const COUNTED_SCHEDULES: [u32; 2] = [200, 1_000];
const WORK_DIRECTORY: &str = "target/bench-engine";

/// A thousand starts, compared with the ideal schedule under the limits, and the commits of each.
pub(super) fn measure_schedule(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let (mut over, mut commits) = (0.0_f64, 0.0_f64);
    for start_ms in START_DURATIONS_MS {
        let measured = child::run_for_json(&programs.fleet, &["schedule", GUESTS, NODES, start_ms])?;
        let (took_ms, ideal_ms) = (read_number(&measured, "took_ms")?, read_number(&measured, "ideal_ms")?);
        if start_ms != START_DURATIONS_MS[0] {
            over = over.max((took_ms / ideal_ms - 1.0) * 100.0);
        }
        commits = commits.max((read_number(&measured, "commits")? - COMMITS_PER_RUN) / read_number(&measured, "guests")?);
        report.add_measurement(&format!("fleet-{start_ms}"), measured);
    }
    report.add_target(BenchTarget {
        name: "schedule",
        value: over,
        bound: AtMost(10.0),
        unit: "% over the ideal, 1,000 starts of 5 s or more on 10 nodes",
    });
    report.add_target(BenchTarget { name: "commits", value: commits, bound: AtMost(3.0), unit: "durable commits per operation" });
    Ok(())
}

/// The same with SQLite: commits share transactions and syncs. Without sharing, each value would be above 3.
pub(super) fn measure_journal(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let state = format!("{WORK_DIRECTORY}/state");
    recreate_directory(Path::new(WORK_DIRECTORY))?;
    let (result, syncs) = run_counting_syncs(&programs.fleet, &["journal", GUESTS, NODES, &state], WORK_DIRECTORY)?;
    let guests = read_number(&result, "guests")?;
    let transactions = read_number(&result, "transactions")?;
    report.add_measurement("journal", json!({ "said": result, "syncs": syncs }));
    report.add_target(BenchTarget {
        name: "transactions",
        value: transactions / guests,
        bound: AtMost(2.5),
        unit: "transactions per operation, shared",
    });
    report.add_target(BenchTarget {
        name: "syncs",
        value: syncs as f64 / guests,
        bound: AtMost(2.5),
        unit: "fsync or fdatasync per operation, shared",
    });
    Ok(())
}

/// The time of the journal, compared with bare inserts of the same bytes in groups of the same size.
pub(super) fn measure_journal_ratio(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let measured = child::run_for_json(&programs.store.commits, &[])?;
    let ratio = read_number(&measured, "ratio")?;
    report.add_remark(format!(
        "journal: {ratio:.2} of the speed of bare group-committed inserts (goal 0.5; depends on the disk, not judged)"
    ));
    report.add_measurement("commits", measured);
    Ok(())
}

/// The rate of simulated schedules on one thread: the best of a few turns, by CPU time. It still depends on the machine: for one program it
/// was between 4,100 and 6,900 within 15 minutes (docs/decisions/0018). The number of instructions is repeatable: that of many schedules
/// minus that of few, so that one-time work does not count.
pub(super) struct SimulatorBench {
    program: PathBuf,
    cost: ProcessCost,
}

impl SimulatorBench {
    pub(super) fn new(program: PathBuf) -> Self {
        Self { program, cost: ProcessCost::NONE }
    }

    pub(super) fn measure_turn(&mut self) -> TaskResult {
        let schedules = SCHEDULES.to_string();
        self.cost = self.cost.best_of(child::measure_program(&self.program, &["--threads", "1", "--schedules", &schedules], ".", &[0])?);
        Ok(())
    }

    pub(super) fn add_targets(&self, report: &mut BenchReport) -> TaskResult {
        let [few, many] = COUNTED_SCHEDULES.map(|schedules| {
            child::count_instructions(&self.program, &["--threads", "1", "--schedules", &schedules.to_string()], ".")
                .map(|instructions| (f64::from(schedules), instructions as f64))
        });
        let ((few, least), (many, most)) = (few?, many?);
        let instructions = (most - least) / (many - few);
        let rate = f64::from(SCHEDULES) / self.cost.cpu_ms * 1000.0;
        report.add_measurement("simulator", json!({ "schedules": SCHEDULES, "cost": self.cost.to_json(), "instructions": instructions }));
        report.add_target(BenchTarget { name: "simulator", value: rate, bound: AtLeast(5000.0), unit: "schedules per second per core" });
        report.add_target(BenchTarget {
            name: "simulator-work",
            value: instructions / 1e6,
            bound: AtMost(0.75),
            unit: "million instructions per schedule, by valgrind",
        });
        Ok(())
    }
}

/// Runs a bench; returns its result and how many syncs it requested. The count is written to this directory.
pub(super) fn run_counting_syncs(program: &Path, arguments: &[&str], directory: &str) -> Result<(Value, u64), TaskError> {
    let (name, counts) = (program.display().to_string(), format!("{directory}/syncs"));
    let strace = [&["-f", "-c", "-e", "trace=fsync,fdatasync", "-o", &counts, &name], arguments].concat();
    let text = shell::capture_stdout(&mut shell::new_command("strace", &strace))
        .map_err(|failure| TaskError::new(format!("{failure}; install `strace`, which counts the syncs")))?;
    let result = serde_json::from_str(&text).map_err(|error| TaskError::new(format!("`{name}` did not print JSON: {error}")))?;
    let table = fs::read_to_string(&counts).map_err(|error| TaskError::new(format!("cannot read `{counts}`: {error}")))?;
    let syncs = parse_sync_count(&table).ok_or_else(|| TaskError::new(format!("strace counted nothing: {table}")))?;
    Ok((result, syncs))
}

pub(super) fn recreate_directory(directory: &Path) -> TaskResult {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).map_err(|error| TaskError::new(format!("cannot create `{}`: {error}", directory.display())))
}

/// The calls in strace's summary, whose rows are `% time, seconds, usecs/call, calls, [errors,] syscall`.
fn parse_sync_count(table: &str) -> Option<u64> {
    let calls = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let is_sync = matches!(columns.last(), Some(&("fsync" | "fdatasync")));
        columns.get(3).filter(|_| is_sync).and_then(|count| count.parse::<u64>().ok())
    };
    let counts: Vec<u64> = table.lines().filter_map(calls).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sync_calls_in_the_strace_table_are_counted() {
        let table = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.022017          60       365         1 fsync
 10.00    0.002000          60        35           fdatasync
------ ----------- ----------- --------- --------- ----------------
100.00    0.024017          60       400           total
";
        assert_eq!(parse_sync_count(table), Some(400));
        assert_eq!(parse_sync_count("100.00    0.024017          60       400           total\n"), None);
    }
}
