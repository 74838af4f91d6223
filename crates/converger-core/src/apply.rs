//! Types of execution: an operation, the journal records about it, and its outcome.
//!
//! An [`Operation`] is one step of a plan while it is executed. The journal is append-only and takes [`JournalRecord`]s: the intent before
//! anything is sent, a mark right before sending, the task as soon as it is known, one end, and a person's resolution if the operation was
//! held. [`OperationHistory`] is the state that the records of one operation add up to. It alone decides which record may follow.
//!
//! A stored operation is evidence, and recovery settles it by reading. It is never a permission to send anything.
//!
//! Must not send, wait or store. Callers pass in ids and times.

mod birth;
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

pub use birth::{birth_marks_of, births};
pub use check::{CheckContext, DependencyCheck};
pub(crate) use decode::{
    OperationDecoder, OutcomeDecoder, check_schema, parse_stored, read_checked, read_enum, read_evidence, read_list, read_u32, read_vmid,
};
pub use decode::{StoredTextError, parse_operation, parse_outcome};
pub use env_request::{
    ClusterMembership, ConfigRevision, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, IdState, LiveConfig, LiveDayOne,
    LiveStatus, ObservedTask, SendResult, TaskState,
};
pub use history::{IllegalRecord, JournalProgress, OperationHistory, ResolutionRecord, SendingMark, is_storable, is_valid_remark};
pub use id::{BootId, IdempotencyKey, OperationId, RunId, Slug, TaskId};
pub use names::{EnvironmentNames, NameConflict, binding_conflict};
pub use operation::{GuestGuards, Operation, OperationSource, OperationTarget};
pub use outcome::{Evidence, Fact, Findings, OperationEnd, Outcome, ReleaseCondition, Resolution};
pub use own_write::own_writes;
pub use write::{write_operation, write_outcome};

/// Schema id of a stored operation.
pub const OPERATION_SCHEMA: &str = "converger.operation/1";

/// Schema id of a stored outcome.
pub const OUTCOME_SCHEMA: &str = "converger.outcome/1";

/// One record of the journal. Times are milliseconds since 1970 and for display only: no order is derived from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalRecord {
    /// The operation is about to be sent. This record is durable before anything is sent (G11).
    Intent {
        /// The operation.
        operation: Box<Operation>,
        /// When the intent was recorded.
        at_ms: u64,
    },
    /// From here on the operation may have been sent. Writing this mark does not wait for the disk: it survives the death of the process
    /// and becomes durable with the next durable record. After a crash of the machine, its absence proves nothing.
    Sending {
        /// The operation.
        id: OperationId,
        /// When the mark was made.
        at_ms: u64,
        /// Uptime of the machine at that moment, by a monotonic clock.
        up_ms: u64,
    },
    /// The environment executes the operation as this task. Durable as soon as the task is known.
    TaskStarted {
        /// The operation.
        id: OperationId,
        /// The task.
        task: TaskId,
        /// When the task was recorded.
        at_ms: u64,
    },
    /// The operation ended.
    Ended {
        /// The operation.
        id: OperationId,
        /// How it ended.
        outcome: Outcome,
        /// When the end was recorded.
        at_ms: u64,
    },
    /// A person resolved a held operation.
    Resolved {
        /// The operation.
        id: OperationId,
        /// How the operation ended, according to that person.
        resolution: Resolution,
        /// Who resolved it.
        by: Box<str>,
        /// Why.
        reason: Box<str>,
        /// When.
        at_ms: u64,
    },
}

impl JournalRecord {
    /// The operation that the record belongs to.
    #[must_use]
    pub fn id(&self) -> &OperationId {
        match self {
            Self::Intent { operation, .. } => &operation.id,
            Self::Sending { id, .. } | Self::TaskStarted { id, .. } | Self::Ended { id, .. } | Self::Resolved { id, .. } => id,
        }
    }

    /// When the record was made.
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

    /// Whether the caller must wait until the record is on disk.
    #[must_use]
    pub fn must_be_durable(&self) -> bool {
        !matches!(self, Self::Sending { .. })
    }
}

/// Uptime of a machine since one of its boots. It does not depend on the wall clock, which may jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uptime {
    /// The boot.
    pub boot: BootId,
    /// Milliseconds since that boot, without time spent suspended.
    pub ms: u64,
}

/// One run that applies a plan. Its operations belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunStart {
    /// Its id.
    pub id: RunId,
    /// The environment that it changes.
    pub environment: EnvironmentName,
    /// The plan that it applies, by the digest of the plan body.
    pub plan: Digest,
    /// Who started it.
    pub by: Box<str>,
    /// When it started, in milliseconds since 1970.
    pub at_ms: u64,
    /// The boot of the machine that it runs on, if known. Records that were written but not synced exist as long as this boot lasts.
    pub boot: Option<BootId>,
}

/// A guest that is not changed until it is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its environment.
    pub environment: EnvironmentName,
    /// The guest.
    pub vmid: Vmid,
    /// Who set the hold.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// When it was set, in milliseconds since 1970.
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
    /// When it was frozen, in milliseconds since 1970.
    pub at_ms: u64,
}

/// Binds an environment name to a cluster within a state directory. Recorded when the name is first used.
///
/// Each name belongs to one cluster and each cluster has one name: holds, freezes, the run lock and operations in flight are looked up by
/// name, so a second name would bypass all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentBinding {
    /// The environment.
    pub environment: EnvironmentName,
    /// The cluster.
    pub cluster: ClusterIdentity,
    /// Who used the name first.
    pub by: Box<str>,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}

/// A rename of an environment by a person. Its binding, holds, freeze, open and held operations and idempotency keys move to the new name;
/// past runs keep the name that they ran under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentRename {
    /// The old name.
    pub from: EnvironmentName,
    /// The new name.
    pub to: EnvironmentName,
    /// Who renamed it.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
}
