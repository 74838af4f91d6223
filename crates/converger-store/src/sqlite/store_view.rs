//! A store opened for reading alone: a copy on another machine, or one that another process has open. It takes no lock, creates no file and
//! changes nothing.
//!
//! Reads go through [`StoreReader`](crate::StoreReader). The file itself (its path, its damage, whether it changed) is asked for here, because
//! only a store in a file has one.

use std::fmt;
use std::fs;
use std::future::{Future, ready};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::sql_fault::SqlFault;
use super::tables::SqlTables;
use super::{open, peek, read_in_snapshot};
use crate::read_access::ReadAccess;
use crate::{StoreError, StoreOpenError};

/// A store as it was when the view was opened.
pub struct StoreView {
    connection: Mutex<Connection>,
    path: PathBuf,
    /// The stamp of the file when it was opened; `None` if the view reads a copy in memory.
    stamp: Option<FileStamp>,
}

/// Attributes of a file that change when it is written to: device, inode, length and modification time.
pub(super) type FileStamp = (u64, u64, u64, i64, i64);

pub(super) fn file_stamp(path: &Path) -> Option<FileStamp> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

impl fmt::Debug for StoreView {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StoreView").field("place", &self.path).finish_non_exhaustive()
    }
}

impl StoreView {
    /// Opens a store file, or the store in a state directory; `None` if there is no store or it is still empty.
    ///
    /// # Errors
    /// The file is not a store of this program, has a later version, or cannot be read.
    pub fn open(path: &Path) -> Result<Option<Self>, StoreOpenError> {
        Self::open_file(if path.is_dir() { path.join(open::STORE_FILE) } else { path.to_path_buf() })
    }

    fn open_file(path: PathBuf) -> Result<Option<Self>, StoreOpenError> {
        let path = std::path::absolute(&path).unwrap_or(path);
        let before = file_stamp(&path);
        let opened = peek::open_for_peek(&path)?;
        Ok(opened.map(|opened| Self {
            connection: Mutex::new(opened.connection),
            stamp: before.filter(|_| opened.is_immutable_file),
            path,
        }))
    }

    /// Opens the store in a state directory and checks its file for damage: for callers that act on what they read and verify nothing themselves.
    ///
    /// # Errors
    /// As [`StoreView::open`], or the file is damaged.
    pub fn open_undamaged(directory: &Path) -> Result<Option<Self>, StoreOpenError> {
        let Some(view) = Self::open_file(directory.join(open::STORE_FILE))? else { return Ok(None) };
        open::check_undamaged(&view.connection.lock().unwrap_or_else(PoisonError::into_inner), &view.path)?;
        Ok(Some(view))
    }

    /// Whether everything read since the view was opened comes from one snapshot. Nothing here blocks writers, so another process may
    /// have changed the file. Check this before reporting a fault.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.stamp.is_none_or(|then| file_stamp(&self.path) == Some(then))
    }

    /// The path of the store file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Searches the whole file for damage: its structure, row checksums and orphaned rows.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn find_damage(&self) -> Result<Option<String>, StoreError> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        open::find_damage(&connection, 0).map_err(|error| SqlFault::from(error).into_read_error(&self.path))
    }
}

impl ReadAccess for StoreView {
    type Fault = SqlFault;
    type Tables<'t> = SqlTables<'t>;

    fn run_read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&SqlTables<'_>) -> Result<T, SqlFault> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        ready(read_in_snapshot(&connection, read).map_err(|fault| fault.into_read_error(&self.path)))
    }
}
