//! The store in a file: what it refuses to open, what it survives, and that it says the same as its twin.

mod flips;
mod glance;
mod gone;
mod groups;
mod inject;
mod kill;
mod ledger;
mod marks;
mod names;
mod opening;
mod trouble;
mod twin;

use std::path::{Path, PathBuf};

use converger_store::{Receipt, Settings, SqliteStore, Store, StoreError};
use tempfile::TempDir;

/// A place for a state directory that is not there yet.
fn place() -> (TempDir, PathBuf) {
    let above = tempfile::tempdir().expect("a directory");
    let directory = above.path().join("state");
    (above, directory)
}

fn settings() -> Settings {
    Settings::new(|cause| panic!("the disk is in doubt: {cause}"))
}

fn open(directory: &Path) -> SqliteStore {
    SqliteStore::open(directory, settings()).expect("opens")
}

/// Somebody who writes into the file as they like.
fn other(path: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).expect("opens");
    converger_store::conformance::teach(&connection).expect("taught");
    connection.pragma_update(None, "ignore_check_constraints", true).expect("set");
    connection
}

fn commit(store: &impl Store, batch: impl Into<converger_store::Batch>) -> Result<Receipt, StoreError> {
    converger_store::conformance::now(store.commit(batch.into()))
}

/// Commits what must be taken.
fn write(store: &impl Store, batch: impl Into<converger_store::Batch>) {
    let answer = commit(store, batch);
    assert!(matches!(answer, Ok(Receipt::Written { .. })), "{answer:?}");
}
