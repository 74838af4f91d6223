//! Stories about the journal: the order of records, atomic batches, one operation per guest, one request per key.

use converger_core::action::Change;
use converger_core::apply::{Hold, IllegalRecord, JournalProgress, JournalRecord, Operation, OperationEnd, OperationHistory, Resolution};
use converger_core::plan::Step;

use super::{
    OperationSample, StoreFixture, StoreStory, StoryResult, block_on, expect_equal, expect_readable, expect_refused, expect_written,
};
use crate::{Batch, CommitAck, LIST_MAX, OperationFilter, OperationStatus, Store, StoreError, StoreReader, StoreRefusal, StoreWrite};

pub(super) fn stories<S: StoreFixture>() -> Vec<StoreStory<S>> {
    vec![
        ("the life of an operation", operation_lifecycle),
        ("every order of records", record_orders),
        ("a batch is written whole or not at all", batch_atomicity),
        ("an illegal batch among legal ones", illegal_batch_among_legal),
        ("one guest, one operation", one_operation_per_guest),
        ("a clone occupies its source too", clone_occupies_source),
        ("one task, one operation", one_operation_per_task),
        ("one key, one request", one_request_per_key),
        ("each step of a request begins once", one_step_per_key),
        ("an operation must match its run", operation_matches_run),
        ("lists are bounded, newest first", operation_lists),
        ("the next process finds everything", state_after_reopen),
        ("a batch has bounds", batch_bounds),
    ]
}

fn read_history(store: &impl Store, operation: &Operation) -> Result<Option<OperationHistory>, String> {
    expect_readable("an operation", block_on(store.operation(operation.id.clone())))
}

fn read_open_ids(store: &impl Store, sample: &OperationSample) -> Result<Vec<String>, String> {
    let open = expect_readable("open operations", block_on(store.open_operations(sample.environment())))?;
    Ok(open.iter().map(|history| history.id().to_string()).collect())
}

fn operation_lifecycle<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(1));
    let operation = sample.operation(1, 1);
    expect_written(&store, "a run", sample.start_write())?;
    let mut wanted = sample.history_after_intent(&operation);
    expect_written(&store, "an intent", sample.intent_record(&operation))?;
    expect_equal("after the intent", read_history(&store, &operation)?, Some(wanted.clone()))?;
    let end = sample.end_record(&operation, OperationEnd::Held);
    let anew = JournalRecord::Sending { id: operation.id.clone(), at_ms: 13, up_ms: 9 };
    let marks = [sample.sending_record(&operation), anew];
    for record in marks.into_iter().chain([sample.task_record(&operation), end, sample.resolution_record(&operation, Resolution::NotRun)]) {
        let was_open = wanted.progress().is_open();
        expect_equal("the open ones", read_open_ids(&store, &sample)?, if was_open { vec!["op-1".into()] } else { Vec::new() })?;
        wanted.add_record(record.clone()).map_err(|illegal| illegal.to_string())?;
        expect_written(&store, "a record", record)?;
        expect_equal("the history", read_history(&store, &operation)?, Some(wanted.clone()))?;
    }
    expect_equal("an operation that was never written", read_history(&store, &sample.operation(2, 1))?, None)
}

/// A path to a state in the life of an operation, and the records that are legal there. All others are illegal.
struct JournalState {
    path: &'static [usize],
    legal_next: &'static [usize],
}

/// Records by number: 0 intent, 1 task, 2 done, 3 held, 4 resolved, 5 failed, 6 sending mark.
const JOURNAL_STATES: &[JournalState] = &[
    JournalState { path: &[], legal_next: &[0] },
    JournalState { path: &[0], legal_next: &[1, 2, 3, 5, 6] },
    JournalState { path: &[0, 6], legal_next: &[1, 2, 3, 5, 6] },
    JournalState { path: &[0, 6, 6], legal_next: &[1, 2, 3, 5, 6] },
    JournalState { path: &[0, 1], legal_next: &[2, 3, 5] },
    JournalState { path: &[0, 6, 1], legal_next: &[2, 3, 5] },
    JournalState { path: &[0, 2], legal_next: &[] },
    JournalState { path: &[0, 5], legal_next: &[] },
    JournalState { path: &[0, 3], legal_next: &[4] },
    JournalState { path: &[0, 6, 3], legal_next: &[4] },
    JournalState { path: &[0, 1, 2], legal_next: &[] },
    JournalState { path: &[0, 1, 3], legal_next: &[4] },
    JournalState { path: &[0, 1, 5], legal_next: &[] },
    JournalState { path: &[0, 3, 4], legal_next: &[] },
    JournalState { path: &[0, 6, 1, 3, 4], legal_next: &[] },
];

fn all_records(sample: &mut OperationSample, operation: &Operation) -> [JournalRecord; 7] {
    [
        sample.intent_record(operation),
        sample.task_record(operation),
        sample.end_record(operation, OperationEnd::Done),
        sample.end_record(operation, OperationEnd::Held),
        sample.resolution_record(operation, Resolution::Done),
        sample.end_record(operation, OperationEnd::Failed),
        sample.sending_record(operation),
    ]
}

fn record_orders<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(2));
    expect_written(&store, "a run", sample.start_write())?;
    for (number, (state, next)) in (0..).zip(JOURNAL_STATES.iter().flat_map(|state| (0..7).map(move |next| (state, next)))) {
        let what = format!("{next} after {:?}", state.path);
        let operation = sample.operation(number, number);
        let records = all_records(&mut sample, &operation);
        let setup_batch = state.path.iter().fold(Batch::default(), |batch, step| batch.with(records[*step].clone()));
        if !state.path.is_empty() {
            expect_written(&store, &what, setup_batch)?;
        }
        let before = read_history(&store, &operation)?;
        if state.legal_next.contains(&next) {
            expect_written(&store, &what, records[next].clone())?;
        } else {
            let illegal = expected_illegal(before.as_ref().map(OperationHistory::progress), &records[next]);
            expect_refused(&store, &what, records[next].clone(), StoreRefusal::Record { id: operation.id.clone(), illegal })?;
            expect_equal(&what, read_history(&store, &operation)?, before)?;
        }
    }
    Ok(())
}

fn expected_illegal(progress: Option<JournalProgress>, record: &JournalRecord) -> IllegalRecord {
    progress.map_or(IllegalRecord::NoIntent, |progress| progress.check_record(record).err().unwrap_or(IllegalRecord::NotStorable))
}

fn batch_atomicity<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(3));
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 1));
    let done = sample.end_record(&first, OperationEnd::Done);
    let duplicate = Batch::default()
        .with(sample.start_write())
        .with(sample.intent_record(&first))
        .with(done.clone())
        .with(sample.intent_record(&first));
    expect_refused(
        &store,
        "an intent twice",
        duplicate,
        StoreRefusal::Record { id: first.id.clone(), illegal: IllegalRecord::SecondIntent },
    )?;
    expect_equal("a part of a refused batch", read_history(&store, &first)?, None)?;
    expect_equal("its run", expect_readable("a run", block_on(store.run(first.run.clone())))?, None)?;
    // One batch may end an operation and start the next one on the same guest: the order within the batch counts.
    let batch = Batch::default()
        .with(sample.start_write())
        .with(sample.intent_record(&first))
        .with(done.clone())
        .with(sample.intent_record(&second));
    expect_written(&store, "one after the other", batch)?;
    expect_equal("the open ones", read_open_ids(&store, &sample)?, vec!["op-2".into()])?;
    // If the last write is refused, everything that the batch changed must be restored.
    let (end_record, third) = (sample.end_record(&second, OperationEnd::Held), sample.operation(3, 2));
    let resolved = sample.resolution_record(&second, Resolution::Done);
    let undone = Batch::default()
        .with(sample.sending_record(&second))
        .with(sample.task_record(&second))
        .with(end_record)
        .with(resolved)
        .with(sample.intent_record(&third))
        .with(done);
    let before = read_history(&store, &second)?;
    expect_refused(
        &store,
        "an end twice",
        undone,
        StoreRefusal::Record { id: first.id.clone(), illegal: IllegalRecord::AlreadyEnded(OperationEnd::Done) },
    )?;
    expect_equal("what was undone", (read_history(&store, &second)?, read_history(&store, &third)?), (before, None))?;
    expect_refused(
        &store,
        "a guest that is occupied again after the undo",
        sample.intent_record(&sample.operation(4, 1)),
        guest_taken_refusal(&sample, 1, &second),
    )?;
    expect_written(&store, "a guest that is free again after the undo", sample.intent_record(&sample.operation(5, 2)))
}

fn guest_taken_refusal(sample: &OperationSample, guest: u64, by: &Operation) -> StoreRefusal {
    StoreRefusal::GuestTaken { vmid: sample.vmid(guest), by: by.id.clone() }
}

fn illegal_batch_among_legal<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(4));
    expect_written(&store, "a run", sample.start_write())?;
    // All batches are queued before the first answer is awaited, so a store that groups commits has them in one group.
    let operations: Vec<Operation> = (0..40).map(|number| sample.operation(number, number / 2)).collect();
    let answers: Vec<_> = operations.iter().map(|operation| store.commit(sample.intent_record(operation).into())).collect();
    for (number, answer) in answers.into_iter().enumerate() {
        let (answer, is_first) = (block_on(answer), number % 2 == 0);
        match answer {
            Ok(CommitAck::Written { .. }) if is_first => {}
            Err(StoreError::Refused(StoreRefusal::GuestTaken { .. })) if !is_first => {}
            answer => return Err(format!("batch {number} of 40: {answer:?}")),
        }
        expect_equal("what is there", read_history(&store, &operations[number])?.is_some(), is_first)?;
    }
    expect_equal("the open ones", read_open_ids(&store, &sample)?.len(), 20)
}

fn one_operation_per_guest<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(5));
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 1));
    expect_written(
        &store,
        "runs",
        Batch::default().with(sample.start_write()).with(OperationSample::start_write_of(sample.run_in_other_environment())),
    )?;
    expect_written(&store, "an intent", sample.intent_record(&first))?;
    expect_refused(&store, "a second one on an open guest", sample.intent_record(&second), guest_taken_refusal(&sample, 1, &first))?;
    expect_written(&store, "a task", sample.task_record(&first))?;
    expect_refused(&store, "a second one on a tasked guest", sample.intent_record(&second), guest_taken_refusal(&sample, 1, &first))?;
    let held = sample.end_record(&first, OperationEnd::Held);
    expect_written(&store, "held", held)?;
    let store = fixture.reopen_store(store);
    expect_refused(&store, "a second one on a guest left held", sample.intent_record(&second), guest_taken_refusal(&sample, 1, &first))?;
    expect_written(&store, "another guest", sample.intent_record(&sample.operation(3, 2)))?;
    let elsewhere =
        Operation { environment: sample.other_environment(), run: sample.run_in_other_environment().id, ..sample.operation(4, 1) };
    expect_written(&store, "the same id elsewhere", sample.intent_record(&elsewhere))?;
    expect_written(&store, "a resolution", sample.resolution_record(&first, Resolution::Done))?;
    expect_written(&store, "a second one on a free guest", sample.intent_record(&second))
}

/// The new guest and the source are both occupied, by the intent, after a restart and while it is held (G12).
fn clone_occupies_source<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(12));
    let (clone, of_source) = (sample.clone_operation(1, 1, 2), sample.operation(2, 2));
    expect_written(&store, "a run", sample.start_write())?;
    let hold = Hold { environment: sample.environment(), vmid: sample.vmid(2), by: "ann".into(), reason: "disk swap".into(), at_ms: 5 };
    let release = StoreWrite::Release { environment: sample.environment(), vmid: sample.vmid(2), by: "ann".into(), at_ms: 6 };
    expect_written(&store, "a hold on the source", StoreWrite::Hold(hold.clone()))?;
    expect_refused(&store, "a clone of a held source", sample.intent_record(&clone), StoreRefusal::GuestHeld(hold))?;
    expect_written(&store, "a release", release)?;
    expect_written(&store, "a clone", sample.intent_record(&clone))?;
    let open = vec![clone.id.to_string()];
    expect_equal("the open one, once", read_open_ids(&store, &sample)?, open.clone())?;
    expect_refused(&store, "an operation on the source", sample.intent_record(&of_source), guest_taken_refusal(&sample, 2, &clone))?;
    let of_new = sample.operation(3, 1);
    expect_refused(&store, "an operation on the new guest", sample.intent_record(&of_new), guest_taken_refusal(&sample, 1, &clone))?;
    let second = sample.clone_operation(4, 3, 2);
    expect_refused(&store, "a second clone", sample.intent_record(&second), guest_taken_refusal(&sample, 2, &clone))?;
    let store = fixture.reopen_store(store);
    expect_equal("the open one after a restart", read_open_ids(&store, &sample)?, open)?;
    let held = sample.end_record(&clone, OperationEnd::Held);
    expect_written(&store, "held", held)?;
    let store = fixture.reopen_store(store);
    expect_refused(&store, "the source of a held clone", sample.intent_record(&of_source), guest_taken_refusal(&sample, 2, &clone))?;
    expect_written(&store, "a resolution", sample.resolution_record(&clone, Resolution::Failed))?;
    expect_written(&store, "an operation on the free source", sample.intent_record(&of_source))?;
    expect_written(&store, "an operation on the free guest", sample.intent_record(&of_new))
}

fn one_operation_per_task<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(11));
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 1));
    let (task, other) = (sample.task(&first), sample.task(&second));
    let both = || vec![task.clone(), other.clone()];
    let task_owners =
        |store: &S::Store, environment| expect_readable("task owners", block_on(store.operations_of_tasks(environment, both())));
    expect_written(
        &store,
        "runs",
        Batch::default().with(sample.start_write()).with(OperationSample::start_write_of(sample.run_in_other_environment())),
    )?;
    expect_written(&store, "an intent", sample.intent_record(&first))?;
    expect_equal("no owners", task_owners(&store, sample.environment())?, Vec::new())?;
    expect_written(&store, "its task", sample.task_record(&first))?;
    let failed = sample.end_record(&first, OperationEnd::Failed);
    expect_written(&store, "its end", failed)?;
    expect_written(&store, "the next one", sample.intent_record(&second))?;
    let store = fixture.reopen_store(store);
    expect_equal("the first one's", task_owners(&store, sample.environment())?, vec![(task.clone(), first.id.clone())])?;
    expect_equal("elsewhere", task_owners(&store, sample.other_environment())?, Vec::new())?;
    let stolen = JournalRecord::TaskStarted { id: second.id.clone(), task: task.clone(), at_ms: 13 };
    expect_refused(&store, "a task of another operation", stolen, StoreRefusal::TaskTaken { task: task.clone(), by: first.id.clone() })?;
    let elsewhere =
        Operation { environment: sample.other_environment(), run: sample.run_in_other_environment().id, ..sample.operation(3, 1) };
    expect_written(&store, "an intent elsewhere", sample.intent_record(&elsewhere))?;
    expect_written(&store, "a task of the same name elsewhere", JournalRecord::TaskStarted { id: elsewhere.id.clone(), task, at_ms: 13 })?;
    expect_written(&store, "a task of its own", sample.task_record(&second))
}

fn one_request_per_key<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(6));
    expect_written(
        &store,
        "runs",
        Batch::default().with(sample.start_write()).with(OperationSample::start_write_of(sample.run_in_other_environment())),
    )?;
    let first = sample.one_shot(1, 1, "key-1", "start it");
    expect_written(&store, "a request", sample.intent_record(&first))?;
    let done = sample.end_record(&first, OperationEnd::Done);
    expect_written(&store, "its end", done)?;
    let store = fixture.reopen_store(store);
    let repeated = Ok(CommitAck::Repeated { first: first.id.clone() });
    for (number, guest) in [(2, 1), (3, 2)] {
        let again = sample.one_shot(number, guest, "key-1", "start it");
        // Nothing of a batch with a repeated request is written, not even the writes before it.
        let batch = Batch::default().with(sample.intent_record(&sample.operation(9, 9))).with(sample.intent_record(&again));
        expect_equal("the request again", block_on(store.commit(batch)), repeated.clone())?;
        expect_equal("a second operation", read_history(&store, &again)?, None)?;
        expect_equal("its neighbour", read_history(&store, &sample.operation(9, 9))?, None)?;
    }
    expect_equal("the very same record", block_on(store.commit(sample.intent_record(&first).into())), repeated)?;
    let other = sample.one_shot(4, 2, "key-1", "stop it");
    let Some(key) = converger_core::apply::IdempotencyKey::new("key-1") else { return Err("a key".into()) };
    expect_refused(
        &store,
        "another request",
        sample.intent_record(&other),
        StoreRefusal::KeyReused { key: key.clone(), first: first.id.clone() },
    )?;
    let run = sample.run_in_other_environment().id;
    let elsewhere = Operation { environment: sample.other_environment(), run, ..sample.one_shot(5, 1, "key-1", "stop it") };
    expect_written(&store, "the key elsewhere", sample.intent_record(&elsewhere))?;
    let keyed = |environment| expect_readable("a key", block_on(store.operation_of_key(environment, key.clone())));
    expect_equal("the operation of the key", keyed(sample.environment())?.map(|history| history.id().clone()), Some(first.id))?;
    expect_equal(
        "the operation of the key elsewhere",
        keyed(sample.other_environment())?.map(|history| history.id().clone()),
        Some(elsewhere.id),
    )
}

/// A request with several steps begins each of them once, in any run.
fn one_step_per_key<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(16));
    expect_written(&store, "a run", sample.start_write())?;
    let first = Operation { step: with_change(&sample, Change::Stop), ..sample.one_shot(1, 1, "key-1", "stop and start it") };
    let second = Operation { step: with_change(&sample, Change::Start), ..sample.one_shot(2, 1, "key-1", "stop and start it") };
    for operation in [&first, &second] {
        expect_written(&store, "a step", sample.intent_record(operation))?;
        let done = sample.end_record(operation, OperationEnd::Done);
        expect_written(&store, "its end", done)?;
    }
    let store = fixture.reopen_store(store);
    for (number, own) in [(3, &first), (4, &second)] {
        let again = Operation { step: own.step.clone(), position: 0, ..sample.one_shot(number, 1, "key-1", "stop and start it") };
        let repeated = Ok(CommitAck::Repeated { first: own.id.clone() });
        expect_equal("the step again", block_on(store.commit(sample.intent_record(&again).into())), repeated)?;
    }
    let other = Operation { step: with_change(&sample, Change::Start), ..sample.one_shot(5, 1, "key-1", "start it") };
    let Some(key) = converger_core::apply::IdempotencyKey::new("key-1") else { return Err("a key".into()) };
    expect_refused(&store, "another request", sample.intent_record(&other), StoreRefusal::KeyReused { key, first: first.id })
}

fn with_change(sample: &OperationSample, change: Change) -> Step {
    Step { change, ..sample.operation(1, 1).step }
}

fn operation_matches_run<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(7));
    let (operation, run) = (sample.operation(1, 1), sample.run());
    expect_refused(&store, "no run", sample.intent_record(&operation), StoreRefusal::RunUnknown(run.id.clone()))?;
    expect_written(
        &store,
        "runs",
        Batch::default().with(sample.start_write()).with(OperationSample::start_write_of(sample.run_in_other_environment())),
    )?;
    let other = Operation { run: sample.run_in_other_environment().id, ..operation.clone() };
    expect_refused(&store, "another environment", sample.intent_record(&other), StoreRefusal::OtherRun { id: operation.id.clone() })?;
    let other = Operation { plan: converger_core::artifact::Digest::of_bytes(b"another"), ..operation.clone() };
    expect_refused(&store, "another plan", sample.intent_record(&other), StoreRefusal::OtherRun { id: operation.id.clone() })?;
    expect_written(&store, "its own run", sample.intent_record(&operation))?;
    let end = crate::StoreWrite::RunEnded { id: run.id.clone(), end: OperationEnd::Done, at_ms: 20 };
    expect_written(&store, "the end of the run", end.clone())?;
    expect_refused(&store, "the end again", end, StoreRefusal::RunEnded(run.id.clone()))?;
    expect_refused(&store, "an intent after it", sample.intent_record(&sample.operation(2, 2)), StoreRefusal::RunEnded(run.id))?;
    let done = sample.end_record(&operation, OperationEnd::Done);
    expect_written(&store, "an outcome after the end of the run", done)
}

fn operation_lists<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(8));
    expect_written(&store, "a run", sample.start_write())?;
    let total = u64::from(LIST_MAX) + 5;
    let operations: Vec<Operation> = (0..total).map(|number| sample.operation(number, number)).collect();
    for some in operations.chunks(250) {
        expect_written(
            &store,
            "intents",
            some.iter().fold(Batch::default(), |batch, operation| batch.with(sample.intent_record(operation))),
        )?;
    }
    let (done, held) = (sample.end_record(&operations[3], OperationEnd::Done), sample.end_record(&operations[4], OperationEnd::Held));
    expect_written(&store, "ends", Batch::default().with(done).with(held))?;
    let ids = |filter: OperationFilter, limit| {
        let list = expect_readable("a list", block_on(store.operations(filter, limit)))?;
        Ok::<_, String>(list.iter().map(|history| history.id().to_string()).collect::<Vec<_>>())
    };
    let names = |numbers: &[u64]| numbers.iter().map(|number| format!("op-{number}")).collect::<Vec<_>>();
    let all = OperationFilter::default();
    expect_equal("a list without an end", ids(all.clone(), u32::MAX)?.len(), LIST_MAX as usize)?;
    expect_equal("no list", ids(all.clone(), 0)?, Vec::new())?;
    expect_equal("the newest", ids(all.clone(), 2)?, names(&[total - 1, total - 2]))?;
    let older = OperationFilter { before: Some(operations[2].id.clone()), ..all.clone() };
    expect_equal("older ones", ids(older.clone(), 9)?, names(&[1, 0]))?;
    let with_status = |status| OperationFilter { status: Some(status), ..OperationFilter::default() };
    expect_equal("held", ids(with_status(OperationStatus::Held), 9)?, names(&[4]))?;
    expect_equal("settled", ids(with_status(OperationStatus::Settled), 9)?, names(&[3]))?;
    let open = OperationFilter { before: Some(operations[6].id.clone()), ..with_status(OperationStatus::Open) };
    expect_equal("open", ids(open, 9)?, names(&[5, 2, 1, 0]))?;
    expect_equal("of a guest", ids(OperationFilter { vmid: Some(sample.vmid(7)), ..all.clone() }, 9)?, names(&[7]))?;
    expect_equal("of a run", ids(OperationFilter { run: Some(sample.run().id), ..older.clone() }, 9)?, names(&[1, 0]))?;
    expect_equal("of no run", ids(OperationFilter { run: Some(sample.run_in_other_environment().id), ..all.clone() }, 9)?, Vec::new())?;
    expect_equal("of this environment", ids(OperationFilter { environment: Some(sample.environment()), ..older }, 9)?, names(&[1, 0]))?;
    expect_equal(
        "of another environment",
        ids(OperationFilter { environment: Some(sample.other_environment()), ..all.clone() }, 9)?,
        Vec::new(),
    )?;
    let Some(nobody) = converger_core::apply::OperationId::new("nobody") else { return Err("an id".into()) };
    expect_equal("older than an unknown operation", ids(OperationFilter { before: Some(nobody), ..all }, 9)?, Vec::new())
}

fn state_after_reopen<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(9));
    expect_written(&store, "a run", sample.start_write())?;
    let mut wanted = Vec::new();
    for (number, end) in
        (0..).zip([None, Some(OperationEnd::Done), Some(OperationEnd::Refused), Some(OperationEnd::Held), Some(OperationEnd::NotRun)])
    {
        let operation = sample.one_shot(number, number, &format!("key-{number}"), "it");
        let mut history = sample.history_after_intent(&operation);
        let mut records = vec![sample.sending_record(&operation)];
        records.extend((number != 0).then(|| sample.task_record(&operation)));
        records.extend(end.map(|end| sample.end_record(&operation, end)));
        expect_written(&store, "an intent", sample.intent_record(&operation))?;
        for record in records {
            expect_written(&store, "a record", record.clone())?;
            history.add_record(record).map_err(|illegal| illegal.to_string())?;
        }
        wanted.push(history);
    }
    let store = fixture.reopen_store(store);
    wanted.reverse();
    expect_equal("all operations", expect_readable("a list", block_on(store.operations(OperationFilter::default(), 99)))?, wanted)?;
    expect_equal("the open ones", read_open_ids(&store, &sample)?, vec!["op-0".into()])
}

fn batch_bounds<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(10));
    expect_refused(&store, "nothing", Batch::default(), StoreRefusal::Empty)?;
    let plan = |_| {
        let body: std::sync::Arc<[u8]> = std::sync::Arc::from(*b"{}");
        crate::StoreWrite::Blob { digest: converger_core::artifact::Digest::of_bytes(&body), body }
    };
    let many = Batch::new((0..=Batch::WRITES_MAX).map(plan).collect());
    expect_refused(&store, "too many writes", many, StoreRefusal::TooLarge)?;
    expect_written(&store, "the maximum number of writes", Batch::new((0..Batch::WRITES_MAX).map(plan).collect()))?;
    let late = JournalRecord::Intent { operation: Box::new(sample.operation(1, 1)), at_ms: u64::MAX };
    expect_written(&store, "a run", sample.start_write())?;
    let illegal = IllegalRecord::NotStorable;
    expect_refused(&store, "a time that is too large for artifacts", late, StoreRefusal::Record { id: sample.operation(1, 1).id, illegal })
}
