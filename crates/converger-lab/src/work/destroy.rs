//! Destroying a guest with its disks.
//!
//! What never enters here: what a call refuses before it forks a task.

use crate::guest::Kind;
use crate::guest::drive::Drive;
use crate::guest::{Guest, is_disk_key, is_unused_key};
use crate::task::TaskId;
use crate::update;
use crate::world::World;

pub(super) fn begin(world: &mut World, id: TaskId, vmid: u32, purge: bool) -> Result<u64, String> {
    let Some(guest) = world.guests.get(&vmid) else { return Err(format!("guest {vmid} vanished")) };
    if let Some(locked) = guest.locked() {
        return Err(locked);
    }
    if let Some(base) = volumes(guest).into_iter().find(|volume| world.storages.is_base_in_use(volume)) {
        return Err(format!("base volume '{base}' is still in use by linked cloned"));
    }
    let (node, kind) = (guest.node.clone(), guest.kind);
    if !world.is_quorate(&node) {
        let pid = world.tasks.get(id).map(|task| task.pid);
        return Err(update::read_only(world, &node, kind, vmid, pid));
    }
    if let Some(guest) = world.guests.change(vmid) {
        guest.process = None;
        guest.main.insert("lock".to_owned(), "destroyed".to_owned());
    }
    if purge {
        let word = kind.word();
        world.tasks.log(id, format!("purging {word} {vmid} from related configurations.."));
    }
    Ok(world.pace.destroy_ms)
}

/// Every volume that the guest names and owns.
fn volumes(guest: &Guest) -> Vec<String> {
    let named = guest.sections().flatten().filter(|(key, _)| is_disk_key(guest.kind, key) || is_unused_key(key));
    let drives = named.map(|(_, value)| Drive::parse(value)).filter(|drive| drive.is_owned() && !drive.file.starts_with('/'));
    drives.map(|drive| drive.file).collect()
}

/// Disks, permissions, pool membership and firewall go with it; the rest only where it was asked.
pub(super) fn finish(world: &mut World, vmid: u32, purge: bool) -> Result<(), String> {
    let Some(guest) = world.guests.remove(vmid) else { return Ok(()) };
    for volume in volumes(&guest) {
        world.storages.volumes.remove(&volume);
    }
    world.views.freeze(vmid);
    world.access.grants.retain(|grant| grant.path != format!("/vms/{vmid}"));
    for pool in world.access.pools.values_mut() {
        pool.guests.remove(&vmid);
    }
    world.firewalls.forget(vmid);
    if purge || guest.kind == Kind::Lxc {
        world.ha.remove(&guest.service());
    }
    Ok(())
}
