//! One executor for many runs: they share queues and limits, end on their own and are forgotten. A dropped report, a failure, a full disk
//! or a recovery of one run does not affect the others.

use super::*;

/// A plan for one guest to be running or stopped.
fn plan_power(world: &TestCluster, vmid: u32, state: &str) -> ApprovedPlan {
    let rows: Vec<Json> = world.read_rows().into_iter().filter(|row| row["vmid"] == vmid).collect();
    approve_plan_from_rows(&[json!({ "vmid": vmid, "kind": "qemu", "name": "web", "state": state })], &rows)
}

fn one_at_a_time() -> Settings {
    Settings { limits: ConcurrencyLimits { per_node: 1, overall: 1 }, ..Settings::default() }
}

/// Waits until the executor holds nothing.
async fn wait_until_idle(executor: &Executor<TestCluster>) {
    for _ in 0..100_000 {
        if executor.measure_load().await.entries == 0 {
            return;
        }
    }
    panic!("it still holds {:?}", executor.measure_load().await);
}

/// Lets the executor work as far as it can without responses.
async fn let_others_work() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

fn end_of(store: &MemoryStore, run: &str) -> Option<OperationEnd> {
    block_on(store.run(RunId::new(run).expect("an id"))).expect("readable").expect("it was started").ended.map(|(end, _)| end)
}

#[test]
fn executor_forgets_ten_thousand_runs_that_ended() {
    let guests: Vec<(u32, &str)> = (100..108).map(|vmid| (vmid, "stopped")).collect();
    let (world, store) = (TestCluster::new(&guests), MemoryStore::new());
    block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        let mut entries_max = 0;
        for wave in 0..1_250 {
            let state = if wave % 2 == 0 { "running" } else { "stopped" };
            let submit = |(vmid, _): &(u32, &str)| {
                let plan = plan_power(&world, *vmid, state);
                let run = start_run(&world, &store, &plan, &format!("r{wave}-{vmid}")).expect("taken");
                process.submit(plan, run)
            };
            let pending: Vec<PendingReport> = guests.iter().map(submit).collect();
            entries_max = entries_max.max(process.executor.measure_load().await.entries);
            for report in pending {
                let report = report.wait().await.expect("the run begins");
                assert_eq!((report.operations().len(), report.end()), (1, OperationEnd::Done), "wave {wave}: {:?}", render_report(&report));
                entries_max = entries_max.max(process.executor.measure_load().await.entries);
            }
            wait_until_idle(&process.executor).await;
        }
        assert!(entries_max > 0 && entries_max < 8 * 20, "eight runs took {entries_max} entries");
    });
    assert_eq!(world.send_counts().values().sum::<u32>(), 10_000);
}

#[test]
fn dropped_report_cancels_nothing_and_the_end_of_the_run_is_recorded() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let plan = approve_plan(&desired_guests(), &world);
    let run = start_run(&world, &store, &plan, "r1").expect("taken");
    block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        drop(process.submit(plan, run));
        wait_until_idle(&process.executor).await;
    });
    assert_eq!((world.send_counts().values().sum::<u32>(), end_of(&store, "r1")), (6, Some(OperationEnd::Done)));
    assert!(block_on(load_unsettled(&store, &lab_environment())).expect("readable").is_empty());
}

#[test]
fn dropped_executor_finishes_submitted_runs_and_then_ends_its_task() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let plan = approve_plan(&desired_guests(), &world);
    let run = start_run(&world, &store, &plan, "r1").expect("taken");
    block_on(async {
        let clock = Arc::new(TestClusterClock::new(NOW_MS, world.clone()));
        let (executor, task) = Executor::new(lab_environment(), Arc::new(store.clone()), clock, ConcurrencyLimits::default(), no_signal());
        let process = Process { world: world.clone(), store: Arc::new(store.clone()), executor, options: RunOptions::default() };
        let report = process.submit(plan, run);
        drop(process);
        drop(report);
        task.await;
    });
    assert_eq!((world.send_counts().values().sum::<u32>(), end_of(&store, "r1")), (6, Some(OperationEnd::Done)));
}

/// The cluster rejects two concurrent tasks on one guest. This also checks that the operation of the first run ends before that of the
/// second starts.
#[test]
fn g12_operations_of_two_runs_on_one_guest_never_overlap() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let notice_log = Arc::new(Mutex::new(Vec::new()));
    let reports = block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        let mut pending = Vec::new();
        for name in ["r1", "r2", "r3"] {
            let plan = approve_plan(&desired_guests(), &initial_cluster());
            let run = start_run(&world, &store, &plan, name).expect("taken");
            let (own, slot) = (Arc::clone(&notice_log), process.executor.reserve_slot().expect("a slot"));
            let on_notice: OnNotice = Box::new(move |notice| {
                own.lock().expect("told").push((notice.operation.guest.vmid.get(), notice.operation.id.clone(), notice.phase));
            });
            pending.push(process.executor.submit(slot, RunSubmission { on_notice, ..process.submission(plan, run) }));
        }
        let mut reports = Vec::new();
        for report in pending {
            reports.push(report.wait().await.expect("the run begins"));
        }
        reports
    });
    let notices = notice_log.lock().expect("told");
    for vmid in 100..=103 {
        let mut in_flight: Option<&OperationId> = None;
        for (_, id, phase) in notices.iter().filter(|(own, ..)| *own == vmid) {
            let is_not_run = in_flight != Some(id) && *phase == Phase::Ended;
            assert!(is_not_run || in_flight.is_none_or(|own| own == id), "{id} is {phase:?} while {in_flight:?} is in flight");
            in_flight = if is_not_run { in_flight } else { Some(id).filter(|_| *phase != Phase::Ended) };
        }
    }
    // The newest plan supersedes queued steps, and finds the work of the first one already done.
    assert_eq!(render_report(&reports[0])[0], "100 start: done");
    assert!(render_report(&reports[1]).iter().all(|line| line.ends_with("superseded")), "{:?}", render_report(&reports[1]));
    assert_eq!(render_report(&reports[2])[0], "100 start: done");
    assert_eq!(world.send_counts().get(&100), Some(&1));
}

#[test]
fn fail_fast_of_one_run_does_not_stop_another() {
    let (world, store) = (TestCluster::new(&[(100, "stopped"), (101, "stopped"), (102, "stopped"), (103, "stopped")]), MemoryStore::new());
    world.fail_tasks_of(100);
    let plan = |guests: [u32; 2]| {
        approve_plan(&guests.map(|vmid| json!({ "vmid": vmid, "kind": "qemu", "name": "web", "state": "running" })), &world)
    };
    let (stopping, other) = (plan([100, 101]), plan([102, 103]));
    let runs = [start_run(&world, &store, &stopping, "r1").expect("taken"), start_run(&world, &store, &other, "r2").expect("taken")];
    let (first, second) = block_on(async {
        let process = Process::start(&world, store.clone(), one_at_a_time(), no_signal());
        let [first, second] = runs;
        let options = RunOptions { on_failure: OnFailure::Stop, ..RunOptions::default() };
        let slot = process.executor.reserve_slot().expect("a slot");
        let first = process.executor.submit(slot, RunSubmission { options, ..process.submission(stopping, first) });
        let second = process.submit(other, second);
        (first.wait().await.expect("the run begins"), second.wait().await.expect("the run begins"))
    });
    assert_eq!(render_report(&first), ["100 start: failed task-failed", "101 start: not-run run-stopped"]);
    assert_eq!(render_report(&second), ["102 start: done", "103 start: done"]);
    assert_eq!((end_of(&store, "r1"), end_of(&store, "r2")), (Some(OperationEnd::Failed), Some(OperationEnd::Done)));
}

#[test]
fn stop_of_one_run_does_not_stop_another() {
    let (world, store) = (TestCluster::new(&[(100, "stopped"), (101, "stopped")]), MemoryStore::new());
    let (first, second) = (plan_power(&world, 100, "running"), plan_power(&world, 101, "running"));
    let runs = [start_run(&world, &store, &first, "r1").expect("taken"), start_run(&world, &store, &second, "r2").expect("taken")];
    let reports = block_on(async {
        let process = Process::start(&world, store.clone(), one_at_a_time(), no_signal());
        let (executor, [run, other]) = (process.executor.clone(), runs);
        let stopped = other.clone();
        world.on_first_send(move || executor.stop_run(stopped));
        let (first, second) = (process.submit(first, run), process.submit(second, other));
        (render_report(&first.wait().await.expect("the run begins")), render_report(&second.wait().await.expect("the run begins")))
    });
    assert_eq!(reports, (vec!["100 start: done".to_owned()], vec!["101 start: not-run run-stopped".to_owned()]));
}

#[test]
fn drain_skips_queued_operations_of_all_runs_and_finishes_those_in_flight() {
    let (world, store) = (TestCluster::new(&[(100, "stopped"), (101, "stopped"), (102, "stopped")]), MemoryStore::new());
    let (says, hears) = watch::channel(RunSignal::Continue);
    let says = Arc::new(says);
    let own = Arc::clone(&says);
    world.on_first_send(move || {
        own.send_replace(RunSignal::Drain);
    });
    let (reports, refused) = block_on(async {
        let process = Process::start(&world, store.clone(), one_at_a_time(), hears);
        let submit = |(vmid, run): (u32, &str)| {
            let plan = plan_power(&world, vmid, "running");
            let run = start_run(&world, &store, &plan, run).expect("taken");
            process.submit(plan, run)
        };
        let pending = [(100, "r1"), (101, "r2"), (102, "r3")].map(submit);
        let mut reports = Vec::new();
        for report in pending {
            reports.extend(render_report(&report.wait().await.expect("the run is answered")));
        }
        (reports, process.executor.reserve_slot().err())
    });
    assert_eq!(reports, ["100 start: done", "101 start: not-run run-stopped", "102 start: not-run run-stopped"]);
    assert_eq!(
        ["r1", "r2", "r3"].map(|run| end_of(&store, run)),
        [OperationEnd::Done, OperationEnd::NotRun, OperationEnd::NotRun].map(Some)
    );
    assert_eq!(refused, Some(NotAccepting::Stopping));
}

#[test]
fn leave_answers_every_run_and_leaves_operations_in_flight() {
    let (world, store) = (TestCluster::new(&[(100, "stopped"), (101, "stopped")]), MemoryStore::new());
    let (says, hears) = watch::channel(RunSignal::Continue);
    world.on_first_send(move || {
        says.send_replace(RunSignal::Leave);
    });
    let reports = block_on(async {
        let process = Process::start(&world, store.clone(), one_at_a_time(), hears);
        let submit = |(vmid, run): (u32, &str)| {
            let plan = plan_power(&world, vmid, "running");
            let run = start_run(&world, &store, &plan, run).expect("taken");
            process.submit(plan, run)
        };
        let pending = [(100, "r1"), (101, "r2")].map(submit);
        let mut reports = Vec::new();
        for report in pending {
            reports.extend(render_report(&report.wait().await.expect("the run is answered")));
        }
        reports
    });
    assert_eq!(reports, ["100 start: held run-left", "101 start: not-run run-stopped"]);
}

#[test]
fn closed_executor_finishes_operations_in_flight_and_refuses_later_runs() {
    let (world, store) = (TestCluster::new(&[(100, "stopped"), (101, "stopped")]), MemoryStore::new());
    let (first, late) = (plan_power(&world, 100, "running"), plan_power(&world, 101, "running"));
    let runs = [start_run(&world, &store, &first, "r1").expect("taken"), start_run(&world, &store, &late, "r2").expect("taken")];
    block_on(async {
        let clock = Arc::new(TestClusterClock::new(NOW_MS, world.clone()));
        let (executor, task) = Executor::new(lab_environment(), Arc::new(store.clone()), clock, ConcurrencyLimits::default(), no_signal());
        let process = Process { world: world.clone(), store: Arc::new(store.clone()), executor, options: RunOptions::default() };
        let ([run, other], slot) = (runs, process.executor.reserve_slot().expect("a slot"));
        let closing = process.executor.clone();
        world.on_first_send(move || closing.close());
        let first = process.submit(first, run);
        task.await;
        assert_eq!(render_report(&first.wait().await.expect("the run begins")), ["100 start: done"]);
        assert_eq!(process.executor.reserve_slot().err(), Some(NotAccepting::Stopping));
        let late = process.executor.submit(slot, process.submission(late, other)).wait().await;
        assert!(matches!(late, Err(EngineError::NotAccepting(NotAccepting::Stopping))), "{late:?}");
        let found = process.executor.find_unsettled().await;
        assert!(matches!(found, Err(EngineError::NotAccepting(NotAccepting::Stopping))), "{found:?}");
    });
    assert_eq!(world.send_counts(), [(100, 1)].into());
}

#[test]
fn refuses_the_65th_open_run_until_one_of_them_has_ended() {
    let guests: Vec<(u32, &str)> = (100..164).map(|vmid| (vmid, "stopped")).collect();
    let (world, store) = (TestCluster::new(&guests), MemoryStore::new());
    let rows = world.read_rows();
    let (says, hears) = watch::channel(RunSignal::Continue);
    // No request is answered, so no run ends.
    world.stop_answering_at(Some(1));
    block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), hears);
        for (vmid, _) in &guests {
            let plan = approve_plan_from_rows(&[json!({ "vmid": vmid, "kind": "qemu", "name": "web", "state": "running" })], &rows);
            let run = start_run(&world, &store, &plan, &format!("r{vmid}")).expect("taken");
            drop(process.submit(plan, run));
        }
        assert_eq!(process.executor.reserve_slot().err(), Some(NotAccepting::TooManyRuns));
        let_others_work().await;
        let load = process.executor.measure_load().await;
        assert_eq!((load.submissions, load.operations), (64, 64));
        assert_eq!(process.executor.reserve_slot().err(), Some(NotAccepting::TooManyRuns));
        // Queued runs end; those with operations in flight stay open.
        says.send_replace(RunSignal::Drain);
        let_others_work().await;
        let load = process.executor.measure_load().await;
        assert_eq!((load.submissions, load.operations), (4, 4), "the limit of one node is in flight");
    });
    let (world, store) = (initial_cluster(), MemoryStore::new());
    block_on(async {
        let process = Process::start(&world, store, Settings::default(), no_signal());
        let mut slots: Vec<RunSlot> = (0..OPEN_RUNS_MAX).map(|_| process.executor.reserve_slot().expect("a slot")).collect();
        assert_eq!(process.executor.reserve_slot().err(), Some(NotAccepting::TooManyRuns));
        slots.pop();
        assert!(process.executor.reserve_slot().is_ok());
    });
}

/// Design 6.13: nothing is sent while the journal cannot be written. The executor survives that.
#[test]
fn full_disk_ends_open_runs_and_later_runs_are_applied_once_there_is_space() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let submit = |process: &Process, run: &str| {
        let plan = approve_plan(&desired_guests(), &world);
        let run = start_run(&world, &store, &plan, run).expect("taken");
        process.submit(plan, run)
    };
    block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        for run in ["r1", "r2"] {
            let pending = submit(&process, run);
            // Four intents are written at once, and none fits on the disk.
            (0..4).for_each(|_| store.fail_next(CommitFault::Full));
            let report = pending.wait().await.expect("the run begins");
            assert!(
                render_report(&report).iter().all(|line| line.ends_with("not-run journal-unwritable")),
                "{run}: {:?}",
                render_report(&report)
            );
            assert!(world.send_counts().is_empty(), "{run}");
        }
        let report = submit(&process, "r3").wait().await.expect("the run begins");
        assert_eq!(render_report(&report), ALL_DONE);
        wait_until_idle(&process.executor).await;
    });
}

/// The end of an operation cannot be written: its guest is held, and the same process settles it once there is space.
#[test]
fn operation_that_a_full_disk_left_open_is_recovered_by_the_same_process() {
    let (world, store) = (TestCluster::new(&[(100, "stopped")]), MemoryStore::new());
    let own = store.clone();
    world.on_first_send(move || own.fail_next(CommitFault::Full));
    block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        let plan = plan_power(&world, 100, "running");
        let run = start_run(&world, &store, &plan, "r1").expect("taken");
        let report = process.submit(plan, run).wait().await.expect("the run begins");
        assert_eq!(render_report(&report), ["100 start: held journal-unwritable"]);
        assert_eq!(process.unsettled().await.expect("readable").len(), 1);
        let recovered = process.recover(Patience::default()).await.expect("readable");
        assert_eq!(render_report(&recovered), ["100 start: done"]);
        assert!(process.unsettled().await.expect("readable").is_empty());
    });
    assert_eq!(world.send_counts(), [(100, 1)].into());
}

/// An intent without a mark proves that nothing was sent only if its process is dead. For a live process it would release a guest that is
/// about to change.
#[test]
fn g13_recovery_skips_operations_that_this_process_executes_also_those_whose_report_was_dropped() {
    for number in 1..=7 {
        let (world, store) = (TestCluster::new(&[(100, "stopped")]), MemoryStore::new());
        world.stop_answering_at(Some(number));
        block_on(async {
            let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
            let plan = approve_plan_from_rows(&desired_guests()[..1], &TestCluster::new(&[(100, "stopped")]).read_rows());
            let run = start_run(&world, &store, &plan, "r1").expect("taken");
            drop(process.submit(plan, run));
            let_others_work().await;
            assert_eq!(process.unsettled().await.expect("readable").len(), 1, "request {number}: it is in flight");
            let requests_before = world.request_count();
            let recovered = process.recover(Patience::default()).await.expect("readable");
            assert_eq!((render_report(&recovered), world.request_count()), (Vec::new(), requests_before), "request {number}");
            assert_eq!(process.unsettled().await.expect("readable").len(), 1, "request {number}: it was not given an end");
        });
    }
}

#[test]
fn recovery_waits_for_an_earlier_one_and_finds_nothing_left() {
    let (world, store) = (TestCluster::new(&[(100, "stopped")]), MemoryStore::new());
    let (says, hears) = watch::channel(RunSignal::Continue);
    world.on_first_send(move || {
        says.send_replace(RunSignal::Leave);
    });
    let plan = plan_power(&world, 100, "running");
    let run = start_run(&world, &store, &plan, "r1").expect("taken");
    block_on(async { Process::start(&world, store.clone(), Settings::default(), hears).submit(plan, run).wait().await }).expect("answered");
    let store = store.crash();
    block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        let unsettled = process.executor.find_unsettled().await.expect("readable");
        assert_eq!(unsettled.histories().len(), 1);
        let (actuator, patience) = (Arc::new(world.clone()), Patience::default());
        let first = process.executor.recover(RecoverySubmission { unsettled, actuator, patience, on_notice: Box::new(|_| ()) });
        // Nobody waits for the first recovery: it continues anyway, and the second one waits for it.
        drop(first);
        let second = process.recover(Patience::default()).await.expect("readable");
        assert_eq!(render_report(&second), Vec::<String>::new());
        assert!(process.unsettled().await.expect("readable").is_empty(), "the first one has settled it");
    });
}

/// Each observation selects an endpoint: the requests of a run go to the endpoint of its own observation.
#[test]
fn each_run_sends_over_its_own_actuator() {
    let (one, other, store) = (TestCluster::new(&[(100, "stopped")]), TestCluster::new(&[(101, "stopped")]), MemoryStore::new());
    let plan = |world: &TestCluster, vmid: u32| {
        approve_plan(&[json!({ "vmid": vmid, "kind": "qemu", "name": "web", "config": { "cores": 4 } })], world)
    };
    let (first, second) = (plan(&one, 100), plan(&other, 101));
    let runs = [start_run(&one, &store, &first, "r1").expect("taken"), start_run(&one, &store, &second, "r2").expect("taken")];
    block_on(async {
        let process = Process::start(&one, store.clone(), Settings::default(), no_signal());
        let [run, another] = runs;
        let slot = process.executor.reserve_slot().expect("a slot");
        let actuator = Arc::new(other.clone());
        let second = process.executor.submit(slot, RunSubmission { actuator, ..process.submission(second, another) });
        let first = process.submit(first, run);
        assert_eq!(render_report(&first.wait().await.expect("the run begins")), ["100 config.set: done"]);
        assert_eq!(render_report(&second.wait().await.expect("the run begins")), ["101 config.set: done"]);
    });
    assert_eq!((one.send_counts(), other.send_counts()), ([(100, 1)].into(), [(101, 1)].into()));
}

#[test]
fn refuses_to_apply_a_run_that_is_being_applied() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    let plans = [approve_plan(&desired_guests(), &world), approve_plan(&desired_guests(), &initial_cluster())];
    let run = start_run(&world, &store, &plans[0], "r1").expect("taken");
    assert_eq!(plans[0].digest(), plans[1].digest());
    let [first, second] = plans;
    block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        let (first, second) = (process.submit(first, run.clone()), process.submit(second, run.clone()));
        let second = second.wait().await;
        assert!(matches!(&second, Err(EngineError::RunMismatch(other)) if *other == run), "{second:?}");
        assert_eq!(render_report(&first.wait().await.expect("the run begins")), ALL_DONE);
    });
}
