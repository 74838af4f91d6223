//! A checksum for each row. SQLite detects a page with a damaged structure, but not a changed value within it. If damage removed a hold
//! that way, the program would change a guest that a person has excluded.
//!
//! The checksum is a column. The SQL function `row_sum` computes it and a CHECK constraint requires it, so that no row can be written
//! without it and `PRAGMA integrity_check` verifies every row.
//!
//! It detects faulty disks, not manipulation: anyone who can write the file can compute checksums, too.

use rusqlite::Connection;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;

/// Registers `row_sum` with a connection.
pub(crate) fn register_row_sum(connection: &Connection) -> rusqlite::Result<()> {
    // Innocuous: the schema uses the function, and the schema of a file is not trusted with anything else.
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function("row_sum", -1, flags, |context| Ok(row_sum(context)))
}

/// The tables with checksums, each with the columns that the checksum covers.
const CHECKSUM_TABLES: [(&str, &str); 17] = [
    ("occupants", "environment, vmid, operation"),
    ("holds", "seq, environment, vmid, who, reason, at_ms, released_by, released_at_ms"),
    ("freezes", "seq, environment, who, reason, at_ms, thawed_by, thawed_at_ms"),
    ("bindings", "environment, cluster, who, at_ms"),
    ("former_names", "name, environment"),
    ("runs", "seq, id, environment, plan, who, at_ms, boot"),
    ("run_ends", "run, ending, at_ms"),
    ("operations", "seq, id, run, environment, vmid, at_ms, body"),
    ("sendings", "operation, at_ms, up_ms"),
    ("tasks", "operation, task, at_ms"),
    ("ends", "operation, ending, at_ms, body"),
    ("resolutions", "operation, resolution, who, reason, at_ms"),
    ("idempotency_keys", "environment, name, change, request, operation"),
    ("ledger_entries", "seq, body"),
    ("ledger_tiles", "level, place, hashes, root"),
    ("ledger_head", "one, size, root, durable_size, durable_root"),
    ("epoch", "one, number"),
];

/// The first of these tables that has a row with a wrong checksum.
///
/// SQLite ignores CHECK constraints if a file is opened read-only, and `integrity_check` then finds nothing. Read-only callers use this
/// instead.
pub(super) fn find_mismatch(connection: &Connection, is_meant: impl Fn(&str) -> bool) -> rusqlite::Result<Option<&'static str>> {
    for (table, columns) in CHECKSUM_TABLES.iter().filter(|(table, _)| is_meant(table)) {
        let sql = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE sum IS NOT row_sum({columns}))");
        if connection.query_row(&sql, [], |row| row.get(0))? {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

fn row_sum(context: &Context<'_>) -> i64 {
    let mut sum = RowChecksum(FNV_OFFSET);
    (0..context.len()).for_each(|column| sum.add_value(context.get_raw(column)));
    i64::from_ne_bytes(sum.0.to_ne_bytes())
}

/// FNV-1a with 64 bits: changing one byte always changes the checksum.
struct RowChecksum(u64);

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

impl RowChecksum {
    /// Includes type and length, so that different rows never produce the same byte sequence.
    fn add_value(&mut self, value: ValueRef<'_>) {
        let (tag, integer);
        let bytes: &[u8] = match value {
            ValueRef::Null => {
                tag = 0;
                &[]
            }
            ValueRef::Integer(number) => {
                tag = 1;
                integer = number.to_le_bytes();
                &integer
            }
            ValueRef::Real(number) => {
                tag = 2;
                integer = number.to_le_bytes();
                &integer
            }
            ValueRef::Text(text) => {
                tag = 3;
                text
            }
            ValueRef::Blob(blob) => {
                tag = 4;
                blob
            }
        };
        self.add_bytes(&[tag]);
        self.add_bytes(&bytes.len().to_le_bytes());
        self.add_bytes(bytes);
    }

    fn add_bytes(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(FNV_PRIME));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query_row_sum(of: &str) -> i64 {
        let connection = Connection::open_in_memory().expect("opens");
        register_row_sum(&connection).expect("taught");
        connection.query_row(&format!("SELECT row_sum({of})"), [], |row| row.get(0)).expect("a sum")
    }

    /// Stored rows depend on the algorithm, so it must never change.
    #[test]
    fn checksum_algorithm_is_stable() {
        assert_eq!(query_row_sum("'lab', 101, NULL, X'00ff'"), query_row_sum("'lab', 101, NULL, X'00ff'"));
        assert_eq!(query_row_sum(""), i64::from_ne_bytes(FNV_OFFSET.to_ne_bytes()));
        assert_eq!(query_row_sum("'lab', 101"), 6_072_383_316_438_541_038);
    }

    /// The columns that read-only checks verify are those that the schema covers.
    #[test]
    fn checked_columns_match_the_schema() {
        let connection = Connection::open_in_memory().expect("opens");
        register_row_sum(&connection).expect("taught");
        connection.execute_batch(include_str!("v3.sql")).expect("SQL");
        let mut statement = connection.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").expect("SQL");
        let rows = statement.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).expect("rows");
        let mut summed = 0;
        for (table, sql) in rows.map(|row| row.expect("a row")) {
            let Some((_, rest)) = sql.split_once("row_sum(") else { continue };
            let columns = rest.split_once(')').expect("it ends").0;
            assert!(CHECKSUM_TABLES.contains(&(table.as_str(), columns)), "{table} ({columns})");
            summed += 1;
        }
        assert_eq!(summed, CHECKSUM_TABLES.len());
        assert_eq!(find_mismatch(&connection, |_| true), Ok(None));
    }

    #[test]
    fn different_rows_have_different_checksums() {
        let rows = ["", "NULL", "NULL, NULL", "0", "1", "'1'", "X'31'", "1.0", "''", "'ab', 'c'", "'a', 'bc'", "'abc'", "NULL, 'abc'"];
        let checksums: std::collections::BTreeSet<i64> = rows.into_iter().map(query_row_sum).collect();
        assert_eq!(checksums.len(), rows.len());
    }
}
