//! Takes, deletes and rolls back snapshots.
//!
//! Listing snapshots is in `api`.

use crate::config_update;
use crate::flavour::Flavour;
use crate::guest::drive::{DriveValue, drives};
use crate::guest::{ConfigSection, GuestProcess, LabGuest, LabGuestKind, is_unused_key, size};
use crate::task::TaskId;
use crate::truth::GuestVerb;
use crate::world::World;

/// An operation on a snapshot.
#[derive(Clone, Debug)]
pub(crate) enum SnapshotWork {
    Take { vmid: u32, name: String, description: Option<String>, memory: bool },
    Delete { vmid: u32, name: String, force: bool },
    Rollback { vmid: u32, name: String, start: bool },
}

impl SnapshotWork {
    pub(super) fn vmid(&self) -> u32 {
        match self {
            Self::Take { vmid, .. } | Self::Delete { vmid, .. } | Self::Rollback { vmid, .. } => *vmid,
        }
    }

    pub(super) fn verb(&self) -> GuestVerb {
        match self {
            Self::Take { .. } => GuestVerb::Snapshot,
            Self::Delete { .. } => GuestVerb::DeleteSnapshot,
            Self::Rollback { .. } => GuestVerb::Rollback,
        }
    }

    /// The config lock while the task runs.
    fn lock(&self) -> &'static str {
        match self {
            Self::Take { .. } => "snapshot",
            Self::Delete { .. } => "snapshot-delete",
            Self::Rollback { .. } => "rollback",
        }
    }
}

/// Keys that belong to the guest and not to a snapshot.
const EXCLUDED_KEYS: &[&str] = &["lock", "digest", "description", "template", "snapstate", "snaptime", "vmstate"];

/// Keys of a snapshot that a rollback does not restore.
const SNAPSHOT_ONLY_KEYS: &[&str] = &["snaptime", "description", "vmstate", "runningmachine", "runningcpu", "snapstate"];

/// Space for the state of devices in a saved RAM state, besides twice the memory.
const DEVICE_STATE_BYTES: u64 = 500 << 20;

pub(super) fn begin_snapshot_work(world: &mut World, id: TaskId, snapshot: &SnapshotWork) -> Result<u64, String> {
    let vmid = snapshot.vmid();
    let Some(task) = world.tasks.get(id) else { return Ok(0) };
    let (node, kind) = (task.node.clone(), super::guest_kind_of(task));
    let guest = world.guest_on(&node, kind, vmid).ok_or_else(|| kind.missing_config_text(&node, vmid))?;
    match snapshot {
        SnapshotWork::Take { name, .. } => check_can_take(world, guest, name)?,
        SnapshotWork::Delete { name, force, .. } => check_can_delete(guest, name, *force)?,
        SnapshotWork::Rollback { name, .. } => check_can_roll_back(world, guest, name)?,
    }
    if !world.is_quorate(&node) {
        let pid = world.tasks.get(id).map(|task| task.pid);
        return Err(config_update::read_only_text(world, &node, kind, vmid, pid));
    }
    match snapshot {
        SnapshotWork::Take { name, description, memory, .. } => {
            let state_volume = prepare_snapshot(world, vmid, name, description.as_deref(), *memory)?;
            log_take(world, id, vmid, state_volume.as_deref());
        }
        SnapshotWork::Delete { name, .. } => mark_deleted(world, vmid, name),
        SnapshotWork::Rollback { .. } => {
            if let Some(process) = world.guests.change_process(vmid) {
                *process = None;
            }
        }
    }
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.config.insert("lock".to_owned(), snapshot.lock().to_owned());
    }
    Ok(world.task_durations.snapshot_ms)
}

fn check_unlocked(guest: &LabGuest) -> Result<(), String> {
    guest.lock_error().map_or(Ok(()), Err)
}

fn check_can_take(world: &World, guest: &LabGuest, name: &str) -> Result<(), String> {
    if guest.is_template() {
        return Err("you can't take a snapshot if it's a template".to_owned());
    }
    check_unlocked(guest)?;
    if guest.snapshots.contains_key(name) {
        return Err(format!("snapshot name '{name}' already used"));
    }
    let mut disks = drives(guest.kind, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    let able = disks.all(|(_, drive)| world.storages.supports_snapshots(&drive.file));
    if able { Ok(()) } else { Err("snapshot feature is not available".to_owned()) }
}

fn check_can_delete(guest: &LabGuest, name: &str, force: bool) -> Result<(), String> {
    if !force {
        check_unlocked(guest)?;
    }
    if guest.is_template() {
        return Err("you can't delete a snapshot if vm is a template".to_owned());
    }
    find_snapshot(guest, name).map(drop)
}

fn check_can_roll_back(world: &World, guest: &LabGuest, name: &str) -> Result<(), String> {
    if guest.is_template() {
        return Err("you can't rollback if vm is a template".to_owned());
    }
    let values = find_snapshot(guest, name)?;
    for (_, drive) in drives(guest.kind, values).filter(|(_, drive)| !drive.is_cdrom()) {
        // ZFS can only go back to the most recent snapshot of a volume.
        if world.storages.kind_of_volume(&drive.file) == "zfspool" && has_newer_snapshot(guest, values, &drive) {
            return Err(format!("can't rollback, '{name}' is not most recent snapshot on '{}'", drive.file));
        }
    }
    if let Some(state) = values.get("snapstate") {
        return Err(format!("unable to rollback to incomplete snapshot (snapstate = {state})"));
    }
    check_unlocked(guest)
}

fn has_newer_snapshot(guest: &LabGuest, values: &ConfigSection, volume: &DriveValue) -> bool {
    let taken_s = |values: &ConfigSection| values.get("snaptime").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    // A snapshot within the same second is newer if it descends from this one, which its number in the chain tells.
    let depth = |values: &ConfigSection| chain_depth(guest, values);
    let order = (taken_s(values), depth(values));
    let has_volume = |other: &&ConfigSection| drives(guest.kind, other).any(|(_, drive)| drive.file == volume.file);
    guest.snapshots.values().filter(has_volume).any(|other| (taken_s(other), depth(other)) > order)
}

/// How many snapshots are before this one in its chain.
fn chain_depth(guest: &LabGuest, values: &ConfigSection) -> usize {
    let next = |values: &&ConfigSection| values.get("parent").and_then(|parent| guest.snapshots.get(parent));
    std::iter::successors(Some(values), next).take(guest.snapshots.len()).count()
}

fn find_snapshot<'a>(guest: &'a LabGuest, name: &str) -> Result<&'a ConfigSection, String> {
    guest.snapshots.get(name).ok_or_else(|| format!("snapshot '{name}' does not exist"))
}

/// Writes the section of a snapshot that is not finished; returns the volume of its RAM state. The RAM of a stopped guest and of a
/// container is never saved.
fn prepare_snapshot(world: &mut World, vmid: u32, name: &str, description: Option<&str>, memory: bool) -> Result<Option<String>, String> {
    let (now_s, flavour) = (world.cluster_clock_s(), world.flavour);
    let Some(guest) = world.guests.get(&vmid) else { return Ok(None) };
    let saves_ram = memory && guest.is_running() && guest.kind == LabGuestKind::Qemu;
    let mut values = snapshot_section(guest, name, now_s);
    values.insert("snapstate".to_owned(), "prepare".to_owned());
    values.extend(description.filter(|text| !text.is_empty()).map(|text| ("description".to_owned(), text.to_owned())));
    let state_volume = if saves_ram { Some(allocate_ram_state(world, vmid, name)?) } else { None };
    if let Some(volume) = &state_volume {
        add_ram_keys(&mut values, volume, flavour);
    }
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.snapshots.insert(name.to_owned(), values);
    }
    Ok(state_volume)
}

/// What a snapshot stores of the guest's config, with the time.
fn snapshot_section(guest: &LabGuest, name: &str, now_s: u64) -> ConfigSection {
    let is_included = |key: &String| !EXCLUDED_KEYS.contains(&key.as_str()) && !is_unused_key(key);
    let copied = guest.config.iter().filter(|(key, _)| is_included(key)).map(|(key, value)| (key.clone(), value.clone()));
    let mut values: ConfigSection = copied.collect();
    // A snapshot that was deleted behind the back of its children must not become its own ancestor.
    if values.get("parent").is_some_and(|parent| parent == name) {
        values.remove("parent");
    }
    values.insert("snaptime".to_owned(), now_s.to_string());
    values
}

/// The keys of a snapshot with RAM state: its volume, and the machine and the CPU that the state needs.
fn add_ram_keys(values: &mut ConfigSection, volume: &str, flavour: Flavour) {
    let board = if values.get("machine").is_some_and(|machine| machine.contains("q35")) { "pc-q35" } else { "pc-i440fx" };
    let version: Vec<&str> = flavour.qemu_version().split('.').take(2).collect();
    let first = values.get("cpu").and_then(|cpu| cpu.split(',').next()).unwrap_or("kvm64");
    let cpu = first.strip_prefix("cputype=").unwrap_or(first).to_owned();
    values.insert("vmstate".to_owned(), volume.to_owned());
    values.insert("runningmachine".to_owned(), format!("{board}-{}+pve0", version.join(".")));
    values.insert("runningcpu".to_owned(), format!("{cpu},enforce,+kvm_pv_eoi,+kvm_pv_unhalt"));
}

fn allocate_ram_state(world: &mut World, vmid: u32, name: &str) -> Result<String, String> {
    let guest = world.guests.get(&vmid);
    let memory = guest.and_then(|guest| guest.get("memory")).map_or("512", |text| text.trim_start_matches("current="));
    let bytes = size::parse_mebibytes(memory).unwrap_or(512 << 20).saturating_mul(2).saturating_add(DEVICE_STATE_BYTES);
    let storage = guest.map_or_else(|| "local".to_owned(), |guest| ram_state_storage(world, guest));
    world.storages.allocate_named_volume(&storage, vmid, &format!("vm-{vmid}-state-{name}"), bytes, "raw")
}

/// The storage for RAM state: the one that is set, a shared one that the guest uses, a local one that it uses, or `local`. A storage with
/// a path is preferred.
fn ram_state_storage(world: &World, guest: &LabGuest) -> String {
    if let Some(storage) = guest.get("vmstatestorage") {
        return storage.to_owned();
    }
    let used: std::collections::BTreeSet<String> = drives(guest.kind, &guest.config)
        .filter(|(_, drive)| !drive.is_cdrom())
        .filter_map(|(_, drive)| drive.storage().map(str::to_owned))
        .collect();
    let pick = |shared: bool| {
        let fitting = used.iter().filter(|name| world.storages.all.get(*name).is_some_and(|storage| storage.shared == shared));
        fitting.fold(None, |chosen: Option<&String>, name| match chosen {
            Some(_) if !world.storages.all.get(name).is_some_and(|storage| storage.has_files()) => chosen,
            _ => Some(name),
        })
    };
    pick(true).or_else(|| pick(false)).map_or_else(|| "local".to_owned(), Clone::clone)
}

fn log_take(world: &mut World, id: TaskId, vmid: u32, state_volume: Option<&str>) {
    let Some(guest) = world.guests.get(&vmid).filter(|guest| guest.kind == LabGuestKind::Qemu) else { return };
    let disks = drives(LabGuestKind::Qemu, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    let snapshotting = disks.map(|(key, drive)| format!("snapshotting 'drive-{key}' ({})", drive.file));
    let saving = state_volume.and_then(|volume| volume.split_once(':')).into_iter().flat_map(|(storage, _)| {
        [format!("saving VM state and RAM using storage '{storage}'"), "completed saving the VM state in 1s, saved 256.00 MiB".to_owned()]
    });
    let lines: Vec<String> = saving.chain(snapshotting).collect();
    for line in lines {
        world.tasks.log_line(id, line);
    }
}

fn mark_deleted(world: &mut World, vmid: u32, name: &str) {
    if let Some(values) = world.guests.change_guest(vmid).and_then(|guest| guest.snapshots.get_mut(name)) {
        values.insert("snapstate".to_owned(), "delete".to_owned());
    }
}

pub(super) fn finish_snapshot_work(world: &mut World, snapshot: &SnapshotWork) -> Result<(), String> {
    let vmid = snapshot.vmid();
    // Drawn for every kind of work, although only a rollback uses them: the random values of a seed must not depend on it.
    let genid = world.random.new_uuid();
    let node = world.guests.get(&vmid).map(|guest| guest.node.clone()).unwrap_or_default();
    let pid = world.nodes.get_mut(&node).map_or(1, crate::node::LabNode::next_process_id);
    match snapshot {
        SnapshotWork::Take { name, .. } => commit_snapshot(world, vmid, name),
        SnapshotWork::Delete { name, .. } => {
            remove_snapshot(world, vmid, name);
            remove_lock(world, vmid);
            Ok(())
        }
        SnapshotWork::Rollback { name, start, .. } => {
            let process = GuestProcess { pid, since_ms: world.now_ms, qemu_state: "running".to_owned() };
            finish_rollback(world, vmid, name, genid, process, *start);
            Ok(())
        }
    }
}

fn remove_lock(world: &mut World, vmid: u32) {
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.config.remove("lock");
    }
}

/// Ends the preparation: the snapshot is complete and becomes the parent of the current config.
fn commit_snapshot(world: &mut World, vmid: u32, name: &str) -> Result<(), String> {
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    let Some(values) = guest.snapshots.get_mut(name) else { return Err(format!("snapshot '{name}' does not exist")) };
    values.remove("snapstate");
    guest.config.remove("lock");
    guest.config.insert("parent".to_owned(), name.to_owned());
    Ok(())
}

/// Takes a complete snapshot at once, as a person does outside the API.
pub(crate) fn take_complete_snapshot(
    world: &mut World,
    vmid: u32,
    name: &str,
    description: Option<&str>,
    memory: bool,
) -> Result<(), String> {
    prepare_snapshot(world, vmid, name, description, memory)?;
    commit_snapshot(world, vmid, name)
}

/// Removes a snapshot with its RAM state and links its children to its parent. A disk that only this snapshot used becomes unused.
pub(crate) fn remove_snapshot(world: &mut World, vmid: u32, name: &str) {
    let Some(guest) = world.guests.change_guest(vmid) else { return };
    let Some(removed) = guest.snapshots.remove(name) else { return };
    let parent = removed.get("parent");
    let sections = guest.snapshots.values_mut().chain([&mut guest.config]);
    for section in sections.filter(|section| section.get("parent").map(String::as_str) == Some(name)) {
        match parent {
            Some(parent) => section.insert("parent".to_owned(), parent.clone()),
            None => section.remove("parent"),
        };
    }
    keep_lost_disks(guest, &removed);
    if let Some(volume) = removed.get("vmstate") {
        world.storages.volumes.remove(volume);
    }
}

/// Keeps the disks of a section that no other section names any more as unused ones.
fn keep_lost_disks(guest: &mut LabGuest, section: &ConfigSection) {
    let files: Vec<String> = drives(guest.kind, section)
        .filter(|(_, drive)| !drive.is_cdrom() && drive.storage().is_some())
        .map(|(_, drive)| drive.file)
        .collect();
    for file in files {
        let is_named = guest.sections().flatten().any(|(_, value)| DriveValue::parse(value).file == file);
        if !is_named {
            guest.add_unused(&file);
        }
    }
}

/// Restores the config of the snapshot and keeps the current description and unused disks. The guest is stopped; it starts again if its RAM
/// was saved.
fn finish_rollback(world: &mut World, vmid: u32, name: &str, genid: String, process: GuestProcess, start: bool) {
    let Some(guest) = world.guests.change_guest(vmid) else { return };
    guest.config.remove("lock");
    let Some(snapshot) = guest.snapshots.get(name).cloned() else { return };
    let before = std::mem::take(&mut guest.config);
    let preserved = before.iter().filter(|(key, _)| *key == "description" || is_unused_key(key));
    let mut values: ConfigSection = preserved.map(|(key, value)| (key.clone(), value.clone())).collect();
    let restored = snapshot.iter().filter(|(key, _)| !SNAPSHOT_ONLY_KEYS.contains(&key.as_str()));
    values.extend(restored.map(|(key, value)| (key.clone(), value.clone())));
    values.insert("parent".to_owned(), name.to_owned());
    if values.contains_key("vmgenid") {
        values.insert("vmgenid".to_owned(), genid);
    }
    guest.config = values;
    guest.pending.clear();
    guest.deletions.clear();
    keep_lost_disks(guest, &before);
    let restarts = start || snapshot.contains_key("vmstate");
    guest.process = restarts.then_some(process);
    let kind = guest.kind;
    for (_, drive) in drives(kind, &snapshot).filter(|(_, drive)| drive.size_bytes() > 0) {
        if let Some(volume) = world.storages.volumes.get_mut(&drive.file) {
            volume.bytes = drive.size_bytes();
        }
    }
}

/// A stopped worker that was taking a snapshot cleans up; a stopped deletion or rollback leaves its lock.
pub(super) fn abandon_snapshot_work(world: &mut World, snapshot: &SnapshotWork) {
    let SnapshotWork::Take { vmid, name, .. } = snapshot else { return };
    let is_prepared = |guest: &&LabGuest| guest.snapshots.get(name).is_some_and(|values| values.contains_key("snapstate"));
    if world.guests.get(vmid).is_some_and(|guest| is_prepared(&guest)) {
        remove_snapshot(world, *vmid, name);
        remove_lock(world, *vmid);
    }
}
