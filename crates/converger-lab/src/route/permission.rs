//! The permission check that the table states for a method.
//!
//! What never enters here: checks that a method makes itself, about single keys or storages.

use std::borrow::Cow;

use serde_json::Value;

use crate::access::{Access, ROOT, Who};
use crate::respond::Fail;
use crate::schema::{Method, Params};
use crate::world::World;

/// Refuse unless the caller passes the method's check.
pub(super) fn check(world: &World, who: &Who, method: &Method, params: &Params) -> Result<(), Fail> {
    // Most callers are as good as root, and most methods ask for privileges that the release knows.
    if method.asks_for_known[world.flavour as usize] && world.access.has_built_in_roles(world.flavour) && world.access.is_as_root(who) {
        return Ok(());
    }
    match &method.permission {
        Value::String(word) if word == "all" || word == "world" => Ok(()),
        Value::Array(items) => rule(&world.access, who, items, params),
        _ if who.is_root() => Ok(()),
        _ => Err(Fail::Denied(String::new())),
    }
}

fn rule(access: &Access, who: &Who, items: &[Value], params: &Params) -> Result<(), Fail> {
    let word = |index: usize| items.get(index).and_then(Value::as_str).unwrap_or_default();
    match word(0) {
        "and" => rules(items).try_for_each(|inner| rule(access, who, inner, params)),
        "or" if rules(items).any(|inner| rule(access, who, inner, params).is_ok()) => Ok(()),
        "perm" => perm(access, who, items, params),
        "perm-modify" => modify(access, who, &filled(word(1), params)),
        "userid-param" if word(1) == "self" => own(who, params),
        "userid-param" => access.need(who, "/access/realm", word(1)),
        "userid-group" => access.need_any(who, "/access/groups", &words(items.get(1))),
        _ => Err(Fail::Denied(String::new())),
    }
}

fn rules(items: &[Value]) -> impl Iterator<Item = &Vec<Value>> {
    items.iter().skip(1).filter_map(Value::as_array)
}

fn words(list: Option<&Value>) -> Vec<&str> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn perm(access: &Access, who: &Who, items: &[Value], params: &Params) -> Result<(), Fail> {
    let path = items.get(1).and_then(Value::as_str).unwrap_or_default();
    let privileges = words(items.get(2));
    let option = |name: &str| items.iter().position(|item| item.as_str() == Some(name)).and_then(|index| items.get(index + 1));
    if let Some(needed) = option("require_param").and_then(Value::as_str)
        && !params.iter().any(|(name, _)| name == needed)
    {
        return Err(Fail::Denied(String::new()));
    }
    // Whoever is as good as root has all that the release knows, wherever that is.
    if access.is_as_root(who) && !privileges.is_empty() && privileges.iter().all(|privilege| access.knows(privilege)) {
        return Ok(());
    }
    let path = filled(path, params);
    if option("any").is_some() {
        // Of privileges that stand for each other, only those count that the release knows.
        let known: Vec<&str> = privileges.iter().copied().filter(|privilege| access.knows(privilege)).collect();
        return access.need_any(who, &path, &known);
    }
    privileges.iter().try_for_each(|privilege| access.need(who, &path, privilege))
}

/// `/vms/{vmid}` with the request's own vmid. What the request does not name stays as it is.
fn filled<'p>(path: &'p str, params: &Params) -> Cow<'p, str> {
    let Some(mut open) = path.find('{') else { return path.into() };
    let (mut filled, mut rest) = (String::with_capacity(path.len()), path);
    while let Some(close) = rest[open..].find('}').map(|close| open + close) {
        let given = params.iter().find(|(name, _)| *name == rest[open + 1..close]);
        filled.push_str(&rest[..open]);
        filled.push_str(&given.map_or(rest[open..=close].into(), |(_, given)| given.text()));
        rest = &rest[close + 1..];
        let Some(next) = rest.find('{') else { break };
        open = next;
    }
    filled.push_str(rest);
    filled.into()
}

/// Whoever may modify permissions somewhere, or owns the kind of thing that lies there.
fn modify(access: &Access, who: &Who, path: &str) -> Result<(), Fail> {
    let privileges: &[&str] = match path.split('/').nth(1) {
        Some("storage") => &["Permissions.Modify", "Datastore.Allocate"],
        Some("vms") => &["Permissions.Modify", "VM.Allocate"],
        Some("pool") => &["Permissions.Modify", "Pool.Allocate"],
        _ => &["Permissions.Modify"],
    };
    access.need_any(who, path, privileges)
}

fn own(who: &Who, params: &Params) -> Result<(), Fail> {
    let named = params.iter().find(|(name, _)| name == "userid").map(|(_, given)| given.text());
    let own = who.user == ROOT || (who.token.is_none() && named.as_deref() == Some(who.user.as_str()));
    if own { Ok(()) } else { Err(Fail::Denied(String::new())) }
}
