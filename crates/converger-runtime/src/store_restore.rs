//! Puts a backup in place of the store of a state directory, or into an empty one.
//!
//! The new store is prepared in a directory of its own, `restoring.part`, including the ledger entry that begins the next epoch. When it is complete and
//! durable, that directory is renamed to `restoring`. Then files are renamed, in this order:
//!
//! 1. `converger.db` to `converger.db.replaced-TIME`; from here on every command finds that the store is lost;
//! 2. its WAL and the index of it, if a store that cannot be read has them, to `converger.db.replaced-TIME-wal` and `-shm`;
//! 3. `restoring/converger.db` to `converger.db`: the new store is in service.
//!
//! A process that is killed before the first step has changed nothing. After it, the same command completes the renames before it does anything else.
//! The witness is restarted last; if that fails, `converger ledger resync` does it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use converger_core::apply::{JournalRecord, OperationId};
use converger_core::evidence::LedgerEntry;
use converger_core::failure::FailureCode;
use converger_core::refusal::Refusal;
use converger_core::timestamp;
use converger_store::{
    Batch, EnvironmentLock, KEY_FILE, LIST_MAX, OnFatal, OperationFilter, OperationStatus, STAGING_DIRECTORY, STORE_FILE, StoreCopyError,
    StoreOpenError, StoreReader as _, StoreView, StoreWrite, check_state_directory, copy_store, wait_for,
};

use crate::author::{Author, Reason};
use crate::error::RuntimeError;
use crate::files;
use crate::ledger_key::{NamedKeys, load_signer, recorded_key};
use crate::ledger_reader::{self, LedgerLocation, ledger_store_error};
use crate::state_check::{CheckedState, check_state};
use crate::state_dir::{LockOutcome, StateDirectory, StateLocation, take_lock, unreadable_error};
use crate::witness::{GivenUpLog, LockedWitness, check_separate, given_up_log};

/// Where a store is prepared. A store in it is incomplete, and is never put in service.
const PREPARING_DIRECTORY: &str = "restoring.part";

/// What happens to a present store that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadableStore {
    /// It stays, and nothing is restored: it may have operations in flight.
    Keep,
    /// It is replaced.
    Replace,
}

/// A restore that a person asks for.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// The backup.
    pub file: PathBuf,
    /// What happens to a present store that cannot be read.
    pub unreadable: UnreadableStore,
    /// Why.
    pub reason: Reason,
    /// Who asks.
    pub author: Author,
}

/// A store that was restored.
#[derive(Clone, Debug)]
pub struct RestoredStore {
    /// What the backup contains.
    pub checked: CheckedState,
    /// The epoch that begins with the restore.
    pub epoch: u64,
    /// Where the replaced store is now; `None` if there was none.
    pub replaced: Option<PathBuf>,
    /// Whether the key that signs the restored ledger is in the state directory.
    pub has_key: bool,
}

/// The result of a restore.
#[derive(Clone, Debug)]
pub enum RestoreOutcome {
    /// It is done.
    Restored(Box<RestoredStore>),
    /// It is not allowed now; nothing was changed.
    Refused(Refusal),
}

/// The present store of a state directory.
enum PresentStore {
    /// There is none.
    Missing,
    /// It can be read.
    Readable(PresentLedger),
    /// It cannot be read, for this reason.
    Unreadable(String),
}

struct PresentLedger {
    epoch: u64,
    given_up: GivenUpLog,
    keys: Option<NamedKeys>,
    open: Vec<OperationId>,
    held: Vec<OperationId>,
}

/// Restores a backup into a state directory.
///
/// # Errors
/// The backup is not intact or of another version, a key or the witness does not fit, or files cannot be written.
pub fn restore(location: &StateLocation, request: RestoreRequest, on_fatal: impl Fn() -> OnFatal) -> Result<RestoreOutcome, RuntimeError> {
    let directory = &location.directory;
    location.witness.as_deref().map_or(Ok(()), |witness| check_separate(directory, witness))?;
    let checked = check_backup(directory, &request.file)?;
    prepare_directory(directory)?;
    let _locks = match lock_all(directory, &request.author)? {
        Ok(locks) => locks,
        Err(refusal) => return Ok(RestoreOutcome::Refused(refusal)),
    };
    finish_interrupted(directory, request.author.at_ms)?;
    let present = read_present(directory)?;
    if let Some(refusal) = refuse_present(&present, request.unreadable) {
        return Ok(RestoreOutcome::Refused(refusal));
    }
    let has_key = check_key(location, &request.file)?;
    let witness = location.witness.as_deref().map(LockedWitness::lock).transpose()?;
    let (epoch, given_up) = plan_entry(directory, &request.file, &checked, &present, witness.as_ref())?;
    let at_ms = request.author.at_ms;
    let entry = restore_entry(request.reason, request.author, epoch, given_up);
    stage_store(directory, &request.file, entry, on_fatal())?;
    if matches!(present, PresentStore::Readable(_)) {
        merge_present(location, on_fatal())?;
    }
    let replaced = swap_stores(directory, at_ms)?;
    if let Some(witness) = &witness {
        restart_witness(location, witness, on_fatal())?;
    }
    Ok(RestoreOutcome::Restored(Box::new(RestoredStore { checked, epoch, replaced, has_key })))
}

/// Verifies the backup.
fn check_backup(directory: &Path, file: &Path) -> Result<CheckedState, RuntimeError> {
    let shown = files::display_path(file);
    let unusable = |what: String, help: &str| RuntimeError::input(what).with_code(FailureCode::FileUnreadable).with_help(help.to_owned());
    match fs::metadata(file) {
        Err(error) => return Err(unusable(format!("cannot read {shown}: {error}"), "name a file that `converger store backup` wrote")),
        Ok(metadata) if !metadata.is_file() => {
            return Err(unusable(format!("{shown} is not a regular file"), "name a file that `converger store backup` wrote"));
        }
        Ok(_) => {}
    }
    if files::are_same_file(file, &directory.join(STORE_FILE)) {
        return Err(unusable(format!("{shown} is the present store itself"), "name a backup of it"));
    }
    if let Err(StoreOpenError::NotOurs { .. }) = StoreView::open(file) {
        let help =
            "name a file that `converger store backup` wrote; if this is one, it was damaged: use another; the present store is unchanged";
        return Err(unusable(format!("{shown} is not a database of this program"), help));
    }
    let checked = LedgerLocation::from_directory(file).read_if_present(|reader| check_state(reader, None, None));
    let checked = checked.map_err(|error| {
        let help = "this file is not an intact backup: name another one; the present store is unchanged";
        if error.is_broken() { error.with_help(help) } else { error }
    });
    checked?.ok_or_else(|| unusable(format!("{shown} contains no store"), "name a file that `converger store backup` wrote"))
}

fn prepare_directory(directory: &Path) -> Result<(), RuntimeError> {
    if !directory.exists() {
        let parents = directory.parent().map_or(Ok(()), fs::create_dir_all);
        parents.and_then(|()| DirBuilder::new().mode(0o700).create(directory)).map_err(|error| write_error("create", directory, &error))?;
    }
    check_state_directory(directory).map_err(|error| unreadable_error(&error))
}

/// Locks every environment that a process ever drove from this directory. A process that starts now with another environment finds its store
/// replaced before anything that it writes is acknowledged.
fn lock_all(directory: &Path, author: &Author) -> Result<Result<Vec<EnvironmentLock>, Refusal>, RuntimeError> {
    let mut locks = Vec::new();
    for environment in EnvironmentLock::list_environments(directory).map_err(|error| write_error("list", directory, &error))? {
        match take_lock(directory, &environment, author)? {
            LockOutcome::Taken(lock) => locks.push(lock),
            LockOutcome::Refused(refusal) => return Ok(Err(refusal)),
        }
    }
    Ok(Ok(locks))
}

/// Completes a restore that was killed between its renames, and removes what one left that was killed before them.
fn finish_interrupted(directory: &Path, at_ms: u64) -> Result<(), RuntimeError> {
    let preparing = directory.join(PREPARING_DIRECTORY);
    if preparing.exists() {
        fs::remove_dir_all(&preparing).map_err(|error| write_error("remove", &preparing, &error))?;
    }
    let staging = directory.join(STAGING_DIRECTORY);
    if !staging.exists() {
        return Ok(());
    }
    if !directory.join(STORE_FILE).exists() && staging.join(STORE_FILE).exists() {
        return swap_stores(directory, at_ms).map(drop);
    }
    fs::remove_dir_all(&staging).map_err(|error| write_error("remove", &staging, &error))
}

fn read_present(directory: &Path) -> Result<PresentStore, RuntimeError> {
    let view = match StoreView::open_undamaged(directory) {
        Ok(None) | Err(StoreOpenError::Lost { .. }) => return Ok(PresentStore::Missing),
        Ok(Some(view)) => view,
        Err(
            error @ (StoreOpenError::NotOurs { .. }
            | StoreOpenError::Damaged { .. }
            | StoreOpenError::Newer { .. }
            | StoreOpenError::Older { .. }
            | StoreOpenError::Failed { .. }),
        ) => return Ok(PresentStore::Unreadable(error.to_string())),
        Err(error) => return Err(unreadable_error(&error)),
    };
    let read = || {
        let with_status = |status| {
            let filter = OperationFilter { status: Some(status), ..OperationFilter::default() };
            wait_for(view.operations(filter, LIST_MAX)).map(|all| all.iter().map(|history| history.id().clone()).collect())
        };
        let (open, held) = (with_status(OperationStatus::Open)?, with_status(OperationStatus::Held)?);
        Ok((wait_for(view.epoch())?, wait_for(view.heads())?.durable, open, held))
    };
    let (epoch, head, open, held) = match read() {
        Ok(found) => found,
        Err(error) => return Ok(PresentStore::Unreadable(ledger_store_error(&error).to_string())),
    };
    let given_up = (head.size, (head.size > 0).then(|| head.root.to_string().into()));
    let keys = recorded_key(directory)?;
    Ok(PresentStore::Readable(PresentLedger { epoch, given_up, keys, open, held }))
}

/// Why the present store must not be replaced.
fn refuse_present(present: &PresentStore, unreadable: UnreadableStore) -> Option<Refusal> {
    match present {
        PresentStore::Unreadable(cause) if unreadable == UnreadableStore::Keep => Some(Refusal::store_unreadable(cause)),
        PresentStore::Readable(PresentLedger { open, held, .. }) if !(open.is_empty() && held.is_empty()) => {
            let words = |ids: &[OperationId]| ids.iter().map(|id| id.as_str().to_owned()).collect();
            Some(Refusal::operations_unsettled(words(open), words(held)))
        }
        _ => None,
    }
}

/// Checks that the key file of the directory, if there is one, is the key that the backup names. Returns whether it is there or none is needed.
fn check_key(location: &StateLocation, file: &Path) -> Result<bool, RuntimeError> {
    let path = files::display_path(&location.directory.join(KEY_FILE));
    let Some(named) = recorded_key(file)? else { return Ok(true) };
    match load_signer(&location.directory)? {
        Some(signer) if signer.verifier().to_string() == named.current() => Ok(true),
        Some(_) => Err(RuntimeError::input(format!("{path} is not the key that signed the ledger in {}", files::display_path(file)))
            .with_code(FailureCode::FileTaken)
            .with_help("the key was replaced after this backup: move the key file away, put the key of that time there, and restore again; without it, move the key file away and run `converger ledger rekey` afterwards")),
        None if location.witness.is_some() => Err(RuntimeError::input(format!("the key of the ledger in {} is missing: {path}", files::display_path(file)))
            .with_code(FailureCode::FileUnreadable)
            .with_help("put the key there first: the restored ledger must be signed for its witness; if it is lost, remove `witness` from `[ledger]`, restore, and run `converger ledger rekey`")),
        None => Ok(false),
    }
}

/// The epoch that begins, and the log that is given up. An epoch that the replaced store used must not be used again on another time line.
fn plan_entry(
    directory: &Path,
    file: &Path,
    checked: &CheckedState,
    present: &PresentStore,
    witness: Option<&LockedWitness<'_>>,
) -> Result<(u64, GivenUpLog), RuntimeError> {
    let (used, present_log, keys) = match present {
        PresentStore::Readable(ledger) => (ledger.epoch, ledger.given_up.clone(), ledger.keys.clone()),
        PresentStore::Missing | PresentStore::Unreadable(_) => (0, (0, None), None),
    };
    let keys = if keys.is_some() { keys } else { recorded_key(file)? };
    let seen = witness.map(|witness| witness.read(directory, keys)).transpose()?.flatten();
    let given_up = if seen.is_some() { given_up_log(seen.as_ref()) } else { present_log };
    Ok((checked.epoch.max(used) + 1, given_up))
}

fn restore_entry(reason: Reason, author: Author, epoch: u64, (size, root): GivenUpLog) -> LedgerEntry {
    LedgerEntry::Restored { by: author.by, reason: reason.into_text(), size, root, epoch, at_ms: author.at_ms }
}

/// Prepares the new store in a directory of its own: a copy of the backup with the entry about the restore.
fn stage_store(directory: &Path, file: &Path, entry: LedgerEntry, on_fatal: OnFatal) -> Result<(), RuntimeError> {
    let preparing = directory.join(PREPARING_DIRECTORY);
    let staged = preparing.join(STORE_FILE);
    let created = DirBuilder::new().mode(0o700).create(&preparing);
    created.map_err(|error| write_error("create", &preparing, &error))?;
    let prepared = fill_staging(&preparing, &staged, file, entry, on_fatal);
    if prepared.is_err() {
        // A directory that cannot be removed is removed by the next restore.
        let _ = fs::remove_dir_all(&preparing);
    }
    prepared?;
    let staging = directory.join(STAGING_DIRECTORY);
    fs::rename(&preparing, &staging).map_err(|error| write_error("rename", &preparing, &error))?;
    sync_directory(directory)
}

fn fill_staging(staging: &Path, staged: &Path, file: &Path, entry: LedgerEntry, on_fatal: OnFatal) -> Result<(), RuntimeError> {
    let created = File::options().write(true).create_new(true).mode(0o600).open(staged);
    let target = created.map_err(|error| write_error("create", staged, &error))?;
    copy_store(file, staged).map_err(|error| match error {
        StoreCopyError::Source(error) => ledger_reader::open_error(&error),
        StoreCopyError::TargetFull { .. } => full_disk_error(staged),
        StoreCopyError::Failed { cause, .. } => write_error("write", staged, &io::Error::other(cause)),
    })?;
    target.sync_all().map_err(|error| write_error("sync", staged, &error))?;
    let state = StateDirectory::open_unwitnessed(&StateLocation { directory: staging.to_owned(), witness: None }, on_fatal)?;
    let unsent = find_unsent(&state, entry.at_ms())?;
    wait_for(state.commit(Batch::from(StoreWrite::decision(entry)).with(Batch::new(unsent))))?;
    // Closing merges the WAL into the file, so that one rename moves all of it.
    drop(state);
    check_no_wal(staging)?;
    File::open(staging).and_then(|directory| directory.sync_all()).map_err(|error| write_error("sync", staging, &error))
}

/// Sending marks for operations of the backup that it has no mark of. What was sent after the backup is unknown, so recovery must not conclude from
/// a missing mark that nothing was.
fn find_unsent(state: &StateDirectory, at_ms: u64) -> Result<Vec<StoreWrite>, RuntimeError> {
    let filter = OperationFilter { status: Some(OperationStatus::Open), ..OperationFilter::default() };
    let open = wait_for(state.store().operations(filter, LIST_MAX)).map_err(|error| ledger_store_error(&error))?;
    let unsent = open.into_iter().filter(|history| history.sending.is_none());
    Ok(unsent.map(|history| JournalRecord::Sending { id: history.id().clone(), at_ms, up_ms: 0 }.into()).collect())
}

/// Merges the WAL of the present store into its file, so that one rename moves all of it.
fn merge_present(location: &StateLocation, on_fatal: OnFatal) -> Result<(), RuntimeError> {
    drop(StateDirectory::open_unwitnessed(location, on_fatal)?);
    check_no_wal(&location.directory)
}

/// Another process that has the store open keeps its WAL.
fn check_no_wal(directory: &Path) -> Result<(), RuntimeError> {
    let wal = directory.join(format!("{STORE_FILE}-wal"));
    if fs::metadata(&wal).map_or(0, |metadata| metadata.len()) == 0 {
        return Ok(());
    }
    let text = format!("another process uses the store in {}", files::display_path(directory));
    let help = "wait until it has ended, then restore again; nothing was replaced";
    Err(RuntimeError::failed(text).with_code(FailureCode::JournalUnwritable).with_help(help))
}

/// The renames that put the prepared store in place, in order. Steps whose source is missing were done before or are not needed.
fn swap_steps(directory: &Path, replaced: &Path) -> [(PathBuf, PathBuf); 4] {
    let store = directory.join(STORE_FILE);
    let beside = |path: &Path, ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    [
        (store.clone(), replaced.to_owned()),
        (beside(&store, "-wal"), beside(replaced, "-wal")),
        (beside(&store, "-shm"), beside(replaced, "-shm")),
        (directory.join(STAGING_DIRECTORY).join(STORE_FILE), store),
    ]
}

/// Puts the prepared store in place. Returns where the replaced one is now, if there was one.
fn swap_stores(directory: &Path, at_ms: u64) -> Result<Option<PathBuf>, RuntimeError> {
    let replaced = free_name(directory, at_ms);
    let had_store = directory.join(STORE_FILE).exists();
    for (from, to) in swap_steps(directory, &replaced) {
        match fs::rename(&from, &to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(write_error("rename", &from, &error)),
            _ => {}
        }
        sync_directory(directory)?;
    }
    // It is empty now; one that stays does no harm.
    let _ = fs::remove_dir(directory.join(STAGING_DIRECTORY));
    Ok(had_store.then_some(replaced))
}

/// A name for the replaced store that no file has.
fn free_name(directory: &Path, at_ms: u64) -> PathBuf {
    let time: String = timestamp::format_timestamp(at_ms / 1000).chars().filter(char::is_ascii_alphanumeric).collect();
    let name = |number: u32| {
        directory.join(format!("{STORE_FILE}.replaced-{time}{}", if number == 1 { String::new() } else { format!("-{number}") }))
    };
    (1..).map(name).find(|path| fs::symlink_metadata(path).is_err()).unwrap_or_else(|| name(0))
}

fn sync_directory(directory: &Path) -> Result<(), RuntimeError> {
    File::open(directory).and_then(|file| file.sync_all()).map_err(|error| write_error("sync", directory, &error))
}

fn restart_witness(location: &StateLocation, witness: &LockedWitness<'_>, on_fatal: OnFatal) -> Result<(), RuntimeError> {
    let restarted = StateDirectory::open_unwitnessed(location, on_fatal).and_then(|state| witness.restart(&state));
    restarted.map_err(|error| {
        RuntimeError::failed(format!("the store is restored, but its witness was not restarted: {error}"))
            .with_code(FailureCode::FileUnwritable)
            .with_help("make the witness writable, then run `converger ledger resync --reason \"...\"`; nothing is sent before that")
    })
}

fn full_disk_error(path: &Path) -> RuntimeError {
    RuntimeError::failed(format!("cannot write {}: its disk is full", files::display_path(path)))
        .with_code(FailureCode::JournalUnwritable)
        .with_help("make room for a second copy of the store there, then restore again; nothing was replaced")
}

fn write_error(what: &str, path: &Path, error: &io::Error) -> RuntimeError {
    RuntimeError::failed(format!("cannot {what} {}: {error}", files::display_path(path)))
        .with_code(FailureCode::JournalUnwritable)
        .with_help("let this user write there and check the free space, then restore again")
}
