//! `migrate`: its preconditions and its task.
//!
//! The migration itself is in `task_work`.

use serde_json::{Map, Value, json};

use crate::api::{ApiCall, require_quorum};
use crate::events::NewTask;
use crate::guest::drive::DriveValue;
use crate::guest::{LabGuest, LabGuestKind};
use crate::response::{ApiData, ApiError};
use crate::task_work::{self, GuestMigration, PreMoveShutdown, TaskWork};
use crate::world::World;

/// The preconditions of a migration.
pub(super) fn read_preconditions(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    if let Some(locked) = guest.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    let others: Vec<&str> = world.nodes.keys().map(String::as_str).filter(|node| *node != call.node).collect();
    let mut fields = json!({ "running": u8::from(guest.is_running()), "local_disks": local_disks_json(world, guest),
        "local_resources": [], "mapped-resources": [], "allowed_nodes": others,
        "not_allowed_nodes": others.iter().map(|node| ((*node).to_owned(), json!({}))).collect::<Map<_, _>>() });
    if world.flavour.major() >= 9 {
        fields["mapped-resource-info"] = json!({});
        fields["has-dbus-vmstate"] = json!(1);
    }
    Ok(fields.into())
}

fn local_disks_json(world: &World, guest: &LabGuest) -> Vec<Value> {
    task_work::find_local_disks(world, guest).map(|(key, drive)| local_disk_json(key, &drive)).collect()
}

fn local_disk_json(key: &str, drive: &DriveValue) -> Value {
    json!({ "volid": drive.file, "drivename": key, "size": drive.size_bytes(), "cdrom": 0, "shared": 0, "is_attached": 1, "is_unused": 0,
        "is_cloudinit": 0, "is_tpmstate": 0, "is_vmstate": 0, "replicate": 1 })
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
    let (online, restart) = (call.is_set("online"), call.is_set("restart"));
    match kind {
        LabGuestKind::Qemu if running && !online => return Err(ApiError::internal_error("can't migrate running VM without --online")),
        LabGuestKind::Lxc if running && !online && !restart => {
            return Err(ApiError::internal_error("can't migrate running container without --online or --restart"));
        }
        _ => {}
    }
    // For containers, the task checks this.
    if kind == LabGuestKind::Qemu && call.param("targetstorage").is_none() {
        task_work::missing_storage_error(world, guest, &target).map_or(Ok(()), |error| Err(ApiError::internal_error(error)))?;
    }
    let service = guest.ha_service_id();
    if world.ha.is_managed(&service) {
        let work = TaskWork::Manage { kind, sid: service, state: format!("migrate {target}") };
        return Ok(world.start_task(NewTask::without_guest_lock(&call.node, &call.caller, "hamigrate", vmid, work)).into());
    }
    let name = if kind == LabGuestKind::Qemu { "qmigrate" } else { "vzmigrate" };
    let timeout_ms = call.number_param("timeout").map_or(task_work::RESTART_TIMEOUT_MS, |seconds| seconds.saturating_mul(1_000));
    let down = (restart && running && kind == LabGuestKind::Lxc).then_some(PreMoveShutdown { timeout_ms, force: false });
    let (online, comes_up, local_disks) = (online && running, down.is_some(), call.is_set("with-local-disks"));
    let work = TaskWork::Migrate(GuestMigration { vmid, kind, target, online, shutdown_first: down, restarts: comes_up, local_disks });
    Ok(world.start_task(NewTask::holding_guest(&call.node, &call.caller, name, vmid, work)).into())
}
