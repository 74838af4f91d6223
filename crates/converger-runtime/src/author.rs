//! Who writes, when and why. The caller names the person: this crate does not guess who uses a service.

use converger_core::apply::is_valid_remark;

use crate::host;

/// The person who acts, and when. Both are recorded with what is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    pub(crate) by: Box<str>,
    /// In milliseconds since 1970.
    pub(crate) at_ms: u64,
}

impl Author {
    /// This person at this time, in milliseconds since 1970; `None` if the name is blank or longer than 4096 bytes, and so cannot be recorded.
    #[must_use]
    pub fn new(by: &str, at_ms: u64) -> Option<Self> {
        is_valid_remark(by).then(|| Self { by: by.into(), at_ms })
    }

    /// The user of this process, now.
    #[must_use]
    pub fn of_process() -> Self {
        Self { by: host::actor().into(), at_ms: host::now_ms() }
    }

    /// When, in milliseconds since 1970.
    #[must_use]
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }
}

/// Why a person acts, for other people: not blank, and at most 4096 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason(Box<str>);

impl Reason {
    /// The reason; `None` if it cannot be recorded.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        is_valid_remark(text).then(|| Self(text.into()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn into_text(self) -> Box<str> {
        self.0
    }
}
