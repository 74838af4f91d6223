//! The difference between declared config and effective values, taking pending values into account.

use std::borrow::Cow;

use super::{RestartField, Step};
use crate::action::{Change, FieldChange};
use crate::desired::{DesiredGuest, DesiredSetting};
use crate::guest::{GuestKind, RunState};
use crate::normalize::{self, ChangeEffect, EffectContext, Field, FieldRole, FieldRule, FieldValue};
use crate::observe::{EffectiveValues, ObservedGuest, PendingChange, Reading, TagCase};
use crate::refusal::Refusal;

/// The drift of the declared config of one guest. Only [`ConfigDrift::changes`] and [`ConfigDrift::restart_fields`] allocate.
pub(super) struct ConfigDrift<'p> {
    guest: &'p DesiredGuest,
    row: &'p ObservedGuest,
    state: RunState,
    context: EffectContext,
    tag_case: Option<TagCase>,
    summary: DriftSummary,
}

/// Summary over all declared fields.
#[derive(Clone, Copy, Default)]
struct DriftSummary {
    /// Number of fields that must be written.
    writes: usize,
    /// Whether a field must be written that takes effect only at the next start.
    writes_for_restart: bool,
    /// Whether a field is already written and pending until the next start.
    has_pending: bool,
}

/// The status of one declared field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeclaredFieldStatus {
    InEffect,
    Pending,
    Differs,
}

pub(super) fn find_drift<'p>(
    guest: &'p DesiredGuest,
    row: &'p ObservedGuest,
    state: RunState,
    tag_case: Option<TagCase>,
) -> ConfigDrift<'p> {
    let context = match &row.config {
        Reading::Read(config) if !guest.config.is_empty() => config.effect_context(),
        _ => EffectContext { memory_hotplug: false },
    };
    let mut drift = ConfigDrift { guest, row, state, context, tag_case, summary: DriftSummary::default() };
    for setting in &guest.config {
        match drift.field_status(setting) {
            DeclaredFieldStatus::InEffect => {}
            DeclaredFieldStatus::Pending => drift.summary.has_pending = true,
            DeclaredFieldStatus::Differs => {
                drift.summary.writes += 1;
                drift.summary.writes_for_restart |= drift.effect(setting) == ChangeEffect::AtRestart;
            }
        }
    }
    drift
}

impl<'p> ConfigDrift<'p> {
    pub(super) fn differs(&self) -> bool {
        self.summary.writes > 0
    }

    /// Whether declared config is written and pending until a restart.
    pub(super) fn has_pending(&self) -> bool {
        self.summary.has_pending
    }

    pub(super) fn needs_restart(&self) -> bool {
        self.summary.has_pending || self.summary.writes_for_restart
    }

    /// The fields that must be written.
    pub(super) fn changes(&self) -> Box<[FieldChange]> {
        let differing = self.guest.config.iter().filter(|setting| self.field_status(setting) == DeclaredFieldStatus::Differs);
        let mut changes = Vec::with_capacity(self.summary.writes);
        changes.extend(differing.map(|setting| FieldChange {
            field: setting.field,
            before: self.value_before(setting.field),
            after: self.wanted(setting).into_owned(),
            pending: self.pending_value(setting.field).map(|value| value.cloned()),
            effect: self.effect(setting),
        }));
        changes.into()
    }

    /// The fields that take effect at the next start, with their declared values.
    pub(super) fn restart_fields(&self) -> Box<[RestartField]> {
        let waits_for_restart = |setting: &&DesiredSetting| match self.field_status(setting) {
            DeclaredFieldStatus::InEffect => false,
            DeclaredFieldStatus::Pending => true,
            DeclaredFieldStatus::Differs => self.effect(setting) == ChangeEffect::AtRestart,
        };
        let to_restart_field = |setting: &DesiredSetting| RestartField { field: setting.field, value: Some(setting.wanted.clone()) };
        self.guest.config.iter().filter(waits_for_restart).map(to_restart_field).collect()
    }

    fn field_status(&self, setting: &DesiredSetting) -> DeclaredFieldStatus {
        // A field without a rule cannot be declared; if one were, it would never count as converged.
        let Some(rule) = self.rule(setting.field) else { return DeclaredFieldStatus::Differs };
        let wanted = self.wanted(setting);
        let is_met = |observed: Option<&FieldValue>| normalize::is_met(rule, wanted.as_ref().as_ref(), observed);
        let in_effect = self.is_in_effect(rule, setting);
        match self.pending_value(setting.field) {
            None if in_effect => DeclaredFieldStatus::InEffect,
            None => DeclaredFieldStatus::Differs,
            Some(pending) if !is_met(pending) => DeclaredFieldStatus::Differs,
            Some(_) if in_effect => DeclaredFieldStatus::InEffect,
            // A field that takes effect at once does not wait for a restart. If it is reported as pending, write it again instead of
            // interrupting the guest.
            Some(_) if self.state == RunState::Running && self.effect(setting) != ChangeEffect::AtRestart => DeclaredFieldStatus::Differs,
            Some(_) => DeclaredFieldStatus::Pending,
        }
    }

    /// The declared value as Proxmox stores it: a datacenter that ignores letter case stores tags in lower case.
    fn wanted(&self, setting: &'p DesiredSetting) -> Cow<'p, Option<FieldValue>> {
        match (&setting.wanted, self.tag_case) {
            (Some(FieldValue::Tags(tags)), Some(TagCase::Lowered)) if tags.has_upper_case() => {
                Cow::Owned(Some(FieldValue::Tags(tags.lowered())))
            }
            (wanted, _) => Cow::Borrowed(wanted),
        }
    }

    /// Whether the declared value is in effect. Tags are read with the guest, not with its config.
    fn is_in_effect(&self, rule: &FieldRule, setting: &DesiredSetting) -> bool {
        match (setting.field, setting.wanted.as_ref(), &self.row.tags) {
            (Field::Tags, Some(FieldValue::Tags(wanted)), Reading::Read(tags)) => match self.tag_case {
                Some(TagCase::Lowered) => wanted.lowered() == tags.lowered(),
                Some(TagCase::Kept) | None => wanted == tags,
            },
            (Field::Tags, None, Reading::Read(tags)) => tags.is_empty(),
            (_, wanted, _) => normalize::is_met(rule, wanted, self.effective_value(setting.field)),
        }
    }

    /// When a write takes effect. Writing a value that is already in effect only cancels a pending change; the guest does not change.
    fn effect(&self, setting: &DesiredSetting) -> ChangeEffect {
        match (self.state, self.rule(setting.field)) {
            (RunState::Running, Some(rule)) if !self.is_in_effect(rule, setting) => {
                normalize::effect(rule, self.effective_value(setting.field), setting.wanted.as_ref(), self.context)
            }
            _ => ChangeEffect::Recorded,
        }
    }

    fn rule(&self, field: Field) -> Option<&'static FieldRule> {
        normalize::rule_of(self.guest.kind, field).filter(|rule| rule.role == FieldRole::Managed)
    }

    /// The effective value as a copy.
    fn value_before(&self, field: Field) -> Option<FieldValue> {
        match (field, &self.row.tags) {
            (Field::Tags, Reading::Read(tags)) => (!tags.is_empty()).then(|| FieldValue::Tags(tags.clone())),
            _ => self.effective_value(field).cloned(),
        }
    }

    /// The effective value of a config key.
    fn effective_value(&self, field: Field) -> Option<&'p FieldValue> {
        match &self.row.config {
            Reading::Read(config) => config.get(field),
            Reading::Unread => None,
        }
    }

    /// The pending value, if there is one.
    fn pending_value(&self, field: Field) -> Option<Option<&'p FieldValue>> {
        pending_change(self.row, field)
    }
}

/// The pending value of this field; `Some(None)` is a removal.
fn pending_change(row: &ObservedGuest, field: Field) -> Option<Option<&FieldValue>> {
    let Reading::Read(pending) = &row.pending else { return None };
    pending.iter().find_map(|entry| match entry {
        PendingChange::Known(own, value) if *own == field => Some(value.as_ref()),
        _ => None,
    })
}

/// The tags after a change, if it writes them.
pub(super) fn tags_after(change: &Change) -> Option<Vec<&str>> {
    let after = match change {
        Change::ConfigSet(fields) => &fields.iter().find(|field| field.field == Field::Tags)?.after,
        Change::Provision(provisioning) => &provisioning.fields.iter().find(|setting| setting.field == Field::Tags)?.wanted,
        _ => return None,
    };
    Some(match after {
        Some(FieldValue::Tags(tags)) => tags.iter().collect(),
        _ => Vec::new(),
    })
}

/// The tags of the guest after its next start, if tags are pending.
pub(super) fn tags_pending(row: &ObservedGuest) -> Option<Vec<&str>> {
    Some(match pending_change(row, Field::Tags)? {
        Some(FieldValue::Tags(tags)) => tags.iter().collect(),
        _ => Vec::new(),
    })
}

/// Refuses values that Proxmox would not accept in combination with the other values of the guest.
pub(super) fn check_supported(row: &ObservedGuest, steps: &[Step]) -> Option<Refusal> {
    let (GuestKind::Qemu, Reading::Read(config)) = (row.kind, &row.config) else { return None };
    let fields: Vec<(Field, Option<&FieldValue>)> = steps.iter().find_map(|step| match &step.change {
        Change::ConfigSet(fields) => Some(fields.iter().map(|change| (change.field, change.after.as_ref())).collect()),
        Change::Provision(provisioning) => {
            Some(provisioning.fields.iter().map(|setting| (setting.field, setting.wanted.as_ref())).collect())
        }
        _ => None,
    })?;
    let written = |field: Field| fields.iter().find(|(own, _)| *own == field).map(|(_, value)| *value);
    if written(Field::Balloon).is_none() && written(Field::Memory).is_none() {
        return None;
    }
    let after = |field: Field| match written(field) {
        Some(value) => value,
        // Proxmox compares a new value with the pending value first, then with the effective one.
        None => pending_change(row, field).unwrap_or_else(|| config.get(field)),
    };
    let least = as_mib(after(Field::Balloon))?;
    let most = as_mib(after(Field::Memory)).unwrap_or(EffectiveValues::MEMORY_DEFAULT_MIB);
    (least > most).then(|| {
        Refusal::unsupported_change(
            "balloon",
            &format!("{} would be more than the memory of {}", FieldValue::Mib(least), FieldValue::Mib(most)),
        )
    })
}

fn as_mib(value: Option<&FieldValue>) -> Option<u32> {
    match value {
        Some(FieldValue::Mib(mib)) => Some(*mib),
        _ => None,
    }
}
