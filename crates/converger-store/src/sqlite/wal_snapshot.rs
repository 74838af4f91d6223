//! Reads a store together with its WAL, combined in memory. Nothing is opened for writing, locked or created, so an audit changes nothing
//! (G5). SQLite itself would create a third file beside the WAL even for a reader.
//!
//! The file is in memory only once, in SQLite's buffer. It is read twice: first for its checksum, then for its content, while pages from
//! the WAL replace those of the file.
//!
//! The WAL format is documented and stable (sqlite.org/fileformat2.html, "The Write-Ahead Log"). Must not write.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::open::NO_FOLLOW;

/// Larger files are rejected: SQLite allocates at most this many bytes at once, and no setting raises the limit.
const BYTES_MAX: u64 = 2_147_483_391;

/// How often reading is repeated if another process writes at the same time.
const ATTEMPTS_MAX: usize = 8;

/// The block size for reading the file. Every possible page size divides it.
const BLOCK_BYTES: usize = 65_536;

const WAL_HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// Passes the file, combined with the committed transactions of its WAL, and its length to `take`. Both come from one moment.
///
/// The result counts only if nobody wrote to the file in the meantime. Otherwise it is dropped and `take` is called again.
pub(super) fn read_with_wal<T>(path: &Path, log: &Path, mut take: impl FnMut(&mut dyn Read, usize) -> T) -> io::Result<T> {
    for _ in 0..ATTEMPTS_MAX {
        let mut first = BlockReader::open(path)?;
        while first.read_block()? {}
        let lines = read_wal(log)?;
        // While the WAL only grows, the file does not change. A checkpoint changes the file first and restarts the WAL afterwards.
        if !begins_with(log, &lines)? {
            continue;
        }
        let mut snapshot = WalSnapshot::new(BlockReader::open(path)?, &lines, first.bytes)?;
        let length = usize::try_from(snapshot.length).unwrap_or(usize::MAX);
        let value = take(&mut snapshot, length);
        if snapshot.verify_same_content(&first)? {
            return Ok(value);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "other processes keep writing to it"))
}

/// Opens a file for reading; `None` if it does not exist. The last process that closes a store deletes the WAL.
fn open_if_exists(path: &Path) -> io::Result<Option<File>> {
    match File::options().read(true).custom_flags(NO_FOLLOW).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

/// Reads the WAL, up to the length that it had when it was opened.
fn read_wal(path: &Path) -> io::Result<Vec<u8>> {
    let Some(file) = open_if_exists(path)? else { return Ok(Vec::new()) };
    let length = file.metadata()?.len();
    check_size(length)?;
    let mut bytes = Vec::new();
    // A failed allocation becomes an error instead of the end of the process.
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX)).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a file still begins with these bytes, compared block by block without a second copy in memory.
fn begins_with(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let Some(mut file) = open_if_exists(path)? else { return Ok(bytes.is_empty()) };
    let mut block = vec![0; BLOCK_BYTES];
    for wanted in bytes.chunks(BLOCK_BYTES) {
        let found = block.get_mut(..wanted.len()).unwrap_or_default();
        match file.read_exact(found) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if found != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

fn check_size(bytes: u64) -> io::Result<()> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 2 GiB and has a WAL; the two cannot be combined in memory"))
}

/// Reads a file block by block and computes its checksum. The checksum only shows whether another process wrote in the meantime; it is no
/// protection against manipulation.
struct BlockReader {
    file: Option<io::Take<File>>,
    block: Vec<u8>,
    bytes: u64,
    checksum: DefaultHasher,
}

impl BlockReader {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open_if_exists(path)?;
        file.as_ref().map_or(Ok(0), |file| file.metadata().map(|metadata| metadata.len())).and_then(check_size)?;
        // The file may grow while it is read: one byte more than the limit is enough to notice that.
        let file = file.map(|file| file.take(BYTES_MAX + 1));
        Ok(Self { file, block: Vec::with_capacity(BLOCK_BYTES), bytes: 0, checksum: DefaultHasher::new() })
    }

    /// Reads the next block. Returns `false` at the end of the file, with an empty block.
    fn read_block(&mut self) -> io::Result<bool> {
        self.block.clear();
        if let Some(file) = &mut self.file {
            file.take(BLOCK_BYTES as u64).read_to_end(&mut self.block)?;
        }
        self.bytes += self.block.len() as u64;
        check_size(self.bytes)?;
        self.checksum.write(&self.block);
        Ok(!self.block.is_empty())
    }
}

/// Reads a file with the committed pages of its WAL in place of its own.
struct WalSnapshot<'l> {
    file: BlockReader,
    /// The last committed version of each page in the WAL, by page number.
    pages: BTreeMap<u32, &'l [u8]>,
    page_bytes: usize,
    /// The length of the file including its WAL.
    length: u64,
    /// The offset of the next block.
    at: u64,
    /// The block that is being returned, and how much of it was.
    block: Vec<u8>,
    block_offset: usize,
}

impl<'l> WalSnapshot<'l> {
    fn new(raw: BlockReader, log: &'l [u8], file_bytes: u64) -> io::Result<Self> {
        let (pages, count) = WalReader::new(log).map(WalReader::committed_pages).filter(|(_, count)| *count > 0).unwrap_or_default();
        let page_bytes = pages.values().next().map_or(0, |page| page.len());
        let length = if count == 0 { file_bytes } else { u64::from(count).saturating_mul(page_bytes as u64) };
        check_size(length)?;
        Ok(Self { file: raw, pages, page_bytes, length, at: 0, block: Vec::with_capacity(BLOCK_BYTES), block_offset: 0 })
    }

    /// Loads the next block of the file and replaces the pages that the WAL has.
    fn load_block(&mut self) -> io::Result<()> {
        self.file.read_block()?;
        let wanted = self.length.saturating_sub(self.at).min(BLOCK_BYTES as u64);
        self.block.clone_from(&self.file.block);
        self.block.resize(usize::try_from(wanted).unwrap_or(BLOCK_BYTES), 0);
        self.overlay_wal_pages();
        // The header announces a WAL, which a database in memory does not have.
        let versions = if self.at == 0 { self.block.get_mut(18..20) } else { None };
        if let Some(versions) = versions.filter(|versions| **versions == [2, 2]) {
            versions.copy_from_slice(&[1, 1]);
        }
        (self.at, self.block_offset) = (self.at + wanted, 0);
        Ok(())
    }

    fn overlay_wal_pages(&mut self) {
        let Some(first) = self.at.checked_div(self.page_bytes as u64).and_then(|first| u32::try_from(first + 1).ok()) else { return };
        for (target, number) in self.block.chunks_mut(self.page_bytes).zip(first..) {
            if let Some(page) = self.pages.get(&number).filter(|page| page.len() == target.len()) {
                target.copy_from_slice(page);
            }
        }
    }

    /// Reads the rest of the file. Returns whether the whole content is the same as in the first pass.
    fn verify_same_content(&mut self, first: &BlockReader) -> io::Result<bool> {
        while self.file.read_block()? {}
        Ok((self.file.bytes, self.file.checksum.finish()) == (first.bytes, first.checksum.finish()))
    }
}

impl Read for WalSnapshot<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.block_offset == self.block.len() && self.at < self.length {
            self.load_block()?;
        }
        let mut rest = self.block.get(self.block_offset..).unwrap_or_default();
        let read = rest.read(into)?;
        self.block_offset += read;
        Ok(read)
    }
}

/// Reads the valid frames of a WAL, up to the first invalid one.
struct WalReader<'l> {
    rest: &'l [u8],
    page_bytes: usize,
    salt: &'l [u8],
    decode_word: fn([u8; 4]) -> u32,
    checksum: (u32, u32),
}

impl<'l> WalReader<'l> {
    /// `None` if the header is missing or invalid: such a WAL counts as empty.
    fn new(bytes: &'l [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(WAL_HEADER_BYTES)?;
        let decode_word: fn([u8; 4]) -> u32 = match read_u32(header, 0)? {
            0x377f_0682 => u32::from_le_bytes,
            0x377f_0683 => u32::from_be_bytes,
            _ => return None,
        };
        let page_bytes = usize::try_from(read_u32(header, 8)?).ok()?;
        let is_page = page_bytes.is_power_of_two() && (512..=65_536).contains(&page_bytes);
        let sum = update_checksum((0, 0), header.get(..24)?, decode_word);
        let is_whole = is_page && read_u32(header, 4)? == 3_007_000 && sum == (read_u32(header, 24)?, read_u32(header, 28)?);
        is_whole.then_some(Self { rest, page_bytes, salt: header.get(16..24)?, decode_word, checksum: sum })
    }

    /// The next page with its number, and the size of the file in pages if the frame ends a transaction.
    fn next_frame(&mut self) -> Option<(u32, u32, &'l [u8])> {
        let (frame, rest) = self.rest.split_at_checked(FRAME_HEADER_BYTES)?;
        let (page, rest) = rest.split_at_checked(self.page_bytes)?;
        let sum = update_checksum(update_checksum(self.checksum, frame.get(..8)?, self.decode_word), page, self.decode_word);
        let is_of_it = frame.get(8..16)? == self.salt && sum == (read_u32(frame, 16)?, read_u32(frame, 20)?);
        let of_frame = (read_u32(frame, 0).filter(|page| *page > 0)?, read_u32(frame, 4)?, page);
        is_of_it.then(|| (self.rest, self.checksum) = (rest, sum))?;
        Some(of_frame)
    }

    /// The last committed version of each page, and the size of the file in pages after the last transaction.
    fn committed_pages(mut self) -> (BTreeMap<u32, &'l [u8]>, u32) {
        let (mut whole, mut open, mut count) = (BTreeMap::new(), BTreeMap::new(), 0);
        while let Some((number, after, page)) = self.next_frame() {
            open.insert(number, page);
            if after > 0 {
                whole.append(&mut open);
                count = after;
            }
        }
        (whole, count)
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}

fn update_checksum(sum: (u32, u32), bytes: &[u8], decode_word: fn([u8; 4]) -> u32) -> (u32, u32) {
    let (fours, _) = bytes.as_chunks::<4>();
    fours.chunks_exact(2).fold(sum, |(first, second), pair| {
        let first = first.wrapping_add(pair.first().map_or(0, |four| decode_word(*four))).wrapping_add(second);
        (first, second.wrapping_add(pair.last().map_or(0, |four| decode_word(*four))).wrapping_add(first))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file of several blocks, and a file beside it that is not a valid WAL.
    fn test_files() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf, Vec<u8>) {
        let above = tempfile::tempdir().expect("a directory");
        let (file, log) = (above.path().join("file"), above.path().join("log"));
        let bytes: Vec<u8> = (0..BLOCK_BYTES * 3 + 100).map(|at| u8::try_from(at % 251).expect("a byte")).collect();
        fs::write(&file, &bytes).and_then(|()| fs::write(&log, b"no log")).expect("written");
        (above, file, log, bytes)
    }

    fn read_everything(read: &mut dyn Read, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes.len(), length);
        bytes
    }

    #[test]
    fn unchanged_file_is_read_once() {
        let (_above, file, log, bytes) = test_files();
        let mut given = 0;
        let read = read_with_wal(&file, &log, |read, length| {
            given += 1;
            read_everything(read, length)
        });
        assert!(read.expect("read") == bytes && given == 1);
    }

    /// The file changes at its end after its beginning was read. A mix of old and new content never existed in the store.
    #[test]
    fn file_changed_during_reading_is_read_again() {
        let (_above, file, log, mut bytes) = test_files();
        let mut given = 0;
        let read = read_with_wal(&file, &log, |read, length| {
            given += 1;
            if given == 1 {
                *bytes.last_mut().expect("there") = 252;
                fs::write(&file, &bytes).expect("written");
            }
            read_everything(read, length)
        });
        assert!(read.expect("read") == bytes && given == 2, "{given}");
    }

    #[test]
    fn rejects_a_file_that_keeps_changing() {
        for change in [1_i64, -1] {
            let (_above, file, log, _) = test_files();
            let mut given = 0;
            let read = read_with_wal(&file, &log, |_, _| {
                given += 1;
                let now = i64::try_from(fs::metadata(&file).expect("there").len()).expect("small");
                let file = File::options().write(true).open(&file).expect("there");
                file.set_len(u64::try_from(now + change).expect("some")).expect("set");
            });
            assert_eq!((read.map_err(|error| error.kind()), given), (Err(io::ErrorKind::ResourceBusy), ATTEMPTS_MAX));
        }
    }

    /// A WAL that restarts while the file is read is a different WAL.
    #[test]
    fn detects_a_wal_that_restarts() {
        let (_above, _, log, bytes) = test_files();
        fs::write(&log, &bytes).expect("written");
        assert!(begins_with(&log, &bytes).expect("read") && begins_with(&log, &bytes[..BLOCK_BYTES + 1]).expect("read"));
        let mut other = bytes.clone();
        other[BLOCK_BYTES + 7] ^= 1;
        assert!(!begins_with(&log, &other).expect("read"));
        fs::write(&log, &bytes[..BLOCK_BYTES]).expect("written");
        assert!(!begins_with(&log, &bytes).expect("read"), "the WAL is shorter");
        fs::remove_file(&log).expect("removed");
        assert!(!begins_with(&log, &bytes).expect("read") && begins_with(&log, &[]).expect("read"));
    }

    /// The error comes at once, before memory runs out.
    #[test]
    fn rejects_too_large_files_before_reading() {
        let (_above, file, log, _) = test_files();
        let grow = |path: &Path| File::options().write(true).open(path).and_then(|file| file.set_len(BYTES_MAX + 1)).expect("holes");
        let kind = |file: &Path, log: &Path| read_with_wal(file, log, |_, _| ()).map_err(|error| error.kind());
        grow(&log);
        assert_eq!(kind(&file, &log), Err(io::ErrorKind::FileTooLarge));
        grow(&file);
        assert_eq!(kind(&file, &log), Err(io::ErrorKind::FileTooLarge));
    }
}
