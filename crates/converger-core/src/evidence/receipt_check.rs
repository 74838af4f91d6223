//! What entries prove about one operation without the rest of the ledger: what was done to which guest, in which run, with whose approval,
//! and how it ended.
//!
//! They must follow the rules of the whole ledger: the run started, made the plan, and was admitted on a bundle with exactly the approvals
//! that come before the admission; then the operation started, and it ended. A missing entry of these is detected. Optional entries (the
//! sending mark, a task, a recovery, a resolution) can be omitted without detection: inclusion of an entry in a log can be proven on its
//! own, absence of another one only with the whole log.
//!
//! Must not check whether the entries are in the signed log (`converger-ledger` does).

#[cfg(test)]
mod tests;

use super::{AdmissionTracker, LedgerEntry, LedgerFault, LedgerReplay, RecordedAdmission, parse_entry};
use crate::apply::{JournalRecord, OperationHistory, OperationId, RunId, RunStart};
use crate::artifact::Digest;
use crate::failure::FailureCode;

/// A proven operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationProof {
    /// The operation and how it ended.
    pub history: OperationHistory,
    /// Its run.
    pub run: RunStart,
    /// Each admission of its plan before it started; the last one admitted it.
    pub admissions: Vec<RecordedAdmission>,
    /// The indices of entries in which a later run found it without an end.
    pub recoveries: Vec<u64>,
}

/// Whether an entry belongs to the proof of an operation: it concerns the operation, or the admission of its run.
#[must_use]
pub fn belongs_to_proof(entry: &LedgerEntry, operation: &OperationId, run: &RunId) -> bool {
    match entry {
        LedgerEntry::Record(record) => record.id() == operation,
        LedgerEntry::Recovery { operations, .. } => operations.contains(operation),
        entry => admission_run(entry) == Some(run),
    }
}

/// The run of an entry that concerns the admission of a run.
fn admission_run(entry: &LedgerEntry) -> Option<&RunId> {
    match entry {
        LedgerEntry::RunStarted { run, .. } => Some(&run.id),
        LedgerEntry::PlanMade { run, .. } | LedgerEntry::Approved { run, .. } | LedgerEntry::Admitted { run, .. } => Some(run),
        LedgerEntry::Refused { run, guest: None, .. } => Some(run),
        _ => None,
    }
}

impl OperationProof {
    /// What these entries of one log prove, each given with its index, in order. `attachments` has the bytes that they reference.
    ///
    /// # Errors
    /// An entry is invalid, in a wrong position, or contradicts what it references; or a required entry is missing.
    pub fn from_entries<'e>(entries: impl Iterator<Item = (u64, &'e [u8])>, attachments: &[Vec<u8>]) -> Result<Self, LedgerFault> {
        let mut reading = ProofBuilder::default();
        for (index, bytes) in entries {
            let entry = parse_entry(bytes).map_err(|error| integrity_fault(index, format!("is not valid: {error}")))?;
            reading.add_entry(index, entry)?;
        }
        reading.finish(attachments)
    }

    /// The digests of the bytes that a proof must include: the bundle of each admission.
    pub fn bundle_digests(&self) -> impl Iterator<Item = Digest> {
        self.admissions.iter().map(|admission| admission.bundle)
    }
}

/// The state while reading a proof.
#[derive(Default)]
struct ProofBuilder {
    replay: LedgerReplay,
    tracker: AdmissionTracker,
    admissions: Vec<RecordedAdmission>,
    recoveries: Vec<u64>,
    /// The index of the last entry.
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
            // Entries of one run, before the operation started.
            entry if own.is_none() && admission_run(entry).is_some_and(|run| self.replay.runs.keys().all(|own| own == run)) => {
                self.admissions.extend(self.tracker.apply_entry(index, entry));
            }
            _ => return Err(integrity_fault(index, "does not belong to the operation that is proven".to_owned())),
        }
        self.replay.apply_entry(entry).map_err(|misplaced| integrity_fault(index, format!("is out of place: {misplaced}")))
    }

    fn finish(self, attachments: &[Vec<u8>]) -> Result<OperationProof, LedgerFault> {
        let Self { replay, admissions, recoveries, last, .. } = self;
        let history =
            replay.operations.into_values().next().ok_or_else(|| missing_entry_fault(last, "it proves no operation".to_owned()))?;
        let run = replay.runs.into_values().next().map(|(run, _)| run);
        // INVARIANT: an intent is accepted only after its run.
        let run = run.ok_or_else(|| missing_entry_fault(last, "it proves no run".to_owned()))?;
        if history.ended.is_none() {
            return Err(missing_entry_fault(last, format!("no entry says how the operation {} ended", history.id().as_str())));
        }
        for admission in &admissions {
            let bundle = attachments.iter().find(|attachment| Digest::of_bytes(attachment) == admission.bundle);
            admission.check_bundle(bundle.ok_or_else(|| admission.missing_bundle_fault())?)?;
        }
        if let Some(digest) = attachments
            .iter()
            .map(|attachment| Digest::of_bytes(attachment))
            .find(|digest| admissions.iter().all(|own| own.bundle != *digest))
        {
            return Err(LedgerFault {
                code: FailureCode::IntegrityViolation,
                index: last,
                what: format!("the receipt includes {digest}, which no entry names"),
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
