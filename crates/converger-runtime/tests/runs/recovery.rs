//! Recovery by itself: what an earlier process left in flight, and what it must not touch.

use converger_runtime::{Recovered, RecoveryReport};

use super::*;

async fn recover(environment: &Environment) -> RecoveryReport {
    match environment.recover().await.expect("the lab answers") {
        Recovered::Settled(report) => report,
        Recovered::Refused(refusal) => panic!("the lab is the cluster that the name stands for: {refusal:?}"),
    }
}

fn shown_recovery(report: &RecoveryReport) -> Vec<String> {
    let shown = report.operations().iter().map(|reported| (reported.operation.guest.vmid, reported.outcome.end()));
    shown.map(|(vmid, end)| format!("{vmid} {}", end.word())).collect()
}

#[test]
fn recovery_settles_operations_that_an_earlier_process_left_in_flight() {
    block(async {
        let stage = Stage::start(0);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let (run, _, _) = approved_run(&environment, &mut events, START_101).await;
        let mut apply = pin!(run.apply());
        assert!(matches!(select(&mut apply, pin!(wait_for(&mut events, find_tasked))).await, Either::Right(_)));
        environment.request_stop(RunSignal::Leave);
        assert_eq!(shown(&apply.await.operations), ["101 held run-left"]);
        environment.close().await.expect("there is no witness");
        stage.pass(200_000).await;
        let environment = stage.open_ready(&state);
        assert_eq!(shown_recovery(&recover(&environment).await), ["101 done"]);
        let is_over = |event: &RunEvent| if let RunEvent::RecoveryEnded(report) = event { Some(shown_recovery(report)) } else { None };
        let (reported, passed) = wait_for(&mut events, is_over).await;
        assert_eq!(reported, ["101 done"]);
        assert!(passed.iter().any(|event| matches!(event, RunEvent::RecoveryStarted { operations: 1 })), "{passed:?}");
        assert_eq!(recover(&environment).await, RecoveryReport::default(), "it is settled");
    });
}

#[test]
fn recovery_skips_operations_that_this_process_executes_and_sends_nothing_for_them() {
    block(async {
        let stage = Stage::start(0);
        let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let (run, id, _) = approved_run(&environment, &mut events, START_101).await;
        let mut apply = pin!(run.apply());
        assert!(matches!(select(&mut apply, pin!(wait_for(&mut events, find_tasked))).await, Either::Right(_)));
        assert_eq!(recover(&environment).await, RecoveryReport::default());
        stage.pass(200_000).await;
        assert_eq!(shown(&apply.await.operations), ["101 done"]);
        let ((), passed) = wait_for(&mut events, |event| matches!(event, RunEvent::ApplyEnded { .. }).then_some(())).await;
        let is_recovery = |event: &RunEvent| matches!(event, RunEvent::RecoveryStarted { .. } | RunEvent::ObservationStarted { .. });
        assert!(!passed.iter().any(is_recovery), "{passed:?}");
        assert_eq!(end_of(&state, id).await, Some(OperationEnd::Done));
    });
}
