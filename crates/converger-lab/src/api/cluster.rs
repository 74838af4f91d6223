//! `/cluster`: the cluster as the entry node knows it.
//!
//! Must not ask other nodes: responses come from what the entry node received and can be stale.

mod ha;
mod options;

use serde_json::{Value, json};

use super::{ApiCall, ApiRoute};
use crate::guest::LabGuest;
use crate::json_text::{self, JsonObject};
use crate::node::LabNode;
use crate::node_view::NodeView;
use crate::response::{ApiData, ApiError};
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/cluster", index),
    ("GET", "/cluster/resources", resources),
    ("GET", "/cluster/status", status),
    ("GET", "/cluster/nextid", next_id),
    ("GET", "/cluster/tasks", tasks),
    ("GET", "/cluster/options", options::read),
    ("PUT", "/cluster/options", options::update),
    ("GET", "/cluster/ha/resources", ha::list),
    ("POST", "/cluster/ha/resources", ha::create),
    ("GET", "/cluster/ha/resources/{sid}", ha::read),
    ("PUT", "/cluster/ha/resources/{sid}", ha::update),
    ("DELETE", "/cluster/ha/resources/{sid}", ha::delete),
    ("POST", "/cluster/ha/resources/{sid}/migrate", ha::migrate),
    ("POST", "/cluster/ha/resources/{sid}/relocate", ha::relocate),
    ("GET", "/cluster/ha", ha::index),
    ("GET", "/cluster/ha/groups", ha::groups::list),
    ("POST", "/cluster/ha/groups", ha::groups::create),
    ("GET", "/cluster/ha/groups/{group}", ha::groups::read),
    ("PUT", "/cluster/ha/groups/{group}", ha::groups::update),
    ("DELETE", "/cluster/ha/groups/{group}", ha::groups::delete),
    ("GET", "/cluster/ha/rules", ha::rules::list),
    ("POST", "/cluster/ha/rules", ha::rules::create),
    ("GET", "/cluster/ha/rules/{rule}", ha::rules::read),
    ("PUT", "/cluster/ha/rules/{rule}", ha::rules::update),
    ("DELETE", "/cluster/ha/rules/{rule}", ha::rules::delete),
    ("GET", "/cluster/ha/status", ha::status_index),
    ("GET", "/cluster/ha/status/current", ha::status),
    ("GET", "/cluster/ha/status/manager_status", ha::manager_status),
];

fn index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(super::nodes::subdirectory_index(&["resources", "status", "tasks", "nextid", "ha", "options"]))
}

/// Writes a guest's row as JSON, as `view` knows it. There can be ten thousand guests, so the fields that change only with a broadcast are
/// cached as text.
pub(super) fn write_guest_row(world: &World, view: Option<&NodeView>, guest: &LabGuest, pool: Option<&str>, out: &mut Vec<u8>) {
    let row = view.and_then(|view| view.guest_row(guest.vmid, world.now_ms));
    let kind = guest.kind.name();
    let (vmid, node) = (guest.vmid, &guest.node);
    let mut fields = JsonObject::new(out);
    fields.put("id", format_args!("{kind}/{vmid}")).put("vmid", vmid).put("node", node).put("type", kind);
    fields.put("status", row.map_or("unknown", |(row, _)| &row.status)).put_some("lock", guest.lock());
    fields.put_some("tags", guest.get("tags")).put_some("pool", pool).put_some("hastate", world.ha.displayed_state(guest));
    if let Some((row, heard_ms)) = row {
        fields.put("uptime", row.since_ms.map_or(0, |since_ms| heard_ms.saturating_sub(since_ms) / 1_000));
        fields.put_raw_members(&row.text);
    }
    fields.close();
}

fn resources(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let kind = call.param("type");
    let wanted = |name: &str| kind.is_none_or(|kind| kind == name);
    let mut rows = Vec::new();
    if wanted("node") {
        rows.extend(world.nodes.values().map(|node| with_cgroup_mode(super::nodes::node_entry(world, &call.entry, node, call))));
    }
    if wanted("storage") {
        rows.extend(super::storage::resource_rows(world, call));
    }
    if wanted("sdn") {
        rows.extend(world.nodes.keys().map(|node| network_zone(world, node)));
    }
    let mut json = if wanted("vm") { guest_rows(world, call) } else { b"[]".to_vec() };
    append_rows(&mut json, &rows);
    Ok(ApiData::from_json_text(json))
}

fn with_cgroup_mode(mut entry: Value) -> Value {
    if entry.get("cpu").is_some() {
        entry["cgroup-mode"] = json!(1);
    }
    entry
}

fn network_zone(world: &World, node: &str) -> Value {
    if world.flavour.major() >= 9 {
        return json!({ "type": "network", "id": format!("network/{node}/zone/localnetwork"), "network": "localnetwork",
            "network-type": "zone", "node": node, "status": "ok" });
    }
    json!({ "type": "sdn", "id": format!("sdn/{node}/localnetwork"), "sdn": "localnetwork", "node": node, "status": "ok" })
}

/// Typical size of a row.
const ROW_BYTES: usize = 300;

/// The rows of all guests that the caller may see.
fn guest_rows(world: &World, call: &ApiCall) -> Vec<u8> {
    let pools = pools_by_guest(world, call);
    let view = world.views.view_of(&call.entry);
    let listed = world.visible_guests().filter(|guest| world.is_listed(&call.entry, guest.vmid));
    let mut out = Vec::with_capacity(2 + world.guests.len() * ROW_BYTES);
    out.push(b'[');
    for guest in listed.filter(visible_guest_filter(world, call)) {
        if out.len() > 1 {
            out.push(b',');
        }
        write_guest_row(world, view, guest, pools.get(&guest.vmid).copied(), &mut out);
    }
    out.push(b']');
    out
}

fn pools_by_guest<'a>(world: &'a World, call: &ApiCall) -> std::collections::BTreeMap<u32, &'a str> {
    let audited = |name: &str| world.access.has_privilege(&call.caller, &format!("/pool/{name}"), "Pool.Audit");
    let pools = world.access.pools.iter().filter(|(name, _)| audited(name));
    pools.flat_map(|(name, pool)| pool.guests.iter().map(move |vmid| (*vmid, name.as_str()))).collect()
}

/// Lists omit guests that the caller may not see, without an error.
pub(super) fn visible_guest_filter<'a>(world: &'a World, call: &'a ApiCall) -> impl Fn(&&LabGuest) -> bool + 'a {
    let on_guests = world.access.guest_privilege_check(&call.caller, "VM.Audit");
    move |guest| on_guests(guest.vmid)
}

/// Appends rows to a JSON array that is already encoded.
fn append_rows(json: &mut Vec<u8>, rows: &[Value]) {
    for row in rows {
        json.pop();
        if json.len() > 1 {
            json.push(b',');
        }
        json.extend(row.to_string().into_bytes());
        json.push(b']');
    }
}

/// A cached `cluster/status` response. Clients request it before and after everything else, and it changes only with the nodes that the
/// entry node reaches.
#[derive(Clone)]
pub(crate) struct CachedClusterStatus {
    entry: String,
    reached: Vec<bool>,
    json: Vec<u8>,
}

fn status(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let is_still_so =
        |known: &&CachedClusterStatus| known.entry == call.entry && world.reachability_from(&call.entry).eq(known.reached.iter().copied());
    if let Some(known) = world.status.as_ref().filter(is_still_so) {
        return Ok(ApiData::from_json_text(known.json.clone()));
    }
    let reached: Vec<bool> = world.reachability_from(&call.entry).collect();
    let rows = world.cluster.iter().map(|_| None).chain(world.nodes.values().zip(&reached).map(Some));
    let json = json_text::write_list(rows, |row, node| match node {
        None => cluster_row(world, &call.entry, row),
        Some((node, is_reached)) => node_row(world, &call.entry, node, *is_reached, row),
    });
    world.status = Some(CachedClusterStatus { entry: call.entry.clone(), reached, json: json.clone() });
    Ok(ApiData::from_json_text(json))
}

fn cluster_row(world: &World, entry: &str, row: &mut JsonObject<'_>) {
    row.put("id", "cluster").put_some("name", world.cluster.as_ref()).put("nodes", world.nodes.len());
    row.put("quorate", u8::from(world.is_quorate(entry))).put("type", "cluster").put("version", world.nodes.len());
}

fn node_row(world: &World, entry: &str, node: &LabNode, is_reached: bool, row: &mut JsonObject<'_>) {
    let number = if world.cluster.is_some() { node.number } else { 0 };
    row.put("id", format_args!("node/{}", node.name)).put("ip", &node.ip).put("level", "");
    row.put("local", u8::from(node.name == entry)).put("name", &node.name).put("nodeid", number);
    row.put("online", u8::from(is_reached)).put("type", "node");
}

/// Checks all VMIDs, without regard to the caller's permissions. The result is wrong while a fault empties the list behind it.
fn next_id(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let is_taken = |vmid: u32| world.is_listed(&call.entry, vmid);
    match call.param("vmid") {
        Some(text) if is_taken(text.parse().unwrap_or(0)) => Err(ApiError::parameter_error("vmid", format!("VM {text} already exists"))),
        Some(text) => Ok(text.to_owned().into()),
        None => match (100..1_000_000).find(|vmid| !is_taken(*vmid)) {
            Some(free) => Ok(free.to_string().into()),
            None => Err(ApiError::internal_error("unable to get any free VMID in range [100, 999999]")),
        },
    }
}

/// Running tasks and the last 25 of each node. A token without `Sys.Audit` on `/` gets none, not even its own: Proxmox compares the full
/// token id with the user part of the task's owner.
fn tasks(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let audit = world.access.has_privilege(&call.caller, "/", "Sys.Audit");
    let own = |task: &crate::task::LabTask| audit || task.owner().0 == call.caller.id();
    let mut entries: Vec<(u64, Value)> = Vec::new();
    for node in world.nodes.keys() {
        let of_node = world.tasks.tasks_of_node(node).filter(|task| own(task)).take(25);
        entries.extend(of_node.map(|task| (task.start_s, super::tasks::cluster_task_json(task))));
    }
    entries.sort_by_key(|(start_s, _)| std::cmp::Reverse(*start_s));
    Ok(json!(entries.into_iter().map(|(_, entry)| entry).collect::<Vec<_>>()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::WorldEvent;
    use crate::wire::LabRequest;
    use crate::world_spec::{NodeSpec, WorldSpec};

    /// Node failures and partitions must not leave a stale status in the cache, whichever node answers.
    #[test]
    fn cached_cluster_status_always_equals_a_fresh_one() {
        let names = ["pve1", "pve2", "pve3"].map(str::to_owned);
        let nodes = names.iter().map(|name| (name.clone(), NodeSpec::default())).collect();
        let spec = WorldSpec { cluster: Some("c".to_owned()), nodes, ..WorldSpec::default() };
        let mut world = World::new(&spec).expect("a world");
        let token = world.ticket("root@pam").0;
        let request = LabRequest::new("GET", "/api2/json/cluster/status").with_header("Cookie", &format!("PVEAuthCookie={token}"));
        let mut seen = std::collections::BTreeSet::new();
        let [_, second, third] = names.clone();
        let events = [WorldEvent::NodeDown(third.clone()), WorldEvent::Isolate(vec![second]), WorldEvent::NodeUp(third), WorldEvent::Heal];
        for (number, event) in (1..).zip(events) {
            world.apply_event(spec.start_ms + number * 1_000, event);
            for entry in &names {
                let body = world.answer_at(world.now_ms, entry, &request).body;
                world.status = None;
                assert_eq!(world.answer_at(world.now_ms, entry, &request).body, body, "{entry}");
                seen.insert(body);
            }
        }
        assert!(seen.len() > 6, "{}", seen.len());
    }
}
