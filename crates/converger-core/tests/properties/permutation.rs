//! Order does not matter: any order of guests, nodes, members and sets gives the same bytes, in JSON and YAML. Ids of guests only determine
//! the order.

use std::sync::Arc;

use serde_json::{Value, json};

use converger_core::desired;
use converger_core::document::Notation;
use converger_core::guest::Vmid;
use converger_core::observe;
use converger_core::policy::Rules;
use converger_core::testing::{TestInputs, TestWorld, plan_body, to_random_yaml, to_shuffled_json};

use crate::platform_model::elements;
use crate::random_cases;

const SEED: u64 = 2;
const WORLDS: u64 = 2_000;

#[test]
fn g6_order_of_input_does_not_change_a_byte_of_a_plan() {
    for mut case in random_cases(SEED, WORLDS) {
        let inputs = case.inputs();
        let expected = plan_body(&inputs.plan());
        assert!(!expected.is_empty(), "{case:?}");
        for _ in 0..2 {
            let desired_text = to_shuffled_json(&case.world.desired, &mut case.rng);
            let observation_text = to_shuffled_json(&case.world.observation, &mut case.rng);
            let desired = desired::parse(desired_text.as_bytes(), Notation::Json).unwrap_or_else(|faults| panic!("{case}: {faults:#?}"));
            let observation = observe::parse(observation_text.as_bytes()).unwrap_or_else(|faults| panic!("{case}: {faults:#?}"));
            let shuffled = TestInputs { desired: Arc::new(desired), observation, rules: Arc::clone(&inputs.rules) };
            assert_eq!(plan_body(&shuffled.plan()), expected, "{case:?}\n{desired_text}\n{observation_text}");
        }
    }
}

#[test]
fn yaml_and_json_of_one_document_are_the_same_desired_state() {
    for mut case in random_cases(SEED + 100, WORLDS) {
        let inputs = case.inputs();
        let text = to_random_yaml(&case.world.desired, &mut case.rng);
        let from_yaml = desired::parse(text.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{case}: {faults:#?}\n{text}"));
        assert_eq!(from_yaml, *inputs.desired, "{case:?}\n{text}");
    }
}

/// Mirrors an id: the largest becomes the smallest.
fn mirror_id(id: &Value) -> Value {
    json!(u64::from(Vmid::MIN + Vmid::MAX) - id.as_u64().expect("an id"))
}

fn mirror_ids(ids: &Value) -> Value {
    let mut ids: Vec<Value> = elements(ids).map(mirror_id).collect();
    ids.sort_by_key(Value::as_u64);
    json!(ids)
}

fn mirror_world(world: &TestWorld) -> TestWorld {
    let TestWorld { mut desired, mut observation, rules } = world.clone();
    for guest in desired["guests"].as_array_mut().into_iter().chain(observation["guests"].as_array_mut()).flatten() {
        guest["vmid"] = mirror_id(&guest["vmid"]);
        if guest.get("after").is_some() {
            guest["after"] = mirror_ids(&guest["after"]);
        }
    }
    let ids = rules.ids().iter().filter_map(|id| Vmid::new(mirror_id(&json!(id.get())).as_u64()?)).collect();
    let mirrored = Rules::new(ids, rules.names().to_vec(), rules.tags().to_vec());
    // Birth marks are not ids and stay the same.
    let mirrored = rules.machine().cloned().into_iter().fold(mirrored, Rules::with_machine);
    TestWorld { desired, observation, rules: mirrored }
}

/// A guest of a plan with every id in it mirrored.
fn mirror_guest(guest: &Value) -> Value {
    let mut guest = guest.clone();
    guest["vmid"] = mirror_id(&guest["vmid"]);
    for list in ["steps", "refusals"] {
        for entry in guest.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            for ids in ["/wait", "/evidence/on", "/evidence/guests"] {
                if let Some(ids) = entry.pointer_mut(ids) {
                    *ids = mirror_ids(ids);
                }
            }
        }
    }
    guest
}

fn planned_guests(world: &TestWorld) -> Vec<Value> {
    let inputs = world.parse().unwrap_or_else(|faults| panic!("{faults:#?}\n{world:?}"));
    let body: Value = serde_json::from_slice(&plan_body(&inputs.plan())).expect("a body is JSON");
    let mut guests: Vec<Value> = elements(&body["guests"]).cloned().collect();
    guests.sort_by_key(|guest| guest["vmid"].as_u64());
    guests
}

#[test]
fn g6_ids_determine_the_order_and_nothing_else() {
    for case in random_cases(SEED + 200, WORLDS) {
        let plain = planned_guests(&case.world);
        let mut mirrored: Vec<Value> = planned_guests(&mirror_world(&case.world)).iter().map(mirror_guest).collect();
        mirrored.reverse();
        assert_eq!(mirrored, plain, "{case:?}");
    }
}
