//! `vzdump`, and the jobs that ask for it regularly.
//!
//! What never enters here: time tables. A job is kept, and nobody carries it out.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Call, Route, need_quorum};
use crate::engine::Fork;
use crate::respond::{Data, Fail};
use crate::schema::{Base, split_list};
use crate::sections::Settings;
use crate::work::{Backing, Work};
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("POST", "/nodes/{node}/vzdump", vzdump),
    ("GET", "/cluster/backup", list),
    ("POST", "/cluster/backup", create),
    ("GET", "/cluster/backup/{id}", read),
    ("PUT", "/cluster/backup/{id}", update),
    ("DELETE", "/cluster/backup/{id}", delete),
];

fn vmids(call: &Call, key: &str) -> Vec<u32> {
    call.text(key).map(split_list).into_iter().flatten().filter_map(|id| id.parse().ok()).collect()
}

/// The guests that are asked for and not excepted, wherever they are.
fn asked(world: &World, call: &Call) -> Result<Vec<u32>, Fail> {
    let except = vmids(call, "exclude");
    let named = vmids(call, "vmid");
    match (call.flag("all"), call.text("pool"), named.is_empty()) {
        (true, _, false) => Err(Fail::param("all", "option conflicts with option 'vmid'")),
        (true, ..) => Ok(world.guests.keys().copied().filter(|vmid| !except.contains(vmid)).collect()),
        (false, Some(pool), _) => match world.access.pools.get(pool) {
            Some(pool) => Ok(pool.guests.iter().copied().collect()),
            None => Err(Fail::died(format!("pool '{pool}' does not exist"))),
        },
        (false, None, true) => Err(Fail::param("vmid", "property is missing")),
        (false, None, false) => Ok(named),
    }
}

fn permitted(world: &World, call: &Call, guests: &[u32], storage: &str) -> Result<(), Fail> {
    for vmid in guests {
        world.access.need(&call.who, &format!("/vms/{vmid}"), "VM.Backup")?;
    }
    world.access.need(&call.who, &format!("/storage/{storage}"), "Datastore.AllocateSpace")?;
    if call.text("prune-backups").is_some() {
        world.access.need(&call.who, &format!("/storage/{storage}"), "Datastore.Allocate")?;
    }
    let tuned = ["bwlimit", "ionice", "performance"].iter().any(|key| call.text(key).is_some());
    if tuned { world.access.need(&call.who, "/", "Sys.Modify") } else { Ok(()) }
}

/// Guests of other nodes are left to those; guests that are nowhere are tried here, and fail visibly.
fn vzdump(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let asked = asked(world, call)?;
    let storage = call.text("storage").unwrap_or("local").to_owned();
    permitted(world, call, &asked, &storage)?;
    let here = |vmid: &u32| world.guests.get(vmid).is_none_or(|guest| guest.node == call.node);
    let vmids: Vec<u32> = asked.into_iter().filter(here).collect::<BTreeSet<u32>>().into_iter().collect();
    if vmids.is_empty() {
        return Ok("OK".to_owned().into());
    }
    let about = if let [vmid] = vmids.as_slice() { vmid.to_string() } else { String::new() };
    let ending = match call.text("compress") {
        None | Some("0") => None,
        Some("gzip") => Some("gz"),
        Some("zstd") => Some("zst"),
        Some(_) => Some("lzo"),
    };
    let backing = Backing {
        vmids,
        storage,
        mode: call.text("mode").unwrap_or("snapshot").to_owned(),
        ending: ending.map(str::to_owned),
        notes: call.text("notes-template").map(str::to_owned),
        protected: call.flag("protected"),
    };
    Ok(world.fork(Fork::of_node(&call.node, &call.who, "vzdump", &about, Work::Backup(Box::new(backing)))).into())
}

fn id(call: &Call) -> &str {
    call.text("id").unwrap_or_default()
}

fn missing(call: &Call) -> Fail {
    Fail::param("id", format!("No such job '{}'", id(call)))
}

/// A job as JSON: numbers are those parameters that are none of the texts.
fn entry(world: &World, id: &str, settings: &Settings) -> Value {
    let table = crate::schema::find("PUT", &["cluster", "backup", id], world.flavour).map(|(method, _)| method);
    let whole = |key: &str| {
        let base = table.and_then(|method| method.parameter(key, world.flavour)).map(|parameter| parameter.shape.base);
        matches!(base, Some(Base::Integer | Base::Boolean))
    };
    let number = |key: &str, text: &str| text.parse::<i64>().ok().filter(|_| whole(key)).map(Value::from);
    let mut fields: Value = settings.iter().map(|(key, text)| (key.clone(), number(key, text).unwrap_or_else(|| json!(text)))).collect();
    fields["id"] = json!(id);
    fields["type"] = json!("vzdump");
    let enabled = settings.get("enabled").is_none_or(|text| text != "0");
    if let Some(next_s) = settings.get("schedule").filter(|_| enabled).and_then(|text| next_run(text, world.wall_s())) {
        fields["next-run"] = json!(next_s);
    }
    fields
}

/// When a job would run next. Of Proxmox's time tables only the plainest are understood: `21:00`, `daily`, `hourly`, `*/30`.
fn next_run(schedule: &str, now_s: u64) -> Option<u64> {
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

fn list(world: &mut World, _: &Call) -> Result<Data, Fail> {
    let entries: Vec<Value> = world.backup_jobs.iter().map(|(_, id, settings)| entry(world, id, settings)).collect();
    Ok(json!(entries).into())
}

fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let found = world.backup_jobs.get(id(call)).map(|settings| entry(world, id(call), settings));
    found.map(Data::from).ok_or_else(|| missing(call))
}

fn settings(call: &Call) -> impl Iterator<Item = (String, String)> + '_ {
    call.values.iter().filter(|(key, _)| !["id", "delete"].contains(&key.as_str())).cloned()
}

fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    asked(world, call)?;
    need_quorum(world, &call.node)?;
    let uuid = world.random.uuid();
    let id = call.text("id").map_or_else(|| format!("backup-{}", uuid.get(..13).unwrap_or(&uuid)), str::to_owned);
    if world.backup_jobs.get(&id).is_some() {
        return Err(Fail::died(format!("Job '{id}' already exists")));
    }
    let mut job: Settings = settings(call).collect();
    job.entry("enabled".to_owned()).or_insert_with(|| "1".to_owned());
    world.backup_jobs.put(&id, job);
    Ok(Data::null())
}

fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let Some(job) = world.backup_jobs.get(id(call)) else { return Err(missing(call)) };
    let mut job = job.clone();
    need_quorum(world, &call.node)?;
    for key in call.text("delete").map(split_list).into_iter().flatten() {
        job.remove(key);
    }
    job.extend(settings(call));
    world.backup_jobs.put(id(call), job);
    Ok(Data::null())
}

fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    if world.backup_jobs.get(id(call)).is_none() {
        return Err(missing(call));
    }
    need_quorum(world, &call.node)?;
    world.backup_jobs.remove(id(call));
    Ok(Data::null())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_time_tables_are_understood_and_others_say_nothing() {
        let noon = 1_794_700_800 + 12 * 3_600;
        assert_eq!(next_run("21:00", noon), Some(noon + 9 * 3_600));
        assert_eq!(next_run("11:30", noon), Some(noon + 86_400 - 1_800));
        assert_eq!(next_run("12:00", noon), Some(noon + 86_400), "what is now was");
        assert_eq!(next_run("hourly", noon + 1), Some(noon + 3_600));
        assert_eq!(next_run("*/30", noon + 60), Some(noon + 1_800));
        for odd in ["sat 18:15", "*/0", "25:00", "mon..fri", ""] {
            assert_eq!(next_run(odd, noon), None, "{odd}");
        }
    }
}
