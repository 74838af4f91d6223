//! Whether a journal says what the entries of its ledger amount to (C7): everything in it, and nothing else.
//!
//! The journal is told row by row, by whoever can read it; the first row that the entries do not have, have otherwise, or have without it is
//! what is found, with the entry that it is about.
//!
//! What never enters: reading either of them, and whether entries can stand where they do (`evidence::LedgerReplay`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use converger_core::apply::{
    EnvironmentNames, EnvironmentRename, Freeze, Hold, JournalRecord, Operation, OperationHistory, OperationId, OperationSource, RunId,
};
use converger_core::evidence::{LedgerEntry, LedgerReplay};
use converger_core::guest::{EnvironmentName, Vmid};

use crate::query::{EndedBy, HoldHistory, IdempotencyRow, JournalOverview, LIST_MAX, OperationFilter, RunHistory};
use crate::{StoreError, StoreReader};

/// What entries say in their order, beyond what holds in the end: where each thing stands, what people said and took back, and what came first.
#[derive(Clone, Debug, Default)]
pub struct LedgerIndex {
    runs: Vec<RunId>,
    operations: Vec<OperationId>,
    hold_history: HoldHistory,
    /// The entries of a run: its start, and its end.
    run_entries: BTreeMap<RunId, (u64, Option<u64>)>,
    /// The entries of an operation, by what they are.
    operation_entries: BTreeMap<OperationId, BTreeMap<&'static str, u64>>,
    /// The entries of what was said, in its order: that, and what ended it.
    hold_entries: Vec<(u64, Option<u64>)>,
    freeze_entries: Vec<(u64, Option<u64>)>,
    /// The last entries that bound or renamed an environment, by name.
    of_names: BTreeMap<EnvironmentName, u64>,
}

/// What only one of a journal and its ledger has, or both have in another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalMismatch {
    /// The entry that it is about; none, where the ledger has none: then the sentence names the row.
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
    /// One entry more. Whether it can stand there is asked elsewhere.
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
            _ => {}
        }
    }

    fn rename(&mut self, index: u64, EnvironmentRename { from, to, .. }: &EnvironmentRename) {
        self.hold_history.rename_active(from, to);
        self.of_names.extend([(from.clone(), index), (to.clone(), index)]);
    }

    /// The entry that began a hold which is in force.
    fn hold_entry(&self, environment: &EnvironmentName, vmid: Vmid) -> Option<u64> {
        let at = self.hold_history.holds.iter().rposition(|(hold, _)| hold.environment == *environment && hold.vmid == vmid)?;
        self.hold_entries.get(at).map(|(index, _)| *index)
    }

    fn freeze_entry(&self, environment: &EnvironmentName) -> Option<u64> {
        let at = self.hold_history.freezes.iter().rposition(|(freeze, _)| freeze.environment == *environment)?;
        self.freeze_entries.get(at).map(|(index, _)| *index)
    }

    /// The entry of an operation in which it is another than the journal has it.
    fn first_differing_entry(&self, logged: &OperationHistory, kept: &OperationHistory) -> Option<u64> {
        let places = self.operation_entries.get(logged.id())?;
        let parts = [
            ("sending", logged.sending == kept.sending),
            ("task", logged.task == kept.task),
            ("outcome", logged.ended == kept.ended),
            ("resolution", logged.resolved == kept.resolved),
        ];
        let is_begun_alike = (&logged.operation, logged.at_ms, &logged.boot) == (&kept.operation, kept.at_ms, &kept.boot);
        let part = parts.iter().find(|(_, is_same)| is_begun_alike && !is_same).and_then(|(part, _)| places.get(part));
        part.or_else(|| places.get("intent")).copied()
    }
}

/// What was said last of what is meant is over.
fn end_latest<T>(
    said: &mut [(T, Option<EndedBy>)],
    places: &mut [(u64, Option<u64>)],
    index: u64,
    by: (&str, u64),
    is_meant: impl Fn(&T) -> bool,
) {
    let rows = said.iter_mut().zip(places).rev();
    if let Some(((_, over), (_, place))) = rows.into_iter().find(|((row, over), _)| over.is_none() && is_meant(row)) {
        *over = Some((by.0.into(), by.1));
        *place = Some(index);
    }
}

/// A journal, held against what entries amount to.
pub struct JournalCheck<'l> {
    replay: &'l LedgerReplay,
    index: &'l LedgerIndex,
    operations: BTreeSet<&'l OperationId>,
    runs: BTreeSet<&'l RunId>,
}

type MatchResult = Result<(), JournalMismatch>;

impl<'l> JournalCheck<'l> {
    /// With these entries, all of which both have taken.
    #[must_use]
    pub fn new(replay: &'l LedgerReplay, told: &'l LedgerIndex) -> Self {
        Self { replay, index: told, operations: BTreeSet::new(), runs: BTreeSet::new() }
    }

    /// The journal has this operation.
    ///
    /// # Errors
    /// The entries do not, or not so.
    pub fn check_operation(&mut self, kept: &OperationHistory) -> MatchResult {
        let id = kept.id();
        let Some((own, logged)) = self.replay.operations().get_key_value(id) else {
            return mismatch(None, format!("the journal has the operation {}, and the ledger does not", id.as_str()));
        };
        if logged != kept {
            let at = self.index.first_differing_entry(logged, kept);
            return mismatch(at, format!("the journal tells another story of the operation {} than the ledger", id.as_str()));
        }
        if self.operations.insert(own) {
            return Ok(());
        }
        mismatch(self.intent_entry(id), format!("the journal has the operation {} twice", id.as_str()))
    }

    /// The journal has this run.
    ///
    /// # Errors
    /// The entries do not, or not so.
    pub fn check_run(&mut self, kept: &RunHistory) -> MatchResult {
        let id = &kept.run.id;
        let Some((own, (run, ended))) = self.replay.runs().get_key_value(id) else {
            return mismatch(None, format!("the journal has the run {}, and the ledger does not", id.as_str()));
        };
        if (run, ended) != (&kept.run, &kept.ended) {
            let (start, end) = self.index.run_entries.get(id).copied().unzip();
            let at = if *run == kept.run { end.flatten().or(start) } else { start };
            return mismatch(at, format!("the journal tells another story of the run {} than the ledger", id.as_str()));
        }
        self.runs.insert(own);
        Ok(())
    }

    /// In the journal these guests are held now and these environments are frozen.
    ///
    /// # Errors
    /// By the entries it is others.
    pub fn check_active_holds(&self, holds: &[Hold], freezes: &[Freeze]) -> MatchResult {
        if let Some(hold) = first_unmatched(holds, &self.replay.holds().cloned().collect::<Vec<_>>()) {
            let (at, who) = (self.index.hold_entry(&hold.environment, hold.vmid), describe_hold(hold));
            return mismatch(at, format!("the journal has other guests held than the ledger: {who}"));
        }
        match first_unmatched(freezes, &self.replay.freezes().cloned().collect::<Vec<_>>()) {
            None => Ok(()),
            Some(freeze) => {
                let (at, who) = (self.index.freeze_entry(&freeze.environment), describe_freeze(freeze));
                mismatch(at, format!("the journal has other environments frozen than the ledger: {who}"))
            }
        }
    }

    /// In the journal these clusters have these names, and these are former ones.
    ///
    /// # Errors
    /// By the entries it is others.
    pub fn check_names(&self, kept: &EnvironmentNames) -> MatchResult {
        let logged = self.replay.names();
        let rows = |names: &EnvironmentNames| names.bindings().cloned().collect::<Vec<_>>();
        if let Some(binding) = first_unmatched(&rows(kept), &rows(logged)) {
            let at = self.index.of_names.get(&binding.environment).copied();
            return mismatch(at, format!("the journal has another cluster recorded than the ledger: the one of {}", binding.environment));
        }
        let rows = |names: &EnvironmentNames| names.former().map(|(name, now)| (name.clone(), now.clone())).collect::<Vec<_>>();
        match first_unmatched(&rows(kept), &rows(logged)) {
            None => Ok(()),
            Some((name, _)) => {
                mismatch(self.index.of_names.get(name).copied(), format!("the journal has other names recorded than the ledger: {name}"))
            }
        }
    }

    /// The journal has said all that it has.
    ///
    /// # Errors
    /// The entries have more.
    pub fn check_complete(&self) -> MatchResult {
        if let Some(id) = self.replay.operations().keys().find(|id| !self.operations.contains(id)) {
            return mismatch(self.intent_entry(id), format!("the ledger has the operation {}, and the journal does not", id.as_str()));
        }
        match self.replay.runs().keys().find(|id| !self.runs.contains(id)) {
            None => Ok(()),
            Some(id) => mismatch(self.run_start_entry(id), format!("the ledger has the run {}, and the journal does not", id.as_str())),
        }
    }

    /// What a journal on a disk has beside what holds now: what was said and taken back, what came first, and which requests act once.
    ///
    /// # Errors
    /// By the entries it is another past.
    pub fn check_history(&self, overview: &JournalOverview) -> MatchResult {
        let JournalOverview { runs, operations, hold_history: said, idempotency_keys, .. } = overview;
        let (told, mut keys) = (self.index, idempotency_keys.clone());
        let place = |places: &[(u64, Option<u64>)], at: usize| places.get(at).map(|(said, over)| over.unwrap_or(*said));
        check_same_rows(
            "a hold",
            &told.hold_history.holds,
            &said.holds,
            |(hold, _)| describe_hold(hold),
            |at, _| place(&told.hold_entries, at),
        )?;
        check_same_rows(
            "a freeze",
            &told.hold_history.freezes,
            &said.freezes,
            |(freeze, _)| describe_freeze(freeze),
            |at, _| place(&told.freeze_entries, at),
        )?;
        let of_run = |id: &RunId| format!("the place of the run {}", id.as_str());
        check_same_rows("a run", &told.runs, runs, of_run, |_, id| self.run_start_entry(id))?;
        let of_operation = |id: &OperationId| format!("the place of the operation {}", id.as_str());
        check_same_rows("an operation", &told.operations, operations, of_operation, |_, id| self.intent_entry(id))?;
        let mut logged: Vec<IdempotencyRow> =
            self.replay.operations().values().filter_map(|history| idempotency_row(self.replay.names(), history)).collect();
        logged.sort();
        keys.sort();
        let of_key = |row: &IdempotencyRow| format!("the idempotency key of the operation {}", row.operation.as_str());
        check_same_rows("an idempotency key", &logged, &keys, of_key, |_, row| self.intent_entry(&row.operation))
    }

    fn intent_entry(&self, id: &OperationId) -> Option<u64> {
        self.index.operation_entries.get(id).and_then(|places| places.get("intent")).copied()
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

/// The key that an operation is known by, where it has one.
fn idempotency_row(names: &EnvironmentNames, history: &OperationHistory) -> Option<IdempotencyRow> {
    let Operation { environment, id, source: OperationSource::OneShot { key, request }, .. } = &*history.operation else { return None };
    Some(IdempotencyRow { environment: names.current(environment).clone(), key: key.clone(), request: *request, operation: id.clone() })
}

/// The first row that only one of two lists has.
fn first_unmatched<'r, T: PartialEq>(kept: &'r [T], logged: &'r [T]) -> Option<&'r T> {
    let missing = |rows: &'r [T], others: &[T]| rows.iter().find(|row| !others.contains(row));
    missing(logged, kept).or_else(|| missing(kept, logged))
}

/// Whether the journal has the same rows in the same order as the ledger.
fn check_same_rows<T: PartialEq>(
    what: &str,
    logged: &[T],
    kept: &[T],
    of: impl Fn(&T) -> String,
    place: impl Fn(usize, &T) -> Option<u64>,
) -> MatchResult {
    let at = logged.iter().zip(kept).take_while(|(one, other)| one == other).count();
    match (logged.get(at), kept.get(at)) {
        (None, None) => Ok(()),
        (Some(row), Some(_)) => mismatch(place(at, row), format!("the journal tells another story of {} than the ledger", of(row))),
        (Some(row), None) => mismatch(place(at, row), format!("the ledger has {what} that the journal does not have: {}", of(row))),
        (None, Some(row)) => mismatch(None, format!("the journal has {what} that the ledger does not have: {}", of(row))),
    }
}
