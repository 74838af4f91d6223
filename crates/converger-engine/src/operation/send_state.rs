//! Whether it was sent: the mark before the sending, and what it says to whoever comes after a crash
//! (`docs/decisions/0016-what-proves-that-nothing-ran.md`).
//!
//! What was not marked was not sent, as long as the machine did not die: a mark is in the system's cache before anything is sent. What
//! may have been sent may still come, for as long as a living process would look for it; before that nobody says that nothing ran.
//!
//! What never enters: reading a guest, and sending.

use converger_core::apply::{Evidence, Findings, OperationHistory, Outcome, Uptime};
use converger_core::failure::FailureCode;

use super::precheck::ReadyChange;
use super::{CommitFailure, OperationCommand, OperationStage, OperationState};

/// What is known of whether it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    /// It is new, and not marked.
    NotYet,
    /// It is new and marked: from here on whoever comes after us takes it for sent.
    Marked,
    /// It was found in the journal, and was not sent.
    Never,
    /// It was found in the journal, and may have been sent.
    Maybe {
        /// When at the earliest, by the clock of the day.
        at_ms: u64,
        /// How long ago at least when it was found, by how long the machine has been up; none: that says nothing.
        ago_ms: Option<u64>,
    },
}

impl SendState {
    /// What the journal says, on a machine that has been up for so long.
    pub(super) fn from_history(history: &OperationHistory, uptime: Option<&Uptime>) -> Self {
        let is_same_start = uptime.is_some_and(|uptime| history.boot.as_ref() == Some(&uptime.boot));
        let ago_ms = match (&history.sending, uptime) {
            (None, _) if is_same_start && history.task.is_none() => return Self::Never,
            (Some(sending), Some(uptime)) if is_same_start => Some(uptime.ms.saturating_sub(sending.up_ms)),
            // The machine was started since.
            (_, Some(uptime)) => Some(uptime.ms),
            (_, None) => None,
        };
        Self::Maybe { at_ms: history.sending.map_or(history.at_ms, |sending| sending.at_ms), ago_ms }
    }
}

impl OperationState {
    /// It is ready: that it may be sent now is written down before it is. What was checked anew is marked anew: whoever comes after us counts
    /// from the mark how long it may still come.
    pub(super) fn request_mark(&mut self, clearing: Box<ReadyChange>) -> Option<OperationCommand> {
        self.stage = OperationStage::Marking(clearing);
        Some(OperationCommand::Mark)
    }

    pub(super) fn request_hold_recheck(&mut self, clearing: Box<ReadyChange>) -> Option<OperationCommand> {
        self.send_state = SendState::Marked;
        self.stage = OperationStage::RecheckingHolds(clearing);
        Some(OperationCommand::RecheckHolds)
    }

    /// Nothing was sent, and nothing will be.
    pub(super) fn end_unmarked(&mut self, why: CommitFailure, now_ms: u64) -> Option<OperationCommand> {
        let outcome = match why {
            CommitFailure::Refused(refusal) => Outcome::from_refusal(&refusal),
            CommitFailure::Repeated(_) => Outcome::new_not_run(FailureCode::JournalUnwritable, Evidence::default()),
            CommitFailure::Failed(text) => Outcome::new_not_run(FailureCode::JournalUnwritable, Evidence::default().with("said", &*text)),
        };
        self.record_end(outcome, now_ms)
    }

    /// The process before this one died before it sent it: nothing is to be read.
    pub(super) fn end_never_sent(&mut self, now_ms: u64) -> Option<OperationCommand> {
        let evidence = Evidence::default().with("never_sent", "the program ended before it sent it");
        self.record_end(Outcome::new_failed(FailureCode::NotCarriedOut, Findings { evidence, ..Findings::default() }), now_ms)
    }

    /// How long it may still come, by whichever clock says longer; zero: a living process would have given it up by now.
    pub(super) fn late_arrival_left_ms(&self, now_ms: u64) -> u64 {
        let SendState::Maybe { at_ms, ago_ms } = self.send_state else { return 0 };
        let by_day_ms = now_ms.saturating_sub(at_ms);
        let ago_ms = ago_ms.map_or(by_day_ms, |ago_ms| by_day_ms.min(ago_ms.saturating_add(self.waited_ms)));
        self.patience.late_arrival_ms.saturating_sub(ago_ms)
    }
}
