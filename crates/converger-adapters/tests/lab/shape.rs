//! A hash of the shape of a JSON text: its names and brackets, and for each value only its type and whether it parses as a number. The API
//! table checks nothing else in the result of a method, so texts of the same shape get the same verdict.
//!
//! Does not check whether a text is JSON. The parser of the response does, and so does the check of the first text of each shape.

/// The hash so far.
#[derive(Clone, Copy)]
pub(crate) struct ShapeHasher(u64);

impl ShapeHasher {
    pub(crate) fn new(of: u64) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ of)
    }

    pub(crate) fn add_word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }

    /// Adds these bytes and their number, so that adjacent texts stay distinct. A long text is hashed in four independent lanes, so that
    /// none waits for another.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) {
        let (blocks, tail) = bytes.as_chunks::<32>();
        if !blocks.is_empty() {
            let mut lanes = [1, 2, 3, 4].map(|lane| Self(self.0 ^ lane));
            for block in blocks {
                let (eights, _) = block.as_chunks::<8>();
                lanes.iter_mut().zip(eights).for_each(|(lane, eight)| lane.add_word(u64::from_le_bytes(*eight)));
            }
            lanes.into_iter().for_each(|lane| self.add_word(lane.finish()));
        }
        let (eights, rest) = tail.as_chunks::<8>();
        eights.iter().for_each(|eight| self.add_word(u64::from_le_bytes(*eight)));
        self.add_word(rest.iter().fold(bytes.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
    }

    /// Adds the shape of a JSON text.
    pub(crate) fn add_shape(&mut self, json: &[u8]) {
        let mut rest = json;
        while let Some((first, after)) = rest.split_first() {
            rest = match first {
                b'"' => self.add_text(after),
                b'-' | b'0'..=b'9' => {
                    self.add_word(u64::from(b'0'));
                    let end = after.iter().position(|byte| !matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'));
                    after.split_at(end.unwrap_or(after.len())).1
                }
                other => {
                    self.add_word(u64::from(*other));
                    after
                }
            };
        }
    }

    /// Adds a text, starting after its opening quote. A name is hashed completely, and so is a text with an escape.
    fn add_text<'t>(&mut self, rest: &'t [u8]) -> &'t [u8] {
        let (text, after, is_escaped) = split_at_quote(rest);
        if is_escaped || after.trim_ascii_start().first() == Some(&b':') {
            self.add_bytes(text);
        } else {
            self.add_word(if is_number(text) { u64::from(b'n') } else { u64::from(b's') });
        }
        after
    }

    pub(crate) fn finish(self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

/// The text up to the closing quote, the rest after it, and whether the text contains an escape.
fn split_at_quote(rest: &[u8]) -> (&[u8], &[u8], bool) {
    let mut end = 0;
    while let Some(found) = rest.get(end..).and_then(find_quote_or_escape) {
        let is_escaped = end > 0;
        end += found;
        if rest[end] == b'"' {
            return (&rest[..end], &rest[end + 1..], is_escaped);
        }
        // An escaped character does not end the text.
        end += 2;
    }
    (rest, &[], true)
}

/// Scans eight bytes at a time, because most of the response is scanned here.
fn find_quote_or_escape(rest: &[u8]) -> Option<usize> {
    let (eights, tail) = rest.as_chunks::<8>();
    for (number, eight) in eights.iter().enumerate() {
        let word = u64::from_le_bytes(*eight);
        let found = zero_byte_bits(word ^ (ONES * u64::from(b'"'))) | zero_byte_bits(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return Some(number * 8 + (found.trailing_zeros() / 8) as usize);
        }
    }
    let index = tail.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    Some(eights.len() * 8 + index)
}

const ONES: u64 = 0x0101_0101_0101_0101;

/// Sets the highest bit of each zero byte; the lowest set bit is always correct.
fn zero_byte_bits(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & ONES << 7
}

/// Whether the text parses as a number, as the check defines it. Most texts fail at their first character.
fn is_number(text: &[u8]) -> bool {
    let may_be = text.first().is_some_and(|first| first.is_ascii_digit() || b"+-.iInN".contains(first));
    may_be && std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(json: &str) -> u64 {
        let mut mix = ShapeHasher::new(1);
        mix.add_shape(json.as_bytes());
        mix.finish()
    }

    #[test]
    fn different_types_and_names_have_different_shapes() {
        let rows = [
            r#"{"data":{"vmid":100,"name":"web"}}"#,
            r#"{"data":{"vmid":"100","name":"web"}}"#,
            r#"{"data":{"vmid":"a100","name":"web"}}"#,
            r#"{"data":{"vmid":null,"name":"web"}}"#,
            r#"{"data":{"vmid":100,"nama":"web"}}"#,
            r#"{"data":{"vmid":100}}"#,
            r#"{"data":[{"vmid":100,"name":"web"}]}"#,
            r#"{"data":{"vmid":100,"name":{}}}"#,
            r#"{"data":{"vmid":100,"name":"\"web"}}"#,
            r#"{"data":{"vmid":100,"name":"the web, \"all of it\""}}"#,
            r#"{"data":{"vmid":100,"name":"the web, \"all of it\\"}}"#,
            r#"{"data":{"vmid":100,"name":"web"}"#,
            r#"{"data":{"vmid":100,"name":true}}"#,
        ];
        let shapes: std::collections::BTreeSet<u64> = rows.into_iter().map(shape_of).collect();
        assert_eq!(shapes.len(), rows.len());
    }

    #[test]
    fn different_values_have_the_same_shape() {
        let one = shape_of(r#"{"data":{"uptime":-1.5e3,"digest":"3fa","pid":"12","node" : "pve1"}}"#);
        assert_eq!(shape_of(r#"{"data":{"uptime":7,"digest":"b22c","pid":"-4.5","node" : "elsewhere"}}"#), one);
        assert_ne!(shape_of(r#"{"data":{"uptime":7,"digest":"b22c","pid":"-4.5","nod" : "elsewhere"}}"#), one);
    }
}
