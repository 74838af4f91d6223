//! `snapshot`: lists, notes, and the tasks that take, delete and go back.
//!
//! What never enters here: the work of those tasks.

use serde_json::{Map, Value, json};

use crate::api::{Call, nodes::subdirs};
use crate::engine::Fork;
use crate::guest::{Guest, Kind, Section};
use crate::respond::{Data, Fail};
use crate::work::{Snapshotting, Work};
use crate::world::World;

pub(super) fn index(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(subdirs(&["config", "rollback"]))
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    let mut entries: Vec<Value> = guest.snapshots.iter().map(|(name, values)| entry(guest, name, values)).collect();
    let mut here = json!({ "name": "current", "description": "You are here!", "digest": guest.digest(),
        "running": u8::from(guest.is_running()) });
    if let Some(parent) = guest.get("parent") {
        here["parent"] = json!(parent);
    }
    entries.push(here);
    Ok(json!(entries).into())
}

fn entry(guest: &Guest, name: &str, values: &Section) -> Value {
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
    if guest.kind == Kind::Qemu {
        put("vmstate", json!(u8::from(text("vmstate").is_some())));
    }
    Value::Object(fields)
}

/// The snapshot that the path names.
fn named<'a>(guest: &'a Guest, call: &Call) -> Result<&'a Section, Fail> {
    let name = call.text("snapname").unwrap_or_default();
    guest.snapshots.get(name).ok_or_else(|| Fail::died(format!("snapshot '{name}' does not exist")))
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    let section = named(guest, call)?;
    Ok(Value::Object(guest.section_json(section, world.flavour)).into())
}

pub(super) fn describe(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    named(guest, call)?;
    if let Some(locked) = guest.locked() {
        return Err(Fail::died(locked));
    }
    let name = call.text("snapname").unwrap_or_default();
    let section = world.guests.change(call.vmid()).and_then(|guest| guest.snapshots.get_mut(name));
    if let (Some(section), Some(text)) = (section, call.text("description")) {
        section.insert("description".to_owned(), text.to_owned());
    }
    Ok(Data::null())
}

fn fork(world: &mut World, call: &Call, name: &str, work: Snapshotting) -> Data {
    let kind = format!("{}{name}", call.kind.prefix());
    world.fork(Fork::holding(&call.node, &call.who, &kind, call.vmid(), Work::Snapshot(work))).into()
}

pub(super) fn take(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let name = call.text("snapname").unwrap_or_default().to_owned();
    let reserved = name == "current" || name == if call.kind == Kind::Qemu { "pending" } else { "vzdump" };
    if reserved {
        return Err(Fail::died(format!("unable to use snapshot name '{name}' (reserved name)")));
    }
    let description = call.text("description").map(str::to_owned);
    let memory = call.flag("vmstate");
    Ok(fork(world, call, "snapshot", Snapshotting::Take { vmid: call.vmid(), name, description, memory }))
}

pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let name = call.text("snapname").unwrap_or_default().to_owned();
    let force = call.flag("force");
    Ok(fork(world, call, "delsnapshot", Snapshotting::Delete { vmid: call.vmid(), name, force }))
}

pub(super) fn rollback(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let name = call.text("snapname").unwrap_or_default().to_owned();
    let start = call.flag("start");
    Ok(fork(world, call, "rollback", Snapshotting::Rollback { vmid: call.vmid(), name, start }))
}
