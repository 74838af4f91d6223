//! Commands that read the record find the requested entries: in a state directory, in a copy, and in an export. Naming two sources at once
//! is an error.

use converger_core::evidence::{LedgerEntry, parse_entry};
use serde_json::Value;

use crate::fixture::EvidenceFixture;
use crate::forge::DatabaseForger;

/// The indices of the shown entries.
#[track_caller]
fn tail_indices(fixture: &EvidenceFixture, arguments: &[&str]) -> Vec<u64> {
    let count: &[&str] = if arguments.contains(&"-n") { &[] } else { &["-n", "1000"] };
    let output = fixture.run_expecting(&[&["ledger", "tail", "--json"], count, arguments].concat(), 0);
    output.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")["index"].as_u64().expect("a place")).collect()
}

/// Like [`tail_indices`], and checks that a copy and an export show the same.
#[track_caller]
fn tail_indices_everywhere(fixture: &EvidenceFixture, arguments: &[&str]) -> Vec<u64> {
    let found = tail_indices(fixture, arguments);
    for source_arguments in [["--db", "copy"], ["--from", "export"]] {
        assert_eq!(tail_indices(fixture, &[&source_arguments[..], arguments].concat()), found, "{source_arguments:?} {arguments:?}");
    }
    found
}

#[test]
fn filters_entries_by_run_guest_kind_and_time() {
    let fixture = EvidenceFixture::with_short_history();
    fixture.export_to("export");
    fixture.copy_state_to("copy");
    let forger = DatabaseForger::open(&fixture.state_directory());
    let run = forger.text("SELECT id FROM runs ORDER BY seq DESC LIMIT 1");
    let entries: Vec<LedgerEntry> = forger.entries().iter().map(|bytes| parse_entry(bytes).expect("an entry")).collect();
    let all = |is_meant: &dyn Fn(&LedgerEntry) -> bool| -> Vec<u64> {
        (0..).zip(&entries).filter(|(_, entry)| is_meant(entry)).map(|(index, _)| index).collect()
    };
    for kind in ["hold", "intent", "outcome", "refusal", "key"] {
        assert_eq!(tail_indices_everywhere(&fixture, &["--kind", kind]), all(&|entry| entry.kind() == kind), "{kind}");
    }
    // All entries that name the run, and those of its operations, whose ids begin with the run id.
    let of_run = all(&|entry| String::from_utf8_lossy(&converger_core::evidence::write_entry(entry).expect("written")).contains(&run));
    assert!(of_run.len() > 10, "{of_run:?}");
    assert_eq!(tail_indices_everywhere(&fixture, &["--run", &run]), of_run);
    let held = tail_indices_everywhere(&fixture, &["--guest", "103"]);
    assert_eq!(held, all(&|entry| matches!(entry.kind(), "hold" | "release")));
    let of_guest = tail_indices_everywhere(&fixture, &["--guest", "101", "--run", &run]);
    let kinds: Vec<&str> = of_guest.iter().map(|index| entries[usize::try_from(*index).expect("small")].kind()).collect();
    assert_eq!(kinds, ["intent", "sending", "task", "outcome"]);
    assert_eq!(tail_indices_everywhere(&fixture, &["--guest", "101", "--kind", "hold"]), Vec::<u64>::new());
    assert_eq!(tail_indices_everywhere(&fixture, &["--since", "1d"]), all(&|_| true));
    assert_eq!(tail_indices_everywhere(&fixture, &["--since", "0d"]), Vec::<u64>::new());
    // The filter applies before `-n`.
    let outcomes = all(&|entry| entry.kind() == "outcome");
    assert_eq!(tail_indices(&fixture, &["--kind", "outcome", "-n", "1"]), outcomes[outcomes.len() - 1..]);
    assert_eq!(fixture.run_expecting(&["ledger", "tail", "--guest", "999"], 0), "no entries\n");
    for wrong in [&["--kind", "nonsense"][..], &["--run", "a b"], &["--guest", "x"], &["--since", "tomorrow"]] {
        fixture.check_fails(&[&["ledger", "tail"], wrong].concat(), 2, "error[usage-wrong]");
    }
}

#[test]
fn reading_commands_accept_one_copy_or_export() {
    let fixture = EvidenceFixture::with_short_history();
    let key = fixture.key();
    fixture.export_to("export");
    fixture.copy_state_to("copy");
    let run = DatabaseForger::open(&fixture.state_directory()).text("SELECT id FROM runs ORDER BY seq DESC LIMIT 1");
    let reading: [&[&str]; 6] = [
        &["ledger", "tail"],
        &["ledger", "show", "0"],
        &["reproduce", &run],
        &["explain", &run],
        &["diff", &run, &run, "--json"],
        &["backtest", "--config", "converger.toml"],
    ];
    for arguments in reading {
        let with = |more: &[&str]| fixture.run_expecting(&[arguments, more].concat(), 0);
        let own = with(&[]);
        assert_eq!(with(&["--db", "copy"]), own, "{arguments:?}");
        assert_eq!(with(&["--from", "export", "--key", &key]), own, "{arguments:?}");
        fixture.check_fails(&[arguments, &["--db", "copy", "--from", "export"]].concat(), 2, "error[usage-wrong]");
        fixture.check_fails(&[arguments, &["--db", "none"]].concat(), 2, "there is no ledger in none");
        let config = if arguments[0] == "backtest" { "--state" } else { "--config" };
        for option in ["--db", "--from"] {
            fixture.check_fails(&[arguments, &[option, "copy", config, "converger.toml"]].concat(), 2, "error[usage-wrong]");
        }
    }
    fixture.check_fails(&["verify", "--db", "copy", "--config", "converger.toml"], 2, "error[usage-wrong]");
    fixture.check_fails(&["verify", "export", "--config", "converger.toml"], 2, "error[usage-wrong]");
    fixture.run_expecting(&["verify", "--db", "copy"], 0);
    fixture.run_expecting(&["verify", "--config", "converger.toml"], 0);
}

#[test]
fn explains_a_run_with_approvals_and_outcome() {
    let fixture = EvidenceFixture::with_short_history();
    let forger = DatabaseForger::open(&fixture.state_directory());
    let [refused, done] = ["ASC", "DESC"].map(|order| forger.text(&format!("SELECT id FROM runs ORDER BY seq {order} LIMIT 1")));
    let output = fixture.run_expecting(&["explain", &done], 0);
    for expected in [
        "~ 101 qemu web-1\n".to_owned(),
        format!("run {done}\n"),
        "  admission: admitted in entry ".to_owned(),
        ", approved by ".to_owned(),
        format!("  {done}-0  101 qemu web-1  start  done\n"),
        format!("  {done}-1  102 qemu web-2  start  done\n"),
    ] {
        assert!(output.contains(&expected), "`{expected}`: {output}");
    }
    let output = fixture.run_expecting(&["explain", &refused], 0);
    assert!(output.contains("  admission: refused in entry ") && output.ends_with("  no operation was started\n"), "{output}");
    let json = |run: &str| serde_json::from_str::<Value>(&fixture.run_expecting(&["explain", run, "--json"], 0)).expect("JSON");
    let report = json(&done);
    assert_eq!((&report["run"], &report["plan"]["schema"]), (&done.clone().into(), &"converger.plan/1".into()), "{report}");
    assert_eq!(report["admissions"][0]["answer"], "admitted", "{report}");
    let operation_ids: Vec<&Value> =
        report["operations"].as_array().expect("a list").iter().map(|history| &history["operation"]["id"]).collect();
    assert_eq!(operation_ids, [&Value::from(format!("{done}-0")), &format!("{done}-1").into()], "{report}");
    let report = json(&refused);
    assert_eq!((&report["admissions"][0]["answer"], &report["operations"]), (&"refused".into(), &Value::Array(Vec::new())), "{report}");
}

#[test]
fn approval_of_another_plan_is_not_shown_for_this_one() {
    let fixture = EvidenceFixture::with_short_history();
    let other = format!("sha256:{}", "0".repeat(64));
    // Nothing is left to do by now, so no approval is needed.
    fixture.run_expecting(&["apply", "desired.yaml", "--confirm", &other], 0);
    let run = DatabaseForger::open(&fixture.state_directory()).text("SELECT id FROM runs ORDER BY seq DESC LIMIT 1");
    let output = fixture.run_expecting(&["explain", &run], 0);
    let short = &other[.."sha256:".len() + 12];
    assert!(output.contains(&format!(" approved another proposal (digest, {short})")) && !output.contains("approved by"), "{output}");
    let json: Value = serde_json::from_str(&fixture.run_expecting(&["explain", &run, "--json"], 0)).expect("JSON");
    assert_eq!(json["admissions"][0]["approvals"][0]["proposal"], other, "{json}");
}

/// A request that was applied, one that was refused, and a plan that was only kept: each is found by its run and by the digest that commands show.
#[test]
fn requests_are_explained_reproduced_compared_and_proven() {
    let fixture = EvidenceFixture::with_short_history();
    let applied = fixture.apply_action(&["vm.snapshot.create", "vm/101", "name=pre"]);
    let run_of = |output: &str| serde_json::from_str::<Value>(output).expect("JSON")["run"].as_str().expect("a run").to_owned();
    let refused = run_of(&fixture.run_expecting(&["action", "vm.snapshot.create", "vm/101", "name=PRE", "--json"], 3));
    let unsigned = run_of(&fixture.run_expecting(&["action", "vm.snapshot.delete", "vm/101", "name=pre", "--json"], 3));
    let kept = fixture.run(&["action", "vm.disk.grow", "vm/101", "disk=scsi9", "size=8GiB", "--plan", "--record"]);
    assert!(kept.code == Some(3) && kept.err.contains("recorded the plan as run "), "{kept:?}");
    let kept = DatabaseForger::open(&fixture.state_directory()).text("SELECT id FROM runs ORDER BY seq DESC LIMIT 1");
    for (run, expected) in [
        (&applied, "  admission: admitted in entry "),
        (&refused, "snapshot-exists: "),
        (&unsigned, "  refused: approval-missing\n"),
        (&kept, "  admission: none, the run ended before it\n"),
    ] {
        let explained = fixture.run_expecting(&["explain", run], 0);
        assert!(explained.contains(expected), "`{expected}`: {explained}");
        let reproduced = fixture.run_expecting(&["reproduce", run], 0);
        assert!(reproduced.starts_with("reproduced: the same inputs give the same decision, byte for byte\n"), "{reproduced}");
    }
    fixture.run_expecting(&["diff", &applied, &refused], 4);
    fixture.run_expecting(&["verify"], 0);
    let key = fixture.key();
    for what in [format!("{applied}-0"), kept] {
        fixture.run_expecting(&["ledger", "prove", &what, "--out", "receipt.txt", "--overwrite"], 0);
        fixture.run_expecting(&["verify", "receipt.txt", "--key", &key], 0);
    }
}

#[test]
fn explains_a_refusal_by_its_entry() {
    let fixture = EvidenceFixture::with_short_history();
    let tail = fixture.run_expecting(&["ledger", "tail", "--kind", "refusal", "--json"], 0);
    let last: Value = serde_json::from_str(tail.lines().last().expect("a refusal")).expect("JSON");
    let index = last["index"].to_string();
    let output = fixture.run_expecting(&["explain", &index], 0);
    let member_text = |key: &str| last["entry"]["what"][key].as_str().expect("a word").to_owned();
    let (code, run) = (member_text("code"), member_text("run"));
    assert!(output.starts_with(&format!("{code}: ")) && output.contains("  remedy: "), "{output}");
    for expected in
        [format!("  run      {run} in lab at "), format!("  entry    {index}\n"), format!("  more     converger explain {code}\n")]
    {
        assert!(output.contains(&expected), "`{expected}`: {output}");
    }
    let output_of = |command: &[&str]| fixture.run_expecting(&[command, &[index.as_str(), "--json"]].concat(), 0);
    assert_eq!(output_of(&["explain"]), output_of(&["ledger", "show"]));
    fixture.check_fails(&["explain", "0"], 2, "entry 0 is not a refusal but `binding`");
    fixture.check_fails(&["explain", "999999"], 2, "there is no code, plan, run, operation or entry `999999`");
}

#[test]
fn diff_of_two_plans_has_a_json_form() {
    let fixture = EvidenceFixture::with_short_history();
    fixture.run_expecting(&["apply", "missing.yaml"], 3);
    let forger = DatabaseForger::open(&fixture.state_directory());
    let [first, last] = ["ASC", "DESC"].map(|order| forger.text(&format!("SELECT id FROM runs ORDER BY seq {order} LIMIT 1")));
    let same: Value = serde_json::from_str(&fixture.run_expecting(&["diff", &first, &first, "--json"], 0)).expect("JSON");
    assert_eq!((&same["same"], &same["differences"]), (&true.into(), &Value::Array(Vec::new())), "{same}");
    let other: Value = serde_json::from_str(&fixture.run_expecting(&["diff", &first, &last, "--json"], 4)).expect("JSON");
    assert_eq!((&other["same"], &other["one"]["run"], &other["other"]["run"]), (&false.into(), &first.into(), &last.into()), "{other}");
    assert!(other["differences"].as_array().is_some_and(|list| list.len() > 100), "{other}");
}
