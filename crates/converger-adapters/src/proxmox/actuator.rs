//! The actuator: turns each request of an operation into one API request and converts the response to core types.
//!
//! [`command_for`] and [`interpret_response`] are pure, so that the program, the simulation and the tests use the same code;
//! [`ProxmoxActuator`] runs them over a session. Each request is sent at most once. A request that cannot be encoded is answered here,
//! without sending anything, and nothing is retried. If the age of a task matters, [`clock_command`] also reads the clock of the task's
//! node, because only that clock dates the task.
//!
//! Must not decide which request comes next, whether a change may be sent, or what follows from a response; the engine does.

mod password;
mod request;
mod response;
mod revision;

#[cfg(test)]
mod tests;

use converger_core::apply::{EnvFault, EnvRequest, EnvResponse, GuestAddress};

use super::client::{NodePermit, ProxmoxSession, ProxmoxTransport, TokenId};

pub use password::check_reference as check_password_reference;
use password::{prepare_command, redact_failure, redact_password};

pub use request::command_for;
pub use response::{clock_command, interpret_response};

/// The caller and the target: what a response must match besides the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerIdentity {
    /// Tasks of this token are ours.
    pub token: TokenId,
    /// The required name of the cluster; for a node without a cluster, the name of the node.
    pub cluster: Option<Box<str>>,
}

/// Carries requests over one session.
#[derive(Debug)]
pub struct ProxmoxActuator<E> {
    session: ProxmoxSession<E>,
    caller: CallerIdentity,
}

impl<E: ProxmoxTransport> ProxmoxActuator<E> {
    /// An actuator over this session, which must use the caller's token.
    pub fn new(session: ProxmoxSession<E>, caller: CallerIdentity) -> Self {
        Self { session, caller }
    }

    /// Number of requests that were sent.
    pub fn request_count(&self) -> u64 {
        self.session.request_count()
    }

    /// Sends one request.
    pub async fn request(&self, request: &EnvRequest) -> EnvResponse {
        match prepare_command(request) {
            Ok(command) => {
                let result = self.session.call(&command).await;
                let clock = match clock_command(request, &result) {
                    Some(command) => Some(self.session.call(&command).await),
                    None => None,
                };
                let result = redact_failure(&command, result);
                redact_password(&command, interpret_response(&self.caller, request, result, clock))
            }
            Err(unsent) => *unsent,
        }
    }

    /// Waits for the permit of a change at the guest's node.
    ///
    /// # Errors
    /// No permit became free in time, and nothing was sent.
    pub async fn acquire_permit(&self, address: &GuestAddress) -> Result<NodePermit, EnvFault> {
        self.session.acquire_permit(Some(address.node.clone())).await.map_err(|failure| response::env_fault(&failure))
    }

    /// Sends one request with a permit that was acquired before.
    pub async fn send_with_permit(&self, permit: NodePermit, request: &EnvRequest) -> EnvResponse {
        match prepare_command(request) {
            Ok(command) => {
                let result = self.session.call_with_permit(permit, &command).await;
                let result = redact_failure(&command, result);
                redact_password(&command, interpret_response(&self.caller, request, result, None))
            }
            Err(unsent) => *unsent,
        }
    }
}
