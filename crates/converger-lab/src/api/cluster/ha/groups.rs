//! `/cluster/ha/groups`: which nodes guests may run on. Release 9 replaces groups by rules and
//! rejects these calls.
//!
//! What the HA manager does with them is in `crate::ha`.

use serde_json::{Value, json};

use super::{after_deletions, parse_settings, settings_json};
use crate::api::{ApiCall, require_quorum};
use crate::response::{ApiData, ApiError};
use crate::sections::MODIFIED_TEXT;
use crate::world::World;

const NUMBERS: &[&str] = &["nofailback", "restricted"];

/// Parameters that are not settings.
const CONTROL_PARAMETERS: &[&str] = &["group", "type", "digest", "delete"];

fn check_groups_supported(world: &World, what: &str) -> Result<(), ApiError> {
    if world.flavour.major() < 9 {
        return Ok(());
    }
    Err(ApiError::internal_error(format!("cannot {what}: ha groups have been migrated to rules")))
}

fn group_name(call: &ApiCall) -> &str {
    call.param("group").unwrap_or_default()
}

fn missing_group_text(name: &str) -> String {
    format!("no such ha group '{name}'")
}

fn group_json(world: &World, name: &str) -> Option<Value> {
    let mut fields = settings_json(world.ha.groups.get(name)?, NUMBERS);
    fields["group"] = json!(name);
    fields["type"] = json!("group");
    fields["digest"] = json!(world.ha.groups.digest());
    Some(fields)
}

pub(in crate::api::cluster) fn list(world: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    check_groups_supported(world, "index groups")?;
    let entries: Vec<Value> = world.ha.groups.iter().filter_map(|(_, name, _)| group_json(world, name)).collect();
    Ok(json!(entries).into())
}

pub(in crate::api::cluster) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_groups_supported(world, "read group")?;
    group_json(world, group_name(call)).map(ApiData::from).ok_or_else(|| ApiError::internal_error(missing_group_text(group_name(call))))
}

pub(in crate::api::cluster) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_groups_supported(world, "create group")?;
    require_quorum(world, &call.node)?;
    let name = group_name(call);
    if world.ha.groups.get(name).is_some() {
        return Err(ApiError::internal_error(format!("create ha group failed: ha group ID '{name}' already defined")));
    }
    world.ha.groups.put(name, parse_settings(call, CONTROL_PARAMETERS));
    Ok(ApiData::null())
}

pub(in crate::api::cluster) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_groups_supported(world, "update group")?;
    let failed = |why: String| ApiError::internal_error(format!("update ha group failed: {why}"));
    require_quorum(world, &call.node)?;
    if call.param("digest").is_some_and(|digest| digest != world.ha.groups.digest()) {
        return Err(failed(MODIFIED_TEXT.to_owned()));
    }
    let Some(settings) = world.ha.groups.get(group_name(call)) else { return Err(failed(missing_group_text(group_name(call)))) };
    let mut settings = settings.clone();
    settings.extend(parse_settings(call, CONTROL_PARAMETERS));
    let settings = after_deletions(call, settings, &["nodes"]).map_err(failed)?;
    world.ha.groups.put(group_name(call), settings);
    Ok(ApiData::null())
}

/// Deletes a group. A group in use stays; deleting one that does not exist is not an error.
pub(in crate::api::cluster) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_groups_supported(world, "delete group")?;
    require_quorum(world, &call.node)?;
    let name = group_name(call);
    let used = world.ha.iter().find(|(_, resource)| resource.settings.get("group").is_some_and(|group| group == name));
    if let Some((sid, _)) = used {
        return Err(ApiError::internal_error(format!("delete ha group failed: ha group is used by service '{sid}'")));
    }
    world.ha.groups.remove(name);
    Ok(ApiData::null())
}
