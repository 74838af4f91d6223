//! Whether the one change of an operation may be sent now: what it was planned on is read again, and must still hold.
//!
//! Stale means that a precondition no longer holds (identity, run-state, before-values, guards), never that something else
//! of the world changed. What is already as wanted is not done again. The rules of protection are looked at anew (G3): a
//! guest that got a protecting tag a second ago is protected.
//!
//! What never enters: who reads and when, and what is done after a refusal.

use std::sync::Arc;

use super::ask::{Cause, ConfigRead, Live, Membership, Place, Trouble};
use super::operation::Operation;
use super::promise;
use crate::action::{Change, FieldChange};
use crate::desired::{DesiredGuest, Setting};
use crate::guest::{Identity, NodeName, RunState};
use crate::normalize::{self, Field, Value, Words};
use crate::observe::{CAUSE_NOT_GIVEN, CAUSE_NOT_LISTED, Pending, Status};
use crate::policy::{HOLD_TAG, Own, Rules};
use crate::refusal::Refusal;

/// What a step is held against beyond what its operation records: the rules of protection, and what is declared of the guest.
///
/// It lives as long as the run: a stored operation has none, because it is never sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    rules: Arc<Rules>,
    declared: Box<[Setting]>,
    relies: Box<[Reliance]>,
}

/// Another guest that a step relies on by `after`: it was seen so when the step was planned, or another step sees to it, and it is
/// read again before the step is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reliance {
    /// Which, and where it was.
    pub place: Place,
    /// What it must be.
    pub state: RunState,
}

impl Reliance {
    /// Why the step that relies on it is not sent, with what was read of it; `None`: it is as it must be.
    #[must_use]
    pub fn refusal(&self, live: &Live) -> Option<Refusal> {
        let on = || vec![self.place.vmid];
        match (self.state, &live.status) {
            (_, Status::Unknown(_)) => Some(self.unread()),
            (wanted, Status::Known(found)) if wanted == *found => None,
            (RunState::Running, _) => Some(Refusal::dependency_not_running(on())),
            (RunState::Stopped, _) => Some(Refusal::dependent_running(on())),
        }
    }

    /// The same where it could not be read.
    #[must_use]
    pub fn unread(&self) -> Refusal {
        Refusal::dependency_refused(vec![self.place.vmid])
    }
}

impl Terms {
    /// The terms of one declared guest.
    #[must_use]
    pub fn new(rules: Arc<Rules>, guest: &DesiredGuest) -> Self {
        Self { rules, declared: guest.config.clone(), relies: Box::new([]) }
    }

    /// The same, and other guests that the step relies on.
    #[must_use]
    pub fn with_reliances(self, relies: Vec<Reliance>) -> Self {
        Self { relies: relies.into(), ..self }
    }

    /// The guest with this number among those that the step relies on.
    #[must_use]
    pub fn reliance(&self, number: usize) -> Option<&Reliance> {
        self.relies.get(number)
    }
}

/// What `found_so` says where the guest was as wanted before anything was sent.
pub const FOUND_BEFORE_SENDING: &str = "before anything was sent";

/// Whether a change may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Everything is as it was planned on.
    Go,
    /// The guest is already as wanted: there is nothing to send.
    AsWanted,
    /// It is part of a restart, and what that is for is in effect already: the guest need not go down.
    NotNeeded,
    /// It must not be sent.
    Refused(Refusal),
}

/// Whether the cluster allows anything at all to be sent to this node (S4).
#[must_use]
pub fn cluster(membership: &Membership, node: &NodeName) -> Option<Refusal> {
    if !membership.quorate {
        return Some(Refusal::not_quorate());
    }
    let is_online = membership.nodes.get(node).copied().unwrap_or(false);
    (!is_online).then(|| Refusal::node_offline(node.as_str()))
}

/// Why nothing is sent to a guest that cannot be read (G1).
#[must_use]
pub fn unread(cause: &Cause) -> Refusal {
    Refusal::guest_unknown(cause.word.as_str())
}

/// Why a guest that is not where it was looked for is not followed; `None`: it is on another node, and checked there.
///
/// Not being listed proves nothing (S5): the guest is unknown then, and not missing.
#[must_use]
pub fn not_followed(looked: &Place, found: Option<&Place>) -> Option<Refusal> {
    match found {
        None => Some(Refusal::guest_unknown(CAUSE_NOT_LISTED)),
        Some(found) if found.kind != looked.kind => Some(Refusal::kind_mismatch(looked.kind, found.kind)),
        Some(found) if found.vmid != looked.vmid || found.node == looked.node => Some(moved()),
        Some(_) => None,
    }
}

/// Why a guest that keeps moving is left alone.
#[must_use]
pub fn moved() -> Refusal {
    Refusal::guest_unknown("moved-while-read")
}

/// The refusal that a no of the environment amounts to, where its cause is one that this program would have refused for too.
#[must_use]
pub fn rejection(operation: &Operation, cause: &Cause) -> Option<Refusal> {
    let text = &*cause.text;
    match cause.trouble {
        Trouble::Changed => Some(Refusal::plan_stale(vec![format!("config: {text}")])),
        Trouble::Locked => Some(Refusal::guest_locked(text)),
        Trouble::LockFile => Some(Refusal::lock_file_held(text)),
        Trouble::Protected => Some(Refusal::protected_guest(vec!["protection-flag".into()], vec![operation.step.change.word().to_owned()])),
        Trouble::NotQuorate => Some(Refusal::not_quorate()),
        Trouble::NotThere => Some(unread(cause)),
        Trouble::Template => Some(Refusal::guest_template()),
        Trouble::HaOwned => Some(Refusal::ha_owned(text)),
        Trouble::Unsupported => Some(Refusal::unsupported_change(operation.step.change.word(), text)),
        Trouble::ShutdownTimeout | Trouble::Busy | Trouble::Other => None,
    }
}

/// Whether the change of an operation may be sent to the guest that was read.
#[must_use]
pub fn ready(operation: &Operation, terms: &Terms, live: &Live, config: &ConfigRead) -> Ready {
    if let Some(refusal) = other_guest(operation, config) {
        return Ready::Refused(refusal);
    }
    if promise::is_met_already(operation, live, config) {
        return Ready::AsWanted;
    }
    if promise::is_needless(operation, live, config) {
        return Ready::NotNeeded;
    }
    let state = match &live.status {
        Status::Known(state) => *state,
        Status::Unknown(cause) => return Ready::Refused(Refusal::guest_unknown(cause.as_deref().unwrap_or(CAUSE_NOT_GIVEN))),
    };
    let refusal = guarded(operation, live, config, state)
        .or_else(|| stale(operation, config, state))
        .or_else(|| foreign_pending(operation, terms, config))
        .or_else(|| protected(operation, terms, config))
        .or_else(|| unfounded(operation, config));
    refusal.map_or(Ready::Go, Ready::Refused)
}

/// Why this is not the guest that was planned on (S6). Also asked before anything is said about an operation's outcome.
#[must_use]
pub fn other_guest(operation: &Operation, config: &ConfigRead) -> Option<Refusal> {
    let target = &operation.guest;
    if target.name != config.name {
        return Some(Refusal::name_mismatch(&target.name, &config.name));
    }
    match &target.identity {
        // Whoever was not told apart at plan time cannot be now.
        None => Some(Refusal::guard_unread(vec!["identity".into()])),
        Some(planned) if *planned == config.identity => None,
        // A mark that it had not then is a difference too: marks do not grow.
        Some(planned) => Some(Refusal::identity_mismatch(differing_marks(planned, &config.identity))),
    }
}

fn differing_marks(planned: &Identity, found: &Identity) -> Vec<String> {
    let shown = |mark: &Option<String>| mark.clone().unwrap_or_else(|| "absent".into());
    let pairs = planned.marks().into_iter().zip(found.marks());
    pairs
        .filter(|(ours, theirs)| ours != theirs)
        .map(|(ours, theirs)| format!("{}: planned {}, observed {}", ours.0, shown(&ours.1), shown(&theirs.1)))
        .collect()
}

/// It is in somebody else's hands: locked, a template, held, or owned by high availability (S12).
fn guarded(operation: &Operation, live: &Live, config: &ConfigRead, state: RunState) -> Option<Refusal> {
    if let Some(lock) = config.lock.as_ref().or(live.lock.as_ref()) {
        return Some(Refusal::guest_locked(lock));
    }
    if config.template {
        return Some(Refusal::guest_template());
    }
    if let Some(tag) = tags_carried(config).find(|tag| tag.eq_ignore_ascii_case(HOLD_TAG)) {
        return Some(Refusal::guest_held(tag));
    }
    let ha = live.ha.as_ref().filter(|ha| ha.owns())?;
    let changes_power = operation.step.change.leads_to().is_some();
    (changes_power || !ha.is_settled(state)).then(|| Refusal::ha_owned(ha.state.as_deref().unwrap_or("not known yet")))
}

/// What the guest has, and what it gets at its next start.
fn tags_carried(config: &ConfigRead) -> impl Iterator<Item = &str> {
    let next = config.pending.iter().find_map(|entry| match entry {
        Pending::Known(Field::Tags, Some(Value::Tags(tags))) => Some(tags),
        _ => None,
    });
    std::iter::once(&config.tags).chain(next).flat_map(Words::iter)
}

/// What differs from what the step was planned on.
fn stale(operation: &Operation, config: &ConfigRead, state: RunState) -> Option<Refusal> {
    let mut differences = Vec::new();
    if state != operation.step.from {
        differences.push(format!("state: planned {}, found {}", operation.step.from.word(), state.word()));
    }
    if let Change::ConfigSet(fields) = &operation.step.change {
        differences.extend(fields.iter().filter_map(|change| field_differs(operation, change, config)));
        if config.revision.is_none() {
            return Some(Refusal::config_unreadable(vec!["digest".into()]));
        }
    }
    (!differences.is_empty()).then(|| Refusal::plan_stale(differences))
}

/// A field whose value, in effect or waiting, is not the one that the write was planned on.
fn field_differs(operation: &Operation, change: &FieldChange, config: &ConfigRead) -> Option<String> {
    let name = change.field.word();
    let Some(rule) = normalize::rule_of(operation.guest.kind, change.field) else { return Some(format!("{name}: not a field")) };
    let shown = |value: Option<&Value>| value.map_or_else(|| "absent".to_owned(), ToString::to_string);
    let found = promise::in_effect(change.field, config);
    let is_understood = config.values.not_understood(change.field).is_none();
    if !is_understood || !normalize::is_met(rule, change.before.as_ref(), found.as_ref()) {
        let found = promise::shown_in_effect(change.field, config);
        return Some(format!("{name}: planned {}, found {found}", shown(change.before.as_ref())));
    }
    let waiting = promise::waiting(change.field, config);
    let is_same = match (&change.pending, waiting) {
        (None, None) => true,
        (Some(planned), Some(found)) => normalize::is_met(rule, planned.as_ref(), found),
        _ => false,
    };
    let shown = |pending: Option<Option<&Value>>| pending.map_or_else(|| "nothing".to_owned(), shown);
    let planned = change.pending.as_ref().map(Option::as_ref);
    (!is_same).then(|| format!("{name}: planned with {} waiting, found {}", shown(planned), shown(waiting)))
}

/// Keys that wait for the next start and are not ours: any write or power change would apply them too (design 6.21).
///
/// Ours is what waits with the declared value, what this program wrote in an earlier run, and what this write was planned to replace.
fn foreign_pending(operation: &Operation, terms: &Terms, config: &ConfigRead) -> Option<Refusal> {
    let written: &[FieldChange] = match &operation.step.change {
        Change::ConfigSet(fields) => fields,
        _ => &[],
    };
    let is_ours = |entry: &&Pending| {
        let Pending::Known(field, value) = entry else { return false };
        let Some(rule) = normalize::rule_of(operation.guest.kind, *field) else { return false };
        let setting = terms.declared.iter().find(|setting| setting.field == *field);
        let is_declared = setting.is_some_and(|setting| normalize::is_met(rule, setting.wanted.as_ref(), value.as_ref()));
        is_declared || written.iter().any(|change| change.field == *field) || terms.rules.is_own_write(operation.guest.vmid, entry)
    };
    let foreign: Vec<String> = config.pending.iter().filter(|entry| !is_ours(entry)).map(|entry| entry.key().to_owned()).collect();
    (!foreign.is_empty()).then(|| Refusal::config_pending(foreign))
}

/// What the guest would go down for is gone: somebody took it back while it was waited.
fn unfounded(operation: &Operation, config: &ConfigRead) -> Option<Refusal> {
    let gone = promise::reason_gone(operation, config);
    (!gone.is_empty()).then(|| Refusal::plan_stale(gone))
}

/// G3 at the moment of sending, by what the guest is now.
fn protected(operation: &Operation, terms: &Terms, config: &ConfigRead) -> Option<Refusal> {
    let step = &operation.step;
    if step.interrupts() {
        let tags: Vec<&str> = tags_carried(config).collect();
        let grounds =
            terms.rules.grounds_of(operation.guest.vmid, &config.name, &tags, config.protection, Some((&config.identity, &config.macs)));
        let changes = || vec![step.change.word().to_owned()];
        if !grounds.is_empty() {
            return Some(Refusal::protected_guest(grounds, changes()));
        }
        if let Some(host) = terms.rules.host().filter(|host| host.is(&config.identity, &config.macs) == Own::Untold) {
            return Some(Refusal::own_guest_untold(host.unread(), changes()));
        }
    }
    let written = match &step.change {
        Change::ConfigSet(fields) => fields.iter().find(|change| change.field == Field::Tags)?,
        _ => return None,
    };
    let stays = |tag: &str| matches!(&written.after, Some(Value::Tags(tags)) if tags.iter().any(|own| own == tag));
    let lost: Vec<String> =
        tags_carried(config).filter(|tag| terms.rules.is_protecting_tag(tag) && !stays(tag)).map(str::to_owned).collect();
    (!lost.is_empty()).then(|| Refusal::protection_change(lost))
}
