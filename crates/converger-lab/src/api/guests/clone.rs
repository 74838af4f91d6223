//! Clone requests: the checks before the task starts.
//!
//! The copy itself is in `task_work`.

use super::create;
use crate::api::{ApiCall, require_quorum};
use crate::config_update;
use crate::events::NewTask;
use crate::guest::drive::drives;
use crate::guest::{LabGuest, LabGuestKind, is_card_key};
use crate::response::{ApiData, ApiError};
use crate::storage::volume_name;
use crate::task_work::{CloneWork, TaskWork};
use crate::world::World;

/// Checks in the order of Proxmox: the request, the cluster, then the guest and its disks.
pub(super) fn clone_guest(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
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
            check_snapshot_exists(guest, &cloning)?;
            check_linked_storage(&cloning)?;
            check_clone_privileges(world, call, guest, &cloning)?;
            check_can_leave_node(world, call, guest, &cloning)?;
            check_id_free_here(world, call, target)?;
            check_linkable(guest, &cloning)?;
        }
        LabGuestKind::Lxc => {
            create::check_id_free(world, call, target)?;
            check_linked_storage(&cloning)?;
            check_snapshot_exists(guest, &cloning)?;
            check_clone_privileges(world, call, guest, &cloning)?;
            check_linkable(guest, &cloning)?;
            check_can_leave_node(world, call, guest, &cloning)?;
        }
    }
    let kind = format!("{}clone", call.kind.task_prefix());
    Ok(world.start_task(NewTask::without_guest_lock(&call.node, &call.caller, &kind, source, TaskWork::Clone(Box::new(cloning)))).into())
}

/// Checks that the target node exists, and that both nodes have the target storage.
fn check_target(world: &World, call: &ApiCall) -> Result<(), ApiError> {
    let away = call.param("target").filter(|target| *target != call.node);
    if let Some(target) = away.filter(|target| !world.nodes.contains_key(*target)) {
        return Err(ApiError::internal_error(format!("no such cluster node '{target}'")));
    }
    let Some(storage) = call.param("storage") else { return Ok(()) };
    let found = world.storages.find_storage(storage).map_err(ApiError::internal_error)?;
    if away.is_some() && !found.shared {
        return Err(ApiError::internal_error(format!("can't clone to non-shared storage '{storage}'")));
    }
    Ok(())
}

fn check_snapshot_exists(guest: &LabGuest, cloning: &CloneWork) -> Result<(), ApiError> {
    match cloning.snapshot.as_ref().filter(|snapshot| !guest.snapshots.contains_key(*snapshot)) {
        Some(snapshot) => Err(ApiError::internal_error(format!("snapshot '{snapshot}' does not exist"))),
        None => Ok(()),
    }
}

/// A linked clone stays on the storage of its original.
fn check_linked_storage(cloning: &CloneWork) -> Result<(), ApiError> {
    let leaves = !cloning.full && cloning.storage.is_some();
    if leaves { Err(ApiError::internal_error("parameter 'storage' not allowed for linked clones".to_owned())) } else { Ok(()) }
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
        description: own("description"),
        full: call.param("full").map_or(!guest.is_template(), |text| text == "1"),
        snapshot: own("snapname"),
        storage: own("storage"),
        pool: own("pool"),
    }
}

/// Every disk needs space on the target storage, also for a linked clone. Since release 8 every network card needs the right to use its
/// bridge.
fn check_clone_privileges(world: &World, call: &ApiCall, guest: &LabGuest, cloning: &CloneWork) -> Result<(), ApiError> {
    for (_, drive) in drives(guest.kind, &guest.config).filter(|(_, drive)| !drive.is_cdrom()) {
        if let Some(storage) = cloning.storage.as_deref().or(drive.storage()) {
            world.access.require_privilege(&call.caller, &format!("/storage/{storage}"), "Datastore.AllocateSpace")?;
        }
    }
    let mut cards = guest.config.iter().filter(|(key, _)| is_card_key(key));
    cards.try_for_each(|(key, value)| config_update::check_resource_privileges(world, call, guest.kind, key, value))
}

/// Whether a drive of the guest, including CD drives, is on storage that only its node reaches.
fn uses_local_storage(world: &World, guest: &LabGuest) -> bool {
    let is_shared = |name: &str| world.storages.all.get(name).is_some_and(|storage| storage.shared);
    drives(guest.kind, &guest.config).any(|(_, drive)| drive.storage().is_some_and(|name| !is_shared(name)))
}

fn check_can_leave_node(world: &World, call: &ApiCall, guest: &LabGuest, cloning: &CloneWork) -> Result<(), ApiError> {
    if cloning.node == call.node || !uses_local_storage(world, guest) {
        return Ok(());
    }
    let kind_word = call.kind.error_word();
    Err(ApiError::internal_error(format!("can't clone {kind_word} to node '{}' ({kind_word} uses local storage)", cloning.node)))
}

fn check_linkable(guest: &LabGuest, cloning: &CloneWork) -> Result<(), ApiError> {
    let mut disks = drives(guest.kind, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    match disks.find(|(_, drive)| !cloning.full && !volume_name(&drive.file).starts_with("base")) {
        Some((key, drive)) if cloning.kind == LabGuestKind::Qemu => {
            Err(ApiError::internal_error(format!("Linked clone feature is not supported for '{}' ({key})", drive.file)))
        }
        Some((_, drive)) => Err(ApiError::internal_error(format!("Linked clone feature for '{}' is not available", drive.file))),
        None => Ok(()),
    }
}
