//! Opens a store: checks the directory and the file, checks that the file is an undamaged store of this version, and merges its WAL.
//!
//! Nothing in a file is changed before it is known to be a store of this program.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use converger_core::apply::parse_operation;
use converger_ledger::LogBuilder;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _};
use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::holder::writer_of;
use super::schema::{self, SchemaState};
use super::{StoreSettings, checksums, ledger, sql_fault};
use crate::{KEY_FILE, StoreOpenError, lock};

/// The name of the store file in the state directory.
pub const STORE_FILE: &str = "converger.db";

/// The directory in the state directory in which a restore prepares a store.
pub const STAGING_DIRECTORY: &str = "restoring";

/// The path of the WAL of a file.
pub(super) fn wal_path(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_os_string();
    log.push("-wal");
    log.into()
}

/// Files of the state directory are opened directly; links are never followed.
pub(crate) const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// A file up to this size is checked completely at every start. For a larger one only the tables that recovery depends on are checked.
const WHOLE_CHECK_BYTES_MAX: u64 = 64 << 20;

/// A store that was opened for writing.
pub(super) struct OpenedStore {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) wal_state: WalState,
    /// The ledger of the store.
    pub(super) log: LogBuilder,
}

/// Checks and opens the store in a directory, for writing.
pub(super) fn open_writer(directory: &Path, settings: &StoreSettings) -> Result<OpenedStore, StoreOpenError> {
    // SQLite interprets a path that begins with `file:` as a URI.
    let directory = &std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf());
    prepare_directory(directory)?;
    let path = directory.join(STORE_FILE);
    let length = prepare_file(&path)?;
    let opened = open_connection(&path, length, settings).map_err(|fault| fault.into_open_error(&path))?;
    let (connection, settled, log_builder) = opened;
    // Only this sync makes the names of new files durable.
    sync_directory(directory)?;
    Ok(OpenedStore { connection, path, wal_state: settled, log: log_builder })
}

/// Opens a second connection, for reading, to a store that is already open for writing.
pub(super) fn open_reader(path: &Path, patience: Duration) -> Result<Connection, StoreOpenError> {
    let open = || {
        let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        configure_connection(&connection, patience)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| OpenFault::Sql(error).into_open_error(path))
}

/// Settings that every connection needs.
fn configure_connection(connection: &Connection, patience: Duration) -> rusqlite::Result<()> {
    checksums::register_row_sum(connection)?;
    connection.busy_timeout(patience)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Without this, SQLite prepares a statement with a join again for every bound id, which is a quarter of the time of a commit.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare_directory(directory: &Path) -> Result<(), StoreOpenError> {
    let unusable = |what, help, source| StoreOpenError::Unusable { what, path: directory.to_path_buf(), help, source };
    let metadata = match fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let help = "create its parent directory, or use another state directory";
            DirBuilder::new().mode(0o700).create(directory).map_err(|error| unusable("create the state directory", help, error))?;
            return directory.parent().map_or(Ok(()), sync_directory);
        }
        metadata => metadata.map_err(|error| unusable("read the state directory", "use one that this user can access", error))?,
    };
    check_access(directory, &metadata)
}

/// Checks that a state directory, if it exists, can be opened by this user and by no other. Nothing is created.
///
/// # Errors
/// It is not a directory, belongs to another user, or other users can enter it.
pub fn check_state_directory(directory: &Path) -> Result<(), StoreOpenError> {
    fs::metadata(directory).map_or(Ok(()), |metadata| check_access(directory, &metadata))
}

fn check_access(directory: &Path, metadata: &fs::Metadata) -> Result<(), StoreOpenError> {
    let unusable = |what, help, source| StoreOpenError::Unusable { what, path: directory.to_path_buf(), help, source };
    if !metadata.is_dir() {
        return Err(unusable("use as state directory", "it is a file; use another one", io::ErrorKind::NotADirectory.into()));
    }
    // The owner can change the content whatever the mode is. Without this check, root would use a store that another user controls.
    if metadata.uid() != geteuid().as_raw() {
        let owner_error = io::Error::new(io::ErrorKind::PermissionDenied, format!("it belongs to the user with the id {}", metadata.uid()));
        return Err(unusable("use as state directory", "use one that you own, or run this as its owner", owner_error));
    }
    // The store shows what would be done to every guest. The mode is not changed here, because the directory may be a home directory.
    if metadata.permissions().mode() & 0o077 != 0 {
        let open = io::Error::new(io::ErrorKind::PermissionDenied, format!("its mode is {:o}", metadata.permissions().mode() & 0o777));
        return Err(unusable("use as state directory", "other users can enter it; run `chmod 700` on it, or use another one", open));
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> Result<(), StoreOpenError> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let synced = File::open(directory).and_then(|file| file.sync_all());
    let unusable = |source| StoreOpenError::Unusable { what: "sync", path: directory.to_path_buf(), help: "check the disk", source };
    synced.map_err(unusable)
}

/// Creates the file if it is missing, with a mode that keeps other users out from the first byte on. Returns its length.
fn prepare_file(path: &Path) -> Result<u64, StoreOpenError> {
    let help = "it must be a regular file, not a link, and this user must be able to write to it and its directory";
    let unusable = |source| StoreOpenError::Unusable { what: "open", path: path.into(), help, source };
    if fs::symlink_metadata(path).map_or(0, |existing| existing.len()) == 0 {
        check_not_lost(path)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW);
    let metadata = options.open(path).and_then(|file| file.metadata()).map_err(unusable)?;
    if !metadata.is_file() {
        return Err(unusable(io::Error::other("it is not a regular file")));
    }
    // Under a second name SQLite would use another WAL and other locks: two processes would overwrite each other's data without noticing.
    if metadata.nlink() > 1 {
        let help = "copy it to a new name, then move the copy over it";
        let source = io::Error::other(format!("it has {} hard links", metadata.nlink()));
        return Err(StoreOpenError::Unusable { what: "open", path: path.into(), help, source });
    }
    Ok(metadata.len())
}

/// Refuses a store that is missing or empty but existed before. Its WAL, the environment locks and the key are created after its first
/// bytes, so any of them shows that there was a store (S19).
///
/// A new store in its place would know no holds, freezes or operations in flight.
pub(super) fn check_not_lost(path: &Path) -> Result<(), StoreOpenError> {
    let Some(remains) = find_remains(path) else { return Ok(()) };
    // Another process may have created the store in the meantime: its first bytes were there before the file that was found.
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.len() > 0) {
        return Ok(());
    }
    Err(StoreOpenError::Lost { place: path.to_path_buf(), remains })
}

/// A file of the state directory that shows that there was a store.
fn find_remains(store_path: &Path) -> Option<PathBuf> {
    let directory = store_path.parent()?;
    let mut paths: Vec<_> = fs::read_dir(directory).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    // A restore was killed after it moved the old store away and before it moved the new one into place.
    let staged = directory.join(STAGING_DIRECTORY).join(STORE_FILE);
    if staged.exists() {
        return Some(staged);
    }
    let beside = [wal_path(store_path), directory.join(format!("{STORE_FILE}-shm")), directory.join(KEY_FILE)];
    paths.into_iter().find(|path| lock::is_lock_file(path) || beside.contains(path))
}

/// Restricts the file, its WAL and its shared-memory file to this user. SQLite creates the last two with the mode of the file.
fn restrict_permissions(path: &Path) -> io::Result<()> {
    for ending in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_os_string();
        name.push(ending);
        match fs::symlink_metadata(&name) {
            Ok(metadata) if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 => {
                fs::set_permissions(&name, Permissions::from_mode(0o600))?
            }
            _ => {}
        }
    }
    Ok(())
}

enum OpenFault {
    Sql(rusqlite::Error),
    Format(SchemaState),
    Damaged(String),
    Mode(io::Error),
}

impl From<rusqlite::Error> for OpenFault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

fn open_connection(path: &Path, length: u64, settings: &StoreSettings) -> Result<(Connection, WalState, LogBuilder), OpenFault> {
    let mut connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // A close would checkpoint and sync even after a sync that failed, and would report no error.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    configure_connection(&connection, settings.patience)?;
    schema::find_format_fault(&connection)?.map_or(Ok(()), |found| Err(OpenFault::Format(found)))?;
    restrict_permissions(path).map_err(OpenFault::Mode)?;
    set_pragmas(&connection, settings.bytes_max)?;
    in_read_transaction(&connection, |connection| check_for_damage(connection, length))?;
    match schema::make(&mut connection)? {
        SchemaState::Current => {}
        found => return Err(OpenFault::Format(found)),
    }
    let settled = merge_wal(&connection, settings.patience)?;
    let log_builder = in_read_transaction(&connection, |connection| Ok(ledger::resume_log(connection)?))?;
    Ok((connection, settled, log_builder))
}

/// Runs a read in one transaction. Other processes may write at the same time, and an old head with new entries would look like damage.
fn in_read_transaction<T>(connection: &Connection, read: impl FnOnce(&Connection) -> Result<T, OpenFault>) -> Result<T, OpenFault> {
    let transaction = connection.unchecked_transaction()?;
    let value = read(&transaction)?;
    transaction.commit()?;
    Ok(value)
}

impl From<sql_fault::SqlFault> for OpenFault {
    fn from(fault: sql_fault::SqlFault) -> Self {
        match fault {
            sql_fault::SqlFault::Sql(error) => Self::Sql(error),
            sql_fault::SqlFault::Full => {
                Self::Sql(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None))
            }
            sql_fault::SqlFault::Damaged { what, cause } => Self::Damaged(format!("{what}: {cause}")),
        }
    }
}

/// Checks that a file is a store of this program with a known version.
pub(super) fn check_file_format(connection: &Connection, path: &Path) -> Result<(), StoreOpenError> {
    match schema::find_format_fault(connection) {
        Ok(None) => Ok(()),
        Ok(Some(found)) => Err(OpenFault::Format(found).into_open_error(path)),
        Err(error) => Err(OpenFault::Sql(error).into_open_error(path)),
    }
}

/// Checks that the schema is ours. A view in place of a table could return anything, even endless rows.
pub(super) fn check_schema(connection: &Connection, path: &Path) -> Result<(), StoreOpenError> {
    match schema::schema_matches_version(connection) {
        Ok(true) => Ok(()),
        Ok(false) => Err(OpenFault::Damaged(UNKNOWN_SCHEMA.into()).into_open_error(path)),
        Err(error) => Err(OpenFault::Sql(error).into_open_error(path)),
    }
}

const UNKNOWN_SCHEMA: &str = "its tables are not those of this program";

/// Checks that the tables that decide about guests are undamaged.
pub(super) fn check_undamaged(connection: &Connection, path: &Path) -> Result<(), StoreOpenError> {
    // A peek must be quick, so it checks only these tables, whatever the size of the file.
    in_read_transaction(connection, |connection| check_for_damage(connection, u64::MAX)).map_err(|fault| fault.into_open_error(path))
}

fn set_pragmas(connection: &Connection, bytes_max: u64) -> Result<(), OpenFault> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        return Err(OpenFault::Damaged(format!("its journal mode is `{mode}` and cannot be changed to `wal`")));
    }
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // SQLite hides a sync that fails during an automatic checkpoint, and may then trust a page that never reached the disk. The writer
    // checkpoints instead, and checks the result.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    // Savepoints of refused batches need temporary storage. A temporary file would lie outside the state directory, and it took a
    // quarter of the time of a large batch.
    connection.pragma_update(None, "temp_store", "memory")?;
    let page: u64 = connection.pragma_query_value(None, "page_size", |row| row.get::<_, u32>(0))?.into();
    let pages = i64::try_from(bytes_max / page).unwrap_or(i64::MAX).clamp(1, u32::MAX.into());
    let _: i64 = connection.pragma_update_and_check(None, "max_page_count", pages, |row| row.get(0))?;
    Ok(())
}

/// Searches for damage: in the whole file, or in a large file only in the tables that decide whether a guest may be changed.
fn check_for_damage(connection: &Connection, length: u64) -> Result<(), OpenFault> {
    let found = find_damage(connection, length).or_else(|error| match error.sqlite_error_code() {
        // A schema that cannot be parsed counts as damage.
        Some(ErrorCode::Unknown) => Ok(Some(error.to_string())),
        _ => Err(error),
    })?;
    found.map_or(Ok(()), |found| Err(OpenFault::Damaged(found)))
}

/// The tables that decide whether a guest may be changed.
const GUEST_TABLES: [&str; 5] = ["occupants", "holds", "freezes", "bindings", "former_names"];

/// Searches a file of this length for damage: schema, structure, row checksums, indexes that differ from their table, orphaned rows.
pub(super) fn find_damage(connection: &Connection, length: u64) -> rusqlite::Result<Option<String>> {
    let known = "SELECT count(*) FROM sqlite_schema WHERE name = 'occupants'";
    let is_empty = connection.query_row(known, [], |row| row.get::<_, i64>(0))? == 0;
    if length > WHOLE_CHECK_BYTES_MAX && !is_empty {
        let found = GUEST_TABLES
            .iter()
            .find_map(|table| run_integrity_check(connection, &format!("PRAGMA integrity_check('{table}')")).transpose())
            .transpose()?;
        return found.map_or_else(|| find_bad_checksum(connection, |table| GUEST_TABLES.contains(&table)), |found| Ok(Some(found)));
    }
    if let Some(found) = run_integrity_check(connection, "PRAGMA integrity_check(1)")? {
        return Ok(Some(found));
    }
    if !is_empty && !schema::schema_matches_version(connection)? {
        return Ok(Some(UNKNOWN_SCHEMA.into()));
    }
    if let Some(table) = connection.query_row("PRAGMA foreign_key_check", [], |row| row.get::<_, String>(0)).optional()? {
        return Ok(Some(format!("table {table} has an orphaned row")));
    }
    if is_empty {
        return Ok(None);
    }
    find_bad_checksum(connection, |_| true)?.map_or_else(|| find_occupant_fault(connection), |found| Ok(Some(found)))
}

/// Selects the operations that occupy their guest.
macro_rules! unsettled {
    () => {
        "(NOT EXISTS (SELECT 1 FROM ends e WHERE e.operation = o.seq) \
          OR EXISTS (SELECT 1 FROM ends e WHERE e.operation = o.seq AND e.ending = 'held') \
             AND NOT EXISTS (SELECT 1 FROM resolutions r WHERE r.operation = o.seq))"
    };
}

/// The current name of the environment of an operation.
macro_rules! of_today {
    () => {
        "coalesce((SELECT f.environment FROM former_names f WHERE f.name = o.environment), o.environment)"
    };
}

const SELECT_UNSETTLED: &str = concat!("SELECT o.id, o.seq, ", of_today!(), ", o.body FROM operations o WHERE ", unsettled!());
const SELECT_OCCUPANTS: &str = "SELECT environment, vmid, operation FROM occupants";

/// Checks that `occupants` agrees with the journal, from which it is derived. A missing row would let a second operation start on the
/// guest, and the first would never be recovered (G12). A stale row would block the guest forever.
fn find_occupant_fault(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let mut found: BTreeSet<(String, i64, i64)> = BTreeSet::new();
    let mut statement = connection.prepare(SELECT_OCCUPANTS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        found.insert((row.get(0)?, row.get(1)?, row.get(2)?));
    }
    let mut statement = connection.prepare(SELECT_UNSETTLED)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (id, seq, environment, body): (String, i64, String, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let Ok(operation) = parse_operation(&body) else { return Ok(Some(format!("operation {id} cannot be read"))) };
        for vmid in operation.occupied_guests() {
            if !found.remove(&(environment.clone(), i64::from(vmid.get()), seq)) {
                return Ok(Some(format!("operation {id} is in flight or held, but its guest is not marked as occupied")));
            }
        }
    }
    let stale_occupant = found.into_iter().next();
    Ok(stale_occupant.map(|(_, vmid, _)| format!("guest {vmid} is marked as occupied, but no operation occupies it")))
}

/// Verifies row checksums of a read-only file. For a writable file, SQLite's integrity check has already done so.
fn find_bad_checksum(connection: &Connection, is_meant: impl Fn(&str) -> bool) -> rusqlite::Result<Option<String>> {
    if !connection.is_readonly("main")? {
        return Ok(None);
    }
    Ok(checksums::find_mismatch(connection, is_meant)?.map(|table| format!("a row of {table} has a wrong checksum")))
}

fn run_integrity_check(connection: &Connection, sql: &str) -> rusqlite::Result<Option<String>> {
    let found: String = connection.query_row(sql, [], |row| row.get(0))?;
    Ok((found != "ok").then(|| found.replace('\n', " ")))
}

/// Whether the whole WAL is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalState {
    /// It is, or another process has the file open and has merged it.
    Merged,
    /// The disk is full. Reads are allowed; nothing may be written before the WAL is merged.
    DiskFull,
}

/// Lets SQLite checkpoint on close. No sync has failed, and everything that was acknowledged is durable in the WAL, which SQLite deletes
/// only after the checkpoint is synced.
pub(super) fn allow_checkpoint_on_close(connection: &Connection) {
    // If this fails, the WAL stays and the next start merges it.
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
}

/// Copies the whole WAL into the file and syncs it.
///
/// After a failed sync the WAL may be complete in the page cache but not on disk, and no later sync would report that. Writing its
/// content to another place makes it durable before anything is decided based on it.
pub(super) fn merge_wal(connection: &Connection, patience: Duration) -> rusqlite::Result<WalState> {
    // Do not wait for readers: the process that opened the file first has merged the WAL.
    connection.busy_timeout(Duration::ZERO)?;
    let settled = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    connection.busy_timeout(patience)?;
    match settled.as_ref().map_err(rusqlite::Error::sqlite_error_code) {
        Err(Some(ErrorCode::DatabaseBusy)) => Ok(WalState::Merged),
        Err(Some(ErrorCode::DiskFull)) => Ok(WalState::DiskFull),
        _ => settled.map(|()| WalState::Merged),
    }
}

impl OpenFault {
    fn into_open_error(self, path: &Path) -> StoreOpenError {
        let path = path.to_path_buf();
        match self {
            Self::Format(SchemaState::Newer(found)) => StoreOpenError::Newer { place: path, found, known: schema::VERSION },
            Self::Format(SchemaState::Older(found)) => StoreOpenError::Older { place: path, found, known: schema::VERSION },
            Self::Format(SchemaState::Foreign | SchemaState::Current) => StoreOpenError::NotOurs { place: path },
            Self::Damaged(cause) => StoreOpenError::Damaged { place: path, cause },
            Self::Mode(source) => {
                StoreOpenError::Unusable { what: "restrict the permissions of", path, help: "it must belong to this user", source }
            }
            Self::Sql(error) => sql_open_error(path, error),
        }
    }
}

pub(super) fn sql_open_error(path: PathBuf, error: rusqlite::Error) -> StoreOpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => StoreOpenError::NotOurs { place: path },
        Some(ErrorCode::DatabaseCorrupt) => StoreOpenError::Damaged { place: path, cause: error.to_string() },
        Some(ErrorCode::DiskFull) => StoreOpenError::Full { place: path },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let holder = writer_of(&path);
            StoreOpenError::Busy { place: path, holder }
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => StoreOpenError::Unusable {
            what: "write to",
            path,
            help: "the file and its `-wal` and `-shm` must be writable for this user, and the disk not read-only",
            source: io::Error::other(error),
        },
        _ => StoreOpenError::Failed { place: path, cause: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    /// A command that only reads uses this to warn of what an apply would refuse.
    #[test]
    fn reports_a_state_directory_that_other_users_can_enter_and_creates_none() {
        let above = tempfile::tempdir().expect("a directory");
        let state = above.path().join("state");
        assert!(check_state_directory(&state).is_ok() && !state.exists());
        fs::create_dir(&state).expect("created");
        for (mode, is_ok) in [(0o755, false), (0o710, false), (0o700, true)] {
            fs::set_permissions(&state, fs::Permissions::from_mode(mode)).expect("changed");
            assert_eq!(check_state_directory(&state).is_ok(), is_ok, "{mode:o}");
        }
    }

    /// Without these settings an acknowledged batch might not be on disk.
    #[test]
    fn syncs_every_commit_and_disables_auto_checkpoints() {
        let above = tempfile::tempdir().expect("a directory");
        let settings = StoreSettings::new(|cause| panic!("{cause}"));
        let OpenedStore { connection, wal_state: settled, .. } =
            open_writer(&above.path().join("state"), &settings).unwrap_or_else(|error| panic!("{error}"));
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).expect("a number");
        let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).expect("a word");
        assert_eq!((mode.as_str(), pragma("synchronous"), pragma("foreign_keys"), pragma("wal_autocheckpoint")), ("wal", 2, 1, 0));
        assert_eq!(settled, WalState::Merged);
    }

    #[test]
    fn sqlite_errors_name_what_to_do() {
        let error_text =
            |code| sql_open_error("a/converger.db".into(), rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).to_string();
        let cases = [
            (ffi::SQLITE_READONLY, "must be writable for this user"),
            (ffi::SQLITE_CANTOPEN, "must be writable for this user"),
            (ffi::SQLITE_PERM, "must be writable for this user"),
            (ffi::SQLITE_FULL, "make room"),
            (ffi::SQLITE_BUSY, "wait for it to end"),
            (ffi::SQLITE_CORRUPT, "restore it from a backup"),
            (ffi::SQLITE_NOTADB, "is not a database of this program"),
            (ffi::SQLITE_IOERR, "cannot open"),
        ];
        for (code, part) in cases {
            let message = error_text(code);
            assert!(message.contains("a/converger.db") && message.contains(part), "{code}: {message}");
        }
    }
}
