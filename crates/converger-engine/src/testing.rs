//! Operations of small worlds, and answers about their guests, for the tests of this crate.

use std::collections::BTreeMap;
use std::sync::Arc;

use converger_core::apply::{
    Answer, Cause, ConfigRead, Live, Membership, Operation, OperationId, Place, Revision, RunId, Sent, Source, Target, TaskId, TaskSeen,
    TaskState, Terms, Trouble,
};
use converger_core::artifact::Digest;
use converger_core::guest::{Identity, Kind, NodeName, RunState, Vmid};
use converger_core::normalize::{Field, Value, Words};
use converger_core::observe::{Config, Ha, Pending, Status};
use converger_core::plan::{Plan, Verdict};
use converger_core::policy::Rules;
use converger_core::testing::{Rng, World};
use serde_json::{Value as Json, json};

pub(crate) mod explore;

/// A step and its terms.
pub(crate) type Task = (Operation, Terms);

pub(crate) const UUID: &str = "11112222-3333-4444-5555-666677778888";

/// A row of a reading of a guest called `web` on `pve1`.
pub(crate) fn row(vmid: u32, state: &str) -> Json {
    json!({ "vmid": vmid, "kind": "qemu", "name": "web", "node": "pve1", "status": state, "lock": null, "ha": null, "template": false,
        "protection": false, "tags": [], "pending": [], "config": { "cores": 2 }, "identity": { "uuid": UUID } })
}

/// The plan of these guests and rows.
pub(crate) fn plan(guests: &[Json], rows: &[Json]) -> Plan {
    let desired = json!({ "version": 1, "environment": "lab", "guests": guests });
    let nodes: Vec<Json> = (1..=10).map(|number| json!({ "name": format!("pve{number}"), "online": true })).collect();
    let observation = json!({ "schema": "converger.observation/1", "environment": "lab", "complete": true, "quorate": true,
        "taken_at": "2026-11-15T12:00:00Z", "nodes": nodes, "guests": rows });
    World { desired, observation, rules: Rules::default() }.parse().expect("it parses").plan()
}

/// The operations of a plan, in its order.
pub(crate) fn operations(plan: &Plan) -> Vec<Task> {
    let rules = Arc::new(plan.rules().clone());
    let mut operations = Vec::new();
    for (guest, verdict) in plan.guests() {
        let Verdict::Steps(steps) = verdict else { continue };
        let target = Target::of(plan, guest).expect("steps need a reading");
        for (position, step) in (0..).zip(steps) {
            let id = OperationId::new(&format!("op-{}-{position}", guest.vmid)).expect("an id");
            let run = RunId::new("run-1").expect("an id");
            let digest = Digest::of_bytes(b"plan");
            let environment = plan.desired().environment().clone();
            let operation = Operation::new(id, run, environment, target.clone(), step.clone(), position, digest, Source::Convergent);
            operations.push((operation, Terms::new(Arc::clone(&rules), guest)));
        }
    }
    operations
}

/// What can be done to the guest, by its word: the last step of the shortest plan for it.
pub(crate) fn step_of(word: &str) -> Task {
    let guest = |more: Json| {
        let mut guest = json!({ "vmid": 100, "kind": "qemu", "name": "web" });
        guest.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        guest
    };
    let (wanted, state) = match word {
        "start" => (guest(json!({ "state": "running" })), "stopped"),
        "shutdown" => (guest(json!({ "state": "stopped" })), "running"),
        "stop" => (guest(json!({ "state": "stopped", "stop": "hard" })), "running"),
        "config.set" => (guest(json!({ "config": { "cores": 4 } })), "stopped"),
        "config.set running" => (guest(json!({ "config": { "cores": 4 } })), "running"),
        "reboot" => (guest(json!({ "config": { "cores": 4 }, "restart": "when-needed" })), "running"),
        other => panic!("no such step: {other}"),
    };
    operations(&plan(&[wanted], &[row(100, state)])).pop().expect("a step")
}

pub(crate) fn place(node: &str) -> Place {
    Place { node: NodeName::new(node).expect("a node"), kind: Kind::Qemu, vmid: Vmid::new(100).expect("an id") }
}

pub(crate) fn cluster() -> Answer {
    let nodes: BTreeMap<NodeName, bool> = (1..=10).map(|number| (NodeName::new(&format!("pve{number}")).expect("a node"), true)).collect();
    Answer::Cluster(Membership { quorate: true, nodes })
}

pub(crate) fn live(word: &str, uptime_secs: u64) -> Live {
    let status = match word {
        "running" => Status::Known(RunState::Running),
        "stopped" => Status::Known(RunState::Stopped),
        other => Status::Unknown(Some(other.into())),
    };
    Live { status, word: word.into(), lock: None, ha: None, uptime_secs: Some(uptime_secs) }
}

pub(crate) fn status(word: &str) -> Answer {
    Answer::Status(live(word, 1000))
}

pub(crate) fn config_read(cores: u32) -> ConfigRead {
    ConfigRead {
        name: "web".into(),
        identity: Identity::Qemu { uuid: Some(UUID.into()), ctime: None },
        macs: Words::default(),
        values: Config::new(vec![(Field::Cores, Value::Count(cores))]),
        pending: Box::new([]),
        tags: Words::default(),
        lock: None,
        template: false,
        protection: false,
        revision: Revision::new("0fe8"),
    }
}

pub(crate) fn config(cores: u32) -> Answer {
    Answer::Config(Box::new(config_read(cores)))
}

/// Two cores in effect, and four that wait.
pub(crate) fn config_waiting() -> Answer {
    let pending = Box::new([Pending::Known(Field::Cores, Some(Value::Count(4)))]);
    Answer::Config(Box::new(ConfigRead { pending, ..config_read(2) }))
}

pub(crate) fn changed(change: impl FnOnce(&mut ConfigRead)) -> Answer {
    let mut config = config_read(2);
    change(&mut config);
    Answer::Config(Box::new(config))
}

pub(crate) fn owned(state: Option<&str>, word: &str) -> Answer {
    Answer::Status(Live { ha: Some(Ha { state: state.map(Into::into) }), ..live(word, 1000) })
}

pub(crate) fn cause(trouble: Trouble) -> Cause {
    Cause::new(trouble, "some-cause", "some words")
}

pub(crate) fn task_id(name: &str) -> TaskId {
    TaskId::new(name).expect("an id")
}

pub(crate) fn sent_task() -> Answer {
    Answer::Sent(Sent::Task(task_id("T1")))
}

pub(crate) fn ended() -> Answer {
    Answer::Task(TaskState::Ended { warnings: 0, age_secs: None })
}

pub(crate) fn at_work(name: &str) -> TaskSeen {
    TaskSeen { task: task_id(name), ended_age_secs: None, is_ours: true }
}

/// One that has ended, and was begun so long ago.
pub(crate) fn over(name: &str, age_secs: u64) -> TaskSeen {
    TaskSeen { ended_age_secs: Some(age_secs), ..at_work(name) }
}

/// Runs a case; a panic names its seed.
pub(crate) fn check_seed(seed: u64, case: impl Fn(&mut Rng) + std::panic::UnwindSafe) {
    let ran = std::panic::catch_unwind(move || case(&mut Rng::new(seed)));
    if let Err(panic) = ran {
        eprintln!("seed {seed}");
        std::panic::resume_unwind(panic);
    }
}
