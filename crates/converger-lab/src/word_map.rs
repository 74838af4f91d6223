//! Maps with string keys and a fast hash, for tables that every request is checked against.
//!
//! The hash does not resist collision attacks: keys must not come from clients in unbounded
//! numbers.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with string keys. It has no order, so output must not depend on iterating it.
pub(crate) type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Hashes eight bytes at a time.
#[derive(Default)]
pub(crate) struct WordHasher(u64);

impl WordHasher {
    fn mix_word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
    }
}

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (eights, rest) = bytes.as_chunks::<8>();
        eights.iter().for_each(|eight| self.mix_word(u64::from_le_bytes(*eight)));
        self.mix_word(rest.iter().fold(bytes.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
    }

    /// The terminator of a string; ignored, because `write` already includes the length.
    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}
