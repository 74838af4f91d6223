//! Who has seen everything: each state that a world passed through, so that a claim can be held against all of them.
//!
//! What never enters: answers of the API. This is the truth that no client is told.

use std::collections::{BTreeMap, BTreeSet};

use converger_lab::{Glance, Truth, World};

/// The cluster's list remembers what a node told for so long; nothing older has to be seen.
pub(crate) const REMEMBERED_MS: u64 = 300_000;

/// A report of pvestatd that shows that a guest is not paused is no older than half a minute, told by two clocks that count whole seconds.
const RECENT_MS: u64 = 32_000;

/// How things were at a moment, and from then on.
pub(crate) struct Moment {
    pub(crate) quorate: bool,
    /// The nodes that the entry node sees.
    pub(crate) online: BTreeSet<String>,
    /// Guests, also those that a fault has hidden from everybody.
    pub(crate) guests: BTreeMap<u32, Truth>,
}

impl Moment {
    fn of(world: &World, entry: &str) -> Self {
        let online = world.node_names().filter(|node| world.sees(entry, node)).map(str::to_owned).collect();
        let guests = world.truths().map(|truth| (truth.vmid, truth)).collect();
        Self { quorate: world.quorate(entry), online, guests }
    }

    /// Whether the guest is there for anybody to see.
    pub(crate) fn has(&self, vmid: u32) -> bool {
        self.guests.get(&vmid).is_some_and(|truth| !truth.hidden)
    }
}

/// What was seen: before a reading only what nodes could have told, during it everything.
#[derive(Default)]
pub(crate) struct Witness {
    past: Vec<(u64, Vec<Glance>)>,
    reading: Vec<Moment>,
    began_ms: u64,
}

impl Witness {
    pub(crate) fn see(&mut self, world: &World, entry: &str) {
        if !self.reading.is_empty() {
            self.reading.push(Moment::of(world, entry));
        }
        self.past.push((world.now_ms(), world.glances().collect()));
    }

    /// The reading begins. Whatever was seen before was seen within the memory of the cluster's list.
    pub(crate) fn begin(&mut self, world: &World, entry: &str) {
        self.past.push((world.now_ms(), world.glances().collect()));
        self.began_ms = world.now_ms();
        self.reading.push(Moment::of(world, entry));
    }

    /// The moments of the reading.
    pub(crate) fn reading(&self) -> &[Moment] {
        &self.reading
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
    pub(crate) fn was_told(&self, vmid: u32, so: impl Fn(&Glance) -> bool) -> bool {
        self.past.iter().flat_map(|(_, glances)| glances).filter(|glance| glance.vmid == vmid).any(so)
    }

    /// Whether a guest was so at a moment that a recent report of its node may be from: during the reading, or shortly before it.
    pub(crate) fn was_recently(&self, vmid: u32, so: impl Fn(&Glance) -> bool) -> bool {
        let since_ms = self.began_ms.saturating_sub(RECENT_MS);
        // What was seen at a moment was so until the next one.
        let first = self.past.partition_point(|(at_ms, _)| *at_ms <= since_ms).saturating_sub(1);
        self.past[first..].iter().flat_map(|(_, glances)| glances).filter(|glance| glance.vmid == vmid).any(so)
    }
}
