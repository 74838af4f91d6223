//! Words and what belongs to them, found by a quick hash: tables that every request is held against.
//!
//! What never enters here: words of others in numbers without bound. Whoever chose them could make this slow.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// What belongs to each word. It has no order, so nothing that is shown is made by walking through it.
pub(crate) type WordMap<K, V> = HashMap<K, V, BuildHasherDefault<WordHasher>>;

/// Eight bytes at a time.
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

    /// The end of a text, whose length is in it already.
    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}
