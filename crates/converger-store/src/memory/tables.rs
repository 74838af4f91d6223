//! Tables in memory, ordered, with a way back: what a batch has written so far can be undone.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use converger_core::apply::{
    End, EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, History, Hold, IdempotencyKey, Operation, OperationId, Progress,
    Record, Run, RunId, Sending, Source, TaskId,
};
use converger_core::artifact::Digest;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_ledger::{Growth, Hash, Tile};

use crate::query::{Filter, Head, Heads, RunHistory, Standing};
use crate::tables::{Put, Read};

type GuestKey = (EnvironmentName, Vmid);

#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    /// In the order of their intents.
    operations: Vec<History>,
    places: BTreeMap<OperationId, usize>,
    occupants: BTreeMap<GuestKey, OperationId>,
    keys: BTreeMap<(EnvironmentName, IdempotencyKey), (OperationId, Digest)>,
    /// In the order of their starts.
    runs: Vec<RunHistory>,
    run_places: BTreeMap<RunId, usize>,
    holds: BTreeMap<GuestKey, Hold>,
    freezes: BTreeMap<EnvironmentName, Freeze>,
    names: EnvironmentNames,
    blobs: BTreeMap<Digest, Arc<[u8]>>,
    /// The ledger, unless nobody asks for it. Its hashes are made for whoever does.
    entries: Vec<Arc<[u8]>>,
    has_no_ledger: bool,
    /// How many of its entries are durable.
    durable: usize,
    undo: Vec<Undo>,
}

/// A place in the way back.
#[derive(Clone, Copy)]
pub(super) struct Mark(usize);

/// What takes one write back.
#[derive(Clone, Debug)]
enum Undo {
    Intent,
    Sending(usize, Option<Sending>),
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

/// All that is kept by environment name, as it was before a binding or a rename. Both are rare.
#[derive(Clone, Debug)]
struct ByName {
    names: EnvironmentNames,
    occupants: BTreeMap<GuestKey, OperationId>,
    keys: BTreeMap<(EnvironmentName, IdempotencyKey), (OperationId, Digest)>,
    holds: BTreeMap<GuestKey, Hold>,
    freezes: BTreeMap<EnvironmentName, Freeze>,
}

impl Tables {
    /// Empty tables, of which the ledger stays so.
    pub(super) fn without_ledger() -> Self {
        Self { has_no_ledger: true, ..Self::default() }
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.undo.len())
    }

    pub(super) fn forget_undo(&mut self) {
        self.undo.clear();
    }

    pub(super) fn undo_to(&mut self, mark: Mark) {
        while self.undo.len() > mark.0 {
            if let Some(undo) = self.undo.pop() {
                self.undo_one(undo);
            }
        }
    }

    fn undo_one(&mut self, undo: Undo) {
        match undo {
            Undo::Intent => self.undo_intent(),
            Undo::Sending(place, before) => self.operations[place].sending = before,
            Undo::Tasked(place) => self.operations[place].task = None,
            Undo::Ended(place) => {
                self.operations[place].ended = None;
                self.occupy(place);
            }
            Undo::Resolved(place) => {
                self.operations[place].resolved = None;
                self.occupy(place);
            }
            Undo::Blob(digest) => drop(self.blobs.remove(&digest)),
            Undo::Pruned(digest, body) => drop(self.blobs.insert(digest, body)),
            Undo::Run => drop(self.runs.pop().map(|run| self.run_places.remove(&run.run.id))),
            Undo::RunEnd(place) => self.runs[place].ended = None,
            Undo::Hold(key) => drop(self.holds.remove(&key)),
            Undo::Release(hold) => drop(self.holds.insert((hold.environment.clone(), hold.vmid), hold)),
            Undo::Freeze(environment) => drop(self.freezes.remove(&environment)),
            Undo::Thaw(freeze) => drop(self.freezes.insert(freeze.environment.clone(), freeze)),
            Undo::Entry => drop(self.entries.pop()),
            Undo::Names(before) => {
                let ByName { names, occupants, keys, holds, freezes } = *before;
                (self.names, self.occupants, self.keys, self.holds, self.freezes) = (names, occupants, keys, holds, freezes);
            }
        }
    }

    fn undo_intent(&mut self) {
        let Some(History { operation, .. }) = self.operations.pop() else { return };
        self.places.remove(&operation.id);
        self.occupants.remove(&self.guest_of(&operation));
        if let Source::OneShot { key, .. } = &operation.source {
            self.keys.remove(&(operation.environment.clone(), key.clone()));
        }
    }

    fn occupy(&mut self, place: usize) {
        let operation = &self.operations[place].operation;
        self.occupants.insert(self.guest_of(operation), operation.id.clone());
    }

    fn put_intent(&mut self, operation: Box<Operation>, at_ms: u64) {
        let place = self.operations.len();
        self.places.insert(operation.id.clone(), place);
        if let Source::OneShot { key, request } = &operation.source {
            self.keys.insert((operation.environment.clone(), key.clone()), (operation.id.clone(), *request));
        }
        let boot = self.run_places.get(&operation.run).and_then(|run| self.runs[*run].run.boot.clone());
        self.operations.push(History { boot, ..History::begin(operation, at_ms) });
        self.occupy(place);
        self.undo.push(Undo::Intent);
    }

    /// All that is there is on the disk, and nothing of it is taken back.
    pub(super) fn make_durable(&mut self) {
        self.forget_undo();
        self.durable = self.entries.len();
    }

    /// Takes the entries away that no disk has: those of marks.
    pub(super) fn lose_entries(&mut self) {
        self.entries.truncate(self.durable);
    }

    /// The first entries of the ledger as a log.
    fn grown(&self, size: usize, mut filled: impl FnMut(Tile, &[Hash])) -> Growth {
        let mut growth = Growth::default();
        for entry in self.entries.iter().take(size) {
            growth.append(Hash::of_leaf(entry), |tile, hashes, _| filled(tile, hashes));
        }
        growth
    }

    /// Takes a mark away that no disk has.
    pub(super) fn lose_mark(&mut self, id: &OperationId, before: Option<Sending>) {
        if let Some(place) = self.places.get(id) {
            self.operations[*place].sending = before;
        }
    }

    /// The mark that an operation has.
    pub(super) fn mark_of(&self, id: &OperationId) -> Option<Sending> {
        self.find(id)?.sending
    }

    /// The guest of an operation, by the name that its environment has now.
    fn guest_of(&self, operation: &Operation) -> GuestKey {
        (self.names.current(&operation.environment).clone(), operation.guest.vmid)
    }

    /// Keeps what a binding or a rename changes, for the way back.
    fn remember_names(&mut self) {
        let (names, occupants, keys) = (self.names.clone(), self.occupants.clone(), self.keys.clone());
        let before = ByName { names, occupants, keys, holds: self.holds.clone(), freezes: self.freezes.clone() };
        self.undo.push(Undo::Names(Box::new(before)));
    }

    fn find(&self, id: &OperationId) -> Option<&History> {
        self.places.get(id).map(|place| &self.operations[*place])
    }
}

/// A list that is cut.
fn first<T: Clone>(rows: impl Iterator<Item = T>, limit: u32) -> Vec<T> {
    rows.take(usize::try_from(limit).unwrap_or(usize::MAX)).collect()
}

fn is_wanted(names: &EnvironmentNames, filter: &Filter, history: &History) -> bool {
    let operation = &history.operation;
    filter.environment.as_ref().is_none_or(|environment| environment == names.current(&operation.environment))
        && filter.run.as_ref().is_none_or(|run| *run == operation.run)
        && filter.vmid.is_none_or(|vmid| vmid == operation.guest.vmid)
        && filter.standing.is_none_or(|standing| standing == Standing::of(history.progress()))
}

impl Read for Tables {
    type Error = Infallible;

    fn progress(&self, id: &OperationId) -> Result<Option<Progress>, Infallible> {
        Ok(self.find(id).map(History::progress))
    }

    fn occupant(&self, environment: &EnvironmentName, vmid: Vmid) -> Result<Option<OperationId>, Infallible> {
        Ok(self.occupants.get(&(environment.clone(), vmid)).cloned())
    }

    fn environment(&self, id: &OperationId) -> Result<Option<EnvironmentName>, Infallible> {
        Ok(self.find(id).map(|history| self.names.current(&history.operation.environment).clone()))
    }

    fn tasked(&self, environment: &EnvironmentName, task: &TaskId) -> Result<Option<OperationId>, Infallible> {
        let has = |history: &&History| {
            self.names.current(&history.operation.environment) == environment && history.task.as_ref().is_some_and(|(own, _)| own == task)
        };
        Ok(self.operations.iter().find(has).map(|history| history.id().clone()))
    }

    fn keyed(&self, environment: &EnvironmentName, key: &IdempotencyKey) -> Result<Option<(OperationId, Digest)>, Infallible> {
        Ok(self.keys.get(&(environment.clone(), key.clone())).cloned())
    }

    fn run(&self, id: &RunId) -> Result<Option<RunHistory>, Infallible> {
        Ok(self.run_places.get(id).map(|place| self.runs[*place].clone()))
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

    fn operation(&self, id: &OperationId) -> Result<Option<History>, Infallible> {
        Ok(self.find(id).cloned())
    }

    fn open_operations(&self, environment: &EnvironmentName) -> Result<Vec<History>, Infallible> {
        let own = self.occupants.iter().filter(|((own, _), _)| own == environment);
        let mut places: Vec<usize> = own.filter_map(|(_, id)| self.places.get(id).copied()).collect();
        places.sort_unstable();
        let open = places.into_iter().map(|place| &self.operations[place]).filter(|history| history.progress().is_open());
        Ok(open.cloned().collect())
    }

    fn operations(&self, filter: &Filter, limit: u32) -> Result<Vec<History>, Infallible> {
        // Nothing is older than an operation that is not there.
        let before = filter.before.as_ref().map(|id| self.places.get(id).copied().unwrap_or(0));
        let older = &self.operations[..before.unwrap_or(self.operations.len())];
        Ok(first(older.iter().rev().filter(|history| is_wanted(&self.names, filter, history)).cloned(), limit))
    }

    fn runs(&self, environment: &EnvironmentName, limit: u32) -> Result<Vec<RunHistory>, Infallible> {
        Ok(first(self.runs.iter().rev().filter(|run| self.names.current(&run.run.environment) == environment).cloned(), limit))
    }

    fn holds(&self, environment: &EnvironmentName) -> Result<Vec<Hold>, Infallible> {
        Ok(self.holds.values().filter(|hold| hold.environment == *environment).cloned().collect())
    }

    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.blobs.get(digest).map(|body| body.to_vec()))
    }

    fn heads(&self) -> Result<Heads, Infallible> {
        let head = |size| Head::of(self.grown(size, |_, _| ()).tree());
        let all = head(self.entries.len());
        Ok(Heads { durable: if self.durable == self.entries.len() { all } else { head(self.durable) }, all })
    }

    fn length(&self) -> Result<u64, Infallible> {
        Ok(self.entries.len() as u64)
    }

    fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, Infallible> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        Ok(first(self.entries.iter().skip(from).map(|entry| entry.to_vec()), limit))
    }

    fn hashes(&self, tile: Tile) -> Result<Option<Vec<Hash>>, Infallible> {
        let mut tiles = BTreeMap::new();
        let growth = self.grown(self.entries.len(), |full, hashes| drop(tiles.insert((full.level, full.index), hashes.to_vec())));
        tiles.extend(growth.partial().map(|(open, hashes)| ((open.level, open.index), hashes.to_vec())));
        let hashes = tiles.get(&(tile.level, tile.index)).and_then(|hashes| hashes.get(..usize::from(tile.width)));
        Ok(hashes.map(<[Hash]>::to_vec))
    }
}

impl Put for Tables {
    fn put_record(&mut self, record: Record, after: Progress) -> Result<(), Infallible> {
        let record = match record {
            Record::Intent { operation, at_ms } => {
                self.put_intent(operation, at_ms);
                return Ok(());
            }
            record => record,
        };
        // INVARIANT: the judge has found the operation, and admitted the record.
        let place = self.places[record.id()];
        self.undo.push(match &record {
            Record::Intent { .. } => Undo::Intent,
            Record::Sending { .. } => Undo::Sending(place, self.operations[place].sending),
            Record::Tasked { .. } => Undo::Tasked(place),
            Record::Ended { .. } => Undo::Ended(place),
            Record::Resolved { .. } => Undo::Resolved(place),
        });
        let history = &mut self.operations[place];
        assert_eq!(history.add(record), Ok(()), "an admitted record follows");
        if !after.occupies_guest() {
            let key = self.guest_of(&self.operations[place].operation);
            self.occupants.remove(&key);
        }
        Ok(())
    }

    fn put_blob(&mut self, digest: Digest, body: &[u8]) -> Result<(), Infallible> {
        if self.blobs.insert(digest, body.into()).is_none() {
            self.undo.push(Undo::Blob(digest));
        }
        Ok(())
    }

    fn put_pruned(&mut self, digest: &Digest) -> Result<(), Infallible> {
        self.undo.extend(self.blobs.remove(digest).map(|body| Undo::Pruned(*digest, body)));
        Ok(())
    }

    fn put_run(&mut self, run: Run) -> Result<(), Infallible> {
        self.run_places.insert(run.id.clone(), self.runs.len());
        self.runs.push(RunHistory { run, ended: None });
        self.undo.push(Undo::Run);
        Ok(())
    }

    fn put_run_end(&mut self, id: &RunId, end: End, at_ms: u64) -> Result<(), Infallible> {
        let place = self.run_places[id];
        self.runs[place].ended = Some((end, at_ms));
        self.undo.push(Undo::RunEnd(place));
        Ok(())
    }

    fn put_hold(&mut self, hold: Hold) -> Result<(), Infallible> {
        let key = (hold.environment.clone(), hold.vmid);
        self.holds.insert(key.clone(), hold);
        self.undo.push(Undo::Hold(key));
        Ok(())
    }

    fn put_release(&mut self, environment: &EnvironmentName, vmid: Vmid, _by: &str, _at_ms: u64) -> Result<(), Infallible> {
        let hold = self.holds.remove(&(environment.clone(), vmid));
        self.undo.extend(hold.map(Undo::Release));
        Ok(())
    }

    fn put_freeze(&mut self, freeze: Freeze) -> Result<(), Infallible> {
        self.undo.push(Undo::Freeze(freeze.environment.clone()));
        self.freezes.insert(freeze.environment.clone(), freeze);
        Ok(())
    }

    fn put_thaw(&mut self, environment: &EnvironmentName, _by: &str, _at_ms: u64) -> Result<(), Infallible> {
        let freeze = self.freezes.remove(environment);
        self.undo.extend(freeze.map(Undo::Thaw));
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
        self.undo.push(Undo::Entry);
        Ok(())
    }
}
