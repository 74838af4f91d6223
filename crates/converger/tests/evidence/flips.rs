//! A byte of the database or of an export is another one than was written, or the end of it is cut off: it is found, or all that can be
//! read is the same.
//!
//! `CONVERGER_FLIPS=100000` tries as many of them as the proof asks for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use converger_core::testing::Rng;
use converger_store::conformance::now;
use converger_store::{Batch, Settings, SqliteStore, Store as _};

use rusqlite::types::Value;

use crate::bed::{Bed, copy_state};
use crate::files::Files;
use crate::judge;

const SEED: u64 = 20_261_116;
const FLIPS: u64 = 3_000;
/// Of so many changes of the database one is also shown to the real program.
const SHOWN: u64 = 40;

fn flips() -> u64 {
    std::env::var("CONVERGER_FLIPS").ok().map_or(FLIPS, |count| count.parse().expect("CONVERGER_FLIPS is a number"))
}

/// A past that fills a tile, and nobody has it open.
fn past() -> Bed {
    let bed = Bed::short();
    bed.told(&["apply", "missing.yaml"], 3);
    bed.told(&["apply", "missing.yaml"], 3);
    bed.key();
    bed
}

/// Bytes that a file had and that are changed in one place, or cut; and what was done, in words.
fn changed(whole: &[u8], used: &[usize], rng: &mut Rng) -> (Vec<u8>, String) {
    if rng.one_in(10) {
        let end = rng.index(whole.len());
        return (whole[..end].to_vec(), format!("cut at {end}"));
    }
    // Most of a small database is room that nothing is in.
    let at = if rng.one_in(8) { rng.index(whole.len()) } else { used[rng.index(used.len())] };
    let with = 1 + u8::try_from(rng.below(255)).expect("a byte");
    let mut bytes = whole.to_vec();
    bytes[at] ^= with;
    (bytes, format!("byte {at} (page {}, {}) by {with:#x}", at / 4096 + 1, at % 4096))
}

fn used(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).filter(|at| bytes[*at] != 0).collect()
}

/// Shares work among the cores; each has a seed of its own.
fn shared(count: u64, work: impl Fn(u64, Rng) + Sync) {
    let workers = thread::available_parallelism().map_or(2, |workers| workers.get() as u64);
    thread::scope(|scope| {
        let own = |worker| count / workers + u64::from(worker < count % workers);
        let work = &work;
        for worker in 0..workers {
            scope.spawn(move || work(own(worker), Rng::new(SEED ^ (worker << 32))));
        }
    });
}

/// What was found, and what changed nothing.
#[derive(Default)]
struct Tally {
    found: AtomicU64,
    same: AtomicU64,
    shown: AtomicU64,
}

impl Tally {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn told(&self, what: &str) -> (u64, u64) {
        let [found, same, shown] = [&self.found, &self.same, &self.shown].map(|counter| counter.load(Ordering::Relaxed));
        println!("{what}: {found} found, {same} without effect, {shown} shown to the program; seed {SEED}");
        (found, same)
    }
}

#[test]
fn a_changed_byte_of_the_database_is_found_or_changes_nothing() {
    let bed = past();
    let whole = fs::read(bed.state().join("converger.db")).expect("there");
    let wanted = judge::content(&bed.state().join("converger.db")).expect("whole");
    assert_eq!(judge::state(&bed.state()), Ok(()));
    let (used, tally, bed) = (used(&whole), Tally::default(), &bed);
    let rooms: Vec<tempfile::TempDir> = (0..64).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let next = AtomicU64::new(0);
    shared(flips(), |count, mut rng| {
        let room = rooms[usize::try_from(next.fetch_add(1, Ordering::Relaxed)).expect("small")].path().join("state");
        copy_state(&bed.state(), &room);
        let path = room.join("converger.db");
        for _ in 0..count {
            let (bytes, what) = changed(&whole, &used, &mut rng);
            remove_beside(&room);
            fs::write(&path, bytes).expect("written");
            let is_accepted = judge::state(&room).is_ok();
            if is_accepted {
                let content = judge::content(&path).expect("read");
                assert_eq!(differing(&content, &wanted), Vec::<String>::new(), "{what}");
            }
            if rng.one_in(SHOWN) {
                let said = bed.run(&["verify", "--db", &room.display().to_string()]);
                assert!(said.code != Some(0) || judge::content(&path).as_ref() == Ok(&wanted), "{what}: {said:?}");
                assert!(said.code == Some(0) || !is_accepted, "{what}: {said:?}");
                Tally::add(&tally.shown);
            }
            Tally::add(if is_accepted { &tally.same } else { &tally.found });
        }
    });
    let (found, same) = tally.told(&format!("{} changes of {} bytes of the database", flips(), whole.len()));
    assert!(found + same == flips() && found > flips() / 2 && same > 0);
}

/// The rows of one that the other does not have, in words.
fn differing(one: &judge::Content, other: &judge::Content) -> Vec<String> {
    let shown = |value: &Value| match value {
        Value::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        value => format!("{value:?}"),
    };
    let rows = |content: &judge::Content| -> BTreeSet<String> {
        let rows = content.iter().flat_map(|(table, rows)| rows.iter().map(move |row| (table, row)));
        rows.map(|(table, row)| format!("{table}: {}", row.iter().map(shown).collect::<Vec<_>>().join(", "))).collect()
    };
    rows(one).symmetric_difference(&rows(other)).cloned().collect()
}

/// What SQLite leaves beside a file that it has looked at.
fn remove_beside(room: &Path) {
    for name in ["converger.db-wal", "converger.db-shm"] {
        let _ = fs::remove_file(room.join(name));
    }
}

/// In an export nothing is without effect.
#[test]
fn a_changed_byte_of_an_export_is_found() {
    let bed = past();
    let whole = Files::read(&bed.export("export"));
    assert_eq!(judge::export(&whole), Ok(()));
    let names: Vec<&String> = whole.0.keys().collect();
    let (tally, bed) = (Tally::default(), &bed);
    shared(flips(), |count, mut rng| {
        for _ in 0..count {
            // As often in each file: the small ones are read first and signed.
            let name = names[rng.index(names.len())];
            let (bytes, what) = changed(&whole.0[name], &used(&whole.0[name]), &mut rng);
            let mut files = whole.clone();
            *files.at(name) = bytes;
            assert!(judge::export(&files).is_err(), "{name}, {what}");
            Tally::add(&tally.found);
            if rng.one_in(SHOWN) {
                let room = tempfile::tempdir().expect("a directory");
                files.write(&room.path().join("export"));
                let said = bed.run(&["verify", &room.path().join("export").display().to_string()]);
                assert_eq!(said.code, Some(6), "{name}, {what}: {said:?}");
                Tally::add(&tally.shown);
            }
        }
    });
    let (found, _) = tally.told(&format!("{} changes of {} files of an export", flips(), names.len()));
    assert_eq!(found, flips());
}

/// The states that a database with a log passes through: after each of some batches, as somebody finds it who comes then.
fn with_log(room: &Path) -> (PathBuf, Vec<Vec<Vec<u8>>>) {
    let (open, left) = (room.join("open"), room.join("left"));
    let store = SqliteStore::open(&open, Settings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let sample = converger_store::conformance::Sample::new(3);
    let mut states = vec![Vec::new()];
    for number in 0..6 {
        let operation = sample.operation(number, number);
        let batch = Batch::from(sample.intent(&operation)).with(sample.sending(&operation));
        let batch = if number == 0 { Batch::new([vec![sample.start()], batch.writes().to_vec()].concat()) } else { batch };
        let _ = now(store.commit(batch)).expect("written");
        states.push(now(store.entries(0, 999)).expect("read"));
    }
    copy_state(&open, &left);
    let _ = fs::remove_file(left.join("converger.db-shm"));
    (left, states)
}

/// A log is read up to the first thing in it that is wrong, as after a crash: what is found is a state that there was, whole. That it is an
/// older one is told by a witness (`export`), and by nothing that lies in the same place.
#[test]
fn a_changed_byte_of_the_log_leaves_a_state_that_there_was() {
    let room = tempfile::tempdir().expect("a directory");
    let (left, states) = with_log(room.path());
    let path = left.join("converger.db-wal");
    let whole = fs::read(&path).expect("there");
    let (used, mut rng) = (used(&whole), Rng::new(SEED));
    let (mut found, mut ages) = (0, vec![0_u64; states.len()]);
    for _ in 0..flips() / 4 {
        let (bytes, what) = changed(&whole, &used, &mut rng);
        fs::write(&path, bytes).expect("written");
        let looked = converger_store::Looked::open(&left);
        let entries = match looked.as_ref().map(Option::as_ref) {
            Ok(Some(looked)) => looked.entries(0, 999).map_err(|error| error.to_string()),
            Ok(None) => Ok(Vec::new()),
            Err(error) => Err(error.to_string()),
        };
        match entries {
            Err(_) => found += 1,
            Ok(entries) => {
                let age = states.iter().position(|state| *state == entries).unwrap_or_else(|| panic!("{what}: there was no such state"));
                ages[age] += 1;
                if age > 0 {
                    judge_of_sample(&left, &what);
                }
            }
        }
    }
    println!(
        "{} changes of {} bytes of a log: {found} found, {ages:?} by the batches that are left; seed {SEED}",
        flips() / 4,
        whole.len()
    );
    assert!(ages.iter().filter(|count| **count > 0).count() > 3, "{ages:?}");
}

/// What is left is whole. The blobs that a sample names are not kept.
fn judge_of_sample(state: &Path, what: &str) {
    let judged = judge::state(state).err().unwrap_or_default();
    assert!(judged.is_empty() || judged.ends_with(" is gone"), "{what}: {judged}");
}
