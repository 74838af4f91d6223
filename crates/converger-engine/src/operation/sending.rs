//! Whether it was sent: the mark before the sending, and what it says to whoever comes after a crash
//! (`docs/decisions/0016-what-proves-that-nothing-ran.md`).
//!
//! What was not marked was not sent, as long as the machine did not die: a mark is in the system's cache before anything is sent. What
//! may have been sent may still come, for as long as a living process would look for it; before that nobody says that nothing ran.
//!
//! What never enters: reading a guest, and sending.

use converger_core::apply::{Evidence, Findings, History, Outcome, Uptime};
use converger_core::failure::Code;

use super::checking::Clearing;
use super::{Command, NotCommitted, Stage, State};

/// What is known of whether it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
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

impl Sending {
    /// What the journal says, on a machine that has been up for so long.
    pub(super) fn found(history: &History, uptime: Option<&Uptime>) -> Self {
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

impl State {
    /// It is ready: that it may be sent now is written down before it is. What was checked anew is marked anew: whoever comes after us counts
    /// from the mark how long it may still come.
    pub(super) fn mark(&mut self, clearing: Box<Clearing>) -> Option<Command> {
        self.stage = Stage::Marking(clearing);
        Some(Command::Mark)
    }

    pub(super) fn marked(&mut self, clearing: Box<Clearing>) -> Option<Command> {
        self.sending = Sending::Marked;
        self.stage = Stage::Clearing(clearing);
        Some(Command::Clear)
    }

    /// Nothing was sent, and nothing will be.
    pub(super) fn not_marked(&mut self, why: NotCommitted, now_ms: u64) -> Option<Command> {
        let outcome = match why {
            NotCommitted::Refused(refusal) => Outcome::refused(&refusal),
            NotCommitted::Repeated(_) => Outcome::not_run(Code::JournalUnwritable, Evidence::default()),
            NotCommitted::Failed(text) => Outcome::not_run(Code::JournalUnwritable, Evidence::default().with("said", &*text)),
        };
        self.end(outcome, now_ms)
    }

    /// The process before this one died before it sent it: nothing is to be read.
    pub(super) fn never_sent(&mut self, now_ms: u64) -> Option<Command> {
        let evidence = Evidence::default().with("never_sent", "the program ended before it sent it");
        self.end(Outcome::failed(Code::NotCarriedOut, Findings { evidence, ..Findings::default() }), now_ms)
    }

    /// How long it may still come, by whichever clock says longer; zero: a living process would have given it up by now.
    pub(super) fn may_come_ms(&self, now_ms: u64) -> u64 {
        let Sending::Maybe { at_ms, ago_ms } = self.sending else { return 0 };
        let by_day_ms = now_ms.saturating_sub(at_ms);
        let ago_ms = ago_ms.map_or(by_day_ms, |ago_ms| by_day_ms.min(ago_ms.saturating_add(self.passed_ms)));
        self.patience.late_ms.saturating_sub(ago_ms)
    }
}
