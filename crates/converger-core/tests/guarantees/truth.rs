//! G1, G2, G12 and G17: nothing is done on truth that is not whole, absence is not a state, and what somebody else works
//! on is left alone.

use serde_json::{Value, json};

use crate::{check, guest, merged, row, scene, verdict, without};

const GUARDS: [&str; 6] = ["lock", "ha", "template", "protection", "tags", "pending"];

/// Declared running with four cores.
fn wanted() -> Value {
    guest(100, "web", json!({ "state": "running", "config": { "cores": 4 } }))
}

/// Stopped with two.
fn seen(more: Value) -> Value {
    row(100, "web", "stopped", more)
}

const BOTH_STEPS: &str = "steps: config.set, start";

#[test]
fn g1_the_whole_truth_gives_steps() {
    check(&scene(json!([wanted()]), json!([seen(json!({}))])), 100, BOTH_STEPS);
}

#[test]
fn g1_an_unknown_guest_gets_no_step() {
    for more in [json!({ "status": "unknown" }), json!({ "status": "unknown", "cause": "node-offline" })] {
        check(&scene(json!([wanted()]), json!([seen(more)])), 100, "refused: guest-unknown");
    }
}

#[test]
fn g1_no_quorum_no_step() {
    let mut world = scene(json!([wanted()]), json!([seen(json!({}))]));
    world.observation["quorate"] = json!(false);
    check(&world, 100, "refused: not-quorate");
}

#[test]
fn g1_a_list_that_is_not_whole_gives_no_step() {
    let mut world = scene(json!([wanted()]), json!([seen(json!({}))]));
    world.observation["complete"] = json!(false);
    check(&world, 100, "refused: observation-incomplete");
}

#[test]
fn g1_a_guest_on_a_silent_node_gets_no_step() {
    check(&scene(json!([wanted()]), json!([seen(json!({ "node": "pve2" }))])), 100, "refused: node-offline");
}

#[test]
fn g1_an_unread_guard_gives_no_step() {
    let starts = guest(100, "web", json!({ "state": "running" }));
    check(&scene(json!([starts]), json!([seen(json!({}))])), 100, "steps: start");
    for guard in GUARDS {
        check(&scene(json!([starts]), json!([without(seen(json!({})), guard)])), 100, "refused: guard-unread");
    }
}

#[test]
fn g1_a_config_that_was_not_read_is_not_taken_for_the_default() {
    let default = guest(100, "web", json!({ "config": { "cores": 1 } }));
    let unread = scene(json!([default]), json!([without(seen(json!({})), "config")]));
    check(&unread, 100, "refused: config-unreadable");
    let read_and_empty = scene(json!([default]), json!([seen(json!({ "config": {} }))]));
    check(&read_and_empty, 100, "converged");
    let tags = guest(100, "web", json!({ "config": { "tags": [] } }));
    check(&scene(json!([tags]), json!([without(seen(json!({})), "tags")])), 100, "refused: config-unreadable");
}

#[test]
fn g1_a_value_that_is_not_understood_refuses_only_what_is_decided_by_it() {
    let plan = |declared: Value, strange: Value| {
        let guest = guest(100, "web", json!({ "state": "running", "config": declared }));
        let row = merged(seen(json!({})), json!({ "config": {}, "not_understood": strange }));
        scene(json!([guest]), json!([row]))
    };
    let refused = "refused: config-unreadable";
    check(&plan(json!({ "cores": 4 }), json!({ "boot": " " })), 100, BOTH_STEPS);
    check(&plan(json!({ "boot": ["net0"] }), json!({ "boot": " " })), 100, refused);
    check(&plan(json!({ "boot": null, "cores": 4 }), json!({ "boot": " " })), 100, refused);
    // Whether a balloon fits, and when memory takes effect, is decided by other keys too.
    check(&plan(json!({ "balloon": "512MiB" }), json!({ "memory": "lots" })), 100, refused);
    for key in ["balloon", "hotplug", "numa"] {
        check(&plan(json!({ "memory": "1GiB" }), json!({ key: "odd" })), 100, refused);
    }
    let body = crate::plan(&plan(json!({ "boot": ["net0"], "cores": 4 }), json!({ "boot": " " })));
    let evidence = &body["guests"][0]["refusals"][0]["evidence"];
    assert_eq!(*evidence, json!({ "fields": ["boot"], "not_understood": ["boot= "] }));
}

#[test]
fn g1_tags_are_compared_as_the_datacenter_stores_them() {
    let world = |case: Option<&str>, declared: &[&str], found: &[&str]| {
        let guest = guest(100, "web", json!({ "config": { "tags": declared } }));
        let mut world = scene(json!([guest]), json!([merged(seen(json!({})), json!({ "tags": found }))]));
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
        check(&world(case, &declared, &found), 100, expected);
    }
    let body = crate::plan(&world(Some("lowered"), &["Bar", "Foo"], &["bar", "web"]));
    let fields = &body["guests"][0]["steps"][0]["fields"];
    assert!(fields.to_string().contains(r#"["bar","foo"]"#), "it is written as it will be stored: {body:#}");
}

#[test]
fn g1_a_pinned_guest_whose_marks_were_not_read_gets_no_step() {
    let pinned = merged(wanted(), json!({ "identity": { "uuid": "1C0D6F6E-5a0e-4a55-9d3c-2f9a3c7b1e10" } }));
    check(&scene(json!([pinned]), json!([seen(json!({}))])), 100, BOTH_STEPS);
    check(&scene(json!([pinned]), json!([without(seen(json!({})), "identity")])), 100, "refused: guard-unread");
    check(&scene(json!([pinned]), json!([seen(json!({ "identity": {} }))])), 100, "refused: identity-mismatch");
}

#[test]
fn g1_a_guest_of_another_name_or_kind_gets_no_step() {
    check(&scene(json!([wanted()]), json!([row(100, "WEB", "stopped", json!({}))])), 100, "refused: name-mismatch");
    let container = json!([{ "vmid": 100, "kind": "lxc", "name": "web", "node": "pve1", "status": "stopped" }]);
    check(&scene(json!([wanted()]), container), 100, "refused: kind-mismatch");
}

#[test]
fn g1_nor_does_a_guest_that_comes_after_an_unknown_one() {
    let guests = json!([wanted(), guest(101, "app", json!({ "state": "running", "after": [100] }))]);
    let app = row(101, "app", "stopped", json!({}));
    check(&scene(guests.clone(), json!([seen(json!({})), app])), 101, "steps: start");
    check(&scene(guests, json!([seen(json!({ "status": "unknown" })), app])), 101, "refused: dependency-refused");
}

#[test]
fn g2_missing_is_not_stopped() {
    for state in ["stopped", "running"] {
        let world = scene(json!([guest(100, "web", json!({ "state": state }))]), json!([]));
        check(&world, 100, "refused: guest-missing");
    }
    let world = scene(json!([guest(100, "web", json!({ "state": "stopped" }))]), json!([seen(json!({}))]));
    check(&world, 100, "converged");
}

#[test]
fn g2_unknown_is_neither_stopped_nor_missing() {
    let stopped = guest(100, "web", json!({ "state": "stopped" }));
    check(&scene(json!([stopped]), json!([seen(json!({ "status": "unknown" }))])), 100, "refused: guest-unknown");
}

#[test]
fn g2_not_listed_is_missing_only_where_the_list_is_whole() {
    let mut world = scene(json!([wanted()]), json!([]));
    check(&world, 100, "refused: guest-missing");
    world.observation["complete"] = json!(false);
    check(&world, 100, "refused: observation-incomplete, guest-unknown");
}

#[test]
fn g2_a_stop_does_not_take_an_unseen_dependent_for_stopped() {
    let guests = json!([guest(100, "db", json!({ "state": "stopped" })), guest(101, "app", json!({ "after": [100] }))]);
    let db = row(100, "db", "running", json!({}));
    let app = |status: &str| row(101, "app", status, json!({}));
    check(&scene(guests.clone(), json!([db, app("stopped")])), 100, "steps: shutdown");
    for rows in [json!([db, app("running")]), json!([db, app("unknown")]), json!([db])] {
        check(&scene(guests.clone(), rows), 100, "refused: dependent-running");
    }
}

#[test]
fn g12_a_locked_guest_gets_no_step() {
    for lock in ["backup", "migrate", "something-new", ""] {
        check(&scene(json!([wanted()]), json!([seen(json!({ "lock": lock }))])), 100, "refused: guest-locked");
    }
    let nothing_to_do = guest(100, "web", json!({ "state": "stopped", "config": { "cores": 2 } }));
    check(&scene(json!([nothing_to_do]), json!([seen(json!({ "lock": "backup" }))])), 100, "converged");
}

#[test]
fn g12_a_guest_that_high_availability_moves_gets_no_step() {
    let config_only = guest(100, "web", json!({ "config": { "cores": 4 } }));
    for state in ["migrate", "relocate", "fence", "recovery", "error", "freeze", "request_stop", "gone", "something-new"] {
        check(&scene(json!([config_only]), json!([seen(json!({ "ha": { "state": state } }))])), 100, "refused: ha-owned");
    }
    check(&scene(json!([config_only]), json!([seen(json!({ "ha": {} }))])), 100, "refused: ha-owned");
    for state in ["stopped", "disabled", "ignored"] {
        check(&scene(json!([config_only]), json!([seen(json!({ "ha": { "state": state } }))])), 100, "steps: config.set");
    }
    // It is stopped and high availability wants it started: something is about to happen to it.
    check(&scene(json!([config_only]), json!([seen(json!({ "ha": { "state": "started" } }))])), 100, "refused: ha-owned");
    check(&scene(json!([wanted()]), json!([seen(json!({ "ha": { "state": "stopped" } }))])), 100, "refused: ha-owned");
}

#[test]
fn g12_what_others_left_pending_is_not_applied_with_ours() {
    for entry in [json!({ "key": "net0" }), json!({ "key": "memory", "value": 4096 }), json!({ "key": "balloon", "delete": true })] {
        check(&scene(json!([wanted()]), json!([seen(json!({ "pending": [entry] }))])), 100, "refused: config-pending");
    }
}

/// Every single thing that can be taken from a reading leaves a guest with its steps or with none.
#[test]
fn g17_each_part_that_is_hidden_takes_steps_away_or_changes_nothing() {
    let guests = json!([wanted(), guest(101, "app", json!({ "state": "running", "after": [100] }))]);
    let rows = [seen(json!({})), row(101, "app", "stopped", json!({}))];
    let whole = scene(guests.clone(), json!(rows));
    let before = [verdict(&whole, 100), verdict(&whole, 101)];
    assert_eq!(before, [BOTH_STEPS, "steps: start"]);
    for (index, row) in rows.iter().enumerate() {
        for key in row.as_object().expect("a row").keys().filter(|key| !["vmid", "kind", "node", "status", "name"].contains(&key.as_str()))
        {
            let mut hidden = rows.clone();
            hidden[index] = without(row.clone(), key);
            let less = scene(guests.clone(), json!(hidden));
            for (vmid, before) in [100, 101].into_iter().zip(&before) {
                let after = verdict(&less, vmid);
                assert!(after == *before || after.starts_with("refused: "), "{key} of {} hidden: {vmid} is {after}", index + 100);
            }
        }
    }
}
