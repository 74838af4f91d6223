//! A byte of the database or of an export is changed, or the file is truncated: the change is detected, or everything readable is
//! unchanged.
//!
//! `cargo xtask evidence` sets `CONVERGER_FLIPS` to the number that the proof requires.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use converger_core::testing::Rng;
use converger_store::conformance::block_on;
use converger_store::{Batch, SqliteStore, Store as _, StoreReader as _, StoreSettings};

use rusqlite::types::Value;

use crate::export_files::ExportFiles;
use crate::fixture::{EvidenceFixture, copy_state};
use crate::record_check;
use crate::reproduce::decision_writes;

const SEED: u64 = 20_261_116;
const DEFAULT_FLIPS: u64 = 3_000;
/// One in this many database changes is also checked with the real program.
const PROGRAM_CHECK_INTERVAL: u64 = 40;

fn flip_count() -> u64 {
    std::env::var("CONVERGER_FLIPS").ok().map_or(DEFAULT_FLIPS, |count| count.parse().expect("CONVERGER_FLIPS is a number"))
}

/// A history that fills a tile, not in use by any process.
fn fixture_with_full_tile() -> EvidenceFixture {
    let fixture = EvidenceFixture::with_short_history();
    fixture.run_expecting(&["apply", "missing.yaml"], 3);
    fixture.run_expecting(&["apply", "missing.yaml"], 3);
    fixture.key();
    fixture
}

/// A copy of a file with one changed byte, or truncated; and a description of the change.
fn corrupt_bytes(whole: &[u8], used: &[usize], rng: &mut Rng) -> (Vec<u8>, String) {
    if rng.one_in(10) {
        let end = rng.index(whole.len());
        return (whole[..end].to_vec(), format!("cut at {end}"));
    }
    // Most of a small database is unused space.
    let at = if rng.one_in(8) { rng.index(whole.len()) } else { used[rng.index(used.len())] };
    let with = 1 + u8::try_from(rng.below(255)).expect("a byte");
    let mut bytes = whole.to_vec();
    bytes[at] ^= with;
    (bytes, format!("byte {at} (page {}, {}) by {with:#x}", at / 4096 + 1, at % 4096))
}

fn nonzero_offsets(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len()).filter(|at| bytes[*at] != 0).collect()
}

/// Distributes work over all cores, each with its own seed.
fn run_on_all_cores(count: u64, work: impl Fn(u64, Rng) + Sync) {
    let workers = thread::available_parallelism().map_or(2, |workers| workers.get() as u64);
    thread::scope(|scope| {
        let own = |worker| count / workers + u64::from(worker < count % workers);
        let work = &work;
        for worker in 0..workers {
            scope.spawn(move || work(own(worker), Rng::new(SEED ^ (worker << 32))));
        }
    });
}

/// The numbers of detected and ineffective changes.
#[derive(Default)]
struct FlipCounts {
    found: AtomicU64,
    same: AtomicU64,
    shown: AtomicU64,
}

impl FlipCounts {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn print_counts(&self, what: &str) -> (u64, u64) {
        let [found, same, shown] = [&self.found, &self.same, &self.shown].map(|counter| counter.load(Ordering::Relaxed));
        println!("{what}: {found} found, {same} without effect, {shown} shown to the program; seed {SEED}");
        (found, same)
    }
}

#[test]
fn changed_database_byte_is_detected_or_has_no_effect() {
    let fixture = fixture_with_full_tile();
    let whole = fs::read(fixture.state_directory().join("converger.db")).expect("there");
    let wanted = record_check::read_tables(&fixture.state_directory().join("converger.db")).expect("whole");
    assert_eq!(record_check::check_state(&fixture.state_directory()), Ok(()));
    let (used, tally, fixture) = (nonzero_offsets(&whole), FlipCounts::default(), &fixture);
    let directories: Vec<tempfile::TempDir> = (0..64).map(|_| tempfile::tempdir().expect("a directory")).collect();
    let next = AtomicU64::new(0);
    run_on_all_cores(flip_count(), |count, mut rng| {
        let state_directory = directories[usize::try_from(next.fetch_add(1, Ordering::Relaxed)).expect("small")].path().join("state");
        copy_state(&fixture.state_directory(), &state_directory);
        let path = state_directory.join("converger.db");
        for _ in 0..count {
            let (bytes, what) = corrupt_bytes(&whole, &used, &mut rng);
            remove_wal_files(&state_directory);
            fs::write(&path, bytes).expect("written");
            let is_accepted = record_check::check_state(&state_directory).is_ok();
            if is_accepted {
                let content = record_check::read_tables(&path).expect("read");
                assert_eq!(describe_differences(&content, &wanted), Vec::<String>::new(), "{what}");
            }
            if rng.one_in(PROGRAM_CHECK_INTERVAL) {
                let output = fixture.run(&["verify", "--db", &state_directory.display().to_string()]);
                assert!(output.code != Some(0) || record_check::read_tables(&path).as_ref() == Ok(&wanted), "{what}: {output:?}");
                assert!(output.code == Some(0) || !is_accepted, "{what}: {output:?}");
                FlipCounts::add(&tally.shown);
            }
            FlipCounts::add(if is_accepted { &tally.same } else { &tally.found });
        }
    });
    let (found, same) = tally.print_counts(&format!("{} changes of {} bytes of the database", flip_count(), whole.len()));
    assert!(found + same == flip_count() && found > flip_count() / 2 && same > 0);
}

/// The rows that only one of both has, as text.
fn describe_differences(one: &record_check::TableRows, other: &record_check::TableRows) -> Vec<String> {
    let render_value = |value: &Value| match value {
        Value::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        value => format!("{value:?}"),
    };
    let rows = |content: &record_check::TableRows| -> BTreeSet<String> {
        let rows = content.iter().flat_map(|(table, rows)| rows.iter().map(move |row| (table, row)));
        rows.map(|(table, row)| format!("{table}: {}", row.iter().map(render_value).collect::<Vec<_>>().join(", "))).collect()
    };
    rows(one).symmetric_difference(&rows(other)).cloned().collect()
}

/// Removes the files that SQLite leaves beside a database that it has read.
fn remove_wal_files(directory: &Path) {
    for name in ["converger.db-wal", "converger.db-shm"] {
        let _ = fs::remove_file(directory.join(name));
    }
}

/// In an export, every change has an effect.
#[test]
fn changed_export_byte_is_detected() {
    let fixture = fixture_with_full_tile();
    let whole = ExportFiles::read(&fixture.export_to("export"));
    assert_eq!(record_check::check_export(&whole), Ok(()));
    let names: Vec<&String> = whole.0.keys().collect();
    let (tally, fixture) = (FlipCounts::default(), &fixture);
    run_on_all_cores(flip_count(), |count, mut rng| {
        for _ in 0..count {
            // Each file equally often: the small ones are read first and are signed.
            let name = names[rng.index(names.len())];
            let (bytes, what) = corrupt_bytes(&whole.0[name], &nonzero_offsets(&whole.0[name]), &mut rng);
            let mut files = whole.clone();
            *files.file_mut(name) = bytes;
            assert!(record_check::check_export(&files).is_err(), "{name}, {what}");
            FlipCounts::add(&tally.found);
            if rng.one_in(PROGRAM_CHECK_INTERVAL) {
                let directory = tempfile::tempdir().expect("a directory");
                files.write(&directory.path().join("export"));
                let output = fixture.run(&["verify", &directory.path().join("export").display().to_string()]);
                assert_eq!(output.code, Some(6), "{name}, {what}: {output:?}");
                FlipCounts::add(&tally.shown);
            }
        }
    });
    let (found, _) = tally.print_counts(&format!("{} changes of {} files of an export", flip_count(), names.len()));
    assert_eq!(found, flip_count());
}

/// The states that a database with a log passes through: one after each batch, as another process finds it.
fn states_with_wal(directory: &Path) -> (PathBuf, Vec<Vec<Vec<u8>>>) {
    let (open, left) = (directory.join("open"), directory.join("left"));
    let store = SqliteStore::open(&open, StoreSettings::new(|fatal| panic!("{fatal}"))).expect("opens");
    let mut states = vec![Vec::new()];
    for number in 0..6 {
        let _ = block_on(store.commit(Batch::new(decision_writes(number)))).expect("written");
        states.push(block_on(store.entries(0, 999)).expect("read"));
    }
    copy_state(&open, &left);
    let _ = fs::remove_file(left.join("converger.db-shm"));
    (left, states)
}

/// A log is read up to its first fault, as after a crash, so the result is a complete earlier state. Only a witness reveals that it is an
/// older one (`export`), nothing in the same directory does.
#[test]
fn changed_wal_byte_leaves_an_earlier_state() {
    let directory = tempfile::tempdir().expect("a directory");
    let (left, states) = states_with_wal(directory.path());
    let path = left.join("converger.db-wal");
    let whole = fs::read(&path).expect("there");
    let (used, mut rng) = (nonzero_offsets(&whole), Rng::new(SEED));
    let (mut found, mut ages) = (0, vec![0_u64; states.len()]);
    for _ in 0..flip_count() / 4 {
        let (bytes, what) = corrupt_bytes(&whole, &used, &mut rng);
        fs::write(&path, bytes).expect("written");
        let view = converger_store::StoreView::open(&left);
        let entries = match view.as_ref().map(Option::as_ref) {
            Ok(Some(view)) => converger_store::wait_for(view.entries(0, 999)).map_err(|error| error.to_string()),
            Ok(None) => Ok(Vec::new()),
            Err(error) => Err(error.to_string()),
        };
        match entries {
            Err(_) => found += 1,
            Ok(entries) => {
                let age = states.iter().position(|state| *state == entries).unwrap_or_else(|| panic!("{what}: there was no such state"));
                ages[age] += 1;
                if age > 0 {
                    record_check::check_state(&left).unwrap_or_else(|found| panic!("{what}: {found}"));
                }
            }
        }
    }
    println!(
        "{} changes of {} bytes of a log: {found} found, {ages:?} by the batches that are left; seed {SEED}",
        flip_count() / 4,
        whole.len()
    );
    assert!(ages.iter().filter(|count| **count > 0).count() > 3, "{ages:?}");
}
