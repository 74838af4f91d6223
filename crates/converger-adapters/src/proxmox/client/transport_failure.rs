//! Converts transport errors to failures: what happened, and at which endpoint. The remedies are in the table of failure codes.

use std::error::Error;

use reqwest::Error as Transport;

use super::connect_deadline::ConnectTooLate;
use super::endpoint_monitor::EndpointMonitor;
use super::secret::TokenSecret;
use super::trust::{Trust, TrustFailure};
use crate::proxmox::codec::{Delivery, FailureCause, HttpMethod, HttpRequest, ProxmoxFailure};

/// What is known about an exchange when it fails.
pub(super) struct ExchangeContext<'c> {
    pub(super) endpoint: &'c str,
    pub(super) trust: &'c Trust,
    pub(super) watch: &'c EndpointMonitor,
    /// Redacted from texts of the server, such as the names in a certificate.
    pub(super) secret: &'c TokenSecret,
    pub(super) request: &'c HttpRequest,
    pub(super) deadline_secs: u64,
    pub(super) connect_to_change_secs: u64,
}

/// Converts a transport error to a failure.
pub(super) fn from_transport_error(error: &Transport, context: &ExchangeContext<'_>) -> ProxmoxFailure {
    if error_chain(error).any(|error| error.is::<ConnectTooLate>()) {
        let ExchangeContext { endpoint: endpoint_name, connect_to_change_secs: secs, .. } = context;
        let text = format!("{endpoint_name}: no connection within {secs} s; the change was not sent");
        return ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::Busy, text);
    }
    // The endpoint never presented a certificate, so whichever timeout struck first, no connection existed and nothing was sent.
    if error.is_timeout() && context.watch.fingerprint().is_none() {
        return ProxmoxFailure::without_response(
            Delivery::NotDelivered,
            FailureCause::Unreachable,
            format!("{}: connection timed out", context.endpoint),
        );
    }
    // Only a failure during connecting (TCP and handshake) proves that nothing was sent. If TLS breaks later, the request may have gone out
    // on that connection.
    if error.is_connect() {
        return connect_failure(error, context);
    }
    if error.is_timeout() {
        return too_slow_failure(context);
    }
    let text = format!(
        "{}: the connection broke before the response was complete ({})",
        context.endpoint,
        context.secret.redact_text(describe_broken_connection(error).as_bytes())
    );
    ProxmoxFailure::without_response(delivery_after_sending(context.request), FailureCause::Interrupted, text)
}

pub(super) fn too_slow_failure(context: &ExchangeContext<'_>) -> ProxmoxFailure {
    let text = format!("{}: no complete response within {} s", context.endpoint, context.deadline_secs);
    ProxmoxFailure::without_response(delivery_after_sending(context.request), FailureCause::TooSlow, text)
}

pub(super) fn too_large_failure(context: &ExchangeContext<'_>, bytes_max: usize) -> ProxmoxFailure {
    let text =
        format!("{}: the response is larger than {} MiB, which is no plausible response of Proxmox", context.endpoint, bytes_max >> 20);
    ProxmoxFailure::without_response(delivery_after_sending(context.request), FailureCause::TooLarge, text)
}

pub(super) fn compressed_failure(context: &ExchangeContext<'_>, encoding: &str) -> ProxmoxFailure {
    let text = format!("{}: the response is compressed (`{}`), which was not requested", context.endpoint, encoding.escape_debug());
    ProxmoxFailure::without_response(delivery_after_sending(context.request), FailureCause::Compressed, text)
}

/// A read has no effect, even if it was delivered.
fn delivery_after_sending(request: &HttpRequest) -> Delivery {
    if request.method() == HttpMethod::Get { Delivery::NotDelivered } else { Delivery::MayHaveRun }
}

fn error_chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| inner_error(*error))
}

/// `io::Error::source` skips the inner error, and TLS errors arrive inside an `io::Error`.
fn inner_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<std::io::Error>() {
        Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    }
}

fn find_tls_error(error: &Transport) -> Option<&rustls::Error> {
    error_chain(error).find_map(|error| error.downcast_ref())
}

/// How the connection broke. The libraries report a closed connection in many wordings, some with links to manuals.
fn describe_broken_connection(error: &Transport) -> String {
    let is_end = |error: &(dyn Error + 'static)| {
        let io = error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof);
        io || error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
    };
    if error_chain(error).any(is_end) { "closed by the server".to_owned() } else { deepest_message(error) }
}

fn deepest_message(error: &Transport) -> String {
    error_chain(error).last().map_or_else(String::new, ToString::to_string)
}

fn connect_failure(error: &Transport, context: &ExchangeContext<'_>) -> ProxmoxFailure {
    let Some(tls) = find_tls_error(error) else {
        return ProxmoxFailure::without_response(
            Delivery::NotDelivered,
            FailureCause::Unreachable,
            describe_unreachable(error, context.endpoint),
        );
    };
    let trust_failure = TrustFailure::from_tls_error(tls, context.trust).map_texts(|text| context.secret.redact_text(text.as_bytes()));
    let failure = ProxmoxFailure::without_response(
        Delivery::NotDelivered,
        trust_failure_cause(&trust_failure),
        describe_distrust(&trust_failure, context),
    );
    context.watch.record_trust_failure(trust_failure);
    failure
}

fn describe_unreachable(error: &Transport, endpoint_name: &str) -> String {
    if error.is_timeout() {
        return format!("{endpoint_name}: connection timed out");
    }
    if error.is_dns() {
        return format!("{endpoint_name}: the host name cannot be resolved ({})", deepest_message(error));
    }
    let kinds = error_chain(error).filter_map(|error| error.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
    match kinds.last() {
        Some(std::io::ErrorKind::ConnectionRefused) => format!("{endpoint_name}: connection refused"),
        Some(std::io::ErrorKind::ConnectionReset) => format!("{endpoint_name}: connection reset"),
        _ => format!("{endpoint_name}: no connection ({})", deepest_message(error)),
    }
}

fn trust_failure_cause(trust_failure: &TrustFailure) -> FailureCause {
    match trust_failure {
        TrustFailure::NotPinned => FailureCause::PinMismatch,
        TrustFailure::Expired | TrustFailure::NotYetValid => FailureCause::CertificateExpired,
        TrustFailure::OtherName(_) => FailureCause::CertificateOtherName,
        TrustFailure::WithoutKey | TrustFailure::UnknownIssuer | TrustFailure::Certificate(_) => FailureCause::Untrusted,
        TrustFailure::Protocol(_) => FailureCause::NotTls,
    }
}

fn describe_distrust(trust_failure: &TrustFailure, context: &ExchangeContext<'_>) -> String {
    let endpoint_name = context.endpoint;
    let fingerprint_text =
        context.watch.fingerprint().map_or_else(String::new, |fingerprint| format!("; its fingerprint is {fingerprint}"));
    let what = match trust_failure {
        TrustFailure::Protocol(error) => return format!("{endpoint_name}: the server does not speak valid TLS ({error})"),
        TrustFailure::NotPinned => match context.trust {
            Trust::Fingerprints(pins) if pins.len() > 1 => &format!("the certificate is none of the {} pinned ones", pins.len()),
            _ => "the certificate does not match the pinned fingerprint",
        },
        TrustFailure::Certificate(fault) => &format!("the certificate cannot be trusted ({fault})"),
        TrustFailure::WithoutKey => "the server presents a pinned certificate but does not have its private key",
        TrustFailure::Expired => "the certificate has expired",
        TrustFailure::NotYetValid => "the certificate is not valid yet according to the clock of this machine",
        TrustFailure::OtherName(names) if names.is_empty() => "the certificate is for another name",
        TrustFailure::OtherName(names) => &format!("the certificate is for another name: {}", names.join(", ").escape_debug()),
        TrustFailure::UnknownIssuer => "the certificate is issued by an authority that is not trusted",
    };
    format!("{endpoint_name}: {what}{fingerprint_text}")
}
