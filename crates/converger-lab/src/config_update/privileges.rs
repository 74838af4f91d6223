//! Which privilege each config key requires, and which keys only root may change.
//!
//! Must not check values.

use std::collections::BTreeSet;

use crate::api::ApiCall;
use crate::guest::{LabGuestKind, drive::DriveValue, is_card_key, is_disk_key, is_unused_key};
use crate::response::ApiError;
use crate::schema::{split_list, split_number};
use crate::world::World;

use super::ConfigUpdate;

const CPU_KEYS: &[&str] = &["cores", "cpu", "cpulimit", "cpuunits", "numa", "smp", "sockets", "vcpus"];
const MEMORY_KEYS: &[&str] = &["balloon", "memory", "shares", "swap"];
const HARDWARE_KEYS: &[&str] = &["acpi", "audio0", "hotplug", "kvm", "machine", "scsihw", "smbios1", "tablet", "vga", "watchdog", "rng0"];
const DISK_KEYS: &[&str] = &["boot", "bootdisk", "vmstatestorage", "vmstate"];
const CLOUD_INIT_KEYS: &[&str] = &["cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"];
const OPTION_KEYS: &[&str] = &[
    "agent",
    "allow-ksm",
    "autostart",
    "bios",
    "description",
    "keyboard",
    "localtime",
    "migrate_downtime",
    "migrate_speed",
    "name",
    "onboot",
    "ostype",
    "protection",
    "reboot",
    "startdate",
    "startup",
    "tags",
    "tdf",
    "template",
];

/// Fails unless the caller may change every key of the update.
pub(super) fn check_update_privileges(world: &World, call: &ApiCall, update: &ConfigUpdate) -> Result<(), ApiError> {
    let keys = update.deletes.iter().chain(update.sets.iter().map(|(key, _)| key));
    for key in keys {
        let value = update.sets.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value.as_str());
        match update.kind {
            LabGuestKind::Qemu => check_qemu_key(world, call, update.vmid, key, value)?,
            LabGuestKind::Lxc => check_lxc_key(world, call, update.vmid, key, value)?,
        }
    }
    if update.deletes.iter().any(|key| key == "tags") {
        tags(world, call, update.vmid, "")?;
    }
    if let Some((_, value)) = update.sets.iter().find(|(key, _)| key == "tags") {
        tags(world, call, update.vmid, value)?;
    }
    update.sets.iter().try_for_each(|(key, value)| check_resource_privileges(world, call, update.kind, key, value))
}

/// Every tag that is added or removed must be one that the datacenter allows to everybody, unless the caller has `Sys.Modify` on `/`.
fn tags(world: &World, call: &ApiCall, vmid: u32, new: &str) -> Result<(), ApiError> {
    if world.access.has_privilege(&call.caller, "/", "Sys.Modify") {
        return Ok(());
    }
    let old = world.guests.get(&vmid).and_then(|guest| guest.get("tags")).unwrap_or_default();
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (split_list(old).collect(), split_list(new).collect());
    let seen = world.tags_seen_by(&call.caller);
    match old.symmetric_difference(&new).find(|tag| !world.options.allows(tag, &seen)) {
        Some(tag) => Err(ApiError::Denied(format!("/, Sys.Modify for modifying tag '{tag}'"))),
        None => Ok(()),
    }
}

/// A new disk requires space on its storage. Since release 8 a network card requires the right to use its bridge.
pub(crate) fn check_resource_privileges(world: &World, call: &ApiCall, kind: LabGuestKind, key: &str, value: &str) -> Result<(), ApiError> {
    let drive = DriveValue::parse(value);
    match drive.new_disk_request().filter(|_| is_disk_key(kind, key)) {
        Some((storage, _)) => world.access.require_privilege(&call.caller, &format!("/storage/{storage}"), "Datastore.AllocateSpace"),
        None => check_bridge_privilege(world, call, key, value),
    }
}

fn check_qemu_key(world: &World, call: &ApiCall, vmid: u32, key: &str, value: &str) -> Result<(), ApiError> {
    let Some(privilege) = qemu_privilege(key, value) else {
        let allowed = call.caller.is_root();
        return if allowed { Ok(()) } else { Err(ApiError::internal_error(format!("only root can set '{key}' config"))) };
    };
    world.access.require_privilege(&call.caller, &format!("/vms/{vmid}"), privilege)?;
    if is_disk_key(LabGuestKind::Qemu, key) && DriveValue::parse(value).is_cloud_init() {
        world.access.require_privilege(&call.caller, &format!("/vms/{vmid}"), "VM.Config.Cloudinit")?;
    }
    if key == "startup" {
        world.access.require_privilege(&call.caller, "/", "Sys.Modify")?;
    }
    Ok(())
}

fn qemu_privilege(key: &str, value: &str) -> Option<&'static str> {
    let stem = split_number(key).map_or(key, |(stem, _)| stem);
    match stem {
        _ if CPU_KEYS.contains(&key) => Some("VM.Config.CPU"),
        _ if MEMORY_KEYS.contains(&key) => Some("VM.Config.Memory"),
        _ if HARDWARE_KEYS.contains(&key) => Some("VM.Config.HWType"),
        _ if OPTION_KEYS.contains(&key) => Some("VM.Config.Options"),
        _ if CLOUD_INIT_KEYS.contains(&key) => Some("VM.Config.Cloudinit"),
        _ if DISK_KEYS.contains(&key) || is_unused_key(key) => Some("VM.Config.Disk"),
        _ if is_disk_key(LabGuestKind::Qemu, key) && DriveValue::parse(value).is_cdrom() => Some("VM.Config.CDROM"),
        _ if is_disk_key(LabGuestKind::Qemu, key) => Some("VM.Config.Disk"),
        "net" | "ipconfig" => Some("VM.Config.Network"),
        "numa" => Some("VM.Config.CPU"),
        "serial" if value == "socket" || value.is_empty() => Some("VM.Config.HWType"),
        _ => None,
    }
}

fn check_lxc_key(world: &World, call: &ApiCall, vmid: u32, key: &str, value: &str) -> Result<(), ApiError> {
    let stem = split_number(key).map_or(key, |(stem, _)| stem);
    let privilege = match stem {
        "dev" => return require_root_user(call, "configuring device passthrough is only allowed for root@pam"),
        "hookscript" => return require_root_user(call, "changing the hookscript is only allowed for root@pam"),
        "features" if value != "nesting=1" && value != "nesting=0" && !value.is_empty() => {
            return require_root_user(call, "changing feature flags (except nesting) is only allowed for root@pam");
        }
        "mp" | "rootfs" if value.starts_with("/dev/") => {
            return require_root_user(call, "mount point type device is only allowed for root@pam");
        }
        "mp" | "rootfs" if value.starts_with('/') => {
            return require_root_user(call, "mount point type bind is only allowed for root@pam");
        }
        "mp" | "rootfs" | "unused" => "VM.Config.Disk",
        "cores" | "cpulimit" | "cpuunits" => "VM.Config.CPU",
        "memory" | "swap" => "VM.Config.Memory",
        "net" | "nameserver" | "searchdomain" | "hostname" => "VM.Config.Network",
        _ => "VM.Config.Options",
    };
    world.access.require_privilege(&call.caller, &format!("/vms/{vmid}"), privilege)
}

fn require_root_user(call: &ApiCall, text: &str) -> Result<(), ApiError> {
    if call.caller.is_root() { Ok(()) } else { Err(ApiError::Denied(text.to_owned())) }
}

fn check_bridge_privilege(world: &World, call: &ApiCall, key: &str, value: &str) -> Result<(), ApiError> {
    if !is_card_key(key) || world.flavour.major() < 8 {
        return Ok(());
    }
    let part = |name: &str| value.split(',').find_map(|part| part.strip_prefix(name));
    let Some(bridge) = part("bridge=") else { return Ok(()) };
    let vlan = part("tag=").map(|tag| format!("/{tag}")).unwrap_or_default();
    let path = format!("/sdn/zones/localnetwork/{bridge}{vlan}");
    world.access.require_any_privilege(&call.caller, &path, &["SDN.Use"])
}
