//! The cost of appending an entry to a short and to a long ledger.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;

use converger_ledger::{LogBuilder, LogHash};
use converger_store::{Batch, SqliteStore, Store as _, StoreReader as _, StoreSettings, StoreWrite};
use serde_json::json;

use crate::runs::{self, FleetDecision, block_on_store};
use crate::{BenchOutput, cpu};

/// The size of a short ledger.
const SHORT_LOG_ENTRIES: u64 = 1_000;
/// How many appends in memory are averaged.
const APPENDS_AVERAGED: u64 = 4_096;
/// The size of a fleet whose applies leave about a thousand entries each.
const GUESTS: u32 = 1_060;
/// How many applies through the store are averaged; the smallest of several averages counts.
const APPLIES_AVERAGED: u64 = 2;
const STORE_REPETITIONS: u32 = 12;
/// How many writes become durable at once: the default number of operations in flight, which bounds a transaction of an apply.
const WRITES_PER_BATCH: usize = 40;

/// Two logs of different lengths, and the leaves to append to both.
struct BenchLogs {
    early: LogBuilder,
    late: LogBuilder,
    leaves: Vec<LogHash>,
}

/// In memory: trees and tiles alone.
pub(crate) fn bench_log_append(entries: u64, repetitions: u32) -> BenchOutput {
    let leaf = |number: u64| LogHash::of_leaf(&number.to_be_bytes());
    let mut log = LogBuilder::default();
    let mut grow_to = |to: u64| {
        while log.tree().size() < to {
            log.append(leaf(log.tree().size()), |_, _, _| {});
        }
        log.clone()
    };
    let (early, late) = (grow_to(SHORT_LOG_ENTRIES), grow_to(entries));
    let logs = BenchLogs { early, late, leaves: (0..APPENDS_AVERAGED).map(leaf).collect() };
    let [early_ns, late_ns] = cpu::least_cpu_ns(repetitions, &logs, [append_to_short_log, append_to_long_log]);
    Ok(json!({ "entries": entries, "appends": APPENDS_AVERAGED, "early_ns": early_ns, "late_ns": late_ns }))
}

#[inline(never)]
fn append_to_short_log(logs: &BenchLogs) {
    append_leaves(logs.early.clone(), &logs.leaves);
}

#[inline(never)]
fn append_to_long_log(logs: &BenchLogs) {
    append_leaves(logs.late.clone(), &logs.leaves);
}

fn append_leaves(mut log: LogBuilder, leaves: &[LogHash]) {
    for leaf in leaves {
        log.append(*leaf, |tile, hashes, root| {
            black_box((tile, hashes, root));
        });
    }
    black_box(log);
}

/// Through the store, including the journal: CPU time of the whole process, without the disk.
///
/// Short and long ledger take turns. Otherwise another load on the machine while a million entries are written would count as their cost.
pub(crate) fn bench_store_append(entries: u64, directory: &Path) -> BenchOutput {
    let mut long = BenchStore::new(&directory.join("long"))?;
    long.fill_to(entries);
    let (first, mut early, mut late) = (long.size(), u64::MAX, u64::MAX);
    for repetition in 0..STORE_REPETITIONS {
        let mut short = BenchStore::new(&directory.join(format!("short-{repetition}")))?;
        short.fill_to(SHORT_LOG_ENTRIES);
        early = early.min(short.mean_append_ns());
        late = late.min(long.mean_append_ns());
    }
    Ok(json!({ "entries": entries, "first": first, "last": long.size(), "early_ns": early, "late_ns": late }))
}

/// A store to which applies are written one after the other.
struct BenchStore {
    store: SqliteStore,
    decided: FleetDecision,
    applies: u64,
}

impl BenchStore {
    fn new(directory: &Path) -> Result<Self, Box<dyn Error>> {
        let store = SqliteStore::open(directory, StoreSettings::new(|cause| panic!("{cause}")))?;
        Ok(Self { store, decided: FleetDecision::for_fleet(GUESTS), applies: 0 })
    }

    /// The writes of the next apply, without blobs: they have been there since the first apply and would only be hashed again.
    fn next_apply(&mut self) -> Vec<StoreWrite> {
        self.applies += 1;
        let mut writes = self.decided.apply_writes(self.applies);
        writes.retain(runs::has_entry);
        writes
    }

    fn size(&self) -> u64 {
        block_on_store(self.store.heads()).all.size
    }

    /// Fills the ledger to about this size.
    fn fill_to(&mut self, size: u64) {
        while self.size() < size {
            for batch in runs::split_into_batches(self.next_apply()) {
                let _ = block_on_store(self.store.commit(batch));
            }
        }
    }

    /// The mean CPU time of an append, from the current size on.
    fn mean_append_ns(&mut self) -> u64 {
        let before = self.size();
        let batches: Vec<Batch> = (0..APPLIES_AVERAGED).flat_map(|_| split_into_batches(&self.next_apply())).collect();
        let start = cpu::process_cpu_ns();
        for batch in batches {
            let _ = block_on_store(self.store.commit(batch));
        }
        (cpu::process_cpu_ns() - start) / (self.size() - before)
    }
}

fn split_into_batches(writes: &[StoreWrite]) -> Vec<Batch> {
    writes.chunks(WRITES_PER_BATCH).map(|some| Batch::new(some.to_vec())).collect()
}
