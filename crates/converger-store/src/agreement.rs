//! Whether a journal says what the entries of its ledger amount to (C7): everything in it, and nothing else.
//!
//! The journal is told row by row, by whoever can read it; the first row that the entries do not have, have otherwise, or have without it is
//! what is found, with the entry that it is about.
//!
//! What never enters: reading either of them, and whether entries can stand where they do (`evidence::Replay`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use converger_core::apply::{EnvironmentNames, EnvironmentRename, Freeze, History, Hold, Operation, OperationId, Record, RunId, Source};
use converger_core::evidence::{Entry, Replay};
use converger_core::guest::{EnvironmentName, Vmid};

use crate::query::{KeyRow, Over, RunHistory, Said};

/// What entries say in their order, beyond what holds in the end: where each thing stands, what people said and took back, and what came first.
#[derive(Clone, Debug, Default)]
pub struct Told {
    runs: Vec<RunId>,
    operations: Vec<OperationId>,
    said: Said,
    /// The entries of a run: its start, and its end.
    of_runs: BTreeMap<RunId, (u64, Option<u64>)>,
    /// The entries of an operation, by what they are.
    of_operations: BTreeMap<OperationId, BTreeMap<&'static str, u64>>,
    /// The entries of what was said, in its order: that, and what ended it.
    of_holds: Vec<(u64, Option<u64>)>,
    of_freezes: Vec<(u64, Option<u64>)>,
    /// The last entries that bound or renamed an environment, by name.
    of_names: BTreeMap<EnvironmentName, u64>,
}

/// What only one of a journal and its ledger has, or both have in another way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unlogged {
    /// The entry that it is about; none, where the ledger has none: then the sentence names the row.
    pub index: Option<u64>,
    what: String,
}

impl fmt::Display for Unlogged {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.what)?;
        self.index.map_or(Ok(()), |index| write!(out, " (entry {index})"))
    }
}

impl Told {
    /// One entry more. Whether it can stand there is asked elsewhere.
    pub fn take(&mut self, index: u64, entry: &Entry) {
        let Said { holds, freezes } = &mut self.said;
        match entry {
            Entry::RunStarted { run, .. } => {
                self.runs.push(run.id.clone());
                self.of_runs.insert(run.id.clone(), (index, None));
            }
            Entry::RunEnded { run, .. } => drop(self.of_runs.get_mut(run).map(|(_, end)| end.replace(index))),
            Entry::Record(record) => {
                if let Record::Intent { operation, .. } = record {
                    self.operations.push(operation.id.clone());
                }
                self.of_operations.entry(record.id().clone()).or_default().insert(entry.kind(), index);
            }
            Entry::Hold(hold) => {
                holds.push((hold.clone(), None));
                self.of_holds.push((index, None));
            }
            Entry::Release { environment, guest, by, at_ms } => {
                end(holds, &mut self.of_holds, index, (by, *at_ms), |hold| hold.environment == *environment && hold.vmid == *guest);
            }
            Entry::Freeze(freeze) => {
                freezes.push((freeze.clone(), None));
                self.of_freezes.push((index, None));
            }
            Entry::Thaw { environment, by, at_ms } => {
                end(freezes, &mut self.of_freezes, index, (by, *at_ms), |freeze| freeze.environment == *environment);
            }
            Entry::Binding(binding) => drop(self.of_names.insert(binding.environment.clone(), index)),
            Entry::Rename(rename) => self.rename(index, rename),
            _ => {}
        }
    }

    /// What people said and did not end is kept under the new name.
    fn rename(&mut self, index: u64, EnvironmentRename { from, to, .. }: &EnvironmentRename) {
        let Said { holds, freezes } = &mut self.said;
        let holds = holds.iter_mut().filter(|(hold, over)| over.is_none() && hold.environment == *from);
        holds.for_each(|(hold, _)| hold.environment = to.clone());
        let freezes = freezes.iter_mut().filter(|(freeze, over)| over.is_none() && freeze.environment == *from);
        freezes.for_each(|(freeze, _)| freeze.environment = to.clone());
        self.of_names.extend([(from.clone(), index), (to.clone(), index)]);
    }

    /// The entry that began a hold which is in force.
    fn held_at(&self, environment: &EnvironmentName, vmid: Vmid) -> Option<u64> {
        let at = self.said.holds.iter().rposition(|(hold, _)| hold.environment == *environment && hold.vmid == vmid)?;
        self.of_holds.get(at).map(|(index, _)| *index)
    }

    fn frozen_at(&self, environment: &EnvironmentName) -> Option<u64> {
        let at = self.said.freezes.iter().rposition(|(freeze, _)| freeze.environment == *environment)?;
        self.of_freezes.get(at).map(|(index, _)| *index)
    }

    /// The entry of an operation in which it is another than the journal has it.
    fn differs_at(&self, logged: &History, kept: &History) -> Option<u64> {
        let places = self.of_operations.get(logged.id())?;
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
fn end<T>(said: &mut [(T, Option<Over>)], places: &mut [(u64, Option<u64>)], index: u64, by: (&str, u64), is_meant: impl Fn(&T) -> bool) {
    let rows = said.iter_mut().zip(places).rev();
    if let Some(((_, over), (_, place))) = rows.into_iter().find(|((row, over), _)| over.is_none() && is_meant(row)) {
        *over = Some((by.0.into(), by.1));
        *place = Some(index);
    }
}

/// A journal, held against what entries amount to.
pub struct Agreement<'l> {
    replay: &'l Replay,
    told: &'l Told,
    operations: BTreeSet<&'l OperationId>,
    runs: BTreeSet<&'l RunId>,
}

type Agreed = Result<(), Unlogged>;

impl<'l> Agreement<'l> {
    /// With these entries, all of which both have taken.
    #[must_use]
    pub fn with(replay: &'l Replay, told: &'l Told) -> Self {
        Self { replay, told, operations: BTreeSet::new(), runs: BTreeSet::new() }
    }

    /// The journal has this operation.
    ///
    /// # Errors
    /// The entries do not, or not so.
    pub fn operation(&mut self, kept: &History) -> Agreed {
        let id = kept.id();
        let Some((own, logged)) = self.replay.operations().get_key_value(id) else {
            return found(None, format!("the journal has the operation {}, and the ledger does not", id.as_str()));
        };
        if logged != kept {
            let at = self.told.differs_at(logged, kept);
            return found(at, format!("the journal tells another story of the operation {} than the ledger", id.as_str()));
        }
        if self.operations.insert(own) {
            return Ok(());
        }
        found(self.begun_at(id), format!("the journal has the operation {} twice", id.as_str()))
    }

    /// The journal has this run.
    ///
    /// # Errors
    /// The entries do not, or not so.
    pub fn run(&mut self, kept: &RunHistory) -> Agreed {
        let id = &kept.run.id;
        let Some((own, (run, ended))) = self.replay.runs().get_key_value(id) else {
            return found(None, format!("the journal has the run {}, and the ledger does not", id.as_str()));
        };
        if (run, ended) != (&kept.run, &kept.ended) {
            let (start, end) = self.told.of_runs.get(id).copied().unzip();
            let at = if *run == kept.run { end.flatten().or(start) } else { start };
            return found(at, format!("the journal tells another story of the run {} than the ledger", id.as_str()));
        }
        self.runs.insert(own);
        Ok(())
    }

    /// In the journal these guests are held now and these environments are frozen.
    ///
    /// # Errors
    /// By the entries it is others.
    pub fn in_force(&self, holds: &[Hold], freezes: &[Freeze]) -> Agreed {
        if let Some(hold) = odd_one(holds, &self.replay.holds().cloned().collect::<Vec<_>>()) {
            let (at, who) = (self.told.held_at(&hold.environment, hold.vmid), of_hold(hold));
            return found(at, format!("the journal has other guests held than the ledger: {who}"));
        }
        match odd_one(freezes, &self.replay.freezes().cloned().collect::<Vec<_>>()) {
            None => Ok(()),
            Some(freeze) => {
                let (at, who) = (self.told.frozen_at(&freeze.environment), of_freeze(freeze));
                found(at, format!("the journal has other environments frozen than the ledger: {who}"))
            }
        }
    }

    /// In the journal these clusters have these names, and these are former ones.
    ///
    /// # Errors
    /// By the entries it is others.
    pub fn names(&self, kept: &EnvironmentNames) -> Agreed {
        let logged = self.replay.names();
        let rows = |names: &EnvironmentNames| names.bindings().cloned().collect::<Vec<_>>();
        if let Some(binding) = odd_one(&rows(kept), &rows(logged)) {
            let at = self.told.of_names.get(&binding.environment).copied();
            return found(at, format!("the journal has another cluster recorded than the ledger: the one of {}", binding.environment));
        }
        let rows = |names: &EnvironmentNames| names.former().map(|(name, now)| (name.clone(), now.clone())).collect::<Vec<_>>();
        match odd_one(&rows(kept), &rows(logged)) {
            None => Ok(()),
            Some((name, _)) => {
                found(self.told.of_names.get(name).copied(), format!("the journal has other names recorded than the ledger: {name}"))
            }
        }
    }

    /// The journal has said all that it has.
    ///
    /// # Errors
    /// The entries have more.
    pub fn ended(&self) -> Agreed {
        if let Some(id) = self.replay.operations().keys().find(|id| !self.operations.contains(id)) {
            return found(self.begun_at(id), format!("the ledger has the operation {}, and the journal does not", id.as_str()));
        }
        match self.replay.runs().keys().find(|id| !self.runs.contains(id)) {
            None => Ok(()),
            Some(id) => found(self.started_at(id), format!("the ledger has the run {}, and the journal does not", id.as_str())),
        }
    }

    /// What a journal on a disk has beside what holds now: what was said and taken back, what came first, and which requests act once.
    ///
    /// # Errors
    /// By the entries it is another past.
    pub fn past(&self, said: &Said, (runs, operations): &(Vec<RunId>, Vec<OperationId>), mut keys: Vec<KeyRow>) -> Agreed {
        let told = self.told;
        let place = |places: &[(u64, Option<u64>)], at: usize| places.get(at).map(|(said, over)| over.unwrap_or(*said));
        same_rows("a hold", &told.said.holds, &said.holds, |(hold, _)| of_hold(hold), |at, _| place(&told.of_holds, at))?;
        same_rows("a freeze", &told.said.freezes, &said.freezes, |(freeze, _)| of_freeze(freeze), |at, _| place(&told.of_freezes, at))?;
        let of_run = |id: &RunId| format!("the place of the run {}", id.as_str());
        same_rows("a run", &told.runs, runs, of_run, |_, id| self.started_at(id))?;
        let of_operation = |id: &OperationId| format!("the place of the operation {}", id.as_str());
        same_rows("an operation", &told.operations, operations, of_operation, |_, id| self.begun_at(id))?;
        let mut logged: Vec<KeyRow> =
            self.replay.operations().values().filter_map(|history| key_of(self.replay.names(), history)).collect();
        logged.sort();
        keys.sort();
        let of_key = |row: &KeyRow| format!("the idempotency key of the operation {}", row.operation.as_str());
        same_rows("an idempotency key", &logged, &keys, of_key, |_, row| self.begun_at(&row.operation))
    }

    fn begun_at(&self, id: &OperationId) -> Option<u64> {
        self.told.of_operations.get(id).and_then(|places| places.get("intent")).copied()
    }

    fn started_at(&self, id: &RunId) -> Option<u64> {
        self.told.of_runs.get(id).map(|(start, _)| *start)
    }
}

fn found(index: Option<u64>, what: String) -> Agreed {
    Err(Unlogged { index, what })
}

fn of_hold(hold: &Hold) -> String {
    format!("the hold of guest {} in {}", hold.vmid, hold.environment)
}

fn of_freeze(freeze: &Freeze) -> String {
    format!("the freeze of {}", freeze.environment)
}

/// The key that an operation is known by, where it has one.
fn key_of(names: &EnvironmentNames, history: &History) -> Option<KeyRow> {
    let Operation { environment, id, source: Source::OneShot { key, request }, .. } = &*history.operation else { return None };
    Some(KeyRow { environment: names.current(environment).clone(), key: key.clone(), request: *request, operation: id.clone() })
}

/// The first row that only one of two lists has.
fn odd_one<'r, T: PartialEq>(kept: &'r [T], logged: &'r [T]) -> Option<&'r T> {
    let missing = |rows: &'r [T], others: &[T]| rows.iter().find(|row| !others.contains(row));
    missing(logged, kept).or_else(|| missing(kept, logged))
}

/// Whether the journal has the same rows in the same order as the ledger.
fn same_rows<T: PartialEq>(
    what: &str,
    logged: &[T],
    kept: &[T],
    of: impl Fn(&T) -> String,
    place: impl Fn(usize, &T) -> Option<u64>,
) -> Agreed {
    let at = logged.iter().zip(kept).take_while(|(one, other)| one == other).count();
    match (logged.get(at), kept.get(at)) {
        (None, None) => Ok(()),
        (Some(row), Some(_)) => found(place(at, row), format!("the journal tells another story of {} than the ledger", of(row))),
        (Some(row), None) => found(place(at, row), format!("the ledger has {what} that the journal does not have: {}", of(row))),
        (None, Some(row)) => found(None, format!("the journal has {what} that the ledger does not have: {}", of(row))),
    }
}
