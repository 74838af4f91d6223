//! Splits a Rust file into three layers, code, comments and literals, each with the original lines
//! and columns.
//!
//! Because of this, a rule can forbid a word and name it in a string without matching itself. There
//! is no grammar: rules only need to know the layer of a character.

use super::TrackedFile;

/// A Rust file and its layers. In `code` and `comments`, everything else is blank.
pub(super) struct RustSource {
    pub(super) path: String,
    pub(super) text: String,
    pub(super) code: String,
    pub(super) comments: String,
}

impl RustSource {
    pub(super) fn new(file: &TrackedFile) -> Self {
        let stretches = split_layers(&file.text);
        Self {
            path: file.path.clone(),
            text: file.text.clone(),
            code: keep_layer(SourceLayer::Code, &stretches),
            comments: keep_layer(SourceLayer::Comment, &stretches),
        }
    }

    pub(super) fn is_under(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }
}

/// The line of the byte at `offset`, counted from 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// Where `word` occurs as a whole word: `unsafe` is not in `unsafe_code`.
pub(super) fn offsets_of_word<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let stands_alone = move |offset: usize| {
        let (before, after) = (&text[..offset], &text[offset + word.len()..]);
        !is_inside_name(before.chars().next_back(), word.chars().next()) && !is_inside_name(word.chars().next_back(), after.chars().next())
    };
    text.match_indices(word).map(|(offset, _)| offset).filter(move |offset| stands_alone(*offset))
}

fn is_inside_name(left: Option<char>, right: Option<char>) -> bool {
    left.is_some_and(is_name_character) && right.is_some_and(is_name_character)
}

pub(super) fn is_name_character(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceLayer {
    Code,
    Comment,
    Literal,
}

fn split_layers(text: &str) -> Vec<(SourceLayer, &str)> {
    let mut stretches = Vec::new();
    let mut rest = text;
    let mut previous = None;
    while !rest.is_empty() {
        let (layer, length) = first_layer(rest, previous);
        let (stretch, after) = rest.split_at(length);
        previous = stretch.chars().next_back();
        stretches.push((layer, stretch));
        rest = after;
    }
    stretches
}

/// The layer at the start of `rest`, and how many bytes are known to be in it.
fn first_layer(rest: &str, previous: Option<char>) -> (SourceLayer, usize) {
    if rest.starts_with("//") {
        (SourceLayer::Comment, rest.find('\n').unwrap_or(rest.len()))
    } else if rest.starts_with("/*") {
        (SourceLayer::Comment, block_comment_length(rest))
    } else if let Some(length) = raw_string_length(rest, previous) {
        (SourceLayer::Literal, length)
    } else if rest.starts_with('"') {
        (SourceLayer::Literal, quoted_length(rest, '"'))
    } else if is_character_literal(rest) {
        (SourceLayer::Literal, quoted_length(rest, '\''))
    } else {
        (SourceLayer::Code, rest.chars().next().map_or(0, char::len_utf8))
    }
}

/// Block comments nest in Rust.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut offset = 0;
    while let Some(found) = rest[offset..].find(['/', '*']) {
        offset += found;
        let (change, length) = match rest.get(offset..offset + 2) {
            Some("/*") => (1, 2),
            Some("*/") => (-1, 2),
            _ => (0, 1),
        };
        depth = depth.saturating_add_signed(change);
        offset += length;
        if depth == 0 {
            return offset;
        }
    }
    rest.len()
}

/// `r"..."`, `r#"..."#`, `br"..."`, `cr"..."`; but neither the raw name `r#fn` nor the end of the name `bar`.
fn raw_string_length(rest: &str, previous: Option<char>) -> Option<usize> {
    let inside_a_name = previous.is_some_and(is_name_character) && !matches!(previous, Some('b' | 'c'));
    let fenced = rest.strip_prefix('r').filter(|_| !inside_a_name)?;
    let inner = fenced.trim_start_matches('#');
    let hashes = &fenced[..fenced.len() - inner.len()];
    let body = inner.strip_prefix('"')?;
    let fence = format!("\"{hashes}");
    let end = body.find(&fence).map_or(body.len(), |end| end + fence.len());
    Some(rest.len() - body.len() + end)
}

/// The length from the opening quote to the closing one, skipping escapes.
fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (offset, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return offset + quote.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// `'a'` and `'\n'` are characters, `'a` is a lifetime.
fn is_character_literal(rest: &str) -> bool {
    let mut characters = rest.chars();
    characters.next() == Some('\'') && (characters.next() == Some('\\') || characters.next() == Some('\''))
}

fn keep_layer(layer: SourceLayer, stretches: &[(SourceLayer, &str)]) -> String {
    stretches.iter().map(|(of, stretch)| if *of == layer { (*stretch).to_owned() } else { blank_out(stretch) }).collect()
}

/// Spaces of the same length in bytes, so that offsets and lines stay the same.
fn blank_out(stretch: &str) -> String {
    stretch.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample::source;
    use super::*;

    fn code_layer(text: &str) -> String {
        source("a.rs", text).code
    }

    fn comment_layer(text: &str) -> String {
        source("a.rs", text).comments
    }

    #[test]
    fn literals_are_blanked_in_code_and_comments() {
        assert_eq!(code_layer(r#"a("x\"{") + b"y""#), "a(      ) + b   ");
        assert_eq!(code_layer("r#\"a \"quoted\" }\"# + r\"\\\" + 1"), "                  +      + 1");
        assert_eq!(code_layer(r"['{', '\'', '\u{7d}'] }"), "[   ,     ,         ] }");
        assert_eq!(comment_layer(r#"url("//no") // yes"#), "            // yes");
    }

    #[test]
    fn comments_are_apart_from_code_and_may_nest() {
        assert_eq!(code_layer("a // b\nc"), "a     \nc");
        assert_eq!(code_layer("a /* b /* c */ */ d"), "a                 d");
        assert_eq!(comment_layer("a /* b\n */ d"), "  /* b\n */  ");
        assert_eq!(code_layer("a /* never closed"), "a                ");
    }

    #[test]
    fn lifetimes_raw_names_and_names_that_end_in_r_are_code() {
        for text in ["fn f<'a>(x: &'a str) -> &'a str { x }", "r#fn + r#match", "for bar in 0..1 { 'x: loop {} }"] {
            assert_eq!(code_layer(text), text);
        }
    }

    #[test]
    fn layers_keep_every_offset_even_past_wide_characters() {
        let text = "// größer · ok\nlet x = \"ä\"; 'ß'; end";
        assert_eq!(code_layer(text).find("end"), text.find("end"));
        assert_eq!(comment_layer(text).len(), text.len());
    }

    #[test]
    fn a_word_is_found_only_by_itself() {
        let offsets = |text, word| offsets_of_word(text, word).collect::<Vec<_>>();
        assert_eq!(offsets("unsafe_code, unsafe {", "unsafe"), [13]);
        assert_eq!(offsets("eprintln!() println!()", "println!"), [12]);
        assert_eq!(line_at("a\nb\nc", 4), 3);
    }
}
