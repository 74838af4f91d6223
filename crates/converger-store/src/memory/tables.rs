//! Ordered tables in memory with an undo log, so that the writes of a refused batch can be undone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use converger_core::apply::{
    EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, Hold, IdempotencyKey, JournalProgress, JournalRecord, Operation,
    OperationEnd, OperationHistory, OperationId, OperationSource, RunId, RunStart, SendingMark, TaskId,
};
use converger_core::artifact::Digest;
use converger_core::evidence::FIRST_EPOCH;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_ledger::{LogBuilder, LogHash, Tile};

use crate::query::{
    EndedBy, HoldHistory, IdempotencyRow, LedgerHead, LedgerHeads, LedgerRows, OperationFilter, OperationStatus, RunHistory,
};
use crate::tables::{ReadTables, WriteTables};

type GuestKey = (EnvironmentName, Vmid);
/// An idempotency key with the change of one of its operations.
type StepKey = (EnvironmentName, IdempotencyKey, Box<str>);

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryTables {
    /// In the order of their intents.
    operations: Vec<OperationHistory>,
    positions: BTreeMap<OperationId, usize>,
    occupants: BTreeMap<GuestKey, OperationId>,
    keys: BTreeMap<StepKey, (OperationId, Digest)>,
    /// In the order of their starts.
    runs: Vec<RunHistory>,
    run_positions: BTreeMap<RunId, usize>,
    /// Rows without an end are in force.
    hold_history: HoldHistory,
    names: EnvironmentNames,
    blobs: BTreeMap<Digest, Arc<[u8]>>,
    /// The ledger; empty if `has_no_ledger` is set. Its hashes are computed on request.
    entries: Vec<Arc<[u8]>>,
    has_no_ledger: bool,
    /// The epoch that the last resync or restore began.
    later_epoch: Option<u64>,
    /// The number of durable entries.
    durable: usize,
    undo: Vec<UndoStep>,
}

/// A position in the undo log.
#[derive(Clone, Copy)]
pub(super) struct UndoPosition(usize);

/// Undoes one write.
#[derive(Clone, Debug)]
enum UndoStep {
    Intent,
    Sending(usize, Option<SendingMark>),
    Tasked(usize),
    Ended(usize),
    Resolved(usize),
    Blob(Digest),
    Pruned(Digest, Arc<[u8]>),
    Run,
    RunEnd(usize),
    Hold,
    Release(usize),
    Freeze,
    Thaw(usize),
    Entry,
    Epoch(Option<u64>),
    Names(Box<ByName>),
}

/// Everything that is keyed by environment name, as it was before a binding or a rename. Both are rare, so a copy is affordable.
#[derive(Clone, Debug)]
struct ByName {
    names: EnvironmentNames,
    occupants: BTreeMap<GuestKey, OperationId>,
    keys: BTreeMap<StepKey, (OperationId, Digest)>,
    hold_history: HoldHistory,
}

impl MemoryTables {
    /// Empty tables without a ledger.
    pub(super) fn without_ledger() -> Self {
        Self { has_no_ledger: true, ..Self::default() }
    }

    pub(super) fn undo_position(&self) -> UndoPosition {
        UndoPosition(self.undo.len())
    }

    pub(super) fn clear_undo(&mut self) {
        self.undo.clear();
    }

    pub(super) fn undo_to(&mut self, mark: UndoPosition) {
        while self.undo.len() > mark.0 {
            if let Some(undo) = self.undo.pop() {
                self.apply_undo(undo);
            }
        }
    }

    fn apply_undo(&mut self, undo: UndoStep) {
        match undo {
            UndoStep::Intent => self.undo_intent(),
            UndoStep::Sending(position, before) => self.operations[position].sending = before,
            UndoStep::Tasked(position) => self.operations[position].task = None,
            UndoStep::Ended(position) => {
                self.operations[position].ended = None;
                self.occupy(position);
            }
            UndoStep::Resolved(position) => {
                self.operations[position].resolved = None;
                self.occupy(position);
            }
            UndoStep::Blob(digest) => drop(self.blobs.remove(&digest)),
            UndoStep::Pruned(digest, body) => drop(self.blobs.insert(digest, body)),
            UndoStep::Run => drop(self.runs.pop().map(|run| self.run_positions.remove(&run.run.id))),
            UndoStep::RunEnd(position) => self.runs[position].ended = None,
            UndoStep::Hold => drop(self.hold_history.holds.pop()),
            UndoStep::Release(row) => self.hold_history.holds[row].1 = None,
            UndoStep::Freeze => drop(self.hold_history.freezes.pop()),
            UndoStep::Thaw(row) => self.hold_history.freezes[row].1 = None,
            UndoStep::Entry => drop(self.entries.pop()),
            UndoStep::Epoch(before) => self.later_epoch = before,
            UndoStep::Names(before) => {
                let ByName { names, occupants, keys, hold_history } = *before;
                (self.names, self.occupants, self.keys, self.hold_history) = (names, occupants, keys, hold_history);
            }
        }
    }

    fn undo_intent(&mut self) {
        let Some(OperationHistory { operation, .. }) = self.operations.pop() else { return };
        self.positions.remove(&operation.id);
        self.release_guests(&operation);
        if let OperationSource::OneShot { key, .. } = &operation.source {
            self.keys.remove(&(operation.environment.clone(), key.clone(), operation.step.change.word().into()));
        }
    }

    fn occupy(&mut self, position: usize) {
        let operation = &self.operations[position].operation;
        let (id, keys) = (operation.id.clone(), self.guest_keys(operation));
        self.occupants.extend(keys.into_iter().map(|key| (key, id.clone())));
    }

    fn put_intent(&mut self, operation: Box<Operation>, at_ms: u64) {
        let position = self.operations.len();
        self.positions.insert(operation.id.clone(), position);
        if let OperationSource::OneShot { key, request } = &operation.source {
            let step = (operation.environment.clone(), key.clone(), operation.step.change.word().into());
            self.keys.insert(step, (operation.id.clone(), *request));
        }
        let boot = self.run_positions.get(&operation.run).and_then(|run| self.runs[*run].run.boot.clone());
        self.operations.push(OperationHistory { boot, ..OperationHistory::from_intent(operation, at_ms) });
        self.occupy(position);
        self.undo.push(UndoStep::Intent);
    }

    /// Marks everything as durable; none of it can be undone any more.
    pub(super) fn make_durable(&mut self) {
        self.clear_undo();
        self.durable = self.entries.len();
    }

    /// Drops the entries that are not on disk: those of sending marks.
    pub(super) fn lose_entries(&mut self) {
        self.entries.truncate(self.durable);
    }

    /// Builds the log over the first `size` entries.
    fn build_log(&self, size: usize, mut filled: impl FnMut(Tile, &[LogHash])) -> LogBuilder {
        let mut log_builder = LogBuilder::default();
        for entry in self.entries.iter().take(size) {
            log_builder.append(LogHash::of_leaf(entry), |tile, hashes, _| filled(tile, hashes));
        }
        log_builder
    }

    /// Restores the mark that is on disk.
    pub(super) fn lose_mark(&mut self, id: &OperationId, before: Option<SendingMark>) {
        if let Some(position) = self.positions.get(id) {
            self.operations[*position].sending = before;
        }
    }

    /// The sending mark of an operation.
    pub(super) fn sending_mark(&self, id: &OperationId) -> Option<SendingMark> {
        self.find_operation(id)?.sending
    }

    /// The guest of an operation, under the current name of its environment.
    /// The keys of the guests that an operation occupies.
    fn guest_keys(&self, operation: &Operation) -> Vec<GuestKey> {
        let environment = self.names.current(&operation.environment);
        operation.occupied_guests().map(|vmid| (environment.clone(), vmid)).collect()
    }

    fn release_guests(&mut self, operation: &Operation) {
        for key in self.guest_keys(operation) {
            self.occupants.remove(&key);
        }
    }

    /// Saves what a binding or a rename changes, for undo.
    fn remember_names(&mut self) {
        let (names, occupants, keys) = (self.names.clone(), self.occupants.clone(), self.keys.clone());
        let before = ByName { names, occupants, keys, hold_history: self.hold_history.clone() };
        self.undo.push(UndoStep::Names(Box::new(before)));
    }

    /// The full tiles of the ledger.
    fn full_tiles(&self) -> BTreeMap<(u8, u64), Vec<LogHash>> {
        let mut tiles = BTreeMap::new();
        self.build_log(self.entries.len(), |full, hashes| drop(tiles.insert((full.level, full.index), hashes.to_vec())));
        tiles
    }

    fn active_hold(&self, environment: &EnvironmentName, vmid: Vmid) -> Option<usize> {
        let is_meant = |(hold, end): &(Hold, Option<EndedBy>)| end.is_none() && hold.environment == *environment && hold.vmid == vmid;
        self.hold_history.holds.iter().rposition(is_meant)
    }

    fn active_freeze(&self, environment: &EnvironmentName) -> Option<usize> {
        let is_meant = |(freeze, end): &(Freeze, Option<EndedBy>)| end.is_none() && freeze.environment == *environment;
        self.hold_history.freezes.iter().rposition(is_meant)
    }

    fn find_operation(&self, id: &OperationId) -> Option<&OperationHistory> {
        self.positions.get(id).map(|position| &self.operations[*position])
    }
}

/// The rows that nobody has ended.
fn active_rows<T>(rows: &[(T, Option<EndedBy>)]) -> impl Iterator<Item = &T> {
    rows.iter().filter(|(_, end)| end.is_none()).map(|(row, _)| row)
}

fn collect_limited<T: Clone>(rows: impl Iterator<Item = T>, limit: u32) -> Vec<T> {
    rows.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
}

fn matches_filter(names: &EnvironmentNames, filter: &OperationFilter, history: &OperationHistory) -> bool {
    let operation = &history.operation;
    filter.environment.as_ref().is_none_or(|environment| environment == names.current(&operation.environment))
        && filter.run.as_ref().is_none_or(|run| *run == operation.run)
        && filter.vmid.is_none_or(|vmid| vmid == operation.guest.vmid)
        && filter.status.is_none_or(|status| status == OperationStatus::from_progress(history.progress()))
}

impl ReadTables for MemoryTables {
    type Error = Infallible;

    fn progress(&self, id: &OperationId) -> Result<Option<JournalProgress>, Infallible> {
        Ok(self.find_operation(id).map(OperationHistory::progress))
    }

    fn occupant(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<OperationId>, Infallible> {
        Ok(self.occupants.get(&(environment.clone(), vmid)).cloned())
    }

    fn operation_environment(&self, id: &OperationId) -> Result<Option<EnvironmentName>, Infallible> {
        Ok(self.find_operation(id).map(|history| self.names.current(&history.operation.environment).clone()))
    }

    fn operation_of_task(&self, environment: &EnvironmentName, task: &TaskId) -> Result<Option<OperationId>, Infallible> {
        let has = |history: &&OperationHistory| {
            self.names.current(&history.operation.environment) == environment && history.task.as_ref().is_some_and(|(own, _)| own == task)
        };
        Ok(self.operations.iter().find(has).map(|history| history.id().clone()))
    }

    fn request_of_key(&self, environment: &EnvironmentName, key: &IdempotencyKey) -> Result<Option<(OperationId, Digest)>, Infallible> {
        let of_key = self.keys.iter().filter(|((own, own_key, _), _)| own == environment && own_key == key).map(|(_, row)| row);
        Ok(of_key.min_by_key(|(id, _)| self.positions.get(id)).cloned())
    }

    fn step_of_key(&self, environment: &EnvironmentName, key: &IdempotencyKey, change: &str) -> Result<Option<OperationId>, Infallible> {
        Ok(self.keys.get(&(environment.clone(), key.clone(), change.into())).map(|(operation, _)| operation.clone()))
    }

    fn run(&self, id: &RunId) -> Result<Option<RunHistory>, Infallible> {
        Ok(self.run_positions.get(id).map(|position| self.runs[*position].clone()))
    }

    fn hold(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<Hold>, Infallible> {
        Ok(self.active_hold(environment, vmid).map(|row| self.hold_history.holds[row].0.clone()))
    }

    fn freeze(&self, environment: &EnvironmentName) -> Result<Option<Freeze>, Infallible> {
        Ok(self.active_freeze(environment).map(|row| self.hold_history.freezes[row].0.clone()))
    }

    fn binding(&self, environment: &EnvironmentName) -> Result<Option<EnvironmentBinding>, Infallible> {
        Ok(self.names.binding(environment).cloned())
    }

    fn bound_to(&self, cluster: &ClusterIdentity) -> Result<Option<EnvironmentBinding>, Infallible> {
        Ok(self.names.bound_to(cluster).cloned())
    }

    fn renamed_to(&self, environment: &EnvironmentName) -> Result<Option<EnvironmentName>, Infallible> {
        Ok(self.names.renamed_to(environment).cloned())
    }

    fn find_state(&self, environment: &EnvironmentName) -> Result<bool, Infallible> {
        let has_run = self.runs.iter().any(|run| self.names.current(&run.run.environment) == environment);
        let has_hold = active_rows(&self.hold_history.holds).any(|hold| hold.environment == *environment);
        Ok(has_run || has_hold || self.active_freeze(environment).is_some())
    }

    fn names(&self) -> Result<EnvironmentNames, Infallible> {
        Ok(self.names.clone())
    }

    fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, Infallible> {
        Ok(self.find_operation(id).cloned())
    }

    fn open_operations(&self, environment: &EnvironmentName) -> Result<Vec<OperationHistory>, Infallible> {
        Ok(self.unsettled_operations(environment)?.into_iter().filter(|history| history.progress().is_open()).collect())
    }

    fn operations(&self, filter: &OperationFilter, limit: u32) -> Result<Vec<OperationHistory>, Infallible> {
        // An unknown id yields an empty list: no operation is older than it.
        let before = filter.before.as_ref().map(|id| self.positions.get(id).copied().unwrap_or(0));
        let older = &self.operations[..before.unwrap_or(self.operations.len())];
        Ok(collect_limited(older.iter().rev().filter(|history| matches_filter(&self.names, filter, history)).cloned(), limit))
    }

    fn runs(&self, environment: &EnvironmentName, limit: u32) -> Result<Vec<RunHistory>, Infallible> {
        Ok(collect_limited(self.runs.iter().rev().filter(|run| self.names.current(&run.run.environment) == environment).cloned(), limit))
    }

    fn holds(&self, environment: &EnvironmentName) -> Result<Vec<Hold>, Infallible> {
        let own = active_rows(&self.hold_history.holds).filter(|hold| hold.environment == *environment);
        let mut holds: Vec<Hold> = own.cloned().collect();
        holds.sort_by_key(|hold| hold.vmid);
        Ok(holds)
    }

    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.blobs.get(digest).map(|body| body.to_vec()))
    }

    fn heads(&self) -> Result<LedgerHeads, Infallible> {
        let head = |size| LedgerHead::from_tree(self.build_log(size, |_, _| ()).tree());
        let all = head(self.entries.len());
        Ok(LedgerHeads { durable: if self.durable == self.entries.len() { all } else { head(self.durable) }, all })
    }

    fn epoch(&self) -> Result<u64, Infallible> {
        Ok(self.later_epoch.unwrap_or(FIRST_EPOCH))
    }

    fn ledger_length(&self) -> Result<u64, Infallible> {
        Ok(self.entries.len() as u64)
    }

    fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, Infallible> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        Ok(collect_limited(self.entries.iter().skip(from).map(|entry| entry.to_vec()), limit))
    }

    fn hashes(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, Infallible> {
        let mut tiles = BTreeMap::new();
        let log_builder = self.build_log(self.entries.len(), |full, hashes| drop(tiles.insert((full.level, full.index), hashes.to_vec())));
        tiles.extend(log_builder.partial_tiles().map(|(open, hashes)| ((open.level, open.index), hashes.to_vec())));
        let hashes = tiles.get(&(tile.level, tile.index)).and_then(|hashes| hashes.get(..usize::from(tile.width)));
        Ok(hashes.map(<[LogHash]>::to_vec))
    }

    fn unsettled_operations(&self, environment: &EnvironmentName) -> Result<Vec<OperationHistory>, Infallible> {
        let own = self.occupants.iter().filter(|((own, _), _)| own == environment);
        let mut positions: Vec<usize> = own.filter_map(|(_, id)| self.positions.get(id).copied()).collect();
        positions.sort_unstable();
        // An operation with two guests has two rows.
        positions.dedup();
        Ok(positions.into_iter().map(|position| self.operations[position].clone()).collect())
    }

    fn start_order(&self) -> Result<(Vec<RunId>, Vec<OperationId>), Infallible> {
        let runs = self.runs.iter().map(|run| run.run.id.clone()).collect();
        Ok((runs, self.operations.iter().map(|history| history.id().clone()).collect()))
    }

    fn active_holds_and_freezes(&self) -> Result<(Vec<Hold>, Vec<Freeze>), Infallible> {
        let mut holds: Vec<Hold> = active_rows(&self.hold_history.holds).cloned().collect();
        holds.sort_by_key(|hold| (hold.environment.clone(), hold.vmid));
        let mut freezes: Vec<Freeze> = active_rows(&self.hold_history.freezes).cloned().collect();
        freezes.sort_by_key(|freeze| freeze.environment.clone());
        Ok((holds, freezes))
    }

    fn hold_history(&self) -> Result<HoldHistory, Infallible> {
        Ok(self.hold_history.clone())
    }

    fn idempotency_rows(&self) -> Result<Vec<IdempotencyRow>, Infallible> {
        let row = |((environment, key, change), (operation, request)): (&StepKey, &(OperationId, Digest))| {
            let (environment, key, change) = (environment.clone(), key.clone(), change.clone());
            IdempotencyRow { environment, key, change, request: *request, operation: operation.clone() }
        };
        Ok(self.keys.iter().map(row).collect())
    }

    fn digests(&self) -> Result<Vec<Digest>, Infallible> {
        Ok(self.blobs.keys().copied().collect())
    }

    fn full_tile(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, Infallible> {
        Ok(self.full_tiles().remove(&(tile.level, tile.index)))
    }

    fn ledger_rows(&self) -> Result<LedgerRows, Infallible> {
        Ok(LedgerRows { entries: self.entries.len() as u64, full_tiles: self.full_tiles().len() as u64 })
    }
}

impl WriteTables for MemoryTables {
    fn put_record(&mut self, record: JournalRecord, after: JournalProgress) -> Result<(), Infallible> {
        let record = match record {
            JournalRecord::Intent { operation, at_ms } => {
                self.put_intent(operation, at_ms);
                return Ok(());
            }
            record => record,
        };
        // INVARIANT: `apply_batch` has found the operation and admitted the record.
        let position = self.positions[record.id()];
        self.undo.push(match &record {
            JournalRecord::Intent { .. } => UndoStep::Intent,
            JournalRecord::Sending { .. } => UndoStep::Sending(position, self.operations[position].sending),
            JournalRecord::TaskStarted { .. } => UndoStep::Tasked(position),
            JournalRecord::Ended { .. } => UndoStep::Ended(position),
            JournalRecord::Resolved { .. } => UndoStep::Resolved(position),
        });
        let history = &mut self.operations[position];
        assert_eq!(history.add_record(record), Ok(()), "an admitted record follows");
        if !after.occupies_guest() {
            for key in self.guest_keys(&self.operations[position].operation) {
                self.occupants.remove(&key);
            }
        }
        Ok(())
    }

    fn put_blob(&mut self, digest: Digest, body: &[u8]) -> Result<(), Infallible> {
        if self.blobs.insert(digest, body.into()).is_none() {
            self.undo.push(UndoStep::Blob(digest));
        }
        Ok(())
    }

    fn remove_blob(&mut self, digest: &Digest) -> Result<(), Infallible> {
        self.undo.extend(self.blobs.remove(digest).map(|body| UndoStep::Pruned(*digest, body)));
        Ok(())
    }

    fn put_run(&mut self, run: RunStart) -> Result<(), Infallible> {
        self.run_positions.insert(run.id.clone(), self.runs.len());
        self.runs.push(RunHistory { run, ended: None });
        self.undo.push(UndoStep::Run);
        Ok(())
    }

    fn put_run_end(&mut self, id: &RunId, end: OperationEnd, at_ms: u64) -> Result<(), Infallible> {
        let position = self.run_positions[id];
        self.runs[position].ended = Some((end, at_ms));
        self.undo.push(UndoStep::RunEnd(position));
        Ok(())
    }

    fn put_hold(&mut self, hold: Hold) -> Result<(), Infallible> {
        self.hold_history.holds.push((hold, None));
        self.undo.push(UndoStep::Hold);
        Ok(())
    }

    fn put_release(&mut self, environment: &EnvironmentName, vmid: Vmid, by: &str, at_ms: u64) -> Result<(), Infallible> {
        if let Some(row) = self.active_hold(environment, vmid) {
            self.hold_history.holds[row].1 = Some((by.into(), at_ms));
            self.undo.push(UndoStep::Release(row));
        }
        Ok(())
    }

    fn put_freeze(&mut self, freeze: Freeze) -> Result<(), Infallible> {
        self.hold_history.freezes.push((freeze, None));
        self.undo.push(UndoStep::Freeze);
        Ok(())
    }

    fn put_thaw(&mut self, environment: &EnvironmentName, by: &str, at_ms: u64) -> Result<(), Infallible> {
        if let Some(row) = self.active_freeze(environment) {
            self.hold_history.freezes[row].1 = Some((by.into(), at_ms));
            self.undo.push(UndoStep::Thaw(row));
        }
        Ok(())
    }

    fn put_binding(&mut self, binding: EnvironmentBinding) -> Result<(), Infallible> {
        self.remember_names();
        self.names.bind(binding);
        Ok(())
    }

    fn put_rename(&mut self, rename: &EnvironmentRename) -> Result<(), Infallible> {
        self.remember_names();
        self.names.rename(rename);
        let renamed = |own: EnvironmentName| if own == rename.from { rename.to.clone() } else { own };
        self.occupants = std::mem::take(&mut self.occupants).into_iter().map(|((own, vmid), id)| ((renamed(own), vmid), id)).collect();
        self.keys =
            std::mem::take(&mut self.keys).into_iter().map(|((own, key, change), row)| ((renamed(own), key, change), row)).collect();
        self.hold_history.rename_active(&rename.from, &rename.to);
        Ok(())
    }

    fn keeps_ledger(&self) -> bool {
        !self.has_no_ledger
    }

    fn put_epoch(&mut self, epoch: u64) -> Result<(), Infallible> {
        self.undo.push(UndoStep::Epoch(self.later_epoch.replace(epoch)));
        Ok(())
    }

    fn put_entry(&mut self, entry: Vec<u8>) -> Result<(), Infallible> {
        self.entries.push(entry.into());
        self.undo.push(UndoStep::Entry);
        Ok(())
    }
}
