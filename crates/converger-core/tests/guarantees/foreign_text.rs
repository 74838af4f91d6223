//! G16: words of others are compared and shown, and choose nothing: whatever a guest is called or tagged, the plan differs
//! from that for a harmless word in no more than the word.

use serde_json::{Value, json};

use converger_core::testing::HOSTILE;

use crate::{guest, plan, row, scene, verdict};

const HARMLESS: &str = "harmless";

/// What a row has when a word stands in it.
type Seen = fn(&str) -> Value;

/// Where others can put words. The guest is pinned, so that its name need not be declared.
const PLACES: [(&str, Seen); 6] = [
    ("name", |word| json!({ "name": word })),
    ("description", |word| json!({ "config": { "cores": 2, "description": format!("{word}.") } })),
    ("source", |word| json!({ "source": word })),
    ("digest", |word| json!({ "digest": word })),
    ("lock", |word| json!({ "lock": word })),
    ("pending", |word| json!({ "pending": [{ "key": word }] })),
];

/// What can be declared of the guest, so that the word meets every kind of verdict.
fn declarations() -> [Value; 4] {
    let pinned = |more: Value| {
        let guest = guest(100, "", crate::merged(json!({ "identity": { "uuid": "1c0d6f6e-5a0e-4a55-9d3c-2f9a3c7b1e10" } }), more));
        crate::without(guest, "name")
    };
    [
        pinned(json!({})),
        pinned(json!({ "state": "stopped", "config": { "cores": 4 } })),
        pinned(json!({ "config": { "description": "ours", "tags": ["web"] } })),
        pinned(json!({ "config": { "cores": 4, "description": null }, "restart": "when-needed" })),
    ]
}

/// The plan with every text that holds `word` replaced, and without digests, which cover the words.
fn neutral(value: &Value, word: &str) -> Value {
    match value {
        Value::String(text) if text.starts_with("sha256:") && text.len() == 71 => json!("digest"),
        Value::String(text) => json!(text.replace(word, "WORD")),
        Value::Array(list) => list.iter().map(|item| neutral(item, word)).collect(),
        Value::Object(map) => map.iter().map(|(key, member)| (key.clone(), neutral(member, word))).collect(),
        other => other.clone(),
    }
}

#[test]
fn g16_text_of_others_chooses_nothing() {
    let neighbour = guest(101, "web", json!({ "state": "running" }));
    let neighbours_row = row(101, "web", "stopped", json!({}));
    for (place, seen) in PLACES {
        for declared in declarations() {
            let planned =
                |word: &str| plan(&scene(json!([declared, neighbour]), json!([row(100, "web", "running", seen(word)), neighbours_row])));
            let expected = neutral(&planned(HARMLESS), HARMLESS);
            for word in HOSTILE {
                assert_eq!(neutral(&planned(word), word), expected, "{word:?} as {place}, {declared}");
            }
        }
    }
}

#[test]
fn g16_words_in_rows_that_are_not_ours_choose_nothing() {
    let declared = json!([guest(100, "web", json!({ "state": "running" }))]);
    let own = row(100, "web", "stopped", json!({}));
    let expected = plan(&scene(declared.clone(), json!([own])));
    for word in HOSTILE {
        for (_, seen) in PLACES {
            let foreign = row(200, "theirs", "running", seen(word));
            assert_eq!(plan(&scene(declared.clone(), json!([own, foreign]))), expected, "{word:?}");
        }
    }
}

#[test]
fn g16_a_word_that_only_looks_like_ours_is_another_word() {
    let stop = guest(100, "web", json!({ "state": "stopped" }));
    // A tag that is not one may hide one that protects: there is no reading then.
    for tag in ["prod\u{200b}", "рrod", "prod ", " prod", "prod;web", "web,converger-hold", "converger-hold\u{0}", "ＰＲＯＤ", ""] {
        let world = scene(json!([stop]), json!([row(100, "web", "running", json!({ "tags": [tag] }))]));
        assert!(world.parse().is_err(), "{tag:?}");
    }
    let blank = crate::without(guest(100, "", json!({ "state": "stopped", "identity": { "uuid": "u" } })), "name");
    let world = scene(json!([blank]), json!([row(100, " PROD-db", "running", json!({ "identity": { "uuid": "u" } }))]));
    assert_eq!(verdict(&world, 100), "refused: protected-guest");
    for name in ["web\u{0}", "web ", "Web", "wеb", "web\n"] {
        let world = scene(json!([stop]), json!([row(100, name, "running", json!({}))]));
        assert_eq!(verdict(&world, 100), "refused: name-mismatch", "{name:?}");
    }
}

#[test]
fn g16_a_name_cannot_be_declared_that_could_be_more_than_a_name() {
    use converger_core::desired::parse;
    use converger_core::document::Notation;
    for word in HOSTILE {
        let world = scene(json!([guest(100, word, json!({}))]), json!([]));
        let faults = parse(world.desired_json().as_bytes(), Notation::Json).expect_err(word);
        for fault in faults.list() {
            assert!(!fault.message.chars().any(char::is_control), "{fault:?}");
        }
    }
}
