//! Ordered tables in memory with an undo log, so that the writes of a refused batch can be undone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use converger_core::apply::{
    EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, Hold, IdempotencyKey, JournalProgress, JournalRecord, Operation,
    OperationEnd, OperationHistory, OperationId, OperationSource, RunId, RunStart, SendingMark, TaskId,
};
use converger_core::artifact::Digest;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_ledger::{LogBuilder, LogHash, Tile};

use crate::query::{LedgerHead, LedgerHeads, OperationFilter, OperationStatus, RunHistory};
use crate::tables::{ReadTables, WriteTables};

type GuestKey = (EnvironmentName, Vmid);

#[derive(Clone, Debug, Default)]
pub(super) struct MemoryTables {
    /// In the order of their intents.
    operations: Vec<OperationHistory>,
    positions: BTreeMap<OperationId, usize>,
    occupants: BTreeMap<GuestKey, OperationId>,
    keys: BTreeMap<(EnvironmentName, IdempotencyKey), (OperationId, Digest)>,
    /// In the order of their starts.
    runs: Vec<RunHistory>,
    run_positions: BTreeMap<RunId, usize>,
    holds: BTreeMap<GuestKey, Hold>,
    freezes: BTreeMap<EnvironmentName, Freeze>,
    names: EnvironmentNames,
    blobs: BTreeMap<Digest, Arc<[u8]>>,
    /// The ledger; empty if `has_no_ledger` is set. Its hashes are computed on request.
    entries: Vec<Arc<[u8]>>,
    has_no_ledger: bool,
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
    Hold(GuestKey),
    Release(Hold),
    Freeze(EnvironmentName),
    Thaw(Freeze),
    Entry,
    Names(Box<ByName>),
}

/// Everything that is keyed by environment name, as it was before a binding or a rename. Both are rare, so a copy is affordable.
#[derive(Clone, Debug)]
struct ByName {
    names: EnvironmentNames,
    occupants: BTreeMap<GuestKey, OperationId>,
    keys: BTreeMap<(EnvironmentName, IdempotencyKey), (OperationId, Digest)>,
    holds: BTreeMap<GuestKey, Hold>,
    freezes: BTreeMap<EnvironmentName, Freeze>,
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
            UndoStep::Sending(place, before) => self.operations[place].sending = before,
            UndoStep::Tasked(place) => self.operations[place].task = None,
            UndoStep::Ended(place) => {
                self.operations[place].ended = None;
                self.occupy(place);
            }
            UndoStep::Resolved(place) => {
                self.operations[place].resolved = None;
                self.occupy(place);
            }
            UndoStep::Blob(digest) => drop(self.blobs.remove(&digest)),
            UndoStep::Pruned(digest, body) => drop(self.blobs.insert(digest, body)),
            UndoStep::Run => drop(self.runs.pop().map(|run| self.run_positions.remove(&run.run.id))),
            UndoStep::RunEnd(place) => self.runs[place].ended = None,
            UndoStep::Hold(key) => drop(self.holds.remove(&key)),
            UndoStep::Release(hold) => drop(self.holds.insert((hold.environment.clone(), hold.vmid), hold)),
            UndoStep::Freeze(environment) => drop(self.freezes.remove(&environment)),
            UndoStep::Thaw(freeze) => drop(self.freezes.insert(freeze.environment.clone(), freeze)),
            UndoStep::Entry => drop(self.entries.pop()),
            UndoStep::Names(before) => {
                let ByName { names, occupants, keys, holds, freezes } = *before;
                (self.names, self.occupants, self.keys, self.holds, self.freezes) = (names, occupants, keys, holds, freezes);
            }
        }
    }

    fn undo_intent(&mut self) {
        let Some(OperationHistory { operation, .. }) = self.operations.pop() else { return };
        self.positions.remove(&operation.id);
        self.occupants.remove(&self.guest_key(&operation));
        if let OperationSource::OneShot { key, .. } = &operation.source {
            self.keys.remove(&(operation.environment.clone(), key.clone()));
        }
    }

    fn occupy(&mut self, place: usize) {
        let operation = &self.operations[place].operation;
        self.occupants.insert(self.guest_key(operation), operation.id.clone());
    }

    fn put_intent(&mut self, operation: Box<Operation>, at_ms: u64) {
        let place = self.operations.len();
        self.positions.insert(operation.id.clone(), place);
        if let OperationSource::OneShot { key, request } = &operation.source {
            self.keys.insert((operation.environment.clone(), key.clone()), (operation.id.clone(), *request));
        }
        let boot = self.run_positions.get(&operation.run).and_then(|run| self.runs[*run].run.boot.clone());
        self.operations.push(OperationHistory { boot, ..OperationHistory::from_intent(operation, at_ms) });
        self.occupy(place);
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
        let mut growth = LogBuilder::default();
        for entry in self.entries.iter().take(size) {
            growth.append(LogHash::of_leaf(entry), |tile, hashes, _| filled(tile, hashes));
        }
        growth
    }

    /// Restores the mark that is on disk.
    pub(super) fn lose_mark(&mut self, id: &OperationId, before: Option<SendingMark>) {
        if let Some(place) = self.positions.get(id) {
            self.operations[*place].sending = before;
        }
    }

    /// The sending mark of an operation.
    pub(super) fn sending_mark(&self, id: &OperationId) -> Option<SendingMark> {
        self.find_operation(id)?.sending
    }

    /// The guest of an operation, under the current name of its environment.
    fn guest_key(&self, operation: &Operation) -> GuestKey {
        (self.names.current(&operation.environment).clone(), operation.guest.vmid)
    }

    /// Saves what a binding or a rename changes, for undo.
    fn remember_names(&mut self) {
        let (names, occupants, keys) = (self.names.clone(), self.occupants.clone(), self.keys.clone());
        let before = ByName { names, occupants, keys, holds: self.holds.clone(), freezes: self.freezes.clone() };
        self.undo.push(UndoStep::Names(Box::new(before)));
    }

    fn find_operation(&self, id: &OperationId) -> Option<&OperationHistory> {
        self.positions.get(id).map(|place| &self.operations[*place])
    }
}

fn collect_limited<T: Clone>(rows: impl Iterator<Item = T>, limit: u32) -> Vec<T> {
    rows.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
}

fn matches_filter(names: &EnvironmentNames, filter: &OperationFilter, history: &OperationHistory) -> bool {
    let operation = &history.operation;
    filter.environment.as_ref().is_none_or(|environment| environment == names.current(&operation.environment))
        && filter.run.as_ref().is_none_or(|run| *run == operation.run)
        && filter.vmid.is_none_or(|vmid| vmid == operation.guest.vmid)
        && filter.status.is_none_or(|standing| standing == OperationStatus::from_progress(history.progress()))
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
        Ok(self.keys.get(&(environment.clone(), key.clone())).cloned())
    }

    fn run(&self, id: &RunId) -> Result<Option<RunHistory>, Infallible> {
        Ok(self.run_positions.get(id).map(|place| self.runs[*place].clone()))
    }

    fn hold(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<Hold>, Infallible> {
        Ok(self.holds.get(&(environment.clone(), vmid)).cloned())
    }

    fn freeze(&self, environment: &EnvironmentName) -> Result<Option<Freeze>, Infallible> {
        Ok(self.freezes.get(environment).cloned())
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

    fn has_state(&self, environment: &EnvironmentName) -> Result<bool, Infallible> {
        let has_run = self.runs.iter().any(|run| self.names.current(&run.run.environment) == environment);
        Ok(has_run || self.freezes.contains_key(environment) || self.holds.keys().any(|(own, _)| own == environment))
    }

    fn names(&self) -> Result<EnvironmentNames, Infallible> {
        Ok(self.names.clone())
    }

    fn operation(&self, id: &OperationId) -> Result<Option<OperationHistory>, Infallible> {
        Ok(self.find_operation(id).cloned())
    }

    fn open_operations(&self, environment: &EnvironmentName) -> Result<Vec<OperationHistory>, Infallible> {
        let own = self.occupants.iter().filter(|((own, _), _)| own == environment);
        let mut places: Vec<usize> = own.filter_map(|(_, id)| self.positions.get(id).copied()).collect();
        places.sort_unstable();
        let open = places.into_iter().map(|place| &self.operations[place]).filter(|history| history.progress().is_open());
        Ok(open.cloned().collect())
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
        Ok(self.holds.values().filter(|hold| hold.environment == *environment).cloned().collect())
    }

    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.blobs.get(digest).map(|body| body.to_vec()))
    }

    fn heads(&self) -> Result<LedgerHeads, Infallible> {
        let head = |size| LedgerHead::from_tree(self.build_log(size, |_, _| ()).tree());
        let all = head(self.entries.len());
        Ok(LedgerHeads { durable: if self.durable == self.entries.len() { all } else { head(self.durable) }, all })
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
        let growth = self.build_log(self.entries.len(), |full, hashes| drop(tiles.insert((full.level, full.index), hashes.to_vec())));
        tiles.extend(growth.partial_tiles().map(|(open, hashes)| ((open.level, open.index), hashes.to_vec())));
        let hashes = tiles.get(&(tile.level, tile.index)).and_then(|hashes| hashes.get(..usize::from(tile.width)));
        Ok(hashes.map(<[LogHash]>::to_vec))
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
        let place = self.positions[record.id()];
        self.undo.push(match &record {
            JournalRecord::Intent { .. } => UndoStep::Intent,
            JournalRecord::Sending { .. } => UndoStep::Sending(place, self.operations[place].sending),
            JournalRecord::TaskStarted { .. } => UndoStep::Tasked(place),
            JournalRecord::Ended { .. } => UndoStep::Ended(place),
            JournalRecord::Resolved { .. } => UndoStep::Resolved(place),
        });
        let history = &mut self.operations[place];
        assert_eq!(history.add_record(record), Ok(()), "an admitted record follows");
        if !after.occupies_guest() {
            let key = self.guest_key(&self.operations[place].operation);
            self.occupants.remove(&key);
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
        let place = self.run_positions[id];
        self.runs[place].ended = Some((end, at_ms));
        self.undo.push(UndoStep::RunEnd(place));
        Ok(())
    }

    fn put_hold(&mut self, hold: Hold) -> Result<(), Infallible> {
        let key = (hold.environment.clone(), hold.vmid);
        self.holds.insert(key.clone(), hold);
        self.undo.push(UndoStep::Hold(key));
        Ok(())
    }

    fn put_release(&mut self, environment: &EnvironmentName, vmid: Vmid, _by: &str, _at_ms: u64) -> Result<(), Infallible> {
        let hold = self.holds.remove(&(environment.clone(), vmid));
        self.undo.extend(hold.map(UndoStep::Release));
        Ok(())
    }

    fn put_freeze(&mut self, freeze: Freeze) -> Result<(), Infallible> {
        self.undo.push(UndoStep::Freeze(freeze.environment.clone()));
        self.freezes.insert(freeze.environment.clone(), freeze);
        Ok(())
    }

    fn put_thaw(&mut self, environment: &EnvironmentName, _by: &str, _at_ms: u64) -> Result<(), Infallible> {
        let freeze = self.freezes.remove(environment);
        self.undo.extend(freeze.map(UndoStep::Thaw));
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
        let moved = |own: EnvironmentName| if own == rename.from { rename.to.clone() } else { own };
        self.occupants = std::mem::take(&mut self.occupants).into_iter().map(|((own, vmid), id)| ((moved(own), vmid), id)).collect();
        self.keys = std::mem::take(&mut self.keys).into_iter().map(|((own, key), row)| ((moved(own), key), row)).collect();
        let holds = std::mem::take(&mut self.holds).into_values().map(|hold| Hold { environment: moved(hold.environment), ..hold });
        self.holds = holds.map(|hold| ((hold.environment.clone(), hold.vmid), hold)).collect();
        let freezes = std::mem::take(&mut self.freezes).into_values();
        let freezes = freezes.map(|freeze| Freeze { environment: moved(freeze.environment), ..freeze });
        self.freezes = freezes.map(|freeze| (freeze.environment.clone(), freeze)).collect();
        Ok(())
    }

    fn keeps_ledger(&self) -> bool {
        !self.has_no_ledger
    }

    fn put_entry(&mut self, entry: Vec<u8>) -> Result<(), Infallible> {
        self.entries.push(entry.into());
        self.undo.push(UndoStep::Entry);
        Ok(())
    }
}
