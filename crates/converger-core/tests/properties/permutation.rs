//! The order in which things are written says nothing: any order of guests, nodes, members and sets gives the same
//! bytes, in JSON and in YAML.

use std::sync::Arc;

use converger_core::desired;
use converger_core::document::Notation;
use converger_core::observe;
use converger_core::testing::{Inputs, body, json_shuffled, yaml};

use crate::each_case;

const SEED: u64 = 2;
const WORLDS: u64 = 2_000;

#[test]
fn g6_the_order_of_what_is_written_changes_no_byte_of_a_plan() {
    for mut case in each_case(SEED, WORLDS) {
        let inputs = case.inputs();
        let expected = body(&inputs.plan());
        assert!(!expected.is_empty(), "{case:?}");
        for _ in 0..2 {
            let desired_text = json_shuffled(&case.world.desired, &mut case.rng);
            let observation_text = json_shuffled(&case.world.observation, &mut case.rng);
            let desired = desired::parse(desired_text.as_bytes(), Notation::Json).unwrap_or_else(|faults| panic!("{case}: {faults:#?}"));
            let observation = observe::parse(observation_text.as_bytes()).unwrap_or_else(|faults| panic!("{case}: {faults:#?}"));
            let shuffled = Inputs { desired: Arc::new(desired), observation, rules: Arc::clone(&inputs.rules) };
            assert_eq!(body(&shuffled.plan()), expected, "{case:?}\n{desired_text}\n{observation_text}");
        }
    }
}

#[test]
fn yaml_and_json_of_one_document_are_one_declared_state() {
    for mut case in each_case(SEED + 100, WORLDS) {
        let inputs = case.inputs();
        let text = yaml(&case.world.desired, &mut case.rng);
        let from_yaml = desired::parse(text.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{case}: {faults:#?}\n{text}"));
        assert_eq!(from_yaml, *inputs.desired, "{case:?}\n{text}");
    }
}
