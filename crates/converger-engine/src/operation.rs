//! One operation on its way, as a pure state machine. One external request or one durable commit per transition.
//!
//! ```text
//! recorded -> checked -> marked -> cleared -> sent -> tasked -> settled -> verified -> done | failed | refused | held
//! ```
//!
//! How to drive it: make a [`OperationState`], then feed [`OperationEvent::Begin`] to [`step`]. Carry out the [`OperationCommand`] that comes back, and
//! feed what came of it: `Commit` and `Mark` give `Committed` or `NotCommitted`, the end of what was held also `Resolved`, `RecheckHolds` gives `SendAllowed` or `SendBlock`, `FindTaskOwners` gives
//! `Taken` or `TaskOwnersUnreadable`, `EnvRequest` gives `Responded`, `Wait` gives `Woken`. Go on
//! until [`OperationState::outcome`] says how it ended; every run ends in bounded steps. An event that does not belong to what was asked
//! for changes nothing.
//!
//! What holds in every order of events: nothing is asked before the intent is durable (G11), the change is sent at most once and never
//! without its mark, and a recovered operation never sends it.
//!
//! Time: waits are commands, and patience is counted in what was waited and in what answers took that told nothing, half a minute each at most. There is no clock here
//! that could end it, so that one that jumps, or a machine that sleeps, ends nothing too early. `now_ms` dates records, and shows that what was read
//! before a change is too old to send it: a clock that jumps makes it be read once more.
//!
//! What never enters: Proxmox, sockets, clocks, and which operation comes next (`schedule`).

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
use converger_core::guest::NodeName;
use converger_core::refusal::Refusal;

use precheck::{PreSendCheck, ReadyChange};
use send_state::SendState;
use task_polling::TaskPolling;
use verification::{Verification, VerificationCause};

pub use patience::{Patience, RESPONSE_MS_MAX};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationEvent {
    /// Its turn has come.
    Begin,
    /// The record that was to be committed is durable.
    Committed,
    /// It is not.
    NotCommitted(CommitFailure),
    /// It is not either: a person said meanwhile what became of the operation, and what they said stands.
    Resolved,
    /// Nothing that was said meanwhile is against sending it.
    SendAllowed,
    /// Something is.
    SendBlocked(SendBlock),
    /// These of the tasks are those of other operations, and no others are.
    TaskOwnersFound(Vec<TaskId>),
    /// Whose they are cannot be read; these are the words for it.
    TaskOwnersUnreadable(Box<str>),
    /// What came of what was asked.
    Responded(EnvResponse),
    /// The wait is over.
    Woken,
}

/// Why a record is not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitFailure {
    /// The journal decided against it: the guest is held or taken, or the environment frozen.
    Refused(Refusal),
    /// The same request was recorded before, as this operation (G13).
    Repeated(OperationId),
    /// It cannot be written; these are the words for it.
    Failed(Box<str>),
}

/// Why a change is not sent although its guest is ready for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendBlock {
    /// Somebody holds the guest, or froze the environment, since the intent was taken.
    Refused(Refusal),
    /// Nothing new is begun any more.
    Stopped(FailureCode),
    /// The node has no room for it, and nothing was sent.
    NodeBusy(EnvFault),
    /// Whether somebody did cannot be read; these are the words for it.
    Failed(Box<str>),
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationCommand {
    /// Make this durable.
    Commit(Box<JournalRecord>),
    /// Write down that it may have been sent from here on, so that whoever comes after this process knows it. It need not be durable.
    Mark,
    /// Look whether anything was said against sending it since the intent was taken: a hold, a freeze, a stop.
    RecheckHolds,
    /// Look into the journal which of these tasks are those of other operations.
    FindTaskOwners(Vec<TaskId>),
    /// Ask this, once.
    Request(EnvRequest),
    /// Let so many milliseconds go by.
    Wait(u64),
}

/// How far an operation is, for people.
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

/// An operation on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationState {
    operation: Box<Operation>,
    /// None for what was found in the journal: it is never sent.
    context: Option<CheckContext>,
    patience: Patience,
    origin: OperationOrigin,
    /// Where the guest is looked for.
    address: GuestAddress,
    /// How often it was followed to another node.
    moves: u32,
    intent_ms: u64,
    /// When it last heard of anything.
    now_ms: u64,
    /// What the last answer took, as far as that counts.
    response_ms: u64,
    /// When the guest's own readings of the last check were begun, and how often it was checked.
    checked_ms: u64,
    checks: u32,
    task: Option<TaskId>,
    uptime_before_secs: Option<u64>,
    /// The same as an earlier run recorded it.
    recorded_uptime_secs: Option<u64>,
    /// What was waited since the guest was checked.
    waited_ms: u64,
    /// What is known of whether it was sent.
    send_state: SendState,
    /// What is to be known beside the outcome.
    evidence: Evidence,
    stage: OperationStage,
}

/// Where an operation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperationOrigin {
    /// It is new.
    Fresh,
    /// The journal has it without an end.
    Open,
    /// The journal has it as held until a reading tells.
    Held,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum OperationStage {
    New,
    /// The intent is being written.
    Recording,
    /// What it was planned on is read again.
    Checking(PreSendCheck),
    /// It is ready, and the mark before the sending is being written.
    Marking(Box<ReadyChange>),
    /// It is ready, and the last word about it is waited for.
    RecheckingHolds(Box<ReadyChange>),
    /// The change is under way to the environment.
    Sending,
    /// The task is being written down.
    RecordingTask(TaskId),
    /// The task is at work.
    PollingTask(TaskPolling),
    /// What became of it is read.
    Verifying(Verification),
    /// Tasks were found that may be its own, and the journal is asked whose they are.
    FindingTaskOwners(Verification, Vec<ObservedTask>),
    /// The end is being written.
    RecordingEnd(Outcome),
    Ended {
        outcome: Outcome,
        is_recorded: bool,
    },
}

impl OperationState {
    /// A new operation, held against these terms when its turn comes.
    #[must_use]
    pub fn new(operation: Operation, terms: CheckContext, patience: Patience) -> Self {
        Self::with_origin(Box::new(operation), Some(terms), patience, OperationOrigin::Fresh, 0, SendState::NotYet)
    }

    /// An operation that the journal has without an end, or held until a reading tells; `None`: nothing is to be found out.
    ///
    /// It only reads: what became of it is found out, and it is never sent (S2). `uptime` is that of this machine, where it can be told.
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
        terms: Option<CheckContext>,
        patience: Patience,
        origin: OperationOrigin,
        intent_ms: u64,
        sending: SendState,
    ) -> Self {
        let guest = &operation.guest;
        let place = GuestAddress { node: guest.node.clone(), kind: guest.kind, vmid: guest.vmid };
        let (task, uptime_before_secs, evidence) = (None, None, Evidence::default());
        Self {
            operation,
            context: terms,
            patience,
            origin,
            address: place,
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

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// How it ended, once it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.stage {
            OperationStage::Ended { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// Whether its end is in the journal. What is not is found out by reading at the next start.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(&self.stage, OperationStage::Ended { is_recorded: true, .. })
    }

    /// The task that carries it out, once it is known.
    #[must_use]
    pub fn task(&self) -> Option<&TaskId> {
        self.task.as_ref()
    }

    /// The node that it works on at the moment.
    #[must_use]
    pub fn address(&self) -> &GuestAddress {
        &self.address
    }

    /// The node that it works on, where that is another one than it was counted on and nothing was sent yet.
    #[must_use]
    pub fn moved_node(&self, counted: &NodeName) -> Option<NodeName> {
        let is_before = matches!(self.stage, OperationStage::Checking(_) | OperationStage::Marking(_) | OperationStage::RecheckingHolds(_));
        (is_before && self.address.node != *counted).then(|| self.address.node.clone())
    }

    /// Whether it was found in the journal, so that it only reads.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.origin != OperationOrigin::Fresh
    }

    /// Whether this is the later reading that it was held for: what a task that ended left undone stays so.
    fn is_held_reread(&self) -> bool {
        self.origin == OperationOrigin::Held
    }

    /// How far it is.
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

/// One transition. `now_ms` is the time of day in milliseconds since 1970, for the records.
///
/// `None`: there is nothing to do, because it has ended or because the event is not one that was waited for.
#[must_use]
pub fn step(mut state: OperationState, event: OperationEvent, now_ms: u64) -> (OperationState, Option<OperationCommand>) {
    let command = state.handle_event(event, now_ms);
    (state, command)
}

impl OperationState {
    /// [`step`] in place. The stage is taken out and not copied; each of these puts the next one in its place.
    pub(crate) fn handle_event(&mut self, event: OperationEvent, now_ms: u64) -> Option<OperationCommand> {
        let before = (self.now_ms, self.response_ms);
        // It was asked for when anything was last heard of.
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
            (OperationStage::Verifying(proving), OperationEvent::Responded(answer)) if !proving.is_waiting() => {
                self.handle_verification_response(proving, answer, now_ms)
            }
            (OperationStage::Verifying(proving), OperationEvent::Woken) if proving.is_waiting() => self.restart_verification(proving),
            (OperationStage::FindingTaskOwners(proving, tasks), OperationEvent::TaskOwnersFound(taken)) => {
                self.adopt_own_task(proving, &tasks, &taken, now_ms)
            }
            (OperationStage::FindingTaskOwners(proving, _), OperationEvent::TaskOwnersUnreadable(why)) => {
                self.retry_without_task_owners(proving, &why, now_ms)
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

    /// Nothing was sent, and nothing will be.
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

    /// It was sent, and the journal does not take its task: from here on only a new start may touch it (design 6.13).
    fn hold_unrecorded_task(&mut self, why: &CommitFailure) -> Option<OperationCommand> {
        let evidence = match why {
            CommitFailure::Failed(text) => self.evidence.clone().with("said", &**text),
            CommitFailure::Refused(_) | CommitFailure::Repeated(_) => self.evidence.clone(),
        };
        let evidence = self.with_task(evidence);
        let findings = Findings { evidence, ..Findings::default() };
        self.finish(Outcome::new_held(FailureCode::JournalUnwritable, ReleaseCondition::Reading, findings), false)
    }

    /// It is known what became of it, and the journal does not take it: nobody is told of an end that a crash would take back (S19).
    /// The next start reads the guest once more.
    fn hold_unrecorded_end(&mut self, outcome: &Outcome, why: &CommitFailure) -> Option<OperationCommand> {
        let Findings { evidence, observed } = outcome.findings().clone();
        let evidence = evidence.with("found", outcome.end().word());
        let evidence = match why {
            CommitFailure::Failed(text) => evidence.with("said", &**text),
            CommitFailure::Refused(_) | CommitFailure::Repeated(_) => evidence,
        };
        self.finish(Outcome::new_held(FailureCode::JournalUnwritable, ReleaseCondition::Reading, Findings { evidence, observed }), false)
    }

    /// A person was faster than the reading: what was read is told, and the journal has their word.
    fn end_resolved_by_person(&mut self, outcome: Outcome) -> Option<OperationCommand> {
        let observed = outcome.findings().observed.clone().with("resolved", "by a person meanwhile, whose word stands");
        self.finish(outcome.with_observed(observed), false)
    }

    /// The one place from which the change is sent.
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
            // Whatever that was, it does not say that nothing was done.
            other => self.verify_after_lost_response(response_fault(&other)),
        }
    }

    /// Nothing left this machine. Where there was no room what was read grows old: it is checked anew before it is tried again.
    fn handle_not_delivered(&mut self, cause: &EnvFault, now_ms: u64) -> Option<OperationCommand> {
        if cause.kind == EnvFaultKind::Busy && self.may_check_again() {
            return self.start_check();
        }
        let findings = Findings { evidence: cause.add_to_evidence(Evidence::default()), ..Findings::default() };
        self.record_end(Outcome::new_failed(FailureCode::NotDelivered, findings), now_ms)
    }

    /// The environment decided against it and nothing changed: a refusal where its cause is one of ours, otherwise a failure.
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

    /// The task is known: it is written down before it is asked about.
    fn record_task(&mut self, task: TaskId, now_ms: u64) -> Option<OperationCommand> {
        self.task = Some(task.clone());
        self.stage = OperationStage::RecordingTask(task.clone());
        // What was held keeps its records: a task that turns up now is asked about without one.
        if self.origin == OperationOrigin::Held {
            return self.start_polling(task);
        }
        Some(OperationCommand::Commit(Box::new(JournalRecord::TaskStarted { id: self.operation.id.clone(), task, at_ms: now_ms })))
    }

    /// The answer was lost, or there was a crash: what became of it is found out by reading, never by sending again.
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

    /// The outcome is known: it is written down before anybody is told.
    fn record_end(&mut self, outcome: Outcome, now_ms: u64) -> Option<OperationCommand> {
        let id = self.operation.id.clone();
        let record = match (self.origin, outcome.end()) {
            (OperationOrigin::Fresh | OperationOrigin::Open, _) => JournalRecord::Ended { id, outcome: outcome.clone(), at_ms: now_ms },
            // Still nobody knows: what was held stays held, as it was.
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

/// The uptime of a guest before its reboot, as the held end of an earlier run has it.
fn recorded_uptime(outcome: &Outcome) -> Option<u64> {
    match outcome.findings().observed.get("uptime_before_secs") {
        Some(Fact::Number(secs)) => Some(*secs),
        _ => None,
    }
}

/// The cause that an answer to something else amounts to.
fn response_fault(answer: &EnvResponse) -> EnvFault {
    match answer {
        EnvResponse::Unreadable(cause) | EnvResponse::GuestNotFound(cause) => cause.clone(),
        _ => EnvFault::new(EnvFaultKind::Other, "other-answer", "the answer belongs to another question"),
    }
}

#[cfg(test)]
mod tests;
