//! Which cluster an environment name stands for. `apply` compares before it sends anything, `hold` and `freeze` before they are recorded; `plan` and
//! `audit` only report what an apply would refuse.
//!
//! The store decides in its transaction, the adapter reads the certificate, and core has the rules.

use std::collections::BTreeMap;

use converger_adapters::proxmox::identity::IdentityError;
use converger_adapters::proxmox::observe::ReadSet;
use converger_adapters::proxmox::{ObservationReport, ProxmoxObserver};
use converger_core::apply::{EnvironmentBinding, EnvironmentNames};
use converger_core::desired::Scope;
use converger_core::guest::{ClusterIdentity, EnvironmentName, Vmid};
use converger_core::observe::Seen;
use converger_core::refusal::Refusal;
use converger_store::{Batch, StoreWrite};

use crate::config::ConnectionConfig;
use crate::error::RuntimeError;
use crate::files;
use crate::host::Host;
use crate::state_dir::{StateDirectory, WriteOutcome};

/// Compares the cluster that answers with the one that the environment stands for, or records it at first use. Nothing is sent before this, or after a
/// refusal. Returns the cluster.
pub(crate) async fn bind_environment(
    state: &StateDirectory,
    host: &Host,
    environment: &EnvironmentName,
    identity: Result<ClusterIdentity, IdentityError>,
) -> Result<Result<ClusterIdentity, Refusal>, RuntimeError> {
    let cluster = match identity {
        Ok(cluster) => cluster,
        Err(error) => return Ok(Err(Refusal::cluster_unidentified(environment, &files::escape_hidden(&error.to_string())))),
    };
    let (by, at_ms) = (host.actor.clone(), host.now_ms());
    let binding = EnvironmentBinding { environment: environment.clone(), cluster: cluster.clone(), by, at_ms };
    match state.write(Batch::from(StoreWrite::Bind(binding))).await? {
        WriteOutcome::Written(_) => Ok(Ok(cluster)),
        WriteOutcome::Refused(refusal) => Ok(Err(refusal)),
    }
}

/// What an apply would refuse, if the state directory has a cluster recorded. Writes nothing (G5).
pub(crate) fn describe_conflict(
    names: &EnvironmentNames,
    environment: &EnvironmentName,
    identity: &Result<ClusterIdentity, IdentityError>,
) -> Option<String> {
    names.bindings().next()?;
    match identity {
        Ok(cluster) => names.conflict(environment, cluster).map(|conflict| format!("`apply` would be refused: {conflict}")),
        Err(error) => Some(format!("`apply` would be refused: cannot read the cluster's identity: {error}")),
    }
}

/// The result of a quick check of a cluster and of a guest in it.
#[derive(Debug)]
pub(crate) enum ClusterCheck {
    /// Nothing refuses it.
    Checked {
        /// The cluster, if it could be identified.
        cluster: Option<ClusterIdentity>,
        /// What could not be checked, as text for people.
        notes: Vec<String>,
    },
    /// A fresh observation proves that the guest does not exist.
    Absent(Refusal),
}

/// The note for a guest, or for a cluster, that could not be checked for this cause.
pub(crate) fn unchecked_note(environment: &EnvironmentName, guest: Option<Vmid>, cause: &str) -> String {
    let subject = guest.map_or_else(|| "the cluster".to_owned(), |vmid| format!("guest {vmid}"));
    format!("{subject} of {environment} could not be checked: {cause}")
}

/// Reads the identity of the cluster, and whether the guest exists, before a hold or a freeze is recorded.
pub(crate) async fn check_cluster(environment: &EnvironmentName, connection: &ConnectionConfig, guest: Option<Vmid>) -> ClusterCheck {
    let (report, identity) = match observe_briefly(environment, connection, guest).await {
        Ok(observed) => observed,
        Err(cause) => return ClusterCheck::Checked { cluster: None, notes: vec![unchecked_note(environment, guest, &cause)] },
    };
    let mut notes = Vec::new();
    if let Some(vmid) = guest {
        match report.reading.presence(vmid, report.reading.find(vmid)) {
            Seen::Present(..) => {}
            Seen::Missing => return ClusterCheck::Absent(Refusal::guest_missing_in(environment, vmid)),
            Seen::Unknown(cause) => notes.push(unchecked_note(environment, guest, cause)),
        }
    }
    let unread = identity.as_ref().err().map(|error| format!("cannot read the cluster's identity: {error}"));
    notes.extend(unread.map(|text| files::escape_hidden(&text)));
    ClusterCheck::Checked { cluster: identity.ok(), notes }
}

/// One short observation with the identity of its cluster, or why there is none.
async fn observe_briefly(
    environment: &EnvironmentName,
    connection: &ConnectionConfig,
    guest: Option<Vmid>,
) -> Result<(ObservationReport, Result<ClusterIdentity, IdentityError>), String> {
    let mut settings = connection.resolve_settings(environment)?;
    settings.bounds = settings.bounds.brief();
    // A note is one line, also if the error has one line per endpoint.
    let plain =
        |error: &dyn std::fmt::Display| files::escape_hidden(&error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" "));
    // No guest is read in full: only its existence matters.
    let proxmox = ProxmoxObserver::new(settings).map_err(|error| plain(&error))?.with_needs(ReadSet::Declared(BTreeMap::new()));
    let report = proxmox.take_report(&Scope::new(guest.into_iter().collect())).await.map_err(|error| plain(&error))?;
    let identity = proxmox.identity(&report).await;
    Ok((report, identity))
}
