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

use super::super::{Stop, memory, spine};
use crate::{config, files, state};

/// Where a ledger is.
pub(in super::super) struct Shelf {
    pub(in super::super) directory: PathBuf,
    /// The file on other storage that keeps the last checkpoint, where one is named.
    pub(in super::super) witness: Option<PathBuf>,
    /// How another one is named, for whoever finds nothing in this one.
    another: &'static str,
}

/// How often it is looked again where somebody writes at the same time.
const LOOKS_MAX: usize = 8;

impl Shelf {
    /// The one that converger.toml leads to.
    pub(in super::super) fn of(config: Option<&Path>) -> Result<Self, Stop> {
        let survey = config::path(config).map(|_| config::survey(config).map_err(spine::misconfigured)).transpose()?;
        let (configured, witness) = survey.map_or((None, None), |survey| (survey.state, survey.witness));
        let directory = state::directory(configured.as_deref()).map_err(|text| Stop::input(text).code(Code::ConfigInvalid))?;
        Ok(Self { directory, witness, another: "--config names another state directory" })
    }

    /// A directory that was named.
    pub(in super::super) fn at(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            witness: None,
            another: "name the state directory itself, the one with `converger.db` in it",
        }
    }

    /// There is a ledger. Whoever opens one for writing asks this first: none is made for whoever looks for one.
    pub(in super::super) fn must_be_there(&self) -> Result<(), Stop> {
        Book::open(&self.directory)?.map(drop).ok_or_else(|| self.nothing())
    }

    /// What is told of the ledger, all of it of one moment: where somebody wrote to it meanwhile it is told again.
    pub(in super::super) fn read<T>(&self, told: impl Fn(&Book) -> Result<T, Stop>) -> Result<T, Stop> {
        self.read_if_there(told)?.ok_or_else(|| self.nothing())
    }

    /// The same where there may be nothing at all.
    pub(in super::super) fn read_if_there<T>(&self, told: impl Fn(&Book) -> Result<T, Stop>) -> Result<Option<T>, Stop> {
        for _ in 0..LOOKS_MAX {
            let Some(book) = Book::open(&self.directory)? else { return Ok(None) };
            let told = told(&book);
            if book.looked.is_of_one_moment() {
                return told.map(Some);
            }
        }
        let text = format!("{} is written to all the time", files::shown(&self.directory));
        Err(Stop::failed(text).code(Code::JournalUnreadable).help("wait until whoever writes to it ends, or look at a copy of it"))
    }

    fn nothing(&self) -> Stop {
        let text = format!("there is no ledger in {}: nothing was decided there yet", files::shown(&self.directory));
        Stop::input(text).help(format!("`converger apply`, `hold` and `freeze` begin one; {}", self.another))
    }
}

/// The ledger and the journal as they were when they were opened.
pub(in super::super) struct Book {
    looked: Looked,
    directory: PathBuf,
}

/// What is kept is not what was recorded.
pub(in super::super) fn broken(what: impl Into<String>) -> Stop {
    Stop::broken(Code::IntegrityViolation, what)
}

impl Book {
    fn open(directory: &Path) -> Result<Option<Self>, Stop> {
        let looked = Looked::open(directory).map_err(|error| unopened(&error))?;
        Ok(looked.map(|looked| Self { looked, directory: directory.to_owned() }))
    }

    pub(in super::super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The journal and all else that is kept.
    pub(in super::super) fn looked(&self) -> &Looked {
        &self.looked
    }

    pub(in super::super) fn heads(&self) -> Result<Heads, Stop> {
        self.looked.heads().map_err(|error| damaged(&error))
    }

    /// What is told about each entry from this place on and before that: its place, and its bytes.
    pub(in super::super) fn each(&self, from: u64, to: u64, mut told: impl FnMut(u64, &[u8]) -> Result<(), Stop>) -> Result<(), Stop> {
        let mut next = from;
        while next < to {
            let limit = u32::try_from(to - next).unwrap_or(LIST_MAX).min(LIST_MAX);
            let page = self.looked.entries(next, limit).map_err(|error| self.first_bad(next, to, &error))?;
            if page.is_empty() {
                return Err(broken(format!("entry {next} is missing")).at(next));
            }
            for entry in page {
                told(next, &entry)?;
                next += 1;
            }
        }
        Ok(())
    }

    /// Whether the entries lead to this root.
    pub(in super::super) fn leads_to(&self, head: Head) -> Result<(), Stop> {
        let mut tree = Tree::default();
        self.each(0, head.size, |_, entry| {
            tree.append(Hash::of_leaf(entry), |_, _, _| {});
            Ok(())
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
    fn first_bad(&self, from: u64, to: u64, error: &StoreError) -> Stop {
        let found = (from..to).find_map(|index| self.looked.entries(index, 1).err().map(|error| (index, error)));
        match found {
            Some((index, error @ StoreError::Malformed { .. })) => broken(format!("entry {index}: {error}")).at(index),
            _ => damaged(error),
        }
    }

    /// One entry as it is kept.
    pub(in super::super) fn one(&self, index: u64) -> Result<Vec<u8>, Stop> {
        let size = self.heads()?.all.size;
        if index >= size {
            return Err(beyond(index, size));
        }
        let mut found = Vec::new();
        self.each(index, index + 1, |_, entry| {
            found = entry.to_vec();
            Ok(())
        })?;
        Ok(found)
    }

    /// What an entry says.
    pub(in super::super) fn entry(&self, index: u64, bytes: &[u8]) -> Result<Entry, Stop> {
        entry(index, bytes)
    }

    /// What is kept under a digest.
    pub(in super::super) fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, Stop> {
        self.looked.blob(&digest).map_err(|error| damaged(&error))
    }

    /// An operation of the journal.
    pub(in super::super) fn operation(&self, id: &OperationId) -> Result<Option<History>, Stop> {
        self.looked.operation(id).map_err(|error| damaged(&error))
    }

    /// The operations of a run, in their order.
    pub(in super::super) fn operations(&self, run: &RunId) -> Result<Vec<History>, Stop> {
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
    pub(in super::super) fn tile(&self, tile: Tile) -> Result<Vec<Hash>, Stop> {
        self.looked.hashes(tile).map_err(|error| damaged(&error))?.ok_or_else(|| broken(format!("{} is missing", tile.path())))
    }

    /// The roots of its subtrees, where it has this size.
    pub(in super::super) fn hashes(&self, size: u64) -> impl Hashes<Error = Stop> {
        TiledHashes::new(size, |tile| self.tile(tile))
    }
}

/// What an entry says.
pub(super) fn entry(index: u64, bytes: &[u8]) -> Result<Entry, Stop> {
    parse_entry(bytes).map_err(|error| broken(format!("entry {index} is none that this program writes: {error}")).at(index))
}

/// The ledger is not so long.
pub(super) fn beyond(index: u64, size: u64) -> Stop {
    Stop::input(format!("there is no entry {index}: the ledger has {size}")).help("entries are counted from 0")
}

fn unopened(error: &OpenError) -> Stop {
    match error {
        // It may be somebody else's, or what is left of ours: what to do is not the same, and neither is to be said of the other.
        OpenError::NotOurs { place } => broken(format!("{} is not a database of this program", files::shown(place))).help(
            "if this program kept its state there, somebody replaced or damaged the file: keep it as it is, and compare with an export or a \
             copy; if it never did, name another state directory",
        ),
        // Whoever only looks keeps what is there: restoring is for those who want to go on.
        OpenError::Damaged { place, cause } => broken(format!("{} is damaged: {cause}", files::shown(place))),
        OpenError::Lost { place, remains } => {
            let (place, remains) = (files::shown(place), files::shown(remains));
            broken(format!("{place} is missing or empty, but {remains} shows that it was in use"))
        }
        _ => memory::unreadable(error),
    }
}

/// A file that is there and cannot be read as ours is not what was recorded; one that the system does not give is something else.
pub(in super::super) fn damaged(error: &StoreError) -> Stop {
    match error {
        StoreError::Malformed { .. } => broken(error.to_string()),
        _ => memory::failed(error),
    }
}
