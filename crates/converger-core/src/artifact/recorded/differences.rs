//! What two recorded plans do differently: by guest, and within a guest by step.
//!
//! What follows from a difference is decided in `refusal`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{GuestOmission, RecordedPlan};
use super::{RecordedGuest, collect_differences, describe_difference, describe_step, elements};

/// How a guest or a step of the later plan relates to the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceKind {
    /// Only the later plan has it.
    Added,
    /// Only the earlier plan has it.
    Removed,
    /// Both have it, and it is not the same.
    Changed,
}

impl DifferenceKind {
    /// Their words.
    pub const WORDS: [&'static str; 3] = ["added", "removed", "changed"];

    /// The word for it in reports.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
        }
    }
}

/// A guest of which two plans do not say the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDifference {
    /// The guest.
    pub vmid: u64,
    /// Which of the plans has it.
    pub kind: DifferenceKind,
    /// What both say about it.
    pub text: String,
    /// The steps that differ. It may be empty: the verdict or the guest itself is another one then.
    pub steps: Vec<StepDifference>,
}

/// A step that is not the same in two plans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepDifference {
    /// Which of the plans has it.
    pub kind: DifferenceKind,
    /// The step; of a changed one, what differs in it.
    pub text: String,
}

impl RecordedPlan {
    /// What differs from this plan to a later one and is not about one guest: the environment, or rows that cannot be compared.
    #[must_use]
    pub fn general_differences(&self, now: &Self) -> Vec<String> {
        if self.environment != now.environment {
            return vec![format!("environment: then {}, now {}", self.environment, now.environment)];
        }
        self.malformed_rows.iter().chain(&now.malformed_rows).cloned().collect()
    }

    /// What differs from this plan to a later one of the same environment, in the order of the ids.
    #[must_use]
    pub fn guest_differences(&self, now: &Self, omission: GuestOmission) -> Vec<GuestDifference> {
        // Guests of two environments are not compared: an id means another guest in each.
        if self.environment != now.environment {
            return Vec::new();
        }
        let ids: BTreeSet<u64> = self.guests.keys().chain(now.guests.keys()).copied().collect();
        let differs = |vmid: u64| {
            let (then, now) = (self.guests.get(&vmid), now.guests.get(&vmid));
            let kind = match (then, now) {
                (Some(then), Some(now)) if then.is_equivalent_to(now) => return None,
                (Some(_), None) if omission == GuestOmission::Allowed => return None,
                (Some(_), Some(_)) => DifferenceKind::Changed,
                (Some(_), None) => DifferenceKind::Removed,
                (None, _) => DifferenceKind::Added,
            };
            Some(GuestDifference { vmid, kind, text: describe_difference(then, now), steps: step_differences(then, now) })
        };
        ids.into_iter().filter_map(differs).collect()
    }
}

/// Steps belong together by the change that they make: a guest has one step of each at most.
fn step_differences(then: Option<&RecordedGuest>, now: Option<&RecordedGuest>) -> Vec<StepDifference> {
    let steps = |row: Option<&RecordedGuest>| elements(row.map(|row| &row.steps)).cloned().collect::<Vec<Value>>();
    let mut later = steps(now);
    let mut found = Vec::new();
    for step in steps(then) {
        let same_change = later.iter().position(|other| other.get("change") == step.get("change"));
        match same_change.map(|index| later.remove(index)) {
            None => found.push(StepDifference { kind: DifferenceKind::Removed, text: describe_step(&step) }),
            Some(other) if other == step => {}
            Some(other) => {
                let mut places = Vec::new();
                let word = step.get("change").and_then(Value::as_str).unwrap_or_default();
                collect_differences(word, &step, &other, &mut places);
                found.push(StepDifference { kind: DifferenceKind::Changed, text: places.join(", ") });
            }
        }
    }
    found.extend(later.iter().map(|step| StepDifference { kind: DifferenceKind::Added, text: describe_step(step) }));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(environment: &str, guests: &Value) -> RecordedPlan {
        RecordedPlan::from_body(&json!({ "environment": environment, "guests": guests }))
    }

    fn row(vmid: u32, verdict: &str, steps: &Value) -> Value {
        json!({ "vmid": vmid, "kind": "qemu", "name": "web", "verdict": verdict, "steps": steps, "precondition": { "identity": { "uuid": "a" } } })
    }

    type GuestDifferenceText = (u64, &'static str, Vec<(&'static str, String)>);

    fn list_differences(then: &RecordedPlan, now: &RecordedPlan) -> Vec<GuestDifferenceText> {
        let steps = |steps: Vec<StepDifference>| steps.into_iter().map(|step| (step.kind.word(), step.text)).collect();
        let guests = then.guest_differences(now, GuestOmission::Forbidden).into_iter();
        guests.map(|guest| (guest.vmid, guest.kind.word(), steps(guest.steps))).collect()
    }

    #[test]
    fn guests_and_steps_are_added_removed_and_changed() {
        let set = |cores: u32| json!({ "change": "config.set", "fields": { "cores": { "before": 1, "after": cores } } });
        let start = json!({ "change": "start" });
        let then = body(
            "lab",
            &json!([row(100, "steps", &json!([set(2), start])), row(101, "converged", &json!([])), row(103, "steps", &json!([start]))]),
        );
        let now = body(
            "lab",
            &json!([row(100, "steps", &json!([set(4)])), row(102, "steps", &json!([start])), row(103, "steps", &json!([start]))]),
        );
        let expected = vec![
            (100, "changed", vec![("changed", "config.set fields cores after: then 2, now 4".to_owned()), ("removed", "start".to_owned())]),
            (101, "removed", vec![]),
            (102, "added", vec![("added", "start".to_owned())]),
        ];
        assert_eq!(list_differences(&then, &now), expected);
        assert_eq!(list_differences(&then, &then), []);
    }

    #[test]
    fn a_recreated_guest_differs_without_a_step_that_does() {
        let start = json!([{ "change": "start" }]);
        let mut recreated = row(100, "steps", &start);
        recreated["precondition"]["identity"]["uuid"] = json!("b");
        let (then, now) = (body("lab", &json!([row(100, "steps", &start)])), body("lab", &json!([recreated])));
        assert_eq!(list_differences(&then, &now), [(100, "changed", vec![])]);
    }

    #[test]
    fn plans_of_two_environments_are_not_compared_guest_by_guest() {
        let start = json!([{ "change": "start" }]);
        let (then, now) = (body("lab", &json!([row(100, "steps", &start)])), body("barn", &json!([])));
        assert_eq!(list_differences(&then, &now), []);
        assert_eq!(then.general_differences(&now), ["environment: then \"lab\", now \"barn\""]);
    }
}
