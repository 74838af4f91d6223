//! A decision that was kept is made again byte for byte; and whatever is changed in what was kept has a name, and is never the same decision.

use std::collections::BTreeMap;

use converger_core::approve::Mode;
use converger_core::artifact::Digest;
use converger_core::evidence::{Decision, Irreproducible, Kept, Piece, keep, reproduce};
use converger_core::guest::Vmid;
use converger_core::normalize::{Field, Value};
use converger_core::policy::{Circumstances, Grip, GripBy, Host, Limits, Mark, OwnWrite, Rules};
use converger_core::safety::judge;
use converger_core::testing::{Rng, some_config, understood};

use crate::{Case, each_case};

const SEED: u64 = 77;
const DECISIONS: u64 = 3_000;

/// What was decided, as it is kept.
struct Record {
    decision: Decision,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

impl Record {
    fn of(kept: Kept) -> Self {
        let blobs = kept.blobs.into_iter().map(|bytes| (Digest::of_bytes(&bytes), bytes)).collect();
        Self { decision: Decision { inputs: kept.inputs, plan: kept.plan, judgement: kept.judgement }, blobs }
    }

    /// The same where a piece has other bytes, under the digest of the old ones or of the new.
    fn with(&self, piece: Piece, bytes: Vec<u8>, is_renamed: bool) -> Self {
        let mut decision = self.decision.clone();
        let digest = Digest::of_bytes(&bytes);
        if is_renamed {
            let place = match piece {
                Piece::Config => &mut decision.inputs.config,
                Piece::Desired => &mut decision.inputs.desired,
                Piece::Observation => &mut decision.inputs.observation,
                Piece::Rules => &mut decision.inputs.rules,
                Piece::Catalogue => &mut decision.inputs.catalogue,
                Piece::Plan => &mut decision.plan,
                Piece::Judgement => &mut decision.judgement,
            };
            *place = digest;
        }
        let mut blobs = self.blobs.clone();
        blobs.insert(decision.digest(piece), bytes);
        Self { decision, blobs }
    }

    fn reproduce(&self) -> Result<(), Irreproducible> {
        reproduce(&self.decision, |digest| self.blobs.get(&digest).cloned(), understood).map(drop)
    }
}

/// Limits that some plans pass, people who hold guests, and machines of all sorts.
fn recorded(case: &Case) -> Record {
    let rng = &mut Rng::new(case.number ^ SEED);
    let mut inputs = case.inputs();
    let mut grips = Vec::new();
    for guest in inputs.desired.guests() {
        match rng.below(8) {
            0 => grips.push(Grip { vmid: guest.vmid, by: GripBy::Person { by: "ann".into(), reason: "a \"look\"\n".into() } }),
            1 => grips.push(Grip { vmid: guest.vmid, by: GripBy::Operation("op-1".into()) }),
            _ => (),
        }
    }
    let own_writes = inputs.desired.guests().iter().filter(|_| rng.one_in(8));
    let own_writes = own_writes.map(|guest| OwnWrite::new(guest.vmid, Field::Cores, Some(&Value::Count(4)))).collect();
    let mut rules: Rules = (*inputs.rules).clone().with_grips(grips).with_own_writes(own_writes);
    if rng.one_in(2) {
        let host = Host::new(["bc:24:11:00:00:01".into()], ["00112233-4455-6677-8899-AABBCCDDEEFF".into()]);
        let host = if rng.one_in(2) { host.with_device() } else { host.without([Mark::HardwareAddresses]) };
        rules = rules.with_host(host);
    }
    let mode = [None, Some(Mode::Solo), Some(Mode::Shared)][rng.index(3)];
    let [guests, percent, stops] = [50, 100, 5].map(|most| u32::try_from(rng.below(most + 1)).unwrap_or(0));
    let limits = if rng.one_in(2) { Limits::default() } else { Limits { guests, percent, stops } };
    let circumstances = Circumstances { freeze: rng.one_in(4).then(|| "a \u{202e}move".to_owned()) };
    let config = some_config(&rules, limits, mode);
    inputs.rules = rules.into();
    Record::of(keep(&judge(inputs.plan(), limits, circumstances), "0.1.0", config).expect("memory takes it"))
}

#[test]
fn a_decision_is_made_again_byte_for_byte() {
    for case in each_case(SEED, DECISIONS) {
        let record = recorded(&case);
        assert_eq!(record.reproduce(), Ok(()), "{case:?}");
    }
}

#[test]
fn what_is_not_kept_or_not_what_was_named_is_told() {
    for case in each_case(SEED + 1, DECISIONS / 20) {
        let record = recorded(&case);
        for piece in Piece::ALL {
            let digest = record.decision.digest(piece);
            let mut missing = Record { decision: record.decision.clone(), blobs: record.blobs.clone() };
            let mut bytes = missing.blobs.remove(&digest).expect("it is kept");
            assert_eq!(missing.reproduce(), Err(Irreproducible::Missing { piece, digest }), "{case:?}");
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            let found = Digest::of_bytes(&bytes);
            assert_eq!(
                record.with(piece, bytes, false).reproduce(),
                Err(Irreproducible::Changed { piece, named: digest, found }),
                "{case:?}"
            );
        }
    }
}

/// Whoever changes what was wanted, or what came of it, and names it anew in the ledger, does not get the rest to agree.
#[test]
fn no_changed_byte_of_what_was_wanted_or_planned_agrees_with_the_rest() {
    for case in each_case(SEED + 2, DECISIONS / 10) {
        let (record, rng) = (recorded(&case), &mut Rng::new(case.number));
        for piece in [Piece::Desired, Piece::Catalogue, Piece::Plan] {
            let mut bytes = record.blobs[&record.decision.digest(piece)].clone();
            let at = rng.index(bytes.len());
            bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(rng.below(255)).unwrap_or(0));
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let found = record.with(piece, bytes, true).reproduce();
            assert!(found.is_err(), "{case:?} {piece} at {at}: {text}");
        }
    }
}

/// Whoever lays another configuration under a decision does not get the rest to agree.
#[test]
fn a_decision_under_another_configuration_is_another_one() {
    let other = |guests| Limits { guests, ..Limits::default() };
    for case in each_case(SEED + 5, DECISIONS / 20) {
        let record = recorded(&case);
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
            let found = record.with(Piece::Config, config, true).reproduce();
            assert!(matches!(found, Err(Irreproducible::Unread { piece: Piece::Config, .. })), "{case:?} {text} {found:?}");
        }
    }
}

#[test]
fn a_configuration_that_freezes_has_no_decision_as_if_it_did_not() {
    let (mut free, mut frozen) = (0, 0);
    for case in each_case(SEED + 6, DECISIONS / 20) {
        let record = recorded(&case);
        let judgement = String::from_utf8_lossy(&record.blobs[&record.decision.judgement]).into_owned();
        let config = String::from_utf8_lossy(&record.blobs[&record.decision.inputs.config]).replacen('{', r#"{"freeze":{"on":true},"#, 1);
        let found = record.with(Piece::Config, config.into_bytes(), true).reproduce();
        if judgement.contains(r#""freeze":null"#) {
            assert!(matches!(found, Err(Irreproducible::Unread { piece: Piece::Config, .. })), "{case:?} {found:?}");
            free += 1;
        } else {
            assert_eq!(found, Ok(()), "{case:?}");
            frozen += 1;
        }
    }
    assert!(free > 0 && frozen > 0, "{free} {frozen}");
}

#[test]
fn a_result_that_the_inputs_do_not_give_is_a_breach() {
    for case in each_case(SEED + 3, DECISIONS / 20) {
        let record = recorded(&case);
        let mut bytes = record.blobs[&record.decision.plan].clone();
        let at = bytes.iter().position(|byte| *byte == b'l').expect("an environment");
        bytes[at] = b'x';
        let forged = record.with(Piece::Plan, bytes, true).reproduce();
        assert!(matches!(forged, Err(Irreproducible::Breach { piece: Piece::Plan, at: place, .. }) if place == at), "{case:?} {forged:?}");
    }
}

#[test]
fn another_planner_or_another_table_is_not_pretended_to_be_this_one() {
    let case = each_case(SEED + 4, 1).next().expect("a case");
    let mut record = recorded(&case);
    record.decision.inputs.planner += 1;
    assert_eq!(record.reproduce(), Err(Irreproducible::OtherPlanner { then: 2, now: 1 }));
    let record = recorded(&case);
    let changed = |piece: Piece| {
        let text = String::from_utf8(record.blobs[&record.decision.digest(piece)].clone()).expect("text");
        record.with(piece, text.replacen("qemu", "lxc", 1).replacen("start", "begin", 1).into_bytes(), true).reproduce()
    };
    for piece in [Piece::Rules, Piece::Catalogue] {
        assert_eq!(changed(piece), Err(Irreproducible::OtherTables { piece }), "{piece}");
    }
}
