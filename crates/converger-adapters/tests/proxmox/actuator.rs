//! The actuator in the lab, on each release: every request is accepted, every change does what it says, and the responses agree with the
//! truth of the world.

use converger_adapters::proxmox::actuator::{CallerIdentity, clock_command, command_for, interpret_response};
use converger_adapters::proxmox::client::TokenId;
use converger_adapters::proxmox::codec::{self, ProxmoxCommand, ProxmoxFailure, ProxmoxWrite};
use converger_core::action::{Change, FieldChange, Provisioning};
use converger_core::apply::promise::{self, PostChangeReading, PromiseCheck};
use converger_core::apply::{EnvFaultKind, EnvRequest, EnvResponse, GuestAddress, LiveConfig, LiveStatus, SendResult, TaskId, TaskState};
use converger_core::apply::{GuestGuards, Operation, OperationId, OperationSource, OperationTarget, RunId};
use converger_core::artifact::Digest;
use converger_core::guest::{DayOne, EnvironmentName, GuestKind, NodeName, RunState, SecretReference, Vmid};
use converger_core::intent::{ActionRequest, ActionTarget, RequestedAction};
use converger_core::normalize::{ChangeEffect, Field, FieldValue, WordSet};
use converger_core::observe::ObservedStatus;
use converger_core::plan::{Step, StepReason};
use converger_lab::{Flavour, LabRequest, RequestFault, ResponseFault, TaskFault, TaskFaultEffect, World, WorldEvent, WorldSpec};

use crate::wire;

const TOKEN: &str = "root@pam!bot";

const WORLD: &str = "
cluster: lab
nodes: { pve1: {}, pve2: {}, pve3: {} }
tokens: { 'root@pam!bot': { secret: s3cret, full: true }, 'root@pam!other': { secret: s3cret, full: true } }
guests:
  - { vmid: 100, kind: qemu, node: pve1, name: web, state: stopped, config: { cores: 2, agent: '1,type=isa' } }
  - { vmid: 101, kind: lxc, node: pve2, name: dns, state: stopped, config: { cores: 2 } }
  - { vmid: 102, kind: qemu, node: pve1, name: owned, state: stopped }
  - { vmid: 103, kind: qemu, node: pve2, name: far, state: stopped }
  - { vmid: 104, kind: qemu, node: pve2, name: deaf, state: running, uptime_s: 1000, deaf: true }
ha: { 'vm:102': { state: stopped } }
";

/// A world, its clock, and the number of requests.
struct ActuatorLab {
    world: World,
    now_ms: u64,
    request_count: usize,
}

impl ActuatorLab {
    fn new(flavour: Flavour) -> Self {
        let mut spec = WorldSpec::from_yaml(WORLD).expect("a setting");
        spec.flavour = flavour;
        Self { world: World::new(&spec).expect("a world"), now_ms: spec.start_ms + 60_000, request_count: 0 }
    }

    /// One request through the same code as in the program, without sockets.
    fn request(&mut self, request: &EnvRequest) -> EnvResponse {
        let caller = CallerIdentity { token: TokenId::new(TOKEN).expect("a token"), cluster: Some("lab".into()) };
        match command_for(request) {
            Ok(command) => {
                let result = self.call_command(&command);
                let time = clock_command(request, &result).map(|command| self.call_command(&command));
                interpret_response(&caller, request, result, time)
            }
            Err(unsent) => *unsent,
        }
    }

    fn call_command(&mut self, command: &ProxmoxCommand) -> Result<codec::ProxmoxEvent, ProxmoxFailure> {
        let sent = codec::encode(command);
        let request = wire::build_request(wire::request_template(&format!("{TOKEN}=s3cret")), &sent);
        self.request_count += 1;
        let answer = self.world.answer_at(self.now_ms, "pve1", &request);
        wire::verify_exchange(self.world.flavour(), &request, &answer);
        self.advance_time(answer.delay_ms.min(wire::deadline_ms()));
        codec::decode(command, &wire::receive_response("pve1:8006", &sent, answer, wire::deadline_ms())?)
    }

    fn advance_time(&mut self, ms: u64) {
        self.now_ms += ms;
        self.world.advance_to(self.now_ms);
    }

    fn live_status(&mut self, address: &GuestAddress) -> LiveStatus {
        match self.request(&EnvRequest::Status(address.clone())) {
            EnvResponse::Status(live) => live,
            other => panic!("{other:?}"),
        }
    }

    fn live_config(&mut self, address: &GuestAddress) -> LiveConfig {
        match self.request(&EnvRequest::Config(address.clone())) {
            EnvResponse::Config(config) => *config,
            other => panic!("{other:?}"),
        }
    }

    fn send_change(&mut self, address: &GuestAddress, change: Change) -> SendResult {
        let revision = self.live_config(address).revision;
        let request = EnvRequest::Send { address: address.clone(), change, revision };
        let before = self.request_count;
        let EnvResponse::Sent(sent) = self.request(&request) else { panic!("an answer to a change") };
        assert_eq!(self.request_count, before + 1, "one environment request is one API request");
        sent
    }

    /// Sends a change and waits until its task has ended.
    fn send_and_wait(&mut self, address: &GuestAddress, change: Change) -> TaskState {
        match self.send_change(address, change) {
            SendResult::Task(task) => self.wait_for_task(&task),
            other => panic!("{other:?}"),
        }
    }

    fn wait_for_task(&mut self, task: &TaskId) -> TaskState {
        for _ in 0..100 {
            match self.request(&EnvRequest::Task(task.clone())) {
                EnvResponse::Task(TaskState::Running) => self.advance_time(1_000),
                // Its age depends on how long the task took; another test checks it.
                EnvResponse::Task(TaskState::Ended { warnings, .. }) => return TaskState::Ended { warnings, age_secs: None },
                EnvResponse::Task(state) => return state,
                other => panic!("{other:?}"),
            }
        }
        panic!("the task does not end");
    }

    fn own_tasks(&mut self, address: &GuestAddress, change: Change) -> Vec<TaskId> {
        self.own_tasks_since(address, change, u64::MAX)
    }

    fn own_tasks_since(&mut self, address: &GuestAddress, change: Change, age_secs_max: u64) -> Vec<TaskId> {
        match self.request(&EnvRequest::Tasks { address: address.clone(), change, age_secs_max }) {
            EnvResponse::Tasks(seen) => seen.into_iter().filter(|seen| seen.is_ours).map(|seen| seen.task).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn is_running(&self, address: &GuestAddress) -> bool {
        self.world.guest_truth(address.vmid.get()).expect("a guest").process.is_some()
    }
}

fn set_cores(after: u32) -> Change {
    let (before, after) = (Some(FieldValue::Count(2)), Some(FieldValue::Count(after)));
    Change::ConfigSet(Box::new([FieldChange { field: Field::Cores, before, after, pending: None, effect: ChangeEffect::Live }]))
}

fn address_on(node: &str, kind: GuestKind, vmid: u64) -> GuestAddress {
    GuestAddress { node: NodeName::new(node).expect("a node"), kind, vmid: Vmid::new(vmid).expect("an id") }
}

fn web_address() -> GuestAddress {
    address_on("pve1", GuestKind::Qemu, 100)
}

fn dns_address() -> GuestAddress {
    address_on("pve2", GuestKind::Lxc, 101)
}

const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

const ENDED_WELL: TaskState = TaskState::Ended { warnings: 0, age_secs: None };

/// The age of a task is measured on the clock of its own node, whatever the clocks of the endpoint and of this machine say. A guest that
/// has been up for less than that was started by the task or later.
#[test]
fn task_age_uses_the_clock_of_its_node() {
    for flavour in FLAVOURS {
        for off_s in [-7_200, -40, 0, 40, 7_200] {
            let mut lab = ActuatorLab::new(flavour);
            lab.world.apply_event(lab.now_ms, WorldEvent::NodeClockJump("pve2".into(), off_s));
            let address = address_on("pve2", GuestKind::Qemu, 103);
            assert_eq!(lab.send_and_wait(&address, Change::Start), ENDED_WELL);
            let SendResult::Task(task) = lab.send_change(&address, Change::Reboot { timeout_secs: 30 }) else { panic!("a task") };
            assert_eq!(lab.wait_for_task(&task), ENDED_WELL);
            lab.advance_time(100_000);
            let EnvResponse::Task(TaskState::Ended { age_secs: Some(age_secs), .. }) = lab.request(&EnvRequest::Task(task)) else {
                panic!("it has ended")
            };
            assert!((100..=115).contains(&age_secs), "{flavour:?} {off_s}: {age_secs} s");
        }
    }
}

/// The same for a failed reboot: its age distinguishes it from a later one.
#[test]
fn failed_reboot_is_dated_by_its_node() {
    for flavour in FLAVOURS {
        let mut lab = ActuatorLab::new(flavour);
        let address = address_on("pve2", GuestKind::Qemu, 104);
        let SendResult::Task(task) = lab.send_change(&address, Change::Reboot { timeout_secs: 5 }) else { panic!("a task") };
        lab.advance_time(60_000);
        let EnvResponse::Task(TaskState::Failed { cause, age_secs }) = lab.request(&EnvRequest::Task(task)) else { panic!("it failed") };
        assert_eq!((cause.kind, age_secs), (EnvFaultKind::ShutdownTimeout, Some(60)), "{flavour:?}");
    }
}

/// The node itself starts a rebooted guest. The task is found although it is not ours, and says why the guest is down.
#[test]
fn finds_the_failed_start_after_a_reboot_with_its_error() {
    for flavour in FLAVOURS {
        let mut lab = ActuatorLab::new(flavour);
        assert_eq!(lab.send_and_wait(&web_address(), Change::Start), ENDED_WELL);
        assert_eq!(lab.send_change(&web_address(), set_cores(9)), SendResult::Done, "a write does not check the number of processors");
        assert_eq!(lab.send_and_wait(&web_address(), Change::Reboot { timeout_secs: 30 }), ENDED_WELL);
        lab.advance_time(5_000);
        assert!(!lab.is_running(&web_address()), "{flavour:?}");
        let EnvResponse::Tasks(mut seen) =
            lab.request(&EnvRequest::Tasks { address: web_address(), change: Change::Start, age_secs_max: 60 })
        else {
            panic!("a list")
        };
        seen.retain(|seen| !seen.is_ours);
        let [start] = &seen[..] else { panic!("{flavour:?}: {seen:?}") };
        assert!(start.ended_age_secs.is_some_and(|age_secs| age_secs <= 6), "{flavour:?}: {start:?}");
        let EnvResponse::Task(TaskState::Failed { cause, .. }) = lab.request(&EnvRequest::Task(start.task.clone())) else {
            panic!("{flavour:?}: it failed")
        };
        assert_eq!(&*cause.text, "MAX 8 vcpus allowed per VM on this node");
    }
}

/// A wrong clock of the node does not change the age of a task: neither of the task of a lost response nor of an older task of ours.
#[test]
fn wrong_node_clock_does_not_change_task_ages() {
    for flavour in FLAVOURS {
        for off_s in [-40, 40] {
            let mut lab = ActuatorLab::new(flavour);
            lab.world.apply_event(lab.now_ms, WorldEvent::NodeClockJump("pve2".into(), off_s));
            assert_eq!(
                (lab.send_and_wait(&dns_address(), Change::Start), lab.send_and_wait(&dns_address(), Change::Stop)),
                (ENDED_WELL, ENDED_WELL)
            );
            lab.advance_time(30_000);
            lab.world.add_task_fault(TaskFault { effect: Some(TaskFaultEffect::Fail("no".into())), ..TaskFault::default() });
            lab.world.add_request_fault(RequestFault {
                method: Some("POST".into()),
                fault: Some(ResponseFault::LostAfter),
                ..RequestFault::default()
            });
            assert!(matches!(lab.send_change(&dns_address(), Change::Start), SendResult::MaybeExecuted(_)));
            lab.advance_time(5_000);
            let request = EnvRequest::Tasks { address: dns_address(), change: Change::Start, age_secs_max: 20 };
            let EnvResponse::Tasks(mut seen) = lab.request(&request) else { panic!("a list") };
            seen.sort_by_key(|task| task.ended_age_secs);
            let ages: Vec<Option<u64>> = seen.iter().map(|task| task.ended_age_secs).collect();
            let [Some(young), Some(old)] = ages[..] else { panic!("{flavour:?} {off_s}: {ages:?}") };
            assert!((5..=8).contains(&young) && (35..=50).contains(&old), "{flavour:?} {off_s}: {ages:?}");
            let time =
                RequestFault { path: Some("*/nodes/pve2/time".into()), fault: Some(ResponseFault::LostBefore), ..RequestFault::default() };
            lab.world.add_request_fault(time);
            let unread = lab.request(&request);
            assert!(matches!(&unread, EnvResponse::Unreadable(_)), "without the clock the list is unread: {unread:?}");
        }
    }
}

#[test]
fn every_change_works_in_every_release() {
    for flavour in FLAVOURS {
        for address in [web_address(), dns_address()] {
            let mut lab = ActuatorLab::new(flavour);
            assert_eq!(lab.send_and_wait(&address, Change::Start), ENDED_WELL, "{flavour:?}");
            assert!(lab.is_running(&address));
            assert_eq!(lab.live_status(&address).status, ObservedStatus::Known(RunState::Running));
            if address.kind == GuestKind::Qemu {
                lab.advance_time(100_000);
                let before = lab.live_status(&address).uptime_secs.expect("an uptime");
                assert_eq!(lab.send_and_wait(&address, Change::Reboot { timeout_secs: 30 }), ENDED_WELL, "{flavour:?}");
                lab.advance_time(5_000);
                assert!(lab.live_status(&address).uptime_secs.expect("an uptime") < before, "{flavour:?}");
            }
            assert_eq!(lab.send_and_wait(&address, Change::Shutdown { timeout_secs: 30 }), ENDED_WELL, "{flavour:?}");
            assert!(!lab.is_running(&address));
            assert_eq!(lab.send_and_wait(&address, Change::Start), ENDED_WELL);
            assert_eq!(lab.send_and_wait(&address, Change::Stop), ENDED_WELL);
            assert_eq!(lab.live_status(&address).status, ObservedStatus::Known(RunState::Stopped));
            assert_eq!(lab.send_change(&address, set_cores(4)), SendResult::Done, "{flavour:?}");
            assert_eq!(lab.world.guest_truth(address.vmid.get()).expect("a guest").config["cores"], "4");
        }
    }
}

#[test]
fn rejects_a_write_based_on_a_stale_config() {
    for flavour in FLAVOURS {
        for address in [web_address(), dns_address()] {
            let mut lab = ActuatorLab::new(flavour);
            let revision = lab.live_config(&address).revision;
            lab.world.apply_event(lab.now_ms, WorldEvent::Set(address.vmid.get(), "description".into(), "by hand".into()));
            let EnvResponse::Sent(SendResult::Rejected(cause)) =
                lab.request(&EnvRequest::Send { address: address.clone(), change: set_cores(4), revision })
            else {
                panic!("a rejection")
            };
            assert_eq!(cause.kind, EnvFaultKind::ConfigChanged, "{flavour:?} {cause:?}");
            assert_eq!(lab.world.guest_truth(address.vmid.get()).expect("a guest").config["cores"], "2");
        }
    }
}

#[test]
fn write_keeps_other_agent_options() {
    let mut lab = ActuatorLab::new(Flavour::V9);
    let (before, after) = (Some(FieldValue::Flag(true)), Some(FieldValue::Flag(false)));
    let off = FieldChange { field: Field::Agent, before, after, pending: None, effect: ChangeEffect::Recorded };
    assert_eq!(lab.send_change(&web_address(), Change::ConfigSet(Box::new([off]))), SendResult::Done);
    assert_eq!(lab.world.guest_truth(100).expect("a guest").config["agent"], "enabled=0,type=isa");
    assert_eq!(lab.live_config(&dns_address()).revision.expect("a revision").as_str().len(), 40, "a container has no agent");
}

#[test]
fn finds_a_guest_only_at_its_address() {
    for flavour in FLAVOURS {
        let mut lab = ActuatorLab::new(flavour);
        for wrong in
            [address_on("pve2", GuestKind::Qemu, 100), address_on("pve1", GuestKind::Lxc, 100), address_on("pve1", GuestKind::Qemu, 999)]
        {
            for request in [EnvRequest::Status(wrong.clone()), EnvRequest::Config(wrong.clone())] {
                assert!(matches!(lab.request(&request), EnvResponse::GuestNotFound(_)), "{flavour:?} {request:?}");
            }
        }
        assert_eq!(lab.request(&EnvRequest::Locate(web_address().vmid)), EnvResponse::Located(Some(web_address())));
        assert_eq!(lab.request(&EnvRequest::Locate(dns_address().vmid)), EnvResponse::Located(Some(dns_address())));
        lab.world.apply_event(lab.now_ms, WorldEvent::Move(100, "pve3".into()));
        assert_eq!(
            lab.request(&EnvRequest::Locate(web_address().vmid)),
            EnvResponse::Located(Some(address_on("pve3", GuestKind::Qemu, 100)))
        );
        lab.world.apply_event(lab.now_ms, WorldEvent::Unlist(100));
        assert_eq!(lab.request(&EnvRequest::Locate(web_address().vmid)), EnvResponse::Located(None));
    }
}

#[test]
fn reports_cluster_quorum_and_nodes() {
    for flavour in FLAVOURS {
        let mut lab = ActuatorLab::new(flavour);
        let EnvResponse::Cluster(membership) = lab.request(&EnvRequest::Cluster) else { panic!("a cluster") };
        assert!(membership.quorate && membership.nodes.len() == 3 && membership.nodes.values().all(|online| *online));
        lab.world.apply_event(lab.now_ms, WorldEvent::NodeDown("pve2".into()));
        lab.advance_time(60_000);
        let EnvResponse::Cluster(membership) = lab.request(&EnvRequest::Cluster) else { panic!("a cluster") };
        assert!(membership.quorate && !membership.nodes[&NodeName::new("pve2").expect("a node")]);
        let response = lab.request(&EnvRequest::Status(dns_address()));
        assert!(matches!(&response, EnvResponse::Unreadable(cause) if cause.word.as_str() == "node-silent"), "{response:?}");
        lab.world.apply_event(lab.now_ms, WorldEvent::NodeDown("pve3".into()));
        lab.advance_time(60_000);
        let EnvResponse::Cluster(membership) = lab.request(&EnvRequest::Cluster) else { panic!("a cluster") };
        assert!(!membership.quorate);
    }
}

#[test]
fn finds_the_task_after_a_lost_response() {
    let timed_out = || ResponseFault::After { status: 596, reason: "Connection timed out".into() };
    for flavour in FLAVOURS {
        for address in [web_address(), dns_address()] {
            for fault in [ResponseFault::LostAfter, timed_out(), ResponseFault::Truncated(5)] {
                let mut lab = ActuatorLab::new(flavour);
                lab.world.add_request_fault(RequestFault { method: Some("POST".into()), fault: Some(fault), ..RequestFault::default() });
                let sent = lab.send_change(&address, Change::Start);
                assert!(matches!(sent, SendResult::MaybeExecuted(_)), "{flavour:?} {sent:?}");
                let found = lab.own_tasks(&address, Change::Start);
                assert_eq!(found.len(), 1, "{flavour:?}");
                assert_eq!(lab.wait_for_task(&found[0]), ENDED_WELL);
                assert!(lab.is_running(&address));
                assert_eq!(lab.own_tasks(&address, Change::Stop), [], "another change");
                assert_eq!(lab.own_tasks(&address, Change::Start), found, "even after it has ended");
            }
        }
    }
}

/// The last task is found even if there are more tasks than a list contains.
#[test]
fn finds_the_task_of_a_guest_with_many_tasks() {
    for flavour in FLAVOURS {
        let mut lab = ActuatorLab::new(flavour);
        for _ in 0..30 {
            assert_eq!(
                (lab.send_and_wait(&web_address(), Change::Start), lab.send_and_wait(&web_address(), Change::Stop)),
                (ENDED_WELL, ENDED_WELL)
            );
        }
        lab.advance_time(300_000);
        let intent_secs = lab.now_ms / 1000;
        lab.world.add_request_fault(RequestFault {
            method: Some("POST".into()),
            fault: Some(ResponseFault::LostAfter),
            ..RequestFault::default()
        });
        assert!(matches!(lab.send_change(&web_address(), Change::Start), SendResult::MaybeExecuted(_)));
        let found = lab.own_tasks_since(&web_address(), Change::Start, lab.now_ms / 1000 - intent_secs + 10);
        assert_eq!(found.len(), 1, "{flavour:?} {found:?}");
        assert_eq!(lab.wait_for_task(&found[0]), ENDED_WELL);
        let everything = lab.request(&EnvRequest::Tasks { address: web_address(), change: Change::Start, age_secs_max: u64::MAX });
        assert!(matches!(&everything, EnvResponse::Unreadable(cause) if cause.word.as_str() == "list-full"), "{flavour:?} {everything:?}");
    }
}

#[test]
fn undelivered_change_leaves_no_task() {
    let mut lab = ActuatorLab::new(Flavour::V9);
    lab.world.add_request_fault(RequestFault {
        method: Some("POST".into()),
        fault: Some(ResponseFault::LostBefore),
        ..RequestFault::default()
    });
    assert!(matches!(lab.send_change(&web_address(), Change::Start), SendResult::MaybeExecuted(_)), "the outcome is unclear");
    assert_eq!(lab.own_tasks(&web_address(), Change::Start), []);
    assert!(!lab.is_running(&web_address()));
}

#[test]
fn task_of_another_token_is_never_ours() {
    let mut lab = ActuatorLab::new(Flavour::V9);
    let path = "/api2/extjs/nodes/pve1/qemu/100/status/start";
    let other = LabRequest::new("POST", path).with_token("root@pam!other=s3cret").with_form("").with_header("Content-Length", "0");
    assert_eq!(lab.world.answer_at(lab.now_ms, "pve1", &other).status, 200);
    assert_eq!(lab.own_tasks(&web_address(), Change::Start), []);
    lab.advance_time(10_000);
    assert!(lab.is_running(&web_address()), "the other task did run");
    assert_eq!(lab.own_tasks(&web_address(), Change::Start), []);
}

#[test]
fn reports_task_ends() {
    let ends = |effect: TaskFaultEffect, event: Option<WorldEvent>| {
        let mut lab = ActuatorLab::new(Flavour::V9);
        lab.world.add_task_fault(TaskFault { effect: Some(effect), ..TaskFault::default() });
        let SendResult::Task(task) = lab.send_change(&web_address(), Change::Start) else { panic!("a task") };
        if let Some(event) = event {
            lab.advance_time(1_000);
            lab.world.apply_event(lab.now_ms, event);
        }
        lab.wait_for_task(&task)
    };
    assert_eq!(ends(TaskFaultEffect::Warnings(3), None), TaskState::Ended { warnings: 3, age_secs: None });
    let failed = ends(TaskFaultEffect::Fail("start failed: QEMU exited with code 1".into()), None);
    assert!(matches!(&failed, TaskState::Failed { cause, .. } if cause.text.contains("QEMU exited")), "{failed:?}");
    let killed = ends(TaskFaultEffect::Hang, Some(WorldEvent::KillTask(100)));
    assert!(matches!(&killed, TaskState::Lost(_)), "{killed:?}");
}

#[test]
fn locked_guest_fails_in_its_task_as_locked() {
    for flavour in FLAVOURS {
        let mut lab = ActuatorLab::new(flavour);
        lab.world.apply_event(lab.now_ms, WorldEvent::Lock(100, "backup".into()));
        assert_eq!(lab.live_status(&web_address()).lock.as_deref(), Some("backup"));
        assert_eq!(lab.live_config(&web_address()).lock.as_deref(), Some("backup"));
        let failed = lab.send_and_wait(&web_address(), Change::Start);
        assert!(matches!(&failed, TaskState::Failed { cause, .. } if cause.kind == EnvFaultKind::Locked), "{flavour:?} {failed:?}");
        assert!(!lab.is_running(&web_address()));
    }
}

#[test]
fn ha_guest_is_reported_and_its_task_is_ours() {
    for flavour in FLAVOURS {
        let mut lab = ActuatorLab::new(flavour);
        let owned = address_on("pve1", GuestKind::Qemu, 102);
        lab.advance_time(60_000);
        assert!(lab.live_status(&owned).ha.is_some_and(|ha| ha.owns_run_state()), "{flavour:?}");
        assert!(lab.live_status(&web_address()).ha.is_none());
        let SendResult::Task(task) = lab.send_change(&owned, Change::Start) else { panic!("a task: {flavour:?}") };
        assert!(task.as_str().contains(":hastart:102:"), "{task}");
        assert_eq!(lab.own_tasks(&owned, Change::Start), [task]);
    }
}

#[test]
fn unknown_task_is_lost() {
    let mut lab = ActuatorLab::new(Flavour::V9);
    let unknown = TaskId::new("UPID:pve1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!bot:").expect("an id");
    let answer = lab.request(&EnvRequest::Task(unknown));
    assert!(matches!(answer, EnvResponse::Task(TaskState::Lost(_))), "{answer:?}");
}

const SSH_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ1Yv1y0b1kJ6l0oTq2p5bqg8m3f0yX9b2v7c4d5e6f7 me@host";
const NETWORK: [(&str, &str); 7] = [
    ("bridge", "vmbr0"),
    ("vlan", "30"),
    ("mac", "BC:24:11:00:00:07"),
    ("addresses", "10.0.0.7/24,2001:db8::7/64"),
    ("gateway", "10.0.0.1"),
    ("dns", "10.0.0.53,10.0.0.54"),
    ("search-domain", "example.org"),
];

/// What a new guest gets, as a person requests it.
fn provisioning(kind: GuestKind, parameters: &[(&str, &str)]) -> Provisioning {
    let target = ActionTarget { kind, vmid: Vmid::new(900).expect("an id") };
    // A container keeps the address that Proxmox gave it.
    let fitting = parameters.iter().copied().filter(|(name, _)| !(kind == GuestKind::Lxc && *name == "mac"));
    let named = [("newid", "120"), ("name", "web-7")].into_iter().chain(fitting);
    let request = ActionRequest::parse(EnvironmentName::new("lab").expect("a name"), "vm.clone", target, named);
    match request.unwrap_or_else(|faults| panic!("{faults:?}")).action() {
        RequestedAction::Clone(clone) => clone.provisioning.clone(),
        other => panic!("{other:?}"),
    }
}

/// Whether the config shows everything that was written.
fn check_provisioned(wanted: &Provisioning, config: &LiveConfig) -> PromiseCheck {
    let guards = GuestGuards { ha: None, lock: None, protection: false, tags: WordSet::default(), template: false };
    let (vmid, node) = (Vmid::new(120).expect("an id"), NodeName::new("pve1").expect("a node"));
    let guest = OperationTarget { vmid, kind: wanted.kind, name: "web-7".into(), node, identity: None, guards };
    let change = Change::Provision(Box::new(wanted.clone()));
    let step = Step { change, reason: StepReason::Requested, from: RunState::Stopped, wait: Box::default() };
    let (id, run) = (OperationId::new("run-1-1").expect("an id"), RunId::new("run-1").expect("an id"));
    let (environment, plan) = (EnvironmentName::new("lab").expect("a name"), Digest::of_bytes(b"plan"));
    let operation = Operation::new(id, run, environment, guest, step, 1, plan, OperationSource::Convergent);
    promise::check_promise(&operation, PostChangeReading { config: Some(config), ..PostChangeReading::default() })
}

#[test]
fn first_config_of_a_new_guest_is_written_at_once_and_read_back() {
    let fields = [("cores", "4"), ("memory", "4GiB"), ("tags", "edge,web"), ("onboot", "true"), ("description", "made; from=100%")];
    let cloud = [("sockets", "2"), ("balloon", "1GiB"), ("agent", "true"), ("cpu", "host"), ("ci-user", "debian"), ("ssh-keys", SSH_KEY)];
    for flavour in FLAVOURS {
        for (kind, node, vmid) in [(GuestKind::Qemu, "pve1", 100), (GuestKind::Lxc, "pve2", 101)] {
            let of_kind: &[_] = if kind == GuestKind::Qemu { &cloud } else { &[("swap", "256MiB")] };
            let wanted = provisioning(kind, &[&fields[..], &NETWORK, of_kind].concat());
            let (mut lab, address) = (ActuatorLab::new(flavour), address_on(node, kind, vmid));
            let before = check_provisioned(&wanted, &lab.live_config(&address));
            assert!(matches!(before, PromiseCheck::NotKept(_)), "{before:?}");
            assert_eq!(lab.send_change(&address, Change::Provision(Box::new(wanted.clone()))), SendResult::Done, "{flavour:?} {kind:?}");
            let after = check_provisioned(&wanted, &lab.live_config(&address));
            assert!(matches!(after, PromiseCheck::Kept(_)), "{flavour:?} {kind:?}: {after:?}");
        }
    }
}

#[test]
fn changing_one_part_of_the_network_device_keeps_the_others() {
    let mut lab = ActuatorLab::new(Flavour::V9);
    let address = address_on("pve1", GuestKind::Qemu, 100);
    let wanted = |pairs: &[(&str, &str)]| Change::Provision(Box::new(provisioning(GuestKind::Qemu, pairs)));
    assert_eq!(lab.send_change(&address, wanted(&NETWORK)), SendResult::Done);
    assert_eq!(lab.send_change(&address, wanted(&[("vlan", "31")])), SendResult::Done);
    let found = lab.live_config(&address).day_one.attributes;
    let expected = NETWORK.iter().filter(|(name, _)| *name != "vlan").chain(&[("vlan", "31")]);
    let expected = expected.fold(DayOne::default(), |all, (name, text)| all.with(name, text).expect("an attribute"));
    assert_eq!(found, expected);
}

/// The write is bound to the config that was checked, so that it cannot reach a guest that took the id meanwhile (S7).
#[test]
fn first_config_is_not_written_to_a_config_that_changed() {
    let mut lab = ActuatorLab::new(Flavour::V9);
    let address = address_on("pve1", GuestKind::Qemu, 100);
    let revision = lab.live_config(&address).revision;
    assert_eq!(lab.send_change(&address, set_cores(3)), SendResult::Done);
    let change = Change::Provision(Box::new(provisioning(GuestKind::Qemu, &[("ci-user", "debian")])));
    let unbound = EnvRequest::Send { address: address.clone(), change: change.clone(), revision: None };
    for (request, kind) in [
        (EnvRequest::Send { address: address.clone(), change, revision }, EnvFaultKind::ConfigChanged),
        (unbound, EnvFaultKind::Unsupported),
    ] {
        match lab.request(&request) {
            EnvResponse::Sent(SendResult::Rejected(fault)) => assert_eq!(fault.kind, kind, "{fault:?}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lab.live_config(&address).day_one.attributes.user, None);
}

#[test]
fn password_is_sent_and_never_shown() {
    const PASSWORD: &str = "hunter2 & more";
    let mut lab = ActuatorLab::new(Flavour::V9);
    let address = address_on("pve1", GuestKind::Qemu, 100);
    let wanted = provisioning(GuestKind::Qemu, &[("ci-user", "debian"), ("password", "env:WEB_PASSWORD")]);
    assert_eq!(wanted.password, SecretReference::new("env:WEB_PASSWORD"));
    let revision = lab.live_config(&address).revision;
    let request = EnvRequest::Send { address: address.clone(), change: Change::Provision(Box::new(wanted.clone())), revision };
    let Ok(ProxmoxCommand::Write(ProxmoxWrite::Provision(write))) = command_for(&request) else { panic!("a write") };
    assert_eq!(write.password_reference(), wanted.password.as_ref());
    let command = ProxmoxCommand::Write(ProxmoxWrite::Provision(Box::new(write.with_password(PASSWORD.to_owned().into()))));
    let sent = codec::encode(&command);
    assert!(sent.form().expect("a form").contains("cipassword=hunter2%20%26%20more"));
    for shown in [format!("{sent:?}"), format!("{command:?}"), format!("{request:?}")] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    let accepted = lab.call_command(&command);
    assert!(accepted.is_ok(), "{accepted:?}");
    let config = lab.live_config(&address);
    assert!(config.day_one.has_password && !format!("{config:?}").contains("hunter2"));
    assert!(matches!(check_provisioned(&wanted, &config), PromiseCheck::Kept(_)));
}
