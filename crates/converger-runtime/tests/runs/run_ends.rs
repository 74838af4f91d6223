//! How a run ended: one value, which the exit status and `result.json` both follow.

use std::sync::Arc;

use converger_runtime::report::RESULT_SCHEMA;
use converger_runtime::{EventSink, Host, RunReport};

use super::*;

const MISSING_103: &str = "  - { vmid: 103, kind: qemu, name: web-3, state: running }\n";

/// The end of a report, after a check that its document has the same.
fn end_in_report(report: &RunReport) -> RunEnd {
    let document = report.document();
    assert_eq!((&document["schema"], &document["end"]), (&RESULT_SCHEMA.into(), &report.end().word().into()));
    report.end()
}

fn ended(admission: RunAdmission) -> RunReport {
    match admission {
        RunAdmission::Ended(report) => report,
        RunAdmission::Approved(_) => panic!("it is not approved"),
    }
}

async fn start_partial(environment: &Environment, guests: &str) -> Run {
    let request = RunRequest { refused: RefusedGuestPolicy::LeaveOut, ..run_request(guests) };
    match environment.start_run(request).await.expect("it starts") {
        StartedRun::Run(run) => *run,
        StartedRun::Refused(refusal) => panic!("{refusal:?}"),
        StartedRun::Repeated(repeated) => panic!("a desired state has no key: {repeated:?}"),
    }
}

async fn apply_confirmed(run: Run, events: &mut EventStream) -> RunReport {
    let recorded = |event: &RunEvent| if let RunEvent::PlanRecorded { proposal, .. } = event { Some(*proposal) } else { None };
    let (digest, _) = wait_for(events, recorded).await;
    match run.admit(Confirmation::FullDigest { by: "ann".into(), digest }).await {
        RunAdmission::Approved(run) => run.apply().await,
        RunAdmission::Ended(report) => panic!("{report:?}"),
    }
}

#[test]
fn unconfirmed_run_is_refused_and_a_declined_one_is_declined() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let environment = stage.open_ready(&state);
        let run = start_run(&environment, CORES_102).await.expect("it starts");
        assert_eq!(end_in_report(&ended(run.admit(Confirmation::None).await)), RunEnd::Refused);
        let run = start_run(&environment, CORES_102).await.expect("it starts");
        assert_eq!(end_in_report(&ended(run.admit(Confirmation::Declined { by: "ann".into() }).await)), RunEnd::Declined);
    });
}

#[test]
fn run_that_leaves_out_a_refused_guest_is_refused_although_the_others_are_done() {
    block(async {
        let stage = Stage::start(100);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let run = start_partial(&environment, &format!("{CORES_102}{MISSING_103}")).await;
        let report = apply_confirmed(run, &mut events).await;
        assert_eq!((shown(&report.operations), report.left_out), (vec!["102 done".to_owned()], 1));
        assert_eq!(end_in_report(&report), RunEnd::Refused);
    });
}

#[test]
fn run_is_held_while_an_operation_of_an_earlier_run_on_its_guest_is_held() {
    block(async {
        let stage = Stage::start(0);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let (run, _, _) = approved_run(&environment, &mut events, START_101).await;
        let mut apply = pin!(run.apply());
        assert!(matches!(select(&mut apply, pin!(wait_for(&mut events, find_tasked))).await, Either::Right(_)));
        environment.request_stop(RunSignal::Leave);
        assert_eq!(end_in_report(&apply.await), RunEnd::Held);
        environment.close().await.expect("there is no witness");
        // The task is still running in the lab, so that recovery holds the operation.
        let environment = stage.open_ready(&state);
        let run = start_partial(&environment, &format!("{START_101}{CORES_102}")).await;
        assert_eq!(run.held_before(), HeldBefore::InScope);
        assert_eq!(end_in_report(&ended(run.admit(Confirmation::None).await)), RunEnd::Held);
    });
}

#[test]
fn run_ends_with_broken_evidence_if_the_witness_has_another_ledger() {
    block(async {
        let (stage, other) = (Stage::start(100), Stage::start(100));
        for stage in [&stage, &other] {
            let environment = stage.open_ready(&stage.state_with_witness().await);
            start_run(&environment, CORES_102).await.expect("it starts");
            environment.close().await.expect("it is attested");
        }
        let environment = stage.open_ready(&stage.state_with_witness().await);
        let run = start_run(&environment, CORES_102).await.expect("it starts");
        std::fs::copy(other.witness(), stage.witness()).expect("copied");
        let report = ended(run.admit(Confirmation::Declined { by: "ann".into() }).await);
        assert!(report.error.is_none() && report.attested.is_err(), "{report:?}");
        assert_eq!(end_in_report(&report), RunEnd::EvidenceBroken);
    });
}

/// A receiver of events with a defect: the executor does not survive it.
struct PanickingSink(Arc<converger_runtime::EventBus>);

impl EventSink for PanickingSink {
    fn publish(&self, event: RunEvent) {
        let is_tasked = find_tasked(&event).is_some();
        self.0.publish(event);
        assert!(!is_tasked, "the test ends the executor here");
    }
}

#[test]
fn lost_executor_leaves_its_operations_in_flight_in_the_report_and_the_next_start_recovers_them() {
    block(async {
        let stage = Stage::start(0);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let Opened::Ready(environment) = stage.open_on(&state, Host::system(), Arc::new(PanickingSink(Arc::clone(&stage.events)))) else {
            panic!("nothing else has the lock")
        };
        let (run, id, _) = approved_run(&environment, &mut events, START_101).await;
        let report = run.apply().await;
        assert_eq!((shown(&report.operations), end_in_report(&report)), (vec!["101 held run-left".to_owned()], RunEnd::Held));
        let error = report.error.as_ref().expect("it says why").to_string();
        assert!(error.contains("operations may be in flight"), "{error}");
        assert_eq!(end_of(&state, id).await, None, "the run gets no end, as after a crash");
        drop(environment);
        stage.pass(200_000).await;
        let environment = stage.open_ready(&state);
        let run = start_run(&environment, START_101).await.expect("it starts");
        let RunAdmission::Approved(run) = run.admit(Confirmation::None).await else { panic!("there is nothing to confirm") };
        let report = run.apply().await;
        let recovered = report.recovered.operations().iter().map(|reported| reported.outcome.end());
        assert_eq!((recovered.collect::<Vec<_>>(), end_in_report(&report)), (vec![OperationEnd::Done], RunEnd::Done));
    });
}
