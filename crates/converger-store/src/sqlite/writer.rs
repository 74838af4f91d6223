//! The only writer: puts waiting batches into one transaction, and answers each caller after the commit.
//!
//! A group that contains only sending marks is written but not synced; the sync of the next group covers it.
//!
//! A batch that a rule forbids is rolled back alone. A transaction that fails fails all its batches: if the disk is full, nothing was
//! written and the writer continues; if durability is in doubt, the writer acknowledges nothing more.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use converger_ledger::LogBuilder;
use rusqlite::{Connection, ErrorCode, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::ledger;
use super::open::{WalState, allow_checkpoint_on_close, merge_wal};
use super::sql_fault::{SqlFault, WriteFailure};
use super::tables::SqlTables;
use super::{FatalCause, OnFatal};
use crate::file_identity::FileIdentity;
use crate::tables::{ApplyBatchError, apply_batch};
use crate::{Batch, CommitAck, StoreError, StoreRefusal};

/// The maximum number of batches in one transaction. More would delay the first of them.
const GROUP_BATCHES_MAX: usize = 256;

/// The number of WAL pages (4 KiB each) after which the WAL is checkpointed.
const LOG_PAGES_MAX: i64 = 2048;

pub(super) type CommitResult = Result<CommitAck, StoreError>;

/// A batch, and the channel for its answer.
pub(super) struct WriteJob {
    pub(super) batch: Batch,
    pub(super) caller: oneshot::Sender<CommitResult>,
}

pub(super) struct StoreWriter {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) wal_state: WalState,
    /// The ledger as this writer left it; `None` after a failed transaction.
    pub(super) log: Option<LogBuilder>,
    pub(super) patience: Duration,
    pub(super) on_fatal: OnFatal,
    pub(super) transactions: Arc<AtomicU64>,
    pub(super) stop_cause: Option<String>,
    pub(super) sync_mode: SyncMode,
    /// Files that must not have been replaced for anything to be acknowledged.
    pub(super) watched_files: Arc<Mutex<Vec<FileIdentity>>>,
}

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncMode {
    /// Yes, before the commit is acknowledged. A store is opened in this mode.
    Now,
    /// No; the next synced commit covers this one.
    Later,
}

/// The result of one batch, provided that its transaction commits.
enum BatchVerdict {
    Written,
    Refused(StoreRefusal),
    Repeated(converger_core::apply::OperationId),
}

impl StoreWriter {
    /// Runs until all senders are dropped.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<WriteJob>) {
        while let Some(first) = jobs.blocking_recv() {
            let (batches, callers) = gather_batches(first, &mut jobs);
            let answers = self.commit_batches(batches, callers.len());
            for (caller, answer) in callers.into_iter().zip(answers) {
                // A caller that is gone gets no answer; its batch is written anyway.
                let _ = caller.send(answer);
            }
            self.checkpoint_wal();
        }
        if self.stop_cause.is_none() {
            allow_checkpoint_on_close(&self.connection);
        }
    }

    fn commit_batches(&mut self, batches: Vec<Batch>, count: usize) -> Vec<CommitResult> {
        if let Some(cause) = &self.stop_cause {
            return vec![Err(StoreError::Stopped { cause: cause.clone() }); count];
        }
        let syncs = if batches.iter().any(Batch::must_be_durable) { SyncMode::Now } else { SyncMode::Later };
        let written = self.merge_pending_wal().and_then(|()| self.set_sync_mode(syncs)).and_then(|()| self.write_batches(batches));
        let fatal = match written.map_err(|fault| fault.into_write_failure(&self.path)) {
            Ok(verdicts) => match self.find_replaced_file() {
                None => return self.commit_results(verdicts, syncs),
                Some(cause) => FatalCause::FileReplaced(cause),
            },
            Err(WriteFailure::Recoverable(error)) => return vec![Err(error); count],
            Err(WriteFailure::Fatal(cause)) => FatalCause::DurabilityUnknown(cause),
        };
        let cause = fatal.to_string();
        self.stop_fatally(&fatal);
        vec![Err(StoreError::Stopped { cause }); count]
    }

    fn write_batches(&mut self, batches: Vec<Batch>) -> Result<Vec<BatchVerdict>, SqlFault> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Taken out, because a failed transaction leaves the builder in an unknown state.
        let mut log_builder = ledger::refresh_log(&transaction, self.log.take())?;
        let mut tables = SqlTables::for_writing(&transaction, log_builder.tree().size());
        let verdicts = batches.into_iter().map(|batch| write_batch(&mut tables, batch)).collect::<Result<Vec<_>, _>>()?;
        // If all batches were refused there is nothing to commit, and a commit would sync for nothing.
        if verdicts.iter().any(|verdict| matches!(verdict, BatchVerdict::Written)) {
            ledger::append_leaves(&transaction, &mut log_builder, tables.leaves(), self.sync_mode)?;
            transaction.commit()?;
        } else {
            transaction.rollback()?;
        }
        self.log = Some(log_builder);
        Ok(verdicts)
    }

    /// Checked after the write and before the acknowledgement, because a caller that gets the acknowledgement sends a request.
    fn find_replaced_file(&self) -> Option<String> {
        self.watched_files.lock().unwrap_or_else(PoisonError::into_inner).iter().find_map(FileIdentity::replacement_cause)
    }

    /// Merges a WAL for which there was no disk space at startup, before anything new is written.
    fn merge_pending_wal(&mut self) -> Result<(), SqlFault> {
        if self.wal_state == WalState::DiskFull {
            self.wal_state = merge_wal(&self.connection, self.patience)?;
        }
        match self.wal_state {
            WalState::Merged => Ok(()),
            WalState::DiskFull => Err(SqlFault::Full),
        }
    }

    /// In WAL mode a commit with `synchronous = normal` is not synced. The sync of the next commit with `full` covers the whole WAL.
    fn set_sync_mode(&mut self, syncs: SyncMode) -> Result<(), SqlFault> {
        if self.sync_mode != syncs {
            let level = if syncs == SyncMode::Now { "full" } else { "normal" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.sync_mode = syncs;
        }
        Ok(())
    }

    fn commit_results(&self, verdicts: Vec<BatchVerdict>, syncs: SyncMode) -> Vec<CommitResult> {
        let wrote = verdicts.iter().any(|verdict| matches!(verdict, BatchVerdict::Written));
        let durable = u64::from(wrote && syncs == SyncMode::Now);
        let transaction = self.transactions.fetch_add(durable, Ordering::Relaxed) + u64::from(wrote);
        let answer = |verdict| match verdict {
            BatchVerdict::Written => Ok(CommitAck::Written { transaction }),
            BatchVerdict::Repeated(first) => Ok(CommitAck::Repeated { first }),
            BatchVerdict::Refused(refused) => Err(refused.into()),
        };
        verdicts.into_iter().map(answer).collect()
    }

    /// In production `on_fatal` does not return.
    fn stop_fatally(&mut self, fatal: &FatalCause) {
        (self.on_fatal)(fatal);
        self.stop_cause = Some(fatal.to_string());
    }

    /// Keeps the WAL short. Pages that cannot be copied because the disk is full or another process reads stay in the WAL. A sync that
    /// fails here is as fatal as any other.
    fn checkpoint_wal(&mut self) {
        if self.stop_cause.is_some() {
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
            self.stop_fatally(&FatalCause::DurabilityUnknown(format!("{}: {error}", self.path.display())));
        }
    }
}

/// Collects all waiting batches, up to the limits of one transaction.
fn gather_batches(first: WriteJob, jobs: &mut mpsc::Receiver<WriteJob>) -> (Vec<Batch>, Vec<oneshot::Sender<CommitResult>>) {
    let mut weight = first.batch.total_body_bytes();
    let (mut batches, mut callers) = (vec![first.batch], vec![first.caller]);
    while batches.len() < GROUP_BATCHES_MAX && weight < Batch::BYTES_MAX {
        let Ok(next) = jobs.try_recv() else { break };
        weight += next.batch.total_body_bytes();
        batches.push(next.batch);
        callers.push(next.caller);
    }
    (batches, callers)
}

/// Writes one batch within the transaction, and rolls it back if it is not allowed.
fn write_batch(tables: &mut SqlTables<'_>, batch: Batch) -> Result<BatchVerdict, SqlFault> {
    // INVARIANT: a write is checked before it is applied, so a single refused write has left nothing to roll back.
    if batch.writes().len() == 1 {
        return judge_batch(tables, batch);
    }
    tables.execute("SAVEPOINT batch")?;
    let before = tables.written_count();
    let verdict = judge_batch(tables, batch)?;
    if !matches!(verdict, BatchVerdict::Written) {
        tables.execute("ROLLBACK TO batch")?;
        tables.truncate_leaves(before);
    }
    tables.execute("RELEASE batch")?;
    Ok(verdict)
}

fn judge_batch(tables: &mut SqlTables<'_>, batch: Batch) -> Result<BatchVerdict, SqlFault> {
    match apply_batch(tables, batch) {
        Ok(()) => Ok(BatchVerdict::Written),
        Err(ApplyBatchError::Refused(refused)) => Ok(BatchVerdict::Refused(refused)),
        Err(ApplyBatchError::Repeated(first)) => Ok(BatchVerdict::Repeated(first)),
        Err(ApplyBatchError::Failed(fault)) => Err(fault),
    }
}
