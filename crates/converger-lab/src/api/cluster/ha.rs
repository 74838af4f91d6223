//! `/cluster/ha`: guests under management, and where they may be.
//!
//! What never enters here: what the manager does about them.

pub(super) mod groups;
pub(super) mod rules;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::{Call, need_quorum};
use crate::guest::{Guest, Kind};
use crate::ha::HaResource;
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::sections::{MODIFIED, Settings};
use crate::world::World;

/// Parameters of a resource that are no settings.
const NOT_KEYS: &[&str] = &["sid", "type", "state", "digest", "delete", "purge"];

const NUMBERS: &[&str] = &["max_restart", "max_relocate", "failback", "auto-rebalance"];

pub(super) fn index(world: &mut World, _: &Call) -> Result<Data, Fail> {
    let rules = (world.flavour.major() >= 9).then_some("rules");
    let rooms = ["status", "resources", "groups"].into_iter().chain(rules);
    Ok(json!(rooms.map(|id| json!({ "id": id })).collect::<Vec<_>>()).into())
}

/// What a request sets.
fn asked(call: &Call, not_keys: &[&str]) -> Settings {
    call.values.iter().filter(|(key, _)| !not_keys.contains(&key.as_str())).cloned().collect()
}

/// Settings as JSON; `numbers` are none of the texts.
fn typed(settings: &Settings, numbers: &[&str]) -> Value {
    let number = |key: &str, text: &str| text.parse::<i64>().ok().filter(|_| numbers.contains(&key)).map(Value::from);
    settings.iter().map(|(key, text)| (key.clone(), number(key, text).unwrap_or_else(|| json!(text)))).collect()
}

/// Settings without those that `delete` names. Some cannot go.
fn after_deletions(call: &Call, mut settings: Settings, required: &[&str]) -> Result<Settings, String> {
    for key in call.text("delete").map(split_list).into_iter().flatten() {
        if required.contains(&key) {
            return Err(format!("unable to delete required option '{key}'"));
        }
        settings.remove(key);
    }
    Ok(settings)
}

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
    let mut fields = typed(&resource.settings, NUMBERS);
    for (key, text) in [("sid", sid), ("type", kind), ("state", &resource.state), ("digest", &world.ha.digest())] {
        fields[key] = json!(text);
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
        None => Err(Fail::died(missing(&sid))),
    }
}

fn missing(sid: &str) -> String {
    format!("no such resource '{sid}'")
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
        return Err(Fail::died(format!("create resource failed: resource ID '{sid}' already defined")));
    }
    let state = call.text("state").unwrap_or("started").to_owned();
    world.add_ha(&sid, HaResource { state: alias(state), settings: asked(call, NOT_KEYS), ..HaResource::default() });
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
    if let Some(group) = call.text("group").filter(|group| world.ha.groups.get(group).is_none()) {
        return Err(Fail::died(format!("HA group '{group}' does not exist")));
    }
    need_quorum(world, &call.node)?;
    let sid = sid(world, call);
    free(world, call, &sid)?;
    let failed = |why: String| Fail::died(format!("update resource failed: {why}"));
    if call.text("digest").is_some_and(|given| given != world.ha.digest()) {
        return Err(failed(MODIFIED.to_owned()));
    }
    let Some(resource) = world.ha.get_mut(&sid) else { return Err(failed(missing(&sid))) };
    let mut settings = resource.settings.clone();
    settings.extend(asked(call, NOT_KEYS));
    resource.settings = after_deletions(call, settings, &[]).map_err(failed)?;
    if let Some(state) = call.text("state") {
        resource.state = alias(state.to_owned());
    }
    Ok(Data::null())
}

/// What is in error takes no orders but one.
fn free(world: &World, call: &Call, sid: &str) -> Result<(), Fail> {
    let in_error = world.ha.get(sid).is_some_and(|resource| resource.believed.as_deref() == Some("error"));
    if in_error && call.text("state") != Some("disabled") {
        return Err(Fail::died(format!("service '{sid}' in error state, must be disabled and fixed first")));
    }
    Ok(())
}

pub(super) fn migrate(world: &mut World, call: &Call) -> Result<Data, Fail> {
    order(world, call, "migrate")
}

pub(super) fn relocate(world: &mut World, call: &Call) -> Result<Data, Fail> {
    order(world, call, "relocate")
}

/// The manager is told, and does it when it looks around. Since 9 the answer repeats what was asked.
fn order(world: &mut World, call: &Call, verb: &str) -> Result<Data, Fail> {
    let sid = sid(world, call);
    free(world, call, &sid)?;
    let node = call.text("node").unwrap_or_default();
    world.ha.request(&sid, &format!("{verb} {node}"));
    if world.flavour.major() < 9 {
        return Ok(Data::null());
    }
    Ok(json!({ "sid": sid, "requested-node": node }).into())
}

pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    let sid = sid(world, call);
    if !world.ha.remove(&sid) {
        return Err(Fail::died(format!("cannot delete service '{sid}', not HA managed!")));
    }
    // Rules would otherwise speak of a guest that nobody manages; until that was an option it was left to people.
    if world.flavour.major() >= 9 && call.text("purge") != Some("0") {
        forget_in_rules(world, &sid);
    }
    Ok(Data::null())
}

fn forget_in_rules(world: &mut World, sid: &str) {
    let rules: Vec<(String, Settings)> = world.ha.rules.iter().map(|(_, name, settings)| (name.to_owned(), settings.clone())).collect();
    for (name, mut settings) in rules {
        let list = settings.get("resources").cloned().unwrap_or_default();
        let rest: Vec<&str> = split_list(&list).filter(|known| *known != sid).collect();
        if rest.is_empty() {
            world.ha.rules.remove(&name);
        } else {
            settings.insert("resources".to_owned(), rest.join(","));
            world.ha.rules.put(&name, settings);
        }
    }
}

pub(super) fn status_index(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(json!([{ "name": "current" }, { "name": "manager_status" }]).into())
}

/// What the manager and the nodes' agents wrote down last.
pub(super) fn manager_status(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let at_s = world.wall_s();
    let seen = |node: &String| if world.reaches(&call.entry, node) { "online" } else { "unknown" };
    let nodes: BTreeMap<&String, &str> = world.nodes.keys().map(|node| (node, seen(node))).collect();
    let agent = |node: &String| json!({ "mode": "active", "results": {}, "state": "wait_for_agent_lock", "timestamp": at_s, "node": node });
    let agents: BTreeMap<&String, Value> = world.nodes.keys().map(|node| (node, agent(node))).collect();
    let services: BTreeMap<&String, Value> = world.ha.iter().map(|(sid, resource)| (sid, believed(world, sid, resource))).collect();
    let quorate = if world.is_quorate(&call.entry) { "1" } else { "0" };
    Ok(json!({
        "manager_status": { "master_node": world.nodes.keys().next(), "node_status": nodes, "service_status": services, "timestamp": at_s },
        "lrm_status": agents, "quorum": { "node": call.entry, "quorate": quorate }
    })
    .into())
}

fn believed(world: &World, sid: &str, resource: &HaResource) -> Value {
    let vmid = sid.split(':').nth(1).and_then(|id| id.parse::<u32>().ok()).unwrap_or(0);
    let node = world.guests.get(&vmid).map(|guest| guest.node.as_str());
    json!({ "node": node, "state": resource.believed.as_deref().unwrap_or("request_start"), "uid": sid })
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
