//! What a guest reports about itself: the QEMU guest agent and the network interfaces of a
//! container.
//!
//! No operating system runs in the guest. Responses are derived from its config.

use serde_json::{Value, json};

use crate::api::ApiCall;
use crate::guest::drive::drives;
use crate::guest::{LabGuest, LabGuestKind, is_card_key};
use crate::response::{ApiData, ApiError};
use crate::schema::split_number;
use crate::world::World;

const AGENT_COMMANDS: &[&str] = &[
    "fstrim",
    "get-fsinfo",
    "get-host-name",
    "get-osinfo",
    "get-time",
    "get-timezone",
    "get-users",
    "get-vcpus",
    "info",
    "network-get-interfaces",
    "ping",
];

pub(super) fn list_commands(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(json!(AGENT_COMMANDS.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>()).into())
}

/// The guest, if its agent is enabled and would respond.
fn find_guest_with_agent<'a>(world: &'a World, call: &ApiCall) -> Result<&'a LabGuest, ApiError> {
    let guest = call.find_guest(world)?;
    let enabled = guest.get("agent").is_some_and(|agent| agent.split(',').any(|part| part == "1" || part == "enabled=1"));
    if !enabled {
        return Err(ApiError::internal_error("No QEMU guest agent configured"));
    }
    match &guest.process {
        None => Err(ApiError::internal_error(format!("VM {} is not running", guest.vmid))),
        // A guest that ignores shutdown requests ignores the agent as well.
        Some(process) if process.qemu_state != "running" || guest.behaviour.shutdown_ms.is_none() => {
            Err(ApiError::Died("QEMU guest agent is not running".to_owned(), 3_000))
        }
        Some(_) => Ok(guest),
    }
}

/// Runs the agent command that the path ends with.
pub(super) fn run_agent_command(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = find_guest_with_agent(world, call)?;
    let now_s = world.cluster_clock_s();
    let cpus = guest.cpu_count(world.nodes.get(&guest.node).map_or(1, |node| node.cpus));
    let result = match call.method.template.rsplit('/').next().unwrap_or_default() {
        "info" => agent_info(),
        "get-host-name" => json!({ "host-name": guest.display_name() }),
        "get-osinfo" => json!({ "id": "debian", "name": "Debian GNU/Linux", "pretty-name": "Debian GNU/Linux 12 (bookworm)",
            "version": "12 (bookworm)", "version-id": "12", "machine": "x86_64", "kernel-release": "6.1.0-18-amd64", "kernel-version": "#1 SMP" }),
        "get-time" => json!(now_s * 1_000_000_000),
        "get-timezone" => json!({ "zone": "UTC", "offset": 0 }),
        "get-users" | "fstrim" => json!([]),
        "get-vcpus" => (0..cpus).map(|id| json!({ "logical-id": id, "online": true, "can-offline": id > 0 })).collect(),
        "get-fsinfo" => file_systems(guest),
        "network-get-interfaces" => network_interfaces(guest),
        _ => json!({}),
    };
    Ok(json!({ "result": result }).into())
}

fn agent_info() -> Value {
    let commands: Vec<Value> =
        AGENT_COMMANDS.iter().map(|name| json!({ "name": format!("guest-{name}"), "enabled": true, "success-response": true })).collect();
    json!({ "version": "7.2.0", "supported_commands": commands })
}

fn file_systems(guest: &LabGuest) -> Value {
    let disks = drives(guest.kind, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    let mounted = |(index, (_, drive)): (usize, (&String, crate::guest::drive::DriveValue))| {
        let mount_point = if index == 0 { "/".to_owned() } else { format!("/mnt/{index}") };
        json!({ "name": format!("sd{}1", char::from(b'a' + (index % 26) as u8)), "mountpoint": mount_point, "type": "ext4",
            "total-bytes": drive.size_bytes(), "used-bytes": drive.size_bytes() / 4, "disk": [] })
    };
    disks.enumerate().map(mounted).collect()
}

/// Number and MAC address of each network card.
fn card_macs(guest: &LabGuest) -> impl Iterator<Item = (u32, String)> {
    let is_mac = |part: &&str| part.rsplit('=').next().is_some_and(|value| value.split(':').count() == 6);
    let cards = guest.config.iter().filter(|(key, _)| is_card_key(key));
    cards.filter_map(move |(key, value)| {
        let mac = value.split(',').find(is_mac).and_then(|part| part.rsplit('=').next()).unwrap_or_default();
        split_number(key).map(|(_, number)| (number, mac.to_lowercase()))
    })
}

/// The address from the config; otherwise one that is derived from the guest's VMID.
fn guest_ip_address(guest: &LabGuest, number: u32) -> (String, u8) {
    let key = if guest.kind == LabGuestKind::Qemu { format!("ipconfig{number}") } else { format!("net{number}") };
    let set =
        guest.get(&key).and_then(|value| value.split(',').find_map(|part| part.strip_prefix("ip="))).and_then(|ip| ip.split_once('/'));
    match set {
        Some((address, length)) => (address.to_owned(), length.parse().unwrap_or(24)),
        None => (format!("10.{number}.{}.{}", guest.vmid / 250 % 250, guest.vmid % 250 + 1), 16),
    }
}

fn address_json(kind: &str, text: &str, length: u8) -> Value {
    json!({ "ip-address": text, "ip-address-type": kind, "prefix": length })
}

fn network_interfaces(guest: &LabGuest) -> Value {
    let loopback = json!({ "name": "lo", "hardware-address": "00:00:00:00:00:00",
        "ip-addresses": [address_json("ipv4", "127.0.0.1", 8), address_json("ipv6", "::1", 128)] });
    let interface_json = |(number, mac): (u32, String)| {
        let (text, length) = guest_ip_address(guest, number);
        json!({ "name": format!("eth{number}"), "hardware-address": mac, "ip-addresses": [address_json("ipv4", &text, length)] })
    };
    std::iter::once(loopback).chain(card_macs(guest).map(interface_json)).collect()
}

/// A stopped container returns no interfaces.
pub(super) fn container_interfaces(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    if !guest.is_running() {
        return Ok(ApiData::null());
    }
    let entry = |name: &str, mac: &str, text: &str, length: u8| {
        json!({ "name": name, "hwaddr": mac, "hardware-address": mac, "inet": format!("{text}/{length}"),
            "ip-addresses": [address_json("inet", text, length)] })
    };
    let loopback = entry("lo", "00:00:00:00:00:00", "127.0.0.1", 8);
    let interface_json = |(number, mac): (u32, String)| {
        let (text, length) = guest_ip_address(guest, number);
        entry(&format!("eth{number}"), &mac, &text, length)
    };
    let entries: Vec<Value> = std::iter::once(loopback).chain(card_macs(guest).map(interface_json)).collect();
    Ok(json!(entries).into())
}

/// Whether all disks of a guest support a feature, and on which nodes.
pub(super) fn check_feature(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let section = match call.param("snapname") {
        Some(name) => guest.snapshots.get(name).ok_or_else(|| ApiError::internal_error(format!("snapshot '{name}' does not exist")))?,
        None => &guest.config,
    };
    let mut disks = drives(guest.kind, section).filter(|(_, drive)| !drive.is_cdrom());
    let able = match call.param("feature") {
        Some("snapshot") => disks.all(|(_, drive)| world.storages.supports_snapshots(&drive.file)),
        Some("clone") => guest.is_template() && disks.all(|(_, drive)| world.storages.supports_snapshots(&drive.file)),
        _ => true,
    };
    let mut fields = json!({ "hasFeature": u8::from(able) });
    if guest.kind == LabGuestKind::Qemu {
        fields["nodes"] = json!(world.nodes.keys().collect::<Vec<_>>());
    }
    Ok(fields.into())
}
