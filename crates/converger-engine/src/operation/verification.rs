//! What became of the change: found out by reading, after a task has ended, an answer was lost, or there was a crash.
//!
//! The promise of the change decides, never what a task said. A task that failed while the promise holds is done, and the
//! evidence says so: the declared state is reached, and the next plan finds nothing to do (S17 asks that a failed task is not
//! taken for a good one, and it is not; it is what was read that counts). A lost answer is looked for in the node's list of
//! tasks first, so that a task that is still at work is adopted and waited for.
//!
//! What never enters: sending. There is no way from here back to the change.

use std::cmp::Reverse;

use converger_core::action::Change;
use converger_core::apply::promise::{self, PostChangeReading, PromiseCheck, TaskEnd};
use converger_core::apply::{
    EnvFault, EnvFaultKind, EnvRequest, EnvResponse, Evidence, Fact, Findings, GuestAddress, LiveConfig, LiveStatus, ObservedTask, Outcome,
    ReleaseCondition, TaskId, TaskState,
};
use converger_core::failure::FailureCode;
use converger_core::guest::RunState;
use converger_core::observe::ObservedStatus;
use converger_core::plan::StepReason;
use converger_core::timestamp;

use super::patience::next_wait_ms;
use super::{OperationCommand, OperationStage, OperationState, response_fault};

/// How much older than our intent a task that has ended may look and still be taken for ours: its node's clock and ours are read one after the
/// other, and both may be mended meanwhile. One that is still at work is ours, whenever it says that it began.
const SKEW_SECS: u64 = 10;
/// A guest that is down so long after its reboot was not started again at once: its start is looked for.
const START_MS: u64 = 2_000;
/// How often a guest is followed to another node.
const MOVES_MAX: u32 = 3;

/// Why it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VerificationCause {
    /// The environment says that it is done.
    Sent,
    /// Its task ended well; it was begun so long ago.
    TaskEnded { warnings: u32, age_secs: Option<u64> },
    /// Its task ended with an error; it was begun so long ago.
    TaskFailed { cause: EnvFault, age_secs: Option<u64> },
    /// Nobody knows how its task ended.
    TaskLost(EnvFault),
    /// Nobody knows whether it arrived.
    Unknown { looks: usize },
}

/// What is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verification {
    cause: VerificationCause,
    reading: VerificationReading,
    live: Option<Box<LiveStatus>>,
    other_tasks: OtherTasks,
    /// A guest that is down after its reboot, while its start task is looked for.
    down: Option<Box<Down>>,
    waited_ms: u64,
    /// What was waited because nothing could be read.
    unreadable_ms: u64,
    /// What answers took that told nothing. It is not among what was waited: a task is older by that, and only by what surely went by.
    response_ms: u64,
    waiting: bool,
}

/// Tasks of others that do the same to the guest. What was sent before a crash may be one of them: the token can be another one since.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OtherTasks {
    /// There are none, or what was sent cannot be among them.
    None,
    /// One is at work: what comes of it can be read later.
    Running(Vec<Box<str>>),
    /// All have ended: nothing that is read later tells whose they were.
    Ended(Vec<Box<str>>),
}

/// What was read of a guest that is down after its reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Down {
    observed: Evidence,
    /// The last task that was to start it, once it was found.
    start: Option<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerificationReading {
    Tasks,
    Status,
    Config,
    Location,
    /// The start tasks of a guest that is down after its reboot.
    Starts,
    /// How the last of them ended.
    Start,
}

impl Verification {
    /// How old the task is that ended: as old as when that was read, and what was waited since. A guest that comes up meanwhile has
    /// been up for less than that.
    fn task_age_secs(&self) -> Option<u64> {
        let since_secs = self.waited_ms.saturating_add(self.unreadable_ms) / 1000;
        match self.cause {
            VerificationCause::TaskEnded { age_secs, .. } | VerificationCause::TaskFailed { age_secs, .. } => {
                age_secs.map(|secs| secs.saturating_add(since_secs))
            }
            VerificationCause::Sent | VerificationCause::TaskLost(_) | VerificationCause::Unknown { .. } => None,
        }
    }

    /// How the task ended, for a promise that it is part of.
    fn task_end(&self, is_moved: bool) -> Option<TaskEnd> {
        let is_failed = match self.cause {
            VerificationCause::TaskEnded { .. } => false,
            VerificationCause::TaskFailed { .. } => true,
            VerificationCause::Sent | VerificationCause::TaskLost(_) | VerificationCause::Unknown { .. } => return None,
        };
        Some(TaskEnd { is_failed, age_secs: self.task_age_secs(), is_moved })
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }
}

impl OperationState {
    pub(super) fn start_verification(&mut self, why: VerificationCause) -> Option<OperationCommand> {
        let (read, live, others, waiting) = (VerificationReading::Status, None, OtherTasks::None, true);
        self.restart_verification(Verification {
            cause: why,
            reading: read,
            live,
            other_tasks: others,
            down: None,
            waited_ms: 0,
            unreadable_ms: 0,
            response_ms: 0,
            waiting,
        })
    }

    /// From the first reading on: what was read before a wait is old.
    pub(super) fn restart_verification(&mut self, proving: Verification) -> Option<OperationCommand> {
        let has_tasks = self.operation.step.change.resulting_state().is_some();
        let read = match proving.cause {
            VerificationCause::Unknown { .. } if has_tasks => VerificationReading::Tasks,
            _ => self.first_reading(),
        };
        self.request_verification_reading(Verification { reading: read, live: None, down: None, waiting: false, ..proving })
    }

    fn first_reading(&self) -> VerificationReading {
        if promise::required_reads(&self.operation).status { VerificationReading::Status } else { VerificationReading::Config }
    }

    /// What was found in the journal is first shown to be the same guest.
    fn needs_config(&self) -> bool {
        promise::required_reads(&self.operation).config || self.is_recovered()
    }

    fn request_verification_reading(&mut self, proving: Verification) -> Option<OperationCommand> {
        let ask = match proving.reading {
            VerificationReading::Tasks => EnvRequest::Tasks {
                address: self.address.clone(),
                change: self.operation.step.change.clone(),
                // Whatever is at work counts, however old it says that it is. Of what has ended, a guest with a past would fill the
                // list with what cannot be ours, and a full list tells nothing.
                age_secs_max: self.task_age_secs_max(),
            },
            VerificationReading::Status => EnvRequest::Status(self.address.clone()),
            VerificationReading::Config => EnvRequest::Config(self.address.clone()),
            VerificationReading::Location => EnvRequest::Locate(self.address.vmid),
            VerificationReading::Starts => {
                EnvRequest::Tasks { address: self.address.clone(), change: Change::Start, age_secs_max: self.start_age_secs_max(&proving) }
            }
            VerificationReading::Start => match proving.down.as_ref().and_then(|down| down.start.clone()) {
                Some(start) => EnvRequest::Task(start),
                // INVARIANT: the start is read only once it was found; without it the guest is read again.
                None => EnvRequest::Status(self.address.clone()),
            },
        };
        self.stage = OperationStage::Verifying(proving);
        Some(OperationCommand::Request(ask))
    }

    pub(super) fn handle_verification_response(
        &mut self,
        proving: Verification,
        answer: EnvResponse,
        now_ms: u64,
    ) -> Option<OperationCommand> {
        match (proving.reading, answer) {
            (VerificationReading::Tasks, EnvResponse::Tasks(tasks)) => self.handle_found_tasks(proving, tasks, now_ms),
            (VerificationReading::Status, EnvResponse::Status(live)) if self.needs_config() => self
                .request_verification_reading(Verification { reading: VerificationReading::Config, live: Some(Box::new(live)), ..proving }),
            (VerificationReading::Status, EnvResponse::Status(live)) => {
                let proving = Verification { live: Some(Box::new(live)), ..proving };
                self.judge_outcome(proving, None, now_ms)
            }
            (VerificationReading::Config, EnvResponse::Config(config)) => self.judge_outcome(proving, Some(&config), now_ms),
            (VerificationReading::Status | VerificationReading::Config, EnvResponse::GuestNotFound(_)) => {
                self.request_verification_reading(Verification { reading: VerificationReading::Location, ..proving })
            }
            (VerificationReading::Starts, EnvResponse::Tasks(tasks)) => self.find_start(proving, &tasks, now_ms),
            (VerificationReading::Start, EnvResponse::Task(TaskState::Failed { cause, .. })) => self.left_down(proving, &cause, now_ms),
            (VerificationReading::Starts | VerificationReading::Start, EnvResponse::Unreadable(_)) => {
                let asked_ms = proving.response_ms.saturating_add(self.response_ms.max(1));
                self.still_down(Verification { response_ms: asked_ms, ..proving }, now_ms)
            }
            // A start that is at work or ended well explains nothing: the guest is read again.
            (VerificationReading::Starts | VerificationReading::Start, _) => self.still_down(proving, now_ms),
            (VerificationReading::Location, EnvResponse::Located(Some(found))) if self.is_other_node(&found) => {
                self.moves += 1;
                self.address = found;
                self.restart_verification(proving)
            }
            (_, other) => self.retry_verification_reading(proving, &response_fault(&other), now_ms),
        }
    }

    /// How old a task of ours can be: not older than the intent, by the clock of whoever counts.
    fn task_age_secs_max(&self) -> u64 {
        (self.now_ms.saturating_sub(self.intent_ms) / 1000).saturating_add(SKEW_SECS)
    }

    fn is_other_node(&self, found: &GuestAddress) -> bool {
        self.moves < MOVES_MAX && found.kind == self.address.kind && found.vmid == self.address.vmid && found.node != self.address.node
    }

    /// Tasks that may be this operation's. What the journal has as that of another operation is not, however young it is: the guest may
    /// have had the same change a moment ago.
    fn handle_found_tasks(&mut self, proving: Verification, tasks: Vec<ObservedTask>, now_ms: u64) -> Option<OperationCommand> {
        // Each by its own clock, of which only differences are compared.
        let age_secs_max = self.task_age_secs_max();
        let fits = |seen: &ObservedTask| seen.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max);
        let mut fitting: Vec<ObservedTask> = tasks.into_iter().filter(fits).collect();
        fitting.sort_by(|left, right| left.task.cmp(&right.task));
        fitting.dedup_by(|second, first| second.task == first.task);
        if fitting.is_empty() {
            return self.adopt_own_task(proving, &fitting, &[], now_ms);
        }
        let ids = fitting.iter().map(|seen| seen.task.clone()).collect();
        self.stage = OperationStage::FindingTaskOwners(proving, fitting);
        Some(OperationCommand::FindTaskOwners(ids))
    }

    /// Which of these tasks is ours: exactly one is adopted, several are for a person to tell apart.
    pub(super) fn adopt_own_task(
        &mut self,
        proving: Verification,
        tasks: &[ObservedTask],
        taken: &[TaskId],
        now_ms: u64,
    ) -> Option<OperationCommand> {
        let left = tasks.iter().filter(|seen| !taken.contains(&seen.task));
        let (candidates, others): (Vec<&ObservedTask>, Vec<&ObservedTask>) = left.partition(|seen| seen.is_ours);
        match candidates.as_slice() {
            [] => self.request_verification_reading(Verification {
                reading: self.first_reading(),
                other_tasks: self.classify_other_tasks(&others),
                ..proving
            }),
            [one] => {
                let task = one.task.clone();
                self.evidence = std::mem::take(&mut self.evidence).with("adopted", "found in the list of tasks");
                self.record_task(task, now_ms)
            }
            several => {
                let ids = several.iter().map(|seen| seen.task.as_str().into()).collect();
                let evidence = self.evidence.clone().with("tasks", Fact::Words(ids));
                let findings = Findings { evidence, ..Findings::default() };
                self.record_end(Outcome::new_held(FailureCode::OutcomeUnclear, ReleaseCondition::Person, findings), now_ms)
            }
        }
    }

    /// Without the journal nobody can say whose a task is.
    pub(super) fn retry_without_task_owners(&mut self, proving: Verification, why: &str, now_ms: u64) -> Option<OperationCommand> {
        self.retry_verification_reading(proving, &EnvFault::new(EnvFaultKind::Other, "journal-unreadable", why), now_ms)
    }

    /// Who still runs sends under the name that it asks with: what others began is theirs.
    fn classify_other_tasks(&self, others: &[&ObservedTask]) -> OtherTasks {
        if others.is_empty() || !self.is_recovered() {
            return OtherTasks::None;
        }
        let ids = others.iter().map(|seen| seen.task.as_str().into()).collect();
        if others.iter().any(|seen| seen.ended_age_secs.is_none()) { OtherTasks::Running(ids) } else { OtherTasks::Ended(ids) }
    }

    fn judge_outcome(&mut self, proving: Verification, config: Option<&LiveConfig>, now_ms: u64) -> Option<OperationCommand> {
        if let Some(found) = config.filter(|config| self.operation.guest.identity.as_ref().is_some_and(|own| *own != config.identity)) {
            let marks = found.identity.marks().into_iter().filter_map(|(name, mark)| Some(format!("{name}: {}", mark?).into()));
            let evidence = self.evidence.clone().with("other_guest", Fact::Words(marks.collect()));
            let findings = Findings { evidence, ..Findings::default() };
            return self.record_end(Outcome::new_held(FailureCode::OutcomeUnclear, ReleaseCondition::Person, findings), now_ms);
        }
        let after = PostChangeReading {
            live: proving.live.as_deref(),
            config,
            uptime_before_secs: self.uptime_before_secs,
            elapsed_secs: self.waited_ms / 1000,
            recorded_uptime_secs: self.recorded_uptime_secs,
            task: proving.task_end(self.moves > 0),
        };
        match promise::check_promise(&self.operation, after) {
            PromiseCheck::Kept(seen) => self.end_promise_kept(&proving.cause, seen, now_ms),
            PromiseCheck::NotKept(seen) => self.handle_promise_not_kept(proving, seen, now_ms),
            PromiseCheck::Unclear(seen) if promise::is_idempotent(&self.operation.step.change) => {
                self.retry_verification_reading(proving, &EnvFault::new(EnvFaultKind::Other, "unclear", &join_evidence_keys(&seen)), now_ms)
            }
            // A reboot that is not shown by what was read cannot be told from none, however often it is read.
            PromiseCheck::Unclear(seen) => self.hold_unclear(&proving.cause, seen, now_ms),
        }
    }

    fn end_promise_kept(&mut self, why: &VerificationCause, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let is_idempotent = promise::is_idempotent(&self.operation.step.change);
        let evidence = self.with_task(self.evidence.clone());
        let evidence = match why {
            VerificationCause::Sent | VerificationCause::TaskEnded { warnings: 0, .. } => evidence,
            VerificationCause::TaskEnded { warnings, .. } => evidence.with("warnings", u64::from(*warnings)),
            VerificationCause::TaskFailed { cause, .. } => evidence.with("task_error", &*cause.text),
            VerificationCause::TaskLost(_) | VerificationCause::Unknown { .. } if !is_idempotent => {
                return self.hold_unclear(why, observed, now_ms);
            }
            VerificationCause::TaskLost(cause) => evidence.with("task_lost", cause.word.as_str()),
            VerificationCause::Unknown { .. } => evidence.with("found_so", "after the answer was lost"),
        };
        self.record_end(Outcome::Done(Findings { evidence, observed }), now_ms)
    }

    /// It is as if it had not been done, or not yet.
    fn handle_promise_not_kept(&mut self, proving: Verification, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let change = &self.operation.step.change;
        let evidence = self.with_task(self.evidence.clone());
        match &proving.cause {
            VerificationCause::TaskEnded { .. } if self.is_down_after_reboot(&proving) => self.look_for_start(proving, observed, now_ms),
            VerificationCause::Sent | VerificationCause::TaskEnded { .. } => self.not_yet_kept(proving, observed, now_ms),
            VerificationCause::TaskFailed { cause, .. } => {
                let findings = Findings { evidence: cause.add_to_evidence(evidence), observed };
                self.record_end(self.task_failure_outcome(cause, findings), now_ms)
            }
            // However often it is read: a worker that is gone may have begun, and what it began may come later (S17).
            VerificationCause::TaskLost(_) => self.hold_unclear(&proving.cause, observed, now_ms),
            VerificationCause::Unknown { looks } => match self.patience.lookup_waits_ms.get(*looks).copied() {
                Some(ms) => {
                    let why = VerificationCause::Unknown { looks: looks + 1 };
                    self.stage = OperationStage::Verifying(Verification { cause: why, waiting: true, ..proving });
                    self.wait(ms)
                }
                None if proving.other_tasks != OtherTasks::None => self.hold_for_other_tasks(&proving.other_tasks, observed, now_ms),
                None if promise::is_idempotent(change) && self.late_arrival_left_ms(now_ms) > 0 => {
                    self.hold_for_late_arrival(evidence, observed, now_ms)
                }
                None if promise::is_idempotent(change) => {
                    self.record_end(Outcome::new_failed(FailureCode::NotCarriedOut, Findings { evidence, observed }), now_ms)
                }
                None => self.hold_unclear(&proving.cause, observed, now_ms),
            },
        }
    }

    /// The task ended well, and the guest is not as promised: it is read again for as long as that may take.
    fn not_yet_kept(&mut self, proving: Verification, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let (change, evidence) = (&self.operation.step.change, self.with_task(self.evidence.clone()));
        if proving.waited_ms < self.patience.promise_timeout_ms(change) {
            return self.schedule_reread(proving);
        }
        // Its task ended when it went down: nobody waits here until it is up, and nobody says that it never will be.
        if matches!(proving.cause, VerificationCause::TaskEnded { .. }) && self.patience.may_still_boot(change, proving.task_age_secs()) {
            return self.record_end(
                Outcome::new_held(FailureCode::TaskAtWork, ReleaseCondition::Reading, Findings { evidence, observed }),
                now_ms,
            );
        }
        let code = if self.is_down_after_reboot(&proving) { FailureCode::GuestLeftDown } else { FailureCode::PromiseBroken };
        self.record_end(Outcome::new_failed(code, Findings { evidence, observed }), now_ms)
    }

    /// Whether a guest is down although its reboot ended well: its node starts it by another task, which may have failed.
    fn is_down_after_reboot(&self, proving: &Verification) -> bool {
        let is_stopped = |live: &LiveStatus| live.status == ObservedStatus::Known(RunState::Stopped);
        matches!(self.operation.step.change, Change::Reboot { .. }) && proving.live.as_deref().is_some_and(is_stopped)
    }

    /// Asks for the start tasks of a guest that is down after its reboot. Most guests are up a moment later, and nothing is asked about them;
    /// where readings fail it is asked once more, before the guest is given up.
    fn look_for_start(&mut self, proving: Verification, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let is_last = proving.waited_ms >= self.patience.promise_timeout_ms(&self.operation.step.change);
        let is_early = proving.waited_ms < START_MS || proving.response_ms > 0;
        if is_early && !is_last {
            return self.not_yet_kept(proving, observed, now_ms);
        }
        self.request_verification_reading(Verification {
            reading: VerificationReading::Starts,
            down: Some(Box::new(Down { observed, start: None })),
            ..proving
        })
    }

    /// How old a start task may be to come after the reboot.
    fn start_age_secs_max(&self, proving: &Verification) -> u64 {
        proving.task_age_secs().unwrap_or_else(|| self.task_age_secs_max())
    }

    /// The last start after the reboot, whoever began it: the node itself does it under another name than ours.
    fn find_start(&mut self, proving: Verification, tasks: &[ObservedTask], now_ms: u64) -> Option<OperationCommand> {
        let age_secs_max = self.start_age_secs_max(&proving);
        let since = tasks.iter().filter(|seen| seen.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max));
        // One at work has no age here and comes before all others; of one second the later id counts.
        let last = since.min_by_key(|seen| (seen.ended_age_secs, Reverse(seen.task.clone())));
        match (last.filter(|seen| seen.ended_age_secs.is_some()), &proving.down) {
            (Some(seen), Some(down)) => {
                let down = Down { start: Some(seen.task.clone()), ..(**down).clone() };
                self.request_verification_reading(Verification {
                    reading: VerificationReading::Start,
                    down: Some(Box::new(down)),
                    ..proving
                })
            }
            _ => self.still_down(proving, now_ms),
        }
    }

    fn still_down(&mut self, proving: Verification, now_ms: u64) -> Option<OperationCommand> {
        let observed = proving.down.as_ref().map(|down| down.observed.clone()).unwrap_or_default();
        self.not_yet_kept(proving, observed, now_ms)
    }

    /// The guest went down for its reboot, and the task that was to start it failed: it stays down, and waiting does not help.
    fn left_down(&mut self, proving: Verification, cause: &EnvFault, now_ms: u64) -> Option<OperationCommand> {
        let Some(down) = proving.down.clone() else { return self.restart_verification(proving) };
        let evidence = cause.add_to_evidence(self.with_task(self.evidence.clone()));
        let evidence = down.start.iter().fold(evidence, |evidence, start| evidence.with("start_task", start.as_str()));
        self.record_end(Outcome::new_failed(FailureCode::GuestLeftDown, Findings { evidence, observed: down.observed }), now_ms)
    }

    /// Nothing shows it, and it may have been sent so short a time ago that it still comes: the next start after that settles it.
    fn hold_for_late_arrival(&mut self, evidence: Evidence, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let until_ms = now_ms.saturating_add(self.late_arrival_left_ms(now_ms));
        let evidence = evidence.with("may_come_until", &*timestamp::format_timestamp(until_ms.div_ceil(1000)));
        self.record_end(Outcome::new_held(FailureCode::OutcomeUnclear, ReleaseCondition::Reading, Findings { evidence, observed }), now_ms)
    }

    /// Nothing shows it but a task that somebody else began, or that was ours under another name: nobody can say that nothing was carried
    /// out, and it is not sent again.
    fn hold_for_other_tasks(&mut self, others: &OtherTasks, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let is_idempotent = promise::is_idempotent(&self.operation.step.change);
        let (release, ids) = match others {
            OtherTasks::Running(ids) if is_idempotent => (ReleaseCondition::Reading, ids.clone()),
            OtherTasks::Running(ids) | OtherTasks::Ended(ids) => (ReleaseCondition::Person, ids.clone()),
            OtherTasks::None => (ReleaseCondition::Person, Vec::new()),
        };
        let evidence = self.with_task(self.evidence.clone()).with("tasks_of_others", Fact::Words(ids.into()));
        self.record_end(Outcome::new_held(FailureCode::OutcomeUnclear, release, Findings { evidence, observed }), now_ms)
    }

    /// A guest that did not go down in time may still do so: it is held until it is read again (design 6.22).
    fn task_failure_outcome(&self, cause: &EnvFault, findings: Findings) -> Outcome {
        match cause.kind {
            EnvFaultKind::ShutdownTimeout if self.is_held_reread() => Outcome::new_failed(FailureCode::ShutdownTimeout, findings),
            EnvFaultKind::ShutdownTimeout => Outcome::new_held(FailureCode::ShutdownTimeout, ReleaseCondition::Reading, findings),
            _ if self.is_start_of_restart() => Outcome::new_failed(FailureCode::GuestLeftDown, findings),
            _ => Outcome::new_failed(FailureCode::TaskFailed, findings),
        }
    }

    /// Whether this start is the second half of a restart: the guest ran, and was taken down for it.
    fn is_start_of_restart(&self) -> bool {
        let step = &self.operation.step;
        step.change == Change::Start && matches!(step.reason, StepReason::RestartForConfig(_))
    }

    /// What was read does not settle it. What leads to the same twice is settled by the next reading that shows it, and so is a reboot whose
    /// task ended and of which something could not be read this time.
    fn hold_unclear(&mut self, why: &VerificationCause, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let is_incomplete =
            matches!(why, VerificationCause::TaskEnded { .. } | VerificationCause::TaskFailed { .. }) && observed.get("unread").is_some();
        let is_read_later = is_incomplete || promise::is_idempotent(&self.operation.step.change);
        let release = if is_read_later { ReleaseCondition::Reading } else { ReleaseCondition::Person };
        let evidence = self.with_task(self.evidence.clone());
        let (code, evidence) = match why {
            VerificationCause::TaskLost(cause) => (FailureCode::TaskLost, cause.add_to_evidence(evidence)),
            _ => (FailureCode::OutcomeUnclear, evidence),
        };
        self.record_end(Outcome::new_held(code, release, Findings { evidence, observed }), now_ms)
    }

    /// The reading gave nothing.
    fn retry_verification_reading(&mut self, proving: Verification, cause: &EnvFault, now_ms: u64) -> Option<OperationCommand> {
        let proving = Verification { response_ms: proving.response_ms.saturating_add(self.response_ms), ..proving };
        if proving.unreadable_ms.saturating_add(proving.response_ms) < self.patience.unreadable_ms {
            let ms = next_wait_ms(proving.unreadable_ms);
            self.stage = OperationStage::Verifying(Verification {
                unreadable_ms: proving.unreadable_ms.saturating_add(ms),
                waiting: true,
                ..proving
            });
            return self.wait(ms);
        }
        let evidence = cause.add_to_evidence(self.with_task(self.evidence.clone()));
        self.hold_until_reading(FailureCode::OutcomeUnread, evidence, now_ms)
    }

    fn schedule_reread(&mut self, proving: Verification) -> Option<OperationCommand> {
        let ms = next_wait_ms(proving.waited_ms);
        self.stage = OperationStage::Verifying(Verification { waited_ms: proving.waited_ms.saturating_add(ms), waiting: true, ..proving });
        self.wait(ms)
    }
}

fn join_evidence_keys(evidence: &Evidence) -> String {
    evidence.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", ")
}
