//! Words that none of our Rust files may contain, and the comment that each must start with.
//!
//! Rules that only apply to the pure crates are in `purity`.

use super::TidyViolation;
use super::rust_source::{RustSource, line_at, offsets_of_word};

/// Why a word is banned.
type BanReason = &'static str;

const UNFINISHED_REASON: BanReason = "finish it, or leave it out and note that in the issue";
const SKIPPED_TEST_REASON: BanReason = "a test that does not run, or passes by failing, proves nothing; assert the outcome";

/// Words that are banned in code.
const BANNED_IN_CODE: &[(&str, BanReason)] = &[
    ("todo!", UNFINISHED_REASON),
    ("unimplemented!", UNFINISHED_REASON),
    ("#[ignore", SKIPPED_TEST_REASON),
    ("should_panic", SKIPPED_TEST_REASON),
    ("assert!(true)", SKIPPED_TEST_REASON),
    ("thread::sleep", "code must not wait by the clock; take the time as an argument, or wait for the event"),
    ("unsafe", "unsafe code is forbidden in the whole workspace"),
];

/// Words that are banned in comments.
const BANNED_IN_COMMENTS: &[(&str, BanReason)] = &[
    ("FIXME", UNFINISHED_REASON),
    ("XXX", UNFINISHED_REASON),
    ("TODO:", "a TODO needs its kind and its issue, such as TODO-limit(#42)"),
    ("TODO(", "a TODO needs its kind and its issue, such as TODO-limit(#42)"),
    ("```ignore", SKIPPED_TEST_REASON),
];

/// Rust files that are test data are exempt.
const TEST_DATA_FOLDERS: &[&str] = &["/tests/data/", "/tests/fixtures/", "/testdata/"];

pub(super) fn violations(source: &RustSource) -> Vec<TidyViolation> {
    let code = BANNED_IN_CODE.iter().flat_map(|entry| word_violations(source, &source.code, entry));
    let comments = BANNED_IN_COMMENTS.iter().flat_map(|entry| word_violations(source, &source.comments, entry));
    code.chain(comments).chain(missing_opening(source)).collect()
}

fn word_violations(source: &RustSource, layer: &str, (word, reason): &(&str, BanReason)) -> Vec<TidyViolation> {
    offsets_of_word(layer, word)
        .map(|offset| TidyViolation::new(&source.path, line_at(layer, offset), format!("`{word}`: {reason}")))
        .collect()
}

fn missing_opening(source: &RustSource) -> Option<TidyViolation> {
    let is_ours = source.is_under("crates/") || source.is_under("xtask/");
    let data = TEST_DATA_FOLDERS.iter().any(|folder| source.path.contains(folder));
    let wrong = is_ours && !data && !source.text.starts_with("//! ");
    wrong.then(|| {
        let sentence = "a file must start with `//!`: what the module does and what it must not depend on";
        TidyViolation::new(&source.path, 1, sentence)
    })
}

#[cfg(test)]
mod tests {
    use super::super::sample::{lines, source};
    use super::*;

    fn violation_lines(text: &str) -> Vec<usize> {
        lines(&violations(&source("crates/a/src/lib.rs", &format!("//! A module.\n{text}\n"))))
    }

    #[test]
    fn every_forbidden_word_is_found_in_code() {
        for (word, _) in BANNED_IN_CODE {
            assert_eq!(violation_lines(&format!("fn f() {{}}\n{word} ")), [3], "{word}");
        }
    }

    #[test]
    fn every_forbidden_word_is_found_in_comments() {
        for (word, _) in BANNED_IN_COMMENTS {
            assert_eq!(violation_lines(&format!("// {word} later")), [2], "{word}");
            assert_eq!(violation_lines(&format!("/* a\n{word} */")), [3], "{word}");
        }
    }

    #[test]
    fn words_in_literals_and_longer_names_pass() {
        assert!(violation_lines("const A: &str = \"todo!() FIXME\"; // unsafe; todo!").is_empty());
        assert!(violation_lines("#![forbid(unsafe_code)] // TODO-limit(#42): one lane only").is_empty());
    }

    #[test]
    fn files_without_an_opening_comment_are_found() {
        let at = |path, text| lines(&violations(&source(path, text)));
        assert_eq!(at("crates/a/src/lib.rs", "fn f() {}\n"), [1]);
        assert_eq!(at("xtask/src/main.rs", "\n//! Too late.\n"), [1]);
        assert!(at("crates/a/src/lib.rs", "//! A module.\n").is_empty());
        assert!(at("crates/a/tests/data/b.rs", "fn f() {}\n").is_empty());
        assert!(at("fuzz/a.rs", "fn f() {}\n").is_empty());
    }
}
