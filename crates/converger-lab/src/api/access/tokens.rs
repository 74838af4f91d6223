//! `/access/users/{userid}/token`.
//!
//! Authentication with a token is in `crate::access`.

use serde_json::{Map, Value, json};

use super::users;
use crate::access::{Grantee, LabToken};
use crate::api::ApiCall;
use crate::api::pools::require_cluster_lock;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::world::World;

pub(super) fn missing_token_text(user: &str, token: &str) -> String {
    format!("no such token '{token}' for user '{user}'")
}

fn token_json(token: &LabToken) -> Value {
    let mut entry = json!({ "privsep": u8::from(token.privilege_separated), "expire": token.expire_s });
    if let Some(comment) = &token.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn tokens_of_user<'a>(world: &'a World, user: &str) -> impl Iterator<Item = (&'a str, &'a LabToken)> {
    let prefix = format!("{user}!");
    world.access.tokens.iter().filter_map(move |(id, token)| id.strip_prefix(&prefix).map(|name| (name, token)))
}

/// The tokens of a user as a list.
pub(super) fn token_rows(world: &World, user: &str) -> Vec<Value> {
    let row = |(name, token): (&str, &LabToken)| {
        let mut entry = token_json(token);
        entry["tokenid"] = json!(name);
        entry
    };
    tokens_of_user(world, user).map(row).collect()
}

/// The tokens of a user by name.
pub(super) fn tokens_by_name(world: &World, user: &str) -> Map<String, Value> {
    tokens_of_user(world, user).map(|(name, token)| (name.to_owned(), token_json(token))).collect()
}

fn user_and_token_names(call: &ApiCall) -> (&str, &str) {
    let text = |name: &str| call.param(name).unwrap_or_default();
    (text("userid"), text("tokenid"))
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (user, _) = user_and_token_names(call);
    if !world.access.users.contains_key(user) {
        return Err(ApiError::internal_error(users::missing_user_text(user)));
    }
    Ok(json!(token_rows(world, user)).into())
}

fn find_token<'a>(world: &'a mut World, call: &ApiCall) -> Result<(String, &'a mut LabToken), ApiError> {
    let (user, token) = user_and_token_names(call);
    if !world.access.users.contains_key(user) {
        return Err(ApiError::internal_error(users::missing_user_text(user)));
    }
    let id = format!("{user}!{token}");
    let found = world.access.tokens.get_mut(&id);
    found.map(|found| (id, found)).ok_or_else(|| ApiError::internal_error(missing_token_text(user, token)))
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(token_json(find_token(world, call)?.1).into())
}

/// Creates a token. Only this response contains its secret.
pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (user, name) = user_and_token_names(call);
    if !world.access.users.contains_key(user) {
        return Err(ApiError::internal_error(users::missing_user_text(user)));
    }
    let id = format!("{user}!{name}");
    if world.access.tokens.contains_key(&id) {
        return Err(ApiError::parameter_error("tokenid", "Token already exists."));
    }
    require_cluster_lock(world, call, "generating token")?;
    let secret = world.random.new_uuid();
    let separated = call.param("privsep") != Some("0");
    let expire_s = call.number_param("expire").unwrap_or(0);
    let comment = call.param("comment").map(str::to_owned);
    let token = LabToken { comment, ..LabToken::new(&id, secret.clone(), separated, expire_s) };
    let info = token_json(&token);
    world.access.tokens.insert(id.clone(), token);
    Ok(json!({ "full-tokenid": id, "value": secret, "info": info }).into())
}

/// Updates a token. Since release 9 it can also generate a new secret, which only this response contains.
pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    find_token(world, call)?;
    require_cluster_lock(world, call, "updating token info")?;
    let secret = call.is_set("regenerate").then(|| world.random.new_uuid());
    let (id, token) = find_token(world, call)?;
    token.privilege_separated = call.param("privsep").map_or(token.privilege_separated, |text| text == "1");
    token.expire_s = call.number_param("expire").unwrap_or(token.expire_s);
    if let Some(comment) = call.param("comment") {
        token.comment = Some(comment.to_owned());
    }
    for key in call.param("delete").map(split_list).into_iter().flatten() {
        match key {
            "comment" => token.comment = None,
            "expire" => token.expire_s = 0,
            "privsep" => token.privilege_separated = true,
            _ => {}
        }
    }
    let mut token_fields = token_json(token);
    if let Some(secret) = secret {
        token.secret.clone_from(&secret);
        token_fields["full-tokenid"] = json!(id);
        token_fields["value"] = json!(secret);
    }
    Ok(token_fields.into())
}

pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let id = find_token(world, call)?.0;
    require_cluster_lock(world, call, "deleting token")?;
    world.access.tokens.remove(&id);
    world.access.grants.retain(|grant| grant.grantee != Grantee::Token(id.clone()));
    Ok(ApiData::null())
}
