//! The state directory: its location, its store opened for writing, and its witness, which is checked before and attested after a write.
//!
//! Opening takes no lock: a hold or a freeze must reach an apply that runs in another process. Only a run takes the environment's lock.

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use converger_core::apply::{IllegalRecord, OperationHistory};
use converger_core::failure::FailureCode;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::refusal::Refusal;
use converger_core::timestamp;
use converger_store::{
    Batch, CommitAck, EnvironmentLock, LockError, MonitoredStore, OnFatal, SqliteStore, Store as _, StoreConditions, StoreError,
    StoreOpenError, StoreReader as _, StoreRefusal, StoreSettings, StoreView, wait_for,
};
use rustix::io::Errno;
use tokio::task::JoinHandle;

use crate::author::Author;
use crate::config::Config;
use crate::error::{RuntimeError, RuntimeFault};
use crate::{files, witness};

/// The location of a state directory and of its witness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLocation {
    /// The directory.
    pub directory: PathBuf,
    /// The witness, if converger.toml names one: a file on other storage that keeps the last checkpoint.
    pub witness: Option<PathBuf>,
}

impl StateLocation {
    /// The location that a configuration names.
    ///
    /// # Errors
    /// Neither the configuration nor the environment of the process names a state directory.
    pub fn from_config(config: &Config) -> Result<Self, RuntimeError> {
        Self::from_parts(config.state.as_deref(), config.witness.as_deref())
    }

    /// The same from its two parts.
    ///
    /// # Errors
    /// Neither the configuration nor the environment of the process names a state directory.
    pub fn from_parts(directory: Option<&Path>, witness: Option<&Path>) -> Result<Self, RuntimeError> {
        let invalid = |text| RuntimeError::Input(RuntimeFault::new(text).with_code(FailureCode::ConfigInvalid));
        let directory = locate_directory(directory).map_err(invalid)?;
        Ok(Self { directory, witness: witness.map(Path::to_owned) })
    }
}

/// The state directory: as configured, or the default of the system for this user.
///
/// # Errors
/// There is no default, or several.
pub fn locate_directory(configured: Option<&Path>) -> Result<PathBuf, String> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // The XDG specification says to ignore a relative path. systemd may give a service several state directories.
    let xdg_state_home = || set("XDG_STATE_HOME").filter(|home| home.is_absolute());
    if configured.is_none() && set("STATE_DIRECTORY").is_some_and(|several| several.as_os_str().as_encoded_bytes().contains(&b':')) {
        return Err("STATE_DIRECTORY names several directories; set `directory = \"...\"` in `[store]` of converger.toml".to_owned());
    }
    let own = || xdg_state_home().or_else(|| set("HOME").map(|home| home.join(".local/state"))).map(|home| home.join("converger"));
    configured
        .map(Path::to_owned)
        .or_else(|| set("STATE_DIRECTORY"))
        .or_else(own)
        .ok_or_else(|| "no state directory is configured; set `directory = \"...\"` in `[store]` of converger.toml, or set HOME".to_owned())
}

/// Journal, ledger, holds and freezes of all environments that share one directory, open for writing. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StateDirectory {
    shared: Arc<OpenState>,
}

/// The store of a state directory: the one place that names SQLite. Everything else uses the traits of the store.
pub type StateStore = MonitoredStore<SqliteStore>;

/// What the clones of a [`StateDirectory`] share.
#[derive(Debug)]
struct OpenState {
    store: StateStore,
    directory: PathBuf,
    witness: Option<PathBuf>,
}

/// The result of taking an environment's lock.
#[derive(Debug)]
pub enum LockOutcome {
    /// This process drives the environment.
    Taken(EnvironmentLock),
    /// Another process does.
    Refused(Refusal),
}

/// The result of a write that the store's rules may refuse.
#[derive(Debug)]
pub enum WriteOutcome {
    /// It is durable.
    Written(CommitAck),
    /// A rule refused it; nothing was written.
    Refused(Refusal),
}

impl StateDirectory {
    /// Compares the ledger with the witness, then opens the store.
    ///
    /// # Errors
    /// The witness has a longer or another ledger, or the store cannot be used.
    pub async fn open(location: &StateLocation, on_fatal: OnFatal) -> Result<Self, RuntimeError> {
        Self::open_with(location, StoreSettings::new(on_fatal)).await
    }

    /// The same with settings of the store.
    ///
    /// # Errors
    /// The witness has a longer or another ledger, or the store cannot be used.
    pub async fn open_with(location: &StateLocation, settings: StoreSettings) -> Result<Self, RuntimeError> {
        if location.witness.is_some() {
            let location = location.clone();
            run_blocking(move || witness::check_ledger(&location.directory, location.witness.as_deref())).await?;
        }
        Self::open_store(location, settings)
    }

    /// Opens the store without comparing it with the witness: for the command that takes a restored directory back into service.
    ///
    /// # Errors
    /// The store cannot be used.
    pub fn open_unwitnessed(location: &StateLocation, on_fatal: OnFatal) -> Result<Self, RuntimeError> {
        Self::open_store(location, StoreSettings::new(on_fatal))
    }

    fn open_store(location: &StateLocation, settings: StoreSettings) -> Result<Self, RuntimeError> {
        let StateLocation { directory, witness } = location.clone();
        if let Some(parent) = directory.parent() {
            // The store creates the directory itself, with its own permissions; its parents are created here.
            let _ = std::fs::create_dir_all(parent);
        }
        let store = SqliteStore::open(&directory, settings).map_err(|error| open_error(&error))?;
        Ok(Self { shared: Arc::new(OpenState { store: MonitoredStore::new(store), directory, witness }) })
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &StateStore {
        &self.shared.store
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.directory
    }

    /// The witness, if there is one.
    pub(crate) fn witness(&self) -> Option<&Path> {
        self.shared.witness.as_deref()
    }

    /// Makes a batch durable, or returns the refusal of the rule that forbids it.
    ///
    /// # Errors
    /// The store cannot be written to.
    pub(crate) async fn write(&self, batch: Batch) -> Result<WriteOutcome, RuntimeError> {
        match self.shared.store.commit(batch).await {
            Ok(acknowledged) => Ok(WriteOutcome::Written(acknowledged)),
            Err(StoreError::Refused(refused)) => match coded_refusal(&refused) {
                Some(refusal) => Ok(WriteOutcome::Refused(refusal)),
                None => Err(store_error(&StoreError::Refused(refused))),
            },
            Err(error) => Err(store_error(&error)),
        }
    }

    /// The same, and attests the ledger after it.
    ///
    /// # Errors
    /// The store or the witness cannot be written to. If only the witness cannot, the batch is durable all the same.
    pub(crate) async fn write_attested(&self, batch: Batch) -> Result<WriteOutcome, RuntimeError> {
        let outcome = self.write(batch).await?;
        if matches!(outcome, WriteOutcome::Written(_)) {
            self.attest_ledger().await?;
        }
        Ok(outcome)
    }

    /// Makes a batch durable that no rule refuses.
    ///
    /// # Errors
    /// The store cannot be written to.
    pub(crate) async fn commit(&self, batch: Batch) -> Result<(), RuntimeError> {
        self.shared.store.commit(batch).await.map(drop).map_err(|error| store_error(&error))
    }

    /// The holds, the freeze and the unsettled operations of an environment.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn load_conditions(&self, environment: &EnvironmentName) -> Result<StoreConditions, RuntimeError> {
        self.shared.store.conditions(environment.clone()).await.map_err(|error| store_error(&error))
    }

    /// The newest operations of these guests.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn load_operations(&self, environment: &EnvironmentName, guests: Vec<Vmid>) -> Result<Vec<OperationHistory>, RuntimeError> {
        if guests.is_empty() {
            return Ok(Vec::new());
        }
        self.shared.store.guest_operations(environment.clone(), guests).await.map_err(|error| store_error(&error))
    }

    /// Takes the lock that lets one process drive an environment. It does not wait.
    ///
    /// # Errors
    /// The lock file cannot be used.
    pub fn lock_environment(&self, environment: &EnvironmentName) -> Result<LockOutcome, RuntimeError> {
        self.lock_environment_for(environment, &Author::of_process())
    }

    /// The same for this person, whose name others see while they are refused.
    pub(crate) fn lock_environment_for(&self, environment: &EnvironmentName, author: &Author) -> Result<LockOutcome, RuntimeError> {
        let outcome = take_lock(self.path(), environment, author)?;
        if let LockOutcome::Taken(lock) = &outcome {
            self.shared.store.inner().rely_on(lock);
        }
        Ok(outcome)
    }

    /// Attests the durable part of the ledger to the witness, if there is one.
    ///
    /// # Errors
    /// The witness cannot be written, or has a checkpoint of another ledger.
    pub async fn attest_ledger(&self) -> Result<(), RuntimeError> {
        let Some(witness) = self.witness().map(Path::to_owned) else { return Ok(()) };
        let state = self.clone();
        run_blocking(move || witness::attest(&state, &witness)).await
    }
}

/// Takes the lock of an environment in a state directory whose store need not be open.
pub(crate) fn take_lock(directory: &Path, environment: &EnvironmentName, author: &Author) -> Result<LockOutcome, RuntimeError> {
    match EnvironmentLock::acquire(directory, environment, &author.by, author.at_ms) {
        Ok(lock) => Ok(LockOutcome::Taken(lock)),
        Err(LockError::Busy { holder: Some(holder), .. }) => {
            let since = timestamp::format_timestamp(holder.since_ms / 1000);
            Ok(LockOutcome::Refused(Refusal::environment_busy(&holder.name, holder.pid, &since)))
        }
        Err(LockError::Busy { holder: None, .. }) => Ok(LockOutcome::Refused(Refusal::environment_busy_starting())),
        Err(error @ (LockError::InvalidName | LockError::Unusable { .. })) => Err(lock_error(&error)),
    }
}

/// Runs blocking work (files on slow storage, a lock of another process) on a thread of its own, so that the runtime continues.
///
/// # Errors
/// The errors of the work.
pub async fn run_blocking<T: Send + 'static, E: Send + 'static>(work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E> {
    wait_for_task(tokio::task::spawn_blocking(work)).await
}

/// The result of a task. A panic of the task is passed on: it is a defect, and the journal makes stopping safe.
pub(crate) async fn wait_for_task<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The newest operations of these guests, read from the files without changing anything (G5).
///
/// # Errors
/// There is a store and it cannot be read.
pub fn peek_operations(config: &Config, environment: &EnvironmentName, guests: &[Vmid]) -> Result<Vec<OperationHistory>, RuntimeError> {
    let read = |view: &StoreView| wait_for(view.guest_operations(environment.clone(), guests.to_vec()));
    peek_store(config, read).map_err(|error| unreadable_error(&error))
}

/// The conditions of an environment, read from the files without changing anything (G5). Without a store there are none; a store that cannot be read
/// makes planning fail, because it may hold or freeze something (G17).
///
/// # Errors
/// There is a store and it cannot be read.
pub fn peek_conditions(config: &Config, environment: &EnvironmentName) -> Result<StoreConditions, RuntimeError> {
    peek_store(config, |view| wait_for(view.conditions(environment.clone()))).map_err(|error| {
        let (description, help) = describe(&error);
        let fault = RuntimeFault::new(format!("cannot tell whether anything is frozen or held: {description}"))
            .with_code(FailureCode::JournalUnreadable);
        RuntimeError::Failed(help.into_iter().fold(fault, RuntimeFault::with_help))
    })
}

/// Reads from the store that a configuration names without changing anything; the default value if there is no store.
fn peek_store<T: Default>(config: &Config, read: impl FnOnce(&StoreView) -> Result<T, StoreError>) -> Result<T, StoreOpenError> {
    let Ok(directory) = locate_directory(config.state.as_deref()) else { return Ok(T::default()) };
    let Some(view) = StoreView::open_undamaged(&directory)? else { return Ok(T::default()) };
    read(&view).map_err(|error| StoreOpenError::Failed { place: view.path().to_path_buf(), cause: error.to_string() })
}

fn lock_error(error: &LockError) -> RuntimeError {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    let fault = RuntimeFault::new(format!("{error}{cause}")).with_code(FailureCode::JournalUnwritable);
    let full = "its disk is full, and nothing was sent: make room and try again";
    RuntimeError::Failed(if error.is_full() { fault.with_help(full) } else { fault })
}

/// The error of a store that cannot be opened for reading.
#[must_use]
pub fn unreadable_error(error: &StoreOpenError) -> RuntimeError {
    open_error_with(error, FailureCode::JournalUnreadable)
}

fn open_error(error: &StoreOpenError) -> RuntimeError {
    // A damaged store is evidence: it is reported as `verify` does, and no advice to restore or move it is given.
    if matches!(error, StoreOpenError::Damaged { .. }) {
        return crate::ledger_reader::open_error(error);
    }
    // A store of another version cannot be read either.
    let is_newer = matches!(error, StoreOpenError::Newer { .. } | StoreOpenError::Older { .. });
    open_error_with(error, if is_newer { FailureCode::JournalUnreadable } else { FailureCode::JournalUnwritable })
}

fn open_error_with(error: &StoreOpenError, code: FailureCode) -> RuntimeError {
    let (description, help) = describe(error);
    RuntimeError::Failed(help.into_iter().fold(RuntimeFault::new(description).with_code(code), RuntimeFault::with_help))
}

/// The message for a store that cannot be opened, and a remedy if the message has none.
fn describe(error: &StoreOpenError) -> (String, Option<&'static str>) {
    let is_out_of_files =
        |source: &std::io::Error| [Errno::MFILE, Errno::NFILE].iter().any(|own| source.raw_os_error() == Some(own.raw_os_error()));
    match error {
        StoreOpenError::Unusable { what, path, source, .. } if is_out_of_files(source) => {
            let help = "this process may open too few files: raise its limit (`ulimit -n`); the disk is not the cause";
            (format!("cannot {what} {}: {source}", files::display_path(path)), Some(help))
        }
        StoreOpenError::Unusable { what, path, help, source } => {
            (format!("cannot {what} {}: {source}", files::display_path(path)), Some(help))
        }
        StoreOpenError::Failed { .. } => (error.to_string(), Some("check the disk of the state directory for free space and errors")),
        _ => (error.to_string(), None),
    }
}

/// The error of a read or a write of the store.
#[must_use]
pub fn store_error(error: &StoreError) -> RuntimeError {
    RuntimeError::Failed(RuntimeFault::new(error.to_string()).with_code(FailureCode::JournalUnwritable))
}

/// Converts a store refusal to its coded form; `None` if no command can cause it.
fn coded_refusal(refused: &StoreRefusal) -> Option<Refusal> {
    match refused {
        StoreRefusal::AlreadyHeld(hold) | StoreRefusal::GuestHeld(hold) => Some(Refusal::guest_held_by_person(&hold.by, &hold.reason)),
        StoreRefusal::GuestTaken { by, .. } => Some(Refusal::guest_held_by_operation(by.as_str())),
        StoreRefusal::NotHeld(vmid) => Some(Refusal::guest_not_held(*vmid)),
        StoreRefusal::Frozen { reason, .. } => Some(Refusal::changes_frozen(reason)),
        StoreRefusal::NotFrozen(environment) => Some(Refusal::not_frozen(environment.as_str())),
        StoreRefusal::Name(conflict) => Some(Refusal::name_conflict(conflict)),
        StoreRefusal::NameInUse(name) => Some(Refusal::name_in_use(name)),
        StoreRefusal::EnvironmentUnrecorded(environment) => Some(Refusal::environment_unrecorded(environment)),
        StoreRefusal::Record { id, illegal: illegal @ (IllegalRecord::NotHeld | IllegalRecord::AlreadyResolved(_)) } => {
            Some(Refusal::operation_not_held(id.as_str(), &illegal.to_string()))
        }
        _ => None,
    }
}
