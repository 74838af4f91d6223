//! Playing the fixtures to a world, in order and in time.
//!
//! What never enters here: judgement (see `compare`).

use std::collections::BTreeMap;

use converger_lab::{Act, Answer, GuestSetting, Request, Setting, World, verify_answer};
use serde_json::Value;

use crate::compare::compare;
use crate::fixture::{Before, Exchange, Outcome, Wanted};

/// A task that is waited for must be over within this time.
const WAIT_MS: u64 = 120_000;
const STEP_MS: u64 = 50;

const PLACEHOLDERS: &[&str] = &["upid", "raw-upid", "digest", "digest-now", "mac"];

const TOKEN: &str = "PVEAPIToken=root@pam!probe=SECRET";

/// A world under way, and what its answers said so far.
struct Stage {
    world: World,
    start_ms: u64,
    now_ms: u64,
    upids: BTreeMap<String, String>,
    digests: BTreeMap<String, String>,
    /// Addresses of cards, by label and key.
    macs: BTreeMap<String, String>,
}

/// Play every exchange; the outcomes in the same order.
pub(crate) fn play(setting: &str, exchanges: &[Exchange]) -> Vec<Result<(), String>> {
    let setting = Setting::from_yaml(setting).unwrap_or_else(|error| panic!("{error}"));
    let world = World::new(&setting).unwrap_or_else(|error| panic!("{error}"));
    let start_ms = setting.start_ms;
    let mut stage = Stage { world, start_ms, now_ms: start_ms, upids: BTreeMap::new(), digests: BTreeMap::new(), macs: BTreeMap::new() };
    exchanges.iter().map(|exchange| one(&mut stage, exchange)).collect()
}

fn one(stage: &mut Stage, exchange: &Exchange) -> Result<(), String> {
    if let Outcome::Uncovered(_) = exchange.outcome {
        return Ok(());
    }
    for before in &exchange.before {
        prepare(stage, before)?;
    }
    stage.now_ms = stage.now_ms.max(stage.start_ms + exchange.at_ms);
    #[cfg(feature = "server")]
    if let Outcome::Wire(wire) = &exchange.outcome {
        stage.world.advance_to(stage.now_ms);
        return crate::wire::play(&mut stage.world, wire);
    }
    let request = request(stage, exchange);
    let answer = match &exchange.request.entry {
        Some(entry) => stage.world.answer_at(stage.now_ms, entry, &request),
        None => stage.world.answer(stage.now_ms, &request),
    };
    remember(stage, &exchange.label, &answer);
    compare(&exchange.outcome, &answer)?;
    verify_answer(stage.world.flavour(), &request, &answer).map(drop)
}

fn prepare(stage: &mut Stage, before: &Before) -> Result<(), String> {
    match before {
        Before::Act(at_ms, act) => {
            let act: Act = serde_json::from_value(act.clone()).map_err(|error| format!("{act}: {error}"))?;
            stage.now_ms = stage.now_ms.max(stage.start_ms + at_ms);
            stage.world.act(stage.now_ms, act);
        }
        Before::Guest(at_ms, guest) => {
            let guest: GuestSetting = serde_json::from_value(guest.clone()).map_err(|error| format!("{guest}: {error}"))?;
            stage.now_ms = stage.now_ms.max(stage.start_ms + at_ms);
            stage.world.add_guest(stage.now_ms, &guest)?;
        }
        Before::Wait(label) => wait(stage, label)?,
    }
    Ok(())
}

/// Ask as the recorder did, until the task is over.
fn wait(stage: &mut Stage, label: &str) -> Result<(), String> {
    let upid = stage.upids.get(label).cloned().ok_or_else(|| format!("`{label}` started no task"))?;
    let node = upid.split(':').nth(1).unwrap_or_default();
    let path = format!("/api2/json/nodes/{node}/tasks/{}/status", encoded(&upid));
    let until_ms = stage.now_ms + WAIT_MS;
    while stage.now_ms < until_ms {
        let answer = stage.world.answer(stage.now_ms, &Request::new("GET", &path).header("Authorization", TOKEN));
        if data(&answer).is_some_and(|data| data.get("status").and_then(Value::as_str) == Some("stopped")) {
            return Ok(());
        }
        stage.now_ms += STEP_MS;
    }
    Err(format!("the task of `{label}` does not end"))
}

fn data(answer: &Answer) -> Option<Value> {
    serde_json::from_slice::<Value>(&answer.body).ok().map(|mut body| body["data"].take())
}

fn remember(stage: &mut Stage, label: &str, answer: &Answer) {
    let Some(data) = data(answer) else { return };
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

fn request(stage: &mut Stage, exchange: &Exchange) -> Request {
    let Wanted { user, method, path, headers, body, .. } = &exchange.request;
    let path = filled(stage, &exchange.label, path);
    let mut request = Request::new(method, &path);
    if user != "-" {
        request = request.header("Authorization", &format!("PVEAPIToken={user}=SECRET"));
    }
    let mut typed = false;
    for (name, value) in headers {
        typed |= name == "Content-Type";
        request = with_header(stage, request, name, value);
    }
    let body = filled(stage, &exchange.label, body);
    if !body.is_empty() && !typed {
        request = request.header("Content-Type", "application/x-www-form-urlencoded");
    }
    request.body = repeated(&body).into_bytes();
    request
}

fn with_header(stage: &Stage, request: Request, name: &str, value: &str) -> Request {
    if value == "<70 lines>" {
        return (0..70).fold(request, |request, number| request.header(&format!("{name}{number}"), "v"));
    }
    let (ticket, companion) = stage.world.ticket("ops@pve");
    let value = value.replace("{ticket:ops@pve}", &encoded(&ticket)).replace("{companion:ops@pve}", &companion);
    request.header(name, &repeated(&value))
}

/// `abc<70 x>` is `abc` and 70 times `x`.
fn repeated(text: &str) -> String {
    let spelled = || {
        let (head, rest) = text.split_once('<')?;
        let (count, letter) = rest.strip_suffix('>')?.split_once(' ')?;
        Some(format!("{head}{}", letter.repeat(count.parse().ok()?)))
    };
    spelled().unwrap_or_else(|| text.to_owned())
}

/// `{upid:label}`, `{raw-upid:label}`, `{digest:label}`, `{digest-now:vmid}` and `{mac:label.key}` with what the lab gave.
fn filled(stage: &mut Stage, label: &str, text: &str) -> String {
    let Some((head, rest)) = text.split_once('{') else { return text.to_owned() };
    let Some((name, tail)) = rest.split_once('}') else { return text.to_owned() };
    let Some((what, of)) = name.split_once(':').filter(|(what, _)| PLACEHOLDERS.contains(what)) else {
        return text.to_owned();
    };
    let value = match what {
        "upid" => encoded(stage.upids.get(of).map_or("", String::as_str)),
        "raw-upid" => stage.upids.get(of).cloned().unwrap_or_default(),
        "mac" => encoded(stage.macs.get(of).map_or("", String::as_str)),
        "digest-now" => digest_now(stage, label, of),
        _ => stage.digests.get(of).cloned().unwrap_or_default(),
    };
    let tail = filled(stage, label, tail);
    format!("{head}{value}{tail}")
}

fn digest_now(stage: &mut Stage, label: &str, vmid: &str) -> String {
    let path = format!("/api2/json/nodes/pve1/qemu/{vmid}/config");
    let answer = stage.world.answer(stage.now_ms, &Request::new("GET", &path).header("Authorization", TOKEN));
    remember(stage, label, &answer);
    stage.digests.get(label).cloned().unwrap_or_default()
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
