//! Queries to a store, and the answers that the core has no types for.

use converger_core::apply::{Freeze, Hold, IdempotencyKey, JournalProgress, OperationEnd, OperationId, RunId, RunStart};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_ledger::{LogHash, MerkleTree};

/// Which operations are listed, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperationFilter {
    /// Only of this environment.
    pub environment: Option<EnvironmentName>,
    /// Only of this run.
    pub run: Option<RunId>,
    /// Only of this guest.
    pub vmid: Option<Vmid>,
    /// Only operations with this status.
    pub status: Option<OperationStatus>,
    /// Only operations older than this one. For the next page, pass the last operation of the current page.
    pub before: Option<OperationId>,
}

/// The maximum number of operations or runs in one list.
pub const LIST_MAX: u32 = 1000;

/// The status of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStatus {
    /// It has not ended.
    Open,
    /// It ended as held, and nobody has resolved it.
    Held,
    /// It needs no further action.
    Settled,
}

impl OperationStatus {
    /// The status of an operation that has made this progress.
    #[must_use]
    pub fn from_progress(progress: JournalProgress) -> Self {
        if progress.is_open() {
            Self::Open
        } else if progress.is_held() {
            Self::Held
        } else {
            Self::Settled
        }
    }
}

/// A run with its end, if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunHistory {
    /// The run.
    pub run: RunStart,
    /// How it ended, and when.
    pub ended: Option<(OperationEnd, u64)>,
}

/// Who ended a hold or freeze, and when.
pub type EndedBy = (Box<str>, u64);

/// All holds and freezes ever set, in order, each with its end if it has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HoldHistory {
    /// The guests that were held.
    pub holds: Vec<(Hold, Option<EndedBy>)>,
    /// The environments that were frozen.
    pub freezes: Vec<(Freeze, Option<EndedBy>)>,
}

/// An idempotency key with its request and operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdempotencyRow {
    /// The environment in which the key is unique.
    pub environment: EnvironmentName,
    /// The key.
    pub key: IdempotencyKey,
    /// The digest of the request that used it.
    pub request: Digest,
    /// The operation.
    pub operation: OperationId,
}

/// The size of the ledger and its Merkle root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerHead {
    /// The number of entries.
    pub size: u64,
    /// The root over all entries.
    pub root: LogHash,
}

impl LedgerHead {
    /// The head of a log.
    #[must_use]
    pub fn from_tree(tree: &MerkleTree) -> Self {
        Self { size: tree.size(), root: tree.root() }
    }
}

impl Default for LedgerHead {
    fn default() -> Self {
        Self { size: 0, root: LogHash::empty_root() }
    }
}

/// The ledger as it is now, and the part of it that survives a crash of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerHeads {
    /// Including the entries of sending marks that no later batch has made durable.
    pub all: LedgerHead,
    /// Without those entries. Checkpoints are signed over this head: none of it can be lost.
    pub durable: LedgerHead,
}
