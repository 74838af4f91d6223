//! Between the client's words for a request and an answer, and the lab's: what the client would put on the wire, and what of the
//! lab's answer it would get to see.
//!
//! What never enters: when anything is sent, and what it means.

use converger_adapters::proxmox::codec::{Cause, Delivery, Failure, HttpAnswer, HttpRequest, Method};
use converger_lab::{Answer, Fate, Request};

/// As the client sends it: with its token, and with a form where there is a body.
pub(crate) fn request(token: &str, request: &HttpRequest) -> Request {
    let made = Request::new(request.method().word(), request.path()).token(token).header("Accept", "application/json");
    match request.form() {
        Some(form) => made.form(form).header("Content-Length", &form.len().to_string()),
        None => made,
    }
}

/// As much as the client reads where nothing else is said.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// A request that reads leaves nothing behind, however far it came.
fn lost(request: &HttpRequest, cause: Cause, text: &str) -> Failure {
    let delivery = if request.method() == Method::Get { Delivery::NotDelivered } else { Delivery::MayHaveRun };
    Failure::lost(delivery, cause, text)
}

/// What the client has of an answer once it is whole, or once it gives up.
pub(crate) fn arrived(sent: &HttpRequest, answer: Answer, deadline_ms: u64) -> Result<HttpAnswer, Failure> {
    match answer.fate {
        _ if answer.delay_ms > deadline_ms => Err(lost(sent, Cause::TooSlow, "no whole answer came in time")),
        Fate::Deliver => Ok(HttpAnswer { status: answer.status, reason: answer.reason, body: answer.body }),
        // Blanks behind it do not change it, up to what is read at all; in pieces it is whole in the end.
        Fate::Flood { bytes, .. } if bytes > BODY_BYTES_MAX => Err(lost(sent, Cause::TooLarge, "the answer is too large")),
        Fate::Drip { .. } | Fate::Flood { .. } => Ok(HttpAnswer { status: answer.status, reason: answer.reason, body: answer.body }),
        Fate::GzipBomb(_) => Err(lost(sent, Cause::Compressed, "the answer is compressed")),
        Fate::Truncated(_) | Fate::LostBefore | Fate::LostAfter | Fate::CloseWithoutAnswer => {
            Err(lost(sent, Cause::Interrupted, "the connection broke before the answer was whole"))
        }
    }
}
