//! What must be read of which guest. Lists show run-state drift for any number of guests; only guests with managed config, pinned guests,
//! and guests that are about to change are read individually. Snapshots, replication, capacities and storages are read only for intents
//! that need them, each in a fixed number of requests.
//!
//! Must not depend on how anything is read (adapters).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::{ObservedGuest, ObservedNode, ObservedStatus};
use crate::desired::Desired;
use crate::guest::{GuestKind, NodeName, RunState, SnapshotName, Vmid};
use crate::normalize::Field;

/// The purpose of an observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReadSet {
    /// Inspection: all guests in scope are fully read, with what their configs contain. Snapshots, replication and nodes are not read.
    #[default]
    Everything,
    /// For an inventory: what the lists of the cluster and of its nodes show. No guest is read by itself, however many there are.
    Lists,
    /// Planning towards a desired state.
    Declared(BTreeMap<Vmid, GuestNeed>),
    /// The same, where some guests are made from templates if the lists lack them.
    DeclaredBirths(BirthNeeds),
    /// Planning of one intent.
    Intent(IntentNeeds),
}

/// What a desired state needs whose guests may have to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BirthNeeds {
    /// What is needed of declared guests.
    pub declared: BTreeMap<Vmid, GuestNeed>,
    /// What else is needed if a guest is not listed.
    pub births: Vec<BirthNeed>,
}

/// What is needed to make one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BirthNeed {
    /// The guest.
    pub vmid: Vmid,
    /// Its template.
    pub template: Vmid,
    /// What is needed of the template.
    pub need: GuestNeed,
    /// What is needed of nodes.
    pub nodes: NodeReads,
}

impl BirthNeeds {
    /// What is needed if only these guests are listed: templates are read only for guests that have to be made.
    fn for_listed(&self, listed: &BTreeSet<Vmid>) -> ReadSet {
        let births: Vec<&BirthNeed> = self.births.iter().filter(|birth| !listed.contains(&birth.vmid)).collect();
        if births.is_empty() {
            return ReadSet::Declared(self.declared.clone());
        }
        let mut needs = IntentNeeds { guests: self.declared.clone(), nodes: NodeReads::default() };
        for birth in births {
            let known = needs.guests.get(&birth.template);
            let need = known.map_or_else(|| birth.need.clone(), |known| known.combine(&birth.need));
            needs.guests.insert(birth.template, need);
            needs.nodes.add(&birth.nodes);
        }
        ReadSet::Intent(needs)
    }
}

impl NodeReads {
    fn add(&mut self, other: &Self) {
        self.storages.extend(other.storages.iter().cloned());
        match (&mut self.capacity, &other.capacity) {
            (CapacityOf::Nodes(own), CapacityOf::Nodes(more)) => own.extend(more.iter().cloned()),
            (CapacityOf::AllNodes, _) => {}
            (own, CapacityOf::AllNodes) => *own = CapacityOf::AllNodes,
        }
    }
}

impl GuestNeed {
    /// What both need of a guest. A template that is declared too keeps its declared kind and run-state.
    fn combine(&self, other: &Self) -> Self {
        let (own, more) = (self.extras.clone(), &other.extras);
        let extras = ExtraReads {
            snapshots: own.snapshots || more.snapshots,
            disks: own.disks || more.disks,
            replication: own.replication || more.replication,
            running_cpu_of: own.running_cpu_of.or_else(|| more.running_cpu_of.clone()),
            own_node_capacity: own.own_node_capacity || more.own_node_capacity,
            own_node_storages: own.own_node_storages || more.own_node_storages,
        };
        Self { kind: self.kind, state: self.state, config: self.config || other.config, tags: self.tags || other.tags, extras }
    }
}

/// What an intent needs of guests and of nodes.
///
/// A guest that must not exist yet, such as the target of a clone, belongs only in the scope of the observation: its absence is proven
/// like that of every guest in scope that is not listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntentNeeds {
    /// What is needed of which guest.
    pub guests: BTreeMap<Vmid, GuestNeed>,
    /// What is needed of nodes, whether or not a guest is on them.
    pub nodes: NodeReads,
}

/// What is needed of nodes that an intent names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReads {
    /// The nodes whose memory and CPUs are needed. One request per node.
    pub capacity: CapacityOf,
    /// The nodes whose storages are needed. One request per node.
    pub storages: BTreeSet<NodeName>,
}

/// Nodes whose memory and CPUs are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CapacityOf {
    /// These nodes.
    Nodes(BTreeSet<NodeName>),
    /// All nodes, such as for comparing CPU models.
    AllNodes,
}

impl Default for CapacityOf {
    fn default() -> Self {
        Self::Nodes(BTreeSet::new())
    }
}

/// What is declared of a guest, as far as it determines what to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestNeed {
    /// The declared kind.
    pub kind: GuestKind,
    /// The declared run-state.
    pub state: Option<RunState>,
    /// Whether config or birth marks are declared, which need the guest's own config.
    pub config: bool,
    /// Whether tags are declared, which need the datacenter's rule for letter case.
    pub tags: bool,
    /// What is needed beyond that.
    pub extras: ExtraReads,
}

/// What an intent needs of a guest beyond its row and config.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraReads {
    /// Its snapshots. One request for the guest, besides its config, which shows that the snapshots belong to it.
    pub snapshots: bool,
    /// Its disks, and what ties it to its node. They come with its config.
    pub disks: bool,
    /// Whether a replication job for it exists. One request for all guests.
    pub replication: bool,
    /// The snapshot whose CPU is needed: the one that the guest had when its memory was saved. One request if there is such a snapshot and
    /// it contains memory. Implies `snapshots`.
    pub running_cpu_of: Option<SnapshotName>,
    /// Memory and CPUs of the node that it is on. One request per node.
    pub own_node_capacity: bool,
    /// The storages of the node that it is on. One request per node.
    pub own_node_storages: bool,
}

impl ExtraReads {
    /// Whether the snapshots are needed.
    #[must_use]
    pub fn needs_snapshots(&self) -> bool {
        self.snapshots || self.running_cpu_of.is_some()
    }

    /// Whether the config is needed: for the disks, or to show whose snapshots they are.
    fn needs_config(&self) -> bool {
        self.disks || self.needs_snapshots()
    }
}

/// What is read of a guest beyond the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadDetail {
    /// Nothing.
    None,
    /// Its config with pending changes.
    Config,
    /// Its config and its run-state from its own node.
    ConfigAndStatus,
}

impl ReadSet {
    /// What planning towards this state needs.
    #[must_use]
    pub fn for_desired(desired: &Desired) -> Self {
        let guests = desired.guests().iter();
        Self::Declared(
            guests
                .map(|guest| {
                    let config = !guest.config.is_empty() || guest.identity.is_some();
                    let tags = guest.config.iter().any(|setting| setting.field == Field::Tags);
                    (guest.vmid, GuestNeed { kind: guest.kind, state: guest.state, config, tags, extras: ExtraReads::default() })
                })
                .collect(),
        )
    }

    /// What to read, given which guests the list has. They are only asked for where that matters.
    #[must_use]
    pub fn for_listed(&self, find_listed: impl FnOnce() -> BTreeSet<Vmid>) -> Cow<'_, Self> {
        match self {
            Self::DeclaredBirths(needs) => Cow::Owned(needs.for_listed(&find_listed())),
            Self::Everything | Self::Lists | Self::Declared(_) | Self::Intent(_) => Cow::Borrowed(self),
        }
    }

    /// Whether the datacenter's rule for letter case in tags is needed: if tags are declared, or if everything is read and a guest has
    /// tags.
    #[must_use]
    pub fn tag_case<'r>(&self, mut in_scope: impl Iterator<Item = &'r ObservedGuest>) -> bool {
        match self {
            Self::Declared(needs)
            | Self::DeclaredBirths(BirthNeeds { declared: needs, .. })
            | Self::Intent(IntentNeeds { guests: needs, .. }) => needs.values().any(|need| need.tags),
            Self::Lists => false,
            Self::Everything => in_scope.any(|row| row.tags.as_ref().into_option().is_some_and(|tags| !tags.is_empty())),
        }
    }

    /// What to read of a guest in scope, given its row in the list.
    #[must_use]
    pub fn detail(&self, row: &ObservedGuest) -> ReadDetail {
        if *self == Self::Everything {
            return ReadDetail::ConfigAndStatus;
        }
        let Some(need) = self.need_of(row) else { return ReadDetail::None };
        let needs_config = need.config || need.extras.needs_config();
        let is_as_declared = match (&row.status, need.state) {
            (ObservedStatus::Known(state), Some(wanted)) => *state == wanted,
            (ObservedStatus::Known(_), None) => true,
            // An unknown status is read only if the guest is read anyway.
            (ObservedStatus::Unknown(_), _) if needs_config => false,
            (ObservedStatus::Unknown(_), _) => return ReadDetail::None,
        };
        match (is_as_declared, needs_config) {
            (true, false) => ReadDetail::None,
            (true, true) => ReadDetail::Config,
            (false, _) => ReadDetail::ConfigAndStatus,
        }
    }

    /// What is needed of a guest. A guest of another kind is another guest, and nothing of it is needed.
    fn need_of(&self, row: &ObservedGuest) -> Option<&GuestNeed> {
        match self {
            Self::Everything | Self::Lists => None,
            Self::Declared(needs)
            | Self::DeclaredBirths(BirthNeeds { declared: needs, .. })
            | Self::Intent(IntentNeeds { guests: needs, .. }) => needs.get(&row.vmid).filter(|need| need.kind == row.kind),
        }
    }

    /// What to read of a guest in scope beyond its row and config.
    #[must_use]
    pub fn extras(&self, row: &ObservedGuest) -> Option<&ExtraReads> {
        self.need_of(row).map(|need| &need.extras)
    }

    /// Whether the disks of a guest are recorded, and what ties it to its node, when its config is read.
    #[must_use]
    pub fn needs_hardware(&self, row: &ObservedGuest) -> bool {
        *self == Self::Everything || self.extras(row).is_some_and(|extras| extras.disks)
    }

    /// The nodes whose capacity is needed, by their index: those that the intent names, and those of guests in scope.
    #[must_use]
    pub fn capacity_nodes<'r>(&self, nodes: &[ObservedNode], in_scope: impl Iterator<Item = &'r ObservedGuest>) -> BTreeSet<usize> {
        let own = in_scope.filter(|row| self.extras(row).is_some_and(|extras| extras.own_node_capacity)).map(|row| row.node);
        let is_named = |node: &ObservedNode| match self {
            Self::Intent(IntentNeeds { nodes: NodeReads { capacity: CapacityOf::Nodes(names), .. }, .. }) => names.contains(&node.name),
            Self::Intent(_) => true,
            Self::Everything | Self::Lists | Self::Declared(_) | Self::DeclaredBirths(_) => false,
        };
        own.chain(indices(nodes, is_named)).collect()
    }

    /// The nodes whose storages are needed, by their index: those that the intent names, and those of guests in scope.
    #[must_use]
    pub fn storage_nodes<'r>(&self, nodes: &[ObservedNode], in_scope: impl Iterator<Item = &'r ObservedGuest>) -> BTreeSet<usize> {
        let own = in_scope.filter(|row| self.extras(row).is_some_and(|extras| extras.own_node_storages)).map(|row| row.node);
        let is_named = |node: &ObservedNode| matches!(self, Self::Intent(needs) if needs.nodes.storages.contains(&node.name));
        own.chain(indices(nodes, is_named)).collect()
    }
}

fn indices<'n>(nodes: &'n [ObservedNode], is_needed: impl Fn(&ObservedNode) -> bool + 'n) -> impl Iterator<Item = usize> + 'n {
    nodes.iter().enumerate().filter(move |(_, node)| is_needed(node)).map(|(index, _)| index)
}
