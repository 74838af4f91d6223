//! What a change promises, and how it is checked: by reading the guest afterwards, never by what an answer or a task said.
//!
//! Proxmox answers 200 to almost anything, a task that ended well may have done nothing, and one that failed may have done its work.
//! Some changes end in a state in which the guest may have been before (a reboot, a second snapshot of one name): what they promise
//! depends on what was read before, and where reading cannot tell, nothing is claimed.
//!
//! What never enters: how long to wait, and what to do about a promise that is not kept.

use converger_core::guest::{GuestName, Kind, NodeName, Vmid};
use converger_core::normalize::{Field, Value, is_met, rule_of};
use converger_core::observe::{Config, Pending};

use super::answer::{Failure, Shown};
use super::command::{Read, Write};
use super::config::GuestConfig;
use super::event::{Event, GuestStatus, NextId, Snapshots};
use super::reason::Cause;
use super::words::{DiskKey, DiskSize, GuestPath, SnapshotName};

/// What must hold once a change is done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Promise {
    Runs,
    /// It runs, and not as the process that it was before.
    RunsAnew {
        pid: u64,
    },
    IsStopped,
    /// These fields have these values, in effect or waiting for the next start.
    Holds {
        kind: Kind,
        wanted: Box<[(Field, Option<Value>)]>,
    },
    /// It has this snapshot, and not the one of the same name that was there before, made then.
    HasSnapshot {
        name: SnapshotName,
        old: Option<Option<u64>>,
    },
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
    /// It may be kept, but no reading can show it, for this reason.
    CannotBeShown(&'static str),
}

/// What was read of a guest, in the order of [`Write::proofs`].
pub type Readings = [Result<Event, Failure>];

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
    /// What this change promises where its [proofs](Write::proofs) read like this before it was sent.
    #[must_use]
    pub fn promise(&self, before: &Readings) -> Promise {
        match self {
            Self::Start(_) => Promise::Runs,
            Self::RebootQemu { .. } => runs_anew(before.first()),
            Self::Shutdown { .. } | Self::Stop(_) => Promise::IsStopped,
            Self::ConfigSet(set) => Promise::Holds { kind: set.guest().kind, wanted: set.wanted().into() },
            Self::SnapshotCreate { name, .. } => new_snapshot(name, before.first()),
            Self::SnapshotDelete { name, .. } => Promise::HasNoSnapshot(name.clone()),
            Self::SnapshotRollback { name, .. } => rolled_back(name, before.first()),
            Self::Clone { name, .. } => copied(name, before.first()),
            Self::Migrate { target, .. } => Promise::IsOn(target.clone()),
            Self::Grow { disk, size, .. } => Promise::HasGrown { disk: disk.clone(), size: *size },
            Self::Delete(_) => Promise::IsGone,
        }
    }

    /// The readings that show whether the promise was kept; taken before and after.
    #[must_use]
    pub fn proofs(&self) -> Vec<Read> {
        let guest = self.guest();
        match self {
            Self::Start(_) | Self::RebootQemu { .. } | Self::Shutdown { .. } | Self::Stop(_) => vec![Read::GuestStatus(guest)],
            // A node says "not there" for itself only; the guest may have moved.
            Self::Delete(_) => vec![Read::GuestStatus(guest.clone()), Read::NextId(guest.vmid)],
            Self::ConfigSet(_) | Self::Grow { .. } => vec![Read::GuestPending(guest)],
            Self::SnapshotCreate { .. } | Self::SnapshotDelete { .. } | Self::SnapshotRollback { .. } => vec![Read::Snapshots(guest)],
            Self::Clone { to, target, .. } => vec![Read::GuestPending(copy_of(guest, *to, target.as_ref()))],
            Self::Migrate { target, .. } => vec![Read::GuestStatus(GuestPath { node: target.clone(), ..guest })],
        }
    }
}

fn copy_of(guest: GuestPath, to: Vmid, target: Option<&NodeName>) -> GuestPath {
    GuestPath { node: target.cloned().unwrap_or(guest.node), kind: guest.kind, vmid: to }
}

type One<'r> = Option<&'r Result<Event, Failure>>;

fn runs_anew(before: One<'_>) -> Promise {
    match before {
        Some(Ok(Event::GuestStatus(status))) => match status.pid {
            Some(pid) => Promise::RunsAnew { pid },
            None => Promise::CannotBeShown("it had no process before, so that a new one shows nothing"),
        },
        _ => Promise::CannotBeShown("its process was not read before"),
    }
}

fn new_snapshot(name: &SnapshotName, before: One<'_>) -> Promise {
    let Some(Ok(Event::Snapshots(snapshots))) = before else { return Promise::CannotBeShown("its snapshots were not read before") };
    let old = snapshots.list.iter().find(|snapshot| &*snapshot.name == name.as_str()).map(|snapshot| snapshot.made_at);
    Promise::HasSnapshot { name: name.clone(), old }
}

fn rolled_back(name: &SnapshotName, before: One<'_>) -> Promise {
    match before {
        Some(Ok(Event::Snapshots(snapshots))) if snapshots.parent.as_deref() == Some(name.as_str()) => {
            Promise::CannotBeShown("it went on from this snapshot before, so that it looks the same afterwards")
        }
        Some(Ok(Event::Snapshots(_))) => Promise::IsAt(name.clone()),
        _ => Promise::CannotBeShown("its snapshots were not read before"),
    }
}

fn copied(name: &GuestName, before: One<'_>) -> Promise {
    match before {
        Some(Err(failure)) if failure.cause == Cause::NoSuchGuest => Promise::IsThere(name.clone()),
        Some(Ok(_)) => Promise::CannotBeShown("the id of the copy was taken before"),
        _ => Promise::CannotBeShown("whether the id of the copy was free was not read before"),
    }
}

impl Promise {
    /// Whether what was read afterwards keeps it.
    #[must_use]
    pub fn check(&self, after: &Readings) -> Kept {
        match (self, after) {
            (Self::CannotBeShown(reason), _) => Kept::Unclear((*reason).into()),
            (Self::IsGone, [there, id]) => is_gone(there, id),
            (promise, [read]) => promise.check_one(read),
            _ => Kept::Unclear("it was not read".into()),
        }
    }

    fn check_one(&self, read: &Result<Event, Failure>) -> Kept {
        match (self, read) {
            (Self::IsThere(_) | Self::IsOn(_), Err(failure)) if failure.cause == Cause::NoSuchGuest => Kept::No(failure.to_string()),
            (_, Err(failure)) => Kept::Unclear(failure.to_string()),
            (Self::IsOn(_), Ok(_)) => Kept::Yes,
            (Self::Runs, Ok(Event::GuestStatus(status))) => is("running", &status.status),
            (Self::RunsAnew { pid }, Ok(Event::GuestStatus(status))) => is_anew(*pid, status),
            (Self::IsStopped, Ok(Event::GuestStatus(status))) => is("stopped", &status.status),
            (Self::Holds { kind, wanted }, Ok(Event::Config(config))) => holds(*kind, wanted, config),
            (Self::HasSnapshot { name, old }, Ok(Event::Snapshots(snapshots))) => has_snapshot(name, *old, snapshots),
            (Self::HasNoSnapshot(name), Ok(Event::Snapshots(snapshots))) => has_no_snapshot(name, snapshots),
            (Self::IsAt(name), Ok(Event::Snapshots(snapshots))) => is(name.as_str(), snapshots.parent.as_deref().unwrap_or("no snapshot")),
            (Self::IsThere(name), Ok(Event::Config(config))) => is_there(name, config),
            (Self::HasGrown { disk, size }, Ok(Event::Config(config))) => has_grown(disk, *size, config),
            (_, Ok(_)) => Kept::Unclear("what was read says nothing about it".into()),
        }
    }
}

/// Neither its node has it nor is its id taken by it elsewhere.
fn is_gone(there: &Result<Event, Failure>, id: &Result<Event, Failure>) -> Kept {
    match (there, id) {
        (Ok(_), _) => Kept::No("it is still there".into()),
        (Err(failure), _) if failure.cause != Cause::NoSuchGuest => Kept::Unclear(failure.to_string()),
        (Err(_), Ok(Event::NextId(NextId::Free))) => Kept::Yes,
        (Err(_), Ok(_)) => {
            Kept::Unclear("its node does not have it, but its id is taken: it has moved, or another guest has the id".into())
        }
        (Err(_), Err(failure)) => Kept::Unclear(failure.to_string()),
    }
}

fn is_anew(pid: u64, status: &GuestStatus) -> Kept {
    match (&*status.status, status.pid) {
        ("running", Some(now)) if now != pid => Kept::Yes,
        ("running", Some(_)) => Kept::No("it is still the process that it was before".into()),
        ("running", None) => Kept::Unclear("the id of its process is not told".into()),
        (word, _) => is("running", word),
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
fn has_snapshot(name: &SnapshotName, old: Option<Option<u64>>, snapshots: &Snapshots) -> Kept {
    match snapshots.list.iter().find(|snapshot| &*snapshot.name == name.as_str()) {
        Some(snapshot) => match &snapshot.state {
            Some(state) => Kept::No(format!("the snapshot is in the state {}", Shown(state))),
            None if old == Some(snapshot.made_at) => Kept::No("the snapshot is the one that was there before".into()),
            None => Kept::Yes,
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
