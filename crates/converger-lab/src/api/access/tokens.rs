//! `/access/users/{userid}/token`.
//!
//! What never enters here: who is let in with a token (see `crate::access`).

use serde_json::{Map, Value, json};

use super::users;
use crate::access::{Grantee, Token};
use crate::api::Call;
use crate::api::pools::need_lock;
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::world::World;

pub(super) fn missing(user: &str, token: &str) -> String {
    format!("no such token '{token}' for user '{user}'")
}

fn entry(token: &Token) -> Value {
    let mut entry = json!({ "privsep": u8::from(token.separated), "expire": token.expire_s });
    if let Some(comment) = &token.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn of<'a>(world: &'a World, user: &str) -> impl Iterator<Item = (&'a str, &'a Token)> {
    let prefix = format!("{user}!");
    world.access.tokens.iter().filter_map(move |(id, token)| id.strip_prefix(&prefix).map(|name| (name, token)))
}

/// The tokens of a user as a list.
pub(super) fn rows(world: &World, user: &str) -> Vec<Value> {
    let row = |(name, token): (&str, &Token)| {
        let mut entry = entry(token);
        entry["tokenid"] = json!(name);
        entry
    };
    of(world, user).map(row).collect()
}

/// The tokens of a user by their names.
pub(super) fn by_name(world: &World, user: &str) -> Map<String, Value> {
    of(world, user).map(|(name, token)| (name.to_owned(), entry(token))).collect()
}

fn names(call: &Call) -> (&str, &str) {
    let text = |name: &str| call.text(name).unwrap_or_default();
    (text("userid"), text("tokenid"))
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (user, _) = names(call);
    if !world.access.users.contains_key(user) {
        return Err(Fail::died(users::missing(user)));
    }
    Ok(json!(rows(world, user)).into())
}

fn named<'a>(world: &'a mut World, call: &Call) -> Result<(String, &'a mut Token), Fail> {
    let (user, token) = names(call);
    if !world.access.users.contains_key(user) {
        return Err(Fail::died(users::missing(user)));
    }
    let id = format!("{user}!{token}");
    let found = world.access.tokens.get_mut(&id);
    found.map(|found| (id, found)).ok_or_else(|| Fail::died(missing(user, token)))
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    Ok(entry(named(world, call)?.1).into())
}

/// The secret is shown once, here.
pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (user, name) = names(call);
    if !world.access.users.contains_key(user) {
        return Err(Fail::died(users::missing(user)));
    }
    let id = format!("{user}!{name}");
    if world.access.tokens.contains_key(&id) {
        return Err(Fail::param("tokenid", "Token already exists."));
    }
    need_lock(world, call, "generating token")?;
    let secret = world.random.uuid();
    let separated = call.text("privsep") != Some("0");
    let expire_s = call.number("expire").unwrap_or(0);
    let comment = call.text("comment").map(str::to_owned);
    let token = Token { comment, ..Token::new(&id, secret.clone(), separated, expire_s) };
    let info = entry(&token);
    world.access.tokens.insert(id.clone(), token);
    Ok(json!({ "full-tokenid": id, "value": secret, "info": info }).into())
}

/// Since 9 also a new secret, which is shown once.
pub(super) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    named(world, call)?;
    need_lock(world, call, "updating token info")?;
    let secret = call.flag("regenerate").then(|| world.random.uuid());
    let (id, token) = named(world, call)?;
    token.separated = call.text("privsep").map_or(token.separated, |text| text == "1");
    token.expire_s = call.number("expire").unwrap_or(token.expire_s);
    if let Some(comment) = call.text("comment") {
        token.comment = Some(comment.to_owned());
    }
    for key in call.text("delete").map(split_list).into_iter().flatten() {
        match key {
            "comment" => token.comment = None,
            "expire" => token.expire_s = 0,
            "privsep" => token.separated = true,
            _ => {}
        }
    }
    let mut shown = entry(token);
    if let Some(secret) = secret {
        token.secret.clone_from(&secret);
        shown["full-tokenid"] = json!(id);
        shown["value"] = json!(secret);
    }
    Ok(shown.into())
}

pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let id = named(world, call)?.0;
    need_lock(world, call, "deleting token")?;
    world.access.tokens.remove(&id);
    world.access.grants.retain(|grant| grant.grantee != Grantee::Token(id.clone()));
    Ok(Data::null())
}
