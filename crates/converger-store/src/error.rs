//! Why a store did not do what it was asked: the batch is not allowed, the disk is full, or the store is damaged, lost or stopped.

use std::io;
use std::path::PathBuf;

use converger_core::apply::{Hold, IdempotencyKey, IllegalRecord, NameConflict, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};
use thiserror::Error;

use crate::write::Batch;

/// Names a process in a message.
fn process(holder: Option<u32>) -> String {
    holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid} (`ps -p {pid}` shows it)"))
}

/// Why a batch was not written or a read failed. After an error nothing of the batch was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The batch breaks a rule and was not written. The store continues.
    #[error(transparent)]
    Refused(#[from] StoreRefusal),
    /// The disk is full and nothing of the batch was written. The store accepts batches again once there is space.
    #[error("the disk of {path} is full: nothing was written; make room and try again")]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Another process kept the write lock for longer than the store waits. Nothing of the batch was written.
    #[error("{place} is in use by {}: nothing was written; wait for it to end and try again", process(*holder))]
    Busy {
        /// The file.
        place: PathBuf,
        /// The id of that process, if the system reports it.
        holder: Option<u32>,
    },
    /// It is unknown whether the last write is durable, so the store acknowledges nothing more (S18).
    #[error(
        "the store has stopped because its last write may not have reached the disk ({cause}); start the program again to read what is there"
    )]
    Stopped {
        /// The error of the system.
        cause: String,
    },
    /// The store cannot be read.
    #[error("cannot read {place}: {cause}")]
    Unreadable {
        /// The file.
        place: PathBuf,
        /// The error of the system.
        cause: String,
    },
    /// The stored data is not what any version of this program writes.
    #[error("`{what}` in {place} cannot be read: {cause}; use the version of the program that wrote it, or restore the file")]
    Malformed {
        /// The file.
        place: PathBuf,
        /// The affected operation, run or hold.
        what: String,
        /// The cause.
        cause: String,
    },
}

/// Why a batch is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreRefusal {
    /// The batch has no writes.
    #[error("the batch is empty")]
    Empty,
    /// The batch exceeds a size limit.
    #[error("the batch has more than {} writes or {} bytes of bodies", Batch::WRITES_MAX, Batch::BYTES_MAX)]
    TooLarge,
    /// The record may not follow the records that the journal has.
    #[error("operation `{id}`: {illegal}")]
    Record {
        /// The operation.
        id: OperationId,
        /// The reason.
        illegal: IllegalRecord,
    },
    /// Another operation occupies this guest: it is in flight or held (G12).
    #[error("guest {vmid} is in use by operation `{by}`; wait for it to end, or inspect it with `converger ops show`")]
    GuestTaken {
        /// The guest.
        vmid: Vmid,
        /// The operation that occupies it.
        by: OperationId,
    },
    /// The task belongs to another operation.
    #[error("task `{task}` belongs to operation `{by}`")]
    TaskTaken {
        /// The task.
        task: TaskId,
        /// The operation that owns it.
        by: OperationId,
    },
    /// The guest is held.
    #[error("guest {} is held by {}: {}; release it with `converger release {} {}`", .0.vmid, .0.by.escape_debug(), .0.reason.escape_debug(), .0.environment, .0.vmid)]
    GuestHeld(Hold),
    /// The guest is already held.
    #[error("guest {} is already held by {}: {}", .0.vmid, .0.by.escape_debug(), .0.reason.escape_debug())]
    AlreadyHeld(Hold),
    /// The guest is not held.
    #[error("guest {0} is not held")]
    NotHeld(Vmid),
    /// The environment is frozen.
    #[error("the environment `{environment}` is frozen: {}; thaw it with `converger thaw {environment}`", reason.escape_debug())]
    Frozen {
        /// The environment.
        environment: EnvironmentName,
        /// The reason.
        reason: Box<str>,
    },
    /// The entry begins an epoch that cannot follow the current one: another process began one in the meantime.
    #[error("epoch {epoch} cannot follow epoch {now}; run the command again")]
    EpochOutOfOrder {
        /// The current epoch.
        now: u64,
        /// The epoch of the entry.
        epoch: u64,
    },
    /// The environment is not frozen.
    #[error("the environment `{0}` is not frozen")]
    NotFrozen(EnvironmentName),
    /// The environment name refers to another cluster, the cluster has another name, or the name is a former one.
    #[error("{0}")]
    Name(NameConflict),
    /// No cluster is recorded for the environment, so nothing may be sent to it.
    #[error("no cluster is recorded for the environment `{0}`")]
    EnvironmentUnbound(EnvironmentName),
    /// The new name of an environment is already in use.
    #[error("the name `{0}` is in use in this state directory; choose another one")]
    NameInUse(EnvironmentName),
    /// Nothing is recorded under the name to be changed.
    #[error("nothing is recorded under the name `{0}` in this state directory")]
    EnvironmentUnrecorded(EnvironmentName),
    /// The key was used for another request (G13).
    #[error("the idempotency key `{key}` was used for another request, by operation `{first}`; use a new key")]
    KeyReused {
        /// The key.
        key: IdempotencyKey,
        /// The operation that used it first.
        first: OperationId,
    },
    /// The run was never started.
    #[error("the run `{0}` was not started")]
    RunUnknown(RunId),
    /// A run with this id was started before.
    #[error("the run `{0}` was started already")]
    RunExists(RunId),
    /// The run has ended.
    #[error("the run `{0}` has ended")]
    RunEnded(RunId),
    /// The operation names another environment or plan than its run.
    #[error("operation `{id}` names another environment or plan than its run")]
    OtherRun {
        /// The operation.
        id: OperationId,
    },
    /// The bytes do not have the digest under which they are to be stored.
    #[error("the bytes to be stored under {claimed} have the digest {found}")]
    BlobDiffers {
        /// The digest that was given.
        claimed: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// Nothing is stored under this digest.
    #[error("nothing is stored under {0}")]
    NotKept(Digest),
    /// The ledger has grown since it was searched.
    #[error("the ledger grew from {seen} to {now} entries: a new entry may refer to what was to be pruned; prune again")]
    LedgerGrown {
        /// Its size when it was searched.
        seen: u64,
        /// Its current size.
        now: u64,
    },
    /// The ledger already names a key.
    #[error("the ledger already names a key; sign with that key")]
    SecondKey,
    /// The key to be replaced is not the last one that the ledger names, or the new key was used before.
    #[error(
        "the ledger now names another key; check with `converger ledger tail --kind rekey`, and try again if that key must be replaced"
    )]
    OtherKey,
    /// A ledger entry would be too long.
    #[error("the ledger entry for this {kind} would be longer than 64 KiB")]
    EntryTooLong {
        /// The kind of the entry.
        kind: &'static str,
    },
    /// An entry of this kind is only written together with its subject.
    #[error("an entry of kind `{kind}` is written together with its subject, never on its own")]
    NotStandalone {
        /// Its kind.
        kind: &'static str,
    },
    /// `by` or `reason` is blank or too long, or a time is larger than any artifact allows.
    #[error("`by` and `reason` must not be blank or longer than 4096 bytes, and times must be below 2^53")]
    NotStorable,
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum StoreOpenError {
    /// The directory or the file cannot be used.
    #[error("cannot {what} {path}; {help}")]
    Unusable {
        /// The attempted action.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What to do.
        help: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a database.
    #[error("{place} is not a database of this program; move it away, or use another state directory")]
    NotOurs {
        /// The file.
        place: PathBuf,
    },
    /// A later version of the program wrote the file.
    #[error(
        "{place} has schema version {found}, but this program knows versions up to {known}; use the newer program, or restore a backup that \
         this one wrote (`converger store restore`)"
    )]
    Newer {
        /// The file.
        place: PathBuf,
        /// Its version.
        found: i64,
        /// The latest version that this program knows.
        known: i64,
    },
    /// An earlier version of the program wrote the file. Until version 0.2 formats change in place and are not migrated.
    #[error(
        "{place} has schema version {found}, but this program ({}) reads version {known} only: formats are not migrated before 0.2; settle \
         open operations with the program that wrote it, then use another state directory and set holds and freezes again",
        env!("CARGO_PKG_VERSION")
    )]
    Older {
        /// The file.
        place: PathBuf,
        /// Its version.
        found: i64,
        /// The version that this program reads.
        known: i64,
    },
    /// The file is damaged.
    #[error(
        "{place} is damaged: {cause}; restore it from a backup together with its `-wal` file, or move both away and check every guest first"
    )]
    Damaged {
        /// The file.
        place: PathBuf,
        /// The damage that was found.
        cause: String,
    },
    /// The store existed before and is now missing or empty. A new store would know no holds, freezes or operations in flight.
    #[error(
        "{place} is missing or empty, but {remains} shows that it was in use; restore it from a backup, or move everything out of the directory \
         and check every guest first: a new store knows no holds, freezes or operations in flight"
    )]
    Lost {
        /// The file.
        place: PathBuf,
        /// The file beside it that shows that there was a store.
        remains: PathBuf,
    },
    /// The disk is full.
    #[error("the disk of {place} is full; make room and try again")]
    Full {
        /// The file.
        place: PathBuf,
    },
    /// Another process kept the store locked for longer than the program waits.
    #[error("{place} is in use by {}; wait for it to end and try again", process(*holder))]
    Busy {
        /// The file.
        place: PathBuf,
        /// The id of that process, if the system reports it.
        holder: Option<u32>,
    },
    /// Any other failure.
    #[error("cannot open {place}: {cause}")]
    Failed {
        /// The file.
        place: PathBuf,
        /// The error of the system.
        cause: String,
    },
}
