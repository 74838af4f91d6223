//! What came back: status, reason phrase and body become a typed value, or a failure that says whether the request was
//! delivered, may have run, or was refused.
//!
//! Both shapes of the API are understood: `extjs`, which this program asks for, and `json`, which servers fall back to
//! before their handlers run. What never enters: sockets and clocks.

use std::collections::BTreeMap;
use std::fmt;

use converger_core::document::is_hidden;
use serde::Deserialize;

use super::object::{Object, UniqueMap};
use super::reason::{Cause, classify};
use super::scalar::Scalar;

/// Texts of others are kept up to this many characters.
const TEXT_CHARS_MAX: usize = 2000;

/// Of so many parameters it is kept what is wrong with them.
const ERRORS_MAX: usize = 50;

/// So many lists and maps are in an answer at most, and so many members: a list of 10,000 guests has 10,000 and 250,000. What has more
/// would take many times its own size once it is read.
const OPENINGS_MAX: usize = 250_000;
const MEMBERS_MAX: usize = 3_000_000;

/// One answer, as it came over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
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
    No,
}

/// A request that was not carried out as asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What became of it.
    pub delivery: Delivery,
    /// What kind of failure it is.
    pub cause: Cause,
    /// The status, of the answer or inside of it; none where there was no answer.
    pub status: Option<u16>,
    /// The words for it, of Proxmox or of the connection. Never trusted, and escaped where shown.
    pub text: Box<str>,
    /// What is wrong with which parameter.
    pub errors: BTreeMap<Box<str>, Box<str>>,
}

impl Failure {
    /// A request that did not get as far as an answer.
    #[must_use]
    pub fn lost(delivery: Delivery, cause: Cause, text: impl Into<Box<str>>) -> Self {
        Self { delivery, cause, status: None, text: text.into(), errors: BTreeMap::new() }
    }

    /// The words for it, without the place that some of them begin with: for where the place stands already.
    #[must_use]
    pub fn without_place(&self, place: &str) -> String {
        let text = self.to_string();
        text.strip_prefix(&format!("{place}: ")).map_or(text.clone(), str::to_owned)
    }

    pub(super) fn malformed(effect: Effect, status: u16, text: impl Into<Box<str>>) -> Self {
        let delivery = match effect {
            Effect::None => Delivery::NotDelivered,
            Effect::Task | Effect::Direct => Delivery::MayHaveRun,
        };
        Self { delivery, cause: Cause::Malformed, status: Some(status), text: text.into(), errors: BTreeMap::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(status) = self.status {
            write!(formatter, "{status} ")?;
        }
        write!(formatter, "{}", Shown(&self.text))?;
        for (key, text) in &self.errors {
            write!(formatter, " ({}: {})", Shown(key), Shown(text))?;
        }
        Ok(())
    }
}

/// Text of others as it may be shown: what could act on a terminal, turn the direction of a line or be overlooked is escaped (G16).
#[derive(Clone, Copy, Debug)]
pub struct Shown<'t>(pub &'t str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.split_inclusive(is_hidden).try_for_each(|part| match part.chars().next_back().filter(|last| is_hidden(*last)) {
            Some(last) => write!(formatter, "{}{}", part.trim_end_matches(is_hidden), last.escape_default()),
            None => formatter.write_str(part),
        })
    }
}

/// What a call does when it is carried out, which decides what a failure of it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It reads.
    None,
    /// It checks, and then starts a task that acts.
    Task,
    /// It acts before it answers.
    Direct,
}

#[derive(Deserialize)]
struct Envelope<'a, T> {
    #[serde(default = "none")]
    data: Option<T>,
    #[serde(borrow, default)]
    success: Scalar<'a>,
    #[serde(borrow, default)]
    status: Scalar<'a>,
    #[serde(borrow, default)]
    message: Scalar<'a>,
    #[serde(borrow, default)]
    errors: Option<UniqueMap<Scalar<'a>>>,
}

fn none<T>() -> Option<T> {
    None
}

/// The data of an answer, or why there is none. `Ok(None)` is a success without data.
pub(super) fn data<'a, T: Deserialize<'a>>(effect: Effect, answer: &'a HttpAnswer) -> Result<Option<T>, Failure> {
    if answer.status != 200 {
        let failure = failure(effect, answer.status, outside(answer));
        // Somebody in between, who may have passed the request on before something became of it.
        let is_open = effect != Effect::None && answer.status >= 400 && !is_of_proxmox(&answer.body);
        return Err(if is_open { Failure { delivery: Delivery::MayHaveRun, ..failure } } else { failure });
    }
    if is_crowded(&answer.body) {
        let text = "the answer has more parts than any answer of Proxmox";
        return Err(Failure { cause: Cause::TooLarge, ..Failure::malformed(effect, answer.status, text) });
    }
    let Object(envelope): Object<Envelope<'_, T>> = parsed(&answer.body).map_err(|error| not_json(effect, answer, &error))?;
    if !envelope.success.is_nothing() && envelope.success.flag().is_none() {
        return Err(Failure::malformed(effect, answer.status, "the answer does not say whether it is a yes or a no"));
    }
    if envelope.success.flag() == Some(false) {
        let status = envelope.status.number().and_then(|number| u16::try_from(number).ok()).unwrap_or(500);
        return Err(failure(effect, status, said(envelope)));
    }
    Ok(envelope.data)
}

/// Checked as text once, and not string by string; what is no text is an error where it stands.
fn parsed<'a, T: Deserialize<'a>>(body: &'a [u8]) -> serde_json::Result<T> {
    let Ok(text) = std::str::from_utf8(body) else { return serde_json::from_slice(body) };
    serde_json::from_str(text)
}

/// Told without building anything. What stands in texts is counted as well; no text of Proxmox has that much of it.
fn is_crowded(body: &[u8]) -> bool {
    // Most answers have less bytes than they may have parts.
    if body.len() <= OPENINGS_MAX {
        return false;
    }
    let count = |is: fn(u8) -> bool| body.iter().filter(|byte| is(**byte)).count();
    count(|byte| matches!(byte, b'{' | b'[')) > OPENINGS_MAX || count(|byte| byte == b':') > MEMBERS_MAX
}

/// What an answer says about its failure.
struct Said {
    text: Box<str>,
    errors: BTreeMap<Box<str>, Box<str>>,
}

fn said<T>(envelope: Envelope<'_, T>) -> Said {
    let errors = envelope.errors.unwrap_or_default().0.into_iter();
    Said {
        text: envelope.message.text().map_or_else(|| "no reason given".into(), |text| shortened(&text)),
        errors: errors.take(ERRORS_MAX).filter_map(|(key, text)| Some((shortened(&key), shortened(&text.text()?)))).collect(),
    }
}

/// What an answer with an error status says: in its body since some version 8, in its reason phrase always.
fn outside(answer: &HttpAnswer) -> Said {
    let body = Some(&answer.body).filter(|body| !is_crowded(body));
    let envelope: Option<Object<Envelope<'_, serde::de::IgnoredAny>>> = body.and_then(|body| serde_json::from_slice(body).ok());
    match envelope.map(|Object(envelope)| envelope) {
        Some(envelope) if envelope.message.text().is_some() => said(envelope),
        Some(envelope) => Said { text: shortened(&answer.reason), ..said(envelope) },
        None => Said { text: shortened(&answer.reason), errors: BTreeMap::new() },
    }
}

/// Whether this can be the body of an error of Proxmox: nothing, where it comes from before a handler, or an envelope, in which there is
/// always a member for data.
fn is_of_proxmox(body: &[u8]) -> bool {
    let has_data = |body| serde_json::from_slice::<UniqueMap<serde::de::IgnoredAny>>(body).is_ok_and(|own| own.0.contains_key("data"));
    body.is_empty() || (!is_crowded(body) && has_data(body))
}

/// As much of a text of others as is kept.
pub(in crate::proxmox) fn shortened(text: &str) -> Box<str> {
    text.trim().chars().take(TEXT_CHARS_MAX).collect::<String>().into()
}

fn failure(effect: Effect, status: u16, said: Said) -> Failure {
    let cause = cause(status, &said);
    let is_before_any_effect = match effect {
        Effect::None => true,
        Effect::Task => cause.is_before_any_task(&said.text),
        Effect::Direct => cause.is_before_any_effect(&said.text),
    };
    Failure {
        delivery: delivery(effect, status, cause, is_before_any_effect),
        cause,
        status: Some(status),
        text: said.text,
        errors: said.errors,
    }
}

fn cause(status: u16, said: &Said) -> Cause {
    match status {
        300..=399 => Cause::Redirected,
        401 => Cause::Unauthenticated,
        403 if classify(&said.text) == Cause::TagForbidden => Cause::TagForbidden,
        403 => Cause::Forbidden,
        // Proxmox has no 404; whoever says so is somebody else.
        404..=406 | 501 => Cause::NotImplemented,
        595 => Cause::NodeUnreachable,
        502..=504 | 596..=599 => Cause::Interrupted,
        _ => {
            let texts = std::iter::once(&said.text).chain(said.errors.values());
            let found = texts.map(|text| classify(text)).find(|cause| *cause != Cause::Other);
            found.unwrap_or(if status == 400 { Cause::BadParameter } else { Cause::Other })
        }
    }
}

/// What a status says about delivery. A 500 is all that Proxmox has for a no of its own, and others have it for whatever befell them: it
/// is a no where its words are known to be said before anything was done. Proxmox itself fails after it let a task go, too.
fn delivery(effect: Effect, status: u16, cause: Cause, is_before_any_effect: bool) -> Delivery {
    match (status, effect) {
        (595, _) | (300..=399, _) | (401, _) => Delivery::NotDelivered,
        (500, _) if cause == Cause::ClusterDown => Delivery::NotDelivered,
        (_, Effect::None) if cause == Cause::Interrupted => Delivery::NotDelivered,
        _ if cause == Cause::Interrupted => Delivery::MayHaveRun,
        (400, Effect::Direct) if cause == Cause::HotplugFailed => Delivery::MayHaveRun,
        (400 | 403 | 501, _) => Delivery::No,
        (500, _) if !is_before_any_effect => Delivery::MayHaveRun,
        (500, _) => Delivery::No,
        // A status that Proxmox does not give: somebody in between, who may have passed the request on.
        (_, Effect::None) => Delivery::NotDelivered,
        (_, Effect::Task | Effect::Direct) => Delivery::MayHaveRun,
    }
}

fn not_json(effect: Effect, answer: &HttpAnswer, error: &serde_json::Error) -> Failure {
    let start = answer.body.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
    let text = match answer.body.get(start) {
        Some(b'<') => "the answer is a web page, not one of Proxmox's API".to_owned(),
        None => "the answer is empty".to_owned(),
        Some(_) if error.is_eof() => "the answer is cut off".to_owned(),
        Some(_) if error.is_data() => format!("the answer is not what this call gives: {error}"),
        Some(_) => format!("the answer is not JSON: {error}"),
    };
    Failure::malformed(effect, answer.status, shortened(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, reason: &str, body: &str) -> HttpAnswer {
        HttpAnswer { status, reason: reason.into(), body: body.into() }
    }

    fn fails(effect: Effect, status: u16, reason: &str, body: &str) -> (Delivery, Cause, String) {
        let failure = data::<String>(effect, &answer(status, reason, body)).expect_err("a failure");
        (failure.delivery, failure.cause, failure.to_string())
    }

    #[test]
    fn success_in_both_shapes() {
        assert_eq!(data::<u32>(Effect::None, &answer(200, "OK", r#"{"data":5}"#)), Ok(Some(5)));
        assert_eq!(data::<u32>(Effect::None, &answer(200, "OK", r#"{"success":1,"data":5,"total":9,"more":[]}"#)), Ok(Some(5)));
        assert_eq!(data::<u32>(Effect::Direct, &answer(200, "OK", r#"{"success":1,"data":null}"#)), Ok(None));
    }

    #[test]
    fn the_status_of_a_failure_comes_as_text_or_number() {
        let body = r#"{"status":"403","success":0,"message":"Permission check failed (/vms/101, VM.Audit)\n","data":null}"#;
        let expected = (Delivery::No, Cause::Forbidden, "403 Permission check failed (/vms/101, VM.Audit)".to_owned());
        assert_eq!(fails(Effect::Task, 200, "OK", body), expected);
        let body = r#"{"status":500,"success":0,"message":"CT 100 already running\n","data":null}"#;
        assert_eq!(fails(Effect::Task, 200, "OK", body).1, Cause::AlreadyRunning);
    }

    #[test]
    fn in_version_7_the_reason_phrase_is_all_there_is() {
        let (delivery, cause, text) = fails(Effect::Task, 500, "VM is locked (backup)", r#"{"data":null}"#);
        assert_eq!((delivery, cause, text.as_str()), (Delivery::No, Cause::Locked, "500 VM is locked (backup)"));
    }

    #[test]
    fn what_the_proxy_says_about_delivery() {
        assert_eq!(fails(Effect::Task, 595, "No route to host", "").0, Delivery::NotDelivered);
        assert_eq!(fails(Effect::Direct, 596, "Connection timed out", "").0, Delivery::MayHaveRun);
        assert_eq!(fails(Effect::Task, 597, "", "").0, Delivery::MayHaveRun);
        assert_eq!(fails(Effect::Task, 599, "", "").0, Delivery::MayHaveRun);
        assert_eq!(fails(Effect::Task, 504, "Gateway Timeout", "<html>").0, Delivery::MayHaveRun);
        assert_eq!(fails(Effect::Task, 401, "Authentication failed!", "").0, Delivery::NotDelivered);
        let down = "RPCEnvironment init request failed: Unable to load access control list: Connection refused";
        assert_eq!(fails(Effect::Task, 500, down, "").0, Delivery::NotDelivered);
        assert_eq!(fails(Effect::Task, 301, "Moved Permanently", "").0, Delivery::NotDelivered);
        assert_eq!(fails(Effect::None, 404, "Not Found", "<html>").1, Cause::NotImplemented);
        assert_eq!(fails(Effect::None, 596, "Connection timed out", "").0, Delivery::NotDelivered);
    }

    #[test]
    fn a_write_that_answers_500_may_have_been_written() {
        let bridge = r#"{"status":500,"success":0,"message":"bridge 'vmbr9' does not exist\n"}"#;
        assert_eq!(fails(Effect::Direct, 200, "OK", bridge).0, Delivery::MayHaveRun);
        let digest = r#"{"status":500,"success":0,"message":"checksum mismatch (file change by other user?)\n"}"#;
        assert_eq!(fails(Effect::Direct, 200, "OK", digest).0, Delivery::No);
        let plug =
            r#"{"status":"400","success":0,"message":"Parameter verification failed.\n","errors":{"net1":"hotplug problem - error"}}"#;
        let (delivery, cause, text) = fails(Effect::Direct, 200, "OK", plug);
        assert_eq!((delivery, cause), (Delivery::MayHaveRun, Cause::HotplugFailed));
        assert_eq!(text, "400 Parameter verification failed. (net1: hotplug problem - error)");
        let bad = r#"{"status":"400","success":0,"message":"Parameter verification failed.\n","errors":{"cores":"type check"}}"#;
        assert_eq!(fails(Effect::Direct, 200, "OK", bad).0, Delivery::No);
    }

    #[test]
    fn g13_a_500_is_a_no_only_in_words_that_are_said_before_a_task() {
        let no = |text: &str| format!(r#"{{"status":500,"success":0,"message":"{text}\\n","data":null}}"#);
        for text in [
            "CT 100 already running",
            "VM 100 not running",
            "VM is paused - cannot shutdown",
            "cluster not ready - no quorum?",
            "unable to find configuration file for VM 100 on node 'n1'",
            "can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout",
        ] {
            assert_eq!(fails(Effect::Task, 200, "OK", &no(text)).0, Delivery::No, "{text}");
            assert_eq!(fails(Effect::Task, 500, text, r#"{"data":null}"#).0, Delivery::No, "{text}");
            assert_eq!(fails(Effect::Task, 500, text, "").0, Delivery::No, "{text}");
            assert_eq!(fails(Effect::Task, 500, text, "<html>").0, Delivery::MayHaveRun, "{text}");
        }
        for text in [
            "Internal Server Error",
            "no reason given",
            "",
            "can't lock file '/var/log/pve/tasks/.active.lock' - got timeout",
            "VM quit/powerdown failed - got timeout",
            "unexpected status",
        ] {
            assert_eq!(fails(Effect::Task, 200, "OK", &no(text)).0, Delivery::MayHaveRun, "{text}");
            assert_eq!(fails(Effect::Task, 500, text, "").0, Delivery::MayHaveRun, "{text}");
        }
    }

    #[test]
    fn g13_an_error_of_somebody_in_between_says_nothing_about_a_change() {
        let down = "RPCEnvironment init request failed: Unable to load access control list: Connection refused";
        let statuses =
            [(400, "Bad Request"), (401, "Unauthorized"), (403, "Forbidden"), (500, down), (501, "Not Implemented"), (595, "Oops")];
        for (status, reason) in statuses {
            for body in ["<html>oops</html>", "oops", r#"{"message":"Internal server error"}"#, r#"{"data":"#, "[]"] {
                for effect in [Effect::Task, Effect::Direct] {
                    assert_eq!(fails(effect, status, reason, body).0, Delivery::MayHaveRun, "{status} {body}");
                }
                assert_ne!(fails(Effect::None, status, reason, body).0, Delivery::MayHaveRun, "{status} {body}");
            }
        }
    }

    #[test]
    fn quorum_that_is_lost_midway_leaves_what_was_written_before() {
        let no = |text: &str| fails(Effect::Direct, 500, text, "");
        assert_eq!(no("cluster not ready - no quorum?").0, Delivery::No);
        for text in [
            "unable to open file '/etc/pve/nodes/n1/qemu-server/100.conf.tmp.1' - Permission denied",
            "cfs-lock 'file-x' error: no quorum!",
        ] {
            assert_eq!((no(text).0, no(text).1), (Delivery::MayHaveRun, Cause::NoQuorum), "{text}");
        }
    }

    #[test]
    fn an_answer_of_many_parts_is_not_built() {
        let row = |part: &str, count: usize| format!(r#"{{"data":[{}]}}"#, vec![part; count].join(","));
        for part in ["{}", "[]"] {
            assert!(data::<Vec<Scalar<'_>>>(Effect::None, &answer(200, "OK", &row(part, OPENINGS_MAX - 2))).is_ok(), "{part}");
            let failure = data::<Vec<Scalar<'_>>>(Effect::None, &answer(200, "OK", &row(part, OPENINGS_MAX))).expect_err(part);
            assert_eq!((failure.cause, failure.delivery), (Cause::TooLarge, Delivery::NotDelivered), "{part}");
        }
        let members = format!(r#"{{"data":{{{}}}}}"#, vec![r#""a":1"#; MEMBERS_MAX].join(","));
        assert!(is_crowded(members.as_bytes()));
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for success in ["\"false\"", "\"no\"", "2", "[]", "{}"] {
            let body = format!(r#"{{"success":{success},"data":null}}"#);
            let (delivery, cause, _) = fails(Effect::Task, 200, "OK", &body);
            assert_eq!((delivery, cause), (Delivery::MayHaveRun, Cause::Malformed), "{body}");
        }
        for success in ["1", "true", "\"1\""] {
            assert!(
                data::<u32>(Effect::Direct, &answer(200, "OK", &format!(r#"{{"success":{success},"data":null}}"#))).is_ok(),
                "{success}"
            );
        }
    }

    #[test]
    fn what_is_no_answer_of_this_api_is_malformed() {
        for (body, part) in
            [("<html>", "web page"), ("", "empty"), ("{\"data\":", "cut off"), ("hello", "not JSON"), ("{\"data\":5}", "not what")]
        {
            let (delivery, cause, text) = fails(Effect::Task, 200, "OK", body);
            assert_eq!((delivery, cause), (Delivery::MayHaveRun, Cause::Malformed), "{body}");
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(fails(Effect::None, 200, "OK", "<html>").0, Delivery::NotDelivered);
    }

    #[test]
    fn words_of_others_are_shortened_and_cannot_act_on_a_terminal() {
        let long = "x".repeat(5000);
        let failure = data::<u32>(Effect::None, &answer(500, &long, "")).expect_err("a failure");
        assert_eq!(failure.text.len(), TEXT_CHARS_MAX);
        // A text in the place of a number is repeated by whoever wanted the number.
        let failure = data::<u32>(Effect::None, &answer(200, "OK", &format!(r#"{{"data":"{long}"}}"#))).expect_err("a failure");
        assert_eq!(failure.text.len(), TEXT_CHARS_MAX);
        let errors: Vec<String> = (0..1000).map(|index| format!(r#""{long}{index}":"{long}""#)).collect();
        let body = format!(r#"{{"success":0,"status":400,"message":"x","errors":{{"k":"v",{}}},"data":null}}"#, errors.join(","));
        let failure = data::<u32>(Effect::None, &answer(200, "OK", &body)).expect_err("a failure");
        assert!(failure.to_string().len() <= 2 * (ERRORS_MAX + 1) * (TEXT_CHARS_MAX + 8), "{}", failure.to_string().len());
        assert_eq!(fails(Effect::None, 500, "can't \u{1b}[31m\u{202e}b", "").2, "500 can't \\u{1b}[31m\\u{202e}b");
    }
}
