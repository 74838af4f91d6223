//! The store as commands use it: opened for an environment, waited for, and its errors in words.

use std::error::Error as _;
use std::future::Future;
use std::path::{Path, PathBuf};

use converger_core::guest::EnvironmentName;
use converger_store::{Batch, OpenError, Receipt, SqliteStore, Store as _, StoreError};
use tokio::runtime::{Builder, Runtime};

use super::{Stop, spine};
use crate::state;

/// An open store, and a runtime to wait for it.
pub(super) struct Memory {
    pub(super) store: SqliteStore,
    pub(super) directory: PathBuf,
    pub(super) runtime: Runtime,
}

/// Opens the store that converger.toml names.
pub(super) fn open(config: Option<&Path>, environment: &EnvironmentName) -> Result<Memory, Stop> {
    let config = spine::load(config, environment)?;
    let directory = state::directory(config.state.as_deref()).map_err(Stop::input)?;
    let store = state::open(&directory).map_err(|error| unopened(&error))?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| Stop::failed(format!("cannot start: {error}")))?;
    Ok(Memory { store, directory, runtime })
}

impl Memory {
    /// Makes a batch durable.
    pub(super) fn commit(&self, batch: Batch) -> Result<Receipt, Stop> {
        self.wait(self.store.commit(batch)).map_err(|error| failed(&error))
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

fn unopened(error: &OpenError) -> Stop {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    Stop::failed(format!("{error}{cause}"))
}

/// A refusal of the store is a decision; everything else is an inability.
pub(super) fn failed(error: &StoreError) -> Stop {
    match error {
        StoreError::Refused(_) => Stop::refused(error.to_string()),
        _ => Stop::failed(error.to_string()),
    }
}
