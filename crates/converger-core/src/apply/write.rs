//! Writes operations and outcomes as canonical JSON: members sorted by name, integers only.

use std::io;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::operation::{GuestGuards, Operation, OperationSource, OperationTarget};
use super::outcome::{Evidence, Fact, Outcome};
use super::{OPERATION_SCHEMA, OUTCOME_SCHEMA};
use crate::action::{Change, ChangeParams, FieldChanges};
use crate::plan::{RestartField, Step, StepReason};

/// The stored form of an operation: one line of canonical JSON.
///
/// # Errors
/// The value cannot be written as JSON, which does not happen for an operation.
pub fn write_operation(operation: &Operation) -> io::Result<Vec<u8>> {
    serde_json::to_vec(operation).map_err(io::Error::from)
}

/// The stored form of an outcome: one line of canonical JSON.
///
/// # Errors
/// The value cannot be written as JSON, which does not happen for an outcome.
pub fn write_outcome(outcome: &Outcome) -> io::Result<Vec<u8>> {
    serde_json::to_vec(outcome).map_err(io::Error::from)
}

impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("environment", &self.environment)?;
        map.serialize_entry("guest", &self.guest)?;
        map.serialize_entry("id", &self.id)?;
        map.serialize_entry("plan", &self.plan)?;
        map.serialize_entry("position", &self.position)?;
        map.serialize_entry("run", &self.run)?;
        map.serialize_entry("schema", OPERATION_SCHEMA)?;
        map.serialize_entry("source", &self.source)?;
        map.serialize_entry("step", &StoredStepRow(self))?;
        map.end()
    }
}

impl Serialize for OperationTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("guards", &self.guards)?;
        if let Some(identity) = &self.identity {
            map.serialize_entry("identity", identity)?;
        }
        map.serialize_entry("kind", &self.kind)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("node", &self.node)?;
        map.serialize_entry("vmid", &self.vmid)?;
        map.end()
    }
}

impl Serialize for GuestGuards {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ha", &self.ha)?;
        map.serialize_entry("lock", &self.lock)?;
        map.serialize_entry("protection", &self.protection)?;
        map.serialize_entry("tags", &self.tags)?;
        map.serialize_entry("template", &self.template)?;
        map.end()
    }
}

impl Serialize for OperationSource {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Convergent => map.serialize_entry("kind", "convergent")?,
            Self::OneShot { key, request } => {
                map.serialize_entry("key", key)?;
                map.serialize_entry("kind", "one-shot")?;
                map.serialize_entry("request", request)?;
            }
        }
        map.end()
    }
}

/// A step in a form that can be read back: its reason is a word instead of a sentence, and its classification is the one of plan time.
struct StoredStepRow<'o>(&'o Operation);

impl Serialize for StoredStepRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Operation { step, impact, risk, class, .. } = self.0;
        let Step { change, reason, from, wait } = step;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("change", change.word())?;
        map.serialize_entry("class", class)?;
        if let Change::ConfigSet(fields) = change {
            map.serialize_entry("fields", &FieldChanges(fields))?;
        }
        map.serialize_entry("from", from.word())?;
        map.serialize_entry("impact", impact)?;
        if let Some(params) = ChangeParams::of(change) {
            map.serialize_entry("params", &params)?;
        }
        map.serialize_entry("reason", reason_word(reason))?;
        if let StepReason::RestartForConfig(fields) = reason {
            map.serialize_entry("restart_for", &fields.iter().map(|restart_field| restart_field.field).collect::<Vec<_>>())?;
            if fields.iter().all(|restart_field| restart_field.value.is_some()) {
                map.serialize_entry("restart_to", &RestartValues(fields))?;
            }
        }
        map.serialize_entry("risk", risk)?;
        if let Change::Shutdown { timeout_secs } | Change::Reboot { timeout_secs } = change {
            map.serialize_entry("timeout_secs", timeout_secs)?;
        }
        map.serialize_entry("wait", wait)?;
        map.end()
    }
}

/// The values that a restart must bring into effect, by field.
struct RestartValues<'o>(&'o [RestartField]);

impl Serialize for RestartValues<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(
            self.0.iter().map(|restart_field| (restart_field.field.word(), restart_field.value.as_ref().and_then(Option::as_ref))),
        )
    }
}

/// The words for reasons, in the order of [`reason_word`]'s match.
pub(super) const REASON_WORDS: [&str; 5] = ["config-differs", "state-differs", "restart-for-config", "requested", "made-from-template"];

fn reason_word(reason: &StepReason) -> &'static str {
    let [config, state, restart, requested, made] = REASON_WORDS;
    match reason {
        StepReason::ConfigDiffers => config,
        StepReason::StateDiffers => state,
        StepReason::RestartForConfig(_) => restart,
        StepReason::Requested => requested,
        StepReason::MadeFromTemplate => made,
    }
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(code) = self.code() {
            map.serialize_entry("code", code)?;
        }
        map.serialize_entry("end", self.end().word())?;
        map.serialize_entry("evidence", &self.findings().evidence)?;
        map.serialize_entry("observed", &self.findings().observed)?;
        if let Self::Held { release, .. } = self {
            map.serialize_entry("release", release.word())?;
        }
        map.serialize_entry("schema", OUTCOME_SCHEMA)?;
        map.end()
    }
}

impl Serialize for Evidence {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl Serialize for Fact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Words(words) => serializer.collect_seq(words),
        }
    }
}
