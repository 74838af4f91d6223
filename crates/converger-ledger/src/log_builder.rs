//! A log for the process that appends to it: the tree, and the hashes that do not fill a tile yet. A full tile is emitted once and never
//! changes.

use crate::hash::LogHash;
use crate::tile::{TILE_LEVELS, TILE_WIDTH, Tile, root_over_hashes};
use crate::tree::MerkleTree;

/// A growing log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogBuilder {
    tree: MerkleTree,
    /// By tile level: the hashes that are in no full tile yet.
    partial_tiles: Vec<Vec<LogHash>>,
}

impl LogBuilder {
    /// Resumes a log of this size from stored hashes. `hash` returns one hash of a tile level: of an entry on level 0, and the root over
    /// a full tile of the level below on the others. It is called for hashes that fill no tile, at most 255 per level.
    ///
    /// # Errors
    /// A hash cannot be read.
    pub fn resume<E>(size: u64, mut hash: impl FnMut(u8, u64) -> Result<LogHash, E>) -> Result<Self, E> {
        let mut open = Vec::new();
        let mut hashes = size;
        while hashes > 0 {
            let level = open.len() as u8;
            let first = hashes - hashes % TILE_WIDTH;
            open.push((first..hashes).map(|index| hash(level, index)).collect::<Result<Vec<_>, E>>()?);
            hashes /= TILE_WIDTH;
        }
        let peaks = open.iter().rev().flat_map(|hashes| subtree_peaks(hashes)).collect();
        // INVARIANT: there are as many peaks as the size has set bits, because the peaks of each level are the bits of one byte of the
        // size. Falling back to an empty tree would let an empty log be signed.
        Ok(Self { tree: MerkleTree::from_peaks(size, peaks).expect("as many peaks as the size has bits"), partial_tiles: open })
    }

    /// The tree over all entries.
    #[must_use]
    pub fn tree(&self) -> &MerkleTree {
        &self.tree
    }

    /// Appends an entry by its hash. `filled` is called for each tile that becomes full, with its position, its hashes and their root.
    pub fn append(&mut self, leaf: LogHash, mut filled: impl FnMut(Tile, &[LogHash], LogHash)) {
        let Self { tree, partial_tiles: open } = self;
        tree.append(leaf, |level, index, hash| {
            if !level.is_multiple_of(TILE_LEVELS) {
                return;
            }
            let level = level / TILE_LEVELS;
            open.resize_with(open.len().max(usize::from(level) + 1), Vec::new);
            // A tile of the level below is full when its root is appended to this level.
            if let Some(below) = level.checked_sub(1) {
                let full = std::mem::take(&mut open[usize::from(below)]);
                filled(Tile { level: below, index, width: full.len() as u16 }, &full, hash);
            }
            open[usize::from(level)].push(hash);
        });
    }

    /// The tiles that are not full, with their hashes.
    pub fn partial_tiles(&self) -> impl Iterator<Item = (Tile, &[LogHash])> {
        let open = self.partial_tiles.iter().enumerate().filter(|(_, hashes)| !hashes.is_empty());
        open.map(|(level, hashes)| {
            let index = (self.tree.size() >> (usize::from(TILE_LEVELS) * level)) / TILE_WIDTH;
            (Tile { level: level as u8, index, width: hashes.len() as u16 }, hashes.as_slice())
        })
    }
}

/// The roots of the complete subtrees over hashes that do not fill a tile, largest first.
fn subtree_peaks(hashes: &[LogHash]) -> Vec<LogHash> {
    let (mut peaks, mut rest) = (Vec::new(), hashes);
    while let Some(levels) = rest.len().checked_ilog2() {
        let (largest, after) = rest.split_at(1 << levels);
        peaks.push(root_over_hashes(largest));
        rest = after;
    }
    peaks
}
