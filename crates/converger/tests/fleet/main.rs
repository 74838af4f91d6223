//! How fast a fleet is started in virtual time, and how many commits it takes. `cargo xtask bench` measures the same with a larger fleet.

mod fleet;

use converger_engine::schedule::ConcurrencyLimits;
use converger_store::{MemoryStore, SqliteStore, StoreSettings};
use fleet::Fleet;

const GUESTS: u32 = 200;

fn fleet(limits: ConcurrencyLimits) -> Fleet {
    Fleet { guests: GUESTS, nodes: 10, start_ms: 10_000, limits }
}

/// The run begins and ends; each operation has its intent, its task and its end.
const COMMITS_MAX: u64 = 2 + 3 * GUESTS as u64;

#[test]
fn starts_a_fleet_within_ten_percent_of_ideal_with_three_commits_per_guest() {
    // Once the limit per node is the bottleneck, once the overall limit.
    for limits in [ConcurrencyLimits { per_node: 4, overall: 40 }, ConcurrencyLimits { per_node: 8, overall: 20 }] {
        let (fleet, store) = (fleet(limits), MemoryStore::new());
        let run = fleet.start(&store);
        let (took_ms, ideal_ms, commits) = (run.took_ms, fleet.ideal_ms(), store.transactions());
        println!("{limits:?}: {took_ms} ms, ideal {ideal_ms} ms, {commits} commits, {} requests", run.requests);
        assert_eq!(run.done_count(), GUESTS as usize, "{limits:?}");
        assert!(took_ms >= ideal_ms, "{limits:?}: {took_ms} ms is faster than the tasks themselves take: the limits were not kept");
        assert!(took_ms * 100 <= ideal_ms * 110, "{limits:?}: {took_ms} ms, ideal {ideal_ms} ms");
        assert_eq!(commits, COMMITS_MAX, "{limits:?}");
    }
}

#[test]
fn concurrent_commits_share_transactions() {
    let above = tempfile::tempdir().expect("a directory");
    let store = SqliteStore::open(&above.path().join("state"), StoreSettings::new(|cause| panic!("{cause}"))).expect("opens");
    let run = fleet(ConcurrencyLimits::default()).start_on_threads(store.clone());
    let transactions = store.transactions();
    println!("{COMMITS_MAX} commits in {transactions} transactions");
    assert_eq!(run.done_count(), GUESTS as usize);
    assert!(run.report.operations().iter().all(|reported| reported.is_recorded && reported.task.is_some()));
    assert!(transactions < COMMITS_MAX, "{transactions} transactions for {COMMITS_MAX} commits: nothing was shared");
}
