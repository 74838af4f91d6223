//! Disks that grow or move.
//!
//! What never enters here: disks that come and go with a config update.

use crate::access::Who;
use crate::guest::drive::Drive;
use crate::guest::{Kind, size};
use crate::respond::Fail;
use crate::task::{Task, TaskId};
use crate::world::World;

use super::clone::gibibytes;
use super::create::formatting;

/// A disk on its way to another storage.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    pub(crate) vmid: u32,
    pub(crate) key: String,
    pub(crate) storage: String,
    pub(crate) format: Option<String>,
    /// Destroy the original afterwards, instead of setting it aside.
    pub(crate) delete: bool,
}

fn drive(world: &World, vmid: u32, key: &str) -> Option<Drive> {
    world.guests.get(&vmid)?.get(key).map(Drive::parse)
}

/// The size that is asked for: absolute, or added to what is there.
pub(crate) fn target_bytes(now: u64, text: &str) -> Option<u64> {
    match text.strip_prefix('+') {
        Some(more) => size::parse(more).and_then(|more| now.checked_add(more)),
        None => size::parse(text),
    }
}

/// Whoever grows a disk takes space on its storage.
pub(crate) fn may_take_space(world: &World, who: &Who, drive: &Drive) -> Result<(), Fail> {
    let Some(storage) = drive.storage() else { return Ok(()) };
    world.access.need(who, &format!("/storage/{storage}"), "Datastore.AllocateSpace")
}

pub(super) fn begin_resize(world: &mut World, id: TaskId, vmid: u32, key: &str, text: &str, digest: Option<&str>) -> Result<u64, String> {
    let Some(guest) = world.guests.get(&vmid) else { return Err(format!("guest {vmid} vanished")) };
    if guest.kind == Kind::Qemu && guest.is_other(digest) {
        return Err(world.flavour.mismatch().to_owned());
    }
    if let Some(locked) = guest.locked() {
        return Err(locked);
    }
    let drive = drive(world, vmid, key).ok_or_else(|| format!("disk '{key}' does not exist"))?;
    if let Some(who) = world.tasks.get(id).map(Task::who) {
        may_take_space(world, &who, &drive).map_err(|fail| fail.one_line())?;
    }
    let now = drive.bytes();
    let wanted = target_bytes(now, text).ok_or("invalid size string")?;
    if wanted < now {
        return Err("shrinking disks is not supported".to_owned());
    }
    if wanted > now && guest.kind == Kind::Qemu {
        world.tasks.log(id, "Image resized.");
    }
    Ok(world.pace.resize_ms)
}

pub(crate) fn finish_resize(world: &mut World, vmid: u32, key: &str, text: &str) -> Result<(), String> {
    let Some(mut drive) = drive(world, vmid, key) else { return Ok(()) };
    let Some(bytes) = target_bytes(drive.bytes(), text) else { return Ok(()) };
    if let Some(volume) = world.storages.volumes.get_mut(&drive.file) {
        volume.bytes = bytes;
    }
    drive.set_bytes(bytes);
    if let Some(guest) = world.guests.change(vmid) {
        guest.main.insert(key.to_owned(), drive.print());
    }
    Ok(())
}

pub(super) fn begin_move(world: &mut World, id: TaskId, moving: &Move) -> Result<u64, String> {
    let drive = drive(world, moving.vmid, &moving.key).ok_or_else(|| format!("disk '{}' does not exist", moving.key))?;
    let (from, to) = (drive.storage().unwrap_or_default().to_owned(), &moving.storage);
    let target = drive.file.replacen(&format!("{from}:"), &format!("{to}:"), 1);
    let size = gibibytes(drive.bytes());
    let mut lines = vec![
        format!("copying volume '{}' from current storage '{from}' to target storage '{to}'", drive.file),
        format!("create full clone of drive {} ({})", moving.key, drive.file),
        formatting(world, &target, drive.bytes()),
        format!("allocated target volume '{target}'"),
        format!("transferred 0.0 B of {size} (0.00%)"),
        format!("transferred {size} of {size} (100.00%)"),
    ];
    if moving.delete {
        lines.push(format!("removing source volume '{}' after successful copy", drive.file));
    }
    for line in lines {
        world.tasks.log(id, line);
    }
    Ok(world.pace.clone_ms)
}

pub(super) fn finish_move(world: &mut World, moving: &Move) -> Result<(), String> {
    let Some(mut drive) = drive(world, moving.vmid, &moving.key) else { return Ok(()) };
    let before = drive.file.clone();
    let format = world.storages.volumes.get(&before).map(|volume| volume.format.clone());
    let format = moving.format.clone().or(format).unwrap_or_else(|| "raw".to_owned());
    drive.file = world.storages.allocate(&moving.storage, moving.vmid, drive.bytes(), &format)?;
    if moving.delete {
        world.storages.volumes.remove(&before);
    }
    if let Some(guest) = world.guests.change(moving.vmid) {
        guest.main.insert(moving.key.clone(), drive.print());
        if !moving.delete {
            guest.add_unused(&before);
        }
    }
    Ok(())
}
