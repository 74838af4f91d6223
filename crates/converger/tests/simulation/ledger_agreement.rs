//! C5, C6 and C7 for a store after crashes, full disks and power losses: replaying its ledger from the beginning gives its journal, and its
//! head matches its entries.

use converger_core::evidence::{LedgerReplay, parse_entry};
use converger_store::{LIST_MAX, LedgerIndex, MemoryStore, StoreError, StoreReader as _, find_journal_mismatch};
use futures_util::FutureExt as _;

/// The first difference between the ledger and the journal.
pub(crate) fn find_difference(store: &MemoryStore) -> Option<String> {
    read_entries(store).and_then(|entries| check_agreement(store, &entries)).err()
}

/// Checks that these entries are exactly those of the journal, in order.
fn check_agreement(store: &MemoryStore, entries: &[Vec<u8>]) -> Result<(), String> {
    let heads = poll_once(store.heads())?;
    if heads.all.size != entries.len() as u64 {
        return Err(format!("it is said to have {} entries, and has {}", heads.all.size, entries.len()));
    }
    if heads.durable.size > heads.all.size {
        return Err(format!("{} of {} entries are called durable", heads.durable.size, heads.all.size));
    }
    compare_with_journal(store, &replay_entries(entries)?)
}

/// The store of a simulation is in memory and never waits.
fn poll_once<T>(answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, String> {
    answer.now_or_never().unwrap_or_else(|| Err(StoreError::Stopped { cause: "it waits".into() })).map_err(|error| error.to_string())
}

fn read_entries(store: &MemoryStore) -> Result<Vec<Vec<u8>>, String> {
    let mut entries = Vec::new();
    loop {
        let page = poll_once(store.entries(entries.len() as u64, LIST_MAX))?;
        if page.is_empty() {
            return Ok(entries);
        }
        entries.extend(page);
    }
}

/// Replays entries; returns the resulting state and an index of the entries.
fn replay_entries(entries: &[Vec<u8>]) -> Result<(LedgerReplay, LedgerIndex), String> {
    let (mut replay, mut ledger_index) = (LedgerReplay::default(), LedgerIndex::default());
    for (index, bytes) in (0..).zip(entries) {
        let entry = parse_entry(bytes).map_err(|error| format!("entry {index}: {error}"))?;
        ledger_index.add_entry(index, &entry);
        replay.apply_entry(entry).map_err(|misplaced| format!("entry {index}: {misplaced}"))?;
    }
    Ok((replay, ledger_index))
}

/// Compares journal and ledger as `verify` does.
fn compare_with_journal(store: &MemoryStore, (replay, index): &(LedgerReplay, LedgerIndex)) -> Result<(), String> {
    poll_once(find_journal_mismatch(store, replay, index))?.map_or(Ok(()), |found| Err(found.to_string()))
}

/// The results for ledgers of a small journal with an entry removed, duplicated or moved; and for the unchanged one, which has no fault.
#[cfg(test)]
pub(crate) fn check_altered_ledgers(store: &MemoryStore) -> Vec<Option<String>> {
    let own = read_entries(store).unwrap_or_default();
    let wrong = |change: fn(&mut Vec<Vec<u8>>)| {
        let mut entries = own.clone();
        change(&mut entries);
        replay_entries(&entries).and_then(|played| compare_with_journal(store, &played)).err()
    };
    let last = |entries: &mut Vec<Vec<u8>>| drop(entries.pop());
    let repeat_last_entry = |entries: &mut Vec<Vec<u8>>| entries.extend(entries.last().cloned());
    let rotate_entries = |entries: &mut Vec<Vec<u8>>| entries.rotate_right(1);
    vec![wrong(|_| ()), wrong(last), wrong(repeat_last_entry), wrong(rotate_entries)]
}
