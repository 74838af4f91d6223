//! A record, read from its first entry to its last: each entry is one that this program writes, none stands where it could not, what they name
//! is kept as it was, and what was admitted was admitted on what is kept.
//!
//! What never enters: where entries and bytes are kept, and the hashes over them.

use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, BTreeSet};

use super::{AdmissionTracker, LedgerEntry, LedgerReplay, PrunedSet, RecordedAdmission, parse_entry};
use crate::apply::{JournalRecord, OperationHistory, OperationId, OperationSource};
use crate::artifact::{Digest, RecordedPlan};
use crate::failure::FailureCode;

/// What is wrong with a record, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerFault {
    /// Its code.
    pub code: FailureCode,
    /// The entry that it was found at.
    pub index: u64,
    /// What it is.
    pub what: String,
}

/// A walk through the entries of a record.
#[derive(Clone, Debug, Default)]
pub struct LedgerCheck {
    replay: LedgerReplay,
    entries: u64,
    /// What entries name by digest, with the first that does.
    named: BTreeMap<Digest, u64>,
    pruned: PrunedSet,
    tracker: AdmissionTracker,
    /// Where each operation was begun.
    intents: Vec<(OperationId, u64)>,
    /// What was weighed, in order.
    recorded_admissions: Vec<RecordedAdmission>,
}

impl LedgerEntry {
    /// What it names by digest, all of which is kept beside it.
    #[must_use]
    pub fn named_digests(&self) -> Vec<Digest> {
        match self {
            Self::RunStarted { inputs, .. } => vec![inputs.config, inputs.desired, inputs.observation, inputs.rules, inputs.catalogue],
            Self::PlanMade { plan, judgement, .. } => vec![*plan, *judgement],
            Self::Admitted { bundle, .. } => vec![*bundle],
            _ => Vec::new(),
        }
    }
}

impl LedgerCheck {
    /// The next entry.
    ///
    /// # Errors
    /// It is none, or it cannot stand here.
    pub fn add_entry(&mut self, bytes: &[u8]) -> Result<(), LedgerFault> {
        self.add_entry_and_visit(bytes, |_| {})
    }

    /// The same, for whoever wants to know what it says.
    ///
    /// # Errors
    /// It is none, or it cannot stand here. Where only its place is wrong it was told all the same.
    pub fn add_entry_and_visit(&mut self, bytes: &[u8], told: impl FnOnce(&LedgerEntry)) -> Result<(), LedgerFault> {
        let index = self.entries;
        let entry = parse_entry(bytes).map_err(|error| integrity_fault(index, format!("is none that this program writes: {error}")))?;
        for digest in entry.named_digests() {
            self.named.entry(digest).or_insert(index);
        }
        self.track_entry(index, &entry)?;
        self.entries = index + 1;
        told(&entry);
        self.replay.apply_entry(entry).map_err(|misplaced| integrity_fault(index, format!("cannot stand where it does: {misplaced}")))
    }

    /// What an entry adds to what is known besides its place.
    fn track_entry(&mut self, index: u64, entry: &LedgerEntry) -> Result<(), LedgerFault> {
        self.recorded_admissions.extend(self.tracker.apply_entry(index, entry));
        self.pruned.apply_entry(entry);
        match entry {
            LedgerEntry::Record(JournalRecord::Intent { operation, .. }) if !self.tracker.is_admitted(&operation.run) => {
                let what =
                    format!("entry {index}: the operation {} was begun, and its plan was not admitted before", operation.id.as_str());
                return Err(LedgerFault { code: FailureCode::UnloggedExecution, index, what });
            }
            // The proof of a single operation does not need this entry; the record of all of them has it.
            LedgerEntry::Record(JournalRecord::Intent { operation, .. })
                if self.replay.names().binding(&operation.environment).is_none() =>
            {
                let (id, environment) = (operation.id.as_str(), &operation.environment);
                let what = format!("entry {index}: the operation {id} was begun, and no cluster was recorded for `{environment}` before");
                return Err(LedgerFault { code: FailureCode::UnloggedExecution, index, what });
            }
            LedgerEntry::Record(JournalRecord::Intent { operation, .. }) => self.intents.push((operation.id.clone(), index)),
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
    pub fn replay(&self) -> &LedgerReplay {
        &self.replay
    }

    /// The same, for whoever needs nothing else.
    #[must_use]
    pub fn into_replay(self) -> LedgerReplay {
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
    pub fn check_blobs<E: From<LedgerFault>>(&self, kept: impl Fn(Digest) -> Result<Option<Vec<u8>>, E>) -> Result<u64, E> {
        let mut gone = 0;
        let mut named: Vec<(u64, Digest)> = self.named.iter().map(|(digest, index)| (*index, *digest)).collect();
        named.sort_unstable();
        for (index, digest) in named {
            match kept(digest)? {
                None if self.pruned.contains(&digest) => gone += 1,
                None => {
                    let what = format!("what entry {index} names {digest} is not there, and no entry says that it was let go");
                    return Err(LedgerFault { code: FailureCode::EvidenceMissing, index, what }.into());
                }
                Some(bytes) if Digest::of_bytes(&bytes) == digest => {}
                Some(bytes) => {
                    let what = format!("what entry {index} names {digest} is kept with the digest {}", Digest::of_bytes(&bytes));
                    return Err(LedgerFault { code: FailureCode::IntegrityViolation, index, what }.into());
                }
            }
        }
        let mut plans = PlanCache { kept: &kept, read: BTreeMap::new() };
        for weighed in &self.recorded_admissions {
            // That it is there was seen above.
            if let Some(bytes) = kept(weighed.bundle)? {
                weighed.check_bundle(&bytes)?;
            }
            if let Some(plan) = plans.load_plan(weighed.plan())? {
                weighed.check_guest_refusals(plan)?;
            }
        }
        self.check_planned_operations(&mut plans)?;
        Ok(gone)
    }

    /// Every operation that the declared state led to is a step of the plan that was admitted, and none was begun twice in one run: whatever became
    /// of it, the run that comes next plans it anew.
    fn check_planned_operations<E: From<LedgerFault>, K: Fn(Digest) -> Result<Option<Vec<u8>>, E>>(
        &self,
        plans: &mut PlanCache<'_, K>,
    ) -> Result<(), E> {
        let mut steps = BTreeSet::new();
        let begun = self.intents.iter().filter_map(|(id, index)| Some((self.replay.operations().get(id)?, *index)));
        for (OperationHistory { operation, .. }, index) in
            begun.filter(|(history, _)| history.operation.source == OperationSource::Convergent)
        {
            if !plans.load_plan(operation.plan)?.is_some_and(|plan| plan.contains_operation(operation)) {
                let what = format!("entry {index}: the operation {} is no step of the plan {}", operation.id.as_str(), operation.plan);
                return Err(LedgerFault { code: FailureCode::UnloggedExecution, index, what }.into());
            }
            if !steps.insert((&operation.run, operation.guest.vmid, operation.position)) {
                let (id, vmid, run) = (operation.id.as_str(), operation.guest.vmid, operation.run.as_str());
                let what = format!("entry {index}: the operation {id} is a step of guest {vmid} that was begun before in the run {run}");
                return Err(LedgerFault { code: FailureCode::UnloggedExecution, index, what }.into());
            }
        }
        Ok(())
    }
}

/// Bodies of plans, each read once.
struct PlanCache<'k, K> {
    kept: &'k K,
    read: BTreeMap<Digest, Option<RecordedPlan>>,
}

impl<K> PlanCache<'_, K> {
    /// The plan under a digest; none, where nothing is kept there that could be one.
    fn load_plan<E>(&mut self, digest: Digest) -> Result<Option<&RecordedPlan>, E>
    where
        K: Fn(Digest) -> Result<Option<Vec<u8>>, E>,
    {
        Ok(match self.read.entry(digest) {
            Occupied(plan) => plan.into_mut().as_ref(),
            Vacant(place) => {
                let body = (self.kept)(digest)?.and_then(|bytes| serde_json::from_slice(&bytes).ok());
                place.insert(body.as_ref().map(RecordedPlan::from_body)).as_ref()
            }
        })
    }
}

fn integrity_fault(index: u64, what: impl AsRef<str>) -> LedgerFault {
    LedgerFault { code: FailureCode::IntegrityViolation, index, what: format!("entry {index} {}", what.as_ref()) }
}
