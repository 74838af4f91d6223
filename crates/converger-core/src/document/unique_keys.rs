//! Checks that every key of a JSON text occurs once: of duplicate keys, one reader takes the first and another the last.
//!
//! Must not interpret keys.

use std::collections::BTreeSet;

use super::{DecodeAborted, Diagnostic, Diagnostics, DocumentDecoder, DocumentReader, EventSource, Notation, ValueKind, decode, quote};

/// Checks a JSON text whose keys are not known here, such as one that is parsed into a tree afterwards.
///
/// # Errors
/// The text is not one well-formed JSON document, or a map at any depth has a duplicate key.
pub fn check_unique_keys(bytes: &[u8]) -> Result<(), Diagnostics> {
    decode(bytes, Notation::Json, UniqueKeysDecoder)
}

struct UniqueKeysDecoder;

impl DocumentDecoder<()> for UniqueKeysDecoder {
    fn decode<'t, S: EventSource<'t>>(self, reader: &mut DocumentReader<'t, S>) -> Result<(), DecodeAborted> {
        check_value(reader)
    }
}

/// Recurses as deep as the source allows, which is bounded.
fn check_value<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<(), DecodeAborted> {
    match reader.peek_kind()? {
        ValueKind::Map => check_map(reader),
        ValueKind::List => reader.read_items("a list", check_value).map(drop),
        ValueKind::Text | ValueKind::Flag | ValueKind::Other => reader.skip_value(),
    }
}

fn check_map<'t, S: EventSource<'t>>(reader: &mut DocumentReader<'t, S>) -> Result<(), DecodeAborted> {
    let mut seen: BTreeSet<Box<str>> = BTreeSet::new();
    let read = reader.read_entries("a mapping", |reader, key, span| {
        if !seen.insert(key.into()) {
            reader.report(Diagnostic::new(span, format!("the key {} is given twice", quote(key))))?;
        }
        check_value(reader)
    });
    read.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicate_keys_are_found_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":{"b":[{"c":1,"d":2,"c":3}]}}"#, r#"[{"a":1,"\u0061":2}]"#, r#"{"a":1"#, "{} {}"] {
            assert!(check_unique_keys(text.as_bytes()).is_err(), "{text}");
        }
        for text in [r#"{"a":{"b":1},"b":[{"b":1},{"b":null}],"c":{}}"#, "[]", "1", r#""a""#] {
            assert_eq!(check_unique_keys(text.as_bytes()).map_err(|faults| format!("{faults:?}")), Ok(()), "{text}");
        }
    }
}
