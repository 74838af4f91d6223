//! Receipts (C2SP tlog-proof): an entry, the proof that it is in a log, and the signed checkpoint of that log, in one text that can be
//! checked with nothing but the log's verifier key.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::checkpoint::{BadCheckpoint, Checkpoint, decimal};
use crate::hash::Hash;
use crate::note::Verifier;
use crate::proof::{BadProof, verify_inclusion};

const HEAD: &str = "c2sp.org/tlog-proof@v1";

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

/// A receipt that is none, or proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReceipt {
    /// Not the parts of a receipt.
    #[error("this is no receipt: it begins with `{HEAD}`, then the entry, its index, the hashes, and the checkpoint")]
    Form,
    /// Its checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] BadCheckpoint),
    /// Its hashes.
    #[error(transparent)]
    Proof(#[from] BadProof),
}

impl Receipt {
    /// As it is written.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\nextra {}\nindex {}\n", STANDARD.encode(&self.entry), self.index);
        for hash in &self.proof {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{hash}");
        }
        text + "\n" + &self.checkpoint
    }

    /// The parts of a receipt. Nothing is believed of it before it is verified.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, BadReceipt> {
        Self::parts(text).ok_or(BadReceipt::Form)
    }

    fn parts(text: &str) -> Option<Self> {
        let (head, checkpoint) = text.split_once("\n\n")?;
        let mut lines = head.split('\n');
        if lines.next() != Some(HEAD) {
            return None;
        }
        let entry = STANDARD.decode(lines.next()?.strip_prefix("extra ")?).ok()?;
        let index = decimal(lines.next()?.strip_prefix("index ")?)?;
        let proof: Option<Vec<Hash>> = lines.map(Hash::parse).collect();
        Some(Self { entry, index, proof: proof?, checkpoint: checkpoint.to_owned() })
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
