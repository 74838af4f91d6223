//! A log in memory, laid out as files, for the tests here.

use std::collections::BTreeMap;
use std::convert::Infallible;

use converger_ledger::{Bundle, Checkpoint, Files, Hash, Signer, Tile, Tree};

pub(crate) const ORIGIN: &str = "converger.test/lab";

/// Files by their paths.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf(pub(crate) BTreeMap<String, Vec<u8>>);

impl Files for Shelf {
    type Error = Infallible;

    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(path).cloned())
    }
}

pub(crate) fn signer() -> Signer {
    Signer::new(ORIGIN, &[7; 32]).unwrap()
}

/// The entry of a number: of many lengths, the empty one included.
pub(crate) fn entry(number: u64) -> Vec<u8> {
    let text = format!("{{\"number\":{number}}}");
    text.bytes().cycle().take((number * 37 % 301) as usize).collect()
}

/// The subtree hashes of a log, by level and place.
pub(crate) type Subtrees = BTreeMap<(u8, u64), Hash>;

pub(crate) fn grown(size: u64) -> (Tree, Subtrees) {
    let (mut tree, mut subtrees) = (Tree::default(), BTreeMap::new());
    for number in 0..size {
        tree.append(Hash::of_leaf(&entry(number)), |level, index, hash| {
            subtrees.insert((level, index), hash);
        });
    }
    (tree, subtrees)
}

pub(crate) fn tile_bytes(tile: Tile, subtrees: &Subtrees) -> Vec<u8> {
    let first = tile.index * 256;
    (first..first + u64::from(tile.width)).flat_map(|index| subtrees[&(tile.level * 8, index)].0).collect()
}

/// A log of so many entries, in files.
pub(crate) fn shelf(size: u64) -> Shelf {
    let (tree, subtrees) = grown(size);
    let mut files = BTreeMap::new();
    for tile in Tile::all(size) {
        files.insert(tile.path(), tile_bytes(tile, &subtrees));
        if tile.level == 0 {
            let mut bundle = Bundle::default();
            let first = tile.index * 256;
            assert!((first..first + u64::from(tile.width)).all(|number| bundle.push(&entry(number))));
            files.insert(tile.entries_path(), bundle.into_bytes());
        }
    }
    let checkpoint = Checkpoint { origin: ORIGIN.to_owned(), size, root: tree.root() };
    files.insert("checkpoint".to_owned(), checkpoint.sign(&signer()).into_bytes());
    Shelf(files)
}
