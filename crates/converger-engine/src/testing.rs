//! Operations and responses for small clusters, for the tests of this crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use converger_core::apply::{
    CheckContext, ClusterMembership, ConfigRevision, EnvFault, EnvFaultKind, EnvResponse, GuestAddress, LiveConfig, LiveDayOne, LiveStatus,
    ObservedTask, Operation, OperationId, OperationSource, OperationTarget, RunId, SendResult, TaskId, TaskState,
};
use converger_core::artifact::Digest;
use converger_core::guest::{GuestIdentity, GuestKind, NodeName, RunState, Vmid};
use converger_core::normalize::{Field, FieldValue, WordSet};
use converger_core::observe::{EffectiveValues, HaState, ObservedStatus, PendingChange};
use converger_core::plan::{Plan, Verdict};
use converger_core::policy::Rules;
use converger_core::testing::{Rng, TestWorld};
use serde_json::{Value as Json, json};

pub(crate) mod explore;

/// An operation and its check context.
pub(crate) type PlannedOperation = (Operation, CheckContext);

pub(crate) const UUID: &str = "11112222-3333-4444-5555-666677778888";

/// An observation row of a guest named `web` on `pve1`.
pub(crate) fn guest_row(vmid: u32, state: &str) -> Json {
    json!({ "vmid": vmid, "kind": "qemu", "name": "web", "node": "pve1", "status": state, "lock": null, "ha": null, "template": false,
        "protection": false, "tags": [], "pending": [], "config": { "cores": 2 }, "identity": { "uuid": UUID } })
}

/// The plan for these guests and rows.
pub(crate) fn plan_guests(guests: &[Json], rows: &[Json]) -> Plan {
    let desired = json!({ "version": 1, "environment": "lab", "guests": guests });
    let nodes: Vec<Json> = (1..=10).map(|number| json!({ "name": format!("pve{number}"), "online": true })).collect();
    let observation = json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
        "taken_at": "2026-11-15T12:00:00Z", "nodes": nodes, "guests": rows });
    TestWorld { desired, observation, rules: Rules::default() }.parse().expect("it parses").plan()
}

/// The operations of a plan, in its order.
pub(crate) fn plan_operations(plan: &Plan) -> Vec<PlannedOperation> {
    let rules = Arc::new(plan.rules().clone());
    let mut operations = Vec::new();
    for (guest, verdict) in plan.guests() {
        let Verdict::Steps(steps) = verdict else { continue };
        let target = OperationTarget::from_plan(plan, guest).expect("steps need a reading");
        for (position, step) in (0..).zip(steps) {
            let id = OperationId::new(&format!("op-{}-{position}", guest.vmid)).expect("an id");
            let run = RunId::new("run-1").expect("an id");
            let digest = Digest::of_bytes(b"plan");
            let environment = plan.desired().environment().clone();
            let operation =
                Operation::new(id, run, environment, target.clone(), step.clone(), position, digest, OperationSource::Convergent);
            operations.push((operation, CheckContext::new(Arc::clone(&rules), guest)));
        }
    }
    operations
}

/// The last step of the shortest plan that contains this change.
pub(crate) fn last_step_for(change: &str) -> PlannedOperation {
    let guest = |more: Json| {
        let mut guest = json!({ "vmid": 100, "kind": "qemu", "name": "web" });
        guest.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        guest
    };
    let (wanted, state) = match change {
        "start" => (guest(json!({ "state": "running" })), "stopped"),
        "shutdown" => (guest(json!({ "state": "stopped" })), "running"),
        "stop" => (guest(json!({ "state": "stopped", "stop": "hard" })), "running"),
        "config.set" => (guest(json!({ "config": { "cores": 4 } })), "stopped"),
        "config.set running" => (guest(json!({ "config": { "cores": 4 } })), "running"),
        "reboot" => (guest(json!({ "config": { "cores": 4 }, "restart": "when-needed" })), "running"),
        other => panic!("no such step: {other}"),
    };
    plan_operations(&plan_guests(&[wanted], &[guest_row(100, state)])).pop().expect("a step")
}

pub(crate) fn address_on(node: &str) -> GuestAddress {
    GuestAddress { node: NodeName::new(node).expect("a node"), kind: GuestKind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

pub(crate) fn cluster_response() -> EnvResponse {
    let nodes: BTreeMap<NodeName, bool> = (1..=10).map(|number| (NodeName::new(&format!("pve{number}")).expect("a node"), true)).collect();
    EnvResponse::Cluster(ClusterMembership { quorate: true, nodes })
}

pub(crate) fn live_status(run_state: &str, uptime_secs: u64) -> LiveStatus {
    let status = match run_state {
        "running" => ObservedStatus::Known(RunState::Running),
        "stopped" => ObservedStatus::Known(RunState::Stopped),
        other => ObservedStatus::Unknown(Some(other.into())),
    };
    LiveStatus { status, word: run_state.into(), lock: None, ha: None, uptime_secs: Some(uptime_secs) }
}

pub(crate) fn status_response(run_state: &str) -> EnvResponse {
    EnvResponse::Status(live_status(run_state, 1000))
}

pub(crate) fn live_config(cores: u32) -> LiveConfig {
    LiveConfig {
        day_one: LiveDayOne::default(),
        digest: None,
        disks: Box::default(),
        name: "web".into(),
        identity: GuestIdentity::Qemu { uuid: Some(UUID.into()), ctime: None },
        macs: WordSet::default(),
        values: EffectiveValues::new(vec![(Field::Cores, FieldValue::Count(cores))]),
        pending: Box::new([]),
        tags: WordSet::default(),
        lock: None,
        template: false,
        protection: false,
        revision: ConfigRevision::new("0fe8"),
    }
}

pub(crate) fn config_response(cores: u32) -> EnvResponse {
    EnvResponse::Config(Box::new(live_config(cores)))
}

/// Two cores in effect, and four pending.
pub(crate) fn pending_config_response() -> EnvResponse {
    let pending = Box::new([PendingChange::Known(Field::Cores, Some(FieldValue::Count(4)))]);
    EnvResponse::Config(Box::new(LiveConfig { pending, ..live_config(2) }))
}

pub(crate) fn altered_config_response(change: impl FnOnce(&mut LiveConfig)) -> EnvResponse {
    let mut config = live_config(2);
    change(&mut config);
    EnvResponse::Config(Box::new(config))
}

pub(crate) fn ha_status_response(state: Option<&str>, run_state: &str) -> EnvResponse {
    EnvResponse::Status(LiveStatus { ha: Some(HaState { state: state.map(Into::into) }), ..live_status(run_state, 1000) })
}

pub(crate) fn test_fault(fault_kind: EnvFaultKind) -> EnvFault {
    EnvFault::new(fault_kind, "some-cause", "some words")
}

pub(crate) fn test_task_id(name: &str) -> TaskId {
    TaskId::new(name).expect("an id")
}

pub(crate) fn task_sent_response() -> EnvResponse {
    EnvResponse::Sent(SendResult::Task(test_task_id("T1")))
}

pub(crate) fn task_ended_response() -> EnvResponse {
    EnvResponse::Task(TaskState::Ended { warnings: 0, age_secs: None })
}

pub(crate) fn running_task(name: &str) -> ObservedTask {
    ObservedTask { task: test_task_id(name), ended_age_secs: None, is_ours: true }
}

/// A task that has ended and started this long ago.
pub(crate) fn ended_task(name: &str, age_secs: u64) -> ObservedTask {
    ObservedTask { ended_age_secs: Some(age_secs), ..running_task(name) }
}

/// Runs a case; a panic prints its seed.
pub(crate) fn check_seed(seed: u64, case: impl Fn(&mut Rng) + std::panic::UnwindSafe) {
    let result = std::panic::catch_unwind(move || case(&mut Rng::new(seed)));
    if let Err(panic) = result {
        eprintln!("seed {seed}");
        std::panic::resume_unwind(panic);
    }
}
