//! Stories of the journal: one order, whole batches, one operation for a guest, one request for a key.

use converger_core::apply::{End, History, Illegal, Operation, Progress, Record, Resolution};

use super::{Sample, Stage, Story, Told, now, read, refused, same, taken};
use crate::{Batch, Filter, LIST_MAX, Receipt, Refused, Standing, Store, StoreError};

pub(super) fn stories<S: Stage>() -> Vec<Story<S>> {
    vec![
        ("the life of an operation", life),
        ("every order of records", orders),
        ("a batch is written whole or not at all", whole),
        ("an illegal batch stands among legal ones", neighbours),
        ("one guest, one operation", one_guest),
        ("one task, one operation", one_task),
        ("one key, one request", one_key),
        ("what an operation belongs to", belongs),
        ("lists are bounded, newest first", lists),
        ("the next process finds everything", reopened),
        ("a batch has bounds", bounds),
    ]
}

fn history(store: &impl Store, operation: &Operation) -> Result<Option<History>, String> {
    read("an operation", now(store.operation(operation.id.clone())))
}

fn open_ids(store: &impl Store, sample: &Sample) -> Result<Vec<String>, String> {
    let open = read("open operations", now(store.open_operations(sample.environment())))?;
    Ok(open.iter().map(|history| history.id().to_string()).collect())
}

fn life<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(1));
    let operation = sample.operation(1, 1);
    taken(&store, "a run", sample.start())?;
    let mut wanted = sample.begun(&operation);
    taken(&store, "an intent", sample.intent(&operation))?;
    same("after the intent", history(&store, &operation)?, Some(wanted.clone()))?;
    let end = sample.ended(&operation, End::Held);
    let anew = Record::Sending { id: operation.id.clone(), at_ms: 13, up_ms: 9 };
    let marks = [sample.sending(&operation), anew];
    for record in marks.into_iter().chain([sample.tasked(&operation), end, sample.resolved(&operation, Resolution::NotRun)]) {
        let was_open = wanted.progress().is_open();
        same("the open ones", open_ids(&store, &sample)?, if was_open { vec!["op-1".into()] } else { Vec::new() })?;
        wanted.add(record.clone()).map_err(|illegal| illegal.to_string())?;
        taken(&store, "a record", record)?;
        same("the history", history(&store, &operation)?, Some(wanted.clone()))?;
    }
    same("an operation that nobody wrote", history(&store, &sample.operation(2, 1))?, None)
}

/// A way to a place in the life of an operation, and what may follow there; everything else must not.
struct Place {
    way: &'static [usize],
    may_follow: &'static [usize],
}

/// Records by number: 0 intent, 1 task, 2 done, 3 held, 4 resolved, 5 failed, 6 mark.
const PLACES: &[Place] = &[
    Place { way: &[], may_follow: &[0] },
    Place { way: &[0], may_follow: &[1, 2, 3, 5, 6] },
    Place { way: &[0, 6], may_follow: &[1, 2, 3, 5, 6] },
    Place { way: &[0, 6, 6], may_follow: &[1, 2, 3, 5, 6] },
    Place { way: &[0, 1], may_follow: &[2, 3, 5] },
    Place { way: &[0, 6, 1], may_follow: &[2, 3, 5] },
    Place { way: &[0, 2], may_follow: &[] },
    Place { way: &[0, 5], may_follow: &[] },
    Place { way: &[0, 3], may_follow: &[4] },
    Place { way: &[0, 6, 3], may_follow: &[4] },
    Place { way: &[0, 1, 2], may_follow: &[] },
    Place { way: &[0, 1, 3], may_follow: &[4] },
    Place { way: &[0, 1, 5], may_follow: &[] },
    Place { way: &[0, 3, 4], may_follow: &[] },
    Place { way: &[0, 6, 1, 3, 4], may_follow: &[] },
];

fn records(sample: &mut Sample, operation: &Operation) -> [Record; 7] {
    [
        sample.intent(operation),
        sample.tasked(operation),
        sample.ended(operation, End::Done),
        sample.ended(operation, End::Held),
        sample.resolved(operation, Resolution::Done),
        sample.ended(operation, End::Failed),
        sample.sending(operation),
    ]
}

fn orders<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(2));
    taken(&store, "a run", sample.start())?;
    for (number, (place, next)) in (0..).zip(PLACES.iter().flat_map(|place| (0..7).map(move |next| (place, next)))) {
        let what = format!("{next} after {:?}", place.way);
        let operation = sample.operation(number, number);
        let records = records(&mut sample, &operation);
        let way = place.way.iter().fold(Batch::default(), |batch, step| batch.with(records[*step].clone()));
        if !place.way.is_empty() {
            taken(&store, &what, way)?;
        }
        let before = history(&store, &operation)?;
        if place.may_follow.contains(&next) {
            taken(&store, &what, records[next].clone())?;
        } else {
            let illegal = why(before.as_ref().map(History::progress), &records[next]);
            refused(&store, &what, records[next].clone(), Refused::Record { id: operation.id.clone(), illegal })?;
            same(&what, history(&store, &operation)?, before)?;
        }
    }
    Ok(())
}

fn why(progress: Option<Progress>, record: &Record) -> Illegal {
    progress.map_or(Illegal::NoIntent, |progress| progress.admits(record).err().unwrap_or(Illegal::NotStorable))
}

fn whole<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(3));
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 1));
    let done = sample.ended(&first, End::Done);
    let twice = Batch::default().with(sample.start()).with(sample.intent(&first)).with(done.clone()).with(sample.intent(&first));
    refused(&store, "an intent twice", twice, Refused::Record { id: first.id.clone(), illegal: Illegal::SecondIntent })?;
    same("a part of a refused batch", history(&store, &first)?, None)?;
    same("its run", read("a run", now(store.run(first.run.clone())))?, None)?;
    // The end of one and the intent of the next on the same guest may be one batch: the order within it counts.
    let batch = Batch::default().with(sample.start()).with(sample.intent(&first)).with(done.clone()).with(sample.intent(&second));
    taken(&store, "one after the other", batch)?;
    same("the open ones", open_ids(&store, &sample)?, vec!["op-2".into()])?;
    // Everything that a batch touched comes back when its last write is refused.
    let (ended, third) = (sample.ended(&second, End::Held), sample.operation(3, 2));
    let resolved = sample.resolved(&second, Resolution::Done);
    let undone = Batch::default()
        .with(sample.sending(&second))
        .with(sample.tasked(&second))
        .with(ended)
        .with(resolved)
        .with(sample.intent(&third))
        .with(done);
    let before = history(&store, &second)?;
    refused(&store, "an end twice", undone, Refused::Record { id: first.id.clone(), illegal: Illegal::AlreadyEnded(End::Done) })?;
    same("what was undone", (history(&store, &second)?, history(&store, &third)?), (before, None))?;
    refused(&store, "a guest that was given back", sample.intent(&sample.operation(4, 1)), taken_by(&sample, 1, &second))?;
    taken(&store, "a guest that was never taken", sample.intent(&sample.operation(5, 2)))
}

fn taken_by(sample: &Sample, guest: u64, by: &Operation) -> Refused {
    Refused::GuestTaken { vmid: sample.guest(guest), by: by.id.clone() }
}

fn neighbours<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(4));
    taken(&store, "a run", sample.start())?;
    // All are under way before the first answer is awaited, so that a store that groups them has them in one group.
    let operations: Vec<Operation> = (0..40).map(|number| sample.operation(number, number / 2)).collect();
    let answers: Vec<_> = operations.iter().map(|operation| store.commit(sample.intent(operation).into())).collect();
    for (number, answer) in answers.into_iter().enumerate() {
        let (answer, is_first) = (now(answer), number % 2 == 0);
        match answer {
            Ok(Receipt::Written { .. }) if is_first => {}
            Err(StoreError::Refused(Refused::GuestTaken { .. })) if !is_first => {}
            answer => return Err(format!("batch {number} of 40: {answer:?}")),
        }
        same("what is there", history(&store, &operations[number])?.is_some(), is_first)?;
    }
    same("the open ones", open_ids(&store, &sample)?.len(), 20)
}

fn one_guest<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(5));
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 1));
    taken(&store, "runs", Batch::default().with(sample.start()).with(Sample::started(sample.run_elsewhere())))?;
    taken(&store, "an intent", sample.intent(&first))?;
    refused(&store, "a second one on an open guest", sample.intent(&second), taken_by(&sample, 1, &first))?;
    taken(&store, "a task", sample.tasked(&first))?;
    refused(&store, "a second one on a tasked guest", sample.intent(&second), taken_by(&sample, 1, &first))?;
    let held = sample.ended(&first, End::Held);
    taken(&store, "held", held)?;
    let store = stage.reopened(store);
    refused(&store, "a second one on a guest left held", sample.intent(&second), taken_by(&sample, 1, &first))?;
    taken(&store, "another guest", sample.intent(&sample.operation(3, 2)))?;
    let elsewhere = Operation { environment: sample.elsewhere(), run: sample.run_elsewhere().id, ..sample.operation(4, 1) };
    taken(&store, "the same id elsewhere", sample.intent(&elsewhere))?;
    taken(&store, "a word of a person", sample.resolved(&first, Resolution::Done))?;
    taken(&store, "a second one on a free guest", sample.intent(&second))
}

fn one_task<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(11));
    let (first, second) = (sample.operation(1, 1), sample.operation(2, 1));
    let (task, other) = (sample.task(&first), sample.task(&second));
    let both = || vec![task.clone(), other.clone()];
    let whose = |store: &S::Store, environment| read("whose tasks they are", now(store.tasked(environment, both())));
    taken(&store, "runs", Batch::default().with(sample.start()).with(Sample::started(sample.run_elsewhere())))?;
    taken(&store, "an intent", sample.intent(&first))?;
    same("nobody's", whose(&store, sample.environment())?, Vec::new())?;
    taken(&store, "its task", sample.tasked(&first))?;
    let failed = sample.ended(&first, End::Failed);
    taken(&store, "its end", failed)?;
    taken(&store, "the next one", sample.intent(&second))?;
    let store = stage.reopened(store);
    same("the first one's", whose(&store, sample.environment())?, vec![(task.clone(), first.id.clone())])?;
    same("elsewhere", whose(&store, sample.elsewhere())?, Vec::new())?;
    let stolen = Record::Tasked { id: second.id.clone(), task: task.clone(), at_ms: 13 };
    refused(&store, "a task of another operation", stolen, Refused::TaskTaken { task: task.clone(), by: first.id.clone() })?;
    let elsewhere = Operation { environment: sample.elsewhere(), run: sample.run_elsewhere().id, ..sample.operation(3, 1) };
    taken(&store, "an intent elsewhere", sample.intent(&elsewhere))?;
    taken(&store, "a task of the same name elsewhere", Record::Tasked { id: elsewhere.id.clone(), task, at_ms: 13 })?;
    taken(&store, "a task of its own", sample.tasked(&second))
}

fn one_key<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(6));
    taken(&store, "runs", Batch::default().with(sample.start()).with(Sample::started(sample.run_elsewhere())))?;
    let first = sample.one_shot(1, 1, "key-1", "start it");
    taken(&store, "a request", sample.intent(&first))?;
    let done = sample.ended(&first, End::Done);
    taken(&store, "its end", done)?;
    let store = stage.reopened(store);
    let repeated = Ok(Receipt::Repeated { first: first.id.clone() });
    for (number, guest) in [(2, 1), (3, 2)] {
        let again = sample.one_shot(number, guest, "key-1", "start it");
        // Nothing of a batch with a repeated request is written, not even what stands before it.
        let batch = Batch::default().with(sample.intent(&sample.operation(9, 9))).with(sample.intent(&again));
        same("the request again", now(store.commit(batch)), repeated.clone())?;
        same("a second operation", history(&store, &again)?, None)?;
        same("its neighbour", history(&store, &sample.operation(9, 9))?, None)?;
    }
    same("the very same record", now(store.commit(sample.intent(&first).into())), repeated)?;
    let other = sample.one_shot(4, 2, "key-1", "stop it");
    let Some(key) = converger_core::apply::IdempotencyKey::new("key-1") else { return Err("a key".into()) };
    refused(&store, "another request", sample.intent(&other), Refused::KeyReused { key: key.clone(), first: first.id.clone() })?;
    let run = sample.run_elsewhere().id;
    let elsewhere = Operation { environment: sample.elsewhere(), run, ..sample.one_shot(5, 1, "key-1", "stop it") };
    taken(&store, "the key elsewhere", sample.intent(&elsewhere))?;
    let keyed = |environment| read("a key", now(store.keyed(environment, key.clone())));
    same("what the key stands for", keyed(sample.environment())?.map(|history| history.id().clone()), Some(first.id))?;
    same("what it stands for elsewhere", keyed(sample.elsewhere())?.map(|history| history.id().clone()), Some(elsewhere.id))
}

fn belongs<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(7));
    let (operation, run) = (sample.operation(1, 1), sample.run());
    refused(&store, "no run", sample.intent(&operation), Refused::RunUnknown(run.id.clone()))?;
    taken(&store, "runs", Batch::default().with(sample.start()).with(Sample::started(sample.run_elsewhere())))?;
    let other = Operation { run: sample.run_elsewhere().id, ..operation.clone() };
    refused(&store, "another environment", sample.intent(&other), Refused::OtherRun { id: operation.id.clone() })?;
    let other = Operation { plan: converger_core::artifact::Digest::of_bytes(b"another"), ..operation.clone() };
    refused(&store, "another plan", sample.intent(&other), Refused::OtherRun { id: operation.id.clone() })?;
    taken(&store, "its own run", sample.intent(&operation))?;
    let end = crate::Write::RunEnded { id: run.id.clone(), end: End::Done, at_ms: 20 };
    taken(&store, "the end of the run", end.clone())?;
    refused(&store, "the end again", end, Refused::RunEnded(run.id.clone()))?;
    refused(&store, "an intent after it", sample.intent(&sample.operation(2, 2)), Refused::RunEnded(run.id))?;
    let done = sample.ended(&operation, End::Done);
    taken(&store, "what became of an operation after it", done)
}

fn lists<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(8));
    taken(&store, "a run", sample.start())?;
    let total = u64::from(LIST_MAX) + 5;
    let operations: Vec<Operation> = (0..total).map(|number| sample.operation(number, number)).collect();
    for some in operations.chunks(250) {
        taken(&store, "intents", some.iter().fold(Batch::default(), |batch, operation| batch.with(sample.intent(operation))))?;
    }
    let (done, held) = (sample.ended(&operations[3], End::Done), sample.ended(&operations[4], End::Held));
    taken(&store, "ends", Batch::default().with(done).with(held))?;
    let ids = |filter: Filter, limit| {
        let list = read("a list", now(store.operations(filter, limit)))?;
        Ok::<_, String>(list.iter().map(|history| history.id().to_string()).collect::<Vec<_>>())
    };
    let names = |numbers: &[u64]| numbers.iter().map(|number| format!("op-{number}")).collect::<Vec<_>>();
    let all = Filter::default();
    same("a list without an end", ids(all.clone(), u32::MAX)?.len(), LIST_MAX as usize)?;
    same("no list", ids(all.clone(), 0)?, Vec::new())?;
    same("the newest", ids(all.clone(), 2)?, names(&[total - 1, total - 2]))?;
    let older = Filter { before: Some(operations[2].id.clone()), ..all.clone() };
    same("older ones", ids(older.clone(), 9)?, names(&[1, 0]))?;
    let standing = |standing| Filter { standing: Some(standing), ..Filter::default() };
    same("held", ids(standing(Standing::Held), 9)?, names(&[4]))?;
    same("settled", ids(standing(Standing::Settled), 9)?, names(&[3]))?;
    let open = Filter { before: Some(operations[6].id.clone()), ..standing(Standing::Open) };
    same("open", ids(open, 9)?, names(&[5, 2, 1, 0]))?;
    same("of a guest", ids(Filter { vmid: Some(sample.guest(7)), ..all.clone() }, 9)?, names(&[7]))?;
    same("of a run", ids(Filter { run: Some(sample.run().id), ..older.clone() }, 9)?, names(&[1, 0]))?;
    same("of no run", ids(Filter { run: Some(sample.run_elsewhere().id), ..all.clone() }, 9)?, Vec::new())?;
    same("of here", ids(Filter { environment: Some(sample.environment()), ..older }, 9)?, names(&[1, 0]))?;
    same("of elsewhere", ids(Filter { environment: Some(sample.elsewhere()), ..all.clone() }, 9)?, Vec::new())?;
    let Some(nobody) = converger_core::apply::OperationId::new("nobody") else { return Err("an id".into()) };
    same("older than nothing", ids(Filter { before: Some(nobody), ..all }, 9)?, Vec::new())
}

fn reopened<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(9));
    taken(&store, "a run", sample.start())?;
    let mut wanted = Vec::new();
    for (number, end) in (0..).zip([None, Some(End::Done), Some(End::Refused), Some(End::Held), Some(End::NotRun)]) {
        let operation = sample.one_shot(number, number, &format!("key-{number}"), "it");
        let mut history = sample.begun(&operation);
        let mut records = vec![sample.sending(&operation)];
        records.extend((number != 0).then(|| sample.tasked(&operation)));
        records.extend(end.map(|end| sample.ended(&operation, end)));
        taken(&store, "an intent", sample.intent(&operation))?;
        for record in records {
            taken(&store, "a record", record.clone())?;
            history.add(record).map_err(|illegal| illegal.to_string())?;
        }
        wanted.push(history);
    }
    let store = stage.reopened(store);
    wanted.reverse();
    same("all operations", read("a list", now(store.operations(Filter::default(), 99)))?, wanted)?;
    same("the open ones", open_ids(&store, &sample)?, vec!["op-0".into()])
}

fn bounds<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(10));
    refused(&store, "nothing", Batch::default(), Refused::Empty)?;
    let plan = |_| {
        let body: std::sync::Arc<[u8]> = std::sync::Arc::from(*b"{}");
        crate::Write::Blob { digest: converger_core::artifact::Digest::of_bytes(&body), body }
    };
    let many = Batch::new((0..=Batch::WRITES_MAX).map(plan).collect());
    refused(&store, "too many writes", many, Refused::TooLarge)?;
    taken(&store, "as many as there may be", Batch::new((0..Batch::WRITES_MAX).map(plan).collect()))?;
    let late = Record::Intent { operation: Box::new(sample.operation(1, 1)), at_ms: u64::MAX };
    taken(&store, "a run", sample.start())?;
    let illegal = Illegal::NotStorable;
    refused(&store, "a time that no artifact holds", late, Refused::Record { id: sample.operation(1, 1).id, illegal })
}
