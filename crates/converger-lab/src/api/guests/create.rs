//! Creates guests and converts them to templates.
//!
//! The config with its lock is written before the task starts, so a guest exists as soon as the
//! call returns. Restoring a backup is in `restore`.

use super::restore;
use crate::api::{ApiCall, require_quorum};
use crate::config_update;
use crate::events::NewTask;
use crate::guest::drive::DriveValue;
use crate::guest::{ConfigSection, LabGuest, LabGuestKind, is_card_key, is_disk_key};
use crate::response::{ApiData, ApiError};
use crate::storage::GuestBackup;
use crate::task_work::TaskWork;
use crate::world::World;

/// Parameters of a create request that are not config keys.
const NON_CONFIG_PARAMS: &[&str] = &[
    "node",
    "vmid",
    "archive",
    "force",
    "storage",
    "pool",
    "start",
    "unique",
    "bwlimit",
    "live-restore",
    "ha-managed",
    "import-working-storage",
    "ostemplate",
    "password",
    "restore",
    "ssh-public-keys",
    "ignore-unpack-errors",
];

pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let vmid = call.vmid();
    check_may_create(world, call, vmid)?;
    let backup = restore::find_backup(world, call)?.cloned();
    require_quorum(world, &call.node)?;
    match &backup {
        Some(_) => restore::check_may_overwrite(world, call)?,
        None => check_id_free(world, call, vmid)?,
    }
    let section = build_section(world, call, backup.as_ref())?;
    section.iter().try_for_each(|(key, value)| config_update::check_resource_privileges(world, call, call.kind, key, value))?;
    check_storages(world, call.kind, &section)?;
    remove_existing_guest(world, vmid);
    add_locked_guest(world, call, vmid);
    let name = format!("{}{}", call.kind.task_prefix(), if backup.is_some() { "restore" } else { "create" });
    let work = TaskWork::Create { vmid, section, start: call.is_set("start") };
    Ok(world.start_task(NewTask::holding_guest(&call.node, &call.caller, &name, vmid, work)).into())
}

/// Checks that no guest of any kind on any node uses the VMID.
pub(super) fn check_id_free(world: &World, call: &ApiCall, vmid: u32) -> Result<(), ApiError> {
    let Some(other) = world.guests.get(&vmid) else { return Ok(()) };
    let exists_text = format!("{} {vmid} already exists on node '{}'", other.kind.error_word(), other.node);
    Err(ApiError::internal_error(if call.kind == LabGuestKind::Qemu {
        format!("unable to create VM {vmid} - {exists_text}")
    } else {
        exists_text
    }))
}

/// Removes the guest that a restore overwrites, with its disks.
fn remove_existing_guest(world: &mut World, vmid: u32) {
    if world.guests.remove_guest(vmid).is_some() {
        world.storages.volumes.retain(|_, volume| volume.vmid != vmid);
    }
}

/// Checks the privilege to allocate the VMID, directly or through a pool.
fn check_may_create(world: &World, call: &ApiCall, vmid: u32) -> Result<(), ApiError> {
    let has = |path: &str, privilege: &str| world.access.has_privilege(&call.caller, path, privilege);
    let by_pool = call.param("pool").is_some_and(|pool| has(&format!("/pool/{pool}"), "VM.Allocate"));
    if !by_pool && !has(&format!("/vms/{vmid}"), "VM.Allocate") {
        return Err(ApiError::Denied(String::new()));
    }
    if call.is_set("start") {
        world.access.require_privilege(&call.caller, &format!("/vms/{vmid}"), "VM.PowerMgmt")?;
    }
    Ok(())
}

fn build_section(world: &mut World, call: &ApiCall, backup: Option<&GuestBackup>) -> Result<ConfigSection, ApiError> {
    let mut section = ConfigSection::new();
    for (key, value) in call.values.iter().filter(|(key, _)| !NON_CONFIG_PARAMS.contains(&key.as_str())) {
        let key = if key == "cdrom" { "ide2" } else { key.as_str() };
        section.insert(key.to_owned(), normalize_value(world, call.kind, key, value));
    }
    section.retain(|key, value| key != "description" || !value.is_empty());
    if let Some(backup) = backup {
        return Ok(restore::restored_section(world, call, backup, section));
    }
    match call.kind {
        LabGuestKind::Qemu => complete_qemu(world, &mut section),
        LabGuestKind::Lxc => complete_lxc(call, &mut section)?,
    }
    Ok(section)
}

fn normalize_value(world: &mut World, kind: LabGuestKind, key: &str, value: &str) -> String {
    let flavour = world.flavour;
    match (kind, key) {
        (_, "tags") => config_update::normalize_tags(&world.options, value),
        (_, "description") => value.trim_end().to_owned(),
        (LabGuestKind::Qemu, "cipassword") => config_update::hash_password(value),
        (LabGuestKind::Qemu, key) if is_card_key(key) => config_update::normalize_card(key, value, flavour, &mut world.random),
        (LabGuestKind::Lxc, key) if is_card_key(key) => config_update::normalize_container_card(key, value, flavour, &mut world.random),
        _ => value.to_owned(),
    }
}

/// Adds the birth marks that every new virtual machine gets.
fn complete_qemu(world: &mut World, section: &mut ConfigSection) {
    let meta = format!("creation-qemu={},ctime={}", world.flavour.qemu_version(), world.cluster_clock_s());
    section.insert("meta".to_owned(), meta);
    if !section.contains_key("smbios1") {
        section.insert("smbios1".to_owned(), format!("uuid={}", world.random.new_uuid()));
    }
    match section.get("vmgenid").map(String::as_str) {
        None | Some("1") => section.insert("vmgenid".to_owned(), world.random.new_uuid()),
        Some(_) => None,
    };
}

/// Containers get their defaults written to the config, including `unprivileged`.
fn complete_lxc(call: &ApiCall, section: &mut ConfigSection) -> Result<(), ApiError> {
    let vmid = call.vmid();
    let storage = call.param("storage").unwrap_or("local");
    let defaults = [
        ("hostname", format!("CT{vmid}")),
        ("memory", "512".to_owned()),
        ("swap", "512".to_owned()),
        ("arch", "amd64".to_owned()),
        ("ostype", "debian".to_owned()),
        ("unprivileged", "1".to_owned()),
        ("rootfs", format!("{storage}:4")),
    ];
    for (key, value) in defaults {
        section.entry(key.to_owned()).or_insert(value);
    }
    match call.param("ostemplate") {
        Some(volume) if volume.contains(':') || volume.starts_with('/') => Ok(()),
        Some(volume) => Err(ApiError::internal_error(format!("unable to parse volume ID '{volume}'"))),
        None => Err(ApiError::parameter_error("ostemplate", "property is missing and it is not optional")),
    }
}

fn check_storages(world: &World, kind: LabGuestKind, section: &ConfigSection) -> Result<(), ApiError> {
    let disks = section.iter().filter(|(key, _)| is_disk_key(kind, key)).map(|(_, value)| DriveValue::parse(value));
    for drive in disks.filter(DriveValue::is_owned) {
        if let Some(storage) = drive.storage() {
            world.storages.find_storage(storage).map_err(ApiError::internal_error)?;
        }
    }
    Ok(())
}

/// Adds the guest at once; until the task ends, its config contains only the `create` lock.
fn add_locked_guest(world: &mut World, call: &ApiCall, vmid: u32) {
    let mut guest = LabGuest::new(vmid, call.kind, &call.node);
    guest.config.insert("lock".to_owned(), "create".to_owned());
    guest.behaviour = world.new_guest_behaviour.clone();
    world.guests.put_guest(guest);
    if let Some(pool) = call.param("pool").and_then(|pool| world.access.pools.get_mut(pool)) {
        pool.guests.insert(vmid);
    }
}

pub(super) fn convert_to_template(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let guest = call.find_guest(world)?;
    let (kind, vmid) = (call.kind, guest.vmid);
    let kind_word = kind.error_word();
    if let Some(locked) = guest.lock_error() {
        return Err(ApiError::internal_error(locked));
    }
    if !guest.snapshots.is_empty() {
        return Err(ApiError::internal_error(format!("unable to create template, because {kind_word} contains snapshots")));
    }
    if guest.is_template() {
        return Err(ApiError::internal_error("you can't convert a template to a template"));
    }
    if guest.is_running() {
        return Err(ApiError::internal_error(format!("you can't convert a {kind_word} to template if {kind_word} is running")));
    }
    let name = format!("{}template", kind.task_prefix());
    let upid = world.start_task(NewTask::holding_guest(&call.node, &call.caller, &name, vmid, TaskWork::Template { vmid }));
    // For containers, Proxmox returns no UPID although a task runs.
    Ok(if kind == LabGuestKind::Qemu { upid.into() } else { ApiData::null() })
}
