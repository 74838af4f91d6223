//! `/access/groups`.
//!
//! What a group may do is in `crate::access`.

use serde_json::{Value, json};

use crate::access::{Grantee, UserGroup};
use crate::api::ApiCall;
use crate::api::pools::require_cluster_lock;
use crate::response::{ApiData, ApiError};
use crate::world::World;

/// Any of these privileges on a group makes it visible.
const VIEW_PRIVILEGES: &[&str] = &["User.Modify", "Sys.Audit", "Group.Allocate"];

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let seen = |name: &str| world.access.require_any_privilege(&call.caller, &format!("/access/groups/{name}"), VIEW_PRIVILEGES).is_ok();
    let entry = |(name, group): (&String, &UserGroup)| {
        let users = group.members.iter().cloned().collect::<Vec<_>>().join(",");
        with_comment(json!({ "groupid": name, "users": users }), group)
    };
    Ok(json!(world.access.groups.iter().filter(|(name, _)| seen(name)).map(entry).collect::<Vec<_>>()).into())
}

fn with_comment(mut entry: Value, group: &UserGroup) -> Value {
    if let Some(comment) = &group.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn group_name(call: &ApiCall) -> &str {
    call.param("groupid").unwrap_or_default()
}

fn missing_group_text(name: &str) -> String {
    format!("group '{name}' does not exist")
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let Some(group) = world.access.groups.get(group_name(call)) else {
        return Err(ApiError::internal_error(missing_group_text(group_name(call))));
    };
    Ok(with_comment(json!({ "members": group.members }), group).into())
}

pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_cluster_lock(world, call, "create group")?;
    let name = group_name(call).to_owned();
    if world.access.groups.contains_key(&name) {
        return Err(ApiError::internal_error(format!("create group failed: group '{name}' already exists")));
    }
    let comment = call.param("comment").filter(|comment| !comment.is_empty()).map(str::to_owned);
    world.access.groups.insert(name, UserGroup { comment, ..UserGroup::default() });
    Ok(ApiData::null())
}

pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_cluster_lock(world, call, "update group")?;
    let name = group_name(call);
    let Some(group) = world.access.groups.get_mut(name) else {
        return Err(ApiError::internal_error(format!("update group failed: {}", missing_group_text(name))));
    };
    if let Some(comment) = call.param("comment") {
        group.comment = Some(comment.to_owned());
    }
    Ok(ApiData::null())
}

/// Deletes a group and all its access control entries.
pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_cluster_lock(world, call, "delete group")?;
    let name = group_name(call);
    if world.access.groups.remove(name).is_none() {
        return Err(ApiError::internal_error(format!("delete group failed: {}", missing_group_text(name))));
    }
    world.access.grants.retain(|grant| grant.grantee != Grantee::Group(name.to_owned()));
    Ok(ApiData::null())
}
