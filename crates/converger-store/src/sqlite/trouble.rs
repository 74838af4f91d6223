//! What went wrong with a file, sorted by what follows from it.

use std::path::Path;

use converger_core::apply::Malformed;
use rusqlite::ErrorCode;

use super::holder::writer_of;
use crate::StoreError;

/// Why a statement or a row was no use.
#[derive(Debug)]
pub(super) enum Trouble {
    /// SQLite said so.
    Sql(rusqlite::Error),
    /// There is no room.
    Full,
    /// A row is not what this program writes.
    Rotten {
        /// The row.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
        match error {
            // SQLite gives what is there; that it is no value of ours is what is wrong with the row.
            FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..) => {
                Self::rotten("a row", error.to_string())
            }
            error => Self::Sql(error),
        }
    }
}

impl Trouble {
    pub(super) fn rotten(what: &str, cause: impl Into<String>) -> Self {
        Self::Rotten { what: what.into(), cause: cause.into() }
    }

    pub(super) fn malformed(what: &str, cause: &Malformed) -> Self {
        Self::rotten(what, cause.to_string())
    }

    /// What a reader is told.
    pub(super) fn of_reading(self, place: &Path) -> StoreError {
        let place = place.to_path_buf();
        match self {
            Self::Rotten { what, cause } => StoreError::Malformed { place, what, cause },
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
    pub(super) fn of_writing(self, place: &Path) -> Failure {
        let place = place.to_path_buf();
        match self {
            Self::Rotten { what, cause } => Failure::Survived(StoreError::Malformed { place, what, cause }),
            Self::Full => Failure::Survived(StoreError::Full { place }),
            Self::Sql(error) => match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull) => Failure::Survived(StoreError::Full { place }),
                Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                    let holder = writer_of(&place);
                    Failure::Survived(StoreError::Busy { place, holder })
                }
                _ => Failure::Fatal(format!("{}: {error}", place.display())),
            },
        }
    }
}

/// What a failed write leaves behind.
pub(super) enum Failure {
    /// Nothing was written, and that is certain: the store goes on.
    Survived(StoreError),
    /// What is on the disk is not known, or cannot be trusted: nothing more may be acknowledged (S18).
    ///
    /// A failed sync is in here, and everything that is not known to be harmless.
    Fatal(String),
}
