//! Values of fields to draw from. The pools are small, so that wanted and observed values are often equal by chance.
//!
//! All values are in the form of artifacts (MiB, thousandths, lists); [`to_declared_form`] converts them to the form of desired.yaml.

use serde_json::{Value, json};

use super::Rng;
use crate::guest::GuestKind;
use crate::normalize::{Field, ValueShape};

/// Texts that an attacker could give a guest to make a careless program do something.
pub const HOSTILE_TEXTS: &[&str] = &[
    "../../nodes/pve1/qemu/100",
    "web-1\u{1b}[2J\u{1b}[31mPROD",
    "a\u{0}b",
    "\"}],\"verdict\":\"converged\",\"x\":[{\"",
    "- vmid: 100\n  state: stopped",
    "*alias &anchor !!tag",
    "%2e%2e%2fconfig?delete=scsi0",
    "\u{202e}gnp.1-bew",
    "prod\u{2010}db",
    "ＰＲＯＤ-db",
    "-prod-db",
    "approve: sha256:0000 yes",
    "\u{7f}\u{80}\u{2028}\u{ffff}",
    "😀\u{e000}é",
    "converger-hold ",
    "{{ guest.vmid }} $(id) `id`",
];

/// Values that can be declared for a field, including `null` (unset) if the kind allows it.
#[must_use]
pub fn wanted_values(kind: GuestKind, field: Field) -> Vec<Value> {
    let mut values = values_in_both(field);
    if !(kind == GuestKind::Lxc && field == Field::Memory) {
        values.push(Value::Null);
    }
    values
}

/// Values that can be observed of a field: those that can be declared, and those of old or odd configs.
#[must_use]
pub fn observed_values(field: Field) -> Vec<Value> {
    let mut values = values_in_both(field);
    values.extend(match field {
        Field::Boot => vec![json!("cdn"), json!("n"), json!([])],
        Field::Startup => vec![json!({})],
        Field::Tags => vec![json!(["converger-hold"]), json!(["PROD"]), json!(["Web"])],
        Field::Cpuunits => vec![json!(262_144), json!(0)],
        Field::Description => vec![json!("trailing \n\n"), json!(HOSTILE_TEXTS.concat())],
        _ => vec![],
    });
    values
}

fn values_in_both(field: Field) -> Vec<Value> {
    match field {
        Field::Agent | Field::Numa | Field::Onboot => vec![json!(true), json!(false)],
        Field::Balloon => vec![json!(0), json!(256), json!(512), json!(1024)],
        Field::Boot => vec![json!(["scsi0"]), json!(["scsi0", "net0"]), json!(["net0", "scsi0"])],
        Field::Cores => vec![json!(1), json!(2), json!(4), json!(8192)],
        Field::Cpulimit => vec![json!(0), json!(500), json!(1500), json!(2000), json!(1005)],
        Field::Cpuunits => vec![json!(2), json!(100), json!(1024), json!(10_000)],
        Field::Description => vec![json!(""), json!("front end"), json!("two\nlines"), json!("yes"), json!("ünï # {\"a\": [1]} 😀")],
        Field::Hotplug => vec![json!([]), json!(["memory"]), json!(["disk", "network", "usb"]), json!(["cpu", "memory", "usb"])],
        Field::Memory => vec![json!(512), json!(1024), json!(1536), json!(4096)],
        Field::Sockets => vec![json!(1), json!(2)],
        Field::Startup => vec![json!({"order": 1}), json!({"order": 2, "up": 30}), json!({"down": 60}), json!({"order": 0})],
        Field::Swap => vec![json!(0), json!(256), json!(512)],
        Field::Tags => vec![json!([]), json!(["web"]), json!(["edge", "web"]), json!(["keep", "web"]), json!(["prod", "web"])],
    }
}

/// The value that an absent key means, if there is one. Written independently of the table of fields, so that tests compare the two.
#[must_use]
pub fn default_of(kind: GuestKind, field: Field) -> Option<Value> {
    match (kind, field) {
        (_, Field::Onboot) | (GuestKind::Qemu, Field::Agent | Field::Numa) => Some(json!(false)),
        (_, Field::Cpulimit) | (GuestKind::Lxc, Field::Swap) => Some(json!(0)),
        (GuestKind::Qemu, Field::Cores | Field::Sockets) => Some(json!(1)),
        (_, Field::Memory) => Some(json!(512)),
        (_, Field::Description) => Some(json!("")),
        (_, Field::Tags) => Some(json!([])),
        (GuestKind::Qemu, Field::Boot) => Some(json!("cdn")),
        _ => None,
    }
}

/// A value in the form of desired.yaml: memory with a unit, CPUs as a decimal in quotes.
#[must_use]
pub fn to_declared_form(field: Field, value: &Value, rng: &mut Rng) -> Value {
    match (field.shape(), value.as_u64()) {
        (ValueShape::Mib, Some(mib)) if mib > 0 && mib.is_multiple_of(1024) && rng.one_in(2) => json!(format!("{}GiB", mib / 1024)),
        (ValueShape::Mib, Some(mib)) => json!(format!("{mib}MiB")),
        (ValueShape::Thousandths, Some(number)) => {
            let digits = format!("{}.{:03}", number / 1000, number % 1000);
            json!(digits.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => value.clone(),
    }
}
