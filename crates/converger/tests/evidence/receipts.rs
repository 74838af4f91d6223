//! Receipts of operations: what a receipt proves by itself, and all ways to tamper with one.

use converger_core::evidence::parse_entry;
use converger_ledger::{ProvenEntry, ReceiptBundle};
use serde_json::Value;

use crate::export::foreign_signer;
use crate::fixture::EvidenceFixture;
use crate::forge::DatabaseForger;

/// A fixture in which two guests were started, its key, and the receipts of both operations.
fn fixture_with_receipts() -> (EvidenceFixture, String, [ReceiptBundle; 2]) {
    let fixture = EvidenceFixture::with_short_history();
    let key = fixture.key();
    let ids = ["ASC", "DESC"].map(|order| {
        DatabaseForger::open(&fixture.state_directory()).text(&format!("SELECT id FROM operations ORDER BY seq {order} LIMIT 1"))
    });
    let sheaves = ids.map(|id| ReceiptBundle::parse(&fixture.run_expecting(&["ledger", "prove", &id], 0)).expect("a receipt"));
    (fixture, key, sheaves)
}

fn entry_kind(proven: &ProvenEntry) -> &'static str {
    parse_entry(&proven.entry).expect("an entry").kind()
}

/// Checks that a receipt proves nothing, for this reason.
#[track_caller]
fn check_refused(fixture: &EvidenceFixture, key: &str, what: &str, bundle: &ReceiptBundle, expected: &str) {
    fixture.apply_fixture.write_private("receipt.txt", &bundle.to_text());
    let output = fixture.run(&["verify", "receipt.txt", "--key", key]);
    assert_eq!((output.code, output.out.as_str()), (Some(6), ""), "{what}: {output:?}");
    assert!(output.err.contains(expected), "{what} must be told as `{expected}`: {output:?}");
}

#[test]
fn operation_receipt_shows_the_operation_and_its_admission() {
    let (fixture, key, [bundle, _]) = fixture_with_receipts();
    let kinds: Vec<&str> = bundle.entries.iter().map(entry_kind).collect();
    assert_eq!(kinds, ["run-started", "plan", "approval", "admission", "intent", "sending", "task", "outcome"]);
    let (run, id, plan) = {
        let intent = parse_entry(&bundle.entries[4].entry).expect("an entry");
        let converger_core::evidence::LedgerEntry::Record(converger_core::apply::JournalRecord::Intent { operation, .. }) = intent else {
            panic!("an intent")
        };
        (operation.run.as_str().to_owned(), operation.id.as_str().to_owned(), operation.plan.to_string())
    };
    fixture.apply_fixture.write_private("receipt.txt", &bundle.to_text());
    // Verification needs nothing of the state directory.
    std::fs::remove_dir_all(fixture.state_directory()).expect("removed");
    let output = fixture.run_expecting(&["verify", "receipt.txt", "--key", &key], 0);
    for expected in [
        "receipt.txt proves one operation with 8 entries of converger-",
        &format!("{id}  101 qemu web-1  start  done"),
        &format!("run        {run}"),
        &format!("plan       {}\n", &plan[.."sha256:".len() + 12]),
        "ended      done at ",
        "decision   requested in `lab` by ",
        "admission  admitted in entry ",
        "approved   by ",
        "note   a receipt proves its own entries: only an export shows whether the ledger has more about this operation",
    ] {
        assert!(output.contains(expected), "`{expected}`: {output}");
    }
    let json: Value = serde_json::from_str(&fixture.run_expecting(&["verify", "receipt.txt", "--key", &key, "--json"], 0)).expect("JSON");
    assert_eq!(json["proven"]["history"]["operation"]["guest"]["vmid"], 101, "{json}");
    assert_eq!(json["proven"]["history"]["ended"]["outcome"]["end"], "done", "{json}");
    assert_eq!(json["proven"]["entries"].as_array().map(Vec::len), Some(8), "{json}");
    assert_eq!(json["proven"]["admissions"][0]["approvals"].as_array().map(Vec::len), Some(1), "{json}");
}

/// A missing required entry is detected; a missing optional one is not, and the receipt says so.
#[test]
fn receipt_without_a_required_entry_is_refused() {
    let (fixture, key, [bundle, _]) = fixture_with_receipts();
    let expected = |kind: &str| match kind {
        "run-started" => "error[integrity-violation]: receipt.txt proves no operation: entry 12 is out of place: it is about the run ",
        "plan" => "error[integrity-violation]: receipt.txt proves no operation: entry 14, the admission of the run ",
        "approval" => "the approvals in its bundle are not those before it in the ledger",
        "admission" => "error[evidence-missing]: receipt.txt proves no operation: no entry before it admits the plan of the operation ",
        "intent" => "which has no intent before it",
        "outcome" => "error[evidence-missing]: receipt.txt proves no operation: no entry says how the operation ",
        _ => "",
    };
    for at in 0..bundle.entries.len() {
        let mut left = bundle.clone();
        let kind = entry_kind(&left.entries.remove(at));
        match expected(kind) {
            "" => {
                fixture.apply_fixture.write_private("receipt.txt", &left.to_text());
                let output = fixture.run_expecting(&["verify", "receipt.txt", "--key", &key], 0);
                assert!(output.contains("note   a receipt proves its own entries"), "{kind}: {output}");
            }
            words => check_refused(&fixture, &key, kind, &left, words),
        }
    }
    let mut stripped = bundle.clone();
    stripped.attachments.clear();
    check_refused(
        &fixture,
        &key,
        "no bundle",
        &stripped,
        "error[evidence-missing]: receipt.txt proves no operation: entry 14, the admission of the run ",
    );
    stripped.entries.truncate(4);
    stripped.attachments = bundle.attachments;
    check_refused(
        &fixture,
        &key,
        "no operation",
        &stripped,
        "error[evidence-missing]: receipt.txt proves no operation: it proves no operation",
    );
}

#[test]
fn receipt_with_a_changed_moved_or_foreign_entry_is_refused() {
    let (fixture, key, [bundle, later]) = fixture_with_receipts();
    for at in 0..bundle.entries.len() {
        let mut changed = bundle.clone();
        let (index, last) = (changed.entries[at].index, changed.entries[at].entry.len() - 1);
        changed.entries[at].entry[last] ^= 1;
        check_refused(&fixture, &key, "altered", &changed, &format!("receipt.txt proves nothing: entry {index}: "));
        let mut shifted_bundle = bundle.clone();
        shifted_bundle.entries[at].index += 1;
        check_refused(&fixture, &key, "elsewhere", &shifted_bundle, &format!("receipt.txt proves nothing: entry {}: ", index + 1));
    }
    let mut swapped = bundle.clone();
    swapped.entries.swap(2, 3);
    check_refused(&fixture, &key, "swapped", &swapped, "receipt.txt proves nothing: entry 13 is not in the order of the log");
    let mut repeated_bundle = bundle.clone();
    repeated_bundle.entries.push(repeated_bundle.entries[7].clone());
    check_refused(&fixture, &key, "twice", &repeated_bundle, "is not in the order of the log");
    let mut changed_bundle = bundle.clone();
    changed_bundle.attachments[0].push(b' ');
    check_refused(&fixture, &key, "another bundle", &changed_bundle, "error[evidence-missing]: ");
    changed_bundle.attachments[0].pop();
    changed_bundle.attachments.push(b"more".to_vec());
    check_refused(&fixture, &key, "something along", &changed_bundle, "which no entry names");
    // The outcome of another operation, and one operation more.
    let mut exchanged = bundle.clone();
    exchanged.entries[7] = later.entries[7].clone();
    check_refused(&fixture, &key, "another's outcome", &exchanged, "does not belong to the operation that is proven");
    let mut more = bundle.clone();
    more.entries.extend(later.entries[4..].to_vec());
    check_refused(&fixture, &key, "another operation", &more, "does not belong to the operation that is proven");
    // Another log, complete and signed; and another log with the checkpoint of this one.
    let (_, _, [foreign_bundle, _]) = self::fixture_with_receipts();
    check_refused(&fixture, &key, "another log", &foreign_bundle, "receipt.txt proves nothing: ");
    let mixed = ReceiptBundle { checkpoint: bundle.checkpoint.clone(), ..foreign_bundle };
    check_refused(&fixture, &key, "another log below", &mixed, "receipt.txt proves nothing: entry ");
    check_refused(&fixture, &foreign_signer().verifier().to_string(), "another key", &bundle, "receipt.txt proves nothing: ");
    check_refused(&fixture, &key, "nothing", &ReceiptBundle { entries: Vec::new(), ..bundle }, "receipt.txt: this is not a receipt");
}

/// A line that adds no proof is a change.
#[test]
fn rejects_a_repeated_line_in_a_receipt() {
    let (fixture, key, [bundle, _]) = fixture_with_receipts();
    let mut changed_bundle = bundle.clone();
    changed_bundle.attachments.push(changed_bundle.attachments[0].clone());
    check_refused(&fixture, &key, "given along twice", &changed_bundle, "receipt.txt: line 3 is a duplicate");
    let mut signed = bundle.clone();
    let signature = signed.checkpoint.lines().last().expect("a signature").to_owned();
    signed.checkpoint = format!("{}{signature}\n", signed.checkpoint);
    check_refused(&fixture, &key, "signed twice", &signed, " is a duplicate");
    let entry = fixture.run_expecting(&["ledger", "prove", "0"], 0);
    fixture.apply_fixture.write_private("receipt.txt", &format!("{entry}{}\n", entry.lines().last().expect("a signature")));
    fixture.check_broken(&["verify", "receipt.txt", "--key", &key], " is a duplicate");
}

#[test]
fn reports_changed_line_endings() {
    let (fixture, key, [bundle, _]) = fixture_with_receipts();
    for text in [bundle.to_text(), fixture.run_expecting(&["ledger", "prove", "0"], 0)] {
        fixture.apply_fixture.write_private("receipt.txt", &text.replace('\n', "\r\n"));
        fixture.check_broken(&["verify", "receipt.txt", "--key", &key], "receipt.txt: its line endings were changed");
    }
    let export = fixture.export_to("given");
    let checkpoint = std::fs::read_to_string(export.join("checkpoint")).expect("there");
    std::fs::write(export.join("checkpoint"), checkpoint.replace('\n', "\r\n")).expect("written");
    fixture.check_broken(&["verify", "given", "--key", &key], "checkpoint: its line endings were changed");
}

#[test]
fn rejects_the_receipt_of_another_operation() {
    let (fixture, key, [bundle, _]) = fixture_with_receipts();
    let ids = ["ASC", "DESC"].map(|order| {
        DatabaseForger::open(&fixture.state_directory()).text(&format!("SELECT id FROM operations ORDER BY seq {order} LIMIT 1"))
    });
    fixture.apply_fixture.write_private("receipt.txt", &bundle.to_text());
    let about = |id: &str| ["verify", "receipt.txt", "--key", &key, "--operation", id].map(str::to_owned);
    let join_arguments = |arguments: &[String]| arguments.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let run = |command_line: &str| fixture.run(&command_line.split(' ').collect::<Vec<_>>());
    assert_eq!(run(&join_arguments(&about(&ids[0]))).code, Some(0));
    let output = run(&join_arguments(&about(&ids[1])));
    assert_eq!((output.code, output.out.as_str()), (Some(6), ""), "{output:?}");
    let expected_error =
        format!("error[evidence-missing]: receipt.txt does not prove the operation {}: it is about the operation {}", ids[1], ids[0]);
    assert!(output.err.contains(&expected_error), "{output:?}");
    // A single entry of the operation, and one of another operation.
    for (index, code) in [(bundle.entries[7].index, 0), (0, 6)] {
        fixture.apply_fixture.write_private("receipt.txt", &fixture.run_expecting(&["ledger", "prove", &index.to_string()], 0));
        assert_eq!(run(&join_arguments(&about(&ids[0]))).code, Some(code), "entry {index}");
    }
    fixture.check_fails(&["verify", "--operation", &ids[0]], 2, "--operation");
    fixture.export_to("given");
    fixture.check_fails(&["verify", "given", "--operation", &ids[0]], 2, "--operation is for receipts");
}
