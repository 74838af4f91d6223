//! Renames an environment in the state directory: holds, freezes and operations move to the new name.

use converger_core::apply::EnvironmentRename;
use converger_core::guest::EnvironmentName;
use converger_core::refusal::Refusal;
use converger_store::{Batch, StoreWrite};

use crate::author::{Author, Reason};
use crate::error::RuntimeError;
use crate::state_dir::{LockOutcome, StateDirectory, WriteOutcome};

/// A rename that a person asks for.
#[derive(Clone, Debug)]
pub struct RenameRequest {
    /// The name now.
    pub from: EnvironmentName,
    /// The new name.
    pub to: EnvironmentName,
    /// Why.
    pub reason: Reason,
    /// Who asks.
    pub author: Author,
}

impl StateDirectory {
    /// Renames an environment under the locks of both names, so that no apply runs under either.
    ///
    /// # Errors
    /// A lock file cannot be used, or the store or the witness cannot be written to.
    pub async fn rename_environment(&self, request: RenameRequest) -> Result<WriteOutcome, RuntimeError> {
        let RenameRequest { from, to, reason, author } = request;
        if from == to {
            // The second lock would be refused because of the first.
            return Ok(WriteOutcome::Refused(Refusal::name_in_use(&to)));
        }
        let mut locks = Vec::new();
        for name in [&from, &to] {
            match self.lock_environment_for(name, &author)? {
                LockOutcome::Taken(lock) => locks.push(lock),
                LockOutcome::Refused(refusal) => return Ok(WriteOutcome::Refused(refusal)),
            }
        }
        let Author { by, at_ms } = author;
        let rename = EnvironmentRename { from, to, by, reason: reason.into_text(), at_ms };
        // The locks are released after the write.
        self.write_attested(Batch::from(StoreWrite::Rename(rename))).await
    }
}
