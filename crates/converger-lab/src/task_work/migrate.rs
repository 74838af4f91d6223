//! Migrates guests to other nodes.
//!
//! What the call checks before the task starts is in `api`.

use crate::events::ScheduledEvent;
use crate::guest::drive::{DriveValue, drives};
use crate::guest::{GuestProcess, LabGuest, LabGuestKind};
use crate::task::TaskId;
use crate::task_work::power;
use crate::world::World;

/// Default timeout for the shutdown of a container that migrates by restart.
pub(crate) const RESTART_TIMEOUT_MS: u64 = 180_000;

/// A guest that migrates to another node.
#[derive(Clone, Debug)]
pub(crate) struct GuestMigration {
    pub(crate) vmid: u32,
    pub(crate) kind: LabGuestKind,
    pub(crate) target: String,
    /// It is running and keeps running while it migrates.
    pub(crate) online: bool,
    /// It is running and shuts down before it migrates.
    pub(crate) shutdown_first: Option<PreMoveShutdown>,
    /// It starts again on the target node.
    pub(crate) restarts: bool,
    /// Local disks are copied while it runs.
    pub(crate) local_disks: bool,
}

/// How a guest shuts down before it migrates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreMoveShutdown {
    pub(crate) timeout_ms: u64,
    /// Stop it by force after the timeout.
    pub(crate) force: bool,
}

/// The disks of a guest that are on storage of this node only.
pub(crate) fn find_local_disks<'w>(world: &'w World, guest: &'w LabGuest) -> impl Iterator<Item = (&'w String, DriveValue)> {
    let shared = |drive: &DriveValue| drive.storage().and_then(|name| world.storages.all.get(name)).is_some_and(|storage| storage.shared);
    drives(guest.kind, &guest.config).filter(move |(_, drive)| !drive.is_cdrom() && !shared(drive))
}

/// The error if a node lacks the storage of one of the guest's disks.
pub(crate) fn missing_storage_error(world: &World, guest: &LabGuest, target: &str) -> Option<String> {
    let mut disks = drives(guest.kind, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    disks.find_map(|(_, drive)| {
        let name = drive.storage()?;
        let is_there = world.storages.all.get(name)?.is_available_on(target);
        (!is_there).then(|| format!("storage '{name}' is not available on node '{target}'"))
    })
}

pub(super) fn begin_migration(world: &mut World, id: TaskId, migration: &GuestMigration) -> Result<u64, String> {
    let GuestMigration { vmid, target, .. } = migration;
    let node = world.tasks.get(id).map(|task| task.node.clone()).unwrap_or_default();
    let Some(guest) = world.guests.get(vmid) else { return Err(migration.kind.missing_config_text(&node, *vmid)) };
    if let Some(locked) = guest.lock_error() {
        return Err(locked);
    }
    if !world.is_reachable(&node, target) {
        return Err(format!("migration aborted: no route to node '{target}'"));
    }
    if let Some(refused) = migration_refusal(world, guest, migration) {
        world.tasks.log_line(id, format!("ERROR: migration aborted (duration 00:00:00): {refused}"));
        return Err(refused);
    }
    let down = migration.shutdown_first.map(|down| (down, guest.behaviour.shutdown_ms.filter(|needed_ms| *needed_ms <= down.timeout_ms)));
    let what = if migration.online { "online migration" } else { "migration" };
    world.tasks.log_line(id, format!("starting {what} of {} {vmid} to node '{target}'", migration.kind.error_word()));
    if let Some(guest) = world.guests.change_guest(*vmid) {
        guest.config.insert("lock".to_owned(), "migrate".to_owned());
    }
    let Some((down, listens_ms)) = down else { return Ok(world.task_durations.migrate_ms) };
    world.tasks.log_line(id, format!("shutdown {} {vmid}", migration.kind.error_word()));
    let down_ms = match listens_ms {
        Some(needed_ms) => needed_ms,
        None if down.force => down.timeout_ms.saturating_add(power::FORCED_STOP_MS),
        None => return Ok(down.timeout_ms),
    };
    world.schedule(world.now_ms.saturating_add(down_ms), ScheduledEvent::ContainerGoesDown(id));
    let up_ms = if migration.restarts { world.task_durations.start_ms } else { 0 };
    Ok(down_ms.saturating_add(world.task_durations.migrate_ms).saturating_add(up_ms))
}

/// Obstacles that only the task detects.
fn migration_refusal(world: &World, guest: &LabGuest, migration: &GuestMigration) -> Option<String> {
    match guest.kind {
        LabGuestKind::Lxc if migration.online => Some("lxc live migration is currently not implemented".to_owned()),
        LabGuestKind::Lxc => missing_storage_error(world, guest, &migration.target),
        LabGuestKind::Qemu if migration.online && !migration.local_disks => {
            let local = find_local_disks(world, guest).next();
            local.map(|_| "can't live migrate attached local disks without with-local-disks option".to_owned())
        }
        LabGuestKind::Qemu => None,
    }
}

/// Stops a guest before it migrates, unless its task has already ended.
pub(crate) fn stop_before_move(world: &mut World, id: TaskId) {
    let vmid = world.tasks.get(id).filter(|task| !task.is_over()).and_then(|task| task.holds);
    if let Some(guest) = vmid.and_then(|vmid| world.guests.change_guest(vmid)) {
        guest.process = None;
    }
}

/// Moves the config file from the directory of one node to that of the other.
pub(super) fn finish_migration(world: &mut World, migration: &GuestMigration) -> Result<(), String> {
    let (now_ms, vmid) = (world.now_ms, migration.vmid);
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    guest.config.remove("lock");
    if migration.shutdown_first.is_some() && guest.process.is_some() {
        return Err(power::shutdown_timeout_text(migration.kind).to_owned());
    }
    world.views.freeze_guest(vmid);
    let pid = world.nodes.get_mut(&migration.target).map_or(1, crate::node::LabNode::next_process_id);
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    guest.node.clone_from(&migration.target);
    if let Some(process) = &mut guest.process {
        process.pid = pid;
    }
    if migration.restarts {
        guest.process = Some(GuestProcess { pid, since_ms: now_ms, qemu_state: "running".to_owned() });
    }
    Ok(())
}
