//! Lists of a node and `status/current`: what the node itself sees, now.
//!
//! What never enters here: what other nodes were told.

use serde_json::{Map, Value, json};

use crate::api::{Call, cluster::may_see, nodes::subdirs};
use crate::flavour::Flavour;
use crate::guest::{Guest, Kind};
use crate::respond::{Data, Fail};
use crate::world::World;

pub(super) fn index(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(subdirs(&["config", "pending", "status", "snapshot", "clone", "migrate", "resize", "template", "firewall"]))
}

pub(super) fn verbs(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(subdirs(&["current", "start", "stop", "shutdown", "reboot", "suspend", "resume"]))
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let here = world.visible_guests().filter(|guest| guest.node == call.node && guest.kind == call.kind);
    let seen = here.filter(may_see(world, call));
    let full = call.flag("full");
    let entries: Vec<Value> = seen.map(|guest| Value::Object(entry(world, guest, full))).collect();
    Ok(json!(entries).into())
}

pub(super) fn current(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    let mut fields = entry(world, guest, true);
    fields.insert("ha".to_owned(), world.ha.status(guest));
    if guest.kind == Kind::Qemu && agent_enabled(guest) {
        fields.insert("agent".to_owned(), json!(1));
    }
    Ok(Value::Object(fields).into())
}

fn agent_enabled(guest: &Guest) -> bool {
    let first = guest.get("agent").and_then(|agent| agent.split(',').next()).unwrap_or_default();
    first == "1" || first == "enabled=1"
}

/// What every list says about a guest.
fn entry(world: &World, guest: &Guest, full: bool) -> Map<String, Value> {
    let cpus = world.nodes.get(&guest.node).map_or(1, |node| node.cpus);
    let uptime = guest.process.as_ref().map_or(0, |process| world.now_ms.saturating_sub(process.since_ms) / 1_000);
    let mut fields = Map::new();
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    put("vmid", json!(guest.vmid));
    put("name", json!(guest.shown_name()));
    put("status", json!(if guest.is_running() { "running" } else { "stopped" }));
    put("cpus", json!(guest.cpus(cpus)));
    put("maxmem", json!(guest.memory_bytes()));
    put("maxdisk", json!(guest.disk_bytes()));
    put("uptime", json!(uptime));
    for key in ["cpu", "mem", "disk", "netin", "netout"] {
        put(key, json!(0));
    }
    for key in ["lock", "tags"] {
        if let Some(text) = guest.get(key) {
            put(key, json!(text));
        }
    }
    if guest.is_template() {
        put("template", json!(1));
    }
    match guest.kind {
        Kind::Qemu => qemu(guest, &mut fields, full, world.flavour),
        Kind::Lxc => lxc(guest, &mut fields, world.flavour),
    }
    fields
}

fn qemu(guest: &Guest, fields: &mut Map<String, Value>, full: bool, flavour: Flavour) {
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    if flavour >= Flavour::V9 {
        put("memhost", json!(0));
    } else {
        put("diskread", json!(0));
        put("diskwrite", json!(0));
    }
    if let Some(target) = guest.number("balloon").filter(|target| *target > 0) {
        put("balloon_min", json!(target << 20));
        put("shares", json!(guest.number("shares").unwrap_or(1_000)));
    }
    if full {
        let word = guest.process.as_ref().map_or("stopped", |process| process.word.as_str());
        put("qmpstatus", json!(word));
    }
    let Some(process) = &guest.process else { return };
    put("pid", json!(process.pid));
    if flavour >= Flavour::V9 {
        for key in PRESSURES {
            put(&format!("pressure{key}"), json!(0));
        }
    }
}

/// How long a running guest had to wait, and for what; since 9.
const PRESSURES: &[&str] = &["cpufull", "cpusome", "iofull", "iosome", "memoryfull", "memorysome"];

fn lxc(guest: &Guest, fields: &mut Map<String, Value>, flavour: Flavour) {
    let mut put = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    put("type", json!("lxc"));
    put("swap", json!(0));
    put("maxswap", json!(guest.number("swap").unwrap_or(0) << 20));
    put("diskread", json!(0));
    put("diskwrite", json!(0));
    let Some(process) = &guest.process else { return };
    put("pid", json!(process.pid));
    // A container never waits fully for a processor.
    for key in PRESSURES.iter().filter(|key| flavour >= Flavour::V9 && **key != "cpufull") {
        put(&format!("pressure{key}"), json!(0));
    }
}
