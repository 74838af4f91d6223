//! Which privilege each config key needs, and the keys that are for root in person.
//!
//! What never enters here: whether a value is good.

use std::collections::BTreeSet;

use crate::api::Call;
use crate::guest::{Kind, drive::Drive, is_card_key, is_disk_key, is_unused_key};
use crate::respond::Fail;
use crate::schema::{split_list, split_number};
use crate::world::World;

use super::Update;

const CPU: &[&str] = &["cores", "cpu", "cpulimit", "cpuunits", "numa", "smp", "sockets", "vcpus"];
const MEMORY: &[&str] = &["balloon", "memory", "shares", "swap"];
const HARDWARE: &[&str] = &["acpi", "audio0", "hotplug", "kvm", "machine", "scsihw", "smbios1", "tablet", "vga", "watchdog", "rng0"];
const DISK: &[&str] = &["boot", "bootdisk", "vmstatestorage", "vmstate"];
const CLOUD_INIT: &[&str] = &["cicustom", "cipassword", "citype", "ciupgrade", "ciuser", "nameserver", "searchdomain", "sshkeys"];
const OPTIONS: &[&str] = &[
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

/// Refuse unless the caller may change every key of the update.
pub(super) fn check(world: &World, call: &Call, update: &Update) -> Result<(), Fail> {
    let keys = update.deletes.iter().chain(update.sets.iter().map(|(key, _)| key));
    for key in keys {
        let value = update.sets.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value.as_str());
        match update.kind {
            Kind::Qemu => qemu(world, call, update.vmid, key, value)?,
            Kind::Lxc => lxc(world, call, update.vmid, key, value)?,
        }
    }
    if update.deletes.iter().any(|key| key == "tags") {
        tags(world, call, update.vmid, "")?;
    }
    if let Some((_, value)) = update.sets.iter().find(|(key, _)| key == "tags") {
        tags(world, call, update.vmid, value)?;
    }
    update.sets.iter().try_for_each(|(key, value)| resources(world, call, update.kind, key, value))
}

/// Each tag that comes or goes must be one that the datacenter allows to everybody, unless the caller has `Sys.Modify` on `/`.
fn tags(world: &World, call: &Call, vmid: u32, new: &str) -> Result<(), Fail> {
    if world.access.has(&call.who, "/", "Sys.Modify") {
        return Ok(());
    }
    let old = world.guests.get(&vmid).and_then(|guest| guest.get("tags")).unwrap_or_default();
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) = (split_list(old).collect(), split_list(new).collect());
    let seen = world.tags_seen_by(&call.who);
    match old.symmetric_difference(&new).find(|tag| !world.options.allows(tag, &seen)) {
        Some(tag) => Err(Fail::Denied(format!("/, Sys.Modify for modifying tag '{tag}'"))),
        None => Ok(()),
    }
}

/// A new disk needs space on its storage, and since 8 a card needs the use of its bridge.
pub(crate) fn resources(world: &World, call: &Call, kind: Kind, key: &str, value: &str) -> Result<(), Fail> {
    let drive = Drive::parse(value);
    match drive.wanted().filter(|_| is_disk_key(kind, key)) {
        Some((storage, _)) => world.access.need(&call.who, &format!("/storage/{storage}"), "Datastore.AllocateSpace"),
        None => bridge(world, call, key, value),
    }
}

fn qemu(world: &World, call: &Call, vmid: u32, key: &str, value: &str) -> Result<(), Fail> {
    let Some(privilege) = qemu_privilege(key, value) else {
        let allowed = call.who.is_root();
        return if allowed { Ok(()) } else { Err(Fail::died(format!("only root can set '{key}' config"))) };
    };
    world.access.need(&call.who, &format!("/vms/{vmid}"), privilege)?;
    if is_disk_key(Kind::Qemu, key) && Drive::parse(value).is_cloud_init() {
        world.access.need(&call.who, &format!("/vms/{vmid}"), "VM.Config.Cloudinit")?;
    }
    if key == "startup" {
        world.access.need(&call.who, "/", "Sys.Modify")?;
    }
    Ok(())
}

fn qemu_privilege(key: &str, value: &str) -> Option<&'static str> {
    let stem = split_number(key).map_or(key, |(stem, _)| stem);
    match stem {
        _ if CPU.contains(&key) => Some("VM.Config.CPU"),
        _ if MEMORY.contains(&key) => Some("VM.Config.Memory"),
        _ if HARDWARE.contains(&key) => Some("VM.Config.HWType"),
        _ if OPTIONS.contains(&key) => Some("VM.Config.Options"),
        _ if CLOUD_INIT.contains(&key) => Some("VM.Config.Cloudinit"),
        _ if DISK.contains(&key) || is_unused_key(key) => Some("VM.Config.Disk"),
        _ if is_disk_key(Kind::Qemu, key) && Drive::parse(value).is_cdrom() => Some("VM.Config.CDROM"),
        _ if is_disk_key(Kind::Qemu, key) => Some("VM.Config.Disk"),
        "net" | "ipconfig" => Some("VM.Config.Network"),
        "numa" => Some("VM.Config.CPU"),
        "serial" if value == "socket" || value.is_empty() => Some("VM.Config.HWType"),
        _ => None,
    }
}

fn lxc(world: &World, call: &Call, vmid: u32, key: &str, value: &str) -> Result<(), Fail> {
    let stem = split_number(key).map_or(key, |(stem, _)| stem);
    let privilege = match stem {
        "dev" => return root_in_person(call, "configuring device passthrough is only allowed for root@pam"),
        "hookscript" => return root_in_person(call, "changing the hookscript is only allowed for root@pam"),
        "features" if value != "nesting=1" && value != "nesting=0" && !value.is_empty() => {
            return root_in_person(call, "changing feature flags (except nesting) is only allowed for root@pam");
        }
        "mp" | "rootfs" if value.starts_with("/dev/") => {
            return root_in_person(call, "mount point type device is only allowed for root@pam");
        }
        "mp" | "rootfs" if value.starts_with('/') => {
            return root_in_person(call, "mount point type bind is only allowed for root@pam");
        }
        "mp" | "rootfs" | "unused" => "VM.Config.Disk",
        "cores" | "cpulimit" | "cpuunits" => "VM.Config.CPU",
        "memory" | "swap" => "VM.Config.Memory",
        "net" | "nameserver" | "searchdomain" | "hostname" => "VM.Config.Network",
        _ => "VM.Config.Options",
    };
    world.access.need(&call.who, &format!("/vms/{vmid}"), privilege)
}

fn root_in_person(call: &Call, text: &str) -> Result<(), Fail> {
    if call.who.is_root() { Ok(()) } else { Err(Fail::Denied(text.to_owned())) }
}

fn bridge(world: &World, call: &Call, key: &str, value: &str) -> Result<(), Fail> {
    if !is_card_key(key) || world.flavour.major() < 8 {
        return Ok(());
    }
    let part = |name: &str| value.split(',').find_map(|part| part.strip_prefix(name));
    let Some(bridge) = part("bridge=") else { return Ok(()) };
    let vlan = part("tag=").map(|tag| format!("/{tag}")).unwrap_or_default();
    let path = format!("/sdn/zones/localnetwork/{bridge}{vlan}");
    world.access.need_any(&call.who, &path, &["SDN.Use"])
}
