//! What is really so, for tests that hold a claim against it. No API gives this away.
//!
//! What never enters here: anything that a caller could see and this world does not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::guest::{LabGuest, LabGuestKind};
use crate::world::World;

/// A guest as it really is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestTruth {
    /// Its number.
    pub vmid: u32,
    /// Virtual machine or container.
    pub kind: LabGuestKind,
    /// The node that it is on.
    pub node: String,
    /// Its name, where it has one.
    pub name: Option<String>,
    /// The word of its process; `None`: it is stopped.
    pub process: Option<String>,
    /// The id of its process.
    pub pid: Option<u32>,
    /// Keys in effect.
    pub config: Arc<BTreeMap<String, String>>,
    /// Keys that wait for the next start.
    pub pending: Arc<BTreeMap<String, String>>,
    /// Keys that go at the next start.
    pub pending_delete: Vec<String>,
    /// Names of its snapshots.
    pub snapshots: Vec<String>,
    /// The digest of its config.
    pub digest: String,
    /// What high availability has of it.
    pub ha: Option<HaTruth>,
    /// A fault has hidden it from everybody.
    pub hidden: bool,
}

/// A guest under high availability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaTruth {
    /// What is wanted of it.
    pub wanted: String,
    /// What the manager believes; nothing until it has looked.
    pub believed: Option<String>,
}

/// What a node tells the others about a guest: cheaper than the whole truth, for tests that remember much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSummary {
    /// Its number.
    pub vmid: u32,
    /// Its name, or the one made of its number.
    pub name: String,
    /// The word of its process, or `stopped`.
    pub process_state: String,
    /// Whether it is a template.
    pub template: bool,
}

impl World {
    /// Every guest as its node would tell of it now, hidden ones too.
    pub fn guest_summaries(&self) -> impl Iterator<Item = GuestSummary> {
        self.guests.values().map(|guest| GuestSummary {
            vmid: guest.vmid,
            name: guest.display_name(),
            process_state: guest.process.as_ref().map_or("stopped", |process| process.qemu_state.as_str()).to_owned(),
            template: guest.is_template(),
        })
    }

    /// Every guest as it really is, hidden ones too.
    pub fn guest_truths(&self) -> impl Iterator<Item = GuestTruth> {
        self.guests.values().map(|guest| self.build_guest_truth(guest))
    }

    /// One guest as it really is.
    #[must_use]
    pub fn guest_truth(&self, vmid: u32) -> Option<GuestTruth> {
        self.guests.get(&vmid).map(|guest| self.build_guest_truth(guest))
    }

    /// The digest of a guest's config: all that is needed to see whether it changed.
    #[must_use]
    pub fn config_digest(&self, vmid: u32) -> Option<String> {
        self.guests.get(&vmid).map(|guest| self.guests.digest_of(guest))
    }

    /// Whether the nodes that this one reaches are more than half of the cluster.
    #[must_use]
    pub fn has_quorum(&self, node: &str) -> bool {
        self.is_quorate(node)
    }

    /// Whether one node sees another.
    #[must_use]
    pub fn can_reach(&self, from: &str, to: &str) -> bool {
        self.is_reachable(from, to)
    }

    /// The tasks about a guest, oldest first: each with its id, and whether it is over.
    pub fn tasks_for_guest(&self, vmid: u32) -> impl Iterator<Item = (&str, bool)> {
        let about = vmid.to_string();
        self.tasks.all.values().filter(move |task| task.about == about).map(|task| (task.upid.as_str(), task.is_over()))
    }

    fn build_guest_truth(&self, guest: &LabGuest) -> GuestTruth {
        let (config, pending) = self.guests.sections_of(guest);
        GuestTruth {
            vmid: guest.vmid,
            kind: guest.kind,
            node: guest.node.clone(),
            name: guest.get(guest.kind.name_key()).map(str::to_owned),
            process: guest.process.as_ref().map(|process| process.qemu_state.clone()),
            pid: guest.process.as_ref().map(|process| process.pid),
            config,
            pending,
            pending_delete: guest.deletions.keys().cloned().collect(),
            snapshots: guest.snapshots.keys().cloned().collect(),
            digest: self.guests.digest_of(guest),
            ha: self.ha.find_for_guest(guest).map(|own| HaTruth { wanted: own.state.clone(), believed: own.believed.clone() }),
            hidden: self.hidden.contains(&guest.vmid),
        }
    }
}
