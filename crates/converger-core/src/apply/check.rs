//! Decides whether the change of an operation may be sent now. The preconditions of the plan are read again and must still hold.
//!
//! An operation is stale if one of its preconditions no longer holds (identity, run-state, before-values, guards), not if anything else
//! changed. A change whose result is already in effect is not sent. Protection rules are evaluated again (G3): a guest that got a
//! protecting tag a second ago is protected.
//!
//! Must not read anything itself, and must not decide what follows a refusal.

mod requested;

use std::sync::Arc;

use super::env_request::{ClusterMembership, EnvFault, EnvFaultKind, GuestAddress, IdState, LiveConfig, LiveStatus};
use super::operation::Operation;
use super::promise::{self, PostChangeReading};
use crate::action::{Change, FieldChange};
use crate::desired::{DesiredGuest, DesiredSetting};
use crate::guest::{GuestIdentity, NodeName, RunState};
use crate::normalize::{self, Field, FieldValue, WordSet};
use crate::observe::{CAUSE_NOT_GIVEN, CAUSE_NOT_LISTED, ObservedStatus, PendingChange, SnapshotTree};
use crate::policy::{HOLD_TAG, OwnGuest, Rules};
use crate::refusal::Refusal;

/// What a step is checked against beyond its recorded operation: the protection rules and the declared settings of the guest.
///
/// It lives as long as the run. A stored operation has no context because it is never sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckContext {
    rules: Arc<Rules>,
    declared: Box<[DesiredSetting]>,
    dependencies: Box<[DependencyCheck]>,
}

/// Another guest that a step depends on through `after`. Planning saw it in the required state, or another step brings it there; it is read
/// again before the step is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyCheck {
    /// The guest, and where it was.
    pub address: GuestAddress,
    /// The run-state that it must have.
    pub state: RunState,
}

impl DependencyCheck {
    /// Why the dependent step is not sent, given this reading; `None` if the guest is in the required state.
    #[must_use]
    pub fn refusal(&self, live: &LiveStatus) -> Option<Refusal> {
        let on = || vec![self.address.vmid];
        match (self.state, &live.status) {
            (_, ObservedStatus::Unknown(_)) => Some(self.unread_refusal()),
            (wanted, ObservedStatus::Known(found)) if wanted == *found => None,
            (RunState::Running, _) => Some(Refusal::dependency_not_running(on())),
            (RunState::Stopped, _) => Some(Refusal::dependent_running(on())),
        }
    }

    /// The refusal if the guest could not be read.
    #[must_use]
    pub fn unread_refusal(&self) -> Refusal {
        Refusal::dependency_refused(vec![self.address.vmid])
    }
}

impl CheckContext {
    /// The context of one declared guest.
    #[must_use]
    pub fn new(rules: Arc<Rules>, guest: &DesiredGuest) -> Self {
        Self { rules, declared: guest.config.clone(), dependencies: Box::new([]) }
    }

    /// Adds the guests that the step depends on.
    #[must_use]
    pub fn with_dependencies(self, relies: Vec<DependencyCheck>) -> Self {
        Self { dependencies: relies.into(), ..self }
    }

    /// The dependency with this index.
    #[must_use]
    pub fn dependency(&self, number: usize) -> Option<&DependencyCheck> {
        self.dependencies.get(number)
    }
}

/// Value of the `found_so` fact if the guest was already as wanted before anything was sent.
pub const FOUND_BEFORE_SENDING: &str = "before anything was sent";

/// Whether a change may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendDecision {
    /// All preconditions hold.
    Send,
    /// The guest is already as wanted; there is nothing to send.
    AlreadyDone,
    /// The change is part of a restart whose values are already in effect, so the guest need not go down.
    NotNeeded,
    /// It must not be sent.
    Refused(Refusal),
}

/// Refuses if the cluster has no quorum, or if the node of the guest or the node that the change goes to is offline (S4).
#[must_use]
pub fn check_cluster(membership: &ClusterMembership, node: &NodeName, change: &Change) -> Option<Refusal> {
    if !membership.quorate {
        return Some(Refusal::not_quorate());
    }
    let second = match change {
        Change::Migrate(migration) => Some(&migration.to),
        Change::Clone(clone) => Some(&clone.node),
        _ => None,
    };
    let is_offline = |node: &&NodeName| !membership.nodes.get(*node).copied().unwrap_or(false);
    std::iter::once(node).chain(second).find(is_offline).map(|node| Refusal::node_offline(node.as_str()))
}

/// The refusal for a guest that cannot be read (G1).
#[must_use]
pub fn unreadable_refusal(cause: &EnvFault) -> Refusal {
    Refusal::guest_unknown(cause.word.as_str())
}

/// Refuses to follow a guest that is not on the expected node; `None` if it is on another node and can be checked there.
///
/// Not being listed proves nothing (S5): the guest is then unknown, not missing.
#[must_use]
pub fn check_relocation(expected: &GuestAddress, found: Option<&GuestAddress>) -> Option<Refusal> {
    match found {
        None => Some(Refusal::guest_unknown(CAUSE_NOT_LISTED)),
        Some(found) if found.kind != expected.kind => Some(Refusal::kind_mismatch(expected.kind, found.kind)),
        Some(found) if found.vmid != expected.vmid || found.node == expected.node => Some(moved_refusal()),
        Some(_) => None,
    }
}

/// The refusal for a guest that keeps moving.
#[must_use]
pub fn moved_refusal() -> Refusal {
    Refusal::guest_unknown("moved-while-read")
}

/// Maps a rejection by the environment to a refusal, if this program would have refused for the same cause.
#[must_use]
pub fn refusal_for_rejection(operation: &Operation, cause: &EnvFault) -> Option<Refusal> {
    let text = &*cause.text;
    match cause.kind {
        EnvFaultKind::ConfigChanged => Some(Refusal::plan_stale(vec![format!("config: {text}")])),
        EnvFaultKind::Locked => Some(Refusal::guest_locked(text)),
        EnvFaultKind::LockFile => Some(Refusal::lock_file_held(text)),
        EnvFaultKind::Protected => {
            Some(Refusal::protected_guest(vec!["protection-flag".into()], vec![operation.step.change.word().to_owned()]))
        }
        EnvFaultKind::NotQuorate => Some(Refusal::not_quorate()),
        EnvFaultKind::GuestNotFound => Some(unreadable_refusal(cause)),
        EnvFaultKind::Template => Some(Refusal::guest_template()),
        EnvFaultKind::HaOwned => Some(Refusal::ha_owned(text)),
        EnvFaultKind::Unsupported => Some(Refusal::unsupported_change(operation.step.change.word(), text)),
        EnvFaultKind::ShutdownTimeout | EnvFaultKind::Busy | EnvFaultKind::Other => None,
    }
}

/// What was read of a guest before a change is sent to it.
#[derive(Clone, Copy, Debug)]
pub struct PreSendReadings<'r> {
    /// Where it was found.
    pub address: &'r GuestAddress,
    /// Its run-state.
    pub live: &'r LiveStatus,
    /// Its config.
    pub config: &'r LiveConfig,
    /// Its snapshots, if the change depends on them.
    pub snapshots: Option<&'r SnapshotTree>,
    /// Whether the id of the new guest is free, if the change makes one.
    pub new_id: Option<IdState>,
}

impl<'r> PreSendReadings<'r> {
    /// Readings without snapshots and new ids.
    #[must_use]
    pub fn new(address: &'r GuestAddress, live: &'r LiveStatus, config: &'r LiveConfig) -> Self {
        Self { address, live, config, snapshots: None, new_id: None }
    }
}

/// Whether the snapshots must be read before the change is sent.
#[must_use]
pub fn needs_snapshots(change: &Change) -> bool {
    matches!(change, Change::SnapshotCreate(_) | Change::SnapshotDelete(_) | Change::SnapshotRollback(_))
}

/// Decides whether the change of an operation may be sent to the guest that was read. For a clone, that is the source.
#[must_use]
pub fn decide_send(operation: &Operation, context: &CheckContext, readings: PreSendReadings<'_>) -> SendDecision {
    let PreSendReadings { live, config, .. } = readings;
    if let Change::Clone(clone) = &operation.step.change {
        return requested::check_clone(clone, readings).map_or(SendDecision::Send, SendDecision::Refused);
    }
    if let Some(refusal) = check_same_guest(operation, config) {
        return SendDecision::Refused(refusal);
    }
    let (snapshots, node) = (readings.snapshots, Some(&readings.address.node));
    let before = PostChangeReading { live: Some(live), config: Some(config), snapshots, node, ..PostChangeReading::default() };
    if promise::is_met_already(operation, before) {
        return SendDecision::AlreadyDone;
    }
    if promise::is_restart_needless(operation, live, config) {
        return SendDecision::NotNeeded;
    }
    let state = match &live.status {
        ObservedStatus::Known(state) => *state,
        ObservedStatus::Unknown(cause) => {
            return SendDecision::Refused(Refusal::guest_unknown(cause.as_deref().unwrap_or(CAUSE_NOT_GIVEN)));
        }
    };
    let refusal = check_guards(operation, live, config, state)
        .or_else(|| check_preconditions(operation, config, state))
        .or_else(|| requested::check_second_objects(&operation.step.change, readings))
        .or_else(|| check_foreign_pending(operation, context, config))
        .or_else(|| check_protection(operation, context, config))
        .or_else(|| check_restart_reason(operation, config));
    refusal.map_or(SendDecision::Send, SendDecision::Refused)
}

/// Refuses if this is not the guest that was planned on (S6). Also called before an operation gets an outcome.
#[must_use]
pub fn check_same_guest(operation: &Operation, config: &LiveConfig) -> Option<Refusal> {
    let target = &operation.guest;
    if target.name != config.name {
        return Some(Refusal::name_mismatch(&target.name, &config.name));
    }
    match &target.identity {
        // Guests that planning could not distinguish cannot be distinguished here.
        None => Some(Refusal::guard_unread(vec!["identity".into()])),
        Some(planned) if *planned == config.identity => None,
        // A mark that is new since planning is a difference too: guests do not gain birth marks.
        Some(planned) => Some(Refusal::identity_mismatch(differing_marks(planned, &config.identity))),
    }
}

fn differing_marks(planned: &GuestIdentity, found: &GuestIdentity) -> Vec<String> {
    let describe_mark = |mark: &Option<String>| mark.clone().unwrap_or_else(|| "absent".into());
    let pairs = planned.marks().into_iter().zip(found.marks());
    pairs
        .filter(|(planned_mark, found_mark)| planned_mark != found_mark)
        .map(|(planned_mark, found_mark)| {
            format!("{}: planned {}, observed {}", planned_mark.0, describe_mark(&planned_mark.1), describe_mark(&found_mark.1))
        })
        .collect()
}

/// Refuses if the guest is locked, a template, held, or owned by high availability (S12).
fn check_guards(operation: &Operation, live: &LiveStatus, config: &LiveConfig, state: RunState) -> Option<Refusal> {
    if let Some(lock) = config.lock.as_ref().or(live.lock.as_ref()) {
        return Some(Refusal::guest_locked(lock));
    }
    if config.template {
        return Some(Refusal::guest_template());
    }
    if let Some(tag) = current_and_pending_tags(config).find(|tag| tag.eq_ignore_ascii_case(HOLD_TAG)) {
        return Some(Refusal::guest_held(tag));
    }
    let ha = live.ha.as_ref().filter(|ha| ha.owns_run_state())?;
    let changes_power = operation.step.change.affects_availability();
    (changes_power || !ha.is_settled(state)).then(|| Refusal::ha_owned(ha.state.as_deref().unwrap_or("not known yet")))
}

/// The tags that the guest has now and those that it gets at its next start.
fn current_and_pending_tags(config: &LiveConfig) -> impl Iterator<Item = &str> {
    let next = config.pending.iter().find_map(|entry| match entry {
        PendingChange::Known(Field::Tags, Some(FieldValue::Tags(tags))) => Some(tags),
        _ => None,
    });
    std::iter::once(&config.tags).chain(next).flat_map(WordSet::iter)
}

/// Refuses if the run-state or a value differs from what the step was planned on.
fn check_preconditions(operation: &Operation, config: &LiveConfig, state: RunState) -> Option<Refusal> {
    let mut differences = Vec::new();
    if state != operation.step.from {
        differences.push(format!("state: planned {}, found {}", operation.step.from.word(), state.word()));
    }
    if let Change::ConfigSet(fields) = &operation.step.change {
        differences.extend(fields.iter().filter_map(|change| describe_field_difference(operation, change, config)));
    }
    if matches!(operation.step.change, Change::ConfigSet(_) | Change::Provision(_)) && config.revision.is_none() {
        return Some(Refusal::config_unreadable(vec!["digest".into()]));
    }
    (!differences.is_empty()).then(|| Refusal::plan_stale(differences))
}

/// Describes a field whose effective or pending value is not the one that the write was planned on.
fn describe_field_difference(operation: &Operation, change: &FieldChange, config: &LiveConfig) -> Option<String> {
    let name = change.field.word();
    let Some(rule) = normalize::rule_of(operation.guest.kind, change.field) else { return Some(format!("{name}: not a field")) };
    let describe_value = |value: Option<&FieldValue>| value.map_or_else(|| "absent".to_owned(), ToString::to_string);
    let found = promise::effective_value(change.field, config);
    let is_understood = config.values.not_understood(change.field).is_none();
    if !is_understood || !normalize::is_met(rule, change.before.as_ref(), found.as_ref()) {
        let found = promise::shown_in_effect(change.field, config);
        return Some(format!("{name}: planned {}, found {found}", describe_value(change.before.as_ref())));
    }
    let waiting = promise::pending_value(change.field, config);
    let is_same = match (&change.pending, waiting) {
        (None, None) => true,
        (Some(planned), Some(found)) => normalize::is_met(rule, planned.as_ref(), found),
        _ => false,
    };
    let describe_pending = |pending: Option<Option<&FieldValue>>| pending.map_or_else(|| "nothing".to_owned(), describe_value);
    let planned = change.pending.as_ref().map(Option::as_ref);
    (!is_same).then(|| format!("{name}: planned with {} waiting, found {}", describe_pending(planned), describe_pending(waiting)))
}

/// Refuses if changes of others are pending: any write or power change would apply them too (decision 0003).
///
/// A pending value is ours if it is the declared one, if this program wrote it in an earlier run, or if this write was planned to replace
/// it.
fn check_foreign_pending(operation: &Operation, context: &CheckContext, config: &LiveConfig) -> Option<Refusal> {
    let written: &[FieldChange] = match &operation.step.change {
        Change::ConfigSet(fields) => fields,
        _ => &[],
    };
    let is_ours = |entry: &&PendingChange| {
        let PendingChange::Known(field, value) = entry else { return false };
        let Some(rule) = normalize::rule_of(operation.guest.kind, *field) else { return false };
        let setting = context.declared.iter().find(|setting| setting.field == *field);
        let is_declared = setting.is_some_and(|setting| normalize::is_met(rule, setting.wanted.as_ref(), value.as_ref()));
        is_declared || written.iter().any(|change| change.field == *field) || context.rules.is_own_write(operation.guest.vmid, entry)
    };
    let foreign: Vec<String> = config.pending.iter().filter(|entry| !is_ours(entry)).map(|entry| entry.key().to_owned()).collect();
    (!foreign.is_empty() && operation.step.change.may_apply_pending()).then(|| Refusal::config_pending(foreign))
}

/// Refuses if the pending change that the guest would restart for was withdrawn in the meantime.
fn check_restart_reason(operation: &Operation, config: &LiveConfig) -> Option<Refusal> {
    let reasons = promise::lost_restart_reasons(operation, config);
    (!reasons.is_empty()).then(|| Refusal::plan_stale(reasons))
}

/// Enforces G3 at the moment of sending, by the current state of the guest.
fn check_protection(operation: &Operation, context: &CheckContext, config: &LiveConfig) -> Option<Refusal> {
    let step = &operation.step;
    if step.interrupts() {
        let tags: Vec<&str> = current_and_pending_tags(config).collect();
        let grounds = context.rules.protection_grounds_for(
            operation.guest.vmid,
            &config.name,
            &tags,
            config.protection,
            Some((&config.identity, &config.macs)),
        );
        let changes = || vec![step.change.word().to_owned()];
        if !grounds.is_empty() {
            return Some(Refusal::protected_guest(grounds, changes()));
        }
        if let Some(host) = context.rules.machine().filter(|host| host.match_guest(&config.identity, &config.macs) == OwnGuest::Unknown) {
            return Some(Refusal::own_guest_untold(host.unreadable_marks(), changes()));
        }
    }
    let written = match &step.change {
        Change::ConfigSet(fields) => &fields.iter().find(|change| change.field == Field::Tags)?.after,
        Change::Provision(provisioning) => &provisioning.fields.iter().find(|setting| setting.field == Field::Tags)?.wanted,
        _ => return None,
    };
    let stays = |tag: &str| matches!(written, Some(FieldValue::Tags(tags)) if tags.iter().any(|own| own == tag));
    let removed_tags: Vec<String> =
        current_and_pending_tags(config).filter(|tag| context.rules.is_protecting_tag(tag) && !stays(tag)).map(str::to_owned).collect();
    (!removed_tags.is_empty()).then(|| Refusal::protection_change(removed_tags))
}
