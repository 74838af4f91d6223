//! `vzdump`, and the schedule of backup jobs.
//!
//! Jobs are stored but never run.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ApiCall, ApiRoute, require_quorum};
use crate::events::NewTask;
use crate::response::{ApiData, ApiError};
use crate::schema::{ValueType, split_list};
use crate::sections::SectionSettings;
use crate::task_work::{BackupWork, TaskWork};
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("POST", "/nodes/{node}/vzdump", vzdump),
    ("GET", "/cluster/backup", list),
    ("POST", "/cluster/backup", create),
    ("GET", "/cluster/backup/{id}", read),
    ("PUT", "/cluster/backup/{id}", update),
    ("DELETE", "/cluster/backup/{id}", delete),
];

fn parse_vmids(call: &ApiCall, key: &str) -> Vec<u32> {
    call.param(key).map(split_list).into_iter().flatten().filter_map(|id| id.parse().ok()).collect()
}

/// The guests that the request selects and does not exclude, on any node.
fn select_guests(world: &World, call: &ApiCall) -> Result<Vec<u32>, ApiError> {
    let except = parse_vmids(call, "exclude");
    let named = parse_vmids(call, "vmid");
    match (call.is_set("all"), call.param("pool"), named.is_empty()) {
        (true, _, false) => Err(ApiError::parameter_error("all", "option conflicts with option 'vmid'")),
        (true, ..) => Ok(world.guests.keys().copied().filter(|vmid| !except.contains(vmid)).collect()),
        (false, Some(pool), _) => match world.access.pools.get(pool) {
            Some(pool) => Ok(pool.guests.iter().copied().collect()),
            None => Err(ApiError::internal_error(format!("pool '{pool}' does not exist"))),
        },
        (false, None, true) => Err(ApiError::parameter_error("vmid", "property is missing")),
        (false, None, false) => Ok(named),
    }
}

fn check_backup_privileges(world: &World, call: &ApiCall, guests: &[u32], storage: &str) -> Result<(), ApiError> {
    for vmid in guests {
        world.access.require_privilege(&call.caller, &format!("/vms/{vmid}"), "VM.Backup")?;
    }
    world.access.require_privilege(&call.caller, &format!("/storage/{storage}"), "Datastore.AllocateSpace")?;
    if call.param("prune-backups").is_some() {
        world.access.require_privilege(&call.caller, &format!("/storage/{storage}"), "Datastore.Allocate")?;
    }
    let tuned = ["bwlimit", "ionice", "performance"].iter().any(|key| call.param(key).is_some());
    if tuned { world.access.require_privilege(&call.caller, "/", "Sys.Modify") } else { Ok(()) }
}

/// Backs up the guests on this node and skips those on other nodes. Guests that do not exist are attempted, so that the task fails visibly.
fn vzdump(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let requested = select_guests(world, call)?;
    let storage = call.param("storage").unwrap_or("local").to_owned();
    check_backup_privileges(world, call, &requested, &storage)?;
    let is_on_node = |vmid: &u32| world.guests.get(vmid).is_none_or(|guest| guest.node == call.node);
    let vmids: Vec<u32> = requested.into_iter().filter(is_on_node).collect::<BTreeSet<u32>>().into_iter().collect();
    if vmids.is_empty() {
        return Ok("OK".to_owned().into());
    }
    let about = if let [vmid] = vmids.as_slice() { vmid.to_string() } else { String::new() };
    let ending = match call.param("compress") {
        None | Some("0") => None,
        Some("gzip") => Some("gz"),
        Some("zstd") => Some("zst"),
        Some(_) => Some("lzo"),
    };
    let backing = BackupWork {
        vmids,
        storage,
        mode: call.param("mode").unwrap_or("snapshot").to_owned(),
        ending: ending.map(str::to_owned),
        notes: call.param("notes-template").map(str::to_owned),
        protected: call.is_set("protected"),
    };
    Ok(world.start_task(NewTask::for_node(&call.node, &call.caller, "vzdump", &about, TaskWork::Backup(Box::new(backing)))).into())
}

fn job_id(call: &ApiCall) -> &str {
    call.param("id").unwrap_or_default()
}

fn missing_job_error(call: &ApiCall) -> ApiError {
    ApiError::parameter_error("id", format!("No such job '{}'", job_id(call)))
}

/// A job as JSON. Only integer and boolean parameters are written as numbers.
fn job_json(world: &World, id: &str, settings: &SectionSettings) -> Value {
    let table = crate::schema::find_method("PUT", &["cluster", "backup", id], world.flavour).map(|(method, _)| method);
    let whole = |key: &str| {
        let base = table.and_then(|method| method.parameter(key, world.flavour)).map(|parameter| parameter.shape.base);
        matches!(base, Some(ValueType::Integer | ValueType::Boolean))
    };
    let number = |key: &str, text: &str| text.parse::<i64>().ok().filter(|_| whole(key)).map(Value::from);
    let mut fields: Value = settings.iter().map(|(key, text)| (key.clone(), number(key, text).unwrap_or_else(|| json!(text)))).collect();
    fields["id"] = json!(id);
    fields["type"] = json!("vzdump");
    let enabled = settings.get("enabled").is_none_or(|text| text != "0");
    if let Some(next_s) = settings.get("schedule").filter(|_| enabled).and_then(|text| next_run_s(text, world.cluster_clock_s())) {
        fields["next-run"] = json!(next_s);
    }
    fields
}

/// When a job would run next. Only the simplest schedules are supported: `21:00`, `daily`, `hourly`, `*/30`.
fn next_run_s(schedule: &str, now_s: u64) -> Option<u64> {
    let after = |period_s: u64, offset_s: u64| (now_s.saturating_sub(offset_s) / period_s + 1) * period_s + offset_s;
    let number = |text: &str, below: u64| text.parse::<u64>().ok().filter(|number| *number < below);
    match (schedule, schedule.strip_prefix("*/"), schedule.split_once(':')) {
        ("daily", ..) => Some(after(86_400, 0)),
        ("hourly", ..) => Some(after(3_600, 0)),
        (_, Some(minutes), _) => number(minutes, 60).filter(|minutes| *minutes > 0).map(|minutes| after(minutes * 60, 0)),
        (_, None, Some((hour, minute))) => Some(after(86_400, number(hour, 24)? * 3_600 + number(minute, 60)? * 60)),
        _ => None,
    }
}

fn list(world: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    let entries: Vec<Value> = world.backup_jobs.iter().map(|(_, id, settings)| job_json(world, id, settings)).collect();
    Ok(json!(entries).into())
}

fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let found = world.backup_jobs.get(job_id(call)).map(|settings| job_json(world, job_id(call), settings));
    found.map(ApiData::from).ok_or_else(|| missing_job_error(call))
}

fn job_settings(call: &ApiCall) -> impl Iterator<Item = (String, String)> + '_ {
    call.values.iter().filter(|(key, _)| !["id", "delete"].contains(&key.as_str())).cloned()
}

fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    select_guests(world, call)?;
    require_quorum(world, &call.node)?;
    let uuid = world.random.new_uuid();
    let id = call.param("id").map_or_else(|| format!("backup-{}", uuid.get(..13).unwrap_or(&uuid)), str::to_owned);
    if world.backup_jobs.get(&id).is_some() {
        return Err(ApiError::internal_error(format!("Job '{id}' already exists")));
    }
    let mut job: SectionSettings = job_settings(call).collect();
    job.entry("enabled".to_owned()).or_insert_with(|| "1".to_owned());
    world.backup_jobs.put(&id, job);
    Ok(ApiData::null())
}

fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let Some(job) = world.backup_jobs.get(job_id(call)) else { return Err(missing_job_error(call)) };
    let mut job = job.clone();
    require_quorum(world, &call.node)?;
    for key in call.param("delete").map(split_list).into_iter().flatten() {
        job.remove(key);
    }
    job.extend(job_settings(call));
    world.backup_jobs.put(job_id(call), job);
    Ok(ApiData::null())
}

fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    if world.backup_jobs.get(job_id(call)).is_none() {
        return Err(missing_job_error(call));
    }
    require_quorum(world, &call.node)?;
    world.backup_jobs.remove(job_id(call));
    Ok(ApiData::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_schedules_give_a_next_run() {
        let noon = 1_794_700_800 + 12 * 3_600;
        assert_eq!(next_run_s("21:00", noon), Some(noon + 9 * 3_600));
        assert_eq!(next_run_s("11:30", noon), Some(noon + 86_400 - 1_800));
        assert_eq!(next_run_s("12:00", noon), Some(noon + 86_400), "a job that is due right now runs next tomorrow");
        assert_eq!(next_run_s("hourly", noon + 1), Some(noon + 3_600));
        assert_eq!(next_run_s("*/30", noon + 60), Some(noon + 1_800));
        for odd in ["sat 18:15", "*/0", "25:00", "mon..fri", ""] {
            assert_eq!(next_run_s(odd, noon), None, "{odd}");
        }
    }
}
