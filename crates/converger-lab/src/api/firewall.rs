//! Firewalls of the cluster, of nodes and of guests. All share these handlers; the path says which
//! firewall is meant.
//!
//! Firewall configs are shared files: any node answers, and Proxmox does not check that the guest
//! exists. The lab stores firewalls and never applies them.

mod aliases;
mod groups;
mod ipsets;
mod rules;

use serde_json::{Map, Value, json};

use super::{ApiCall, ApiRoute, require_quorum};
use crate::firewall::{Firewall, FirewallScope, content_digest};
use crate::response::{ApiData, ApiError};
use crate::schema::{ValueType, split_list};
use crate::sections::{MODIFIED_TEXT, SectionSettings};
use crate::world::World;

pub(super) const ROUTES: &[ApiRoute] = &[
    ("GET", "/cluster/firewall", index),
    ("GET", "/cluster/firewall/options", read_options),
    ("PUT", "/cluster/firewall/options", set_options),
    ("GET", "/cluster/firewall/macros", list_macros),
    ("GET", "/cluster/firewall/refs", list_refs),
    ("GET", "/cluster/firewall/rules", rules::list),
    ("POST", "/cluster/firewall/rules", rules::create),
    ("GET", "/cluster/firewall/rules/{pos}", rules::read),
    ("PUT", "/cluster/firewall/rules/{pos}", rules::update),
    ("DELETE", "/cluster/firewall/rules/{pos}", rules::delete),
    ("GET", "/cluster/firewall/groups", groups::list),
    ("POST", "/cluster/firewall/groups", groups::create),
    ("DELETE", "/cluster/firewall/groups/{group}", groups::delete),
    ("GET", "/cluster/firewall/groups/{group}", rules::list),
    ("POST", "/cluster/firewall/groups/{group}", rules::create),
    ("GET", "/cluster/firewall/groups/{group}/{pos}", rules::read),
    ("PUT", "/cluster/firewall/groups/{group}/{pos}", rules::update),
    ("DELETE", "/cluster/firewall/groups/{group}/{pos}", rules::delete),
    ("GET", "/cluster/firewall/aliases", aliases::list),
    ("POST", "/cluster/firewall/aliases", aliases::create),
    ("GET", "/cluster/firewall/aliases/{name}", aliases::read),
    ("PUT", "/cluster/firewall/aliases/{name}", aliases::update),
    ("DELETE", "/cluster/firewall/aliases/{name}", aliases::delete),
    ("GET", "/cluster/firewall/ipset", ipsets::list),
    ("POST", "/cluster/firewall/ipset", ipsets::create),
    ("GET", "/cluster/firewall/ipset/{name}", ipsets::read),
    ("POST", "/cluster/firewall/ipset/{name}", ipsets::add_entry),
    ("DELETE", "/cluster/firewall/ipset/{name}", ipsets::delete),
    ("GET", "/cluster/firewall/ipset/{name}/{cidr}", ipsets::read_entry),
    ("PUT", "/cluster/firewall/ipset/{name}/{cidr}", ipsets::update_entry),
    ("DELETE", "/cluster/firewall/ipset/{name}/{cidr}", ipsets::remove_entry),
    ("GET", "/nodes/{node}/firewall", index),
    ("GET", "/nodes/{node}/firewall/options", read_options),
    ("PUT", "/nodes/{node}/firewall/options", set_options),
    ("GET", "/nodes/{node}/firewall/rules", rules::list),
    ("POST", "/nodes/{node}/firewall/rules", rules::create),
    ("GET", "/nodes/{node}/firewall/rules/{pos}", rules::read),
    ("PUT", "/nodes/{node}/firewall/rules/{pos}", rules::update),
    ("DELETE", "/nodes/{node}/firewall/rules/{pos}", rules::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall", index),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/options", read_options),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/options", set_options),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/log", read_log),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/refs", list_refs),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/rules", rules::list),
    ("POST", "/nodes/{node}/{kind}/{vmid}/firewall/rules", rules::create),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/rules/{pos}", rules::read),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/rules/{pos}", rules::update),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/firewall/rules/{pos}", rules::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/aliases", aliases::list),
    ("POST", "/nodes/{node}/{kind}/{vmid}/firewall/aliases", aliases::create),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/aliases/{name}", aliases::read),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/aliases/{name}", aliases::update),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/firewall/aliases/{name}", aliases::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/ipset", ipsets::list),
    ("POST", "/nodes/{node}/{kind}/{vmid}/firewall/ipset", ipsets::create),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}", ipsets::read),
    ("POST", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}", ipsets::add_entry),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}", ipsets::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}/{cidr}", ipsets::read_entry),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}/{cidr}", ipsets::update_entry),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}/{cidr}", ipsets::remove_entry),
];

/// Parameters that are not settings.
const CONTROL_PARAMETERS: &[&str] = &["node", "vmid", "group", "digest", "delete", "pos", "moveto"];

/// Services that a rule can name instead of a protocol and a port; a small selection of Proxmox's macros.
const MACROS: &[(&str, &str)] = &[
    ("DNS", "Domain Name System traffic (upd and tcp)"),
    ("HTTP", "Hypertext Transfer Protocol (WWW)"),
    ("HTTPS", "Hypertext Transfer Protocol (WWW) over SSL"),
    ("NTP", "Network Time Protocol (ntpd)"),
    ("Ping", "ICMP echo request"),
    ("SMTP", "Simple Mail Transfer Protocol"),
    ("SSH", "Secure shell traffic"),
    ("Web", "WWW traffic (HTTP and HTTPS)"),
];

/// The firewall that the path refers to.
fn firewall_scope(call: &ApiCall) -> FirewallScope {
    match call.method.template.split('/').nth(1) {
        Some("cluster") => FirewallScope::Cluster,
        _ if call.param("vmid").is_some() => FirewallScope::Guest(call.vmid()),
        _ => FirewallScope::Node(call.node.clone()),
    }
}

fn find_firewall<'a>(world: &'a World, call: &ApiCall) -> &'a Firewall {
    world.firewalls.get(&firewall_scope(call))
}

fn firewall_mut<'a>(world: &'a mut World, call: &ApiCall) -> &'a mut Firewall {
    world.firewalls.entry(firewall_scope(call))
}

/// Checks the digest that the caller passed, and that the cluster is writable.
fn check_digest(world: &World, call: &ApiCall, now: &str) -> Result<(), ApiError> {
    match call.param("digest") {
        Some(digest) if digest != now => Err(ApiError::internal_error(MODIFIED_TEXT)),
        _ => require_quorum(world, &call.node),
    }
}

fn index(_: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let subdirectories: &[&str] = match firewall_scope(call) {
        FirewallScope::Cluster => &["aliases", "rules", "options", "groups", "ipset", "macros", "refs"],
        FirewallScope::Node(_) => &["rules", "options", "log"],
        FirewallScope::Guest(_) => &["aliases", "rules", "options", "ipset", "log", "refs"],
    };
    Ok(json!(subdirectories.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>()).into())
}

fn list_macros(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(json!(MACROS.iter().map(|(name, text)| json!({ "macro": name, "descr": text })).collect::<Vec<_>>()).into())
}

/// The lab drops no packets, so the log is empty.
fn read_log(_: &mut World, _: &ApiCall) -> Result<ApiData, ApiError> {
    Ok(ApiData::from(json!([{ "n": 1, "t": "no content" }])).with_total(1))
}

/// What rules can refer to: for a guest, its own aliases and IP sets and those of the cluster.
fn list_refs(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let own = match firewall_scope(call) {
        FirewallScope::Guest(vmid) => Some((FirewallScope::Guest(vmid), "guest")),
        _ => None,
    };
    let scopes = own.into_iter().chain([(FirewallScope::Cluster, "dc")]);
    let rows: Vec<Value> = scopes.flat_map(|(scope, scope_name)| reference_rows(world.firewalls.get(&scope), scope_name)).collect();
    Ok(json!(rows).into())
}

fn reference_rows(firewall: &Firewall, scope: &str) -> Vec<Value> {
    let row = |kind: &str, mark: &str, name: &str, comment: &Option<String>| {
        with_comment(json!({ "type": kind, "name": name, "ref": format!("{mark}{scope}/{name}"), "scope": scope }), comment.as_deref())
    };
    let aliases = firewall.aliases.values().map(|alias| row("alias", "", &alias.name, &alias.comment));
    let sets = firewall.ipsets.iter().map(|(name, set)| row("ipset", "+", name, &set.comment));
    aliases.chain(sets).collect()
}

/// Adds the comment to an entry, if there is one.
fn with_comment(mut entry: Value, comment: Option<&str>) -> Value {
    if let Some(comment) = comment {
        entry["comment"] = json!(comment);
    }
    entry
}

/// The comment of a request; an empty one counts as none.
fn parse_comment(call: &ApiCall) -> Option<String> {
    call.param("comment").filter(|comment| !comment.is_empty()).map(str::to_owned)
}

/// Settings as JSON, with the types that the method's parameters have.
fn settings_json(world: &World, call: &ApiCall, settings: &SectionSettings) -> Map<String, Value> {
    let value = |(key, text): (&String, &String)| {
        let base = call.method.parameter(key, world.flavour).map(|parameter| parameter.shape.base);
        let number = || text.parse::<i64>().ok().map(Value::from);
        let whole = matches!(base, Some(ValueType::Integer | ValueType::Boolean)) || ["enable", "pos"].contains(&key.as_str());
        (key.clone(), number().filter(|_| whole).unwrap_or_else(|| json!(text)))
    };
    settings.iter().map(value).collect()
}

fn parse_settings(call: &ApiCall) -> impl Iterator<Item = (String, String)> + '_ {
    call.values.iter().filter(|(key, _)| !CONTROL_PARAMETERS.contains(&key.as_str())).cloned()
}

fn read_options(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    let options = &find_firewall(world, call).options;
    let numbers = |text: &String| text.parse::<i64>().map_or_else(|_| json!(text), Value::from);
    let mut fields: Map<String, Value> = options.iter().map(|(key, text)| (key.clone(), numbers(text))).collect();
    fields.insert("digest".to_owned(), json!(content_digest(options)));
    Ok(Value::Object(fields).into())
}

fn set_options(world: &mut World, call: &ApiCall) -> Result<ApiData, ApiError> {
    check_digest(world, call, &content_digest(&find_firewall(world, call).options))?;
    let deletes: Vec<&str> = call.param("delete").map(split_list).into_iter().flatten().collect();
    if let Some(key) = deletes.iter().find(|key| call.method.parameter(key, world.flavour).is_none()) {
        return Err(ApiError::parameter_error("delete", format!("no such option '{key}'")));
    }
    let options = &mut firewall_mut(world, call).options;
    options.retain(|key, _| !deletes.contains(&key.as_str()));
    options.extend(parse_settings(call));
    Ok(ApiData::null())
}
