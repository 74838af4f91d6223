//! Proof of absence (G2). A guest may be missing from the list because the token may not see it, or because the list was empty while the
//! cluster's file system restarted.
//!
//! A guest is absent only if the token would see it (permissions on its path), its id is free (which no permission hides), and every node
//! of the cluster reports that it has no such guest of either kind. The last check reads files, while the list and the ids come from one
//! source that can be empty without an error. The caller checks quorum before and after.
//!
//! The nodes are asked one after the other, and a guest may move in the meantime from a node that was not asked yet to one that was. So
//! they are asked again in reverse order: to be missed twice, a guest would have to move twice during one proof.

use converger_core::guest::{GuestKind, NodeName, Vmid};
use converger_core::observe::ObservedNode;

use super::unknown_reason::{ReadingNote, UnknownReason};
use crate::proxmox::client::{ProxmoxSession, ProxmoxTransport};
use crate::proxmox::codec::{FailureCause, GuestPath, IdAvailability, ProxmoxCommand, ProxmoxEvent, ProxmoxRead};

/// Maximum number of absence proofs. If more guests are missing from the list, a larger problem is likely, and proofs are pointless.
pub(super) const PROOFS_MAX: usize = 32;

/// The result of searching for a guest.
#[derive(Debug)]
pub(in crate::proxmox) enum GuestSearch {
    /// No node has it.
    Nowhere,
    /// It is on this node.
    On(NodeName),
    /// Its absence could not be proven.
    Unproven(ReadingNote),
}

/// Searches every node for a guest. The caller checks the quorum before and after.
pub(in crate::proxmox) async fn search_nodes<E: ProxmoxTransport>(
    session: &ProxmoxSession<E>,
    nodes: &[ObservedNode],
    vmid: Vmid,
) -> GuestSearch {
    let doubt = |reason, text: String| GuestSearch::Unproven(ReadingNote::for_guest(vmid, reason, text));
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::NextId(vmid))).await {
        Ok(ProxmoxEvent::NextId(IdAvailability::Free)) => {}
        Ok(_) => return doubt(UnknownReason::Hidden, format!("guest {vmid} is not listed, but its id is taken")),
        Err(failure) => return doubt(UnknownReason::NotProven, format!("cannot check whether id {vmid} is free: {failure}")),
    }
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::PermissionsOn(vmid))).await {
        Ok(ProxmoxEvent::Permissions(granted)) if granted.has(&format!("/vms/{vmid}"), "VM.Audit") => {}
        Ok(_) => {
            return doubt(
                UnknownReason::NotPermitted,
                format!("guest {vmid} is not listed, and without VM.Audit on /vms/{vmid} the token would not see it"),
            );
        }
        Err(failure) => return doubt(UnknownReason::NotProven, format!("cannot read the token's permissions on /vms/{vmid}: {failure}")),
    }
    if nodes.is_empty() {
        return doubt(UnknownReason::NotProven, format!("guest {vmid} is not listed, and there is no node to search for it"));
    }
    if let Some(node) = nodes.iter().find(|node| !node.online) {
        return doubt(
            UnknownReason::NotProven,
            format!("guest {vmid} is not listed, and node {} is offline and cannot be searched", node.name.as_str()),
        );
    }
    let there_and_back = nodes.iter().chain(nodes.iter().rev().skip(1));
    for (node, kind) in there_and_back.flat_map(|node| GuestKind::ALL.map(|kind| (node, kind))) {
        let guest = GuestPath { node: node.name.clone(), kind, vmid };
        match session.call(&ProxmoxCommand::Read(ProxmoxRead::GuestStatus(guest))).await {
            Err(failure) if failure.cause == FailureCause::NoSuchGuest => {}
            Err(failure) => {
                return doubt(
                    UnknownReason::NotProven,
                    format!("cannot read whether guest {vmid} is on node {}: {failure}", node.name.as_str()),
                );
            }
            Ok(_) => return GuestSearch::On(node.name.clone()),
        }
    }
    GuestSearch::Nowhere
}

impl GuestSearch {
    /// Why an unlisted guest is not proven absent; `None` if it is absent.
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
