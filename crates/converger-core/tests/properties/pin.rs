//! Pins random texts of every style, with comments, whitespace and foreign line breaks: only marks are written, nothing else changes, and
//! pinning again changes nothing.

use serde_json::{Value, json};

use converger_core::adopt::{PinOutcome, PinRequest, PinResult, PinSelection, pin};
use converger_core::desired::{self, Desired, DesiredGuest, Scope};
use converger_core::document::Notation;
use converger_core::observe::{Reading, Scoped};
use converger_core::plan::Verdict;
use converger_core::refusal::RefusalCode;
use converger_core::testing::{Rng, TestInputs, mutate, to_shuffled_json};

use crate::random_cases;

const SEED: u64 = 21;
const WORLDS: u64 = 2_500;

/// Adds some pins that do not match, so that some must be replaced.
fn add_foreign_pins(desired: &mut Value, rng: &mut Rng) {
    for guest in desired["guests"].as_array_mut().expect("guests") {
        let foreign = match guest["kind"].as_str() {
            Some("qemu") => [json!({ "uuid": "00000000-1111-2222-3333-444444444444" }), json!({ "ctime": 7, "uuid": "x" })],
            _ => [json!({ "mac": "00:00:00:00:00:00" }), json!({ "rootfs": "other:disk", "mac": "BC:24:11:00:00:01" })],
        };
        if rng.one_in(6) {
            guest["identity"] = rng.pick(&foreign).cloned().expect("one of two");
        }
    }
}

/// Adds comments, whitespace and line breaks without meaning. Skips those that would change the meaning.
fn add_meaningless_text(text: String, notation: Notation, rng: &mut Rng) -> String {
    let meaning = desired::parse(text.as_bytes(), notation).expect("a drawn text");
    let mut text = text;
    for _ in 0..rng.below(8) {
        let with = add_one_meaningless_text(&text, rng);
        if desired::parse(with.as_bytes(), notation).is_ok_and(|found| found == meaning) {
            text = with;
        }
    }
    text
}

fn add_one_meaningless_text(text: &str, rng: &mut Rng) -> String {
    match rng.below(10) {
        0 => return text.replace('\n', "\r\n"),
        1 => return text.trim_end_matches('\n').to_owned(),
        2 => return format!("{text}\n\n# the end"),
        _ => {}
    }
    let mut lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let at = rng.index(lines.len());
    match rng.below(4) {
        0 => lines.insert(at, format!("{}# - {{note}}: \"of {at}\" 'é'", " ".repeat(rng.index(12)))),
        1 => lines.insert(at, rng.pick_word(&["", "   ", "\t"]).to_owned()),
        2 => lines[at].push_str(rng.pick_word(&["  # why", " #{", "\t# ]", "\t #: |"])),
        _ => lines[at].push_str(rng.pick_word(&[" ", "  ", "\t"])),
    }
    lines.join("\n")
}

fn random_request(desired: &Desired, rng: &mut Rng) -> PinRequest {
    let some = |rng: &mut Rng| Scope::new(desired.guests().iter().map(|guest| guest.vmid).filter(|_| rng.one_in(2)).collect());
    let chosen = if rng.one_in(3) { PinSelection::Only(some(rng)) } else { PinSelection::All };
    PinRequest { selection: chosen, repin: some(rng) }
}

/// The expected declaration of a guest afterwards, given what was read of it.
fn expected_guest(guest: &DesiredGuest, observation: &Scoped, result: &PinResult) -> DesiredGuest {
    let outcome = result.guests.iter().find(|own| own.vmid == guest.vmid).map(|own| &own.outcome);
    let read = observation.find(guest.vmid).map(|row| &row.identity);
    let identity = match (outcome, read) {
        (Some(PinOutcome::Pinned(_) | PinOutcome::Completed(_) | PinOutcome::Replaced(..)), Some(Reading::Read(marks))) => {
            Some(marks.clone())
        }
        _ => guest.identity.clone(),
    };
    DesiredGuest { identity, ..guest.clone() }
}

/// Whether `new` is `old` with insertions only.
fn only_adds(old: &str, new: &str) -> bool {
    let mut rest = new.bytes();
    old.bytes().all(|byte| rest.any(|other| other == byte))
}

/// How often each comment of the generators occurs in a text.
fn count_comments(text: &str) -> [usize; 7] {
    ["# what is wanted", "# why", " #{", "# ]", "#: |", "# - {note}: \"of ", "# the end"].map(|comment| text.matches(comment).count())
}

/// Whether there are line breaks other than those of Windows.
fn has_bare_breaks(text: &str) -> bool {
    text.matches('\n').count() > text.matches("\r\n").count()
}

#[derive(Default)]
struct PinCounts {
    pinned: u64,
    completed: u64,
    replaced: u64,
    unchanged: u64,
    unmarked: u64,
    not_made: u64,
    refused: u64,
}

impl PinCounts {
    fn count_outcome(&mut self, outcome: &PinOutcome) {
        *match outcome {
            PinOutcome::Pinned(_) => &mut self.pinned,
            PinOutcome::Completed(_) => &mut self.completed,
            PinOutcome::Replaced(..) => &mut self.replaced,
            PinOutcome::Unchanged => &mut self.unchanged,
            PinOutcome::NoMarks => &mut self.unmarked,
            PinOutcome::NotMade => &mut self.not_made,
            PinOutcome::Refused(_) => &mut self.refused,
        } += 1;
    }
}

#[test]
fn pinning_writes_only_marks() {
    let mut counts = PinCounts::default();
    for mut case in random_cases(SEED, WORLDS) {
        add_foreign_pins(&mut case.world.desired, &mut case.rng);
        let inputs = case.inputs();
        let scoped = inputs.observation.clone().into_scoped(&inputs.desired.scope());
        let yaml = case.world.desired_yaml(&mut case.rng);
        let json = to_shuffled_json(&case.world.desired, &mut case.rng);
        for (text, notation) in [(yaml, Notation::Yaml), (json, Notation::Json)] {
            let text = add_meaningless_text(text, notation, &mut case.rng);
            let request = random_request(&inputs.desired, &mut case.rng);
            let result = pin(text.as_bytes(), notation, &scoped, &request).unwrap_or_else(|faults| panic!("{case}\n{text}\n{faults:#?}"));
            let context = format!("{case} {request:?}\n--- before\n{text}\n--- after\n{}", result.text);
            let found = desired::parse(result.text.as_bytes(), notation).unwrap_or_else(|faults| panic!("{context}\n{faults:#?}"));
            let guests: Vec<DesiredGuest> = inputs.desired.guests().iter().map(|guest| expected_guest(guest, &scoped, &result)).collect();
            assert_eq!((found.environment(), found.guests()), (inputs.desired.environment(), &guests[..]), "{context}");
            if result.guests.iter().all(|guest| !matches!(guest.outcome, PinOutcome::Replaced(..))) {
                assert!(only_adds(&text, &result.text), "{context}");
            }
            assert_eq!(count_comments(&result.text), count_comments(&text), "{context}");
            if !has_bare_breaks(&text) {
                assert!(!has_bare_breaks(&result.text), "{context}");
            }
            let again = pin(result.text.as_bytes(), notation, &scoped, &request).expect("the written text parses");
            assert_eq!(again.text, result.text, "{context}");
            assert!(again.guests.iter().all(|guest| guest.outcome.written_marks().is_none()), "{context}");
            check_plan(&inputs, found, &result, &context);
            result.guests.iter().for_each(|guest| counts.count_outcome(&guest.outcome));
        }
    }
    let PinCounts { pinned, completed, replaced, unchanged, unmarked, refused, not_made: _ } = counts;
    let least = [pinned, completed, replaced, unchanged, unmarked, refused].into_iter().min().unwrap_or(0);
    assert!(
        least > crate::case_count(WORLDS) / 20,
        "{pinned} pinned, {completed} completed, {replaced} replaced, {unchanged} unchanged, {unmarked} unmarked, {refused} refused"
    );
}

/// A written pin matches, and a guest that a plan cannot read was not pinned.
fn check_plan(inputs: &TestInputs, found: Desired, result: &PinResult, context: &str) {
    let plan = TestInputs { desired: found.into(), ..inputs.clone() }.plan();
    for guest in &result.guests {
        let (index, _) = plan.desired().find(guest.vmid).expect("declared");
        let Verdict::Refused(refusals) = &plan.verdicts()[index] else { continue };
        let has = |codes: &[RefusalCode]| refusals.iter().any(|refusal| codes.contains(&refusal.code()));
        let blind = [
            RefusalCode::GuestMissing,
            RefusalCode::GuestUnknown,
            RefusalCode::KindMismatch,
            RefusalCode::NameMismatch,
            RefusalCode::NodeOffline,
            RefusalCode::NotQuorate,
        ];
        if guest.outcome.written_marks().is_some() {
            assert!(!has(&[RefusalCode::IdentityMismatch]) && !has(&blind), "{} {refusals:?}\n{context}", guest.vmid);
        } else if has(&blind) {
            assert!(matches!(guest.outcome, PinOutcome::Refused(_)), "{} {refusals:?}\n{context}", guest.vmid);
        }
    }
}

/// For one guest without a pin, the new text is the old one with one insertion.
#[test]
fn pinning_one_guest_inserts_one_piece_of_text() {
    let mut pinned = 0_u64;
    for mut case in random_cases(SEED + 100, WORLDS) {
        let inputs = case.inputs();
        let scoped = inputs.observation.clone().into_scoped(&inputs.desired.scope());
        let text = case.world.desired_yaml(&mut case.rng);
        let text = add_meaningless_text(text, Notation::Yaml, &mut case.rng);
        let Some(vmid) = case.rng.pick(inputs.desired.guests()).map(|guest| guest.vmid) else { continue };
        let request = PinRequest { selection: PinSelection::Only(Scope::new(vec![vmid])), repin: Scope::new(vec![]) };
        let result = pin(text.as_bytes(), Notation::Yaml, &scoped, &request).unwrap_or_else(|faults| panic!("{case}\n{text}\n{faults:#?}"));
        let same = |pairs: &mut dyn Iterator<Item = (u8, u8)>| pairs.take_while(|(left, right)| left == right).count();
        let front = same(&mut text.bytes().zip(result.text.bytes()));
        let back = same(&mut text.bytes().rev().zip(result.text.bytes().rev()));
        let context = || format!("{case} {vmid}\n--- before\n{text}\n--- after\n{}", result.text);
        match result.guests[0].outcome {
            PinOutcome::Pinned(_) => assert!(result.text.len() > text.len() && front + back >= text.len(), "{}", context()),
            PinOutcome::Completed(_) | PinOutcome::Replaced(..) => {}
            _ => assert_eq!(result.text, text, "{}", context()),
        }
        pinned += u64::from(matches!(result.guests[0].outcome, PinOutcome::Pinned(_)));
    }
    assert!(pinned > crate::case_count(WORLDS) / 4, "only {pinned} guests were pinned");
}

/// Damaged texts that are still valid have layouts that nobody would write: they are pinned or rejected with a position.
#[test]
fn damaged_layouts_are_pinned_or_rejected_with_a_fault() {
    let (mut pinned, mut explained) = (0_u64, 0_u64);
    for mut case in random_cases(SEED + 200, WORLDS) {
        let inputs = case.inputs();
        let scoped = inputs.observation.clone().into_scoped(&inputs.desired.scope());
        let text = case.world.desired_yaml(&mut case.rng);
        let request = PinRequest { selection: PinSelection::All, repin: inputs.desired.scope() };
        for _ in 0..10 {
            let bytes = mutate(&text, &mut case.rng);
            let Ok(before) = desired::parse(&bytes, Notation::Yaml) else { continue };
            let context = format!("{case}\n{}", String::from_utf8_lossy(&bytes));
            match pin(&bytes, Notation::Yaml, &scoped, &request) {
                Err(faults) => {
                    explained += 1;
                    let [fault] = faults.list() else { panic!("{context}\n{faults:#?}") };
                    assert!(fault.message.contains("cannot be written") && fault.help.is_some(), "{context}\n{fault:?}");
                }
                Ok(result) => {
                    let after =
                        desired::parse(result.text.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{context}\n{faults:#?}"));
                    let guests: Vec<DesiredGuest> = before.guests().iter().map(|guest| expected_guest(guest, &scoped, &result)).collect();
                    assert_eq!(after.guests(), &guests[..], "{context}\n{}", result.text);
                    pinned += u64::from(result.guests.iter().any(|guest| guest.outcome.written_marks().is_some()));
                }
            }
        }
    }
    assert!(pinned > crate::case_count(WORLDS) / 10, "only {pinned} damaged texts were pinned");
    assert!(explained < pinned / 20, "{explained} of {pinned} layouts were not understood");
}
