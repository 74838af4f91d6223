//! What is said when an exchange does not come to an answer: what happened, and where. What to do about it stands in the table of
//! failure codes.

use std::error::Error;

use reqwest::Error as Transport;

use super::connect_deadline::ConnectTooLate;
use super::endpoint_monitor::EndpointMonitor;
use super::secret::TokenSecret;
use super::trust::{Trust, TrustFailure};
use crate::proxmox::codec::{Delivery, FailureCause, HttpMethod, HttpRequest, ProxmoxFailure};

/// What is known about an exchange when it fails.
pub(super) struct ExchangeContext<'c> {
    pub(super) place: &'c str,
    pub(super) trust: &'c Trust,
    pub(super) watch: &'c EndpointMonitor,
    /// To be struck out of what others said of themselves, such as the names in a certificate.
    pub(super) secret: &'c TokenSecret,
    pub(super) request: &'c HttpRequest,
    pub(super) deadline_secs: u64,
    pub(super) connect_to_change_secs: u64,
}

/// The failure that a transport error amounts to.
pub(super) fn from_transport_error(error: &Transport, scene: &ExchangeContext<'_>) -> ProxmoxFailure {
    if error_chain(error).any(|error| error.is::<ConnectTooLate>()) {
        let ExchangeContext { place, connect_to_change_secs: secs, .. } = scene;
        let text = format!("{place}: no connection stood within {secs} s, and the change was not sent");
        return ProxmoxFailure::without_response(Delivery::NotDelivered, FailureCause::Busy, text);
    }
    // Nobody ever showed a certificate here: whichever bound struck first, no connection stood and nothing was sent.
    if error.is_timeout() && scene.watch.fingerprint().is_none() {
        return ProxmoxFailure::without_response(
            Delivery::NotDelivered,
            FailureCause::Unreachable,
            format!("{}: nobody answers", scene.place),
        );
    }
    // Only what failed while a connection was made, TCP and handshake, carried nothing. TLS that breaks later, however it breaks, does so
    // on a connection that the request may have gone out on.
    if error.is_connect() {
        return connect_failure(error, scene);
    }
    if error.is_timeout() {
        return too_slow_failure(scene);
    }
    let text = format!(
        "{}: the connection broke before the answer was whole ({})",
        scene.place,
        scene.secret.redact_text(describe_broken_connection(error).as_bytes())
    );
    ProxmoxFailure::without_response(delivery_after_sending(scene.request), FailureCause::Interrupted, text)
}

pub(super) fn too_slow_failure(scene: &ExchangeContext<'_>) -> ProxmoxFailure {
    let text = format!("{}: no whole answer came within {} s", scene.place, scene.deadline_secs);
    ProxmoxFailure::without_response(delivery_after_sending(scene.request), FailureCause::TooSlow, text)
}

pub(super) fn too_large_failure(scene: &ExchangeContext<'_>, bytes_max: usize) -> ProxmoxFailure {
    let text = format!("{}: the answer is larger than {} MiB, which no answer of Proxmox is", scene.place, bytes_max >> 20);
    ProxmoxFailure::without_response(delivery_after_sending(scene.request), FailureCause::TooLarge, text)
}

pub(super) fn compressed_failure(scene: &ExchangeContext<'_>, encoding: &str) -> ProxmoxFailure {
    let text = format!("{}: the answer is compressed (`{}`), which was not asked for", scene.place, encoding.escape_debug());
    ProxmoxFailure::without_response(delivery_after_sending(scene.request), FailureCause::Compressed, text)
}

/// A request that reads leaves nothing behind, however far it came.
fn delivery_after_sending(request: &HttpRequest) -> Delivery {
    if request.method() == HttpMethod::Get { Delivery::NotDelivered } else { Delivery::MayHaveRun }
}

fn error_chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| inner_error(*error))
}

/// An `io::Error` hides what it was made of from `source`, and TLS errors come inside of one.
fn inner_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<std::io::Error>() {
        Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    }
}

fn find_tls_error(error: &Transport) -> Option<&rustls::Error> {
    error_chain(error).find_map(|error| error.downcast_ref())
}

/// How the connection broke. That the other side closed it has many words, some with addresses of manuals.
fn describe_broken_connection(error: &Transport) -> String {
    let is_end = |error: &(dyn Error + 'static)| {
        let io = error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof);
        io || error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
    };
    if error_chain(error).any(is_end) { "the other side closed it".to_owned() } else { deepest_message(error) }
}

fn deepest_message(error: &Transport) -> String {
    error_chain(error).last().map_or_else(String::new, ToString::to_string)
}

fn connect_failure(error: &Transport, scene: &ExchangeContext<'_>) -> ProxmoxFailure {
    let Some(tls) = find_tls_error(error) else {
        return ProxmoxFailure::without_response(
            Delivery::NotDelivered,
            FailureCause::Unreachable,
            describe_unreachable(error, scene.place),
        );
    };
    let distrust = TrustFailure::from_tls_error(tls, scene.trust).map_texts(|text| scene.secret.redact_text(text.as_bytes()));
    let failure =
        ProxmoxFailure::without_response(Delivery::NotDelivered, trust_failure_cause(&distrust), describe_distrust(&distrust, scene));
    scene.watch.record_trust_failure(distrust);
    failure
}

fn describe_unreachable(error: &Transport, place: &str) -> String {
    if error.is_timeout() {
        return format!("{place}: nobody answers");
    }
    if error.is_dns() {
        return format!("{place}: the name is not known ({})", deepest_message(error));
    }
    format!("{place}: no connection ({})", deepest_message(error))
}

fn trust_failure_cause(distrust: &TrustFailure) -> FailureCause {
    match distrust {
        TrustFailure::NotPinned => FailureCause::PinMismatch,
        TrustFailure::Expired | TrustFailure::NotYetValid => FailureCause::CertificateExpired,
        TrustFailure::OtherName(_) => FailureCause::CertificateOtherName,
        TrustFailure::WithoutKey | TrustFailure::UnknownIssuer | TrustFailure::Certificate(_) => FailureCause::Untrusted,
        TrustFailure::Protocol(_) => FailureCause::NotTls,
    }
}

fn describe_distrust(distrust: &TrustFailure, scene: &ExchangeContext<'_>) -> String {
    let place = scene.place;
    let shown = scene.watch.fingerprint().map_or_else(String::new, |fingerprint| format!("; it shows the fingerprint {fingerprint}"));
    let what = match distrust {
        TrustFailure::Protocol(error) => return format!("{place}: whoever answers does not speak TLS as it must be spoken ({error})"),
        TrustFailure::NotPinned => match scene.trust {
            Trust::Fingerprints(pins) if pins.len() > 1 => &format!("the certificate is none of the {} that are pinned", pins.len()),
            _ => "the certificate is not the one that is pinned",
        },
        TrustFailure::Certificate(fault) => &format!("the certificate cannot be trusted ({fault})"),
        TrustFailure::WithoutKey => "whoever answers shows a pinned certificate and does not have its key",
        TrustFailure::Expired => "the certificate has expired",
        TrustFailure::NotYetValid => "the certificate is not valid yet, by the clock of this machine",
        TrustFailure::OtherName(names) if names.is_empty() => "the certificate is for another name",
        TrustFailure::OtherName(names) => &format!("the certificate is for another name: {}", names.join(", ").escape_debug()),
        TrustFailure::UnknownIssuer => "the certificate is from an authority that is not trusted",
    };
    format!("{place}: {what}{shown}")
}
