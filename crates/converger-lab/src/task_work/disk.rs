//! Resizes disks and moves them to other storages.
//!
//! Disks that a config update adds or removes are in `config_update`.

use crate::access::ApiCaller;
use crate::guest::drive::DriveValue;
use crate::guest::{LabGuestKind, size};
use crate::response::ApiError;
use crate::storage::VolumeChange;
use crate::task::{LabTask, TaskId};
use crate::world::World;

use super::clone::format_gibibytes;
use super::create::image_format_line;
use super::find_task_guest;

/// A disk that moves to another storage.
#[derive(Clone, Debug)]
pub(crate) struct DiskMove {
    pub(crate) vmid: u32,
    pub(crate) key: String,
    pub(crate) storage: String,
    pub(crate) format: Option<String>,
    /// Destroy the original afterwards instead of keeping it as unused.
    pub(crate) delete: bool,
}

fn find_drive(world: &World, vmid: u32, key: &str) -> Option<DriveValue> {
    world.guests.get(&vmid)?.get(key).map(DriveValue::parse)
}

/// The size of a disk's volume, which can differ from the size in the config after an interrupted resize. Every resize compares with it, and
/// changes nothing if it is the requested size.
pub(crate) fn actual_bytes(world: &World, drive: &DriveValue) -> u64 {
    world.storages.volumes.get(&drive.file).map_or_else(|| drive.size_bytes(), |volume| volume.bytes)
}

/// The requested size: absolute, or relative to the current one.
pub(crate) fn parse_target_bytes(now: u64, text: &str) -> Option<u64> {
    match text.strip_prefix('+') {
        Some(more) => size::parse(more).and_then(|more| now.checked_add(more)),
        None => size::parse(text),
    }
}

/// Growing a disk requires space on its storage.
pub(crate) fn check_may_take_space(world: &World, caller: &ApiCaller, drive: &DriveValue) -> Result<(), ApiError> {
    let Some(storage) = drive.storage() else { return Ok(()) };
    world.access.require_privilege(caller, &format!("/storage/{storage}"), "Datastore.AllocateSpace")
}

pub(super) fn begin_resize(world: &mut World, id: TaskId, vmid: u32, key: &str, text: &str, digest: Option<&str>) -> Result<u64, String> {
    let guest = find_task_guest(world, id, vmid)?;
    if guest.kind == LabGuestKind::Qemu && guest.differs_from_digest(digest) {
        return Err(world.flavour.checksum_mismatch_text().to_owned());
    }
    if let Some(locked) = guest.lock_error() {
        return Err(locked);
    }
    let guest_kind = guest.kind;
    let drive = find_drive(world, vmid, key).ok_or_else(|| format!("disk '{key}' does not exist"))?;
    if let Some(task_caller) = world.tasks.get(id).map(LabTask::caller) {
        check_may_take_space(world, &task_caller, &drive).map_err(|fail| fail.to_one_line())?;
    }
    if drive.is_cdrom() {
        return Err("you can't resize a cdrom".to_owned());
    }
    let now = actual_bytes(world, &drive);
    let wanted = parse_target_bytes(now, text).ok_or("invalid size string")?;
    if wanted < now {
        return Err("shrinking disks is not supported".to_owned());
    }
    check_space_for_growth(world, &drive, wanted)?;
    if wanted > now && guest_kind == LabGuestKind::Qemu {
        world.tasks.log_line(id, "Image resized.");
    }
    Ok(world.task_durations.resize_ms)
}

/// Fails if the storage of a disk has no space for its new size.
pub(crate) fn check_space_for_growth(world: &World, drive: &DriveValue, wanted: u64) -> Result<(), String> {
    let more = wanted.saturating_sub(actual_bytes(world, drive));
    drive.storage().map_or(Ok(()), |storage| world.storages.check_space(storage, more, VolumeChange::Resize(&drive.file)))
}

/// Grows the volume of a disk; its config still has the old size.
pub(super) fn grow_volume(world: &mut World, vmid: u32, key: &str, text: &str) {
    let Some(drive) = find_drive(world, vmid, key) else { return };
    let bytes = parse_target_bytes(actual_bytes(world, &drive), text);
    if let (Some(volume), Some(bytes)) = (world.storages.volumes.get_mut(&drive.file), bytes) {
        volume.bytes = bytes;
    }
}

pub(crate) fn finish_resize(world: &mut World, vmid: u32, key: &str, text: &str) -> Result<(), String> {
    let Some(mut drive) = find_drive(world, vmid, key) else { return Ok(()) };
    let now = actual_bytes(world, &drive);
    let Some(bytes) = parse_target_bytes(now, text).filter(|bytes| *bytes != now) else { return Ok(()) };
    grow_volume(world, vmid, key, text);
    drive.set_size_bytes(bytes);
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.config.insert(key.to_owned(), drive.to_text());
    }
    Ok(())
}

pub(super) fn begin_move(world: &mut World, id: TaskId, moving: &DiskMove) -> Result<u64, String> {
    let drive = find_drive(world, moving.vmid, &moving.key).ok_or_else(|| format!("disk '{}' does not exist", moving.key))?;
    let (from, to) = (drive.storage().unwrap_or_default().to_owned(), &moving.storage);
    let target = drive.file.replacen(&format!("{from}:"), &format!("{to}:"), 1);
    let size = format_gibibytes(drive.size_bytes());
    let mut lines = vec![
        format!("copying volume '{}' from current storage '{from}' to target storage '{to}'", drive.file),
        format!("create full clone of drive {} ({})", moving.key, drive.file),
        image_format_line(world, &target, drive.size_bytes()),
        format!("allocated target volume '{target}'"),
        format!("transferred 0.0 B of {size} (0.00%)"),
        format!("transferred {size} of {size} (100.00%)"),
    ];
    if moving.delete {
        lines.push(format!("removing source volume '{}' after successful copy", drive.file));
    }
    for line in lines {
        world.tasks.log_line(id, line);
    }
    Ok(world.task_durations.clone_ms)
}

pub(super) fn finish_move(world: &mut World, moving: &DiskMove) -> Result<(), String> {
    let Some(mut drive) = find_drive(world, moving.vmid, &moving.key) else { return Ok(()) };
    let before = drive.file.clone();
    let format = world.storages.volumes.get(&before).map(|volume| volume.format.clone());
    let format = moving.format.clone().or(format).unwrap_or_else(|| "raw".to_owned());
    drive.file = world.storages.allocate_volume(&moving.storage, moving.vmid, drive.size_bytes(), &format)?;
    if moving.delete {
        world.storages.volumes.remove(&before);
    }
    if let Some(guest) = world.guests.change_guest(moving.vmid) {
        guest.config.insert(moving.key.clone(), drive.to_text());
        if !moving.delete {
            guest.add_unused(&before);
        }
    }
    Ok(())
}
