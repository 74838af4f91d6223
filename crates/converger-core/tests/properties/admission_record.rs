//! Checks a ledger with admissions from its beginning: an honest one verifies. A replaced bundle, a removed approval or refusal, and an
//! inverted answer are detected at their entry, even if everything was hashed and signed again.

use std::collections::BTreeMap;

use converger_core::apply::{Evidence, RunId, RunStart, Slug};
use converger_core::approve::Confirmation;
use converger_core::artifact::{Digest, RecordedPlan};
use converger_core::evidence::{AdmissionBundle, LedgerCheck, LedgerEntry, LedgerFault, write_entry};
use converger_core::failure::FailureCode;
use converger_core::guest::{EnvironmentName, Vmid};

use crate::admission::{AdmissionFixture, admit_case};
use crate::random_cases;

const SEED: u64 = 133;
const RECORDS: u64 = 300;

struct LedgerFixture {
    entries: Vec<LedgerEntry>,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

fn slug(text: &str) -> Slug {
    Slug::new(text).expect("a word")
}

/// The entries of a run with this admission.
fn ledger_of(fixture: &AdmissionFixture) -> LedgerFixture {
    let AdmissionBundle { by, decision, proposal, admission, .. } = &fixture.bundle;
    let (run, plan) = (RunId::new("run-1").expect("an id"), decision.plan);
    let environment = EnvironmentName::new("lab").expect("a name");
    let started = RunStart { id: run.clone(), environment, plan, by: by.clone(), at_ms: 1, boot: None };
    let mut entries = vec![LedgerEntry::RunStarted { run: started, inputs: decision.inputs.clone() }];
    entries.push(LedgerEntry::PlanMade { run: run.clone(), plan, proposal: *proposal, judgement: decision.judgement, at_ms: 1 });
    let refused = |guest: Option<Vmid>, code: &str| LedgerEntry::Refused {
        run: run.clone(),
        guest,
        stage: slug("safety"),
        code: slug(code),
        evidence: Evidence::default(),
        at_ms: 1,
    };
    let raised = fixture.bundle.gates.iter().filter(|gate| gate.result == "refused" && gate.id != "no-guest-refused");
    entries.extend(raised.map(|gate| refused(None, &gate.id)));
    let body: serde_json::Value = serde_json::from_slice(&fixture.blobs[&plan]).expect("JSON");
    let judgement: serde_json::Value = serde_json::from_slice(&fixture.blobs[&decision.judgement]).expect("JSON");
    let of_guests = RecordedPlan::from_body(&body).with_judgement(&judgement);
    entries.extend(of_guests.refusals().into_iter().map(|(guest, code)| refused(Vmid::new(guest), code)));
    let approved = |proposal, by: &str, how, names| LedgerEntry::Approved {
        run: run.clone(),
        proposal,
        by: by.into(),
        how: slug(how),
        names,
        at_ms: 1,
    };
    match &admission.confirmation {
        Confirmation::None | Confirmation::Declined { .. } => {}
        Confirmation::Typed { by, names } => entries.push(approved(*proposal, by, "typed", names.clone().into())),
        Confirmation::FullDigest { by, digest } => entries.push(approved(*digest, by, "digest", Box::default())),
        Confirmation::Signed(approval) => entries.push(approved(approval.proposal(), approval.by(), "signed", Box::default())),
    }
    let mut blobs = fixture.blobs.clone();
    let bundle = insert_bundle(&mut blobs, &fixture.bundle);
    let answer = slug(if fixture.is_approved { "admitted" } else { "refused" });
    entries.push(LedgerEntry::Admitted { run, plan, bundle, answer, at_ms: admission.now_ms });
    LedgerFixture { entries, blobs }
}

fn insert_bundle(blobs: &mut BTreeMap<Digest, Vec<u8>>, bundle: &AdmissionBundle) -> Digest {
    let bytes = bundle.to_canonical_json().expect("memory takes it");
    let digest = Digest::of_bytes(&bytes);
    blobs.insert(digest, bytes);
    digest
}

fn check_ledger(record: &LedgerFixture) -> Result<u64, LedgerFault> {
    let mut ledger_check = LedgerCheck::default();
    for entry in &record.entries {
        ledger_check.add_entry(&write_entry(entry).expect("memory takes it"))?;
    }
    ledger_check.check_blobs(|digest| Ok(record.blobs.get(&digest).cloned()))
}

/// The ledger with another bundle in place of the original one.
fn with_bundle(fixture: &AdmissionFixture, change: impl FnOnce(&mut AdmissionBundle)) -> LedgerFixture {
    let (mut record, mut other) = (ledger_of(fixture), fixture.bundle.clone());
    change(&mut other);
    let new = insert_bundle(&mut record.blobs, &other);
    let Some(LedgerEntry::Admitted { bundle, .. }) = record.entries.last_mut() else { panic!("an admission is last") };
    *bundle = new;
    record
}

fn fails_at_admission(record: &LedgerFixture, part: &str) -> bool {
    let index = record.entries.len() as u64 - 1;
    matches!(check_ledger(record), Err(wrong) if wrong.code == FailureCode::IntegrityViolation && wrong.index == index && wrong.what.contains(part))
}

#[test]
fn unchanged_ledger_verifies() {
    for case in random_cases(SEED, RECORDS) {
        assert_eq!(check_ledger(&ledger_of(&admit_case(&case))), Ok(0), "{case:?}");
    }
}

#[test]
fn replaced_bundle_is_detected_at_its_entry() {
    for case in random_cases(SEED + 1, RECORDS) {
        let fixture = admit_case(&case);
        let other = Digest::of_bytes(b"another");
        assert!(fails_at_admission(&with_bundle(&fixture, |bundle| bundle.by = "eve@desk".into()), "another requester"), "{case:?}");
        assert!(fails_at_admission(&with_bundle(&fixture, |bundle| bundle.decision.plan = other), "another decision"), "{case:?}");
        assert!(fails_at_admission(&with_bundle(&fixture, |bundle| bundle.decision.judgement = other), "another decision"), "{case:?}");
        assert!(fails_at_admission(&with_bundle(&fixture, |bundle| bundle.decision.inputs.config = other), "another decision"), "{case:?}");
        let eve = Confirmation::FullDigest { by: "eve@desk".into(), digest: fixture.bundle.decision.plan };
        assert!(
            fails_at_admission(&with_bundle(&fixture, |bundle| bundle.admission.confirmation = eve), "approvals in its bundle"),
            "{case:?}"
        );
        let all = if fixture.is_approved { "refused" } else { "passed" };
        let turned = with_bundle(&fixture, |bundle| bundle.gates.iter_mut().for_each(|gate| gate.result = all.into()));
        assert!(fails_at_admission(&turned, "its gates give"), "{case:?}");
    }
}

#[test]
fn malformed_bundle_is_detected() {
    let case = random_cases(SEED + 2, 1).next().expect("a case");
    let mut record = ledger_of(&admit_case(&case));
    let bytes = br#"{"schema":"converger.bundle/2"}"#.to_vec();
    let Some(LedgerEntry::Admitted { bundle, .. }) = record.entries.last_mut() else { panic!("an admission is last") };
    *bundle = Digest::of_bytes(&bytes);
    record.blobs.insert(*bundle, bytes);
    assert!(fails_at_admission(&record, "its bundle is not valid"));
}

#[test]
fn removed_approvals_and_refusals_are_detected() {
    let (mut approvals, mut refusals) = (0, 0);
    for case in random_cases(SEED + 3, RECORDS) {
        let whole = ledger_of(&admit_case(&case));
        for at in 0..whole.entries.len() {
            let part = match &whole.entries[at] {
                LedgerEntry::Approved { .. } => "approvals in its bundle",
                LedgerEntry::Refused { .. } => "no earlier entry says so",
                _ => continue,
            };
            if part == "approvals in its bundle" {
                approvals += 1
            } else {
                refusals += 1
            }
            let mut entries = whole.entries.clone();
            entries.remove(at);
            assert!(fails_at_admission(&LedgerFixture { entries, blobs: whole.blobs.clone() }, part), "{case:?} {at}");
        }
    }
    assert!(approvals > 0 && refusals > 0, "{approvals} {refusals}");
}

#[test]
fn invented_refusal_is_detected() {
    let mut of_run = 0;
    for case in random_cases(SEED + 5, RECORDS) {
        let whole = ledger_of(&admit_case(&case));
        let run = RunId::new("run-1").expect("an id");
        for (guest, part) in [(None, "that gate did not refuse it"), (Vmid::new(999_999_999), "but its plan does not")] {
            let has_it = |entry: &LedgerEntry| matches!(entry, LedgerEntry::Refused { code, .. } if code.as_str() == "not-quorate");
            if guest.is_none() && whole.entries.iter().any(has_it) {
                continue;
            }
            of_run += u32::from(guest.is_none());
            let (stage, code, evidence) = (slug("plan"), slug("not-quorate"), Evidence::default());
            let invented = LedgerEntry::Refused { run: run.clone(), guest, stage, code, evidence, at_ms: 1 };
            let mut entries = whole.entries.clone();
            entries.insert(2, invented);
            assert!(fails_at_admission(&LedgerFixture { entries, blobs: whole.blobs.clone() }, part), "{case:?} {part}");
        }
    }
    assert!(of_run > 0, "some runs must not be refused for that");
}

#[test]
fn inverted_answer_is_detected() {
    for case in random_cases(SEED + 4, RECORDS) {
        let fixture = admit_case(&case);
        let mut record = ledger_of(&fixture);
        let Some(LedgerEntry::Admitted { answer, .. }) = record.entries.last_mut() else { panic!("an admission is last") };
        *answer = slug(if fixture.is_approved { "refused" } else { "admitted" });
        assert!(fails_at_admission(&record, "its gates give"), "{case:?}");
    }
}

#[test]
fn admission_without_its_plan_is_detected() {
    let case = random_cases(SEED + 5, 1).next().expect("a case");
    let whole = ledger_of(&admit_case(&case));
    let without = whole.entries.iter().filter(|entry| !matches!(entry, LedgerEntry::PlanMade { .. })).cloned().collect();
    let found = check_ledger(&LedgerFixture { entries: without, blobs: whole.blobs.clone() });
    assert!(matches!(&found, Err(wrong) if wrong.what.contains("no earlier entry says which plan the run made")), "{found:?}");
    for at in [1, whole.entries.len() - 1] {
        let mut entries = whole.entries.clone();
        if let LedgerEntry::PlanMade { plan, .. } | LedgerEntry::Admitted { plan, .. } = &mut entries[at] {
            *plan = Digest::of_bytes(b"another");
        }
        let found = check_ledger(&LedgerFixture { entries, blobs: whole.blobs.clone() });
        assert!(matches!(&found, Err(wrong) if wrong.index == at as u64 && wrong.what.contains("another plan")), "{found:?}");
    }
}
