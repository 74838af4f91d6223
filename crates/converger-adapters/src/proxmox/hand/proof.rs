//! What is read to tell whether a change kept its promise. Whether it did is judged in the core, over these readings.
//!
//! That a guest is gone is read as everywhere else (G2): its old node's word and a free id are not enough, because a guest may have moved and
//! the list behind the ids can be empty in silence. Every node is asked, under quorum before and after.
//!
//! What never enters: sending a change, and how often to read.

use converger_core::action::Change;
use converger_core::apply::promise::{Promise, Reading, Snapshot, Snapshots};
use converger_core::apply::{Answer, Ask, Cause, Membership, Place, Trouble};
use converger_core::guest::{Kind, NodeName, Vmid};
use converger_core::observe::Node;

use super::{Hand, answer};
use crate::proxmox::client::Exchange;
use crate::proxmox::codec::{self, Command, DiskKey, Event, Failure, GuestPath, Read, Write};
use crate::proxmox::observe::Reason;
use crate::proxmox::observe::absence::{self, Found};

impl Write {
    /// What this change promises where this was [read](Hand::read) before it was sent.
    #[must_use]
    pub fn promise(&self, before: &Reading) -> Promise {
        match self {
            Self::Start(guest) => Promise::of_change(guest.kind, Change::Start),
            Self::RebootQemu { timeout_secs, .. } => Promise::of_reboot(Kind::Qemu, Change::Reboot { timeout_secs: *timeout_secs }, before),
            Self::Shutdown { guest, timeout_secs } => Promise::of_change(guest.kind, Change::Shutdown { timeout_secs: *timeout_secs }),
            Self::Stop(guest) => Promise::of_change(guest.kind, Change::Stop),
            Self::ConfigSet(set) => Promise::of_change(set.guest().kind, Change::ConfigSet(set.changes().into())),
            Self::SnapshotCreate { name, .. } => Promise::of_snapshot(name.as_str(), before),
            Self::SnapshotDelete { name, .. } => Promise::HasNoSnapshot(name.as_str().into()),
            Self::SnapshotRollback { name, .. } => Promise::of_rollback(name.as_str(), before),
            Self::Clone { name, .. } => Promise::of_copy(name, before),
            Self::Migrate { target, mode, .. } => Promise::IsOn { node: target.clone(), state: mode.state() },
            Self::Grow { size, .. } => Promise::HasGrown { kib: size.kib() },
            Self::Delete(_) => Promise::IsGone,
        }
    }
}

pub(super) async fn read<E: Exchange>(hand: &Hand<E>, write: &Write) -> Reading {
    let guest = write.guest();
    match write {
        Write::Start(_) | Write::RebootQemu { .. } | Write::Shutdown { .. } | Write::Stop(_) => status(hand, guest).await,
        Write::ConfigSet(_) => config(hand, guest).await,
        Write::Grow { disk, .. } => disk_of(hand, guest, disk).await,
        Write::SnapshotCreate { .. } | Write::SnapshotDelete { .. } | Write::SnapshotRollback { .. } => snapshots(hand, guest).await,
        Write::Clone { to, target, .. } => config(hand, copy_of(guest, *to, target.as_ref())).await,
        Write::Migrate { target, .. } => match status(hand, GuestPath { node: target.clone(), ..guest }).await {
            Reading::Live(live) => Reading::At(target.clone(), live),
            other => other,
        },
        Write::Delete(_) => match there(hand, guest.clone()).await {
            Reading::NotThere(_) => anywhere(hand, guest.vmid).await,
            other => other,
        },
    }
}

fn copy_of(guest: GuestPath, to: Vmid, target: Option<&NodeName>) -> GuestPath {
    GuestPath { node: target.cloned().unwrap_or(guest.node), kind: guest.kind, vmid: to }
}

/// The run-state, asked for as the engine asks for it.
async fn status<E: Exchange>(hand: &Hand<E>, guest: GuestPath) -> Reading {
    match hand.ask(&Ask::Status(place(guest))).await {
        Answer::Status(live) => Reading::Live(live),
        other => unanswered(other),
    }
}

async fn there<E: Exchange>(hand: &Hand<E>, guest: GuestPath) -> Reading {
    let node = guest.node.clone();
    match status(hand, guest).await {
        Reading::Live(_) => Reading::There(node),
        other => other,
    }
}

/// The config, asked for as the engine asks for it.
async fn config<E: Exchange>(hand: &Hand<E>, guest: GuestPath) -> Reading {
    match hand.ask(&Ask::Config(place(guest))).await {
        Answer::Config(config) => Reading::Config(config),
        other => unanswered(other),
    }
}

fn place(guest: GuestPath) -> Place {
    Place { node: guest.node, kind: guest.kind, vmid: guest.vmid }
}

async fn disk_of<E: Exchange>(hand: &Hand<E>, guest: GuestPath, disk: &DiskKey) -> Reading {
    match call(hand, Read::GuestPending(guest)).await {
        Ok(Event::Config(config)) => Reading::Disk(config.disks.get(disk).map(|size| size.kib())),
        other => nothing(other),
    }
}

async fn snapshots<E: Exchange>(hand: &Hand<E>, guest: GuestPath) -> Reading {
    match call(hand, Read::Snapshots(guest)).await {
        Ok(Event::Snapshots(found)) => {
            let own = |snapshot: codec::Snapshot| Snapshot { name: snapshot.name, state: snapshot.state, made_at: snapshot.made_at };
            Reading::Snapshots(Snapshots { list: found.list.into_iter().map(own).collect(), at: found.parent })
        }
        other => nothing(other),
    }
}

/// Where a guest is that is not where it was, or that it is nowhere.
async fn anywhere<E: Exchange>(hand: &Hand<E>, vmid: Vmid) -> Reading {
    let before = match quorate(hand).await {
        Ok(membership) => membership,
        Err(cause) => return Reading::Unread(cause),
    };
    let nodes: Vec<Node> = before.nodes.iter().map(|(name, online)| Node { name: name.clone(), online: *online }).collect();
    match absence::look(&hand.session, &nodes, vmid).await {
        Found::On(node) => return Reading::There(node),
        Found::Doubt(note) => return Reading::Unread(Cause::new(Trouble::Other, note.reason.word(), &note.text)),
        Found::Nowhere => {}
    }
    match quorate(hand).await {
        Ok(after) if after == before => Reading::Absent,
        Ok(_) => Reading::Unread(Cause::new(Trouble::Other, Reason::NotProven.word(), "nodes joined or left while they were asked")),
        Err(cause) => Reading::Unread(cause),
    }
}

async fn quorate<E: Exchange>(hand: &Hand<E>) -> Result<Membership, Cause> {
    match hand.ask(&Ask::Cluster).await {
        Answer::Cluster(membership) if membership.quorate => Ok(membership),
        Answer::Cluster(_) => {
            let text = "the cluster has no quorum, so that nothing that it lacks is shown to be gone";
            Err(Cause::new(Trouble::NotQuorate, Reason::NotProven.word(), text))
        }
        other => Err(unread(other)),
    }
}

async fn call<E: Exchange>(hand: &Hand<E>, read: Read) -> Result<Event, Failure> {
    hand.session.call(&Command::Read(read)).await
}

/// What is known where a reading gave nothing.
fn nothing(came: Result<Event, Failure>) -> Reading {
    match came {
        Err(failure) if failure.cause == codec::Cause::NoSuchGuest => Reading::NotThere(answer::cause(&failure)),
        Err(failure) => Reading::Unread(answer::unread(&failure)),
        Ok(other) => Reading::Unread(answer::unread(&other.unexpected())),
    }
}

/// The same where the engine's own ask gave nothing.
fn unanswered(came: Answer) -> Reading {
    match came {
        Answer::NotThere(cause) => Reading::NotThere(cause),
        other => Reading::Unread(unread(other)),
    }
}

fn unread(came: Answer) -> Cause {
    match came {
        Answer::Unread(cause) | Answer::NotThere(cause) => cause,
        _ => Cause::new(Trouble::Other, Reason::Malformed.word(), "the answer belongs to another question"),
    }
}
