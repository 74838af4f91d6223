//! The events of an environment, as a service that subscribes to it receives them.

use converger_runtime::StopCause;
use futures_util::FutureExt as _;

use super::*;

/// The events of runs so far, in words.
fn run_events(events: &mut EventStream, run: &RunId) -> Vec<String> {
    let all = std::iter::from_fn(|| events.next().now_or_never().flatten());
    let shown = all.filter_map(|event| {
        let (of, text) = match event {
            RunEvent::PlanRecorded { run, .. } => (run, "recorded".to_owned()),
            RunEvent::Admitted { run, by } => (run, format!("admitted by {by}")),
            RunEvent::ApplyStarted { run, steps } => (run, format!("apply of {steps}")),
            RunEvent::ApplyEnded { run } => (run, "apply ended".to_owned()),
            RunEvent::RunEnded { run, end } => (run, format!("ended {}", end.word())),
            RunEvent::Draining { cause, has_sent } => return Some(format!("draining {cause:?} {has_sent}")),
            _ => return None,
        };
        assert_eq!(of, *run);
        Some(text)
    });
    shown.collect()
}

#[test]
fn subscriber_sees_each_run_from_its_plan_to_its_end_and_why_the_environment_stops() {
    block(async {
        let stage = Stage::start(100);
        let (state, mut own) = (stage.state().await, stage.events.subscribe(1024));
        let environment = stage.open_ready(&state);
        let mut watched = environment.watch();
        let (run, id, _) = approved_run(&environment, &mut own, CORES_102).await;
        run.apply().await;
        let expected = ["recorded", "admitted by ann", "apply of 1", "apply ended", "ended done"];
        assert_eq!(run_events(&mut watched, &id), expected);
        let run = start_run(&environment, START_101).await.expect("it starts");
        let RunAdmission::Ended(report) = run.admit(Confirmation::Declined { by: "ann".into() }).await else { panic!("it is declined") };
        assert_eq!(run_events(&mut watched, &report.run), ["recorded", "ended declined"]);
        let run = start_run(&environment, CORES_102).await.expect("it starts");
        let RunAdmission::Approved(run) = run.admit(Confirmation::None).await else { panic!("there is nothing to confirm") };
        environment.stop_handle().request(RunSignal::Drain, StopCause::Timeout);
        environment.request_stop(RunSignal::Leave);
        let report = run.apply().await;
        let expected = ["recorded", "admitted by bob", "draining Timeout true", "apply of 0", "apply ended", "ended done"];
        assert_eq!(run_events(&mut watched, &report.run), expected);
    });
}
