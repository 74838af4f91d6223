//! What a node offers to guests: memory, CPUs and storages. Beside it, the replication jobs, which tie guests to nodes.
//!
//! Must not decide what follows from them (the core).

use std::collections::BTreeSet;

use converger_core::artifact::INTEGER_MAX;
use converger_core::guest::{StorageName, Vmid};
use converger_core::normalize::WordSet;
use converger_core::observe::{NodeCapacity, ObservedStorage};
use serde::Deserialize;

use super::object::Object;
use super::scalar::PerlScalar;

#[derive(Deserialize)]
pub(super) struct NodeStatusRow<'a> {
    #[serde(borrow)]
    cpuinfo: Object<CpuRow<'a>>,
    #[serde(borrow)]
    memory: Object<MemoryRow<'a>>,
}

#[derive(Deserialize)]
struct CpuRow<'a> {
    #[serde(borrow, default)]
    cpus: PerlScalar<'a>,
    #[serde(borrow, default)]
    model: PerlScalar<'a>,
}

#[derive(Deserialize)]
struct MemoryRow<'a> {
    #[serde(borrow, default)]
    total: PerlScalar<'a>,
    #[serde(borrow, default)]
    free: PerlScalar<'a>,
    #[serde(borrow, default)]
    available: PerlScalar<'a>,
}

/// Parses the status of a node, or returns the field that is missing or invalid.
pub(super) fn parse_capacity(row: &NodeStatusRow<'_>) -> Result<NodeCapacity, &'static str> {
    let (Object(cpu), Object(memory)) = (&row.cpuinfo, &row.memory);
    // Version 7 does not report the memory that caches would release; what is free is less than that.
    let available = if memory.available == PerlScalar::Absent { &memory.free } else { &memory.available };
    if cpu.model == PerlScalar::NotScalar {
        return Err("model");
    }
    Ok(NodeCapacity {
        cpu_model: cpu.model.word(),
        cpus: cpu.cpus.number().and_then(|number| u32::try_from(number).ok()).ok_or("cpus")?,
        memory_available: parse_bytes(available).ok_or("memory")?,
        memory_total: parse_bytes(&memory.total).ok_or("memory")?,
    })
}

fn parse_bytes(value: &PerlScalar<'_>) -> Option<u64> {
    value.number().filter(|bytes| *bytes <= INTEGER_MAX)
}

#[derive(Deserialize)]
pub(super) struct StorageRow<'a> {
    #[serde(borrow, default)]
    storage: PerlScalar<'a>,
    #[serde(borrow, default)]
    r#type: PerlScalar<'a>,
    #[serde(borrow, default)]
    content: PerlScalar<'a>,
    #[serde(borrow, default)]
    shared: PerlScalar<'a>,
    #[serde(borrow, default)]
    active: PerlScalar<'a>,
    #[serde(borrow, default)]
    avail: PerlScalar<'a>,
    #[serde(borrow, default)]
    total: PerlScalar<'a>,
}

/// Parses the storages of a node, sorted by name, or returns the field that is missing, invalid or contradictory.
pub(super) fn parse_storages(rows: &[StorageRow<'_>]) -> Result<Box<[ObservedStorage]>, &'static str> {
    let mut storages = rows.iter().map(parse_storage).collect::<Result<Vec<_>, _>>()?;
    storages.sort_by(|left, right| left.name.cmp(&right.name));
    if storages.windows(2).any(|pair| pair.first().map(|own| &own.name) == pair.last().map(|own| &own.name)) {
        return Err("storage");
    }
    Ok(storages.into())
}

fn parse_storage(row: &StorageRow<'_>) -> Result<ObservedStorage, &'static str> {
    let active = parse_optional_flag(&row.active).ok_or("active")?;
    // Proxmox reports the space of a storage that it cannot access as 0, which is not its space.
    let space = |value: &PerlScalar<'_>, key| match value {
        PerlScalar::Absent => Ok(None),
        value => parse_bytes(value).map(|bytes| Some(bytes).filter(|_| active)).ok_or(key),
    };
    let content = row.content.text().ok_or("content")?;
    Ok(ObservedStorage {
        active,
        available: space(&row.avail, "avail")?,
        content: WordSet::new(content.split(',').map(str::trim).filter(|word| !word.is_empty()).map(Into::into).collect()),
        kind: row.r#type.word().ok_or("type")?,
        name: row.storage.text().and_then(|name| StorageName::new(&name)).ok_or("storage")?,
        shared: parse_optional_flag(&row.shared).ok_or("shared")?,
        total: space(&row.total, "total")?,
    })
}

/// A flag that is off if it is absent; `None` if it is neither on nor off.
fn parse_optional_flag(value: &PerlScalar<'_>) -> Option<bool> {
    if *value == PerlScalar::Absent { Some(false) } else { value.flag() }
}

#[derive(Deserialize)]
pub(super) struct ReplicationRow<'a> {
    #[serde(borrow, default)]
    guest: PerlScalar<'a>,
}

/// The guests with a replication job, enabled or not; `None` if a job does not name its guest.
pub(super) fn parse_replicated_guests(rows: &[ReplicationRow<'_>]) -> Option<BTreeSet<Vmid>> {
    rows.iter().map(|row| row.guest.number().and_then(Vmid::new)).collect()
}
