//! A store together with its log, brought together in memory: nothing is opened for writing, locked or made, so that an audit changes nothing
//! (G5). SQLite itself keeps a third file beside a log, also for those who only read.
//!
//! The form of the log is documented (sqlite.org/fileformat2.html, "The Write-Ahead Log") and does not change. What never enters: writing.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::open::NO_LINK;

/// What is larger is not taken into memory.
const BYTES_MAX: u64 = 1 << 30;

/// How often it is looked again where somebody writes at the same time.
const LOOKS_MAX: usize = 8;

const HEADER: usize = 32;
const FRAME: usize = 24;

/// The file with all that its log has of whole transactions, as of one moment.
pub(super) fn together(place: &Path, log: &Path) -> io::Result<Vec<u8>> {
    for _ in 0..LOOKS_MAX {
        let (file, lines) = (read(place)?, read(log)?);
        // A log only grows while the file stays as it is; whoever brings it over changes the file first, and begins the log anew after that.
        if read(log)?.starts_with(&lines) && read(place)? == file {
            return applied(file, &lines);
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "it is written to all the time"))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = match File::options().read(true).custom_flags(NO_LINK).open(path) {
        // Who closes it last takes the log away.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    bounded(bytes.len())?;
    Ok(bytes)
}

fn bounded(bytes: usize) -> io::Result<()> {
    let is_large = u64::try_from(bytes).map_or(true, |bytes| bytes > BYTES_MAX);
    if is_large { Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 GiB and has a log beside it")) } else { Ok(()) }
}

/// The pages of whole transactions in the place of those in the file.
fn applied(mut file: Vec<u8>, log: &[u8]) -> io::Result<Vec<u8>> {
    if let Some((pages, count)) = Log::new(log).map(Log::transactions).filter(|(_, count)| *count > 0) {
        let size = pages.values().next().map_or(0, |page| page.len());
        let length = size.saturating_mul(usize::try_from(count).unwrap_or(usize::MAX));
        bounded(length)?;
        file.resize(length, 0);
        for (number, page) in pages {
            let start = usize::try_from(number - 1).unwrap_or(usize::MAX).saturating_mul(size);
            if let Some(there) = file.get_mut(start..start.saturating_add(size)) {
                there.copy_from_slice(page);
            }
        }
    }
    // "There may be a log", which nobody looks for in memory.
    if let Some(versions) = file.get_mut(18..20).filter(|versions| **versions == [2, 2]) {
        versions.copy_from_slice(&[1, 1]);
    }
    Ok(file)
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
