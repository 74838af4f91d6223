//! Which entries are about a run, a guest, or of a kind or time: what a person asks for who reads a long ledger.
//!
//! Most records of an operation name nothing but its id, so that all entries are told in their order: the intent says whose it is.
//!
//! What never enters: reading entries, and how many of them are shown.

use std::collections::BTreeMap;

use super::Entry;
use crate::apply::{Hold, OperationId, Record, RunId};
use crate::guest::Vmid;

/// What is asked for. Whatever is none is not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Entries of this run, and of what it did.
    pub run: Option<RunId>,
    /// Entries about this guest, in whichever environment.
    pub guest: Option<Vmid>,
    /// Entries of this kind, by its word.
    pub kind: Option<Box<str>>,
    /// Entries of this time or later, in milliseconds since 1970.
    pub since_ms: Option<u64>,
}

impl Wanted {
    /// Whether all entries are.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// Entries on their way through what is asked for.
#[derive(Clone, Debug, Default)]
pub struct Sieve {
    wanted: Wanted,
    operations: BTreeMap<OperationId, (RunId, Vmid)>,
}

impl Sieve {
    /// For what is asked.
    #[must_use]
    pub fn of(wanted: Wanted) -> Self {
        Self { wanted, operations: BTreeMap::new() }
    }

    /// The next entry: whether it is asked for.
    pub fn takes(&mut self, entry: &Entry) -> bool {
        if let Entry::Record(Record::Intent { operation, .. }) = entry {
            self.operations.insert(operation.id.clone(), (operation.run.clone(), operation.guest.vmid));
        }
        let Wanted { run, guest, kind, since_ms } = &self.wanted;
        kind.as_deref().is_none_or(|kind| kind == entry.kind())
            && since_ms.is_none_or(|since_ms| entry.at_ms() >= since_ms)
            && run.as_ref().is_none_or(|run| run_of(entry) == Some(run) || self.those(entry).any(|(own, _)| own == run))
            && guest.is_none_or(|guest| guest_of(entry) == Some(guest) || self.those(entry).any(|(_, own)| *own == guest))
    }

    /// The runs and guests of the operations that an entry is about.
    fn those<'s>(&'s self, entry: &'s Entry) -> impl Iterator<Item = &'s (RunId, Vmid)> {
        let ids = match entry {
            Entry::Record(record) => std::slice::from_ref(record.id()),
            Entry::Recovery { operations, .. } => operations,
            _ => &[],
        };
        ids.iter().filter_map(|id| self.operations.get(id))
    }
}

/// The run that an entry names.
fn run_of(entry: &Entry) -> Option<&RunId> {
    match entry {
        Entry::RunStarted { run, .. } => Some(&run.id),
        Entry::PlanMade { run, .. }
        | Entry::Refused { run, .. }
        | Entry::Approved { run, .. }
        | Entry::Admitted { run, .. }
        | Entry::RunEnded { run, .. } => Some(run),
        _ => None,
    }
}

/// The guest that an entry names.
fn guest_of(entry: &Entry) -> Option<Vmid> {
    match entry {
        Entry::Refused { guest, .. } => *guest,
        Entry::Hold(Hold { vmid, .. }) => Some(*vmid),
        Entry::Release { guest, .. } => Some(*guest),
        _ => None,
    }
}
