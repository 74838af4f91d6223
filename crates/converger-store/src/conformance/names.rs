//! Stories about environment names: a name refers to one cluster, a cluster has one name, and a rename moves everything to the new name.

use converger_core::apply::{
    EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, Hold, NameConflict, Operation, RunId, RunStart,
};
use converger_core::evidence::{LedgerEntry, parse_entry};
use converger_core::guest::EnvironmentName;

use super::{
    OperationSample, StoreFixture, StoreStory, StoryResult, block_on, expect_equal, expect_readable, expect_refused, expect_written,
};
use crate::{Batch, CommitAck, OperationFilter, Store, StoreReader, StoreRefusal, StoreWrite};

pub(super) fn stories<S: StoreFixture>() -> Vec<StoreStory<S>> {
    vec![
        ("a cluster has one name", one_name),
        ("a name refers to one cluster", one_cluster),
        ("nothing is sent to a cluster that is not recorded", unbound),
        ("a rename moves everything", renamed),
        ("a rename to a name in use", in_use),
        ("a rename that is reverted", taken_back),
    ]
}

fn name(text: &str) -> Result<EnvironmentName, String> {
    EnvironmentName::new(text).ok_or_else(|| format!("`{text}` is not a name"))
}

fn rename(from: &EnvironmentName, to: &EnvironmentName) -> EnvironmentRename {
    EnvironmentRename { from: from.clone(), to: to.clone(), by: "ann".into(), reason: "the site moved".into(), at_ms: 20 }
}

fn entries(store: &impl Store) -> Result<Vec<LedgerEntry>, String> {
    let entries = expect_readable("entries", block_on(store.entries(0, 100)))?;
    entries.iter().map(|bytes| parse_entry(bytes).map_err(|error| format!("an entry: {error}"))).collect()
}

fn names(store: &impl Store) -> Result<EnvironmentNames, String> {
    expect_readable("names", block_on(store.names()))
}

fn one_name<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, first, second) = (fixture.new_store(), name("site-a")?, name("site-b")?);
    let binding = OperationSample::binding(&first);
    expect_written(&store, "a binding", StoreWrite::Bind(binding.clone()))?;
    expect_written(
        &store,
        "the same binding by another person",
        StoreWrite::Bind(EnvironmentBinding { by: "bob".into(), at_ms: 9, ..binding.clone() }),
    )?;
    expect_equal("one entry", entries(&store)?, vec![LedgerEntry::Binding(binding.clone())])?;
    let alias = EnvironmentBinding { environment: second.clone(), ..binding.clone() };
    let conflict = || StoreRefusal::Name(NameConflict::SecondName { environment: second.clone(), bound_as: first.clone() });
    expect_refused(&store, "a second name", StoreWrite::Bind(alias.clone()), conflict())?;
    let store = fixture.reopen_store(store);
    expect_refused(&store, "a second name for the next process", StoreWrite::Bind(alias), conflict())?;
    expect_equal("one entry still", entries(&store)?, vec![LedgerEntry::Binding(binding.clone())])?;
    let mut wanted = EnvironmentNames::default();
    wanted.bind(binding);
    expect_equal("the names", names(&store)?, wanted)
}

fn one_cluster<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, environment) = (fixture.new_store(), name("site-a")?);
    let (recorded, found) = (OperationSample::binding(&environment), OperationSample::binding(&name("site-b")?).cluster);
    expect_written(&store, "a binding", StoreWrite::Bind(recorded.clone()))?;
    let other = EnvironmentBinding { cluster: found.clone(), ..recorded.clone() };
    let store = fixture.reopen_store(store);
    expect_refused(
        &store,
        "another cluster",
        StoreWrite::Bind(other),
        StoreRefusal::Name(NameConflict::OtherCluster { recorded, found: found.clone() }),
    )?;
    let by_nobody = EnvironmentBinding { environment: name("site-c")?, cluster: found, by: " ".into(), at_ms: 1 };
    expect_refused(&store, "a binding without an author", StoreWrite::Bind(by_nobody), StoreRefusal::NotStorable)?;
    expect_equal("one entry", entries(&store)?.len(), 1)
}

fn unbound<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(60));
    let run = Batch::new(sample.start_write().writes().iter().filter(|write| !matches!(write, StoreWrite::Bind(_))).cloned().collect());
    expect_written(&store, "a run that sends nothing", run)?;
    let intent = sample.intent_record(&sample.operation(1, 1));
    expect_refused(&store, "an intent", intent.clone(), StoreRefusal::EnvironmentUnbound(sample.environment()))?;
    let batch = Batch::from(StoreWrite::Bind(OperationSample::binding(&sample.environment()))).with(intent);
    expect_written(&store, "an intent with its binding", batch)
}

/// Everything of a renamed environment is found under this name.
fn find_under_name(
    store: &impl Store,
    queried: &EnvironmentName,
    new: &EnvironmentName,
    carried: &Hold,
    [open, keyed]: [&Operation; 2],
) -> StoryResult {
    expect_equal("the holds", expect_readable("holds", block_on(store.holds(queried.clone())))?, vec![carried.clone()])?;
    expect_equal(
        "the freeze",
        expect_readable("a freeze", block_on(store.freeze(queried.clone())))?.map(|freeze| freeze.environment),
        Some(new.clone()),
    )?;
    let ids = |list: Vec<converger_core::apply::OperationHistory>| list.iter().map(|history| history.id().clone()).collect::<Vec<_>>();
    let wanted = vec![open.id.clone(), keyed.id.clone()];
    expect_equal("what is open", ids(expect_readable("open", block_on(store.open_operations(queried.clone())))?), wanted.clone())?;
    let filter = OperationFilter { environment: Some(queried.clone()), ..OperationFilter::default() };
    expect_equal("the list", ids(expect_readable("a list", block_on(store.operations(filter, 9)))?), wanted.into_iter().rev().collect())?;
    expect_equal("the runs", expect_readable("runs", block_on(store.runs(queried.clone(), 9)))?.len(), 1)?;
    let task = expect_readable("an operation", block_on(store.operation(open.id.clone())))?
        .and_then(|history| history.task)
        .ok_or("it has a task")?
        .0;
    let owned = expect_readable("tasks", block_on(store.operations_of_tasks(queried.clone(), vec![task.clone()])))?;
    expect_equal("the owner of a task", owned, vec![(task, open.id.clone())])?;
    Ok(())
}

fn renamed<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, mut sample) = (fixture.new_store(), OperationSample::new(61));
    let (old, new) = (sample.environment(), name("site-b")?);
    let (open, keyed, vmid) = (sample.operation(1, 1), sample.one_shot(2, 2, "key-1", "it"), sample.vmid(9));
    let hold = Hold { environment: old.clone(), vmid, by: "ann".into(), reason: "disk".into(), at_ms: 5 };
    let freeze = Freeze { environment: old.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let batch = sample.start_write().with(sample.intent_record(&open)).with(sample.task_record(&open)).with(sample.intent_record(&keyed));
    expect_written(&store, "what is in flight", batch.with(StoreWrite::Hold(hold.clone())).with(StoreWrite::Freeze(freeze.clone())))?;
    expect_written(&store, "a rename", StoreWrite::Rename(rename(&old, &new)))?;
    let store = fixture.reopen_store(store);
    // Everything is found under the new name, and holds and freezes carry it. Operations keep the name that they started under.
    let carried = Hold { environment: new.clone(), ..hold.clone() };
    for queried in [&old, &new] {
        find_under_name(&store, queried, &new, &carried, [&open, &keyed])?;
    }
    let former = || StoreRefusal::Name(NameConflict::Renamed { environment: old.clone(), now: new.clone() });
    expect_refused(&store, "a hold under the former name", StoreWrite::Hold(Hold { vmid: sample.vmid(8), ..hold }), former())?;
    expect_refused(&store, "a freeze under the former name", StoreWrite::Freeze(freeze), former())?;
    expect_refused(
        &store,
        "a thaw under the former name",
        StoreWrite::Thaw { environment: old.clone(), by: "bob".into(), at_ms: 7 },
        former(),
    )?;
    expect_refused(&store, "a binding of the former name", StoreWrite::Bind(OperationSample::binding(&old)), former())?;
    expect_refused(&store, "an intent under the former name", sample.intent_record(&sample.operation(3, 3)), former())?;
    let id = RunId::new("run-9").ok_or("an id")?;
    let again = |environment: &EnvironmentName| {
        let run = RunStart { id: id.clone(), environment: environment.clone(), ..sample.run() };
        StoreWrite::RunStarted { run, inputs: Box::new(converger_core::testing::some_inputs()) }
    };
    expect_refused(&store, "a run under the former name", again(&old), former())?;
    expect_written(&store, "a run under the new name", again(&new))?;
    // Keys and guests belong to one environment: a new name does not free them.
    let mut duplicate = sample.one_shot(4, 4, "key-1", "it");
    (duplicate.run, duplicate.environment) = (id.clone(), new.clone());
    let repeated = block_on(store.commit(sample.intent_record(&duplicate).into()));
    expect_equal("a repeated request", repeated, Ok(CommitAck::Repeated { first: keyed.id.clone() }))?;
    let mut second = sample.operation(5, 1);
    (second.run, second.environment) = (id, new.clone());
    expect_refused(
        &store,
        "a second operation on a guest",
        sample.intent_record(&second),
        StoreRefusal::GuestTaken { vmid: sample.vmid(1), by: open.id.clone() },
    )?;
    let done = sample.end_record(&open, converger_core::apply::OperationEnd::Done);
    expect_written(&store, "the end of what was in flight", done)?;
    expect_written(&store, "a thaw under the new name", StoreWrite::Thaw { environment: new.clone(), by: "bob".into(), at_ms: 8 })?;
    expect_written(&store, "an intent under the new name", sample.intent_record(&second))?;
    expect_written(&store, "a release under the new name", StoreWrite::Release { environment: new, vmid, by: "bob".into(), at_ms: 9 })
}

fn in_use<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let store = fixture.new_store();
    let (bound, sample, held, frozen, unused) = (name("bound")?, OperationSample::new(62), name("held")?, name("frozen")?, name("unused")?);
    let hold = Hold { environment: held.clone(), vmid: sample.vmid(1), by: "ann".into(), reason: "disk".into(), at_ms: 5 };
    let freeze = Freeze { environment: frozen.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let bind = StoreWrite::Bind(OperationSample::binding(&bound));
    expect_written(
        &store,
        "what is there",
        Batch::from(bind).with(sample.start_write()).with(StoreWrite::Hold(hold)).with(StoreWrite::Freeze(freeze)),
    )?;
    for to in [&bound, &sample.environment(), &held, &frozen] {
        let from = if *to == bound { &held } else { &bound };
        expect_refused(&store, "a name in use", StoreWrite::Rename(rename(from, to)), StoreRefusal::NameInUse(to.clone()))?;
        expect_refused(&store, "its own name", StoreWrite::Rename(rename(to, to)), StoreRefusal::NameInUse(to.clone()))?;
    }
    let nothing = StoreWrite::Rename(rename(&unused, &name("other")?));
    expect_refused(&store, "an unused name", nothing, StoreRefusal::EnvironmentUnrecorded(unused.clone()))?;
    let why = EnvironmentRename { reason: " ".into(), ..rename(&bound, &unused) };
    expect_refused(&store, "a rename without a reason", StoreWrite::Rename(why), StoreRefusal::NotStorable)?;
    expect_written(&store, "a rename", StoreWrite::Rename(rename(&bound, &unused)))?;
    expect_refused(&store, "a former name of another", StoreWrite::Rename(rename(&held, &bound)), StoreRefusal::NameInUse(bound.clone()))?;
    let again = StoreRefusal::Name(NameConflict::Renamed { environment: bound.clone(), now: unused });
    expect_refused(&store, "a rename of a former name", StoreWrite::Rename(rename(&bound, &name("third")?)), again)
}

fn taken_back<S: StoreFixture>(fixture: &mut S) -> StoryResult {
    let (store, sample) = (fixture.new_store(), OperationSample::new(63));
    let (old, new) = (sample.environment(), name("site-b")?);
    let operation = sample.one_shot(1, 1, "key-1", "it");
    expect_written(&store, "what is in flight", sample.start_write().with(sample.intent_record(&operation)))?;
    let before = names(&store)?;
    let undone = Batch::from(StoreWrite::Rename(rename(&old, &new))).with(sample.intent_record(&operation));
    let repeated = block_on(store.commit(undone));
    if !matches!(repeated, Err(crate::StoreError::Refused(_)) | Ok(CommitAck::Repeated { .. })) {
        return Err(format!("a batch that repeats a request: must not be written, and got {repeated:?}"));
    }
    expect_equal("names after a batch that was not written", names(&store)?, before)?;
    expect_written(&store, "a rename", StoreWrite::Rename(rename(&old, &new)))?;
    expect_written(&store, "a rename back", StoreWrite::Rename(rename(&new, &old)))?;
    let store = fixture.reopen_store(store);
    expect_equal("what is open", expect_readable("open", block_on(store.open_operations(old.clone())))?.len(), 1)?;
    expect_equal("the current name", names(&store)?.current(&new).clone(), old.clone())?;
    expect_refused(
        &store,
        "a guest that is occupied",
        sample.intent_record(&sample.operation(2, 1)),
        StoreRefusal::GuestTaken { vmid: sample.vmid(1), by: operation.id },
    )
}
