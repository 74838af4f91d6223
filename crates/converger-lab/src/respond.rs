//! The shapes of answers: json, extjs, and the raw ones that carry no JSON at all.
//!
//! What never enters here: why an answer is what it is.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::decode::Format;
use crate::flavour::Flavour;
use crate::wire::{Answer, Fate, Header};

/// What a method returns.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    body: Body,
    /// How many there are in all, where a list is cut. Proxmox leaves it out when it is zero.
    total: u64,
    /// How long the method itself took.
    pub(crate) delay_ms: u64,
}

#[derive(Clone, Debug)]
enum Body {
    Value(Value),
    /// Already JSON, for lists that are too long to be built as a tree.
    Text(Vec<u8>),
}

impl Data {
    pub(crate) fn null() -> Self {
        Value::Null.into()
    }

    pub(crate) fn text(json: Vec<u8>) -> Self {
        Self { body: Body::Text(json), total: 0, delay_ms: 0 }
    }

    pub(crate) fn total(mut self, total: usize) -> Self {
        self.total = total as u64;
        self
    }

    pub(crate) fn after(mut self, delay_ms: u64) -> Self {
        self.delay_ms = self.delay_ms.saturating_add(delay_ms);
        self
    }
}

impl From<Value> for Data {
    fn from(value: Value) -> Self {
        Self { body: Body::Value(value), total: 0, delay_ms: 0 }
    }
}

impl From<String> for Data {
    fn from(text: String) -> Self {
        Value::String(text).into()
    }
}

/// Why a method returned nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    /// 400: parameters, each with its text, and how long it took.
    Params(BTreeMap<String, String>, u64),
    /// 403, with what stands in the brackets; empty for the bare text.
    Denied(String),
    /// 401 from a login.
    Login(String),
    /// 500: the text of whatever went wrong, without its line end, and how long it took.
    Died(String, u64),
    /// 501: no such method.
    NotImplemented(String),
    /// No JSON: a status, a reason, a body, and how long it took.
    Raw { status: u16, reason: String, body: String, delay_ms: u64 },
}

impl Fail {
    pub(crate) fn died(text: impl Into<String>) -> Self {
        Self::Died(text.into(), 0)
    }

    pub(crate) fn param(name: &str, text: impl Into<String>) -> Self {
        Self::Params(BTreeMap::from([(name.to_owned(), text.into())]), 0)
    }

    pub(crate) fn denied(path: &str, privilege: &str) -> Self {
        Self::Denied(format!("{path}, {privilege}"))
    }

    /// An answer of the proxy or the daemon itself, without a body.
    pub(crate) fn silent(status: u16, reason: &str, delay_ms: u64) -> Self {
        Self::Raw { status, reason: reason.to_owned(), body: String::new(), delay_ms }
    }

    /// An answer of the server itself, with its text as the body.
    pub(crate) fn plain(status: u16, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Raw { status, body: reason.clone(), reason, delay_ms: 0 }
    }

    fn status(&self) -> u16 {
        match self {
            Self::Params(..) => 400,
            Self::Denied(_) => 403,
            Self::Login(_) => 401,
            Self::Died(..) => 500,
            Self::NotImplemented(_) => 501,
            Self::Raw { status, .. } => *status,
        }
    }

    /// The full text, with its line end where Proxmox has one.
    fn message(&self) -> String {
        match self {
            Self::Params(..) => "Parameter verification failed.\n".to_owned(),
            Self::Denied(what) if what.is_empty() => "Permission check failed\n".to_owned(),
            Self::Denied(what) => format!("Permission check failed ({what})\n"),
            Self::Login(text) | Self::Died(text, _) => format!("{text}\n"),
            Self::NotImplemented(text) => text.clone(),
            Self::Raw { body, .. } => body.clone(),
        }
    }

    /// The whole text on one line, as the exit status of a task has it.
    pub(crate) fn one_line(&self) -> String {
        let details = match self {
            Self::Params(errors, _) => errors.iter().map(|(name, text)| format!("{name}: {text}\n")).collect(),
            _ => String::new(),
        };
        let text = format!("{}{details}", self.message());
        text.lines().collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }

    fn delay_ms(&self) -> u64 {
        match self {
            Self::Login(_) => 3_000,
            Self::Params(_, delay_ms) | Self::Died(_, delay_ms) | Self::Raw { delay_ms, .. } => *delay_ms,
            _ => 0,
        }
    }
}

impl From<BTreeMap<String, String>> for Fail {
    fn from(errors: BTreeMap<String, String>) -> Self {
        Self::Params(errors, 0)
    }
}

/// Which hands an answer went through; each leaves its own `Connection` header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// Handed to the privileged daemon.
    pub(crate) daemon: bool,
    /// Handed to another node.
    pub(crate) remote: bool,
    /// A GET: its connection to the other node is kept.
    pub(crate) read: bool,
}

impl Way {
    fn connection(self) -> &'static [&'static str] {
        match (self.remote && self.read, self.daemon) {
            (false, false) if self.remote => &["close", "Keep-Alive"],
            (false, false) => &["Keep-Alive"],
            (false, true) => &["close", "Keep-Alive"],
            (true, false) => &["Keep-Alive", "Keep-Alive"],
            (true, true) => &["close,Keep-Alive", "Keep-Alive"],
        }
    }
}

/// The answer to a call that reached the API.
pub(crate) fn answer(format: Format, flavour: Flavour, way: Way, outcome: Result<Data, Fail>) -> Answer {
    match (outcome, format) {
        (Ok(data), _) => {
            let delay_ms = data.delay_ms;
            let body = success(format, data);
            let connection = way.connection();
            Answer { delay_ms, ..json_answer(200, "OK".to_owned(), connection, body) }
        }
        (Err(Fail::Raw { status, reason, body, delay_ms }), _) => raw(status, &reason, &body, delay_ms),
        (Err(fail @ Fail::Login(_)), _) | (Err(fail), Format::Json) => failed_json(flavour, &fail),
        (Err(fail), Format::Extjs) => failed_extjs(way, &fail),
    }
}

/// What stands around the data, and a short value.
const ENVELOPE_BYTES: usize = 120;

fn success(format: Format, data: Data) -> Vec<u8> {
    let room = if let Body::Text(text) = &data.body { text.len() } else { 0 };
    let mut body = Vec::with_capacity(room + ENVELOPE_BYTES);
    body.extend_from_slice(b"{\"data\":");
    match data.body {
        Body::Text(text) => body.extend_from_slice(&text),
        // Straight into the body: through `Display` it would be copied piece by piece. Writing to memory cannot fail.
        Body::Value(value) => serde_json::to_writer(&mut body, &value).unwrap_or_default(),
    }
    if format == Format::Extjs {
        body.extend_from_slice(b",\"success\":1");
    }
    if data.total > 0 {
        body.extend(format!(",\"total\":{}", data.total).into_bytes());
    }
    body.push(b'}');
    body
}

/// Before 8 the text is in the reason phrase alone.
fn failed_json(flavour: Flavour, fail: &Fail) -> Answer {
    let mut body = Map::from_iter([("data".to_owned(), Value::Null)]);
    if let Fail::Params(errors, _) = fail {
        body.insert("errors".to_owned(), json!(errors));
    }
    if flavour.says_message() {
        body.insert("message".to_owned(), json!(fail.message()));
    }
    let body = Value::Object(body).to_string().into_bytes();
    let answer = json_answer(fail.status(), first_line(&fail.message()), &["close"], body);
    Answer { delay_ms: fail.delay_ms(), ..answer }
}

/// Exceptions carry their code as text, a plain death as a number.
fn failed_extjs(way: Way, fail: &Fail) -> Answer {
    let status = match fail {
        Fail::Params(..) | Fail::Denied(_) => json!(fail.status().to_string()),
        _ => json!(fail.status()),
    };
    let mut body = json!({ "data": null, "success": 0, "status": status, "message": fail.message() });
    if let (Fail::Params(errors, _), Value::Object(fields)) = (fail, &mut body) {
        fields.insert("errors".to_owned(), json!(errors));
    }
    let answer = json_answer(200, "OK".to_owned(), way.connection(), body.to_string().into_bytes());
    Answer { delay_ms: fail.delay_ms(), ..answer }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

fn json_answer(status: u16, reason: String, connection: &[&'static str], body: Vec<u8>) -> Answer {
    let mut headers = connection_headers(connection);
    headers.push(("Content-Length".into(), body.len().to_string().into()));
    headers.push(("Content-Type".into(), "application/json;charset=UTF-8".into()));
    Answer { status, reason, headers, body, delay_ms: 0, fate: Fate::Deliver }
}

fn connection_headers(connection: &[&'static str]) -> Vec<Header> {
    let mut headers = Vec::with_capacity(HEADERS_MAX);
    headers.extend(connection.iter().map(|value| ("Connection".into(), (*value).into())));
    headers
}

/// Two about the connection, and two about the content.
const HEADERS_MAX: usize = 4;

/// An answer that is no JSON. Without a body there is no length either: the end is where the connection closes.
pub(crate) fn raw(status: u16, reason: &str, body: &str, delay_ms: u64) -> Answer {
    let mut headers = connection_headers(&["close"]);
    if !body.is_empty() {
        headers.push(("Content-Length".into(), body.len().to_string().into()));
    }
    let reason = first_line(reason);
    Answer { status, reason, headers, body: body.as_bytes().to_vec(), delay_ms, fate: Fate::Deliver }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(answer: &Answer) -> String {
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    #[test]
    fn the_message_is_in_the_body_since_eight() {
        let fail = || Err(Fail::died("no options specified"));
        let seven = answer(Format::Json, Flavour::V7, Way::default(), fail());
        assert_eq!((seven.status, seven.reason.as_str(), text(&seven).as_str()), (500, "no options specified", "{\"data\":null}"));
        let nine = answer(Format::Json, Flavour::V9, Way::default(), fail());
        assert_eq!(text(&nine), "{\"data\":null,\"message\":\"no options specified\\n\"}");
    }

    #[test]
    fn extjs_says_200_and_the_code_as_text_or_number() {
        let check = |fail: Fail, status: &str| {
            let answer = answer(Format::Extjs, Flavour::V9, Way::default(), Err(fail));
            assert_eq!(answer.status, 200);
            assert!(text(&answer).contains(&format!("\"status\":{status}")), "{}", text(&answer));
        };
        check(Fail::param("a", "b"), "\"400\"");
        check(Fail::denied("/", "Sys.Audit"), "\"403\"");
        check(Fail::died("x"), "500");
        check(Fail::NotImplemented("y".to_owned()), "501");
    }

    #[test]
    fn an_empty_raw_answer_has_no_length() {
        let answer = raw(595, "Connection refused", "", 0);
        assert_eq!(answer.headers, [("Connection".into(), "close".into())]);
    }
}
