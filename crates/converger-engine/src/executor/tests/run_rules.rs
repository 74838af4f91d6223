//! Design rules for a run: leaving it, recovery, one-shot requests, config that is pending until a restart, and guests that do not
//! respond.

use converger_core::apply::{CheckContext, Findings, IdempotencyKey, JournalRecord, OperationSource, Resolution};
use converger_core::artifact::Digest;
use converger_core::plan::Verdict;

use super::*;

fn serial_settings() -> Settings {
    Settings { limits: ConcurrencyLimits { per_node: 1, overall: 1 }, ..Settings::default() }
}

/// A signal that came before the first step applies to the first step.
#[test]
fn drain_before_the_run_starts_nothing() {
    for signal in [RunSignal::Drain, RunSignal::Leave] {
        let (world, store) = (initial_cluster(), MemoryStore::new());
        let (says, hears) = watch::channel(RunSignal::Continue);
        let plan = approve_plan(&desired_guests(), &world);
        let run = start_run(&world, &store, &plan, "r1").expect("taken");
        let report = block_on(async {
            let process = Process::start(&world, store.clone(), Settings::default(), hears);
            // The run was accepted before the signal: it is not refused, and ends without having started.
            let slot = process.executor.reserve_slot().expect("a slot");
            says.send(signal).expect("the executor listens");
            process.executor.submit(slot, process.submission(plan, run)).wait().await.expect("the run is answered")
        });
        let ended = block_on(store.run(RunId::new("r1").expect("an id"))).expect("readable").expect("it is there").ended;
        assert_eq!(ended.map(|(end, _)| end), Some(OperationEnd::NotRun), "{signal:?}");
        assert!(
            render_report(&report).iter().all(|line| line.ends_with("not-run run-stopped")),
            "{signal:?}: {:?}",
            render_report(&report)
        );
        assert_eq!((world.send_counts(), world.request_count()), (std::collections::BTreeMap::new(), 0), "{signal:?}");
        let known = block_on(store.operations(OperationFilter::default(), 10)).expect("readable");
        assert_eq!(known, [], "{signal:?}: not even an intent");
    }
}

/// Two nodes with two guests each, one of which was emptied after planning: the other node still gets no more concurrent changes than its
/// limit, and everything is done.
#[test]
fn counts_moved_guests_against_the_limit_of_their_new_node() {
    let ids = [100, 101, 102, 103];
    let (world, store) = (TestCluster::new(&ids.map(|vmid| (vmid, "stopped"))), MemoryStore::new());
    let wanted = ids.map(|vmid| json!({ "vmid": vmid, "kind": "qemu", "name": "web", "state": "running" }));
    let mut rows = world.read_rows();
    rows[2]["node"] = json!("pve2");
    rows[3]["node"] = json!("pve2");
    let plan = approve_plan_from_rows(&wanted, &rows);
    world.move_all_to("pve2");
    let settings = Settings { limits: ConcurrencyLimits { per_node: 1, overall: 9 }, ..Settings::default() };
    let report = apply_plan(&world, &store, plan, "r1", settings);
    assert_eq!(render_report(&report), ids.map(|vmid| format!("{vmid} start: done")));
    assert_eq!((world.send_counts(), world.concurrent_tasks_max()), (ids.map(|vmid| (vmid, 1)).into(), 1));
}

/// A store was restored in which the operation has already ended: nothing that this run writes can be relied on, and nothing more is
/// sent.
#[test]
fn rejected_record_stops_the_run_and_reports_why() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let other = store.clone();
    world.on_first_send(move || {
        let id = OperationId::new("r1-0").expect("an id");
        let outcome = Outcome::new_failed(FailureCode::TaskFailed, Findings::default());
        let _ = other.commit_now(JournalRecord::Ended { id, outcome, at_ms: NOW_MS }.into()).expect("taken");
    });
    let report = apply_desired(&world, &store, "r1", serial_settings(), no_signal()).expect("the run begins");
    assert_eq!(render_report(&report)[0], "100 start: held journal-unwritable");
    let recorded_error = report.operations()[0].outcome.findings().evidence.get("said");
    assert_eq!(recorded_error, Some(&Fact::from("operation `r1-0`: it has ended already: failed")));
    assert!(render_report(&report)[1..].iter().all(|line| line.ends_with("not-run journal-unwritable")), "{:?}", render_report(&report));
    assert_eq!(world.send_counts(), [(100, 1)].into());
}

#[test]
fn recovers_an_interrupted_operation_at_next_start_without_resending() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let (says, hears) = watch::channel(RunSignal::Continue);
    world.on_first_send(move || says.send(RunSignal::Leave).expect("the executor listens"));
    let report = apply_desired(&world, &store, "r1", serial_settings(), hears).expect("the run begins");
    assert_eq!(render_report(&report)[0], "100 start: held run-left");
    assert!(!report.operations()[0].is_recorded, "the journal has it open");
    assert!(render_report(&report)[1..].iter().all(|line| line.ends_with("not-run run-stopped")), "{:?}", render_report(&report));
    let again = apply_desired(&world, &store.crash(), "r2", Settings::default(), no_signal()).expect("the run begins");
    assert_eq!(render_report(&again)[0], "100 start: done", "settled by reading");
    assert!(again.operations()[0].is_recovered);
    assert_eq!(world.send_counts().get(&100), Some(&1));
    assert_eq!(again.end(), OperationEnd::Done, "{:?}", render_report(&again));
}

/// A guest that is being recovered waits, and other guests do not wait for it.
#[test]
fn g12_starts_nothing_on_a_guest_before_its_recovery_ends() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let (says, hears) = watch::channel(RunSignal::Continue);
    world.on_first_send(move || says.send(RunSignal::Leave).expect("the executor listens"));
    apply_desired(&world, &store, "r1", serial_settings(), hears).expect("the run begins");
    let store = store.crash();
    // The plan does not know yet that guest 100 is about to run, and starts it again.
    let plan =
        approve_plan(&desired_guests(), &TestCluster::new(&[(100, "stopped"), (101, "running"), (102, "running"), (103, "stopped")]));
    let run = start_run(&world, &store, &plan, "r2").expect("taken");
    let notice_log = Arc::new(Mutex::new(Vec::new()));
    let listen = || -> OnNotice {
        let own = Arc::clone(&notice_log);
        Box::new(move |notice| {
            own.lock().expect("told").push((notice.operation.guest.vmid.get(), notice.operation.run.as_str().to_owned(), notice.phase));
        })
    };
    let report = block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        let unsettled = process.executor.find_unsettled().await.expect("readable");
        assert_eq!(unsettled.histories().len(), 1);
        let (actuator, patience) = (Arc::new(world.clone()), Patience::default());
        let recovered = process.executor.recover(RecoverySubmission { unsettled, actuator, patience, on_notice: listen() });
        let slot = process.executor.reserve_slot().expect("a slot");
        let applied = process.executor.submit(slot, RunSubmission { on_notice: listen(), ..process.submission(plan, run) });
        recovered.wait().await.expect("it is found out");
        applied.wait().await.expect("the run begins")
    });
    let notices = notice_log.lock().expect("told");
    let at = |run: &str, phase: Phase| notices.iter().position(|own| *own == (100, run.to_owned(), phase)).expect("it was told");
    assert!(at("r1", Phase::Ended) < at("r2", Phase::Recorded), "{notices:?}");
    let others = notices.iter().position(|(vmid, run, _)| *vmid != 100 && run == "r2").expect("others were told");
    assert!(others < at("r1", Phase::Ended), "others do not wait: {notices:?}");
    assert_eq!((report.end(), world.send_counts().get(&100)), (OperationEnd::Done, Some(&1)), "{:?}", render_report(&report));
}

/// A person holds guest 100.
fn hold(store: &MemoryStore) {
    let (vmid, by, reason) = (Vmid::new(100).expect("an id"), "bob".into(), "maintenance".into());
    let hold = Hold { environment: lab_environment(), vmid, by, reason, at_ms: NOW_MS };
    assert!(store.commit_now(Batch::from(StoreWrite::Hold(hold))).is_ok());
}

/// Applies the plan to start guest 100; returns the report and the number of guests that got a change.
fn start_one(world: &TestCluster, store: &MemoryStore, signal: watch::Receiver<RunSignal>) -> (String, usize) {
    let plan = approve_plan(&desired_guests()[..1], world);
    let run = start_run(world, store, &plan, "r1").expect("taken");
    let run = async { Process::start(world, store.clone(), Settings::default(), signal).submit(plan, run).wait().await };
    (render_report(&block_on(run).expect("the run begins")).concat(), world.send_counts().len())
}

/// Decision 0017: a hold or stop while a change waits for its permit takes effect before it is sent.
#[test]
fn g12_hold_or_stop_while_waiting_for_a_permit_prevents_sending() {
    let start_interrupted_by = |interrupt: fn(MemoryStore, watch::Sender<RunSignal>)| {
        let (world, store) = (TestCluster::new(&[(100, "stopped")]), MemoryStore::new());
        let (says, hears) = watch::channel(RunSignal::Continue);
        let own = store.clone();
        world.on_first_permit(move || interrupt(own, says));
        start_one(&world, &store, hears)
    };
    let held = start_interrupted_by(|store, _| hold(&store));
    assert_eq!(held, ("100 start: refused guest-held".into(), 0));
    let frozen = start_interrupted_by(|store, _| {
        let freeze = Freeze { environment: lab_environment(), by: "bob".into(), reason: "audit week".into(), at_ms: NOW_MS };
        assert!(store.commit_now(Batch::from(StoreWrite::Freeze(freeze))).is_ok());
    });
    assert_eq!(frozen, ("100 start: refused frozen".into(), 0));
    let stopped = start_interrupted_by(|_, says| says.send(RunSignal::Drain).expect("the executor listens"));
    assert_eq!(stopped, ("100 start: not-run run-stopped".into(), 0));
}

/// A signal pauses the process right after its final hold check, a person holds the guest, and the process continues.
#[test]
fn g12_hold_after_an_expired_hold_check_prevents_sending() {
    let after = |ms: u64| {
        let (world, store) = (TestCluster::new(&[(100, "stopped")]), MemoryStore::new());
        let (own, clock) = (store.clone(), world.clone());
        let held_late = move || {
            hold(&own);
            clock.advance_time(ms);
        };
        let cluster = world.clone();
        world.on_first_permit(move || cluster.after_next_clock_read(held_late));
        start_one(&world, &store, no_signal())
    };
    assert_eq!(after(2_001), ("100 start: refused guest-held".into(), 0));
    assert_eq!(after(2_000), ("100 start: done".into(), 1), "the check is valid up to this age");
}

/// One operation with an idempotency key, as an action service would submit it.
fn one_shot_operation(run: &str, key: &str, request: &str) -> (Operation, CheckContext) {
    let (mut operation, context) = testing::last_step_for("start");
    operation.id = OperationId::new(&format!("{run}-0")).expect("an id");
    operation.run = RunId::new(run).expect("an id");
    operation.source =
        OperationSource::OneShot { key: IdempotencyKey::new(key).expect("a key"), request: Digest::of_bytes(request.as_bytes()) };
    (operation, context)
}

fn apply_one_shot(world: &TestCluster, store: &MemoryStore, (operation, context): (Operation, CheckContext)) -> ExecutionReport {
    let (id, environment, plan) = (operation.run.clone(), operation.environment.clone(), operation.plan);
    let run = RunStart { id: id.clone(), environment: environment.clone(), plan, by: "ann".into(), at_ms: NOW_MS, boot: None };
    let run = StoreWrite::RunStarted { run, inputs: Box::new(some_inputs()) };
    let binding = StoreWrite::Bind(some_binding(&environment));
    let _ = store.commit_now(Batch::from(binding).with(run)).expect("taken");
    let clock = Arc::new(TestClusterClock::new(NOW_MS, world.clone()));
    let (executor, mut execution) = Executor::parts(environment, Arc::new(store.clone()), clock, ConcurrencyLimits::default(), no_signal());
    let slot = executor.reserve_slot().expect("a slot");
    // No plan leads to such an operation yet, so it is passed to the task directly.
    block_on(async {
        let report = execution.submit_operations(vec![(operation, context)], id, slot, Arc::new(world.clone()));
        drop(executor);
        execution.run().await;
        report.await.expect("answered").expect("the run begins")
    })
}

#[test]
fn g13_executes_a_request_once_per_key() {
    let (world, store) = (TestCluster::new(&[(100, "stopped")]), MemoryStore::new());
    assert_eq!(render_report(&apply_one_shot(&world, &store, one_shot_operation("r1", "key-1", "start web"))), ["100 start: done"]);
    let store = store.crash();
    for (run, request) in [("r2", "start web"), ("r3", "start something else")] {
        let report = apply_one_shot(&world, &store, one_shot_operation(run, "key-1", request));
        assert_eq!(render_report(&report), ["100 start: not-run request-repeated"], "{request}");
        let evidence = &report.operations()[0].outcome.findings().evidence;
        assert_eq!(evidence.get("operation"), Some(&Fact::from("r1-0")), "{request}: the first one is named");
    }
    assert_eq!(world.send_counts(), [(100, 1)].into());
    assert_eq!(
        render_report(&apply_one_shot(&world, &store, one_shot_operation("r4", "key-2", "start web"))),
        ["100 start: done"],
        "another key is another request"
    );
}

/// Design 6.21: a config value that cannot be hot-plugged is written and pending. That counts as done, and the next plan finds nothing to
/// do.
#[test]
fn config_pending_restart_counts_as_done() {
    let (world, store) = (TestCluster::new(&[(102, "running")]), MemoryStore::new());
    let guests = [json!({ "vmid": 102, "kind": "qemu", "name": "web", "config": { "cores": 4 } })];
    let run = |name: &str| apply_plan(&world, &store, approve_plan(&guests, &world), name, Settings::default());
    let report = run("r1");
    assert_eq!(render_report(&report), ["102 config.set: done"]);
    let observed = &report.operations()[0].outcome.findings().observed;
    assert_eq!(observed.get("pending_restart"), Some(&Fact::Words(Box::new(["cores".into()]))));
    let plan = testing::plan_guests(&guests, &world.read_rows());
    assert_eq!(plan.verdicts(), [Verdict::Converged { pending_restart: true }]);
    assert_eq!((run("r2").operations().len(), world.send_counts()), (0, [(102, 1)].into()), "the guest is not restarted");
}

/// Design 6.22: a guest that does not shut down is held until it is read, and is never forced.
#[test]
fn unresponsive_shutdown_is_held_then_released_and_never_forced() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    world.ignore_shutdown_of(101);
    let report = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    assert_eq!(render_report(&report)[1], "101 shutdown: held shutdown-timeout");
    assert!(
        matches!(&report.operations()[1].outcome, Outcome::Held { release: ReleaseCondition::Reading, .. }),
        "{:?}",
        report.operations()[1]
    );
    for run in ["r2", "r3"] {
        let report = apply_desired(&world, &store.clone(), run, Settings::default(), no_signal()).expect("the run begins");
        let report_lines = render_report(&report);
        assert_eq!(report_lines, ["101 shutdown: failed shutdown-timeout", "101 shutdown: held shutdown-timeout"], "{run}");
    }
    let changes: Vec<String> = world.sent_changes().into_iter().filter(|(vmid, _)| *vmid == 101).map(|(_, change)| change).collect();
    assert_eq!(changes, ["shutdown"; 3]);
}

/// A person resolves an operation while it is being read again: their resolution stands, and no other operation is stopped.
#[test]
fn resolution_by_a_person_during_recovery_stops_no_other_operation() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    world.ignore_shutdown_of(101);
    apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    let plan = approve_plan(&desired_guests(), &world);
    let run = start_run(&world, &store, &plan, "r2").expect("taken");
    let (id, recovered, applied) = block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        let unsettled = process.executor.find_unsettled().await.expect("readable");
        let [held] = unsettled.histories() else { panic!("{unsettled:?}") };
        let (id, by, reason) = (held.operation.id.clone(), "ann".into(), "it went down at last, and was started again".into());
        let resolution_record = JournalRecord::Resolved { id: id.clone(), resolution: Resolution::Done, by, reason, at_ms: NOW_MS };
        let _ = store.commit_now(Batch::from(resolution_record)).expect("taken");
        let (actuator, patience) = (Arc::new(world.clone()), Patience::default());
        let recovery = RecoverySubmission { unsettled, actuator, patience, on_notice: Box::new(|_| ()) };
        let (recovered, applied) = (process.executor.recover(recovery), process.submit(plan, run));
        (id, recovered.wait().await.expect("it is read"), applied.wait().await.expect("the run begins"))
    });
    assert_eq!(render_report(&recovered), ["101 shutdown: failed shutdown-timeout"]);
    assert_eq!(render_report(&applied), ["101 shutdown: held shutdown-timeout"]);
    let known = block_on(store.operation(id)).expect("readable").expect("it is there");
    assert_eq!(known.progress().resolution, Some(Resolution::Done), "the resolution of the person stands");
}
