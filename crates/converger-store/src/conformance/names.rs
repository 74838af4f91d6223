//! Stories of environment names: each stands for one cluster, a cluster has one name, and a rename carries everything along.

use converger_core::apply::{EnvironmentBinding, EnvironmentNames, EnvironmentRename, Freeze, Hold, NameConflict, Run, RunId};
use converger_core::evidence::{Entry, parse_entry};
use converger_core::guest::EnvironmentName;

use super::{Sample, Stage, Story, Told, now, read, refused, same, taken};
use crate::{Batch, Filter, Receipt, Refused, Store, Write};

pub(super) fn stories<S: Stage>() -> Vec<Story<S>> {
    vec![
        ("a cluster has one name", one_name),
        ("a name stands for one cluster", one_cluster),
        ("nothing is sent to a cluster that is not recorded", unbound),
        ("a rename carries everything along", renamed),
        ("a rename to a name in use", in_use),
        ("a rename that is taken back", taken_back),
    ]
}

fn name(text: &str) -> Result<EnvironmentName, String> {
    EnvironmentName::new(text).ok_or_else(|| format!("`{text}` is no name"))
}

fn rename(from: &EnvironmentName, to: &EnvironmentName) -> EnvironmentRename {
    EnvironmentRename { from: from.clone(), to: to.clone(), by: "ann".into(), reason: "the site moved".into(), at_ms: 20 }
}

fn entries(store: &impl Store) -> Result<Vec<Entry>, String> {
    let entries = read("entries", now(store.entries(0, 100)))?;
    entries.iter().map(|bytes| parse_entry(bytes).map_err(|error| format!("an entry: {error}"))).collect()
}

fn names(store: &impl Store) -> Result<EnvironmentNames, String> {
    read("names", now(store.names()))
}

fn one_name<S: Stage>(stage: &mut S) -> Told {
    let (store, first, second) = (stage.fresh(), name("site-a")?, name("site-b")?);
    let binding = Sample::binding(&first);
    taken(&store, "a binding", Write::Bind(binding.clone()))?;
    taken(&store, "the same binding by somebody else", Write::Bind(EnvironmentBinding { by: "bob".into(), at_ms: 9, ..binding.clone() }))?;
    same("one entry", entries(&store)?, vec![Entry::Binding(binding.clone())])?;
    let alias = EnvironmentBinding { environment: second.clone(), ..binding.clone() };
    let conflict = || Refused::Name(NameConflict::SecondName { environment: second.clone(), bound_as: first.clone() });
    refused(&store, "a second name", Write::Bind(alias.clone()), conflict())?;
    let store = stage.reopened(store);
    refused(&store, "a second name for the next process", Write::Bind(alias), conflict())?;
    same("one entry still", entries(&store)?, vec![Entry::Binding(binding.clone())])?;
    let mut wanted = EnvironmentNames::default();
    wanted.bind(binding);
    same("the names", names(&store)?, wanted)
}

fn one_cluster<S: Stage>(stage: &mut S) -> Told {
    let (store, environment) = (stage.fresh(), name("site-a")?);
    let (recorded, found) = (Sample::binding(&environment), Sample::binding(&name("site-b")?).cluster);
    taken(&store, "a binding", Write::Bind(recorded.clone()))?;
    let other = EnvironmentBinding { cluster: found.clone(), ..recorded.clone() };
    let store = stage.reopened(store);
    refused(&store, "another cluster", Write::Bind(other), Refused::Name(NameConflict::OtherCluster { recorded, found: found.clone() }))?;
    let by_nobody = EnvironmentBinding { environment: name("site-c")?, cluster: found, by: " ".into(), at_ms: 1 };
    refused(&store, "a binding by nobody", Write::Bind(by_nobody), Refused::NotStorable)?;
    same("one entry", entries(&store)?.len(), 1)
}

fn unbound<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(60));
    let run = Batch::new(sample.start().writes().iter().filter(|write| !matches!(write, Write::Bind(_))).cloned().collect());
    taken(&store, "a run that may only look", run)?;
    let intent = sample.intent(&sample.operation(1, 1));
    refused(&store, "an intent", intent.clone(), Refused::EnvironmentUnbound(sample.environment()))?;
    let bound = Batch::from(Write::Bind(Sample::binding(&sample.environment()))).with(intent);
    taken(&store, "an intent with its binding", bound)
}

fn renamed<S: Stage>(stage: &mut S) -> Told {
    let (store, mut sample) = (stage.fresh(), Sample::new(61));
    let (old, new) = (sample.environment(), name("site-b")?);
    let (open, keyed, vmid) = (sample.operation(1, 1), sample.one_shot(2, 2, "key-1", "it"), sample.guest(9));
    let hold = Hold { environment: old.clone(), vmid, by: "ann".into(), reason: "disk".into(), at_ms: 5 };
    let freeze = Freeze { environment: old.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let life = sample.start().with(sample.intent(&open)).with(sample.tasked(&open)).with(sample.intent(&keyed));
    taken(&store, "what is in flight", life.with(Write::Hold(hold.clone())).with(Write::Freeze(freeze.clone())))?;
    taken(&store, "a rename", Write::Rename(rename(&old, &new)))?;
    let store = stage.reopened(store);
    // Everything is found under the new name, and what is in force says so; operations keep the name that they began under.
    let carried = Hold { environment: new.clone(), ..hold.clone() };
    for asked in [&old, &new] {
        same("the holds", read("holds", now(store.holds(asked.clone())))?, vec![carried.clone()])?;
        same("the freeze", read("a freeze", now(store.freeze(asked.clone())))?.map(|freeze| freeze.environment), Some(new.clone()))?;
        let ids = |list: Vec<converger_core::apply::History>| list.iter().map(|history| history.id().clone()).collect::<Vec<_>>();
        let wanted = vec![open.id.clone(), keyed.id.clone()];
        same("what is open", ids(read("open", now(store.open_operations(asked.clone())))?), wanted.clone())?;
        let filter = Filter { environment: Some(asked.clone()), ..Filter::default() };
        same("the list", ids(read("a list", now(store.operations(filter, 9)))?), wanted.into_iter().rev().collect())?;
        same("the runs", read("runs", now(store.runs(asked.clone(), 9)))?.len(), 1)?;
        let task = read("an operation", now(store.operation(open.id.clone())))?.and_then(|history| history.task).ok_or("it has a task")?.0;
        let owned = read("tasks", now(store.tasked(asked.clone(), vec![task.clone()])))?;
        same("whose a task is", owned, vec![(task, open.id.clone())])?;
    }
    let former = || Refused::Name(NameConflict::Renamed { environment: old.clone(), now: new.clone() });
    refused(&store, "a hold under the former name", Write::Hold(Hold { vmid: sample.guest(8), ..hold }), former())?;
    refused(&store, "a freeze under the former name", Write::Freeze(freeze), former())?;
    refused(&store, "a thaw under the former name", Write::Thaw { environment: old.clone(), by: "bob".into(), at_ms: 7 }, former())?;
    refused(&store, "a binding of the former name", Write::Bind(Sample::binding(&old)), former())?;
    refused(&store, "an intent under the former name", sample.intent(&sample.operation(3, 3)), former())?;
    let id = RunId::new("run-9").ok_or("an id")?;
    let again = |environment: &EnvironmentName| {
        let run = Run { id: id.clone(), environment: environment.clone(), ..sample.run() };
        Write::RunStarted { run, inputs: Box::new(converger_core::testing::some_inputs()) }
    };
    refused(&store, "a run under the former name", again(&old), former())?;
    taken(&store, "a run under the new name", again(&new))?;
    // Keys and guests are those of one environment: neither is free again because of another name.
    let mut twice = sample.one_shot(4, 4, "key-1", "it");
    (twice.run, twice.environment) = (id.clone(), new.clone());
    let repeated = now(store.commit(sample.intent(&twice).into()));
    same("a repeated request", repeated, Ok(Receipt::Repeated { first: keyed.id.clone() }))?;
    let mut second = sample.operation(5, 1);
    (second.run, second.environment) = (id, new.clone());
    refused(
        &store,
        "a second operation on a guest",
        sample.intent(&second),
        Refused::GuestTaken { vmid: sample.guest(1), by: open.id.clone() },
    )?;
    let done = sample.ended(&open, converger_core::apply::End::Done);
    taken(&store, "the end of what was in flight", done)?;
    taken(&store, "a thaw under the new name", Write::Thaw { environment: new.clone(), by: "bob".into(), at_ms: 8 })?;
    taken(&store, "an intent under the new name", sample.intent(&second))?;
    taken(&store, "a release under the new name", Write::Release { environment: new, vmid, by: "bob".into(), at_ms: 9 })
}

fn in_use<S: Stage>(stage: &mut S) -> Told {
    let store = stage.fresh();
    let (bound, ran, held, frozen, unused) = (name("bound")?, Sample::new(62), name("held")?, name("frozen")?, name("unused")?);
    let hold = Hold { environment: held.clone(), vmid: ran.guest(1), by: "ann".into(), reason: "disk".into(), at_ms: 5 };
    let freeze = Freeze { environment: frozen.clone(), by: "ann".into(), reason: "audit".into(), at_ms: 6 };
    let bind = Write::Bind(Sample::binding(&bound));
    taken(&store, "what is there", Batch::from(bind).with(ran.start()).with(Write::Hold(hold)).with(Write::Freeze(freeze)))?;
    for to in [&bound, &ran.environment(), &held, &frozen] {
        let from = if *to == bound { &held } else { &bound };
        refused(&store, "a name in use", Write::Rename(rename(from, to)), Refused::NameInUse(to.clone()))?;
        refused(&store, "its own name", Write::Rename(rename(to, to)), Refused::NameInUse(to.clone()))?;
    }
    let nothing = Write::Rename(rename(&unused, &name("other")?));
    refused(&store, "a name that nobody used", nothing, Refused::EnvironmentUnrecorded(unused.clone()))?;
    let why = EnvironmentRename { reason: " ".into(), ..rename(&bound, &unused) };
    refused(&store, "a rename without a reason", Write::Rename(why), Refused::NotStorable)?;
    taken(&store, "a rename", Write::Rename(rename(&bound, &unused)))?;
    refused(&store, "a former name of another", Write::Rename(rename(&held, &bound)), Refused::NameInUse(bound.clone()))?;
    let again = Refused::Name(NameConflict::Renamed { environment: bound.clone(), now: unused });
    refused(&store, "a rename of a former name", Write::Rename(rename(&bound, &name("third")?)), again)
}

fn taken_back<S: Stage>(stage: &mut S) -> Told {
    let (store, sample) = (stage.fresh(), Sample::new(63));
    let (old, new) = (sample.environment(), name("site-b")?);
    let operation = sample.one_shot(1, 1, "key-1", "it");
    taken(&store, "what is in flight", sample.start().with(sample.intent(&operation)))?;
    let before = names(&store)?;
    let undone = Batch::from(Write::Rename(rename(&old, &new))).with(sample.intent(&operation));
    let repeated = now(store.commit(undone));
    if !matches!(repeated, Err(crate::StoreError::Refused(_)) | Ok(Receipt::Repeated { .. })) {
        return Err(format!("a batch that cannot be written: must not be, and got {repeated:?}"));
    }
    same("names after a batch that was not written", names(&store)?, before)?;
    taken(&store, "a rename", Write::Rename(rename(&old, &new)))?;
    taken(&store, "a rename back", Write::Rename(rename(&new, &old)))?;
    let store = stage.reopened(store);
    same("what is open", read("open", now(store.open_operations(old.clone())))?.len(), 1)?;
    same("the name of today", names(&store)?.current(&new).clone(), old.clone())?;
    refused(
        &store,
        "a guest that is taken",
        sample.intent(&sample.operation(2, 1)),
        Refused::GuestTaken { vmid: sample.guest(1), by: operation.id },
    )
}
