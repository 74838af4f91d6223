//! What evidence costs: checking a ledger, making a decision again, and one entry more in a long log; and that the ledger asks the disk for
//! nothing that was not asked for without it.
//!
//! Syncs are counted by `strace`, as those of the engine are. How fast entries become durable depends on the disk: it is told and not judged.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::engine::{emptied, synced};
use super::report::Bound::AtMost;
use super::report::{Report, Target};
use super::{child, number};
use crate::shell::{Failure, Outcome};

const ENTRIES: &str = "100000";
const TURNS: &str = "9";
/// A ledger that is long, and appends to one that is short are compared with it.
const LONG: &str = "1000000";
const GROWTH_TURNS: &str = "50";
/// Guests of a decision that is made again. The smaller one is told and not judged: there the tables of the program count.
const GUESTS: [&str; 2] = ["10", "1000"];
const DECISION_TURNS: &str = "100";
/// Few enough that the log of the database is not brought over meanwhile.
const BATCHES: [u32; 2] = [20, 40];
const ROOM: &str = "target/bench-evidence";

pub(super) fn all(program: &Path, report: &mut Report) -> Outcome {
    verify(program, report)?;
    reproduce(program, report)?;
    commits(program, report)?;
    append(program, report)
}

/// A ledger checked by its hashes alone, and entry by entry.
fn verify(program: &Path, report: &mut Report) -> Outcome {
    let measured = child::output(program, &["walk", ENTRIES, TURNS])?;
    let walk = number(&measured, "walk_ns")? / number(&measured, "sha_ns")?;
    report.measured("verify-walk", measured);
    let measured = child::output(program, &["deep", ENTRIES, TURNS])?;
    let deep = number(&measured, "deep_ns")? / number(&measured, "typed_ns")?;
    let entries = number(&measured, "entries_ns")? / number(&measured, "typed_entries_ns")?;
    report.measured("verify-deep", measured);
    report.target(Target { name: "verify-walk", value: walk, bound: AtMost(3.0), unit: "x a bare SHA-256 of the same, 100,000 entries" });
    report.target(Target {
        name: "verify-deep",
        value: deep,
        bound: AtMost(3.0),
        unit: "x a typed parse with serde_json of the same, 100,000 entries and what is kept beside them",
    });
    // Judged by itself: what is kept beside the entries is hashed and mostly not read, and is so much that it would hide what they cost.
    report.target(Target {
        name: "verify-entries",
        value: entries,
        bound: AtMost(3.0),
        unit: "x a typed parse with serde_json of the 100,000 entries alone",
    });
    Ok(())
}

/// A decision made again of what was kept.
fn reproduce(program: &Path, report: &mut Report) -> Outcome {
    for guests in GUESTS {
        let measured = child::output(program, &["reproduce", guests, DECISION_TURNS])?;
        let ratio = number(&measured, "reproduce_ns")? / number(&measured, "bare_ns")?;
        report.measured(&format!("reproduce-{guests}"), measured);
        if guests == GUESTS[0] {
            report.remark(format!("reproduce: {ratio:.2} times hashing and parsing what it rests on, for {guests} guests (not judged)"));
        } else {
            let unit = "x hashing and parsing what it rests on, 1,000 guests";
            report.target(Target { name: "reproduce", value: ratio, bound: AtMost(5.0), unit });
        }
    }
    Ok(())
}

/// One entry more in a log of a million against one in a log of a thousand: in memory, and through the store with its journal.
fn append(program: &Path, report: &mut Report) -> Outcome {
    emptied(Path::new(ROOM))?;
    let grown = child::output(program, &["growth", LONG, GROWTH_TURNS])?;
    let stored = child::output(program, &["append", LONG, ROOM])?;
    // It is most of a gigabyte.
    fs::remove_dir_all(ROOM).map_err(|error| Failure::new(format!("cannot remove `{ROOM}`: {error}")))?;
    let growth = number(&grown, "late_ns")? / number(&grown, "early_ns")?;
    let append = number(&stored, "late_ns")? / number(&stored, "early_ns")?;
    report.measured("append", json!({ "growth": grown, "store": stored }));
    report.target(Target { name: "append-tree", value: growth, bound: AtMost(1.5), unit: "x the 1,000th append, the 1,000,000th" });
    report.target(Target { name: "append", value: append, bound: AtMost(1.5), unit: "x the same in the store, with its journal" });
    Ok(())
}

/// What batches of 64 entries ask the disk for, and what batches without any do.
fn commits(program: &Path, report: &mut Report) -> Outcome {
    let (with, without) = (asked(program, "entries")?, asked(program, "blobs")?);
    let inserts = child::output(program, &["inserts"])?;
    let ratio = number(&inserts, "ratio")?;
    report.remark(format!(
        "ledger: {ratio:.2} of the speed of bare group-committed inserts of its entries, with the journal (aim 0.6; it depends on the disk and is not judged)"
    ));
    let told = |asked: &Asked| json!({ "transactions": asked.transactions, "syncs": asked.syncs });
    report.measured("ledger-commits", json!({ "entries": told(&with), "blobs": told(&without), "inserts": inserts }));
    report.target(Target {
        name: "ledger-commits",
        value: with.transactions,
        bound: AtMost(1.0),
        unit: "transactions of a batch of 64 entries",
    });
    report.target(Target { name: "ledger-syncs", value: with.syncs, bound: AtMost(1.0), unit: "fsync or fdatasync of such a batch" });
    report.target(Target {
        name: "ledger-syncs-own",
        value: with.syncs - without.syncs,
        bound: AtMost(0.0),
        unit: "more than of a batch without entries",
    });
    Ok(())
}

/// What one batch asks for.
struct Asked {
    transactions: f64,
    syncs: f64,
}

/// By what more batches ask for more: opening and closing a store is the same for any number of them.
fn asked(program: &Path, kind: &str) -> Result<Asked, Failure> {
    let counted = |count: u32| -> Result<(f64, f64), Failure> {
        emptied(Path::new(ROOM))?;
        let (said, syncs) = synced(program, &["batches", kind, &count.to_string(), &format!("{ROOM}/state")], ROOM)?;
        Ok((number(&said, "transactions")?, syncs as f64))
    };
    let ((few, few_syncs), (many, many_syncs)) = (counted(BATCHES[0])?, counted(BATCHES[1])?);
    let more = f64::from(BATCHES[1] - BATCHES[0]);
    Ok(Asked { transactions: (many - few) / more, syncs: (many_syncs - few_syncs) / more })
}
