//! The generator covers everything that the planner can decide, and often enough. Otherwise the other properties could pass without ever
//! meeting their subject.

use std::collections::BTreeMap;

use converger_core::action::Change;
use converger_core::guest::GuestKind;
use converger_core::normalize::{FieldRole, TABLE as FIELDS};
use converger_core::plan::{Plan, Verdict};
use converger_core::refusal::{RefusalCode, RefusalStage, TABLE as CODES};

use crate::random_cases;

const SEED: u64 = 1;
const WORLDS: u64 = 4_000;
/// The least number of occurrences that counts as covered.
const WORLDS_MIN: u64 = 20;

#[derive(Default)]
struct GeneratorCounts {
    verdicts: BTreeMap<&'static str, u64>,
    codes: BTreeMap<RefusalCode, u64>,
    changes: BTreeMap<(&'static str, &'static str), u64>,
    fields: BTreeMap<(&'static str, &'static str, &'static str), u64>,
    waits: u64,
}

fn count_plan(plan: &Plan, seen: &mut GeneratorCounts) {
    for (guest, verdict) in plan.guests() {
        match verdict {
            Verdict::Converged { pending_restart } => {
                *seen.verdicts.entry(if *pending_restart { "converged, waiting" } else { "converged" }).or_default() += 1;
            }
            Verdict::Refused(refusals) => {
                *seen.verdicts.entry("refused").or_default() += 1;
                refusals.iter().for_each(|refusal| *seen.codes.entry(refusal.code()).or_default() += 1);
            }
            Verdict::Steps(steps) => {
                *seen.verdicts.entry("steps").or_default() += 1;
                for step in steps {
                    seen.waits += u64::from(!step.wait.is_empty());
                    *seen.changes.entry((guest.kind.word(), step.change.word())).or_default() += 1;
                    if let Change::ConfigSet(fields) = &step.change {
                        for field in fields {
                            let action = if field.after.is_some() { "set" } else { "unset" };
                            *seen.fields.entry((guest.kind.word(), field.field.word(), action)).or_default() += 1;
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_verdict_code_change_and_field_occurs_often() {
    let mut seen = GeneratorCounts::default();
    for case in random_cases(SEED, WORLDS) {
        count_plan(&case.inputs().plan(), &mut seen);
    }
    for verdict in ["converged", "converged, waiting", "refused", "steps"] {
        assert!(seen.verdicts.get(verdict) >= Some(&WORLDS_MIN), "verdict {verdict}: {:?}", seen.verdicts);
    }
    // Requests have codes of their own.
    for entry in CODES.iter().filter(|entry| entry.stage == RefusalStage::Plan && entry.code < RefusalCode::SnapshotExists) {
        assert!(seen.codes.get(&entry.code) >= Some(&WORLDS_MIN), "code {}: {:?}", entry.word, seen.codes);
    }
    for kind in GuestKind::WORDS {
        // A container is restarted with a stop and a start.
        for change in
            ["config.set", "start", "shutdown", "stop", "reboot"].into_iter().filter(|change| (kind, *change) != ("lxc", "reboot"))
        {
            assert!(seen.changes.get(&(kind, change)) >= Some(&WORLDS_MIN), "{kind} {change}: {:?}", seen.changes);
        }
    }
    for rule in FIELDS.iter().filter(|rule| rule.role == FieldRole::Managed) {
        for action in ["set", "unset"].into_iter().filter(|action| rule.can_unset || *action == "set") {
            let key = (rule.kind.word(), rule.field.word(), action);
            assert!(seen.fields.get(&key) >= Some(&WORLDS_MIN), "{key:?}: {:?}", seen.fields);
        }
    }
    assert!(seen.waits >= WORLDS_MIN, "{} steps wait for others", seen.waits);
}
