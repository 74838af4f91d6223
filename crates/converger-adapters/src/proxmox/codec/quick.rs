//! The short way through an answer: plain JSON of the shape that Proxmox gives, read in one pass and borrowed from the answer.
//!
//! It never says no by itself. What it does not know at first sight (an odd number, an escape that is seldom, a name that stands twice,
//! something missing) it leaves to serde, which says what it is or what is wrong with it: whatever both read, they read alike.
//!
//! What never enters: what a value means.

use std::borrow::Cow;

use serde::Deserialize;

use super::scalar::Scalar;

/// What can be read the short way; for what cannot, serde is asked at once.
pub(super) trait Quick<'a>: Deserialize<'a> {
    /// None where it takes the long way to tell.
    fn read(_: &mut Reader<'a>) -> Option<Self> {
        None
    }
}

/// So deep lies what is skipped, at most.
const DEPTH_MAX: u32 = 16;

/// A place in a text.
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Whether nothing follows.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.next().is_none()
    }

    /// The next byte that is no blank. It is not taken.
    fn next(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        loop {
            let byte = *bytes.get(self.at)?;
            if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then(|| self.at += 1)
    }

    /// Takes a byte if it is the next one.
    fn takes(&mut self, byte: u8) -> bool {
        self.take(byte).is_some()
    }

    fn literal(&mut self, word: &str) -> Option<()> {
        self.text.as_bytes().get(self.at..)?.starts_with(word.as_bytes()).then(|| self.at += word.len())
    }

    /// A text. Escapes of more than one letter take the long way.
    pub(super) fn string(&mut self) -> Option<Cow<'a, str>> {
        self.take(b'"')?;
        self.opened()
    }

    /// A text from behind its first quote on.
    fn opened(&mut self) -> Option<Cow<'a, str>> {
        let rest = self.text.get(self.at..)?;
        let count = plain_bytes(rest.as_bytes());
        let plain = rest.get(..count)?;
        self.at += count;
        match rest.as_bytes().get(count)? {
            b'"' => {
                self.at += 1;
                Some(Cow::Borrowed(plain))
            }
            b'\\' => self.escaped(plain.to_owned()).map(Cow::Owned),
            _ => None,
        }
    }

    /// What follows the first escape of a text.
    fn escaped(&mut self, mut text: String) -> Option<String> {
        loop {
            match self.text.as_bytes().get(self.at)? {
                b'"' => {
                    self.at += 1;
                    return Some(text);
                }
                b'\\' => {
                    text.push(match self.text.as_bytes().get(self.at + 1)? {
                        b'"' => '"',
                        b'\\' => '\\',
                        b'/' => '/',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        _ => return None,
                    });
                    self.at += 2;
                }
                _ => {
                    let count = plain_bytes(self.text.as_bytes().get(self.at..)?);
                    text.push_str(self.text.get(self.at..self.at + count).filter(|_| count > 0)?);
                    self.at += count;
                }
            }
        }
    }

    /// A whole number that is not negative.
    fn number(&mut self) -> Option<u64> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let mut number = 0_u64;
        while let Some(digit) = bytes.get(self.at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
            self.at += 1;
        }
        let is_plain = self.at == start + 1 || bytes[start] != b'0';
        (is_plain && !matches!(bytes.get(self.at), Some(b'.' | b'e' | b'E'))).then_some(number)
    }

    /// Whatever stands there, as [`Scalar`] reads it.
    pub(super) fn scalar(&mut self) -> Option<Scalar<'a>> {
        match self.next()? {
            b'"' => {
                self.at += 1;
                self.opened().map(Scalar::Text)
            }
            b'0'..=b'9' => self.number().map(Scalar::Number),
            b't' => self.literal("true").map(|()| Scalar::Number(1)),
            b'f' => self.literal("false").map(|()| Scalar::Number(0)),
            b'n' => self.literal("null").map(|()| Scalar::Null),
            b'{' | b'[' => self.skip(0).map(|()| Scalar::Strange),
            _ => None,
        }
    }

    /// One more scalar of a row, which has one of that name at most.
    pub(super) fn put(&mut self, place: &mut Scalar<'a>) -> Option<()> {
        if *place != Scalar::Absent {
            return None;
        }
        *place = self.scalar()?;
        Some(())
    }

    /// The same for a text that must be there.
    pub(super) fn put_text(&mut self, place: &mut Option<Cow<'a, str>>) -> Option<()> {
        let text = self.string()?;
        place.replace(text).is_none().then_some(())
    }

    /// An object, each member taken by whoever knows its name.
    pub(super) fn object(&mut self, mut member: impl FnMut(&mut Self, &str) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.takes(b'}') {
            return Some(());
        }
        loop {
            let name = self.string()?;
            self.take(b':')?;
            member(self, &name)?;
            if !self.takes(b',') {
                return self.take(b'}');
            }
        }
    }

    /// A list, each item taken in turn.
    fn list(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        if self.takes(b']') {
            return Some(());
        }
        loop {
            item(self)?;
            if !self.takes(b',') {
                return self.take(b']');
            }
        }
    }

    /// A list of what [`Quick`] can read.
    pub(super) fn rows<T: Quick<'a>>(&mut self, mut row: impl FnMut(T)) -> Option<()> {
        self.list(|reader| T::read(reader).map(&mut row))
    }

    /// Nothing, which stands for no data.
    pub(super) fn is_null(&mut self) -> bool {
        self.next() == Some(b'n') && self.literal("null").is_some()
    }

    /// Whatever stands there, whose value is nobody's business.
    pub(super) fn pass(&mut self) -> Option<()> {
        self.skip(0)
    }

    fn skip(&mut self, depth: u32) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.next()? {
            b'"' => self.string().map(drop),
            b'{' => self.object(|reader, _| reader.skip(depth + 1)),
            b'[' => self.list(|reader| reader.skip(depth + 1)),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            b'0'..=b'9' => self.skip_number(),
            _ => None,
        }
    }

    /// A number, whole or not.
    fn skip_number(&mut self) -> Option<()> {
        let start = self.at;
        let whole = self.digits();
        if whole == 0 || (whole > 1 && self.text.as_bytes()[start] == b'0') {
            return None;
        }
        if self.literal(".").is_some() && self.digits() == 0 {
            return None;
        }
        (!matches!(self.text.as_bytes().get(self.at), Some(b'e' | b'E'))).then_some(())
    }

    fn digits(&mut self) -> usize {
        let count = self.text.as_bytes()[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        count
    }
}

impl<'a> Quick<'a> for Scalar<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        reader.scalar()
    }
}

impl<'a, T: Quick<'a>> Quick<'a> for Vec<T> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let mut rows = Self::with_capacity(ROWS_FEW);
        reader.rows(|row| rows.push(row))?;
        Some(rows)
    }
}

/// Most lists have no more.
const ROWS_FEW: usize = 16;

/// How many bytes from the beginning on neither end a text nor are escaped or forbidden in one.
fn plain_bytes(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| ENDS[usize::from(*byte)]).unwrap_or(bytes.len())
}

/// Bytes at which a text does not simply go on.
static ENDS: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0;
    while byte < b' ' as usize {
        ends[byte] = true;
        byte += 1;
    }
    ends[b'"' as usize] = true;
    ends[b'\\' as usize] = true;
    ends
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways through a text. The short one gives what serde gives, or nothing.
    fn both(json: &str) -> (Option<Scalar<'_>>, Option<Scalar<'_>>) {
        let mut reader = Reader::new(json);
        let quick = reader.scalar().filter(|_| reader.is_at_end());
        (quick, serde_json::from_str(json).ok())
    }

    #[test]
    fn what_is_read_the_short_way_is_what_serde_reads() {
        for json in [
            "0",
            "7",
            "18446744073709551615",
            "\"\"",
            "\"web-100\"",
            "\"a text of more than eight bytes\"",
            "\"ü, ß and \u{1F600}\"",
            "\"a\\nb\\\"c\\\\\"",
            "true",
            "false",
            "null",
            "[]",
            "{}",
            "[1,\"a\",{\"b\":[null,0.25]}]",
            " { \"a\" : [ 1 , 2 ] } ",
            "{\"a\":1,\"a\":2}",
        ] {
            let (quick, slow) = both(json);
            assert!(quick.is_some(), "{json}");
            assert_eq!(quick, slow, "{json}");
        }
    }

    #[test]
    fn what_is_odd_is_left_to_serde() {
        for json in ["-1", "1.5", "1e3", "01", "18446744073709551616", "\"\\u00e4\"", "\"\\b\"", "[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]"] {
            assert_eq!(both(json).0, None, "{json}");
        }
    }

    #[test]
    fn what_is_no_json_is_read_by_neither() {
        for json in [
            "",
            " ",
            "\"",
            "\"a",
            "\"a\\",
            "\"\\x\"",
            "\"\n\"",
            "tru",
            "nul",
            "[1,]",
            "[,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{\"a\":1,}",
            "1 2",
            "[1.]",
            "[01]",
            "[1e]",
            "]",
            "}",
            ",",
        ] {
            assert_eq!(both(json), (None, None), "{json:?}");
        }
    }

    /// Every byte at every place of a text: what ends it, what must not stand in it, and what may.
    #[test]
    fn a_text_ends_where_it_ends_wherever_that_is() {
        for place in 0..20 {
            for own in (0..=u8::MAX).map(char::from) {
                let json = format!("\"{}{own}{}\" ", "a".repeat(place), "z".repeat(20 - place));
                let (quick, slow) = both(&json);
                assert_eq!(quick, slow, "{json:?}");
            }
        }
    }
}
