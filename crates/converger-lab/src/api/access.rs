//! `/access`: permissions, tickets and access control entries. Users, groups, roles and tokens have
//! modules of their own.
//!
//! How privileges are computed from entries is in `crate::access`.

mod groups;
mod roles;
mod tokens;
mod users;

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::pools::require_cluster_lock;
use super::{ApiCall, ApiRoute, nodes::subdirectory_index};
use crate::access::{AccessControl, AclEntry, ApiCaller, Grantee, PathPrivileges};
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/access", index),
    ("GET", "/access/permissions", permissions),
    ("GET", "/access/ticket", empty_response),
    ("POST", "/access/ticket", login),
    ("GET", "/access/domains", domains),
    ("GET", "/access/roles", roles::list),
    ("POST", "/access/roles", roles::create),
    ("GET", "/access/roles/{roleid}", roles::read),
    ("PUT", "/access/roles/{roleid}", roles::update),
    ("DELETE", "/access/roles/{roleid}", roles::delete),
    ("GET", "/access/acl", list_acl),
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
    ("PUT", "/access/password", users::set_password),
    ("GET", "/access/users/{userid}/token", tokens::list),
    ("GET", "/access/users/{userid}/token/{tokenid}", tokens::read),
    ("POST", "/access/users/{userid}/token/{tokenid}", tokens::create),
    ("PUT", "/access/users/{userid}/token/{tokenid}", tokens::update),
    ("DELETE", "/access/users/{userid}/token/{tokenid}", tokens::delete),
];

/// Paths that a permission dump always contains, in addition to those with entries and those of pool members.
const PERMISSION_DUMP_PATHS: &[&str] = &["/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/storage", "/vms"];

fn index(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(subdirectory_index(&["users", "groups", "roles", "acl", "domains", "ticket", "permissions"]))
}

fn empty_response(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(ApiData::null())
}

/// A privilege is granted if its key is present; the value says whether it propagates to paths below.
fn privileges_json(privileges: &PathPrivileges) -> Value {
    let entries = privileges.iter().map(|(privilege, propagate)| (privilege.clone(), json!(u8::from(*propagate))));
    Value::Object(entries.collect::<Map<_, _>>())
}

fn permissions(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let caller = match call.param("userid") {
        Some(id) if id != call.caller.id() => {
            world.access.require_privilege(&call.caller, "/access", "Sys.Audit")?;
            parse_caller_id(id)
        }
        _ => (*call.caller).clone(),
    };
    if let Some(path) = call.param("path") {
        let privileges = privileges_json(&world.access.privileges_on(&caller, path));
        return Ok(json!({ path: privileges }).into());
    }
    let held = permission_paths(world)
        .into_iter()
        .map(|path| (world.access.privileges_on(&caller, &path), path))
        .filter(|(held, _)| !held.is_empty());
    let entries: Map<String, Value> = held.map(|(held, path)| (path, privileges_json(&held))).collect();
    Ok(Value::Object(entries).into())
}

fn permission_paths(world: &World) -> BTreeSet<String> {
    let granted = world.access.grants.iter().map(|grant| grant.path.clone());
    let pools = || world.access.pools.values();
    let guests = pools().flat_map(|pool| pool.guests.iter().map(|vmid| format!("/vms/{vmid}")));
    let storages = pools().flat_map(|pool| pool.storages.iter().map(|storage| format!("/storage/{storage}")));
    PERMISSION_DUMP_PATHS.iter().map(|path| (*path).to_owned()).chain(granted).chain(guests).chain(storages).collect()
}

fn parse_caller_id(id: &str) -> ApiCaller {
    match id.split_once('!') {
        Some((user, token)) => ApiCaller { user: user.to_owned(), token: Some(token.to_owned()) },
        None => ApiCaller::for_user(id),
    }
}

fn login(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let text = |name: &str| call.param(name).unwrap_or_default();
    let user = match call.param("realm") {
        Some(realm) if !text("username").contains('@') => format!("{}@{realm}", text("username")),
        _ => text("username").to_owned(),
    };
    let now_s = world.cluster_clock_s();
    let by_password = world.access.users.get(&user).is_some_and(|known| known.password.as_deref() == Some(text("password")));
    let by_ticket = world.tickets.verify_ticket(text("password"), now_s).as_deref() == Some(user.as_str());
    if !(by_password || by_ticket) || !world.access.is_user_enabled(&user, now_s) {
        return Err(ApiError::LoginFailed("authentication failure".to_owned()));
    }
    let mut fields = json!({ "username": user, "ticket": world.tickets.make_ticket(&user, now_s),
        "CSRFPreventionToken": world.tickets.make_csrf_token(&user, now_s), "cap": {} });
    if let Some(cluster) = &world.cluster {
        fields["clustername"] = json!(cluster);
    }
    Ok(fields.into())
}

fn domains(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(json!([
        { "realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication" },
        { "realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server" },
    ])
    .into())
}

fn list_acl(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let seen = |grant: &&AclEntry| world.access.has_privilege(&call.caller, &grant.path, "Permissions.Modify");
    let entry = |grant: &AclEntry| {
        let (kind, id) = match &grant.grantee {
            Grantee::User(id) => ("user", id),
            Grantee::Group(id) => ("group", id),
            Grantee::Token(id) => ("token", id),
        };
        json!({ "path": grant.path, "type": kind, "ugid": id, "roleid": grant.role, "propagate": u8::from(grant.propagate) })
    };
    Ok(json!(world.access.grants.iter().filter(seen).map(entry).collect::<Vec<_>>()).into())
}

fn set_acl(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let items = |name: &str| call.param(name).map(split_list).into_iter().flatten().map(str::to_owned).collect::<Vec<_>>();
    let users = items("users").into_iter().map(Grantee::User);
    let groups = items("groups").into_iter().map(Grantee::Group);
    let tokens = items("tokens").into_iter().map(Grantee::Token);
    let grantees: Vec<Grantee> = users.chain(groups).chain(tokens).collect();
    if grantees.is_empty() {
        let text = "either 'users', 'groups' or 'tokens' is required";
        return Err(ApiError::Params(["users", "groups", "tokens"].map(|name| (name.to_owned(), text.to_owned())).into(), 0));
    }
    require_cluster_lock(world, call, "ACL update")?;
    let path = call.param("path").unwrap_or("/").to_owned();
    let propagate = call.param("propagate") != Some("0");
    for role in items("roles") {
        if !world.access.roles.contains_key(&role) {
            return Err(ApiError::internal_error(format!("ACL update failed: role '{role}' does not exist")));
        }
        for grantee in &grantees {
            check_grantee_exists(&world.access, grantee)?;
            let same = |grant: &AclEntry| grant.path == path && grant.grantee == *grantee && grant.role == role;
            world.access.grants.retain(|grant| !same(grant));
            if !call.is_set("delete") {
                world.access.grants.insert(AclEntry { path: path.clone(), grantee: grantee.clone(), role: role.clone(), propagate });
            }
        }
    }
    Ok(ApiData::null())
}

fn check_grantee_exists(access: &AccessControl, grantee: &Grantee) -> Result<(), ApiError> {
    let missing = match grantee {
        Grantee::User(id) if !access.users.contains_key(id) => format!("user '{id}' does not exist"),
        Grantee::Group(id) if !access.groups.contains_key(id) => format!("group '{id}' does not exist"),
        Grantee::Token(id) if !access.tokens.contains_key(id) => {
            let (user, token) = id.split_once('!').unwrap_or((id, ""));
            tokens::missing_token_text(user, token)
        }
        _ => return Ok(()),
    };
    Err(ApiError::internal_error(format!("ACL update failed: {missing}")))
}
