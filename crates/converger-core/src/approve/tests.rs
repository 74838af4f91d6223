//! What is not admitted, first; and what is.

use serde_json::{Value, json};

use super::*;
use crate::policy::{Circumstances, Limits, Rules};
use crate::refusal::{Code, Datum};
use crate::safety::{Judged, judge};
use crate::testing::World;

/// 2026-11-15T12:00:00Z.
const TAKEN: u64 = 1_794_744_000;

/// A safe plan: 100 is started, 101 is shut down, 102 gets a description, 103 is as declared.
fn safe(change: impl FnOnce(&mut Value, &mut Value)) -> SafePlan {
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
    let plan = World { desired, observation, rules: Rules::default() }.parse().expect("it parses").plan();
    match judge(plan, Limits::default(), Circumstances::default()) {
        Judged::Safe(safe) => safe,
        Judged::Refused(refused) => panic!("{refused:?}"),
    }
}

fn whole() -> SafePlan {
    safe(|_, _| ())
}

/// Without the guest that goes down.
fn benign() -> SafePlan {
    safe(|desired, _| {
        desired["guests"].as_array_mut().expect("guests").remove(1);
    })
}

fn typed(names: &[&str]) -> Confirmation {
    Confirmation::Typed { by: "ann".into(), names: names.iter().map(|name| (*name).into()).collect() }
}

fn admission(confirmation: Confirmation) -> Admission {
    Admission {
        mode: Mode::Solo,
        provenance: Provenance::Live,
        confirmation,
        refused: Refused::StopsAll,
        now_ms: (TAKEN + 10) * 1000,
        age_secs_max: Admission::AGE_SECS_MAX,
    }
}

#[track_caller]
fn refused(safe: SafePlan, admission: &Admission) -> Vec<Refusal> {
    match admit(safe, admission).expect("it can be written") {
        Admitted::Refused(refusals) => refusals,
        Admitted::Approved(plan) => panic!("approved by {}", plan.by()),
    }
}

#[track_caller]
fn approved(safe: SafePlan, admission: &Admission) -> ApprovedPlan {
    match admit(safe, admission).expect("it can be written") {
        Admitted::Approved(plan) => plan,
        Admitted::Refused(refusals) => panic!("{refusals:?}"),
    }
}

fn codes(refusals: &[Refusal]) -> Vec<Code> {
    refusals.iter().map(Refusal::code).collect()
}

fn digest_of(safe: &SafePlan) -> Digest {
    write_body(&mut io::sink(), safe.plan()).expect("it can be written")
}

#[test]
fn nobody_said_yes() {
    assert_eq!(codes(&refused(whole(), &admission(Confirmation::Declined { by: "ann".into() }))), [Code::ApprovalMissing]);
    let refusals = refused(whole(), &admission(Confirmation::None));
    assert_eq!(codes(&refusals), [Code::ApprovalMissing]);
    let Some((_, Datum::Ids(guests))) = refusals[0].evidence().iter().find(|(key, _)| *key == "guests") else { panic!("{refusals:?}") };
    assert_eq!(guests.iter().map(|vmid| vmid.get()).collect::<Vec<_>>(), [100, 101, 102]);
}

#[test]
fn a_guest_that_goes_down_must_be_named() {
    for names in [&[][..], &["web-100"], &["WEB-101"], &["web-101 "], &["web"]] {
        assert_eq!(codes(&refused(whole(), &admission(typed(names)))), [Code::ApprovalMissing], "{names:?}");
    }
    let plan = approved(whole(), &admission(typed(&["web-101"])));
    assert_eq!((plan.by(), plan.how()), ("ann", "typed"));
    assert_eq!(approved(benign(), &admission(typed(&[]))).how(), "typed");
}

#[test]
fn two_guests_of_one_name_are_typed_twice() {
    let twins = || {
        safe(|desired, observation| {
            for index in [0, 1] {
                desired["guests"][index]["name"] = json!("web");
                desired["guests"][index]["state"] = json!("stopped");
                observation["guests"][index]["name"] = json!("web");
                observation["guests"][index]["status"] = json!("running");
            }
        })
    };
    let refusals = refused(twins(), &admission(typed(&["web"])));
    assert_eq!(refusals[0].evidence()[0], ("guests", Datum::Ids(vec![Vmid::new(101).expect("an id")])));
    assert_eq!(approved(twins(), &admission(typed(&["web", "web"]))).how(), "typed");
}

#[test]
fn g15_a_digest_in_a_script_covers_this_plan_and_benign_steps_only() {
    let digest = |digest| admission(Confirmation::FullDigest { by: "cron".into(), digest });
    let own = digest_of(&benign());
    assert_eq!(approved(benign(), &digest(own)).how(), "digest");
    assert_eq!(codes(&refused(benign(), &digest(digest_of(&whole())))), [Code::ApprovalMissing]);
    let own = digest_of(&whole());
    let refusals = refused(whole(), &digest(own));
    assert_eq!(codes(&refusals), [Code::ApprovalMissing]);
    assert_eq!(refusals[0].evidence()[1], ("needs", Datum::Text("a person at a terminal".into())));
}

#[test]
fn g15_in_a_shared_environment_nobody_approves_their_own() {
    let digest = digest_of(&benign());
    for confirmation in [typed(&["web-101"]), Confirmation::FullDigest { by: "ann".into(), digest }] {
        let shared = Admission { mode: Mode::Shared, ..admission(confirmation) };
        assert_eq!(codes(&refused(benign(), &shared)), [Code::ApprovalMissing]);
    }
}

#[test]
fn g7_what_was_made_from_a_recording_is_never_carried_out() {
    let replay = Admission { provenance: Provenance::Replay, ..admission(typed(&["web-101"])) };
    assert_eq!(codes(&refused(whole(), &replay)), [Code::ReplayNotAppliable]);
}

#[test]
fn g1_a_reading_that_is_too_old_is_not_acted_on() {
    let at = |now_secs: u64| Admission { now_ms: now_secs * 1000, ..admission(typed(&["web-101"])) };
    let max = u64::from(Admission::AGE_SECS_MAX);
    assert_eq!(approved(whole(), &at(TAKEN + max)).by(), "ann");
    assert_eq!(codes(&refused(whole(), &at(TAKEN + max + 1))), [Code::ObservationStale]);
    // A clock that went back makes every reading young: what comes from the future has no age at all.
    assert_eq!(approved(whole(), &at(TAKEN - 60)).by(), "ann");
    assert_eq!(codes(&refused(whole(), &at(TAKEN - 61))), [Code::ObservationStale]);
    let undated = safe(|_, observation| {
        observation.as_object_mut().expect("an object").remove("taken_at");
    });
    assert_eq!(codes(&refused(undated, &at(TAKEN))), [Code::ObservationStale]);
}

#[test]
fn a_guest_that_is_refused_stops_all_unless_it_is_to_be_left_out() {
    let locked = || safe(|_, observation| observation["guests"][0]["lock"] = json!("backup"));
    assert_eq!(codes(&refused(locked(), &admission(typed(&["web-101"])))), [Code::GuestLocked]);
    let partial = Admission { refused: Refused::IsLeftOut, ..admission(typed(&["web-101"])) };
    let run = RunId::new("run").expect("an id");
    let operations = approved(locked(), &partial).into_operations(&run, |number| OperationId::new(&format!("op-{number}")));
    let guests: Vec<u32> = operations.expect("ids").iter().map(|(operation, _)| operation.guest.vmid.get()).collect();
    assert_eq!(guests, [101, 102]);
}

#[test]
fn all_that_stands_against_it_is_collected_and_nobody_is_asked_then() {
    let locked = safe(|_, observation| observation["guests"][0]["lock"] = json!("backup"));
    let worst = Admission { provenance: Provenance::Replay, now_ms: (TAKEN + 10_000) * 1000, ..admission(Confirmation::None) };
    let all = [Code::ReplayNotAppliable, Code::ObservationStale, Code::GuestLocked];
    assert_eq!(codes(&refused(locked, &worst)), all);
}

#[test]
fn nothing_to_do_needs_nobody() {
    let converged = safe(|desired, _| desired["guests"] = json!([{ "vmid": 103, "kind": "qemu", "name": "web-103", "state": "running" }]));
    let shared = Admission { mode: Mode::Shared, ..admission(Confirmation::None) };
    assert_eq!(approved(converged, &shared).how(), "nothing to do");
}

#[test]
fn operations_stand_in_the_order_of_the_plan_and_carry_its_digest() {
    let digest = digest_of(&whole());
    let run = RunId::new("run").expect("an id");
    let plan = approved(whole(), &admission(typed(&["web-101"])));
    let operations = plan.into_operations(&run, |number| OperationId::new(&format!("op-{number}"))).expect("ids");
    let shown: Vec<String> = operations
        .iter()
        .map(|(operation, _)| format!("{} {} {}", operation.id, operation.guest.vmid, operation.step.change.word()))
        .collect();
    assert_eq!(shown, ["op-0 100 start", "op-1 101 shutdown", "op-2 102 config.set"]);
    assert!(operations.iter().all(|(operation, _)| operation.plan == digest && operation.run == run));
    assert!(approved(whole(), &admission(typed(&["web-101"]))).into_operations(&run, |_| None).is_none());
}

#[test]
fn what_a_power_step_relies_on_by_after_is_among_its_terms() {
    let chained = safe(|desired, _| desired["guests"][0]["after"] = json!([103]));
    let run = RunId::new("run").expect("an id");
    let operations =
        approved(chained, &admission(typed(&["web-101"]))).into_operations(&run, |number| OperationId::new(&format!("op-{number}")));
    let operations = operations.expect("ids");
    // By `after` it comes last, behind what it waits for.
    let ((start, terms), others) = operations.split_last().expect("operations");
    assert_eq!((start.guest.vmid.get(), start.step.change.word()), (100, "start"));
    let reliance = terms.reliance(0).expect("it relies on another guest");
    assert_eq!((reliance.place.vmid.get(), reliance.state), (103, RunState::Running));
    assert_eq!(terms.reliance(1), None);
    assert!(others.iter().all(|(_, terms)| terms.reliance(0).is_none()), "nobody else relies on anything");
}

/// What each power step of these operations relies on: the guest, the change, and who must be how.
fn reliances_of(safe: SafePlan, names: &[&str]) -> Vec<String> {
    let run = RunId::new("run").expect("an id");
    let operations = approved(safe, &admission(typed(names))).into_operations(&run, |number| OperationId::new(&format!("op-{number}")));
    let shown = |(operation, terms): &(Operation, Terms)| {
        let relies: Vec<String> =
            (0..).map_while(|number| terms.reliance(number)).map(|on| format!("{} {}", on.place.vmid, on.state.word())).collect();
        format!("{} {}: {}", operation.guest.vmid, operation.step.change.word(), relies.join(", "))
    };
    operations.expect("ids").iter().map(shown).collect()
}

/// 103 runs and gets more memory at its next start; 102 runs too, and 103 comes after it. 100 comes after 103, and nobody declares how.
fn restarted(stop: &str, dependent: &str) -> SafePlan {
    safe(|desired, observation| {
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

/// Whoever comes after a guest that is only restarted was not declared stopped (`docs/decisions/0005-after.md`): to ask for it would
/// refuse the restart in every run, and the plan would show it in every run (L1). The first half is not sent where the second would
/// be refused: the guest would stay down.
#[test]
fn a_restart_asks_nobody_who_comes_after_it_to_be_down() {
    for dependent in ["running", "stopped"] {
        let relies = reliances_of(restarted("hard", dependent), &["web-103"]);
        assert_eq!(relies, ["103 config.set: ", "103 stop: 102 running", "103 start: 102 running"], "{dependent}");
        let relies = reliances_of(restarted("shutdown", dependent), &["web-103"]);
        assert_eq!(relies, ["103 config.set: ", "103 reboot: 102 running"], "{dependent}");
    }
}

#[test]
fn a_stop_for_good_relies_on_those_that_come_after_and_on_nobody_else() {
    let down = safe(|desired, _| {
        desired["guests"] = json!([
            { "vmid": 100, "kind": "qemu", "name": "web-100", "after": [101] },
            { "vmid": 101, "kind": "qemu", "name": "web-101", "state": "stopped", "after": [103] },
            { "vmid": 103, "kind": "qemu", "name": "web-103", "state": "running" },
        ]);
    });
    assert_eq!(reliances_of(down, &["web-101"]), ["101 shutdown: 100 stopped"]);
}
