//! Opening: the directory and the file as they must be, the file one of ours, whole, of this version, and synced.
//!
//! Nothing is changed in a file before it is known to be ours.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use converger_ledger::LogBuilder;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _};
use rustix::fs::OFlags;
use rustix::process::geteuid;

use super::holder::writer_of;
use super::schema::{self, SchemaState};
use super::{StoreSettings, checksums, ledger, sql_fault};
use crate::{KEY_FILE, StoreOpenError, lock};

/// The name of the file in the state directory.
pub(crate) const STORE_FILE: &str = "converger.db";

/// The log beside a file.
pub(super) fn wal_path(place: &Path) -> PathBuf {
    let mut log = place.as_os_str().to_os_string();
    log.push("-wal");
    log.into()
}

/// Files of the state directory are opened where they are, never where a link leads.
pub(crate) const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits().cast_signed();

/// Up to this size a file is looked through at every start; of a larger one only what a recovery rests on.
const WHOLE_CHECK_BYTES_MAX: u64 = 64 << 20;

/// A store that was opened for writing.
pub(super) struct OpenedStore {
    pub(super) connection: Connection,
    pub(super) place: PathBuf,
    pub(super) wal_state: WalState,
    /// The ledger that is in it.
    pub(super) log: LogBuilder,
}

/// Checks and opens the store in a directory, for writing.
pub(super) fn open_writer(directory: &Path, settings: &StoreSettings) -> Result<OpenedStore, StoreOpenError> {
    // SQLite takes a path that begins with `file:` for something else.
    let directory = &std::path::absolute(directory).unwrap_or_else(|_| directory.to_path_buf());
    prepare_directory(directory)?;
    let place = directory.join(STORE_FILE);
    let length = prepare_file(&place)?;
    let opened = open_connection(&place, length, settings).map_err(|trouble| trouble.into_open_error(&place))?;
    let (connection, settled, growth) = opened;
    // The names of new files are as durable as their content only after this.
    sync_directory(directory)?;
    Ok(OpenedStore { connection, place, wal_state: settled, log: growth })
}

/// Opens a store that was opened for writing before, for reading.
pub(super) fn open_reader(place: &Path, patience: Duration) -> Result<Connection, StoreOpenError> {
    let open = || {
        let connection = Connection::open_with_flags(place, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        configure_connection(&connection, patience)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    };
    open().map_err(|error: rusqlite::Error| OpenFault::Sql(error).into_open_error(place))
}

/// What a connection needs whatever it is for.
fn configure_connection(connection: &Connection, patience: Duration) -> rusqlite::Result<()> {
    checksums::register_row_sum(connection)?;
    connection.busy_timeout(patience)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Otherwise a statement with a join is prepared anew for every id that is bound, which is a quarter of the time of a commit.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

fn prepare_directory(directory: &Path) -> Result<(), StoreOpenError> {
    let unusable = |what, help, source| StoreOpenError::Unusable { what, place: directory.to_path_buf(), help, source };
    let metadata = match fs::metadata(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let help = "make the directory above it, or name another state directory";
            DirBuilder::new().mode(0o700).create(directory).map_err(|error| unusable("make the state directory", help, error))?;
            return directory.parent().map_or(Ok(()), sync_directory);
        }
        metadata => metadata.map_err(|error| unusable("look at the state directory", "name one that this user may use", error))?,
    };
    if !metadata.is_dir() {
        return Err(unusable("use as state directory", "it is a file; name another one", io::ErrorKind::NotADirectory.into()));
    }
    // Whoever owns it can change what is in it, whatever its mode; for root, that would be anybody's store.
    if metadata.uid() != geteuid().as_raw() {
        let theirs = io::Error::new(io::ErrorKind::PermissionDenied, format!("it belongs to the user with the id {}", metadata.uid()));
        return Err(unusable("use as state directory", "name one of your own, or run this as its owner", theirs));
    }
    // It holds what would be done to every guest. It is not narrowed here: it may be somebody's home.
    if metadata.permissions().mode() & 0o077 != 0 {
        let open = io::Error::new(io::ErrorKind::PermissionDenied, format!("its mode is {:o}", metadata.permissions().mode() & 0o777));
        return Err(unusable("use as state directory", "other users may enter it; `chmod 700` it, or name another one", open));
    }
    Ok(())
}

fn sync_directory(directory: &Path) -> Result<(), StoreOpenError> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let synced = File::open(directory).and_then(|file| file.sync_all());
    let unusable = |source| StoreOpenError::Unusable { what: "sync", place: directory.to_path_buf(), help: "look at the disk", source };
    synced.map_err(unusable)
}

/// Makes the file if it is not there, so that nobody else may read it from its first byte; gives its length.
fn prepare_file(place: &Path) -> Result<u64, StoreOpenError> {
    let help = "it must be a file, not a link, and writable for this user, as its directory must be";
    let unusable = |source| StoreOpenError::Unusable { what: "open", place: place.into(), help, source };
    if fs::symlink_metadata(place).map_or(0, |there| there.len()) == 0 {
        check_not_lost(place)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW);
    let metadata = options.open(place).and_then(|file| file.metadata()).map_err(unusable)?;
    if !metadata.is_file() {
        return Err(unusable(io::Error::other("it is not a regular file")));
    }
    // Under another name it has another log and other locks: two processes would write over each other, and neither would know.
    if metadata.nlink() > 1 {
        let help = "copy it under a new name, and move the copy to where it is";
        let source = io::Error::other(format!("it has {} names (hard links)", metadata.nlink()));
        return Err(StoreOpenError::Unusable { what: "open", place: place.into(), help, source });
    }
    Ok(metadata.len())
}

/// Whether a store that is not there, or has no bytes, was one: its log, the locks of environments and the key come after its first bytes
/// (S19).
///
/// A new store in its place would know of no hold, no freeze and no operation that is under way.
pub(super) fn check_not_lost(place: &Path) -> Result<(), StoreOpenError> {
    let Some(remains) = find_remains(place) else { return Ok(()) };
    // Another process may have begun it meanwhile; its first bytes were there before what was found.
    if fs::symlink_metadata(place).is_ok_and(|there| there.len() > 0) {
        return Ok(());
    }
    Err(StoreOpenError::Lost { place: place.to_path_buf(), remains })
}

/// A file of the state directory that shows that there was a store.
fn find_remains(place: &Path) -> Option<PathBuf> {
    let directory = place.parent()?;
    let mut paths: Vec<_> = fs::read_dir(directory).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let beside = [wal_path(place), directory.join(format!("{STORE_FILE}-shm")), directory.join(KEY_FILE)];
    paths.into_iter().find(|path| lock::is_lock_file(path) || beside.contains(path))
}

/// Nobody else may read it, nor the log beside it, whose mode SQLite takes from it.
fn restrict_permissions(place: &Path) -> io::Result<()> {
    for ending in ["", "-wal", "-shm"] {
        let mut name = place.as_os_str().to_os_string();
        name.push(ending);
        match fs::symlink_metadata(&name) {
            Ok(there) if there.is_file() && there.permissions().mode() & 0o077 != 0 => {
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

fn open_connection(place: &Path, length: u64, settings: &StoreSettings) -> Result<(Connection, WalState, LogBuilder), OpenFault> {
    let mut connection = Connection::open_with_flags(place, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Closing brings the log into the file and syncs both, also after a sync that failed, and tells nobody how it went.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    configure_connection(&connection, settings.patience)?;
    schema::find_format_fault(&connection)?.map_or(Ok(()), |found| Err(OpenFault::Format(found)))?;
    restrict_permissions(place).map_err(OpenFault::Mode)?;
    set_pragmas(&connection, settings.bytes_max)?;
    in_read_transaction(&connection, |connection| check_for_damage(connection, length))?;
    match schema::make(&mut connection)? {
        SchemaState::Current => {}
        found => return Err(OpenFault::Format(found)),
    }
    let settled = merge_wal(&connection, settings.patience)?;
    let growth = in_read_transaction(&connection, |connection| Ok(ledger::resume_log(connection)?))?;
    Ok((connection, settled, growth))
}

/// All statements see one state of the file: others may write to it at the same time, and a head of before with entries of after looks like
/// damage.
fn in_read_transaction<T>(connection: &Connection, read: impl FnOnce(&Connection) -> Result<T, OpenFault>) -> Result<T, OpenFault> {
    let transaction = connection.unchecked_transaction()?;
    let value = read(&transaction)?;
    transaction.commit()?;
    Ok(value)
}

impl From<sql_fault::SqlFault> for OpenFault {
    fn from(trouble: sql_fault::SqlFault) -> Self {
        match trouble {
            sql_fault::SqlFault::Sql(error) => Self::Sql(error),
            sql_fault::SqlFault::Full => {
                Self::Sql(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), None))
            }
            sql_fault::SqlFault::Damaged { what, cause } => Self::Damaged(format!("{what}: {cause}")),
        }
    }
}

/// Whether a file may be read: it is ours, and of a version that is known.
pub(super) fn check_file_format(connection: &Connection, place: &Path) -> Result<(), StoreOpenError> {
    match schema::find_format_fault(connection) {
        Ok(None) => Ok(()),
        Ok(Some(found)) => Err(OpenFault::Format(found).into_open_error(place)),
        Err(error) => Err(OpenFault::Sql(error).into_open_error(place)),
    }
}

/// Whether the tables are ours: a view in the place of one may be anything, also without end.
pub(super) fn check_schema(connection: &Connection, place: &Path) -> Result<(), StoreOpenError> {
    match schema::schema_matches_version(connection) {
        Ok(true) => Ok(()),
        Ok(false) => Err(OpenFault::Damaged(UNKNOWN_SCHEMA.into()).into_open_error(place)),
        Err(error) => Err(OpenFault::Sql(error).into_open_error(place)),
    }
}

const UNKNOWN_SCHEMA: &str = "its tables are not those that this program makes";

/// Whether what decides about guests is as it was written.
pub(super) fn check_undamaged(connection: &Connection, place: &Path) -> Result<(), StoreOpenError> {
    // Of any file only that: a glance is short.
    in_read_transaction(connection, |connection| check_for_damage(connection, u64::MAX)).map_err(|trouble| trouble.into_open_error(place))
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
    // SQLite keeps quiet about a sync that fails while it checkpoints by itself, and may then trust a page that never
    // reached the disk. The writer does it, and looks at the answer.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    // What takes back a batch that may not be written. In a file, which would lie outside of the state directory, it was a quarter of the
    // time of a batch of many writes.
    connection.pragma_update(None, "temp_store", "memory")?;
    let page: u64 = connection.pragma_query_value(None, "page_size", |row| row.get::<_, u32>(0))?.into();
    let pages = i64::try_from(bytes_max / page).unwrap_or(i64::MAX).clamp(1, u32::MAX.into());
    let _: i64 = connection.pragma_update_and_check(None, "max_page_count", pages, |row| row.get(0))?;
    Ok(())
}

/// Looks for damage: through everything, or in a large file through what decides whether a guest may be touched.
fn check_for_damage(connection: &Connection, length: u64) -> Result<(), OpenFault> {
    let found = find_damage(connection, length).or_else(|error| match error.sqlite_error_code() {
        // A schema that cannot be read any more is a damaged one.
        Some(ErrorCode::Unknown) => Ok(Some(error.to_string())),
        _ => Err(error),
    })?;
    found.map_or(Ok(()), |found| Err(OpenFault::Damaged(found)))
}

/// What decides whether a guest may be touched.
const GUEST_TABLES: [&str; 5] = ["occupants", "holds", "freezes", "bindings", "former_names"];

/// What is damaged in a file of this length: its tables, its order, its sums, what an index says that its table does not, and rows that belong
/// to none.
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
        return Ok(Some(format!("a row of {table} belongs to nothing")));
    }
    if is_empty {
        return Ok(None);
    }
    find_bad_checksum(connection, |_| true)?.map_or_else(|| find_occupant_fault(connection), |found| Ok(Some(found)))
}

/// Which operations need their guest.
macro_rules! unsettled {
    () => {
        "(NOT EXISTS (SELECT 1 FROM ends e WHERE e.operation = o.seq) \
          OR EXISTS (SELECT 1 FROM ends e WHERE e.operation = o.seq AND e.ending = 'held') \
             AND NOT EXISTS (SELECT 1 FROM resolutions r WHERE r.operation = o.seq))"
    };
}

/// The name that the environment of an operation has now.
macro_rules! of_today {
    () => {
        "coalesce((SELECT f.environment FROM former_names f WHERE f.name = o.environment), o.environment)"
    };
}

const SELECT_MISSING_OCCUPANT: &str = concat!(
    "SELECT o.id FROM operations o WHERE ",
    unsettled!(),
    " AND NOT EXISTS (SELECT 1 FROM occupants c WHERE c.operation = o.seq AND c.environment = ",
    of_today!(),
    " AND c.vmid = o.vmid) LIMIT 1"
);
const SELECT_STALE_OCCUPANT: &str = concat!(
    "SELECT c.vmid FROM occupants c WHERE NOT EXISTS (SELECT 1 FROM operations o WHERE o.seq = c.operation \
     AND ",
    of_today!(),
    " = c.environment AND o.vmid = c.vmid AND ",
    unsettled!(),
    ") LIMIT 1"
);

/// Who has a guest is derived from the journal. A row that is not there would let another operation begin on the guest, and nobody would find
/// out what became of the first (G12); one that is there for nothing would keep the guest for ever.
fn find_occupant_fault(connection: &Connection) -> rusqlite::Result<Option<String>> {
    if let Some(id) = connection.query_row(SELECT_MISSING_OCCUPANT, [], |row| row.get::<_, String>(0)).optional()? {
        return Ok(Some(format!("operation {id} is under way or held, and its guest is not taken")));
    }
    let taken = connection.query_row(SELECT_STALE_OCCUPANT, [], |row| row.get::<_, i64>(0)).optional()?;
    Ok(taken.map(|vmid| format!("guest {vmid} is taken, and no operation has it")))
}

/// Where a file is only read SQLite does not look at the sums; otherwise it has done so.
fn find_bad_checksum(connection: &Connection, is_meant: impl Fn(&str) -> bool) -> rusqlite::Result<Option<String>> {
    if !connection.is_readonly("main")? {
        return Ok(None);
    }
    Ok(checksums::find_mismatch(connection, is_meant)?.map(|table| format!("a row of {table} has another sum")))
}

fn run_integrity_check(connection: &Connection, sql: &str) -> rusqlite::Result<Option<String>> {
    let found: String = connection.query_row(sql, [], |row| row.get(0))?;
    Ok((found != "ok").then(|| found.replace('\n', " ")))
}

/// Whether all of the log is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalState {
    /// It is, or another process is at work on it and has done the same.
    Merged,
    /// There was no room. Reading may go on, but nothing may be written before it is.
    DiskFull,
}

/// From here on a close may bring the log into the file: no sync has failed, and all that was acknowledged is durable in the log, which
/// stays where it is unless what was brought over is synced.
pub(super) fn allow_checkpoint_on_close(connection: &Connection) {
    // Where this fails the log stays, and the next start brings it over.
    let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false);
}

/// Brings everything from the log into the file, and syncs it.
///
/// After a failed sync the log may be whole in the system's cache and not on the disk, and no later sync would tell.
/// Writing its content elsewhere makes it durable before anything is decided upon it.
pub(super) fn merge_wal(connection: &Connection, patience: Duration) -> rusqlite::Result<WalState> {
    // Somebody who reads is not waited for: whoever opened the file first has settled it.
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
    fn into_open_error(self, place: &Path) -> StoreOpenError {
        let place = place.to_path_buf();
        match self {
            Self::Format(SchemaState::Newer(found)) => StoreOpenError::Newer { place, found, known: schema::VERSION },
            Self::Format(SchemaState::Older(found)) => StoreOpenError::Older { place, found, known: schema::VERSION },
            Self::Format(SchemaState::Foreign | SchemaState::Current) => StoreOpenError::NotOurs { place },
            Self::Damaged(cause) => StoreOpenError::Damaged { place, cause },
            Self::Mode(source) => {
                StoreOpenError::Unusable { what: "keep others from reading", place, help: "it must belong to this user", source }
            }
            Self::Sql(error) => sql_open_error(place, error),
        }
    }
}

pub(super) fn sql_open_error(place: PathBuf, error: rusqlite::Error) -> StoreOpenError {
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => StoreOpenError::NotOurs { place },
        Some(ErrorCode::DatabaseCorrupt) => StoreOpenError::Damaged { place, cause: error.to_string() },
        Some(ErrorCode::DiskFull) => StoreOpenError::Full { place },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            let holder = writer_of(&place);
            StoreOpenError::Busy { place, holder }
        }
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => StoreOpenError::Unusable {
            what: "write to",
            place,
            help: "the file and its `-wal` and `-shm` must be writable for this user, and the disk not read-only",
            source: io::Error::other(error),
        },
        _ => StoreOpenError::Failed { place, cause: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    /// Without these nothing that is acknowledged would be on the disk.
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
        let told = |code| sql_open_error("a/converger.db".into(), rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).to_string();
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
            let message = told(code);
            assert!(message.contains("a/converger.db") && message.contains(part), "{code}: {message}");
        }
    }
}
