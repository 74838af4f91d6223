//! A log in files, checked whole: from its entries up to the root that its checkpoint signs, and each tile on the way.
//!
//! One pass over the bytes: every entry is hashed once, and each tile is compared with what the entries below it give. The first
//! thing that is wrong is told with its place.

use crate::checkpoint::{BadCheckpoint, Checkpoint};
use crate::growth::Growth;
use crate::hash::Hash;
use crate::note::Verifier;
use crate::tile::{TILE_LEVELS, TILE_WIDTH, Tile, entries};
use crate::tree::Tree;

/// Where the files of a log are read from.
pub trait Files {
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
pub enum Broken {
    /// A file is not there.
    Missing(Part),
    /// The checkpoint cannot be believed.
    Checkpoint(BadCheckpoint),
    /// A bundle has more or fewer entries than it should, or ends inside of one.
    Bundle(Part),
    /// An entry is not the one that was logged: the hashes above it lead to the signed root, and it does not.
    Entry(Part),
    /// A tile is not the one of the log: the entries lead to the signed root, and it does not.
    Tile(Part),
    /// An entry and the tile over it differ, and neither leads to the signed root.
    Both(Part),
    /// An entry and the tile over it differ, and which of them is wrong cannot be told: more is missing or broken behind them, so that nothing leads to
    /// the signed root.
    Differs(Part),
    /// Entries and tiles agree, and lead to another root than the one that is signed.
    Root {
        /// What they lead to.
        found: Hash,
        /// What is signed.
        signed: Hash,
    },
}

impl Broken {
    /// The first entry that it concerns, where it concerns one.
    #[must_use]
    pub fn index(&self) -> Option<u64> {
        match self {
            Self::Missing(part) | Self::Bundle(part) | Self::Entry(part) | Self::Tile(part) | Self::Both(part) | Self::Differs(part) => {
                part.index
            }
            Self::Checkpoint(_) | Self::Root { .. } => None,
        }
    }
}

/// The part of a log that something is about: a file, and the first entry that it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The path of the file.
    pub path: String,
    /// The first entry that is concerned; none for the checkpoint.
    pub index: Option<u64>,
}

/// A log that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// What its checkpoint says.
    pub checkpoint: Checkpoint,
    /// How many files were read.
    pub files: u64,
}

/// What came of a walk: a whole log, or the first thing that is wrong with it; an error where something could not be read.
type Outcome<T, E> = Result<Result<T, Broken>, E>;

/// Checks a log whole. What is told about each entry: its place, and its bytes.
///
/// # Errors
/// A file is there and cannot be read.
pub fn walk<F: Files>(files: &mut F, verifier: &Verifier, mut entry: impl FnMut(u64, &[u8])) -> Outcome<Walked, F::Error> {
    let Some(signed) = files.read("checkpoint")? else {
        return Ok(Err(Broken::Missing(Part { path: "checkpoint".to_owned(), index: None })));
    };
    let checkpoint = match Checkpoint::verify(&signed, verifier) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return Ok(Err(Broken::Checkpoint(error))),
    };
    let mut way = Way { files, read: 1, growth: Growth::default(), claimed: None, before: Tree::default(), due: Vec::new() };
    let passed = way.pass(checkpoint.size, &mut entry)?;
    Ok(passed.map_err(|broken| way.first(broken)).and_then(|()| way.judged(checkpoint)))
}

/// A tile that differs from the entries below it.
struct Claimed {
    /// Where, in the tile.
    tile: Part,
    /// The same among the entries.
    entry: Part,
    /// The tree as the tiles have it from there on.
    tree: Tree,
}

/// A walk under way.
struct Way<'f, F> {
    files: &'f mut F,
    read: u64,
    growth: Growth,
    /// The first place at which tile and entries differ.
    claimed: Option<Claimed>,
    /// The tree before the last bundle.
    before: Tree,
    /// Tiles as they should be, which were not compared with those of the log yet.
    due: Vec<(Tile, Vec<Hash>)>,
}

impl<F: Files> Way<'_, F> {
    /// All entries, and all tiles over them.
    fn pass(&mut self, size: u64, entry: &mut impl FnMut(u64, &[u8])) -> Outcome<(), F::Error> {
        for tile in Tile::all(size).take_while(|tile| tile.level == 0) {
            if let Err(broken) = self.bundle(tile, entry)? {
                return Ok(Err(broken));
            }
            if let Err(broken) = self.tiles()? {
                return Ok(Err(broken));
            }
        }
        self.due = self.growth.partial().map(|(tile, hashes)| (tile, hashes.to_vec())).collect();
        self.tiles()
    }

    /// What ends a walk, or what was found before it and waited for the root to say more.
    fn first(&self, last: Broken) -> Broken {
        match &self.claimed {
            Some(Claimed { tile, .. }) if tile.index <= last.index() => Broken::Differs(tile.clone()),
            _ => last,
        }
    }

    /// The entries below one tile of the lowest level.
    fn bundle(&mut self, tile: Tile, entry: &mut impl FnMut(u64, &[u8])) -> Outcome<(), F::Error> {
        let path = tile.entries_path();
        let Some(bytes) = self.files.read(&path)? else { return Ok(Err(Broken::Missing(self.part(path)))) };
        self.read += 1;
        self.before.clone_from(self.growth.tree());
        let mut found = 0;
        for next in entries(&bytes) {
            match next {
                Ok(bytes) if found < tile.width => {
                    entry(self.size(), bytes);
                    let due = &mut self.due;
                    self.growth.append(Hash::of_leaf(bytes), |tile, hashes, _| due.push((tile, hashes.to_vec())));
                    found += 1;
                }
                _ => return Ok(Err(Broken::Bundle(self.part(path)))),
            }
        }
        Ok(if found == tile.width { Ok(()) } else { Err(Broken::Bundle(self.part(path))) })
    }

    fn size(&self) -> u64 {
        self.growth.tree().size()
    }

    /// A file, and the entry that would come next.
    fn part(&self, path: String) -> Part {
        Part { path, index: Some(self.size()) }
    }

    /// Compares the tiles that became full with those of the log.
    fn tiles(&mut self) -> Outcome<(), F::Error> {
        for (tile, own) in std::mem::take(&mut self.due) {
            if let Err(broken) = self.tile(tile, &own)? {
                return Ok(Err(broken));
            }
        }
        Ok(Ok(()))
    }

    fn tile(&mut self, tile: Tile, own: &[Hash]) -> Outcome<(), F::Error> {
        let path = tile.path();
        let below = |number: usize| (tile.index * TILE_WIDTH + number as u64) << (TILE_LEVELS * tile.level);
        let Some(bytes) = self.files.read(&path)? else { return Ok(Err(Broken::Missing(Part { path, index: Some(below(0)) }))) };
        self.read += 1;
        let (given, rest) = bytes.as_chunks::<{ Hash::BYTES }>();
        let differs = (0..own.len().max(given.len())).find(|at| own.get(*at).map(|own| &own.0) != given.get(*at));
        let differs = differs.or((!rest.is_empty()).then_some(own.len()));
        let at = |number: usize| Part { path: path.clone(), index: Some(below(number)) };
        match (differs, &mut self.claimed) {
            (Some(number), _) if given.len() != own.len() || !rest.is_empty() => return Ok(Err(Broken::Tile(at(number)))),
            (Some(number), None) if tile.level > 0 => return Ok(Err(Broken::Tile(at(number)))),
            (Some(number), None) => {
                let entry = Part { path: tile.entries_path(), index: Some(below(number)) };
                self.claimed = Some(Claimed { tile: at(number), entry, tree: self.claimed(given) });
            }
            (_, Some(claimed)) if tile.level == 0 => given.iter().for_each(|hash| claimed.tree.append(Hash(*hash), |_, _, _| {})),
            _ => {}
        }
        Ok(Ok(()))
    }

    /// The tree as it would be if the hashes of the last bundle were these.
    fn claimed(&self, given: &[[u8; Hash::BYTES]]) -> Tree {
        let mut tree = self.before.clone();
        given.iter().for_each(|hash| tree.append(Hash(*hash), |_, _, _| {}));
        tree
    }

    fn judged(&self, checkpoint: Checkpoint) -> Result<Walked, Broken> {
        let (found, signed) = (self.growth.tree().root(), checkpoint.root);
        match &self.claimed {
            None if found == signed => Ok(Walked { checkpoint, files: self.read }),
            None => Err(Broken::Root { found, signed }),
            Some(claimed) if found == signed => Err(Broken::Tile(claimed.tile.clone())),
            Some(claimed) if claimed.tree.root() == signed => Err(Broken::Entry(claimed.entry.clone())),
            Some(claimed) => Err(Broken::Both(claimed.tile.clone())),
        }
    }
}
