//! Whether a change was sent: the mark before sending, and what it proves after a crash
//! (`docs/decisions/0016-what-proves-that-nothing-ran.md`).
//!
//! A change without a mark was not sent, provided that the machine did not crash: a mark is in the page cache before anything is sent. A
//! change that may have been sent may still arrive for as long as a live process would search for it; until then, "not executed" is not
//! reported.
//!
//! Must not read a guest or send anything.

use converger_core::apply::{Evidence, Findings, OperationHistory, Outcome, Uptime};
use converger_core::failure::FailureCode;

use super::precheck::ReadyChange;
use super::{CommitFailure, OperationCommand, OperationStage, OperationState};

/// What is known about whether a change was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// The operation is new and has no mark.
    NotYet,
    /// The operation is new and marked: a later process assumes that it was sent.
    Marked,
    /// The operation was recovered, and was not sent.
    Never,
    /// The operation was recovered, and may have been sent.
    Maybe {
        /// The earliest time of sending, by the time of day.
        at_ms: u64,
        /// The minimum time since then when it was recovered, by the uptime of the machine; `None` if the uptime does not show it.
        ago_ms: Option<u64>,
    },
}

impl SendState {
    /// What the journal shows, given the uptime of this machine.
    pub(super) fn from_history(history: &OperationHistory, uptime: Option<&Uptime>) -> Self {
        let is_same_start = uptime.is_some_and(|uptime| history.boot.as_ref() == Some(&uptime.boot));
        let ago_ms = match (&history.sending, uptime) {
            (None, _) if is_same_start && history.task.is_none() => return Self::Never,
            (Some(sending), Some(uptime)) if is_same_start => Some(uptime.ms.saturating_sub(sending.up_ms)),
            // The machine was restarted since.
            (_, Some(uptime)) => Some(uptime.ms),
            (_, None) => None,
        };
        Self::Maybe { at_ms: history.sending.map_or(history.at_ms, |sending| sending.at_ms), ago_ms }
    }
}

impl OperationState {
    /// Writes the mark before the change is sent. A change that is checked again is marked again, because a later process counts from the
    /// mark how long the change may still arrive.
    pub(super) fn request_mark(&mut self, clearing: Box<ReadyChange>) -> Option<OperationCommand> {
        self.stage = OperationStage::Marking(clearing);
        Some(OperationCommand::Mark)
    }

    pub(super) fn request_hold_recheck(&mut self, clearing: Box<ReadyChange>) -> Option<OperationCommand> {
        self.send_state = SendState::Marked;
        self.stage = OperationStage::RecheckingHolds(clearing);
        Some(OperationCommand::RecheckHolds)
    }

    /// Ends the operation before anything was sent.
    pub(super) fn end_unmarked(&mut self, why: CommitFailure, now_ms: u64) -> Option<OperationCommand> {
        let outcome = match why {
            CommitFailure::Refused(refusal) => Outcome::from_refusal(&refusal),
            CommitFailure::Repeated(_) => Outcome::new_not_run(FailureCode::JournalUnwritable, Evidence::default()),
            CommitFailure::Failed(text) => Outcome::new_not_run(FailureCode::JournalUnwritable, Evidence::default().with("said", &*text)),
        };
        self.record_end(outcome, now_ms)
    }

    /// The earlier process ended before it sent the change, so nothing has to be read.
    pub(super) fn end_never_sent(&mut self, now_ms: u64) -> Option<OperationCommand> {
        let evidence = Evidence::default().with("never_sent", "the program ended before it sent it");
        self.record_end(Outcome::new_failed(FailureCode::NotCarriedOut, Findings { evidence, ..Findings::default() }), now_ms)
    }

    /// How long the change may still arrive, by the clock that gives more time; zero if a live process would have given up.
    pub(super) fn late_arrival_left_ms(&self, now_ms: u64) -> u64 {
        let SendState::Maybe { at_ms, ago_ms } = self.send_state else { return 0 };
        let by_day_ms = now_ms.saturating_sub(at_ms);
        let ago_ms = ago_ms.map_or(by_day_ms, |ago_ms| by_day_ms.min(ago_ms.saturating_add(self.waited_ms)));
        self.patience.late_arrival_ms.saturating_sub(ago_ms)
    }
}
