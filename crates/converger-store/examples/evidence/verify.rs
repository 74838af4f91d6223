//! What `converger verify` does with a ledger in files: the walk by hashes, and what is read and played again on the way.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;

use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, Replay, parse_entry};
use converger_ledger::{Bundle, Checkpoint, Files, Growth, Hash, Signer, TILE_WIDTH, Tile, Verifier, walk as walked};
use serde_json::json;

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
    files: Shelf,
    verifier: Verifier,
}

impl Ledger {
    fn of(count: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let entries = runs::entries(count);
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
        Ok(Self { entries, files: Shelf(files), verifier: signer.verifier() })
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

/// What entries say, each with its place among the others and what it names.
pub(crate) fn deep(count: u64, turns: u32) -> Told {
    let ledger = Ledger::of(count)?;
    let [typed_ns, parse_ns, deep_ns] = cpu::least(turns, &ledger, [typed_once, parse_once, deep_once]);
    Ok(json!({
        "entries": count, "entry_bytes": ledger.entry_bytes(), "kinds": kinds(&ledger), "typed_ns": typed_ns, "parse_ns": parse_ns,
        "deep_ns": deep_ns,
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

/// As `converger verify` does it on its way through the entries.
#[inline(never)]
fn deep_once(ledger: &Ledger) {
    let (mut replay, mut named) = (Replay::default(), BTreeMap::new());
    for (index, bytes) in (0_u64..).zip(&ledger.entries) {
        let entry = parsed(bytes);
        for digest in digests(&entry) {
            named.entry(digest).or_insert(index);
        }
        replay.take(entry).expect("entries stand where they may");
    }
    black_box((replay, named));
}

/// What an entry names.
fn digests(entry: &Entry) -> Vec<Digest> {
    match entry {
        Entry::RunStarted { inputs, .. } => vec![inputs.config, inputs.desired, inputs.observation, inputs.rules, inputs.catalogue],
        Entry::PlanMade { plan, judgement, .. } => vec![*plan, *judgement],
        Entry::Admitted { bundle, .. } => vec![*bundle],
        _ => Vec::new(),
    }
}
