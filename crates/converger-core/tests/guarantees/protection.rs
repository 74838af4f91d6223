//! G3: protected guests are never interrupted, by any change or under any name, and no step removes what protects them.

use serde_json::{Value, json};

use converger_core::guest::Vmid;
use converger_core::policy::{Circumstances, Limits, MachineIdentity, MachineMark, Rules};
use converger_core::safety::{Judged, judge};
use converger_core::testing::TestWorld;

use crate::{check_verdict, desired_guest, observed_row, world_of};

/// The ways to take a guest down: what is declared, what is observed, and the verdict without protection.
fn interrupting_changes() -> [(Value, Value, &'static str); 5] {
    let cores = json!({ "cores": 4 });
    let pending = json!({ "pending": [{ "key": "cores", "value": 4 }] });
    [
        (json!({ "state": "stopped" }), json!({}), "steps: shutdown"),
        (json!({ "state": "stopped", "stop": "hard" }), json!({}), "steps: stop"),
        (json!({ "config": cores, "restart": "when-needed" }), json!({}), "steps: config.set, reboot"),
        (
            json!({ "state": "running", "config": cores, "restart": "when-needed", "stop": "hard" }),
            json!({}),
            "steps: config.set, stop, start",
        ),
        (json!({ "config": cores, "restart": "when-needed" }), pending, "steps: reboot"),
    ]
}

/// Checks that no change takes down a guest with this name and these members in its row, although it would without them.
#[track_caller]
fn check_protected(name: &str, more: &Value, rules: &Rules) {
    for (declared, seen, unprotected) in interrupting_changes() {
        let control =
            world_of(json!([desired_guest(100, "web", declared.clone())]), json!([observed_row(100, "web", "running", seen.clone())]));
        check_verdict(&control, 100, unprotected);
        let seen = crate::merge_members(seen, more.clone());
        let world = world_of(json!([desired_guest(100, name, declared)]), json!([observed_row(100, name, "running", seen)]));
        check_verdict(&TestWorld { rules: rules.clone(), ..world }, 100, "refused: protected-guest");
    }
}

#[test]
fn g3_no_plan_interrupts_a_guest_called_prod() {
    for name in ["PROD-db", "prod-db", "Prod-web.example", "pRoD-1"] {
        check_protected(name, &json!({}), &Rules::default());
    }
}

#[test]
fn g3_no_plan_interrupts_the_guest_that_this_program_runs_in() {
    let mark = "1c0d6f6e-5a0e-4a55-9d3c-000000000100";
    let rules = Rules::default().with_machine(MachineIdentity::new([], [mark.to_owned()]));
    check_protected("web", &json!({ "identity": { "uuid": mark } }), &rules);
    for (declared, seen, free) in interrupting_changes() {
        let world = |identity: Value| {
            let seen = crate::merge_members(seen.clone(), identity);
            let world = world_of(json!([desired_guest(100, "web", declared.clone())]), json!([observed_row(100, "web", "running", seen)]));
            TestWorld { rules: rules.clone(), ..world }
        };
        check_verdict(&world(json!({ "identity": { "uuid": "another" } })), 100, free);
        // An unknown identity does not make it another guest (G17).
        let mut unread = world(json!({}));
        unread.observation["guests"][0].as_object_mut().expect("a row").remove("identity");
        check_verdict(&unread, 100, "refused: guard-unread");
    }
}

#[test]
fn g3_no_plan_interrupts_a_guest_that_this_program_may_run_in() {
    let marks = json!({ "identity": { "uuid": "another" }, "macs": ["BC:24:11:00:00:01"] });
    let own = || MachineIdentity::new(["bc:24:11:00:00:01".into()], []).with_device();
    check_protected("web", &marks, &Rules::default().with_machine(own()));
    for (declared, seen, free) in interrupting_changes() {
        let verdict = |host: MachineIdentity, marks: Value, expected: &str| {
            let seen = crate::merge_members(seen.clone(), marks);
            let world = world_of(json!([desired_guest(100, "web", declared.clone())]), json!([observed_row(100, "web", "running", seen)]));
            check_verdict(&TestWorld { rules: Rules::default().with_machine(host), ..world }, 100, expected);
        };
        let without_macs = json!({ "identity": { "uuid": "another" } });
        let other = json!({ "identity": { "uuid": "another" }, "macs": ["BC:24:11:00:00:02"] });
        verdict(own().with_unreadable([MachineMark::FirmwareUuid]), other.clone(), free);
        verdict(own().with_unreadable([MachineMark::FirmwareUuid]), without_macs.clone(), "refused: own-guest-untold");
        verdict(
            MachineIdentity::default().with_unreadable([MachineMark::FirmwareUuid, MachineMark::HardwareAddresses]),
            other,
            "refused: own-guest-untold",
        );
        verdict(MachineIdentity::new([], ["b".into()]).with_unreadable([MachineMark::HardwareAddresses]), without_macs, free);
    }
}

/// Links of containers come and go, so they are not part of what is approved.
#[test]
fn g6_machine_is_not_part_of_the_stored_rules() {
    let rules = |host: MachineIdentity| serde_json::to_string(&Rules::default().with_machine(host)).expect("written");
    assert_eq!(rules(MachineIdentity::new(["02:42:00:00:00:01".into()], [])), rules(MachineIdentity::default()));
}

#[test]
fn g3_names_that_only_contain_prod_are_not_protected() {
    for name in ["preprod-web", "prod", "production-db", "prodigy", "web-prod-1", "x.prod-db"] {
        for (declared, seen, expected) in interrupting_changes() {
            check_verdict(
                &world_of(json!([desired_guest(100, name, declared)]), json!([observed_row(100, name, "running", seen)])),
                100,
                expected,
            );
        }
    }
}

#[test]
fn g3_guest_renamed_away_from_prod_is_refused() {
    for (declared, seen, _) in interrupting_changes() {
        let world = world_of(json!([desired_guest(100, "prod-db", declared)]), json!([observed_row(100, "db", "running", seen)]));
        check_verdict(&world, 100, "refused: name-mismatch");
    }
}

#[test]
fn g3_guest_renamed_to_prod_is_protected() {
    let identity = json!({ "uuid": "1c0d6f6e-5a0e-4a55-9d3c-2f9a3c7b1e10" });
    for (mut declared, seen, expected) in interrupting_changes() {
        declared["identity"] = identity.clone();
        let nameless = crate::remove_member(desired_guest(100, "", declared), "name");
        let named = |name: &str| world_of(json!([nameless]), json!([observed_row(100, name, "running", seen.clone())]));
        check_verdict(&named("web"), 100, expected);
        check_verdict(&named("PROD-db"), 100, "refused: protected-guest");
    }
}

#[test]
fn g3_protecting_tag_in_any_case_protects() {
    for tag in ["prod", "PROD", "Prod"] {
        check_protected("web", &json!({ "tags": ["edge", tag] }), &Rules::default());
    }
    for (declared, seen, expected) in interrupting_changes() {
        let seen = crate::merge_members(seen, json!({ "tags": ["production", "preprod", "no-prod"] }));
        check_verdict(
            &world_of(json!([desired_guest(100, "web", declared)]), json!([observed_row(100, "web", "running", seen)])),
            100,
            expected,
        );
    }
}

#[test]
fn g3_guest_that_the_plan_tags_prod_is_not_interrupted() {
    for (mut declared, seen, _) in interrupting_changes() {
        declared["config"]["tags"] = json!(["prod"]);
        let world = world_of(json!([desired_guest(100, "web", declared)]), json!([observed_row(100, "web", "running", seen)]));
        check_verdict(&world, 100, "refused: protected-guest");
    }
}

#[test]
fn g3_protection_flag_protects() {
    check_protected("web", &json!({ "protection": true }), &Rules::default());
}

#[test]
fn g3_listed_id_protects() {
    let listed = Rules::new(vec![Vmid::new(100).expect("an id")], vec![], vec![]);
    check_protected("web", &json!({}), &listed);
}

#[test]
fn g3_configured_names_and_tags_protect_in_addition_to_built_in_ones() {
    let rules = Rules::new(vec![], vec!["Core-".into()], vec!["Keep".into()]);
    check_protected("core-switch", &json!({}), &rules);
    check_protected("web", &json!({ "tags": ["keep"] }), &rules);
    check_protected("PROD-db", &json!({}), &rules);
    check_protected("web", &json!({ "tags": ["prod"] }), &rules);
}

#[test]
fn g3_protected_guests_still_get_harmless_steps() {
    let declared = json!({ "state": "running", "config": { "cores": 4 } });
    let world = |status: &str| {
        world_of(json!([desired_guest(100, "prod-db", declared.clone())]), json!([observed_row(100, "prod-db", status, json!({}))]))
    };
    check_verdict(&world("running"), 100, "steps: config.set");
    check_verdict(&world("stopped"), 100, "steps: config.set, start");
}

#[test]
fn g3_no_step_removes_what_protects() {
    let tags = |wanted: Value, seen: Value| {
        world_of(
            json!([desired_guest(100, "web", json!({ "config": { "tags": wanted } }))]),
            json!([observed_row(100, "web", "running", json!({ "tags": seen }))]),
        )
    };
    check_verdict(&tags(json!(["web"]), json!(["prod", "web"])), 100, "refused: protection-change");
    check_verdict(&tags(json!([]), json!(["prod"])), 100, "refused: protection-change");
    check_verdict(&tags(Value::Null, json!(["PROD"])), 100, "refused: protection-change");
    // The same letters in another case may be another tag, depending on the datacenter.
    check_verdict(&tags(json!(["prod"]), json!(["Prod"])), 100, "refused: protection-change");
    check_verdict(&tags(json!(["prod", "web"]), json!(["prod"])), 100, "steps: config.set");
    check_verdict(&tags(json!(["web"]), json!(["production"])), 100, "steps: config.set");
    let world = TestWorld { rules: Rules::new(vec![], vec![], vec!["keep".into()]), ..tags(json!([]), json!(["keep"])) };
    check_verdict(&world, 100, "refused: protection-change");
}

#[test]
fn g3_no_limit_lifts_protection() {
    let world = world_of(
        json!([desired_guest(100, "PROD-db", json!({ "state": "stopped" }))]),
        json!([observed_row(100, "PROD-db", "running", json!({}))]),
    );
    let plan = world.parse().expect("it parses").plan();
    let everything = Limits { guests: u32::MAX, percent: 100, stops: u32::MAX };
    let Judged::Safe(safe) = judge(plan, everything, Circumstances::default()) else { panic!("no refusal of the whole run was expected") };
    let steps = safe.plan().verdicts().iter().filter(|verdict| matches!(verdict, converger_core::plan::Verdict::Steps(_)));
    assert_eq!(steps.count(), 0);
}
