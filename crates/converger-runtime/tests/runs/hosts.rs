//! What a run takes from its host is an argument: the clock, the run ids, the machine, and who requests the run.

use std::sync::Arc;

use converger_core::policy::MachineIdentity;
use converger_core::refusal::RefusalCode;
use converger_runtime::host::{MachineSource, ManualClock, RunIds, WallClock, now_ms};
use converger_runtime::{EventSink, Host};

use super::*;

const AGE_MS_MAX: u64 = 900_000;

/// A host whose clock the test advances, and that clock.
fn manual_host() -> (Host, ManualClock) {
    // Observations are as old as the clock of this machine says.
    let clock = ManualClock::new(now_ms());
    let machine = MachineSource::Fixed(MachineIdentity::default());
    let host = Host { clock: WallClock::Manual(clock.clone()), ids: RunIds::counted_from(7), actor: "service@host".into(), machine };
    (host, clock)
}

fn open_on(stage: &Stage, state: &StateDirectory, host: Host) -> Environment {
    match stage.open_on(state, host, Arc::clone(&stage.events) as Arc<dyn EventSink>) {
        Opened::Ready(environment) => environment,
        Opened::Refused(refusal) => panic!("{refusal:?}"),
    }
}

#[test]
fn g15_plan_is_refused_if_its_observation_is_older_than_900_seconds_at_the_admission() {
    block(async {
        for (passed_ms, expected) in [(AGE_MS_MAX - 60_000, None), (AGE_MS_MAX + 60_000, Some(RefusalCode::ObservationStale))] {
            let stage = Stage::start(100);
            let (state, mut events) = (stage.state().await, stage.events.subscribe(1024));
            let (host, clock) = manual_host();
            let environment = open_on(&stage, &state, host);
            let run = start_run(&environment, CORES_102).await.expect("it starts");
            let recorded = |event: &RunEvent| if let RunEvent::PlanRecorded { proposal, .. } = event { Some(*proposal) } else { None };
            let (digest, _) = wait_for(&mut events, recorded).await;
            // A person thinks about it.
            clock.advance_ms(passed_ms);
            let admission = run.admit(Confirmation::FullDigest { by: "ann".into(), digest }).await;
            match (admission, expected) {
                (RunAdmission::Approved(_), None) => {}
                (RunAdmission::Ended(report), Some(code)) => {
                    assert_eq!(report.causes.iter().map(|cause| cause.code()).collect::<Vec<_>>(), [code]);
                    assert_eq!(report.end(), RunEnd::Refused);
                }
                (RunAdmission::Approved(_), Some(code)) => panic!("{code:?}"),
                (RunAdmission::Ended(report), None) => panic!("{report:?}"),
            }
        }
    });
}

#[test]
fn run_is_recorded_with_its_requester_its_id_and_the_time_of_its_host() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let (host, clock) = manual_host();
        clock.advance_ms(5_000);
        let expected = (host.now_ms(), format!("{:x}-00000007", host.now_ms() / 1000));
        let environment = open_on(&stage, &state, host);
        let run = start_run(&environment, CORES_102).await.expect("it starts");
        assert_eq!(run.requested_by(), "bob");
        let RunAdmission::Ended(report) = run.admit(Confirmation::None).await else { panic!("nobody confirmed it") };
        let recorded = state.store().run(report.run.clone()).await.expect("readable").expect("it was started").run;
        assert_eq!((recorded.at_ms, recorded.id.as_str()), (expected.0, expected.1.as_str()));
        assert_eq!(&*recorded.by, "bob");
    });
}
