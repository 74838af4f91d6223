//! The permission check that the API schema states for a method.
//!
//! Checks of single keys or storages are in the methods.

use std::borrow::Cow;

use serde_json::Value;

use crate::access::{AccessControl, ApiCaller, ROOT};
use crate::response::ApiError;
use crate::schema::{ApiMethod, GivenParams};
use crate::world::World;

/// Fails unless the caller passes the method's check.
pub(super) fn check_permission(world: &World, caller: &ApiCaller, method: &ApiMethod, params: &GivenParams) -> Result<(), ApiError> {
    // Fast path: most callers have all privileges, and most methods require only privileges that the release has.
    if method.needs_only_known_privileges[world.flavour as usize]
        && world.access.has_built_in_roles(world.flavour)
        && world.access.has_root_privileges(caller)
    {
        return Ok(());
    }
    match &method.permission {
        Value::String(rule) if rule == "all" || rule == "world" => Ok(()),
        Value::Array(items) => check_rule(&world.access, caller, items, params),
        _ if caller.is_root() => Ok(()),
        _ => Err(ApiError::Denied(String::new())),
    }
}

fn check_rule(access: &AccessControl, caller: &ApiCaller, items: &[Value], params: &GivenParams) -> Result<(), ApiError> {
    let text_at = |index: usize| items.get(index).and_then(Value::as_str).unwrap_or_default();
    match text_at(0) {
        "and" => nested_rules(items).try_for_each(|inner| check_rule(access, caller, inner, params)),
        "or" if nested_rules(items).any(|inner| check_rule(access, caller, inner, params).is_ok()) => Ok(()),
        "perm" => check_privileges(access, caller, items, params),
        "perm-modify" => check_may_modify_acl(access, caller, &fill_path(text_at(1), params)),
        "userid-param" if text_at(1) == "self" => check_own_user(caller, params),
        "userid-param" => access.require_privilege(caller, "/access/realm", text_at(1)),
        "userid-group" => access.require_any_privilege(caller, "/access/groups", &json_words(items.get(1))),
        _ => Err(ApiError::Denied(String::new())),
    }
}

fn nested_rules(items: &[Value]) -> impl Iterator<Item = &Vec<Value>> {
    items.iter().skip(1).filter_map(Value::as_array)
}

fn json_words(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn check_privileges(access: &AccessControl, caller: &ApiCaller, items: &[Value], params: &GivenParams) -> Result<(), ApiError> {
    let path = items.get(1).and_then(Value::as_str).unwrap_or_default();
    let privileges = json_words(items.get(2));
    let option = |name: &str| items.iter().position(|item| item.as_str() == Some(name)).and_then(|index| items.get(index + 1));
    if let Some(needed) = option("require_param").and_then(Value::as_str)
        && !params.iter().any(|(name, _)| name == needed)
    {
        return Err(ApiError::Denied(String::new()));
    }
    // A caller with root's privileges has all privileges of the release on every path.
    if access.has_root_privileges(caller) && !privileges.is_empty() && privileges.iter().all(|privilege| access.knows_privilege(privilege))
    {
        return Ok(());
    }
    let path = fill_path(path, params);
    if option("any").is_some() {
        // Of alternative privileges, only those count that the release has.
        let known: Vec<&str> = privileges.iter().copied().filter(|privilege| access.knows_privilege(privilege)).collect();
        return access.require_any_privilege(caller, &path, &known);
    }
    privileges.iter().try_for_each(|privilege| access.require_privilege(caller, &path, privilege))
}

/// Replaces placeholders: `/vms/{vmid}` gets the VMID of the request. Placeholders without a parameter stay.
fn fill_path<'p>(path: &'p str, params: &GivenParams) -> Cow<'p, str> {
    let Some(mut open) = path.find('{') else { return path.into() };
    let (mut filled, mut rest) = (String::with_capacity(path.len()), path);
    while let Some(close) = rest[open..].find('}').map(|close| open + close) {
        let found = params.iter().find(|(name, _)| *name == rest[open + 1..close]);
        filled.push_str(&rest[..open]);
        filled.push_str(&found.map_or(rest[open..=close].into(), |(_, value)| value.to_text()));
        rest = &rest[close + 1..];
        let Some(next) = rest.find('{') else { break };
        open = next;
    }
    filled.push_str(rest);
    filled.into()
}

/// Requires the right to modify permissions, or to allocate objects of that kind.
fn check_may_modify_acl(access: &AccessControl, caller: &ApiCaller, path: &str) -> Result<(), ApiError> {
    let privileges: &[&str] = match path.split('/').nth(1) {
        Some("storage") => &["Permissions.Modify", "Datastore.Allocate"],
        Some("vms") => &["Permissions.Modify", "VM.Allocate"],
        Some("pool") => &["Permissions.Modify", "Pool.Allocate"],
        _ => &["Permissions.Modify"],
    };
    access.require_any_privilege(caller, path, privileges)
}

fn check_own_user(caller: &ApiCaller, params: &GivenParams) -> Result<(), ApiError> {
    let named = params.iter().find(|(name, _)| name == "userid").map(|(_, value)| value.to_text());
    let own = caller.user == ROOT || (caller.token.is_none() && named.as_deref() == Some(caller.user.as_str()));
    if own { Ok(()) } else { Err(ApiError::Denied(String::new())) }
}
