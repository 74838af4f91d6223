//! Takes, deletes and rolls back snapshots.
//!
//! Listing snapshots is in `api`.

use crate::config_update;
use crate::guest::drive::{DriveValue, drives};
use crate::guest::{ConfigSection, GuestProcess, LabGuest, LabGuestKind, is_unused_key};
use crate::task::TaskId;
use crate::world::World;

/// An operation on a snapshot.
#[derive(Clone, Debug)]
pub(crate) enum SnapshotWork {
    Take { vmid: u32, name: String, description: Option<String>, memory: bool },
    Delete { vmid: u32, name: String, force: bool },
    Rollback { vmid: u32, name: String, start: bool },
}

impl SnapshotWork {
    fn vmid(&self) -> u32 {
        match self {
            Self::Take { vmid, .. } | Self::Delete { vmid, .. } | Self::Rollback { vmid, .. } => *vmid,
        }
    }
}

/// Keys that belong to the guest and not to a snapshot.
const EXCLUDED_KEYS: &[&str] = &["lock", "digest", "parent", "description", "template"];

pub(super) fn begin_snapshot_work(world: &mut World, id: TaskId, snapshot: &SnapshotWork) -> Result<u64, String> {
    let vmid = snapshot.vmid();
    let Some(guest) = world.guests.get(&vmid) else { return Err(format!("guest {vmid} vanished")) };
    let forced = matches!(snapshot, SnapshotWork::Delete { force: true, .. });
    if let Some(locked) = guest.lock_error().filter(|_| !forced) {
        return Err(locked);
    }
    let (node, kind) = (guest.node.clone(), guest.kind);
    match snapshot {
        SnapshotWork::Take { name, .. } => check_can_take(world, guest, name)?,
        SnapshotWork::Delete { name, .. } | SnapshotWork::Rollback { name, .. } => check_exists(guest, name)?,
    }
    if !world.is_quorate(&node) {
        let pid = world.tasks.get(id).map(|task| task.pid);
        return Err(config_update::read_only_text(world, &node, kind, vmid, pid));
    }
    if let (SnapshotWork::Take { .. }, LabGuestKind::Qemu) = (snapshot, kind) {
        log_drives(world, id, vmid);
    }
    let lock = match snapshot {
        SnapshotWork::Take { .. } => "snapshot",
        SnapshotWork::Delete { .. } => "snapshot-delete",
        SnapshotWork::Rollback { .. } => "rollback",
    };
    if let Some(guest) = world.guests.change_guest(vmid) {
        guest.config.insert("lock".to_owned(), lock.to_owned());
    }
    Ok(world.task_durations.snapshot_ms)
}

fn check_can_take(world: &World, guest: &LabGuest, name: &str) -> Result<(), String> {
    if guest.snapshots.contains_key(name) {
        return Err(format!("snapshot name '{name}' already used"));
    }
    let mut disks = drives(guest.kind, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    let able = disks.all(|(_, drive)| world.storages.supports_snapshots(&drive.file));
    if able { Ok(()) } else { Err("snapshot feature is not available".to_owned()) }
}

fn check_exists(guest: &LabGuest, name: &str) -> Result<(), String> {
    if guest.snapshots.contains_key(name) { Ok(()) } else { Err(format!("snapshot '{name}' does not exist")) }
}

fn log_drives(world: &mut World, id: TaskId, vmid: u32) {
    let Some(guest) = world.guests.get(&vmid) else { return };
    let line = |(key, drive): (&String, DriveValue)| format!("snapshotting 'drive-{key}' ({})", drive.file);
    let disks = drives(LabGuestKind::Qemu, &guest.config).filter(|(_, drive)| !drive.is_cdrom());
    let lines: Vec<String> = disks.map(line).collect();
    for line in lines {
        world.tasks.log_line(id, line);
    }
}

pub(super) fn finish_snapshot_work(world: &mut World, snapshot: &SnapshotWork) -> Result<(), String> {
    let (now_s, now_ms) = (world.cluster_clock_s(), world.now_ms);
    let genid = world.random.new_uuid();
    let vmid = snapshot.vmid();
    let node = world.guests.get(&vmid).map(|guest| guest.node.clone()).unwrap_or_default();
    let pid = world.nodes.get_mut(&node).map_or(1, crate::node::LabNode::next_process_id);
    let Some(guest) = world.guests.change_guest(vmid) else { return Ok(()) };
    guest.config.remove("lock");
    match snapshot {
        SnapshotWork::Take { name, description, memory, .. } => take_snapshot(guest, name, description.as_deref(), *memory, now_s),
        SnapshotWork::Delete { name, .. } => delete_snapshot(guest, name),
        SnapshotWork::Rollback { name, start, .. } => {
            let restarts = *start || guest.snapshots.get(name).is_some_and(|values| values.contains_key("vmstate"));
            roll_back(guest, name, &genid);
            guest.process = restarts.then(|| GuestProcess { pid, since_ms: now_ms, qemu_state: "running".to_owned() });
        }
    }
    Ok(())
}

fn take_snapshot(guest: &mut LabGuest, name: &str, description: Option<&str>, memory: bool, now_s: u64) {
    let is_included = |key: &String| !EXCLUDED_KEYS.contains(&key.as_str()) && !is_unused_key(key);
    let mut values: ConfigSection =
        guest.config.iter().filter(|(key, _)| is_included(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    values.insert("snaptime".to_owned(), now_s.to_string());
    values.extend(description.map(|text| ("description".to_owned(), text.to_owned())));
    values.extend(guest.config.get("parent").map(|parent| ("parent".to_owned(), parent.clone())));
    if memory && guest.is_running() {
        values.insert("vmstate".to_owned(), format!("local:{}/vm-{}-state-{name}.raw", guest.vmid, guest.vmid));
    }
    guest.snapshots.insert(name.to_owned(), values);
    guest.config.insert("parent".to_owned(), name.to_owned());
}

/// Deletes a snapshot; its children are linked to its parent.
fn delete_snapshot(guest: &mut LabGuest, name: &str) {
    let parent = guest.snapshots.remove(name).and_then(|values| values.get("parent").cloned());
    let sections = guest.snapshots.values_mut().chain([&mut guest.config]);
    for section in sections.filter(|section| section.get("parent").map(String::as_str) == Some(name)) {
        match &parent {
            Some(parent) => section.insert("parent".to_owned(), parent.clone()),
            None => section.remove("parent"),
        };
    }
}

/// Restores the config of the snapshot, and keeps the current description and unused disks.
fn roll_back(guest: &mut LabGuest, name: &str, genid: &str) {
    let Some(mut values) = guest.snapshots.get(name).cloned() else { return };
    values.retain(|key, _| !["snaptime", "description", "vmstate", "runningmachine", "runningcpu", "snapstate"].contains(&key.as_str()));
    let preserved = guest.config.iter().filter(|(key, _)| *key == "description" || is_unused_key(key));
    values.extend(preserved.map(|(key, value)| (key.clone(), value.clone())));
    values.insert("parent".to_owned(), name.to_owned());
    if values.contains_key("vmgenid") {
        values.insert("vmgenid".to_owned(), genid.to_owned());
    }
    guest.config = values;
    guest.pending.clear();
    guest.deletions.clear();
}
