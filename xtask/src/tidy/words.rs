//! Words that no Rust file of ours contains, and the opening that every one has.
//!
//! What never enters here: words that depend on more than one file, and what only core may not say
//! (see `purity`).

use super::Violation;
use super::rust::{Source, line_at, offsets_of_word};

/// Why a word is not welcome.
type Reason = &'static str;

const UNFINISHED: Reason = "finish it, or leave it out and say so in the issue";
const TESTS_RUN: Reason = "a test that does not run, or passes by failing, proves nothing; assert the outcome";

/// Words that may not stand in code.
const IN_CODE: &[(&str, Reason)] = &[
    ("todo!", UNFINISHED),
    ("unimplemented!", UNFINISHED),
    ("#[ignore", TESTS_RUN),
    ("should_panic", TESTS_RUN),
    ("assert!(true)", TESTS_RUN),
    ("thread::sleep", "nothing here waits by the clock; hand in the time, or wait for the event"),
    ("unsafe", "unsafe code is forbidden in the whole workspace"),
];

/// Words that may not stand in comments.
const IN_COMMENTS: &[(&str, Reason)] = &[
    ("FIXME", UNFINISHED),
    ("XXX", UNFINISHED),
    ("TODO:", "a debt carries its kind and its issue, as in TODO-limit(#42)"),
    ("TODO(", "a debt carries its kind and its issue, as in TODO-limit(#42)"),
    ("```ignore", TESTS_RUN),
];

/// Rust that is data for a test may look as it likes.
const TEST_DATA: &[&str] = &["/tests/data/", "/tests/fixtures/", "/testdata/"];

pub(super) fn violations(source: &Source) -> Vec<Violation> {
    let code = IN_CODE.iter().flat_map(|entry| found(source, &source.code, entry));
    let comments = IN_COMMENTS.iter().flat_map(|entry| found(source, &source.comments, entry));
    code.chain(comments).chain(opening(source)).collect()
}

fn found(source: &Source, layer: &str, (word, reason): &(&str, Reason)) -> Vec<Violation> {
    offsets_of_word(layer, word).map(|offset| Violation::new(&source.path, line_at(layer, offset), format!("`{word}`: {reason}"))).collect()
}

fn opening(source: &Source) -> Option<Violation> {
    let ours = source.is_under("crates/") || source.is_under("xtask/");
    let data = TEST_DATA.iter().any(|folder| source.path.contains(folder));
    let wrong = ours && !data && !source.text.starts_with("//! ");
    wrong.then(|| {
        let sentence = "a file opens with `//!`: what this room is for and what never enters it";
        Violation::new(&source.path, 1, sentence)
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{lines, source};
    use super::*;

    fn found_in(text: &str) -> Vec<usize> {
        lines(&violations(&source("crates/a/src/lib.rs", &format!("//! A room.\n{text}\n"))))
    }

    #[test]
    fn every_forbidden_word_is_found_in_code() {
        for (word, _) in IN_CODE {
            assert_eq!(found_in(&format!("fn f() {{}}\n{word} ")), [3], "{word}");
        }
    }

    #[test]
    fn every_forbidden_word_is_found_in_comments() {
        for (word, _) in IN_COMMENTS {
            assert_eq!(found_in(&format!("// {word} later")), [2], "{word}");
            assert_eq!(found_in(&format!("/* a\n{word} */")), [3], "{word}");
        }
    }

    #[test]
    fn a_word_in_a_literal_or_inside_a_longer_one_is_welcome() {
        assert!(found_in("const A: &str = \"todo!() FIXME\"; // unsafe; todo!").is_empty());
        assert!(found_in("#![forbid(unsafe_code)] // TODO-limit(#42): one lane only").is_empty());
    }

    #[test]
    fn a_file_without_an_opening_is_found() {
        let at = |path, text| lines(&violations(&source(path, text)));
        assert_eq!(at("crates/a/src/lib.rs", "fn f() {}\n"), [1]);
        assert_eq!(at("xtask/src/main.rs", "\n//! Too late.\n"), [1]);
        assert!(at("crates/a/src/lib.rs", "//! A room.\n").is_empty());
        assert!(at("crates/a/tests/data/b.rs", "fn f() {}\n").is_empty());
        assert!(at("fuzz/a.rs", "fn f() {}\n").is_empty());
    }
}
