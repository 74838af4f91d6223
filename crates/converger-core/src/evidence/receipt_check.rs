//! What entries prove about one operation where nothing else of their ledger is at hand: what was done to which guest, in which run, on whose
//! word, and how it ended.
//!
//! They are held to the rules of the whole ledger: the run began, made the plan, and was admitted on a bundle whose approvals are those
//! that stand before it; then the operation was begun, and it ended. Each of these that is missing is noticed. What an operation need not have
//! (the mark of its sending, a task, a recovery, a word on it after it was held) can be left out unseen: that an entry is in a log can be proven by itself, that there is
//! no other one only by the whole log.
//!
//! What never enters: whether the entries are in the log that was signed (`converger-ledger`).

#[cfg(test)]
mod tests;

use super::{AdmissionTracker, LedgerEntry, LedgerFault, LedgerReplay, RecordedAdmission, parse_entry};
use crate::apply::{JournalRecord, OperationHistory, OperationId, RunId, RunStart};
use crate::artifact::Digest;
use crate::failure::FailureCode;

/// An operation that is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationProof {
    /// What was done, and how it ended.
    pub history: OperationHistory,
    /// The run that it was done in.
    pub run: RunStart,
    /// Each weighing of its plan before it was begun; the last one admitted it.
    pub admissions: Vec<RecordedAdmission>,
    /// The entries in which a later run found it without an end.
    pub recoveries: Vec<u64>,
}

/// Whether an entry belongs to the proof of an operation: it is about that, or is one of those that its run was admitted by.
#[must_use]
pub fn belongs_to_proof(entry: &LedgerEntry, operation: &OperationId, run: &RunId) -> bool {
    match entry {
        LedgerEntry::Record(record) => record.id() == operation,
        LedgerEntry::Recovery { operations, .. } => operations.contains(operation),
        entry => admission_run(entry) == Some(run),
    }
}

/// The run of an entry that is one of those by which runs are admitted.
fn admission_run(entry: &LedgerEntry) -> Option<&RunId> {
    match entry {
        LedgerEntry::RunStarted { run, .. } => Some(&run.id),
        LedgerEntry::PlanMade { run, .. } | LedgerEntry::Approved { run, .. } | LedgerEntry::Admitted { run, .. } => Some(run),
        LedgerEntry::Refused { run, guest: None, .. } => Some(run),
        _ => None,
    }
}

impl OperationProof {
    /// What these entries of one log prove, each given with its place, in their order; `kept` is what they name and is given along.
    ///
    /// # Errors
    /// One of them is none, has no place there, or contradicts what it names; or one is missing that every operation has.
    pub fn from_entries<'e>(entries: impl Iterator<Item = (u64, &'e [u8])>, kept: &[Vec<u8>]) -> Result<Self, LedgerFault> {
        let mut reading = ProofBuilder::default();
        for (index, bytes) in entries {
            let entry = parse_entry(bytes).map_err(|error| integrity_fault(index, format!("is none that this program writes: {error}")))?;
            reading.add_entry(index, entry)?;
        }
        reading.finish(kept)
    }

    /// The digests of what is to be given along: the evidence that each weighing rests on.
    pub fn bundle_digests(&self) -> impl Iterator<Item = Digest> {
        self.admissions.iter().map(|weighed| weighed.bundle)
    }
}

/// What was read of a proof.
#[derive(Default)]
struct ProofBuilder {
    replay: LedgerReplay,
    tracker: AdmissionTracker,
    admissions: Vec<RecordedAdmission>,
    recoveries: Vec<u64>,
    /// The last entry.
    last: u64,
}

impl ProofBuilder {
    fn add_entry(&mut self, index: u64, entry: LedgerEntry) -> Result<(), LedgerFault> {
        self.last = index;
        let own = self.replay.operations.keys().next();
        match &entry {
            LedgerEntry::Recovery { operations, .. } if own.is_some_and(|own| operations.contains(own)) => {
                self.recoveries.push(index);
                return Ok(());
            }
            LedgerEntry::Record(JournalRecord::Intent { operation, .. }) if own.is_none() => {
                if !self.tracker.is_admitted(&operation.run) {
                    return Err(missing_entry_fault(
                        index,
                        format!("no entry before it admits the plan of the operation {}", operation.id.as_str()),
                    ));
                }
            }
            LedgerEntry::Record(record) if own.is_none_or(|own| own == record.id()) && !matches!(record, JournalRecord::Intent { .. }) => {}
            // Of one run, and before the operation was begun.
            entry if own.is_none() && admission_run(entry).is_some_and(|run| self.replay.runs.keys().all(|own| own == run)) => {
                self.admissions.extend(self.tracker.apply_entry(index, entry));
            }
            _ => return Err(integrity_fault(index, "is not about the operation that is proven".to_owned())),
        }
        self.replay.apply_entry(entry).map_err(|misplaced| integrity_fault(index, format!("cannot stand where it does: {misplaced}")))
    }

    fn finish(self, kept: &[Vec<u8>]) -> Result<OperationProof, LedgerFault> {
        let Self { replay, admissions, recoveries, last, .. } = self;
        let history =
            replay.operations.into_values().next().ok_or_else(|| missing_entry_fault(last, "it proves no operation".to_owned()))?;
        let run = replay.runs.into_values().next().map(|(run, _)| run);
        // INVARIANT: no intent is taken without its run.
        let run = run.ok_or_else(|| missing_entry_fault(last, "it proves no run".to_owned()))?;
        if history.ended.is_none() {
            return Err(missing_entry_fault(last, format!("no entry says how the operation {} ended", history.id().as_str())));
        }
        for weighed in &admissions {
            let bundle = kept.iter().find(|kept| Digest::of_bytes(kept) == weighed.bundle);
            weighed.check_bundle(bundle.ok_or_else(|| weighed.missing_bundle_fault())?)?;
        }
        if let Some(kept) = kept.iter().map(|kept| Digest::of_bytes(kept)).find(|kept| admissions.iter().all(|own| own.bundle != *kept)) {
            return Err(LedgerFault {
                code: FailureCode::IntegrityViolation,
                index: last,
                what: format!("{kept} is given along, and no entry names it"),
            });
        }
        Ok(OperationProof { history, run, admissions, recoveries })
    }
}

fn integrity_fault(index: u64, what: String) -> LedgerFault {
    LedgerFault { code: FailureCode::IntegrityViolation, index, what: format!("entry {index} {what}") }
}

fn missing_entry_fault(index: u64, what: String) -> LedgerFault {
    LedgerFault { code: FailureCode::EvidenceMissing, index, what }
}
