//! Nodes of a cluster: their presence, and what a guest would find there. Memory, CPUs and storages are read only if an intent needs them.
//!
//! Must not depend on what an action needs of a node (`plan`).

use serde::Serialize;

use super::Reading;
use super::parse::{read_text, read_words, to_reading};
use crate::artifact::INTEGER_MAX;
use crate::document::{DecodeAborted as End, Diagnostic, DocumentReader, EventSource, Span, quote};
use crate::guest::{NodeName, StorageName};
use crate::normalize::WordSet;

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedNode {
    /// Its name.
    pub name: NodeName,
    /// Whether it is a cluster member that is online.
    pub online: bool,
    /// Its memory and CPUs.
    pub capacity: Reading<NodeCapacity>,
    /// The storages that the node has and the observer may see, sorted by name. A storage that is not listed may exist and be hidden.
    pub storages: Reading<Box<[ObservedStorage]>>,
}

impl ObservedNode {
    /// A node of which nothing else was read.
    #[must_use]
    pub fn new(name: NodeName, online: bool) -> Self {
        Self { name, online, capacity: Reading::Unread, storages: Reading::Unread }
    }

    /// A storage of the node; `Read(None)` if the node lists no storage of this name.
    #[must_use]
    pub fn storage(&self, name: &StorageName) -> Reading<Option<&ObservedStorage>> {
        self.storages.as_ref().map(|storages| storages.iter().find(|storage| storage.name == *name))
    }

    /// Whether anything was read of it that only an intent needs.
    pub(super) fn has_extra_readings(&self) -> bool {
        self.capacity.is_read() || self.storages.is_read()
    }
}

/// The memory and CPUs of a node. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeCapacity {
    /// The model of its CPUs. Untrusted text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<Box<str>>,
    /// Its number of logical CPUs.
    pub cpus: u32,
    /// The memory that new processes can get, in bytes.
    pub memory_available: u64,
    /// Its memory in bytes.
    pub memory_total: u64,
}

/// A storage as one node has it. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObservedStorage {
    /// Whether the node can access it now.
    pub active: bool,
    /// The free space in bytes, if the storage is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// The types of content that it may hold, such as `images` or `rootdir`.
    pub content: WordSet,
    /// The platform's word for its type, such as `zfspool`.
    pub kind: Box<str>,
    /// Its name.
    pub name: StorageName,
    /// Whether all nodes that have it see the same content.
    pub shared: bool,
    /// The whole space in bytes, if the storage is active.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

const NODE_KEYS: [&str; 4] = ["capacity", "name", "online", "storages"];
const CAPACITY_KEYS: [&str; 4] = ["cpu_model", "cpus", "memory_available", "memory_total"];
const STORAGE_KEYS: [&str; 7] = ["active", "available", "content", "kind", "name", "shared", "total"];

/// Reads one node and appends it.
pub(super) fn read_node<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    nodes: &mut Vec<(ObservedNode, Span)>,
) -> Result<(), End> {
    let (mut name, mut online, mut capacity, mut storages) = (None, None, None, None);
    let seen = reader.read_fields("a node", &NODE_KEYS, |reader, key, _| match key {
        0 => read_capacity(reader).map(|value| capacity = value),
        1 => reader.read_text("`name`").map(|text| name = text),
        2 => reader.read_flag("`online`").map(|flag| online = flag),
        _ => read_storages(reader).map(|list| storages = list),
    })?;
    let Some(seen) = seen else { return Ok(()) };
    reader.require_keys(&seen, "a node", &NODE_KEYS, &[1, 2])?;
    // Add a node even if its `online` is faulty, so that its guests are not reported too.
    let (Some((found, span)), online) = (name, online.unwrap_or(false)) else { return Ok(()) };
    let Some(name) = NodeName::new(&found) else {
        return reader.report(Diagnostic::new(span, format!("{} is not the name of a node", quote(&found))));
    };
    nodes.push((ObservedNode { name, online, capacity: to_reading(capacity), storages: to_reading(storages) }, span));
    Ok(())
}

fn read_capacity<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<NodeCapacity>, End> {
    let (mut cpu_model, mut cpus, mut available, mut total) = (None, None, None, None);
    let seen = reader.read_fields("`capacity`", &CAPACITY_KEYS, |reader, key, _| match key {
        0 => read_text(reader, "`cpu_model`").map(|text| cpu_model = text),
        1 => {
            reader.read_integer("`cpus`", 0, u64::from(u32::MAX)).map(|number| cpus = number.and_then(|(number, _)| number.try_into().ok()))
        }
        2 => read_bytes(reader, "`memory_available`").map(|bytes| available = bytes),
        _ => read_bytes(reader, "`memory_total`").map(|bytes| total = bytes),
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "`capacity`", &CAPACITY_KEYS, &[1, 2, 3])?;
    let (Some(cpus), Some(memory_available), Some(memory_total)) = (cpus, available, total) else { return Ok(None) };
    Ok(Some(NodeCapacity { cpu_model, cpus, memory_available, memory_total }))
}

fn read_bytes<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>, what: &str) -> Result<Option<u64>, End> {
    Ok(reader.read_integer(what, 0, INTEGER_MAX)?.map(|(bytes, _)| bytes))
}

/// Reads the storages of a node, each of which is listed once.
fn read_storages<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<Box<[ObservedStorage]>>, End> {
    let mut storages: Vec<(ObservedStorage, Span)> = Vec::new();
    let list = reader.read_items("`storages`", |reader| {
        storages.extend(read_storage(reader)?);
        Ok(())
    })?;
    storages.sort_by(|(left, first), (right, second)| (&left.name, first).cmp(&(&right.name, second)));
    for pair in storages.windows(2) {
        if let [(first, first_span), (second, span)] = pair
            && first.name == second.name
        {
            let fault = Diagnostic::new(*span, format!("the storage {} is listed twice", quote(second.name.as_str())));
            reader.report(fault.with_related(*first_span, "first listed here"))?;
        }
    }
    Ok(list.map(|_| storages.into_iter().map(|(storage, _)| storage).collect()))
}

fn read_storage<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<(ObservedStorage, Span)>, End> {
    let (mut active, mut available, mut content, mut kind) = (None, None, None, None);
    let (mut name, mut shared, mut total) = (None, None, None);
    let seen = reader.read_fields("a storage", &STORAGE_KEYS, |reader, key, _| match key {
        0 => reader.read_flag("`active`").map(|flag| active = flag),
        1 => read_bytes(reader, "`available`").map(|bytes| available = bytes),
        2 => read_words(reader, "`content`").map(|words| content = words),
        3 => read_text(reader, "`kind`").map(|text| kind = text),
        4 => read_storage_name(reader, "`name`").map(|own| name = own),
        5 => reader.read_flag("`shared`").map(|flag| shared = flag),
        _ => read_bytes(reader, "`total`").map(|bytes| total = bytes),
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "a storage", &STORAGE_KEYS, &[0, 2, 3, 4, 5])?;
    let (Some(active), Some(content), Some(kind), Some(name), Some(shared)) = (active, content, kind, name, shared) else {
        return Ok(None);
    };
    Ok(Some((ObservedStorage { active, available, content: WordSet::new(content), kind, name, shared, total }, seen.span)))
}

/// Reads the name of a storage.
pub(super) fn read_storage_name<'t, S: EventSource<'t>>(
    reader: &mut DocumentReader<'t, S>,
    what: &str,
) -> Result<Option<StorageName>, End> {
    let Some((found, span)) = reader.read_text(what)? else { return Ok(None) };
    match StorageName::new(&found) {
        Some(name) => Ok(Some(name)),
        None => reader.report_none(Diagnostic::new(span, format!("{} is not the name of a storage", quote(&found)))),
    }
}
