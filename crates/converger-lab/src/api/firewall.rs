//! Firewalls: of the cluster, of nodes, of guests. The rooms are the same for all of them; whose it is, the path says.
//!
//! They are shared files: any node answers, and nobody asks whether the guest exists. What never
//! enters here: what a firewall does.

mod aliases;
mod groups;
mod ipsets;
mod rules;

use serde_json::{Map, Value, json};

use super::{Call, Route, need_quorum};
use crate::firewall::{Firewall, Scope, digest};
use crate::respond::{Data, Fail};
use crate::schema::{Base, split_list};
use crate::sections::{MODIFIED, Settings};
use crate::world::World;

pub(super) const ROUTES: &[Route] = &[
    ("GET", "/cluster/firewall", index),
    ("GET", "/cluster/firewall/options", options),
    ("PUT", "/cluster/firewall/options", set_options),
    ("GET", "/cluster/firewall/macros", macros),
    ("GET", "/cluster/firewall/refs", refs),
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
    ("POST", "/cluster/firewall/ipset/{name}", ipsets::add),
    ("DELETE", "/cluster/firewall/ipset/{name}", ipsets::delete),
    ("GET", "/cluster/firewall/ipset/{name}/{cidr}", ipsets::read_one),
    ("PUT", "/cluster/firewall/ipset/{name}/{cidr}", ipsets::update_one),
    ("DELETE", "/cluster/firewall/ipset/{name}/{cidr}", ipsets::remove),
    ("GET", "/nodes/{node}/firewall", index),
    ("GET", "/nodes/{node}/firewall/options", options),
    ("PUT", "/nodes/{node}/firewall/options", set_options),
    ("GET", "/nodes/{node}/firewall/rules", rules::list),
    ("POST", "/nodes/{node}/firewall/rules", rules::create),
    ("GET", "/nodes/{node}/firewall/rules/{pos}", rules::read),
    ("PUT", "/nodes/{node}/firewall/rules/{pos}", rules::update),
    ("DELETE", "/nodes/{node}/firewall/rules/{pos}", rules::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall", index),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/options", options),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/options", set_options),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/log", log),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/refs", refs),
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
    ("POST", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}", ipsets::add),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}", ipsets::delete),
    ("GET", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}/{cidr}", ipsets::read_one),
    ("PUT", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}/{cidr}", ipsets::update_one),
    ("DELETE", "/nodes/{node}/{kind}/{vmid}/firewall/ipset/{name}/{cidr}", ipsets::remove),
];

/// Parameters that are no settings.
const NOT_KEYS: &[&str] = &["node", "vmid", "group", "digest", "delete", "pos", "moveto"];

/// Services that a rule can name instead of protocol and port; a small choice of Proxmox's.
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

/// Whose firewall the path names.
fn scope(call: &Call) -> Scope {
    match call.method.template.split('/').nth(1) {
        Some("cluster") => Scope::Cluster,
        _ if call.text("vmid").is_some() => Scope::Guest(call.vmid()),
        _ => Scope::Node(call.node.clone()),
    }
}

fn of<'a>(world: &'a World, call: &Call) -> &'a Firewall {
    world.firewalls.get(&scope(call))
}

fn of_mut<'a>(world: &'a mut World, call: &Call) -> &'a mut Firewall {
    world.firewalls.entry(scope(call))
}

/// Whether it is still what the caller saw, and can be written.
fn unchanged(world: &World, call: &Call, now: &str) -> Result<(), Fail> {
    match call.text("digest") {
        Some(given) if given != now => Err(Fail::died(MODIFIED)),
        _ => need_quorum(world, &call.node),
    }
}

fn index(_: &mut World, call: &Call) -> Result<Data, Fail> {
    let rooms: &[&str] = match scope(call) {
        Scope::Cluster => &["aliases", "rules", "options", "groups", "ipset", "macros", "refs"],
        Scope::Node(_) => &["rules", "options", "log"],
        Scope::Guest(_) => &["aliases", "rules", "options", "ipset", "log", "refs"],
    };
    Ok(json!(rooms.iter().map(|name| json!({ "name": name })).collect::<Vec<_>>()).into())
}

fn macros(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(json!(MACROS.iter().map(|(name, text)| json!({ "macro": name, "descr": text })).collect::<Vec<_>>()).into())
}

/// Nothing was ever dropped.
fn log(_: &mut World, _: &Call) -> Result<Data, Fail> {
    Ok(Data::from(json!([{ "n": 1, "t": "no content" }])).total(1))
}

/// What rules can refer to: for a guest its own names and the cluster's.
fn refs(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let own = match scope(call) {
        Scope::Guest(vmid) => Some((Scope::Guest(vmid), "guest")),
        _ => None,
    };
    let scopes = own.into_iter().chain([(Scope::Cluster, "dc")]);
    let rows: Vec<Value> = scopes.flat_map(|(scope, word)| references(world.firewalls.get(&scope), word)).collect();
    Ok(json!(rows).into())
}

fn references(firewall: &Firewall, scope: &str) -> Vec<Value> {
    let row = |kind: &str, mark: &str, name: &str, comment: &Option<String>| {
        with_comment(json!({ "type": kind, "name": name, "ref": format!("{mark}{scope}/{name}"), "scope": scope }), comment.as_deref())
    };
    let aliases = firewall.aliases.values().map(|alias| row("alias", "", &alias.name, &alias.comment));
    let sets = firewall.ipsets.iter().map(|(name, set)| row("ipset", "+", name, &set.comment));
    aliases.chain(sets).collect()
}

/// An entry with its comment, where it has one.
fn with_comment(mut entry: Value, comment: Option<&str>) -> Value {
    if let Some(comment) = comment {
        entry["comment"] = json!(comment);
    }
    entry
}

/// The comment of a request; an empty one is none.
fn comment(call: &Call) -> Option<String> {
    call.text("comment").filter(|comment| !comment.is_empty()).map(str::to_owned)
}

/// Settings as JSON, with the types that the method's parameters have.
fn typed(world: &World, call: &Call, settings: &Settings) -> Map<String, Value> {
    let value = |(key, text): (&String, &String)| {
        let base = call.method.parameter(key, world.flavour).map(|parameter| parameter.shape.base);
        let number = || text.parse::<i64>().ok().map(Value::from);
        let whole = matches!(base, Some(Base::Integer | Base::Boolean)) || ["enable", "pos"].contains(&key.as_str());
        (key.clone(), number().filter(|_| whole).unwrap_or_else(|| json!(text)))
    };
    settings.iter().map(value).collect()
}

fn settings(call: &Call) -> impl Iterator<Item = (String, String)> + '_ {
    call.values.iter().filter(|(key, _)| !NOT_KEYS.contains(&key.as_str())).cloned()
}

fn options(world: &mut World, call: &Call) -> Result<Data, Fail> {
    let options = &of(world, call).options;
    let numbers = |text: &String| text.parse::<i64>().map_or_else(|_| json!(text), Value::from);
    let mut fields: Map<String, Value> = options.iter().map(|(key, text)| (key.clone(), numbers(text))).collect();
    fields.insert("digest".to_owned(), json!(digest(options)));
    Ok(Value::Object(fields).into())
}

fn set_options(world: &mut World, call: &Call) -> Result<Data, Fail> {
    unchanged(world, call, &digest(&of(world, call).options))?;
    let deletes: Vec<&str> = call.text("delete").map(split_list).into_iter().flatten().collect();
    if let Some(key) = deletes.iter().find(|key| call.method.parameter(key, world.flavour).is_none()) {
        return Err(Fail::param("delete", format!("no such option '{key}'")));
    }
    let options = &mut of_mut(world, call).options;
    options.retain(|key, _| !deletes.contains(&key.as_str()));
    options.extend(settings(call));
    Ok(Data::null())
}
