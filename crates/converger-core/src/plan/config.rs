//! The difference between declared config and the values in effect, with what already waits for a restart.

use std::borrow::Cow;

use super::{Awaited, Step};
use crate::action::{Change, FieldChange};
use crate::desired::{DesiredGuest, Setting};
use crate::guest::{Kind, RunState};
use crate::normalize::{self, Context, Effect, Field, Role, Rule, Value};
use crate::observe::{Config, ObservedGuest, Pending, Reading, TagCase};
use crate::refusal::Refusal;

/// How the declared config of one guest stands. Looking at it allocates nothing; only [`Drift::changes`] does.
pub(super) struct Drift<'p> {
    guest: &'p DesiredGuest,
    row: &'p ObservedGuest,
    state: RunState,
    context: Context,
    tag_case: Option<TagCase>,
    found: Found,
}

/// What there is among the fields.
#[derive(Clone, Copy, Default)]
struct Found {
    /// How many must be written.
    writes: usize,
    /// One must be written and takes effect at the next start only.
    writes_for_restart: bool,
    /// One is written already and waits for the next start.
    waits: bool,
}

/// How one declared field stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    InEffect,
    Waiting,
    Differs,
}

pub(super) fn drift<'p>(guest: &'p DesiredGuest, row: &'p ObservedGuest, state: RunState, tag_case: Option<TagCase>) -> Drift<'p> {
    let context = match &row.config {
        Reading::Read(config) if !guest.config.is_empty() => config.context(),
        _ => Context { memory_hotplug: false },
    };
    let mut drift = Drift { guest, row, state, context, tag_case, found: Found::default() };
    for setting in &guest.config {
        match drift.standing(setting) {
            Standing::InEffect => {}
            Standing::Waiting => drift.found.waits = true,
            Standing::Differs => {
                drift.found.writes += 1;
                drift.found.writes_for_restart |= drift.effect(setting) == Effect::AtRestart;
            }
        }
    }
    drift
}

impl<'p> Drift<'p> {
    pub(super) fn differs(&self) -> bool {
        self.found.writes > 0
    }

    /// Declared config is written and waits for a restart.
    pub(super) fn waits(&self) -> bool {
        self.found.waits
    }

    pub(super) fn needs_restart(&self) -> bool {
        self.found.waits || self.found.writes_for_restart
    }

    /// The fields that must be written.
    pub(super) fn changes(&self) -> Box<[FieldChange]> {
        let differing = self.guest.config.iter().filter(|setting| self.standing(setting) == Standing::Differs);
        let mut changes = Vec::with_capacity(self.found.writes);
        changes.extend(differing.map(|setting| FieldChange {
            field: setting.field,
            before: self.before(setting.field),
            after: self.wanted(setting).into_owned(),
            pending: self.pending(setting.field).map(|value| value.cloned()),
            effect: self.effect(setting),
        }));
        changes.into()
    }

    /// The fields that take effect at the next start, with their declared values.
    pub(super) fn at_restart(&self) -> Box<[Awaited]> {
        let waits = |setting: &&Setting| match self.standing(setting) {
            Standing::InEffect => false,
            Standing::Waiting => true,
            Standing::Differs => self.effect(setting) == Effect::AtRestart,
        };
        let awaited = |setting: &Setting| Awaited { field: setting.field, value: Some(setting.wanted.clone()) };
        self.guest.config.iter().filter(waits).map(awaited).collect()
    }

    fn standing(&self, setting: &Setting) -> Standing {
        // A field without a line in the table cannot be declared; if it were, it would never be as declared.
        let Some(rule) = self.rule(setting.field) else { return Standing::Differs };
        let wanted = self.wanted(setting);
        let is_met = |observed: Option<&Value>| normalize::is_met(rule, wanted.as_ref().as_ref(), observed);
        let in_effect = self.is_in_effect(rule, setting);
        match self.pending(setting.field) {
            None if in_effect => Standing::InEffect,
            None => Standing::Differs,
            Some(pending) if !is_met(pending) => Standing::Differs,
            Some(_) if in_effect => Standing::InEffect,
            // What takes effect at once does not wait for a restart: whoever says so, nothing is interrupted for it.
            Some(_) if self.state == RunState::Running && self.effect(setting) != Effect::AtRestart => Standing::Differs,
            Some(_) => Standing::Waiting,
        }
    }

    /// The declared value as Proxmox stores it: a datacenter that does not keep the case of letters stores tags in lower case.
    fn wanted(&self, setting: &'p Setting) -> Cow<'p, Option<Value>> {
        match (&setting.wanted, self.tag_case) {
            (Some(Value::Tags(tags)), Some(TagCase::Lowered)) if tags.has_upper_case() => Cow::Owned(Some(Value::Tags(tags.lowered()))),
            (wanted, _) => Cow::Borrowed(wanted),
        }
    }

    /// Tags are read with the guest and not with its config.
    fn is_in_effect(&self, rule: &Rule, setting: &Setting) -> bool {
        match (setting.field, setting.wanted.as_ref(), &self.row.tags) {
            (Field::Tags, Some(Value::Tags(wanted)), Reading::Read(tags)) => match self.tag_case {
                Some(TagCase::Lowered) => wanted.lowered() == tags.lowered(),
                Some(TagCase::Kept) | None => wanted == tags,
            },
            (Field::Tags, None, Reading::Read(tags)) => tags.is_empty(),
            (_, wanted, _) => normalize::is_met(rule, wanted, self.current(setting.field)),
        }
    }

    /// A value that is in effect, and pending to be lost, is kept by writing it: nothing in the guest changes.
    fn effect(&self, setting: &Setting) -> Effect {
        match (self.state, self.rule(setting.field)) {
            (RunState::Running, Some(rule)) if !self.is_in_effect(rule, setting) => {
                normalize::effect(rule, self.current(setting.field), setting.wanted.as_ref(), self.context)
            }
            _ => Effect::Recorded,
        }
    }

    fn rule(&self, field: Field) -> Option<&'static Rule> {
        normalize::rule_of(self.guest.kind, field).filter(|rule| rule.role == Role::Managed)
    }

    /// The value in effect, to be kept.
    fn before(&self, field: Field) -> Option<Value> {
        match (field, &self.row.tags) {
            (Field::Tags, Reading::Read(tags)) => (!tags.is_empty()).then(|| Value::Tags(tags.clone())),
            _ => self.current(field).cloned(),
        }
    }

    /// The value in effect of a key of the config.
    fn current(&self, field: Field) -> Option<&'p Value> {
        match &self.row.config {
            Reading::Read(config) => config.get(field),
            Reading::Unread => None,
        }
    }

    /// The value that waits for the next start, if one does.
    fn pending(&self, field: Field) -> Option<Option<&'p Value>> {
        pending_of(self.row, field)
    }
}

/// What waits for the next start under this key; `Some(None)` is a removal.
fn pending_of(row: &ObservedGuest, field: Field) -> Option<Option<&Value>> {
    let Reading::Read(pending) = &row.pending else { return None };
    pending.iter().find_map(|entry| match entry {
        Pending::Known(own, value) if *own == field => Some(value.as_ref()),
        _ => None,
    })
}

/// The tags after a change, if it changes them.
pub(super) fn tags_after(change: &Change) -> Option<Vec<&str>> {
    let Change::ConfigSet(fields) = change else { return None };
    let tags = fields.iter().find(|field| field.field == Field::Tags)?;
    Some(match &tags.after {
        Some(Value::Tags(tags)) => tags.iter().collect(),
        _ => Vec::new(),
    })
}

/// The tags that the guest has after its next start, if some are pending.
pub(super) fn tags_pending(row: &ObservedGuest) -> Option<Vec<&str>> {
    Some(match pending_of(row, Field::Tags)? {
        Some(Value::Tags(tags)) => tags.iter().collect(),
        _ => Vec::new(),
    })
}

/// Values that Proxmox would not accept together with what the guest has.
pub(super) fn unsupported(row: &ObservedGuest, steps: &[Step]) -> Option<Refusal> {
    let (Kind::Qemu, Reading::Read(config)) = (row.kind, &row.config) else { return None };
    let fields = steps.iter().find_map(|step| match &step.change {
        Change::ConfigSet(fields) => Some(fields),
        _ => None,
    })?;
    let written = |field: Field| fields.iter().find(|change| change.field == field);
    if written(Field::Balloon).is_none() && written(Field::Memory).is_none() {
        return None;
    }
    let after = |field: Field| match written(field) {
        Some(change) => change.after.as_ref(),
        // Proxmox holds a new value against what is pending before what is in effect.
        None => pending_of(row, field).unwrap_or_else(|| config.get(field)),
    };
    let least = mib(after(Field::Balloon))?;
    let most = mib(after(Field::Memory)).unwrap_or(Config::MEMORY_DEFAULT_MIB);
    (least > most).then(|| {
        Refusal::unsupported_change("balloon", &format!("{} would be more than the memory of {}", Value::Mib(least), Value::Mib(most)))
    })
}

fn mib(value: Option<&Value>) -> Option<u32> {
    match value {
        Some(Value::Mib(mib)) => Some(*mib),
        _ => None,
    }
}
