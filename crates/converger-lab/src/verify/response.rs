//! Checks responses against the official documentation of 9.2: required keys exist, known keys have
//! their type, and an error has all parts of its release and format.
//!
//! Keys that are not documented are allowed, because Proxmox sends many. Must not check whether a
//! response is true.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;

use crate::decode::ResponseFormat;
use crate::flavour::Flavour;
use crate::wire::LabResponse;

/// Required keys that earlier releases lack.
const LATER_KEYS: &[&str] = &["has-dbus-vmstate", "mapped-resource-info", "mapped-resources", "available"];

/// Keys whose documented type Proxmox itself does not follow.
const LOOSELY_TYPED_KEYS: &[&str] = &["value", "pending", "memory", "state"];

/// Methods that return nothing in release 7 and a task since.
const EMPTY_IN_7: &[(&str, &str)] = &[("PUT", "/nodes/{node}/qemu/{vmid}/resize")];

/// Methods that return nothing before release 9 and describe the move since.
const EMPTY_BEFORE_9: &[(&str, &str)] =
    &[("POST", "/cluster/ha/resources/{sid}/migrate"), ("POST", "/cluster/ha/resources/{sid}/relocate")];

/// Methods that may return nothing instead of the documented value: interfaces of a stopped container, and a config write whose task ended
/// within `background_delay`.
const MAY_BE_EMPTY: &[(&str, &str)] = &[("GET", "/nodes/{node}/lxc/{vmid}/interfaces"), ("POST", "/nodes/{node}/qemu/{vmid}/config")];

#[derive(Deserialize)]
struct ReturnsRow<'t> {
    #[serde(rename = "m")]
    verb: &'t str,
    #[serde(rename = "p")]
    template: &'t str,
    #[serde(rename = "r")]
    returns: Value,
}

/// By template and verb. A letter is a type (`s`, `i`, `n`, `b`, `0` for null); `?` after a key marks it as optional.
static RETURNS: LazyLock<BTreeMap<(&str, &str), Value>> = LazyLock::new(|| {
    let rows = include_str!("../../data/returns.jsonl").lines().map(|line| {
        let row: ReturnsRow =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("data/returns.jsonl is part of the program and must parse: {error}"));
        ((row.verb, row.template), row.returns)
    });
    rows.collect()
});

/// All methods with a documented result: verb and template.
pub(super) fn documented_methods() -> impl Iterator<Item = (&'static str, &'static str)> {
    RETURNS.keys().copied()
}

/// Checks a response that a method produced.
pub(super) fn check_response(
    flavour: Flavour,
    format: ResponseFormat,
    verb: &str,
    template: &str,
    answer: &LabResponse,
) -> Result<(), String> {
    let body: Value = serde_json::from_slice(&answer.body).map_err(|error| format!("the body is not JSON: {error}"))?;
    let data = body.get("data").ok_or("there is no `data`")?;
    match (format, answer.status) {
        (ResponseFormat::Json, 200) => check_returned_data(flavour, verb, template, data),
        (ResponseFormat::Json, status) => check_error_body(data, &body, status, flavour.has_error_message()),
        (ResponseFormat::Extjs, 200) => match body.get("success").and_then(Value::as_u64) {
            Some(1) => check_returned_data(flavour, verb, template, data),
            Some(0) => check_error_body(data, &body, inner_status(&body)?, true),
            _ => Err("there is no `success` of 0 or 1".to_owned()),
        },
        // A failed login is the only handler error that keeps its status code in extjs.
        (ResponseFormat::Extjs, 401) => Ok(()),
        (ResponseFormat::Extjs, status) => Err(format!("an extjs response has status {status} instead of 200")),
    }
}

/// The `status` member is a string for some codes and a number for others.
fn inner_status(body: &Value) -> Result<u16, String> {
    let status = body.get("status").ok_or("an error has no `status`")?;
    let number = status.as_u64().or_else(|| status.as_str().and_then(|text| text.parse().ok()));
    number.and_then(|number| u16::try_from(number).ok()).ok_or_else(|| format!("`status` is {status}, which is not a status code"))
}

fn check_error_body(data: &Value, body: &Value, status: u16, says_message: bool) -> Result<(), String> {
    let message = body.get("message").and_then(Value::as_str);
    let errors = body.get("errors").and_then(Value::as_object).map_or(0, serde_json::Map::len);
    match status {
        _ if !data.is_null() => Err(format!("an error has `data`: {data}")),
        400 if errors == 0 => Err("a 400 names no parameter".to_owned()),
        401 | 403 | 500 | 501 if errors > 0 => Err(format!("a {status} names parameters")),
        400 | 401 | 403 | 500 | 501 if message.is_some() != says_message => Err(format!("unexpected or missing `message`: {message:?}")),
        400 | 401 | 403 | 500 | 501 => Ok(()),
        _ => Err(format!("Proxmox never returns {status}")),
    }
}

fn check_returned_data(flavour: Flavour, verb: &str, template: &str, data: &Value) -> Result<(), String> {
    let in_seven = flavour == Flavour::V7 && EMPTY_IN_7.contains(&(verb, template));
    if in_seven || flavour < Flavour::V9 && EMPTY_BEFORE_9.contains(&(verb, template)) {
        return check_leaf("data", "0", data);
    }
    if data.is_null() && MAY_BE_EMPTY.contains(&(verb, template)) {
        return Ok(());
    }
    let wanted = RETURNS.get(&(verb, template)).ok_or_else(|| format!("data/returns.jsonl does not contain {verb} {template}"))?;
    check_value("data", wanted, data)
}

fn check_value(path: &str, wanted: &Value, found: &Value) -> Result<(), String> {
    match (wanted, found) {
        (Value::String(letter), _) => check_leaf(path, letter, found),
        (Value::Array(items), Value::Array(found)) => {
            let Some(wanted) = items.first() else { return Ok(()) };
            found.iter().try_for_each(|item| check_value(path, wanted, item))
        }
        (Value::Object(wanted), Value::Object(_)) => wanted.iter().try_for_each(|(key, inner)| check_member(path, key, inner, found)),
        _ => Err(format!("{path}: expected {wanted}, got {found}")),
    }
}

fn check_member(path: &str, key: &str, inner: &Value, found: &Value) -> Result<(), String> {
    let name = key.trim_end_matches('?');
    match found.get(name) {
        _ if name.contains('#') || LOOSELY_TYPED_KEYS.contains(&name) => Ok(()),
        Some(value) => check_value(name, inner, value),
        None if key.ends_with('?') || LATER_KEYS.contains(&name) => Ok(()),
        None => Err(format!("{path}: `{name}` is missing in {found}")),
    }
}

/// Perl scalars have no strict type: a number may be sent as a string.
fn check_leaf(path: &str, letter: &str, found: &Value) -> Result<(), String> {
    let numeric = || found.is_number() || found.as_str().is_some_and(|text| text.parse::<f64>().is_ok());
    let fits = match letter {
        "0" => found.is_null(),
        "i" | "n" => numeric(),
        "b" => found.is_boolean() || numeric(),
        "s" => found.is_string(),
        _ => true,
    };
    if fits { Ok(()) } else { Err(format!("{path}: expected `{letter}`, got {found}")) }
}
