//! Receipts: entries, proofs that they are in a log, and the signed checkpoint of that log, in one text. The verifier key of the log is
//! enough to verify it.
//!
//! A [`Receipt`] has one entry, in a standard format (C2SP tlog-proof). A [`ReceiptBundle`] has several entries under one checkpoint, and
//! data that they refer to by digest. Each of its paragraphs is a receipt in the standard format without header line and checkpoint.
//!
//! Must not interpret entries, or check whether the entries of a bundle belong together.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{Checkpoint, CheckpointError, parse_decimal};
use crate::hash::LogHash;
use crate::note::{NoteVerifier, SIGNATURE_PREFIX as SIGNATURE};
use crate::proof::{ProofError, verify_inclusion};

const RECEIPT_HEADER: &str = "c2sp.org/tlog-proof@v1";
/// The first line of a bundle.
const BUNDLE_HEADER: &str = "converger.receipt/1";

/// An entry with its proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The entry itself.
    pub entry: Vec<u8>,
    /// Its index in the log.
    pub index: u64,
    /// The hashes from the entry to the root.
    pub proof: Vec<LogHash>,
    /// The signed checkpoint with the root.
    pub checkpoint: String,
}

/// Entries of one log, each with its proof, under one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptBundle {
    /// Data that entries refer to by digest. It is not proven here: callers must compare it with the entries.
    pub attachments: Vec<Vec<u8>>,
    /// The entries, in order.
    pub entries: Vec<ProvenEntry>,
    /// The signed checkpoint with the root.
    pub checkpoint: String,
}

/// One entry of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenEntry {
    /// The entry itself.
    pub entry: Vec<u8>,
    /// Its index in the log.
    pub index: u64,
    /// The hashes from the entry to the root.
    pub proof: Vec<LogHash>,
}

/// Why a receipt is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// It does not have the parts of a receipt.
    #[error(
        "this is not a receipt: it must begin with `{RECEIPT_HEADER}` or `{BUNDLE_HEADER}`, list each entry with its index and hashes, and end with a checkpoint"
    )]
    Malformed,
    /// Its checkpoint is invalid.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its proof is invalid.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The proof of one entry of a bundle is invalid.
    #[error("entry {index}: {cause}")]
    Entry {
        /// The claimed index of the entry.
        index: u64,
        /// What is wrong with the proof.
        cause: ProofError,
    },
    /// A line that must be unique occurs twice. Such a receipt was changed after it was written.
    #[error("line {line} is a duplicate")]
    Repeated {
        /// The second of the two lines, counted from 1.
        line: usize,
    },
    /// Entries are not in the order of their log, or one occurs twice.
    #[error("entry {index} is not in the order of the log")]
    OutOfOrder {
        /// The first entry that is out of order.
        index: u64,
    },
}

impl Receipt {
    /// The text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Self { entry, index, proof, checkpoint } = self;
        format!("{RECEIPT_HEADER}\n{}\n{checkpoint}", format_paragraph(entry, *index, proof))
    }

    /// Parses a receipt. Nothing in it can be trusted before it is verified.
    ///
    /// # Errors
    /// It is not a receipt.
    pub fn parse(text: &str) -> Result<Self, ReceiptError> {
        repeated(text)?;
        Self::parse_parts(text).ok_or(ReceiptError::Malformed)
    }

    fn parse_parts(text: &str) -> Option<Self> {
        let (own, checkpoint) = text.strip_prefix(RECEIPT_HEADER)?.strip_prefix('\n')?.split_once("\n\n")?;
        let ProvenEntry { entry, index, proof } = ProvenEntry::parse_paragraph(own)?;
        Some(Self { entry, index, proof, checkpoint: checkpoint.to_owned() })
    }

    /// Verifies the receipt and returns the checkpoint of its log.
    ///
    /// # Errors
    /// The checkpoint cannot be trusted, or the entry is not in its log.
    pub fn verify(&self, verifier: &NoteVerifier) -> Result<Checkpoint, ReceiptError> {
        let checkpoint = Checkpoint::verify(self.checkpoint.as_bytes(), verifier)?;
        verify_inclusion(self.index, LogHash::of_leaf(&self.entry), checkpoint.size, checkpoint.root, &self.proof)?;
        Ok(checkpoint)
    }
}

/// Whether this is the first line of a receipt, with one entry or several.
#[must_use]
pub fn is_receipt_head(line: &str) -> bool {
    [RECEIPT_HEADER, BUNDLE_HEADER].contains(&line)
}

impl ReceiptBundle {
    /// Whether a text has the header of a bundle.
    #[must_use]
    pub fn has_header(text: &str) -> bool {
        text.strip_prefix(BUNDLE_HEADER).is_some_and(|rest| rest.starts_with('\n'))
    }

    /// The text form.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{BUNDLE_HEADER}\n");
        for attachment in &self.attachments {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "kept {}", STANDARD.encode(attachment));
        }
        for ProvenEntry { entry, index, proof } in &self.entries {
            text = text + "\n" + &format_paragraph(entry, *index, proof);
        }
        text + "\n" + &self.checkpoint
    }

    /// Parses a bundle. Nothing in it can be trusted before it is verified.
    ///
    /// # Errors
    /// It is not a bundle.
    pub fn parse(text: &str) -> Result<Self, ReceiptError> {
        repeated(text)?;
        Self::parse_bundle_parts(text).ok_or(ReceiptError::Malformed)
    }

    fn parse_bundle_parts(text: &str) -> Option<Self> {
        let (head, mut rest) = text.split_once("\n\n")?;
        let mut lines = head.split('\n');
        if lines.next() != Some(BUNDLE_HEADER) {
            return None;
        }
        let attachments: Option<_> = lines.map(|line| STANDARD.decode(line.strip_prefix("kept ")?).ok()).collect();
        let mut proven = Vec::new();
        // The name of a log contains no blank, so no checkpoint begins like an entry.
        while rest.starts_with("extra ") {
            let (own, behind) = rest.split_once("\n\n")?;
            proven.push(ProvenEntry::parse_paragraph(own)?);
            rest = behind;
        }
        Some(Self { attachments: attachments?, entries: proven, checkpoint: rest.to_owned() }).filter(|bundle| !bundle.entries.is_empty())
    }

    /// Verifies that all entries are in one log, in this order, and returns its checkpoint.
    ///
    /// # Errors
    /// The checkpoint cannot be trusted, an entry is not in its log, or the entries are out of order.
    pub fn verify(&self, verifier: &NoteVerifier) -> Result<Checkpoint, ReceiptError> {
        let checkpoint = Checkpoint::verify(self.checkpoint.as_bytes(), verifier)?;
        for ProvenEntry { entry, index, proof } in &self.entries {
            let found = verify_inclusion(*index, LogHash::of_leaf(entry), checkpoint.size, checkpoint.root, proof);
            found.map_err(|cause| ReceiptError::Entry { index: *index, cause })?;
        }
        let follows = |(one, other): &(&ProvenEntry, &ProvenEntry)| one.index < other.index;
        match self.entries.iter().zip(self.entries.iter().skip(1)).find(|pair| !follows(pair)) {
            Some((_, late)) => Err(ReceiptError::OutOfOrder { index: late.index }),
            None => Ok(checkpoint),
        }
    }
}

/// Rejects duplicates of lines that a receipt has once: attachments and signatures. Hashes may repeat, because proofs can share them; the
/// order of entries is checked elsewhere.
fn repeated(text: &str) -> Result<(), ReceiptError> {
    let mut seen = BTreeSet::new();
    let is_single = |line: &&str| ["kept ", SIGNATURE].iter().any(|head| line.starts_with(head));
    match text.lines().enumerate().find(|(_, line)| is_single(line) && !seen.insert(*line)) {
        Some((at, _)) => Err(ReceiptError::Repeated { line: at + 1 }),
        None => Ok(()),
    }
}

impl ProvenEntry {
    fn parse_paragraph(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let entry = STANDARD.decode(lines.next()?.strip_prefix("extra ")?).ok()?;
        let index = parse_decimal(lines.next()?.strip_prefix("index ")?)?;
        let proof: Option<Vec<LogHash>> = lines.map(LogHash::parse).collect();
        Some(Self { entry, index, proof: proof? })
    }
}

/// An entry, its index and its hashes, each on one line.
fn format_paragraph(entry: &[u8], index: u64, proof: &[LogHash]) -> String {
    let mut text = format!("extra {}\nindex {index}\n", STANDARD.encode(entry));
    for hash in proof {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{hash}");
    }
    text
}
