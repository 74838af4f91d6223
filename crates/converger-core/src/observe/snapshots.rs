//! The snapshots of a guest: what each contains, and which one the guest continues from.
//!
//! Must not depend on what is done with a snapshot (`plan`, `apply`).

use serde::Serialize;

use super::parse::read_text;
use crate::artifact::INTEGER_MAX;
use crate::document::{DecodeAborted as End, Diagnostic, DocumentReader, EventSource, Span, quote};

/// The snapshots of a guest. Members are sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SnapshotTree {
    /// The snapshot that the guest was last created from or rolled back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current: Option<Box<str>>,
    /// All of them, sorted by name; each name occurs once.
    pub list: Box<[GuestSnapshot]>,
}

impl SnapshotTree {
    /// The snapshots in any order, sorted by name.
    #[must_use]
    pub fn new(mut list: Vec<GuestSnapshot>, current: Option<Box<str>>) -> Self {
        list.sort_by(|left, right| left.name.cmp(&right.name));
        Self { current, list: list.into() }
    }

    /// The snapshot of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&GuestSnapshot> {
        self.list.iter().find(|snapshot| &*snapshot.name == name)
    }
}

/// A snapshot. Members are sorted by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GuestSnapshot {
    /// The CPU that the guest had when its memory was saved. `None` if it was not read or is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Box<str>>,
    /// When it was made, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub made_at: Option<u64>,
    /// Its name. Untrusted text.
    pub name: Box<str>,
    /// The snapshot that it continues from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Box<str>>,
    /// Whether it contains the memory of the guest.
    pub ram: bool,
    /// Set while the snapshot is made or deleted; an interrupted operation leaves it set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<str>>,
}

const TREE_KEYS: [&str; 2] = ["current", "list"];
const SNAPSHOT_KEYS: [&str; 6] = ["cpu", "made_at", "name", "parent", "ram", "state"];

/// Reads the snapshots of a guest, each of which is listed once.
pub(super) fn read_snapshots<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<SnapshotTree>, End> {
    let mut current = None;
    let mut list: Vec<(GuestSnapshot, Span)> = Vec::new();
    let seen = reader.read_fields("`snapshots`", &TREE_KEYS, |reader, key, _| match key {
        0 => read_text(reader, "`current`").map(|text| current = text),
        _ => reader.read_items("`list`", |reader| read_snapshot(reader).map(|own| list.extend(own))).map(|_| ()),
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "`snapshots`", &TREE_KEYS, &[1])?;
    list.sort_by(|(left, first), (right, second)| (&left.name, first).cmp(&(&right.name, second)));
    for pair in list.windows(2) {
        if let [(first, first_span), (second, span)] = pair
            && first.name == second.name
        {
            let fault = Diagnostic::new(*span, format!("the snapshot {} is listed twice", quote(&second.name)));
            reader.report(fault.with_related(*first_span, "first listed here"))?;
        }
    }
    Ok(Some(SnapshotTree { current, list: list.into_iter().map(|(snapshot, _)| snapshot).collect() }))
}

fn read_snapshot<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<Option<(GuestSnapshot, Span)>, End> {
    let (mut cpu, mut made_at, mut name, mut parent, mut ram, mut state) = (None, None, None, None, None, None);
    let seen = reader.read_fields("a snapshot", &SNAPSHOT_KEYS, |reader, key, _| match key {
        0 => read_text(reader, "`cpu`").map(|text| cpu = text),
        1 => reader.read_integer("`made_at`", 0, INTEGER_MAX).map(|number| made_at = number.map(|(number, _)| number)),
        2 => read_text(reader, "`name`").map(|text| name = text),
        3 => read_text(reader, "`parent`").map(|text| parent = text),
        4 => reader.read_flag("`ram`").map(|flag| ram = flag),
        _ => read_text(reader, "`state`").map(|text| state = text),
    })?;
    let Some(seen) = seen else { return Ok(None) };
    reader.require_keys(&seen, "a snapshot", &SNAPSHOT_KEYS, &[2, 4])?;
    let (Some(name), Some(ram)) = (name, ram) else { return Ok(None) };
    Ok(Some((GuestSnapshot { cpu, made_at, name, parent, ram, state }, seen.span)))
}
