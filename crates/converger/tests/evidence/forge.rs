//! An attacker who can write anything to the database and knows its checksums and hashes, but has no key.

use std::path::Path;

use converger_ledger::{LogBuilder, LogHash, Tile};
use converger_store::LedgerHead;
use rusqlite::{Connection, params};

/// An open database, without the constraints that protect it.
pub(crate) struct DatabaseForger(Connection);

impl DatabaseForger {
    pub(crate) fn open(state: &Path) -> Self {
        let connection = Connection::open(state.join("converger.db")).expect("opens");
        converger_store::conformance::register_row_sum(&connection).expect("taught");
        connection.pragma_update(None, "foreign_keys", false).expect("set");
        Self(connection)
    }

    /// Runs statements that must change something.
    #[track_caller]
    pub(crate) fn run(&self, statements: &str) {
        let before = self.0.total_changes();
        self.0.execute_batch(statements).unwrap_or_else(|error| panic!("{statements}: {error}"));
        assert!(self.0.total_changes() > before, "{statements}: nothing is changed");
    }

    /// Runs statements that change the schema.
    #[track_caller]
    pub(crate) fn alter(&self, statements: &str) {
        self.0.execute_batch(statements).unwrap_or_else(|error| panic!("{statements}: {error}"));
    }

    /// Reads one text from the database.
    #[track_caller]
    pub(crate) fn text(&self, query: &str) -> String {
        self.0.query_row(query, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{query}: {error}"))
    }

    pub(crate) fn entries(&self) -> Vec<Vec<u8>> {
        let mut statement = self.0.prepare("SELECT body FROM ledger_entries ORDER BY seq").expect("SQL");
        let rows = statement.query_map([], |row| row.get(0)).expect("rows");
        rows.map(|row| row.expect("a row")).collect()
    }

    /// Replaces the entries, with their checksums; nothing else is repaired.
    pub(crate) fn put_entries(&self, entries: &[Vec<u8>]) {
        // One transaction, because otherwise each insert is synced.
        let together = self.0.unchecked_transaction().expect("nobody else writes");
        self.0.execute("DELETE FROM ledger_entries", []).expect("SQL");
        let mut statement = self.0.prepare("INSERT INTO ledger_entries VALUES (?1, ?2, row_sum(?1, ?2))").expect("SQL");
        for (seq, entry) in (1_i64..).zip(entries) {
            statement.execute(params![seq, entry]).expect("SQL");
        }
        together.commit().expect("SQL");
    }

    /// Replaces the entries and everything above them.
    pub(crate) fn rewrite(&self, entries: &[Vec<u8>]) {
        self.put_entries(entries);
        self.0.execute("DELETE FROM ledger_tiles", []).expect("SQL");
        let (mut log_builder, mut full) = (LogBuilder::default(), Vec::new());
        for entry in entries {
            log_builder.append(LogHash::of_leaf(entry), |tile, hashes, root| full.push((tile, hashes.to_vec(), root)));
        }
        full.iter().for_each(|(tile, hashes, root)| self.put_tile(*tile, hashes, *root));
        self.put_head(LedgerHead::from_tree(log_builder.tree()));
    }

    /// Replaces a full tile.
    pub(crate) fn put_tile(&self, tile: Tile, hashes: &[LogHash], root: LogHash) {
        let (level, index) = (i64::from(tile.level), i64::try_from(tile.index).expect("small"));
        let hashes: Vec<u8> = hashes.iter().flat_map(|hash| hash.0).collect();
        let sql = "INSERT OR REPLACE INTO ledger_tiles VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4))";
        self.0.execute(sql, params![level, index, hashes, root.0.as_slice()]).expect("SQL");
    }

    /// Replaces the head.
    pub(crate) fn put_head(&self, head: LedgerHead) {
        let sql = "INSERT OR REPLACE INTO ledger_head VALUES (1, ?1, ?2, ?1, ?2, row_sum(1, ?1, ?2, ?1, ?2))";
        self.0.execute(sql, params![i64::try_from(head.size).expect("small"), head.root.0.as_slice()]).expect("SQL");
    }
}
