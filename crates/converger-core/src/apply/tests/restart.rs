//! A guest restarts only while there is a reason for it, and the effective values prove that the restart worked.

use std::sync::Arc;

use serde_json::json;

use super::super::check::{PreSendReadings, SendDecision, decide_send};
use super::super::promise::{PostChangeReading, PromiseCheck, check_promise};
use super::*;
use crate::document::Notation;
use crate::guest::RunState;
use crate::normalize::{Field, FieldValue, WordSet};
use crate::observe::{self, EffectiveValues, ObservedStatus, PendingChange};
use crate::plan::{StepReason, plan};
use crate::policy::{MachineIdentity, MachineMark, Rules};
use crate::refusal::RefusalCode;
use crate::{artifact::Digest, desired};

const UUID: &str = "1c0d6f6e-5a0e-4a55-9d3c-000000000100";

/// The steps of a guest that is declared with four cores, has two in effect and four pending; a guest that stops `hard` is stopped and
/// started.
fn restart_operations(stop: &str) -> Vec<(Operation, CheckContext)> {
    restart_operations_with_rules(stop, Rules::default())
}

fn restart_operations_with_rules(stop: &str, rules: Rules) -> Vec<(Operation, CheckContext)> {
    let guest = json!({ "vmid": 100, "kind": "qemu", "name": "web", "state": "running", "stop": stop, "config": { "cores": 4 }, "restart": "when-needed" });
    let row = json!({
        "vmid": 100, "kind": "qemu", "node": "pve1", "name": "web", "status": "running", "identity": { "uuid": UUID }, "macs": ["BC:24:11:00:00:02"],
        "lock": null, "ha": null, "template": false, "protection": false, "tags": [], "config": { "cores": 2 }, "pending": [{ "key": "cores", "value": 4 }],
    });
    let wanted = json!({ "version": 1, "environment": "lab", "guests": [guest] }).to_string();
    let reading = json!({
        "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
        "nodes": [{ "name": "pve1", "online": true }], "guests": [row],
    });
    let wanted = Arc::new(desired::parse(wanted.as_bytes(), Notation::Json).expect("declared"));
    let reading = observe::parse(reading.to_string().as_bytes()).expect("read").into_scoped(&wanted.scope());
    let rules = Arc::new(rules);
    let plan = plan(Arc::clone(&wanted), Arc::new(reading), Arc::clone(&rules));
    let (guest, verdict) = plan.guests().next().expect("a guest");
    let crate::plan::Verdict::Steps(steps) = verdict else { panic!("{verdict:?}") };
    let target = OperationTarget::from_plan(&plan, guest).expect("read");
    let build = |(position, step): (u32, &crate::plan::Step)| {
        let id = OperationId::new(&format!("run-1-{position}")).expect("an id");
        let run = RunId::new("run-1").expect("an id");
        let environment = wanted.environment().clone();
        let digest = Digest::of_bytes(b"plan");
        let operation = Operation::new(id, run, environment, target.clone(), step.clone(), position, digest, OperationSource::Convergent);
        (operation, CheckContext::new(Arc::clone(&rules), guest))
    };
    (0..).zip(steps).map(build).collect()
}

fn live_status(state: RunState, uptime_secs: u64) -> LiveStatus {
    LiveStatus { status: ObservedStatus::Known(state), word: state.word().into(), lock: None, ha: None, uptime_secs: Some(uptime_secs) }
}

fn live_config(cores: u32, waiting: Option<Option<u32>>) -> LiveConfig {
    let count = |cores: u32| FieldValue::Count(cores);
    LiveConfig {
        name: "web".into(),
        identity: GuestIdentity::Qemu { uuid: Some(UUID.into()), ctime: None },
        macs: WordSet::default(),
        values: EffectiveValues::new(vec![(Field::Cores, count(cores))]),
        pending: waiting.map(|waiting| PendingChange::Known(Field::Cores, waiting.map(count))).into_iter().collect(),
        tags: WordSet::default(),
        lock: None,
        template: false,
        protection: false,
        digest: None,
        day_one: crate::apply::LiveDayOne::default(),
        disks: Box::default(),
        revision: ConfigRevision::new("d1"),
    }
}

fn decision_name(ready: &SendDecision) -> &'static str {
    match ready {
        SendDecision::Send => "go",
        SendDecision::AlreadyDone => "as wanted",
        SendDecision::NotNeeded => "not needed",
        SendDecision::Refused(refusal) => refusal.code().word(),
    }
}

#[track_caller]
fn check_decision(operation: &(Operation, CheckContext), state: RunState, config: &LiveConfig, expected: &str) {
    let (address, live) = (operation.0.guest.address(), live_status(state, 1000));
    let found = decide_send(&operation.0, &operation.1, PreSendReadings::new(&address, &live, config));
    assert_eq!(decision_name(&found), expected, "{}: {:?}: {found:?}", operation.0.step.change.word(), config.pending);
}

#[test]
fn does_not_stop_a_guest_when_the_restart_reason_is_gone() {
    let (stale, pending) = (RefusalCode::PlanStale.word(), RefusalCode::ConfigPending.word());
    for (stop, changes) in [("shutdown", vec!["reboot"]), ("hard", vec!["stop", "start"])] {
        let steps = restart_operations(stop);
        assert_eq!(steps.iter().map(|step| step.0.step.change.word()).collect::<Vec<_>>(), changes);
        let first = &steps[0];
        check_decision(first, RunState::Running, &live_config(2, Some(Some(4))), "go");
        check_decision(first, RunState::Running, &live_config(4, None), "not needed");
        check_decision(first, RunState::Running, &live_config(4, Some(Some(4))), "not needed");
        check_decision(first, RunState::Running, &live_config(2, None), stale);
        check_decision(first, RunState::Running, &live_config(3, None), stale);
        // A pending value that is not declared is a foreign change.
        check_decision(first, RunState::Running, &live_config(2, Some(Some(8))), pending);
        check_decision(first, RunState::Running, &live_config(2, Some(None)), pending);
        check_decision(first, RunState::Running, &live_config(4, Some(Some(8))), pending);
    }
}

/// The MAC addresses of the moment of sending count: a device that was added since planning may be that of this machine.
#[test]
fn g3_own_guest_is_recognised_by_its_current_addresses() {
    let rules = Rules::default().with_machine(MachineIdentity::new(["BC:24:11:00:00:01".into()], ["another".into()]).with_device());
    let reboot = &restart_operations_with_rules("shutdown", rules)[0];
    let linked =
        |macs: &[&str]| LiveConfig { macs: WordSet::new(macs.iter().map(|mac| (*mac).into()).collect()), ..live_config(2, Some(Some(4))) };
    check_decision(reboot, RunState::Running, &linked(&["BC:24:11:00:00:02"]), "go");
    check_decision(reboot, RunState::Running, &linked(&["BC:24:11:00:00:01"]), RefusalCode::ProtectedGuest.word());
    let hidden = Rules::default()
        .with_machine(MachineIdentity::new(["BC:24:11:00:00:01".into()], []).with_device().with_unreadable([MachineMark::FirmwareUuid]));
    let blind = &restart_operations_with_rules("shutdown", hidden)[0];
    check_decision(blind, RunState::Running, &linked(&[]), RefusalCode::OwnGuestUntold.word());
    check_decision(blind, RunState::Running, &linked(&["BC:24:11:00:00:02"]), "go");
}

/// A guest that went down for a restart is declared to run, so it is started even if the reason disappeared in the meantime.
#[test]
fn starts_a_stopped_guest_even_if_the_restart_reason_is_gone() {
    let steps = restart_operations("hard");
    let start = &steps[1];
    for config in [live_config(2, Some(Some(4))), live_config(2, None), live_config(4, None)] {
        check_decision(start, RunState::Stopped, &config, "go");
    }
    check_decision(start, RunState::Running, &live_config(4, None), "as wanted");
    check_decision(start, RunState::Running, &live_config(2, None), RefusalCode::PlanStale.word());
}

#[track_caller]
fn check_promise_kept(operation: &Operation, config: &LiveConfig, is_kept: bool) {
    let up = live_status(RunState::Running, 3);
    let after = PostChangeReading { live: Some(&up), config: Some(config), uptime_before_secs: Some(1000), ..PostChangeReading::default() };
    let found = check_promise(operation, after);
    assert_eq!(matches!(found, PromiseCheck::Kept(_)), is_kept, "{} {:?}: {found:?}", operation.step.change.word(), config.pending);
    assert!(!matches!(found, PromiseCheck::Unclear(_)), "{found:?}");
}

#[test]
fn a_restart_is_done_once_the_declared_values_are_in_effect() {
    for stop in ["shutdown", "hard"] {
        let steps = restart_operations(stop);
        let last = &steps.last().expect("a step").0;
        check_promise_kept(last, &live_config(4, None), true);
        check_promise_kept(last, &live_config(2, None), false);
        check_promise_kept(last, &live_config(2, Some(Some(4))), false);
        check_promise_kept(last, &live_config(4, Some(Some(8))), false);
    }
}

/// A record from before restart values were stored is readable, is written back unchanged, and its promise is checked as far as possible.
#[test]
fn stored_restart_without_values_is_still_readable() {
    let operation = restart_operations("shutdown").remove(0).0;
    let text = operation_text(&operation);
    assert!(text.contains(r#""restart_for":["cores"],"restart_to":{"cores":4}"#), "{text}");
    let old = text.replace(r#","restart_to":{"cores":4}"#, "");
    let read = parse_operation(old.as_bytes()).expect("it is whole");
    assert!(read.is_storable());
    assert_eq!(operation_text(&read), old);
    let StepReason::RestartForConfig(restart_fields) = &read.step.reason else { panic!("{:?}", read.step.reason) };
    assert_eq!((restart_fields[0].field, &restart_fields[0].value), (Field::Cores, &None));
    check_promise_kept(&read, &live_config(2, None), true);
    check_promise_kept(&read, &live_config(2, Some(Some(4))), false);
    for broken in
        [r#""restart_to":{}"#, r#""restart_to":{"sockets":4}"#, r#""restart_to":{"cores":"four"}"#, r#""restart_to":{"cores":4,"cores":4}"#]
    {
        let text = text.replace(r#""restart_to":{"cores":4}"#, broken);
        assert!(parse_operation(text.as_bytes()).is_err(), "{broken}");
    }
    let without_fields = text.replace(r#""restart_for":["cores"],"#, "");
    assert!(parse_operation(without_fields.as_bytes()).is_err(), "{without_fields}");
}
