//! What a change promises, and whether what was read afterwards keeps it.
//!
//! Never by what an answer or a task said: Proxmox answers yes to almost anything, a task that ended well may have done
//! nothing, and one that failed may have done its work.
//!
//! What never enters: how long to wait for it, and what to do about a promise that is not kept.

mod each;

use super::ask::{ConfigRead, Live};
use super::operation::Operation;
use super::outcome::{Evidence, Fact};
use crate::action::{Change, FieldChange};
use crate::guest::{Kind, RunState};
use crate::normalize::{self, Effect, Field, Value};
use crate::observe::{Pending, Status};
use crate::plan::Reason;

pub use each::{Promise, Reading, Snapshot, Snapshots};

/// Whether a promise is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is, and this was seen.
    Yes(Evidence),
    /// It is not, or not yet; this was seen.
    No(Evidence),
    /// What was read does not tell.
    Unclear(Evidence),
}

/// What is known about a guest once a change was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct After<'r> {
    /// Its run-state, where it was read.
    pub live: Option<&'r Live>,
    /// Its config, where it was read.
    pub config: Option<&'r ConfigRead>,
    /// Its uptime before the change, where it is known.
    pub uptime_before_secs: Option<u64>,
    /// At least so many seconds have gone by since that was read.
    pub passed_secs: u64,
    /// Its own task ended well, and was begun so many seconds ago or a little more, by the environment's time.
    pub task_age_secs: Option<u64>,
}

/// What must be read to tell whether a promise is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The run-state.
    pub status: bool,
    /// The config.
    pub config: bool,
}

/// What must be read to tell whether the promise of a change is kept.
#[must_use]
pub fn proof(operation: &Operation) -> Proof {
    Proof {
        status: operation.step.change.leads_to().is_some(),
        config: operation.step.change.leads_to().is_none() || !restarted(operation).is_empty(),
    }
}

/// The fields that this change is to bring into effect.
fn restarted(operation: &Operation) -> &[Field] {
    match (&operation.step.reason, operation.step.change.leads_to()) {
        (Reason::RestartForConfig(fields), Some(RunState::Running)) => fields,
        _ => &[],
    }
}

/// Whether carrying it out twice leads to the same as once, so that its promise alone tells whether it is done.
///
/// A reboot leaves a guest as it found it, so that a second one cannot be told from the first.
#[must_use]
pub fn is_idempotent(change: &Change) -> bool {
    match change {
        Change::ConfigSet(_) | Change::Start | Change::Shutdown { .. } | Change::Stop => true,
        Change::Reboot { .. } => false,
    }
}

/// Whether the promise of an operation is kept by what was read.
#[must_use]
pub fn kept(operation: &Operation, after: After<'_>) -> Kept {
    let change = &operation.step.change;
    match (change, after.live, after.config) {
        (Change::ConfigSet(fields), _, Some(config)) => written(operation.guest.kind, fields, config),
        (Change::Start | Change::Shutdown { .. } | Change::Stop, Some(live), config) => {
            runs_as(live, change.leads_to()).and(|| applied(operation, config))
        }
        (Change::Reboot { .. }, Some(live), config) => runs_as(live, Some(RunState::Running))
            .and(|| match after.uptime_before_secs {
                Some(_) => fresh(live, after.uptime_before_secs, after.passed_secs),
                None => started_since(live, after.task_age_secs),
            })
            .and(|| applied(operation, config)),
        _ => Kept::Unclear(Evidence::default().with("unread", operation.step.change.word())),
    }
}

/// Whether the guest already is as the change would make it, before anything was sent.
pub(super) fn is_met_already(operation: &Operation, live: &Live, config: &ConfigRead) -> bool {
    let after = After { live: Some(live), config: Some(config), ..After::default() };
    is_idempotent(&operation.step.change) && matches!(kept(operation, after), Kept::Yes(_))
}

impl Kept {
    /// This and that: the first that is not kept decides, and what was seen is put together.
    fn and(self, next: impl FnOnce() -> Self) -> Self {
        let Self::Yes(seen) = self else { return self };
        let join = |more: Evidence| more.iter().fold(seen.clone(), |all, (key, fact)| all.with(key.as_str(), fact.clone()));
        match next() {
            Self::Yes(more) => Self::Yes(join(more)),
            Self::No(more) => Self::No(join(more)),
            Self::Unclear(more) => Self::Unclear(join(more)),
        }
    }

    /// What was seen.
    #[must_use]
    pub fn seen(&self) -> &Evidence {
        match self {
            Self::Yes(seen) | Self::No(seen) | Self::Unclear(seen) => seen,
        }
    }
}

fn runs_as(live: &Live, wanted: Option<RunState>) -> Kept {
    let seen = Evidence::default().with("run_state", &*live.word);
    match &live.status {
        Status::Known(state) if Some(*state) == wanted => Kept::Yes(seen),
        // What is neither running nor stopped may become either; it is not what was promised.
        Status::Known(_) | Status::Unknown(_) => Kept::No(seen),
    }
}

/// A guest that was not restarted has been up for at least as long as before and the time since.
fn fresh(live: &Live, before_secs: Option<u64>, passed_secs: u64) -> Kept {
    let (Some(now), Some(before)) = (live.uptime_secs, before_secs) else {
        return Kept::Unclear(Evidence::default().with("unread", "uptime"));
    };
    let seen = Evidence::default().with("uptime_before_secs", before).with("uptime_secs", now);
    // One second is lost to rounding on each side.
    let is_fresh = now.saturating_add(2) <= before.saturating_add(passed_secs) || now < before;
    if is_fresh { Kept::Yes(seen) } else { Kept::No(seen) }
}

/// A guest that has been up for less time than its task is old was started after the task began. The other way round nothing is shown:
/// clocks of nodes differ.
fn started_since(live: &Live, task_age_secs: Option<u64>) -> Kept {
    let (Some(now), Some(age)) = (live.uptime_secs, task_age_secs) else {
        return Kept::Unclear(Evidence::default().with("unread", "uptime"));
    };
    let seen = Evidence::default().with("task_age_secs", age).with("uptime_secs", now);
    if now < age { Kept::Yes(seen) } else { Kept::Unclear(seen) }
}

/// Nothing of what the restart was for still waits.
fn applied(operation: &Operation, config: Option<&ConfigRead>) -> Kept {
    let fields = restarted(operation);
    if fields.is_empty() {
        return Kept::Yes(Evidence::default());
    }
    let Some(config) = config else { return Kept::Unclear(Evidence::default().with("unread", "pending")) };
    let still: Box<[Box<str>]> =
        fields.iter().filter(|field| waiting(**field, config).is_some()).map(|field| field.word().into()).collect();
    if still.is_empty() { Kept::Yes(Evidence::default()) } else { Kept::No(Evidence::default().with("pending", Fact::Words(still))) }
}

/// Each field has its value, or waits with it where it cannot take effect before the next start (design 6.21).
fn written(kind: Kind, fields: &[FieldChange], config: &ConfigRead) -> Kept {
    let mut seen = Evidence::default();
    let mut waits = Vec::new();
    let mut is_kept = true;
    for change in fields {
        let value = in_effect(change.field, config);
        let shown = value.as_ref().map_or_else(|| "absent".to_owned(), ToString::to_string);
        seen = seen.with(change.field.word(), &*shown);
        match standing(kind, change, value.as_ref(), config) {
            Standing::InEffect => {}
            Standing::Waits => waits.push(change.field.word().into()),
            Standing::Not => is_kept = false,
        }
    }
    if !waits.is_empty() {
        seen = seen.with("pending_restart", Fact::Words(waits.into()));
    }
    if is_kept { Kept::Yes(seen) } else { Kept::No(seen) }
}

enum Standing {
    InEffect,
    Waits,
    Not,
}

/// What waits under the key and is not understood is not what was written.
fn standing(kind: Kind, change: &FieldChange, value: Option<&Value>, config: &ConfigRead) -> Standing {
    let Some(rule) = normalize::rule_of(kind, change.field) else { return Standing::Not };
    let is_met = |found: Option<&Value>| normalize::is_met(rule, change.after.as_ref(), found);
    match waiting(change.field, config) {
        _ if config.pending.iter().any(|entry| matches!(entry, Pending::Other(key) if &**key == change.field.word())) => Standing::Not,
        None if is_met(value) => Standing::InEffect,
        Some(next) if is_met(next) && is_met(value) => Standing::InEffect,
        Some(next) if is_met(next) && change.effect == Effect::AtRestart => Standing::Waits,
        _ => Standing::Not,
    }
}

/// The value in effect; tags stand beside the config.
pub(super) fn in_effect(field: Field, config: &ConfigRead) -> Option<Value> {
    match field {
        Field::Tags => (!config.tags.is_empty()).then(|| Value::Tags(config.tags.clone())),
        _ => config.values.get(field).cloned(),
    }
}

/// What waits for the next start under this key; `Some(None)` is a removal.
pub(super) fn waiting(field: Field, config: &ConfigRead) -> Option<Option<&Value>> {
    config.pending.iter().find_map(|entry| match entry {
        Pending::Known(own, value) if *own == field => Some(value.as_ref()),
        _ => None,
    })
}
