//! Figures on names and wording over the whole workspace, compared with limits that only fall.
//!
//! Four figures: types that share a name with another type, functions whose name is a participle,
//! functions named as predicates that do not return `bool`, and lines with a word that readers
//! stumble over. The limits are in `xtask/ratchets.toml`; a figure above its limit is a violation.
//! There is no list of exceptions by name.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use super::definitions::{FunctionSignature, function_signatures, type_definitions};
use super::participles::is_participle_name;
use super::rust_source::RustSource;
use super::{TidyViolation, TrackedFile, find_file};
use crate::shell::TaskError;

const LIMITS: &str = "xtask/ratchets.toml";

/// Prefixes that promise a `bool`.
const PREDICATES: &[&str] = &["is_", "has_", "may_", "can_"];

/// In two parts, so that this file does not contain it.
const BANNED_WORD: &str = concat!("who", "ever");

/// How many offenders per figure the report lists.
const LISTED: usize = 60;

/// One figure: the number of offenders, the total, and the offenders.
struct Figure {
    key: &'static str,
    what: &'static str,
    remedy: &'static str,
    offending: usize,
    /// `None` for a plain count.
    total: Option<usize>,
    /// By name or path, with all places.
    offenders: BTreeMap<String, Vec<String>>,
}

impl Figure {
    fn new(
        key: &'static str,
        what: &'static str,
        remedy: &'static str,
        total: Option<usize>,
        offenders: BTreeMap<String, Vec<String>>,
    ) -> Self {
        let offending = offenders.values().map(Vec::len).sum();
        Self { key, what, remedy, offending, total, offenders }
    }

    /// The value that the limit applies to: the count, or the share in hundredths of a percent, rounded up.
    fn value(&self) -> usize {
        self.total.map_or(self.offending, |total| (self.offending * 10_000).div_ceil(total.max(1)))
    }

    fn shown(&self, value: usize) -> String {
        match self.total {
            Some(_) => format!("{}.{:02} %", value / 100, value % 100),
            None => value.to_string(),
        }
    }

    fn violation(&self, limits: &str) -> Option<TidyViolation> {
        let (line, limit) = match limit(limits, self.key) {
            Some(found) => found,
            None => return Some(TidyViolation::new(LIMITS, 1, format!("no line `{} = NUMBER`; add it with {}", self.key, self.value()))),
        };
        let sentence = format!(
            "{}: {}, and the limit is {}, which only falls; {} (`cargo xtask tidy --report` lists them)",
            self.what,
            self.shown(self.value()),
            self.shown(limit),
            self.remedy
        );
        (self.value() > limit).then(|| TidyViolation::new(LIMITS, line, sentence))
    }

    fn report(&self, limits: &str) -> String {
        let limit = limit(limits, self.key).map_or_else(|| "none".to_owned(), |(_, limit)| self.shown(limit));
        let of_total = self.total.map_or_else(String::new, |total| format!(" ({} of {total})", self.offending));
        let mut text = format!("{}: {}{of_total}; limit {limit}\n", self.what, self.shown(self.value()));
        let mut worst: Vec<_> = self.offenders.iter().collect();
        worst.sort_by_key(|(name, locations)| (std::cmp::Reverse(locations.len()), *name));
        for (name, locations) in worst.iter().take(LISTED) {
            let more = if locations.len() > 3 { " ..." } else { "" };
            let _ = writeln!(text, "  {:>4}  {name}  {}{more}", locations.len(), locations[..locations.len().min(3)].join(" "));
        }
        if worst.len() > LISTED {
            let _ = writeln!(text, "        and {} more", worst.len() - LISTED);
        }
        text
    }
}

pub(super) fn violations(files: &[TrackedFile], sources: &[RustSource]) -> Vec<TidyViolation> {
    let limits = limits_text(files);
    figures(files, sources).iter().filter_map(|figure| figure.violation(limits)).collect()
}

/// All figures with their limits and worst offenders.
pub(super) fn report(files: &[TrackedFile], sources: &[RustSource]) -> String {
    let limits = limits_text(files);
    figures(files, sources).iter().map(|figure| figure.report(limits)).collect::<Vec<_>>().join("\n")
}

/// Lowers the limits to the current figures.
pub(super) fn tighten(files: &[TrackedFile], sources: &[RustSource]) -> Result<(), TaskError> {
    let text = tightened_limits(limits_text(files), &figures(files, sources));
    fs::write(LIMITS, text).map_err(|error| TaskError::new(format!("cannot write `{LIMITS}`: {error}")))
}

fn tightened_limits(limits: &str, figures: &[Figure]) -> String {
    let lower = |line: &str| {
        let figure = figures.iter().find(|figure| limit(line, figure.key).is_some_and(|(_, limit)| figure.value() < limit));
        figure.map_or_else(|| line.to_owned(), |figure| format!("{} = {}", figure.key, figure.value()))
    };
    limits.lines().map(|line| lower(line) + "\n").collect()
}

fn limits_text(files: &[TrackedFile]) -> &str {
    find_file(files, LIMITS).map_or("", |file| file.text.as_str())
}

/// Line and number of `key = number`.
fn limit(limits: &str, key: &str) -> Option<(usize, usize)> {
    limits.lines().enumerate().find_map(|(index, line)| {
        let (name, number) = line.split_once('=')?;
        Some((index + 1, number.trim().parse().ok()?)).filter(|_| name.trim() == key)
    })
}

fn figures(files: &[TrackedFile], sources: &[RustSource]) -> [Figure; 4] {
    [
        types_sharing_a_name(sources),
        functions_named_by_a_participle(sources),
        predicates_without_bool(sources),
        lines_with_a_banned_word(files),
    ]
}

fn types_sharing_a_name(sources: &[RustSource]) -> Figure {
    let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        for found in type_definitions(source) {
            by_name.entry(found.name.to_owned()).or_default().push(place(source, found.line));
        }
    }
    let total = by_name.values().map(Vec::len).sum();
    by_name.retain(|_, locations| locations.len() > 1);
    Figure::new(
        "types_sharing_a_name",
        "types that share their name with another type",
        "give each type a name that has one meaning in the workspace",
        Some(total),
        by_name,
    )
}

fn functions_named_by_a_participle(sources: &[RustSource]) -> Figure {
    let total = sources.iter().map(|source| function_signatures(source).len()).sum();
    let offenders = functions_where(sources, |found| !found.is_test && is_participle_name(found.name), |found| found.name.to_owned());
    Figure::new(
        "functions_named_by_a_participle",
        "functions whose name is a participle",
        "name the function by a verb with its object, or an accessor by a noun",
        Some(total),
        offenders,
    )
}

fn predicates_without_bool(sources: &[RustSource]) -> Figure {
    let is_wrong =
        |found: &FunctionSignature| PREDICATES.iter().any(|prefix| found.name.starts_with(prefix)) && found.returns != Some("bool");
    let describe = |found: &FunctionSignature| format!("{} -> {}", found.name, found.returns.unwrap_or("()"));
    Figure::new(
        "predicates_without_bool",
        "functions named `is_`, `has_`, `may_` or `can_` that do not return `bool`",
        "return `bool`, or name the function by what it does",
        None,
        functions_where(sources, is_wrong, describe),
    )
}

fn functions_where(
    sources: &[RustSource],
    is_wrong: impl Fn(&FunctionSignature) -> bool,
    describe: impl Fn(&FunctionSignature) -> String,
) -> BTreeMap<String, Vec<String>> {
    let mut offenders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources {
        for found in function_signatures(source).iter().filter(|found| is_wrong(found)) {
            offenders.entry(describe(found)).or_default().push(place(source, found.line));
        }
    }
    offenders
}

/// In all tracked text: code, documents, goldens and help.
fn lines_with_a_banned_word(files: &[TrackedFile]) -> Figure {
    let mut offenders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            if line.to_ascii_lowercase().contains(BANNED_WORD) {
                offenders.entry(file.path.clone()).or_default().push(format!("line {}", index + 1));
            }
        }
    }
    Figure::new(
        "lines_with_a_banned_word",
        concat!("lines with \"who", "ever\""),
        "say who: the caller, the operator, the process that holds the lock",
        None,
        offenders,
    )
}

fn place(source: &RustSource, line: usize) -> String {
    format!("{}:{line}", source.path)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{file, source};
    use super::*;

    /// The sentences of the violations if `key` may be at most `limit` and the other figures are not limited.
    fn sentences(key: &str, limit: usize, text: &str) -> Vec<String> {
        let keys = ["types_sharing_a_name", "functions_named_by_a_participle", "predicates_without_bool", "lines_with_a_banned_word"];
        let lines = keys.map(|other| format!("{other} = {}\n", if other == key { limit } else { 10_000 }));
        let files = [file(LIMITS, &lines.concat()), file("a.rs", text)];
        violations(&files, &[source("a.rs", text)]).iter().map(|violation| violation.sentence.clone()).collect()
    }

    #[test]
    fn two_types_of_one_name_are_found() {
        let text = "struct A;\nmod m { enum A {} }\ntrait B {}\nstruct C;\n";
        let found = sentences("types_sharing_a_name", 4999, text);
        assert!(found[0].starts_with("types that share their name with another type: 50.00 %, and the limit is 49.99 %"), "{found:?}");
        assert!(sentences("types_sharing_a_name", 5000, text).is_empty());
    }

    #[test]
    fn a_function_named_by_a_participle_is_found_and_a_test_is_not() {
        let text = "fn told() {}\nfn send() {}\n#[test]\nfn a_guest_is_seen() {}\n";
        let found = sentences("functions_named_by_a_participle", 3333, text);
        assert!(found[0].contains("33.34 %"), "the share is rounded up: {found:?}");
        assert!(sentences("functions_named_by_a_participle", 3334, text).is_empty());
    }

    #[test]
    fn a_predicate_without_bool_is_found_also_in_a_trait() {
        let text = "trait T { fn may_act(&self) -> Option<u8>; }\nfn is_ready() -> bool { true }\nfn has_key() {}\nfn issue() {}\n";
        assert_eq!(sentences("predicates_without_bool", 1, text).len(), 1);
        assert!(sentences("predicates_without_bool", 2, text).is_empty());
    }

    #[test]
    fn the_banned_word_is_found_in_any_text() {
        let text = format!("// {} asks\n// W{}\n// who asks\n", BANNED_WORD, &BANNED_WORD[1..]);
        assert_eq!(sentences("lines_with_a_banned_word", 1, &text).len(), 1);
        assert!(sentences("lines_with_a_banned_word", 2, &text).is_empty());
    }

    #[test]
    fn a_missing_limit_is_found() {
        let found = violations(&[file(LIMITS, "# none\ntypes_sharing_a_name = many\n")], &[]);
        assert_eq!(found.len(), 4, "{found:?}");
    }

    #[test]
    fn limits_are_written_lower_and_never_higher() {
        let sources = [source("a.rs", "fn told() {}\nfn is_so() {}\n")];
        let limits = "# comment\nfunctions_named_by_a_participle = 9000\npredicates_without_bool = 0\n";
        let expected = "# comment\nfunctions_named_by_a_participle = 5000\npredicates_without_bool = 0\n";
        assert_eq!(tightened_limits(limits, &figures(&[], &sources)), expected);
    }

    #[test]
    fn the_report_names_the_worst_first_with_their_places() {
        let text = "fn told() {}\nfn seen() {}\nmod m { fn told() {} }\n";
        let report = report(&[], &[source("a.rs", text)]);
        assert!(report.contains("     2  told  a.rs:1 a.rs:3\n     1  seen  a.rs:2\n"), "{report}");
    }
}
