//! The words of carrying out: an operation, what the journal takes of it, and how it ends.
//!
//! One [`Operation`] is one step of a plan on its way. The journal takes [`JournalRecord`]s and only adds: the intent before
//! anything is sent, a mark right before the sending, the task as soon as it is known, one end, and for what was held a
//! person's word. [`OperationHistory`] is what the records of one operation amount to, and the only judge of which record may follow.
//!
//! A stored operation is evidence and a thing to be resolved by reading; it is never a permission to send anything.
//!
//! What never enters: sending, waiting, storing. Ids and times are handed in.

pub mod check;
mod decode;
mod env_request;
mod history;
mod id;
mod names;
mod operation;
mod outcome;
mod own_write;
pub mod promise;
mod write;

#[cfg(test)]
mod tests;

use crate::artifact::Digest;
use crate::guest::{ClusterIdentity, EnvironmentName, Vmid};

pub use check::{CheckContext, DependencyCheck};
pub(crate) use decode::{
    OperationDecoder, OutcomeDecoder, check_schema, parse_stored, read_checked, read_enum, read_evidence, read_list, read_u32, read_vmid,
};
pub use decode::{StoredTextError, parse_operation, parse_outcome};
pub use env_request::{
    ClusterMembership, ConfigRevision, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, LiveConfig, LiveStatus, ObservedTask,
    SendResult, TaskState,
};
pub use history::{IllegalRecord, JournalProgress, OperationHistory, ResolutionRecord, SendingMark, is_storable, is_valid_remark};
pub use id::{BootId, IdempotencyKey, OperationId, RunId, Slug, TaskId};
pub use names::{EnvironmentNames, NameConflict, binding_conflict};
pub use operation::{GuestGuards, Operation, OperationSource, OperationTarget};
pub use outcome::{Evidence, Fact, Findings, OperationEnd, Outcome, ReleaseCondition, Resolution};
pub use own_write::own_writes;
pub use write::{write_operation, write_outcome};

/// The schema id of a stored operation.
pub const OPERATION_SCHEMA: &str = "converger.operation/1";

/// The schema id of a stored outcome.
pub const OUTCOME_SCHEMA: &str = "converger.outcome/1";

/// One line of the journal. Times are milliseconds since 1970 and for people: no order is derived from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// It is about to be sent. Durable before anything is (G11).
    Intent {
        /// What is about to be sent.
        operation: Box<Operation>,
        /// When.
        at_ms: u64,
    },
    /// From here on it may have been sent. A mark that waits for no disk: it survives the death of the process, and becomes durable with
    /// the next record that is. After the death of the machine its absence says nothing.
    Sending {
        /// The operation.
        id: OperationId,
        /// When.
        at_ms: u64,
        /// How long the machine had been up by then, by a clock that nobody can set.
        up_ms: u64,
    },
    /// The environment runs it as this task. Durable as soon as it is known.
    TaskStarted {
        /// The operation.
        id: OperationId,
        /// The task.
        task: TaskId,
        /// When.
        at_ms: u64,
    },
    /// It ended.
    Ended {
        /// The operation.
        id: OperationId,
        /// How.
        outcome: Outcome,
        /// When.
        at_ms: u64,
    },
    /// Somebody said what became of an operation that was held.
    Resolved {
        /// The operation.
        id: OperationId,
        /// What became of it.
        resolution: Resolution,
        /// Who said so.
        by: Box<str>,
        /// Why they think so.
        reason: Box<str>,
        /// When.
        at_ms: u64,
    },
}

impl JournalRecord {
    /// The operation that it is about.
    #[must_use]
    pub fn id(&self) -> &OperationId {
        match self {
            Self::Intent { operation, .. } => &operation.id,
            Self::Sending { id, .. } | Self::TaskStarted { id, .. } | Self::Ended { id, .. } | Self::Resolved { id, .. } => id,
        }
    }

    /// When it was made.
    #[must_use]
    pub fn at_ms(&self) -> u64 {
        match self {
            Self::Intent { at_ms, .. }
            | Self::Sending { at_ms, .. }
            | Self::TaskStarted { at_ms, .. }
            | Self::Ended { at_ms, .. }
            | Self::Resolved { at_ms, .. } => *at_ms,
        }
    }

    /// Whether nobody may go on before it is on the disk.
    #[must_use]
    pub fn must_be_durable(&self) -> bool {
        !matches!(self, Self::Sending { .. })
    }
}

/// How long a machine has been up, and since which of its starts. No clock of the day is asked, so that none that jumps changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uptime {
    /// Which start.
    pub boot: BootId,
    /// For how long, in milliseconds; sleep does not count.
    pub ms: u64,
}

/// One pass of the spine that acts: what its operations belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStart {
    /// Its id.
    pub id: RunId,
    /// The environment that it acts on.
    pub environment: EnvironmentName,
    /// The plan that it carries out, by the digest of its body.
    pub plan: Digest,
    /// Who started it.
    pub by: Box<str>,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The start of the machine that it runs on, where that can be told: what was written and not synced is there as long as this one.
    pub boot: Option<BootId>,
}

/// A guest that is left alone until it is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its environment.
    pub environment: EnvironmentName,
    /// The guest.
    pub vmid: Vmid,
    /// Who holds it.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// Since when, in milliseconds since 1970.
    pub at_ms: u64,
}

/// An environment in which nothing is changed until it is thawed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// The environment.
    pub environment: EnvironmentName,
    /// Who froze it.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// Since when, in milliseconds since 1970.
    pub at_ms: u64,
}

/// An environment and the cluster that its name stands for in a state directory, recorded when the name is first used.
///
/// One name stands for one cluster and one cluster has one name: holds, freezes, the run lock and operations in flight are found by name, and a
/// second name would bypass all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentBinding {
    /// The environment.
    pub environment: EnvironmentName,
    /// The cluster that it leads to.
    pub cluster: ClusterIdentity,
    /// Who used the name first.
    pub by: Box<str>,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// A person gives an environment another name. Its binding, holds, freeze, open and held operations and idempotency keys go with it; past runs
/// keep the name that they ran under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentRename {
    /// The name so far.
    pub from: EnvironmentName,
    /// The new name.
    pub to: EnvironmentName,
    /// Who renames it.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}
