//! If a store or its lock is moved, removed or replaced while it is open, nothing more is acknowledged, and callers get an error.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use converger_store::conformance::OperationSample;
use converger_store::{EnvironmentLock, FatalCause, SqliteStore, StoreError, StoreSettings};

use super::{commit_batch, commit_written, open_store, state_directory_path};

/// A change to a state directory.
type DirectoryChange = fn(&Path);

/// Changes the state directory and commits; returns what `on_fatal` got and what the caller got.
fn commit_after_change(change: DirectoryChange) -> (Vec<FatalCause>, Result<u64, String>) {
    let (_above, directory) = state_directory_path();
    let causes: Arc<Mutex<Vec<FatalCause>>> = Arc::default();
    let teller = Arc::clone(&causes);
    let settings = StoreSettings::new(move |fatal| teller.lock().expect("unpoisoned").push(fatal.clone()));
    let (store, sample) = (SqliteStore::open(&directory, settings).expect("opens"), OperationSample::new(1));
    let lock = EnvironmentLock::acquire(&directory, &sample.environment(), "ann", 1).expect("free");
    store.rely_on(&lock);
    commit_written(&store, sample.start_write());
    commit_written(&store, sample.intent_record(&sample.operation(1, 1)));
    change(&directory);
    let answer = match commit_batch(&store, sample.intent_record(&sample.operation(2, 2))) {
        Ok(_) => Ok(store.transactions()),
        Err(StoreError::Stopped { cause }) => Err(cause),
        Err(other) => panic!("{other}"),
    };
    if answer.is_err() {
        let again = commit_batch(&store, sample.intent_record(&sample.operation(3, 3)));
        assert!(matches!(again, Err(StoreError::Stopped { .. })), "{again:?}");
    }
    (causes.lock().expect("unpoisoned").clone(), answer)
}

#[test]
fn moved_or_replaced_store_acknowledges_nothing_more() {
    let changes: [(&str, &str, DirectoryChange); 7] = [
        ("moved", "moved or removed", |directory| fs::rename(directory, directory.with_file_name("elsewhere")).expect("moved")),
        ("removed", "moved or removed", |directory| fs::remove_dir_all(directory).expect("removed")),
        ("its file", "moved or removed", |directory| fs::remove_file(directory.join("converger.db")).expect("removed")),
        ("its log", "moved or removed", |directory| fs::remove_file(directory.join("converger.db-wal")).expect("removed")),
        ("replaced", "replaced", |directory| {
            fs::rename(directory, directory.with_file_name("elsewhere")).expect("moved");
            commit_written(&open_store(directory), OperationSample::new(1).start_write());
        }),
        ("its lock", "moved or removed", |directory| fs::remove_file(directory.join("lab.lock")).expect("removed")),
        ("another lock", "replaced", |directory| {
            fs::rename(directory.join("lab.lock"), directory.join("old")).expect("moved");
            fs::write(directory.join("lab.lock"), "").expect("written");
        }),
    ];
    for (what, expected, change) in changes {
        let (causes, answer) = commit_after_change(change);
        let cause = answer.expect_err(what);
        assert!(cause.contains(expected) && cause.contains("while it was in use"), "{what}: {cause}");
        assert_eq!(causes, [FatalCause::FileReplaced(cause)], "{what}: on_fatal is called once");
    }
}

#[test]
fn ignores_unrelated_changes_in_its_directory() {
    let harmless: [DirectoryChange; 3] = [
        |_| {},
        |directory| fs::write(directory.join("other"), "x").expect("written"),
        |directory| {
            fs::rename(directory, directory.with_file_name("elsewhere")).expect("moved");
            fs::rename(directory.with_file_name("elsewhere"), directory).expect("put back");
        },
    ];
    for (number, change) in harmless.into_iter().enumerate() {
        assert_eq!(commit_after_change(change), (Vec::new(), Ok(3)), "{number}");
    }
}
