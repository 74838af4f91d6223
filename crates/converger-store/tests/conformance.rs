//! Every store of ours passes what any store must pass. That one which does not is found is shown in `liars`.

use converger_core::apply::End;
use converger_store::conformance::{Finding, Sample, Stage, check, now};
use converger_store::{Batch, MemoryStore, Receipt, Refused, Settings, SqliteStore, Store, StoreError};
use tempfile::TempDir;

struct InMemory;

impl Stage for InMemory {
    type Store = MemoryStore;

    fn fresh(&mut self) -> MemoryStore {
        MemoryStore::new()
    }

    fn reopened(&mut self, store: MemoryStore) -> MemoryStore {
        store.crash()
    }
}

#[test]
fn the_twin_in_memory_conforms() {
    let findings: Vec<String> = check(&mut InMemory).iter().map(Finding::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

#[derive(Default)]
struct InFiles(Vec<TempDir>);

impl InFiles {
    fn open(&self) -> SqliteStore {
        let directory = self.0.last().expect("a directory").path().join("state");
        SqliteStore::open(&directory, Settings::new(|cause| panic!("the disk is in doubt: {cause}"))).expect("opens")
    }
}

impl Stage for InFiles {
    type Store = SqliteStore;

    fn fresh(&mut self) -> SqliteStore {
        self.0.push(tempfile::tempdir().expect("a directory"));
        self.open()
    }

    fn reopened(&mut self, store: SqliteStore) -> SqliteStore {
        drop(store);
        self.open()
    }
}

#[test]
fn sqlite_conforms() {
    let findings: Vec<String> = check(&mut InFiles::default()).iter().map(Finding::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

/// The request under a key runs once, also over a restart: who asks again is told of the first operation, and nothing is written
/// that could be sent.
fn check_one_key(stage: &mut impl Stage) {
    let (store, mut sample) = (stage.fresh(), Sample::new(13));
    let first = sample.one_shot(1, 1, "key-1", "start it");
    let done = sample.ended(&first, End::Done);
    for batch in [Batch::from(sample.start()), sample.intent(&first).into(), done.into()] {
        assert!(matches!(now(store.commit(batch)), Ok(Receipt::Written { .. })));
    }
    let store = stage.reopened(store);
    let again = sample.one_shot(2, 1, "key-1", "start it");
    assert_eq!(now(store.commit(sample.intent(&again).into())), Ok(Receipt::Repeated { first: first.id.clone() }));
    assert_eq!(now(store.operation(again.id)), Ok(None));
    let other = sample.one_shot(3, 1, "key-1", "stop it");
    assert!(matches!(now(store.commit(sample.intent(&other).into())), Err(StoreError::Refused(Refused::KeyReused { .. }))));
}

#[test]
fn g13_a_request_under_one_key_is_taken_once_over_restarts() {
    check_one_key(&mut InMemory);
    check_one_key(&mut InFiles::default());
}
