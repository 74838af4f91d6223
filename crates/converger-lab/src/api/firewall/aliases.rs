//! Names for addresses. They are found whatever the case of their letters.
//!
//! What never enters here: rules that use them.

use serde_json::{Value, json};

use super::{comment, of, of_mut, unchanged, with_comment};
use crate::api::{Call, need_quorum};
use crate::firewall::{Alias, digest};
use crate::respond::{Data, Fail};
use crate::world::World;

fn entry(alias: &Alias) -> Value {
    let version = if alias.cidr.contains(':') { 6 } else { 4 };
    with_comment(json!({ "name": alias.name, "cidr": alias.cidr, "ipversion": version }), alias.comment.as_deref())
}

fn key(call: &Call) -> String {
    call.text("name").unwrap_or_default().to_lowercase()
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let aliases = &of(world, call).aliases;
    let digest = digest(aliases);
    let row = |alias: &Alias| {
        let mut entry = entry(alias);
        entry["digest"] = json!(digest);
        entry
    };
    Ok(json!(aliases.values().map(row).collect::<Vec<_>>()).into())
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let found = of(world, call).aliases.get(&key(call)).map(entry);
    found.map(Data::from).ok_or_else(|| Fail::param("name", "no such alias"))
}

fn asked(call: &Call) -> Alias {
    let text = |name: &str| call.text(name).unwrap_or_default().to_owned();
    Alias { name: text("name"), cidr: text("cidr"), comment: comment(call) }
}

fn taken(name: &str) -> Fail {
    Fail::param("name", format!("alias '{name}' already exists"))
}

pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    if of(world, call).aliases.contains_key(&key(call)) {
        return Err(taken(call.text("name").unwrap_or_default()));
    }
    need_quorum(world, &call.node)?;
    of_mut(world, call).aliases.insert(key(call), asked(call));
    Ok(Data::null())
}

/// Everything is set anew: a comment that is not given is gone.
pub(super) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    unchanged(world, call, &digest(&of(world, call).aliases))?;
    let aliases = &of(world, call).aliases;
    if !aliases.contains_key(&key(call)) {
        return Err(Fail::param("name", "no such alias"));
    }
    let mut alias = asked(call);
    let mut new_key = key(call);
    if let Some(rename) = call.text("rename").filter(|rename| rename.to_lowercase() != key(call)) {
        if aliases.contains_key(&rename.to_lowercase()) {
            return Err(taken(rename));
        }
        rename.clone_into(&mut alias.name);
        new_key = rename.to_lowercase();
    }
    let aliases = &mut of_mut(world, call).aliases;
    aliases.remove(&key(call));
    aliases.insert(new_key, alias);
    Ok(Data::null())
}

/// One that is not there is no error.
pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    unchanged(world, call, &digest(&of(world, call).aliases))?;
    of_mut(world, call).aliases.remove(&key(call));
    Ok(Data::null())
}
