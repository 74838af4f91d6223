//! What a change promises, and whether what was read afterwards keeps it.
//!
//! Never by what an answer or a task said: Proxmox answers yes to almost anything, a task that ended well may have done
//! nothing, and one that failed may have done its work.
//!
//! What never enters: how long to wait for it, and what to do about a promise that is not kept.

mod kinds;

use super::env_request::{LiveConfig, LiveStatus};
use super::operation::Operation;
use super::outcome::{Evidence, Fact};
use crate::action::{Change, FieldChange};
use crate::guest::{GuestKind, RunState};
use crate::normalize::{self, ChangeEffect, Field, FieldValue};
use crate::observe::{ObservedStatus, PendingChange};
use crate::plan::{RestartField, StepReason};

pub use kinds::{ObservedSnapshot, Promise, PromiseReading, SnapshotList};

/// Whether a promise is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseCheck {
    /// It is, and this was seen.
    Kept(Evidence),
    /// It is not, or not yet; this was seen.
    NotKept(Evidence),
    /// What was read does not tell.
    Unclear(Evidence),
}

/// What is known about a guest once a change was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct PostChangeReading<'r> {
    /// Its run-state, where it was read.
    pub live: Option<&'r LiveStatus>,
    /// Its config, where it was read.
    pub config: Option<&'r LiveConfig>,
    /// Its uptime before the change, where it is known.
    pub uptime_before_secs: Option<u64>,
    /// At least so many seconds have gone by since that was read.
    pub elapsed_secs: u64,
    /// Its uptime before the change as an earlier run recorded it. How long ago that was is not known.
    pub recorded_uptime_secs: Option<u64>,
    /// How its own task ended, where it has.
    pub task: Option<TaskEnd>,
}

/// How the task of a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    /// Whether it ended with an error.
    pub is_failed: bool,
    /// How many seconds ago it was begun, by the clock of the node that it ran on; none where that clock was not read.
    pub age_secs: Option<u64>,
    /// Whether the guest is on another node than it was: moved while it ran, it has a new process, and its uptime shows no restart.
    pub is_moved: bool,
}

/// What must be read to tell whether a promise is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredReads {
    /// The run-state.
    pub status: bool,
    /// The config.
    pub config: bool,
}

/// What must be read to tell whether the promise of a change is kept.
#[must_use]
pub fn required_reads(operation: &Operation) -> RequiredReads {
    RequiredReads {
        status: operation.step.change.resulting_state().is_some(),
        config: operation.step.change.resulting_state().is_none() || !fields_taking_effect(operation).is_empty(),
    }
}

/// The fields that this change is to bring into effect.
fn fields_taking_effect(operation: &Operation) -> &[RestartField] {
    match operation.step.change.resulting_state() {
        Some(RunState::Running) => restart_fields(operation),
        _ => &[],
    }
}

/// The fields that the restart is for which this change is a part of.
fn restart_fields(operation: &Operation) -> &[RestartField] {
    match &operation.step.reason {
        StepReason::RestartForConfig(fields) => fields,
        StepReason::ConfigDiffers | StepReason::StateDiffers => &[],
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
pub fn check_promise(operation: &Operation, after: PostChangeReading<'_>) -> PromiseCheck {
    check_change(operation.guest.kind, &operation.step.change, after).and_then(|| check_restart_applied(operation, after.config))
}

/// Whether a change that a plan can ask for did what it is for. Every judgement about such a change is this one: the engine's adds only
/// what the step was planned for beyond it.
fn check_change(kind: GuestKind, change: &Change, after: PostChangeReading<'_>) -> PromiseCheck {
    match (change, after.live, after.config) {
        (Change::ConfigSet(fields), _, Some(config)) => check_config_written(kind, fields, config),
        (Change::Start | Change::Shutdown { .. } | Change::Stop, Some(live), _) => check_run_state(live, change.resulting_state()),
        (Change::Reboot { .. }, Some(live), _) => {
            check_run_state(live, Some(RunState::Running)).and_then(|| match after.uptime_before_secs {
                Some(_) => check_uptime_reset(live, after.uptime_before_secs, after.elapsed_secs),
                None => compare_uptimes(live, after.recorded_uptime_secs, after.task),
            })
        }
        _ => PromiseCheck::Unclear(Evidence::default().with("unread", change.word())),
    }
}

/// Whether the guest already is as the change would make it, before anything was sent.
pub(super) fn is_met_already(operation: &Operation, live: &LiveStatus, config: &LiveConfig) -> bool {
    let after = PostChangeReading { live: Some(live), config: Some(config), ..PostChangeReading::default() };
    is_idempotent(&operation.step.change) && matches!(check_promise(operation, after), PromiseCheck::Kept(_))
}

impl PromiseCheck {
    /// This and that: the first that is not kept decides, and what was seen is put together.
    fn and_then(self, next: impl FnOnce() -> Self) -> Self {
        let Self::Kept(seen) = self else { return self };
        let join = |more: Evidence| more.iter().fold(seen.clone(), |all, (key, fact)| all.with(key.as_str(), fact.clone()));
        match next() {
            Self::Kept(more) => Self::Kept(join(more)),
            Self::NotKept(more) => Self::NotKept(join(more)),
            Self::Unclear(more) => Self::Unclear(join(more)),
        }
    }

    /// What was seen.
    #[must_use]
    pub fn evidence(&self) -> &Evidence {
        match self {
            Self::Kept(seen) | Self::NotKept(seen) | Self::Unclear(seen) => seen,
        }
    }
}

fn check_run_state(live: &LiveStatus, wanted: Option<RunState>) -> PromiseCheck {
    let seen = Evidence::default().with("run_state", &*live.word);
    match &live.status {
        ObservedStatus::Known(state) if Some(*state) == wanted => PromiseCheck::Kept(seen),
        // What is neither running nor stopped may become either; it is not what was promised.
        ObservedStatus::Known(_) | ObservedStatus::Unknown(_) => PromiseCheck::NotKept(seen),
    }
}

/// A guest that was not restarted has been up for at least as long as before and the time since.
fn check_uptime_reset(live: &LiveStatus, before_secs: Option<u64>, passed_secs: u64) -> PromiseCheck {
    let (Some(now), Some(before)) = (live.uptime_secs, before_secs) else {
        return PromiseCheck::Unclear(Evidence::default().with("unread", "uptime of the guest"));
    };
    let seen = Evidence::default().with("uptime_before_secs", before).with("uptime_secs", now);
    // One second is lost to rounding on each side.
    let is_fresh = now.saturating_add(2) <= before.saturating_add(passed_secs) || now < before;
    if is_fresh { PromiseCheck::Kept(seen) } else { PromiseCheck::NotKept(seen) }
}

/// Whether a guest was restarted since its reboot was begun, for a process that did not read its uptime before.
///
/// It was where it has been up for less time than an earlier run recorded, or than the reboot's task is old. It was not where it has been up
/// for longer than both, or longer than a task that failed is old. Longer than a task that ended well is a contradiction: the node's clock was set.
fn compare_uptimes(live: &LiveStatus, recorded_secs: Option<u64>, task: Option<TaskEnd>) -> PromiseCheck {
    let Some(now) = live.uptime_secs else { return PromiseCheck::Unclear(Evidence::default().with("unread", "uptime of the guest")) };
    let seen = Evidence::default().with("uptime_secs", now);
    let seen = recorded_secs.into_iter().fold(seen, |seen, secs| seen.with("uptime_before_secs", secs));
    let Some(task) = task else { return PromiseCheck::Unclear(seen.with("missing", "a task that rebooted it")) };
    let seen = task.age_secs.into_iter().fold(seen, |seen, secs| seen.with("task_age_secs", secs));
    match task.age_secs {
        _ if task.is_failed && task.is_moved => {
            PromiseCheck::Unclear(seen.with("moved", "to another node, which gives a guest a new uptime"))
        }
        _ if recorded_secs.is_some_and(|before| now < before) => PromiseCheck::Kept(seen),
        None => PromiseCheck::Unclear(seen.with("unread", "age of the task: the clock of its node")),
        Some(age) if now < age => PromiseCheck::Kept(seen),
        Some(_) if task.is_failed || recorded_secs.is_some() => PromiseCheck::NotKept(seen),
        Some(_) => PromiseCheck::Unclear(seen),
    }
}

/// What the restart was for is in effect: nothing of it still waits, and it was not taken back either.
fn check_restart_applied(operation: &Operation, config: Option<&LiveConfig>) -> PromiseCheck {
    let fields = fields_taking_effect(operation);
    if fields.is_empty() {
        return PromiseCheck::Kept(Evidence::default());
    }
    let Some(config) = config else { return PromiseCheck::Unclear(Evidence::default().with("unread", "pending")) };
    let (mut still, mut lost, mut seen) = (Vec::new(), Vec::new(), Evidence::default());
    for awaited in fields {
        let word = awaited.field.word();
        if config.values.not_understood(awaited.field).is_some() {
            return PromiseCheck::Unclear(Evidence::default().with(word, &*shown_in_effect(awaited.field, config)));
        }
        match restart_field_status(operation.guest.kind, awaited, config) {
            PromisedFieldStatus::InEffect => continue,
            PromisedFieldStatus::Pending => still.push(word.into()),
            PromisedFieldStatus::Differs if pending_value(awaited.field, config).is_some() => still.push(word.into()),
            PromisedFieldStatus::Differs => lost.push(word.into()),
        }
        seen = seen.with(word, &*shown_in_effect(awaited.field, config));
    }
    if still.is_empty() && lost.is_empty() {
        return PromiseCheck::Kept(Evidence::default());
    }
    let with =
        |seen: Evidence, key: &str, words: Vec<Box<str>>| if words.is_empty() { seen } else { seen.with(key, Fact::Words(words.into())) };
    PromiseCheck::NotKept(with(with(seen, "pending", still), "not_in_effect", lost))
}

/// Why the guest must not go down for the restart that this change is a part of: what it is for waits no more, or with another value.
///
/// Only what takes the guest down is asked: one that is down already is declared to run, and is not left down for it.
pub(super) fn lost_restart_reasons(operation: &Operation, config: &LiveConfig) -> Vec<String> {
    let gone = restart_fields(operation).iter().filter(|_| operation.step.interrupts()).filter_map(|awaited| {
        let value = awaited.value.as_ref().map_or_else(|| "a value".to_owned(), |value| format_value(value.as_ref()));
        let found = || match pending_value(awaited.field, config) {
            Some(next) => format_value(next),
            None => format!("nothing, and {} in effect", shown_in_effect(awaited.field, config)),
        };
        let is_gone = matches!(restart_field_status(operation.guest.kind, awaited, config), PromisedFieldStatus::Differs);
        is_gone.then(|| format!("{}: planned with {value} waiting, found {}", awaited.field.word(), found()))
    });
    gone.collect()
}

/// Whether everything that the restart is for is in effect already, in a guest that runs: it need not go down.
pub(super) fn is_restart_needless(operation: &Operation, live: &LiveStatus, config: &LiveConfig) -> bool {
    let fields = restart_fields(operation);
    let is_in_effect =
        |awaited: &RestartField| matches!(restart_field_status(operation.guest.kind, awaited, config), PromisedFieldStatus::InEffect);
    let is_for_them = !fields.is_empty() && operation.step.interrupts();
    is_for_them && live.status == ObservedStatus::Known(RunState::Running) && fields.iter().all(is_in_effect)
}

/// How a field stands that a restart is to bring into effect. Without its value, what waits no more is all that can be told.
fn restart_field_status(kind: GuestKind, awaited: &RestartField, config: &LiveConfig) -> PromisedFieldStatus {
    match &awaited.value {
        Some(value) => field_status(kind, awaited.field, value.as_ref(), ChangeEffect::AtRestart, config),
        None if pending_value(awaited.field, config).is_some() => PromisedFieldStatus::Pending,
        None => PromisedFieldStatus::InEffect,
    }
}

fn format_value(value: Option<&FieldValue>) -> String {
    value.map_or_else(|| "absent".to_owned(), ToString::to_string)
}

/// The value in effect as it is shown, also where it is not understood.
pub(super) fn shown_in_effect(field: Field, config: &LiveConfig) -> String {
    match config.values.not_understood(field) {
        Some(text) => format!("{text:?}, which is not understood"),
        None => format_value(effective_value(field, config).as_ref()),
    }
}

/// Each field has its value, or waits with it where it cannot take effect before the next start (design 6.21).
fn check_config_written(kind: GuestKind, fields: &[FieldChange], config: &LiveConfig) -> PromiseCheck {
    let mut seen = Evidence::default();
    let mut waits = Vec::new();
    let (mut is_kept, mut is_clear) = (true, true);
    for change in fields {
        seen = seen.with(change.field.word(), &*shown_in_effect(change.field, config));
        match field_status(kind, change.field, change.after.as_ref(), change.effect, config) {
            PromisedFieldStatus::InEffect => {}
            PromisedFieldStatus::Pending => waits.push(change.field.word().into()),
            // A text that is not understood may be what was written, in a form that this version does not know.
            PromisedFieldStatus::Differs if config.values.not_understood(change.field).is_some() => is_clear = false,
            PromisedFieldStatus::Differs => {
                is_kept = false;
                // Written, but not in effect where it should be: the guest needs a restart that nobody planned for.
                if is_waiting_with(kind, change, config) {
                    waits.push(change.field.word().into());
                }
            }
        }
    }
    if !waits.is_empty() {
        seen = seen.with("pending_restart", Fact::Words(waits.into()));
    }
    match (is_kept, is_clear) {
        (false, _) => PromiseCheck::NotKept(seen),
        (true, false) => PromiseCheck::Unclear(seen),
        (true, true) => PromiseCheck::Kept(seen),
    }
}

/// Whether the value that was written waits for the next start.
fn is_waiting_with(kind: GuestKind, change: &FieldChange, config: &LiveConfig) -> bool {
    let rule = normalize::rule_of(kind, change.field);
    let next = pending_value(change.field, config);
    rule.zip(next).is_some_and(|(rule, next)| normalize::is_met(rule, change.after.as_ref(), next))
}

enum PromisedFieldStatus {
    InEffect,
    Pending,
    Differs,
}

/// What waits under the key and is not understood is not what was written.
fn field_status(
    kind: GuestKind,
    field: Field,
    wanted: Option<&FieldValue>,
    effect: ChangeEffect,
    config: &LiveConfig,
) -> PromisedFieldStatus {
    let Some(rule) = normalize::rule_of(kind, field) else { return PromisedFieldStatus::Differs };
    let is_met = |found: Option<&FieldValue>| normalize::is_met(rule, wanted, found);
    let value = effective_value(field, config);
    match pending_value(field, config) {
        _ if config.values.not_understood(field).is_some() => PromisedFieldStatus::Differs,
        _ if config.pending.iter().any(|entry| matches!(entry, PendingChange::Other(key) if &**key == field.word())) => {
            PromisedFieldStatus::Differs
        }
        None if is_met(value.as_ref()) => PromisedFieldStatus::InEffect,
        Some(next) if is_met(next) && is_met(value.as_ref()) => PromisedFieldStatus::InEffect,
        Some(next) if is_met(next) && effect == ChangeEffect::AtRestart => PromisedFieldStatus::Pending,
        _ => PromisedFieldStatus::Differs,
    }
}

/// The value in effect; tags stand beside the config.
pub(super) fn effective_value(field: Field, config: &LiveConfig) -> Option<FieldValue> {
    match field {
        Field::Tags => (!config.tags.is_empty()).then(|| FieldValue::Tags(config.tags.clone())),
        _ => config.values.get(field).cloned(),
    }
}

/// What waits for the next start under this key; `Some(None)` is a removal.
pub(super) fn pending_value(field: Field, config: &LiveConfig) -> Option<Option<&FieldValue>> {
    config.pending.iter().find_map(|entry| match entry {
        PendingChange::Known(own, value) if *own == field => Some(value.as_ref()),
        _ => None,
    })
}
