//! Peeking reads the conditions of a store without changing it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use converger_core::apply::{JournalRecord, Operation, OperationEnd, OperationHistory, OperationId, Resolution};
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{Batch, StoreConditions, StoreReader as _, StoreWrite};

use super::{commit_written, open_store, peek_conditions, state_directory_path};

fn with_time(record: JournalRecord, now_ms: u64) -> JournalRecord {
    match record {
        JournalRecord::Intent { operation, .. } => JournalRecord::Intent { operation, at_ms: now_ms },
        JournalRecord::Sending { id, up_ms, .. } => JournalRecord::Sending { id, at_ms: now_ms, up_ms },
        JournalRecord::TaskStarted { id, task, .. } => JournalRecord::TaskStarted { id, task, at_ms: now_ms },
        JournalRecord::Ended { id, outcome, .. } => JournalRecord::Ended { id, outcome, at_ms: now_ms },
        JournalRecord::Resolved { id, resolution, by, reason, .. } => JournalRecord::Resolved { id, resolution, by, reason, at_ms: now_ms },
    }
}

/// Guests 1 to 5: ended at 100, ended at 200, in flight, held since 100, and held at 100 but resolved at 200.
fn fill_batch(sample: &mut OperationSample) -> Batch {
    let mut batch = sample.start_write();
    for (guest, end) in
        [(1, Some((OperationEnd::Done, 100))), (2, Some((OperationEnd::Failed, 200))), (3, None), (4, Some((OperationEnd::Held, 100)))]
    {
        let operation = sample.operation(guest, guest);
        batch = batch.with(with_time(sample.intent_record(&operation), 90));
        if let Some((end, at_ms)) = end {
            batch = batch.with(with_time(sample.end_record(&operation, end), at_ms));
        }
    }
    let settled = sample.operation(5, 5);
    let (intent, held) = (with_time(sample.intent_record(&settled), 90), with_time(sample.end_record(&settled, OperationEnd::Held), 100));
    batch.with(intent).with(held).with(with_time(sample.resolution_record(&settled, Resolution::Done), 200))
}

#[test]
fn peek_without_a_store_returns_nothing() {
    let (_above, directory) = state_directory_path();
    assert_eq!(peek_conditions(&directory, &OperationSample::new(3).environment()).expect("read"), StoreConditions::default());
}

#[test]
fn lists_operations_until_they_release_their_guest() {
    let (_above, directory) = state_directory_path();
    let mut sample = OperationSample::new(3);
    let (environment, store) = (sample.environment(), open_store(&directory));
    commit_written(&store, sample.start_write());
    let check_peek = |what: &str, expected: &[&Operation]| {
        let unsettled = peek_conditions(&directory, &environment).expect("read").unsettled;
        let ids: Vec<&OperationId> = unsettled.iter().map(OperationHistory::id).collect();
        assert_eq!(ids, expected.iter().map(|operation| &operation.id).collect::<Vec<_>>(), "{what}");
    };
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 2));
    check_peek("nothing was started", &[]);
    for operation in [&first, &second] {
        commit_written(&store, Batch::new(vec![StoreWrite::Record(sample.intent_record(operation))]));
    }
    check_peek("two are in flight", &[&first, &second]);
    commit_written(&store, Batch::new(vec![StoreWrite::Record(sample.end_record(&first, OperationEnd::Held))]));
    check_peek("the outcome of one is unknown", &[&first, &second]);
    commit_written(&store, Batch::new(vec![StoreWrite::Record(sample.end_record(&second, OperationEnd::Done))]));
    check_peek("one is done", &[&first]);
    commit_written(&store, Batch::new(vec![StoreWrite::Record(sample.resolution_record(&first, Resolution::Done))]));
    check_peek("a person resolved the other", &[]);
}

/// Every file of a directory with its content and modification time, and that of the directory.
fn directory_state(directory: &Path) -> (SystemTime, BTreeMap<String, (SystemTime, Vec<u8>)>) {
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).expect("a time");
    let files = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let name = |path: &Path| path.file_name().expect("a name").to_string_lossy().into_owned();
    (changed(directory), files.map(|path| (name(&path), (changed(&path), fs::read(&path).expect("read")))).collect())
}

/// A copy of a store as a killed process leaves it: with a WAL, and without the shared-memory file.
fn copy_with_log(directory: &Path, log: &[u8], above: &Path, name: &str) -> std::path::PathBuf {
    let copy = above.join(name);
    super::opening::make_private_directory(&copy);
    fs::copy(directory.join("converger.db"), copy.join("converger.db")).expect("copied");
    fs::write(copy.join("converger.db-wal"), log).expect("written");
    copy
}

#[test]
fn g5_peek_changes_no_byte_and_no_timestamp() {
    let (above, directory) = state_directory_path();
    let mut sample = OperationSample::new(3);
    let store = open_store(&directory);
    commit_written(&store, fill_batch(&mut sample));
    let log = fs::read(directory.join("converger.db-wal")).expect("a log");
    assert!(!log.is_empty(), "the writes are in the WAL");
    for path in [directory.clone(), copy_with_log(&directory, &log, above.path(), "killed")] {
        let expected = block_on(store.conditions(sample.environment())).expect("read");
        let before = directory_state(&path);
        assert_eq!(peek_conditions(&path, &sample.environment()).expect("read"), expected);
        assert!(directory_state(&path) == before, "{:?}", directory_state(&path).1.keys());
    }
}

#[test]
fn reads_a_damaged_wal_as_far_as_sqlite_does() {
    let (above, directory) = state_directory_path();
    let mut sample = OperationSample::new(3);
    let (environment, store) = (sample.environment(), open_store(&directory));
    commit_written(&store, sample.start_write());
    for guest in 1..=8 {
        let operation = sample.operation(guest, guest);
        commit_written(&store, Batch::new(vec![StoreWrite::Record(sample.intent_record(&operation))]));
        commit_written(&store, Batch::new(vec![StoreWrite::Record(sample.end_record(&operation, OperationEnd::Held))]));
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
        let conditions =
            peek_conditions(&copy_with_log(&directory, &log, above.path(), &format!("told-{part}")), &environment).expect("read");
        let opened_store = open_store(&copy_with_log(&directory, &log, above.path(), &format!("theirs-{part}")));
        assert_eq!(conditions, block_on(opened_store.conditions(environment.clone())).expect("read"), "part {part}");
        counts.insert(conditions.unsettled.len());
    }
    assert!(counts.len() > 3, "the damaged WALs must differ in how much can be read: {counts:?}");
}
