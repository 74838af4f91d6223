//! Adopts random, fully read guests with the worst texts that Proxmox allows: the text parses and declares exactly those guests, and
//! planning it on the same observation gives no step and no refusal.

use std::sync::Arc;

use serde_json::{Value, json};

use converger_core::adopt::{AdoptedGuest, PinOutcome, PinRequest, PinSelection, Scaffold, pin, scaffold};
use converger_core::desired::{self, Desired, Scope};
use converger_core::document::Notation;
use converger_core::guest::Vmid;
use converger_core::normalize::{FieldRole, rule_of};
use converger_core::observe::{self, Reading, Scoped};
use converger_core::plan::{Verdict, plan};
use converger_core::policy::{HOLD_TAG, Rules};
use converger_core::testing::{HOSTILE_TEXTS, Rng};

use crate::random_cases;

const SEED: u64 = 22;
const WORLDS: u64 = 2_500;

const PIECES: &[&str] = &[
    "a", "Web", "0", "1e3", "0x10", "yes", "null", "~", " ", "  ", "\n", "\n\n", "\t", "#", " # ", ":", ": ", "- ", "'", "\"", "\\", "{",
    "}", "[", "]", "|", ">", "&a", "*a", "!!", "%", "@", "`", "? ", "---", "...", "é", "😀", "e\u{301}", "\u{ad}", "\u{200b}", "\u{202e}",
    "\u{2028}", "\u{feff}", "\u{ffff}",
];

fn hostile_text(rng: &mut Rng) -> String {
    match rng.below(8) {
        0 => rng.pick_word(HOSTILE_TEXTS).to_owned(),
        1 => "x".repeat(8190 + rng.index(5)),
        _ => (0..rng.below(12)).map(|_| rng.pick_word(PIECES)).collect(),
    }
}

const NAMES: &[&str] =
    &["true", "0x10", "null", "1e3", "12", "no", "0b1", "a.b", "Prod-db", "3com", "VM 100", "", "é", "a b", "on.off", "1.5"];
const TAGS: &[&str] =
    &["true", "0x10", "null", "1e3", "12", "no", "c++", "v1.2", "_x", "Web", "prod", "converger-hold", "2001-12-14", "0b1"];
const MARKS: &[&str] = &["1e3", "true", "a: b", "x, y", "}", "#", "\u{1b}[2J", "local:100/vm-100-disk-0.raw", "a\nb", " ", "é"];

/// Makes every row fully read, with values that are hard to format.
fn make_fully_read(observation: &mut Value, rng: &mut Rng) {
    if !rng.one_in(20) {
        observation["quorate"] = json!(true);
        observation["complete"] = json!(true);
    }
    for row in observation["guests"].as_array_mut().expect("rows") {
        let is_known = row["status"] != "unknown";
        for (key, value) in [
            ("lock", json!(null)),
            ("ha", json!(null)),
            ("template", json!(false)),
            ("protection", json!(false)),
            ("tags", json!([])),
            ("pending", json!([])),
            ("config", json!({})),
            ("identity", json!({})),
        ] {
            if row.get(key).is_none() && !rng.one_in(200) {
                row[key] = value;
            }
        }
        if is_known && rng.one_in(4) {
            row["name"] = json!(rng.pick_word(NAMES));
        }
        if row.get("config").is_some() && rng.one_in(2) {
            row["config"]["description"] = json!(hostile_text(rng));
        }
        if row.get("tags").is_some() && rng.one_in(4) {
            row["tags"] = json!((0..rng.below(4)).map(|_| rng.pick_word(TAGS)).collect::<Vec<_>>());
        }
        if row.get("identity").is_some() && rng.one_in(6) {
            let (text, other) = if row["kind"] == "qemu" { ("uuid", "ctime") } else { ("rootfs", "mac") };
            row["identity"] = json!({ text: rng.pick_word(MARKS) });
            if rng.one_in(2) {
                row["identity"][other] = if other == "ctime" { json!(rng.below(9)) } else { json!(rng.pick_word(MARKS)) };
            }
        }
    }
    // A recording with a blank mark is rejected; only an observer could return one.
    for row in observation["guests"].as_array_mut().expect("rows") {
        if let Some(marks) = row.get_mut("identity").and_then(Value::as_object_mut) {
            marks.retain(|_, mark| mark.as_str().is_none_or(|text| !text.trim().is_empty()));
        }
    }
}

#[derive(Default)]
struct ScaffoldCounts {
    declared: u64,
    refused: u64,
    described: u64,
    left_out: u64,
}

#[test]
fn adopting_guests_plans_nothing() {
    let mut counts = ScaffoldCounts::default();
    for mut case in random_cases(SEED, WORLDS) {
        make_fully_read(&mut case.world.observation, &mut case.rng);
        let text = case.world.observation.to_string();
        let observation = observe::parse(text.as_bytes()).unwrap_or_else(|faults| panic!("{case:?}\n{faults:#?}"));
        let listed = observation.guests.iter().map(|row| row.vmid);
        let mut chosen: Vec<Vmid> = listed.filter(|_| case.rng.one_in(2)).collect();
        chosen.extend(Vmid::new(77_777).filter(|_| case.rng.one_in(60)));
        let scope = Scope::new(chosen);
        let scoped = observation.into_scoped(&scope);
        match scaffold(&scoped, &scope) {
            Scaffold::Refused { refusals, guests } => {
                let is_blind = |vmid: Vmid| !matches!(scoped.presence(vmid, scoped.find(vmid)), observe::Seen::Present(..));
                let reasons = guests.iter().all(|guest| !guest.refusals.is_empty()) && !(refusals.is_empty() && guests.is_empty());
                assert!(
                    reasons && scope.ids().iter().all(|vmid| !is_blind(*vmid) || guests.iter().any(|guest| guest.vmid == *vmid)),
                    "{case:?}"
                );
                counts.refused += 1;
            }
            Scaffold::Declared { text, guests } => {
                let context = format!("{case:?}\n{text}");
                let desired = desired::parse(text.as_bytes(), Notation::Yaml).unwrap_or_else(|faults| panic!("{context}\n{faults:#?}"));
                assert_eq!(desired.scope(), scope, "{context}");
                let shared = Arc::new(desired.clone());
                let planned = plan(shared, Arc::new(scoped.clone()), Arc::new(Rules::default()));
                assert_eq!(planned.refusals(), [], "{context}");
                assert!(
                    planned.verdicts().iter().all(|verdict| *verdict == Verdict::Converged { pending_restart: false }),
                    "{context}\n{planned:#?}"
                );
                // There is nothing left to pin.
                let request = PinRequest { selection: PinSelection::All, repin: Scope::new(vec![]) };
                let pinned =
                    pin(text.as_bytes(), Notation::Yaml, &scoped, &request).unwrap_or_else(|faults| panic!("{context}\n{faults:#?}"));
                assert!(
                    pinned.text == text
                        && pinned.guests.iter().all(|guest| matches!(guest.outcome, PinOutcome::Unchanged | PinOutcome::NoMarks)),
                    "{context}"
                );
                assert!(text.lines().all(|line| !line.chars().any(char::is_control)), "{context}");
                check_complete(&scoped, &desired, &guests, &context);
                counts.declared += guests.len() as u64;
                counts.left_out += guests.iter().filter(|guest| !guest.left_out.is_empty()).count() as u64;
                counts.described += text.matches("description: ").count() as u64;
            }
        }
    }
    let ScaffoldCounts { declared, refused, described, left_out } = counts;
    let least = declared.min(described).min(left_out).min(refused * 4);
    assert!(
        least > crate::case_count(WORLDS) / 8,
        "{declared} declared, {described} described, {left_out} with something left out, {refused} refused"
    );
}

/// Checks that everything that was read is either declared or reported as omitted.
fn check_complete(scoped: &Scoped, desired: &Desired, guests: &[AdoptedGuest], context: &str) {
    for (row, guest) in scoped.guests.iter().zip(desired.guests()) {
        let adopted = guests.iter().find(|own| own.vmid == row.vmid).expect("adopted");
        let is_left_out = |key: &str| adopted.left_out.iter().any(|left| &*left.key == key);
        let (Reading::Read(config), Reading::Read(tags)) = (&row.config, &row.tags) else { panic!("{context}") };
        let managed =
            config.values().iter().filter(|(field, _)| rule_of(row.kind, *field).is_some_and(|rule| rule.role == FieldRole::Managed));
        for (field, value) in managed {
            let is_declared = guest.config.iter().any(|own| own.field == *field && own.wanted.as_ref() == Some(value));
            assert!(is_declared != is_left_out(field.word()), "{} {}\n{context}", row.vmid, field.word());
        }
        assert!(
            tags.is_empty() || guest.config.iter().any(|own| own.field.word() == "tags") != is_left_out("tags"),
            "{}\n{context}",
            row.vmid
        );
        assert!(!tags.contains_ignore_case(HOLD_TAG) || is_left_out("tags"), "{}\n{context}", row.vmid);
        assert!(guest.state.is_some() != is_left_out("state") && guest.name.is_some() != is_left_out("name"), "{}\n{context}", row.vmid);
    }
}
