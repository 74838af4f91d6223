//! The store as commands use it: opened for an environment, waited for, and its errors in words.

use std::error::Error as _;
use std::future::Future;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use converger_adapters::proxmox::observe::LIST_AGE_MS_MAX;
use converger_core::failure::Code;
use converger_core::guest::EnvironmentName;
use converger_store::{Batch, OpenError, Receipt, Remembered, SqliteStore, Store as _, StoreError};
use tokio::runtime::Runtime;

use super::{Stop, spine};
use crate::config::Config;
use crate::render::{self, styled};
use crate::{files, state};

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
    Ok(Memory { store, directory, runtime: spine::runtime()? })
}

/// What is remembered of an environment that decides about a plan, without touching anything. Where there is no store nothing is
/// remembered; one that cannot be read is told of, and nothing is carried out with it either.
pub(super) fn glance(config: &Config, environment: &EnvironmentName) -> Remembered {
    let Ok(directory) = state::directory(config.state.as_deref()) else { return Remembered::default() };
    converger_store::glance(&directory, environment, since_ms()).unwrap_or_else(|error| {
        let cause = error.source().map(|cause| format!(" ({cause})")).unwrap_or_default();
        let note = format!("freezes and holds that are kept in the store cannot be seen: {error}{cause}");
        let _ = writeln!(anstream::stderr(), "{} {note}", styled(render::YELLOW.bold(), "note:"));
        Remembered::default()
    })
}

/// Since when a change may not be in the list of the cluster yet.
fn since_ms() -> u64 {
    state::now_ms().saturating_sub(LIST_AGE_MS_MAX)
}

impl Memory {
    /// The same of the store that is open.
    pub(super) fn remembered(&self, environment: &EnvironmentName) -> Result<Remembered, Stop> {
        self.wait(self.store.remembered(environment.clone(), since_ms())).map_err(|error| failed(&error))
    }

    /// Makes a batch durable.
    pub(super) fn commit(&self, batch: Batch) -> Result<Receipt, Stop> {
        self.wait(self.store.commit(batch)).map_err(|error| failed(&error))
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

fn unopened(error: &OpenError) -> Stop {
    let stop = match error {
        OpenError::Unusable { what, place, help, source } => {
            Stop::failed(format!("cannot {what} {}: {source}", files::shown(place))).help(*help)
        }
        OpenError::Failed { .. } => {
            Stop::failed(error.to_string()).help("look at the disk of the state directory: is there room, and is it whole")
        }
        _ => Stop::failed(error.to_string()),
    };
    stop.code(Some(Code::JournalUnwritable))
}

/// A refusal of the store is a decision; everything else is an inability.
pub(super) fn failed(error: &StoreError) -> Stop {
    match error {
        StoreError::Refused(_) => Stop::decided(error.to_string()),
        _ => Stop::failed(error.to_string()).code(Some(Code::JournalUnwritable)),
    }
}
