//! `/nodes/{node}/tasks`: lists, status, logs, and stopping tasks.
//!
//! How tasks start and end is in `crate::events`.

use serde_json::{Value, json};

use super::{ApiCall, ApiRoute};
use crate::access::ApiCaller;
use crate::json_text::JsonObject;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::task::{self, LabTask, LabTaskState, ParsedUpid, TaskId};
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/nodes/{node}/tasks", list),
    ("GET", "/nodes/{node}/tasks/{upid}", index),
    ("GET", "/nodes/{node}/tasks/{upid}/status", status),
    ("GET", "/nodes/{node}/tasks/{upid}/log", read_log),
    ("DELETE", "/nodes/{node}/tasks/{upid}", stop_task),
];

/// How long a worker takes to exit after it was asked to stop.
const STOP_DELAY_MS: u64 = 1_000;

/// Typical size of a task status.
const STATUS_BYTES: usize = 300;

fn index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(super::nodes::subdirectory_index(&["log", "status"]))
}

fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let now_ms = world.now_ms;
    let source = call.param("source").unwrap_or("archive");
    let audit = world.access.has_privilege(&call.caller, &format!("/nodes/{}", call.node), "Sys.Audit");
    let seen = |task: &&LabTask| (audit || is_own(&call.caller, &task.user)) && matches_filters(task, call);
    let of_source = |task: &&LabTask| match source {
        "active" => task.is_listed_active(now_ms),
        "archive" => !task.is_listed_active(now_ms),
        _ => true,
    };
    let mut found: Vec<&LabTask> = world.tasks.tasks_of_node(&call.node).filter(of_source).filter(seen).collect();
    // Running tasks come first, then the others by their end, newest first.
    found.sort_by_key(|task| (!task.is_listed_active(now_ms), std::cmp::Reverse(end_time_s(task))));
    let total = found.len();
    let start = usize::try_from(call.number_param("start").unwrap_or(0)).unwrap_or(usize::MAX);
    let limit = usize::try_from(call.number_param("limit").unwrap_or(50)).unwrap_or(usize::MAX);
    let entries: Vec<Value> = found.into_iter().skip(start).take(limit).map(|task| node_task_json(task, now_ms)).collect();
    Ok(ApiData::from(json!(entries)).with_total(total))
}

fn end_time_s(task: &LabTask) -> u64 {
    match task.state {
        LabTaskState::Ended { at_s, .. } => at_s,
        LabTaskState::Waiting | LabTaskState::Running { .. } => u64::MAX,
    }
}

fn matches_filters(task: &LabTask, call: &ApiCall) -> bool {
    let over = task.status().unwrap_or("");
    let failed = task.is_over() && !task::is_success(over);
    let by = |name: &str, test: &dyn Fn(&str) -> bool| call.param(name).is_none_or(test);
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    by("vmid", &|text| task.about == text)
        && by("typefilter", &|text| task.kind == text)
        && by("userfilter", &|text| task.user.contains(text))
        && by("since", &|text| task.start_s >= number(text))
        && by("until", &|text| task.start_s <= number(text))
        && by("statusfilter", &|text| split_list(text).any(|category| category == status_category(over, failed)))
        && (!call.is_set("errors") || failed)
}

fn status_category(status: &str, failed: bool) -> &'static str {
    match status {
        "OK" => "ok",
        _ if status.starts_with("WARNINGS: ") => "warning",
        _ if failed && status != "unexpected status" => "error",
        _ => "unknown",
    }
}

/// A token owns only its own tasks; a user also owns those of all their tokens.
fn is_own(caller: &ApiCaller, user: &str) -> bool {
    caller.has_id(user) || (caller.token.is_none() && user.split('!').next() == Some(caller.user.as_str()))
}

/// A task as a node lists it. The owner of a running task is not split into user and token.
fn node_task_json(task: &LabTask, now_ms: u64) -> Value {
    let mut entry = common_fields(task);
    match &task.state {
        LabTaskState::Ended { at_s, status, .. } if !task.is_listed_active(now_ms) => {
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

fn common_fields(task: &LabTask) -> Value {
    json!({ "upid": task.upid, "node": task.node, "pid": task.pid, "pstart": task.pstart, "starttime": task.start_s,
        "type": task.kind, "id": task.about })
}

fn split_owner(entry: &mut Value, task: &LabTask) {
    let (user, token) = task.owner();
    entry["user"] = json!(user);
    if let Some(token) = token {
        entry["tokenid"] = json!(token);
    }
}

/// A task as the cluster lists it. A running task has neither status nor end time.
pub(super) fn cluster_task_json(task: &LabTask) -> Value {
    let mut entry = json!({ "upid": task.upid, "node": task.node, "starttime": task.start_s, "type": task.kind, "id": task.about });
    split_owner(&mut entry, task);
    match &task.state {
        LabTaskState::Ended { at_s, status, .. } => {
            entry["endtime"] = json!(at_s);
            entry["status"] = json!(status);
            entry["saved"] = json!("1");
        }
        LabTaskState::Waiting | LabTaskState::Running { .. } => entry["pid"] = json!(task.pid),
    }
    entry
}

/// The task that the path names, if the caller may see it.
fn find_visible_task<'a>(world: &'a World, call: &ApiCall, privilege: &str) -> Result<Option<(TaskId, &'a LabTask)>, ApiError> {
    let text = call.param("upid").unwrap_or_default();
    let Some(ParsedUpid { node, user }) = task::parse_upid(text) else {
        return Err(ApiError::parameter_error("upid", "unable to parse worker upid"));
    };
    if !is_own(&call.caller, user) {
        world.access.require_privilege(&call.caller, &format!("/nodes/{}", call.node), privilege)?;
    }
    Ok(world.tasks.find_by_upid(text).filter(|_| node == call.node))
}

fn status(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let Some((_, task)) = find_visible_task(world, call, "Sys.Audit")? else {
        return Err(ApiError::parameter_error("upid", "no such task"));
    };
    let (user, token) = task.owner();
    let mut out = Vec::with_capacity(STATUS_BYTES);
    let mut entry = JsonObject::new(&mut out);
    entry.put_some("exitstatus", task.status()).put("id", &task.about).put("node", &task.node).put("pid", task.pid);
    entry.put("pstart", task.pstart).put("starttime", task.start_s).put("status", if task.is_over() { "stopped" } else { "running" });
    entry.put_some("tokenid", token).put("type", &task.kind).put("upid", &task.upid).put("user", user);
    entry.close();
    Ok(ApiData::from_json_text(out))
}

fn read_log(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let lines = match find_visible_task(world, call, "Sys.Audit")? {
        Some((_, task)) if !task.log.is_empty() => task.log.clone(),
        Some(_) => vec!["no content".to_owned()],
        None => vec!["unable to open file - No such file or directory".to_owned()],
    };
    let start = usize::try_from(call.number_param("start").unwrap_or(0)).unwrap_or(usize::MAX);
    let limit = match call.number_param("limit").unwrap_or(50) {
        0 => usize::MAX,
        limit => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    let page = lines.iter().enumerate().skip(start).take(limit);
    let entries: Vec<Value> = page.map(|(index, line)| json!({ "n": index + 1, "t": line })).collect();
    Ok(ApiData::from(json!(entries)).with_total(lines.len()))
}

fn stop_task(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let running = find_visible_task(world, call, "Sys.Modify")?.filter(|(_, task)| !task.is_over()).map(|(id, _)| id);
    match running {
        Some(id) => {
            world.interrupt_task(id);
            Ok(ApiData::null().with_delay(STOP_DELAY_MS))
        }
        None => Ok(ApiData::null()),
    }
}
