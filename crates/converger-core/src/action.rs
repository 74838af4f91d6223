//! The closed set of changes to a guest, and the catalogue that classifies them.
//!
//! There is no raw endpoint, replace, create or delete: a change that is not in this enum cannot be planned.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::guest::RunState;
use crate::normalize::{ChangeEffect, Field, FieldValue};

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
    /// Nothing is interrupted, and the step can be undone.
    Benign,
    /// Something is interrupted.
    Disruptive,
    /// Something may be lost permanently.
    Destructive,
}

/// One row of the catalogue, with lower bounds for its classification.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Action {
    /// The name of the action.
    pub action: &'static str,
    /// The word of its change.
    pub change: &'static str,
    /// The lower bound of its class.
    pub class: ChangeClass,
    /// The lower bound of its impact.
    pub impact: Impact,
    /// The lower bound of its risk.
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
    /// Its row in the catalogue.
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

    /// Its name in artifacts.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.action().change
    }

    /// The run-state after it, if it changes the run-state.
    #[must_use]
    pub fn resulting_state(&self) -> Option<RunState> {
        match self {
            Self::ConfigSet(_) => None,
            Self::Start | Self::Reboot { .. } => Some(RunState::Running),
            Self::Shutdown { .. } | Self::Stop => Some(RunState::Stopped),
        }
    }
}

/// The change that undoes another one, if any does.
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
            // A reboot cannot be undone by a change.
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
