//! `docs/proxmox-facts.md` names tests for each fact: all of them exist and run; those of the lab run in 7, 8 and 9, and so does one test
//! of the client for each fact.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A row of the table: its fact, and the tests of the lab and of the client.
struct FactRow {
    fact: String,
    lab: Vec<String>,
    client: Vec<String>,
}

fn parse_rows(page: &str) -> Vec<FactRow> {
    let lines = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Fact"));
    let names = |cell: Option<&&str>| cell.map_or_else(Vec::new, |cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect());
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(" | ").collect();
        FactRow { fact: cells[0].to_owned(), lab: names(cells.get(2)), client: names(cells.get(3)) }
    };
    lines.map(row).collect()
}

fn read_sources(directory: &Path, found: &mut Vec<String>) {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
        if path.is_dir() {
            read_sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// The functions that directly follow `#[test]`, and whether they run in every release, by themselves or through a helper.
fn find_tests(text: &str) -> BTreeMap<String, bool> {
    let helpers: Vec<String> =
        split_functions(text).into_iter().filter(|(_, body)| covers_every_release(body)).map(|(name, _)| format!("{name}()")).collect();
    let runs = |body: &str| covers_every_release(body) || helpers.iter().any(|helper| body.contains(helper.as_str()));
    let tests = text.split("#[test]\n").skip(1).filter_map(|part| split_functions(part).into_iter().next());
    tests
        .map(|(name, body)| {
            let runs = runs(&body);
            (name, runs)
        })
        .collect()
}

/// Every function of a text, with its body.
fn split_functions(text: &str) -> Vec<(String, String)> {
    let starts = text.match_indices("fn ").filter(|(at, _)| text[..*at].rsplit('\n').next().is_some_and(|before| before.trim().is_empty()));
    starts
        .map(|(at, _)| {
            let line = text[..at].rfind('\n').map_or(0, |end| end + 1);
            let name = text[at + 3..].split(['(', '<']).next().unwrap_or_default().to_owned();
            (name, function_text(&text[line..]))
        })
        .collect()
}

/// A function up to its closing brace, at its own indentation.
fn function_text(text: &str) -> String {
    let depth = text.len() - text.trim_start_matches(' ').len();
    let end = format!("\n{}}}\n", " ".repeat(depth));
    text.split_inclusive(&end).next().unwrap_or_default().to_owned()
}

/// Whether a test runs in 7, 8 and 9: it iterates over them or names each.
fn covers_every_release(body: &str) -> bool {
    let names = |release: u8| {
        let forms = ["V#", "(#, ", "lab(#)", "users(#)", "[#, ", ", #, ", ", #]"].map(|form| form.replace('#', &release.to_string()));
        forms.iter().any(|form| body.contains(form.as_str()))
    };
    body.contains("in_every_release(") || body.contains("FLAVOURS") || (7..=9).all(names)
}

/// These tests of the client only read or write a text, independently of the release; they use texts of all releases.
const TEXT_ONLY_TESTS: [&str; 9] = [
    "a_balloon_fits_into_memory_that_waits_for_a_restart",
    "write_with_a_500_response_may_have_run",
    "uses_the_reason_phrase_of_version_7",
    "encodes_unusual_user_names",
    "delete_parameters_are_in_the_query",
    "classifies_messages_of_proxmox",
    "task_id_is_one_path_segment",
    "parses_failure_status_as_text_or_number",
    "refuses_unwritable_fields",
];

/// It draws the release of each of its many worlds from a seed.
const SEEDED_TESTS: [&str; 1] = ["g2_an_observation_never_claims_more_than_the_truth"];

struct FactsPage {
    rows: Vec<FactRow>,
    tests: BTreeMap<String, bool>,
}

impl FactsPage {
    fn open() -> Self {
        let page = fs::read_to_string(repository_root().join("docs/proxmox-facts.md"))
            .unwrap_or_else(|error| panic!("docs/proxmox-facts.md: {error}"));
        let mut texts = Vec::new();
        read_sources(&repository_root().join("crates"), &mut texts);
        Self { rows: parse_rows(&page), tests: texts.iter().flat_map(|text| find_tests(text)).collect() }
    }

    fn runs_everywhere(&self, name: &String) -> bool {
        self.tests.get(name).copied().unwrap_or(false)
    }
}

#[test]
fn every_fact_has_its_tests() {
    let FactsPage { rows, tests } = FactsPage::open();
    let named: Vec<&String> = rows.iter().flat_map(|row| row.lab.iter().chain(&row.client)).collect();
    let missing: Vec<&&String> = named.iter().filter(|name| !tests.contains_key(**name)).collect();
    assert!(missing.is_empty(), "no test has these names: {missing:?}");
    assert!(named.len() > 100, "only {} tests are named", named.len());
    let untested: Vec<&str> = rows.iter().filter(|row| row.lab.is_empty() || row.client.is_empty()).map(|row| row.fact.as_str()).collect();
    assert!(untested.is_empty(), "these facts have no test of the lab, or none of the client: {untested:#?}");
}

#[test]
fn every_fact_is_tested_in_every_release() {
    let page = FactsPage::open();
    let lab: Vec<&String> = page.rows.iter().flat_map(|row| &row.lab).filter(|name| !page.runs_everywhere(name)).collect();
    assert!(lab.is_empty(), "these tests of the lab do not run in 7, 8 and 9: {lab:#?}");
    let is_known = |name: &String| TEXT_ONLY_TESTS.contains(&name.as_str()) || SEEDED_TESTS.contains(&name.as_str());
    let is_shown = |row: &&FactRow| row.client.iter().any(|name| page.runs_everywhere(name) || is_known(name));
    let client: Vec<(&str, &[String])> =
        page.rows.iter().filter(|row| !is_shown(row)).map(|row| (row.fact.as_str(), row.client.as_slice())).collect();
    assert!(client.is_empty(), "of these facts no test of the client runs in 7, 8 and 9: {client:#?}");
}

#[test]
fn detects_an_unknown_test_and_a_test_of_one_release() {
    let page = "| Fact | Relied on by | Lab | Client |\n|---|---|---|---|\n| a `b` c | codec | `one`, `two` | `three` |\n";
    let [row] = &parse_rows(page)[..] else { panic!("one row") };
    assert_eq!((&row.lab[..], &row.client[..]), (&["one".to_owned(), "two".to_owned()][..], &["three".to_owned()][..]));
    let text = "#[test]\nfn one() {\n    lab(9);\n}\nfn two() {\n    in_every_release(x);\n}\n#[test]\nfn three() {\n    in_every_release(x);\n}\n";
    let tests = find_tests(text);
    assert_eq!(tests, BTreeMap::from([("one".to_owned(), false), ("three".to_owned(), true)]));
    let by_another = find_tests("#[test]\nfn one() {\n    cases();\n}\nfn cases() {\n    FLAVOURS\n}\n");
    assert_eq!(by_another, BTreeMap::from([("one".to_owned(), true)]), "a function beside it goes through them");
    for part in ["for flavour in [7, 8] {}", "lab(7); lab(8)", "Flavour::V9"] {
        assert!(!covers_every_release(part), "{part}");
    }
    for whole in
        ["for (flavour, x) in [(7, a), (8, b), (9, c)]", "for flavour in [8, 9] {} lab(7)", "[Flavour::V7, Flavour::V8, Flavour::V9]"]
    {
        assert!(covers_every_release(whole), "{whole}");
    }
}
