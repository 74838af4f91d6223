//! The actual state of the world, for tests that compare claims with it. No API call returns this.
//!
//! Must not contain anything that depends on what a client can see.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::guest::{LabGuest, LabGuestKind};
use crate::world::World;

/// The actual state of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestTruth {
    /// The VMID.
    pub vmid: u32,
    /// Virtual machine or container.
    pub kind: LabGuestKind,
    /// The node that it is on.
    pub node: String,
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The state of its process; `None` if it is stopped.
    pub process: Option<String>,
    /// The process id.
    pub pid: Option<u32>,
    /// Keys in effect.
    pub config: Arc<BTreeMap<String, String>>,
    /// Pending keys, applied at the next start.
    pub pending: Arc<BTreeMap<String, String>>,
    /// Keys to be deleted at the next start.
    pub pending_delete: Vec<String>,
    /// Names of its snapshots.
    pub snapshots: Vec<String>,
    /// The digest of its config.
    pub digest: String,
    /// Its HA state.
    pub ha: Option<HaTruth>,
    /// A fault hides it from all clients.
    pub hidden: bool,
}

/// The HA state of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HaTruth {
    /// The requested state.
    pub wanted: String,
    /// The state that the manager reports; `None` before its first cycle.
    pub believed: Option<String>,
}

/// What a node broadcasts about a guest. Cheaper than [`GuestTruth`], for tests that keep many of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSummary {
    /// The VMID.
    pub vmid: u32,
    /// Its name, or the default derived from its VMID.
    pub name: String,
    /// The state of its process, or `stopped`.
    pub process_state: String,
    /// Whether it is a template.
    pub template: bool,
}

impl World {
    /// All guests as their nodes would broadcast them now, including hidden ones.
    pub fn guest_summaries(&self) -> impl Iterator<Item = GuestSummary> {
        self.guests.values().map(|guest| GuestSummary {
            vmid: guest.vmid,
            name: guest.display_name(),
            process_state: guest.process.as_ref().map_or("stopped", |process| process.qemu_state.as_str()).to_owned(),
            template: guest.is_template(),
        })
    }

    /// The actual state of all guests, including hidden ones.
    pub fn guest_truths(&self) -> impl Iterator<Item = GuestTruth> {
        self.guests.values().map(|guest| self.build_guest_truth(guest))
    }

    /// The actual state of one guest.
    #[must_use]
    pub fn guest_truth(&self, vmid: u32) -> Option<GuestTruth> {
        self.guests.get(&vmid).map(|guest| self.build_guest_truth(guest))
    }

    /// The digest of a guest's config, which is enough to detect a change.
    #[must_use]
    pub fn config_digest(&self, vmid: u32) -> Option<String> {
        self.guests.get(&vmid).map(|guest| self.guests.digest_of(guest))
    }

    /// Whether a node reaches more than half of the cluster's nodes.
    #[must_use]
    pub fn has_quorum(&self, node: &str) -> bool {
        self.is_quorate(node)
    }

    /// Whether one node reaches another.
    #[must_use]
    pub fn can_reach(&self, from: &str, to: &str) -> bool {
        self.is_reachable(from, to)
    }

    /// The tasks about a guest, oldest first: UPID, and whether it has ended.
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
