//! `/pools`.
//!
//! What never enters here: what a role on a pool means (see `access`).

use serde_json::{Value, json};

use super::{Call, Route, cluster};
use crate::access::Pool;
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/pools", list),
    ("POST", "/pools", create),
    ("PUT", "/pools", update),
    ("DELETE", "/pools", delete),
    ("GET", "/pools/{poolid}", read),
    ("PUT", "/pools/{poolid}", update),
    ("DELETE", "/pools/{poolid}", delete),
];

/// Waiting for a lock that nobody can give takes so long.
pub(super) const NO_QUORUM_MS: u64 = 9_900;

/// Writes to users, pools and permissions take a lock of the whole cluster.
pub(super) fn need_lock(world: &World, call: &Call, what: &str) -> Result<(), Fail> {
    if world.is_quorate(&call.node) {
        return Ok(());
    }
    Err(Fail::Died(format!("{what} failed: cfs-lock 'file-user_cfg' error: no quorum!"), NO_QUORUM_MS))
}

fn named<'a>(world: &'a World, call: &Call) -> Result<(&'a String, &'a Pool), Fail> {
    let name = call.text("poolid").unwrap_or_default();
    let found = world.access.pools.get_key_value(name);
    found.ok_or_else(|| Fail::died(format!("pool '{name}' does not exist")))
}

fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    if call.text("poolid").is_some() {
        let (name, pool) = named(world, call)?;
        world.access.need(&call.who, &format!("/pool/{name}"), "Pool.Audit")?;
        let mut entry = members(world, call, pool);
        entry["poolid"] = json!(name);
        return Ok(json!([entry]).into());
    }
    let seen = world.access.pools.iter().filter(|(name, _)| world.access.has(&call.who, &format!("/pool/{name}"), "Pool.Audit"));
    let entries: Vec<Value> = seen.map(|(name, pool)| summary(name, pool)).collect();
    Ok(json!(entries).into())
}

fn summary(name: &str, pool: &Pool) -> Value {
    let mut entry = json!({ "poolid": name });
    if let Some(comment) = &pool.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

/// Members are shown whoever asks, without tags and locks.
fn members(world: &World, call: &Call, pool: &Pool) -> Value {
    let guests = pool.guests.iter().filter_map(|vmid| world.guests.get(vmid));
    let view = world.views.of(&call.entry);
    let row = |guest| {
        let mut json = Vec::new();
        cluster::write_row(world, view, guest, None, &mut json);
        serde_json::from_slice::<Value>(&json).unwrap_or_default()
    };
    let members: Vec<Value> = guests.map(|guest| without(row(guest), &["tags", "lock", "hastate"])).collect();
    let mut entry = json!({ "members": members });
    if let Some(comment) = &pool.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn without(mut row: Value, keys: &[&str]) -> Value {
    if let Value::Object(fields) = &mut row {
        fields.retain(|key, _| !keys.contains(&key.as_str()));
    }
    row
}

fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (name, pool) = named(world, call)?;
    let mut entry = members(world, call, pool);
    entry["poolid"] = json!(name);
    Ok(entry.into())
}

fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "create pool")?;
    let name = call.text("poolid").unwrap_or_default();
    if world.access.pools.contains_key(name) {
        return Err(Fail::died(format!("create pool failed: pool '{name}' already exists")));
    }
    let pool = Pool { comment: call.text("comment").map(str::to_owned), ..Pool::default() };
    world.access.pools.insert(name.to_owned(), pool);
    Ok(Data::null())
}

fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "update pools")?;
    let name = named(world, call)?.0.clone();
    let ids: Vec<u32> = call.text("vms").map(split_list).into_iter().flatten().filter_map(|id| id.parse().ok()).collect();
    let remove = call.flag("delete");
    for vmid in &ids {
        may_add(world, call, &name, *vmid)?;
    }
    if call.flag("allow-move") {
        world.access.pools.values_mut().for_each(|pool| pool.guests.retain(|vmid| !ids.contains(vmid)));
    }
    let Some(pool) = world.access.pools.get_mut(&name) else { return Ok(Data::null()) };
    for vmid in ids {
        if remove {
            pool.guests.remove(&vmid)
        } else {
            pool.guests.insert(vmid)
        };
    }
    for storage in call.text("storage").map(split_list).into_iter().flatten() {
        if remove {
            pool.storages.remove(storage)
        } else {
            pool.storages.insert(storage.to_owned())
        };
    }
    if let Some(comment) = call.text("comment") {
        pool.comment = Some(comment.to_owned());
    }
    Ok(Data::null())
}

fn may_add(world: &World, call: &Call, name: &str, vmid: u32) -> Result<(), Fail> {
    world.access.need_any(&call.who, &format!("/vms/{vmid}"), &["Permissions.Modify", "VM.Allocate"])?;
    let other = world.access.pools.iter().find(|(other, pool)| *other != name && pool.guests.contains(&vmid));
    match other {
        Some((other, _)) if !call.flag("allow-move") && !call.flag("delete") => {
            Err(Fail::died(format!("update pools failed: VM {vmid} belongs already to pool '{other}' and cannot be added to '{name}'")))
        }
        _ => Ok(()),
    }
}

fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "delete pool")?;
    let (name, pool) = named(world, call)?;
    if !pool.guests.is_empty() || !pool.storages.is_empty() {
        return Err(Fail::died(format!("delete pool failed: pool '{name}' is not empty")));
    }
    let name = name.clone();
    world.access.pools.remove(&name);
    Ok(Data::null())
}
