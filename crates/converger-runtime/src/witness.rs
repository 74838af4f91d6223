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

use converger_core::evidence::Entry;
use converger_core::failure::Code;
use converger_core::moment;
use converger_ledger::{Checkpoint, Hash, Hashes, Signer, Tile, TiledHashes, Tree, Verifier, root_at};
use converger_store::{Batch, Head, Looked, Store as _, StoreError, Write};

use crate::error::RuntimeError;
use crate::files::{OwnFile, Replaces};
use crate::ledger_key::{NamedKeys, key_in, named, named_in, signer, unnamed};
use crate::ledger_reader::{broken, damaged};
use crate::state_dir::{StateDirectory, store_error, unreadable_error};
use crate::{files, host};

/// How a ledger stands to what a witness has seen of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is the same, or has grown since.
    Extends,
    /// It is shorter: it was put back from an older copy.
    Shorter,
    /// It is another one: the two differ in what the witness has seen.
    Other,
}

/// `root` is that of the ledger when it was as long as the witness has seen it; none where it is not so long.
fn standing(seen: &Checkpoint, own: Head, root: Option<Hash>) -> Standing {
    match root {
        None => Standing::Shorter,
        Some(_) if own.size < seen.size => Standing::Shorter,
        Some(root) if root == seen.root => Standing::Extends,
        Some(_) => Standing::Other,
    }
}

/// Whether a state directory may be written to. Where no witness is named, nobody can tell.
///
/// # Errors
/// The witness has seen more of the ledger, or another one, or cannot be asked.
pub fn check_ledger(directory: &Path, witness: Option<&Path>) -> Result<(), RuntimeError> {
    let Some(path) = witness else { return Ok(()) };
    is_apart(directory, path)?;
    let Some(seen) = read(path, |bytes| verifier(directory, named(directory)?, bytes))? else {
        return if named(directory)?.is_none() { Ok(()) } else { Err(forgotten(directory, path)) };
    };
    extends(found(directory, &seen)?, &seen, directory)
}

/// Whether a ledger goes on from what the witness has seen of it.
fn extends(standing: Standing, seen: &Checkpoint, directory: &Path) -> Result<(), RuntimeError> {
    let shown = files::shown(directory);
    let help = "find out who put it there; look with `converger ledger tail` and `verify`, and take it back into service with `converger ledger resync --reason \"...\"`";
    match standing {
        Standing::Extends => Ok(()),
        Standing::Shorter => {
            let text = format!("{shown} was put back from an older copy: the witness has seen {} entries of its ledger", seen.size);
            Err(broken(text).with_help(help))
        }
        Standing::Other => {
            let text =
                format!("the ledger in {shown} is not the one that the witness has seen: they differ in the first {} entries", seen.size);
            Err(broken(text).with_help(help))
        }
    }
}

/// A witness that lies in the state directory is put back together with what it guards, or is one of its files.
///
/// # Errors
/// The witness cannot be used, or has seen another ledger.
pub fn is_apart(directory: &Path, path: &Path) -> Result<(), RuntimeError> {
    let (Ok(state), Ok(room)) = (directory.canonicalize(), room(path).canonicalize()) else { return Ok(()) };
    if !room.starts_with(&state) && path.canonicalize().map_or(true, |path| !path.starts_with(&state)) {
        return Ok(());
    }
    let text = format!("the witness {} lies in the state directory {}", files::shown(path), files::shown(directory));
    let help =
        "name a file on other storage with `witness` in `[ledger]`: whoever puts the state back from an older copy would put it back too";
    Err(RuntimeError::input(text).with_code(Code::ConfigInvalid).with_help(help))
}

/// The file of the witness is not there, and the ledger was signed before: it may have been told, and its storage may not be mounted.
fn forgotten(directory: &Path, path: &Path) -> RuntimeError {
    let text = format!("the witness {} is not there, and the ledger in {} was signed before", files::shown(path), files::shown(directory));
    RuntimeError::failed(text)
        .with_help("mount its storage; a witness that is new is begun with `converger ledger resync --reason \"...\"`")
        .with_code(Code::JournalUnreadable)
}

fn found(directory: &Path, seen: &Checkpoint) -> Result<Standing, RuntimeError> {
    let Some(store) = Looked::open(directory).map_err(|error| unreadable_error(&error))? else { return Ok(Standing::Shorter) };
    let own = store.heads().map_err(|error| store_error(&error))?.all;
    standing_by(seen, own, |tile| store.hashes(tile))
}

/// The same of the store that is open.
fn found_in(state: &StateDirectory, seen: &Checkpoint) -> Result<Standing, RuntimeError> {
    let own = state.wait(state.store().heads()).map_err(|error| store_error(&error))?.all;
    standing_by(seen, own, |tile| state.wait(state.store().hashes(tile)))
}

/// How a ledger stands to what was seen of it, by tiles that a function reads.
fn standing_by(
    seen: &Checkpoint,
    own: Head,
    tile: impl Fn(Tile) -> Result<Option<Vec<Hash>>, StoreError>,
) -> Result<Standing, RuntimeError> {
    if own.size < seen.size {
        return Ok(standing(seen, own, None));
    }
    Ok(standing(seen, own, Some(root_at(&mut hashes(own.size, tile), seen.size)?)))
}

/// The roots of subtrees of a ledger of this size.
fn hashes(size: u64, tile: impl Fn(Tile) -> Result<Option<Vec<Hash>>, StoreError>) -> impl Hashes<Error = RuntimeError> {
    TiledHashes::new(size, move |wanted| {
        let found = tile(wanted).map_err(|error| damaged(&error))?;
        found.ok_or_else(|| broken(format!("{} is missing", wanted.path())))
    })
}

/// A checkpoint is a few lines; more is none.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// What the witness has seen, if it has seen something. The checkpoint is believed under the key that is given for its bytes.
fn read(path: &Path, verifier: impl FnOnce(&[u8]) -> Result<Verifier, RuntimeError>) -> Result<Option<Checkpoint>, RuntimeError> {
    let shown = files::shown(path);
    let bytes = match files::read_at_most(path, CHECKPOINT_BYTES_MAX).map(|text| text.bytes) {
        // The storage of the witness is there, and the file is not: it has seen nothing yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound && room(path).is_dir() => return Ok(None),
        read => read.map_err(|error| unasked(path, &error))?,
    };
    let (verifier, other) = (verifier(&bytes)?, "keeps a checkpoint of another ledger, or one that was changed");
    Checkpoint::verify(&bytes, &verifier).map(Some).map_err(|error| {
        let what = if bytes.is_empty() { "is empty".to_owned() } else { format!("{other}: {error}") };
        broken(format!("the witness {shown} {what}")).with_help(
            "name the witness of this state directory in `[ledger]`, or find out who wrote there; once that is known, move the file away and \
             begin it anew with `converger ledger resync --reason \"...\"`",
        )
    })
}

/// The key of the ledger here, which may name one. Where there is no ledger left, it is told as put back from a copy of before it began.
///
/// A checkpoint from before the key was replaced is believed under the key of that time, which only the entry of the replacement tells.
fn verifier(directory: &Path, named: Option<NamedKeys>, bytes: &[u8]) -> Result<Verifier, RuntimeError> {
    // A copy of before the first signature has the key, and no entry that names it.
    // Nothing is signed here, so that the secret may be elsewhere.
    let size = Checkpoint::unverified(bytes).map_or(u64::MAX, |checkpoint| checkpoint.size);
    let of_ledger = named.and_then(|named| Verifier::parse(named.at(size)).ok());
    let own = if of_ledger.is_some() { of_ledger } else { key_in(directory)?.map(|signer| signer.verifier()) };
    match own {
        Some(verifier) => Ok(verifier),
        None if Checkpoint::unverified(bytes).is_err() => Err(broken("the file that is named as `witness` is no checkpoint").with_help(
            "name a file of its own on other storage in `[ledger]`: where there is none, the next command that writes makes it",
        )),
        None => {
            let size = Checkpoint::unverified(bytes).map_or(0, |checkpoint| checkpoint.size);
            let shown = files::shown(directory);
            Err(broken(format!("{shown} has no ledger that was signed, and its witness has seen one of {size} entries"))
                .with_help("put the state directory back, or name another witness in `[ledger]`"))
        }
    }
}

fn room(path: &Path) -> &Path {
    path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a path is the witness, or the file that those who tell it take turns by.
pub fn keeps(witness: &Path, path: &Path) -> bool {
    let is_named = |own: &Path| files::are_one(path, own) || path == own;
    is_named(witness) || is_named(&lock_of(witness))
}

/// Who cannot be asked has not agreed.
fn unasked(path: &Path, error: &io::Error) -> RuntimeError {
    RuntimeError::failed(format!("the witness {} cannot be asked: {error}", files::shown(path)))
        .with_help("nothing is written without it: make its storage reachable, or take `witness` out of `[ledger]`")
        .with_code(Code::JournalUnreadable)
}

/// How long somebody else may have their turn: telling takes no longer than reading and writing one small file on slow storage.
const TURN_MAX: Duration = Duration::from_secs(30);

/// The file that those who tell a witness take turns by.
fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// A turn at the witness, as long as the file is open. It is opened for writing, without which storage over a network locks nothing, and for
/// reading, because a pipe that is opened for writing alone waits for somebody who reads.
///
/// Whoever hangs with their turn, or a server that lost who had it, would otherwise keep everybody waiting for ever.
fn turn(path: &Path, patience: Duration) -> Result<fs::File, RuntimeError> {
    let name = lock_of(path);
    let opened = fs::File::options().create(true).read(true).write(true).truncate(false).mode(0o600).open(&name);
    let file = opened.map_err(|error| unasked(path, &error))?;
    if !file.metadata().is_ok_and(|there| there.is_file()) {
        return Err(unasked(path, &io::Error::other(format!("{} is not a regular file", files::shown(&name)))));
    }
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(error)) => Err(unasked(path, &error)),
        Err(TryLockError::WouldBlock) => {
            let ours = waited(file, patience).map_err(|error| unasked(path, &error))?;
            ours.ok_or_else(|| kept_waiting(path, &name, patience))
        }
    }
}

/// The file once its lock is ours; none where that takes too long. The system wakes whoever waits, so that nobody asks again and again. A thread that
/// is left behind ends with the process, and gives back at once what it gets before that.
fn waited(file: fs::File, patience: Duration) -> io::Result<Option<fs::File>> {
    let (sender, receiver) = mpsc::channel();
    let wait = move || drop(sender.send(file.lock().map(|()| file)));
    thread::Builder::new().name("witness-turn".into()).spawn(wait)?;
    receiver.recv_timeout(patience).ok().transpose()
}

fn kept_waiting(path: &Path, lock: &Path, patience: Duration) -> RuntimeError {
    let (witness, lock, secs) = (files::shown(path), files::shown(lock), patience.as_secs());
    RuntimeError::failed(format!("the witness {witness} is being told by somebody else, who has had {lock} for {secs} s"))
        .with_help("find out who has that file open, and whether they hang; what is recorded stays so, and the next command that writes tells the witness")
        .with_code(Code::FileUnwritable)
}

/// What becomes of what the witness has seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// It goes on from there, and never back.
    On,
    /// A person began anew.
    Anew,
}

/// Whoever looked earlier may come later, also with another copy of the directory. They take turns by a file beside the witness: it is what all
/// of them have.
pub(crate) fn attest(state: &StateDirectory, path: &Path) -> Result<(), RuntimeError> {
    begin(state, path)?;
    let signer = signer(state)?;
    let _turn = turn(path, TURN_MAX)?;
    tell_in_turn(state, &signer, path, Telling::On)
}

/// A witness that is new is told that there is a ledger before that names its key: whoever dies in between would leave a ledger that was signed and a
/// witness that is not there, which is what a witness looks like whose storage is gone.
fn begin(state: &StateDirectory, path: &Path) -> Result<(), RuntimeError> {
    if named_in(state)?.is_some() {
        return Ok(());
    }
    let signer = unnamed(state)?;
    let _turn = turn(path, TURN_MAX)?;
    if read(path, |_| Ok(signer.verifier()))?.is_some() {
        return Ok(());
    }
    let nothing = Checkpoint { origin: signer.verifier().name().to_owned(), size: 0, root: Tree::default().root() };
    write(path, &nothing.sign(&signer))
}

fn write(path: &Path, text: &str) -> Result<(), RuntimeError> {
    files::replace(path, Replaces::Own(OwnFile::Checkpoint), |file| file.write_all(text.as_bytes())).map_err(|error| {
        RuntimeError::failed(format!("the witness {} cannot be told: {error}", files::shown(path)))
            .with_help("what was done stays done and is recorded; the witness is told by the next command that writes")
            .with_code(Code::FileUnwritable)
    })
}

fn tell_in_turn(state: &StateDirectory, signer: &Signer, path: &Path, telling: Telling) -> Result<(), RuntimeError> {
    let heads = state.wait(state.store().heads()).map_err(|error| store_error(&error))?;
    let head = heads.durable;
    let mut hashes = hashes(heads.all.size, |tile| state.wait(state.store().hashes(tile)));
    if root_at(&mut hashes, head.size)? != head.root {
        return Err(broken(format!(
            "the hashes over the first {} entries do not lead to the recorded root: the witness is not told",
            head.size
        )));
    }
    let text = Checkpoint { origin: signer.verifier().name().to_owned(), size: head.size, root: head.root }.sign(signer);
    if telling == Telling::On
        && let Some(seen) = read(path, |bytes| verifier(state.path(), named_in(state)?, bytes))?
    {
        // Another copy of the directory may have told it meanwhile.
        let root = if seen.size > heads.all.size { None } else { Some(root_at(&mut hashes, seen.size)?) };
        extends(standing(&seen, heads.all, root), &seen, state.path())?;
        if seen.size > head.size {
            return Ok(());
        }
    }
    write(path, &text)
}

/// A person takes a state directory back into service. From the first look to the last word it is their turn: what another copy told the witness in
/// between would be neither weighed nor named.
///
/// # Errors
/// The witness cannot be used, or has seen another ledger.
pub fn resync(state: &StateDirectory, witness: &Path, reason: &str) -> Result<u64, RuntimeError> {
    let _turn = turn(witness, TURN_MAX)?;
    let seen = read(witness, |bytes| verifier(state.path(), named_in(state)?, bytes))?;
    let (size, root) = seen.as_ref().map_or((0, None), |seen| (seen.size, Some(seen.root.to_string().into())));
    // A witness that is new, or whose file is gone, is begun anew by a person too.
    let is_needed = match &seen {
        Some(seen) => found_in(state, seen)? != Standing::Extends,
        None => named_in(state)?.is_some(),
    };
    if !is_needed {
        return Err(RuntimeError::input("the ledger here extends what the witness has seen: there is nothing to take back into service"));
    }
    let entry = Entry::Resync { by: host::actor().into(), reason: reason.into(), size, root, at_ms: host::now_ms() };
    state.wait(state.commit(Batch::from(Write::decision(entry))))?;
    tell_in_turn(state, &signer(state)?, witness, Telling::Anew)?;
    Ok(size)
}

/// What an entry says of what somebody had seen: that a person took an older copy back into service in its place. Then the same key signs both, and
/// whoever holds the one that was given up is to learn who did that, when and why.
pub fn given_up(index: u64, entry: &Entry, seen: &Checkpoint) -> Option<String> {
    let Entry::Resync { by, reason, size, root: Some(root), at_ms } = entry else { return None };
    if *size != seen.size || **root != seen.root.to_string() {
        return None;
    }
    let (by, when, reason) = (files::plain(by), moment::written(at_ms / 1000), files::plain(reason));
    Some(format!("; entry {index} says that {by} took an older copy into service in its place at {when}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(size: u64, word: &[u8]) -> Checkpoint {
        Checkpoint { origin: "log".into(), size, root: Hash::of_leaf(word) }
    }

    /// A turn that nobody gives back is told with its file, and is not waited for without end.
    #[test]
    fn a_turn_is_waited_for_as_long_as_there_is_patience() {
        let room = tempfile::tempdir().expect("a directory");
        let witness = room.path().join("witness");
        let theirs = turn(&witness, Duration::ZERO).unwrap_or_else(|stop| panic!("{}", stop.to_string()));
        let stop = turn(&witness, Duration::from_millis(1)).map(drop).expect_err("it is theirs");
        let told = stop.to_string();
        assert!(told.contains("is being told by somebody else") && told.contains("witness.lock"), "{told}");
        drop(theirs);
        // Whoever lost patience may get it for a moment, and gives it back.
        assert!(turn(&witness, TURN_MAX).is_ok(), "they gave it back");
    }

    /// Whoever opens one to write waits for somebody who reads.
    #[test]
    fn a_pipe_in_the_place_of_the_lock_is_no_turn_and_is_not_waited_at() {
        let room = tempfile::tempdir().expect("a directory");
        let made = std::process::Command::new("mkfifo").arg(room.path().join("witness.lock")).status();
        assert!(made.expect("mkfifo runs").success());
        let stop = turn(&room.path().join("witness"), TURN_MAX).map(drop).expect_err("it is no lock");
        assert!(stop.to_string().contains("is not a regular file"), "{}", stop.to_string());
    }

    #[test]
    fn only_what_was_given_up_is_told_as_that() {
        let entry = |root: Option<&str>| Entry::Resync {
            by: "ann".into(),
            reason: "the disk was lost".into(),
            size: 3,
            root: root.map(Into::into),
            at_ms: 1_794_700_800_000,
        };
        let own = seen(3, b"a");
        let told = given_up(7, &entry(Some(&own.root.to_string())), &own).expect("it is that one");
        assert_eq!(told, "; entry 7 says that ann took an older copy into service in its place at 2026-11-15T00:00:00Z: the disk was lost");
        assert_eq!(given_up(7, &entry(None), &own), None);
        assert_eq!(given_up(7, &entry(Some(&own.root.to_string())), &seen(4, b"a")), None);
        assert_eq!(given_up(7, &entry(Some(&own.root.to_string())), &seen(3, b"b")), None);
    }

    #[test]
    fn a_ledger_extends_what_was_seen_or_is_not_written_to() {
        let own = |size| Head { size, root: Hash::of_leaf(b"now") };
        assert_eq!(standing(&seen(3, b"a"), own(3), Some(Hash::of_leaf(b"a"))), Standing::Extends);
        assert_eq!(standing(&seen(3, b"a"), own(9), Some(Hash::of_leaf(b"a"))), Standing::Extends);
        assert_eq!(standing(&seen(3, b"a"), own(9), Some(Hash::of_leaf(b"b"))), Standing::Other);
        assert_eq!(standing(&seen(3, b"a"), own(2), None), Standing::Shorter);
        assert_eq!(standing(&seen(3, b"a"), own(2), Some(Hash::of_leaf(b"a"))), Standing::Shorter);
    }
}
