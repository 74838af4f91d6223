//! `/access/roles`.
//!
//! The built-in roles are in `crate::access`.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::access::is_built_in_role;
use crate::api::ApiCall;
use crate::api::pools::require_cluster_lock;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::world::World;

pub(super) fn list(world: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    let privileges = |held: &BTreeSet<String>| held.iter().cloned().collect::<Vec<_>>().join(",");
    let entry = |(role, held): (&String, &Arc<BTreeSet<String>>)| json!({ "roleid": role, "privs": privileges(held), "special": u8::from(is_built_in_role(role)) });
    Ok(json!(world.access.roles.iter().map(entry).collect::<Vec<_>>()).into())
}

fn role_name(call: &ApiCall) -> &str {
    call.param("roleid").unwrap_or_default()
}

fn missing_role_text(name: &str) -> String {
    format!("role '{name}' does not exist")
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = role_name(call);
    let Some(held) = world.access.roles.get(name) else { return Err(ApiError::internal_error(missing_role_text(name))) };
    let entries: Map<String, Value> = held.iter().map(|privilege| (privilege.clone(), json!(1))).collect();
    Ok(Value::Object(entries).into())
}

/// The requested privileges; each must exist in this release.
fn parse_privileges(world: &World, call: &ApiCall) -> Result<BTreeSet<String>, String> {
    let known = world.access.roles.get("Administrator");
    let items = call.param("privs").map(split_list).into_iter().flatten();
    let checked = items.map(|privilege| match known.is_some_and(|known| known.contains(privilege)) {
        true => Ok(privilege.to_owned()),
        false => Err(format!("invalid privilege '{privilege}'")),
    });
    checked.collect()
}

pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = role_name(call).to_owned();
    // Since release 8, names with this prefix are reserved for future built-in roles.
    if name.to_ascii_lowercase().starts_with("pve") && world.flavour.major() >= 8 {
        return Err(ApiError::parameter_error("roleid", "cannot use role ID starting with the (case-insensitive) 'PVE' namespace"));
    }
    let failed = |why: String| ApiError::internal_error(format!("create role failed: {why}"));
    require_cluster_lock(world, call, "create role")?;
    if world.access.roles.contains_key(&name) {
        return Err(failed(format!("role '{name}' already exists")));
    }
    let privileges = parse_privileges(world, call).map_err(failed)?;
    Arc::make_mut(&mut world.access.roles).insert(name, privileges.into());
    Ok(ApiData::null())
}

pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = role_name(call).to_owned();
    if is_built_in_role(&name) {
        return Err(ApiError::internal_error(format!("auto-generated role '{name}' cannot be modified")));
    }
    require_cluster_lock(world, call, "update role")?;
    let failed = |why: String| ApiError::internal_error(format!("update role failed: {why}"));
    let requested = parse_privileges(world, call).map_err(failed);
    let Some(held) = Arc::make_mut(&mut world.access.roles).get_mut(&name) else { return Err(failed(missing_role_text(&name))) };
    let mut privileges = requested?;
    if call.is_set("append") {
        privileges.extend(held.iter().cloned());
    }
    *held = privileges.into();
    Ok(ApiData::null())
}

/// Deletes a role. Access control entries that grant it stay and have no effect.
pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = role_name(call);
    if is_built_in_role(name) {
        return Err(ApiError::internal_error(format!("auto-generated role '{name}' cannot be deleted")));
    }
    require_cluster_lock(world, call, "delete role")?;
    match Arc::make_mut(&mut world.access.roles).remove(name) {
        Some(_) => Ok(ApiData::null()),
        None => Err(ApiError::internal_error(format!("delete role failed: {}", missing_role_text(name)))),
    }
}
