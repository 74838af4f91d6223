//! Converts rows to core types, strictly: a value that this program does not write means a damaged row.

use converger_core::apply::{
    BootId, EnvironmentBinding, Freeze, Hold, IdempotencyKey, JournalProgress, Operation, OperationEnd, OperationHistory, OperationId,
    Resolution, ResolutionRecord, RunId, RunStart, SendingMark, TaskId, parse_operation, parse_outcome,
};
use converger_core::artifact::Digest;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use rusqlite::Row;

use super::sql_fault::SqlFault;
use crate::query::{EndedBy, IdempotencyRow, RunHistory};

type RowResult<T> = Result<T, SqlFault>;

/// The columns of a history, in the order of [`parse_history`].
pub(super) const SELECT_HISTORY: &str = "SELECT o.id, o.body, o.at_ms, t.task, t.at_ms, e.body, e.at_ms, r.resolution, r.who, r.reason, r.at_ms, \
    s.at_ms, s.up_ms, (SELECT boot FROM runs WHERE seq = o.run), o.environment, o.vmid, (SELECT id FROM runs WHERE seq = o.run), \
    e.ending FROM operations o \
    LEFT JOIN sendings s ON s.operation = o.seq \
    LEFT JOIN tasks t ON t.operation = o.seq \
    LEFT JOIN ends e ON e.operation = o.seq \
    LEFT JOIN resolutions r ON r.operation = o.seq";

pub(super) fn parse_history(row: &Row<'_>) -> RowResult<OperationHistory> {
    let id: String = row.get(0)?;
    let operation = parse_operation(&row.get::<_, Vec<u8>>(1)?).map_err(|error| SqlFault::malformed_row(&id, &error))?;
    if operation.id.as_str() != id {
        return Err(SqlFault::damaged_row(&id, format!("its body belongs to operation `{}`", operation.id)));
    }
    check_row_matches_body(row, &operation)?;
    let mut history = OperationHistory::from_intent(Box::new(operation), number_column(row, 2, &id)?);
    history.boot = parse_optional(row, 13, &id, "boot", BootId::new)?;
    if row.get::<_, Option<i64>>(11)?.is_some() {
        history.sending = Some(SendingMark { at_ms: number_column(row, 11, &id)?, up_ms: number_column(row, 12, &id)? });
    }
    if let Some(task) = row.get::<_, Option<String>>(3)? {
        history.task = Some((parse_with(&id, "task", &task, TaskId::new)?, number_column(row, 4, &id)?));
    }
    if let Some(body) = row.get::<_, Option<Vec<u8>>>(5)? {
        let outcome = parse_outcome(&body).map_err(|error| SqlFault::malformed_row(&id, &error))?;
        // Queries use this column, and find held operations by it, so it must agree with the body.
        let ending: String = row.get(17)?;
        if ending != outcome.end().word() {
            let what = format!("its row says `{}`, but its body says `{}`", ending.escape_debug(), outcome.end().word());
            return Err(SqlFault::damaged_row(&id, what));
        }
        history.ended = Some((outcome, number_column(row, 6, &id)?));
    }
    if let Some(word) = row.get::<_, Option<String>>(7)? {
        let resolution = parse_with(&id, "resolution", &word, parse_resolution)?;
        let at_ms = number_column(row, 10, &id)?;
        history.resolved = Some(ResolutionRecord { resolution, by: text_column(row, 8)?, reason: text_column(row, 9)?, at_ms });
    }
    Ok(history)
}

/// Queries use these columns, so they must agree with the body: an operation that is listed under another guest would be overlooked at
/// its own.
fn check_row_matches_body(row: &Row<'_>, operation: &Operation) -> RowResult<()> {
    let (environment, vmid, run): (String, i64, Option<String>) = (row.get(14)?, row.get(15)?, row.get(16)?);
    let (guest, own) = (operation.guest.vmid, operation.run.as_str());
    if environment != operation.environment.as_str() || vmid != i64::from(guest.get()) {
        let of = format!(
            "its row belongs to guest {vmid} in `{}`, but its body to {guest} in `{}`",
            environment.escape_debug(),
            operation.environment
        );
        return Err(SqlFault::damaged_row(operation.id.as_str(), of));
    }
    if run.as_deref() != Some(own) {
        return Err(SqlFault::damaged_row(operation.id.as_str(), format!("its row belongs to another run than its body, `{own}`")));
    }
    Ok(())
}

/// Read before every record is written.
pub(super) const SELECT_PROGRESS: &str = "SELECT EXISTS (SELECT 1 FROM tasks WHERE operation = o.seq), \
    (SELECT ending FROM ends WHERE operation = o.seq), \
    (SELECT resolution FROM resolutions WHERE operation = o.seq) \
    FROM operations o WHERE o.id = ?1";

pub(super) fn parse_progress(row: &Row<'_>, id: &OperationId) -> RowResult<JournalProgress> {
    let end = parse_optional(row, 1, id.as_str(), "end", parse_end)?;
    let resolution = parse_optional(row, 2, id.as_str(), "resolution", parse_resolution)?;
    Ok(JournalProgress { has_task: row.get(0)?, end, resolution })
}

/// The columns of a run, in the order of [`parse_run`].
macro_rules! of_runs {
    ($rest:literal) => {
        concat!(
            "SELECT r.id, r.environment, r.plan, r.who, r.at_ms, ",
            "(SELECT ending FROM run_ends WHERE run = r.seq), (SELECT at_ms FROM run_ends WHERE run = r.seq), r.boot ",
            "FROM runs r WHERE ",
            $rest
        )
    };
}

pub(super) const SELECT_RUN: &str = of_runs!("r.id = ?1");
pub(super) const SELECT_RUNS: &str =
    of_runs!("r.environment IN (SELECT ?1 UNION ALL SELECT name FROM former_names WHERE environment = ?1) ORDER BY r.seq DESC LIMIT ?2");

pub(super) fn parse_run(row: &Row<'_>) -> RowResult<RunHistory> {
    let id: String = row.get(0)?;
    let end = parse_optional(row, 5, &id, "end", parse_end)?;
    Ok(RunHistory {
        run: RunStart {
            id: parse_with(&id, "id", &id, RunId::new)?,
            environment: parse_with(&id, "environment", &text_column(row, 1)?, EnvironmentName::new)?,
            plan: parse_with(&id, "plan", &text_column(row, 2)?, Digest::parse)?,
            by: text_column(row, 3)?,
            at_ms: number_column(row, 4, &id)?,
            boot: parse_optional(row, 7, &id, "boot", BootId::new)?,
        },
        ended: end.map(|end| number_column(row, 6, &id).map(|at_ms| (end, at_ms))).transpose()?,
    })
}

/// The columns of a hold, in the order of [`parse_hold`].
macro_rules! of_holds {
    ($rest:literal) => {
        concat!("SELECT vmid, who, reason, at_ms FROM holds WHERE released_at_ms IS NULL AND environment = ?1", $rest)
    };
}

pub(super) const SELECT_HOLD: &str = of_holds!(" AND vmid = ?2");
pub(super) const SELECT_HOLDS: &str = of_holds!(" ORDER BY vmid");

pub(super) fn parse_hold(row: &Row<'_>, environment: &EnvironmentName) -> RowResult<Hold> {
    let vmid = parse_vmid(row)?;
    Ok(Hold {
        environment: environment.clone(),
        vmid,
        by: text_column(row, 1)?,
        reason: text_column(row, 2)?,
        at_ms: number_column(row, 3, "hold")?,
    })
}

/// The id of a guest, in the first column.
pub(super) fn parse_vmid(row: &Row<'_>) -> RowResult<Vmid> {
    let vmid: u64 = number_column(row, 0, "guest")?;
    Vmid::new(vmid).ok_or_else(|| SqlFault::damaged_row("guest", format!("{vmid} is not the id of a guest")))
}

/// The columns of a freeze, in the order of [`parse_freeze`].
pub(super) const SELECT_FREEZE: &str = "SELECT who, reason, at_ms FROM freezes WHERE thawed_at_ms IS NULL AND environment = ?1";

pub(super) fn parse_freeze(row: &Row<'_>, environment: &EnvironmentName) -> RowResult<Freeze> {
    Ok(Freeze {
        environment: environment.clone(),
        by: text_column(row, 0)?,
        reason: text_column(row, 1)?,
        at_ms: number_column(row, 2, "freeze")?,
    })
}

/// The columns of a binding, in the order of [`binding`].
macro_rules! of_bindings {
    ($rest:literal) => {
        concat!("SELECT environment, cluster, who, at_ms FROM bindings ", $rest)
    };
}

pub(super) const BINDING: &str = of_bindings!("WHERE environment = ?1");
pub(super) const BOUND_TO: &str = of_bindings!("WHERE cluster = ?1");
pub(super) const BINDINGS: &str = of_bindings!("ORDER BY environment");

pub(super) fn binding(row: &Row<'_>) -> RowResult<EnvironmentBinding> {
    let environment = parse_environment(row)?;
    let cluster = parse_with(environment.as_str(), "cluster identity", &text_column(row, 1)?, ClusterIdentity::parse)?;
    Ok(EnvironmentBinding { cluster, by: text_column(row, 2)?, at_ms: number_column(row, 3, "binding")?, environment })
}

/// A former name and the current name.
pub(super) fn former_name(row: &Row<'_>) -> RowResult<(EnvironmentName, EnvironmentName)> {
    let name = parse_environment(row)?;
    let now = parse_with(name.as_str(), "environment", &text_column(row, 1)?, EnvironmentName::new)?;
    Ok((name, now))
}

/// Every hold, in the order of [`parse_past_hold`].
pub(super) const SELECT_ALL_HOLDS: &str =
    "SELECT environment, vmid, who, reason, at_ms, released_by, released_at_ms FROM holds ORDER BY seq";

pub(super) fn parse_past_hold(row: &Row<'_>) -> RowResult<(Hold, Option<EndedBy>)> {
    let vmid: u64 = number_column(row, 1, "hold")?;
    let vmid = Vmid::new(vmid).ok_or_else(|| SqlFault::damaged_row("hold", format!("{vmid} is not the id of a guest")))?;
    let hold = Hold {
        environment: parse_environment(row)?,
        vmid,
        by: text_column(row, 2)?,
        reason: text_column(row, 3)?,
        at_ms: number_column(row, 4, "hold")?,
    };
    Ok((hold, parse_ended_by(row, 5, "hold")?))
}

/// Every freeze, in the order of [`parse_past_freeze`].
pub(super) const SELECT_ALL_FREEZES: &str = "SELECT environment, who, reason, at_ms, thawed_by, thawed_at_ms FROM freezes ORDER BY seq";

pub(super) fn parse_past_freeze(row: &Row<'_>) -> RowResult<(Freeze, Option<EndedBy>)> {
    let freeze = Freeze {
        environment: parse_environment(row)?,
        by: text_column(row, 1)?,
        reason: text_column(row, 2)?,
        at_ms: number_column(row, 3, "freeze")?,
    };
    Ok((freeze, parse_ended_by(row, 4, "freeze")?))
}

/// Who ended it and when, in this column and the next; both must be set or neither.
fn parse_ended_by(row: &Row<'_>, column: usize, of: &str) -> RowResult<Option<EndedBy>> {
    match (row.get::<_, Option<String>>(column)?, row.get::<_, Option<i64>>(column + 1)?) {
        (None, None) => Ok(None),
        (Some(by), Some(_)) => Ok(Some((by.into(), number_column(row, column + 1, of)?))),
        _ => Err(SqlFault::damaged_row(of, "only one of its end time and the author of its end is set")),
    }
}

/// Every idempotency key, in the order of [`parse_idempotency_row`].
pub(super) const SELECT_ALL_KEYS: &str = "SELECT (SELECT id FROM operations WHERE seq = operation), request, environment, name, change \
    FROM idempotency_keys ORDER BY environment, name, change";

pub(super) fn parse_idempotency_row(row: &Row<'_>) -> RowResult<IdempotencyRow> {
    let (operation, request) = parse_keyed_operation(row)?;
    let environment = parse_with(operation.as_str(), "environment", &text_column(row, 2)?, EnvironmentName::new)?;
    let key = parse_with(operation.as_str(), "key", &text_column(row, 3)?, IdempotencyKey::new)?;
    Ok(IdempotencyRow { environment, key, change: text_column(row, 4)?, request, operation })
}

pub(super) fn parse_digest(row: &Row<'_>) -> RowResult<Digest> {
    let digest: String = row.get(0)?;
    parse_with(&digest, "digest", &digest, Digest::parse)
}

pub(super) fn parse_run_id(row: &Row<'_>) -> RowResult<RunId> {
    let id: String = row.get(0)?;
    parse_with(&id, "id", &id, RunId::new)
}

pub(super) fn parse_operation_id(row: &Row<'_>) -> RowResult<OperationId> {
    let id: String = row.get(0)?;
    parse_with(&id, "id", &id, OperationId::new)
}

pub(super) fn parse_environment(row: &Row<'_>) -> RowResult<EnvironmentName> {
    let name: String = row.get(0)?;
    parse_with(&name, "environment", &name, EnvironmentName::new)
}

pub(super) fn parse_keyed_operation(row: &Row<'_>) -> RowResult<(OperationId, Digest)> {
    let id = parse_operation_id(row)?;
    let request = parse_with(id.as_str(), "request", &text_column(row, 1)?, Digest::parse)?;
    Ok((id, request))
}

fn parse_with<T>(of: &str, what: &str, found: &str, new: fn(&str) -> Option<T>) -> RowResult<T> {
    new(found).ok_or_else(|| SqlFault::damaged_row(of, format!("`{}` is not a well-formed {what}", found.escape_debug())))
}

fn parse_optional<T>(row: &Row<'_>, column: usize, of: &str, what: &str, new: fn(&str) -> Option<T>) -> RowResult<Option<T>> {
    row.get::<_, Option<String>>(column)?.map(|found| parse_with(of, what, &found, new)).transpose()
}

fn text_column(row: &Row<'_>, column: usize) -> RowResult<Box<str>> {
    Ok(row.get::<_, String>(column)?.into())
}

fn number_column(row: &Row<'_>, column: usize, of: &str) -> RowResult<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| SqlFault::damaged_row(of, format!("the number {number} is negative")))
}

fn parse_end(word: &str) -> Option<OperationEnd> {
    OperationEnd::ALL.into_iter().find(|end| end.word() == word)
}

fn parse_resolution(word: &str) -> Option<Resolution> {
    Resolution::ALL.into_iter().find(|resolution| resolution.word() == word)
}
