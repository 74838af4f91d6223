//! An export: static files, checked without the program that made them.

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

use super::super::CommandError;
use super::super::ledger::{blob_path, broken};
use super::{EarlierCheckpoint, VerifyReport, entry_check::EntryCheck};
use crate::files;

/// No file of a log is larger: 256 entries of 64 KiB, each with its length.
const FILE_BYTES_MAX: usize = 256 * ((64 << 10) + 2);
/// What is named by its digest is at most as large as anything that is read.
const BLOB_BYTES_MAX: usize = 1 << 30;

struct ExportDirectory<'d>(&'d Path);

impl ExportDirectory<'_> {
    fn read_at_most(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, CommandError> {
        let place = self.0.join(path);
        match files::read_at_most(&place, most) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(_) if fs::metadata(&place).is_ok_and(|there| !there.is_file()) => Err(broken(format!("{path} is no regular file"))),
            Err(error) => Err(read_error(&place, &error)),
            // One byte more than the bound is enough to be another file than the one that belongs here.
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

/// The log of an export, checked whole: its signature, its hashes, what its entries say, and what was seen before. What is told of each entry
/// on the way may be believed once this ends well, and not before.
pub(super) fn check_log(
    path: &Path,
    key: &NoteVerifier,
    since: Option<&EarlierCheckpoint>,
    mut told: impl FnMut(u64, &LedgerEntry),
) -> Result<(LedgerCheck, VerifiedLog, Vec<String>), CommandError> {
    let (mut heard, mut wrong) = (EntryCheck::new(since), None);
    let walked = verify_log(&mut ExportDirectory(path), key, |index, entry| {
        if wrong.is_none() {
            wrong = heard.check_entry(entry, |entry| told(index, entry)).err();
        }
    });
    // What entries say counts only where the hashes over them are whole; the first that is wrong is told, whichever found it.
    let walked = earlier_fault(wrong, walked?.map_err(|found| log_fault_error(&found)))?;
    heard.since_is_signed(Some(key))?;
    heard.check_extends()?;
    let size = walked.checkpoint.size;
    let attested = heard.attested(|at| root_of_size(&mut TiledHashes::new(size, |tile| tile_in(path, tile)), at))?;
    Ok((heard.ledger_check, walked, attested))
}

/// What is wrong at the earlier entry: with what entries say, or with the hashes over them. What has no place is wrong with all of it.
fn earlier_fault<T>(said: Option<CommandError>, hashed: Result<T, CommandError>) -> Result<T, CommandError> {
    match (said, hashed) {
        (None, hashed) => hashed,
        (Some(said), Err(hashed)) if hashed.entry_index() <= said.entry_index() => Err(hashed),
        (Some(said), _) => Err(said),
    }
}

/// The hashes of a tile that was checked.
fn tile_in(path: &Path, tile: Tile) -> Result<Vec<LogHash>, CommandError> {
    let bytes = ExportDirectory(path).read(&tile.path())?.unwrap_or_default();
    Ok(bytes.as_chunks::<32>().0.iter().map(|hash| LogHash(*hash)).collect())
}

/// What lies there under a digest, unhashed.
pub(super) fn read_blob(path: &Path, digest: Digest) -> Result<Option<Vec<u8>>, CommandError> {
    ExportDirectory(path).read_at_most(&blob_path(digest), BLOB_BYTES_MAX)
}

fn read_error(path: &Path, error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot read {}: {error}", files::display_path(path))).with_code(FailureCode::FileUnreadable)
}

pub(super) fn verify(path: &Path, key: NoteVerifier, since: Option<&EarlierCheckpoint>) -> Result<VerifyReport, CommandError> {
    let (shown, mut notes) = (files::display_path(path), Vec::new());
    let (deep, walked, attested) = check_log(path, &key, since, |_, _| {})?;
    notes.extend(attested);
    let gone = deep.check_blobs(|digest| read_blob(path, digest))?;
    check_key_recorded(&deep, &key)?;
    no_stranger(path, &deep)?;
    notes.extend(find_oddities(path, &key, &deep).map_err(|error| read_error(path, &error))?.into_iter().map(str::to_owned));
    let (entries, root) = (walked.checkpoint.size, Some(walked.checkpoint.root.to_string()));
    Ok(VerifyReport {
        what: format!("{shown}, its log in {} files", walked.files_read),
        entries,
        root,
        verifier: Some(key),
        pruned: gone,
        notes,
        proven: None,
        is_key_unverified: false,
    })
}

/// A key is one line; more is none.
const KEY_BYTES_MAX: usize = 4096;

/// The key that lies beside the log.
pub(super) fn key_beside_log(path: &Path) -> Result<NoteVerifier, CommandError> {
    let file = path.join("log.vkey");
    let bytes = files::read_at_most(&file, KEY_BYTES_MAX).map(|text| text.bytes).map_err(|error| {
        let is_state = converger_store::has_state(path);
        let help = if is_state {
            "this is a state directory: --db checks it, with its journal"
        } else if path.join("checkpoint").exists() {
            "--key KEY, as `converger ledger key` prints it"
        } else {
            "is this an export? `converger ledger export` makes one, with a `checkpoint` in it; --db DIR checks a state directory"
        };
        CommandError::input_error(format!("there is no key to check with: {}: {error}", files::display_path(&file))).with_help(help)
    })?;
    // What is no text is no key either.
    let text = String::from_utf8_lossy(&bytes);
    let key = NoteVerifier::parse(&text).map_err(|error| broken(format!("{}: {error}", files::display_path(&file))))?;
    if text == format!("{key}\n") { Ok(key) } else { Err(broken(format!("{}: it is not one line with a key", files::display_path(&file)))) }
}

/// A key signs once an entry names it, and until another one is named: one that none names was laid there by somebody else, who signed what is not
/// theirs, and one that was replaced may be in the hands of anybody.
pub(super) fn check_key_recorded(deep: &LedgerCheck, key: &NoteVerifier) -> Result<(), CommandError> {
    let (keys, own) = (deep.replay().keys(), key.to_string());
    match keys.last() {
        Some(named) if **named == own => Ok(()),
        None => Err(broken(format!("the checkpoint is signed with {own}, and the ledger names no key"))),
        Some(named) => Err(broken(format!("the checkpoint is signed with {own}, and the ledger names {}", files::escape_hidden(named)))),
    }
}

/// What an export that was left alone does not have, though all that is signed is whole.
fn find_oddities(path: &Path, key: &NoteVerifier, deep: &LedgerCheck) -> io::Result<Vec<&'static str>> {
    let mut notes = Vec::new();
    if !key_beside_log(path).is_ok_and(|beside| beside == *key) {
        notes.push("the key that lies beside the log is not the one that signed it");
    }
    if contains_longer_log(path, deep.entries())? {
        notes.push("files of a longer log lie beside it: an export was interrupted, or its checkpoint is an older one that was put back");
    }
    Ok(notes)
}

/// Everything below `read_blob` is named by an entry. A file that none names was not exported with this log, and would be taken for part of it.
///
/// An export that was interrupted has the files of a longer log beside the older checkpoint: what entries there name is no stranger's.
fn no_stranger(path: &Path, deep: &LedgerCheck) -> Result<(), CommandError> {
    let names = |room: &str| match fs::read_dir(path.join(room)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        there => there.and_then(|there| there.map(|one| one.map(|one| one.file_name())).collect::<io::Result<Vec<OsString>>>()),
    };
    let names = |room: &str| names(room).map_err(|error| read_error(&path.join(room), &error));
    let shown = |room: &str, name: &OsString| files::display_path(&Path::new(room).join(name));
    if let Some(name) = names("blob")?.iter().find(|name| *name != "sha256") {
        return Err(broken(format!("{} is no part of an export", shown("blob", name))));
    }
    let mut later = None;
    for name in names("blob/sha256")? {
        let place = shown("blob/sha256", &name);
        let Some(digest) = name.to_str().and_then(|name| Digest::parse(&format!("sha256:{name}"))) else {
            if files::is_left(&name) {
                continue;
            }
            return Err(broken(format!("{place} is no part of an export: its name is no digest")));
        };
        // What entries of this log name was hashed already.
        if deep.is_named(&digest) {
            continue;
        }
        let found = read_blob(path, digest)?.map(|bytes| Digest::of_bytes(&bytes));
        if found != Some(digest) {
            let found = found.map(|found| found.to_string()).unwrap_or_default();
            return Err(broken(format!("{place} is stored under a wrong digest: its bytes have {found}")));
        }
        if !later.get_or_insert_with(|| named_later(path, deep.entries())).contains(&digest) {
            return Err(broken(format!("{place} is named by no entry: it was not exported with this log, and nothing vouches for it")));
        }
    }
    Ok(())
}

/// What the entries of a longer log name that lies beside this one. Nothing of it is signed, so that it only explains what is there.
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

/// Whether there is a tile of a longer log, beside the last one or in place of it.
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
            broken("there is no checkpoint: the export was interrupted, or it was removed").with_help("export again, or get the missing file")
        }
        LogFault::Missing(part) => in_part(part, "the file is missing"),
        LogFault::Checkpoint(error @ CheckpointError::Note(NoteError::NotSigned)) => broken(format!("checkpoint: {error}")).with_help(
            "keep it as it is, and compare the key with the one that `converger ledger key` prints at its source; if `converger ledger rekey` replaced it since, get the new key there: a ledger cannot vouch for its own key",
        ),
        LogFault::Checkpoint(error) => broken(format!("checkpoint: {error}")),
        LogFault::BundleLength(part) => in_part(part, "the file has more or fewer entries than it should, or ends inside of one"),
        LogFault::Entry(part) => in_part(part, "the entry is not the one that was logged"),
        LogFault::Tile(part) => in_part(part, "the hashes of the tile are not those of the log"),
        LogFault::Undecided(part) => in_part(part, "the entry and the hash over it differ, and more is missing or broken behind them"),
        LogFault::EntryAndTile(part) => in_part(part, "the entry and the hash over it differ, and neither leads to the signed root"),
        LogFault::Root { found, signed } => broken(format!("the entries lead to the root {found}, and {signed} is signed")),
    }
}
