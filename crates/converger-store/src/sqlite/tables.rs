//! The tables in SQL, for the write rules and for readers.

use converger_core::apply::{
    BootId, EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, Hold, IdempotencyKey, JournalProgress, JournalRecord,
    Operation, OperationEnd, OperationHistory, OperationId, OperationSource, RunId, RunStart, TaskId, write_operation, write_outcome,
};
use converger_core::artifact::Digest;
use converger_core::evidence::FIRST_EPOCH;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_ledger::{LogHash, Tile};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};

use super::sql_fault::SqlFault;
use super::{ledger, rows};
use crate::query::{HoldHistory, IdempotencyRow, LedgerHeads, LedgerRows, OperationFilter, OperationStatus, RunHistory};
use crate::tables::{ReadTables, WriteTables};

/// One connection, within the transaction that its owner has started.
pub(crate) struct SqlTables<'c> {
    connection: &'c Connection,
    /// The size of the ledger before this transaction.
    size: u64,
    /// The hashes of the entries that this transaction has written.
    leaves: Vec<LogHash>,
}

type SqlResult<T> = Result<T, SqlFault>;

impl<'c> SqlTables<'c> {
    /// For reads. Readers get the size of the ledger from `heads`.
    pub(super) fn for_reading(connection: &'c Connection) -> Self {
        Self::for_writing(connection, 0)
    }

    /// For writes to a ledger of this size.
    pub(super) fn for_writing(connection: &'c Connection, size: u64) -> Self {
        Self { connection, size, leaves: Vec::new() }
    }

    /// The number of entries that this transaction has written.
    pub(super) fn written_count(&self) -> usize {
        self.leaves.len()
    }

    /// Forgets the entries after the first `written` ones, because they were rolled back.
    pub(super) fn truncate_leaves(&mut self, written: usize) {
        self.leaves.truncate(written);
    }

    /// The hashes of the entries that were written.
    pub(super) fn leaves(&self) -> &[LogHash] {
        &self.leaves
    }

    /// Executes a statement without parameters.
    pub(super) fn execute(&self, sql: &str) -> SqlResult<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    fn query_one<T>(&self, sql: &str, params: impl Params, make: impl FnOnce(&Row<'_>) -> SqlResult<T>) -> SqlResult<Option<T>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        rows.next()?.map(make).transpose()
    }

    fn query_all<T>(&self, sql: &str, params: impl Params, make: impl Fn(&Row<'_>) -> SqlResult<T>) -> SqlResult<Vec<T>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(make(row)?);
        }
        Ok(all)
    }

    /// Operations that occupy their guests and meet one more condition, oldest first. An index finds them: not all operations are read.
    fn occupying_operations(&self, environment: &EnvironmentName, more: &str) -> SqlResult<Vec<OperationHistory>> {
        // An operation with two guests has two rows.
        let sql = format!(
            "{} JOIN (SELECT DISTINCT operation FROM occupants WHERE environment = ?1) c ON c.operation = o.seq WHERE true {more} ORDER BY o.seq",
            rows::SELECT_HISTORY
        );
        self.query_all(&sql, params![environment.as_str()], rows::parse_history)
    }

    /// Changes exactly one row. The rules have checked that the row exists, so any other count means a damaged file.
    fn change_one_row(&self, what: &str, sql: &str, params: impl Params) -> SqlResult<()> {
        match self.connection.prepare_cached(sql)?.execute(params)? {
            1 => Ok(()),
            rows => Err(SqlFault::damaged_row(what, format!("{rows} rows were changed instead of one"))),
        }
    }

    fn put_intent(&self, operation: &Operation, at_ms: u64) -> SqlResult<()> {
        let Operation { id, run, environment, guest, source, .. } = operation;
        let body = write_operation(operation).map_err(|error| SqlFault::damaged_row(id.as_str(), error.to_string()))?;
        let row = params![id.as_str(), run.as_str(), environment.as_str(), guest.vmid.get(), to_sql_integer(at_ms), body];
        self.change_one_row(id.as_str(), INSERT_OPERATION, row)?;
        let seq = self.connection.last_insert_rowid();
        for vmid in operation.occupied_guests() {
            self.change_one_row(id.as_str(), INSERT_OCCUPANT, params![environment.as_str(), vmid.get(), seq])?;
        }
        if let OperationSource::OneShot { key, request } = source {
            self.change_one_row(
                id.as_str(),
                INSERT_KEY,
                params![environment.as_str(), key.as_str(), operation.step.change.word(), request.to_string(), seq],
            )?;
        }
        Ok(())
    }

    /// The number of rows of one of our tables.
    fn count(&self, table: &'static str) -> SqlResult<u64> {
        let count = self.query_one(&format!("SELECT count(*) FROM {table}"), [], |row| Ok(row.get::<_, i64>(0)?))?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    fn release_guest(&self, id: &OperationId) -> SqlResult<()> {
        // One row, or two for an operation with a second guest; the check at the next start compares them with the journal.
        match self.connection.prepare_cached(DELETE_OCCUPANTS)?.execute(params![id.as_str()])? {
            1 | 2 => Ok(()),
            rows => Err(SqlFault::damaged_row(id.as_str(), format!("{rows} rows of its guests were removed"))),
        }
    }
}

// `seq` is part of the checksum of a row, so these statements compute it before the insert.
const INSERT_OPERATION: &str = "INSERT INTO operations (seq, id, run, environment, vmid, at_ms, body, sum) \
    SELECT next.seq, ?1, r.seq, ?3, ?4, ?5, ?6, row_sum(next.seq, ?1, r.seq, ?3, ?4, ?5, ?6) \
    FROM runs r, (SELECT coalesce(max(seq), 0) + 1 AS seq FROM operations) next WHERE r.id = ?2";
const INSERT_OCCUPANT: &str = "INSERT INTO occupants (environment, vmid, operation, sum) VALUES (?1, ?2, ?3, row_sum(?1, ?2, ?3))";
const DELETE_OCCUPANTS: &str = "DELETE FROM occupants WHERE (environment, operation) = \
    (SELECT coalesce((SELECT f.environment FROM former_names f WHERE f.name = o.environment), o.environment), o.seq \
     FROM operations o WHERE o.id = ?1)";
/// All names of an environment: the current one, which replaces `#`, and former ones. Past operations and runs keep the name that they
/// started under.
const NAMES: &str = "IN (SELECT # UNION ALL SELECT name FROM former_names WHERE environment = #)";
const SELECT_ACTIVE_ENVIRONMENTS: &str = "SELECT environment FROM holds WHERE released_at_ms IS NULL \
    UNION SELECT environment FROM freezes WHERE thawed_at_ms IS NULL ORDER BY 1";
const INSERT_KEY: &str = "INSERT INTO idempotency_keys (environment, name, change, request, operation, sum) \
    VALUES (?1, ?2, ?3, ?4, ?5, row_sum(?1, ?2, ?3, ?4, ?5))";
/// The updates of a rename from `?1` to `?2`. Everything in force moves to the new name, and the old one becomes a former name of it.
const RENAME: [&str; 8] = [
    "UPDATE bindings SET environment = ?2, sum = row_sum(?2, cluster, who, at_ms) WHERE environment = ?1",
    "UPDATE holds SET environment = ?2, sum = row_sum(seq, ?2, vmid, who, reason, at_ms, released_by, released_at_ms) \
        WHERE environment = ?1 AND released_at_ms IS NULL",
    "UPDATE freezes SET environment = ?2, sum = row_sum(seq, ?2, who, reason, at_ms, thawed_by, thawed_at_ms) \
        WHERE environment = ?1 AND thawed_at_ms IS NULL",
    "UPDATE occupants SET environment = ?2, sum = row_sum(?2, vmid, operation) WHERE environment = ?1",
    "UPDATE idempotency_keys SET environment = ?2, sum = row_sum(?2, name, change, request, operation) WHERE environment = ?1",
    "DELETE FROM former_names WHERE name = ?2 AND environment = ?1",
    "UPDATE former_names SET environment = ?2, sum = row_sum(name, ?2) WHERE environment = ?1",
    "INSERT INTO former_names (name, environment, sum) VALUES (?1, ?2, row_sum(?1, ?2))",
];
const UPSERT_SENDING: &str = "INSERT INTO sendings (operation, at_ms, up_ms, sum) \
    SELECT seq, ?2, ?3, row_sum(seq, ?2, ?3) FROM operations WHERE id = ?1 \
    ON CONFLICT (operation) DO UPDATE SET at_ms = excluded.at_ms, up_ms = excluded.up_ms, sum = excluded.sum";
const INSERT_TASK: &str =
    "INSERT INTO tasks (operation, task, at_ms, sum) SELECT seq, ?2, ?3, row_sum(seq, ?2, ?3) FROM operations WHERE id = ?1";
const INSERT_END: &str = "INSERT INTO ends (operation, ending, at_ms, body, sum) \
    SELECT seq, ?2, ?3, ?4, row_sum(seq, ?2, ?3, ?4) FROM operations WHERE id = ?1";
const INSERT_RESOLUTION: &str = "INSERT INTO resolutions (operation, resolution, who, reason, at_ms, sum) \
    SELECT seq, ?2, ?3, ?4, ?5, row_sum(seq, ?2, ?3, ?4, ?5) FROM operations WHERE id = ?1";

/// SQLite's integers are signed; the write rules keep all values far below their maximum.
pub(super) fn to_sql_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl ReadTables for SqlTables<'_> {
    type Error = SqlFault;

    fn progress(&self, id: &OperationId) -> SqlResult<Option<JournalProgress>> {
        self.query_one(rows::SELECT_PROGRESS, params![id.as_str()], |row| rows::parse_progress(row, id))
    }

    fn occupant(&self, environment: &EnvironmentName, vmid: Vmid) -> SqlResult<Option<OperationId>> {
        let sql = "SELECT (SELECT id FROM operations WHERE seq = operation) FROM occupants WHERE environment = ?1 AND vmid = ?2";
        self.query_one(sql, params![environment.as_str(), vmid.get()], rows::parse_operation_id)
    }

    fn operation_environment(&self, id: &OperationId) -> SqlResult<Option<EnvironmentName>> {
        let sql = "SELECT coalesce((SELECT f.environment FROM former_names f WHERE f.name = o.environment), o.environment) \
            FROM operations o WHERE o.id = ?1";
        self.query_one(sql, params![id.as_str()], rows::parse_environment)
    }

    fn operation_of_task(&self, environment: &EnvironmentName, task: &TaskId) -> SqlResult<Option<OperationId>> {
        let sql = "SELECT o.id FROM tasks t JOIN operations o ON o.seq = t.operation WHERE t.task = ?1 \
            AND o.environment IN (SELECT ?2 UNION ALL SELECT name FROM former_names WHERE environment = ?2)";
        self.query_one(sql, params![task.as_str(), environment.as_str()], rows::parse_operation_id)
    }

    fn request_of_key(&self, environment: &EnvironmentName, key: &IdempotencyKey) -> SqlResult<Option<(OperationId, Digest)>> {
        let sql = "SELECT (SELECT id FROM operations WHERE seq = operation), request FROM idempotency_keys \
            WHERE environment = ?1 AND name = ?2 ORDER BY operation LIMIT 1";
        self.query_one(sql, params![environment.as_str(), key.as_str()], rows::parse_keyed_operation)
    }

    fn step_of_key(&self, environment: &EnvironmentName, key: &IdempotencyKey, change: &str) -> SqlResult<Option<OperationId>> {
        let sql = "SELECT (SELECT id FROM operations WHERE seq = operation) FROM idempotency_keys \
            WHERE environment = ?1 AND name = ?2 AND change = ?3";
        self.query_one(sql, params![environment.as_str(), key.as_str(), change], rows::parse_operation_id)
    }

    fn run(&self, id: &RunId) -> SqlResult<Option<RunHistory>> {
        self.query_one(rows::SELECT_RUN, params![id.as_str()], rows::parse_run)
    }

    fn hold(&self, environment: &EnvironmentName, vmid: Vmid) -> SqlResult<Option<Hold>> {
        self.query_one(rows::SELECT_HOLD, params![environment.as_str(), vmid.get()], |row| rows::parse_hold(row, environment))
    }

    fn freeze(&self, environment: &EnvironmentName) -> SqlResult<Option<Freeze>> {
        self.query_one(rows::SELECT_FREEZE, params![environment.as_str()], |row| rows::parse_freeze(row, environment))
    }

    fn binding(&self, environment: &EnvironmentName) -> SqlResult<Option<EnvironmentBinding>> {
        self.query_one(rows::BINDING, params![environment.as_str()], rows::binding)
    }

    fn bound_to(&self, cluster: &ClusterIdentity) -> SqlResult<Option<EnvironmentBinding>> {
        self.query_one(rows::BOUND_TO, params![cluster.as_str()], rows::binding)
    }

    fn renamed_to(&self, environment: &EnvironmentName) -> SqlResult<Option<EnvironmentName>> {
        self.query_one("SELECT environment FROM former_names WHERE name = ?1", params![environment.as_str()], rows::parse_environment)
    }

    fn find_state(&self, environment: &EnvironmentName) -> SqlResult<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM runs \
                WHERE environment IN (SELECT ?1 UNION ALL SELECT name FROM former_names WHERE environment = ?1)) \
            OR EXISTS (SELECT 1 FROM holds WHERE environment = ?1 AND released_at_ms IS NULL) \
            OR EXISTS (SELECT 1 FROM freezes WHERE environment = ?1 AND thawed_at_ms IS NULL)";
        let found = self.query_one(sql, params![environment.as_str()], |row| Ok(row.get::<_, bool>(0)?))?;
        Ok(found.unwrap_or(false))
    }

    fn names(&self) -> SqlResult<EnvironmentNames> {
        let mut names = EnvironmentNames::default();
        self.query_all(rows::BINDINGS, [], rows::binding)?.into_iter().for_each(|binding| names.bind(binding));
        let former = self.query_all("SELECT name, environment FROM former_names ORDER BY name", [], rows::former_name)?;
        former.into_iter().for_each(|(name, now)| names.add_former(name, now));
        Ok(names)
    }

    fn operation(&self, id: &OperationId) -> SqlResult<Option<OperationHistory>> {
        self.query_one(&format!("{} WHERE o.id = ?1", rows::SELECT_HISTORY), params![id.as_str()], rows::parse_history)
    }

    fn open_operations(&self, environment: &EnvironmentName) -> SqlResult<Vec<OperationHistory>> {
        self.occupying_operations(environment, "AND e.operation IS NULL")
    }

    fn operations(&self, filter: &OperationFilter, limit: u32) -> SqlResult<Vec<OperationHistory>> {
        let (sql, params) = build_listing(filter, limit);
        self.query_all(&sql, rusqlite::params_from_iter(params), rows::parse_history)
    }

    fn runs(&self, environment: &EnvironmentName, limit: u32) -> SqlResult<Vec<RunHistory>> {
        self.query_all(rows::SELECT_RUNS, params![environment.as_str(), limit], rows::parse_run)
    }

    fn holds(&self, environment: &EnvironmentName) -> SqlResult<Vec<Hold>> {
        self.query_all(rows::SELECT_HOLDS, params![environment.as_str()], |row| rows::parse_hold(row, environment))
    }

    fn blob(&self, digest: &Digest) -> SqlResult<Option<Vec<u8>>> {
        let sql = "SELECT body FROM blobs WHERE digest = ?1";
        let body = self.query_one(sql, params![digest.to_string()], |row| Ok(row.get::<_, Vec<u8>>(0)?))?;
        // Decisions depend on these bytes: wrong bytes are worse than none.
        match body {
            Some(body) if Digest::of_bytes(&body) != *digest => {
                Err(SqlFault::damaged_row(&digest.to_string(), "its bytes do not match the digest"))
            }
            body => Ok(body),
        }
    }

    fn heads(&self) -> SqlResult<LedgerHeads> {
        ledger::read_heads(self.connection)
    }

    fn epoch(&self) -> SqlResult<u64> {
        let number = self.connection.prepare_cached("SELECT number FROM epoch")?.query_row([], |row| row.get::<_, i64>(0)).optional()?;
        let number = number.map(|number| u64::try_from(number).map_err(|_| SqlFault::damaged_row("epoch", "it is negative")));
        Ok(number.transpose()?.unwrap_or(FIRST_EPOCH))
    }

    fn ledger_length(&self) -> SqlResult<u64> {
        Ok(self.size + self.leaves.len() as u64)
    }

    fn entries(&self, from: u64, limit: u32) -> SqlResult<Vec<Vec<u8>>> {
        ledger::read_entries(self.connection, from, limit)
    }

    fn hashes(&self, tile: Tile) -> SqlResult<Option<Vec<LogHash>>> {
        ledger::read_hashes(self.connection, tile)
    }

    fn unsettled_operations(&self, environment: &EnvironmentName) -> SqlResult<Vec<OperationHistory>> {
        self.occupying_operations(environment, "")
    }

    fn active_holds_and_freezes(&self) -> SqlResult<(Vec<Hold>, Vec<Freeze>)> {
        let environments = self.query_all(SELECT_ACTIVE_ENVIRONMENTS, [], rows::parse_environment)?;
        let (mut holds, mut freezes) = (Vec::new(), Vec::new());
        for environment in &environments {
            holds.extend(self.holds(environment)?);
            freezes.extend(self.freeze(environment)?);
        }
        Ok((holds, freezes))
    }

    fn hold_history(&self) -> SqlResult<HoldHistory> {
        Ok(HoldHistory {
            holds: self.query_all(rows::SELECT_ALL_HOLDS, [], rows::parse_past_hold)?,
            freezes: self.query_all(rows::SELECT_ALL_FREEZES, [], rows::parse_past_freeze)?,
        })
    }

    fn start_order(&self) -> SqlResult<(Vec<RunId>, Vec<OperationId>)> {
        let runs = self.query_all("SELECT id FROM runs ORDER BY seq", [], rows::parse_run_id)?;
        Ok((runs, self.query_all("SELECT id FROM operations ORDER BY seq", [], rows::parse_operation_id)?))
    }

    fn idempotency_rows(&self) -> SqlResult<Vec<IdempotencyRow>> {
        self.query_all(rows::SELECT_ALL_KEYS, [], rows::parse_idempotency_row)
    }

    fn digests(&self) -> SqlResult<Vec<Digest>> {
        self.query_all("SELECT digest FROM blobs ORDER BY digest", [], rows::parse_digest)
    }

    fn full_tile(&self, tile: Tile) -> SqlResult<Option<Vec<LogHash>>> {
        ledger::read_full_tile(self.connection, tile)
    }

    fn ledger_rows(&self) -> SqlResult<LedgerRows> {
        Ok(LedgerRows { entries: self.count("ledger_entries")?, full_tiles: self.count("ledger_tiles")? })
    }
}

/// Builds the statement for a filter. The filter determines only its shape; values are bound, never inserted into the text.
fn build_listing(filter: &OperationFilter, limit: u32) -> (String, Vec<Value>) {
    let mut conditions = Vec::new();
    let mut params: Vec<Value> = Vec::new();
    let mut with = |condition: &str, param: Option<Value>| {
        if let Some(param) = param {
            params.push(param);
            conditions.push(condition.replace('#', &format!("?{}", params.len())));
        }
    };
    let text = |text: &str| Value::Text(text.into());
    with(&format!("o.environment {NAMES}"), filter.environment.as_ref().map(|environment| text(environment.as_str())));
    with("o.run = (SELECT seq FROM runs WHERE id = #)", filter.run.as_ref().map(|run| text(run.as_str())));
    with("o.vmid = #", filter.vmid.map(|vmid| Value::Integer(i64::from(vmid.get()))));
    with("o.seq < (SELECT seq FROM operations WHERE id = #)", filter.before.as_ref().map(|id| text(id.as_str())));
    conditions.extend(filter.status.map(|status| status_condition(status).to_owned()));
    params.push(Value::Integer(i64::from(limit)));
    let filter = if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    (format!("{}{filter} ORDER BY o.seq DESC LIMIT ?{}", rows::SELECT_HISTORY, params.len()), params)
}

fn status_condition(status: OperationStatus) -> &'static str {
    match status {
        OperationStatus::Open => "e.operation IS NULL",
        OperationStatus::Held => "e.ending = 'held' AND r.operation IS NULL",
        OperationStatus::Settled => "(e.ending <> 'held' OR r.operation IS NOT NULL)",
    }
}

impl WriteTables for SqlTables<'_> {
    fn put_record(&mut self, record: JournalRecord, after: JournalProgress) -> SqlResult<()> {
        match &record {
            JournalRecord::Intent { operation, at_ms } => self.put_intent(operation, *at_ms)?,
            JournalRecord::Sending { id, at_ms, up_ms } => {
                self.change_one_row(id.as_str(), UPSERT_SENDING, params![id.as_str(), to_sql_integer(*at_ms), to_sql_integer(*up_ms)])?;
            }
            JournalRecord::TaskStarted { id, task, at_ms } => {
                self.change_one_row(id.as_str(), INSERT_TASK, params![id.as_str(), task.as_str(), to_sql_integer(*at_ms)])?
            }
            JournalRecord::Ended { id, outcome, at_ms } => {
                let body = write_outcome(outcome).map_err(|error| SqlFault::damaged_row(id.as_str(), error.to_string()))?;
                self.change_one_row(id.as_str(), INSERT_END, params![id.as_str(), outcome.end().word(), to_sql_integer(*at_ms), body])?;
            }
            JournalRecord::Resolved { id, resolution, by, reason, at_ms } => {
                self.change_one_row(
                    id.as_str(),
                    INSERT_RESOLUTION,
                    params![id.as_str(), resolution.word(), by, reason, to_sql_integer(*at_ms)],
                )?;
            }
        }
        if after.occupies_guest() { Ok(()) } else { self.release_guest(record.id()) }
    }

    fn put_blob(&mut self, digest: Digest, body: &[u8]) -> SqlResult<()> {
        let sql = "INSERT INTO blobs (digest, body) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.connection.prepare_cached(sql)?.execute(params![digest.to_string(), body])?;
        Ok(())
    }

    fn remove_blob(&mut self, digest: &Digest) -> SqlResult<()> {
        let digest = digest.to_string();
        self.change_one_row(&digest, "DELETE FROM blobs WHERE digest = ?1", params![digest])
    }

    fn put_run(&mut self, run: RunStart) -> SqlResult<()> {
        let sql = "INSERT INTO runs (seq, id, environment, plan, who, at_ms, boot, sum) \
            SELECT seq, ?1, ?2, ?3, ?4, ?5, ?6, row_sum(seq, ?1, ?2, ?3, ?4, ?5, ?6) \
            FROM (SELECT coalesce(max(seq), 0) + 1 AS seq FROM runs)";
        let RunStart { id, environment, plan, by, at_ms, boot } = run;
        let boot = boot.as_ref().map(BootId::as_str);
        self.change_one_row(id.as_str(), sql, params![id.as_str(), environment.as_str(), plan.to_string(), by, to_sql_integer(at_ms), boot])
    }

    fn put_run_end(&mut self, id: &RunId, end: OperationEnd, at_ms: u64) -> SqlResult<()> {
        let sql = "INSERT INTO run_ends (run, ending, at_ms, sum) SELECT seq, ?2, ?3, row_sum(seq, ?2, ?3) FROM runs WHERE id = ?1";
        self.change_one_row(id.as_str(), sql, params![id.as_str(), end.word(), to_sql_integer(at_ms)])
    }

    fn put_hold(&mut self, hold: Hold) -> SqlResult<()> {
        let sql = "INSERT INTO holds (seq, environment, vmid, who, reason, at_ms, sum) \
            SELECT seq, ?1, ?2, ?3, ?4, ?5, row_sum(seq, ?1, ?2, ?3, ?4, ?5, NULL, NULL) \
            FROM (SELECT coalesce(max(seq), 0) + 1 AS seq FROM holds)";
        let Hold { environment, vmid, by, reason, at_ms } = hold;
        self.change_one_row("hold", sql, params![environment.as_str(), vmid.get(), by, reason, to_sql_integer(at_ms)])
    }

    fn put_release(&mut self, environment: &EnvironmentName, vmid: Vmid, by: &str, at_ms: u64) -> SqlResult<()> {
        let sql = "UPDATE holds SET released_by = ?3, released_at_ms = ?4, \
            sum = row_sum(seq, environment, vmid, who, reason, at_ms, ?3, ?4) \
            WHERE environment = ?1 AND vmid = ?2 AND released_at_ms IS NULL";
        self.change_one_row("hold", sql, params![environment.as_str(), vmid.get(), by, to_sql_integer(at_ms)])
    }

    fn put_freeze(&mut self, freeze: Freeze) -> SqlResult<()> {
        let sql = "INSERT INTO freezes (seq, environment, who, reason, at_ms, sum) \
            SELECT seq, ?1, ?2, ?3, ?4, row_sum(seq, ?1, ?2, ?3, ?4, NULL, NULL) \
            FROM (SELECT coalesce(max(seq), 0) + 1 AS seq FROM freezes)";
        let Freeze { environment, by, reason, at_ms } = freeze;
        self.change_one_row("freeze", sql, params![environment.as_str(), by, reason, to_sql_integer(at_ms)])
    }

    fn put_thaw(&mut self, environment: &EnvironmentName, by: &str, at_ms: u64) -> SqlResult<()> {
        let sql = "UPDATE freezes SET thawed_by = ?2, thawed_at_ms = ?3, sum = row_sum(seq, environment, who, reason, at_ms, ?2, ?3) \
            WHERE environment = ?1 AND thawed_at_ms IS NULL";
        self.change_one_row("freeze", sql, params![environment.as_str(), by, to_sql_integer(at_ms)])
    }

    fn put_binding(&mut self, binding: EnvironmentBinding) -> SqlResult<()> {
        let sql = "INSERT INTO bindings (environment, cluster, who, at_ms, sum) VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4))";
        let EnvironmentBinding { environment, cluster, by, at_ms } = binding;
        self.change_one_row(environment.as_str(), sql, params![environment.as_str(), cluster.as_str(), by, to_sql_integer(at_ms)])
    }

    fn put_rename(&mut self, rename: &EnvironmentRename) -> SqlResult<()> {
        for sql in RENAME {
            self.connection.prepare_cached(sql)?.execute(params![rename.from.as_str(), rename.to.as_str()])?;
        }
        Ok(())
    }

    fn put_epoch(&mut self, epoch: u64) -> SqlResult<()> {
        let sql = "INSERT OR REPLACE INTO epoch (one, number, sum) VALUES (1, ?1, row_sum(1, ?1))";
        self.change_one_row("epoch", sql, params![to_sql_integer(epoch)])
    }

    fn put_entry(&mut self, entry: Vec<u8>) -> SqlResult<()> {
        ledger::insert_entry(self.connection, self.size + self.leaves.len() as u64, &entry)?;
        self.leaves.push(LogHash::of_leaf(&entry));
        Ok(())
    }
}
