//! What one entry more costs in a short and in a long ledger.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;

use converger_ledger::{Growth, Hash};
use converger_store::{Batch, Settings, SqliteStore, Store as _, Write};
use serde_json::json;

use crate::runs::{self, Decided, now};
use crate::{Told, cpu};

/// Where a ledger is short.
const EARLY: u64 = 1_000;
/// So many appends are averaged, in memory.
const APPENDS: u64 = 4_096;
/// A fleet whose applies leave about a thousand entries each.
const GUESTS: u32 = 1_060;
/// So many applies are averaged, in the store, and the least of so many averages counts.
const APPLIES: u64 = 2;
const STORE_TURNS: u32 = 12;
/// So many writes become durable at once: as many operations are under way by default, and a transaction of an apply has no more of them.
const WRITES: usize = 40;

/// Two logs of different lengths, and what is appended to both.
struct Logs {
    early: Growth,
    late: Growth,
    leaves: Vec<Hash>,
}

/// In memory: trees and tiles alone.
pub(crate) fn growth(entries: u64, turns: u32) -> Told {
    let leaf = |number: u64| Hash::of_leaf(&number.to_be_bytes());
    let mut log = Growth::default();
    let mut grown = |to: u64| {
        while log.tree().size() < to {
            log.append(leaf(log.tree().size()), |_, _, _| {});
        }
        log.clone()
    };
    let (early, late) = (grown(EARLY), grown(entries));
    let logs = Logs { early, late, leaves: (0..APPENDS).map(leaf).collect() };
    let [early_ns, late_ns] = cpu::least(turns, &logs, [early_once, late_once]);
    Ok(json!({ "entries": entries, "appends": APPENDS, "early_ns": early_ns, "late_ns": late_ns }))
}

#[inline(never)]
fn early_once(logs: &Logs) {
    append(logs.early.clone(), &logs.leaves);
}

#[inline(never)]
fn late_once(logs: &Logs) {
    append(logs.late.clone(), &logs.leaves);
}

fn append(mut log: Growth, leaves: &[Hash]) {
    for leaf in leaves {
        log.append(*leaf, |tile, hashes, root| {
            black_box((tile, hashes, root));
        });
    }
    black_box(log);
}

/// Through the store, with the journal beside it: CPU time of the whole process, the disk left aside.
///
/// Both take turns, because a neighbour that comes or goes while a million entries are written would be taken for the cost of them.
pub(crate) fn store(entries: u64, directory: &Path) -> Told {
    let mut long = Filling::new(&directory.join("long"))?;
    long.to(entries);
    let (first, mut early, mut late) = (long.size(), u64::MAX, u64::MAX);
    for turn in 0..STORE_TURNS {
        let mut short = Filling::new(&directory.join(format!("short-{turn}")))?;
        short.to(EARLY);
        early = early.min(short.mean_ns());
        late = late.min(long.mean_ns());
    }
    Ok(json!({ "entries": entries, "first": first, "last": long.size(), "early_ns": early, "late_ns": late }))
}

/// A store that applies are written to, one after the other.
struct Filling {
    store: SqliteStore,
    decided: Decided,
    applies: u64,
}

impl Filling {
    fn new(directory: &Path) -> Result<Self, Box<dyn Error>> {
        let store = SqliteStore::open(directory, Settings::new(|cause| panic!("{cause}")))?;
        Ok(Self { store, decided: Decided::of(GUESTS), applies: 0 })
    }

    /// What the next apply writes. What it rests on is there since the first one, and would only be hashed again.
    fn next(&mut self) -> Vec<Write> {
        self.applies += 1;
        let mut writes = self.decided.apply(self.applies);
        writes.retain(runs::has_entry);
        writes
    }

    fn size(&self) -> u64 {
        now(self.store.heads()).all.size
    }

    /// Fills it up to about this length, as fast as it goes.
    fn to(&mut self, size: u64) {
        while self.size() < size {
            for batch in runs::batches(self.next()) {
                let _ = now(self.store.commit(batch));
            }
        }
    }

    /// The mean CPU time of an append from here on.
    fn mean_ns(&mut self) -> u64 {
        let before = self.size();
        let batches: Vec<Batch> = (0..APPLIES).flat_map(|_| in_batches(&self.next())).collect();
        let start = cpu::now_ns();
        for batch in batches {
            let _ = now(self.store.commit(batch));
        }
        (cpu::now_ns() - start) / (self.size() - before)
    }
}

fn in_batches(writes: &[Write]) -> Vec<Batch> {
    writes.chunks(WRITES).map(|some| Batch::new(some.to_vec())).collect()
}
