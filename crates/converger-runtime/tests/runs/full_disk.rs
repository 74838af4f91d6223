//! A disk that is full: reported once, survived, and what it left in flight is recovered by the same process.

use converger_core::artifact::Digest;
use converger_core::evidence::LedgerEntry;
use converger_core::guest::EnvironmentName;
use converger_runtime::Recovered;
use converger_store::{Batch, SqliteStore, Store as _, StoreError, StoreWrite};

use super::*;

const ROOM: u64 = 1 << 20;

/// Fills the disk so that not even a small record fits, and returns the digest of what lies there.
async fn fill_disk(store: &SqliteStore) -> Digest {
    let filler = vec![7; 256 << 10];
    let digest = Digest::of_bytes(&filler);
    assert!(store.commit(StoreWrite::blob(filler).into()).await.is_ok(), "there is room");
    let blob = |bytes: usize, number: u64| StoreWrite::blob([vec![1; bytes], number.to_be_bytes().to_vec()].concat());
    let note = |number| {
        let environment = EnvironmentName::new("lab").expect("a name");
        let entry = LedgerEntry::Recovery { environment, operations: Box::default(), at_ms: number };
        StoreWrite::decision(entry)
    };
    let writes: [&dyn Fn(u64) -> StoreWrite; 3] = [&|number| blob(64 << 10, number), &|number| blob(4 << 10, number), &note];
    for write in writes {
        let mut number = 0;
        loop {
            match store.commit(Batch::from(write(number))).await {
                Ok(_) => number += 1,
                Err(StoreError::Full { .. }) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    digest
}

async fn make_room(store: &SqliteStore, filler: Digest) {
    let seen = store.heads().await.expect("readable").all.size;
    let prune = StoreWrite::Prune { digests: [filler].into(), seen, by: "ann".into(), before_ms: 1, at_ms: 2 };
    assert!(store.commit(Batch::from(prune)).await.is_ok(), "it frees more than it needs");
}

fn capacity_word(event: &RunEvent) -> Option<&'static str> {
    match event {
        RunEvent::StoreFull => Some("full"),
        RunEvent::StoreWritable => Some("writable"),
        _ => None,
    }
}

#[test]
fn full_disk_fails_runs_is_reported_once_and_room_is_reported_with_the_next_run() {
    block(async {
        let stage = Stage::start(100);
        let (state, mut capacity) = (stage.state_with_room(ROOM).await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        drop(start_run(&environment, CORES_102).await.expect("there is room"));
        let filler = fill_disk(state.store().inner()).await;
        for _ in 0..2 {
            let error = start_run(&environment, CORES_102).await.err().expect("there is no room");
            assert!(error.to_string().contains("full") && error.to_string().contains("make room"), "{error}");
        }
        assert_eq!(wait_for(&mut capacity, capacity_word).await.0, "full");
        make_room(state.store().inner(), filler).await;
        drop(start_run(&environment, CORES_102).await.expect("there is room again"));
        assert_eq!(wait_for(&mut capacity, capacity_word).await.0, "writable", "a full disk is reported once");
    });
}

#[test]
fn operation_in_flight_when_the_disk_fills_is_recovered_by_the_same_process_once_there_is_room() {
    block(async {
        let stage = Stage::start(0);
        let (state, mut events) = (stage.state_with_room(ROOM).await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let (run, _, _) = approved_run(&environment, &mut events, START_101).await;
        let mut apply = pin!(run.apply());
        assert!(matches!(select(&mut apply, pin!(wait_for(&mut events, find_tasked))).await, Either::Right(_)));
        let filler = fill_disk(state.store().inner()).await;
        stage.pass(200_000).await;
        let report = apply.await;
        assert!(!report.operations.operations()[0].is_recorded, "{report:?}");
        assert_eq!(wait_for(&mut events, capacity_word).await.0, "full");
        make_room(state.store().inner(), filler).await;
        let Recovered::Settled(report) = environment.recover().await.expect("there is room") else { panic!("it is the same cluster") };
        assert_eq!(report.operations().iter().map(|reported| reported.outcome.end()).collect::<Vec<_>>(), [OperationEnd::Done]);
        assert_eq!(wait_for(&mut events, capacity_word).await.0, "writable");
        environment.close().await.expect("there is no witness");
    });
}
