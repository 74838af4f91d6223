//! Promises of the changes beyond config and run-state, and what a reading proves about them.

use super::{PostChangeReading, PromiseCheck, check_run_state};
use crate::action::{DiskGrowth, ExistingSnapshot, GuestClone, Migration, MigrationMode, NewSnapshot, SnapshotRollback};
use crate::apply::birth::with_marks;
use crate::apply::env_request::LiveConfig;
use crate::apply::outcome::Evidence;
use crate::guest::{GuestIdentity, NodeName, RunState};
use crate::observe::SnapshotTree;

fn fact(key: &str, text: &str) -> Evidence {
    Evidence::default().with(key, text)
}

/// The snapshot exists, is finished, and has memory if it was to have it. Before the change was sent, no snapshot had this name.
pub(super) fn check_new_snapshot(new: &NewSnapshot, tree: &SnapshotTree) -> PromiseCheck {
    match tree.find(new.name.as_str()) {
        None => PromiseCheck::NotKept(fact("snapshot", "absent")),
        Some(found) => {
            let seen = fact("snapshot", &found.name);
            let seen = found.made_at.into_iter().fold(seen, |seen, secs| seen.with("made_at", secs));
            match found.state.as_deref() {
                Some(state) => PromiseCheck::NotKept(seen.with("snapshot_state", state)),
                None if found.ram != new.ram => PromiseCheck::NotKept(seen.with("ram", if found.ram { "saved" } else { "not saved" })),
                None => PromiseCheck::Kept(seen),
            }
        }
    }
}

/// The snapshot is gone. Another one with the same name has another time.
pub(super) fn check_snapshot_deleted(snapshot: &ExistingSnapshot, tree: &SnapshotTree) -> PromiseCheck {
    match tree.find(snapshot.name.as_str()) {
        None => PromiseCheck::Kept(fact("snapshot", "absent")),
        Some(found) if found.state.is_none() && found.made_at.is_some_and(|made_at| made_at != snapshot.made_at) => {
            PromiseCheck::Kept(fact("snapshot", "another one has its name"))
        }
        Some(found) => {
            let seen = fact("snapshot", &found.name);
            PromiseCheck::NotKept(found.state.iter().fold(seen, |seen, state| seen.with("snapshot_state", &**state)))
        }
    }
}

/// The guest continues from the snapshot, in the run-state of the snapshot. If it continued from the same snapshot before, only the end of
/// the task shows that it was rolled back.
pub(super) fn check_rollback(rollback: &SnapshotRollback, tree: &SnapshotTree, after: PostChangeReading<'_>) -> PromiseCheck {
    let Some(live) = after.live else { return PromiseCheck::Unclear(fact("unread", "run_state")) };
    let name = rollback.snapshot.name.as_str();
    let seen = fact("snapshot", tree.current.as_deref().unwrap_or("none"));
    if tree.current.as_deref() != Some(name) {
        return PromiseCheck::NotKept(seen);
    }
    if !is_rollback_shown(rollback) && after.task.is_none_or(|task| task.is_failed) {
        return PromiseCheck::Unclear(seen.with("missing", "a task that rolled it back"));
    }
    PromiseCheck::Kept(seen).and_then(|| check_run_state(live, Some(rollback.state)))
}

/// Whether a reading shows a rollback: the guest continued from another snapshot before.
pub(super) fn is_rollback_shown(rollback: &SnapshotRollback) -> bool {
    rollback.parent.as_deref() != Some(rollback.snapshot.name.as_str())
}

/// The disk has at least the new size, and is still the same volume.
pub(super) fn check_growth(growth: &DiskGrowth, config: &LiveConfig) -> PromiseCheck {
    let Some(disk) = config.disks.iter().find(|disk| disk.key == growth.disk) else {
        return PromiseCheck::NotKept(fact("disk", "absent"));
    };
    if growth.volume.as_ref().is_some_and(|volume| *volume != disk.volume) {
        return PromiseCheck::NotKept(fact("volume", &disk.volume));
    }
    match disk.size {
        None => PromiseCheck::Unclear(fact("unread", "size")),
        Some(size) if size >= growth.after => PromiseCheck::Kept(fact("size", &size.to_string())),
        Some(size) => PromiseCheck::NotKept(fact("size", &size.to_string())),
    }
}

/// The guest is on the other node, in the run-state that the mode keeps.
pub(super) fn check_migration(migration: &Migration, node: &NodeName, after: PostChangeReading<'_>) -> PromiseCheck {
    let Some(live) = after.live else { return PromiseCheck::Unclear(fact("unread", "run_state")) };
    let seen = fact("node", node.as_str());
    if *node != migration.to {
        return PromiseCheck::NotKept(seen);
    }
    // It is locked until it has arrived.
    if let Some(lock) = &live.lock {
        return PromiseCheck::NotKept(seen.with("lock", &**lock));
    }
    let state = match migration.mode {
        MigrationMode::Online | MigrationMode::Restart => RunState::Running,
        MigrationMode::Offline => RunState::Stopped,
    };
    PromiseCheck::Kept(seen).and_then(|| check_run_state(live, Some(state)))
}

/// The new guest exists, is complete, and has the name and birth marks of its own. Its marks are the evidence that later steps rely on.
pub(super) fn check_clone(clone: &GuestClone, config: &LiveConfig) -> PromiseCheck {
    let seen = with_marks(fact("name", &config.name), &config.identity);
    // A clone is locked until it is complete, and stays locked if its task was killed.
    if let Some(lock) = &config.lock {
        return PromiseCheck::NotKept(seen.with("lock", &**lock));
    }
    if clone.name.as_str() != &*config.name || config.template || config.identity == clone.source.identity {
        return PromiseCheck::NotKept(seen);
    }
    if !has_creation_time_of(&clone.source.identity, &config.identity) {
        return PromiseCheck::NotKept(seen.with("creation_time", "not that of the source"));
    }
    PromiseCheck::Kept(seen)
}

/// Whether a guest has the creation time of this source. Proxmox copies it to clones, so a guest with another one took the id.
fn has_creation_time_of(source: &GuestIdentity, found: &GuestIdentity) -> bool {
    match (source, found) {
        (GuestIdentity::Qemu { ctime: Some(copied), .. }, GuestIdentity::Qemu { ctime, .. }) => *ctime == Some(*copied),
        _ => true,
    }
}
