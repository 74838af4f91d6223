//! A pending change that this program wrote is not a foreign change.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::super::check::{PreSendReadings, SendDecision, decide_send};
use super::super::own_writes;
use super::*;
use crate::document::Notation;
use crate::guest::RunState;
use crate::normalize::{Field, FieldValue, WordSet};
use crate::observe::{self, EffectiveValues, ObservedStatus, PendingChange};
use crate::plan::{Plan, Verdict, plan};
use crate::policy::{OwnWrite, Rules};
use crate::safety::judge;
use crate::{artifact::Digest, desired};

const UUID: &str = "1c0d6f6e-5a0e-4a55-9d3c-000000000100";

/// The plan for one guest that runs with two cores.
fn planned(declared: Json, pending: Json, uuid: &str, rules: Rules) -> Plan {
    let mut guest = json!({ "vmid": 100, "kind": "qemu", "name": "web" });
    for (key, value) in declared.as_object().expect("members") {
        guest[key] = value.clone();
    }
    let row = json!({
        "vmid": 100, "kind": "qemu", "node": "pve1", "name": "web", "status": "running", "identity": { "uuid": uuid },
        "lock": null, "ha": null, "template": false, "protection": false, "tags": [], "config": { "cores": 2 }, "pending": pending,
    });
    let wanted = json!({ "version": 1, "environment": "lab", "guests": [guest] }).to_string();
    let reading = json!({
        "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
        "nodes": [{ "name": "pve1", "online": true }], "guests": [row],
    });
    let wanted = Arc::new(desired::parse(wanted.as_bytes(), Notation::Json).expect("declared"));
    let reading = observe::parse(reading.to_string().as_bytes()).expect("read").into_scoped(&wanted.scope());
    plan(wanted, Arc::new(reading), Arc::new(rules))
}

fn operation(plan: &Plan, number: u32) -> (Operation, CheckContext) {
    let (guest, verdict) = plan.guests().next().expect("a guest");
    let Verdict::Steps(steps) = verdict else { panic!("{verdict:?}") };
    let (target, step) = (OperationTarget::from_plan(plan, guest).expect("read"), steps.first().expect("a step").clone());
    let id = OperationId::new(&format!("run-{number}-0")).expect("an id");
    let run = RunId::new(&format!("run-{number}")).expect("an id");
    let environment = plan.desired().environment().clone();
    let operation = Operation::new(id, run, environment, target, step, 0, Digest::of_bytes(b"plan"), OperationSource::Convergent);
    (operation, CheckContext::new(Arc::new(plan.rules().clone()), guest))
}

/// The history of a write of this number of cores that ended with this outcome.
fn wrote(cores: u32, number: u32, outcome: Outcome) -> OperationHistory {
    let plan = planned(json!({ "config": { "cores": cores } }), json!([]), UUID, Rules::default());
    let mut history = OperationHistory::from_intent(Box::new(operation(&plan, number).0), 1);
    history.ended = Some((outcome, 2));
    history
}

fn done() -> Outcome {
    Outcome::Done(Findings::default())
}

fn stop_refused(plan: &Plan) -> bool {
    let is_refused = matches!(plan.verdicts().first(), Some(Verdict::Refused(_)));
    let is_judged_safe =
        matches!(judge(plan.clone(), crate::policy::Limits::default(), Default::default()), crate::safety::Judged::Safe(_));
    assert!(is_refused || is_judged_safe, "planning and judging must agree");
    is_refused
}

#[test]
fn g12_a_pending_change_is_ours_if_the_journal_wrote_it_to_this_guest() {
    let four = json!([{ "key": "cores", "value": 4 }]);
    let read = |pending: &Json, uuid: &str| planned(json!({ "state": "stopped" }), pending.clone(), uuid, Rules::default());
    let own = |histories: &[OperationHistory], pending: &Json, uuid: &str| own_writes(histories, read(pending, uuid).observation());
    let vmid = Vmid::new(100).expect("an id");
    let expected = vec![OwnWrite::new(vmid, Field::Cores, Some(&FieldValue::Count(4)))];
    assert_eq!(own(&[wrote(4, 1, done())], &four, UUID), expected);
    let nobody: Vec<OwnWrite> = Vec::new();
    assert_eq!(own(&[], &four, UUID), nobody, "nothing was written");
    assert_eq!(own(&[wrote(4, 1, done())], &four, "another"), nobody, "another guest has the id");
    assert_eq!(own(&[wrote(8, 1, done())], &four, UUID), nobody, "another value was written");
    assert_eq!(own(&[wrote(8, 2, done()), wrote(4, 1, done())], &four, UUID), nobody, "another value was written last");
    let failed = Outcome::new_failed(crate::failure::FailureCode::NotCarriedOut, Findings::default());
    assert_eq!(own(&[wrote(4, 1, failed.clone())], &four, UUID), nobody, "the write failed");
    assert_eq!(own(&[wrote(8, 2, failed), wrote(4, 1, done())], &four, UUID), expected, "the later write failed");
    assert_eq!(own(&[wrote(4, 1, done())], &json!([{ "key": "net0" }]), UUID), nobody, "the key is not managed");
}

#[test]
fn g12_own_pending_writes_do_not_refuse_a_power_step() {
    let four = json!([{ "key": "cores", "value": 4 }]);
    let vmid = Vmid::new(100).expect("an id");
    let rules_with_own_write =
        |cores| Rules::default().with_own_writes(vec![OwnWrite::new(vmid, Field::Cores, Some(&FieldValue::Count(cores)))]);
    let stop = |pending: &Json, rules: Rules| planned(json!({ "state": "stopped" }), pending.clone(), UUID, rules);
    assert!(stop_refused(&stop(&four, Rules::default())), "the writer is unknown");
    assert!(stop_refused(&stop(&four, rules_with_own_write(8))), "another value was not written by this program");
    assert!(
        stop_refused(&stop(&json!([{ "key": "cores", "value": 4 }, { "key": "net0" }]), rules_with_own_write(4))),
        "another key was not written by this program"
    );
    let plan = stop(&four, rules_with_own_write(4));
    assert!(!stop_refused(&plan));

    // The check right before sending decides alike.
    let (operation, context) = operation(&plan, 1);
    let live =
        LiveStatus { status: ObservedStatus::Known(RunState::Running), word: "running".into(), lock: None, ha: None, uptime_secs: None };
    let config = |waiting: u32| LiveConfig {
        name: "web".into(),
        identity: GuestIdentity::Qemu { uuid: Some(UUID.into()), ctime: None },
        macs: WordSet::default(),
        values: EffectiveValues::new(vec![(Field::Cores, FieldValue::Count(2))]),
        pending: [PendingChange::Known(Field::Cores, Some(FieldValue::Count(waiting)))].into(),
        tags: WordSet::default(),
        lock: None,
        template: false,
        protection: false,
        digest: None,
        day_one: crate::apply::LiveDayOne::default(),
        disks: Box::default(),
        revision: ConfigRevision::new("d1"),
    };
    let address = operation.guest.address();
    let decide = |config: &LiveConfig| decide_send(&operation, &context, PreSendReadings::new(&address, &live, config));
    assert_eq!(decide(&config(4)), SendDecision::Send);
    assert!(matches!(decide(&config(8)), SendDecision::Refused(refusal) if refusal.code() == crate::refusal::RefusalCode::ConfigPending));
}
