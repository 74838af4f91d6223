//! Compares a response with the expected one: same status, reason, structure, types and texts.
//!
//! Lists are compared without order, which is arbitrary in Proxmox. There is no other tolerance;
//! values that may differ have a marker in the fixture.

use converger_lab::{LabResponse, WireDelivery};
use serde_json::Value;

use crate::fixture::{ExpectedBody, ExpectedOutcome};

/// Matches a run of characters that differ each time: digits, hexadecimal, colons, dashes.
const ANY_RUN: char = '…';

pub(crate) fn compare_outcome(outcome: &ExpectedOutcome, answer: &LabResponse) -> Result<(), String> {
    match outcome {
        ExpectedOutcome::Uncovered(_) | ExpectedOutcome::Wire(_) => Ok(()),
        ExpectedOutcome::Closed if answer.delivery == WireDelivery::CloseWithoutAnswer => Ok(()),
        ExpectedOutcome::Closed => Err(format!("expected a close without response, got {}", answer.status)),
        ExpectedOutcome::Response { status, reason, connection, delay_ms, body } => {
            compare_head(*status, reason, connection, answer)?;
            compare_delay(*delay_ms, answer.delay_ms)?;
            compare_body(body, &answer.body)
        }
    }
}

pub(crate) fn compare_body(wanted: &ExpectedBody, found: &[u8]) -> Result<(), String> {
    let text = String::from_utf8_lossy(found);
    match wanted {
        ExpectedBody::Empty if found.is_empty() => Ok(()),
        ExpectedBody::Empty => Err(format!("expected no body, got {text}")),
        ExpectedBody::Text(wanted) if matches_text(wanted, &text) => Ok(()),
        ExpectedBody::Text(wanted) => Err(format!("expected {wanted:?}, got {text:?}")),
        ExpectedBody::Json(wanted) => compare_json(wanted, &text),
    }
}

fn compare_head(status: u16, reason: &str, connection: &[String], answer: &LabResponse) -> Result<(), String> {
    if answer.status != status || !matches_text(reason, &answer.reason) {
        let body = String::from_utf8_lossy(&answer.body);
        return Err(format!("expected {status} {reason:?}, got {} {:?} {body}", answer.status, answer.reason));
    }
    let found: Vec<&str> = answer.headers.iter().filter(|(name, _)| name == "Connection").map(|(_, value)| &**value).collect();
    if found == connection { Ok(()) } else { Err(format!("expected Connection {connection:?}, got {found:?}")) }
}

/// Long delays are part of the response; a deviation of a fifth is tolerated.
fn compare_delay(wanted_ms: u64, found_ms: u64) -> Result<(), String> {
    let near = wanted_ms == 0 || (wanted_ms * 4 / 5..=wanted_ms * 6 / 5).contains(&found_ms);
    if near { Ok(()) } else { Err(format!("expected after {wanted_ms} ms, got after {found_ms} ms")) }
}

fn compare_json(wanted: &Value, text: &str) -> Result<(), String> {
    let found: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {text}"))?;
    compare_value("", wanted, &found)
}

/// Whether two values agree; the error names the position.
fn compare_value(path: &str, wanted: &Value, found: &Value) -> Result<(), String> {
    let differs = || Err(format!("{path}: expected {wanted}, got {found}"));
    match (wanted, found) {
        (Value::String(marker), _) if marker.starts_with('<') => {
            if matches_marker(marker, found) {
                Ok(())
            } else {
                differs()
            }
        }
        (Value::String(wanted), Value::String(found)) => {
            if matches_text(wanted, found) {
                Ok(())
            } else {
                differs()
            }
        }
        // The recorded list had items; an empty list would agree with everything.
        (Value::Object(wanted), Value::Array(items)) if wanted.contains_key("<each>") && !items.is_empty() => {
            items.iter().enumerate().try_for_each(|(index, item)| compare_item_keys(&format!("{path}[{index}]"), &wanted["<each>"], item))
        }
        (Value::Object(_), Value::Object(_)) => compare_object(path, wanted, found),
        (Value::Array(wanted), Value::Array(found)) => compare_list(path, wanted, found),
        _ if wanted == found => Ok(()),
        _ => differs(),
    }
}

fn compare_object(path: &str, wanted: &Value, found: &Value) -> Result<(), String> {
    let (Value::Object(wanted), Value::Object(found)) = (wanted, found) else { return Ok(()) };
    if let Some(key) = found.keys().find(|key| !wanted.contains_key(*key)) {
        return Err(format!("{path}: unexpected `{key}`: {}", found[key]));
    }
    for (key, inner) in wanted {
        let Some(value) = found.get(key) else { return Err(format!("{path}: `{key}` is missing, expected {inner}")) };
        compare_value(&format!("{path}.{key}"), inner, value)?;
    }
    Ok(())
}

/// Compares a list item that is described by its keys; `name?` may be absent.
fn compare_item_keys(path: &str, wanted: &Value, found: &Value) -> Result<(), String> {
    let (Value::Object(wanted), Value::Object(found)) = (wanted, found) else { return Err(format!("{path}: not an object")) };
    let known = |key: &String| wanted.contains_key(key) || wanted.contains_key(&format!("{key}?"));
    if let Some(key) = found.keys().find(|key| !known(key)) {
        return Err(format!("{path}: unexpected `{key}`"));
    }
    for (key, marker) in wanted {
        match (found.get(key.trim_end_matches('?')), key.ends_with('?')) {
            (Some(value), _) => compare_value(&format!("{path}.{key}"), marker, value)?,
            (None, true) => {}
            (None, false) => return Err(format!("{path}: `{key}` is missing")),
        }
    }
    Ok(())
}

/// Each expected item consumes the first one that agrees with it.
fn compare_list(path: &str, wanted: &[Value], found: &[Value]) -> Result<(), String> {
    let mut rest: Vec<&Value> = found.iter().collect();
    for item in wanted {
        match rest.iter().position(|candidate| compare_value(path, item, candidate).is_ok()) {
            Some(index) => drop(rest.remove(index)),
            None => return Err(nearest_difference(path, item, &rest)),
        }
    }
    if rest.is_empty() { Ok(()) } else { Err(format!("{path}: unexpected items {rest:?}")) }
}

/// Why the most similar candidate does not agree, for the report.
fn nearest_difference(path: &str, item: &Value, rest: &[&Value]) -> String {
    let same = |key: &str| rest.iter().find(|candidate| item.get(key).is_some() && candidate.get(key) == item.get(key));
    let candidate = ["key", "vmid", "name", "id", "n", "storage", "node"].iter().find_map(|key| same(key));
    let detail = candidate.and_then(|candidate| compare_value(path, item, candidate).err());
    detail.unwrap_or_else(|| format!("{path}: nothing agrees with {item} among {rest:?}"))
}

fn matches_marker(marker: &str, found: &Value) -> bool {
    let text = found.as_str();
    let (name, argument) = marker.trim_matches(['<', '>']).split_once(' ').unwrap_or((marker.trim_matches(['<', '>']), ""));
    match name {
        "int" => found.is_i64() || found.is_u64(),
        "number" => found.is_number(),
        "text" => text.is_some(),
        "digest" => text.is_some_and(|text| text.len() == 40 && text.chars().all(|character| character.is_ascii_hexdigit())),
        "fingerprint" => text.is_some_and(|text| text.split(':').count() == 32),
        "words" => text.is_some_and(|text| sort_words(text) == argument),
        "privileges" => found.as_object().is_some_and(|held| held.len().to_string() == argument && held.values().all(|flag| flag == 1)),
        _ => false,
    }
}

fn sort_words(text: &str) -> String {
    let mut parts: Vec<&str> = text.split(',').collect();
    parts.sort_unstable();
    parts.join(",")
}

/// Whether a text agrees with a pattern that contains [`ANY_RUN`].
pub(crate) fn matches_text(wanted: &str, found: &str) -> bool {
    let Some((head, tail)) = wanted.split_once(ANY_RUN) else { return wanted == found };
    let Some(rest) = found.strip_prefix(head) else { return false };
    let run =
        rest.find(|character: char| !(character.is_ascii_alphanumeric() || character == ':' || character == '-')).unwrap_or(rest.len());
    // The run may be shorter than the longest possible one; the rest of the pattern decides.
    (1..=run).rev().any(|length| rest.is_char_boundary(length) && matches_text(tail, &rest[length..]))
}

#[test]
fn item_markers_need_a_non_empty_list_with_all_keys() {
    let wanted = serde_json::json!({ "data": { "<each>": { "id": "<text>", "pid?": "<int>" } } });
    let check = |found: Value| compare_value("", &wanted, &serde_json::json!({ "data": found }));
    assert_eq!(check(serde_json::json!([{ "id": "a" }, { "id": "b", "pid": 1 }])), Ok(()));
    for wrong in [
        serde_json::json!([]),
        serde_json::json!({}),
        serde_json::json!([{ "pid": 1 }]),
        serde_json::json!([{ "id": "a", "pid": "1" }]),
        serde_json::json!([{ "id": "a", "more": 1 }]),
        serde_json::json!([{ "id": "a" }, {}]),
    ] {
        assert!(check(wrong.clone()).is_err(), "{wrong}");
    }
}
