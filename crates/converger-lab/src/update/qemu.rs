//! Config updates of QEMU guests: each key goes into the pending section by itself, so a failure
//! midway leaves the earlier keys there.
//!
//! What never enters here: what a running guest takes over at once (see `hotplug`).

use super::{Update, hotplug, normal, rights};
use crate::api::Call;
use crate::guest::drive::{self, Drive};
use crate::guest::{Guest, Kind, is_card_key, is_disk_key, is_unused_key};
use crate::respond::Fail;
use crate::schema::config_key;
use crate::world::World;

/// Check the request and bring its values into the form that is written.
pub(super) fn prepare(world: &mut World, call: &Call, mut update: Update) -> Result<Update, Fail> {
    if let Some((_, keys)) = update.sets.iter().find(|(key, _)| key == "sshkeys") {
        ssh_keys(keys)?;
    }
    if update.sets.is_empty() && update.deletes.is_empty() && update.reverts.is_empty() {
        return Err(Fail::died("no options specified"));
    }
    known_keys(world, &update)?;
    for (key, value) in &mut update.sets {
        *value = written(world, key, value)?;
    }
    rights::check(world, call, &update)?;
    Ok(update)
}

fn known_keys(world: &World, update: &Update) -> Result<(), Fail> {
    let set = |key: &String| update.sets.iter().any(|(known, _)| known == key);
    let known = |key: &String| {
        let shape = config_key(Kind::Qemu.config_template(), key, world.flavour);
        shape.is_some() || is_unused_key(key) || ["vmstate", "parent", "meta"].contains(&key.as_str())
    };
    for key in &update.reverts {
        if !known(key) {
            return Err(Fail::param("revert", format!("unknown option '{key}'")));
        }
        if set(key) {
            return Err(Fail::param("delete", format!("you can't use '-{key}' and -revert {key}' at the same time")));
        }
    }
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

fn written(world: &mut World, key: &str, value: &str) -> Result<String, Fail> {
    let flavour = world.flavour;
    match key {
        "cpuunits" => Ok(normal::cpu_units(value)),
        "vmgenid" if value == "1" => Ok(world.random.uuid()),
        "hookscript" => Err(Fail::param("hookscript", format!("script '{value}' does not exist\n"))),
        _ if is_card_key(key) => Ok(normal::card(key, value, flavour, &mut world.random)),
        _ if is_disk_key(Kind::Qemu, key) => Ok(drive::from_request(Kind::Qemu, key, value, flavour).print()),
        _ => Ok(value.to_owned()),
    }
}

/// Keys arrive encoded; each line must be a key that `ssh-keygen` would take.
fn ssh_keys(encoded: &str) -> Result<(), Fail> {
    let keys = crate::decode::unescape(encoded);
    let fine = keys.lines().filter(|line| !line.trim().is_empty()).all(is_ssh_key);
    if fine { Ok(()) } else { Err(Fail::died("SSH public key validation error")) }
}

/// An Ed25519 key has 51 bytes, so 68 characters; other kinds are only looked at roughly.
fn is_ssh_key(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let (Some(kind), Some(body)) = (words.next(), words.next()) else { return false };
    let coded = body.chars().all(|character| character.is_ascii_alphanumeric() || "+/=".contains(character));
    coded && if kind == "ssh-ed25519" { body.len() == 68 } else { body.len() >= 68 }
}

/// Write the update and apply what can be applied; returns how long hot-plugging took.
pub(super) fn write(world: &mut World, node: &str, update: &Update) -> Result<u64, Fail> {
    let vmid = update.vmid;
    revert(world, update);
    balloon(world, update)?;
    let mut touched: Vec<String> = Vec::new();
    for key in &update.deletes {
        delete(world, update, key, &mut touched)?;
    }
    for (key, value) in &update.sets {
        set(world, update, key, value, &mut touched)?;
    }
    let Some(guest) = world.guests.change(vmid) else { return Ok(0) };
    drop_unchanged(guest);
    if guest.is_running() {
        return hotplug::plug(world, node, vmid, &touched);
    }
    hotplug::apply_pending(world, vmid);
    Ok(0)
}

fn revert(world: &mut World, update: &Update) {
    let Some(guest) = world.guests.change(update.vmid) else { return };
    for key in &update.reverts {
        let dropped = guest.forget_pending(key);
        // A disk that was made for the pending change is not lost: it is set aside.
        if let Some(value) = dropped.filter(|_| is_disk_key(Kind::Qemu, key)) {
            set_aside(guest, &value);
        }
    }
}

fn set_aside(guest: &mut Guest, value: &str) {
    let drive = Drive::parse(value);
    if !drive.is_cdrom() && drive.wanted().is_none() {
        guest.add_unused(&drive.file);
    }
}

fn balloon(world: &World, update: &Update) -> Result<(), Fail> {
    let Some(guest) = world.guests.get(&update.vmid) else { return Ok(()) };
    let number = |key: &str| {
        let asked = update.sets.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let text = asked.or_else(|| guest.pending.get(key).map(String::as_str)).or_else(|| guest.get(key))?;
        text.trim_start_matches("current=").parse::<u64>().ok()
    };
    let concerned = update.sets.iter().any(|(key, _)| key == "memory" || key == "balloon");
    match (number("balloon"), number("memory").unwrap_or(512)) {
        (Some(target), memory) if concerned && target > memory => {
            Err(Fail::died("balloon value too large (must be smaller than assigned memory)"))
        }
        _ => Ok(()),
    }
}

fn delete(world: &mut World, update: &Update, key: &str, touched: &mut Vec<String>) -> Result<(), Fail> {
    let Some(guest) = world.guests.get(&update.vmid) else { return Ok(()) };
    let Some(value) = guest.main.get(key).or_else(|| guest.pending.get(key)).cloned() else { return Ok(()) };
    let file = Drive::parse(&value).file;
    if guest.is_protected() && is_unused_key(key) {
        return Err(Fail::died(format!("can't remove unused disk '{file}' - protection mode enabled")));
    }
    if guest.is_protected() && is_disk_key(Kind::Qemu, key) {
        return Err(Fail::died(format!("can't remove drive '{key}' - protection mode enabled")));
    }
    if is_unused_key(key) {
        world.storages.volumes.remove(&file);
    }
    let Some(guest) = world.guests.change(update.vmid) else { return Ok(()) };
    leave_boot_order(guest, key, touched);
    let was_pending = guest.pending.remove(key);
    touched.push(key.to_owned());
    if is_unused_key(key) {
        guest.main.remove(key);
        return Ok(());
    }
    if let Some(pending) = was_pending.filter(|_| is_disk_key(Kind::Qemu, key)) {
        set_aside(guest, &pending);
    }
    if key == "tags" {
        guest.main.remove(key);
    } else if guest.main.contains_key(key) {
        guest.deletions.insert(key.to_owned(), update.force);
    }
    Ok(())
}

fn leave_boot_order(guest: &mut Guest, key: &str, touched: &mut Vec<String>) {
    let order = guest.boot_order();
    if order.iter().any(|device| device == key) {
        let rest: Vec<String> = order.into_iter().filter(|device| device != key).collect();
        guest.pending.insert("boot".to_owned(), format!("order={}", rest.join(";")));
        touched.push("boot".to_owned());
    }
}

fn set(world: &mut World, update: &Update, key: &str, value: &str, touched: &mut Vec<String>) -> Result<(), Fail> {
    let vmid = update.vmid;
    touched.push(key.to_owned());
    let value = match key {
        "boot" => boot(world, update, value)?,
        "tags" => normal::tags(&world.options, value),
        "description" => value.trim_end().to_owned(),
        "cipassword" => hashed(value),
        _ if is_disk_key(Kind::Qemu, key) => disk(world, vmid, key, value)?,
        _ => normal::kept(value),
    };
    let Some(guest) = world.guests.change(vmid) else { return Ok(()) };
    guest.deletions.remove(key);
    guest.pending.insert(key.to_owned(), value.clone());
    if is_disk_key(Kind::Qemu, key) && Drive::parse(&value).is_cdrom() {
        join_boot_order(guest, key, touched);
    }
    Ok(())
}

/// Not a real hash: enough to be no longer the password.
fn hashed(password: &str) -> String {
    format!("$5$lab${}", password.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))))
}

fn boot(world: &World, update: &Update, value: &str) -> Result<String, Fail> {
    let Some(guest) = world.guests.get(&update.vmid) else { return Ok(value.to_owned()) };
    for device in drive::order(value) {
        let asked = update.sets.iter().any(|(key, _)| *key == device);
        let exists = guest.main.contains_key(&device) || guest.pending.contains_key(&device) || asked;
        if !exists || update.deletes.contains(&device) {
            return Err(Fail::died(format!("invalid bootorder: device '{device}' does not exist'")));
        }
    }
    Ok(normal::boot(value))
}

/// A new CD drive becomes bootable, after everything else.
fn join_boot_order(guest: &mut Guest, key: &str, touched: &mut Vec<String>) {
    let mut order = guest.boot_order();
    if !order.is_empty() && !order.iter().any(|device| device == key) {
        order.push(key.to_owned());
        guest.pending.insert("boot".to_owned(), format!("order={}", order.join(";")));
        touched.push("boot".to_owned());
    }
}

/// The value of a disk key with its volume made. Whatever was pending there is set aside.
fn disk(world: &mut World, vmid: u32, key: &str, value: &str) -> Result<String, Fail> {
    let earlier = world.guests.get(&vmid).and_then(|guest| guest.pending.get(key).cloned());
    let made = make_disk(world, vmid, value).map_err(Fail::died)?;
    if let (Some(earlier), Some(guest)) = (earlier, world.guests.change(vmid)) {
        set_aside(guest, &earlier);
    }
    Ok(made)
}

/// `dir1:32,format=qcow2` makes a new volume each time; the id of an existing one only names it.
pub(crate) fn make_disk(world: &mut World, vmid: u32, value: &str) -> Result<String, String> {
    let mut drive = Drive::parse(value);
    let format = drive.options.remove("format");
    drive.options.remove("import-from");
    if let Some(storage) = drive.wants_cloud_init() {
        drive.file = world.storages.allocate_cloud_init(storage, vmid, format)?;
        drive.options.insert("media".to_owned(), "cdrom".to_owned());
        return Ok(drive.print());
    }
    if let Some((storage, bytes)) = drive.wanted() {
        let storage = storage.to_owned();
        let format = format.unwrap_or_else(|| "raw".to_owned());
        drive.file = world.storages.allocate(&storage, vmid, bytes, &format)?;
        drive.set_bytes(bytes);
    } else if let Some(volume) = world.storages.volumes.get(&drive.file) {
        drive.set_bytes(volume.bytes);
    } else if let Some(storage) = drive.storage().filter(|_| !drive.is_cdrom()) {
        world.storages.find(storage)?;
        return Err(format!("volume '{}' does not exist", drive.file));
    }
    Ok(drive.print())
}

/// A pending value that is already in effect is no change; neither is the deletion of what is not there.
fn drop_unchanged(guest: &mut Guest) {
    let main = guest.main.clone();
    guest.pending.retain(|key, value| main.get(key) != Some(value));
    guest.deletions.retain(|key, _| main.contains_key(key));
}
