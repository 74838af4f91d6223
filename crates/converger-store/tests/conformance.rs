//! Every store of ours passes what any store must pass, and stores that break a rule are found.

use converger_store::MemoryStore;
use converger_store::conformance::{Finding, Stage, check};

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
