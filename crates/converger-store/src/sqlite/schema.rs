//! The schema: one version, created in one transaction.
//!
//! Before the first release (0.2) there are no migrations: a file of an older version is refused with its version and not changed. From
//! 0.2 on, each new version comes with a migration from the previous one.

use rusqlite::{Connection, TransactionBehavior};

/// The application id in the file header: `dcnv`.
pub(super) const APPLICATION_ID: i64 = 0x6463_6e76;

/// The version of [`SCHEMA`].
pub(super) const VERSION: i64 = 3;

const SCHEMA: &str = include_str!("v3.sql");

/// What a file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchemaState {
    /// A store of this version.
    Current,
    /// A database of another program.
    Foreign,
    /// A store of a version that this program no longer reads.
    Older(i64),
    /// A store of a version that this program does not know yet.
    Newer(i64),
}

/// Why a file must not be used; `None` if it may be.
pub(super) fn find_format_fault(connection: &Connection) -> rusqlite::Result<Option<SchemaState>> {
    Ok(probe_schema(connection)?.filter(|found| *found != SchemaState::Current))
}

/// Whether a file is still empty: the process that created it ended before its first transaction.
pub(super) fn check_bare(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(probe_schema(connection)?.is_none())
}

/// Creates the tables in a file that has none.
pub(super) fn make(connection: &mut Connection) -> rusqlite::Result<SchemaState> {
    // The tables usually exist, and then no lock is needed.
    if let Some(found) = probe_schema(connection)? {
        return Ok(found);
    }
    // Another process may have created them in the meantime, so probe again inside the transaction.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if let Some(found) = probe_schema(&transaction)? {
        return Ok(found);
    }
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(SchemaState::Current)
}

/// Whether the tables and indexes of a file are exactly those of this version. The constraints in the schema protect the data, so a
/// changed schema counts as damage.
pub(super) fn schema_matches_version(connection: &Connection) -> rusqlite::Result<bool> {
    let expected = Connection::open_in_memory()?;
    super::checksums::register_row_sum(&expected)?;
    expected.execute_batch(SCHEMA)?;
    Ok(schema_items(connection)? == schema_items(&expected)?)
}

/// Type, name, table and SQL text of one schema item.
type SchemaItem = (String, String, String, Option<String>);

/// All items of a schema, by name.
fn schema_items(connection: &Connection) -> rusqlite::Result<Vec<SchemaItem>> {
    let mut statement = connection.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    rows.collect()
}

/// What a file contains; `None` if it is new, or its creator ended before its first transaction.
fn probe_schema(connection: &Connection) -> rusqlite::Result<Option<SchemaState>> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (application, version, tables) {
        (0, 0, 0) => None,
        (APPLICATION_ID, VERSION, _) => Some(SchemaState::Current),
        (APPLICATION_ID, version, _) if version > VERSION => Some(SchemaState::Newer(version)),
        (APPLICATION_ID, version @ 1.., _) => Some(SchemaState::Older(version)),
        _ => Some(SchemaState::Foreign),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::checksums;

    /// A store as version 1 wrote it, with rows in every table.
    const V1: &str = include_str!("../../tests/data/store-v1.sql");
    /// The same for version 2.
    const V2: &str = include_str!("../../tests/data/store-v2.sql");
    /// The same for this version.
    const V3: &str = include_str!("../../tests/data/store-v3.sql");

    fn memory_connection() -> Connection {
        let connection = Connection::open_in_memory().expect("opens");
        checksums::register_row_sum(&connection).expect("taught");
        connection
    }

    fn filled(fixture: &str) -> Connection {
        let connection = memory_connection();
        connection.execute_batch(fixture).expect("the fixture is SQL");
        connection
    }

    fn user_version(connection: &Connection) -> i64 {
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version")
    }

    fn dump_schema(connection: &Connection) -> Vec<String> {
        let mut statement = connection.prepare("SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name").expect("SQL");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    }

    #[test]
    fn refuses_a_store_of_an_older_version_and_changes_nothing_in_it() {
        for (fixture, version) in [(V1, 1), (V2, 2)] {
            let mut older = filled(fixture);
            let before = dump_schema(&older);
            assert_eq!(find_format_fault(&older), Ok(Some(SchemaState::Older(version))));
            assert_eq!(make(&mut older), Ok(SchemaState::Older(version)));
            assert_eq!((user_version(&older), dump_schema(&older)), (version, before));
        }
    }

    #[test]
    fn does_not_migrate_newer_or_foreign_stores() {
        let mut newer = filled(V3);
        newer.pragma_update(None, "user_version", 7).expect("set");
        assert_eq!(make(&mut newer), Ok(SchemaState::Newer(7)));
        for (application, version, table) in [(1, 1, ""), (0, 1, ""), (APPLICATION_ID, 0, ""), (0, 0, "CREATE TABLE theirs (x)")] {
            let mut connection = memory_connection();
            connection.execute_batch(table).expect("SQL");
            connection.pragma_update(None, "application_id", application).expect("set");
            connection.pragma_update(None, "user_version", version).expect("set");
            let before = dump_schema(&connection);
            assert_eq!(make(&mut connection), Ok(SchemaState::Foreign), "{application} {version} {table}");
            assert_eq!(dump_schema(&connection), before);
        }
    }

    #[test]
    fn new_store_has_the_schema_of_the_fixture() {
        let mut new = memory_connection();
        assert_eq!(make(&mut new), Ok(SchemaState::Current));
        assert_eq!(make(&mut new), Ok(SchemaState::Current), "a second time changes nothing");
        assert_eq!((user_version(&new), dump_schema(&new)), (VERSION, dump_schema(&filled(V3))));
    }
}
