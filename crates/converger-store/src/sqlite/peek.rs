//! Opens the file of a store for reading alone.
//!
//! It changes nothing, so an audit may use it (G5): it creates no directory and no file, and moves nothing from the log into the file. It
//! waits for no other process.

use std::io;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::{checksums, open, schema, wal_snapshot};
use crate::StoreOpenError;

/// A read-only connection to a store that is not empty.
pub(super) struct PeekConnection {
    pub(super) connection: Connection,
    /// The connection reads the file in place instead of a copy in memory: a checkpoint by another process changes what is read.
    pub(super) is_immutable_file: bool,
}

pub(super) fn open_for_peek(path: &Path) -> Result<Option<PeekConnection>, StoreOpenError> {
    if !check_store_exists(path)? {
        return Ok(None);
    }
    let opened = connect_for_peek(path)?;
    open::check_file_format(&opened.connection, path)?;
    let is_bare = schema::check_bare(&opened.connection).map_err(|error| open::sql_open_error(path.to_path_buf(), error))?;
    if is_bare {
        return Ok(None);
    }
    open::check_schema(&opened.connection, path)?;
    Ok(Some(opened))
}

/// Whether there is a store. A path that cannot be inspected may be a store, and one that is not a regular file cannot be opened: both
/// are errors.
pub(super) fn check_store_exists(path: &Path) -> Result<bool, StoreOpenError> {
    let unusable = |help, source| StoreOpenError::Unusable { what: "read", path: path.to_path_buf(), help, source };
    match std::fs::symlink_metadata(path) {
        // A process that died before its first transaction leaves an empty file.
        Ok(metadata) if metadata.is_file() && metadata.len() > 0 => Ok(true),
        Ok(metadata) if metadata.is_file() => open::check_not_lost(path).map(|()| false),
        Ok(_) => Err(unusable("use another state directory", io::Error::other("it is not a regular file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => open::check_not_lost(path).map(|()| false),
        Err(error) => Err(unusable("use a state directory that this user can access", error)),
    }
}

/// Without a WAL no process has the file open, and the file is read in place. Otherwise the file and its WAL are combined in memory,
/// because SQLite would create or change files beside them.
fn connect_for_peek(path: &Path) -> Result<PeekConnection, StoreOpenError> {
    let log = open::wal_path(path);
    let is_as_it_lies = std::fs::metadata(&log).map_or(0, |metadata| metadata.len()) == 0;
    let connection = if is_as_it_lies {
        open_immutable(path)
    } else {
        let help = "let this user read it and its `-wal` file, or wait until the process that writes to it ends";
        let unread = |source| StoreOpenError::Unusable { what: "read", path: path.to_path_buf(), help, source };
        wal_snapshot::read_with_wal(path, &log, load_into_memory).map_err(unread)?
    };
    let connection = connection.map_err(|error| open::sql_open_error(path.to_path_buf(), error))?;
    Ok(PeekConnection { connection, is_immutable_file: is_as_it_lies })
}

pub(super) fn open_immutable(path: &Path) -> rusqlite::Result<Connection> {
    let name: String = path.to_string_lossy().bytes().map(escape_uri_byte).collect();
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
