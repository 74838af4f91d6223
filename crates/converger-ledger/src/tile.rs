//! Tiles: how a log is stored in files (C2SP tlog-tiles). A tile has up to 256 hashes of one level of the tree; a bundle has the entries
//! below one tile of the lowest level. Full ones never change.

use std::collections::BTreeMap;
use std::fmt;

use crate::hash::LogHash;
use crate::proof::SubtreeHashes;

/// The number of hashes in a full tile.
pub const TILE_WIDTH: u64 = 256;
/// The number of tree levels that one tile spans.
pub(crate) const TILE_LEVELS: u8 = 8;
/// The maximum length of an entry, which is stored in two bytes.
pub const ENTRY_BYTES_MAX: usize = u16::MAX as usize;

/// The position of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tile {
    /// Tiles of level 0 have the hashes of entries, those of level 1 the roots over full tiles of level 0.
    pub level: u8,
    /// Its index within the level.
    pub index: u64,
    /// The number of hashes in it, 1 to 256.
    pub width: u16,
}

impl Tile {
    /// The tiles of a log of this size, lowest level first.
    pub fn tiles_of_log(size: u64) -> impl Iterator<Item = Self> {
        Self::tiles_added(0, size)
    }

    /// The tiles that a log of the new size has in addition to one of the old size, or that are wider.
    pub fn tiles_added(old: u64, new: u64) -> impl Iterator<Item = Self> {
        let levels = (0..TILE_LEVELS).take_while(move |level| count_hashes(*level, new) > 0);
        levels.flat_map(move |level| {
            let (had, has) = (count_hashes(level, old), count_hashes(level, new));
            (had / TILE_WIDTH..has.div_ceil(TILE_WIDTH)).filter(move |_| has > had).map(move |index| Self::in_level(level, index, has))
        })
    }

    /// The tile at this index of a level that has `hashes` hashes.
    fn in_level(level: u8, index: u64, hashes: u64) -> Self {
        let width = (hashes - index * TILE_WIDTH).min(TILE_WIDTH);
        Self { level, index, width: width as u16 }
    }

    /// The path of its file.
    #[must_use]
    pub fn path(&self) -> String {
        format!("tile/{}/{}", self.level, TilePath(self.index, self.width))
    }

    /// The path of the bundle with the entries below it, for a tile of level 0.
    #[must_use]
    pub fn entries_path(&self) -> String {
        format!("tile/entries/{}", TilePath(self.index, self.width))
    }

    /// Whether it is complete.
    #[must_use]
    pub fn is_full(&self) -> bool {
        u64::from(self.width) == TILE_WIDTH
    }
}

/// The number of hashes in all tiles of a level.
fn count_hashes(level: u8, size: u64) -> u64 {
    size.checked_shr(u32::from(level) * u32::from(TILE_LEVELS)).unwrap_or(0)
}

/// An index as directories of three digits each, with the width if the tile is partial.
struct TilePath(u64, u16);

impl fmt::Display for TilePath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups = vec![self.0 % 1000];
        let mut rest = self.0 / 1000;
        while rest > 0 {
            groups.push(rest % 1000);
            rest /= 1000;
        }
        for group in groups.iter().skip(1).rev() {
            write!(out, "x{group:03}/")?;
        }
        write!(out, "{:03}", groups[0])?;
        if u64::from(self.1) == TILE_WIDTH { Ok(()) } else { write!(out, ".p/{}", self.1) }
    }
}

/// Roots of complete subtrees, computed from tiles that a function reads.
pub struct TiledHashes<R> {
    size: u64,
    read: R,
    loaded: BTreeMap<(u8, u64), Vec<LogHash>>,
}

impl<E, R: FnMut(Tile) -> Result<Vec<LogHash>, E>> TiledHashes<R> {
    /// The hashes of a log of this size. `read` must return exactly as many hashes as the tile is wide, or an error.
    pub fn new(size: u64, read: R) -> Self {
        Self { size, read, loaded: BTreeMap::new() }
    }

    fn load_tile(&mut self, level: u8, index: u64) -> Result<&[LogHash], E> {
        let tile = Tile::in_level(level, index, count_hashes(level, self.size));
        let entry = self.loaded.entry((level, index));
        Ok(match entry {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(vacant) => vacant.insert((self.read)(tile)?),
        })
    }
}

impl<E, R: FnMut(Tile) -> Result<Vec<LogHash>, E>> SubtreeHashes for TiledHashes<R> {
    type Error = E;

    fn subtree_root(&mut self, level: u8, index: u64) -> Result<LogHash, E> {
        let (tile_level, above) = (level / TILE_LEVELS, level % TILE_LEVELS);
        let first = index << above;
        let tile = self.load_tile(tile_level, first / TILE_WIDTH)?;
        let at = (first % TILE_WIDTH) as usize;
        Ok(root_over_hashes(tile.get(at..at + (1 << above)).unwrap_or_default()))
    }
}

/// The root over hashes of one level, whose number is a power of two.
pub(crate) fn root_over_hashes(hashes: &[LogHash]) -> LogHash {
    match hashes {
        [] => LogHash::empty_root(),
        [one] => *one,
        many => {
            let (left, right) = many.split_at(many.len() / 2);
            LogHash::of_node(root_over_hashes(left), root_over_hashes(right))
        }
    }
}

/// A bundle that is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bundle ends in the middle of its entry {0}")]
pub struct BundleError(pub usize);

/// The content of a bundle file: each entry preceded by its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryBundle(Vec<u8>);

impl EntryBundle {
    /// Appends an entry; returns `false` if it is too long.
    pub fn push(&mut self, entry: &[u8]) -> bool {
        let Ok(len) = u16::try_from(entry.len()) else { return false };
        self.0.extend_from_slice(&len.to_be_bytes());
        self.0.extend_from_slice(entry);
        true
    }

    /// The bytes of the file.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The entries of a bundle, in order, up to the first that is incomplete.
pub fn read_entries(bundle: &[u8]) -> impl Iterator<Item = Result<&[u8], BundleError>> {
    let mut rest = Some(bundle).filter(|bundle| !bundle.is_empty());
    let mut number = 0;
    std::iter::from_fn(move || {
        let bytes = rest.take()?;
        let entry = bytes.split_first_chunk::<2>().and_then(|(len, after)| after.split_at_checked(usize::from(u16::from_be_bytes(*len))));
        let Some((entry, after)) = entry else { return Some(Err(BundleError(number))) };
        rest = Some(after).filter(|after| !after.is_empty());
        number += 1;
        Some(Ok(entry))
    })
}
