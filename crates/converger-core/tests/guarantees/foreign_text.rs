//! G16: untrusted text is compared and displayed, but decides nothing: whatever a guest is called, the plan differs from that for a
//! harmless word only in the word itself.

use serde_json::{Value, json};

use converger_core::testing::HOSTILE_TEXTS;

use crate::{body_json, describe_verdict, desired_guest, observed_row, world_of};

const HARMLESS: &str = "harmless";

/// Members of a row that contain this word.
type RowWithWord = fn(&str) -> Value;

/// Where untrusted words can occur. The guest is pinned, so that its name need not be declared.
const WORD_PLACES: [(&str, RowWithWord); 6] = [
    ("name", |word| json!({ "name": word })),
    ("description", |word| json!({ "config": { "cores": 2, "description": format!("{word}.") } })),
    ("source", |word| json!({ "source": word })),
    ("digest", |word| json!({ "digest": word })),
    ("lock", |word| json!({ "lock": word })),
    ("pending", |word| json!({ "pending": [{ "key": word }] })),
];

/// Declarations that lead to every kind of verdict.
fn desired_variants() -> [Value; 4] {
    let pinned = |more: Value| {
        let guest =
            desired_guest(100, "", crate::merge_members(json!({ "identity": { "uuid": "1c0d6f6e-5a0e-4a55-9d3c-2f9a3c7b1e10" } }), more));
        crate::remove_member(guest, "name")
    };
    [
        pinned(json!({})),
        pinned(json!({ "state": "stopped", "config": { "cores": 4 } })),
        pinned(json!({ "config": { "description": "ours", "tags": ["web"] } })),
        pinned(json!({ "config": { "cores": 4, "description": null }, "restart": "when-needed" })),
    ]
}

/// The plan with every occurrence of `word` replaced, and without digests, which cover the words.
fn replace_word(value: &Value, word: &str) -> Value {
    match value {
        Value::String(text) if text.starts_with("sha256:") && text.len() == 71 => json!("digest"),
        Value::String(text) => json!(text.replace(word, "WORD")),
        Value::Array(list) => list.iter().map(|item| replace_word(item, word)).collect(),
        Value::Object(map) => map.iter().map(|(key, member)| (key.clone(), replace_word(member, word))).collect(),
        other => other.clone(),
    }
}

#[test]
fn g16_foreign_text_does_not_influence_the_plan() {
    let neighbour = desired_guest(101, "web", json!({ "state": "running" }));
    let neighbours_row = observed_row(101, "web", "stopped", json!({}));
    for (member, seen) in WORD_PLACES {
        for declared in desired_variants() {
            let planned = |word: &str| {
                body_json(&world_of(json!([declared, neighbour]), json!([observed_row(100, "web", "running", seen(word)), neighbours_row])))
            };
            let expected = replace_word(&planned(HARMLESS), HARMLESS);
            for word in HOSTILE_TEXTS {
                assert_eq!(replace_word(&planned(word), word), expected, "{word:?} as {member}, {declared}");
            }
        }
    }
}

#[test]
fn g16_foreign_text_in_foreign_rows_does_not_influence_the_plan() {
    let declared = json!([desired_guest(100, "web", json!({ "state": "running" }))]);
    let own = observed_row(100, "web", "stopped", json!({}));
    let expected = body_json(&world_of(declared.clone(), json!([own])));
    for word in HOSTILE_TEXTS {
        for (_, seen) in WORD_PLACES {
            let foreign = observed_row(200, "theirs", "running", seen(word));
            assert_eq!(body_json(&world_of(declared.clone(), json!([own, foreign]))), expected, "{word:?}");
        }
    }
}

#[test]
fn g16_lookalike_words_are_different_words() {
    let stop = desired_guest(100, "web", json!({ "state": "stopped" }));
    // A malformed tag may hide one that protects, so the observation is rejected.
    for tag in ["prod\u{200b}", "рrod", "prod ", " prod", "prod;web", "web,converger-hold", "converger-hold\u{0}", "ＰＲＯＤ", ""] {
        let world = world_of(json!([stop]), json!([observed_row(100, "web", "running", json!({ "tags": [tag] }))]));
        assert!(world.parse().is_err(), "{tag:?}");
    }
    let blank = crate::remove_member(desired_guest(100, "", json!({ "state": "stopped", "identity": { "uuid": "u" } })), "name");
    let world = world_of(json!([blank]), json!([observed_row(100, " PROD-db", "running", json!({ "identity": { "uuid": "u" } }))]));
    assert_eq!(describe_verdict(&world, 100), "refused: protected-guest");
    for name in ["web\u{0}", "web ", "Web", "wеb", "web\n"] {
        let world = world_of(json!([stop]), json!([observed_row(100, name, "running", json!({}))]));
        assert_eq!(describe_verdict(&world, 100), "refused: name-mismatch", "{name:?}");
    }
}

#[test]
fn g16_hostile_names_cannot_be_declared() {
    use converger_core::desired::parse;
    use converger_core::document::Notation;
    for word in HOSTILE_TEXTS {
        let world = world_of(json!([desired_guest(100, word, json!({}))]), json!([]));
        let faults = parse(world.desired_json().as_bytes(), Notation::Json).expect_err(word);
        for fault in faults.list() {
            assert!(!fault.message.chars().any(char::is_control), "{fault:?}");
        }
    }
}
