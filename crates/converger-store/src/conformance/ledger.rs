//! Stories of the ledger: one entry for each decision (C5), which is only ever extended (C6), and nothing for what was not written.

use converger_core::apply::{End, Freeze, Hold, RunId, Word};
use converger_core::artifact::Digest;
use converger_core::evidence::{Entry, parse_entry};
use converger_core::testing::some_inputs;
use converger_ledger::{Growth, Hash, Tile};

use super::{Sample, Stage, Story, Told, now, read, refused, same, taken};
use crate::{Batch, Head, Heads, LIST_MAX, Receipt, Refused, Store, Write};

pub(super) fn stories<S: Stage>() -> Vec<Story<S>> {
    vec![
        ("each decision has one entry", one_each),
        ("what is not written has no entry", none),
        ("the ledger only extends", extends),
        ("what stands in the ledger alone", alone),
        ("a ledger names one key", one_key),
        ("what is let go is named, and nothing that may be needed", pruned),
    ]
}

/// All entries, read in pages.
fn entries(store: &impl Store) -> Result<Vec<Vec<u8>>, String> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        let page = read("entries", now(store.entries(all.len() as u64, 100)))?;
        if page.is_empty() {
            return Ok(all);
        }
        all.extend(page);
    }
}

fn parsed(store: &impl Store) -> Result<Vec<Entry>, String> {
    entries(store)?.iter().map(|bytes| parse_entry(bytes).map_err(|error| format!("an entry: {error}"))).collect()
}

fn one_each<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(40));
    same("the heads of an empty ledger", read("heads", now(store.heads()))?, Heads::default())?;
    let (operation, environment, vmid) = (sample.operation(1, 1), sample.environment(), sample.guest(9));
    let (ended, run) = (sample.ended(&operation, End::Held), sample.run());
    let hold = Hold { environment: environment.clone(), vmid, by: "ann".into(), reason: "a disk".into(), at_ms: 5 };
    let freeze = Freeze { environment: environment.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let plan = Entry::PlanMade { run: run.id.clone(), plan: run.plan, judgement: Digest::of_bytes(b"x"), at_ms: 2 };
    let records = [sample.intent(&operation), sample.sending(&operation), sample.tasked(&operation), ended];
    let (release, thaw) = ((environment.clone(), "bob", 7), (environment, "bob", 8));
    taken(&store, "a run", Batch::from(sample.start()).with(Write::blob(b"{}".to_vec())).with(Write::decision(plan.clone())))?;
    for record in &records {
        taken(&store, "a record", record.clone())?;
    }
    taken(&store, "what people say", Batch::from(Write::Hold(hold.clone())).with(Write::Freeze(freeze.clone())))?;
    let released = Write::Release { environment: release.0.clone(), vmid, by: release.1.into(), at_ms: release.2 };
    taken(
        &store,
        "the end of it",
        Batch::from(released).with(Write::Thaw { environment: thaw.0.clone(), by: thaw.1.into(), at_ms: thaw.2 }),
    )?;
    taken(&store, "the end of the run", Write::RunEnded { id: run.id.clone(), end: End::Held, at_ms: 9 })?;
    let binding = Entry::Binding(Sample::binding(&run.environment));
    let mut wanted = vec![binding, Entry::RunStarted { run: run.clone(), inputs: some_inputs() }, plan];
    wanted.extend(records.map(Entry::Record));
    wanted.extend([Entry::Hold(hold), Entry::Freeze(freeze)]);
    wanted.push(Entry::Release { environment: release.0, guest: vmid, by: release.1.into(), at_ms: release.2 });
    wanted.push(Entry::Thaw { environment: thaw.0, by: thaw.1.into(), at_ms: thaw.2 });
    wanted.push(Entry::RunEnded { run: run.id, end: End::Held, at_ms: 9 });
    same("the entries", parsed(&store)?, wanted.clone())?;
    same("the entries for the next process", parsed(&stage.reopened(store))?, wanted)
}

fn none<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(41));
    let operation = sample.one_shot(1, 1, "key-1", "it");
    let ended = sample.ended(&operation, End::Done);
    taken(&store, "a life", Batch::from(sample.start()).with(sample.intent(&operation)).with(ended))?;
    let before = (entries(&store)?, read("heads", now(store.heads()))?);
    let twice = Write::RunEnded { id: sample.run().id, end: End::Done, at_ms: 9 };
    let id = sample.run().id;
    refused(&store, "two ends of a run", Batch::from(twice.clone()).with(twice), Refused::RunEnded(id))?;
    let repeated = now(store.commit(sample.intent(&sample.one_shot(2, 1, "key-1", "it")).into()));
    same("a repeated request", repeated, Ok(Receipt::Repeated { first: operation.id.clone() }))?;
    taken(&store, "a body", Write::blob(b"{}".to_vec()))?;
    same("the ledger", (entries(&store)?, read("heads", now(store.heads()))?), before)
}

/// An entry of which there may be many.
fn word(number: u64) -> Write {
    let entry = Entry::Resync { by: "ann".into(), reason: format!("word {number}").into(), size: number, root: None, at_ms: number };
    Write::decision(entry)
}

fn key(number: u64) -> Write {
    Write::decision(Entry::Key { verifier: format!("key-{number}").into(), at_ms: number })
}

fn rekey(previous: &str, verifier: &str) -> Write {
    let (by, reason) = ("ann".into(), "it was lost".into());
    Write::decision(Entry::Rekeyed { verifier: verifier.into(), previous: previous.into(), checkpoint: None, by, reason, at_ms: 1 })
}

/// Who comes second is refused, however far behind, also within one batch; what only looks like a key is none.
fn one_key<S: Stage>(stage: &mut S) -> Told {
    let store = stage.fresh();
    let twice = Batch::from(word(0)).with(key(1)).with(key(2));
    refused(&store, "two keys in one batch", twice, Refused::SecondKey)?;
    same("the entries", entries(&store)?.len(), 0)?;
    let quoted = Entry::Resync { by: "\"kind\":\"key\"".into(), reason: "\"kind\":\"key\"".into(), size: 0, root: None, at_ms: 0 };
    taken(&store, "what quotes one", Batch::from(Write::decision(quoted)))?;
    taken(&store, "many words", Batch::new((0..600).map(word).collect()))?;
    taken(&store, "a key", key(3))?;
    taken(&store, "many words", Batch::new((0..600).map(word).collect()))?;
    refused(&store, "the same key", key(3), Refused::SecondKey)?;
    let store = stage.reopened(store);
    refused(&store, "another key", key(4), Refused::SecondKey)?;
    refused(&store, "another key behind something", Batch::from(word(1)).with(key(5)), Refused::SecondKey)?;
    refused(&store, "a rekey of a key that is not named", rekey("key-9", "key-6"), Refused::OtherKey)?;
    refused(&store, "a rekey by the same key", rekey("key-3", "key-3"), Refused::OtherKey)?;
    taken(&store, "a rekey of the key that is named", rekey("key-3", "key-6"))?;
    refused(&store, "a second rekey of the old key", rekey("key-3", "key-7"), Refused::OtherKey)?;
    refused(&store, "a rekey back", rekey("key-6", "key-3"), Refused::OtherKey)?;
    refused(&store, "another key after a rekey", key(8), Refused::SecondKey)?;
    same("the entries", entries(&store)?.len(), 1203)
}

/// Tiles become full on the way, and the log is what its own mathematics says of the entries.
fn extends<S: Stage>(stage: &mut S) -> Told {
    let (mut store, mut growth, mut number) = (stage.fresh(), Growth::default(), 0);
    let mut full = Vec::new();
    for length in [1, 2, 252, 1, 1, 255, 88, 400] {
        let batch = Batch::new((number..number + length).map(word).collect());
        taken(&store, "words", batch)?;
        for bytes in read("entries", now(store.entries(number, LIST_MAX)))? {
            growth.append(Hash::of_leaf(&bytes), |tile, hashes, _| full.push((tile, hashes.to_vec())));
        }
        number += length;
        let head = Head::of(growth.tree());
        same("the heads", read("heads", now(store.heads()))?, Heads { all: head, durable: head })?;
        store = stage.reopened(store);
    }
    same("the entries", entries(&store)?.len() as u64, number)?;
    let partial: Vec<(Tile, Vec<Hash>)> = growth.partial().map(|(tile, hashes)| (tile, hashes.to_vec())).collect();
    for (tile, hashes) in full.into_iter().chain(partial) {
        let narrow = Tile { width: 1, ..tile };
        same("the beginning of a tile", read("hashes", now(store.hashes(narrow)))?.as_deref(), hashes.get(..1))?;
        same("a tile", read("hashes", now(store.hashes(tile)))?, Some(hashes))?;
    }
    same("a tile that is not there", read("hashes", now(store.hashes(Tile { level: 0, index: 4, width: 1 })))?, None)?;
    same("a tile that is not so wide", read("hashes", now(store.hashes(Tile { level: 0, index: 3, width: 233 })))?, None)?;
    same("entries beyond the end", read("entries", now(store.entries(number, 9)))?, Vec::new())
}

fn pruned<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(43));
    let (one, two) = (Digest::of_bytes(b"one"), Digest::of_bytes(b"two"));
    let prune = |digests: &[Digest], seen, by: &str| Write::Prune { digests: digests.into(), seen, by: by.into(), before_ms: 4, at_ms: 5 };
    taken(&store, "what is kept", Batch::from(sample.start()).with(Write::blob(b"one".to_vec())).with(Write::blob(b"two".to_vec())))?;
    refused(&store, "nothing", prune(&[], 2, "ann"), Refused::Empty)?;
    refused(&store, "nobody", prune(&[one], 2, " "), Refused::NotStorable)?;
    refused(&store, "a look of before the run", prune(&[one], 0, "ann"), Refused::LedgerGrown { seen: 0, now: 2 })?;
    let grown = Batch::from(word(1)).with(prune(&[one], 2, "ann"));
    refused(&store, "a look of before its own batch", grown, Refused::LedgerGrown { seen: 2, now: 3 })?;
    let strange = Digest::of_bytes(b"strange");
    refused(&store, "what is not kept", prune(&[one, strange], 2, "ann"), Refused::NotKept(strange))?;
    same("what is kept", read("a blob", now(store.blob(one)))?, Some(b"one".to_vec()))?;
    taken(&store, "one, said twice", prune(&[one, one], 2, "ann"))?;
    let undone = Batch::from(prune(&[two], 3, "ann")).with(prune(&[two], 4, "ann"));
    refused(&store, "the same again in one batch", undone, Refused::NotKept(two))?;
    let store = stage.reopened(store);
    same("what is let go", read("a blob", now(store.blob(one)))?, None)?;
    same("what is kept", read("a blob", now(store.blob(two)))?, Some(b"two".to_vec()))?;
    let entry = Entry::Pruned { by: "ann".into(), before_ms: 4, digests: [one, one].into(), at_ms: 5 };
    same("its entry", parsed(&store)?.pop(), Some(entry))?;
    taken(&store, "it is kept again", Write::blob(b"one".to_vec()))?;
    same("what is kept again", read("a blob", now(store.blob(one)))?, Some(b"one".to_vec()))
}

fn alone<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(42));
    let made = |run: RunId| Write::decision(Entry::PlanMade { run, plan: sample.run().plan, judgement: Digest::of_bytes(b"x"), at_ms: 2 });
    let id = sample.run().id;
    refused(&store, "a plan of no run", made(id.clone()), Refused::RunUnknown(id.clone()))?;
    taken(&store, "a run", sample.start())?;
    taken(&store, "a plan", made(id.clone()))?;
    let intent = Entry::Record(sample.intent(&sample.operation(1, 1)));
    refused(&store, "an intent that no journal has", Write::decision(intent), Refused::NotByItself { kind: "intent" })?;
    let ended = Entry::RunEnded { run: id.clone(), end: End::Done, at_ms: 3 };
    refused(&store, "an end that no run has", Write::decision(ended), Refused::NotByItself { kind: "run-ended" })?;
    let how = Word::new("typed").ok_or("a word")?;
    let names = (0..60).map(|_| "\u{1}".repeat(4000).into()).collect();
    let long = Entry::Approved { run: id.clone(), plan: sample.run().plan, by: "ann".into(), how, names, at_ms: 4 };
    refused(&store, "what is too long", Write::decision(long), Refused::EntryTooLong { kind: "approval" })?;
    let late = Entry::Key { verifier: "x".into(), at_ms: u64::MAX };
    refused(&store, "a time beyond all bounds", Write::decision(late), Refused::NotStorable)?;
    taken(&store, "the end", Write::RunEnded { id: id.clone(), end: End::Done, at_ms: 5 })?;
    refused(&store, "a plan of a run that is over", made(id.clone()), Refused::RunEnded(id))?;
    same("the entries", entries(&store)?.len(), 4)
}
