//! An independent verifier with an export and a key: it checks signatures with `signed_note`, checkpoints, tiles and proofs with
//! `tlog_tiles`, roots with `ct-merkle`, and digests with a hash of another crate than ours. It uses no code of the program.

use ct_merkle::mem_backed_tree::MemoryBackedTree;
use sha2_next::{Digest as _, Sha256};
use signed_note::{StandardVerifier, VerifierList};
use tlog_tiles::{Checkpoint, Hash, HashReader as _, TileHashReader, TileReader, stored_hash_index};

use crate::export_files::ExportFiles;

/// A log that the independent verifier has accepted.
#[derive(Debug)]
pub(crate) struct AcceptedLog {
    pub(crate) size: u64,
    pub(crate) root: Hash,
    pub(crate) entries: Vec<Vec<u8>>,
}

/// Tiles by path; the paths of `tlog_tiles` also contain the height.
struct TileFiles<'f>(&'f ExportFiles);

impl TileReader for TileFiles<'_> {
    fn height(&self) -> u8 {
        8
    }

    fn read_tiles(&self, tiles: &[tlog_tiles::Tile]) -> Result<Vec<Vec<u8>>, tlog_tiles::Error> {
        let read = |tile: &tlog_tiles::Tile| self.0.0.get(&tile.path().replacen("tile/8/", "tile/", 1)).cloned();
        tiles.iter().map(|tile| read(tile).ok_or(tlog_tiles::Error::InvalidTile)).collect()
    }

    fn save_tiles(&self, _: &[tlog_tiles::Tile], _: &[Vec<u8>]) {}
}

/// Checks a whole export; returns the first fault.
pub(crate) fn accept_export(files: &ExportFiles, key: &str) -> Result<AcceptedLog, String> {
    let checkpoint = read_checkpoint(files, key)?;
    let (size, root) = (checkpoint.size(), *checkpoint.hash());
    let entries = read_entries(files, size)?;
    check_root(&entries, root)?;
    check_tiles(files, &entries, root)?;
    check_digests(files)?;
    Ok(AcceptedLog { size, root, entries })
}

/// The signed checkpoint. The key beside it must be the known one.
fn read_checkpoint(files: &ExportFiles, key: &str) -> Result<Checkpoint, String> {
    let beside = files.0.get("log.vkey").ok_or("no key")?;
    if beside != format!("{key}\n").as_bytes() {
        return Err("another key lies beside it".into());
    }
    let verifier = StandardVerifier::new(key).map_err(|error| format!("key: {error:?}"))?;
    let note = files.0.get("checkpoint").ok_or("no checkpoint")?;
    let note = signed_note::Note::from_bytes(note).map_err(|error| format!("note: {error:?}"))?;
    let known = VerifierList::new(vec![Box::new(verifier)]);
    let (known, unknown) = note.verify(&known).map_err(|error| format!("signature: {error:?}"))?;
    if (known.len(), unknown.len()) != (1, 0) {
        return Err("not one signature".into());
    }
    let checkpoint = Checkpoint::from_bytes(note.text()).map_err(|error| format!("checkpoint: {error:?}"))?;
    let is_of_key = key.starts_with(&format!("{}+", checkpoint.origin()));
    if is_of_key { Ok(checkpoint) } else { Err("a checkpoint of another log".into()) }
}

/// A bundle consists of entries, each after its length in two bytes.
fn read_entries(files: &ExportFiles, size: u64) -> Result<Vec<Vec<u8>>, String> {
    let mut entries = Vec::new();
    for tile in tlog_tiles::Tile::new_tiles(8, 0, size).into_iter().filter(|tile| tile.level() == 0) {
        let path = tile.path().replacen("tile/8/0/", "tile/entries/", 1);
        let mut rest = files.0.get(&path).ok_or_else(|| format!("no {path}"))?.as_slice();
        let before = entries.len();
        while !rest.is_empty() {
            let (length, after) = rest.split_first_chunk::<2>().ok_or_else(|| format!("{path} is cut"))?;
            let (entry, after) =
                after.split_at_checked(usize::from(u16::from_be_bytes(*length))).ok_or_else(|| format!("{path} is cut"))?;
            entries.push(entry.to_vec());
            rest = after;
        }
        if entries.len() - before != tile.width() as usize {
            return Err(format!("{path} has {} entries", entries.len() - before));
        }
    }
    Ok(entries)
}

fn check_root(entries: &[Vec<u8>], root: Hash) -> Result<(), String> {
    let mut tree = MemoryBackedTree::<Sha256, Vec<u8>>::new();
    entries.iter().for_each(|entry| tree.push(entry.clone()));
    if tree.root().as_bytes()[..] == root.0 { Ok(()) } else { Err("the entries have another root".into()) }
}

/// Authenticates every hash of every tile, compares every entry with its hash, and creates and checks inclusion proofs.
fn check_tiles(files: &ExportFiles, entries: &[Vec<u8>], root: Hash) -> Result<(), String> {
    let (size, tiles) = (entries.len() as u64, TileFiles(files));
    let reader = TileHashReader::new(size, root, &tiles);
    let wrong = |what: &str, error: tlog_tiles::Error| format!("{what}: {error:?}");
    for level in (0..64).step_by(8).take_while(|level| size >> level > 0) {
        let indexes: Vec<u64> = (0..size >> level).map(|index| stored_hash_index(level, index)).collect();
        let hashes = reader.read_hashes(&indexes).map_err(|error| wrong("tiles", error))?;
        let own = entries.iter().map(|entry| tlog_tiles::record_hash(entry));
        if level == 0 && !own.eq(hashes) {
            return Err("an entry has another hash".into());
        }
    }
    for index in (0..size).filter(|index| index % 37 == 0 || index + 1 == size) {
        let proof = tlog_tiles::prove_record(size, index, &reader).map_err(|error| wrong("no proof", error))?;
        let leaf =
            entries.get(usize::try_from(index).unwrap_or(usize::MAX)).map(|entry| tlog_tiles::record_hash(entry)).ok_or("no entry")?;
        tlog_tiles::check_record(&proof, size, root, index, leaf).map_err(|error| wrong("proof", error))?;
    }
    Ok(())
}

/// Every blob has the digest it is stored under.
fn check_digests(files: &ExportFiles) -> Result<(), String> {
    let named = files.0.iter().filter_map(|(name, bytes)| Some((name.strip_prefix("blob/sha256/")?, bytes)));
    // Temporary files of a killed export are not named by a digest.
    for (name, bytes) in named.filter(|(name, _)| !name.ends_with(".tmp")) {
        let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        if digest != name {
            return Err(format!("blob {name} has the digest {digest}"));
        }
    }
    Ok(())
}

/// Creates a consistency proof from the tiles of the newer log, and checks it.
pub(crate) fn check_extends(old: &AcceptedLog, new: &AcceptedLog, files: &ExportFiles) -> Result<(), String> {
    let tiles = TileFiles(files);
    let reader = TileHashReader::new(new.size, new.root, &tiles);
    let proof = tlog_tiles::prove_tree(new.size, old.size, &reader).map_err(|error| format!("no proof: {error:?}"))?;
    tlog_tiles::check_tree(&proof, new.size, new.root, old.size, old.root).map_err(|error| format!("proof: {error:?}"))
}
