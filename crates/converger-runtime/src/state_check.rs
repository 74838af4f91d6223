//! Verifies a state directory: its ledger and its journal, which must agree (C7).
//!
//! Nothing is opened for writing, so a copy on a read-only disk can be verified.

use converger_core::apply::OperationId;
use converger_core::artifact::Digest;
use converger_core::failure::FailureCode;
use converger_ledger::{LogBuilder, LogHash, NoteVerifier, TILE_WIDTH, Tile, root_of_size};
use converger_store::{LedgerHead, LedgerRows, OperationStatus, StoreError, StoreReader as _, find_journal_mismatch, wait_for};

use crate::entry_check::{EarlierCheckpoint, EntryCheck};
use crate::error::RuntimeError;
use crate::files;
use crate::ledger_key::{load_signer, matches_next_key};
use crate::ledger_reader::{LedgerReader, integrity_error, ledger_store_error};

/// A store that was verified: its ledger, its journal and its file.
#[derive(Clone, Debug)]
pub struct CheckedState {
    /// The number of ledger entries.
    pub entries: u64,
    /// The root over them.
    pub root: LogHash,
    /// The key that the ledger names, if it names one.
    pub verifier: Option<NoteVerifier>,
    /// The number of pruned inputs.
    pub pruned: u64,
    /// The number of operations in the journal.
    pub operations: u64,
    /// Operations that have not ended.
    pub open: Vec<OperationId>,
    /// Operations that ended as held and that nobody resolved.
    pub held: Vec<OperationId>,
    /// The current epoch.
    pub epoch: u64,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// Verifies a store: hashes, entries, inputs, journal, file and keys.
///
/// # Errors
/// The first fault that was found.
pub fn check_state(
    reader: &LedgerReader,
    key: Option<&NoteVerifier>,
    since: Option<&EarlierCheckpoint>,
) -> Result<CheckedState, RuntimeError> {
    let (entry_check, root) = check_entries(reader, since)?;
    let own = recorded_key(&entry_check)?;
    entry_check.since_is_signed(key)?;
    entry_check.check_extends()?;
    let pruned = entry_check.ledger_check.check_blobs(|digest| reader.blob(digest))?;
    check_journal(reader, &entry_check)?;
    // Damage that concerns no entry is looked for last: the checks above report an index.
    if let Some(found) = reader.store_view().find_damage().map_err(|error| ledger_store_error(&error))? {
        return Err(integrity_error(format!("{}: {found}", files::display_path(reader.store_view().path()))));
    }
    no_stranger(reader, &entry_check)?;
    let mut notes = check_keys(reader, own.as_ref(), key)?;
    let size = entry_check.ledger_check.entries();
    notes.extend(entry_check.attested(|at| root_of_size(&mut reader.subtree_hashes(size), at))?);
    let replay = entry_check.ledger_check.replay();
    let with_status = |status| {
        let histories = replay.operations().values().filter(move |history| OperationStatus::from_progress(history.progress()) == status);
        histories.map(|history| history.id().clone()).collect()
    };
    Ok(CheckedState {
        entries: size,
        root,
        verifier: own,
        pruned,
        operations: replay.operations().len() as u64,
        open: with_status(OperationStatus::Open),
        held: with_status(OperationStatus::Held),
        epoch: replay.epoch(),
        notes,
    })
}

/// Checks every entry and every stored hash.
fn check_entries<'s>(reader: &LedgerReader, since: Option<&'s EarlierCheckpoint>) -> Result<(EntryCheck<'s>, LogHash), RuntimeError> {
    let heads = reader.heads()?;
    let (mut entry_check, mut log_builder, mut full, mut wrong) = (EntryCheck::new(since), LogBuilder::default(), Vec::new(), None);
    let hashed = reader.for_each_entry::<RuntimeError>(0, heads.all.size, |index, entry| {
        log_builder.append(LogHash::of_leaf(entry), |tile, hashes, _| full.push((tile, hashes.to_vec())));
        if wrong.is_none() {
            wrong = entry_check.check_entry(entry, |_| {}).err();
        }
        full.drain(..).try_for_each(|(tile, hashes): (Tile, Vec<LogHash>)| check_tile(reader, tile, &hashes))?;
        // Hashes are stored for full tiles, so a wrong entry is found when its tile is full.
        let is_full = (index + 1).is_multiple_of(TILE_WIDTH);
        wrong.take_if(|_| is_full).map_or(Ok(()), Err)
    });
    match (wrong, hashed) {
        // At the same entry, a fault of its contents is more useful than a wrong hash.
        (Some(entry_error), Err(hashed)) => {
            return Err(if hashed.entry_index() < entry_error.entry_index() { hashed } else { entry_error });
        }
        (entry_error, hashed) => hashed.and(entry_error.map_or(Ok(()), Err))?,
    }
    let root = log_builder.tree().root();
    if root != heads.all.root {
        return Err(root_mismatch_error(heads.all, root));
    }
    let LedgerRows { entries: rows, full_tiles: tiles } = map_store_error(wait_for(reader.store_view().ledger_rows()))?;
    let full: u64 = (1..8).map(|level| heads.all.size >> (8 * level)).sum();
    if (rows, tiles) != (heads.all.size, full) {
        let size = heads.all.size;
        return Err(integrity_error(format!("the ledger should have {size} entries and {full} full tiles, and has {rows} and {tiles}")));
    }
    if root_of_size(&mut reader.subtree_hashes(heads.all.size), heads.durable.size)? != heads.durable.root {
        return Err(integrity_error(format!("the first {} entries do not lead to the durable root", heads.durable.size)));
    }
    Ok((entry_check, root))
}

/// All full tiles match: the fault is after them, or in the recorded root.
fn root_mismatch_error(recorded: LedgerHead, root: LogHash) -> RuntimeError {
    let (size, first) = (recorded.size, recorded.size - recorded.size % TILE_WIDTH);
    if first == size {
        return integrity_error(format!("the root of the {size} entries is {root}, and the recorded one is {}", recorded.root));
    }
    let last = size - 1;
    integrity_error(format!(
        "the root of the entries is {root}, and the recorded one is {}: an entry from {first} to {last} was changed, or the root was",
        recorded.root
    ))
    .at_entry(first)
}

fn check_tile(reader: &LedgerReader, tile: Tile, hashes: &[LogHash]) -> Result<(), RuntimeError> {
    let entry_index = |at: u64| (tile.index * TILE_WIDTH + at) << (8 * u32::from(tile.level));
    let Some(stored_hashes) = map_store_error(wait_for(reader.store_view().full_tile(tile)))? else {
        let index = entry_index(0);
        return Err(integrity_error(format!("entry {index} ({}): its hashes are missing", tile.path())).at_entry(index));
    };
    match (0..hashes.len()).find(|at| stored_hashes.get(*at) != hashes.get(*at)) {
        None => Ok(()),
        Some(at) => {
            let index = entry_index(at as u64);
            Err(integrity_error(format!("entry {index} ({}): the stored hashes are not those of the entries", tile.path())).at_entry(index))
        }
    }
}

/// The recorded key, if there is one.
fn recorded_key(entry_check: &EntryCheck<'_>) -> Result<Option<NoteVerifier>, RuntimeError> {
    let named = entry_check.ledger_check.replay().keys().last().map(|named| NoteVerifier::parse(named));
    named.transpose().map_err(|error| integrity_error(format!("the recorded key is invalid: {error}")))
}

/// Compares the recorded key with the given one and with the key file. The file may be missing: a copy of a state directory should not contain
/// the secret.
fn check_keys(reader: &LedgerReader, named: Option<&NoteVerifier>, given_key: Option<&NoteVerifier>) -> Result<Vec<String>, RuntimeError> {
    let Some(named) = named else {
        if given_key.is_some() {
            return Err(integrity_error("the ledger records no key, but --key was given"));
        }
        return Ok(vec!["the ledger is not signed yet; `converger ledger checkpoint` signs it".to_owned()]);
    };
    if given_key.is_some_and(|given_key| given_key != named) {
        return Err(integrity_error(format!("the ledger is signed with {named}, and not with the given key")));
    }
    match load_signer(reader.directory())? {
        Some(signer) if signer.verifier() == *named => Ok(Vec::new()),
        _ if matches_next_key(reader.directory(), &named.to_string())? => {
            Ok(vec!["the key was replaced, and the new one is not installed yet: the next command that signs installs it".to_owned()])
        }
        Some(_) => {
            let key = files::display_path(&reader.directory().join(converger_store::KEY_FILE));
            Err(integrity_error(format!("{key} is not the key that the ledger names: someone replaced it")))
        }
        None => Ok(vec!["the signing key is not in the directory".to_owned()]),
    }
}

/// Checks that the journal and the ledger have the same operations.
fn check_journal(reader: &LedgerReader, entry_check: &EntryCheck<'_>) -> Result<(), RuntimeError> {
    let found =
        map_store_error(wait_for(find_journal_mismatch(reader.store_view(), entry_check.ledger_check.replay(), &entry_check.index)))?;
    found.map_or(Ok(()), |found| {
        let stop = RuntimeError::broken(FailureCode::UnloggedExecution, found.to_string());
        Err(if let Some(index) = found.index { stop.at_entry(index) } else { stop })
    })
}

/// Checks that an entry names every stored input: both are written in one transaction, so any other input was added by other means.
fn no_stranger(reader: &LedgerReader, entry_check: &EntryCheck<'_>) -> Result<(), RuntimeError> {
    let mut digests = map_store_error(wait_for(reader.store_view().digests()))?;
    digests.retain(|digest| !entry_check.ledger_check.is_named(digest));
    let Some(first) = digests.first() else { return Ok(()) };
    let is = if digests.len() == 1 { "is" } else { "are" };
    let found = reader.blob(*first)?.map(|bytes| Digest::of_bytes(&bytes)).filter(|found| found != first);
    let wrong = found.map(|found| format!("; its bytes have the digest {found}")).unwrap_or_default();
    let count = digests.len();
    let things = if count == 1 { "thing" } else { "things" };
    Err(integrity_error(format!("{count} {things} {is} stored that no entry names, the first is {first}{wrong}")))
}

fn map_store_error<T>(answer: Result<T, StoreError>) -> Result<T, RuntimeError> {
    answer.map_err(|error| ledger_store_error(&error))
}
