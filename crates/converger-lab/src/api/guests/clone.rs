//! Clone requests: the checks before the task starts.
//!
//! The copy itself is in `task_work`.

use super::create;
use crate::api::{ApiCall, require_quorum};
use crate::config_update;
use crate::events::NewTask;
use crate::guest::drive::{DriveValue, drives};
use crate::guest::{ConfigSection, LabGuest, LabGuestKind, is_card_key};
use crate::response::{ApiData, ApiError};
use crate::storage::volume_name;
use crate::task_work::{CloneWork, TaskWork};
use crate::world::World;

/// Checks in the order of Proxmox: the request, the cluster, then the guest and its disks.
pub(super) fn clone_guest(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_pool_exists(world, call)?;
    check_target(world, call)?;
    require_quorum(world, &call.node)?;
    let source = call.vmid();
    let not_found = || {
        ApiError::internal_error(format!(
            "unable to find configuration file for {} {source} on node '{}'",
            call.kind.error_word(),
            call.node
        ))
    };
    let guest = world.guest_on(&call.node, call.kind, source).ok_or_else(not_found)?;
    if let Some(locked) = guest.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    let target = call.param("newid").and_then(|text| text.parse().ok()).unwrap_or(0);
    let cloning = build_clone_work(call, guest, target);
    match call.kind {
        LabGuestKind::Qemu => {
            let section = find_source_section(guest, &cloning)?;
            check_linked_parameters(&cloning)?;
            check_clone_privileges(world, call, guest.kind, section, &cloning)?;
            check_can_leave_node(world, call, section, &cloning)?;
            check_id_free_here(world, call, target)?;
            check_disks(world, section, &cloning)?;
        }
        LabGuestKind::Lxc => {
            create::check_id_free(world, call, target)?;
            check_linked_parameters(&cloning)?;
            let section = find_source_section(guest, &cloning)?;
            check_clone_privileges(world, call, guest.kind, section, &cloning)?;
            check_no_bind_mounts(section)?;
            check_container_stopped(guest, &cloning)?;
            check_disks(world, section, &cloning)?;
            check_can_leave_node(world, call, section, &cloning)?;
        }
    }
    let kind = format!("{}clone", call.kind.task_prefix());
    Ok(world.start_task(NewTask::without_guest_lock(&call.node, &call.caller, &kind, source, TaskWork::Clone(Box::new(cloning)))).into())
}

fn check_pool_exists(world: &World, call: &ApiCall) -> Result<(), ApiError> {
    match call.param("pool").filter(|pool| !world.access.pools.contains_key(*pool)) {
        Some(pool) => Err(ApiError::internal_error(format!("pool '{pool}' does not exist"))),
        None => Ok(()),
    }
}

/// Checks that the target node exists, and that both nodes have the target storage.
fn check_target(world: &World, call: &ApiCall) -> Result<(), ApiError> {
    let away = call.param("target").filter(|target| *target != call.node);
    if let Some(target) = away.filter(|target| !world.nodes.contains_key(*target)) {
        return Err(ApiError::internal_error(format!("no such cluster node '{target}'")));
    }
    let Some(storage) = call.param("storage") else { return Ok(()) };
    let found = world.storages.check_enabled(storage, &call.node).map_err(ApiError::internal_error)?;
    if call.kind == LabGuestKind::Qemu && !found.content.contains("images") {
        return Err(ApiError::parameter_error("storage", format!("storage '{storage}' does not support vm images")));
    }
    if let Some(target) = away {
        world.storages.check_enabled(storage, target).map_err(ApiError::internal_error)?;
        if !found.shared {
            return Err(ApiError::internal_error(format!("can't clone to non-shared storage '{storage}'")));
        }
    }
    Ok(())
}

/// The section to copy: the config of the guest or of one of its snapshots.
fn find_source_section<'a>(guest: &'a LabGuest, cloning: &CloneWork) -> Result<&'a ConfigSection, ApiError> {
    let Some(snapshot) = &cloning.snapshot else { return Ok(&guest.config) };
    guest.snapshots.get(snapshot).ok_or_else(|| ApiError::internal_error(format!("snapshot '{snapshot}' does not exist")))
}

/// A linked clone stays on the storage of its original and keeps its format.
fn check_linked_parameters(cloning: &CloneWork) -> Result<(), ApiError> {
    let given = [("storage", cloning.storage.is_some()), ("format", cloning.format.is_some())];
    match given.into_iter().find(|(_, is_given)| *is_given && !cloning.full) {
        Some((name, _)) => Err(ApiError::internal_error(format!("parameter '{name}' not allowed for linked clones"))),
        None => Ok(()),
    }
}

/// Directories and devices of the node are not copied.
fn check_no_bind_mounts(section: &ConfigSection) -> Result<(), ApiError> {
    let mut mounts = drives(LabGuestKind::Lxc, section).filter(|(_, drive)| drive.file.starts_with('/'));
    let Some((key, drive)) = mounts.next() else { return Ok(()) };
    let kind = if drive.file.starts_with("/dev/") { "device" } else { "bind" };
    Err(ApiError::internal_error(format!("unable to clone mountpoint '{key}' (type {kind})")))
}

fn check_container_stopped(guest: &LabGuest, cloning: &CloneWork) -> Result<(), ApiError> {
    let text = "Cannot do full clones on a running container without snapshots";
    if guest.is_running() && cloning.full && cloning.snapshot.is_none() { Err(ApiError::internal_error(text)) } else { Ok(()) }
}

/// The call rejects a VMID that a guest of the same kind on this node uses. A conflict with any other guest fails only in the task.
fn check_id_free_here(world: &World, call: &ApiCall, target: u32) -> Result<(), ApiError> {
    let is_taken = world.guests.get(&target).is_some_and(|other| other.node == call.node && other.kind == call.kind);
    let text = || format!("unable to create {} {target}: config file already exists", call.kind.error_word());
    if is_taken { Err(ApiError::internal_error(text())) } else { Ok(()) }
}

fn build_clone_work(call: &ApiCall, guest: &LabGuest, target: u32) -> CloneWork {
    let own = |name: &str| call.param(name).map(str::to_owned);
    CloneWork {
        source: guest.vmid,
        kind: call.kind,
        target,
        node: call.param("target").unwrap_or(&call.node).to_owned(),
        name: own(call.kind.name_key()),
        description: own("description").filter(|text| !text.is_empty()),
        full: call.param("full").map_or(!guest.is_template(), |text| text == "1"),
        snapshot: own("snapname"),
        storage: own("storage"),
        format: own("format"),
        pool: own("pool"),
    }
}

/// Every disk needs space on the target storage, also for a linked clone. Since release 8 every network card needs the right to use its
/// bridge.
fn check_clone_privileges(
    world: &World,
    call: &ApiCall,
    kind: LabGuestKind,
    section: &ConfigSection,
    cloning: &CloneWork,
) -> Result<(), ApiError> {
    for (_, drive) in drives(kind, section).filter(|(_, drive)| !drive.is_cdrom()) {
        if let Some(storage) = cloning.storage.as_deref().or(drive.storage()) {
            world.access.require_privilege(&call.caller, &format!("/storage/{storage}"), "Datastore.AllocateSpace")?;
        }
    }
    let mut cards = section.iter().filter(|(key, _)| is_card_key(key));
    cards.try_for_each(|(key, value)| config_update::check_resource_privileges(world, call, kind, key, value))
}

/// Whether a drive, including CD drives, is on storage that only its node reaches. For containers the storage of the clone counts, for
/// virtual machines that of the original.
fn uses_local_storage(world: &World, section: &ConfigSection, cloning: &CloneWork) -> bool {
    let is_shared = |name: &str| world.storages.all.get(name).is_some_and(|storage| storage.shared);
    let other = cloning.storage.as_deref().filter(|_| cloning.kind == LabGuestKind::Lxc);
    drives(cloning.kind, section).any(|(_, drive)| other.or(drive.storage()).is_some_and(|name| !is_shared(name)))
}

fn check_can_leave_node(world: &World, call: &ApiCall, section: &ConfigSection, cloning: &CloneWork) -> Result<(), ApiError> {
    if cloning.node == call.node || !uses_local_storage(world, section, cloning) {
        return Ok(());
    }
    let kind_word = call.kind.error_word();
    Err(ApiError::internal_error(format!("can't clone {kind_word} to node '{}' ({kind_word} uses local storage)", cloning.node)))
}

/// Whether every disk can be copied or linked: a linked clone needs a base volume or, on storages that can clone snapshots, a snapshot.
fn check_disks(world: &World, section: &ConfigSection, cloning: &CloneWork) -> Result<(), ApiError> {
    let is_snapshot = cloning.snapshot.is_some();
    let is_supported = |drive: &DriveValue| {
        let kind = world.storages.kind_of_volume(&drive.file);
        match (cloning.full, is_snapshot) {
            (true, false) => true,
            // Data of a ZFS snapshot cannot be copied.
            (true, true) => kind != "zfspool",
            (false, true) => matches!(kind, "rbd" | "lvmthin"),
            (false, false) => volume_name(&drive.file).starts_with("base"),
        }
    };
    let mut disks = drives(cloning.kind, section).filter(|(_, drive)| !drive.is_cdrom());
    let Some((key, drive)) = disks.find(|(_, drive)| !is_supported(drive)) else { return Ok(()) };
    let (how, what) = (if cloning.full { "Full" } else { "Linked" }, if is_snapshot { " a snapshot of" } else { "" });
    Err(ApiError::internal_error(match cloning.kind {
        LabGuestKind::Qemu => format!("{how} clone feature is not supported for{what} '{}' ({key})", drive.file),
        LabGuestKind::Lxc => format!("{how} clone feature for '{}' is not available", drive.file),
    }))
}
