//! Whether an entry is written just as given bytes: written once more, and compared on the way instead of kept.

use std::io;

use super::LedgerEntry;

/// Whether these bytes are the one form of an entry.
pub(super) fn is_canonical_form_of(entry: &LedgerEntry, bytes: &[u8]) -> bool {
    let mut rest = ExpectedBytes(bytes);
    serde_json::to_writer(&mut rest, entry).is_ok() && rest.0.is_empty()
}

/// What of the bytes is not written yet. Anything else than that is an error, so that writing ends there.
struct ExpectedBytes<'b>(&'b [u8]);

impl io::Write for ExpectedBytes<'_> {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        self.0 = self.0.strip_prefix(part).ok_or(io::ErrorKind::InvalidData)?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
