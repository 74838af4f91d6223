//! `migrate`: what stands in the way, and the task.
//!
//! What never enters here: the move itself.

use serde_json::{Map, Value, json};

use crate::api::{Call, need_quorum};
use crate::engine::Fork;
use crate::guest::drive::Drive;
use crate::guest::{Guest, Kind};
use crate::respond::{Data, Fail};
use crate::work::{self, Down, Migration, Work};
use crate::world::World;

/// What a migration would meet.
pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    if let Some(locked) = guest.locked() {
        return Err(Fail::died(locked));
    }
    let others: Vec<&str> = world.nodes.keys().map(String::as_str).filter(|node| *node != call.node).collect();
    let mut fields = json!({ "running": u8::from(guest.is_running()), "local_disks": local_disks(world, guest),
        "local_resources": [], "mapped-resources": [], "allowed_nodes": others,
        "not_allowed_nodes": others.iter().map(|node| ((*node).to_owned(), json!({}))).collect::<Map<_, _>>() });
    if world.flavour.major() >= 9 {
        fields["mapped-resource-info"] = json!({});
        fields["has-dbus-vmstate"] = json!(1);
    }
    Ok(fields.into())
}

fn local_disks(world: &World, guest: &Guest) -> Vec<Value> {
    work::local_disks(world, guest).map(|(key, drive)| local_disk(key, &drive)).collect()
}

fn local_disk(key: &str, drive: &Drive) -> Value {
    json!({ "volid": drive.file, "drivename": key, "size": drive.bytes(), "cdrom": 0, "shared": 0, "is_attached": 1, "is_unused": 0,
        "is_cloudinit": 0, "is_tpmstate": 0, "is_vmstate": 0, "replicate": 1 })
}

pub(super) fn migrate(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let target = call.text("target").unwrap_or_default().to_owned();
    if target == call.node {
        return Err(Fail::param("target", "target is local node."));
    }
    need_quorum(world, &call.node)?;
    if !world.nodes.contains_key(&target) {
        return Err(Fail::died(format!("no such cluster node '{target}'")));
    }
    call.root_only(&["force", "migration_type", "migration_network"])?;
    let guest = call.guest(world)?;
    let (vmid, kind, running) = (guest.vmid, call.kind, guest.is_running());
    if let Some(locked) = guest.locked().filter(|_| kind == Kind::Qemu) {
        return Err(Fail::died(locked));
    }
    let (online, restart) = (call.flag("online"), call.flag("restart"));
    match kind {
        Kind::Qemu if running && !online => return Err(Fail::died("can't migrate running VM without --online")),
        Kind::Lxc if running && !online && !restart => {
            return Err(Fail::died("can't migrate running container without --online or --restart"));
        }
        _ => {}
    }
    // Of a container the task looks after this.
    if kind == Kind::Qemu && call.text("targetstorage").is_none() {
        work::lacks_storage(world, guest, &target).map_or(Ok(()), |lacks| Err(Fail::died(lacks)))?;
    }
    let service = guest.service();
    if world.ha.is_managed(&service) {
        let work = Work::Manage { kind, sid: service, state: format!("migrate {target}") };
        return Ok(world.fork(Fork::beside(&call.node, &call.who, "hamigrate", vmid, work)).into());
    }
    let name = if kind == Kind::Qemu { "qmigrate" } else { "vzmigrate" };
    let timeout_ms = call.number("timeout").map_or(work::RESTART_TIMEOUT_MS, |seconds| seconds.saturating_mul(1_000));
    let down = (restart && running && kind == Kind::Lxc).then_some(Down { timeout_ms, force: false });
    let (online, comes_up, local_disks) = (online && running, down.is_some(), call.flag("with-local-disks"));
    let work = Work::Migrate(Migration { vmid, kind, target, online, down, comes_up, local_disks });
    Ok(world.fork(Fork::holding(&call.node, &call.who, name, vmid, work)).into())
}
