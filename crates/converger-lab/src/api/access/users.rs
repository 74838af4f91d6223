//! `/access/users` and `/access/password`.
//!
//! What never enters here: tickets and tokens.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::tokens;
use crate::access::{Grantee, ROOT, User};
use crate::api::Call;
use crate::api::pools::need_lock;
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::world::World;

/// What is known of a person besides the account.
const DETAILS: &[&str] = &["firstname", "lastname", "email", "comment", "keys"];

fn id(call: &Call) -> &str {
    call.text("userid").unwrap_or_default()
}

pub(super) fn missing(id: &str) -> String {
    format!("no such user ('{id}')")
}

/// Details that were never set are absent; the account's own fields are always there once they were written.
fn entry(user: &User) -> Map<String, Value> {
    let mut fields: Map<String, Value> = user.details.iter().map(|(key, text)| (key.clone(), json!(text))).collect();
    fields.insert("enable".to_owned(), json!(u8::from(user.enabled)));
    fields.insert("expire".to_owned(), json!(user.expire_s));
    fields
}

fn groups_of<'a>(world: &'a World, id: &'a str) -> impl Iterator<Item = &'a String> {
    world.access.groups.iter().filter(move |(_, group)| group.members.contains(id)).map(|(name, _)| name)
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let audit = world.access.need_any(&call.who, "/access/groups", &["User.Modify", "Sys.Audit"]).is_ok();
    let seen = world.access.users.iter().filter(|(id, _)| audit || **id == call.who.user);
    let wanted = |user: &User| call.text("enabled").is_none_or(|text| (text == "1") == user.enabled);
    let rows = seen.filter(|(_, user)| wanted(user)).map(|(id, user)| row(world, call, id, user));
    Ok(json!(rows.collect::<Vec<_>>()).into())
}

fn row(world: &World, call: &Call, id: &str, user: &User) -> Value {
    let mut fields = entry(user);
    fields.insert("userid".to_owned(), json!(id));
    fields.insert("realm-type".to_owned(), json!(id.rsplit('@').next().unwrap_or_default()));
    if call.flag("full") {
        fields.insert("groups".to_owned(), json!(groups_of(world, id).cloned().collect::<Vec<_>>().join(",")));
        fields.insert("tokens".to_owned(), json!(tokens::rows(world, id)));
    }
    Value::Object(fields)
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let id = id(call);
    let Some(user) = world.access.users.get(id) else { return Err(Fail::died(missing(id))) };
    let mut fields = entry(user);
    fields.insert("groups".to_owned(), json!(groups_of(world, id).collect::<Vec<_>>()));
    let tokens = tokens::by_name(world, id);
    if !tokens.is_empty() {
        fields.insert("tokens".to_owned(), Value::Object(tokens));
    }
    Ok(Value::Object(fields).into())
}

/// The groups that are asked for, all of which must exist.
fn asked_groups(world: &World, call: &Call) -> Result<BTreeSet<String>, String> {
    let items = call.text("groups").map(split_list).into_iter().flatten();
    let checked = items.map(|name| match world.access.groups.contains_key(name) {
        true => Ok(name.to_owned()),
        false => Err(format!("no such group '{name}'")),
    });
    checked.collect()
}

fn join(world: &mut World, id: &str, groups: &BTreeSet<String>) {
    for (_, group) in world.access.groups.iter_mut().filter(|(name, _)| groups.contains(*name)) {
        group.members.insert(id.to_owned());
    }
}

fn leave_all(world: &mut World, id: &str) {
    for group in world.access.groups.values_mut() {
        group.members.remove(id);
    }
}

pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let failed = |why: String| Fail::died(format!("create user failed: {why}"));
    need_lock(world, call, "create user")?;
    let id = id(call).to_owned();
    if world.access.users.contains_key(&id) {
        return Err(failed(format!("user '{id}' already exists")));
    }
    let groups = asked_groups(world, call).map_err(failed)?;
    let given = |name: &&str| call.text(name).filter(|text| !text.is_empty()).map(|text| ((*name).to_owned(), text.to_owned()));
    let user = User {
        enabled: call.text("enable") != Some("0"),
        expire_s: call.number("expire").unwrap_or(0),
        password: call.text("password").map(str::to_owned),
        details: DETAILS.iter().filter_map(given).collect(),
    };
    world.access.users.insert(id.clone(), user);
    join(world, &id, &groups);
    Ok(Data::null())
}

pub(super) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let failed = |why: String| Fail::died(format!("update user failed: {why}"));
    need_lock(world, call, "update user")?;
    let id = id(call).to_owned();
    let groups = asked_groups(world, call).map_err(failed);
    let Some(user) = world.access.users.get_mut(&id) else { return Err(failed(missing(&id))) };
    let groups = groups?;
    user.enabled = call.text("enable").map_or(user.enabled, |text| text == "1");
    user.expire_s = call.number("expire").unwrap_or(user.expire_s);
    for key in DETAILS {
        user.details.extend(call.text(key).map(|text| ((*key).to_owned(), text.to_owned())));
    }
    if call.text("groups").is_some() && !call.flag("append") {
        leave_all(world, &id);
    }
    join(world, &id, &groups);
    Ok(Data::null())
}

/// Nobody minds a user who was not there.
pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "delete user")?;
    let id = id(call);
    leave_all(world, id);
    let tokens = format!("{id}!");
    let access = &mut world.access;
    access.users.remove(id);
    access.tokens.retain(|token, _| !token.starts_with(&tokens));
    access.grants.retain(|grant| match &grant.grantee {
        Grantee::User(user) => user != id,
        Grantee::Token(token) => !token.starts_with(&tokens),
        Grantee::Group(_) => true,
    });
    Ok(Data::null())
}

pub(super) fn password(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let id = id(call);
    if !call.who.is_root() {
        may_set_password(world, call, id)?;
    }
    let Some(user) = world.access.users.get_mut(id) else { return Err(Fail::died(missing(id))) };
    user.password = call.text("password").map(str::to_owned);
    Ok(Data::null())
}

/// Root's password is for root; since 8 everybody else says the own one first.
fn may_set_password(world: &World, call: &Call, id: &str) -> Result<(), Fail> {
    if id == ROOT {
        return Err(Fail::Denied(String::new()));
    }
    if world.flavour.major() < 8 {
        return Ok(());
    }
    let own = world.access.users.get(&call.who.user).and_then(|user| user.password.as_deref());
    match call.text("confirmation-password") {
        None => Err(Fail::param("confirmation-password", "password is required to modify user")),
        Some(given) if own == Some(given) => Ok(()),
        Some(_) => Err(Fail::died("invalid credentials")),
    }
}
