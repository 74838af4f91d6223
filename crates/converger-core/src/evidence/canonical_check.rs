//! Checks that bytes are the canonical form of an entry, by writing it again and comparing on the fly instead of buffering.

use std::io;

use super::LedgerEntry;

/// Whether these bytes are the canonical form of an entry.
pub(super) fn is_canonical_form_of(entry: &LedgerEntry, bytes: &[u8]) -> bool {
    let mut rest = ExpectedBytes(bytes);
    serde_json::to_writer(&mut rest, entry).is_ok() && rest.0.is_empty()
}

/// The bytes that are not written yet. Writing anything else is an error, so serialisation stops at the first difference.
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
