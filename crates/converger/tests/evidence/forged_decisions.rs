//! Reproducing decisions of a ledger that was rewritten with all its hashes: an admission on foreign evidence, one without its approval,
//! and decisions of another planner. Also, what is still shown of decisions that cannot be reproduced.

use converger_core::artifact::Digest;
use serde_json::Value;

use crate::fixture::EvidenceFixture;
use crate::forge::DatabaseForger;

/// A fixture with a refused run and one that was carried out, and the ids of both.
fn fixture_with_two_runs() -> (EvidenceFixture, String, String) {
    let fixture = EvidenceFixture::with_short_history();
    let forger = DatabaseForger::open(&fixture.state_directory());
    let [refused, done] = ["ASC", "DESC"].map(|order| forger.text(&format!("SELECT id FROM runs ORDER BY seq {order} LIMIT 1")));
    assert_ne!(refused, done);
    (fixture, refused, done)
}

/// The text and the index of the only entry of this kind about this run.
#[track_caller]
fn find_entry(forger: &DatabaseForger, kind: &str, run: &str) -> (usize, String) {
    let entries = forger.entries().into_iter().map(|entry| String::from_utf8(entry).expect("text")).enumerate();
    let about = |text: &str| text.contains(&format!("\"kind\":\"{kind}\"")) && text.contains(run);
    let found: Vec<(usize, String)> = entries.filter(|(_, text)| about(text)).collect();
    assert_eq!(found.len(), 1, "{kind} of {run}: {found:?}");
    found.into_iter().next().expect("one")
}

/// Changes or removes the entry of this kind about this run; all hashes are recomputed.
#[track_caller]
fn forge_entry(forger: &DatabaseForger, kind: &str, run: &str, change: impl Fn(&str) -> Option<String>) {
    let ((index, old), mut entries) = (find_entry(forger, kind, run), forger.entries());
    match change(&old) {
        Some(new) => {
            assert_ne!(new, old, "{kind} of {run}: nothing is changed");
            entries[index] = new.into_bytes();
        }
        None => drop(entries.remove(index)),
    }
    forger.rewrite(&entries);
}

fn bundle_digest(entry: &str) -> String {
    let entry: Value = serde_json::from_str(entry).expect("JSON");
    entry["what"]["bundle"].as_str().expect("a digest").to_owned()
}

fn insert_blob(forger: &DatabaseForger, body: &str) -> String {
    let digest = Digest::of_bytes(body.as_bytes()).to_string();
    forger.run(&format!("INSERT INTO blobs VALUES ('{digest}', CAST('{}' AS BLOB))", body.replace('\'', "''")));
    digest
}

/// Forges the state, checks that `reproduce` of a run detects it with these words, and restores the state.
#[track_caller]
fn check_reproduce_fails(fixture: &EvidenceFixture, run: &str, expected: &str, change: impl FnOnce(&DatabaseForger)) {
    let whole = fixture.copy_state_to("whole");
    change(&DatabaseForger::open(&fixture.state_directory()));
    fixture.check_broken(&["reproduce", run], expected);
    fixture.restore_state(&whole);
    std::fs::remove_dir_all(whole).expect("removed");
}

#[test]
fn detects_an_admission_on_foreign_evidence() {
    let (fixture, refused, done) = fixture_with_two_runs();
    let wrong = format!("the admission of the run {done}: ");
    let other = format!("{wrong}its bundle is for another decision");
    check_reproduce_fails(
        &fixture,
        &done,
        &format!("error[integrity-violation]: entry {}, {other}", admission_index(&fixture, &done)),
        |forger| {
            let other_bundle_digest = bundle_digest(&find_entry(forger, "admission", &refused).1);
            forge_entry(forger, "admission", &done, |text| Some(text.replace(&bundle_digest(text), &other_bundle_digest)));
        },
    );
    let rubbish = format!("{wrong}its bundle is not valid");
    check_reproduce_fails(&fixture, &done, &rubbish, |forger| {
        let digest = insert_blob(forger, "{\"schema\":\"converger.bundle/2\"}");
        forge_entry(forger, "admission", &done, |text| Some(text.replace(&bundle_digest(text), &digest)));
    });
    let missing = format!("error[evidence-missing]: entry {}, {wrong}the bundle sha256:", admission_index(&fixture, &done));
    check_reproduce_fails(&fixture, &done, &missing, |forger| {
        let none = Digest::of_bytes(b"none").to_string();
        forge_entry(forger, "admission", &done, |text| Some(text.replace(&bundle_digest(text), &none)));
    });
    let plan = format!("{wrong}it is for another plan than that of the run");
    check_reproduce_fails(&fixture, &done, &plan, |forger| {
        let of = |run| {
            serde_json::from_str::<Value>(&find_entry(forger, "plan", run).1).expect("JSON")["what"]["plan"]
                .as_str()
                .expect("one")
                .to_owned()
        };
        let (own, other_digest) = (of(&done), Digest::of_bytes(b"theirs").to_string());
        forge_entry(forger, "admission", &done, |text| Some(text.replace(&own, &other_digest)));
    });
    fixture.run_expecting(&["reproduce", &done], 0);
}

fn admission_index(fixture: &EvidenceFixture, run: &str) -> usize {
    find_entry(&DatabaseForger::open(&fixture.state_directory()), "admission", run).0
}

/// The time of the admission determines the age of its observation, and the maximum age is not up to the bundle.
#[test]
fn detects_an_admission_at_another_time_or_on_an_older_reading() {
    let (fixture, _, done) = fixture_with_two_runs();
    let late = "the time in its bundle is not that of the entry";
    check_reproduce_fails(&fixture, &done, late, |forger| {
        let at = |text: &str| serde_json::from_str::<Value>(text).expect("JSON")["at_ms"].as_u64().expect("a time");
        forge_entry(forger, "admission", &done, |text| Some(text.replace(&at(text).to_string(), &(at(text) + 1).to_string())));
    });
    let older = "the bundle allows an older observation than any admission does";
    check_reproduce_fails(&fixture, &done, older, |forger| {
        let named = bundle_digest(&find_entry(forger, "admission", &done).1);
        let body = forger.text(&format!("SELECT CAST(body AS TEXT) FROM blobs WHERE digest = '{named}'"));
        let other = body.replace("\"age_secs_max\":900,", "\"age_secs_max\":901,");
        assert_ne!(other, body, "nothing is changed");
        let digest = insert_blob(forger, &other);
        forge_entry(forger, "admission", &done, |text| Some(text.replace(&named, &digest)));
    });
}

#[test]
fn detects_a_changed_approval_or_answer() {
    let (fixture, refused, done) = fixture_with_two_runs();
    let unapproved = "the approvals in its bundle are not those before it in the ledger";
    check_reproduce_fails(&fixture, &done, unapproved, |forger| forge_entry(forger, "approval", &done, |_| None));
    check_reproduce_fails(&fixture, &done, unapproved, |forger| {
        let by = |text: &str| serde_json::from_str::<Value>(text).expect("JSON")["what"]["by"].as_str().expect("one").to_owned();
        forge_entry(forger, "approval", &done, |text| Some(text.replace(&by(text), "mallory")));
    });
    let answer = "its gates give `admitted`, but `refused` is recorded";
    let swapped = |text: &str, from: &str, to: &str| Some(text.replace(&format!("\"answer\":\"{from}\""), &format!("\"answer\":\"{to}\"")));
    check_reproduce_fails(&fixture, &done, answer, |forger| {
        forge_entry(forger, "admission", &done, |text| swapped(text, "admitted", "refused"))
    });
    let answer = "its gates give `refused`, but `admitted` is recorded";
    check_reproduce_fails(&fixture, &refused, answer, |forger| {
        forge_entry(forger, "admission", &refused, |text| swapped(text, "refused", "admitted"))
    });
}

/// Even an attacker who rewrites the whole record cannot add an operation that was not planned.
#[test]
fn detects_an_operation_that_its_plan_does_not_have() {
    let (fixture, _, done) = fixture_with_two_runs();
    let forger = DatabaseForger::open(&fixture.state_directory());
    let is_intent = |text: &str| text.contains("\"kind\":\"intent\"") && text.contains(&done);
    let texts: Vec<String> = forger.entries().into_iter().map(|entry| String::from_utf8(entry).expect("text")).collect();
    let at = texts.iter().position(|text| is_intent(text)).expect("an intent");
    drop(forger);
    let others: [(&str, Value); 9] = [
        ("position", 7.into()),
        ("vmid", 555.into()),
        ("change", "stop".into()),
        ("impact", "stop".into()),
        // Another guest with the same id, or the same guest without its guards.
        ("name", "web-9".into()),
        ("uuid", "00000000-0000-4000-8000-000000000000".into()),
        ("ctime", 7.into()),
        ("lock", "backup".into()),
        ("protection", true.into()),
    ];
    for (member, other) in others {
        let mut entry: Value = serde_json::from_str(&texts[at]).expect("JSON");
        let changed = replace_member(&mut entry["what"], member, &other);
        assert!(changed > 0, "{member}: {}", texts[at]);
        let mut entries: Vec<Vec<u8>> = texts.iter().map(|text| text.clone().into_bytes()).collect();
        entries[at] = entry.to_string().into_bytes();
        let whole = fixture.copy_state_to("whole");
        DatabaseForger::open(&fixture.state_directory()).rewrite(&entries);
        fixture.check_broken(&["verify"], &format!("error[unlogged-execution]: entry {at}: the operation {done}-"));
        fixture.restore_state(&whole);
        std::fs::remove_dir_all(whole).expect("removed");
    }
    fixture.run_expecting(&["verify"], 0);
}

/// Replaces the value of every member of this name; returns how many there were.
fn replace_member(value: &mut Value, member: &str, other: &Value) -> usize {
    let Value::Object(members) = value else { return 0 };
    let mut count = 0;
    for (name, value) in members {
        count += if name == member {
            usize::from(std::mem::replace(value, other.clone()) != *other)
        } else {
            replace_member(value, member, other)
        };
    }
    count
}

#[test]
fn reproduce_reports_the_admission() {
    let (fixture, refused, done) = fixture_with_two_runs();
    for (run, answer, approvals) in [(&refused, "refused", 0), (&done, "admitted", 1)] {
        let report: Value = serde_json::from_str(&fixture.run_expecting(&["reproduce", run, "--json"], 0)).expect("JSON");
        let admission = &report["admissions"][0];
        assert_eq!(admission["answer"], answer, "{report}");
        assert_eq!(admission["entry"].as_u64(), Some(admission_index(&fixture, run) as u64), "{report}");
        assert_eq!(admission["approvals"].as_array().map(Vec::len), Some(approvals), "{report}");
    }
}

#[test]
fn decision_of_another_planner_is_shown_but_not_reproduced() {
    let (fixture, _, done) = fixture_with_two_runs();
    let shown = fixture.run_expecting(&["explain", &done], 0);
    let forger = DatabaseForger::open(&fixture.state_directory());
    forge_entry(&forger, "run-started", &done, |text| Some(text.replacen("\"planner\":2", "\"planner\":4711", 1)));
    drop(forger);
    let why = format!("run {done} was decided by planner 4711 of converger ");
    fixture.check_fails(&["reproduce", &done], 1, &format!("error[other-planner]: {why}"));
    let explanation = fixture.run_expecting(&["explain", &done], 0);
    for line in ["~ 101 qemu web-1\n", "    start: declared running, observed stopped\n"] {
        assert!(shown.contains(line) && explanation.contains(line), "{line}: {shown} and {explanation}");
    }
    assert!(explanation.contains(&format!("note: shown as it was recorded; it cannot be made again: {why}")), "{explanation}");
    let json: Value = serde_json::from_str(&fixture.run_expecting(&["explain", &done, "--json"], 0)).expect("JSON");
    let plan = &json["plan"];
    assert_eq!((&plan["schema"], &plan["code"]), (&"converger.kept/1".into(), &"other-planner".into()), "{json}");
    assert_eq!(plan["body"]["guests"].as_array().map(Vec::len), Some(2), "{json}");
    let backtest_output = fixture.run(&["backtest", "--config", "converger.toml"]);
    assert_eq!(backtest_output.code, Some(1), "{backtest_output:?}");
    assert!(backtest_output.out.contains("1 run evaluated, 1 cannot be evaluated"), "{backtest_output:?}");
}

#[test]
fn decision_with_a_pruned_observation_is_still_shown() {
    let (fixture, _, done) = fixture_with_two_runs();
    fixture.run_expecting(&["ledger", "prune", "--before", "0d"], 0);
    fixture.check_fails(&["reproduce", &done], 1, "error[evidence-pruned]: ");
    let explanation = fixture.run_expecting(&["explain", &done], 0);
    assert!(
        explanation.contains("~ 101 qemu web-1\n    start: ")
            && explanation.contains(&format!("the observation of run {done} was pruned by ")),
        "{explanation}"
    );
    let export = fixture.export_to("evidence");
    let far = fixture.run_expecting(&["explain", &done, "--from", &export.display().to_string()], 0);
    assert_eq!(far, explanation, "an export tells the same");
}
