//! What the records of one operation amount to, and which record may follow which.
//!
//! Intent, then at most one mark of its sending, at most one task, and exactly one end; what ended held may be resolved once. Every store asks here, so
//! that no store can have an order of its own.

use super::Record;
use std::fmt;

use super::id::{BootId, OperationId, TaskId};
use super::operation::Operation;
use super::outcome::{End, Outcome, Resolution};
use crate::artifact::INTEGER_MAX;

/// One operation with everything that the journal has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The operation.
    pub operation: Box<Operation>,
    /// When its intent was recorded.
    pub at_ms: u64,
    /// The start of the machine that its run ran on, where that can be told.
    pub boot: Option<BootId>,
    /// The mark before it was sent.
    pub sending: Option<Sending>,
    /// The task, and when it was recorded.
    pub task: Option<(TaskId, u64)>,
    /// The end, and when it was recorded.
    pub ended: Option<(Outcome, u64)>,
    /// What became of it after it was held.
    pub resolved: Option<Resolved>,
}

/// From when on an operation may have been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sending {
    /// By the clock of the day.
    pub at_ms: u64,
    /// By how long the machine had been up.
    pub up_ms: u64,
}

/// What somebody said became of a held operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
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
pub enum Illegal {
    /// Its operation has no intent.
    NoIntent,
    /// Its operation has an intent already.
    SecondIntent,
    /// It has a task, so that it was sent.
    SentAlready,
    /// Its operation has a task already.
    SecondTask,
    /// Its operation has ended.
    AlreadyEnded(End),
    /// It resolves an operation that is not held.
    NotHeld,
    /// It resolves an operation that was resolved before.
    AlreadyResolved(Resolution),
    /// It would not be read back as it is.
    NotStorable,
}

/// How far an operation is: all that the order of records depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether its task is recorded.
    pub is_tasked: bool,
    /// How it ended, if it has.
    pub end: Option<End>,
    /// What became of it after it was held, if that is known.
    pub resolution: Option<Resolution>,
}

impl Progress {
    /// Whether it has no end: at a start it may have been sent, and must be resolved by reading before anything else.
    #[must_use]
    pub fn is_open(self) -> bool {
        self.end.is_none()
    }

    /// Whether it ended held and nobody has said yet what became of it.
    #[must_use]
    pub fn is_held(self) -> bool {
        self.end == Some(End::Held) && self.resolution.is_none()
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
    pub fn admits(self, record: &Record) -> Result<(), Illegal> {
        if !is_storable(record) {
            return Err(Illegal::NotStorable);
        }
        match (record, self.end) {
            (Record::Intent { .. }, _) => Err(Illegal::SecondIntent),
            (Record::Resolved { .. }, _) => self.admits_resolution(),
            (_, Some(end)) => Err(Illegal::AlreadyEnded(end)),
            // What is checked anew before it is sent is marked anew, and the last mark counts; what has a task was sent.
            (Record::Sending { .. }, None) if self.is_tasked => Err(Illegal::SentAlready),
            (Record::Tasked { .. }, None) if self.is_tasked => Err(Illegal::SecondTask),
            // A task without a mark: the machine died before the mark was on its disk.
            (Record::Sending { .. } | Record::Tasked { .. } | Record::Ended { .. }, None) => Ok(()),
        }
    }

    fn admits_resolution(self) -> Result<(), Illegal> {
        match self.resolution {
            Some(resolution) => Err(Illegal::AlreadyResolved(resolution)),
            None if self.is_held() => Ok(()),
            None => Err(Illegal::NotHeld),
        }
    }

    /// How far it is after this record, which must have been admitted.
    #[must_use]
    pub fn after(self, record: &Record) -> Self {
        match record {
            Record::Intent { .. } => Self::default(),
            Record::Sending { .. } => self,
            Record::Tasked { .. } => Self { is_tasked: true, ..self },
            Record::Ended { outcome, .. } => Self { end: Some(outcome.end()), ..self },
            Record::Resolved { resolution, .. } => Self { resolution: Some(*resolution), ..self },
        }
    }
}

impl History {
    /// The history that an intent begins.
    #[must_use]
    pub fn begin(operation: Box<Operation>, at_ms: u64) -> Self {
        Self { operation, at_ms, boot: None, sending: None, task: None, ended: None, resolved: None }
    }

    /// The operation.
    #[must_use]
    pub fn id(&self) -> &OperationId {
        &self.operation.id
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            is_tasked: self.task.is_some(),
            end: self.ended.as_ref().map(|(outcome, _)| outcome.end()),
            resolution: self.resolved.as_ref().map(|resolved| resolved.resolution),
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Why it may not follow; the history is then as it was.
    pub fn add(&mut self, record: Record) -> Result<(), Illegal> {
        self.progress().admits(&record)?;
        match record {
            // INVARIANT: `admits` has refused it.
            Record::Intent { .. } => return Err(Illegal::SecondIntent),
            Record::Sending { at_ms, up_ms, .. } => self.sending = Some(Sending { at_ms, up_ms }),
            Record::Tasked { task, at_ms, .. } => self.task = Some((task, at_ms)),
            Record::Ended { outcome, at_ms, .. } => self.ended = Some((outcome, at_ms)),
            Record::Resolved { resolution, by, reason, at_ms, .. } => self.resolved = Some(Resolved { resolution, by, reason, at_ms }),
        }
        Ok(())
    }
}

impl fmt::Display for Illegal {
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
pub fn is_storable(record: &Record) -> bool {
    let fits = match record {
        Record::Intent { operation, .. } => operation.is_storable(),
        Record::Sending { up_ms, .. } => *up_ms <= INTEGER_MAX,
        Record::Tasked { .. } => true,
        Record::Ended { outcome, .. } => outcome.is_storable(),
        Record::Resolved { by, reason, .. } => is_remark(by) && is_remark(reason),
    };
    fits && record.at_ms() <= INTEGER_MAX
}

/// Whether a text of a person can be kept: who they are, or why they did something. Not blank, at most 4096 bytes.
#[must_use]
pub fn is_remark(text: &str) -> bool {
    text.len() <= 4096 && !text.trim().is_empty()
}
