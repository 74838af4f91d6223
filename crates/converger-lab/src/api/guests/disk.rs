//! `resize`, `move_disk`, `move_volume`.
//!
//! What never enters here: the work of tasks.

use crate::api::Call;
use crate::engine::Fork;
use crate::flavour::Flavour;
use crate::guest::Kind;
use crate::guest::drive::Drive;
use crate::respond::{Data, Fail};
use crate::update;
use crate::work::{self, Move, Work};
use crate::world::World;

pub(super) fn resize(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let vmid = call.guest(world)?.vmid;
    let key = call.text("disk").unwrap_or_default().to_owned();
    let size = call.text("size").unwrap_or_default().to_owned();
    let digest = call.text("digest").map(str::to_owned);
    match call.kind {
        Kind::Lxc => may_grow(world, call, &key, &size)?,
        Kind::Qemu if world.flavour == Flavour::V7 => return resize_at_once(world, call, &key, &size),
        Kind::Qemu => {}
    }
    let work = Work::Resize { vmid, key, size, digest };
    Ok(world.fork(Fork::holding(&call.node, &call.who, "resize", vmid, work)).into())
}

/// Containers look before they fork a task.
fn may_grow(world: &World, call: &Call, key: &str, size: &str) -> Result<(), Fail> {
    let drive = growing(world, call, key)?;
    let (now, wanted) = (drive.bytes(), work::target_bytes(drive.bytes(), size).unwrap_or(0));
    match wanted.cmp(&now) {
        std::cmp::Ordering::Less => Err(Fail::died("unable to shrink disk size")),
        std::cmp::Ordering::Equal => Err(Fail::died("disk is already at specified size")),
        std::cmp::Ordering::Greater => Ok(()),
    }
}

/// The disk that is to grow, by somebody who may take space where it lies.
fn growing(world: &World, call: &Call, key: &str) -> Result<Drive, Fail> {
    let guest = call.guest(world)?;
    if guest.is_other(call.text("digest")) {
        return Err(Fail::died(if call.kind == Kind::Lxc { update::MODIFIED } else { world.flavour.mismatch() }));
    }
    if let Some(locked) = guest.locked() {
        return Err(Fail::died(locked));
    }
    let Some(drive) = guest.get(key).map(Drive::parse) else { return Err(Fail::died(format!("disk '{key}' does not exist"))) };
    work::may_take_space(world, &call.who, &drive)?;
    Ok(drive)
}

/// Until 7 the call itself resized, and returned nothing.
fn resize_at_once(world: &mut World, call: &Call, key: &str, size: &str) -> Result<Data, Fail> {
    let drive = growing(world, call, key)?;
    match work::target_bytes(drive.bytes(), size) {
        Some(wanted) if wanted >= drive.bytes() => work::finish_resize(world, call.vmid(), key, size).map_err(Fail::died)?,
        _ => return Err(Fail::died("shrinking disks is not supported")),
    }
    Ok(Data::null())
}

pub(super) fn move_disk(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    if let Some(locked) = guest.locked() {
        return Err(Fail::died(locked));
    }
    let key = call.text("disk").or_else(|| call.text("volume")).unwrap_or_default().to_owned();
    let Some(drive) = guest.get(&key).map(Drive::parse) else { return Err(Fail::died(format!("disk '{key}' does not exist"))) };
    let Some(storage) = call.text("storage").map(str::to_owned) else {
        return Err(Fail::died("either set storage to move the disk to, or target-vmid and target-disk"));
    };
    world.storages.find(&storage).map_err(Fail::died)?;
    if drive.storage() == Some(storage.as_str()) && call.text("format").is_none() {
        return Err(Fail::died("you can't move to the same storage with same format"));
    }
    let vmid = guest.vmid;
    let name = if call.kind == Kind::Qemu { "qmmove" } else { "move_volume" };
    let moving = Move { vmid, key, storage, format: call.text("format").map(str::to_owned), delete: call.flag("delete") };
    Ok(world.fork(Fork::holding(&call.node, &call.who, name, vmid, Work::Move(moving))).into())
}
