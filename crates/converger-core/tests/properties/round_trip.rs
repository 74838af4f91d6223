//! A reading that is written down and read again is the same reading, byte for byte from then on.

use converger_core::artifact::write_observation;
use converger_core::observe::{self, Observation};
use converger_core::testing::{Inputs, body};

use crate::each_case;

const SEED: u64 = 10;
const WORLDS: u64 = 3_000;

fn written(observation: &Observation) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_observation(&mut bytes, observation).expect("memory takes it");
    bytes
}

#[test]
fn a_reading_survives_being_written_and_read() {
    for case in each_case(SEED, WORLDS) {
        let inputs = case.inputs();
        let scoped = inputs.observation.clone().within(&inputs.desired.scope()).into_observation();
        for observation in [&inputs.observation, &scoped] {
            let bytes = written(observation);
            let again =
                observe::parse(&bytes).unwrap_or_else(|faults| panic!("{case:?}\n{faults:#?}\n{}", String::from_utf8_lossy(&bytes)));
            assert_eq!(again, *observation, "{case:?}");
            assert_eq!(written(&again), bytes, "{case:?}");
        }
        // What was recorded in scope leads to the same plan as what was read.
        let replayed = Inputs { observation: scoped, ..inputs.clone() };
        assert_eq!(body(&replayed.plan()), body(&inputs.plan()), "{case:?}");
    }
}

#[test]
fn what_is_written_is_canonical() {
    for case in each_case(SEED + 100, WORLDS / 4) {
        let bytes = written(&case.inputs().observation);
        let value: serde_json::Value = serde_json::from_slice(&bytes).expect("JSON");
        let mut canonical = serde_json_canonicalizer::to_vec(&value).expect("canonical");
        canonical.push(b'\n');
        assert_eq!(bytes, canonical, "{case:?}");
    }
}
