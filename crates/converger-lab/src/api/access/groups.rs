//! `/access/groups`.
//!
//! What never enters here: what a group may do (see `crate::access`).

use serde_json::{Value, json};

use crate::access::{Grantee, Group};
use crate::api::Call;
use crate::api::pools::need_lock;
use crate::respond::{Data, Fail};
use crate::world::World;

/// Any of these on a group lets one see it.
const SEEN: &[&str] = &["User.Modify", "Sys.Audit", "Group.Allocate"];

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let seen = |name: &str| world.access.need_any(&call.who, &format!("/access/groups/{name}"), SEEN).is_ok();
    let entry = |(name, group): (&String, &Group)| {
        let users = group.members.iter().cloned().collect::<Vec<_>>().join(",");
        with_comment(json!({ "groupid": name, "users": users }), group)
    };
    Ok(json!(world.access.groups.iter().filter(|(name, _)| seen(name)).map(entry).collect::<Vec<_>>()).into())
}

fn with_comment(mut entry: Value, group: &Group) -> Value {
    if let Some(comment) = &group.comment {
        entry["comment"] = json!(comment);
    }
    entry
}

fn name(call: &Call) -> &str {
    call.text("groupid").unwrap_or_default()
}

fn missing(name: &str) -> String {
    format!("group '{name}' does not exist")
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let Some(group) = world.access.groups.get(name(call)) else { return Err(Fail::died(missing(name(call)))) };
    Ok(with_comment(json!({ "members": group.members }), group).into())
}

pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "create group")?;
    let name = name(call).to_owned();
    if world.access.groups.contains_key(&name) {
        return Err(Fail::died(format!("create group failed: group '{name}' already exists")));
    }
    let comment = call.text("comment").filter(|comment| !comment.is_empty()).map(str::to_owned);
    world.access.groups.insert(name, Group { comment, ..Group::default() });
    Ok(Data::null())
}

pub(super) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "update group")?;
    let name = name(call);
    let Some(group) = world.access.groups.get_mut(name) else {
        return Err(Fail::died(format!("update group failed: {}", missing(name))));
    };
    if let Some(comment) = call.text("comment") {
        group.comment = Some(comment.to_owned());
    }
    Ok(Data::null())
}

/// What it was given goes with it.
pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_lock(world, call, "delete group")?;
    let name = name(call);
    if world.access.groups.remove(name).is_none() {
        return Err(Fail::died(format!("delete group failed: {}", missing(name))));
    }
    world.access.grants.retain(|grant| grant.grantee != Grantee::Group(name.to_owned()));
    Ok(Data::null())
}
