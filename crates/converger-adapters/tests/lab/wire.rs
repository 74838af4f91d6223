//! The wire between the client and a lab in the same process: how a request of the codec reaches a world, how its answer comes back, and
//! that both have the form that the table of the API gives them. Every test that drives the client against a world takes this way.
//!
//! What never enters: clocks, worlds, and what the client makes of an answer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use converger_adapters::proxmox::client::Bounds;
use converger_adapters::proxmox::codec::{Cause, Delivery, Failure, HttpAnswer, HttpRequest, Method};
use converger_lab::{Answer, Fate, Flavour, Request, verify_answer, verify_request};

/// As the client sends it: with its token (`user@realm!name=secret`), and with a form where there is a body.
pub(crate) fn request(token: &str, sent: &HttpRequest) -> Request {
    let made = Request::new(sent.method().word(), sent.path()).token(token).header("Accept", "application/json");
    match sent.form() {
        Some(form) => made.form(form).header("Content-Length", &form.len().to_string()),
        None => made,
    }
}

/// So much is remembered of what was checked: many thousand labs are asked in one process.
const VERIFIED_MAX: usize = 1 << 16;

thread_local! {
    /// What was checked already: in many labs much is asked and answered alike.
    static VERIFIED: RefCell<BTreeMap<u64, Option<&'static str>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Every request is one that Proxmox would take, and every answer has the form that Proxmox gives it. The template of the method that
/// answered, if one did.
pub(crate) fn verify(flavour: Flavour, request: &Request, answer: &Answer) -> Option<&'static str> {
    let check = || {
        let fault = |error: String| -> ! { panic!("{flavour:?} {} {}: {error}", request.method, request.path) };
        verify_request(flavour, request).unwrap_or_else(|error| fault(error));
        verify_answer(flavour, request, answer).unwrap_or_else(|error| fault(error))
    };
    VERIFIED.with_borrow_mut(|verified| {
        if verified.len() >= VERIFIED_MAX {
            verified.clear();
        }
        *verified.entry(fingerprint(flavour, request, answer)).or_insert_with(check)
    })
}

fn fingerprint(flavour: Flavour, request: &Request, answer: &Answer) -> u64 {
    let mut hasher = DefaultHasher::new();
    (flavour.major(), &request.method, &request.path, &request.body, answer.status, &answer.headers, &answer.body).hash(&mut hasher);
    hasher.finish()
}

/// As long as the client waits where nothing else is said.
pub(crate) fn deadline_ms() -> u64 {
    u64::try_from(Bounds::default().deadline.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the client reads so much where nothing else is said.
fn is_too_large(bytes: u64) -> bool {
    usize::try_from(bytes).map_or(true, |bytes| bytes > Bounds::default().body_bytes_max)
}

/// What arrives of an answer at a client that waits for so long.
pub(crate) fn received(place: &str, sent: &HttpRequest, answer: Answer, deadline_ms: u64) -> Result<HttpAnswer, Failure> {
    let lost = |cause, text: &str| Err(lost(sent, cause, format!("{place}: {text}")));
    match answer.fate {
        _ if answer.delay_ms > deadline_ms => lost(Cause::TooSlow, "no whole answer came in time"),
        Fate::Deliver => Ok(HttpAnswer { status: answer.status, reason: answer.reason, body: answer.body }),
        // Blanks behind it do not change it, up to what is read at all; in pieces it is whole in the end.
        Fate::Flood { bytes, .. } if is_too_large(bytes) => lost(Cause::TooLarge, "the answer is too large"),
        Fate::Drip { .. } | Fate::Flood { .. } => Ok(HttpAnswer { status: answer.status, reason: answer.reason, body: answer.body }),
        Fate::GzipBomb(_) => lost(Cause::Compressed, "the answer is compressed"),
        Fate::Truncated(_) | Fate::LostBefore | Fate::LostAfter | Fate::CloseWithoutAnswer => {
            lost(Cause::Interrupted, "the connection broke before the answer was whole")
        }
    }
}

/// A request that reads leaves nothing behind, however far it came.
fn lost(request: &HttpRequest, cause: Cause, text: String) -> Failure {
    let delivery = if request.method() == Method::Get { Delivery::NotDelivered } else { Delivery::MayHaveRun };
    Failure::lost(delivery, cause, text)
}
