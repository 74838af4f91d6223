//! A store together with its log, brought together in memory: nothing is opened for writing, locked or made, so that an audit changes nothing
//! (G5). SQLite itself keeps a third file beside a log, also for those who only read.
//!
//! The file is in memory once, where SQLite keeps it: it is read twice, first to know it again and then to be taken, and what the log has of it is
//! put in its place on the way.
//!
//! The form of the log is documented (sqlite.org/fileformat2.html, "The Write-Ahead Log") and does not change. What never enters: writing.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::open::NO_FOLLOW;

/// What is larger is not taken into memory: SQLite asks the system for no more than this at once, and no setting raises it.
const BYTES_MAX: u64 = 2_147_483_391;

/// How often it is looked again where somebody writes at the same time.
const ATTEMPTS_MAX: usize = 8;

/// So much of the file is read at once. Every size that a page can have divides it.
const BLOCK_BYTES: usize = 65_536;

const WAL_HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;

/// The file with all that its log has of whole transactions, as of one moment, given to whoever takes it with its length.
///
/// What was taken counts once it is known that nobody wrote meanwhile; otherwise it is dropped, and given again.
pub(super) fn read_with_wal<T>(place: &Path, log: &Path, mut take: impl FnMut(&mut dyn Read, usize) -> T) -> io::Result<T> {
    for _ in 0..ATTEMPTS_MAX {
        let mut first = BlockReader::open(place)?;
        while first.read_block()? {}
        let lines = read_wal(log)?;
        // A log only grows while the file stays as it is; whoever brings it over changes the file first, and begins the log anew after that.
        if !begins_with(log, &lines)? {
            continue;
        }
        let mut still = WalSnapshot::new(BlockReader::open(place)?, &lines, first.bytes)?;
        let length = usize::try_from(still.length).unwrap_or(usize::MAX);
        let taken = take(&mut still, length);
        if still.verify_same_content(&first)? {
            return Ok(taken);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "it is written to all the time"))
}

/// What is there, to be read only; nothing where it is not there: who closes a store last takes the log away.
fn open_if_exists(path: &Path) -> io::Result<Option<File>> {
    match File::options().read(true).custom_flags(NO_FOLLOW).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

/// All of a log, as far as it was there when it was opened.
fn read_wal(path: &Path) -> io::Result<Vec<u8>> {
    let Some(file) = open_if_exists(path)? else { return Ok(Vec::new()) };
    let length = file.metadata()?.len();
    check_size(length)?;
    let mut bytes = Vec::new();
    // Memory that is not there is an error like any other, and not the end of the process.
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX)).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a file still begins with these bytes. It is not held a second time for that.
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
    Err(io::Error::new(
        io::ErrorKind::FileTooLarge,
        "it is larger than 2 GiB and has a log beside it, which nobody brings together in memory",
    ))
}

/// The bytes of a file, block by block, and what they are known again by: nobody is kept from anything by that sum, it only tells whether somebody
/// wrote meanwhile.
struct BlockReader {
    file: Option<io::Take<File>>,
    block: Vec<u8>,
    bytes: u64,
    checksum: DefaultHasher,
}

impl BlockReader {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open_if_exists(path)?;
        file.as_ref().map_or(Ok(0), |file| file.metadata().map(|there| there.len())).and_then(check_size)?;
        // It may grow meanwhile: one byte more than the bound is enough to see that it is beyond it.
        let file = file.map(|file| file.take(BYTES_MAX + 1));
        Ok(Self { file, block: Vec::with_capacity(BLOCK_BYTES), bytes: 0, checksum: DefaultHasher::new() })
    }

    /// Reads the next block, which is empty and the last one where there is no more.
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

/// The pages of whole transactions in the place of those in the file, as it is read.
struct WalSnapshot<'l> {
    file: BlockReader,
    /// The last of each page that the log has, by its number.
    pages: BTreeMap<u32, &'l [u8]>,
    page_bytes: usize,
    /// How long the file is with its log.
    length: u64,
    /// Where the next block begins.
    at: u64,
    /// The block that is handed out, and how much of it was.
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

    /// The next block of the file, with what the log has of it.
    fn load_block(&mut self) -> io::Result<()> {
        self.file.read_block()?;
        let wanted = self.length.saturating_sub(self.at).min(BLOCK_BYTES as u64);
        self.block.clone_from(&self.file.block);
        self.block.resize(usize::try_from(wanted).unwrap_or(BLOCK_BYTES), 0);
        self.overlay_wal_pages();
        // "There may be a log", which nobody looks for in memory.
        let versions = if self.at == 0 { self.block.get_mut(18..20) } else { None };
        if let Some(versions) = versions.filter(|versions| **versions == [2, 2]) {
            versions.copy_from_slice(&[1, 1]);
        }
        (self.at, self.block_offset) = (self.at + wanted, 0);
        Ok(())
    }

    fn overlay_wal_pages(&mut self) {
        let Some(first) = self.at.checked_div(self.page_bytes as u64).and_then(|first| u32::try_from(first + 1).ok()) else { return };
        for (there, number) in self.block.chunks_mut(self.page_bytes).zip(first..) {
            if let Some(page) = self.pages.get(&number).filter(|page| page.len() == there.len()) {
                there.copy_from_slice(page);
            }
        }
    }

    /// Whether what was read is what was read before, to its end.
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

/// A log up to the first thing in it that is not of it.
struct WalReader<'l> {
    rest: &'l [u8],
    page_bytes: usize,
    salt: &'l [u8],
    decode_word: fn([u8; 4]) -> u32,
    checksum: (u32, u32),
}

impl<'l> WalReader<'l> {
    /// `None` where there is none: a log whose beginning is not whole counts as empty.
    fn new(bytes: &'l [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(WAL_HEADER_BYTES)?;
        let word: fn([u8; 4]) -> u32 = match read_u32(header, 0)? {
            0x377f_0682 => u32::from_le_bytes,
            0x377f_0683 => u32::from_be_bytes,
            _ => return None,
        };
        let page_bytes = usize::try_from(read_u32(header, 8)?).ok()?;
        let is_page = page_bytes.is_power_of_two() && (512..=65_536).contains(&page_bytes);
        let sum = update_checksum((0, 0), header.get(..24)?, word);
        let is_whole = is_page && read_u32(header, 4)? == 3_007_000 && sum == (read_u32(header, 24)?, read_u32(header, 28)?);
        is_whole.then_some(Self { rest, page_bytes, salt: header.get(16..24)?, decode_word: word, checksum: sum })
    }

    /// The next page with its number, and how many pages the file has after it where it ends a transaction.
    fn next_frame(&mut self) -> Option<(u32, u32, &'l [u8])> {
        let (frame, rest) = self.rest.split_at_checked(FRAME_HEADER_BYTES)?;
        let (page, rest) = rest.split_at_checked(self.page_bytes)?;
        let sum = update_checksum(update_checksum(self.checksum, frame.get(..8)?, self.decode_word), page, self.decode_word);
        let is_of_it = frame.get(8..16)? == self.salt && sum == (read_u32(frame, 16)?, read_u32(frame, 20)?);
        let of_frame = (read_u32(frame, 0).filter(|page| *page > 0)?, read_u32(frame, 4)?, page);
        is_of_it.then(|| (self.rest, self.checksum) = (rest, sum))?;
        Some(of_frame)
    }

    /// The last of each page that a whole transaction wrote, and how many pages the file has after the last one.
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

fn update_checksum(sum: (u32, u32), bytes: &[u8], word: fn([u8; 4]) -> u32) -> (u32, u32) {
    let (fours, _) = bytes.as_chunks::<4>();
    fours.chunks_exact(2).fold(sum, |(first, second), pair| {
        let first = first.wrapping_add(pair.first().map_or(0, |four| word(*four))).wrapping_add(second);
        (first, second.wrapping_add(pair.last().map_or(0, |four| word(*four))).wrapping_add(first))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file of some blocks, and a log beside it that is none.
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

    /// Its first bytes are read, and somebody writes to its last ones: half of what was and half of what is, is nothing that ever was.
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

    /// A log that begins anew while the file is read is another one.
    #[test]
    fn detects_a_log_that_starts_anew() {
        let (_above, _, log, bytes) = test_files();
        fs::write(&log, &bytes).expect("written");
        assert!(begins_with(&log, &bytes).expect("read") && begins_with(&log, &bytes[..BLOCK_BYTES + 1]).expect("read"));
        let mut other = bytes.clone();
        other[BLOCK_BYTES + 7] ^= 1;
        assert!(!begins_with(&log, &other).expect("read"));
        fs::write(&log, &bytes[..BLOCK_BYTES]).expect("written");
        assert!(!begins_with(&log, &bytes).expect("read"), "it is shorter");
        fs::remove_file(&log).expect("removed");
        assert!(!begins_with(&log, &bytes).expect("read") && begins_with(&log, &[]).expect("read"));
    }

    /// It is told at once, and not by the end of the process.
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
