//! Sets of addresses.
//!
//! What never enters here: rules that use them.

use serde_json::{Value, json};

use super::{comment, of, of_mut, unchanged, with_comment};
use crate::api::{Call, need_quorum};
use crate::firewall::{Address, IpSet, digest};
use crate::respond::{Data, Fail};
use crate::world::World;

fn name(call: &Call) -> &str {
    call.text("name").unwrap_or_default()
}

fn cidr(call: &Call) -> &str {
    call.text("cidr").unwrap_or_default()
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let sets = &of(world, call).ipsets;
    let digest = digest(sets);
    let row = |(name, set): (&String, &IpSet)| with_comment(json!({ "name": name, "digest": digest }), set.comment.as_deref());
    Ok(json!(sets.iter().map(row).collect::<Vec<_>>()).into())
}

/// With `rename` an existing one gets another name or another comment.
pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let sets = &of(world, call).ipsets;
    unchanged(world, call, &digest(sets))?;
    let (new, old) = (name(call).to_owned(), call.text("rename").map(str::to_owned));
    if sets.contains_key(&new) && old.as_ref() != Some(&new) {
        return Err(Fail::param("name", format!("IPSet '{new}' already exists")));
    }
    let mut set = match &old {
        None => IpSet::default(),
        Some(old) => sets.get(old).cloned().ok_or_else(|| Fail::param("name", format!("IPSet '{old}' does not exist")))?,
    };
    set.comment = comment(call).or(set.comment);
    let sets = &mut of_mut(world, call).ipsets;
    sets.retain(|name, _| old.as_ref() != Some(name));
    sets.insert(new, set);
    Ok(Data::null())
}

fn set<'a>(world: &'a World, call: &Call) -> Result<&'a IpSet, Fail> {
    let found = of(world, call).ipsets.get(name(call));
    found.ok_or_else(|| Fail::died(format!("no such IPSet '{}'", name(call))))
}

fn set_mut<'a>(world: &'a mut World, call: &Call) -> &'a mut IpSet {
    of_mut(world, call).ipsets.entry(name(call).to_owned()).or_default()
}

fn entry(address: &Address) -> Value {
    let mut entry = with_comment(json!({ "cidr": address.cidr }), address.comment.as_deref());
    if address.nomatch {
        entry["nomatch"] = json!(1);
    }
    entry
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let entries = &set(world, call)?.entries;
    let digest = digest(entries);
    let row = |address: &Address| {
        let mut entry = entry(address);
        entry["digest"] = json!(digest);
        entry
    };
    Ok(json!(entries.iter().map(row).collect::<Vec<_>>()).into())
}

pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    if !set(world, call)?.entries.is_empty() && !call.flag("force") {
        return Err(Fail::died(format!("IPSet '{}' is not empty", name(call))));
    }
    need_quorum(world, &call.node)?;
    of_mut(world, call).ipsets.remove(name(call));
    Ok(Data::null())
}

/// A new address stands before the others.
pub(super) fn add(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let cidr = cidr(call);
    if set(world, call)?.entries.iter().any(|address| address.cidr == cidr) {
        return Err(Fail::param("cidr", format!("address '{cidr}' already exists")));
    }
    need_quorum(world, &call.node)?;
    let address = Address { cidr: cidr.to_owned(), comment: comment(call), nomatch: call.flag("nomatch") };
    set_mut(world, call).entries.insert(0, address);
    Ok(Data::null())
}

/// The place of the address that the path names.
fn place(world: &World, call: &Call) -> Result<usize, Fail> {
    let found = set(world, call)?.entries.iter().position(|address| address.cidr == cidr(call));
    found.ok_or_else(|| Fail::param("cidr", "no such IP/Network"))
}

pub(super) fn read_one(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let place = place(world, call)?;
    Ok(set(world, call)?.entries.get(place).map(entry).unwrap_or_default().into())
}

/// What is not given stays.
pub(super) fn update_one(world: &mut World, call: &Call) -> Result<Data, Fail> {
    unchanged(world, call, &digest(&set(world, call)?.entries))?;
    let place = place(world, call)?;
    if let Some(address) = set_mut(world, call).entries.get_mut(place) {
        address.nomatch = call.text("nomatch").map_or(address.nomatch, |text| text == "1");
        if call.text("comment").is_some() {
            address.comment = comment(call);
        }
    }
    Ok(Data::null())
}

pub(super) fn remove(world: &mut World, call: &Call) -> Result<Data, Fail> {
    unchanged(world, call, &digest(&set(world, call)?.entries))?;
    let place = place(world, call)?;
    set_mut(world, call).entries.remove(place);
    Ok(Data::null())
}
