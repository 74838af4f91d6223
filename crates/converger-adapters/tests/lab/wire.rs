//! The wire between the client and a lab in the same process: how a request of the codec reaches a world, how its answer comes back, and
//! that both have the form that the table of the API gives them. Every test that drives the client against a world takes this way.
//!
//! What never enters: clocks, worlds, and what the client makes of an answer.

mod shape;

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::thread::LocalKey;

use converger_adapters::proxmox::client::RequestLimits;
use converger_adapters::proxmox::codec::{Delivery, FailureCause, HttpMethod, HttpRequest, HttpResponse, ProxmoxFailure};
use converger_lab::{Flavour, LabRequest, LabResponse, WireDelivery, verify_request, verify_response};

pub(crate) use shape::ShapeHasher;

/// What all requests of a client have in common: its token (`user@realm!name=secret`), and what it understands.
pub(crate) fn request_template(token: &str) -> LabRequest {
    LabRequest::new("", "").with_token(token).with_header("Accept", "application/json")
}

/// As the client sends it, with a form where there is a body, made out of one that was sent before or was not sent yet.
pub(crate) fn build_request(mut made: LabRequest, sent: &HttpRequest) -> LabRequest {
    made.headers.truncate(COMMON_HEADERS);
    made.body.clear();
    sent.method().word().clone_into(&mut made.method);
    sent.path().clone_into(&mut made.path);
    match sent.form() {
        Some(form) => made.with_form(form).with_header("Content-Length", &form.len().to_string()),
        None => made,
    }
}

/// The token, and what is understood.
const COMMON_HEADERS: usize = 2;

/// So much is remembered of what was checked: many thousand labs are asked in one process.
const VERIFIED_MAX: usize = 1 << 14;

type VerifiedCache = RefCell<HashMap<u64, Option<&'static str>, BuildHasherDefault<IdentityHasher>>>;

/// What is looked for is mixed already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

thread_local! {
    /// What was checked already, with the template of its method: in many labs much is asked and answered byte for byte alike, and most of
    /// the rest in the same shape.
    static VERIFIED_EXCHANGES: VerifiedCache = RefCell::default();
    static VERIFIED_REQUESTS: VerifiedCache = RefCell::default();
    static VERIFIED_RESPONSES: VerifiedCache = RefCell::default();
}

/// Every request is one that Proxmox would take, and every answer has the form that Proxmox gives it. The template of the method that
/// answered, if one did.
pub(crate) fn verify_exchange(flavour: Flavour, request: &LabRequest, answer: &LabResponse) -> Option<&'static str> {
    let fault = |error: String| -> ! { panic!("{flavour:?} {} {}: {error}", request.method, request.path) };
    let asked = request_key(flavour, request);
    let mut whole = add_head(asked, answer);
    whole.add_bytes(&answer.body);
    verify_once(&VERIFIED_EXCHANGES, whole, || {
        let ask = || verify_request(flavour, request).unwrap_or_else(|error| fault(error));
        let template = verify_once(&VERIFIED_REQUESTS, asked, || Some(ask())).unwrap_or_default();
        let judge = || verify_response(flavour, request, answer).unwrap_or_else(|error| fault(error));
        verify_once(&VERIFIED_RESPONSES, response_key(flavour, template, request, answer), judge)
    })
}

fn verify_once(
    verified: &'static LocalKey<VerifiedCache>,
    key: ShapeHasher,
    check: impl FnOnce() -> Option<&'static str>,
) -> Option<&'static str> {
    if let Some(known) = verified.with_borrow(|known| known.get(&key.finish()).copied()) {
        return known;
    }
    let found = check();
    verified.with_borrow_mut(|known| {
        if known.len() >= VERIFIED_MAX {
            known.clear();
        }
        known.insert(key.finish(), found);
    });
    found
}

/// All of a request that is checked.
fn request_key(flavour: Flavour, request: &LabRequest) -> ShapeHasher {
    let mut mix = ShapeHasher::new(u64::from(flavour.major()));
    mix.add_bytes(request.method.as_bytes());
    match request.path.split_once(TASK) {
        None => mix.add_bytes(request.path.as_bytes()),
        // Of the numbers in the id of a task it is checked that they are numbers, and how long they are.
        Some((before, id)) => {
            mix.add_bytes(before.as_bytes());
            for part in id.split(PART) {
                let is_number = part.len() >= 8 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
                mix.add_bytes(if is_number { &NUMBERS[..part.len().min(NUMBERS.len())] } else { part.as_bytes() });
            }
        }
    }
    mix.add_bytes(&request.body);
    mix
}

/// How the id of a task begins in a path, and what stands between its parts.
const TASK: &str = "UPID%3A";
const PART: &str = "%3A";
const NUMBERS: &[u8] = b"0000000000";

fn add_head(mut mix: ShapeHasher, answer: &LabResponse) -> ShapeHasher {
    mix.add_word(u64::from(answer.status));
    let content = answer.headers.iter().filter(|(name, _)| name == "Content-Type");
    content.for_each(|(_, value)| mix.add_bytes(value.as_bytes()));
    mix
}

/// All that the check of an answer looks at. Of what a method returned that is its shape; of anything else, errors above all, it is every byte.
fn response_key(flavour: Flavour, template: &str, request: &LabRequest, answer: &LabResponse) -> ShapeHasher {
    let mut mix = ShapeHasher::new(u64::from(flavour.major()));
    [template.as_bytes(), request.method.as_bytes()].iter().for_each(|bytes| mix.add_bytes(bytes));
    mix = add_head(mix, answer);
    // The last member of the whole, which counts also where there were two of the name.
    if answer.status == 200 && request.path.starts_with("/api2/extjs/") && answer.body.ends_with(b",\"success\":1}") {
        mix.add_shape(&answer.body);
    } else {
        mix.add_bytes(request.path.as_bytes());
        mix.add_bytes(&answer.body);
    }
    mix
}

/// As long as the client waits where nothing else is said.
pub(crate) fn deadline_ms() -> u64 {
    u64::try_from(RequestLimits::default().deadline.as_millis()).unwrap_or(u64::MAX)
}

/// Whether the client reads so much where nothing else is said.
fn is_too_large(bytes: u64) -> bool {
    usize::try_from(bytes).map_or(true, |bytes| bytes > RequestLimits::default().body_bytes_max)
}

/// What arrives of an answer at a client that waits for so long.
pub(crate) fn receive_response(
    place: &str,
    sent: &HttpRequest,
    answer: LabResponse,
    deadline_ms: u64,
) -> Result<HttpResponse, ProxmoxFailure> {
    let lost = |cause, text: &str| Err(lost_failure(sent, cause, format!("{place}: {text}")));
    match answer.delivery {
        _ if answer.delay_ms > deadline_ms => lost(FailureCause::TooSlow, "no complete response in time"),
        WireDelivery::Deliver => Ok(HttpResponse { status: answer.status, reason: answer.reason, body: answer.body }),
        // Blanks behind it do not change it, up to what is read at all; in pieces it is whole in the end.
        WireDelivery::Flood { bytes, .. } if is_too_large(bytes) => lost(FailureCause::TooLarge, "the response is too large"),
        WireDelivery::Drip { .. } | WireDelivery::Flood { .. } => {
            Ok(HttpResponse { status: answer.status, reason: answer.reason, body: answer.body })
        }
        WireDelivery::GzipBomb(_) => lost(FailureCause::Compressed, "the response is compressed"),
        WireDelivery::Truncated(_) | WireDelivery::LostBefore | WireDelivery::LostAfter | WireDelivery::CloseWithoutAnswer => {
            lost(FailureCause::Interrupted, "the connection broke before the response was complete")
        }
    }
}

/// A request that reads leaves nothing behind, however far it came.
fn lost_failure(request: &HttpRequest, cause: FailureCause, text: String) -> ProxmoxFailure {
    let delivery = if request.method() == HttpMethod::Get { Delivery::NotDelivered } else { Delivery::MayHaveRun };
    ProxmoxFailure::without_response(delivery, cause, text)
}
