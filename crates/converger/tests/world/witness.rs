//! Who has seen everything: each state that a world passed through, so that a claim can be held against all of them.
//!
//! What never enters: answers of the API. This is the truth that no client is told.

use std::collections::{BTreeMap, BTreeSet};

use converger_lab::{Truth, World};

/// The cluster's list remembers what a node told for so long.
pub(crate) const REMEMBERED_MS: u64 = 300_000;

/// How things were from then on.
pub(crate) struct Moment {
    pub(crate) at_ms: u64,
    pub(crate) quorate: bool,
    /// The nodes that the entry node sees.
    pub(crate) online: BTreeSet<String>,
    /// Guests, also those that a fault has hidden from everybody.
    pub(crate) guests: BTreeMap<u32, Truth>,
}

impl Moment {
    fn of(world: &World, entry: &str, at_ms: u64) -> Self {
        let online = world.node_names().filter(|node| world.sees(entry, node)).map(str::to_owned).collect();
        let guests = world.truths().map(|truth| (truth.vmid, truth)).collect();
        Self { at_ms, quorate: world.quorate(entry), online, guests }
    }

    /// Whether the guest is there for anybody to see.
    pub(crate) fn has(&self, vmid: u32) -> bool {
        self.guests.get(&vmid).is_some_and(|truth| !truth.hidden)
    }
}

/// All moments, in order, and where the reading among them begins.
#[derive(Default)]
pub(crate) struct Witness {
    moments: Vec<Moment>,
    begins: usize,
    begins_ms: u64,
}

impl Witness {
    pub(crate) fn see(&mut self, world: &World, entry: &str, at_ms: u64) {
        self.moments.push(Moment::of(world, entry, at_ms));
    }

    /// The reading begins: what was last seen still holds.
    pub(crate) fn begin(&mut self, world: &World, entry: &str, at_ms: u64) {
        self.see(world, entry, at_ms);
        self.begins = self.moments.len() - 1;
        self.begins_ms = at_ms;
    }

    /// The moments of the reading.
    pub(crate) fn reading(&self) -> &[Moment] {
        &self.moments[self.begins..]
    }

    /// The moments of the reading, and before it those that the cluster's list may still remember.
    fn remembered(&self) -> &[Moment] {
        let ended = |index: usize| self.moments.get(index + 1).map_or(u64::MAX, |next| next.at_ms);
        let first = (0..self.begins).find(|index| ended(*index) + REMEMBERED_MS > self.begins_ms);
        &self.moments[first.unwrap_or(self.begins)..]
    }

    /// How a guest was at the moments of the reading at which it could be seen.
    pub(crate) fn seen(&self, vmid: u32) -> impl Iterator<Item = &Truth> {
        self.reading().iter().filter_map(move |moment| moment.guests.get(&vmid)).filter(|truth| !truth.hidden)
    }

    /// Whether a guest was so at a moment of the reading.
    pub(crate) fn was(&self, vmid: u32, so: impl Fn(&Truth) -> bool) -> bool {
        self.seen(vmid).any(so)
    }

    /// Whether a guest was so at a moment that the cluster's list may remember. A node also tells of guests that are hidden.
    pub(crate) fn was_told(&self, vmid: u32, so: impl Fn(&Truth) -> bool) -> bool {
        self.remembered().iter().filter_map(|moment| moment.guests.get(&vmid)).any(so)
    }
}
