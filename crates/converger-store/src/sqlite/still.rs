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

use super::open::NO_LINK;

/// What is larger is not taken into memory: SQLite asks the system for no more than this at once, and no setting raises it.
const BYTES_MAX: u64 = 2_147_483_391;

/// How often it is looked again where somebody writes at the same time.
const LOOKS_MAX: usize = 8;

/// So much of the file is read at once. Every size that a page can have divides it.
const BLOCK: usize = 65_536;

const HEADER: usize = 32;
const FRAME: usize = 24;

/// The file with all that its log has of whole transactions, as of one moment, given to whoever takes it with its length.
///
/// What was taken counts once it is known that nobody wrote meanwhile; otherwise it is dropped, and given again.
pub(super) fn together<T>(place: &Path, log: &Path, mut take: impl FnMut(&mut dyn Read, usize) -> T) -> io::Result<T> {
    for _ in 0..LOOKS_MAX {
        let mut first = Raw::open(place)?;
        while first.next()? {}
        let lines = read(log)?;
        // A log only grows while the file stays as it is; whoever brings it over changes the file first, and begins the log anew after that.
        if !begins_with(log, &lines)? {
            continue;
        }
        let mut still = Still::new(Raw::open(place)?, &lines, first.bytes)?;
        let length = usize::try_from(still.length).unwrap_or(usize::MAX);
        let taken = take(&mut still, length);
        if still.is_read_as(&first)? {
            return Ok(taken);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "it is written to all the time"))
}

/// What is there, to be read only; nothing where it is not there: who closes a store last takes the log away.
fn open(path: &Path) -> io::Result<Option<File>> {
    match File::options().read(true).custom_flags(NO_LINK).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        file => file.map(Some),
    }
}

/// All of a log, as far as it was there when it was opened.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let Some(file) = open(path)? else { return Ok(Vec::new()) };
    let length = file.metadata()?.len();
    bounded(length)?;
    let mut bytes = Vec::new();
    // Memory that is not there is an error like any other, and not the end of the process.
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX)).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether a file still begins with these bytes. It is not held a second time for that.
fn begins_with(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let Some(mut file) = open(path)? else { return Ok(bytes.is_empty()) };
    let mut block = vec![0; BLOCK];
    for wanted in bytes.chunks(BLOCK) {
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

fn bounded(bytes: u64) -> io::Result<()> {
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
struct Raw {
    file: Option<io::Take<File>>,
    block: Vec<u8>,
    bytes: u64,
    sum: DefaultHasher,
}

impl Raw {
    fn open(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        file.as_ref().map_or(Ok(0), |file| file.metadata().map(|there| there.len())).and_then(bounded)?;
        // It may grow meanwhile: one byte more than the bound is enough to see that it is beyond it.
        let file = file.map(|file| file.take(BYTES_MAX + 1));
        Ok(Self { file, block: Vec::with_capacity(BLOCK), bytes: 0, sum: DefaultHasher::new() })
    }

    /// Reads the next block, which is empty and the last one where there is no more.
    fn next(&mut self) -> io::Result<bool> {
        self.block.clear();
        if let Some(file) = &mut self.file {
            file.take(BLOCK as u64).read_to_end(&mut self.block)?;
        }
        self.bytes += self.block.len() as u64;
        bounded(self.bytes)?;
        self.sum.write(&self.block);
        Ok(!self.block.is_empty())
    }
}

/// The pages of whole transactions in the place of those in the file, as it is read.
struct Still<'l> {
    raw: Raw,
    /// The last of each page that the log has, by its number.
    pages: BTreeMap<u32, &'l [u8]>,
    page_bytes: usize,
    /// How long the file is with its log.
    length: u64,
    /// Where the next block begins.
    at: u64,
    /// The block that is handed out, and how much of it was.
    block: Vec<u8>,
    handed: usize,
}

impl<'l> Still<'l> {
    fn new(raw: Raw, log: &'l [u8], file_bytes: u64) -> io::Result<Self> {
        let (pages, count) = Log::new(log).map(Log::transactions).filter(|(_, count)| *count > 0).unwrap_or_default();
        let page_bytes = pages.values().next().map_or(0, |page| page.len());
        let length = if count == 0 { file_bytes } else { u64::from(count).saturating_mul(page_bytes as u64) };
        bounded(length)?;
        Ok(Self { raw, pages, page_bytes, length, at: 0, block: Vec::with_capacity(BLOCK), handed: 0 })
    }

    /// The next block of the file, with what the log has of it.
    fn step(&mut self) -> io::Result<()> {
        self.raw.next()?;
        let wanted = self.length.saturating_sub(self.at).min(BLOCK as u64);
        self.block.clone_from(&self.raw.block);
        self.block.resize(usize::try_from(wanted).unwrap_or(BLOCK), 0);
        self.overlay();
        // "There may be a log", which nobody looks for in memory.
        let versions = if self.at == 0 { self.block.get_mut(18..20) } else { None };
        if let Some(versions) = versions.filter(|versions| **versions == [2, 2]) {
            versions.copy_from_slice(&[1, 1]);
        }
        (self.at, self.handed) = (self.at + wanted, 0);
        Ok(())
    }

    fn overlay(&mut self) {
        let Some(first) = self.at.checked_div(self.page_bytes as u64).and_then(|first| u32::try_from(first + 1).ok()) else { return };
        for (there, number) in self.block.chunks_mut(self.page_bytes).zip(first..) {
            if let Some(page) = self.pages.get(&number).filter(|page| page.len() == there.len()) {
                there.copy_from_slice(page);
            }
        }
    }

    /// Whether what was read is what was read before, to its end.
    fn is_read_as(&mut self, first: &Raw) -> io::Result<bool> {
        while self.raw.next()? {}
        Ok((self.raw.bytes, self.raw.sum.finish()) == (first.bytes, first.sum.finish()))
    }
}

impl Read for Still<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.handed == self.block.len() && self.at < self.length {
            self.step()?;
        }
        let mut rest = self.block.get(self.handed..).unwrap_or_default();
        let read = rest.read(into)?;
        self.handed += read;
        Ok(read)
    }
}

/// A log up to the first thing in it that is not of it.
struct Log<'l> {
    rest: &'l [u8],
    page_bytes: usize,
    salt: &'l [u8],
    word: fn([u8; 4]) -> u32,
    sum: (u32, u32),
}

impl<'l> Log<'l> {
    /// `None` where there is none: a log whose beginning is not whole counts as empty.
    fn new(bytes: &'l [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let word: fn([u8; 4]) -> u32 = match number(header, 0)? {
            0x377f_0682 => u32::from_le_bytes,
            0x377f_0683 => u32::from_be_bytes,
            _ => return None,
        };
        let page_bytes = usize::try_from(number(header, 8)?).ok()?;
        let is_page = page_bytes.is_power_of_two() && (512..=65_536).contains(&page_bytes);
        let sum = summed((0, 0), header.get(..24)?, word);
        let is_whole = is_page && number(header, 4)? == 3_007_000 && sum == (number(header, 24)?, number(header, 28)?);
        is_whole.then_some(Self { rest, page_bytes, salt: header.get(16..24)?, word, sum })
    }

    /// The next page with its number, and how many pages the file has after it where it ends a transaction.
    fn next(&mut self) -> Option<(u32, u32, &'l [u8])> {
        let (frame, rest) = self.rest.split_at_checked(FRAME)?;
        let (page, rest) = rest.split_at_checked(self.page_bytes)?;
        let sum = summed(summed(self.sum, frame.get(..8)?, self.word), page, self.word);
        let is_of_it = frame.get(8..16)? == self.salt && sum == (number(frame, 16)?, number(frame, 20)?);
        let of_frame = (number(frame, 0).filter(|page| *page > 0)?, number(frame, 4)?, page);
        is_of_it.then(|| (self.rest, self.sum) = (rest, sum))?;
        Some(of_frame)
    }

    /// The last of each page that a whole transaction wrote, and how many pages the file has after the last one.
    fn transactions(mut self) -> (BTreeMap<u32, &'l [u8]>, u32) {
        let (mut whole, mut open, mut count) = (BTreeMap::new(), BTreeMap::new(), 0);
        while let Some((number, after, page)) = self.next() {
            open.insert(number, page);
            if after > 0 {
                whole.append(&mut open);
                count = after;
            }
        }
        (whole, count)
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}

fn summed(sum: (u32, u32), bytes: &[u8], word: fn([u8; 4]) -> u32) -> (u32, u32) {
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
    fn place() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf, Vec<u8>) {
        let above = tempfile::tempdir().expect("a directory");
        let (file, log) = (above.path().join("file"), above.path().join("log"));
        let bytes: Vec<u8> = (0..BLOCK * 3 + 100).map(|at| u8::try_from(at % 251).expect("a byte")).collect();
        fs::write(&file, &bytes).and_then(|()| fs::write(&log, b"no log")).expect("written");
        (above, file, log, bytes)
    }

    fn all(read: &mut dyn Read, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        read.read_to_end(&mut bytes).expect("read");
        assert_eq!(bytes.len(), length);
        bytes
    }

    #[test]
    fn a_file_that_nobody_writes_to_is_given_once_as_it_is() {
        let (_above, file, log, bytes) = place();
        let mut given = 0;
        let read = together(&file, &log, |read, length| {
            given += 1;
            all(read, length)
        });
        assert!(read.expect("read") == bytes && given == 1);
    }

    /// Its first bytes are read, and somebody writes to its last ones: half of what was and half of what is, is nothing that ever was.
    #[test]
    fn what_was_written_to_meanwhile_is_given_again() {
        let (_above, file, log, mut bytes) = place();
        let mut given = 0;
        let read = together(&file, &log, |read, length| {
            given += 1;
            if given == 1 {
                *bytes.last_mut().expect("there") = 252;
                fs::write(&file, &bytes).expect("written");
            }
            all(read, length)
        });
        assert!(read.expect("read") == bytes && given == 2, "{given}");
    }

    #[test]
    fn what_is_longer_or_shorter_than_before_or_written_to_all_the_time_is_not_believed() {
        for change in [1_i64, -1] {
            let (_above, file, log, _) = place();
            let mut given = 0;
            let read = together(&file, &log, |_, _| {
                given += 1;
                let now = i64::try_from(fs::metadata(&file).expect("there").len()).expect("small");
                let file = File::options().write(true).open(&file).expect("there");
                file.set_len(u64::try_from(now + change).expect("some")).expect("set");
            });
            assert_eq!((read.map_err(|error| error.kind()), given), (Err(io::ErrorKind::ResourceBusy), LOOKS_MAX));
        }
    }

    /// A log that begins anew while the file is read is another one.
    #[test]
    fn a_log_is_held_against_its_beginning() {
        let (_above, _, log, bytes) = place();
        fs::write(&log, &bytes).expect("written");
        assert!(begins_with(&log, &bytes).expect("read") && begins_with(&log, &bytes[..BLOCK + 1]).expect("read"));
        let mut other = bytes.clone();
        other[BLOCK + 7] ^= 1;
        assert!(!begins_with(&log, &other).expect("read"));
        fs::write(&log, &bytes[..BLOCK]).expect("written");
        assert!(!begins_with(&log, &bytes).expect("read"), "it is shorter");
        fs::remove_file(&log).expect("removed");
        assert!(!begins_with(&log, &bytes).expect("read") && begins_with(&log, &[]).expect("read"));
    }

    /// It is told at once, and not by the end of the process.
    #[test]
    fn what_is_too_large_is_told_before_it_is_read() {
        let (_above, file, log, _) = place();
        let grow = |path: &Path| File::options().write(true).open(path).and_then(|file| file.set_len(BYTES_MAX + 1)).expect("holes");
        let kind = |file: &Path, log: &Path| together(file, log, |_, _| ()).map_err(|error| error.kind());
        grow(&log);
        assert_eq!(kind(&file, &log), Err(io::ErrorKind::FileTooLarge));
        grow(&file);
        assert_eq!(kind(&file, &log), Err(io::ErrorKind::FileTooLarge));
    }
}
