//! The steps of a clone: the new guest must be proven absent, and its source fully read.

use super::placement::{check_space, find_online};
use super::request::{check_source_read, requested_step, require};
use super::{Verdict, guest};
use crate::action::{Change, CloneSource, ClonedDisks, GuestClone};
use crate::desired::DesiredGuest;
use crate::guest::{GuestIdentity, NodeName, RunState};
use crate::intent::{CloneRequest, RequestTarget};
use crate::observe::{ObservedGuest, ObservedNode, Reading, Scoped, Seen};
use crate::policy::Rules;
use crate::refusal::Refusal;

/// The verdict for the new guest.
pub(super) fn verdict(
    target: RequestTarget,
    request: &CloneRequest,
    guest: &DesiredGuest,
    listed: Option<&ObservedGuest>,
    observation: &Scoped,
    rules: &Rules,
) -> Verdict {
    match observation.presence(guest.vmid, listed) {
        Seen::Missing => {}
        Seen::Unknown(cause) => return Verdict::Refused(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, _) => return Verdict::Refused(vec![Refusal::id_taken(guest.vmid, row.name.as_deref())]),
    }
    let source = match observation.presence(target.vmid, observation.find(target.vmid)) {
        Seen::Missing => return Verdict::Refused(vec![Refusal::guest_missing()]),
        Seen::Unknown(cause) => return Verdict::Refused(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, _) if row.kind != target.kind => {
            return Verdict::Refused(vec![Refusal::kind_mismatch(target.kind, row.kind)]);
        }
        Seen::Present(row, _) => row,
    };
    match derive_clone(request, source, observation, rules) {
        // The new guest does not run, whatever its source does.
        Ok(clone) => Verdict::Steps(vec![requested_step(Change::Clone(Box::new(clone)), RunState::Stopped)]),
        Err(refusals) => Verdict::Refused(refusals),
    }
}

fn derive_clone(request: &CloneRequest, source: &ObservedGuest, observation: &Scoped, rules: &Rules) -> Result<GuestClone, Vec<Refusal>> {
    let mut refusals = check_source_read(source);
    let (Reading::Read(identity), Some(name), Some(digest), Reading::Read(is_template)) =
        (&source.identity, &source.name, &source.digest, source.template)
    else {
        return Err(refusals);
    };
    let Some(from) = observation.node_of(source).filter(|node| node.online) else {
        return Err(vec![Refusal::node_offline(observation.node_of(source).map_or("not listed", |node| node.name.as_str()))]);
    };
    let disks = request.disks.unwrap_or(if is_template { ClonedDisks::Linked } else { ClonedDisks::Full });
    refusals.extend(check_source(source, disks, is_template, rules));
    let node = request.node.clone().unwrap_or_else(|| from.name.clone());
    refusals.extend(check_target(request, source, disks, from, &node, observation));
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let source = CloneSource {
        digest: digest.clone(),
        identity: GuestIdentity::clone(identity),
        kind: source.kind,
        name: name.clone(),
        node: from.name.clone(),
        template: is_template,
        vmid: source.vmid,
    };
    let (name, pool, storage) = (request.name.clone(), request.pool.clone(), request.storage.clone());
    Ok(GuestClone { disks, name, node, pool, source, storage, vmid: request.vmid })
}

/// What must hold for the source: nobody else works on it, and nothing of it protects the clone unasked.
fn check_source(source: &ObservedGuest, disks: ClonedDisks, is_template: bool, rules: &Rules) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if let Reading::Read(Some(lock)) = &source.lock {
        refusals.push(Refusal::guest_locked(lock));
    }
    refusals.extend(guest::check_hold_tag(source));
    if disks == ClonedDisks::Linked && !is_template {
        refusals.push(Refusal::not_template(source.vmid));
    }
    let protecting = source.current_and_pending_tags().filter(|tag| rules.is_protecting_tag(tag)).map(|tag| format!("tag:{tag}"));
    let flag = (source.protection == Reading::Read(true)).then(|| "protection-flag".to_owned());
    let grounds: Vec<String> = protecting.chain(flag).collect();
    if !grounds.is_empty() {
        refusals.push(Refusal::protection_copied(grounds));
    }
    refusals
}

/// What must hold for the node and the storages of the clone.
fn check_target(
    request: &CloneRequest,
    source: &ObservedGuest,
    disks: ClonedDisks,
    from: &ObservedNode,
    node: &NodeName,
    observation: &Scoped,
) -> Vec<Refusal> {
    let to = match find_online(observation, node) {
        Ok(to) => to,
        Err(refusal) => return vec![refusal],
    };
    let hardware = match require(source.hardware(), "disks") {
        Ok(hardware) => hardware,
        Err(refusals) => return refusals,
    };
    let mut refusals = Vec::new();
    if !hardware.host_devices.is_empty() {
        refusals.push(Refusal::local_resources(hardware.host_devices.iter().map(|key| key.to_string()).collect()));
    }
    for disk in hardware.disks.iter().filter(|disk| !disk.is_cdrom) {
        let Some(own) = &disk.storage else {
            refusals.push(Refusal::local_resources(vec![format!("{}: {}", disk.key.as_str(), disk.volume)]));
            continue;
        };
        let storage = request.storage.as_ref().unwrap_or(own);
        let kib = disk.size.filter(|_| disks == ClonedDisks::Full).map_or(0, |size| size.kib());
        refusals.extend(check_space(Some(to), storage, source.kind, kib));
        // Proxmox copies to another node only if both nodes see the disks of the source.
        if to.name != from.name && !matches!(from.storage(own), Reading::Read(Some(found)) if found.shared) {
            refusals.push(Refusal::local_resources(vec![format!("{}: {}", disk.key.as_str(), disk.volume)]));
        }
    }
    refusals.dedup();
    refusals
}
