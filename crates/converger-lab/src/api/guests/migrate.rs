//! `migrate`: its preconditions and its task.
//!
//! The migration itself is in `task_work`.

use serde_json::{Map, Value, json};

use crate::api::{ApiCall, require_quorum};
use crate::events::NewTask;
use crate::guest::drive::DriveValue;
use crate::guest::{LabGuest, LabGuestKind, is_unused_key};
use crate::response::{ApiData, ApiError};
use crate::task_work::{self, GuestMigration, PreMoveShutdown, StorageMap, TaskWork};
use crate::world::World;

/// The preconditions of a migration.
pub(super) fn read_preconditions(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    let guest = call.find_guest(world)?;
    if let Some(locked) = guest.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    Ok(match call.kind {
        LabGuestKind::Qemu => qemu_preconditions(world, call, guest).into(),
        LabGuestKind::Lxc => container_preconditions(world, call, guest).into(),
    })
}

/// Which nodes have all storages of the guest is only told for a stopped guest before release 9, and always since.
fn qemu_preconditions(world: &World, call: &ApiCall, guest: &LabGuest) -> Value {
    let is_running = guest.is_running();
    let mut fields = json!({ "running": u8::from(is_running), "local_disks": local_disks_json(world, guest),
        "local_resources": task_work::local_devices(guest) });
    if world.flavour.major() >= 8 {
        fields["mapped-resources"] = json!([]);
        fields["mapped-resource-info"] = json!({});
    }
    if !is_running || world.flavour.major() >= 9 {
        let others: Vec<(&String, Vec<String>)> =
            other_nodes(world, call).map(|node| (node, task_work::missing_storages(world, guest, node))).collect();
        let allowed: Vec<&String> = others.iter().filter(|(_, missing)| missing.is_empty()).map(|(node, _)| *node).collect();
        fields["allowed_nodes"] = json!(allowed);
        // Nodes that are allowed are listed here too, without a reason.
        let blockers = |missing: &Vec<String>| if missing.is_empty() { json!({}) } else { json!({ "unavailable_storages": missing }) };
        let all: Map<String, Value> = others.iter().map(|(node, missing)| ((*node).clone(), blockers(missing))).collect();
        fields["not_allowed_nodes"] = Value::Object(all);
    }
    if world.flavour.major() >= 9 {
        fields["has-dbus-vmstate"] = json!(1);
        if world.ha.is_managed(&guest.ha_service_id()) {
            fields["dependent-ha-resources"] = json!([]);
        }
    }
    fields
}

/// For containers, only high availability can rule out a node here; storages are checked by the task.
fn container_preconditions(world: &World, call: &ApiCall, guest: &LabGuest) -> Value {
    let mut fields = json!({ "running": u8::from(guest.is_running()), "allowed-nodes": other_nodes(world, call).collect::<Vec<_>>(),
        "not-allowed-nodes": {} });
    if world.ha.is_managed(&guest.ha_service_id()) {
        fields["dependent-ha-resources"] = json!([]);
    }
    fields
}

fn other_nodes<'a>(world: &'a World, call: &'a ApiCall) -> impl Iterator<Item = &'a String> {
    world.nodes.keys().filter(|node| **node != call.node)
}

fn local_disks_json(world: &World, guest: &LabGuest) -> Vec<Value> {
    task_work::find_local_volumes(world, guest).into_iter().map(|(key, drive)| local_disk_json(&key, &drive)).collect()
}

fn local_disk_json(key: &str, drive: &DriveValue) -> Value {
    let is_unused = is_unused_key(key);
    json!({ "volid": drive.file, "drivename": key, "size": drive.size_bytes(), "cdrom": u8::from(drive.is_cdrom()), "shared": 0,
        "is_attached": u8::from(!is_unused), "is_unused": u8::from(is_unused), "is_cloudinit": u8::from(drive.is_cloud_init()),
        "is_tpmstate": u8::from(key.starts_with("tpmstate")), "is_vmstate": 0, "replicate": 1 })
}

pub(super) fn start_migration(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let target = call.param("target").unwrap_or_default().to_owned();
    if target == call.node {
        return Err(ApiError::parameter_error("target", "target is local node."));
    }
    require_quorum(world, &call.node)?;
    if !world.nodes.contains_key(&target) {
        return Err(ApiError::internal_error(format!("no such cluster node '{target}'")));
    }
    call.check_root_only(&["force", "migration_type", "migration_network"])?;
    let guest = call.find_guest(world)?;
    let (vmid, kind, running) = (guest.vmid, call.kind, guest.is_running());
    if let Some(locked) = guest.lock_error().filter(|_| kind == LabGuestKind::Qemu) {
        return Err(ApiError::internal_error(locked));
    }
    check_mode(world, call, guest, &target)?;
    let storage_map = parse_storage_map(world, call, &target)?;
    // For containers, the task checks this.
    if kind == LabGuestKind::Qemu && storage_map.keeps_storages() {
        task_work::missing_storage_error(world, guest, &target).map_or(Ok(()), |error| Err(ApiError::internal_error(error)))?;
    }
    let service = guest.ha_service_id();
    if world.ha.is_managed(&service) {
        let work = TaskWork::Manage { kind, sid: service, state: format!("migrate {target}") };
        return Ok(world.start_task(NewTask::without_guest_lock(&call.node, &call.caller, "hamigrate", vmid, work)).into());
    }
    let (online, restart) = (call.is_set("online"), call.is_set("restart"));
    let name = if kind == LabGuestKind::Qemu { "qmigrate" } else { "vzmigrate" };
    let timeout_ms = call.number_param("timeout").map_or(task_work::RESTART_TIMEOUT_MS, |seconds| seconds.saturating_mul(1_000));
    let down = (restart && running && kind == LabGuestKind::Lxc).then_some(PreMoveShutdown { timeout_ms, force: false });
    let (online, comes_up, local_disks) = (online && running, down.is_some(), call.is_set("with-local-disks"));
    let (force, shutdown_first, restarts) = (call.is_set("force"), down, comes_up);
    let work = TaskWork::Migrate(GuestMigration { vmid, kind, target, online, shutdown_first, restarts, local_disks, force, storage_map });
    Ok(world.start_task(NewTask::holding_guest(&call.node, &call.caller, name, vmid, work)).into())
}

/// A running guest migrates only if that is requested. A replicated one migrates while it runs only to a node that has its copy.
fn check_mode(world: &World, call: &ApiCall, guest: &LabGuest, target: &str) -> Result<(), ApiError> {
    if !guest.is_running() {
        return Ok(());
    }
    let (online, restart) = (call.is_set("online"), call.is_set("restart"));
    match call.kind {
        LabGuestKind::Qemu if !online => Err(ApiError::internal_error("can't migrate running VM without --online")),
        LabGuestKind::Lxc if !online && !restart => {
            Err(ApiError::internal_error("can't migrate running container without --online or --restart"))
        }
        LabGuestKind::Qemu => {
            let is_replicated = world.replication.jobs_of_guest(guest.vmid).next().is_some();
            let is_blocked = is_replicated && !world.replication.has_target(guest.vmid, target) && !call.is_set("force");
            let text =
                || format!("Cannot live-migrate replicated VM to node '{target}' - not a replication target. Use 'force' to override.");
            if is_blocked { Err(ApiError::internal_error(text())) } else { Ok(()) }
        }
        LabGuestKind::Lxc => Ok(()),
    }
}

/// The storages that local disks move to: one for all, or pairs. `1` keeps them where they are.
fn parse_storage_map(world: &World, call: &ApiCall, target: &str) -> Result<StorageMap, ApiError> {
    let text = call.param("targetstorage").or_else(|| call.param("target-storage"));
    let map = text.map_or_else(StorageMap::default, StorageMap::parse);
    if text.is_none_or(|text| text == "1") {
        return Ok(map);
    }
    world.access.require_privilege(&call.caller, &format!("/vms/{}", call.vmid()), "VM.Config.Disk")?;
    for storage in map.targets() {
        world.access.require_privilege(&call.caller, &format!("/storage/{storage}"), "Datastore.AllocateSpace")?;
        let found = world.storages.check_enabled(storage, target).map_err(ApiError::internal_error)?;
        if call.kind == LabGuestKind::Qemu && !found.content.contains("images") {
            let text = format!("storage '{storage}' does not support vm images");
            return Err(ApiError::parameter_error("storage", text));
        }
    }
    Ok(map)
}
