//! An operation: one step of a plan while it is executed, with all that recovery needs to find out what may have been done to which guest.

use super::env_request::GuestAddress;
use super::id::{IdempotencyKey, OperationId, RunId};
use crate::action::{Change, ChangeClass, FieldChange, Impact, Risk};
use crate::artifact::{Digest, INTEGER_MAX};
use crate::desired::DesiredGuest;
use crate::guest::{EnvironmentName, GuestIdentity, GuestKind, NodeName, Vmid};
use crate::normalize::{Field, FieldValue, WordSet};
use crate::observe::{HaState, ObservedGuest, Reading};
use crate::plan::{Plan, Step, StepReason};

/// One step of one guest, with its preconditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its id; never reused.
    pub id: OperationId,
    /// The run that it belongs to.
    pub run: RunId,
    /// The environment.
    pub environment: EnvironmentName,
    /// The guest.
    pub guest: OperationTarget,
    /// The change, and the run-state and values that it was planned on.
    pub step: Step,
    /// What it does to the guest, as judged at plan time.
    pub impact: Impact,
    /// How much can go wrong, as judged at plan time.
    pub risk: Risk,
    /// Its class, as judged at plan time.
    pub class: ChangeClass,
    /// Its position among the steps of its guest, from 0.
    pub position: u32,
    /// The plan, by the digest of its body.
    pub plan: Digest,
    /// What requested it.
    pub source: OperationSource,
}

/// What requested an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationSource {
    /// The declared state. The step is derived again from every observation, so repeating it is harmless.
    Convergent,
    /// A request that is executed once (G13).
    OneShot {
        /// The idempotency key that the caller sent.
        key: IdempotencyKey,
        /// What was requested. A different request with the same key is refused.
        request: Digest,
    },
}

/// The guest of an operation, as observed at plan time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationTarget {
    /// Its id.
    pub vmid: Vmid,
    /// Its kind.
    pub kind: GuestKind,
    /// Its name. Untrusted text.
    pub name: Box<str>,
    /// The node that it was on. Guests move, so this is where to look for it and not part of its identity.
    pub node: NodeName,
    /// Its birth marks, if they were read.
    pub identity: Option<GuestIdentity>,
    /// Its guards.
    pub guards: GuestGuards,
}

/// The guards of a guest, all of them read. A guest with an unread guard gets no step (G1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestGuards {
    /// Its high-availability state, if it is an HA resource.
    pub ha: Option<HaState>,
    /// The lock that is held.
    pub lock: Option<Box<str>>,
    /// Whether the platform's own protection is on.
    pub protection: bool,
    /// Its tags.
    pub tags: WordSet,
    /// Whether it is a template.
    pub template: bool,
}

impl GuestGuards {
    /// The guards of an observed guest; `None` if any of them was not read.
    #[must_use]
    pub fn from_row(row: &ObservedGuest) -> Option<Self> {
        Some(Self {
            ha: row.ha.as_ref().into_option()?.clone(),
            lock: row.lock.as_ref().into_option()?.clone(),
            protection: row.protection.into_option()?,
            tags: row.tags.as_ref().into_option()?.clone(),
            template: row.template.into_option()?,
        })
    }
}

impl OperationTarget {
    /// A guest of a plan, as the plan's observation has it; `None` if the observation is not sufficient for a step.
    #[must_use]
    pub fn from_plan(plan: &Plan, guest: &DesiredGuest) -> Option<Self> {
        let observation = plan.observation();
        let Some(row) = observation.find(guest.vmid) else { return Self::for_new_guest(plan, guest) };
        Some(Self {
            vmid: row.vmid,
            kind: row.kind,
            name: row.name.clone()?,
            node: observation.node_of(row)?.name.clone(),
            identity: match &row.identity {
                Reading::Read(identity) => Some(GuestIdentity::clone(identity)),
                Reading::Unread => None,
            },
            guards: GuestGuards::from_row(row)?,
        })
    }
}

impl OperationTarget {
    /// Where it was at plan time.
    #[must_use]
    pub fn address(&self) -> GuestAddress {
        GuestAddress { node: self.node.clone(), kind: self.kind, vmid: self.vmid }
    }

    /// A guest that the plan makes; `None` if the plan does not make it.
    fn for_new_guest(plan: &Plan, guest: &DesiredGuest) -> Option<Self> {
        let clone = plan.steps_of(guest.vmid).iter().find_map(|step| match &step.change {
            Change::Clone(clone) => Some(clone),
            _ => None,
        })?;
        let guards = GuestGuards { ha: None, lock: None, protection: false, tags: WordSet::default(), template: false };
        Some(Self {
            vmid: guest.vmid,
            kind: guest.kind,
            name: clone.name.as_str().into(),
            node: clone.node.clone(),
            identity: None,
            guards,
        })
    }
}

impl Operation {
    /// The guests that it occupies: no other operation may work on them meanwhile.
    pub fn occupied_guests(&self) -> impl Iterator<Item = Vmid> {
        std::iter::once(self.guest.vmid).chain(self.step.change.second_guest())
    }

    /// The guest that the change is sent to: its own, or the source of a clone.
    #[must_use]
    pub fn sending_address(&self) -> GuestAddress {
        match &self.step.change {
            Change::Clone(clone) => GuestAddress { node: clone.source.node.clone(), kind: clone.source.kind, vmid: clone.source.vmid },
            _ => self.guest.address(),
        }
    }

    /// Creates the operation of a step and classifies it.
    #[must_use]
    #[allow(clippy::too_many_arguments, reason = "one per member; a builder would hide which of them is missing")]
    pub fn new(
        id: OperationId,
        run: RunId,
        environment: EnvironmentName,
        guest: OperationTarget,
        step: Step,
        position: u32,
        plan: Digest,
        source: OperationSource,
    ) -> Self {
        let (impact, risk, class) = (step.impact(), step.risk(), step.class());
        Self { id, run, environment, guest, step, impact, risk, class, position, plan, source }
    }

    /// Whether it reads back unchanged; a store refuses an operation that it could not return as it was.
    ///
    /// The planner makes only storable operations. This check covers operations built by hand, and it does not allocate.
    #[must_use]
    pub fn is_storable(&self) -> bool {
        self.guest.identity.as_ref().is_none_or(|identity| marks_fit(self.guest.kind, identity))
            && change_fits(&self.step.change)
            && reason_fits(&self.step.reason)
    }
}

/// Birth marks have one letter case, are not blank, and fit into the largest integer of an artifact.
fn marks_fit(kind: GuestKind, identity: &GuestIdentity) -> bool {
    let is_word = |mark: &Option<Box<str>>| mark.as_deref().is_none_or(|mark| !mark.trim().is_empty());
    match identity {
        GuestIdentity::Qemu { uuid, ctime } => {
            let lower = uuid.as_deref().is_none_or(|uuid| !uuid.bytes().any(|byte| byte.is_ascii_uppercase()));
            kind == GuestKind::Qemu && lower && is_word(uuid) && ctime.is_none_or(|ctime| ctime <= INTEGER_MAX)
        }
        GuestIdentity::Lxc { rootfs, mac } => {
            let upper = mac.as_deref().is_none_or(|mac| !mac.bytes().any(|byte| byte.is_ascii_lowercase()));
            kind == GuestKind::Lxc && upper && is_word(rootfs) && is_word(mac)
        }
    }
}

fn change_fits(change: &Change) -> bool {
    match change {
        Change::ConfigSet(fields) => fields.is_sorted_by(|left, right| left.field < right.field) && fields.iter().all(field_fits),
        Change::Clone(clone) => marks_fit(clone.source.kind, &clone.source.identity),
        Change::SnapshotDelete(snapshot) => snapshot.made_at <= INTEGER_MAX,
        Change::SnapshotRollback(rollback) => rollback.snapshot.made_at <= INTEGER_MAX,
        Change::DiskGrow(growth) => growth.after.kib() <= INTEGER_MAX && growth.before.kib() <= INTEGER_MAX,
        Change::Provision(provisioning) => {
            let fields = &provisioning.fields;
            fields.is_sorted_by(|left, right| left.field < right.field)
                && fields.iter().all(|setting| setting.wanted.as_ref().is_none_or(|value| value_fits(setting.field, value)))
        }
        Change::Start | Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. } | Change::SnapshotCreate(_) | Change::Migrate(_) => {
            true
        }
    }
}

/// A restart reason has the values of all its fields or of none.
fn reason_fits(reason: &StepReason) -> bool {
    let StepReason::RestartForConfig(fields) = reason else { return true };
    let known = fields.iter().filter(|restart_field| restart_field.value.is_some()).count();
    let is_whole = known == 0 || known == fields.len();
    let values = fields.iter().filter_map(|restart_field| Some((restart_field.field, restart_field.value.as_ref()?.as_ref()?)));
    is_whole
        && fields.is_sorted_by(|left, right| left.field < right.field)
        && values.into_iter().all(|(field, value)| value_fits(field, value))
}

fn field_fits(change: &FieldChange) -> bool {
    let values = [change.before.as_ref(), change.after.as_ref(), change.pending.as_ref().and_then(Option::as_ref)];
    values.into_iter().flatten().all(|value| value_fits(change.field, value))
}

/// A value has the shape of its field; the decoder relies on it to distinguish types.
fn value_fits(field: Field, value: &FieldValue) -> bool {
    value.shape() == field.shape() && !matches!(value, FieldValue::Text(text) if text.trim_end() != &**text)
}
