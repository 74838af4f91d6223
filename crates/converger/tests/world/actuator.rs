//! Every change that the client can ask for, in every release, done and undone by fate: whatever answers and tasks say, the promise is judged as the
//! lab knows it to be.

use converger_adapters::proxmox::codec::{
    Accepted, Cause, CloneDisks, Command, Delivery, Event, Failure, Migration, Read, TaskState, Write,
};
use converger_adapters::proxmox::hand::command;
use converger_core::action::Change;
use converger_core::apply::promise::Kept;
use converger_core::apply::{Answer, Ask, Place};
use converger_core::guest::Kind;
use converger_lab::{Act, Flavour, RequestFault, TaskFault, TaskTwist, Twist};

use crate::actions::{Action, clone, is_done, prepared, storage, write};
use crate::claims::Tally;
use crate::spine::{Pledge, ask, block_on, call, hand, node, path};
use crate::way::{Checked, Way};

const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

/// What happens on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Good,
    TaskFails,
    TaskWarns,
    TaskHangs,
    /// The guest's node loses its power while the task is at work, and comes back.
    NodeReboots,
    LostBefore,
    LostAfter,
    /// The proxy gives up; the change is carried out.
    GivesUp,
    Truncated,
    Locked,
}

impl Fate {
    const ALL: [Self; 10] = [
        Self::Good,
        Self::TaskFails,
        Self::TaskWarns,
        Self::TaskHangs,
        Self::NodeReboots,
        Self::LostBefore,
        Self::LostAfter,
        Self::GivesUp,
        Self::Truncated,
        Self::Locked,
    ];

    fn needs_task(self) -> bool {
        matches!(self, Self::TaskFails | Self::TaskWarns | Self::TaskHangs)
    }

    fn on_task(self) -> Option<TaskTwist> {
        match self {
            Self::TaskFails => Some(TaskTwist::Fail("storage 'tank' is not online".to_owned())),
            Self::TaskWarns => Some(TaskTwist::Warnings(2)),
            Self::TaskHangs => Some(TaskTwist::Hang),
            _ => None,
        }
    }

    fn on_request(self) -> Option<Twist> {
        match self {
            Self::LostBefore => Some(Twist::LostBefore),
            Self::LostAfter => Some(Twist::LostAfter),
            Self::GivesUp => Some(Twist::After { status: 596, reason: "Connection timed out".to_owned() }),
            Self::Truncated => Some(Twist::Truncated(9)),
            _ => None,
        }
    }

    /// What is known beforehand about whether it will be done; a node that reboots may do either.
    fn does(self) -> Option<bool> {
        match self {
            Self::Good | Self::TaskWarns | Self::LostAfter | Self::GivesUp | Self::Truncated => Some(true),
            Self::TaskFails | Self::TaskHangs | Self::LostBefore | Self::Locked => Some(false),
            Self::NodeReboots => None,
        }
    }
}

/// One change with its fate.
#[derive(Clone, Copy, Debug)]
struct Case {
    flavour: Flavour,
    kind: Kind,
    action: Action,
    fate: Fate,
}

/// What came of it.
struct Outcome {
    write: Write,
    accepted: Result<Event, Failure>,
    task: Option<Result<Event, Failure>>,
    kept: Kept,
    is_done: bool,
}

fn cases() -> Vec<Case> {
    let kinds = FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind)));
    let actions = kinds.flat_map(|(flavour, kind)| Action::of(kind).map(move |action| (flavour, kind, action)));
    let all = actions.flat_map(|(flavour, kind, action)| Fate::ALL.map(|fate| Case { flavour, kind, action, fate }));
    all.filter(|case| !case.fate.needs_task() || case.action.has_task(case.flavour, case.kind)).collect()
}

fn carry_out(case: Case) -> (Way<()>, Outcome) {
    let Case { flavour, kind, action, fate } = case;
    let way = prepared(flavour, kind, action);
    if fate == Fate::Locked {
        // Before the change is bound to a digest: a lock alone changes it.
        way.lab().act(Act::Lock(100, "backup".to_owned()));
    }
    let write = write(&way, kind, action);
    sent_alike(&way, &write);
    let pledge = Pledge::of(&way, &write);
    assert!(matches!(pledge.kept_before(), Kept::No(_)), "{case:?} holds before it is done: {:?}", pledge.before);
    let old = way.lab().world.clone();
    set_up(&way, fate);
    let sent_at = way.lab().now_ms / 1_000;
    let accepted = call(&way, Command::Write(write.clone()));
    live_on(&way, fate);
    found(&way, &write, sent_at, case);
    let task = task_of(&accepted).map(|upid| ask(&way, Read::TaskStatus(upid)));
    let kept = pledge.kept(&way, &write);
    let is_done = is_done(action, &old, &way.lab().world);
    (way, Outcome { write, accepted, task, kept, is_done })
}

/// What a plan can ask for is written by the engine's own ask into the very same request.
fn sent_alike(way: &Way<()>, write: &Write) {
    let change = match write {
        Write::Start(_) => Change::Start,
        Write::Shutdown { timeout_secs, .. } => Change::Shutdown { timeout_secs: *timeout_secs },
        Write::Stop(_) => Change::Stop,
        Write::RebootQemu { timeout_secs, .. } => Change::Reboot { timeout_secs: *timeout_secs },
        Write::ConfigSet(set) => Change::ConfigSet(set.changes().into()),
        _ => return,
    };
    let guest = write.guest();
    let place = Place { node: guest.node, kind: guest.kind, vmid: guest.vmid };
    let revision = match block_on(hand(way).ask(&Ask::Config(place.clone()))) {
        Answer::Config(config) => config.revision,
        other => panic!("no config: {other:?}"),
    };
    assert_eq!(command(&Ask::Send { place, change, revision }), Ok(Command::Write(write.clone())));
}

fn set_up(way: &Way<()>, fate: Fate) {
    let mut lab = way.lab();
    if let Some(twist) = fate.on_task() {
        lab.world.add_task_fault(TaskFault { about: Some("100".to_owned()), nth: Some(1), twist: Some(twist), ..TaskFault::default() });
    }
    for method in ["POST", "PUT", "DELETE"] {
        if let Some(twist) = fate.on_request() {
            let fault = RequestFault { method: Some(method.to_owned()), nth: Some(1), twist: Some(twist), ..RequestFault::default() };
            lab.world.add_request_fault(fault);
        }
    }
}

fn live_on(way: &Way<()>, fate: Fate) {
    let mut lab = way.lab();
    if fate == Fate::NodeReboots {
        lab.pass(20);
        lab.act(Act::NodeDown("pve1".to_owned()));
        lab.pass(60_000);
        lab.act(Act::NodeUp("pve1".to_owned()));
    }
    lab.pass(120_000);
}

fn task_of(accepted: &Result<Event, Failure>) -> Option<converger_adapters::proxmox::codec::Upid> {
    match accepted {
        Ok(Event::Accepted(Accepted::Task(upid))) => Some(upid.clone()),
        _ => None,
    }
}

/// Where the answer was lost, the node's list of tasks tells whether there is a task; where it was not, the task is in it too.
fn found(way: &Way<()>, write: &Write, sent_at: u64, case: Case) {
    let guest = write.guest();
    let Ok(Event::Tasks(mut tasks)) = ask(way, Read::Tasks { node: guest.node, vmid: guest.vmid }) else {
        panic!("{case:?}: no list of tasks")
    };
    tasks.retain(|task| task.upid.started_at() >= sent_at);
    let has_task = case.action.has_task(case.flavour, case.kind);
    match case.fate {
        Fate::LostBefore => assert!(tasks.is_empty(), "{case:?}: {tasks:?}"),
        Fate::Locked => {}
        _ => assert_eq!(!tasks.is_empty(), has_task, "{case:?}: {tasks:?}"),
    }
}

fn says_locked(outcome: &Outcome) -> bool {
    match (&outcome.accepted, &outcome.task) {
        (Err(failure), None) => failure.cause == Cause::Locked && failure.delivery == Delivery::No,
        (Ok(_), Some(Ok(Event::Task(TaskState::Failed { cause, .. })))) => *cause == Cause::Locked,
        _ => false,
    }
}

/// What answer and task say. None of it decides about the promise.
fn said_as_expected(case: Case, outcome: &Outcome) -> bool {
    let has_task = case.action.has_task(case.flavour, case.kind);
    let is_taken = matches!(&outcome.accepted, Ok(Event::Accepted(accepted)) if (*accepted != Accepted::Done) == has_task);
    let is_lost = matches!(&outcome.accepted, Err(failure) if failure.delivery == Delivery::MayHaveRun);
    let ended = |warnings| outcome.task == Some(Ok(Event::Task(TaskState::Ended { warnings })));
    let failed = |wanted| matches!(&outcome.task, Some(Ok(Event::Task(TaskState::Failed { cause, .. }))) if *cause == wanted);
    match case.fate {
        Fate::Good => is_taken && (!has_task || ended(0)),
        Fate::TaskWarns => is_taken && ended(2),
        Fate::TaskFails => is_taken && failed(Cause::Other),
        Fate::TaskHangs => is_taken && outcome.task == Some(Ok(Event::Task(TaskState::Running))),
        Fate::NodeReboots => is_taken && (!has_task || failed(Cause::TaskKilled)),
        Fate::LostBefore | Fate::LostAfter | Fate::GivesUp | Fate::Truncated => is_lost,
        Fate::Locked => says_locked(outcome),
    }
}

fn judge(case: Case, tally: &mut Tally) -> Way<()> {
    let (way, outcome) = carry_out(case);
    let Outcome { accepted, task, kept, is_done, .. } = &outcome;
    let shown = || format!("{case:?}: {accepted:?}, {task:?}, {kept:?}, really {is_done}: {:?}", way.lab().world.truth(100));
    assert!(said_as_expected(case, &outcome), "{}", shown());
    assert!(case.fate.does().is_none_or(|does| does == *is_done), "{}", shown());
    match kept {
        Kept::Yes(_) => assert!(is_done, "{}", shown()),
        Kept::No(_) => assert!(!is_done, "{}", shown()),
        Kept::Unclear(_) => panic!("{}", shown()),
    }
    tally.count(match (case.fate, is_done) {
        (Fate::Good, _) => ("kept", "as asked"),
        (Fate::TaskWarns, _) => ("kept", "with warnings"),
        (Fate::NodeReboots, true) => ("kept", "although the node went down"),
        (Fate::NodeReboots, false) => ("not kept", "lost in the node's reboot"),
        (_, true) => ("kept", "although the answer was lost"),
        (Fate::LostBefore, false) => ("not kept", "the request was lost"),
        (Fate::Locked, false) => ("not kept", "locked"),
        (_, false) => ("not kept", "the task failed or hangs"),
    });
    way
}

/// The methods that are used where everything goes well, and the changes that were sent.
pub(crate) fn all_done_well(flavour: Flavour) -> (Checked, Vec<Command>) {
    let cases = cases().into_iter().filter(|case| case.flavour == flavour && case.fate == Fate::Good);
    let (mut checked, mut sent) = (Checked::new(), Vec::new());
    for case in cases {
        let (way, outcome) = carry_out(case);
        checked.extend(way.lab().checked.iter());
        sent.push(Command::Write(outcome.write));
    }
    (checked, sent)
}

#[test]
fn a_promise_is_judged_as_the_lab_knows_it_to_be() {
    let mut tally = Tally::default();
    let mut checked = Checked::new();
    for case in cases() {
        checked.extend(judge(case, &mut tally).lab().checked.iter());
    }
    for ((about, which), count) in &tally.0 {
        println!("{count:>5} {about}: {which}");
    }
    println!("{} methods of three releases were checked", checked.len());
    assert_eq!(tally.0.len(), 8, "{tally:?}");
}

#[test]
fn a_guest_that_does_not_listen_is_not_shut_down_and_may_be_later() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let way = prepared(flavour, kind, Action::Shutdown);
        // A paused guest hears nothing; a container that does not listen is one that is busy for longer than the timeout.
        let write = write(&way, kind, Action::Shutdown);
        let pledge = Pledge::of(&way, &write);
        let short = Write::Shutdown { guest: write.guest(), timeout_secs: 2 };
        let accepted = call(&way, Command::Write(short));
        way.lab().pass(60_000);
        let task = task_of(&accepted).map(|upid| ask(&way, Read::TaskStatus(upid)));
        let timed_out = |cause: &Cause| *cause == Cause::ShutdownTimeout;
        assert!(
            matches!(&task, Some(Ok(Event::Task(TaskState::Failed { cause, .. }))) if timed_out(cause)),
            "{flavour:?} {kind}: {task:?}"
        );
        assert!(matches!(pledge.kept(&way, &write), Kept::No(_)));
        way.lab().act(Act::Stop(100));
        assert!(matches!(pledge.kept(&way, &write), Kept::Yes(_)), "it went down after all");
    }
}

#[test]
fn a_second_snapshot_of_one_name_a_rollback_to_where_it_stands_and_a_copy_over_another_guest_prove_nothing() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let way = prepared(flavour, kind, Action::Clone);
        for action in [Action::Clone, Action::SnapshotCreate, Action::SnapshotRollback] {
            let write = write(&way, kind, action);
            let judge = || {
                let pledge = Pledge::of(&way, &write);
                let accepted = call(&way, Command::Write(write.clone()));
                way.lab().pass(60_000);
                (pledge.kept(&way, &write), accepted)
            };
            assert!(matches!(judge().0, Kept::Yes(_)), "{flavour:?} {kind} {action:?}");
            let (kept, accepted) = judge();
            assert!(matches!(kept, Kept::No(_) | Kept::Unclear(_)), "{flavour:?} {kind} {action:?}: {kept:?} {accepted:?}");
        }
    }
}

#[test]
fn a_copy_that_proxmox_does_not_make_is_promised_by_nobody() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let way = prepared(flavour, kind, Action::Clone);
        let guest = || path("pve1", kind, 100);
        // Linked to what is no template, on another node with disks that only this one reaches, and to where nobody is.
        for (write, said) in [
            (clone(guest(), None, CloneDisks::Linked), "Linked clone feature"),
            (clone(guest(), Some("pve3"), CloneDisks::Full(Some(storage("local")))), "non-shared storage 'local'"),
            (clone(guest(), None, CloneDisks::Full(Some(storage("nowhere")))), "storage 'nowhere' does not exist"),
            (clone(guest(), Some("pve9"), CloneDisks::Full(None)), "no such cluster node 'pve9'"),
        ] {
            let pledge = Pledge::of(&way, &write);
            let refused = call(&way, Command::Write(write.clone())).expect_err("Proxmox says no at once");
            // Whether a text is said before a task begins is known of few; of the others the promise tells.
            assert!(matches!(refused.delivery, Delivery::No | Delivery::MayHaveRun), "{flavour:?} {kind}: {refused}");
            assert!(refused.text.contains(said), "{flavour:?} {kind}: {refused}");
            way.lab().pass(60_000);
            let kept = pledge.kept(&way, &write);
            // Nobody can be asked at a node that is not there: then nothing is claimed.
            assert!(
                matches!(kept, Kept::No(_)) || said.contains("pve9") && matches!(kept, Kept::Unclear(_)),
                "{flavour:?} {kind}: {kept:?}"
            );
            assert!(way.lab().world.truth(200).is_none(), "{flavour:?} {kind}: {said}");
        }
    }
}

/// A machine that runs on a disk of its node alone, and a container that does not go down in time, stay where they are.
#[test]
fn a_move_that_proxmox_does_not_make_is_kept_by_nobody() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let way = prepared(flavour, kind, Action::MigrateRunning);
        let mode = match kind {
            Kind::Qemu => Migration::QemuLive,
            Kind::Lxc => Migration::LxcRestart { timeout_secs: 2 },
        };
        if kind == Kind::Qemu {
            way.lab().act(Act::Set(100, "scsi0".to_owned(), "local:100/vm-100-disk-0.qcow2,size=1G".to_owned()));
        }
        let guest = path("pve1", kind, 100);
        let write = Write::Migrate { node: guest.node, vmid: guest.vmid, target: node("pve3"), mode };
        let pledge = Pledge::of(&way, &write);
        let accepted = call(&way, Command::Write(write.clone()));
        way.lab().pass(60_000);
        let task = task_of(&accepted).map(|upid| ask(&way, Read::TaskStatus(upid)));
        assert!(matches!(&task, Some(Ok(Event::Task(TaskState::Failed { .. })))), "{flavour:?} {kind}: {accepted:?} {task:?}");
        assert!(matches!(pledge.kept(&way, &write), Kept::No(_)), "{flavour:?} {kind}");
        let truth = way.lab().world.truth(100).unwrap_or_else(|| panic!("it is there"));
        assert_eq!((truth.node.as_str(), truth.process.is_some(), truth.config.get("lock")), ("pve1", true, None), "{flavour:?} {kind}");
    }
}

#[test]
fn g2_a_guest_that_moved_away_is_not_deleted() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let way = prepared(flavour, kind, Action::Delete);
        let write = write(&way, kind, Action::Delete);
        let pledge = Pledge::of(&way, &write);
        way.lab().act(Act::Move(100, "pve3".to_owned()));
        let failure = call(&way, Command::Write(write.clone())).expect_err("it is not there");
        assert_eq!((failure.cause, failure.delivery), (Cause::NoSuchGuest, Delivery::No), "{flavour:?} {kind}");
        let kept = pledge.kept(&way, &write);
        assert!(matches!(kept, Kept::Unclear(_)), "{flavour:?} {kind}: {kept:?}");
        // The list behind the ids is empty in silence: the id is free, and the old node does not have the guest.
        way.lab().act(Act::Blind("pve2".to_owned()));
        let kept = pledge.kept(&way, &write);
        assert!(matches!(&kept, Kept::No(seen) if seen.get("node") == Some(&"pve3".into())), "{flavour:?} {kind}: {kept:?}");
    }
}

#[test]
fn g2_a_guest_is_not_gone_for_a_side_without_quorum_or_a_node_that_cannot_be_asked() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| Kind::ALL.map(|kind| (flavour, kind))) {
        let way = prepared(flavour, kind, Action::Delete);
        let write = write(&way, kind, Action::Delete);
        let pledge = Pledge::of(&way, &write);
        call(&way, Command::Write(write.clone())).unwrap_or_else(|failure| panic!("{flavour:?} {kind}: {failure}"));
        way.lab().pass(120_000);
        assert!(way.lab().world.truth(100).is_none(), "it is really gone");
        let unclear = |acts: &[Act], undo: &[Act]| {
            acts.iter().for_each(|act| way.lab().act(act.clone()));
            way.lab().pass(60_000);
            let kept = pledge.kept(&way, &write);
            assert!(matches!(kept, Kept::Unclear(_)), "{flavour:?} {kind} {acts:?}: {kept:?}");
            undo.iter().for_each(|act| way.lab().act(act.clone()));
            way.lab().pass(60_000);
            let kept = pledge.kept(&way, &write);
            assert!(matches!(kept, Kept::Yes(_)), "{flavour:?} {kind} after {acts:?}: {kept:?}");
        };
        // The side that is asked has the old node and this one, or this one alone.
        unclear(&[Act::Isolate(vec!["pve2".to_owned()])], &[Act::Heal]);
        unclear(&[Act::Isolate(vec!["pve3".to_owned()])], &[Act::Heal]);
        unclear(&[Act::NodeDown("pve3".to_owned())], &[Act::NodeUp("pve3".to_owned())]);
        unclear(&[Act::NodeDown("pve1".to_owned())], &[Act::NodeUp("pve1".to_owned())]);
    }
}
