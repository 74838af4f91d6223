//! Measures how fast batches become durable: in the store, and with plain inserts of the same bytes in groups of the same size.
//!
//! `cargo run --release -p converger-store --features conformance --example commits [operations] [at once]`. Each operation is three
//! batches (intent, task, end) and a sending mark, which does not wait for the disk and is not counted. Prints one line of JSON. The disk
//! determines the absolute numbers; the ratio is the cost of the journal beyond a plain log. Also measured: the store in memory, and how
//! long the next start takes to open the file.

use std::error::Error;
use std::time::{Duration, Instant};

use converger_core::apply::{JournalRecord, Operation, OperationEnd, write_operation, write_outcome};
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{Batch, CommitAck, MemoryStore, SqliteStore, Store, StoreSettings};
use rusqlite::Connection;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let operations = arguments.next().transpose()?.unwrap_or(10_000);
    let at_once = arguments.next().transpose()?.unwrap_or(64).max(1);
    let directory = tempfile::tempdir()?;
    let store = SqliteStore::open(&directory.path().join("state"), StoreSettings::new(|cause| panic!("{cause}")))?;
    let mut sample = OperationSample::new(1);
    let _ = block_on(store.commit(sample.start_write()))?;
    let lives: Vec<[JournalRecord; 4]> = (0..operations).map(|number| operation_records(&mut sample, number)).collect();
    let before = store.transactions();
    let store_time = measure_time(|| block_on(write_journal(&store, &lives, at_once)))?;
    let transactions = store.transactions() - before;
    let bytes: Vec<Vec<u8>> = lives.iter().flatten().filter(|record| record.must_be_durable()).map(record_bytes).collect();
    let batches = bytes.len();
    let group = batches.div_ceil(usize::try_from(transactions)?);
    let insert_time = measure_time(|| insert_rows(&directory.path().join("bare.db"), &bytes, group))?;
    drop(store);
    let reopened = measure_time(|| {
        SqliteStore::open(&directory.path().join("state"), StoreSettings::new(|cause| panic!("{cause}")))?;
        Ok(())
    })?;
    let memory_store = MemoryStore::new();
    let _ = memory_store.commit_now(sample.start_write())?;
    let memory = measure_time(|| block_on(write_journal(&memory_store, &lives, at_once)))?;
    let rate = |time: Duration| (batches as f64 / time.as_secs_f64()).round();
    println!(
        "{{\"batches\":{batches},\"at_once\":{at_once},\"transactions\":{transactions},\"batches_per_second\":{},\
         \"bare_inserts_per_second\":{},\"ratio\":{:.2},\"memory_batches_per_second\":{},\"reopened_ms\":{}}}",
        rate(store_time),
        rate(insert_time),
        insert_time.as_secs_f64() / store_time.as_secs_f64(),
        rate(memory),
        reopened.as_millis()
    );
    Ok(())
}

fn measure_time(work: impl FnOnce() -> Result<(), Box<dyn Error>>) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed())
}

fn operation_records(sample: &mut OperationSample, number: u64) -> [JournalRecord; 4] {
    let operation: Operation = sample.operation(number, number);
    [
        sample.intent_record(&operation),
        sample.sending_record(&operation),
        sample.task_record(&operation),
        sample.end_record(&operation, OperationEnd::Done),
    ]
}

/// Runs `at_once` operations concurrently; each waits for its own answer before its next record, as in the engine.
async fn write_journal(store: &impl Store, lives: &[[JournalRecord; 4]], at_once: u64) -> Result<(), Box<dyn Error>> {
    for some in lives.chunks(usize::try_from(at_once)?) {
        for step in 0..4 {
            let waiting: Vec<_> = some.iter().map(|records| store.commit(Batch::from(records[step].clone()))).collect();
            for answer in waiting {
                let CommitAck::Written { .. } = answer.await? else { return Err("repeated".into()) };
            }
        }
    }
    Ok(())
}

fn record_bytes(record: &JournalRecord) -> Vec<u8> {
    match record {
        JournalRecord::Intent { operation, .. } => write_operation(operation).unwrap_or_default(),
        JournalRecord::Ended { outcome, .. } => write_outcome(outcome).unwrap_or_default(),
        JournalRecord::Sending { .. } => Vec::new(),
        JournalRecord::TaskStarted { task, .. } => task.as_str().into(),
        JournalRecord::Resolved { reason, .. } => reason.as_bytes().into(),
    }
}

/// A table of two columns with the same file settings and the same number of rows per transaction.
fn insert_rows(path: &std::path::Path, rows: &[Vec<u8>], group: usize) -> Result<(), Box<dyn Error>> {
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
