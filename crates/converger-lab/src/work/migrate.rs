//! Guests that move to another node.
//!
//! What never enters here: what a call refuses before it forks a task.

use crate::engine::Event;
use crate::guest::drive::{Drive, drives};
use crate::guest::{Guest, Kind, Process};
use crate::task::TaskId;
use crate::work::power;
use crate::world::World;

/// So long a container that moves by a restart has for going down, unless the call says otherwise.
pub(crate) const RESTART_TIMEOUT_MS: u64 = 180_000;

/// A guest on its way to another node.
#[derive(Clone, Debug)]
pub(crate) struct Migration {
    pub(crate) vmid: u32,
    pub(crate) kind: Kind,
    pub(crate) target: String,
    /// It runs, and is to run on while it moves.
    pub(crate) online: bool,
    /// It runs, and goes down before it moves.
    pub(crate) down: Option<Down>,
    /// And comes up again where it arrives.
    pub(crate) comes_up: bool,
    /// Disks that are on this node alone are taken along while it runs.
    pub(crate) local_disks: bool,
}

/// How a guest goes down before it moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Down {
    pub(crate) timeout_ms: u64,
    /// By force after the timeout.
    pub(crate) force: bool,
}

/// The disks of a guest that its node does not share with the others.
pub(crate) fn local_disks<'w>(world: &'w World, guest: &'w Guest) -> impl Iterator<Item = (&'w String, Drive)> {
    let shared = |drive: &Drive| drive.storage().and_then(|name| world.storages.all.get(name)).is_some_and(|storage| storage.shared);
    drives(guest.kind, &guest.main).filter(move |(_, drive)| !drive.is_cdrom() && !shared(drive))
}

/// What is said where a node lacks a storage that a guest has a disk on.
pub(crate) fn lacks_storage(world: &World, guest: &Guest, target: &str) -> Option<String> {
    let mut disks = drives(guest.kind, &guest.main).filter(|(_, drive)| !drive.is_cdrom());
    disks.find_map(|(_, drive)| {
        let name = drive.storage()?;
        let is_there = world.storages.all.get(name)?.is_on(target);
        (!is_there).then(|| format!("storage '{name}' is not available on node '{target}'"))
    })
}

pub(super) fn begin(world: &mut World, id: TaskId, migration: &Migration) -> Result<u64, String> {
    let Migration { vmid, target, .. } = migration;
    let node = world.tasks.get(id).map(|task| task.node.clone()).unwrap_or_default();
    let Some(guest) = world.guests.get(vmid) else { return Err(migration.kind.missing(&node, *vmid)) };
    if let Some(locked) = guest.locked() {
        return Err(locked);
    }
    if !world.reaches(&node, target) {
        return Err(format!("migration aborted: no route to node '{target}'"));
    }
    if let Some(refused) = refused(world, guest, migration) {
        world.tasks.log(id, format!("ERROR: migration aborted (duration 00:00:00): {refused}"));
        return Err(refused);
    }
    let down = migration.down.map(|down| (down, guest.manner.shutdown_ms.filter(|needed_ms| *needed_ms <= down.timeout_ms)));
    let what = if migration.online { "online migration" } else { "migration" };
    world.tasks.log(id, format!("starting {what} of {} {vmid} to node '{target}'", migration.kind.word()));
    if let Some(guest) = world.guests.change(*vmid) {
        guest.main.insert("lock".to_owned(), "migrate".to_owned());
    }
    let Some((down, listens_ms)) = down else { return Ok(world.pace.migrate_ms) };
    world.tasks.log(id, format!("shutdown {} {vmid}", migration.kind.word()));
    let down_ms = match listens_ms {
        Some(needed_ms) => needed_ms,
        None if down.force => down.timeout_ms.saturating_add(power::FORCE_MS),
        None => return Ok(down.timeout_ms),
    };
    world.schedule(world.now_ms.saturating_add(down_ms), Event::GoesDown(id));
    let up_ms = if migration.comes_up { world.pace.start_ms } else { 0 };
    Ok(down_ms.saturating_add(world.pace.migrate_ms).saturating_add(up_ms))
}

/// What stands in the way and is seen by the task only.
fn refused(world: &World, guest: &Guest, migration: &Migration) -> Option<String> {
    match guest.kind {
        Kind::Lxc if migration.online => Some("lxc live migration is currently not implemented".to_owned()),
        Kind::Lxc => lacks_storage(world, guest, &migration.target),
        Kind::Qemu if migration.online && !migration.local_disks => {
            let local = local_disks(world, guest).next();
            local.map(|_| "can't live migrate attached local disks without with-local-disks option".to_owned())
        }
        Kind::Qemu => None,
    }
}

/// A guest that goes down before it moves is down from here on, unless its task is over.
pub(crate) fn go_down(world: &mut World, id: TaskId) {
    let vmid = world.tasks.get(id).filter(|task| !task.is_over()).and_then(|task| task.holds);
    if let Some(guest) = vmid.and_then(|vmid| world.guests.change(vmid)) {
        guest.process = None;
    }
}

/// The config file is renamed from one node's folder to the other's.
pub(super) fn finish(world: &mut World, migration: &Migration) -> Result<(), String> {
    let (now_ms, vmid) = (world.now_ms, migration.vmid);
    let Some(guest) = world.guests.change(vmid) else { return Ok(()) };
    guest.main.remove("lock");
    if migration.down.is_some() && guest.process.is_some() {
        return Err(power::not_down(migration.kind).to_owned());
    }
    world.views.freeze(vmid);
    let pid = world.nodes.get_mut(&migration.target).map_or(1, crate::node::Node::pid);
    let Some(guest) = world.guests.change(vmid) else { return Ok(()) };
    guest.node.clone_from(&migration.target);
    if let Some(process) = &mut guest.process {
        process.pid = pid;
    }
    if migration.comes_up {
        guest.process = Some(Process { pid, since_ms: now_ms, word: "running".to_owned() });
    }
    Ok(())
}
