//! What the run library must not do itself: print, end the process, or read the terminal or the
//! command line. The programs that embed it own all of these.
//!
//! The rule applies to the sources of `converger-runtime`. Crates that it must not reach are in
//! `crate_rules`.

use super::TidyViolation;
use super::rust_source::{RustSource, is_name_character, line_at, offsets_of_word};

const RUN_LIBRARY: &str = "crates/converger-runtime/src/";

const PRINTS: &str = "publish a `RunEvent`";

/// Macros, which need no import.
const MACROS: &[(&str, &str)] = &[("println!", PRINTS), ("eprintln!", PRINTS), ("print!", PRINTS), ("eprint!", PRINTS)];

const RETURNS: &str = "return an error, so that the caller decides";
const INPUTS: &str = "take it as an argument";

/// Functions of `std`, by module and name.
const FUNCTIONS: &[(&str, &str, &str)] =
    &[("process", "exit", RETURNS), ("io", "stdin", INPUTS), ("env", "args", INPUTS), ("env", "args_os", INPUTS)];

pub(super) fn violations(source: &RustSource) -> Vec<TidyViolation> {
    if !source.is_under(RUN_LIBRARY) {
        return Vec::new();
    }
    let code = source.code.as_str();
    let macros =
        MACROS.iter().flat_map(|(name, remedy)| offsets_of_word(code, name).map(move |offset| (offset, (*name).to_owned(), *remedy)));
    let functions = FUNCTIONS.iter().flat_map(|(module, name, remedy)| {
        uses_of(code, module, name).into_iter().map(move |offset| (offset, format!("{module}::{name}"), *remedy))
    });
    let violation = |(offset, name, remedy): (usize, String, &str)| {
        TidyViolation::new(&source.path, line_at(code, offset), format!("`{name}` in the run library: {remedy}"))
    };
    macros.chain(functions).map(violation).collect()
}

/// Where `module::name` is used, also as a member of a group: `process::{self, exit}`.
fn uses_of(code: &str, module: &str, name: &str) -> Vec<usize> {
    let names_it = |offset: &usize| {
        let Some(path) = code[offset + module.len()..].trim_start().strip_prefix("::") else { return false };
        match path.trim_start().strip_prefix('{') {
            Some(group) => group_members(group).contains(&name),
            None => first_name(path.trim_start()) == name,
        }
    };
    offsets_of_word(code, module).filter(names_it).collect()
}

/// The first names of the members of a group, without nested groups.
fn group_members(group: &str) -> Vec<&str> {
    let mut members = Vec::new();
    let (mut depth, mut start) = (0_i32, 0);
    for (offset, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '}' | ',' if depth == 0 => {
                members.push(first_name(group[start..offset].trim_start()));
                start = offset + 1;
            }
            _ => {}
        }
        if character == '}' && start > offset {
            break;
        }
    }
    members
}

fn first_name(path: &str) -> &str {
    &path[..path.find(|character| !is_name_character(character)).unwrap_or(path.len())]
}

#[cfg(test)]
mod tests {
    use super::super::sample::{lines, source};
    use super::*;

    fn found_in(text: &str) -> Vec<usize> {
        lines(&violations(&source("crates/converger-runtime/src/run.rs", text)))
    }

    #[test]
    fn every_macro_that_prints_is_found() {
        for (name, _) in MACROS {
            assert_eq!(found_in(&format!("\nfn f() {{ {name}(\"x\"); }}")), [2], "{name}");
        }
    }

    #[test]
    fn every_function_is_found_by_path_and_in_groups() {
        for (module, name, _) in FUNCTIONS {
            assert_eq!(found_in(&format!("let x = std::{module}::{name}();")), [1], "{module}::{name}");
            assert_eq!(found_in(&format!("use std::{module}::{name};")), [1], "{module}::{name}");
            assert_eq!(found_in(&format!("use std::{module}::{{self, {name}}};")), [1], "{module}::{name}");
            assert_eq!(found_in(&format!("use std::{{fmt, {module}::{{a::{{b, c}}, {name}}}}};")), [1], "{module}::{name}");
        }
    }

    #[test]
    fn other_words_and_other_crates_pass() {
        assert!(
            found_in("command.stdin(Stdio::null()); use std::process::{Command, ExitStatus}; // println!\n\"process::exit\"").is_empty()
        );
        assert!(found_in("use std::io::{Read, Write}; fn args() {} let exit = process::id();").is_empty());
        assert!(violations(&source("crates/converger/src/main.rs", "println!(); std::process::exit(1)")).is_empty());
    }
}
