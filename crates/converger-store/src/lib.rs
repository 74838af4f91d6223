//! The memory of the program: what is about to be done, what became of it, and what people said about it.
//!
//! A [`Store`] takes [`Batch`]es: all writes of one become durable together, and only then is it acknowledged. What was
//! acknowledged is found after any crash; what was not is found whole or not at all. Only a mark (`Record::Sending`) waits for no
//! disk: it outlives the process at once, and the machine with the next batch. A batch that the rules forbid is
//! refused with a typed cause and never written: records out of order, a second operation on a guest (G12), a key that
//! stands for another request (G13), an intent while the guest is held or the environment frozen.
//!
//! Each decision that is written has one entry in the ledger (`converger-ledger`), in the same transaction and before anybody is told of
//! it. The ledger only grows; whoever reads it gets entries, hashes, and how far it is durable.
//!
//! [`SqliteStore`] keeps it in a file, [`MemoryStore`] is its twin for simulations. Both ask the same judge, and both pass
//! the same `conformance`. [`EnvironmentLock`] makes sure that one process drives an environment.
//!
//! What never enters: Proxmox, decisions about guests, clocks and randomness (times and ids are in what is written).

mod error;
mod file_identity;
mod journal_check;
mod lock;
mod memory;
mod query;
mod sqlite;
mod state_files;
mod tables;
mod write;

#[cfg(feature = "conformance")]
pub mod conformance;

use std::future::Future;

use converger_core::apply::{EnvironmentNames, Freeze, Hold, IdempotencyKey, OperationHistory, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::EnvironmentName;

pub use converger_ledger::{LogHash, Tile};
pub use error::{StoreError, StoreOpenError, StoreRefusal};
pub use journal_check::{JournalCheck, JournalMismatch, LedgerIndex};
pub use lock::{EnvironmentLock, LockError, LockHolder};
pub use memory::{CommitFault, MemoryStore};
pub use query::{EndedBy, HoldHistory, IdempotencyRow, LIST_MAX, LedgerHead, LedgerHeads, OperationFilter, OperationStatus, RunHistory};
pub use sqlite::{FatalCause, OnFatal, SqliteStore, StoreConditions, StoreSettings, StoreView, glance_writes, peek_conditions};
pub use state_files::{KEY_FILE, has_state, is_state_file};
pub use tables::key_named_in;
pub use write::{Batch, CommitAck, StoreWrite};

/// A memory that survives crashes. Reads see what was acknowledged before they were asked for.
pub trait Store: Send + Sync {
    /// Makes a batch durable. Dropping the future does not take the batch back: it is written or it is not.
    fn commit(&self, batch: Batch) -> impl Future<Output = Result<CommitAck, StoreError>> + Send;

    /// One operation with its history.
    fn operation(&self, id: OperationId) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send;

    /// The operations of an environment that have no end, in the order of their intents.
    ///
    /// At a start they are resolved by reading, before anything new is sent. There is at most one for each guest.
    fn open_operations(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send;

    /// Operations, newest first, at most `limit` and at most [`LIST_MAX`].
    fn operations(&self, filter: OperationFilter, limit: u32) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send;

    /// Those of these tasks that operations of an environment have, each with its operation.
    fn operations_of_tasks(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> impl Future<Output = Result<Vec<(TaskId, OperationId)>, StoreError>> + Send;

    /// The operation that an idempotency key stands for.
    fn operation_of_key(
        &self,
        environment: EnvironmentName,
        key: IdempotencyKey,
    ) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send;

    /// One run.
    fn run(&self, id: RunId) -> impl Future<Output = Result<Option<RunHistory>, StoreError>> + Send;

    /// The runs of an environment, newest first, at most `limit` and at most [`LIST_MAX`].
    fn runs(&self, environment: EnvironmentName, limit: u32) -> impl Future<Output = Result<Vec<RunHistory>, StoreError>> + Send;

    /// The guests of an environment that are held, in the order of their ids.
    fn holds(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<Hold>, StoreError>> + Send;

    /// Whether an environment is frozen, by whom and why.
    fn freeze(&self, environment: EnvironmentName) -> impl Future<Output = Result<Option<Freeze>, StoreError>> + Send;

    /// Which cluster each environment name stands for, and former names.
    fn names(&self) -> impl Future<Output = Result<EnvironmentNames, StoreError>> + Send;

    /// What is kept under a digest: the body of a plan, a reading, what was declared.
    fn blob(&self, digest: Digest) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// How long the ledger is.
    fn heads(&self) -> impl Future<Output = Result<LedgerHeads, StoreError>> + Send;

    /// Entries of the ledger from this place on, counted from 0, at most `limit` and at most [`LIST_MAX`].
    fn entries(&self, from: u64, limit: u32) -> impl Future<Output = Result<Vec<Vec<u8>>, StoreError>> + Send;

    /// The hashes of a tile of the ledger, exactly as many as it is wide; none where the ledger is not so long.
    fn hashes(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<LogHash>>, StoreError>> + Send;
}
