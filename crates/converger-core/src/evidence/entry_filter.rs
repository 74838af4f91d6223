//! Which entries are about a run, a guest, or of a kind or time: what a person asks for who reads a long ledger.
//!
//! Most records of an operation name nothing but its id, so that all entries are told in their order: the intent says whose it is.
//!
//! What never enters: reading entries, and how many of them are shown.

use std::collections::BTreeMap;

use super::LedgerEntry;
use crate::apply::{Hold, JournalRecord, OperationId, RunId};
use crate::guest::Vmid;

/// What is asked for. Whatever is none is not asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery {
    /// Entries of this run, and of what it did.
    pub run: Option<RunId>,
    /// Entries about this guest, in whichever environment.
    pub guest: Option<Vmid>,
    /// Entries of this kind, by its word.
    pub kind: Option<Box<str>>,
    /// Entries of this time or later, in milliseconds since 1970.
    pub since_ms: Option<u64>,
}

impl EntryQuery {
    /// Whether all entries are.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// Entries on their way through what is asked for.
#[derive(Clone, Debug, Default)]
pub struct EntryFilter {
    query: EntryQuery,
    operations: BTreeMap<OperationId, (RunId, Vmid)>,
}

impl EntryFilter {
    /// For what is asked.
    #[must_use]
    pub fn new(wanted: EntryQuery) -> Self {
        Self { query: wanted, operations: BTreeMap::new() }
    }

    /// The next entry: whether it is asked for.
    pub fn accepts(&mut self, entry: &LedgerEntry) -> bool {
        if let LedgerEntry::Record(JournalRecord::Intent { operation, .. }) = entry {
            self.operations.insert(operation.id.clone(), (operation.run.clone(), operation.guest.vmid));
        }
        let EntryQuery { run, guest, kind, since_ms } = &self.query;
        kind.as_deref().is_none_or(|kind| kind == entry.kind())
            && since_ms.is_none_or(|since_ms| entry.at_ms() >= since_ms)
            && run.as_ref().is_none_or(|run| run_of(entry) == Some(run) || self.operation_owners(entry).any(|(own, _)| own == run))
            && guest.is_none_or(|guest| guest_of(entry) == Some(guest) || self.operation_owners(entry).any(|(_, own)| *own == guest))
    }

    /// The runs and guests of the operations that an entry is about.
    fn operation_owners<'s>(&'s self, entry: &'s LedgerEntry) -> impl Iterator<Item = &'s (RunId, Vmid)> {
        let ids = match entry {
            LedgerEntry::Record(record) => std::slice::from_ref(record.id()),
            LedgerEntry::Recovery { operations, .. } => operations,
            _ => &[],
        };
        ids.iter().filter_map(|id| self.operations.get(id))
    }
}

/// The run that an entry names.
fn run_of(entry: &LedgerEntry) -> Option<&RunId> {
    match entry {
        LedgerEntry::RunStarted { run, .. } => Some(&run.id),
        LedgerEntry::PlanMade { run, .. }
        | LedgerEntry::Refused { run, .. }
        | LedgerEntry::Approved { run, .. }
        | LedgerEntry::Admitted { run, .. }
        | LedgerEntry::RunEnded { run, .. } => Some(run),
        _ => None,
    }
}

/// The guest that an entry names.
fn guest_of(entry: &LedgerEntry) -> Option<Vmid> {
    match entry {
        LedgerEntry::Refused { guest, .. } => *guest,
        LedgerEntry::Hold(Hold { vmid, .. }) => Some(*vmid),
        LedgerEntry::Release { guest, .. } => Some(*guest),
        _ => None,
    }
}
