//! New guests, and templates made of them.
//!
//! The config with its lock is written before the task is forked, so a guest exists as soon as the
//! call returns. What never enters here: what a backup makes of a create (see `restore`).

use super::restore;
use crate::api::{Call, need_quorum};
use crate::engine::Fork;
use crate::guest::drive::Drive;
use crate::guest::{Guest, Kind, Section, is_card_key, is_disk_key};
use crate::respond::{Data, Fail};
use crate::storage::Backup;
use crate::update;
use crate::work::Work;
use crate::world::World;

/// Parameters of a create that are not config keys.
const NOT_KEYS: &[&str] = &[
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

pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let vmid = call.vmid();
    may_create(world, call, vmid)?;
    let backup = restore::archive(world, call)?.cloned();
    need_quorum(world, &call.node)?;
    match &backup {
        Some(_) => restore::may_overwrite(world, call)?,
        None => is_free(world, call, vmid)?,
    }
    let section = section(world, call, backup.as_ref())?;
    section.iter().try_for_each(|(key, value)| update::resources(world, call, call.kind, key, value))?;
    storages_exist(world, call.kind, &section)?;
    make_room(world, vmid);
    add_guest(world, call, vmid);
    let name = format!("{}{}", call.kind.prefix(), if backup.is_some() { "restore" } else { "create" });
    let work = Work::Create { vmid, section, start: call.flag("start") };
    Ok(world.fork(Fork::holding(&call.node, &call.who, &name, vmid, work)).into())
}

/// Whether an id is free everywhere, for every kind.
pub(super) fn is_free(world: &World, call: &Call, vmid: u32) -> Result<(), Fail> {
    let Some(other) = world.guests.get(&vmid) else { return Ok(()) };
    let taken = format!("{} {vmid} already exists on node '{}'", other.kind.word(), other.node);
    Err(Fail::died(if call.kind == Kind::Qemu { format!("unable to create VM {vmid} - {taken}") } else { taken }))
}

/// What a restore writes over goes with its disks.
fn make_room(world: &mut World, vmid: u32) {
    if world.guests.remove(vmid).is_some() {
        world.storages.volumes.retain(|_, volume| volume.vmid != vmid);
    }
}

/// The right to allocate the id, directly or through a pool.
fn may_create(world: &World, call: &Call, vmid: u32) -> Result<(), Fail> {
    let has = |path: &str, privilege: &str| world.access.has(&call.who, path, privilege);
    let by_pool = call.text("pool").is_some_and(|pool| has(&format!("/pool/{pool}"), "VM.Allocate"));
    if !by_pool && !has(&format!("/vms/{vmid}"), "VM.Allocate") {
        return Err(Fail::Denied(String::new()));
    }
    if call.flag("start") {
        world.access.need(&call.who, &format!("/vms/{vmid}"), "VM.PowerMgmt")?;
    }
    Ok(())
}

fn section(world: &mut World, call: &Call, backup: Option<&Backup>) -> Result<Section, Fail> {
    let mut section = Section::new();
    for (key, value) in call.values.iter().filter(|(key, _)| !NOT_KEYS.contains(&key.as_str())) {
        let key = if key == "cdrom" { "ide2" } else { key.as_str() };
        section.insert(key.to_owned(), written(world, call.kind, key, value));
    }
    section.retain(|key, value| key != "description" || !value.is_empty());
    if let Some(backup) = backup {
        return Ok(restore::section(world, call, backup, section));
    }
    match call.kind {
        Kind::Qemu => complete_qemu(world, &mut section),
        Kind::Lxc => complete_lxc(call, &mut section)?,
    }
    Ok(section)
}

fn written(world: &mut World, kind: Kind, key: &str, value: &str) -> String {
    let flavour = world.flavour;
    match (kind, key) {
        (_, "tags") => update::tags(&world.options, value),
        (_, "description") => value.trim_end().to_owned(),
        (Kind::Qemu, key) if is_card_key(key) => update::card(key, value, flavour, &mut world.random),
        (Kind::Lxc, key) if is_card_key(key) => update::container_card(key, value, flavour, &mut world.random),
        _ => value.to_owned(),
    }
}

/// The marks of birth that every new virtual machine gets.
fn complete_qemu(world: &mut World, section: &mut Section) {
    let meta = format!("creation-qemu={},ctime={}", world.flavour.qemu(), world.wall_s());
    section.insert("meta".to_owned(), meta);
    if !section.contains_key("smbios1") {
        section.insert("smbios1".to_owned(), format!("uuid={}", world.random.uuid()));
    }
    match section.get("vmgenid").map(String::as_str) {
        None | Some("1") => section.insert("vmgenid".to_owned(), world.random.uuid()),
        Some(_) => None,
    };
}

/// Containers get written defaults, privileged or not among them.
fn complete_lxc(call: &Call, section: &mut Section) -> Result<(), Fail> {
    let vmid = call.vmid();
    let storage = call.text("storage").unwrap_or("local");
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
    match call.text("ostemplate") {
        Some(volume) if volume.contains(':') || volume.starts_with('/') => Ok(()),
        Some(volume) => Err(Fail::died(format!("unable to parse volume ID '{volume}'"))),
        None => Err(Fail::param("ostemplate", "property is missing and it is not optional")),
    }
}

fn storages_exist(world: &World, kind: Kind, section: &Section) -> Result<(), Fail> {
    let disks = section.iter().filter(|(key, _)| is_disk_key(kind, key)).map(|(_, value)| Drive::parse(value));
    for drive in disks.filter(Drive::is_owned) {
        if let Some(storage) = drive.storage() {
            world.storages.find(storage).map_err(Fail::died)?;
        }
    }
    Ok(())
}

/// The guest is there at once, and nothing is known of it but that it is being made.
fn add_guest(world: &mut World, call: &Call, vmid: u32) {
    let mut guest = Guest::new(vmid, call.kind, &call.node);
    guest.main.insert("lock".to_owned(), "create".to_owned());
    guest.manner = world.new_manner.clone();
    world.guests.put(guest);
    if let Some(pool) = call.text("pool").and_then(|pool| world.access.pools.get_mut(pool)) {
        pool.guests.insert(vmid);
    }
}

pub(super) fn template(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let guest = call.guest(world)?;
    let (kind, vmid) = (call.kind, guest.vmid);
    let word = kind.word();
    if let Some(locked) = guest.locked() {
        return Err(Fail::died(locked));
    }
    if !guest.snapshots.is_empty() {
        return Err(Fail::died(format!("unable to create template, because {word} contains snapshots")));
    }
    if guest.is_template() {
        return Err(Fail::died("you can't convert a template to a template"));
    }
    if guest.is_running() {
        return Err(Fail::died(format!("you can't convert a {word} to template if {word} is running")));
    }
    let name = format!("{}template", kind.prefix());
    let upid = world.fork(Fork::holding(&call.node, &call.who, &name, vmid, Work::Template { vmid }));
    // Containers return nothing although a task was forked.
    Ok(if kind == Kind::Qemu { upid.into() } else { Data::null() })
}
