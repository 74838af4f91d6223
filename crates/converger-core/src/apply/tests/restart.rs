//! A guest goes down for a restart only while that is for something, and the restart is proven by the values that are in effect.

use std::sync::Arc;

use serde_json::json;

use super::super::check::{Ready, ready};
use super::super::promise::{After, Kept, kept};
use super::*;
use crate::document::Notation;
use crate::guest::RunState;
use crate::normalize::{Field, Value, Words};
use crate::observe::{self, Config, Pending, Status};
use crate::plan::{Reason, plan};
use crate::policy::{Host, Mark, Rules};
use crate::refusal::Code;
use crate::{artifact::Digest, desired};

const UUID: &str = "1c0d6f6e-5a0e-4a55-9d3c-000000000100";

/// The steps of a guest with two cores in effect and four that wait, declared with four; `hard` is stopped and started.
fn operations(stop: &str) -> Vec<(Operation, Terms)> {
    operations_under(stop, Rules::default())
}

fn operations_under(stop: &str, rules: Rules) -> Vec<(Operation, Terms)> {
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
    let reading = observe::parse(reading.to_string().as_bytes()).expect("read").within(&wanted.scope());
    let rules = Arc::new(rules);
    let plan = plan(Arc::clone(&wanted), Arc::new(reading), Arc::clone(&rules));
    let (guest, verdict) = plan.guests().next().expect("a guest");
    let crate::plan::Verdict::Steps(steps) = verdict else { panic!("{verdict:?}") };
    let target = Target::of(&plan, guest).expect("read");
    let build = |(position, step): (u32, &crate::plan::Step)| {
        let id = OperationId::new(&format!("run-1-{position}")).expect("an id");
        let run = RunId::new("run-1").expect("an id");
        let environment = wanted.environment().clone();
        let digest = Digest::of_bytes(b"plan");
        let operation = Operation::new(id, run, environment, target.clone(), step.clone(), position, digest, Source::Convergent);
        (operation, Terms::new(Arc::clone(&rules), guest))
    };
    (0..).zip(steps).map(build).collect()
}

fn live(state: RunState, uptime_secs: u64) -> Live {
    Live { status: Status::Known(state), word: state.word().into(), lock: None, ha: None, uptime_secs: Some(uptime_secs) }
}

fn config(cores: u32, waiting: Option<Option<u32>>) -> ConfigRead {
    let count = |cores: u32| Value::Count(cores);
    ConfigRead {
        name: "web".into(),
        identity: Identity::Qemu { uuid: Some(UUID.into()), ctime: None },
        macs: Words::default(),
        values: Config::new(vec![(Field::Cores, count(cores))]),
        pending: waiting.map(|waiting| Pending::Known(Field::Cores, waiting.map(count))).into_iter().collect(),
        tags: Words::default(),
        lock: None,
        template: false,
        protection: false,
        revision: Revision::new("d1"),
    }
}

fn code_of(ready: &Ready) -> &'static str {
    match ready {
        Ready::Go => "go",
        Ready::AsWanted => "as wanted",
        Ready::NotNeeded => "not needed",
        Ready::Refused(refusal) => refusal.code().word(),
    }
}

#[track_caller]
fn check_ready(operation: &(Operation, Terms), state: RunState, config: &ConfigRead, expected: &str) {
    let found = ready(&operation.0, &operation.1, &live(state, 1000), config);
    assert_eq!(code_of(&found), expected, "{}: {:?}: {found:?}", operation.0.step.change.word(), config.pending);
}

#[test]
fn nothing_goes_down_for_a_restart_that_is_for_nothing() {
    let (stale, pending) = (Code::PlanStale.word(), Code::ConfigPending.word());
    for (stop, words) in [("shutdown", vec!["reboot"]), ("hard", vec!["stop", "start"])] {
        let steps = operations(stop);
        assert_eq!(steps.iter().map(|step| step.0.step.change.word()).collect::<Vec<_>>(), words);
        let first = &steps[0];
        check_ready(first, RunState::Running, &config(2, Some(Some(4))), "go");
        check_ready(first, RunState::Running, &config(4, None), "not needed");
        check_ready(first, RunState::Running, &config(4, Some(Some(4))), "not needed");
        check_ready(first, RunState::Running, &config(2, None), stale);
        check_ready(first, RunState::Running, &config(3, None), stale);
        // What waits and is not declared is somebody else's.
        check_ready(first, RunState::Running, &config(2, Some(Some(8))), pending);
        check_ready(first, RunState::Running, &config(2, Some(None)), pending);
        check_ready(first, RunState::Running, &config(4, Some(Some(8))), pending);
    }
}

/// Right before sending, the addresses that the guest has now count: a device that was added since may be the one of this machine.
#[test]
fn g3_the_guest_that_this_program_runs_in_is_known_by_what_it_is_now() {
    let rules = Rules::default().with_host(Host::new(["BC:24:11:00:00:01".into()], ["another".into()]).with_device());
    let reboot = &operations_under("shutdown", rules)[0];
    let linked =
        |macs: &[&str]| ConfigRead { macs: Words::new(macs.iter().map(|mac| (*mac).into()).collect()), ..config(2, Some(Some(4))) };
    check_ready(reboot, RunState::Running, &linked(&["BC:24:11:00:00:02"]), "go");
    check_ready(reboot, RunState::Running, &linked(&["BC:24:11:00:00:01"]), Code::ProtectedGuest.word());
    let hidden = Rules::default().with_host(Host::new(["BC:24:11:00:00:01".into()], []).with_device().without([Mark::FirmwareUuid]));
    let blind = &operations_under("shutdown", hidden)[0];
    check_ready(blind, RunState::Running, &linked(&[]), Code::OwnGuestUntold.word());
    check_ready(blind, RunState::Running, &linked(&["BC:24:11:00:00:02"]), "go");
}

/// A guest that went down for it is declared to run: it is not left down because its reason went away meanwhile.
#[test]
fn what_is_down_is_started_even_if_the_reason_is_gone_but_not_called_done_for_it() {
    let steps = operations("hard");
    let start = &steps[1];
    for config in [config(2, Some(Some(4))), config(2, None), config(4, None)] {
        check_ready(start, RunState::Stopped, &config, "go");
    }
    check_ready(start, RunState::Running, &config(4, None), "as wanted");
    check_ready(start, RunState::Running, &config(2, None), Code::PlanStale.word());
}

#[track_caller]
fn check_kept(operation: &Operation, config: &ConfigRead, is_kept: bool) {
    let up = live(RunState::Running, 3);
    let after = After { live: Some(&up), config: Some(config), uptime_before_secs: Some(1000), ..After::default() };
    let found = kept(operation, after);
    assert_eq!(matches!(found, Kept::Yes(_)), is_kept, "{} {:?}: {found:?}", operation.step.change.word(), config.pending);
    assert!(!matches!(found, Kept::Unclear(_)), "{found:?}");
}

#[test]
fn a_restart_is_done_once_the_declared_values_are_in_effect() {
    for stop in ["shutdown", "hard"] {
        let steps = operations(stop);
        let last = &steps.last().expect("a step").0;
        check_kept(last, &config(4, None), true);
        check_kept(last, &config(2, None), false);
        check_kept(last, &config(2, Some(Some(4))), false);
        check_kept(last, &config(4, Some(Some(8))), false);
    }
}

/// A record of before the values were kept is read, written as it was, and proven as well as it can be.
#[test]
fn a_stored_restart_without_its_values_is_still_read() {
    let operation = operations("shutdown").remove(0).0;
    let text = text_of(&operation);
    assert!(text.contains(r#""restart_for":["cores"],"restart_to":{"cores":4}"#), "{text}");
    let old = text.replace(r#","restart_to":{"cores":4}"#, "");
    let read = parse_operation(old.as_bytes()).expect("it is whole");
    assert!(read.is_storable());
    assert_eq!(text_of(&read), old);
    let Reason::RestartForConfig(awaited) = &read.step.reason else { panic!("{:?}", read.step.reason) };
    assert_eq!((awaited[0].field, &awaited[0].value), (Field::Cores, &None));
    check_kept(&read, &config(2, None), true);
    check_kept(&read, &config(2, Some(Some(4))), false);
    for broken in
        [r#""restart_to":{}"#, r#""restart_to":{"sockets":4}"#, r#""restart_to":{"cores":"four"}"#, r#""restart_to":{"cores":4,"cores":4}"#]
    {
        let text = text.replace(r#""restart_to":{"cores":4}"#, broken);
        assert!(parse_operation(text.as_bytes()).is_err(), "{broken}");
    }
    let unasked = text.replace(r#""restart_for":["cores"],"#, "");
    assert!(parse_operation(unasked.as_bytes()).is_err(), "{unasked}");
}
