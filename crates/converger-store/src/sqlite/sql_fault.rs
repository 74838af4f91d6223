//! Classifies failures of the file by their consequences.

use std::path::Path;

use converger_core::apply::StoredTextError;
use rusqlite::ErrorCode;

use super::holder::writer_of;
use crate::StoreError;

/// Why a statement failed or a row could not be used.
#[derive(Debug)]
pub(crate) enum SqlFault {
    /// SQLite reported an error.
    Sql(rusqlite::Error),
    /// The disk is full.
    Full,
    /// A row is not what this program writes.
    Damaged {
        /// The row.
        what: String,
        /// The cause.
        cause: String,
    },
}

impl From<rusqlite::Error> for SqlFault {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
        match error {
            // SQLite returned the stored value; it is not a value that this program writes, so the row is damaged.
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..) => {
                Self::damaged_row("a row", error.to_string())
            }
            error => Self::Sql(error),
        }
    }
}

impl SqlFault {
    pub(super) fn damaged_row(what: &str, cause: impl Into<String>) -> Self {
        Self::Damaged { what: what.into(), cause: cause.into() }
    }

    pub(super) fn malformed_row(what: &str, cause: &StoredTextError) -> Self {
        Self::damaged_row(what, cause.to_string())
    }

    /// The error for a reader.
    pub(super) fn into_read_error(self, path: &Path) -> StoreError {
        let path = path.to_path_buf();
        match self {
            Self::Damaged { what, cause } => StoreError::Malformed { place: path, what, cause },
            Self::Full => StoreError::Full { path },
            Self::Sql(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                    StoreError::Malformed { place: path, what: "the file".into(), cause: error.to_string() }
                }
                _ => StoreError::Unreadable { place: path, cause: error.to_string() },
            },
        }
    }

    /// The consequence for the writer.
    pub(super) fn into_write_failure(self, path: &Path) -> WriteFailure {
        let path = path.to_path_buf();
        match self {
            Self::Damaged { what, cause } => WriteFailure::Recoverable(StoreError::Malformed { place: path, what, cause }),
            Self::Full => WriteFailure::Recoverable(StoreError::Full { path }),
            Self::Sql(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => WriteFailure::Recoverable(StoreError::Full { path }),
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    let holder = writer_of(&path);
                    WriteFailure::Recoverable(StoreError::Busy { place: path, holder })
                }
                _ => WriteFailure::Fatal(format!("{}: {error}", path.display())),
            },
        }
    }
}

/// What is known after a failed write.
pub(super) enum WriteFailure {
    /// Certainly nothing was written: the store continues.
    Recoverable(StoreError),
    /// It is unknown what is on the disk, or it cannot be trusted: nothing more may be acknowledged (S18).
    ///
    /// This includes a failed sync, and every error that is not known to be harmless.
    Fatal(String),
}
