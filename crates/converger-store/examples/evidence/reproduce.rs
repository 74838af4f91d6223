//! Reproducing a recorded decision, compared with hashing and parsing the same bytes.

use std::collections::BTreeMap;
use std::hint::black_box;

use converger_core::artifact::Digest;
use converger_core::evidence::{Decision, DecisionPart, reproduce as again};
use converger_core::testing::parse_config;
use serde_json::json;

use crate::runs::FleetDecision;
use crate::{BenchOutput, cpu, typed};

struct RecordedDecision {
    decision: Decision,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl RecordedDecision {
    fn piece(&self, part: DecisionPart) -> &[u8] {
        &self.blobs[&self.decision.digest(part)]
    }
}

pub(crate) fn bench_reproduce(guests: u32, repetitions: u32) -> BenchOutput {
    let decided = FleetDecision::for_fleet(guests);
    let recorded = RecordedDecision { decision: decided.decision(), blobs: decided.blobs() };
    let [bare_ns, reproduce_ns] = cpu::least_cpu_ns(repetitions, &recorded, [parse_inputs_once, reproduce_decision_once]);
    let bytes: BTreeMap<&str, usize> = DecisionPart::ALL.iter().map(|part| (part.word(), recorded.piece(*part).len())).collect();
    Ok(json!({ "guests": guests, "bytes": bytes, "bare_ns": bare_ns, "reproduce_ns": reproduce_ns }))
}

/// Hashes each part, and parses the desired state and the observation into typed structs.
#[inline(never)]
fn parse_inputs_once(recorded: &RecordedDecision) {
    for part in DecisionPart::ALL {
        black_box(Digest::of_bytes(recorded.piece(part)));
    }
    let desired: typed::TypedDesired = serde_json::from_slice(recorded.piece(DecisionPart::Intent)).expect("it is well-formed");
    let observation: typed::TypedObservation =
        serde_json::from_slice(recorded.piece(DecisionPart::Observation)).expect("it is well-formed");
    black_box((desired, observation));
}

#[inline(never)]
fn reproduce_decision_once(recorded: &RecordedDecision) {
    let reproduced = again(&recorded.decision, |digest| recorded.blobs.get(&digest).cloned(), parse_config);
    black_box(reproduced.expect("the same inputs give the same decision"));
}
