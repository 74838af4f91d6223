//! What entries say, and whether they have grown out of what was seen before.

use converger_core::evidence::{Deep, Entry};
use converger_ledger::{Hash, Tree};
use converger_runtime::witness;
use converger_store::Told;

use super::super::Stop;
use super::super::ledger::broken;
use super::Since;

/// A walk through the entries, with the log up to where it was seen before.
pub(super) struct Heard<'s> {
    pub(super) deep: Deep,
    pub(super) told: Told,
    since: Option<(&'s Since, Tree)>,
    /// Whoever gave up what was seen before, in words.
    given_up: Option<String>,
}

impl<'s> Heard<'s> {
    pub(super) fn new(since: Option<&'s Since>) -> Self {
        Self { deep: Deep::default(), told: Told::default(), since: since.map(|since| (since, Tree::default())), given_up: None }
    }

    /// The next entry, which is told on.
    pub(super) fn take(&mut self, bytes: &[u8], told: impl FnOnce(&Entry)) -> Result<(), Stop> {
        if let Some((since, tree)) = &mut self.since
            && tree.size() < since.checkpoint.size
        {
            tree.append(Hash::of_leaf(bytes), |_, _, _| {});
        }
        let (own, index, given_up) = (&mut self.told, self.deep.entries(), &mut self.given_up);
        let since = self.since.as_ref().map(|(since, _)| *since);
        Ok(self.deep.take_telling(bytes, |entry| {
            own.take(index, entry);
            *given_up = given_up.take().or_else(|| witness::given_up(index, entry, &since?.checkpoint));
            told(entry);
        })?)
    }

    /// Whether it has grown out of what was seen before.
    pub(super) fn extends(&self) -> Result<(), Stop> {
        let Some((Since { name, checkpoint, .. }, tree)) = &self.since else { return Ok(()) };
        let (size, now, given_up) = (checkpoint.size, self.deep.entries(), self.given_up.as_deref().unwrap_or_default());
        if tree.size() < size {
            let text = format!("{name} has seen {size} entries, and there are {now}: it was cut, or put back from an older copy{given_up}");
            Err(broken(text).at(now))
        } else if tree.root() != checkpoint.root {
            Err(broken(format!("{name} has seen another record: they differ in the first {size} entries{given_up}")))
        } else {
            Ok(())
        }
    }
}
