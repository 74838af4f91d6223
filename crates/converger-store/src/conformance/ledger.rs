//! Stories about the ledger: one entry per decision (C5), append-only (C6), and no entry for what was not written.

use converger_core::apply::{Freeze, Hold, OperationEnd, RunId, Slug};
use converger_core::artifact::Digest;
use converger_core::evidence::{LedgerEntry, parse_entry};
use converger_core::testing::some_inputs;
use converger_ledger::{LogBuilder, LogHash, Tile};

use super::{
    OperationSample, StoreFixture, StoreStory, StoryResult, block_on, expect_equal, expect_readable, expect_refused, expect_written,
};
use crate::{Batch, CommitAck, LIST_MAX, LedgerHead, LedgerHeads, Store, StoreReader, StoreRefusal, StoreWrite};

pub(super) fn stories<S: StoreFixture>() -> Vec<StoreStory<S>> {
    vec![
        ("each decision has one entry", one_entry_per_decision),
        ("what is not written has no entry", no_entry_without_write),
        ("the ledger only extends", ledger_only_extends),
        ("decisions that only the ledger records", decisions_without_table),
        ("a ledger names one key", one_signing_key),
        ("each resync and each restore begins a later epoch", epochs_only_grow),
        ("pruning is recorded, and nothing that may be needed is pruned", prune_is_recorded),
    ]
}

/// All entries, read in pages.
fn read_all_entries(store: &impl Store) -> Result<Vec<Vec<u8>>, String> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        let page = expect_readable("entries", block_on(store.entries(all.len() as u64, 100)))?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

fn read_parsed_entries(store: &impl Store) -> Result<Vec<LedgerEntry>, String> {
    read_all_entries(store)?.iter().map(|bytes| parse_entry(bytes).map_err(|error| format!("an entry: {error}"))).collect()
}

fn one_entry_per_decision<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(40));
    expect_equal("the heads of an empty ledger", expect_readable("heads", block_on(store.heads()))?, LedgerHeads::default())?;
    let (operation, environment, vmid) = (sample.operation(1, 1), sample.environment(), sample.vmid(9));
    let (end_record, run) = (sample.end_record(&operation, OperationEnd::Held), sample.run());
    let hold = Hold { environment: environment.clone(), vmid, by: "ann".into(), reason: "a disk".into(), at_ms: 5 };
    let freeze = Freeze { environment: environment.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let plan =
        LedgerEntry::PlanMade { run: run.id.clone(), plan: run.plan, proposal: run.plan, judgement: Digest::of_bytes(b"x"), at_ms: 2 };
    let records = [sample.intent_record(&operation), sample.sending_record(&operation), sample.task_record(&operation), end_record];
    let (release, thaw) = ((environment.clone(), "bob", 7), (environment, "bob", 8));
    expect_written(&store, "a run", sample.start_write().with(StoreWrite::blob(b"{}".to_vec())).with(StoreWrite::decision(plan.clone())))?;
    for record in &records {
        expect_written(&store, "a record", record.clone())?;
    }
    expect_written(&store, "a hold and a freeze", Batch::from(StoreWrite::Hold(hold.clone())).with(StoreWrite::Freeze(freeze.clone())))?;
    let released = StoreWrite::Release { environment: release.0.clone(), vmid, by: release.1.into(), at_ms: release.2 };
    expect_written(
        &store,
        "the end of it",
        Batch::from(released).with(StoreWrite::Thaw { environment: thaw.0.clone(), by: thaw.1.into(), at_ms: thaw.2 }),
    )?;
    expect_written(&store, "the end of the run", StoreWrite::RunEnded { id: run.id.clone(), end: OperationEnd::Held, at_ms: 9 })?;
    let binding = LedgerEntry::Binding(OperationSample::binding(&run.environment));
    let mut wanted = vec![binding, LedgerEntry::RunStarted { run: run.clone(), inputs: some_inputs() }, plan];
    wanted.extend(records.map(LedgerEntry::Record));
    wanted.extend([LedgerEntry::Hold(hold), LedgerEntry::Freeze(freeze)]);
    wanted.push(LedgerEntry::Release { environment: release.0, guest: vmid, by: release.1.into(), at_ms: release.2 });
    wanted.push(LedgerEntry::Thaw { environment: thaw.0, by: thaw.1.into(), at_ms: thaw.2 });
    wanted.push(LedgerEntry::RunEnded { run: run.id, end: OperationEnd::Held, at_ms: 9 });
    expect_equal("the entries", read_parsed_entries(&store)?, wanted.clone())?;
    expect_equal("the entries for the next process", read_parsed_entries(&fixture.reopen_store(store))?, wanted)
}

fn no_entry_without_write<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(41));
    let operation = sample.one_shot(1, 1, "key-1", "it");
    let end_record = sample.end_record(&operation, OperationEnd::Done);
    expect_written(&store, "a life", sample.start_write().with(sample.intent_record(&operation)).with(end_record))?;
    let before = (read_all_entries(&store)?, expect_readable("heads", block_on(store.heads()))?);
    let end_write = StoreWrite::RunEnded { id: sample.run().id, end: OperationEnd::Done, at_ms: 9 };
    let id = sample.run().id;
    expect_refused(&store, "two ends of a run", Batch::from(end_write.clone()).with(end_write), StoreRefusal::RunEnded(id))?;
    let repeated = block_on(store.commit(sample.intent_record(&sample.one_shot(2, 1, "key-1", "it")).into()));
    expect_equal("a repeated request", repeated, Ok(CommitAck::Repeated { first: operation.id.clone() }))?;
    expect_written(&store, "a body", StoreWrite::blob(b"{}".to_vec()))?;
    expect_equal("the ledger", (read_all_entries(&store)?, expect_readable("heads", block_on(store.heads()))?), before)
}

/// An entry that a ledger may contain any number of times.
fn recovery_write(number: u64) -> StoreWrite {
    let entry = LedgerEntry::Recovery { environment: OperationSample::new(1).environment(), operations: Box::default(), at_ms: number };
    StoreWrite::decision(entry)
}

fn key_write(number: u64) -> StoreWrite {
    StoreWrite::decision(LedgerEntry::Key { verifier: format!("key-{number}").into(), at_ms: number })
}

fn rekey(previous: &str, verifier: &str) -> StoreWrite {
    let (by, reason) = ("ann".into(), "it was lost".into());
    StoreWrite::decision(LedgerEntry::Rekeyed {
        verifier: verifier.into(),
        previous: previous.into(),
        checkpoint: None,
        by,
        reason,
        at_ms: 1,
    })
}

/// A second key is refused, however far behind the first and also within one batch. An entry that only quotes a key is accepted.
fn one_signing_key<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let store = fixture.new_store();
    let duplicate = Batch::from(recovery_write(0)).with(key_write(1)).with(key_write(2));
    expect_refused(&store, "two keys in one batch", duplicate, StoreRefusal::SecondKey)?;
    expect_equal("the entries", read_all_entries(&store)?.len(), 0)?;
    let quoted =
        LedgerEntry::Resync { by: "\"kind\":\"key\"".into(), reason: "\"kind\":\"key\"".into(), size: 0, root: None, epoch: 2, at_ms: 0 };
    expect_written(&store, "what quotes one", Batch::from(StoreWrite::decision(quoted)))?;
    expect_written(&store, "many words", Batch::new((0..600).map(recovery_write).collect()))?;
    expect_written(&store, "a key", key_write(3))?;
    expect_written(&store, "many words", Batch::new((0..600).map(recovery_write).collect()))?;
    expect_refused(&store, "the same key", key_write(3), StoreRefusal::SecondKey)?;
    let store = fixture.reopen_store(store);
    expect_refused(&store, "another key", key_write(4), StoreRefusal::SecondKey)?;
    expect_refused(&store, "another key behind something", Batch::from(recovery_write(1)).with(key_write(5)), StoreRefusal::SecondKey)?;
    expect_refused(&store, "a rekey of a key that is not named", rekey("key-9", "key-6"), StoreRefusal::OtherKey)?;
    expect_refused(&store, "a rekey by the same key", rekey("key-3", "key-3"), StoreRefusal::OtherKey)?;
    expect_written(&store, "a rekey of the key that is named", rekey("key-3", "key-6"))?;
    expect_refused(&store, "a second rekey of the old key", rekey("key-3", "key-7"), StoreRefusal::OtherKey)?;
    expect_refused(&store, "a rekey back", rekey("key-6", "key-3"), StoreRefusal::OtherKey)?;
    expect_refused(&store, "another key after a rekey", key_write(8), StoreRefusal::SecondKey)?;
    expect_equal("the entries", read_all_entries(&store)?.len(), 1203)
}

fn epoch_entry(is_restore: bool, epoch: u64) -> StoreWrite {
    let (by, reason, size, root, at_ms) = ("ann".into(), "the disk was lost".into(), 3, None, 7);
    StoreWrite::decision(if is_restore {
        LedgerEntry::Restored { by, reason, size, root, epoch, at_ms }
    } else {
        LedgerEntry::Resync { by, reason, size, root, epoch, at_ms }
    })
}

/// The number and its entry are one write: neither is there without the other, and no number is used twice.
fn epochs_only_grow<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let store = fixture.new_store();
    let read = |store: &S::Store| expect_readable("the epoch", block_on(store.epoch()));
    let out_of_order = |now, epoch| StoreRefusal::EpochOutOfOrder { now, epoch };
    expect_equal("the epoch of a new store", read(&store)?, 1)?;
    let environment = OperationSample::new(0).environment();
    let later = |store: &S::Store| {
        expect_readable("the conditions", block_on(store.conditions(environment.clone()))).map(|found| found.later_epoch)
    };
    expect_equal("the later epoch of a new store", later(&store)?, None)?;
    expect_refused(&store, "a resync without a later epoch", epoch_entry(false, 1), out_of_order(1, 1))?;
    expect_refused(&store, "a restore without a later epoch", epoch_entry(true, 1), out_of_order(1, 1))?;
    expect_refused(&store, "a resync that skips an epoch", epoch_entry(false, 3), out_of_order(1, 3))?;
    let undone = Batch::from(epoch_entry(false, 2)).with(epoch_entry(false, 2));
    expect_refused(&store, "the same epoch twice in one batch", undone, out_of_order(2, 2))?;
    expect_equal("the epoch after what was refused", read(&store)?, 1)?;
    expect_equal("the entries of what was refused", read_all_entries(&store)?.len(), 0)?;
    expect_written(&store, "a resync", epoch_entry(false, 2))?;
    expect_equal("the epoch after a resync", read(&store)?, 2)?;
    let store = fixture.reopen_store(store);
    expect_equal("the epoch for the next process", read(&store)?, 2)?;
    expect_written(&store, "a restore in place of a store of epoch 6", epoch_entry(true, 7))?;
    expect_refused(&store, "an earlier epoch", epoch_entry(true, 7), out_of_order(7, 7))?;
    expect_equal("the epoch after a restore", read(&store)?, 7)?;
    expect_equal("the later epoch after a restore", later(&store)?, Some(7))?;
    expect_equal("the entries", read_all_entries(&store)?.len(), 2)
}

/// Tiles become full along the way, and the log matches one that is computed from the entries.
fn ledger_only_extends<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (mut store, mut log_builder, mut number) = (fixture.new_store(), LogBuilder::default(), 0);
    let mut full = Vec::new();
    for length in [1, 2, 252, 1, 1, 255, 88, 400] {
        let batch = Batch::new((number..number + length).map(recovery_write).collect());
        expect_written(&store, "words", batch)?;
        for bytes in expect_readable("entries", block_on(store.entries(number, LIST_MAX)))? {
            log_builder.append(LogHash::of_leaf(&bytes), |tile, hashes, _| full.push((tile, hashes.to_vec())));
        }
        number += length;
        let head = LedgerHead::from_tree(log_builder.tree());
        expect_equal("the heads", expect_readable("heads", block_on(store.heads()))?, LedgerHeads { all: head, durable: head })?;
        store = fixture.reopen_store(store);
    }
    expect_equal("the entries", read_all_entries(&store)?.len() as u64, number)?;
    let partial: Vec<(Tile, Vec<LogHash>)> = log_builder.partial_tiles().map(|(tile, hashes)| (tile, hashes.to_vec())).collect();
    for (tile, hashes) in full.into_iter().chain(partial) {
        let narrow = Tile { width: 1, ..tile };
        expect_equal("the beginning of a tile", expect_readable("hashes", block_on(store.hashes(narrow)))?.as_deref(), hashes.get(..1))?;
        expect_equal("a tile", expect_readable("hashes", block_on(store.hashes(tile)))?, Some(hashes))?;
    }
    expect_equal("a tile beyond the end", expect_readable("hashes", block_on(store.hashes(Tile { level: 0, index: 4, width: 1 })))?, None)?;
    expect_equal(
        "a tile wider than the log",
        expect_readable("hashes", block_on(store.hashes(Tile { level: 0, index: 3, width: 233 })))?,
        None,
    )?;
    expect_equal("entries beyond the end", expect_readable("entries", block_on(store.entries(number, 9)))?, Vec::new())
}

fn prune_is_recorded<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(43));
    let (one, two) = (Digest::of_bytes(b"one"), Digest::of_bytes(b"two"));
    let prune =
        |digests: &[Digest], seen, by: &str| StoreWrite::Prune { digests: digests.into(), seen, by: by.into(), before_ms: 4, at_ms: 5 };
    expect_written(
        &store,
        "what is kept",
        sample.start_write().with(StoreWrite::blob(b"one".to_vec())).with(StoreWrite::blob(b"two".to_vec())),
    )?;
    expect_refused(&store, "nothing", prune(&[], 2, "ann"), StoreRefusal::Empty)?;
    expect_refused(&store, "a blank author", prune(&[one], 2, " "), StoreRefusal::NotStorable)?;
    expect_refused(&store, "a search from before the run", prune(&[one], 0, "ann"), StoreRefusal::LedgerGrown { seen: 0, now: 2 })?;
    let batch = Batch::from(recovery_write(1)).with(prune(&[one], 2, "ann"));
    expect_refused(&store, "a search from before its own batch", batch, StoreRefusal::LedgerGrown { seen: 2, now: 3 })?;
    let unknown = Digest::of_bytes(b"strange");
    expect_refused(&store, "what is not kept", prune(&[one, unknown], 2, "ann"), StoreRefusal::NotKept(unknown))?;
    expect_equal("what is kept", expect_readable("a blob", block_on(store.blob(one)))?, Some(b"one".to_vec()))?;
    expect_written(&store, "one digest, given twice", prune(&[one, one], 2, "ann"))?;
    let undone = Batch::from(prune(&[two], 3, "ann")).with(prune(&[two], 4, "ann"));
    expect_refused(&store, "the same again in one batch", undone, StoreRefusal::NotKept(two))?;
    let store = fixture.reopen_store(store);
    expect_equal("what was pruned", expect_readable("a blob", block_on(store.blob(one)))?, None)?;
    expect_equal("what is kept", expect_readable("a blob", block_on(store.blob(two)))?, Some(b"two".to_vec()))?;
    let entry = LedgerEntry::Pruned { by: "ann".into(), before_ms: 4, digests: [one, one].into(), at_ms: 5 };
    expect_equal("its entry", read_parsed_entries(&store)?.pop(), Some(entry))?;
    expect_written(&store, "it is kept again", StoreWrite::blob(b"one".to_vec()))?;
    expect_equal("what is kept again", expect_readable("a blob", block_on(store.blob(one)))?, Some(b"one".to_vec()))
}

fn decisions_without_table<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(42));
    let plan_write = |run: RunId| {
        StoreWrite::decision(LedgerEntry::PlanMade {
            run,
            plan: sample.run().plan,
            proposal: sample.run().plan,
            judgement: Digest::of_bytes(b"x"),
            at_ms: 2,
        })
    };
    let id = sample.run().id;
    expect_refused(&store, "a plan of an unknown run", plan_write(id.clone()), StoreRefusal::RunUnknown(id.clone()))?;
    expect_written(&store, "a run", sample.start_write())?;
    expect_written(&store, "a plan", plan_write(id.clone()))?;
    let intent = LedgerEntry::Record(sample.intent_record(&sample.operation(1, 1)));
    expect_refused(
        &store,
        "an intent without its journal record",
        StoreWrite::decision(intent),
        StoreRefusal::NotStandalone { kind: "intent" },
    )?;
    let end_entry = LedgerEntry::RunEnded { run: id.clone(), end: OperationEnd::Done, at_ms: 3 };
    expect_refused(&store, "an end without its run", StoreWrite::decision(end_entry), StoreRefusal::NotStandalone { kind: "run-ended" })?;
    let how = Slug::new("typed").ok_or("a word")?;
    let names = (0..60).map(|_| "\u{1}".repeat(4000).into()).collect();
    let long = LedgerEntry::Approved { run: id.clone(), proposal: sample.run().plan, by: "ann".into(), how, names, at_ms: 4 };
    expect_refused(&store, "an entry that is too long", StoreWrite::decision(long), StoreRefusal::EntryTooLong { kind: "approval" })?;
    let late = LedgerEntry::Key { verifier: "x".into(), at_ms: u64::MAX };
    expect_refused(&store, "a time that is too large", StoreWrite::decision(late), StoreRefusal::NotStorable)?;
    expect_written(&store, "the end", StoreWrite::RunEnded { id: id.clone(), end: OperationEnd::Done, at_ms: 5 })?;
    expect_refused(&store, "a plan of a run that has ended", plan_write(id.clone()), StoreRefusal::RunEnded(id))?;
    expect_equal("the entries", read_all_entries(&store)?.len(), 4)
}
