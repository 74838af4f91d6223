//! A crash at any request, a failing journal at any commit, a lost response at any send: nothing is lost and nothing is done twice.

use std::sync::atomic::{AtomicU64, Ordering};

use converger_core::apply::{EnvironmentNames, Freeze, Hold, IdempotencyKey, TaskId};
use converger_core::artifact::Digest;
use converger_core::guest::Vmid;
use converger_store::{JournalOverview, LedgerHeads, LedgerRows, LogHash, RunHistory, StoreConditions, StoreReader, Tile};

use super::*;

/// Runs until there are no more responses, and is killed there. The store is as the next process finds it.
fn kill_at_request(number: u64) -> (TestCluster, MemoryStore) {
    let (world, store) = abandon_at_request(number);
    (world, store.crash())
}

/// The same, but the store is not closed.
fn abandon_at_request(number: u64) -> (TestCluster, MemoryStore) {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    world.stop_answering_at(Some(number));
    let plan = approve_plan(&desired_guests(), &world);
    let run = start_run(&world, &store, &plan, "r1").expect("taken");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let process = Process::start(&world, store.clone(), Settings::default(), no_signal());
        // Everything else continues as far as it can without the missing response; then the process ends.
        let mut run = Box::pin(process.submit(plan, run).wait());
        for _ in 0..5_000 {
            let is_finished = std::future::poll_fn(|context| std::task::Poll::Ready(run.as_mut().poll(context).is_ready())).await;
            if is_finished {
                break;
            }
            tokio::task::yield_now().await;
        }
    });
    runtime.shutdown_background();
    world.stop_answering_at(None);
    (world, store)
}

/// A process that only recovers, as after a crash.
fn recover(world: &TestCluster, store: &MemoryStore, settings: Settings, signal: watch::Receiver<RunSignal>) -> ExecutionReport {
    let recovery = async { Process::start(world, store.clone(), settings, signal).recover(settings.options.patience.for_startup()).await };
    block_on(recovery).expect("readable")
}

/// No change was sent twice, over all runs.
#[track_caller]
fn assert_nothing_sent_twice(world: &TestCluster, what: &str) {
    let order = world.sent_changes();
    for (index, sent) in order.iter().enumerate() {
        assert!(!order[..index].contains(sent), "{what}: {sent:?} was sent twice: {order:?}");
    }
}

#[test]
fn crash_at_any_request_loses_nothing_and_repeats_nothing() {
    let (world, _) = kill_at_request(u64::MAX / 2);
    let requests = world.request_count();
    assert!(requests > 30, "only {requests} requests");
    let mut recovered = 0;
    for number in 1..=requests {
        let (world, store) = kill_at_request(number);
        let before = world.sent_changes().len();
        let report = recover(&world, &store, Settings::default(), no_signal());
        recovered += report.operations().len();
        assert_eq!(world.sent_changes().len(), before, "request {number}: recovery sent something");
        assert!(report.operations().iter().all(|reported| reported.is_recovered && reported.is_recorded), "request {number}");
        // Operations that are still running are read again by the next apply. Only a reboot whose response was lost cannot be
        // distinguished from none.
        let held = render_report(&report).into_iter().filter(|line| line.contains(": held"));
        // A change that was marked but did not arrive may still arrive.
        let is_known = |line: &String| line.ends_with(": held task-at-work") || line.ends_with(": held outcome-unclear");
        assert!(held.clone().all(|line| is_known(&line)), "{:?}", held.collect::<Vec<_>>());
        world.advance_time(Patience::default().late_arrival_ms);
        let report = apply_desired(&world, &store, "r2", Settings::default(), no_signal()).expect("the run begins");
        let is_well = |reported: &OperationReport| {
            reported.outcome.end() == OperationEnd::Done || reported.is_recovered || reported.operation.guest.vmid.get() == 102
        };
        assert!(report.operations().iter().all(is_well), "request {number}: {:?}", render_report(&report));
        assert_nothing_sent_twice(&world, &format!("request {number}"));
    }
    assert!(recovered > 20, "only {recovered} operations were found open");
}

/// Decision 0016: a process that dies before it sends leaves its guest free; if the machine reboots, the guest is blocked for a minute.
#[test]
fn process_killed_before_sending_blocks_no_guest_unless_the_machine_rebooted() {
    let mut seen = std::collections::BTreeMap::new();
    for number in 1..=8 {
        for is_power_lost in [false, true] {
            let (world, store) = abandon_at_request(number);
            let store = if is_power_lost { store.lose_power() } else { store.crash() };
            if is_power_lost {
                world.reboot_local_machine();
            }
            let sends = world.send_counts();
            for reported in recover(&world, &store, Settings::default(), no_signal()).operations() {
                let is_sent = sends.contains_key(&reported.operation.guest.vmid.get());
                let code = reported.outcome.code().map(ToString::to_string).unwrap_or_default();
                assert!(!is_sent || code != "not-carried-out", "{number} {is_power_lost}: {reported:?}");
                *seen.entry((is_power_lost, is_sent, code)).or_insert(0) += 1;
            }
        }
    }
    let count = |is_power_lost, is_sent, code: &str| seen.get(&(is_power_lost, is_sent, code.to_owned())).copied().unwrap_or(0);
    assert!(count(false, false, "not-carried-out") > 5, "{seen:?}");
    assert_eq!(count(true, false, "not-carried-out"), 0, "{seen:?}");
    assert!(count(true, false, "outcome-unclear") > 5, "{seen:?}");
}

/// A change that was sent must never be reported as not run, and nothing about the current run may prevent its recovery.
#[test]
fn s17_recovers_interrupted_operations_under_any_signal_and_never_reports_them_not_run() {
    let settings = Settings { limits: ConcurrencyLimits { per_node: 1, overall: 1 }, ..Settings::default() };
    let mut several = 0;
    for number in 1..=40 {
        for signal in [RunSignal::Continue, RunSignal::Drain, RunSignal::Leave] {
            let (world, store) = kill_at_request(number);
            let (says, hears) = watch::channel(RunSignal::Continue);
            says.send(signal).expect("the executor listens");
            let count = block_on(load_unsettled(&store, &lab_environment())).expect("readable").len();
            several += usize::from(count > 1);
            let report = recover(&world, &store, settings, hears);
            assert_eq!(report.operations().len(), count);
            let is_found_out = |reported: &OperationReport| reported.is_recorded && reported.outcome.end() != OperationEnd::NotRun;
            let is_left = |reported: &OperationReport| {
                reported.outcome.code().is_some_and(|code| code.to_string() == "run-left") && !reported.is_recorded
            };
            let is_so = |reported: &OperationReport| if signal == RunSignal::Leave { is_left(reported) } else { is_found_out(reported) };
            assert!(report.operations().iter().all(is_so), "request {number}, {signal:?}: {:?}", render_report(&report));
        }
    }
    assert!(several > 20, "only {several} times more than one was left");
}

#[test]
fn recovers_a_lost_response_to_any_send_by_reading() {
    for number in 1..=6 {
        let (world, store) = (initial_cluster(), MemoryStore::new());
        world.lose_response_to(number);
        let report = apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
        assert_eq!(render_report(&report), ALL_DONE, "send {number}");
        assert_nothing_sent_twice(&world, &format!("send {number}"));
    }
}

#[test]
fn sends_nothing_more_after_a_failed_commit() {
    let (world, store) = (initial_cluster(), MemoryStore::new());
    apply_desired(&world, &store, "r1", Settings::default(), no_signal()).expect("the run begins");
    // The first commit is the start of the run, the last one its end, after everything is done. Each operation has a mark besides its
    // durable records.
    let commits = store.transactions() - 2 + 6;
    for fault in [CommitFault::Full, CommitFault::LostUnwritten, CommitFault::LostWritten] {
        for number in 0..commits {
            let (world, store) = (initial_cluster(), MemoryStore::new());
            let failing = FailingStore { store: store.clone(), at: number, fault, commits: Arc::default() };
            let plan = approve_plan(&desired_guests(), &world);
            let run = start_run(&world, &store, &plan, "r1").expect("taken");
            let run = async { Process::start(&world, failing, Settings::default(), no_signal()).submit(plan, run).wait().await };
            let report = block_on(run).expect("the run begins");
            let is_unwritable =
                |reported: &OperationReport| reported.outcome.code().is_some_and(|code| code.as_str() == "journal-unwritable");
            let is_seen = |reported: &OperationReport| !reported.is_recorded || is_unwritable(reported);
            assert!(report.operations().iter().any(is_seen), "{fault:?} at {number}");
            // Every change that was sent has a durable intent.
            let store = store.crash();
            for (vmid, change) in world.sent_changes() {
                let filter = OperationFilter { vmid: Vmid::new(u64::from(vmid)), ..OperationFilter::default() };
                let known = block_on(store.operations(filter, 10)).expect("readable");
                assert!(
                    known.iter().any(|history| history.operation.step.change.word() == change),
                    "{fault:?} at {number}: {vmid} {change}"
                );
            }
            let report = apply_desired(&world, &store, "r2", Settings::default(), no_signal()).expect("the run begins");
            let is_well = |reported: &OperationReport| {
                reported.outcome.end() == OperationEnd::Done || reported.is_recovered || reported.operation.guest.vmid.get() == 102
            };
            assert!(report.operations().iter().all(is_well), "{fault:?} at {number}: {:?}", render_report(&report));
            assert_nothing_sent_twice(&world, &format!("{fault:?} at {number}"));
        }
    }
}

/// A store that fails at one commit.
#[derive(Clone)]
struct FailingStore {
    store: MemoryStore,
    at: u64,
    fault: CommitFault,
    commits: Arc<AtomicU64>,
}

impl Store for FailingStore {
    async fn commit(&self, batch: Batch) -> Result<CommitAck, StoreError> {
        if self.commits.fetch_add(1, Ordering::Relaxed) == self.at {
            self.store.fail_next(self.fault);
        }
        self.store.commit(batch).await
    }
}

impl StoreReader for FailingStore {
    async fn epoch(&self) -> Result<u64, StoreError> {
        self.store.epoch().await
    }

    async fn guest_operations(&self, environment: EnvironmentName, guests: Vec<Vmid>) -> Result<Vec<OperationHistory>, StoreError> {
        self.store.guest_operations(environment, guests).await
    }

    async fn conditions(&self, environment: EnvironmentName) -> Result<StoreConditions, StoreError> {
        self.store.conditions(environment).await
    }

    async fn journal_overview(&self) -> Result<JournalOverview, StoreError> {
        self.store.journal_overview().await
    }

    async fn digests(&self) -> Result<Vec<Digest>, StoreError> {
        self.store.digests().await
    }

    async fn full_tile(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        self.store.full_tile(tile).await
    }

    async fn ledger_rows(&self) -> Result<LedgerRows, StoreError> {
        self.store.ledger_rows().await
    }

    async fn operation(&self, id: OperationId) -> Result<Option<OperationHistory>, StoreError> {
        self.store.operation(id).await
    }

    async fn open_operations(&self, environment: EnvironmentName) -> Result<Vec<OperationHistory>, StoreError> {
        self.store.open_operations(environment).await
    }

    async fn operations(&self, filter: OperationFilter, limit: u32) -> Result<Vec<OperationHistory>, StoreError> {
        self.store.operations(filter, limit).await
    }

    async fn operations_of_tasks(
        &self,
        environment: EnvironmentName,
        tasks: Vec<TaskId>,
    ) -> Result<Vec<(TaskId, OperationId)>, StoreError> {
        self.store.operations_of_tasks(environment, tasks).await
    }

    async fn operation_of_key(&self, environment: EnvironmentName, key: IdempotencyKey) -> Result<Option<OperationHistory>, StoreError> {
        self.store.operation_of_key(environment, key).await
    }

    async fn run(&self, id: RunId) -> Result<Option<RunHistory>, StoreError> {
        self.store.run(id).await
    }

    async fn runs(&self, environment: EnvironmentName, limit: u32) -> Result<Vec<RunHistory>, StoreError> {
        self.store.runs(environment, limit).await
    }

    async fn holds(&self, environment: EnvironmentName) -> Result<Vec<Hold>, StoreError> {
        self.store.holds(environment).await
    }

    async fn freeze(&self, environment: EnvironmentName) -> Result<Option<Freeze>, StoreError> {
        self.store.freeze(environment).await
    }

    async fn names(&self) -> Result<EnvironmentNames, StoreError> {
        self.store.names().await
    }

    async fn blob(&self, digest: Digest) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.blob(digest).await
    }

    async fn heads(&self) -> Result<LedgerHeads, StoreError> {
        self.store.heads().await
    }

    async fn entries(&self, from: u64, limit: u32) -> Result<Vec<Vec<u8>>, StoreError> {
        self.store.entries(from, limit).await
    }

    async fn hashes(&self, tile: Tile) -> Result<Option<Vec<LogHash>>, StoreError> {
        self.store.hashes(tile).await
    }
}
