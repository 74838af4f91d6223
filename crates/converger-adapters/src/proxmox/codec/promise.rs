//! What a change promises, and how it is checked: by reading the guest afterwards, never by what an answer or a task said.
//!
//! Proxmox answers 200 to almost anything, a task that ended well may have done nothing, and one that failed may have done its work.
//! What never enters: how long to wait, and what to do about a promise that is not kept.

use converger_core::guest::{GuestName, Kind, NodeName, Vmid};
use converger_core::normalize::{Field, Value, is_met, rule_of};
use converger_core::observe::{Config, Pending};

use super::answer::{Failure, Shown};
use super::command::{Read, Write};
use super::config::GuestConfig;
use super::event::{Event, Snapshots};
use super::reason::Cause;
use super::words::{DiskKey, DiskSize, GuestPath, SnapshotName};

/// What must hold once a change is done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Promise {
    Runs,
    IsStopped,
    /// These fields have these values, in effect or waiting for the next start.
    Holds {
        kind: Kind,
        wanted: Box<[(Field, Option<Value>)]>,
    },
    HasSnapshot(SnapshotName),
    HasNoSnapshot(SnapshotName),
    /// The guest goes on from this snapshot.
    IsAt(SnapshotName),
    IsThere(GuestName),
    IsOn(NodeName),
    HasGrown {
        disk: DiskKey,
        size: DiskSize,
    },
    IsGone,
}

/// Whether a promise was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It holds.
    Yes,
    /// It will hold after the next start; until then these fields wait.
    AtRestart(Box<[Field]>),
    /// It does not hold, or not yet.
    No(String),
    /// It cannot be told.
    Unclear(String),
}

impl Write {
    /// What this change promises.
    #[must_use]
    pub fn promise(&self) -> Promise {
        match self {
            Self::Start(_) | Self::RebootQemu { .. } => Promise::Runs,
            Self::Shutdown { .. } | Self::Stop(_) => Promise::IsStopped,
            Self::ConfigSet(set) => Promise::Holds { kind: set.guest().kind, wanted: set.wanted().into() },
            Self::SnapshotCreate { name, .. } => Promise::HasSnapshot(name.clone()),
            Self::SnapshotDelete { name, .. } => Promise::HasNoSnapshot(name.clone()),
            Self::SnapshotRollback { name, .. } => Promise::IsAt(name.clone()),
            Self::Clone { name, .. } => Promise::IsThere(name.clone()),
            Self::Migrate { target, .. } => Promise::IsOn(target.clone()),
            Self::Grow { disk, size, .. } => Promise::HasGrown { disk: disk.clone(), size: *size },
            Self::Delete(_) => Promise::IsGone,
        }
    }

    /// The reading that shows whether the promise was kept.
    #[must_use]
    pub fn proof(&self) -> Read {
        let guest = self.guest();
        match self {
            Self::Start(_) | Self::RebootQemu { .. } | Self::Shutdown { .. } | Self::Stop(_) | Self::Delete(_) => Read::GuestStatus(guest),
            Self::ConfigSet(_) | Self::Grow { .. } => Read::GuestPending(guest),
            Self::SnapshotCreate { .. } | Self::SnapshotDelete { .. } | Self::SnapshotRollback { .. } => Read::Snapshots(guest),
            Self::Clone { to, target, .. } => Read::GuestPending(copy_of(guest, *to, target.as_ref())),
            Self::Migrate { target, .. } => Read::GuestStatus(GuestPath { node: target.clone(), ..guest }),
        }
    }
}

fn copy_of(guest: GuestPath, to: Vmid, target: Option<&NodeName>) -> GuestPath {
    GuestPath { node: target.cloned().unwrap_or(guest.node), kind: guest.kind, vmid: to }
}

impl Promise {
    /// Whether what was read keeps it.
    #[must_use]
    pub fn check(&self, read: &Result<Event, Failure>) -> Kept {
        match (self, read) {
            (Self::IsGone, Err(failure)) if failure.cause == Cause::NoSuchGuest => Kept::Yes,
            (Self::IsThere(_) | Self::IsOn(_), Err(failure)) if failure.cause == Cause::NoSuchGuest => Kept::No(failure.to_string()),
            (_, Err(failure)) => Kept::Unclear(failure.to_string()),
            (Self::IsGone, Ok(_)) => Kept::No("it is still there".into()),
            (Self::IsOn(_), Ok(_)) => Kept::Yes,
            (Self::Runs, Ok(Event::GuestStatus(status))) => is("running", &status.status),
            (Self::IsStopped, Ok(Event::GuestStatus(status))) => is("stopped", &status.status),
            (Self::Holds { kind, wanted }, Ok(Event::Config(config))) => holds(*kind, wanted, config),
            (Self::HasSnapshot(name), Ok(Event::Snapshots(snapshots))) => has_snapshot(name, snapshots),
            (Self::HasNoSnapshot(name), Ok(Event::Snapshots(snapshots))) => has_no_snapshot(name, snapshots),
            (Self::IsAt(name), Ok(Event::Snapshots(snapshots))) => is(name.as_str(), snapshots.parent.as_deref().unwrap_or("no snapshot")),
            (Self::IsThere(name), Ok(Event::Config(config))) => is_there(name, config),
            (Self::HasGrown { disk, size }, Ok(Event::Config(config))) => has_grown(disk, *size, config),
            (_, Ok(_)) => Kept::Unclear("what was read says nothing about it".into()),
        }
    }
}

fn is(wanted: &str, found: &str) -> Kept {
    if wanted == found { Kept::Yes } else { Kept::No(format!("it is {}, not {wanted}", Shown(found))) }
}

fn holds(kind: Kind, wanted: &[(Field, Option<Value>)], config: &GuestConfig) -> Kept {
    let values = match &config.config {
        Ok(values) => values,
        Err(key) => return Kept::Unclear(format!("the value of `{}` is not understood", Shown(key))),
    };
    let mut waiting = Vec::new();
    for (field, value) in wanted {
        match holds_one(kind, *field, value.as_ref(), values, config) {
            Holds::Now => {}
            Holds::AtRestart => waiting.push(*field),
            Holds::Not => return Kept::No(format!("`{}` is not as it was written", field.word())),
        }
    }
    if waiting.is_empty() { Kept::Yes } else { Kept::AtRestart(waiting.into()) }
}

enum Holds {
    Now,
    AtRestart,
    Not,
}

/// What waits counts before what is in effect: it is what the guest will have.
fn holds_one(kind: Kind, field: Field, wanted: Option<&Value>, values: &Config, config: &GuestConfig) -> Holds {
    let Some(rule) = rule_of(kind, field) else { return Holds::Not };
    let tags = (field == Field::Tags).then(|| Value::Tags(config.tags.clone()));
    let observed = if field == Field::Tags { tags.as_ref() } else { values.get(field) };
    let waiting = config.pending.iter().flatten().find_map(|entry| match entry {
        Pending::Known(own, value) if *own == field => Some(Ok(value.as_ref())),
        Pending::Other(key) if &**key == field.word() => Some(Err(())),
        _ => None,
    });
    match waiting {
        None if is_met(rule, wanted, observed) => Holds::Now,
        Some(Ok(value)) if is_met(rule, wanted, value) => Holds::AtRestart,
        None | Some(_) => Holds::Not,
    }
}

/// A snapshot that is still being made, or that was left half made, is none.
fn has_snapshot(name: &SnapshotName, snapshots: &Snapshots) -> Kept {
    match snapshots.list.iter().find(|snapshot| &*snapshot.name == name.as_str()) {
        Some(snapshot) => match &snapshot.state {
            None => Kept::Yes,
            Some(state) => Kept::No(format!("the snapshot is in the state {}", Shown(state))),
        },
        None => Kept::No("there is no such snapshot".into()),
    }
}

fn has_no_snapshot(name: &SnapshotName, snapshots: &Snapshots) -> Kept {
    let is_there = snapshots.list.iter().any(|snapshot| &*snapshot.name == name.as_str());
    if is_there { Kept::No("the snapshot is still there".into()) } else { Kept::Yes }
}

/// While it is being copied, the copy has a lock.
fn is_there(name: &GuestName, config: &GuestConfig) -> Kept {
    match (&config.lock, config.name.as_deref()) {
        (Some(lock), _) => Kept::No(format!("it is locked ({})", Shown(lock))),
        (None, found) => is(name.as_str(), found.unwrap_or("without a name")),
    }
}

fn has_grown(disk: &DiskKey, size: DiskSize, config: &GuestConfig) -> Kept {
    match config.disks.get(disk) {
        Some(found) if *found >= size => Kept::Yes,
        Some(found) => Kept::No(format!("the disk has {found}, not {size}")),
        None => Kept::No("there is no such disk".into()),
    }
}
