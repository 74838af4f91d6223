//! `docs/proxmox-facts.md` names a test for each fact: every one of them exists and runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names in backticks in the last two columns of the table.
fn named(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Fact"));
    let cells = rows.flat_map(|row| row.split(" | ").skip(2).map(str::to_owned).collect::<Vec<_>>());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

fn sources(directory: &Path, found: &mut Vec<String>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// The names of functions that directly follow `#[test]`.
fn tests_of(text: &str) -> BTreeSet<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let pairs = lines.windows(2).filter(|pair| pair[0] == "#[test]");
    pairs.filter_map(|pair| pair[1].strip_prefix("fn ")?.split('(').next().map(str::to_owned)).collect()
}

#[test]
fn every_fact_in_the_book_has_its_test() {
    let page = fs::read_to_string(root().join("docs/proxmox-facts.md")).unwrap_or_else(|error| panic!("docs/proxmox-facts.md: {error}"));
    let mut texts = Vec::new();
    sources(&root().join("crates"), &mut texts);
    let known: BTreeSet<String> = texts.iter().flat_map(|text| tests_of(text)).collect();
    let named = named(&page);
    let lacking: Vec<&String> = named.iter().filter(|name| !known.contains(*name)).collect();
    assert!(lacking.is_empty(), "no test has these names: {lacking:?}");
    assert!(named.len() > 100, "only {} tests are named", named.len());
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Fact"));
    let bare: Vec<&str> =
        rows.filter(|row| row.matches('`').count() < 2 || !row.split(" | ").skip(2).any(|cell| cell.contains('`'))).collect();
    assert!(bare.is_empty(), "these facts have no test: {bare:#?}");
}

#[test]
fn a_name_that_no_test_has_is_found() {
    let page = "| Fact | Relied on by | Lab | Client |\n|---|---|---|---|\n| a `b` c | codec | `one`, `two` | `three` |\n";
    assert_eq!(named(page), ["one", "two", "three"], "words of the fact itself are no tests");
    assert_eq!(tests_of("#[test]\nfn one() {}\nfn two() {}\n"), BTreeSet::from(["one".to_owned()]));
}
