//! Encodes responses: json, extjs, and raw ones without JSON.
//!
//! Must not decide what a response contains.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::decode::ResponseFormat;
use crate::flavour::Flavour;
use crate::wire::{LabResponse, ResponseHeader, WireDelivery};

/// The result of a method.
#[derive(Clone, Debug)]
pub(crate) struct ApiData {
    body: ApiBody,
    /// The total number of items, if the list is only a part. Proxmox omits it if it is zero.
    total: u64,
    /// How long the method took.
    pub(crate) delay_ms: u64,
}

#[derive(Clone, Debug)]
enum ApiBody {
    Value(Value),
    /// Encoded JSON, for lists that are too long to build as a tree.
    JsonText(Vec<u8>),
}

impl ApiData {
    pub(crate) fn null() -> Self {
        Value::Null.into()
    }

    pub(crate) fn from_json_text(json: Vec<u8>) -> Self {
        Self { body: ApiBody::JsonText(json), total: 0, delay_ms: 0 }
    }

    pub(crate) fn with_total(mut self, total: usize) -> Self {
        self.total = total as u64;
        self
    }

    pub(crate) fn with_delay(mut self, delay_ms: u64) -> Self {
        self.delay_ms = self.delay_ms.saturating_add(delay_ms);
        self
    }
}

impl From<Value> for ApiData {
    fn from(value: Value) -> Self {
        Self { body: ApiBody::Value(value), total: 0, delay_ms: 0 }
    }
}

impl From<String> for ApiData {
    fn from(text: String) -> Self {
        Value::String(text).into()
    }
}

/// The error of a method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ApiError {
    /// 400: invalid parameters with their texts, and how long the call took.
    Params(BTreeMap<String, String>, u64),
    /// 403 with the text in parentheses; empty for the bare text.
    Denied(String),
    /// 401 from a login.
    LoginFailed(String),
    /// 500: the error text without its line end, and how long the call took.
    Died(String, u64),
    /// 501: no such method.
    NotImplemented(String),
    /// No JSON: status, reason, body, and how long the call took.
    Raw { status: u16, reason: String, body: String, delay_ms: u64 },
}

impl ApiError {
    pub(crate) fn internal_error(text: impl Into<String>) -> Self {
        Self::Died(text.into(), 0)
    }

    pub(crate) fn parameter_error(name: &str, text: impl Into<String>) -> Self {
        Self::Params(BTreeMap::from([(name.to_owned(), text.into())]), 0)
    }

    pub(crate) fn denied_error(path: &str, privilege: &str) -> Self {
        Self::Denied(format!("{path}, {privilege}"))
    }

    /// A response of the proxy or the daemon itself, without a body.
    pub(crate) fn without_body(status: u16, reason: &str, delay_ms: u64) -> Self {
        Self::Raw { status, reason: reason.to_owned(), body: String::new(), delay_ms }
    }

    /// A response of the server itself, with the reason as its body.
    pub(crate) fn with_text_body(status: u16, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        Self::Raw { status, body: reason.clone(), reason, delay_ms: 0 }
    }

    fn status(&self) -> u16 {
        match self {
            Self::Params(..) => 400,
            Self::Denied(_) => 403,
            Self::LoginFailed(_) => 401,
            Self::Died(..) => 500,
            Self::NotImplemented(_) => 501,
            Self::Raw { status, .. } => *status,
        }
    }

    /// The full text, with a line end if Proxmox sends one.
    fn message(&self) -> String {
        match self {
            Self::Params(..) => "Parameter verification failed.\n".to_owned(),
            Self::Denied(what) if what.is_empty() => "Permission check failed\n".to_owned(),
            Self::Denied(what) => format!("Permission check failed ({what})\n"),
            Self::LoginFailed(text) | Self::Died(text, _) => format!("{text}\n"),
            Self::NotImplemented(text) => text.clone(),
            Self::Raw { body, .. } => body.clone(),
        }
    }

    /// The full text on one line, as in the exit status of a task.
    pub(crate) fn to_one_line(&self) -> String {
        let details = match self {
            Self::Params(errors, _) => errors.iter().map(|(name, text)| format!("{name}: {text}\n")).collect(),
            _ => String::new(),
        };
        let text = format!("{}{details}", self.message());
        text.lines().collect::<Vec<_>>().join(" ").trim_end().to_owned()
    }

    fn delay_ms(&self) -> u64 {
        match self {
            Self::LoginFailed(_) => 3_000,
            Self::Params(_, delay_ms) | Self::Died(_, delay_ms) | Self::Raw { delay_ms, .. } => *delay_ms,
            _ => 0,
        }
    }
}

impl From<BTreeMap<String, String>> for ApiError {
    fn from(errors: BTreeMap<String, String>) -> Self {
        Self::Params(errors, 0)
    }
}

/// The services that a response passed through; each adds its own `Connection` header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestHops {
    /// Passed to the privileged daemon.
    pub(crate) daemon: bool,
    /// Passed to another node.
    pub(crate) remote: bool,
    /// A GET: its connection to the other node is kept open.
    pub(crate) read: bool,
}

impl RequestHops {
    fn connection_header(self) -> &'static [&'static str] {
        match (self.remote && self.read, self.daemon) {
            (false, false) if self.remote => &["close", "Keep-Alive"],
            (false, false) => &["Keep-Alive"],
            (false, true) => &["close", "Keep-Alive"],
            (true, false) => &["Keep-Alive", "Keep-Alive"],
            (true, true) => &["close,Keep-Alive", "Keep-Alive"],
        }
    }
}

/// The response to a call that reached the API.
pub(crate) fn build_response(
    format: ResponseFormat,
    flavour: Flavour,
    hops: RequestHops,
    outcome: Result<ApiData, ApiError>,
) -> LabResponse {
    match (outcome, format) {
        (Ok(data), _) => {
            let delay_ms = data.delay_ms;
            let body = success_body(format, data);
            let connection = hops.connection_header();
            LabResponse { delay_ms, ..json_response(200, "OK".to_owned(), connection, body) }
        }
        (Err(ApiError::Raw { status, reason, body, delay_ms }), _) => raw_response(status, &reason, &body, delay_ms),
        (Err(fail @ ApiError::LoginFailed(_)), _) | (Err(fail), ResponseFormat::Json) => json_error_response(flavour, &fail),
        (Err(fail), ResponseFormat::Extjs) => extjs_error_response(hops, &fail),
    }
}

/// Size of the envelope and a short value.
const ENVELOPE_BYTES: usize = 120;

fn success_body(format: ResponseFormat, data: ApiData) -> Vec<u8> {
    let text_bytes = if let ApiBody::JsonText(text) = &data.body { text.len() } else { 0 };
    let mut body = Vec::with_capacity(text_bytes + ENVELOPE_BYTES);
    body.extend_from_slice(b"{\"data\":");
    match data.body {
        ApiBody::JsonText(text) => body.extend_from_slice(&text),
        // Written directly into the body; `Display` would copy it piece by piece. Writing to memory cannot fail.
        ApiBody::Value(value) => serde_json::to_writer(&mut body, &value).unwrap_or_default(),
    }
    if format == ResponseFormat::Extjs {
        body.extend_from_slice(b",\"success\":1");
    }
    if data.total > 0 {
        body.extend(format!(",\"total\":{}", data.total).into_bytes());
    }
    body.push(b'}');
    body
}

/// Before release 8, only the reason phrase contains the text.
fn json_error_response(flavour: Flavour, fail: &ApiError) -> LabResponse {
    let mut body = Map::from_iter([("data".to_owned(), Value::Null)]);
    if let ApiError::Params(errors, _) = fail {
        body.insert("errors".to_owned(), json!(errors));
    }
    if flavour.has_error_message() {
        body.insert("message".to_owned(), json!(fail.message()));
    }
    let body = Value::Object(body).to_string().into_bytes();
    let answer = json_response(fail.status(), first_line(&fail.message()), &["close"], body);
    LabResponse { delay_ms: fail.delay_ms(), ..answer }
}

/// The code of an exception is a string, that of a plain `die` a number.
fn extjs_error_response(hops: RequestHops, fail: &ApiError) -> LabResponse {
    let status = match fail {
        ApiError::Params(..) | ApiError::Denied(_) => json!(fail.status().to_string()),
        _ => json!(fail.status()),
    };
    let mut body = json!({ "data": null, "success": 0, "status": status, "message": fail.message() });
    if let (ApiError::Params(errors, _), Value::Object(fields)) = (fail, &mut body) {
        fields.insert("errors".to_owned(), json!(errors));
    }
    let answer = json_response(200, "OK".to_owned(), hops.connection_header(), body.to_string().into_bytes());
    LabResponse { delay_ms: fail.delay_ms(), ..answer }
}

fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

fn json_response(status: u16, reason: String, connection: &[&'static str], body: Vec<u8>) -> LabResponse {
    let mut headers = connection_headers(connection);
    headers.push(("Content-Length".into(), body.len().to_string().into()));
    headers.push(("Content-Type".into(), "application/json;charset=UTF-8".into()));
    LabResponse { status, reason, headers, body, delay_ms: 0, delivery: WireDelivery::Deliver }
}

fn connection_headers(connection: &[&'static str]) -> Vec<ResponseHeader> {
    let mut headers = Vec::with_capacity(HEADERS_MAX);
    headers.extend(connection.iter().map(|value| ("Connection".into(), (*value).into())));
    headers
}

/// Two connection headers and two content headers.
const HEADERS_MAX: usize = 4;

/// A response without JSON. An empty body has no content length; it ends when the connection closes.
pub(crate) fn raw_response(status: u16, reason: &str, body: &str, delay_ms: u64) -> LabResponse {
    let mut headers = connection_headers(&["close"]);
    if !body.is_empty() {
        headers.push(("Content-Length".into(), body.len().to_string().into()));
    }
    let reason = first_line(reason);
    LabResponse { status, reason, headers, body: body.as_bytes().to_vec(), delay_ms, delivery: WireDelivery::Deliver }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body_text(answer: &LabResponse) -> String {
        String::from_utf8_lossy(&answer.body).into_owned()
    }

    #[test]
    fn error_messages_are_in_the_body_since_release_8() {
        let fail = || Err(ApiError::internal_error("no options specified"));
        let seven = build_response(ResponseFormat::Json, Flavour::V7, RequestHops::default(), fail());
        assert_eq!((seven.status, seven.reason.as_str(), body_text(&seven).as_str()), (500, "no options specified", "{\"data\":null}"));
        let nine = build_response(ResponseFormat::Json, Flavour::V9, RequestHops::default(), fail());
        assert_eq!(body_text(&nine), "{\"data\":null,\"message\":\"no options specified\\n\"}");
    }

    #[test]
    fn extjs_errors_have_status_200_and_their_code_in_the_body() {
        let check = |fail: ApiError, status: &str| {
            let answer = build_response(ResponseFormat::Extjs, Flavour::V9, RequestHops::default(), Err(fail));
            assert_eq!(answer.status, 200);
            assert!(body_text(&answer).contains(&format!("\"status\":{status}")), "{}", body_text(&answer));
        };
        check(ApiError::parameter_error("a", "b"), "\"400\"");
        check(ApiError::denied_error("/", "Sys.Audit"), "\"403\"");
        check(ApiError::internal_error("x"), "500");
        check(ApiError::NotImplemented("y".to_owned()), "501");
    }

    #[test]
    fn empty_raw_responses_have_no_content_length() {
        let answer = raw_response(595, "Connection refused", "", 0);
        assert_eq!(answer.headers, [("Connection".into(), "close".into())]);
    }
}
