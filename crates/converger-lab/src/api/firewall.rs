//! `firewall/options` and `firewall/rules` of guests.
//!
//! They are shared files: any node answers, and nobody asks whether the guest exists. What never
//! enters here: firewalls of nodes and of the cluster.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Call, Route, need_quorum, nodes::subdirs};
use crate::respond::{Data, Fail};
use crate::schema::{Base, split_list};
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall", index),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/options", options),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/options", set_options),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/rules", rules),
    ("POST", "/nodes/{node}/{kind}/{vmid}/firewall/rules", add_rule),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/rules/{pos}", rule),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/rules/{pos}", set_rule),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/firewall/rules/{pos}", delete_rule),
];

/// Parameters that are no settings.
const NOT_KEYS: &[&str] = &["node", "vmid", "digest", "delete", "pos", "moveto"];

fn index(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(subdirs(&["options", "rules"]))
}

/// Settings as JSON, with the types that the method's parameters have.
fn typed(world: &World, call: &Call, settings: &BTreeMap<String, String>) -> Map<String, Value> {
    let value = |(key, text): (&String, &String)| {
        let base = call.method.parameter(key, world.flavour).map(|parameter| parameter.shape.base);
        let number = || text.parse::<i64>().ok().map(Value::from);
        let whole = matches!(base, Some(Base::Integer | Base::Boolean)) || ["enable", "pos"].contains(&key.as_str());
        (key.clone(), number().filter(|_| whole).unwrap_or_else(|| json!(text)))
    };
    settings.iter().map(value).collect()
}

fn options(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let firewall = world.firewalls.get(call.vmid());
    let numbers = |text: &String| text.parse::<i64>().map_or_else(|_| json!(text), Value::from);
    let mut fields: Map<String, Value> = firewall.options.iter().map(|(key, text)| (key.clone(), numbers(text))).collect();
    fields.insert("digest".to_owned(), json!(firewall.digest()));
    Ok(Value::Object(fields).into())
}

fn unchanged(world: &World, call: &Call) -> Result<(), Fail> {
    let digest = world.firewalls.get(call.vmid()).digest();
    match call.text("digest") {
        Some(given) if given != digest => Err(Fail::died("detected modified configuration - file changed by other user? Try again.")),
        _ => need_quorum(world, &call.node),
    }
}

fn settings(call: &Call) -> impl Iterator<Item = (String, String)> + '_ {
    call.values.iter().filter(|(key, _)| !NOT_KEYS.contains(&key.as_str())).cloned()
}

fn set_options(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let vmid = call.vmid();
    unchanged(world, call)?;
    let firewall = world.firewalls.entry(vmid);
    for key in call.text("delete").map(split_list).into_iter().flatten() {
        firewall.options.remove(key);
    }
    firewall.options.extend(settings(call));
    Ok(Data::null())
}

fn shown(world: &World, call: &Call, pos: usize, rule: &BTreeMap<String, String>) -> Value {
    let mut fields = typed(world, call, rule);
    fields.insert("pos".to_owned(), json!(pos));
    fields.insert("digest".to_owned(), json!(world.firewalls.get(call.vmid()).digest()));
    Value::Object(fields)
}

fn rules(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let firewall = world.firewalls.get(call.vmid());
    let entries: Vec<Value> = firewall.rules.iter().enumerate().map(|(pos, rule)| shown(world, call, pos, rule)).collect();
    Ok(json!(entries).into())
}

/// The place that the path names.
fn place(world: &World, call: &Call) -> Result<usize, Fail> {
    let vmid = call.vmid();
    let pos = call.number("pos").and_then(|pos| usize::try_from(pos).ok()).unwrap_or(usize::MAX);
    if pos < world.firewalls.get(vmid).rules.len() { Ok(pos) } else { Err(Fail::param("pos", format!("no rule at position {pos}"))) }
}

fn rule(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let pos = place(world, call)?;
    let rules = world.firewalls.get(call.vmid()).rules;
    Ok(rules.get(pos).map(|rule| shown(world, call, pos, rule)).unwrap_or_default().into())
}

/// A new rule stands before all others unless told otherwise.
fn add_rule(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let vmid = call.vmid();
    unchanged(world, call)?;
    let pos = call.number("pos").and_then(|pos| usize::try_from(pos).ok()).unwrap_or(0);
    let firewall = world.firewalls.entry(vmid);
    let pos = pos.min(firewall.rules.len());
    firewall.rules.insert(pos, settings(call).collect());
    Ok(Data::null())
}

fn set_rule(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let pos = place(world, call)?;
    unchanged(world, call)?;
    let firewall = world.firewalls.entry(call.vmid());
    if let Some(rule) = firewall.rules.get_mut(pos) {
        for key in call.text("delete").map(split_list).into_iter().flatten() {
            rule.remove(key);
        }
        rule.extend(settings(call));
    }
    if let Some(to) = call.number("moveto").and_then(|to| usize::try_from(to).ok()) {
        let rule = firewall.rules.remove(pos);
        let to = to.min(firewall.rules.len());
        firewall.rules.insert(to, rule);
    }
    Ok(Data::null())
}

fn delete_rule(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let pos = place(world, call)?;
    unchanged(world, call)?;
    world.firewalls.entry(call.vmid()).rules.remove(pos);
    Ok(Data::null())
}
