//! Destroying a guest: the checks before the task starts.
//!
//! The destruction itself is in `task_work`.

use crate::api::ApiCall;
use crate::events::NewTask;
use crate::guest::LabGuestKind;
use crate::response::{ApiData, ApiError};
use crate::task_work::TaskWork;
use crate::world::World;

pub(super) fn destroy(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let (vmid, kind_word, purge) = (guest.vmid, guest.kind.error_word(), call.is_set("purge"));
    let stop = call.kind == LabGuestKind::Lxc && call.is_set("force");
    if guest.is_protected() {
        return Err(ApiError::internal_error(format!("can't remove {kind_word} {vmid} - protection mode enabled")));
    }
    if let Some(locked) = guest.lock_error().filter(|_| call.kind == LabGuestKind::Lxc) {
        return Err(ApiError::internal_error(locked));
    }
    if world.ha.is_managed(&guest.ha_service_id()) && !purge {
        let text = format!("unable to remove {kind_word} {vmid} - used in HA resources and purge parameter not set.");
        return Err(ApiError::internal_error(text));
    }
    if let Some((id, _)) = world.replication.jobs_of_guest(vmid).next().filter(|_| !purge) {
        let text = format!("There is a replication job '{id}' for guest '{vmid}' - Please remove that first.");
        return Err(ApiError::internal_error(text));
    }
    if guest.is_running() && !stop {
        let text = match call.kind {
            LabGuestKind::Qemu => format!("VM {vmid} is running - destroy failed"),
            LabGuestKind::Lxc => format!("unable to destroy CT {vmid} - container is running"),
        };
        return Err(ApiError::internal_error(text));
    }
    let name = format!("{}destroy", call.kind.task_prefix());
    Ok(world.start_task(NewTask::holding_guest(&call.node, &call.caller, &name, vmid, TaskWork::Destroy { vmid, purge })).into())
}
