//! `/`, `/version`, `/nodes`: what a node reports about itself.
//!
//! Guests and tasks of a node have modules of their own.

use serde_json::{Value, json};

use super::{ApiCall, ApiRoute};
use crate::node::LabNode;
use crate::response::{ApiData, ApiError};
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/", index),
    ("GET", "/version", version),
    ("GET", "/nodes", list_nodes),
    ("GET", "/nodes/{node}", node_index),
    ("GET", "/nodes/{node}/certificates/info", certificates),
    ("GET", "/nodes/{node}/version", version),
    ("GET", "/nodes/{node}/status", status),
    ("GET", "/nodes/{node}/time", time),
];

fn index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(subdirectory_index(&["version", "cluster", "nodes", "storage", "access", "pools"]))
}

fn node_index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    let names = ["qemu", "lxc", "version", "status", "tasks", "storage", "time"];
    Ok(json!(names.map(|name| json!({ "name": name }))).into())
}

/// The entries of an API index.
pub(super) fn subdirectory_index(names: &[&str]) -> ApiData {
    let entries: Vec<Value> = names.iter().map(|name| json!({ "subdir": name })).collect();
    json!(entries).into()
}

fn version(world: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    let flavour = world.flavour;
    Ok(json!({ "version": flavour.version(), "release": flavour.release(), "repoid": flavour.repo_id() }).into())
}

fn time(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let now_s = world.node_clock_s(&call.node);
    Ok(json!({ "time": now_s, "localtime": now_s, "timezone": "UTC" }).into())
}

/// The root CA of the cluster, then the node's own certificate. Every authenticated user may read them, on every node.
fn certificates(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let Some(node) = world.nodes.get(&call.node) else { return Ok(ApiData::null()) };
    let root = format!("/CN=Proxmox Virtual Environment/OU={}/O=PVE Cluster Manager CA", world.root_ca.unit);
    let row = |filename: &str, fingerprint: &str, subject: &str, years: u64| {
        json!({ "filename": filename, "fingerprint": fingerprint, "subject": subject, "issuer": root, "notbefore": world.root_ca.since_s,
            "notafter": world.root_ca.since_s + years * 365 * 86_400, "public-key-type": "rsaEncryption", "public-key-bits": 4096, "san": [] })
    };
    let own = format!("/OU=PVE Cluster Node/O=Proxmox Virtual Environment/CN={}.lab", node.name);
    Ok(json!([
        row("/etc/pve/pve-root-ca.pem", &world.root_ca.fingerprint, &root, 10),
        row(&format!("/etc/pve/nodes/{}/pve-ssl.pem", node.name), &node.fingerprint, &own, 2)
    ])
    .into())
}

fn list_nodes(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let entries: Vec<Value> = world.nodes.values().map(|node| node_row(world, call, node)).collect();
    Ok(json!(entries).into())
}

fn node_row(world: &World, call: &ApiCall, node: &LabNode) -> Value {
    let mut entry = node_entry(world, &call.entry, node, call);
    entry["ssl_fingerprint"] = json!(node.fingerprint);
    entry
}

/// A node as lists show it. Its load is visible with the privilege only; its size stays visible for a while after its last broadcast.
pub(super) fn node_entry(world: &World, entry: &str, node: &LabNode, call: &ApiCall) -> Value {
    let name = &node.name;
    let last_heard_ms = world.views.last_heard_ms(entry, name, world.now_ms);
    let reached = world.is_reachable(entry, name);
    let status = match (reached, last_heard_ms) {
        (true, Some(_)) => "online",
        (false, _) => "offline",
        (true, None) => "unknown",
    };
    let mut fields = json!({ "id": format!("node/{name}"), "node": name, "status": status, "type": "node" });
    let audit = world.access.has_privilege(&call.caller, &format!("/nodes/{name}"), "Sys.Audit");
    if last_heard_ms.is_some() {
        fields["level"] = json!("");
    }
    if let (Some(heard_ms), true) = (last_heard_ms, audit) {
        fields["maxcpu"] = json!(node.cpus);
        fields["maxmem"] = json!(node.memory);
        fields["maxdisk"] = json!(node.disk);
        if reached {
            put_node_load(&mut fields, node, heard_ms);
        }
    }
    fields
}

fn put_node_load(fields: &mut Value, node: &LabNode, heard_ms: u64) {
    fields["cpu"] = json!(0.02);
    fields["mem"] = json!(node.used_memory());
    fields["disk"] = json!(node.disk / 10);
    fields["uptime"] = json!(heard_ms.saturating_sub(node.boot_ms) / 1_000);
}

fn status(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let flavour = world.flavour;
    let Some(node) = world.nodes.get(&call.node) else { return Ok(ApiData::null()) };
    let (memory, used, disk) = (node.memory, node.used_memory(), node.disk);
    let kernel = json!({ "sysname": "Linux", "release": "6.8.12-1-pve", "version": "#1 SMP", "machine": "x86_64" });
    let cpu = json!({ "cpus": node.cpus, "cores": node.cpus, "sockets": 1, "model": node.cpu_model, "vendor": "Lab", "family": "1",
        "mhz": "2400.000", "hvm": "1", "flags": "fpu", "user_hz": 100 });
    let mut memory_fields = json!({ "total": memory, "used": used, "free": memory - used });
    // Documented for 9.2; that 7 and 8 lack it is an inference, and a client must not need it.
    if flavour.major() >= 9 {
        memory_fields["available"] = json!(memory - used);
    }
    Ok(json!({
        "pveversion": format!("pve-manager/{}/{}", flavour.version(), flavour.repo_id()),
        "kversion": "Linux 6.8.12-1-pve #1 SMP",
        "current-kernel": kernel,
        "cpuinfo": cpu,
        "cpu": 0.02,
        "wait": 0,
        "idle": 0,
        "uptime": world.now_ms.saturating_sub(node.boot_ms) / 1_000,
        "loadavg": ["0.10", "0.10", "0.10"],
        "memory": memory_fields,
        "swap": { "total": 0, "used": 0, "free": 0 },
        "rootfs": { "total": disk, "used": disk / 10, "avail": disk - disk / 10, "free": disk - disk / 10 },
        "ksm": { "shared": 0 },
        "boot-info": { "mode": "legacy-bios" },
    })
    .into())
}
