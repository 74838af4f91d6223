//! What the engine costs: how close a fleet comes to its ideal schedule, in virtual time, what is made durable for each
//! operation, counted at the store and at the kernel, and what a schedule of the simulation costs.
//!
//! Syncs are counted by `strace`, which sees what SQLite really asks the system for. How long they take depends on the disk: the
//! ratio to bare inserts is told and not judged.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::build::Programs;
use super::child::Cost;
use super::report::Bound::{AtLeast, AtMost};
use super::report::{Report, Target};
use super::{child, number};
use crate::shell::{self, Failure, Outcome};

const GUESTS: &str = "1000";
const NODES: &str = "10";
/// How long a start takes, in milliseconds. The shortest is told and not judged: there the requests of an operation count, which are
/// 8 % of it before anything is waited (docs/decisions/0012).
const STARTS_MS: [&str; 4] = ["2000", "5000", "10000", "20000"];
/// A run begins and ends.
const COMMITS_OF_A_RUN: f64 = 2.0;
/// From the first seed on; a schedule that breaks a rule is a failure here too.
const SCHEDULES: u32 = 5_000;
/// So few and so many are counted by instructions.
const COUNTED: [u32; 2] = [200, 1_000];
const ROOM: &str = "target/bench-engine";

/// A thousand starts against the ideal for the limits, and the commits of each.
pub(super) fn schedule(programs: &Programs, report: &mut Report) -> Outcome {
    let (mut over, mut commits) = (0.0_f64, 0.0_f64);
    for start_ms in STARTS_MS {
        let measured = child::output(&programs.fleet, &["schedule", GUESTS, NODES, start_ms])?;
        let (took_ms, ideal_ms) = (number(&measured, "took_ms")?, number(&measured, "ideal_ms")?);
        if start_ms != STARTS_MS[0] {
            over = over.max((took_ms / ideal_ms - 1.0) * 100.0);
        }
        commits = commits.max((number(&measured, "commits")? - COMMITS_OF_A_RUN) / number(&measured, "guests")?);
        report.measured(&format!("fleet-{start_ms}"), measured);
    }
    report.target(Target {
        name: "schedule",
        value: over,
        bound: AtMost(10.0),
        unit: "% over the ideal, 1,000 starts of 5 s or more on 10 nodes",
    });
    report.target(Target { name: "commits", value: commits, bound: AtMost(3.0), unit: "durable commits of an operation" });
    Ok(())
}

/// The same over SQLite: commits share transactions, and so syncs. Without sharing each would be above 3.
pub(super) fn journal(programs: &Programs, report: &mut Report) -> Outcome {
    let state = format!("{ROOM}/state");
    emptied(Path::new(ROOM))?;
    let (said, syncs) = synced(&programs.fleet, &["journal", GUESTS, NODES, &state], ROOM)?;
    let guests = number(&said, "guests")?;
    let transactions = number(&said, "transactions")?;
    report.measured("journal", json!({ "said": said, "syncs": syncs }));
    report.target(Target {
        name: "transactions",
        value: transactions / guests,
        bound: AtMost(2.5),
        unit: "transactions of an operation, shared",
    });
    report.target(Target {
        name: "syncs",
        value: syncs as f64 / guests,
        bound: AtMost(2.5),
        unit: "fsync or fdatasync of an operation, shared",
    });
    Ok(())
}

/// The journal's time against bare inserts of the same bytes in groups of the same size.
pub(super) fn ratio(programs: &Programs, report: &mut Report) -> Outcome {
    let measured = child::output(&programs.of_store.commits, &[])?;
    let ratio = number(&measured, "ratio")?;
    report.remark(format!(
        "journal: {ratio:.2} of the speed of bare group-committed inserts (aim 0.5; it depends on the disk and is not judged)"
    ));
    report.measured("commits", measured);
    Ok(())
}

/// Schedules of the simulation, told by one thread: the best of a few turns, by CPU time. That is one of the machine, too: of one program it was
/// between 4,100 and 6,900 within a quarter of an hour (docs/decisions/0018). Beside it what can be repeated: instructions, those of many without those of few, so that
/// what is done once does not count.
pub(super) struct Simulator {
    program: PathBuf,
    cost: Cost,
}

impl Simulator {
    pub(super) fn of(program: PathBuf) -> Self {
        Self { program, cost: Cost::NONE }
    }

    pub(super) fn turn(&mut self) -> Outcome {
        let schedules = SCHEDULES.to_string();
        self.cost = self.cost.and(child::cost(&self.program, &["--threads", "1", "--schedules", &schedules], ".", &[0])?);
        Ok(())
    }

    pub(super) fn judge(&self, report: &mut Report) -> Outcome {
        let [few, many] = COUNTED.map(|schedules| {
            child::instructions(&self.program, &["--threads", "1", "--schedules", &schedules.to_string()], ".")
                .map(|instructions| (f64::from(schedules), instructions as f64))
        });
        let ((few, least), (many, most)) = (few?, many?);
        let instructions = (most - least) / (many - few);
        let rate = f64::from(SCHEDULES) / self.cost.cpu_ms * 1000.0;
        report.measured("simulator", json!({ "schedules": SCHEDULES, "cost": self.cost.json(), "instructions": instructions }));
        report.target(Target { name: "simulator", value: rate, bound: AtLeast(5000.0), unit: "schedules per second per core" });
        report.target(Target {
            name: "simulator-work",
            value: instructions / 1e6,
            bound: AtMost(0.75),
            unit: "million instructions of a schedule, by valgrind",
        });
        Ok(())
    }
}

/// What a bench says, and how often it asked the system to sync something. The count is taken in this room.
pub(super) fn synced(program: &Path, arguments: &[&str], room: &str) -> Result<(Value, u64), Failure> {
    let (name, counts) = (program.display().to_string(), format!("{room}/syncs"));
    let strace = [&["-f", "-c", "-e", "trace=fsync,fdatasync", "-o", &counts, &name], arguments].concat();
    let text = shell::capture(&mut shell::command("strace", &strace))
        .map_err(|failure| Failure::new(format!("{failure}; syncs are counted by `strace`, which must be installed")))?;
    let said = serde_json::from_str(&text).map_err(|error| Failure::new(format!("`{name}` did not print JSON: {error}")))?;
    let table = fs::read_to_string(&counts).map_err(|error| Failure::new(format!("cannot read `{counts}`: {error}")))?;
    let syncs = syncs(&table).ok_or_else(|| Failure::new(format!("strace counted nothing: {table}")))?;
    Ok((said, syncs))
}

pub(super) fn emptied(room: &Path) -> Outcome {
    let _ = fs::remove_dir_all(room);
    fs::create_dir_all(room).map_err(|error| Failure::new(format!("cannot make `{}`: {error}", room.display())))
}

/// The calls in strace's summary, whose rows are `% time, seconds, usecs/call, calls, [errors,] syscall`.
fn syncs(table: &str) -> Option<u64> {
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
    fn straces_table_is_read_and_nothing_else_counts_as_a_sync() {
        let table = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.022017          60       365         1 fsync
 10.00    0.002000          60        35           fdatasync
------ ----------- ----------- --------- --------- ----------------
100.00    0.024017          60       400           total
";
        assert_eq!(syncs(table), Some(400));
        assert_eq!(syncs("100.00    0.024017          60       400           total\n"), None);
    }
}
