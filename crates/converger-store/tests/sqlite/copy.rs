//! A copy of a store is the store of one moment, whatever other processes do meanwhile.

use converger_store::conformance::{OperationSample, block_on};
use converger_store::{LIST_MAX, StoreCopyError, StoreOpenError, StoreReader as _, StoreView, copy_store};
use std::fs::{self, File};
use std::path::Path;

use super::ledger::recovery_batch;
use super::{commit_written, open_store, open_unchecked_connection, state_directory_path};

/// The number of entries in a copy, which must be intact and stand alone.
fn count_copied_entries(copy: &Path) -> u64 {
    let view = StoreView::open(copy).expect("opens").expect("there");
    assert_eq!(view.find_damage(), Ok(None));
    let size = block_on(view.heads()).expect("read").all.size;
    assert_eq!(block_on(view.entries(0, LIST_MAX)).expect("read").len() as u64, size);
    let stem = copy.file_name().expect("a name").to_string_lossy().into_owned();
    let beside = fs::read_dir(copy.parent().expect("a parent")).expect("listed").flatten().map(|entry| entry.file_name());
    assert_eq!(beside.filter(|name| name.to_string_lossy().starts_with(&stem)).count(), 1, "nothing lies beside the copy");
    size
}

#[test]
fn copies_a_store_that_another_process_writes_to() {
    let (above, directory) = state_directory_path();
    let (store, copy) = (open_store(&directory), above.path().join("backup"));
    commit_written(&store, recovery_batch(0..300));
    // A write that is not committed yet neither delays the copy nor is in it.
    let writer = open_unchecked_connection(store.path());
    writer.execute_batch("BEGIN IMMEDIATE; DELETE FROM ledger_entries").expect("SQL");
    File::create(&copy).expect("created");
    assert!(copy_store(&directory, &copy).expect("copied"));
    writer.execute_batch("ROLLBACK").expect("SQL");
    drop(writer);
    commit_written(&store, recovery_batch(300..310));
    assert_eq!(count_copied_entries(&copy), 300);
    assert_eq!(block_on(store.heads()).expect("read").all.size, 310, "the store goes on");
}

#[test]
fn copies_a_closed_store_and_leaves_nothing_beside_it() {
    let (above, directory) = state_directory_path();
    commit_written(&open_store(&directory), OperationSample::new(1).start_write());
    let (before, copy) = (fs::read(directory.join("converger.db")).expect("read"), above.path().join("backup"));
    File::create(&copy).expect("created");
    assert!(copy_store(&directory.join("converger.db"), &copy).expect("copied"));
    assert_eq!(count_copied_entries(&copy), 2);
    assert_eq!(fs::read(directory.join("converger.db")).expect("read"), before);
    assert_eq!(fs::read_dir(&directory).expect("listed").count(), 1);
}

#[test]
fn copies_nothing_that_is_not_a_store_of_this_version() {
    let (above, directory) = state_directory_path();
    let (copy, other) = (above.path().join("backup"), above.path().join("other"));
    File::create(&copy).expect("created");
    assert!(!copy_store(&other, &copy).expect("there is nothing"));
    fs::write(&other, "version: 1\n".repeat(100)).expect("written");
    assert!(matches!(copy_store(&other, &copy), Err(StoreCopyError::Source(StoreOpenError::NotOurs { .. }))));
    let path = open_store(&directory).path().to_path_buf();
    rusqlite::Connection::open(&path).expect("opens").pragma_update(None, "user_version", 9).expect("set");
    assert!(matches!(copy_store(&directory, &copy), Err(StoreCopyError::Source(StoreOpenError::Newer { found: 9, .. }))));
    assert_eq!(fs::metadata(&copy).expect("there").len(), 0);
}

#[test]
fn reports_a_target_that_cannot_be_written() {
    let (above, directory) = state_directory_path();
    commit_written(&open_store(&directory), OperationSample::new(1).start_write());
    let missing = above.path().join("none/backup");
    assert!(copy_store(&directory, &missing).is_err_and(|error| error.to_string().contains("none/backup")));
}
