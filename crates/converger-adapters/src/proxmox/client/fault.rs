//! What is said when an exchange does not come to an answer: what happened, and where. What to do about it stands in the table of
//! failure codes.

use std::error::Error;

use reqwest::Error as Transport;

use super::prompt::Late;
use super::secret::Secret;
use super::trust::{Distrust, Trust};
use super::watch::Watch;
use crate::proxmox::codec::{Cause, Delivery, Failure, HttpRequest, Method};

/// What is known about an exchange when it fails.
pub(super) struct Scene<'c> {
    pub(super) place: &'c str,
    pub(super) trust: &'c Trust,
    pub(super) watch: &'c Watch,
    /// To be struck out of what others said of themselves, such as the names in a certificate.
    pub(super) secret: &'c Secret,
    pub(super) request: &'c HttpRequest,
    pub(super) deadline_secs: u64,
    pub(super) connect_to_change_secs: u64,
}

/// The failure that a transport error amounts to.
pub(super) fn of(error: &Transport, scene: &Scene<'_>) -> Failure {
    if chain(error).any(|error| error.is::<Late>()) {
        let Scene { place, connect_to_change_secs: secs, .. } = scene;
        let text = format!("{place}: no connection stood within {secs} s, and the change was not sent");
        return Failure::lost(Delivery::NotDelivered, Cause::Busy, text);
    }
    // Nobody ever showed a certificate here: whichever bound struck first, no connection stood and nothing was sent.
    if error.is_timeout() && scene.watch.fingerprint().is_none() {
        return Failure::lost(Delivery::NotDelivered, Cause::Unreachable, format!("{}: nobody answers", scene.place));
    }
    // Only what failed while a connection was made, TCP and handshake, carried nothing. TLS that breaks later, however it breaks, does so
    // on a connection that the request may have gone out on.
    if error.is_connect() {
        return unconnected(error, scene);
    }
    if error.is_timeout() {
        return too_slow(scene);
    }
    let text = format!(
        "{}: the connection broke before the answer was whole ({})",
        scene.place,
        scene.secret.strike_text(broken(error).as_bytes())
    );
    Failure::lost(sent(scene.request), Cause::Interrupted, text)
}

pub(super) fn too_slow(scene: &Scene<'_>) -> Failure {
    let text = format!("{}: no whole answer came within {} s", scene.place, scene.deadline_secs);
    Failure::lost(sent(scene.request), Cause::TooSlow, text)
}

pub(super) fn too_large(scene: &Scene<'_>, bytes_max: usize) -> Failure {
    let text = format!("{}: the answer is larger than {} MiB, which no answer of Proxmox is", scene.place, bytes_max >> 20);
    Failure::lost(sent(scene.request), Cause::TooLarge, text)
}

pub(super) fn encoded(scene: &Scene<'_>, encoding: &str) -> Failure {
    let text = format!("{}: the answer is compressed (`{}`), which was not asked for", scene.place, encoding.escape_debug());
    Failure::lost(sent(scene.request), Cause::Compressed, text)
}

/// A request that reads leaves nothing behind, however far it came.
fn sent(request: &HttpRequest) -> Delivery {
    if request.method() == Method::Get { Delivery::NotDelivered } else { Delivery::MayHaveRun }
}

fn chain<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| inner(*error))
}

/// An `io::Error` hides what it was made of from `source`, and TLS errors come inside of one.
fn inner<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    match error.downcast_ref::<std::io::Error>() {
        Some(io) => io.get_ref().map(|inner| inner as &(dyn Error + 'static)),
        None => error.source(),
    }
}

fn tls_error(error: &Transport) -> Option<&rustls::Error> {
    chain(error).find_map(|error| error.downcast_ref())
}

/// How the connection broke. That the other side closed it has many words, some with addresses of manuals.
fn broken(error: &Transport) -> String {
    let is_end = |error: &(dyn Error + 'static)| {
        let io = error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof);
        io || error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_incomplete_message)
    };
    if chain(error).any(is_end) { "the other side closed it".to_owned() } else { deepest(error) }
}

fn deepest(error: &Transport) -> String {
    chain(error).last().map_or_else(String::new, ToString::to_string)
}

fn unconnected(error: &Transport, scene: &Scene<'_>) -> Failure {
    let Some(tls) = tls_error(error) else {
        return Failure::lost(Delivery::NotDelivered, Cause::Unreachable, unreached(error, scene.place));
    };
    let distrust = Distrust::of(tls, scene.trust).told(|text| scene.secret.strike_text(text.as_bytes()));
    let failure = Failure::lost(Delivery::NotDelivered, cause(&distrust), untrusted(&distrust, scene));
    scene.watch.distrusted(distrust);
    failure
}

fn unreached(error: &Transport, place: &str) -> String {
    if error.is_timeout() {
        return format!("{place}: nobody answers");
    }
    if error.is_dns() {
        return format!("{place}: the name is not known ({})", deepest(error));
    }
    format!("{place}: no connection ({})", deepest(error))
}

fn cause(distrust: &Distrust) -> Cause {
    match distrust {
        Distrust::NotPinned => Cause::PinMismatch,
        Distrust::Expired | Distrust::NotYetValid => Cause::CertificateExpired,
        Distrust::OtherName(_) => Cause::CertificateOtherName,
        Distrust::WithoutKey | Distrust::UnknownIssuer | Distrust::Certificate(_) => Cause::Untrusted,
        Distrust::Protocol(_) => Cause::NotTls,
    }
}

fn untrusted(distrust: &Distrust, scene: &Scene<'_>) -> String {
    let place = scene.place;
    let shown = scene.watch.fingerprint().map_or_else(String::new, |fingerprint| format!("; it shows the fingerprint {fingerprint}"));
    let what = match distrust {
        Distrust::Protocol(error) => return format!("{place}: whoever answers does not speak TLS as it must be spoken ({error})"),
        Distrust::NotPinned => match scene.trust {
            Trust::Fingerprints(pins) if pins.len() > 1 => &format!("the certificate is none of the {} that are pinned", pins.len()),
            _ => "the certificate is not the one that is pinned",
        },
        Distrust::Certificate(fault) => &format!("the certificate cannot be trusted ({fault})"),
        Distrust::WithoutKey => "whoever answers shows a pinned certificate and does not have its key",
        Distrust::Expired => "the certificate has expired",
        Distrust::NotYetValid => "the certificate is not valid yet, by the clock of this machine",
        Distrust::OtherName(names) if names.is_empty() => "the certificate is for another name",
        Distrust::OtherName(names) => &format!("the certificate is for another name: {}", names.join(", ").escape_debug()),
        Distrust::UnknownIssuer => "the certificate is from an authority that is not trusted",
    };
    format!("{place}: {what}{shown}")
}
