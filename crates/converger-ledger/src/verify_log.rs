//! A log in files, checked whole: from its entries up to the root that its checkpoint signs, and each tile on the way.
//!
//! One pass over the bytes: every entry is hashed once, and each tile is compared with what the entries below it give. The first
//! thing that is wrong is told with its place.

use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::hash::LogHash;
use crate::log_builder::LogBuilder;
use crate::note::NoteVerifier;
use crate::tile::{TILE_LEVELS, TILE_WIDTH, Tile, read_entries};
use crate::tree::MerkleTree;

/// Where the files of a log are read from.
pub trait LogFiles {
    /// Why a file cannot be read, other than that it is not there.
    type Error;

    /// A file by its path, with `/` between its parts; none where it is not there.
    ///
    /// # Errors
    /// It is there and cannot be read.
    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Self::Error>;
}

/// What of a log is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFault {
    /// A file is not there.
    Missing(LogLocation),
    /// The checkpoint cannot be believed.
    Checkpoint(CheckpointError),
    /// A bundle has more or fewer entries than it should, or ends inside of one.
    BundleLength(LogLocation),
    /// An entry is not the one that was logged: the hashes above it lead to the signed root, and it does not.
    Entry(LogLocation),
    /// A tile is not the one of the log: the entries lead to the signed root, and it does not.
    Tile(LogLocation),
    /// An entry and the tile over it differ, and neither leads to the signed root.
    EntryAndTile(LogLocation),
    /// An entry and the tile over it differ, and which of them is wrong cannot be told: more is missing or broken behind them, so that nothing leads to
    /// the signed root.
    Undecided(LogLocation),
    /// Entries and tiles agree, and lead to another root than the one that is signed.
    Root {
        /// What they lead to.
        found: LogHash,
        /// What is signed.
        signed: LogHash,
    },
}

impl LogFault {
    /// The first entry that it concerns, where it concerns one.
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

/// The part of a log that something is about: a file, and the first entry that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLocation {
    /// The path of the file.
    pub path: String,
    /// The first entry that is concerned; none for the checkpoint.
    pub index: Option<u64>,
}

/// A log that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedLog {
    /// What its checkpoint says.
    pub checkpoint: Checkpoint,
    /// How many files were read.
    pub files_read: u64,
}

/// What came of a walk: a whole log, or the first thing that is wrong with it; an error where something could not be read.
type VerifyResult<T, E> = Result<Result<T, LogFault>, E>;

/// Checks a log whole. What is told about each entry: its place, and its bytes.
///
/// # Errors
/// A file is there and cannot be read.
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
    let mut way = LogCheck {
        files,
        files_read: 1,
        builder: LogBuilder::default(),
        mismatch: None,
        tree_before_bundle: MerkleTree::default(),
        unchecked_tiles: Vec::new(),
    };
    let passed = way.check_entries_and_tiles(checkpoint.size, &mut entry)?;
    Ok(passed.map_err(|broken| way.first_fault(broken)).and_then(|()| way.conclude(checkpoint)))
}

/// A tile that differs from the entries below it.
struct TileMismatch {
    /// Where, in the tile.
    tile: LogLocation,
    /// The same among the entries.
    entry: LogLocation,
    /// The tree as the tiles have it from there on.
    tile_tree: MerkleTree,
}

/// A walk under way.
struct LogCheck<'f, F> {
    files: &'f mut F,
    files_read: u64,
    builder: LogBuilder,
    /// The first place at which tile and entries differ.
    mismatch: Option<TileMismatch>,
    /// The tree before the last bundle.
    tree_before_bundle: MerkleTree,
    /// Tiles as they should be, which were not compared with those of the log yet.
    unchecked_tiles: Vec<(Tile, Vec<LogHash>)>,
}

impl<F: LogFiles> LogCheck<'_, F> {
    /// All entries, and all tiles over them.
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

    /// What ends a walk, or what was found before it and waited for the root to say more.
    fn first_fault(&self, last: LogFault) -> LogFault {
        match &self.mismatch {
            Some(TileMismatch { tile, .. }) if tile.index <= last.index() => LogFault::Undecided(tile.clone()),
            _ => last,
        }
    }

    /// The entries below one tile of the lowest level.
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

    /// A file, and the entry that would come next.
    fn next_location(&self, path: String) -> LogLocation {
        LogLocation { path, index: Some(self.size()) }
    }

    /// Compares the tiles that became full with those of the log.
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

    /// The tree as it would be if the hashes of the last bundle were these.
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
