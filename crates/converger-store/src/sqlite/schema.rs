//! The versions of the schema, and the one way between them: forward, in one transaction.

use rusqlite::{Connection, TransactionBehavior};

/// What marks a file as ours in its header: `dcnv`.
pub(super) const APPLICATION_ID: i64 = 0x6463_6e76;

/// Version 1 is the first of them.
const VERSIONS: &[&str] = &[include_str!("v1.sql")];

/// What a file turns out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Of this version, now.
    Current,
    /// Somebody else's.
    NotOurs,
    /// Of a version that this program does not know.
    Newer(i64),
}

/// The latest version.
pub(super) fn latest() -> i64 {
    count(VERSIONS)
}

fn count(versions: &[&str]) -> i64 {
    i64::try_from(versions.len()).unwrap_or(i64::MAX)
}

/// What is against touching a file at all.
pub(super) fn look_for_strangers(connection: &Connection) -> rusqlite::Result<Option<Found>> {
    Ok(look(connection, VERSIONS)?.found().filter(|found| *found != Found::Current))
}

/// Whether a file has nothing in it yet: whoever began it died, or failed, before its first transaction.
pub(super) fn is_bare(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(matches!(look(connection, VERSIONS)?, Look::Have(0)))
}

/// Brings a file to the latest version, whatever it is before: empty, older, or there already.
pub(super) fn migrate(connection: &mut Connection) -> rusqlite::Result<Found> {
    migrate_to(connection, VERSIONS)
}

fn migrate_to(connection: &mut Connection, versions: &[&str]) -> rusqlite::Result<Found> {
    // Most starts find the latest version, and then nothing is locked.
    if let Some(found) = look(connection, versions)?.found() {
        return Ok(found);
    }
    // Another process may have been faster, so that the look before the transaction counts for nothing.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let have = match look(&transaction, versions)? {
        Look::Have(have) => have,
        look => return Ok(look.found().unwrap_or(Found::NotOurs)),
    };
    for version in versions.iter().skip(have) {
        transaction.execute_batch(version)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", count(versions))?;
    transaction.commit()?;
    Ok(Found::Current)
}

/// Whether the tables and indexes of a file are those that its version has: what a table says about itself is part of what is kept.
pub(super) fn is_as_made(connection: &Connection) -> rusqlite::Result<bool> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let made = Connection::open_in_memory()?;
    super::sums::teach(&made)?;
    for version in VERSIONS.iter().take(usize::try_from(version).unwrap_or(0)) {
        made.execute_batch(version)?;
    }
    Ok(made_of(connection)? == made_of(&made)?)
}

/// Kind, name, table and text of one thing in a schema.
type Item = (String, String, String, Option<String>);

/// All that a schema has, by name.
fn made_of(connection: &Connection) -> rusqlite::Result<Vec<Item>> {
    let mut statement = connection.prepare("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    rows.collect()
}

enum Look {
    Found(Found),
    /// So many versions are there; the rest is to be added.
    Have(usize),
}

impl Look {
    fn found(&self) -> Option<Found> {
        match self {
            Self::Found(found) => Some(*found),
            Self::Have(_) => None,
        }
    }
}

fn look(connection: &Connection, versions: &[&str]) -> rusqlite::Result<Look> {
    let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let (application, version) = (pragma("application_id")?, pragma("user_version")?);
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    Ok(match (application, version, tables) {
        // New, or left by a process that died before its first transaction.
        (0, 0, 0) => Look::Have(0),
        (APPLICATION_ID, version, _) if version > count(versions) => Look::Found(Found::Newer(version)),
        (APPLICATION_ID, version, _) if version == count(versions) => Look::Found(Found::Current),
        (APPLICATION_ID, version @ 1.., _) => Look::Have(usize::try_from(version).unwrap_or(usize::MAX)),
        _ => Look::Found(Found::NotOurs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::sums;

    /// A store as version 1 wrote it, with rows in every table.
    const V1: &str = include_str!("../../tests/data/store-v1.sql");
    /// A store of every version that was ever written, oldest first. A new version brings its own here.
    const FIXTURES: &[&str] = &[V1];
    const V2: &str = "ALTER TABLE runs ADD COLUMN note TEXT; CREATE TABLE later (x INTEGER) STRICT;";

    fn in_memory() -> Connection {
        let connection = Connection::open_in_memory().expect("opens");
        sums::teach(&connection).expect("taught");
        connection
    }

    fn v1() -> Connection {
        let connection = in_memory();
        connection.execute_batch(V1).expect("the fixture is SQL");
        connection
    }

    fn version(connection: &Connection) -> i64 {
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).expect("a version")
    }

    fn dump(connection: &Connection) -> Vec<String> {
        let mut statement = connection.prepare("SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name").expect("SQL");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    }

    #[test]
    fn an_old_store_is_brought_forward_with_all_its_rows() {
        let mut connection = v1();
        assert_eq!(migrate_to(&mut connection, &[VERSIONS[0], V2]), Ok(Found::Current));
        assert_eq!(version(&connection), 2);
        let count = |sql| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).expect("a count");
        assert_eq!(count("SELECT count(*) FROM runs WHERE note IS NULL"), 1);
        assert_eq!(count("SELECT count(*) FROM operations JOIN ends ON seq = operation"), 2);
        assert_eq!(count("SELECT count(*) FROM later"), 0);
    }

    #[test]
    fn every_version_that_was_ever_written_comes_to_the_tables_of_today() {
        assert_eq!(FIXTURES.len(), VERSIONS.len(), "each version has a store that it wrote");
        let mut new = in_memory();
        assert_eq!(migrate(&mut new), Ok(Found::Current));
        for (number, fixture) in (1..).zip(FIXTURES) {
            let mut old = in_memory();
            old.execute_batch(fixture).expect("the fixture is SQL");
            assert_eq!(version(&old), number, "the fixture is of its version");
            let rows = |connection: &Connection| {
                connection.query_row("SELECT count(*) FROM operations", [], |row| row.get::<_, i64>(0)).expect("a count")
            };
            let before = rows(&old);
            assert_eq!(migrate(&mut old), Ok(Found::Current), "version {number}");
            assert_eq!((version(&old), dump(&old), rows(&old)), (latest(), dump(&new), before), "version {number}");
        }
    }

    #[test]
    fn a_version_that_fails_leaves_the_old_one_whole() {
        let mut connection = v1();
        let before = dump(&connection);
        assert!(migrate_to(&mut connection, &[VERSIONS[0], V2, "CREATE TABLE runs (x)"]).is_err());
        assert_eq!((version(&connection), dump(&connection)), (1, before));
    }

    #[test]
    fn a_newer_store_and_a_stranger_are_left_alone() {
        let mut newer = v1();
        newer.pragma_update(None, "user_version", 7).expect("set");
        assert_eq!(migrate(&mut newer), Ok(Found::Newer(7)));
        for (application, version, table) in [(1, 1, ""), (0, 1, ""), (APPLICATION_ID, 0, ""), (0, 0, "CREATE TABLE theirs (x)")] {
            let mut stranger = in_memory();
            stranger.execute_batch(table).expect("SQL");
            stranger.pragma_update(None, "application_id", application).expect("set");
            stranger.pragma_update(None, "user_version", version).expect("set");
            let before = dump(&stranger);
            assert_eq!(migrate(&mut stranger), Ok(Found::NotOurs), "{application} {version} {table}");
            assert_eq!(dump(&stranger), before);
        }
    }

    #[test]
    fn what_is_new_has_the_tables_of_the_fixture() {
        let mut new = in_memory();
        assert_eq!(migrate(&mut new), Ok(Found::Current));
        assert_eq!(migrate(&mut new), Ok(Found::Current), "a second time changes nothing");
        // While version 1 is the latest, the fixture must be what it makes: a released version is never edited.
        assert_eq!((version(&new), dump(&new)), (1, dump(&v1())));
    }
}
