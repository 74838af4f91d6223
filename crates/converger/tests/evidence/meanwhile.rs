//! Whoever verifies, reads or exports while an apply is under way finds a whole record, and is not noticed by it.

use std::fs;

use converger_lab::server::Clock;
use serde_json::Value;

use crate::bed::Said;
use crate::files::Files;
use crate::oracle::{Accepted, accept, extends};
use crate::stage::{STARTS, Stage};

fn run(stage: &Stage, arguments: &[&str]) -> Said {
    stage.converger(arguments).output().expect("it starts").into()
}

#[track_caller]
fn told(stage: &Stage, arguments: &[&str]) -> String {
    let said = run(stage, arguments);
    assert_eq!(said.code, Some(0), "{arguments:?}: {said:?}");
    said.out
}

/// The kinds of all entries, in their order, by a tail that is longer than the ledger.
fn kinds(stage: &Stage) -> Vec<String> {
    let lines = told(stage, &["ledger", "tail", "-n", "1000000", "--json"]);
    let entries: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (index, entry) in entries.iter().enumerate() {
        assert_eq!(entry["index"], index, "no entry is left out");
    }
    entries.iter().map(|entry| entry["entry"]["kind"].as_str().expect("a kind").to_owned()).collect()
}

/// All that can be looked at, at this moment: whole, and an extension of what was seen before.
#[track_caller]
fn look(stage: &Stage, before: Option<&Accepted>) -> Accepted {
    let verified = told(stage, &["verify", "--json"]);
    let verified: Value = serde_json::from_str(&verified).expect("JSON");
    assert_eq!(verified["whole"], true);
    told(stage, &["ledger", "export", "export"]);
    let key = told(stage, &["ledger", "key"]);
    let files = Files::read(&stage.path("export"));
    let accepted = accept(&files, key.trim_end()).expect("strangers accept it");
    told(stage, &["verify", "export"]);
    told(stage, &["ledger", "checkpoint"]);
    told(stage, &["ledger", "prove", "0"]);
    if let Some(before) = before {
        extends(before, &accepted, &files).expect("it only grows");
    }
    accepted
}

#[test]
fn what_is_seen_of_an_apply_that_is_under_way_is_whole_and_does_not_disturb_it() {
    let mut stage = Stage::set(STARTS);
    let mut apply = stage.applying();
    apply.until("101 qemu web-1 start: sent");
    let first = look(&stage, None);
    let seen = kinds(&stage);
    assert_eq!(seen[..3], ["binding", "run-started", "plan"], "{seen:?}");
    assert!(seen.iter().any(|kind| kind == "sending") && !seen.iter().any(|kind| kind == "outcome"), "{seen:?}");
    stage.let_tasks_end();
    apply.until("102 qemu web-2 start: sent");
    let second = look(&stage, Some(&first));
    assert_eq!(kinds(&stage).iter().filter(|kind| *kind == "outcome").count(), 1);
    stage.let_tasks_end();
    let (code, said) = apply.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        (stage.sent(), stage.result()),
        (vec!["101 start".to_owned(), "102 start".to_owned()], vec!["101 done".to_owned(), "102 done".to_owned()])
    );
    let last = look(&stage, Some(&second));
    assert!(first.size < second.size && second.size < last.size);
    assert_eq!(kinds(&stage).last().map(String::as_str), Some("run-ended"));
}

const GUESTS: u32 = 40;

fn world() -> (String, String) {
    let guests = 200..200 + GUESTS;
    let there: String =
        guests.clone().map(|vmid| format!("  - {{ vmid: {vmid}, kind: qemu, node: pve{}, name: web-{vmid} }}\n", 1 + vmid % 3)).collect();
    let wanted: String = guests.map(|vmid| format!("  - {{ vmid: {vmid}, kind: qemu, name: web-{vmid}, state: running }}\n")).collect();
    let head = "flavour: 9\ncluster: lab\nnodes: { pve1: {}, pve2: {}, pve3: {} }\ntokens: { 'root@pam!lab': { secret: 0c4ca4a2-5ec2-4e70-8000-00000000c0de, full: true } }\n";
    (format!("{head}guests:\n{there}"), format!("version: 1\nenvironment: lab\nguests:\n{wanted}"))
}

/// As often as there is time while many guests are started, at whatever the apply is doing then.
#[test]
fn whoever_looks_again_and_again_while_many_guests_are_started_finds_it_whole() {
    let (world, desired) = world();
    let mut stage = Stage::of(&world, &desired, Clock::Virtual { step_ms: 20 }, None);
    let config = fs::read_to_string(stage.path("converger.toml")).expect("there");
    stage.put("converger.toml", &format!("{config}[limits]\nguests = {GUESTS}\npercent = 100\n"));
    told(&stage, &["hold", "lab", "999", "--offline", "--reason", "so that there is a ledger"]);
    let arguments = stage.confirmed();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let said = || fs::File::options().create(true).append(true).open(stage.path("said")).expect("a file");
    let mut apply = stage.converger(&arguments).stdout(said()).stderr(said()).spawn().expect("it starts");
    let (mut looks, mut before) = (0, None);
    while apply.try_wait().expect("a child").is_none() {
        before = Some(look(&stage, before.as_ref()));
        assert!(kinds(&stage).len() as u64 >= before.as_ref().map_or(0, |seen: &Accepted| seen.size));
        looks += 1;
    }
    let said = fs::read_to_string(stage.path("said")).expect("text");
    assert_eq!(apply.wait().expect("it ends").code(), Some(0), "{said}");
    println!("{looks} looks");
    let done: Vec<String> = (200..200 + GUESTS).map(|vmid| format!("{vmid} done")).collect();
    assert_eq!(stage.result(), done);
    let mut sent = stage.sent();
    sent.sort();
    assert_eq!(sent, (200..200 + GUESTS).map(|vmid| format!("{vmid} start")).collect::<Vec<_>>(), "each once");
    look(&stage, before.as_ref());
    assert!(looks > 0, "the apply was over before anybody looked");
}
