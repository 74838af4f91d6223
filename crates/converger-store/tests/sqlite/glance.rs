//! What is told of a store without touching it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use converger_core::apply::{End, History, Operation, OperationId, Record, Resolution};
use converger_store::conformance::{Sample, now};
use converger_store::{Batch, Remembered, Write, glance};

use super::{open, place, write};

fn at(record: Record, now_ms: u64) -> Record {
    match record {
        Record::Intent { operation, .. } => Record::Intent { operation, at_ms: now_ms },
        Record::Sending { id, up_ms, .. } => Record::Sending { id, at_ms: now_ms, up_ms },
        Record::Tasked { id, task, .. } => Record::Tasked { id, task, at_ms: now_ms },
        Record::Ended { id, outcome, .. } => Record::Ended { id, outcome, at_ms: now_ms },
        Record::Resolved { id, resolution, by, reason, .. } => Record::Resolved { id, resolution, by, reason, at_ms: now_ms },
    }
}

/// Guests 1 to 5: ended at 100, ended at 200, under way, held since 100, and held at 100 but settled by a person at 200.
fn content(sample: &mut Sample) -> Batch {
    let mut batch = sample.start();
    for (guest, end) in [(1, Some((End::Done, 100))), (2, Some((End::Failed, 200))), (3, None), (4, Some((End::Held, 100)))] {
        let operation = sample.operation(guest, guest);
        batch = batch.with(at(sample.intent(&operation), 90));
        if let Some((end, at_ms)) = end {
            batch = batch.with(at(sample.ended(&operation, end), at_ms));
        }
    }
    let settled = sample.operation(5, 5);
    let (intent, held) = (at(sample.intent(&settled), 90), at(sample.ended(&settled, End::Held), 100));
    batch.with(intent).with(held).with(at(sample.resolved(&settled, Resolution::Done), 200))
}

#[test]
fn where_there_is_no_store_nothing_is_remembered() {
    let (_above, directory) = place();
    assert_eq!(glance(&directory, &Sample::new(3).environment()).expect("read"), Remembered::default());
}

#[test]
fn whoever_has_a_guest_is_told_until_that_is_over() {
    let (_above, directory) = place();
    let mut sample = Sample::new(3);
    let (environment, store) = (sample.environment(), open(&directory));
    write(&store, sample.start());
    let told = |what: &str, expected: &[&Operation]| {
        let unsettled = glance(&directory, &environment).expect("read").unsettled;
        let ids: Vec<&OperationId> = unsettled.iter().map(History::id).collect();
        assert_eq!(ids, expected.iter().map(|operation| &operation.id).collect::<Vec<_>>(), "{what}");
    };
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 2));
    told("nothing was begun", &[]);
    for operation in [&first, &second] {
        write(&store, Batch::new(vec![Write::Record(sample.intent(operation))]));
    }
    told("two are under way", &[&first, &second]);
    write(&store, Batch::new(vec![Write::Record(sample.ended(&first, End::Held))]));
    told("what became of one is not known", &[&first, &second]);
    write(&store, Batch::new(vec![Write::Record(sample.ended(&second, End::Done))]));
    told("one is done", &[&first]);
    write(&store, Batch::new(vec![Write::Record(sample.resolved(&first, Resolution::Done))]));
    told("a person said what became of the other", &[]);
}

/// Every file of a directory with its content and the times at which it, and the directory, were changed.
fn seen(directory: &Path) -> (SystemTime, BTreeMap<String, (SystemTime, Vec<u8>)>) {
    let changed = |path: &Path| fs::metadata(path).and_then(|there| there.modified()).expect("a time");
    let files = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    (changed(directory), files.map(|path| (name(&path), (changed(&path), fs::read(&path).expect("read")))).collect())
}

/// A store as a process that was killed leaves it: with a log, and without the file that is beside it while it is open.
fn left(directory: &Path, log: &[u8], above: &Path, name: &str) -> std::path::PathBuf {
    let copy = above.join(name);
    super::opening::private(&copy);
    fs::copy(directory.join("converger.db"), copy.join("converger.db")).expect("copied");
    fs::write(copy.join("converger.db-wal"), log).expect("written");
    copy
}

#[test]
fn g5_a_glance_changes_no_byte_and_no_time_whoever_has_the_store_open() {
    let (above, directory) = place();
    let mut sample = Sample::new(3);
    let store = open(&directory);
    write(&store, content(&mut sample));
    let log = fs::read(directory.join("converger.db-wal")).expect("a log");
    assert!(!log.is_empty(), "what was written is in the log");
    for place in [directory.clone(), left(&directory, &log, above.path(), "killed")] {
        let expected = now(store.remembered(sample.environment())).expect("read");
        let before = seen(&place);
        assert_eq!(glance(&place, &sample.environment()).expect("read"), expected);
        assert!(seen(&place) == before, "{:?}", seen(&place).1.keys());
    }
}

#[test]
fn a_log_that_is_cut_off_or_damaged_is_read_as_far_as_sqlite_reads_it() {
    let (above, directory) = place();
    let mut sample = Sample::new(3);
    let (environment, store) = (sample.environment(), open(&directory));
    write(&store, sample.start());
    for guest in 1..=8 {
        let operation = sample.operation(guest, guest);
        write(&store, Batch::new(vec![Write::Record(sample.intent(&operation))]));
        write(&store, Batch::new(vec![Write::Record(sample.ended(&operation, End::Held))]));
    }
    let log = fs::read(directory.join("converger.db-wal")).expect("a log");
    let cuts = (0..=24).map(|part| (part, log[..log.len() * part / 24].to_vec()));
    let flips = (25..=48).map(|part| {
        let mut damaged = log.clone();
        damaged[(log.len() - 1) * (part - 25) / 23] ^= 0x10;
        (part, damaged)
    });
    let mut counts = BTreeSet::new();
    for (part, log) in cuts.chain(flips) {
        let told = glance(&left(&directory, &log, above.path(), &format!("told-{part}")), &environment).expect("read");
        let theirs = open(&left(&directory, &log, above.path(), &format!("theirs-{part}")));
        assert_eq!(told, now(theirs.remembered(environment.clone())).expect("read"), "part {part}");
        counts.insert(told.unsettled.len());
    }
    assert!(counts.len() > 3, "some logs have more in them than others: {counts:?}");
}
