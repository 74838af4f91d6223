//! A recorded decision is reproduced byte for byte, and every change of the record is detected and never gives the same decision.

use std::collections::BTreeMap;

use converger_core::approve::ApprovalMode;
use converger_core::artifact::Digest;
use converger_core::desired::DesiredGuest;
use converger_core::evidence::{Decision, DecisionPart, DecisionRecord, ReproduceError, record_decision, reproduce};
use converger_core::guest::{GuestIdentity, GuestKind, Vmid};
use converger_core::normalize::{Field, FieldValue};
use converger_core::policy::{Birth, Circumstances, Limits, MachineIdentity, MachineMark, OwnWrite, Rules};
use converger_core::safety::judge;
use converger_core::testing::{Rng, parse_config, some_config};

use crate::holds::random_holds;
use crate::{PropertyCase, random_cases};

const SEED: u64 = 77;
const DECISIONS: u64 = 3_000;

/// A decision in its stored form.
struct DecisionFixture {
    decision: Decision,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl DecisionFixture {
    fn from_record(record: DecisionRecord) -> Self {
        let blobs = record.blobs.into_iter().map(|bytes| (Digest::of_bytes(&bytes), bytes)).collect();
        Self { decision: Decision { inputs: record.inputs, plan: record.plan, judgement: record.judgement }, blobs }
    }

    /// Replaces the bytes of one part, stored under the digest of the old bytes or of the new ones.
    fn with_part(&self, part: DecisionPart, bytes: Vec<u8>, is_renamed: bool) -> Self {
        let mut decision = self.decision.clone();
        let digest = Digest::of_bytes(&bytes);
        if is_renamed {
            let target = match part {
                DecisionPart::Config => &mut decision.inputs.config,
                DecisionPart::Intent => &mut decision.inputs.intent,
                DecisionPart::Observation => &mut decision.inputs.observation,
                DecisionPart::Rules => &mut decision.inputs.rules,
                DecisionPart::Catalogue => &mut decision.inputs.catalogue,
                DecisionPart::Plan => &mut decision.plan,
                DecisionPart::Judgement => &mut decision.judgement,
            };
            *target = digest;
        }
        let mut blobs = self.blobs.clone();
        blobs.insert(decision.digest(part), bytes);
        Self { decision, blobs }
    }

    fn reproduce(&self) -> Result<(), ReproduceError> {
        reproduce(&self.decision, |digest| self.blobs.get(&digest).cloned(), parse_config).map(drop)
    }
}

/// A guest that was made as a clone and may not be provisioned yet.
fn random_birth(guest: &DesiredGuest) -> Birth {
    let mark = || Some(format!("0b{}", guest.vmid).into());
    let identity = match guest.kind {
        GuestKind::Qemu => GuestIdentity::Qemu { uuid: mark(), ctime: Some(1_763_000_500) },
        GuestKind::Lxc => GuestIdentity::Lxc { rootfs: mark(), mac: None },
    };
    let provisioned = guest.vmid.get().is_multiple_of(2);
    Birth {
        grown: provisioned,
        identity: Some(identity),
        provisioned,
        request: Some(Digest::of_bytes(b"a request")),
        started: provisioned,
        vmid: guest.vmid,
    }
}

/// Records a decision with random limits, holds and machines.
fn record_case(case: &PropertyCase) -> DecisionFixture {
    let rng = &mut Rng::new(case.number ^ SEED);
    let mut inputs = case.inputs();
    let holds = random_holds(rng, &inputs.desired);
    let own_writes = inputs.desired.guests().iter().filter(|_| rng.one_in(8));
    let own_writes = own_writes.map(|guest| OwnWrite::new(guest.vmid, Field::Cores, Some(&FieldValue::Count(4)))).collect();
    let births = inputs.desired.guests().iter().filter(|_| rng.one_in(8)).map(random_birth).collect();
    let mut rules: Rules = (*inputs.rules).clone().with_own_writes(own_writes).with_births(births);
    if rng.one_in(2) {
        let host = MachineIdentity::new(["bc:24:11:00:00:01".into()], ["00112233-4455-6677-8899-AABBCCDDEEFF".into()]);
        let host = if rng.one_in(2) { host.with_device() } else { host.with_unreadable([MachineMark::HardwareAddresses]) };
        rules = rules.with_machine(host);
    }
    let mode = [None, Some(ApprovalMode::Solo), Some(ApprovalMode::Shared)][rng.index(3)];
    let [guests, percent, stops] = [50, 100, 5].map(|most| u32::try_from(rng.below(most + 1)).unwrap_or(0));
    let limits = if rng.one_in(2) { Limits::default() } else { Limits { guests, percent, stops } };
    let circumstances = Circumstances {
        cluster: None,
        epoch: rng.one_in(4).then_some(2),
        freeze: rng.one_in(4).then(|| "a \u{202e}move".to_owned()),
        holds,
    };
    let config = some_config(&rules, limits, mode);
    inputs.rules = rules.into();
    DecisionFixture::from_record(record_decision(&judge(inputs.plan(), limits, circumstances), "0.1.0", config).expect("memory takes it"))
}

#[test]
fn recorded_decision_is_reproduced_byte_for_byte() {
    for case in random_cases(SEED, DECISIONS) {
        let record = record_case(&case);
        assert_eq!(record.reproduce(), Ok(()), "{case:?}");
    }
}

#[test]
fn missing_and_changed_parts_are_detected() {
    for case in random_cases(SEED + 1, DECISIONS / 20) {
        let record = record_case(&case);
        for part in DecisionPart::ALL {
            let digest = record.decision.digest(part);
            let mut missing = DecisionFixture { decision: record.decision.clone(), blobs: record.blobs.clone() };
            let mut bytes = missing.blobs.remove(&digest).expect("it is kept");
            assert_eq!(missing.reproduce(), Err(ReproduceError::Missing { part, digest }), "{case:?}");
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            let found = Digest::of_bytes(&bytes);
            assert_eq!(
                record.with_part(part, bytes, false).reproduce(),
                Err(ReproduceError::Changed { part, named: digest, found }),
                "{case:?}"
            );
        }
    }
}

/// Replacing an input or a result, and its digest in the ledger, contradicts the other parts.
#[test]
fn changed_desired_state_catalogue_or_plan_is_detected() {
    for case in random_cases(SEED + 2, DECISIONS / 10) {
        let (record, rng) = (record_case(&case), &mut Rng::new(case.number));
        for part in [DecisionPart::Intent, DecisionPart::Catalogue, DecisionPart::Plan] {
            let mut bytes = record.blobs[&record.decision.digest(part)].clone();
            let at = rng.index(bytes.len());
            bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(rng.below(255)).unwrap_or(0));
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let found = record.with_part(part, bytes, true).reproduce();
            assert!(found.is_err(), "{case:?} {part} at {at}: {text}");
        }
    }
}

/// Replacing the configuration of a decision, and its digest, contradicts the other parts.
#[test]
fn decision_under_another_configuration_is_refused() {
    let other = |guests| Limits { guests, ..Limits::default() };
    for case in random_cases(SEED + 5, DECISIONS / 20) {
        let record = record_case(&case);
        let ids = || (100..200).filter_map(Vmid::new).collect();
        let others = [
            some_config(&Rules::new(ids(), Vec::new(), Vec::new()), Limits::default(), None),
            some_config(&Rules::new(Vec::new(), vec!["x".into()], Vec::new()), Limits::default(), None),
            some_config(&Rules::new(Vec::new(), Vec::new(), vec!["x".into()]), Limits::default(), None),
            some_config(&Rules::default(), other(51), None),
            b"[]".to_vec(),
            b"".to_vec(),
        ];
        for config in others {
            let text = String::from_utf8_lossy(&config).into_owned();
            let found = record.with_part(DecisionPart::Config, config, true).reproduce();
            assert!(matches!(found, Err(ReproduceError::Unreadable { part: DecisionPart::Config, .. })), "{case:?} {text} {found:?}");
        }
    }
}

#[test]
fn unfrozen_decision_under_a_freezing_configuration_is_refused() {
    let (mut free, mut frozen) = (0, 0);
    for case in random_cases(SEED + 6, DECISIONS / 20) {
        let record = record_case(&case);
        let judgement = String::from_utf8_lossy(&record.blobs[&record.decision.judgement]).into_owned();
        let config = String::from_utf8_lossy(&record.blobs[&record.decision.inputs.config]).replacen('{', r#"{"freeze":{"on":true},"#, 1);
        let found = record.with_part(DecisionPart::Config, config.into_bytes(), true).reproduce();
        if judgement.contains(r#""freeze":null"#) {
            assert!(matches!(found, Err(ReproduceError::Unreadable { part: DecisionPart::Config, .. })), "{case:?} {found:?}");
            free += 1;
        } else {
            assert_eq!(found, Ok(()), "{case:?}");
            frozen += 1;
        }
    }
    assert!(free > 0 && frozen > 0, "{free} {frozen}");
}

#[test]
fn plan_that_the_inputs_do_not_give_is_a_determinism_breach() {
    for case in random_cases(SEED + 3, DECISIONS / 20) {
        let record = record_case(&case);
        let mut bytes = record.blobs[&record.decision.plan].clone();
        let at = bytes.iter().position(|byte| *byte == b'l').expect("an environment");
        bytes[at] = b'x';
        let forged = record.with_part(DecisionPart::Plan, bytes, true).reproduce();
        assert!(
            matches!(forged, Err(ReproduceError::Breach { part: DecisionPart::Plan, at: position, .. }) if position == at),
            "{case:?} {forged:?}"
        );
    }
}

#[test]
fn another_planner_or_table_is_reported() {
    let mut tables = 0;
    for case in random_cases(SEED + 4, DECISIONS / 20) {
        let mut record = record_case(&case);
        record.decision.inputs.planner += 1;
        assert_eq!(record.reproduce(), Err(ReproduceError::OtherPlanner { then: 3, now: 2 }));
        let record = record_case(&case);
        for (part, word) in [(DecisionPart::Rules, "\"kind\":\"qemu\""), (DecisionPart::Catalogue, "\"change\":\"start\"")] {
            let text = String::from_utf8(record.blobs[&record.decision.digest(part)].clone()).expect("text");
            if text.contains(word) {
                let other = text.replacen(word, &word.replace("qemu", "lxc").replace("start", "begin"), 1);
                let found = record.with_part(part, other.into_bytes(), true).reproduce();
                assert!(matches!(found, Err(ReproduceError::OtherTables { .. } | ReproduceError::Unreadable { .. })), "{case:?} {found:?}");
                tables += u32::from(found == Err(ReproduceError::OtherTables { part }));
            }
        }
    }
    assert!(tables > 50, "{tables}");
}
