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

use super::{Admissions, Entry, Replay, Weighed, Wrong, parse_entry};
use crate::apply::{History, OperationId, Record, Run, RunId};
use crate::artifact::Digest;
use crate::failure::Code;

/// An operation that is proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// What was done, and how it ended.
    pub history: History,
    /// The run that it was done in.
    pub run: Run,
    /// Each weighing of its plan before it was begun; the last one admitted it.
    pub admissions: Vec<Weighed>,
    /// The entries in which a later run found it without an end.
    pub recoveries: Vec<u64>,
}

/// Whether an entry belongs to the proof of an operation: it is about that, or is one of those that its run was admitted by.
#[must_use]
pub fn is_proof_of(entry: &Entry, operation: &OperationId, run: &RunId) -> bool {
    match entry {
        Entry::Record(record) => record.id() == operation,
        Entry::Recovery { operations, .. } => operations.contains(operation),
        entry => admitting(entry) == Some(run),
    }
}

/// The run of an entry that is one of those by which runs are admitted.
fn admitting(entry: &Entry) -> Option<&RunId> {
    match entry {
        Entry::RunStarted { run, .. } => Some(&run.id),
        Entry::PlanMade { run, .. } | Entry::Approved { run, .. } | Entry::Admitted { run, .. } => Some(run),
        Entry::Refused { run, guest: None, .. } => Some(run),
        _ => None,
    }
}

impl Proof {
    /// What these entries of one log prove, each given with its place, in their order; `kept` is what they name and is given along.
    ///
    /// # Errors
    /// One of them is none, has no place there, or contradicts what it names; or one is missing that every operation has.
    pub fn read<'e>(entries: impl Iterator<Item = (u64, &'e [u8])>, kept: &[Vec<u8>]) -> Result<Self, Wrong> {
        let mut reading = Reading::default();
        for (index, bytes) in entries {
            let entry = parse_entry(bytes).map_err(|error| violated(index, format!("is none that this program writes: {error}")))?;
            reading.take(index, entry)?;
        }
        reading.concluded(kept)
    }

    /// The digests of what is to be given along: the evidence that each weighing rests on.
    pub fn bundles(&self) -> impl Iterator<Item = Digest> {
        self.admissions.iter().map(|weighed| weighed.bundle)
    }
}

/// What was read of a proof.
#[derive(Default)]
struct Reading {
    replay: Replay,
    heard: Admissions,
    admissions: Vec<Weighed>,
    recoveries: Vec<u64>,
    /// The last entry.
    last: u64,
}

impl Reading {
    fn take(&mut self, index: u64, entry: Entry) -> Result<(), Wrong> {
        self.last = index;
        let own = self.replay.operations.keys().next();
        match &entry {
            Entry::Recovery { operations, .. } if own.is_some_and(|own| operations.contains(own)) => {
                self.recoveries.push(index);
                return Ok(());
            }
            Entry::Record(Record::Intent { operation, .. }) if own.is_none() => {
                if !self.heard.is_admitted(&operation.run) {
                    return Err(missing(index, format!("no entry before it admits the plan of the operation {}", operation.id.as_str())));
                }
            }
            Entry::Record(record) if own.is_none_or(|own| own == record.id()) && !matches!(record, Record::Intent { .. }) => {}
            // Of one run, and before the operation was begun.
            entry if own.is_none() && admitting(entry).is_some_and(|run| self.replay.runs.keys().all(|own| own == run)) => {
                self.admissions.extend(self.heard.hear(index, entry));
            }
            _ => return Err(violated(index, "is not about the operation that is proven".to_owned())),
        }
        self.replay.take(entry).map_err(|misplaced| violated(index, format!("cannot stand where it does: {misplaced}")))
    }

    fn concluded(self, kept: &[Vec<u8>]) -> Result<Proof, Wrong> {
        let Self { replay, admissions, recoveries, last, .. } = self;
        let history = replay.operations.into_values().next().ok_or_else(|| missing(last, "it proves no operation".to_owned()))?;
        let run = replay.runs.into_values().next().map(|(run, _)| run);
        // INVARIANT: no intent is taken without its run.
        let run = run.ok_or_else(|| missing(last, "it proves no run".to_owned()))?;
        if history.ended.is_none() {
            return Err(missing(last, format!("no entry says how the operation {} ended", history.id().as_str())));
        }
        for weighed in &admissions {
            let bundle = kept.iter().find(|kept| Digest::of_bytes(kept) == weighed.bundle);
            weighed.agrees(bundle.ok_or_else(|| weighed.missing())?)?;
        }
        if let Some(kept) = kept.iter().map(|kept| Digest::of_bytes(kept)).find(|kept| admissions.iter().all(|own| own.bundle != *kept)) {
            return Err(Wrong {
                code: Code::IntegrityViolation,
                index: last,
                what: format!("{kept} is given along, and no entry names it"),
            });
        }
        Ok(Proof { history, run, admissions, recoveries })
    }
}

fn violated(index: u64, what: String) -> Wrong {
    Wrong { code: Code::IntegrityViolation, index, what: format!("entry {index} {what}") }
}

fn missing(index: u64, what: String) -> Wrong {
    Wrong { code: Code::EvidenceMissing, index, what }
}
