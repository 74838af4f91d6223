//! Commands that verify, read or export during an apply find a complete record and do not disturb the apply.

use std::fs;

use converger_lab::server::ClockMode;
use serde_json::Value;

use crate::export_files::ExportFiles;
use crate::fixture::CommandOutput;
use crate::oracle::{AcceptedLog, accept_export, check_extends};
use crate::stage::{ApplyFixture, STARTS};

fn run(fixture: &ApplyFixture, arguments: &[&str]) -> CommandOutput {
    fixture.converger(arguments).output().expect("it starts").into()
}

#[track_caller]
fn run_ok(fixture: &ApplyFixture, arguments: &[&str]) -> String {
    let output = run(fixture, arguments);
    assert_eq!(output.code, Some(0), "{arguments:?}: {output:?}");
    output.out
}

/// The kinds of all entries in order, from a tail that is longer than the ledger.
fn entry_kinds(fixture: &ApplyFixture) -> Vec<String> {
    let lines = run_ok(fixture, &["ledger", "tail", "-n", "1000000", "--json"]);
    let entries: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (index, entry) in entries.iter().enumerate() {
        assert_eq!(entry["index"], index, "no entry is left out");
    }
    entries.iter().map(|entry| entry["entry"]["kind"].as_str().expect("a kind").to_owned()).collect()
}

/// Checks everything that can be read at this moment: complete, and an extension of the record before.
#[track_caller]
fn check_record(fixture: &ApplyFixture, before: Option<&AcceptedLog>) -> AcceptedLog {
    let verified = run_ok(fixture, &["verify", "--json"]);
    let verified: Value = serde_json::from_str(&verified).expect("JSON");
    assert_eq!(verified["whole"], true);
    run_ok(fixture, &["ledger", "export", "export"]);
    let key = run_ok(fixture, &["ledger", "key"]);
    let files = ExportFiles::read(&fixture.path("export"));
    let accepted = accept_export(&files, key.trim_end()).expect("strangers accept it");
    run_ok(fixture, &["verify", "export"]);
    run_ok(fixture, &["ledger", "checkpoint"]);
    run_ok(fixture, &["ledger", "prove", "0"]);
    if let Some(before) = before {
        check_extends(before, &accepted, &files).expect("it only grows");
    }
    accepted
}

#[test]
fn reading_during_an_apply_finds_a_whole_record_and_does_not_disturb_it() {
    let mut fixture = ApplyFixture::new(STARTS);
    let mut apply = fixture.start_apply();
    apply.wait_for("101 qemu web-1 start: sent");
    let first = check_record(&fixture, None);
    let seen = entry_kinds(&fixture);
    assert_eq!(seen[..3], ["binding", "run-started", "plan"], "{seen:?}");
    assert!(seen.iter().any(|kind| kind == "sending") && !seen.iter().any(|kind| kind == "outcome"), "{seen:?}");
    fixture.finish_tasks();
    apply.wait_for("102 qemu web-2 start: sent");
    let second = check_record(&fixture, Some(&first));
    assert_eq!(entry_kinds(&fixture).iter().filter(|kind| *kind == "outcome").count(), 1);
    fixture.finish_tasks();
    let (code, output) = apply.wait_for_end();
    assert_eq!(code, Some(0), "{output}");
    assert_eq!(
        (fixture.take_sent(), fixture.result_steps()),
        (vec!["101 start".to_owned(), "102 start".to_owned()], vec!["101 done".to_owned(), "102 done".to_owned()])
    );
    let last = check_record(&fixture, Some(&second));
    assert!(first.size < second.size && second.size < last.size);
    assert_eq!(entry_kinds(&fixture).last().map(String::as_str), Some("run-ended"));
}

const GUESTS: u32 = 40;

fn world_and_desired() -> (String, String) {
    let guests = 200..200 + GUESTS;
    let world_guests: String =
        guests.clone().map(|vmid| format!("  - {{ vmid: {vmid}, kind: qemu, node: pve{}, name: web-{vmid} }}\n", 1 + vmid % 3)).collect();
    let wanted: String = guests.map(|vmid| format!("  - {{ vmid: {vmid}, kind: qemu, name: web-{vmid}, state: running }}\n")).collect();
    let head = "flavour: 9\ncluster: lab\nnodes: { pve1: {}, pve2: {}, pve3: {} }\ntokens: { 'root@pam!lab': { secret: 0c4ca4a2-5ec2-4e70-8000-00000000c0de, full: true } }\n";
    (format!("{head}guests:\n{world_guests}"), format!("version: 1\nenvironment: lab\nguests:\n{wanted}"))
}

/// As often as possible while many guests are started, at arbitrary points of the apply.
#[test]
fn repeated_reading_during_many_starts_finds_a_whole_record() {
    let (world, desired) = world_and_desired();
    let mut fixture = ApplyFixture::with_world(&world, &desired, ClockMode::Virtual { step_ms: 20 }, None);
    let config = fs::read_to_string(fixture.path("converger.toml")).expect("there");
    fixture.write_private("converger.toml", &format!("{config}[limits]\nguests = {GUESTS}\npercent = 100\n"));
    run_ok(&fixture, &["hold", "lab", "999", "--offline", "--reason", "so that there is a ledger"]);
    let arguments = fixture.confirm_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let open_output = || fs::File::options().create(true).append(true).open(fixture.path("said")).expect("a file");
    let mut apply = fixture.converger(&arguments).stdout(open_output()).stderr(open_output()).spawn().expect("it starts");
    let (mut read_count, mut before) = (0, None);
    while apply.try_wait().expect("a child").is_none() {
        before = Some(check_record(&fixture, before.as_ref()));
        assert!(entry_kinds(&fixture).len() as u64 >= before.as_ref().map_or(0, |seen: &AcceptedLog| seen.size));
        read_count += 1;
    }
    let output = fs::read_to_string(fixture.path("said")).expect("text");
    assert_eq!(apply.wait().expect("it ends").code(), Some(0), "{output}");
    println!("{read_count} looks");
    let done: Vec<String> = (200..200 + GUESTS).map(|vmid| format!("{vmid} done")).collect();
    assert_eq!(fixture.result_steps(), done);
    let mut sent = fixture.take_sent();
    sent.sort();
    assert_eq!(sent, (200..200 + GUESTS).map(|vmid| format!("{vmid} start")).collect::<Vec<_>>(), "each once");
    check_record(&fixture, before.as_ref());
    assert!(read_count > 0, "the apply was over before anybody looked");
}
