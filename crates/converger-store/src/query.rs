//! What is asked of a store, and what it answers beyond the words of the core.

use converger_core::apply::{End, OperationId, Progress, Run, RunId};
use converger_core::guest::{EnvironmentName, Vmid};

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
