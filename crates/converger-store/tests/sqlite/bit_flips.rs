//! Flips bytes of the file: each flip is detected, or everything that is read stays the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use converger_core::apply::{Freeze, Hold, IdempotencyKey, OperationEnd, Resolution};
use converger_core::artifact::Digest;
use converger_core::evidence::LedgerEntry;
use converger_core::testing::Rng;
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{Batch, OperationFilter, SqliteStore, StoreError, StoreReader as _, StoreView, StoreWrite, Tile};
use tempfile::TempDir;

use super::{commit_written, open_store, panicking_settings, peek_conditions, state_directory_path};

const FLIPS: u64 = 2_000;

/// Rows for every table: operations in every status, and holds and freezes both active and ended.
fn fill_batch() -> Batch {
    let mut sample = OperationSample::new(7);
    let body: Arc<[u8]> = Arc::from(*b"{\"planner\":1}");
    let mut batch = Batch::from(StoreWrite::Blob { digest: Digest::of_bytes(&body), body }).with(sample.start_write());
    for number in 0..12 {
        let operation = sample.one_shot(number, number, &format!("key-{number}"), "it");
        batch = batch.with(sample.intent_record(&operation));
        batch = if number > 1 { batch.with(sample.sending_record(&operation)) } else { batch };
        batch = if number > 2 { batch.with(sample.task_record(&operation)) } else { batch };
        if let Some(end) = OperationEnd::ALL.get(usize::try_from(number % 7).expect("small")).filter(|_| number > 3) {
            batch = batch.with(sample.end_record(&operation, *end));
            batch = if *end == OperationEnd::Held { batch.with(sample.resolution_record(&operation, Resolution::Done)) } else { batch };
        }
    }
    let environment = sample.environment();
    let hold = |vmid, reason: &str| {
        StoreWrite::Hold(Hold {
            environment: environment.clone(),
            vmid: sample.vmid(vmid),
            by: "ann".into(),
            reason: reason.into(),
            at_ms: 5,
        })
    };
    let freeze = || StoreWrite::Freeze(Freeze { environment: environment.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 });
    let release = StoreWrite::Release { environment: environment.clone(), vmid: sample.vmid(20), by: "bob".into(), at_ms: 8 };
    let thaw = StoreWrite::Thaw { environment: environment.clone(), by: "bob".into(), at_ms: 9 };
    let writes = [hold(20, "a disk"), release, hold(20, "another disk"), hold(21, "it's being moved"), freeze(), thaw, freeze()];
    // Enough entries to fill a tile.
    let key = StoreWrite::decision(LedgerEntry::Key { verifier: "key-1".into(), at_ms: 1 });
    let epoch =
        StoreWrite::decision(LedgerEntry::Resync { by: "ann".into(), reason: "restored".into(), size: 3, root: None, epoch: 2, at_ms: 1 });
    let recoveries = super::ledger::recovery_batch(0..238).writes().to_vec();
    writes.into_iter().chain([key, epoch]).chain(recoveries).fold(batch, Batch::with).with(StoreWrite::RunEnded {
        id: sample.run().id,
        end: OperationEnd::Held,
        at_ms: 7,
    })
}

/// A closed store with these rows, the directory above it, and its file.
fn filled_store() -> (TempDir, PathBuf, PathBuf) {
    let (above, directory) = state_directory_path();
    let store = open_store(&directory);
    commit_written(&store, fill_batch());
    drop(store);
    let path = directory.join("converger.db");
    (above, directory, path)
}

/// Everything that can be read, as text.
fn read_everything(directory: &Path) -> Result<String, String> {
    let sample = OperationSample::new(7);
    let glanced = peek_conditions(directory, &sample.environment()).map_err(|error| error.to_string())?;
    let store = SqliteStore::open(directory, panicking_settings()).map_err(|error| error.to_string())?;
    let read = || {
        let environment = || sample.environment();
        let keyed: Result<Vec<_>, StoreError> = (0..12)
            .map(|number| block_on(store.operation_of_key(environment(), IdempotencyKey::new(&format!("key-{number}")).expect("a key"))))
            .collect();
        let lists = (block_on(store.operations(OperationFilter::default(), 99))?, block_on(store.open_operations(environment()))?, keyed?);
        let holds = (block_on(store.holds(environment()))?, block_on(store.freeze(environment()))?);
        let tile = Tile { level: 0, index: 0, width: 256 };
        let ledger = (block_on(store.heads())?, block_on(store.entries(0, 999))?, block_on(store.hashes(tile))?);
        Ok::<_, StoreError>(format!(
            "{lists:?} {holds:?} {ledger:?} {:?} {:?}",
            block_on(store.runs(environment(), 9))?,
            block_on(store.blob(plan_digest()))?
        ))
    };
    read().map(|read| format!("{glanced:?} {read}")).map_err(|error| error.to_string())
}

fn plan_digest() -> Digest {
    Digest::of_bytes(b"{\"planner\":1}")
}

#[test]
fn flipped_byte_is_found_or_changes_nothing_read() {
    let (_above, directory, path) = filled_store();
    let whole = fs::read(&path).expect("there");
    let wanted = read_everything(&directory).expect("whole");
    let mut rng = Rng::new(20_261_116);
    // Most of a small file is unused space.
    let used: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] != 0).collect();
    let (mut found, mut same) = (0, 0);
    for flip in 0..FLIPS {
        let at = if flip % 8 == 0 { rng.index(whole.len()) } else { used[rng.index(used.len())] };
        let with = 1 + u8::try_from(rng.below(255)).expect("a byte");
        let mut flipped = whole.clone();
        flipped[at] ^= with;
        for file in ["converger.db-wal", "converger.db-shm"] {
            let _ = fs::remove_file(directory.join(file));
        }
        fs::write(&path, flipped).expect("written");
        match read_everything(&directory) {
            Err(_) => found += 1,
            Ok(text) => {
                assert_eq!(text, wanted, "flip {flip}: byte {at} (page {}, {}) by {with:#x}", at / 4096 + 1, at % 4096);
                same += 1;
            }
        }
    }
    println!("{FLIPS} flips in {} bytes: {found} found, {same} without effect", whole.len());
    assert!(found > 1_000 && same > 300, "{found} {same}");
}

/// A hold does not vanish, wherever its row is damaged.
#[test]
fn every_byte_of_a_hold_counts() {
    let (_above, directory, path) = filled_store();
    let whole = fs::read(&path).expect("there");
    let text = b"it's being moved";
    let at = whole.windows(text.len()).position(|bytes| bytes == text).expect("the hold is there");
    for byte in at - 20..at + text.len() + 12 {
        let mut flipped = whole.clone();
        flipped[byte] ^= 1;
        fs::write(&path, flipped).expect("written");
        let message = read_everything(&directory).expect_err("it is found");
        assert!(message.contains("damaged") || message.contains("malformed"), "byte {byte}: {message}");
    }
}

/// A read-only view finds the same damage as a writer, although SQLite checks no row of a file that is opened read-only.
#[test]
fn read_only_view_finds_bad_checksums_and_altered_tables() {
    let tables = ["runs", "operations", "ends", "holds", "freezes", "occupants", "ledger_entries", "ledger_tiles", "ledger_head"];
    for table in tables {
        let (_above, directory, path) = filled_store();
        super::open_unchecked_connection(&path).execute_batch(&format!("UPDATE {table} SET sum = sum + 1")).expect("SQL");
        let view = StoreView::open(&directory).expect("opens").expect("there");
        assert_eq!(view.find_damage(), Ok(Some(format!("a row of {table} has a wrong checksum"))));
        let glanced = peek_conditions(&directory, &OperationSample::new(7).environment()).map(drop);
        assert_eq!(glanced.is_err(), ["holds", "freezes", "occupants"].contains(&table), "{table}: {glanced:?}");
        assert!(SqliteStore::open(&directory, panicking_settings()).is_err(), "{table}");
    }
    let (_above, directory, path) = filled_store();
    let whole = fs::read(&path).expect("there");
    let at = whole.windows(15).position(|part| part == b"row_sum(seq, bo").expect("a table");
    let mut changed = whole;
    changed[at] = b'R';
    fs::write(&path, changed).expect("written");
    let other = "its tables are not those of this program";
    assert!(StoreView::open(&directory).is_err_and(|error| error.to_string().contains(other)));
    assert!(peek_conditions(&directory, &OperationSample::new(7).environment()).is_err_and(|error| error.to_string().contains(other)));
    assert!(SqliteStore::open(&directory, panicking_settings()).is_err());
}
