//! Lists of a node and `status/current`: what the node itself sees, now.
//!
//! What never enters here: what other nodes were told.

use crate::api::{Call, cluster::may_see, nodes::subdirs};
use crate::flavour::Flavour;
use crate::guest::{Guest, Kind};
use crate::respond::{Data, Fail};
use crate::text::{self, Object};
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
    Ok(Data::text(text::list(seen, |row, guest| put_entry(world, guest, full, row))))
}

/// About what the status of a guest takes.
const CURRENT_BYTES: usize = 600;

pub(super) fn current(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    let make = || {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        put_before(world, guest, &mut Object::new(&mut before));
        put_after(world, guest, true, &mut Object::following(&mut after));
        (before, after)
    };
    let missing = || Fail::died(guest.kind.missing(&guest.node, guest.vmid));
    let (before, after) = world.guests.current_text(guest.vmid, make).ok_or_else(missing)?;
    let mut out = Vec::with_capacity(CURRENT_BYTES);
    out.extend_from_slice(before);
    let mut row = Object::following(&mut out);
    row.put("uptime", uptime(world, guest)).put_written(after);
    row.put("ha", world.ha.status(guest));
    row.put_some("agent", (guest.kind == Kind::Qemu && agent_enabled(guest)).then_some(1));
    row.end();
    Ok(Data::text(out))
}

fn agent_enabled(guest: &Guest) -> bool {
    let first = guest.get("agent").and_then(|agent| agent.split(',').next()).unwrap_or_default();
    first == "1" || first == "enabled=1"
}

/// What every list says about a guest.
fn put_entry(world: &World, guest: &Guest, full: bool, row: &mut Object<'_>) {
    put_before(world, guest, row);
    row.put("uptime", uptime(world, guest));
    put_after(world, guest, full, row);
}

/// Seconds since its start, the only thing here that changes by itself.
fn uptime(world: &World, guest: &Guest) -> u64 {
    guest.process.as_ref().map_or(0, |process| world.now_ms.saturating_sub(process.since_ms) / 1_000)
}

fn put_before(world: &World, guest: &Guest, row: &mut Object<'_>) {
    let cpus = world.nodes.get(&guest.node).map_or(1, |node| node.cpus);
    row.put("vmid", guest.vmid).put("name", guest.shown_name());
    row.put("status", if guest.is_running() { "running" } else { "stopped" }).put("cpus", guest.cpus(cpus));
    row.put("maxmem", guest.memory_bytes()).put("maxdisk", guest.disk_bytes());
}

fn put_after(world: &World, guest: &Guest, full: bool, row: &mut Object<'_>) {
    let load = guest.load();
    row.put("cpu", load.cpu()).put("mem", load.memory);
    for key in ["disk", "netin", "netout"] {
        row.put(key, 0);
    }
    row.put_some("lock", guest.get("lock")).put_some("tags", guest.get("tags"));
    row.put_some("template", guest.is_template().then_some(1));
    match guest.kind {
        Kind::Qemu => put_qemu(guest, row, full, world.flavour),
        Kind::Lxc => put_lxc(guest, row, world.flavour),
    }
}

fn put_qemu(guest: &Guest, row: &mut Object<'_>, full: bool, flavour: Flavour) {
    if flavour >= Flavour::V9 {
        row.put("memhost", guest.load().memory_of_host);
    } else {
        row.put("diskread", 0).put("diskwrite", 0);
    }
    if let Some(target) = guest.number("balloon").filter(|target| *target > 0) {
        row.put("balloon_min", target << 20).put("shares", guest.number("shares").unwrap_or(1_000));
    }
    if full {
        row.put("qmpstatus", guest.process.as_ref().map_or("stopped", |process| process.word.as_str()));
    }
    let Some(process) = &guest.process else { return };
    row.put("pid", process.pid);
    for key in PRESSURES.iter().filter(|_| flavour >= Flavour::V9) {
        row.put(key, 0);
    }
}

/// How long a running guest had to wait, and for what; since 9.
const PRESSURES: &[&str] = &[CPU_FULL, "pressurecpusome", "pressureiofull", "pressureiosome", "pressurememoryfull", "pressurememorysome"];
const CPU_FULL: &str = "pressurecpufull";

fn put_lxc(guest: &Guest, row: &mut Object<'_>, flavour: Flavour) {
    row.put("type", "lxc").put("swap", 0).put("maxswap", guest.number("swap").unwrap_or(0) << 20);
    row.put("diskread", 0).put("diskwrite", 0);
    let Some(process) = &guest.process else { return };
    row.put("pid", process.pid);
    // A container never waits fully for a processor.
    for key in PRESSURES.iter().filter(|key| flavour >= Flavour::V9 && **key != CPU_FULL) {
        row.put(key, 0);
    }
}
