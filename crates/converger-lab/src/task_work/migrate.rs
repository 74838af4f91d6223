//! Migrates guests to other nodes.
//!
//! What the call checks before the task starts is in `api`.

use std::collections::{BTreeMap, BTreeSet};

use crate::events::ScheduledEvent;
use crate::guest::drive::{DriveValue, drives};
use crate::guest::{ConfigSection, GuestProcess, LabGuest, LabGuestKind, is_disk_key, is_unused_key};
use crate::schema::split_number;
use crate::task::TaskId;
use crate::task_work::power;
use crate::world::World;

/// Default timeout for the shutdown of a container that migrates by restart.
pub(crate) const RESTART_TIMEOUT_MS: u64 = 180_000;

/// A guest that migrates to another node.
#[derive(Clone, Debug)]
pub(crate) struct GuestMigration {
    pub(crate) vmid: u32,
    pub(crate) kind: LabGuestKind,
    pub(crate) target: String,
    /// It is running and keeps running while it migrates.
    pub(crate) online: bool,
    /// It is running and shuts down before it migrates.
    pub(crate) shutdown_first: Option<PreMoveShutdown>,
    /// It starts again on the target node.
    pub(crate) restarts: bool,
    /// Local disks are copied while it runs.
    pub(crate) local_disks: bool,
    /// Local devices do not prevent the migration of a stopped guest.
    pub(crate) force: bool,
    /// Where local disks move to.
    pub(crate) storage_map: StorageMap,
}

/// How a guest shuts down before it migrates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreMoveShutdown {
    pub(crate) timeout_ms: u64,
    /// Stop it by force after the timeout.
    pub(crate) force: bool,
}

/// The storages on the target node for disks on local storages. Shared storages are never mapped.
#[derive(Clone, Debug, Default)]
pub(crate) struct StorageMap {
    /// For all storages without an entry; `None` keeps them.
    default: Option<String>,
    entries: BTreeMap<String, String>,
}

impl StorageMap {
    /// Parses `fast`, `local:fast,tank:other`, or `1`, which keeps all storages.
    pub(crate) fn parse(text: &str) -> Self {
        let mut map = Self::default();
        for part in text.split(',').filter(|part| *part != "1") {
            match part.split_once(':') {
                Some((from, to)) => drop(map.entries.insert(from.to_owned(), to.to_owned())),
                None => map.default = Some(part.to_owned()),
            }
        }
        map
    }

    pub(crate) fn keeps_storages(&self) -> bool {
        self.default.is_none() && self.entries.is_empty()
    }

    /// All storages that disks may move to.
    pub(crate) fn targets(&self) -> impl Iterator<Item = &String> {
        self.entries.values().chain(&self.default)
    }

    fn target_of<'a>(&'a self, storage: &'a str) -> &'a str {
        self.entries.get(storage).or(self.default.as_ref()).map_or(storage, String::as_str)
    }
}

fn is_shared(world: &World, drive: &DriveValue) -> bool {
    drive.storage().and_then(|name| world.storages.all.get(name)).is_some_and(|storage| storage.shared)
}

/// The volumes of a guest that only its node has, by key: disks, unused disks, CD images and the node's own CD drive.
pub(crate) fn find_local_volumes(world: &World, guest: &LabGuest) -> Vec<(String, DriveValue)> {
    let named = guest.config.iter().filter(|(key, _)| is_disk_key(guest.kind, key) || is_unused_key(key));
    let drives = named.map(|(key, value)| (key.clone(), DriveValue::parse(value)));
    let is_marked_shared = |drive: &DriveValue| drive.options.get("shared").is_some_and(|text| text == "1");
    drives.filter(|(_, drive)| drive.file != "none" && !is_shared(world, drive) && !is_marked_shared(drive)).collect()
}

/// The keys of devices that only exist on the guest's node.
pub(crate) fn local_devices(guest: &LabGuest) -> Vec<String> {
    let is_local = |key: &str, value: &str| match split_number(key).map(|(stem, _)| stem) {
        Some("usb") => !value.split(',').any(|part| part.trim_start_matches("host=").eq_ignore_ascii_case("spice")),
        Some("serial") => value != "socket",
        Some("hostpci" | "parallel" | "virtiofs") => true,
        _ => key == "ivshmem",
    };
    if guest.kind == LabGuestKind::Lxc {
        return Vec::new();
    }
    guest.config.iter().filter(|(key, value)| is_local(key, value)).map(|(key, _)| key.clone()).collect()
}

/// The storages of the guest's drives that a node lacks.
pub(crate) fn missing_storages(world: &World, guest: &LabGuest, node: &str) -> Vec<String> {
    let named: BTreeSet<String> = drives(guest.kind, &guest.config).filter_map(|(_, drive)| drive.storage().map(str::to_owned)).collect();
    let is_missing = |name: &String| world.storages.all.get(name).is_some_and(|storage| !storage.is_available_on(node));
    named.into_iter().filter(is_missing).collect()
}

/// The error if a node lacks the storage of one of the guest's disks.
pub(crate) fn missing_storage_error(world: &World, guest: &LabGuest, target: &str) -> Option<String> {
    missing_target_error(world, guest, target, &StorageMap::default())
}

fn missing_target_error(world: &World, guest: &LabGuest, target: &str, storage_map: &StorageMap) -> Option<String> {
    let mut disks = drives(guest.kind, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    disks.find_map(|(_, drive)| {
        let name = drive.storage()?;
        let name = if is_shared(world, &drive) { name } else { storage_map.target_of(name) };
        let is_there = world.storages.all.get(name)?.is_available_on(target);
        (!is_there).then(|| format!("storage '{name}' is not available on node '{target}'"))
    })
}

pub(super) fn begin_migration(world: &mut World, id: TaskId, migration: &GuestMigration) -> Result<u64, String> {
    let GuestMigration { vmid, target, .. } = migration;
    let node = world.tasks.get(id).map(|task| task.node.clone()).unwrap_or_default();
    let Some(guest) = world.guests.get(vmid) else { return Err(migration.kind.missing_config_text(&node, *vmid)) };
    if let Some(locked) = guest.lock_error() {
        return Err(locked);
    }
    if !world.is_reachable(&node, target) {
        return Err(format!("migration aborted: no route to node '{target}'"));
    }
    if let Some(refused) = migration_refusal(world, guest, migration) {
        world.tasks.log_line(id, format!("ERROR: migration aborted (duration 00:00:00): {refused}"));
        return Err(refused);
    }
    let down = migration.shutdown_first.map(|down| (down, guest.behaviour.shutdown_ms.filter(|needed_ms| *needed_ms <= down.timeout_ms)));
    let what = if migration.online { "online migration" } else { "migration" };
    world.tasks.log_line(id, format!("starting {what} of {} {vmid} to node '{target}'", migration.kind.error_word()));
    if let Some(guest) = world.guests.change_guest(*vmid) {
        guest.config.insert("lock".to_owned(), "migrate".to_owned());
    }
    let Some((down, listens_ms)) = down else { return Ok(world.task_durations.migrate_ms) };
    world.tasks.log_line(id, format!("shutdown {} {vmid}", migration.kind.error_word()));
    let down_ms = match listens_ms {
        Some(needed_ms) => needed_ms,
        None if down.force => down.timeout_ms.saturating_add(power::FORCED_STOP_MS),
        None => return Ok(down.timeout_ms),
    };
    world.schedule(world.now_ms.saturating_add(down_ms), ScheduledEvent::ContainerGoesDown(id));
    let up_ms = if migration.restarts { world.task_durations.start_ms } else { 0 };
    Ok(down_ms.saturating_add(world.task_durations.migrate_ms).saturating_add(up_ms))
}

/// Obstacles that only the task detects.
fn migration_refusal(world: &World, guest: &LabGuest, migration: &GuestMigration) -> Option<String> {
    match guest.kind {
        LabGuestKind::Lxc if migration.online => Some("lxc live migration is currently not implemented".to_owned()),
        LabGuestKind::Lxc => bind_mount_error(guest)
            .or_else(|| missing_target_error(world, guest, &migration.target, &migration.storage_map))
            .or_else(|| local_volume_error(world, guest, migration)),
        LabGuestKind::Qemu => local_device_error(guest, migration)
            .or_else(|| missing_target_error(world, guest, &migration.target, &migration.storage_map))
            .or_else(|| local_volume_error(world, guest, migration)),
    }
}

/// A directory or device of the node that is mounted into a container cannot migrate, unless it is marked as shared.
fn bind_mount_error(guest: &LabGuest) -> Option<String> {
    let mut mounts = drives(guest.kind, &guest.config).filter(|(_, drive)| drive.file.starts_with('/'));
    let (key, drive) = mounts.find(|(_, drive)| drive.options.get("shared").is_none_or(|text| text != "1"))?;
    let kind = if drive.file.starts_with("/dev/") { "device" } else { "bind" };
    Some(format!("cannot migrate local {kind} mount point '{key}'"))
}

fn local_device_error(guest: &LabGuest, migration: &GuestMigration) -> Option<String> {
    let devices = local_devices(guest);
    let is_blocked = !devices.is_empty() && (migration.online || !migration.force);
    is_blocked.then(|| format!("can't migrate VM which uses local devices: {}", devices.join(", ")))
}

fn local_volume_error(world: &World, guest: &LabGuest, migration: &GuestMigration) -> Option<String> {
    let is_replicated = world.replication.has_target(guest.vmid, &migration.target);
    let volumes = find_local_volumes(world, guest);
    volumes.into_iter().filter(|(_, drive)| !drive.file.starts_with('/') || guest.kind == LabGuestKind::Qemu).find_map(|(key, drive)| {
        let reason = local_volume_obstacle(world, guest, migration, &drive, is_replicated)?;
        let is_attached = !is_unused_key(&key) && !drive.is_cdrom();
        match reason {
            LocalVolumeObstacle::CdDrive => Some("can't migrate local cdrom drive".to_owned()),
            LocalVolumeObstacle::Live if is_attached => {
                Some("can't live migrate attached local disks without with-local-disks option".to_owned())
            }
            LocalVolumeObstacle::Live => None,
            LocalVolumeObstacle::Other(reason) if guest.kind == LabGuestKind::Qemu => {
                Some(format!("can't migrate local disk '{}': {reason}", drive.file))
            }
            LocalVolumeObstacle::Other(reason) => Some(format!("can't migrate local volume '{}': {reason}", drive.file)),
        }
    })
}

/// Why a local volume cannot migrate.
enum LocalVolumeObstacle {
    CdDrive,
    /// The guest runs, and its disks are not to be copied.
    Live,
    Other(String),
}

fn local_volume_obstacle(
    world: &World,
    guest: &LabGuest,
    migration: &GuestMigration,
    drive: &DriveValue,
    is_replicated: bool,
) -> Option<LocalVolumeObstacle> {
    let other = |text: &str| Some(LocalVolumeObstacle::Other(text.to_owned()));
    if drive.file == "cdrom" {
        return Some(LocalVolumeObstacle::CdDrive);
    }
    if drive.file.starts_with('/') {
        return other("local file/device");
    }
    if drive.is_cdrom() && !drive.is_cloud_init() {
        return other("local cdrom image");
    }
    let in_snapshot = |values: &ConfigSection| drives(guest.kind, values).any(|(_, other)| other.file == drive.file);
    let is_qcow2 = world.storages.volumes.get(&drive.file).is_some_and(|volume| volume.format == "qcow2");
    let moves_with_snapshots = world.storages.kind_of_volume(&drive.file) == "zfspool" || (is_qcow2 && guest.kind == LabGuestKind::Qemu);
    if guest.snapshots.values().any(in_snapshot) {
        if migration.online && !is_replicated {
            return other("online storage migration not possible if non-replicated snapshot exists");
        }
        if !moves_with_snapshots {
            return other("non-migratable snapshot exists");
        }
    }
    if world.storages.is_base_in_use(&drive.file) {
        return other("referenced by linked clone(s)");
    }
    if let Some(base) = world.storages.volumes.get(&drive.file).and_then(|volume| volume.base.as_ref()) {
        return other(&format!("clone of '{base}'"));
    }
    (migration.online && !migration.local_disks).then_some(LocalVolumeObstacle::Live)
}

/// Stops a guest before it migrates, unless its task has already ended.
pub(crate) fn stop_before_move(world: &mut World, id: TaskId) {
    let vmid = world.tasks.get(id).filter(|task| !task.is_over()).and_then(|task| task.holds);
    if let Some(guest) = vmid.and_then(|vmid| world.guests.change_guest(vmid)) {
        guest.process = None;
    }
}

pub(super) fn finish_migration(world: &mut World, migration: &GuestMigration) -> Result<(), String> {
    let (now_ms, vmid) = (world.now_ms, migration.vmid);
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    guest.config.remove("lock");
    if migration.shutdown_first.is_some() && guest.process.is_some() {
        return Err(power::shutdown_timeout_text(migration.kind).to_owned());
    }
    let pid = move_config(world, migration);
    if let Some(guest) = world.guests.change_guest(vmid).filter(|_| migration.restarts) {
        guest.process = Some(GuestProcess { pid, since_ms: now_ms, qemu_state: "running".to_owned() });
    }
    Ok(())
}

/// Moves the config file from the directory of one node to that of the other, with the process and with local disks. Returns the id of the
/// process there.
pub(super) fn move_config(world: &mut World, migration: &GuestMigration) -> u32 {
    let vmid = migration.vmid;
    world.views.freeze_guest(vmid);
    let pid = world.nodes.get_mut(&migration.target).map_or(1, crate::node::LabNode::next_process_id);
    move_local_disks(world, migration);
    let Some(guest) = world.guests.change_guest(vmid) else { return pid };
    let from = std::mem::replace(&mut guest.node, migration.target.clone());
    if let Some(process) = &mut guest.process {
        process.pid = pid;
    }
    world.replication.follow_guest(vmid, &from, &migration.target);
    pid
}

/// Local disks get new volumes on the mapped storage. On the same storage they keep their names.
fn move_local_disks(world: &mut World, migration: &GuestMigration) {
    let Some(guest) = world.guests.get(&migration.vmid) else { return };
    let owned = find_local_volumes(world, guest).into_iter().filter(|(_, drive)| drive.is_owned() && drive.storage().is_some());
    let moved: Vec<(String, DriveValue)> = owned.collect();
    for (key, mut drive) in moved {
        let before = drive.file.clone();
        let storage = migration.storage_map.target_of(drive.storage().unwrap_or_default()).to_owned();
        let Some(volume) = world.storages.volumes.get(&before).cloned().filter(|_| drive.storage() != Some(storage.as_str())) else {
            continue;
        };
        let format = world.storages.usable_format(&storage, &volume.format).to_owned();
        let allocated = if drive.is_cloud_init() {
            world.storages.allocate_cloud_init(&storage, migration.vmid, Some(format))
        } else {
            world.storages.allocate_volume(&storage, migration.vmid, volume.bytes, &format)
        };
        let Ok(file) = allocated else { continue };
        world.storages.volumes.remove(&before);
        drive.file = file;
        let text = if is_unused_key(&key) { drive.file.clone() } else { drive.to_text() };
        if let Some(guest) = world.guests.change_guest(migration.vmid) {
            guest.config.insert(key, text);
        }
    }
}
