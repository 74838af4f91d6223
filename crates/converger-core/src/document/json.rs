//! JSON text as events (RFC 8259), with byte spans and without a tree.
//!
//! serde_json is the oracle in tests. It is not used here because it gives no position for a well-formed but wrong value, stops at the
//! first fault, and would need a second decoder beside the one for YAML.

use std::borrow::Cow;

use super::{DEPTH_MAX, DecodeAborted, Diagnostic, Diagnostics, DocumentEvent, EventSource, QuoteStyle, ScalarToken, Span};

pub(super) struct JsonEvents<'t> {
    text: &'t str,
    at: usize,
    /// Start of the last event, which ended at the cursor.
    start: usize,
    open: Vec<JsonContainer>,
    expect: JsonExpectation,
    diagnostics: Diagnostics,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonContainer {
    Map,
    List,
}

/// What may come next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JsonExpectation {
    Value,
    FirstItemOrEnd,
    FirstKeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
    End,
}

type EventResult<'t> = Result<DocumentEvent<'t>, DecodeAborted>;

impl<'t> JsonEvents<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, at: 0, start: 0, open: Vec::new(), expect: JsonExpectation::Value, diagnostics: Diagnostics::default() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    #[cold]
    fn fault<T>(&mut self, message: &str) -> Result<T, DecodeAborted> {
        let rest = self.text.get(self.at..).unwrap_or("");
        let width = rest.chars().next().map_or(0, char::len_utf8);
        let found = if rest.is_empty() { "the text ends here" } else { message };
        let fault = Diagnostic::new(Span::new(self.at, self.at + width), format!("this is not valid JSON: {found}"));
        let help = if rest.is_empty() { "the file is cut off; write it again" } else { "correct the text at this place" };
        self.diagnostics.push(fault.with_help(help));
        Err(DecodeAborted)
    }

    fn emit_single(&mut self, event: DocumentEvent<'t>) -> EventResult<'t> {
        self.at += 1;
        Ok(event)
    }

    fn open_container(&mut self, kind: JsonContainer) -> EventResult<'t> {
        if self.open.len() >= DEPTH_MAX {
            return self.fault("it is nested deeper than 32 levels");
        }
        self.open.push(kind);
        let (expect, event) = match kind {
            JsonContainer::Map => (JsonExpectation::FirstKeyOrEnd, DocumentEvent::MapStart),
            JsonContainer::List => (JsonExpectation::FirstItemOrEnd, DocumentEvent::ListStart),
        };
        self.expect = expect;
        self.emit_single(event)
    }

    fn close_container(&mut self, kind: JsonContainer) -> EventResult<'t> {
        if self.open.pop() != Some(kind) {
            return self.fault("this bracket does not match an open one");
        }
        self.expect_after_value();
        self.emit_single(if kind == JsonContainer::Map { DocumentEvent::MapEnd } else { DocumentEvent::ListEnd })
    }

    fn expect_after_value(&mut self) {
        self.expect = if self.open.is_empty() { JsonExpectation::End } else { JsonExpectation::CommaOrEnd };
    }

    fn read_value(&mut self) -> EventResult<'t> {
        match self.peek() {
            Some(b'{') => self.open_container(JsonContainer::Map),
            Some(b'[') => self.open_container(JsonContainer::List),
            Some(b'"') => {
                self.expect_after_value();
                self.read_string()
            }
            Some(b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => self.read_literal(),
            Some(0xef) if self.at == 0 => self.fault("it begins with a byte order mark; save it without"),
            _ => self.fault("a value is expected here"),
        }
    }

    fn read_key(&mut self) -> EventResult<'t> {
        if self.peek() != Some(b'"') {
            return self.fault("a key in double quotes is expected here");
        }
        self.expect = JsonExpectation::Colon;
        self.read_string()
    }

    /// Reads a number, `true`, `false` or `null`. Numbers stay text; the caller checks for integers.
    fn read_literal(&mut self) -> EventResult<'t> {
        while matches!(self.peek(), Some(b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z')) {
            self.at += 1;
        }
        let text = self.text.get(self.start..self.at).unwrap_or("");
        if !matches!(text, "true" | "false" | "null") && !is_number(text) {
            self.at = self.start;
            return self.fault("a value is expected here (a number, true, false, null, or text in double quotes)");
        }
        self.expect_after_value();
        Ok(scalar_event(Cow::Borrowed(text), QuoteStyle::Plain))
    }

    fn read_string(&mut self) -> EventResult<'t> {
        self.at += 1;
        let mut owned: Option<String> = None;
        let mut run = self.at;
        loop {
            self.at += count_plain_bytes(self.text.as_bytes().get(self.at..).unwrap_or(&[]));
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    let text = owned.get_or_insert_default();
                    text.push_str(self.text.get(run..self.at).unwrap_or(""));
                    let unescaped = self.read_escape()?;
                    owned.get_or_insert_default().push(unescaped);
                    run = self.at;
                }
                Some(b'\n') => return self.fault("the text in quotes is not closed before the end of the line"),
                Some(_) => return self.fault("a control character inside text must be escaped"),
                None => return self.fault("the text ends here"),
            }
        }
        let tail = self.text.get(run..self.at).unwrap_or("");
        self.at += 1;
        let text = match owned {
            None => Cow::Borrowed(tail),
            Some(mut text) => {
                text.push_str(tail);
                Cow::Owned(text)
            }
        };
        Ok(scalar_event(text, QuoteStyle::Quoted))
    }

    /// Reads the escape at the cursor and moves past it.
    fn read_escape(&mut self) -> Result<char, DecodeAborted> {
        let letter = self.text.as_bytes().get(self.at + 1).copied();
        let simple = match letter {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.read_unicode_escape(),
            _ => return self.fault("this escape does not exist"),
        };
        self.at += 2;
        Ok(simple)
    }

    fn read_unicode_escape(&mut self) -> Result<char, DecodeAborted> {
        let Some(first) = self.read_hex(self.at) else { return self.fault("`\\u` needs four hexadecimal digits") };
        if !(0xd800..0xe000).contains(&first) {
            self.at += 6;
            return char::from_u32(first).map_or_else(|| self.fault("this escape is not a character"), Ok);
        }
        // Require a complete surrogate pair: half a character must not reach a digest.
        let second = self.read_hex(self.at + 6).filter(|low| (0xdc00..0xe000).contains(low) && first < 0xdc00);
        let paired = second.and_then(|low| char::from_u32(0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00)));
        match paired {
            Some(character) => {
                self.at += 12;
                Ok(character)
            }
            None => self.fault("this is half of a surrogate pair"),
        }
    }

    /// The number in `\uXXXX` at `at`.
    fn read_hex(&self, at: usize) -> Option<u32> {
        let digits = self.text.get(at..at + 6)?.strip_prefix("\\u")?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        u32::from_str_radix(digits, 16).ok()
    }
}

impl<'t> EventSource<'t> for JsonEvents<'t> {
    fn next_event(&mut self) -> EventResult<'t> {
        loop {
            self.skip_space();
            self.start = self.at;
            match (self.expect, self.peek()) {
                (JsonExpectation::End, None) => return Ok(DocumentEvent::End),
                (JsonExpectation::End, Some(_)) => return self.fault("nothing may follow the document"),
                (JsonExpectation::Value, None) if self.open.is_empty() => {
                    self.expect = JsonExpectation::End;
                    return Ok(DocumentEvent::End);
                }
                (JsonExpectation::Value, _) => return self.read_value(),
                (JsonExpectation::FirstItemOrEnd, Some(b']')) => return self.close_container(JsonContainer::List),
                (JsonExpectation::FirstItemOrEnd, _) => return self.read_value(),
                (JsonExpectation::FirstKeyOrEnd, Some(b'}')) => return self.close_container(JsonContainer::Map),
                (JsonExpectation::FirstKeyOrEnd | JsonExpectation::Key, _) => return self.read_key(),
                (JsonExpectation::Colon, Some(b':')) => self.expect = JsonExpectation::Value,
                (JsonExpectation::Colon, _) => return self.fault("a colon is expected here"),
                (JsonExpectation::CommaOrEnd, Some(b',')) if self.open.last() == Some(&JsonContainer::Map) => {
                    self.expect = JsonExpectation::Key
                }
                (JsonExpectation::CommaOrEnd, Some(b',')) => self.expect = JsonExpectation::Value,
                (JsonExpectation::CommaOrEnd, Some(b'}')) => return self.close_container(JsonContainer::Map),
                (JsonExpectation::CommaOrEnd, Some(b']')) => return self.close_container(JsonContainer::List),
                (JsonExpectation::CommaOrEnd, _) => return self.fault("a comma or a closing bracket is expected here"),
            }
            self.at += 1;
        }
    }

    fn span(&self) -> Span {
        Span::new(self.start, self.at)
    }

    fn diagnostics(&mut self) -> &mut Diagnostics {
        &mut self.diagnostics
    }
}

fn scalar_event(text: Cow<'_, str>, style: QuoteStyle) -> DocumentEvent<'_> {
    DocumentEvent::Scalar(ScalarToken { text, style })
}

/// The number of bytes before the first special byte in a string: `"`, `\` or a control character.
///
/// Checks eight bytes at a time: most of a file is strings, and checking each byte cost a tenth of the time of a run.
fn count_plain_bytes(bytes: &[u8]) -> usize {
    let (words, rest) = bytes.as_chunks();
    for (index, word) in words.iter().enumerate() {
        let marks = mark_special_bytes(u64::from_le_bytes(*word));
        if marks != 0 {
            return index * 8 + marks.trailing_zeros() as usize / 8;
        }
    }
    let in_rest = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
    words.len() * 8 + in_rest.unwrap_or(rest.len())
}

/// Sets the high bit of the first special byte in a word, and of no byte before it.
fn mark_special_bytes(word: u64) -> u64 {
    const EACH: u64 = u64::from_le_bytes([1; 8]);
    // A byte below `bound` borrows from its high bit. Bytes after it may be affected too, but never one before it.
    let below = |word: u64, bound: u8| word.wrapping_sub(EACH * u64::from(bound)) & !word;
    let is = |byte: u8| below(word ^ (EACH * u64::from(byte)), 1);
    (below(word, 0x20) | is(b'"') | is(b'\\')) & (EACH * 0x80)
}

/// The number grammar of RFC 8259.
fn is_number(text: &str) -> bool {
    // Nearly all numbers here consist of digits only.
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text == "0" || (!text.is_empty() && !text.starts_with('0'));
    }
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let text = text.strip_prefix('-').unwrap_or(text);
    let (mantissa, exponent) = text.split_once(['e', 'E']).map_or((text, None), |(mantissa, exponent)| (mantissa, Some(exponent)));
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(whole, fraction)| (whole, Some(fraction)));
    let whole_is_fine = digits(whole) && (whole == "0" || !whole.starts_with('0'));
    let exponent_is_fine = exponent.is_none_or(|exponent| digits(exponent.strip_prefix(['+', '-']).unwrap_or(exponent)));
    whole_is_fine && fraction.is_none_or(digits) && exponent_is_fine
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Builds a value from the events, to compare it with the oracle.
    fn parse_tree(text: &str) -> Result<Value, Diagnostics> {
        let mut json = JsonEvents::new(text);
        read_document(&mut json).map_err(|DecodeAborted| std::mem::take(json.diagnostics()))
    }

    fn read_document(json: &mut JsonEvents<'_>) -> Result<Value, DecodeAborted> {
        let event = json.next_event()?;
        if matches!(event, DocumentEvent::End) {
            return json.fault("nothing there");
        }
        let value = build_value(json, event)?;
        match json.next_event()? {
            DocumentEvent::End => Ok(value),
            other => panic!("{other:?} after the document"),
        }
    }

    fn build_value(json: &mut JsonEvents<'_>, event: DocumentEvent<'_>) -> Result<Value, DecodeAborted> {
        Ok(match event {
            DocumentEvent::Scalar(scalar) if scalar.style == QuoteStyle::Quoted => Value::String(scalar.text.into_owned()),
            DocumentEvent::Scalar(scalar) => serde_json::from_str(&scalar.text).map_err(|_| DecodeAborted)?,
            DocumentEvent::ListStart => {
                let mut list = Vec::new();
                loop {
                    match json.next_event()? {
                        DocumentEvent::ListEnd => break Value::Array(list),
                        event => list.push(build_value(json, event)?),
                    }
                }
            }
            DocumentEvent::MapStart => {
                let mut map = serde_json::Map::new();
                loop {
                    match json.next_event()? {
                        DocumentEvent::MapEnd => break Value::Object(map),
                        DocumentEvent::Scalar(key) => {
                            let key = key.text.into_owned();
                            let event = json.next_event()?;
                            map.insert(key, build_value(json, event)?);
                        }
                        other => panic!("{other:?} as a key"),
                    }
                }
            }
            other => panic!("{other:?} as a value"),
        })
    }

    /// Concatenates pieces that matter to a JSON parser, so that random texts are often nearly valid.
    fn random_text(rng: &mut crate::testing::Rng) -> String {
        const PIECES: &[&str] = &[
            "{",
            "}",
            "[",
            "]",
            ":",
            ",",
            "\"",
            "\"a\"",
            "\"\\n\"",
            "\"\\u00e9\"",
            "\"\\ud83d\\ude00\"",
            "\"\\ud83d\"",
            "\\u",
            "0",
            "-0",
            "01",
            "1.5",
            "1e9",
            "1e",
            "-",
            "true",
            "false",
            "null",
            "nul",
            " ",
            "\n",
            "é",
            "\u{1}",
            "\"k\":",
            "[1,2]",
            "{\"a\":1}",
        ];
        (0..1 + rng.below(8)).map(|_| PIECES[rng.below(PIECES.len() as u64) as usize]).collect()
    }

    #[test]
    fn agrees_with_serde_json_on_random_texts() {
        let mut rng = crate::testing::Rng::new(8259);
        let mut accepted = 0;
        for case in 0..200_000 {
            let text = random_text(&mut rng);
            let parsed = parse_tree(&text).ok();
            let expected = serde_json::from_str::<Value>(&text).ok();
            assert_eq!(parsed, expected, "case {case} of seed 8259: {text:?}");
            accepted += u32::from(parsed.is_some());
        }
        assert!(accepted > 1_000, "only {accepted} texts were valid: the generator proves little");
    }

    #[test]
    fn finds_the_first_special_byte_of_a_string() {
        let mut rng = crate::testing::Rng::new(64);
        for case in 0..100_000 {
            let special = 1 + rng.below(40);
            let mut byte = || match rng.below(special) {
                0 => b"\"\\\0\n\x1f"[rng.below(5) as usize],
                1 => b"\x20\x21\x23\x5b\x5d\x7f\x80\xa2\xdc\xff"[rng.below(10) as usize],
                _ => rng.below(256) as u8,
            };
            let bytes: Vec<u8> = (0..case % 30).map(|_| byte()).collect();
            let first = bytes.iter().position(|byte| *byte < 0x20 || *byte == b'"' || *byte == b'\\').unwrap_or(bytes.len());
            assert_eq!(count_plain_bytes(&bytes), first, "case {case} of seed 64: {bytes:02x?}");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let text = "[".repeat(100_000);
        let faults = parse_tree(&text).expect_err("nested too deep");
        assert!(faults.list()[0].message.contains("deeper than 32"), "{faults:?}");
    }
}
