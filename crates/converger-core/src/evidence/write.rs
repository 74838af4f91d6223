//! Entries as canonical JSON: members in the order of their names, integers only.

use std::io;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{ENTRY_BYTES_MAX, ENTRY_SCHEMA, Entry};
use crate::apply::Record;

/// The stored form of an entry, one line of canonical JSON.
///
/// # Errors
/// A value that cannot be written as JSON; none of ours is one.
pub fn write_entry(entry: &Entry) -> io::Result<Vec<u8>> {
    serde_json::to_vec(entry).map_err(io::Error::from)
}

/// The same, where it is short enough to be kept. What others said is bounded wherever evidence is made, so that only what a person said can be
/// too long.
///
/// # Errors
/// A value that cannot be written as JSON; none of ours is one.
pub fn write_fitting(entry: &Entry) -> io::Result<Option<Vec<u8>>> {
    Ok(Some(write_entry(entry)?).filter(|bytes| bytes.len() <= ENTRY_BYTES_MAX))
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("at_ms", &self.at_ms())?;
        map.serialize_entry("kind", self.kind())?;
        map.serialize_entry("schema", ENTRY_SCHEMA)?;
        map.serialize_entry("what", &What(self))?;
        map.end()
    }
}

/// What an entry of its kind says.
struct What<'e>(&'e Entry);

impl Serialize for What<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.0 {
            Entry::Key { verifier, .. } => map.serialize_entry("verifier", verifier)?,
            Entry::RunStarted { run, inputs } => {
                if let Some(boot) = &run.boot {
                    map.serialize_entry("boot", boot)?;
                }
                map.serialize_entry("by", &run.by)?;
                map.serialize_entry("catalogue", &inputs.catalogue)?;
                map.serialize_entry("config", &inputs.config)?;
                map.serialize_entry("desired", &inputs.desired)?;
                map.serialize_entry("environment", &run.environment)?;
                map.serialize_entry("observation", &inputs.observation)?;
                map.serialize_entry("plan", &run.plan)?;
                map.serialize_entry("planner", &inputs.planner)?;
                map.serialize_entry("program", &inputs.program)?;
                map.serialize_entry("rules", &inputs.rules)?;
                map.serialize_entry("run", &run.id)?;
            }
            Entry::PlanMade { run, plan, judgement, .. } => {
                map.serialize_entry("judgement", judgement)?;
                map.serialize_entry("plan", plan)?;
                map.serialize_entry("run", run)?;
            }
            Entry::Refused { run, guest, stage, code, evidence, .. } => {
                map.serialize_entry("code", code)?;
                map.serialize_entry("evidence", evidence)?;
                if let Some(guest) = guest {
                    map.serialize_entry("guest", guest)?;
                }
                map.serialize_entry("run", run)?;
                map.serialize_entry("stage", stage)?;
            }
            Entry::Approved { run, plan, by, how, names, .. } => {
                map.serialize_entry("by", by)?;
                map.serialize_entry("how", how)?;
                map.serialize_entry("names", names)?;
                map.serialize_entry("plan", plan)?;
                map.serialize_entry("run", run)?;
            }
            Entry::Admitted { run, plan, bundle, answer, .. } => {
                map.serialize_entry("answer", answer)?;
                map.serialize_entry("bundle", bundle)?;
                map.serialize_entry("plan", plan)?;
                map.serialize_entry("run", run)?;
            }
            Entry::Record(record) => record_members(&mut map, record)?,
            other => people_members(&mut map, other)?,
        }
        map.end()
    }
}

fn record_members<M: SerializeMap>(map: &mut M, record: &Record) -> Result<(), M::Error> {
    match record {
        Record::Intent { operation, .. } => map.serialize_entry("operation", operation),
        Record::Sending { id, up_ms, .. } => {
            map.serialize_entry("id", id)?;
            map.serialize_entry("up_ms", up_ms)
        }
        Record::Tasked { id, task, .. } => {
            map.serialize_entry("id", id)?;
            map.serialize_entry("task", task)
        }
        Record::Ended { id, outcome, .. } => {
            map.serialize_entry("id", id)?;
            map.serialize_entry("outcome", outcome)
        }
        Record::Resolved { id, resolution, by, reason, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("id", id)?;
            map.serialize_entry("reason", reason)?;
            map.serialize_entry("resolution", resolution.word())
        }
    }
}

/// What people said, and what a run says about itself.
fn people_members<M: SerializeMap>(map: &mut M, entry: &Entry) -> Result<(), M::Error> {
    match entry {
        Entry::Recovery { environment, operations, .. } => {
            map.serialize_entry("environment", environment)?;
            map.serialize_entry("operations", operations)
        }
        Entry::RunEnded { run, end, .. } => {
            map.serialize_entry("end", end.word())?;
            map.serialize_entry("run", run)
        }
        Entry::Hold(hold) => {
            map.serialize_entry("by", &hold.by)?;
            map.serialize_entry("environment", &hold.environment)?;
            map.serialize_entry("guest", &hold.vmid)?;
            map.serialize_entry("reason", &hold.reason)
        }
        Entry::Release { environment, guest, by, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("environment", environment)?;
            map.serialize_entry("guest", guest)
        }
        Entry::Freeze(freeze) => {
            map.serialize_entry("by", &freeze.by)?;
            map.serialize_entry("environment", &freeze.environment)?;
            map.serialize_entry("reason", &freeze.reason)
        }
        Entry::Thaw { environment, by, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("environment", environment)
        }
        Entry::Resync { by, reason, size, root, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("reason", reason)?;
            if let Some(root) = root {
                map.serialize_entry("root", root)?;
            }
            map.serialize_entry("size", size)
        }
        Entry::Rekeyed { verifier, previous, checkpoint, by, reason, .. } => {
            map.serialize_entry("by", by)?;
            if let Some(checkpoint) = checkpoint {
                map.serialize_entry("checkpoint", checkpoint)?;
            }
            map.serialize_entry("previous", previous)?;
            map.serialize_entry("reason", reason)?;
            map.serialize_entry("verifier", verifier)
        }
        Entry::Pruned { by, before_ms, digests, .. } => {
            map.serialize_entry("before_ms", before_ms)?;
            map.serialize_entry("by", by)?;
            map.serialize_entry("digests", digests)
        }
        Entry::Binding(binding) => {
            map.serialize_entry("by", &binding.by)?;
            map.serialize_entry("cluster", &binding.cluster)?;
            map.serialize_entry("environment", &binding.environment)
        }
        Entry::Rename(rename) => {
            map.serialize_entry("by", &rename.by)?;
            map.serialize_entry("environment", &rename.from)?;
            map.serialize_entry("reason", &rename.reason)?;
            map.serialize_entry("to", &rename.to)
        }
        // The others are written above.
        _ => Ok(()),
    }
}
