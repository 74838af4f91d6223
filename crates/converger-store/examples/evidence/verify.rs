//! What `converger verify` does with an exported ledger: verify its hashes, then parse and replay its entries.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::hint::black_box;

use converger_core::artifact::Digest;
use converger_core::evidence::{DecisionPart, LedgerCheck, LedgerEntry, LedgerFault, parse_entry};
use converger_ledger::{
    Checkpoint, EntryBundle, LogBuilder, LogFiles, LogHash, NoteSigner, NoteVerifier, TILE_WIDTH, Tile, verify_log as walked,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::runs::NamedBlobs;
use crate::{BenchOutput, cpu, runs, typed};

/// The files of a ledger, as in an export.
struct ExportedFiles(BTreeMap<String, Vec<u8>>);

impl LogFiles for &ExportedFiles {
    type Error = Infallible;

    /// A copy, as a read from disk would be.
    fn read(&mut self, path: &str) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.0.get(path).cloned())
    }
}

struct BenchLedger {
    entries: Vec<Vec<u8>>,
    /// The blobs that the entries refer to.
    blobs: NamedBlobs,
    files: ExportedFiles,
    verifier: NoteVerifier,
}

impl BenchLedger {
    fn with_entries(count: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let (entries, named_blobs) = runs::ledger_entries(count);
        let (mut log_builder, mut tiles) = (LogBuilder::default(), Vec::new());
        for entry in &entries {
            log_builder.append(LogHash::of_leaf(entry), |tile, hashes, _| tiles.push((tile, join_hashes(hashes))));
        }
        tiles.extend(log_builder.partial_tiles().map(|(tile, hashes)| (tile, join_hashes(hashes))));
        let mut files: BTreeMap<String, Vec<u8>> = tiles.into_iter().map(|(tile, bytes)| (tile.path(), bytes)).collect();
        let bundles = Tile::tiles_of_log(count).take_while(|tile| tile.level == 0).zip(entries.chunks(TILE_WIDTH as usize));
        files.extend(bundles.map(|(tile, some)| (tile.entries_path(), entry_bundle(some))));
        let signer = NoteSigner::new("converger-bench", &[7; 32])?;
        let checkpoint = Checkpoint { origin: "converger-bench".to_owned(), size: count, root: log_builder.tree().root() };
        files.insert("checkpoint".to_owned(), checkpoint.sign(&signer).into_bytes());
        Ok(Self { entries, blobs: named_blobs, files: ExportedFiles(files), verifier: signer.verifier() })
    }

    fn entry_bytes(&self) -> usize {
        self.entries.iter().map(Vec::len).sum()
    }
}

fn join_hashes(hashes: &[LogHash]) -> Vec<u8> {
    hashes.iter().flat_map(|hash| hash.0).collect()
}

fn entry_bundle(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bundle = EntryBundle::default();
    assert!(entries.iter().all(|entry| bundle.push(entry)), "entries are short");
    bundle.into_bytes()
}

/// Verifies hashes, tiles and the signature; parses no entry.
pub(crate) fn bench_verify_log(count: u64, repetitions: u32) -> BenchOutput {
    let ledger = BenchLedger::with_entries(count)?;
    let [sha_ns, walk_ns] = cpu::least_cpu_ns(repetitions, &ledger, [hash_files_once, verify_log_once]);
    let bytes: usize = ledger.files.0.values().map(Vec::len).sum();
    Ok(json!({ "entries": count, "entry_bytes": ledger.entry_bytes(), "bytes": bytes, "sha_ns": sha_ns, "walk_ns": walk_ns }))
}

#[inline(never)]
fn hash_files_once(ledger: &BenchLedger) {
    for file in ledger.files.0.values() {
        black_box(Digest::of_bytes(file));
    }
}

#[inline(never)]
fn verify_log_once(ledger: &BenchLedger) {
    let found = walked(&mut &ledger.files, &ledger.verifier, |_, _| {});
    assert!(matches!(found, Ok(Ok(_))), "{found:?}");
}

/// Parses and replays entries, and checks the blobs that they refer to, compared with a typed parse of the same bytes.
pub(crate) fn bench_ledger_check(count: u64, repetitions: u32) -> BenchOutput {
    let ledger = BenchLedger::with_entries(count)?;
    let [typed_ns, typed_kept_ns, parse_ns, walk_ns, deep_ns] = cpu::least_cpu_ns(
        repetitions,
        &ledger,
        [parse_typed_entries_once, parse_typed_blobs_once, parse_entries_once, replay_entries_once, check_ledger_once],
    );
    let kept_bytes: usize = ledger.blobs.values().map(|(_, bytes)| bytes.len()).sum();
    Ok(json!({
        "entries": count, "entry_bytes": ledger.entry_bytes(), "kept": ledger.blobs.len(), "kept_bytes": kept_bytes, "kinds": entry_kinds(&ledger),
        "typed_entries_ns": typed_ns, "typed_kept_ns": typed_kept_ns, "typed_ns": typed_ns + typed_kept_ns, "parse_ns": parse_ns,
        "entries_ns": walk_ns, "deep_ns": deep_ns,
    }))
}

/// The number of entries of each kind and their average length.
fn entry_kinds(ledger: &BenchLedger) -> BTreeMap<&'static str, (usize, usize)> {
    let mut kinds: BTreeMap<&'static str, (usize, usize)> = BTreeMap::new();
    for bytes in &ledger.entries {
        let (count, length) = kinds.entry(parse_valid_entry(bytes).kind()).or_default();
        (*count, *length) = (*count + 1, *length + bytes.len());
    }
    kinds.into_iter().map(|(kind, (count, length))| (kind, (count, length / count))).collect()
}

#[inline(never)]
fn parse_typed_entries_once(ledger: &BenchLedger) {
    for bytes in &ledger.entries {
        let entry: typed::TypedEntry = serde_json::from_slice(bytes).expect("entries are well-formed");
        black_box(entry);
    }
}

fn parse_typed<T: DeserializeOwned>(bytes: &[u8]) -> T {
    serde_json::from_slice(bytes).expect("it is well-formed")
}

/// Parses every blob as its own type.
#[inline(never)]
fn parse_typed_blobs_once(ledger: &BenchLedger) {
    for (part, bytes) in ledger.blobs.values() {
        match part {
            Some(DecisionPart::Plan) => drop(black_box(parse_typed::<typed::TypedPlan>(bytes))),
            Some(DecisionPart::Intent) => drop(black_box(parse_typed::<typed::TypedDesired>(bytes))),
            Some(DecisionPart::Observation) => drop(black_box(parse_typed::<typed::TypedObservation>(bytes))),
            // A few hundred bytes each; typed structs would make no difference.
            _ => drop(black_box(parse_typed::<serde_json::Value>(bytes))),
        }
    }
}

fn parse_valid_entry(bytes: &[u8]) -> LedgerEntry {
    parse_entry(bytes).expect("entries are well-formed")
}

/// Not part of the comparison: the share of parsing.
#[inline(never)]
fn parse_entries_once(ledger: &BenchLedger) {
    for bytes in &ledger.entries {
        black_box(parse_valid_entry(bytes));
    }
}

fn replay_entries(ledger: &BenchLedger) -> LedgerCheck {
    let mut ledger_check = LedgerCheck::default();
    for bytes in &ledger.entries {
        ledger_check.add_entry(bytes).expect("entries are in a valid order");
    }
    ledger_check
}

/// Not part of the comparison: the share of the entries.
#[inline(never)]
fn replay_entries_once(ledger: &BenchLedger) {
    black_box(replay_entries(ledger));
}

/// As `converger verify` does it: all entries, then all blobs, each copied as a read from disk would be.
#[inline(never)]
fn check_ledger_once(ledger: &BenchLedger) {
    let found =
        replay_entries(ledger).check_blobs(|digest| Ok::<_, LedgerFault>(ledger.blobs.get(&digest).map(|(_, bytes)| bytes.clone())));
    assert!(matches!(found, Ok(0)), "{found:?}");
}
