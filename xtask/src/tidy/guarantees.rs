//! Checks that every guarantee in DESIGN.md has a test named after it, and that no test names an
//! unknown guarantee.
//!
//! Whether the test proves the guarantee is for the reviewer.

use std::collections::BTreeSet;

use super::functions::find_functions;
use super::rust_source::RustSource;
use super::{TidyViolation, TrackedFile, find_file};

const DESIGN: &str = "DESIGN.md";
const TESTS: &str = "crates/";

pub(super) fn violations(files: &[TrackedFile], sources: &[RustSource]) -> Vec<TidyViolation> {
    let Some(design) = find_file(files, DESIGN) else {
        let sentence = "this file must name the guarantees, and does not exist or is not tracked by git";
        return vec![TidyViolation::new(DESIGN, 1, sentence)];
    };
    let named = parse_guarantees(&design.text);
    if named.is_empty() {
        let sentence = "this file names no guarantee; each one has a heading `## G1 · title`";
        return vec![TidyViolation::new(DESIGN, 1, sentence)];
    }
    let tests: Vec<NamedGuarantee> = sources.iter().flat_map(find_tests).collect();
    [untested_guarantees(&named, &tests), unknown_guarantees(&named, &tests)].concat()
}

/// All tests that are named after a guarantee: number, file and name, in that order.
pub(super) fn list_named_tests(sources: &[RustSource]) -> Vec<(u32, String, String)> {
    let mut named: Vec<(u32, String, String)> =
        sources.iter().flat_map(find_tests).map(|test| (test.number, test.path, test.name)).collect();
    named.sort();
    named
}

/// The number of a guarantee, and where it occurs.
struct NamedGuarantee {
    number: u32,
    path: String,
    line: usize,
    /// The name of the test; empty for the guarantee itself.
    name: String,
}

fn parse_guarantees(design: &str) -> Vec<NamedGuarantee> {
    let numbered = design.lines().enumerate().filter_map(|(index, line)| Some((index + 1, parse_guarantee_number(line)?)));
    numbered.map(|(line, number)| NamedGuarantee { number, path: DESIGN.to_owned(), line, name: String::new() }).collect()
}

/// The number in a heading (`## G3 · title`) or a list item (`- G3: title`, `- **G3** title`).
fn parse_guarantee_number(line: &str) -> Option<u32> {
    let rest = line.trim_start_matches(['#', '-', '*', ' ']);
    let marked = line.starts_with(['#', '-', '*']);
    parse_number(rest.strip_prefix('G').filter(|_| marked)?, |after| !after.is_alphanumeric())
}

/// The test functions whose names start with `g<n>_`.
fn find_tests(source: &RustSource) -> Vec<NamedGuarantee> {
    let tests = find_functions(source).into_iter().filter(|function| function.is_test && source.is_under(TESTS));
    let numbered = tests.filter_map(|test| {
        let number = parse_number(test.name.strip_prefix('g')?, |after| after == '_')?;
        Some(NamedGuarantee { number, path: source.path.clone(), line: test.line, name: test.name.to_owned() })
    });
    numbered.collect()
}

/// The number at the start of `text`, if `ends` holds for the character after it.
fn parse_number(text: &str, ends: impl Fn(char) -> bool) -> Option<u32> {
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    number.parse().ok().filter(|_| rest.chars().next().is_none_or(ends))
}

fn untested_guarantees(guarantees: &[NamedGuarantee], tests: &[NamedGuarantee]) -> Vec<TidyViolation> {
    without_counterpart(guarantees, tests)
        .map(|NamedGuarantee { number, path, line, .. }| {
            let wanted = format!("write one below {TESTS} with a name that starts with `g{number}_`");
            TidyViolation::new(path, *line, format!("G{number} has no test; {wanted}"))
        })
        .collect()
}

fn unknown_guarantees(guarantees: &[NamedGuarantee], tests: &[NamedGuarantee]) -> Vec<TidyViolation> {
    without_counterpart(tests, guarantees)
        .map(|NamedGuarantee { number, path, line, .. }| {
            TidyViolation::new(path, *line, format!("this test is named after G{number}, which {DESIGN} does not name"))
        })
        .collect()
}

/// The items of `these` whose number does not occur in `those`.
fn without_counterpart<'a>(these: &'a [NamedGuarantee], those: &[NamedGuarantee]) -> impl Iterator<Item = &'a NamedGuarantee> {
    let numbers: BTreeSet<u32> = those.iter().map(|named| named.number).collect();
    these.iter().filter(move |named| !numbers.contains(&named.number))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{file, source};
    use super::*;

    fn violation_texts(design: &str, test: &str) -> Vec<String> {
        let sources = [source("crates/converger-core/tests/plan.rs", &format!("#[test]\nfn {test}() {{}}\n"))];
        let violations = violations(&[file(DESIGN, design)], &sources);
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn missing_and_empty_designs_are_found() {
        let absent = violations(&[], &[]);
        assert!(absent[0].sentence.starts_with("this file must name the guarantees"), "{absent:?}");
        let found = violation_texts(
            "# Design
G1 in passing
",
            "a",
        );
        assert!(found[0].starts_with("DESIGN.md:1: this file names no guarantee;"), "{found:?}");
    }

    #[test]
    fn a_guarantee_without_a_test_is_found() {
        let found = violation_texts("## G1 · first\n### G10 second\n", "g1_holds");
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("DESIGN.md:2: G10 has no test;"), "{found:?}");
    }

    #[test]
    fn only_tests_below_crates_count() {
        let design = [file(DESIGN, "## G1 · first")];
        let elsewhere = [source("xtask/src/main.rs", "#[test]\nfn g1_holds() {}")];
        let no_test = [source("crates/a/src/lib.rs", "fn g1_holds() {}")];
        assert_eq!(violations(&design, &elsewhere).len(), 1);
        assert_eq!(violations(&design, &no_test).len(), 1);
    }

    #[test]
    fn a_test_named_after_no_guarantee_is_found() {
        let found = violation_texts("- **G1** first", "g2_holds");
        assert!(found[1].ends_with("plan.rs:2: this test is named after G2, which DESIGN.md does not name"), "{found:?}");
    }

    #[test]
    fn a_guarantee_with_its_test_passes() {
        assert!(violation_texts("## G1 · first\nGo on.\n## Glossary\n", "g1_holds").is_empty());
        assert!(violation_texts("- G1: first", "g1_").is_empty());
    }
}
