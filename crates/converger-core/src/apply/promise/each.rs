//! What each change promises that can be asked for by name, in the words of the core, and whether one reading keeps it. What a plan can ask
//! for too is judged as the engine judges it; the other verbs have promises of their own.
//!
//! An adapter reads and says in these words what it saw; whether that is what was promised is decided here and nowhere else. Some
//! changes end in a state in which the guest may have been before (a reboot, a second snapshot of one name): what they promise
//! depends on what was read before, and where reading cannot tell, nothing is claimed.
//!
//! What never enters: which requests a reading takes.

use super::super::ask::{Cause, ConfigRead, Live};
use super::super::outcome::Evidence;
use super::{After, Kept, of_change, runs_as};
use crate::action::Change;
use crate::guest::{GuestName, Kind, NodeName, RunState};
use crate::observe::Status;

/// What must hold once a change is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Promise {
    /// What a change promises that a plan can ask for.
    Planned {
        /// The kind of guest, whose table of fields counts.
        kind: Kind,
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
    IsAt(Box<str>),
    /// There is a guest of this name, and nobody is still at work on it.
    IsThere(GuestName),
    /// The guest is on this node, and runs there or is stopped as it was: one that arrives without its life was not moved well.
    IsOn {
        /// The node.
        node: NodeName,
        /// How it is there.
        state: RunState,
    },
    /// The disk has at least this size.
    HasGrown {
        /// In KiB.
        kib: u64,
    },
    /// No node of the cluster has it.
    IsGone,
    /// It may be kept, but no reading can show it, for this reason.
    CannotBeShown(&'static str),
}

/// What was read to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// The run-state, from the guest's own node.
    Live(Live),
    /// The config.
    Config(Box<ConfigRead>),
    /// The snapshots.
    Snapshots(Snapshots),
    /// The size of the disk in KiB; `None`: there is no such disk.
    Disk(Option<u64>),
    /// The guest is on this node.
    There(NodeName),
    /// The guest is on this node, and so it is there.
    At(NodeName, Live),
    /// It was proven that no node has the guest (G2).
    Absent,
    /// The node that was asked says that it has no such guest. That is no proof that nobody has it.
    NotThere(Cause),
    /// It could not be read. Nothing is known by it.
    Unread(Cause),
}

/// The snapshots of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshots {
    /// All of them.
    pub list: Box<[Snapshot]>,
    /// The one that the guest was last made from or rolled back to.
    pub at: Option<Box<str>>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: Box<str>,
    /// What is being done with it, or was left half done.
    pub state: Option<Box<str>>,
    /// When it was made, seconds since 1970.
    pub made_at: Option<u64>,
}

impl Snapshots {
    fn find(&self, name: &str) -> Option<&Snapshot> {
        self.list.iter().find(|snapshot| &*snapshot.name == name)
    }
}

impl Promise {
    /// What a change promises that leads to a state of its own, whatever was before it.
    #[must_use]
    pub fn of_change(kind: Kind, change: Change) -> Self {
        Self::Planned { kind, change, uptime_before_secs: None }
    }

    /// What a restart promises where this was read before it.
    #[must_use]
    pub fn of_reboot(kind: Kind, change: Change, before: &Reading) -> Self {
        match before {
            Reading::Live(live) if live.status == Status::Known(RunState::Running) => {
                Self::Planned { kind, change, uptime_before_secs: live.uptime_secs }
            }
            Reading::Live(_) => Self::CannotBeShown("it did not run before, so that its uptime shows nothing"),
            _ => Self::CannotBeShown("its uptime was not read before"),
        }
    }

    /// What a new snapshot of this name promises where this was read before it.
    #[must_use]
    pub fn of_snapshot(name: &str, before: &Reading) -> Self {
        match before {
            Reading::Snapshots(snapshots) => {
                Self::HasSnapshot { name: name.into(), old: snapshots.find(name).map(|snapshot| snapshot.made_at) }
            }
            _ => Self::CannotBeShown("its snapshots were not read before"),
        }
    }

    /// What going back to a snapshot promises where this was read before it.
    #[must_use]
    pub fn of_rollback(name: &str, before: &Reading) -> Self {
        match before {
            Reading::Snapshots(snapshots) if snapshots.at.as_deref() == Some(name) => {
                Self::CannotBeShown("it went on from this snapshot before, so that it looks the same afterwards")
            }
            Reading::Snapshots(_) => Self::IsAt(name.into()),
            _ => Self::CannotBeShown("its snapshots were not read before"),
        }
    }

    /// What a copy under this name promises where this was read of its id before it.
    #[must_use]
    pub fn of_copy(name: &GuestName, before: &Reading) -> Self {
        match before {
            Reading::NotThere(_) => Self::IsThere(name.clone()),
            Reading::Config(_) => Self::CannotBeShown("the id of the copy was taken before"),
            _ => Self::CannotBeShown("whether the id of the copy was free was not read before"),
        }
    }

    /// Whether what was read afterwards keeps it; at least so many seconds have gone by since what was read before.
    #[must_use]
    pub fn kept(&self, after: &Reading, passed_secs: u64) -> Kept {
        match (self, after) {
            (Self::CannotBeShown(reason), _) => Kept::Unclear(Evidence::default().with("unclear", *reason)),
            (Self::IsThere(_) | Self::IsOn { .. }, Reading::NotThere(cause)) => Kept::No(cause.onto(Evidence::default())),
            (_, Reading::NotThere(cause) | Reading::Unread(cause)) => Kept::Unclear(cause.onto(Evidence::default())),
            (Self::IsOn { node, state }, Reading::At(found, live)) if node == found => {
                Kept::Yes(seen("node", found.as_str())).and(|| runs_as(live, Some(*state)))
            }
            (Self::IsOn { .. }, Reading::At(found, _)) | (Self::IsGone, Reading::There(found)) => Kept::No(seen("node", found.as_str())),
            (Self::IsGone, Reading::Absent) => Kept::Yes(seen("absent", "no node has it")),
            (Self::Planned { kind, change, uptime_before_secs }, Reading::Live(live)) => {
                let uptime_before_secs = *uptime_before_secs;
                of_change(*kind, change, After { live: Some(live), uptime_before_secs, passed_secs, ..After::default() })
            }
            (Self::Planned { kind, change, .. }, Reading::Config(config)) => {
                of_change(*kind, change, After { config: Some(config), ..After::default() })
            }
            (Self::HasSnapshot { name, old }, Reading::Snapshots(snapshots)) => has_snapshot(snapshots.find(name), *old),
            (Self::HasNoSnapshot(name), Reading::Snapshots(snapshots)) => match snapshots.find(name) {
                Some(_) => Kept::No(seen("snapshot", name)),
                None => Kept::Yes(seen("snapshot", "absent")),
            },
            (Self::IsAt(name), Reading::Snapshots(snapshots)) => is_at(name, snapshots.at.as_deref()),
            (Self::IsThere(name), Reading::Config(config)) => is_there(name, config),
            (Self::HasGrown { kib }, Reading::Disk(found)) => has_grown(*kib, *found),
            _ => Kept::Unclear(seen("unclear", "what was read says nothing about it")),
        }
    }
}

fn seen(key: &str, what: &str) -> Evidence {
    Evidence::default().with(key, what)
}

/// A snapshot that is still being made, or that was left half made, is none.
fn has_snapshot(found: Option<&Snapshot>, old: Option<Option<u64>>) -> Kept {
    match found {
        None => Kept::No(seen("snapshot", "absent")),
        Some(Snapshot { state: Some(state), .. }) => Kept::No(seen("snapshot_state", state)),
        Some(snapshot) if old == Some(snapshot.made_at) => Kept::No(seen("snapshot", "the one that was there before")),
        Some(snapshot) => Kept::Yes(seen("snapshot", &snapshot.name)),
    }
}

fn is_at(name: &str, found: Option<&str>) -> Kept {
    let evidence = seen("snapshot", found.unwrap_or("none"));
    if found == Some(name) { Kept::Yes(evidence) } else { Kept::No(evidence) }
}

/// While it is being copied, the copy has a lock.
fn is_there(name: &GuestName, config: &ConfigRead) -> Kept {
    match &config.lock {
        Some(lock) => Kept::No(seen("lock", lock)),
        None if name.as_str() == &*config.name => Kept::Yes(seen("name", &config.name)),
        None => Kept::No(seen("name", &config.name)),
    }
}

fn has_grown(kib: u64, found: Option<u64>) -> Kept {
    match found {
        Some(found) if found >= kib => Kept::Yes(Evidence::default().with("kib", found)),
        Some(found) => Kept::No(Evidence::default().with("kib", found)),
        None => Kept::No(seen("disk", "absent")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest that is on its new node and lost its life on the way was not moved as promised.
    #[test]
    fn a_guest_that_arrives_in_another_state_was_not_moved_as_promised() {
        let node = |name: &str| NodeName::new(name).expect("a name");
        let live = |state| Live { status: Status::Known(state), word: "its word".into(), lock: None, ha: None, uptime_secs: None };
        let at = |name: &str, state: RunState| Reading::At(node(name), live(state));
        for (wanted, other) in [(RunState::Running, RunState::Stopped), (RunState::Stopped, RunState::Running)] {
            let promise = Promise::IsOn { node: node("pve3"), state: wanted };
            assert!(matches!(promise.kept(&at("pve3", wanted), 0), Kept::Yes(_)), "{wanted:?}");
            assert!(matches!(promise.kept(&at("pve3", other), 0), Kept::No(_)), "{wanted:?}");
            assert!(matches!(promise.kept(&at("pve1", wanted), 0), Kept::No(_)), "{wanted:?}");
        }
    }
}
