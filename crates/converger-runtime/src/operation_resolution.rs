//! Resolves an operation with unknown outcome: a person found out how it ended.
//!
//! A held operation is resolved without a lock. One that a killed process left open is ended first, under the lock of its environment: with the lock,
//! no apply can be executing it.

use converger_core::apply::{Findings, Hold, JournalRecord, OperationHistory, OperationId, Outcome, ReleaseCondition, Resolution};
use converger_core::failure::FailureCode;
use converger_core::guest::EnvironmentName;
use converger_core::refusal::Refusal;
use converger_store::{Batch, StoreReader as _, StoreWrite};

use crate::author::{Author, Reason};
use crate::error::RuntimeError;
use crate::ledger_reader::ledger_store_error;
use crate::state_dir::{LockOutcome, StateDirectory, WriteOutcome};

/// The status word of an operation that has not ended.
pub const IN_FLIGHT: &str = "in flight";

/// The status of an operation in one word.
#[must_use]
pub fn status_word(history: &OperationHistory) -> &'static str {
    match (&history.resolved, &history.ended) {
        (Some(resolved), _) => resolved.resolution.word(),
        (None, Some((outcome, _))) => outcome.end().word(),
        (None, None) => IN_FLIGHT,
    }
}

/// The result of looking for an operation of an environment.
#[derive(Debug)]
pub enum OperationLookup {
    /// It is one of this environment.
    Found(Box<OperationHistory>),
    /// It is not.
    Missing(MissingOperation),
}

/// Why an environment does not have an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MissingOperation {
    /// The state directory has no operation with this id.
    Unrecorded,
    /// It belongs to this other environment, and so is about another guest.
    OfEnvironment(EnvironmentName),
}

impl OperationLookup {
    /// Compares the environment of an operation that was read, if there is one.
    #[must_use]
    pub fn new(environment: &EnvironmentName, history: Option<OperationHistory>) -> Self {
        match history {
            None => Self::Missing(MissingOperation::Unrecorded),
            Some(history) if history.operation.environment == *environment => Self::Found(Box::new(history)),
            Some(history) => Self::Missing(MissingOperation::OfEnvironment(history.operation.environment)),
        }
    }
}

/// How a person says that an operation ended.
#[derive(Clone, Debug)]
pub struct ResolutionRequest {
    /// The environment of the operation.
    pub environment: EnvironmentName,
    /// The operation.
    pub id: OperationId,
    /// How it ended.
    pub resolution: Resolution,
    /// How the person knows.
    pub reason: Reason,
    /// Who resolves it.
    pub author: Author,
}

/// An operation that was resolved.
#[derive(Debug)]
pub struct ResolvedOperation {
    /// The operation as it was before.
    pub before: OperationHistory,
    /// The hold that a person set on its guest, which stays in force.
    pub hold: Option<Hold>,
}

/// The result of a request to resolve an operation.
#[derive(Debug)]
pub enum ResolutionOutcome {
    /// It is resolved, durably.
    Resolved(Box<ResolvedOperation>),
    /// The environment has no such operation. Nothing was written.
    Missing(MissingOperation),
    /// It is not held, or another process may be executing it. Nothing was written.
    Refused(Refusal),
}

impl StateDirectory {
    /// Looks for an operation of an environment.
    ///
    /// # Errors
    /// The journal cannot be read, or is not as it was recorded.
    pub async fn find_operation(&self, environment: &EnvironmentName, id: &OperationId) -> Result<OperationLookup, RuntimeError> {
        let history = self.store().operation(id.clone()).await.map_err(|error| ledger_store_error(&error))?;
        Ok(OperationLookup::new(environment, history))
    }

    /// Records a person's resolution of an operation that is held, or that a killed process left open.
    ///
    /// # Errors
    /// The store cannot be read, or the store or the witness cannot be written to.
    pub async fn resolve_operation(&self, request: ResolutionRequest) -> Result<ResolutionOutcome, RuntimeError> {
        let first = match self.find_operation(&request.environment, &request.id).await? {
            OperationLookup::Found(history) => history,
            OperationLookup::Missing(missing) => return Ok(ResolutionOutcome::Missing(missing)),
        };
        if !first.progress().is_open() {
            return self.write_resolution(request, *first).await;
        }
        // The lock is held until everything is written.
        let _lock = match self.lock_environment_for(&request.environment, &request.author)? {
            LockOutcome::Taken(lock) => lock,
            LockOutcome::Refused(refusal) => return Ok(ResolutionOutcome::Refused(refusal)),
        };
        // It may have ended before the lock was taken.
        match self.find_operation(&request.environment, &request.id).await? {
            OperationLookup::Found(history) => self.write_resolution(request, *history).await,
            OperationLookup::Missing(missing) => Ok(ResolutionOutcome::Missing(missing)),
        }
    }

    /// Ends the operation if it is open, for which the caller has the lock, and resolves it.
    async fn write_resolution(&self, request: ResolutionRequest, before: OperationHistory) -> Result<ResolutionOutcome, RuntimeError> {
        let ResolutionRequest { id, resolution, reason, author: Author { by, at_ms }, environment } = request;
        let progress = before.progress();
        if !progress.is_held() && !progress.is_open() {
            return Ok(ResolutionOutcome::Refused(Refusal::operation_not_held(id.as_str(), status_word(&before))));
        }
        let ended = progress.is_open().then(|| {
            let outcome = Outcome::new_held(FailureCode::RunLeft, ReleaseCondition::Person, Findings::default());
            JournalRecord::Ended { id: id.clone(), outcome, at_ms }
        });
        let resolved = JournalRecord::Resolved { id, resolution, by, reason: reason.into_text(), at_ms };
        let records = ended.into_iter().chain([resolved]).map(StoreWrite::Record);
        if let WriteOutcome::Refused(refusal) = self.write_attested(Batch::new(records.collect())).await? {
            return Ok(ResolutionOutcome::Refused(refusal));
        }
        let guest = before.operation.guest.vmid;
        let hold = self.load_conditions(&environment).await?.holds.into_iter().find(|hold| hold.vmid == guest);
        Ok(ResolutionOutcome::Resolved(Box::new(ResolvedOperation { before, hold })))
    }
}
