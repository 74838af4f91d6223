//! Reads the conditions that affect a plan, without changing the store: a freeze, holds, and operations that occupy their guests.
//!
//! Peeking creates no directory and no file and does not checkpoint the WAL, so `audit` may do it. It must not write, and must not wait
//! for other processes.

use std::io;
use std::path::Path;

use converger_core::apply::{EnvironmentNames, Freeze, Hold, OperationHistory};
use converger_core::guest::{EnvironmentName, Vmid};
use rusqlite::{Connection, OpenFlags};

use super::sql_fault::SqlFault;
use super::tables::SqlTables;
use super::{checksums, open, read_in_snapshot, schema, wal_snapshot};
use crate::tables::{ReadTables as _, current};
use crate::{OperationFilter, StoreError, StoreOpenError};

/// What the store holds that can keep steps of a plan from being executed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreConditions {
    /// The freeze of the environment.
    pub freeze: Option<Freeze>,
    /// Guests that people hold, ordered by id.
    pub holds: Vec<Hold>,
    /// Operations that occupy their guests, because they are in flight or their result is unknown. Oldest first.
    pub unsettled: Vec<OperationHistory>,
    /// Which cluster each environment name refers to, and former names.
    pub names: EnvironmentNames,
    /// Operations of guests with pending changes that are not declared, newest first; read only if there are such guests.
    pub writes: Vec<OperationHistory>,
}

/// How many operations of one guest are searched for the one that wrote a pending change.
const WRITES_MAX: u32 = 200;

/// The newest operations of these guests, from the store in a directory; empty if there is no store.
///
/// # Errors
/// The file is not a store of this program, has a later version, or cannot be read.
pub fn glance_writes(directory: &Path, environment: &EnvironmentName, guests: &[Vmid]) -> Result<Vec<OperationHistory>, StoreOpenError> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf());
    let place = directory.join(open::STORE_FILE);
    let Some(PeekConnection { connection, .. }) = open_for_peek(&place)? else { return Ok(Vec::new()) };
    open::check_undamaged(&connection, &place)?;
    let read = read_in_snapshot(&connection, |tables| writes(tables, environment, guests));
    read.map_err(|trouble| StoreOpenError::Failed { cause: trouble.into_read_error(&place).to_string(), place })
}

fn writes(tables: &SqlTables<'_>, environment: &EnvironmentName, guests: &[Vmid]) -> Result<Vec<OperationHistory>, SqlFault> {
    let mut histories = Vec::new();
    for vmid in guests {
        let filter = OperationFilter { environment: Some(environment.clone()), vmid: Some(*vmid), ..OperationFilter::default() };
        histories.extend(tables.operations(&filter, WRITES_MAX)?);
    }
    Ok(histories)
}

/// The conditions of an environment, from the store in a directory; empty if there is no store.
///
/// # Errors
/// The file is not a store of this program, has a later version, or cannot be read.
pub fn peek_conditions(directory: &Path, environment: &EnvironmentName) -> Result<StoreConditions, StoreOpenError> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf());
    let place = directory.join(open::STORE_FILE);
    let Some(PeekConnection { connection, .. }) = open_for_peek(&place)? else { return Ok(StoreConditions::default()) };
    open::check_undamaged(&connection, &place)?;
    let read = read_in_snapshot(&connection, |tables| read_conditions(tables, environment));
    read.map_err(|trouble| StoreOpenError::Failed { cause: trouble.into_read_error(&place).to_string(), place })
}

/// A read-only connection to a store that is not empty.
pub(super) struct PeekConnection {
    pub(super) connection: Connection,
    /// The connection reads the file in place instead of a copy in memory: a checkpoint by another process changes what is read.
    pub(super) is_immutable_file: bool,
}

pub(super) fn open_for_peek(place: &Path) -> Result<Option<PeekConnection>, StoreOpenError> {
    if !check_store_exists(place)? {
        return Ok(None);
    }
    let begun = connect_for_peek(place)?;
    open::check_file_format(&begun.connection, place)?;
    let is_bare = schema::check_bare(&begun.connection).map_err(|error| open::sql_open_error(place.to_path_buf(), error))?;
    if is_bare {
        return Ok(None);
    }
    open::check_schema(&begun.connection, place)?;
    Ok(Some(begun))
}

/// Whether there is a store. A path that cannot be inspected may be a store, and one that is not a regular file cannot be opened: both
/// are errors.
fn check_store_exists(place: &Path) -> Result<bool, StoreOpenError> {
    let unusable = |help, source| StoreOpenError::Unusable { what: "read", place: place.to_path_buf(), help, source };
    match std::fs::symlink_metadata(place) {
        // A process that died before its first transaction leaves an empty file.
        Ok(metadata) if metadata.is_file() && metadata.len() > 0 => Ok(true),
        Ok(metadata) if metadata.is_file() => open::check_not_lost(place).map(|()| false),
        Ok(_) => Err(unusable("use another state directory", io::Error::other("it is not a regular file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => open::check_not_lost(place).map(|()| false),
        Err(error) => Err(unusable("use a state directory that this user can access", error)),
    }
}

/// Reads all conditions of an environment in one snapshot.
fn read_conditions(tables: &SqlTables<'_>, environment: &EnvironmentName) -> Result<StoreConditions, SqlFault> {
    let environment = &current(tables, environment)?;
    Ok(StoreConditions {
        freeze: tables.freeze(environment)?,
        holds: tables.holds(environment)?,
        unsettled: tables.unsettled_operations(environment)?,
        names: tables.names()?,
        writes: Vec::new(),
    })
}

/// Without a WAL no process has the file open, and the file is read in place. Otherwise the file and its WAL are combined in memory,
/// because SQLite would create or change files beside them.
fn connect_for_peek(place: &Path) -> Result<PeekConnection, StoreOpenError> {
    let log = open::wal_path(place);
    let is_as_it_lies = std::fs::metadata(&log).map_or(0, |metadata| metadata.len()) == 0;
    let connection = if is_as_it_lies {
        open_immutable(place)
    } else {
        let help = "let this user read it and its `-wal` file, or wait until the process that writes to it ends";
        let unread = |source| StoreOpenError::Unusable { what: "read", place: place.to_path_buf(), help, source };
        wal_snapshot::read_with_wal(place, &log, load_into_memory).map_err(unread)?
    };
    let connection = connection.map_err(|error| open::sql_open_error(place.to_path_buf(), error))?;
    Ok(PeekConnection { connection, is_immutable_file: is_as_it_lies })
}

fn open_immutable(place: &Path) -> rusqlite::Result<Connection> {
    let name: String = place.to_string_lossy().bytes().map(escape_uri_byte).collect();
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let connection = Connection::open_with_flags(format!("file:{name}?mode=ro&immutable=1"), flags)?;
    checksums::register_row_sum(&connection)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Streams the bytes into SQLite's own buffer, without another copy.
fn load_into_memory(bytes: &mut dyn io::Read, length: usize) -> rusqlite::Result<Connection> {
    let mut connection = Connection::open_in_memory()?;
    checksums::register_row_sum(&connection)?;
    connection.deserialize_read_exact("main", bytes, length, true)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Percent-encodes one byte of a path for a URI.
fn escape_uri_byte(byte: u8) -> String {
    match byte {
        b'/' | b'.' | b'-' | b'_' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        byte => format!("%{byte:02x}"),
    }
}

impl super::SqliteStore {
    /// The newest operations of these guests.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn writes(&self, environment: EnvironmentName, guests: Vec<Vmid>) -> Result<Vec<OperationHistory>, StoreError> {
        self.run_read(move |tables| writes(tables, &environment, &guests)).await
    }

    /// The conditions of this environment.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn conditions(&self, environment: EnvironmentName) -> Result<StoreConditions, StoreError> {
        self.run_read(move |tables| read_conditions(tables, &environment)).await
    }
}
