//! Checks that there is only one path to a change: the engine's operation creates what is sent, the
//! actuator turns it into a request, and the executor takes it from an approved plan. Any other use
//! of these words is a second path.
//!
//! Tests are exempt: they may send anything to a lab. Which crate may use which is in
//! `crate_rules`.

use super::TidyViolation;
use super::rust_source::{RustSource, line_at, offsets_of_word};

const OPERATION: &str = "crates/converger-engine/src/operation.rs";
const EXECUTION: &str = "crates/converger-engine/src/executor/execution.rs";
const ACTUATOR: &str = "crates/converger-adapters/src/proxmox/actuator/";
const CODEC: &str = "crates/converger-adapters/src/proxmox/codec/";
const APPROVE: &str = "crates/converger-core/src/approve.rs";
const EXECUTOR: &str = "crates/converger-runtime/src/executor.rs";

/// Words, and the files that may contain them.
const RESTRICTED_WORDS: &[(&str, &[&str])] = &[
    ("EnvRequest::Send", &[OPERATION, ACTUATOR]),
    ("ProxmoxCommand::Write", &[CODEC, ACTUATOR]),
    ("into_operations", &[APPROVE, EXECUTION]),
    ("Actuator for", &[EXECUTOR]),
];

pub(super) fn violations(source: &RustSource) -> Vec<TidyViolation> {
    if !is_program_source(&source.path) {
        return Vec::new();
    }
    RESTRICTED_WORDS.iter().flat_map(|(word, paths)| misplaced_words(source, word, paths)).collect()
}

/// Sources that are compiled into the program: those of crates, without tests.
fn is_program_source(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && !path.contains("/tests/") && !path.ends_with("/tests.rs")
}

fn misplaced_words(source: &RustSource, word: &str, paths: &[&str]) -> Vec<TidyViolation> {
    if paths.iter().any(|path| source.is_under(path)) {
        return Vec::new();
    }
    let sentence = format!("`{word}` here is a second path to a change; all changes must go through the engine");
    offsets_of_word(&source.code, word).map(|offset| TidyViolation::new(&source.path, line_at(&source.code, offset), &*sentence)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{lines, source};
    use super::*;

    #[test]
    fn restricted_words_are_found_outside_their_files() {
        for (word, paths) in RESTRICTED_WORDS {
            let text = format!("//! A module.\nuse {word} something;\n// {word}\n");
            assert_eq!(lines(&violations(&source("crates/converger/src/commands/doctor.rs", &text))), [2], "{word}");
            for path in *paths {
                assert!(violations(&source(path, &text)).is_empty(), "{word} in {path}");
            }
        }
    }

    #[test]
    fn tests_may_send_to_a_lab() {
        for path in ["crates/converger/tests/lab.rs", "crates/converger-engine/src/executor/tests/cluster.rs", "xtask/src/lab.rs"] {
            assert!(violations(&source(path, "Ask::Send")).is_empty(), "{path}");
        }
    }
}
