//! A read-only view of a store: a copy from another machine, or a store that another process has open. A view changes nothing in the
//! store, takes no lock and creates no file.
//!
//! Must not write or interpret what it finds. Damage that SQLite or a row checksum can detect is reported on request.

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

/// A store as it was when the view was opened.
pub struct StoreView {
    connection: Connection,
    place: PathBuf,
    /// The stamp of the file when it was opened; `None` if the view reads a copy in memory.
    stamp: Option<FileStamp>,
}

/// Attributes of a file that change when it is written to: device, inode, length and modification time.
type FileStamp = (u64, u64, u64, i64, i64);

fn file_stamp(place: &Path) -> Option<FileStamp> {
    let found = fs::metadata(place).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl fmt::Debug for StoreView {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StoreView").field("place", &self.place).finish_non_exhaustive()
    }
}

impl StoreView {
    /// Opens a store file, or the store in a state directory; `None` if there is no store or it is still empty.
    ///
    /// # Errors
    /// The file is not a store of this program, has a later version, or cannot be read.
    pub fn open(place: &Path) -> Result<Option<Self>, StoreOpenError> {
        let place = std::path::absolute(place).unwrap_or_else(|_| place.to_path_buf());
        let place = if place.is_dir() { place.join(open::STORE_FILE) } else { place };
        let before = file_stamp(&place);
        let begun = peek::open_for_peek(&place)?;
        Ok(begun.map(|begun| Self { connection: begun.connection, stamp: before.filter(|_| begun.is_immutable_file), place }))
    }

    /// Whether everything read since the view was opened comes from one snapshot. Nothing here blocks writers, so another process may
    /// have changed the file. Check this before reporting a fault.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.stamp.is_none_or(|then| file_stamp(&self.place) == Some(then))
    }

    /// The path of the store file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.place
    }

    /// Searches the whole file for damage: its structure, row checksums and orphaned rows.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn find_damage(&self) -> Result<Option<String>, StoreError> {
        open::find_damage(&self.connection, 0).map_err(|error| SqlFault::from(error).into_read_error(&self.place))
    }

    /// The size of the ledger.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn heads(&self) -> Result<LedgerHeads, StoreError> {
        self.read_snapshot(|tables| tables.heads())
    }

    /// Ledger entries starting at index `from` (zero-based), at most [`LIST_MAX`].
    ///
    /// # Errors
    /// The entries cannot be read, or one of them is missing.
    pub fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, StoreError> {
        self.read_snapshot(|tables| tables.entries(from, limit.min(LIST_MAX)))
    }

    /// The hashes of a ledger tile; `None` if the ledger does not reach that far.
    ///
    /// # Errors
    /// The hashes cannot be read.
    pub fn hashes(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        self.read_snapshot(|tables| tables.hashes(tile))
    }

    /// The stored hashes of a full tile; `None` if the tile is not stored, whatever the size of the ledger.
    ///
    /// # Errors
    /// The hashes cannot be read.
    pub fn full_tile(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        self.read_snapshot(|tables| tables.full_tile(tile))
    }

    /// The bytes stored under a digest.
    ///
    /// # Errors
    /// The bytes cannot be read or do not match the digest.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_snapshot(|tables| tables.blob(digest))
    }

    /// One operation with its history.
    ///
    /// # Errors
    /// The operation cannot be read.
    pub fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, StoreError> {
        self.read_snapshot(|tables| tables.operation(id))
    }

    /// Operations, newest first, at most `limit` and at most [`LIST_MAX`].
    ///
    /// # Errors
    /// The operations cannot be read.
    pub fn operations(&self, filter: &OperationFilter, limit: u32) -> Result<Vec<OperationHistory>, StoreError> {
        self.read_snapshot(|tables| tables.operations(&of_today(tables, filter.clone())?, limit.min(LIST_MAX)))
    }

    /// One run.
    ///
    /// # Errors
    /// The run cannot be read.
    pub fn run(&self, id: &RunId) -> Result<Option<RunHistory>, StoreError> {
        self.read_snapshot(|tables| tables.run(id))
    }

    /// The number of stored ledger entries and of stored full tiles, at whatever index.
    ///
    /// # Errors
    /// The rows cannot be counted.
    pub fn ledger_row_counts(&self) -> Result<(u64, u64), StoreError> {
        self.read_snapshot(|tables| Ok((tables.count("ledger_entries")?, tables.count("ledger_tiles")?)))
    }

    /// The first row of the journal that differs from the replay of the ledger (C7). `replay` and `told` must both have consumed all
    /// entries. Operations are read page by page.
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
            // A row that its own id does not find belongs to another id.
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

    /// Checks each operation until one fails.
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

    /// All digests under which bytes are stored, whether or not anything refers to them.
    ///
    /// # Errors
    /// The digests cannot be read.
    pub fn digests(&self) -> Result<Vec<Digest>, StoreError> {
        self.read_snapshot(|tables| tables.digests())
    }

    fn read_snapshot<T>(&self, read: impl FnOnce(&SqlTables<'_>) -> Result<T, SqlFault>) -> Result<T, StoreError> {
        read_in_snapshot(&self.connection, read).map_err(|trouble| trouble.into_read_error(&self.place))
    }
}
