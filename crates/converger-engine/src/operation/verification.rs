//! Finds out the result of a change by reading, after a task has ended, a response was lost or the program crashed.
//!
//! The promise of the change decides, never the result of the task. If the task failed but the promise holds, the operation is done, and
//! the evidence says so: the declared state is reached, and the next plan finds nothing to do. S17 is kept, because what is read counts and
//! not the failed task. After a lost response the task list of the node is searched first, so that a task that is still running is
//! adopted and waited for.
//!
//! Must not send anything: no transition leads from here back to the change.

use std::cmp::Reverse;

use converger_core::action::Change;
use converger_core::apply::promise::{self, PostChangeReading, PromiseCheck, TaskEnd};
use converger_core::apply::{
    EnvFault, EnvFaultKind, EnvRequest, EnvResponse, Evidence, Fact, Findings, GuestAddress, IdState, LiveConfig, LiveStatus, ObservedTask,
    Outcome, ReleaseCondition, TaskId, TaskState,
};
use converger_core::failure::FailureCode;
use converger_core::guest::RunState;
use converger_core::observe::{ObservedStatus, SnapshotTree};
use converger_core::plan::StepReason;
use converger_core::timestamp;

use super::patience::next_wait_ms;
use super::{OperationCommand, OperationStage, OperationState, incomplete_ids_fault, response_fault};

/// How much older than the intent an ended task may appear and still be ours: the clocks of the node and of this machine are read one
/// after the other, and both may be adjusted in between. A running task may be ours whatever its start time is.
const SKEW_SECS: u64 = 10;
/// If a guest is down this long after its reboot, its node has not started it again at once: its start task is searched.
const START_MS: u64 = 2_000;
/// How often a guest is followed to another node.
const MOVES_MAX: u32 = 3;

/// Why the result is being read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VerificationCause {
    /// The environment reported the change as done.
    Sent,
    /// The task succeeded; `age_secs` is the time since it started.
    TaskEnded { warnings: u32, age_secs: Option<u64> },
    /// The task failed; `age_secs` is the time since it started.
    TaskFailed { cause: EnvFault, age_secs: Option<u64> },
    /// The result of the task is unknown.
    TaskLost(EnvFault),
    /// It is unknown whether the change arrived.
    Unknown { looks: usize },
}

/// The verification in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verification {
    cause: VerificationCause,
    reading: VerificationReading,
    live: Option<Box<LiveStatus>>,
    /// The config, if snapshots are read after it.
    config: Option<Box<LiveConfig>>,
    other_tasks: OtherTasks,
    /// Set if the guest is down after its reboot, while its start task is searched.
    down: Option<Box<Down>>,
    waited_ms: u64,
    /// The time waited because nothing could be read.
    unreadable_ms: u64,
    /// The duration of responses without a result. It is not part of the time waited: the age of a task may only grow by time that has
    /// certainly passed.
    response_ms: u64,
    waiting: bool,
}

/// Tasks of other users with the same effect on the guest. A change that was sent before a crash may be among them, because the token may
/// have changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
enum OtherTasks {
    /// There are none, or the change cannot be among them.
    None,
    /// One is running: its effect can be read later.
    Running(Vec<Box<str>>),
    /// All have ended: no later reading can show whose they were.
    Ended(Vec<Box<str>>),
}

/// A guest that is down after its reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Down {
    observed: Evidence,
    /// The last start task, once it was found.
    start: Option<TaskId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VerificationReading {
    Tasks,
    Status,
    Config,
    Snapshots,
    Location,
    /// Whether the id of a new guest that was not found is free in the whole cluster.
    NewId,
    /// Whether the id of its source is taken, which shows that the answer about the new id came from a complete list (S5).
    SourceId,
    /// The start tasks of a guest that is down after its reboot.
    Starts,
    /// The result of the last of them.
    Start,
}

impl Verification {
    /// The age of the ended task: its age when it was read, plus the time waited since. A guest that came up after it has a smaller
    /// uptime.
    fn task_age_secs(&self) -> Option<u64> {
        let since_secs = self.waited_ms.saturating_add(self.unreadable_ms) / 1000;
        match self.cause {
            VerificationCause::TaskEnded { age_secs, .. } | VerificationCause::TaskFailed { age_secs, .. } => {
                age_secs.map(|secs| secs.saturating_add(since_secs))
            }
            VerificationCause::Sent | VerificationCause::TaskLost(_) | VerificationCause::Unknown { .. } => None,
        }
    }

    /// The result of the task, for promises that depend on it.
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
        let (read, others, waiting) = (VerificationReading::Status, OtherTasks::None, true);
        self.restart_verification(Verification {
            cause: why,
            reading: read,
            live: None,
            config: None,
            other_tasks: others,
            down: None,
            waited_ms: 0,
            unreadable_ms: 0,
            response_ms: 0,
            waiting,
        })
    }

    /// Restarts with the first reading: readings from before a wait are old.
    pub(super) fn restart_verification(&mut self, verification: Verification) -> Option<OperationCommand> {
        let has_tasks = !matches!(self.operation.step.change, Change::ConfigSet(_) | Change::Provision(_));
        let read = match verification.cause {
            VerificationCause::Unknown { .. } if has_tasks => VerificationReading::Tasks,
            _ => self.first_reading(&verification.cause),
        };
        let waiting = false;
        self.request_verification_reading(Verification { reading: read, live: None, config: None, down: None, waiting, ..verification })
    }

    /// After a lost response the run-state is read whatever the change promises: the same daemon that would execute the change answers it,
    /// and while the daemon hangs nothing is concluded (decision 0016). A config is answered by another process of the node.
    fn first_reading(&self, cause: &VerificationCause) -> VerificationReading {
        let is_lost = matches!(cause, VerificationCause::Unknown { .. });
        if is_lost || promise::required_reads(&self.operation).status { VerificationReading::Status } else { VerificationReading::Config }
    }

    /// A recovered operation must also prove that it reads the same guest.
    fn needs_config(&self) -> bool {
        promise::required_reads(&self.operation).config || self.is_recovered()
    }

    fn request_verification_reading(&mut self, verification: Verification) -> Option<OperationCommand> {
        let request = match verification.reading {
            VerificationReading::Tasks => EnvRequest::Tasks {
                address: self.address.clone(),
                change: self.operation.step.change.clone(),
                // Running tasks count whatever their age. The age limits ended tasks only: a guest with a long history would fill the
                // list with tasks that cannot be ours, and a full list proves nothing.
                age_secs_max: self.task_age_secs_max(),
            },
            VerificationReading::Status => EnvRequest::Status(self.address.clone()),
            VerificationReading::Config => EnvRequest::Config(self.result_address()),
            VerificationReading::Snapshots => EnvRequest::Snapshots(self.address.clone()),
            VerificationReading::Location => EnvRequest::Locate(self.address.vmid),
            VerificationReading::NewId => EnvRequest::IdState(self.operation.guest.vmid),
            VerificationReading::SourceId => EnvRequest::IdState(self.address.vmid),
            VerificationReading::Starts => EnvRequest::Tasks {
                address: self.address.clone(),
                change: Change::Start,
                age_secs_max: self.start_age_secs_max(&verification),
            },
            VerificationReading::Start => match verification.down.as_ref().and_then(|down| down.start.clone()) {
                Some(start) => EnvRequest::Task(start),
                // INVARIANT: the start task is read only after it was found; without it the guest is read again.
                None => EnvRequest::Status(self.address.clone()),
            },
        };
        self.stage = OperationStage::Verifying(verification);
        Some(OperationCommand::Request(request))
    }

    pub(super) fn handle_verification_response(
        &mut self,
        verification: Verification,
        answer: EnvResponse,
        now_ms: u64,
    ) -> Option<OperationCommand> {
        match (verification.reading, answer) {
            (VerificationReading::Tasks, EnvResponse::Tasks(tasks)) => self.handle_found_tasks(verification, tasks, now_ms),
            (VerificationReading::Status, EnvResponse::Status(live)) if self.needs_config() => {
                // The run-state of the source of a clone says nothing about the new guest.
                let live = (!self.makes_guest()).then(|| Box::new(live));
                self.request_verification_reading(Verification { reading: VerificationReading::Config, live, ..verification })
            }
            // The source is gone, and its daemon has said so.
            (VerificationReading::Status, EnvResponse::GuestNotFound(_)) if self.makes_guest() => {
                self.request_verification_reading(Verification { reading: VerificationReading::Config, ..verification })
            }
            (VerificationReading::Status, EnvResponse::Status(live)) => {
                let verification = Verification { live: Some(Box::new(live)), ..verification };
                self.judge_outcome(verification, None, None, now_ms)
            }
            (VerificationReading::Config, EnvResponse::Config(config)) if promise::required_reads(&self.operation).snapshots => self
                .request_verification_reading(Verification {
                    reading: VerificationReading::Snapshots,
                    config: Some(config),
                    ..verification
                }),
            (VerificationReading::Config, EnvResponse::Config(config)) => self.judge_outcome(verification, Some(&config), None, now_ms),
            (VerificationReading::Snapshots, EnvResponse::Snapshots(tree)) => {
                let config = verification.config.clone();
                self.judge_outcome(verification, config.as_deref(), Some(&tree), now_ms)
            }
            // A guest that is not on its node was not made, or not yet, or is still being made on the node of its source.
            (VerificationReading::Config, EnvResponse::GuestNotFound(_)) if self.makes_guest() => {
                self.request_verification_reading(Verification { reading: VerificationReading::NewId, ..verification })
            }
            (VerificationReading::NewId, EnvResponse::IdState(IdState::Free)) => {
                self.request_verification_reading(Verification { reading: VerificationReading::SourceId, ..verification })
            }
            (VerificationReading::SourceId, EnvResponse::IdState(IdState::Free)) => {
                self.retry_verification_reading(verification, &incomplete_ids_fault(), now_ms)
            }
            (VerificationReading::SourceId, EnvResponse::IdState(IdState::Taken)) => {
                self.handle_promise_not_kept(verification, Evidence::default().with("new_id", "free"), now_ms)
            }
            (VerificationReading::NewId, EnvResponse::IdState(IdState::Taken)) => self.handle_taken_id(verification, now_ms),
            (VerificationReading::Snapshots, EnvResponse::GuestNotFound(_)) => {
                self.request_verification_reading(Verification { reading: VerificationReading::Location, ..verification })
            }
            (VerificationReading::Status | VerificationReading::Config, EnvResponse::GuestNotFound(_)) => {
                self.request_verification_reading(Verification { reading: VerificationReading::Location, ..verification })
            }
            (VerificationReading::Starts, EnvResponse::Tasks(tasks)) => self.find_start(verification, &tasks, now_ms),
            (VerificationReading::Start, EnvResponse::Task(TaskState::Failed { cause, .. })) => {
                self.left_down(verification, &cause, now_ms)
            }
            (VerificationReading::Starts | VerificationReading::Start, EnvResponse::Unreadable(_)) => {
                let asked_ms = verification.response_ms.saturating_add(self.response_ms.max(1));
                self.still_down(Verification { response_ms: asked_ms, ..verification }, now_ms)
            }
            // A start that is running or succeeded explains nothing: the guest is read again.
            (VerificationReading::Starts | VerificationReading::Start, _) => self.still_down(verification, now_ms),
            (VerificationReading::Location, EnvResponse::Located(Some(found))) if self.is_other_node(&found) => {
                self.moves += 1;
                self.address = found;
                self.restart_verification(verification)
            }
            (_, other) => self.retry_verification_reading(verification, &response_fault(&other), now_ms),
        }
    }

    /// The maximum age of a task of ours: it cannot be older than the intent.
    fn task_age_secs_max(&self) -> u64 {
        (self.now_ms.saturating_sub(self.intent_ms) / 1000).saturating_add(SKEW_SECS)
    }

    fn is_other_node(&self, found: &GuestAddress) -> bool {
        self.moves < MOVES_MAX && found.kind == self.address.kind && found.vmid == self.address.vmid && found.node != self.address.node
    }

    /// Filters the tasks that may belong to this operation. A task that the journal assigns to another operation does not, however recent
    /// it is: the guest may have had the same change a moment ago.
    fn handle_found_tasks(&mut self, verification: Verification, tasks: Vec<ObservedTask>, now_ms: u64) -> Option<OperationCommand> {
        // Ages are compared instead of times, so that each clock is only compared with itself.
        let age_secs_max = self.task_age_secs_max();
        let fits = |seen: &ObservedTask| seen.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max);
        let mut fitting: Vec<ObservedTask> = tasks.into_iter().filter(fits).collect();
        fitting.sort_by(|left, right| left.task.cmp(&right.task));
        fitting.dedup_by(|second, first| second.task == first.task);
        if fitting.is_empty() {
            return self.adopt_own_task(verification, &fitting, &[], now_ms);
        }
        let ids = fitting.iter().map(|seen| seen.task.clone()).collect();
        self.stage = OperationStage::FindingTaskOwners(verification, fitting);
        Some(OperationCommand::FindTaskOwners(ids))
    }

    /// Adopts the task of this operation if there is exactly one candidate. If there are several, a person must decide.
    pub(super) fn adopt_own_task(
        &mut self,
        verification: Verification,
        tasks: &[ObservedTask],
        tasks_of_others: &[TaskId],
        now_ms: u64,
    ) -> Option<OperationCommand> {
        let left = tasks.iter().filter(|seen| !tasks_of_others.contains(&seen.task));
        let (candidates, others): (Vec<&ObservedTask>, Vec<&ObservedTask>) = left.partition(|seen| seen.is_ours);
        match candidates.as_slice() {
            [] => self.request_verification_reading(Verification {
                reading: self.first_reading(&verification.cause),
                other_tasks: self.classify_other_tasks(&others),
                ..verification
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

    /// Without the journal the owner of a task is unknown.
    pub(super) fn retry_without_task_owners(&mut self, verification: Verification, why: &str, now_ms: u64) -> Option<OperationCommand> {
        self.retry_verification_reading(verification, &EnvFault::new(EnvFaultKind::Other, "journal-unreadable", why), now_ms)
    }

    /// A live process sends and lists tasks with the same token, so tasks of other users are not its own.
    fn classify_other_tasks(&self, others: &[&ObservedTask]) -> OtherTasks {
        if others.is_empty() || !self.is_recovered() {
            return OtherTasks::None;
        }
        let ids = others.iter().map(|seen| seen.task.as_str().into()).collect();
        if others.iter().any(|seen| seen.ended_age_secs.is_none()) { OtherTasks::Running(ids) } else { OtherTasks::Ended(ids) }
    }

    /// Where the result of the change is read: the new guest of a clone, otherwise the guest itself.
    fn result_address(&self) -> GuestAddress {
        if self.makes_guest() { self.operation.guest.address() } else { self.address.clone() }
    }

    fn makes_guest(&self) -> bool {
        matches!(self.operation.step.change, Change::Clone(_))
    }

    fn judge_outcome(
        &mut self,
        verification: Verification,
        config: Option<&LiveConfig>,
        snapshots: Option<&SnapshotTree>,
        now_ms: u64,
    ) -> Option<OperationCommand> {
        if let Some(found) = config.filter(|config| self.operation.guest.identity.as_ref().is_some_and(|own| *own != config.identity)) {
            let marks = found.identity.marks().into_iter().filter_map(|(name, mark)| Some(format!("{name}: {}", mark?).into()));
            let evidence = self.evidence.clone().with("other_guest", Fact::Words(marks.collect()));
            let findings = Findings { evidence, ..Findings::default() };
            return self.record_end(Outcome::new_held(FailureCode::OutcomeUnclear, ReleaseCondition::Person, findings), now_ms);
        }
        let after = PostChangeReading {
            live: verification.live.as_deref(),
            config,
            snapshots,
            node: Some(&self.address.node),
            uptime_before_secs: self.uptime_before_secs,
            elapsed_secs: self.waited_ms / 1000,
            recorded_uptime_secs: self.recorded_uptime_secs,
            task: verification.task_end(self.moves > 0),
        };
        match promise::check_promise(&self.operation, after) {
            PromiseCheck::Kept(seen) => self.end_promise_kept(&verification.cause, seen, now_ms),
            PromiseCheck::NotKept(seen) => self.handle_promise_not_kept(verification, seen, now_ms),
            PromiseCheck::Unclear(seen) if promise::is_idempotent(&self.operation.step.change) => self.retry_verification_reading(
                verification,
                &EnvFault::new(EnvFaultKind::Other, "unclear", &join_evidence_keys(&seen)),
                now_ms,
            ),
            // A reboot that the readings do not prove cannot be proven by more readings.
            PromiseCheck::Unclear(seen) => self.hold_unclear(&verification.cause, seen, now_ms),
        }
    }

    fn end_promise_kept(&mut self, why: &VerificationCause, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let is_idempotent = promise::is_idempotent(&self.operation.step.change);
        let evidence = self.with_task(self.evidence.clone());
        let evidence = match why {
            VerificationCause::Sent | VerificationCause::TaskEnded { warnings: 0, .. } => evidence,
            VerificationCause::TaskEnded { warnings, .. } => evidence.with("warnings", u64::from(*warnings)),
            // The guest may be another one that took the id: a person must compare them.
            VerificationCause::TaskFailed { .. } if self.makes_guest() => return self.hold_unclear(why, observed, now_ms),
            VerificationCause::TaskFailed { cause, .. } => evidence.with("task_error", &*cause.text),
            VerificationCause::TaskLost(_) | VerificationCause::Unknown { .. } if !is_idempotent => {
                return self.hold_unclear(why, observed, now_ms);
            }
            VerificationCause::TaskLost(cause) => evidence.with("task_lost", cause.word.as_str()),
            VerificationCause::Unknown { .. } => evidence.with("found_so", "after the answer was lost"),
        };
        self.record_end(Outcome::Done(Findings { evidence, observed }), now_ms)
    }

    /// The change has no effect, or none yet.
    fn handle_promise_not_kept(&mut self, verification: Verification, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let change = &self.operation.step.change;
        let evidence = self.with_task(self.evidence.clone());
        match &verification.cause {
            VerificationCause::TaskEnded { .. } if self.is_down_after_reboot(&verification) => {
                self.look_for_start(verification, observed, now_ms)
            }
            VerificationCause::Sent | VerificationCause::TaskEnded { .. } => self.not_yet_kept(verification, observed, now_ms),
            VerificationCause::TaskFailed { cause, .. } => {
                let findings = Findings { evidence: cause.add_to_evidence(evidence), observed };
                self.record_end(self.task_failure_outcome(cause, findings), now_ms)
            }
            // However often it is read: a lost worker may have started, and its effect may come later (S17).
            VerificationCause::TaskLost(_) => self.hold_unclear(&verification.cause, observed, now_ms),
            VerificationCause::Unknown { looks: lookups } => match self.patience.lookup_waits_ms.get(*lookups).copied() {
                Some(ms) => {
                    let looks = lookups + 1;
                    self.wait_to_look_again(verification, looks, ms)
                }
                None if verification.other_tasks != OtherTasks::None => {
                    self.hold_for_other_tasks(&verification.other_tasks, observed, now_ms)
                }
                None if promise::is_absence_shown(change) && self.late_arrival_left_ms(now_ms) > 0 => {
                    self.hold_for_late_arrival(evidence, observed, now_ms)
                }
                None if promise::is_absence_shown(change) => {
                    self.record_end(Outcome::new_failed(FailureCode::NotCarriedOut, Findings { evidence, observed }), now_ms)
                }
                None => self.hold_unclear(&verification.cause, observed, now_ms),
            },
        }
    }

    /// The new guest is not on its node, and its id is taken: it may be this guest on the node of its source, or another one. It counts as
    /// not made only once its id is free.
    fn handle_taken_id(&mut self, verification: Verification, now_ms: u64) -> Option<OperationCommand> {
        let observed = Evidence::default().with("new_id", "taken");
        match &verification.cause {
            VerificationCause::Sent | VerificationCause::TaskEnded { .. } => self.not_yet_kept(verification, observed, now_ms),
            VerificationCause::Unknown { looks } => match self.patience.lookup_waits_ms.get(*looks).copied() {
                Some(ms) => {
                    let looks = looks + 1;
                    self.wait_to_look_again(verification, looks, ms)
                }
                None => self.hold_unclear(&verification.cause, observed, now_ms),
            },
            VerificationCause::TaskFailed { .. } | VerificationCause::TaskLost(_) => {
                self.hold_unclear(&verification.cause, observed, now_ms)
            }
        }
    }

    fn wait_to_look_again(&mut self, verification: Verification, looks: usize, ms: u64) -> Option<OperationCommand> {
        let cause = VerificationCause::Unknown { looks };
        self.stage = OperationStage::Verifying(Verification { cause, waiting: true, ..verification });
        self.wait(ms)
    }

    /// The task succeeded but the promise does not hold yet: the guest is read again until the timeout.
    fn not_yet_kept(&mut self, verification: Verification, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let (change, evidence) = (&self.operation.step.change, self.with_task(self.evidence.clone()));
        if verification.waited_ms < self.patience.promise_timeout_ms(change) {
            return self.schedule_reread(verification);
        }
        // The task of a reboot ends when the guest is down. Recovery does not wait until it is up, and does not report that it never will
        // be.
        if matches!(verification.cause, VerificationCause::TaskEnded { .. })
            && self.patience.may_still_boot(change, verification.task_age_secs())
        {
            return self.record_end(
                Outcome::new_held(FailureCode::TaskAtWork, ReleaseCondition::Reading, Findings { evidence, observed }),
                now_ms,
            );
        }
        let code = if self.is_down_after_reboot(&verification) { FailureCode::GuestLeftDown } else { FailureCode::PromiseBroken };
        self.record_end(Outcome::new_failed(code, Findings { evidence, observed }), now_ms)
    }

    /// Whether a guest is down although its reboot succeeded: its node starts it by another task, which may have failed.
    fn is_down_after_reboot(&self, verification: &Verification) -> bool {
        let is_stopped = |live: &LiveStatus| live.status == ObservedStatus::Known(RunState::Stopped);
        matches!(self.operation.step.change, Change::Reboot { .. }) && verification.live.as_deref().is_some_and(is_stopped)
    }

    /// Requests the start tasks of a guest that is down after its reboot. Most guests are up a moment later and need no request. If
    /// readings fail, the request is made once more before the guest is given up.
    fn look_for_start(&mut self, verification: Verification, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let is_last = verification.waited_ms >= self.patience.promise_timeout_ms(&self.operation.step.change);
        let is_early = verification.waited_ms < START_MS || verification.response_ms > 0;
        if is_early && !is_last {
            return self.not_yet_kept(verification, observed, now_ms);
        }
        self.request_verification_reading(Verification {
            reading: VerificationReading::Starts,
            down: Some(Box::new(Down { observed, start: None })),
            ..verification
        })
    }

    /// The maximum age of a start task that came after the reboot.
    fn start_age_secs_max(&self, verification: &Verification) -> u64 {
        verification.task_age_secs().unwrap_or_else(|| self.task_age_secs_max())
    }

    /// Finds the last start after the reboot, of any user: the node starts the guest under another name than ours.
    fn find_start(&mut self, verification: Verification, tasks: &[ObservedTask], now_ms: u64) -> Option<OperationCommand> {
        let age_secs_max = self.start_age_secs_max(&verification);
        let since = tasks.iter().filter(|seen| seen.ended_age_secs.is_none_or(|age_secs| age_secs <= age_secs_max));
        // A running task has no age here and sorts first; within one second the later id counts.
        let last = since.min_by_key(|seen| (seen.ended_age_secs, Reverse(seen.task.clone())));
        match (last.filter(|seen| seen.ended_age_secs.is_some()), &verification.down) {
            (Some(seen), Some(down)) => {
                let down = Down { start: Some(seen.task.clone()), ..(**down).clone() };
                self.request_verification_reading(Verification {
                    reading: VerificationReading::Start,
                    down: Some(Box::new(down)),
                    ..verification
                })
            }
            _ => self.still_down(verification, now_ms),
        }
    }

    fn still_down(&mut self, verification: Verification, now_ms: u64) -> Option<OperationCommand> {
        let observed = verification.down.as_ref().map(|down| down.observed.clone()).unwrap_or_default();
        self.not_yet_kept(verification, observed, now_ms)
    }

    /// The guest went down for its reboot and its start task failed: it stays down, and waiting does not help.
    fn left_down(&mut self, verification: Verification, cause: &EnvFault, now_ms: u64) -> Option<OperationCommand> {
        let Some(down) = verification.down.clone() else { return self.restart_verification(verification) };
        let evidence = cause.add_to_evidence(self.with_task(self.evidence.clone()));
        let evidence = down.start.iter().fold(evidence, |evidence, start| evidence.with("start_task", start.as_str()));
        self.record_end(Outcome::new_failed(FailureCode::GuestLeftDown, Findings { evidence, observed: down.observed }), now_ms)
    }

    /// Nothing shows the change, but it was sent so recently that it may still arrive. The first start after that time settles it.
    fn hold_for_late_arrival(&mut self, evidence: Evidence, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let until_ms = now_ms.saturating_add(self.late_arrival_left_ms(now_ms));
        let evidence = evidence.with("may_come_until", &*timestamp::format_timestamp(until_ms.div_ceil(1000)));
        self.record_end(Outcome::new_held(FailureCode::OutcomeUnclear, ReleaseCondition::Reading, Findings { evidence, observed }), now_ms)
    }

    /// Only a task of another user, or one of ours under another name, may have executed the change. "Not executed" cannot be proven, and
    /// the change is not sent again.
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

    /// A guest that did not shut down in time may still do so: it is held until it is read again (decision 0024).
    fn task_failure_outcome(&self, cause: &EnvFault, findings: Findings) -> Outcome {
        match cause.kind {
            EnvFaultKind::ShutdownTimeout if self.is_held_reread() => Outcome::new_failed(FailureCode::ShutdownTimeout, findings),
            EnvFaultKind::ShutdownTimeout => Outcome::new_held(FailureCode::ShutdownTimeout, ReleaseCondition::Reading, findings),
            _ if self.is_start_of_restart() => Outcome::new_failed(FailureCode::GuestLeftDown, findings),
            _ => Outcome::new_failed(FailureCode::TaskFailed, findings),
        }
    }

    /// Whether this start is the second half of a restart: the guest was running and was stopped for it.
    fn is_start_of_restart(&self) -> bool {
        let step = &self.operation.step;
        step.change == Change::Start && matches!(step.reason, StepReason::RestartForConfig(_))
    }

    /// The readings do not settle the operation. An idempotent change is settled by the next reading that shows it, and so is a reboot
    /// whose task has ended if part of the guest could not be read this time.
    fn hold_unclear(&mut self, why: &VerificationCause, observed: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let is_incomplete =
            matches!(why, VerificationCause::TaskEnded { .. } | VerificationCause::TaskFailed { .. }) && observed.get("unread").is_some();
        let is_read_later = is_incomplete || promise::is_idempotent(&self.operation.step.change);
        let release = if is_read_later { ReleaseCondition::Reading } else { ReleaseCondition::Person };
        let evidence = self.with_task(self.evidence.clone());
        let (code, evidence) = match why {
            VerificationCause::TaskLost(cause) => (FailureCode::TaskLost, cause.add_to_evidence(evidence)),
            VerificationCause::TaskFailed { cause, .. } => (FailureCode::OutcomeUnclear, cause.add_to_evidence(evidence)),
            _ => (FailureCode::OutcomeUnclear, evidence),
        };
        self.record_end(Outcome::new_held(code, release, Findings { evidence, observed }), now_ms)
    }

    /// The reading had no result.
    fn retry_verification_reading(&mut self, verification: Verification, cause: &EnvFault, now_ms: u64) -> Option<OperationCommand> {
        let verification = Verification { response_ms: verification.response_ms.saturating_add(self.response_ms), ..verification };
        if verification.unreadable_ms.saturating_add(verification.response_ms) < self.patience.unreadable_ms {
            let ms = next_wait_ms(verification.unreadable_ms);
            self.stage = OperationStage::Verifying(Verification {
                unreadable_ms: verification.unreadable_ms.saturating_add(ms),
                waiting: true,
                ..verification
            });
            return self.wait(ms);
        }
        let evidence = cause.add_to_evidence(self.with_task(self.evidence.clone()));
        self.hold_until_reading(FailureCode::OutcomeUnread, evidence, now_ms)
    }

    fn schedule_reread(&mut self, verification: Verification) -> Option<OperationCommand> {
        let ms = next_wait_ms(verification.waited_ms);
        self.stage =
            OperationStage::Verifying(Verification { waited_ms: verification.waited_ms.saturating_add(ms), waiting: true, ..verification });
        self.wait(ms)
    }
}

fn join_evidence_keys(evidence: &Evidence) -> String {
    evidence.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>().join(", ")
}
