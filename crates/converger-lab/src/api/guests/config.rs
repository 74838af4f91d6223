//! `config` and `pending`: reading, and passing updates on.
//!
//! How an update is applied is in `crate::config_update`.

use serde_json::{Value, json};

use crate::api::ApiCall;
use crate::config_update;
use crate::events::NewTask;
use crate::guest::LabGuestKind;
use crate::response::{ApiData, ApiError};
use crate::task::LabTaskState;
use crate::task_work::TaskWork;
use crate::truth::GuestVerb;
use crate::world::World;

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let snapshot = call.param("snapshot");
    if call.is_set("current") && snapshot.is_some() {
        let text = "cannot use 'snapshot' parameter with 'current'".to_owned();
        return Err(ApiError::Params([("current".to_owned(), text.clone()), ("snapshot".to_owned(), text)].into(), 0));
    }
    let section = match snapshot {
        Some(name) => {
            guest.snapshots.get(name).cloned().ok_or_else(|| ApiError::internal_error(format!("snapshot '{name}' does not exist")))?
        }
        None if call.is_set("current") => guest.config.clone(),
        None => guest.merge_pending(),
    };
    let mut fields = guest.section_json(&section, world.flavour);
    fields.insert("digest".to_owned(), json!(guest.digest()));
    Ok(Value::Object(fields).into())
}

pub(super) fn read_pending(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let vmid = call.find_guest(world)?.vmid;
    Ok(ApiData::from_json_text(world.guests.pending_text(vmid, world.flavour).to_vec()))
}

/// Updates the config synchronously: waits until no task holds the guest, then writes.
pub(super) fn update_now(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let update = config_update::prepare_update(world, call)?;
    config_update::check_guest_free(world, &call.node, &update)?;
    let lock_file = call.kind.lock_file(update.vmid);
    let waited_ms = world.wait_for_guest_lock(update.vmid, &lock_file).map_err(|(text, delay_ms)| ApiError::Died(text, delay_ms))?;
    let took_ms = config_update::write_update(world, &call.node, &update)?;
    world.count_execution(GuestVerb::Config, update.vmid);
    Ok(ApiData::null().with_delay(waited_ms + took_ms))
}

/// Removes disks; the same as an update that only deletes keys.
pub(super) fn unlink_disks(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let renamed = |name: &str| if name == "idlist" { "delete" } else { name }.to_owned();
    let values: Vec<_> = call.values.iter().map(|(name, value)| (renamed(name), value.clone())).collect();
    let (caller, entry, node) = (call.caller.clone(), call.entry.clone(), call.node.clone());
    update_now(world, &ApiCall { method: call.method, values: values.into(), caller, entry, node, kind: call.kind })
}

/// Updates the config in a task. With a delay, the call waits that long and returns nothing if the task succeeded.
pub(super) fn update_in_task(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    debug_assert!(call.kind == LabGuestKind::Qemu, "containers have no such method");
    let update = config_update::prepare_update(world, call)?;
    config_update::check_guest_free(world, &call.node, &update)?;
    let vmid = update.vmid;
    let upid = world.start_task(NewTask::holding_guest(&call.node, &call.caller, "qmconfig", vmid, TaskWork::Config(Box::new(update))));
    let Some(patience_s) = call.number_param("background_delay") else { return Ok(upid.into()) };
    let began_ms = world.now_ms;
    let ends_ms = world.tasks.find_by_upid(&upid).and_then(|(_, task)| match task.state {
        LabTaskState::Running { ends_ms } => ends_ms,
        _ => None,
    });
    match ends_ms.filter(|ends_ms| *ends_ms <= began_ms + patience_s * 1_000) {
        Some(ends_ms) => {
            world.advance(ends_ms);
            let status = world.tasks.find_by_upid(&upid).and_then(|(_, task)| task.status());
            let data = if status == Some("OK") { ApiData::null() } else { upid.into() };
            Ok(data.with_delay(ends_ms - began_ms))
        }
        None => Ok(ApiData::from(upid).with_delay(patience_s * 1_000)),
    }
}
