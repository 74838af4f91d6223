//! Writes text as YAML: unquoted if every parser reads exactly this text, otherwise quoted.
//!
//! Any text becomes one scalar and reads back unchanged. Must not deal with layout.

use super::invisible_chars::is_invisible;
use super::reader::is_ambiguous;

/// Formats text as a scalar on one line, valid in block and flow context.
pub(crate) fn to_yaml_scalar(text: &str) -> String {
    if is_plain_scalar(text) { text.to_owned() } else { to_yaml_quoted(text) }
}

/// Formats text in double quotes. Characters that are invisible or act on a terminal are escaped.
pub(crate) fn to_yaml_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            hidden if is_invisible(hidden) => match u32::from(hidden) {
                number @ 0..=0xffff => out.push_str(&format!("\\u{number:04x}")),
                number => out.push_str(&format!("\\U{number:08x}")),
            },
            plain => out.push(plain),
        }
    }
    out.push('"');
    out
}

/// Formats a one-line comment, whatever untrusted text it contains.
pub(crate) fn to_yaml_comment(text: &str) -> String {
    let shown: String = text.chars().map(|character| if is_invisible(character) { '?' } else { character }).collect();
    format!("# {shown}")
}

/// The lines of a text that a literal block (`|-`) preserves, even after an editor strips trailing whitespace.
pub(crate) fn literal_block_lines(text: &str) -> Option<impl Iterator<Item = &str>> {
    let is_kept = |line: &str| !line.starts_with('\t') && line.trim_end() == line && !line.chars().any(is_invisible);
    let begins = text.lines().next().is_some_and(|first| !first.is_empty() && !first.starts_with(' '));
    let ends = !text.ends_with('\n');
    (text.contains('\n') && begins && ends && text.split('\n').all(is_kept)).then(|| text.split('\n'))
}

/// Whether every YAML parser, including those of YAML 1.1, reads this bare word as exactly this text: not as a number, date, boolean or
/// syntax.
fn is_plain_scalar(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b' ' | b'-' | b'_' | b'.' | b'/' | b'+');
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic()) && !text.ends_with(' ') && text.bytes().all(is_allowed);
    (is_word && !is_ambiguous(text)) || is_uuid(text)
}

/// Whether it has groups of 8, 4, 4, 4 and 12 hexadecimal digits. It may start with a digit and is still not a number.
fn is_uuid(text: &str) -> bool {
    let is_group = |(group, len): (&str, usize)| group.len() == len && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.split('-').count() == 5 && text.split('-').zip([8, 4, 4, 4, 12]).all(is_group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{DecodeAborted, DocumentDecoder, DocumentReader, EventSource, Notation, decode};
    use crate::testing::{HOSTILE_TEXTS, Rng};

    struct TextDecoder;

    impl DocumentDecoder<Option<String>> for TextDecoder {
        fn decode<'t, S: EventSource<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<Option<String>, DecodeAborted> {
            let mut found = None;
            reader.read_fields("the test", &["key", "list"], |reader, key, _| match key {
                0 => reader.read_text("`key`").map(|text| found = text.map(|(text, _)| text.into_owned())),
                _ => reader
                    .read_items("`list`", |reader| reader.read_text("an item").map(|text| found = text.map(|(text, _)| text.into_owned())))
                    .map(|_| ()),
            })?;
            Ok(found)
        }
    }

    fn decode_yaml(yaml: &str) -> Option<String> {
        decode(yaml.as_bytes(), Notation::Yaml, TextDecoder).unwrap_or_else(|faults| panic!("{yaml:?}: {faults:#?}"))
    }

    #[test]
    fn ambiguous_text_is_quoted() {
        for text in [
            "",
            "true",
            "No",
            "null",
            "~",
            "12",
            "0x10",
            "0b11",
            "1e3",
            "1_000",
            "2001-12-14",
            "12:30:45",
            "10:24:11:00:00:01",
            " a",
            "a ",
            "a: b",
            "a #b",
            "#",
            "- a",
            "*a",
            "&a",
            "!a",
            "a\nb",
            "a,b",
            "[a]",
            "{a",
            "'a'",
            "\"",
            "@a",
            "`a",
            "%a",
            "é",
            "a:",
            "y",
            ".inf",
        ] {
            assert!(to_yaml_scalar(text).starts_with('"'), "{text:?}: {}", to_yaml_scalar(text));
        }
        for text in
            ["web-1", "front end", "c++", "v1.2", "a/b", "1c0d6f6e-5a0e-4a55-9d3c-000000000064", "11111111-2222-3333-4444-555555555555"]
        {
            assert_eq!(to_yaml_scalar(text), text);
        }
    }

    #[test]
    fn invisible_characters_are_escaped() {
        assert_eq!(
            to_yaml_scalar("a\u{1b}\u{202e}\u{e0041}\u{ffff}\u{85}\u{feff}\r\tx"),
            r#""a\u001b\u202e\U000e0041\uffff\u0085\ufeff\u000d\tx""#
        );
    }

    #[test]
    fn comments_are_one_line() {
        assert_eq!(to_yaml_comment("a\nb\r\u{2028}\u{1b}é"), "# a?b???é");
    }

    #[test]
    fn literal_blocks_are_used_only_if_they_preserve_the_text() {
        for text in ["a", "a\n", "\na", " a\nb", "a \nb", "a\n\tb", "a\r\nb", "a\n\u{2028}", "a\nb\u{202e}", "\n", ""] {
            assert!(literal_block_lines(text).is_none(), "{text:?}");
        }
        let lines: Vec<&str> = literal_block_lines("a\n\n  # b\n---").expect("kept").collect();
        assert_eq!(lines, ["a", "", "  # b", "---"]);
    }

    /// Pieces that have a meaning in YAML, and some that have none.
    const PIECES: &[&str] = &[
        "a",
        "Z",
        "web-",
        "b",
        "c.d",
        "0",
        "1",
        "e",
        " ",
        "  ",
        "\n",
        "\n\n",
        "\t",
        "\r",
        "#",
        " #",
        ":",
        ": ",
        ",",
        "-",
        "- ",
        "'",
        "\"",
        "\\",
        "{",
        "}",
        "[",
        "]",
        "|",
        ">",
        "&",
        "*",
        "!",
        "%",
        "@",
        "`",
        "?",
        "? ",
        "---",
        "...",
        "true",
        "null",
        "é",
        "😀",
        "e\u{301}",
        "\u{0}",
        "\u{1b}",
        "\u{7f}",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        "\u{fffd}",
        "\u{ffff}",
        "\u{10ffff}",
        "\u{e000}",
        "\u{202e}",
        "\u{e0041}",
    ];

    /// Checks any text in a block map, in a flow list and as a literal block.
    #[test]
    fn every_text_reads_back_unchanged() {
        let mut rng = Rng::new(2718);
        let (mut unquoted, mut blocks) = (0, 0);
        for case in 0..40_000 {
            let text: String = match HOSTILE_TEXTS.get(case) {
                Some(hostile) => (*hostile).to_owned(),
                None => (0..rng.below(9)).map(|_| rng.pick_word(PIECES)).collect(),
            };
            let written = to_yaml_scalar(&text);
            let context = format!("case {case} of seed 2718: {text:?} as {written}");
            assert_eq!(decode_yaml(&format!("key: {written}  # why\n")).as_deref(), Some(&*text), "{context}");
            assert_eq!(decode_yaml(&format!("list: [{written}]\n")).as_deref(), Some(&*text), "{context}");
            assert_eq!(decode_yaml(&format!("{{list: [{written} ], key: {written}}}")).as_deref(), Some(&*text), "{context}");
            unquoted += u32::from(!written.starts_with('"'));
            if let Some(lines) = literal_block_lines(&text) {
                let lines: String = lines.map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") }).collect();
                assert_eq!(decode_yaml(&format!("key: |-\n{lines}list: []\n")).as_deref(), Some(&*text), "{context}");
                blocks += 1;
            }
        }
        assert!(unquoted > 500 && blocks > 500, "only {unquoted} bare words and {blocks} blocks");
    }
}
