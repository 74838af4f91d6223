//! What happened, in order: a hash of all of it, and the lines themselves where somebody wants to read them. One seed is one trace.

use std::fmt::{self, Write as _};

/// A story as it is told.
pub(crate) struct Trace {
    hash: u64,
    lines: Option<Vec<String>>,
}

impl Trace {
    pub(crate) fn new(keeps_lines: bool) -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: keeps_lines.then(Vec::new) }
    }

    /// One more line, at a moment in milliseconds since the world began.
    pub(crate) fn line(&mut self, at_ms: u64, text: fmt::Arguments<'_>) {
        // Writing to a hash or a string cannot fail.
        let _ = writeln!(Hasher(&mut self.hash), "{at_ms} {text}");
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>9}.{:03}  {text}", at_ms / 1000, at_ms % 1000));
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default()
    }
}

/// FNV-1a.
struct Hasher<'h>(&'h mut u64);

impl fmt::Write for Hasher<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            *self.0 = (*self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}
