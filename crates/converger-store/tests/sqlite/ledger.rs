//! The ledger in the file: one log for all who write, damage told with its place, and never more said to be durable than is.

use converger_core::evidence::{Entry, Replay, parse_entry};
use converger_ledger::{Growth, Hash};
use converger_store::conformance::{Sample, now};
use converger_store::{Batch, Head, LIST_MAX, Looked, MemoryStore, SqliteStore, Store, Tile, Write};

use super::{open, other, place, settings, write};

/// So many entries of which there may be many.
pub(super) fn words(numbers: std::ops::Range<u64>) -> Batch {
    let word =
        |number| Entry::Resync { by: "ann".into(), reason: format!("word {number}").into(), size: number, root: None, at_ms: number };
    Batch::new(numbers.map(|number| Write::decision(word(number))).collect())
}

/// The head of the log that these entries make.
fn head_of(entries: &[Vec<u8>]) -> Head {
    let mut growth = Growth::default();
    entries.iter().for_each(|entry| growth.append(Hash::of_leaf(entry), |_, _, _| ()));
    Head::of(growth.tree())
}

/// The ledger as whoever verifies it finds it: the entries lead to the root that is recorded, the tiles that are kept are theirs, what was
/// durable is their beginning, and played again they are the journal. The entries.
pub(super) fn check_whole(store: &SqliteStore, what: &str) -> Vec<Entry> {
    let heads = now(store.heads()).expect("read");
    let (mut growth, mut full, mut all, mut replay) = (Growth::default(), Vec::new(), Vec::new(), Replay::default());
    let mut durable = Head::default();
    while growth.tree().size() < heads.all.size {
        let page = now(store.entries(growth.tree().size(), LIST_MAX)).expect("read");
        assert!(!page.is_empty(), "{what}: entry {} is missing", growth.tree().size());
        for bytes in page {
            growth.append(Hash::of_leaf(&bytes), |tile, hashes, _| full.push((tile, hashes.to_vec())));
            durable = if growth.tree().size() == heads.durable.size { Head::of(growth.tree()) } else { durable };
            let entry = parse_entry(&bytes).expect("an entry");
            replay.take(entry.clone()).unwrap_or_else(|misplaced| panic!("{what}: {misplaced}"));
            all.push(entry);
        }
    }
    assert_eq!((Head::of(growth.tree()), durable), (heads.all, heads.durable), "{what}: another root");
    let partial = growth.partial().map(|(tile, hashes)| (tile, hashes.to_vec()));
    for (tile, hashes) in full.into_iter().chain(partial) {
        assert_eq!(now(store.hashes(tile)).expect("read"), Some(hashes), "{what}: {}", tile.path());
    }
    // On purpose by other means than `Agreement`: a fault of that would be found here.
    for (id, history) in replay.operations() {
        assert_eq!(now(store.operation(id.clone())).expect("read").as_ref(), Some(history), "{what}: the journal tells another story");
    }
    all
}

#[test]
fn two_processes_write_one_log() {
    let (_above, directory) = place();
    let (one, two) = (open(&directory), open(&directory));
    for round in 0..40 {
        write(&one, words(round * 20..round * 20 + 7));
        // A batch that is refused leaves the log as it was, whoever asked.
        assert!(now(one.commit(Write::decision(Entry::Key { verifier: "x".into(), at_ms: u64::MAX }).into())).is_err());
        write(&two, words(round * 20 + 7..round * 20 + 20));
    }
    let entries = now(one.entries(0, 1000)).expect("read");
    let times: Vec<u64> = entries.iter().map(|entry| parse_entry(entry).expect("an entry").at_ms()).collect();
    assert_eq!(times, (0..800).collect::<Vec<_>>());
    let heads = now(two.heads()).expect("read");
    assert_eq!((heads.all, heads.durable), (head_of(&entries), head_of(&entries)));
}

#[test]
fn what_is_lost_or_added_at_the_end_is_told_with_its_place() {
    let broken = [
        ("DELETE FROM ledger_entries WHERE seq = 600", "it has 600 entries, and entry 599 is missing"),
        ("DELETE FROM ledger_entries WHERE seq = 513", "entry 512 is missing"),
        ("INSERT INTO ledger_entries VALUES (601, CAST('{}' AS BLOB), row_sum(601, CAST('{}' AS BLOB)))", "entry 600 is not of it"),
        ("DELETE FROM ledger_head", "it has 0 entries, and entry 0 is not of it"),
        ("DELETE FROM ledger_tiles WHERE place = 1", "tile 1 of level 0, which is over the entries from 256 on, is missing"),
        ("DELETE FROM ledger_tiles", "tile 0 of level 0, which is over the entries from 0 on, is missing"),
        (
            "UPDATE ledger_entries SET body = CAST('{}' AS BLOB), sum = row_sum(seq, CAST('{}' AS BLOB)) WHERE seq = 550",
            "its last entries, up to 600, do not lead to its root",
        ),
        ("UPDATE ledger_head SET root = X'00'", ""),
        ("UPDATE ledger_head SET size = -1", ""),
    ];
    for (sql, part) in broken {
        let (_above, directory) = place();
        let store = open(&directory);
        write(&store, words(0..600));
        drop(store);
        other(&directory.join("converger.db")).execute_batch(sql).expect("SQL");
        let error = SqliteStore::open(&directory, settings()).map(drop).expect_err(sql).to_string();
        assert!(error.contains(part) && error.contains("damaged"), "{sql}: {error}");
    }
}

/// What is missing in the middle is found by whoever reads it, also in a file too large to be looked through at its start.
#[test]
fn a_gap_is_told_to_whoever_reads() {
    let (_above, directory) = place();
    let store = open(&directory);
    write(&store, words(0..600));
    other(store.place()).execute_batch("DELETE FROM ledger_entries WHERE seq = 42").expect("SQL");
    let error = now(store.entries(0, 100)).expect_err("a gap").to_string();
    assert!(error.contains("entry 41 is missing"), "{error}");
    assert_eq!(now(store.entries(42, 100)).expect("behind it").len(), 100);
}

/// A checkpoint over an entry that a power failure takes back would be a lie: a mark is in the log at once and durable with the next batch.
#[test]
fn a_mark_is_in_the_log_and_not_said_to_be_durable() {
    let (_above, directory) = place();
    let (file, twin, sample) = (open(&directory), MemoryStore::new(), Sample::new(1));
    let [first, second] = [1, 2].map(|number| sample.operation(number, number));
    let sizes = || {
        let heads = now(file.heads()).expect("read");
        assert_eq!(now(twin.heads()), Ok(heads), "the twin says the same");
        (heads.all.size, heads.durable.size)
    };
    let both = |batch: Batch| {
        write(&file, batch.clone());
        write(&twin, batch);
    };
    both(Batch::from(sample.start()).with(sample.intent(&first)));
    assert_eq!(sizes(), (3, 3));
    both(sample.sending(&first).into());
    assert_eq!(sizes(), (4, 3));
    let durable = now(file.heads()).expect("read").durable;
    assert_eq!(durable, head_of(&now(file.entries(0, 3)).expect("read")), "the root is that of the durable ones");
    let dark = twin.crash().lose_power();
    assert_eq!(now(dark.heads()).expect("read").all, durable, "the mark is gone, and its entry with it");
    let twin = twin.crash();
    for batch in [Batch::from(sample.intent(&second)), words(0..1)] {
        write(&file, batch.clone());
        write(&twin, batch);
    }
    let heads = now(file.heads()).expect("read");
    assert_eq!((heads.all.size, heads.durable.size, now(twin.heads())), (6, 6, Ok(heads)));
}

/// Names and lengths of what is in a directory.
fn listed(directory: &std::path::Path) -> Vec<(std::ffi::OsString, u64, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry"));
    let mut listed: Vec<_> = entries
        .map(|entry| {
            let bytes = std::fs::read(entry.path()).expect("a file");
            (entry.file_name(), bytes.len() as u64, bytes)
        })
        .collect();
    listed.sort();
    listed
}

/// A store that somebody has open, and a copy of it, are read whole without a byte or a file more.
#[test]
fn whoever_looks_reads_all_of_it_and_changes_nothing() {
    let (above, directory) = place();
    assert!(Looked::open(&directory).expect("nothing there").is_none() && !directory.exists());
    let (store, sample) = (open(&directory), Sample::new(1));
    let body = b"{\"planner\":1}".to_vec();
    let digest = converger_core::artifact::Digest::of_bytes(&body);
    write(&store, words(0..300));
    write(&store, Batch::from(sample.start()).with(Write::blob(body.clone())).with(sample.intent(&sample.operation(1, 1))));
    let tile = Tile { level: 0, index: 0, width: 256 };
    let wanted = (now(store.heads()).expect("read"), now(store.entries(0, 999)).expect("read"), now(store.hashes(tile)).expect("read"));
    let before = listed(&directory);
    assert!(before.iter().any(|(name, length, _)| name == "converger.db-wal" && *length > 0), "somebody has it open");
    let look = |place: &std::path::Path| {
        let looked = Looked::open(place).expect("opens").expect("there");
        assert_eq!((looked.heads().expect("read"), looked.entries(0, 999).expect("read"), looked.hashes(tile).expect("read")), wanted);
        assert_eq!((looked.blob(&digest).expect("read"), looked.damage().expect("read")), (Some(body.clone()), None));
        assert!(looked.operation(&sample.operation(1, 1).id).expect("read").is_some());
    };
    look(&directory);
    look(&directory.join("converger.db"));
    assert_eq!(listed(&directory), before, "nothing was changed");
    drop(store);
    let copy = above.path().join("copy.db");
    std::fs::copy(directory.join("converger.db"), &copy).expect("copied");
    // Whoever closed it last may have been the one who only reads.
    let _ = std::fs::copy(directory.join("converger.db-wal"), above.path().join("copy.db-wal"));
    look(&copy);
    std::fs::write(&copy, b"not ours").expect("written");
    assert!(Looked::open(&copy).is_err());
}
