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
