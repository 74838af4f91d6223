//! What is really so, for tests that hold a claim against it. No API gives this away.
//!
//! What never enters here: anything that a caller could see and this world does not know.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::guest::{Guest, Kind};
use crate::world::World;

/// A guest as it really is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Truth {
    /// Its number.
    pub vmid: u32,
    /// Virtual machine or container.
    pub kind: Kind,
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
    pub ha: Option<Managed>,
    /// A fault has hidden it from everybody.
    pub hidden: bool,
}

/// A guest under high availability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Managed {
    /// What is wanted of it.
    pub wanted: String,
    /// What the manager believes; nothing until it has looked.
    pub believed: Option<String>,
}

/// What a node tells the others about a guest: cheaper than the whole truth, for tests that remember much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Its number.
    pub vmid: u32,
    /// Its name, or the one made of its number.
    pub name: String,
    /// The word of its process, or `stopped`.
    pub word: String,
    /// Whether it is a template.
    pub template: bool,
}

impl World {
    /// Every guest as its node would tell of it now, hidden ones too.
    pub fn glances(&self) -> impl Iterator<Item = Glance> {
        self.guests.values().map(|guest| Glance {
            vmid: guest.vmid,
            name: guest.shown_name(),
            word: guest.process.as_ref().map_or("stopped", |process| process.word.as_str()).to_owned(),
            template: guest.is_template(),
        })
    }

    /// Every guest as it really is, hidden ones too.
    pub fn truths(&self) -> impl Iterator<Item = Truth> {
        self.guests.values().map(|guest| self.truth_of(guest))
    }

    /// One guest as it really is.
    #[must_use]
    pub fn truth(&self, vmid: u32) -> Option<Truth> {
        self.guests.get(&vmid).map(|guest| self.truth_of(guest))
    }

    /// The digest of a guest's config: all that is needed to see whether it changed.
    #[must_use]
    pub fn config_digest(&self, vmid: u32) -> Option<String> {
        self.guests.get(&vmid).map(|guest| self.guests.digest_of(guest))
    }

    /// Whether the nodes that this one reaches are more than half of the cluster.
    #[must_use]
    pub fn quorate(&self, node: &str) -> bool {
        self.is_quorate(node)
    }

    /// Whether one node sees another.
    #[must_use]
    pub fn sees(&self, from: &str, to: &str) -> bool {
        self.reaches(from, to)
    }

    /// The tasks about a guest, oldest first: each with its id, and whether it is over.
    pub fn tasks_about(&self, vmid: u32) -> impl Iterator<Item = (&str, bool)> {
        let about = vmid.to_string();
        self.tasks.all.values().filter(move |task| task.about == about).map(|task| (task.upid.as_str(), task.is_over()))
    }

    fn truth_of(&self, guest: &Guest) -> Truth {
        let (config, pending) = self.guests.sections_of(guest);
        Truth {
            vmid: guest.vmid,
            kind: guest.kind,
            node: guest.node.clone(),
            name: guest.get(guest.kind.name_key()).map(str::to_owned),
            process: guest.process.as_ref().map(|process| process.word.clone()),
            pid: guest.process.as_ref().map(|process| process.pid),
            config,
            pending,
            pending_delete: guest.deletions.keys().cloned().collect(),
            snapshots: guest.snapshots.keys().cloned().collect(),
            digest: self.guests.digest_of(guest),
            ha: self.ha.of(guest).map(|own| Managed { wanted: own.state.clone(), believed: own.believed.clone() }),
            hidden: self.hidden.contains(&guest.vmid),
        }
    }
}
