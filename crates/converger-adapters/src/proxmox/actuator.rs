//! The hand: what an operation asks becomes one request, and what comes back becomes words of the core.
//!
//! [`command`] and [`answer`] are pure, so that the program, the simulation and the tests use the very same code; [`ProxmoxActuator`] carries
//! them over a session. Each ask is sent at most once: an ask that cannot be put into a request is answered here, and nothing is
//! tried again. Where the age of a task decides, the [`clock`] of its node is read too: a task is dated by it, and by no other.
//!
//! What never enters: which ask comes next, whether a change may be sent at all, and what follows from an answer (the engine).

mod promise_reading;
mod request;
mod response;
mod revision;

#[cfg(test)]
mod tests;

use converger_core::apply::promise::PromiseReading;
use converger_core::apply::{EnvFault, EnvRequest, EnvResponse, GuestAddress};

use super::client::{NodePermit, ProxmoxSession, ProxmoxTransport, TokenId};
use super::codec::ProxmoxWrite;

pub use request::command_for;
pub use response::{clock_command, interpret_response};

/// Who asks, and whom: what an answer is held against beyond what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerIdentity {
    /// The token whose tasks are ours.
    pub token: TokenId,
    /// The name that the cluster must have; of a node that is in no cluster, its own name.
    pub cluster: Option<Box<str>>,
}

/// Carries asks over one session.
#[derive(Debug)]
pub struct ProxmoxActuator<E> {
    session: ProxmoxSession<E>,
    caller: CallerIdentity,
}

impl<E: ProxmoxTransport> ProxmoxActuator<E> {
    /// A hand over this session, which must use the caller's token.
    pub fn new(session: ProxmoxSession<E>, caller: CallerIdentity) -> Self {
        Self { session, caller }
    }

    /// How many requests were sent.
    pub fn request_count(&self) -> u64 {
        self.session.request_count()
    }

    /// Asks once.
    pub async fn request(&self, ask: &EnvRequest) -> EnvResponse {
        match command_for(ask) {
            Ok(command) => {
                let came = self.session.call(&command).await;
                let clock = match clock_command(ask, &came) {
                    Some(command) => Some(self.session.call(&command).await),
                    None => None,
                };
                interpret_response(&self.caller, ask, came, clock)
            }
            Err(unsent) => *unsent,
        }
    }

    /// Waits for the turn of a change at the guest's node.
    ///
    /// # Errors
    /// There was no room in time, and nothing was sent.
    pub async fn acquire_permit(&self, place: &GuestAddress) -> Result<NodePermit, EnvFault> {
        self.session.acquire_permit(Some(place.node.clone())).await.map_err(|failure| response::env_fault(&failure))
    }

    /// Asks once, in a turn that was taken before.
    pub async fn send_with_permit(&self, turn: NodePermit, ask: &EnvRequest) -> EnvResponse {
        match command_for(ask) {
            Ok(command) => interpret_response(&self.caller, ask, self.session.call_with_permit(turn, &command).await, None),
            Err(unsent) => *unsent,
        }
    }

    /// Reads what tells whether a change kept its [promise](Write::promise): the same before and after it.
    pub async fn read_promise(&self, write: &ProxmoxWrite) -> PromiseReading {
        promise_reading::read_for_promise(self, write).await
    }
}
