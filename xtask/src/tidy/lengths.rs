//! Limits the length of files and functions. The tables below list exceptions and may only get
//! tighter.
//!
//! No limit is ever raised: a new long function is split, or listed with its reason.

use super::TidyViolation;
use super::functions::find_functions;
use super::rust_source::RustSource;

const FILE_LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 70;

/// An item that may exceed the limit: its current length, and why it is not split.
struct LengthException {
    item: &'static str,
    lines: usize,
    reason: &'static str,
}

/// By path: `crates/a/src/b.rs`.
const LONG_FILE_EXCEPTIONS: &[LengthException] = &[];

/// By path and name: `crates/a/src/b.rs::render`. Flat tables and renderers may be long.
const LONG_FUNCTION_EXCEPTIONS: &[LengthException] = &[];

const TABLES: &str = "xtask/src/tidy/lengths.rs";

pub(super) fn violations(sources: &[RustSource]) -> Vec<TidyViolation> {
    let files: Vec<MeasuredItem> = sources.iter().map(measure_file).collect();
    let functions: Vec<MeasuredItem> = sources.iter().flat_map(measure_functions).collect();
    [check_lengths(&files, FILE_LINES_MAX, LONG_FILE_EXCEPTIONS), check_lengths(&functions, FUNCTION_LINES_MAX, LONG_FUNCTION_EXCEPTIONS)]
        .concat()
}

struct MeasuredItem {
    path: String,
    item: String,
    line: usize,
    lines: usize,
}

fn measure_file(source: &RustSource) -> MeasuredItem {
    let lines = source.text.lines().count();
    MeasuredItem { path: source.path.clone(), item: source.path.clone(), line: 1, lines }
}

fn measure_functions(source: &RustSource) -> Vec<MeasuredItem> {
    let path = &source.path;
    let measured = find_functions(source).into_iter().map(|function| MeasuredItem {
        path: path.clone(),
        item: format!("{path}::{}", function.name),
        line: function.line,
        lines: function.lines,
    });
    measured.collect()
}

fn check_lengths(measured: &[MeasuredItem], limit: usize, table: &[LengthException]) -> Vec<TidyViolation> {
    let too_long = measured.iter().filter_map(|found| too_long_violation(found, limit, table));
    let too_loose = table.iter().filter_map(|entry| too_loose_violation(entry, limit, measured));
    too_long.chain(too_loose).collect()
}

fn too_long_violation(found: &MeasuredItem, limit: usize, table: &[LengthException]) -> Option<TidyViolation> {
    let listed = table.iter().find(|entry| entry.item == found.item);
    let allowed = listed.map_or(limit, |entry| entry.lines);
    let excess = match listed {
        _ if found.lines <= allowed => return None,
        None => format!("the limit is {allowed}; split it by what it does, or list it with a reason in {TABLES}"),
        Some(entry) => format!("it is listed with {allowed} ({}), which must not grow; split it", entry.reason),
    };
    let sentence = format!("`{}` is {} lines long; {excess}", found.item, found.lines);
    Some(TidyViolation::new(&found.path, found.line, sentence))
}

/// If several functions share a name, the longest counts.
fn too_loose_violation(entry: &LengthException, limit: usize, measured: &[MeasuredItem]) -> Option<TidyViolation> {
    let namesakes = measured.iter().filter(|found| found.item == entry.item);
    let remedy = match namesakes.map(|found| found.lines).max() {
        None => "which does not exist; remove the entry".to_owned(),
        Some(lines) if lines <= limit => {
            format!("which now has {lines} lines; remove the entry")
        }
        Some(lines) if lines < entry.lines => {
            format!("which now has {lines} lines; write {lines}")
        }
        Some(_) => return None,
    };
    Some(TidyViolation::new(TABLES, 1, format!("the table lists `{}` with {} lines, {remedy}", entry.item, entry.lines)))
}

#[cfg(test)]
mod tests {
    use super::super::sample::source;
    use super::*;

    const TABLE: &[LengthException] = &[LengthException { item: "a.rs::f", lines: 5, reason: "a flat table" }];

    /// The violations of a function `f` with this many lines, if three are allowed.
    fn violation_texts(lines: usize, table: &[LengthException]) -> Vec<String> {
        let text = format!("fn f() {{{}}}\n", "\n".repeat(lines - 1));
        let violations = check_lengths(&measure_functions(&source("a.rs", &text)), 3, table);
        violations.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_long_function_is_found_unless_listed() {
        let found = violation_texts(4, &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a.rs:1: `a.rs::f` is 4 lines long; the limit is 3;"), "{found:?}");
        assert!(violation_texts(3, &[]).is_empty());
        assert!(violation_texts(5, TABLE).is_empty());
    }

    #[test]
    fn a_listed_function_may_not_grow() {
        let found = violation_texts(6, TABLE);
        assert!(found[0].contains("listed with 5 (a flat table)"), "{found:?}");
    }

    #[test]
    fn exceptions_are_tightened_and_then_removed() {
        assert!(violation_texts(4, TABLE)[0].ends_with("which now has 4 lines; write 4"));
        assert!(violation_texts(3, TABLE)[0].ends_with("which now has 3 lines; remove the entry"));
        assert!(check_lengths(&[], 3, TABLE)[0].sentence.ends_with("which does not exist; remove the entry"));
    }

    #[test]
    fn a_long_file_is_found() {
        let of_lines = |lines| violations(&[source("a.rs", &"//\n".repeat(lines))]).len();
        assert_eq!(of_lines(FILE_LINES_MAX + 1), 1);
        assert_eq!(of_lines(FILE_LINES_MAX), 0);
    }
}
