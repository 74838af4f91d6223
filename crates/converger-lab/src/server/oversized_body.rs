//! Bodies that are too much: blanks without end, and little that unpacks to a lot. Made piece by piece and never held.
//!
//! Blanks, because they may follow any JSON: a client without a limit would read the answer and never know. What never
//! enters here: sockets and time.

use flate2::{Compress, Compression, Crc, FlushCompress};

/// Blanks are made in pieces of this size.
const PIECE_BYTES: u64 = 64 * 1024;

/// Packed blanks are repeated in pieces that unpack to this size.
const PACKED_PIECE_BYTES: u64 = 1 << 20;

/// So many blanks, piece by piece.
pub(super) fn blanks(bytes: u64) -> impl Iterator<Item = &'static [u8]> {
    static BLANKS: [u8; PIECE_BYTES as usize] = [b' '; PIECE_BYTES as usize];
    let last = usize::try_from(bytes % PIECE_BYTES).unwrap_or(0);
    let whole = (0..bytes / PIECE_BYTES).map(|_| BLANKS.as_slice());
    whole.chain((last > 0).then(|| BLANKS.get(..last).unwrap_or_default()))
}

/// A body and blanks behind it, packed as gzip: pieces that unpack to `bytes` in all, or to the body where that is longer.
///
/// One mebibyte of blanks is packed once and repeated: pieces that end in a full flush know nothing of each other.
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

    /// How many bytes travel.
    pub(super) fn wire_bytes(&self) -> u64 {
        let once = GZIP_HEADER.len() + self.body.len() + self.packed_rest.len() + TRAILER_BYTES;
        once as u64 + self.repeats * self.packed.len() as u64
    }

    /// Everything that travels, in order.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let before = [GZIP_HEADER.as_slice(), self.body.as_slice()];
        let repeated = (0..self.repeats).map(|_| self.packed.as_slice());
        before.into_iter().chain(repeated).chain(std::iter::once(self.packed_rest.as_slice()))
    }

    /// What ends a gzip: the check of everything, and its length.
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

/// Deflate, no name, no time, unknown system.
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

/// Raw deflate of everything, up to the border that is asked for.
fn deflate_raw(bytes: &[u8], flush: FlushCompress) -> Vec<u8> {
    let mut packer = Compress::new(Compression::best(), false);
    let mut packed = Vec::with_capacity(1024);
    loop {
        let taken = usize::try_from(packer.total_in()).unwrap_or(usize::MAX);
        // Packing into memory does not fail; what is left over shows whether it is done.
        let _ = packer.compress_vec(bytes.get(taken..).unwrap_or_default(), &mut packed, flush);
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
