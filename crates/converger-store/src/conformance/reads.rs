//! Stories of what a run, a service and the commands read: conditions of a plan, operations of guests, the journal as a whole, stored rows.

use converger_core::apply::{
    EnvironmentNames, EnvironmentRename, Freeze, Hold, Operation, OperationEnd, OperationHistory, Resolution, RunStart,
};
use converger_core::artifact::Digest;
use converger_core::evidence::{FIRST_EPOCH, LedgerEntry, LedgerReplay, parse_entry};
use converger_core::guest::EnvironmentName;
use converger_ledger::Tile;

use super::{
    OperationSample, StoreFixture, StoreStory, StoryResult, block_on, expect_equal, expect_readable, expect_refused, expect_written,
};
use crate::{
    Batch, GUEST_OPERATIONS_MAX, HoldHistory, IdempotencyRow, JournalOverview, LedgerIndex, LedgerRows, StoreConditions, StoreReader,
    StoreRefusal, StoreWrite, find_journal_mismatch,
};

pub(super) fn stories<S: StoreFixture>() -> Vec<StoreStory<S>> {
    vec![
        ("conditions of a plan", plan_conditions),
        ("operations of guests", operations_of_guests),
        ("overview of the journal", overview_of_journal),
        ("overview after a refused batch", overview_after_refusal),
        ("the journal matches the ledger", journal_matches_ledger),
        ("stored digests", stored_digests),
        ("stored tiles and rows", stored_tiles),
    ]
}

fn hold(environment: &EnvironmentName, sample: &OperationSample, guest: u64) -> Hold {
    Hold { environment: environment.clone(), vmid: sample.vmid(guest), by: "ann".into(), reason: "disk swap".into(), at_ms: 5 }
}

fn freeze(environment: &EnvironmentName) -> Freeze {
    Freeze { environment: environment.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 }
}

fn release(environment: &EnvironmentName, sample: &OperationSample, guest: u64) -> StoreWrite {
    StoreWrite::Release { environment: environment.clone(), vmid: sample.vmid(guest), by: "bob".into(), at_ms: 7 }
}

fn rename(from: &EnvironmentName, to: &EnvironmentName) -> StoreWrite {
    let (by, reason) = ("ann".into(), "the site moved".into());
    StoreWrite::Rename(EnvironmentRename { from: from.clone(), to: to.clone(), by, reason, at_ms: 20 })
}

fn read_conditions(store: &impl StoreReader, environment: &EnvironmentName) -> Result<StoreConditions, String> {
    expect_readable("conditions", block_on(store.conditions(environment.clone())))
}

fn ids(histories: &[OperationHistory]) -> Vec<String> {
    histories.iter().map(|history| history.id().to_string()).collect()
}

/// Guests 1 to 4: in flight, held, done, and held but resolved by a person.
fn write_operations(store: &impl crate::Store, sample: &mut OperationSample) -> StoryResult {
    expect_written(store, "a run", sample.start_write())?;
    let operations: Vec<Operation> = (1..=4).map(|number| sample.operation(number, number)).collect();
    for operation in &operations {
        expect_written(store, "an intent", sample.intent_record(operation))?;
    }
    for (operation, end) in operations.iter().skip(1).zip([OperationEnd::Held, OperationEnd::Done, OperationEnd::Held]) {
        let record = sample.end_record(operation, end);
        expect_written(store, "an end", record)?;
    }
    expect_written(store, "a resolution", sample.resolution_record(&operations[3], Resolution::Done))
}

fn plan_conditions<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(70));
    let (old, new) = (sample.environment(), EnvironmentName::new("site-b").ok_or("a name")?);
    expect_equal("conditions of nothing", read_conditions(&store, &old)?, StoreConditions::default())?;
    write_operations(&store, &mut sample)?;
    let (held, frozen) = (hold(&old, &sample, 9), freeze(&old));
    expect_written(&store, "a hold and a freeze", Batch::from(StoreWrite::Hold(held.clone())).with(StoreWrite::Freeze(frozen.clone())))?;
    expect_written(&store, "a hold that ends", StoreWrite::Hold(hold(&old, &sample, 8)))?;
    expect_written(&store, "its end", release(&old, &sample, 8))?;
    let found = read_conditions(&store, &old)?;
    expect_equal("unsettled operations", ids(&found.unsettled), vec!["op-1".into(), "op-2".into()])?;
    let names = EnvironmentNames::default();
    let mut wanted = StoreConditions { freeze: Some(frozen), holds: vec![held], names, ..found.clone() };
    wanted.names.bind(OperationSample::binding(&old));
    expect_equal("conditions", found, wanted)?;
    let elsewhere = read_conditions(&store, &sample.other_environment())?;
    expect_equal("conditions elsewhere", (elsewhere.holds.len(), elsewhere.unsettled.len(), elsewhere.freeze), (0, 0, None))?;
    expect_written(&store, "a rename", rename(&old, &new))?;
    let store = fixture.reopen_store(store);
    let (by_old, by_new) = (read_conditions(&store, &old)?, read_conditions(&store, &new)?);
    expect_equal("unsettled operations under the new name", ids(&by_new.unsettled), vec!["op-1".into(), "op-2".into()])?;
    expect_equal("the hold under the new name", by_new.holds.clone(), vec![hold(&new, &sample, 9)])?;
    expect_equal("the freeze under the new name", by_new.freeze.clone(), Some(freeze(&new)))?;
    expect_equal("conditions by the former name", by_old, by_new)
}

fn operations_of_guests<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(71));
    let (old, new) = (sample.environment(), EnvironmentName::new("site-b").ok_or("a name")?);
    expect_written(&store, "a run", sample.start_write())?;
    let rounds = u64::from(GUEST_OPERATIONS_MAX) + 2;
    for number in 0..rounds {
        let operation = sample.operation(number, 1);
        let done = sample.end_record(&operation, OperationEnd::Done);
        expect_written(&store, "an operation", Batch::from(sample.intent_record(&operation)).with(done))?;
    }
    for guest in [2, 3] {
        expect_written(&store, "an operation", sample.intent_record(&sample.operation(rounds + guest, guest)))?;
    }
    expect_written(&store, "a rename", rename(&old, &new))?;
    let store = fixture.reopen_store(store);
    for environment in [old, new] {
        let guests = vec![sample.vmid(3), sample.vmid(1), sample.vmid(7)];
        let found = expect_readable("operations of guests", block_on(store.guest_operations(environment, guests)))?;
        let newest_of_first = (2..rounds).rev().map(|number| format!("op-{number}"));
        let wanted: Vec<String> = [format!("op-{}", rounds + 3)].into_iter().chain(newest_of_first).collect();
        expect_equal("operations of guests, guest by guest, newest first, with a limit", ids(&found), wanted)?;
    }
    let elsewhere = expect_readable("elsewhere", block_on(store.guest_operations(sample.other_environment(), vec![sample.vmid(1)])))?;
    expect_equal("operations elsewhere", elsewhere.len(), 0)
}

fn read_overview(store: &impl StoreReader) -> Result<JournalOverview, String> {
    expect_readable("the overview", block_on(store.journal_overview()))
}

/// Writes a journal in which everything occurs that an overview has, and returns its overview.
fn write_journal(store: &impl crate::Store, sample: &mut OperationSample) -> Result<JournalOverview, String> {
    let (old, other) = (sample.environment(), sample.other_environment());
    let new = EnvironmentName::new("site-b").ok_or("a name")?;
    let elsewhere = sample.run_in_other_environment();
    write_operations(store, sample)?;
    expect_written(store, "a run elsewhere", OperationSample::start_write_of(RunStart { at_ms: 0, ..elsewhere.clone() }))?;
    let keyed = sample.one_shot(7, 7, "key-1", "start it");
    expect_written(store, "a request", sample.intent_record(&keyed))?;
    let holds = [hold(&old, sample, 9), hold(&old, sample, 8), hold(&other, sample, 1), hold(&old, sample, 9)];
    expect_written(store, "a hold", StoreWrite::Hold(holds[0].clone()))?;
    expect_written(store, "its end", release(&old, sample, 9))?;
    for held in &holds[1..] {
        expect_written(store, "a hold", StoreWrite::Hold(held.clone()))?;
    }
    expect_written(store, "a freeze", StoreWrite::Freeze(freeze(&other)))?;
    expect_written(store, "its end", StoreWrite::Thaw { environment: other.clone(), by: "bob".into(), at_ms: 8 })?;
    expect_written(store, "a freeze", StoreWrite::Freeze(freeze(&old)))?;
    expect_written(store, "a rename", rename(&old, &new))?;
    let moved = |held: &Hold| Hold { environment: new.clone(), ..held.clone() };
    let mut names = EnvironmentNames::default();
    names.bind(OperationSample::binding(&other));
    names.bind(converger_core::apply::EnvironmentBinding { environment: new.clone(), ..OperationSample::binding(&old) });
    names.add_former(old, new.clone());
    let operations = ["op-1", "op-2", "op-3", "op-4", "op-7"].map(|id| converger_core::apply::OperationId::new(id).expect("an id"));
    let key = IdempotencyRow {
        environment: new.clone(),
        key: converger_core::apply::IdempotencyKey::new("key-1").ok_or("a key")?,
        request: Digest::of_bytes(b"start it"),
        change: keyed.step.change.word().into(),
        operation: keyed.id,
    };
    let [first, second, third, fourth] = &holds;
    Ok(JournalOverview {
        runs: vec![sample.run().id, elsewhere.id],
        operations: operations.to_vec(),
        holds: vec![third.clone(), moved(second), moved(fourth)],
        freezes: vec![freeze(&new)],
        names,
        hold_history: HoldHistory {
            // What had ended before the rename keeps the name that it had.
            holds: vec![(first.clone(), Some(("bob".into(), 7))), (moved(second), None), (third.clone(), None), (moved(fourth), None)],
            freezes: vec![(freeze(&other), Some(("bob".into(), 8))), (freeze(&new), None)],
        },
        idempotency_keys: vec![key],
        epoch: FIRST_EPOCH,
    })
}

fn overview_of_journal<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(72));
    expect_equal("an empty journal", read_overview(&store)?, JournalOverview { epoch: FIRST_EPOCH, ..JournalOverview::default() })?;
    let wanted = write_journal(&store, &mut sample)?;
    expect_equal("the overview", read_overview(&store)?, wanted.clone())?;
    expect_equal("the overview for the next process", read_overview(&fixture.reopen_store(store))?, wanted)
}

fn overview_after_refusal<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(73));
    write_journal(&store, &mut sample)?;
    let (before, new) = (read_overview(&store)?, EnvironmentName::new("site-b").ok_or("a name")?);
    let third = EnvironmentName::new("site-c").ok_or("a name")?;
    let thaw = |environment: &EnvironmentName| StoreWrite::Thaw { environment: environment.clone(), by: "bob".into(), at_ms: 30 };
    let undone = Batch::from(release(&new, &sample, 8))
        .with(StoreWrite::Hold(hold(&new, &sample, 8)))
        .with(thaw(&new))
        .with(StoreWrite::Freeze(freeze(&new)))
        .with(rename(&new, &third))
        .with(release(&third, &sample, 9))
        .with(thaw(&third))
        .with(thaw(&third));
    expect_refused(&store, "a batch whose last write is refused", undone, StoreRefusal::NotFrozen(third))?;
    expect_equal("the overview", read_overview(&store)?, before)
}

fn journal_matches_ledger<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(74));
    write_journal(&store, &mut sample)?;
    let store = fixture.reopen_store(store);
    let (mut replay, mut index, mut short) = (LedgerReplay::default(), LedgerIndex::default(), LedgerReplay::default());
    let entries = expect_readable("entries", block_on(store.entries(0, 100)))?;
    for (position, bytes) in (0..).zip(&entries) {
        let entry = parse_entry(bytes).map_err(|error| format!("an entry: {error}"))?;
        index.add_entry(position, &entry);
        replay.apply_entry(entry.clone()).map_err(|misplaced| format!("entry {position}: {misplaced}"))?;
        if position + 1 < entries.len() as u64 {
            short.apply_entry(entry).map_err(|misplaced| format!("entry {position}: {misplaced}"))?;
        }
    }
    let compare = |replay| expect_readable("the journal", block_on(find_journal_mismatch(&store, replay, &index)));
    expect_equal("the first mismatch", compare(&replay)?, None)?;
    expect_equal("a mismatch with a ledger that lost its last entry", compare(&short)?.is_some(), true)
}

fn stored_digests<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let store = fixture.new_store();
    let bodies: [&[u8]; 3] = [b"one", b"two", b"three"];
    let mut wanted: Vec<Digest> = bodies.iter().map(|body| Digest::of_bytes(body)).collect();
    wanted.sort();
    for body in bodies {
        expect_written(&store, "a blob", StoreWrite::blob(body.to_vec()))?;
    }
    let store = fixture.reopen_store(store);
    expect_equal("the digests", expect_readable("digests", block_on(store.digests()))?, wanted)
}

fn stored_tiles<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let store = fixture.new_store();
    let read = |store: &S::Store| expect_readable("rows", block_on(store.ledger_rows()));
    expect_equal("the rows of an empty ledger", read(&store)?, LedgerRows::default())?;
    let entry = |number: u64| {
        let environment = OperationSample::new(1).environment();
        StoreWrite::decision(LedgerEntry::Recovery { environment, operations: Box::default(), at_ms: number })
    };
    for first in [0, 300] {
        expect_written(&store, "entries", Batch::new((first..first + 300).map(entry).collect()))?;
    }
    let store = fixture.reopen_store(store);
    expect_equal("the rows", read(&store)?, LedgerRows { entries: 600, full_tiles: 2 })?;
    for (index, is_full) in [(0, true), (1, true), (2, false)] {
        let tile = Tile { level: 0, index, width: 256 };
        let (stored, hashes) = (block_on(store.full_tile(tile)), block_on(store.hashes(tile)));
        expect_equal("a stored tile", expect_readable("a tile", stored)?.is_some(), is_full)?;
        expect_equal("the same hashes", block_on(store.full_tile(tile)), hashes)?;
    }
    Ok(())
}
