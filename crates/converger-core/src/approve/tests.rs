//! Which plans are admitted and which are not.

use serde_json::{Value, json};

use super::*;
use crate::policy::{Circumstances, Limits, Rules};
use crate::refusal::{Datum, RefusalCode};
use crate::safety::{Judged, judge};
use crate::testing::TestWorld;

/// 2026-11-15T12:00:00Z.
const TAKEN: u64 = 1_794_744_000;

/// A safe plan: 100 is started, 101 is shut down, 102 gets a description, 103 is converged.
fn safe_plan(change: impl FnOnce(&mut Value, &mut Value)) -> SafePlan {
    let guest = |vmid: u32, more: Value| {
        let mut guest = json!({ "vmid": vmid, "kind": "qemu", "name": format!("web-{vmid}") });
        guest.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        guest
    };
    let mut desired = json!({ "version": 1, "environment": "lab", "guests": [
        guest(100, json!({ "state": "running" })),
        guest(101, json!({ "state": "stopped" })),
        guest(102, json!({ "config": { "description": "front end" } })),
        guest(103, json!({ "state": "running" })),
    ] });
    let row = |vmid: u32, status: &str| {
        json!({ "vmid": vmid, "kind": "qemu", "name": format!("web-{vmid}"), "node": "pve1", "status": status, "lock": null, "ha": null,
            "template": false, "protection": false, "tags": [], "pending": [], "config": {}, "identity": { "uuid": format!("u{vmid}") } })
    };
    let mut observation = json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
        "taken_at": "2026-11-15T12:00:00Z", "nodes": [{ "name": "pve1", "online": true }],
        "guests": [row(100, "stopped"), row(101, "running"), row(102, "stopped"), row(103, "running")] });
    change(&mut desired, &mut observation);
    let plan = TestWorld { desired, observation, rules: Rules::default() }.parse().expect("it parses").plan();
    match judge(plan, Limits::default(), Circumstances::default()) {
        Judged::Safe(safe) => safe,
        Judged::Refused(refused) => panic!("{refused:?}"),
    }
}

fn full_plan() -> SafePlan {
    safe_plan(|_, _| ())
}

/// The plan without the guest that is shut down.
fn benign_plan() -> SafePlan {
    safe_plan(|desired, _| {
        desired["guests"].as_array_mut().expect("guests").remove(1);
    })
}

fn typed_confirmation(names: &[&str]) -> Confirmation {
    Confirmation::Typed { by: "ann".into(), names: names.iter().map(|name| (*name).into()).collect() }
}

fn admission_with(confirmation: Confirmation) -> Admission {
    Admission {
        mode: ApprovalMode::Solo,
        provenance: Provenance::Live,
        confirmation,
        refused: RefusedGuestPolicy::StopRun,
        now_ms: (TAKEN + 10) * 1000,
        age_secs_max: Admission::AGE_SECS_MAX,
    }
}

#[track_caller]
fn expect_refused(safe: SafePlan, admission: &Admission) -> Vec<Refusal> {
    match admit(safe, admission).expect("it can be written") {
        Admitted::Refused(refusals) => refusals,
        Admitted::Approved(plan) => panic!("approved by {}", plan.approver()),
    }
}

#[track_caller]
fn expect_approved(safe: SafePlan, admission: &Admission) -> ApprovedPlan {
    match admit(safe, admission).expect("it can be written") {
        Admitted::Approved(plan) => plan,
        Admitted::Refused(refusals) => panic!("{refusals:?}"),
    }
}

fn refusal_codes(refusals: &[Refusal]) -> Vec<RefusalCode> {
    refusals.iter().map(Refusal::code).collect()
}

fn digest_of(safe: &SafePlan) -> Digest {
    proposal_digest(safe.plan(), safe.judgement()).expect("it can be written")
}

#[test]
fn refuses_without_confirmation() {
    assert_eq!(
        refusal_codes(&expect_refused(full_plan(), &admission_with(Confirmation::Declined { by: "ann".into() }))),
        [RefusalCode::ApprovalMissing]
    );
    let refusals = expect_refused(full_plan(), &admission_with(Confirmation::None));
    assert_eq!(refusal_codes(&refusals), [RefusalCode::ApprovalMissing]);
    let Some((_, Datum::Ids(guests))) = refusals[0].evidence().iter().find(|(key, _)| *key == "guests") else { panic!("{refusals:?}") };
    assert_eq!(guests.iter().map(|vmid| vmid.get()).collect::<Vec<_>>(), [100, 101, 102]);
}

#[test]
fn guest_to_be_stopped_must_be_named() {
    for names in [&[][..], &["web-100"], &["WEB-101"], &["web-101 "], &["web"]] {
        assert_eq!(
            refusal_codes(&expect_refused(full_plan(), &admission_with(typed_confirmation(names)))),
            [RefusalCode::ApprovalMissing],
            "{names:?}"
        );
    }
    let plan = expect_approved(full_plan(), &admission_with(typed_confirmation(&["web-101"])));
    assert_eq!((plan.approver(), plan.approval_method()), ("ann", "typed"));
    assert_eq!(expect_approved(benign_plan(), &admission_with(typed_confirmation(&[]))).approval_method(), "typed");
}

#[test]
fn a_name_shared_by_two_guests_must_be_typed_twice() {
    let twins = || {
        safe_plan(|desired, observation| {
            for index in [0, 1] {
                desired["guests"][index]["name"] = json!("web");
                desired["guests"][index]["state"] = json!("stopped");
                observation["guests"][index]["name"] = json!("web");
                observation["guests"][index]["status"] = json!("running");
            }
        })
    };
    let refusals = expect_refused(twins(), &admission_with(typed_confirmation(&["web"])));
    assert_eq!(refusals[0].evidence()[0], ("guests", Datum::Ids(vec![Vmid::new(101).expect("an id")])));
    assert_eq!(expect_approved(twins(), &admission_with(typed_confirmation(&["web", "web"]))).approval_method(), "typed");
}

#[test]
fn g15_digest_of_a_script_covers_this_plan_and_benign_steps_only() {
    let digest = |digest| admission_with(Confirmation::FullDigest { by: "cron".into(), digest });
    let own = digest_of(&benign_plan());
    assert_eq!(expect_approved(benign_plan(), &digest(own)).approval_method(), "digest");
    assert_eq!(refusal_codes(&expect_refused(benign_plan(), &digest(digest_of(&full_plan())))), [RefusalCode::ApprovalMissing]);
    let own = digest_of(&full_plan());
    let refusals = expect_refused(full_plan(), &digest(own));
    assert_eq!(refusal_codes(&refusals), [RefusalCode::ApprovalMissing]);
    assert_eq!(refusals[0].evidence()[1], ("needs", Datum::Text("a person at a terminal".into())));
}

#[test]
fn g15_shared_environment_refuses_self_approval() {
    let digest = digest_of(&benign_plan());
    for confirmation in [typed_confirmation(&["web-101"]), Confirmation::FullDigest { by: "ann".into(), digest }] {
        let shared = Admission { mode: ApprovalMode::Shared, ..admission_with(confirmation) };
        assert_eq!(refusal_codes(&expect_refused(benign_plan(), &shared)), [RefusalCode::ApprovalMissing]);
    }
}

#[test]
fn g7_refuses_to_apply_a_plan_from_a_recording() {
    let replay = Admission { provenance: Provenance::Replay, ..admission_with(typed_confirmation(&["web-101"])) };
    assert_eq!(refusal_codes(&expect_refused(full_plan(), &replay)), [RefusalCode::ReplayNotAppliable]);
}

#[test]
fn g1_refuses_an_observation_that_is_too_old() {
    let at = |now_secs: u64| Admission { now_ms: now_secs * 1000, ..admission_with(typed_confirmation(&["web-101"])) };
    let max = u64::from(Admission::AGE_SECS_MAX);
    assert_eq!(expect_approved(full_plan(), &at(TAKEN + max)).approver(), "ann");
    assert_eq!(refusal_codes(&expect_refused(full_plan(), &at(TAKEN + max + 1))), [RefusalCode::ObservationStale]);
    // After the clock was set back, every observation would look young; an observation from the future therefore counts as undated.
    assert_eq!(expect_approved(full_plan(), &at(TAKEN - 60)).approver(), "ann");
    assert_eq!(refusal_codes(&expect_refused(full_plan(), &at(TAKEN - 61))), [RefusalCode::ObservationStale]);
    let undated = safe_plan(|_, observation| {
        observation.as_object_mut().expect("an object").remove("taken_at");
    });
    assert_eq!(refusal_codes(&expect_refused(undated, &at(TAKEN))), [RefusalCode::ObservationStale]);
}

#[test]
fn refused_guest_stops_the_run_unless_left_out() {
    let locked = || safe_plan(|_, observation| observation["guests"][0]["lock"] = json!("backup"));
    assert_eq!(refusal_codes(&expect_refused(locked(), &admission_with(typed_confirmation(&["web-101"])))), [RefusalCode::GuestLocked]);
    let partial = Admission { refused: RefusedGuestPolicy::LeaveOut, ..admission_with(typed_confirmation(&["web-101"])) };
    let run = RunId::new("run").expect("an id");
    let operations = expect_approved(locked(), &partial).into_operations(&run, |number| OperationId::new(&format!("op-{number}")), None);
    let guests: Vec<u32> = operations.expect("ids").iter().map(|(operation, _)| operation.guest.vmid.get()).collect();
    assert_eq!(guests, [101, 102]);
}

#[test]
fn collects_all_objections_before_asking_for_approval() {
    let locked = safe_plan(|_, observation| observation["guests"][0]["lock"] = json!("backup"));
    let worst = Admission { provenance: Provenance::Replay, now_ms: (TAKEN + 10_000) * 1000, ..admission_with(Confirmation::None) };
    let all = [RefusalCode::ReplayNotAppliable, RefusalCode::ObservationStale, RefusalCode::GuestLocked];
    assert_eq!(refusal_codes(&expect_refused(locked, &worst)), all);
}

#[test]
fn plan_without_steps_needs_no_approval() {
    let converged =
        safe_plan(|desired, _| desired["guests"] = json!([{ "vmid": 103, "kind": "qemu", "name": "web-103", "state": "running" }]));
    let shared = Admission { mode: ApprovalMode::Shared, ..admission_with(Confirmation::None) };
    assert_eq!(expect_approved(converged, &shared).approval_method(), "nothing to do");
}

#[test]
fn operations_keep_plan_order_and_plan_digest() {
    let digest = write_body(&mut io::sink(), full_plan().plan()).expect("it can be written");
    let run = RunId::new("run").expect("an id");
    let plan = expect_approved(full_plan(), &admission_with(typed_confirmation(&["web-101"])));
    let operations = plan.into_operations(&run, |number| OperationId::new(&format!("op-{number}")), None).expect("ids");
    let shown: Vec<String> = operations
        .iter()
        .map(|(operation, _)| format!("{} {} {}", operation.id, operation.guest.vmid, operation.step.change.word()))
        .collect();
    assert_eq!(shown, ["op-0 100 start", "op-1 101 shutdown", "op-2 102 config.set"]);
    assert!(operations.iter().all(|(operation, _)| operation.plan == digest && operation.run == run));
    assert!(
        expect_approved(full_plan(), &admission_with(typed_confirmation(&["web-101"]))).into_operations(&run, |_| None, None).is_none()
    );
}

#[test]
fn power_step_checks_its_after_dependencies() {
    let chained = safe_plan(|desired, _| desired["guests"][0]["after"] = json!([103]));
    let run = RunId::new("run").expect("an id");
    let operations = expect_approved(chained, &admission_with(typed_confirmation(&["web-101"]))).into_operations(
        &run,
        |number| OperationId::new(&format!("op-{number}")),
        None,
    );
    let operations = operations.expect("ids");
    // Because of `after` it comes last, behind its dependency.
    let ((start, context), others) = operations.split_last().expect("operations");
    assert_eq!((start.guest.vmid.get(), start.step.change.word()), (100, "start"));
    let reliance = context.dependency(0).expect("a dependency");
    assert_eq!((reliance.address.vmid.get(), reliance.state), (103, RunState::Running));
    assert_eq!(context.dependency(1), None);
    assert!(others.iter().all(|(_, context)| context.dependency(0).is_none()), "no other step has dependencies");
}

/// The dependencies of each power step: guest, change, and the required state of each other guest.
fn dependencies_of(safe: SafePlan, names: &[&str]) -> Vec<String> {
    let run = RunId::new("run").expect("an id");
    let operations = expect_approved(safe, &admission_with(typed_confirmation(names))).into_operations(
        &run,
        |number| OperationId::new(&format!("op-{number}")),
        None,
    );
    let describe = |(operation, context): &(Operation, CheckContext)| {
        let relies: Vec<String> =
            (0..).map_while(|number| context.dependency(number)).map(|on| format!("{} {}", on.address.vmid, on.state.word())).collect();
        format!("{} {}: {}", operation.guest.vmid, operation.step.change.word(), relies.join(", "))
    };
    operations.expect("ids").iter().map(describe).collect()
}

/// 103 runs and gets more memory at its next start; it comes after 102, which runs too. 100 comes after 103 and has no declared state.
fn restart_plan(stop: &str, dependent: &str) -> SafePlan {
    safe_plan(|desired, observation| {
        observation["guests"][3]["config"] = json!({ "memory": 512 });
        observation["guests"][2]["status"] = json!("running");
        observation["guests"][0]["status"] = json!(dependent);
        desired["guests"] = json!([
            { "vmid": 100, "kind": "qemu", "name": "web-100", "after": [103] },
            { "vmid": 102, "kind": "qemu", "name": "web-102", "state": "running" },
            { "vmid": 103, "kind": "qemu", "name": "web-103", "state": "running", "after": [102], "stop": stop, "restart": "when-needed",
              "config": { "memory": "1GiB" } },
        ]);
    })
}

/// Dependents of a guest that is only restarted are not declared stopped (`docs/decisions/0005-after.md`). Requiring that would refuse the
/// restart in every run (L1). The first half of a restart is not sent if the second half would be refused, because the guest would stay
/// down.
#[test]
fn restart_does_not_require_dependents_to_be_stopped() {
    for dependent in ["running", "stopped"] {
        let relies = dependencies_of(restart_plan("hard", dependent), &["web-103"]);
        assert_eq!(relies, ["103 config.set: ", "103 stop: 102 running", "103 start: 102 running"], "{dependent}");
        let relies = dependencies_of(restart_plan("shutdown", dependent), &["web-103"]);
        assert_eq!(relies, ["103 config.set: ", "103 reboot: 102 running"], "{dependent}");
    }
}

#[test]
fn stop_requires_only_dependents_to_be_stopped() {
    let down = safe_plan(|desired, _| {
        desired["guests"] = json!([
            { "vmid": 100, "kind": "qemu", "name": "web-100", "after": [101] },
            { "vmid": 101, "kind": "qemu", "name": "web-101", "state": "stopped", "after": [103] },
            { "vmid": 103, "kind": "qemu", "name": "web-103", "state": "running" },
        ]);
    });
    assert_eq!(dependencies_of(down, &["web-101"]), ["101 shutdown: 100 stopped"]);
}
