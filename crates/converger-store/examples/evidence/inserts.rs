//! Durable commits of entries: the number of transactions and syncs, and the time.

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use converger_store::{Batch, LIST_MAX, SqliteStore, Store as _, StoreReader as _, StoreSettings, StoreWrite};
use futures_util::future::try_join_all;
use rusqlite::Connection;
use serde_json::json;

use crate::BenchOutput;
use crate::runs::{FleetDecision, block_on_store, has_entry};

const GUESTS: u32 = 900;
/// How many writes are in a batch.
const WRITES_PER_BATCH: usize = 64;
/// How many applies are timed, in batches of one operation each, and how many batches run concurrently.
const APPLIES_TIMED: u64 = 10;
const RECORDS_PER_OPERATION: usize = 4;
const CONCURRENT_BATCHES: usize = 64;

fn open_store(directory: &Path) -> Result<SqliteStore, Box<dyn Error>> {
    Ok(SqliteStore::open(directory, StoreSettings::new(|cause| panic!("{cause}")))?)
}

/// Commits `count` batches one after the other: of writes with entries, or of blobs, which have none.
pub(crate) fn commit_batches(kind: &str, count: usize, directory: &Path) -> BenchOutput {
    let store = open_store(directory)?;
    let writes = apply_writes(APPLIES_TIMED);
    let written: Vec<StoreWrite> = match kind {
        "entries" => writes,
        "blobs" => (0..writes.len()).map(|number| StoreWrite::blob(format!("{number:0500}").into_bytes())).collect(),
        other => return Err(format!("`{other}` is neither `entries` nor `blobs`").into()),
    };
    let batches: Vec<Batch> = written.chunks_exact(WRITES_PER_BATCH).take(count).map(|some| Batch::new(some.to_vec())).collect();
    let done = batches.len();
    for batch in batches {
        let _ = block_on_store(store.commit(batch));
    }
    let (transactions, entries) = (store.transactions(), block_on_store(store.heads()).all.size);
    // Skip closing: whether it checkpoints the WAL, and so syncs, depends on which connection closes last.
    std::mem::forget(store);
    Ok(json!({ "batches": done, "writes": done * WRITES_PER_BATCH, "entries": entries, "transactions": transactions }))
}

/// The writes of applies that have an entry.
fn apply_writes(count: u64) -> Vec<StoreWrite> {
    let decided = FleetDecision::for_fleet(GUESTS);
    (0..count).flat_map(|number| decided.apply_writes(number)).filter(has_entry).collect()
}

/// The time of the store, with its journal, compared with plain inserts of the entries.
pub(crate) fn bench_insert_ratio() -> BenchOutput {
    let directory = tempfile::tempdir()?;
    let store = open_store(&directory.path().join("state"))?;
    let batches: Vec<Batch> = apply_writes(APPLIES_TIMED).chunks(RECORDS_PER_OPERATION).map(|some| Batch::new(some.to_vec())).collect();
    let before = store.transactions();
    let store_time = measure_time(|| Ok(converger_store::conformance::block_on(commit_concurrently(&store, &batches))?))?;
    let transactions = store.transactions() - before;
    let entries = read_entries(&store);
    let group = entries.len().div_ceil(usize::try_from(transactions)?);
    let insert_time = measure_time(|| insert_rows(&directory.path().join("bare.db"), &entries, group))?;
    let rate = |time: Duration| (entries.len() as f64 / time.as_secs_f64()).round();
    Ok(json!({
        "entries": entries.len(), "transactions": transactions, "entries_per_second": rate(store_time), "bare_inserts_per_second": rate(insert_time),
        "ratio": insert_time.as_secs_f64() / store_time.as_secs_f64(),
    }))
}

async fn commit_concurrently(store: &SqliteStore, batches: &[Batch]) -> Result<(), converger_store::StoreError> {
    for some in batches.chunks(CONCURRENT_BATCHES) {
        // Requested in order, and therefore committed in order.
        try_join_all(some.iter().map(|batch| store.commit(batch.clone()))).await?;
    }
    Ok(())
}

fn read_entries(store: &SqliteStore) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        let page = block_on_store(store.entries(all.len() as u64, LIST_MAX));
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

fn measure_time(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

/// A table of two columns with the same file settings and the same number of rows per transaction.
fn insert_rows(path: &Path, rows: &[Vec<u8>], group: usize) -> Result<(), Box<dyn Error>> {
    let mut connection = Connection::open(path)?;
    let _: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch("CREATE TABLE log (seq INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")?;
    for some in rows.chunks(group) {
        let transaction = connection.transaction()?;
        for row in some {
            transaction.prepare_cached("INSERT INTO log (body) VALUES (?1)")?.execute([row])?;
        }
        transaction.commit()?;
    }
    Ok(())
}
