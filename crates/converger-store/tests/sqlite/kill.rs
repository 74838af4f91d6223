//! `kill -9` at any moment: what was acknowledged is found, and no batch is found in part (S19).
//!
//! The victim is this test again in another process. It commits several batches at once and prints which were acknowledged. It is killed
//! at an arbitrary moment after some of them, and the next victim continues with the same file.

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use converger_core::apply::JournalRecord;
use converger_core::evidence::LedgerEntry;
use converger_core::testing::Rng;
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{Batch, LIST_MAX, OperationFilter, SqliteStore, Store, StoreReader as _};

use super::{commit_written, open_store, panicking_settings, state_directory_path};

const DIRECTORY: &str = "CONVERGER_TEST_KILLED_IN";
const FIRST: &str = "CONVERGER_TEST_KILLED_FIRST";
const ROUNDS: u64 = 30;
const WRITES_EACH: u64 = 3;

#[test]
fn kill_at_any_moment_loses_no_acknowledged_batch_and_leaves_none_in_part() {
    if let Some(directory) = env::var_os(DIRECTORY) {
        let first = env::var(FIRST).ok().and_then(|first| first.parse().ok()).expect("a number");
        return run_victim(Path::new(&directory), first);
    }
    let (_above, directory) = state_directory_path();
    commit_written(&open_store(&directory), OperationSample::new(1).start_write());
    let mut rng = Rng::new(20_261_115);
    let (mut acknowledged, mut first) = (Vec::new(), 0);
    for round in 0..ROUNDS {
        let after = usize::try_from(rng.below(40)).expect("small");
        acknowledged.extend(kill_after(&directory, first, after));
        first = check_after_kill(&directory, &acknowledged, &format!("round {round}"));
    }
    assert!(acknowledged.len() > 300, "{} acknowledged batches are too few", acknowledged.len());
}

/// Commits until it is killed, always eight batches at once, with three operations each.
fn run_victim(directory: &Path, first: u64) {
    let store = SqliteStore::open(directory, panicking_settings()).expect("opens");
    let sample = OperationSample::new(1);
    for group in (first..).step_by(8) {
        let waiting: Vec<_> = (group..group + 8).map(|number| (number, store.commit(three_intents(&sample, number)))).collect();
        for (number, answer) in waiting {
            let _ = block_on(answer).expect("written");
            println!("\nacknowledged {number}");
        }
    }
}

pub(super) fn three_intents(sample: &OperationSample, number: u64) -> Batch {
    let numbers = number * WRITES_EACH..(number + 1) * WRITES_EACH;
    numbers.fold(Batch::default(), |batch, number| batch.with(sample.intent_record(&sample.operation(number, number))))
}

/// The batches that a victim acknowledged before it died, including those it printed after the kill was sent.
fn kill_after(directory: &Path, first: u64, count: usize) -> Vec<u64> {
    let mut child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "kill::kill_at_any_moment_loses_no_acknowledged_batch_and_leaves_none_in_part", "--nocapture"])
        .env(DIRECTORY, directory)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut acknowledgements = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("acknowledged ")?.parse().ok());
    let mut acknowledged: Vec<u64> = acknowledgements.by_ref().take(count).collect();
    child.kill().expect("killed");
    acknowledged.extend(acknowledgements);
    child.wait().expect("ended");
    acknowledged
}

/// Checks the file as the next process finds it; returns the first batch number that is unused.
pub(super) fn check_after_kill(directory: &Path, acknowledged: &[u64], what: &str) -> u64 {
    let store = open_store(directory);
    let found = count_found(&store);
    check_ledger_matches(&store, &found, what);
    for (number, count) in &found {
        assert_eq!(*count, WRITES_EACH, "{what}: batch {number} is there in part");
    }
    for number in acknowledged {
        assert!(found.contains_key(number), "{what}: batch {number} was acknowledged and is lost");
    }
    found.keys().next_back().map_or(0, |last| last + 1)
}

/// Each operation has one entry in the ledger and each entry its operation, and the ledger is intact.
fn check_ledger_matches(store: &SqliteStore, found: &BTreeMap<u64, u64>, what: &str) {
    let entries = super::ledger::check_ledger_intact(store, what);
    let mut intents = BTreeMap::new();
    for entry in entries {
        let LedgerEntry::Record(JournalRecord::Intent { operation, .. }) = entry else { continue };
        let number: u64 = operation.id.as_str().trim_start_matches("op-").parse().expect("a number");
        *intents.entry(number / WRITES_EACH).or_default() += 1;
    }
    assert_eq!(&intents, found, "{what}: the ledger and the journal differ");
}

/// The number of operations that were found for each batch.
fn count_found(store: &SqliteStore) -> BTreeMap<u64, u64> {
    let mut found = BTreeMap::new();
    let mut filter = OperationFilter::default();
    loop {
        let page = block_on(store.operations(filter.clone(), LIST_MAX)).expect("read");
        for history in &page {
            let number: u64 = history.id().as_str().trim_start_matches("op-").parse().expect("a number");
            *found.entry(number / WRITES_EACH).or_default() += 1;
        }
        match page.last() {
            Some(last) => filter.before = Some(last.id().clone()),
            None => return found,
        }
    }
}
