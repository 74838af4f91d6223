//! Passwords of new guests: read right before a write is sent, and removed from what the server says about it.
//!
//! Must not store or show a password.

use converger_core::apply::{EnvFault, EnvFaultKind, EnvRequest, EnvResponse, SendResult};
use converger_core::guest::SecretReference;

use super::super::client::SecretSource;
use super::super::codec::{ProvisionWrite, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxWrite, percent_encode};
use super::request::command_for;

/// The command for a request, with the password that it names. Nothing is sent if that cannot be read.
pub(super) fn prepare_command(request: &EnvRequest) -> Result<ProxmoxCommand, Box<EnvResponse>> {
    match command_for(request)? {
        ProxmoxCommand::Write(ProxmoxWrite::Provision(write)) => {
            let write = read_password(*write)?;
            Ok(ProxmoxCommand::Write(ProxmoxWrite::Provision(Box::new(write))))
        }
        command => Ok(command),
    }
}

/// Whether a password can be read now. It is read again right before it is sent.
///
/// # Errors
/// Why it cannot, without the password.
pub fn check_reference(reference: &SecretReference) -> Result<(), String> {
    SecretSource::from(reference).read_password(|name| std::env::var(name).ok()).map(drop).map_err(|error| error.to_string())
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

/// Removes the password of a write from a failure, before its text is cut: a part of a password would not be found any more.
pub(super) fn redact_failure(
    command: &ProxmoxCommand,
    result: Result<ProxmoxEvent, ProxmoxFailure>,
) -> Result<ProxmoxEvent, ProxmoxFailure> {
    let ProxmoxCommand::Write(ProxmoxWrite::Provision(write)) = command else { return result };
    let Some(password) = write.password_text() else { return result };
    result.map_err(|failure| {
        let redact = |text: &str| redact_text(text, password).into_boxed_str();
        let errors = failure.errors.iter().map(|(name, text)| (redact(name), redact(text))).collect();
        ProxmoxFailure { text: redact(&failure.text), errors, ..failure }
    })
}

/// Removes the password of a write from what the server said: a server may repeat what it was sent.
pub(super) fn redact_password(command: &ProxmoxCommand, response: EnvResponse) -> EnvResponse {
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
