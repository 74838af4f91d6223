//! A recorded plan, as far as it can be compared with another one: the guests, and what is done to each.
//!
//! It is evidence, not a permission: it cannot become a `Plan`. The comparison covers what a person who read the plan relied on; tags,
//! notes and the node of a guest may differ, since each step is checked again before it is sent.
//!
//! Must not depend on files or digests, or decide what follows from a difference (`refusal`).

mod differences;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde_json::Value;

use super::plan::{step_text, target_text};
use super::{Digest, write_body, write_judgement};
use crate::apply::{Operation, OperationSource, OperationTarget};
use crate::refusal::Refusal;
use crate::safety::Judged;

pub use differences::{DifferenceKind, GuestDifference, StepDifference};

/// The body of a recorded plan, with the guests that its judgement refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedPlan {
    environment: Value,
    /// The digest of the request that it was made for; null for a desired state.
    request: Value,
    /// The cluster that the judgement names; null for a recorded observation.
    cluster: Value,
    /// The epoch of the state directory at the time.
    epoch: u64,
    guests: BTreeMap<u64, RecordedGuest>,
    /// Rows without a guest id, and duplicate rows of a guest.
    malformed_rows: Vec<String>,
}

/// Whether the later of two plans may omit guests of the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestOmission {
    /// Only some of the guests were requested.
    Allowed,
    /// All guests were requested.
    Forbidden,
}

/// What a plan contains about one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RecordedGuest {
    kind: Value,
    name: Value,
    verdict: Value,
    steps: Value,
    identity: Value,
    /// Identity and guards as written. Not compared with a later plan, which only has to agree on the identity.
    precondition: String,
    /// The steps as written, without the reason sentence. Stored as text because many operations may be compared with them.
    step_texts: Vec<String>,
    /// Not compared: the same guest may be refused for another reason.
    codes: Vec<String>,
}

impl RecordedPlan {
    /// Parses the body of a plan.json. Malformed parts lead to differences, never to a match.
    #[must_use]
    pub fn from_body(body: &Value) -> Self {
        let mut recorded = Self {
            environment: member(body, "environment"),
            request: requested_digest(body),
            cluster: Value::Null,
            epoch: 1,
            guests: BTreeMap::new(),
            malformed_rows: Vec::new(),
        };
        for (number, row) in elements(body.get("guests")).enumerate() {
            match row.get("vmid").and_then(Value::as_u64) {
                None => recorded.malformed_rows.push(format!("row {}: it is of no guest", number + 1)),
                Some(vmid) => {
                    if recorded.guests.insert(vmid, RecordedGuest::from_row(row)).is_some() {
                        recorded.malformed_rows.push(format!("{vmid}: it is there twice"));
                    }
                }
            }
        }
        recorded
    }

    /// The plan as its recorded judgement leaves it: a guest that the judgement refuses has refusals instead of steps.
    #[must_use]
    pub fn with_judgement(mut self, judgement: &Value) -> Self {
        let circumstance = |key| judgement.get("circumstances").map_or(Value::Null, |circumstances| member(circumstances, key));
        self.cluster = circumstance("cluster");
        self.epoch = circumstance("epoch").as_u64().unwrap_or(1);
        for row in elements(judgement.get("guests")) {
            let guest = row.get("vmid").and_then(Value::as_u64).and_then(|vmid| self.guests.get_mut(&vmid));
            match guest {
                Some(guest) => guest.refuse(row),
                None => self.malformed_rows.push(format!("judgement of {}: the plan has no such guest", member(row, "vmid"))),
            }
        }
        self
    }

    /// The recorded form of a judged plan.
    ///
    /// # Errors
    /// It cannot be written as JSON.
    pub fn from_judged(judged: &Judged) -> io::Result<Self> {
        let (mut body, mut judgement) = (Vec::new(), Vec::new());
        write_body(&mut body, judged.plan())?;
        write_judgement(&mut judgement, judged.judgement())?;
        Ok(Self::from_body(&serde_json::from_slice(&body)?).with_judgement(&serde_json::from_slice(&judgement)?))
    }

    /// The differences between this plan and a later one, per guest; empty if both have the same steps on the same guests.
    #[must_use]
    pub fn differences(&self, now: &Self, omission: GuestOmission) -> Vec<String> {
        let guests = self.guest_differences(now, omission).into_iter().map(|guest| format!("{}: {}", guest.vmid, guest.text));
        self.general_differences(now).into_iter().chain(guests).collect()
    }

    /// The number of its steps.
    #[must_use]
    pub fn step_count(&self) -> usize {
        self.guests.values().map(|guest| guest.step_texts.len()).sum()
    }

    /// Whether an operation is a step of this plan: the same guest by birth marks and guards, the same position, the same change, the same
    /// classification, and, for a requested action, the same request.
    #[must_use]
    pub fn contains_operation(&self, operation: &Operation) -> bool {
        let Operation { guest, step, impact, risk, class, position, environment, source, .. } = operation;
        let Some(row) = self.guests.get(&u64::from(guest.vmid.get())) else { return false };
        let planned = usize::try_from(*position).ok().and_then(|at| row.step_texts.get(at));
        let as_judged = (*impact, *risk, *class) == (step.impact(), step.risk(), step.class());
        let kind = row.kind == guest.kind.word();
        // Later steps of a new guest take its birth marks from the clone, which the plan could not know.
        let is_found = match row.makes_guest() && *position > 0 && guest.identity.is_some() {
            true => target_text(&OperationTarget { identity: None, ..guest.clone() }).is_ok_and(|found| found == row.precondition),
            false => target_text(guest).is_ok_and(|found| found == row.precondition),
        };
        let is_requested = self.request.is_null() || source_request(source).is_some_and(|request| self.request == request.to_string());
        let is_of = self.environment == environment.as_str() && kind && row.name == *guest.name && is_found && is_requested;
        as_judged && is_of && planned.is_some_and(|planned| step_text(step).is_ok_and(|own| own == *planned))
    }

    /// The refused guests with their refusal codes.
    #[must_use]
    pub fn refusals(&self) -> BTreeSet<(u64, &str)> {
        self.guests.iter().flat_map(|(vmid, row)| row.codes.iter().map(|code| (*vmid, code.as_str()))).collect()
    }

    /// The plan with only what a person decides on: the guests that have steps in it or in `other`. A guest that has steps in one of them keeps
    /// its row in both, so that one without steps any more is not mistaken for one that was left out.
    fn to_proposed(&self, other: &Self) -> Self {
        let has_steps = |plan: &Self, vmid: &u64| plan.guests.get(vmid).is_some_and(|guest| guest.verdict == "steps");
        let mut proposed = self.clone();
        proposed.guests.retain(|vmid, _| has_steps(self, vmid) || has_steps(other, vmid));
        proposed
    }

    /// The refusal if a later plan proposes something else: other steps, other guests with steps, another cluster or another epoch.
    #[must_use]
    pub fn stale_refusal(&self, now: &Self, omission: GuestOmission) -> Option<Refusal> {
        if self.epoch != now.epoch {
            return Some(Refusal::plan_of_other_epoch(self.epoch, now.epoch));
        }
        let mut differences = self.to_proposed(now).differences(&now.to_proposed(self), omission);
        if self.cluster != now.cluster {
            differences.push(format!("cluster: then {}, now {}", self.cluster, now.cluster));
        }
        (!differences.is_empty()).then(|| Refusal::plan_stale(differences))
    }
}

/// A step without the reason sentence.
fn without_reason(mut step: Value) -> Value {
    if let Value::Object(members) = &mut step {
        members.remove("reason");
    }
    step
}

impl RecordedGuest {
    fn from_row(row: &Value) -> Self {
        let identity = row.get("precondition").map_or(Value::Null, |precondition| member(precondition, "identity"));
        let codes = refusal_codes(row);
        let (kind, name, verdict, steps) = (member(row, "kind"), member(row, "name"), member(row, "verdict"), member(row, "steps"));
        let found = row.get("precondition").map_or_else(String::new, Value::to_string);
        let step_texts = elements(Some(&steps)).map(|step| without_reason(step.clone()).to_string()).collect();
        Self { kind, name, verdict, steps, identity, precondition: found, step_texts, codes }
    }

    /// Whether the first step makes the guest.
    fn makes_guest(&self) -> bool {
        elements(Some(&self.steps)).next().and_then(|step| step.get("change")).and_then(Value::as_str) == Some("clone")
    }

    /// Replaces the steps by the refusals of a judgement.
    fn refuse(&mut self, judgement: &Value) {
        let Self { kind, name, .. } = self;
        let (kind, name, codes) = (kind.take(), name.take(), refusal_codes(judgement));
        let (verdict, precondition, step_texts) = (Value::from("refused"), String::new(), Vec::new());
        *self = Self { kind, name, verdict, steps: Value::Null, identity: Value::Null, precondition, step_texts, codes };
    }

    /// Whether both rows agree on the guest and on what is done to it. Changed tags do not matter.
    fn is_equivalent_to(&self, other: &Self) -> bool {
        let compared_values =
            |row: &Self| [row.kind.clone(), row.name.clone(), row.verdict.clone(), row.steps.clone(), row.identity.clone()];
        compared_values(self) == compared_values(other)
    }

    /// A short description of what the plan does to the guest.
    fn summarize(&self) -> String {
        let name = self.name.as_str().unwrap_or_default();
        match self.verdict.as_str() {
            Some("steps") => format!("{} on {name}", elements(Some(&self.steps)).map(describe_step).collect::<Vec<_>>().join(", ")),
            Some("refused") => format!("{name} refused ({})", self.codes.join(", ")),
            verdict => format!("{name} {}", verdict.unwrap_or_default()),
        }
    }
}

/// Describes a difference: by the summaries, or by what they omit if they are equal.
fn describe_difference(then: Option<&RecordedGuest>, now: Option<&RecordedGuest>) -> String {
    let [before, after] = [then, now].map(|row| row.map_or_else(|| "not in the plan".to_owned(), RecordedGuest::summarize));
    let (Some(then), Some(now)) = (then, now) else { return format!("then {before}, now {after}") };
    if before != after {
        return format!("then {before}, now {after}");
    }
    let mut found = Vec::new();
    collect_differences("kind", &then.kind, &now.kind, &mut found);
    collect_differences("birth marks", &then.identity, &now.identity, &mut found);
    collect_differences("steps", &then.steps, &now.steps, &mut found);
    let guest = if then.identity == now.identity { "" } else { "another guest has this id now: " };
    format!("{before}, {guest}{}", found.join(", "))
}

/// Collects the paths at which two values differ, with both values.
fn collect_differences(path: &str, then: &Value, now: &Value, found: &mut Vec<String>) {
    match (then, now) {
        (Value::Object(one), Value::Object(two)) => {
            let keys: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
            keys.into_iter().for_each(|key| collect_differences(&format!("{path} {key}"), &member(then, key), &member(now, key), found));
        }
        (Value::Array(one), Value::Array(two)) if one.len() == two.len() => {
            let pairs = one.iter().zip(two).enumerate();
            pairs.for_each(|(number, (then, now))| collect_differences(&format!("{path} {}", number + 1), then, now, found));
        }
        (then, now) if then == now => {}
        (then, now) => found.push(format!("{path}: then {then}, now {now}")),
    }
}

/// The codes of the refusals in a row of a body or of a judgement.
fn refusal_codes(row: &Value) -> Vec<String> {
    elements(row.get("refusals")).filter_map(|refusal| refusal.get("code").and_then(Value::as_str)).map(str::to_owned).collect()
}

fn describe_step(step: &Value) -> String {
    let fields = step.get("fields").and_then(Value::as_object).into_iter().flatten();
    let fields: Vec<String> =
        fields.map(|(name, field)| format!("{name} {} to {}", member(field, "before"), member(field, "after"))).collect();
    let change = step.get("change").and_then(Value::as_str).unwrap_or_default();
    if fields.is_empty() { change.to_owned() } else { format!("{change} ({})", fields.join(", ")) }
}

/// The digest of the request in the body of a plan; null for a desired state.
fn requested_digest(body: &Value) -> Value {
    match body.get("intent") {
        Some(intent) if intent.get("kind").is_some_and(|kind| kind == "request") => member(intent, "digest"),
        _ => Value::Null,
    }
}

fn source_request(source: &OperationSource) -> Option<Digest> {
    match source {
        OperationSource::Convergent => None,
        OperationSource::OneShot { request, .. } => Some(*request),
    }
}

/// A member, or null.
fn member(value: &Value, key: &str) -> Value {
    value.get(key).cloned().unwrap_or_default()
}

fn elements(value: Option<&Value>) -> impl Iterator<Item = &Value> {
    value.and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn guest_row(vmid: u32, steps: &Value) -> Value {
        json!({ "vmid": vmid, "kind": "qemu", "name": "web", "verdict": "steps", "steps": steps,
            "precondition": { "identity": { "uuid": "a" }, "tags": [] } })
    }

    fn plan_body(guests: &[Value]) -> Value {
        json!({ "environment": "lab", "guests": guests })
    }

    fn differences(then: &Value, now: &Value, omission: GuestOmission) -> Vec<String> {
        RecordedPlan::from_body(then).differences(&RecordedPlan::from_body(now), omission)
    }

    /// `--only` may leave guests out, but a guest in scope that has no steps any more was not left out.
    #[test]
    fn g15_guest_without_steps_any_more_is_not_left_out() {
        let start = json!([{ "change": "start" }]);
        let then = RecordedPlan::from_body(&plan_body(&[guest_row(100, &start), guest_row(101, &start)]));
        let mut converged = guest_row(101, &json!(null));
        converged["verdict"] = json!("converged");
        let now = RecordedPlan::from_body(&plan_body(&[guest_row(100, &start), converged]));
        for omission in [GuestOmission::Allowed, GuestOmission::Forbidden] {
            let refusal = then.stale_refusal(&now, omission).map(|refusal| format!("{:?}", refusal.evidence()));
            assert!(refusal.is_some_and(|evidence| evidence.contains("101: then start on web, now web converged")));
        }
        let narrowed = RecordedPlan::from_body(&plan_body(&[guest_row(100, &start)]));
        assert!(then.stale_refusal(&narrowed, GuestOmission::Allowed).is_none());
    }

    #[test]
    fn g15_changed_steps_guests_or_lists_are_differences() {
        let start = json!([{ "change": "start" }]);
        let then = plan_body(&[guest_row(100, &start), guest_row(101, &start)]);
        let mut recycled = guest_row(100, &start);
        recycled["precondition"]["identity"]["uuid"] = json!("b");
        let cases = [
            plan_body(&[recycled, guest_row(101, &start)]),
            plan_body(&[guest_row(100, &json!([{ "change": "stop" }])), guest_row(101, &start)]),
            plan_body(&[guest_row(100, &start)]),
            plan_body(&[guest_row(100, &start), guest_row(101, &start), guest_row(102, &start)]),
            json!({ "environment": "prod", "guests": [] }),
        ];
        for now in cases {
            assert_eq!(differences(&then, &now, GuestOmission::Forbidden).len(), 1, "{now}");
            assert!(
                RecordedPlan::from_body(&then).stale_refusal(&RecordedPlan::from_body(&now), GuestOmission::Forbidden).is_some(),
                "{now}"
            );
        }
        assert_eq!(
            differences(&then, &plan_body(&[guest_row(102, &start)]), GuestOmission::Allowed),
            ["102: then not in the plan, now start on web"]
        );
    }

    /// If two rows concern one guest, a person may have read the other one.
    #[test]
    fn g15_duplicate_or_unidentified_rows_never_match() {
        let start = json!([{ "change": "start" }]);
        let (now, nobody) = (plan_body(&[guest_row(100, &start)]), json!({ "name": "web" }));
        let duplicate = plan_body(&[guest_row(100, &json!([{ "change": "stop" }])), guest_row(100, &start)]);
        assert_eq!(differences(&duplicate, &now, GuestOmission::Allowed), ["100: it is there twice"]);
        assert_eq!(differences(&plan_body(&[guest_row(100, &start), nobody]), &now, GuestOmission::Allowed), ["row 2: it is of no guest"]);
    }

    #[test]
    fn reports_differences_that_the_summaries_hide() {
        let start = json!([{ "change": "shutdown", "timeout_secs": 60, "wait": [] }]);
        let then = plan_body(&[guest_row(100, &start), guest_row(101, &start)]);
        let (mut recycled, mut patient) = (guest_row(100, &start), guest_row(101, &start));
        recycled["precondition"]["identity"]["uuid"] = json!("b");
        patient["steps"][0]["timeout_secs"] = json!(600);
        let expected = [
            "100: shutdown on web, another guest has this id now: birth marks uuid: then \"a\", now \"b\"",
            "101: shutdown on web, steps 1 timeout_secs: then 60, now 600",
        ];
        assert_eq!(differences(&then, &plan_body(&[recycled, patient]), GuestOmission::Forbidden), expected);
    }

    #[test]
    fn g15_a_guest_that_the_judgement_refuses_has_no_steps() {
        let start = json!([{ "change": "start" }]);
        let body = plan_body(&[guest_row(100, &start), guest_row(101, &start)]);
        let judgement = json!({ "guests": [{ "vmid": 101, "refusals": [{ "code": "guest-held" }] }] });
        let (free, held) = (RecordedPlan::from_body(&body), RecordedPlan::from_body(&body).with_judgement(&judgement));
        assert_eq!(held.refusals(), BTreeSet::from([(101, "guest-held")]));
        assert_eq!(held.differences(&free, GuestOmission::Forbidden), ["101: then web refused (guest-held), now start on web"]);
        assert_eq!(held.differences(&held, GuestOmission::Forbidden), Vec::<String>::new());
        assert_eq!(free.clone().with_judgement(&json!({})), free);
    }

    #[test]
    fn a_judgement_of_another_guest_never_matches() {
        let plan = RecordedPlan::from_body(&plan_body(&[])).with_judgement(&json!({ "guests": [{ "vmid": 101, "refusals": [] }] }));
        assert_eq!(plan.differences(&plan, GuestOmission::Forbidden)[0], "judgement of 101: the plan has no such guest");
    }

    #[test]
    fn changes_that_do_not_affect_the_steps_are_not_differences() {
        let start = json!([{ "change": "start" }]);
        let then = plan_body(&[guest_row(100, &start), guest_row(101, &start)]);
        let mut tagged = guest_row(100, &start);
        tagged["precondition"]["tags"] = json!(["seen"]);
        assert_eq!(
            differences(&then, &plan_body(&[tagged.clone(), guest_row(101, &start)]), GuestOmission::Forbidden),
            Vec::<String>::new()
        );
        assert_eq!(differences(&then, &plan_body(&[tagged]), GuestOmission::Allowed), Vec::<String>::new());
    }
}
