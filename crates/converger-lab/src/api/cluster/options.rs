//! `/cluster/options`: the datacenter's rules for tags.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::ApiCall;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::world::World;

/// Without `Sys.Audit` on `/`, only the tag style is visible.
pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let mut options = world.options.shown();
    if !world.access.has_privilege(&call.caller, "/", "Sys.Audit") {
        options.retain(|key, _| key == "tag-style");
    }
    let seen = world.tags_seen_by(&call.caller);
    let is_privileged = world.access.has_privilege(&call.caller, "/", "Sys.Modify");
    options.insert("allowed-tags".to_owned(), json!(world.options.offered(&seen, is_privileged)));
    Ok(Value::Object(options).into())
}

pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    crate::api::require_quorum(world, &call.entry)?;
    for key in call.param("delete").map(|text| split_list(text).collect::<BTreeSet<_>>()).unwrap_or_default() {
        world.options.remove(key);
    }
    for (key, value) in call.values.iter().filter(|(key, _)| key != "delete") {
        world.options.set(key, value).map_err(|text| ApiError::parameter_error(key, text))?;
    }
    Ok(ApiData::null())
}
