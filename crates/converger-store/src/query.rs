//! What is asked of a store, and what it answers beyond the words of the core.

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
    /// Only those that stand so.
    pub status: Option<OperationStatus>,
    /// Only those that are older than this one: the last of one page begins the next.
    pub before: Option<OperationId>,
}

/// The most operations or runs in one list.
pub const LIST_MAX: u32 = 1000;

/// The most operations of one guest that [`StoreReader::guest_operations`](crate::StoreReader::guest_operations) returns.
pub const GUEST_OPERATIONS_MAX: u32 = 200;

/// How an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStatus {
    /// It has no end.
    Open,
    /// It ended held, and nobody has said what became of it.
    Held,
    /// It needs nothing more.
    Settled,
}

impl OperationStatus {
    /// How an operation stands that is so far.
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

/// Who ended what a person said, and when.
pub type EndedBy = (Box<str>, u64);

/// Everything that people ever said, in its order, each with who ended it, where somebody did.
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
    /// The freeze of the environment.
    pub freeze: Option<Freeze>,
    /// Guests that people hold, in the order of their ids.
    pub holds: Vec<Hold>,
    /// Operations that occupy their guests, in flight or held. Oldest first.
    pub unsettled: Vec<OperationHistory>,
    /// Which cluster each environment name stands for, and former names.
    pub names: EnvironmentNames,
    /// Operations of guests that have pending changes which the desired state does not declare. A store leaves it empty; the planner's caller
    /// fills it with [`StoreReader::guest_operations`](crate::StoreReader::guest_operations) if there are such guests.
    pub writes: Vec<OperationHistory>,
}

/// What a journal holds beside its operations and runs themselves, of all environments.
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
    /// Which cluster each environment name stands for, and former names.
    pub names: EnvironmentNames,
    /// All holds and freezes that there ever were.
    pub hold_history: HoldHistory,
    /// Every idempotency key, by environment and key.
    pub idempotency_keys: Vec<IdempotencyRow>,
}

/// How many rows a stored ledger has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerRows {
    /// Its entries.
    pub entries: u64,
    /// Its full tiles.
    pub full_tiles: u64,
}

/// A request that acts once, and the operation that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdempotencyRow {
    /// Where it is known.
    pub environment: EnvironmentName,
    /// The key.
    pub key: IdempotencyKey,
    /// The digest of what was asked for with it.
    pub request: Digest,
    /// The operation.
    pub operation: OperationId,
}

/// How long the ledger is, and the root over its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerHead {
    /// How many entries there are.
    pub size: u64,
    /// The root over them.
    pub root: LogHash,
}

impl LedgerHead {
    /// That of a log.
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

/// The ledger as it is, and as far as a machine that dies now would find it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerHeads {
    /// With the entries of marks that no later batch has made durable.
    pub all: LedgerHead,
    /// Without them. This is what a checkpoint is signed over: nothing of it can be lost.
    pub durable: LedgerHead,
}
