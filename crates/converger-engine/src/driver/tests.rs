//! The driver on a small world: what is carried out, what is not, and what a crash at any point costs.

use std::sync::{Arc, Mutex};

use converger_core::apply::{Fact, Freeze, Hold, Run};
use converger_core::approve::{Admission, Admitted, Confirmation, Mode, Refused as LeftOut, admit};
use converger_core::artifact::Provenance;
use converger_core::evidence::parse_entry;
use converger_core::guest::Vmid;
use converger_core::policy::{self, Circumstances};
use converger_core::safety::{Judged, judge};
use converger_core::testing::{some_binding, some_inputs};
use converger_store::{Fault, MemoryStore};
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::*;
use crate::operation::Patience;
use crate::schedule::{Limits, OnFailure};
use crate::testing;
use converger_core::failure::Code;

mod crash;
mod many_runs;
mod rules;
mod world;

use world::{Ticking, World};

/// 2026-11-15T12:00:00Z.
const NOW_MS: u64 = 1_794_744_000_000;

/// Four guests, one for each kind of change and one that waits for another.
fn wanted() -> Vec<Json> {
    vec![
        json!({ "vmid": 100, "kind": "qemu", "name": "web", "state": "running" }),
        json!({ "vmid": 101, "kind": "qemu", "name": "web", "state": "stopped" }),
        json!({ "vmid": 102, "kind": "qemu", "name": "web", "config": { "cores": 4 }, "restart": "when-needed" }),
        json!({ "vmid": 103, "kind": "qemu", "name": "web", "config": { "cores": 4 }, "state": "running", "after": [100] }),
    ]
}

fn started() -> World {
    World::new(&[(100, "stopped"), (101, "running"), (102, "running"), (103, "stopped")])
}

/// The approved plan of these guests in this world, as a person at a terminal has it.
fn approved(guests: &[Json], world: &World) -> ApprovedPlan {
    approved_on(guests, &world.rows())
}

/// The same, of this reading.
fn approved_on(guests: &[Json], rows: &[Json]) -> ApprovedPlan {
    let plan = testing::plan(guests, rows);
    let Judged::Safe(safe) = judge(plan, policy::Limits::default(), Circumstances::default()) else { panic!("refused") };
    let admission = Admission {
        mode: Mode::Solo,
        provenance: Provenance::Live,
        confirmation: Confirmation::Typed { by: "ann".into(), names: vec!["web".into(); 9] },
        refused: LeftOut::IsLeftOut,
        now_ms: NOW_MS,
        age_secs_max: 60,
    };
    match admit(safe, &admission).expect("it can be written") {
        Admitted::Approved(plan) => plan,
        Admitted::Refused(refusals) => panic!("{refusals:?}"),
    }
}

/// How an executor works, and how the runs of these tests are submitted to it.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    limits: Limits,
    options: RunOptions,
}

/// An executor over a world and a store, as one process has it. It is started within a runtime.
struct Process<S = MemoryStore> {
    world: World,
    store: Arc<S>,
    executor: Executor<World>,
    options: RunOptions,
}

impl<S: Store + 'static> Process<S> {
    fn start(world: &World, store: S, settings: Settings, signal: watch::Receiver<Signal>) -> Self {
        let (store, clock) = (Arc::new(store), Arc::new(Ticking::new(NOW_MS, world.clone())));
        let (executor, task) = Executor::new(environment(), Arc::clone(&store), clock, settings.limits, signal);
        tokio::spawn(task);
        Self { world: world.clone(), store, executor, options: settings.options }
    }

    async fn unsettled(&self) -> Result<Vec<History>, StoreError> {
        unsettled(&*self.store, &environment()).await
    }

    /// Finds out what is unsettled, with this patience.
    async fn recover(&self, patience: Patience) -> Result<Report, EngineError> {
        let unsettled = self.executor.find_unsettled().await?;
        let actuator = Arc::new(self.world.clone());
        self.executor.recover(RecoverySubmission { unsettled, actuator, patience, on_notice: Box::new(|_| ()) }).wait().await
    }

    fn submission(&self, plan: ApprovedPlan, run: RunId) -> RunSubmission<World> {
        let prefix = run.as_str().to_owned();
        let ids = Box::new(move |number: usize| OperationId::new(&format!("{prefix}-{number}")));
        RunSubmission { plan, run, ids, actuator: Arc::new(self.world.clone()), options: self.options, on_notice: Box::new(|_| ()) }
    }

    fn submit(&self, plan: ApprovedPlan, run: RunId) -> PendingReport {
        let slot = self.executor.reserve_slot().expect("a slot");
        self.executor.submit(slot, self.submission(plan, run))
    }
}

/// The run of a plan, as the journal has it before anything is carried out.
fn begun(world: &World, store: &MemoryStore, plan: &ApprovedPlan, run: &str) -> Result<RunId, StoreError> {
    let (id, environment) = (RunId::new(run).expect("an id"), plan.plan().desired().environment().clone());
    let boot = Ticking::new(NOW_MS, world.clone()).uptime().map(|uptime| uptime.boot);
    let binding = Write::Bind(some_binding(&environment));
    let run = Run { id: id.clone(), environment, plan: plan.digest(), by: plan.by().into(), at_ms: NOW_MS, boot };
    let _ = store.commit_now(Batch::from(binding).with(Write::RunStarted { run, inputs: Box::new(some_inputs()) }))?;
    Ok(id)
}

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn environment() -> EnvironmentName {
    EnvironmentName::new("lab").expect("a name")
}

/// Plans and applies in one process, beside finding out what is unsettled: what came of that, and of the run.
fn apply(
    world: &World,
    store: &MemoryStore,
    run: &str,
    settings: Settings,
    signal: watch::Receiver<Signal>,
) -> Result<Report, EngineError> {
    block(async {
        let process = Process::start(world, store.clone(), settings, signal);
        let unsettled = process.executor.find_unsettled().await?;
        let plan = approved(&wanted(), world);
        let run = begun(world, store, &plan, run)?;
        let (actuator, patience) = (Arc::new(world.clone()), settings.options.patience);
        let recovery = RecoverySubmission { unsettled, actuator, patience, on_notice: Box::new(|_| ()) };
        let (recovered, applied) = (process.executor.recover(recovery), process.submit(plan, run));
        let (recovered, applied) = (recovered.wait().await?, applied.wait().await?);
        Ok(Report::new([recovered.operations(), applied.operations()].concat()))
    })
}

/// One run of a plan in a process of its own.
fn apply_plan(world: &World, store: &MemoryStore, plan: ApprovedPlan, run: &str, settings: Settings) -> Report {
    let run = begun(world, store, &plan, run).expect("taken");
    block(async { Process::start(world, store.clone(), settings, quiet()).submit(plan, run).wait().await }).expect("the run begins")
}

fn quiet() -> watch::Receiver<Signal> {
    watch::channel(Signal::GoOn).1
}

fn shown(report: &Report) -> Vec<String> {
    let shown = |reported: &Reported| {
        let code = reported.outcome.code().map_or(String::new(), |code| format!(" {code}"));
        format!("{} {}: {}{code}", reported.operation.guest.vmid, reported.operation.step.change.word(), reported.outcome.end().word())
    };
    report.operations().iter().map(shown).collect()
}

const ALL_DONE: [&str; 6] =
    ["100 start: done", "101 shutdown: done", "102 config.set: done", "102 reboot: done", "103 config.set: done", "103 start: done"];

#[test]
fn a_plan_is_carried_out_and_the_next_one_finds_nothing_to_do() {
    let (world, store) = (started(), MemoryStore::new());
    let report = apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    assert_eq!(shown(&report), ALL_DONE);
    assert!(report.operations().iter().all(|reported| reported.is_recorded && reported.began_ms <= reported.ended_ms));
    assert_eq!(world.sends(), [(100, 1), (101, 1), (102, 2), (103, 2)].into());
    let again = apply(&world, &store, "r2", Settings::default(), quiet()).expect("the run begins");
    assert_eq!((shown(&again), world.sends().values().sum::<u32>()), (Vec::<String>::new(), 6));
    assert!(block(unsettled(&store, &environment())).expect("readable").is_empty());
}

#[test]
fn an_operation_costs_at_most_three_commits() {
    let (world, store) = (started(), MemoryStore::new());
    let report = apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    // The run itself begins and ends; a config write has no task.
    let config_sets = report.operations().iter().filter(|reported| reported.task.is_none()).count();
    assert_eq!((report.operations().len(), config_sets), (6, 2));
    assert_eq!(store.transactions(), 2 + 6 * 3 - 2);
}

#[test]
fn a_waiting_guest_comes_after_the_one_that_it_waits_for() {
    let (world, store) = (started(), MemoryStore::new());
    apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    let order = world.order();
    let at = |vmid: u32, word: &str| order.iter().position(|(own, change)| *own == vmid && change == word).expect("it was sent");
    assert!(at(100, "start") < at(103, "start"), "{order:?}");
    assert!(at(102, "config.set") < at(102, "reboot"), "{order:?}");
}

#[test]
fn one_failure_stops_its_lane_and_what_waits_for_it_only() {
    let (world, store) = (started(), MemoryStore::new());
    world.fail_tasks_of(100);
    let report = apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    let expected = [
        "100 start: failed task-failed",
        "101 shutdown: done",
        "102 config.set: done",
        "102 reboot: done",
        "103 config.set: done",
        "103 start: not-run dependency-not-done",
    ];
    assert_eq!(shown(&report), expected);
    assert_eq!(report.end(), End::Failed);
    let not_run = report.operations().last().expect("operations");
    assert_eq!(not_run.outcome.findings().evidence.get("on"), Some(&Fact::Words(Box::new(["100".into()]))));
}

#[test]
fn a_drain_begins_nothing_new_and_ends_what_is_under_way() {
    let (world, store) = (started(), MemoryStore::new());
    let (says, hears) = watch::channel(Signal::GoOn);
    world.on_first_send(move || says.send(Signal::Drain).expect("somebody listens"));
    let settings = Settings { limits: Limits { per_node: 1, overall: 1 }, ..Settings::default() };
    let report = apply(&world, &store, "r1", settings, hears).expect("the run begins");
    assert_eq!(shown(&report)[0], "100 start: done");
    assert!(shown(&report)[1..].iter().all(|line| line.ends_with("not-run run-stopped")), "{:?}", shown(&report));
    assert_eq!(world.sends(), [(100, 1)].into());
}

#[test]
fn a_frozen_environment_and_a_held_guest_are_not_touched() {
    let (world, store) = (started(), MemoryStore::new());
    let hold = Hold {
        environment: environment(),
        vmid: Vmid::new(101).expect("an id"),
        by: "bob".into(),
        reason: "maintenance".into(),
        at_ms: NOW_MS,
    };
    let _ = store.commit_now(Batch::from(Write::Hold(hold))).expect("taken");
    let report = apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    assert_eq!(shown(&report)[1], "101 shutdown: refused guest-held");
    assert_eq!(world.sends().get(&101), None);
    assert_eq!(refusals(&store), [(Some(101), "guest-held".to_owned())]);
    let (world, store) = (started(), MemoryStore::new());
    let freeze = Freeze { environment: environment(), by: "bob".into(), reason: "audit week".into(), at_ms: NOW_MS };
    let _ = store.commit_now(Batch::from(Write::Freeze(freeze))).expect("taken");
    let report = apply(&world, &store, "r1", Settings::default(), quiet()).expect("the run begins");
    let refused = |reported: &&Reported| reported.outcome.end() == End::Refused;
    assert_eq!(report.operations().iter().filter(refused).count(), 4, "{:?}", shown(&report));
    assert!(world.sends().is_empty());
    assert!(refusals(&store).len() == 4 && refusals(&store).iter().all(|(_, code)| code == "frozen"), "{:?}", refusals(&store));
}

/// What the ledger has of what was refused: the guests, and why.
fn refusals(store: &MemoryStore) -> Vec<(Option<u32>, String)> {
    let entries = block(store.entries(0, 999)).expect("read");
    let refused = |bytes: &Vec<u8>| match parse_entry(bytes).expect("an entry") {
        Entry::Refused { guest, code, .. } => Some((guest.map(Vmid::get), code.as_str().to_owned())),
        _ => None,
    };
    entries.iter().filter_map(refused).collect()
}

#[test]
fn progress_is_told_in_order() {
    let (world, store) = (started(), MemoryStore::new());
    let plan = approved(&wanted()[..1], &world);
    let run = begun(&world, &store, &plan, "r").expect("taken");
    let told = Arc::new(Mutex::new(Vec::new()));
    block(async {
        let process = Process::start(&world, store, Settings::default(), quiet());
        let (slot, own) = (process.executor.reserve_slot().expect("a slot"), Arc::clone(&told));
        let on_notice: OnNotice = Box::new(move |notice| own.lock().expect("told").push((notice.phase, notice.outcome.map(Outcome::end))));
        process.executor.submit(slot, RunSubmission { on_notice, ..process.submission(plan, run) }).wait().await.expect("the run begins")
    });
    let told = told.lock().expect("told");
    let phases = [Phase::Recorded, Phase::Checked, Phase::Sent, Phase::Tasked, Phase::Settled, Phase::Ended];
    assert_eq!(told.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), phases);
    assert_eq!(told.last().expect("told").1, Some(End::Done));
}

#[test]
fn a_run_that_the_journal_does_not_take_is_not_begun() {
    let (world, store) = (started(), MemoryStore::new());
    store.fail_next(Fault::Full);
    let error = apply(&world, &store, "r1", Settings::default(), quiet()).expect_err("there is no room");
    assert!(error.to_string().contains("full"), "{error}");
    assert!(world.sends().is_empty());
}

#[test]
fn a_plan_is_carried_out_only_as_the_run_that_was_started_for_it() {
    let (world, store) = (started(), MemoryStore::new());
    let other = begun(&world, &store, &approved(&wanted()[..1], &world), "other").expect("taken");
    let over = begun(&world, &store, &approved(&wanted(), &world), "over").expect("taken");
    let _ = store.commit_now(Batch::from(Write::RunEnded { id: over.clone(), end: End::Refused, at_ms: NOW_MS })).expect("taken");
    for run in [other, over, RunId::new("never").expect("an id")] {
        let answer = block(async {
            let process = Process::start(&world, store.clone(), Settings::default(), quiet());
            process.submit(approved(&wanted(), &world), run.clone()).wait().await
        });
        assert!(matches!(answer, Err(EngineError::OtherRun(other)) if other == run), "{run}");
    }
    assert!(world.sends().is_empty());
}
