//! `/access`: permissions, tickets, entries; users, groups, roles and tokens have rooms of their own.
//!
//! What never enters here: the sums over them (see `crate::access`).

mod groups;
mod roles;
mod tokens;
mod users;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::pools::need_lock;
use super::{Call, Route, nodes::subdirs};
use crate::access::{Access, Grant, Grantee, Privileges, Who};
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/access", index),
    ("GET", "/access/permissions", permissions),
    ("GET", "/access/ticket", nothing),
    ("POST", "/access/ticket", login),
    ("GET", "/access/domains", domains),
    ("GET", "/access/roles", roles::list),
    ("POST", "/access/roles", roles::create),
    ("GET", "/access/roles/{roleid}", roles::read),
    ("PUT", "/access/roles/{roleid}", roles::update),
    ("DELETE", "/access/roles/{roleid}", roles::delete),
    ("GET", "/access/acl", acl),
    ("PUT", "/access/acl", set_acl),
    ("GET", "/access/groups", groups::list),
    ("POST", "/access/groups", groups::create),
    ("GET", "/access/groups/{groupid}", groups::read),
    ("PUT", "/access/groups/{groupid}", groups::update),
    ("DELETE", "/access/groups/{groupid}", groups::delete),
    ("GET", "/access/users", users::list),
    ("POST", "/access/users", users::create),
    ("GET", "/access/users/{userid}", users::read),
    ("PUT", "/access/users/{userid}", users::update),
    ("DELETE", "/access/users/{userid}", users::delete),
    ("PUT", "/access/password", users::password),
    ("GET", "/access/users/{userid}/token", tokens::list),
    ("GET", "/access/users/{userid}/token/{tokenid}", tokens::read),
    ("POST", "/access/users/{userid}/token/{tokenid}", tokens::create),
    ("PUT", "/access/users/{userid}/token/{tokenid}", tokens::update),
    ("DELETE", "/access/users/{userid}/token/{tokenid}", tokens::delete),
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
        _ => (*call.who).clone(),
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
    let items = |name: &str| call.text(name).map(split_list).into_iter().flatten().map(str::to_owned).collect::<Vec<_>>();
    let users = items("users").into_iter().map(Grantee::User);
    let groups = items("groups").into_iter().map(Grantee::Group);
    let tokens = items("tokens").into_iter().map(Grantee::Token);
    let grantees: Vec<Grantee> = users.chain(groups).chain(tokens).collect();
    if grantees.is_empty() {
        let text = "either 'users', 'groups' or 'tokens' is required";
        return Err(Fail::Params(["users", "groups", "tokens"].map(|name| (name.to_owned(), text.to_owned())).into(), 0));
    }
    need_lock(world, call, "ACL update")?;
    let path = call.text("path").unwrap_or("/").to_owned();
    let propagate = call.text("propagate") != Some("0");
    for role in items("roles") {
        if !world.access.roles.contains_key(&role) {
            return Err(Fail::died(format!("ACL update failed: role '{role}' does not exist")));
        }
        for grantee in &grantees {
            exists(&world.access, grantee)?;
            let same = |grant: &Grant| grant.path == path && grant.grantee == *grantee && grant.role == role;
            world.access.grants.retain(|grant| !same(grant));
            if !call.flag("delete") {
                world.access.grants.insert(Grant { path: path.clone(), grantee: grantee.clone(), role: role.clone(), propagate });
            }
        }
    }
    Ok(Data::null())
}

fn exists(access: &Access, grantee: &Grantee) -> Result<(), Fail> {
    let missing = match grantee {
        Grantee::User(id) if !access.users.contains_key(id) => format!("user '{id}' does not exist"),
        Grantee::Group(id) if !access.groups.contains_key(id) => format!("group '{id}' does not exist"),
        Grantee::Token(id) if !access.tokens.contains_key(id) => {
            let (user, token) = id.split_once('!').unwrap_or((id, ""));
            tokens::missing(user, token)
        }
        _ => return Ok(()),
    };
    Err(Fail::died(format!("ACL update failed: {missing}")))
}
