//! Queries to a store, and the answers that the core has no types for.

use converger_core::apply::{
    EnvironmentNames, Freeze, Hold, IdempotencyKey, JournalProgress, OperationEnd, OperationHistory, OperationId, RunId, RunStart,
};
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

/// The most operations of one guest that [`StoreReader::guest_operations`](crate::StoreReader::guest_operations) returns.
pub const GUEST_OPERATIONS_MAX: u32 = 200;

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

impl HoldHistory {
    /// What is in force keeps the name that its environment has now; what has ended keeps the name that it had then.
    pub(crate) fn rename_active(&mut self, from: &EnvironmentName, to: &EnvironmentName) {
        let holds = self.holds.iter_mut().filter(|(hold, end)| end.is_none() && hold.environment == *from);
        holds.for_each(|(hold, _)| hold.environment = to.clone());
        let freezes = self.freezes.iter_mut().filter(|(freeze, end)| end.is_none() && freeze.environment == *from);
        freezes.for_each(|(freeze, _)| freeze.environment = to.clone());
    }
}

/// What a store holds that decides about a plan: what keeps its steps from being applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreConditions {
    /// The epoch, if it is not the first.
    pub later_epoch: Option<u64>,
    /// The freeze of the environment.
    pub freeze: Option<Freeze>,
    /// Guests that people hold, ordered by id.
    pub holds: Vec<Hold>,
    /// Operations that occupy their guests, in flight or held. Oldest first.
    pub unsettled: Vec<OperationHistory>,
    /// Which cluster each environment name refers to, and former names.
    pub names: EnvironmentNames,
    /// Operations on guests with pending changes that the desired state does not declare. A store leaves it empty; the planner's caller
    /// fills it with [`StoreReader::guest_operations`](crate::StoreReader::guest_operations) if there are such guests.
    pub writes: Vec<OperationHistory>,
}

/// The content of a journal, for all environments; runs and operations by their ids only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalOverview {
    /// The runs, in the order in which they started.
    pub runs: Vec<RunId>,
    /// The operations, in the order of their intents.
    pub operations: Vec<OperationId>,
    /// Holds in force, by environment and guest.
    pub holds: Vec<Hold>,
    /// Freezes in force, by environment.
    pub freezes: Vec<Freeze>,
    /// Which cluster each environment name refers to, and former names.
    pub names: EnvironmentNames,
    /// All holds and freezes ever set.
    pub hold_history: HoldHistory,
    /// Every idempotency key, by environment and key.
    pub idempotency_keys: Vec<IdempotencyRow>,
    /// The current epoch.
    pub epoch: u64,
}

/// How many rows a stored ledger has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerRows {
    /// Its entries.
    pub entries: u64,
    /// Its full tiles.
    pub full_tiles: u64,
}

/// An idempotency key with its request and operation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdempotencyRow {
    /// The environment in which the key is unique.
    pub environment: EnvironmentName,
    /// The key.
    pub key: IdempotencyKey,
    /// The change of the operation: a step of the request begins at most once.
    pub change: Box<str>,
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
