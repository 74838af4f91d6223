//! While the task is at work: it is asked about with growing waits, until it has ended or patience has.
//!
//! A task that takes too long is never helped along: a graceful shutdown stays graceful (design 6.22), and the guest is held
//! until a reading tells.

use converger_core::action::Change;
use converger_core::apply::{Answer, Ask, Evidence, Findings, Outcome, Release, TaskId, TaskState};
use converger_core::failure::Code;

use super::patience::next_ms;
use super::proving::Why;
use super::{Command, Stage, State, cause_of};

/// A task that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settling {
    task: TaskId,
    waited_ms: u64,
    /// What was waited and asked because readings in a row gave nothing; zero: the last one gave something.
    unread_ms: u64,
    waiting: bool,
}

impl Settling {
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting
    }
}

impl State {
    pub(super) fn settle(&mut self, task: TaskId) -> Option<Command> {
        self.poll(Settling { task, waited_ms: 0, unread_ms: 0, waiting: true })
    }

    pub(super) fn poll(&mut self, settling: Settling) -> Option<Command> {
        let ask = Ask::Task(settling.task.clone());
        self.stage = Stage::Settling(Settling { waiting: false, ..settling });
        Some(Command::Ask(ask))
    }

    pub(super) fn settled(&mut self, settling: Settling, answer: Answer, now_ms: u64) -> Option<Command> {
        match answer {
            Answer::Task(TaskState::Running) => self.go_on(Settling { unread_ms: 0, ..settling }, now_ms),
            Answer::Task(TaskState::Ended { warnings, age_secs }) => self.prove(Why::TaskEnded { warnings, age_secs }),
            Answer::Task(TaskState::Failed { cause, age_secs }) => self.prove(Why::TaskFailed { cause, age_secs }),
            Answer::Task(TaskState::Lost(cause)) => self.prove(Why::TaskLost(cause)),
            other => {
                let unread_ms = settling.unread_ms.saturating_add(self.asked_ms);
                if unread_ms < self.patience.unread_ms {
                    let unread_ms = unread_ms.saturating_add(next_ms(settling.waited_ms));
                    return self.go_on(Settling { unread_ms, ..settling }, now_ms);
                }
                let evidence = cause_of(&other).onto(self.with_task(self.evidence.clone()));
                self.hold(Code::OutcomeUnread, evidence, now_ms)
            }
        }
    }

    fn go_on(&mut self, settling: Settling, now_ms: u64) -> Option<Command> {
        let ms = next_ms(settling.waited_ms);
        let patience_ms = self.patience.of_task(&self.operation.step.change);
        if settling.waited_ms >= patience_ms {
            let is_whole = self.patience.is_whole_for(&self.operation.step.change);
            let at_work = if is_whole { Code::TaskOverdue } else { Code::TaskAtWork };
            let code = if settling.unread_ms > 0 { Code::OutcomeUnread } else { at_work };
            let evidence = self.with_task(self.evidence.clone());
            let evidence = if is_whole { evidence.with("waited_secs", settling.waited_ms / 1000) } else { evidence };
            return self.hold(code, evidence, now_ms);
        }
        self.stage = Stage::Settling(Settling { waited_ms: settling.waited_ms.saturating_add(ms), waiting: true, ..settling });
        self.wait(ms)
    }

    /// What a later run needs to tell whether a reboot happened: the uptime before it.
    fn uptime_before(&self) -> Evidence {
        let secs = self.uptime_before_secs.filter(|_| matches!(self.operation.step.change, Change::Reboot { .. }));
        secs.into_iter().fold(Evidence::default(), |seen, secs| seen.with("uptime_before_secs", secs))
    }

    /// Held until a reading tells.
    pub(super) fn hold(&mut self, code: Code, evidence: Evidence, now_ms: u64) -> Option<Command> {
        let observed = self.uptime_before();
        self.end(Outcome::held(code, Release::Reading, Findings { evidence, observed }), now_ms)
    }
}
