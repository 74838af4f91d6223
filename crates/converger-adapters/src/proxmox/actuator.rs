//! The actuator: turns each request of an operation into one API request and converts the response to core types.
//!
//! [`command_for`] and [`interpret_response`] are pure, so that the program, the simulation and the tests use the same code;
//! [`ProxmoxActuator`] runs them over a session. Each request is sent at most once. A request that cannot be encoded is answered here,
//! without sending anything, and nothing is retried. If the age of a task matters, [`clock_command`] also reads the clock of the task's
//! node, because only that clock dates the task.
//!
//! Must not decide which request comes next, whether a change may be sent, or what follows from a response; the engine does.

mod request;
mod response;
mod revision;

#[cfg(test)]
mod tests;

use converger_core::apply::{EnvFault, EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, SendResult};

use super::client::{NodePermit, ProxmoxSession, ProxmoxTransport, SecretSource, TokenId};
use super::codec::{ProvisionWrite, ProxmoxCommand, ProxmoxWrite, percent_encode};

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
                redact_password(&command, interpret_response(&self.caller, request, result, None))
            }
            Err(unsent) => *unsent,
        }
    }
}

/// The command for a request, with the password that it names. Nothing is sent if that cannot be read.
fn prepare_command(request: &EnvRequest) -> Result<ProxmoxCommand, Box<EnvResponse>> {
    match command_for(request)? {
        ProxmoxCommand::Write(ProxmoxWrite::Provision(write)) => {
            let write = read_password(*write)?;
            Ok(ProxmoxCommand::Write(ProxmoxWrite::Provision(Box::new(write))))
        }
        command => Ok(command),
    }
}

fn read_password(write: ProvisionWrite) -> Result<ProvisionWrite, Box<EnvResponse>> {
    let Some(reference) = write.password_reference() else { return Ok(write) };
    match SecretSource::from(reference).read_password(|name| std::env::var(name).ok()) {
        Ok(password) => Ok(write.with_password(password)),
        Err(error) => {
            let fault = EnvFault::new(EnvFaultKind::Unsupported, "no-password", &error.to_string());
            Err(Box::new(EnvResponse::Sent(SendResult::Rejected(fault))))
        }
    }
}

/// Removes the password of a write from what the server said: a server may repeat what it was sent.
fn redact_password(command: &ProxmoxCommand, response: EnvResponse) -> EnvResponse {
    let ProxmoxCommand::Write(ProxmoxWrite::Provision(write)) = command else { return response };
    let Some(password) = write.password_text() else { return response };
    let redact = |fault: EnvFault| EnvFault { text: redact_text(&fault.text, password).into(), ..fault };
    match response {
        EnvResponse::Sent(SendResult::Rejected(fault)) => EnvResponse::Sent(SendResult::Rejected(redact(fault))),
        EnvResponse::Sent(SendResult::NotDelivered(fault)) => EnvResponse::Sent(SendResult::NotDelivered(redact(fault))),
        EnvResponse::Sent(SendResult::MaybeExecuted(fault)) => EnvResponse::Sent(SendResult::MaybeExecuted(redact(fault))),
        other => other,
    }
}

/// Without the password, also where it is percent-encoded or escaped.
fn redact_text(text: &str, password: &str) -> String {
    let mut encoded = String::new();
    percent_encode(password, &mut encoded);
    let escaped = password.escape_debug().to_string();
    [password, &encoded, &escaped].iter().fold(text.to_owned(), |text, own| text.replace(*own, "(secret)"))
}
