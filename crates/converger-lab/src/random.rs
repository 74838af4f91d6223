//! Seeded randomness, the only source of random values in the lab: the same seed gives the same
//! run.
//!
//! Must not use the entropy of the system.

/// A small generator (SplitMix64) for test data, not for secrets.
#[derive(Clone, Debug)]
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 if `limit` is 0.
    pub(crate) fn number_below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next_number() % limit }
    }

    /// True in `part` of `whole` cases.
    pub(crate) fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.number_below(whole) < part
    }

    pub(crate) fn pick_item<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let index = usize::try_from(self.number_below(items.len() as u64)).unwrap_or(0);
        items.get(index)
    }

    /// A random UUID, version 4.
    pub(crate) fn new_uuid(&mut self) -> String {
        let (high, low) = (self.next_number(), self.next_number());
        let time = (high & 0xffff_ffff_ffff_0fff) | 0x4000;
        let clock = (low & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        let (first, second, third) = (time >> 32, (time >> 16) & 0xffff, time & 0xffff);
        format!("{first:08x}-{second:04x}-{third:04x}-{:04x}-{:012x}", clock >> 48, clock & 0xffff_ffff_ffff)
    }

    /// A unicast MAC address with a prefix of three bytes.
    pub(crate) fn new_mac(&mut self, prefix: &str) -> String {
        let bytes = self.next_number();
        format!("{prefix}:{:02X}:{:02X}:{:02X}", bytes & 0xff, (bytes >> 8) & 0xff, (bytes >> 16) & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_values() {
        let values_for = |seed| {
            let mut random = SeededRandom::new(seed);
            (random.new_uuid(), random.new_mac("BC:24:11"), random.number_below(10))
        };
        assert_eq!(values_for(7), values_for(7));
        assert_ne!(values_for(7), values_for(8));
    }

    #[test]
    fn uuids_are_version_four() {
        let uuid = SeededRandom::new(1).new_uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
        assert!(uuid.split('-').nth(2).is_some_and(|part| part.starts_with('4')), "{uuid}");
    }
}
