//! Several runs in one open environment, against a lab over HTTPS: what a dropped future, a stop and too many runs mean.

mod events;
mod full_disk;
mod holds;
mod hosts;
mod lab;
mod recovery;
mod reload;
mod run_ends;
mod state_writes;

use std::pin::pin;

use converger_core::apply::{OperationEnd, RunId};
use converger_core::approve::{Confirmation, RefusedGuestPolicy};
use converger_core::artifact::{Digest, GuestOmission};
use converger_engine::executor::{ExecutionReport, NotAccepting, OPEN_RUNS_MAX, RunSignal};
use converger_engine::operation::Phase;
use converger_engine::schedule::OnFailure;
use converger_runtime::environment::StartedRun;
use converger_runtime::report::HeldBefore;
use converger_runtime::{
    ApprovedRun, Environment, EventStream, Opened, Run, RunAdmission, RunEnd, RunEvent, RunRequest, RuntimeError, StateDirectory,
};
use converger_store::StoreReader as _;
use futures_util::future::{Either, select};

use lab::{Stage, declared};

const START_101: &str = "  - { vmid: 101, kind: qemu, name: web-1, state: running }\n";
const CORES_102: &str = "  - { vmid: 102, kind: qemu, name: web-2, config: { cores: 2 } }\n";

fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

fn run_request(guests: &str) -> RunRequest {
    RunRequest {
        intent: declared(guests).into(),
        key: None,
        expected: None,
        narrowed: GuestOmission::Forbidden,
        refused: RefusedGuestPolicy::StopRun,
        on_failure: OnFailure::Continue,
        requested_by: "bob".into(),
    }
}

async fn start_run(environment: &Environment, guests: &str) -> Result<Run, RuntimeError> {
    match environment.start_run(run_request(guests)).await? {
        StartedRun::Run(run) => Ok(*run),
        StartedRun::Refused(refusal) => panic!("the lab is the cluster that the name stands for: {refusal:?}"),
        StartedRun::Repeated(repeated) => panic!("a desired state has no key: {repeated:?}"),
    }
}

/// Everything up to the first event that this finds something in.
async fn wait_for<T>(events: &mut EventStream, find: impl Fn(&RunEvent) -> Option<T>) -> (T, Vec<RunEvent>) {
    let mut passed = Vec::new();
    loop {
        let event = events.next().await.expect("the bus is there");
        if let Some(found) = find(&event) {
            return (found, passed);
        }
        passed.push(event);
    }
}

/// An operation whose task was started.
fn find_tasked(event: &RunEvent) -> Option<()> {
    matches!(event, RunEvent::OperationAdvanced(progress) if progress.phase == Phase::Tasked).then_some(())
}

/// A run that was confirmed by its digest, and its id.
async fn approved_run(environment: &Environment, events: &mut EventStream, guests: &str) -> (ApprovedRun, RunId, Vec<RunEvent>) {
    let run = start_run(environment, guests).await.expect("it starts");
    let recorded = |event: &RunEvent| match event {
        RunEvent::PlanRecorded { run, proposal, .. } => Some((run.clone(), *proposal)),
        _ => None,
    };
    let ((id, digest), passed): ((RunId, Digest), _) = wait_for(events, recorded).await;
    match run.admit(Confirmation::FullDigest { by: "ann".into(), digest }).await {
        RunAdmission::Approved(run) => (run, id, passed),
        RunAdmission::Ended(report) => panic!("{report:?}"),
    }
}

fn shown(report: &ExecutionReport) -> Vec<String> {
    let code = |outcome: &converger_core::apply::Outcome| outcome.code().map_or_else(String::new, |code| format!(" {code}"));
    let outcomes = report.operations().iter().map(|reported| (reported.operation.guest.vmid, &reported.outcome));
    outcomes.map(|(vmid, outcome)| format!("{vmid} {}{}", outcome.end().word(), code(outcome))).collect()
}

async fn end_of(state: &StateDirectory, run: RunId) -> Option<OperationEnd> {
    state.store().run(run).await.expect("readable").expect("it was started").ended.map(|(end, _)| end)
}

#[test]
fn dropped_apply_future_cancels_nothing_keeps_the_lock_and_its_run_ends_in_the_journal() {
    block(async {
        let stage = Stage::start(0);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let (run, first, _) = approved_run(&environment, &mut events, START_101).await;
        // The future is dropped while the task of its operation runs.
        match select(pin!(run.apply()), pin!(wait_for(&mut events, find_tasked))).await {
            Either::Left((report, _)) => panic!("{report:?}"),
            Either::Right(_) => {}
        }
        // Another run neither recovers the operation in flight nor takes it for held.
        let (run, second, passed) = approved_run(&environment, &mut events, CORES_102).await;
        let is_recovery = |event: &RunEvent| matches!(event, RunEvent::RecoveryStarted { .. } | RunEvent::OperationsHeld(_));
        assert!(!passed.iter().any(is_recovery), "{passed:?}");
        let report = run.apply().await;
        assert_eq!(
            (shown(&report.operations), report.end(), report.held_before),
            (vec!["102 done".to_owned()], RunEnd::Done, HeldBefore::Nowhere)
        );
        assert_eq!((end_of(&state, first.clone()).await, end_of(&state, second).await), (None, Some(OperationEnd::Done)));
        drop(environment);
        assert!(matches!(stage.open(&state), Opened::Refused(_)), "an operation is in flight");
        let apply_ended = |event: &RunEvent| matches!(event, RunEvent::ApplyEnded { .. }).then_some(());
        wait_for(&mut events, apply_ended).await;
        stage.pass(200_000).await;
        wait_for(&mut events, apply_ended).await;
        assert_eq!(end_of(&state, first).await, Some(OperationEnd::Done));
        while matches!(stage.open(&state), Opened::Refused(_)) {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn guest_with_an_operation_of_another_run_in_flight_gets_no_step() {
    block(async {
        let stage = Stage::start(0);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let (run, first, _) = approved_run(&environment, &mut events, START_101).await;
        let mut apply = pin!(run.apply());
        match select(&mut apply, pin!(wait_for(&mut events, find_tasked))).await {
            Either::Left((report, _)) => panic!("{report:?}"),
            Either::Right(_) => {}
        }
        let second = start_run(&environment, START_101).await.expect("it starts");
        assert_eq!((second.refused_guests().len(), second.held_before()), (1, HeldBefore::Nowhere));
        drop(second);
        stage.pass(200_000).await;
        assert_eq!(shown(&apply.await.operations), ["101 done"]);
        assert_eq!(end_of(&state, first).await, Some(OperationEnd::Done));
        environment.close().await.expect("there is no witness");
    });
}

#[test]
fn refuses_the_65th_open_run_and_every_run_after_a_stop() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let environment = stage.open_ready(&state);
        let mut runs = Vec::new();
        for _ in 0..OPEN_RUNS_MAX {
            runs.push(start_run(&environment, CORES_102).await.expect("it starts"));
        }
        let refused = start_run(&environment, CORES_102).await.err().expect("it is refused");
        assert!(matches!(refused, RuntimeError::NotAccepting { reason: NotAccepting::TooManyRuns, .. }), "{refused:?}");
        assert_eq!(refused.to_string(), "environment `lab` accepts no runs: 64 runs are open, and no more are accepted at once");
        runs.pop();
        runs.push(start_run(&environment, CORES_102).await.expect("one has ended"));
        runs.clear();
        environment.request_stop(RunSignal::Drain);
        let refused = start_run(&environment, CORES_102).await.err().expect("it is refused");
        assert!(matches!(refused, RuntimeError::NotAccepting { reason: NotAccepting::Stopping, .. }), "{refused:?}");
    });
}

#[test]
fn run_that_was_open_at_a_stop_is_not_run_and_after_the_close_refused_and_its_end_is_recorded() {
    block(async {
        let stage = Stage::start(100);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let (first, one, _) = approved_run(&environment, &mut events, START_101).await;
        let (second, other, _) = approved_run(&environment, &mut events, CORES_102).await;
        environment.request_stop(RunSignal::Drain);
        let report = first.apply().await;
        assert_eq!((shown(&report.operations), report.end()), (vec!["101 not-run run-stopped".to_owned()], RunEnd::NotRun));
        environment.close().await.expect("there is no witness");
        let report = second.apply().await;
        let error = report.error.as_ref().expect("it is refused");
        assert!(matches!(error, RuntimeError::NotAccepting { reason: NotAccepting::Stopping, .. }), "{error:?}");
        assert_eq!((end_of(&state, one).await, end_of(&state, other).await), (Some(OperationEnd::NotRun), Some(OperationEnd::Failed)));
        assert!(matches!(stage.open(&state), Opened::Ready(_)), "the lock is released");
    });
}
