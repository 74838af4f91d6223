//! Every store of ours passes what any store must pass. That one which does not is found is shown in `liars`.

use converger_store::conformance::{Finding, Stage, check};
use converger_store::{MemoryStore, Settings, SqliteStore};
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
