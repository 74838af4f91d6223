//! Every answer against what the official documentation of 9.2 says that its method returns: required
//! keys are there, known keys have their type.
//!
//! Keys that the documentation leaves out are allowed: Proxmox sends many. Keys that 7 and 8 do not
//! know yet are listed.

use std::collections::BTreeMap;

use converger_lab::{Flavour, Scale, Setting};
use serde::Deserialize;
use serde_json::Value;

use crate::lab::{Lab, data};

#[derive(Deserialize)]
struct Row {
    m: String,
    p: String,
    r: Value,
}

/// Required keys that came with 9.
const SINCE_NINE: &[&str] = &["has-dbus-vmstate", "mapped-resource-info"];

/// Keys whose documented type Proxmox itself does not keep.
const LOOSE: &[&str] = &["value", "pending", "memory", "state"];

fn returns() -> BTreeMap<(String, String), Value> {
    let rows = include_str!("../data/returns.jsonl").lines().filter_map(|line| serde_json::from_str::<Row>(line).ok());
    rows.map(|row| ((row.m, row.p), row.r)).collect()
}

fn agrees(place: &str, wanted: &Value, found: &Value) -> Result<(), String> {
    match (wanted, found) {
        (Value::String(letter), _) => leaf(place, letter, found),
        (Value::Array(items), Value::Array(found)) => {
            found.iter().try_for_each(|item| items.first().map_or(Ok(()), |wanted| agrees(&format!("{place}[]"), wanted, item)))
        }
        (Value::Object(wanted), Value::Object(_)) => wanted.iter().try_for_each(|(key, inner)| {
            let name = key.trim_end_matches('?');
            match found.get(name) {
                _ if name.contains('#') || LOOSE.contains(&name) => Ok(()),
                Some(here) => agrees(&format!("{place}.{name}"), inner, here),
                None if key.ends_with('?') || SINCE_NINE.contains(&name) => Ok(()),
                None => Err(format!("{place}: `{name}` is missing in {found}")),
            }
        }),
        _ => Err(format!("{place}: expected {wanted}, got {found}")),
    }
}

/// Perl's scalars are loose: a number may come as text.
fn leaf(place: &str, letter: &str, found: &Value) -> Result<(), String> {
    let numeric = found.is_number() || found.as_str().is_some_and(|text| text.parse::<f64>().is_ok());
    let fits = match letter {
        "0" => found.is_null(),
        "i" | "n" => numeric,
        "b" => numeric || found.is_boolean(),
        "s" => found.is_string(),
        _ => true,
    };
    if fits { Ok(()) } else { Err(format!("{place}: expected `{letter}`, got {found}")) }
}

/// What a path's captures can be in a seeded world.
fn filled(template: &str, vmid: u32, node: &str) -> String {
    let names = [("{node}", node), ("{vmid}", &vmid.to_string()), ("{userid}", "root@pam"), ("{tokenid}", "lab"), ("{roleid}", "PVEAdmin")];
    let more = [("{storage}", "tank"), ("{snapname}", "s1"), ("{poolid}", "p"), ("{sid}", "vm:100"), ("{pos}", "0")];
    names.iter().chain(&more).fold(template.to_owned(), |path, (name, value)| path.replace(name, value))
}

fn prepared(flavour: Flavour) -> Lab {
    let mut setting = Setting::seeded(5, Scale { nodes: 2, guests: 12 }, flavour);
    setting.guests.iter_mut().for_each(|guest| drop(guest.config.remove("lock")));
    let mut lab = Lab::of(&setting);
    lab.done("POST", "/pools", "poolid=p");
    for truth in lab.world.truths().collect::<Vec<_>>() {
        let kind = if truth.kind == converger_lab::Kind::Qemu { "qemu" } else { "lxc" };
        let path = format!("/nodes/{}/{kind}/{}", truth.node, truth.vmid);
        lab.done("POST", &format!("{path}/snapshot"), "snapname=s1");
        lab.done("POST", &format!("{path}/firewall/rules"), "type=in&action=ACCEPT&enable=1");
    }
    lab.pass(20_000);
    lab
}

#[test]
fn what_is_read_has_the_documented_shape() {
    for flavour in [Flavour::V7, Flavour::V8, Flavour::V9] {
        let mut lab = prepared(flavour);
        let truths: Vec<converger_lab::Truth> = lab.world.truths().collect();
        let mut checked = 0;
        for ((_, template), wanted) in returns().iter().filter(|((verb, _), _)| verb == "GET") {
            for truth in &truths {
                let kind = if truth.kind == converger_lab::Kind::Qemu { "/qemu" } else { "/lxc" };
                if template.contains("{vmid}") && !template.contains(kind) {
                    continue;
                }
                let answer = lab.ask("GET", &filled(template, truth.vmid, &truth.node), "");
                // What the lab does not play says so, and what is not there too.
                if answer.status == 200 {
                    checked += 1;
                    agrees(template, wanted, &data(&answer)).unwrap_or_else(|error| panic!("{flavour:?} {error}"));
                }
            }
        }
        assert!(checked > 250, "{flavour:?}: only {checked}");
    }
}

#[test]
fn what_is_written_returns_a_task_or_nothing_as_documented() {
    let mut lab = prepared(Flavour::V9);
    let returns = returns();
    let guest = lab.world.truths().find(|truth| truth.kind == converger_lab::Kind::Qemu).unwrap_or_else(|| panic!("there is one"));
    let calls = [
        ("PUT", "/config", "description=x"),
        ("POST", "/config", "description=y"),
        ("POST", "/snapshot", "snapname=s2"),
        ("PUT", "/snapshot/s2/config", "description=z"),
        ("DELETE", "/snapshot/s2", ""),
        ("POST", "/status/stop", ""),
        ("PUT", "/resize", "disk=scsi0&size=900G"),
        ("POST", "/clone", "newid=900&full=1"),
        ("POST", "/status/start", ""),
        ("POST", "/status/reset", ""),
        ("PUT", "/firewall/options", "enable=0"),
    ];
    for (method, verb, form) in calls {
        let path = format!("/nodes/{}/qemu/{}{verb}", guest.node, guest.vmid);
        let template = format!("/nodes/{{node}}/qemu/{{vmid}}{}", verb.replace("/s2", "/{snapname}"));
        let answer = lab.done(method, &path, form);
        let wanted = &returns[&(method.to_owned(), template.clone())];
        agrees(&template, wanted, &answer).unwrap_or_else(|error| panic!("{error}"));
    }
}
