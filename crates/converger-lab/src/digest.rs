//! Digests in the format of Proxmox: SHA-1 in lower-case hexadecimal.
//!
//! They detect changes of a file and protect nothing.

use sha1::{Digest, Sha1};

/// The digest of a text.
pub(crate) fn sha1_hex(text: &str) -> String {
    let digits = b"0123456789abcdef";
    let digest = Sha1::digest(text);
    let mut text = String::with_capacity(2 * digest.len());
    for byte in digest {
        [byte >> 4, byte & 15].into_iter().for_each(|half| text.push(char::from(digits[usize::from(half)])));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_a_known_text() {
        assert_eq!(sha1_hex("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
    }
}
