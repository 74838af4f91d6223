//! The closed set of changes to a guest, and the catalogue that classifies them.
//!
//! There is no raw endpoint, replace or delete: a change that is not in this enum cannot be planned.

mod changes;
mod provisioning;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::guest::{RunState, Vmid};
use crate::normalize::{ChangeEffect, Field, FieldValue};

pub(crate) use changes::BirthMarksRow;
pub use changes::{
    CloneSource, ClonedDisks, DiskGrowth, ExistingSnapshot, GuestClone, Migration, MigrationMode, NewSnapshot, SnapshotRollback,
};
pub use provisioning::Provisioning;

/// One primitive change of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes config keys, in field order.
    ConfigSet(Box<[FieldChange]>),
    /// Starts the guest.
    Start,
    /// Shuts the guest down gracefully; a timeout never leads to a hard stop.
    Shutdown {
        /// Maximal duration in seconds.
        timeout_secs: u32,
    },
    /// Stops the guest at once, as if its power were cut.
    Stop,
    /// Shuts the guest down gracefully and starts it again, so that pending config takes effect.
    Reboot {
        /// Maximal duration of the shutdown in seconds.
        timeout_secs: u32,
    },
    /// Makes a snapshot.
    SnapshotCreate(Box<NewSnapshot>),
    /// Deletes a snapshot.
    SnapshotDelete(Box<ExistingSnapshot>),
    /// Replaces config and disks of the guest by those of a snapshot.
    SnapshotRollback(Box<SnapshotRollback>),
    /// Grows a disk.
    DiskGrow(Box<DiskGrowth>),
    /// Moves the guest to another node.
    Migrate(Box<Migration>),
    /// Makes the guest, as a clone of another one.
    Clone(Box<GuestClone>),
    /// Writes the attributes of a guest that was just made, once.
    Provision(Box<Provisioning>),
}

/// One config key in a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// The key.
    pub field: Field,
    /// The effective value before; `None` if the key is absent.
    pub before: Option<FieldValue>,
    /// The written value; `None` if the key is removed.
    pub after: Option<FieldValue>,
    /// A pending value of another client that this write replaces; `Some(None)` is a removal.
    pub pending: Option<Option<FieldValue>>,
    /// When the write takes effect.
    pub effect: ChangeEffect,
}

/// What a step does to the guest while it is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Impact {
    /// Nothing that runs is affected.
    None,
    /// Something changes inside the running guest without interrupting it.
    Reload,
    /// It goes down and comes up again.
    Reboot,
    /// It goes down.
    Stop,
    /// Data is lost.
    DataLoss,
}

/// How much can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Risk {
    Low,
    Medium,
    High,
}

/// Whether a step interrupts or loses anything, and whether it can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeClass {
    /// Nothing is interrupted, and nothing that exists is changed for good.
    Benign,
    /// Something is interrupted, or the step cannot be undone.
    Disruptive,
    /// Something may be lost permanently.
    Destructive,
}

/// One row of the catalogue, with lower bounds for its classification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Action {
    /// The name of the action.
    pub action: &'static str,
    /// The approvals that it needs in a shared environment.
    pub approvals: ApprovalNeed,
    /// The word of its change.
    pub change: &'static str,
    /// The lower bound of its class.
    pub class: ChangeClass,
    /// The lower bound of its impact.
    pub impact: Impact,
    /// The lower bound of its risk.
    pub risk: Risk,
}

/// The approvals that an action needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApprovalNeed {
    /// None beyond the confirmation of the requester.
    None,
    /// One person.
    One,
    /// One person, with a signature.
    OneSigned,
}

impl Action {
    /// The word of the change that undoes it, if one does. Nothing takes back a reboot, a rollback, a deletion, a growth or a new guest.
    #[must_use]
    pub fn undo(&self) -> Option<&'static str> {
        match self.change {
            "config.set" => Some("config.set"),
            "migrate" => Some("migrate"),
            "shutdown" | "stop" => Some("start"),
            "snapshot.create" => Some("snapshot.delete"),
            "start" => Some("shutdown"),
            _ => None,
        }
    }
}

impl ApprovalNeed {
    /// What it asks for, for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::One => "1",
            Self::OneSigned => "1, signed",
        }
    }
}

const fn action_row(
    action: &'static str,
    change: &'static str,
    class: ChangeClass,
    impact: Impact,
    risk: Risk,
    approvals: ApprovalNeed,
) -> Action {
    Action { action, approvals, change, class, impact, risk }
}

/// The catalogue, sorted by name. A plan binds the rows of the changes that it uses.
pub static CATALOGUE: [Action; 12] = {
    use ApprovalNeed as Need;
    use ChangeClass::{Benign, Destructive, Disruptive};
    use Risk::{High, Low, Medium};
    [
        action_row("vm.clone", "clone", Benign, Impact::None, Medium, Need::None),
        action_row("vm.clone.provision", "provision", Disruptive, Impact::None, Medium, Need::One),
        action_row("vm.config.set", "config.set", Benign, Impact::None, Low, Need::None),
        action_row("vm.disk.grow", "disk.grow", Disruptive, Impact::None, Medium, Need::One),
        action_row("vm.migrate", "migrate", Disruptive, Impact::Reload, High, Need::One),
        action_row("vm.reboot", "reboot", Disruptive, Impact::Reboot, Medium, Need::One),
        action_row("vm.shutdown", "shutdown", Disruptive, Impact::Stop, Medium, Need::One),
        action_row("vm.snapshot.create", "snapshot.create", Benign, Impact::None, Medium, Need::None),
        action_row("vm.snapshot.delete", "snapshot.delete", Destructive, Impact::None, High, Need::OneSigned),
        action_row("vm.snapshot.rollback", "snapshot.rollback", Destructive, Impact::DataLoss, High, Need::OneSigned),
        action_row("vm.start", "start", Benign, Impact::None, Medium, Need::None),
        action_row("vm.stop", "stop", Disruptive, Impact::Stop, Medium, Need::One),
    ]
};

impl Change {
    /// Its row in the catalogue.
    #[must_use]
    pub fn action(&self) -> &'static Action {
        let [clone, provision, config_set, disk_grow, migrate, reboot, shutdown, create, delete, rollback, start, stop] = &CATALOGUE;
        match self {
            Self::Clone(_) => clone,
            Self::ConfigSet(_) => config_set,
            Self::DiskGrow(_) => disk_grow,
            Self::Provision(_) => provision,
            Self::Migrate(_) => migrate,
            Self::Reboot { .. } => reboot,
            Self::Shutdown { .. } => shutdown,
            Self::SnapshotCreate(_) => create,
            Self::SnapshotDelete(_) => delete,
            Self::SnapshotRollback(_) => rollback,
            Self::Start => start,
            Self::Stop => stop,
        }
    }

    /// Its name in artifacts.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.action().change
    }

    /// The run-state after it, if it changes the run-state.
    #[must_use]
    pub fn resulting_state(&self) -> Option<RunState> {
        match self {
            Self::Start | Self::Reboot { .. } => Some(RunState::Running),
            Self::Shutdown { .. } | Self::Stop => Some(RunState::Stopped),
            Self::SnapshotRollback(rollback) => Some(rollback.state),
            Self::ConfigSet(_)
            | Self::SnapshotCreate(_)
            | Self::SnapshotDelete(_)
            | Self::DiskGrow(_)
            | Self::Migrate(_)
            | Self::Clone(_)
            | Self::Provision(_) => None,
        }
    }

    /// Whether high availability must not own the guest: the change starts, stops or moves it.
    #[must_use]
    pub fn affects_availability(&self) -> bool {
        self.resulting_state().is_some() || matches!(self, Self::Migrate(_))
    }

    /// Whether Proxmox may apply pending config with it.
    #[must_use]
    pub fn may_apply_pending(&self) -> bool {
        !matches!(self, Self::SnapshotCreate(_) | Self::SnapshotDelete(_) | Self::DiskGrow(_) | Self::Clone(_))
    }

    /// A second guest that the change works on, which no other operation may change meanwhile: the source of a clone.
    #[must_use]
    pub fn second_guest(&self) -> Option<Vmid> {
        match self {
            Self::Clone(clone) => Some(clone.source.vmid),
            _ => None,
        }
    }

    /// Whether it has parameters beyond fields or a timeout.
    fn has_params(&self) -> bool {
        !matches!(self, Self::ConfigSet(_) | Self::Start | Self::Shutdown { .. } | Self::Stop | Self::Reboot { .. })
    }

    /// The change with this word and these parameters, as [`ChangeParams`] writes them.
    pub(crate) fn from_params(word: &str, params: serde_json::Value) -> Option<Self> {
        use serde_json::from_value;
        match word {
            "snapshot.create" => from_value(params).ok().map(Self::SnapshotCreate),
            "snapshot.delete" => from_value(params).ok().map(Self::SnapshotDelete),
            "snapshot.rollback" => from_value(params).ok().map(Self::SnapshotRollback),
            "disk.grow" => from_value(params).ok().map(Self::DiskGrow),
            "migrate" => from_value(params).ok().map(Self::Migrate),
            "clone" => from_value(params).ok().map(Self::Clone),
            "provision" => from_value(params).ok().map(Self::Provision),
            _ => None,
        }
    }
}

/// The parameters of a change in artifacts; `None` if it has none beyond fields or a timeout.
pub(crate) struct ChangeParams<'c>(&'c Change);

impl<'c> ChangeParams<'c> {
    pub(crate) fn of(change: &'c Change) -> Option<Self> {
        change.has_params().then_some(Self(change))
    }
}

impl Serialize for ChangeParams<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Change::SnapshotCreate(new) => new.serialize(serializer),
            Change::SnapshotDelete(snapshot) => snapshot.serialize(serializer),
            Change::SnapshotRollback(rollback) => rollback.serialize(serializer),
            Change::DiskGrow(growth) => growth.serialize(serializer),
            Change::Migrate(migration) => migration.serialize(serializer),
            Change::Clone(clone) => clone.serialize(serializer),
            Change::Provision(provisioning) => provisioning.serialize(serializer),
            Change::ConfigSet(_) | Change::Start | Change::Shutdown { .. } | Change::Stop | Change::Reboot { .. } => {
                serializer.serialize_none()
            }
        }
    }
}

/// The change that undoes another one, if any does.
pub struct InverseChange<'c>(pub &'c Change);

impl Serialize for InverseChange<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut undo = serializer.serialize_map(None)?;
        if let Some(change) = self.0.action().undo() {
            undo.serialize_entry("change", change)?;
        }
        match self.0 {
            Change::ConfigSet(fields) => undo.serialize_entry("fields", &ValuesBefore(fields))?,
            Change::SnapshotCreate(new) => undo.serialize_entry("snapshot", &new.name)?,
            Change::Migrate(migration) => undo.serialize_entry("to", &migration.from)?,
            _ => {}
        }
        undo.end()
    }
}

struct ValuesBefore<'c>(&'c [FieldChange]);

impl Serialize for ValuesBefore<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|change| (change.field.word(), &change.before)))
    }
}

/// The fields of a config write, for artifacts.
pub struct FieldChanges<'c>(pub &'c [FieldChange]);

impl Serialize for FieldChanges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|change| (change.field.word(), change)))
    }
}

impl Serialize for FieldChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut change = serializer.serialize_map(None)?;
        change.serialize_entry("after", &self.after)?;
        change.serialize_entry("before", &self.before)?;
        change.serialize_entry("effect", self.effect.word())?;
        if let Some(pending) = &self.pending {
            change.serialize_entry("pending", pending)?;
        }
        change.end()
    }
}
