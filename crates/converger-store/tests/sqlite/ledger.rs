//! The ledger in the file: all processes share one log, damage is reported with its position, and the durable size is never too large.

use converger_core::evidence::{LedgerEntry, LedgerReplay, parse_entry};
use converger_ledger::{LogBuilder, LogHash};
use converger_store::conformance::{OperationSample, block_on};
use converger_store::{
    Batch, LIST_MAX, LedgerHead, MemoryStore, OperationFilter, SqliteStore, Store, StoreReader, StoreView, StoreWrite, Tile,
};

use super::{commit_written, open_store, open_unchecked_connection, panicking_settings, state_directory_path};

/// A batch of entries that a ledger may contain any number of times.
pub(super) fn recovery_batch(numbers: std::ops::Range<u64>) -> Batch {
    let environment = OperationSample::new(1).environment();
    let recovery = |at_ms| LedgerEntry::Recovery { environment: environment.clone(), operations: Box::default(), at_ms };
    Batch::new(numbers.map(|number| StoreWrite::decision(recovery(number))).collect())
}

/// The head of the log that these entries make.
fn compute_head(entries: &[Vec<u8>]) -> LedgerHead {
    let mut log_builder = LogBuilder::default();
    entries.iter().for_each(|entry| log_builder.append(LogHash::of_leaf(entry), |_, _, _| ()));
    LedgerHead::from_tree(log_builder.tree())
}

/// Verifies the ledger and returns its entries: they give the recorded root, the stored tiles match them, the durable part is a prefix of
/// them, and their replay gives the journal.
pub(super) fn check_ledger_intact(store: &SqliteStore, what: &str) -> Vec<LedgerEntry> {
    let heads = block_on(store.heads()).expect("read");
    let (mut log_builder, mut full, mut all, mut replay) = (LogBuilder::default(), Vec::new(), Vec::new(), LedgerReplay::default());
    let mut durable = LedgerHead::default();
    while log_builder.tree().size() < heads.all.size {
        let page = block_on(store.entries(log_builder.tree().size(), LIST_MAX)).expect("read");
        assert!(!page.is_empty(), "{what}: entry {} is missing", log_builder.tree().size());
        for bytes in page {
            log_builder.append(LogHash::of_leaf(&bytes), |tile, hashes, _| full.push((tile, hashes.to_vec())));
            durable = if log_builder.tree().size() == heads.durable.size { LedgerHead::from_tree(log_builder.tree()) } else { durable };
            let entry = parse_entry(&bytes).expect("an entry");
            replay.apply_entry(entry.clone()).unwrap_or_else(|misplaced| panic!("{what}: {misplaced}"));
            all.push(entry);
        }
    }
    assert_eq!((LedgerHead::from_tree(log_builder.tree()), durable), (heads.all, heads.durable), "{what}: another root");
    let partial = log_builder.partial_tiles().map(|(tile, hashes)| (tile, hashes.to_vec()));
    for (tile, hashes) in full.into_iter().chain(partial) {
        assert_eq!(block_on(store.hashes(tile)).expect("read"), Some(hashes), "{what}: {}", tile.path());
    }
    // Deliberately without `JournalCheck`, so that a bug in it would be found here.
    for (id, history) in replay.operations() {
        assert_eq!(block_on(store.operation(id.clone())).expect("read").as_ref(), Some(history), "{what}: the journal differs");
    }
    all
}

#[test]
fn two_processes_share_one_ledger() {
    let (_above, directory) = state_directory_path();
    let (one, two) = (open_store(&directory), open_store(&directory));
    for round in 0..40 {
        commit_written(&one, recovery_batch(round * 20..round * 20 + 7));
        // A refused batch leaves the log as it was.
        assert!(block_on(one.commit(StoreWrite::decision(LedgerEntry::Key { verifier: "x".into(), at_ms: u64::MAX }).into())).is_err());
        commit_written(&two, recovery_batch(round * 20 + 7..round * 20 + 20));
    }
    let entries = block_on(one.entries(0, 1000)).expect("read");
    let times: Vec<u64> = entries.iter().map(|entry| parse_entry(entry).expect("an entry").at_ms()).collect();
    assert_eq!(times, (0..800).collect::<Vec<_>>());
    let heads = block_on(two.heads()).expect("read");
    assert_eq!((heads.all, heads.durable), (compute_head(&entries), compute_head(&entries)));
}

#[test]
fn reports_entries_lost_or_added_at_the_end() {
    let broken = [
        ("DELETE FROM ledger_entries WHERE seq = 600", "it has 600 entries, and entry 599 is missing"),
        ("DELETE FROM ledger_entries WHERE seq = 513", "entry 512 is missing"),
        ("INSERT INTO ledger_entries VALUES (601, CAST('{}' AS BLOB), row_sum(601, CAST('{}' AS BLOB)))", "entry 600 is beyond its end"),
        ("DELETE FROM ledger_head", "it has 0 entries, and entry 0 is beyond its end"),
        ("DELETE FROM ledger_tiles WHERE place = 1", "tile 1 of level 0, which covers the entries from 256 on, is missing"),
        ("DELETE FROM ledger_tiles", "tile 0 of level 0, which covers the entries from 0 on, is missing"),
        (
            "UPDATE ledger_entries SET body = CAST('{}' AS BLOB), sum = row_sum(seq, CAST('{}' AS BLOB)) WHERE seq = 550",
            "its last entries, up to 600, do not match its root",
        ),
        ("UPDATE ledger_head SET root = X'00'", ""),
        ("UPDATE ledger_head SET size = -1", ""),
    ];
    for (sql, part) in broken {
        let (_above, directory) = state_directory_path();
        let store = open_store(&directory);
        commit_written(&store, recovery_batch(0..600));
        drop(store);
        open_unchecked_connection(&directory.join("converger.db")).execute_batch(sql).expect("SQL");
        let error = SqliteStore::open(&directory, panicking_settings()).map(drop).expect_err(sql).to_string();
        assert!(error.contains(part) && error.contains("damaged"), "{sql}: {error}");
    }
}

/// A gap in the middle is found when the entries are read, even if the file was too large to be checked completely at startup.
#[test]
fn reading_reports_a_gap() {
    let (_above, directory) = state_directory_path();
    let store = open_store(&directory);
    commit_written(&store, recovery_batch(0..600));
    open_unchecked_connection(store.path()).execute_batch("DELETE FROM ledger_entries WHERE seq = 42").expect("SQL");
    let error = block_on(store.entries(0, 100)).expect_err("a gap").to_string();
    assert!(error.contains("entry 41 is missing"), "{error}");
    assert_eq!(block_on(store.entries(42, 100)).expect("behind it").len(), 100);
}

/// A checkpoint must not cover an entry that a power failure can remove. A sending mark is in the log at once, but durable only with the
/// next batch.
#[test]
fn mark_is_in_the_ledger_but_not_durable() {
    let (_above, directory) = state_directory_path();
    let (file, memory_store, sample) = (open_store(&directory), MemoryStore::new(), OperationSample::new(1));
    let [first, second] = [1, 2].map(|number| sample.operation(number, number));
    let sizes = || {
        let heads = block_on(file.heads()).expect("read");
        assert_eq!(block_on(memory_store.heads()), Ok(heads), "the store in memory gives the same heads");
        (heads.all.size, heads.durable.size)
    };
    let both = |batch: Batch| {
        commit_written(&file, batch.clone());
        commit_written(&memory_store, batch);
    };
    both(sample.start_write().with(sample.intent_record(&first)));
    assert_eq!(sizes(), (3, 3));
    both(sample.sending_record(&first).into());
    assert_eq!(sizes(), (4, 3));
    let durable = block_on(file.heads()).expect("read").durable;
    assert_eq!(durable, compute_head(&block_on(file.entries(0, 3)).expect("read")), "the root is that of the durable ones");
    let dark = memory_store.crash().lose_power();
    assert_eq!(block_on(dark.heads()).expect("read").all, durable, "the mark and its entry are gone");
    let memory_store = memory_store.crash();
    for batch in [Batch::from(sample.intent_record(&second)), recovery_batch(0..1)] {
        commit_written(&file, batch.clone());
        commit_written(&memory_store, batch);
    }
    let heads = block_on(file.heads()).expect("read");
    assert_eq!((heads.all.size, heads.durable.size, block_on(memory_store.heads())), (6, 6, Ok(heads)));
}

/// Names, lengths and contents of the files in a directory.
fn list_directory(directory: &std::path::Path) -> Vec<(std::ffi::OsString, u64, Vec<u8>)> {
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

/// The answers to every read, in words.
fn read_all(store: &impl StoreReader) -> [String; 19] {
    let (sample, tile) = (OperationSample::new(1), Tile { level: 0, index: 0, width: 256 });
    let (environment, operation) = (|| sample.environment(), sample.operation(1, 1));
    let key = converger_core::apply::IdempotencyKey::new("key-1").expect("a key");
    [
        format!("{:?}", block_on(store.operation(operation.id.clone())).expect("read").expect("there")),
        format!("{:?}", block_on(store.open_operations(environment())).expect("read")),
        format!("{:?}", block_on(store.operations(OperationFilter::default(), 9)).expect("read")),
        format!("{:?}", block_on(store.guest_operations(environment(), vec![operation.guest.vmid])).expect("read")),
        format!("{:?}", block_on(store.operations_of_tasks(environment(), vec![sample.task(&operation)])).expect("read")),
        format!("{:?}", block_on(store.operation_of_key(environment(), key)).expect("read")),
        format!("{:?}", block_on(store.run(sample.run().id)).expect("read").expect("there")),
        format!("{:?}", block_on(store.runs(environment(), 9)).expect("read")),
        format!("{:?}", block_on(store.conditions(environment())).expect("read")),
        format!("{:?}", block_on(store.holds(environment())).expect("read")),
        format!("{:?}", block_on(store.freeze(environment())).expect("read")),
        format!("{:?}", block_on(store.names()).expect("read")),
        format!("{:?}", block_on(store.journal_overview()).expect("read")),
        format!("{:?}", block_on(store.digests()).expect("read")),
        format!("{:?}", block_on(store.heads()).expect("read")),
        format!("{:?}", block_on(store.entries(0, 999)).expect("read")),
        format!("{:?}", block_on(store.hashes(tile)).expect("read").expect("there")),
        format!("{:?}", block_on(store.full_tile(tile)).expect("read").expect("there")),
        format!("{:?}", block_on(store.ledger_rows()).expect("read")),
    ]
}

/// A store that is open, and a copy of it, are read completely without changing a byte or adding a file.
#[test]
fn store_view_reads_everything_and_changes_nothing() {
    let (above, directory) = state_directory_path();
    assert!(StoreView::open(&directory).expect("nothing there").is_none() && !directory.exists());
    let (store, sample) = (open_store(&directory), OperationSample::new(1));
    let body = b"{\"planner\":1}".to_vec();
    let digest = converger_core::artifact::Digest::of_bytes(&body);
    commit_written(&store, recovery_batch(0..300));
    commit_written(&store, sample.start_write().with(StoreWrite::blob(body.clone())).with(sample.intent_record(&sample.operation(1, 1))));
    let wanted = read_all(&store);
    let before = list_directory(&directory);
    assert!(before.iter().any(|(name, length, _)| name == "converger.db-wal" && *length > 0), "the store is open");
    let check_view = |path: &std::path::Path| {
        let view = StoreView::open(path).expect("opens").expect("there");
        assert_eq!(read_all(&view), wanted);
        assert_eq!((block_on(view.blob(digest)), view.find_damage()), (Ok(Some(body.clone())), Ok(None)));
    };
    check_view(&directory);
    check_view(&directory.join("converger.db"));
    assert_eq!(list_directory(&directory), before, "nothing was changed");
    drop(store);
    let copy = above.path().join("copy.db");
    std::fs::copy(directory.join("converger.db"), &copy).expect("copied");
    // The last connection that was closed may have been read-only, and then the WAL is still there.
    let _ = std::fs::copy(directory.join("converger.db-wal"), above.path().join("copy.db-wal"));
    check_view(&copy);
    std::fs::write(&copy, b"not ours").expect("written");
    assert!(StoreView::open(&copy).is_err());
}
