//! The state that the journal records of one operation add up to, and which record may follow which.
//!
//! The order is: intent, sending marks, at most one task, exactly one end; a held operation can be resolved once. Every store calls this
//! code, so no store can have an order of its own.

use super::JournalRecord;
use std::fmt;

use super::id::{BootId, OperationId, TaskId};
use super::operation::Operation;
use super::outcome::{OperationEnd, Outcome, Resolution};
use crate::artifact::INTEGER_MAX;

/// One operation with all of its journal records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationHistory {
    /// The operation.
    pub operation: Box<Operation>,
    /// When its intent was recorded.
    pub at_ms: u64,
    /// The boot of the machine that its run ran on, if known.
    pub boot: Option<BootId>,
    /// The mark before sending; the last one counts.
    pub sending: Option<SendingMark>,
    /// The task, and when it was recorded.
    pub task: Option<(TaskId, u64)>,
    /// The end, and when it was recorded.
    pub ended: Option<(Outcome, u64)>,
    /// The resolution, if it was held and resolved.
    pub resolved: Option<ResolutionRecord>,
}

/// The moment from which on an operation may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingMark {
    /// By the wall clock.
    pub at_ms: u64,
    /// By the uptime of the machine.
    pub up_ms: u64,
}

/// A person's resolution of a held operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolutionRecord {
    /// How the operation ended.
    pub resolution: Resolution,
    /// Who resolved it.
    pub by: Box<str>,
    /// Why.
    pub reason: Box<str>,
    /// When.
    pub at_ms: u64,
}

/// Why a record may not follow, or may not be stored at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IllegalRecord {
    /// Its operation has no intent.
    NoIntent,
    /// Its operation has an intent already.
    SecondIntent,
    /// The operation has a task, so it was sent already.
    SentAlready,
    /// Its operation has a task already.
    SecondTask,
    /// Its operation has ended.
    AlreadyEnded(OperationEnd),
    /// It resolves an operation that is not held.
    NotHeld,
    /// It resolves an operation that was resolved before.
    AlreadyResolved(Resolution),
    /// It would read back differently.
    NotStorable,
}

/// The progress of an operation, as far as the order of records depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalProgress {
    /// Whether the task is recorded.
    pub has_task: bool,
    /// How the operation ended, if it did.
    pub end: Option<OperationEnd>,
    /// The resolution of a held operation, if there is one.
    pub resolution: Option<Resolution>,
}

impl JournalProgress {
    /// Whether the operation has no end. At startup, such an operation may have been sent; reading must settle it before anything else.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.end.is_none()
    }

    /// Whether the operation ended held and is not resolved yet.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.end == Some(OperationEnd::Held) && self.resolution.is_none()
    }

    /// Whether no other operation may touch the guest: this one is in flight, or its result is unknown (G12).
    #[must_use]
    pub fn occupies_guest(self) -> bool {
        self.is_open() || self.is_held()
    }

    /// Checks whether this record may follow.
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
            // An operation that is checked again before sending gets a new mark, and the last one counts. With a task it was sent already.
            (JournalRecord::Sending { .. }, None) if self.has_task => Err(IllegalRecord::SentAlready),
            (JournalRecord::TaskStarted { .. }, None) if self.has_task => Err(IllegalRecord::SecondTask),
            // A task without a mark is possible: the machine may have crashed before the mark reached the disk.
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

    /// The progress after this record, which `check_record` must have accepted.
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
    /// The history that starts with an intent.
    #[must_use]
    pub fn from_intent(operation: Box<Operation>, at_ms: u64) -> Self {
        Self { operation, at_ms, boot: None, sending: None, task: None, ended: None, resolved: None }
    }

    /// The id of the operation.
    #[must_use]
    pub fn id(&self) -> &OperationId {
        &self.operation.id
    }

    /// The progress of the operation.
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
    /// Why it may not follow; the history is unchanged.
    pub fn add_record(&mut self, record: JournalRecord) -> Result<(), IllegalRecord> {
        self.progress().check_record(&record)?;
        match record {
            // INVARIANT: `check_record` refuses a second intent.
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
            Self::SentAlready => formatter.write_str("it has a task, so it was sent already"),
            Self::SecondTask => formatter.write_str("it has a task already"),
            Self::AlreadyEnded(end) => write!(formatter, "it has ended already: {}", end.word()),
            Self::NotHeld => formatter.write_str("it is not held, so there is nothing to resolve"),
            Self::AlreadyResolved(resolution) => write!(formatter, "it was resolved already: {}", resolution.word()),
            Self::NotStorable => formatter.write_str("the record would not read back unchanged"),
        }
    }
}

/// Whether a record reads back unchanged.
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

/// Whether text of a person (a name or a reason) can be stored: not blank, at most 4096 bytes.
#[must_use]
pub fn is_valid_remark(text: &str) -> bool {
    text.len() <= 4096 && !text.trim().is_empty()
}
