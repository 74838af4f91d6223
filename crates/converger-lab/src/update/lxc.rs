//! Config updates of containers: every key is checked before anything is written, and what cannot
//! be turned into a container's own config afterwards fails although it is written.
//!
//! What never enters here: QEMU.

use super::{Update, hotplug, normal, rights};
use crate::api::Call;
use crate::guest::{Guest, Kind, drive, is_card_key, is_disk_key, is_unused_key};
use crate::respond::Fail;
use crate::schema::config_key;
use crate::world::World;

/// Keys that a running container takes over at once.
const AT_ONCE: &[&str] = &[
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

pub(super) fn prepare(world: &mut World, call: &Call, mut update: Update) -> Result<Update, Fail> {
    if update.sets.is_empty() && update.deletes.is_empty() && update.reverts.is_empty() {
        return Err(Fail::died("no options specified"));
    }
    known_keys(world, &update)?;
    rights::check(world, call, &update)?;
    for (key, value) in &mut update.sets {
        *value = written(world, key, value);
    }
    Ok(update)
}

fn known_keys(world: &World, update: &Update) -> Result<(), Fail> {
    let known = |key: &str| config_key(Kind::Lxc.config_template(), key, world.flavour).is_some() || is_unused_key(key);
    let set = |key: &String| update.sets.iter().any(|(known, _)| known == key);
    for key in &update.deletes {
        if set(key) {
            return Err(Fail::param("delete", format!("you can't use '-{key}' and -delete {key}' at the same time")));
        }
        if !known(key) {
            return Err(Fail::param("delete", format!("unknown option '{key}'")));
        }
    }
    Ok(())
}

fn written(world: &mut World, key: &str, value: &str) -> String {
    let flavour = world.flavour;
    match key {
        "tags" => normal::tags(&world.options, value),
        "description" => value.trim_end().to_owned(),
        "nameserver" | "searchdomain" => normal::spaced(value),
        "cpuunits" => normal::cpu_units(value),
        _ if is_card_key(key) => normal::container_card(key, value, flavour, &mut world.random),
        _ if is_disk_key(Kind::Lxc, key) => drive::from_request(Kind::Lxc, key, value, flavour).print(),
        _ => normal::kept(value),
    }
}

pub(super) fn write(world: &mut World, node: &str, update: &Update) -> Result<(), Fail> {
    let vmid = update.vmid;
    let Some(guest) = world.guests.get(&vmid) else { return Ok(()) };
    update.deletes.iter().try_for_each(|key| may_delete(guest, key))?;
    update.sets.iter().try_for_each(|(key, _)| may_set(guest, key))?;
    let disks = disks(world, update)?;
    let Some(guest) = world.guests.change(vmid) else { return Ok(()) };
    for key in &update.reverts {
        guest.forget_pending(key);
    }
    for key in update.deletes.iter().filter(|key| guest.main.contains_key(*key)) {
        guest.pending.remove(key);
        guest.deletions.insert(key.clone(), update.force);
    }
    for (key, value) in disks {
        guest.deletions.remove(&key);
        guest.pending.insert(key, value);
    }
    let main = guest.main.clone();
    guest.pending.retain(|key, value| main.get(key) != Some(value));
    take_over(world, vmid);
    bridges_exist(world, node, vmid)
}

/// The values to set, with new volumes made.
fn disks(world: &mut World, update: &Update) -> Result<Vec<(String, String)>, Fail> {
    let mut made = Vec::new();
    for (key, value) in &update.sets {
        let value = match is_disk_key(Kind::Lxc, key) {
            true => super::make_disk(world, update.vmid, value).map_err(Fail::died)?,
            false => value.clone(),
        };
        made.push((key.clone(), value));
    }
    Ok(made)
}

fn may_delete(guest: &Guest, key: &str) -> Result<(), Fail> {
    let vmid = guest.vmid;
    if ["memory", "rootfs", "ostype"].contains(&key) {
        return Err(Fail::died(format!("unable to delete required option '{key}'")));
    }
    if guest.is_protected() && (is_disk_key(Kind::Lxc, key) || is_unused_key(key)) {
        return Err(Fail::died(format!("can't remove CT {vmid} drive '{key}' - protection mode enabled")));
    }
    Ok(())
}

fn may_set(guest: &Guest, key: &str) -> Result<(), Fail> {
    let vmid = guest.vmid;
    if key == "unprivileged" {
        return Err(Fail::died("unable to modify read-only option: 'unprivileged'"));
    }
    if guest.is_protected() && is_disk_key(Kind::Lxc, key) {
        return Err(Fail::died(format!("can't update CT {vmid} drive '{key}' - protection mode enabled")));
    }
    Ok(())
}

/// A stopped container takes everything over, a running one what it can.
fn take_over(world: &mut World, vmid: u32) {
    let Some(guest) = world.guests.get(&vmid) else { return };
    let running = guest.is_running();
    let new_disk = |key: &str| is_disk_key(Kind::Lxc, key) && !guest.main.contains_key(key);
    let takes = |key: &String| !running || AT_ONCE.contains(&key.as_str()) || is_card_key(key) || new_disk(key);
    let keys: Vec<String> = guest.deletions.keys().chain(guest.pending.keys()).filter(|key| takes(key)).cloned().collect();
    for key in keys {
        hotplug::apply_one(world, vmid, &key);
    }
}

/// The container's own config is made after the write, and fails on a bridge that is not there: the change stays.
fn bridges_exist(world: &World, node: &str, vmid: u32) -> Result<(), Fail> {
    let Some(guest) = world.guests.get(&vmid) else { return Ok(()) };
    let cards = guest.main.iter().filter(|(key, _)| is_card_key(key));
    let mut named = cards.filter_map(|(_, value)| hotplug::bridge(value));
    match named.find(|bridge| !hotplug::has_bridge(world, node, bridge)) {
        Some(bridge) => Err(Fail::died(format!("bridge '{bridge}' does not exist"))),
        None => Ok(()),
    }
}
