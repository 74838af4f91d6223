//! What `converger verify` does with a ledger in files: the walk by hashes, and what is read and played again on the way.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;

use converger_core::artifact::Digest;
use converger_core::evidence::{Deep, Entry, Piece, Wrong, parse_entry};
use converger_ledger::{Bundle, Checkpoint, Files, Growth, Hash, Signer, TILE_WIDTH, Tile, Verifier, walk as walked};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::runs::Beside;
use crate::{Told, cpu, runs, typed};

/// The files of a ledger, as an export lays them out.
struct Shelf(BTreeMap<String, Vec<u8>>);

impl Files for &Shelf {
    type Error = Infallible;

    /// A copy, as it would be from a disk.
    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(path).cloned())
    }
}

struct Ledger {
    entries: Vec<Vec<u8>>,
    /// What they name.
    kept: Beside,
    files: Shelf,
    verifier: Verifier,
}

impl Ledger {
    fn of(count: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let (entries, kept) = runs::entries(count);
        let (mut growth, mut tiles) = (Growth::default(), Vec::new());
        for entry in &entries {
            growth.append(Hash::of_leaf(entry), |tile, hashes, _| tiles.push((tile, joined(hashes))));
        }
        tiles.extend(growth.partial().map(|(tile, hashes)| (tile, joined(hashes))));
        let mut files: BTreeMap<String, Vec<u8>> = tiles.into_iter().map(|(tile, bytes)| (tile.path(), bytes)).collect();
        let bundles = Tile::all(count).take_while(|tile| tile.level == 0).zip(entries.chunks(TILE_WIDTH as usize));
        files.extend(bundles.map(|(tile, some)| (tile.entries_path(), bundle(some))));
        let signer = Signer::new("converger-bench", &[7; 32])?;
        let checkpoint = Checkpoint { origin: "converger-bench".to_owned(), size: count, root: growth.tree().root() };
        files.insert("checkpoint".to_owned(), checkpoint.sign(&signer).into_bytes());
        Ok(Self { entries, kept, files: Shelf(files), verifier: signer.verifier() })
    }

    fn entry_bytes(&self) -> usize {
        self.entries.iter().map(Vec::len).sum()
    }
}

fn joined(hashes: &[Hash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

fn bundle(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bundle = Bundle::default();
    assert!(entries.iter().all(|entry| bundle.push(entry)), "entries are short");
    bundle.into_bytes()
}

/// Hashes, tiles and the signature; no entry is read.
pub(crate) fn walk(count: u64, turns: u32) -> Told {
    let ledger = Ledger::of(count)?;
    let [sha_ns, walk_ns] = cpu::least(turns, &ledger, [sha_once, walk_once]);
    let bytes: usize = ledger.files.0.values().map(Vec::len).sum();
    Ok(json!({ "entries": count, "entry_bytes": ledger.entry_bytes(), "bytes": bytes, "sha_ns": sha_ns, "walk_ns": walk_ns }))
}

#[inline(never)]
fn sha_once(ledger: &Ledger) {
    for file in ledger.files.0.values() {
        black_box(Digest::of_bytes(file));
    }
}

#[inline(never)]
fn walk_once(ledger: &Ledger) {
    let found = walked(&mut &ledger.files, &ledger.verifier, |_, _| {});
    assert!(matches!(found, Ok(Ok(_))), "{found:?}");
}

/// What entries say, each with its place among the others, and what is kept of what they name: the same bytes, typed and no more, are what
/// it is compared with.
pub(crate) fn deep(count: u64, turns: u32) -> Told {
    let ledger = Ledger::of(count)?;
    let [typed_ns, typed_kept_ns, parse_ns, walk_ns, deep_ns] =
        cpu::least(turns, &ledger, [typed_once, typed_kept_once, parse_once, play_once, deep_once]);
    let kept_bytes: usize = ledger.kept.values().map(|(_, bytes)| bytes.len()).sum();
    Ok(json!({
        "entries": count, "entry_bytes": ledger.entry_bytes(), "kept": ledger.kept.len(), "kept_bytes": kept_bytes, "kinds": kinds(&ledger),
        "typed_entries_ns": typed_ns, "typed_kept_ns": typed_kept_ns, "typed_ns": typed_ns + typed_kept_ns, "parse_ns": parse_ns,
        "entries_ns": walk_ns, "deep_ns": deep_ns,
    }))
}

/// How many entries there are of each kind, and how long they are on average.
fn kinds(ledger: &Ledger) -> BTreeMap<&'static str, (usize, usize)> {
    let mut kinds: BTreeMap<&'static str, (usize, usize)> = BTreeMap::new();
    for bytes in &ledger.entries {
        let (count, length) = kinds.entry(parsed(bytes).kind()).or_default();
        (*count, *length) = (*count + 1, *length + bytes.len());
    }
    kinds.into_iter().map(|(kind, (count, length))| (kind, (count, length / count))).collect()
}

#[inline(never)]
fn typed_once(ledger: &Ledger) {
    for bytes in &ledger.entries {
        let entry: typed::Entry = serde_json::from_slice(bytes).expect("entries are well-formed");
        black_box(entry);
    }
}

fn typed_as<T: DeserializeOwned>(bytes: &[u8]) -> T {
    serde_json::from_slice(bytes).expect("it is well-formed")
}

/// All that is kept, each as what it is.
#[inline(never)]
fn typed_kept_once(ledger: &Ledger) {
    for (piece, bytes) in ledger.kept.values() {
        match piece {
            Some(Piece::Plan) => drop(black_box(typed_as::<typed::Plan>(bytes))),
            Some(Piece::Desired) => drop(black_box(typed_as::<typed::Desired>(bytes))),
            Some(Piece::Observation) => drop(black_box(typed_as::<typed::Observation>(bytes))),
            // A few hundred bytes each: their types would change nothing.
            _ => drop(black_box(typed_as::<serde_json::Value>(bytes))),
        }
    }
}

fn parsed(bytes: &[u8]) -> Entry {
    parse_entry(bytes).expect("entries are well-formed")
}

/// Not compared with anything: which part of it reading is.
#[inline(never)]
fn parse_once(ledger: &Ledger) {
    for bytes in &ledger.entries {
        black_box(parsed(bytes));
    }
}

fn played(ledger: &Ledger) -> Deep {
    let mut deep = Deep::default();
    for bytes in &ledger.entries {
        deep.take(bytes).expect("entries stand where they may");
    }
    deep
}

/// Not compared with anything: what the entries alone are of it.
#[inline(never)]
fn play_once(ledger: &Ledger) {
    black_box(played(ledger));
}

/// As `converger verify` does it: through the entries, and then through all that is kept. A copy of each, as it would be from a disk.
#[inline(never)]
fn deep_once(ledger: &Ledger) {
    let found = played(ledger).kept(|digest| Ok::<_, Wrong>(ledger.kept.get(&digest).map(|(_, bytes)| bytes.clone())));
    assert!(matches!(found, Ok(0)), "{found:?}");
}
