//! `/nodes/{node}/tasks`: lists, status, logs, and stopping.
//!
//! What never enters here: how tasks come to be and end.

use serde_json::{Value, json};

use super::{Call, Route};
use crate::access::Who;
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::task::{self, State, Task, TaskId, Upid};
use crate::text::Object;
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/nodes/{node}/tasks", list),
    ("GET", "/nodes/{node}/tasks/{upid}", index),
    ("GET", "/nodes/{node}/tasks/{upid}/status", status),
    ("GET", "/nodes/{node}/tasks/{upid}/log", log),
    ("DELETE", "/nodes/{node}/tasks/{upid}", stop),
];

/// How long it takes until a worker that was told to stop is gone.
const STOP_MS: u64 = 1_000;

/// About what the status of a task takes.
const STATUS_BYTES: usize = 300;

fn index(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(super::nodes::subdirs(&["log", "status"]))
}

fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let now_ms = world.now_ms;
    let source = call.text("source").unwrap_or("archive");
    let audit = world.access.has(&call.who, &format!("/nodes/{}", call.node), "Sys.Audit");
    let seen = |task: &&Task| (audit || is_own(&call.who, &task.user)) && fits(task, call);
    let of_source = |task: &&Task| match source {
        "active" => task.is_listed_active(now_ms),
        "archive" => !task.is_listed_active(now_ms),
        _ => true,
    };
    let mut found: Vec<&Task> = world.tasks.of_node(&call.node).filter(of_source).filter(seen).collect();
    // Running ones lead, the rest follows by the time of its end.
    found.sort_by_key(|task| (!task.is_listed_active(now_ms), std::cmp::Reverse(ended_s(task))));
    let total = found.len();
    let start = usize::try_from(call.number("start").unwrap_or(0)).unwrap_or(usize::MAX);
    let limit = usize::try_from(call.number("limit").unwrap_or(50)).unwrap_or(usize::MAX);
    let entries: Vec<Value> = found.into_iter().skip(start).take(limit).map(|task| node_entry(task, now_ms)).collect();
    Ok(Data::from(json!(entries)).total(total))
}

fn ended_s(task: &Task) -> u64 {
    match task.state {
        State::Ended { at_s, .. } => at_s,
        State::Waiting | State::Running { .. } => u64::MAX,
    }
}

fn fits(task: &Task, call: &Call) -> bool {
    let over = task.status().unwrap_or("");
    let failed = task.is_over() && !task::is_success(over);
    let by = |name: &str, test: &dyn Fn(&str) -> bool| call.text(name).is_none_or(test);
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    by("vmid", &|text| task.about == text)
        && by("typefilter", &|text| task.kind == text)
        && by("userfilter", &|text| task.user.contains(text))
        && by("since", &|text| task.start_s >= number(text))
        && by("until", &|text| task.start_s <= number(text))
        && by("statusfilter", &|text| split_list(text).any(|word| word == category(over, failed)))
        && (!call.flag("errors") || failed)
}

fn category(status: &str, failed: bool) -> &'static str {
    match status {
        "OK" => "ok",
        _ if status.starts_with("WARNINGS: ") => "warning",
        _ if failed && status != "unexpected status" => "error",
        _ => "unknown",
    }
}

/// A token owns its own tasks, a user also those of all tokens.
fn is_own(who: &Who, user: &str) -> bool {
    who.is(user) || (who.token.is_none() && user.split('!').next() == Some(who.user.as_str()))
}

/// As a node lists it: whoever runs is not split into user and token.
fn node_entry(task: &Task, now_ms: u64) -> Value {
    let mut entry = facts(task);
    match &task.state {
        State::Ended { at_s, status, .. } if !task.is_listed_active(now_ms) => {
            split_owner(&mut entry, task);
            entry["endtime"] = json!(at_s);
            entry["status"] = json!(status);
        }
        _ => {
            entry["user"] = json!(task.user);
            entry["saved"] = json!("0");
            entry["status"] = json!("RUNNING");
        }
    }
    entry
}

fn facts(task: &Task) -> Value {
    json!({ "upid": task.upid, "node": task.node, "pid": task.pid, "pstart": task.pstart, "starttime": task.start_s,
        "type": task.kind, "id": task.about })
}

fn split_owner(entry: &mut Value, task: &Task) {
    let (user, token) = task.owner();
    entry["user"] = json!(user);
    if let Some(token) = token {
        entry["tokenid"] = json!(token);
    }
}

/// As the cluster lists it: who runs has neither status nor end.
pub(super) fn cluster_entry(task: &Task) -> Value {
    let mut entry = json!({ "upid": task.upid, "node": task.node, "starttime": task.start_s, "type": task.kind, "id": task.about });
    split_owner(&mut entry, task);
    match &task.state {
        State::Ended { at_s, status, .. } => {
            entry["endtime"] = json!(at_s);
            entry["status"] = json!(status);
            entry["saved"] = json!("1");
        }
        State::Waiting | State::Running { .. } => entry["pid"] = json!(task.pid),
    }
    entry
}

/// The task that the path names, if the caller may see it.
fn find<'a>(world: &'a World, call: &Call, privilege: &str) -> Result<Option<(TaskId, &'a Task)>, Fail> {
    let text = call.text("upid").unwrap_or_default();
    let Some(Upid { node, user }) = task::parse(text) else {
        return Err(Fail::param("upid", "unable to parse worker upid"));
    };
    if !is_own(&call.who, user) {
        world.access.need(&call.who, &format!("/nodes/{}", call.node), privilege)?;
    }
    Ok(world.tasks.find(text).filter(|_| node == call.node))
}

fn status(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let Some((_, task)) = find(world, call, "Sys.Audit")? else { return Err(Fail::param("upid", "no such task")) };
    let (user, token) = task.owner();
    let mut out = Vec::with_capacity(STATUS_BYTES);
    let mut entry = Object::new(&mut out);
    entry.put_some("exitstatus", task.status()).put("id", &task.about).put("node", &task.node).put("pid", task.pid);
    entry.put("pstart", task.pstart).put("starttime", task.start_s).put("status", if task.is_over() { "stopped" } else { "running" });
    entry.put_some("tokenid", token).put("type", &task.kind).put("upid", &task.upid).put("user", user);
    entry.end();
    Ok(Data::text(out))
}

fn log(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let lines = match find(world, call, "Sys.Audit")? {
        Some((_, task)) if !task.log.is_empty() => task.log.clone(),
        Some(_) => vec!["no content".to_owned()],
        None => vec!["unable to open file - No such file or directory".to_owned()],
    };
    let start = usize::try_from(call.number("start").unwrap_or(0)).unwrap_or(usize::MAX);
    let limit = match call.number("limit").unwrap_or(50) {
        0 => usize::MAX,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let shown = lines.iter().enumerate().skip(start).take(limit);
    let entries: Vec<Value> = shown.map(|(index, line)| json!({ "n": index + 1, "t": line })).collect();
    Ok(Data::from(json!(entries)).total(lines.len()))
}

fn stop(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let running = find(world, call, "Sys.Modify")?.filter(|(_, task)| !task.is_over()).map(|(id, _)| id);
    match running {
        Some(id) => {
            world.interrupt(id);
            Ok(Data::null().after(STOP_MS))
        }
        None => Ok(Data::null()),
    }
}
