//! The promise of each change that can be requested by name, and whether one reading keeps it. Plannable changes are checked exactly as the
//! engine checks them; the other verbs have their own promises.
//!
//! An adapter reports what it read in these types; only this module decides whether that is what was promised. Some changes end in a state
//! that the guest may have had before (a reboot, a second snapshot with the same name). Their promises depend on a reading from before the
//! change, and nothing is claimed if the readings cannot show it.
//!
//! Must not decide which requests a reading takes.

use super::super::env_request::{EnvFault, LiveConfig, LiveStatus};
use super::super::outcome::Evidence;
use super::{PostChangeReading, PromiseCheck, check_change, check_run_state};
use crate::action::Change;
use crate::guest::{GuestKind, GuestName, NodeName, RunState};
use crate::observe::{GuestSnapshot, ObservedStatus, SnapshotTree};

/// What must hold once a change is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The promise of a plannable change.
    Planned {
        /// The kind of guest, which selects the table of fields.
        kind: GuestKind,
        /// The change.
        change: Change,
        /// The uptime of the guest before the change, if it helps.
        uptime_before_secs: Option<u64>,
    },
    /// The guest has this snapshot, and it is not the earlier one of the same name.
    HasSnapshot {
        /// The name.
        name: Box<str>,
        /// The creation time of the earlier snapshot, if there was one.
        old: Option<Option<u64>>,
    },
    /// The guest has no snapshot of this name.
    HasNoSnapshot(Box<str>),
    /// The guest continues from this snapshot.
    AtSnapshot(Box<str>),
    /// A guest of this name exists, and no task is still working on it.
    Exists(GuestName),
    /// The guest is on this node with the run-state that it had before. A running guest that arrives stopped was not migrated as promised.
    OnNode {
        /// The node.
        node: NodeName,
        /// Its run-state.
        state: RunState,
    },
    /// The disk has at least this size.
    DiskGrown {
        /// In KiB.
        kib: u64,
    },
    /// No node of the cluster has the guest.
    Gone,
    /// The promise may be kept, but no reading can show it, for this reason.
    Unprovable(&'static str),
}

/// A reading to check a promise against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseReading {
    /// The run-state, from the guest's own node.
    Live(LiveStatus),
    /// The config.
    Config(Box<LiveConfig>),
    /// The snapshots.
    Snapshots(SnapshotTree),
    /// The size of the disk in KiB; `None` if there is no such disk.
    Disk(Option<u64>),
    /// The guest is on this node.
    OnNode(NodeName),
    /// The guest is on this node with this status.
    OnNodeWithStatus(NodeName, LiveStatus),
    /// No node has the guest, which was proven (G2).
    Absent,
    /// The node says that it has no such guest. This does not prove that no other node has it.
    GuestNotFound(EnvFault),
    /// The read failed. It proves nothing.
    Unreadable(EnvFault),
}

impl Promise {
    /// The promise of a change whose result does not depend on the state before it.
    #[must_use]
    pub fn for_change(kind: GuestKind, change: Change) -> Self {
        Self::Planned { kind, change, uptime_before_secs: None }
    }

    /// The promise of a reboot, given this reading from before.
    #[must_use]
    pub fn for_reboot(kind: GuestKind, change: Change, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::Live(live) if live.status == ObservedStatus::Known(RunState::Running) => {
                Self::Planned { kind, change, uptime_before_secs: live.uptime_secs }
            }
            PromiseReading::Live(_) => Self::Unprovable("it did not run before, so its uptime shows nothing"),
            _ => Self::Unprovable("its uptime was not read before"),
        }
    }

    /// The promise of a new snapshot of this name, given this reading from before.
    #[must_use]
    pub fn for_snapshot(name: &str, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::Snapshots(snapshots) => {
                Self::HasSnapshot { name: name.into(), old: snapshots.find(name).map(|snapshot| snapshot.made_at) }
            }
            _ => Self::Unprovable("its snapshots were not read before"),
        }
    }

    /// The promise of a rollback, given this reading from before.
    #[must_use]
    pub fn for_rollback(name: &str, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::Snapshots(snapshots) if snapshots.current.as_deref() == Some(name) => {
                Self::Unprovable("it went on from this snapshot before, so it looks the same afterwards")
            }
            PromiseReading::Snapshots(_) => Self::AtSnapshot(name.into()),
            _ => Self::Unprovable("its snapshots were not read before"),
        }
    }

    /// The promise of a copy with this name, given this reading of its id from before.
    #[must_use]
    pub fn for_copy(name: &GuestName, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::GuestNotFound(_) => Self::Exists(name.clone()),
            PromiseReading::Config(_) => Self::Unprovable("the id of the copy was taken before"),
            _ => Self::Unprovable("whether the id of the copy was free was not read before"),
        }
    }

    /// Checks whether a reading after the change keeps the promise; `passed_secs` is a lower bound of the time since the reading before it.
    #[must_use]
    pub fn check(&self, after: &PromiseReading, passed_secs: u64) -> PromiseCheck {
        match (self, after) {
            (Self::Unprovable(reason), _) => PromiseCheck::Unclear(Evidence::default().with("unclear", *reason)),
            (Self::Exists(_) | Self::OnNode { .. }, PromiseReading::GuestNotFound(cause)) => {
                PromiseCheck::NotKept(cause.add_to_evidence(Evidence::default()))
            }
            (_, PromiseReading::GuestNotFound(cause) | PromiseReading::Unreadable(cause)) => {
                PromiseCheck::Unclear(cause.add_to_evidence(Evidence::default()))
            }
            (Self::OnNode { node, state }, PromiseReading::OnNodeWithStatus(found, live)) if node == found => {
                PromiseCheck::Kept(single_fact("node", found.as_str())).and_then(|| check_run_state(live, Some(*state)))
            }
            (Self::OnNode { .. }, PromiseReading::OnNodeWithStatus(found, _)) | (Self::Gone, PromiseReading::OnNode(found)) => {
                PromiseCheck::NotKept(single_fact("node", found.as_str()))
            }
            (Self::Gone, PromiseReading::Absent) => PromiseCheck::Kept(single_fact("absent", "no node has it")),
            (Self::Planned { kind, change, uptime_before_secs }, PromiseReading::Live(live)) => {
                let uptime_before_secs = *uptime_before_secs;
                check_change(
                    *kind,
                    change,
                    PostChangeReading { live: Some(live), uptime_before_secs, elapsed_secs: passed_secs, ..PostChangeReading::default() },
                )
            }
            (Self::Planned { kind, change, .. }, PromiseReading::Config(config)) => {
                check_change(*kind, change, PostChangeReading { config: Some(config), ..PostChangeReading::default() })
            }
            (Self::HasSnapshot { name, old }, PromiseReading::Snapshots(snapshots)) => check_snapshot(snapshots.find(name), *old),
            (Self::HasNoSnapshot(name), PromiseReading::Snapshots(snapshots)) => match snapshots.find(name) {
                Some(_) => PromiseCheck::NotKept(single_fact("snapshot", name)),
                None => PromiseCheck::Kept(single_fact("snapshot", "absent")),
            },
            (Self::AtSnapshot(name), PromiseReading::Snapshots(snapshots)) => check_at_snapshot(name, snapshots.current.as_deref()),
            (Self::Exists(name), PromiseReading::Config(config)) => check_exists(name, config),
            (Self::DiskGrown { kib }, PromiseReading::Disk(found)) => check_disk_grown(*kib, *found),
            _ => PromiseCheck::Unclear(single_fact("unclear", "what was read says nothing about it")),
        }
    }
}

fn single_fact(key: &str, what: &str) -> Evidence {
    Evidence::default().with(key, what)
}

/// A snapshot that is still being created, or was left unfinished, does not count.
fn check_snapshot(found: Option<&GuestSnapshot>, old: Option<Option<u64>>) -> PromiseCheck {
    match found {
        None => PromiseCheck::NotKept(single_fact("snapshot", "absent")),
        Some(GuestSnapshot { state: Some(state), .. }) => PromiseCheck::NotKept(single_fact("snapshot_state", state)),
        Some(snapshot) if old == Some(snapshot.made_at) => PromiseCheck::NotKept(single_fact("snapshot", "the one that was there before")),
        Some(snapshot) => PromiseCheck::Kept(single_fact("snapshot", &snapshot.name)),
    }
}

fn check_at_snapshot(name: &str, found: Option<&str>) -> PromiseCheck {
    let evidence = single_fact("snapshot", found.unwrap_or("none"));
    if found == Some(name) { PromiseCheck::Kept(evidence) } else { PromiseCheck::NotKept(evidence) }
}

/// A copy is locked until it is complete.
fn check_exists(name: &GuestName, config: &LiveConfig) -> PromiseCheck {
    match &config.lock {
        Some(lock) => PromiseCheck::NotKept(single_fact("lock", lock)),
        None if name.as_str() == &*config.name => PromiseCheck::Kept(single_fact("name", &config.name)),
        None => PromiseCheck::NotKept(single_fact("name", &config.name)),
    }
}

fn check_disk_grown(kib: u64, found: Option<u64>) -> PromiseCheck {
    match found {
        Some(found) if found >= kib => PromiseCheck::Kept(Evidence::default().with("kib", found)),
        Some(found) => PromiseCheck::NotKept(Evidence::default().with("kib", found)),
        None => PromiseCheck::NotKept(single_fact("disk", "absent")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that arrives on its new node in another run-state was not migrated as promised.
    #[test]
    fn migration_into_another_run_state_breaks_the_promise() {
        let node = |name: &str| NodeName::new(name).expect("a name");
        let live =
            |state| LiveStatus { status: ObservedStatus::Known(state), word: "its word".into(), lock: None, ha: None, uptime_secs: None };
        let at = |name: &str, state: RunState| PromiseReading::OnNodeWithStatus(node(name), live(state));
        for (wanted, other) in [(RunState::Running, RunState::Stopped), (RunState::Stopped, RunState::Running)] {
            let promise = Promise::OnNode { node: node("pve3"), state: wanted };
            assert!(matches!(promise.check(&at("pve3", wanted), 0), PromiseCheck::Kept(_)), "{wanted:?}");
            assert!(matches!(promise.check(&at("pve3", other), 0), PromiseCheck::NotKept(_)), "{wanted:?}");
            assert!(matches!(promise.check(&at("pve1", wanted), 0), PromiseCheck::NotKept(_)), "{wanted:?}");
        }
    }
}
