//! Config updates of containers. All keys are checked before anything is written. A change that
//! cannot be converted to the LXC config afterwards fails but stays written.
//!
//! Must not depend on the rules for virtual machines.

use super::{ConfigUpdate, hotplug, normalize, privileges};
use crate::api::ApiCall;
use crate::guest::{LabGuest, LabGuestKind, drive, is_card_key, is_disk_key, is_unused_key};
use crate::response::ApiError;
use crate::schema::config_key_schema;
use crate::world::World;

/// Keys that a running container applies at once.
const IMMEDIATE_KEYS: &[&str] = &[
    "cores",
    "cpulimit",
    "cpuunits",
    "description",
    "hookscript",
    "hostname",
    "lock",
    "memory",
    "onboot",
    "protection",
    "startup",
    "swap",
    "tags",
];

pub(super) fn prepare_container_update(world: &mut World, call: &ApiCall, mut update: ConfigUpdate) -> Result<ConfigUpdate, ApiError> {
    if update.sets.is_empty() && update.deletes.is_empty() && update.reverts.is_empty() {
        return Err(ApiError::internal_error("no options specified"));
    }
    check_known_keys(world, &update)?;
    privileges::check_update_privileges(world, call, &update)?;
    for (key, value) in &mut update.sets {
        *value = normalize_value(world, key, value);
    }
    Ok(update)
}

fn check_known_keys(world: &World, update: &ConfigUpdate) -> Result<(), ApiError> {
    let known = |key: &str| config_key_schema(LabGuestKind::Lxc.config_template(), key, world.flavour).is_some() || is_unused_key(key);
    let set = |key: &String| update.sets.iter().any(|(known, _)| known == key);
    for key in &update.deletes {
        if set(key) {
            return Err(ApiError::parameter_error("delete", format!("you can't use '-{key}' and -delete {key}' at the same time")));
        }
        if !known(key) {
            return Err(ApiError::parameter_error("delete", format!("unknown option '{key}'")));
        }
    }
    Ok(())
}

fn normalize_value(world: &mut World, key: &str, value: &str) -> String {
    let flavour = world.flavour;
    match key {
        "tags" => normalize::normalize_tags(&world.options, value),
        "description" => value.trim_end().to_owned(),
        "nameserver" | "searchdomain" => normalize::join_with_spaces(value),
        "cpuunits" => normalize::clamp_cpu_units(value),
        _ if is_card_key(key) => normalize::normalize_container_card(key, value, flavour, &mut world.random),
        _ if is_disk_key(LabGuestKind::Lxc, key) => drive::parse_request_value(LabGuestKind::Lxc, key, value, flavour).to_text(),
        _ => normalize::or_blank(value),
    }
}

pub(super) fn write_container_update(world: &mut World, node: &str, update: &ConfigUpdate) -> Result<(), ApiError> {
    let vmid = update.vmid;
    let Some(guest) = world.guests.get(&vmid) else { return Ok(()) };
    update.deletes.iter().try_for_each(|key| check_deletable(guest, key))?;
    update.sets.iter().try_for_each(|(key, _)| check_settable(guest, key))?;
    let disks = make_disks(world, update)?;
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    for key in &update.reverts {
        guest.drop_pending(key);
    }
    for key in update.deletes.iter().filter(|key| guest.config.contains_key(*key)) {
        guest.pending.remove(key);
        guest.deletions.insert(key.clone(), update.force);
    }
    for (key, value) in disks {
        guest.deletions.remove(&key);
        guest.pending.insert(key, value);
    }
    let main = guest.config.clone();
    guest.pending.retain(|key, value| main.get(key) != Some(value));
    apply_pending_keys(world, vmid);
    check_bridges(world, node, vmid)
}

/// The values to set, with new volumes created.
fn make_disks(world: &mut World, update: &ConfigUpdate) -> Result<Vec<(String, String)>, ApiError> {
    let mut disks = Vec::new();
    for (key, value) in &update.sets {
        let value = match is_disk_key(LabGuestKind::Lxc, key) {
            true => super::make_disk(world, update.vmid, value).map_err(ApiError::internal_error)?,
            false => value.clone(),
        };
        disks.push((key.clone(), value));
    }
    Ok(disks)
}

fn check_deletable(guest: &LabGuest, key: &str) -> Result<(), ApiError> {
    let vmid = guest.vmid;
    if ["memory", "rootfs", "ostype"].contains(&key) {
        return Err(ApiError::internal_error(format!("unable to delete required option '{key}'")));
    }
    if guest.is_protected() && (is_disk_key(LabGuestKind::Lxc, key) || is_unused_key(key)) {
        return Err(ApiError::internal_error(format!("can't remove CT {vmid} drive '{key}' - protection mode enabled")));
    }
    Ok(())
}

fn check_settable(guest: &LabGuest, key: &str) -> Result<(), ApiError> {
    let vmid = guest.vmid;
    if key == "unprivileged" {
        return Err(ApiError::internal_error("unable to modify read-only option: 'unprivileged'"));
    }
    if guest.is_protected() && is_disk_key(LabGuestKind::Lxc, key) {
        return Err(ApiError::internal_error(format!("can't update CT {vmid} drive '{key}' - protection mode enabled")));
    }
    Ok(())
}

/// A stopped container applies everything, a running one what it can.
fn apply_pending_keys(world: &mut World, vmid: u32) {
    let Some(guest) = world.guests.get(&vmid) else { return };
    let running = guest.is_running();
    let new_disk = |key: &str| is_disk_key(LabGuestKind::Lxc, key) && !guest.config.contains_key(key);
    let takes = |key: &String| !running || IMMEDIATE_KEYS.contains(&key.as_str()) || is_card_key(key) || new_disk(key);
    let keys: Vec<String> = guest.deletions.keys().chain(guest.pending.keys()).filter(|key| takes(key)).cloned().collect();
    for key in keys {
        hotplug::apply_pending_key(world, vmid, &key);
    }
}

/// The LXC config is generated after the write and fails on a missing bridge; the change stays written.
fn check_bridges(world: &World, node: &str, vmid: u32) -> Result<(), ApiError> {
    let Some(guest) = world.guests.get(&vmid) else { return Ok(()) };
    let cards = guest.config.iter().filter(|(key, _)| is_card_key(key));
    let mut named = cards.filter_map(|(_, value)| hotplug::card_bridge(value));
    match named.find(|bridge| !hotplug::has_bridge(world, node, bridge)) {
        Some(bridge) => Err(ApiError::internal_error(format!("bridge '{bridge}' does not exist"))),
        None => Ok(()),
    }
}
