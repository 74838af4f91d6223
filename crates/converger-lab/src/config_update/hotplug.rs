//! Which changes a running guest applies at once, and which stay pending until its next start.
//!
//! Must not check the request; all changes are already in the pending section.

use std::collections::BTreeMap;

use crate::guest::drive::DriveValue;
use crate::guest::{LabGuest, LabGuestKind, is_card_key, is_disk_key};
use crate::response::ApiError;
use crate::schema::split_number;
use crate::world::World;

/// Keys that QEMU never sees; they take effect when they are written.
const IMMEDIATE_KEYS: &[&str] = &[
    "description",
    "hookscript",
    "lock",
    "migrate_downtime",
    "migrate_speed",
    "name",
    "onboot",
    "protection",
    "shares",
    "startup",
    "tags",
    "vmstatestorage",
    "cicustom",
    "cipassword",
    "citype",
    "ciupgrade",
    "ciuser",
    "nameserver",
    "searchdomain",
    "sshkeys",
    "template",
];

/// How long a guest has to release a network card.
const UNPLUG_TIMEOUT_MS: u64 = 6_000;

/// Applies what a running guest supports. The rest stays pending without an error; failed attempts are reported.
pub(super) fn hotplug_keys(world: &mut World, node: &str, vmid: u32, touched: &[String]) -> Result<u64, ApiError> {
    let mut errors = BTreeMap::new();
    let mut took_ms = 0;
    let Some(guest) = world.guests.get(&vmid) else { return Ok(0) };
    let deletions = guest.deletions.keys().cloned();
    let sets = guest.pending.keys().cloned();
    let keys: Vec<String> = deletions.chain(sets).filter(|key| is_immediate(key) || touched.contains(key)).collect();
    for key in keys {
        match hotplug_key(world, node, vmid, &key) {
            Ok(took) => took_ms += took,
            Err((error, waited_ms)) => {
                took_ms += waited_ms;
                errors.insert(key, format!("hotplug problem - {error}\n"));
            }
        }
    }
    if errors.is_empty() { Ok(took_ms) } else { Err(ApiError::Params(errors, took_ms)) }
}

fn is_immediate(key: &str) -> bool {
    IMMEDIATE_KEYS.contains(&key) || split_number(key).is_some_and(|(stem, _)| stem == "ipconfig")
}

fn hotplug_key(world: &mut World, node: &str, vmid: u32, key: &str) -> Result<u64, (String, u64)> {
    let Some(guest) = world.guests.get(&vmid) else { return Ok(0) };
    let is_deleted = guest.deletions.contains_key(key);
    if !is_immediate(key) && !can_hotplug(guest, key) {
        return Ok(0);
    }
    let took_ms = if is_card_key(key) { hotplug_card(world, node, vmid, key)? } else { 0 };
    let detach_ms = if is_deleted && is_disk_key(LabGuestKind::Qemu, key) { 1_000 } else { 0 };
    apply_pending_key(world, vmid, key);
    Ok(took_ms + detach_ms)
}

/// Whether a running guest can apply a change of this key.
fn can_hotplug(guest: &LabGuest, key: &str) -> bool {
    let feature = |name: &str| hotplug_features(guest).contains(&name);
    let stem = split_number(key).map_or(key, |(stem, _)| stem);
    match stem {
        "net" => feature("network"),
        "scsi" | "virtio" => feature("disk") && can_hotplug_disk(guest, key),
        "usb" => feature("usb"),
        "vcpus" => feature("cpu"),
        "memory" => feature("memory") && guest.is_enabled("numa"),
        "balloon" => guest.get("balloon") != Some("0") && guest.pending.get("balloon").map(String::as_str) != Some("0"),
        "cpuunits" | "cpulimit" | "tablet" => true,
        _ => false,
    }
}

fn hotplug_features(guest: &LabGuest) -> Vec<&str> {
    match guest.get("hotplug") {
        None | Some("1") => vec!["network", "disk", "usb"],
        Some("0") => Vec::new(),
        Some(list) => list.split([',', ';', ' ']).collect(),
    }
}

/// Disks can be plugged and unplugged live; of an existing disk only the limits can change live.
fn can_hotplug_disk(guest: &LabGuest, key: &str) -> bool {
    let (Some(now), Some(then)) = (guest.get(key), guest.pending.get(key)) else { return true };
    let (now, then) = (DriveValue::parse(now), DriveValue::parse(then));
    let limit = |option: &str| ["iops", "mbps", "bps"].iter().any(|stem| option.starts_with(stem));
    let fixed = |drive: &DriveValue| {
        drive.options.iter().filter(|(option, _)| !limit(option)).map(|(a, b)| (a.clone(), b.clone())).collect::<Vec<_>>()
    };
    now.file != then.file || fixed(&now) == fixed(&then)
}

/// Some options of a network card change live. Another model or address requires unplugging, which the guest and the bridge must allow.
fn hotplug_card(world: &World, node: &str, vmid: u32, key: &str) -> Result<u64, (String, u64)> {
    let Some(guest) = world.guests.get(&vmid) else { return Ok(0) };
    let (now, then) = (guest.get(key), guest.pending.get(key).map(String::as_str));
    let same_device = now.zip(then).is_some_and(|(now, then)| fixed_card_parts(now) == fixed_card_parts(then));
    let unplugs = now.is_some() && !same_device;
    if unplugs && !guest.behaviour.allows_unplug {
        return Err((format!("error on hot-unplugging device '{key}' - still busy in guest?"), UNPLUG_TIMEOUT_MS));
    }
    match then.and_then(card_bridge) {
        Some(bridge) if !same_device && !has_bridge(world, node, bridge) => {
            let script = "network script /usr/libexec/qemu-server/pve-bridge-hotplug failed with status 512";
            Err((format!("VM {vmid} qmp command 'netdev_add' failed - {script}"), 1_000))
        }
        _ => Ok(if unplugs { UNPLUG_TIMEOUT_MS / 10 } else { 0 }),
    }
}

fn fixed_card_parts(value: &str) -> Vec<&str> {
    let fixed = |part: &&str| ["queues=", "mtu="].iter().any(|key| part.starts_with(key));
    let first = value.split(',').next();
    first.into_iter().chain(value.split(',').skip(1).filter(fixed)).collect()
}

/// The bridge of a network card.
pub(crate) fn card_bridge(card: &str) -> Option<&str> {
    card.split(',').find_map(|part| part.strip_prefix("bridge="))
}

pub(super) fn has_bridge(world: &World, node: &str, bridge: &str) -> bool {
    world.nodes.get(node).is_some_and(|node| node.bridges.contains(bridge))
}

/// Applies all pending changes, as a stop or start of the process does.
pub(crate) fn apply_pending(world: &mut World, vmid: u32) {
    let Some(guest) = world.guests.get(&vmid) else { return };
    let keys: Vec<String> = guest.deletions.keys().chain(guest.pending.keys()).cloned().collect();
    for key in keys {
        apply_pending_key(world, vmid, &key);
    }
}

/// Applies one pending key. A replaced or deleted disk becomes unused, or is destroyed on request; a cloud-init image is always destroyed.
pub(super) fn apply_pending_key(world: &mut World, vmid: u32, key: &str) {
    let Some(guest) = world.guests.change_guest(vmid) else { return };
    let deletion = guest.deletions.remove(key);
    let value = guest.pending.remove(key);
    let before = match &value {
        Some(value) => guest.config.insert(key.to_owned(), value.clone()),
        None => guest.config.remove(key),
    };
    if guest.get(key) == Some("") {
        guest.config.remove(key);
    }
    let disk = before.filter(|_| is_disk_key(guest.kind, key)).map(|before| DriveValue::parse(&before));
    let replaced = |drive: &DriveValue| value.as_ref().is_none_or(|value| DriveValue::parse(value).file != drive.file);
    if let Some(drive) = disk.filter(|drive| drive.is_owned() && replaced(drive)) {
        if deletion == Some(true) || drive.is_cloud_init() {
            world.storages.volumes.remove(&drive.file);
        } else {
            guest.add_unused(&drive.file);
        }
    }
}
