//! Receipts: entries, the proofs that they are in a log, and the signed checkpoint of that log, in one text that can be checked with nothing but
//! the log's verifier key.
//!
//! A [`Receipt`] has one entry, in the form that others read (C2SP tlog-proof). A [`Sheaf`] has several under one checkpoint, and what they name by
//! digest. Each of its paragraphs is a receipt of the other form without its first line and its checkpoint.
//!
//! What never enters: what entries say, and whether those of a sheaf belong together.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{BadCheckpoint, Checkpoint, decimal};
use crate::hash::Hash;
use crate::note::{DASH as SIGNATURE, Verifier};
use crate::proof::{BadProof, verify_inclusion};

const HEAD: &str = "c2sp.org/tlog-proof@v1";
/// The first line of a sheaf.
const SHEAF: &str = "converger.receipt/1";

/// An entry with its proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The entry itself.
    pub entry: Vec<u8>,
    /// Its place in the log.
    pub index: u64,
    /// The hashes from it up to the root.
    pub proof: Vec<Hash>,
    /// The signed checkpoint that has the root.
    pub checkpoint: String,
}

/// Entries of one log, each with its proof, under one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheaf {
    /// What entries name by digest and is given along. Nothing here vouches for it: whoever reads the entries holds it against them.
    pub kept: Vec<Vec<u8>>,
    /// The entries, in their order.
    pub proven: Vec<Proven>,
    /// The signed checkpoint that has the root.
    pub checkpoint: String,
}

/// One entry of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// The entry itself.
    pub entry: Vec<u8>,
    /// Its place in the log.
    pub index: u64,
    /// The hashes from it up to the root.
    pub proof: Vec<Hash>,
}

/// A receipt that is none, or proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReceipt {
    /// Not the parts of a receipt.
    #[error(
        "this is no receipt: it begins with `{HEAD}` or `{SHEAF}`, then each entry with its index and its hashes, and the checkpoint ends it"
    )]
    Form,
    /// Its checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] BadCheckpoint),
    /// Its hashes.
    #[error(transparent)]
    Proof(#[from] BadProof),
    /// The hashes of one entry of several.
    #[error("entry {index}: {cause}")]
    Entry {
        /// The place that is said to be its own.
        index: u64,
        /// What is wrong with them.
        cause: BadProof,
    },
    /// A line that a receipt has once, twice. What proves nothing more is not what was written.
    #[error("line {line} is there twice")]
    Repeated {
        /// The second of the two, counted from 1.
        line: usize,
    },
    /// Entries that are not in the order of their log, or one of them twice.
    #[error("entry {index} stands behind one that the log has no earlier than it")]
    Order {
        /// The first that does.
        index: u64,
    },
}

impl Receipt {
    /// As it is written.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Self { entry, index, proof, checkpoint } = self;
        format!("{HEAD}\n{}\n{checkpoint}", paragraph(entry, *index, proof))
    }

    /// The parts of a receipt. Nothing is believed of it before it is verified.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, BadReceipt> {
        repeated(text)?;
        Self::parts(text).ok_or(BadReceipt::Form)
    }

    fn parts(text: &str) -> Option<Self> {
        let (own, checkpoint) = text.strip_prefix(HEAD)?.strip_prefix('\n')?.split_once("\n\n")?;
        let Proven { entry, index, proof } = Proven::parse(own)?;
        Some(Self { entry, index, proof, checkpoint: checkpoint.to_owned() })
    }

    /// The checkpoint of the log that the entry is in.
    ///
    /// # Errors
    /// The checkpoint cannot be believed, or the entry is not in its log.
    pub fn verify(&self, verifier: &Verifier) -> Result<Checkpoint, BadReceipt> {
        let checkpoint = Checkpoint::verify(self.checkpoint.as_bytes(), verifier)?;
        verify_inclusion(self.index, Hash::of_leaf(&self.entry), checkpoint.size, checkpoint.root, &self.proof)?;
        Ok(checkpoint)
    }
}

/// Whether this is the first line of a receipt, of one entry or of several.
#[must_use]
pub fn is_receipt_head(line: &str) -> bool {
    [HEAD, SHEAF].contains(&line)
}

impl Sheaf {
    /// Whether a text says that it is one.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.strip_prefix(SHEAF).is_some_and(|rest| rest.starts_with('\n'))
    }

    /// As it is written.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{SHEAF}\n");
        for kept in &self.kept {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "kept {}", STANDARD.encode(kept));
        }
        for Proven { entry, index, proof } in &self.proven {
            text = text + "\n" + &paragraph(entry, *index, proof);
        }
        text + "\n" + &self.checkpoint
    }

    /// The parts of a sheaf. Nothing is believed of it before it is verified.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, BadReceipt> {
        repeated(text)?;
        Self::parts(text).ok_or(BadReceipt::Form)
    }

    fn parts(text: &str) -> Option<Self> {
        let (head, mut rest) = text.split_once("\n\n")?;
        let mut lines = head.split('\n');
        if lines.next() != Some(SHEAF) {
            return None;
        }
        let kept: Option<_> = lines.map(|line| STANDARD.decode(line.strip_prefix("kept ")?).ok()).collect();
        let mut proven = Vec::new();
        // No log has a name with a blank in it, so that no checkpoint begins like an entry.
        while rest.starts_with("extra ") {
            let (own, behind) = rest.split_once("\n\n")?;
            proven.push(Proven::parse(own)?);
            rest = behind;
        }
        Some(Self { kept: kept?, proven, checkpoint: rest.to_owned() }).filter(|sheaf| !sheaf.proven.is_empty())
    }

    /// The checkpoint of the log that all its entries are in, in this order.
    ///
    /// # Errors
    /// The checkpoint cannot be believed, or one of the entries is not in its log, or not behind the one before it.
    pub fn verify(&self, verifier: &Verifier) -> Result<Checkpoint, BadReceipt> {
        let checkpoint = Checkpoint::verify(self.checkpoint.as_bytes(), verifier)?;
        for Proven { entry, index, proof } in &self.proven {
            let found = verify_inclusion(*index, Hash::of_leaf(entry), checkpoint.size, checkpoint.root, proof);
            found.map_err(|cause| BadReceipt::Entry { index: *index, cause })?;
        }
        let follows = |(one, other): &(&Proven, &Proven)| one.index < other.index;
        match self.proven.iter().zip(self.proven.iter().skip(1)).find(|pair| !follows(pair)) {
            Some((_, late)) => Err(BadReceipt::Order { index: late.index }),
            None => Ok(checkpoint),
        }
    }
}

/// Lines that a receipt has once: what is given along, and signatures. Hashes may repeat where two proofs have one in common; entries have their order.
fn repeated(text: &str) -> Result<(), BadReceipt> {
    let mut seen = BTreeSet::new();
    let is_single = |line: &&str| ["kept ", SIGNATURE].iter().any(|head| line.starts_with(head));
    match text.lines().enumerate().find(|(_, line)| is_single(line) && !seen.insert(*line)) {
        Some((at, _)) => Err(BadReceipt::Repeated { line: at + 1 }),
        None => Ok(()),
    }
}

impl Proven {
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split('\n');
        let entry = STANDARD.decode(lines.next()?.strip_prefix("extra ")?).ok()?;
        let index = decimal(lines.next()?.strip_prefix("index ")?)?;
        let proof: Option<Vec<Hash>> = lines.map(Hash::parse).collect();
        Some(Self { entry, index, proof: proof? })
    }
}

/// An entry, its place and its hashes, each in a line.
fn paragraph(entry: &[u8], index: u64, proof: &[Hash]) -> String {
    let mut text = format!("extra {}\nindex {index}\n", STANDARD.encode(entry));
    for hash in proof {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{hash}");
    }
    text
}
