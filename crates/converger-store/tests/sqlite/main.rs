//! The store in a file: what it refuses to open, which faults it survives, and that it agrees with the store in memory.

mod bit_flips;
mod copy;
mod differential;
mod disk_faults;
mod fault_injection;
mod group_commit;
mod kill;
mod ledger;
mod marks;
mod names;
mod opening;
mod peek;
mod replaced_files;

use std::path::{Path, PathBuf};

use converger_core::guest::EnvironmentName;
use converger_store::{
    CommitAck, SqliteStore, Store, StoreConditions, StoreError, StoreOpenError, StoreReader as _, StoreSettings, StoreView, wait_for,
};
use tempfile::TempDir;

/// The path of a state directory that does not exist yet.
fn state_directory_path() -> (TempDir, PathBuf) {
    let above = tempfile::tempdir().expect("a directory");
    let directory = above.path().join("state");
    (above, directory)
}

fn panicking_settings() -> StoreSettings {
    StoreSettings::new(|cause| panic!("the disk is in doubt: {cause}"))
}

fn open_store(directory: &Path) -> SqliteStore {
    SqliteStore::open(directory, panicking_settings()).expect("opens")
}

/// A connection that bypasses the store and its constraints.
fn open_unchecked_connection(path: &Path) -> rusqlite::Connection {
    let connection = rusqlite::Connection::open(path).expect("opens");
    converger_store::conformance::register_row_sum(&connection).expect("taught");
    connection.pragma_update(None, "ignore_check_constraints", true).expect("set");
    connection
}

fn commit_batch(store: &impl Store, batch: impl Into<converger_store::Batch>) -> Result<CommitAck, StoreError> {
    converger_store::conformance::block_on(store.commit(batch.into()))
}

/// What a reader that changes nothing finds about an environment; nothing where there is no store.
fn peek_conditions(directory: &Path, environment: &EnvironmentName) -> Result<StoreConditions, StoreOpenError> {
    let Some(view) = StoreView::open_undamaged(directory)? else { return Ok(StoreConditions::default()) };
    let failed = |error: StoreError| StoreOpenError::Failed { place: view.path().to_path_buf(), cause: error.to_string() };
    wait_for(view.conditions(environment.clone())).map_err(failed)
}

/// Commits a batch that must be written.
fn commit_written(store: &impl Store, batch: impl Into<converger_store::Batch>) {
    let answer = commit_batch(store, batch);
    assert!(matches!(answer, Ok(CommitAck::Written { .. })), "{answer:?}");
}
