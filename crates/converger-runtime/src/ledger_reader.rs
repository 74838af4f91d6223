//! The ledger of a state directory with the journal beside it, as commands read them: page by page, and without touching anything.
//!
//! What never enters: making or opening a store for writing. A copy on a disk that cannot be written to, or a store that an apply has open at
//! this moment, is read like any other.

use std::path::{Path, PathBuf};

use converger_core::apply::{History, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, parse_entry};
use converger_core::failure::Code;
use converger_ledger::{Hash, Hashes, Tile, TiledHashes, Tree};
use converger_store::{Filter, Head, Heads, LIST_MAX, Looked, OpenError, StoreError};

use crate::error::RuntimeError;
use crate::state_dir::{StateLocation, store_error, unreadable_error};
use crate::{config, files};

/// Where a ledger is.
#[derive(Debug)]
pub struct LedgerLocation {
    /// The state directory.
    pub directory: PathBuf,
    /// The file on other storage that keeps the last checkpoint, where one is named.
    pub witness: Option<PathBuf>,
    /// How another one is named, for whoever finds nothing in this one.
    another: &'static str,
}

/// How often it is looked again where somebody writes at the same time.
const LOOKS_MAX: usize = 8;

impl LedgerLocation {
    /// The one that converger.toml leads to.
    ///
    /// # Errors
    /// The configuration cannot be used, or says nothing about where the state is.
    pub fn from_config(config: Option<&Path>) -> Result<Self, RuntimeError> {
        let survey = config::path(config).map(|_| config::survey(config)).transpose()?;
        let (configured, witness) = survey.map_or((None, None), |survey| (survey.state, survey.witness));
        let StateLocation { directory, witness } = StateLocation::from_parts(configured.as_deref(), witness.as_deref())?;
        Ok(Self { directory, witness, another: "--config names another state directory" })
    }

    /// A directory that was named.
    #[must_use]
    pub fn from_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            witness: None,
            another: "name the state directory itself, the one with `converger.db` in it",
        }
    }

    /// There is a ledger. Whoever opens one for writing asks this first: none is made for whoever looks for one.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn must_be_there(&self) -> Result<(), RuntimeError> {
        LedgerReader::open(&self.directory)?.map(drop).ok_or_else(|| self.nothing())
    }

    /// What is told of the ledger, all of it of one moment: where somebody wrote to it meanwhile it is told again.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn read<T, E: From<RuntimeError>>(&self, told: impl Fn(&LedgerReader) -> Result<T, E>) -> Result<T, E> {
        self.read_if_there(told)?.ok_or_else(|| self.nothing().into())
    }

    /// The same where there may be nothing at all.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn read_if_there<T, E: From<RuntimeError>>(&self, told: impl Fn(&LedgerReader) -> Result<T, E>) -> Result<Option<T>, E> {
        for _ in 0..LOOKS_MAX {
            let Some(book) = LedgerReader::open(&self.directory)? else { return Ok(None) };
            let told = told(&book);
            if book.looked.is_of_one_moment() {
                return told.map(Some);
            }
        }
        let text = format!("{} is written to all the time", files::shown(&self.directory));
        let error = RuntimeError::failed(text).with_code(Code::JournalUnreadable);
        Err(error.with_help("wait until whoever writes to it ends, or look at a copy of it").into())
    }

    fn nothing(&self) -> RuntimeError {
        let text = format!("there is no ledger in {}: nothing was decided there yet", files::shown(&self.directory));
        RuntimeError::input(text).with_help(format!("`converger apply`, `hold` and `freeze` begin one; {}", self.another))
    }
}

/// The ledger and the journal as they were when they were opened.
#[derive(Debug)]
pub struct LedgerReader {
    looked: Looked,
    directory: PathBuf,
}

/// What is kept is not what was recorded.
pub fn broken(what: impl Into<String>) -> RuntimeError {
    RuntimeError::broken(Code::IntegrityViolation, what)
}

impl LedgerReader {
    fn open(directory: &Path) -> Result<Option<Self>, RuntimeError> {
        let looked = Looked::open(directory).map_err(|error| unopened(&error))?;
        Ok(looked.map(|looked| Self { looked, directory: directory.to_owned() }))
    }

    /// The state directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The journal and all else that is kept.
    pub fn looked(&self) -> &Looked {
        &self.looked
    }

    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn heads(&self) -> Result<Heads, RuntimeError> {
        self.looked.heads().map_err(|error| damaged(&error))
    }

    /// What is told about each entry from this place on and before that: its place, and its bytes.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn each<E: From<RuntimeError>>(&self, from: u64, to: u64, mut told: impl FnMut(u64, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut next = from;
        while next < to {
            let limit = u32::try_from(to - next).unwrap_or(LIST_MAX).min(LIST_MAX);
            let page = self.looked.entries(next, limit).map_err(|error| self.first_bad(next, to, &error))?;
            if page.is_empty() {
                return Err(broken(format!("entry {next} is missing")).at_entry(next).into());
            }
            for entry in page {
                told(next, &entry)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Whether the entries lead to this root.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn leads_to(&self, head: Head) -> Result<(), RuntimeError> {
        let mut tree = Tree::default();
        self.each(0, head.size, |_, entry| {
            tree.append(Hash::of_leaf(entry), |_, _, _| {});
            Ok::<_, RuntimeError>(())
        })?;
        if tree.root() == head.root {
            return Ok(());
        }
        Err(broken(format!(
            "the first {} entries lead to the root {}, and {} is recorded: it is not signed",
            head.size,
            tree.root(),
            head.root
        )))
    }

    /// Which of these entries cannot be read.
    fn first_bad(&self, from: u64, to: u64, error: &StoreError) -> RuntimeError {
        let found = (from..to).find_map(|index| self.looked.entries(index, 1).err().map(|error| (index, error)));
        match found {
            Some((index, error @ StoreError::Malformed { .. })) => broken(format!("entry {index}: {error}")).at_entry(index),
            _ => damaged(error),
        }
    }

    /// One entry as it is kept.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn one(&self, index: u64) -> Result<Vec<u8>, RuntimeError> {
        let size = self.heads()?.all.size;
        if index >= size {
            return Err(beyond(index, size));
        }
        let mut found = Vec::new();
        self.each(index, index + 1, |_, entry| {
            found = entry.to_vec();
            Ok::<_, RuntimeError>(())
        })?;
        Ok(found)
    }

    /// What an entry says.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn entry(&self, index: u64, bytes: &[u8]) -> Result<Entry, RuntimeError> {
        parse_entry_at(index, bytes)
    }

    /// What is kept under a digest.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, RuntimeError> {
        self.looked.blob(&digest).map_err(|error| damaged(&error))
    }

    /// An operation of the journal.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn operation(&self, id: &OperationId) -> Result<Option<History>, RuntimeError> {
        self.looked.operation(id).map_err(|error| damaged(&error))
    }

    /// The operations of a run, in their order.
    ///
    /// # Errors
    /// The ledger or the journal cannot be read, or is not as it was recorded.
    pub fn operations(&self, run: &RunId) -> Result<Vec<History>, RuntimeError> {
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let filter = Filter { run: Some(run.clone()), before: before.take(), ..Filter::default() };
            let page = self.looked.operations(&filter, LIST_MAX).map_err(|error| damaged(&error))?;
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
    pub fn tile(&self, tile: Tile) -> Result<Vec<Hash>, RuntimeError> {
        self.looked.hashes(tile).map_err(|error| damaged(&error))?.ok_or_else(|| broken(format!("{} is missing", tile.path())))
    }

    /// The roots of its subtrees, where it has this size.
    pub fn hashes(&self, size: u64) -> impl Hashes<Error = RuntimeError> {
        TiledHashes::new(size, |tile| self.tile(tile))
    }
}

/// What an entry says.
///
/// # Errors
/// The ledger or the journal cannot be read, or is not as it was recorded.
pub fn parse_entry_at(index: u64, bytes: &[u8]) -> Result<Entry, RuntimeError> {
    parse_entry(bytes).map_err(|error| broken(format!("entry {index} is none that this program writes: {error}")).at_entry(index))
}

/// The ledger is not so long.
pub fn beyond(index: u64, size: u64) -> RuntimeError {
    RuntimeError::input(format!("there is no entry {index}: the ledger has {size}")).with_help("entries are counted from 0")
}

fn unopened(error: &OpenError) -> RuntimeError {
    match error {
        // It may be somebody else's, or what is left of ours: what to do is not the same, and neither is to be said of the other.
        OpenError::NotOurs { place } => broken(format!("{} is not a database of this program", files::shown(place))).with_help(
            "if this program kept its state there, somebody replaced or damaged the file: keep it as it is, and compare with an export or a \
             copy; if it never did, name another state directory",
        ),
        // Whoever only looks keeps what is there: restoring is for those who want to go on.
        OpenError::Damaged { place, cause } => broken(format!("{} is damaged: {cause}", files::shown(place))),
        OpenError::Lost { place, remains } => {
            let (place, remains) = (files::shown(place), files::shown(remains));
            broken(format!("{place} is missing or empty, but {remains} shows that it was in use"))
        }
        _ => unreadable_error(error),
    }
}

/// A file that is there and cannot be read as ours is not what was recorded; one that the system does not give is something else.
pub fn damaged(error: &StoreError) -> RuntimeError {
    match error {
        StoreError::Malformed { .. } => broken(error.to_string()),
        _ => store_error(error),
    }
}
