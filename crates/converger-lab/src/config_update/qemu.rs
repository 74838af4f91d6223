//! Config updates of virtual machines. Each key is written to the pending section on its own, so a
//! failure leaves the earlier keys there.
//!
//! What a running guest applies at once is in `hotplug`.

use super::{ConfigUpdate, hotplug, normalize, privileges};
use crate::api::ApiCall;
use crate::guest::drive::{self, DriveValue};
use crate::guest::{LabGuest, LabGuestKind, is_card_key, is_disk_key, is_unused_key};
use crate::response::ApiError;
use crate::schema::config_key_schema;
use crate::world::World;

/// Checks the request and normalizes its values.
pub(super) fn prepare_qemu_update(world: &mut World, call: &ApiCall, mut update: ConfigUpdate) -> Result<ConfigUpdate, ApiError> {
    if let Some((_, keys)) = update.sets.iter().find(|(key, _)| key == "sshkeys") {
        check_ssh_keys(keys)?;
    }
    if update.sets.is_empty() && update.deletes.is_empty() && update.reverts.is_empty() {
        return Err(ApiError::internal_error("no options specified"));
    }
    check_known_keys(world, &update)?;
    for (key, value) in &mut update.sets {
        *value = normalize_value(world, key, value)?;
    }
    privileges::check_update_privileges(world, call, &update)?;
    Ok(update)
}

fn check_known_keys(world: &World, update: &ConfigUpdate) -> Result<(), ApiError> {
    let set = |key: &String| update.sets.iter().any(|(known, _)| known == key);
    let known = |key: &String| {
        let shape = config_key_schema(LabGuestKind::Qemu.config_template(), key, world.flavour);
        shape.is_some() || is_unused_key(key) || ["vmstate", "parent", "meta"].contains(&key.as_str())
    };
    for key in &update.reverts {
        if !known(key) {
            return Err(ApiError::parameter_error("revert", format!("unknown option '{key}'")));
        }
        if set(key) {
            return Err(ApiError::parameter_error("delete", format!("you can't use '-{key}' and -revert {key}' at the same time")));
        }
    }
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

fn normalize_value(world: &mut World, key: &str, value: &str) -> Result<String, ApiError> {
    let flavour = world.flavour;
    match key {
        "cpuunits" => Ok(normalize::clamp_cpu_units(value)),
        "vmgenid" if value == "1" => Ok(world.random.new_uuid()),
        "hookscript" => Err(ApiError::parameter_error("hookscript", format!("script '{value}' does not exist\n"))),
        _ if is_card_key(key) => Ok(normalize::normalize_card(key, value, flavour, &mut world.random)),
        _ if is_disk_key(LabGuestKind::Qemu, key) => Ok(drive::parse_request_value(LabGuestKind::Qemu, key, value, flavour).to_text()),
        _ => Ok(value.to_owned()),
    }
}

/// The value is percent-encoded; each line must be a key that `ssh-keygen` accepts.
fn check_ssh_keys(encoded: &str) -> Result<(), ApiError> {
    let keys = crate::decode::decode_text(encoded);
    let is_valid = keys.lines().filter(|line| !line.trim().is_empty()).all(is_ssh_key);
    if is_valid { Ok(()) } else { Err(ApiError::internal_error("SSH public key validation error")) }
}

/// An Ed25519 key has 51 bytes, which is 68 characters. Other key types are checked roughly.
fn is_ssh_key(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let (Some(kind), Some(body)) = (words.next(), words.next()) else { return false };
    let coded = body.chars().all(|character| character.is_ascii_alphanumeric() || "+/=".contains(character));
    coded && if kind == "ssh-ed25519" { body.len() == 68 } else { body.len() >= 68 }
}

/// Writes the update and applies what can be applied; returns how long hot-plugging took.
pub(super) fn write_qemu_update(world: &mut World, node: &str, update: &ConfigUpdate) -> Result<u64, ApiError> {
    let vmid = update.vmid;
    revert_keys(world, update);
    check_balloon(world, update)?;
    let mut touched: Vec<String> = Vec::new();
    for key in &update.deletes {
        delete_key(world, update, key, &mut touched)?;
    }
    for (key, value) in &update.sets {
        set_key(world, update, key, value, &mut touched)?;
    }
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(0) };
    drop_unchanged(guest);
    if guest.is_running() {
        return hotplug::hotplug_keys(world, node, vmid, &touched);
    }
    hotplug::apply_pending(world, vmid);
    Ok(0)
}

fn revert_keys(world: &mut World, update: &ConfigUpdate) {
    let Some(guest) = world.guests.change_guest(update.vmid) else { return };
    for key in &update.reverts {
        let dropped = guest.drop_pending(key);
        // A disk that was created for the pending change is kept as unused.
        if let Some(value) = dropped.filter(|_| is_disk_key(LabGuestKind::Qemu, key)) {
            keep_as_unused(guest, &value);
        }
    }
}

fn keep_as_unused(guest: &mut LabGuest, value: &str) {
    let drive = DriveValue::parse(value);
    if !drive.is_cdrom() && drive.new_disk_request().is_none() {
        guest.add_unused(&drive.file);
    }
}

fn check_balloon(world: &World, update: &ConfigUpdate) -> Result<(), ApiError> {
    let Some(guest) = world.guests.get(&update.vmid) else { return Ok(()) };
    let number = |key: &str| {
        let requested = update.sets.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let text = requested.or_else(|| guest.pending.get(key).map(String::as_str)).or_else(|| guest.get(key))?;
        text.trim_start_matches("current=").parse::<u64>().ok()
    };
    let concerned = update.sets.iter().any(|(key, _)| key == "memory" || key == "balloon");
    match (number("balloon"), number("memory").unwrap_or(512)) {
        (Some(target), memory) if concerned && target > memory => {
            Err(ApiError::internal_error("balloon value too large (must be smaller than assigned memory)"))
        }
        _ => Ok(()),
    }
}

fn delete_key(world: &mut World, update: &ConfigUpdate, key: &str, touched: &mut Vec<String>) -> Result<(), ApiError> {
    let Some(guest) = world.guests.get(&update.vmid) else { return Ok(()) };
    let Some(value) = guest.config.get(key).or_else(|| guest.pending.get(key)).cloned() else { return Ok(()) };
    let file = DriveValue::parse(&value).file;
    if guest.is_protected() && is_unused_key(key) {
        return Err(ApiError::internal_error(format!("can't remove unused disk '{file}' - protection mode enabled")));
    }
    if guest.is_protected() && is_disk_key(LabGuestKind::Qemu, key) {
        return Err(ApiError::internal_error(format!("can't remove drive '{key}' - protection mode enabled")));
    }
    if is_unused_key(key) {
        world.storages.volumes.remove(&file);
    }
    let Some(guest) = world.guests.change_guest(update.vmid) else { return Ok(()) };
    remove_from_boot_order(guest, key, touched);
    let was_pending = guest.pending.remove(key);
    touched.push(key.to_owned());
    if is_unused_key(key) {
        guest.config.remove(key);
        return Ok(());
    }
    if let Some(pending) = was_pending.filter(|_| is_disk_key(LabGuestKind::Qemu, key)) {
        keep_as_unused(guest, &pending);
    }
    if key == "tags" {
        guest.config.remove(key);
    } else if guest.config.contains_key(key) {
        guest.deletions.insert(key.to_owned(), update.force);
    }
    Ok(())
}

fn remove_from_boot_order(guest: &mut LabGuest, key: &str, touched: &mut Vec<String>) {
    let order = guest.boot_order();
    if order.iter().any(|device| device == key) {
        let rest: Vec<String> = order.into_iter().filter(|device| device != key).collect();
        guest.pending.insert("boot".to_owned(), format!("order={}", rest.join(";")));
        touched.push("boot".to_owned());
    }
}

fn set_key(world: &mut World, update: &ConfigUpdate, key: &str, value: &str, touched: &mut Vec<String>) -> Result<(), ApiError> {
    let vmid = update.vmid;
    touched.push(key.to_owned());
    let value = match key {
        "boot" => check_boot_order(world, update, value)?,
        "tags" => normalize::normalize_tags(&world.options, value),
        "description" => value.trim_end().to_owned(),
        "cipassword" => hash_password(value),
        _ if is_disk_key(LabGuestKind::Qemu, key) => make_pending_disk(world, vmid, key, value)?,
        _ => normalize::or_blank(value),
    };
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    guest.deletions.remove(key);
    guest.pending.insert(key.to_owned(), value.clone());
    if is_disk_key(LabGuestKind::Qemu, key) && DriveValue::parse(&value).is_cdrom() {
        add_to_boot_order(guest, key, touched);
    }
    Ok(())
}

/// Not a real hash; it only hides the password. A password that is already hashed is stored as it is.
pub(crate) fn hash_password(password: &str) -> String {
    let is_hashed = ["$1$", "$5$", "$6$", "$2a$", "$2y$"].iter().any(|method| password.starts_with(method));
    if is_hashed && password.matches('$').count() >= 3 {
        return password.to_owned();
    }
    format!("$5$lab${}", password.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))))
}

fn check_boot_order(world: &World, update: &ConfigUpdate, value: &str) -> Result<String, ApiError> {
    let Some(guest) = world.guests.get(&update.vmid) else { return Ok(value.to_owned()) };
    for device in drive::parse_boot_order(value) {
        let is_requested = update.sets.iter().any(|(key, _)| *key == device);
        let exists = guest.config.contains_key(&device) || guest.pending.contains_key(&device) || is_requested;
        if !exists || update.deletes.contains(&device) {
            return Err(ApiError::internal_error(format!("invalid bootorder: device '{device}' does not exist'")));
        }
    }
    Ok(normalize::normalize_boot_order(value))
}

/// A new CD drive is added to the end of the boot order.
fn add_to_boot_order(guest: &mut LabGuest, key: &str, touched: &mut Vec<String>) {
    let mut order = guest.boot_order();
    if !order.is_empty() && !order.iter().any(|device| device == key) {
        order.push(key.to_owned());
        guest.pending.insert("boot".to_owned(), format!("order={}", order.join(";")));
        touched.push("boot".to_owned());
    }
}

/// The value of a disk key with its volume created. A disk that was pending there becomes unused.
fn make_pending_disk(world: &mut World, vmid: u32, key: &str, value: &str) -> Result<String, ApiError> {
    let earlier = world.guests.get(&vmid).and_then(|guest| guest.pending.get(key).cloned());
    let disk = make_disk(world, vmid, value).map_err(ApiError::internal_error)?;
    if let (Some(earlier), Some(guest)) = (earlier, world.guests.change_guest(vmid)) {
        keep_as_unused(guest, &earlier);
    }
    Ok(disk)
}

/// `dir1:32,format=qcow2` creates a new volume each time; the id of an existing volume only refers to it.
pub(crate) fn make_disk(world: &mut World, vmid: u32, value: &str) -> Result<String, String> {
    let mut drive = DriveValue::parse(value);
    let format = drive.options.remove("format");
    drive.options.remove("import-from");
    if let Some(storage) = drive.new_cloud_init_storage() {
        drive.file = world.storages.allocate_cloud_init(storage, vmid, format)?;
        drive.options.insert("media".to_owned(), "cdrom".to_owned());
        return Ok(drive.to_text());
    }
    if let Some((storage, bytes)) = drive.new_disk_request() {
        let storage = storage.to_owned();
        let format = format.unwrap_or_else(|| "raw".to_owned());
        drive.file = world.storages.allocate_volume(&storage, vmid, bytes, &format)?;
        drive.set_size_bytes(bytes);
    } else if let Some(volume) = world.storages.volumes.get(&drive.file) {
        drive.set_size_bytes(volume.bytes);
    } else if let Some(storage) = drive.storage().filter(|_| !drive.is_cdrom()) {
        world.storages.find_storage(storage)?;
        return Err(format!("volume '{}' does not exist", drive.file));
    }
    Ok(drive.to_text())
}

/// Drops pending values that are already in effect, and pending deletions of keys that do not exist.
fn drop_unchanged(guest: &mut LabGuest) {
    let main = guest.config.clone();
    guest.pending.retain(|key, value| main.get(key) != Some(value));
    guest.deletions.retain(|key, _| main.contains_key(key));
}
