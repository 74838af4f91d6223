//! IP sets.
//!
//! Must not depend on the rules that use them.

use serde_json::{Value, json};

use super::{check_digest, find_firewall, firewall_mut, parse_comment, with_comment};
use crate::api::{ApiCall, require_quorum};
use crate::firewall::{IpSet, IpSetEntry, content_digest};
use crate::response::{ApiData, ApiError};
use crate::world::World;

fn set_name(call: &ApiCall) -> &str {
    call.param("name").unwrap_or_default()
}

fn entry_cidr(call: &ApiCall) -> &str {
    call.param("cidr").unwrap_or_default()
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let sets = &find_firewall(world, call).ipsets;
    let digest = content_digest(sets);
    let row = |(name, set): (&String, &IpSet)| with_comment(json!({ "name": name, "digest": digest }), set.comment.as_deref());
    Ok(json!(sets.iter().map(row).collect::<Vec<_>>()).into())
}

/// Creates a set. With `rename`, changes the name or the comment of an existing one.
pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let sets = &find_firewall(world, call).ipsets;
    check_digest(world, call, &content_digest(sets))?;
    let (new, old) = (set_name(call).to_owned(), call.param("rename").map(str::to_owned));
    if sets.contains_key(&new) && old.as_ref() != Some(&new) {
        return Err(ApiError::parameter_error("name", format!("IPSet '{new}' already exists")));
    }
    let mut set = match &old {
        None => IpSet::default(),
        Some(old) => sets.get(old).cloned().ok_or_else(|| ApiError::parameter_error("name", format!("IPSet '{old}' does not exist")))?,
    };
    set.comment = parse_comment(call).or(set.comment);
    let sets = &mut firewall_mut(world, call).ipsets;
    sets.retain(|name, _| old.as_ref() != Some(name));
    sets.insert(new, set);
    Ok(ApiData::null())
}

fn find_set<'a>(world: &'a World, call: &ApiCall) -> Result<&'a IpSet, ApiError> {
    let found = find_firewall(world, call).ipsets.get(set_name(call));
    found.ok_or_else(|| ApiError::internal_error(format!("no such IPSet '{}'", set_name(call))))
}

fn set_mut<'a>(world: &'a mut World, call: &ApiCall) -> &'a mut IpSet {
    firewall_mut(world, call).ipsets.entry(set_name(call).to_owned()).or_default()
}

fn entry_json(address: &IpSetEntry) -> Value {
    let mut entry = with_comment(json!({ "cidr": address.cidr }), address.comment.as_deref());
    if address.nomatch {
        entry["nomatch"] = json!(1);
    }
    entry
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let entries = &find_set(world, call)?.entries;
    let digest = content_digest(entries);
    let row = |address: &IpSetEntry| {
        let mut entry = entry_json(address);
        entry["digest"] = json!(digest);
        entry
    };
    Ok(json!(entries.iter().map(row).collect::<Vec<_>>()).into())
}

pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    if !find_set(world, call)?.entries.is_empty() && !call.is_set("force") {
        return Err(ApiError::internal_error(format!("IPSet '{}' is not empty", set_name(call))));
    }
    require_quorum(world, &call.node)?;
    firewall_mut(world, call).ipsets.remove(set_name(call));
    Ok(ApiData::null())
}

/// Adds an address before the others.
pub(super) fn add_entry(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let cidr = entry_cidr(call);
    if find_set(world, call)?.entries.iter().any(|address| address.cidr == cidr) {
        return Err(ApiError::parameter_error("cidr", format!("address '{cidr}' already exists")));
    }
    require_quorum(world, &call.node)?;
    let address = IpSetEntry { cidr: cidr.to_owned(), comment: parse_comment(call), nomatch: call.is_set("nomatch") };
    set_mut(world, call).entries.insert(0, address);
    Ok(ApiData::null())
}

/// The position of the address that the path names.
fn entry_position(world: &World, call: &ApiCall) -> Result<usize, ApiError> {
    let found = find_set(world, call)?.entries.iter().position(|address| address.cidr == entry_cidr(call));
    found.ok_or_else(|| ApiError::parameter_error("cidr", "no such IP/Network"))
}

pub(super) fn read_entry(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let position = entry_position(world, call)?;
    Ok(find_set(world, call)?.entries.get(position).map(entry_json).unwrap_or_default().into())
}

/// Updates an address. Fields that the request omits stay.
pub(super) fn update_entry(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_digest(world, call, &content_digest(&find_set(world, call)?.entries))?;
    let position = entry_position(world, call)?;
    if let Some(address) = set_mut(world, call).entries.get_mut(position) {
        address.nomatch = call.param("nomatch").map_or(address.nomatch, |text| text == "1");
        if call.param("comment").is_some() {
            address.comment = parse_comment(call);
        }
    }
    Ok(ApiData::null())
}

pub(super) fn remove_entry(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_digest(world, call, &content_digest(&find_set(world, call)?.entries))?;
    let position = entry_position(world, call)?;
    set_mut(world, call).entries.remove(position);
    Ok(ApiData::null())
}
