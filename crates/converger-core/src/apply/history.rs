//! What the records of one operation amount to, and which record may follow which.
//!
//! Intent, then at most one task, then exactly one end; what ended held may be resolved once. Every store asks here, so
//! that no store can have an order of its own.

use super::Record;
use super::id::{OperationId, TaskId};
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
    /// The task, and when it was recorded.
    pub task: Option<(TaskId, u64)>,
    /// The end, and when it was recorded.
    pub ended: Option<(Outcome, u64)>,
    /// What became of it after it was held.
    pub resolved: Option<Resolved>,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Illegal {
    /// Its operation has no intent.
    NoIntent,
    /// Its operation has an intent already.
    SecondIntent,
    /// Its operation has a task already.
    SecondTask(TaskId),
    /// Its operation has ended.
    AlreadyEnded(End),
    /// It resolves an operation that is not held.
    NotHeld,
    /// It resolves an operation that was resolved before.
    AlreadyResolved(Resolution),
    /// It would not be read back as it is.
    NotStorable,
}

impl History {
    /// The history that an intent begins.
    #[must_use]
    pub fn begin(operation: Box<Operation>, at_ms: u64) -> Self {
        Self { operation, at_ms, task: None, ended: None, resolved: None }
    }

    /// The operation.
    #[must_use]
    pub fn id(&self) -> &OperationId {
        &self.operation.id
    }

    /// Whether it has no end: at a start it may have been sent, and must be resolved by reading before anything else.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.ended.is_none()
    }

    /// Whether it ended held and nobody has said yet what became of it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.resolved.is_none() && self.ended.as_ref().is_some_and(|(outcome, _)| outcome.end() == End::Held)
    }

    /// Whether no other operation may touch its guest: it is under way, or what became of it is not known (G12).
    #[must_use]
    pub fn occupies_guest(&self) -> bool {
        self.is_open() || self.is_held()
    }

    /// Whether this record may follow.
    ///
    /// # Errors
    /// Why it may not.
    pub fn admits(&self, record: &Record) -> Result<(), Illegal> {
        if !is_storable(record) {
            return Err(Illegal::NotStorable);
        }
        match (record, &self.ended) {
            (Record::Intent { .. }, _) => Err(Illegal::SecondIntent),
            (Record::Resolved { .. }, _) => self.admits_resolution(),
            (_, Some((outcome, _))) => Err(Illegal::AlreadyEnded(outcome.end())),
            (Record::Tasked { .. }, None) => self.task.as_ref().map_or(Ok(()), |(task, _)| Err(Illegal::SecondTask(task.clone()))),
            (Record::Ended { .. }, None) => Ok(()),
        }
    }

    fn admits_resolution(&self) -> Result<(), Illegal> {
        match &self.resolved {
            Some(resolved) => Err(Illegal::AlreadyResolved(resolved.resolution)),
            None if self.is_held() => Ok(()),
            None => Err(Illegal::NotHeld),
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// Why it may not follow; the history is then as it was.
    pub fn add(&mut self, record: Record) -> Result<(), Illegal> {
        self.admits(&record)?;
        match record {
            // INVARIANT: `admits` has refused it.
            Record::Intent { .. } => return Err(Illegal::SecondIntent),
            Record::Tasked { task, at_ms, .. } => self.task = Some((task, at_ms)),
            Record::Ended { outcome, at_ms, .. } => self.ended = Some((outcome, at_ms)),
            Record::Resolved { resolution, by, reason, at_ms, .. } => self.resolved = Some(Resolved { resolution, by, reason, at_ms }),
        }
        Ok(())
    }
}

/// Whether a record would be read back as it is.
#[must_use]
pub fn is_storable(record: &Record) -> bool {
    let fits = match record {
        Record::Intent { operation, .. } => operation.is_storable(),
        Record::Tasked { .. } | Record::Resolved { .. } => true,
        Record::Ended { outcome, .. } => outcome.is_storable(),
    };
    fits && record.at_ms() <= INTEGER_MAX
}
