//! What the engine costs: how close a fleet comes to its ideal schedule, in virtual time, what is made durable for each
//! operation, counted at the store and at the kernel, and what a schedule of the simulation costs.
//!
//! Syncs are counted by `strace`, which sees what SQLite really asks the system for. How long they take depends on the disk: the
//! ratio to bare inserts is told and not judged.

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
/// How long a start takes, in milliseconds. The shortest is told and not judged: there the requests of an operation count, which are
/// 8 % of it before anything is waited (docs/decisions/0012).
const START_DURATIONS_MS: [&str; 4] = ["2000", "5000", "10000", "20000"];
/// A run begins and ends.
const COMMITS_PER_RUN: f64 = 2.0;
/// From the first seed on; a schedule that breaks a rule is a failure here too.
const SCHEDULES: u32 = 5_000;
/// So few and so many are counted by instructions.
const COUNTED_SCHEDULES: [u32; 2] = [200, 1_000];
const WORK_DIRECTORY: &str = "target/bench-engine";

/// A thousand starts against the ideal for the limits, and the commits of each.
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
    report.add_target(BenchTarget { name: "commits", value: commits, bound: AtMost(3.0), unit: "durable commits of an operation" });
    Ok(())
}

/// The same over SQLite: commits share transactions, and so syncs. Without sharing each would be above 3.
pub(super) fn measure_journal(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let state = format!("{WORK_DIRECTORY}/state");
    recreate_directory(Path::new(WORK_DIRECTORY))?;
    let (said, syncs) = run_counting_syncs(&programs.fleet, &["journal", GUESTS, NODES, &state], WORK_DIRECTORY)?;
    let guests = read_number(&said, "guests")?;
    let transactions = read_number(&said, "transactions")?;
    report.add_measurement("journal", json!({ "said": said, "syncs": syncs }));
    report.add_target(BenchTarget {
        name: "transactions",
        value: transactions / guests,
        bound: AtMost(2.5),
        unit: "transactions of an operation, shared",
    });
    report.add_target(BenchTarget {
        name: "syncs",
        value: syncs as f64 / guests,
        bound: AtMost(2.5),
        unit: "fsync or fdatasync of an operation, shared",
    });
    Ok(())
}

/// The journal's time against bare inserts of the same bytes in groups of the same size.
pub(super) fn measure_journal_ratio(programs: &BenchPrograms, report: &mut BenchReport) -> TaskResult {
    let measured = child::run_for_json(&programs.store.commits, &[])?;
    let ratio = read_number(&measured, "ratio")?;
    report.add_remark(format!(
        "journal: {ratio:.2} of the speed of bare group-committed inserts (aim 0.5; it depends on the disk and is not judged)"
    ));
    report.add_measurement("commits", measured);
    Ok(())
}

/// Schedules of the simulation, told by one thread: the best of a few turns, by CPU time. That is one of the machine, too: of one program it was
/// between 4,100 and 6,900 within a quarter of an hour (docs/decisions/0018). Beside it what can be repeated: instructions, those of many without those of few, so that
/// what is done once does not count.
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
            unit: "million instructions of a schedule, by valgrind",
        });
        Ok(())
    }
}

/// What a bench says, and how often it asked the system to sync something. The count is taken in this room.
pub(super) fn run_counting_syncs(program: &Path, arguments: &[&str], room: &str) -> Result<(Value, u64), TaskError> {
    let (name, counts) = (program.display().to_string(), format!("{room}/syncs"));
    let strace = [&["-f", "-c", "-e", "trace=fsync,fdatasync", "-o", &counts, &name], arguments].concat();
    let text = shell::capture_stdout(&mut shell::new_command("strace", &strace))
        .map_err(|failure| TaskError::new(format!("{failure}; syncs are counted by `strace`, which must be installed")))?;
    let said = serde_json::from_str(&text).map_err(|error| TaskError::new(format!("`{name}` did not print JSON: {error}")))?;
    let table = fs::read_to_string(&counts).map_err(|error| TaskError::new(format!("cannot read `{counts}`: {error}")))?;
    let syncs = parse_sync_count(&table).ok_or_else(|| TaskError::new(format!("strace counted nothing: {table}")))?;
    Ok((said, syncs))
}

pub(super) fn recreate_directory(room: &Path) -> TaskResult {
    let _ = fs::remove_dir_all(room);
    fs::create_dir_all(room).map_err(|error| TaskError::new(format!("cannot make `{}`: {error}", room.display())))
}

/// The calls in strace's summary, whose rows are `% time, seconds, usecs/call, calls, [errors,] syscall`.
fn parse_sync_count(table: &str) -> Option<u64> {
    let calls = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_sync = matches!(words.last(), Some(&("fsync" | "fdatasync")));
        words.get(3).filter(|_| is_sync).and_then(|count| count.parse::<u64>().ok())
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
