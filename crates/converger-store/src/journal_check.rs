//! Checks that the journal agrees with the replay of its ledger (C7): it contains everything that the entries say and nothing else.
//!
//! The caller passes the rows of the journal one by one. The check reports the first row that is only in the journal, only in the ledger,
//! or different, with the entry that it is about.
//!
//! Must not read the journal or the ledger, or check whether entries may follow each other (`evidence::LedgerReplay` does).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use converger_core::apply::{
    EnvironmentNames, EnvironmentRename, Freeze, Hold, JournalRecord, Operation, OperationHistory, OperationId, OperationSource, RunId,
};
use converger_core::evidence::{LedgerEntry, LedgerReplay};
use converger_core::guest::{EnvironmentName, Vmid};

use crate::query::{EndedBy, HoldHistory, IdempotencyRow, JournalOverview, LIST_MAX, OperationFilter, RunHistory};
use crate::{StoreError, StoreReader};

/// What the order of the entries shows beyond the final state: the entry of each run and operation, holds that ended, and the order of
/// starts.
#[derive(Clone, Debug, Default)]
pub struct LedgerIndex {
    runs: Vec<RunId>,
    operations: Vec<OperationId>,
    hold_history: HoldHistory,
    /// The entries of each run: its start and its end.
    run_entries: BTreeMap<RunId, (u64, Option<u64>)>,
    /// The entries of each operation, by kind.
    operation_entries: BTreeMap<OperationId, BTreeMap<&'static str, u64>>,
    /// The entries of each hold, in order: its start and its end.
    hold_entries: Vec<(u64, Option<u64>)>,
    freeze_entries: Vec<(u64, Option<u64>)>,
    /// The last entry that bound or renamed an environment, by name.
    of_names: BTreeMap<EnvironmentName, u64>,
    /// The last entry that began an epoch.
    epoch_entry: Option<u64>,
}

/// A difference between a journal and its ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalMismatch {
    /// The entry that it is about; `None` if the ledger has no such entry, and then the message names the row.
    pub index: Option<u64>,
    what: String,
}

impl fmt::Display for JournalMismatch {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.what)?;
        self.index.map_or(Ok(()), |index| write!(out, " (entry {index})"))
    }
}

impl LedgerIndex {
    /// Adds one entry. Whether the entry may be there is checked elsewhere.
    pub fn add_entry(&mut self, index: u64, entry: &LedgerEntry) {
        let HoldHistory { holds, freezes } = &mut self.hold_history;
        match entry {
            LedgerEntry::RunStarted { run, .. } => {
                self.runs.push(run.id.clone());
                self.run_entries.insert(run.id.clone(), (index, None));
            }
            LedgerEntry::RunEnded { run, .. } => drop(self.run_entries.get_mut(run).map(|(_, end)| end.replace(index))),
            LedgerEntry::Record(record) => {
                if let JournalRecord::Intent { operation, .. } = record {
                    self.operations.push(operation.id.clone());
                }
                self.operation_entries.entry(record.id().clone()).or_default().insert(entry.kind(), index);
            }
            LedgerEntry::Hold(hold) => {
                holds.push((hold.clone(), None));
                self.hold_entries.push((index, None));
            }
            LedgerEntry::Release { environment, guest, by, at_ms } => {
                end_latest(holds, &mut self.hold_entries, index, (by, *at_ms), |hold| {
                    hold.environment == *environment && hold.vmid == *guest
                });
            }
            LedgerEntry::Freeze(freeze) => {
                freezes.push((freeze.clone(), None));
                self.freeze_entries.push((index, None));
            }
            LedgerEntry::Thaw { environment, by, at_ms } => {
                end_latest(freezes, &mut self.freeze_entries, index, (by, *at_ms), |freeze| freeze.environment == *environment);
            }
            LedgerEntry::Binding(binding) => drop(self.of_names.insert(binding.environment.clone(), index)),
            LedgerEntry::Rename(rename) => self.rename(index, rename),
            LedgerEntry::Resync { .. } | LedgerEntry::Restored { .. } => self.epoch_entry = Some(index),
            _ => {}
        }
    }

    fn rename(&mut self, index: u64, EnvironmentRename { from, to, .. }: &EnvironmentRename) {
        self.hold_history.rename_active(from, to);
        self.of_names.extend([(from.clone(), index), (to.clone(), index)]);
    }

    /// The entry that started the active hold of a guest.
    fn hold_entry(&self, environment: &EnvironmentName, vmid: Vmid) -> Option<u64> {
        let at = self.hold_history.holds.iter().rposition(|(hold, _)| hold.environment == *environment && hold.vmid == vmid)?;
        self.hold_entries.get(at).map(|(index, _)| *index)
    }

    fn freeze_entry(&self, environment: &EnvironmentName) -> Option<u64> {
        let at = self.hold_history.freezes.iter().rposition(|(freeze, _)| freeze.environment == *environment)?;
        self.freeze_entries.get(at).map(|(index, _)| *index)
    }

    /// The entry of the first part of an operation that differs from the journal.
    fn first_differing_entry(&self, logged: &OperationHistory, journaled: &OperationHistory) -> Option<u64> {
        let entries = self.operation_entries.get(logged.id())?;
        let parts = [
            ("sending", logged.sending == journaled.sending),
            ("task", logged.task == journaled.task),
            ("outcome", logged.ended == journaled.ended),
            ("resolution", logged.resolved == journaled.resolved),
        ];
        let is_begun_alike = (&logged.operation, logged.at_ms, &logged.boot) == (&journaled.operation, journaled.at_ms, &journaled.boot);
        let part = parts.iter().find(|(_, is_same)| is_begun_alike && !is_same).and_then(|(part, _)| entries.get(part));
        part.or_else(|| entries.get("intent")).copied()
    }
}

/// Ends the latest active row that matches.
fn end_latest<T>(
    history: &mut [(T, Option<EndedBy>)],
    entries: &mut [(u64, Option<u64>)],
    index: u64,
    by: (&str, u64),
    is_meant: impl Fn(&T) -> bool,
) {
    let rows = history.iter_mut().zip(entries).rev();
    if let Some(((_, over), (_, end_entry))) = rows.into_iter().find(|((row, over), _)| over.is_none() && is_meant(row)) {
        *over = Some((by.0.into(), by.1));
        *end_entry = Some(index);
    }
}

/// Compares a journal with the replay of the ledger entries.
pub struct JournalCheck<'l> {
    replay: &'l LedgerReplay,
    index: &'l LedgerIndex,
    operations: BTreeSet<&'l OperationId>,
    runs: BTreeSet<&'l RunId>,
}

type MatchResult = Result<(), JournalMismatch>;

impl<'l> JournalCheck<'l> {
    /// Starts a check. `replay` and `ledger_index` must both have consumed all entries.
    #[must_use]
    pub fn new(replay: &'l LedgerReplay, ledger_index: &'l LedgerIndex) -> Self {
        Self { replay, index: ledger_index, operations: BTreeSet::new(), runs: BTreeSet::new() }
    }

    /// Checks one operation of the journal.
    ///
    /// # Errors
    /// The ledger does not have the operation, or has it differently.
    pub fn check_operation(&mut self, journaled: &OperationHistory) -> MatchResult {
        let id = journaled.id();
        let Some((own, logged)) = self.replay.operations().get_key_value(id) else {
            return mismatch(None, format!("the journal has the operation {}, and the ledger does not", id.as_str()));
        };
        if logged != journaled {
            let at = self.index.first_differing_entry(logged, journaled);
            return mismatch(at, format!("the journal differs from the ledger in the operation {}", id.as_str()));
        }
        if self.operations.insert(own) {
            return Ok(());
        }
        mismatch(self.intent_entry(id), format!("the journal has the operation {} twice", id.as_str()))
    }

    /// Checks one run of the journal.
    ///
    /// # Errors
    /// The ledger does not have the run, or has it differently.
    pub fn check_run(&mut self, journaled: &RunHistory) -> MatchResult {
        let id = &journaled.run.id;
        let Some((own, (run, ended))) = self.replay.runs().get_key_value(id) else {
            return mismatch(None, format!("the journal has the run {}, and the ledger does not", id.as_str()));
        };
        if (run, ended) != (&journaled.run, &journaled.ended) {
            let (start, end) = self.index.run_entries.get(id).copied().unzip();
            let at = if *run == journaled.run { end.flatten().or(start) } else { start };
            return mismatch(at, format!("the journal differs from the ledger in the run {}", id.as_str()));
        }
        self.runs.insert(own);
        Ok(())
    }

    /// Compares the active holds and freezes of the journal.
    ///
    /// # Errors
    /// The ledger has other active holds or freezes.
    pub fn check_active_holds(&self, holds: &[Hold], freezes: &[Freeze]) -> MatchResult {
        if let Some(hold) = first_unmatched(holds, &self.replay.holds().cloned().collect::<Vec<_>>()) {
            let (at, description) = (self.index.hold_entry(&hold.environment, hold.vmid), describe_hold(hold));
            return mismatch(at, format!("the journal and the ledger have different active holds: {description}"));
        }
        match first_unmatched(freezes, &self.replay.freezes().cloned().collect::<Vec<_>>()) {
            None => Ok(()),
            Some(freeze) => {
                let (at, description) = (self.index.freeze_entry(&freeze.environment), describe_freeze(freeze));
                mismatch(at, format!("the journal and the ledger have different active freezes: {description}"))
            }
        }
    }

    /// Compares the environment names of the journal, current and former.
    ///
    /// # Errors
    /// The ledger has other names or bindings.
    pub fn check_names(&self, journaled: &EnvironmentNames) -> MatchResult {
        let logged = self.replay.names();
        let rows = |names: &EnvironmentNames| names.bindings().cloned().collect::<Vec<_>>();
        if let Some(binding) = first_unmatched(&rows(journaled), &rows(logged)) {
            let at = self.index.of_names.get(&binding.environment).copied();
            return mismatch(at, format!("the journal and the ledger have different clusters recorded for {}", binding.environment));
        }
        let rows = |names: &EnvironmentNames| names.former().map(|(name, now)| (name.clone(), now.clone())).collect::<Vec<_>>();
        match first_unmatched(&rows(journaled), &rows(logged)) {
            None => Ok(()),
            Some((name, _)) => {
                mismatch(self.index.of_names.get(name).copied(), format!("the journal and the ledger have different former names: {name}"))
            }
        }
    }

    /// Compares the epoch of the store.
    ///
    /// # Errors
    /// The entries lead to another epoch.
    pub fn check_epoch(&self, stored: u64) -> MatchResult {
        let logged = self.replay.epoch();
        if stored == logged {
            return Ok(());
        }
        mismatch(self.index.epoch_entry, format!("the store is in epoch {stored}, and the ledger is in epoch {logged}"))
    }

    /// Checks that the ledger has nothing that the journal lacks. Call it after all operations and runs were checked.
    ///
    /// # Errors
    /// The ledger has more operations or runs.
    pub fn check_complete(&self) -> MatchResult {
        if let Some(id) = self.replay.operations().keys().find(|id| !self.operations.contains(id)) {
            return mismatch(self.intent_entry(id), format!("the ledger has the operation {}, and the journal does not", id.as_str()));
        }
        match self.replay.runs().keys().find(|id| !self.runs.contains(id)) {
            None => Ok(()),
            Some(id) => mismatch(self.run_start_entry(id), format!("the ledger has the run {}, and the journal does not", id.as_str())),
        }
    }

    /// Compares what a journal on disk contains beyond the current state: ended holds and freezes, the order of starts, and idempotency
    /// keys.
    ///
    /// # Errors
    /// The ledger shows a different history.
    pub fn check_history(&self, overview: &JournalOverview) -> MatchResult {
        let JournalOverview { runs, operations, hold_history, idempotency_keys, .. } = overview;
        let (ledger_index, mut keys) = (self.index, idempotency_keys.clone());
        let entry_at = |entries: &[(u64, Option<u64>)], at: usize| entries.get(at).map(|(start, over)| over.unwrap_or(*start));
        check_same_rows(
            "a hold",
            &ledger_index.hold_history.holds,
            &hold_history.holds,
            |(hold, _)| describe_hold(hold),
            |at, _| entry_at(&ledger_index.hold_entries, at),
        )?;
        check_same_rows(
            "a freeze",
            &ledger_index.hold_history.freezes,
            &hold_history.freezes,
            |(freeze, _)| describe_freeze(freeze),
            |at, _| entry_at(&ledger_index.freeze_entries, at),
        )?;
        let of_run = |id: &RunId| format!("the position of the run {}", id.as_str());
        check_same_rows("a run", &ledger_index.runs, runs, of_run, |_, id| self.run_start_entry(id))?;
        let of_operation = |id: &OperationId| format!("the position of the operation {}", id.as_str());
        check_same_rows("an operation", &ledger_index.operations, operations, of_operation, |_, id| self.intent_entry(id))?;
        let mut logged: Vec<IdempotencyRow> =
            self.replay.operations().values().filter_map(|history| idempotency_row(self.replay.names(), history)).collect();
        logged.sort();
        keys.sort();
        let of_key = |row: &IdempotencyRow| format!("the idempotency key of the operation {}", row.operation.as_str());
        check_same_rows("an idempotency key", &logged, &keys, of_key, |_, row| self.intent_entry(&row.operation))
    }

    fn intent_entry(&self, id: &OperationId) -> Option<u64> {
        self.index.operation_entries.get(id).and_then(|entries| entries.get("intent")).copied()
    }

    fn run_start_entry(&self, id: &RunId) -> Option<u64> {
        self.index.run_entries.get(id).map(|(start, _)| *start)
    }
}

/// The first row in which the journal of a store differs from what these ledger entries imply (C7), all of which both were given. Operations are
/// read page by page.
///
/// # Errors
/// The journal cannot be read.
pub async fn find_journal_mismatch(
    store: &impl StoreReader,
    replay: &LedgerReplay,
    index: &LedgerIndex,
) -> Result<Option<JournalMismatch>, StoreError> {
    let mut check = JournalCheck::new(replay, index);
    if let Some(found) = check_each_operation(store, &mut check).await? {
        return Ok(Some(found));
    }
    let overview = store.journal_overview().await?;
    for id in &overview.runs {
        // A row that cannot be found by its own id belongs to another run.
        if let Some(Err(found)) = store.run(id.clone()).await?.map(|run| check.check_run(&run)) {
            return Ok(Some(found));
        }
    }
    let agreed = check
        .check_complete()
        .and_then(|()| check.check_active_holds(&overview.holds, &overview.freezes))
        .and_then(|()| check.check_names(&overview.names))
        .and_then(|()| check.check_epoch(overview.epoch))
        .and_then(|()| check.check_history(&overview));
    Ok(agreed.err())
}

async fn check_each_operation(store: &impl StoreReader, check: &mut JournalCheck<'_>) -> Result<Option<JournalMismatch>, StoreError> {
    let mut before: Option<OperationId> = None;
    loop {
        let page = store.operations(OperationFilter { before: before.take(), ..OperationFilter::default() }, LIST_MAX).await?;
        let Some(last) = page.last() else { return Ok(None) };
        before = Some(last.id().clone());
        if let Some(found) = page.iter().find_map(|history| check.check_operation(history).err()) {
            return Ok(Some(found));
        }
    }
}

fn mismatch(index: Option<u64>, what: String) -> MatchResult {
    Err(JournalMismatch { index, what })
}

fn describe_hold(hold: &Hold) -> String {
    format!("the hold of guest {} in {}", hold.vmid, hold.environment)
}

fn describe_freeze(freeze: &Freeze) -> String {
    format!("the freeze of {}", freeze.environment)
}

/// The idempotency key of an operation, if it has one.
fn idempotency_row(names: &EnvironmentNames, history: &OperationHistory) -> Option<IdempotencyRow> {
    let Operation { environment, id, step, source: OperationSource::OneShot { key, request }, .. } = &*history.operation else {
        return None;
    };
    let (environment, change) = (names.current(environment).clone(), step.change.word().into());
    Some(IdempotencyRow { environment, key: key.clone(), change, request: *request, operation: id.clone() })
}

/// The first row that is in only one of two lists.
fn first_unmatched<'r, T: PartialEq>(journaled: &'r [T], logged: &'r [T]) -> Option<&'r T> {
    let missing = |rows: &'r [T], others: &[T]| rows.iter().find(|row| !others.contains(row));
    missing(logged, journaled).or_else(|| missing(journaled, logged))
}

/// Checks that the journal has the same rows in the same order as the ledger.
fn check_same_rows<T: PartialEq>(
    what: &str,
    logged: &[T],
    journaled: &[T],
    of: impl Fn(&T) -> String,
    entry_of: impl Fn(usize, &T) -> Option<u64>,
) -> MatchResult {
    let at = logged.iter().zip(journaled).take_while(|(one, other)| one == other).count();
    match (logged.get(at), journaled.get(at)) {
        (None, None) => Ok(()),
        (Some(row), Some(_)) => mismatch(entry_of(at, row), format!("the journal differs from the ledger in {}", of(row))),
        (Some(row), None) => mismatch(entry_of(at, row), format!("the ledger has {what} that the journal does not have: {}", of(row))),
        (None, Some(row)) => mismatch(None, format!("the journal has {what} that the ledger does not have: {}", of(row))),
    }
}
