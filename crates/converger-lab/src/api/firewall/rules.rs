//! Rules, of a firewall or of a security group.
//!
//! What never enters here: what a rule lets through.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{MACROS, of, of_mut, settings, typed, unchanged};
use crate::api::Call;
use crate::firewall::digest;
use crate::respond::{Data, Fail};
use crate::schema::split_list;
use crate::sections::Settings;
use crate::world::World;

/// The rules that the path names.
fn rules<'a>(world: &'a World, call: &Call) -> Result<&'a Vec<Settings>, Fail> {
    let firewall = of(world, call);
    let Some(name) = call.text("group") else { return Ok(&firewall.rules) };
    let group = firewall.groups.get(name);
    group.map(|group| &group.rules).ok_or_else(|| Fail::died(format!("no such security group '{name}'")))
}

fn rules_mut<'a>(world: &'a mut World, call: &Call) -> &'a mut Vec<Settings> {
    let firewall = of_mut(world, call);
    match call.text("group").map(str::to_owned) {
        Some(name) => &mut firewall.groups.entry(name).or_default().rules,
        None => &mut firewall.rules,
    }
}

fn shown(world: &World, call: &Call, pos: usize, rule: &Settings, digest: &str) -> Value {
    let mut fields = typed(world, call, rule);
    fields.insert("pos".to_owned(), json!(pos));
    fields.insert("digest".to_owned(), json!(digest));
    if let Some(version) = ip_version(rule) {
        fields.insert("ipversion".to_owned(), json!(version));
    }
    Value::Object(fields)
}

/// Told from the addresses, where those are written out.
fn ip_version(rule: &Settings) -> Option<u8> {
    let addresses = ["source", "dest"].into_iter().filter_map(|key| rule.get(key));
    let mut versions = addresses.filter_map(|text| match text.chars().next() {
        Some(first) if first.is_ascii_digit() && text.contains('.') => Some(4),
        Some(first) if first.is_ascii_hexdigit() && text.contains(':') => Some(6),
        _ => None,
    });
    versions.next()
}

pub(super) fn list(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let rules = rules(world, call)?;
    let digest = digest(rules);
    let entries: Vec<Value> = rules.iter().enumerate().map(|(pos, rule)| shown(world, call, pos, rule, &digest)).collect();
    Ok(json!(entries).into())
}

/// The place that the path names, and the digest of all.
fn place(world: &World, call: &Call) -> Result<(usize, String), Fail> {
    let rules = rules(world, call)?;
    let text = call.text("pos").unwrap_or_default();
    let pos = text.parse::<usize>().ok().filter(|pos| *pos < rules.len());
    pos.map(|pos| (pos, digest(rules))).ok_or_else(|| Fail::died(format!("no rule at position {text}")))
}

pub(super) fn read(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (pos, digest) = place(world, call)?;
    let rule = rules(world, call)?.get(pos);
    Ok(rule.map(|rule| shown(world, call, pos, rule, &digest)).unwrap_or_default().into())
}

/// A new rule stands before all others, whatever place it asks for, and is off unless it is switched on.
pub(super) fn create(world: &mut World, call: &Call) -> Result<Data, Fail> {
    rules(world, call)?;
    let mut rule: Settings = settings(call).collect();
    verify(call, &rule)?;
    super::need_quorum(world, &call.node)?;
    rule.entry("enable".to_owned()).or_insert_with(|| "0".to_owned());
    rules_mut(world, call).insert(0, rule);
    Ok(Data::null())
}

/// Where it is to move, nothing else counts: it then stands before the one that was in that place.
pub(super) fn update(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (pos, digest) = place(world, call)?;
    unchanged(world, call, &digest)?;
    let moveto = call.number("moveto").and_then(|to| usize::try_from(to).ok()).filter(|to| *to != pos);
    if let Some(to) = moveto {
        let rules = rules_mut(world, call);
        let rule = rules.remove(pos);
        let to = if to > pos { to - 1 } else { to };
        rules.insert(to.min(rules.len()), rule);
        return Ok(Data::null());
    }
    let mut rule = rules(world, call)?.get(pos).cloned().unwrap_or_default();
    rule.extend(settings(call));
    for key in call.text("delete").map(split_list).into_iter().flatten() {
        rule.remove(key);
    }
    verify(call, &rule)?;
    if let Some(known) = rules_mut(world, call).get_mut(pos) {
        *known = rule;
    }
    Ok(Data::null())
}

pub(super) fn delete(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let (pos, digest) = place(world, call)?;
    unchanged(world, call, &digest)?;
    rules_mut(world, call).remove(pos);
    Ok(Data::null())
}

fn verify(call: &Call, rule: &Settings) -> Result<(), Fail> {
    let text = |key: &str| rule.get(key).map_or("", String::as_str);
    let mut errors = BTreeMap::new();
    let mut wrong = |key: &str, why: String| errors.insert(key.to_owned(), why);
    match text("type") {
        "group" if call.text("group").is_some() => drop(wrong("type", "security groups not allowed".to_owned())),
        "group" => {}
        _ if ["ACCEPT", "DROP", "REJECT"].contains(&text("action")) => {}
        _ => drop(wrong("action", format!("unknown action '{}'", text("action")))),
    }
    let known = MACROS.iter().any(|(name, _)| *name == text("macro"));
    if rule.contains_key("macro") && !known {
        wrong("macro", format!("unknown macro '{}'", text("macro")));
    }
    let ports = ["dport", "sport"].into_iter().find(|key| rule.contains_key(*key));
    if let Some(key) = ports.filter(|_| !rule.contains_key("proto") && !rule.contains_key("macro")) {
        wrong("proto", format!("missing property - '{key}' requires this property"));
    }
    if errors.is_empty() { Ok(()) } else { Err(Fail::Params(errors, 0)) }
}
