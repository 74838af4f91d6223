//! High availability: stored resources, groups and rules, and what the manager does.

use serde_json::{Value, json};

use crate::lab::{CLUSTER, FactsLab, in_every_release, response_data};
use converger_lab::WorldEvent;

fn lab_with_ha_resources(flavour: u8) -> FactsLab {
    let mut lab = FactsLab::new(&format!("{CLUSTER}flavour: {flavour}\n"));
    for vmid in [101, 102] {
        lab.run_ok("POST", "/cluster/ha/resources", &format!("sid=vm:{vmid}&max_restart=2&comment=kept"));
    }
    lab
}

fn without_digest(mut entry: Value) -> Value {
    let fields = entry.as_object_mut().unwrap_or_else(|| panic!("an object"));
    assert!(fields.remove("digest").is_some_and(|digest| digest.as_str().is_some_and(|text| text.len() == 40)), "{fields:?}");
    entry
}

#[test]
fn resources_keep_their_settings_and_number_types() {
    let mut lab = lab_with_ha_resources(8);
    let resource = without_digest(lab.get("/cluster/ha/resources/vm:101"));
    assert_eq!(resource, json!({ "sid": "vm:101", "type": "vm", "state": "started", "max_restart": 2, "comment": "kept" }));
    lab.run_ok("PUT", "/cluster/ha/resources/101", "delete=comment&state=ignored&max_relocate=3");
    let resource = without_digest(lab.get("/cluster/ha/resources/vm:101"));
    assert_eq!(resource, json!({ "sid": "vm:101", "type": "vm", "state": "ignored", "max_restart": 2, "max_relocate": 3 }));
    let error = lab.request_error("POST", "/cluster/ha/resources", "sid=vm:101");
    assert_eq!(error, "500 create resource failed: resource ID 'vm:101' already defined");
    assert_eq!(
        lab.request_error("PUT", "/cluster/ha/resources/vm:103", "state=stopped"),
        "500 update resource failed: no such resource 'vm:103'"
    );
    let stale = lab.request_error("PUT", "/cluster/ha/resources/vm:101", "state=stopped&digest=0000");
    assert!(stale.starts_with("500 update resource failed: detected modified configuration"), "{stale}");
}

#[test]
fn groups_exist_until_release_8_and_are_refused_since_release_9() {
    for flavour in [7, 8] {
        let mut lab = lab_with_ha_resources(flavour);
        lab.run_ok("POST", "/cluster/ha/groups", "group=left&nodes=a:2,b&restricted=1");
        let error = lab.request_error("POST", "/cluster/ha/groups", "group=left&nodes=a");
        assert_eq!(error, "500 create ha group failed: ha group ID 'left' already defined");
        let group = without_digest(lab.get("/cluster/ha/groups/left"));
        assert_eq!(group, json!({ "group": "left", "type": "group", "nodes": "a:2,b", "restricted": 1 }));
        assert_eq!(lab.request_error("PUT", "/cluster/ha/resources/vm:101", "group=nosuch"), "500 HA group 'nosuch' does not exist");
        lab.run_ok("PUT", "/cluster/ha/resources/vm:101", "group=left");
        assert_eq!(lab.get("/cluster/ha/resources/vm:101")["group"], "left");
        let used = lab.request_error("DELETE", "/cluster/ha/groups/left", "");
        assert_eq!(used, "500 delete ha group failed: ha group is used by service 'vm:101'");
        let needed = lab.request_error("PUT", "/cluster/ha/groups/left", "delete=nodes");
        assert_eq!(needed, "500 update ha group failed: unable to delete required option 'nodes'");
        lab.run_ok("PUT", "/cluster/ha/groups/left", "delete=restricted&nofailback=1");
        assert_eq!(lab.get("/cluster/ha/groups")[0]["nofailback"], 1);
        assert_eq!(lab.request_error("GET", "/cluster/ha/groups/right", ""), "500 no such ha group 'right'");
        assert_eq!(lab.request("GET", "/cluster/ha/rules", "").status, 501);
    }
    let mut nine = lab_with_ha_resources(9);
    assert_eq!(nine.request_error("GET", "/cluster/ha/groups", ""), "500 cannot index groups: ha groups have been migrated to rules");
    assert!(nine.request_error("POST", "/cluster/ha/groups", "group=left&nodes=a").ends_with("ha groups have been migrated to rules"));
}

#[test]
fn rules_must_name_managed_guests_and_existing_nodes() {
    let mut lab = lab_with_ha_resources(9);
    let mut error = |form: &str| lab.request_error("POST", "/cluster/ha/rules", form);
    let unmanaged = "rule=r1&type=node-affinity&resources=vm:103&nodes=a";
    assert_eq!(error(unmanaged), "500 create ha rule failed: cannot use unmanaged resource(s) vm:103.");
    let nowhere = "rule=r1&type=node-affinity&resources=vm:101&nodes=a,z:3";
    assert_eq!(error(nowhere), "500 create ha rule failed: cannot use non-existant node(s) z.");
    assert_eq!(error("rule=r1&type=resource-affinity&resources=vm:101&affinity=negative"), "400 Parameter verification failed.");
    lab.run_ok("POST", "/cluster/ha/rules", "rule=r1&type=node-affinity&resources=vm:101&nodes=b,a:2&strict=1");
    let rule = without_digest(lab.get("/cluster/ha/rules/r1"));
    let expected = json!({ "rule": "r1", "type": "node-affinity", "resources": "vm:101", "nodes": "a:2,b", "strict": 1, "order": 1 });
    assert_eq!(rule, expected);
    let twice = lab.request("POST", "/cluster/ha/rules", "rule=r2&type=node-affinity&resources=vm:101&nodes=c");
    assert!(String::from_utf8_lossy(&twice.body).contains("resource 'vm:101' is already used in another node affinity rule"));
    assert_eq!(lab.request_error("GET", "/cluster/ha/rules/r2", ""), "500 no such ha rule 'r2'");
}

#[test]
fn rules_are_listed_in_order_and_drop_unmanaged_guests() {
    let mut lab = lab_with_ha_resources(9);
    lab.run_ok("POST", "/cluster/ha/rules", "rule=z-first&type=resource-affinity&resources=vm:102,vm:101&affinity=negative");
    lab.run_ok("POST", "/cluster/ha/rules", "rule=a-second&type=node-affinity&resources=vm:101&nodes=a");
    let names = |list: Value| list.as_array().into_iter().flatten().map(|rule| rule["rule"].clone()).collect::<Vec<_>>();
    assert_eq!(names(lab.get("/cluster/ha/rules")), [json!("z-first"), json!("a-second")]);
    assert_eq!(names(lab.get("/cluster/ha/rules?type=node-affinity")), [json!("a-second")]);
    assert_eq!(names(lab.get("/cluster/ha/rules?resource=vm:102")), [json!("z-first")]);
    lab.run_ok("PUT", "/cluster/ha/rules/z-first", "type=resource-affinity&disable=1");
    assert_eq!(lab.get("/cluster/ha/rules/z-first")["disable"], 1);
    lab.run_ok("DELETE", "/cluster/ha/resources/vm:101", "");
    let rest = lab.get("/cluster/ha/rules");
    assert_eq!((names(rest.clone()), &rest[0]["resources"]), (vec![json!("z-first")], &json!("vm:102")));
}

#[test]
fn the_manager_moves_guests_in_its_next_round() {
    for (flavour, verb) in [(8, "migrate"), (9, "relocate")] {
        let mut lab = lab_with_ha_resources(flavour);
        lab.advance_ms(11_000);
        let answer = lab.run_ok("POST", &format!("/cluster/ha/resources/vm:101/{verb}"), "node=c");
        let expected = if flavour == 9 { json!({ "sid": "vm:101", "requested-node": "c" }) } else { Value::Null };
        assert_eq!(answer, expected);
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["status"], "running", "nothing has happened yet");
        lab.advance_ms(30_000);
        assert_eq!(lab.get("/nodes/c/qemu/101/status/current")["status"], "running", "{verb}");
        let status = lab.get("/cluster/ha/status/manager_status");
        assert_eq!(status["manager_status"]["service_status"]["vm:101"]["node"], "c");
    }
}

/// Skipping hundreds of cycles that change nothing must give the same world as requests during every cycle.
#[test]
fn skipped_manager_rounds_change_nothing_and_no_needed_round_is_skipped() {
    in_every_release(|| {
        let world = || {
            let mut lab = FactsLab::new(&CLUSTER.replace("b: {}", "b: { old_rounds: 5 }"));
            lab.run_ok("POST", "/cluster/ha/resources", "sid=vm:101");
            lab.run_ok("POST", "/cluster/ha/resources", "sid=vm:102&state=stopped");
            lab
        };
        let (mut waited, mut polled) = (world(), world());
        waited.advance_ms(3_600_000);
        for _ in 0..3_600 {
            polled.advance_ms(1_000);
            polled.get("/cluster/resources");
        }
        let all = |lab: &mut FactsLab| {
            let paths = ["/cluster/resources", "/cluster/ha/status/manager_status", "/nodes/b/qemu/102/status/current"];
            paths.map(|path| lab.get(path))
        };
        assert_eq!(all(&mut waited), all(&mut polled));
        // The guest stops unexpectedly: the next cycle starts it in both worlds.
        for lab in [&mut waited, &mut polled] {
            lab.apply_event(WorldEvent::Stop(101));
            lab.advance_ms(10_000);
            lab.advance_ms(5_000);
            assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["status"], "running");
        }
    });
}

/// What the list shows of a guest: node, HA state and lock.
fn listed_ha_state(lab: &mut FactsLab) -> (Value, Value, Value) {
    let row = lab.resource_row(101);
    (row["node"].clone(), row["hastate"].clone(), row["lock"].clone())
}

#[test]
fn guests_moved_by_the_manager_are_locked_while_they_move() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.run_ok("POST", "/cluster/ha/resources", "sid=vm:101");
        lab.advance_ms(11_000);
        lab.run_ok("POST", "/cluster/ha/resources/vm:101/migrate", "node=c");
        let mut seen = Vec::new();
        for _ in 0..200 {
            lab.advance_ms(100);
            seen.push(listed_ha_state(&mut lab));
        }
        seen.dedup();
        let expected = [
            (json!("a"), json!("started"), Value::Null),
            (json!("a"), json!("migrate"), json!("migrate")),
            (json!("c"), json!("migrate"), Value::Null),
            (json!("c"), json!("started"), Value::Null),
        ];
        assert_eq!(seen, expected);
        let tasks = lab.get("/nodes/a/tasks?vmid=101&typefilter=qmigrate");
        assert_eq!((tasks[0]["user"].as_str(), tasks[0]["status"].as_str()), (Some("root@pam"), Some("OK")));
    });
}

#[test]
fn the_manager_moves_nothing_to_an_offline_node() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.run_ok("POST", "/cluster/ha/resources", "sid=vm:101");
        lab.advance_ms(11_000);
        lab.apply_event(WorldEvent::NodeDown("c".to_owned()));
        lab.run_ok("POST", "/cluster/ha/resources/vm:101/migrate", "node=c");
        lab.advance_ms(30_000);
        assert_eq!(listed_ha_state(&mut lab), (json!("a"), json!("started"), Value::Null));
    });
}

#[test]
fn guests_of_a_node_that_died_are_fenced_and_recovered_on_another() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.run_ok("POST", "/cluster/ha/resources", "sid=vm:101");
        lab.advance_ms(11_000);
        lab.apply_event(WorldEvent::NodeDown("a".to_owned()));
        let mut seen = Vec::new();
        for _ in 0..200 {
            lab.advance_ms(1_000);
            let row = response_data(&lab.request_at("b", "/cluster/resources?type=vm"));
            let own = row.as_array().into_iter().flatten().find(|row| row["vmid"] == 101).cloned().unwrap_or_default();
            seen.push((own["node"].clone(), own["hastate"].clone()));
        }
        seen.dedup();
        let states = [("a", "started"), ("a", "fence"), ("a", "recovery"), ("b", "started")];
        assert_eq!(seen, states.map(|(node, state)| (json!(node), json!(state))));
        assert_eq!(response_data(&lab.request_at("b", "/nodes/b/qemu/101/status/current"))["status"], "running");
        lab.apply_event(WorldEvent::NodeUp("a".to_owned()));
        lab.advance_ms(30_000);
        assert_eq!(
            response_data(&lab.request_at("b", "/nodes/b/qemu/101/status/current"))["status"],
            "running",
            "the guest stays on its new node"
        );
    });
}

#[test]
fn a_node_that_comes_back_in_time_keeps_its_guests() {
    in_every_release(|| {
        let mut lab = FactsLab::new(CLUSTER);
        lab.run_ok("POST", "/cluster/ha/resources", "sid=vm:101");
        lab.advance_ms(11_000);
        lab.apply_event(WorldEvent::NodeDown("a".to_owned()));
        lab.advance_ms(60_000);
        lab.apply_event(WorldEvent::NodeUp("a".to_owned()));
        lab.advance_ms(200_000);
        assert_eq!(listed_ha_state(&mut lab), (json!("a"), json!("started"), Value::Null));
        assert_eq!(lab.get("/nodes/a/qemu/101/status/current")["status"], "running");
    });
}
