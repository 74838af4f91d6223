//! G1, G2, G12 and G17: no step without complete information, absence is not a state, and guests that others are working on are not
//! changed.

use serde_json::{Value, json};

use crate::{check_verdict, describe_verdict, desired_guest, merge_members, observed_row, remove_member, world_of};

const GUARDS: [&str; 6] = ["lock", "ha", "template", "protection", "tags", "pending"];

/// Declared running with four cores.
fn drifted_guest() -> Value {
    desired_guest(100, "web", json!({ "state": "running", "config": { "cores": 4 } }))
}

/// Stopped with two cores.
fn stopped_row(more: Value) -> Value {
    observed_row(100, "web", "stopped", more)
}

const BOTH_STEPS: &str = "steps: config.set, start";

#[test]
fn g1_complete_observation_gives_steps() {
    check_verdict(&world_of(json!([drifted_guest()]), json!([stopped_row(json!({}))])), 100, BOTH_STEPS);
}

#[test]
fn g1_unknown_guest_gets_no_step() {
    for more in [json!({ "status": "unknown" }), json!({ "status": "unknown", "cause": "node-offline" })] {
        check_verdict(&world_of(json!([drifted_guest()]), json!([stopped_row(more)])), 100, "refused: guest-unknown");
    }
}

#[test]
fn g1_no_guest_gets_a_step_without_quorum() {
    let mut world = world_of(json!([drifted_guest()]), json!([stopped_row(json!({}))]));
    world.observation["quorate"] = json!(false);
    check_verdict(&world, 100, "refused: not-quorate");
}

#[test]
fn g1_incomplete_list_gives_no_step() {
    let mut world = world_of(json!([drifted_guest()]), json!([stopped_row(json!({}))]));
    world.observation["complete"] = json!(false);
    check_verdict(&world, 100, "refused: observation-incomplete");
}

#[test]
fn g1_guest_on_an_offline_node_gets_no_step() {
    check_verdict(&world_of(json!([drifted_guest()]), json!([stopped_row(json!({ "node": "pve2" }))])), 100, "refused: node-offline");
}

#[test]
fn g1_unread_guard_gives_no_step() {
    let starts = desired_guest(100, "web", json!({ "state": "running" }));
    check_verdict(&world_of(json!([starts]), json!([stopped_row(json!({}))])), 100, "steps: start");
    for guard in GUARDS {
        check_verdict(&world_of(json!([starts]), json!([remove_member(stopped_row(json!({})), guard)])), 100, "refused: guard-unread");
    }
}

#[test]
fn g1_unread_config_is_not_the_default() {
    let default = desired_guest(100, "web", json!({ "config": { "cores": 1 } }));
    let unread = world_of(json!([default]), json!([remove_member(stopped_row(json!({})), "config")]));
    check_verdict(&unread, 100, "refused: config-unreadable");
    let read_and_empty = world_of(json!([default]), json!([stopped_row(json!({ "config": {} }))]));
    check_verdict(&read_and_empty, 100, "converged");
    let tags = desired_guest(100, "web", json!({ "config": { "tags": [] } }));
    check_verdict(&world_of(json!([tags]), json!([remove_member(stopped_row(json!({})), "tags")])), 100, "refused: config-unreadable");
}

#[test]
fn g1_value_that_is_not_understood_refuses_only_fields_that_depend_on_it() {
    let plan = |declared: Value, not_understood: Value| {
        let guest = desired_guest(100, "web", json!({ "state": "running", "config": declared }));
        let row = merge_members(stopped_row(json!({})), json!({ "config": {}, "not_understood": not_understood }));
        world_of(json!([guest]), json!([row]))
    };
    let refused = "refused: config-unreadable";
    check_verdict(&plan(json!({ "cores": 4 }), json!({ "boot": " " })), 100, BOTH_STEPS);
    check_verdict(&plan(json!({ "boot": ["net0"] }), json!({ "boot": " " })), 100, refused);
    check_verdict(&plan(json!({ "boot": null, "cores": 4 }), json!({ "boot": " " })), 100, refused);
    // Whether a balloon fits, and when memory takes effect, depends on other keys too.
    check_verdict(&plan(json!({ "balloon": "512MiB" }), json!({ "memory": "lots" })), 100, refused);
    for key in ["balloon", "hotplug", "numa"] {
        check_verdict(&plan(json!({ "memory": "1GiB" }), json!({ key: "odd" })), 100, refused);
    }
    let body = crate::body_json(&plan(json!({ "boot": ["net0"], "cores": 4 }), json!({ "boot": " " })));
    let evidence = &body["guests"][0]["refusals"][0]["evidence"];
    assert_eq!(*evidence, json!({ "fields": ["boot"], "not_understood": ["boot= "] }));
}

#[test]
fn g1_tags_are_compared_as_the_datacenter_stores_them() {
    let world = |case: Option<&str>, declared: &[&str], found: &[&str]| {
        let guest = desired_guest(100, "web", json!({ "config": { "tags": declared } }));
        let mut world = world_of(json!([guest]), json!([merge_members(stopped_row(json!({})), json!({ "tags": found }))]));
        if let Some(case) = case {
            world.observation["tag_case"] = json!(case);
        }
        world
    };
    for (case, declared, found, expected) in [
        (Some("kept"), ["Bar", "Foo"], ["Bar", "Foo"], "converged"),
        (Some("kept"), ["Bar", "Foo"], ["bar", "foo"], "steps: config.set"),
        (Some("kept"), ["bar", "foo"], ["Bar", "Foo"], "steps: config.set"),
        (Some("lowered"), ["Bar", "Foo"], ["bar", "foo"], "converged"),
        (Some("lowered"), ["bar", "foo"], ["Bar", "Foo"], "converged"),
        (Some("lowered"), ["Bar", "Foo"], ["bar", "web"], "steps: config.set"),
        (None, ["bar", "foo"], ["bar", "foo"], "converged"),
        (None, ["bar", "foo"], ["Bar", "Foo"], "steps: config.set"),
        (None, ["Bar", "foo"], ["Bar", "foo"], "refused: config-unreadable"),
    ] {
        check_verdict(&world(case, &declared, &found), 100, expected);
    }
    let body = crate::body_json(&world(Some("lowered"), &["Bar", "Foo"], &["bar", "web"]));
    let fields = &body["guests"][0]["steps"][0]["fields"];
    assert!(fields.to_string().contains(r#"["bar","foo"]"#), "tags must be written as they will be stored: {body:#}");
}

#[test]
fn g1_pinned_guest_with_unread_marks_gets_no_step() {
    let pinned = merge_members(drifted_guest(), json!({ "identity": { "uuid": "1C0D6F6E-5a0e-4a55-9d3c-2f9a3c7b1e10" } }));
    check_verdict(&world_of(json!([pinned]), json!([stopped_row(json!({}))])), 100, BOTH_STEPS);
    check_verdict(&world_of(json!([pinned]), json!([remove_member(stopped_row(json!({})), "identity")])), 100, "refused: guard-unread");
    check_verdict(&world_of(json!([pinned]), json!([stopped_row(json!({ "identity": {} }))])), 100, "refused: identity-mismatch");
}

#[test]
fn g1_guest_with_another_name_or_kind_gets_no_step() {
    check_verdict(
        &world_of(json!([drifted_guest()]), json!([observed_row(100, "WEB", "stopped", json!({}))])),
        100,
        "refused: name-mismatch",
    );
    let container = json!([{ "vmid": 100, "kind": "lxc", "name": "web", "node": "pve1", "status": "stopped" }]);
    check_verdict(&world_of(json!([drifted_guest()]), container), 100, "refused: kind-mismatch");
}

#[test]
fn g1_dependent_of_an_unknown_guest_gets_no_step() {
    let guests = json!([drifted_guest(), desired_guest(101, "app", json!({ "state": "running", "after": [100] }))]);
    let app = observed_row(101, "app", "stopped", json!({}));
    check_verdict(&world_of(guests.clone(), json!([stopped_row(json!({})), app])), 101, "steps: start");
    check_verdict(&world_of(guests, json!([stopped_row(json!({ "status": "unknown" })), app])), 101, "refused: dependency-refused");
}

#[test]
fn g2_missing_is_not_stopped() {
    for state in ["stopped", "running"] {
        let world = world_of(json!([desired_guest(100, "web", json!({ "state": state }))]), json!([]));
        check_verdict(&world, 100, "refused: guest-missing");
    }
    let world = world_of(json!([desired_guest(100, "web", json!({ "state": "stopped" }))]), json!([stopped_row(json!({}))]));
    check_verdict(&world, 100, "converged");
}

#[test]
fn g2_unknown_is_neither_stopped_nor_missing() {
    let stopped = desired_guest(100, "web", json!({ "state": "stopped" }));
    check_verdict(&world_of(json!([stopped]), json!([stopped_row(json!({ "status": "unknown" }))])), 100, "refused: guest-unknown");
}

#[test]
fn g2_unlisted_guest_is_missing_only_in_a_complete_list() {
    let mut world = world_of(json!([drifted_guest()]), json!([]));
    check_verdict(&world, 100, "refused: guest-missing");
    world.observation["complete"] = json!(false);
    check_verdict(&world, 100, "refused: observation-incomplete, guest-unknown");
}

#[test]
fn g2_unknown_or_missing_dependent_is_not_stopped() {
    let guests = json!([desired_guest(100, "db", json!({ "state": "stopped" })), desired_guest(101, "app", json!({ "after": [100] }))]);
    let db = observed_row(100, "db", "running", json!({}));
    let app = |status: &str| observed_row(101, "app", status, json!({}));
    check_verdict(&world_of(guests.clone(), json!([db, app("stopped")])), 100, "steps: shutdown");
    for rows in [json!([db, app("running")]), json!([db, app("unknown")]), json!([db])] {
        check_verdict(&world_of(guests.clone(), rows), 100, "refused: dependent-running");
    }
}

#[test]
fn g12_locked_guest_gets_no_step() {
    for lock in ["backup", "migrate", "something-new", ""] {
        check_verdict(&world_of(json!([drifted_guest()]), json!([stopped_row(json!({ "lock": lock }))])), 100, "refused: guest-locked");
    }
    let nothing_to_do = desired_guest(100, "web", json!({ "state": "stopped", "config": { "cores": 2 } }));
    check_verdict(&world_of(json!([nothing_to_do]), json!([stopped_row(json!({ "lock": "backup" }))])), 100, "converged");
}

#[test]
fn g12_guest_that_high_availability_is_changing_gets_no_step() {
    let config_only = desired_guest(100, "web", json!({ "config": { "cores": 4 } }));
    for state in ["migrate", "relocate", "fence", "recovery", "error", "freeze", "request_stop", "gone", "something-new"] {
        check_verdict(&world_of(json!([config_only]), json!([stopped_row(json!({ "ha": { "state": state } }))])), 100, "refused: ha-owned");
    }
    check_verdict(&world_of(json!([config_only]), json!([stopped_row(json!({ "ha": {} }))])), 100, "refused: ha-owned");
    for state in ["stopped", "disabled", "ignored"] {
        check_verdict(&world_of(json!([config_only]), json!([stopped_row(json!({ "ha": { "state": state } }))])), 100, "steps: config.set");
    }
    // It is stopped but high availability wants it started: the manager is about to change it.
    check_verdict(&world_of(json!([config_only]), json!([stopped_row(json!({ "ha": { "state": "started" } }))])), 100, "refused: ha-owned");
    check_verdict(
        &world_of(json!([drifted_guest()]), json!([stopped_row(json!({ "ha": { "state": "stopped" } }))])),
        100,
        "refused: ha-owned",
    );
}

#[test]
fn g12_foreign_pending_changes_are_not_applied() {
    for entry in [json!({ "key": "net0" }), json!({ "key": "memory", "value": 4096 }), json!({ "key": "balloon", "delete": true })] {
        check_verdict(
            &world_of(json!([drifted_guest()]), json!([stopped_row(json!({ "pending": [entry] }))])),
            100,
            "refused: config-pending",
        );
    }
}

/// Hiding any single member of an observation leaves a guest with its steps or with none.
#[test]
fn g17_hiding_any_part_only_removes_steps() {
    let guests = json!([drifted_guest(), desired_guest(101, "app", json!({ "state": "running", "after": [100] }))]);
    let rows = [stopped_row(json!({})), observed_row(101, "app", "stopped", json!({}))];
    let whole = world_of(guests.clone(), json!(rows));
    let before = [describe_verdict(&whole, 100), describe_verdict(&whole, 101)];
    assert_eq!(before, [BOTH_STEPS, "steps: start"]);
    for (index, row) in rows.iter().enumerate() {
        for key in row.as_object().expect("a row").keys().filter(|key| !["vmid", "kind", "node", "status", "name"].contains(&key.as_str()))
        {
            let mut hidden = rows.clone();
            hidden[index] = remove_member(row.clone(), key);
            let less = world_of(guests.clone(), json!(hidden));
            for (vmid, before) in [100, 101].into_iter().zip(&before) {
                let after = describe_verdict(&less, vmid);
                assert!(after == *before || after.starts_with("refused: "), "{key} of {} hidden: {vmid} is {after}", index + 100);
            }
        }
    }
}
