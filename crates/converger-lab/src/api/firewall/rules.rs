//! Rules of a firewall or of a security group.
//!
//! The lab stores rules and never applies them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{MACROS, check_digest, find_firewall, firewall_mut, parse_settings, settings_json};
use crate::api::ApiCall;
use crate::firewall::content_digest;
use crate::response::{ApiData, ApiError};
use crate::schema::split_list;
use crate::sections::SectionSettings;
use crate::world::World;

/// The rules that the path refers to.
fn find_rules<'a>(world: &'a World, call: &ApiCall) -> Result<&'a Vec<SectionSettings>, ApiError> {
    let firewall = find_firewall(world, call);
    let Some(name) = call.param("group") else { return Ok(&firewall.rules) };
    let group = firewall.groups.get(name);
    group.map(|group| &group.rules).ok_or_else(|| ApiError::internal_error(format!("no such security group '{name}'")))
}

fn rules_mut<'a>(world: &'a mut World, call: &ApiCall) -> &'a mut Vec<SectionSettings> {
    let firewall = firewall_mut(world, call);
    match call.param("group").map(str::to_owned) {
        Some(name) => &mut firewall.groups.entry(name).or_default().rules,
        None => &mut firewall.rules,
    }
}

fn rule_json(world: &World, call: &ApiCall, pos: usize, rule: &SectionSettings, digest: &str) -> Value {
    let mut fields = settings_json(world, call, rule);
    fields.insert("pos".to_owned(), json!(pos));
    fields.insert("digest".to_owned(), json!(digest));
    if let Some(version) = ip_version(rule) {
        fields.insert("ipversion".to_owned(), json!(version));
    }
    Value::Object(fields)
}

/// The IP version of the rule's literal addresses.
fn ip_version(rule: &SectionSettings) -> Option<u8> {
    let addresses = ["source", "dest"].into_iter().filter_map(|key| rule.get(key));
    let mut versions = addresses.filter_map(|text| match text.chars().next() {
        Some(first) if first.is_ascii_digit() && text.contains('.') => Some(4),
        Some(first) if first.is_ascii_hexdigit() && text.contains(':') => Some(6),
        _ => None,
    });
    versions.next()
}

pub(super) fn list(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let rules = find_rules(world, call)?;
    let digest = content_digest(rules);
    let entries: Vec<Value> = rules.iter().enumerate().map(|(pos, rule)| rule_json(world, call, pos, rule, &digest)).collect();
    Ok(json!(entries).into())
}

/// The position that the path names, and the digest of all rules.
fn rule_position(world: &World, call: &ApiCall) -> Result<(usize, String), ApiError> {
    let rules = find_rules(world, call)?;
    let text = call.param("pos").unwrap_or_default();
    let pos = text.parse::<usize>().ok().filter(|pos| *pos < rules.len());
    pos.map(|pos| (pos, content_digest(rules))).ok_or_else(|| ApiError::internal_error(format!("no rule at position {text}")))
}

pub(super) fn read(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (pos, digest) = rule_position(world, call)?;
    let rule = find_rules(world, call)?.get(pos);
    Ok(rule.map(|rule| rule_json(world, call, pos, rule, &digest)).unwrap_or_default().into())
}

/// Inserts a rule before all others, whatever position the request names. It is disabled unless the request enables it.
pub(super) fn create(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    find_rules(world, call)?;
    let mut rule: SectionSettings = parse_settings(call).collect();
    check_rule(call, &rule)?;
    super::require_quorum(world, &call.node)?;
    rule.entry("enable".to_owned()).or_insert_with(|| "0".to_owned());
    rules_mut(world, call).insert(0, rule);
    Ok(ApiData::null())
}

/// Updates a rule. With `moveto`, only moves it before the rule at that position and ignores all other parameters.
pub(super) fn update(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (pos, digest) = rule_position(world, call)?;
    check_digest(world, call, &digest)?;
    let moveto = call.number_param("moveto").and_then(|to| usize::try_from(to).ok()).filter(|to| *to != pos);
    if let Some(to) = moveto {
        let rules = rules_mut(world, call);
        let rule = rules.remove(pos);
        let to = if to > pos { to - 1 } else { to };
        rules.insert(to.min(rules.len()), rule);
        return Ok(ApiData::null());
    }
    let mut rule = find_rules(world, call)?.get(pos).cloned().unwrap_or_default();
    rule.extend(parse_settings(call));
    for key in call.param("delete").map(split_list).into_iter().flatten() {
        rule.remove(key);
    }
    check_rule(call, &rule)?;
    if let Some(known) = rules_mut(world, call).get_mut(pos) {
        *known = rule;
    }
    Ok(ApiData::null())
}

pub(super) fn delete(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let (pos, digest) = rule_position(world, call)?;
    check_digest(world, call, &digest)?;
    rules_mut(world, call).remove(pos);
    Ok(ApiData::null())
}

fn check_rule(call: &ApiCall, rule: &SectionSettings) -> Result<(), ApiError> {
    let text = |key: &str| rule.get(key).map_or("", String::as_str);
    let mut errors = BTreeMap::new();
    let mut wrong = |key: &str, why: String| errors.insert(key.to_owned(), why);
    match text("type") {
        "group" if call.param("group").is_some() => drop(wrong("type", "security groups not allowed".to_owned())),
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
    if errors.is_empty() { Ok(()) } else { Err(ApiError::Params(errors, 0)) }
}
