//! `/cluster/ha/groups`: which nodes guests may be on. Until 8; then there are rules, and groups are only refused.
//!
//! What never enters here: what the manager does about them.

use serde_json::{Value, json};

use super::{after_deletions, asked, typed};
use crate::api::{Call, need_quorum};
use crate::respond::{Data, Fail};
use crate::sections::MODIFIED;
use crate::world::World;

const NUMBERS: &[&str] = &["nofailback", "restricted"];

/// Parameters that are no settings.
const NOT_KEYS: &[&str] = &["group", "type", "digest", "delete"];

fn until_eight(world: &World, what: &str) -> Result<(), Fail> {
    if world.flavour.major() < 9 {
        return Ok(());
    }
    Err(Fail::died(format!("cannot {what}: ha groups have been migrated to rules")))
}

fn name(call: &Call) -> &str {
    call.text("group").unwrap_or_default()
}

fn missing(name: &str) -> String {
    format!("no such ha group '{name}'")
}

fn entry(world: &World, name: &str) -> Option<Value> {
    let mut fields = typed(world.ha.groups.get(name)?, NUMBERS);
    fields["group"] = json!(name);
    fields["type"] = json!("group");
    fields["digest"] = json!(world.ha.groups.digest());
    Some(fields)
}

pub(in crate::api::cluster) fn list(world: &mut World, _: &Call) -> Result<Data, Fail> {
    until_eight(world, "index groups")?;
    let entries: Vec<Value> = world.ha.groups.iter().filter_map(|(_, name, _)| entry(world, name)).collect();
    Ok(json!(entries).into())
}

pub(in crate::api::cluster) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    until_eight(world, "read group")?;
    entry(world, name(call)).map(Data::from).ok_or_else(|| Fail::died(missing(name(call))))
}

pub(in crate::api::cluster) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    until_eight(world, "create group")?;
    need_quorum(world, &call.node)?;
    let name = name(call);
    if world.ha.groups.get(name).is_some() {
        return Err(Fail::died(format!("create ha group failed: ha group ID '{name}' already defined")));
    }
    world.ha.groups.put(name, asked(call, NOT_KEYS));
    Ok(Data::null())
}

pub(in crate::api::cluster) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    until_eight(world, "update group")?;
    let failed = |why: String| Fail::died(format!("update ha group failed: {why}"));
    need_quorum(world, &call.node)?;
    if call.text("digest").is_some_and(|given| given != world.ha.groups.digest()) {
        return Err(failed(MODIFIED.to_owned()));
    }
    let Some(settings) = world.ha.groups.get(name(call)) else { return Err(failed(missing(name(call)))) };
    let mut settings = settings.clone();
    settings.extend(asked(call, NOT_KEYS));
    let settings = after_deletions(call, settings, &["nodes"]).map_err(failed)?;
    world.ha.groups.put(name(call), settings);
    Ok(Data::null())
}

/// A group that somebody is in stays; one that is not there is no error.
pub(in crate::api::cluster) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    until_eight(world, "delete group")?;
    need_quorum(world, &call.node)?;
    let name = name(call);
    let used = world.ha.iter().find(|(_, resource)| resource.settings.get("group").is_some_and(|group| group == name));
    if let Some((sid, _)) = used {
        return Err(Fail::died(format!("delete ha group failed: ha group is used by service '{sid}'")));
    }
    world.ha.groups.remove(name);
    Ok(Data::null())
}
