//! Adopting guests: single examples. Properties that must hold in general are under `properties`.

mod pin;
mod pin_layout;
mod scaffold;

use converger_core::desired::Scope;
use converger_core::document::Diagnostics;
use converger_core::guest::Vmid;
use converger_core::observe::{self, Scoped};
use serde_json::{Value, json};

const UUID: &str = "1c0d6f6e-5a0e-4a55-9d3c-000000000064";
const OTHER_UUID: &str = "99999999-5a0e-4a55-9d3c-000000000064";

fn scope_of(numbers: &[u64]) -> Scope {
    Scope::new(numbers.iter().map(|number| Vmid::new(*number).expect("an id")).collect())
}

/// A fully read guest with these additional members; `null` removes a member.
fn guest_row(vmid: u64, kind: &str, members: &Value) -> Value {
    let identity = match kind {
        "qemu" => json!({ "uuid": UUID, "ctime": 1_700_000_000 }),
        _ => json!({ "rootfs": format!("local-lvm:vm-{vmid}-disk-0"), "mac": "BC:24:11:00:00:01" }),
    };
    let mut row = json!({
        "vmid": vmid, "kind": kind, "name": "web-1", "node": "pve1", "status": "running", "lock": null, "ha": null, "template": false,
        "protection": false, "tags": [], "identity": identity, "config": {}, "pending": [],
    });
    for (key, member) in members.as_object().expect("members") {
        match member {
            Value::Null => row.as_object_mut().expect("a row").remove(key),
            member => row.as_object_mut().expect("a row").insert(key.clone(), member.clone()),
        };
    }
    row
}

/// An observation of these rows, in the scope of 100 to 105.
fn observation_of(rows: &[Value], members: &Value) -> Scoped {
    let mut reading = json!({
        "schema": observe::SCHEMA, "environment": "lab", "complete": true, "quorate": true,
        "nodes": [{ "name": "pve1", "online": true }, { "name": "pve2", "online": false }], "guests": rows,
    });
    for (key, member) in members.as_object().expect("members") {
        reading[key] = member.clone();
    }
    let observation = observe::parse(reading.to_string().as_bytes()).unwrap_or_else(|faults| panic!("{reading}: {faults:#?}"));
    observation.into_scoped(&scope_of(&[100, 101, 102, 103, 104, 105]))
}

fn messages(faults: &Diagnostics) -> Vec<&str> {
    faults.list().iter().map(|fault| fault.message.as_str()).collect()
}
