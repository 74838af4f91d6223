//! Absence is a claim, and needs proof (G2): that a guest is not listed may mean that the token may not see it, or that the list
//! was empty because the cluster's file system was restarting.
//!
//! A guest is taken for absent only if the token would see it (permissions on its path), its id is free (which no permission hides),
//! and every node of the cluster says itself that it has no such guest, of either kind: the last reads files, where list and ids come from one source
//! that can be empty in silence. Quorum before and after is checked by the caller.
//!
//! Nodes are asked one after the other, and a guest may move meanwhile from one that was not asked yet to one that was. So the way is gone back as
//! well: to be overlooked twice, a guest would have to move twice within one proof.

use converger_core::guest::{GuestKind, NodeName, Vmid};
use converger_core::observe::ObservedNode;

use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::client::{ProxmoxSession, ProxmoxTransport};
use crate::proxmox::codec::{FailureCause, GuestPath, IdAvailability, ProxmoxCommand, ProxmoxEvent, ProxmoxRead};

/// So many guests are proven absent one by one. When more are not listed, something larger is wrong, and it is not worth asking.
pub(super) const PROOFS_MAX: usize = 32;

/// What came of looking for a guest that is not where it should be.
#[derive(Debug)]
pub(in crate::proxmox) enum GuestSearch {
    /// Nobody has it.
    Nowhere,
    /// It is on this node.
    On(NodeName),
    /// That nobody has it could not be shown.
    Unproven(ReadingNote),
}

/// Looks for a guest on every node. Whether the cluster had quorum all the time is for the caller to read, before and after.
pub(in crate::proxmox) async fn search_nodes<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    nodes: &[ObservedNode],
    vmid: Vmid,
) -> GuestSearch {
    let doubt = |reason, text: String| GuestSearch::Unproven(ReadingNote::for_guest(vmid, reason, text));
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::NextId(vmid))).await {
        Ok(ProxmoxEvent::NextId(IdAvailability::Free)) => {}
        Ok(_) => return doubt(UnknownReason::Hidden, format!("guest {vmid} is not listed, but its id is taken")),
        Err(failure) => return doubt(UnknownReason::NotProven, format!("whether the id {vmid} is free: {failure}")),
    }
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::PermissionsOn(vmid))).await {
        Ok(ProxmoxEvent::Permissions(granted)) if granted.has(&format!("/vms/{vmid}"), "VM.Audit") => {}
        Ok(_) => {
            return doubt(
                UnknownReason::NotPermitted,
                format!("guest {vmid} is not listed, and without VM.Audit on /vms/{vmid} the token would not see it"),
            );
        }
        Err(failure) => return doubt(UnknownReason::NotProven, format!("what the token may do on /vms/{vmid}: {failure}")),
    }
    if nodes.is_empty() {
        return doubt(UnknownReason::NotProven, format!("guest {vmid} is not listed, and there is no node that could be asked for it"));
    }
    if let Some(node) = nodes.iter().find(|node| !node.online) {
        return doubt(
            UnknownReason::NotProven,
            format!("guest {vmid} is not listed, and node {} cannot be asked for it", node.name.as_str()),
        );
    }
    let there_and_back = nodes.iter().chain(nodes.iter().rev().skip(1));
    for (node, kind) in there_and_back.flat_map(|node| GuestKind::ALL.map(|kind| (node, kind))) {
        let guest = GuestPath { node: node.name.clone(), kind, vmid };
        match session.call(&ProxmoxCommand::Read(ProxmoxRead::GuestStatus(guest))).await {
            Err(failure) if failure.cause == FailureCause::NoSuchGuest => {}
            Err(failure) => {
                return doubt(UnknownReason::NotProven, format!("whether guest {vmid} is on node {}: {failure}", node.name.as_str()));
            }
            Ok(_) => return GuestSearch::On(node.name.clone()),
        }
    }
    GuestSearch::Nowhere
}

impl GuestSearch {
    /// Why a guest that is not listed is not shown to be absent; `None`: it is.
    pub(super) fn absence_doubt(self, vmid: Vmid) -> Option<ReadingNote> {
        match self {
            Self::Nowhere => None,
            Self::On(node) => {
                let text = format!("guest {vmid} is not listed, but it is on node {}", node.as_str());
                Some(ReadingNote::for_guest(vmid, UnknownReason::ListShrunken, text))
            }
            Self::Unproven(note) => Some(note),
        }
    }
}
