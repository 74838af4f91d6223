//! The steps of a migration: whether the guest can leave its node, and whether the other node can take it.

use super::placement::{check_memory, check_space, find_online};
use super::request::{Derived, require};
use crate::action::{Change, Migration, MigrationMode};
use crate::guest::{GuestKind, RunState, StorageName};
use crate::intent::MigrationRequest;
use crate::observe::{GuestHardware, ObservedGuest, ObservedNode, Reading, Scoped};
use crate::refusal::Refusal;

pub(super) fn derive_migration(request: &MigrationRequest, row: &ObservedGuest, state: RunState, observation: &Scoped) -> Derived {
    let Some(from) = observation.node_of(row) else { return Err(vec![Refusal::node_offline("not listed")]) };
    if from.name == request.node {
        return Ok(Vec::new());
    }
    let mode = choose_mode(request.mode, row.kind, state)?;
    let to = find_online(observation, &request.node).map_err(|refusal| vec![refusal])?;
    let hardware = require(row.hardware(), "disks")?;
    let mut refusals = Vec::new();
    match row.replicated() {
        Reading::Unread => refusals.push(Refusal::guard_unread(vec!["replication".to_owned()])),
        Reading::Read(true) => refusals.push(Refusal::guest_replicated()),
        Reading::Read(false) => {}
    }
    let copied = copied_volumes(request, hardware, from, &mut refusals);
    refusals.extend(check_target_storages(request, row.kind, hardware, from, to));
    if mode != MigrationMode::Offline {
        refusals.extend(check_memory(to, row.maxmem));
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    let storage = request.storage.clone();
    let migration = Migration { from: from.name.clone(), mode, storage, to: to.name.clone(), volumes: copied.into() };
    Ok(vec![Change::Migrate(Box::new(migration))])
}

/// The mode that was requested, or the one that fits the run-state. A container is restarted only on request, because it goes down.
fn choose_mode(requested: Option<MigrationMode>, kind: GuestKind, state: RunState) -> Result<MigrationMode, Vec<Refusal>> {
    let unsuitable = |needed| Err(vec![Refusal::run_state_unsuitable(needed, state)]);
    match (requested, kind, state) {
        (None | Some(MigrationMode::Offline), _, RunState::Stopped) => Ok(MigrationMode::Offline),
        (None | Some(MigrationMode::Online), GuestKind::Qemu, RunState::Running) => Ok(MigrationMode::Online),
        (Some(MigrationMode::Restart), GuestKind::Lxc, RunState::Running) => Ok(MigrationMode::Restart),
        (None, GuestKind::Lxc, RunState::Running) | (Some(MigrationMode::Offline), _, RunState::Running) => unsuitable(RunState::Stopped),
        (Some(MigrationMode::Online | MigrationMode::Restart), _, _) => unsuitable(RunState::Running),
    }
}

/// The volumes that are copied to the other node. Whatever ties the guest to its node otherwise is a refusal.
fn copied_volumes(request: &MigrationRequest, hardware: &GuestHardware, from: &ObservedNode, refusals: &mut Vec<Refusal>) -> Vec<Box<str>> {
    let mut tied: Vec<String> = hardware.host_devices.iter().map(|key| key.to_string()).collect();
    let mut copied = Vec::new();
    let disks = hardware.disks.iter().map(|disk| (disk.key.as_str(), disk.storage.as_ref(), &disk.volume, disk.is_cdrom));
    let others = hardware.other_volumes.iter().map(|other| (&*other.key, other.storage.as_ref(), &other.volume, false));
    for (key, storage, volume, is_cdrom) in disks.chain(others) {
        match storage.map(|storage| read_sharing(from, storage)) {
            // An empty drive is nowhere.
            None if &**volume == "none" => {}
            Some(Reading::Read(true)) => {}
            Some(Reading::Unread) => refusals.push(Refusal::guard_unread(vec!["storages".to_owned()])),
            Some(Reading::Read(false)) if request.local_disks && !is_cdrom => copied.push(volume.clone()),
            None | Some(Reading::Read(false)) => tied.push(format!("{key}: {volume}")),
        }
    }
    refusals.dedup();
    // A drive of a CD is among the disks and among the other volumes.
    tied.sort_unstable();
    tied.dedup();
    if !tied.is_empty() {
        refusals.push(Refusal::local_resources(tied));
    }
    copied
}

/// Whether all nodes see the same content of a storage.
fn read_sharing(node: &ObservedNode, storage: &StorageName) -> Reading<bool> {
    match node.storage(storage) {
        Reading::Unread => Reading::Unread,
        // A storage that the node does not list cannot be shown to be shared.
        Reading::Read(found) => Reading::Read(found.is_some_and(|found| found.shared)),
    }
}

/// Every storage that the guest uses must be usable on the other node, with space for what is copied there.
fn check_target_storages(
    request: &MigrationRequest,
    kind: GuestKind,
    hardware: &GuestHardware,
    from: &ObservedNode,
    to: &ObservedNode,
) -> Vec<Refusal> {
    let mut needed: Vec<(StorageName, u64)> = Vec::new();
    for disk in hardware.disks.iter().filter(|disk| !disk.is_cdrom) {
        let Some(own) = &disk.storage else { continue };
        let is_copied = read_sharing(from, own) == Reading::Read(false);
        let target = request.storage.as_ref().filter(|_| is_copied).unwrap_or(own);
        let kib = disk.size.filter(|_| is_copied).map_or(0, |size| size.kib());
        match needed.iter_mut().find(|(storage, _)| storage == target) {
            Some((_, sum)) => *sum = sum.saturating_add(kib),
            None => needed.push((target.clone(), kib)),
        }
    }
    let mut refusals: Vec<Refusal> = needed.iter().flat_map(|(storage, kib)| check_space(Some(to), storage, kind, *kib)).collect();
    refusals.dedup();
    refusals
}
