//! Observations and desired states read back unchanged after they are written, and the written bytes are stable.

use converger_core::artifact::write_observation;
use converger_core::desired;
use converger_core::document::Notation;
use converger_core::observe::{self, Observation};
use converger_core::testing::{TestInputs, plan_body};

use crate::random_cases;

const SEED: u64 = 10;
const WORLDS: u64 = 3_000;

fn observation_bytes(observation: &Observation) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_observation(&mut bytes, observation).expect("memory takes it");
    bytes
}

#[test]
fn observation_round_trips() {
    for case in random_cases(SEED, WORLDS) {
        let inputs = case.inputs();
        let scoped = inputs.observation.clone().into_scoped(&inputs.desired.scope()).into_observation();
        for observation in [&inputs.observation, &scoped] {
            let bytes = observation_bytes(observation);
            let again =
                observe::parse(&bytes).unwrap_or_else(|faults| panic!("{case:?}\n{faults:#?}\n{}", String::from_utf8_lossy(&bytes)));
            assert_eq!(again, *observation, "{case:?}");
            assert_eq!(observation_bytes(&again), bytes, "{case:?}");
        }
        // A recorded observation leads to the same plan as the original one.
        let replayed = TestInputs { observation: scoped, ..inputs.clone() };
        assert_eq!(plan_body(&replayed.plan()), plan_body(&inputs.plan()), "{case:?}");
    }
}

#[test]
fn written_observation_is_canonical() {
    for case in random_cases(SEED + 100, WORLDS / 4) {
        let bytes = observation_bytes(&case.inputs().observation);
        let value: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        let mut canonical = serde_json_canonicalizer::to_vec(&value).expect("canonical");
        canonical.push(b'\n');
        assert_eq!(bytes, canonical, "{case:?}");
    }
}

#[test]
fn normal_desired_state_round_trips() {
    for case in random_cases(SEED + 200, WORLDS) {
        let inputs = case.inputs();
        let bytes = serde_json::to_vec(&*inputs.desired).expect("memory takes it");
        let again =
            desired::parse_normal(&bytes).unwrap_or_else(|faults| panic!("{case:?}\n{faults:#?}\n{}", String::from_utf8_lossy(&bytes)));
        assert_eq!(again, *inputs.desired, "{case:?}");
        assert_eq!(serde_json::to_vec(&again).expect("memory takes it"), bytes, "{case:?}");
    }
}

/// Units are for people: each form accepts numbers either with or without a unit.
#[test]
fn units_are_required_in_one_form_and_rejected_in_the_other() {
    let guest = |inside: &str| format!(r#"{{"environment":"lab","guests":[{{"kind":"lxc","name":"a","vmid":100,{inside}}}],"version":1}}"#);
    let pairs = [
        (r#""config":{"memory":"1GiB"}"#, r#""config":{"memory":1024}"#),
        (r#""config":{"cpulimit":"1.5"}"#, r#""config":{"cpulimit":1500}"#),
        (r#""stop_timeout":"90s""#, r#""stop_timeout_secs":90"#),
    ];
    for (declared, normal) in pairs.map(|(declared, normal)| (guest(declared), guest(normal))) {
        let one = desired::parse(declared.as_bytes(), Notation::Json).expect("declared");
        assert_eq!(one, desired::parse_normal(normal.as_bytes()).expect("normal"));
        assert!(desired::parse(normal.as_bytes(), Notation::Json).is_err() && desired::parse_normal(declared.as_bytes()).is_err());
    }
}
