//! A byte of the file is another one than was written: it is found, or nothing that is read is another.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use converger_core::apply::{End, Freeze, Hold, IdempotencyKey, Resolution};
use converger_core::artifact::Digest;
use converger_core::evidence::Entry;
use converger_core::testing::Rng;
use converger_store::conformance::{Sample, now};
use converger_store::{Batch, Filter, Looked, SqliteStore, Store, StoreError, Tile, Write, glance};
use tempfile::TempDir;

use super::{open, place, settings, write};

const FLIPS: u64 = 2_000;

/// Something in every table: operations in every standing, holds and freezes that are in force and that are not.
fn content() -> Batch {
    let mut sample = Sample::new(7);
    let body: Arc<[u8]> = Arc::from(*b"{\"planner\":1}");
    let mut batch = Batch::from(Write::Blob { digest: Digest::of_bytes(&body), body }).with(sample.start());
    for number in 0..12 {
        let operation = sample.one_shot(number, number, &format!("key-{number}"), "it");
        batch = batch.with(sample.intent(&operation));
        batch = if number > 1 { batch.with(sample.sending(&operation)) } else { batch };
        batch = if number > 2 { batch.with(sample.tasked(&operation)) } else { batch };
        if let Some(end) = End::ALL.get(usize::try_from(number % 7).expect("small")).filter(|_| number > 3) {
            batch = batch.with(sample.ended(&operation, *end));
            batch = if *end == End::Held { batch.with(sample.resolved(&operation, Resolution::Done)) } else { batch };
        }
    }
    let environment = sample.environment();
    let hold = |vmid, reason: &str| {
        Write::Hold(Hold { environment: environment.clone(), vmid: sample.guest(vmid), by: "ann".into(), reason: reason.into(), at_ms: 5 })
    };
    let freeze = || Write::Freeze(Freeze { environment: environment.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 });
    let release = Write::Release { environment: environment.clone(), vmid: sample.guest(20), by: "bob".into(), at_ms: 8 };
    let thaw = Write::Thaw { environment: environment.clone(), by: "bob".into(), at_ms: 9 };
    let said = [hold(20, "a disk"), release, hold(20, "another disk"), hold(21, "it's being moved"), freeze(), thaw, freeze()];
    // So many that a tile is full.
    let key = Write::decision(Entry::Key { verifier: "key-1".into(), at_ms: 1 });
    let words = super::ledger::words(0..239).writes().to_vec();
    said.into_iter().chain([key]).chain(words).fold(batch, Batch::with).with(Write::RunEnded {
        id: sample.run().id,
        end: End::Held,
        at_ms: 7,
    })
}

/// A store with all of it that nobody has open, in a directory that goes with the first; and its file.
fn filled() -> (TempDir, PathBuf, PathBuf) {
    let (above, directory) = place();
    let store = open(&directory);
    write(&store, content());
    drop(store);
    let path = directory.join("converger.db");
    (above, directory, path)
}

/// All that anybody can read, in words.
fn told(directory: &Path) -> Result<String, String> {
    let sample = Sample::new(7);
    let glanced = glance(directory, &sample.environment()).map_err(|error| error.to_string())?;
    let store = SqliteStore::open(directory, settings()).map_err(|error| error.to_string())?;
    let read = || {
        let environment = || sample.environment();
        let keyed: Result<Vec<_>, StoreError> =
            (0..12).map(|number| now(store.keyed(environment(), IdempotencyKey::new(&format!("key-{number}")).expect("a key")))).collect();
        let lists = (now(store.operations(Filter::default(), 99))?, now(store.open_operations(environment()))?, keyed?);
        let said = (now(store.holds(environment()))?, now(store.freeze(environment()))?);
        let tile = Tile { level: 0, index: 0, width: 256 };
        let ledger = (now(store.heads())?, now(store.entries(0, 999))?, now(store.hashes(tile))?);
        Ok::<_, StoreError>(format!(
            "{lists:?} {said:?} {ledger:?} {:?} {:?}",
            now(store.runs(environment(), 9))?,
            now(store.blob(plan()))?
        ))
    };
    read().map(|read| format!("{glanced:?} {read}")).map_err(|error| error.to_string())
}

fn plan() -> Digest {
    Digest::of_bytes(b"{\"planner\":1}")
}

#[test]
fn a_flipped_byte_is_found_or_changes_nothing_that_is_read() {
    let (_above, directory, path) = filled();
    let whole = fs::read(&path).expect("there");
    let wanted = told(&directory).expect("whole");
    let mut rng = Rng::new(20_261_116);
    // Most of a small file is room that nothing is in.
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
        match told(&directory) {
            Err(_) => found += 1,
            Ok(told) => {
                assert_eq!(told, wanted, "flip {flip}: byte {at} (page {}, {}) by {with:#x}", at / 4096 + 1, at % 4096);
                same += 1;
            }
        }
    }
    println!("{FLIPS} flips in {} bytes: {found} found, {same} without effect", whole.len());
    assert!(found > 1_000 && same > 300, "{found} {same}");
}

/// What a person said does not vanish, wherever its row is damaged.
#[test]
fn every_byte_of_a_hold_counts() {
    let (_above, directory, path) = filled();
    let whole = fs::read(&path).expect("there");
    let text = b"it's being moved";
    let at = whole.windows(text.len()).position(|bytes| bytes == text).expect("the hold is there");
    for byte in at - 20..at + text.len() + 12 {
        let mut flipped = whole.clone();
        flipped[byte] ^= 1;
        fs::write(&path, flipped).expect("written");
        let told = told(&directory).expect_err("it is found");
        assert!(told.contains("damaged") || told.contains("malformed"), "byte {byte}: {told}");
    }
}

/// Who only looks finds what whoever writes finds, though SQLite itself checks no row of a file that is only read.
#[test]
fn who_only_looks_finds_a_row_with_another_sum_and_a_table_that_says_something_else() {
    let sums = ["runs", "operations", "ends", "holds", "freezes", "occupants", "ledger_entries", "ledger_tiles", "ledger_head"];
    for table in sums {
        let (_above, directory, path) = filled();
        super::other(&path).execute_batch(&format!("UPDATE {table} SET sum = sum + 1")).expect("SQL");
        let looked = Looked::open(&directory).expect("opens").expect("there");
        assert_eq!(looked.damage(), Ok(Some(format!("a row of {table} has another sum"))));
        let glanced = glance(&directory, &Sample::new(7).environment()).map(drop);
        assert_eq!(glanced.is_err(), ["holds", "freezes", "occupants"].contains(&table), "{table}: {glanced:?}");
        assert!(SqliteStore::open(&directory, settings()).is_err(), "{table}");
    }
    let (_above, directory, path) = filled();
    let whole = fs::read(&path).expect("there");
    let at = whole.windows(15).position(|part| part == b"row_sum(seq, bo").expect("a table");
    let mut changed = whole;
    changed[at] = b'R';
    fs::write(&path, changed).expect("written");
    let other = "its tables are not those that this program makes";
    assert!(Looked::open(&directory).is_err_and(|error| error.to_string().contains(other)));
    assert!(glance(&directory, &Sample::new(7).environment()).is_err_and(|error| error.to_string().contains(other)));
    assert!(SqliteStore::open(&directory, settings()).is_err());
}
