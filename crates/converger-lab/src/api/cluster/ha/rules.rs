//! `/cluster/ha/rules`: on which nodes guests may be, and which of them together. Since 9.
//!
//! What never enters here: what the manager does about them.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{after_deletions, asked, typed};
use crate::api::{Call, need_quorum};
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::sections::{MODIFIED, Settings};
use crate::world::World;

const NUMBERS: &[&str] = &["disable", "strict"];

/// Parameters that are no settings.
const NOT_KEYS: &[&str] = &["rule", "digest", "delete"];

fn name(call: &Call) -> &str {
    call.text("rule").unwrap_or_default()
}

fn entry(world: &World, place: usize, name: &str, settings: &Settings) -> Value {
    let mut fields = typed(settings, NUMBERS);
    fields["rule"] = json!(name);
    fields["order"] = json!(place);
    fields["digest"] = json!(world.ha.rules.digest());
    fields
}

pub(in crate::api::cluster) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let kind = |settings: &Settings| call.text("type").is_none_or(|kind| settings.get("type").is_some_and(|known| known == kind));
    let about = |settings: &Settings| call.text("resource").is_none_or(|sid| items(settings, "resources").contains(sid));
    let wanted = world.ha.rules.iter().filter(|(_, _, settings)| kind(settings) && about(settings));
    let entries: Vec<Value> = wanted.map(|(place, name, settings)| entry(world, place, name, settings)).collect();
    Ok(json!(entries).into())
}

pub(in crate::api::cluster) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let found = world.ha.rules.iter().find(|(_, known, _)| *known == name(call));
    match found {
        Some((place, name, settings)) => Ok(entry(world, place, name, settings).into()),
        None => Err(Fail::died(format!("no such ha rule '{}'", name(call)))),
    }
}

fn items(settings: &Settings, key: &str) -> BTreeSet<String> {
    settings.get(key).map(|text| split_list(text)).into_iter().flatten().map(str::to_owned).collect()
}

/// Lists are kept in order, each item once.
fn normal(mut settings: Settings) -> Settings {
    for key in ["nodes", "resources"] {
        if settings.contains_key(key) {
            let list = items(&settings, key).into_iter().collect::<Vec<_>>().join(",");
            settings.insert(key.to_owned(), list);
        }
    }
    settings
}

pub(in crate::api::cluster) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    let name = name(call);
    let failed = |why: String| Fail::died(format!("create ha rule failed: {why}"));
    if world.ha.rules.get(name).is_some() {
        return Err(failed(format!("HA rule '{name}' already defined")));
    }
    let settings = normal(asked(call, NOT_KEYS));
    complete(&settings)?;
    known(world, &settings).map_err(failed)?;
    feasible(world, name, &settings)?;
    world.ha.rules.put(name, settings);
    Ok(Data::null())
}

pub(in crate::api::cluster) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let name = name(call);
    let failed = |why: String| Fail::died(format!("update HA rules failed: {why}"));
    need_quorum(world, &call.node)?;
    if call.text("digest").is_some_and(|given| given != world.ha.rules.digest()) {
        return Err(failed(MODIFIED.to_owned()));
    }
    let Some(settings) = world.ha.rules.get(name) else { return Err(failed(format!("HA rule '{name}' does not exist"))) };
    let mut settings = settings.clone();
    settings.extend(normal(asked(call, NOT_KEYS)));
    let settings = after_deletions(call, settings, &["resources", "nodes", "affinity", "type"]).map_err(failed)?;
    known(world, &settings).map_err(failed)?;
    feasible(world, name, &settings)?;
    world.ha.rules.put(name, settings);
    Ok(Data::null())
}

/// One that is not there is no error.
pub(in crate::api::cluster) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    need_quorum(world, &call.node)?;
    world.ha.rules.remove(name(call));
    Ok(Data::null())
}

/// What a rule of its type must say.
fn complete(settings: &Settings) -> Result<(), Fail> {
    let needed = if settings.get("type").is_some_and(|kind| kind == "node-affinity") { "nodes" } else { "affinity" };
    if settings.contains_key(needed) { Ok(()) } else { Err(Fail::died(format!("missing value for required option '{needed}'"))) }
}

/// Guests that are managed, and nodes that there are.
fn known(world: &World, settings: &Settings) -> Result<(), String> {
    let unmanaged: Vec<String> = items(settings, "resources").into_iter().filter(|sid| world.ha.get(sid).is_none()).collect();
    if !unmanaged.is_empty() {
        return Err(format!("cannot use unmanaged resource(s) {}.", unmanaged.join(", ")));
    }
    // A node may come with a priority: `pve1:2`.
    let nodes = items(settings, "nodes").into_iter().map(|node| node.split(':').next().unwrap_or_default().to_owned());
    let missing: Vec<String> = nodes.filter(|node| !world.nodes.contains_key(node)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("cannot use non-existant node(s) {}.", missing.join(", "))) }
}

/// A guest is in one rule about nodes, and a rule about neighbours needs two of them.
fn feasible(world: &World, name: &str, settings: &Settings) -> Result<(), Fail> {
    let kind = |settings: &Settings| settings.get("type").cloned();
    let resources = items(settings, "resources");
    if kind(settings).is_some_and(|kind| kind == "resource-affinity") {
        let few = resources.len() < 2;
        return if few { Err(Fail::param("resources", "rule is ineffective as there are less than two resources")) } else { Ok(()) };
    }
    let others = world.ha.rules.iter().filter(|(_, other, _)| *other != name).filter(|(_, _, other)| kind(other) == kind(settings));
    let taken: BTreeSet<String> = others.flat_map(|(_, _, other)| items(other, "resources")).collect();
    match resources.iter().find(|sid| taken.contains(*sid)) {
        Some(sid) => Err(Fail::param("resources", format!("resource '{sid}' is already used in another node affinity rule"))),
        None => Ok(()),
    }
}
