//! A store that is only looked at: a copy of one on another machine, or one that somebody else has open. Whoever verifies it changes nothing in it,
//! takes no lock and makes no file.
//!
//! What never enters: writing, and judging what is found. Damage that SQLite or a sum over a row can find is told on demand.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use converger_core::apply::{History, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::Replay;
use converger_ledger::{Hash, Tile};
use rusqlite::Connection;

use super::tables::Tables;
use super::trouble::Trouble;
use super::{glance, open, snapshot};
use crate::agreement::{Agreement, Told, Unlogged};
use crate::query::{Filter, Heads, LIST_MAX, RunHistory};
use crate::tables::{Read as _, of_today};
use crate::{OpenError, StoreError};

/// A store as it was when it was opened.
pub struct Looked {
    connection: Connection,
    place: PathBuf,
    /// The file as it was; none, where what is read is a copy of it in memory.
    stamp: Option<Stamp>,
}

/// What of a file changes when it is written to.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(place: &Path) -> Option<Stamp> {
    let found = fs::metadata(place).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl fmt::Debug for Looked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Looked").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Looked {
    /// Opens the file of a store, or the one in a state directory; none where there is none, or nothing in it yet.
    ///
    /// # Errors
    /// It is not ours, of a later version, or cannot be read.
    pub fn open(place: &Path) -> Result<Option<Self>, OpenError> {
        let place = std::path::absolute(place).unwrap_or_else(|_| place.to_path_buf());
        let place = if place.is_dir() { place.join(open::FILE) } else { place };
        let before = stamp(&place);
        let begun = glance::begun(&place)?;
        Ok(begun.map(|begun| Self { connection: begun.connection, stamp: before.filter(|_| begun.is_as_it_lies), place }))
    }

    /// Whether everything that was read since it was opened is of one moment. It is not where somebody wrote to the file meanwhile: nothing
    /// here holds them up, so that whoever finds something wrong asks this before they say so.
    #[must_use]
    pub fn is_of_one_moment(&self) -> bool {
        self.stamp.is_none_or(|then| stamp(&self.place) == Some(then))
    }

    /// The file.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// What of it is damaged, looked for in all of it: its order, sums over rows, rows that belong to nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn damage(&self) -> Result<Option<String>, StoreError> {
        open::damage(&self.connection, 0).map_err(|error| Trouble::from(error).of_reading(&self.place))
    }

    /// How long the ledger is.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn heads(&self) -> Result<Heads, StoreError> {
        self.read(|tables| tables.heads())
    }

    /// Entries of the ledger from this place on, counted from 0, at most [`LIST_MAX`].
    ///
    /// # Errors
    /// They cannot be read, or one of them is missing.
    pub fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, StoreError> {
        self.read(|tables| tables.entries(from, limit.min(LIST_MAX)))
    }

    /// The hashes of a tile of the ledger; none where the ledger is not so long.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn hashes(&self, tile: Tile) -> Result<Option<Vec<Hash>>, StoreError> {
        self.read(|tables| tables.hashes(tile))
    }

    /// The hashes of a full tile as they are kept; none where they are not, however long the ledger is.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn full_tile(&self, tile: Tile) -> Result<Option<Vec<Hash>>, StoreError> {
        self.read(|tables| tables.full_tile(tile))
    }

    /// What is kept under a digest.
    ///
    /// # Errors
    /// It cannot be read, or is not what its digest says.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.read(|tables| tables.blob(digest))
    }

    /// One operation with its history.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn operation(&self, id: &OperationId) -> Result<Option<History>, StoreError> {
        self.read(|tables| tables.operation(id))
    }

    /// Operations, newest first, at most `limit` and at most [`LIST_MAX`].
    ///
    /// # Errors
    /// They cannot be read.
    pub fn operations(&self, filter: &Filter, limit: u32) -> Result<Vec<History>, StoreError> {
        self.read(|tables| tables.operations(&of_today(tables, filter.clone())?, limit.min(LIST_MAX)))
    }

    /// One run.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn run(&self, id: &RunId) -> Result<Option<RunHistory>, StoreError> {
        self.read(|tables| tables.run(id))
    }

    /// How many entries and how many full tiles of the ledger there are, wherever they stand.
    ///
    /// # Errors
    /// They cannot be counted.
    pub fn rows_of_ledger(&self) -> Result<(u64, u64), StoreError> {
        self.read(|tables| Ok((tables.count("ledger_entries")?, tables.count("ledger_tiles")?)))
    }

    /// The first row in which the journal says something else than these entries amount to, all of which both were told (C7). It is read page by
    /// page.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn disagreement(&self, replay: &Replay, told: &Told) -> Result<Option<Unlogged>, StoreError> {
        let mut agreement = Agreement::with(replay, told);
        let found = self.all_operations(|history| agreement.operation(history))?;
        if found.is_some() {
            return Ok(found);
        }
        let order = self.read(|tables| tables.order())?;
        for id in &order.0 {
            // A row that cannot be found by the id that it has is another one's.
            if let Some(Err(found)) = self.run(id)?.map(|run| agreement.run(&run)) {
                return Ok(Some(found));
            }
        }
        let (holds, freezes) = self.read(|tables| tables.in_force())?;
        let names = self.read(|tables| tables.names())?;
        let (said, keys) = (self.read(|tables| tables.said())?, self.read(|tables| tables.keys())?);
        let agreed = agreement
            .ended()
            .and_then(|()| agreement.in_force(&holds, &freezes))
            .and_then(|()| agreement.names(&names))
            .and_then(|()| agreement.past(&said, &order, keys));
        Ok(agreed.err())
    }

    /// Each operation, until one of them is found wrong.
    fn all_operations(&self, mut told: impl FnMut(&History) -> Result<(), Unlogged>) -> Result<Option<Unlogged>, StoreError> {
        let mut before: Option<OperationId> = None;
        loop {
            let page = self.operations(&Filter { before: before.take(), ..Filter::default() }, LIST_MAX)?;
            let Some(last) = page.last() else { return Ok(None) };
            if let Some(found) = page.iter().find_map(|history| told(history).err()) {
                return Ok(Some(found));
            }
            before = Some(last.id().clone());
        }
    }

    /// Under which digests something is kept, whether or not anything names it.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn digests(&self) -> Result<Vec<Digest>, StoreError> {
        self.read(|tables| tables.digests())
    }

    fn read<T>(&self, read: impl FnOnce(&Tables<'_>) -> Result<T, Trouble>) -> Result<T, StoreError> {
        snapshot(&self.connection, read).map_err(|trouble| trouble.of_reading(&self.place))
    }
}
