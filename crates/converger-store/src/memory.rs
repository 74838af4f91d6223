//! A store in memory for simulations: the same rules and answers as [`crate::SqliteStore`], no disk, and faults on demand.
//!
//! It is deterministic: nothing here waits, spawns or reads a clock. A slow store delays batches until it is told to commit them. A crash
//! loses what was not acknowledged and keeps what was; a power loss also loses the latest sending marks.
//!
//! Must not have rules of its own (see `tables`).

mod tables;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use converger_core::apply::{JournalRecord, OperationId, SendingMark};
use tokio::sync::oneshot;

use crate::read_access::ReadAccess;
use crate::tables::{ApplyBatchError, apply_batch};
use crate::write::{Batch, CommitAck, StoreWrite};
use crate::{Store, StoreError};
use tables::MemoryTables;

/// A fault of the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// The disk is full: nothing is written, and the store continues.
    Full,
    /// The sync fails and the batch did not reach the disk: the store stops, and the batch is lost.
    LostUnwritten,
    /// The sync fails although the batch reached the disk: the store stops, and the batch is found after a restart.
    LostWritten,
}

/// A store in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    inner: Arc<Mutex<MemoryState>>,
}

type MemoryCommitResult = Result<CommitAck, StoreError>;

#[derive(Debug, Default)]
struct MemoryState {
    /// Shared with the store that `crash` returned, until one of the two writes.
    tables: Arc<MemoryTables>,
    faults: VecDeque<CommitFault>,
    stopped: Option<&'static str>,
    is_slow: bool,
    waiting: VecDeque<(Batch, oneshot::Sender<MemoryCommitResult>)>,
    transactions: u64,
    /// Operations with sending marks that are not on disk yet, each with the mark that is on disk.
    unsynced_marks: Vec<UnsyncedMark>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store with a journal but no ledger, for simulations of many runs that read only a few ledgers. The same batches are
    /// accepted, except that the length of entries is not checked.
    #[must_use]
    pub fn without_ledger() -> Self {
        let inner = MemoryState { tables: Arc::new(MemoryTables::without_ledger()), ..MemoryState::default() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Commits at once, even if the store is slow, for simulations that execute commands themselves.
    ///
    /// # Errors
    /// See [`Store::commit`].
    pub fn commit_now(&self, batch: Batch) -> MemoryCommitResult {
        self.lock().commit_batch(batch)
    }

    /// From now on batches wait for [`MemoryStore::commit_oldest`].
    pub fn delay_commits(&self) {
        self.lock().is_slow = true;
    }

    /// Commits the oldest delayed batch. Returns whether there was one.
    pub fn commit_oldest(&self) -> bool {
        let mut inner = self.lock();
        let Some((batch, caller)) = inner.waiting.pop_front() else { return false };
        let answer = inner.commit_batch(batch);
        // A caller that is gone gets no answer; its batch is written anyway, as on a disk.
        let _ = caller.send(answer);
        true
    }

    /// The number of delayed batches.
    #[must_use]
    pub fn delayed_count(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Queues a fault for a later commit. Faults occur in the order in which they were queued.
    pub fn fail_next(&self, fault: CommitFault) {
        self.lock().faults.push_back(fault);
    }

    /// The number of transactions so far.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.lock().transactions
    }

    /// Simulates the end of the process. Delayed batches are lost, this store answers no more requests, and the returned store contains
    /// what was durable.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut inner = self.lock();
        inner.waiting.clear();
        inner.stopped = Some("the process has crashed");
        let durable = MemoryState { tables: inner.tables.clone(), unsynced_marks: inner.unsynced_marks.clone(), ..MemoryState::default() };
        Self { inner: Arc::new(Mutex::new(durable)) }
    }

    /// Simulates the end of the machine: like [`MemoryStore::crash`], and sending marks that no later batch made durable are lost.
    #[must_use]
    pub fn lose_power(&self) -> Self {
        let marked = std::mem::take(&mut self.lock().unsynced_marks);
        let after = self.crash();
        let mut inner = after.lock();
        let tables = Arc::make_mut(&mut inner.tables);
        marked.into_iter().rev().for_each(|(id, before)| tables.lose_mark(&id, before));
        tables.lose_entries();
        drop(inner);
        after
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, read: impl FnOnce(&MemoryTables) -> Result<T, Infallible>) -> Result<T, StoreError> {
        let inner = self.lock();
        match (inner.stopped, read(&inner.tables)) {
            (None, Ok(value)) => Ok(value),
            (Some(cause), _) => Err(StoreError::Stopped { cause: cause.into() }),
        }
    }
}

impl MemoryState {
    fn tables_mut(&mut self) -> &mut MemoryTables {
        Arc::make_mut(&mut self.tables)
    }

    fn commit_batch(&mut self, batch: Batch) -> MemoryCommitResult {
        if let Some(cause) = self.stopped {
            return Err(StoreError::Stopped { cause: cause.into() });
        }
        let mark = self.tables.undo_position();
        let marks = (!batch.must_be_durable()).then(|| self.marks_before(&batch));
        let result = apply_batch(self.tables_mut(), batch);
        let answer = match result {
            Ok(()) => self.finish_commit(mark, marks),
            Err(ApplyBatchError::Refused(refused)) => Err(refused.into()),
            Err(ApplyBatchError::Repeated(first)) => return self.undo_and_answer(mark, Ok(CommitAck::Repeated { first })),
        };
        match answer {
            Err(StoreError::Refused(_) | StoreError::Full { .. }) => self.undo_and_answer(mark, answer),
            answer => answer,
        }
    }

    fn marks_before(&self, batch: &Batch) -> Vec<UnsyncedMark> {
        let marked = batch.writes().iter().filter_map(marked_operation);
        marked.map(|id| (id.clone(), self.tables.sending_mark(&id))).collect()
    }

    fn undo_and_answer(&mut self, mark: tables::UndoPosition, answer: MemoryCommitResult) -> MemoryCommitResult {
        self.tables_mut().undo_to(mark);
        answer
    }

    /// Completes a legal batch, or fails it with the next fault. Marks alone are not synced, so only a full disk can fail them.
    fn finish_commit(&mut self, mark: tables::UndoPosition, marks: Option<Vec<UnsyncedMark>>) -> MemoryCommitResult {
        if let Some(marks) = marks.filter(|_| self.faults.front() != Some(&CommitFault::Full)) {
            self.tables_mut().clear_undo();
            self.unsynced_marks.extend(marks);
            return Ok(CommitAck::Written { transaction: self.transactions + 1 });
        }
        match self.faults.pop_front() {
            Some(CommitFault::Full) => return Err(StoreError::Full { path: PathBuf::from("memory") }),
            Some(CommitFault::LostUnwritten) => {
                self.tables_mut().undo_to(mark);
                return self.stop_acknowledging();
            }
            Some(CommitFault::LostWritten) => {
                self.tables_mut().make_durable();
                self.unsynced_marks.clear();
                return self.stop_acknowledging();
            }
            None => {}
        }
        self.tables_mut().make_durable();
        self.unsynced_marks.clear();
        self.transactions += 1;
        Ok(CommitAck::Written { transaction: self.transactions })
    }

    fn stop_acknowledging(&mut self) -> MemoryCommitResult {
        let cause = "a sync failed";
        self.stopped = Some(cause);
        Err(StoreError::Stopped { cause: cause.into() })
    }
}

/// A mark that is not on disk yet: its operation, and the mark that the operation had before.
type UnsyncedMark = (OperationId, Option<SendingMark>);

/// The operation that a write marks as being sent.
fn marked_operation(write: &StoreWrite) -> Option<OperationId> {
    match write {
        StoreWrite::Record(JournalRecord::Sending { id, .. }) => Some(id.clone()),
        _ => None,
    }
}

impl ReadAccess for MemoryStore {
    type Fault = Infallible;
    type Tables<'t> = MemoryTables;

    fn run_read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&MemoryTables) -> Result<T, Infallible> + Send + 'static,
    ) -> impl Future<Output = Result<T, StoreError>> + Send {
        ready(self.read(read))
    }
}

impl Store for MemoryStore {
    fn commit(&self, batch: Batch) -> impl Future<Output = MemoryCommitResult> + Send {
        let mut inner = self.lock();
        let (caller, answer) = oneshot::channel();
        if inner.is_slow {
            inner.waiting.push_back((batch, caller));
        } else {
            let _ = caller.send(inner.commit_batch(batch));
        }
        drop(inner);
        async move { answer.await.unwrap_or_else(|_| Err(StoreError::Stopped { cause: "the process has crashed".into() })) }
    }
}

#[cfg(test)]
mod tests {
    use converger_core::apply::{Freeze, Operation, RunStart};
    use converger_core::testing::{Rng, some_binding, some_inputs, some_operations};
    use futures_util::FutureExt as _;

    use super::*;
    use crate::tables::ReadTables as _;

    fn started_store() -> (MemoryStore, Operation) {
        let store = MemoryStore::new();
        let operation = some_operations(&mut Rng::new(11), "run-1").swap_remove(0);
        let (id, environment, plan) = (operation.run.clone(), operation.environment.clone(), operation.plan);
        let binding = StoreWrite::Bind(some_binding(&environment));
        let run = RunStart { id, environment, plan, by: "ann".into(), at_ms: 1, boot: None };
        let run = StoreWrite::RunStarted { run, inputs: Box::new(some_inputs()) };
        assert_eq!(store.commit_now(Batch::from(binding).with(run)), Ok(CommitAck::Written { transaction: 1 }));
        (store, operation)
    }

    fn intent_batch(operation: &Operation) -> Batch {
        JournalRecord::Intent { operation: Box::new(operation.clone()), at_ms: 2 }.into()
    }

    fn has_operation(store: &MemoryStore, operation: &Operation) -> bool {
        store.read(|tables| tables.operation(&operation.id)).expect("alive").is_some()
    }

    #[test]
    fn full_disk_writes_nothing_and_the_store_continues() {
        let (store, operation) = started_store();
        store.fail_next(CommitFault::Full);
        assert!(matches!(store.commit_now(intent_batch(&operation)), Err(StoreError::Full { .. })));
        assert!(!has_operation(&store, &operation));
        assert_eq!(store.commit_now(intent_batch(&operation)), Ok(CommitAck::Written { transaction: 2 }));
    }

    #[test]
    fn failed_sync_acknowledges_nothing_more() {
        for (fault, expected) in [(CommitFault::LostUnwritten, false), (CommitFault::LostWritten, true)] {
            let (store, operation) = started_store();
            store.fail_next(fault);
            assert!(matches!(store.commit_now(intent_batch(&operation)), Err(StoreError::Stopped { .. })));
            let (environment, by) = (operation.environment.clone(), Box::from("ann"));
            let freeze = StoreWrite::Freeze(Freeze { environment, by, reason: "x".into(), at_ms: 1 });
            assert!(matches!(store.commit_now(freeze.into()), Err(StoreError::Stopped { .. })), "{fault:?}");
            assert_eq!(has_operation(&store.crash(), &operation), expected, "{fault:?}");
        }
    }

    #[test]
    fn mark_survives_process_crash_at_once_and_power_loss_after_next_batch() {
        let has_mark = |store: &MemoryStore, operation: &Operation| {
            store.read(|tables| tables.operation(&operation.id)).expect("alive").expect("there").sending.is_some()
        };
        let (store, operation) = started_store();
        let mark = || Batch::from(JournalRecord::Sending { id: operation.id.clone(), at_ms: 3, up_ms: 1 });
        assert_eq!(store.commit_now(intent_batch(&operation)), Ok(CommitAck::Written { transaction: 2 }));
        assert_eq!(store.commit_now(mark()), Ok(CommitAck::Written { transaction: 3 }), "durable with the next transaction");
        assert_eq!(store.transactions(), 2, "a mark alone is not a durable transaction");
        let (after, dark) = (store.crash(), store.crash().lose_power());
        assert!(has_mark(&after, &operation) && !has_mark(&dark, &operation));
        assert_eq!(dark.commit_now(mark()), Ok(CommitAck::Written { transaction: 1 }));
        let (environment, by) = (operation.environment.clone(), Box::from("ann"));
        let freeze = StoreWrite::Freeze(Freeze { environment, by, reason: "x".into(), at_ms: 1 });
        assert_eq!(dark.commit_now(freeze.into()), Ok(CommitAck::Written { transaction: 1 }));
        let darker = dark.lose_power();
        assert!(has_mark(&darker, &operation));
        let again = JournalRecord::Sending { id: operation.id.clone(), at_ms: 9, up_ms: 7 };
        assert_eq!(darker.commit_now(again.into()), Ok(CommitAck::Written { transaction: 1 }));
        let marked_ms = |store: &MemoryStore| {
            let history = store.read(|tables| tables.operation(&operation.id)).expect("alive").expect("there");
            history.sending.map(|sending| sending.at_ms)
        };
        let after = darker.crash();
        assert_eq!((marked_ms(&after), marked_ms(&after.lose_power())), (Some(9), Some(3)), "the earlier mark is on disk");
    }

    #[test]
    fn crash_loses_only_unacknowledged_batches() {
        let (store, operation) = started_store();
        store.delay_commits();
        let mut lost_commit = Box::pin(store.commit(intent_batch(&operation)));
        assert_eq!((lost_commit.as_mut().now_or_never(), store.delayed_count()), (None, 1));
        let after = store.crash();
        assert!(matches!(lost_commit.now_or_never(), Some(Err(StoreError::Stopped { .. }))));
        assert!(!has_operation(&after, &operation));
        after.delay_commits();
        let mut kept_commit = Box::pin(after.commit(intent_batch(&operation)));
        assert!(kept_commit.as_mut().now_or_never().is_none() && after.commit_oldest() && !after.commit_oldest());
        assert_eq!(kept_commit.now_or_never(), Some(Ok(CommitAck::Written { transaction: 1 })));
        assert!(has_operation(&after.crash(), &operation));
    }
}
