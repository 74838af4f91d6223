//! Writes an observation as canonical JSON: completely for current.json, and the rows in scope for the digest.
//!
//! Members are sorted by name; values that were not read are omitted.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{EffectiveValues, HaState, Observation, ObservedGuest, ObservedNode, ObservedStatus, PendingChange, Reading, SCHEMA, TagCase};
use crate::normalize::Field;

/// The part of an observation that a plan may depend on. It excludes who took the observation, and when.
pub struct PlanView<'o>(pub &'o Observation);

impl Serialize for Observation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("complete", &self.complete)?;
        map.serialize_entry("environment", &self.environment)?;
        map.serialize_entry("guests", &GuestRows(self, WrittenPart::Whole))?;
        map.serialize_entry("nodes", &NodeRows(self, WrittenPart::Whole))?;
        if !self.notes.is_empty() {
            map.serialize_entry("notes", &self.notes)?;
        }
        map.serialize_entry("quorate", &self.quorate)?;
        map.serialize_entry("schema", SCHEMA)?;
        if let Some(source) = &self.source {
            map.serialize_entry("source", source)?;
        }
        write_option(&mut map, "tag_case", self.tag_case.map(TagCase::word).as_ref())?;
        if let Some(taken_at) = &self.taken_at {
            map.serialize_entry("taken_at", taken_at)?;
        }
        write_unlisted(&mut map, self)?;
        if self.unmanaged > 0 {
            map.serialize_entry("unmanaged", &self.unmanaged)?;
        }
        map.end()
    }
}

impl Serialize for PlanView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("complete", &self.0.complete)?;
        map.serialize_entry("environment", &self.0.environment)?;
        map.serialize_entry("guests", &GuestRows(self.0, WrittenPart::InScope))?;
        map.serialize_entry("nodes", &NodeRows(self.0, WrittenPart::InScope))?;
        map.serialize_entry("quorate", &self.0.quorate)?;
        map.serialize_entry("schema", SCHEMA)?;
        write_option(&mut map, "tag_case", self.0.tag_case.map(TagCase::word).as_ref())?;
        write_unlisted(&mut map, self.0)?;
        map.end()
    }
}

fn write_unlisted<M: SerializeMap>(map: &mut M, observation: &Observation) -> Result<(), M::Error> {
    if observation.unlisted.is_empty() { Ok(()) } else { map.serialize_entry("unlisted", &observation.unlisted) }
}

/// How much of an observation is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WrittenPart {
    Whole,
    /// Only what a plan may depend on: nodes that have a guest in scope or whose capacity or storages were read, and not who read a row.
    InScope,
}

struct NodeRows<'o>(&'o Observation, WrittenPart);

impl Serialize for NodeRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(observation, which) = self;
        let is_always_used = |node: &ObservedNode| *which == WrittenPart::Whole || node.has_extra_readings();
        let mut used: Vec<bool> = observation.nodes.iter().map(is_always_used).collect();
        for guest in &observation.guests {
            if let Some(mark) = used.get_mut(guest.node) {
                *mark = true;
            }
        }
        let mut rows: Vec<&ObservedNode> = observation.nodes.iter().zip(used).filter(|(_, used)| *used).map(|(node, _)| node).collect();
        rows.sort_by_key(|node| &node.name);
        serializer.collect_seq(rows)
    }
}

impl Serialize for ObservedNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        write_reading(&mut map, "capacity", &self.capacity)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("online", &self.online)?;
        write_reading(&mut map, "storages", &self.storages)?;
        map.end()
    }
}

struct GuestRows<'o>(&'o Observation, WrittenPart);

impl Serialize for GuestRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.guests.iter().map(|guest| ObservedGuestRow(self.0, guest, self.1)))
    }
}

struct ObservedGuestRow<'o>(&'o Observation, &'o ObservedGuest, WrittenPart);

impl Serialize for ObservedGuestRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(observation, guest, part) = self;
        let mut map = serializer.serialize_map(None)?;
        if let ObservedStatus::Unknown(Some(cause)) = &guest.status {
            map.serialize_entry("cause", cause)?;
        }
        write_reading(&mut map, "config", &guest.config)?;
        write_option(&mut map, "cpus", guest.cpus.as_ref())?;
        write_option(&mut map, "digest", guest.digest.as_ref())?;
        write_reading(&mut map, "ha", &guest.ha)?;
        write_option(&mut map, "hardware", guest.hardware().into_option())?;
        write_reading(&mut map, "identity", &guest.identity)?;
        map.serialize_entry("kind", &guest.kind)?;
        write_reading(&mut map, "lock", &guest.lock)?;
        // Most rows have no addresses, and unread is the same as none here.
        write_option(&mut map, "macs", Some(&guest.macs).filter(|macs| !macs.is_empty()))?;
        write_option(&mut map, "maxmem", guest.maxmem.as_ref())?;
        write_option(&mut map, "name", guest.name.as_ref())?;
        map.serialize_entry("node", &observation.node_of(guest).map(|node| &node.name))?;
        let not_understood = guest.config.as_ref().into_option().map(EffectiveValues::all_not_understood).filter(|keys| !keys.is_empty());
        write_option(&mut map, "not_understood", not_understood.map(NotUnderstood).as_ref())?;
        write_reading(&mut map, "pending", &guest.pending)?;
        write_reading(&mut map, "protection", &guest.protection)?;
        write_option(&mut map, "replicated", guest.replicated().into_option().as_ref())?;
        write_option(&mut map, "run_state", guest.run_state.as_ref())?;
        write_option(&mut map, "snapshots", guest.snapshots().into_option())?;
        // A plan must not depend on who read a row (G7).
        write_option(&mut map, "source", guest.source.as_ref().filter(|_| *part == WrittenPart::Whole))?;
        map.serialize_entry("status", status_word(&guest.status))?;
        write_reading(&mut map, "tags", &guest.tags)?;
        write_reading(&mut map, "template", &guest.template)?;
        map.serialize_entry("vmid", &guest.vmid)?;
        map.end()
    }
}

fn write_reading<M: SerializeMap, T: Serialize>(map: &mut M, key: &str, reading: &Reading<T>) -> Result<(), M::Error> {
    write_option(map, key, reading.as_ref().into_option())
}

fn write_option<M: SerializeMap, T: Serialize>(map: &mut M, key: &str, value: Option<&T>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(key, value))
}

fn status_word(status: &ObservedStatus) -> &'static str {
    match status {
        ObservedStatus::Known(state) => state.word(),
        ObservedStatus::Unknown(_) => "unknown",
    }
}

impl Serialize for HaState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.state.iter().map(|state| ("state", state)))
    }
}

impl Serialize for EffectiveValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.values.iter().map(|(field, value)| (field.word(), value)))
    }
}

/// Keys whose values are not understood, with their texts.
struct NotUnderstood<'o>(&'o [(Field, Box<str>)]);

impl Serialize for NotUnderstood<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(field, text)| (field.word(), text)))
    }
}

impl Serialize for PendingChange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self {
            Self::Known(field, None) => {
                map.serialize_entry("delete", &true)?;
                map.serialize_entry("key", field.word())?;
            }
            Self::Known(field, Some(value)) => {
                map.serialize_entry("key", field.word())?;
                map.serialize_entry("value", value)?;
            }
            Self::Other(key) => map.serialize_entry("key", key)?,
        }
        map.end()
    }
}
