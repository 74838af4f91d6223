//! A store that is only looked at: a copy of one on another machine, or one that somebody else has open. Whoever verifies it changes nothing in it,
//! takes no lock and makes no file.
//!
//! What never enters: writing, and judging what is found. Damage that SQLite or a sum over a row can find is told on demand.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use converger_core::apply::{OperationHistory, OperationId, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::LedgerReplay;
use converger_ledger::{LogHash, Tile};
use rusqlite::Connection;

use super::sql_fault::SqlFault;
use super::tables::SqlTables;
use super::{open, peek, read_in_snapshot};
use crate::journal_check::{JournalCheck, JournalMismatch, LedgerIndex};
use crate::query::{LIST_MAX, LedgerHeads, OperationFilter, RunHistory};
use crate::tables::{ReadTables as _, of_today};
use crate::{StoreError, StoreOpenError};

/// A store as it was when it was opened.
pub struct StoreView {
    connection: Connection,
    place: PathBuf,
    /// The file as it was; none, where what is read is a copy of it in memory.
    stamp: Option<FileStamp>,
}

/// What of a file changes when it is written to.
type FileStamp = (u64, u64, u64, i64, i64);

fn file_stamp(place: &Path) -> Option<FileStamp> {
    let found = fs::metadata(place).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl fmt::Debug for StoreView {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Looked").field("place", &self.place).finish_non_exhaustive()
    }
}

impl StoreView {
    /// Opens the file of a store, or the one in a state directory; none where there is none, or nothing in it yet.
    ///
    /// # Errors
    /// It is not ours, of a later version, or cannot be read.
    pub fn open(place: &Path) -> Result<Option<Self>, StoreOpenError> {
        let place = std::path::absolute(place).unwrap_or_else(|_| place.to_path_buf());
        let place = if place.is_dir() { place.join(open::STORE_FILE) } else { place };
        let before = file_stamp(&place);
        let begun = peek::open_for_peek(&place)?;
        Ok(begun.map(|begun| Self { connection: begun.connection, stamp: before.filter(|_| begun.is_immutable_file), place }))
    }

    /// Whether everything that was read since it was opened is of one moment. It is not where somebody wrote to the file meanwhile: nothing
    /// here holds them up, so that whoever finds something wrong asks this before they say so.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.stamp.is_none_or(|then| file_stamp(&self.place) == Some(then))
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place
    }

    /// What of it is damaged, looked for in all of it: its order, sums over rows, rows that belong to nothing.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn find_damage(&self) -> Result<Option<String>, StoreError> {
        open::find_damage(&self.connection, 0).map_err(|error| SqlFault::from(error).into_read_error(&self.place))
    }

    /// How long the ledger is.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn heads(&self) -> Result<LedgerHeads, StoreError> {
        self.read_snapshot(|tables| tables.heads())
    }

    /// Entries of the ledger from this place on, counted from 0, at most [`LIST_MAX`].
    ///
    /// # Errors
    /// They cannot be read, or one of them is missing.
    pub fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, StoreError> {
        self.read_snapshot(|tables| tables.entries(from, limit.min(LIST_MAX)))
    }

    /// The hashes of a tile of the ledger; none where the ledger is not so long.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn hashes(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        self.read_snapshot(|tables| tables.hashes(tile))
    }

    /// The hashes of a full tile as they are kept; none where they are not, however long the ledger is.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn full_tile(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        self.read_snapshot(|tables| tables.full_tile(tile))
    }

    /// What is kept under a digest.
    ///
    /// # Errors
    /// It cannot be read, or is not what its digest says.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_snapshot(|tables| tables.blob(digest))
    }

    /// One operation with its history.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, StoreError> {
        self.read_snapshot(|tables| tables.operation(id))
    }

    /// Operations, newest first, at most `limit` and at most [`LIST_MAX`].
    ///
    /// # Errors
    /// They cannot be read.
    pub fn operations(&self, filter: &OperationFilter, limit: u32) -> Result<Vec<OperationHistory>, StoreError> {
        self.read_snapshot(|tables| tables.operations(&of_today(tables, filter.clone())?, limit.min(LIST_MAX)))
    }

    /// One run.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn run(&self, id: &RunId) -> Result<Option<RunHistory>, StoreError> {
        self.read_snapshot(|tables| tables.run(id))
    }

    /// How many entries and how many full tiles of the ledger there are, wherever they stand.
    ///
    /// # Errors
    /// They cannot be counted.
    pub fn ledger_row_counts(&self) -> Result<(u64, u64), StoreError> {
        self.read_snapshot(|tables| Ok((tables.count("ledger_entries")?, tables.count("ledger_tiles")?)))
    }

    /// The first row in which the journal says something else than these entries amount to, all of which both were told (C7). It is read page by
    /// page.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub fn find_journal_mismatch(&self, replay: &LedgerReplay, told: &LedgerIndex) -> Result<Option<JournalMismatch>, StoreError> {
        let mut agreement = JournalCheck::new(replay, told);
        let found = self.check_each_operation(|history| agreement.check_operation(history))?;
        if found.is_some() {
            return Ok(found);
        }
        let order = self.read_snapshot(|tables| tables.start_order())?;
        for id in &order.0 {
            // A row that cannot be found by the id that it has is another one's.
            if let Some(Err(found)) = self.run(id)?.map(|run| agreement.check_run(&run)) {
                return Ok(Some(found));
            }
        }
        let (holds, freezes) = self.read_snapshot(|tables| tables.active_holds_and_freezes())?;
        let names = self.read_snapshot(|tables| tables.names())?;
        let (said, keys) = (self.read_snapshot(|tables| tables.hold_history())?, self.read_snapshot(|tables| tables.idempotency_rows())?);
        let agreed = agreement
            .check_complete()
            .and_then(|()| agreement.check_active_holds(&holds, &freezes))
            .and_then(|()| agreement.names(&names))
            .and_then(|()| agreement.check_history(&said, &order, keys));
        Ok(agreed.err())
    }

    /// Each operation, until one of them is found wrong.
    fn check_each_operation(
        &self,
        mut told: impl FnMut(&OperationHistory) -> Result<(), JournalMismatch>,
    ) -> Result<Option<JournalMismatch>, StoreError> {
        let mut before: Option<OperationId> = None;
        loop {
            let page = self.operations(&OperationFilter { before: before.take(), ..OperationFilter::default() }, LIST_MAX)?;
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
        self.read_snapshot(|tables| tables.digests())
    }

    fn read_snapshot<T>(&self, read: impl FnOnce(&SqlTables<'_>) -> Result<T, SqlFault>) -> Result<T, StoreError> {
        read_in_snapshot(&self.connection, read).map_err(|trouble| trouble.into_read_error(&self.place))
    }
}
