//! `snapshot`: lists, descriptions, and the tasks that take, delete and roll back snapshots.
//!
//! What those tasks do is in `task_work`.

use serde_json::{Map, Value, json};

use crate::api::{ApiCall, nodes::subdirectory_index};
use crate::events::NewTask;
use crate::flavour::Flavour;
use crate::guest::{ConfigSection, LabGuest, LabGuestKind};
use crate::response::{ApiData, ApiError};
use crate::task_work::{SnapshotWork, TaskWork};
use crate::world::World;

pub(super) fn index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(subdirectory_index(&["config", "rollback"]))
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let mut entries: Vec<Value> = guest.snapshots.iter().map(|(name, values)| snapshot_json(guest, name, values)).collect();
    let mut current = json!({ "name": "current", "description": "You are here!", "digest": guest.digest(),
        "running": u8::from(guest.is_running()) });
    if let Some(parent) = guest.get("parent") {
        current["parent"] = json!(parent);
    }
    entries.push(current);
    Ok(json!(entries).into())
}

fn snapshot_json(guest: &LabGuest, name: &str, values: &ConfigSection) -> Value {
    let text = |key: &str| values.get(key).map(String::as_str);
    let notes = text("description").unwrap_or_default();
    let snaptime = text("snaptime").and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
    let mut fields = Map::new();
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    put("name", json!(name));
    put("snaptime", json!(snaptime));
    put("description", json!(notes));
    for key in ["parent", "snapstate"] {
        if let Some(value) = text(key) {
            put(key, json!(value));
        }
    }
    if guest.kind == LabGuestKind::Qemu {
        put("vmstate", json!(u8::from(text("vmstate").is_some())));
    }
    Value::Object(fields)
}

/// The snapshot that the path names.
fn find_snapshot<'a>(guest: &'a LabGuest, call: &ApiCall) -> Result<&'a ConfigSection, ApiError> {
    let name = call.param("snapname").unwrap_or_default();
    guest.snapshots.get(name).ok_or_else(|| ApiError::internal_error(format!("snapshot '{name}' does not exist")))
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let section = find_snapshot(guest, call)?;
    Ok(Value::Object(guest.section_json(section, world.flavour)).into())
}

pub(super) fn set_description(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    find_snapshot(guest, call)?;
    if let Some(locked) = guest.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    let name = call.param("snapname").unwrap_or_default();
    let section = world.guests.change_guest(call.vmid()).and_then(|guest| guest.snapshots.get_mut(name));
    if let (Some(section), Some(text)) = (section, call.param("description")) {
        section.insert("description".to_owned(), text.to_owned());
    }
    Ok(ApiData::null())
}

fn start_snapshot_task(world: &mut World, call: &ApiCall, name: &str, work: SnapshotWork) -> ApiData {
    let kind = format!("{}{name}", call.kind.task_prefix());
    world.start_task(NewTask::holding_guest(&call.node, &call.caller, &kind, call.vmid(), TaskWork::Snapshot(work))).into()
}

pub(super) fn take(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = call.param("snapname").unwrap_or_default().to_owned();
    let reserved = name == "current" || name == if call.kind == LabGuestKind::Qemu { "pending" } else { "vzdump" };
    if reserved {
        return Err(ApiError::internal_error(format!("unable to use snapshot name '{name}' (reserved name)")));
    }
    // Since release 9 the call itself reads the config of a virtual machine, to find devices that prevent saving its RAM.
    if call.kind == LabGuestKind::Qemu && world.flavour == Flavour::V9 {
        call.find_guest(world)?;
    }
    let description = call.param("description").map(str::to_owned);
    let memory = call.is_set("vmstate");
    Ok(start_snapshot_task(world, call, "snapshot", SnapshotWork::Take { vmid: call.vmid(), name, description, memory }))
}

pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = call.param("snapname").unwrap_or_default().to_owned();
    let force = call.is_set("force");
    Ok(start_snapshot_task(world, call, "delsnapshot", SnapshotWork::Delete { vmid: call.vmid(), name, force }))
}

pub(super) fn rollback(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = call.param("snapname").unwrap_or_default().to_owned();
    let start = call.is_set("start");
    Ok(start_snapshot_task(world, call, "rollback", SnapshotWork::Rollback { vmid: call.vmid(), name, start }))
}
