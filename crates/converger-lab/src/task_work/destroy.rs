//! Destroys guests with their disks.
//!
//! What the call checks before the task starts is in `api`.

use crate::config_update;
use crate::guest::LabGuestKind;
use crate::guest::drive::DriveValue;
use crate::guest::{LabGuest, is_disk_key, is_unused_key};
use crate::task::TaskId;
use crate::world::World;

pub(super) fn begin_destroy(world: &mut World, id: TaskId, vmid: u32, purge: bool) -> Result<u64, String> {
    let guest = super::find_task_guest(world, id, vmid)?;
    if let Some(locked) = guest.lock_error() {
        return Err(locked);
    }
    if let Some(base) = owned_volumes(guest).into_iter().find(|volume| world.storages.is_base_in_use(volume)) {
        return Err(format!("base volume '{base}' is still in use by linked cloned"));
    }
    let (node, kind) = (guest.node.clone(), guest.kind);
    if !world.is_quorate(&node) {
        let pid = world.tasks.get(id).map(|task| task.pid);
        return Err(config_update::read_only_text(world, &node, kind, vmid, pid));
    }
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.process = None;
        guest.config.insert("lock".to_owned(), "destroyed".to_owned());
    }
    if purge {
        let kind_word = kind.error_word();
        world.tasks.log_line(id, format!("purging {kind_word} {vmid} from related configurations.."));
    }
    Ok(world.task_durations.destroy_ms)
}

/// All volumes that the guest's config names and that belong to it.
fn owned_volumes(guest: &LabGuest) -> Vec<String> {
    let named = guest.sections().flatten().filter(|(key, _)| is_disk_key(guest.kind, key) || is_unused_key(key));
    let drives = named.map(|(_, value)| DriveValue::parse(value)).filter(|drive| drive.is_owned() && !drive.file.starts_with('/'));
    let ram_states = guest.sections().filter_map(|section| section.get("vmstate").cloned());
    drives.map(|drive| drive.file).chain(ram_states).collect()
}

/// Removes disks, permissions, pool membership and firewall; other references only with `purge`.
pub(crate) fn destroy_guest(world: &mut World, vmid: u32, purge: bool) {
    let Some(guest) = world.guests.remove_guest(vmid) else { return };
    for volume in owned_volumes(&guest) {
        world.storages.volumes.remove(&volume);
    }
    world.views.freeze_guest(vmid);
    world.access.grants.retain(|grant| grant.path != format!("/vms/{vmid}"));
    for pool in world.access.pools.values_mut() {
        pool.guests.remove(&vmid);
    }
    world.firewalls.remove_guest(vmid);
    world.replication.remove_guest(vmid);
    if purge || guest.kind == LabGuestKind::Lxc {
        world.ha.remove(&guest.ha_service_id());
    }
}
