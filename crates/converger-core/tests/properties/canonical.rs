//! plan.json equals the output of another implementation of RFC 8785, its numbers are integers that every parser reads exactly, and its
//! digests match the bytes that they cover.

use serde_json::Value;

use converger_core::artifact::{Digest, Provenance, has_body_digest, write_plan};
use converger_core::policy::{Circumstances, Limits};
use converger_core::safety::judge;

use crate::holds::random_holds;
use crate::{PropertyCase, random_cases};

const SEED: u64 = 11;
const PLANS: u64 = 10_000;
const INTEGER_END: u64 = 1 << 53;

/// plan.json of a case, under random limits and circumstances.
fn random_plan_json(case: &mut PropertyCase) -> (Vec<u8>, Digest) {
    let number = |case: &mut PropertyCase| u32::try_from(case.rng.below(4)).expect("small");
    let limits = Limits { guests: number(case), percent: number(case) * 30, stops: number(case) };
    let reason = case.rng.pick_word(converger_core::testing::HOSTILE_TEXTS).to_owned();
    let inputs = case.inputs();
    let circumstances = Circumstances {
        cluster: None,
        epoch: None,
        freeze: case.rng.one_in(2).then_some(reason),
        holds: random_holds(&mut case.rng, &inputs.desired),
    };
    let provenance = if case.rng.one_in(2) { Provenance::Live } else { Provenance::Replay };
    let judged = judge(inputs.plan(), limits, circumstances);
    let mut bytes = Vec::new();
    let digest = write_plan(&mut bytes, &judged, provenance).expect("memory takes it");
    (bytes, digest)
}

fn check_numbers(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) => match number.as_u64() {
            Some(whole) if whole < INTEGER_END => Ok(()),
            _ => Err(format!("{number} is not exact in every parser")),
        },
        Value::Array(list) => list.iter().try_for_each(check_numbers),
        Value::Object(map) => map.values().try_for_each(check_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

fn digest_of(value: &Value) -> String {
    Digest::of_bytes(&serde_json_canonicalizer::to_vec(value).expect("canonical")).to_string()
}

#[test]
fn plan_json_is_canonical_and_its_digests_hold() {
    for mut case in random_cases(SEED, PLANS) {
        let (bytes, digest) = random_plan_json(&mut case);
        let value: Value = serde_json::from_slice(&bytes).expect("JSON");
        let mut canonical = serde_json_canonicalizer::to_vec(&value).expect("canonical");
        canonical.push(b'\n');
        assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(&canonical), "{case:?}");
        assert_eq!(check_numbers(&value), Ok(()), "{case:?}");
        assert_eq!(value["digest"], digest_of(&value["body"]), "{case:?}");
        assert_eq!(value["digest"], digest.to_string(), "{case:?}");
        let text = String::from_utf8(bytes).expect("text");
        assert!(has_body_digest(&text, &digest), "{case:?}");
        assert!(!has_body_digest(&text.replacen("\"guests\":[", "\"guests\":[ ", 1), &digest), "{case:?}");
        assert!(!has_body_digest(&text, &Digest::of_bytes(text.as_bytes())), "{case:?}");
        let mut judgement = value["judgement"].clone();
        let claimed = judgement.as_object_mut().and_then(|judgement| judgement.remove("digest"));
        assert_eq!(claimed, Some(Value::String(digest_of(&judgement))), "{case:?}");
    }
}
