//! Selects entries by run, guest, kind or time, for a person who reads a long ledger.
//!
//! Most records of an operation contain only its id, so the filter must see all entries in order: the intent has the run and the guest.
//!
//! Must not read entries, or limit how many are shown.

use std::collections::BTreeMap;

use super::LedgerEntry;
use crate::apply::{Hold, JournalRecord, OperationId, RunId};
use crate::guest::Vmid;

/// The filter criteria; `None` accepts all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryQuery {
    /// Entries of this run and its operations.
    pub run: Option<RunId>,
    /// Entries about this guest, in any environment.
    pub guest: Option<Vmid>,
    /// Entries of this kind, by name.
    pub kind: Option<Box<str>>,
    /// Entries of this time or later, in milliseconds since 1970.
    pub since_ms: Option<u64>,
}

impl EntryQuery {
    /// Whether it accepts all entries.
    #[must_use]
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }
}

/// Applies a query to a sequence of entries.
#[derive(Clone, Debug, Default)]
pub struct EntryFilter {
    query: EntryQuery,
    operations: BTreeMap<OperationId, (RunId, Vmid)>,
}

impl EntryFilter {
    /// A filter for this query.
    #[must_use]
    pub fn new(wanted: EntryQuery) -> Self {
        Self { query: wanted, operations: BTreeMap::new() }
    }

    /// Takes the next entry; whether it matches.
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

/// The run that an entry contains.
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

/// The guest that an entry contains.
fn guest_of(entry: &LedgerEntry) -> Option<Vmid> {
    match entry {
        LedgerEntry::Refused { guest, .. } => *guest,
        LedgerEntry::Hold(Hold { vmid, .. }) => Some(*vmid),
        LedgerEntry::Release { guest, .. } => Some(*guest),
        _ => None,
    }
}
