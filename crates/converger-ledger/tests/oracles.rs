//! Three independent implementations verify roots, proofs, tiles and notes.

mod log;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use converger_ledger::{
    Checkpoint, CheckpointError, KeyError, LogBuilder, LogHash, NoteError, NoteSigner, NoteVerifier, ProofError, ProvenEntry, Receipt,
    ReceiptBundle, ReceiptError, SignedNote, Tile, TiledHashes, prove_consistency, prove_inclusion, verify_consistency, verify_inclusion,
};
use ct_merkle::mem_backed_tree::MemoryBackedTree;
use log::{ORIGIN, build_log, build_tree, sample_entry, signer};
use signed_note::{StandardVerifier, VerifierList};
use tlog_tiles::{HashReader, TileHashReader, TileReader};

/// Sizes around every boundary.
const SIZES: &[u64] = &[0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 255, 256, 257, 300, 511, 512, 513, 1000];

fn to_tlog_hash(hash: LogHash) -> tlog_tiles::Hash {
    tlog_tiles::Hash(hash.0)
}

/// Our files under the names of the other implementation, which include the tile height.
struct FixtureTileReader(log::LogFilesFixture);

impl TileReader for FixtureTileReader {
    fn height(&self) -> u8 {
        8
    }

    fn read_tiles(&self, tiles: &[tlog_tiles::Tile]) -> Result<Vec<Vec<u8>>, tlog_tiles::Error> {
        let read = |tile: &tlog_tiles::Tile| self.0.0.get(&tile.path().replacen("tile/8/", "tile/", 1)).cloned();
        tiles.iter().map(|tile| read(tile).ok_or(tlog_tiles::Error::InvalidTile)).collect()
    }

    fn save_tiles(&self, _: &[tlog_tiles::Tile], _: &[Vec<u8>]) {}
}

#[test]
fn roots_match_two_other_implementations() {
    let mut other = MemoryBackedTree::<sha2_next::Sha256, Vec<u8>>::new();
    for size in 0..600 {
        let (tree, _) = build_tree(size);
        assert_eq!(tree.size(), size);
        if size > 0 {
            other.push(sample_entry(size - 1));
            assert_eq!(tree.root().0[..], other.root().as_bytes()[..], "{size}");
        }
    }
    assert_eq!(to_tlog_hash(build_tree(0).0.root()), tlog_tiles::EMPTY_HASH);
}

#[test]
fn tree_continues_from_its_peaks() {
    let (mut tree, _) = build_tree(300);
    let mut again = converger_ledger::MerkleTree::from_peaks(300, tree.peaks().to_vec()).unwrap();
    for number in 300..600 {
        tree.append(LogHash::of_leaf(&sample_entry(number)), |_, _, _| {});
        again.append(LogHash::of_leaf(&sample_entry(number)), |_, _, _| {});
        assert_eq!(again.root(), tree.root());
    }
    assert_eq!(
        converger_ledger::MerkleTree::from_peaks(300, tree.peaks()[1..].to_vec()),
        None,
        "the number of peaks does not match 300 entries"
    );
}

/// The stored parts of a growing log: full tiles and their roots.
#[derive(Default)]
struct StoredTiles(BTreeMap<(u8, u64), (Vec<LogHash>, LogHash)>);

#[test]
fn log_resumed_from_full_tiles_builds_the_same_tiles() {
    let (mut log_builder, mut stored_tiles) = (LogBuilder::default(), StoredTiles::default());
    for size in 0..70_000 {
        if size < 600 || size % 4_099 == 0 || size % 65_536 < 2 {
            let again = LogBuilder::resume(size, |level, index| {
                Ok::<LogHash, Infallible>(match level.checked_sub(1) {
                    None => LogHash::of_leaf(&sample_entry(index)),
                    Some(below) => stored_tiles.0[&(below, index)].1,
                })
            });
            assert_eq!(again.as_ref(), Ok(&log_builder), "{size}");
        }
        log_builder.append(LogHash::of_leaf(&sample_entry(size)), |tile, hashes, root| {
            assert!(tile.is_full());
            let is_new = stored_tiles.0.insert((tile.level, tile.index), (hashes.to_vec(), root)).is_none();
            assert!(is_new, "{tile:?} was full before");
        });
    }
    let mut own: Vec<Tile> = stored_tiles.0.keys().map(|(level, index)| Tile { level: *level, index: *index, width: 256 }).collect();
    own.extend(log_builder.partial_tiles().map(|(tile, _)| tile));
    own.sort();
    assert_eq!(own, Tile::tiles_of_log(70_000).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>());
}

#[test]
fn tiles_verify_with_another_implementation() {
    for size in [1, 2, 3, 31, 33, 255, 256, 257, 513] {
        let (tree, subtrees) = build_tree(size);
        let reader = FixtureTileReader(build_log(size));
        let hashes = TileHashReader::new(size, to_tlog_hash(tree.root()), &reader);
        for ((level, index), hash) in subtrees {
            let stored = tlog_tiles::stored_hash_index(level, index);
            assert_eq!(hashes.read_hashes(&[stored]).unwrap(), [to_tlog_hash(hash)], "{size}: {level} {index}");
        }
    }
}

#[test]
fn added_tiles_match_another_implementation() {
    for (old, new) in [(0, 1), (0, 300), (1, 2), (255, 256), (256, 257), (300, 1000), (512, 512), (0, 70_000), (65_535, 65_537)] {
        let mut own: Vec<String> = Tile::tiles_added(old, new).map(|tile| tile.path()).collect();
        let other = tlog_tiles::Tile::new_tiles(8, old, new);
        let mut other: Vec<String> = other.iter().map(|tile| tile.path().replacen("tile/8/", "tile/", 1)).collect();
        own.sort();
        other.sort();
        assert_eq!(own, other, "{old} {new}");
    }
    let far = Tile { level: 0, index: 1_234_067, width: 256 };
    assert_eq!(far.path(), "tile/0/x001/x234/067");
    assert_eq!(Tile { width: 5, ..far }.entries_path(), "tile/entries/x001/x234/067.p/5");
}

fn tiled_hashes(size: u64, subtrees: &log::SubtreeMap) -> impl converger_ledger::SubtreeHashes<Error = Infallible> {
    TiledHashes::new(size, move |tile: Tile| {
        Ok(log::tile_bytes(tile, subtrees).as_chunks::<32>().0.iter().map(|hash| LogHash(*hash)).collect())
    })
}

#[test]
fn inclusion_proofs_verify_elsewhere_and_forged_ones_fail() {
    for &size in SIZES.iter().filter(|size| **size > 0) {
        let (tree, subtrees) = build_tree(size);
        let root = tree.root();
        for index in (0..size).filter(|index| size < 64 || index % 17 == 0 || index + 3 > size) {
            let proof = prove_inclusion(&mut tiled_hashes(size, &subtrees), index, size).unwrap().unwrap();
            let leaf = LogHash::of_leaf(&sample_entry(index));
            assert_eq!(verify_inclusion(index, leaf, size, root, &proof), Ok(()), "{index} of {size}");
            let others: Vec<_> = proof.iter().map(|hash| to_tlog_hash(*hash)).collect();
            tlog_tiles::check_record(&others, size, to_tlog_hash(root), index, to_tlog_hash(leaf)).unwrap();
            check_forged_inclusion_fails(index, leaf, size, root, &proof);
        }
        assert_eq!(prove_inclusion(&mut tiled_hashes(size, &subtrees), size, size), Ok(None));
    }
}

fn check_forged_inclusion_fails(index: u64, leaf: LogHash, size: u64, root: LogHash, proof: &[LogHash]) {
    let other = LogHash::of_leaf(b"another");
    assert_eq!(verify_inclusion(index, other, size, root, proof), Err(ProofError::RootMismatch));
    assert_eq!(verify_inclusion(index, leaf, size, other, proof), Err(ProofError::RootMismatch));
    assert_eq!(verify_inclusion(size, leaf, size, root, proof), Err(ProofError::OutOfRange));
    assert_eq!(verify_inclusion(index, leaf, size, root, &[proof, &[other]].concat()), Err(ProofError::WrongLength));
    for at in 0..proof.len() {
        let mut changed = proof.to_vec();
        changed[at] = other;
        assert_eq!(verify_inclusion(index, leaf, size, root, &changed), Err(ProofError::RootMismatch));
        changed.remove(at);
        assert!(verify_inclusion(index, leaf, size, root, &changed).is_err());
    }
}

#[test]
fn consistency_proofs_verify_elsewhere_and_forged_ones_fail() {
    for &new in SIZES.iter().filter(|size| **size > 0) {
        let (tree, subtrees) = build_tree(new);
        for old in (1..=new).filter(|old| new < 64 || old % 13 == 0 || SIZES.contains(old)) {
            let before = (old, build_tree(old).0.root());
            let now = (new, tree.root());
            let proof = prove_consistency(&mut tiled_hashes(new, &subtrees), old, new).unwrap().unwrap();
            assert_eq!(verify_consistency(before, now, &proof), Ok(()), "{old} to {new}");
            let others: Vec<_> = proof.iter().map(|hash| to_tlog_hash(*hash)).collect();
            tlog_tiles::check_tree(&others, new, to_tlog_hash(now.1), old, to_tlog_hash(before.1)).unwrap();
            let other = LogHash::of_leaf(b"another");
            assert!(verify_consistency((old, other), now, &proof).is_err(), "{old} to {new}: different start");
            assert!(verify_consistency(before, (new, other), &proof).is_err(), "{old} to {new}: different end");
            assert_eq!(verify_consistency(before, now, &[&proof[..], &[other]].concat()), Err(ProofError::WrongLength));
            for at in 0..proof.len() {
                let mut changed = proof.clone();
                changed[at] = other;
                assert_eq!(verify_consistency(before, now, &changed), Err(ProofError::RootMismatch), "{old} to {new}, hash {at}");
                changed.remove(at);
                assert!(verify_consistency(before, now, &changed).is_err(), "{old} to {new} without hash {at}");
            }
        }
        assert_eq!(prove_consistency(&mut tiled_hashes(new, &subtrees), new + 1, new), Ok(None));
        assert_eq!(verify_consistency((new + 1, tree.root()), (new, tree.root()), &[]), Err(ProofError::OutOfRange));
    }
}

#[test]
fn empty_log_is_a_prefix_of_every_log() {
    let (tree, _) = build_tree(5);
    let nothing = (0, LogHash::empty_root());
    assert_eq!(verify_consistency(nothing, (5, tree.root()), &[]), Ok(()));
    assert_eq!(verify_consistency((0, tree.root()), (5, tree.root()), &[]), Err(ProofError::RootMismatch));
    assert_eq!(verify_consistency(nothing, (5, tree.root()), &[tree.root()]), Err(ProofError::WrongLength));
}

fn checkpoint_of_size(size: u64) -> Checkpoint {
    Checkpoint { origin: ORIGIN.to_owned(), size, root: build_tree(size).0.root() }
}

#[test]
fn checkpoints_and_keys_verify_with_another_implementation() {
    let signed = checkpoint_of_size(300).sign(&signer());
    let vkey = signer().verifier().to_string();
    let list = || VerifierList::new(vec![Box::new(StandardVerifier::new(&vkey).unwrap())]);
    let note = signed_note::Note::from_bytes(signed.as_bytes()).unwrap();
    let (known, unknown) = note.verify(&list()).unwrap();
    assert_eq!((known.len(), unknown.len()), (1, 0));
    let other = tlog_tiles::Checkpoint::from_bytes(note.text()).unwrap();
    assert_eq!((other.origin(), other.size(), *other.hash()), (ORIGIN, 300, to_tlog_hash(checkpoint_of_size(300).root)));
    let changed = signed.replacen("300", "301", 1);
    assert!(signed_note::Note::from_bytes(changed.as_bytes()).unwrap().verify(&list()).is_err());
}

#[test]
fn stored_key_signs_the_same_in_another_implementation() {
    use signed_note::Signer as _;
    let signer = NoteSigner::new(ORIGIN, &[7; 32]).unwrap();
    let reference_signer = signed_note::StandardSigner::new(&signer.to_secret_text()).unwrap();
    let note = signer.sign("text\n");
    let signature =
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, note.rsplit(' ').next().unwrap().trim_end()).unwrap();
    assert_eq!(signature[4..], reference_signer.sign(b"text\n").unwrap(), "after the hash of the key");
    let again = NoteSigner::parse(&format!("{}\n", signer.to_secret_text())).unwrap();
    assert_eq!(again.sign("text\n"), signer.sign("text\n"));
    let secret = signer.to_secret_text();
    for (at, _) in secret.char_indices() {
        let mut changed = secret.clone().into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(changed).unwrap();
        assert!(NoteSigner::parse(&changed).is_err(), "{at}");
        assert!(NoteSigner::parse(&secret[..at]).is_err(), "{at}");
    }
    assert!(!format!("{signer:?}").contains(secret.rsplit('+').next().unwrap()));
}

#[test]
fn accepts_notes_signed_by_another_implementation() {
    let key = ed25519_dalek::SigningKey::from_bytes(&[9; 32]);
    let vkey = signed_note::new_ed25519_verifier_key(ORIGIN, &key.verifying_key());
    let verifier = NoteVerifier::parse(&vkey).unwrap();
    assert_eq!(verifier.to_string(), vkey);
    assert_eq!(NoteSigner::new(ORIGIN, &[9; 32]).unwrap().verifier(), verifier);
    let signed = checkpoint_of_size(3).sign(&NoteSigner::new(ORIGIN, &[9; 32]).unwrap());
    assert_eq!(Checkpoint::verify(signed.as_bytes(), &verifier), Ok(checkpoint_of_size(3)));
}

#[test]
fn every_flipped_bit_of_a_checkpoint_is_detected() {
    let (signed, verifier) = (checkpoint_of_size(30).sign(&signer()), signer().verifier());
    assert_eq!(Checkpoint::verify(signed.as_bytes(), &verifier), Ok(checkpoint_of_size(30)));
    for at in 0..signed.len() {
        for bit in 0..8 {
            let mut changed = signed.clone().into_bytes();
            changed[at] ^= 1 << bit;
            assert!(Checkpoint::verify(&changed, &verifier).is_err(), "byte {at}, bit {bit}: {}", String::from_utf8_lossy(&changed));
        }
        assert!(Checkpoint::verify(&signed.as_bytes()[..at], &verifier).is_err(), "cut at {at}");
    }
}

#[test]
fn distinguishes_foreign_checkpoints_from_forged_ones() {
    let verifier = signer().verifier();
    let verify = |signed: &str| Checkpoint::verify(signed.as_bytes(), &verifier);
    let other_signer = NoteSigner::new(ORIGIN, &[8; 32]).unwrap();
    assert_eq!(verify(&checkpoint_of_size(3).sign(&other_signer)), Err(CheckpointError::Note(NoteError::NotSigned)));
    let other = Checkpoint { origin: "converger.test/other".to_owned(), ..checkpoint_of_size(3) };
    assert_eq!(verify(&other.sign(&signer())), Err(CheckpointError::OtherLog));
    let changed = checkpoint_of_size(3).sign(&signer()).replacen("\n3\n", "\n4\n", 1);
    assert_eq!(verify(&changed), Err(CheckpointError::Note(NoteError::BadSignature)));
    for text in ["", "\n", "a\n", "a\nb\n", "no signature\n\n", "a\n03\nx\n"] {
        assert!(Checkpoint::parse_unverified(text.as_bytes()).is_err(), "{text:?}");
    }
    let odd = signer().sign(&format!("{ORIGIN}\n03\n{}\n", checkpoint_of_size(3).root));
    assert_eq!(verify(&odd), Err(CheckpointError::Malformed));
}

#[test]
fn ignores_additional_signatures() {
    let text = format!("{ORIGIN}\n3\n{}\n", checkpoint_of_size(3).root);
    let witness = NoteSigner::new("witness.test", &[5; 32]).unwrap();
    let line = |note: String| note.rsplit_once("\n\n").unwrap().1.to_owned();
    let both = format!("{text}\n{}{}", line(witness.sign(&text)), line(signer().sign(&text)));
    assert_eq!(Checkpoint::verify(both.as_bytes(), &signer().verifier()), Ok(checkpoint_of_size(3)));
    assert_eq!(SignedNote::parse(both.as_bytes()).unwrap().verify(&witness.verifier()), Ok(text.as_str()));
}

#[test]
fn malformed_keys_are_refused_with_their_cause() {
    let vkey = signer().verifier().to_string();
    let check = |text: &str, bad: KeyError| assert_eq!(NoteVerifier::parse(text), Err(bad), "{text}");
    check("", KeyError::Malformed);
    check("name only", KeyError::Malformed);
    check(&vkey.replacen("converger.test/lab", "other", 1), KeyError::HashMismatch);
    check(&vkey.replacen("converger.test/lab", "two words", 1), KeyError::InvalidName);
    check("a+00000000+!!", KeyError::Malformed);
    check("a+00000000+AgAA", KeyError::NotEd25519);
    assert_eq!(NoteSigner::new("a+b", &[0; 32]).map(|_| ()), Err(KeyError::InvalidName));
    assert!(!format!("{:?}", signer()).contains("7, 7"), "a key does not show its secret");
}

#[test]
fn receipt_verifies_without_the_log() {
    let (_, subtrees) = build_tree(300);
    let receipt = Receipt {
        entry: sample_entry(123),
        index: 123,
        proof: prove_inclusion(&mut tiled_hashes(300, &subtrees), 123, 300).unwrap().unwrap(),
        checkpoint: checkpoint_of_size(300).sign(&signer()),
    };
    let text = receipt.to_text();
    assert_eq!(Receipt::parse(&text).as_ref(), Ok(&receipt));
    assert_eq!(receipt.verify(&signer().verifier()), Ok(checkpoint_of_size(300)));
    let verifier = signer().verifier();
    let verify = |bytes: &[u8]| Receipt::parse(std::str::from_utf8(bytes).unwrap_or_default())?.verify(&verifier);
    for at in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[at] ^= 1;
        assert!(verify(&changed).is_err(), "byte {at}: {}", String::from_utf8_lossy(&changed));
        assert!(verify(&text.as_bytes()[..at]).is_err(), "cut at {at}");
    }
}

/// Some entries of a log of 300 entries, under its checkpoint.
fn sample_bundle(indices: &[u64]) -> ReceiptBundle {
    let (_, subtrees) = build_tree(300);
    let proof = |index| prove_inclusion(&mut tiled_hashes(300, &subtrees), index, 300).unwrap().unwrap();
    let proven = indices.iter().map(|index| ProvenEntry { entry: sample_entry(*index), index: *index, proof: proof(*index) }).collect();
    ReceiptBundle {
        attachments: vec![b"something".to_vec(), Vec::new()],
        entries: proven,
        checkpoint: checkpoint_of_size(300).sign(&signer()),
    }
}

#[test]
fn bundle_verifies_without_the_log() {
    let (bundle, verifier) = (sample_bundle(&[3, 123, 299]), signer().verifier());
    let text = bundle.to_text();
    assert!(ReceiptBundle::has_header(&text) && !ReceiptBundle::has_header("converger.receipt/10\n"));
    assert_eq!(ReceiptBundle::parse(&text).as_ref(), Ok(&bundle));
    assert_eq!(bundle.verify(&verifier), Ok(checkpoint_of_size(300)));
    let first_proof = text.find("extra ").unwrap();
    for at in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[at] ^= 1;
        let found = ReceiptBundle::parse(std::str::from_utf8(&changed).unwrap_or_default());
        let is_whole = found.as_ref().is_ok_and(|found| found.verify(&verifier).is_ok());
        // Changed attachments are not detected here: callers must compare them with the entries.
        assert!(
            !is_whole || (at < first_proof && found.unwrap().attachments != bundle.attachments),
            "byte {at}: {}",
            String::from_utf8_lossy(&changed)
        );
        assert!(ReceiptBundle::parse(&text[..text.floor_char_boundary(at)]).and_then(|cut| cut.verify(&verifier)).is_err(), "cut at {at}");
    }
    // Each part of it is a receipt in the standard format.
    for part in text.split("\n\n").filter(|part| part.starts_with("extra ")) {
        let receipt = format!("c2sp.org/tlog-proof@v1\n{part}\n\n{}", bundle.checkpoint);
        assert_eq!(Receipt::parse(&receipt).unwrap().verify(&verifier), Ok(checkpoint_of_size(300)));
    }
}

#[test]
fn refuses_swapped_duplicate_and_foreign_entries() {
    let (verifier, good) = (signer().verifier(), sample_bundle(&[3, 123, 299]));
    let check = |indices: &[u64], late| {
        assert_eq!(sample_bundle(indices).verify(&verifier), Err(ReceiptError::OutOfOrder { index: late }), "{indices:?}")
    };
    check(&[123, 3], 3);
    check(&[3, 3], 3);
    let mut exchanged = good.clone();
    exchanged.entries[0].entry = sample_entry(123);
    assert!(matches!(exchanged.verify(&verifier), Err(ReceiptError::Entry { index: 3, .. })));
    let foreign = ReceiptBundle { checkpoint: checkpoint_of_size(299).sign(&signer()), ..good.clone() };
    assert!(matches!(foreign.verify(&verifier), Err(ReceiptError::Entry { index: 3, .. })));
    let nobody = NoteSigner::new(ORIGIN, &[8; 32]).unwrap();
    assert!(matches!(good.verify(&nobody.verifier()), Err(ReceiptError::Checkpoint(_))));
    let empty = ReceiptBundle { entries: Vec::new(), ..good };
    assert_eq!(ReceiptBundle::parse(&empty.to_text()), Err(ReceiptError::Malformed));
}
