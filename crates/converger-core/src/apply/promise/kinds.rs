//! What each change promises that can be asked for by name, in the words of the core, and whether one reading keeps it. What a plan can ask
//! for too is judged as the engine judges it; the other verbs have promises of their own.
//!
//! An adapter reads and says in these words what it saw; whether that is what was promised is decided here and nowhere else. Some
//! changes end in a state in which the guest may have been before (a reboot, a second snapshot of one name): what they promise
//! depends on what was read before, and where reading cannot tell, nothing is claimed.
//!
//! What never enters: which requests a reading takes.

use super::super::env_request::{EnvFault, LiveConfig, LiveStatus};
use super::super::outcome::Evidence;
use super::{PostChangeReading, PromiseCheck, check_change, check_run_state};
use crate::action::Change;
use crate::guest::{GuestKind, GuestName, NodeName, RunState};
use crate::observe::ObservedStatus;

/// What must hold once a change is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promise {
    /// What a change promises that a plan can ask for.
    Planned {
        /// The kind of guest, whose table of fields counts.
        kind: GuestKind,
        /// The change.
        change: Change,
        /// The guest's uptime before, where that tells.
        uptime_before_secs: Option<u64>,
    },
    /// It has this snapshot, and not the one of the same name that was there before, made then.
    HasSnapshot {
        /// The name.
        name: Box<str>,
        /// When the one before was made, if there was one.
        old: Option<Option<u64>>,
    },
    /// It has no snapshot of this name.
    HasNoSnapshot(Box<str>),
    /// The guest goes on from this snapshot.
    AtSnapshot(Box<str>),
    /// There is a guest of this name, and nobody is still at work on it.
    Exists(GuestName),
    /// The guest is on this node, and runs there or is stopped as it was: one that arrives without its life was not moved well.
    OnNode {
        /// The node.
        node: NodeName,
        /// How it is there.
        state: RunState,
    },
    /// The disk has at least this size.
    DiskGrown {
        /// In KiB.
        kib: u64,
    },
    /// No node of the cluster has it.
    Gone,
    /// It may be kept, but no reading can show it, for this reason.
    Unprovable(&'static str),
}

/// What was read to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromiseReading {
    /// The run-state, from the guest's own node.
    Live(LiveStatus),
    /// The config.
    Config(Box<LiveConfig>),
    /// The snapshots.
    Snapshots(SnapshotList),
    /// The size of the disk in KiB; `None`: there is no such disk.
    Disk(Option<u64>),
    /// The guest is on this node.
    OnNode(NodeName),
    /// The guest is on this node, and so it is there.
    OnNodeWithStatus(NodeName, LiveStatus),
    /// It was proven that no node has the guest (G2).
    Absent,
    /// The node that was asked says that it has no such guest. That is no proof that nobody has it.
    GuestNotFound(EnvFault),
    /// It could not be read. Nothing is known by it.
    Unreadable(EnvFault),
}

/// The snapshots of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotList {
    /// All of them.
    pub list: Box<[ObservedSnapshot]>,
    /// The one that the guest was last made from or rolled back to.
    pub current: Option<Box<str>>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSnapshot {
    /// Its name.
    pub name: Box<str>,
    /// What is being done with it, or was left half done.
    pub state: Option<Box<str>>,
    /// When it was made, seconds since 1970.
    pub made_at: Option<u64>,
}

impl SnapshotList {
    fn find(&self, name: &str) -> Option<&ObservedSnapshot> {
        self.list.iter().find(|snapshot| &*snapshot.name == name)
    }
}

impl Promise {
    /// What a change promises that leads to a state of its own, whatever was before it.
    #[must_use]
    pub fn for_change(kind: GuestKind, change: Change) -> Self {
        Self::Planned { kind, change, uptime_before_secs: None }
    }

    /// What a restart promises where this was read before it.
    #[must_use]
    pub fn for_reboot(kind: GuestKind, change: Change, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::Live(live) if live.status == ObservedStatus::Known(RunState::Running) => {
                Self::Planned { kind, change, uptime_before_secs: live.uptime_secs }
            }
            PromiseReading::Live(_) => Self::Unprovable("it did not run before, so that its uptime shows nothing"),
            _ => Self::Unprovable("its uptime was not read before"),
        }
    }

    /// What a new snapshot of this name promises where this was read before it.
    #[must_use]
    pub fn for_snapshot(name: &str, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::Snapshots(snapshots) => {
                Self::HasSnapshot { name: name.into(), old: snapshots.find(name).map(|snapshot| snapshot.made_at) }
            }
            _ => Self::Unprovable("its snapshots were not read before"),
        }
    }

    /// What going back to a snapshot promises where this was read before it.
    #[must_use]
    pub fn for_rollback(name: &str, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::Snapshots(snapshots) if snapshots.current.as_deref() == Some(name) => {
                Self::Unprovable("it went on from this snapshot before, so that it looks the same afterwards")
            }
            PromiseReading::Snapshots(_) => Self::AtSnapshot(name.into()),
            _ => Self::Unprovable("its snapshots were not read before"),
        }
    }

    /// What a copy under this name promises where this was read of its id before it.
    #[must_use]
    pub fn for_copy(name: &GuestName, before: &PromiseReading) -> Self {
        match before {
            PromiseReading::GuestNotFound(_) => Self::Exists(name.clone()),
            PromiseReading::Config(_) => Self::Unprovable("the id of the copy was taken before"),
            _ => Self::Unprovable("whether the id of the copy was free was not read before"),
        }
    }

    /// Whether what was read afterwards keeps it; at least so many seconds have gone by since what was read before.
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

/// A snapshot that is still being made, or that was left half made, is none.
fn check_snapshot(found: Option<&ObservedSnapshot>, old: Option<Option<u64>>) -> PromiseCheck {
    match found {
        None => PromiseCheck::NotKept(single_fact("snapshot", "absent")),
        Some(ObservedSnapshot { state: Some(state), .. }) => PromiseCheck::NotKept(single_fact("snapshot_state", state)),
        Some(snapshot) if old == Some(snapshot.made_at) => PromiseCheck::NotKept(single_fact("snapshot", "the one that was there before")),
        Some(snapshot) => PromiseCheck::Kept(single_fact("snapshot", &snapshot.name)),
    }
}

fn check_at_snapshot(name: &str, found: Option<&str>) -> PromiseCheck {
    let evidence = single_fact("snapshot", found.unwrap_or("none"));
    if found == Some(name) { PromiseCheck::Kept(evidence) } else { PromiseCheck::NotKept(evidence) }
}

/// While it is being copied, the copy has a lock.
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

    /// A guest that is on its new node and lost its life on the way was not moved as promised.
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
