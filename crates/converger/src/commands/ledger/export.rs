//! The ledger as a directory that any static file server can serve: tiles, entries and checkpoint as C2SP tlog-tiles has them, and beside them
//! what the entries name by digest.
//!
//! What is full never changes and is written once; the checkpoint comes last, so that an export which is interrupted is the older one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use converger_core::artifact::Digest;
use converger_core::evidence::PrunedSet;
use converger_core::failure::FailureCode;
use converger_ledger::{Checkpoint, EntryBundle, LogHash, NoteVerifier, TILE_WIDTH, Tile};
use converger_runtime::ledger_key::NamedKeys;
use converger_runtime::{LedgerReader, witness};
use converger_store::key_named_in;

use super::super::CommandError;
use super::{SignedLedger, broken};
use crate::files::{self, Replaces};

/// What an export has.
pub(super) struct ExportSummary {
    pub(super) entries: u64,
    /// Files that entries name by digest.
    pub(super) blobs: usize,
}

/// Writes the files. Nothing, where what entries name is not all there.
pub(super) fn write_export(
    book: &LedgerReader,
    signed: &SignedLedger,
    directory: &Path,
    overwrite: bool,
) -> Result<Option<ExportSummary>, CommandError> {
    let checkpoint = &signed.checkpoint;
    check_extends(book, directory, signed)?;
    check_no_foreign_files(directory)?;
    files::remove_stale_temporaries(directory, DEPTH_MAX).map_err(|error| export_error(directory, directory, &error))?;
    let directory = &Directory { path: directory, overwrite };
    for tile in Tile::tiles_of_log(checkpoint.size) {
        let hashes = book.tile_hashes(tile)?;
        directory.write_file(&tile.path(), &hashes.iter().flat_map(|hash| hash.0).collect::<Vec<u8>>())?;
        if tile.level == 0 {
            directory.write_file(&tile.entries_path(), &entry_bundle(book, tile, &hashes)?)?;
        }
    }
    let Some(kept) = write_blobs(book, directory, checkpoint.size)? else { return Ok(None) };
    let is_ours = |key: &str| keys(book, checkpoint.size).is_ok_and(|keys| keys.is_some_and(|keys| keys.has(key)));
    let there = fs::read_to_string(directory.path.join("log.vkey")).is_ok_and(|there| is_ours(there.trim_end()));
    Directory { overwrite: overwrite || there, ..*directory }
        .write_file("log.vkey", format!("{}\n", signed.signer.verifier()).as_bytes())?;
    // What was there is an earlier checkpoint of this ledger.
    Directory { overwrite: true, ..*directory }.write_file("checkpoint", signed.text.as_bytes())?;
    Ok(Some(ExportSummary { entries: checkpoint.size, blobs: kept }))
}

/// An export is for everybody: what else lies in its directory would be given away with it.
fn check_no_foreign_files(directory: &Path) -> Result<(), CommandError> {
    let unread = |error: io::Error| export_error(directory, directory, &error);
    let found = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(unread)?,
    };
    for found in found {
        let found = found.map_err(unread)?;
        let name = found.file_name();
        // A link leads out of it, and what is written there is not part of it.
        let is_link = found.file_type().map_err(unread)?.is_symlink();
        let is_ours = !is_link && (["blob", "checkpoint", "log.vkey", "tile"].iter().any(|own| name == *own) || files::is_left(&name));
        if !is_ours {
            let (shown, name) = (files::display_path(directory), files::display_path(Path::new(&name)));
            let stop =
                CommandError::input_error(format!("{shown} has something else in it ({name}), which would be given away with the export"));
            return Err(stop
                .with_code(FailureCode::FileTaken)
                .with_help("name a directory that is empty, not there, or an export of this ledger"));
        }
    }
    Ok(())
}

/// So deep lie the files of an export.
const DEPTH_MAX: usize = 8;

/// A checkpoint is a few lines; more is none.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// A directory that has another log, or a longer one, is not written over: one of the two is not what it seems.
fn check_extends(book: &LedgerReader, directory: &Path, signed: &SignedLedger) -> Result<(), CommandError> {
    let new = &signed.checkpoint;
    let path = directory.join("checkpoint");
    let old = match files::read_at_most(&path, CHECKPOINT_BYTES_MAX).map(|text| text.bytes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(|error| {
            CommandError::failure(format!("cannot read {}: {error}", files::display_path(&path))).with_code(FailureCode::FileUnreadable)
        })?,
    };
    let shown = files::display_path(directory);
    // An export from before the key was replaced is signed with the key of that time.
    let size = Checkpoint::parse_unverified(&old).map_or(u64::MAX, |old| old.size);
    let then = keys(book, new.size)?.and_then(|keys| NoteVerifier::parse(keys.at(size)).ok());
    let old = Checkpoint::verify(&old, &then.unwrap_or_else(|| signed.signer.verifier())).map_err(|error| {
        CommandError::input_error(format!("{shown} holds something else: {error}"))
            .with_code(FailureCode::FileTaken)
            .with_help("name a directory that is empty or not there")
    })?;
    if old.size > new.size {
        let text = format!("{shown} has {} entries, and the ledger here {}: it was put back from an older copy", old.size, new.size);
        return Err(broken(format!("{text}{}", find_resync(book, new.size, &old)?)));
    }
    let root = converger_ledger::root_of_size(&mut book.subtree_hashes(new.size), old.size)?;
    if root == old.root {
        return Ok(());
    }
    let text = format!("{shown} and the ledger here differ within their first {} entries", old.size);
    Err(broken(format!("{text}{}", find_resync(book, new.size, &old)?)))
}

/// The keys that the entries name.
fn keys(book: &LedgerReader, size: u64) -> Result<Option<NamedKeys>, CommandError> {
    let mut named = Vec::new();
    book.for_each_entry::<CommandError>(0, size, |index, bytes| {
        named.extend(key_named_in(bytes).map(|key| (index, key.into())));
        Ok(())
    })?;
    Ok(NamedKeys::of(named))
}

/// Who gave up what was exported before, where an entry says so.
fn find_resync(book: &LedgerReader, size: u64, old: &Checkpoint) -> Result<String, CommandError> {
    let mut found = None;
    book.for_each_entry::<CommandError>(0, size, |index, bytes| {
        if found.is_none() {
            found = witness::describe_resync(index, &book.parse_entry(index, bytes)?, old);
        }
        Ok(())
    })?;
    Ok(found.unwrap_or_default())
}

fn entry_bundle(book: &LedgerReader, tile: Tile, hashes: &[LogHash]) -> Result<Vec<u8>, CommandError> {
    let mut bundle = EntryBundle::default();
    let first = tile.index * TILE_WIDTH;
    book.for_each_entry::<CommandError>(first, first + u64::from(tile.width), |index, entry| {
        let at = usize::try_from(index - first).unwrap_or(usize::MAX);
        // What does not lead to the root is not given to strangers as if it did.
        if hashes.get(at) != Some(&LogHash::of_leaf(entry)) || !bundle.push(entry) {
            return Err(broken(format!("entry {index} is not the one that the hashes above it are of")));
        }
        Ok(())
    })?;
    Ok(bundle.into_bytes())
}

/// Everything that entries name by digest and that is still kept. Nothing, where something is not there that no entry lets go.
fn write_blobs(book: &LedgerReader, directory: &Directory<'_>, size: u64) -> Result<Option<usize>, CommandError> {
    let (mut named, mut let_go) = (BTreeSet::new(), PrunedSet::default());
    book.for_each_entry::<CommandError>(0, size, |index, bytes| {
        let entry = book.parse_entry(index, bytes)?;
        named.extend(entry.named_digests());
        let_go.apply_entry(&entry);
        Ok(())
    })?;
    let mut kept = 0;
    for digest in named {
        match book.blob(digest)? {
            Some(bytes) => directory.write_file(&blob_path(digest), &bytes)?,
            None if let_go.contains(&digest) => continue,
            None => return Ok(None),
        }
        kept += 1;
    }
    Ok(Some(kept))
}

/// Where something lies that is named by its digest.
pub(in super::super) fn blob_path(digest: Digest) -> String {
    format!("blob/{}", digest.to_string().replace(':', "/"))
}

/// The directory that is written to.
struct Directory<'d> {
    path: &'d Path,
    /// A person said that files of others may be replaced.
    overwrite: bool,
}

impl Directory<'_> {
    /// Writes a file, unless it is there with these bytes. What a name of an export stands for never changes, so that a file with other bytes was
    /// damaged, or is somebody else's.
    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), CommandError> {
        let path = self.path.join(name);
        self.check_no_link_to(&path)?;
        let is_there = fs::symlink_metadata(&path).is_ok();
        if is_there && files::read_at_most(&path, bytes.len()).is_ok_and(|there| there.bytes == bytes) {
            return Ok(());
        }
        let write = |file: &mut fs::File| file.write_all(bytes);
        let written = fs::create_dir_all(path.parent().unwrap_or(self.path)).and_then(|()| match is_there {
            true => files::replace(&path, if self.overwrite { Replaces::Anything } else { Replaces::Same(bytes) }, write),
            false => files::create_in_tidied(&path, write),
        });
        written.map_err(|error| if files::is_taken(&error) { taken(&path) } else { export_error(self.path, &path, &error) })
    }

    /// What a link leads to is outside of the export, and may be anything: also the key that signs it.
    fn check_no_link_to(&self, path: &Path) -> Result<(), CommandError> {
        let is_link = |room: &&Path| *room != self.path && fs::symlink_metadata(room).is_ok_and(|there| there.is_symlink());
        if let Some(link) = path.ancestors().skip(1).take_while(|room| room.starts_with(self.path)).find(is_link) {
            let stop = CommandError::input_error(format!("{} is a link, and leads out of the export", files::display_path(link)))
                .with_code(FailureCode::FileTaken);
            return Err(stop.with_help("name a directory that is empty or not there"));
        }
        if fs::symlink_metadata(path).is_ok_and(|there| !there.is_file()) {
            let stop = CommandError::input_error(format!("{} is there and is no regular file", files::display_path(path)))
                .with_code(FailureCode::FileTaken);
            return Err(stop.with_help("name a directory that is empty or not there"));
        }
        Ok(())
    }
}

fn taken(path: &Path) -> CommandError {
    let text = format!("{} is not replaced: it is there with other bytes than this ledger exports", files::display_path(path));
    CommandError::input_error(text).with_code(FailureCode::FileTaken).with_help(
        "if it is a damaged file of an earlier export, add `--overwrite` to replace it; otherwise name a directory that is empty or not there",
    )
}

/// The checkpoint comes last: what it signs was there before it, and stays whole whatever became of the rest.
fn export_error(directory: &Path, path: &Path, error: &io::Error) -> CommandError {
    let shown = files::display_path(directory);
    let there = if directory.join("checkpoint").exists() {
        format!(
            "what was exported to {shown} before is still whole, as `converger verify {shown}` shows; files of the new export may lie beside it"
        )
    } else {
        format!("{shown} may have files of an export, and has no checkpoint, so that nobody takes it for one")
    };
    let limit = match error.kind() {
        io::ErrorKind::FileTooLarge => "look at the limit of this process (`ulimit -f`)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make room",
        _ => "see to it that this user may write there",
    };
    CommandError::failure(format!("cannot write {}: {error}", files::display_path(path)))
        .with_code(FailureCode::FileUnwritable)
        .with_help(format!("{there}; {limit}, and export again: that writes what is missing"))
}
