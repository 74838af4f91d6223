//! The durable state of the program: the journal of operations, the ledger, and the holds and freezes that people set.
//!
//! A [`Store`] commits [`Batch`]es. All writes of a batch become durable together, and the batch is acknowledged only then. An
//! acknowledged batch survives any crash; a batch that was not acknowledged is found complete or not at all. One exception: a sending
//! mark (`Record::Sending`) does not wait for the disk. It survives the process at once, and a crash of the machine once the next batch
//! is durable. The store refuses a batch that breaks a rule with a typed cause and writes nothing of it: records out of order, a second
//! operation on a guest (G12), an idempotency key that belongs to another request (G13), an intent while the guest is held or the
//! environment is frozen.
//!
//! Each decision has one entry in the ledger (`converger-ledger`). The entry is written in the same transaction and before the decision
//! is reported. The ledger only grows; readers get its entries, its hashes, and the size up to which it is durable.
//!
//! [`SqliteStore`] stores everything in a file; [`MemoryStore`] does the same in memory for simulations. Both check writes with the same
//! rules and pass the same `conformance` suite. [`EnvironmentLock`] ensures that only one process changes an environment.
//!
//! Must not depend on Proxmox, on decisions about guests, on clocks or on randomness: times and ids are part of what is written.

mod capacity;
mod error;
mod file_identity;
mod journal_check;
mod lock;
mod memory;
mod query;
mod read_access;
mod sqlite;
mod state_files;
mod tables;
mod wait;
mod write;

#[cfg(feature = "conformance")]
pub mod conformance;

use std::future::Future;

use converger_core::apply::{EnvironmentNames, Freeze, Hold, IdempotencyKey, OperationHistory, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};

pub use capacity::{MonitoredStore, StoreCapacity};
pub use converger_ledger::{LogHash, Tile};
pub use error::{StoreError, StoreOpenError, StoreRefusal};
pub use journal_check::{JournalCheck, JournalMismatch, LedgerIndex, find_journal_mismatch};
pub use lock::{EnvironmentLock, LockError, LockHolder};
pub use memory::{CommitFault, MemoryStore};
pub use query::{
    EndedBy, GUEST_OPERATIONS_MAX, HoldHistory, IdempotencyRow, JournalOverview, LIST_MAX, LedgerHead, LedgerHeads, LedgerRows,
    OperationFilter, OperationStatus, RunHistory, StoreConditions,
};
pub use sqlite::{
    FatalCause, OnFatal, STAGING_DIRECTORY, STORE_FILE, SqliteStore, StoreCopyError, StoreSettings, StoreView, check_state_directory,
    copy_store,
};
pub use state_files::{KEY_FILE, has_state, is_state_file};
pub use tables::key_named_in;
pub use wait::wait_for;
pub use write::{Batch, CommitAck, StoreWrite};

/// Read access to a store: what a run, a service and the commands need. Open stores and the read-only view of one implement it.
///
/// Reads see everything that was acknowledged before they started. A store completes its futures on its own threads, so any executor may
/// poll them; [`wait_for`] polls them without an executor.
pub trait StoreReader: Send + Sync {
    /// One operation with its history.
    fn operation(&self, id: OperationId) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send;

    /// The operations of an environment that have no end, in the order of their intents.
    ///
    /// Recovery settles them by reading, before anything new is sent. There is at most one for each guest.
    fn open_operations(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send;

    /// Operations, newest first, at most `limit` and at most [`LIST_MAX`].
    fn operations(&self, filter: OperationFilter, limit: u32) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send;

    /// The newest operations of these guests, at most [`GUEST_OPERATIONS_MAX`] of each, guest by guest, newest first.
    fn guest_operations(
        &self,
        environment: EnvironmentName,
        guests: Vec<Vmid>,
    ) -> impl Future<Output = Result<Vec<OperationHistory>, StoreError>> + Send;

    /// The tasks among `tasks` that belong to operations of this environment, each with its operation.
    fn operations_of_tasks(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> impl Future<Output = Result<Vec<(TaskId, OperationId)>, StoreError>> + Send;

    /// The operation that was started with this idempotency key.
    fn operation_of_key(
        &self,
        environment: EnvironmentName,
        key: IdempotencyKey,
    ) -> impl Future<Output = Result<Option<OperationHistory>, StoreError>> + Send;

    /// One run.
    fn run(&self, id: RunId) -> impl Future<Output = Result<Option<RunHistory>, StoreError>> + Send;

    /// The runs of an environment, newest first, at most `limit` and at most [`LIST_MAX`].
    fn runs(&self, environment: EnvironmentName, limit: u32) -> impl Future<Output = Result<Vec<RunHistory>, StoreError>> + Send;

    /// What decides about a plan of an environment: its freeze, its holds, its unsettled operations and the environment names, of one moment.
    fn conditions(&self, environment: EnvironmentName) -> impl Future<Output = Result<StoreConditions, StoreError>> + Send;

    /// The guests of an environment that are held, ordered by id.
    fn holds(&self, environment: EnvironmentName) -> impl Future<Output = Result<Vec<Hold>, StoreError>> + Send;

    /// The freeze of an environment, with its author and reason, if there is one.
    fn freeze(&self, environment: EnvironmentName) -> impl Future<Output = Result<Option<Freeze>, StoreError>> + Send;

    /// Which cluster each environment name refers to, and former names.
    fn names(&self) -> impl Future<Output = Result<EnvironmentNames, StoreError>> + Send;

    /// The content of the journal at one moment, runs and operations by id only. [`find_journal_mismatch`] compares it with the ledger.
    fn journal_overview(&self) -> impl Future<Output = Result<JournalOverview, StoreError>> + Send;

    /// The bytes under a digest: the body of a plan, an observation, a declared state.
    fn blob(&self, digest: Digest) -> impl Future<Output = Result<Option<Vec<u8>>, StoreError>> + Send;

    /// All digests that have bytes, whether or not an entry names them, in their order.
    fn digests(&self) -> impl Future<Output = Result<Vec<Digest>, StoreError>> + Send;

    /// The size of the ledger.
    fn heads(&self) -> impl Future<Output = Result<LedgerHeads, StoreError>> + Send;

    /// The epoch: 1 in a new store, raised by each resync and each restore. Plans, approvals and signatures of earlier epochs are void.
    fn epoch(&self) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Entries of the ledger from this position on, counted from 0, at most `limit` and at most [`LIST_MAX`].
    fn entries(&self, from: u64, limit: u32) -> impl Future<Output = Result<Vec<Vec<u8>>, StoreError>> + Send;

    /// The hashes of a tile of the ledger, exactly as many as it is wide; none if the ledger is shorter.
    fn hashes(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<LogHash>>, StoreError>> + Send;

    /// The stored hashes of a full tile of the ledger; none if they are not stored, however long the ledger is.
    fn full_tile(&self, tile: Tile) -> impl Future<Output = Result<Option<Vec<LogHash>>, StoreError>> + Send;

    /// How many rows the ledger has, whatever its head says.
    fn ledger_rows(&self) -> impl Future<Output = Result<LedgerRows, StoreError>> + Send;
}

/// Durable state that survives crashes.
pub trait Store: StoreReader {
    /// Makes a batch durable. Dropping the future does not cancel the batch: it may still be written.
    fn commit(&self, batch: Batch) -> impl Future<Output = Result<CommitAck, StoreError>> + Send;
}
