//! `status/start` and its siblings: the checks before the task starts, and the task.
//!
//! A 200 proves nothing, because most failures are reported by the task; those are in `task_work`.

use crate::api::{ApiCall, require_quorum};
use crate::events::NewTask;
use crate::guest::{LabGuest, LabGuestKind};
use crate::response::{ApiData, ApiError};
use crate::task_work::{ShutdownWork, TaskWork};
use crate::world::World;

/// Default timeout of a shutdown.
const SHUTDOWN_TIMEOUT_S: u64 = 60;

/// Options that only Proxmox itself uses.
const INTERNAL_OPTIONS: &[&str] = &["skiplock", "keepActive", "migratedfrom", "stateuri", "migration_type", "migration_network"];

fn start_guest_task(world: &mut World, call: &ApiCall, name: &str, work: TaskWork) -> Result<ApiData, ApiError> {
    let kind = format!("{}{name}", call.kind.task_prefix());
    Ok(world.start_task(NewTask::holding_guest(&call.node, &call.caller, &kind, call.vmid(), work)).into())
}

/// The guest, for calls where a missing one fails in the task.
fn find_guest<'a>(world: &'a World, call: &ApiCall) -> Option<&'a LabGuest> {
    world.guest_on(&call.node, call.kind, call.vmid())
}

fn is_running(world: &World, call: &ApiCall) -> bool {
    find_guest(world, call).is_some_and(LabGuest::is_running)
}

/// For a guest that is managed by HA, a call only sets the requested state.
fn request_ha_state(world: &mut World, call: &ApiCall, name: &str, state: &str) -> Option<ApiData> {
    let vmid = call.vmid();
    let sid = format!("{}:{vmid}", call.kind.ha_prefix());
    if !world.ha.is_managed(&sid) {
        return None;
    }
    let work = TaskWork::Manage { kind: call.kind, sid, state: state.to_owned() };
    Some(world.start_task(NewTask::without_guest_lock(&call.node, &call.caller, name, vmid, work)).into())
}

pub(super) fn start(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    call.check_root_only(INTERNAL_OPTIONS)?;
    if call.kind == LabGuestKind::Lxc && is_running(world, call) {
        return Err(ApiError::internal_error(format!("CT {} already running", call.vmid())));
    }
    require_quorum(world, &call.node)?;
    if let Some(data) = request_ha_state(world, call, "hastart", "started") {
        return Ok(data);
    }
    start_guest_task(world, call, "start", TaskWork::Start { kind: call.kind, vmid: call.vmid() })
}

/// For containers, the call itself fails if the guest is not running.
fn require_running(world: &World, call: &ApiCall, action: &str) -> Result<(), ApiError> {
    if is_running(world, call) { Ok(()) } else { Err(ApiError::internal_error(format!("{action} {} not running", call.vmid()))) }
}

/// For virtual machines, the check looks for the config first.
fn require_running_with_config(world: &World, call: &ApiCall) -> Result<(), ApiError> {
    let vmid = call.vmid();
    if call.kind == LabGuestKind::Qemu && find_guest(world, call).is_none() {
        return Err(ApiError::internal_error(format!("unable to find configuration file for VM {vmid} on node '{}'", call.node)));
    }
    require_running(world, call, "VM")
}

pub(super) fn stop(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    call.check_root_only(INTERNAL_OPTIONS)?;
    let overrules = call.is_set("overrule-shutdown");
    if call.kind == LabGuestKind::Lxc {
        require_running(world, call, "CT")?;
    }
    let sid = format!("{}:{}", call.kind.ha_prefix(), call.vmid());
    if overrules && world.ha.is_managed(&sid) {
        return Err(ApiError::parameter_error("overrule-shutdown", "Not applicable for HA resources."));
    }
    if let Some(data) = request_ha_state(world, call, "hastop", "stopped") {
        return Ok(data);
    }
    if overrules {
        interrupt_own_shutdowns(world, call);
    }
    start_guest_task(world, call, "stop", TaskWork::Stop { kind: call.kind, vmid: call.vmid(), overrules })
}

/// A stop cancels the caller's own pending shutdown tasks.
fn interrupt_own_shutdowns(world: &mut World, call: &ApiCall) {
    let name = format!("{}shutdown", call.kind.task_prefix());
    let about = call.vmid().to_string();
    let user = call.caller.id();
    let is_same_task = |task: &crate::task::LabTask| task.kind == name && task.about == about && task.user == user && !task.is_over();
    let ids: Vec<u64> = world.tasks.all.iter().filter(|(_, task)| is_same_task(task)).map(|(id, _)| *id).collect();
    for id in ids {
        world.interrupt_task(id);
    }
}

pub(super) fn shutdown(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    call.check_root_only(INTERNAL_OPTIONS)?;
    let (kind, vmid, force) = (call.kind, call.vmid(), call.is_set("forceStop"));
    if kind == LabGuestKind::Lxc {
        require_running(world, call, "CT")?;
    }
    let paused = find_guest(world, call).is_some_and(LabGuest::is_paused);
    if paused && !force {
        return Err(ApiError::internal_error("VM is paused - cannot shutdown"));
    }
    if let Some(data) = request_ha_state(world, call, "hastop", "stopped") {
        return Ok(data);
    }
    let timeout_ms = if paused { 0 } else { shutdown_timeout_s(world, call).saturating_mul(1_000) };
    start_guest_task(world, call, "shutdown", TaskWork::Shutdown(ShutdownWork { kind, vmid, timeout_ms, force, reboot: false }))
}

/// The timeout of the request, else that of the guest's `startup` option, else one minute.
fn shutdown_timeout_s(world: &World, call: &ApiCall) -> u64 {
    let startup = find_guest(world, call).and_then(|guest| guest.get("startup")).unwrap_or_default();
    let down = startup.split(',').find_map(|part| part.strip_prefix("down=")).and_then(|text| text.parse().ok());
    call.number_param("timeout").or(down).unwrap_or(SHUTDOWN_TIMEOUT_S)
}

pub(super) fn reboot(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    if find_guest(world, call).is_some_and(LabGuest::is_paused) {
        return Err(ApiError::internal_error("VM is paused - cannot shutdown"));
    }
    require_running_with_config(world, call)?;
    let (kind, vmid) = (call.kind, call.vmid());
    // A container is killed after the timeout; a virtual machine is not.
    let force = kind == LabGuestKind::Lxc;
    let timeout_ms = shutdown_timeout_s(world, call).saturating_mul(1_000);
    start_guest_task(world, call, "reboot", TaskWork::Shutdown(ShutdownWork { kind, vmid, timeout_ms, force, reboot: true }))
}

pub(super) fn reset(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    call.check_root_only(INTERNAL_OPTIONS)?;
    require_running_with_config(world, call)?;
    start_guest_task(world, call, "reset", TaskWork::Reset { vmid: call.vmid() })
}

pub(super) fn suspend(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    call.check_root_only(INTERNAL_OPTIONS)?;
    let vmid = call.vmid();
    if call.kind == LabGuestKind::Lxc {
        require_running(world, call, "CT")?;
        return start_guest_task(world, call, "suspend", TaskWork::Pause { vmid });
    }
    require_running_with_config(world, call)?;
    if call.is_set("todisk") {
        world.access.require_privilege(&call.caller, &format!("/vms/{vmid}"), "VM.Config.Disk")?;
        return start_guest_task(world, call, "suspend", TaskWork::Hibernate { vmid });
    }
    start_guest_task(world, call, "pause", TaskWork::Pause { vmid })
}

pub(super) fn resume(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    call.check_root_only(&["skiplock", "nocheck"])?;
    let (kind, vmid) = (call.kind, call.vmid());
    let hibernated = find_guest(world, call).is_some_and(|guest| guest.lock() == Some("suspended"));
    if kind == LabGuestKind::Lxc && is_running(world, call) {
        return Err(ApiError::internal_error(format!("CT {vmid} already running")));
    }
    if kind == LabGuestKind::Qemu && !hibernated {
        require_running_with_config(world, call)?;
    }
    let work = if hibernated || kind == LabGuestKind::Lxc { TaskWork::Start { kind, vmid } } else { TaskWork::Resume { kind, vmid } };
    start_guest_task(world, call, "resume", work)
}
