//! Who has seen everything: each state that a world passed through, so that a claim can be held against all of them.
//!
//! What never enters: answers of the API. This is the truth that no client is told.

use std::collections::{BTreeMap, BTreeSet};

use converger_lab::{GuestSummary, GuestTruth, World};

/// The cluster's list remembers what a node told for so long; nothing older has to be seen.
pub(crate) const REMEMBERED_MS: u64 = 300_000;

/// A report of pvestatd that shows that a guest is not paused is no older than half a minute, told by two clocks that count whole seconds.
const RECENT_MS: u64 = 32_000;

/// How things were at a moment, and from then on.
pub(crate) struct WorldMoment {
    pub(crate) quorate: bool,
    /// The nodes that the entry node sees.
    pub(crate) online: BTreeSet<String>,
    /// Guests, also those that a fault has hidden from everybody.
    pub(crate) guests: BTreeMap<u32, GuestTruth>,
}

impl WorldMoment {
    fn capture(world: &World, entry: &str) -> Self {
        let online = world.node_names().filter(|node| world.can_reach(entry, node)).map(str::to_owned).collect();
        let guests = world.guest_truths().map(|truth| (truth.vmid, truth)).collect();
        Self { quorate: world.has_quorum(entry), online, guests }
    }

    /// Whether the guest is there for anybody to see.
    pub(crate) fn has_guest(&self, vmid: u32) -> bool {
        self.guests.get(&vmid).is_some_and(|truth| !truth.hidden)
    }
}

/// What was seen: before a reading only what nodes could have told, during it everything.
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

    /// The reading begins. Whatever was seen before was seen within the memory of the cluster's list.
    pub(crate) fn start_reading(&mut self, world: &World, entry: &str) {
        self.past.push((world.now_ms(), world.guest_summaries().collect()));
        self.began_ms = world.now_ms();
        self.reading.push(WorldMoment::capture(world, entry));
    }

    /// The moments of the reading.
    pub(crate) fn reading_moments(&self) -> &[WorldMoment] {
        &self.reading
    }

    /// How a guest was at the moments of the reading at which it could be seen.
    pub(crate) fn visible_states(&self, vmid: u32) -> impl Iterator<Item = &GuestTruth> {
        self.reading_moments().iter().filter_map(move |moment| moment.guests.get(&vmid)).filter(|truth| !truth.hidden)
    }

    /// Whether a guest was so at a moment of the reading.
    pub(crate) fn was_ever(&self, vmid: u32, so: impl Fn(&GuestTruth) -> bool) -> bool {
        self.visible_states(vmid).any(so)
    }

    /// Whether a guest was so at a moment that the cluster's list may remember. A node also tells of guests that are hidden.
    pub(crate) fn was_ever_listed(&self, vmid: u32, so: impl Fn(&GuestSummary) -> bool) -> bool {
        self.past.iter().flat_map(|(_, glances)| glances).filter(|glance| glance.vmid == vmid).any(so)
    }

    /// Whether a guest was so at a moment that a recent report of its node may be from: during the reading, or shortly before it.
    pub(crate) fn was_recently(&self, vmid: u32, so: impl Fn(&GuestSummary) -> bool) -> bool {
        let since_ms = self.began_ms.saturating_sub(RECENT_MS);
        // What was seen at a moment was so until the next one.
        let first = self.past.partition_point(|(at_ms, _)| *at_ms <= since_ms).saturating_sub(1);
        self.past[first..].iter().flat_map(|(_, glances)| glances).filter(|glance| glance.vmid == vmid).any(so)
    }
}
