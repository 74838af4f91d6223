//! Checks a ledger from its first entry to its last: each entry is valid, may follow the ones before it, everything that it references is
//! stored unchanged, and every admission agrees with its stored evidence.
//!
//! Must not depend on where entries and bytes are stored, or on the hashes over them.

use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::collections::{BTreeMap, BTreeSet};

use super::admissions::JudgedPlanKey;
use super::{AdmissionTracker, LedgerEntry, LedgerReplay, PrunedSet, RecordedAdmission, parse_entry};
use crate::apply::{IdempotencyKey, JournalRecord, Operation, OperationHistory, OperationId, OperationSource, RunId};
use crate::artifact::{Digest, RecordedPlan};
use crate::failure::FailureCode;
use crate::guest::{EnvironmentName, Vmid};

/// What is wrong with a ledger, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerFault {
    /// Its code.
    pub code: FailureCode,
    /// The index of the entry at which it was found.
    pub index: u64,
    /// A description.
    pub what: String,
}

/// The state of a check over the entries of a ledger.
#[derive(Clone, Debug, Default)]
pub struct LedgerCheck {
    replay: LedgerReplay,
    entries: u64,
    /// Referenced digests, each with the first entry that references it.
    named: BTreeMap<Digest, u64>,
    pruned: PrunedSet,
    tracker: AdmissionTracker,
    /// The index of each operation's intent.
    intents: Vec<(OperationId, u64)>,
    /// All admissions, in order.
    recorded_admissions: Vec<RecordedAdmission>,
}

impl LedgerEntry {
    /// The digests that the entry references; the referenced bytes are stored beside it.
    #[must_use]
    pub fn named_digests(&self) -> Vec<Digest> {
        match self {
            Self::RunStarted { inputs, .. } => vec![inputs.config, inputs.intent, inputs.observation, inputs.rules, inputs.catalogue],
            Self::PlanMade { plan, judgement, .. } => vec![*plan, *judgement],
            Self::Admitted { bundle, .. } => vec![*bundle],
            _ => Vec::new(),
        }
    }
}

impl LedgerCheck {
    /// Checks the next entry.
    ///
    /// # Errors
    /// The entry is invalid, or it cannot follow the ones before it.
    pub fn add_entry(&mut self, bytes: &[u8]) -> Result<(), LedgerFault> {
        self.add_entry_and_visit(bytes, |_| {})
    }

    /// Checks the next entry and passes it to `visit`.
    ///
    /// # Errors
    /// The entry is invalid, or it cannot follow the ones before it. `visit` is also called if only its position is wrong.
    pub fn add_entry_and_visit(&mut self, bytes: &[u8], visit: impl FnOnce(&LedgerEntry)) -> Result<(), LedgerFault> {
        let index = self.entries;
        let entry = parse_entry(bytes).map_err(|error| integrity_fault(index, format!("is not valid: {error}")))?;
        for digest in entry.named_digests() {
            self.named.entry(digest).or_insert(index);
        }
        self.track_entry(index, &entry)?;
        self.entries = index + 1;
        visit(&entry);
        self.replay.apply_entry(entry).map_err(|misplaced| integrity_fault(index, format!("is out of place: {misplaced}")))
    }

    /// Records what an entry adds beyond its position.
    fn track_entry(&mut self, index: u64, entry: &LedgerEntry) -> Result<(), LedgerFault> {
        self.recorded_admissions.extend(self.tracker.apply_entry(index, entry));
        self.pruned.apply_entry(entry);
        match entry {
            LedgerEntry::Record(JournalRecord::Intent { operation, .. }) if !self.tracker.is_admitted(&operation.run) => {
                let what = format!("entry {index}: the operation {} started, but its plan was not admitted before", operation.id.as_str());
                return Err(LedgerFault { code: FailureCode::UnloggedExecution, index, what });
            }
            // The proof of a single operation does not need this entry; the whole ledger must have it.
            LedgerEntry::Record(JournalRecord::Intent { operation, .. })
                if self.replay.names().binding(&operation.environment).is_none() =>
            {
                let (id, environment) = (operation.id.as_str(), &operation.environment);
                let what = format!("entry {index}: the operation {id} started, but `{environment}` was not bound to a cluster before");
                return Err(LedgerFault { code: FailureCode::UnloggedExecution, index, what });
            }
            LedgerEntry::Record(JournalRecord::Intent { operation, .. }) => self.intents.push((operation.id.clone(), index)),
            _ => {}
        }
        Ok(())
    }

    /// The number of entries so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// The state that the entries add up to.
    #[must_use]
    pub fn replay(&self) -> &LedgerReplay {
        &self.replay
    }

    /// The state that the entries add up to, without the rest.
    #[must_use]
    pub fn into_replay(self) -> LedgerReplay {
        self.replay
    }

    /// Whether an entry references this digest.
    #[must_use]
    pub fn is_named(&self, digest: &Digest) -> bool {
        self.named.contains_key(digest)
    }

    /// Checks that all referenced bytes are stored unchanged, or pruned, and agree with their entries; returns the number of pruned ones.
    /// `blobs` returns the stored bytes of a digest.
    ///
    /// # Errors
    /// The first digest whose bytes are missing or different. An error of `blobs` ends the check too.
    pub fn check_blobs<E: From<LedgerFault>>(&self, load_blob: impl Fn(Digest) -> Result<Option<Vec<u8>>, E>) -> Result<u64, E> {
        let mut pruned = 0;
        let mut named: Vec<(u64, Digest)> = self.named.iter().map(|(digest, index)| (*index, *digest)).collect();
        named.sort_unstable();
        for (index, digest) in named {
            match load_blob(digest)? {
                None if self.pruned.contains(&digest) => pruned += 1,
                None => {
                    let what = format!("entry {index} names {digest}, which is not stored, and no entry says that it was pruned");
                    return Err(LedgerFault { code: FailureCode::EvidenceMissing, index, what }.into());
                }
                Some(bytes) if Digest::of_bytes(&bytes) == digest => {}
                Some(bytes) => {
                    let what = format!("entry {index} names {digest}, but the stored bytes have the digest {}", Digest::of_bytes(&bytes));
                    return Err(LedgerFault { code: FailureCode::IntegrityViolation, index, what }.into());
                }
            }
        }
        let mut plans = PlanCache { blobs: &load_blob, read: BTreeMap::new() };
        for admission in &self.recorded_admissions {
            // The loop above checked that it is stored.
            if let Some(bytes) = load_blob(admission.bundle)? {
                admission.check_bundle(&bytes)?;
            }
            if let Some(plan) = plans.load_plan(admission.judged_plan())? {
                admission.check_guest_refusals(plan)?;
            }
        }
        self.check_planned_operations(&mut plans)?;
        Ok(pruned)
    }

    /// Checks that every operation, whatever its source, is a step of the admitted plan that its judgement does not refuse, that no step
    /// was started twice in one run, and that an idempotency key belongs to one request and no step was started twice under it.
    fn check_planned_operations<E: From<LedgerFault>, K: Fn(Digest) -> Result<Option<Vec<u8>>, E>>(
        &self,
        plans: &mut PlanCache<'_, K>,
    ) -> Result<(), E> {
        let mut started = StartedSteps::default();
        let judged_plans: BTreeMap<_, _> = self.recorded_admissions.iter().map(|own| (&own.run, own.judged_plan())).collect();
        let intents = self.intents.iter().filter_map(|(id, index)| Some((self.replay.operations().get(id)?, *index)));
        for (OperationHistory { operation, .. }, index) in intents {
            let judged = judged_plans.get(&operation.run).copied().filter(|(plan, _)| *plan == operation.plan);
            let plan = plans.load_plan(judged.unwrap_or((operation.plan, None)))?;
            if !plan.is_some_and(|plan| plan.contains_operation(operation)) {
                let what = format!("the operation {} is not a step of the plan {}", operation.id.as_str(), operation.plan);
                return Err(unplanned_fault(index, &what).into());
            }
            started.add(operation).map_err(|what| unplanned_fault(index, &what))?;
        }
        Ok(())
    }
}

/// The steps that were started, by run and by idempotency key.
#[derive(Default)]
struct StartedSteps<'o> {
    of_runs: BTreeSet<(&'o RunId, Vmid, u32)>,
    of_keys: BTreeSet<(&'o EnvironmentName, &'o IdempotencyKey, &'static str)>,
    requests: BTreeMap<(&'o EnvironmentName, &'o IdempotencyKey), Digest>,
}

impl<'o> StartedSteps<'o> {
    /// Adds the step of an operation. What is wrong with it otherwise, as a sentence.
    fn add(&mut self, operation: &'o Operation) -> Result<(), String> {
        let Operation { id, run, environment, guest, position, source, step, .. } = operation;
        let (id, vmid) = (id.as_str(), guest.vmid);
        if !self.of_runs.insert((run, vmid, *position)) {
            return Err(format!("the operation {id} repeats a step of guest {vmid} in the run {}", run.as_str()));
        }
        let OperationSource::OneShot { key, request } = source else { return Ok(()) };
        if *self.requests.entry((environment, key)).or_insert(*request) != *request {
            return Err(format!("the operation {id} has the idempotency key of another request, `{}`", key.as_str()));
        }
        // A later run of the request has only the steps that are left, so their positions differ.
        if !self.of_keys.insert((environment, key, step.change.word())) {
            return Err(format!("the operation {id} repeats a step of the request with the idempotency key `{}`", key.as_str()));
        }
        Ok(())
    }
}

fn unplanned_fault(index: u64, what: &str) -> LedgerFault {
    LedgerFault { code: FailureCode::UnloggedExecution, index, what: format!("entry {index}: {what}") }
}

/// Judged plans, each parsed once.
struct PlanCache<'k, K> {
    blobs: &'k K,
    read: BTreeMap<JudgedPlanKey, Option<RecordedPlan>>,
}

impl<K> PlanCache<'_, K> {
    /// The plan with these digests; `None` if nothing is stored under them that could be a plan and its judgement.
    fn load_plan<E>(&mut self, key: JudgedPlanKey) -> Result<Option<&RecordedPlan>, E>
    where
        K: Fn(Digest) -> Result<Option<Vec<u8>>, E>,
    {
        Ok(match self.read.entry(key) {
            Occupied(plan) => plan.into_mut().as_ref(),
            Vacant(vacant) => {
                let (plan, judgement) = key;
                let load = |digest: Digest| Ok((self.blobs)(digest)?.and_then(|bytes| serde_json::from_slice(&bytes).ok()));
                let body: Option<serde_json::Value> = load(plan)?;
                let judgement = judgement.map_or_else(|| Ok(Some(serde_json::Value::Null)), load)?;
                let plan = body.zip(judgement).map(|(body, judgement)| RecordedPlan::from_body(&body).with_judgement(&judgement));
                vacant.insert(plan).as_ref()
            }
        })
    }
}

fn integrity_fault(index: u64, what: impl AsRef<str>) -> LedgerFault {
    LedgerFault { code: FailureCode::IntegrityViolation, index, what: format!("entry {index} {}", what.as_ref()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Change;
    use crate::plan::Step;
    use crate::testing::{Rng, some_operations};

    fn keyed_operation(run: &str, key: &str, request: &str, change: Change) -> Operation {
        let mut seeds = (0..).map(|seed| some_operations(&mut Rng::new(seed), run));
        let found = seeds.find_map(|mut operations| operations.pop()).expect("one of many plans has a step");
        let key = IdempotencyKey::new(key).expect("a key");
        let source = OperationSource::OneShot { key, request: Digest::of_bytes(request.as_bytes()) };
        let step = Step { change, ..found.step };
        Operation { source, step, ..found }
    }

    #[test]
    fn g13_a_step_that_starts_twice_under_one_key_is_a_fault() {
        let first = keyed_operation("run-1", "key-1", "restart", Change::Stop);
        let cases = [
            (keyed_operation("run-2", "key-1", "restart", Change::Start), None),
            (keyed_operation("run-2", "key-2", "restart", Change::Stop), None),
            (
                keyed_operation("run-2", "key-1", "restart", Change::Stop),
                Some("repeats a step of the request with the idempotency key `key-1`"),
            ),
            (keyed_operation("run-2", "key-1", "start", Change::Start), Some("has the idempotency key of another request, `key-1`")),
            (keyed_operation("run-1", "key-3", "restart", Change::Stop), Some("repeats a step of guest")),
        ];
        for (second, fault) in cases {
            let mut started = StartedSteps::default();
            assert_eq!(started.add(&first), Ok(()));
            match (started.add(&second), fault) {
                (Ok(()), None) => {}
                (Err(what), Some(fault)) => assert!(what.contains(fault), "{what}"),
                (found, fault) => panic!("{found:?}, expected {fault:?}"),
            }
        }
    }
}
