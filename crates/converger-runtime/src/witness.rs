//! The witness: a file on other storage that keeps the last checkpoint, so that a state directory that was restored from an older copy is detected
//! before anything is done with it (C8).
//!
//! Every command that writes compares the ledger with the witness first and attests the ledger to it last. A ledger that is shorter than the
//! checkpoint, or another ledger, can only be read until a person takes it back into service with a recorded reason (`resync`).
//!
//! This module repairs neither the ledger nor the witness.

use std::fs::{self, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use converger_core::evidence::LedgerEntry;
use converger_core::failure::FailureCode;
use converger_core::timestamp;
use converger_ledger::{Checkpoint, LogHash, MerkleTree, NoteSigner, NoteVerifier, SubtreeHashes, Tile, TiledHashes, root_of_size};
use converger_store::{Batch, LedgerHead, StoreReader, StoreView, StoreWrite, wait_for};

use crate::author::{Author, Reason};
use crate::error::RuntimeError;
use crate::files::{self, OwnFile, Replaces};
use crate::ledger_key::{NamedKeys, load_or_create_signer, load_signer, load_unrecorded_signer, recorded_key, recorded_key_in_store};
use crate::ledger_reader::{integrity_error, ledger_store_error};
use crate::state_dir::{StateDirectory, store_error, unreadable_error};

/// A ledger compared with the checkpoint of its witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WitnessComparison {
    /// The ledger is the same, or has grown since.
    Extends,
    /// The ledger is shorter: it was restored from an older copy.
    Shorter,
    /// It is another ledger: the two differ in entries that the witness has seen.
    Other,
}

/// `root` is the root of the ledger at the size of the checkpoint; none if the ledger is shorter.
fn compare_roots(seen: &Checkpoint, own: LedgerHead, root: Option<LogHash>) -> WitnessComparison {
    match root {
        None => WitnessComparison::Shorter,
        Some(_) if own.size < seen.size => WitnessComparison::Shorter,
        Some(root) if root == seen.root => WitnessComparison::Extends,
        Some(_) => WitnessComparison::Other,
    }
}

/// Checks that a state directory may be written. Without a witness there is nothing to compare with.
///
/// # Errors
/// The witness has a longer or another ledger, or cannot be read.
pub fn check_ledger(directory: &Path, witness: Option<&Path>) -> Result<(), RuntimeError> {
    let Some(path) = witness else { return Ok(()) };
    check_separate(directory, path)?;
    let Some(seen) = read_checkpoint(path, |bytes| ledger_verifier(directory, recorded_key(directory)?, bytes))? else {
        return if recorded_key(directory)?.is_none() { Ok(()) } else { Err(missing_witness_error(directory, path)) };
    };
    check_extends(compare_directory(directory, &seen)?, &seen, directory)
}

/// Checks that a ledger extends the checkpoint of its witness.
fn check_extends(comparison: WitnessComparison, seen: &Checkpoint, directory: &Path) -> Result<(), RuntimeError> {
    let shown = files::display_path(directory);
    let help = "find out who restored it; inspect it with `converger ledger tail` and `converger verify`, then take it back into service with `converger ledger resync --reason \"...\"`";
    match comparison {
        WitnessComparison::Extends => Ok(()),
        WitnessComparison::Shorter => {
            let text = format!("{shown} was restored from an older copy: the witness has seen {} entries of its ledger", seen.size);
            Err(integrity_error(text).with_help(help))
        }
        WitnessComparison::Other => {
            let text =
                format!("the ledger in {shown} is not the one that the witness has seen: they differ in the first {} entries", seen.size);
            Err(integrity_error(text).with_help(help))
        }
    }
}

/// Checks that the witness is outside the state directory: inside, it would be restored together with the ledger that it protects.
///
/// # Errors
/// The witness is inside.
pub fn check_separate(directory: &Path, path: &Path) -> Result<(), RuntimeError> {
    let (Ok(state), Ok(parent)) = (directory.canonicalize(), parent_directory(path).canonicalize()) else { return Ok(()) };
    if !parent.starts_with(&state) && path.canonicalize().map_or(true, |path| !path.starts_with(&state)) {
        return Ok(());
    }
    let text = format!("the witness {} is inside the state directory {}", files::display_path(path), files::display_path(directory));
    let help = "name a file on other storage as `witness` in `[ledger]`: a restored state directory would restore this one with it";
    Err(RuntimeError::input(text).with_code(FailureCode::ConfigInvalid).with_help(help))
}

/// The witness is missing although the ledger was signed before: its storage may not be mounted.
fn missing_witness_error(directory: &Path, path: &Path) -> RuntimeError {
    let text = format!(
        "the witness {} is missing, but the ledger in {} was signed before",
        files::display_path(path),
        files::display_path(directory)
    );
    RuntimeError::failed(text)
        .with_help("mount its storage, or start a new witness with `converger ledger resync --reason \"...\"`")
        .with_code(FailureCode::JournalUnreadable)
}

fn compare_directory(directory: &Path, seen: &Checkpoint) -> Result<WitnessComparison, RuntimeError> {
    let store = StoreView::open(directory).map_err(|error| unreadable_error(&error))?;
    store.map_or(Ok(WitnessComparison::Shorter), |store| compare_ledger(&store, seen))
}

/// Compares the ledger of a store with a checkpoint of it.
fn compare_ledger(store: &impl StoreReader, seen: &Checkpoint) -> Result<WitnessComparison, RuntimeError> {
    let own = wait_for(store.heads()).map_err(|error| store_error(&error))?.all;
    if own.size < seen.size {
        return Ok(compare_roots(seen, own, None));
    }
    Ok(compare_roots(seen, own, Some(root_of_size(&mut subtree_hashes(store, own.size), seen.size)?)))
}

/// The roots of subtrees of a ledger of this size.
fn subtree_hashes(store: &impl StoreReader, size: u64) -> impl SubtreeHashes<Error = RuntimeError> {
    TiledHashes::new(size, move |tile: Tile| {
        let found = wait_for(store.hashes(tile)).map_err(|error| ledger_store_error(&error))?;
        found.ok_or_else(|| integrity_error(format!("{} is missing", tile.path())))
    })
}

/// A checkpoint has a few lines; a larger file is not one.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// Reads the checkpoint of a witness, if it has one, and verifies it with the key that `verifier` selects for its bytes.
fn read_checkpoint(
    path: &Path,
    verifier: impl FnOnce(&[u8]) -> Result<NoteVerifier, RuntimeError>,
) -> Result<Option<Checkpoint>, RuntimeError> {
    let shown = files::display_path(path);
    let bytes = match files::read_at_most(path, CHECKPOINT_BYTES_MAX).map(|text| text.bytes) {
        // The storage of the witness is mounted and has no file yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound && parent_directory(path).is_dir() => return Ok(None),
        read => read.map_err(|error| witness_error(path, &error))?,
    };
    let (verifier, other) = (verifier(&bytes)?, "holds a checkpoint of another ledger, or a changed one");
    Checkpoint::verify(&bytes, &verifier).map(Some).map_err(|error| {
        let what = if bytes.is_empty() { "is empty".to_owned() } else { format!("{other}: {error}") };
        integrity_error(format!("the witness {shown} {what}")).with_help(
            "name the witness of this state directory in `[ledger]`, or find out who wrote the file; then move it away and start a new one \
             with `converger ledger resync --reason \"...\"`",
        )
    })
}

/// The key that verifies a checkpoint of the ledger in this directory.
///
/// A checkpoint from before the key was replaced is verified with the key of that time, which only the entry of the replacement names.
fn ledger_verifier(directory: &Path, named: Option<NamedKeys>, bytes: &[u8]) -> Result<NoteVerifier, RuntimeError> {
    // A copy from before the first signature has the key file, but no entry that names the key. Nothing is signed here, so the key file may be elsewhere.
    let size = Checkpoint::parse_unverified(bytes).map_or(u64::MAX, |checkpoint| checkpoint.size);
    let of_ledger = named.and_then(|named| NoteVerifier::parse(named.at(size)).ok());
    let own = if of_ledger.is_some() { of_ledger } else { load_signer(directory)?.map(|signer| signer.verifier()) };
    match own {
        Some(verifier) => Ok(verifier),
        None if Checkpoint::parse_unverified(bytes).is_err() => Err(integrity_error("the file named as `witness` is not a checkpoint")
            .with_help("name a separate file on other storage in `[ledger]`; the next command that writes creates it")),
        None => {
            let size = Checkpoint::parse_unverified(bytes).map_or(0, |checkpoint| checkpoint.size);
            let shown = files::display_path(directory);
            Err(integrity_error(format!("{shown} has no signed ledger, but its witness has seen one of {size} entries"))
                .with_help("restore the state directory, or name another witness in `[ledger]`"))
        }
    }
}

fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a path is the witness or its lock file.
pub fn is_witness_file(witness: &Path, path: &Path) -> bool {
    let is_named = |own: &Path| files::are_same_file(path, own) || path == own;
    is_named(witness) || is_named(&lock_path(witness))
}

/// A witness that cannot be used has not agreed to a write.
fn witness_error(path: &Path, error: &io::Error) -> RuntimeError {
    RuntimeError::failed(format!("the witness {} cannot be used: {error}", files::display_path(path)))
        .with_help("nothing is written without it: make its storage reachable, or remove `witness` from `[ledger]`")
        .with_code(FailureCode::JournalUnreadable)
}

/// How long to wait for the lock of the witness: attesting reads and writes one small file, possibly on slow storage.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);

/// The lock file of a witness.
fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Locks the witness for as long as the returned file is open. The file is opened for writing, because network file systems lock nothing otherwise,
/// and for reading, because opening a pipe for writing alone would wait for a reader.
///
/// The wait is bounded: a process that hangs with the lock, or a file server that lost its holder, must not block everyone for ever.
fn lock_witness(path: &Path, patience: Duration) -> Result<fs::File, RuntimeError> {
    let name = lock_path(path);
    let opened = fs::File::options().create(true).read(true).write(true).truncate(false).mode(0o600).open(&name);
    let file = opened.map_err(|error| witness_error(path, &error))?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err(witness_error(path, &io::Error::other(format!("{} is not a regular file", files::display_path(&name)))));
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(error)) => Err(witness_error(path, &error)),
        Err(TryLockError::WouldBlock) => {
            let locked = lock_with_timeout(file, patience).map_err(|error| witness_error(path, &error))?;
            locked.ok_or_else(|| lock_timeout_error(path, &name, patience))
        }
    }
}

/// The file once it is locked; `None` after the timeout. A thread waits for the lock, so that nothing polls. After a timeout it is left behind: it
/// releases the lock at once if it gets it, and ends with the process.
fn lock_with_timeout(file: fs::File, patience: Duration) -> io::Result<Option<fs::File>> {
    let (sender, receiver) = mpsc::channel();
    let wait = move || drop(sender.send(file.lock().map(|()| file)));
    thread::Builder::new().name("witness-turn".into()).spawn(wait)?;
    receiver.recv_timeout(patience).ok().transpose()
}

fn lock_timeout_error(path: &Path, lock: &Path, patience: Duration) -> RuntimeError {
    let (witness, lock, secs) = (files::display_path(path), files::display_path(lock), patience.as_secs());
    RuntimeError::failed(format!("another process has held {lock}, the lock of the witness {witness}, for {secs} s"))
        .with_help("find the process that has that file open and check whether it hangs; what is recorded stays recorded, and the next command that writes attests it")
        .with_code(FailureCode::FileUnwritable)
}

/// How an attestation treats the checkpoint that the witness has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttestMode {
    /// The new checkpoint must extend it.
    Extend,
    /// A person replaces it (`resync`).
    Restart,
}

/// Attests the ledger: writes its checkpoint to the witness. Processes with another copy of the directory may do the same at the same time, so all of
/// them lock a file beside the witness.
pub(crate) fn attest(state: &StateDirectory, path: &Path) -> Result<(), RuntimeError> {
    create_witness(state, path)?;
    let signer = load_or_create_signer(state)?;
    let _turn = lock_witness(path, LOCK_WAIT_MAX)?;
    attest_locked(state, &signer, path, AttestMode::Extend)
}

/// Writes an empty checkpoint to a new witness before the ledger names its key. A crash in between would otherwise leave a signed ledger without a
/// witness, which looks like a witness whose storage is gone.
fn create_witness(state: &StateDirectory, path: &Path) -> Result<(), RuntimeError> {
    if recorded_key_in_store(state)?.is_some() {
        return Ok(());
    }
    let signer = load_unrecorded_signer(state)?;
    let _turn = lock_witness(path, LOCK_WAIT_MAX)?;
    if read_checkpoint(path, |_| Ok(signer.verifier()))?.is_some() {
        return Ok(());
    }
    let nothing = Checkpoint { origin: signer.verifier().name().to_owned(), size: 0, root: MerkleTree::default().root() };
    write_checkpoint(path, &nothing.sign(&signer))
}

fn write_checkpoint(path: &Path, text: &str) -> Result<(), RuntimeError> {
    files::replace(path, Replaces::Own(OwnFile::Checkpoint), |file| file.write_all(text.as_bytes())).map_err(|error| {
        RuntimeError::failed(format!("cannot write the witness {}: {error}", files::display_path(path)))
            .with_help("what was done is done and recorded; the next command that writes attests it")
            .with_code(FailureCode::FileUnwritable)
    })
}

fn attest_locked(state: &StateDirectory, signer: &NoteSigner, path: &Path, mode: AttestMode) -> Result<(), RuntimeError> {
    let heads = wait_for(state.store().heads()).map_err(|error| store_error(&error))?;
    let head = heads.durable;
    let mut hashes = subtree_hashes(state.store(), heads.all.size);
    if root_of_size(&mut hashes, head.size)? != head.root {
        return Err(integrity_error(format!(
            "the hashes over the first {} entries do not lead to the recorded root: the witness is not written",
            head.size
        )));
    }
    let text = Checkpoint { origin: signer.verifier().name().to_owned(), size: head.size, root: head.root }.sign(signer);
    if mode == AttestMode::Extend
        && let Some(seen) = read_checkpoint(path, |bytes| ledger_verifier(state.path(), recorded_key_in_store(state)?, bytes))?
    {
        // Another copy of the directory may have attested in the meantime.
        let root = if seen.size > heads.all.size { None } else { Some(root_of_size(&mut hashes, seen.size)?) };
        check_extends(compare_roots(&seen, heads.all, root), &seen, state.path())?;
        if seen.size > head.size {
            return Ok(());
        }
    }
    write_checkpoint(path, &text)
}

/// The witness, locked while a person replaces its checkpoint: a checkpoint that another copy wrote in between would be neither compared nor recorded.
pub(crate) struct LockedWitness<'w> {
    path: &'w Path,
    _turn: fs::File,
}

/// The end of the log that a ledger gives up: its size, and its root as in a checkpoint if it is known.
pub(crate) type GivenUpLog = (u64, Option<Box<str>>);

impl<'w> LockedWitness<'w> {
    pub(crate) fn lock(path: &'w Path) -> Result<Self, RuntimeError> {
        Ok(Self { path, _turn: lock_witness(path, LOCK_WAIT_MAX)? })
    }

    /// The checkpoint, if there is one, verified with the keys that the ledger of this directory names.
    pub(crate) fn read(&self, directory: &Path, named: Option<NamedKeys>) -> Result<Option<Checkpoint>, RuntimeError> {
        read_checkpoint(self.path, |bytes| ledger_verifier(directory, named, bytes))
    }

    /// Replaces the checkpoint by that of the ledger, which need not extend it. An entry of the ledger says why.
    pub(crate) fn restart(&self, state: &StateDirectory) -> Result<(), RuntimeError> {
        attest_locked(state, &load_or_create_signer(state)?, self.path, AttestMode::Restart)
    }
}

/// What a ledger gives up that replaces the one of this checkpoint.
pub(crate) fn given_up_log(seen: Option<&Checkpoint>) -> GivenUpLog {
    seen.map_or((0, None), |seen| (seen.size, Some(seen.root.to_string().into())))
}

/// Takes a restored state directory back into service, for a recorded reason. The entry begins a new epoch.
///
/// # Errors
/// The witness cannot be used, or there is nothing to take back.
pub fn resync(state: &StateDirectory, witness: &Path, reason: Reason, author: Author) -> Result<u64, RuntimeError> {
    let witness = LockedWitness::lock(witness)?;
    let seen = witness.read(state.path(), recorded_key_in_store(state)?)?;
    let (size, root) = given_up_log(seen.as_ref());
    // A new witness, or one whose file is gone, also needs a person to start it.
    let is_needed = match &seen {
        Some(seen) => compare_ledger(state.store(), seen)? != WitnessComparison::Extends,
        None => recorded_key_in_store(state)?.is_some(),
    };
    if !is_needed {
        return Err(RuntimeError::input("the ledger extends the checkpoint of the witness: there is nothing to resync"));
    }
    let epoch = wait_for(state.store().epoch()).map_err(|error| store_error(&error))? + 1;
    let entry = LedgerEntry::Resync { by: author.by, reason: reason.into_text(), size, root, epoch, at_ms: author.at_ms };
    wait_for(state.commit(Batch::from(StoreWrite::decision(entry))))?;
    witness.restart(state)?;
    Ok(size)
}

/// Describes a resync that gave this checkpoint up, if the entry is one. The same key signs both ledgers then, so a person who holds the old checkpoint
/// must learn who replaced it, when and why.
pub fn describe_resync(index: u64, entry: &LedgerEntry, seen: &Checkpoint) -> Option<String> {
    let (LedgerEntry::Resync { by, reason, size, root: Some(root), at_ms, .. }
    | LedgerEntry::Restored { by, reason, size, root: Some(root), at_ms, .. }) = entry
    else {
        return None;
    };
    if *size != seen.size || **root != seen.root.to_string() {
        return None;
    }
    let (by, when, reason) = (files::escape_hidden(by), timestamp::format_timestamp(at_ms / 1000), files::escape_hidden(reason));
    Some(format!("; entry {index} says that {by} took an older copy into service in its place at {when}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_checkpoint(size: u64, leaf: &[u8]) -> Checkpoint {
        Checkpoint { origin: "log".into(), size, root: LogHash::of_leaf(leaf) }
    }

    /// The error names the lock file.
    #[test]
    fn witness_lock_has_a_timeout() {
        let directory = tempfile::tempdir().expect("a directory");
        let witness = directory.path().join("witness");
        let other = lock_witness(&witness, Duration::ZERO).unwrap_or_else(|error| panic!("{error}"));
        let error = lock_witness(&witness, Duration::from_millis(1)).map(drop).expect_err("it is locked").to_string();
        assert!(error.contains("another process has held") && error.contains("witness.lock"), "{error}");
        drop(other);
        // The thread that was left behind may get the lock for a moment, and releases it.
        assert!(lock_witness(&witness, LOCK_WAIT_MAX).is_ok(), "it was released");
    }

    /// Opening a pipe for writing would wait for a reader.
    #[test]
    fn refuses_a_pipe_in_place_of_the_lock_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let status = std::process::Command::new("mkfifo").arg(directory.path().join("witness.lock")).status();
        assert!(status.expect("mkfifo runs").success());
        let error = lock_witness(&directory.path().join("witness"), LOCK_WAIT_MAX).map(drop).expect_err("it is no lock file").to_string();
        assert!(error.contains("is not a regular file"), "{error}");
    }

    #[test]
    fn describes_a_resync_only_for_the_checkpoint_given_up() {
        let entry = |root: Option<&str>| LedgerEntry::Resync {
            by: "ann".into(),
            reason: "the disk was lost".into(),
            size: 3,
            root: root.map(Into::into),
            epoch: 2,
            at_ms: 1_794_700_800_000,
        };
        let own = sample_checkpoint(3, b"a");
        let description = describe_resync(7, &entry(Some(&own.root.to_string())), &own).expect("it is that one");
        assert_eq!(
            description,
            "; entry 7 says that ann took an older copy into service in its place at 2026-11-15T00:00:00Z: the disk was lost"
        );
        assert_eq!(describe_resync(7, &entry(None), &own), None);
        assert_eq!(describe_resync(7, &entry(Some(&own.root.to_string())), &sample_checkpoint(4, b"a")), None);
        assert_eq!(describe_resync(7, &entry(Some(&own.root.to_string())), &sample_checkpoint(3, b"b")), None);
    }

    #[test]
    fn refuses_to_write_a_ledger_that_does_not_extend_the_checkpoint() {
        let own = |size| LedgerHead { size, root: LogHash::of_leaf(b"now") };
        assert_eq!(compare_roots(&sample_checkpoint(3, b"a"), own(3), Some(LogHash::of_leaf(b"a"))), WitnessComparison::Extends);
        assert_eq!(compare_roots(&sample_checkpoint(3, b"a"), own(9), Some(LogHash::of_leaf(b"a"))), WitnessComparison::Extends);
        assert_eq!(compare_roots(&sample_checkpoint(3, b"a"), own(9), Some(LogHash::of_leaf(b"b"))), WitnessComparison::Other);
        assert_eq!(compare_roots(&sample_checkpoint(3, b"a"), own(2), None), WitnessComparison::Shorter);
        assert_eq!(compare_roots(&sample_checkpoint(3, b"a"), own(2), Some(LogHash::of_leaf(b"a"))), WitnessComparison::Shorter);
    }
}
