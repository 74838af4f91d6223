//! What entries say, in their order: each is one that this program writes, none stands where it could not, what they name is what it was, and
//! they have grown out of what was seen before.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::apply::{Record, RunId};
use converger_core::artifact::Digest;
use converger_core::evidence::{Answer, Entry, Replay, parse_entry};
use converger_core::failure::Code;
use converger_ledger::{Hash, Tree};

use super::super::Stop;
use super::super::ledger::{broken, digests};
use super::{Since, unlogged};

/// A walk through the entries.
#[derive(Default)]
pub(super) struct Deep<'s> {
    pub(super) replay: Replay,
    pub(super) entries: u64,
    /// What entries name by digest, with the first that does.
    named: BTreeMap<Digest, u64>,
    /// What a person let go.
    pruned: BTreeSet<Digest>,
    /// Runs that may carry their plan out.
    admitted: BTreeMap<RunId, Digest>,
    /// What was seen before, and the log up to there.
    since: Option<(&'s Since, Tree)>,
}

impl<'s> Deep<'s> {
    pub(super) fn new(since: Option<&'s Since>) -> Self {
        Self { since: since.map(|since| (since, Tree::default())), ..Self::default() }
    }

    pub(super) fn take(&mut self, index: u64, bytes: &[u8]) -> Result<(), Stop> {
        if let Some((since, tree)) = &mut self.since
            && tree.size() < since.checkpoint.size
        {
            tree.append(Hash::of_leaf(bytes), |_, _, _| {});
        }
        let entry = parse_entry(bytes).map_err(|error| broken(format!("entry {index} is none that this program writes: {error}")))?;
        for digest in digests(&entry) {
            self.named.entry(digest).or_insert(index);
        }
        match &entry {
            Entry::Pruned { digests, .. } => self.pruned.extend(digests),
            // What is named again is kept again.
            Entry::RunStarted { inputs, .. } => drop(self.pruned.remove(&inputs.observation)),
            Entry::Admitted { run, plan, answer, .. } if answer.as_str() == Answer::Admissible.word() => {
                self.admitted.insert(run.clone(), *plan);
            }
            Entry::Record(Record::Intent { operation, .. }) if self.admitted.get(&operation.run) != Some(&operation.plan) => {
                let id = operation.id.as_str();
                return Err(unlogged(format!("entry {index}: the operation {id} was begun, and its plan was not admitted before")));
            }
            _ => {}
        }
        self.entries = index + 1;
        self.replay.take(entry).map_err(|misplaced| broken(format!("entry {index} cannot stand where it does: {misplaced}")))
    }

    /// Whether it has grown out of what was seen before.
    pub(super) fn extends(&self) -> Result<(), Stop> {
        let Some((Since { name, checkpoint }, tree)) = &self.since else { return Ok(()) };
        let (size, now) = (checkpoint.size, self.entries);
        if tree.size() < size {
            Err(broken(format!("{name} has seen {size} entries, and there are {now}: it was cut, or put back from an older copy")))
        } else if tree.root() != checkpoint.root {
            Err(broken(format!("{name} has seen another record: they differ in the first {size} entries")))
        } else {
            Ok(())
        }
    }

    /// How many things that are named a person let go. What is not there otherwise was removed, and what is another is an error too.
    pub(super) fn gone(&self, kept: impl Fn(Digest) -> Result<Option<Vec<u8>>, Stop>) -> Result<u64, Stop> {
        let mut gone = 0;
        let mut named: Vec<(&u64, &Digest)> = self.named.iter().map(|(digest, index)| (index, digest)).collect();
        named.sort();
        for (index, digest) in named {
            match kept(*digest)? {
                None if self.pruned.contains(digest) => gone += 1,
                None => {
                    let text = format!("what entry {index} names {digest} is not there, and no entry says that it was let go");
                    return Err(Stop::broken(Code::EvidenceMissing, text));
                }
                Some(bytes) if Digest::of_bytes(&bytes) == *digest => {}
                Some(bytes) => {
                    let found = Digest::of_bytes(&bytes);
                    return Err(broken(format!("what entry {index} names {digest} is kept with the digest {found}")));
                }
            }
        }
        Ok(gone)
    }
}
