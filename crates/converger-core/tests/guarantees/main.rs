//! Negative tests, each named after the guarantee that it checks: what must not be planned, in small scenes that differ from a harmless one
//! in a single point. The harmless scenes are tested too, so that a planner that refuses everything does not pass.

mod dependency;
mod foreign_text;
mod incomplete_observation;
mod protection;
mod records;
mod regressions;
mod scope;

use serde_json::{Value, json};

use converger_core::policy::Rules;
use converger_core::testing::{TestWorld, plan_body};

/// A declared virtual machine.
fn desired_guest(vmid: u64, name: &str, more: Value) -> Value {
    merge_members(json!({ "vmid": vmid, "kind": "qemu", "name": name }), more)
}

/// A fully read row with nothing that prevents a step.
fn observed_row(vmid: u64, name: &str, status: &str, more: Value) -> Value {
    let row = json!({ "vmid": vmid, "kind": "qemu", "name": name, "node": "pve1", "status": status, "lock": null, "ha": null,
        "template": false, "protection": false, "tags": [], "pending": [], "config": { "cores": 2 },
        "identity": { "uuid": "1c0d6f6e-5a0e-4a55-9d3c-2f9a3c7b1e10" } });
    merge_members(row, more)
}

fn merge_members(mut tree: Value, more: Value) -> Value {
    for (key, value) in more.as_object().into_iter().flatten() {
        tree[key] = value.clone();
    }
    tree
}

/// The row without this member.
fn remove_member(mut row: Value, key: &str) -> Value {
    row.as_object_mut().expect("a row").remove(key);
    row
}

/// A complete observation with quorum, of one node that is online and one that is offline.
fn world_of(guests: Value, rows: Value) -> TestWorld {
    TestWorld {
        desired: json!({ "version": 1, "environment": "lab", "guests": guests }),
        observation: json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
            "nodes": [{ "name": "pve1", "online": true }, { "name": "pve2", "online": false }], "guests": rows }),
        rules: Rules::default(),
    }
}

fn body_json(world: &TestWorld) -> Value {
    let inputs = world.parse().unwrap_or_else(|faults| panic!("{faults:#?}\n{world:?}"));
    serde_json::from_slice(&plan_body(&inputs.plan())).expect("a body is JSON")
}

/// The verdict for a guest in one line: `converged`, `steps: config.set, start`, `refused: guest-locked`.
fn describe_verdict(world: &TestWorld, vmid: u64) -> String {
    let plan = body_json(world);
    let guests = plan["guests"].as_array().expect("a list");
    let guest = guests.iter().find(|guest| guest["vmid"] == vmid).expect("every declared guest is in the plan");
    let join_values = |list: &Value, key: &str| {
        let values: Vec<&str> = list.as_array().into_iter().flatten().filter_map(|entry| entry[key].as_str()).collect();
        values.join(", ")
    };
    match guest["verdict"].as_str() {
        Some("steps") => format!("steps: {}", join_values(&guest["steps"], "change")),
        Some("refused") => format!("refused: {}", join_values(&guest["refusals"], "code")),
        _ => "converged".to_owned(),
    }
}

/// Refused for any reason.
#[track_caller]
fn check_refused(world: &TestWorld, vmid: u64) {
    let verdict = describe_verdict(world, vmid);
    assert!(verdict.starts_with("refused: "), "{verdict} {world:#?}");
}

#[track_caller]
fn check_verdict(world: &TestWorld, vmid: u64, expected: &str) {
    assert_eq!(describe_verdict(world, vmid), expected, "{world:#?}");
}
