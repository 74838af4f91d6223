//! Checks of the second objects of a requested change, right before it is sent: snapshots, disks, nodes, and the source of a clone.

use super::{IdState, PreSendReadings, differing_marks};
use crate::action::{Change, ClonedDisks, DiskGrowth, ExistingSnapshot, GuestClone};
use crate::guest::{GuestKind, RunState};
use crate::observe::{GuestDisk, ObservedStatus, SnapshotTree};
use crate::policy::HOLD_TAG;
use crate::refusal::Refusal;

/// Refuses if an object that the change was planned on is not as it was.
pub(super) fn check_second_objects(change: &Change, readings: PreSendReadings<'_>) -> Option<Refusal> {
    match change {
        Change::SnapshotCreate(new) => with_snapshots(readings, |tree| {
            let existing = tree.list.iter().find(|own| own.name.eq_ignore_ascii_case(new.name.as_str()));
            existing.map(|existing| Refusal::snapshot_exists(&existing.name, existing.made_at))
        }),
        Change::SnapshotDelete(snapshot) => with_snapshots(readings, |tree| check_existing(snapshot, tree)),
        Change::SnapshotRollback(rollback) => with_snapshots(readings, |tree| {
            let differs = (tree.current != rollback.parent).then(|| {
                let describe = |name: &Option<Box<str>>| name.as_deref().unwrap_or("none").to_owned();
                let text = format!("parent: planned {}, found {}", describe(&rollback.parent), describe(&tree.current));
                Refusal::plan_stale(vec![text])
            });
            check_existing(&rollback.snapshot, tree).or(differs)
        }),
        Change::DiskGrow(growth) => {
            let found = readings.config.disks.iter().find(|disk| disk.key == growth.disk);
            let Some(volume) = &growth.volume else { return check_new_disk(growth, found) };
            let describe = |volume: &str, size: Option<String>| format!("{volume} of {}", size.as_deref().unwrap_or("unknown size"));
            let planned = describe(volume, Some(growth.before.to_string()));
            let found = found.map_or_else(|| "none".to_owned(), |disk| describe(&disk.volume, disk.size.map(|size| size.to_string())));
            (planned != found).then(|| Refusal::plan_stale(vec![format!("{}: planned {planned}, found {found}", growth.disk.as_str())]))
        }
        Change::Migrate(migration) if readings.address.node != migration.from => {
            let (from, node) = (migration.from.as_str(), readings.address.node.as_str());
            Some(Refusal::plan_stale(vec![format!("node: planned {from}, found {node}")]))
        }
        _ => None,
    }
}

/// Refuses to grow a disk of a new guest that is absent. It may be larger than the disk of the source: storages round up.
fn check_new_disk(growth: &DiskGrowth, found: Option<&GuestDisk>) -> Option<Refusal> {
    let key = growth.disk.as_str();
    let found = match found {
        Some(disk) if disk.is_cdrom => "a CD-ROM drive",
        Some(disk) if disk.size.is_none() => "unknown size",
        Some(_) => return None,
        None => "none",
    };
    Some(Refusal::plan_stale(vec![format!("{key}: planned {}, found {found}", growth.before)]))
}

/// Refuses if the snapshots were not read, or any of them is unfinished.
fn with_snapshots(readings: PreSendReadings<'_>, check: impl FnOnce(&SnapshotTree) -> Option<Refusal>) -> Option<Refusal> {
    let Some(tree) = readings.snapshots else { return Some(Refusal::guard_unread(vec!["snapshots".to_owned()])) };
    let unfinished = tree.list.iter().find_map(|own| Some(Refusal::snapshot_unfinished(&own.name, own.state.as_deref()?)));
    unfinished.or_else(|| check(tree))
}

/// Refuses if the snapshot is gone, or another one has its name.
fn check_existing(snapshot: &ExistingSnapshot, tree: &SnapshotTree) -> Option<Refusal> {
    let name = snapshot.name.as_str();
    match tree.find(name) {
        None => {
            let existing = tree.list.iter().map(|own| own.name.to_string()).collect();
            Some(Refusal::snapshot_missing(name, existing))
        }
        Some(found) if found.made_at != Some(snapshot.made_at) || found.ram != snapshot.ram => {
            let time = |secs: Option<u64>| secs.map_or_else(|| "an unknown time".to_owned(), |secs| secs.to_string());
            let (then, now) = (time(Some(snapshot.made_at)), time(found.made_at));
            Some(Refusal::plan_stale(vec![format!("snapshot {name}: planned the one made at {then}, found one made at {now}")]))
        }
        Some(_) => None,
    }
}

/// Refuses if the source of a clone is not as it was planned on, or if the new id is not proven free.
pub(super) fn check_clone(clone: &GuestClone, readings: PreSendReadings<'_>) -> Option<Refusal> {
    let (source, config) = (&clone.source, readings.config);
    if source.name != config.name {
        return Some(Refusal::name_mismatch(&source.name, &config.name));
    }
    if source.identity != config.identity {
        return Some(Refusal::identity_mismatch(differing_marks(&source.identity, &config.identity)));
    }
    if let Some(lock) = config.lock.as_ref().or(readings.live.lock.as_ref()) {
        return Some(Refusal::guest_locked(lock));
    }
    if let Some(tag) = config.tags.iter().find(|tag| tag.eq_ignore_ascii_case(HOLD_TAG)) {
        return Some(Refusal::guest_held(tag));
    }
    if config.digest.as_deref() != Some(&*source.digest) || config.template != source.template {
        let found = config.digest.as_deref().unwrap_or("none");
        return Some(Refusal::plan_stale(vec![format!("source {}: planned config digest {}, found {found}", source.vmid, source.digest)]));
    }
    let is_running = readings.live.status == ObservedStatus::Known(RunState::Running);
    if source.kind == GuestKind::Lxc && clone.disks == ClonedDisks::Full && is_running {
        return Some(Refusal::run_state_unsuitable(RunState::Stopped, RunState::Running));
    }
    match readings.new_id {
        Some(IdState::Free) => None,
        Some(IdState::Taken) => Some(Refusal::id_taken(clone.vmid, None)),
        None => Some(Refusal::guard_unread(vec!["new id".to_owned()])),
    }
}
