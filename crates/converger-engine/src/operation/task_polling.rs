//! Polls a running task with growing waits, until it has ended or patience has run out.
//!
//! A task that takes too long is not forced: a graceful shutdown stays graceful (decision 0024), and the guest is held until a read
//! settles it.

use converger_core::action::Change;
use converger_core::apply::{EnvRequest, EnvResponse, Evidence, Findings, Outcome, ReleaseCondition, TaskId, TaskState};
use converger_core::failure::FailureCode;

use super::patience::next_wait_ms;
use super::verification::VerificationCause;
use super::{OperationCommand, OperationStage, OperationState, response_fault};

/// A task that is being polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TaskPolling {
    task: TaskId,
    waited_ms: u64,
    /// The time spent on consecutive polls without a result; zero if the last one had a result.
    unreadable_ms: u64,
    waiting: bool,
}

impl TaskPolling {
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }
}

impl OperationState {
    pub(super) fn start_polling(&mut self, task: TaskId) -> Option<OperationCommand> {
        self.poll_task(TaskPolling { task, waited_ms: 0, unreadable_ms: 0, waiting: true })
    }

    pub(super) fn poll_task(&mut self, settling: TaskPolling) -> Option<OperationCommand> {
        let request = EnvRequest::Task(settling.task.clone());
        self.stage = OperationStage::PollingTask(TaskPolling { waiting: false, ..settling });
        Some(OperationCommand::Request(request))
    }

    pub(super) fn handle_task_response(&mut self, settling: TaskPolling, answer: EnvResponse, now_ms: u64) -> Option<OperationCommand> {
        match answer {
            EnvResponse::Task(TaskState::Running) => self.wait_for_task(TaskPolling { unreadable_ms: 0, ..settling }, now_ms),
            EnvResponse::Task(TaskState::Ended { warnings, age_secs }) => {
                self.start_verification(VerificationCause::TaskEnded { warnings, age_secs })
            }
            EnvResponse::Task(TaskState::Failed { cause, age_secs }) => {
                self.start_verification(VerificationCause::TaskFailed { cause, age_secs })
            }
            EnvResponse::Task(TaskState::Lost(cause)) => self.start_verification(VerificationCause::TaskLost(cause)),
            other => {
                let unread_ms = settling.unreadable_ms.saturating_add(self.response_ms);
                if unread_ms < self.patience.unreadable_ms {
                    let unread_ms = unread_ms.saturating_add(next_wait_ms(settling.waited_ms));
                    return self.wait_for_task(TaskPolling { unreadable_ms: unread_ms, ..settling }, now_ms);
                }
                let evidence = response_fault(&other).add_to_evidence(self.with_task(self.evidence.clone()));
                self.hold_until_reading(FailureCode::OutcomeUnread, evidence, now_ms)
            }
        }
    }

    fn wait_for_task(&mut self, settling: TaskPolling, now_ms: u64) -> Option<OperationCommand> {
        let ms = next_wait_ms(settling.waited_ms);
        let patience_ms = self.patience.task_timeout_ms(&self.operation.step.change);
        if settling.waited_ms >= patience_ms {
            let is_whole = self.patience.covers_whole_task(&self.operation.step.change);
            let overdue_code = if is_whole { FailureCode::TaskOverdue } else { FailureCode::TaskAtWork };
            let code = if settling.unreadable_ms > 0 { FailureCode::OutcomeUnread } else { overdue_code };
            let evidence = self.with_task(self.evidence.clone());
            let evidence = if is_whole { evidence.with("waited_secs", settling.waited_ms / 1000) } else { evidence };
            return self.hold_until_reading(code, evidence, now_ms);
        }
        self.stage =
            OperationStage::PollingTask(TaskPolling { waited_ms: settling.waited_ms.saturating_add(ms), waiting: true, ..settling });
        self.wait(ms)
    }

    /// The uptime before a reboot, which a later run needs to tell whether the reboot happened.
    fn uptime_before(&self) -> Evidence {
        let secs = self.uptime_before_secs.filter(|_| matches!(self.operation.step.change, Change::Reboot { .. }));
        secs.into_iter().fold(Evidence::default(), |seen, secs| seen.with("uptime_before_secs", secs))
    }

    /// Holds the operation until a read settles it.
    pub(super) fn hold_until_reading(&mut self, code: FailureCode, evidence: Evidence, now_ms: u64) -> Option<OperationCommand> {
        let observed = self.uptime_before();
        self.record_end(Outcome::new_held(code, ReleaseCondition::Reading, Findings { evidence, observed }), now_ms)
    }
}
