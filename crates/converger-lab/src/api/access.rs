//! `/access`: permissions, tickets, users, tokens, roles, entries.
//!
//! What never enters here: the sums over them (see `crate::access`).

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::pools::need_lock;
use super::{Call, Route, nodes::subdirs};
use crate::access::{Grant, Grantee, Privileges, Token, User, Who};
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/access", index),
    ("GET", "/access/permissions", permissions),
    ("GET", "/access/ticket", nothing),
    ("POST", "/access/ticket", login),
    ("GET", "/access/domains", domains),
    ("GET", "/access/roles", roles),
    ("GET", "/access/roles/{roleid}", role),
    ("GET", "/access/acl", acl),
    ("PUT", "/access/acl", set_acl),
    ("GET", "/access/groups", groups),
    ("GET", "/access/users", users),
    ("POST", "/access/users", add_user),
    ("GET", "/access/users/{userid}", user),
    ("DELETE", "/access/users/{userid}", delete_user),
    ("GET", "/access/users/{userid}/token", tokens),
    ("GET", "/access/users/{userid}/token/{tokenid}", token),
    ("POST", "/access/users/{userid}/token/{tokenid}", add_token),
    ("DELETE", "/access/users/{userid}/token/{tokenid}", delete_token),
    ("PUT", "/access/password", nothing),
];

/// Paths that a dump of permissions looks at, besides those that have entries and those of members of pools.
const PATHS: &[&str] = &["/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"];

fn index(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(subdirs(&["users", "groups", "roles", "acl", "domains", "ticket", "permissions"]))
}

fn nothing(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(Data::null())
}

/// Key presence is the grant; the value says whether it is inherited further down.
fn shown(privileges: &Privileges) -> Value {
    let entries = privileges.iter().map(|(privilege, propagate)| (privilege.clone(), json!(u8::from(*propagate))));
    Value::Object(entries.collect::<Map<_, _>>())
}

fn permissions(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let who = match call.text("userid") {
        Some(id) if id != call.who.id() => {
            world.access.need(&call.who, "/access", "Sys.Audit")?;
            named(id)
        }
        _ => call.who.clone(),
    };
    if let Some(path) = call.text("path") {
        let shown = shown(&world.access.privileges(&who, path));
        return Ok(json!({ path: shown }).into());
    }
    let held = dumped(world).into_iter().map(|path| (world.access.privileges(&who, &path), path)).filter(|(held, _)| !held.is_empty());
    let entries: Map<String, Value> = held.map(|(held, path)| (path, shown(&held))).collect();
    Ok(Value::Object(entries).into())
}

fn dumped(world: &World) -> BTreeSet<String> {
    let granted = world.access.grants.iter().map(|grant| grant.path.clone());
    let pools = || world.access.pools.values();
    let guests = pools().flat_map(|pool| pool.guests.iter().map(|vmid| format!("/vms/{vmid}")));
    let storages = pools().flat_map(|pool| pool.storages.iter().map(|storage| format!("/storage/{storage}")));
    PATHS.iter().map(|path| (*path).to_owned()).chain(granted).chain(guests).chain(storages).collect()
}

fn named(id: &str) -> Who {
    match id.split_once('!') {
        Some((user, token)) => Who { user: user.to_owned(), token: Some(token.to_owned()) },
        None => Who::user(id),
    }
}

fn login(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let text = |name: &str| call.text(name).unwrap_or_default();
    let user = match call.text("realm") {
        Some(realm) if !text("username").contains('@') => format!("{}@{realm}", text("username")),
        _ => text("username").to_owned(),
    };
    let now_s = world.wall_s();
    let by_password = world.access.users.get(&user).is_some_and(|known| known.password.as_deref() == Some(text("password")));
    let by_ticket = world.tickets.user(text("password"), now_s).as_deref() == Some(user.as_str());
    if !(by_password || by_ticket) || !world.access.user_enabled(&user, now_s) {
        return Err(Fail::Login("authentication failure".to_owned()));
    }
    let mut fields = json!({ "username": user, "ticket": world.tickets.make(&user, now_s),
        "CSRFPreventionToken": world.tickets.companion(&user, now_s), "cap": {} });
    if let Some(cluster) = &world.cluster {
        fields["clustername"] = json!(cluster);
    }
    Ok(fields.into())
}

fn domains(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(json!([
        { "realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication" },
        { "realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server" },
    ])
    .into())
}

fn roles(world: &mut World, _: &Call) -> Result<Data, Fail> {
    let privileges = |held: &BTreeSet<String>| held.iter().cloned().collect::<Vec<_>>().join(",");
    let special = |role: &str| u8::from(role.starts_with("PVE") || role == "Administrator" || role == "NoAccess");
    let entry = |(role, held): (&String, &std::sync::Arc<BTreeSet<String>>)| json!({ "roleid": role, "privs": privileges(held), "special": special(role) });
    Ok(json!(world.access.roles.iter().map(entry).collect::<Vec<_>>()).into())
}

fn role(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let name = call.text("roleid").unwrap_or_default();
    let Some(held) = world.access.roles.get(name) else { return Err(Fail::died(format!("role '{name}' does not exist"))) };
    let entries: Map<String, Value> = held.iter().map(|privilege| (privilege.clone(), json!(1))).collect();
    Ok(Value::Object(entries).into())
}

fn acl(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let seen = |grant: &&Grant| world.access.has(&call.who, &grant.path, "Permissions.Modify");
    let entry = |grant: &Grant| {
        let (kind, id) = match &grant.grantee {
            Grantee::User(id) => ("user", id),
            Grantee::Group(id) => ("group", id),
            Grantee::Token(id) => ("token", id),
        };
        json!({ "path": grant.path, "type": kind, "ugid": id, "roleid": grant.role, "propagate": u8::from(grant.propagate) })
    };
    Ok(json!(world.access.grants.iter().filter(seen).map(entry).collect::<Vec<_>>()).into())
}

fn set_acl(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "ACL update")?;
    let items = |name: &str| call.text(name).map(split_list).into_iter().flatten().map(str::to_owned).collect::<Vec<_>>();
    let path = call.text("path").unwrap_or("/").to_owned();
    let propagate = call.text("propagate") != Some("0");
    let users = items("users").into_iter().map(Grantee::User);
    let groups = items("groups").into_iter().map(Grantee::Group);
    let tokens = items("tokens").into_iter().map(Grantee::Token);
    let grantees: Vec<Grantee> = users.chain(groups).chain(tokens).collect();
    for role in items("roles") {
        if !world.access.roles.contains_key(&role) {
            return Err(Fail::died(format!("ACL update failed: role '{role}' does not exist")));
        }
        for grantee in &grantees {
            let same = |grant: &Grant| grant.path == path && grant.grantee == *grantee && grant.role == role;
            world.access.grants.retain(|grant| !same(grant));
            if !call.flag("delete") {
                world.access.grants.insert(Grant { path: path.clone(), grantee: grantee.clone(), role: role.clone(), propagate });
            }
        }
    }
    Ok(Data::null())
}

fn groups(world: &mut World, _: &Call) -> Result<Data, Fail> {
    let users = |members: &BTreeSet<String>| members.iter().cloned().collect::<Vec<_>>().join(",");
    let entry = |(group, members): (&String, &BTreeSet<String>)| json!({ "groupid": group, "users": users(members) });
    Ok(json!(world.access.groups.iter().map(entry).collect::<Vec<_>>()).into())
}

fn user_entry(id: &str, user: &User) -> Value {
    let mut entry = json!({ "userid": id, "enable": u8::from(user.enabled), "expire": user.expire_s,
        "realm-type": id.rsplit('@').next().unwrap_or_default() });
    if let Some(comment) = &user.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn users(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let audit = world.access.need_any(&call.who, "/access/groups", &["User.Modify", "Sys.Audit"]).is_ok();
    let seen = world.access.users.iter().filter(|(id, _)| audit || **id == call.who.user);
    Ok(json!(seen.map(|(id, user)| user_entry(id, user)).collect::<Vec<_>>()).into())
}

fn user(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let id = call.text("userid").unwrap_or_default();
    match world.access.users.get(id) {
        Some(user) => {
            let tokens = tokens_of(world, id).map(|(name, token)| (name.to_owned(), token_entry(token))).collect::<Map<_, _>>();
            let mut entry = user_entry(id, user);
            entry["tokens"] = Value::Object(tokens);
            Ok(entry.into())
        }
        None => Err(Fail::died(format!("no such user ('{id}')"))),
    }
}

fn add_user(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "create user")?;
    let id = call.text("userid").unwrap_or_default().to_owned();
    if world.access.users.contains_key(&id) {
        return Err(Fail::died(format!("create user failed: user '{id}' already exists")));
    }
    let own = |name: &str| call.text(name).map(str::to_owned);
    let enabled = call.text("enable") != Some("0");
    let user = User { enabled, expire_s: call.number("expire").unwrap_or(0), password: own("password"), comment: own("comment") };
    world.access.users.insert(id, user);
    Ok(Data::null())
}

fn delete_user(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "delete user")?;
    let id = call.text("userid").unwrap_or_default();
    world.access.users.remove(id);
    world.access.tokens.retain(|token, _| !token.starts_with(&format!("{id}!")));
    Ok(Data::null())
}

fn token_entry(token: &Token) -> Value {
    let mut entry = json!({ "privsep": u8::from(token.separated), "expire": token.expire_s });
    if let Some(comment) = &token.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn tokens(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let own = tokens_of(world, call.text("userid").unwrap_or_default());
    let entry = |(name, token): (&str, &Token)| {
        let mut entry = token_entry(token);
        entry["tokenid"] = json!(name);
        entry
    };
    Ok(json!(own.map(entry).collect::<Vec<_>>()).into())
}

fn tokens_of<'w>(world: &'w World, user: &str) -> impl Iterator<Item = (&'w str, &'w Token)> {
    let prefix = format!("{user}!");
    world.access.tokens.iter().filter_map(move |(id, token)| id.strip_prefix(&prefix).map(|name| (name, token)))
}

fn token_id(call: &Call) -> String {
    let text = |name: &str| call.text(name).unwrap_or_default();
    format!("{}!{}", text("userid"), text("tokenid"))
}

fn token(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let id = token_id(call);
    match world.access.tokens.get(&id) {
        Some(token) => Ok(token_entry(token).into()),
        None => Err(Fail::died(format!("no such token '{id}'"))),
    }
}

/// The secret is shown once, here.
fn add_token(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "generating token")?;
    let id = token_id(call);
    if world.access.tokens.contains_key(&id) {
        return Err(Fail::died("generating token failed: Token already exists."));
    }
    let secret = world.random.uuid();
    let separated = call.text("privsep") != Some("0");
    let expire_s = call.number("expire").unwrap_or(0);
    let token = Token { secret: secret.clone(), separated, expire_s, comment: call.text("comment").map(str::to_owned) };
    let info = token_entry(&token);
    world.access.tokens.insert(id.clone(), token);
    Ok(json!({ "full-tokenid": id, "value": secret, "info": info }).into())
}

fn delete_token(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "deleting token")?;
    world.access.tokens.remove(&token_id(call));
    Ok(Data::null())
}
