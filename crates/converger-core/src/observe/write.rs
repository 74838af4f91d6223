//! A reading as canonical JSON: whole for current.json, and its in-scope rows for the digest.
//!
//! Fields stand in the order of their names; what was not read is left out.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{Config, Ha, Observation, ObservedGuest, Pending, Reading, SCHEMA, Status, TagCase};
use crate::guest::NodeName;
use crate::normalize::Field;

/// The part of a reading that a plan may depend on: who read it, and when, is outside.
pub struct InScope<'o>(pub &'o Observation);

impl Serialize for Observation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("complete", &self.complete)?;
        map.serialize_entry("environment", &self.environment)?;
        map.serialize_entry("guests", &Guests(self, Part::Whole))?;
        map.serialize_entry("nodes", &Nodes(self, Part::Whole))?;
        if !self.notes.is_empty() {
            map.serialize_entry("notes", &self.notes)?;
        }
        map.serialize_entry("quorate", &self.quorate)?;
        map.serialize_entry("schema", SCHEMA)?;
        if let Some(source) = &self.source {
            map.serialize_entry("source", source)?;
        }
        entry_some(&mut map, "tag_case", self.tag_case.map(TagCase::word).as_ref())?;
        if let Some(taken_at) = &self.taken_at {
            map.serialize_entry("taken_at", taken_at)?;
        }
        unlisted(&mut map, self)?;
        if self.unmanaged > 0 {
            map.serialize_entry("unmanaged", &self.unmanaged)?;
        }
        map.end()
    }
}

impl Serialize for InScope<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("complete", &self.0.complete)?;
        map.serialize_entry("environment", &self.0.environment)?;
        map.serialize_entry("guests", &Guests(self.0, Part::InScope))?;
        map.serialize_entry("nodes", &Nodes(self.0, Part::InScope))?;
        map.serialize_entry("quorate", &self.0.quorate)?;
        map.serialize_entry("schema", SCHEMA)?;
        entry_some(&mut map, "tag_case", self.0.tag_case.map(TagCase::word).as_ref())?;
        unlisted(&mut map, self.0)?;
        map.end()
    }
}

fn unlisted<M: SerializeMap>(map: &mut M, observation: &Observation) -> Result<(), M::Error> {
    if observation.unlisted.is_empty() { Ok(()) } else { map.serialize_entry("unlisted", &observation.unlisted) }
}

/// How much of a reading is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// Only what a plan may depend on: nodes that a guest in scope is on, and not who read a row.
    InScope,
}

struct Nodes<'o>(&'o Observation, Part);

#[derive(Serialize)]
struct NodeRow<'o> {
    name: &'o NodeName,
    online: bool,
}

impl Serialize for Nodes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(observation, which) = self;
        let mut used = vec![*which == Part::Whole; observation.nodes.len()];
        for guest in &observation.guests {
            if let Some(mark) = used.get_mut(guest.node) {
                *mark = true;
            }
        }
        let mut rows: Vec<NodeRow<'_>> = observation
            .nodes
            .iter()
            .zip(used)
            .filter(|(_, used)| *used)
            .map(|(node, _)| NodeRow { name: &node.name, online: node.online })
            .collect();
        rows.sort_by_key(|row| row.name);
        serializer.collect_seq(rows)
    }
}

struct Guests<'o>(&'o Observation, Part);

impl Serialize for Guests<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.guests.iter().map(|guest| Row(self.0, guest, self.1)))
    }
}

struct Row<'o>(&'o Observation, &'o ObservedGuest, Part);

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(observation, guest, part) = self;
        let mut map = serializer.serialize_map(None)?;
        if let Status::Unknown(Some(cause)) = &guest.status {
            map.serialize_entry("cause", cause)?;
        }
        entry_read(&mut map, "config", &guest.config)?;
        entry_some(&mut map, "cpus", guest.cpus.as_ref())?;
        entry_some(&mut map, "digest", guest.digest.as_ref())?;
        entry_read(&mut map, "ha", &guest.ha)?;
        entry_read(&mut map, "identity", &guest.identity)?;
        map.serialize_entry("kind", &guest.kind)?;
        entry_read(&mut map, "lock", &guest.lock)?;
        // Most rows have none, and none read is none that counts.
        entry_some(&mut map, "macs", Some(&guest.macs).filter(|macs| !macs.is_empty()))?;
        entry_some(&mut map, "maxmem", guest.maxmem.as_ref())?;
        entry_some(&mut map, "name", guest.name.as_ref())?;
        map.serialize_entry("node", &observation.node_of(guest).map(|node| &node.name))?;
        let strange = guest.config.as_ref().read().map(Config::all_not_understood).filter(|keys| !keys.is_empty());
        entry_some(&mut map, "not_understood", strange.map(NotUnderstood).as_ref())?;
        entry_read(&mut map, "pending", &guest.pending)?;
        entry_read(&mut map, "protection", &guest.protection)?;
        entry_some(&mut map, "run_state", guest.run_state.as_ref())?;
        // Who read a row is outside of what a plan may depend on (G7).
        entry_some(&mut map, "source", guest.source.as_ref().filter(|_| *part == Part::Whole))?;
        map.serialize_entry("status", status_word(&guest.status))?;
        entry_read(&mut map, "tags", &guest.tags)?;
        entry_read(&mut map, "template", &guest.template)?;
        map.serialize_entry("vmid", &guest.vmid)?;
        map.end()
    }
}

fn entry_read<M: SerializeMap, T: Serialize>(map: &mut M, key: &str, reading: &Reading<T>) -> Result<(), M::Error> {
    entry_some(map, key, reading.as_ref().read())
}

fn entry_some<M: SerializeMap, T: Serialize>(map: &mut M, key: &str, value: Option<&T>) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(key, value))
}

fn status_word(status: &Status) -> &'static str {
    match status {
        Status::Known(state) => state.word(),
        Status::Unknown(_) => "unknown",
    }
}

impl Serialize for Ha {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.state.iter().map(|state| ("state", state)))
    }
}

impl Serialize for Config {
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

impl Serialize for Pending {
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
