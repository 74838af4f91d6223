//! The complete history of a world: each of its states, so that a claim can be compared with all of them.
//!
//! Must not depend on responses of the API; no client sees this truth.

use std::collections::{BTreeMap, BTreeSet};

use converger_lab::{GuestSummary, GuestTruth, World};

/// How long the cluster's list remembers the report of a node; nothing older needs to be recorded.
pub(crate) const REMEMBERED_MS: u64 = 300_000;

/// A report of pvestatd that proves that a guest is not paused is at most half a minute old, measured by two clocks with whole seconds.
const RECENT_MS: u64 = 32_000;

/// The state of the world at a moment, and from then on.
pub(crate) struct WorldMoment {
    pub(crate) quorate: bool,
    /// The nodes that the entry node can reach.
    pub(crate) online: BTreeSet<String>,
    /// All guests, including those that a fault has hidden.
    pub(crate) guests: BTreeMap<u32, GuestTruth>,
}

impl WorldMoment {
    fn capture(world: &World, entry: &str) -> Self {
        let online = world.node_names().filter(|node| world.can_reach(entry, node)).map(str::to_owned).collect();
        let guests = world.guest_truths().map(|truth| (truth.vmid, truth)).collect();
        Self { quorate: world.has_quorum(entry), online, guests }
    }

    /// Whether the guest is visible.
    pub(crate) fn has_guest(&self, vmid: u32) -> bool {
        self.guests.get(&vmid).is_some_and(|truth| !truth.hidden)
    }
}

/// The recorded states: before an observation only what nodes could have reported, during it everything.
#[derive(Default)]
pub(crate) struct TruthHistory {
    past: Vec<(u64, Vec<GuestSummary>)>,
    reading: Vec<WorldMoment>,
    began_ms: u64,
}

impl TruthHistory {
    pub(crate) fn record(&mut self, world: &World, entry: &str) {
        if !self.reading.is_empty() {
            self.reading.push(WorldMoment::capture(world, entry));
        }
        self.past.push((world.now_ms(), world.guest_summaries().collect()));
    }

    /// The observation begins. Everything recorded before is within the memory of the cluster's list.
    pub(crate) fn start_reading(&mut self, world: &World, entry: &str) {
        self.past.push((world.now_ms(), world.guest_summaries().collect()));
        self.began_ms = world.now_ms();
        self.reading.push(WorldMoment::capture(world, entry));
    }

    /// The moments of the observation.
    pub(crate) fn reading_moments(&self) -> &[WorldMoment] {
        &self.reading
    }

    /// The states of a guest at the moments of the observation at which it was visible.
    pub(crate) fn visible_states(&self, vmid: u32) -> impl Iterator<Item = &GuestTruth> {
        self.reading_moments().iter().filter_map(move |moment| moment.guests.get(&vmid)).filter(|truth| !truth.hidden)
    }

    /// Whether this was true of a guest at a moment of the observation.
    pub(crate) fn was_ever(&self, vmid: u32, so: impl Fn(&GuestTruth) -> bool) -> bool {
        self.visible_states(vmid).any(so)
    }

    /// Whether this was true of a guest at a moment that the cluster's list may remember. A node also reports hidden guests.
    pub(crate) fn was_ever_listed(&self, vmid: u32, so: impl Fn(&GuestSummary) -> bool) -> bool {
        self.past.iter().flat_map(|(_, glances)| glances).filter(|summary| summary.vmid == vmid).any(so)
    }

    /// Whether this was true of a guest at a moment that a recent report may be from: during the observation or shortly before.
    pub(crate) fn was_recently(&self, vmid: u32, so: impl Fn(&GuestSummary) -> bool) -> bool {
        let since_ms = self.began_ms.saturating_sub(RECENT_MS);
        // A recorded state lasted until the next one.
        let first = self.past.partition_point(|(at_ms, _)| *at_ms <= since_ms).saturating_sub(1);
        self.past[first..].iter().flat_map(|(_, glances)| glances).filter(|summary| summary.vmid == vmid).any(so)
    }
}
