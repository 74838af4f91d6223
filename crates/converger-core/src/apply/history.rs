//! What the records of one operation amount to, and which record may follow which.
//!
//! Intent, then at most one mark of its sending, at most one task, and exactly one end; what ended held may be resolved once. Every store asks here, so
//! that no store can have an order of its own.

use super::JournalRecord;
use std::fmt;

use super::id::{BootId, OperationId, TaskId};
use super::operation::Operation;
use super::outcome::{OperationEnd, Outcome, Resolution};
use crate::artifact::INTEGER_MAX;

/// One operation with everything that the journal has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationHistory {
    /// The operation.
    pub operation: Box<Operation>,
    /// When its intent was recorded.
    pub at_ms: u64,
    /// The start of the machine that its run ran on, where that can be told.
    pub boot: Option<BootId>,
    /// The mark before it was sent.
    pub sending: Option<SendingMark>,
    /// The task, and when it was recorded.
    pub task: Option<(TaskId, u64)>,
    /// The end, and when it was recorded.
    pub ended: Option<(Outcome, u64)>,
    /// What became of it after it was held.
    pub resolved: Option<ResolutionRecord>,
}

/// From when on an operation may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingMark {
    /// By the clock of the day.
    pub at_ms: u64,
    /// By how long the machine had been up.
    pub up_ms: u64,
}

/// What somebody said became of a held operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolutionRecord {
    /// What became of it.
    pub resolution: Resolution,
    /// Who said so.
    pub by: Box<str>,
    /// Why they think so.
    pub reason: Box<str>,
    /// When.
    pub at_ms: u64,
}

/// Why a record may not follow, or may not be taken at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IllegalRecord {
    /// Its operation has no intent.
    NoIntent,
    /// Its operation has an intent already.
    SecondIntent,
    /// It has a task, so that it was sent.
    SentAlready,
    /// Its operation has a task already.
    SecondTask,
    /// Its operation has ended.
    AlreadyEnded(OperationEnd),
    /// It resolves an operation that is not held.
    NotHeld,
    /// It resolves an operation that was resolved before.
    AlreadyResolved(Resolution),
    /// It would not be read back as it is.
    NotStorable,
}

/// How far an operation is: all that the order of records depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalProgress {
    /// Whether its task is recorded.
    pub has_task: bool,
    /// How it ended, if it has.
    pub end: Option<OperationEnd>,
    /// What became of it after it was held, if that is known.
    pub resolution: Option<Resolution>,
}

impl JournalProgress {
    /// Whether it has no end: at a start it may have been sent, and must be resolved by reading before anything else.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.end.is_none()
    }

    /// Whether it ended held and nobody has said yet what became of it.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.end == Some(OperationEnd::Held) && self.resolution.is_none()
    }

    /// Whether no other operation may touch its guest: it is under way, or what became of it is not known (G12).
    #[must_use]
    pub fn occupies_guest(self) -> bool {
        self.is_open() || self.is_held()
    }

    /// Whether this record may follow.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_record(self, record: &JournalRecord) -> Result<(), IllegalRecord> {
        if !is_storable(record) {
            return Err(IllegalRecord::NotStorable);
        }
        match (record, self.end) {
            (JournalRecord::Intent { .. }, _) => Err(IllegalRecord::SecondIntent),
            (JournalRecord::Resolved { .. }, _) => self.check_resolution(),
            (_, Some(end)) => Err(IllegalRecord::AlreadyEnded(end)),
            // What is checked anew before it is sent is marked anew, and the last mark counts; what has a task was sent.
            (JournalRecord::Sending { .. }, None) if self.has_task => Err(IllegalRecord::SentAlready),
            (JournalRecord::TaskStarted { .. }, None) if self.has_task => Err(IllegalRecord::SecondTask),
            // A task without a mark: the machine died before the mark was on its disk.
            (JournalRecord::Sending { .. } | JournalRecord::TaskStarted { .. } | JournalRecord::Ended { .. }, None) => Ok(()),
        }
    }

    fn check_resolution(self) -> Result<(), IllegalRecord> {
        match self.resolution {
            Some(resolution) => Err(IllegalRecord::AlreadyResolved(resolution)),
            None if self.is_held() => Ok(()),
            None => Err(IllegalRecord::NotHeld),
        }
    }

    /// How far it is after this record, which must have been admitted.
    #[must_use]
    pub fn advance(self, record: &JournalRecord) -> Self {
        match record {
            JournalRecord::Intent { .. } => Self::default(),
            JournalRecord::Sending { .. } => self,
            JournalRecord::TaskStarted { .. } => Self { has_task: true, ..self },
            JournalRecord::Ended { outcome, .. } => Self { end: Some(outcome.end()), ..self },
            JournalRecord::Resolved { resolution, .. } => Self { resolution: Some(*resolution), ..self },
        }
    }
}

impl OperationHistory {
    /// The history that an intent begins.
    #[must_use]
    pub fn from_intent(operation: Box<Operation>, at_ms: u64) -> Self {
        Self { operation, at_ms, boot: None, sending: None, task: None, ended: None, resolved: None }
    }

    /// The operation.
    #[must_use]
    pub fn id(&self) -> &OperationId {
        &self.operation.id
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> JournalProgress {
        JournalProgress {
            has_task: self.task.is_some(),
            end: self.ended.as_ref().map(|(outcome, _)| outcome.end()),
            resolution: self.resolved.as_ref().map(|resolved| resolved.resolution),
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Why it may not follow; the history is then as it was.
    pub fn add_record(&mut self, record: JournalRecord) -> Result<(), IllegalRecord> {
        self.progress().check_record(&record)?;
        match record {
            // INVARIANT: `check_record` has refused it.
            JournalRecord::Intent { .. } => return Err(IllegalRecord::SecondIntent),
            JournalRecord::Sending { at_ms, up_ms, .. } => self.sending = Some(SendingMark { at_ms, up_ms }),
            JournalRecord::TaskStarted { task, at_ms, .. } => self.task = Some((task, at_ms)),
            JournalRecord::Ended { outcome, at_ms, .. } => self.ended = Some((outcome, at_ms)),
            JournalRecord::Resolved { resolution, by, reason, at_ms, .. } => {
                self.resolved = Some(ResolutionRecord { resolution, by, reason, at_ms })
            }
        }
        Ok(())
    }
}

impl fmt::Display for IllegalRecord {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoIntent => formatter.write_str("it has no intent"),
            Self::SecondIntent => formatter.write_str("it has an intent already"),
            Self::SentAlready => formatter.write_str("it has a task, so that it was sent already"),
            Self::SecondTask => formatter.write_str("it has a task already"),
            Self::AlreadyEnded(end) => write!(formatter, "it has ended already: {}", end.word()),
            Self::NotHeld => formatter.write_str("it is not held, so that there is nothing to resolve"),
            Self::AlreadyResolved(resolution) => write!(formatter, "it was resolved already: {}", resolution.word()),
            Self::NotStorable => formatter.write_str("the record would not be read back as it is"),
        }
    }
}

/// Whether a record would be read back as it is.
#[must_use]
pub fn is_storable(record: &JournalRecord) -> bool {
    let fits = match record {
        JournalRecord::Intent { operation, .. } => operation.is_storable(),
        JournalRecord::Sending { up_ms, .. } => *up_ms <= INTEGER_MAX,
        JournalRecord::TaskStarted { .. } => true,
        JournalRecord::Ended { outcome, .. } => outcome.is_storable(),
        JournalRecord::Resolved { by, reason, .. } => is_valid_remark(by) && is_valid_remark(reason),
    };
    fits && record.at_ms() <= INTEGER_MAX
}

/// Whether a text of a person can be kept: who they are, or why they did something. Not blank, at most 4096 bytes.
#[must_use]
pub fn is_valid_remark(text: &str) -> bool {
    text.len() <= 4096 && !text.trim().is_empty()
}
