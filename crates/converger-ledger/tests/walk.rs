//! A log in files is intact, or its first fault is reported with its location.

mod log;

use converger_ledger::{Checkpoint, CheckpointError, LogFault, LogHash, LogLocation, NoteError, NoteSigner, VerifiedLog, verify_log};
use log::{LogFilesFixture, ORIGIN, build_log, build_tree, sample_entry, signer};

fn verify(mut files: LogFilesFixture) -> Result<VerifiedLog, LogFault> {
    let Ok(outcome) = verify_log(&mut files, &signer().verifier(), |_, _| {});
    outcome
}

fn location(path: &str, index: u64) -> LogLocation {
    LogLocation { path: path.to_owned(), index: Some(index) }
}

#[test]
fn intact_log_verifies_and_visits_each_entry_once() {
    for size in [0, 1, 2, 255, 256, 257, 600, 66_000] {
        let mut files = build_log(size);
        let mut next = 0;
        let Ok(outcome) = verify_log(&mut files, &signer().verifier(), |index, bytes| {
            assert_eq!((index, bytes), (next, &sample_entry(next)[..]));
            next += 1;
        });
        assert_eq!(next, size);
        let verified = outcome.unwrap();
        assert_eq!((verified.checkpoint.size, verified.files_read), (size, files.0.len() as u64));
    }
}

#[test]
fn distinguishes_a_changed_entry_from_a_changed_tile() {
    let whole = build_log(600);
    let change = |path: &str, at: usize| {
        let mut files = whole.clone();
        files.0.get_mut(path).unwrap()[at] ^= 1;
        verify(files)
    };
    // The first entries have 0, 37 and 74 bytes, each preceded by two bytes of length.
    assert_eq!(change("tile/entries/000", 2 + 2 + 5), Err(LogFault::Entry(location("tile/entries/000", 1))));
    assert_eq!(change("tile/0/001", 7 * LogHash::BYTES), Err(LogFault::Tile(location("tile/0/001", 256 + 7))));
    assert_eq!(change("tile/1/000.p/2", LogHash::BYTES), Err(LogFault::Tile(location("tile/1/000.p/2", 256))));
    assert_eq!(change("tile/0/002.p/88", 0), Err(LogFault::Tile(location("tile/0/002.p/88", 512))));
}

/// The first fault is reported even if the root cannot show which side is wrong, because a later part is broken, too.
#[test]
fn reports_the_first_of_several_faults() {
    let mut flipped = build_log(600);
    flipped.0.get_mut("tile/entries/000").unwrap()[2 + 2 + 5] ^= 1;
    let differs = Err(LogFault::Undecided(location("tile/0/000", 1)));
    let changed = |change: &dyn Fn(&mut LogFilesFixture)| {
        let mut files = flipped.clone();
        change(&mut files);
        verify(files)
    };
    assert_eq!(changed(&|_| ()), Err(LogFault::Entry(location("tile/entries/000", 1))));
    assert_eq!(changed(&|files| drop(files.0.remove("tile/entries/002.p/88"))), differs);
    assert_eq!(changed(&|files| drop(files.0.remove("tile/0/001"))), differs);
    assert_eq!(changed(&|files| files.0.get_mut("tile/entries/001").unwrap().truncate(99)), differs);
    assert_eq!(changed(&|files| files.0.get_mut("tile/0/001").unwrap().push(0)), differs);
    // A fault in the tile above counts as earlier.
    assert_eq!(changed(&|files| drop(files.0.remove("tile/1/000.p/2"))), Err(LogFault::Missing(location("tile/1/000.p/2", 0))));
}

#[test]
fn entry_and_tile_changed_together_break_the_root() {
    let mut forged = build_log(300);
    let bundle = forged.0.get_mut("tile/entries/000").unwrap();
    bundle[2 + 2] ^= 1;
    let forged_entry = bundle[4..4 + 37].to_vec();
    let mut both = forged.clone();
    both.0.get_mut("tile/0/000").unwrap()[LogHash::BYTES..2 * LogHash::BYTES].copy_from_slice(&LogHash::of_leaf(&forged_entry).0);
    // The tile of level 1 still belongs to the original log.
    assert_eq!(verify(both.clone()), Err(LogFault::Tile(location("tile/1/000.p/1", 0))));
    let (tree, signed) = (build_tree(300).0, unverified_checkpoint(&both));
    assert_eq!(signed.root, tree.root());
    both.0.get_mut("tile/0/000").unwrap()[5 * LogHash::BYTES] ^= 1;
    assert_eq!(verify(both), Err(LogFault::EntryAndTile(location("tile/0/000", 5))));
}

fn unverified_checkpoint(files: &LogFilesFixture) -> Checkpoint {
    Checkpoint::parse_unverified(&files.0["checkpoint"]).unwrap()
}

#[test]
fn rewritten_log_without_upper_tiles_has_another_root() {
    let mut rewritten = build_log(200);
    let other = build_log(201);
    rewritten.0.insert("checkpoint".to_owned(), other.0["checkpoint"].clone());
    assert_eq!(verify(rewritten), Err(LogFault::Missing(location("tile/entries/000.p/201", 0))));
    let forged = Checkpoint { origin: ORIGIN.to_owned(), size: 200, root: LogHash::of_leaf(b"x") };
    let mut forged_root = build_log(200);
    forged_root.0.insert("checkpoint".to_owned(), forged.sign(&signer()).into_bytes());
    assert_eq!(verify(forged_root), Err(LogFault::Root { found: build_tree(200).0.root(), signed: forged.root }));
}

#[test]
fn missing_truncated_and_extended_files_are_detected() {
    let whole = build_log(600);
    for path in whole.0.keys() {
        let without = LogFilesFixture(whole.0.clone().into_iter().filter(|(other, _)| other != path).collect());
        let Err(LogFault::Missing(missing)) = verify(without) else { panic!("the missing {path} was not detected") };
        assert_eq!(&missing.path, path);
        for cut in [0, 1, whole.0[path].len() / 2, whole.0[path].len() - 1] {
            let mut shorter = whole.clone();
            shorter.0.get_mut(path).unwrap().truncate(cut);
            assert!(verify(shorter).is_err(), "{path} cut to {cut}");
        }
        let mut longer = whole.clone();
        longer.0.get_mut(path).unwrap().push(0);
        assert!(verify(longer).is_err(), "{path} with a byte more");
    }
}

#[test]
fn reordered_entries_are_detected() {
    let mut files = build_log(300);
    let bundle = files.0.get_mut("tile/entries/000").unwrap();
    // Swap entries 1 and 2.
    let (first, second) = (bundle[2..2 + 39].to_vec(), bundle[41..41 + 76].to_vec());
    bundle[2..2 + 39 + 76].copy_from_slice(&[second, first].concat());
    assert_eq!(verify(files), Err(LogFault::Entry(location("tile/entries/000", 1))));
}

#[test]
fn refuses_a_checkpoint_signed_with_another_key() {
    let mut files = build_log(10);
    let root = build_tree(10).0.root();
    let other_signer = NoteSigner::new(ORIGIN, &[1; 32]).unwrap();
    let signed = Checkpoint { origin: ORIGIN.to_owned(), size: 10, root }.sign(&other_signer);
    files.0.insert("checkpoint".to_owned(), signed.into_bytes());
    assert_eq!(verify(files), Err(LogFault::Checkpoint(CheckpointError::Note(NoteError::NotSigned))));
}

/// No bit of any file can be changed without detection.
#[test]
fn every_flipped_bit_of_a_log_file_is_detected() {
    let whole = build_log(300);
    let mut flips = 0;
    for (path, bytes) in &whole.0 {
        for at in (0..bytes.len()).step_by(1 + bytes.len() / 150) {
            let mut changed = whole.clone();
            changed.0.get_mut(path).unwrap()[at] ^= 1 << (at % 8);
            assert!(verify(changed).is_err(), "{path}, byte {at}");
            flips += 1;
        }
    }
    assert!(flips > 500, "{flips}");
}
