//! A log in memory, in the layout of files, for these tests.

use std::collections::BTreeMap;
use std::convert::Infallible;

use converger_ledger::{Checkpoint, EntryBundle, LogFiles, LogHash, MerkleTree, NoteSigner, Tile};

pub(crate) const ORIGIN: &str = "converger.test/lab";

/// Files by path.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogFilesFixture(pub(crate) BTreeMap<String, Vec<u8>>);

impl LogFiles for LogFilesFixture {
    type Error = Infallible;

    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(path).cloned())
    }
}

pub(crate) fn signer() -> NoteSigner {
    NoteSigner::new(ORIGIN, &[7; 32]).unwrap()
}

/// A sample entry. Lengths vary, and some are empty.
pub(crate) fn sample_entry(number: u64) -> Vec<u8> {
    let text = format!("{{\"number\":{number}}}");
    text.bytes().cycle().take((number * 37 % 301) as usize).collect()
}

/// The subtree hashes of a log, by level and index.
pub(crate) type SubtreeMap = BTreeMap<(u8, u64), LogHash>;

pub(crate) fn build_tree(size: u64) -> (MerkleTree, SubtreeMap) {
    let (mut tree, mut subtrees) = (MerkleTree::default(), BTreeMap::new());
    for number in 0..size {
        tree.append(LogHash::of_leaf(&sample_entry(number)), |level, index, hash| {
            subtrees.insert((level, index), hash);
        });
    }
    (tree, subtrees)
}

pub(crate) fn tile_bytes(tile: Tile, subtrees: &SubtreeMap) -> Vec<u8> {
    let first = tile.index * 256;
    (first..first + u64::from(tile.width)).flat_map(|index| subtrees[&(tile.level * 8, index)].0).collect()
}

/// A log of this size, in files.
pub(crate) fn build_log(size: u64) -> LogFilesFixture {
    let (tree, subtrees) = build_tree(size);
    let mut files = BTreeMap::new();
    for tile in Tile::tiles_of_log(size) {
        files.insert(tile.path(), tile_bytes(tile, &subtrees));
        if tile.level == 0 {
            let mut bundle = EntryBundle::default();
            let first = tile.index * 256;
            assert!((first..first + u64::from(tile.width)).all(|number| bundle.push(&sample_entry(number))));
            files.insert(tile.entries_path(), bundle.into_bytes());
        }
    }
    let checkpoint = Checkpoint { origin: ORIGIN.to_owned(), size, root: tree.root() };
    files.insert("checkpoint".to_owned(), checkpoint.sign(&signer()).into_bytes());
    LogFilesFixture(files)
}
