//! Checks before a change is sent: reads the cluster, the guests that the step depends on, and the status and config of the guest again.
//! Every precondition must hold.
//!
//! The readings of the guest itself must be at most seconds old, or all of it is read again (decision 0017 says what may be older, and
//! why): between reading and sending the machine may have been suspended, a node slow, or the process paused by its terminal (Ctrl-S).
//! The final check is the journal: a hold, a freeze or a stop since the intent prevents sending.
//!
//! A guest that has moved is followed once and checked again from the start. What cannot be read after a few attempts leads to a refusal.
//! Reads are repeated because reading twice is harmless, and one lost response is no reason to give up the slot on the node.

use converger_core::action::Change;
use converger_core::apply::check::{self, PreSendReadings, SendDecision};
use converger_core::apply::{
    ConfigRevision, DependencyCheck, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, Evidence, Findings, GuestAddress, IdState,
    LiveConfig, LiveStatus, Outcome,
};
use converger_core::failure::FailureCode;
use converger_core::observe::SnapshotTree;
use converger_core::refusal::Refusal;

use super::patience::next_wait_ms;
use super::{OperationCommand, OperationStage, OperationState, SendBlock, incomplete_ids_fault, response_fault};

/// How often each reading is tried.
const TRIES_MAX: u32 = 3;
/// The maximum age of the readings of the guest when the change is sent.
pub(super) const READING_AGE_MS_MAX: u64 = 10_000;
/// How often a guest is checked if its readings were too old or the node was busy.
const CHECKS_MAX: u32 = 5;

/// The reading in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PreSendCheck {
    reading: PreSendReading,
    tries: u32,
    waiting: bool,
}

/// A change that is ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadyChange {
    uptime_secs: Option<u64>,
    revision: Option<ConfigRevision>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PreSendReading {
    Cluster,
    /// The guest with this index among those that the step depends on.
    Dependency(usize),
    Status,
    Location,
    Config(Box<LiveStatus>),
    /// The snapshots that the change depends on.
    Snapshots(Box<GuestReadings>),
    /// Whether the id of the new guest is free.
    NewId(Box<GuestReadings>),
    /// Whether the id of the source is taken, after the new id was called free. It was just read, so an answer that calls it free comes from
    /// an incomplete list and proves nothing about the new id either (S5).
    SourceId(Box<GuestReadings>),
}

/// What was read of the guest so far.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GuestReadings {
    live: LiveStatus,
    config: LiveConfig,
}

impl PreSendCheck {
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }

    fn for_reading(read: PreSendReading) -> Self {
        Self { reading: read, tries: 1, waiting: false }
    }
}

impl OperationState {
    pub(super) fn start_check(&mut self) -> Option<OperationCommand> {
        self.checks += 1;
        self.request_check_reading(PreSendCheck::for_reading(PreSendReading::Cluster))
    }

    fn request_check_reading(&mut self, checking: PreSendCheck) -> Option<OperationCommand> {
        let request = match &checking.reading {
            PreSendReading::Cluster => EnvRequest::Cluster,
            PreSendReading::Dependency(number) => match self.dependency(*number) {
                Some(other) => EnvRequest::Status(other.address.clone()),
                // All dependencies are met.
                None => return self.request_check_reading(PreSendCheck::for_reading(PreSendReading::Status)),
            },
            PreSendReading::Status => {
                self.checked_ms = self.now_ms;
                EnvRequest::Status(self.address.clone())
            }
            PreSendReading::Location => EnvRequest::Locate(self.address.vmid),
            PreSendReading::Config(_) => EnvRequest::Config(self.address.clone()),
            PreSendReading::Snapshots(_) => EnvRequest::Snapshots(self.address.clone()),
            PreSendReading::NewId(_) => EnvRequest::IdState(self.operation.guest.vmid),
            PreSendReading::SourceId(_) => EnvRequest::IdState(self.address.vmid),
        };
        self.stage = OperationStage::Checking(checking);
        Some(OperationCommand::Request(request))
    }

    pub(super) fn resume_check(&mut self, checking: PreSendCheck) -> Option<OperationCommand> {
        self.request_check_reading(PreSendCheck { waiting: false, ..checking })
    }

    pub(super) fn handle_check_response(&mut self, checking: PreSendCheck, answer: EnvResponse, now_ms: u64) -> Option<OperationCommand> {
        match (&checking.reading, answer) {
            (PreSendReading::Cluster, EnvResponse::Cluster(membership)) => {
                match check::check_cluster(&membership, &self.address.node, &self.operation.step.change) {
                    Some(refusal) => self.refuse(&refusal, now_ms),
                    None => self.request_check_reading(PreSendCheck::for_reading(PreSendReading::Dependency(0))),
                }
            }
            (PreSendReading::Dependency(number), EnvResponse::Status(live)) => self.check_dependency(*number, &live, now_ms),
            (PreSendReading::Status, EnvResponse::Status(live)) => {
                self.request_check_reading(PreSendCheck::for_reading(PreSendReading::Config(Box::new(live))))
            }
            (PreSendReading::Config(live), EnvResponse::Config(config)) => self.read_second_objects(live, *config, now_ms),
            (PreSendReading::Snapshots(readings), EnvResponse::Snapshots(tree)) => {
                self.judge_readiness(&readings.live, &readings.config, Some(&tree), None, now_ms)
            }
            (PreSendReading::NewId(readings), EnvResponse::IdState(IdState::Free)) => {
                self.request_check_reading(PreSendCheck { reading: PreSendReading::SourceId(readings.clone()), ..checking })
            }
            (PreSendReading::SourceId(readings), EnvResponse::IdState(IdState::Free)) => {
                let checking = PreSendCheck { reading: PreSendReading::NewId(readings.clone()), ..checking };
                self.retry_check_reading(checking, &EnvResponse::Unreadable(incomplete_ids_fault()), now_ms)
            }
            (PreSendReading::NewId(readings), EnvResponse::IdState(IdState::Taken)) => {
                self.judge_readiness(&readings.live, &readings.config, None, Some(IdState::Taken), now_ms)
            }
            (PreSendReading::SourceId(readings), EnvResponse::IdState(IdState::Taken)) => {
                self.judge_readiness(&readings.live, &readings.config, None, Some(IdState::Free), now_ms)
            }
            (PreSendReading::Status | PreSendReading::Config(_) | PreSendReading::Snapshots(_), EnvResponse::GuestNotFound(_)) => {
                self.request_check_reading(PreSendCheck::for_reading(PreSendReading::Location))
            }
            (PreSendReading::Location, EnvResponse::Located(found)) => self.follow_moved_guest(found, now_ms),
            (_, other) => self.retry_check_reading(checking, &other, now_ms),
        }
    }

    fn dependency(&self, number: usize) -> Option<&DependencyCheck> {
        self.context.as_ref().and_then(|context| context.dependency(number))
    }

    fn check_dependency(&mut self, number: usize, live: &LiveStatus, now_ms: u64) -> Option<OperationCommand> {
        match self.dependency(number).and_then(|other| other.refusal(live)) {
            Some(refusal) => self.refuse(&refusal, now_ms),
            None => self.request_check_reading(PreSendCheck::for_reading(PreSendReading::Dependency(number + 1))),
        }
    }

    /// Reads what the change depends on beyond the guest itself, last: it must be the freshest.
    fn read_second_objects(&mut self, live: &LiveStatus, config: LiveConfig, now_ms: u64) -> Option<OperationCommand> {
        let change = &self.operation.step.change;
        let readings = |config| Box::new(GuestReadings { live: live.clone(), config });
        let reading = match change {
            Change::Clone(_) => PreSendReading::NewId(readings(config)),
            _ if check::needs_snapshots(change) => PreSendReading::Snapshots(readings(config)),
            _ => return self.judge_readiness(live, &config, None, None, now_ms),
        };
        self.request_check_reading(PreSendCheck::for_reading(reading))
    }

    fn judge_readiness(
        &mut self,
        live: &LiveStatus,
        config: &LiveConfig,
        snapshots: Option<&SnapshotTree>,
        new_id: Option<IdState>,
        now_ms: u64,
    ) -> Option<OperationCommand> {
        // INVARIANT: a recovered operation has no context and starts with verification, so it never gets here. If it did, it would be
        // read and not sent.
        let Some(context) = &self.context else { return self.verify_after_lost_response(response_fault(&EnvResponse::Located(None))) };
        let readings = PreSendReadings { address: &self.address, live, config, snapshots, new_id };
        match check::decide_send(&self.operation, context, readings) {
            SendDecision::Send => {
                self.request_mark(Box::new(ReadyChange { uptime_secs: live.uptime_secs, revision: config.revision.clone() }))
            }
            SendDecision::Refused(refusal) => self.refuse(&refusal, now_ms),
            SendDecision::AlreadyDone => self.end_without_sending(live, "found_so", check::FOUND_BEFORE_SENDING, now_ms),
            SendDecision::NotNeeded => self.end_without_sending(live, "not_needed", "what the restart is for is in effect", now_ms),
        }
    }

    pub(super) fn may_check_again(&self) -> bool {
        self.checks < CHECKS_MAX
    }

    /// Sends the change if the readings are fresh. If the clock went back, their age is unknown and they are taken again.
    pub(super) fn send_if_fresh(&mut self, clearing: ReadyChange, now_ms: u64) -> Option<OperationCommand> {
        let is_fresh = now_ms.checked_sub(self.checked_ms).is_some_and(|age_ms| age_ms <= READING_AGE_MS_MAX);
        match clearing {
            ReadyChange { uptime_secs, revision } if is_fresh => self.send_change(uptime_secs, revision),
            _ if self.may_check_again() => self.start_check(),
            _ => self.refuse(
                &check::unreadable_refusal(&EnvFault::new(
                    EnvFaultKind::Other,
                    "too-slow",
                    "what was read of it was old before it could be sent",
                )),
                now_ms,
            ),
        }
    }

    pub(super) fn handle_send_block(&mut self, why: SendBlock, now_ms: u64) -> Option<OperationCommand> {
        let outcome = match why {
            SendBlock::Refused(refusal) => Outcome::from_refusal(&refusal),
            SendBlock::Stopped(code) => Outcome::new_not_run(code, Evidence::default()),
            SendBlock::NodeBusy(cause) => return self.handle_not_delivered(&cause, now_ms),
            SendBlock::Failed(text) => Outcome::new_not_run(FailureCode::JournalUnwritable, Evidence::default().with("said", &*text)),
        };
        self.record_end(outcome, now_ms)
    }

    fn end_without_sending(&mut self, live: &LiveStatus, key: &str, why: &str, now_ms: u64) -> Option<OperationCommand> {
        let observed = Evidence::default().with("run_state", &*live.word);
        self.record_end(Outcome::Done(Findings { evidence: Evidence::default().with(key, why), observed }), now_ms)
    }

    /// Follows a guest that has moved. The check on the new node compares the birth marks, so another guest is not mistaken for it.
    fn follow_moved_guest(&mut self, found: Option<GuestAddress>, now_ms: u64) -> Option<OperationCommand> {
        if let Some(refusal) = check::check_relocation(&self.address, found.as_ref()) {
            return self.refuse(&refusal, now_ms);
        }
        let Some(found) = found.filter(|_| self.moves == 0) else { return self.refuse(&check::moved_refusal(), now_ms) };
        self.moves += 1;
        self.address = found;
        self.start_check()
    }

    fn retry_check_reading(&mut self, checking: PreSendCheck, answer: &EnvResponse, now_ms: u64) -> Option<OperationCommand> {
        let cause = response_fault(answer);
        if checking.tries < TRIES_MAX {
            let ms = next_wait_ms(0) * u64::from(checking.tries);
            self.stage = OperationStage::Checking(PreSendCheck { tries: checking.tries + 1, waiting: true, ..checking });
            return self.wait(ms);
        }
        let refusal = match &checking.reading {
            PreSendReading::Dependency(number) => {
                self.dependency(*number).map_or_else(|| check::unreadable_refusal(&cause), DependencyCheck::unread_refusal)
            }
            PreSendReading::Cluster
            | PreSendReading::Status
            | PreSendReading::Location
            | PreSendReading::Config(_)
            | PreSendReading::Snapshots(_)
            | PreSendReading::NewId(_)
            | PreSendReading::SourceId(_) => check::unreadable_refusal(&cause),
        };
        let observed = Evidence::default().with("said", &*cause.text);
        self.record_end(Outcome::from_refusal(&refusal).with_observed(observed), now_ms)
    }

    fn refuse(&mut self, refusal: &Refusal, now_ms: u64) -> Option<OperationCommand> {
        self.record_end(Outcome::from_refusal(refusal), now_ms)
    }
}
