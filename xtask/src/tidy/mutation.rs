//! The one road to a change: what is sent is made by the engine's operation, put into a request by the hand, and comes from an
//! approved plan by the driver. Whoever else says these words has found a second road.
//!
//! What never enters here: tests, which may send what they like to a lab; and which crate may use which (see `arrows`).

use super::Violation;
use super::rust::{Source, line_at, offsets_of_word};

const OPERATION: &str = "crates/converger-engine/src/operation.rs";
const DRIVER: &str = "crates/converger-engine/src/driver/execution.rs";
const HAND: &str = "crates/converger-adapters/src/proxmox/hand/";
const CODEC: &str = "crates/converger-adapters/src/proxmox/codec/";
const APPROVE: &str = "crates/converger-core/src/approve.rs";
const EXECUTOR: &str = "crates/converger-runtime/src/executor.rs";

/// Words, and where they may stand.
const WORDS: &[(&str, &[&str])] = &[
    ("Ask::Send", &[OPERATION, HAND]),
    ("Command::Write", &[CODEC, HAND]),
    ("into_operations", &[APPROVE, DRIVER]),
    ("Hand for", &[EXECUTOR]),
];

pub(super) fn violations(source: &Source) -> Vec<Violation> {
    if !is_of_the_program(&source.path) {
        return Vec::new();
    }
    WORDS.iter().flat_map(|(word, places)| found(source, word, places)).collect()
}

/// What is compiled into the program: sources of crates that are no tests.
fn is_of_the_program(path: &str) -> bool {
    path.starts_with("crates/") && path.contains("/src/") && !path.contains("/tests/") && !path.ends_with("/tests.rs")
}

fn found(source: &Source, word: &str, places: &[&str]) -> Vec<Violation> {
    if places.iter().any(|place| source.is_under(place)) {
        return Vec::new();
    }
    let sentence = format!("`{word}` here is a second road to a change; all mutation goes through the engine");
    offsets_of_word(&source.code, word).map(|offset| Violation::new(&source.path, line_at(&source.code, offset), &*sentence)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::{lines, source};
    use super::*;

    #[test]
    fn a_second_road_is_found_and_the_one_road_is_not() {
        for (word, places) in WORDS {
            let text = format!("//! A room.\nuse {word} something;\n// {word}\n");
            assert_eq!(lines(&violations(&source("crates/converger/src/commands/doctor.rs", &text))), [2], "{word}");
            for place in *places {
                assert!(violations(&source(place, &text)).is_empty(), "{word} in {place}");
            }
        }
    }

    #[test]
    fn tests_and_what_ships_with_nothing_may_send_to_a_lab() {
        for path in ["crates/converger/tests/lab.rs", "crates/converger-engine/src/driver/tests/world.rs", "xtask/src/lab.rs"] {
            assert!(violations(&source(path, "Ask::Send")).is_empty(), "{path}");
        }
    }
}
