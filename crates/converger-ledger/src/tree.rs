//! A log as it grows: the roots of its complete subtrees, and nothing else. An append costs as many hashes as the number of
//! entries has trailing ones; the size of the log does not matter.

use crate::hash::LogHash;

/// The complete subtrees of a log, the largest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MerkleTree {
    size: u64,
    /// One for each bit of the size that is set.
    peaks: Vec<LogHash>,
}

impl MerkleTree {
    /// The tree of so many entries, by the roots of its complete subtrees, the largest first; none where these are not so many as
    /// the size says.
    #[must_use]
    pub fn from_peaks(size: u64, peaks: Vec<LogHash>) -> Option<Self> {
        (size.count_ones() as usize == peaks.len()).then_some(Self { size, peaks })
    }

    /// How many entries there are.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The roots of the complete subtrees, the largest first.
    #[must_use]
    pub fn peaks(&self) -> &[LogHash] {
        &self.peaks
    }

    /// One entry more, by its hash. What is told about each subtree that it completes: its level, its place, its root.
    pub fn append(&mut self, leaf: LogHash, mut completed: impl FnMut(u8, u64, LogHash)) {
        let mut hash = leaf;
        completed(0, self.size, hash);
        for level in 0..self.size.trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                hash = LogHash::of_node(left, hash);
                // At most 64 levels.
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
