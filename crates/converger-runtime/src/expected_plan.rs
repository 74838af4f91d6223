//! A plan that a person saved and read. It is evidence, not permission: a new plan on a fresh observation must have the same steps on the same guests.
//!
//! Nothing is applied from the document itself. Core decides which plans are the same (`artifact::RecordedPlan`).

use converger_core::artifact::{Digest, GuestOmission, PLAN_SCHEMA, RecordedPlan, has_body_digest};
use converger_core::document::{Diagnostics, check_unique_keys};
use converger_core::observe::SCHEMA as OBSERVATION_SCHEMA;
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use serde_json::Value as Json;

use crate::error::RuntimeError;

/// A saved plan that is intact, of any provenance. It can be compared and never applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedPlan {
    /// The guests, with what the plan and its judgement decided about each.
    pub plan: RecordedPlan,
    /// The digest of the body.
    pub digest: Digest,
    is_live: bool,
}

/// A saved plan of a live observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedPlan {
    plan: RecordedPlan,
}

/// Why a document is not a plan that can be expected.
#[derive(Debug)]
pub enum ExpectedPlanError {
    /// It is not a plan, or was edited.
    Invalid {
        /// What is wrong with it.
        why: String,
        /// The remedy.
        help: &'static str,
    },
    /// A key occurs twice: the digest could cover one value and the comparison use the other.
    RepeatedKeys(Diagnostics),
    /// It was made from a recorded observation, which is never applied (G7).
    Recorded(Refusal),
}

/// Where a text stops being JSON. The words of the parser are for programmers.
fn describe_no_json(error: &serde_json::Error) -> String {
    format!("it is not JSON (line {}, column {})", error.line(), error.column())
}

/// What the document is instead of a plan. Only a schema of this program is quoted.
fn describe_other_schema(document: &Json) -> String {
    match document["schema"].as_str() {
        Some(OBSERVATION_SCHEMA) => format!("it is an observation ({OBSERVATION_SCHEMA})"),
        _ => format!("its `schema` is not {PLAN_SCHEMA}"),
    }
}

impl SavedPlan {
    /// Parses a saved plan.
    ///
    /// # Errors
    /// It is not a plan as the program wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ExpectedPlanError> {
        let invalid = |why: &str, help| ExpectedPlanError::Invalid { why: why.to_owned(), help };
        let save = "`converger plan --out FILE` saves one";
        let plan: Json = serde_json::from_slice(bytes).map_err(|error| invalid(&describe_no_json(&error), save))?;
        check_unique_keys(bytes).map_err(ExpectedPlanError::RepeatedKeys)?;
        if plan["schema"] != PLAN_SCHEMA {
            return Err(invalid(&describe_other_schema(&plan), save));
        }
        let digest = plan["digest"].as_str().and_then(Digest::parse);
        let Some(digest) = digest.filter(|digest| has_body_digest(&String::from_utf8_lossy(bytes), digest)) else {
            let why = "its digest does not match its body: it was edited, cut or reformatted";
            return Err(invalid(why, "save it again with `converger plan --out FILE`, and review that"));
        };
        if !has_judgement_digest(&plan["judgement"]) {
            let why = "the digest of its judgement does not match: it was edited, cut or reformatted";
            return Err(invalid(why, "save it again with `converger plan --out FILE`, and review that"));
        }
        let is_live = plan["provenance"] == "live";
        Ok(Self { plan: RecordedPlan::from_body(&plan["body"]).with_judgement(&plan["judgement"]), digest, is_live })
    }
}

/// Whether the judgement in a plan.json is the one that its digest covers: a guest that it refuses has no steps.
fn has_judgement_digest(judgement: &Json) -> bool {
    let mut content = judgement.clone();
    let digest = content.as_object_mut().and_then(|members| members.remove("digest"));
    digest.is_some_and(|digest| digest == Digest::of_bytes(content.to_string().as_bytes()).to_string())
}

impl ExpectedPlan {
    /// Parses a saved plan.
    ///
    /// # Errors
    /// It is not a plan of a live observation as the program wrote it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ExpectedPlanError> {
        let SavedPlan { plan, is_live, .. } = SavedPlan::parse(bytes)?;
        if !is_live {
            return Err(ExpectedPlanError::Recorded(Refusal::replay_not_appliable()));
        }
        Ok(Self { plan })
    }

    /// A refusal that names the differences guest by guest, if the new plan has other steps.
    ///
    /// # Errors
    /// The plan cannot be encoded.
    pub fn find_difference(&self, judged: &Judged, omission: GuestOmission) -> Result<Option<Refusal>, RuntimeError> {
        let now = RecordedPlan::from_judged(judged).map_err(|error| RuntimeError::failed(format!("cannot encode the plan: {error}")))?;
        Ok(self.plan.stale_refusal(&now, omission))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(vmid: u32, steps: &Json) -> Json {
        json!({ "vmid": vmid, "kind": "qemu", "name": "web", "verdict": "steps", "steps": steps,
            "precondition": { "identity": { "uuid": "a" }, "tags": [] } })
    }

    fn body(guests: &[Json]) -> Json {
        json!({ "environment": "lab", "guests": guests })
    }

    /// A judgement that refuses these guests, with its digest.
    fn judgement(guests: &Json) -> Json {
        let mut judgement = json!({ "guests": guests, "refusals": [] });
        judgement["digest"] = Digest::of_bytes(judgement.to_string().as_bytes()).to_string().into();
        judgement
    }

    /// The digest of the body does not cover the judgement, and a person who read the plan saw that a guest is refused.
    #[test]
    fn refuses_a_plan_whose_judgement_was_edited() {
        let body = body(&[row(100, &json!([{ "change": "start" }]))]);
        let digest = Digest::of_bytes(body.to_string().as_bytes());
        let held = judgement(&json!([{ "refusals": [{ "code": "guest-held" }], "vmid": 100 }]));
        let document = |judgement: &Json| {
            format!(r#"{{"body":{body},"digest":"{digest}","judgement":{judgement},"provenance":"live","schema":"{PLAN_SCHEMA}"}}"#)
        };
        let parse = |judgement: &Json| SavedPlan::parse(document(judgement).as_bytes());
        let plan = parse(&held).expect("it is intact").plan;
        assert_eq!(plan.refusals().into_iter().collect::<Vec<_>>(), [(100, "guest-held")]);
        let mut edited = held.clone();
        edited["guests"] = json!([]);
        for forged in [edited, json!({}), json!(null)] {
            assert!(matches!(parse(&forged), Err(ExpectedPlanError::Invalid { why, .. }) if why.contains("judgement")), "{forged}");
        }
    }

    #[test]
    fn names_what_is_there_instead_of_a_plan() {
        let why = |text: &str| match SavedPlan::parse(text.as_bytes()) {
            Err(ExpectedPlanError::Invalid { why, .. }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("junk"), "it is not JSON (line 1, column 1)");
        assert_eq!(why("{\"schema\":\"converger.observation/1\"}"), "it is an observation (converger.observation/1)");
        assert_eq!(why("{\"schema\":\"other/1\"}"), format!("its `schema` is not {PLAN_SCHEMA}"));
    }

    /// The digest covers the first of two bodies; a parsed document has the last.
    #[test]
    fn refuses_a_plan_with_a_repeated_key() {
        let start = json!([{ "change": "start" }]);
        let (one, other) = (body(&[row(100, &start)]), body(&[row(101, &start)]));
        let digest = Digest::of_bytes(one.to_string().as_bytes());
        let judgement = judgement(&json!([]));
        let whole = format!(r#"{{"body":{one},"digest":"{digest}","judgement":{judgement},"provenance":"live","schema":"{PLAN_SCHEMA}"}}"#);
        let parse = |text: &str| ExpectedPlan::parse(text.as_bytes());
        assert!(parse(&whole).is_ok_and(|plan| plan.plan == RecordedPlan::from_body(&one)));
        let forged = whole.strip_suffix('}').map(|whole| format!(r#"{whole},"body":{other}}}"#)).expect("an object");
        assert!(matches!(parse(&forged), Err(ExpectedPlanError::RepeatedKeys(_))));
        assert!(parse(&whole.replace(r#""vmid":100"#, r#""vmid":100,"vmid":101"#)).is_err());
    }
}
