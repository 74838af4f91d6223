//! The witness: a file on other storage that keeps the last checkpoint, so that a state directory which was put back from an older copy is noticed
//! before anything is done with it (C8).
//!
//! Whoever writes asks it first and tells it last. A ledger that is shorter than the witness has seen, or another one, is only looked at until a person
//! takes it back into service with a recorded reason.
//!
//! What never enters: mending either of the two.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use converger_core::evidence::Entry;
use converger_core::failure::Code;
use converger_ledger::{Checkpoint, Hash, TiledHashes, Verifier, root_at};
use converger_store::{Batch, Head, Looked, Store as _, Write};

use super::Stop;
use super::ledger::{broken, key_in, named, signer};
use super::memory::{self, Memory};
use crate::{files, state};

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
pub(super) fn guard(directory: &Path, witness: Option<&Path>) -> Result<(), Stop> {
    let Some(path) = witness else { return Ok(()) };
    is_apart(directory, path)?;
    let Some(seen) = read(directory, path)? else {
        return if named(directory)?.is_none() { Ok(()) } else { Err(forgotten(directory, path)) };
    };
    extends(found(directory, &seen)?, &seen, directory)
}

/// Whether a ledger goes on from what the witness has seen of it.
fn extends(standing: Standing, seen: &Checkpoint, directory: &Path) -> Result<(), Stop> {
    let shown = files::shown(directory);
    let help = "find out who put it there; look with `converger ledger tail` and `verify`, and take it back into service with `converger ledger resync --reason \"...\"`";
    match standing {
        Standing::Extends => Ok(()),
        Standing::Shorter => {
            let text = format!("{shown} was put back from an older copy: the witness has seen {} entries of its ledger", seen.size);
            Err(broken(text).help(help))
        }
        Standing::Other => {
            let text =
                format!("the ledger in {shown} is not the one that the witness has seen: they differ in the first {} entries", seen.size);
            Err(broken(text).help(help))
        }
    }
}

/// A witness that lies in the state directory is put back together with what it guards, or is one of its files.
pub(super) fn is_apart(directory: &Path, path: &Path) -> Result<(), Stop> {
    let (Ok(state), Ok(room)) = (directory.canonicalize(), room(path).canonicalize()) else { return Ok(()) };
    if !room.starts_with(&state) && path.canonicalize().map_or(true, |path| !path.starts_with(&state)) {
        return Ok(());
    }
    let text = format!("the witness {} lies in the state directory {}", files::shown(path), files::shown(directory));
    let help =
        "name a file on other storage with `witness` in `[ledger]`: whoever puts the state back from an older copy would put it back too";
    Err(Stop::input(text).code(Code::ConfigInvalid).help(help))
}

/// The file of the witness is not there, and the ledger was signed before: it may have been told, and its storage may not be mounted.
fn forgotten(directory: &Path, path: &Path) -> Stop {
    let text = format!("the witness {} is not there, and the ledger in {} was signed before", files::shown(path), files::shown(directory));
    Stop::failed(text)
        .help("mount its storage; a witness that is new is begun with `converger ledger resync --reason \"...\"`")
        .code(Code::JournalUnreadable)
}

fn found(directory: &Path, seen: &Checkpoint) -> Result<Standing, Stop> {
    let Some(store) = Looked::open(directory).map_err(|error| memory::unreadable(&error))? else { return Ok(Standing::Shorter) };
    let own = store.heads().map_err(|error| memory::failed(&error))?.all;
    if own.size < seen.size {
        return Ok(standing(seen, own, None));
    }
    let mut hashes = TiledHashes::new(own.size, |tile| {
        let found = store.hashes(tile).map_err(|error| memory::failed(&error))?;
        found.ok_or_else(|| broken(format!("{} is missing", tile.path())))
    });
    Ok(standing(seen, own, Some(root_at(&mut hashes, seen.size)?)))
}

/// A checkpoint is a few lines; more is none.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// What the witness has seen, if it has seen something.
fn read(directory: &Path, path: &Path) -> Result<Option<Checkpoint>, Stop> {
    let shown = files::shown(path);
    let bytes = match files::read_at_most(path, CHECKPOINT_BYTES_MAX).map(|text| text.bytes) {
        // The storage of the witness is there, and the file is not: it has seen nothing yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound && room(path).is_dir() => return Ok(None),
        read => read.map_err(|error| unasked(path, &error))?,
    };
    let (verifier, other) = (verifier(directory, &bytes)?, "keeps a checkpoint of another ledger, or one that was changed");
    Checkpoint::verify(&bytes, &verifier).map(Some).map_err(|error| {
        let what = if bytes.is_empty() { "is empty".to_owned() } else { format!("{other}: {error}") };
        broken(format!("the witness {shown} {what}")).help(
            "name the witness of this state directory in `[ledger]`, or find out who wrote there; once that is known, move the file away and \
             begin it anew with `converger ledger resync --reason \"...\"`",
        )
    })
}

/// The key of the ledger here. Where there is no ledger left, it is told as put back from a copy of before it began.
fn verifier(directory: &Path, bytes: &[u8]) -> Result<Verifier, Stop> {
    // A copy of before the first signature has the key, and no entry that names it.
    // Nothing is signed here, so that the secret may be elsewhere.
    let of_ledger = named(directory)?.and_then(|named| Verifier::parse(&named).ok());
    let own = if of_ledger.is_some() { of_ledger } else { key_in(directory)?.map(|signer| signer.verifier()) };
    match own {
        Some(verifier) => Ok(verifier),
        None => {
            let size = Checkpoint::unverified(bytes).map_or(0, |checkpoint| checkpoint.size);
            let shown = files::shown(directory);
            Err(broken(format!("{shown} has no ledger that was signed, and its witness has seen one of {size} entries"))
                .help("put the state directory back, or name another witness in `[ledger]`"))
        }
    }
}

fn room(path: &Path) -> &Path {
    path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Who cannot be asked has not agreed.
fn unasked(path: &Path, error: &io::Error) -> Stop {
    Stop::failed(format!("the witness {} cannot be asked: {error}", files::shown(path)))
        .help("nothing is written without it: make its storage reachable, or take `witness` out of `[ledger]`")
        .code(Code::JournalUnreadable)
}

/// Tells the witness how long the ledger is now, as far as it is durable.
pub(super) fn attest(memory: &Memory, witness: Option<&Path>) -> Result<(), Stop> {
    witness.map_or(Ok(()), |path| tell(memory, path, Telling::On))
}

/// A turn at the witness, as long as the file is open. It is opened for writing, without which storage over a network locks nothing.
fn turn(path: &Path) -> io::Result<fs::File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let file = fs::File::options().create(true).write(true).truncate(false).mode(0o600).open(name)?;
    file.lock().map(|()| file)
}

/// What becomes of what the witness has seen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    /// It goes on from there, and never back.
    On,
    /// A person began anew.
    Anew,
}

fn tell(memory: &Memory, path: &Path, telling: Telling) -> Result<(), Stop> {
    let signer = signer(memory)?;
    // Whoever looked earlier may come later, also with another copy of the directory. One after the other, by a file beside the witness: it is
    // what all of them have.
    let _turn = turn(path).map_err(|error| unasked(path, &error))?;
    let heads = memory.wait(memory.store.heads()).map_err(|error| memory::failed(&error))?;
    let head = heads.durable;
    let mut hashes = TiledHashes::new(heads.all.size, |tile| {
        let found = memory.wait(memory.store.hashes(tile)).map_err(|error| memory::failed(&error))?;
        found.ok_or_else(|| broken(format!("{} is missing", tile.path())))
    });
    if root_at(&mut hashes, head.size)? != head.root {
        return Err(broken(format!(
            "the hashes over the first {} entries do not lead to the recorded root: the witness is not told",
            head.size
        )));
    }
    let text = Checkpoint { origin: signer.verifier().name().to_owned(), size: head.size, root: head.root }.sign(&signer);
    if telling == Telling::On
        && let Some(seen) = read(&memory.directory, path)?
    {
        // Another copy of the directory may have told it meanwhile.
        let root = if seen.size > heads.all.size { None } else { Some(root_at(&mut hashes, seen.size)?) };
        extends(standing(&seen, heads.all, root), &seen, &memory.directory)?;
        if seen.size > head.size {
            return Ok(());
        }
    }
    files::replace(path, |file| file.write_all(text.as_bytes())).map_err(|error| {
        Stop::failed(format!("the witness {} cannot be told: {error}", files::shown(path)))
            .help("what was done stays done and is recorded; the witness is told by the next command that writes")
            .code(Code::FileUnwritable)
    })
}

/// A person takes a state directory back into service.
pub(super) fn resync(memory: &Memory, witness: &Path, reason: &str) -> Result<u64, Stop> {
    let seen = read(&memory.directory, witness)?;
    let (size, root) = seen.as_ref().map_or((0, None), |seen| (seen.size, Some(seen.root.to_string().into())));
    // A witness that is new, or whose file is gone, is begun anew by a person too.
    let is_needed = match &seen {
        Some(seen) => found(&memory.directory, seen)? != Standing::Extends,
        None => named(&memory.directory)?.is_some(),
    };
    if !is_needed {
        return Err(Stop::input("the ledger here extends what the witness has seen: there is nothing to take back into service"));
    }
    let entry = Entry::Resync { by: state::actor().into(), reason: reason.into(), size, root, at_ms: state::now_ms() };
    let _ = memory.commit(Batch::from(Write::decision(entry)))?;
    tell(memory, witness, Telling::Anew)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(size: u64, word: &[u8]) -> Checkpoint {
        Checkpoint { origin: "log".into(), size, root: Hash::of_leaf(word) }
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
