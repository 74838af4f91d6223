//! Why a store did not do what it was asked: a batch that may not be written, a disk that is full, a store that is lost.

use std::io;
use std::path::PathBuf;

use converger_core::apply::{Hold, IdempotencyKey, IllegalRecord, NameConflict, OperationId, RunId, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};
use thiserror::Error;

use crate::write::Batch;

/// A process, for people.
fn process(holder: Option<u32>) -> String {
    holder.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid} (`ps -p {pid}` shows it)"))
}

/// Why something was not written or read. Nothing of a batch that got an error was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// The batch may not be written, and is not. The store is fine.
    #[error(transparent)]
    Refused(#[from] StoreRefusal),
    /// There is no room, and nothing of the batch was written. The store is fine and takes batches again once there is.
    #[error("the disk of {place} is full: nothing was written; make room and try again")]
    Full {
        /// The file.
        place: PathBuf,
    },
    /// Another process writes, for longer than is waited. Nothing of the batch was written.
    #[error("{place} is in use by {}: nothing was written; wait for it to end and try again", process(*holder))]
    Busy {
        /// The file.
        place: PathBuf,
        /// The number of that process, where the system tells it.
        holder: Option<u32>,
    },
    /// What was written may or may not be durable, so that nothing more is acknowledged (S18).
    #[error(
        "the store has stopped, because what it wrote may not have reached the disk ({cause}); start the program again, it will find out what is there"
    )]
    Stopped {
        /// What the system said.
        cause: String,
    },
    /// It cannot be read.
    #[error("cannot read {place}: {cause}")]
    Unreadable {
        /// The file.
        place: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// What is stored is not what any version of this program writes.
    #[error("what {place} holds of `{what}` cannot be read: {cause}; use the version of the program that wrote it, or restore the file")]
    Malformed {
        /// The file.
        place: PathBuf,
        /// The operation, run or hold.
        what: String,
        /// What is wrong with it.
        cause: String,
    },
}

/// Why a batch may not be written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreRefusal {
    /// There is nothing in it.
    #[error("the batch is empty")]
    Empty,
    /// There is too much in it.
    #[error("the batch has more than {} writes or {} bytes of bodies", Batch::WRITES_MAX, Batch::BYTES_MAX)]
    TooLarge,
    /// A record may not follow what the journal has.
    #[error("operation `{id}`: {illegal}")]
    Record {
        /// The operation.
        id: OperationId,
        /// Why.
        illegal: IllegalRecord,
    },
    /// Another operation of this guest is under way, or held (G12).
    #[error("guest {vmid} is taken by operation `{by}`; wait for its end, or look at it with `converger ops show`")]
    GuestTaken {
        /// The guest.
        vmid: Vmid,
        /// The operation that has it.
        by: OperationId,
    },
    /// Another operation has this task.
    #[error("the task `{task}` carries out the operation `{by}`")]
    TaskTaken {
        /// The task.
        task: TaskId,
        /// The operation that has it.
        by: OperationId,
    },
    /// The guest is held.
    #[error("guest {} is held by {}: {}; `converger release {} {}` ends it", .0.vmid, .0.by.escape_debug(), .0.reason.escape_debug(), .0.environment, .0.vmid)]
    GuestHeld(Hold),
    /// The guest is held already.
    #[error("guest {} is held already, by {}: {}", .0.vmid, .0.by.escape_debug(), .0.reason.escape_debug())]
    AlreadyHeld(Hold),
    /// The guest is not held.
    #[error("guest {0} is not held")]
    NotHeld(Vmid),
    /// The environment is frozen.
    #[error("the environment `{environment}` is frozen: {}; `converger thaw {environment}` ends it", reason.escape_debug())]
    Frozen {
        /// The environment.
        environment: EnvironmentName,
        /// Why.
        reason: Box<str>,
    },
    /// The environment is not frozen.
    #[error("the environment `{0}` is not frozen")]
    NotFrozen(EnvironmentName),
    /// The name of the environment stands for another cluster, its cluster has another name, or it is a former name.
    #[error("{0}")]
    Name(NameConflict),
    /// No cluster is recorded for the environment, so that nothing may be sent to it.
    #[error("no cluster is recorded for the environment `{0}`")]
    EnvironmentUnbound(EnvironmentName),
    /// The new name of an environment is in use.
    #[error("the name `{0}` is in use in this state directory; choose another one")]
    NameInUse(EnvironmentName),
    /// Nothing is recorded under the name that was to be changed.
    #[error("nothing is recorded under the name `{0}` in this state directory")]
    EnvironmentUnrecorded(EnvironmentName),
    /// The key was used for another request (G13).
    #[error("the idempotency key `{key}` was used for another request, by operation `{first}`; use a new key")]
    KeyReused {
        /// The key.
        key: IdempotencyKey,
        /// The operation that it stands for.
        first: OperationId,
    },
    /// The run is not known.
    #[error("the run `{0}` was not started")]
    RunUnknown(RunId),
    /// The run has this id already.
    #[error("the run `{0}` was started already")]
    RunExists(RunId),
    /// The run has ended.
    #[error("the run `{0}` has ended")]
    RunEnded(RunId),
    /// The operation is of another environment or plan than its run.
    #[error("operation `{id}` is of another environment or plan than its run")]
    OtherRun {
        /// The operation.
        id: OperationId,
    },
    /// Bytes do not have the digest that they are to be kept under.
    #[error("what is to be kept as {claimed} has the digest {found}")]
    BlobDiffers {
        /// The digest that was given.
        claimed: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// Nothing is kept under this digest.
    #[error("nothing is kept as {0}")]
    NotKept(Digest),
    /// The ledger has grown since it was looked at.
    #[error("the ledger had {seen} entries when it was looked at and has {now}: what was decided since may need what was to be let go")]
    LedgerGrown {
        /// How long it was.
        seen: u64,
        /// How long it is.
        now: u64,
    },
    /// The ledger names a key already.
    #[error("the ledger names a key already, and has one for ever; sign with that one")]
    SecondKey,
    /// The key that was to be replaced is not the one that the ledger names last, or the new one was used before.
    #[error(
        "the ledger names another key by now: look with `converger ledger tail --kind rekey`, and try again if it is still to be replaced"
    )]
    OtherKey,
    /// An entry of the ledger would be too long.
    #[error("the entry of the ledger for this {kind} would be longer than 64 KiB")]
    EntryTooLong {
        /// What it is about.
        kind: &'static str,
    },
    /// A decision of this kind is written by what it is about.
    #[error("an entry of the kind `{kind}` is written with what it is about, and never by itself")]
    NotStandalone {
        /// Its kind.
        kind: &'static str,
    },
    /// Who or why is blank or too long, or a time is beyond what any artifact holds.
    #[error("`by` and `reason` must say something in at most 4096 bytes, and times must be below 2^53")]
    NotStorable,
}

/// Why a store cannot be opened.
#[derive(Debug, Error)]
pub enum StoreOpenError {
    /// The directory or the file cannot be used.
    #[error("cannot {what} {place}; {help}")]
    Unusable {
        /// What was tried.
        what: &'static str,
        /// On what.
        place: PathBuf,
        /// What to do.
        help: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a database.
    #[error("{place} is not a database of this program; move it away, or name another state directory")]
    NotOurs {
        /// The file.
        place: PathBuf,
    },
    /// A later version of the program wrote it.
    #[error("{place} has the schema version {found}, and this program knows versions up to {known}; use the newer version of the program")]
    Newer {
        /// The file.
        place: PathBuf,
        /// Its version.
        found: i64,
        /// The latest version that is known.
        known: i64,
    },
    /// An earlier version of the program wrote it. Until version 0.2 formats change in place and are not migrated.
    #[error(
        "{place} has the schema version {found} of an earlier program, and this program ({}) reads version {known} only: formats are not migrated \
         before 0.2; settle what is open with the program that wrote it, then name another state directory, and hold and freeze again what must \
         stay so",
        env!("CARGO_PKG_VERSION")
    )]
    Older {
        /// The file.
        place: PathBuf,
        /// Its version.
        found: i64,
        /// The version that is known.
        known: i64,
    },
    /// The file is damaged.
    #[error(
        "{place} is damaged: {cause}; restore it from a backup together with its `-wal` file, or move both away and look at every guest first"
    )]
    Damaged {
        /// The file.
        place: PathBuf,
        /// What was found.
        cause: String,
    },
    /// It was there and is not any more, or is empty: holds, freezes and operations under way would be forgotten.
    #[error(
        "{place} is missing or empty, but {remains} shows that it was in use; restore it from a backup, or move everything out of the directory \
         and look at every guest first: holds, freezes and operations under way would be forgotten"
    )]
    Lost {
        /// The file.
        place: PathBuf,
        /// What is left beside it.
        remains: PathBuf,
    },
    /// The disk is full.
    #[error("the disk of {place} is full; make room and try again")]
    Full {
        /// The file.
        place: PathBuf,
    },
    /// Another process holds it for longer than is waited.
    #[error("{place} is in use by {}; wait for it to end and try again", process(*holder))]
    Busy {
        /// The file.
        place: PathBuf,
        /// The number of that process, where the system tells it.
        holder: Option<u32>,
    },
    /// Something else.
    #[error("cannot open {place}: {cause}")]
    Failed {
        /// The file.
        place: PathBuf,
        /// What the system said.
        cause: String,
    },
}
