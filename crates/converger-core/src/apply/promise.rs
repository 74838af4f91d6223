//! What a change promises, and whether a later reading shows the promise as kept.
//!
//! Responses and task results do not count: Proxmox accepts almost anything, a task that succeeded may have done nothing, and a task that
//! failed may have done its work.
//!
//! Must not decide how long to wait for a promise, or what to do if it is not kept.

mod action;
mod provisioning;

use super::env_request::{LiveConfig, LiveStatus};
use super::operation::Operation;
use super::outcome::{Evidence, Fact};
use crate::action::{Change, FieldChange};
use crate::guest::{GuestKind, NodeName, RunState};
use crate::normalize::{self, ChangeEffect, Field, FieldValue};
use crate::observe::{ObservedStatus, PendingChange, SnapshotTree};
use crate::plan::{RestartField, StepReason};

/// Whether a promise is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseCheck {
    /// The promise is kept, with the facts that show it.
    Kept(Evidence),
    /// The promise is not kept, or not yet, with the facts that show it.
    NotKept(Evidence),
    /// The reading does not say.
    Unclear(Evidence),
}

/// What is known about a guest after a change was sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct PostChangeReading<'r> {
    /// Its run-state, if read.
    pub live: Option<&'r LiveStatus>,
    /// Its config, if read.
    pub config: Option<&'r LiveConfig>,
    /// Its snapshots, if read.
    pub snapshots: Option<&'r SnapshotTree>,
    /// The node that it was found on, if known.
    pub node: Option<&'r NodeName>,
    /// Its uptime before the change, if known.
    pub uptime_before_secs: Option<u64>,
    /// Seconds since that uptime was read; a lower bound.
    pub elapsed_secs: u64,
    /// Its uptime before the change as recorded by an earlier run, which happened an unknown time ago.
    pub recorded_uptime_secs: Option<u64>,
    /// How the task of the change ended, if it did.
    pub task: Option<TaskEnd>,
}

/// How the task of a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    /// Whether it ended with an error.
    pub is_failed: bool,
    /// Seconds since the task started, by the clock of its node; `None` if that clock was not read.
    pub age_secs: Option<u64>,
    /// Whether the guest is on another node than before. A guest that migrated while running has a new process, so its uptime shows no
    /// restart.
    pub is_moved: bool,
}

/// What must be read after a change to check its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredReads {
    /// The run-state.
    pub status: bool,
    /// The config.
    pub config: bool,
    /// The snapshots. They are read after the config, which shows whose they are.
    pub snapshots: bool,
}

/// The readings that the promise of an operation depends on.
#[must_use]
pub fn required_reads(operation: &Operation) -> RequiredReads {
    let reads = |status, config, snapshots| RequiredReads { status, config, snapshots };
    match &operation.step.change {
        Change::ConfigSet(_) | Change::DiskGrow(_) | Change::Clone(_) | Change::Provision(_) => reads(false, true, false),
        Change::Start | Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. } => {
            reads(true, !fields_taking_effect(operation).is_empty(), false)
        }
        Change::SnapshotCreate(_) | Change::SnapshotDelete(_) => reads(false, true, true),
        Change::SnapshotRollback(_) => reads(true, true, true),
        Change::Migrate(_) => reads(true, false, false),
    }
}

/// The fields that this change must bring into effect.
fn fields_taking_effect(operation: &Operation) -> &[RestartField] {
    match operation.step.change.resulting_state() {
        Some(RunState::Running) => restart_fields(operation),
        _ => &[],
    }
}

/// The fields that need the restart that this change is part of.
fn restart_fields(operation: &Operation) -> &[RestartField] {
    match &operation.step.reason {
        StepReason::RestartForConfig(fields) => fields,
        StepReason::ConfigDiffers | StepReason::StateDiffers | StepReason::Requested | StepReason::MadeFromTemplate => &[],
    }
}

/// Whether executing the change twice has the same result as once, so that the promise alone shows whether it is done.
///
/// A reboot is not idempotent: it leaves the guest as it found it, so a second reboot looks like the first. Neither is a rollback to the
/// snapshot that the guest continued from already. Someone else may have made a guest with the id and name of a clone: only the task shows
/// whose it is. A password cannot be read, so a reading does not show whether the one that the guest has is the written one.
#[must_use]
pub fn is_idempotent(change: &Change) -> bool {
    match change {
        Change::ConfigSet(_)
        | Change::Start
        | Change::Shutdown { .. }
        | Change::Stop
        | Change::SnapshotCreate(_)
        | Change::SnapshotDelete(_)
        | Change::DiskGrow(_)
        | Change::Migrate(_) => true,
        Change::SnapshotRollback(rollback) => action::is_rollback_shown(rollback),
        Change::Provision(provisioning) => provisioning.password.is_none(),
        Change::Reboot { .. } | Change::Clone(_) => false,
    }
}

/// Whether a promise that is not kept shows that the change was not executed, if no task of it is found either.
#[must_use]
pub fn is_absence_shown(change: &Change) -> bool {
    is_idempotent(change) || matches!(change, Change::Clone(_) | Change::Provision(_))
}

/// Checks whether the reading keeps the promise of an operation.
#[must_use]
pub fn check_promise(operation: &Operation, after: PostChangeReading<'_>) -> PromiseCheck {
    check_change(operation.guest.kind, &operation.step.change, after).and_then(|| check_restart_applied(operation, after.config))
}

/// Checks whether a plannable change had its effect. All checks of such changes end here; `check_promise` only adds the fields that a
/// restart must bring into effect.
fn check_change(kind: GuestKind, change: &Change, after: PostChangeReading<'_>) -> PromiseCheck {
    match (change, after.live, after.config) {
        (Change::SnapshotCreate(_) | Change::SnapshotDelete(_) | Change::SnapshotRollback(_) | Change::Migrate(_), _, _) => {
            check_requested_change(change, after)
        }
        (Change::DiskGrow(growth), _, Some(config)) => action::check_growth(growth, config),
        (Change::Clone(clone), _, Some(config)) => action::check_clone(clone, config),
        (Change::Provision(provisioning), _, Some(config)) => provisioning::check_provisioned(provisioning, config),
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

/// Checks a change whose promise depends on more than status or config.
fn check_requested_change(change: &Change, after: PostChangeReading<'_>) -> PromiseCheck {
    match (change, after.snapshots, after.node) {
        (Change::SnapshotCreate(new), Some(tree), _) => action::check_new_snapshot(new, tree),
        (Change::SnapshotDelete(snapshot), Some(tree), _) => action::check_snapshot_deleted(snapshot, tree),
        (Change::SnapshotRollback(rollback), Some(tree), _) => action::check_rollback(rollback, tree, after),
        (Change::Migrate(migration), _, Some(node)) => action::check_migration(migration, node, after),
        _ => PromiseCheck::Unclear(Evidence::default().with("unread", change.word())),
    }
}

/// Whether the guest already is as the change would make it, before anything was sent.
///
/// An existing snapshot of the same name is not the requested one, and a rollback is never needless.
pub(super) fn is_met_already(operation: &Operation, before: PostChangeReading<'_>) -> bool {
    let change = &operation.step.change;
    let can_be_met = is_idempotent(change) && !matches!(change, Change::SnapshotCreate(_) | Change::SnapshotRollback(_));
    can_be_met && matches!(check_promise(operation, before), PromiseCheck::Kept(_))
}

impl PromiseCheck {
    /// Combines two checks: the first one that is not kept decides. The evidence of both is joined.
    fn and_then(self, next: impl FnOnce() -> Self) -> Self {
        let Self::Kept(seen) = self else { return self };
        let join = |more: Evidence| more.iter().fold(seen.clone(), |all, (key, fact)| all.with(key.as_str(), fact.clone()));
        match next() {
            Self::Kept(more) => Self::Kept(join(more)),
            Self::NotKept(more) => Self::NotKept(join(more)),
            Self::Unclear(more) => Self::Unclear(join(more)),
        }
    }

    /// The facts that were read.
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
        // A guest that is neither running nor stopped may become either; the promise is not kept yet.
        ObservedStatus::Known(_) | ObservedStatus::Unknown(_) => PromiseCheck::NotKept(seen),
    }
}

/// Checks the uptime: without a restart, it is at least the earlier uptime plus the elapsed time.
fn check_uptime_reset(live: &LiveStatus, before_secs: Option<u64>, passed_secs: u64) -> PromiseCheck {
    let (Some(now), Some(before)) = (live.uptime_secs, before_secs) else {
        return PromiseCheck::Unclear(Evidence::default().with("unread", "uptime of the guest"));
    };
    let seen = Evidence::default().with("uptime_before_secs", before).with("uptime_secs", now);
    // Allow one second of rounding on each side.
    let is_fresh = now.saturating_add(2) <= before.saturating_add(passed_secs) || now < before;
    if is_fresh { PromiseCheck::Kept(seen) } else { PromiseCheck::NotKept(seen) }
}

/// Checks whether a guest was restarted since its reboot began, for a process that did not read the uptime before the reboot.
///
/// It was restarted if its uptime is less than an earlier run recorded, or less than the age of the reboot task. It was not restarted if
/// its uptime exceeds both, or exceeds the age of a failed task. An uptime above the age of a successful task is a contradiction: the clock
/// of the node was set.
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

/// Checks that the values that needed the restart are in effect: none is still pending, and none was withdrawn.
fn check_restart_applied(operation: &Operation, config: Option<&LiveConfig>) -> PromiseCheck {
    let fields = fields_taking_effect(operation);
    if fields.is_empty() {
        return PromiseCheck::Kept(Evidence::default());
    }
    let Some(config) = config else { return PromiseCheck::Unclear(Evidence::default().with("unread", "pending")) };
    let (mut pending, mut not_in_effect, mut seen) = (Vec::new(), Vec::new(), Evidence::default());
    for restart_field in fields {
        let field_name = restart_field.field.word();
        if config.values.not_understood(restart_field.field).is_some() {
            return PromiseCheck::Unclear(Evidence::default().with(field_name, &*shown_in_effect(restart_field.field, config)));
        }
        match restart_field_status(operation.guest.kind, restart_field, config) {
            PromisedFieldStatus::InEffect => continue,
            PromisedFieldStatus::Pending => pending.push(field_name.into()),
            PromisedFieldStatus::Differs if pending_value(restart_field.field, config).is_some() => pending.push(field_name.into()),
            PromisedFieldStatus::Differs => not_in_effect.push(field_name.into()),
        }
        seen = seen.with(field_name, &*shown_in_effect(restart_field.field, config));
    }
    if pending.is_empty() && not_in_effect.is_empty() {
        return PromiseCheck::Kept(Evidence::default());
    }
    let with =
        |seen: Evidence, key: &str, words: Vec<Box<str>>| if words.is_empty() { seen } else { seen.with(key, Fact::Words(words.into())) };
    PromiseCheck::NotKept(with(with(seen, "pending", pending), "not_in_effect", not_in_effect))
}

/// Why the guest must not go down for the restart that this change is part of: the pending values are gone or differ.
///
/// Only applies to changes that interrupt the guest. A guest that is already down is declared to run, and must be started anyway.
pub(super) fn lost_restart_reasons(operation: &Operation, config: &LiveConfig) -> Vec<String> {
    let reasons = restart_fields(operation).iter().filter(|_| operation.step.interrupts()).filter_map(|restart_field| {
        let value = restart_field.value.as_ref().map_or_else(|| "a value".to_owned(), |value| format_value(value.as_ref()));
        let found = || match pending_value(restart_field.field, config) {
            Some(next) => format_value(next),
            None => format!("nothing, and {} in effect", shown_in_effect(restart_field.field, config)),
        };
        let is_gone = matches!(restart_field_status(operation.guest.kind, restart_field, config), PromisedFieldStatus::Differs);
        is_gone.then(|| format!("{}: planned with {value} waiting, found {}", restart_field.field.word(), found()))
    });
    reasons.collect()
}

/// Whether the guest runs and all values that need the restart are already in effect, so that it need not go down.
pub(super) fn is_restart_needless(operation: &Operation, live: &LiveStatus, config: &LiveConfig) -> bool {
    let fields = restart_fields(operation);
    let is_in_effect = |restart_field: &RestartField| {
        matches!(restart_field_status(operation.guest.kind, restart_field, config), PromisedFieldStatus::InEffect)
    };
    let is_for_them = !fields.is_empty() && operation.step.interrupts();
    is_for_them && live.status == ObservedStatus::Known(RunState::Running) && fields.iter().all(is_in_effect)
}

/// The status of a field that a restart must bring into effect. Without a recorded value, all that can be checked is whether it is still
/// pending.
fn restart_field_status(kind: GuestKind, restart_field: &RestartField, config: &LiveConfig) -> PromisedFieldStatus {
    match &restart_field.value {
        Some(value) => field_status(kind, restart_field.field, value.as_ref(), ChangeEffect::AtRestart, config),
        None if pending_value(restart_field.field, config).is_some() => PromisedFieldStatus::Pending,
        None => PromisedFieldStatus::InEffect,
    }
}

fn format_value(value: Option<&FieldValue>) -> String {
    value.map_or_else(|| "absent".to_owned(), ToString::to_string)
}

/// The effective value for display, even if it is not understood.
pub(super) fn shown_in_effect(field: Field, config: &LiveConfig) -> String {
    match config.values.not_understood(field) {
        Some(text) => format!("{text:?}, which is not understood"),
        None => format_value(effective_value(field, config).as_ref()),
    }
}

/// Checks that each field has its value, or has it pending if it can only take effect at the next start (decision 0003).
fn check_config_written(kind: GuestKind, fields: &[FieldChange], config: &LiveConfig) -> PromiseCheck {
    let mut seen = Evidence::default();
    let mut pending = Vec::new();
    let (mut is_kept, mut is_clear) = (true, true);
    for change in fields {
        seen = seen.with(change.field.word(), &*shown_in_effect(change.field, config));
        match field_status(kind, change.field, change.after.as_ref(), change.effect, config) {
            PromisedFieldStatus::InEffect => {}
            PromisedFieldStatus::Pending => pending.push(change.field.word().into()),
            // Text that is not understood may be the written value in a form that this version does not know.
            PromisedFieldStatus::Differs if config.values.not_understood(change.field).is_some() => is_clear = false,
            PromisedFieldStatus::Differs => {
                is_kept = false;
                // Written but not in effect although it should be: the guest needs a restart that was not planned.
                if is_waiting_with(kind, change, config) {
                    pending.push(change.field.word().into());
                }
            }
        }
    }
    if !pending.is_empty() {
        seen = seen.with("pending_restart", Fact::Words(pending.into()));
    }
    match (is_kept, is_clear) {
        (false, _) => PromiseCheck::NotKept(seen),
        (true, false) => PromiseCheck::Unclear(seen),
        (true, true) => PromiseCheck::Kept(seen),
    }
}

/// Whether the written value is pending until the next start.
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

/// The status of a promised field. A pending value that is not understood is not the written one.
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

/// The effective value. Tags are stored beside the config.
pub(super) fn effective_value(field: Field, config: &LiveConfig) -> Option<FieldValue> {
    match field {
        Field::Tags => (!config.tags.is_empty()).then(|| FieldValue::Tags(config.tags.clone())),
        _ => config.values.get(field).cloned(),
    }
}

/// The pending value of this field; `Some(None)` is a removal.
pub(super) fn pending_value(field: Field, config: &LiveConfig) -> Option<Option<&FieldValue>> {
    config.pending.iter().find_map(|entry| match entry {
        PendingChange::Known(own, value) if *own == field => Some(value.as_ref()),
        _ => None,
    })
}
