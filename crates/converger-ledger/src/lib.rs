//! The mathematics of a tamper-evident log: leaves and their hashes, tiles, signed checkpoints, proofs.
//!
//! A log is a list of entries that only grows. Whoever has a signed checkpoint of it (so many entries, this root) can check with
//! any of the published formats' implementations that an entry is in it, and that a later checkpoint extends an earlier one. The formats are
//! those of C2SP: tlog-tiles, tlog-checkpoint, signed-note and tlog-proof; the hashes are those of RFC 6962. Three
//! implementations that nobody here wrote are the judges of it in the tests.
//!
//! What never enters: guests, files, clocks, randomness (a key is made of bytes that are given), and what entries say.

mod checkpoint;
mod hash;
mod log_builder;
mod note;
mod proof;
mod receipt;
mod tile;
mod tree;
mod verify_log;

pub use checkpoint::{Checkpoint, CheckpointError};
pub use hash::LogHash;
pub use log_builder::LogBuilder;
pub use note::{KeyError, NoteError, NoteSigner, NoteVerifier, SignedNote};
pub use proof::{ProofError, SubtreeHashes, prove_consistency, prove_inclusion, root_of_size, verify_consistency, verify_inclusion};
pub use receipt::{ProvenEntry, Receipt, ReceiptBundle, ReceiptError, is_receipt_head};
pub use tile::{BundleError, ENTRY_BYTES_MAX, EntryBundle, TILE_WIDTH, Tile, TiledHashes, read_entries};
pub use tree::MerkleTree;
pub use verify_log::{LogFault, LogFiles, LogLocation, VerifiedLog, verify_log};
