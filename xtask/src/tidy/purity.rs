//! What the pure crates must not use: clock, files, environment, network, processes, output,
//! randomness, unordered collections.
//!
//! In core, clippy finds uses by type (`crates/converger-core/clippy.toml`). This rule finds the
//! words, in core and in the ledger, so that an import, a type in a signature or an `allow` cannot
//! bypass it. Even the keys of a ledger are made of bytes that the caller passes in. Dependencies
//! are checked in `crate_rules`.

use super::TidyViolation;
use super::rust_source::{RustSource, is_name_character, line_at, offsets_of_word};

/// The pure crates and their directories.
const PURE_CRATES: &[(&str, &str)] = &[("core", "crates/converger-core/src/"), ("the ledger", "crates/converger-ledger/src/")];

const BANNED_MODULES: &[&str] = &["time", "fs", "env", "net", "process"];

const BANNED_WORDS: &[(&str, &str)] = &[
    ("HashMap", "its order differs from run to run; use BTreeMap"),
    ("HashSet", "its order differs from run to run; use BTreeSet"),
    ("println!", "return a report; the program prints it"),
    ("eprintln!", "return a report; the program prints it"),
    ("print!", "return a report; the program prints it"),
    ("eprint!", "return a report; the program prints it"),
    ("SystemTime", "time is an argument"),
    ("Instant", "time is an argument"),
    ("RandomState", "randomness is an argument"),
    ("OsRng", "randomness is an argument"),
    ("thread_rng", "randomness is an argument"),
    ("getrandom", "randomness is an argument"),
];

pub(super) fn violations(source: &RustSource) -> Vec<TidyViolation> {
    let Some((crate_name, _)) = PURE_CRATES.iter().find(|(_, path)| source.is_under(path)) else { return Vec::new() };
    let word_violations = BANNED_WORDS.iter().flat_map(|entry| banned_word_violations(source, crate_name, entry));
    word_violations.chain(banned_module_violations(source, crate_name)).collect()
}

fn banned_word_violations(source: &RustSource, crate_name: &str, (word, reason): &(&str, &str)) -> Vec<TidyViolation> {
    offsets_of_word(&source.code, word).map(|offset| violation(source, offset, &format!("`{word}` in {crate_name}: {reason}"))).collect()
}

fn banned_module_violations(source: &RustSource, crate_name: &str) -> Vec<TidyViolation> {
    let named = offsets_of_word(&source.code, "std::").flat_map(|offset| {
        let names = first_path_names(&source.code[offset + "std::".len()..]);
        names.into_iter().filter(|name| BANNED_MODULES.contains(name)).map(move |name| (offset, name))
    });
    named
        .map(|(offset, name)| {
            let sentence = format!("`std::{name}` in {crate_name}: take what it provides as an argument");
            violation(source, offset, &sentence)
        })
        .collect()
}

/// The first modules of a path after `std::`: one, or several for a group such as `{fs, time::Duration}`.
fn first_path_names(path: &str) -> Vec<&str> {
    match path.trim_start().strip_prefix('{') {
        None => vec![first_path_name(path)],
        Some(group) => split_group(group).into_iter().map(first_path_name).collect(),
    }
}

/// The members of a group up to its closing brace, split at commas outside nested groups.
fn split_group(group: &str) -> Vec<&str> {
    let mut members = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (offset, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                members.push(&group[start..offset]);
                return members;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                members.push(&group[start..offset]);
                start = offset + 1;
            }
            _ => {}
        }
    }
    members
}

fn first_path_name(path: &str) -> &str {
    let path = path.trim_start();
    &path[..path.find(|character| !is_name_character(character)).unwrap_or(path.len())]
}

fn violation(source: &RustSource, offset: usize, sentence: &str) -> TidyViolation {
    TidyViolation::new(&source.path, line_at(&source.code, offset), sentence)
}

#[cfg(test)]
mod tests {
    use super::super::sample::{lines, source};
    use super::*;

    fn violations_in_core(text: &str) -> Vec<TidyViolation> {
        violations(&source("crates/converger-core/src/plan.rs", text))
    }

    #[test]
    fn every_forbidden_word_is_found_in_core() {
        for (word, _) in BANNED_WORDS {
            assert_eq!(lines(&violations_in_core(&format!("//! Plan.\nuse {word};\n"))), [2], "{word}");
        }
    }

    #[test]
    fn every_forbidden_module_is_found_alone_and_in_a_group() {
        for module in BANNED_MODULES {
            assert_eq!(lines(&violations_in_core(&format!("\nuse std::{module}::X;"))), [2], "{module}");
            assert_eq!(lines(&violations_in_core(&format!("use std::{{fmt, {module}}};"))), [1], "{module}");
            assert_eq!(lines(&violations_in_core(&format!("let x = ::std::{module}::f();"))), [1], "{module}");
        }
        let nested = violations_in_core("use std::{collections::{BTreeMap, BTreeSet}, fs::{self, File}};");
        assert_eq!(nested.len(), 1);
    }

    #[test]
    fn the_same_words_are_banned_in_the_ledger() {
        let in_ledger = |text: &str| violations(&source("crates/converger-ledger/src/note.rs", text));
        for text in ["use std::fs;", "use std::net::TcpStream;", "let now = SystemTime::now();", "OsRng.fill(&mut seed);"] {
            assert_eq!(lines(&in_ledger(text)), [1], "{text}");
        }
        assert!(in_ledger("use std::fmt;").is_empty());
    }

    #[test]
    fn pure_code_and_other_crates_pass() {
        assert!(violations_in_core("use std::{fmt, collections::BTreeMap};\n// std::fs, HashMap\n\"std::env\"").is_empty());
        assert!(violations_in_core("use core::time::Duration; let environment = my_std::fs;").is_empty());
        assert!(violations(&source("crates/converger/src/main.rs", "use std::fs; println!()")).is_empty());
    }
}
