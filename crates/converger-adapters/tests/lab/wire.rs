//! The in-process connection between the client and a lab: passes requests of the codec to a world and its responses back, and checks both
//! against the API table. All tests that run the client in a world use it.
//!
//! Must not depend on clocks, on worlds, or on how the client interprets a response.

mod shape;

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::thread::LocalKey;

use converger_adapters::proxmox::client::RequestLimits;
use converger_adapters::proxmox::codec::{Delivery, FailureCause, HttpMethod, HttpRequest, HttpResponse, ProxmoxFailure};
use converger_lab::{Flavour, LabRequest, LabResponse, WireDelivery, verify_request, verify_response};

pub(crate) use shape::ShapeHasher;

/// The common part of a client's requests: its token (`user@realm!name=secret`) and the accepted media type.
pub(crate) fn request_template(token: &str) -> LabRequest {
    LabRequest::new("", "").with_token(token).with_header("Accept", "application/json")
}

/// Builds a request as the client sends it, with a form if there is a body. Reuses the buffers of `made`.
pub(crate) fn build_request(mut lab_request: LabRequest, sent: &HttpRequest) -> LabRequest {
    lab_request.headers.truncate(COMMON_HEADERS);
    lab_request.body.clear();
    sent.method().word().clone_into(&mut lab_request.method);
    sent.path().clone_into(&mut lab_request.path);
    match sent.form() {
        Some(form) => lab_request.with_form(form).with_header("Content-Length", &form.len().to_string()),
        None => lab_request,
    }
}

/// Number of common headers: the token and the accepted media type.
const COMMON_HEADERS: usize = 2;

/// Limit of the cache of verified exchanges; one process queries many thousand labs.
const VERIFIED_MAX: usize = 1 << 14;

type VerifiedCache = RefCell<HashMap<u64, Option<&'static str>, BuildHasherDefault<IdentityHasher>>>;

/// The keys are hashes already.
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
    /// Verified exchanges with the templates of their methods. Many exchanges in different labs are identical, and most others have the
    /// same shape.
    static VERIFIED_EXCHANGES: VerifiedCache = RefCell::default();
    static VERIFIED_REQUESTS: VerifiedCache = RefCell::default();
    static VERIFIED_RESPONSES: VerifiedCache = RefCell::default();
}

/// Verifies that Proxmox would accept the request and that the response has the form of Proxmox. Returns the template of the method that
/// responded, if any.
pub(crate) fn verify_exchange(flavour: Flavour, request: &LabRequest, answer: &LabResponse) -> Option<&'static str> {
    let fault = |error: String| -> ! { panic!("{flavour:?} {} {}: {error}", request.method, request.path) };
    let request_hash = request_key(flavour, request);
    let mut whole = add_head(request_hash, answer);
    whole.add_bytes(&answer.body);
    verify_once(&VERIFIED_EXCHANGES, whole, || {
        let check_request = || verify_request(flavour, request).unwrap_or_else(|error| fault(error));
        let template = verify_once(&VERIFIED_REQUESTS, request_hash, || Some(check_request())).unwrap_or_default();
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

/// The key of a request: everything that the check depends on.
fn request_key(flavour: Flavour, request: &LabRequest) -> ShapeHasher {
    let mut mix = ShapeHasher::new(u64::from(flavour.major()));
    mix.add_bytes(request.method.as_bytes());
    match request.path.split_once(TASK) {
        None => mix.add_bytes(request.path.as_bytes()),
        // The check only requires the numbers in a task id to be numbers of the right length.
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

/// The beginning of a task id in a path, and the separator of its parts.
const TASK: &str = "UPID%3A";
const PART: &str = "%3A";
const NUMBERS: &[u8] = b"0000000000";

fn add_head(mut mix: ShapeHasher, answer: &LabResponse) -> ShapeHasher {
    mix.add_word(u64::from(answer.status));
    let content = answer.headers.iter().filter(|(name, _)| name == "Content-Type");
    content.for_each(|(_, value)| mix.add_bytes(value.as_bytes()));
    mix
}

/// The key of a response: everything that the check depends on. For the result of a method, that is its shape; for everything else, errors
/// above all, all bytes.
fn response_key(flavour: Flavour, template: &str, request: &LabRequest, answer: &LabResponse) -> ShapeHasher {
    let mut mix = ShapeHasher::new(u64::from(flavour.major()));
    [template.as_bytes(), request.method.as_bytes()].iter().for_each(|bytes| mix.add_bytes(bytes));
    mix = add_head(mix, answer);
    // `success` is the last member, which counts even if a name occurs twice.
    if answer.status == 200 && request.path.starts_with("/api2/extjs/") && answer.body.ends_with(b",\"success\":1}") {
        mix.add_shape(&answer.body);
    } else {
        mix.add_bytes(request.path.as_bytes());
        mix.add_bytes(&answer.body);
    }
    mix
}

/// The default deadline of the client.
pub(crate) fn deadline_ms() -> u64 {
    u64::try_from(RequestLimits::default().deadline.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a body exceeds the default limit of the client.
fn is_too_large(bytes: u64) -> bool {
    usize::try_from(bytes).map_or(true, |bytes| bytes > RequestLimits::default().body_bytes_max)
}

/// What a client with this deadline receives of a response.
pub(crate) fn receive_response(
    endpoint_name: &str,
    sent: &HttpRequest,
    answer: LabResponse,
    deadline_ms: u64,
) -> Result<HttpResponse, ProxmoxFailure> {
    let lost = |cause, text: &str| Err(lost_failure(sent, cause, format!("{endpoint_name}: {text}")));
    match answer.delivery {
        _ if answer.delay_ms > deadline_ms => lost(FailureCause::TooSlow, "no complete response in time"),
        WireDelivery::Deliver => Ok(HttpResponse { status: answer.status, reason: answer.reason, body: answer.body }),
        // Trailing blanks do not change a response up to the size limit; a slow response is complete in the end.
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

/// A read has no effect, even if it was delivered.
fn lost_failure(request: &HttpRequest, cause: FailureCause, text: String) -> ProxmoxFailure {
    let delivery = if request.method() == HttpMethod::Get { Delivery::NotDelivered } else { Delivery::MayHaveRun };
    ProxmoxFailure::without_response(delivery, cause, text)
}
