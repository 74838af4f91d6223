//! G4, G6, G8, G9 and G14: what is not declared is not touched, and reading and planning change nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::json;

use converger_core::action::{ApprovalNeed, CATALOGUE, ChangeClass, Impact};
use converger_core::observe;
use converger_core::plan::plan as plan_of;
use converger_core::testing::{Rng, TestWorld, plan_body};

use crate::{body_json, check_verdict, desired_guest, observed_row, world_of};

#[test]
fn g4_planning_does_not_change_the_observation() {
    let mut rng = Rng::new(4);
    for _ in 0..200 {
        let inputs = TestWorld::random_small(&mut rng).parse().expect("it parses");
        let scoped = Arc::new(inputs.observation.clone().into_scoped(&inputs.desired.scope()));
        let before = (*scoped).clone();
        let plan = plan_of(Arc::clone(&inputs.desired), Arc::clone(&scoped), Arc::clone(&inputs.rules));
        assert_eq!((&*scoped, plan.observation()), (&before, &before));
    }
}

#[test]
fn g6_planning_again_gives_the_same_bytes() {
    let mut rng = Rng::new(6);
    for _ in 0..200 {
        let inputs = TestWorld::random_small(&mut rng).parse().expect("it parses");
        assert_eq!(plan_body(&inputs.plan()), plan_body(&inputs.clone().plan()));
    }
}

#[test]
fn g8_guest_that_is_not_declared_is_in_no_plan() {
    let declared = json!([desired_guest(100, "web", json!({ "state": "running" }))]);
    let own = observed_row(100, "web", "stopped", json!({}));
    let alone = body_json(&world_of(declared.clone(), json!([own])));
    let foreign = [
        observed_row(99_999, "prod-db", "running", json!({ "lock": "backup" })),
        observed_row(101, "web", "stopped", json!({ "node": "pve2" })),
        json!({ "vmid": 102, "kind": "lxc", "name": "\u{1b}[2J", "node": "pve2", "status": "unknown" }),
    ];
    for row in &foreign {
        assert_eq!(body_json(&world_of(declared.clone(), json!([row, own]))), alone, "{row}");
    }
    assert_eq!(alone["guests"].as_array().map(Vec::len), Some(1));
}

#[test]
fn g9_observation_rejects_platform_words() {
    let own = observed_row(100, "web", "stopped", json!({}));
    for (key, value) in [
        ("qmpstatus", json!("running")),
        ("hastate", json!("started")),
        ("pool", json!("a")),
        ("maxdisk", json!(1)),
        ("id", json!("qemu/100")),
        ("type", json!("qemu")),
        ("Name", json!("web")),
    ] {
        let mut row = own.clone();
        row[key] = value;
        let world = world_of(json!([]), json!([row]));
        let faults = observe::parse(world.observation_json().as_bytes()).expect_err(key);
        assert!(faults.list().iter().any(|fault| fault.message == format!("unknown key `{key}` in a guest")), "{faults:?}");
    }
    for (key, value) in [("net0", json!("virtio")), ("args", json!("-s")), ("hookscript", json!("local:a")), ("memory", json!("2048"))] {
        let row = observed_row(100, "web", "stopped", json!({ "config": { key: value } }));
        let world = world_of(json!([]), json!([row]));
        assert!(observe::parse(world.observation_json().as_bytes()).is_err(), "{key}");
    }
}

#[test]
fn g14_guest_removed_from_the_list_is_not_managed() {
    let web = desired_guest(100, "web", json!({ "state": "running" }));
    let batch = desired_guest(101, "batch", json!({ "state": "stopped", "config": { "cores": 8 } }));
    let rows = json!([observed_row(100, "web", "running", json!({})), observed_row(101, "batch", "running", json!({}))]);
    check_verdict(&world_of(json!([web, batch]), rows.clone()), 101, "steps: config.set, shutdown");
    let left = body_json(&world_of(json!([web]), rows));
    let text = left["guests"].to_string();
    assert!(!text.contains("101") && !text.contains("batch") && !text.contains("steps"), "{text}");
}

#[test]
fn g14_key_removed_from_the_list_is_not_managed() {
    let rows =
        json!([observed_row(100, "web", "running", json!({ "config": { "cores": 2, "memory": 4096, "onboot": true }, "tags": ["a"] }))]);
    check_verdict(&world_of(json!([desired_guest(100, "web", json!({ "config": { "cores": 2 } }))]), rows.clone()), 100, "converged");
    check_verdict(&world_of(json!([desired_guest(100, "web", json!({}))]), rows), 100, "converged");
}

#[test]
fn g14_no_change_deletes_a_guest_and_losing_data_needs_a_signature() {
    let changes: Vec<&str> = CATALOGUE.iter().map(|action| action.change).collect();
    let all = [
        "clone",
        "provision",
        "config.set",
        "disk.grow",
        "migrate",
        "reboot",
        "shutdown",
        "snapshot.create",
        "snapshot.delete",
        "snapshot.rollback",
        "start",
        "stop",
    ];
    assert_eq!(changes, all);
    for action in &CATALOGUE {
        let loses_data = action.class == ChangeClass::Destructive || action.impact == Impact::DataLoss;
        assert_eq!(loses_data, action.approvals == ApprovalNeed::OneSigned, "{action:?}");
    }
    check_verdict(&world_of(json!([desired_guest(100, "web", json!({ "state": "running" }))]), json!([])), 100, "refused: guest-missing");
    // A guest with another kind or name under the id is not replaced.
    let other = json!([{ "vmid": 100, "kind": "lxc", "name": "web", "node": "pve1", "status": "stopped" }]);
    check_verdict(&world_of(json!([desired_guest(100, "web", json!({ "state": "running" }))]), other), 100, "refused: kind-mismatch");
}

/// Plans of a desired state never make, move or roll back a guest.
#[test]
fn g14_desired_state_never_leads_to_a_change_that_must_be_requested() {
    let mut rng = Rng::new(14);
    let mut seen = BTreeSet::new();
    for _ in 0..1_000 {
        let plan = body_json(&TestWorld::random_small(&mut rng));
        let guests = plan["guests"].as_array().into_iter().flatten();
        let steps = guests.flat_map(|guest| guest["steps"].as_array().into_iter().flatten());
        seen.extend(steps.map(|step| (step["change"].to_string(), step["class"] == "destructive")));
    }
    let seen: Vec<String> = seen.into_iter().map(|(change, destroys)| format!("{change} {destroys}")).collect();
    let changes = ["config.set", "reboot", "shutdown", "start", "stop"].map(|change| format!("\"{change}\" false"));
    assert_eq!(seen, changes, "each change of desired state occurs, and no other one");
}
