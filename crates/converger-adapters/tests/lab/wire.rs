//! The wire between the client and a lab in the same process: how a request of the codec reaches a world, how its answer comes back, and
//! that both have the form that the table of the API gives them. Every test that drives the client against a world takes this way.
//!
//! What never enters: clocks, worlds, and what the client makes of an answer.

mod shape;

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::thread::LocalKey;

use converger_adapters::proxmox::client::Bounds;
use converger_adapters::proxmox::codec::{Cause, Delivery, Failure, HttpAnswer, HttpRequest, Method};
use converger_lab::{Answer, Fate, Flavour, Request, verify_answer, verify_request};

pub(crate) use shape::Mix;

/// What all requests of a client have in common: its token (`user@realm!name=secret`), and what it understands.
pub(crate) fn unsent(token: &str) -> Request {
    Request::new("", "").token(token).header("Accept", "application/json")
}

/// As the client sends it, with a form where there is a body, made out of one that was sent before or was not sent yet.
pub(crate) fn request(mut made: Request, sent: &HttpRequest) -> Request {
    made.headers.truncate(COMMON_HEADERS);
    made.body.clear();
    sent.method().word().clone_into(&mut made.method);
    sent.path().clone_into(&mut made.path);
    match sent.form() {
        Some(form) => made.form(form).header("Content-Length", &form.len().to_string()),
        None => made,
    }
}

/// The token, and what is understood.
const COMMON_HEADERS: usize = 2;

/// So much is remembered of what was checked: many thousand labs are asked in one process.
const VERIFIED_MAX: usize = 1 << 14;

type Verified = RefCell<HashMap<u64, Option<&'static str>, BuildHasherDefault<Mixed>>>;

/// What is looked for is mixed already.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
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
    static WHOLE: Verified = RefCell::default();
    static ASKED: Verified = RefCell::default();
    static ANSWERED: Verified = RefCell::default();
}

/// Every request is one that Proxmox would take, and every answer has the form that Proxmox gives it. The template of the method that
/// answered, if one did.
pub(crate) fn verify(flavour: Flavour, request: &Request, answer: &Answer) -> Option<&'static str> {
    let fault = |error: String| -> ! { panic!("{flavour:?} {} {}: {error}", request.method, request.path) };
    let asked = asked(flavour, request);
    let mut whole = head(asked, answer);
    whole.bytes(&answer.body);
    once(&WHOLE, whole, || {
        let ask = || verify_request(flavour, request).unwrap_or_else(|error| fault(error));
        let template = once(&ASKED, asked, || Some(ask())).unwrap_or_default();
        let judge = || verify_answer(flavour, request, answer).unwrap_or_else(|error| fault(error));
        once(&ANSWERED, answered(flavour, template, request, answer), judge)
    })
}

fn once(verified: &'static LocalKey<Verified>, key: Mix, check: impl FnOnce() -> Option<&'static str>) -> Option<&'static str> {
    if let Some(known) = verified.with_borrow(|known| known.get(&key.end()).copied()) {
        return known;
    }
    let found = check();
    verified.with_borrow_mut(|known| {
        if known.len() >= VERIFIED_MAX {
            known.clear();
        }
        known.insert(key.end(), found);
    });
    found
}

/// All of a request that is checked.
fn asked(flavour: Flavour, request: &Request) -> Mix {
    let mut mix = Mix::new(u64::from(flavour.major()));
    mix.bytes(request.method.as_bytes());
    match request.path.split_once(TASK) {
        None => mix.bytes(request.path.as_bytes()),
        // Of the numbers in the id of a task it is checked that they are numbers, and how long they are.
        Some((before, id)) => {
            mix.bytes(before.as_bytes());
            for part in id.split(PART) {
                let is_number = part.len() >= 8 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
                mix.bytes(if is_number { &NUMBERS[..part.len().min(NUMBERS.len())] } else { part.as_bytes() });
            }
        }
    }
    mix.bytes(&request.body);
    mix
}

/// How the id of a task begins in a path, and what stands between its parts.
const TASK: &str = "UPID%3A";
const PART: &str = "%3A";
const NUMBERS: &[u8] = b"0000000000";

fn head(mut mix: Mix, answer: &Answer) -> Mix {
    mix.word(u64::from(answer.status));
    let content = answer.headers.iter().filter(|(name, _)| name == "Content-Type");
    content.for_each(|(_, value)| mix.bytes(value.as_bytes()));
    mix
}

/// All that the check of an answer looks at. Of what a method returned that is its shape; of anything else, errors above all, it is every byte.
fn answered(flavour: Flavour, template: &str, request: &Request, answer: &Answer) -> Mix {
    let mut mix = Mix::new(u64::from(flavour.major()));
    [template.as_bytes(), request.method.as_bytes()].iter().for_each(|bytes| mix.bytes(bytes));
    mix = head(mix, answer);
    // The last member of the whole, which counts also where there were two of the name.
    if answer.status == 200 && request.path.starts_with("/api2/extjs/") && answer.body.ends_with(b",\"success\":1}") {
        mix.shape(&answer.body);
    } else {
        mix.bytes(request.path.as_bytes());
        mix.bytes(&answer.body);
    }
    mix
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
