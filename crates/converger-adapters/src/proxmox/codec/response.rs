//! What came back: status, reason phrase and body become a typed value, or a failure that says whether the request was
//! delivered, may have run, or was refused.
//!
//! Both shapes of the API are understood: `extjs`, which this program asks for, and `json`, which servers fall back to
//! before their handlers run. What never enters: sockets and clocks.

use std::collections::BTreeMap;
use std::fmt;

use converger_core::document::is_invisible;
use serde::Deserialize;

use super::failure_cause::{FailureCause, classify_text};
use super::object::{Object, UniqueMap};
use super::scalar::PerlScalar;

/// Texts of others are kept up to this many characters.
const TEXT_CHARS_MAX: usize = 2000;

/// Of so many parameters it is kept what is wrong with them.
const ERRORS_MAX: usize = 50;

/// So many lists and maps are in an answer at most, and so many members: a list of 10,000 guests has 10,000 and 250,000. What has more
/// would take many times its own size once it is read.
const CONTAINERS_MAX: usize = 250_000;
const MEMBERS_MAX: usize = 3_000_000;

/// One answer, as it came over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The reason phrase, which for some errors is all that there is.
    pub reason: String,
    /// The body, whole.
    pub body: Vec<u8>,
}

/// What became of a request that was not carried out as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Nobody acted on it: sending it again is safe.
    NotDelivered,
    /// It may have been carried out, in part or whole: only reading tells.
    MayHaveRun,
    /// Proxmox decided against it, and nothing changed.
    Rejected,
}

/// A request that was not carried out as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxmoxFailure {
    /// What became of it.
    pub delivery: Delivery,
    /// What kind of failure it is.
    pub cause: FailureCause,
    /// The status, of the answer or inside of it; none where there was no answer.
    pub status: Option<u16>,
    /// The words for it, of Proxmox or of the connection. Never trusted, and escaped where shown.
    pub text: Box<str>,
    /// What is wrong with which parameter.
    pub errors: BTreeMap<Box<str>, Box<str>>,
}

impl ProxmoxFailure {
    /// A request that did not get as far as an answer.
    #[must_use]
    pub fn without_response(delivery: Delivery, cause: FailureCause, text: impl Into<Box<str>>) -> Self {
        Self { delivery, cause, status: None, text: text.into(), errors: BTreeMap::new() }
    }

    /// The words for it, without the place that some of them begin with: for where the place stands already.
    #[must_use]
    pub fn without_endpoint_name(&self, place: &str) -> String {
        let text = self.to_string();
        text.strip_prefix(&format!("{place}: ")).map_or(text.clone(), str::to_owned)
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

/// Text of others as it may be shown: what could act on a terminal, turn the direction of a line or be overlooked is escaped (G16).
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

/// What a call does when it is carried out, which decides what a failure of it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallEffect {
    /// It reads.
    None,
    /// It checks, and then starts a task that acts.
    Task,
    /// It acts before it answers.
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

/// The data of an answer, or why there is none. `Ok(None)` is a success without data.
pub(super) fn parse_data<'a, T: Deserialize<'a>>(effect: CallEffect, answer: &'a HttpResponse) -> Result<Option<T>, ProxmoxFailure> {
    if answer.status != 200 {
        let failure = response_failure(effect, answer.status, error_response_text(answer));
        // Somebody in between, who may have passed the request on before something became of it.
        let is_open = effect != CallEffect::None && answer.status >= 400 && !is_proxmox_error_body(&answer.body);
        return Err(if is_open { ProxmoxFailure { delivery: Delivery::MayHaveRun, ..failure } } else { failure });
    }
    if has_too_many_parts(&answer.body) {
        let text = "the answer has more parts than any answer of Proxmox";
        return Err(ProxmoxFailure { cause: FailureCause::TooLarge, ..ProxmoxFailure::malformed_response(effect, answer.status, text) });
    }
    let Object(envelope): Object<ResponseEnvelope<'_, T>> =
        parse_body(&answer.body).map_err(|error| not_json_failure(effect, answer, &error))?;
    if !envelope.success.is_absent_or_null() && envelope.success.flag().is_none() {
        return Err(ProxmoxFailure::malformed_response(effect, answer.status, "the answer does not say whether it is a yes or a no"));
    }
    if envelope.success.flag() == Some(false) {
        let status = envelope.status.number().and_then(|number| u16::try_from(number).ok()).unwrap_or(500);
        return Err(response_failure(effect, status, envelope_text(envelope)));
    }
    Ok(envelope.data)
}

/// Checked as text once, and not string by string; what is no text is an error where it stands.
fn parse_body<'a, T: Deserialize<'a>>(body: &'a [u8]) -> serde_json::Result<T> {
    let Ok(text) = std::str::from_utf8(body) else { return serde_json::from_slice(body) };
    serde_json::from_str(text)
}

/// Told without building anything. What stands in texts is counted as well; no text of Proxmox has that much of it.
fn has_too_many_parts(body: &[u8]) -> bool {
    // Most answers have less bytes than they may have parts.
    if body.len() <= CONTAINERS_MAX {
        return false;
    }
    let count = |is: fn(u8) -> bool| body.iter().filter(|byte| is(**byte)).count();
    count(|byte| matches!(byte, b'{' | b'[')) > CONTAINERS_MAX || count(|byte| byte == b':') > MEMBERS_MAX
}

/// What an answer says about its failure.
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

/// What an answer with an error status says: in its body since some version 8, in its reason phrase always.
fn error_response_text(answer: &HttpResponse) -> FailureText {
    let body = Some(&answer.body).filter(|body| !has_too_many_parts(body));
    let envelope: Option<Object<ResponseEnvelope<'_, serde::de::IgnoredAny>>> = body.and_then(|body| serde_json::from_slice(body).ok());
    match envelope.map(|Object(envelope)| envelope) {
        Some(envelope) if envelope.message.text().is_some() => envelope_text(envelope),
        Some(envelope) => FailureText { text: shorten(&answer.reason), ..envelope_text(envelope) },
        None => FailureText { text: shorten(&answer.reason), errors: BTreeMap::new() },
    }
}

/// Whether this can be the body of an error of Proxmox: nothing, where it comes from before a handler, or an envelope, in which there is
/// always a member for data.
fn is_proxmox_error_body(body: &[u8]) -> bool {
    let has_data = |body| serde_json::from_slice::<UniqueMap<serde::de::IgnoredAny>>(body).is_ok_and(|own| own.0.contains_key("data"));
    body.is_empty() || (!has_too_many_parts(body) && has_data(body))
}

/// As much of a text of others as is kept.
pub(in crate::proxmox) fn shorten(text: &str) -> Box<str> {
    text.trim().chars().take(TEXT_CHARS_MAX).collect::<String>().into()
}

fn response_failure(effect: CallEffect, status: u16, said: FailureText) -> ProxmoxFailure {
    let cause = cause_of_status(status, &said);
    let is_before_any_effect = match effect {
        CallEffect::None => true,
        CallEffect::Task => cause.is_before_any_task(&said.text),
        CallEffect::Direct => cause.is_before_any_effect(&said.text),
    };
    ProxmoxFailure {
        delivery: delivery_of_status(effect, status, cause, is_before_any_effect),
        cause,
        status: Some(status),
        text: said.text,
        errors: said.errors,
    }
}

fn cause_of_status(status: u16, said: &FailureText) -> FailureCause {
    match status {
        300..=399 => FailureCause::Redirected,
        401 => FailureCause::Unauthenticated,
        403 if classify_text(&said.text) == FailureCause::TagForbidden => FailureCause::TagForbidden,
        403 => FailureCause::Forbidden,
        // Proxmox has no 404; whoever says so is somebody else.
        404..=406 | 501 => FailureCause::NotImplemented,
        595 => FailureCause::NodeUnreachable,
        502..=504 | 596..=599 => FailureCause::Interrupted,
        _ => {
            let texts = std::iter::once(&said.text).chain(said.errors.values());
            let found = texts.map(|text| classify_text(text)).find(|cause| *cause != FailureCause::Other);
            found.unwrap_or(if status == 400 { FailureCause::BadParameter } else { FailureCause::Other })
        }
    }
}

/// What a status says about delivery. A 500 is all that Proxmox has for a no of its own, and others have it for whatever befell them: it
/// is a no where its words are known to be said before anything was done. Proxmox itself fails after it let a task go, too.
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
        // A status that Proxmox does not give: somebody in between, who may have passed the request on.
        (_, CallEffect::None) => Delivery::NotDelivered,
        (_, CallEffect::Task | CallEffect::Direct) => Delivery::MayHaveRun,
    }
}

fn not_json_failure(effect: CallEffect, answer: &HttpResponse, error: &serde_json::Error) -> ProxmoxFailure {
    let start = answer.body.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
    let text = match answer.body.get(start) {
        Some(b'<') => "the answer is a web page, not one of Proxmox's API".to_owned(),
        None => "the answer is empty".to_owned(),
        Some(_) if error.is_eof() => "the answer is cut off".to_owned(),
        Some(_) if error.is_data() => format!("the answer is not what this call gives: {error}"),
        Some(_) => format!("the answer is not JSON: {error}"),
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
    fn write_answered_with_500_may_have_run() {
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
    fn g13_error_of_an_intermediary_leaves_a_change_open() {
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
    fn quorum_lost_midway_leaves_a_write_open() {
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
            [("<html>", "web page"), ("", "empty"), ("{\"data\":", "cut off"), ("hello", "not JSON"), ("{\"data\":5}", "not what")]
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
        // A text in the place of a number is repeated by whoever wanted the number.
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
