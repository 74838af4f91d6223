//! `/access/users` and `/access/password`.
//!
//! Tickets and tokens have modules of their own.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::tokens;
use crate::access::{Grantee, LabUser, ROOT};
use crate::api::ApiCall;
use crate::api::pools::require_cluster_lock;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::world::World;

/// Personal details of a user.
const DETAIL_KEYS: &[&str] = &["firstname", "lastname", "email", "comment", "keys"];

fn user_id(call: &ApiCall) -> &str {
    call.param("userid").unwrap_or_default()
}

pub(super) fn missing_user_text(id: &str) -> String {
    format!("no such user ('{id}')")
}

/// Details that were never set are absent; `enable` and `expire` are always present.
fn user_json(user: &LabUser) -> Map<String, Value> {
    let mut fields: Map<String, Value> = user.details.iter().map(|(key, text)| (key.clone(), json!(text))).collect();
    fields.insert("enable".to_owned(), json!(u8::from(user.enabled)));
    fields.insert("expire".to_owned(), json!(user.expire_s));
    fields
}

fn groups_of<'a>(world: &'a World, id: &'a str) -> impl Iterator<Item = &'a String> {
    world.access.groups.iter().filter(move |(_, group)| group.members.contains(id)).map(|(name, _)| name)
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let audit = world.access.require_any_privilege(&call.caller, "/access/groups", &["User.Modify", "Sys.Audit"]).is_ok();
    let seen = world.access.users.iter().filter(|(id, _)| audit || **id == call.caller.user);
    let wanted = |user: &LabUser| call.param("enabled").is_none_or(|text| (text == "1") == user.enabled);
    let rows = seen.filter(|(_, user)| wanted(user)).map(|(id, user)| user_row(world, call, id, user));
    Ok(json!(rows.collect::<Vec<_>>()).into())
}

fn user_row(world: &World, call: &ApiCall, id: &str, user: &LabUser) -> Value {
    let mut fields = user_json(user);
    fields.insert("userid".to_owned(), json!(id));
    fields.insert("realm-type".to_owned(), json!(id.rsplit('@').next().unwrap_or_default()));
    if call.is_set("full") {
        fields.insert("groups".to_owned(), json!(groups_of(world, id).cloned().collect::<Vec<_>>().join(",")));
        fields.insert("tokens".to_owned(), json!(tokens::token_rows(world, id)));
    }
    Value::Object(fields)
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let id = user_id(call);
    let Some(user) = world.access.users.get(id) else { return Err(ApiError::internal_error(missing_user_text(id))) };
    let mut fields = user_json(user);
    fields.insert("groups".to_owned(), json!(groups_of(world, id).collect::<Vec<_>>()));
    let tokens = tokens::tokens_by_name(world, id);
    if !tokens.is_empty() {
        fields.insert("tokens".to_owned(), Value::Object(tokens));
    }
    Ok(Value::Object(fields).into())
}

/// The requested groups; each must exist.
fn parse_groups(world: &World, call: &ApiCall) -> Result<BTreeSet<String>, String> {
    let items = call.param("groups").map(split_list).into_iter().flatten();
    let checked = items.map(|name| match world.access.groups.contains_key(name) {
        true => Ok(name.to_owned()),
        false => Err(format!("no such group '{name}'")),
    });
    checked.collect()
}

fn join_groups(world: &mut World, id: &str, groups: &BTreeSet<String>) {
    for (_, group) in world.access.groups.iter_mut().filter(|(name, _)| groups.contains(*name)) {
        group.members.insert(id.to_owned());
    }
}

fn leave_all_groups(world: &mut World, id: &str) {
    for group in world.access.groups.values_mut() {
        group.members.remove(id);
    }
}

pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let failed = |why: String| ApiError::internal_error(format!("create user failed: {why}"));
    require_cluster_lock(world, call, "create user")?;
    let id = user_id(call).to_owned();
    if world.access.users.contains_key(&id) {
        return Err(failed(format!("user '{id}' already exists")));
    }
    let groups = parse_groups(world, call).map_err(failed)?;
    let text_param = |name: &&str| call.param(name).filter(|text| !text.is_empty()).map(|text| ((*name).to_owned(), text.to_owned()));
    let user = LabUser {
        enabled: call.param("enable") != Some("0"),
        expire_s: call.number_param("expire").unwrap_or(0),
        password: call.param("password").map(str::to_owned),
        details: DETAIL_KEYS.iter().filter_map(text_param).collect(),
    };
    world.access.users.insert(id.clone(), user);
    join_groups(world, &id, &groups);
    Ok(ApiData::null())
}

pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let failed = |why: String| ApiError::internal_error(format!("update user failed: {why}"));
    require_cluster_lock(world, call, "update user")?;
    let id = user_id(call).to_owned();
    let groups = parse_groups(world, call).map_err(failed);
    let Some(user) = world.access.users.get_mut(&id) else { return Err(failed(missing_user_text(&id))) };
    let groups = groups?;
    user.enabled = call.param("enable").map_or(user.enabled, |text| text == "1");
    user.expire_s = call.number_param("expire").unwrap_or(user.expire_s);
    for key in DETAIL_KEYS {
        user.details.extend(call.param(key).map(|text| ((*key).to_owned(), text.to_owned())));
    }
    if call.param("groups").is_some() && !call.is_set("append") {
        leave_all_groups(world, &id);
    }
    join_groups(world, &id, &groups);
    Ok(ApiData::null())
}

/// Deletes a user. Deleting a user that does not exist is not an error.
pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_cluster_lock(world, call, "delete user")?;
    let id = user_id(call);
    leave_all_groups(world, id);
    let tokens = format!("{id}!");
    let access = &mut world.access;
    access.users.remove(id);
    access.tokens.retain(|token, _| !token.starts_with(&tokens));
    access.grants.retain(|grant| match &grant.grantee {
        Grantee::User(user) => user != id,
        Grantee::Token(token) => !token.starts_with(&tokens),
        Grantee::Group(_) => true,
    });
    Ok(ApiData::null())
}

pub(super) fn set_password(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let id = user_id(call);
    if !call.caller.is_root() {
        check_may_set_password(world, call, id)?;
    }
    let Some(user) = world.access.users.get_mut(id) else { return Err(ApiError::internal_error(missing_user_text(id))) };
    user.password = call.param("password").map(str::to_owned);
    Ok(ApiData::null())
}

/// Only root may set root's password. Since release 8 all other callers must confirm with their own password.
fn check_may_set_password(world: &World, call: &ApiCall, id: &str) -> Result<(), ApiError> {
    if id == ROOT {
        return Err(ApiError::Denied(String::new()));
    }
    if world.flavour.major() < 8 {
        return Ok(());
    }
    let own = world.access.users.get(&call.caller.user).and_then(|user| user.password.as_deref());
    match call.param("confirmation-password") {
        None => Err(ApiError::parameter_error("confirmation-password", "password is required to modify user")),
        Some(password) if own == Some(password) => Ok(()),
        Some(_) => Err(ApiError::internal_error("invalid credentials")),
    }
}
