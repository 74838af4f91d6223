//! The data structures of a tamper-evident log: leaves and their hashes, tiles, signed checkpoints, proofs.
//!
//! A log is a list of entries that only grows. With a signed checkpoint (size and root), anyone can verify that an entry is in the log
//! and that a later checkpoint extends an earlier one, using any implementation of the published formats. The formats are those of C2SP:
//! tlog-tiles, tlog-checkpoint, signed-note and tlog-proof; the hashes are those of RFC 6962. The tests compare this crate with three
//! independent implementations.
//!
//! Must not depend on guests, files, clocks, randomness (the bytes of a key are passed in), or the content of entries.

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
