//! The proof of an operation that was held, found again by a later run, and resolved; and entries that do not prove it.

use super::*;
use crate::apply::{Findings, Operation, Outcome, ReleaseCondition, Resolution, Slug};
use crate::approve::{Admission, ApprovalMode, Confirmation, RefusedGuestPolicy};
use crate::artifact::Provenance;
use crate::evidence::{AdmissionBundle, Decision, write_entry};
use crate::testing::{Rng, some_inputs, some_operations};

/// Entries with their indices.
type IndexedEntries = Vec<(u64, Vec<u8>)>;

/// The entries of an operation, with gaps between their indices, and the bytes that they reference.
fn sample_entries() -> (IndexedEntries, Vec<Vec<u8>>) {
    let mut seeds = (0..).map(|seed| some_operations(&mut Rng::new(seed), "run-1"));
    let found = seeds.find_map(|mut operations| operations.pop()).expect("one of many plans has a step");
    let (run, environment, at_ms, plan) = (found.run.clone(), found.environment.clone(), 7_000, found.plan);
    let (inputs, judgement) = (some_inputs(), Digest::of_bytes(b"judgement"));
    let admission = Admission {
        mode: ApprovalMode::Solo,
        provenance: Provenance::Live,
        confirmation: Confirmation::FullDigest { by: "ann".into(), digest: plan },
        refused: RefusedGuestPolicy::StopRun,
        now_ms: 7_000,
        age_secs_max: Admission::AGE_SECS_MAX,
    };
    let decision = Decision { inputs: inputs.clone(), plan, judgement };
    let bundle = AdmissionBundle::new("ann", decision, plan, admission, &[]).to_canonical_json().expect("serialises");
    let slug = |text| Slug::new(text).expect("a word");
    let started = RunStart { id: run.clone(), environment: environment.clone(), plan, by: "ann".into(), at_ms, boot: None };
    let (id, other) = (found.id.clone(), OperationId::new("another").expect("an id"));
    let outcome = Outcome::new_held(FailureCode::RunLeft, ReleaseCondition::Person, Findings::default());
    let entries = [
        LedgerEntry::RunStarted { run: started, inputs },
        LedgerEntry::PlanMade { run: run.clone(), plan, proposal: plan, judgement, at_ms },
        LedgerEntry::Approved { run: run.clone(), proposal: plan, by: "ann".into(), how: slug("digest"), names: Box::default(), at_ms },
        LedgerEntry::Admitted { run, plan, bundle: Digest::of_bytes(&bundle), answer: slug("admitted"), at_ms },
        LedgerEntry::Record(JournalRecord::Intent { operation: Box::new(Operation { plan, ..found }), at_ms }),
        LedgerEntry::Recovery { environment, operations: [id.clone(), other].into(), at_ms },
        LedgerEntry::Record(JournalRecord::Ended { id: id.clone(), outcome, at_ms }),
        LedgerEntry::Record(JournalRecord::Resolved { id, resolution: Resolution::Done, by: "bob".into(), reason: "seen".into(), at_ms }),
    ];
    let entries = entries.iter().map(|entry| write_entry(entry).expect("serialises"));
    ((0..).map(|number| 10 + 3 * number).zip(entries).collect(), vec![bundle])
}

fn check_entries(entries: &[(u64, Vec<u8>)], attachments: &[Vec<u8>]) -> Result<OperationProof, LedgerFault> {
    OperationProof::from_entries(entries.iter().map(|(index, entry)| (*index, entry.as_slice())), attachments)
}

#[test]
fn proves_an_operation_that_was_held_recovered_and_resolved() {
    let (entries, attachments) = sample_entries();
    let proof = check_entries(&entries, &attachments).expect("proven");
    assert_eq!(proof.recoveries, [25]);
    assert_eq!(proof.history.resolved.as_ref().map(|resolved| resolved.resolution), Some(Resolution::Done));
    assert_eq!(proof.admissions.iter().map(|admission| (admission.index, admission.approvals.len())).collect::<Vec<_>>(), [(19, 1)]);
    assert_eq!(
        proof.bundle_digests().collect::<Vec<_>>(),
        attachments.iter().map(|attachment| Digest::of_bytes(attachment)).collect::<Vec<_>>()
    );
    for (_, bytes) in &entries {
        let entry = parse_entry(bytes).expect("an entry");
        assert!(belongs_to_proof(&entry, proof.history.id(), &proof.run.id), "{entry:?}");
        assert!(!belongs_to_proof(&entry, &OperationId::new("none").expect("an id"), &RunId::new("none").expect("an id")), "{entry:?}");
    }
}

#[test]
fn detects_every_missing_entry_that_an_operation_must_have() {
    let (entries, attachments) = sample_entries();
    let left = |at: usize| {
        let mut entries = entries.clone();
        entries.remove(at);
        check_entries(&entries, &attachments).map(drop).map_err(|wrong| (wrong.code, wrong.index))
    };
    let found: Vec<_> = (0..entries.len()).map(left).collect();
    let (broken, missing) = (FailureCode::IntegrityViolation, FailureCode::EvidenceMissing);
    // Without the outcome, the resolution is invalid.
    let expected =
        [Err((broken, 13)), Err((broken, 19)), Err((broken, 19)), Err((missing, 22)), Err((broken, 25)), Ok(()), Err((broken, 31)), Ok(())];
    assert_eq!(found, expected);
    assert_eq!(check_entries(&entries[..6], &attachments).map_err(|wrong| (wrong.code, wrong.index)), Err((missing, 25)));
    assert_eq!(check_entries(&[], &attachments).map_err(|wrong| wrong.code), Err(missing));
}

#[test]
fn refuses_entries_of_other_operations() {
    let (entries, attachments) = sample_entries();
    let hold =
        br#"{"at_ms":7,"kind":"hold","schema":"converger.entry/1","what":{"by":"ann","environment":"lab","guest":100,"reason":"disk"}}"#;
    for at in [0, 4, 8] {
        let mut entries = entries.clone();
        entries.insert(at, (9, hold.to_vec()));
        assert_eq!(check_entries(&entries, &attachments).map_err(|wrong| wrong.code), Err(FailureCode::IntegrityViolation), "{at}");
    }
    // Decisions of the run after the operation started do not admit it.
    let mut late = entries.clone();
    late.push((40, entries[2].1.clone()));
    assert!(check_entries(&late, &attachments).is_err());
    // A recovery of other operations.
    let mut other = entries.clone();
    let text = String::from_utf8(other[5].1.clone()).expect("text");
    let id = parse_entry(&entries[7].1)
        .ok()
        .and_then(|entry| if let LedgerEntry::Record(record) = entry { Some(record.id().clone()) } else { None });
    other[5].1 = text.replace(id.expect("a record").as_str(), "somebody").into_bytes();
    assert!(check_entries(&other, &attachments).is_err());
}
