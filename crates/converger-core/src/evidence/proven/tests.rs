//! A proof of an operation that was held, found again by a later run, and resolved; and what is no proof of it.

use super::*;
use crate::apply::{Findings, Operation, Outcome, Release, Resolution, Word};
use crate::approve::{Admission, Confirmation, Mode, Refused};
use crate::artifact::Provenance;
use crate::evidence::{Bundle, Decision, write_entry};
use crate::testing::{Rng, some_inputs, some_operations};

/// Entries with their places.
type Placed = Vec<(u64, Vec<u8>)>;

/// The entries of an operation, each a few places behind the last one, and what they name.
fn proof() -> (Placed, Vec<Vec<u8>>) {
    let mut seeds = (0..).map(|seed| some_operations(&mut Rng::new(seed), "run-1"));
    let found = seeds.find_map(|mut operations| operations.pop()).expect("one of many plans has a step");
    let (run, environment, at_ms, plan) = (found.run.clone(), found.environment.clone(), 7_000, found.plan);
    let (inputs, judgement) = (some_inputs(), Digest::of_bytes(b"judgement"));
    let admission = Admission {
        mode: Mode::Solo,
        provenance: Provenance::Live,
        confirmation: Confirmation::FullDigest { by: "ann".into(), digest: plan },
        refused: Refused::StopsAll,
        now_ms: 7_000,
        age_secs_max: Admission::AGE_SECS_MAX,
    };
    let decision = Decision { inputs: inputs.clone(), plan, judgement };
    let bundle = Bundle::new("ann", decision, admission, &[]).write().expect("serialises");
    let word = |text| Word::new(text).expect("a word");
    let started = Run { id: run.clone(), environment: environment.clone(), plan, by: "ann".into(), at_ms, boot: None };
    let (id, other) = (found.id.clone(), OperationId::new("another").expect("an id"));
    let outcome = Outcome::held(Code::RunLeft, Release::Person, Findings::default());
    let entries = [
        Entry::RunStarted { run: started, inputs },
        Entry::PlanMade { run: run.clone(), plan, judgement, at_ms },
        Entry::Approved { run: run.clone(), plan, by: "ann".into(), how: word("digest"), names: Box::default(), at_ms },
        Entry::Admitted { run, plan, bundle: Digest::of_bytes(&bundle), answer: word("admitted"), at_ms },
        Entry::Record(Record::Intent { operation: Box::new(Operation { plan, ..found }), at_ms }),
        Entry::Recovery { environment, operations: [id.clone(), other].into(), at_ms },
        Entry::Record(Record::Ended { id: id.clone(), outcome, at_ms }),
        Entry::Record(Record::Resolved { id, resolution: Resolution::Done, by: "bob".into(), reason: "seen".into(), at_ms }),
    ];
    let entries = entries.iter().map(|entry| write_entry(entry).expect("serialises"));
    ((0..).map(|place| 10 + 3 * place).zip(entries).collect(), vec![bundle])
}

fn read(entries: &[(u64, Vec<u8>)], kept: &[Vec<u8>]) -> Result<Proof, Wrong> {
    Proof::read(entries.iter().map(|(index, entry)| (*index, entry.as_slice())), kept)
}

#[test]
fn what_was_held_found_again_and_resolved_is_proven() {
    let (entries, kept) = proof();
    let proof = read(&entries, &kept).expect("proven");
    assert_eq!(proof.recoveries, [25]);
    assert_eq!(proof.history.resolved.as_ref().map(|resolved| resolved.resolution), Some(Resolution::Done));
    assert_eq!(proof.admissions.iter().map(|weighed| (weighed.index, weighed.approvals.len())).collect::<Vec<_>>(), [(19, 1)]);
    assert_eq!(proof.bundles().collect::<Vec<_>>(), kept.iter().map(|kept| Digest::of_bytes(kept)).collect::<Vec<_>>());
    for (_, bytes) in &entries {
        let entry = parse_entry(bytes).expect("an entry");
        assert!(is_proof_of(&entry, proof.history.id(), &proof.run.id), "{entry:?}");
        assert!(!is_proof_of(&entry, &OperationId::new("none").expect("an id"), &RunId::new("none").expect("an id")), "{entry:?}");
    }
}

#[test]
fn whatever_is_left_out_of_a_proof_is_missed_or_need_not_be_there() {
    let (entries, kept) = proof();
    let left = |at: usize| {
        let mut entries = entries.clone();
        entries.remove(at);
        read(&entries, &kept).map(drop).map_err(|wrong| (wrong.code, wrong.index))
    };
    let found: Vec<_> = (0..entries.len()).map(left).collect();
    let (broken, missing) = (Code::IntegrityViolation, Code::EvidenceMissing);
    // Without its outcome the word on it has nothing to stand on.
    let expected =
        [Err((broken, 13)), Err((broken, 19)), Err((broken, 19)), Err((missing, 22)), Err((broken, 25)), Ok(()), Err((broken, 31)), Ok(())];
    assert_eq!(found, expected);
    assert_eq!(read(&entries[..6], &kept).map_err(|wrong| (wrong.code, wrong.index)), Err((missing, 25)));
    assert_eq!(read(&[], &kept).map_err(|wrong| wrong.code), Err(missing));
}

#[test]
fn what_is_not_about_the_operation_has_no_place_in_its_proof() {
    let (entries, kept) = proof();
    let hold =
        br#"{"at_ms":7,"kind":"hold","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","guest":100,"reason":"disk"}}"#;
    for at in [0, 4, 8] {
        let mut entries = entries.clone();
        entries.insert(at, (9, hold.to_vec()));
        assert_eq!(read(&entries, &kept).map_err(|wrong| wrong.code), Err(Code::IntegrityViolation), "{at}");
    }
    // What its run decided after it was begun admits nothing.
    let mut late = entries.clone();
    late.push((40, entries[2].1.clone()));
    assert!(read(&late, &kept).is_err());
    // A recovery of others.
    let mut other = entries.clone();
    let text = String::from_utf8(other[5].1.clone()).expect("text");
    let id =
        parse_entry(&entries[7].1).ok().and_then(|entry| if let Entry::Record(record) = entry { Some(record.id().clone()) } else { None });
    other[5].1 = text.replace(id.expect("a record").as_str(), "somebody").into_bytes();
    assert!(read(&other, &kept).is_err());
}
