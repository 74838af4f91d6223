//! The store as commands use it: opened for an environment, waited for, and its errors in words.

use std::error::Error as _;
use std::future::Future;
use std::path::{Path, PathBuf};

use converger_adapters::proxmox::observe::LIST_AGE_MS_MAX;
use converger_core::apply::{History, Illegal};
use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::moment;
use converger_core::refusal::Refusal;
use converger_store::{Batch, EnvironmentLock, LockError, OpenError, Receipt, Refused, Remembered, SqliteStore, Store as _, StoreError};
use rustix::io::Errno;
use tokio::runtime::Runtime;

use super::{Stop, spine, witness};
use crate::config::Config;
use crate::{files, state};

/// An open store, and a runtime to wait for it.
pub(super) struct Memory {
    pub(super) store: SqliteStore,
    pub(super) directory: PathBuf,
    pub(super) runtime: Runtime,
    /// The file on other storage that keeps the last checkpoint.
    witness: Option<PathBuf>,
}

/// Opens the store that converger.toml names to write to it: where a witness has seen more of its ledger, or another one, it is only looked at.
pub(super) fn to_write(config: Option<&Path>, environment: &EnvironmentName) -> Result<Memory, Stop> {
    let config = spine::load(config, environment)?;
    on(&directory(&config)?, config.witness.as_deref())
}

/// Opens the store in this directory to write to it, where its witness does not know better.
pub(super) fn on(directory: &Path, witness: Option<&Path>) -> Result<Memory, Stop> {
    witness::guard(directory, witness)?;
    Ok(Memory { witness: witness.map(Path::to_owned), ..at(directory)? })
}

/// Where the store is.
pub(super) fn directory(config: &Config) -> Result<PathBuf, Stop> {
    state::directory(config.state.as_deref()).map_err(|text| Stop::input(text).code(Code::ConfigInvalid))
}

/// Opens the store in this directory.
pub(super) fn at(directory: &Path) -> Result<Memory, Stop> {
    let store = state::open(directory).map_err(|error| unopened(&error))?;
    Ok(Memory { store, directory: directory.to_owned(), runtime: spine::runtime()?, witness: None })
}

/// What is remembered of an environment that decides about a plan, without touching anything. Where there is no store nothing is
/// remembered; of one that cannot be read it is not known what it remembers, and nothing is planned then (G17).
pub(super) fn glance(config: &Config, environment: &EnvironmentName) -> Result<Remembered, Stop> {
    let Ok(directory) = state::directory(config.state.as_deref()) else { return Ok(Remembered::default()) };
    converger_store::glance(&directory, environment, since_ms()).map_err(|error| {
        let (said, help) = told(&error);
        let stop = Stop::failed(format!("whether something is frozen or held is not known: {said}"));
        help.into_iter().fold(stop, Stop::help).code(Some(Code::JournalUnreadable))
    })
}

/// What was carried out on these guests, newest first, without touching anything.
pub(super) fn glance_writes(config: &Config, environment: &EnvironmentName, guests: &[Vmid]) -> Result<Vec<History>, Stop> {
    let Ok(directory) = state::directory(config.state.as_deref()) else { return Ok(Vec::new()) };
    converger_store::glance_writes(&directory, environment, guests).map_err(|error| unreadable(&error))
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

    /// What was carried out on these guests, newest first.
    pub(super) fn writes(&self, environment: &EnvironmentName, guests: Vec<Vmid>) -> Result<Vec<History>, Stop> {
        if guests.is_empty() {
            return Ok(Vec::new());
        }
        self.wait(self.store.writes(environment.clone(), guests)).map_err(|error| failed(&error))
    }

    /// One process drives an environment (design 6.23), as long as it has this.
    pub(super) fn lock(&self, environment: &EnvironmentName) -> Result<EnvironmentLock, Stop> {
        let lock =
            EnvironmentLock::take(&self.directory, environment, &state::actor(), state::now_ms()).map_err(|error| locked_out(&error))?;
        self.store.rely_on(&lock);
        Ok(lock)
    }

    /// Makes a batch durable.
    pub(super) fn commit(&self, batch: Batch) -> Result<Receipt, Stop> {
        self.wait(self.store.commit(batch)).map_err(|error| failed(&error))
    }

    /// Tells the witness, where there is one, how long the ledger is now.
    pub(super) fn attest(&self) -> Result<(), Stop> {
        witness::attest(self, self.witness.as_deref())
    }

    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

fn locked_out(error: &LockError) -> Stop {
    match error {
        LockError::Busy { holder: Some(holder), .. } => {
            Stop::refused(&Refusal::environment_busy(&holder.name, holder.pid, &moment::written(holder.since_ms / 1000)))
        }
        LockError::Busy { holder: None, .. } => Stop::refused(&Refusal::environment_busy_just_now()),
        LockError::NameUnfit | LockError::Unusable { .. } => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            let stop = Stop::failed(format!("{error}{cause}")).code(Some(Code::JournalUnwritable));
            if error.is_full() { stop.help("its disk is full, and nothing was sent: make room and try again") } else { stop }
        }
    }
}

/// What is remembered cannot be read.
pub(super) fn unreadable(error: &OpenError) -> Stop {
    let (said, help) = told(error);
    help.into_iter().fold(Stop::failed(said), Stop::help).code(Code::JournalUnreadable)
}

fn unopened(error: &OpenError) -> Stop {
    // What a later program wrote is read by nobody here, whatever they are about to do with it.
    if matches!(error, OpenError::Newer { .. }) {
        return unreadable(error);
    }
    let (said, help) = told(error);
    help.into_iter().fold(Stop::failed(said), Stop::help).code(Some(Code::JournalUnwritable))
}

/// What is wrong with a store, and what to do where the sentence does not say so itself.
fn told(error: &OpenError) -> (String, Option<&'static str>) {
    let is_out_of_files =
        |source: &std::io::Error| [Errno::MFILE, Errno::NFILE].iter().any(|own| source.raw_os_error() == Some(own.raw_os_error()));
    match error {
        OpenError::Unusable { what, place, source, .. } if is_out_of_files(source) => {
            let help = "this process may have too few files open at once: look at its limits (`ulimit -n`), not at the disk";
            (format!("cannot {what} {}: {source}", files::shown(place)), Some(help))
        }
        OpenError::Unusable { what, place, help, source } => (format!("cannot {what} {}: {source}", files::shown(place)), Some(help)),
        OpenError::Failed { .. } => (error.to_string(), Some("look at the disk of the state directory: is there room, and is it whole")),
        _ => (error.to_string(), None),
    }
}

/// A refusal of the store is a decision; everything else is an inability.
pub(super) fn failed(error: &StoreError) -> Stop {
    match error {
        StoreError::Refused(refused) => {
            told_apart(refused).map_or_else(|| Stop::decided(error.to_string()), |refusal| Stop::refused(&refusal))
        }
        _ => Stop::failed(error.to_string()).code(Some(Code::JournalUnwritable)),
    }
}

/// What the store refuses, as the table has it. What has no code no command can lead to.
fn told_apart(refused: &Refused) -> Option<Refusal> {
    match refused {
        Refused::AlreadyHeld(hold) | Refused::GuestHeld(hold) => Some(Refusal::guest_held_by(&hold.by, &hold.reason)),
        Refused::GuestTaken { by, .. } => Some(Refusal::guest_taken_by(by.as_str())),
        Refused::NotHeld(vmid) => Some(Refusal::guest_not_held(*vmid)),
        Refused::Frozen { reason, .. } => Some(Refusal::frozen(reason)),
        Refused::NotFrozen(environment) => Some(Refusal::not_frozen(environment.as_str())),
        Refused::Record { id, illegal: illegal @ (Illegal::NotHeld | Illegal::AlreadyResolved(_)) } => {
            Some(Refusal::operation_not_held(id.as_str(), &illegal.to_string()))
        }
        _ => None,
    }
}
