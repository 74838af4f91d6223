//! `/pools`.
//!
//! What never enters here: what a role on a pool means (see `access`).

use serde_json::{Value, json};

use super::{Call, Route, cluster, storage};
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

/// Members are shown whoever asks, guests without tags and locks, then storages once each.
fn members(world: &World, call: &Call, pool: &Pool) -> Value {
    let wanted = |kind: &str| call.text("type").is_none_or(|wanted| wanted == kind);
    let guests = pool.guests.iter().filter_map(|vmid| world.guests.get(vmid)).filter(|guest| wanted(guest.kind.name()));
    let view = world.views.of(&call.entry);
    let row = |guest| {
        let mut json = Vec::new();
        cluster::write_row(world, view, guest, None, &mut json);
        serde_json::from_slice::<Value>(&json).unwrap_or_default()
    };
    let guests = guests.map(|guest| without(row(guest), &["tags", "lock", "hastate"]));
    let storages = pool.storages.iter().filter(|_| wanted("storage")).filter_map(|name| storage::member(world, call, name));
    let mut entry = json!({ "members": guests.chain(storages).collect::<Vec<Value>>() });
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
    let words = |key: &str| -> Vec<String> { call.text(key).map(split_list).into_iter().flatten().map(str::to_owned).collect() };
    let ids: Vec<u32> = words("vms").iter().filter_map(|id| id.parse().ok()).collect();
    let storages = words("storage");
    let remove = call.flag("delete");
    for vmid in &ids {
        may_change_guest(world, call, &name, *vmid)?;
    }
    for storage in &storages {
        may_change_storage(world, call, &name, storage)?;
    }
    if call.flag("allow-move") {
        world.access.pools.values_mut().for_each(|pool| pool.guests.retain(|vmid| !ids.contains(vmid)));
    }
    let Some(pool) = world.access.pools.get_mut(&name) else { return Ok(Data::null()) };
    pool.guests.retain(|vmid| !ids.contains(vmid));
    pool.storages.retain(|storage| !storages.contains(storage));
    if !remove {
        pool.guests.extend(ids);
        pool.storages.extend(storages);
    }
    if let Some(comment) = call.text("comment") {
        pool.comment = Some(comment.to_owned());
    }
    Ok(Data::null())
}

fn refused<T>(why: impl std::fmt::Display) -> Result<T, Fail> {
    Err(Fail::died(format!("update pools failed: {why}")))
}

fn may_change_guest(world: &World, call: &Call, name: &str, vmid: u32) -> Result<(), Fail> {
    world.access.need_any(&call.who, &format!("/vms/{vmid}"), &["Permissions.Modify", "VM.Allocate"])?;
    let owner = world.access.pools.iter().find(|(_, pool)| pool.guests.contains(&vmid)).map(|(owner, _)| owner.as_str());
    match owner {
        Some(owner) if owner == name => {
            if call.flag("delete") {
                Ok(())
            } else {
                refused(format!("VM {vmid} is already a pool member"))
            }
        }
        _ if call.flag("delete") => refused(format!("VM {vmid} is not a pool member")),
        Some(owner) if call.flag("allow-move") => world.access.need(&call.who, &format!("/pool/{owner}"), "Pool.Allocate"),
        Some(owner) => {
            let way_out = if world.flavour.major() >= 8 { " and allow-move is not set" } else { "" };
            refused(format!("VM {vmid} belongs already to pool '{owner}'{way_out}"))
        }
        None => Ok(()),
    }
}

/// A storage can be in many pools.
fn may_change_storage(world: &World, call: &Call, name: &str, storage: &str) -> Result<(), Fail> {
    world.access.need_any(&call.who, &format!("/storage/{storage}"), &["Permissions.Modify", "Datastore.Allocate"])?;
    let member = world.access.pools.get(name).is_some_and(|pool| pool.storages.contains(storage));
    match (member, call.flag("delete")) {
        (true, false) => refused(format!("Storage '{storage}' is already a pool member")),
        (false, true) => refused(format!("Storage '{storage}' is not a pool member")),
        _ => Ok(()),
    }
}

/// Only an empty pool can go; members that no longer exist do not count.
fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "delete pool")?;
    let (name, pool) = named(world, call)?;
    let not_empty = |content: String| Err(Fail::died(format!("delete pool failed: pool '{name}' is not empty (contains {content})")));
    if let Some(vmid) = pool.guests.iter().find(|vmid| world.guests.contains_key(vmid)) {
        return not_empty(format!("VM {vmid}"));
    }
    if let Some(storage) = pool.storages.iter().find(|storage| world.storages.all.contains_key(*storage)) {
        return not_empty(format!("storage '{storage}'"));
    }
    let name = name.clone();
    world.access.pools.remove(&name);
    world.access.grants.retain(|grant| grant.path != format!("/pool/{name}"));
    Ok(Data::null())
}
