//! Security groups of the cluster. Their rules are in `rules`.
//!
//! Must not depend on the rules that refer to a group.

use serde_json::json;

use super::{check_digest, find_firewall, firewall_mut, parse_comment, with_comment};
use crate::api::{ApiCall, require_quorum};
use crate::firewall::{SecurityGroup, content_digest};
use crate::response::{ApiData, ApiError};
use crate::world::World;

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let groups = &find_firewall(world, call).groups;
    let digest = content_digest(groups);
    let row = |(name, group): (&String, &SecurityGroup)| with_comment(json!({ "group": name, "digest": digest }), group.comment.as_deref());
    Ok(json!(groups.iter().map(row).collect::<Vec<_>>()).into())
}

fn group_name(call: &ApiCall) -> &str {
    call.param("group").unwrap_or_default()
}

/// Creates a group. With `rename`, changes the name or the comment of an existing one.
pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let groups = &find_firewall(world, call).groups;
    check_digest(world, call, &content_digest(groups))?;
    let (new, old) = (group_name(call).to_owned(), call.param("rename").map(str::to_owned));
    if groups.contains_key(&new) && old.as_ref() != Some(&new) {
        return Err(ApiError::parameter_error("group", format!("Security group '{new}' already exists")));
    }
    let mut group = match &old {
        None => SecurityGroup::default(),
        Some(old) => {
            let missing = || ApiError::parameter_error("group", format!("Security group '{old}' does not exist"));
            groups.get(old).cloned().ok_or_else(missing)?
        }
    };
    group.comment = parse_comment(call).or(group.comment);
    let groups = &mut firewall_mut(world, call).groups;
    groups.retain(|name, _| old.as_ref() != Some(name));
    groups.insert(new, group);
    Ok(ApiData::null())
}

pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = group_name(call);
    let Some(group) = find_firewall(world, call).groups.get(name) else {
        return Err(ApiError::internal_error(format!("no such security group '{name}'")));
    };
    if !group.rules.is_empty() {
        return Err(ApiError::internal_error(format!("Security group '{name}' is not empty")));
    }
    require_quorum(world, &call.node)?;
    firewall_mut(world, call).groups.remove(name);
    Ok(ApiData::null())
}
