//! What can be done to a guest: a closed set of changes, and the catalogue that says what each amounts to.
//!
//! There is no raw endpoint, no replace, no create and no delete here: a change that is not in this enum cannot be
//! planned.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::guest::RunState;
use crate::normalize::{ChangeEffect, Field, FieldValue};

/// A primitive mutation of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Writes config keys, in the order of the fields.
    ConfigSet(Box<[FieldChange]>),
    /// Starts it.
    Start,
    /// Shuts it down gracefully; a timeout is never followed by a hard stop.
    Shutdown {
        /// Seconds that it may take.
        timeout_secs: u32,
    },
    /// Stops it at once, as if power were cut.
    Stop,
    /// Shuts it down gracefully and starts it again, by which pending config takes effect.
    Reboot {
        /// Seconds that the shutdown may take.
        timeout_secs: u32,
    },
}

/// One config key that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// The key.
    pub field: Field,
    /// The value in effect before; `None`: absent.
    pub before: Option<FieldValue>,
    /// The value that is written; `None`: the key is removed.
    pub after: Option<FieldValue>,
    /// A value of somebody else that waits for the next start and is replaced by this write; `Some(None)`: a removal.
    pub pending: Option<Option<FieldValue>>,
    /// When it takes effect.
    pub effect: ChangeEffect,
}

/// What a step does to the guest while it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Impact {
    /// Nothing that runs is touched.
    None,
    /// Something changes inside the running guest, without interrupting it.
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

/// What a step amounts to: whether data is touched, and whether it can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeClass {
    /// Nothing is interrupted, and it can be undone.
    Benign,
    /// Something is interrupted.
    Disruptive,
    /// Something may be lost for good.
    Destructive,
}

/// One line of the catalogue: the least that an action amounts to.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Action {
    /// The name of the action.
    pub action: &'static str,
    /// The word of its change.
    pub change: &'static str,
    /// The class of it, at least.
    pub class: ChangeClass,
    /// The impact of it, at least.
    pub impact: Impact,
    /// The risk of it, at least.
    pub risk: Risk,
}

/// The catalogue. Its digest is part of every plan.
pub static CATALOGUE: [Action; 5] = [
    Action { action: "vm.config.set", change: "config.set", class: ChangeClass::Benign, impact: Impact::None, risk: Risk::Low },
    Action { action: "vm.reboot", change: "reboot", class: ChangeClass::Disruptive, impact: Impact::Reboot, risk: Risk::Medium },
    Action { action: "vm.shutdown", change: "shutdown", class: ChangeClass::Disruptive, impact: Impact::Stop, risk: Risk::Medium },
    Action { action: "vm.start", change: "start", class: ChangeClass::Benign, impact: Impact::None, risk: Risk::Medium },
    Action { action: "vm.stop", change: "stop", class: ChangeClass::Disruptive, impact: Impact::Stop, risk: Risk::Medium },
];

impl Change {
    /// Its line in the catalogue.
    #[must_use]
    pub fn action(&self) -> &'static Action {
        let [config_set, reboot, shutdown, start, stop] = &CATALOGUE;
        match self {
            Self::ConfigSet(_) => config_set,
            Self::Reboot { .. } => reboot,
            Self::Shutdown { .. } => shutdown,
            Self::Start => start,
            Self::Stop => stop,
        }
    }

    /// The word for it in artifacts.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.action().change
    }

    /// The run-state that it leads to, if it changes it.
    #[must_use]
    pub fn resulting_state(&self) -> Option<RunState> {
        match self {
            Self::ConfigSet(_) => None,
            Self::Start | Self::Reboot { .. } => Some(RunState::Running),
            Self::Shutdown { .. } | Self::Stop => Some(RunState::Stopped),
        }
    }
}

/// What undoes a change, as far as anything does.
pub struct InverseChange<'c>(pub &'c Change);

impl Serialize for InverseChange<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut undo = serializer.serialize_map(None)?;
        match self.0 {
            Change::ConfigSet(fields) => {
                undo.serialize_entry("change", "config.set")?;
                undo.serialize_entry("fields", &ValuesBefore(fields))?;
            }
            Change::Start => undo.serialize_entry("change", "shutdown")?,
            Change::Shutdown { .. } | Change::Stop => undo.serialize_entry("change", "start")?,
            // A reboot leaves nothing to be undone by a change.
            Change::Reboot { .. } => {}
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
