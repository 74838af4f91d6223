//! A record, read from its first entry to its last: each entry is one that this program writes, none stands where it could not, what they name
//! is kept as it was, and what was admitted was admitted on what is kept.
//!
//! What never enters: where entries and bytes are kept, and the hashes over them.

use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, BTreeSet};

use super::{Admissions, Entry, LetGo, Replay, Weighed, parse_entry};
use crate::apply::{History, OperationId, Record, Source};
use crate::artifact::{Digest, RecordedPlan};
use crate::failure::Code;

/// What is wrong with a record, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its code.
    pub code: Code,
    /// The entry that it was found at.
    pub index: u64,
    /// What it is.
    pub what: String,
}

/// A walk through the entries of a record.
#[derive(Clone, Debug, Default)]
pub struct Deep {
    replay: Replay,
    entries: u64,
    /// What entries name by digest, with the first that does.
    named: BTreeMap<Digest, u64>,
    let_go: LetGo,
    admissions: Admissions,
    /// Where each operation was begun.
    intents: Vec<(OperationId, u64)>,
    /// What was weighed, in order.
    weighed: Vec<Weighed>,
}

impl Entry {
    /// What it names by digest, all of which is kept beside it.
    #[must_use]
    pub fn names(&self) -> Vec<Digest> {
        match self {
            Self::RunStarted { inputs, .. } => vec![inputs.config, inputs.desired, inputs.observation, inputs.rules, inputs.catalogue],
            Self::PlanMade { plan, judgement, .. } => vec![*plan, *judgement],
            Self::Admitted { bundle, .. } => vec![*bundle],
            _ => Vec::new(),
        }
    }
}

impl Deep {
    /// The next entry.
    ///
    /// # Errors
    /// It is none, or it cannot stand here.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), Wrong> {
        self.take_telling(bytes, |_| {})
    }

    /// The same, for whoever wants to know what it says.
    ///
    /// # Errors
    /// It is none, or it cannot stand here. Where only its place is wrong it was told all the same.
    pub fn take_telling(&mut self, bytes: &[u8], told: impl FnOnce(&Entry)) -> Result<(), Wrong> {
        let index = self.entries;
        let entry = parse_entry(bytes).map_err(|error| violated(index, format!("is none that this program writes: {error}")))?;
        for digest in entry.names() {
            self.named.entry(digest).or_insert(index);
        }
        self.hear(index, &entry)?;
        self.entries = index + 1;
        told(&entry);
        self.replay.take(entry).map_err(|misplaced| violated(index, format!("cannot stand where it does: {misplaced}")))
    }

    /// What an entry adds to what is known besides its place.
    fn hear(&mut self, index: u64, entry: &Entry) -> Result<(), Wrong> {
        self.weighed.extend(self.admissions.hear(index, entry));
        self.let_go.hear(entry);
        match entry {
            Entry::Record(Record::Intent { operation, .. }) if !self.admissions.is_admitted(&operation.run) => {
                let what =
                    format!("entry {index}: the operation {} was begun, and its plan was not admitted before", operation.id.as_str());
                return Err(Wrong { code: Code::UnloggedExecution, index, what });
            }
            // The proof of a single operation does not need this entry; the record of all of them has it.
            Entry::Record(Record::Intent { operation, .. }) if self.replay.names().binding(&operation.environment).is_none() => {
                let (id, environment) = (operation.id.as_str(), &operation.environment);
                let what = format!("entry {index}: the operation {id} was begun, and no cluster was recorded for `{environment}` before");
                return Err(Wrong { code: Code::UnloggedExecution, index, what });
            }
            Entry::Record(Record::Intent { operation, .. }) => self.intents.push((operation.id.clone(), index)),
            _ => {}
        }
        Ok(())
    }

    /// How many entries there were.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// What they amount to.
    #[must_use]
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// The same, for whoever needs nothing else.
    #[must_use]
    pub fn into_replay(self) -> Replay {
        self.replay
    }

    /// Whether an entry names this.
    #[must_use]
    pub fn is_named(&self, digest: &Digest) -> bool {
        self.named.contains_key(digest)
    }

    /// How many things that are named a person let go; all else is kept as it was, and says what its entries say. `kept` gives the bytes under a
    /// digest, where they are kept.
    ///
    /// # Errors
    /// The first that is not there, or is another. What `kept` cannot tell ends it too.
    pub fn kept<E: From<Wrong>>(&self, kept: impl Fn(Digest) -> Result<Option<Vec<u8>>, E>) -> Result<u64, E> {
        let mut gone = 0;
        let mut named: Vec<(u64, Digest)> = self.named.iter().map(|(digest, index)| (*index, *digest)).collect();
        named.sort_unstable();
        for (index, digest) in named {
            match kept(digest)? {
                None if self.let_go.contains(&digest) => gone += 1,
                None => {
                    let what = format!("what entry {index} names {digest} is not there, and no entry says that it was let go");
                    return Err(Wrong { code: Code::EvidenceMissing, index, what }.into());
                }
                Some(bytes) if Digest::of_bytes(&bytes) == digest => {}
                Some(bytes) => {
                    let what = format!("what entry {index} names {digest} is kept with the digest {}", Digest::of_bytes(&bytes));
                    return Err(Wrong { code: Code::IntegrityViolation, index, what }.into());
                }
            }
        }
        let mut plans = Plans { kept: &kept, read: BTreeMap::new() };
        for weighed in &self.weighed {
            // That it is there was seen above.
            if let Some(bytes) = kept(weighed.bundle)? {
                weighed.agrees(&bytes)?;
            }
            if let Some(plan) = plans.at(weighed.plan())? {
                weighed.as_refused(plan)?;
            }
        }
        self.as_planned(&mut plans)?;
        Ok(gone)
    }

    /// Every operation that the declared state led to is a step of the plan that was admitted, and none was begun twice in one run: whatever became
    /// of it, the run that comes next plans it anew.
    fn as_planned<E: From<Wrong>, K: Fn(Digest) -> Result<Option<Vec<u8>>, E>>(&self, plans: &mut Plans<'_, K>) -> Result<(), E> {
        let mut steps = BTreeSet::new();
        let begun = self.intents.iter().filter_map(|(id, index)| Some((self.replay.operations().get(id)?, *index)));
        for (History { operation, .. }, index) in begun.filter(|(history, _)| history.operation.source == Source::Convergent) {
            if !plans.at(operation.plan)?.is_some_and(|plan| plan.has(operation)) {
                let what = format!("entry {index}: the operation {} is no step of the plan {}", operation.id.as_str(), operation.plan);
                return Err(Wrong { code: Code::UnloggedExecution, index, what }.into());
            }
            if !steps.insert((&operation.run, operation.guest.vmid, operation.position)) {
                let (id, vmid, run) = (operation.id.as_str(), operation.guest.vmid, operation.run.as_str());
                let what = format!("entry {index}: the operation {id} is a step of guest {vmid} that was begun before in the run {run}");
                return Err(Wrong { code: Code::UnloggedExecution, index, what }.into());
            }
        }
        Ok(())
    }
}

/// Bodies of plans, each read once.
struct Plans<'k, K> {
    kept: &'k K,
    read: BTreeMap<Digest, Option<RecordedPlan>>,
}

impl<K> Plans<'_, K> {
    /// The plan under a digest; none, where nothing is kept there that could be one.
    fn at<E>(&mut self, digest: Digest) -> Result<Option<&RecordedPlan>, E>
    where
        K: Fn(Digest) -> Result<Option<Vec<u8>>, E>,
    {
        Ok(match self.read.entry(digest) {
            Occupied(plan) => plan.into_mut().as_ref(),
            Vacant(place) => {
                let body = (self.kept)(digest)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
                place.insert(body.as_ref().map(RecordedPlan::read)).as_ref()
            }
        })
    }
}

fn violated(index: u64, what: impl AsRef<str>) -> Wrong {
    Wrong { code: Code::IntegrityViolation, index, what: format!("entry {index} {}", what.as_ref()) }
}
