//! Copies a store into another file while other processes write to it, with SQLite's online backup.
//!
//! Pages are copied as they are, in one read transaction: the copy is the store of one moment, with the checksums of its rows, and it is the
//! same kind of file as a store that was closed. `VACUUM INTO` would write every row again, which hides damage instead of copying it, and
//! would leave a journal beside the copy if it is killed.
//!
//! Must not check the copy: its reader does, as with every store.

use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use thiserror::Error;

use super::store_view::file_stamp;
use super::{StoreSettings, open, peek, schema};
use crate::StoreOpenError;

/// How often a copy of a file that no process had open is repeated because one opened it and wrote to it.
const ATTEMPTS_MAX: usize = 8;

/// Why a store was not copied. The target may contain a part of it.
#[derive(Debug, Error)]
pub enum StoreCopyError {
    /// The store cannot be read.
    #[error(transparent)]
    Source(#[from] StoreOpenError),
    /// The disk of the target is full.
    #[error("the disk of {path} is full")]
    TargetFull {
        /// The target.
        path: PathBuf,
    },
    /// The copy failed.
    #[error("cannot copy {from} to {to}: {cause}")]
    Failed {
        /// The store.
        from: PathBuf,
        /// The target.
        to: PathBuf,
        /// The error of SQLite.
        cause: String,
    },
}

/// Copies the store in this file, or in this state directory, into an existing empty file. Returns `false` if there is no store or it is
/// still empty. The copy is not synced.
///
/// A process that has the store open must not call this: closing a second descriptor of a file releases the locks of the first.
///
/// # Errors
/// The store cannot be read or is not one of this program and version, or the target cannot be written.
pub fn copy_store(from: &Path, to: &Path) -> Result<bool, StoreCopyError> {
    let path = if from.is_dir() { from.join(open::STORE_FILE) } else { from.to_path_buf() };
    let path = std::path::absolute(&path).unwrap_or(path);
    for _ in 0..ATTEMPTS_MAX {
        let stamp = file_stamp(&path);
        let Some((source, is_live)) = open_source(&path)? else { return Ok(false) };
        copy_pages(&source, to).map_err(|error| copy_error(&path, to, &error))?;
        drop(source);
        // A connection that takes no locks sees a mix of old and new pages if another process merges a WAL meanwhile.
        if is_live || file_stamp(&path) == stamp {
            return Ok(true);
        }
    }
    let cause = format!("it changed during each of {ATTEMPTS_MAX} attempts to copy it");
    Err(StoreCopyError::Failed { from: path, to: to.to_path_buf(), cause })
}

/// The store, and whether it is read under the locks of SQLite. Without a WAL no process has unfinished work in it: it is read in place, so
/// that nothing is created beside it.
fn open_source(path: &Path) -> Result<Option<(Connection, bool)>, StoreOpenError> {
    if !peek::check_store_exists(path)? {
        return Ok(None);
    }
    let is_live = std::fs::metadata(open::wal_path(path)).map_or(0, |metadata| metadata.len()) > 0;
    let sql_error = |error| open::sql_open_error(path.to_path_buf(), error);
    let connection =
        if is_live { open::open_reader(path, StoreSettings::PATIENCE)? } else { peek::open_immutable(path).map_err(sql_error)? };
    open::check_file_format(&connection, path)?;
    let is_bare = schema::check_bare(&connection).map_err(sql_error)?;
    Ok((!is_bare).then_some((connection, is_live)))
}

fn copy_pages(source: &Connection, to: &Path) -> rusqlite::Result<()> {
    let mut target = Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // An incomplete copy is dropped as a whole, so it needs neither a journal beside it nor a sync at every step.
    target.pragma_update_and_check(None, "journal_mode", "off", |_| Ok(()))?;
    target.pragma_update(None, "synchronous", "off")?;
    let step = Backup::new(source, &mut target)?.step(-1)?;
    match step {
        StepResult::Done => Ok(()),
        _ => Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY), None)),
    }
}

fn copy_error(from: &Path, to: &Path, error: &rusqlite::Error) -> StoreCopyError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => StoreCopyError::TargetFull { path: to.to_path_buf() },
        Some(ErrorCode::DatabaseCorrupt) => {
            StoreCopyError::Source(StoreOpenError::Damaged { place: from.to_path_buf(), cause: error.to_string() })
        }
        _ => StoreCopyError::Failed { from: from.to_path_buf(), to: to.to_path_buf(), cause: error.to_string() },
    }
}
