//! From rows to the words of the core, strictly: a word that this program does not write is a damaged row.

use converger_core::apply::{
    BootId, End, EnvironmentBinding, Freeze, History, Hold, IdempotencyKey, Operation, OperationId, Progress, Resolution, Resolved, Run,
    RunId, Sending, TaskId, parse_operation, parse_outcome,
};
use converger_core::artifact::Digest;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use rusqlite::Row;

use super::trouble::Trouble;
use crate::query::{KeyRow, Over, RunHistory};

type Made<T> = Result<T, Trouble>;

/// The columns of a history, in the order of [`history`].
pub(super) const HISTORY: &str = "SELECT o.id, o.body, o.at_ms, t.task, t.at_ms, e.body, e.at_ms, r.resolution, r.who, r.reason, r.at_ms, \
    s.at_ms, s.up_ms, (SELECT boot FROM runs WHERE seq = o.run), o.environment, o.vmid, (SELECT id FROM runs WHERE seq = o.run), \
    e.ending FROM operations o \
    LEFT JOIN sendings s ON s.operation = o.seq \
    LEFT JOIN tasks t ON t.operation = o.seq \
    LEFT JOIN ends e ON e.operation = o.seq \
    LEFT JOIN resolutions r ON r.operation = o.seq";

pub(super) fn history(row: &Row<'_>) -> Made<History> {
    let id: String = row.get(0)?;
    let operation = parse_operation(&row.get::<_, Vec<u8>>(1)?).map_err(|error| Trouble::malformed(&id, &error))?;
    if operation.id.as_str() != id {
        return Err(Trouble::rotten(&id, format!("its body is of operation `{}`", operation.id)));
    }
    is_of_its_row(row, &operation)?;
    let mut history = History::begin(Box::new(operation), number(row, 2, &id)?);
    history.boot = word(row, 13, &id, "boot", BootId::new)?;
    if row.get::<_, Option<i64>>(11)?.is_some() {
        history.sending = Some(Sending { at_ms: number(row, 11, &id)?, up_ms: number(row, 12, &id)? });
    }
    if let Some(task) = row.get::<_, Option<String>>(3)? {
        history.task = Some((checked(&id, "task", &task, TaskId::new)?, number(row, 4, &id)?));
    }
    if let Some(body) = row.get::<_, Option<Vec<u8>>>(5)? {
        let outcome = parse_outcome(&body).map_err(|error| Trouble::malformed(&id, &error))?;
        // What is searched by stands beside it: who is held is found by that word.
        let ending: String = row.get(17)?;
        if ending != outcome.end().word() {
            let what = format!("its row says `{}`, and its body `{}`", ending.escape_debug(), outcome.end().word());
            return Err(Trouble::rotten(&id, what));
        }
        history.ended = Some((outcome, number(row, 6, &id)?));
    }
    if let Some(word) = row.get::<_, Option<String>>(7)? {
        let resolution = checked(&id, "resolution", &word, resolution_of)?;
        let at_ms = number(row, 10, &id)?;
        history.resolved = Some(Resolved { resolution, by: text(row, 8)?, reason: text(row, 9)?, at_ms });
    }
    Ok(history)
}

/// What is searched by stands beside the body and must say the same: an operation that is listed for another guest is overlooked at its own.
fn is_of_its_row(row: &Row<'_>, operation: &Operation) -> Made<()> {
    let (environment, vmid, run): (String, i64, Option<String>) = (row.get(14)?, row.get(15)?, row.get(16)?);
    let (guest, own) = (operation.guest.vmid, operation.run.as_str());
    if environment != operation.environment.as_str() || vmid != i64::from(guest.get()) {
        let of = format!(
            "its row is of guest {vmid} in `{}`, and its body of {guest} in `{}`",
            environment.escape_debug(),
            operation.environment
        );
        return Err(Trouble::rotten(operation.id.as_str(), of));
    }
    if run.as_deref() != Some(own) {
        return Err(Trouble::rotten(operation.id.as_str(), format!("its row is of another run than `{own}`, which its body names")));
    }
    Ok(())
}

/// Asked before every record.
pub(super) const PROGRESS: &str = "SELECT EXISTS (SELECT 1 FROM tasks WHERE operation = o.seq), \
    (SELECT ending FROM ends WHERE operation = o.seq), \
    (SELECT resolution FROM resolutions WHERE operation = o.seq) \
    FROM operations o WHERE o.id = ?1";

pub(super) fn progress(row: &Row<'_>, id: &OperationId) -> Made<Progress> {
    let end = word(row, 1, id.as_str(), "end", end_of)?;
    let resolution = word(row, 2, id.as_str(), "resolution", resolution_of)?;
    Ok(Progress { is_tasked: row.get(0)?, end, resolution })
}

/// The columns of a run, in the order of [`run`].
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

pub(super) const RUN: &str = of_runs!("r.id = ?1");
pub(super) const RUNS: &str =
    of_runs!("r.environment IN (SELECT ?1 UNION ALL SELECT name FROM former_names WHERE environment = ?1) ORDER BY r.seq DESC LIMIT ?2");

pub(super) fn run(row: &Row<'_>) -> Made<RunHistory> {
    let id: String = row.get(0)?;
    let end = word(row, 5, &id, "end", end_of)?;
    Ok(RunHistory {
        run: Run {
            id: checked(&id, "id", &id, RunId::new)?,
            environment: checked(&id, "environment", &text(row, 1)?, EnvironmentName::new)?,
            plan: checked(&id, "plan", &text(row, 2)?, Digest::parse)?,
            by: text(row, 3)?,
            at_ms: number(row, 4, &id)?,
            boot: word(row, 7, &id, "boot", BootId::new)?,
        },
        ended: end.map(|end| number(row, 6, &id).map(|at_ms| (end, at_ms))).transpose()?,
    })
}

/// The columns of a hold, in the order of [`hold`].
macro_rules! of_holds {
    ($rest:literal) => {
        concat!("SELECT vmid, who, reason, at_ms FROM holds WHERE released_at_ms IS NULL AND environment = ?1", $rest)
    };
}

pub(super) const HOLD: &str = of_holds!(" AND vmid = ?2");
pub(super) const HOLDS: &str = of_holds!(" ORDER BY vmid");

pub(super) fn hold(row: &Row<'_>, environment: &EnvironmentName) -> Made<Hold> {
    let vmid = vmid(row)?;
    Ok(Hold { environment: environment.clone(), vmid, by: text(row, 1)?, reason: text(row, 2)?, at_ms: number(row, 3, "hold")? })
}

/// The id of a guest, in the first column.
pub(super) fn vmid(row: &Row<'_>) -> Made<Vmid> {
    let vmid: u64 = number(row, 0, "guest")?;
    Vmid::new(vmid).ok_or_else(|| Trouble::rotten("guest", format!("{vmid} is not the id of a guest")))
}

/// The columns of a freeze, in the order of [`freeze`].
pub(super) const FREEZE: &str = "SELECT who, reason, at_ms FROM freezes WHERE thawed_at_ms IS NULL AND environment = ?1";

pub(super) fn freeze(row: &Row<'_>, environment: &EnvironmentName) -> Made<Freeze> {
    Ok(Freeze { environment: environment.clone(), by: text(row, 0)?, reason: text(row, 1)?, at_ms: number(row, 2, "freeze")? })
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

pub(super) fn binding(row: &Row<'_>) -> Made<EnvironmentBinding> {
    let environment = environment(row)?;
    let cluster = checked(environment.as_str(), "cluster identity", &text(row, 1)?, ClusterIdentity::parse)?;
    Ok(EnvironmentBinding { cluster, by: text(row, 2)?, at_ms: number(row, 3, "binding")?, environment })
}

/// A former name, and the name of today.
pub(super) fn former_name(row: &Row<'_>) -> Made<(EnvironmentName, EnvironmentName)> {
    let name = environment(row)?;
    let now = checked(name.as_str(), "environment", &text(row, 1)?, EnvironmentName::new)?;
    Ok((name, now))
}

/// Every hold, in the order of [`past_hold`].
pub(super) const ALL_HOLDS: &str = "SELECT environment, vmid, who, reason, at_ms, released_by, released_at_ms FROM holds ORDER BY seq";

pub(super) fn past_hold(row: &Row<'_>) -> Made<(Hold, Option<Over>)> {
    let vmid: u64 = number(row, 1, "hold")?;
    let vmid = Vmid::new(vmid).ok_or_else(|| Trouble::rotten("hold", format!("{vmid} is not the id of a guest")))?;
    let hold = Hold { environment: environment(row)?, vmid, by: text(row, 2)?, reason: text(row, 3)?, at_ms: number(row, 4, "hold")? };
    Ok((hold, over(row, 5, "hold")?))
}

/// Every freeze, in the order of [`past_freeze`].
pub(super) const ALL_FREEZES: &str = "SELECT environment, who, reason, at_ms, thawed_by, thawed_at_ms FROM freezes ORDER BY seq";

pub(super) fn past_freeze(row: &Row<'_>) -> Made<(Freeze, Option<Over>)> {
    let freeze = Freeze { environment: environment(row)?, by: text(row, 1)?, reason: text(row, 2)?, at_ms: number(row, 3, "freeze")? };
    Ok((freeze, over(row, 4, "freeze")?))
}

/// Who ended it, and when, in this column and the next; both, or neither.
fn over(row: &Row<'_>, column: usize, of: &str) -> Made<Option<Over>> {
    match (row.get::<_, Option<String>>(column)?, row.get::<_, Option<i64>>(column + 1)?) {
        (None, None) => Ok(None),
        (Some(by), Some(_)) => Ok(Some((by.into(), number(row, column + 1, of)?))),
        _ => Err(Trouble::rotten(of, "it is over at a time or by somebody, and not both")),
    }
}

/// Every idempotency key, in the order of [`key`].
pub(super) const ALL_KEYS: &str = "SELECT (SELECT id FROM operations WHERE seq = operation), request, environment, name \
    FROM idempotency_keys ORDER BY environment, name";

pub(super) fn key(row: &Row<'_>) -> Made<KeyRow> {
    let (operation, request) = keyed(row)?;
    let environment = checked(operation.as_str(), "environment", &text(row, 2)?, EnvironmentName::new)?;
    let key = checked(operation.as_str(), "key", &text(row, 3)?, IdempotencyKey::new)?;
    Ok(KeyRow { environment, key, request, operation })
}

pub(super) fn digest(row: &Row<'_>) -> Made<Digest> {
    let digest: String = row.get(0)?;
    checked(&digest, "digest", &digest, Digest::parse)
}

pub(super) fn run_id(row: &Row<'_>) -> Made<RunId> {
    let id: String = row.get(0)?;
    checked(&id, "id", &id, RunId::new)
}

pub(super) fn operation_id(row: &Row<'_>) -> Made<OperationId> {
    let id: String = row.get(0)?;
    checked(&id, "id", &id, OperationId::new)
}

pub(super) fn environment(row: &Row<'_>) -> Made<EnvironmentName> {
    let name: String = row.get(0)?;
    checked(&name, "environment", &name, EnvironmentName::new)
}

pub(super) fn keyed(row: &Row<'_>) -> Made<(OperationId, Digest)> {
    let id = operation_id(row)?;
    let request = checked(id.as_str(), "request", &text(row, 1)?, Digest::parse)?;
    Ok((id, request))
}

fn checked<T>(of: &str, what: &str, found: &str, new: fn(&str) -> Option<T>) -> Made<T> {
    new(found).ok_or_else(|| Trouble::rotten(of, format!("`{}` is not a well-formed {what}", found.escape_debug())))
}

fn word<T>(row: &Row<'_>, column: usize, of: &str, what: &str, new: fn(&str) -> Option<T>) -> Made<Option<T>> {
    row.get::<_, Option<String>>(column)?.map(|found| checked(of, what, &found, new)).transpose()
}

fn text(row: &Row<'_>, column: usize) -> Made<Box<str>> {
    Ok(row.get::<_, String>(column)?.into())
}

fn number(row: &Row<'_>, column: usize, of: &str) -> Made<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| Trouble::rotten(of, format!("the number {number} is below zero")))
}

fn end_of(word: &str) -> Option<End> {
    End::ALL.into_iter().find(|end| end.word() == word)
}

fn resolution_of(word: &str) -> Option<Resolution> {
    Resolution::ALL.into_iter().find(|resolution| resolution.word() == word)
}
