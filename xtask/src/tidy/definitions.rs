//! The names that a Rust file defines: its types, and its functions with their return types.
//!
//! Only the code layer is read, so definitions in comments and literals do not count. Declarations
//! in traits, which have no body, count too (see `functions` for bodies).

use super::functions::{attributes_make_a_test, name_after};
use super::rust_source::{RustSource, line_at, offsets_of_word};

/// A struct, an enum or a trait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TypeDefinition<'a> {
    pub(super) name: &'a str,
    pub(super) line: usize,
}

/// A function, with or without a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FunctionSignature<'a> {
    pub(super) name: &'a str,
    pub(super) line: usize,
    /// The return type as written; `None` if none is written.
    pub(super) returns: Option<&'a str>,
    pub(super) is_test: bool,
}

const TYPE_KEYWORDS: &[&str] = &["struct", "enum", "trait"];

/// All structs, enums and traits of the file. A name that a macro fills in (`$name`) does not count.
pub(super) fn type_definitions(source: &RustSource) -> Vec<TypeDefinition<'_>> {
    let code = source.code.as_str();
    let of_keyword = |keyword: &'static str| {
        offsets_of_word(code, keyword).filter_map(move |offset| {
            let name = name_after(&code[offset..], keyword)?;
            Some(TypeDefinition { name, line: line_at(code, offset) })
        })
    };
    TYPE_KEYWORDS.iter().flat_map(|keyword| of_keyword(keyword)).collect()
}

/// All functions of the file, including methods, declarations and nested ones.
pub(super) fn function_signatures(source: &RustSource) -> Vec<FunctionSignature<'_>> {
    let code = source.code.as_str();
    offsets_of_word(code, "fn").filter_map(|offset| function_signature(code, offset)).collect()
}

fn function_signature(code: &str, offset: usize) -> Option<FunctionSignature<'_>> {
    let rest = &code[offset..];
    let name = name_after(rest, "fn")?;
    let signature = &rest[..signature_length(rest)];
    Some(FunctionSignature {
        name,
        line: line_at(code, offset),
        returns: return_type(signature),
        is_test: attributes_make_a_test(&code[..offset]),
    })
}

/// The length up to the body or to the semicolon of a declaration.
fn signature_length(rest: &str) -> usize {
    let mut depth = 0_i32;
    for (offset, character) in rest.char_indices() {
        match character {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' | ';' if depth == 0 => return offset,
            _ => {}
        }
    }
    rest.len()
}

/// The type after the arrow outside all brackets: `fn f(g: impl Fn() -> u8) -> bool` returns `bool`.
fn return_type(signature: &str) -> Option<&str> {
    let mut depth = 0_i32;
    let mut previous = ' ';
    for (offset, character) in signature.char_indices() {
        match character {
            '(' | '[' | '<' => depth += 1,
            '>' if previous == '-' && depth == 0 => return Some(without_bounds(&signature[offset + 1..])),
            '>' if previous == '-' || previous == '=' => {}
            ')' | ']' | '>' => depth -= 1,
            _ => {}
        }
        previous = character;
    }
    None
}

fn without_bounds(returned: &str) -> &str {
    let end = offsets_of_word(returned, "where").next().unwrap_or(returned.len());
    returned[..end].trim()
}

#[cfg(test)]
mod tests {
    use super::super::sample::source;
    use super::*;

    #[test]
    fn finds_structs_enums_and_traits_but_no_placeholders() {
        let source =
            source("a.rs", "pub struct A;\nenum B { C }\n// struct D;\ntrait E<T> {}\nmacro_rules! m { ($n:ident) => { struct $n; } }\n");
        let mut found: Vec<_> = type_definitions(&source).iter().map(|found| (found.name.to_owned(), found.line)).collect();
        found.sort();
        assert_eq!(found, [("A".to_owned(), 1), ("B".to_owned(), 2), ("E".to_owned(), 4)]);
    }

    fn returned(text: &str) -> Vec<(String, Option<String>)> {
        let source = source("a.rs", text);
        let signatures = function_signatures(&source);
        signatures.iter().map(|found| (found.name.to_owned(), found.returns.map(str::to_owned))).collect()
    }

    #[test]
    fn reads_the_return_type_of_functions_and_declarations() {
        let some = |name: &str, returns: &str| (name.to_owned(), Some(returns.to_owned()));
        assert_eq!(returned("fn a(x: [u8; 2]) -> bool {}"), [some("a", "bool")]);
        assert_eq!(returned("trait T { fn b(&self) -> Option<bool>; }"), [some("b", "Option<bool>")]);
        assert_eq!(returned("fn c<F: Fn(u8) -> u8>(f: F) -> bool where F: Copy {}"), [some("c", "bool")]);
        assert_eq!(returned("fn d(f: impl Fn() -> bool) {}"), [("d".to_owned(), None)]);
        assert_eq!(returned("fn e<const N: usize>(x: Vec<[u8; N]>) -> impl Fn() -> bool {}"), [some("e", "impl Fn() -> bool")]);
        assert!(returned("type F = fn(u8) -> bool;").is_empty());
    }

    #[test]
    fn tells_tests_from_other_functions() {
        let source = source("a.rs", "#[test]\nfn a() {}\nfn b() {}\n");
        let tests: Vec<bool> = function_signatures(&source).iter().map(|found| found.is_test).collect();
        assert_eq!(tests, [true, false]);
    }
}
