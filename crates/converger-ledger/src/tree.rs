//! A growing log, represented by the roots of its complete subtrees. An append computes as many hashes as the size has trailing one bits;
//! otherwise its cost does not depend on the size of the log.

use crate::hash::LogHash;

/// The complete subtrees of a log, largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MerkleTree {
    size: u64,
    /// One for each set bit of the size.
    peaks: Vec<LogHash>,
}

impl MerkleTree {
    /// The tree of this size with these roots of complete subtrees, largest first; `None` if their number does not match the size.
    #[must_use]
    pub fn from_peaks(size: u64, peaks: Vec<LogHash>) -> Option<Self> {
        (size.count_ones() as usize == peaks.len()).then_some(Self { size, peaks })
    }

    /// The number of entries.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The roots of the complete subtrees, largest first.
    #[must_use]
    pub fn peaks(&self) -> &[LogHash] {
        &self.peaks
    }

    /// Appends an entry by its hash. `completed` is called for each subtree that becomes complete, with its level, index and root.
    pub fn append(&mut self, leaf: LogHash, mut completed: impl FnMut(u8, u64, LogHash)) {
        let mut hash = leaf;
        completed(0, self.size, hash);
        for level in 0..self.size.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                hash = LogHash::of_node(left, hash);
                // There are at most 64 levels.
                completed(level as u8 + 1, self.size >> (level + 1), hash);
            }
        }
        self.peaks.push(hash);
        self.size += 1;
    }

    /// The root over all entries.
    #[must_use]
    pub fn root(&self) -> LogHash {
        let over = self.peaks.iter().rev().copied().reduce(|right, left| LogHash::of_node(left, right));
        over.unwrap_or_else(LogHash::empty_root)
    }
}
