//! Holds of guests and freezes of environments: set, ended, and durable before the caller learns of it.
//!
//! None of this takes the lock of the environment: a hold must also stop an apply that runs in another process, which checks the store before its
//! next intent. The cluster is compared before a hold or a freeze is recorded; [`CheckedHold`] cannot be made without that.

use converger_core::apply::{EnvironmentBinding, Freeze, Hold};
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_core::refusal::Refusal;
use converger_store::{Batch, StoreWrite};

use crate::author::{Author, Reason};
use crate::cluster_identity::{ClusterCheck, check_cluster, unchecked_note};
use crate::config::Config;
use crate::error::RuntimeError;
use crate::reader::unconfigured_error;
use crate::state_dir::{StateDirectory, WriteOutcome};

/// What is not changed from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldSubject {
    /// One guest: a hold.
    Guest(Vmid),
    /// Every guest of the environment: a freeze.
    Environment,
}

impl HoldSubject {
    fn guest(self) -> Option<Vmid> {
        match self {
            Self::Guest(vmid) => Some(vmid),
            Self::Environment => None,
        }
    }
}

/// A hold or a freeze that a person asks for.
#[derive(Clone, Debug)]
pub struct HoldRequest {
    /// The environment.
    pub environment: EnvironmentName,
    /// What is held in it.
    pub subject: HoldSubject,
    /// Why.
    pub reason: Reason,
    /// Who asks.
    pub author: Author,
}

/// A hold or a freeze after the check of the cluster. [`StateDirectory::record_hold`] records it.
#[derive(Debug)]
pub struct CheckedHold {
    request: HoldRequest,
    cluster: Option<ClusterIdentity>,
    notes: Vec<String>,
}

/// The result of the check of the cluster.
#[derive(Debug)]
pub enum HoldCheckOutcome {
    /// Nothing refuses it.
    Checked(CheckedHold),
    /// A fresh observation proves that the guest does not exist.
    Refused(Refusal),
}

impl HoldRequest {
    /// Checks the cluster and the guest. A guest that is proven absent is refused. A cluster that does not answer, or a guest that cannot be read, is
    /// noted only: the person may know better, and it may be urgent.
    ///
    /// # Errors
    /// The environment has no connection configured.
    pub async fn check(self, config: &Config) -> Result<HoldCheckOutcome, RuntimeError> {
        let connection = config.connection.as_ref().ok_or_else(|| unconfigured_error(&self.environment))?;
        match check_cluster(&self.environment, connection, self.subject.guest()).await {
            ClusterCheck::Absent(refusal) => Ok(HoldCheckOutcome::Refused(refusal)),
            ClusterCheck::Checked { cluster, notes } => Ok(HoldCheckOutcome::Checked(CheckedHold::new(self, cluster, notes, config))),
        }
    }

    /// Skips the check for this cause, which is noted. No request is sent.
    #[must_use]
    pub fn skip_check(self, config: &Config, cause: &str) -> CheckedHold {
        let note = unchecked_note(&self.environment, self.subject.guest(), cause);
        CheckedHold::new(self, None, vec![note], config)
    }
}

impl CheckedHold {
    fn new(request: HoldRequest, cluster: Option<ClusterIdentity>, mut notes: Vec<String>, config: &Config) -> Self {
        // Without the identity of the cluster, the store cannot refuse a second name of it.
        if let (None, Some((other, shared))) = (&cluster, &config.same_cluster) {
            notes.push(format!("`{other}` has {shared} too: if it is the same cluster, this does not apply under that name"));
        }
        Self { request, cluster, notes }
    }

    /// What could not be checked, as text for people.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The binding of the name to its cluster, if that was identified, and then the hold or freeze.
    fn into_batch(self) -> Batch {
        let HoldRequest { environment, subject, reason, author: Author { by, at_ms } } = self.request;
        let bind = |cluster| StoreWrite::Bind(EnvironmentBinding { environment: environment.clone(), cluster, by: by.clone(), at_ms });
        let batch = self.cluster.map(bind).map_or_else(Batch::default, Batch::from);
        let reason = reason.into_text();
        batch.with(match subject {
            HoldSubject::Guest(vmid) => StoreWrite::Hold(Hold { environment, vmid, by, reason, at_ms }),
            HoldSubject::Environment => StoreWrite::Freeze(Freeze { environment, by, reason, at_ms }),
        })
    }
}

impl StateDirectory {
    /// Records a hold or a freeze, together with the cluster that the environment stands for.
    ///
    /// # Errors
    /// The store or the witness cannot be written to. If only the witness cannot, the hold is durable all the same.
    pub async fn record_hold(&self, hold: CheckedHold) -> Result<WriteOutcome, RuntimeError> {
        self.write_attested(hold.into_batch()).await
    }

    /// Ends the hold of a guest.
    ///
    /// # Errors
    /// The store or the witness cannot be written to.
    pub async fn release_guest(&self, environment: EnvironmentName, vmid: Vmid, author: Author) -> Result<WriteOutcome, RuntimeError> {
        let Author { by, at_ms } = author;
        self.write_attested(StoreWrite::Release { environment, vmid, by, at_ms }.into()).await
    }

    /// Ends the freeze of an environment.
    ///
    /// # Errors
    /// The store or the witness cannot be written to.
    pub async fn thaw_environment(&self, environment: EnvironmentName, author: Author) -> Result<WriteOutcome, RuntimeError> {
        let Author { by, at_ms } = author;
        self.write_attested(StoreWrite::Thaw { environment, by, at_ms }.into()).await
    }
}
