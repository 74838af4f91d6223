//! Whether a store has room for more: a wrapper that learns it from the answers to commits.
//!
//! The disk is not measured: a disk with free blocks may still have none for this user, and the other way round.

use std::future::Future;

use tokio::sync::watch;

use crate::read_access::ReadAccess;
use crate::{Batch, CommitAck, Store, StoreError};

/// Whether a store has room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreCapacity {
    /// The last commit found room, or there was none yet.
    #[default]
    Writable,
    /// A commit found the disk full, and none of its size was written since.
    Full {
        /// The bytes in the smallest batch that was not written.
        bytes: usize,
    },
}

impl StoreCapacity {
    /// Whether there is no room.
    #[must_use]
    pub fn is_full(self) -> bool {
        matches!(self, Self::Full { .. })
    }

    /// The capacity after a batch with this many bytes was answered.
    ///
    /// A small batch may still fit into pages that a full disk already has. It does not show room for one that was refused: only a batch at least
    /// half as large does, so that a run which fails again and again does not look like room in between.
    fn after(self, bytes: usize, answer: &Result<CommitAck, StoreError>) -> Self {
        match (self, answer) {
            (Self::Writable, Err(StoreError::Full { .. })) => Self::Full { bytes },
            (Self::Full { bytes: refused }, Err(StoreError::Full { .. })) => Self::Full { bytes: bytes.min(refused) },
            (Self::Full { bytes: refused }, Ok(CommitAck::Written { .. })) if bytes >= refused / 2 => Self::Writable,
            (unchanged, _) => unchanged,
        }
    }
}

/// A store whose capacity can be watched. Clones share it.
#[derive(Clone, Debug)]
pub struct MonitoredStore<S> {
    store: S,
    capacity: watch::Sender<StoreCapacity>,
}

impl<S> MonitoredStore<S> {
    /// Monitors a store.
    #[must_use]
    pub fn new(store: S) -> Self {
        Self { store, capacity: watch::Sender::default() }
    }

    /// The store itself.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// Whether the store has room, from now on.
    #[must_use]
    pub fn watch_capacity(&self) -> watch::Receiver<StoreCapacity> {
        self.capacity.subscribe()
    }
}

impl<S: ReadAccess> ReadAccess for MonitoredStore<S> {
    type Fault = S::Fault;
    type Tables<'t> = S::Tables<'t>;

    fn run_read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self::Tables<'_>) -> Result<T, Self::Fault> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        self.store.run_read(read)
    }
}

impl<S: Store + ReadAccess> Store for MonitoredStore<S> {
    fn commit(&self, batch: Batch) -> impl Future<Output = Result<CommitAck, StoreError>> + Send {
        let bytes = batch.total_body_bytes();
        // Called before the first poll: a store accepts batches in the order of these calls.
        let committed = self.store.commit(batch);
        async move {
            let answer = committed.await;
            self.capacity.send_if_modified(|capacity| {
                let before = std::mem::replace(capacity, capacity.after(bytes, &answer));
                before.is_full() != capacity.is_full()
            });
            answer
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommitFault, MemoryStore, StoreReader as _, StoreWrite, wait_for};

    fn commit(store: &MonitoredStore<MemoryStore>, bytes: usize, fill: u8) -> bool {
        wait_for(store.commit(StoreWrite::blob(vec![fill; bytes]).into())).is_ok()
    }

    #[test]
    fn full_disk_is_reported_once_and_room_after_a_batch_of_that_size() {
        let store = MonitoredStore::new(MemoryStore::new());
        let mut capacity = store.watch_capacity();
        let mut changed = || capacity.has_changed().expect("monitored").then(|| capacity.borrow_and_update().is_full());
        assert!(commit(&store, 1000, 1));
        assert_eq!(changed(), None);
        for (round, expected) in [(2, Some(true)), (3, None)] {
            store.inner().fail_next(CommitFault::Full);
            assert!(!commit(&store, 1000, round));
            assert_eq!(changed(), expected, "round {round}");
        }
        assert!(commit(&store, 10, 4));
        assert_eq!(changed(), None, "a small batch shows no room for a large one");
        assert!(commit(&store, 600, 5));
        assert_eq!(changed(), Some(false));
        assert_eq!(wait_for(store.digests()).expect("read").len(), 3, "reads go to the store");
    }

    #[test]
    fn refusal_shows_neither_a_full_disk_nor_room() {
        let store = MonitoredStore::new(MemoryStore::new());
        store.inner().fail_next(CommitFault::Full);
        assert!(!commit(&store, 0, 1));
        assert!(wait_for(store.commit(Batch::default())).is_err());
        assert!(store.watch_capacity().borrow().is_full());
    }
}
