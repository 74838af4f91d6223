//! What is asked of a store, and what it answers beyond the words of the core.

use converger_core::apply::{End, Freeze, Hold, IdempotencyKey, OperationId, Progress, Run, RunId};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_ledger::{Hash, Tree};

/// Which operations are listed, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only of this environment.
    pub environment: Option<EnvironmentName>,
    /// Only of this run.
    pub run: Option<RunId>,
    /// Only of this guest.
    pub vmid: Option<Vmid>,
    /// Only those that stand so.
    pub standing: Option<Standing>,
    /// Only those that are older than this one: the last of one page begins the next.
    pub before: Option<OperationId>,
}

/// The most operations or runs in one list.
pub const LIST_MAX: u32 = 1000;

/// How an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has no end.
    Open,
    /// It ended held, and nobody has said what became of it.
    Held,
    /// It needs nothing more.
    Settled,
}

impl Standing {
    /// How an operation stands that is so far.
    #[must_use]
    pub fn of(progress: Progress) -> Self {
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
    pub run: Run,
    /// How it ended, and when.
    pub ended: Option<(End, u64)>,
}

/// Who ended what a person said, and when.
pub type Over = (Box<str>, u64);

/// Everything that people ever said, in its order, each with who ended it, where somebody did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The guests that were held.
    pub holds: Vec<(Hold, Option<Over>)>,
    /// The environments that were frozen.
    pub freezes: Vec<(Freeze, Option<Over>)>,
}

/// A request that acts once, and the operation that it stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRow {
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
pub struct Head {
    /// How many entries there are.
    pub size: u64,
    /// The root over them.
    pub root: Hash,
}

impl Head {
    /// That of a log.
    #[must_use]
    pub fn of(tree: &Tree) -> Self {
        Self { size: tree.size(), root: tree.root() }
    }
}

impl Default for Head {
    fn default() -> Self {
        Self { size: 0, root: Hash::of_nothing() }
    }
}

/// The ledger as it is, and as far as a machine that dies now would find it again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// With the entries of marks that no later batch has made durable.
    pub all: Head,
    /// Without them. This is what a checkpoint is signed over: nothing of it can be lost.
    pub durable: Head,
}
