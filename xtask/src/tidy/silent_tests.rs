//! Finds tests that check nothing: test functions without any word that could make them fail.
//!
//! Whether an assertion is a good one is for the reviewer.

use super::TidyViolation;
use super::functions::find_functions;
use super::rust_source::RustSource;

/// Our own assertion functions are called `check` or start with it.
const ASSERTION_WORDS: &[&str] =
    &["assert", "check", "expect", "unwrap", "panic!", "prop_", "proptest!", "matches!", "verify", "snapshot", "?;"];

pub(super) fn violations(source: &RustSource) -> Vec<TidyViolation> {
    let tests = find_functions(source).into_iter().filter(|function| function.is_test);
    let unasserted = tests.filter(|test| !ASSERTION_WORDS.iter().any(|word| test.body.contains(word)));
    unasserted
        .map(|test| {
            let sentence = format!("the test `{}` asserts nothing; compare the result with the expected one", test.name);
            TidyViolation::new(&source.path, test.line, sentence)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{lines, source};
    use super::*;

    #[test]
    fn a_test_without_an_assertion_is_found() {
        let found = violations(&source("a.rs", "#[test]\nfn a() {\n    let _ = f(); // assert\n}\n"));
        assert_eq!(lines(&found), [2]);
    }

    #[test]
    fn tests_with_assertions_and_other_functions_pass() {
        let text = "#[test]\nfn a() { assert_eq!(f(), 1); }\n#[test]\nfn b() { check_plan(1, 2); }\n\
                    fn c() { f(); }\n";
        assert!(violations(&source("a.rs", text)).is_empty());
    }
}
