//! What a guest needs of a node: memory, and storages for its disks. Shared by migration, clones and disk growth.

use crate::guest::{GuestKind, NodeName, StorageName};
use crate::observe::{ObservedNode, Reading, Scoped};
use crate::refusal::Refusal;

const KIB_PER_MIB: u64 = 1024;
const BYTES_PER_MIB: u64 = 1024 * 1024;

/// The node of this name, if it is online.
pub(super) fn find_online<'o>(observation: &'o Scoped, name: &NodeName) -> Result<&'o ObservedNode, Refusal> {
    match observation.nodes.iter().find(|node| node.name == *name) {
        Some(found) if found.online => Ok(found),
        Some(_) => Err(Refusal::node_offline(name.as_str())),
        None => Err(Refusal::node_unknown(name.as_str(), observation.nodes.iter().map(|node| node.name.as_str().to_owned()).collect())),
    }
}

/// Refuses if the storage is not usable for disks of this kind on the node, or has less free space than needed.
pub(super) fn check_space(node: Option<&ObservedNode>, storage: &StorageName, kind: GuestKind, needed_kib: u64) -> Vec<Refusal> {
    let unread = || vec![Refusal::guard_unread(vec!["storages".to_owned()])];
    let Some(node) = node else { return unread() };
    let unsuitable = |cause: &str| vec![Refusal::storage_unsuitable(storage.as_str(), node.name.as_str(), cause)];
    let content = match kind {
        GuestKind::Qemu => "images",
        GuestKind::Lxc => "rootdir",
    };
    let found = match node.storage(storage) {
        Reading::Unread => return unread(),
        Reading::Read(None) => return unsuitable("not listed"),
        Reading::Read(Some(found)) => found,
    };
    if !found.active {
        return unsuitable("not active");
    }
    if !found.content.iter().any(|own| own == content) {
        return unsuitable(&format!("not for content `{content}`"));
    }
    let Some(available) = found.available else { return unread() };
    let (needed_mib, available_mib) = (needed_kib.div_ceil(KIB_PER_MIB), available / BYTES_PER_MIB);
    if needed_mib > available_mib {
        return vec![Refusal::storage_full(storage.as_str(), needed_mib, available_mib)];
    }
    Vec::new()
}

/// Refuses if the node has less memory available than a guest of this size needs.
pub(super) fn check_memory(node: &ObservedNode, needed_bytes: Option<u64>) -> Option<Refusal> {
    let (Reading::Read(capacity), Some(needed)) = (&node.capacity, needed_bytes) else {
        return Some(Refusal::guard_unread(vec!["memory".to_owned()]));
    };
    let (needed_mib, available_mib) = (needed.div_ceil(BYTES_PER_MIB), capacity.memory_available / BYTES_PER_MIB);
    (needed_mib > available_mib).then(|| Refusal::node_memory(node.name.as_str(), needed_mib, available_mib))
}
