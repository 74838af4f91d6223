//! The driver: carries out what a [`Drive`](crate::drive::Drive) wants done, over a [`Hand`], a store and a [`Clock`], and feeds back what came of it.
//!
//! It decides nothing. [`Executor`] accepts runs and recoveries while others are in flight; `execution` is the one task that holds the drive. Only what takes
//! time (a request, a commit, a wait) runs beside it, at most one for each operation. What it sees to itself is the journal of the run.
//!
//! What never enters: Proxmox, text for people, and signals of the system; whoever has those says [`Signal`].

mod execution;
mod executor;
mod report;

use std::future::Future;

use converger_core::apply::{
    Answer, Ask, Cause, End, History, Illegal, Operation, OperationId, Outcome, Place, Record, Release, RunId, TaskId, Trouble,
};
use converger_core::approve::ApprovedPlan;
use converger_core::evidence::Entry;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::refusal::Refusal;
use converger_store::{Batch, Filter, LIST_MAX, Receipt, Refused, Standing, Store, StoreError, Write};
use thiserror::Error;

use crate::clock::Clock;
use crate::operation::{self, NotCleared, NotCommitted, Phase};

pub use crate::drive::RunOptions;
pub use executor::{
    Executor, ExecutorLoad, NotAccepting, OPEN_RUNS_MAX, OnNotice, PendingReport, RecoverySubmission, RunSlot, RunSubmission, Unsettled,
};
pub use report::{Report, Reported};

#[cfg(test)]
mod tests;

/// Something that asks an environment one thing at a time, once.
pub trait Hand: Send + Sync + 'static {
    /// The right to send one change. Whoever has it waits for nobody any more.
    type Turn: Send + 'static;

    /// Waits for the turn of a change to this guest, for a bounded time.
    fn turn(&self, place: Place) -> impl Future<Output = Result<Self::Turn, Cause>> + Send;

    /// Sends a change in a turn that was taken before.
    fn send(&self, turn: Self::Turn, ask: Ask) -> impl Future<Output = Answer> + Send;

    /// Asks. It never fails: what could not be asked or read is an answer too.
    fn ask(&self, ask: Ask) -> impl Future<Output = Answer> + Send;
}

/// What is asked of a whole executor while it works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Go on.
    #[default]
    GoOn,
    /// Begin nothing new; what is under way goes on to its end.
    Drain,
    /// Leave everything as it is. The journal knows what was under way, and the next start finds out what became of it.
    Quit,
}

/// An operation is further than before.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'n> {
    /// Which.
    pub operation: &'n Operation,
    /// How far.
    pub phase: Phase,
    /// How it ended, once it has.
    pub outcome: Option<&'n Outcome>,
}

/// Why nothing was carried out.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The journal does not take the run, or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run was started for another plan, or not at all, or is being applied, or is over.
    #[error("the run `{0}` was not started for this plan, or is over; this is a defect of the program")]
    OtherRun(RunId),
    /// No ids were given for the operations of the plan.
    #[error("the operations of the plan have no ids; this is a defect of the program")]
    NoIds,
    /// The executor has stopped.
    #[error(transparent)]
    NotAccepting(#[from] NotAccepting),
    /// The executor ended without an answer. The journal has what was in flight, and the next start recovers it.
    #[error(
        "the executor ended while the run was being applied; this is a defect of the program, and the next start recovers what was in flight"
    )]
    ExecutorLost,
}

/// The journal has the run as started for this plan: without that every intent would be refused.
async fn check_started(store: &impl Store, plan: &ApprovedPlan, run: &RunId) -> Result<(), EngineError> {
    let found = store.run(run.clone()).await?;
    let is_its_own = found.is_some_and(|found| found.run.plan == plan.digest() && found.ended.is_none());
    if is_its_own { Ok(()) } else { Err(EngineError::OtherRun(run.clone())) }
}

/// What the journal has of an environment that must be found out by reading: what has no end, and what is held until a reading
/// tells. The earliest first.
///
/// # Errors
/// The journal cannot be read.
pub async fn unsettled(store: &impl Store, environment: &EnvironmentName) -> Result<Vec<History>, StoreError> {
    let mut found = store.open_operations(environment.clone()).await?;
    let mut before = None;
    loop {
        let filter =
            Filter { environment: Some(environment.clone()), standing: Some(Standing::Held), before: before.clone(), ..Filter::default() };
        let page = store.operations(filter, LIST_MAX).await?;
        before = page.last().map(|history| history.operation.id.clone());
        let is_last = page.len() < LIST_MAX as usize;
        let is_readable = |history: &History| matches!(&history.ended, Some((Outcome::Held { release: Release::Reading, .. }, _)));
        found.extend(page.into_iter().filter(is_readable));
        if is_last {
            break;
        }
    }
    found.sort_by_key(|history| history.at_ms);
    Ok(found)
}

/// What a store says about sending a change to a guest: whether somebody holds it or froze the environment.
pub async fn cleared(store: &impl Store, environment: EnvironmentName, vmid: Vmid) -> operation::Event {
    let said = async {
        let freeze = store.freeze(environment.clone()).await?.map(|freeze| Refusal::frozen(&freeze.reason));
        let hold = store.holds(environment).await?.into_iter().find(|hold| hold.vmid == vmid);
        Ok::<_, StoreError>(freeze.or_else(|| hold.map(|hold| Refusal::guest_held_by(&hold.by, &hold.reason))))
    };
    match said.await {
        Ok(None) => operation::Event::Cleared,
        Ok(Some(refusal)) => operation::Event::NotCleared(NotCleared::Refused(refusal)),
        Err(error) => operation::Event::NotCleared(NotCleared::Failed(error.to_string().into())),
    }
}

/// What a last word is worth that is heard late: a no stays one, and everything else is asked anew.
fn outlived(event: operation::Event) -> operation::Event {
    match event {
        operation::Event::Cleared => {
            let cause = Cause::new(Trouble::Busy, "too-slow", "the last word before it was sent was old when it was heard");
            operation::Event::NotCleared(NotCleared::NoRoom(cause))
        }
        no => no,
    }
}

/// Which of these tasks a store has as those of other operations than this one.
pub async fn taken(store: &impl Store, environment: EnvironmentName, id: &OperationId, tasks: Vec<TaskId>) -> operation::Event {
    match store.tasked(environment, tasks).await {
        Ok(known) => operation::Event::Taken(known.into_iter().filter(|(_, by)| by != id).map(|(task, _)| task).collect()),
        Err(error) => operation::Event::NotTold(error.to_string().into()),
    }
}

/// The mark that an operation may have been sent from here on.
fn mark(clock: &impl Clock, id: OperationId) -> Record {
    Record::Sending { id, at_ms: clock.now_ms(), up_ms: clock.uptime().map_or(0, |uptime| uptime.ms) }
}

/// Writes a record down. What the journal decides against is a decision too, and has its entry.
async fn recorded(store: &impl Store, record: Record) -> operation::Event {
    let intended = match &record {
        Record::Intent { operation, at_ms } => Some((operation.run.clone(), operation.guest.vmid, *at_ms)),
        _ => None,
    };
    let event = committed(store.commit(Batch::from(record)).await);
    let (Some((run, vmid, at_ms)), operation::Event::NotCommitted(NotCommitted::Refused(refusal))) = (intended, &event) else {
        return event;
    };
    // Nobody is told of a decision that is not written down (G10).
    match store.commit(Batch::from(Write::decision(Entry::refused(run, Some(vmid), refusal, at_ms)))).await {
        Ok(_) => event,
        Err(error) => operation::Event::NotCommitted(NotCommitted::Failed(error.to_string().into())),
    }
}

/// What a store's answer to a record means to the operation that it is of.
pub fn committed(answer: Result<Receipt, StoreError>) -> operation::Event {
    match answer {
        Ok(Receipt::Written { .. }) => operation::Event::Committed,
        Ok(Receipt::Repeated { first }) => operation::Event::NotCommitted(NotCommitted::Repeated(first)),
        Err(StoreError::Refused(Refused::Record { illegal: Illegal::AlreadyResolved(_), .. })) => operation::Event::Resolved,
        Err(error) => operation::Event::NotCommitted(not_committed(&error)),
    }
}

fn not_committed(error: &StoreError) -> NotCommitted {
    match error {
        StoreError::Refused(Refused::GuestHeld(hold)) => NotCommitted::Refused(Refusal::guest_held_by(&hold.by, &hold.reason)),
        StoreError::Refused(Refused::GuestTaken { by, .. }) => NotCommitted::Refused(Refusal::guest_taken_by(by.as_str())),
        StoreError::Refused(Refused::Frozen { reason, .. }) => NotCommitted::Refused(Refusal::frozen(reason)),
        StoreError::Refused(Refused::Name(conflict)) => NotCommitted::Refused(Refusal::name_conflict(conflict)),
        // Under this key another request was carried out: nothing is wrong with the journal, and others go on.
        StoreError::Refused(Refused::KeyReused { first, .. }) => NotCommitted::Repeated(first.clone()),
        other => NotCommitted::Failed(other.to_string().into()),
    }
}

/// The worst of several ends, as the exit code has it: failed, held, refused, not run, done.
pub fn worst(ends: impl Iterator<Item = End>) -> End {
    let rank = |end: &End| match end {
        End::Failed => 4,
        End::Held => 3,
        End::Refused => 2,
        End::NotRun => 1,
        End::Done => 0,
    };
    ends.max_by_key(rank).unwrap_or(End::Done)
}
