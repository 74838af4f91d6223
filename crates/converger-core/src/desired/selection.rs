//! Guests that a person selects: ids that are named one by one, and ranges of ids.
//!
//! A named id must exist; the caller checks that. A range only selects from the ids that exist.

use std::fmt;

use super::Scope;
use crate::guest::Vmid;

/// A range of ids; both ends are included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmidRange {
    first: Vmid,
    last: Vmid,
}

impl VmidRange {
    /// The range from one id to another; `None` if it is reversed.
    #[must_use]
    pub fn new(first: Vmid, last: Vmid) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Whether an id is in the range.
    #[must_use]
    pub fn contains(&self, vmid: Vmid) -> bool {
        (self.first..=self.last).contains(&vmid)
    }

    /// How many ids it has.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.last.get() - self.first.get() + 1
    }
}

impl fmt::Display for VmidRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

/// Ids that are named one by one, and ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSelection {
    named: Scope,
    ranges: Box<[VmidRange]>,
}

impl GuestSelection {
    /// These ids and ranges. Ranges that overlap become one.
    #[must_use]
    pub fn new(named: Vec<Vmid>, mut ranges: Vec<VmidRange>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|next, before| {
            let overlaps = next.first <= before.last;
            if overlaps {
                before.last = before.last.max(next.last);
            }
            overlaps
        });
        Self { named: Scope::new(named), ranges: ranges.into() }
    }

    /// Every guest that exists.
    #[must_use]
    pub fn all() -> Self {
        let ends = Vmid::new(Vmid::MIN.into()).zip(Vmid::new(Vmid::MAX.into()));
        Self::new(Vec::new(), ends.and_then(|(first, last)| VmidRange::new(first, last)).into_iter().collect())
    }

    /// The ids that are named one by one.
    #[must_use]
    pub fn named_ids(&self) -> &Scope {
        &self.named
    }

    /// The ranges, in order and without overlaps.
    #[must_use]
    pub fn ranges(&self) -> &[VmidRange] {
        &self.ranges
    }

    /// Whether nothing is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.named.ids().is_empty() && self.ranges.is_empty()
    }

    /// The named ids, and those of the existing ones that are in a range.
    #[must_use]
    pub fn resolve(&self, existing: impl IntoIterator<Item = Vmid>) -> Scope {
        let in_ranges = existing.into_iter().filter(|vmid| self.ranges.iter().any(|range| range.contains(*vmid)));
        self.named.with_ids(in_ranges)
    }
}

impl From<Scope> for GuestSelection {
    fn from(named: Scope) -> Self {
        Self { named, ranges: Box::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(numbers: &[u64]) -> Vec<Vmid> {
        numbers.iter().filter_map(|number| Vmid::new(*number)).collect()
    }

    fn range(first: u64, last: u64) -> VmidRange {
        let ends = Vmid::new(first).zip(Vmid::new(last)).expect("ids");
        VmidRange::new(ends.0, ends.1).expect("in order")
    }

    #[test]
    fn range_cannot_be_reversed_and_counts_both_ends() {
        let (low, high) = (Vmid::new(100).expect("an id"), Vmid::new(120).expect("an id"));
        assert_eq!(VmidRange::new(high, low), None);
        assert_eq!((range(100, 120).count(), range(100, 100).count(), range(100, 120).to_string()), (21, 1, "100-120".into()));
    }

    #[test]
    fn overlapping_ranges_are_merged_and_adjacent_ones_are_not() {
        let merged = GuestSelection::new(vec![], vec![range(110, 130), range(100, 115), range(105, 107), range(131, 140)]);
        assert_eq!(merged.ranges(), [range(100, 130), range(131, 140)]);
    }

    #[test]
    fn named_ids_count_without_existing_and_ranges_only_filter() {
        let selection = GuestSelection::new(ids(&[200]), vec![range(100, 120)]);
        assert_eq!(selection.resolve(ids(&[99, 100, 119, 121, 500])).ids(), ids(&[100, 119, 200]));
        assert_eq!(GuestSelection::new(ids(&[]), vec![range(300, 400)]).resolve(ids(&[100])).ids(), ids(&[]));
    }

    #[test]
    fn all_selects_every_existing_id() {
        let existing = ids(&[100, 5_000, 999_999_999]);
        assert_eq!(GuestSelection::all().resolve(existing.clone()).ids(), existing);
    }
}
