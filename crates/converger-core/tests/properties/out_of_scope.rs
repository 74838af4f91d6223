//! Rows and nodes outside the scope do not change a byte of a plan body.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use converger_core::testing::{Rng, TestWorld, plan_body};

use crate::platform_model::{elements, vmid_of};
use crate::random_cases;

const SEED: u64 = 5;
const WORLDS: u64 = 2_000;

/// Removes, adds and changes rows and nodes outside the scope.
fn change_outside_scope(world: &TestWorld, rng: &mut Rng) -> TestWorld {
    let scope: BTreeSet<u64> = elements(&world.desired["guests"]).map(vmid_of).collect();
    let mut rows: Vec<Value> = elements(&world.observation["guests"]).filter(|row| scope.contains(&vmid_of(row))).cloned().collect();
    let mut nodes: Vec<Value> = elements(&world.observation["nodes"]).cloned().collect();
    // Nodes without a declared guest may appear, disappear and go offline.
    let used: BTreeSet<String> = rows.iter().map(|row| row["node"].to_string()).collect();
    nodes.retain(|node| used.contains(&node["name"].to_string()) || rng.one_in(2));
    for node in nodes.iter_mut().filter(|node| !used.contains(&node["name"].to_string())) {
        node["online"] = json!(rng.one_in(2));
    }
    nodes.extend((0..rng.below(3)).map(|index| json!({ "name": format!("a{index}"), "online": rng.one_in(2) })));
    rows.extend(foreign_rows(rng, &scope, &nodes));
    rng.shuffle(&mut rows);
    let mut observation = world.observation.clone();
    observation["guests"] = json!(rows);
    observation["nodes"] = json!(nodes);
    observation["unmanaged"] = json!(rng.below(1000));
    observation["source"] = json!("another");
    observation["taken_at"] = json!("1999-12-31T23:59:59Z");
    TestWorld { observation, ..world.clone() }
}

/// Complete rows of another world, with ids outside the scope.
fn foreign_rows(rng: &mut Rng, scope: &BTreeSet<u64>, nodes: &[Value]) -> Vec<Value> {
    let others = TestWorld::random_small(rng);
    let mut free = (100..1_000).filter(|vmid| !scope.contains(vmid)).collect::<Vec<u64>>();
    rng.shuffle(&mut free);
    let node = |rng: &mut Rng| rng.pick(nodes).map_or(Value::Null, |node| node["name"].clone());
    let rows = elements(&others.observation["guests"]).zip(free);
    let rows = rows.map(|(row, vmid)| {
        let mut row = row.clone();
        row["vmid"] = json!(vmid);
        row["node"] = node(rng);
        row
    });
    rows.filter(|row| !row["node"].is_null()).collect()
}

#[test]
fn g8_rows_and_nodes_outside_the_scope_change_no_byte_of_a_plan() {
    for mut case in random_cases(SEED, WORLDS) {
        let expected = plan_body(&case.inputs().plan());
        for _ in 0..2 {
            let disturbed = change_outside_scope(&case.world, &mut case.rng);
            let inputs = disturbed.parse().unwrap_or_else(|faults| panic!("{case}: {faults:#?}\n{}", disturbed.observation));
            assert_eq!(plan_body(&inputs.plan()), expected, "{case:?}\ndisturbed: {}", disturbed.observation);
        }
    }
}

#[test]
fn g8_dropped_rows_are_counted() {
    for case in random_cases(SEED + 100, WORLDS / 4) {
        let inputs = case.inputs();
        let scope = inputs.desired.scope();
        let outside = inputs.observation.guests.iter().filter(|row| !scope.contains(row.vmid)).count() as u64;
        let counted = inputs.observation.unmanaged;
        let scoped = inputs.observation.clone().into_scoped(&scope);
        assert_eq!(scoped.unmanaged, counted + outside, "{case:?}");
        assert!(scoped.guests.iter().all(|row| scope.contains(row.vmid)), "{case:?}");
    }
}
