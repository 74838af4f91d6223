//! Clones: full and linked copies.
//!
//! Converting a guest to a template is in `create`.

use crate::guest::drive::{DriveValue, drives};
use crate::guest::{ConfigSection, LabGuest, LabGuestKind, is_card_key, is_disk_key, is_unused_key};
use crate::storage::{StorageVolume, VolumeChange, volume_name};
use crate::task::TaskId;
use crate::world::World;

use super::create::image_format_line;

/// A clone in progress.
#[derive(Clone, Debug)]
pub(crate) struct CloneWork {
    pub(crate) source: u32,
    pub(crate) kind: LabGuestKind,
    pub(crate) target: u32,
    /// The node that gets the clone.
    pub(crate) node: String,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) full: bool,
    pub(crate) snapshot: Option<String>,
    pub(crate) storage: Option<String>,
    /// The format of copied disks; `None` keeps that of the original.
    pub(crate) format: Option<String>,
    pub(crate) pool: Option<String>,
}

/// Keys that a clone does not inherit.
const NOT_COPIED_KEYS: &[&str] = &["lock", "template", "parent", "snaptime", "vmstate", "snapstate", "runningmachine", "runningcpu"];

pub(super) fn begin_clone(world: &mut World, id: TaskId, cloning: &CloneWork) -> Result<u64, String> {
    let CloneWork { source, target, kind, .. } = cloning;
    let node = world.tasks.get(id).map(|task| task.node.clone()).unwrap_or_default();
    if *kind == LabGuestKind::Qemu {
        world.tasks.log_line(id, format!("creating a clone of VM {source} with ID {target}"));
    }
    if world.guests.contains_key(target) {
        let file = format!("/etc/pve/nodes/{node}/{}/{target}.conf", kind.folder());
        return Err(format!("close (rename) atomic file '{file}' failed: File exists"));
    }
    let Some(original) = world.guests.get(source) else { return Err(kind.missing_config_text(&node, *source)) };
    let mut copy = LabGuest::new(*target, *kind, &node);
    copy.behaviour = original.behaviour.clone();
    copy.config.insert("lock".to_owned(), target_lock(*kind).to_owned());
    if *kind == LabGuestKind::Qemu {
        // The first line of the temporary config is a comment, which reads back as the description.
        copy.config.insert("description".to_owned(), TEMPORARY_DESCRIPTION.to_owned());
    } else {
        // A container gets its settings at once and its volumes one by one. Its network cards come later here than in Proxmox, because
        // their addresses are drawn at the end.
        copy.config.extend(container_settings(world, cloning));
    }
    world.guests.put_guest(copy);
    set_source_lock(world, cloning, Some("disk"));
    log_drives(world, id, cloning);
    Ok(world.task_durations.clone_ms)
}

/// What an unfinished clone of a container has besides its lock: the settings of the original, without volumes and network cards.
fn container_settings(world: &World, cloning: &CloneWork) -> ConfigSection {
    let mut section = source_section(world, cloning);
    let is_copied = |key: &String| !NOT_COPIED_KEYS.contains(&key.as_str()) && !is_unused_key(key) && !is_card_key(key);
    section.retain(|key, _| is_copied(key) && !is_disk_key(cloning.kind, key));
    section.extend(cloning.name.clone().map(|name| (cloning.kind.name_key().to_owned(), name)));
    section
}

/// The description of a clone that is not finished.
const TEMPORARY_DESCRIPTION: &str = " qmclone temporary file";

/// The lock of a clone that is not finished. Containers do not know the lock `clone`.
fn target_lock(kind: LabGuestKind) -> &'static str {
    match kind {
        LabGuestKind::Qemu => "clone",
        LabGuestKind::Lxc => "create",
    }
}

/// A container that is being cloned is locked itself; a virtual machine is not.
fn set_source_lock(world: &mut World, cloning: &CloneWork, lock: Option<&str>) {
    let Some(guest) = world.guests.change_guest(cloning.source).filter(|guest| guest.kind == LabGuestKind::Lxc) else { return };
    match lock {
        Some(lock) => guest.config.insert("lock".to_owned(), lock.to_owned()),
        None => guest.config.remove("lock"),
    };
}

/// The section to copy: the guest's config or one of its snapshots.
fn source_section(world: &World, cloning: &CloneWork) -> ConfigSection {
    let Some(guest) = world.guests.get(&cloning.source) else { return ConfigSection::new() };
    let snapshot = cloning.snapshot.as_ref().and_then(|name| guest.snapshots.get(name));
    snapshot.unwrap_or(&guest.config).clone()
}

fn log_drives(world: &mut World, id: TaskId, cloning: &CloneWork) {
    let section = source_section(world, cloning);
    let disks: Vec<(String, DriveValue)> =
        drives(cloning.kind, &section).filter(|(_, drive)| !drive.is_cdrom()).map(|(key, drive)| (key.clone(), drive)).collect();
    for (key, drive) in disks.iter().filter(|_| cloning.kind == LabGuestKind::Qemu) {
        let volume = target_volume(cloning, drive);
        let lines = if cloning.full {
            full_clone_log_lines(world, key, drive, &volume)
        } else {
            linked_clone_log_lines(world, key, drive, &volume, cloning.target)
        };
        for line in lines {
            world.tasks.log_line(id, line);
        }
    }
}

/// The name of a copied volume on file-based storage.
fn target_volume(cloning: &CloneWork, drive: &DriveValue) -> String {
    let storage = cloning.storage.as_deref().or_else(|| drive.storage()).unwrap_or_default();
    let stem = volume_name(&drive.file).replace(&format!("-{}-", cloning.source), &format!("-{}-", cloning.target)).replace("base-", "vm-");
    format!("{storage}:{}/{stem}", cloning.target)
}

fn full_clone_log_lines(world: &World, key: &str, drive: &DriveValue, volume: &str) -> Vec<String> {
    let size = format_gibibytes(drive.size_bytes());
    vec![
        format!("create full clone of drive {key} ({})", drive.file),
        image_format_line(world, volume, drive.size_bytes()),
        format!("allocated target volume '{volume}'"),
        format!("transferred 0.0 B of {size} (0.00%)"),
        format!("transferred {size} of {size} (100.00%)"),
    ]
}

fn linked_clone_log_lines(world: &World, key: &str, drive: &DriveValue, volume: &str, target: u32) -> Vec<String> {
    let (_, base) = drive.file.split_once(':').unwrap_or_default();
    let stem = volume_name(volume);
    let path = world.storages.volume_path(volume);
    let options = "cluster_size=131072 extended_l2=on preallocation=metadata compression_type=zlib";
    let backing = format!("backing_file=../{base} backing_fmt=qcow2");
    vec![
        format!("create linked clone of drive {key} ({})", drive.file),
        format!("clone {base}: images, {stem}, {target} to {stem} (base=../{base})"),
        format!("Formatting '{path}', fmt=qcow2 {options} size={} {backing} lazy_refcounts=off refcount_bits=16", drive.size_bytes()),
    ]
}

/// `1073741824` becomes `1.0 GiB`.
pub(super) fn format_gibibytes(bytes: u64) -> String {
    format!("{}.{} GiB", bytes >> 30, (bytes >> 20) % 1_024 * 10 / 1_024)
}

pub(super) fn finish_clone(world: &mut World, cloning: &CloneWork) -> Result<(), String> {
    // A person deleted it meanwhile, with the disks that were being copied.
    if !world.guests.contains_key(&cloning.source) {
        abandon_clone(world, cloning);
        return Err(format!("clone failed: unable to find the disks of {}", cloning.source));
    }
    let mut section = source_section(world, cloning);
    section.retain(|key, _| !NOT_COPIED_KEYS.contains(&key.as_str()) && !is_unused_key(key));
    if let Err(error) = copy_disks(world, cloning, &mut section) {
        abandon_clone(world, cloning);
        return Err(format!("clone failed: {error}"));
    }
    set_source_lock(world, cloning, None);
    set_new_identity(world, cloning, &mut section);
    if let Some(guest) = world.guests.change_guest(cloning.target) {
        guest.config = section;
        guest.node.clone_from(&cloning.node);
    }
    if let Some(pool) = cloning.pool.as_ref().and_then(|pool| world.access.pools.get_mut(pool)) {
        pool.guests.insert(cloning.target);
    }
    Ok(())
}

fn copy_disks(world: &mut World, cloning: &CloneWork, section: &mut ConfigSection) -> Result<(), String> {
    let disks: Vec<(String, DriveValue)> = drives(cloning.kind, section).map(|(key, drive)| (key.clone(), drive)).collect();
    for (key, mut drive) in disks.into_iter().filter(|(_, drive)| drive.is_owned()) {
        if drive.is_cloud_init() {
            copy_cloud_init(world, cloning, &key, drive, section)?;
            continue;
        }
        let base = drive.file.clone();
        let volume = world.storages.volumes.get(&base).cloned();
        let volume =
            volume.unwrap_or(StorageVolume { vmid: cloning.source, bytes: drive.size_bytes(), format: "raw".to_owned(), base: None });
        let storage = cloning.storage.clone().or_else(|| drive.storage().map(str::to_owned)).unwrap_or_default();
        if cloning.full {
            world.storages.check_space(&storage, volume.bytes, VolumeChange::Copy)?;
        }
        let format = world.storages.usable_format(&storage, cloning.format.as_deref().unwrap_or(&volume.format)).to_owned();
        let new_volume = world.storages.allocate_volume(&storage, cloning.target, volume.bytes, &format)?;
        // A linked clone of a snapshot does not name its base.
        let is_linked = !cloning.full && cloning.snapshot.is_none();
        drive.file = if is_linked { world.storages.link_volume(&base, &new_volume) } else { new_volume };
        drive.set_size_bytes(volume.bytes);
        section.insert(key, drive.to_text());
    }
    Ok(())
}

/// A cloud-init image is never linked: the clone gets its own, which is filled at its start.
fn copy_cloud_init(
    world: &mut World,
    cloning: &CloneWork,
    key: &str,
    mut drive: DriveValue,
    section: &mut ConfigSection,
) -> Result<(), String> {
    let storage = cloning.storage.clone().or_else(|| drive.storage().map(str::to_owned)).unwrap_or_default();
    drive.file = world.storages.allocate_cloud_init(&storage, cloning.target, None)?;
    let bytes = world.storages.volumes.get(&drive.file).map_or(0, |volume| volume.bytes);
    drive.set_size_bytes(bytes);
    section.insert(key.to_owned(), drive.to_text());
    Ok(())
}

/// Sets new MAC addresses, new identities and a new name. Everything else is inherited, including tags and protection.
fn set_new_identity(world: &mut World, cloning: &CloneWork, section: &mut ConfigSection) {
    renew_macs(world, cloning.kind, section);
    let name_key = cloning.kind.name_key();
    let name = section.get(name_key).cloned();
    let fallback = match cloning.kind {
        LabGuestKind::Qemu => format!("Copy-of-VM-{}", name.unwrap_or_else(|| cloning.source.to_string())),
        LabGuestKind::Lxc => name.unwrap_or_else(|| format!("CT{}", cloning.target)),
    };
    section.insert(name_key.to_owned(), cloning.name.clone().unwrap_or(fallback));
    if let Some(text) = &cloning.description {
        section.insert("description".to_owned(), text.clone());
    }
    if cloning.kind == LabGuestKind::Qemu {
        let (uuid, genid) = (world.random.new_uuid(), world.random.new_uuid());
        section.insert("smbios1".to_owned(), replace_uuid(section.get("smbios1").map_or("", String::as_str), &uuid));
        if section.contains_key("vmgenid") {
            section.insert("vmgenid".to_owned(), genid);
        }
    }
}

/// SMBIOS settings with another UUID.
fn replace_uuid(smbios: &str, uuid: &str) -> String {
    let others = smbios.split(',').filter(|part| !part.is_empty() && !part.starts_with("uuid="));
    let mut parts: Vec<String> = others.map(str::to_owned).chain([format!("uuid={uuid}")]).collect();
    parts.sort();
    parts.join(",")
}

/// Sets new MAC addresses for all network cards, because two guests must not share one.
pub(crate) fn renew_macs(world: &mut World, kind: LabGuestKind, section: &mut ConfigSection) {
    let prefix = world.flavour.mac_prefix();
    for (_, value) in section.iter_mut().filter(|(key, _)| is_card_key(key)) {
        let address = world.random.new_mac(prefix);
        *value = replace_mac(kind, value, &address);
    }
}

fn replace_mac(kind: LabGuestKind, value: &str, address: &str) -> String {
    let mut parts = value.split(',');
    let first = parts.next().unwrap_or_default();
    match kind {
        LabGuestKind::Qemu => {
            let model = first.split('=').next().unwrap_or_default();
            std::iter::once(format!("{model}={address}")).chain(parts.map(str::to_owned)).collect::<Vec<_>>().join(",")
        }
        LabGuestKind::Lxc => {
            let renewed = |part: &str| if part.starts_with("hwaddr=") { format!("hwaddr={address}") } else { part.to_owned() };
            value.split(',').map(renewed).collect::<Vec<_>>().join(",")
        }
    }
}

/// A stopped or failed clone leaves nothing behind.
pub(super) fn abandon_clone(world: &mut World, cloning: &CloneWork) {
    let unfinished = world.guests.get(&cloning.target).is_some_and(|guest| guest.lock() == Some(target_lock(cloning.kind)));
    if unfinished {
        world.guests.remove_guest(cloning.target);
        world.storages.volumes.retain(|_, volume| volume.vmid != cloning.target);
        set_source_lock(world, cloning, None);
    }
}
