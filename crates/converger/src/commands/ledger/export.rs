//! The ledger as a directory that any static file server can serve: tiles, entries and checkpoint in the format C2SP tlog-tiles, and the
//! inputs that entries name by digest.
//!
//! Full tiles never change and are written once. The checkpoint is written last, so that an interrupted export is still the older one.

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

/// The contents of an export.
pub(super) struct ExportSummary {
    pub(super) entries: u64,
    /// Files that entries name by digest.
    pub(super) blobs: usize,
}

/// Writes the files. None if an input that an entry names is missing.
pub(super) fn write_export(
    reader: &LedgerReader,
    signed: &SignedLedger,
    directory: &Path,
    overwrite: bool,
) -> Result<Option<ExportSummary>, CommandError> {
    let checkpoint = &signed.checkpoint;
    check_extends(reader, directory, signed)?;
    check_no_foreign_files(directory)?;
    files::remove_stale_temporaries(directory, DEPTH_MAX).map_err(|error| export_error(directory, directory, &error))?;
    let directory = &Directory { path: directory, overwrite };
    for tile in Tile::tiles_of_log(checkpoint.size) {
        let hashes = reader.tile_hashes(tile)?;
        directory.write_file(&tile.path(), &hashes.iter().flat_map(|hash| hash.0).collect::<Vec<u8>>())?;
        if tile.level == 0 {
            directory.write_file(&tile.entries_path(), &entry_bundle(reader, tile, &hashes)?)?;
        }
    }
    let Some(blob_count) = write_blobs(reader, directory, checkpoint.size)? else { return Ok(None) };
    let is_ours = |key: &str| keys(reader, checkpoint.size).is_ok_and(|keys| keys.is_some_and(|keys| keys.has(key)));
    let is_own_key = fs::read_to_string(directory.path.join("log.vkey")).is_ok_and(|existing_key| is_ours(existing_key.trim_end()));
    Directory { overwrite: overwrite || is_own_key, ..*directory }
        .write_file("log.vkey", format!("{}\n", signed.signer.verifier()).as_bytes())?;
    // An existing checkpoint is an earlier one of this ledger.
    Directory { overwrite: true, ..*directory }.write_file("checkpoint", signed.text.as_bytes())?;
    Ok(Some(ExportSummary { entries: checkpoint.size, blobs: blob_count }))
}

/// An export is public: other files in its directory would be published with it.
fn check_no_foreign_files(directory: &Path) -> Result<(), CommandError> {
    let unread = |error: io::Error| export_error(directory, directory, &error);
    let found = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found.map_err(unread)?,
    };
    for found in found {
        let found = found.map_err(unread)?;
        let name = found.file_name();
        // A link leads out of the directory.
        let is_link = found.file_type().map_err(unread)?.is_symlink();
        let is_ours = !is_link && (["blob", "checkpoint", "log.vkey", "tile"].iter().any(|own| name == *own) || files::is_left(&name));
        if !is_ours {
            let (display_name, name) = (files::display_path(directory), files::display_path(Path::new(&name)));
            let stop = CommandError::input_error(format!(
                "{display_name} contains another file ({name}), which would be published with the export"
            ));
            return Err(stop
                .with_code(FailureCode::FileTaken)
                .with_help("name a directory that is empty, does not exist, or is an export of this ledger"));
        }
    }
    Ok(())
}

/// The depth of directories of an export.
const DEPTH_MAX: usize = 8;

/// The largest checkpoint, which is a few lines.
const CHECKPOINT_BYTES_MAX: usize = 64 << 10;

/// Refuses a directory with another log or a longer one.
fn check_extends(reader: &LedgerReader, directory: &Path, signed: &SignedLedger) -> Result<(), CommandError> {
    let new = &signed.checkpoint;
    let path = directory.join("checkpoint");
    let old = match files::read_at_most(&path, CHECKPOINT_BYTES_MAX).map(|text| text.bytes) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        read => read.map_err(|error| {
            CommandError::failure(format!("cannot read {}: {error}", files::display_path(&path))).with_code(FailureCode::FileUnreadable)
        })?,
    };
    let display_name = files::display_path(directory);
    // An export from before a rekey is signed with the old key.
    let size = Checkpoint::parse_unverified(&old).map_or(u64::MAX, |old| old.size);
    let then = keys(reader, new.size)?.and_then(|keys| NoteVerifier::parse(keys.at(size)).ok());
    let old = Checkpoint::verify(&old, &then.unwrap_or_else(|| signed.signer.verifier())).map_err(|error| {
        CommandError::input_error(format!("{display_name} is not an export of this ledger: {error}"))
            .with_code(FailureCode::FileTaken)
            .with_help("name a directory that is empty or does not exist")
    })?;
    if old.size > new.size {
        let text =
            format!("{display_name} has {} entries, and the ledger has {}: the ledger was restored from an older copy", old.size, new.size);
        return Err(broken(format!("{text}{}", find_resync(reader, new.size, &old)?)));
    }
    let root = converger_ledger::root_of_size(&mut reader.subtree_hashes(new.size), old.size)?;
    if root == old.root {
        return Ok(());
    }
    let text = format!("{display_name} and the ledger differ within their first {} entries", old.size);
    Err(broken(format!("{text}{}", find_resync(reader, new.size, &old)?)))
}

/// The keys that the entries name.
fn keys(reader: &LedgerReader, size: u64) -> Result<Option<NamedKeys>, CommandError> {
    let mut named = Vec::new();
    reader.for_each_entry::<CommandError>(0, size, |index, bytes| {
        named.extend(key_named_in(bytes).map(|key| (index, key.into())));
        Ok(())
    })?;
    Ok(NamedKeys::of(named))
}

/// The resync that discarded exported entries, if there is one.
fn find_resync(reader: &LedgerReader, size: u64, old: &Checkpoint) -> Result<String, CommandError> {
    let mut found = None;
    reader.for_each_entry::<CommandError>(0, size, |index, bytes| {
        if found.is_none() {
            found = witness::describe_resync(index, &reader.parse_entry(index, bytes)?, old);
        }
        Ok(())
    })?;
    Ok(found.unwrap_or_default())
}

fn entry_bundle(reader: &LedgerReader, tile: Tile, hashes: &[LogHash]) -> Result<Vec<u8>, CommandError> {
    let mut bundle = EntryBundle::default();
    let first = tile.index * TILE_WIDTH;
    reader.for_each_entry::<CommandError>(first, first + u64::from(tile.width), |index, entry| {
        let at = usize::try_from(index - first).unwrap_or(usize::MAX);
        // An entry that does not lead to the root is not exported.
        if hashes.get(at) != Some(&LogHash::of_leaf(entry)) || !bundle.push(entry) {
            return Err(broken(format!("entry {index} does not match its hash")));
        }
        Ok(())
    })?;
    Ok(bundle.into_bytes())
}

/// Writes the inputs that entries name by digest. None if one is missing that was not pruned.
fn write_blobs(reader: &LedgerReader, directory: &Directory<'_>, size: u64) -> Result<Option<usize>, CommandError> {
    let (mut named, mut let_go) = (BTreeSet::new(), PrunedSet::default());
    reader.for_each_entry::<CommandError>(0, size, |index, bytes| {
        let entry = reader.parse_entry(index, bytes)?;
        named.extend(entry.named_digests());
        let_go.apply_entry(&entry);
        Ok(())
    })?;
    let mut blob_count = 0;
    for digest in named {
        match reader.blob(digest)? {
            Some(bytes) => directory.write_file(&blob_path(digest), &bytes)?,
            None if let_go.contains(&digest) => continue,
            None => return Ok(None),
        }
        blob_count += 1;
    }
    Ok(Some(blob_count))
}

/// The path of an input by its digest.
pub(in super::super) fn blob_path(digest: Digest) -> String {
    format!("blob/{}", digest.to_string().replace(':', "/"))
}

/// The directory of the export.
struct Directory<'d> {
    path: &'d Path,
    /// Whether other files may be replaced (`--overwrite`).
    overwrite: bool,
}

impl Directory<'_> {
    /// Writes a file, unless it exists with these bytes. The contents of a name never change, so a file with other bytes was damaged, or is not
    /// part of the export.
    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), CommandError> {
        let path = self.path.join(name);
        self.check_no_link_to(&path)?;
        let is_there = fs::symlink_metadata(&path).is_ok();
        if is_there && files::read_at_most(&path, bytes.len()).is_ok_and(|existing| existing.bytes == bytes) {
            return Ok(());
        }
        let write = |file: &mut fs::File| file.write_all(bytes);
        let written = fs::create_dir_all(path.parent().unwrap_or(self.path)).and_then(|()| match is_there {
            true => files::replace(&path, if self.overwrite { Replaces::Anything } else { Replaces::Same(bytes) }, write),
            false => files::create_in_tidied(&path, write),
        });
        written.map_err(|error| if files::is_taken(&error) { taken(&path) } else { export_error(self.path, &path, &error) })
    }

    /// A link leads out of the export, perhaps to the signing key.
    fn check_no_link_to(&self, path: &Path) -> Result<(), CommandError> {
        let is_link =
            |ancestor: &&Path| *ancestor != self.path && fs::symlink_metadata(ancestor).is_ok_and(|metadata| metadata.is_symlink());
        if let Some(link) = path.ancestors().skip(1).take_while(|ancestor| ancestor.starts_with(self.path)).find(is_link) {
            let stop = CommandError::input_error(format!("{} is a link that leads out of the export", files::display_path(link)))
                .with_code(FailureCode::FileTaken);
            return Err(stop.with_help("name a directory that is empty or does not exist"));
        }
        if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let stop = CommandError::input_error(format!("{} exists and is not a regular file", files::display_path(path)))
                .with_code(FailureCode::FileTaken);
            return Err(stop.with_help("name a directory that is empty or does not exist"));
        }
        Ok(())
    }
}

fn taken(path: &Path) -> CommandError {
    let text = format!("{} is not replaced: its contents differ from what this ledger exports", files::display_path(path));
    CommandError::input_error(text).with_code(FailureCode::FileTaken).with_help(
        "if it is a damaged file of an earlier export, add `--overwrite` to replace it; otherwise name a directory that is empty or does not exist",
    )
}

/// The checkpoint is written last, so that an earlier export stays intact.
fn export_error(directory: &Path, path: &Path, error: &io::Error) -> CommandError {
    let display_name = files::display_path(directory);
    let export_state = if directory.join("checkpoint").exists() {
        format!(
            "the earlier export in {display_name} is intact, as `converger verify {display_name}` shows; it may contain files of the new one"
        )
    } else {
        format!("{display_name} may contain files of an export, but no checkpoint, so it does not count as one")
    };
    let limit = match error.kind() {
        io::ErrorKind::FileTooLarge => "check the limit of this process (`ulimit -f`)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free disk space",
        _ => "let this user write there",
    };
    CommandError::failure(format!("cannot write {}: {error}", files::display_path(path)))
        .with_code(FailureCode::FileUnwritable)
        .with_help(format!("{export_state}; {limit}, then export again to write the missing files"))
}
