//! Guest lists of a node and `status/current`: the live state on the node itself.
//!
//! Must not depend on broadcasts, which can be stale.

use crate::api::{ApiCall, cluster::visible_guest_filter, nodes::subdirectory_index};
use crate::flavour::Flavour;
use crate::guest::{LabGuest, LabGuestKind};
use crate::json_text::{self, JsonObject};
use crate::response::{ApiData, ApiError};
use crate::world::World;

pub(super) fn index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(subdirectory_index(&["config", "pending", "status", "snapshot", "clone", "migrate", "resize", "template", "firewall"]))
}

pub(super) fn list_verbs(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(subdirectory_index(&["current", "start", "stop", "shutdown", "reboot", "suspend", "resume"]))
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let on_node = world.visible_guests().filter(|guest| guest.node == call.node && guest.kind == call.kind);
    let seen = on_node.filter(visible_guest_filter(world, call));
    let full = call.is_set("full");
    Ok(ApiData::from_json_text(json_text::write_list(seen, |row, guest| put_entry(world, guest, full, row))))
}

/// Typical size of a guest's status.
const STATUS_BYTES_HINT: usize = 600;

pub(super) fn current_status(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let make = || {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        put_fields_before_uptime(world, guest, &mut JsonObject::new(&mut before));
        put_fields_after_uptime(world, guest, true, &mut JsonObject::continuing(&mut after));
        (before, after)
    };
    let missing = || ApiError::internal_error(guest.kind.missing_config_text(&guest.node, guest.vmid));
    let (before, after) = world.guests.current_text(guest.vmid, make).ok_or_else(missing)?;
    let mut out = Vec::with_capacity(STATUS_BYTES_HINT);
    out.extend_from_slice(before);
    let mut row = JsonObject::continuing(&mut out);
    row.put("uptime", uptime_s(world, guest)).put_raw_members(after);
    row.put("ha", world.ha.status_json(guest));
    row.put_some("agent", (guest.kind == LabGuestKind::Qemu && is_agent_enabled(guest)).then_some(1));
    row.close();
    Ok(ApiData::from_json_text(out))
}

fn is_agent_enabled(guest: &LabGuest) -> bool {
    let first = guest.get("agent").and_then(|agent| agent.split(',').next()).unwrap_or_default();
    first == "1" || first == "enabled=1"
}

/// The fields that every list contains.
fn put_entry(world: &World, guest: &LabGuest, full: bool, row: &mut JsonObject<'_>) {
    put_fields_before_uptime(world, guest, row);
    row.put("uptime", uptime_s(world, guest));
    put_fields_after_uptime(world, guest, full, row);
}

/// Seconds since the guest started. No other field changes with time alone.
fn uptime_s(world: &World, guest: &LabGuest) -> u64 {
    guest.process.as_ref().map_or(0, |process| world.now_ms.saturating_sub(process.since_ms) / 1_000)
}

fn put_fields_before_uptime(world: &World, guest: &LabGuest, row: &mut JsonObject<'_>) {
    let cpus = world.nodes.get(&guest.node).map_or(1, |node| node.cpus);
    row.put("vmid", guest.vmid).put("name", guest.display_name());
    row.put("status", if guest.is_running() { "running" } else { "stopped" }).put("cpus", guest.cpu_count(cpus));
    row.put("maxmem", guest.memory_bytes()).put("maxdisk", guest.disk_bytes());
}

fn put_fields_after_uptime(world: &World, guest: &LabGuest, full: bool, row: &mut JsonObject<'_>) {
    let load = guest.current_load();
    row.put("cpu", load.cpu_fraction()).put("mem", load.memory);
    for key in ["disk", "netin", "netout"] {
        row.put(key, 0);
    }
    row.put_some("lock", guest.get("lock")).put_some("tags", guest.get("tags"));
    row.put_some("template", guest.is_template().then_some(1));
    match guest.kind {
        LabGuestKind::Qemu => put_qemu(guest, row, full, world.flavour),
        LabGuestKind::Lxc => put_lxc(guest, row, world.flavour),
    }
}

fn put_qemu(guest: &LabGuest, row: &mut JsonObject<'_>, full: bool, flavour: Flavour) {
    if flavour >= Flavour::V9 {
        row.put("memhost", guest.current_load().memory_of_host);
    } else {
        row.put("diskread", 0).put("diskwrite", 0);
    }
    if let Some(target) = guest.number("balloon").filter(|target| *target > 0) {
        row.put("balloon_min", target << 20).put("shares", guest.number("shares").unwrap_or(1_000));
    }
    if full {
        row.put("qmpstatus", guest.process.as_ref().map_or("stopped", |process| process.qemu_state.as_str()));
    }
    let Some(process) = &guest.process else { return };
    row.put("pid", process.pid);
    for key in PRESSURE_KEYS.iter().filter(|_| flavour >= Flavour::V9) {
        row.put(key, 0);
    }
}

/// Pressure stall values of a running guest; since release 9.
const PRESSURE_KEYS: &[&str] =
    &[CPU_FULL_KEY, "pressurecpusome", "pressureiofull", "pressureiosome", "pressurememoryfull", "pressurememorysome"];
const CPU_FULL_KEY: &str = "pressurecpufull";

fn put_lxc(guest: &LabGuest, row: &mut JsonObject<'_>, flavour: Flavour) {
    row.put("type", "lxc").put("swap", 0).put("maxswap", guest.number("swap").unwrap_or(0) << 20);
    row.put("diskread", 0).put("diskwrite", 0);
    let Some(process) = &guest.process else { return };
    row.put("pid", process.pid);
    // Containers do not report full CPU pressure.
    for key in PRESSURE_KEYS.iter().filter(|key| flavour >= Flavour::V9 && **key != CPU_FULL_KEY) {
        row.put(key, 0);
    }
}
