//! `/cluster`: the view of the whole, from what the entry node has heard.
//!
//! What never enters here: anything that asks another node. These answers come from memory and can
//! be old.

mod ha;

use serde::Serialize;
use serde_json::{Value, json};

use super::{Call, Route};
use crate::guest::Guest;
use crate::respond::{Data, Fail};
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/cluster", index),
    ("GET", "/cluster/resources", resources),
    ("GET", "/cluster/status", status),
    ("GET", "/cluster/nextid", nextid),
    ("GET", "/cluster/tasks", tasks),
    ("GET", "/cluster/ha/resources", ha::list),
    ("POST", "/cluster/ha/resources", ha::create),
    ("GET", "/cluster/ha/resources/{sid}", ha::read),
    ("PUT", "/cluster/ha/resources/{sid}", ha::update),
    ("DELETE", "/cluster/ha/resources/{sid}", ha::delete),
    ("GET", "/cluster/ha/status/current", ha::status),
];

fn index(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(super::nodes::subdirs(&["resources", "status", "tasks", "nextid", "ha"]))
}

/// A guest as `resources` lists it. What was told is there only while it is not too old.
#[derive(Serialize)]
pub(super) struct Resource<'a> {
    id: String,
    vmid: u32,
    node: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    status: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tags: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hastate: Option<&'a str>,
    #[serde(flatten)]
    told: Option<Told<'a>>,
}

/// What the guest's node told.
#[derive(Serialize)]
struct Told<'a> {
    name: &'a str,
    template: u8,
    maxcpu: u64,
    maxmem: u64,
    maxdisk: u64,
    uptime: u64,
    cpu: f64,
    mem: u64,
    disk: u64,
    netin: u64,
    netout: u64,
    diskread: u64,
    diskwrite: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    memhost: Option<u64>,
}

/// A guest's row, as `entry` knows it.
pub(super) fn resource<'a>(world: &'a World, entry: &str, guest: &'a Guest) -> Resource<'a> {
    let row = world.views.row(entry, guest.vmid, world.now_ms);
    let told = row.map(|(row, told_ms)| {
        let uptime = row.since_ms.map_or(0, |since_ms| told_ms.saturating_sub(since_ms) / 1_000);
        Told {
            name: &row.name,
            template: u8::from(row.template),
            maxcpu: row.maxcpu,
            maxmem: row.maxmem,
            maxdisk: row.maxdisk,
            uptime,
            cpu: 0.0,
            mem: 0,
            disk: 0,
            netin: 0,
            netout: 0,
            diskread: 0,
            diskwrite: 0,
            memhost: (world.flavour.major() >= 9).then_some(0),
        }
    });
    Resource {
        id: format!("{}/{}", guest.kind.name(), guest.vmid),
        vmid: guest.vmid,
        node: &guest.node,
        kind: guest.kind.name(),
        status: row.map_or("unknown", |(row, _)| row.status.as_str()),
        lock: guest.lock(),
        tags: guest.get("tags"),
        pool: None,
        hastate: world.ha.shown_state(guest),
        told,
    }
}

fn resources(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let kind = call.text("type");
    let wanted = |name: &str| kind.is_none_or(|kind| kind == name);
    let mut rows = Vec::new();
    if wanted("node") {
        rows.extend(world.nodes.values().map(|node| with_cgroup(super::nodes::node_entry(world, &call.entry, node, call))));
    }
    if wanted("storage") {
        rows.extend(super::storage::resources(world, call));
    }
    if wanted("sdn") {
        rows.extend(world.nodes.keys().map(|node| zone(world, node)));
    }
    let mut json = if wanted("vm") { guest_rows(world, call) } else { b"[]".to_vec() };
    append(&mut json, &rows);
    Ok(Data::text(json))
}

fn with_cgroup(mut entry: Value) -> Value {
    if entry.get("cpu").is_some() {
        entry["cgroup-mode"] = json!(1);
    }
    entry
}

fn zone(world: &World, node: &str) -> Value {
    if world.flavour.major() >= 9 {
        return json!({ "type": "network", "id": format!("network/{node}/zone/localnetwork"), "network": "localnetwork",
            "network-type": "zone", "node": node, "status": "ok" });
    }
    json!({ "type": "sdn", "id": format!("sdn/{node}/localnetwork"), "sdn": "localnetwork", "node": node, "status": "ok" })
}

/// The guests that the caller may see, written straight to JSON: there can be ten thousand.
fn guest_rows(world: &World, call: &Call) -> Vec<u8> {
    let pools = pools_by_guest(world, call);
    let listed = world.visible_guests().filter(|guest| world.is_listed(&call.entry, guest.vmid));
    let rows = listed.filter(may_see(world, call));
    let rows: Vec<Resource<'_>> =
        rows.map(|guest| Resource { pool: pools.get(&guest.vmid).copied(), ..resource(world, &call.entry, guest) }).collect();
    serde_json::to_vec(&rows).unwrap_or_default()
}

fn pools_by_guest<'a>(world: &'a World, call: &Call) -> std::collections::BTreeMap<u32, &'a str> {
    let audited = |name: &str| world.access.has(&call.who, &format!("/pool/{name}"), "Pool.Audit");
    let pools = world.access.pools.iter().filter(|(name, _)| audited(name));
    pools.flat_map(|(name, pool)| pool.guests.iter().map(move |vmid| (*vmid, name.as_str()))).collect()
}

/// Lists leave out silently what the caller may not see.
pub(super) fn may_see<'a>(world: &'a World, call: &'a Call) -> impl Fn(&&Guest) -> bool + 'a {
    let same = world.access.same_for_all_guests(&call.who).then(|| world.access.has(&call.who, "/vms/0", "VM.Audit"));
    move |guest| same.unwrap_or_else(|| world.access.has(&call.who, &format!("/vms/{}", guest.vmid), "VM.Audit"))
}

/// Add rows to a JSON list that is already text.
fn append(json: &mut Vec<u8>, rows: &[Value]) {
    for row in rows {
        json.pop();
        if json.len() > 1 {
            json.push(b',');
        }
        json.extend(row.to_string().into_bytes());
        json.push(b']');
    }
}

fn status(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let mut entries = Vec::new();
    if let Some(name) = &world.cluster {
        let quorate = u8::from(world.is_quorate(&call.entry));
        entries.push(json!({ "type": "cluster", "id": "cluster", "name": name, "nodes": world.nodes.len(),
            "version": world.nodes.len(), "quorate": quorate }));
    }
    for node in world.nodes.values() {
        let number = if world.cluster.is_some() { node.number } else { 0 };
        let (local, online) = (u8::from(node.name == call.entry), u8::from(world.reaches(&call.entry, &node.name)));
        entries.push(json!({ "type": "node", "id": format!("node/{}", node.name), "name": node.name, "nodeid": number,
            "ip": node.ip, "local": local, "online": online, "level": "" }));
    }
    Ok(json!(entries).into())
}

/// Looks at every id, whoever asks. The list behind it can be silently empty: so can the answer be wrong.
fn nextid(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let taken = |vmid: u32| world.is_listed(&call.entry, vmid);
    match call.text("vmid") {
        Some(text) if taken(text.parse().unwrap_or(0)) => Err(Fail::param("vmid", format!("VM {text} already exists"))),
        Some(text) => Ok(text.to_owned().into()),
        None => match (100..1_000_000).find(|vmid| !taken(*vmid)) {
            Some(free) => Ok(free.to_string().into()),
            None => Err(Fail::died("unable to get any free VMID in range [100, 999999]")),
        },
    }
}

/// Running tasks and the last 25 of each node. A token without `Sys.Audit` on `/` sees nothing: its own entries are split
/// into user and token, and then compared with the whole.
fn tasks(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let audit = world.access.has(&call.who, "/", "Sys.Audit");
    let own = |task: &crate::task::Task| audit || task.owner().0 == call.who.id();
    let mut entries: Vec<(u64, Value)> = Vec::new();
    for node in world.nodes.keys() {
        let of_node = world.tasks.of_node(node).filter(|task| own(task)).take(25);
        entries.extend(of_node.map(|task| (task.start_s, super::tasks::cluster_entry(task))));
    }
    entries.sort_by_key(|(start_s, _)| std::cmp::Reverse(*start_s));
    Ok(json!(entries.into_iter().map(|(_, entry)| entry).collect::<Vec<_>>()).into())
}
