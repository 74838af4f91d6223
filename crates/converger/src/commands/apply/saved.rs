//! `--plan FILE`: a plan that was saved and read by somebody. It is evidence and no permission: what is planned now, on a fresh
//! reading, must be the same steps on the same guests.
//!
//! What never enters: carrying anything out of the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use converger_core::artifact::{Digest, PLAN_SCHEMA, write_body};
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

/// Whether the plan of now may leave guests of the saved one out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Narrowed {
    Yes,
    No,
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
    if !is_whole(&text.bytes, plan["digest"].as_str().unwrap_or_default()) {
        return Err(no_plan("its digest is not that of its body, so that it was edited or cut").help("save it again, and read that"));
    }
    // A recording shows how things were; what somebody read there was never seen (G7).
    if plan["provenance"] != "live" {
        return Err(Stop::refused(&Refusal::replay_not_appliable()));
    }
    Ok(Saved { body: plan["body"].take() })
}

/// Whether the digest is that of the bytes of the body, which comes first in the file.
fn is_whole(bytes: &[u8], digest: &str) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let body =
        text.strip_prefix("{\"body\":").and_then(|rest| Some(&rest[..rest.find(&format!(",\"digest\":\"{digest}\",\"judgement\":"))?]));
    body.is_some_and(|body| Digest::parse(digest) == Some(Digest::of_bytes(body.as_bytes())))
}

impl Saved {
    /// Whether the plan of now has the same steps; otherwise a refusal that says what differs, guest by guest.
    pub(super) fn stale(&self, plan: &Plan, narrowed: Narrowed) -> Result<Option<Refusal>, Stop> {
        let mut body = Vec::new();
        let failed = |error: String| Stop::failed(format!("the plan cannot be written: {error}"));
        write_body(&mut body, plan).map_err(|error| failed(error.to_string()))?;
        let now: Json = serde_json::from_slice(&body).map_err(|error| failed(error.to_string()))?;
        let differences = differences(&self.body, &now, narrowed);
        Ok((!differences.is_empty()).then(|| Refusal::plan_stale(differences)))
    }
}

pub(super) fn differences(then: &Json, now: &Json, narrowed: Narrowed) -> Vec<String> {
    if then["environment"] != now["environment"] {
        return vec![format!("environment: then {}, now {}", then["environment"], now["environment"])];
    }
    let (then, now) = (guests(then), guests(now));
    let mut ids: Vec<u64> = then.keys().chain(now.keys()).copied().collect();
    ids.sort_unstable();
    ids.dedup();
    let differs = |vmid: &u64| match (then.get(vmid), now.get(vmid)) {
        (Some(then), Some(now)) if meant(then) == meant(now) => None,
        (Some(_), None) if narrowed == Narrowed::Yes => None,
        (then, now) => Some(format!("{vmid}: {}", told_apart(then.copied(), now.copied()))),
    };
    ids.iter().filter_map(differs).collect()
}

/// What differs, in a few words; where those are the same, what they leave out.
fn told_apart(then: Option<&Json>, now: Option<&Json>) -> String {
    let (before, after) = (shown(then), shown(now));
    let (Some(then), Some(now)) = (then, now) else { return format!("then {before}, now {after}") };
    if before != after {
        return format!("then {before}, now {after}");
    }
    let mut found = Vec::new();
    let identity = [then, now].map(|row| &row["precondition"]["identity"]);
    let rows = [("kind", &then["kind"], &now["kind"]), ("birth marks", identity[0], identity[1]), ("steps", &then["steps"], &now["steps"])];
    rows.into_iter().for_each(|(name, then, now)| apart(name, then, now, &mut found));
    let guest = if identity[0] == identity[1] { "" } else { "another guest has this id now: " };
    format!("{before}, {guest}{}", found.join(", "))
}

/// The places where two values differ, with both sides.
fn apart(place: &str, then: &Json, now: &Json, found: &mut Vec<String>) {
    match (then, now) {
        (Json::Object(one), Json::Object(two)) => {
            let keys: BTreeSet<&String> = one.keys().chain(two.keys()).collect();
            keys.into_iter().for_each(|key| apart(&format!("{place} {key}"), &then[key], &now[key], found));
        }
        (Json::Array(one), Json::Array(two)) if one.len() == two.len() => {
            let pairs = one.iter().zip(two).enumerate();
            pairs.for_each(|(at, (then, now))| apart(&format!("{place} {}", at + 1), then, now, found));
        }
        (then, now) if then == now => {}
        (then, now) => found.push(format!("{place}: then {then}, now {now}")),
    }
}

fn guests(body: &Json) -> BTreeMap<u64, &Json> {
    body["guests"].as_array().into_iter().flatten().filter_map(|row| Some((row["vmid"].as_u64()?, row))).collect()
}

/// What must be the same: which guest it is and what is done to it. Other tags than then are no other plan.
fn meant(row: &Json) -> [&Json; 5] {
    [&row["kind"], &row["name"], &row["verdict"], &row["steps"], &row["precondition"]["identity"]]
}

/// What a plan says about a guest, in a few words.
fn shown(row: Option<&Json>) -> String {
    let Some(row) = row else { return "not declared".into() };
    let who = row["name"].as_str().unwrap_or_default();
    let steps: Vec<String> = row["steps"].as_array().into_iter().flatten().map(step).collect();
    match row["verdict"].as_str() {
        Some("steps") => format!("{} on {who}", steps.join(", ")),
        Some("refused") => {
            let codes = row["refusals"].as_array().into_iter().flatten().filter_map(|refusal| refusal["code"].as_str());
            format!("{who} refused ({})", codes.collect::<Vec<_>>().join(", "))
        }
        verdict => format!("{who} {}", verdict.unwrap_or_default()),
    }
}

fn step(step: &Json) -> String {
    let fields = step["fields"].as_object().into_iter().flatten();
    let fields: Vec<String> = fields.map(|(name, field)| format!("{name} {} to {}", field["before"], field["after"])).collect();
    let word = step["change"].as_str().unwrap_or_default();
    if fields.is_empty() { word.to_owned() } else { format!("{word} ({})", fields.join(", ")) }
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

    #[test]
    fn other_steps_another_guest_or_another_list_are_differences() {
        let start = json!([{ "change": "start" }]);
        let then = body(&[row(100, &start), row(101, &start)]);
        let mut recycled = row(100, &start);
        recycled["precondition"]["identity"]["uuid"] = json!("b");
        let cases = [
            (body(&[recycled, row(101, &start)]), 1),
            (body(&[row(100, &json!([{ "change": "stop" }])), row(101, &start)]), 1),
            (body(&[row(100, &start)]), 1),
            (body(&[row(100, &start), row(101, &start), row(102, &start)]), 1),
            (json!({ "environment": "prod", "guests": [] }), 1),
        ];
        for (now, count) in cases {
            assert_eq!(differences(&then, &now, Narrowed::No).len(), count, "{now}");
        }
    }

    #[test]
    fn what_differs_is_said_though_the_steps_sound_the_same() {
        let start = json!([{ "change": "shutdown", "timeout_secs": 60, "wait": [] }]);
        let then = body(&[row(100, &start), row(101, &start)]);
        let (mut recycled, mut patient) = (row(100, &start), row(101, &start));
        recycled["precondition"]["identity"]["uuid"] = json!("b");
        patient["steps"][0]["timeout_secs"] = json!(600);
        let told = differences(&then, &body(&[recycled, patient]), Narrowed::No);
        let expected = [
            "100: shutdown on web, another guest has this id now: birth marks uuid: then \"a\", now \"b\"",
            "101: shutdown on web, steps 1 timeout_secs: then 60, now 600",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn what_does_not_change_the_steps_is_none() {
        let start = json!([{ "change": "start" }]);
        let then = body(&[row(100, &start), row(101, &start)]);
        let mut tagged = row(100, &start);
        tagged["precondition"]["tags"] = json!(["seen"]);
        assert_eq!(differences(&then, &body(&[tagged.clone(), row(101, &start)]), Narrowed::No), Vec::<String>::new());
        assert_eq!(differences(&then, &body(&[tagged]), Narrowed::Yes), Vec::<String>::new());
    }
}
