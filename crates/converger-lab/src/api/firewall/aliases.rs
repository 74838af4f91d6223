//! Firewall aliases: names for addresses. Lookup ignores case.
//!
//! Must not depend on the rules that use them.

use serde_json::{Value, json};

use super::{check_digest, find_firewall, firewall_mut, parse_comment, with_comment};
use crate::api::{ApiCall, require_quorum};
use crate::firewall::{FirewallAlias, content_digest};
use crate::response::{ApiData, ApiError};
use crate::world::World;

fn alias_json(alias: &FirewallAlias) -> Value {
    let version = if alias.cidr.contains(':') { 6 } else { 4 };
    with_comment(json!({ "name": alias.name, "cidr": alias.cidr, "ipversion": version }), alias.comment.as_deref())
}

fn alias_key(call: &ApiCall) -> String {
    call.param("name").unwrap_or_default().to_lowercase()
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let aliases = &find_firewall(world, call).aliases;
    let digest = content_digest(aliases);
    let row = |alias: &FirewallAlias| {
        let mut entry = alias_json(alias);
        entry["digest"] = json!(digest);
        entry
    };
    Ok(json!(aliases.values().map(row).collect::<Vec<_>>()).into())
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let found = find_firewall(world, call).aliases.get(&alias_key(call)).map(alias_json);
    found.map(ApiData::from).ok_or_else(|| ApiError::parameter_error("name", "no such alias"))
}

fn parse_alias(call: &ApiCall) -> FirewallAlias {
    let text = |name: &str| call.param(name).unwrap_or_default().to_owned();
    FirewallAlias { name: text("name"), cidr: text("cidr"), comment: parse_comment(call) }
}

fn alias_exists_error(name: &str) -> ApiError {
    ApiError::parameter_error("name", format!("alias '{name}' already exists"))
}

pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    if find_firewall(world, call).aliases.contains_key(&alias_key(call)) {
        return Err(alias_exists_error(call.param("name").unwrap_or_default()));
    }
    require_quorum(world, &call.node)?;
    firewall_mut(world, call).aliases.insert(alias_key(call), parse_alias(call));
    Ok(ApiData::null())
}

/// Replaces all fields: a comment that the request omits is removed.
pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_digest(world, call, &content_digest(&find_firewall(world, call).aliases))?;
    let aliases = &find_firewall(world, call).aliases;
    if !aliases.contains_key(&alias_key(call)) {
        return Err(ApiError::parameter_error("name", "no such alias"));
    }
    let mut alias = parse_alias(call);
    let mut new_key = alias_key(call);
    if let Some(rename) = call.param("rename").filter(|rename| rename.to_lowercase() != alias_key(call)) {
        if aliases.contains_key(&rename.to_lowercase()) {
            return Err(alias_exists_error(rename));
        }
        rename.clone_into(&mut alias.name);
        new_key = rename.to_lowercase();
    }
    let aliases = &mut firewall_mut(world, call).aliases;
    aliases.remove(&alias_key(call));
    aliases.insert(new_key, alias);
    Ok(ApiData::null())
}

/// Deletes an alias. Deleting one that does not exist is not an error.
pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_digest(world, call, &content_digest(&find_firewall(world, call).aliases))?;
    firewall_mut(world, call).aliases.remove(&alias_key(call));
    Ok(ApiData::null())
}
