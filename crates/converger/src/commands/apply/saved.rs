//! `--plan FILE`: a plan that was saved and read by somebody. It is evidence and no permission: what is planned now, on a fresh
//! reading, must be the same steps on the same guests.
//!
//! What never enters: carrying anything out of the file, and what counts as the same (core, `artifact::RecordedPlan`).

use std::path::Path;

use converger_core::artifact::{Digest, Narrowed, PLAN_SCHEMA, RecordedPlan, is_bound};
use converger_core::document::keys_once;
use converger_core::plan::Plan;
use converger_core::refusal::Refusal;
use serde_json::Value as Json;

use super::super::{Stop, spine};
use crate::{diagnose, files};

/// A saved plan that is whole.
pub(super) struct Saved {
    body: Json,
}

/// Reads one. Whatever was edited in it since is not what was planned.
pub(super) fn read(path: &Path) -> Result<Saved, Stop> {
    let name = files::shown(path);
    let text = files::read(path).map_err(|error| spine::unreadable(&name, &error))?;
    let no_plan = |why: &str| Stop::input(format!("{name} is not a plan: {why}")).help("`converger plan --out FILE` saves one");
    let mut plan: Json = serde_json::from_slice(&text.bytes).map_err(|error| no_plan(&error.to_string()))?;
    // Of a key that is given twice the digest could be over the one and the comparison with the other.
    keys_once(&text.bytes)
        .map_err(|faults| Stop::faults(diagnose::render(&name, &text.bytes, &faults)).help("save it again, and read that"))?;
    if plan["schema"] != PLAN_SCHEMA {
        return Err(no_plan(&format!("its `schema` is not {PLAN_SCHEMA}")));
    }
    let digest = plan["digest"].as_str().and_then(Digest::parse);
    if !digest.is_some_and(|digest| is_bound(&String::from_utf8_lossy(&text.bytes), &digest)) {
        return Err(no_plan("its digest is not that of its body as it is written there, so that it was edited, cut or laid out anew")
            .help("save it again, and read that"));
    }
    // A recording shows how things were; what somebody read there was never seen (G7).
    if plan["provenance"] != "live" {
        return Err(Stop::refused(&Refusal::replay_not_appliable()));
    }
    Ok(Saved { body: plan["body"].take() })
}

impl Saved {
    /// Whether the plan of now has the same steps; otherwise a refusal that says what differs, guest by guest.
    pub(super) fn stale(&self, plan: &Plan, narrowed: Narrowed) -> Result<Option<Refusal>, Stop> {
        let now = RecordedPlan::of(plan).map_err(|error| Stop::failed(format!("the plan cannot be written: {error}")))?;
        Ok(RecordedPlan::read(&self.body).stale(&now, narrowed))
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

    /// The digest is over the first of two bodies, and a tree has the last.
    #[test]
    fn a_plan_with_a_key_twice_is_none() {
        let start = json!([{ "change": "start" }]);
        let (one, other) = (body(&[row(100, &start)]), body(&[row(101, &start)]));
        let digest = Digest::of_bytes(one.to_string().as_bytes());
        let whole = format!(r#"{{"body":{one},"digest":"{digest}","judgement":{{}},"provenance":"live","schema":"{PLAN_SCHEMA}"}}"#);
        let room = tempfile::tempdir().expect("a directory");
        let path = room.path().join("plan.json");
        let read_text = |text: &str| {
            std::fs::write(&path, text).expect("written");
            read(&path)
        };
        assert!(read_text(&whole).is_ok_and(|saved| saved.body == one));
        let forged = whole.strip_suffix('}').map(|whole| format!(r#"{whole},"body":{other}}}"#)).expect("an object");
        assert!(read_text(&forged).is_err());
        assert!(read_text(&whole.replace(r#""vmid":100"#, r#""vmid":100,"vmid":101"#)).is_err());
    }
}
