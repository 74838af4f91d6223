//! Receipts of operations: what each proves alone, and everything that can be done to one.

use converger_core::evidence::parse_entry;
use converger_ledger::{Proven, Sheaf};
use serde_json::Value;

use crate::bed::Bed;
use crate::export::stranger;
use crate::forge::Forger;

/// A bed on which two guests were started, its key, and the receipts of both operations.
fn bed() -> (Bed, String, [Sheaf; 2]) {
    let bed = Bed::short();
    let key = bed.key();
    let ids =
        ["ASC", "DESC"].map(|order| Forger::at(&bed.state()).text(&format!("SELECT id FROM operations ORDER BY seq {order} LIMIT 1")));
    let sheaves = ids.map(|id| Sheaf::parse(&bed.told(&["ledger", "prove", &id], 0)).expect("a receipt"));
    (bed, key, sheaves)
}

fn kind(proven: &Proven) -> &'static str {
    parse_entry(&proven.entry).expect("an entry").kind()
}

/// A receipt that proves nothing, and why.
#[track_caller]
fn check_refused(bed: &Bed, key: &str, what: &str, sheaf: &Sheaf, words: &str) {
    bed.stage.put("receipt.txt", &sheaf.to_text());
    let said = bed.run(&["verify", "receipt.txt", "--key", key]);
    assert_eq!((said.code, said.out.as_str()), (Some(6), ""), "{what}: {said:?}");
    assert!(said.err.contains(words), "{what} must be told as `{words}`: {said:?}");
}

#[test]
fn a_receipt_of_an_operation_says_what_was_done_and_by_what_right() {
    let (bed, key, [sheaf, _]) = bed();
    let kinds: Vec<&str> = sheaf.proven.iter().map(kind).collect();
    assert_eq!(kinds, ["run-started", "plan", "approval", "admission", "intent", "sending", "task", "outcome"]);
    let (run, id, plan) = {
        let intent = parse_entry(&sheaf.proven[4].entry).expect("an entry");
        let converger_core::evidence::Entry::Record(converger_core::apply::Record::Intent { operation, .. }) = intent else {
            panic!("an intent")
        };
        (operation.run.as_str().to_owned(), operation.id.as_str().to_owned(), operation.plan.to_string())
    };
    bed.stage.put("receipt.txt", &sheaf.to_text());
    // Somebody who has nothing of it.
    std::fs::remove_dir_all(bed.state()).expect("removed");
    let told = bed.told(&["verify", "receipt.txt", "--key", &key], 0);
    for words in [
        "receipt.txt proves an operation by 8 entries of converger-",
        &format!("{id}  101 qemu web-1  start  done"),
        &format!("run        {run}"),
        &format!("plan       {plan}"),
        "ended      done at ",
        "decision   asked for in `lab` by ",
        "admission  admitted in entry ",
        "agreed     by ",
        "note   a receipt proves what is in it: whether the ledger has more about this operation",
    ] {
        assert!(told.contains(words), "`{words}`: {told}");
    }
    let json: Value = serde_json::from_str(&bed.told(&["verify", "receipt.txt", "--key", &key, "--json"], 0)).expect("JSON");
    assert_eq!(json["proven"]["history"]["operation"]["guest"]["vmid"], 101, "{json}");
    assert_eq!(json["proven"]["history"]["ended"]["outcome"]["end"], "done", "{json}");
    assert_eq!(json["proven"]["entries"].as_array().map(Vec::len), Some(8), "{json}");
    assert_eq!(json["proven"]["admissions"][0]["approvals"].as_array().map(Vec::len), Some(1), "{json}");
}

/// What every operation has is missed; what it need not have is not, and the receipt says that it would not be.
#[test]
fn an_entry_that_was_left_out_is_missed_where_every_operation_has_one() {
    let (bed, key, [sheaf, _]) = bed();
    let expected = |kind: &str| match kind {
        "run-started" => {
            "error[integrity-violation]: receipt.txt proves no operation: entry 12 cannot stand where it does: it is about the run "
        }
        "plan" => "error[integrity-violation]: receipt.txt proves no operation: entry 14, the admission of the run ",
        "approval" => "the approvals that it weighed are not those that stand before it in the ledger",
        "admission" => "error[evidence-missing]: receipt.txt proves no operation: no entry before it admits the plan of the operation ",
        "intent" => "which has no intent before it",
        "outcome" => "error[evidence-missing]: receipt.txt proves no operation: no entry says how the operation ",
        _ => "",
    };
    for at in 0..sheaf.proven.len() {
        let mut left = sheaf.clone();
        let kind = kind(&left.proven.remove(at));
        match expected(kind) {
            "" => {
                bed.stage.put("receipt.txt", &left.to_text());
                let told = bed.told(&["verify", "receipt.txt", "--key", &key], 0);
                assert!(told.contains("note   a receipt proves what is in it"), "{kind}: {told}");
            }
            words => check_refused(&bed, &key, kind, &left, words),
        }
    }
    let mut bare = sheaf.clone();
    bare.kept.clear();
    check_refused(
        &bed,
        &key,
        "no bundle",
        &bare,
        "error[evidence-missing]: receipt.txt proves no operation: entry 14, the admission of the run ",
    );
    bare.proven.truncate(4);
    bare.kept = sheaf.kept;
    check_refused(&bed, &key, "no operation", &bare, "error[evidence-missing]: receipt.txt proves no operation: it proves no operation");
}

#[test]
fn an_entry_that_is_another_elsewhere_or_of_another_log_proves_nothing() {
    let (bed, key, [sheaf, later]) = bed();
    for at in 0..sheaf.proven.len() {
        let mut changed = sheaf.clone();
        let (index, last) = (changed.proven[at].index, changed.proven[at].entry.len() - 1);
        changed.proven[at].entry[last] ^= 1;
        check_refused(&bed, &key, "altered", &changed, &format!("receipt.txt proves nothing: entry {index}: "));
        let mut moved = sheaf.clone();
        moved.proven[at].index += 1;
        check_refused(&bed, &key, "elsewhere", &moved, &format!("receipt.txt proves nothing: entry {}: ", index + 1));
    }
    let mut swapped = sheaf.clone();
    swapped.proven.swap(2, 3);
    check_refused(
        &bed,
        &key,
        "swapped",
        &swapped,
        "receipt.txt proves nothing: entry 13 stands behind one that the log has no earlier than it",
    );
    let mut twice = sheaf.clone();
    twice.proven.push(twice.proven[7].clone());
    check_refused(&bed, &key, "twice", &twice, "stands behind one that the log has no earlier than it");
    let mut kept = sheaf.clone();
    kept.kept[0].push(b' ');
    check_refused(&bed, &key, "another bundle", &kept, "error[evidence-missing]: ");
    kept.kept[0].pop();
    kept.kept.push(b"more".to_vec());
    check_refused(&bed, &key, "something along", &kept, "is given along, and no entry names it");
    // The outcome of another operation, and one more operation.
    let mut exchanged = sheaf.clone();
    exchanged.proven[7] = later.proven[7].clone();
    check_refused(&bed, &key, "another's outcome", &exchanged, "is not about the operation that is proven");
    let mut more = sheaf.clone();
    more.proven.extend(later.proven[4..].to_vec());
    check_refused(&bed, &key, "another operation", &more, "is not about the operation that is proven");
    // Another log, whole and signed; and another log under this one's checkpoint.
    let (_, _, [foreign, _]) = self::bed();
    check_refused(&bed, &key, "another log", &foreign, "receipt.txt proves nothing: ");
    let mixed = Sheaf { checkpoint: sheaf.checkpoint.clone(), ..foreign };
    check_refused(&bed, &key, "another log below", &mixed, "receipt.txt proves nothing: entry ");
    check_refused(&bed, &stranger().verifier().to_string(), "another key", &sheaf, "receipt.txt proves nothing: ");
    check_refused(&bed, &key, "nothing", &Sheaf { proven: Vec::new(), ..sheaf }, "receipt.txt: this is no receipt");
}

/// What proves nothing more is not what was written.
#[test]
fn a_line_that_is_repeated_in_a_receipt_is_a_fault() {
    let (bed, key, [sheaf, _]) = bed();
    let mut kept = sheaf.clone();
    kept.kept.push(kept.kept[0].clone());
    check_refused(&bed, &key, "given along twice", &kept, "receipt.txt: line 3 is there twice");
    let mut signed = sheaf.clone();
    let signature = signed.checkpoint.lines().last().expect("a signature").to_owned();
    signed.checkpoint = format!("{}{signature}\n", signed.checkpoint);
    check_refused(&bed, &key, "signed twice", &signed, " is there twice");
    let entry = bed.told(&["ledger", "prove", "0"], 0);
    bed.stage.put("receipt.txt", &format!("{entry}{}\n", entry.lines().last().expect("a signature")));
    bed.check_broken(&["verify", "receipt.txt", "--key", &key], " is there twice");
}

#[test]
fn changed_line_endings_are_told_as_that() {
    let (bed, key, [sheaf, _]) = bed();
    for text in [sheaf.to_text(), bed.told(&["ledger", "prove", "0"], 0)] {
        bed.stage.put("receipt.txt", &text.replace('\n', "\r\n"));
        bed.check_broken(&["verify", "receipt.txt", "--key", &key], "receipt.txt: its line endings were changed");
    }
    let export = bed.export("given");
    let checkpoint = std::fs::read_to_string(export.join("checkpoint")).expect("there");
    std::fs::write(export.join("checkpoint"), checkpoint.replace('\n', "\r\n")).expect("written");
    bed.check_broken(&["verify", "given", "--key", &key], "checkpoint: its line endings were changed");
}

#[test]
fn a_receipt_of_another_operation_is_no_evidence_of_the_one_that_is_asked_for() {
    let (bed, key, [sheaf, _]) = bed();
    let ids =
        ["ASC", "DESC"].map(|order| Forger::at(&bed.state()).text(&format!("SELECT id FROM operations ORDER BY seq {order} LIMIT 1")));
    bed.stage.put("receipt.txt", &sheaf.to_text());
    let about = |id: &str| ["verify", "receipt.txt", "--key", &key, "--operation", id].map(str::to_owned);
    let words = |words: &[String]| words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    let run = |words: &str| bed.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(run(&words(&about(&ids[0]))).code, Some(0));
    let said = run(&words(&about(&ids[1])));
    assert_eq!((said.code, said.out.as_str()), (Some(6), ""), "{said:?}");
    let told =
        format!("error[evidence-missing]: receipt.txt does not prove the operation {}: it is about the operation {}", ids[1], ids[0]);
    assert!(said.err.contains(&told), "{said:?}");
    // An entry of the operation by itself, and one of another.
    for (index, code) in [(sheaf.proven[7].index, 0), (0, 6)] {
        bed.stage.put("receipt.txt", &bed.told(&["ledger", "prove", &index.to_string()], 0));
        assert_eq!(run(&words(&about(&ids[0]))).code, Some(code), "entry {index}");
    }
    bed.check_ended(&["verify", "--operation", &ids[0]], 2, "--operation");
    bed.export("given");
    bed.check_ended(&["verify", "given", "--operation", &ids[0]], 2, "--operation says what a receipt has to be about");
}
