//! The cost of evidence: verifying a ledger, reproducing a decision, and appending to a long log;
//! and that the ledger causes no additional syncs.
//!
//! `strace` counts syncs, as for the engine. How fast entries become durable depends on the disk,
//! so it is reported and not judged.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::engine::{recreate_directory, run_counting_syncs};
use super::report::TargetBound::AtMost;
use super::report::{BenchReport, BenchTarget};
use super::{child, read_number};
use crate::shell::{TaskError, TaskResult};

const ENTRIES: &str = "100000";
const TURNS: &str = "9";
/// The length of the long ledger; appends to it are compared with appends to a short one.
const LONG_LEDGER_ENTRIES: &str = "1000000";
const GROWTH_TURNS: &str = "50";
/// Guests of a reproduced decision. The smaller number is reported and not judged, because there the constant tables of the program
/// dominate.
const GUESTS: [&str; 2] = ["10", "1000"];
const DECISION_TURNS: &str = "100";
/// Few enough that no checkpoint of the database's WAL happens during the measurement.
const BATCHES: [u32; 2] = [20, 40];
const WORK_DIRECTORY: &str = "target/bench-evidence";

pub(super) fn measure_evidence(program: &Path, report: &mut BenchReport) -> TaskResult {
    measure_verify(program, report)?;
    measure_reproduce(program, report)?;
    measure_commits(program, report)?;
    measure_append(program, report)
}

/// Verifies a ledger by its hashes alone, and entry by entry.
fn measure_verify(program: &Path, report: &mut BenchReport) -> TaskResult {
    let measured = child::run_for_json(program, &["walk", ENTRIES, TURNS])?;
    let walk_ratio = read_number(&measured, "walk_ns")? / read_number(&measured, "sha_ns")?;
    report.add_measurement("verify-walk", measured);
    let measured = child::run_for_json(program, &["deep", ENTRIES, TURNS])?;
    let deep_ratio = read_number(&measured, "deep_ns")? / read_number(&measured, "typed_ns")?;
    let entries = read_number(&measured, "entries_ns")? / read_number(&measured, "typed_entries_ns")?;
    report.add_measurement("verify-deep", measured);
    report.add_target(BenchTarget {
        name: "verify-walk",
        value: walk_ratio,
        bound: AtMost(3.0),
        unit: "x a bare SHA-256 of the same bytes, 100,000 entries",
    });
    report.add_target(BenchTarget {
        name: "verify-deep",
        value: deep_ratio,
        bound: AtMost(3.0),
        unit: "x a typed parse with serde_json of the same bytes, 100,000 entries and their blobs",
    });
    // Judged separately: the blobs beside the entries are hashed and mostly not parsed, and are so large that they would hide the cost of
    // the entries.
    report.add_target(BenchTarget {
        name: "verify-entries",
        value: entries,
        bound: AtMost(3.0),
        unit: "x a typed parse with serde_json of the 100,000 entries alone",
    });
    Ok(())
}

/// Reproduces a decision from what was stored.
fn measure_reproduce(program: &Path, report: &mut BenchReport) -> TaskResult {
    for guests in GUESTS {
        let measured = child::run_for_json(program, &["reproduce", guests, DECISION_TURNS])?;
        let ratio = read_number(&measured, "reproduce_ns")? / read_number(&measured, "bare_ns")?;
        report.add_measurement(&format!("reproduce-{guests}"), measured);
        if guests == GUESTS[0] {
            report.add_remark(format!("reproduce: {ratio:.2} times hashing and parsing its inputs, for {guests} guests (not judged)"));
        } else {
            let unit = "x hashing and parsing its inputs, 1,000 guests";
            report.add_target(BenchTarget { name: "reproduce", value: ratio, bound: AtMost(5.0), unit });
        }
    }
    Ok(())
}

/// An append to a log of a million entries, compared with one to a log of a thousand: in memory, and through the store with its journal.
fn measure_append(program: &Path, report: &mut BenchReport) -> TaskResult {
    recreate_directory(Path::new(WORK_DIRECTORY))?;
    let measured = child::run_for_json(program, &["growth", LONG_LEDGER_ENTRIES, GROWTH_TURNS])?;
    let stored = child::run_for_json(program, &["append", LONG_LEDGER_ENTRIES, WORK_DIRECTORY])?;
    // It is almost a gigabyte.
    fs::remove_dir_all(WORK_DIRECTORY).map_err(|error| TaskError::new(format!("cannot remove `{WORK_DIRECTORY}`: {error}")))?;
    let growth = read_number(&measured, "late_ns")? / read_number(&measured, "early_ns")?;
    let append = read_number(&stored, "late_ns")? / read_number(&stored, "early_ns")?;
    report.add_measurement("append", json!({ "growth": measured, "store": stored }));
    report.add_target(BenchTarget {
        name: "append-tree",
        value: growth,
        bound: AtMost(1.5),
        unit: "x the 1,000th append, for the 1,000,000th",
    });
    report.add_target(BenchTarget {
        name: "append",
        value: append,
        bound: AtMost(1.5),
        unit: "x the same through the store, with its journal",
    });
    Ok(())
}

/// What batches of 64 entries request from the disk, compared with batches without entries.
fn measure_commits(program: &Path, report: &mut BenchReport) -> TaskResult {
    let (with, without) = (measure_batch(program, "entries")?, measure_batch(program, "blobs")?);
    let inserts = child::run_for_json(program, &["inserts"])?;
    let ratio = read_number(&inserts, "ratio")?;
    report.add_remark(format!(
        "ledger: {ratio:.2} of the speed of bare group-committed inserts of its entries, with the journal (goal 0.6; depends on the disk, not judged)"
    ));
    let cost_json = |cost: &BatchCost| json!({ "transactions": cost.transactions, "syncs": cost.syncs });
    report.add_measurement("ledger-commits", json!({ "entries": cost_json(&with), "blobs": cost_json(&without), "inserts": inserts }));
    report.add_target(BenchTarget {
        name: "ledger-commits",
        value: with.transactions,
        bound: AtMost(1.0),
        unit: "transactions per batch of 64 entries",
    });
    report.add_target(BenchTarget {
        name: "ledger-syncs",
        value: with.syncs,
        bound: AtMost(1.0),
        unit: "fsync or fdatasync per batch of 64 entries",
    });
    report.add_target(BenchTarget {
        name: "ledger-syncs-own",
        value: with.syncs - without.syncs,
        bound: AtMost(0.0),
        unit: "more than for a batch without entries",
    });
    Ok(())
}

/// What one batch requests.
struct BatchCost {
    transactions: f64,
    syncs: f64,
}

/// The difference between many and few batches, because opening and closing a store costs the same for any number.
fn measure_batch(program: &Path, kind: &str) -> Result<BatchCost, TaskError> {
    let counted = |count: u32| -> Result<(f64, f64), TaskError> {
        recreate_directory(Path::new(WORK_DIRECTORY))?;
        let (result, syncs) =
            run_counting_syncs(program, &["batches", kind, &count.to_string(), &format!("{WORK_DIRECTORY}/state")], WORK_DIRECTORY)?;
        Ok((read_number(&result, "transactions")?, syncs as f64))
    };
    let ((few, few_syncs), (many, many_syncs)) = (counted(BATCHES[0])?, counted(BATCHES[1])?);
    let more = f64::from(BATCHES[1] - BATCHES[0]);
    Ok(BatchCost { transactions: (many - few) / more, syncs: (many_syncs - few_syncs) / more })
}
