//! The tables in SQL, as the judge asks for them and as readers do.

use converger_core::apply::{
    BootId, End, EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, History, Hold, IdempotencyKey, Operation, OperationId,
    Progress, Record, Run, RunId, Source, TaskId, write_operation, write_outcome,
};
use converger_core::artifact::Digest;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_ledger::{Hash, Tile};
use rusqlite::types::Value;
use rusqlite::{Connection, Params, Row, params};

use super::trouble::Trouble;
use super::{ledger, rows};
use crate::query::{Filter, Heads, KeyRow, RunHistory, Said, Standing};
use crate::tables::{Put, Read};

/// One connection, within whatever transaction its owner has begun.
pub(super) struct Tables<'c> {
    connection: &'c Connection,
    /// How long the ledger was before this transaction.
    size: u64,
    /// The hashes of the entries that this transaction has written.
    leaves: Vec<Hash>,
}

type Done<T> = Result<T, Trouble>;

impl<'c> Tables<'c> {
    /// For whoever reads. How long the ledger is, readers ask `heads`.
    pub(super) fn reading(connection: &'c Connection) -> Self {
        Self::writing(connection, 0)
    }

    /// For whoever writes, to a ledger of this size.
    pub(super) fn writing(connection: &'c Connection, size: u64) -> Self {
        Self { connection, size, leaves: Vec::new() }
    }

    /// How many entries were written.
    pub(super) fn written(&self) -> usize {
        self.leaves.len()
    }

    /// Only so many entries were written: the rest was taken back.
    pub(super) fn forget_after(&mut self, written: usize) {
        self.leaves.truncate(written);
    }

    /// The hashes of the entries that were written.
    pub(super) fn leaves(&self) -> &[Hash] {
        &self.leaves
    }

    /// Carries out a statement without values.
    pub(super) fn execute(&self, sql: &str) -> Done<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    fn one<T>(&self, sql: &str, params: impl Params, make: impl FnOnce(&Row<'_>) -> Done<T>) -> Done<Option<T>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        rows.next()?.map(make).transpose()
    }

    fn all<T>(&self, sql: &str, params: impl Params, make: impl Fn(&Row<'_>) -> Done<T>) -> Done<Vec<T>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(make(row)?);
        }
        Ok(all)
    }

    /// All operations that have their guests now, open or held; oldest first.
    pub(super) fn unsettled(&self, environment: &EnvironmentName) -> Done<Vec<History>> {
        self.occupying(environment, "")
    }

    /// Those of them of which something more is true. They are not found by walking through all that ever were.
    fn occupying(&self, environment: &EnvironmentName, more: &str) -> Done<Vec<History>> {
        let sql = format!("{} JOIN occupants c ON c.operation = o.seq WHERE c.environment = ?1 {more} ORDER BY o.seq", rows::HISTORY);
        self.all(&sql, params![environment.as_str()], rows::history)
    }

    /// Changes exactly one row: that it is there was asked before, so that anything else is a damaged file.
    fn change(&self, what: &str, sql: &str, params: impl Params) -> Done<()> {
        match self.connection.prepare_cached(sql)?.execute(params)? {
            1 => Ok(()),
            rows => Err(Trouble::rotten(what, format!("{rows} rows were changed instead of one"))),
        }
    }

    fn put_intent(&self, operation: &Operation, at_ms: u64) -> Done<()> {
        let Operation { id, run, environment, guest, source, .. } = operation;
        let body = write_operation(operation).map_err(|error| Trouble::rotten(id.as_str(), error.to_string()))?;
        let row = params![id.as_str(), run.as_str(), environment.as_str(), guest.vmid.get(), integer(at_ms), body];
        self.change(id.as_str(), INTENT, row)?;
        let seq = self.connection.last_insert_rowid();
        self.change(id.as_str(), OCCUPY, params![environment.as_str(), guest.vmid.get(), seq])?;
        if let Source::OneShot { key, request } = source {
            self.change(id.as_str(), KEY, params![environment.as_str(), key.as_str(), request.to_string(), seq])?;
        }
        Ok(())
    }

    /// How many rows a table of ours has.
    pub(super) fn count(&self, table: &'static str) -> Done<u64> {
        let count = self.one(&format!("SELECT count(*) FROM {table}"), [], |row| Ok(row.get::<_, i64>(0)?))?;
        Ok(count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0))
    }

    /// Holds and freezes that still hold, of all environments.
    pub(super) fn in_force(&self) -> Done<(Vec<Hold>, Vec<Freeze>)> {
        let environments = self.all(IN_FORCE, [], rows::environment)?;
        let (mut holds, mut freezes) = (Vec::new(), Vec::new());
        for environment in &environments {
            holds.extend(self.holds(environment)?);
            freezes.extend(self.freeze(environment)?);
        }
        Ok((holds, freezes))
    }

    /// All that people ever said, in its order.
    pub(super) fn said(&self) -> Done<Said> {
        Ok(Said { holds: self.all(rows::ALL_HOLDS, [], rows::past_hold)?, freezes: self.all(rows::ALL_FREEZES, [], rows::past_freeze)? })
    }

    /// The runs and the operations in the order in which they began.
    pub(super) fn order(&self) -> Done<(Vec<RunId>, Vec<OperationId>)> {
        let runs = self.all("SELECT id FROM runs ORDER BY seq", [], rows::run_id)?;
        Ok((runs, self.all("SELECT id FROM operations ORDER BY seq", [], rows::operation_id)?))
    }

    /// Every idempotency key, by environment and name.
    pub(super) fn keys(&self) -> Done<Vec<KeyRow>> {
        self.all(rows::ALL_KEYS, [], rows::key)
    }

    /// Under which digests something is kept.
    pub(super) fn digests(&self) -> Done<Vec<Digest>> {
        self.all("SELECT digest FROM blobs ORDER BY digest", [], rows::digest)
    }

    /// The hashes of a full tile as they are kept.
    pub(super) fn full_tile(&self, tile: Tile) -> Done<Option<Vec<Hash>>> {
        ledger::full(self.connection, tile)
    }

    fn vacate(&self, id: &OperationId) -> Done<()> {
        self.change(id.as_str(), VACATE, params![id.as_str()])
    }
}

// The place of a row is part of its sum, so that it is asked for before the row is there.
const INTENT: &str = "INSERT INTO operations (seq, id, run, environment, vmid, at_ms, body, sum) \
    SELECT next.seq, ?1, r.seq, ?3, ?4, ?5, ?6, row_sum(next.seq, ?1, r.seq, ?3, ?4, ?5, ?6) \
    FROM runs r, (SELECT coalesce(max(seq), 0) + 1 AS seq FROM operations) next WHERE r.id = ?2";
const OCCUPY: &str = "INSERT INTO occupants (environment, vmid, operation, sum) VALUES (?1, ?2, ?3, row_sum(?1, ?2, ?3))";
const VACATE: &str = "DELETE FROM occupants WHERE (environment, vmid, operation) = \
    (SELECT coalesce((SELECT f.environment FROM former_names f WHERE f.name = o.environment), o.environment), o.vmid, o.seq \
     FROM operations o WHERE o.id = ?1)";
/// The names of an environment: that of today, in place of `#`, and former ones. What happened keeps the name that it happened under.
const NAMES: &str = "IN (SELECT # UNION ALL SELECT name FROM former_names WHERE environment = #)";
const IN_FORCE: &str = "SELECT environment FROM holds WHERE released_at_ms IS NULL \
    UNION SELECT environment FROM freezes WHERE thawed_at_ms IS NULL ORDER BY 1";
const KEY: &str = "INSERT INTO idempotency_keys (environment, name, request, operation, sum) \
    VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4))";
/// What a rename from `?1` to `?2` changes. All that is in force is kept under the new name; a former name leads to it.
const RENAME: [&str; 8] = [
    "UPDATE bindings SET environment = ?2, sum = row_sum(?2, cluster, who, at_ms) WHERE environment = ?1",
    "UPDATE holds SET environment = ?2, sum = row_sum(seq, ?2, vmid, who, reason, at_ms, released_by, released_at_ms) \
        WHERE environment = ?1 AND released_at_ms IS NULL",
    "UPDATE freezes SET environment = ?2, sum = row_sum(seq, ?2, who, reason, at_ms, thawed_by, thawed_at_ms) \
        WHERE environment = ?1 AND thawed_at_ms IS NULL",
    "UPDATE occupants SET environment = ?2, sum = row_sum(?2, vmid, operation) WHERE environment = ?1",
    "UPDATE idempotency_keys SET environment = ?2, sum = row_sum(?2, name, request, operation) WHERE environment = ?1",
    "DELETE FROM former_names WHERE name = ?2 AND environment = ?1",
    "UPDATE former_names SET environment = ?2, sum = row_sum(name, ?2) WHERE environment = ?1",
    "INSERT INTO former_names (name, environment, sum) VALUES (?1, ?2, row_sum(?1, ?2))",
];
const SENDING: &str = "INSERT INTO sendings (operation, at_ms, up_ms, sum) \
    SELECT seq, ?2, ?3, row_sum(seq, ?2, ?3) FROM operations WHERE id = ?1 \
    ON CONFLICT (operation) DO UPDATE SET at_ms = excluded.at_ms, up_ms = excluded.up_ms, sum = excluded.sum";
const TASK: &str = "INSERT INTO tasks (operation, task, at_ms, sum) SELECT seq, ?2, ?3, row_sum(seq, ?2, ?3) FROM operations WHERE id = ?1";
const END: &str = "INSERT INTO ends (operation, ending, at_ms, body, sum) \
    SELECT seq, ?2, ?3, ?4, row_sum(seq, ?2, ?3, ?4) FROM operations WHERE id = ?1";
const RESOLVE: &str = "INSERT INTO resolutions (operation, resolution, who, reason, at_ms, sum) \
    SELECT seq, ?2, ?3, ?4, ?5, row_sum(seq, ?2, ?3, ?4, ?5) FROM operations WHERE id = ?1";

/// SQLite's integers are signed; the judge has bounded all of ours far below that.
pub(super) fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Read for Tables<'_> {
    type Error = Trouble;

    fn progress(&self, id: &OperationId) -> Done<Option<Progress>> {
        self.one(rows::PROGRESS, params![id.as_str()], |row| rows::progress(row, id))
    }

    fn occupant(&self, environment: &EnvironmentName, vmid: Vmid) -> Done<Option<OperationId>> {
        let sql = "SELECT (SELECT id FROM operations WHERE seq = operation) FROM occupants WHERE environment = ?1 AND vmid = ?2";
        self.one(sql, params![environment.as_str(), vmid.get()], rows::operation_id)
    }

    fn environment(&self, id: &OperationId) -> Done<Option<EnvironmentName>> {
        let sql = "SELECT coalesce((SELECT f.environment FROM former_names f WHERE f.name = o.environment), o.environment) \
            FROM operations o WHERE o.id = ?1";
        self.one(sql, params![id.as_str()], rows::environment)
    }

    fn tasked(&self, environment: &EnvironmentName, task: &TaskId) -> Done<Option<OperationId>> {
        let sql = "SELECT o.id FROM tasks t JOIN operations o ON o.seq = t.operation WHERE t.task = ?1 \
            AND o.environment IN (SELECT ?2 UNION ALL SELECT name FROM former_names WHERE environment = ?2)";
        self.one(sql, params![task.as_str(), environment.as_str()], rows::operation_id)
    }

    fn keyed(&self, environment: &EnvironmentName, key: &IdempotencyKey) -> Done<Option<(OperationId, Digest)>> {
        let sql = "SELECT (SELECT id FROM operations WHERE seq = operation), request FROM idempotency_keys \
            WHERE environment = ?1 AND name = ?2";
        self.one(sql, params![environment.as_str(), key.as_str()], rows::keyed)
    }

    fn run(&self, id: &RunId) -> Done<Option<RunHistory>> {
        self.one(rows::RUN, params![id.as_str()], rows::run)
    }

    fn hold(&self, environment: &EnvironmentName, vmid: Vmid) -> Done<Option<Hold>> {
        self.one(rows::HOLD, params![environment.as_str(), vmid.get()], |row| rows::hold(row, environment))
    }

    fn freeze(&self, environment: &EnvironmentName) -> Done<Option<Freeze>> {
        self.one(rows::FREEZE, params![environment.as_str()], |row| rows::freeze(row, environment))
    }

    fn binding(&self, environment: &EnvironmentName) -> Done<Option<EnvironmentBinding>> {
        self.one(rows::BINDING, params![environment.as_str()], rows::binding)
    }

    fn bound_to(&self, cluster: &ClusterIdentity) -> Done<Option<EnvironmentBinding>> {
        self.one(rows::BOUND_TO, params![cluster.as_str()], rows::binding)
    }

    fn renamed_to(&self, environment: &EnvironmentName) -> Done<Option<EnvironmentName>> {
        self.one("SELECT environment FROM former_names WHERE name = ?1", params![environment.as_str()], rows::environment)
    }

    fn has_state(&self, environment: &EnvironmentName) -> Done<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM runs \
                WHERE environment IN (SELECT ?1 UNION ALL SELECT name FROM former_names WHERE environment = ?1)) \
            OR EXISTS (SELECT 1 FROM holds WHERE environment = ?1 AND released_at_ms IS NULL) \
            OR EXISTS (SELECT 1 FROM freezes WHERE environment = ?1 AND thawed_at_ms IS NULL)";
        let found = self.one(sql, params![environment.as_str()], |row| Ok(row.get::<_, bool>(0)?))?;
        Ok(found.unwrap_or(false))
    }

    fn names(&self) -> Done<EnvironmentNames> {
        let mut names = EnvironmentNames::default();
        self.all(rows::BINDINGS, [], rows::binding)?.into_iter().for_each(|binding| names.bind(binding));
        let former = self.all("SELECT name, environment FROM former_names ORDER BY name", [], rows::former_name)?;
        former.into_iter().for_each(|(name, now)| names.add_former(name, now));
        Ok(names)
    }

    fn operation(&self, id: &OperationId) -> Done<Option<History>> {
        self.one(&format!("{} WHERE o.id = ?1", rows::HISTORY), params![id.as_str()], rows::history)
    }

    fn open_operations(&self, environment: &EnvironmentName) -> Done<Vec<History>> {
        self.occupying(environment, "AND e.operation IS NULL")
    }

    fn operations(&self, filter: &Filter, limit: u32) -> Done<Vec<History>> {
        let (sql, params) = listing(filter, limit);
        self.all(&sql, rusqlite::params_from_iter(params), rows::history)
    }

    fn runs(&self, environment: &EnvironmentName, limit: u32) -> Done<Vec<RunHistory>> {
        self.all(rows::RUNS, params![environment.as_str(), limit], rows::run)
    }

    fn holds(&self, environment: &EnvironmentName) -> Done<Vec<Hold>> {
        self.all(rows::HOLDS, params![environment.as_str()], |row| rows::hold(row, environment))
    }

    fn blob(&self, digest: &Digest) -> Done<Option<Vec<u8>>> {
        let sql = "SELECT body FROM blobs WHERE digest = ?1";
        let body = self.one(sql, params![digest.to_string()], |row| Ok(row.get::<_, Vec<u8>>(0)?))?;
        // What a decision rests on: other bytes are worse than none.
        match body {
            Some(body) if Digest::of_bytes(&body) != *digest => Err(Trouble::rotten(&digest.to_string(), "its bytes have another digest")),
            body => Ok(body),
        }
    }

    fn heads(&self) -> Done<Heads> {
        ledger::heads(self.connection)
    }

    fn length(&self) -> Done<u64> {
        Ok(self.size + self.leaves.len() as u64)
    }

    fn entries(&self, from: u64, limit: u32) -> Done<Vec<Vec<u8>>> {
        ledger::entries(self.connection, from, limit)
    }

    fn hashes(&self, tile: Tile) -> Done<Option<Vec<Hash>>> {
        ledger::hashes(self.connection, tile)
    }
}

/// The statement that a filter asks for. Only its shape depends on the filter; what was given is bound, never pasted.
fn listing(filter: &Filter, limit: u32) -> (String, Vec<Value>) {
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
    conditions.extend(filter.standing.map(|standing| standing_is(standing).to_owned()));
    params.push(Value::Integer(i64::from(limit)));
    let filter = if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    (format!("{}{filter} ORDER BY o.seq DESC LIMIT ?{}", rows::HISTORY, params.len()), params)
}

fn standing_is(standing: Standing) -> &'static str {
    match standing {
        Standing::Open => "e.operation IS NULL",
        Standing::Held => "e.ending = 'held' AND r.operation IS NULL",
        Standing::Settled => "(e.ending <> 'held' OR r.operation IS NOT NULL)",
    }
}

impl Put for Tables<'_> {
    fn put_record(&mut self, record: Record, after: Progress) -> Done<()> {
        match &record {
            Record::Intent { operation, at_ms } => self.put_intent(operation, *at_ms)?,
            Record::Sending { id, at_ms, up_ms } => {
                self.change(id.as_str(), SENDING, params![id.as_str(), integer(*at_ms), integer(*up_ms)])?;
            }
            Record::Tasked { id, task, at_ms } => self.change(id.as_str(), TASK, params![id.as_str(), task.as_str(), integer(*at_ms)])?,
            Record::Ended { id, outcome, at_ms } => {
                let body = write_outcome(outcome).map_err(|error| Trouble::rotten(id.as_str(), error.to_string()))?;
                self.change(id.as_str(), END, params![id.as_str(), outcome.end().word(), integer(*at_ms), body])?;
            }
            Record::Resolved { id, resolution, by, reason, at_ms } => {
                self.change(id.as_str(), RESOLVE, params![id.as_str(), resolution.word(), by, reason, integer(*at_ms)])?;
            }
        }
        if after.occupies_guest() { Ok(()) } else { self.vacate(record.id()) }
    }

    fn put_blob(&mut self, digest: Digest, body: &[u8]) -> Done<()> {
        let sql = "INSERT INTO blobs (digest, body) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.connection.prepare_cached(sql)?.execute(params![digest.to_string(), body])?;
        Ok(())
    }

    fn put_pruned(&mut self, digest: &Digest) -> Done<()> {
        let digest = digest.to_string();
        self.change(&digest, "DELETE FROM blobs WHERE digest = ?1", params![digest])
    }

    fn put_run(&mut self, run: Run) -> Done<()> {
        let sql = "INSERT INTO runs (seq, id, environment, plan, who, at_ms, boot, sum) \
            SELECT seq, ?1, ?2, ?3, ?4, ?5, ?6, row_sum(seq, ?1, ?2, ?3, ?4, ?5, ?6) \
            FROM (SELECT coalesce(max(seq), 0) + 1 AS seq FROM runs)";
        let Run { id, environment, plan, by, at_ms, boot } = run;
        let boot = boot.as_ref().map(BootId::as_str);
        self.change(id.as_str(), sql, params![id.as_str(), environment.as_str(), plan.to_string(), by, integer(at_ms), boot])
    }

    fn put_run_end(&mut self, id: &RunId, end: End, at_ms: u64) -> Done<()> {
        let sql = "INSERT INTO run_ends (run, ending, at_ms, sum) SELECT seq, ?2, ?3, row_sum(seq, ?2, ?3) FROM runs WHERE id = ?1";
        self.change(id.as_str(), sql, params![id.as_str(), end.word(), integer(at_ms)])
    }

    fn put_hold(&mut self, hold: Hold) -> Done<()> {
        let sql = "INSERT INTO holds (seq, environment, vmid, who, reason, at_ms, sum) \
            SELECT seq, ?1, ?2, ?3, ?4, ?5, row_sum(seq, ?1, ?2, ?3, ?4, ?5, NULL, NULL) \
            FROM (SELECT coalesce(max(seq), 0) + 1 AS seq FROM holds)";
        let Hold { environment, vmid, by, reason, at_ms } = hold;
        self.change("hold", sql, params![environment.as_str(), vmid.get(), by, reason, integer(at_ms)])
    }

    fn put_release(&mut self, environment: &EnvironmentName, vmid: Vmid, by: &str, at_ms: u64) -> Done<()> {
        let sql = "UPDATE holds SET released_by = ?3, released_at_ms = ?4, \
            sum = row_sum(seq, environment, vmid, who, reason, at_ms, ?3, ?4) \
            WHERE environment = ?1 AND vmid = ?2 AND released_at_ms IS NULL";
        self.change("hold", sql, params![environment.as_str(), vmid.get(), by, integer(at_ms)])
    }

    fn put_freeze(&mut self, freeze: Freeze) -> Done<()> {
        let sql = "INSERT INTO freezes (seq, environment, who, reason, at_ms, sum) \
            SELECT seq, ?1, ?2, ?3, ?4, row_sum(seq, ?1, ?2, ?3, ?4, NULL, NULL) \
            FROM (SELECT coalesce(max(seq), 0) + 1 AS seq FROM freezes)";
        let Freeze { environment, by, reason, at_ms } = freeze;
        self.change("freeze", sql, params![environment.as_str(), by, reason, integer(at_ms)])
    }

    fn put_thaw(&mut self, environment: &EnvironmentName, by: &str, at_ms: u64) -> Done<()> {
        let sql = "UPDATE freezes SET thawed_by = ?2, thawed_at_ms = ?3, sum = row_sum(seq, environment, who, reason, at_ms, ?2, ?3) \
            WHERE environment = ?1 AND thawed_at_ms IS NULL";
        self.change("freeze", sql, params![environment.as_str(), by, integer(at_ms)])
    }

    fn put_binding(&mut self, binding: EnvironmentBinding) -> Done<()> {
        let sql = "INSERT INTO bindings (environment, cluster, who, at_ms, sum) VALUES (?1, ?2, ?3, ?4, row_sum(?1, ?2, ?3, ?4))";
        let EnvironmentBinding { environment, cluster, by, at_ms } = binding;
        self.change(environment.as_str(), sql, params![environment.as_str(), cluster.as_str(), by, integer(at_ms)])
    }

    fn put_rename(&mut self, rename: &EnvironmentRename) -> Done<()> {
        for sql in RENAME {
            self.connection.prepare_cached(sql)?.execute(params![rename.from.as_str(), rename.to.as_str()])?;
        }
        Ok(())
    }

    fn put_entry(&mut self, entry: Vec<u8>) -> Done<()> {
        ledger::put(self.connection, self.size + self.leaves.len() as u64, &entry)?;
        self.leaves.push(Hash::of_leaf(&entry));
        Ok(())
    }
}
