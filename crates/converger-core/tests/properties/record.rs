//! A record of admissions, read from its beginning: an honest one is whole, and a bundle that was put in the place of another, an approval or a
//! refusal that was taken out and an answer that was turned round are found at their entry, also where everything was named and signed anew.

use std::collections::BTreeMap;

use converger_core::apply::{Evidence, Run, RunId, Word};
use converger_core::approve::Confirmation;
use converger_core::artifact::{Digest, RecordedPlan};
use converger_core::evidence::{Bundle, Deep, Entry, Wrong, write_entry};
use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Vmid};

use crate::admission::{Weighed, weighed};
use crate::each_case;

const SEED: u64 = 133;
const RECORDS: u64 = 300;

struct Record {
    entries: Vec<Entry>,
    blobs: BTreeMap<Digest, Vec<u8>>,
}

fn word(text: &str) -> Word {
    Word::new(text).expect("a word")
}

/// The entries of a run whose admission was weighed so.
fn record(weighed: &Weighed) -> Record {
    let Bundle { by, decision, admission, .. } = &weighed.bundle;
    let (run, plan) = (RunId::new("run-1").expect("an id"), decision.plan);
    let environment = EnvironmentName::new("lab").expect("a name");
    let started = Run { id: run.clone(), environment, plan, by: by.clone(), at_ms: 1, boot: None };
    let mut entries = vec![Entry::RunStarted { run: started, inputs: decision.inputs.clone() }];
    entries.push(Entry::PlanMade { run: run.clone(), plan, judgement: decision.judgement, at_ms: 1 });
    let refused = |guest: Option<Vmid>, code: &str| Entry::Refused {
        run: run.clone(),
        guest,
        stage: word("safety"),
        code: word(code),
        evidence: Evidence::default(),
        at_ms: 1,
    };
    let raised = weighed.bundle.gates.iter().filter(|gate| gate.result == "refused" && gate.id != "no-guest-refused");
    entries.extend(raised.map(|gate| refused(None, &gate.id)));
    let body: serde_json::Value = serde_json::from_slice(&weighed.blobs[&plan]).expect("JSON");
    let of_guests = RecordedPlan::read(&body);
    entries.extend(of_guests.refusals().into_iter().map(|(guest, code)| refused(Vmid::new(guest), code)));
    let approved = |plan, by: &str, how, names| Entry::Approved { run: run.clone(), plan, by: by.into(), how: word(how), names, at_ms: 1 };
    match &admission.confirmation {
        Confirmation::None | Confirmation::Declined { .. } => {}
        Confirmation::Typed { by, names } => entries.push(approved(plan, by, "typed", names.clone().into())),
        Confirmation::FullDigest { by, digest } => entries.push(approved(*digest, by, "digest", Box::default())),
    }
    let mut blobs = weighed.blobs.clone();
    let bundle = put(&mut blobs, &weighed.bundle);
    let answer = word(if weighed.is_approved { "admitted" } else { "refused" });
    entries.push(Entry::Admitted { run, plan, bundle, answer, at_ms: admission.now_ms });
    Record { entries, blobs }
}

fn put(blobs: &mut BTreeMap<Digest, Vec<u8>>, bundle: &Bundle) -> Digest {
    let bytes = bundle.write().expect("memory takes it");
    let digest = Digest::of_bytes(&bytes);
    blobs.insert(digest, bytes);
    digest
}

fn verified(record: &Record) -> Result<u64, Wrong> {
    let mut deep = Deep::default();
    for entry in &record.entries {
        deep.take(&write_entry(entry).expect("memory takes it"))?;
    }
    deep.kept(|digest| Ok(record.blobs.get(&digest).cloned()))
}

/// The record with another bundle in the place of the one that was weighed.
fn with_bundle(weighed: &Weighed, change: impl FnOnce(&mut Bundle)) -> Record {
    let (mut record, mut other) = (record(weighed), weighed.bundle.clone());
    change(&mut other);
    let new = put(&mut record.blobs, &other);
    let Some(Entry::Admitted { bundle, .. }) = record.entries.last_mut() else { panic!("an admission is last") };
    *bundle = new;
    record
}

fn is_found(record: &Record, part: &str) -> bool {
    let index = record.entries.len() as u64 - 1;
    matches!(verified(record), Err(wrong) if wrong.code == Code::IntegrityViolation && wrong.index == index && wrong.what.contains(part))
}

#[test]
fn an_honest_record_is_whole() {
    for case in each_case(SEED, RECORDS) {
        assert_eq!(verified(&record(&weighed(&case))), Ok(0), "{case:?}");
    }
}

#[test]
fn a_bundle_of_something_else_is_found_at_its_entry() {
    for case in each_case(SEED + 1, RECORDS) {
        let weighed = weighed(&case);
        let other = Digest::of_bytes(b"another");
        assert!(is_found(&with_bundle(&weighed, |bundle| bundle.by = "eve@desk".into()), "asked for by somebody else"), "{case:?}");
        assert!(is_found(&with_bundle(&weighed, |bundle| bundle.decision.plan = other), "another decision"), "{case:?}");
        assert!(is_found(&with_bundle(&weighed, |bundle| bundle.decision.judgement = other), "another decision"), "{case:?}");
        assert!(is_found(&with_bundle(&weighed, |bundle| bundle.decision.inputs.config = other), "another decision"), "{case:?}");
        let eve = Confirmation::FullDigest { by: "eve@desk".into(), digest: weighed.bundle.decision.plan };
        assert!(is_found(&with_bundle(&weighed, |bundle| bundle.admission.confirmation = eve), "approvals that it weighed"), "{case:?}");
        let all = if weighed.is_approved { "refused" } else { "passed" };
        let turned = with_bundle(&weighed, |bundle| bundle.gates.iter_mut().for_each(|gate| gate.result = all.into()));
        assert!(is_found(&turned, "its gates give"), "{case:?}");
    }
}

#[test]
fn rubbish_is_no_bundle() {
    let case = each_case(SEED + 2, 1).next().expect("a case");
    let mut record = record(&weighed(&case));
    let bytes = br#"{"schema":"converger.bundle/1"}"#.to_vec();
    let Some(Entry::Admitted { bundle, .. }) = record.entries.last_mut() else { panic!("an admission is last") };
    *bundle = Digest::of_bytes(&bytes);
    record.blobs.insert(*bundle, bytes);
    assert!(is_found(&record, "none that this program writes"));
}

#[test]
fn an_approval_or_a_refusal_that_was_taken_out_is_missed() {
    let (mut approvals, mut refusals) = (0, 0);
    for case in each_case(SEED + 3, RECORDS) {
        let whole = record(&weighed(&case));
        for at in 0..whole.entries.len() {
            let part = match &whole.entries[at] {
                Entry::Approved { .. } => "approvals that it weighed",
                Entry::Refused { .. } => "no entry before it says so",
                _ => continue,
            };
            if part == "approvals that it weighed" {
                approvals += 1
            } else {
                refusals += 1
            }
            let mut entries = whole.entries.clone();
            entries.remove(at);
            assert!(is_found(&Record { entries, blobs: whole.blobs.clone() }, part), "{case:?} {at}");
        }
    }
    assert!(approvals > 0 && refusals > 0, "{approvals} {refusals}");
}

#[test]
fn a_refusal_that_nobody_made_is_found() {
    let mut of_run = 0;
    for case in each_case(SEED + 5, RECORDS) {
        let whole = record(&weighed(&case));
        let run = RunId::new("run-1").expect("an id");
        for (guest, part) in [(None, "that gate says otherwise"), (Vmid::new(999_999_999), "and its plan does not")] {
            let has_it = |entry: &Entry| matches!(entry, Entry::Refused { code, .. } if code.as_str() == "not-quorate");
            if guest.is_none() && whole.entries.iter().any(has_it) {
                continue;
            }
            of_run += u32::from(guest.is_none());
            let (stage, code, evidence) = (word("plan"), word("not-quorate"), Evidence::default());
            let invented = Entry::Refused { run: run.clone(), guest, stage, code, evidence, at_ms: 1 };
            let mut entries = whole.entries.clone();
            entries.insert(2, invented);
            assert!(is_found(&Record { entries, blobs: whole.blobs.clone() }, part), "{case:?} {part}");
        }
    }
    assert!(of_run > 0, "some runs are not refused for that");
}

#[test]
fn an_answer_that_was_turned_round_is_found() {
    for case in each_case(SEED + 4, RECORDS) {
        let weighed = weighed(&case);
        let mut record = record(&weighed);
        let Some(Entry::Admitted { answer, .. }) = record.entries.last_mut() else { panic!("an admission is last") };
        *answer = word(if weighed.is_approved { "refused" } else { "admitted" });
        assert!(is_found(&record, "its gates give"), "{case:?}");
    }
}

#[test]
fn an_admission_without_a_plan_or_of_another_one_cannot_stand() {
    let case = each_case(SEED + 5, 1).next().expect("a case");
    let whole = record(&weighed(&case));
    let without = whole.entries.iter().filter(|entry| !matches!(entry, Entry::PlanMade { .. })).cloned().collect();
    let found = verified(&Record { entries: without, blobs: whole.blobs.clone() });
    assert!(matches!(&found, Err(wrong) if wrong.what.contains("no entry before it says which plan the run made")), "{found:?}");
    for at in [1, whole.entries.len() - 1] {
        let mut entries = whole.entries.clone();
        if let Entry::PlanMade { plan, .. } | Entry::Admitted { plan, .. } = &mut entries[at] {
            *plan = Digest::of_bytes(b"another");
        }
        let found = verified(&Record { entries, blobs: whole.blobs.clone() });
        assert!(matches!(&found, Err(wrong) if wrong.index == at as u64 && wrong.what.contains("another plan")), "{found:?}");
    }
}
