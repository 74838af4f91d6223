//! The task of an executor: owns the run machine, executes its commands, and answers each submission with its report.
//!
//! Two kinds of work run in other tasks. Work of operations (requests, commits, waits) is dropped on `RunSignal::Leave`: the journal has
//! their intents. Bookkeeping of runs (whether a run was started, its end) is always finished.
//!
//! Must not decide about operations (`run_machine` does).

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use converger_core::apply::{CheckContext, Operation, OperationHistory, OperationId, RunId};
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_store::{Batch, Store, StoreError, StoreWrite};
use tokio::sync::{OwnedMutexGuard, Semaphore, mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use super::handle::{ExecutorLoad, Message, OnNotice, RecoverySubmission, ReplyReport, RunSlot, RunSubmission, refuse};
use super::{
    Actuator, EngineError, OperationNotice, RunSignal, check_holds, check_started, commit_event, expire_hold_check, find_task_owners,
    load_unsettled, sending_record, write_record,
};
use crate::clock::{Clock, MonotonicClock};
use crate::operation::{self, Phase, SendBlock};
use crate::run_machine::{RunEffect, RunMachine, RunOptions, SubmissionId};
use crate::schedule::ConcurrencyLimits;

/// A hold check that is older than this does not count: a process that was paused in between must learn of holds that were set in the
/// meantime (decision 0017).
const LAST_WORD_MS: u64 = 2_000;

/// The result of work for an operation.
enum Completion<T> {
    Event(OperationId, operation::OperationEvent),
    /// A permit, and the result of the hold check that was started at this monotonic time.
    Cleared(OperationId, operation::OperationEvent, T, u64),
}

/// The result of bookkeeping.
enum Bookkeeping<H: Actuator> {
    /// Whether a run may be applied.
    Started(Box<RunSubmission<H>>, RunSlot, ReplyReport, Result<(), EngineError>),
    /// The unsettled operations in the journal.
    Read(Result<Vec<OperationHistory>, StoreError>, oneshot::Sender<Result<Vec<OperationHistory>, StoreError>>),
    /// The end of a run is recorded, or cannot be.
    Ended(RunId),
}

/// The next input of the task.
enum Input<H: Actuator> {
    Signal,
    Message(Option<Message<H>>),
    Completed(Result<Completion<H::Permit>, JoinError>),
    Bookkept(Result<Bookkeeping<H>, JoinError>),
}

/// A submission that has not ended.
pub(super) struct OpenSubmission<H> {
    actuator: Arc<H>,
    on_notice: OnNotice,
    reply: ReplyReport,
    kind: SubmissionKind,
}

enum SubmissionKind {
    Run(RunId, RunSlot),
    /// Blocks other recoveries until it has ended.
    Recovery {
        _turn: OwnedMutexGuard<()>,
    },
}

/// The sources of messages and signals, and the slots of runs.
type Inlets<H> = (mpsc::UnboundedReceiver<Message<H>>, Arc<Semaphore>, watch::Receiver<RunSignal>);

/// The task of an executor.
pub(super) struct Execution<H: Actuator, S, C> {
    environment: EnvironmentName,
    store: Arc<S>,
    clock: Arc<C>,
    drive: RunMachine,
    steady: MonotonicClock,
    open: BTreeMap<SubmissionId, OpenSubmission<H>>,
    /// Runs, from their submission until their end is recorded.
    runs: BTreeSet<RunId>,
    /// The permits of operations that are about to send.
    permits: BTreeMap<OperationId, H::Permit>,
    in_flight: JoinSet<Completion<H::Permit>>,
    bookkeeping: JoinSet<Bookkeeping<H>>,
    messages: mpsc::UnboundedReceiver<Message<H>>,
    slots: Arc<Semaphore>,
    signal: watch::Receiver<RunSignal>,
    obeyed: RunSignal,
    /// Ends when the signal changes.
    listening: JoinSet<()>,
    /// The task ends once nothing is in flight.
    is_closing: bool,
    /// All handles are dropped, so nothing more can be submitted.
    is_disconnected: bool,
    /// Nothing is executed any more; the next start recovers operations in flight.
    is_left: bool,
}

impl<H: Actuator, S: Store + 'static, C: Clock> Execution<H, S, C> {
    pub(super) fn new(environment: EnvironmentName, store: Arc<S>, clock: Arc<C>, limits: ConcurrencyLimits, inlets: Inlets<H>) -> Self {
        let (messages, slots, signal) = inlets;
        Self {
            environment,
            store,
            clock,
            drive: RunMachine::new(limits),
            steady: MonotonicClock::default(),
            open: BTreeMap::new(),
            runs: BTreeSet::new(),
            permits: BTreeMap::new(),
            in_flight: JoinSet::new(),
            bookkeeping: JoinSet::new(),
            messages,
            slots,
            signal,
            obeyed: RunSignal::Continue,
            listening: JoinSet::new(),
            is_closing: false,
            is_disconnected: false,
            is_left: false,
        }
    }

    /// Runs until it is closed or all handles are dropped, and nothing is in flight.
    pub(super) async fn run(mut self) {
        self.listen();
        self.obey_signal();
        while !self.has_ended() {
            let input = poll_fn(|context| self.poll_input(context)).await;
            // A stop that was requested earlier already applies to this input.
            self.obey_signal();
            match input {
                Input::Signal => self.listen(),
                Input::Message(Some(message)) => self.receive(message),
                Input::Message(None) => (self.is_closing, self.is_disconnected) = (true, true),
                Input::Completed(Ok(completion)) => self.feed(completion),
                Input::Bookkept(Ok(bookkept)) => self.continue_submission(bookkept),
                // A panic in another task is a defect: nothing is known about its operation, and the journal makes stopping safe.
                Input::Completed(Err(_)) | Input::Bookkept(Err(_)) => self.leave(),
            }
        }
        self.messages.close();
        while let Ok(message) = self.messages.try_recv() {
            refuse(message);
        }
    }

    fn has_ended(&self) -> bool {
        self.is_closing && self.open.is_empty() && self.bookkeeping.is_empty()
    }

    /// Signals come before submissions, and submissions before completed work.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<Input<H>> {
        if let Poll::Ready(Some(_)) = self.listening.poll_join_next(context) {
            return Poll::Ready(Input::Signal);
        }
        if !self.is_disconnected
            && let Poll::Ready(message) = self.messages.poll_recv(context)
        {
            return Poll::Ready(Input::Message(message));
        }
        if let Poll::Ready(Some(bookkept)) = self.bookkeeping.poll_join_next(context) {
            return Poll::Ready(Input::Bookkept(bookkept));
        }
        match self.in_flight.poll_join_next(context) {
            Poll::Ready(Some(completed)) => Poll::Ready(Input::Completed(completed)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn now_ms(&mut self) -> u64 {
        self.steady.advance(self.clock.now_ms(), self.clock.monotonic_ms())
    }

    fn listen(&mut self) {
        let mut signal = self.signal.clone();
        self.listening.spawn(async move {
            // The sender is gone, so no signal will come.
            if signal.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        });
    }

    fn obey_signal(&mut self) {
        let signal = *self.signal.borrow_and_update();
        if signal <= self.obeyed {
            return;
        }
        self.obeyed = signal;
        self.stop();
        if signal == RunSignal::Leave {
            self.leave();
        }
    }

    fn receive(&mut self, message: Message<H>) {
        match message {
            Message::Apply(submission, slot, reply) => self.start_run(submission, slot, reply),
            Message::Recover(recovery, reply) => self.start_recovery(*recovery, reply),
            Message::FindUnsettled(reply) => self.find_unsettled(reply),
            Message::StopRun(run) => {
                let now_ms = self.now_ms();
                let effects = self.drive.stop_run(run, FailureCode::RunStopped, now_ms);
                self.follow(effects);
            }
            Message::SetLimits(limits) => {
                let now_ms = self.now_ms();
                let effects = self.drive.set_limits(limits, now_ms);
                self.follow(effects);
            }
            Message::Measure(reply) => {
                let _ = reply.send(self.load());
            }
            Message::Close => {
                self.is_closing = true;
                self.stop();
            }
        }
    }

    fn load(&self) -> ExecutorLoad {
        let tasks = self.in_flight.len() + self.bookkeeping.len();
        let entries = self.drive.entry_count() + self.open.len() + self.runs.len() + self.permits.len() + tasks;
        ExecutorLoad { submissions: self.open.len(), operations: self.drive.operation_count(), entries }
    }

    fn start_run(&mut self, submission: Box<RunSubmission<H>>, slot: RunSlot, reply: ReplyReport) {
        if !self.runs.insert(submission.run.clone()) {
            let _ = reply.send(Err(EngineError::RunMismatch(submission.run)));
            return;
        }
        let store = Arc::clone(&self.store);
        self.bookkeeping.spawn(async move {
            let started = check_started(&*store, &submission.plan, &submission.run).await;
            Bookkeeping::Started(submission, slot, reply, started)
        });
    }

    fn find_unsettled(&mut self, reply: oneshot::Sender<Result<Vec<OperationHistory>, StoreError>>) {
        self.drive.start_journal_reading();
        let (store, environment) = (Arc::clone(&self.store), self.environment.clone());
        self.bookkeeping.spawn(async move { Bookkeeping::Read(load_unsettled(&*store, &environment).await, reply) });
    }

    fn continue_submission(&mut self, bookkept: Bookkeeping<H>) {
        match bookkept {
            Bookkeeping::Started(submission, slot, reply, Ok(())) => self.submit_plan(*submission, slot, reply),
            Bookkeeping::Started(submission, _, reply, Err(error)) => self.refuse_run(&submission.run, reply, error),
            Bookkeeping::Read(found, reply) => {
                let (found, error) = found.map_or_else(|error| (Vec::new(), Some(error)), |found| (found, None));
                let found = self.drive.end_journal_reading(found);
                let _ = reply.send(error.map_or(Ok(found), Err));
            }
            Bookkeeping::Ended(run) => {
                self.runs.remove(&run);
            }
        }
    }

    fn refuse_run(&mut self, run: &RunId, reply: ReplyReport, error: EngineError) {
        self.runs.remove(run);
        let _ = reply.send(Err(error));
    }

    fn submit_plan(&mut self, submission: RunSubmission<H>, slot: RunSlot, reply: ReplyReport) {
        let RunSubmission { plan, run, ids, key, actuator, options, on_notice } = submission;
        let Some(operations) = plan.into_operations(&run, ids, key.as_ref()) else {
            return self.refuse_run(&run, reply, EngineError::MissingIds);
        };
        self.submit(operations, options, OpenSubmission { actuator, on_notice, reply, kind: SubmissionKind::Run(run, slot) });
    }

    fn submit(&mut self, operations: Vec<(Operation, CheckContext)>, options: RunOptions, submission: OpenSubmission<H>) {
        let now_ms = self.now_ms();
        let submitted = self.drive.submit(operations, options, now_ms);
        self.open(submission, submitted);
    }

    fn start_recovery(&mut self, recovery: RecoverySubmission<H>, reply: ReplyReport) {
        let RecoverySubmission { unsettled, actuator, patience, on_notice } = recovery;
        let (histories, recovery_guard) = unsettled.into_parts();
        let submission = OpenSubmission { actuator, on_notice, reply, kind: SubmissionKind::Recovery { _turn: recovery_guard } };
        let (uptime, now_ms) = (self.clock.uptime(), self.now_ms());
        let submitted = self.drive.recover(histories, patience, uptime.as_ref(), now_ms);
        self.open(submission, submitted);
    }

    fn open(&mut self, submission: OpenSubmission<H>, (id, effects): (SubmissionId, Vec<RunEffect>)) {
        self.open.insert(id, submission);
        self.follow(effects);
        if self.is_left {
            self.end_submission(id);
        }
    }

    fn feed(&mut self, completion: Completion<H::Permit>) {
        match completion {
            Completion::Event(id, event) => {
                let now_ms = self.now_ms();
                let effects = self.drive.feed(&id, event, now_ms);
                self.follow(effects);
            }
            Completion::Cleared(id, event, permit, asked_ms) => {
                let age_ms = self.clock.monotonic_ms().saturating_sub(asked_ms);
                self.permits.insert(id.clone(), permit);
                let now_ms = self.now_ms();
                let effects = self.drive.feed(&id, if age_ms > LAST_WORD_MS { expire_hold_check(event) } else { event }, now_ms);
                self.follow(effects);
                // An operation that does not send releases its permit.
                self.permits.remove(&id);
            }
        }
    }

    /// Starts nothing new.
    fn stop(&mut self) {
        let now_ms = self.now_ms();
        let effects = self.drive.stop(FailureCode::RunStopped, now_ms);
        self.follow(effects);
    }

    /// Drops the work in flight: a dropped request may have arrived, and the journal has its intent.
    fn leave(&mut self) {
        self.is_left = true;
        self.slots.close();
        self.stop();
        self.in_flight = JoinSet::new();
        let open: Vec<SubmissionId> = self.open.keys().copied().collect();
        open.into_iter().for_each(|submission| self.end_submission(submission));
    }

    fn follow(&mut self, effects: Vec<RunEffect>) {
        for effect in effects {
            match effect {
                RunEffect::Begun(_) => {}
                RunEffect::PhaseReached(id, phase) => self.notify(&id, phase),
                RunEffect::Execute(id, command) => self.carry_out(id, command),
                RunEffect::SubmissionEnded(submission) => self.end_submission(submission),
            }
        }
    }

    fn notify(&mut self, id: &OperationId, phase: Phase) {
        let Some(state) = self.drive.operation_state(id) else { return };
        let outcome = self.drive.outcome(id).filter(|_| phase == Phase::Ended);
        let submission = self.drive.submission_of(id).and_then(|submission| self.open.get_mut(&submission));
        if let Some(OpenSubmission { on_notice, .. }) = submission {
            on_notice(OperationNotice { operation: state.operation(), phase, outcome });
        }
    }

    /// Forgets a submission and answers it. The end of a run is recorded first, even if nobody waits for the report.
    fn end_submission(&mut self, id: SubmissionId) {
        let Some(OpenSubmission { reply, kind, .. }) = self.open.remove(&id) else { return };
        let report = self.drive.take_report(id);
        match kind {
            SubmissionKind::Recovery { .. } => {
                let _ = reply.send(Ok(report));
            }
            SubmissionKind::Run(run, slot) => {
                let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
                self.bookkeeping.spawn(async move {
                    let run_ended = StoreWrite::RunEnded { id: run.clone(), end: report.end(), at_ms: clock.now_ms() };
                    // A run whose end cannot be recorded has ended anyway, and each operation has its own outcome.
                    let _ = store.commit(Batch::from(run_ended)).await;
                    drop(slot);
                    let _ = reply.send(Ok(report));
                    Bookkeeping::Ended(run)
                });
            }
        }
    }

    /// Executes a command in another task, so that this one never waits.
    fn carry_out(&mut self, id: OperationId, command: operation::OperationCommand) {
        let submission = self.drive.submission_of(&id).and_then(|submission| self.open.get(&submission));
        let Some(actuator) = submission.map(|submission| Arc::clone(&submission.actuator)).filter(|_| !self.is_left) else { return };
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        match command {
            operation::OperationCommand::Commit(record) => {
                self.in_flight.spawn(async move { Completion::Event(id, write_record(&*store, *record).await) });
            }
            operation::OperationCommand::Mark => {
                let mark = sending_record(&*clock, id.clone());
                self.in_flight.spawn(async move { Completion::Event(id, commit_event(store.commit(Batch::from(mark)).await)) });
            }
            operation::OperationCommand::RecheckHolds => self.clear(id, actuator),
            operation::OperationCommand::FindTaskOwners(tasks) => {
                let environment = self.environment.clone();
                self.in_flight.spawn(async move {
                    let event = find_task_owners(&*store, environment, &id, tasks).await;
                    Completion::Event(id, event)
                });
            }
            operation::OperationCommand::Request(request) => {
                // An operation that reads again instead of sending releases its permit.
                let permit = self.permits.remove(&id).filter(|_| request.is_mutation());
                self.in_flight.spawn(async move {
                    let answer = match permit {
                        Some(permit) => actuator.send(permit, request).await,
                        None => actuator.request(request).await,
                    };
                    Completion::Event(id, operation::OperationEvent::Responded(answer))
                });
            }
            operation::OperationCommand::Wait(ms) => {
                self.in_flight.spawn(async move {
                    clock.sleep(ms).await;
                    Completion::Event(id, operation::OperationEvent::Woken)
                });
            }
        }
    }

    /// The final hold check before a change is sent. It starts once the permit is available, so that nothing is waited for between check
    /// and sending (decision 0017).
    fn clear(&mut self, id: OperationId, actuator: Arc<H>) {
        let Some(state) = self.drive.operation_state(&id) else { return };
        let (store, clock) = (Arc::clone(&self.store), Arc::clone(&self.clock));
        let (address, environment) = (state.address().clone(), state.operation().environment.clone());
        let guests = state.operation().occupied_guests().collect();
        self.in_flight.spawn(async move {
            match actuator.acquire_permit(address).await {
                Ok(permit) => {
                    let asked_ms = clock.monotonic_ms();
                    Completion::Cleared(id, check_holds(&*store, environment, guests).await, permit, asked_ms)
                }
                Err(cause) => Completion::Event(id, operation::OperationEvent::SendBlocked(SendBlock::NodeBusy(cause))),
            }
        });
    }
}

#[cfg(test)]
impl<H: Actuator, S: Store + 'static, C: Clock> Execution<H, S, C> {
    /// Submits operations without a plan.
    pub(super) fn submit_operations(
        &mut self,
        operations: Vec<(Operation, CheckContext)>,
        run: RunId,
        slot: RunSlot,
        actuator: Arc<H>,
    ) -> oneshot::Receiver<Result<super::ExecutionReport, EngineError>> {
        let (reply, report) = oneshot::channel();
        let submission = OpenSubmission { actuator, on_notice: Box::new(|_| ()), reply, kind: SubmissionKind::Run(run, slot) };
        self.submit(operations, RunOptions::default(), submission);
        report
    }
}
