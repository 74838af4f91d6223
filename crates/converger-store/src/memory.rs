//! The twin in memory, for simulations: the same rules and answers, no disk, and faults on demand.
//!
//! Deterministic: nothing here waits, spawns or asks a clock. A slow store keeps batches back until it is told to go on;
//! a crash loses what was not acknowledged yet and leaves what was, and a machine that dies loses the last marks too.
//!
//! What never enters: rules of its own (see `tables`).

mod tables;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use converger_core::apply::{EnvironmentNames, Freeze, History, Hold, IdempotencyKey, OperationId, Record, RunId, Sending, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::EnvironmentName;
use converger_ledger::{Hash, Tile};
use tokio::sync::oneshot;

use crate::query::{Filter, Heads, LIST_MAX, RunHistory};
use crate::tables::{Read as _, Stop, current, of_today, owners, take};
use crate::write::{Batch, Receipt, Write};
use crate::{Store, StoreError};
use tables::Tables;

/// What goes wrong with the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full: nothing is written, the store goes on.
    Full,
    /// The batch does not reach the disk and nobody can tell: the store stops, and the batch is lost.
    LostUnwritten,
    /// The batch reaches the disk and nobody can tell: the store stops, and the batch is found after a restart.
    LostWritten,
}

/// A store in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    inner: Arc<Mutex<Inner>>,
}

type Answer = Result<Receipt, StoreError>;

#[derive(Debug, Default)]
struct Inner {
    /// What is found after a crash is shared with who has crashed, until somebody writes.
    tables: Arc<Tables>,
    faults: VecDeque<Fault>,
    stopped: Option<&'static str>,
    is_slow: bool,
    waiting: VecDeque<(Batch, oneshot::Sender<Answer>)>,
    transactions: u64,
    /// Operations whose marks are on no disk yet, and what is there in their place.
    marked: Vec<Unsynced>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store that keeps a journal and no ledger: for simulations that tell many stories and read the ledgers of some. What may be written
    /// is the same, as far as entries are short enough.
    #[must_use]
    pub fn without_ledger() -> Self {
        let inner = Inner { tables: Arc::new(Tables::without_ledger()), ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Commits without waiting, whether the store is slow or not: for simulations that carry out commands themselves.
    ///
    /// # Errors
    /// See [`Store::commit`].
    pub fn commit_now(&self, batch: Batch) -> Answer {
        self.lock().commit(batch)
    }

    /// From now on batches wait for [`MemoryStore::go_on`].
    pub fn be_slow(&self) {
        self.lock().is_slow = true;
    }

    /// Commits the oldest batch that waits, if one does, and says whether one did.
    pub fn go_on(&self) -> bool {
        let mut inner = self.lock();
        let Some((batch, caller)) = inner.waiting.pop_front() else { return false };
        let answer = inner.commit(batch);
        // A caller that is gone gets no answer; its batch is written all the same, as on a disk.
        let _ = caller.send(answer);
        true
    }

    /// How many batches wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    /// The commits after this one fail as told, in this order.
    pub fn fail_next(&self, fault: Fault) {
        self.lock().faults.push_back(fault);
    }

    /// How many transactions there were.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.lock().transactions
    }

    /// The process dies: batches that wait are lost, this store answers nobody any more, and the one that is returned
    /// holds what was durable.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut inner = self.lock();
        inner.waiting.clear();
        inner.stopped = Some("the process has crashed");
        let durable = Inner { tables: inner.tables.clone(), marked: inner.marked.clone(), ..Inner::default() };
        Self { inner: Arc::new(Mutex::new(durable)) }
    }

    /// The machine dies: as a [`MemoryStore::crash`], and marks that no later batch made durable are lost.
    #[must_use]
    pub fn lose_power(&self) -> Self {
        let marked = std::mem::take(&mut self.lock().marked);
        let after = self.crash();
        let mut inner = after.lock();
        let tables = Arc::make_mut(&mut inner.tables);
        marked.into_iter().rev().for_each(|(id, before)| tables.lose_mark(&id, before));
        tables.lose_entries();
        drop(inner);
        after
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, read: impl FnOnce(&Tables) -> Result<T, Infallible>) -> Result<T, StoreError> {
        let inner = self.lock();
        match (inner.stopped, read(&inner.tables)) {
            (None, Ok(value)) => Ok(value),
            (Some(cause), _) => Err(StoreError::Stopped { cause: cause.into() }),
        }
    }
}

impl Inner {
    fn tables(&mut self) -> &mut Tables {
        Arc::make_mut(&mut self.tables)
    }

    fn commit(&mut self, batch: Batch) -> Answer {
        if let Some(cause) = self.stopped {
            return Err(StoreError::Stopped { cause: cause.into() });
        }
        let mark = self.tables.mark();
        let marks = (!batch.must_be_durable()).then(|| self.unsynced(&batch));
        let taken = take(self.tables(), batch);
        let answer = match taken {
            Ok(()) => self.finish(mark, marks),
            Err(Stop::Refused(refused)) => Err(refused.into()),
            Err(Stop::Repeated(first)) => return self.undo(mark, Ok(Receipt::Repeated { first })),
        };
        match answer {
            Err(StoreError::Refused(_) | StoreError::Full { .. }) => self.undo(mark, answer),
            answer => answer,
        }
    }

    fn unsynced(&self, batch: &Batch) -> Vec<Unsynced> {
        let marked = batch.writes().iter().filter_map(marked);
        marked.map(|id| (id.clone(), self.tables.mark_of(&id))).collect()
    }

    fn undo(&mut self, mark: tables::Mark, answer: Answer) -> Answer {
        self.tables().undo_to(mark);
        answer
    }

    /// The batch is legal; now the disk has its say. Marks alone are not synced, so that nothing but a full disk can fail them.
    fn finish(&mut self, mark: tables::Mark, marks: Option<Vec<Unsynced>>) -> Answer {
        if let Some(marks) = marks.filter(|_| self.faults.front() != Some(&Fault::Full)) {
            self.tables().forget_undo();
            self.marked.extend(marks);
            return Ok(Receipt::Written { transaction: self.transactions + 1 });
        }
        match self.faults.pop_front() {
            Some(Fault::Full) => return Err(StoreError::Full { place: PathBuf::from("memory") }),
            Some(Fault::LostUnwritten) => {
                self.tables().undo_to(mark);
                return self.stop();
            }
            Some(Fault::LostWritten) => {
                self.tables().make_durable();
                self.marked.clear();
                return self.stop();
            }
            None => {}
        }
        self.tables().make_durable();
        self.marked.clear();
        self.transactions += 1;
        Ok(Receipt::Written { transaction: self.transactions })
    }

    fn stop(&mut self) -> Answer {
        let cause = "a sync failed";
        self.stopped = Some(cause);
        Err(StoreError::Stopped { cause: cause.into() })
    }
}

/// A mark that is on no disk yet: its operation, and the mark that it had before.
type Unsynced = (OperationId, Option<Sending>);

/// The operation that a write marks as sent.
fn marked(write: &Write) -> Option<OperationId> {
    match write {
        Write::Record(Record::Sending { id, .. }) => Some(id.clone()),
        _ => None,
    }
}

impl Store for MemoryStore {
    fn commit(&self, batch: Batch) -> impl Future<Output = Answer> + Send {
        let mut inner = self.lock();
        let (caller, answer) = oneshot::channel();
        if inner.is_slow {
            inner.waiting.push_back((batch, caller));
        } else {
            let _ = caller.send(inner.commit(batch));
        }
        drop(inner);
        async move { answer.await.unwrap_or_else(|_| Err(StoreError::Stopped { cause: "the process has crashed".into() })) }
    }

    fn operation(&self, id: OperationId) -> impl Future<Output = Result<Option<History>, StoreError>> + Send {
        ready(self.read(|tables| tables.operation(&id)))
    }

    fn open_operations(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<History>, StoreError>> + Send {
        ready(self.read(|tables| tables.open_operations(&current(tables, &environment)?)))
    }

    fn operations(&self, filter: Filter, limit: u32) -> impl Future<Output = Result<Vec<History>, StoreError>> + Send {
        ready(self.read(|tables| tables.operations(&of_today(tables, filter)?, limit.min(LIST_MAX))))
    }

    fn tasked(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> impl Future<Output = Result<Vec<(TaskId, OperationId)>, StoreError>> + Send {
        ready(self.read(|tables| owners(tables, &environment, tasks)))
    }

    fn keyed(&self, environment: EnvironmentName, key: IdempotencyKey) -> impl Future<Output = Result<Option<History>, StoreError>> + Send {
        ready(self.read(|tables| match tables.keyed(&current(tables, &environment)?, &key)? {
            Some((id, _)) => tables.operation(&id),
            None => Ok(None),
        }))
    }

    fn run(&self, id: RunId) -> impl Future<Output = Result<Option<RunHistory>, StoreError>> + Send {
        ready(self.read(|tables| tables.run(&id)))
    }

    fn runs(&self, environment: EnvironmentName, limit: u32) -> impl Future<Output = Result<Vec<RunHistory>, StoreError>> + Send {
        ready(self.read(|tables| tables.runs(&current(tables, &environment)?, limit.min(LIST_MAX))))
    }

    fn holds(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<Hold>, StoreError>> + Send {
        ready(self.read(|tables| tables.holds(&current(tables, &environment)?)))
    }

    fn freeze(&self, environment: EnvironmentName) -> impl Future<Output = Result<Option<Freeze>, StoreError>> + Send {
        ready(self.read(|tables| tables.freeze(&current(tables, &environment)?)))
    }

    fn names(&self) -> impl Future<Output = Result<EnvironmentNames, StoreError>> + Send {
        ready(self.read(|tables| tables.names()))
    }

    fn blob(&self, digest: Digest) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send {
        ready(self.read(|tables| tables.blob(&digest)))
    }

    fn heads(&self) -> impl Future<Output = Result<Heads, StoreError>> + Send {
        ready(self.read(|tables| tables.heads()))
    }

    fn entries(&self, from: u64, limit: u32) -> impl Future<Output = Result<Vec<Vec<u8>>, StoreError>> + Send {
        ready(self.read(|tables| tables.entries(from, limit.min(LIST_MAX))))
    }

    fn hashes(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<Hash>>, StoreError>> + Send {
        ready(self.read(|tables| tables.hashes(tile)))
    }
}

#[cfg(test)]
mod tests {
    use converger_core::apply::{Freeze, Operation, Run};
    use converger_core::testing::{Rng, some_binding, some_inputs, some_operations};
    use futures_util::FutureExt as _;

    use super::*;

    fn started() -> (MemoryStore, Operation) {
        let store = MemoryStore::new();
        let operation = some_operations(&mut Rng::new(11), "run-1").swap_remove(0);
        let (id, environment, plan) = (operation.run.clone(), operation.environment.clone(), operation.plan);
        let binding = Write::Bind(some_binding(&environment));
        let run = Run { id, environment, plan, by: "ann".into(), at_ms: 1, boot: None };
        let run = Write::RunStarted { run, inputs: Box::new(some_inputs()) };
        assert_eq!(store.commit_now(Batch::from(binding).with(run)), Ok(Receipt::Written { transaction: 1 }));
        (store, operation)
    }

    fn intent(operation: &Operation) -> Batch {
        Record::Intent { operation: Box::new(operation.clone()), at_ms: 2 }.into()
    }

    fn is_there(store: &MemoryStore, operation: &Operation) -> bool {
        store.read(|tables| tables.operation(&operation.id)).expect("alive").is_some()
    }

    #[test]
    fn a_full_disk_writes_nothing_and_the_store_goes_on() {
        let (store, operation) = started();
        store.fail_next(Fault::Full);
        assert!(matches!(store.commit_now(intent(&operation)), Err(StoreError::Full { .. })));
        assert!(!is_there(&store, &operation));
        assert_eq!(store.commit_now(intent(&operation)), Ok(Receipt::Written { transaction: 2 }));
    }

    #[test]
    fn after_a_failed_sync_nothing_is_acknowledged_and_the_batch_is_there_or_not() {
        for (fault, expected) in [(Fault::LostUnwritten, false), (Fault::LostWritten, true)] {
            let (store, operation) = started();
            store.fail_next(fault);
            assert!(matches!(store.commit_now(intent(&operation)), Err(StoreError::Stopped { .. })));
            let (environment, by) = (operation.environment.clone(), Box::from("ann"));
            let freeze = Write::Freeze(Freeze { environment, by, reason: "x".into(), at_ms: 1 });
            assert!(matches!(store.commit_now(freeze.into()), Err(StoreError::Stopped { .. })), "{fault:?}");
            assert_eq!(is_there(&store.crash(), &operation), expected, "{fault:?}");
        }
    }

    #[test]
    fn a_mark_outlives_the_process_at_once_and_the_machine_with_the_next_batch() {
        let has_mark = |store: &MemoryStore, operation: &Operation| {
            store.read(|tables| tables.operation(&operation.id)).expect("alive").expect("there").sending.is_some()
        };
        let (store, operation) = started();
        let mark = || Batch::from(Record::Sending { id: operation.id.clone(), at_ms: 3, up_ms: 1 });
        assert_eq!(store.commit_now(intent(&operation)), Ok(Receipt::Written { transaction: 2 }));
        assert_eq!(store.commit_now(mark()), Ok(Receipt::Written { transaction: 3 }), "with the next one");
        assert_eq!(store.transactions(), 2, "a mark is no durable commit");
        let (after, dark) = (store.crash(), store.crash().lose_power());
        assert!(has_mark(&after, &operation) && !has_mark(&dark, &operation));
        assert_eq!(dark.commit_now(mark()), Ok(Receipt::Written { transaction: 1 }));
        let (environment, by) = (operation.environment.clone(), Box::from("ann"));
        let freeze = Write::Freeze(Freeze { environment, by, reason: "x".into(), at_ms: 1 });
        assert_eq!(dark.commit_now(freeze.into()), Ok(Receipt::Written { transaction: 1 }));
        let darker = dark.lose_power();
        assert!(has_mark(&darker, &operation));
        let again = Record::Sending { id: operation.id.clone(), at_ms: 9, up_ms: 7 };
        assert_eq!(darker.commit_now(again.into()), Ok(Receipt::Written { transaction: 1 }));
        let marked_ms = |store: &MemoryStore| {
            let history = store.read(|tables| tables.operation(&operation.id)).expect("alive").expect("there");
            history.sending.map(|sending| sending.at_ms)
        };
        let after = darker.crash();
        assert_eq!((marked_ms(&after), marked_ms(&after.lose_power())), (Some(9), Some(3)), "the one before is on the disk");
    }

    #[test]
    fn what_waits_is_lost_in_a_crash_and_what_was_acknowledged_is_not() {
        let (store, operation) = started();
        store.be_slow();
        let mut lost = Box::pin(store.commit(intent(&operation)));
        assert_eq!((lost.as_mut().now_or_never(), store.waiting()), (None, 1));
        let after = store.crash();
        assert!(matches!(lost.now_or_never(), Some(Err(StoreError::Stopped { .. }))));
        assert!(!is_there(&after, &operation));
        after.be_slow();
        let mut kept = Box::pin(after.commit(intent(&operation)));
        assert!(kept.as_mut().now_or_never().is_none() && after.go_on() && !after.go_on());
        assert_eq!(kept.now_or_never(), Some(Ok(Receipt::Written { transaction: 1 })));
        assert!(is_there(&after.crash(), &operation));
    }
}
