//! Verifies a log in files completely: from its entries to the signed root, and every tile in between.
//!
//! It makes one pass over the bytes: every entry is hashed once, and each tile is compared with the entries below it. The first fault is
//! reported with its location.

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::hash::LogHash;
use crate::log_builder::LogBuilder;
use crate::note::NoteVerifier;
use crate::tile::{TILE_LEVELS, TILE_WIDTH, Tile, read_entries};
use crate::tree::MerkleTree;

/// Reads the files of a log.
pub trait LogFiles {
    /// Why a file that exists cannot be read.
    type Error;

    /// The file at a path with `/` as separator; `None` if it does not exist.
    ///
    /// # Errors
    /// The file exists but cannot be read.
    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Self::Error>;
}

/// A fault of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFault {
    /// A file is missing.
    Missing(LogLocation),
    /// The checkpoint cannot be trusted.
    Checkpoint(CheckpointError),
    /// A bundle has more or fewer entries than it should, or ends within one.
    BundleLength(LogLocation),
    /// An entry was changed: the hashes above it give the signed root, and the entry does not match them.
    Entry(LogLocation),
    /// A tile was changed: the entries give the signed root, and the tile does not match them.
    Tile(LogLocation),
    /// An entry and the tile over it differ, and neither gives the signed root.
    EntryAndTile(LogLocation),
    /// An entry and the tile over it differ, and it is unknown which of them is wrong: a later part is missing or broken, so nothing
    /// gives the signed root.
    Undecided(LogLocation),
    /// Entries and tiles agree, but give another root than the signed one.
    Root {
        /// The root that they give.
        found: LogHash,
        /// The signed root.
        signed: LogHash,
    },
}

impl LogFault {
    /// The first affected entry, if there is one.
    #[must_use]
    pub fn index(&self) -> Option<u64> {
        match self {
            Self::Missing(part)
            | Self::BundleLength(part)
            | Self::Entry(part)
            | Self::Tile(part)
            | Self::EntryAndTile(part)
            | Self::Undecided(part) => part.index,
            Self::Checkpoint(_) | Self::Root { .. } => None,
        }
    }
}

/// The location of a fault: a file, and the first affected entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLocation {
    /// The path of the file.
    pub path: String,
    /// The first affected entry; `None` for the checkpoint.
    pub index: Option<u64>,
}

/// A log that was verified completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedLog {
    /// Its checkpoint.
    pub checkpoint: Checkpoint,
    /// The number of files that were read.
    pub files_read: u64,
}

/// A verified part or its first fault; an outer error if a file could not be read.
type VerifyResult<T, E> = Result<Result<T, LogFault>, E>;

/// Verifies a log completely. `entry` is called for each entry with its index and bytes.
///
/// # Errors
/// A file exists but cannot be read.
pub fn verify_log<F: LogFiles>(
    files: &mut F,
    verifier: &NoteVerifier,
    mut entry: impl FnMut(u64, &[u8]),
) -> VerifyResult<VerifiedLog, F::Error> {
    let Some(signed) = files.read("checkpoint")? else {
        return Ok(Err(LogFault::Missing(LogLocation { path: "checkpoint".to_owned(), index: None })));
    };
    let checkpoint = match Checkpoint::verify(&signed, verifier) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Ok(Err(LogFault::Checkpoint(error))),
    };
    let mut log_check = LogCheck {
        files,
        files_read: 1,
        builder: LogBuilder::default(),
        mismatch: None,
        tree_before_bundle: MerkleTree::default(),
        unchecked_tiles: Vec::new(),
    };
    let passed = log_check.check_entries_and_tiles(checkpoint.size, &mut entry)?;
    Ok(passed.map_err(|broken| log_check.first_fault(broken)).and_then(|()| log_check.conclude(checkpoint)))
}

/// A tile that differs from the entries below it.
struct TileMismatch {
    /// The location in the tile.
    tile: LogLocation,
    /// The location among the entries.
    entry: LogLocation,
    /// The tree with the hashes of the tile from there on.
    tile_tree: MerkleTree,
}

/// A verification in progress.
struct LogCheck<'f, F> {
    files: &'f mut F,
    files_read: u64,
    builder: LogBuilder,
    /// The first difference between tiles and entries.
    mismatch: Option<TileMismatch>,
    /// The tree before the last bundle.
    tree_before_bundle: MerkleTree,
    /// Tiles computed from the entries that were not compared with the files yet.
    unchecked_tiles: Vec<(Tile, Vec<LogHash>)>,
}

impl<F: LogFiles> LogCheck<'_, F> {
    /// Checks all entries, and all tiles over them.
    fn check_entries_and_tiles(&mut self, size: u64, entry: &mut impl FnMut(u64, &[u8])) -> VerifyResult<(), F::Error> {
        for tile in Tile::tiles_of_log(size).take_while(|tile| tile.level == 0) {
            if let Err(broken) = self.check_bundle(tile, entry)? {
                return Ok(Err(broken));
            }
            if let Err(broken) = self.check_full_tiles()? {
                return Ok(Err(broken));
            }
        }
        self.unchecked_tiles = self.builder.partial_tiles().map(|(tile, hashes)| (tile, hashes.to_vec())).collect();
        self.check_full_tiles()
    }

    /// The fault to report: `last`, or an earlier mismatch that was waiting for the root to tell which side is wrong.
    fn first_fault(&self, last: LogFault) -> LogFault {
        match &self.mismatch {
            Some(TileMismatch { tile, .. }) if tile.index <= last.index() => LogFault::Undecided(tile.clone()),
            _ => last,
        }
    }

    /// Checks the entries below one tile of the lowest level.
    fn check_bundle(&mut self, tile: Tile, entry: &mut impl FnMut(u64, &[u8])) -> VerifyResult<(), F::Error> {
        let path = tile.entries_path();
        let Some(bytes) = self.files.read(&path)? else { return Ok(Err(LogFault::Missing(self.next_location(path)))) };
        self.files_read += 1;
        self.tree_before_bundle.clone_from(self.builder.tree());
        let mut found = 0;
        for next in read_entries(&bytes) {
            match next {
                Ok(bytes) if found < tile.width => {
                    entry(self.size(), bytes);
                    let due = &mut self.unchecked_tiles;
                    self.builder.append(LogHash::of_leaf(bytes), |tile, hashes, _| due.push((tile, hashes.to_vec())));
                    found += 1;
                }
                _ => return Ok(Err(LogFault::BundleLength(self.next_location(path)))),
            }
        }
        Ok(if found == tile.width { Ok(()) } else { Err(LogFault::BundleLength(self.next_location(path))) })
    }

    fn size(&self) -> u64 {
        self.builder.tree().size()
    }

    /// A file and the index of the next entry.
    fn next_location(&self, path: String) -> LogLocation {
        LogLocation { path, index: Some(self.size()) }
    }

    /// Compares the tiles that became full with the files.
    fn check_full_tiles(&mut self) -> VerifyResult<(), F::Error> {
        for (tile, own) in std::mem::take(&mut self.unchecked_tiles) {
            if let Err(broken) = self.check_tile(tile, &own)? {
                return Ok(Err(broken));
            }
        }
        Ok(Ok(()))
    }

    fn check_tile(&mut self, tile: Tile, own: &[LogHash]) -> VerifyResult<(), F::Error> {
        let path = tile.path();
        let below = |number: usize| (tile.index * TILE_WIDTH + number as u64) << (TILE_LEVELS * tile.level);
        let Some(bytes) = self.files.read(&path)? else { return Ok(Err(LogFault::Missing(LogLocation { path, index: Some(below(0)) }))) };
        self.files_read += 1;
        let (given, rest) = bytes.as_chunks::<{ LogHash::BYTES }>();
        let differs = (0..own.len().max(given.len())).find(|at| own.get(*at).map(|own| &own.0) != given.get(*at));
        let differs = differs.or((!rest.is_empty()).then_some(own.len()));
        let at = |number: usize| LogLocation { path: path.clone(), index: Some(below(number)) };
        match (differs, &mut self.mismatch) {
            (Some(number), _) if given.len() != own.len() || !rest.is_empty() => return Ok(Err(LogFault::Tile(at(number)))),
            (Some(number), None) if tile.level > 0 => return Ok(Err(LogFault::Tile(at(number)))),
            (Some(number), None) => {
                let entry = LogLocation { path: tile.entries_path(), index: Some(below(number)) };
                self.mismatch = Some(TileMismatch { tile: at(number), entry, tile_tree: self.tree_from_tile(given) });
            }
            (_, Some(claimed)) if tile.level == 0 => given.iter().for_each(|hash| claimed.tile_tree.append(LogHash(*hash), |_, _, _| {})),
            _ => {}
        }
        Ok(Ok(()))
    }

    /// The tree as it would be with the hashes of this tile in place of the last bundle.
    fn tree_from_tile(&self, given: &[[u8; LogHash::BYTES]]) -> MerkleTree {
        let mut tree = self.tree_before_bundle.clone();
        given.iter().for_each(|hash| tree.append(LogHash(*hash), |_, _, _| {}));
        tree
    }

    fn conclude(&self, checkpoint: Checkpoint) -> Result<VerifiedLog, LogFault> {
        let (found, signed) = (self.builder.tree().root(), checkpoint.root);
        match &self.mismatch {
            None if found == signed => Ok(VerifiedLog { checkpoint, files_read: self.files_read }),
            None => Err(LogFault::Root { found, signed }),
            Some(claimed) if found == signed => Err(LogFault::Tile(claimed.tile.clone())),
            Some(claimed) if claimed.tile_tree.root() == signed => Err(LogFault::Entry(claimed.entry.clone())),
            Some(claimed) => Err(LogFault::EntryAndTile(claimed.tile.clone())),
        }
    }
}
