//! Oversized bodies: endless blanks, and small gzip data that decompresses to a lot. They are
//! generated in pieces and never held in memory.
//!
//! Blanks may follow any JSON value, so a client without a size limit reads them without an error.
//! Must not depend on sockets or time.

use flate2::{Compress, Compression, Crc, FlushCompress};

/// Size of a piece of blanks.
const PIECE_BYTES: u64 = 64 * 1024;

/// Decompressed size of a repeated piece.
const PACKED_PIECE_BYTES: u64 = 1 << 20;

/// The given number of blanks, in pieces.
pub(super) fn blanks(bytes: u64) -> impl Iterator<Item = &'static [u8]> {
    static BLANKS: [u8; PIECE_BYTES as usize] = [b' '; PIECE_BYTES as usize];
    let last = usize::try_from(bytes % PIECE_BYTES).unwrap_or(0);
    let whole = (0..bytes / PIECE_BYTES).map(|_| BLANKS.as_slice());
    whole.chain((last > 0).then(|| BLANKS.get(..last).unwrap_or_default()))
}

/// A gzip stream that decompresses to a body followed by blanks, `bytes` in total (or the body, if that is longer).
///
/// One mebibyte of blanks is compressed once and repeated. That works because a piece that ends in a full flush does not depend on earlier
/// pieces.
pub(super) struct GzipBomb {
    body: Vec<u8>,
    body_crc: Crc,
    packed: Vec<u8>,
    packed_rest: Vec<u8>,
    repeats: u64,
    rest_bytes: u64,
}

impl GzipBomb {
    pub(super) fn new(body: &[u8], bytes: u64) -> Self {
        let blank = bytes.saturating_sub(body.len() as u64);
        let (repeats, rest_bytes) = (blank / PACKED_PIECE_BYTES, blank % PACKED_PIECE_BYTES);
        let packed = if repeats > 0 { deflate_raw(&spaces(PACKED_PIECE_BYTES), FlushCompress::Full) } else { Vec::new() };
        let rest = deflate_raw(&spaces(rest_bytes), FlushCompress::Finish);
        Self { body: deflate_raw(body, FlushCompress::Full), body_crc: checksum_crc(body), packed, packed_rest: rest, repeats, rest_bytes }
    }

    /// The compressed size.
    pub(super) fn wire_bytes(&self) -> u64 {
        let once = GZIP_HEADER.len() + self.body.len() + self.packed_rest.len() + TRAILER_BYTES;
        once as u64 + self.repeats * self.packed.len() as u64
    }

    /// All pieces of the stream, in order.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let before = [GZIP_HEADER.as_slice(), self.body.as_slice()];
        let repeated = (0..self.repeats).map(|_| self.packed.as_slice());
        before.into_iter().chain(repeated).chain(std::iter::once(self.packed_rest.as_slice()))
    }

    /// The gzip trailer: checksum and length of the decompressed data.
    pub(super) fn trailer(&self) -> [u8; TRAILER_BYTES] {
        let mut all = Crc::new();
        all.combine(&self.body_crc);
        let (mebibyte, rest) = (checksum_crc(&spaces(PACKED_PIECE_BYTES)), checksum_crc(&spaces(self.rest_bytes)));
        (0..self.repeats).for_each(|_| all.combine(&mebibyte));
        all.combine(&rest);
        let mut trailer = [0; TRAILER_BYTES];
        let (check, length) = trailer.split_at_mut(4);
        check.copy_from_slice(&all.sum().to_le_bytes());
        length.copy_from_slice(&all.amount().to_le_bytes());
        trailer
    }
}

/// Deflate, no file name, no time, unknown operating system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

const TRAILER_BYTES: usize = 8;

fn spaces(bytes: u64) -> Vec<u8> {
    vec![b' '; usize::try_from(bytes).unwrap_or(0)]
}

fn checksum_crc(bytes: &[u8]) -> Crc {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc
}

/// Compresses everything to raw deflate data that ends with the given flush.
fn deflate_raw(bytes: &[u8], flush: FlushCompress) -> Vec<u8> {
    let mut packer = Compress::new(Compression::best(), false);
    let mut packed = Vec::with_capacity(1024);
    loop {
        let consumed = usize::try_from(packer.total_in()).unwrap_or(usize::MAX);
        // Compression into memory cannot fail; spare capacity shows that all output was written.
        let _ = packer.compress_vec(bytes.get(consumed..).unwrap_or_default(), &mut packed, flush);
        if packed.len() < packed.capacity() {
            return packed;
        }
        packed.reserve(packed.len().max(64));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn blanks_have_the_requested_length() {
        for bytes in [0, 1, PIECE_BYTES, 5 * PIECE_BYTES + 7] {
            assert_eq!(blanks(bytes).map(|piece| piece.len() as u64).sum::<u64>(), bytes);
            assert!(blanks(bytes).all(|piece| !piece.is_empty() && piece.iter().all(|byte| *byte == b' ')));
        }
    }

    #[test]
    fn gzip_bomb_is_small_and_unpacks_to_the_requested_size() {
        let body = br#"{"data":[{"vmid":100}]}"#;
        for bytes in [0, 30, 5 << 20, (5 << 20) + 12_345] {
            let bomb = GzipBomb::new(body, bytes);
            let mut travels: Vec<u8> = bomb.pieces().flatten().copied().collect();
            travels.extend(bomb.trailer());
            assert_eq!(travels.len() as u64, bomb.wire_bytes());
            assert!(travels.len() < 16 * 1024, "{}", travels.len());
            let mut unpacked = Vec::new();
            let mut reader = flate2::read::GzDecoder::new(travels.as_slice());
            reader.read_to_end(&mut unpacked).unwrap_or_else(|error| panic!("{bytes}: {error}"));
            assert_eq!(unpacked.len() as u64, bytes.max(body.len() as u64));
            assert!(unpacked.starts_with(body) && unpacked[body.len()..].iter().all(|byte| *byte == b' '));
        }
    }
}
