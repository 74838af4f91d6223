//! Receipts of operations: what a receipt proves by itself, and all ways to tamper with one.

use converger_core::evidence::parse_entry;
use converger_ledger::{ProvenEntry, ReceiptBundle};
use serde_json::Value;

use crate::export::foreign_signer;
use crate::fixture::EvidenceFixture;
use crate::forge::DatabaseForger;

/// A fixture in which two guests were started, its key, and the receipts of both operations.
fn fixture_with_receipts() -> (EvidenceFixture, String, [ReceiptBundle; 2]) {
    let bed = EvidenceFixture::with_short_history();
    let key = bed.key();
    let ids = ["ASC", "DESC"]
        .map(|order| DatabaseForger::open(&bed.state_directory()).text(&format!("SELECT id FROM operations ORDER BY seq {order} LIMIT 1")));
    let sheaves = ids.map(|id| ReceiptBundle::parse(&bed.run_expecting(&["ledger", "prove", &id], 0)).expect("a receipt"));
    (bed, key, sheaves)
}

fn entry_kind(proven: &ProvenEntry) -> &'static str {
    parse_entry(&proven.entry).expect("an entry").kind()
}

/// Checks that a receipt proves nothing, for this reason.
#[track_caller]
fn check_refused(bed: &EvidenceFixture, key: &str, what: &str, sheaf: &ReceiptBundle, words: &str) {
    bed.stage.write_private("receipt.txt", &sheaf.to_text());
    let said = bed.run(&["verify", "receipt.txt", "--key", key]);
    assert_eq!((said.code, said.out.as_str()), (Some(6), ""), "{what}: {said:?}");
    assert!(said.err.contains(words), "{what} must be told as `{words}`: {said:?}");
}

#[test]
fn operation_receipt_shows_the_operation_and_its_admission() {
    let (bed, key, [sheaf, _]) = fixture_with_receipts();
    let kinds: Vec<&str> = sheaf.entries.iter().map(entry_kind).collect();
    assert_eq!(kinds, ["run-started", "plan", "approval", "admission", "intent", "sending", "task", "outcome"]);
    let (run, id, plan) = {
        let intent = parse_entry(&sheaf.entries[4].entry).expect("an entry");
        let converger_core::evidence::LedgerEntry::Record(converger_core::apply::JournalRecord::Intent { operation, .. }) = intent else {
            panic!("an intent")
        };
        (operation.run.as_str().to_owned(), operation.id.as_str().to_owned(), operation.plan.to_string())
    };
    bed.stage.write_private("receipt.txt", &sheaf.to_text());
    // Verification needs nothing of the state directory.
    std::fs::remove_dir_all(bed.state_directory()).expect("removed");
    let told = bed.run_expecting(&["verify", "receipt.txt", "--key", &key], 0);
    for words in [
        "receipt.txt proves an operation by 8 entries of converger-",
        &format!("{id}  101 qemu web-1  start  done"),
        &format!("run        {run}"),
        &format!("plan       {}\n", &plan[.."sha256:".len() + 12]),
        "ended      done at ",
        "decision   requested in `lab` by ",
        "admission  admitted in entry ",
        "approved   by ",
        "note   a receipt proves its own entries: only an export shows whether the ledger has more about this operation",
    ] {
        assert!(told.contains(words), "`{words}`: {told}");
    }
    let json: Value = serde_json::from_str(&bed.run_expecting(&["verify", "receipt.txt", "--key", &key, "--json"], 0)).expect("JSON");
    assert_eq!(json["proven"]["history"]["operation"]["guest"]["vmid"], 101, "{json}");
    assert_eq!(json["proven"]["history"]["ended"]["outcome"]["end"], "done", "{json}");
    assert_eq!(json["proven"]["entries"].as_array().map(Vec::len), Some(8), "{json}");
    assert_eq!(json["proven"]["admissions"][0]["approvals"].as_array().map(Vec::len), Some(1), "{json}");
}

/// A missing required entry is detected; a missing optional one is not, and the receipt says so.
#[test]
fn receipt_without_a_required_entry_is_refused() {
    let (bed, key, [sheaf, _]) = fixture_with_receipts();
    let expected = |kind: &str| match kind {
        "run-started" => {
            "error[integrity-violation]: receipt.txt proves no operation: entry 12 cannot stand where it does: it is about the run "
        }
        "plan" => "error[integrity-violation]: receipt.txt proves no operation: entry 14, the admission of the run ",
        "approval" => "the approvals in its bundle are not those before it in the ledger",
        "admission" => "error[evidence-missing]: receipt.txt proves no operation: no entry before it admits the plan of the operation ",
        "intent" => "which has no intent before it",
        "outcome" => "error[evidence-missing]: receipt.txt proves no operation: no entry says how the operation ",
        _ => "",
    };
    for at in 0..sheaf.entries.len() {
        let mut left = sheaf.clone();
        let kind = entry_kind(&left.entries.remove(at));
        match expected(kind) {
            "" => {
                bed.stage.write_private("receipt.txt", &left.to_text());
                let told = bed.run_expecting(&["verify", "receipt.txt", "--key", &key], 0);
                assert!(told.contains("note   a receipt proves its own entries"), "{kind}: {told}");
            }
            words => check_refused(&bed, &key, kind, &left, words),
        }
    }
    let mut bare = sheaf.clone();
    bare.attachments.clear();
    check_refused(
        &bed,
        &key,
        "no bundle",
        &bare,
        "error[evidence-missing]: receipt.txt proves no operation: entry 14, the admission of the run ",
    );
    bare.entries.truncate(4);
    bare.attachments = sheaf.attachments;
    check_refused(&bed, &key, "no operation", &bare, "error[evidence-missing]: receipt.txt proves no operation: it proves no operation");
}

#[test]
fn receipt_with_a_changed_moved_or_foreign_entry_is_refused() {
    let (bed, key, [sheaf, later]) = fixture_with_receipts();
    for at in 0..sheaf.entries.len() {
        let mut changed = sheaf.clone();
        let (index, last) = (changed.entries[at].index, changed.entries[at].entry.len() - 1);
        changed.entries[at].entry[last] ^= 1;
        check_refused(&bed, &key, "altered", &changed, &format!("receipt.txt proves nothing: entry {index}: "));
        let mut moved = sheaf.clone();
        moved.entries[at].index += 1;
        check_refused(&bed, &key, "elsewhere", &moved, &format!("receipt.txt proves nothing: entry {}: ", index + 1));
    }
    let mut swapped = sheaf.clone();
    swapped.entries.swap(2, 3);
    check_refused(&bed, &key, "swapped", &swapped, "receipt.txt proves nothing: entry 13 is not in the order of the log");
    let mut twice = sheaf.clone();
    twice.entries.push(twice.entries[7].clone());
    check_refused(&bed, &key, "twice", &twice, "is not in the order of the log");
    let mut kept = sheaf.clone();
    kept.attachments[0].push(b' ');
    check_refused(&bed, &key, "another bundle", &kept, "error[evidence-missing]: ");
    kept.attachments[0].pop();
    kept.attachments.push(b"more".to_vec());
    check_refused(&bed, &key, "something along", &kept, "which no entry names");
    // The outcome of another operation, and one operation more.
    let mut exchanged = sheaf.clone();
    exchanged.entries[7] = later.entries[7].clone();
    check_refused(&bed, &key, "another's outcome", &exchanged, "does not belong to the operation that is proven");
    let mut more = sheaf.clone();
    more.entries.extend(later.entries[4..].to_vec());
    check_refused(&bed, &key, "another operation", &more, "does not belong to the operation that is proven");
    // Another log, complete and signed; and another log with the checkpoint of this one.
    let (_, _, [foreign, _]) = self::fixture_with_receipts();
    check_refused(&bed, &key, "another log", &foreign, "receipt.txt proves nothing: ");
    let mixed = ReceiptBundle { checkpoint: sheaf.checkpoint.clone(), ..foreign };
    check_refused(&bed, &key, "another log below", &mixed, "receipt.txt proves nothing: entry ");
    check_refused(&bed, &foreign_signer().verifier().to_string(), "another key", &sheaf, "receipt.txt proves nothing: ");
    check_refused(&bed, &key, "nothing", &ReceiptBundle { entries: Vec::new(), ..sheaf }, "receipt.txt: this is not a receipt");
}

/// A line that adds no proof is a change.
#[test]
fn rejects_a_repeated_line_in_a_receipt() {
    let (bed, key, [sheaf, _]) = fixture_with_receipts();
    let mut kept = sheaf.clone();
    kept.attachments.push(kept.attachments[0].clone());
    check_refused(&bed, &key, "given along twice", &kept, "receipt.txt: line 3 is a duplicate");
    let mut signed = sheaf.clone();
    let signature = signed.checkpoint.lines().last().expect("a signature").to_owned();
    signed.checkpoint = format!("{}{signature}\n", signed.checkpoint);
    check_refused(&bed, &key, "signed twice", &signed, " is a duplicate");
    let entry = bed.run_expecting(&["ledger", "prove", "0"], 0);
    bed.stage.write_private("receipt.txt", &format!("{entry}{}\n", entry.lines().last().expect("a signature")));
    bed.check_broken(&["verify", "receipt.txt", "--key", &key], " is a duplicate");
}

#[test]
fn reports_changed_line_endings() {
    let (bed, key, [sheaf, _]) = fixture_with_receipts();
    for text in [sheaf.to_text(), bed.run_expecting(&["ledger", "prove", "0"], 0)] {
        bed.stage.write_private("receipt.txt", &text.replace('\n', "\r\n"));
        bed.check_broken(&["verify", "receipt.txt", "--key", &key], "receipt.txt: its line endings were changed");
    }
    let export = bed.export_to("given");
    let checkpoint = std::fs::read_to_string(export.join("checkpoint")).expect("there");
    std::fs::write(export.join("checkpoint"), checkpoint.replace('\n', "\r\n")).expect("written");
    bed.check_broken(&["verify", "given", "--key", &key], "checkpoint: its line endings were changed");
}

#[test]
fn rejects_the_receipt_of_another_operation() {
    let (bed, key, [sheaf, _]) = fixture_with_receipts();
    let ids = ["ASC", "DESC"]
        .map(|order| DatabaseForger::open(&bed.state_directory()).text(&format!("SELECT id FROM operations ORDER BY seq {order} LIMIT 1")));
    bed.stage.write_private("receipt.txt", &sheaf.to_text());
    let about = |id: &str| ["verify", "receipt.txt", "--key", &key, "--operation", id].map(str::to_owned);
    let words = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let run = |words: &str| bed.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(run(&words(&about(&ids[0]))).code, Some(0));
    let said = run(&words(&about(&ids[1])));
    assert_eq!((said.code, said.out.as_str()), (Some(6), ""), "{said:?}");
    let told =
        format!("error[evidence-missing]: receipt.txt does not prove the operation {}: it is about the operation {}", ids[1], ids[0]);
    assert!(said.err.contains(&told), "{said:?}");
    // A single entry of the operation, and one of another operation.
    for (index, code) in [(sheaf.entries[7].index, 0), (0, 6)] {
        bed.stage.write_private("receipt.txt", &bed.run_expecting(&["ledger", "prove", &index.to_string()], 0));
        assert_eq!(run(&words(&about(&ids[0]))).code, Some(code), "entry {index}");
    }
    bed.check_fails(&["verify", "--operation", &ids[0]], 2, "--operation");
    bed.export_to("given");
    bed.check_fails(&["verify", "given", "--operation", &ids[0]], 2, "--operation is for receipts");
}
