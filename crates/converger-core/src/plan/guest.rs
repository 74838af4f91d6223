//! The verdict for one guest on its own: whether it is the declared guest, whether it was read, what differs, and whether it may be
//! changed.

use std::collections::BTreeMap;

use super::config::{self, ConfigDrift};
use super::{Step, StepReason, Verdict};
use crate::action::Change;
use crate::desired::{DesiredGuest, DesiredSetting, RestartPolicy, StopMethod};
use crate::guest::{GuestKind, RunState};
use crate::normalize::{self, Field, FieldValue};
use crate::observe::{ObservedGuest, ObservedStatus, PendingChange, Reading, Scoped, Seen, TagCase};
use crate::policy::{HOLD_TAG, OwnGuest, Rules};
use crate::refusal::Refusal;

pub(super) fn verdict(guest: &DesiredGuest, listed: Option<&ObservedGuest>, observation: &Scoped, rules: &Rules) -> Verdict {
    let (row, state) = match observation.presence(guest.vmid, listed) {
        Seen::Missing => return Verdict::Refused(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Verdict::Refused(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, state) => (row, state),
    };
    if let Some(refusals) = check_guest(guest, row, observation) {
        return Verdict::Refused(refusals);
    }
    let drift = config::find_drift(guest, row, state, observation.tag_case);
    let steps = plan_steps(guest, state, &drift);
    if steps.is_empty() {
        return Verdict::Converged { pending_restart: drift.has_pending() };
    }
    let refusals = check_guards(guest, row, &steps, rules);
    if refusals.is_empty() { Verdict::Steps(steps) } else { Verdict::Refused(refusals) }
}

/// The run-state, if the guest is the declared one and its node is online.
pub(super) fn reliable_state(guest: &DesiredGuest, listed: Option<&ObservedGuest>, observation: &Scoped) -> Option<RunState> {
    let Seen::Present(row, state) = observation.presence(guest.vmid, listed) else { return None };
    let is_online = observation.node_of(row).is_some_and(|node| node.online);
    (is_online && check_identity(guest, row).is_none()).then_some(state)
}

/// The verdict if the whole observation is refused: keeps the guest's own refusals and adds these.
pub(super) fn add_refusals(local: Verdict, refusals: &[Refusal]) -> Verdict {
    let own = match local {
        Verdict::Refused(own) => own,
        Verdict::Converged { .. } | Verdict::Steps(_) => Vec::new(),
    };
    Verdict::Refused(refusals.iter().cloned().chain(own).collect())
}

/// Refuses if the guest with this id is not the declared one, or if its drift cannot be determined.
pub(super) fn check_guest(guest: &DesiredGuest, row: &ObservedGuest, observation: &Scoped) -> Option<Vec<Refusal>> {
    check_identity(guest, row).or_else(|| check_readable(guest, row, observation))
}

/// Refuses if the guest with this id is not the declared one.
fn check_identity(guest: &DesiredGuest, row: &ObservedGuest) -> Option<Vec<Refusal>> {
    if guest.kind != row.kind {
        return Some(vec![Refusal::kind_mismatch(guest.kind, row.kind)]);
    }
    let name = match (&row.name, &guest.name) {
        // A name may protect the guest; without it, protection is unknown.
        (None, _) => Some(Refusal::guard_unread(vec!["name".into()])),
        (Some(observed), Some(declared)) if declared.as_str() != &**observed => Some(Refusal::name_mismatch(declared.as_str(), observed)),
        (Some(_), _) => None,
    };
    let identity = guest.identity.as_deref().and_then(|pinned| match &row.identity {
        Reading::Unread => Some(Refusal::guard_unread(vec!["identity".into()])),
        Reading::Read(seen) if pinned.holds_for(seen) => None,
        Reading::Read(seen) => Some(Refusal::identity_mismatch(pinned.differences(seen))),
    });
    if name.is_none() && identity.is_none() { None } else { Some(name.into_iter().chain(identity).collect()) }
}

/// Refuses if the drift of the guest cannot be determined.
fn check_readable(guest: &DesiredGuest, row: &ObservedGuest, observation: &Scoped) -> Option<Vec<Refusal>> {
    let node = match observation.node_of(row) {
        Some(node) if node.online => None,
        Some(node) => Some(Refusal::node_offline(node.name.as_str())),
        // An unlisted node was not seen online.
        None => Some(Refusal::node_offline("not listed")),
    };
    let config = unread_fields(guest, row)
        .map(Refusal::config_unreadable)
        .or_else(|| not_understood(guest, row))
        .or_else(|| tag_case_unread(guest, observation));
    if node.is_none() && config.is_none() { None } else { Some(node.into_iter().chain(config).collect()) }
}

/// Declared fields that were not read. Tags are read with the guest, all other fields with its config.
fn unread_fields(guest: &DesiredGuest, row: &ObservedGuest) -> Option<Vec<String>> {
    let is_unread = |field: Field| match field {
        Field::Tags => !row.tags.is_read(),
        _ => !row.config.is_read(),
    };
    if !guest.config.iter().any(|setting| is_unread(setting.field)) {
        return None;
    }
    Some(guest.config.iter().filter(|setting| is_unread(setting.field)).map(|setting| setting.field.word().to_owned()).collect())
}

/// Refuses if tags contain upper case and it is unknown whether the datacenter stores them in lower case.
fn tag_case_unread(guest: &DesiredGuest, observation: &Scoped) -> Option<Refusal> {
    let is_open = |setting: &DesiredSetting| matches!(&setting.wanted, Some(FieldValue::Tags(tags)) if tags.has_upper_case());
    (observation.tag_case.is_none() && guest.config.iter().any(is_open)).then(Refusal::tag_case_unread)
}

/// Refuses if a declared field has a value that is not understood, or depends on another field with such a value.
fn not_understood(guest: &DesiredGuest, row: &ObservedGuest) -> Option<Refusal> {
    let Reading::Read(config) = &row.config else { return None };
    let not_understood_value = |field: Field| config.not_understood(field).map(|text| (field, text));
    let found =
        |declared: Field| std::iter::once(declared).chain(normalize::read_with(declared).iter().copied()).filter_map(not_understood_value);
    let fields: Vec<Field> = guest.config.iter().map(|setting| setting.field).filter(|field| found(*field).next().is_some()).collect();
    let values: BTreeMap<Field, &str> = fields.iter().flat_map(|field| found(*field)).collect();
    let shown = values.into_iter().map(|(field, text)| format!("{}={text}", field.word())).collect();
    (!fields.is_empty()).then(|| Refusal::config_not_understood(fields.iter().map(|field| field.word().to_owned()).collect(), shown))
}

/// The steps that what is declared of the guest needs.
pub(super) fn plan_drift(guest: &DesiredGuest, row: &ObservedGuest, state: RunState, tag_case: Option<TagCase>) -> Vec<Step> {
    plan_steps(guest, state, &config::find_drift(guest, row, state, tag_case))
}

/// Plans config before run-state. A stop needs no extra restart for pending config: it takes effect at the next start.
fn plan_steps(guest: &DesiredGuest, state: RunState, drift: &ConfigDrift<'_>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut push = |change: Change, reason: StepReason, from: RunState| {
        // Most guests have one step; `push` alone would allocate space for four.
        steps.reserve_exact(1);
        steps.push(Step { change, reason, from, wait: Box::new([]) });
    };
    if drift.differs() {
        push(Change::ConfigSet(drift.changes()), StepReason::ConfigDiffers, state);
    }
    let stop = match guest.stop {
        StopMethod::Shutdown => Change::Shutdown { timeout_secs: guest.stop_timeout_secs },
        StopMethod::Hard => Change::Stop,
    };
    match (guest.state, state) {
        (Some(RunState::Running), RunState::Stopped) => push(Change::Start, StepReason::StateDiffers, state),
        (Some(RunState::Stopped), RunState::Running) => push(stop, StepReason::StateDiffers, state),
        (wanted, RunState::Running) if guest.restart == RestartPolicy::WhenNeeded && drift.needs_restart() => {
            let reason = StepReason::RestartForConfig(drift.restart_fields());
            if guest.stop == StopMethod::Shutdown && guest.kind == GuestKind::Qemu {
                push(Change::Reboot { timeout_secs: guest.stop_timeout_secs }, reason, RunState::Running);
            } else if wanted == Some(RunState::Running) {
                // Proxmox's reboot kills a container after the timeout, and `stop: hard` marks a guest that ignores a graceful shutdown.
                // Both are stopped with their own method and started again. Only guests that are declared to run: otherwise a run that ends
                // in between would leave the guest down, and no later plan would start it.
                push(stop, reason.clone(), RunState::Running);
                push(Change::Start, reason, RunState::Stopped);
            }
        }
        _ => {}
    }
    steps
}

/// All reasons why these steps must not be executed.
pub(super) fn check_guards(guest: &DesiredGuest, row: &ObservedGuest, steps: &[Step], rules: &Rules) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut unread = unread_guards(row);
    // Without its identity, the guest may be the one that this program runs in.
    if rules.machine().is_some() && !row.identity.is_read() && steps.iter().any(Step::interrupts) {
        unread.push("identity".to_owned());
    }
    if !unread.is_empty() {
        refusals.push(Refusal::guard_unread(unread));
    }
    if let Reading::Read(Some(lock)) = &row.lock {
        refusals.push(Refusal::guest_locked(lock));
    }
    if row.template == Reading::Read(true) {
        refusals.push(Refusal::guest_template());
    }
    refusals.extend(check_birth(row, steps, rules));
    refusals.extend(check_ha(row, steps));
    refusals.extend(check_hold_tag(row));
    let foreign = foreign_pending_keys(guest, row, rules);
    if !foreign.is_empty() && steps.iter().any(|step| step.change.may_apply_pending()) {
        refusals.push(Refusal::config_pending(foreign));
    }
    refusals.extend(config::check_supported(row, steps));
    refusals.extend(check_protection(guest, row, steps, rules));
    refusals.extend(check_own_guest(row, steps, rules));
    refusals.extend(check_protecting_tags(row, steps, rules));
    refusals
}

/// Refuses to start a clone that was not provisioned, unless the same steps provision it.
fn check_birth(row: &ObservedGuest, steps: &[Step], rules: &Rules) -> Option<Refusal> {
    let birth = rules.birth_of(row).filter(|birth| !birth.provisioned)?;
    let starts = steps.iter().any(|step| step.change.resulting_state() == Some(RunState::Running));
    let provisions = steps.iter().any(|step| matches!(step.change, Change::Provision(_)));
    (starts && !provisions).then(|| Refusal::provisioning_unfinished(birth))
}

pub(super) fn check_hold_tag(row: &ObservedGuest) -> Option<Refusal> {
    row.current_and_pending_tags().find(|tag| tag.eq_ignore_ascii_case(HOLD_TAG)).map(Refusal::guest_held)
}

pub(super) fn unread_guards(row: &ObservedGuest) -> Vec<String> {
    let guards = [
        ("lock", row.lock.is_read()),
        ("ha", row.ha.is_read()),
        ("template", row.template.is_read()),
        ("protection", row.protection.is_read()),
        ("tags", row.tags.is_read()),
        ("pending", row.pending.is_read()),
    ];
    guards.into_iter().filter(|(_, is_read)| !is_read).map(|(field, _)| field.to_owned()).collect()
}

/// Refuses power changes of a guest that high availability owns, and any change while it is in transition.
fn check_ha(row: &ObservedGuest, steps: &[Step]) -> Option<Refusal> {
    let Reading::Read(Some(ha)) = &row.ha else { return None };
    let changes_power = steps.iter().any(|step| step.change.affects_availability());
    let is_settled = matches!(row.status, ObservedStatus::Known(state) if ha.is_settled(state));
    let refused = ha.owns_run_state() && (changes_power || !is_settled);
    refused.then(|| Refusal::ha_owned(ha.state.as_deref().unwrap_or("not known yet")))
}

/// Pending keys that are not declared and that this program did not write: any config write or power step would apply them too.
fn foreign_pending_keys(guest: &DesiredGuest, row: &ObservedGuest, rules: &Rules) -> Vec<String> {
    let Reading::Read(pending) = &row.pending else { return Vec::new() };
    let is_declared = |entry: &&PendingChange| match entry {
        PendingChange::Known(field, _) => guest.config.iter().any(|setting| setting.field == *field),
        PendingChange::Other(_) => false,
    };
    pending
        .iter()
        .filter(|entry| !is_declared(entry) && !rules.is_own_write(guest.vmid, entry))
        .map(|entry| entry.key().to_owned())
        .collect()
}

fn check_protection(guest: &DesiredGuest, row: &ObservedGuest, steps: &[Step], rules: &Rules) -> Option<Refusal> {
    let interrupting = interrupting_changes(steps);
    if interrupting.is_empty() {
        return None;
    }
    let grounds = rules.protection_grounds(guest, row);
    (!grounds.is_empty()).then(|| Refusal::protected_guest(grounds, interrupting))
}

fn interrupting_changes(steps: &[Step]) -> Vec<String> {
    steps.iter().filter(|step| step.interrupts()).map(|step| step.change.word().to_owned()).collect()
}

/// Refuses interruptions if the guest may be the one that this program runs in and the readable marks do not decide it.
fn check_own_guest(row: &ObservedGuest, steps: &[Step], rules: &Rules) -> Option<Refusal> {
    let Reading::Read(identity) = &row.identity else { return None };
    let host = rules.machine().filter(|host| host.match_guest(identity, &row.macs) == OwnGuest::Unknown)?;
    let changes = interrupting_changes(steps);
    (!changes.is_empty()).then(|| Refusal::own_guest_untold(host.unreadable_marks(), changes))
}

/// Refuses to remove protecting tags, by writing other tags or by applying pending ones.
fn check_protecting_tags(row: &ObservedGuest, steps: &[Step], rules: &Rules) -> Option<Refusal> {
    let written = steps.iter().find_map(|step| config::tags_after(&step.change));
    let remaining_tags = written.or_else(|| config::tags_pending(row))?;
    // Compare exactly: if the datacenter preserves letter case, the same word in another case is another tag.
    let removed_tags: Vec<String> = row
        .current_and_pending_tags()
        .filter(|tag| rules.is_protecting_tag(tag) && !remaining_tags.contains(tag))
        .map(str::to_owned)
        .collect();
    (!removed_tags.is_empty()).then(|| Refusal::protection_change(removed_tags))
}
