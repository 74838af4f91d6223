//! `/pools`.
//!
//! What a role on a pool grants is in `crate::access`.

use serde_json::{Value, json};

use super::{ApiCall, ApiRoute, cluster, storage};
use crate::access::ResourcePool;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/pools", list),
    ("POST", "/pools", create),
    ("PUT", "/pools", update),
    ("DELETE", "/pools", delete),
    ("GET", "/pools/{poolid}", read),
    ("PUT", "/pools/{poolid}", update),
    ("DELETE", "/pools/{poolid}", delete),
];

/// How long a request waits for the cluster lock without quorum.
pub(super) const NO_QUORUM_DELAY_MS: u64 = 9_900;

/// Fails without quorum: writes to users, pools and permissions take a cluster-wide lock.
pub(super) fn require_cluster_lock(world: &World, call: &ApiCall, what: &str) -> Result<(), ApiError> {
    if world.is_quorate(&call.node) {
        return Ok(());
    }
    Err(ApiError::Died(format!("{what} failed: cfs-lock 'file-user_cfg' error: no quorum!"), NO_QUORUM_DELAY_MS))
}

fn find_pool<'a>(world: &'a World, call: &ApiCall) -> Result<(&'a String, &'a ResourcePool), ApiError> {
    let name = call.param("poolid").unwrap_or_default();
    let found = world.access.pools.get_key_value(name);
    found.ok_or_else(|| ApiError::internal_error(format!("pool '{name}' does not exist")))
}

fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    if call.param("poolid").is_some() {
        let (name, pool) = find_pool(world, call)?;
        world.access.require_privilege(&call.caller, &format!("/pool/{name}"), "Pool.Audit")?;
        let mut entry = members_json(world, call, pool);
        entry["poolid"] = json!(name);
        return Ok(json!([entry]).into());
    }
    let seen =
        world.access.pools.iter().filter(|(name, _)| world.access.has_privilege(&call.caller, &format!("/pool/{name}"), "Pool.Audit"));
    let entries: Vec<Value> = seen.map(|(name, pool)| pool_json(name, pool)).collect();
    Ok(json!(entries).into())
}

fn pool_json(name: &str, pool: &ResourcePool) -> Value {
    let mut entry = json!({ "poolid": name });
    if let Some(comment) = &pool.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

/// All members, without regard to the caller's permissions: guests without tags and locks, then each storage once.
fn members_json(world: &World, call: &ApiCall, pool: &ResourcePool) -> Value {
    let wanted = |kind: &str| call.param("type").is_none_or(|wanted| wanted == kind);
    let guests = pool.guests.iter().filter_map(|vmid| world.guests.get(vmid)).filter(|guest| wanted(guest.kind.name()));
    let view = world.views.view_of(&call.entry);
    let row = |guest| {
        let mut json = Vec::new();
        cluster::write_guest_row(world, view, guest, None, &mut json);
        serde_json::from_slice::<Value>(&json).unwrap_or_default()
    };
    let guests = guests.map(|guest| without_keys(row(guest), &["tags", "lock", "hastate"]));
    let storages = pool.storages.iter().filter(|_| wanted("storage")).filter_map(|name| storage::pool_member_row(world, call, name));
    let mut entry = json!({ "members": guests.chain(storages).collect::<Vec<Value>>() });
    if let Some(comment) = &pool.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn without_keys(mut row: Value, keys: &[&str]) -> Value {
    if let Value::Object(fields) = &mut row {
        fields.retain(|key, _| !keys.contains(&key.as_str()));
    }
    row
}

fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (name, pool) = find_pool(world, call)?;
    let mut entry = members_json(world, call, pool);
    entry["poolid"] = json!(name);
    Ok(entry.into())
}

fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_cluster_lock(world, call, "create pool")?;
    let name = call.param("poolid").unwrap_or_default();
    if world.access.pools.contains_key(name) {
        return Err(ApiError::internal_error(format!("create pool failed: pool '{name}' already exists")));
    }
    let pool = ResourcePool { comment: call.param("comment").map(str::to_owned), ..ResourcePool::default() };
    world.access.pools.insert(name.to_owned(), pool);
    Ok(ApiData::null())
}

fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_cluster_lock(world, call, "update pools")?;
    let name = find_pool(world, call)?.0.clone();
    let list_param = |key: &str| -> Vec<String> { call.param(key).map(split_list).into_iter().flatten().map(str::to_owned).collect() };
    let ids: Vec<u32> = list_param("vms").iter().filter_map(|id| id.parse().ok()).collect();
    let storages = list_param("storage");
    let remove = call.is_set("delete");
    for vmid in &ids {
        check_may_change_guest(world, call, &name, *vmid)?;
    }
    for storage in &storages {
        check_may_change_storage(world, call, &name, storage)?;
    }
    if call.is_set("allow-move") {
        world.access.pools.values_mut().for_each(|pool| pool.guests.retain(|vmid| !ids.contains(vmid)));
    }
    let Some(pool) = world.access.pools.get_mut(&name) else { return Ok(ApiData::null()) };
    pool.guests.retain(|vmid| !ids.contains(vmid));
    pool.storages.retain(|storage| !storages.contains(storage));
    if !remove {
        pool.guests.extend(ids);
        pool.storages.extend(storages);
    }
    if let Some(comment) = call.param("comment") {
        pool.comment = Some(comment.to_owned());
    }
    Ok(ApiData::null())
}

fn update_refused<T>(why: impl std::fmt::Display) -> Result<T, ApiError> {
    Err(ApiError::internal_error(format!("update pools failed: {why}")))
}

fn check_may_change_guest(world: &World, call: &ApiCall, name: &str, vmid: u32) -> Result<(), ApiError> {
    world.access.require_any_privilege(&call.caller, &format!("/vms/{vmid}"), &["Permissions.Modify", "VM.Allocate"])?;
    let owner = world.access.pools.iter().find(|(_, pool)| pool.guests.contains(&vmid)).map(|(owner, _)| owner.as_str());
    match owner {
        Some(owner) if owner == name => {
            if call.is_set("delete") {
                Ok(())
            } else {
                update_refused(format!("VM {vmid} is already a pool member"))
            }
        }
        _ if call.is_set("delete") => update_refused(format!("VM {vmid} is not a pool member")),
        Some(owner) if call.is_set("allow-move") => {
            world.access.require_privilege(&call.caller, &format!("/pool/{owner}"), "Pool.Allocate")
        }
        Some(owner) => {
            let way_out = if world.flavour.major() >= 8 { " and allow-move is not set" } else { "" };
            update_refused(format!("VM {vmid} belongs already to pool '{owner}'{way_out}"))
        }
        None => Ok(()),
    }
}

/// Unlike a guest, a storage can be in several pools.
fn check_may_change_storage(world: &World, call: &ApiCall, name: &str, storage: &str) -> Result<(), ApiError> {
    world.access.require_any_privilege(&call.caller, &format!("/storage/{storage}"), &["Permissions.Modify", "Datastore.Allocate"])?;
    let member = world.access.pools.get(name).is_some_and(|pool| pool.storages.contains(storage));
    match (member, call.is_set("delete")) {
        (true, false) => update_refused(format!("Storage '{storage}' is already a pool member")),
        (false, true) => update_refused(format!("Storage '{storage}' is not a pool member")),
        _ => Ok(()),
    }
}

/// Deletes a pool if it is empty; members that no longer exist do not count.
fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_cluster_lock(world, call, "delete pool")?;
    let (name, pool) = find_pool(world, call)?;
    let not_empty =
        |content: String| Err(ApiError::internal_error(format!("delete pool failed: pool '{name}' is not empty (contains {content})")));
    if let Some(vmid) = pool.guests.iter().find(|vmid| world.guests.contains_key(vmid)) {
        return not_empty(format!("VM {vmid}"));
    }
    if let Some(storage) = pool.storages.iter().find(|storage| world.storages.all.contains_key(*storage)) {
        return not_empty(format!("storage '{storage}'"));
    }
    let name = name.clone();
    world.access.pools.remove(&name);
    world.access.grants.retain(|grant| grant.path != format!("/pool/{name}"));
    Ok(ApiData::null())
}
