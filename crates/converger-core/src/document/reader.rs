//! What the decoders call: maps with known keys, lists, and scalars of one type each, with a fault for all else.
//!
//! A method that cannot give what it was asked for reports why, steps over the value and returns `None`, so that the
//! decoder goes on and finds the next fault. `Err(Stop)` means that nothing more can be read.

use std::borrow::Cow;

use super::{Diagnostic, Diagnostics, Event, Scalar, Source, Span, Style};

/// Reading cannot go on; the reason has been reported.
#[derive(Debug)]
pub(crate) struct Stop;

/// The most keys that any map of ours knows.
const KEYS_MAX: usize = 24;

pub(crate) struct Reader<'t, S> {
    source: S,
    text: &'t str,
    peeked: Option<Event<'t>>,
}

/// What a value is, as far as its notation tells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Map,
    List,
    Text,
    Flag,
    Other,
}

/// Which of the known keys a map had, and where.
pub(crate) struct Seen {
    /// Where the map begins, for faults about what it lacks.
    pub(crate) span: Span,
    keys: [Option<Span>; KEYS_MAX],
}

impl Seen {
    /// The place of the key with this index.
    pub(crate) fn key(&self, index: usize) -> Option<Span> {
        self.keys.get(index).copied().flatten()
    }
}

impl<'t, S: Source<'t>> Reader<'t, S> {
    pub(super) fn new(source: S, text: &'t str) -> Self {
        Self { source, text, peeked: None }
    }

    pub(super) fn take_diagnostics(&mut self) -> Diagnostics {
        std::mem::take(self.source.diagnostics())
    }

    /// The text is at its end, or what follows is reported.
    pub(super) fn end(&mut self) -> Result<(), Stop> {
        match self.next()? {
            Event::End => Ok(()),
            _ => self.report(Diagnostic::new(self.source.span(), "nothing may follow the document")),
        }
    }

    /// Records a fault; too many end the reading.
    pub(crate) fn report(&mut self, diagnostic: Diagnostic) -> Result<(), Stop> {
        let diagnostics = self.source.diagnostics();
        diagnostics.push(diagnostic);
        if diagnostics.is_cut() { Err(Stop) } else { Ok(()) }
    }

    /// Records a fault and has no value to give.
    pub(crate) fn refuse<T>(&mut self, diagnostic: Diagnostic) -> Result<Option<T>, Stop> {
        self.report(diagnostic).map(|()| None)
    }

    /// Whether nothing but spaces and comments is left.
    pub(crate) fn is_empty(&mut self) -> Result<bool, Stop> {
        let next = self.next()?;
        let empty = matches!(next, Event::End);
        self.peeked = Some(next);
        Ok(empty)
    }

    /// What comes next, without reading it.
    pub(crate) fn peek_kind(&mut self) -> Result<Next, Stop> {
        let next = self.next()?;
        let kind = match &next {
            Event::MapStart => Next::Map,
            Event::ListStart => Next::List,
            Event::Scalar(scalar) if scalar.style == Style::Quoted => Next::Text,
            Event::Scalar(scalar) if matches!(scalar.text.as_ref(), "true" | "false") => Next::Flag,
            _ => Next::Other,
        };
        self.peeked = Some(next);
        Ok(kind)
    }

    /// A map of known keys: `visit` is called with the index and place of each key and must read its value.
    ///
    /// Reports unknown and duplicate keys. `None` where there is no map.
    pub(crate) fn fields(
        &mut self,
        what: &str,
        keys: &'static [&'static str],
        visit: impl FnMut(&mut Self, usize, Span) -> Result<(), Stop>,
    ) -> Result<Option<Seen>, Stop> {
        self.fields_but(what, keys, |_| None, visit)
    }

    /// The same, where something is to be said about certain unknown keys.
    pub(crate) fn fields_but(
        &mut self,
        what: &str,
        keys: &'static [&'static str],
        never: fn(&str) -> Option<&'static str>,
        mut visit: impl FnMut(&mut Self, usize, Span) -> Result<(), Stop>,
    ) -> Result<Option<Seen>, Stop> {
        let Some(start) = self.expect_map(what)? else { return Ok(None) };
        let mut seen = Seen { span: start, keys: [None; KEYS_MAX] };
        let mut next = 0;
        loop {
            let event = self.next()?;
            let span = self.source.span();
            let key = match event {
                Event::MapEnd => return Ok(Some(seen)),
                Event::Scalar(key) => key,
                event => {
                    self.skip(&event)?;
                    self.report(Diagnostic::new(span, format!("the keys of {what} must be plain words")))?;
                    self.skip_value()?;
                    continue;
                }
            };
            if seen.span.start == seen.span.end {
                seen.span = span;
            }
            match position(keys, &key.text, next) {
                None => self.unknown_key(what, keys, never, &key.text, span)?,
                Some(index) => {
                    next = index + 1;
                    self.known_key(&mut seen, index, &key.text, span, &mut visit)?;
                }
            }
        }
    }

    /// A map whose keys are not known beforehand: `visit` gets each key with its place and must read its value.
    ///
    /// `visit` must notice a key that comes twice. `None` where there is no map.
    pub(crate) fn entries(
        &mut self,
        what: &str,
        mut visit: impl FnMut(&mut Self, &str, Span) -> Result<(), Stop>,
    ) -> Result<Option<Span>, Stop> {
        let Some(start) = self.expect_map(what)? else { return Ok(None) };
        loop {
            match self.next()? {
                Event::MapEnd => return Ok(Some(start)),
                Event::Scalar(key) => visit(self, &key.text, self.source.span())?,
                event => {
                    self.skip(&event)?;
                    self.report(Diagnostic::new(self.source.span(), format!("the keys of {what} must be plain words")))?;
                    self.skip_value()?;
                }
            }
        }
    }

    /// Reports each of the keys at `wanted` that a map lacks.
    pub(crate) fn required(&mut self, seen: &Seen, what: &str, keys: &[&str], wanted: &[usize]) -> Result<(), Stop> {
        for index in wanted.iter().filter(|index| seen.key(**index).is_none()) {
            let key = keys.get(*index).copied().unwrap_or("");
            self.report(Diagnostic::new(seen.span, format!("{what} lacks the key `{key}`")))?;
        }
        Ok(())
    }

    fn known_key(
        &mut self,
        seen: &mut Seen,
        index: usize,
        key: &str,
        span: Span,
        visit: &mut impl FnMut(&mut Self, usize, Span) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        if let Some(first) = seen.key(index) {
            let fault = Diagnostic::new(span, format!("the key `{key}` is given twice"));
            self.report(fault.help("remove one of them").related(first, "first given here"))?;
            return self.skip_value();
        }
        if let Some(slot) = seen.keys.get_mut(index) {
            *slot = Some(span);
        }
        visit(self, index, span)
    }

    fn unknown_key(
        &mut self,
        what: &str,
        keys: &[&str],
        never: fn(&str) -> Option<&'static str>,
        key: &str,
        span: Span,
    ) -> Result<(), Stop> {
        let help = match (never(key), nearest(key, keys)) {
            (Some(why), _) => why.to_owned(),
            (None, Some(near)) => format!("did you mean `{near}`?"),
            (None, None) => format!("known keys: {}", keys.join(", ")),
        };
        self.report(Diagnostic::new(span, format!("unknown key {} in {what}", quoted(key))).help(help))?;
        self.skip_value()
    }

    fn expect_map(&mut self, what: &str) -> Result<Option<Span>, Stop> {
        match self.next()? {
            Event::MapStart => Ok(Some(self.source.span())),
            event => self.wrong(&event, &format!("{what} must be a mapping of keys to values")),
        }
    }

    /// A list; `visit` must read one item each time. The list's place, or `None` where there is no list.
    pub(crate) fn items(&mut self, what: &str, mut visit: impl FnMut(&mut Self) -> Result<(), Stop>) -> Result<Option<Span>, Stop> {
        let start = match self.next()? {
            Event::ListStart => self.source.span(),
            event => return self.wrong(&event, &format!("{what} must be a list")),
        };
        loop {
            match self.next()? {
                Event::ListEnd => return Ok(Some(Span { start: start.start, end: self.source.span().end.max(start.end) })),
                item => {
                    self.peeked = Some(item);
                    visit(self)?;
                }
            }
        }
    }

    /// A string. A bare word that YAML may take for something else must be quoted.
    pub(crate) fn text(&mut self, what: &str) -> Result<Option<(Cow<'t, str>, Span)>, Stop> {
        let Some((scalar, span)) = self.scalar(what, "text")? else { return Ok(None) };
        if scalar.style == Style::Plain && is_ambiguous(&scalar.text) {
            let help = format!("put it in double quotes if {} is meant", quoted(&scalar.text));
            return self.refuse(Diagnostic::new(span, format!("{what} must be text")).help(help));
        }
        Ok(Some((scalar.text, span)))
    }

    /// A whole decimal number within bounds.
    pub(crate) fn integer(&mut self, what: &str, min: u64, max: u64) -> Result<Option<(u64, Span)>, Stop> {
        let Some((scalar, span)) = self.scalar(what, "a number")? else { return Ok(None) };
        let decimal = scalar.style == Style::Plain && is_decimal(&scalar.text);
        if !decimal {
            let help = if scalar.style == Style::Quoted { "write it without quotes" } else { "write it in digits, such as 4" };
            return self.refuse(Diagnostic::new(span, format!("{what} must be a whole number")).help(help));
        }
        match scalar.text.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some((number, span))),
            _ => self.refuse(Diagnostic::new(span, format!("{what} must be between {min} and {max}"))),
        }
    }

    /// `true` or `false`, and no other spelling.
    pub(crate) fn flag(&mut self, what: &str) -> Result<Option<bool>, Stop> {
        let Some((scalar, span)) = self.scalar(what, "true or false")? else { return Ok(None) };
        match (scalar.style, scalar.text.as_ref()) {
            (Style::Plain, "true") => Ok(Some(true)),
            (Style::Plain, "false") => Ok(Some(false)),
            _ => {
                let message = format!("{what} must be true or false, not {}", quoted(&scalar.text));
                self.refuse(Diagnostic::new(span, message).help("only `true` and `false`, in lower case and without quotes, are booleans"))
            }
        }
    }

    /// One of a closed set of words; gives its index.
    pub(crate) fn word(&mut self, what: &str, words: &[&str]) -> Result<Option<(usize, Span)>, Stop> {
        let Some((scalar, span)) = self.scalar(what, "a word")? else { return Ok(None) };
        if let Some(index) = words.iter().position(|word| *word == scalar.text) {
            return Ok(Some((index, span)));
        }
        let help = nearest(&scalar.text, words).map(|near| format!("did you mean `{near}`?"));
        let fault = Diagnostic::new(span, format!("{what} must be one of {}, not {}", words.join(", "), quoted(&scalar.text)));
        self.refuse(Diagnostic { help, ..fault })
    }

    /// Steps over a `null`, if one is next.
    pub(crate) fn null(&mut self) -> Result<bool, Stop> {
        match self.next()? {
            Event::Scalar(scalar) if scalar.style == Style::Plain && scalar.text == "null" => Ok(true),
            other => {
                self.peeked = Some(other);
                Ok(false)
            }
        }
    }

    /// Any scalar, as written.
    pub(crate) fn scalar(&mut self, what: &str, wanted: &str) -> Result<Option<(Scalar<'t>, Span)>, Stop> {
        match self.next()? {
            Event::Scalar(scalar) if scalar.style == Style::Plain && scalar.text.is_empty() => {
                self.refuse(Diagnostic::new(self.source.span(), format!("{what} has no value")).help(format!("it must be {wanted}")))
            }
            Event::Scalar(scalar) => Ok(Some((scalar, self.source.span()))),
            event => self.wrong(&event, &format!("{what} must be {wanted}")),
        }
    }

    /// Reports an event that is not what was wanted, and steps over the value that it begins.
    fn wrong<T>(&mut self, event: &Event<'t>, message: &str) -> Result<Option<T>, Stop> {
        let span = self.source.span();
        let silent = matches!(event, Event::Broken);
        self.skip(event)?;
        if silent {
            return Ok(None);
        }
        let span = if span.start == span.end { self.widened(span) } else { span };
        self.refuse(Diagnostic::new(span, message))
    }

    /// A span of no width shows nothing: take the rest of the word that stands there.
    fn widened(&self, span: Span) -> Span {
        let start = usize::try_from(span.start).unwrap_or(usize::MAX);
        let rest = self.text.get(start..).unwrap_or("");
        let width = rest.find(|character: char| character.is_whitespace()).unwrap_or(rest.len());
        Span::new(start, start + width)
    }

    /// Steps over the next value.
    pub(crate) fn skip_value(&mut self) -> Result<(), Stop> {
        let event = self.next()?;
        self.skip(&event)
    }

    /// Steps over the rest of the value that `event` began.
    fn skip(&mut self, event: &Event<'t>) -> Result<(), Stop> {
        let mut depth = usize::from(matches!(event, Event::MapStart | Event::ListStart));
        while depth > 0 {
            match self.next()? {
                Event::MapStart | Event::ListStart => depth += 1,
                Event::MapEnd | Event::ListEnd => depth -= 1,
                Event::End => return Err(Stop),
                Event::Scalar(_) | Event::Broken => {}
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Event<'t>, Stop> {
        match self.peeked.take() {
            Some(peeked) => Ok(peeked),
            None => self.source.next(),
        }
    }
}

/// Where a key stands among the known ones. Files tend to repeat one order of keys: the search begins at `next`.
fn position(keys: &[&str], key: &str, next: usize) -> Option<usize> {
    let (before, behind) = keys.split_at_checked(next)?;
    // The first letter tells most keys apart without a call.
    let is = |own: &&str| own.as_bytes().first() == key.as_bytes().first() && *own == key;
    let find = |keys: &[&str]| keys.iter().position(is);
    find(behind).map(|index| next + index).or_else(|| find(before))
}

/// Decimal digits without sign, leading zero, underscore or exponent.
pub(crate) fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'))
}

/// Whether some YAML reader would take this bare word for a number, a boolean or null.
pub(super) fn is_ambiguous(text: &str) -> bool {
    let word = ["true", "false", "null", "~", "yes", "no", "on", "off", "y", "n"].iter().any(|word| text.eq_ignore_ascii_case(word));
    text.is_empty() || looks_numeric(text) || word
}

/// Integers, decimals, hexadecimal, octal and times of day; a uuid or a hardware address is none of them.
fn looks_numeric(text: &str) -> bool {
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

/// A text of the file inside a message: in backticks, without control characters, and not endless.
pub(crate) fn quoted(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    let shown: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    let more = if text.chars().nth(SHOWN_MAX).is_some() { "..." } else { "" };
    format!("`{shown}{more}`")
}

/// The known word that is at most two edits away; short words allow one.
#[must_use]
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let distances = known.iter().map(|candidate| (edits(word, candidate), *candidate));
    let (distance, candidate) = distances.min()?;
    let allowed = if candidate.len() > 4 { 2 } else { 1 };
    (distance <= allowed && distance < candidate.len()).then_some(candidate)
}

/// How many letters must be changed, added, removed or swapped with their neighbour.
///
/// Words longer than any key of ours are far from all of them.
fn edits(left: &str, right: &str) -> usize {
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
    fn the_nearest_key_is_near() {
        let keys = ["after", "config", "kind", "name", "state", "vmid"];
        assert_eq!(nearest("vimd", &keys), Some("vmid"));
        assert_eq!(nearest("confg", &keys), Some("config"));
        assert_eq!(nearest("nmae", &keys), Some("name"));
        assert_eq!(nearest("firewall", &keys), None);
        assert_eq!(nearest("args", &["tags"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), &keys), None);
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("abc", "abc"), 0);
        assert_eq!(edits("nmae", "name"), 1);
    }

    #[test]
    fn bare_words_that_mean_something_else_elsewhere_are_ambiguous() {
        for word in ["yes", "No", "on", "OFF", "true", "null", "~", "", "12", "0x10", "1.10", "1_000", "-3", "12:30:45", "1e3"] {
            assert!(is_ambiguous(word), "{word:?}");
        }
        for word in ["web-1", "nova", "one", "3com", "10gbit", "front end", "truth", "1c0d6f6e-5a0e", "11111111-2222", "00:11:22:33:44:55"]
        {
            assert!(!is_ambiguous(word), "{word:?}");
        }
    }

    #[test]
    fn text_of_the_file_is_shown_without_control_characters_and_cut() {
        assert_eq!(quoted("a\u{1b}[31m"), "`a\\u{1b}[31m`");
        assert!(quoted(&"x".repeat(100)).ends_with("...`"));
    }
}
