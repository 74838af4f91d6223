//! G3: protected guests are not interrupted, by no way and under no name, and no step takes away what protects them.

use serde_json::{Value, json};

use converger_core::guest::Vmid;
use converger_core::policy::{Circumstances, Host, Limits, Mark, Rules};
use converger_core::safety::{Judged, judge};
use converger_core::testing::World;

use crate::{check, guest, row, scene};

/// The ways to take a guest down: what is declared, what is seen, and what follows where nothing protects.
fn interruptions() -> [(Value, Value, &'static str); 5] {
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

/// Checks that nothing takes a guest down that has this name and this much more in its row, although it would be taken
/// down without.
#[track_caller]
fn check_protected(name: &str, more: &Value, rules: &Rules) {
    for (declared, seen, unprotected) in interruptions() {
        let control = scene(json!([guest(100, "web", declared.clone())]), json!([row(100, "web", "running", seen.clone())]));
        check(&control, 100, unprotected);
        let seen = crate::merged(seen, more.clone());
        let world = scene(json!([guest(100, name, declared)]), json!([row(100, name, "running", seen)]));
        check(&World { rules: rules.clone(), ..world }, 100, "refused: protected-guest");
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
    let rules = Rules::default().with_host(Host::new([], [mark.to_owned()]));
    check_protected("web", &json!({ "identity": { "uuid": mark } }), &rules);
    for (declared, seen, free) in interruptions() {
        let world = |identity: Value| {
            let seen = crate::merged(seen.clone(), identity);
            let world = scene(json!([guest(100, "web", declared.clone())]), json!([row(100, "web", "running", seen)]));
            World { rules: rules.clone(), ..world }
        };
        check(&world(json!({ "identity": { "uuid": "another" } })), 100, free);
        // Not to know which guest it is does not make it another one (G17).
        let mut unread = world(json!({}));
        unread.observation["guests"][0].as_object_mut().expect("a row").remove("identity");
        check(&unread, 100, "refused: guard-unread");
    }
}

#[test]
fn g3_no_plan_interrupts_a_guest_that_this_program_may_run_in() {
    let marks = json!({ "identity": { "uuid": "another" }, "macs": ["BC:24:11:00:00:01"] });
    let own = || Host::new(["bc:24:11:00:00:01".into()], []).with_device();
    check_protected("web", &marks, &Rules::default().with_host(own()));
    for (declared, seen, free) in interruptions() {
        let verdict = |host: Host, marks: Value, expected: &str| {
            let seen = crate::merged(seen.clone(), marks);
            let world = scene(json!([guest(100, "web", declared.clone())]), json!([row(100, "web", "running", seen)]));
            check(&World { rules: Rules::default().with_host(host), ..world }, 100, expected);
        };
        let bare = json!({ "identity": { "uuid": "another" } });
        let other = json!({ "identity": { "uuid": "another" }, "macs": ["BC:24:11:00:00:02"] });
        verdict(own().without([Mark::FirmwareUuid]), other.clone(), free);
        verdict(own().without([Mark::FirmwareUuid]), bare.clone(), "refused: own-guest-untold");
        verdict(Host::default().without([Mark::FirmwareUuid, Mark::HardwareAddresses]), other, "refused: own-guest-untold");
        verdict(Host::new([], ["b".into()]).without([Mark::HardwareAddresses]), bare, free);
    }
}

/// Links of containers come and go: they are no part of what is approved.
#[test]
fn g6_the_machine_is_not_part_of_the_rules_that_are_stored() {
    let rules = |host: Host| serde_json::to_string(&Rules::default().with_host(host)).expect("written");
    assert_eq!(rules(Host::new(["02:42:00:00:00:01".into()], [])), rules(Host::default()));
}

#[test]
fn g3_preprod_is_not_protected() {
    for name in ["preprod-web", "prod", "production-db", "prodigy", "web-prod-1", "x.prod-db"] {
        for (declared, seen, expected) in interruptions() {
            check(&scene(json!([guest(100, name, declared)]), json!([row(100, name, "running", seen)])), 100, expected);
        }
    }
}

#[test]
fn g3_renamed_on_the_host_away_from_prod() {
    for (declared, seen, _) in interruptions() {
        let world = scene(json!([guest(100, "prod-db", declared)]), json!([row(100, "db", "running", seen)]));
        check(&world, 100, "refused: name-mismatch");
    }
}

#[test]
fn g3_renamed_on_the_host_to_prod() {
    let identity = json!({ "uuid": "1c0d6f6e-5a0e-4a55-9d3c-2f9a3c7b1e10" });
    for (mut declared, seen, expected) in interruptions() {
        declared["identity"] = identity.clone();
        let nameless = crate::without(guest(100, "", declared), "name");
        let named = |name: &str| scene(json!([nameless]), json!([row(100, name, "running", seen.clone())]));
        check(&named("web"), 100, expected);
        check(&named("PROD-db"), 100, "refused: protected-guest");
    }
}

#[test]
fn g3_tagged() {
    for tag in ["prod", "PROD", "Prod"] {
        check_protected("web", &json!({ "tags": ["edge", tag] }), &Rules::default());
    }
    for (declared, seen, expected) in interruptions() {
        let seen = crate::merged(seen, json!({ "tags": ["production", "preprod", "no-prod"] }));
        check(&scene(json!([guest(100, "web", declared)]), json!([row(100, "web", "running", seen)])), 100, expected);
    }
}

#[test]
fn g3_a_guest_that_the_plan_tags_prod_is_not_interrupted() {
    for (mut declared, seen, _) in interruptions() {
        declared["config"]["tags"] = json!(["prod"]);
        let world = scene(json!([guest(100, "web", declared)]), json!([row(100, "web", "running", seen)]));
        check(&world, 100, "refused: protected-guest");
    }
}

#[test]
fn g3_flagged() {
    check_protected("web", &json!({ "protection": true }), &Rules::default());
}

#[test]
fn g3_listed_id() {
    let listed = Rules::new(vec![Vmid::new(100).expect("an id")], vec![], vec![]);
    check_protected("web", &json!({}), &listed);
}

#[test]
fn g3_listed_names_and_tags_protect_besides_the_built_in_ones() {
    let rules = Rules::new(vec![], vec!["Core-".into()], vec!["Keep".into()]);
    check_protected("core-switch", &json!({}), &rules);
    check_protected("web", &json!({ "tags": ["keep"] }), &rules);
    check_protected("PROD-db", &json!({}), &rules);
    check_protected("web", &json!({ "tags": ["prod"] }), &rules);
}

#[test]
fn g3_what_does_not_interrupt_goes_on() {
    let declared = json!({ "state": "running", "config": { "cores": 4 } });
    let world = |status: &str| scene(json!([guest(100, "prod-db", declared.clone())]), json!([row(100, "prod-db", status, json!({}))]));
    check(&world("running"), 100, "steps: config.set");
    check(&world("stopped"), 100, "steps: config.set, start");
}

#[test]
fn g3_no_step_removes_what_protects() {
    let tags = |wanted: Value, seen: Value| {
        scene(
            json!([guest(100, "web", json!({ "config": { "tags": wanted } }))]),
            json!([row(100, "web", "running", json!({ "tags": seen }))]),
        )
    };
    check(&tags(json!(["web"]), json!(["prod", "web"])), 100, "refused: protection-change");
    check(&tags(json!([]), json!(["prod"])), 100, "refused: protection-change");
    check(&tags(Value::Null, json!(["PROD"])), 100, "refused: protection-change");
    // The same letters in another case are another tag where the datacenter says so.
    check(&tags(json!(["prod"]), json!(["Prod"])), 100, "refused: protection-change");
    check(&tags(json!(["prod", "web"]), json!(["prod"])), 100, "steps: config.set");
    check(&tags(json!(["web"]), json!(["production"])), 100, "steps: config.set");
    let kept = World { rules: Rules::new(vec![], vec![], vec!["keep".into()]), ..tags(json!([]), json!(["keep"])) };
    check(&kept, 100, "refused: protection-change");
}

#[test]
fn g3_no_limit_lifts_it() {
    let world = scene(json!([guest(100, "PROD-db", json!({ "state": "stopped" }))]), json!([row(100, "PROD-db", "running", json!({}))]));
    let plan = world.parse().expect("it parses").plan();
    let everything = Limits { guests: u32::MAX, percent: 100, stops: u32::MAX };
    let Judged::Safe(safe) = judge(plan, everything, Circumstances::default()) else { panic!("nothing concerns the whole run") };
    let steps = safe.plan().verdicts().iter().filter(|verdict| matches!(verdict, converger_core::plan::Verdict::Steps(_)));
    assert_eq!(steps.count(), 0);
}
