//! Holds and freezes that a person named by the caller sets and ends, without a lock and without an open environment.

use std::sync::Arc;

use converger_core::artifact::{Digest, Provenance, proposal_digest, write_body};
use converger_core::guest::Vmid;
use converger_core::refusal::{Refusal, RefusalCode};
use converger_core::safety::JudgedVerdict;
use converger_runtime::holds::{CheckedHold, HoldCheckOutcome, HoldRequest, HoldSubject};
use converger_runtime::state_dir::WriteOutcome;
use converger_runtime::{Author, EnvironmentReader, EventBus, Host, ObservationSource, Observed, Planned, Reason};

use super::lab::lab_name;
use super::*;

pub(crate) fn author(name: &str) -> Author {
    Author::new(name, 1_000).expect("a name")
}

pub(crate) fn reason() -> Reason {
    Reason::new("the disk is being replaced").expect("a reason")
}

/// The code of a refused write; `None` if it was written.
pub(crate) fn refused_code(outcome: WriteOutcome) -> Option<RefusalCode> {
    match outcome {
        WriteOutcome::Written(_) => None,
        WriteOutcome::Refused(refusal) => Some(refusal.code()),
    }
}

fn vmid(number: u64) -> Vmid {
    Vmid::new(number).expect("an id")
}

fn request(subject: HoldSubject, by: &str) -> HoldRequest {
    HoldRequest { environment: lab_name(), subject, reason: reason(), author: author(by) }
}

async fn check(stage: &Stage, request: HoldRequest) -> Result<CheckedHold, Refusal> {
    match request.check(&stage.config(&[])).await.expect("the lab is configured") {
        HoldCheckOutcome::Checked(hold) => Ok(hold),
        HoldCheckOutcome::Refused(refusal) => Err(refusal),
    }
}

#[test]
fn refuses_to_hold_a_guest_that_the_cluster_does_not_have() {
    block(async {
        let stage = Stage::start(100);
        let refusal = check(&stage, request(HoldSubject::Guest(vmid(999)), "ann")).await.expect_err("there is no such guest");
        assert_eq!(refusal.code(), RefusalCode::GuestMissing);
    });
}

#[test]
fn hold_names_its_author_binds_the_cluster_and_is_refused_twice_like_its_release() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let hold = check(&stage, request(HoldSubject::Guest(vmid(101)), "ann")).await.expect("the guest exists");
        assert!(hold.notes().is_empty(), "{:?}", hold.notes());
        assert_eq!(refused_code(state.record_hold(hold).await.expect("writable")), None);
        let conditions = state.load_conditions(&lab_name()).await.expect("readable");
        let held: Vec<_> = conditions.holds.iter().map(|hold| (hold.vmid, &*hold.by, &*hold.reason, hold.at_ms)).collect();
        assert_eq!(held, [(vmid(101), "ann", "the disk is being replaced", 1_000)]);
        assert_eq!(conditions.names.bindings().map(|binding| &*binding.by).collect::<Vec<_>>(), ["ann"]);

        let again = check(&stage, request(HoldSubject::Guest(vmid(101)), "bob")).await.expect("the guest exists");
        assert_eq!(refused_code(state.record_hold(again).await.expect("writable")), Some(RefusalCode::GuestHeld));
        for expected in [None, Some(RefusalCode::NotHeld)] {
            let released = state.release_guest(lab_name(), vmid(101), author("bob")).await.expect("writable");
            assert_eq!(refused_code(released), expected);
        }
    });
}

#[test]
fn freeze_without_a_check_is_noted_and_a_second_thaw_is_refused() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let hold = request(HoldSubject::Environment, "ann").skip_check(&stage.config(&[]), "the caller is offline");
        assert_eq!(hold.notes(), ["the cluster of lab could not be checked: the caller is offline"]);
        assert_eq!(refused_code(state.record_hold(hold).await.expect("writable")), None);
        let conditions = state.load_conditions(&lab_name()).await.expect("readable");
        assert_eq!(conditions.freeze.map(|freeze| (freeze.by, freeze.at_ms)), Some(("ann".into(), 1_000)));
        assert_eq!(conditions.names.bindings().count(), 0, "the cluster was not read");
        for expected in [None, Some(RefusalCode::NotFrozen)] {
            assert_eq!(refused_code(state.thaw_environment(lab_name(), author("bob")).await.expect("writable")), expected);
        }
    });
}

#[test]
fn unchecked_hold_notes_another_environment_at_the_same_address() {
    let stage = Stage::start(100);
    let section =
        "[environments.copy]\nurl = \"https://pve9\"\ncluster = \"home\"\ntoken = \"a@pve!copy\"\nsecret = { env = \"NO_SECRET\" }\n";
    let replacement = format!("{section}[environments.lab]\ncluster = \"home\"");
    let config = stage.config(&[("[environments.lab]", &replacement)]);
    let hold = request(HoldSubject::Guest(vmid(101)), "ann").skip_check(&config, "the caller is offline");
    let note = "`copy` has `cluster = \"home\"` too: if it is the same cluster, this does not apply under that name";
    assert_eq!(hold.notes(), ["guest 101 of lab could not be checked: the caller is offline", note]);
}

#[test]
fn blank_names_and_reasons_are_rejected_before_anything_is_written() {
    assert!(Author::new(" ", 1).is_none() && Author::new(&"x".repeat(5_000), 1).is_none());
    assert!(Reason::new("\n").is_none() && Reason::new(&"x".repeat(5_000)).is_none());
}

fn body_digest(planned: &Planned) -> Digest {
    write_body(&mut std::io::sink(), planned.judged.plan()).expect("it can be written")
}

/// The refused guests with their first code.
fn refused_guests(planned: &Planned) -> Vec<(u32, RefusalCode)> {
    let refused = planned.judged.guests().filter_map(|(guest, verdict)| match verdict {
        JudgedVerdict::Refused(refusals) => Some((guest.vmid.get(), refusals[0].code())),
        _ => None,
    });
    refused.collect()
}

const AFTER_101: &str = "  - { vmid: 102, kind: qemu, name: web-2, config: { cores: 2 }, after: [101] }\n";

#[test]
fn g7_live_and_recorded_plans_have_the_same_body_with_and_without_a_state_directory_whatever_is_held() {
    block(async {
        let stage = Stage::start(100);
        let guests = format!("{START_101}{AFTER_101}");
        let config = stage.config(&[("[environments.lab]", "[store]\ndirectory = \"state\"\n[environments.lab]")]);
        let reader = EnvironmentReader::new(lab_name(), config, Host::system(), Arc::<EventBus>::default());
        let plan = || reader.plan(declared(&guests).into(), &ObservationSource::Live);
        let without_store = plan().await.expect("the lab responds");
        assert_eq!(refused_guests(&without_store), []);

        let state = stage.state().await;
        let hold = check(&stage, request(HoldSubject::Guest(vmid(101)), "ann")).await.expect("the guest exists");
        assert_eq!(refused_code(state.record_hold(hold).await.expect("writable")), None);
        let held = plan().await.expect("the lab responds");
        assert_eq!(refused_guests(&held), [(101, RefusalCode::GuestHeld), (102, RefusalCode::DependencyRefused)]);

        let observation = held.judged.plan().observation().clone();
        let recorded = Observed { cluster: None, observation, provenance: Provenance::Replay };
        let recorded = reader.judge(declared(&guests).into(), recorded, &state.load_conditions(&lab_name()).await.expect("readable"));
        assert_eq!(refused_guests(&recorded), [], "a recording gives the same on every machine");
        assert_eq!([&held, &recorded].map(body_digest), [body_digest(&without_store); 2]);
    });
}

#[test]
fn held_guest_stops_the_run_or_is_left_out_and_the_ledger_has_the_same_refusals() {
    block(async {
        let stage = Stage::start(100);
        let state = stage.state().await;
        let hold = check(&stage, request(HoldSubject::Guest(vmid(101)), "ann")).await.expect("the guest exists");
        assert_eq!(refused_code(state.record_hold(hold).await.expect("writable")), None);
        let environment = stage.open_ready(&state);
        let guests = format!("{START_101}{CORES_102}");
        for (refused, expected) in [(RefusedGuestPolicy::StopRun, None), (RefusedGuestPolicy::LeaveOut, Some("102 done"))] {
            let request = RunRequest { refused, ..run_request(&guests) };
            let StartedRun::Run(run) = environment.start_run(request).await.expect("it starts") else { panic!("it is the same cluster") };
            assert_eq!(run.refused_guests(), [vmid(101)]);
            let judged = &run.planned().judged;
            let digest = proposal_digest(judged.plan(), judged.judgement()).expect("it can be written");
            let report = match run.admit(Confirmation::FullDigest { by: "ann".into(), digest }).await {
                RunAdmission::Approved(run) => run.apply().await,
                RunAdmission::Ended(report) => report,
            };
            assert_eq!(shown(&report.operations), Vec::from_iter(expected));
            let refusals: Vec<_> = report.refusals.iter().map(|(guest, refusal)| (*guest, refusal.code())).collect();
            assert_eq!(refusals, [(Some(vmid(101)), RefusalCode::GuestHeld)]);
        }
        environment.close().await.expect("there is no witness");
    });
}
