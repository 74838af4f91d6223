//! What entries say, and whether they have grown out of what was seen before.

use converger_core::evidence::{Deep, Entry};
use converger_ledger::{Hash, Tree};
use converger_store::Told;

use super::super::Stop;
use super::super::ledger::broken;
use super::Since;

/// A walk through the entries, with the log up to where it was seen before.
pub(super) struct Heard<'s> {
    pub(super) deep: Deep,
    pub(super) told: Told,
    since: Option<(&'s Since, Tree)>,
}

impl<'s> Heard<'s> {
    pub(super) fn new(since: Option<&'s Since>) -> Self {
        Self { deep: Deep::default(), told: Told::default(), since: since.map(|since| (since, Tree::default())) }
    }

    /// The next entry, which is told on.
    pub(super) fn take(&mut self, bytes: &[u8], told: impl FnOnce(&Entry)) -> Result<(), Stop> {
        if let Some((since, tree)) = &mut self.since
            && tree.size() < since.checkpoint.size
        {
            tree.append(Hash::of_leaf(bytes), |_, _, _| {});
        }
        let (own, index) = (&mut self.told, self.deep.entries());
        Ok(self.deep.take_telling(bytes, |entry| {
            own.take(index, entry);
            told(entry);
        })?)
    }

    /// Whether it has grown out of what was seen before.
    pub(super) fn extends(&self) -> Result<(), Stop> {
        let Some((Since { name, checkpoint }, tree)) = &self.since else { return Ok(()) };
        let (size, now) = (checkpoint.size, self.deep.entries());
        if tree.size() < size {
            Err(broken(format!("{name} has seen {size} entries, and there are {now}: it was cut, or put back from an older copy")).at(now))
        } else if tree.root() != checkpoint.root {
            Err(broken(format!("{name} has seen another record: they differ in the first {size} entries")))
        } else {
            Ok(())
        }
    }
}
