//! A log in files is whole, or the first thing that is wrong with it is told with its place.

mod log;

use converger_ledger::{BadCheckpoint, BadNote, Broken, Checkpoint, Hash, Part, Signer, Walked, walk};
use log::{ORIGIN, Shelf, entry, grown, shelf, signer};

fn walked(mut shelf: Shelf) -> Result<Walked, Broken> {
    let Ok(outcome) = walk(&mut shelf, &signer().verifier(), |_, _| {});
    outcome
}

fn part(path: &str, index: u64) -> Part {
    Part { path: path.to_owned(), index: Some(index) }
}

#[test]
fn a_whole_log_is_whole_and_each_entry_is_told_once() {
    for size in [0, 1, 2, 255, 256, 257, 600, 66_000] {
        let mut shelf = shelf(size);
        let mut next = 0;
        let Ok(outcome) = walk(&mut shelf, &signer().verifier(), |index, bytes| {
            assert_eq!((index, bytes), (next, &entry(next)[..]));
            next += 1;
        });
        assert_eq!(next, size);
        let walked = outcome.unwrap();
        assert_eq!((walked.checkpoint.size, walked.files), (size, shelf.0.len() as u64));
    }
}

#[test]
fn a_changed_entry_is_named_and_a_changed_tile_is_told_from_it() {
    let whole = shelf(600);
    let change = |path: &str, at: usize| {
        let mut shelf = whole.clone();
        shelf.0.get_mut(path).unwrap()[at] ^= 1;
        walked(shelf)
    };
    // The first entries have 0, 37 and 74 bytes, and each has two before it.
    assert_eq!(change("tile/entries/000", 2 + 2 + 5), Err(Broken::Entry(part("tile/entries/000", 1))));
    assert_eq!(change("tile/0/001", 7 * Hash::BYTES), Err(Broken::Tile(part("tile/0/001", 256 + 7))));
    assert_eq!(change("tile/1/000.p/2", Hash::BYTES), Err(Broken::Tile(part("tile/1/000.p/2", 256))));
    assert_eq!(change("tile/0/002.p/88", 0), Err(Broken::Tile(part("tile/0/002.p/88", 512))));
}

/// What was found first is told, though its tile waits for the root to say which of the two is wrong: here nothing leads to a root.
#[test]
fn what_is_wrong_first_is_told_also_where_more_is_wrong_behind_it() {
    let mut flipped = shelf(600);
    flipped.0.get_mut("tile/entries/000").unwrap()[2 + 2 + 5] ^= 1;
    let differs = Err(Broken::Differs(part("tile/0/000", 1)));
    let changed = |change: &dyn Fn(&mut Shelf)| {
        let mut shelf = flipped.clone();
        change(&mut shelf);
        walked(shelf)
    };
    assert_eq!(changed(&|_| ()), Err(Broken::Entry(part("tile/entries/000", 1))));
    assert_eq!(changed(&|shelf| drop(shelf.0.remove("tile/entries/002.p/88"))), differs);
    assert_eq!(changed(&|shelf| drop(shelf.0.remove("tile/0/001"))), differs);
    assert_eq!(changed(&|shelf| shelf.0.get_mut("tile/entries/001").unwrap().truncate(99)), differs);
    assert_eq!(changed(&|shelf| shelf.0.get_mut("tile/0/001").unwrap().push(0)), differs);
    // What is over all of it is before it.
    assert_eq!(changed(&|shelf| drop(shelf.0.remove("tile/1/000.p/2"))), Err(Broken::Missing(part("tile/1/000.p/2", 0))));
}

#[test]
fn entry_and_tile_changed_together_are_noticed_by_the_root() {
    let mut forged = shelf(300);
    let bundle = forged.0.get_mut("tile/entries/000").unwrap();
    bundle[2 + 2] ^= 1;
    let forged_entry = bundle[4..4 + 37].to_vec();
    let mut both = forged.clone();
    both.0.get_mut("tile/0/000").unwrap()[Hash::BYTES..2 * Hash::BYTES].copy_from_slice(&Hash::of_leaf(&forged_entry).0);
    // The tile of level 1 is still the one of the whole log.
    assert_eq!(walked(both.clone()), Err(Broken::Tile(part("tile/1/000.p/1", 0))));
    let (tree, signed) = (grown(300).0, checkpoint(&both));
    assert_eq!(signed.root, tree.root());
    both.0.get_mut("tile/0/000").unwrap()[5 * Hash::BYTES] ^= 1;
    assert_eq!(walked(both), Err(Broken::Both(part("tile/0/000", 5))));
}

fn checkpoint(shelf: &Shelf) -> Checkpoint {
    Checkpoint::unverified(&shelf.0["checkpoint"]).unwrap()
}

#[test]
fn a_log_without_upper_tiles_that_was_rewritten_whole_has_another_root() {
    let mut rewritten = shelf(200);
    let other = shelf(201);
    rewritten.0.insert("checkpoint".to_owned(), other.0["checkpoint"].clone());
    assert_eq!(walked(rewritten), Err(Broken::Missing(part("tile/entries/000.p/201", 0))));
    let forged = Checkpoint { origin: ORIGIN.to_owned(), size: 200, root: Hash::of_leaf(b"x") };
    let mut forged_root = shelf(200);
    forged_root.0.insert("checkpoint".to_owned(), forged.sign(&signer()).into_bytes());
    assert_eq!(walked(forged_root), Err(Broken::Root { found: grown(200).0.root(), signed: forged.root }));
}

#[test]
fn each_file_that_is_gone_or_cut_or_longer_is_noticed() {
    let whole = shelf(600);
    for path in whole.0.keys() {
        let without = Shelf(whole.0.clone().into_iter().filter(|(other, _)| other != path).collect());
        let Err(Broken::Missing(missing)) = walked(without) else { panic!("{path} is gone and nobody notices") };
        assert_eq!(&missing.path, path);
        for cut in [0, 1, whole.0[path].len() / 2, whole.0[path].len() - 1] {
            let mut shorter = whole.clone();
            shorter.0.get_mut(path).unwrap().truncate(cut);
            assert!(walked(shorter).is_err(), "{path} cut to {cut}");
        }
        let mut longer = whole.clone();
        longer.0.get_mut(path).unwrap().push(0);
        assert!(walked(longer).is_err(), "{path} with a byte more");
    }
}

#[test]
fn entries_in_another_order_are_noticed() {
    let mut shelf = shelf(300);
    let bundle = shelf.0.get_mut("tile/entries/000").unwrap();
    // Entries 1 and 2 change places.
    let (first, second) = (bundle[2..2 + 39].to_vec(), bundle[41..41 + 76].to_vec());
    bundle[2..2 + 39 + 76].copy_from_slice(&[second, first].concat());
    assert_eq!(walked(shelf), Err(Broken::Entry(part("tile/entries/000", 1))));
}

#[test]
fn a_checkpoint_of_another_key_is_not_believed() {
    let mut shelf = shelf(10);
    let root = grown(10).0.root();
    let stranger = Signer::new(ORIGIN, &[1; 32]).unwrap();
    let signed = Checkpoint { origin: ORIGIN.to_owned(), size: 10, root }.sign(&stranger);
    shelf.0.insert("checkpoint".to_owned(), signed.into_bytes());
    assert_eq!(walked(shelf), Err(Broken::Checkpoint(BadCheckpoint::Note(BadNote::Unsigned))));
}

/// Any bit of any file: there is nothing in a log that can be changed without notice.
#[test]
fn every_flipped_bit_is_noticed() {
    let whole = shelf(300);
    let mut flips = 0;
    for (path, bytes) in &whole.0 {
        for at in (0..bytes.len()).step_by(1 + bytes.len() / 150) {
            let mut changed = whole.clone();
            changed.0.get_mut(path).unwrap()[at] ^= 1 << (at % 8);
            assert!(walked(changed).is_err(), "{path}, byte {at}");
            flips += 1;
        }
    }
    assert!(flips > 500, "{flips}");
}
