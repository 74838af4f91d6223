//! Checkpoints (C2SP tlog-checkpoint): the size and root of a log, signed.

use crate::hash::LogHash;
use crate::note::{NoteError, NoteSigner, NoteVerifier, SignedNote};

/// The size and root of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name of the log.
    pub origin: String,
    /// The number of entries.
    pub size: u64,
    /// The root over all entries.
    pub root: LogHash,
}

/// Why something is not a checkpoint, or cannot be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The signed note is invalid.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// The text is not origin, size and root.
    #[error("this is not a checkpoint: its lines must be the name, the size and the root of the log")]
    Malformed,
    /// The checkpoint belongs to another log.
    #[error("this is a checkpoint of another log")]
    OtherLog,
}

impl Checkpoint {
    /// The signed checkpoint, for publication.
    #[must_use]
    pub fn sign(&self, signer: &NoteSigner) -> String {
        signer.sign(&self.to_text())
    }

    fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, self.root)
    }

    /// Parses a checkpoint that is signed with this key and belongs to the log of the key.
    ///
    /// # Errors
    /// It cannot be trusted, or is not a checkpoint.
    pub fn verify(bytes: &[u8], verifier: &NoteVerifier) -> Result<Self, CheckpointError> {
        let checkpoint = Self::parse(SignedNote::parse(bytes)?.verify(verifier)?)?;
        if checkpoint.origin == verifier.name() { Ok(checkpoint) } else { Err(CheckpointError::OtherLog) }
    }

    /// Parses a checkpoint without verifying its signature: only for comparing it with another, never for trusting it.
    ///
    /// # Errors
    /// It is not a checkpoint.
    pub fn parse_unverified(bytes: &[u8]) -> Result<Self, CheckpointError> {
        Self::parse(SignedNote::parse(bytes)?.unverified_text())
    }

    fn parse(text: &str) -> Result<Self, CheckpointError> {
        let mut lines = text.strip_suffix('\n').ok_or(CheckpointError::Malformed)?.split('\n');
        let (origin, size, root) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
        let is_extended_badly = lines.any(str::is_empty);
        let size = parse_decimal(size).filter(|_| !origin.is_empty() && !is_extended_badly).ok_or(CheckpointError::Malformed)?;
        let root = LogHash::parse(root).ok_or(CheckpointError::Malformed)?;
        Ok(Self { origin: origin.to_owned(), size, root })
    }
}

/// Parses a number in its only accepted notation: digits without leading zeros.
pub(crate) fn parse_decimal(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}
