//! The mathematics of a tamper-evident log: leaves and their hashes, tiles, signed checkpoints, proofs.
//!
//! A log is a list of entries that only grows. Whoever has a signed checkpoint of it (so many entries, this root) can check with
//! any of the published formats' implementations that an entry is in it, and that a later checkpoint extends an earlier one. The formats are
//! those of C2SP: tlog-tiles, tlog-checkpoint, signed-note and tlog-proof; the hashes are those of RFC 6962. Three
//! implementations that nobody here wrote are the judges of it in the tests.
//!
//! What never enters: guests, files, clocks, randomness (a key is made of bytes that are given), and what entries say.

mod checkpoint;
mod growth;
mod hash;
mod note;
mod proof;
mod receipt;
mod tile;
mod tree;
mod walk;

pub use checkpoint::{BadCheckpoint, Checkpoint};
pub use growth::Growth;
pub use hash::Hash;
pub use note::{BadKey, BadNote, Note, Signer, Verifier};
pub use proof::{BadProof, Hashes, consistency, inclusion, root_at, verify_consistency, verify_inclusion};
pub use receipt::{BadReceipt, Proven, Receipt, Sheaf, is_receipt_head};
pub use tile::{BadBundle, Bundle, ENTRY_BYTES_MAX, TILE_WIDTH, Tile, TiledHashes, entries};
pub use tree::Tree;
pub use walk::{Broken, Files, Part, Walked, walk};
