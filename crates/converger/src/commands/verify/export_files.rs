//! Verifies the files of an export.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::Path;

use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerCheck, LedgerEntry, parse_entry};
use converger_core::failure::FailureCode;
use converger_ledger::{
    CheckpointError, LogFault, LogFiles, LogHash, LogLocation, NoteError, NoteVerifier, TILE_WIDTH, Tile, TiledHashes, VerifiedLog,
    root_of_size, verify_log,
};

use converger_runtime::entry_check::{EarlierCheckpoint, EntryCheck};

use super::super::CommandError;
use super::super::ledger::{blob_path, broken};
use super::VerifyReport;
use crate::files;

/// The largest file of a log: 256 entries of 64 KiB, each with its length.
const FILE_BYTES_MAX: usize = 256 * ((64 << 10) + 2);
/// The largest input that is read.
const BLOB_BYTES_MAX: usize = 1 << 30;

struct ExportDirectory<'d>(&'d Path);

impl ExportDirectory<'_> {
    fn read_at_most(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, CommandError> {
        let full_path = self.0.join(path);
        match files::read_at_most(&full_path, most) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(_) if fs::metadata(&full_path).is_ok_and(|metadata| !metadata.is_file()) => {
                Err(broken(format!("{path} is not a regular file")))
            }
            Err(error) => Err(read_error(&full_path, &error)),
            // A file beyond the bound is cut, and its hash will not match.
            Ok(text) => Ok(Some(text.bytes)),
        }
    }
}

impl LogFiles for ExportDirectory<'_> {
    type Error = CommandError;

    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, CommandError> {
        self.read_at_most(path, FILE_BYTES_MAX)
    }
}

/// Verifies the log of an export: its signature, hashes and entries, and that it extends an earlier checkpoint. The entries passed to
/// `visit_entry` are verified once this returns `Ok`.
pub(super) fn check_log(
    path: &Path,
    key: &NoteVerifier,
    since: Option<&EarlierCheckpoint>,
    mut visit_entry: impl FnMut(u64, &LedgerEntry),
) -> Result<(LedgerCheck, VerifiedLog, Vec<String>), CommandError> {
    let (mut entry_check, mut wrong) = (EntryCheck::new(since), None);
    let log_result = verify_log(&mut ExportDirectory(path), key, |index, entry| {
        if wrong.is_none() {
            wrong = entry_check.check_entry(entry, |entry| visit_entry(index, entry)).err().map(CommandError::from);
        }
    });
    // The fault at the earliest entry is reported, in its contents or in its hashes.
    let verified_log = earlier_fault(wrong, log_result?.map_err(|found| log_fault_error(&found)))?;
    entry_check.since_is_signed(Some(key))?;
    entry_check.check_extends()?;
    let size = verified_log.checkpoint.size;
    let attested = entry_check.attested(|at| root_of_size(&mut TiledHashes::new(size, |tile| tile_in(path, tile)), at))?;
    Ok((entry_check.ledger_check, verified_log, attested))
}

/// The fault at the earlier entry. A fault without an index comes first.
fn earlier_fault<T>(entry_error: Option<CommandError>, hashed: Result<T, CommandError>) -> Result<T, CommandError> {
    match (entry_error, hashed) {
        (None, hashed) => hashed,
        (Some(entry_error), Err(hashed)) if hashed.entry_index() <= entry_error.entry_index() => Err(hashed),
        (Some(entry_error), _) => Err(entry_error),
    }
}

/// The hashes of a verified tile.
fn tile_in(path: &Path, tile: Tile) -> Result<Vec<LogHash>, CommandError> {
    let bytes = ExportDirectory(path).read(&tile.path())?.unwrap_or_default();
    Ok(bytes.as_chunks::<32>().0.iter().map(|hash| LogHash(*hash)).collect())
}

/// The bytes stored under a digest, unverified.
pub(super) fn read_blob(path: &Path, digest: Digest) -> Result<Option<Vec<u8>>, CommandError> {
    ExportDirectory(path).read_at_most(&blob_path(digest), BLOB_BYTES_MAX)
}

fn read_error(path: &Path, error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot read {}: {error}", files::display_path(path))).with_code(FailureCode::FileUnreadable)
}

pub(super) fn verify(path: &Path, key: NoteVerifier, since: Option<&EarlierCheckpoint>) -> Result<VerifyReport, CommandError> {
    let (display_name, mut notes) = (files::display_path(path), Vec::new());
    let (ledger_check, verified_log, attested) = check_log(path, &key, since, |_, _| {})?;
    notes.extend(attested);
    let pruned_count = ledger_check.check_blobs(|digest| read_blob(path, digest))?;
    check_key_recorded(&ledger_check, &key)?;
    no_stranger(path, &ledger_check)?;
    notes.extend(find_oddities(path, &key, &ledger_check).map_err(|error| read_error(path, &error))?.into_iter().map(str::to_owned));
    let (entries, root) = (verified_log.checkpoint.size, Some(verified_log.checkpoint.root.to_string()));
    Ok(VerifyReport {
        what: format!("{display_name}, a log in {} files", verified_log.files_read),
        entries,
        root,
        epoch: Some(ledger_check.replay().epoch()),
        verifier: Some(key),
        pruned: pruned_count,
        notes,
        proven: None,
        is_key_unverified: false,
    })
}

/// The largest key file, which is one line.
const KEY_BYTES_MAX: usize = 4096;

/// The key in the export.
pub(super) fn key_beside_log(path: &Path) -> Result<NoteVerifier, CommandError> {
    let file = path.join("log.vkey");
    let bytes = files::read_at_most(&file, KEY_BYTES_MAX).map(|text| text.bytes).map_err(|error| {
        let is_state = converger_store::has_state(path);
        let help = if is_state {
            "this is a state directory: add --db to verify it with its journal"
        } else if path.join("checkpoint").exists() {
            "pass --key KEY, as `converger ledger key` prints it"
        } else {
            "this is not an export, which has a file `checkpoint`: `converger ledger export` creates one; add --db to verify a state directory"
        };
        CommandError::input_error(format!("there is no key to verify with: cannot read {}: {error}", files::display_path(&file))).with_help(help)
    })?;
    // A file that is not UTF-8 is not a key.
    let text = String::from_utf8_lossy(&bytes);
    let key = NoteVerifier::parse(&text).map_err(|error| broken(format!("{}: {error}", files::display_path(&file))))?;
    if text == format!("{key}\n") { Ok(key) } else { Err(broken(format!("{} is not one line with a key", files::display_path(&file)))) }
}

/// Checks that the key is the last one that an entry records: another key may be that of a forger, and a replaced key may have leaked.
pub(super) fn check_key_recorded(ledger_check: &LedgerCheck, key: &NoteVerifier) -> Result<(), CommandError> {
    let (keys, own) = (ledger_check.replay().keys(), key.to_string());
    match keys.last() {
        Some(named) if **named == own => Ok(()),
        None => Err(broken(format!("the checkpoint is signed with {own}, and the ledger records no key"))),
        Some(named) => Err(broken(format!("the checkpoint is signed with {own}, and the ledger records {}", files::escape_hidden(named)))),
    }
}

/// Notes about an export that was changed in ways that its signature does not cover.
fn find_oddities(path: &Path, key: &NoteVerifier, ledger_check: &LedgerCheck) -> io::Result<Vec<&'static str>> {
    let mut notes = Vec::new();
    if !key_beside_log(path).is_ok_and(|beside| beside == *key) {
        notes.push("the key in the export is not the one that signed it");
    }
    if contains_longer_log(path, ledger_check.entries())? {
        notes.push("it contains files of a longer log: an export was interrupted, or its checkpoint was replaced by an older one");
    }
    Ok(notes)
}

/// Checks that an entry names every input of the export. Another file was not exported with this log.
///
/// An interrupted export has the older checkpoint and files of a longer log: inputs that its entries name are accepted.
fn no_stranger(path: &Path, ledger_check: &LedgerCheck) -> Result<(), CommandError> {
    let names = |directory: &str| match fs::read_dir(path.join(directory)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        listing => listing.and_then(|entries| entries.map(|one| one.map(|one| one.file_name())).collect::<io::Result<Vec<OsString>>>()),
    };
    let names = |directory: &str| names(directory).map_err(|error| read_error(&path.join(directory), &error));
    let display_entry = |directory: &str, name: &OsString| files::display_path(&Path::new(directory).join(name));
    if let Some(name) = names("blob")?.iter().find(|name| *name != "sha256") {
        return Err(broken(format!("{} is not part of an export", display_entry("blob", name))));
    }
    let mut later = None;
    for name in names("blob/sha256")? {
        let blob_name = display_entry("blob/sha256", &name);
        let Some(digest) = name.to_str().and_then(|name| Digest::parse(&format!("sha256:{name}"))) else {
            if files::is_left(&name) {
                continue;
            }
            return Err(broken(format!("{blob_name} is not part of an export: its name is not a digest")));
        };
        // Inputs that entries of this log name are verified already.
        if ledger_check.is_named(&digest) {
            continue;
        }
        let found = read_blob(path, digest)?.map(|bytes| Digest::of_bytes(&bytes));
        if found != Some(digest) {
            let found = found.map(|found| found.to_string()).unwrap_or_default();
            return Err(broken(format!("{blob_name} has a wrong name: its digest is {found}")));
        }
        if !later.get_or_insert_with(|| named_later(path, ledger_check.entries())).contains(&digest) {
            return Err(broken(format!("{blob_name} is named by no entry: it was not exported with this log")));
        }
    }
    Ok(())
}

/// The inputs that entries of a longer log name. That log is not signed, so it only explains why files exist.
fn named_later(path: &Path, size: u64) -> BTreeSet<Digest> {
    let mut named = BTreeSet::new();
    for index in size / TILE_WIDTH.. {
        let widths = (1..=TILE_WIDTH as u16).rev();
        let bundle =
            widths.map(|width| Tile { level: 0, index, width }).find_map(|tile| ExportDirectory(path).read(&tile.entries_path()).ok()?);
        let Some(bundle) = bundle else { break };
        named.extend(
            converger_ledger::read_entries(&bundle)
                .map_while(Result::ok)
                .filter_map(|entry| parse_entry(entry).ok())
                .flat_map(|entry| entry.named_digests()),
        );
    }
    named
}

/// Whether there is a tile of a longer log.
fn contains_longer_log(path: &Path, size: u64) -> io::Result<bool> {
    let (index, width) = (size / TILE_WIDTH, size % TILE_WIDTH);
    let full = Tile { level: 0, index, width: TILE_WIDTH as u16 };
    if path.join(full.path()).exists() {
        return Ok(true);
    }
    let parts = match fs::read_dir(path.join(format!("{}.p", full.path()))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        parts => parts?,
    };
    let mut widths = parts.flatten().filter_map(|part| part.file_name().to_str()?.parse::<u64>().ok());
    Ok(widths.any(|wider| wider > width))
}

fn log_fault_error(found: &LogFault) -> CommandError {
    let in_part = |part: &LogLocation, what: &str| match part.index {
        Some(index) => broken(format!("entry {index} ({}): {what}", part.path)).at_entry(index),
        None => broken(format!("{}: {what}", part.path)),
    };
    match found {
        LogFault::Missing(part) if part.path == "checkpoint" => {
            broken("the file `checkpoint` is missing: the export was interrupted, or the file was removed").with_help("export again, or get the missing file")
        }
        LogFault::Missing(part) => in_part(part, "the file is missing"),
        LogFault::Checkpoint(error @ CheckpointError::Note(NoteError::NotSigned)) => broken(format!("checkpoint: {error}")).with_help(
            "keep it as evidence, and compare the key with the one that `converger ledger key` prints at its source; if `converger ledger rekey` replaced it since, get the new key there: a ledger cannot vouch for its own key",
        ),
        LogFault::Checkpoint(error) => broken(format!("checkpoint: {error}")),
        LogFault::BundleLength(part) => in_part(part, "the file has too many or too few entries, or is cut off"),
        LogFault::Entry(part) => in_part(part, "the entry is not the logged one"),
        LogFault::Tile(part) => in_part(part, "the hashes of the tile are not those of the log"),
        LogFault::Undecided(part) => in_part(part, "the entry and its hash differ, and more is missing or broken after them"),
        LogFault::EntryAndTile(part) => in_part(part, "the entry and its hash differ, and neither leads to the signed root"),
        LogFault::Root { found, signed } => broken(format!("the root of the entries is {found}, and the signed one is {signed}")),
    }
}
