//! The handle of an executor: callers submit runs and recoveries while others are in flight, and each gets its own report.
//!
//! A submission is executed even if nobody waits for its report. At most [`OPEN_RUNS_MAX`] runs are open at once.
//!
//! Must not decide which operation starts next (`schedule` does) or how it is executed (`execution` does).

use std::future::Future;
use std::sync::Arc;

use converger_core::apply::{IdempotencyKey, OperationHistory, OperationId, RunId};
use converger_core::approve::ApprovedPlan;
use converger_core::guest::EnvironmentName;
use converger_store::{Store, StoreError};
use thiserror::Error;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, oneshot, watch};

use super::execution::Execution;
use super::{Actuator, EngineError, ExecutionReport, OperationNotice, RunSignal};
use crate::clock::Clock;
use crate::operation::Patience;
use crate::run_machine::RunOptions;
use crate::schedule::ConcurrencyLimits;

/// The maximum number of open runs, counted from the reservation of their slot to their end.
pub const OPEN_RUNS_MAX: usize = 64;

/// Why an executor accepts no run.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotAccepting {
    /// The maximum number of runs is open.
    #[error("{OPEN_RUNS_MAX} runs are open, and no more are accepted at once")]
    TooManyRuns,
    /// The executor was asked to stop, or has stopped.
    #[error("it is stopping")]
    Stopping,
}

/// Called synchronously with the progress of each operation of a submission. It must return at once.
pub type OnNotice = Box<dyn FnMut(OperationNotice<'_>) + Send>;

/// A run to be applied.
pub struct RunSubmission<H> {
    /// The plan. It is moved, so that it cannot be applied twice (G13).
    pub plan: ApprovedPlan,
    /// The run, which the journal has as started for this plan.
    pub run: RunId,
    /// Returns the id of each operation, by its index in the plan.
    pub ids: Box<dyn Fn(usize) -> Option<OperationId> + Send>,
    /// The idempotency key, if the plan is that of a request.
    pub key: Option<IdempotencyKey>,
    /// Sends the requests of its operations.
    pub actuator: Arc<H>,
    /// Options for its operations.
    pub options: RunOptions,
    /// Receives the progress of its operations.
    pub on_notice: OnNotice,
}

/// Operations of an earlier process to be settled by reading.
pub struct RecoverySubmission<H> {
    /// The operations.
    pub unsettled: Unsettled,
    /// Sends the requests.
    pub actuator: Arc<H>,
    /// How long operations wait.
    pub patience: Patience,
    /// Receives the progress.
    pub on_notice: OnNotice,
}

/// The right to submit one run. Released when it is dropped unused, or when the run has ended.
#[derive(Debug)]
pub struct RunSlot {
    _permit: OwnedSemaphorePermit,
}

/// Operations that an earlier process left in flight, or that are held until a read settles them. While this exists, no other recovery
/// starts.
#[derive(Debug)]
pub struct Unsettled {
    histories: Vec<OperationHistory>,
    turn: OwnedMutexGuard<()>,
}

impl Unsettled {
    /// The operations, earliest first.
    #[must_use]
    pub fn histories(&self) -> &[OperationHistory] {
        &self.histories
    }

    pub(super) fn into_parts(self) -> (Vec<OperationHistory>, OwnedMutexGuard<()>) {
        (self.histories, self.turn)
    }
}

/// The current load of an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecutorLoad {
    /// Runs and recoveries that have not ended.
    pub submissions: usize,
    /// Their operations.
    pub operations: usize,
    /// The total size of all its collections; zero when it is idle. For leak checks.
    pub entries: usize,
}

/// A report to wait for. Dropping it cancels nothing.
#[must_use]
#[derive(Debug)]
pub struct PendingReport {
    report: oneshot::Receiver<Result<ExecutionReport, EngineError>>,
}

impl PendingReport {
    /// The report, once all operations of the submission have ended.
    ///
    /// # Errors
    /// There is no report. Nothing was sent, except after [`EngineError::ExecutorLost`].
    pub async fn wait(self) -> Result<ExecutionReport, EngineError> {
        self.report.await.unwrap_or(Err(EngineError::ExecutorLost))
    }
}

/// Messages to the task that owns the run machine.
pub(super) enum Message<H: Actuator> {
    Apply(Box<RunSubmission<H>>, RunSlot, ReplyReport),
    FindUnsettled(oneshot::Sender<Result<Vec<OperationHistory>, StoreError>>),
    Recover(Box<RecoverySubmission<H>>, ReplyReport),
    StopRun(RunId),
    SetLimits(ConcurrencyLimits),
    Measure(oneshot::Sender<ExecutorLoad>),
    Close,
}

pub(super) type ReplyReport = oneshot::Sender<Result<ExecutionReport, EngineError>>;

/// Executes plans of one environment, for as long as the process has its lock. All changes that the program makes go through an executor.
/// Cheap to clone.
#[derive(Debug)]
pub struct Executor<H: Actuator> {
    messages: mpsc::UnboundedSender<Message<H>>,
    slots: Arc<Semaphore>,
    signal: watch::Receiver<RunSignal>,
    recovery: Arc<Mutex<()>>,
}

impl<H: Actuator> Clone for Executor<H> {
    fn clone(&self) -> Self {
        let Self { messages, slots, signal, recovery } = self;
        Self { messages: messages.clone(), slots: Arc::clone(slots), signal: signal.clone(), recovery: Arc::clone(recovery) }
    }
}

impl<H: Actuator> Executor<H> {
    /// Returns an executor and its task, which the caller must spawn. The task ends after [`Executor::close`] or when all clones are
    /// dropped, once nothing is in flight. Move whatever must outlive the operations in flight, such as the environment lock, into the
    /// task.
    pub fn new<S: Store + 'static, C: Clock>(
        environment: EnvironmentName,
        store: Arc<S>,
        clock: Arc<C>,
        limits: ConcurrencyLimits,
        signal: watch::Receiver<RunSignal>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (executor, execution) = Self::parts(environment, store, clock, limits, signal);
        (executor, execution.run())
    }

    pub(super) fn parts<S: Store + 'static, C: Clock>(
        environment: EnvironmentName,
        store: Arc<S>,
        clock: Arc<C>,
        limits: ConcurrencyLimits,
        signal: watch::Receiver<RunSignal>,
    ) -> (Self, Execution<H, S, C>) {
        // Unbounded but short: each slot sends one message, and one caller at a time recovers.
        let (messages, received) = mpsc::unbounded_channel();
        let slots = Arc::new(Semaphore::new(OPEN_RUNS_MAX));
        let execution = Execution::new(environment, store, clock, limits, (received, Arc::clone(&slots), signal.clone()));
        (Self { messages, slots, signal, recovery: Arc::new(Mutex::new(())) }, execution)
    }

    /// Reserves a slot for one run.
    ///
    /// # Errors
    /// Too many runs are open, or a stop was requested.
    pub fn reserve_slot(&self) -> Result<RunSlot, NotAccepting> {
        // Read the signal directly: the task may not have received it yet.
        if *self.signal.borrow() != RunSignal::Continue {
            return Err(NotAccepting::Stopping);
        }
        match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(permit) => Ok(RunSlot { _permit: permit }),
            Err(TryAcquireError::NoPermits) => Err(NotAccepting::TooManyRuns),
            Err(TryAcquireError::Closed) => Err(NotAccepting::Stopping),
        }
    }

    /// Submits a run. It is executed to its end, and its end is recorded, even if nobody waits for the report.
    ///
    /// After a stop its operations are not run, and the report says so.
    pub fn submit(&self, slot: RunSlot, run: RunSubmission<H>) -> PendingReport {
        self.send(|reply| Message::Apply(Box::new(run), slot, reply))
    }

    /// The operations of the environment that must be settled by reading (see [`super::load_unsettled`]), without those that this
    /// executor is executing. Waits until an earlier recovery has ended.
    ///
    /// # Errors
    /// The journal cannot be read, or the executor has stopped.
    pub async fn find_unsettled(&self) -> Result<Unsettled, EngineError> {
        let recovery_guard = Arc::clone(&self.recovery).lock_owned().await;
        let (reply, answer) = oneshot::channel();
        let _ = self.messages.send(Message::FindUnsettled(reply));
        let histories = answer.await.map_err(|_| NotAccepting::Stopping)??;
        Ok(Unsettled { histories, turn: recovery_guard })
    }

    /// Settles operations by reading only. With a short patience, an operation that is still running is held until the next reading, so
    /// that one guest does not delay the others (L4).
    pub fn recover(&self, recovery: RecoverySubmission<H>) -> PendingReport {
        self.send(|reply| Message::Recover(Box::new(recovery), reply))
    }

    /// Starts nothing new of one run; its operations in flight continue to their end. Other runs are not affected.
    pub fn stop_run(&self, run: RunId) {
        let _ = self.messages.send(Message::StopRun(run));
    }

    /// Limits operations that begin from now on, of all runs. Operations in flight go on.
    pub fn set_limits(&self, limits: ConcurrencyLimits) {
        let _ = self.messages.send(Message::SetLimits(limits));
    }

    /// The current load; zero after it has stopped.
    pub async fn measure_load(&self) -> ExecutorLoad {
        let (reply, answer) = oneshot::channel();
        let _ = self.messages.send(Message::Measure(reply));
        answer.await.unwrap_or_default()
    }

    /// Accepts and starts nothing new. The task ends once nothing is in flight.
    pub fn close(&self) {
        self.slots.close();
        let _ = self.messages.send(Message::Close);
    }

    fn send(&self, message: impl FnOnce(ReplyReport) -> Message<H>) -> PendingReport {
        let (reply, report) = oneshot::channel();
        if let Err(mpsc::error::SendError(message)) = self.messages.send(message(reply)) {
            refuse(message);
        }
        PendingReport { report }
    }
}

/// Answers a message that came after the end.
pub(super) fn refuse<H: Actuator>(message: Message<H>) {
    match message {
        Message::Apply(_, _, reply) | Message::Recover(_, reply) => {
            let _ = reply.send(Err(NotAccepting::Stopping.into()));
        }
        Message::FindUnsettled(_) | Message::StopRun(_) | Message::SetLimits(_) | Message::Measure(_) | Message::Close => {}
    }
}
