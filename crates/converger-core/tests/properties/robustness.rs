//! Damaged files: a parser never panics; it accepts the text or reports what is wrong and where.

use serde_json::Value;

use converger_core::desired;
use converger_core::document::{Diagnostics, Notation, Span};
use converger_core::observe;
use converger_core::testing::{TestInputs, mutate, to_shuffled_json};

use crate::random_cases;

const SEED: u64 = 9;
const WORLDS: u64 = 6_000;

fn is_inside(bytes: &[u8], span: Span) -> bool {
    let (start, end) = (span.start as usize, span.end as usize);
    let on_boundaries = std::str::from_utf8(bytes).is_ok_and(|text| text.is_char_boundary(start) && text.is_char_boundary(end));
    start <= end && end <= bytes.len() && (on_boundaries || std::str::from_utf8(bytes).is_err())
}

fn check_faults(bytes: &[u8], faults: &Diagnostics) -> Result<(), String> {
    if faults.list().is_empty() {
        return Err("rejected without a fault".into());
    }
    for fault in faults.list() {
        let related = fault.related.as_ref().map(|(span, _)| *span);
        if !is_inside(bytes, fault.span) || related.is_some_and(|span| !is_inside(bytes, span)) {
            return Err(format!("a span outside the text: {fault:?}"));
        }
        if fault.message.is_empty() || fault.message.chars().any(char::is_control) {
            return Err(format!("a message that cannot be displayed: {fault:?}"));
        }
    }
    if !faults.list().is_sorted_by_key(|fault| fault.span) {
        return Err("faults are not sorted by position".into());
    }
    Ok(())
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn damaged_desired_state_is_accepted_or_rejected_with_a_fault() {
    let (mut accepted, mut explained) = (0_u64, 0_u64);
    for mut case in random_cases(SEED, WORLDS) {
        let inputs = case.inputs();
        let texts = [
            (case.world.desired_yaml(&mut case.rng), Notation::Yaml),
            (to_shuffled_json(&case.world.desired, &mut case.rng), Notation::Json),
        ];
        for (text, notation) in texts {
            let bytes = mutate(&text, &mut case.rng);
            match desired::parse(&bytes, notation) {
                Ok(desired) => {
                    accepted += 1;
                    let plan = TestInputs { desired: desired.into(), ..inputs.clone() }.plan();
                    assert_eq!(plan.verdicts().len(), plan.desired().guests().len(), "{case}\n{}", to_text(&bytes));
                }
                Err(faults) => {
                    explained += 1;
                    assert_eq!(check_faults(&bytes, &faults), Ok(()), "{case} {notation:?}\n{}", to_text(&bytes));
                }
            }
        }
    }
    assert!(accepted > crate::case_count(WORLDS) / 50, "only {accepted} damaged texts were still fine");
    assert!(explained > crate::case_count(WORLDS) / 2, "only {explained} damaged texts were refused");
}

#[test]
fn damaged_observation_is_accepted_or_rejected_with_a_fault() {
    let (mut accepted, mut explained) = (0_u64, 0_u64);
    for mut case in random_cases(SEED + 100, WORLDS) {
        let inputs = case.inputs();
        let bytes = mutate(&to_shuffled_json(&case.world.observation, &mut case.rng), &mut case.rng);
        match observe::parse(&bytes) {
            Ok(observation) => {
                accepted += 1;
                assert!(serde_json::from_slice::<Value>(&bytes).is_ok(), "{case}: accepted although it is not JSON\n{}", to_text(&bytes));
                let plan = inputs.plan_on(observation);
                assert_eq!(plan.verdicts().len(), plan.desired().guests().len(), "{case}\n{}", to_text(&bytes));
            }
            Err(faults) => {
                explained += 1;
                assert_eq!(check_faults(&bytes, &faults), Ok(()), "{case}\n{}", to_text(&bytes));
            }
        }
    }
    assert!(accepted > crate::case_count(WORLDS) / 50, "only {accepted} damaged texts were still fine");
    assert!(explained > crate::case_count(WORLDS) / 2, "only {explained} damaged texts were refused");
}

/// Bytes that were never a valid file.
#[test]
fn random_noise_is_rejected_with_a_fault() {
    for case in random_cases(SEED + 200, WORLDS) {
        let mut rng = case.rng.clone();
        let bytes: Vec<u8> = (0..rng.below(200))
            .map(|_| rng.pick_word(&["{", "[", "a", ":", " ", "\n", "\"", "-", "1", "é", "\t", "&", "|"]))
            .flat_map(str::bytes)
            .collect();
        for faults in
            [desired::parse(&bytes, Notation::Yaml).err(), desired::parse(&bytes, Notation::Json).err(), observe::parse(&bytes).err()]
        {
            let faults = faults.unwrap_or_else(|| panic!("{case}: accepted {:?}", to_text(&bytes)));
            assert_eq!(check_faults(&bytes, &faults), Ok(()), "{case}\n{:?}", to_text(&bytes));
        }
    }
}
