//! The hand against the lab, in each release: every ask is taken, every change does what it says, and what the world knows to be true
//! agrees with what the hand tells.

use converger_adapters::proxmox::client::TokenId;
use converger_adapters::proxmox::codec::{self, Command, Failure};
use converger_adapters::proxmox::hand::{Caller, answer, clock, command};
use converger_core::action::{Change, FieldChange};
use converger_core::apply::{Answer, Ask, ConfigRead, Live, Place, Sent, TaskId, TaskState, Trouble};
use converger_core::guest::{Kind, NodeName, RunState, Vmid};
use converger_core::normalize::{Effect, Field, Value};
use converger_core::observe::Status;
use converger_lab::{Act, Flavour, Request, RequestFault, Setting, TaskFault, TaskTwist, Twist, World};

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

/// A world, its clock, and how many requests came to it.
struct Lab {
    world: World,
    now_ms: u64,
    sent: usize,
}

impl Lab {
    fn new(flavour: Flavour) -> Self {
        let mut setting = Setting::from_yaml(WORLD).expect("a setting");
        setting.flavour = flavour;
        Self { world: World::new(&setting).expect("a world"), now_ms: setting.start_ms + 60_000, sent: 0 }
    }

    /// One ask over the very code that the program uses, without sockets.
    fn ask(&mut self, ask: &Ask) -> Answer {
        let caller = Caller { token: TokenId::new(TOKEN).expect("a token"), cluster: Some("lab".into()) };
        match command(ask) {
            Ok(command) => {
                let came = self.call(&command);
                let time = clock(ask, &came).map(|command| self.call(&command));
                answer(&caller, ask, came, time)
            }
            Err(unsent) => *unsent,
        }
    }

    fn call(&mut self, command: &Command) -> Result<codec::Event, Failure> {
        let sent = codec::encode(command);
        let request = wire::request(wire::unsent(&format!("{TOKEN}=s3cret")), &sent);
        self.sent += 1;
        let answer = self.world.answer_at(self.now_ms, "pve1", &request);
        wire::verify(self.world.flavour(), &request, &answer);
        self.pass(answer.delay_ms.min(wire::deadline_ms()));
        codec::decode(command, &wire::received("pve1:8006", &sent, answer, wire::deadline_ms())?)
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.world.advance_to(self.now_ms);
    }

    fn live(&mut self, place: &Place) -> Live {
        match self.ask(&Ask::Status(place.clone())) {
            Answer::Status(live) => live,
            other => panic!("{other:?}"),
        }
    }

    fn config(&mut self, place: &Place) -> ConfigRead {
        match self.ask(&Ask::Config(place.clone())) {
            Answer::Config(config) => *config,
            other => panic!("{other:?}"),
        }
    }

    fn send(&mut self, place: &Place, change: Change) -> Sent {
        let revision = self.config(place).revision;
        let ask = Ask::Send { place: place.clone(), change, revision };
        let before = self.sent;
        let Answer::Sent(sent) = self.ask(&ask) else { panic!("an answer to a change") };
        assert_eq!(self.sent, before + 1, "one ask is one request");
        sent
    }

    /// Sends, and waits until the task has ended.
    fn carry_out(&mut self, place: &Place, change: Change) -> TaskState {
        match self.send(place, change) {
            Sent::Task(task) => self.end_of(&task),
            other => panic!("{other:?}"),
        }
    }

    fn end_of(&mut self, task: &TaskId) -> TaskState {
        for _ in 0..100 {
            match self.ask(&Ask::Task(task.clone())) {
                Answer::Task(TaskState::Running) => self.pass(1_000),
                // How old it is depends on how long it took; the next test looks at that.
                Answer::Task(TaskState::Ended { warnings, .. }) => return TaskState::Ended { warnings, age_secs: None },
                Answer::Task(state) => return state,
                other => panic!("{other:?}"),
            }
        }
        panic!("the task does not end");
    }

    fn tasks(&mut self, place: &Place, change: Change) -> Vec<TaskId> {
        self.tasks_of(place, change, u64::MAX)
    }

    fn tasks_of(&mut self, place: &Place, change: Change, age_secs_max: u64) -> Vec<TaskId> {
        match self.ask(&Ask::Tasks { place: place.clone(), change, age_secs_max }) {
            Answer::Tasks(seen) => seen.into_iter().filter(|seen| seen.is_ours).map(|seen| seen.task).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn runs(&self, place: &Place) -> bool {
        self.world.truth(place.vmid.get()).expect("a guest").process.is_some()
    }
}

fn cores(after: u32) -> Change {
    let (before, after) = (Some(Value::Count(2)), Some(Value::Count(after)));
    Change::ConfigSet(Box::new([FieldChange { field: Field::Cores, before, after, pending: None, effect: Effect::Live }]))
}

fn at(node: &str, kind: Kind, vmid: u64) -> Place {
    Place { node: NodeName::new(node).expect("a node"), kind, vmid: Vmid::new(vmid).expect("an id") }
}

fn web() -> Place {
    at("pve1", Kind::Qemu, 100)
}

fn dns() -> Place {
    at("pve2", Kind::Lxc, 101)
}

const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

const OK: TaskState = TaskState::Ended { warnings: 0, age_secs: None };

/// By the clock of its own node, whatever those of the entry and of this machine say: a guest that has been up for less was started by it or
/// since.
#[test]
fn a_task_that_ended_is_as_old_as_it_is_on_its_own_node() {
    for flavour in FLAVOURS {
        for off_s in [-7_200, -40, 0, 40, 7_200] {
            let mut lab = Lab::new(flavour);
            lab.world.act(lab.now_ms, Act::NodeClockJump("pve2".into(), off_s));
            let place = at("pve2", Kind::Qemu, 103);
            assert_eq!(lab.carry_out(&place, Change::Start), OK);
            let Sent::Task(task) = lab.send(&place, Change::Reboot { timeout_secs: 30 }) else { panic!("a task") };
            assert_eq!(lab.end_of(&task), OK);
            lab.pass(100_000);
            let Answer::Task(TaskState::Ended { age_secs: Some(age_secs), .. }) = lab.ask(&Ask::Task(task)) else { panic!("it has ended") };
            assert!((100..=115).contains(&age_secs), "{flavour:?} {off_s}: {age_secs} s");
        }
    }
}

/// Also one that failed: a reboot that timed out is told from one that came later by that.
#[test]
fn a_reboot_that_failed_is_as_old_as_it_is_on_its_own_node() {
    for flavour in FLAVOURS {
        let mut lab = Lab::new(flavour);
        let place = at("pve2", Kind::Qemu, 104);
        let Sent::Task(task) = lab.send(&place, Change::Reboot { timeout_secs: 5 }) else { panic!("a task") };
        lab.pass(60_000);
        let Answer::Task(TaskState::Failed { cause, age_secs }) = lab.ask(&Ask::Task(task)) else { panic!("it failed") };
        assert_eq!((cause.trouble, age_secs), (Trouble::ShutdownTimeout, Some(60)), "{flavour:?}");
    }
}

/// The node starts a rebooted guest itself: that task is found although it is not ours, and says why the guest is down.
#[test]
fn the_start_that_failed_after_a_reboot_is_found_with_what_it_said() {
    for flavour in FLAVOURS {
        let mut lab = Lab::new(flavour);
        assert_eq!(lab.carry_out(&web(), Change::Start), OK);
        assert_eq!(lab.send(&web(), cores(9)), Sent::Done, "nobody counts processors at a write");
        assert_eq!(lab.carry_out(&web(), Change::Reboot { timeout_secs: 30 }), OK);
        lab.pass(5_000);
        assert!(!lab.runs(&web()), "{flavour:?}");
        let Answer::Tasks(mut seen) = lab.ask(&Ask::Tasks { place: web(), change: Change::Start, age_secs_max: 60 }) else {
            panic!("a list")
        };
        seen.retain(|seen| !seen.is_ours);
        let [start] = &seen[..] else { panic!("{flavour:?}: {seen:?}") };
        assert!(start.ended_age_secs.is_some_and(|age_secs| age_secs <= 6), "{flavour:?}: {start:?}");
        let Answer::Task(TaskState::Failed { cause, .. }) = lab.ask(&Ask::Task(start.task.clone())) else {
            panic!("{flavour:?}: it failed")
        };
        assert_eq!(&*cause.text, "MAX 8 vcpus allowed per VM on this node");
    }
}

/// A lost answer's task on a node whose clock is off is as young as it is, and an older one of ours is no younger for it.
#[test]
fn a_clock_that_is_off_on_one_node_hides_no_task_and_makes_none_younger() {
    for flavour in FLAVOURS {
        for off_s in [-40, 40] {
            let mut lab = Lab::new(flavour);
            lab.world.act(lab.now_ms, Act::NodeClockJump("pve2".into(), off_s));
            assert_eq!((lab.carry_out(&dns(), Change::Start), lab.carry_out(&dns(), Change::Stop)), (OK, OK));
            lab.pass(30_000);
            lab.world.add_task_fault(TaskFault { twist: Some(TaskTwist::Fail("no".into())), ..TaskFault::default() });
            lab.world.add_request_fault(RequestFault {
                method: Some("POST".into()),
                twist: Some(Twist::LostAfter),
                ..RequestFault::default()
            });
            assert!(matches!(lab.send(&dns(), Change::Start), Sent::MayHaveRun(_)));
            lab.pass(5_000);
            let ask = Ask::Tasks { place: dns(), change: Change::Start, age_secs_max: 20 };
            let Answer::Tasks(mut seen) = lab.ask(&ask) else { panic!("a list") };
            seen.sort_by_key(|task| task.ended_age_secs);
            let ages: Vec<Option<u64>> = seen.iter().map(|task| task.ended_age_secs).collect();
            let [Some(young), Some(old)] = ages[..] else { panic!("{flavour:?} {off_s}: {ages:?}") };
            assert!((5..=8).contains(&young) && (35..=50).contains(&old), "{flavour:?} {off_s}: {ages:?}");
            let time = RequestFault { path: Some("*/nodes/pve2/time".into()), twist: Some(Twist::LostBefore), ..RequestFault::default() };
            lab.world.add_request_fault(time);
            let unread = lab.ask(&ask);
            assert!(matches!(&unread, Answer::Unread(_)), "without a clock nothing is told: {unread:?}");
        }
    }
}

#[test]
fn every_change_does_what_it_says_in_every_release() {
    for flavour in FLAVOURS {
        for place in [web(), dns()] {
            let mut lab = Lab::new(flavour);
            assert_eq!(lab.carry_out(&place, Change::Start), OK, "{flavour:?}");
            assert!(lab.runs(&place));
            assert_eq!(lab.live(&place).status, Status::Known(RunState::Running));
            if place.kind == Kind::Qemu {
                lab.pass(100_000);
                let before = lab.live(&place).uptime_secs.expect("an uptime");
                assert_eq!(lab.carry_out(&place, Change::Reboot { timeout_secs: 30 }), OK, "{flavour:?}");
                lab.pass(5_000);
                assert!(lab.live(&place).uptime_secs.expect("an uptime") < before, "{flavour:?}");
            }
            assert_eq!(lab.carry_out(&place, Change::Shutdown { timeout_secs: 30 }), OK, "{flavour:?}");
            assert!(!lab.runs(&place));
            assert_eq!(lab.carry_out(&place, Change::Start), OK);
            assert_eq!(lab.carry_out(&place, Change::Stop), OK);
            assert_eq!(lab.live(&place).status, Status::Known(RunState::Stopped));
            assert_eq!(lab.send(&place, cores(4)), Sent::Done, "{flavour:?}");
            assert_eq!(lab.world.truth(place.vmid.get()).expect("a guest").config["cores"], "4");
        }
    }
}

#[test]
fn a_write_on_an_old_reading_is_turned_down() {
    for flavour in FLAVOURS {
        for place in [web(), dns()] {
            let mut lab = Lab::new(flavour);
            let revision = lab.config(&place).revision;
            lab.world.act(lab.now_ms, Act::Set(place.vmid.get(), "description".into(), "by hand".into()));
            let Answer::Sent(Sent::No(cause)) = lab.ask(&Ask::Send { place: place.clone(), change: cores(4), revision }) else {
                panic!("a no")
            };
            assert_eq!(cause.trouble, Trouble::Changed, "{flavour:?} {cause:?}");
            assert_eq!(lab.world.truth(place.vmid.get()).expect("a guest").config["cores"], "2");
        }
    }
}

#[test]
fn the_other_options_of_the_agent_survive_a_write() {
    let mut lab = Lab::new(Flavour::V9);
    let (before, after) = (Some(Value::Flag(true)), Some(Value::Flag(false)));
    let off = FieldChange { field: Field::Agent, before, after, pending: None, effect: Effect::Recorded };
    assert_eq!(lab.send(&web(), Change::ConfigSet(Box::new([off]))), Sent::Done);
    assert_eq!(lab.world.truth(100).expect("a guest").config["agent"], "enabled=0,type=isa");
    assert_eq!(lab.config(&dns()).revision.expect("a revision").as_str().len(), 40, "a container has none");
}

#[test]
fn a_guest_is_found_where_it_is_and_nowhere_else() {
    for flavour in FLAVOURS {
        let mut lab = Lab::new(flavour);
        for wrong in [at("pve2", Kind::Qemu, 100), at("pve1", Kind::Lxc, 100), at("pve1", Kind::Qemu, 999)] {
            for ask in [Ask::Status(wrong.clone()), Ask::Config(wrong.clone())] {
                assert!(matches!(lab.ask(&ask), Answer::NotThere(_)), "{flavour:?} {ask:?}");
            }
        }
        assert_eq!(lab.ask(&Ask::Where(web().vmid)), Answer::Where(Some(web())));
        assert_eq!(lab.ask(&Ask::Where(dns().vmid)), Answer::Where(Some(dns())));
        lab.world.act(lab.now_ms, Act::Move(100, "pve3".into()));
        assert_eq!(lab.ask(&Ask::Where(web().vmid)), Answer::Where(Some(at("pve3", Kind::Qemu, 100))));
        lab.world.act(lab.now_ms, Act::Unlist(100));
        assert_eq!(lab.ask(&Ask::Where(web().vmid)), Answer::Where(None));
    }
}

#[test]
fn the_cluster_is_told_with_its_quorum_and_nodes() {
    for flavour in FLAVOURS {
        let mut lab = Lab::new(flavour);
        let Answer::Cluster(membership) = lab.ask(&Ask::Cluster) else { panic!("a cluster") };
        assert!(membership.quorate && membership.nodes.len() == 3 && membership.nodes.values().all(|online| *online));
        lab.world.act(lab.now_ms, Act::NodeDown("pve2".into()));
        lab.pass(60_000);
        let Answer::Cluster(membership) = lab.ask(&Ask::Cluster) else { panic!("a cluster") };
        assert!(membership.quorate && !membership.nodes[&NodeName::new("pve2").expect("a node")]);
        let asked = lab.ask(&Ask::Status(dns()));
        assert!(matches!(&asked, Answer::Unread(cause) if cause.word.as_str() == "node-silent"), "{asked:?}");
        lab.world.act(lab.now_ms, Act::NodeDown("pve3".into()));
        lab.pass(60_000);
        let Answer::Cluster(membership) = lab.ask(&Ask::Cluster) else { panic!("a cluster") };
        assert!(!membership.quorate);
    }
}

#[test]
fn an_answer_that_is_lost_after_the_effect_may_have_run_and_its_task_is_found() {
    let gone = || Twist::After { status: 596, reason: "Connection timed out".into() };
    for flavour in FLAVOURS {
        for place in [web(), dns()] {
            for twist in [Twist::LostAfter, gone(), Twist::Truncated(5)] {
                let mut lab = Lab::new(flavour);
                lab.world.add_request_fault(RequestFault { method: Some("POST".into()), twist: Some(twist), ..RequestFault::default() });
                let sent = lab.send(&place, Change::Start);
                assert!(matches!(sent, Sent::MayHaveRun(_)), "{flavour:?} {sent:?}");
                let found = lab.tasks(&place, Change::Start);
                assert_eq!(found.len(), 1, "{flavour:?}");
                assert_eq!(lab.end_of(&found[0]), OK);
                assert!(lab.runs(&place));
                assert_eq!(lab.tasks(&place, Change::Stop), [], "another change");
                assert_eq!(lab.tasks(&place, Change::Start), found, "also when it has ended");
            }
        }
    }
}

/// More tasks than a list holds are no reason not to find the last one.
#[test]
fn the_task_of_a_guest_with_a_long_past_is_found() {
    for flavour in FLAVOURS {
        let mut lab = Lab::new(flavour);
        for _ in 0..30 {
            assert_eq!((lab.carry_out(&web(), Change::Start), lab.carry_out(&web(), Change::Stop)), (OK, OK));
        }
        lab.pass(300_000);
        let intent_secs = lab.now_ms / 1000;
        lab.world.add_request_fault(RequestFault { method: Some("POST".into()), twist: Some(Twist::LostAfter), ..RequestFault::default() });
        assert!(matches!(lab.send(&web(), Change::Start), Sent::MayHaveRun(_)));
        let found = lab.tasks_of(&web(), Change::Start, lab.now_ms / 1000 - intent_secs + 10);
        assert_eq!(found.len(), 1, "{flavour:?} {found:?}");
        assert_eq!(lab.end_of(&found[0]), OK);
        let everything = lab.ask(&Ask::Tasks { place: web(), change: Change::Start, age_secs_max: u64::MAX });
        assert!(matches!(&everything, Answer::Unread(cause) if cause.word.as_str() == "list-full"), "{flavour:?} {everything:?}");
    }
}

#[test]
fn what_never_arrived_leaves_no_task() {
    let mut lab = Lab::new(Flavour::V9);
    lab.world.add_request_fault(RequestFault { method: Some("POST".into()), twist: Some(Twist::LostBefore), ..RequestFault::default() });
    assert!(matches!(lab.send(&web(), Change::Start), Sent::MayHaveRun(_)), "nobody can know");
    assert_eq!(lab.tasks(&web(), Change::Start), []);
    assert!(!lab.runs(&web()));
}

#[test]
fn a_task_of_another_token_is_never_ours() {
    let mut lab = Lab::new(Flavour::V9);
    let path = "/api2/extjs/nodes/pve1/qemu/100/status/start";
    let other = Request::new("POST", path).token("root@pam!other=s3cret").form("").header("Content-Length", "0");
    assert_eq!(lab.world.answer_at(lab.now_ms, "pve1", &other).status, 200);
    assert_eq!(lab.tasks(&web(), Change::Start), []);
    lab.pass(10_000);
    assert!(lab.runs(&web()), "it did run");
    assert_eq!(lab.tasks(&web(), Change::Start), []);
}

#[test]
fn how_tasks_end() {
    let ends = |twist: TaskTwist, act: Option<Act>| {
        let mut lab = Lab::new(Flavour::V9);
        lab.world.add_task_fault(TaskFault { twist: Some(twist), ..TaskFault::default() });
        let Sent::Task(task) = lab.send(&web(), Change::Start) else { panic!("a task") };
        if let Some(act) = act {
            lab.pass(1_000);
            lab.world.act(lab.now_ms, act);
        }
        lab.end_of(&task)
    };
    assert_eq!(ends(TaskTwist::Warnings(3), None), TaskState::Ended { warnings: 3, age_secs: None });
    let failed = ends(TaskTwist::Fail("start failed: QEMU exited with code 1".into()), None);
    assert!(matches!(&failed, TaskState::Failed { cause, .. } if cause.text.contains("QEMU exited")), "{failed:?}");
    let killed = ends(TaskTwist::Hang, Some(Act::KillTask(100)));
    assert!(matches!(&killed, TaskState::Lost(_)), "{killed:?}");
}

#[test]
fn a_locked_guest_fails_in_its_task_and_is_told_as_locked() {
    for flavour in FLAVOURS {
        let mut lab = Lab::new(flavour);
        lab.world.act(lab.now_ms, Act::Lock(100, "backup".into()));
        assert_eq!(lab.live(&web()).lock.as_deref(), Some("backup"));
        assert_eq!(lab.config(&web()).lock.as_deref(), Some("backup"));
        let failed = lab.carry_out(&web(), Change::Start);
        assert!(matches!(&failed, TaskState::Failed { cause, .. } if cause.trouble == Trouble::Locked), "{flavour:?} {failed:?}");
        assert!(!lab.runs(&web()));
    }
}

#[test]
fn what_high_availability_owns_is_told_and_its_task_is_still_ours() {
    for flavour in FLAVOURS {
        let mut lab = Lab::new(flavour);
        let owned = at("pve1", Kind::Qemu, 102);
        lab.pass(60_000);
        assert!(lab.live(&owned).ha.is_some_and(|ha| ha.owns()), "{flavour:?}");
        assert!(lab.live(&web()).ha.is_none());
        let Sent::Task(task) = lab.send(&owned, Change::Start) else { panic!("a task: {flavour:?}") };
        assert!(task.as_str().contains(":hastart:102:"), "{task}");
        assert_eq!(lab.tasks(&owned, Change::Start), [task]);
    }
}

#[test]
fn a_task_that_nobody_remembers_is_lost() {
    let mut lab = Lab::new(Flavour::V9);
    let unknown = TaskId::new("UPID:pve1:000043FD:0009433D:6AFA0639:qmstart:100:root@pam!bot:").expect("an id");
    let answer = lab.ask(&Ask::Task(unknown));
    assert!(matches!(answer, Answer::Task(TaskState::Lost(_))), "{answer:?}");
}
