//! Snapshots: taking, deleting, going back.
//!
//! What never enters here: the list of snapshots, which is in `api`.

use crate::guest::drive::{Drive, drives};
use crate::guest::{Guest, Kind, Process, Section, is_unused_key};
use crate::task::TaskId;
use crate::update;
use crate::world::World;

/// What is done with a snapshot.
#[derive(Clone, Debug)]
pub(crate) enum Snapshotting {
    Take { vmid: u32, name: String, description: Option<String>, memory: bool },
    Delete { vmid: u32, name: String, force: bool },
    Rollback { vmid: u32, name: String, start: bool },
}

impl Snapshotting {
    fn vmid(&self) -> u32 {
        match self {
            Self::Take { vmid, .. } | Self::Delete { vmid, .. } | Self::Rollback { vmid, .. } => *vmid,
        }
    }
}

/// Keys that belong to the guest and not to a moment of it.
const NOT_TAKEN: &[&str] = &["lock", "digest", "parent", "description", "template"];

pub(super) fn begin(world: &mut World, id: TaskId, snapshot: &Snapshotting) -> Result<u64, String> {
    let vmid = snapshot.vmid();
    let Some(guest) = world.guests.get(&vmid) else { return Err(format!("guest {vmid} vanished")) };
    let forced = matches!(snapshot, Snapshotting::Delete { force: true, .. });
    if let Some(locked) = guest.locked().filter(|_| !forced) {
        return Err(locked);
    }
    let (node, kind) = (guest.node.clone(), guest.kind);
    match snapshot {
        Snapshotting::Take { name, .. } => may_take(world, guest, name)?,
        Snapshotting::Delete { name, .. } | Snapshotting::Rollback { name, .. } => exists(guest, name)?,
    }
    if !world.is_quorate(&node) {
        let pid = world.tasks.get(id).map(|task| task.pid);
        return Err(update::read_only(world, &node, kind, vmid, pid));
    }
    if let (Snapshotting::Take { .. }, Kind::Qemu) = (snapshot, kind) {
        log_drives(world, id, vmid);
    }
    let lock = match snapshot {
        Snapshotting::Take { .. } => "snapshot",
        Snapshotting::Delete { .. } => "snapshot-delete",
        Snapshotting::Rollback { .. } => "rollback",
    };
    if let Some(guest) = world.guests.change(vmid) {
        guest.main.insert("lock".to_owned(), lock.to_owned());
    }
    Ok(world.pace.snapshot_ms)
}

fn may_take(world: &World, guest: &Guest, name: &str) -> Result<(), String> {
    if guest.snapshots.contains_key(name) {
        return Err(format!("snapshot name '{name}' already used"));
    }
    let mut disks = drives(guest.kind, &guest.main).filter(|(_, drive)| !drive.is_cdrom());
    let able = disks.all(|(_, drive)| world.storages.has_snapshots(&drive.file));
    if able { Ok(()) } else { Err("snapshot feature is not available".to_owned()) }
}

fn exists(guest: &Guest, name: &str) -> Result<(), String> {
    if guest.snapshots.contains_key(name) { Ok(()) } else { Err(format!("snapshot '{name}' does not exist")) }
}

fn log_drives(world: &mut World, id: TaskId, vmid: u32) {
    let Some(guest) = world.guests.get(&vmid) else { return };
    let line = |(key, drive): (&String, Drive)| format!("snapshotting 'drive-{key}' ({})", drive.file);
    let disks = drives(Kind::Qemu, &guest.main).filter(|(_, drive)| !drive.is_cdrom());
    let lines: Vec<String> = disks.map(line).collect();
    for line in lines {
        world.tasks.log(id, line);
    }
}

pub(super) fn finish(world: &mut World, snapshot: &Snapshotting) -> Result<(), String> {
    let (now_s, now_ms) = (world.wall_s(), world.now_ms);
    let genid = world.random.uuid();
    let vmid = snapshot.vmid();
    let node = world.guests.get(&vmid).map(|guest| guest.node.clone()).unwrap_or_default();
    let pid = world.nodes.get_mut(&node).map_or(1, crate::node::Node::pid);
    let Some(guest) = world.guests.change(vmid) else { return Ok(()) };
    guest.main.remove("lock");
    match snapshot {
        Snapshotting::Take { name, description, memory, .. } => take(guest, name, description.as_deref(), *memory, now_s),
        Snapshotting::Delete { name, .. } => delete(guest, name),
        Snapshotting::Rollback { name, start, .. } => {
            let restarts = *start || guest.snapshots.get(name).is_some_and(|values| values.contains_key("vmstate"));
            rollback(guest, name, &genid);
            guest.process = restarts.then(|| Process { pid, since_ms: now_ms, word: "running".to_owned() });
        }
    }
    Ok(())
}

fn take(guest: &mut Guest, name: &str, description: Option<&str>, memory: bool, now_s: u64) {
    let kept = |key: &String| !NOT_TAKEN.contains(&key.as_str()) && !is_unused_key(key);
    let mut values: Section = guest.main.iter().filter(|(key, _)| kept(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    values.insert("snaptime".to_owned(), now_s.to_string());
    values.extend(description.map(|text| ("description".to_owned(), text.to_owned())));
    values.extend(guest.main.get("parent").map(|parent| ("parent".to_owned(), parent.clone())));
    if memory && guest.is_running() {
        values.insert("vmstate".to_owned(), format!("local:{}/vm-{}-state-{name}.raw", guest.vmid, guest.vmid));
    }
    guest.snapshots.insert(name.to_owned(), values);
    guest.main.insert("parent".to_owned(), name.to_owned());
}

/// Whoever stood on the snapshot now stands on its parent.
fn delete(guest: &mut Guest, name: &str) {
    let parent = guest.snapshots.remove(name).and_then(|values| values.get("parent").cloned());
    let sections = guest.snapshots.values_mut().chain([&mut guest.main]);
    for section in sections.filter(|section| section.get("parent").map(String::as_str) == Some(name)) {
        match &parent {
            Some(parent) => section.insert("parent".to_owned(), parent.clone()),
            None => section.remove("parent"),
        };
    }
}

/// The configuration of that moment, with the notes and the disks set aside of today.
fn rollback(guest: &mut Guest, name: &str, genid: &str) {
    let Some(mut values) = guest.snapshots.get(name).cloned() else { return };
    values.retain(|key, _| !["snaptime", "description", "vmstate", "runningmachine", "runningcpu", "snapstate"].contains(&key.as_str()));
    let kept = guest.main.iter().filter(|(key, _)| *key == "description" || is_unused_key(key));
    values.extend(kept.map(|(key, value)| (key.clone(), value.clone())));
    values.insert("parent".to_owned(), name.to_owned());
    if values.contains_key("vmgenid") {
        values.insert("vmgenid".to_owned(), genid.to_owned());
    }
    guest.main = values;
    guest.pending.clear();
    guest.deletions.clear();
}
