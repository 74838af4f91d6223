//! `/cluster/ha`: guests under management.
//!
//! What never enters here: what the manager does about them.

use serde_json::{Value, json};

use crate::api::{Call, need_quorum};
use crate::guest::{Guest, Kind};
use crate::ha::HaResource;
use crate::respond::{Data, Fail};
use crate::world::World;

/// `vm:100`, also where only `100` was given.
fn sid(world: &World, call: &Call) -> String {
    let text = call.text("sid").unwrap_or_default();
    if text.contains(':') {
        return text.to_owned();
    }
    let guest = text.parse::<u32>().ok().and_then(|vmid| world.guests.get(&vmid));
    guest.map_or_else(|| format!("vm:{text}"), Guest::service)
}

fn entry(world: &World, sid: &str, resource: &HaResource) -> Value {
    let kind = sid.split(':').next().unwrap_or_default();
    let mut fields = json!({ "sid": sid, "type": kind, "state": resource.state, "digest": world.ha.digest() });
    if let Some(comment) = &resource.comment {
        fields["comment"] = json!(comment);
    }
    if let Some(group) = &resource.group {
        fields["group"] = json!(group);
    }
    fields
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let kind = call.text("type");
    let wanted = |sid: &str| kind.is_none_or(|kind| sid.starts_with(&format!("{kind}:")));
    let entries: Vec<Value> = world.ha.iter().filter(|(sid, _)| wanted(sid)).map(|(sid, resource)| entry(world, sid, resource)).collect();
    Ok(json!(entries).into())
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let sid = sid(world, call);
    match world.ha.get(&sid) {
        Some(resource) => Ok(entry(world, &sid, resource).into()),
        None => Err(Fail::died(format!("no such resource '{sid}'"))),
    }
}

pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    no_groups(world, call)?;
    let sid = sid(world, call);
    let vmid = sid.split(':').nth(1).and_then(|id| id.parse::<u32>().ok()).unwrap_or(0);
    let kind = if sid.starts_with("ct:") { Kind::Lxc } else { Kind::Qemu };
    if world.guests.get(&vmid).is_none_or(|guest| guest.kind != kind) {
        return Err(Fail::died(format!("resource '{sid}' does not exist in cluster")));
    }
    if world.ha.get(&sid).is_some() {
        return Err(Fail::died(format!("resource ID '{sid}' already defined")));
    }
    let own = |name: &str| call.text(name).map(str::to_owned);
    let state = own("state").unwrap_or_else(|| "started".to_owned());
    world.add_ha(&sid, HaResource { state: alias(state), comment: own("comment"), group: own("group"), ..HaResource::default() });
    Ok(Data::null())
}

fn alias(state: String) -> String {
    if state == "enabled" { "started".to_owned() } else { state }
}

/// Since 9 there are rules instead of groups.
fn no_groups(world: &World, call: &Call) -> Result<(), Fail> {
    let used = call.text("group").is_some() && world.flavour.major() >= 9;
    if used { Err(Fail::died("invalid parameter 'group': ha groups have been migrated to rules")) } else { Ok(()) }
}

pub(super) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    no_groups(world, call)?;
    need_quorum(world, &call.node)?;
    let sid = sid(world, call);
    let digest = world.ha.digest();
    if call.text("digest").is_some_and(|given| given != digest) {
        return Err(Fail::died("detected modified configuration - file changed by other user? Try again."));
    }
    let Some(resource) = world.ha.get_mut(&sid) else { return Err(Fail::died(format!("no such resource '{sid}'"))) };
    if resource.believed.as_deref() == Some("error") && call.text("state") != Some("disabled") {
        return Err(Fail::died(format!("service '{sid}' in error state, must be disabled and fixed first")));
    }
    if let Some(state) = call.text("state") {
        resource.state = alias(state.to_owned());
    }
    if let Some(comment) = call.text("comment") {
        resource.comment = Some(comment.to_owned());
    }
    Ok(Data::null())
}

pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    let sid = sid(world, call);
    if world.ha.remove(&sid) { Ok(Data::null()) } else { Err(Fail::died(format!("cannot delete service '{sid}', not HA managed!"))) }
}

pub(super) fn status(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let quorate = world.is_quorate(&call.entry);
    let word = if quorate { "OK" } else { "No quorum on node" };
    let mut entries = vec![json!({ "id": "quorum", "type": "quorum", "node": call.entry, "status": word, "quorate": u8::from(quorate) })];
    if world.flavour.major() >= 9 {
        let standby = "standby (CRM watchdog standby)";
        entries.push(json!({ "id": "fencing", "type": "fencing", "node": call.entry, "status": standby, "armed-state": "standby" }));
    }
    entries.extend(world.ha.iter().map(|(sid, resource)| service(world, sid, resource)));
    Ok(json!(entries).into())
}

fn service(world: &World, sid: &str, resource: &HaResource) -> Value {
    let vmid = sid.split(':').nth(1).and_then(|id| id.parse::<u32>().ok()).unwrap_or(0);
    let node = world.guests.get(&vmid).map_or("", |guest| guest.node.as_str());
    let state = resource.believed.as_deref().unwrap_or("queued");
    let mut fields = json!({ "id": format!("service:{sid}"), "type": "service", "sid": sid, "node": node, "state": state,
        "request_state": resource.state, "status": format!("{sid} ({node}, {state})"), "max_restart": 1, "max_relocate": 1 });
    if world.flavour.major() >= 9 {
        fields["failback"] = json!(1);
    }
    fields
}
