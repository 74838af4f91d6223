//! The decoding of responses: status, reason phrase and body become a typed value, or a failure that tells whether the request was not
//! delivered, may have run, or was rejected.
//!
//! Both response formats of the API are supported: `extjs`, which this program requests, and `json`, which servers use for errors before
//! their handlers run. Must not depend on sockets or clocks.

use std::collections::BTreeMap;
use std::fmt;

use converger_core::document::is_invisible;
use serde::Deserialize;

use super::failure_cause::{FailureCause, classify_text};
use super::object::{Object, UniqueMap};
use super::scalar::PerlScalar;

/// Maximum length of a foreign text, in characters.
const TEXT_CHARS_MAX: usize = 2000;

/// Maximum number of parameter errors to keep.
const ERRORS_MAX: usize = 50;

/// Maximum number of lists and objects in a response, and of members. A list of 10,000 guests has 10,000 and 250,000. A response with more
/// would take many times its own size in memory.
const CONTAINERS_MAX: usize = 250_000;
const MEMBERS_MAX: usize = 3_000_000;

/// A received response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The reason phrase, which is the only text of some errors.
    pub reason: String,
    /// The whole body.
    pub body: Vec<u8>,
}

/// What is known about the delivery of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It had no effect; sending it again is safe.
    NotDelivered,
    /// It may have run, in part or completely; only a read can tell.
    MayHaveRun,
    /// Proxmox rejected it, and nothing changed.
    Rejected,
}

/// A failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxFailure {
    /// What is known about its delivery.
    pub delivery: Delivery,
    /// The kind of failure.
    pub cause: FailureCause,
    /// The status of the response or inside it; `None` if there was no response.
    pub status: Option<u16>,
    /// The text of Proxmox or of the connection. It is not trusted, and is escaped for display.
    pub text: Box<str>,
    /// Errors by parameter.
    pub errors: BTreeMap<Box<str>, Box<str>>,
}

impl ProxmoxFailure {
    /// A failure without a response.
    #[must_use]
    pub fn without_response(delivery: Delivery, cause: FailureCause, text: impl Into<Box<str>>) -> Self {
        Self { delivery, cause, status: None, text: text.into(), errors: BTreeMap::new() }
    }

    /// The text without a leading endpoint name, for messages that name the endpoint already.
    #[must_use]
    pub fn without_endpoint_name(&self, endpoint_name: &str) -> String {
        let text = self.to_string();
        text.strip_prefix(&format!("{endpoint_name}: ")).map_or(text.clone(), str::to_owned)
    }

    pub(super) fn malformed_response(effect: CallEffect, status: u16, text: impl Into<Box<str>>) -> Self {
        let delivery = match effect {
            CallEffect::None => Delivery::NotDelivered,
            CallEffect::Task | CallEffect::Direct => Delivery::MayHaveRun,
        };
        Self { delivery, cause: FailureCause::Malformed, status: Some(status), text: text.into(), errors: BTreeMap::new() }
    }
}

impl fmt::Display for ProxmoxFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = self.status {
            write!(formatter, "{status} ")?;
        }
        write!(formatter, "{}", EscapedText(&self.text))?;
        for (key, text) in &self.errors {
            write!(formatter, " ({}: {})", EscapedText(key), EscapedText(text))?;
        }
        Ok(())
    }
}

/// A foreign text for display. Characters that could control a terminal, change the direction of a line or be invisible are escaped (G16).
#[derive(Clone, Copy, Debug)]
pub struct EscapedText<'t>(pub &'t str);

impl fmt::Display for EscapedText<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.split_inclusive(is_invisible).try_for_each(|part| match part.chars().next_back().filter(|last| is_invisible(*last)) {
            Some(last) => write!(formatter, "{}{}", part.trim_end_matches(is_invisible), last.escape_default()),
            None => formatter.write_str(part),
        })
    }
}

/// The effect of a call, which determines what its failure means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEffect {
    /// It reads.
    None,
    /// It checks, then starts a task that acts.
    Task,
    /// It acts before it responds.
    Direct,
}

#[derive(Deserialize)]
struct ResponseEnvelope<'a, T> {
    #[serde(default = "none")]
    data: Option<T>,
    #[serde(borrow, default)]
    success: PerlScalar<'a>,
    #[serde(borrow, default)]
    status: PerlScalar<'a>,
    #[serde(borrow, default)]
    message: PerlScalar<'a>,
    #[serde(borrow, default)]
    errors: Option<UniqueMap<PerlScalar<'a>>>,
}

fn none<T>() -> Option<T> {
    None
}

/// The data of a response, or the failure. `Ok(None)` is a success without data.
pub(super) fn parse_data<'a, T: Deserialize<'a>>(effect: CallEffect, answer: &'a HttpResponse) -> Result<Option<T>, ProxmoxFailure> {
    if answer.status != 200 {
        let failure = response_failure(effect, answer.status, error_response_text(answer));
        // The response is from an intermediary, which may have forwarded the request before it failed.
        let is_open = effect != CallEffect::None && answer.status >= 400 && !is_proxmox_error_body(&answer.body);
        return Err(if is_open { ProxmoxFailure { delivery: Delivery::MayHaveRun, ..failure } } else { failure });
    }
    if has_too_many_parts(&answer.body) {
        let text = "the response has more parts than any response of Proxmox";
        return Err(ProxmoxFailure { cause: FailureCause::TooLarge, ..ProxmoxFailure::malformed_response(effect, answer.status, text) });
    }
    let Object(envelope): Object<ResponseEnvelope<'_, T>> =
        parse_body(&answer.body).map_err(|error| not_json_failure(effect, answer, &error))?;
    if !envelope.success.is_absent_or_null() && envelope.success.flag().is_none() {
        return Err(ProxmoxFailure::malformed_response(effect, answer.status, "the response does not say whether the call succeeded"));
    }
    if envelope.success.flag() == Some(false) {
        let status = envelope.status.number().and_then(|number| u16::try_from(number).ok()).unwrap_or(500);
        return Err(response_failure(effect, status, envelope_text(envelope)));
    }
    Ok(envelope.data)
}

/// Validates UTF-8 once instead of string by string; invalid UTF-8 is reported at its position.
fn parse_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> serde_json::Result<T> {
    let Ok(text) = std::str::from_utf8(body) else { return serde_json::from_slice(body) };
    serde_json::from_str(text)
}

/// Counts without building anything. Characters inside texts count as well, but no text of Proxmox contains that many.
fn has_too_many_parts(body: &[u8]) -> bool {
    // Most responses have fewer bytes than the limits allow parts.
    if body.len() <= CONTAINERS_MAX {
        return false;
    }
    let count = |is: fn(u8) -> bool| body.iter().filter(|byte| is(**byte)).count();
    count(|byte| matches!(byte, b'{' | b'[')) > CONTAINERS_MAX || count(|byte| byte == b':') > MEMBERS_MAX
}

/// The texts of a failure.
struct FailureText {
    text: Box<str>,
    errors: BTreeMap<Box<str>, Box<str>>,
}

fn envelope_text<T>(envelope: ResponseEnvelope<'_, T>) -> FailureText {
    let errors = envelope.errors.unwrap_or_default().0.into_iter();
    FailureText {
        text: envelope.message.text().map_or_else(|| "no reason given".into(), |text| shorten(&text)),
        errors: errors.take(ERRORS_MAX).filter_map(|(key, text)| Some((shorten(&key), shorten(&text.text()?)))).collect(),
    }
}

/// The texts of a response with an error status: in the body since some version 8, in the reason phrase always.
fn error_response_text(answer: &HttpResponse) -> FailureText {
    let body = Some(&answer.body).filter(|body| !has_too_many_parts(body));
    let envelope: Option<Object<ResponseEnvelope<'_, serde::de::IgnoredAny>>> = body.and_then(|body| serde_json::from_slice(body).ok());
    match envelope.map(|Object(envelope)| envelope) {
        Some(envelope) if envelope.message.text().is_some() => envelope_text(envelope),
        Some(envelope) => FailureText { text: shorten(&answer.reason), ..envelope_text(envelope) },
        None => FailureText { text: shorten(&answer.reason), errors: BTreeMap::new() },
    }
}

/// Whether this can be the body of a Proxmox error: empty, if it precedes a handler, or an envelope, which always has a member for data.
fn is_proxmox_error_body(body: &[u8]) -> bool {
    let has_data = |body| serde_json::from_slice::<UniqueMap<serde::de::IgnoredAny>>(body).is_ok_and(|own| own.0.contains_key("data"));
    body.is_empty() || (!has_too_many_parts(body) && has_data(body))
}

/// Shortens a foreign text to the limit.
pub(in crate::proxmox) fn shorten(text: &str) -> Box<str> {
    text.trim().chars().take(TEXT_CHARS_MAX).collect::<String>().into()
}

fn response_failure(effect: CallEffect, status: u16, failure_text: FailureText) -> ProxmoxFailure {
    let cause = cause_of_status(status, &failure_text);
    let is_before_any_effect = match effect {
        CallEffect::None => true,
        CallEffect::Task => cause.is_before_any_task(&failure_text.text),
        CallEffect::Direct => cause.is_before_any_effect(&failure_text.text),
    };
    ProxmoxFailure {
        delivery: delivery_of_status(effect, status, cause, is_before_any_effect),
        cause,
        status: Some(status),
        text: failure_text.text,
        errors: failure_text.errors,
    }
}

fn cause_of_status(status: u16, failure_text: &FailureText) -> FailureCause {
    match status {
        300..=399 => FailureCause::Redirected,
        401 => FailureCause::Unauthenticated,
        403 if classify_text(&failure_text.text) == FailureCause::TagForbidden => FailureCause::TagForbidden,
        403 => FailureCause::Forbidden,
        // Proxmox has no 404, so the response is from another server.
        404..=406 | 501 => FailureCause::NotImplemented,
        595 => FailureCause::NodeUnreachable,
        502..=504 | 596..=599 => FailureCause::Interrupted,
        _ => {
            let texts = std::iter::once(&failure_text.text).chain(failure_text.errors.values());
            let found = texts.map(|text| classify_text(text)).find(|cause| *cause != FailureCause::Other);
            found.unwrap_or(if status == 400 { FailureCause::BadParameter } else { FailureCause::Other })
        }
    }
}

/// What a status tells about delivery. Proxmox uses 500 for its own rejections, and intermediaries use it for any error. It is a rejection
/// only if its text is known to precede any effect. Proxmox itself can also fail after it has started a task.
fn delivery_of_status(effect: CallEffect, status: u16, cause: FailureCause, is_before_any_effect: bool) -> Delivery {
    match (status, effect) {
        (595, _) | (300..=399, _) | (401, _) => Delivery::NotDelivered,
        (500, _) if cause == FailureCause::ClusterDown => Delivery::NotDelivered,
        (_, CallEffect::None) if cause == FailureCause::Interrupted => Delivery::NotDelivered,
        _ if cause == FailureCause::Interrupted => Delivery::MayHaveRun,
        (400, CallEffect::Direct) if cause == FailureCause::HotplugFailed => Delivery::MayHaveRun,
        (400 | 403 | 501, _) => Delivery::Rejected,
        (500, _) if !is_before_any_effect => Delivery::MayHaveRun,
        (500, _) => Delivery::Rejected,
        // Proxmox never sends this status. It is from an intermediary, which may have forwarded the request.
        (_, CallEffect::None) => Delivery::NotDelivered,
        (_, CallEffect::Task | CallEffect::Direct) => Delivery::MayHaveRun,
    }
}

fn not_json_failure(effect: CallEffect, answer: &HttpResponse, error: &serde_json::Error) -> ProxmoxFailure {
    let start = answer.body.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
    let text = match answer.body.get(start) {
        Some(b'<') => "the response is a web page, not one of the Proxmox API".to_owned(),
        None => "the response is empty".to_owned(),
        Some(_) if error.is_eof() => "the response is truncated".to_owned(),
        Some(_) if error.is_data() => format!("the response does not fit this call: {error}"),
        Some(_) => format!("the response is not JSON: {error}"),
    };
    ProxmoxFailure::malformed_response(effect, answer.status, shorten(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_response(status: u16, reason: &str, body: &str) -> HttpResponse {
        HttpResponse { status, reason: reason.into(), body: body.into() }
    }

    fn failure_of(effect: CallEffect, status: u16, reason: &str, body: &str) -> (Delivery, FailureCause, String) {
        let failure = parse_data::<String>(effect, &test_response(status, reason, body)).expect_err("a failure");
        (failure.delivery, failure.cause, failure.to_string())
    }

    #[test]
    fn parses_success_in_both_shapes() {
        assert_eq!(parse_data::<u32>(CallEffect::None, &test_response(200, "OK", r#"{"data":5}"#)), Ok(Some(5)));
        assert_eq!(
            parse_data::<u32>(CallEffect::None, &test_response(200, "OK", r#"{"success":1,"data":5,"total":9,"more":[]}"#)),
            Ok(Some(5))
        );
        assert_eq!(parse_data::<u32>(CallEffect::Direct, &test_response(200, "OK", r#"{"success":1,"data":null}"#)), Ok(None));
    }

    #[test]
    fn parses_failure_status_as_text_or_number() {
        let body = r#"{"status":"403","success":0,"message":"Permission check failed (/vms/101, VM.Audit)\n","data":null}"#;
        let expected = (Delivery::Rejected, FailureCause::Forbidden, "403 Permission check failed (/vms/101, VM.Audit)".to_owned());
        assert_eq!(failure_of(CallEffect::Task, 200, "OK", body), expected);
        let body = r#"{"status":500,"success":0,"message":"CT 100 already running\n","data":null}"#;
        assert_eq!(failure_of(CallEffect::Task, 200, "OK", body).1, FailureCause::AlreadyRunning);
    }

    #[test]
    fn uses_the_reason_phrase_of_version_7() {
        let (delivery, cause, text) = failure_of(CallEffect::Task, 500, "VM is locked (backup)", r#"{"data":null}"#);
        assert_eq!((delivery, cause, text.as_str()), (Delivery::Rejected, FailureCause::Locked, "500 VM is locked (backup)"));
    }

    #[test]
    fn maps_proxy_status_to_delivery() {
        assert_eq!(failure_of(CallEffect::Task, 595, "No route to host", "").0, Delivery::NotDelivered);
        assert_eq!(failure_of(CallEffect::Direct, 596, "Connection timed out", "").0, Delivery::MayHaveRun);
        assert_eq!(failure_of(CallEffect::Task, 597, "", "").0, Delivery::MayHaveRun);
        assert_eq!(failure_of(CallEffect::Task, 599, "", "").0, Delivery::MayHaveRun);
        assert_eq!(failure_of(CallEffect::Task, 504, "Gateway Timeout", "<html>").0, Delivery::MayHaveRun);
        assert_eq!(failure_of(CallEffect::Task, 401, "Authentication failed!", "").0, Delivery::NotDelivered);
        let down = "RPCEnvironment init request failed: Unable to load access control list: Connection refused";
        assert_eq!(failure_of(CallEffect::Task, 500, down, "").0, Delivery::NotDelivered);
        assert_eq!(failure_of(CallEffect::Task, 301, "Moved Permanently", "").0, Delivery::NotDelivered);
        assert_eq!(failure_of(CallEffect::None, 404, "Not Found", "<html>").1, FailureCause::NotImplemented);
        assert_eq!(failure_of(CallEffect::None, 596, "Connection timed out", "").0, Delivery::NotDelivered);
    }

    #[test]
    fn write_with_a_500_response_may_have_run() {
        let bridge = r#"{"status":500,"success":0,"message":"bridge 'vmbr9' does not exist\n"}"#;
        assert_eq!(failure_of(CallEffect::Direct, 200, "OK", bridge).0, Delivery::MayHaveRun);
        let digest = r#"{"status":500,"success":0,"message":"checksum mismatch (file change by other user?)\n"}"#;
        assert_eq!(failure_of(CallEffect::Direct, 200, "OK", digest).0, Delivery::Rejected);
        let plug =
            r#"{"status":"400","success":0,"message":"Parameter verification failed.\n","errors":{"net1":"hotplug problem - error"}}"#;
        let (delivery, cause, text) = failure_of(CallEffect::Direct, 200, "OK", plug);
        assert_eq!((delivery, cause), (Delivery::MayHaveRun, FailureCause::HotplugFailed));
        assert_eq!(text, "400 Parameter verification failed. (net1: hotplug problem - error)");
        let bad = r#"{"status":"400","success":0,"message":"Parameter verification failed.\n","errors":{"cores":"type check"}}"#;
        assert_eq!(failure_of(CallEffect::Direct, 200, "OK", bad).0, Delivery::Rejected);
    }

    #[test]
    fn g13_500_is_a_rejection_only_for_messages_sent_before_a_task() {
        let no = |text: &str| format!(r#"{{"status":500,"success":0,"message":"{text}\\n","data":null}}"#);
        for text in [
            "CT 100 already running",
            "VM 100 not running",
            "VM is paused - cannot shutdown",
            "cluster not ready - no quorum?",
            "unable to find configuration file for VM 100 on node 'n1'",
            "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout",
        ] {
            assert_eq!(failure_of(CallEffect::Task, 200, "OK", &no(text)).0, Delivery::Rejected, "{text}");
            assert_eq!(failure_of(CallEffect::Task, 500, text, r#"{"data":null}"#).0, Delivery::Rejected, "{text}");
            assert_eq!(failure_of(CallEffect::Task, 500, text, "").0, Delivery::Rejected, "{text}");
            assert_eq!(failure_of(CallEffect::Task, 500, text, "<html>").0, Delivery::MayHaveRun, "{text}");
        }
        for text in [
            "Internal Server Error",
            "no reason given",
            "",
            "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout",
            "VM quit/powerdown failed - got timeout",
            "unexpected status",
        ] {
            assert_eq!(failure_of(CallEffect::Task, 200, "OK", &no(text)).0, Delivery::MayHaveRun, "{text}");
            assert_eq!(failure_of(CallEffect::Task, 500, text, "").0, Delivery::MayHaveRun, "{text}");
        }
    }

    #[test]
    fn g13_error_of_an_intermediary_leaves_a_change_unclear() {
        let down = "RPCEnvironment init request failed: Unable to load access control list: Connection refused";
        let statuses =
            [(400, "Bad Request"), (401, "Unauthorized"), (403, "Forbidden"), (500, down), (501, "Not Implemented"), (595, "Oops")];
        for (status, reason) in statuses {
            for body in ["<html>oops</html>", "oops", r#"{"message":"Internal server error"}"#, r#"{"data":"#, "[]"] {
                for effect in [CallEffect::Task, CallEffect::Direct] {
                    assert_eq!(failure_of(effect, status, reason, body).0, Delivery::MayHaveRun, "{status} {body}");
                }
                assert_ne!(failure_of(CallEffect::None, status, reason, body).0, Delivery::MayHaveRun, "{status} {body}");
            }
        }
    }

    #[test]
    fn quorum_lost_midway_leaves_a_write_unclear() {
        let no = |text: &str| failure_of(CallEffect::Direct, 500, text, "");
        assert_eq!(no("cluster not ready - no quorum?").0, Delivery::Rejected);
        for text in [
            "unable to open file '/etc/pve/nodes/n1/qemu-server/100.conf.tmp.1' - Permission denied",
            "cfs-lock 'file-x' error: no quorum!",
        ] {
            assert_eq!((no(text).0, no(text).1), (Delivery::MayHaveRun, FailureCause::NoQuorum), "{text}");
        }
    }

    #[test]
    fn rejects_a_response_with_too_many_parts() {
        let row = |part: &str, count: usize| format!(r#"{{"data":[{}]}}"#, vec![part; count].join(","));
        for part in ["{}", "[]"] {
            assert!(
                parse_data::<Vec<PerlScalar<'_>>>(CallEffect::None, &test_response(200, "OK", &row(part, CONTAINERS_MAX - 2))).is_ok(),
                "{part}"
            );
            let failure =
                parse_data::<Vec<PerlScalar<'_>>>(CallEffect::None, &test_response(200, "OK", &row(part, CONTAINERS_MAX))).expect_err(part);
            assert_eq!((failure.cause, failure.delivery), (FailureCause::TooLarge, Delivery::NotDelivered), "{part}");
        }
        let members = format!(r#"{{"data":{{{}}}}}"#, vec![r#""a":1"#; MEMBERS_MAX].join(","));
        assert!(has_too_many_parts(members.as_bytes()));
    }

    #[test]
    fn accepts_only_known_success_values() {
        for success in ["\"false\"", "\"no\"", "2", "[]", "{}"] {
            let body = format!(r#"{{"success":{success},"data":null}}"#);
            let (delivery, cause, _) = failure_of(CallEffect::Task, 200, "OK", &body);
            assert_eq!((delivery, cause), (Delivery::MayHaveRun, FailureCause::Malformed), "{body}");
        }
        for success in ["1", "true", "\"1\""] {
            assert!(
                parse_data::<u32>(CallEffect::Direct, &test_response(200, "OK", &format!(r#"{{"success":{success},"data":null}}"#)))
                    .is_ok(),
                "{success}"
            );
        }
    }

    #[test]
    fn foreign_response_is_malformed() {
        for (body, part) in
            [("<html>", "web page"), ("", "empty"), ("{\"data\":", "truncated"), ("hello", "not JSON"), ("{\"data\":5}", "does not fit")]
        {
            let (delivery, cause, text) = failure_of(CallEffect::Task, 200, "OK", body);
            assert_eq!((delivery, cause), (Delivery::MayHaveRun, FailureCause::Malformed), "{body}");
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(failure_of(CallEffect::None, 200, "OK", "<html>").0, Delivery::NotDelivered);
    }

    #[test]
    fn foreign_text_is_shortened_and_escaped() {
        let long = "x".repeat(5000);
        let failure = parse_data::<u32>(CallEffect::None, &test_response(500, &long, "")).expect_err("a failure");
        assert_eq!(failure.text.len(), TEXT_CHARS_MAX);
        // The parser's error repeats a text in place of a number.
        let failure =
            parse_data::<u32>(CallEffect::None, &test_response(200, "OK", &format!(r#"{{"data":"{long}"}}"#))).expect_err("a failure");
        assert_eq!(failure.text.len(), TEXT_CHARS_MAX);
        let errors: Vec<String> = (0..1000).map(|index| format!(r#""{long}{index}":"{long}""#)).collect();
        let body = format!(r#"{{"success":0,"status":400,"message":"x","errors":{{"k":"v",{}}},"data":null}}"#, errors.join(","));
        let failure = parse_data::<u32>(CallEffect::None, &test_response(200, "OK", &body)).expect_err("a failure");
        assert!(failure.to_string().len() <= 2 * (ERRORS_MAX + 1) * (TEXT_CHARS_MAX + 8), "{}", failure.to_string().len());
        assert_eq!(failure_of(CallEffect::None, 500, "can't \u{1b}[31m\u{202e}b", "").2, "500 can't \\u{1b}[31m\\u{202e}b");
    }
}
