//! `docs/formats.md` matches what the program writes: the examples parse with the production code, each kind of entry is listed with all
//! its members, and a real export contains only documented files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use converger_core::action::CATALOGUE;
use converger_core::evidence::{AdmissionBundle, ENTRY_KINDS, OperationProof, parse_entry};
use converger_core::intent::Intent;
use converger_ledger::{Checkpoint, NoteVerifier, Receipt, ReceiptBundle};
use serde_json::Value;

use crate::export_files::ExportFiles;
use crate::fixture::EvidenceFixture;

/// The text between a heading of the page and the next one.
fn section(heading: &str) -> String {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats.md")).expect("the page");
    let (_, below) = page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("`{heading}` is missing"));
    below.split("\n#").next().unwrap_or_default().to_owned()
}

/// The fenced examples of a section, each with its trailing newline.
fn examples(section: &str) -> Vec<String> {
    let parts: Vec<&str> = section.split("\n```").collect();
    parts.iter().skip(1).step_by(2).filter_map(|part| part.split_once('\n')).map(|(_, text)| format!("{text}\n")).collect()
}

/// The rows of its table: the word in the first cell and the words in the second one.
fn table_rows(section: &str) -> BTreeMap<String, BTreeSet<String>> {
    let quoted_words = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<String>>();
    let cells = section.lines().filter(|line| line.starts_with("| `")).map(|line| line.split('|').skip(1).collect::<Vec<_>>());
    cells.map(|cells| (quoted_words(cells[0]).concat(), quoted_words(cells[1]).into_iter().collect())).collect()
}

fn members(value: &Value) -> BTreeSet<String> {
    value.as_object().expect("an object").keys().cloned().collect()
}

#[test]
fn every_entry_kind_is_documented_with_its_members() {
    let text = section("### Entries of the ledger");
    let described = table_rows(&text);
    let schema: Value = serde_json::from_str(&EvidenceFixture::new().run_expecting(&["schema", "entry"], 0)).expect("JSON");
    for kind in schema["properties"]["entry"]["oneOf"].as_array().expect("a list") {
        let (name, what) = (kind["properties"]["kind"]["const"].as_str().expect("a word"), &kind["properties"]["what"]["properties"]);
        assert_eq!(described.get(name), Some(&members(what)), "{name}");
    }
    assert_eq!(described.len(), ENTRY_KINDS.len());
    let example_text = examples(&text).concat();
    let kinds = example_text.lines().map(|line| parse_entry(line.as_bytes()).unwrap_or_else(|error| panic!("{error}: {line}")).kind());
    assert_eq!(kinds.collect::<Vec<_>>(), ENTRY_KINDS, "one of each, in this order");
}

#[test]
fn documented_bundle_parses() {
    let text = section("### The bundle of an admission");
    let [example] = &examples(&text)[..] else { panic!("one example") };
    assert!(AdmissionBundle::parse(example.trim_end().as_bytes()).is_ok(), "{example}");
    let shown: Value = serde_json::from_str(example).expect("JSON");
    let described = table_rows(&text);
    assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), members(&shown));
    for (name, inner) in described.iter().filter(|(_, inner)| !inner.is_empty()) {
        let value = shown[name].as_array().map_or(&shown[name], |list| &list[0]);
        assert_eq!(*inner, members(value), "{name}");
    }
}

#[test]
fn documented_request_parses() {
    let text = section("## Requests");
    let [example] = &examples(&text)[..] else { panic!("one example") };
    let intent = Intent::parse_normal(example.trim_end().as_bytes()).expect("a request");
    assert_eq!(serde_json::to_string(&intent).expect("JSON"), example.trim_end());
    let shown: Value = serde_json::from_str(example).expect("JSON");
    assert_eq!(table_rows(&text).into_keys().collect::<BTreeSet<_>>(), members(&shown));
}

/// A plan of a live observation, so that every member but `notes` is there.
#[test]
fn every_member_of_a_plan_and_a_result_is_documented() {
    let fixture = EvidenceFixture::new();
    let documented = |heading: &str| table_rows(&section(heading)).into_keys().collect::<BTreeSet<_>>();
    let plan: Value = serde_json::from_str(&fixture.run_expecting(&["audit", "desired.yaml", "--json"], 4)).expect("JSON");
    let result: Value = serde_json::from_str(&fixture.run_expecting(&["apply", "desired.yaml", "--json"], 3)).expect("JSON");
    let with = |value: &Value, optional: &[&str]| {
        members(value).into_iter().chain(optional.iter().map(|&name| name.to_owned())).collect::<BTreeSet<_>>()
    };
    assert_eq!(documented("## plan.json"), with(&plan, &["notes"]));
    assert_eq!(documented("### The body of a plan"), members(&plan["body"]));
    assert_eq!(documented("### The judgement of a plan"), with(&plan["judgement"], &["guests"]));
    assert_eq!(documented("### The steps of a plan"), CATALOGUE.iter().map(|entry| entry.change.to_owned()).collect());
    assert_eq!(documented("## result.json"), with(&result, &["repeated"]));
}

#[test]
fn documented_checkpoint_and_receipt_verify() {
    let [key, checkpoint] = &examples(&section("### Checkpoint, key and witness"))[..] else { panic!("two examples") };
    let key = NoteVerifier::parse(key).expect("a key");
    let checkpoint = Checkpoint::verify(checkpoint.as_bytes(), &key).expect("it is signed with that key");
    let [receipt, bundle_text] = &examples(&section("### Receipt"))[..] else { panic!("two examples") };
    let receipt = Receipt::parse(receipt).expect("a receipt");
    assert_eq!(receipt.verify(&key).as_ref(), Ok(&checkpoint));
    assert_eq!(parse_entry(&receipt.entry).expect("an entry").kind(), "outcome");
    let bundle = ReceiptBundle::parse(bundle_text).expect("a receipt");
    assert_eq!(bundle.verify(&key), Ok(checkpoint));
    let proof = OperationProof::from_entries(bundle.entries.iter().map(|own| (own.index, own.entry.as_slice())), &bundle.attachments)
        .expect("proven");
    assert!(proof.history.ended.is_some());
}

/// The path of a file, with its variable parts as the page writes them.
fn path_pattern(path: &str) -> String {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["blob", "sha256", _] => "blob/sha256/HEX".to_owned(),
        ["tile", level, _] => format!("tile/{}/N", if level == "entries" { level } else { "L" }),
        ["tile", level, part, _] if part.ends_with(".p") => format!("tile/{}/N.p/W", if level == "entries" { level } else { "L" }),
        _ => path.to_owned(),
    }
}

#[test]
fn export_has_exactly_the_documented_files() {
    let fixture = EvidenceFixture::with_long_history();
    let real: BTreeSet<String> = ExportFiles::read(&fixture.export_to("evidence")).0.keys().map(|path| path_pattern(path)).collect();
    assert_eq!(table_rows(&section("### Export")).into_keys().collect::<BTreeSet<_>>(), real);
}
