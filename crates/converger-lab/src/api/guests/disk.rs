//! `resize`, `move_disk`, `move_volume`.
//!
//! What their tasks do is in `task_work`.

use crate::api::ApiCall;
use crate::config_update;
use crate::events::NewTask;
use crate::flavour::Flavour;
use crate::guest::LabGuestKind;
use crate::guest::drive::DriveValue;
use crate::response::{ApiData, ApiError};
use crate::task_work::{self, DiskMove, TaskWork};
use crate::truth::GuestVerb;
use crate::world::World;

pub(super) fn resize(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let vmid = call.find_guest(world)?.vmid;
    let key = call.param("disk").unwrap_or_default().to_owned();
    let size = call.param("size").unwrap_or_default().to_owned();
    let digest = call.param("digest").map(str::to_owned);
    match call.kind {
        LabGuestKind::Lxc => check_can_grow(world, call, &key, &size)?,
        LabGuestKind::Qemu if world.flavour == Flavour::V7 => return resize_without_task(world, call, &key, &size),
        LabGuestKind::Qemu => {}
    }
    let work = TaskWork::Resize { vmid, key, size, digest };
    Ok(world.start_task(NewTask::holding_guest(&call.node, &call.caller, "resize", vmid, work)).into())
}

/// For containers, Proxmox checks the size before it starts the task.
fn check_can_grow(world: &World, call: &ApiCall, key: &str, size: &str) -> Result<(), ApiError> {
    let drive = find_growable_disk(world, call, key)?;
    let now = task_work::actual_bytes(world, &drive);
    let wanted = task_work::parse_target_bytes(now, size).unwrap_or(0);
    match wanted.cmp(&now) {
        std::cmp::Ordering::Less => Err(ApiError::internal_error("unable to shrink disk size")),
        std::cmp::Ordering::Equal => Err(ApiError::internal_error("disk is already at specified size")),
        std::cmp::Ordering::Greater => Ok(()),
    }
}

/// The disk to resize, if the caller may allocate space on its storage.
fn find_growable_disk(world: &World, call: &ApiCall, key: &str) -> Result<DriveValue, ApiError> {
    let guest = call.find_guest(world)?;
    if guest.differs_from_digest(call.param("digest")) {
        return Err(ApiError::internal_error(if call.kind == LabGuestKind::Lxc {
            config_update::LXC_MODIFIED_TEXT
        } else {
            world.flavour.checksum_mismatch_text()
        }));
    }
    if let Some(locked) = guest.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    let Some(drive) = guest.get(key).map(DriveValue::parse) else {
        return Err(ApiError::internal_error(format!("disk '{key}' does not exist")));
    };
    task_work::check_may_take_space(world, &call.caller, &drive)?;
    Ok(drive)
}

/// In release 7 the call itself resizes the disk and returns nothing.
fn resize_without_task(world: &mut World, call: &ApiCall, key: &str, size: &str) -> Result<ApiData, ApiError> {
    let drive = find_growable_disk(world, call, key)?;
    if drive.is_cdrom() {
        return Err(ApiError::internal_error("you can't resize a cdrom"));
    }
    let now = task_work::actual_bytes(world, &drive);
    match task_work::parse_target_bytes(now, size) {
        Some(wanted) if wanted >= now => {
            task_work::check_space_for_growth(world, &drive, wanted).map_err(ApiError::internal_error)?;
            task_work::finish_resize(world, call.vmid(), key, size).map_err(ApiError::internal_error)?;
            world.count_execution(GuestVerb::Resize, call.vmid());
        }
        _ => return Err(ApiError::internal_error("shrinking disks is not supported")),
    }
    Ok(ApiData::null())
}

pub(super) fn move_disk(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    if let Some(locked) = guest.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    let key = call.param("disk").or_else(|| call.param("volume")).unwrap_or_default().to_owned();
    let Some(drive) = guest.get(&key).map(DriveValue::parse) else {
        return Err(ApiError::internal_error(format!("disk '{key}' does not exist")));
    };
    let Some(storage) = call.param("storage").map(str::to_owned) else {
        return Err(ApiError::internal_error("either set storage to move the disk to, or target-vmid and target-disk"));
    };
    world.storages.find_storage(&storage).map_err(ApiError::internal_error)?;
    if drive.storage() == Some(storage.as_str()) && call.param("format").is_none() {
        return Err(ApiError::internal_error("you can't move to the same storage with same format"));
    }
    let vmid = guest.vmid;
    let name = if call.kind == LabGuestKind::Qemu { "qmmove" } else { "move_volume" };
    let moving = DiskMove { vmid, key, storage, format: call.param("format").map(str::to_owned), delete: call.is_set("delete") };
    Ok(world.start_task(NewTask::holding_guest(&call.node, &call.caller, name, vmid, TaskWork::Move(moving))).into())
}
