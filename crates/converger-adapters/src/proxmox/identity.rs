//! The identity of a cluster: the fingerprint of its root CA, read from one of its nodes with one request.
//!
//! Must not know which cluster a name was bound to; the store decides that.

use converger_core::guest::{ClusterIdentity, NodeName};
use thiserror::Error;

use super::client::{ClientError, ProxmoxSession, ProxmoxTransport};
use super::codec::{ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead};

/// Why the identity of a cluster is unknown. Nothing is sent to a cluster whose identity is unknown.
#[derive(Debug, Error)]
pub enum IdentityError {
    /// The observation names no node that could be asked.
    #[error("{endpoint}: no node of the cluster can be asked for its certificates")]
    NoNode {
        /// The endpoint.
        endpoint: String,
    },
    /// The root CA could not be read from the node.
    #[error("{endpoint}: cannot read the cluster's root CA from node `{}`: {}", node.as_str(), failure.without_endpoint_name(endpoint))]
    Failed {
        /// The endpoint.
        endpoint: String,
        /// The node.
        node: NodeName,
        /// What it responded instead.
        failure: ProxmoxFailure,
    },
    /// No client could be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Reads the identity of the cluster that a node belongs to.
///
/// # Errors
/// The request failed, or the node does not list the root CA, or its entry is not a certificate authority.
pub async fn read_identity<E: ProxmoxTransport>(session: &ProxmoxSession<E>, node: &NodeName) -> Result<ClusterIdentity, IdentityError> {
    let failed = |failure| IdentityError::Failed { endpoint: session.endpoint_name().to_owned(), node: node.clone(), failure };
    match session.call(&ProxmoxCommand::Read(ProxmoxRead::Certificates(node.clone()))).await.map_err(failed)? {
        ProxmoxEvent::Identity(identity) => Ok(identity),
        other => Err(failed(other.unexpected_failure())),
    }
}
