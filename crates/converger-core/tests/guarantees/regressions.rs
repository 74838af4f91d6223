//! Regression tests for bugs of the planner and the parsers.

use serde_json::json;

use converger_core::artifact::write_observation;
use converger_core::desired;
use converger_core::document::Notation;
use converger_core::observe;

use crate::{check_verdict, desired_guest, observed_row, world_of};

/// A start applies pending changes, including the removal of the tag.
#[test]
fn g3_start_does_not_apply_the_removal_of_a_protecting_tag() {
    let declared = desired_guest(100, "web", json!({ "state": "running", "config": { "tags": ["web"] } }));
    let seen = observed_row(100, "web", "stopped", json!({ "tags": ["prod", "web"], "pending": [{ "key": "tags", "value": ["web"] }] }));
    crate::check_refused(&world_of(json!([declared]), json!([seen])), 100);
}

#[test]
fn a_balloon_fits_into_memory_that_waits_for_a_restart() {
    let declared = desired_guest(100, "web", json!({ "config": { "memory": "4GiB", "balloon": "2GiB" } }));
    let seen = observed_row(100, "web", "running", json!({ "config": { "memory": 512 }, "pending": [{ "key": "memory", "value": 4096 }] }));
    check_verdict(&world_of(json!([declared]), json!([seen])), 100, "steps: config.set");
}

#[test]
fn pending_key_of_the_other_kind_round_trips() {
    let world = world_of(json!([]), json!([observed_row(100, "web", "running", json!({ "pending": [{ "key": "swap", "value": 512 }] }))]));
    let seen = observe::parse(world.observation_json().as_bytes()).expect("it parses");
    let mut bytes = Vec::new();
    write_observation(&mut bytes, &seen).expect("memory takes it");
    assert_eq!(observe::parse(&bytes).as_ref(), Ok(&seen));
}

/// Members of a JSON object have no order.
#[test]
fn pending_value_may_precede_its_key() {
    let text = world_of(json!([]), json!([observed_row(100, "web", "running", json!({ "pending": ["HERE"] }))])).observation_json();
    let parsed = |entry: &str| observe::parse(text.replace("\"HERE\"", entry).as_bytes());
    assert_eq!(parsed(r#"{"value":4,"key":"cores"}"#), parsed(r#"{"key":"cores","value":4}"#));
    assert!(parsed(r#"{"key":"cores","value":4}"#).is_ok());
}

#[test]
fn count_of_unmanaged_guests_stays_below_two_to_the_53() {
    let mut world = world_of(json!([]), json!([observed_row(100, "web", "running", json!({}))]));
    world.observation["unmanaged"] = json!((1_u64 << 53) - 1);
    let inputs = world.parse().expect("it parses");
    let scoped = inputs.observation.into_scoped(&inputs.desired.scope());
    assert!(scoped.unmanaged < 1 << 53, "{}", scoped.unmanaged);
}

#[test]
fn rejects_malformed_times_and_tags() {
    for more in [
        json!({ "stop_timeout": "+90s" }),
        json!({ "stop_timeout": "007s" }),
        json!({ "config": { "tags": [null] } }),
        json!({ "config": { "tags": [1, true] } }),
    ] {
        let text = world_of(json!([desired_guest(100, "web", more.clone())]), json!([])).desired_json();
        assert!(desired::parse(text.as_bytes(), Notation::Json).is_err(), "{more}");
    }
    let yaml = |tags: &str| {
        format!("version: 1\nenvironment: lab\nguests:\n  - {{vmid: 100, kind: qemu, name: web, config: {{tags: [{tags}]}}}}\n")
    };
    for tags in ["yes", "null", "1.10"] {
        assert!(desired::parse(yaml(tags).as_bytes(), Notation::Yaml).is_err(), "{tags}");
    }
    assert!(desired::parse(yaml("\"yes\"").as_bytes(), Notation::Yaml).is_ok());
}

/// The documentation writes UUIDs without quotes, including those that start with a digit.
#[test]
fn uuids_need_no_quotes() {
    let yaml = |uuid: &str| format!("version: 1\nenvironment: lab\nguests:\n  - {{vmid: 100, kind: qemu, identity: {{uuid: {uuid}}}}}\n");
    for uuid in ["ac0d6f6e-5a0e-4a55-9d3c-2f9a3c7b1e10", "1c0d6f6e-5a0e-4a55-9d3c-2f9a3c7b1e10"] {
        assert!(desired::parse(yaml(uuid).as_bytes(), Notation::Yaml).is_ok(), "{uuid}");
    }
}
