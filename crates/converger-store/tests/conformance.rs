//! Both stores pass the conformance suite. `liars` shows that the suite detects stores that break a rule.

use converger_core::apply::OperationEnd;
use converger_store::conformance::{OperationSample, StoreFinding, StoreFixture, block_on, check_store};
use converger_store::{
    CommitAck, MemoryStore, MonitoredStore, SqliteStore, Store, StoreError, StoreReader as _, StoreRefusal, StoreSettings,
};
use tempfile::TempDir;

struct MemoryFixture;

impl StoreFixture for MemoryFixture {
    type Store = MemoryStore;

    fn new_store(&mut self) -> MemoryStore {
        MemoryStore::new()
    }

    fn reopen_store(&mut self, store: MemoryStore) -> MemoryStore {
        store.crash()
    }
}

#[test]
fn memory_store_conforms() {
    let findings: Vec<String> = check_store(&mut MemoryFixture).iter().map(StoreFinding::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

struct MonitoredFixture;

impl StoreFixture for MonitoredFixture {
    type Store = MonitoredStore<MemoryStore>;

    fn new_store(&mut self) -> MonitoredStore<MemoryStore> {
        MonitoredStore::new(MemoryStore::new())
    }

    fn reopen_store(&mut self, store: MonitoredStore<MemoryStore>) -> MonitoredStore<MemoryStore> {
        MonitoredStore::new(store.inner().crash())
    }
}

#[test]
fn monitored_store_conforms() {
    let findings: Vec<String> = check_store(&mut MonitoredFixture).iter().map(StoreFinding::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

#[derive(Default)]
struct SqliteFixture(Vec<TempDir>);

impl SqliteFixture {
    fn open(&self) -> SqliteStore {
        let directory = self.0.last().expect("a directory").path().join("state");
        SqliteStore::open(&directory, StoreSettings::new(|cause| panic!("the disk is in doubt: {cause}"))).expect("opens")
    }
}

impl StoreFixture for SqliteFixture {
    type Store = SqliteStore;

    fn new_store(&mut self) -> SqliteStore {
        self.0.push(tempfile::tempdir().expect("a directory"));
        self.open()
    }

    fn reopen_store(&mut self, store: SqliteStore) -> SqliteStore {
        drop(store);
        self.open()
    }
}

#[test]
fn sqlite_conforms() {
    let findings: Vec<String> = check_store(&mut SqliteFixture::default()).iter().map(StoreFinding::to_string).collect();
    assert!(findings.is_empty(), "{findings:#?}");
}

/// A request runs once per key, also across restarts. A repeated request gets the first operation, and nothing is written that could be
/// sent.
fn check_request_runs_once(fixture: &mut impl StoreFixture) {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(13));
    let first = sample.one_shot(1, 1, "key-1", "start it");
    let done = sample.end_record(&first, OperationEnd::Done);
    for batch in [sample.start_write(), sample.intent_record(&first).into(), done.into()] {
        assert!(matches!(block_on(store.commit(batch)), Ok(CommitAck::Written { .. })));
    }
    let store = fixture.reopen_store(store);
    let again = sample.one_shot(2, 1, "key-1", "start it");
    assert_eq!(block_on(store.commit(sample.intent_record(&again).into())), Ok(CommitAck::Repeated { first: first.id.clone() }));
    assert_eq!(block_on(store.operation(again.id)), Ok(None));
    let other = sample.one_shot(3, 1, "key-1", "stop it");
    assert!(matches!(
        block_on(store.commit(sample.intent_record(&other).into())),
        Err(StoreError::Refused(StoreRefusal::KeyReused { .. }))
    ));
}

#[test]
fn g13_accepts_a_request_once_per_key_across_restarts() {
    check_request_runs_once(&mut MemoryFixture);
    check_request_runs_once(&mut SqliteFixture::default());
}
