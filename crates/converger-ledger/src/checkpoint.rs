//! Checkpoints (C2SP tlog-checkpoint): how many entries a log has, and the root over them, signed.

use crate::hash::LogHash;
use crate::note::{NoteError, NoteSigner, NoteVerifier, SignedNote};

/// What a log says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name of the log.
    pub origin: String,
    /// How many entries it has.
    pub size: u64,
    /// The root over them.
    pub root: LogHash,
}

/// A checkpoint that is none, or not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// The note around it.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// Not origin, size and root.
    #[error("this is no checkpoint: its lines are the log's name, how many entries it has, and their root")]
    Malformed,
    /// That of another log.
    #[error("this is a checkpoint of another log")]
    OtherLog,
}

impl Checkpoint {
    /// Signed, as it is given to everybody.
    #[must_use]
    pub fn sign(&self, signer: &NoteSigner) -> String {
        signer.sign(&self.to_text())
    }

    fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n", self.origin, self.size, self.root)
    }

    /// What a signed checkpoint says, if it is signed with this key and is that of the key's log.
    ///
    /// # Errors
    /// It cannot be believed, or is none.
    pub fn verify(bytes: &[u8], verifier: &NoteVerifier) -> Result<Self, CheckpointError> {
        let checkpoint = Self::parse(SignedNote::parse(bytes)?.verify(verifier)?)?;
        if checkpoint.origin == verifier.name() { Ok(checkpoint) } else { Err(CheckpointError::OtherLog) }
    }

    /// What a checkpoint says, whoever signed it: to compare it with another, never to believe it.
    ///
    /// # Errors
    /// It is none.
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

/// A number as it is written in one way only.
pub(crate) fn parse_decimal(text: &str) -> Option<u64> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_plain)
}
