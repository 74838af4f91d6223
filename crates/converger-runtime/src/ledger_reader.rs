//! Reads the ledger and the journal of a state directory for commands: page by page, and without changing anything.
//!
//! It never opens a store for writing. A copy on read-only storage, or a store that an apply has open, is read like any other.

use std::path::{Path, PathBuf};

use converger_core::apply::{OperationHistory, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerEntry, parse_entry};
use converger_core::failure::FailureCode;
use converger_ledger::{LogHash, MerkleTree, SubtreeHashes, Tile, TiledHashes};
use converger_store::{
    LIST_MAX, LedgerHead, LedgerHeads, OperationFilter, StoreError, StoreOpenError, StoreReader as _, StoreView, wait_for,
};

use crate::config::ConfigSource;
use crate::error::RuntimeError;
use crate::files;
use crate::state_dir::{StateLocation, store_error, unreadable_error};

/// Where a ledger is.
#[derive(Debug)]
pub struct LedgerLocation {
    /// The state directory.
    pub directory: PathBuf,
    /// The witness, if converger.toml names one.
    pub witness: Option<PathBuf>,
    /// How to name another directory, for a person who finds nothing in this one.
    other_hint: &'static str,
}

/// How many times a read is tried while another process writes.
const READ_ATTEMPTS_MAX: usize = 8;

impl LedgerLocation {
    /// The ledger of the state directory that converger.toml names.
    ///
    /// # Errors
    /// The configuration cannot be used, or there is no state directory.
    pub fn from_config(config: Option<&Path>) -> Result<Self, RuntimeError> {
        Self::from_source(&ConfigSource::read(config))
    }

    /// The same for a configuration that was read before.
    ///
    /// # Errors
    /// The configuration cannot be used, or there is no state directory.
    pub fn from_source(source: &ConfigSource) -> Result<Self, RuntimeError> {
        let environments = source.path().map(|_| source.environments()).transpose()?;
        let (configured, witness) = environments.map_or((None, None), |environments| (environments.state, environments.witness));
        let StateLocation { directory, witness } = StateLocation::from_parts(configured.as_deref(), witness.as_deref())?;
        Ok(Self { directory, witness, other_hint: "--config names another state directory" })
    }

    /// The ledger of this directory.
    #[must_use]
    pub fn from_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            witness: None,
            other_hint: "name the state directory itself, the one with `converger.db` in it",
        }
    }

    /// Checks that there is a ledger. Call it before opening one for writing, which would create it.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn check_exists(&self) -> Result<(), RuntimeError> {
        LedgerReader::open(&self.directory)?.map(drop).ok_or_else(|| self.missing_ledger_error())
    }

    /// Runs a read that sees one state of the ledger: it is repeated if another process wrote in the meantime.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn read<T, E: From<RuntimeError>>(&self, read: impl Fn(&LedgerReader) -> Result<T, E>) -> Result<T, E> {
        self.read_if_present(read)?.ok_or_else(|| self.missing_ledger_error().into())
    }

    /// The same; `None` if there is no ledger.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn read_if_present<T, E: From<RuntimeError>>(&self, read: impl Fn(&LedgerReader) -> Result<T, E>) -> Result<Option<T>, E> {
        for _ in 0..READ_ATTEMPTS_MAX {
            let Some(ledger) = LedgerReader::open(&self.directory)? else { return Ok(None) };
            let result = read(&ledger);
            if ledger.view.is_unchanged() {
                return result.map(Some);
            }
        }
        let text = format!("{} changed during each of {READ_ATTEMPTS_MAX} attempts to read it", files::display_path(&self.directory));
        let error = RuntimeError::failed(text).with_code(FailureCode::JournalUnreadable);
        Err(error.with_help("wait until the other process ends, or read a copy").into())
    }

    fn missing_ledger_error(&self) -> RuntimeError {
        let text = format!("there is no ledger in {}: nothing was recorded there yet", files::display_path(&self.directory));
        RuntimeError::input(text).with_help(format!("`converger apply`, `hold` and `freeze` start one; {}", self.other_hint))
    }
}

/// The ledger and the journal, as they were when they were opened.
#[derive(Debug)]
pub struct LedgerReader {
    view: StoreView,
    directory: PathBuf,
}

/// What is stored differs from what was recorded.
pub fn integrity_error(what: impl Into<String>) -> RuntimeError {
    RuntimeError::broken(FailureCode::IntegrityViolation, what)
}

impl LedgerReader {
    fn open(directory: &Path) -> Result<Option<Self>, RuntimeError> {
        let view = StoreView::open(directory).map_err(|error| open_error(&error))?;
        Ok(view.map(|view| Self { view, directory: directory.to_owned() }))
    }

    /// The state directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The store itself.
    pub fn store_view(&self) -> &StoreView {
        &self.view
    }

    /// The size and root of the ledger.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn heads(&self) -> Result<LedgerHeads, RuntimeError> {
        wait_for(self.view.heads()).map_err(|error| ledger_store_error(&error))
    }

    /// Calls a function with the index and the bytes of each entry in `from..to`.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn for_each_entry<E: From<RuntimeError>>(
        &self,
        from: u64,
        to: u64,
        mut visit: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut next = from;
        while next < to {
            let limit = u32::try_from(to - next).unwrap_or(LIST_MAX).min(LIST_MAX);
            let page = wait_for(self.view.entries(next, limit)).map_err(|error| self.unreadable_entry_error(next, to, &error))?;
            if page.is_empty() {
                return Err(integrity_error(format!("entry {next} is missing")).at_entry(next).into());
            }
            for entry in page {
                visit(next, &entry)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Checks that the entries lead to this root.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn check_root(&self, head: LedgerHead) -> Result<(), RuntimeError> {
        let mut tree = MerkleTree::default();
        self.for_each_entry(0, head.size, |_, entry| {
            tree.append(LogHash::of_leaf(entry), |_, _, _| {});
            Ok::<_, RuntimeError>(())
        })?;
        if tree.root() == head.root {
            return Ok(());
        }
        Err(integrity_error(format!(
            "the first {} entries lead to the root {}, but {} is recorded: it is not signed",
            head.size,
            tree.root(),
            head.root
        )))
    }

    /// The error for the first of these entries that cannot be read.
    fn unreadable_entry_error(&self, from: u64, to: u64, error: &StoreError) -> RuntimeError {
        let found = (from..to).find_map(|index| wait_for(self.view.entries(index, 1)).err().map(|error| (index, error)));
        match found {
            Some((index, error @ StoreError::Malformed { .. })) => integrity_error(format!("entry {index}: {error}")).at_entry(index),
            _ => ledger_store_error(error),
        }
    }

    /// The bytes of one entry.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn read_entry(&self, index: u64) -> Result<Vec<u8>, RuntimeError> {
        let size = self.heads()?.all.size;
        if index >= size {
            return Err(entry_out_of_range_error(index, size));
        }
        let mut found = Vec::new();
        self.for_each_entry(index, index + 1, |_, entry| {
            found = entry.to_vec();
            Ok::<_, RuntimeError>(())
        })?;
        Ok(found)
    }

    /// Parses an entry.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn parse_entry(&self, index: u64, bytes: &[u8]) -> Result<LedgerEntry, RuntimeError> {
        parse_entry_at(index, bytes)
    }

    /// The bytes under a digest.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, RuntimeError> {
        wait_for(self.view.blob(digest)).map_err(|error| ledger_store_error(&error))
    }

    /// An operation of the journal.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, RuntimeError> {
        wait_for(self.view.operation(id.clone())).map_err(|error| ledger_store_error(&error))
    }

    /// The operations of a run, oldest first.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn operations(&self, run: &RunId) -> Result<Vec<OperationHistory>, RuntimeError> {
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let filter = OperationFilter { run: Some(run.clone()), before: before.take(), ..OperationFilter::default() };
            let page = wait_for(self.view.operations(filter, LIST_MAX)).map_err(|error| ledger_store_error(&error))?;
            let Some(last) = page.last() else { break };
            before = Some(last.id().clone());
            all.extend(page);
        }
        all.reverse();
        Ok(all)
    }

    /// The hashes of a tile.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn tile_hashes(&self, tile: Tile) -> Result<Vec<LogHash>, RuntimeError> {
        wait_for(self.view.hashes(tile))
            .map_err(|error| ledger_store_error(&error))?
            .ok_or_else(|| integrity_error(format!("{} is missing", tile.path())))
    }

    /// The roots of subtrees of the ledger at this size.
    pub fn subtree_hashes(&self, size: u64) -> impl SubtreeHashes<Error = RuntimeError> {
        TiledHashes::new(size, |tile| self.tile_hashes(tile))
    }
}

/// Parses an entry.
///
/// # Errors
/// The ledger or the journal cannot be read, or is not as it was recorded.
pub fn parse_entry_at(index: u64, bytes: &[u8]) -> Result<LedgerEntry, RuntimeError> {
    parse_entry(bytes).map_err(|error| integrity_error(format!("entry {index} is not valid: {error}")).at_entry(index))
}

/// The ledger is shorter.
pub fn entry_out_of_range_error(index: u64, size: u64) -> RuntimeError {
    RuntimeError::input(format!("there is no entry {index}: the ledger has {size}")).with_help("entries are counted from 0")
}

/// The error of a store that cannot be opened for reading.
pub(crate) fn open_error(error: &StoreOpenError) -> RuntimeError {
    match error {
        // It may be a file of another program, or a damaged one of ours; the remedy differs.
        StoreOpenError::NotOurs { place: path } => integrity_error(format!(
            "{} is not a database of this program",
            files::display_path(path)
        ))
        .with_help(
            "if this program kept its state there, the file was replaced or damaged: keep it unchanged and compare it with an export or a \
             copy; otherwise name another state directory",
        ),
        // No advice to restore: a reader must keep the evidence as it is.
        StoreOpenError::Damaged { place: path, cause } => integrity_error(format!("{} is damaged: {cause}", files::display_path(path))),
        StoreOpenError::Lost { place: path, remains } => {
            let (path, remains) = (files::display_path(path), files::display_path(remains));
            integrity_error(format!("{path} is missing or empty, but {remains} shows that it was in use"))
        }
        _ => unreadable_error(error),
    }
}

/// A malformed row means that the evidence was changed; any other error means that it cannot be read now.
pub fn ledger_store_error(error: &StoreError) -> RuntimeError {
    match error {
        StoreError::Malformed { .. } => integrity_error(error.to_string()),
        _ => store_error(error),
    }
}
