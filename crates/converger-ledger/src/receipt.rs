//! Receipts: entries, the proofs that they are in a log, and the signed checkpoint of that log, in one text that can be checked with nothing but
//! the log's verifier key.
//!
//! A [`Receipt`] has one entry, in the form that others read (C2SP tlog-proof). A [`ReceiptBundle`] has several under one checkpoint, and what they name by
//! digest. Each of its paragraphs is a receipt of the other form without its first line and its checkpoint.
//!
//! What never enters: what entries say, and whether those of a sheaf belong together.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{Checkpoint, CheckpointError, parse_decimal};
use crate::hash::LogHash;
use crate::note::{NoteVerifier, SIGNATURE_PREFIX as SIGNATURE};
use crate::proof::{ProofError, verify_inclusion};

const RECEIPT_HEADER: &str = "c2sp.org/tlog-proof@v1";
/// The first line of a sheaf.
const BUNDLE_HEADER: &str = "converger.receipt/1";

/// An entry with its proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The entry itself.
    pub entry: Vec<u8>,
    /// Its place in the log.
    pub index: u64,
    /// The hashes from it up to the root.
    pub proof: Vec<LogHash>,
    /// The signed checkpoint that has the root.
    pub checkpoint: String,
}

/// Entries of one log, each with its proof, under one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptBundle {
    /// What entries name by digest and is given along. Nothing here vouches for it: whoever reads the entries holds it against them.
    pub attachments: Vec<Vec<u8>>,
    /// The entries, in their order.
    pub entries: Vec<ProvenEntry>,
    /// The signed checkpoint that has the root.
    pub checkpoint: String,
}

/// One entry of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenEntry {
    /// The entry itself.
    pub entry: Vec<u8>,
    /// Its place in the log.
    pub index: u64,
    /// The hashes from it up to the root.
    pub proof: Vec<LogHash>,
}

/// A receipt that is none, or proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// Not the parts of a receipt.
    #[error(
        "this is no receipt: it begins with `{RECEIPT_HEADER}` or `{BUNDLE_HEADER}`, then each entry with its index and its hashes, and the checkpoint ends it"
    )]
    Malformed,
    /// Its checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Its hashes.
    #[error(transparent)]
    Proof(#[from] ProofError),
    /// The hashes of one entry of several.
    #[error("entry {index}: {cause}")]
    Entry {
        /// The place that is said to be its own.
        index: u64,
        /// What is wrong with them.
        cause: ProofError,
    },
    /// A line that a receipt has once, twice. What proves nothing more is not what was written.
    #[error("line {line} is there twice")]
    Repeated {
        /// The second of the two, counted from 1.
        line: usize,
    },
    /// Entries that are not in the order of their log, or one of them twice.
    #[error("entry {index} stands behind one that the log has no earlier than it")]
    OutOfOrder {
        /// The first that does.
        index: u64,
    },
}

impl Receipt {
    /// As it is written.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Self { entry, index, proof, checkpoint } = self;
        format!("{RECEIPT_HEADER}\n{}\n{checkpoint}", format_paragraph(entry, *index, proof))
    }

    /// The parts of a receipt. Nothing is believed of it before it is verified.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, ReceiptError> {
        repeated(text)?;
        Self::parse_parts(text).ok_or(ReceiptError::Malformed)
    }

    fn parse_parts(text: &str) -> Option<Self> {
        let (own, checkpoint) = text.strip_prefix(RECEIPT_HEADER)?.strip_prefix('\n')?.split_once("\n\n")?;
        let ProvenEntry { entry, index, proof } = ProvenEntry::parse_paragraph(own)?;
        Some(Self { entry, index, proof, checkpoint: checkpoint.to_owned() })
    }

    /// The checkpoint of the log that the entry is in.
    ///
    /// # Errors
    /// The checkpoint cannot be believed, or the entry is not in its log.
    pub fn verify(&self, verifier: &NoteVerifier) -> Result<Checkpoint, ReceiptError> {
        let checkpoint = Checkpoint::verify(self.checkpoint.as_bytes(), verifier)?;
        verify_inclusion(self.index, LogHash::of_leaf(&self.entry), checkpoint.size, checkpoint.root, &self.proof)?;
        Ok(checkpoint)
    }
}

/// Whether this is the first line of a receipt, of one entry or of several.
#[must_use]
pub fn is_receipt_head(line: &str) -> bool {
    [RECEIPT_HEADER, BUNDLE_HEADER].contains(&line)
}

impl ReceiptBundle {
    /// Whether a text says that it is one.
    #[must_use]
    pub fn has_header(text: &str) -> bool {
        text.strip_prefix(BUNDLE_HEADER).is_some_and(|rest| rest.starts_with('\n'))
    }

    /// As it is written.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{BUNDLE_HEADER}\n");
        for kept in &self.attachments {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "kept {}", STANDARD.encode(kept));
        }
        for ProvenEntry { entry, index, proof } in &self.entries {
            text = text + "\n" + &format_paragraph(entry, *index, proof);
        }
        text + "\n" + &self.checkpoint
    }

    /// The parts of a sheaf. Nothing is believed of it before it is verified.
    ///
    /// # Errors
    /// It is none.
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
        let kept: Option<_> = lines.map(|line| STANDARD.decode(line.strip_prefix("kept ")?).ok()).collect();
        let mut proven = Vec::new();
        // No log has a name with a blank in it, so that no checkpoint begins like an entry.
        while rest.starts_with("extra ") {
            let (own, behind) = rest.split_once("\n\n")?;
            proven.push(ProvenEntry::parse_paragraph(own)?);
            rest = behind;
        }
        Some(Self { attachments: kept?, entries: proven, checkpoint: rest.to_owned() }).filter(|sheaf| !sheaf.entries.is_empty())
    }

    /// The checkpoint of the log that all its entries are in, in this order.
    ///
    /// # Errors
    /// The checkpoint cannot be believed, or one of the entries is not in its log, or not behind the one before it.
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

/// Lines that a receipt has once: what is given along, and signatures. Hashes may repeat where two proofs have one in common; entries have their order.
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

/// An entry, its place and its hashes, each in a line.
fn format_paragraph(entry: &[u8], index: u64, proof: &[LogHash]) -> String {
    let mut text = format!("extra {}\nindex {index}\n", STANDARD.encode(entry));
    for hash in proof {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{hash}");
    }
    text
}
