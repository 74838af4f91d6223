//! `/cluster/ha`: HA resources, and the nodes that they may run on.
//!
//! What the HA manager does with them is in `crate::ha`.

pub(super) mod groups;
pub(super) mod rules;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::{ApiCall, require_quorum};
use crate::guest::{LabGuest, LabGuestKind};
use crate::ha::HaResource;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::sections::{MODIFIED_TEXT, SectionSettings};
use crate::world::World;

/// Parameters of a resource that are not settings.
const CONTROL_PARAMETERS: &[&str] = &["sid", "type", "state", "digest", "delete", "purge"];

const NUMBERS: &[&str] = &["max_restart", "max_relocate", "failback", "auto-rebalance"];

pub(super) fn index(world: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    let rules = (world.flavour.major() >= 9).then_some("rules");
    let subdirectories = ["status", "resources", "groups"].into_iter().chain(rules);
    Ok(json!(subdirectories.map(|id| json!({ "id": id })).collect::<Vec<_>>()).into())
}

/// The settings of a request.
fn parse_settings(call: &ApiCall, not_keys: &[&str]) -> SectionSettings {
    call.values.iter().filter(|(key, _)| !not_keys.contains(&key.as_str())).cloned().collect()
}

/// Settings as JSON; the keys in `numbers` are written as numbers.
fn settings_json(settings: &SectionSettings, numbers: &[&str]) -> Value {
    let number = |key: &str, text: &str| text.parse::<i64>().ok().filter(|_| numbers.contains(&key)).map(Value::from);
    settings.iter().map(|(key, text)| (key.clone(), number(key, text).unwrap_or_else(|| json!(text)))).collect()
}

/// The settings without those that `delete` names. Required settings cannot be deleted.
fn after_deletions(call: &ApiCall, mut settings: SectionSettings, required: &[&str]) -> Result<SectionSettings, String> {
    for key in call.param("delete").map(split_list).into_iter().flatten() {
        if required.contains(&key) {
            return Err(format!("unable to delete required option '{key}'"));
        }
        settings.remove(key);
    }
    Ok(settings)
}

/// The service id, such as `vm:100`; a request may omit the prefix.
fn service_id(world: &World, call: &ApiCall) -> String {
    let text = call.param("sid").unwrap_or_default();
    if text.contains(':') {
        return text.to_owned();
    }
    let guest = text.parse::<u32>().ok().and_then(|vmid| world.guests.get(&vmid));
    guest.map_or_else(|| format!("vm:{text}"), LabGuest::ha_service_id)
}

fn resource_json(world: &World, sid: &str, resource: &HaResource) -> Value {
    let kind = sid.split(':').next().unwrap_or_default();
    let mut fields = settings_json(&resource.settings, NUMBERS);
    for (key, text) in [("sid", sid), ("type", kind), ("state", &resource.state), ("digest", &world.ha.digest())] {
        fields[key] = json!(text);
    }
    fields
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let kind = call.param("type");
    let wanted = |sid: &str| kind.is_none_or(|kind| sid.starts_with(&format!("{kind}:")));
    let entries: Vec<Value> =
        world.ha.iter().filter(|(sid, _)| wanted(sid)).map(|(sid, resource)| resource_json(world, sid, resource)).collect();
    Ok(json!(entries).into())
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let sid = service_id(world, call);
    match world.ha.get(&sid) {
        Some(resource) => Ok(resource_json(world, &sid, resource).into()),
        None => Err(ApiError::internal_error(missing_resource_text(&sid))),
    }
}

fn missing_resource_text(sid: &str) -> String {
    format!("no such resource '{sid}'")
}

pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    check_no_group_parameter(world, call)?;
    let sid = service_id(world, call);
    let vmid = sid.split(':').nth(1).and_then(|id| id.parse::<u32>().ok()).unwrap_or(0);
    let kind = if sid.starts_with("ct:") { LabGuestKind::Lxc } else { LabGuestKind::Qemu };
    if world.guests.get(&vmid).is_none_or(|guest| guest.kind != kind) {
        return Err(ApiError::internal_error(format!("resource '{sid}' does not exist in cluster")));
    }
    if world.ha.get(&sid).is_some() {
        return Err(ApiError::internal_error(format!("create resource failed: resource ID '{sid}' already defined")));
    }
    let state = call.param("state").unwrap_or("started").to_owned();
    world.add_ha(
        &sid,
        HaResource { state: normalize_state(state), settings: parse_settings(call, CONTROL_PARAMETERS), ..HaResource::default() },
    );
    Ok(ApiData::null())
}

fn normalize_state(state: String) -> String {
    if state == "enabled" { "started".to_owned() } else { state }
}

/// Since release 9, rules replace groups.
fn check_no_group_parameter(world: &World, call: &ApiCall) -> Result<(), ApiError> {
    let used = call.param("group").is_some() && world.flavour.major() >= 9;
    if used { Err(ApiError::internal_error("invalid parameter 'group': ha groups have been migrated to rules")) } else { Ok(()) }
}

pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_no_group_parameter(world, call)?;
    if let Some(group) = call.param("group").filter(|group| world.ha.groups.get(group).is_none()) {
        return Err(ApiError::internal_error(format!("HA group '{group}' does not exist")));
    }
    require_quorum(world, &call.node)?;
    let sid = service_id(world, call);
    check_not_in_error(world, call, &sid)?;
    let failed = |why: String| ApiError::internal_error(format!("update resource failed: {why}"));
    if call.param("digest").is_some_and(|digest| digest != world.ha.digest()) {
        return Err(failed(MODIFIED_TEXT.to_owned()));
    }
    let Some(resource) = world.ha.get_mut(&sid) else { return Err(failed(missing_resource_text(&sid))) };
    let mut settings = resource.settings.clone();
    settings.extend(parse_settings(call, CONTROL_PARAMETERS));
    resource.settings = after_deletions(call, settings, &[]).map_err(failed)?;
    if let Some(state) = call.param("state") {
        resource.state = normalize_state(state.to_owned());
    }
    Ok(ApiData::null())
}

/// A resource in error state accepts only a request to disable it.
fn check_not_in_error(world: &World, call: &ApiCall, sid: &str) -> Result<(), ApiError> {
    let in_error = world.ha.get(sid).is_some_and(|resource| resource.believed.as_deref() == Some("error"));
    if in_error && call.param("state") != Some("disabled") {
        return Err(ApiError::internal_error(format!("service '{sid}' in error state, must be disabled and fixed first")));
    }
    Ok(())
}

pub(super) fn migrate(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    order_move(world, call, "migrate")
}

pub(super) fn relocate(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    order_move(world, call, "relocate")
}

/// Queues a move, which the HA manager executes in its next cycle. Since release 9 the response repeats the request.
fn order_move(world: &mut World, call: &ApiCall, verb: &str) -> Result<ApiData, ApiError> {
    let sid = service_id(world, call);
    check_not_in_error(world, call, &sid)?;
    let node = call.param("node").unwrap_or_default();
    world.ha.request_state(&sid, &format!("{verb} {node}"));
    if world.flavour.major() < 9 {
        return Ok(ApiData::null());
    }
    Ok(json!({ "sid": sid, "requested-node": node }).into())
}

pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    let sid = service_id(world, call);
    if !world.ha.remove(&sid) {
        return Err(ApiError::internal_error(format!("cannot delete service '{sid}', not HA managed!")));
    }
    // Removes the resource from all rules. Releases before 9 leave that to the administrator.
    if world.flavour.major() >= 9 && call.param("purge") != Some("0") {
        remove_from_rules(world, &sid);
    }
    Ok(ApiData::null())
}

fn remove_from_rules(world: &mut World, sid: &str) {
    let rules: Vec<(String, SectionSettings)> =
        world.ha.rules.iter().map(|(_, name, settings)| (name.to_owned(), settings.clone())).collect();
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

pub(super) fn status_index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(json!([{ "name": "current" }, { "name": "manager_status" }]).into())
}

/// The last state that the HA manager and the nodes' agents wrote.
pub(super) fn manager_status(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let at_s = world.cluster_clock_s();
    let seen = |node: &String| if world.is_reachable(&call.entry, node) { "online" } else { "unknown" };
    let nodes: BTreeMap<&String, &str> = world.nodes.keys().map(|node| (node, seen(node))).collect();
    let agent = |node: &String| json!({ "mode": "active", "results": {}, "state": "wait_for_agent_lock", "timestamp": at_s, "node": node });
    let agents: BTreeMap<&String, Value> = world.nodes.keys().map(|node| (node, agent(node))).collect();
    let services: BTreeMap<&String, Value> = world.ha.iter().map(|(sid, resource)| (sid, crm_service_json(world, sid, resource))).collect();
    let quorate = if world.is_quorate(&call.entry) { "1" } else { "0" };
    Ok(json!({
        "manager_status": { "master_node": world.nodes.keys().next(), "node_status": nodes, "service_status": services, "timestamp": at_s },
        "lrm_status": agents, "quorum": { "node": call.entry, "quorate": quorate }
    })
    .into())
}

fn crm_service_json(world: &World, sid: &str, resource: &HaResource) -> Value {
    let vmid = sid.split(':').nth(1).and_then(|id| id.parse::<u32>().ok()).unwrap_or(0);
    let node = world.guests.get(&vmid).map(|guest| guest.node.as_str());
    json!({ "node": node, "state": resource.believed.as_deref().unwrap_or("request_start"), "uid": sid })
}

pub(super) fn status(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let quorate = world.is_quorate(&call.entry);
    let status = if quorate { "OK" } else { "No quorum on node" };
    let mut entries = vec![json!({ "id": "quorum", "type": "quorum", "node": call.entry, "status": status, "quorate": u8::from(quorate) })];
    if world.flavour.major() >= 9 {
        let standby = "standby (CRM watchdog standby)";
        entries.push(json!({ "id": "fencing", "type": "fencing", "node": call.entry, "status": standby, "armed-state": "standby" }));
    }
    entries.extend(world.ha.iter().map(|(sid, resource)| status_row(world, sid, resource)));
    Ok(json!(entries).into())
}

fn status_row(world: &World, sid: &str, resource: &HaResource) -> Value {
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
