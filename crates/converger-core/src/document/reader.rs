//! The interface for decoders: maps with known keys, lists, and typed scalars, with a fault for anything else.
//!
//! A method that cannot return what was requested reports why, skips the value and returns `None`, so that the decoder continues and finds
//! the next fault. `Err(DecodeAborted)` means that nothing more can be read.

use core::net::Ipv4Addr;
use std::borrow::Cow;

use super::{Diagnostic, Diagnostics, DocumentEvent, EventSource, QuoteStyle, ScalarToken, Span};

/// Decoding cannot continue; the reason was reported.
#[derive(Debug)]
pub(crate) struct DecodeAborted;

/// The maximal number of known keys of a map.
const KEYS_MAX: usize = 24;

pub(crate) struct DocumentReader<'t, S> {
    source: S,
    text: &'t str,
    peeked: Option<DocumentEvent<'t>>,
}

/// The kind of a value, as far as the notation shows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Map,
    List,
    Text,
    Flag,
    Other,
}

/// Which of the known keys a map has, and where.
pub(crate) struct SeenKeys {
    /// Start of the map, for faults about missing keys.
    pub(crate) span: Span,
    keys: [Option<Span>; KEYS_MAX],
}

impl SeenKeys {
    /// The span of the key with this index.
    pub(crate) fn key_span(&self, index: usize) -> Option<Span> {
        self.keys.get(index).copied().flatten()
    }
}

impl<'t, S: EventSource<'t>> DocumentReader<'t, S> {
    pub(super) fn new(source: S, text: &'t str) -> Self {
        Self { source, text, peeked: None }
    }

    pub(super) fn take_diagnostics(&mut self) -> Diagnostics {
        std::mem::take(self.source.diagnostics())
    }

    /// Requires the end of the text; reports anything that follows.
    pub(super) fn expect_end(&mut self) -> Result<(), DecodeAborted> {
        match self.next_event()? {
            DocumentEvent::End => Ok(()),
            _ => self.report(Diagnostic::new(self.source.span(), "nothing may follow the document")),
        }
    }

    /// Records a fault; too many faults end decoding.
    pub(crate) fn report(&mut self, diagnostic: Diagnostic) -> Result<(), DecodeAborted> {
        let diagnostics = self.source.diagnostics();
        diagnostics.push(diagnostic);
        if diagnostics.is_truncated() { Err(DecodeAborted) } else { Ok(()) }
    }

    /// Records a fault and returns no value.
    pub(crate) fn report_none<T>(&mut self, diagnostic: Diagnostic) -> Result<Option<T>, DecodeAborted> {
        self.report(diagnostic).map(|()| None)
    }

    /// Whether only whitespace and comments are left.
    pub(crate) fn peek_end(&mut self) -> Result<bool, DecodeAborted> {
        let next = self.next_event()?;
        let empty = matches!(next, DocumentEvent::End);
        self.peeked = Some(next);
        Ok(empty)
    }

    /// The kind of the next value, without consuming it.
    pub(crate) fn peek_kind(&mut self) -> Result<ValueKind, DecodeAborted> {
        let next = self.next_event()?;
        let kind = match &next {
            DocumentEvent::MapStart => ValueKind::Map,
            DocumentEvent::ListStart => ValueKind::List,
            DocumentEvent::Scalar(scalar) if scalar.style == QuoteStyle::Quoted => ValueKind::Text,
            DocumentEvent::Scalar(scalar) if matches!(scalar.text.as_ref(), "true" | "false") => ValueKind::Flag,
            _ => ValueKind::Other,
        };
        self.peeked = Some(next);
        Ok(kind)
    }

    /// Reads a map with known keys: `visit` is called with the index and span of each key and must read its value.
    ///
    /// Reports unknown and duplicate keys. `None` if the value is not a map.
    pub(crate) fn read_fields(
        &mut self,
        what: &str,
        keys: &'static [&'static str],
        visit: impl FnMut(&mut Self, usize, Span) -> Result<(), DecodeAborted>,
    ) -> Result<Option<SeenKeys>, DecodeAborted> {
        let report = |reader: &mut Self, key: &str, span| reader.report(unknown_key_fault(what, keys, key, span));
        self.read_fields_and_unknown(what, keys, report, visit)
    }

    /// The same, where the caller deals with unknown keys; their values are skipped.
    pub(crate) fn read_fields_and_unknown(
        &mut self,
        what: &str,
        keys: &'static [&'static str],
        mut on_unknown: impl FnMut(&mut Self, &str, Span) -> Result<(), DecodeAborted>,
        mut visit: impl FnMut(&mut Self, usize, Span) -> Result<(), DecodeAborted>,
    ) -> Result<Option<SeenKeys>, DecodeAborted> {
        let Some(start) = self.expect_map(what)? else { return Ok(None) };
        let mut seen = SeenKeys { span: start, keys: [None; KEYS_MAX] };
        let mut next = 0;
        loop {
            let event = self.next_event()?;
            let span = self.source.span();
            let key = match event {
                DocumentEvent::MapEnd => return Ok(Some(seen)),
                DocumentEvent::Scalar(key) => key,
                event => {
                    self.skip_rest(&event)?;
                    self.report(Diagnostic::new(span, format!("the keys of {what} must be plain words")))?;
                    self.skip_value()?;
                    continue;
                }
            };
            if seen.span.start == seen.span.end {
                seen.span = span;
            }
            match find_key(keys, &key.text, next) {
                None => {
                    on_unknown(self, &key.text, span)?;
                    self.skip_value()?;
                }
                Some(index) => {
                    next = index + 1;
                    self.read_known_key(&mut seen, index, &key.text, span, &mut visit)?;
                }
            }
        }
    }

    /// Reads a map with arbitrary keys: `visit` is called with each key and its span and must read its value.
    ///
    /// `visit` must detect duplicate keys. `None` if the value is not a map.
    pub(crate) fn read_entries(
        &mut self,
        what: &str,
        mut visit: impl FnMut(&mut Self, &str, Span) -> Result<(), DecodeAborted>,
    ) -> Result<Option<Span>, DecodeAborted> {
        let Some(start) = self.expect_map(what)? else { return Ok(None) };
        loop {
            match self.next_event()? {
                DocumentEvent::MapEnd => return Ok(Some(start)),
                DocumentEvent::Scalar(key) => visit(self, &key.text, self.source.span())?,
                event => {
                    self.skip_rest(&event)?;
                    self.report(Diagnostic::new(self.source.span(), format!("the keys of {what} must be plain words")))?;
                    self.skip_value()?;
                }
            }
        }
    }

    /// Reports each key at an index in `wanted` that a map lacks.
    pub(crate) fn require_keys(&mut self, seen: &SeenKeys, what: &str, keys: &[&str], wanted: &[usize]) -> Result<(), DecodeAborted> {
        for index in wanted.iter().filter(|index| seen.key_span(**index).is_none()) {
            let key = keys.get(*index).copied().unwrap_or("");
            self.report(Diagnostic::new(seen.span, format!("{what} lacks the key `{key}`")))?;
        }
        Ok(())
    }

    fn read_known_key(
        &mut self,
        seen: &mut SeenKeys,
        index: usize,
        key: &str,
        span: Span,
        visit: &mut impl FnMut(&mut Self, usize, Span) -> Result<(), DecodeAborted>,
    ) -> Result<(), DecodeAborted> {
        if let Some(first) = seen.key_span(index) {
            let fault = Diagnostic::new(span, format!("the key `{key}` is given twice"));
            self.report(fault.with_help("remove one of them").with_related(first, "first given here"))?;
            return self.skip_value();
        }
        if let Some(slot) = seen.keys.get_mut(index) {
            *slot = Some(span);
        }
        visit(self, index, span)
    }

    fn expect_map(&mut self, what: &str) -> Result<Option<Span>, DecodeAborted> {
        match self.next_event()? {
            DocumentEvent::MapStart => Ok(Some(self.source.span())),
            event => self.report_unexpected(&event, &format!("{what} must be a mapping of keys to values")),
        }
    }

    /// Reads a list; `visit` must read one item per call. Returns the span of the list; `None` if the value is not a list.
    pub(crate) fn read_items(
        &mut self,
        what: &str,
        mut visit: impl FnMut(&mut Self) -> Result<(), DecodeAborted>,
    ) -> Result<Option<Span>, DecodeAborted> {
        let start = match self.next_event()? {
            DocumentEvent::ListStart => self.source.span(),
            event => return self.report_unexpected(&event, &format!("{what} must be a list")),
        };
        loop {
            match self.next_event()? {
                DocumentEvent::ListEnd => return Ok(Some(Span { start: start.start, end: self.source.span().end.max(start.end) })),
                item => {
                    self.peeked = Some(item);
                    visit(self)?;
                }
            }
        }
    }

    /// Reads a string. A bare word that YAML may interpret as something else must be quoted.
    pub(crate) fn read_text(&mut self, what: &str) -> Result<Option<(Cow<'t, str>, Span)>, DecodeAborted> {
        let Some((scalar, span)) = self.read_scalar(what, "text")? else { return Ok(None) };
        if scalar.style == QuoteStyle::Plain && is_ambiguous(&scalar.text) {
            let help = format!("put it in double quotes if you mean the text {}", quote(&scalar.text));
            return self.report_none(Diagnostic::new(span, format!("{what} must be text")).with_help(help));
        }
        Ok(Some((scalar.text, span)))
    }

    /// Reads a decimal integer within bounds.
    pub(crate) fn read_integer(&mut self, what: &str, min: u64, max: u64) -> Result<Option<(u64, Span)>, DecodeAborted> {
        let Some((scalar, span)) = self.read_scalar(what, "a number")? else { return Ok(None) };
        let decimal = scalar.style == QuoteStyle::Plain && is_decimal(&scalar.text);
        if !decimal {
            let help = if scalar.style == QuoteStyle::Quoted { "write it without quotes" } else { "write it in digits, such as 4" };
            return self.report_none(Diagnostic::new(span, format!("{what} must be a whole number")).with_help(help));
        }
        match scalar.text.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some((number, span))),
            _ => self.report_none(Diagnostic::new(span, format!("{what} must be between {min} and {max}"))),
        }
    }

    /// Reads `true` or `false` in exactly this spelling.
    pub(crate) fn read_flag(&mut self, what: &str) -> Result<Option<bool>, DecodeAborted> {
        let Some((scalar, span)) = self.read_scalar(what, "true or false")? else { return Ok(None) };
        match (scalar.style, scalar.text.as_ref()) {
            (QuoteStyle::Plain, "true") => Ok(Some(true)),
            (QuoteStyle::Plain, "false") => Ok(Some(false)),
            _ => {
                let message = format!("{what} must be true or false, not {}", quote(&scalar.text));
                self.report_none(
                    Diagnostic::new(span, message).with_help("only `true` and `false`, in lower case and without quotes, are booleans"),
                )
            }
        }
    }

    /// Reads one of a closed set of words; returns its index.
    pub(crate) fn read_keyword(&mut self, what: &str, words: &[&str]) -> Result<Option<(usize, Span)>, DecodeAborted> {
        let Some((scalar, span)) = self.read_scalar(what, "a word")? else { return Ok(None) };
        if let Some(index) = words.iter().position(|word| *word == scalar.text) {
            return Ok(Some((index, span)));
        }
        let help = nearest_word(&scalar.text, words).map(|near| format!("did you mean `{near}`?"));
        let fault = Diagnostic::new(span, format!("{what} must be one of {}, not {}", words.join(", "), quote(&scalar.text)));
        self.report_none(Diagnostic { help, ..fault })
    }

    /// Skips a `null`, if one is next.
    pub(crate) fn skip_null(&mut self) -> Result<bool, DecodeAborted> {
        match self.next_event()? {
            DocumentEvent::Scalar(scalar) if scalar.style == QuoteStyle::Plain && scalar.text == "null" => Ok(true),
            other => {
                self.peeked = Some(other);
                Ok(false)
            }
        }
    }

    /// Reads any scalar, as written.
    pub(crate) fn read_scalar(&mut self, what: &str, wanted: &str) -> Result<Option<(ScalarToken<'t>, Span)>, DecodeAborted> {
        match self.next_event()? {
            DocumentEvent::Scalar(scalar) if scalar.style == QuoteStyle::Plain && scalar.text.is_empty() => self
                .report_none(Diagnostic::new(self.source.span(), format!("{what} has no value")).with_help(format!("it must be {wanted}"))),
            DocumentEvent::Scalar(scalar) => Ok(Some((scalar, self.source.span()))),
            event => self.report_unexpected(&event, &format!("{what} must be {wanted}")),
        }
    }

    /// Reports an event that was not expected, and skips the value that it starts.
    fn report_unexpected<T>(&mut self, event: &DocumentEvent<'t>, message: &str) -> Result<Option<T>, DecodeAborted> {
        let span = self.source.span();
        let is_broken = matches!(event, DocumentEvent::Broken);
        self.skip_rest(event)?;
        if is_broken {
            return Ok(None);
        }
        let span = if span.start == span.end { self.widen_span(span) } else { span };
        self.report_none(Diagnostic::new(span, message))
    }

    /// Widens an empty span, which would show nothing, to the rest of the word at its position.
    fn widen_span(&self, span: Span) -> Span {
        let start = usize::try_from(span.start).unwrap_or(usize::MAX);
        let rest = self.text.get(start..).unwrap_or("");
        let width = rest.find(|character: char| character.is_whitespace()).unwrap_or(rest.len());
        Span::new(start, start + width)
    }

    /// Skips the next value.
    pub(crate) fn skip_value(&mut self) -> Result<(), DecodeAborted> {
        let event = self.next_event()?;
        self.skip_rest(&event)
    }

    /// Skips the rest of the value that `event` started.
    fn skip_rest(&mut self, event: &DocumentEvent<'t>) -> Result<(), DecodeAborted> {
        let mut depth = usize::from(matches!(event, DocumentEvent::MapStart | DocumentEvent::ListStart));
        while depth > 0 {
            match self.next_event()? {
                DocumentEvent::MapStart | DocumentEvent::ListStart => depth += 1,
                DocumentEvent::MapEnd | DocumentEvent::ListEnd => depth -= 1,
                DocumentEvent::End => return Err(DecodeAborted),
                DocumentEvent::Scalar(_) | DocumentEvent::Broken => {}
            }
        }
        Ok(())
    }

    fn next_event(&mut self) -> Result<DocumentEvent<'t>, DecodeAborted> {
        match self.peeked.take() {
            Some(peeked) => Ok(peeked),
            None => self.source.next_event(),
        }
    }
}

/// A key that is not among those that are accepted here.
pub(crate) fn unknown_key_fault(what: &str, accepted: &[&str], key: &str, span: Span) -> Diagnostic {
    let help = match nearest_word(key, accepted) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known keys: {}", accepted.join(", ")),
    };
    Diagnostic::new(span, format!("unknown key {} in {what}", quote(key))).with_help(help)
}

/// The index of a key among the known ones. Files tend to repeat the order of keys, so the search starts at `next`.
fn find_key(keys: &[&str], key: &str, next: usize) -> Option<usize> {
    let (before, behind) = keys.split_at_checked(next)?;
    // Comparing the first byte distinguishes most keys without a call.
    let is = |own: &&str| own.as_bytes().first() == key.as_bytes().first() && *own == key;
    let find = |keys: &[&str]| keys.iter().position(is);
    find(behind).map(|index| next + index).or_else(|| find(before))
}

/// Decimal digits without sign, leading zero, underscore or exponent.
pub(crate) fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
}

/// Whether some YAML parser would interpret this bare word as a number, a boolean or null.
pub(super) fn is_ambiguous(text: &str) -> bool {
    let is_keyword = ["true", "false", "null", "~", "yes", "no", "on", "off", "y", "n"].iter().any(|word| text.eq_ignore_ascii_case(word));
    text.is_empty() || looks_numeric(text) || is_keyword
}

/// Whether it looks like an integer, decimal, hexadecimal or octal number or a time of day. UUIDs, MAC addresses and IP addresses do not.
fn looks_numeric(text: &str) -> bool {
    if text.parse::<Ipv4Addr>().is_ok() {
        return false;
    }
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0o")) {
        return digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'_');
    }
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let parts = mantissa.split(':').count();
    let digits = |text: &str, others: &[u8]| text.bytes().all(|byte| byte.is_ascii_digit() || others.contains(&byte));
    mantissa.bytes().any(|byte| byte.is_ascii_digit()) && parts <= 3 && digits(mantissa, b"._:") && digits(exponent, b"_")
}

/// Quotes text of a file in a message: in backticks, without control characters, and shortened.
pub(crate) fn quote(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    let shown: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" };
    format!("`{shown}{more}`")
}

/// The known word within two edits; short words allow one.
#[must_use]
pub fn nearest_word<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let distances = known.iter().map(|candidate| (edit_distance(word, candidate), *candidate));
    let (distance, candidate) = distances.min()?;
    let allowed = if candidate.len() > 4 { 2 } else { 1 };
    (distance <= allowed && distance < candidate.len()).then_some(candidate)
}

/// The number of letters to change, add, remove or swap with their neighbour.
///
/// Words longer than any key are treated as far from all of them.
fn edit_distance(left: &str, right: &str) -> usize {
    if left.len() > 64 {
        return usize::MAX;
    }
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let at = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX - 1);
    let mut above: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, from) in left.iter().enumerate() {
        let mut next = vec![line + 1];
        for (column, to) in right.iter().enumerate() {
            let replaced = at(&row, column) + usize::from(from != to);
            let shifted = at(&row, column + 1).min(at(&next, column)) + 1;
            let swaps = line > 0 && column > 0 && left.get(line - 1) == Some(to) && right.get(column - 1) == Some(from);
            let swapped = if swaps { at(&above, column - 1) + 1 } else { usize::MAX };
            next.push(replaced.min(shifted).min(swapped));
        }
        above = std::mem::replace(&mut row, next);
    }
    at(&row, right.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_word_is_within_two_edits() {
        let keys = ["after", "config", "kind", "name", "state", "vmid"];
        assert_eq!(nearest_word("vimd", &keys), Some("vmid"));
        assert_eq!(nearest_word("confg", &keys), Some("config"));
        assert_eq!(nearest_word("nmae", &keys), Some("name"));
        assert_eq!(nearest_word("firewall", &keys), None);
        assert_eq!(nearest_word("args", &["tags"]), None);
        assert_eq!(nearest_word(&"x".repeat(10_000), &keys), None);
    }

    #[test]
    fn edit_distance_counts_changes_and_swaps() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
        assert_eq!(edit_distance("nmae", "name"), 1);
    }

    #[test]
    fn bare_words_with_another_yaml_meaning_are_ambiguous() {
        for word in ["yes", "No", "on", "OFF", "true", "null", "~", "", "12", "0x10", "1.10", "1_000", "-3", "12:30:45", "1e3"] {
            assert!(is_ambiguous(word), "{word:?}");
        }
        for word in ["web-1", "nova", "one", "3com", "10gbit", "front end", "truth", "1c0d6f6e-5a0e", "11111111-2222", "00:11:22:33:44:55"]
        {
            assert!(!is_ambiguous(word), "{word:?}");
        }
    }

    #[test]
    fn quoted_text_is_escaped_and_truncated() {
        assert_eq!(quote("a\u{1b}[31m"), "`a\\u{1b}[31m`");
        assert!(quote(&"x".repeat(100)).ends_with("...`"));
    }
}
