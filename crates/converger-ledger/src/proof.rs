//! Proofs that an entry is in a log, and that a log extends an earlier one. They are made from the roots of complete subtrees and
//! verified with hashes alone (RFC 9162, 2.1.3 and 2.1.4).

use std::ops::Range;

use crate::hash::LogHash;

/// A source of roots of complete subtrees.
pub trait SubtreeHashes {
    /// Why a root cannot be read.
    type Error;

    /// The root of the subtree of `2^level` entries that starts at entry `index * 2^level`. Called only for complete subtrees.
    ///
    /// # Errors
    /// The root cannot be read.
    fn subtree_root(&mut self, level: u8, index: u64) -> Result<LogHash, Self::Error>;
}

/// Why a proof is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// It is about an entry beyond the end of the log, or about a log that is longer than the given one.
    #[error("the proof is about an index that is not in a log of this size")]
    OutOfRange,
    /// It has too few or too many hashes.
    #[error("the proof has the wrong number of hashes for its index and size")]
    WrongLength,
    /// Its hashes give another root.
    #[error("the hashes of the proof do not give the root of the log")]
    RootMismatch,
}

/// The proof that entry `index` is in the log of the first `size` entries; `None` if it is not.
///
/// # Errors
/// A hash cannot be read.
pub fn prove_inclusion<H: SubtreeHashes>(hashes: &mut H, index: u64, size: u64) -> Result<Option<Vec<LogHash>>, H::Error> {
    if index >= size {
        return Ok(None);
    }
    let (mut within, mut proof) = (0..size, Vec::new());
    while within.end - within.start > 1 {
        let split = split_point(&within);
        let (on, beside) = if index < split { (within.start..split, split..within.end) } else { (split..within.end, within.start..split) };
        proof.push(range_root(hashes, beside)?);
        within = on;
    }
    proof.reverse();
    Ok(Some(proof))
}

/// The root over the first `size` entries of a log.
///
/// # Errors
/// A hash cannot be read.
pub fn root_of_size<H: SubtreeHashes>(hashes: &mut H, size: u64) -> Result<LogHash, H::Error> {
    range_root(hashes, 0..size)
}

/// The proof that the log of the first `new` entries extends that of the first `old`; `None` if it does not.
///
/// # Errors
/// A hash cannot be read.
pub fn prove_consistency<H: SubtreeHashes>(hashes: &mut H, old: u64, new: u64) -> Result<Option<Vec<LogHash>>, H::Error> {
    if old > new {
        return Ok(None);
    }
    if old == 0 || old == new {
        return Ok(Some(Vec::new()));
    }
    let (mut within, mut proof) = (0..new, Vec::new());
    while within.end != old {
        let split = split_point(&within);
        let (on, beside) = if old <= split { (within.start..split, split..within.end) } else { (split..within.end, within.start..split) };
        proof.push(range_root(hashes, beside)?);
        within = on;
    }
    // If this is the whole old tree, the verifier already has its root.
    if within.start > 0 {
        proof.push(range_root(hashes, within)?);
    }
    proof.reverse();
    Ok(Some(proof))
}

/// Where a range of entries is split: the left part is the largest power of two that leaves something on the right.
fn split_point(within: &Range<u64>) -> u64 {
    let len = within.end - within.start;
    within.start + (1 << (len - 1).ilog2())
}

/// The root over a range of entries that a split has produced.
fn range_root<H: SubtreeHashes>(hashes: &mut H, range: Range<u64>) -> Result<LogHash, H::Error> {
    let (mut start, mut parts) = (range.start, Vec::new());
    while start < range.end {
        let level = (range.end - start).ilog2();
        parts.push(hashes.subtree_root(level as u8, start >> level)?);
        start += 1 << level;
    }
    let over = parts.into_iter().rev().reduce(|right, left| LogHash::of_node(left, right));
    Ok(over.unwrap_or_else(LogHash::empty_root))
}

/// Verifies that an entry is at `index` in the log of this size and root.
///
/// # Errors
/// It is not, or the proof does not show it.
pub fn verify_inclusion(index: u64, leaf: LogHash, size: u64, root: LogHash, proof: &[LogHash]) -> Result<(), ProofError> {
    if index >= size {
        return Err(ProofError::OutOfRange);
    }
    let (mut position, mut last, mut hash) = (index, size - 1, leaf);
    for beside in proof {
        if last == 0 {
            return Err(ProofError::WrongLength);
        }
        if position % 2 == 1 || position == last {
            hash = LogHash::of_node(*beside, hash);
            let levels = if position % 2 == 0 { position.trailing_zeros().min(63) } else { 0 };
            (position, last) = (position >> levels, last >> levels);
        } else {
            hash = LogHash::of_node(hash, *beside);
        }
        (position, last) = (position / 2, last / 2);
    }
    check_reached(last == 0, hash == root)
}

/// Verifies that the log of the new size and root extends that of the old ones.
///
/// # Errors
/// It does not, or the proof does not show it.
pub fn verify_consistency(old: (u64, LogHash), new: (u64, LogHash), proof: &[LogHash]) -> Result<(), ProofError> {
    let ((old_size, old_root), (new_size, new_root)) = (old, new);
    if old_size > new_size {
        return Err(ProofError::OutOfRange);
    }
    if old_size == new_size {
        return check_reached(proof.is_empty(), old_root == new_root);
    }
    if old_size == 0 {
        return check_reached(proof.is_empty(), old_root == LogHash::empty_root());
    }
    let levels = (old_size - 1).trailing_ones();
    let (mut position, mut last) = ((old_size - 1) >> levels, (new_size - 1) >> levels);
    // If the old tree is a complete subtree, the proof starts from its root; otherwise it contains the starting hash.
    let (first, rest) = if position == 0 {
        (old_root, proof)
    } else {
        proof.split_first().map(|(first, rest)| (*first, rest)).ok_or(ProofError::WrongLength)?
    };
    let (mut old_hash, mut new_hash) = (first, first);
    for beside in rest {
        if last == 0 {
            return Err(ProofError::WrongLength);
        }
        if position % 2 == 1 || position == last {
            old_hash = LogHash::of_node(*beside, old_hash);
            new_hash = LogHash::of_node(*beside, new_hash);
            let levels = if position % 2 == 0 { position.trailing_zeros().min(63) } else { 0 };
            (position, last) = (position >> levels, last >> levels);
        } else {
            new_hash = LogHash::of_node(new_hash, *beside);
        }
        (position, last) = (position / 2, last / 2);
    }
    check_reached(last == 0, old_hash == old_root && new_hash == new_root)
}

fn check_reached(is_whole: bool, is_equal: bool) -> Result<(), ProofError> {
    match (is_whole, is_equal) {
        (false, _) => Err(ProofError::WrongLength),
        (true, false) => Err(ProofError::RootMismatch),
        (true, true) => Ok(()),
    }
}
