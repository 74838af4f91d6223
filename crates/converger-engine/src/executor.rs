//! Executes the commands of a [`RunMachine`](crate::run_machine::RunMachine) with an [`Actuator`], a store and a [`Clock`], and feeds
//! back the results.
//!
//! It decides nothing. [`Executor`] accepts runs and recoveries while others are in flight; `execution` is the one task that owns the run
//! machine. Only work that takes time (a request, a commit, a wait) runs in other tasks, at most one per operation. The executor itself
//! records the end of each run.
//!
//! Must not depend on Proxmox, texts for people or signals of the system; the caller translates signals to [`RunSignal`].

mod execution;
mod handle;
mod report;

use std::future::Future;

use converger_core::apply::{
    EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, IllegalRecord, JournalRecord, Operation, OperationEnd, OperationHistory,
    OperationId, Outcome, ReleaseCondition, RunId, TaskId,
};
use converger_core::approve::ApprovedPlan;
use converger_core::evidence::LedgerEntry;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::refusal::Refusal;
use converger_store::{
    Batch, CommitAck, LIST_MAX, OperationFilter, OperationStatus, Store, StoreError, StoreReader, StoreRefusal, StoreWrite,
};
use thiserror::Error;

use crate::clock::Clock;
use crate::operation::{self, CommitFailure, Phase, SendBlock};

pub use crate::run_machine::RunOptions;
pub use handle::{
    Executor, ExecutorLoad, NotAccepting, OPEN_RUNS_MAX, OnNotice, PendingReport, RecoverySubmission, RunSlot, RunSubmission, Unsettled,
};
pub use report::{ExecutionReport, OperationReport};

#[cfg(test)]
mod tests;

/// Sends requests to an environment, each once.
pub trait Actuator: Send + Sync + 'static {
    /// The right to send one change. Its holder waits for nobody else.
    type Permit: Send + 'static;

    /// Waits, for a bounded time, until a change to this guest may be sent.
    fn acquire_permit(&self, address: GuestAddress) -> impl Future<Output = Result<Self::Permit, EnvFault>> + Send;

    /// Sends a change with a permit.
    fn send(&self, permit: Self::Permit, request: EnvRequest) -> impl Future<Output = EnvResponse> + Send;

    /// Sends a request. It never fails: a request that could not be sent or answered has a response, too.
    fn request(&self, request: EnvRequest) -> impl Future<Output = EnvResponse> + Send;
}

/// Controls a whole executor while it works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunSignal {
    /// Continue.
    #[default]
    Continue,
    /// Start nothing new; operations in flight continue to their end.
    Drain,
    /// Stop waiting. The journal has the operations in flight, and the next start recovers them.
    Leave,
}

/// Progress of an operation.
#[derive(Clone, Copy, Debug)]
pub struct OperationNotice<'n> {
    /// The operation.
    pub operation: &'n Operation,
    /// The phase that it reached.
    pub phase: Phase,
    /// The outcome, once it has ended.
    pub outcome: Option<&'n Outcome>,
}

/// Why there is no report. Nothing was sent, except after [`EngineError::ExecutorLost`].
#[derive(Debug, Error)]
pub enum EngineError {
    /// The journal does not accept the run, or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run was started for another plan or not at all, is already being applied, or has ended.
    #[error("the run `{0}` was not started for this plan, or is over; this is a defect of the program")]
    RunMismatch(RunId),
    /// No ids were given for the operations of the plan.
    #[error("the operations of the plan have no ids; this is a defect of the program")]
    MissingIds,
    /// The executor has stopped.
    #[error(transparent)]
    NotAccepting(#[from] NotAccepting),
    /// The executor ended without an answer, and may have sent changes. The journal has the operations in flight, and the next start recovers them.
    #[error(
        "the executor ended while the run was being applied; this is a defect of the program, and the next start recovers what was in flight"
    )]
    ExecutorLost,
}

/// Checks that the journal has the run as started for this plan. Otherwise every intent would be refused.
async fn check_started(store: &impl StoreReader, plan: &ApprovedPlan, run: &RunId) -> Result<(), EngineError> {
    let found = store.run(run.clone()).await?;
    let is_its_own = found.is_some_and(|found| found.run.plan == plan.digest() && found.ended.is_none());
    if is_its_own { Ok(()) } else { Err(EngineError::RunMismatch(run.clone())) }
}

/// The operations of an environment that must be recovered by reading: those without an end, and those that are held until a read
/// settles them. The earliest come first.
///
/// # Errors
/// The journal cannot be read.
pub async fn load_unsettled(store: &impl StoreReader, environment: &EnvironmentName) -> Result<Vec<OperationHistory>, StoreError> {
    let mut found = store.open_operations(environment.clone()).await?;
    let mut before = None;
    loop {
        let filter = OperationFilter {
            environment: Some(environment.clone()),
            status: Some(OperationStatus::Held),
            before: before.clone(),
            ..OperationFilter::default()
        };
        let page = store.operations(filter, LIST_MAX).await?;
        before = page.last().map(|history| history.operation.id.clone());
        let is_last = page.len() < LIST_MAX as usize;
        let is_readable =
            |history: &OperationHistory| matches!(&history.ended, Some((Outcome::Held { release: ReleaseCondition::Reading, .. }, _)));
        found.extend(page.into_iter().filter(is_readable));
        if is_last {
            break;
        }
    }
    found.sort_by_key(|history| history.at_ms);
    Ok(found)
}

/// Checks whether a store has a hold on one of these guests or a freeze of their environment.
pub async fn check_holds(store: &impl StoreReader, environment: EnvironmentName, guests: Vec<Vmid>) -> operation::OperationEvent {
    let refusal_lookup = async {
        let freeze = store.freeze(environment.clone()).await?.map(|freeze| Refusal::changes_frozen(&freeze.reason));
        let hold = store.holds(environment).await?.into_iter().find(|hold| guests.contains(&hold.vmid));
        Ok::<_, StoreError>(freeze.or_else(|| hold.map(|hold| Refusal::guest_held_by_person(&hold.by, &hold.reason))))
    };
    match refusal_lookup.await {
        Ok(None) => operation::OperationEvent::SendAllowed,
        Ok(Some(refusal)) => operation::OperationEvent::SendBlocked(SendBlock::Refused(refusal)),
        Err(error) => operation::OperationEvent::SendBlocked(SendBlock::Failed(error.to_string().into())),
    }
}

/// Invalidates a hold check that has become too old: a refusal stands, and everything else is checked again.
fn expire_hold_check(event: operation::OperationEvent) -> operation::OperationEvent {
    match event {
        operation::OperationEvent::SendAllowed => {
            let cause = EnvFault::new(EnvFaultKind::Busy, "too-slow", "the hold check was too old when the change was to be sent");
            operation::OperationEvent::SendBlocked(SendBlock::NodeBusy(cause))
        }
        no => no,
    }
}

/// Finds out from a store which of these tasks belong to other operations.
pub async fn find_task_owners(
    store: &impl StoreReader,
    environment: EnvironmentName,
    id: &OperationId,
    tasks: Vec<TaskId>,
) -> operation::OperationEvent {
    match store.operations_of_tasks(environment, tasks).await {
        Ok(known) => {
            operation::OperationEvent::TaskOwnersFound(known.into_iter().filter(|(_, by)| by != id).map(|(task, _)| task).collect())
        }
        Err(error) => operation::OperationEvent::TaskOwnersUnreadable(error.to_string().into()),
    }
}

/// The mark that an operation may have been sent from here on.
fn sending_record(clock: &impl Clock, id: OperationId) -> JournalRecord {
    JournalRecord::Sending { id, at_ms: clock.now_ms(), up_ms: clock.uptime().map_or(0, |uptime| uptime.ms) }
}

/// Writes a record. If the journal refuses an intent, that is a decision too and gets a ledger entry.
async fn write_record(store: &impl Store, record: JournalRecord) -> operation::OperationEvent {
    let intended = match &record {
        JournalRecord::Intent { operation, at_ms } => Some((operation.run.clone(), operation.guest.vmid, *at_ms)),
        _ => None,
    };
    let event = commit_event(store.commit(Batch::from(record)).await);
    let (Some((run, vmid, at_ms)), operation::OperationEvent::NotCommitted(CommitFailure::Refused(refusal))) = (intended, &event) else {
        return event;
    };
    // A decision that is not recorded is not reported (G10).
    match store.commit(Batch::from(StoreWrite::decision(LedgerEntry::from_refusal(run, Some(vmid), refusal, at_ms)))).await {
        Ok(_) => event,
        Err(error) => operation::OperationEvent::NotCommitted(CommitFailure::Failed(error.to_string().into())),
    }
}

/// Translates the answer of a store to an event of the operation.
pub fn commit_event(answer: Result<CommitAck, StoreError>) -> operation::OperationEvent {
    match answer {
        Ok(CommitAck::Written { .. }) => operation::OperationEvent::Committed,
        Ok(CommitAck::Repeated { first }) => operation::OperationEvent::NotCommitted(CommitFailure::Repeated(first)),
        Err(StoreError::Refused(StoreRefusal::Record { illegal: IllegalRecord::AlreadyResolved(_), .. })) => {
            operation::OperationEvent::Resolved
        }
        Err(error) => operation::OperationEvent::NotCommitted(commit_failure(&error)),
    }
}

fn commit_failure(error: &StoreError) -> CommitFailure {
    match error {
        StoreError::Refused(StoreRefusal::GuestHeld(hold)) => CommitFailure::Refused(Refusal::guest_held_by_person(&hold.by, &hold.reason)),
        StoreError::Refused(StoreRefusal::GuestTaken { by, .. }) => CommitFailure::Refused(Refusal::guest_held_by_operation(by.as_str())),
        StoreError::Refused(StoreRefusal::Frozen { reason, .. }) => CommitFailure::Refused(Refusal::changes_frozen(reason)),
        StoreError::Refused(StoreRefusal::Name(conflict)) => CommitFailure::Refused(Refusal::name_conflict(conflict)),
        // The key belongs to another request. The journal is fine, and other operations continue.
        StoreError::Refused(StoreRefusal::KeyReused { first, .. }) => CommitFailure::Repeated(first.clone()),
        other => CommitFailure::Failed(other.to_string().into()),
    }
}

/// The worst of several ends, as for the exit status: failed, held, refused, not run, done.
pub fn worst_end(ends: impl Iterator<Item = OperationEnd>) -> OperationEnd {
    let rank = |end: &OperationEnd| match end {
        OperationEnd::Failed => 4,
        OperationEnd::Held => 3,
        OperationEnd::Refused => 2,
        OperationEnd::NotRun => 1,
        OperationEnd::Done => 0,
    };
    ends.max_by_key(rank).unwrap_or(OperationEnd::Done)
}
