//! Ids and slugs of operations: short plain text, checked once. They are generated outside the core, which has no randomness.

use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Defines a newtype over text that differs only in its check and documentation. The text is shared on clone, because every record, event
/// and effect names its operation.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $fits:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text; `None` if it is not well-formed.
            #[must_use]
            pub fn new(text: &str) -> Option<Self> {
                let fits: fn(&str) -> bool = $fits;
                fits(text).then(|| Self(text.into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(&self.0)
            }
        }
    };
}

checked_text!(
    /// The id of a run: letters, digits, `-` and `_`, at most 64.
    RunId,
    is_id
);
checked_text!(
    /// The id of an operation: letters, digits, `-` and `_`, at most 64.
    OperationId,
    is_id
);
checked_text!(
    /// The id of one boot of a machine: letters, digits, `-` and `_`, at most 64.
    BootId,
    is_id
);
checked_text!(
    /// The id that the environment gave to a task, such as a UPID: no whitespace, at most 512 bytes, otherwise opaque.
    TaskId,
    |text| is_within(text, 512) && !text.chars().any(|character| character.is_whitespace() || character.is_control())
);
checked_text!(
    /// The key that a caller sends so that a request is executed once: visible ASCII, at most 128.
    IdempotencyKey,
    |text| is_within(text, 128) && text.bytes().all(|byte| byte.is_ascii_graphic())
);
checked_text!(
    /// A machine-readable word: a code, or an evidence key. Lower-case letters, digits, `-`, `_` and `.`, at most 64.
    Slug,
    |text| is_within(text, 64)
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.'))
);

impl Slug {
    /// The fallback for a code of this program that is not a valid slug; tests ensure that there is none.
    pub(crate) fn placeholder() -> Self {
        Self("lost".into())
    }
}

fn is_within(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
}

fn is_id(text: &str) -> bool {
    is_within(text, 64) && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_short_and_plain() {
        for bad in ["", "a b", "a/b", "..", "é", "a\n", "a\0", &"a".repeat(65)] {
            assert!(OperationId::new(bad).is_none() && RunId::new(bad).is_none(), "{bad:?}");
        }
        assert_eq!(OperationId::new("01J-a_Z").map(|id| id.to_string()), Some("01J-a_Z".into()));
    }

    #[test]
    fn task_ids_are_opaque_but_have_no_whitespace() {
        for bad in ["", "UPID pve1", "a\tb", "a\u{7f}", "a\u{2003}b", &"x".repeat(513)] {
            assert!(TaskId::new(bad).is_none(), "{bad:?}");
        }
        assert!(TaskId::new("UPID:pve1:0000ABCD:00001234:65A0B1C2:qmstart:101:jörg@pam!bot:").is_some());
    }

    #[test]
    fn idempotency_keys_and_slugs_are_bounded() {
        assert!(IdempotencyKey::new("a b").is_none() && IdempotencyKey::new(&"k".repeat(129)).is_none());
        assert!(IdempotencyKey::new("8e03978e-40d5-43dd-bc93-6894a57f9324").is_some());
        for bad in ["", "Failed", "it failed", "-a", "9a", &"a".repeat(65)] {
            assert!(Slug::new(bad).is_none(), "{bad:?}");
        }
        assert!(Slug::new("task-lost").is_some());
    }
}
