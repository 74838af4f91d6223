//! The executor on a small cluster: what it executes, what it does not, and the effects of a crash at any point.

use std::sync::{Arc, Mutex};

use converger_core::apply::{Fact, Freeze, Hold, RunStart};
use converger_core::approve::{Admission, Admitted, ApprovalMode, Confirmation, RefusedGuestPolicy as LeftOut, admit};
use converger_core::artifact::Provenance;
use converger_core::evidence::parse_entry;
use converger_core::guest::Vmid;
use converger_core::policy::{self, Circumstances};
use converger_core::safety::{Judged, judge};
use converger_core::testing::{some_binding, some_inputs};
use converger_store::{CommitFault, MemoryStore};
use serde_json::{Value as Json, json};
use tokio::sync::watch;

use super::*;
use crate::operation::Patience;
use crate::schedule::{ConcurrencyLimits, OnFailure};
use crate::testing;
use converger_core::failure::FailureCode;

mod cluster;
mod crash;
mod many_runs;
mod run_rules;

use cluster::{TestCluster, TestClusterClock};

/// 2026-11-15T12:00:00Z.
const NOW_MS: u64 = 1_794_744_000_000;

/// Four guests: one for each kind of change, and one that depends on another.
fn desired_guests() -> Vec<Json> {
    vec![
        json!({ "vmid": 100, "kind": "qemu", "name": "web", "state": "running" }),
        json!({ "vmid": 101, "kind": "qemu", "name": "web", "state": "stopped" }),
        json!({ "vmid": 102, "kind": "qemu", "name": "web", "config": { "cores": 4 }, "restart": "when-needed" }),
        json!({ "vmid": 103, "kind": "qemu", "name": "web", "config": { "cores": 4 }, "state": "running", "after": [100] }),
    ]
}

fn initial_cluster() -> TestCluster {
    TestCluster::new(&[(100, "stopped"), (101, "running"), (102, "running"), (103, "stopped")])
}

/// The approved plan for these guests in this cluster, as confirmed at a terminal.
fn approve_plan(guests: &[Json], world: &TestCluster) -> ApprovedPlan {
    approve_plan_from_rows(guests, &world.read_rows())
}

/// The same, for these rows.
fn approve_plan_from_rows(guests: &[Json], rows: &[Json]) -> ApprovedPlan {
    let plan = testing::plan_guests(guests, rows);
    let Judged::Safe(safe) = judge(plan, policy::Limits::default(), Circumstances::default()) else { panic!("refused") };
    let admission = Admission {
        mode: ApprovalMode::Solo,
        provenance: Provenance::Live,
        confirmation: Confirmation::Typed { by: "ann".into(), names: vec!["web".into(); 9] },
        refused: LeftOut::LeaveOut,
        now_ms: NOW_MS,
        age_secs_max: 60,
    };
    match admit(safe, &admission).expect("it can be written") {
        Admitted::Approved(plan) => plan,
        Admitted::Refused(refusals) => panic!("{refusals:?}"),
    }
}

/// Settings of an executor, and options for the runs of these tests.
#[derive(Clone, Copy, Debug, Default)]
struct Settings {
    limits: ConcurrencyLimits,
    options: RunOptions,
}

/// An executor with a cluster and a store, as one process has it. It must be started within a runtime.
struct Process<S = MemoryStore> {
    world: TestCluster,
    store: Arc<S>,
    executor: Executor<TestCluster>,
    options: RunOptions,
}

impl<S: Store + 'static> Process<S> {
    fn start(world: &TestCluster, store: S, settings: Settings, signal: watch::Receiver<RunSignal>) -> Self {
        let (store, clock) = (Arc::new(store), Arc::new(TestClusterClock::new(NOW_MS, world.clone())));
        let (executor, task) = Executor::new(lab_environment(), Arc::clone(&store), clock, settings.limits, signal);
        tokio::spawn(task);
        Self { world: world.clone(), store, executor, options: settings.options }
    }

    async fn unsettled(&self) -> Result<Vec<OperationHistory>, StoreError> {
        load_unsettled(&*self.store, &lab_environment()).await
    }

    /// Recovers unsettled operations with this patience.
    async fn recover(&self, patience: Patience) -> Result<ExecutionReport, EngineError> {
        let unsettled = self.executor.find_unsettled().await?;
        let actuator = Arc::new(self.world.clone());
        self.executor.recover(RecoverySubmission { unsettled, actuator, patience, on_notice: Box::new(|_| ()) }).wait().await
    }

    fn submission(&self, plan: ApprovedPlan, run: RunId) -> RunSubmission<TestCluster> {
        let prefix = run.as_str().to_owned();
        let ids = Box::new(move |number: usize| OperationId::new(&format!("{prefix}-{number}")));
        RunSubmission {
            plan,
            run,
            ids,
            key: None,
            actuator: Arc::new(self.world.clone()),
            options: self.options,
            on_notice: Box::new(|_| ()),
        }
    }

    fn submit(&self, plan: ApprovedPlan, run: RunId) -> PendingReport {
        let slot = self.executor.reserve_slot().expect("a slot");
        self.executor.submit(slot, self.submission(plan, run))
    }
}

/// Records the start of the run of a plan.
fn start_run(world: &TestCluster, store: &MemoryStore, plan: &ApprovedPlan, run: &str) -> Result<RunId, StoreError> {
    let (id, environment) = (RunId::new(run).expect("an id"), plan.plan().desired().environment().clone());
    let boot = TestClusterClock::new(NOW_MS, world.clone()).uptime().map(|uptime| uptime.boot);
    let binding = StoreWrite::Bind(some_binding(&environment));
    let run = RunStart { id: id.clone(), environment, plan: plan.digest(), by: plan.approver().into(), at_ms: NOW_MS, boot };
    let _ = store.commit_now(Batch::from(binding).with(StoreWrite::RunStarted { run, inputs: Box::new(some_inputs()) }))?;
    Ok(id)
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn lab_environment() -> EnvironmentName {
    EnvironmentName::new("lab").expect("a name")
}

/// Plans and applies in one process while it recovers; returns the combined report.
fn apply_desired(
    world: &TestCluster,
    store: &MemoryStore,
    run: &str,
    settings: Settings,
    signal: watch::Receiver<RunSignal>,
) -> Result<ExecutionReport, EngineError> {
    block_on(async {
        let process = Process::start(world, store.clone(), settings, signal);
        let unsettled = process.executor.find_unsettled().await?;
        let plan = approve_plan(&desired_guests(), world);
        let run = start_run(world, store, &plan, run)?;
        let (actuator, patience) = (Arc::new(world.clone()), settings.options.patience);
        let recovery = RecoverySubmission { unsettled, actuator, patience, on_notice: Box::new(|_| ()) };
        let (recovered, applied) = (process.executor.recover(recovery), process.submit(plan, run));
        let (recovered, applied) = (recovered.wait().await?, applied.wait().await?);
        Ok(ExecutionReport::new([recovered.operations(), applied.operations()].concat()))
    })
}

/// Runs one plan in its own process.
fn apply_plan(world: &TestCluster, store: &MemoryStore, plan: ApprovedPlan, run: &str, settings: Settings) -> ExecutionReport {
    let run = start_run(world, store, &plan, run).expect("taken");
    block_on(async { Process::start(world, store.clone(), settings, no_signal()).submit(plan, run).wait().await }).expect("the run begins")
}

fn no_signal() -> watch::Receiver<RunSignal> {
    watch::channel(RunSignal::Continue).1
}

fn render_report(report: &ExecutionReport) -> Vec<String> {
    let render_operation = |reported: &OperationReport| {
        let code = reported.outcome.code().map_or(String::new(), |code| format!(" {code}"));
        format!("{} {}: {}{code}", reported.operation.guest.vmid, reported.operation.step.change.word(), reported.outcome.end().word())
    };
    report.operations().iter().map(render_operation).collect()
}

const ALL_DONE: [&str; 6] =
    ["100 start: done", "101 shutdown: done", "102 config.set: done", "102 reboot: done", "103 config.set: done", "103 start: done"];

#[test]
fn applies_a_plan_and_the_next_plan_is_empty() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let report = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    assert_eq!(render_report(&report), ALL_DONE);
    assert!(report.operations().iter().all(|reported| reported.is_recorded && reported.began_ms <= reported.ended_ms));
    assert_eq!(world.send_counts(), [(100, 1), (101, 1), (102, 2), (103, 2)].into());
    let again = apply_desired(&world, &store, "r2", Settings::default(), no_signal()).expect("the run begins");
    assert_eq!((render_report(&again), world.send_counts().values().sum::<u32>()), (Vec::<String>::new(), 6));
    assert!(block_on(load_unsettled(&store, &lab_environment())).expect("readable").is_empty());
}

#[test]
fn an_operation_costs_at_most_three_commits() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let report = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    // The run itself has a start and an end; a config write has no task.
    let config_sets = report.operations().iter().filter(|reported| reported.task.is_none()).count();
    assert_eq!((report.operations().len(), config_sets), (6, 2));
    assert_eq!(store.transactions(), 2 + 6 * 3 - 2);
}

#[test]
fn starts_a_guest_after_its_dependency() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    let order = world.sent_changes();
    let at =
        |vmid: u32, change_name: &str| order.iter().position(|(own, change)| *own == vmid && change == change_name).expect("it was sent");
    assert!(at(100, "start") < at(103, "start"), "{order:?}");
    assert!(at(102, "config.set") < at(102, "reboot"), "{order:?}");
}

#[test]
fn failure_stops_only_its_guest_and_its_dependents() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    world.fail_tasks_of(100);
    let report = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    let expected = [
        "100 start: failed task-failed",
        "101 shutdown: done",
        "102 config.set: done",
        "102 reboot: done",
        "103 config.set: done",
        "103 start: not-run dependency-not-done",
    ];
    assert_eq!(render_report(&report), expected);
    assert_eq!(report.end(), OperationEnd::Failed);
    let not_run = report.operations().last().expect("operations");
    assert_eq!(not_run.outcome.findings().evidence.get("on"), Some(&Fact::Words(Box::new(["100".into()]))));
}

#[test]
fn drain_starts_nothing_new_and_finishes_operations_in_flight() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let (says, hears) = watch::channel(RunSignal::Continue);
    world.on_first_send(move || says.send(RunSignal::Drain).expect("the executor listens"));
    let settings = Settings { limits: ConcurrencyLimits { per_node: 1, overall: 1 }, ..Settings::default() };
    let report = apply_desired(&world, &store, "r1", settings, hears).expect("the run begins");
    assert_eq!(render_report(&report)[0], "100 start: done");
    assert!(render_report(&report)[1..].iter().all(|line| line.ends_with("not-run run-stopped")), "{:?}", render_report(&report));
    assert_eq!(world.send_counts(), [(100, 1)].into());
}

#[test]
fn does_not_touch_frozen_environment_or_held_guest() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let hold = Hold {
        environment: lab_environment(),
        vmid: Vmid::new(101).expect("an id"),
        by: "bob".into(),
        reason: "maintenance".into(),
        at_ms: NOW_MS,
    };
    let _ = store.commit_now(Batch::from(StoreWrite::Hold(hold))).expect("taken");
    let report = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    assert_eq!(render_report(&report)[1], "101 shutdown: refused guest-held");
    assert_eq!(world.send_counts().get(&101), None);
    assert_eq!(recorded_refusals(&store), [(Some(101), "guest-held".to_owned())]);
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let freeze = Freeze { environment: lab_environment(), by: "bob".into(), reason: "audit week".into(), at_ms: NOW_MS };
    let _ = store.commit_now(Batch::from(StoreWrite::Freeze(freeze))).expect("taken");
    let report = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    let refused = |reported: &&OperationReport| reported.outcome.end() == OperationEnd::Refused;
    assert_eq!(report.operations().iter().filter(refused).count(), 4, "{:?}", render_report(&report));
    assert!(world.send_counts().is_empty());
    assert!(
        recorded_refusals(&store).len() == 4 && recorded_refusals(&store).iter().all(|(_, code)| code == "frozen"),
        "{:?}",
        recorded_refusals(&store)
    );
}

/// The refusals in the ledger: guests and codes.
fn recorded_refusals(store: &MemoryStore) -> Vec<(Option<u32>, String)> {
    let entries = block_on(store.entries(0, 999)).expect("read");
    let refused = |bytes: &Vec<u8>| match parse_entry(bytes).expect("an entry") {
        LedgerEntry::Refused { guest, code, .. } => Some((guest.map(Vmid::get), code.as_str().to_owned())),
        _ => None,
    };
    entries.iter().filter_map(refused).collect()
}

#[test]
fn reports_progress_in_order() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let plan = approve_plan(&desired_guests()[..1], &world);
    let run = start_run(&world, &store, &plan, "r").expect("taken");
    let notice_log = Arc::new(Mutex::new(Vec::new()));
    block_on(async {
        let process = Process::start(&world, store, Settings::default(), no_signal());
        let (slot, own) = (process.executor.reserve_slot().expect("a slot"), Arc::clone(&notice_log));
        let on_notice: OnNotice = Box::new(move |notice| own.lock().expect("told").push((notice.phase, notice.outcome.map(Outcome::end))));
        process.executor.submit(slot, RunSubmission { on_notice, ..process.submission(plan, run) }).wait().await.expect("the run begins")
    });
    let notices = notice_log.lock().expect("told");
    let phases = [Phase::Recorded, Phase::Checked, Phase::Sent, Phase::Tasked, Phase::Settled, Phase::Ended];
    assert_eq!(notices.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), phases);
    assert_eq!(notices.last().expect("told").1, Some(OperationEnd::Done));
}

#[test]
fn does_not_start_a_run_that_the_journal_rejects() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    store.fail_next(CommitFault::Full);
    let error = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect_err("there is no room");
    assert!(error.to_string().contains("full"), "{error}");
    assert!(world.send_counts().is_empty());
}

#[test]
fn applies_a_plan_only_in_the_run_started_for_it() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let other = start_run(&world, &store, &approve_plan(&desired_guests()[..1], &world), "other").expect("taken");
    let over = start_run(&world, &store, &approve_plan(&desired_guests(), &world), "over").expect("taken");
    let _ =
        store.commit_now(Batch::from(StoreWrite::RunEnded { id: over.clone(), end: OperationEnd::Refused, at_ms: NOW_MS })).expect("taken");
    for run in [other, over, RunId::new("never").expect("an id")] {
        let answer = block_on(async {
            let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
            process.submit(approve_plan(&desired_guests(), &world), run.clone()).wait().await
        });
        assert!(matches!(answer, Err(EngineError::RunMismatch(other)) if other == run), "{run}");
    }
    assert!(world.send_counts().is_empty());
}
