//! C5, C6 and C7 on a store that has seen crashes, full disks and machines that died: its ledger, played again from the beginning, is its journal, and is as long as it
//! says.
//!
//! What never enters: how entries come about.

use std::collections::BTreeMap;

use converger_core::apply::{Freeze, Hold, OperationId};
use converger_core::evidence::{Replay, parse_entry};
use converger_core::guest::EnvironmentName;
use converger_store::{Filter, LIST_MAX, MemoryStore, Store as _, StoreError};
use futures_util::FutureExt as _;

/// The first thing in which the ledger and the journal differ.
pub(crate) fn differs(store: &MemoryStore, environment: &EnvironmentName) -> Option<String> {
    entries(store).and_then(|entries| agree(store, environment, &entries)).err()
}

/// Whether these are the entries of the journal, all of them, in their order.
fn agree(store: &MemoryStore, environment: &EnvironmentName, entries: &[Vec<u8>]) -> Result<(), String> {
    let heads = read(store.heads())?;
    same("how long it is", heads.all.size, entries.len() as u64)?;
    if heads.durable.size > heads.all.size {
        return Err(format!("{} of {} entries are called durable", heads.durable.size, heads.all.size));
    }
    compared(store, environment, &played(entries)?)
}

/// The memory of a simulation answers at once.
fn read<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    answer.now_or_never().unwrap_or_else(|| Err(StoreError::Stopped { cause: "it waits".into() })).map_err(|error| error.to_string())
}

fn entries(store: &MemoryStore) -> Result<Vec<Vec<u8>>, String> {
    let mut entries = Vec::new();
    loop {
        let page = read(store.entries(entries.len() as u64, LIST_MAX))?;
        if page.is_empty() {
            return Ok(entries);
        }
        entries.extend(page);
    }
}

fn played(entries: &[Vec<u8>]) -> Result<Replay, String> {
    let mut replay = Replay::default();
    for (index, bytes) in entries.iter().enumerate() {
        let entry = parse_entry(bytes).map_err(|error| format!("entry {index}: {error}"))?;
        replay.take(entry).map_err(|misplaced| format!("entry {index}: {misplaced}"))?;
    }
    Ok(replay)
}

fn compared(store: &MemoryStore, environment: &EnvironmentName, replay: &Replay) -> Result<(), String> {
    let operations = read(store.operations(Filter::default(), LIST_MAX))?;
    let operations: BTreeMap<OperationId, _> = operations.into_iter().map(|history| (history.id().clone(), history)).collect();
    for (id, history) in &operations {
        same(&format!("operation {id}"), Some(history), replay.operations().get(id))?;
    }
    same("how many operations", operations.len(), replay.operations().len())?;
    let runs = read(store.runs(environment.clone(), LIST_MAX))?;
    for run in &runs {
        let played = replay.runs().get(&run.run.id);
        same("a run", Some((&run.run, &run.ended)), played.map(|(run, ended)| (run, ended)))?;
    }
    same("how many runs", runs.len(), replay.runs().len())?;
    same("holds", read(store.holds(environment.clone()))?, replay.holds().cloned().collect::<Vec<Hold>>())?;
    same("a freeze", read(store.freeze(environment.clone()))?, replay.freezes().next().cloned() as Option<Freeze>)
}

fn same<T: std::fmt::Debug + PartialEq>(what: &str, journal: T, ledger: T) -> Result<(), String> {
    if journal == ledger { Ok(()) } else { Err(format!("{what}: the journal has {journal:?}, the ledger {ledger:?}")) }
}

/// What is found where the ledger of a small journal has one entry fewer, twice, or in another place; nothing where it is as it was written.
#[cfg(test)]
pub(crate) fn found_in_wrong_ones(store: &MemoryStore, environment: &EnvironmentName) -> Vec<Option<String>> {
    let own = entries(store).unwrap_or_default();
    let wrong = |change: fn(&mut Vec<Vec<u8>>)| {
        let mut entries = own.clone();
        change(&mut entries);
        played(&entries).and_then(|replay| compared(store, environment, &replay)).err()
    };
    let last = |entries: &mut Vec<Vec<u8>>| drop(entries.pop());
    let twice = |entries: &mut Vec<Vec<u8>>| entries.extend(entries.last().cloned());
    let moved = |entries: &mut Vec<Vec<u8>>| entries.rotate_right(1);
    vec![wrong(|_| ()), wrong(last), wrong(twice), wrong(moved)]
}
