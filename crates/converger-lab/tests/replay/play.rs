//! Replays the fixtures against a world, in order and at their times.
//!
//! Must not compare; see `compare`.

use std::collections::BTreeMap;

use converger_lab::{GuestSpec, LabRequest, LabResponse, World, WorldEvent, WorldSpec, verify_response};
use serde_json::Value;

use crate::compare::compare_outcome;
use crate::fixture::{BeforeRequest, ExpectedOutcome, RecordedExchange, RecordedRequest};

/// A task must end within this time.
const WAIT_MS: u64 = 120_000;
const STEP_MS: u64 = 50;

const PLACEHOLDERS: &[&str] = &["upid", "raw-upid", "digest", "digest-now", "mac"];

const TOKEN: &str = "PVEAPIToken=root@pam!probe=SECRET";

/// A running world, and the ids in its responses so far.
struct ReplayStage {
    world: World,
    start_ms: u64,
    now_ms: u64,
    upids: BTreeMap<String, String>,
    digests: BTreeMap<String, String>,
    /// MAC addresses by label and key.
    macs: BTreeMap<String, String>,
}

/// Replays all exchanges; returns their results in the same order.
pub(crate) fn play_exchanges(yaml: &str, exchanges: &[RecordedExchange]) -> Vec<Result<(), String>> {
    let spec = WorldSpec::from_yaml(yaml).unwrap_or_else(|error| panic!("{error}"));
    let world = World::new(&spec).unwrap_or_else(|error| panic!("{error}"));
    let start_ms = spec.start_ms;
    let mut stage =
        ReplayStage { world, start_ms, now_ms: start_ms, upids: BTreeMap::new(), digests: BTreeMap::new(), macs: BTreeMap::new() };
    exchanges.iter().map(|exchange| play_exchange(&mut stage, exchange)).collect()
}

fn play_exchange(stage: &mut ReplayStage, exchange: &RecordedExchange) -> Result<(), String> {
    if let ExpectedOutcome::Uncovered(_) = exchange.outcome {
        return Ok(());
    }
    for before in &exchange.before {
        apply_before(stage, before)?;
    }
    stage.now_ms = stage.now_ms.max(stage.start_ms + exchange.at_ms);
    #[cfg(feature = "server")]
    if let ExpectedOutcome::Wire(wire) = &exchange.outcome {
        stage.world.advance_to(stage.now_ms);
        return crate::wire::play_wire(&mut stage.world, wire);
    }
    let request = build_request(stage, exchange);
    let answer = match &exchange.request.entry {
        Some(entry) => stage.world.answer_at(stage.now_ms, entry, &request),
        None => stage.world.answer(stage.now_ms, &request),
    };
    remember_ids(stage, &exchange.label, &answer);
    compare_outcome(&exchange.outcome, &answer)?;
    verify_response(stage.world.flavour(), &request, &answer).map(drop)
}

fn apply_before(stage: &mut ReplayStage, before: &BeforeRequest) -> Result<(), String> {
    match before {
        BeforeRequest::Event(at_ms, event) => {
            let event: WorldEvent = serde_json::from_value(event.clone()).map_err(|error| format!("{event}: {error}"))?;
            stage.now_ms = stage.now_ms.max(stage.start_ms + at_ms);
            stage.world.apply_event(stage.now_ms, event);
        }
        BeforeRequest::Guest(at_ms, guest) => {
            let guest: GuestSpec = serde_json::from_value(guest.clone()).map_err(|error| format!("{guest}: {error}"))?;
            stage.now_ms = stage.now_ms.max(stage.start_ms + at_ms);
            stage.world.add_guest(stage.now_ms, &guest)?;
        }
        BeforeRequest::Wait(label) => wait_for_task(stage, label)?,
    }
    Ok(())
}

/// Polls like the recorder did until the task ends.
fn wait_for_task(stage: &mut ReplayStage, label: &str) -> Result<(), String> {
    let upid = stage.upids.get(label).cloned().ok_or_else(|| format!("`{label}` started no task"))?;
    let node = upid.split(':').nth(1).unwrap_or_default();
    let path = format!("/api2/json/nodes/{node}/tasks/{}/status", percent_encode(&upid));
    let until_ms = stage.now_ms + WAIT_MS;
    while stage.now_ms < until_ms {
        let answer = stage.world.answer(stage.now_ms, &LabRequest::new("GET", &path).with_header("Authorization", TOKEN));
        if response_data(&answer).is_some_and(|data| data.get("status").and_then(Value::as_str) == Some("stopped")) {
            return Ok(());
        }
        stage.now_ms += STEP_MS;
    }
    Err(format!("the task of `{label}` did not end in time"))
}

fn response_data(answer: &LabResponse) -> Option<Value> {
    serde_json::from_slice::<Value>(&answer.body).ok().map(|mut body| body["data"].take())
}

fn remember_ids(stage: &mut ReplayStage, label: &str, answer: &LabResponse) {
    let Some(data) = response_data(answer) else { return };
    if let Some(upid) = data.as_str().filter(|text| text.starts_with("UPID:")) {
        stage.upids.insert(label.to_owned(), upid.to_owned());
    }
    for task in data.as_array().into_iter().flatten().rev() {
        if let (Some(upid), Some(kind)) = (task["upid"].as_str(), task["type"].as_str()) {
            stage.upids.insert(format!("{label}#{kind}"), upid.to_owned());
        }
    }
    for (key, card) in data.as_object().into_iter().flatten().filter(|(key, _)| key.starts_with("net")) {
        let mac = card.as_str().and_then(|card| card.split(',').next()?.split('=').nth(1));
        stage.macs.extend(mac.map(|mac| (format!("{label}.{key}"), mac.to_owned())));
    }
    let listed = data.as_array().into_iter().flatten().find(|item| item["key"] == "digest").and_then(|item| item["value"].as_str());
    if let Some(digest) = data.get("digest").and_then(Value::as_str).or(listed) {
        stage.digests.insert(label.to_owned(), digest.to_owned());
    }
}

fn build_request(stage: &mut ReplayStage, exchange: &RecordedExchange) -> LabRequest {
    let RecordedRequest { user, method, path, headers, body, .. } = &exchange.request;
    let path = fill_placeholders(stage, &exchange.label, path);
    let mut request = LabRequest::new(method, &path);
    if user != "-" {
        request = request.with_header("Authorization", &format!("PVEAPIToken={user}=SECRET"));
    }
    let mut typed = false;
    for (name, value) in headers {
        typed |= name == "Content-Type";
        request = add_header(stage, request, name, value);
    }
    let body = fill_placeholders(stage, &exchange.label, body);
    if !body.is_empty() && !typed {
        request = request.with_header("Content-Type", "application/x-www-form-urlencoded");
    }
    request.body = expand_repetition(&body).into_bytes();
    request
}

fn add_header(stage: &ReplayStage, request: LabRequest, name: &str, value: &str) -> LabRequest {
    if value == "<70 lines>" {
        return (0..70).fold(request, |request, number| request.with_header(&format!("{name}{number}"), "v"));
    }
    let (ticket, companion) = stage.world.ticket("ops@pve");
    let value = value.replace("{ticket:ops@pve}", &percent_encode(&ticket)).replace("{companion:ops@pve}", &companion);
    request.with_header(name, &expand_repetition(&value))
}

/// `abc<70 x>` becomes `abc` followed by 70 times `x`.
fn expand_repetition(text: &str) -> String {
    let spelled = || {
        let (head, rest) = text.split_once('<')?;
        let (count, letter) = rest.strip_suffix('>')?.split_once(' ')?;
        Some(format!("{head}{}", letter.repeat(count.parse().ok()?)))
    };
    spelled().unwrap_or_else(|| text.to_owned())
}

/// Replaces `{upid:label}`, `{raw-upid:label}`, `{digest:label}`, `{digest-now:vmid}` and `{mac:label.key}` with values of the lab.
fn fill_placeholders(stage: &mut ReplayStage, label: &str, text: &str) -> String {
    let Some((head, rest)) = text.split_once('{') else { return text.to_owned() };
    let Some((name, tail)) = rest.split_once('}') else { return text.to_owned() };
    let Some((what, of)) = name.split_once(':').filter(|(what, _)| PLACEHOLDERS.contains(what)) else {
        return text.to_owned();
    };
    let value = match what {
        "upid" => percent_encode(stage.upids.get(of).map_or("", String::as_str)),
        "raw-upid" => stage.upids.get(of).cloned().unwrap_or_default(),
        "mac" => percent_encode(stage.macs.get(of).map_or("", String::as_str)),
        "digest-now" => current_digest(stage, label, of),
        _ => stage.digests.get(of).cloned().unwrap_or_default(),
    };
    let tail = fill_placeholders(stage, label, tail);
    format!("{head}{value}{tail}")
}

fn current_digest(stage: &mut ReplayStage, label: &str, vmid: &str) -> String {
    let path = format!("/api2/json/nodes/pve1/qemu/{vmid}/config");
    let answer = stage.world.answer(stage.now_ms, &LabRequest::new("GET", &path).with_header("Authorization", TOKEN));
    remember_ids(stage, label, &answer);
    stage.digests.get(label).cloned().unwrap_or_default()
}

fn percent_encode(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
