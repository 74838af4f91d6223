//! JSON objects, written straight into memory: for answers that are asked for again and again, where a tree would be built only to
//! be written.
//!
//! What never enters here: what an answer says.

use serde::Serialize;

/// An object under way. Names are those of the API and need no escaping.
pub(crate) struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Object<'o> {
    pub(crate) fn new(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    /// Members that follow others, which stand before them already.
    pub(crate) fn following(out: &'o mut Vec<u8>) -> Self {
        Self { out, is_empty: false }
    }

    /// One member more.
    pub(crate) fn put(&mut self, name: &str, value: impl Serialize) -> &mut Self {
        self.out.extend_from_slice(if self.is_empty { b"\"" } else { b",\"" });
        self.is_empty = false;
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        // Writing to memory cannot fail, and nothing of ours is no JSON.
        let _ = serde_json::to_writer(&mut *self.out, &value);
        self
    }

    /// One member more, where there is a value.
    pub(crate) fn put_some(&mut self, name: &str, value: Option<impl Serialize>) -> &mut Self {
        match value {
            Some(value) => self.put(name, value),
            None => self,
        }
    }

    pub(crate) fn end(self) {
        self.out.push(b'}');
    }
}

/// A list, each item written by its own function.
pub(crate) fn list<T>(items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut Object<'_>, T)) -> Vec<u8> {
    let mut out = b"[".to_vec();
    out.reserve(FEW_ITEMS_BYTES);
    for item in items {
        if out.len() > 1 {
            out.push(b',');
        }
        let mut object = Object::new(&mut out);
        write(&mut object, item);
        object.end();
    }
    out.push(b']');
    out
}

/// What the lists of a guest and of a small cluster take.
const FEW_ITEMS_BYTES: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_json_with_members_in_the_order_given() {
        let write = |object: &mut Object<'_>, number: u32| {
            object.put("z", number).put_some("none", None::<u32>).put("a", "with \" and \n").put_some("some", Some(true));
        };
        let text = String::from_utf8(list([1, 2], write)).unwrap();
        let row = |number: u32| format!("{{\"z\":{number},\"a\":\"with \\\" and \\n\",\"some\":true}}");
        assert_eq!(text, format!("[{},{}]", row(1), row(2)));
        assert_eq!(list(Vec::<u32>::new(), write), b"[]");
    }
}
