//! Writes JSON objects directly into a buffer, for frequent responses where building a tree first
//! would be wasteful.
//!
//! Must not decide what a response contains.

use std::fmt::{self, Write as _};

use serde_json::Value;

/// A type that can be a JSON member.
pub(crate) trait JsonMember {
    /// Appends itself as JSON.
    fn write_json(&self, out: &mut Vec<u8>);
}

impl JsonMember for str {
    fn write_json(&self, out: &mut Vec<u8>) {
        // Most texts need no escaping.
        if self.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
            out.reserve(self.len() + 2);
            out.push(b'"');
            out.extend_from_slice(self.as_bytes());
            out.push(b'"');
        } else {
            // Writing to memory cannot fail, and every string is valid JSON.
            let _ = serde_json::to_writer(out, self);
        }
    }
}

impl JsonMember for String {
    fn write_json(&self, out: &mut Vec<u8>) {
        self.as_str().write_json(out);
    }
}

/// For texts that are formatted from names and numbers, which need no escaping.
impl JsonMember for fmt::Arguments<'_> {
    fn write_json(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        let _ = ByteWriter(out).write_fmt(*self);
        out.push(b'"');
    }
}

struct ByteWriter<'o>(&'o mut Vec<u8>);

impl fmt::Write for ByteWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

impl JsonMember for u64 {
    fn write_json(&self, out: &mut Vec<u8>) {
        match *self {
            digit @ 0..=9 => out.push(b'0' + (digit % 10) as u8),
            number => {
                let _ = serde_json::to_writer(out, &number);
            }
        }
    }
}

impl JsonMember for u32 {
    fn write_json(&self, out: &mut Vec<u8>) {
        u64::from(*self).write_json(out);
    }
}

impl JsonMember for u8 {
    fn write_json(&self, out: &mut Vec<u8>) {
        u64::from(*self).write_json(out);
    }
}

impl JsonMember for usize {
    fn write_json(&self, out: &mut Vec<u8>) {
        (*self as u64).write_json(out);
    }
}

/// For integer literals in code.
impl JsonMember for i32 {
    fn write_json(&self, out: &mut Vec<u8>) {
        i64::from(*self).write_json(out);
    }
}

impl JsonMember for i64 {
    fn write_json(&self, out: &mut Vec<u8>) {
        match u64::try_from(*self) {
            Ok(number) => number.write_json(out),
            Err(_) => {
                let _ = serde_json::to_writer(out, self);
            }
        }
    }
}

impl JsonMember for f64 {
    fn write_json(&self, out: &mut Vec<u8>) {
        let _ = serde_json::to_writer(out, self);
    }
}

impl JsonMember for Value {
    fn write_json(&self, out: &mut Vec<u8>) {
        let _ = serde_json::to_writer(out, self);
    }
}

impl<M: JsonMember + ?Sized> JsonMember for &M {
    fn write_json(&self, out: &mut Vec<u8>) {
        (**self).write_json(out);
    }
}

/// A JSON object that is being written. Member names are those of the API and need no escaping.
pub(crate) struct JsonObject<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> JsonObject<'o> {
    pub(crate) fn new(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    /// Continues after members that are already written.
    pub(crate) fn continuing(out: &'o mut Vec<u8>) -> Self {
        Self { out, is_empty: false }
    }

    /// Writes one member.
    pub(crate) fn put(&mut self, name: &str, value: impl JsonMember) -> &mut Self {
        self.out.reserve(name.len() + 4);
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        value.write_json(self.out);
        self
    }

    /// Writes one member, if there is a value.
    pub(crate) fn put_some(&mut self, name: &str, value: Option<impl JsonMember>) -> &mut Self {
        match value {
            Some(value) => self.put(name, value),
            None => self,
        }
    }

    /// Appends members that are already encoded, each with a leading comma.
    pub(crate) fn put_raw_members(&mut self, members: &[u8]) -> &mut Self {
        self.out.extend_from_slice(members);
        self
    }

    pub(crate) fn close(self) {
        self.out.push(b'}');
    }
}

/// Writes a list; `write` writes each item.
pub(crate) fn write_list<T>(items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut JsonObject<'_>, T)) -> Vec<u8> {
    let mut out = Vec::with_capacity(FEW_ITEMS_BYTES);
    out.push(b'[');
    for item in items {
        if out.len() > 1 {
            out.push(b',');
        }
        let mut object = JsonObject::new(&mut out);
        write(&mut object, item);
        object.close();
    }
    out.push(b']');
    out
}

/// Typical size of the lists of a guest or of a small cluster.
const FEW_ITEMS_BYTES: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_valid_json_with_members_in_the_given_order() {
        let write = |object: &mut JsonObject<'_>, number: u32| {
            object.put("z", number).put_some("none", None::<u32>).put("a", "with \" and \n").put_some("some", Some(7_u64));
        };
        let text = String::from_utf8(write_list([1, 2], write)).unwrap();
        let row = |number: u32| format!("{{\"z\":{number},\"a\":\"with \\\" and \\n\",\"some\":7}}");
        assert_eq!(text, format!("[{},{}]", row(1), row(2)));
        assert_eq!(write_list(Vec::<u32>::new(), write), b"[]");
    }
}
