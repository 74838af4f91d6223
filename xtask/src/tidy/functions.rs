//! The functions of a Rust file: name, line, length, body, and whether it is a test.
//!
//! Must not contain rules. It parses the code layer, exactly enough for code that is formatted by
//! rustfmt.

use super::rust_source::{RustSource, is_name_character, line_at, offsets_of_word};

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RustFunction<'a> {
    pub(super) name: &'a str,
    /// The line of the word `fn`; attributes and docs do not count as length.
    pub(super) line: usize,
    pub(super) lines: usize,
    pub(super) body: &'a str,
    pub(super) is_test: bool,
}

/// All functions of the file with a body, including nested ones.
pub(super) fn find_functions(source: &RustSource) -> Vec<RustFunction<'_>> {
    let code = source.code.as_str();
    offsets_of_word(code, "fn").filter_map(|offset| parse_function(code, offset)).collect()
}

fn parse_function(code: &str, offset: usize) -> Option<RustFunction<'_>> {
    let rest = &code[offset..];
    let name = name_after(rest, "fn")?;
    let start = body_start(rest)?;
    let body = &rest[start..start + block_length(&rest[start..])];
    Some(RustFunction {
        name,
        line: line_at(code, offset),
        lines: rest[..start + body.len()].lines().count(),
        body,
        is_test: attributes_make_a_test(&code[..offset]),
    })
}

/// The name after a keyword such as `fn`; the type `fn(u8)` has none.
pub(super) fn name_after<'a>(rest: &'a str, keyword: &str) -> Option<&'a str> {
    let after = rest.strip_prefix(keyword)?.trim_start();
    let length = after.find(|character| !is_name_character(character))?;
    Some(&after[..length]).filter(|name| !name.is_empty())
}

/// Where the body starts; `None` for a declaration, which ends with a semicolon outside brackets.
fn body_start(rest: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (offset, character) in rest.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(offset),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn block_length(block: &str) -> usize {
    let mut depth = 0_i32;
    for (offset, character) in block.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return offset + character.len_utf8();
        }
    }
    block.len()
}

/// The attributes are between the end of the previous item and the word `fn`.
pub(super) fn attributes_make_a_test(before: &str) -> bool {
    let attributes = &before[before.rfind(['{', '}', ';']).unwrap_or(0)..];
    ["#[test]", "::test]", "::test("].iter().any(|mark| attributes.contains(mark))
}

#[cfg(test)]
mod tests {
    use super::super::sample::source;
    use super::*;

    fn summarise_functions(text: &str) -> Vec<(String, usize, usize, bool)> {
        let source = source("a.rs", text);
        let seen = find_functions(&source);
        seen.iter().map(|found| (found.name.to_owned(), found.line, found.lines, found.is_test)).collect()
    }

    #[test]
    fn declarations_and_function_types_are_skipped() {
        assert!(summarise_functions("trait T { fn f(&self, x: [u8; 4]) -> u8; }\ntype F = fn(u8) -> u8;\n// fn g() {}").is_empty());
    }

    #[test]
    fn length_runs_from_the_word_to_the_closing_brace() {
        let text = "/// docs\n#[must_use]\npub const fn f(\n    x: [u8; 2],\n) -> u8 {\n    { x[0] }\n}\n\
                    fn g() {}\n";
        assert_eq!(summarise_functions(text), [("f".to_owned(), 3, 5, false), ("g".to_owned(), 8, 1, false)]);
    }

    #[test]
    fn braces_in_literals_and_comments_do_not_end_a_body() {
        assert_eq!(summarise_functions("fn f() {\n  a(\"}\"); // }\n  '}'\n}\n"), [("f".to_owned(), 1, 4, false)]);
    }

    #[test]
    fn tests_are_known_by_their_attribute() {
        let text = "#[test]\nfn a() {}\nfn b() {}\n#[tokio::test(flavor = \"x\")]\nasync fn c() {}\n\
                    #[test]\n/// docs; with a semicolon\n#[cfg(unix)]\nfn d() {}\n";
        let tests: Vec<bool> = summarise_functions(text).iter().map(|(_, _, _, is_test)| *is_test).collect();
        assert_eq!(tests, [true, false, true, true]);
    }
}
