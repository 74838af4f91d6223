//! `/cluster/ha/rules`: which nodes guests may run on, and which guests may share a node. Since
//! release 9.
//!
//! What the HA manager does with them is in `crate::ha`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{after_deletions, parse_settings, settings_json};
use crate::api::{ApiCall, require_quorum};
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::sections::{MODIFIED_TEXT, SectionSettings};
use crate::world::World;

const NUMBERS: &[&str] = &["disable", "strict"];

/// Parameters that are not settings.
const CONTROL_PARAMETERS: &[&str] = &["rule", "digest", "delete"];

fn rule_name(call: &ApiCall) -> &str {
    call.param("rule").unwrap_or_default()
}

fn rule_json(world: &World, position: usize, name: &str, settings: &SectionSettings) -> Value {
    let mut fields = settings_json(settings, NUMBERS);
    fields["rule"] = json!(name);
    fields["order"] = json!(position);
    fields["digest"] = json!(world.ha.rules.digest());
    fields
}

pub(in crate::api::cluster) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let kind = |settings: &SectionSettings| call.param("type").is_none_or(|kind| settings.get("type").is_some_and(|known| known == kind));
    let about = |settings: &SectionSettings| call.param("resource").is_none_or(|sid| split_setting(settings, "resources").contains(sid));
    let wanted = world.ha.rules.iter().filter(|(_, _, settings)| kind(settings) && about(settings));
    let entries: Vec<Value> = wanted.map(|(position, name, settings)| rule_json(world, position, name, settings)).collect();
    Ok(json!(entries).into())
}

pub(in crate::api::cluster) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let found = world.ha.rules.iter().find(|(_, known, _)| *known == rule_name(call));
    match found {
        Some((position, name, settings)) => Ok(rule_json(world, position, name, settings).into()),
        None => Err(ApiError::internal_error(format!("no such ha rule '{}'", rule_name(call)))),
    }
}

fn split_setting(settings: &SectionSettings, key: &str) -> BTreeSet<String> {
    settings.get(key).map(|text| split_list(text)).into_iter().flatten().map(str::to_owned).collect()
}

/// Lists are stored sorted and without duplicates.
fn normalize_lists(mut settings: SectionSettings) -> SectionSettings {
    for key in ["nodes", "resources"] {
        if settings.contains_key(key) {
            let list = split_setting(&settings, key).into_iter().collect::<Vec<_>>().join(",");
            settings.insert(key.to_owned(), list);
        }
    }
    settings
}

pub(in crate::api::cluster) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    let name = rule_name(call);
    let failed = |why: String| ApiError::internal_error(format!("create ha rule failed: {why}"));
    if world.ha.rules.get(name).is_some() {
        return Err(failed(format!("HA rule '{name}' already defined")));
    }
    let settings = normalize_lists(parse_settings(call, CONTROL_PARAMETERS));
    check_required_settings(&settings)?;
    check_known_references(world, &settings).map_err(failed)?;
    check_feasible(world, name, &settings)?;
    world.ha.rules.put(name, settings);
    Ok(ApiData::null())
}

pub(in crate::api::cluster) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let name = rule_name(call);
    let failed = |why: String| ApiError::internal_error(format!("update HA rules failed: {why}"));
    require_quorum(world, &call.node)?;
    if call.param("digest").is_some_and(|digest| digest != world.ha.rules.digest()) {
        return Err(failed(MODIFIED_TEXT.to_owned()));
    }
    let Some(settings) = world.ha.rules.get(name) else { return Err(failed(format!("HA rule '{name}' does not exist"))) };
    let mut settings = settings.clone();
    settings.extend(normalize_lists(parse_settings(call, CONTROL_PARAMETERS)));
    let settings = after_deletions(call, settings, &["resources", "nodes", "affinity", "type"]).map_err(failed)?;
    check_known_references(world, &settings).map_err(failed)?;
    check_feasible(world, name, &settings)?;
    world.ha.rules.put(name, settings);
    Ok(ApiData::null())
}

/// Deletes a rule. Deleting one that does not exist is not an error.
pub(in crate::api::cluster) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    require_quorum(world, &call.node)?;
    world.ha.rules.remove(rule_name(call));
    Ok(ApiData::null())
}

/// Checks the settings that a rule of this type requires.
fn check_required_settings(settings: &SectionSettings) -> Result<(), ApiError> {
    let needed = if settings.get("type").is_some_and(|kind| kind == "node-affinity") { "nodes" } else { "affinity" };
    if settings.contains_key(needed) {
        Ok(())
    } else {
        Err(ApiError::internal_error(format!("missing value for required option '{needed}'")))
    }
}

/// Checks that all guests are managed and all nodes exist.
fn check_known_references(world: &World, settings: &SectionSettings) -> Result<(), String> {
    let unmanaged: Vec<String> = split_setting(settings, "resources").into_iter().filter(|sid| world.ha.get(sid).is_none()).collect();
    if !unmanaged.is_empty() {
        return Err(format!("cannot use unmanaged resource(s) {}.", unmanaged.join(", ")));
    }
    // A node may have a priority: `pve1:2`.
    let nodes = split_setting(settings, "nodes").into_iter().map(|node| node.split(':').next().unwrap_or_default().to_owned());
    let missing: Vec<String> = nodes.filter(|node| !world.nodes.contains_key(node)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("cannot use non-existant node(s) {}.", missing.join(", "))) }
}

/// A guest may be in one node affinity rule only, and a resource affinity rule needs at least two guests.
fn check_feasible(world: &World, name: &str, settings: &SectionSettings) -> Result<(), ApiError> {
    let kind = |settings: &SectionSettings| settings.get("type").cloned();
    let resources = split_setting(settings, "resources");
    if kind(settings).is_some_and(|kind| kind == "resource-affinity") {
        let few = resources.len() < 2;
        return if few {
            Err(ApiError::parameter_error("resources", "rule is ineffective as there are less than two resources"))
        } else {
            Ok(())
        };
    }
    let others = world.ha.rules.iter().filter(|(_, other, _)| *other != name).filter(|(_, _, other)| kind(other) == kind(settings));
    let used: BTreeSet<String> = others.flat_map(|(_, _, other)| split_setting(other, "resources")).collect();
    match resources.iter().find(|sid| used.contains(*sid)) {
        Some(sid) => Err(ApiError::parameter_error("resources", format!("resource '{sid}' is already used in another node affinity rule"))),
        None => Ok(()),
    }
}
