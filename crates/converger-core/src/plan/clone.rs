//! The steps of a clone: the new guest must be proven absent, and its source fully read.

use std::collections::BTreeMap;

use super::placement::{check_memory, check_space, find_online};
use super::request::{Derived, check_source_read, requested_step, require, step};
use super::{StepReason, Verdict, guest};
use crate::action::{Change, CloneSource, ClonedDisks, DiskGrowth, GuestClone};
use crate::artifact::Digest;
use crate::desired::DesiredGuest;
use crate::guest::{DiskKey, DiskSize, GuestIdentity, GuestKind, NodeName, RunState, StorageName};
use crate::intent::{ActionRequest, CloneRequest};
use crate::normalize::{BootOrder, Field, FieldValue};
use crate::observe::{GuestDisk, ObservedGuest, ObservedNode, ObservedStatus, Reading, Scoped, Seen};
use crate::policy::Rules;
use crate::refusal::Refusal;

/// The verdict for the new guest.
pub(super) fn verdict(
    asked: &ActionRequest,
    request: &CloneRequest,
    guest: &DesiredGuest,
    listed: Option<&ObservedGuest>,
    observation: &Scoped,
    rules: &Rules,
) -> Verdict {
    let target = asked.target();
    match observation.presence(guest.vmid, listed) {
        Seen::Missing => {}
        Seen::Unknown(cause) => return Verdict::Refused(vec![Refusal::guest_unknown(cause)]),
        Seen::Present(row, state) => {
            let own = rules.birth_of(row).filter(|birth| Digest::of_value(asked).is_ok_and(|digest| birth.request == Some(digest)));
            return match own {
                Some(birth) => super::birth::continue_request(birth, request, guest, (row, state), observation, rules),
                None => Verdict::Refused(vec![Refusal::id_taken(guest.vmid, row.name.as_deref())]),
            };
        }
    }
    let source = match observation.presence(target.vmid, observation.find(target.vmid)) {
        Seen::Missing => return Verdict::Refused(vec![Refusal::guest_missing().of_source(target.vmid)]),
        Seen::Unknown(cause) => return Verdict::Refused(vec![Refusal::guest_unknown(cause).of_source(target.vmid)]),
        Seen::Present(row, _) if row.kind != target.kind => {
            return Verdict::Refused(vec![Refusal::kind_mismatch(target.kind, row.kind).of_source(target.vmid)]);
        }
        Seen::Present(row, _) => row,
    };
    verdict_of_changes(derive_changes(request, source, observation, rules), StepReason::Requested)
}

/// The verdict for a guest that these changes make. It does not run until it is started, whatever its source does.
pub(super) fn verdict_of_changes(changes: Derived, reason: StepReason) -> Verdict {
    match changes {
        Ok(changes) => Verdict::Steps(changes.into_iter().map(|change| step(change, RunState::Stopped, reason.clone())).collect()),
        Err(refusals) => Verdict::Refused(refusals),
    }
}

/// The disk that is still smaller than requested, with the requested size.
pub(super) fn unfinished_disk(request: &CloneRequest, row: &ObservedGuest) -> Result<Option<(DiskKey, DiskSize)>, Vec<Refusal>> {
    let Some(size) = request.disk_size else { return Ok(None) };
    let key = grown_disk(request, row)?;
    let has_size = require(row.disks(), "disks")?.iter().any(|disk| disk.key == key && disk.size.is_some_and(|found| found >= size));
    Ok((!has_size).then_some((key, size)))
}

/// The disk that grows: the requested one, or the one that the guest boots from.
fn grown_disk(request: &CloneRequest, row: &ObservedGuest) -> Result<DiskKey, Vec<Refusal>> {
    if let Some(key) = &request.disk {
        return Ok(key.clone());
    }
    let disks: Vec<&DiskKey> = require(row.disks(), "disks")?.iter().filter(|disk| !disk.is_cdrom).map(|disk| &disk.key).collect();
    let is_root = |key: &&&DiskKey| key.as_str() == "rootfs";
    let order: &[Box<str>] = match &row.config {
        Reading::Read(config) => match config.get(Field::Boot) {
            Some(FieldValue::Boot(BootOrder::Devices(devices))) => devices,
            _ => &[],
        },
        Reading::Unread => &[],
    };
    let boots = |name: &str| disks.iter().find(|key| key.as_str() == name);
    let found = disks.iter().find(is_root).or_else(|| order.iter().find_map(|name| boots(name)));
    let found = found.or_else(|| disks.first().filter(|_| disks.len() == 1)).map(|key| DiskKey::clone(key));
    found.ok_or_else(|| {
        let why = "the guest has not exactly one disk and no boot order that names one; name the disk with `disk=`";
        vec![Refusal::unsupported_change("disk.grow", why)]
    })
}

/// Clone, first configuration, growth and start, in this order.
pub(super) fn derive_changes(request: &CloneRequest, source: &ObservedGuest, observation: &Scoped, rules: &Rules) -> Derived {
    let mut clone = derive_clone(request, source, observation, rules)?;
    let growth = derive_new_growth(request, &clone, source, observation)?;
    clone.grows = !growth.is_empty();
    let provision = (!request.provisioning.is_empty()).then(|| Change::Provision(Box::new(request.provisioning.clone())));
    let start = request.start.then_some(Change::Start);
    Ok(std::iter::once(Change::Clone(Box::new(clone))).chain(provision).chain(growth).chain(start).collect())
}

/// The growth of a disk of the new guest, which has the size of the source's disk at first.
fn derive_new_growth(request: &CloneRequest, clone: &GuestClone, source: &ObservedGuest, observation: &Scoped) -> Derived {
    let Some(after) = request.disk_size else { return Ok(Vec::new()) };
    let disk = grown_disk(request, source)?;
    let disks = require(source.disks(), "disks")?;
    let found = disks.iter().find(|own| own.key == disk && !own.is_cdrom);
    let Some((own, before)) = found.and_then(|own| Some((own, own.size?))) else {
        let existing = disks.iter().filter(|own| !own.is_cdrom).map(|own| own.key.as_str().to_owned()).collect();
        return Err(vec![Refusal::disk_missing(&disk, existing)]);
    };
    if after < before {
        return Err(vec![Refusal::disk_shrink(&disk, before, after)]);
    }
    if after == before {
        return Ok(Vec::new());
    }
    if let Some(storage) = clone.storage.as_ref().or(own.storage.as_ref()) {
        let node = observation.nodes.iter().find(|node| node.name == clone.node);
        let copied_kib = needed_space(disks, clone.storage.as_ref(), clone.disks).get(storage).copied().unwrap_or(0);
        let refusals = check_space(node, storage, source.kind, copied_kib.saturating_add(after.kib().saturating_sub(before.kib())));
        if !refusals.is_empty() {
            return Err(refusals);
        }
    }
    Ok(vec![Change::DiskGrow(Box::new(DiskGrowth { after, before, disk, volume: None }))])
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
    // Linked disks stay on the storage of the template.
    let is_linked = is_template && request.storage.is_none();
    let disks = request.disks.unwrap_or(if is_linked { ClonedDisks::Linked } else { ClonedDisks::Full });
    refusals.extend(check_source(request, source, disks, is_template, rules));
    let provision = requested_step(Change::Provision(Box::new(request.provisioning.clone())), RunState::Stopped);
    refusals.extend(super::config::check_supported(source, &[provision]));
    refusals.extend(check_tag_case(request, observation));
    refusals.extend(check_cloud_init(request, source));
    refusals.extend(check_container_marks(request, identity));
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
    let provisions = !request.provisioning.is_empty();
    Ok(GuestClone { disks, grows: false, name, node, pool, provisions, source, storage, vmid: request.vmid })
}

/// What must hold for the source: nobody else works on it, and nothing of it protects the clone unasked.
fn check_source(request: &CloneRequest, source: &ObservedGuest, disks: ClonedDisks, is_template: bool, rules: &Rules) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if let Reading::Read(Some(lock)) = &source.lock {
        refusals.push(Refusal::guest_locked(lock).of_source(source.vmid));
    }
    refusals.extend(guest::check_hold_tag(source).map(|refusal| refusal.of_source(source.vmid)));
    if disks == ClonedDisks::Linked && !is_template {
        refusals.push(Refusal::not_template(source.vmid));
    }
    // Proxmox copies the disks of a running container only from a snapshot.
    if source.kind == GuestKind::Lxc && disks == ClonedDisks::Full && source.status == ObservedStatus::Known(RunState::Running) {
        refusals.push(Refusal::run_state_unsuitable(RunState::Stopped, RunState::Running));
    }
    refusals.extend(check_copied_protection(request, source, rules));
    refusals
}

/// Refuses if the clone would be protected by what it copies and is not declared so, or if its first configuration would take such a tag
/// away.
fn check_copied_protection(request: &CloneRequest, source: &ObservedGuest, rules: &Rules) -> Option<Refusal> {
    let tags = request.provisioning.tags();
    let is_declared = rules.is_protected_name(request.name.as_str())
        || rules.ids().contains(&request.vmid)
        || tags.is_some_and(|tags| tags.iter().any(|tag| rules.is_protecting_tag(tag)));
    let is_left_out = |tag: &&str| tags.is_some_and(|tags| tags.iter().all(|own| own != *tag));
    let protecting = source.current_and_pending_tags().filter(|tag| rules.is_protecting_tag(tag));
    let tags = protecting.filter(|tag| !is_declared || is_left_out(tag)).map(|tag| format!("tag:{tag}"));
    let flag = (source.protection == Reading::Read(true) && !is_declared).then(|| "protection-flag".to_owned());
    let grounds: Vec<String> = tags.chain(flag).collect();
    (!grounds.is_empty()).then(|| Refusal::protection_copied(grounds))
}

/// Refuses every step after the clone for a container without a network device. Its only birth mark would be the name of its volume, which
/// any later guest under the id has too, and a first network device would be a new birth mark.
fn check_container_marks(request: &CloneRequest, source: &GuestIdentity) -> Option<Refusal> {
    let is_unmarked = matches!(source, GuestIdentity::Lxc { mac: None, .. });
    let has_more_steps = !request.provisioning.is_empty() || request.start || request.disk_size.is_some();
    let why = "the source has no network device, so nothing tells the new container from another one under its id; clone it without \
               a first configuration, or give the source a network device";
    (is_unmarked && has_more_steps).then(|| Refusal::unsupported_change("provision", why))
}

/// Refuses if parameters need cloud-init and the source has no drive for it: Proxmox would store them, and the guest would never read them.
fn check_cloud_init(request: &CloneRequest, source: &ObservedGuest) -> Option<Refusal> {
    let parameters = request.provisioning.cloud_init_parameters();
    let has_drive = source.disks().into_option().is_none_or(|disks| disks.iter().any(GuestDisk::is_cloud_init));
    (!parameters.is_empty() && !has_drive).then(|| Refusal::cloud_init_missing(source.vmid, &parameters))
}

/// Refuses if tags contain upper case and it is unknown whether the datacenter stores them in lower case.
fn check_tag_case(request: &CloneRequest, observation: &Scoped) -> Option<Refusal> {
    let has_upper_case = request.provisioning.tags().is_some_and(crate::normalize::WordSet::has_upper_case);
    (has_upper_case && observation.tag_case.is_none()).then(Refusal::tag_case_unread)
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
    let tied = |resources| Refusal::local_resources(resources).of_source(source.vmid);
    let mut refusals = Vec::new();
    if !hardware.host_devices.is_empty() {
        refusals.push(tied(hardware.host_devices.iter().map(|key| key.to_string()).collect()));
    }
    for disk in hardware.disks.iter().filter(|disk| !disk.is_cdrom) {
        let Some(own) = &disk.storage else {
            refusals.push(tied(vec![format!("{}: {}", disk.key.as_str(), disk.volume)]));
            continue;
        };
        // Proxmox copies to another node only if both nodes see the disks of the source.
        if to.name != from.name && !matches!(from.storage(own), Reading::Read(Some(found)) if found.shared) {
            refusals.push(tied(vec![format!("{}: {}", disk.key.as_str(), disk.volume)]));
        }
    }
    for (storage, kib) in needed_space(&hardware.disks, request.storage.as_ref(), disks) {
        refusals.extend(check_space(Some(to), storage, source.kind, kib));
    }
    // A guest that is not started needs no memory.
    refusals.extend(request.start.then(|| check_memory(to, memory_bytes(request, source))).flatten());
    refusals.dedup();
    refusals
}

/// The space that the disks of a clone need on each storage, in KiB. Linked disks start empty.
fn needed_space<'s>(source_disks: &'s [GuestDisk], target: Option<&'s StorageName>, disks: ClonedDisks) -> BTreeMap<&'s StorageName, u64> {
    let mut needed: BTreeMap<&StorageName, u64> = BTreeMap::new();
    for disk in source_disks.iter().filter(|disk| !disk.is_cdrom) {
        let Some(own) = &disk.storage else { continue };
        let kib = disk.size.filter(|_| disks == ClonedDisks::Full).map_or(0, |size| size.kib());
        let sum = needed.entry(target.unwrap_or(own)).or_default();
        *sum = sum.saturating_add(kib);
    }
    needed
}

/// The memory of the new guest: what its first configuration gives it, otherwise that of the source.
fn memory_bytes(request: &CloneRequest, source: &ObservedGuest) -> Option<u64> {
    let written = request.provisioning.fields.iter().find_map(|setting| match (setting.field, &setting.wanted) {
        (Field::Memory, Some(FieldValue::Mib(mib))) => u64::from(*mib).checked_mul(1024 * 1024),
        _ => None,
    });
    written.or(source.maxmem)
}
