//! What went wrong with a file, sorted by what follows from it.

use std::path::Path;

use converger_core::apply::StoredTextError;
use rusqlite::ErrorCode;

use super::holder::writer_of;
use crate::StoreError;

/// Why a statement or a row was no use.
#[derive(Debug)]
pub(crate) enum SqlFault {
    /// SQLite said so.
    Sql(rusqlite::Error),
    /// There is no room.
    Full,
    /// A row is not what this program writes.
    Damaged {
        /// The row.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
}

impl From<rusqlite::Error> for SqlFault {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
        match error {
            // SQLite gives what is there; that it is no value of ours is what is wrong with the row.
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

    /// What a reader is told.
    pub(super) fn into_read_error(self, place: &Path) -> StoreError {
        let place = place.to_path_buf();
        match self {
            Self::Damaged { what, cause } => StoreError::Malformed { place, what, cause },
            Self::Full => StoreError::Full { place },
            Self::Sql(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                    StoreError::Malformed { place, what: "the file".into(), cause: error.to_string() }
                }
                _ => StoreError::Unreadable { place, cause: error.to_string() },
            },
        }
    }

    /// What a writer makes of it.
    pub(super) fn into_write_failure(self, place: &Path) -> WriteFailure {
        let place = place.to_path_buf();
        match self {
            Self::Damaged { what, cause } => WriteFailure::Recoverable(StoreError::Malformed { place, what, cause }),
            Self::Full => WriteFailure::Recoverable(StoreError::Full { place }),
            Self::Sql(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => WriteFailure::Recoverable(StoreError::Full { place }),
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    let holder = writer_of(&place);
                    WriteFailure::Recoverable(StoreError::Busy { place, holder })
                }
                _ => WriteFailure::Fatal(format!("{}: {error}", place.display())),
            },
        }
    }
}

/// What a failed write leaves behind.
pub(super) enum WriteFailure {
    /// Nothing was written, and that is certain: the store goes on.
    Recoverable(StoreError),
    /// What is on the disk is not known, or cannot be trusted: nothing more may be acknowledged (S18).
    ///
    /// A failed sync is in here, and everything that is not known to be harmless.
    Fatal(String),
}
