//! Security groups of the cluster. Their rules are in the room of rules.
//!
//! What never enters here: rules that refer to a group.

use serde_json::json;

use super::{comment, of, of_mut, unchanged, with_comment};
use crate::api::{Call, need_quorum};
use crate::firewall::{SecurityGroup, digest};
use crate::respond::{Data, Fail};
use crate::world::World;

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let groups = &of(world, call).groups;
    let digest = digest(groups);
    let row = |(name, group): (&String, &SecurityGroup)| with_comment(json!({ "group": name, "digest": digest }), group.comment.as_deref());
    Ok(json!(groups.iter().map(row).collect::<Vec<_>>()).into())
}

fn name(call: &Call) -> &str {
    call.text("group").unwrap_or_default()
}

/// With `rename` an existing one gets another name or another comment.
pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let groups = &of(world, call).groups;
    unchanged(world, call, &digest(groups))?;
    let (new, old) = (name(call).to_owned(), call.text("rename").map(str::to_owned));
    if groups.contains_key(&new) && old.as_ref() != Some(&new) {
        return Err(Fail::param("group", format!("Security group '{new}' already exists")));
    }
    let mut group = match &old {
        None => SecurityGroup::default(),
        Some(old) => {
            let missing = || Fail::param("group", format!("Security group '{old}' does not exist"));
            groups.get(old).cloned().ok_or_else(missing)?
        }
    };
    group.comment = comment(call).or(group.comment);
    let groups = &mut of_mut(world, call).groups;
    groups.retain(|name, _| old.as_ref() != Some(name));
    groups.insert(new, group);
    Ok(Data::null())
}

pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let name = name(call);
    let Some(group) = of(world, call).groups.get(name) else {
        return Err(Fail::died(format!("no such security group '{name}'")));
    };
    if !group.rules.is_empty() {
        return Err(Fail::died(format!("Security group '{name}' is not empty")));
    }
    need_quorum(world, &call.node)?;
    of_mut(world, call).groups.remove(name);
    Ok(Data::null())
}
