//! One operation in execution, as a pure state machine. One external request or one durable commit per transition.
//!
//! ```text
//! recorded -> checked -> marked -> cleared -> sent -> tasked -> settled -> verified -> done | failed | refused | held
//! ```
//!
//! Usage: make an [`OperationState`], then feed [`OperationEvent::Begin`] to [`step`]. Execute the [`OperationCommand`] that it returns
//! and feed the result: `Commit` and `Mark` give `Committed` or `NotCommitted`, and the end of a held operation also `Resolved`;
//! `RecheckHolds` gives `SendAllowed` or `SendBlocked`; `FindTaskOwners` gives `TaskOwnersFound` or `TaskOwnersUnreadable`; `Request`
//! gives `Responded`; `Wait` gives `Woken`. Continue until [`OperationState::outcome`] returns the outcome; every operation ends in a
//! bounded number of steps. An event that does not answer the last command changes nothing.
//!
//! In every order of events: nothing is requested before the intent is durable (G11), the change is sent at most once and never without
//! its sending mark, and a recovered operation never sends it.
//!
//! Time: waits are commands. Patience counts the time waited and the duration of responses without a result, at most half a minute each.
//! No clock is read here, so a clock that jumps or a machine that is suspended ends nothing too early. `now_ms` is the time of records.
//! It also shows that what was read before a change has become too old to send the change; a clock that jumps only causes another read.
//!
//! Must not depend on Proxmox, sockets or clocks, or decide which operation starts next (`schedule` does).

mod patience;
mod precheck;
mod send_state;
mod task_polling;
mod verification;

use converger_core::apply::check;
use converger_core::apply::{
    CheckContext, ConfigRevision, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, Evidence, Fact, Findings, GuestAddress, JournalRecord,
    ObservedTask, Operation, OperationEnd, OperationHistory, OperationId, Outcome, ReleaseCondition, Resolution, SendResult, TaskId,
    Uptime,
};
use converger_core::failure::FailureCode;
use converger_core::guest::{GuestIdentity, NodeName};
use converger_core::refusal::Refusal;

use precheck::{PreSendCheck, ReadyChange};
use send_state::SendState;
use task_polling::TaskPolling;
use verification::{Verification, VerificationCause};

pub use patience::{Patience, RESPONSE_MS_MAX};

/// An event that an operation reacts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationEvent {
    /// The schedule started the operation.
    Begin,
    /// The requested record is durable.
    Committed,
    /// The requested record is not durable.
    NotCommitted(CommitFailure),
    /// The record was not written because a person resolved the operation in the meantime; their resolution stands.
    Resolved,
    /// No hold, freeze or stop prevents sending.
    SendAllowed,
    /// Something prevents sending.
    SendBlocked(SendBlock),
    /// Exactly these of the tasks belong to other operations.
    TaskOwnersFound(Vec<TaskId>),
    /// The owners of the tasks cannot be read; contains the error text.
    TaskOwnersUnreadable(Box<str>),
    /// The response to a request.
    Responded(EnvResponse),
    /// The wait has ended.
    Woken,
}

/// Why a record is not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitFailure {
    /// The journal refused it: the guest is held or occupied, or the environment is frozen.
    Refused(Refusal),
    /// The same request was recorded before, as this operation (G13).
    Repeated(OperationId),
    /// It cannot be written; contains the error text.
    Failed(Box<str>),
}

/// Why a change is not sent although its guest is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendBlock {
    /// A person held the guest or froze the environment after the intent was recorded.
    Refused(Refusal),
    /// The run starts nothing new.
    Stopped(FailureCode),
    /// The node accepts no more requests at the moment; nothing was sent.
    NodeBusy(EnvFault),
    /// Holds and freezes cannot be read; contains the error text.
    Failed(Box<str>),
}

/// What the caller must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationCommand {
    /// Make this record durable.
    Commit(Box<JournalRecord>),
    /// Write the sending mark, so that a later process knows that the change may have been sent. It need not be durable.
    Mark,
    /// Check for a hold, a freeze or a stop since the intent was recorded.
    RecheckHolds,
    /// Find out from the journal which of these tasks belong to other operations.
    FindTaskOwners(Vec<TaskId>),
    /// Send this request, once.
    Request(EnvRequest),
    /// Wait for this many milliseconds.
    Wait(u64),
}

/// The progress of an operation, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Phase {
    Waiting,
    Recorded,
    Checked,
    Sent,
    Tasked,
    Settled,
    Ended,
}

/// The state of an operation in execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationState {
    operation: Box<Operation>,
    /// `None` for a recovered operation, which is never sent.
    context: Option<CheckContext>,
    patience: Patience,
    origin: OperationOrigin,
    /// Where the guest that the change is sent to was last found.
    address: GuestAddress,
    /// How often the guest was followed to another node.
    moves: u32,
    intent_ms: u64,
    /// The time of the last event.
    now_ms: u64,
    /// The duration of the last response, as far as it counts.
    response_ms: u64,
    /// When the last check began to read the guest itself, and how often it was checked.
    checked_ms: u64,
    checks: u32,
    task: Option<TaskId>,
    uptime_before_secs: Option<u64>,
    /// The uptime before the change, as recorded by an earlier run.
    recorded_uptime_secs: Option<u64>,
    /// The time waited since the guest was checked.
    waited_ms: u64,
    /// What is known about whether the change was sent.
    send_state: SendState,
    /// Evidence to add to the outcome.
    evidence: Evidence,
    stage: OperationStage,
}

/// The origin of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationOrigin {
    /// A step of a plan.
    Fresh,
    /// The journal has it without an end.
    Open,
    /// The journal has it as held until a read settles it.
    Held,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OperationStage {
    New,
    /// The intent is being written.
    Recording,
    /// The preconditions are being read again.
    Checking(PreSendCheck),
    /// The change is ready, and its sending mark is being written.
    Marking(Box<ReadyChange>),
    /// The change is ready, and the final hold check is pending.
    RecheckingHolds(Box<ReadyChange>),
    /// The change was sent, and its response is pending.
    Sending,
    /// The task is being recorded.
    RecordingTask(TaskId),
    /// The task is running.
    PollingTask(TaskPolling),
    /// The result is being read.
    Verifying(Verification),
    /// Tasks that may belong to this operation were found, and the journal is being asked for their owners.
    FindingTaskOwners(Verification, Vec<ObservedTask>),
    /// The end is being written.
    RecordingEnd(Outcome),
    Ended {
        outcome: Outcome,
        is_recorded: bool,
    },
}

impl OperationState {
    /// A new operation. It is checked against `context` before it is sent.
    #[must_use]
    pub fn new(operation: Operation, context: CheckContext, patience: Patience) -> Self {
        Self::with_origin(Box::new(operation), Some(context), patience, OperationOrigin::Fresh, 0, SendState::NotYet)
    }

    /// An operation that the journal has without an end, or as held until a read settles it; `None` if there is nothing to recover.
    ///
    /// A recovered operation only reads and is never sent (S2). `uptime` is that of this machine, if known.
    #[must_use]
    pub fn recover(history: OperationHistory, patience: Patience, uptime: Option<&Uptime>) -> Option<Self> {
        let origin = match &history.ended {
            None => OperationOrigin::Open,
            Some((Outcome::Held { release: ReleaseCondition::Reading, .. }, _)) if history.resolved.is_none() => OperationOrigin::Held,
            Some(_) => return None,
        };
        let patience = if origin == OperationOrigin::Held { patience.for_held() } else { patience.for_recovery() };
        let sending = SendState::from_history(&history, uptime);
        let recorded_uptime_secs = history.ended.as_ref().and_then(|(outcome, _)| recorded_uptime(outcome));
        let mut state = Self::with_origin(history.operation, None, patience, origin, history.at_ms, sending);
        state.recorded_uptime_secs = recorded_uptime_secs;
        state.task = history.task.map(|(task, _)| task);
        Some(state)
    }

    fn with_origin(
        operation: Box<Operation>,
        context: Option<CheckContext>,
        patience: Patience,
        origin: OperationOrigin,
        intent_ms: u64,
        sending: SendState,
    ) -> Self {
        let address = operation.sending_address();
        let (task, uptime_before_secs, evidence) = (None, None, Evidence::default());
        Self {
            operation,
            context,
            patience,
            origin,
            address,
            moves: 0,
            intent_ms,
            now_ms: intent_ms,
            response_ms: 0,
            checked_ms: intent_ms,
            checks: 0,
            task,
            uptime_before_secs,
            recorded_uptime_secs: None,
            waited_ms: 0,
            send_state: sending,
            evidence,
            stage: OperationStage::New,
        }
    }

    /// Sets the birth marks of a guest that an earlier step has made. Later changes nothing: the intent that is recorded has the marks, and
    /// a guest whose marks were known at plan time keeps those.
    pub fn set_birth_marks(&mut self, identity: &GuestIdentity) {
        if self.stage == OperationStage::New && self.operation.guest.identity.is_none() {
            self.operation.guest.identity = Some(identity.clone());
        }
    }

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// The outcome, once it has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.stage {
            OperationStage::Ended { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// Whether the end is in the journal. If not, the next start recovers the operation.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(&self.stage, OperationStage::Ended { is_recorded: true, .. })
    }

    /// Its task, once it is known.
    #[must_use]
    pub fn task(&self) -> Option<&TaskId> {
        self.task.as_ref()
    }

    /// Where the guest was last found.
    #[must_use]
    pub fn address(&self) -> &GuestAddress {
        &self.address
    }

    /// The current node, if it differs from `counted`, the node whose limit the operation counts against, and nothing was sent yet.
    #[must_use]
    pub fn moved_node(&self, counted: &NodeName) -> Option<NodeName> {
        let is_before = matches!(self.stage, OperationStage::Checking(_) | OperationStage::Marking(_) | OperationStage::RecheckingHolds(_));
        (is_before && self.address.node != *counted).then(|| self.address.node.clone())
    }

    /// Whether the operation was recovered from the journal and therefore only reads.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.origin != OperationOrigin::Fresh
    }

    /// Whether this is the later reading of a held operation. Its task has ended, so what it has not done by now it never will.
    fn is_held_reread(&self) -> bool {
        self.origin == OperationOrigin::Held
    }

    /// Its progress.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match &self.stage {
            OperationStage::New | OperationStage::Recording => Phase::Waiting,
            OperationStage::Checking(_) | OperationStage::Marking(_) | OperationStage::RecheckingHolds(_) => Phase::Recorded,
            OperationStage::Sending => Phase::Checked,
            OperationStage::RecordingTask(_) => Phase::Sent,
            OperationStage::PollingTask(_) => Phase::Tasked,
            OperationStage::Verifying(_) | OperationStage::FindingTaskOwners(..) if self.task.is_none() => Phase::Sent,
            OperationStage::Verifying(_) | OperationStage::FindingTaskOwners(..) | OperationStage::RecordingEnd(_) => Phase::Settled,
            OperationStage::Ended { .. } => Phase::Ended,
        }
    }
}

/// Makes one transition. `now_ms` is the time of day in milliseconds since 1970, for records.
///
/// Returns `None` if the operation has ended or the event was not expected.
#[must_use]
pub fn step(mut state: OperationState, event: OperationEvent, now_ms: u64) -> (OperationState, Option<OperationCommand>) {
    let command = state.handle_event(event, now_ms);
    (state, command)
}

impl OperationState {
    /// [`step`] in place. The stage is moved out instead of copied, and each handler sets the next one.
    pub(crate) fn handle_event(&mut self, event: OperationEvent, now_ms: u64) -> Option<OperationCommand> {
        let before = (self.now_ms, self.response_ms);
        // The request was made at the time of the last event.
        (self.now_ms, self.response_ms) = (now_ms, patience::counted_response_ms(self.now_ms, now_ms));
        match (std::mem::replace(&mut self.stage, OperationStage::New), event) {
            (OperationStage::New, OperationEvent::Begin) => self.begin(now_ms),
            (OperationStage::Recording, OperationEvent::Committed) => self.start_check(),
            (OperationStage::Recording, OperationEvent::NotCommitted(why)) => self.end_unrecorded(why),
            (OperationStage::Checking(checking), OperationEvent::Responded(answer)) if !checking.is_waiting() => {
                self.handle_check_response(checking, answer, now_ms)
            }
            (OperationStage::Checking(checking), OperationEvent::Woken) if checking.is_waiting() => self.resume_check(checking),
            (OperationStage::Marking(clearing), OperationEvent::Committed) => self.request_hold_recheck(clearing),
            (OperationStage::Marking(_), OperationEvent::NotCommitted(why)) => self.end_unmarked(why, now_ms),
            (OperationStage::RecheckingHolds(clearing), OperationEvent::SendAllowed) => self.send_if_fresh(*clearing, now_ms),
            (OperationStage::RecheckingHolds(_), OperationEvent::SendBlocked(why)) => self.handle_send_block(why, now_ms),
            (OperationStage::Sending, OperationEvent::Responded(answer)) => self.handle_send_response(answer, now_ms),
            (OperationStage::RecordingTask(task), OperationEvent::Committed) => self.start_polling(task),
            (OperationStage::RecordingTask(_), OperationEvent::NotCommitted(why)) => self.hold_unrecorded_task(&why),
            (OperationStage::PollingTask(settling), OperationEvent::Responded(answer)) if !settling.is_waiting() => {
                self.handle_task_response(settling, answer, now_ms)
            }
            (OperationStage::PollingTask(settling), OperationEvent::Woken) if settling.is_waiting() => self.poll_task(settling),
            (OperationStage::Verifying(verification), OperationEvent::Responded(answer)) if !verification.is_waiting() => {
                self.handle_verification_response(verification, answer, now_ms)
            }
            (OperationStage::Verifying(verification), OperationEvent::Woken) if verification.is_waiting() => {
                self.restart_verification(verification)
            }
            (OperationStage::FindingTaskOwners(verification, tasks), OperationEvent::TaskOwnersFound(tasks_of_others)) => {
                self.adopt_own_task(verification, &tasks, &tasks_of_others, now_ms)
            }
            (OperationStage::FindingTaskOwners(verification, _), OperationEvent::TaskOwnersUnreadable(why)) => {
                self.retry_without_task_owners(verification, &why, now_ms)
            }
            (OperationStage::RecordingEnd(outcome), OperationEvent::Committed) => self.finish(outcome, true),
            (OperationStage::RecordingEnd(outcome), OperationEvent::NotCommitted(why)) => self.hold_unrecorded_end(&outcome, &why),
            (OperationStage::RecordingEnd(outcome), OperationEvent::Resolved) => self.end_resolved_by_person(outcome),
            (stage, _) => {
                (self.stage, (self.now_ms, self.response_ms)) = (stage, before);
                None
            }
        }
    }

    fn begin(&mut self, now_ms: u64) -> Option<OperationCommand> {
        if self.origin == OperationOrigin::Fresh {
            self.intent_ms = now_ms;
            self.stage = OperationStage::Recording;
            return Some(OperationCommand::Commit(Box::new(JournalRecord::Intent { operation: self.operation.clone(), at_ms: now_ms })));
        }
        match self.task.clone() {
            Some(task) => self.start_polling(task),
            None if self.send_state == SendState::Never => self.end_never_sent(now_ms),
            None => self.verify_after_lost_response(EnvFault::new(EnvFaultKind::Other, "program-ended", "")),
        }
    }

    /// Ends the operation before anything was sent.
    fn end_unrecorded(&mut self, why: CommitFailure) -> Option<OperationCommand> {
        let outcome = match why {
            CommitFailure::Refused(refusal) => Outcome::from_refusal(&refusal),
            CommitFailure::Repeated(first) => {
                Outcome::new_not_run(FailureCode::RequestRepeated, Evidence::default().with("operation", first.as_str()))
            }
            CommitFailure::Failed(text) => Outcome::new_not_run(FailureCode::JournalUnwritable, Evidence::default().with("said", &*text)),
        };
        self.finish(outcome, false)
    }

    /// The change was sent, but the journal does not accept its task. From here on only recovery may continue (decision 0012).
    fn hold_unrecorded_task(&mut self, why: &CommitFailure) -> Option<OperationCommand> {
        let evidence = match why {
            CommitFailure::Failed(text) => self.evidence.clone().with("said", &**text),
            CommitFailure::Refused(_) | CommitFailure::Repeated(_) => self.evidence.clone(),
        };
        let evidence = self.with_task(evidence);
        let findings = Findings { evidence, ..Findings::default() };
        self.finish(Outcome::new_held(FailureCode::JournalUnwritable, ReleaseCondition::Reading, findings), false)
    }

    /// The outcome is known, but the journal does not accept it. It is not reported, because a crash would revert it (S19). The next
    /// start reads the guest again.
    fn hold_unrecorded_end(&mut self, outcome: &Outcome, why: &CommitFailure) -> Option<OperationCommand> {
        let Findings { evidence, observed } = outcome.findings().clone();
        let evidence = evidence.with("found", outcome.end().word());
        let evidence = match why {
            CommitFailure::Failed(text) => evidence.with("said", &**text),
            CommitFailure::Refused(_) | CommitFailure::Repeated(_) => evidence,
        };
        self.finish(Outcome::new_held(FailureCode::JournalUnwritable, ReleaseCondition::Reading, Findings { evidence, observed }), false)
    }

    /// A person resolved the operation before the read did. The findings are reported; the journal keeps the person's resolution.
    fn end_resolved_by_person(&mut self, outcome: Outcome) -> Option<OperationCommand> {
        let observed = outcome.findings().observed.clone().with("resolved", "by a person meanwhile, whose word stands");
        self.finish(outcome.with_observed(observed), false)
    }

    /// The only place that sends the change.
    fn send_change(&mut self, uptime_secs: Option<u64>, revision: Option<ConfigRevision>) -> Option<OperationCommand> {
        self.uptime_before_secs = uptime_secs;
        self.waited_ms = 0;
        self.stage = OperationStage::Sending;
        Some(OperationCommand::Request(EnvRequest::Send {
            address: self.address.clone(),
            change: self.operation.step.change.clone(),
            revision,
        }))
    }

    fn handle_send_response(&mut self, answer: EnvResponse, now_ms: u64) -> Option<OperationCommand> {
        match answer {
            EnvResponse::Sent(SendResult::Task(task)) => self.record_task(task, now_ms),
            EnvResponse::Sent(SendResult::Done) => self.start_verification(VerificationCause::Sent),
            EnvResponse::Sent(SendResult::Rejected(cause)) => self.end_rejected(&cause, now_ms),
            EnvResponse::Sent(SendResult::NotDelivered(cause)) => self.handle_not_delivered(&cause, now_ms),
            EnvResponse::Sent(SendResult::MaybeExecuted(cause)) => self.verify_after_lost_response(cause),
            // Any other response does not prove that nothing was done.
            other => self.verify_after_lost_response(response_fault(&other)),
        }
    }

    /// Nothing left this machine. If the node was busy the readings have become old, so the guest is checked again before the next try.
    fn handle_not_delivered(&mut self, cause: &EnvFault, now_ms: u64) -> Option<OperationCommand> {
        if cause.kind == EnvFaultKind::Busy && self.may_check_again() {
            return self.start_check();
        }
        let findings = Findings { evidence: cause.add_to_evidence(Evidence::default()), ..Findings::default() };
        self.record_end(Outcome::new_failed(FailureCode::NotDelivered, findings), now_ms)
    }

    /// The environment rejected the change and nothing changed: a refusal if the cause has a refusal code, otherwise a failure.
    fn end_rejected(&mut self, cause: &EnvFault, now_ms: u64) -> Option<OperationCommand> {
        let outcome = match check::refusal_for_rejection(&self.operation, cause) {
            Some(refusal) => Outcome::from_refusal(&refusal),
            None => {
                let findings = Findings { evidence: cause.add_to_evidence(Evidence::default()), ..Findings::default() };
                Outcome::new_failed(FailureCode::ChangeRejected, findings)
            }
        };
        self.record_end(outcome, now_ms)
    }

    /// Records the task before it is polled.
    fn record_task(&mut self, task: TaskId, now_ms: u64) -> Option<OperationCommand> {
        self.task = Some(task.clone());
        self.stage = OperationStage::RecordingTask(task.clone());
        // A held operation gets no more task records: a task that is found now is polled without one.
        if self.origin == OperationOrigin::Held {
            return self.start_polling(task);
        }
        Some(OperationCommand::Commit(Box::new(JournalRecord::TaskStarted { id: self.operation.id.clone(), task, at_ms: now_ms })))
    }

    /// After a lost response or a crash: finds the result by reading, never by sending again.
    fn verify_after_lost_response(&mut self, cause: EnvFault) -> Option<OperationCommand> {
        self.evidence = cause.add_to_evidence(std::mem::take(&mut self.evidence));
        self.start_verification(VerificationCause::Unknown { looks: 0 })
    }

    fn wait(&mut self, ms: u64) -> Option<OperationCommand> {
        self.waited_ms = self.waited_ms.saturating_add(ms);
        Some(OperationCommand::Wait(ms))
    }

    fn with_task(&self, evidence: Evidence) -> Evidence {
        match &self.task {
            Some(task) => evidence.with("task", task.as_str()),
            None => evidence,
        }
    }

    /// Records the outcome before it is reported.
    fn record_end(&mut self, outcome: Outcome, now_ms: u64) -> Option<OperationCommand> {
        let id = self.operation.id.clone();
        let record = match (self.origin, outcome.end()) {
            (OperationOrigin::Fresh | OperationOrigin::Open, _) => JournalRecord::Ended { id, outcome: outcome.clone(), at_ms: now_ms },
            // The result is still unknown: a held operation stays held as it was.
            (OperationOrigin::Held, OperationEnd::Held | OperationEnd::Refused | OperationEnd::NotRun) => {
                return self.finish(outcome, true);
            }
            (OperationOrigin::Held, end) => {
                let resolution = if end == OperationEnd::Done { Resolution::Done } else { Resolution::Failed };
                let reason = format!("read again: {}", outcome.code().map_or("it is as promised", |code| code.as_str()));
                JournalRecord::Resolved { id, resolution, by: "converger".into(), reason: reason.into(), at_ms: now_ms }
            }
        };
        self.stage = OperationStage::RecordingEnd(outcome);
        Some(OperationCommand::Commit(Box::new(record)))
    }

    fn finish(&mut self, outcome: Outcome, is_recorded: bool) -> Option<OperationCommand> {
        self.stage = OperationStage::Ended { outcome, is_recorded };
        None
    }
}

/// The uptime of a guest before its reboot, from the held outcome of an earlier run.
fn recorded_uptime(outcome: &Outcome) -> Option<u64> {
    match outcome.findings().observed.get("uptime_before_secs") {
        Some(Fact::Number(secs)) => Some(*secs),
        _ => None,
    }
}

/// The fault that an unexpected response amounts to.
fn response_fault(answer: &EnvResponse) -> EnvFault {
    match answer {
        EnvResponse::Unreadable(cause) | EnvResponse::GuestNotFound(cause) => cause.clone(),
        _ => EnvFault::new(EnvFaultKind::Other, "other-answer", "the answer belongs to another question"),
    }
}

/// The fault of an answer that calls the id of an existing guest free. Proxmox answers so while its list of guests is empty, for instance
/// while the cluster file system restarts.
fn incomplete_ids_fault() -> EnvFault {
    EnvFault::new(EnvFaultKind::Other, "ids-incomplete", "the node calls the id of an existing guest free")
}

#[cfg(test)]
mod tests;
