//! The witness: a file on other storage that keeps the last checkpoint, so that a state directory which was put back from an older copy is noticed
//! before anything is done with it (C8).
//!
//! Whoever writes asks it first and tells it last. A ledger that is shorter than the witness has seen, or another one, is only looked at until a person
//! takes it back into service with a recorded reason.
//!
//! What never enters: mending either of the two.

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

use crate::error::RuntimeError;
use crate::files::{OwnFile, Replaces};
use crate::ledger_key::{NamedKeys, load_or_create_signer, load_signer, load_unrecorded_signer, recorded_key, recorded_key_in_store};
use crate::ledger_reader::{integrity_error, ledger_store_error};
use crate::state_dir::{StateDirectory, store_error, unreadable_error};
use crate::{files, host};

/// How a ledger stands to what a witness has seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WitnessComparison {
    /// It is the same, or has grown since.
    Extends,
    /// It is shorter: it was put back from an older copy.
    Shorter,
    /// It is another one: the two differ in what the witness has seen.
    Other,
}

/// `root` is that of the ledger when it was as long as the witness has seen it; none where it is not so long.
fn compare_roots(seen: &Checkpoint, own: LedgerHead, root: Option<LogHash>) -> WitnessComparison {
    match root {
        None => WitnessComparison::Shorter,
        Some(_) if own.size < seen.size => WitnessComparison::Shorter,
        Some(root) if root == seen.root => WitnessComparison::Extends,
        Some(_) => WitnessComparison::Other,
    }
}

/// Whether a state directory may be written to. Where no witness is named, nobody can tell.
///
/// # Errors
/// The witness has seen more of the ledger, or another one, or cannot be asked.
pub fn check_ledger(directory: &Path, witness: Option<&Path>) -> Result<(), RuntimeError> {
    let Some(path) = witness else { return Ok(()) };
    check_separate(directory, path)?;
    let Some(seen) = read_checkpoint(path, |bytes| ledger_verifier(directory, recorded_key(directory)?, bytes))? else {
        return if recorded_key(directory)?.is_none() { Ok(()) } else { Err(missing_witness_error(directory, path)) };
    };
    check_extends(compare_directory(directory, &seen)?, &seen, directory)
}

/// Whether a ledger goes on from what the witness has seen of it.
fn check_extends(standing: WitnessComparison, seen: &Checkpoint, directory: &Path) -> Result<(), RuntimeError> {
    let shown = files::display_path(directory);
    let help = "find out who put it there; look with `converger ledger tail` and `verify`, and take it back into service with `converger ledger resync --reason \"...\"`";
    match standing {
        WitnessComparison::Extends => Ok(()),
        WitnessComparison::Shorter => {
            let text = format!("{shown} was put back from an older copy: the witness has seen {} entries of its ledger", seen.size);
            Err(integrity_error(text).with_help(help))
        }
        WitnessComparison::Other => {
            let text =
                format!("the ledger in {shown} is not the one that the witness has seen: they differ in the first {} entries", seen.size);
            Err(integrity_error(text).with_help(help))
        }
    }
}

/// A witness that lies in the state directory is put back together with what it guards, or is one of its files.
///
/// # Errors
/// The witness cannot be used, or has seen another ledger.
pub fn check_separate(directory: &Path, path: &Path) -> Result<(), RuntimeError> {
    let (Ok(state), Ok(room)) = (directory.canonicalize(), parent_directory(path).canonicalize()) else { return Ok(()) };
    if !room.starts_with(&state) && path.canonicalize().map_or(true, |path| !path.starts_with(&state)) {
        return Ok(());
    }
    let text = format!("the witness {} lies in the state directory {}", files::display_path(path), files::display_path(directory));
    let help =
        "name a file on other storage with `witness` in `[ledger]`: whoever puts the state back from an older copy would put it back too";
    Err(RuntimeError::input(text).with_code(FailureCode::ConfigInvalid).with_help(help))
}

/// The file of the witness is not there, and the ledger was signed before: it may have been told, and its storage may not be mounted.
fn missing_witness_error(directory: &Path, path: &Path) -> RuntimeError {
    let text = format!(
        "the witness {} is not there, and the ledger in {} was signed before",
        files::display_path(path),
        files::display_path(directory)
    );
    RuntimeError::failed(text)
        .with_help("mount its storage; a witness that is new is begun with `converger ledger resync --reason \"...\"`")
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

/// A checkpoint is a few lines; more is none.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// What the witness has seen, if it has seen something. The checkpoint is believed under the key that is given for its bytes.
fn read_checkpoint(
    path: &Path,
    verifier: impl FnOnce(&[u8]) -> Result<NoteVerifier, RuntimeError>,
) -> Result<Option<Checkpoint>, RuntimeError> {
    let shown = files::display_path(path);
    let bytes = match files::read_at_most(path, CHECKPOINT_BYTES_MAX).map(|text| text.bytes) {
        // The storage of the witness is there, and the file is not: it has seen nothing yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound && parent_directory(path).is_dir() => return Ok(None),
        read => read.map_err(|error| witness_error(path, &error))?,
    };
    let (verifier, other) = (verifier(&bytes)?, "keeps a checkpoint of another ledger, or one that was changed");
    Checkpoint::verify(&bytes, &verifier).map(Some).map_err(|error| {
        let what = if bytes.is_empty() { "is empty".to_owned() } else { format!("{other}: {error}") };
        integrity_error(format!("the witness {shown} {what}")).with_help(
            "name the witness of this state directory in `[ledger]`, or find out who wrote there; once that is known, move the file away and \
             begin it anew with `converger ledger resync --reason \"...\"`",
        )
    })
}

/// The key of the ledger here, which may name one. Where there is no ledger left, it is told as put back from a copy of before it began.
///
/// A checkpoint from before the key was replaced is believed under the key of that time, which only the entry of the replacement tells.
fn ledger_verifier(directory: &Path, named: Option<NamedKeys>, bytes: &[u8]) -> Result<NoteVerifier, RuntimeError> {
    // A copy of before the first signature has the key, and no entry that names it.
    // Nothing is signed here, so that the secret may be elsewhere.
    let size = Checkpoint::parse_unverified(bytes).map_or(u64::MAX, |checkpoint| checkpoint.size);
    let of_ledger = named.and_then(|named| NoteVerifier::parse(named.at(size)).ok());
    let own = if of_ledger.is_some() { of_ledger } else { load_signer(directory)?.map(|signer| signer.verifier()) };
    match own {
        Some(verifier) => Ok(verifier),
        None if Checkpoint::parse_unverified(bytes).is_err() => Err(integrity_error(
            "the file that is named as `witness` is no checkpoint",
        )
        .with_help("name a file of its own on other storage in `[ledger]`: where there is none, the next command that writes makes it")),
        None => {
            let size = Checkpoint::parse_unverified(bytes).map_or(0, |checkpoint| checkpoint.size);
            let shown = files::display_path(directory);
            Err(integrity_error(format!("{shown} has no ledger that was signed, and its witness has seen one of {size} entries"))
                .with_help("put the state directory back, or name another witness in `[ledger]`"))
        }
    }
}

fn parent_directory(path: &Path) -> &Path {
    path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a path is the witness, or the file that those who tell it take turns by.
pub fn is_witness_file(witness: &Path, path: &Path) -> bool {
    let is_named = |own: &Path| files::are_same_file(path, own) || path == own;
    is_named(witness) || is_named(&lock_path(witness))
}

/// Who cannot be asked has not agreed.
fn witness_error(path: &Path, error: &io::Error) -> RuntimeError {
    RuntimeError::failed(format!("the witness {} cannot be asked: {error}", files::display_path(path)))
        .with_help("nothing is written without it: make its storage reachable, or take `witness` out of `[ledger]`")
        .with_code(FailureCode::JournalUnreadable)
}

/// How long somebody else may have their turn: telling takes no longer than reading and writing one small file on slow storage.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);

/// The file that those who tell a witness take turns by.
fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// A turn at the witness, as long as the file is open. It is opened for writing, without which storage over a network locks nothing, and for
/// reading, because a pipe that is opened for writing alone waits for somebody who reads.
///
/// Whoever hangs with their turn, or a server that lost who had it, would otherwise keep everybody waiting for ever.
fn lock_witness(path: &Path, patience: Duration) -> Result<fs::File, RuntimeError> {
    let name = lock_path(path);
    let opened = fs::File::options().create(true).read(true).write(true).truncate(false).mode(0o600).open(&name);
    let file = opened.map_err(|error| witness_error(path, &error))?;
    if !file.metadata().is_ok_and(|there| there.is_file()) {
        return Err(witness_error(path, &io::Error::other(format!("{} is not a regular file", files::display_path(&name)))));
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(error)) => Err(witness_error(path, &error)),
        Err(TryLockError::WouldBlock) => {
            let ours = lock_with_timeout(file, patience).map_err(|error| witness_error(path, &error))?;
            ours.ok_or_else(|| lock_timeout_error(path, &name, patience))
        }
    }
}

/// The file once its lock is ours; none where that takes too long. The system wakes whoever waits, so that nobody asks again and again. A thread that
/// is left behind ends with the process, and gives back at once what it gets before that.
fn lock_with_timeout(file: fs::File, patience: Duration) -> io::Result<Option<fs::File>> {
    let (sender, receiver) = mpsc::channel();
    let wait = move || drop(sender.send(file.lock().map(|()| file)));
    thread::Builder::new().name("witness-turn".into()).spawn(wait)?;
    receiver.recv_timeout(patience).ok().transpose()
}

fn lock_timeout_error(path: &Path, lock: &Path, patience: Duration) -> RuntimeError {
    let (witness, lock, secs) = (files::display_path(path), files::display_path(lock), patience.as_secs());
    RuntimeError::failed(format!("the witness {witness} is being told by somebody else, who has had {lock} for {secs} s"))
        .with_help("find out who has that file open, and whether they hang; what is recorded stays so, and the next command that writes tells the witness")
        .with_code(FailureCode::FileUnwritable)
}

/// What becomes of what the witness has seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttestMode {
    /// It goes on from there, and never back.
    Extend,
    /// A person began anew.
    Restart,
}

/// Whoever looked earlier may come later, also with another copy of the directory. They take turns by a file beside the witness: it is what all
/// of them have.
pub(crate) fn attest(state: &StateDirectory, path: &Path) -> Result<(), RuntimeError> {
    create_witness(state, path)?;
    let signer = load_or_create_signer(state)?;
    let _turn = lock_witness(path, LOCK_WAIT_MAX)?;
    attest_locked(state, &signer, path, AttestMode::Extend)
}

/// A witness that is new is told that there is a ledger before that names its key: whoever dies in between would leave a ledger that was signed and a
/// witness that is not there, which is what a witness looks like whose storage is gone.
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
        RuntimeError::failed(format!("the witness {} cannot be told: {error}", files::display_path(path)))
            .with_help("what was done stays done and is recorded; the witness is told by the next command that writes")
            .with_code(FailureCode::FileUnwritable)
    })
}

fn attest_locked(state: &StateDirectory, signer: &NoteSigner, path: &Path, telling: AttestMode) -> Result<(), RuntimeError> {
    let heads = wait_for(state.store().heads()).map_err(|error| store_error(&error))?;
    let head = heads.durable;
    let mut hashes = subtree_hashes(state.store(), heads.all.size);
    if root_of_size(&mut hashes, head.size)? != head.root {
        return Err(integrity_error(format!(
            "the hashes over the first {} entries do not lead to the recorded root: the witness is not told",
            head.size
        )));
    }
    let text = Checkpoint { origin: signer.verifier().name().to_owned(), size: head.size, root: head.root }.sign(signer);
    if telling == AttestMode::Extend
        && let Some(seen) = read_checkpoint(path, |bytes| ledger_verifier(state.path(), recorded_key_in_store(state)?, bytes))?
    {
        // Another copy of the directory may have told it meanwhile.
        let root = if seen.size > heads.all.size { None } else { Some(root_of_size(&mut hashes, seen.size)?) };
        check_extends(compare_roots(&seen, heads.all, root), &seen, state.path())?;
        if seen.size > head.size {
            return Ok(());
        }
    }
    write_checkpoint(path, &text)
}

/// A person takes a state directory back into service. From the first look to the last word it is their turn: what another copy told the witness in
/// between would be neither weighed nor named.
///
/// # Errors
/// The witness cannot be used, or has seen another ledger.
pub fn resync(state: &StateDirectory, witness: &Path, reason: &str) -> Result<u64, RuntimeError> {
    let _turn = lock_witness(witness, LOCK_WAIT_MAX)?;
    let seen = read_checkpoint(witness, |bytes| ledger_verifier(state.path(), recorded_key_in_store(state)?, bytes))?;
    let (size, root) = seen.as_ref().map_or((0, None), |seen| (seen.size, Some(seen.root.to_string().into())));
    // A witness that is new, or whose file is gone, is begun anew by a person too.
    let is_needed = match &seen {
        Some(seen) => compare_ledger(state.store(), seen)? != WitnessComparison::Extends,
        None => recorded_key_in_store(state)?.is_some(),
    };
    if !is_needed {
        return Err(RuntimeError::input("the ledger here extends what the witness has seen: there is nothing to take back into service"));
    }
    let entry = LedgerEntry::Resync { by: host::actor().into(), reason: reason.into(), size, root, at_ms: host::now_ms() };
    wait_for(state.commit(Batch::from(StoreWrite::decision(entry))))?;
    attest_locked(state, &load_or_create_signer(state)?, witness, AttestMode::Restart)?;
    Ok(size)
}

/// What an entry says of what somebody had seen: that a person took an older copy back into service in its place. Then the same key signs both, and
/// whoever holds the one that was given up is to learn who did that, when and why.
pub fn describe_resync(index: u64, entry: &LedgerEntry, seen: &Checkpoint) -> Option<String> {
    let LedgerEntry::Resync { by, reason, size, root: Some(root), at_ms } = entry else { return None };
    if *size != seen.size || **root != seen.root.to_string() {
        return None;
    }
    let (by, when, reason) = (files::escape_hidden(by), timestamp::format_timestamp(at_ms / 1000), files::escape_hidden(reason));
    Some(format!("; entry {index} says that {by} took an older copy into service in its place at {when}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_checkpoint(size: u64, word: &[u8]) -> Checkpoint {
        Checkpoint { origin: "log".into(), size, root: LogHash::of_leaf(word) }
    }

    /// A turn that nobody gives back is told with its file, and is not waited for without end.
    #[test]
    fn witness_lock_has_a_timeout() {
        let room = tempfile::tempdir().expect("a directory");
        let witness = room.path().join("witness");
        let theirs = lock_witness(&witness, Duration::ZERO).unwrap_or_else(|stop| panic!("{}", stop.to_string()));
        let stop = lock_witness(&witness, Duration::from_millis(1)).map(drop).expect_err("it is theirs");
        let told = stop.to_string();
        assert!(told.contains("is being told by somebody else") && told.contains("witness.lock"), "{told}");
        drop(theirs);
        // Whoever lost patience may get it for a moment, and gives it back.
        assert!(lock_witness(&witness, LOCK_WAIT_MAX).is_ok(), "they gave it back");
    }

    /// Whoever opens one to write waits for somebody who reads.
    #[test]
    fn refuses_a_pipe_in_place_of_the_lock_file() {
        let room = tempfile::tempdir().expect("a directory");
        let made = std::process::Command::new("mkfifo").arg(room.path().join("witness.lock")).status();
        assert!(made.expect("mkfifo runs").success());
        let stop = lock_witness(&room.path().join("witness"), LOCK_WAIT_MAX).map(drop).expect_err("it is no lock");
        assert!(stop.to_string().contains("is not a regular file"), "{}", stop.to_string());
    }

    #[test]
    fn describes_a_resync_only_for_the_checkpoint_given_up() {
        let entry = |root: Option<&str>| LedgerEntry::Resync {
            by: "ann".into(),
            reason: "the disk was lost".into(),
            size: 3,
            root: root.map(Into::into),
            at_ms: 1_794_700_800_000,
        };
        let own = sample_checkpoint(3, b"a");
        let told = describe_resync(7, &entry(Some(&own.root.to_string())), &own).expect("it is that one");
        assert_eq!(told, "; entry 7 says that ann took an older copy into service in its place at 2026-11-15T00:00:00Z: the disk was lost");
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
