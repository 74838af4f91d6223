//! Whether every key of a JSON text is given once: of a key that comes twice, one reader takes the first and another the last.
//!
//! What never enters: what the keys mean.

use std::collections::BTreeSet;

use super::{Decode, Diagnostic, Diagnostics, Next, Notation, Reader, Source, Stop, decode, quoted};

/// Looks through a JSON text whose keys are not known here, such as one that is read into a tree afterwards.
///
/// # Errors
/// It is not one well-formed JSON document, or a map in it has a key twice, at any depth.
pub fn keys_once(bytes: &[u8]) -> Result<(), Diagnostics> {
    decode(bytes, Notation::Json, Once)
}

struct Once;

impl Decode<()> for Once {
    fn decode<'t, S: Source<'t>>(self, reader: &mut Reader<'t, S>) -> Result<(), Stop> {
        value(reader)
    }
}

/// As deep as the source lets it be, which is a bounded depth.
fn value<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<(), Stop> {
    match reader.peek_kind()? {
        Next::Map => map(reader),
        Next::List => reader.items("a list", value).map(drop),
        Next::Text | Next::Flag | Next::Other => reader.skip_value(),
    }
}

fn map<'t, S: Source<'t>>(reader: &mut Reader<'t, S>) -> Result<(), Stop> {
    let mut seen: BTreeSet<Box<str>> = BTreeSet::new();
    let read = reader.entries("a mapping", |reader, key, span| {
        if !seen.insert(key.into()) {
            reader.report(Diagnostic::new(span, format!("the key {} is given twice", quoted(key))))?;
        }
        value(reader)
    });
    read.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_comes_twice_is_found_at_any_depth() {
        for text in [r#"{"a":1,"a":1}"#, r#"{"a":{"b":[{"c":1,"d":2,"c":3}]}}"#, r#"[{"a":1,"\u0061":2}]"#, r#"{"a":1"#, "{} {}"] {
            assert!(keys_once(text.as_bytes()).is_err(), "{text}");
        }
        for text in [r#"{"a":{"b":1},"b":[{"b":1},{"b":null}],"c":{}}"#, "[]", "1", r#""a""#] {
            assert_eq!(keys_once(text.as_bytes()).map_err(|faults| format!("{faults:?}")), Ok(()), "{text}");
        }
    }
}
