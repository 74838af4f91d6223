//! Guests that move to another node.
//!
//! What never enters here: what a call refuses before it forks a task.

use crate::guest::Kind;
use crate::task::TaskId;
use crate::world::World;

/// A guest on its way to another node.
#[derive(Clone, Debug)]
pub(crate) struct Migration {
    pub(crate) vmid: u32,
    pub(crate) kind: Kind,
    pub(crate) target: String,
    pub(crate) online: bool,
    /// Containers cannot move while they run: they are stopped and started again.
    pub(crate) restart: bool,
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
    let what = if migration.online { "online migration" } else { "migration" };
    world.tasks.log(id, format!("starting {what} of {} {vmid} to node '{target}'", migration.kind.word()));
    if let Some(guest) = world.guests.change(*vmid) {
        guest.main.insert("lock".to_owned(), "migrate".to_owned());
    }
    Ok(world.pace.migrate_ms)
}

/// The config file is renamed from one node's folder to the other's.
pub(super) fn finish(world: &mut World, migration: &Migration) -> Result<(), String> {
    let now_ms = world.now_ms;
    world.views.freeze(migration.vmid);
    let pid = world.nodes.get_mut(&migration.target).map_or(1, crate::node::Node::pid);
    let Some(guest) = world.guests.change(migration.vmid) else { return Ok(()) };
    guest.main.remove("lock");
    guest.node.clone_from(&migration.target);
    if let Some(process) = &mut guest.process {
        process.pid = pid;
        if migration.restart {
            process.since_ms = now_ms;
        }
    }
    Ok(())
}
