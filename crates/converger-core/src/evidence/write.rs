//! Writes entries as canonical JSON: members sorted by name, integers only.

use std::io;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::{ENTRY_BYTES_MAX, ENTRY_SCHEMA, LedgerEntry};
use crate::apply::JournalRecord;

/// The stored form of an entry: one line of canonical JSON.
///
/// # Errors
/// The value cannot be written as JSON, which does not happen for an entry.
pub fn write_entry(entry: &LedgerEntry) -> io::Result<Vec<u8>> {
    serde_json::to_vec(entry).map_err(io::Error::from)
}

/// The stored form of an entry, or `None` if it is too long. Text of the environment is bounded where evidence is made, so only text of a
/// person can be too long.
///
/// # Errors
/// The value cannot be written as JSON, which does not happen for an entry.
pub fn write_bounded_entry(entry: &LedgerEntry) -> io::Result<Option<Vec<u8>>> {
    Ok(Some(write_entry(entry)?).filter(|bytes| bytes.len() <= ENTRY_BYTES_MAX))
}

impl Serialize for LedgerEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("at_ms", &self.at_ms())?;
        map.serialize_entry("kind", self.kind())?;
        map.serialize_entry("schema", ENTRY_SCHEMA)?;
        map.serialize_entry("what", &EntryBodyRow(self))?;
        map.end()
    }
}

/// The members of an entry that depend on its kind.
struct EntryBodyRow<'e>(&'e LedgerEntry);

impl Serialize for EntryBodyRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        match self.0 {
            LedgerEntry::Key { verifier, .. } => map.serialize_entry("verifier", verifier)?,
            LedgerEntry::RunStarted { run, inputs } => {
                if let Some(boot) = &run.boot {
                    map.serialize_entry("boot", boot)?;
                }
                map.serialize_entry("by", &run.by)?;
                map.serialize_entry("catalogue", &inputs.catalogue)?;
                map.serialize_entry("config", &inputs.config)?;
                map.serialize_entry("environment", &run.environment)?;
                map.serialize_entry("intent", &inputs.intent)?;
                map.serialize_entry("observation", &inputs.observation)?;
                map.serialize_entry("plan", &run.plan)?;
                map.serialize_entry("planner", &inputs.planner)?;
                map.serialize_entry("program", &inputs.program)?;
                map.serialize_entry("rules", &inputs.rules)?;
                map.serialize_entry("run", &run.id)?;
            }
            LedgerEntry::PlanMade { run, plan, proposal, judgement, .. } => {
                map.serialize_entry("judgement", judgement)?;
                map.serialize_entry("plan", plan)?;
                map.serialize_entry("proposal", proposal)?;
                map.serialize_entry("run", run)?;
            }
            LedgerEntry::Refused { run, guest, stage, code, evidence, .. } => {
                map.serialize_entry("code", code)?;
                map.serialize_entry("evidence", evidence)?;
                if let Some(guest) = guest {
                    map.serialize_entry("guest", guest)?;
                }
                map.serialize_entry("run", run)?;
                map.serialize_entry("stage", stage)?;
            }
            LedgerEntry::Approved { run, proposal, by, how, names, .. } => {
                map.serialize_entry("by", by)?;
                map.serialize_entry("how", how)?;
                map.serialize_entry("names", names)?;
                map.serialize_entry("proposal", proposal)?;
                map.serialize_entry("run", run)?;
            }
            LedgerEntry::Admitted { run, plan, bundle, answer, .. } => {
                map.serialize_entry("answer", answer)?;
                map.serialize_entry("bundle", bundle)?;
                map.serialize_entry("plan", plan)?;
                map.serialize_entry("run", run)?;
            }
            LedgerEntry::Record(record) => write_record_members(&mut map, record)?,
            other => write_command_members(&mut map, other)?,
        }
        map.end()
    }
}

fn write_record_members<M: SerializeMap>(map: &mut M, record: &JournalRecord) -> Result<(), M::Error> {
    match record {
        JournalRecord::Intent { operation, .. } => map.serialize_entry("operation", operation),
        JournalRecord::Sending { id, up_ms, .. } => {
            map.serialize_entry("id", id)?;
            map.serialize_entry("up_ms", up_ms)
        }
        JournalRecord::TaskStarted { id, task, .. } => {
            map.serialize_entry("id", id)?;
            map.serialize_entry("task", task)
        }
        JournalRecord::Ended { id, outcome, .. } => {
            map.serialize_entry("id", id)?;
            map.serialize_entry("outcome", outcome)
        }
        JournalRecord::Resolved { id, resolution, by, reason, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("id", id)?;
            map.serialize_entry("reason", reason)?;
            map.serialize_entry("resolution", resolution.word())
        }
    }
}

/// Writes the entries of commands by people, and the end and recovery of runs.
fn write_command_members<M: SerializeMap>(map: &mut M, entry: &LedgerEntry) -> Result<(), M::Error> {
    match entry {
        LedgerEntry::Recovery { environment, operations, .. } => {
            map.serialize_entry("environment", environment)?;
            map.serialize_entry("operations", operations)
        }
        LedgerEntry::RunEnded { run, end, .. } => {
            map.serialize_entry("end", end.word())?;
            map.serialize_entry("run", run)
        }
        LedgerEntry::Hold(hold) => {
            map.serialize_entry("by", &hold.by)?;
            map.serialize_entry("environment", &hold.environment)?;
            map.serialize_entry("guest", &hold.vmid)?;
            map.serialize_entry("reason", &hold.reason)
        }
        LedgerEntry::Release { environment, guest, by, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("environment", environment)?;
            map.serialize_entry("guest", guest)
        }
        LedgerEntry::Freeze(freeze) => {
            map.serialize_entry("by", &freeze.by)?;
            map.serialize_entry("environment", &freeze.environment)?;
            map.serialize_entry("reason", &freeze.reason)
        }
        LedgerEntry::Thaw { environment, by, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("environment", environment)
        }
        LedgerEntry::Resync { by, reason, size, root, epoch, .. } | LedgerEntry::Restored { by, reason, size, root, epoch, .. } => {
            map.serialize_entry("by", by)?;
            map.serialize_entry("epoch", epoch)?;
            map.serialize_entry("reason", reason)?;
            if let Some(root) = root {
                map.serialize_entry("root", root)?;
            }
            map.serialize_entry("size", size)
        }
        LedgerEntry::Rekeyed { verifier, previous, checkpoint, by, reason, .. } => {
            map.serialize_entry("by", by)?;
            if let Some(checkpoint) = checkpoint {
                map.serialize_entry("checkpoint", checkpoint)?;
            }
            map.serialize_entry("previous", previous)?;
            map.serialize_entry("reason", reason)?;
            map.serialize_entry("verifier", verifier)
        }
        LedgerEntry::Pruned { by, before_ms, digests, .. } => {
            map.serialize_entry("before_ms", before_ms)?;
            map.serialize_entry("by", by)?;
            map.serialize_entry("digests", digests)
        }
        LedgerEntry::Binding(binding) => {
            map.serialize_entry("by", &binding.by)?;
            map.serialize_entry("cluster", &binding.cluster)?;
            map.serialize_entry("environment", &binding.environment)
        }
        LedgerEntry::Rename(rename) => {
            map.serialize_entry("by", &rename.by)?;
            map.serialize_entry("environment", &rename.from)?;
            map.serialize_entry("reason", &rename.reason)?;
            map.serialize_entry("to", &rename.to)
        }
        // `EntryBodyRow` writes all other kinds.
        _ => Ok(()),
    }
}
