//! The one writer: batches that wait are put into one transaction, and each caller is answered after the commit.
//!
//! A group of marks alone is written and not synced: it shares the sync of the next one.
//!
//! A batch that may not be written is rolled back alone. A transaction that fails fails all its batches: with a full disk
//! nothing was written and the writer goes on; after anything that leaves the disk in doubt it acknowledges nothing more.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use converger_ledger::Growth;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::ledger;
use super::open::{Settled, may_close, settle};
use super::tables::Tables;
use super::trouble::{Failure, Trouble};
use super::{Fatal, OnFatal};
use crate::standing::Standing;
use crate::tables::{Stop, take};
use crate::{Batch, Receipt, Refused, StoreError};

/// The most batches of one transaction: more would only make the first of them wait.
const GROUP_MAX: usize = 256;

/// The pages of the log (of 4 KiB) after which it is brought into the file.
const LOG_PAGES_MAX: i64 = 2048;

pub(super) type Answer = Result<Receipt, StoreError>;

/// A batch and who waits for it.
pub(super) struct Job {
    pub(super) batch: Batch,
    pub(super) caller: oneshot::Sender<Answer>,
}

pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) place: PathBuf,
    pub(super) settled: Settled,
    /// The ledger as this writer left it; none after a transaction that failed.
    pub(super) growth: Option<Growth>,
    pub(super) patience: Duration,
    pub(super) on_fatal: OnFatal,
    pub(super) transactions: Arc<AtomicU64>,
    pub(super) stopped: Option<String>,
    pub(super) syncs: Syncs,
    /// What must be where it was for anything to be acknowledged.
    pub(super) standing: Arc<Mutex<Vec<Standing>>>,
}

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syncs {
    /// It does, before anybody is told. How a store is opened.
    Yes,
    /// The next one does, and this one with it.
    Later,
}

/// What became of one batch of a transaction, if the transaction is committed.
enum Verdict {
    Written,
    Refused(Refused),
    Repeated(converger_core::apply::OperationId),
}

impl Writer {
    /// Works until nobody is left who could ask.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(first) = jobs.blocking_recv() {
            let (batches, callers) = gather(first, &mut jobs);
            let answers = self.answers(batches, callers.len());
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that is gone gets no answer; its batch is written all the same.
                let _ = caller.send(answer);
            }
            self.checkpoint();
        }
        if self.stopped.is_none() {
            may_close(&self.connection);
        }
    }

    fn answers(&mut self, batches: Vec<Batch>, count: usize) -> Vec<Answer> {
        if let Some(cause) = &self.stopped {
            return vec![Err(StoreError::Stopped { cause: cause.clone() }); count];
        }
        let syncs = if batches.iter().any(Batch::must_be_durable) { Syncs::Yes } else { Syncs::Later };
        let written = self.settle().and_then(|()| self.set(syncs)).and_then(|()| self.write(batches));
        let fatal = match written.map_err(|trouble| trouble.of_writing(&self.place)) {
            Ok(verdicts) => match self.lost() {
                None => return self.committed(verdicts, syncs),
                Some(cause) => Fatal::Gone(cause),
            },
            Err(Failure::Survived(error)) => return vec![Err(error); count],
            Err(Failure::Fatal(cause)) => Fatal::Doubt(cause),
        };
        let cause = fatal.to_string();
        self.stop(&fatal);
        vec![Err(StoreError::Stopped { cause }); count]
    }

    fn write(&mut self, batches: Vec<Batch>) -> Result<Vec<Verdict>, Trouble> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Taken out: what a transaction that fails has left of it is not known.
        let mut growth = ledger::current(&transaction, self.growth.take())?;
        let mut tables = Tables::writing(&transaction, growth.tree().size());
        let verdicts = batches.into_iter().map(|batch| write_one(&mut tables, batch)).collect::<Result<Vec<_>, _>>()?;
        // Nothing was written by batches that were all refused, and a commit would sync for nothing.
        if verdicts.iter().any(|verdict| matches!(verdict, Verdict::Written)) {
            ledger::grow(&transaction, &mut growth, tables.leaves(), self.syncs)?;
            transaction.commit()?;
        } else {
            transaction.rollback()?;
        }
        self.growth = Some(growth);
        Ok(verdicts)
    }

    /// Looked at once it is written and before anybody is told: who is told of it sends something.
    fn lost(&self) -> Option<String> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).iter().find_map(Standing::lost)
    }

    /// What there was no room for at the start comes before anything new.
    fn settle(&mut self) -> Result<(), Trouble> {
        if self.settled == Settled::NoRoom {
            self.settled = settle(&self.connection, self.patience)?;
        }
        match self.settled {
            Settled::Yes => Ok(()),
            Settled::NoRoom => Err(Trouble::Full),
        }
    }

    /// In a log that is written ahead a commit at the level `normal` is not synced, and the sync of the next one at `full` takes all of the
    /// log along.
    fn set(&mut self, syncs: Syncs) -> Result<(), Trouble> {
        if self.syncs != syncs {
            let level = if syncs == Syncs::Yes { "full" } else { "normal" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.syncs = syncs;
        }
        Ok(())
    }

    fn committed(&self, verdicts: Vec<Verdict>, syncs: Syncs) -> Vec<Answer> {
        let wrote = verdicts.iter().any(|verdict| matches!(verdict, Verdict::Written));
        let durable = u64::from(wrote && syncs == Syncs::Yes);
        let transaction = self.transactions.fetch_add(durable, Ordering::Relaxed) + u64::from(wrote);
        let answer = |verdict| match verdict {
            Verdict::Written => Ok(Receipt::Written { transaction }),
            Verdict::Repeated(first) => Ok(Receipt::Repeated { first }),
            Verdict::Refused(refused) => Err(refused.into()),
        };
        verdicts.into_iter().map(answer).collect()
    }

    /// In the program this does not return.
    fn stop(&mut self, fatal: &Fatal) {
        (self.on_fatal)(fatal);
        self.stopped = Some(fatal.to_string());
    }

    /// Keeps the log short. What cannot be brought into the file for want of room, or because somebody reads, stays in
    /// the log; a sync that fails here is a sync that failed.
    fn checkpoint(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        let pages = |sql| self.connection.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(1));
        let done = match pages("PRAGMA wal_checkpoint(NOOP)") {
            Ok(log) if log < LOG_PAGES_MAX => return,
            Ok(_) => pages("PRAGMA wal_checkpoint(PASSIVE)").map(|_| ()),
            Err(error) => Err(error),
        };
        if let Err(error) = done
            && !matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
        {
            self.stop(&Fatal::Doubt(format!("{}: {error}", self.place.display())));
        }
    }
}

/// Everything that waits, up to the bounds of one transaction.
fn gather(first: Job, jobs: &mut mpsc::Receiver<Job>) -> (Vec<Batch>, Vec<oneshot::Sender<Answer>>) {
    let mut weight = first.batch.weight();
    let (mut batches, mut callers) = (vec![first.batch], vec![first.caller]);
    while batches.len() < GROUP_MAX && weight < Batch::BYTES_MAX {
        let Ok(next) = jobs.try_recv() else { break };
        weight += next.batch.weight();
        batches.push(next.batch);
        callers.push(next.caller);
    }
    (batches, callers)
}

/// One batch inside of the transaction; what it wrote is taken back if it may not be written.
fn write_one(tables: &mut Tables<'_>, batch: Batch) -> Result<Verdict, Trouble> {
    // INVARIANT: the judge asks all before it writes, so that of one write that may not be nothing was written.
    if batch.writes().len() == 1 {
        return taken(tables, batch);
    }
    tables.execute("SAVEPOINT batch")?;
    let before = tables.written();
    let verdict = taken(tables, batch)?;
    if !matches!(verdict, Verdict::Written) {
        tables.execute("ROLLBACK TO batch")?;
        tables.forget_after(before);
    }
    tables.execute("RELEASE batch")?;
    Ok(verdict)
}

fn taken(tables: &mut Tables<'_>, batch: Batch) -> Result<Verdict, Trouble> {
    match take(tables, batch) {
        Ok(()) => Ok(Verdict::Written),
        Err(Stop::Refused(refused)) => Ok(Verdict::Refused(refused)),
        Err(Stop::Repeated(first)) => Ok(Verdict::Repeated(first)),
        Err(Stop::Failed(trouble)) => Err(trouble),
    }
}
