//! The hashes of RFC 6962, which distinguish leaves from nodes.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// A hash of the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogHash(pub [u8; 32]);

impl LogHash {
    /// The number of bytes.
    pub const BYTES: usize = 32;

    /// The root of a log without entries.
    #[must_use]
    pub fn empty_root() -> Self {
        Self(Sha256::digest([]).into())
    }

    /// The hash of an entry.
    #[must_use]
    pub fn of_leaf(entry: &[u8]) -> Self {
        Self(Sha256::new().chain_update([0]).chain_update(entry).finalize().into())
    }

    /// The hash over two child hashes.
    #[must_use]
    pub fn of_node(left: Self, right: Self) -> Self {
        let mut bytes = [1; 1 + 2 * Self::BYTES];
        bytes[1..=Self::BYTES].copy_from_slice(&left.0);
        bytes[1 + Self::BYTES..].copy_from_slice(&right.0);
        Self(Sha256::digest(bytes).into())
    }

    /// Parses base64 with padding, in its canonical form only.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        STANDARD.decode(text).ok()?.try_into().ok().map(Self)
    }
}

impl fmt::Display for LogHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for LogHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}
