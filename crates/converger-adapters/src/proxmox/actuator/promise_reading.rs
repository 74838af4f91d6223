//! The reads that show whether a change kept its promise. The core judges them.
//!
//! The absence of a guest is read as everywhere else (G2). Its old node's response and a free id are not enough, because the guest may have
//! moved and the list behind the ids can be empty without an error. Every node is asked, with quorum before and after.
//!
//! Must not send a change or decide how often to read.

use converger_core::action::Change;
use converger_core::apply::promise::{Promise, PromiseReading};
use converger_core::apply::{ClusterMembership, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress};
use converger_core::guest::{GuestKind, NodeName, Vmid};
use converger_core::observe::ObservedNode;

use super::{ProxmoxActuator, response};
use crate::proxmox::client::ProxmoxTransport;
use crate::proxmox::codec::{
    self, DiskKey, DiskSize, EscapedText, GuestPath, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead, ProxmoxWrite,
};
use crate::proxmox::observe::UnknownReason;
use crate::proxmox::observe::absence::{self, GuestSearch};

impl ProxmoxWrite {
    /// The promise of this change, given what was [read](ProxmoxActuator::read_promise) before it was sent.
    #[must_use]
    pub fn promise(&self, before: &PromiseReading) -> Promise {
        match self {
            Self::Start(guest) => Promise::for_change(guest.kind, Change::Start),
            Self::RebootQemu { timeout_secs, .. } => {
                Promise::for_reboot(GuestKind::Qemu, Change::Reboot { timeout_secs: *timeout_secs }, before)
            }
            Self::Shutdown { guest, timeout_secs } => Promise::for_change(guest.kind, Change::Shutdown { timeout_secs: *timeout_secs }),
            Self::Stop(guest) => Promise::for_change(guest.kind, Change::Stop),
            Self::ConfigSet(set) => Promise::for_change(set.guest().kind, Change::ConfigSet(set.changes().into())),
            Self::SnapshotCreate { name, .. } => Promise::for_snapshot(name.as_str(), before),
            Self::SnapshotDelete { name, .. } => Promise::HasNoSnapshot(name.as_str().into()),
            Self::SnapshotRollback { name, .. } => Promise::for_rollback(name.as_str(), before),
            Self::Clone { name, .. } => Promise::for_copy(name, before),
            Self::Migrate { target, mode, .. } => Promise::OnNode { node: target.clone(), state: mode.required_state() },
            Self::Grow { size, .. } => Promise::DiskGrown { kib: size.kib() },
            Self::Delete(_) => Promise::Gone,
        }
    }
}

pub(super) async fn read_for_promise<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, write: &ProxmoxWrite) -> PromiseReading {
    let guest = write.guest();
    match write {
        ProxmoxWrite::Start(_) | ProxmoxWrite::RebootQemu { .. } | ProxmoxWrite::Shutdown { .. } | ProxmoxWrite::Stop(_) => {
            read_status(actuator, guest).await
        }
        ProxmoxWrite::ConfigSet(_) => read_config(actuator, guest).await,
        ProxmoxWrite::Grow { disk, .. } => read_disk(actuator, guest, disk).await,
        ProxmoxWrite::SnapshotCreate { .. } | ProxmoxWrite::SnapshotDelete { .. } | ProxmoxWrite::SnapshotRollback { .. } => {
            read_snapshots(actuator, guest).await
        }
        ProxmoxWrite::Clone { to, target, .. } => read_config(actuator, clone_path(guest, *to, target.as_ref())).await,
        ProxmoxWrite::Migrate { target, .. } => match read_status(actuator, GuestPath { node: target.clone(), ..guest }).await {
            PromiseReading::Live(live) => PromiseReading::OnNodeWithStatus(target.clone(), live),
            other => other,
        },
        ProxmoxWrite::Delete(_) => match read_presence(actuator, guest.clone()).await {
            PromiseReading::GuestNotFound(_) => find_anywhere(actuator, guest.vmid).await,
            other => other,
        },
    }
}

fn clone_path(guest: GuestPath, to: Vmid, target: Option<&NodeName>) -> GuestPath {
    GuestPath { node: target.cloned().unwrap_or(guest.node), kind: guest.kind, vmid: to }
}

/// Reads the run-state with the request that the engine uses.
async fn read_status<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, guest: GuestPath) -> PromiseReading {
    match actuator.request(&EnvRequest::Status(guest_address(guest))).await {
        EnvResponse::Status(live) => PromiseReading::Live(live),
        other => unanswered_reading(other),
    }
}

async fn read_presence<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, guest: GuestPath) -> PromiseReading {
    let node = guest.node.clone();
    match read_status(actuator, guest).await {
        PromiseReading::Live(_) => PromiseReading::OnNode(node),
        other => other,
    }
}

/// Reads the config with the request that the engine uses.
async fn read_config<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, guest: GuestPath) -> PromiseReading {
    match actuator.request(&EnvRequest::Config(guest_address(guest))).await {
        EnvResponse::Config(config) => PromiseReading::Config(config),
        other => unanswered_reading(other),
    }
}

fn guest_address(guest: GuestPath) -> GuestAddress {
    GuestAddress { node: guest.node, kind: guest.kind, vmid: guest.vmid }
}

async fn read_disk<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, guest: GuestPath, disk: &DiskKey) -> PromiseReading {
    match call_read(actuator, ProxmoxRead::GuestPending(guest)).await {
        Ok(ProxmoxEvent::Config(config)) => match &config.hardware {
            Ok(_) => PromiseReading::Disk(config.disk_size(disk).map(DiskSize::kib)),
            Err(key) => {
                let text = format!("the value of `{}` is not understood", EscapedText(key));
                PromiseReading::Unreadable(EnvFault::new(EnvFaultKind::Other, UnknownReason::NotUnderstood.word(), &text))
            }
        },
        other => failed_reading(other),
    }
}

async fn read_snapshots<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, guest: GuestPath) -> PromiseReading {
    match call_read(actuator, ProxmoxRead::Snapshots(guest)).await {
        Ok(ProxmoxEvent::Snapshots(found)) => PromiseReading::Snapshots(found.tree),
        other => failed_reading(other),
    }
}

/// Searches all nodes for a guest that left its node.
async fn find_anywhere<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, vmid: Vmid) -> PromiseReading {
    let before = match require_quorum(actuator).await {
        Ok(membership) => membership,
        Err(cause) => return PromiseReading::Unreadable(cause),
    };
    let nodes: Vec<ObservedNode> = before.nodes.iter().map(|(name, online)| ObservedNode::new(name.clone(), *online)).collect();
    match absence::search_nodes(&actuator.session, &nodes, vmid).await {
        GuestSearch::On(node) => return PromiseReading::OnNode(node),
        GuestSearch::Unproven(note) => {
            return PromiseReading::Unreadable(EnvFault::new(EnvFaultKind::Other, note.reason.word(), &note.text));
        }
        GuestSearch::Nowhere => {}
    }
    match require_quorum(actuator).await {
        Ok(after) if after == before => PromiseReading::Absent,
        Ok(_) => PromiseReading::Unreadable(EnvFault::new(
            EnvFaultKind::Other,
            UnknownReason::NotProven.word(),
            "nodes joined or left during the search",
        )),
        Err(cause) => PromiseReading::Unreadable(cause),
    }
}

async fn require_quorum<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>) -> Result<ClusterMembership, EnvFault> {
    match actuator.request(&EnvRequest::Cluster).await {
        EnvResponse::Cluster(membership) if membership.quorate => Ok(membership),
        EnvResponse::Cluster(_) => {
            let text = "the cluster has no quorum, so a missing guest does not prove that it is gone";
            Err(EnvFault::new(EnvFaultKind::NotQuorate, UnknownReason::NotProven.word(), text))
        }
        other => Err(unread_fault(other)),
    }
}

async fn call_read<E: ProxmoxTransport>(actuator: &ProxmoxActuator<E>, read: ProxmoxRead) -> Result<ProxmoxEvent, ProxmoxFailure> {
    actuator.session.call(&ProxmoxCommand::Read(read)).await
}

/// The result of a read that failed or returned another event.
fn failed_reading(result: Result<ProxmoxEvent, ProxmoxFailure>) -> PromiseReading {
    match result {
        Err(failure) if failure.cause == codec::FailureCause::NoSuchGuest => PromiseReading::GuestNotFound(response::env_fault(&failure)),
        Err(failure) => PromiseReading::Unreadable(response::unread_fault(&failure)),
        Ok(other) => PromiseReading::Unreadable(response::unread_fault(&other.unexpected_failure())),
    }
}

/// The result of a request that failed or returned another response.
fn unanswered_reading(response: EnvResponse) -> PromiseReading {
    match response {
        EnvResponse::GuestNotFound(cause) => PromiseReading::GuestNotFound(cause),
        other => PromiseReading::Unreadable(unread_fault(other)),
    }
}

fn unread_fault(response: EnvResponse) -> EnvFault {
    match response {
        EnvResponse::Unreadable(cause) | EnvResponse::GuestNotFound(cause) => cause,
        _ => EnvFault::new(EnvFaultKind::Other, UnknownReason::Malformed.word(), "the response belongs to another request"),
    }
}
