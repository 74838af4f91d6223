//! All runs of one executor, as a pure state machine that combines the schedule and the operations: events go in, commands come out.
//!
//! It handles what concerns more than one operation: an operation whose guest moved waits for a slot on the new node, nothing is sent
//! once the journal cannot be written (decision 0012) or a stop was requested, and each operation is reported in the end. The executor adds
//! an actuator, a store and a clock; a simulation uses the same machine with others.
//!
//! Work is accepted while other work is in flight. A submission is one run or one recovery. When its last operation has ended, the
//! machine emits [`RunEffect::SubmissionEnded`], and [`RunMachine::take_report`] forgets it. Memory is bounded by what is in flight and
//! queued.
//!
//! Must not depend on clocks, stores, actuators or threads.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::apply::{
    CheckContext, EnvFault, EnvFaultKind, EnvResponse, Evidence, Operation, OperationHistory, OperationId, Outcome, RunId, SendResult,
    Uptime, birth_marks_of,
};
use converger_core::failure::FailureCode;
use converger_core::guest::GuestIdentity;

use crate::executor::{ExecutionReport, OperationReport};
use crate::operation::{self, CommitFailure, OperationCommand, OperationEvent, Patience, Phase, SendBlock};
use crate::schedule::{self, ConcurrencyLimits, OnFailure, ScheduleItem, StopScope};

#[cfg(test)]
mod tests;

/// Identifies a run or a recovery that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubmissionId(u64);

/// Options for the operations of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// What a failure means for the rest of the run.
    pub on_failure: OnFailure,
    /// How long operations wait.
    pub patience: Patience,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { on_failure: OnFailure::Continue, patience: Patience::default() }
    }
}

/// The effects of an event, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEffect {
    /// An operation has started.
    Begun(OperationId),
    /// An operation has reached this phase. One that will never start reaches the last phase, too.
    PhaseReached(OperationId, Phase),
    /// Execute this command for an operation and feed the result back.
    Execute(OperationId, OperationCommand),
    /// All operations of a submission have ended: [`RunMachine::take_report`] returns its report.
    SubmissionEnded(SubmissionId),
}

/// All operations that are in flight or queued.
#[derive(Clone, Debug)]
pub struct RunMachine {
    schedule: schedule::ScheduleState,
    /// The number of submissions so far.
    made: u64,
    submissions: BTreeMap<SubmissionId, Submission>,
    operations: BTreeMap<OperationId, TrackedOperation>,
    /// The operations that this process has had since the current read of the journal began; `None` if none is in progress. The journal
    /// may show them without an end, so recovery must not treat them as left behind by another process.
    own: Option<BTreeSet<OperationId>>,
    /// The effects of the current event.
    effects: Vec<RunEffect>,
}

/// Operations that are submitted together and reported together.
#[derive(Clone, Debug, Default)]
struct Submission {
    /// In the order of the plan.
    order: Vec<OperationId>,
    /// The number of operations that have not ended.
    open: usize,
    /// A record could not be written while the submission was open: nothing more of it is sent, even if a later write succeeds.
    is_journal_lost: bool,
}

/// One operation of the machine.
#[derive(Clone, Debug)]
struct TrackedOperation {
    state: operation::OperationState,
    submission: SubmissionId,
    /// It has ended or will never start, and its submission has counted that.
    is_closed: bool,
    began_ms: Option<u64>,
    ended_ms: Option<u64>,
    /// Why it never started.
    not_run: Option<Outcome>,
    /// The command to continue with once there is a slot on the node to which the guest moved.
    parked: Option<OperationCommand>,
}

impl RunMachine {
    /// An idle machine with these limits.
    #[must_use]
    pub fn new(limits: ConcurrencyLimits) -> Self {
        let (submissions, held) = (BTreeMap::new(), BTreeMap::new());
        Self { schedule: schedule::ScheduleState::new(limits), made: 0, submissions, operations: held, own: None, effects: Vec::new() }
    }

    /// Starts a read of the journal for operations that an earlier process left in flight.
    pub fn start_journal_reading(&mut self) {
        self.own = Some(self.operations.keys().cloned().collect());
    }

    /// Ends the read and removes the operations that this process executed in the meantime. Their intents may have no end in what was
    /// read, and recovery would mistake them for operations of a process that died.
    #[must_use]
    pub fn end_journal_reading(&mut self, mut found: Vec<OperationHistory>) -> Vec<OperationHistory> {
        let own = self.own.take().unwrap_or_default();
        found.retain(|history| !own.contains(history.id()) && !self.operations.contains_key(history.id()));
        found
    }

    /// Recovers these operations by reading. Operations that are already known are skipped: this process is executing them.
    #[must_use]
    pub fn recover(
        &mut self,
        unsettled: Vec<OperationHistory>,
        patience: Patience,
        uptime: Option<&Uptime>,
        now_ms: u64,
    ) -> (SubmissionId, Vec<RunEffect>) {
        let recover = |history| operation::OperationState::recover(history, patience, uptime);
        let states = unsettled.into_iter().filter_map(recover).collect();
        self.accept(states, ScheduleItem::for_recovered, now_ms)
    }

    /// Executes these operations.
    #[must_use]
    pub fn submit(
        &mut self,
        operations: Vec<(Operation, CheckContext)>,
        options: RunOptions,
        now_ms: u64,
    ) -> (SubmissionId, Vec<RunEffect>) {
        let RunOptions { on_failure, patience } = options;
        let states =
            operations.into_iter().map(|(operation, context)| operation::OperationState::new(operation, context, patience)).collect();
        self.accept(states, |operation| ScheduleItem::for_operation(operation, on_failure), now_ms)
    }

    /// Feeds the result of a command for an operation.
    #[must_use]
    pub fn feed(&mut self, id: &OperationId, event: OperationEvent, now_ms: u64) -> Vec<RunEffect> {
        self.step_operation(id, event, now_ms);
        self.take_effects()
    }

    /// Starts nothing new of any run.
    #[must_use]
    pub fn stop(&mut self, code: FailureCode, now_ms: u64) -> Vec<RunEffect> {
        self.feed_schedule(schedule::ScheduleEvent::Stop { scope: StopScope::Everything, code }, now_ms);
        self.take_effects()
    }

    /// Starts nothing new of this run.
    #[must_use]
    pub fn stop_run(&mut self, run: RunId, code: FailureCode, now_ms: u64) -> Vec<RunEffect> {
        self.feed_schedule(schedule::ScheduleEvent::Stop { scope: StopScope::Run(run), code }, now_ms);
        self.take_effects()
    }

    /// Limits operations that begin from now on.
    #[must_use]
    pub fn set_limits(&mut self, limits: ConcurrencyLimits, now_ms: u64) -> Vec<RunEffect> {
        self.feed_schedule(schedule::ScheduleEvent::SetLimits(limits), now_ms);
        self.take_effects()
    }

    /// Whether nothing is in flight or queued.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.schedule.is_idle()
    }

    /// The number of operations in flight.
    #[must_use]
    pub fn in_flight_count(&self) -> u32 {
        self.schedule.in_flight_count()
    }

    /// The current state of an operation.
    #[must_use]
    pub fn operation_state(&self, id: &OperationId) -> Option<&operation::OperationState> {
        self.operations.get(id).map(|held| &held.state)
    }

    /// The outcome of an operation, once it has ended or will never start.
    #[must_use]
    pub fn outcome(&self, id: &OperationId) -> Option<&Outcome> {
        let held = self.operations.get(id)?;
        held.not_run.as_ref().or_else(|| held.state.outcome())
    }

    /// The submission that an operation belongs to.
    #[must_use]
    pub fn submission_of(&self, id: &OperationId) -> Option<SubmissionId> {
        self.operations.get(id).map(|held| held.submission)
    }

    /// Returns the report of a submission and forgets it. Operations that have not ended are reported as they are.
    #[must_use]
    pub fn take_report(&mut self, submission: SubmissionId) -> ExecutionReport {
        let Submission { order, .. } = self.submissions.remove(&submission).unwrap_or_default();
        let mut reported = Vec::with_capacity(order.len());
        for id in order {
            let Some(TrackedOperation { state, began_ms, ended_ms, not_run, .. }) = self.operations.remove(&id) else { continue };
            reported.push(OperationReport::new(&state, not_run, began_ms, ended_ms));
        }
        ExecutionReport::new(reported)
    }

    /// The number of known operations: queued, in flight, or part of a submission that has not ended.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.operations.len()
    }

    /// The total size of all collections; zero once every report was taken. For leak checks.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        let own = self.own.as_ref().map_or(0, BTreeSet::len);
        self.schedule.entry_count() + self.submissions.len() + self.operations.len() + own + self.effects.len()
    }

    fn take_effects(&mut self) -> Vec<RunEffect> {
        std::mem::take(&mut self.effects)
    }

    /// Adds operations; ids that are already known are skipped.
    fn accept(
        &mut self,
        states: Vec<operation::OperationState>,
        item: impl Fn(&Operation) -> ScheduleItem,
        now_ms: u64,
    ) -> (SubmissionId, Vec<RunEffect>) {
        let submission = SubmissionId(self.made);
        self.made += 1;
        self.submissions.insert(submission, Submission::default());
        let mut items = Vec::with_capacity(states.len());
        for state in states {
            let item = item(state.operation());
            if self.track_operation(state, submission) {
                items.push(item);
            }
        }
        self.feed_schedule(schedule::ScheduleEvent::Submit(items), now_ms);
        // An empty submission ends at once.
        if self.submissions.get(&submission).is_some_and(|submission| submission.order.is_empty()) {
            self.effects.push(RunEffect::SubmissionEnded(submission));
        }
        (submission, self.take_effects())
    }

    fn track_operation(&mut self, state: operation::OperationState, submission: SubmissionId) -> bool {
        let id = state.operation().id.clone();
        let Some(own) = self.submissions.get_mut(&submission).filter(|_| !self.operations.contains_key(&id)) else { return false };
        own.order.push(id.clone());
        own.open += 1;
        self.own.as_mut().map(|own| own.insert(id.clone()));
        let held = TrackedOperation { state, submission, is_closed: false, began_ms: None, ended_ms: None, not_run: None, parked: None };
        self.operations.insert(id, held);
        true
    }

    /// Marks an operation as ended or never to be started.
    fn close(&mut self, id: &OperationId) {
        let Some(held) = self.operations.get_mut(id).filter(|held| !held.is_closed) else { return };
        held.is_closed = true;
        let Some(submission) = self.submissions.get_mut(&held.submission) else { return };
        submission.open = submission.open.saturating_sub(1);
        if submission.open == 0 {
            self.effects.push(RunEffect::SubmissionEnded(held.submission));
        }
    }

    fn feed_schedule(&mut self, event: schedule::ScheduleEvent, now_ms: u64) {
        let state = std::mem::replace(&mut self.schedule, schedule::ScheduleState::new(ConcurrencyLimits::default()));
        let (state, commands) = schedule::step(state, event);
        self.schedule = state;
        for command in commands {
            match command {
                schedule::ScheduleCommand::Begin(id) => self.step_operation(&id, OperationEvent::Begin, now_ms),
                schedule::ScheduleCommand::Resume(id) => {
                    if let Some(command) = self.operations.get_mut(&id).and_then(|held| held.parked.take()) {
                        self.dispatch_command(&id, command, now_ms);
                    }
                }
                schedule::ScheduleCommand::NotRun { id, code, evidence } => self.mark_not_run(id, code, evidence),
            }
        }
    }

    fn mark_not_run(&mut self, id: OperationId, code: FailureCode, evidence: Evidence) {
        let Some(held) = self.operations.get_mut(&id) else { return };
        held.not_run = Some(Outcome::new_not_run(code, evidence));
        self.effects.push(RunEffect::PhaseReached(id.clone(), Phase::Ended));
        self.close(&id);
    }

    /// Makes one transition of an operation and dispatches its command.
    fn step_operation(&mut self, id: &OperationId, event: OperationEvent, now_ms: u64) {
        let event = self.override_when_stopped(id, event);
        let Some(held) = self.operations.get_mut(id) else { return };
        let is_journal_lost = matches!(&event, OperationEvent::NotCommitted(CommitFailure::Failed(_)));
        if is_journal_lost {
            // Later submissions find out with their own intents whether the journal can be written again.
            self.submissions.values_mut().for_each(|submission| submission.is_journal_lost = true);
        }
        if held.began_ms.is_none() {
            held.began_ms = Some(now_ms);
            self.effects.push(RunEffect::Begun(id.clone()));
        }
        let before = held.state.phase();
        let command = held.state.handle_event(event, now_ms);
        if held.state.phase() != before {
            self.effects.push(RunEffect::PhaseReached(id.clone(), held.state.phase()));
        }
        let end = held.state.outcome().map(Outcome::end);
        let born = held.state.outcome().and_then(|outcome| birth_marks_of(held.state.operation(), outcome));
        held.ended_ms = end.map(|_| now_ms);
        let new_node = self.schedule.node_of(id).and_then(|counted| held.state.moved_node(counted));
        match (command, new_node) {
            (Some(command), Some(node)) => {
                held.parked = Some(command);
                self.feed_schedule(schedule::ScheduleEvent::Moved { id: id.clone(), node }, now_ms);
            }
            (Some(command), None) => self.dispatch_command(id, command, now_ms),
            (None, _) => {}
        }
        if is_journal_lost {
            self.feed_schedule(schedule::ScheduleEvent::Stop { scope: StopScope::OpenRuns, code: FailureCode::JournalUnwritable }, now_ms);
        }
        if let Some(identity) = born {
            self.hand_over_birth_marks(id, &identity);
        }
        if let Some(end) = end {
            self.feed_schedule(schedule::ScheduleEvent::Ended { id: id.clone(), end }, now_ms);
            self.close(id);
        }
    }

    /// Gives the birth marks of a new guest to the later steps of its submission, before any of them begins.
    fn hand_over_birth_marks(&mut self, id: &OperationId, identity: &GuestIdentity) {
        let Some(maker) = self.operations.get(id) else { return };
        let (submission, vmid) = (maker.submission, maker.state.operation().guest.vmid);
        let Some(own) = self.submissions.get(&submission) else { return };
        for other in own.order.iter().filter(|other| *other != id) {
            if let Some(held) = self.operations.get_mut(other).filter(|held| held.state.operation().guest.vmid == vmid) {
                held.state.set_birth_marks(identity);
            }
        }
    }

    fn is_journal_lost(&self, id: &OperationId) -> bool {
        let submission = self.submission_of(id).and_then(|submission| self.submissions.get(&submission));
        submission.is_some_and(|submission| submission.is_journal_lost)
    }

    /// A stop or a lost journal during the final hold check counts like one before it.
    fn override_when_stopped(&self, id: &OperationId, event: OperationEvent) -> OperationEvent {
        let journal_failure = self.is_journal_lost(id).then_some(FailureCode::JournalUnwritable);
        match (&event, journal_failure.or_else(|| self.stop_code(id))) {
            (OperationEvent::SendAllowed, Some(code)) => OperationEvent::SendBlocked(SendBlock::Stopped(code)),
            _ => event,
        }
    }

    /// Answers a command directly if the result is already known.
    fn dispatch_command(&mut self, id: &OperationId, command: OperationCommand, now_ms: u64) {
        let known = match &command {
            OperationCommand::RecheckHolds => self.stop_code(id).map(|code| OperationEvent::SendBlocked(SendBlock::Stopped(code))),
            OperationCommand::Request(request) if request.is_mutation() && self.is_journal_lost(id) => {
                let cause = EnvFault::new(EnvFaultKind::Other, FailureCode::JournalUnwritable.word(), "");
                Some(OperationEvent::Responded(EnvResponse::Sent(SendResult::NotDelivered(cause))))
            }
            OperationCommand::Commit(_)
            | OperationCommand::Mark
            | OperationCommand::FindTaskOwners(_)
            | OperationCommand::Request(_)
            | OperationCommand::Wait(_) => None,
        };
        match known {
            Some(event) => self.step_operation(id, event, now_ms),
            None => self.effects.push(RunEffect::Execute(id.clone(), command)),
        }
    }

    /// Why a ready operation is not sent any more. The second half of a restart continues after a stop, because the guest would stay down
    /// without it.
    fn stop_code(&self, id: &OperationId) -> Option<FailureCode> {
        let operation = self.operation_state(id)?.operation();
        self.schedule.stop_code(id).filter(|_| !schedule::completes_restart(operation))
    }
}
