//! Every change of the client in every release, with different fates: whatever the responses and tasks say, the verdict on the promise
//! agrees with the truth of the lab.

use converger_adapters::proxmox::actuator::command_for;
use converger_adapters::proxmox::codec::{
    AcceptedChange, CloneDisks, Delivery, FailureCause, MigrationMode, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead,
    ProxmoxTaskState, ProxmoxWrite,
};
use converger_core::action::Change;
use converger_core::apply::promise::PromiseCheck;
use converger_core::apply::{EnvRequest, EnvResponse, GuestAddress};
use converger_core::guest::GuestKind;
use converger_lab::{Flavour, RequestFault, ResponseFault, TaskFault, TaskFaultEffect, WorldEvent};

use crate::changes::{ClientChange, build_write, clone_write, is_done, prepare_lab, storage_name};
use crate::claims::ClaimTally;
use crate::client::{SentPromise, block_on, call_command, call_read, guest_path, new_actuator, node_name};
use crate::lab_transport::{CheckedMethods, LabTransport};

const FLAVOURS: [Flavour; 3] = [Flavour::V7, Flavour::V8, Flavour::V9];

/// What happens to a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeFate {
    Good,
    TaskFails,
    TaskWarns,
    TaskHangs,
    /// The guest's node loses power while the task runs, and comes back.
    NodeReboots,
    LostBefore,
    LostAfter,
    /// The proxy gives up, but the change is carried out.
    GivesUp,
    Truncated,
    Locked,
}

impl ChangeFate {
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

    fn task_fault(self) -> Option<TaskFaultEffect> {
        match self {
            Self::TaskFails => Some(TaskFaultEffect::Fail("storage 'tank' is not online".to_owned())),
            Self::TaskWarns => Some(TaskFaultEffect::Warnings(2)),
            Self::TaskHangs => Some(TaskFaultEffect::Hang),
            _ => None,
        }
    }

    fn request_fault(self) -> Option<ResponseFault> {
        match self {
            Self::LostBefore => Some(ResponseFault::LostBefore),
            Self::LostAfter => Some(ResponseFault::LostAfter),
            Self::GivesUp => Some(ResponseFault::After { status: 596, reason: "Connection timed out".to_owned() }),
            Self::Truncated => Some(ResponseFault::Truncated(9)),
            _ => None,
        }
    }

    /// Whether it is known beforehand that the change will be done; after a reboot of the node, both are possible.
    fn expected_done(self) -> Option<bool> {
        match self {
            Self::Good | Self::TaskWarns | Self::LostAfter | Self::GivesUp | Self::Truncated => Some(true),
            Self::TaskFails | Self::TaskHangs | Self::LostBefore | Self::Locked => Some(false),
            Self::NodeReboots => None,
        }
    }
}

/// A change with its fate.
#[derive(Clone, Copy, Debug)]
struct ActuatorCase {
    flavour: Flavour,
    kind: GuestKind,
    action: ClientChange,
    fate: ChangeFate,
}

/// The result of a change.
struct ActuatorResult {
    write: ProxmoxWrite,
    accepted: Result<ProxmoxEvent, ProxmoxFailure>,
    task: Option<Result<ProxmoxEvent, ProxmoxFailure>>,
    promise_check: PromiseCheck,
    is_done: bool,
}

fn all_cases() -> Vec<ActuatorCase> {
    let kinds = FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind)));
    let actions = kinds.flat_map(|(flavour, kind)| ClientChange::of_kind(kind).map(move |action| (flavour, kind, action)));
    let all = actions.flat_map(|(flavour, kind, action)| ChangeFate::ALL.map(|fate| ActuatorCase { flavour, kind, action, fate }));
    all.filter(|case| !case.fate.needs_task() || case.action.has_task(case.flavour, case.kind)).collect()
}

fn run_case(case: ActuatorCase) -> (LabTransport<()>, ActuatorResult) {
    let ActuatorCase { flavour, kind, action, fate } = case;
    let way = prepare_lab(flavour, kind, action);
    if fate == ChangeFate::Locked {
        // Before the change is bound to a digest, because a lock alone changes the digest.
        way.lock_lab().inject_event(WorldEvent::Lock(100, "backup".to_owned()));
    }
    let write = build_write(&way, kind, action);
    check_same_request(&way, &write);
    let pledge = SentPromise::before_send(&way, &write);
    assert!(matches!(pledge.check_kept_before(), PromiseCheck::NotKept(_)), "{case:?} holds before it is done: {:?}", pledge.before);
    let old = way.lock_lab().world.clone();
    plant_faults(&way, fate);
    let sent_at = way.lock_lab().now_ms / 1_000;
    let accepted = call_command(&way, ProxmoxCommand::Write(write.clone()));
    pass_time(&way, fate);
    check_task_listed(&way, &write, sent_at, case);
    let task = accepted_task(&accepted).map(|upid| call_read(&way, ProxmoxRead::TaskStatus(upid)));
    let kept = pledge.check_kept(&way, &write);
    let is_done = is_done(action, &old, &way.lock_lab().world);
    (way, ActuatorResult { write, accepted, task, promise_check: kept, is_done })
}

/// A change that a plan can contain gives the same request through the engine's environment request.
fn check_same_request(way: &LabTransport<()>, write: &ProxmoxWrite) {
    let change = match write {
        ProxmoxWrite::Start(_) => Change::Start,
        ProxmoxWrite::Shutdown { timeout_secs, .. } => Change::Shutdown { timeout_secs: *timeout_secs },
        ProxmoxWrite::Stop(_) => Change::Stop,
        ProxmoxWrite::RebootQemu { timeout_secs, .. } => Change::Reboot { timeout_secs: *timeout_secs },
        ProxmoxWrite::ConfigSet(set) => Change::ConfigSet(set.changes().into()),
        _ => return,
    };
    let guest = write.guest();
    let place = GuestAddress { node: guest.node, kind: guest.kind, vmid: guest.vmid };
    let revision = match block_on(new_actuator(way).request(&EnvRequest::Config(place.clone()))) {
        EnvResponse::Config(config) => config.revision,
        other => panic!("no config: {other:?}"),
    };
    assert_eq!(command_for(&EnvRequest::Send { address: place, change, revision }), Ok(ProxmoxCommand::Write(write.clone())));
}

fn plant_faults(way: &LabTransport<()>, fate: ChangeFate) {
    let mut lab = way.lock_lab();
    if let Some(twist) = fate.task_fault() {
        lab.world.add_task_fault(TaskFault { about: Some("100".to_owned()), nth: Some(1), effect: Some(twist), ..TaskFault::default() });
    }
    for method in ["POST", "PUT", "DELETE"] {
        if let Some(twist) = fate.request_fault() {
            let fault = RequestFault { method: Some(method.to_owned()), nth: Some(1), fault: Some(twist), ..RequestFault::default() };
            lab.world.add_request_fault(fault);
        }
    }
}

fn pass_time(way: &LabTransport<()>, fate: ChangeFate) {
    let mut lab = way.lock_lab();
    if fate == ChangeFate::NodeReboots {
        lab.advance(20);
        lab.inject_event(WorldEvent::NodeDown("pve1".to_owned()));
        lab.advance(60_000);
        lab.inject_event(WorldEvent::NodeUp("pve1".to_owned()));
    }
    lab.advance(120_000);
}

fn accepted_task(accepted: &Result<ProxmoxEvent, ProxmoxFailure>) -> Option<converger_adapters::proxmox::codec::Upid> {
    match accepted {
        Ok(ProxmoxEvent::Accepted(AcceptedChange::Task(upid))) => Some(upid.clone()),
        _ => None,
    }
}

/// After a lost response, the node's task list shows whether there is a task; otherwise the task is listed too.
fn check_task_listed(way: &LabTransport<()>, write: &ProxmoxWrite, sent_at: u64, case: ActuatorCase) {
    let guest = write.guest();
    let Ok(ProxmoxEvent::Tasks(mut tasks)) = call_read(way, ProxmoxRead::Tasks { node: guest.node, vmid: guest.vmid }) else {
        panic!("{case:?}: no list of tasks")
    };
    tasks.retain(|task| task.upid.started_at() >= sent_at);
    let has_task = case.action.has_task(case.flavour, case.kind);
    match case.fate {
        ChangeFate::LostBefore => assert!(tasks.is_empty(), "{case:?}: {tasks:?}"),
        ChangeFate::Locked => {}
        _ => assert_eq!(!tasks.is_empty(), has_task, "{case:?}: {tasks:?}"),
    }
}

fn says_locked(outcome: &ActuatorResult) -> bool {
    match (&outcome.accepted, &outcome.task) {
        (Err(failure), None) => failure.cause == FailureCause::Locked && failure.delivery == Delivery::Rejected,
        (Ok(_), Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, .. })))) => *cause == FailureCause::Locked,
        _ => false,
    }
}

/// Checks what response and task say. Neither decides about the promise.
fn is_response_expected(case: ActuatorCase, outcome: &ActuatorResult) -> bool {
    let has_task = case.action.has_task(case.flavour, case.kind);
    let is_taken = matches!(&outcome.accepted, Ok(ProxmoxEvent::Accepted(accepted)) if (*accepted != AcceptedChange::Done) == has_task);
    let is_lost = matches!(&outcome.accepted, Err(failure) if failure.delivery == Delivery::MayHaveRun);
    let ended = |warnings| outcome.task == Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Ended { warnings })));
    let failed = |wanted| matches!(&outcome.task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, .. }))) if *cause == wanted);
    match case.fate {
        ChangeFate::Good => is_taken && (!has_task || ended(0)),
        ChangeFate::TaskWarns => is_taken && ended(2),
        ChangeFate::TaskFails => is_taken && failed(FailureCause::Other),
        ChangeFate::TaskHangs => is_taken && outcome.task == Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Running))),
        ChangeFate::NodeReboots => is_taken && (!has_task || failed(FailureCause::TaskKilled)),
        ChangeFate::LostBefore | ChangeFate::LostAfter | ChangeFate::GivesUp | ChangeFate::Truncated => is_lost,
        ChangeFate::Locked => says_locked(outcome),
    }
}

fn check_case(case: ActuatorCase, tally: &mut ClaimTally) -> LabTransport<()> {
    let (way, outcome) = run_case(case);
    let ActuatorResult { accepted, task, promise_check: kept, is_done, .. } = &outcome;
    let shown = || format!("{case:?}: {accepted:?}, {task:?}, {kept:?}, really {is_done}: {:?}", way.lock_lab().world.guest_truth(100));
    assert!(is_response_expected(case, &outcome), "{}", shown());
    assert!(case.fate.expected_done().is_none_or(|does| does == *is_done), "{}", shown());
    match kept {
        PromiseCheck::Kept(_) => assert!(is_done, "{}", shown()),
        PromiseCheck::NotKept(_) => assert!(!is_done, "{}", shown()),
        PromiseCheck::Unclear(_) => panic!("{}", shown()),
    }
    tally.count(match (case.fate, is_done) {
        (ChangeFate::Good, _) => ("kept", "as asked"),
        (ChangeFate::TaskWarns, _) => ("kept", "with warnings"),
        (ChangeFate::NodeReboots, true) => ("kept", "although the node went down"),
        (ChangeFate::NodeReboots, false) => ("not kept", "lost in the node's reboot"),
        (_, true) => ("kept", "although the answer was lost"),
        (ChangeFate::LostBefore, false) => ("not kept", "the request was lost"),
        (ChangeFate::Locked, false) => ("not kept", "locked"),
        (_, false) => ("not kept", "the task failed or hangs"),
    });
    way
}

/// The methods that are used without faults, and the changes that were sent.
pub(crate) fn run_undisturbed(flavour: Flavour) -> (CheckedMethods, Vec<ProxmoxCommand>) {
    let cases = all_cases().into_iter().filter(|case| case.flavour == flavour && case.fate == ChangeFate::Good);
    let (mut checked, mut sent) = (CheckedMethods::new(), Vec::new());
    for case in cases {
        let (way, outcome) = run_case(case);
        checked.extend(way.lock_lab().checked.iter());
        sent.push(ProxmoxCommand::Write(outcome.write));
    }
    (checked, sent)
}

#[test]
fn promise_check_agrees_with_the_lab() {
    let mut tally = ClaimTally::default();
    let mut checked = CheckedMethods::new();
    for case in all_cases() {
        checked.extend(check_case(case, &mut tally).lock_lab().checked.iter());
    }
    for ((about, which), count) in &tally.0 {
        println!("{count:>5} {about}: {which}");
    }
    println!("{} methods of three releases were checked", checked.len());
    assert_eq!(tally.0.len(), 8, "{tally:?}");
}

#[test]
fn unresponsive_guest_is_not_shut_down_and_may_be_later() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let way = prepare_lab(flavour, kind, ClientChange::Shutdown);
        // A paused guest does not notice the request; an unresponsive container is busy for longer than the timeout.
        let write = build_write(&way, kind, ClientChange::Shutdown);
        let pledge = SentPromise::before_send(&way, &write);
        let short = ProxmoxWrite::Shutdown { guest: write.guest(), timeout_secs: 2 };
        let accepted = call_command(&way, ProxmoxCommand::Write(short));
        way.lock_lab().advance(60_000);
        let task = accepted_task(&accepted).map(|upid| call_read(&way, ProxmoxRead::TaskStatus(upid)));
        let timed_out = |cause: &FailureCause| *cause == FailureCause::ShutdownTimeout;
        assert!(
            matches!(&task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, .. }))) if timed_out(cause)),
            "{flavour:?} {kind}: {task:?}"
        );
        assert!(matches!(pledge.check_kept(&way, &write), PromiseCheck::NotKept(_)));
        way.lock_lab().inject_event(WorldEvent::Stop(100));
        assert!(matches!(pledge.check_kept(&way, &write), PromiseCheck::Kept(_)), "it went down after all");
    }
}

#[test]
fn repeated_snapshot_rollback_or_clone_proves_nothing() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let way = prepare_lab(flavour, kind, ClientChange::Clone);
        for action in [ClientChange::Clone, ClientChange::SnapshotCreate, ClientChange::SnapshotRollback] {
            let write = build_write(&way, kind, action);
            let judge = || {
                let pledge = SentPromise::before_send(&way, &write);
                let accepted = call_command(&way, ProxmoxCommand::Write(write.clone()));
                way.lock_lab().advance(60_000);
                (pledge.check_kept(&way, &write), accepted)
            };
            assert!(matches!(judge().0, PromiseCheck::Kept(_)), "{flavour:?} {kind} {action:?}");
            let (kept, accepted) = judge();
            assert!(
                matches!(kept, PromiseCheck::NotKept(_) | PromiseCheck::Unclear(_)),
                "{flavour:?} {kind} {action:?}: {kept:?} {accepted:?}"
            );
        }
    }
}

#[test]
fn refused_clone_has_no_promise() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let way = prepare_lab(flavour, kind, ClientChange::Clone);
        let guest = || guest_path("pve1", kind, 100);
        // A linked clone of a guest that is not a template, a clone to another node with disks on local storage, and one to a storage that
        // does not exist.
        for (write, said) in [
            (clone_write(guest(), None, CloneDisks::Linked), "Linked clone feature"),
            (clone_write(guest(), Some("pve3"), CloneDisks::Full(Some(storage_name("local")))), "non-shared storage 'local'"),
            (clone_write(guest(), None, CloneDisks::Full(Some(storage_name("nowhere")))), "storage 'nowhere' does not exist"),
            (clone_write(guest(), Some("pve9"), CloneDisks::Full(None)), "no such cluster node 'pve9'"),
        ] {
            let pledge = SentPromise::before_send(&way, &write);
            let refused = call_command(&way, ProxmoxCommand::Write(write.clone())).expect_err("Proxmox says no at once");
            // Only for few texts it is known that they precede a task; for the others the promise decides.
            assert!(matches!(refused.delivery, Delivery::Rejected | Delivery::MayHaveRun), "{flavour:?} {kind}: {refused}");
            assert!(refused.text.contains(said), "{flavour:?} {kind}: {refused}");
            way.lock_lab().advance(60_000);
            let kept = pledge.check_kept(&way, &write);
            // A node that does not exist cannot be read, so nothing is claimed.
            assert!(
                matches!(kept, PromiseCheck::NotKept(_)) || said.contains("pve9") && matches!(kept, PromiseCheck::Unclear(_)),
                "{flavour:?} {kind}: {kept:?}"
            );
            assert!(way.lock_lab().world.guest_truth(200).is_none(), "{flavour:?} {kind}: {said}");
        }
    }
}

/// A running virtual machine on local storage, and a container that does not shut down in time, stay where they are.
#[test]
fn refused_migration_is_not_kept() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let way = prepare_lab(flavour, kind, ClientChange::MigrateRunning);
        let mode = match kind {
            GuestKind::Qemu => MigrationMode::QemuLive,
            GuestKind::Lxc => MigrationMode::LxcRestart { timeout_secs: 2 },
        };
        if kind == GuestKind::Qemu {
            way.lock_lab().inject_event(WorldEvent::Set(100, "scsi0".to_owned(), "local:100/vm-100-disk-0.qcow2,size=1G".to_owned()));
        }
        let guest = guest_path("pve1", kind, 100);
        let write = ProxmoxWrite::Migrate { node: guest.node, vmid: guest.vmid, target: node_name("pve3"), mode };
        let pledge = SentPromise::before_send(&way, &write);
        let accepted = call_command(&way, ProxmoxCommand::Write(write.clone()));
        way.lock_lab().advance(60_000);
        let task = accepted_task(&accepted).map(|upid| call_read(&way, ProxmoxRead::TaskStatus(upid)));
        assert!(
            matches!(&task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { .. })))),
            "{flavour:?} {kind}: {accepted:?} {task:?}"
        );
        assert!(matches!(pledge.check_kept(&way, &write), PromiseCheck::NotKept(_)), "{flavour:?} {kind}");
        let truth = way.lock_lab().world.guest_truth(100).unwrap_or_else(|| panic!("it is there"));
        assert_eq!((truth.node.as_str(), truth.process.is_some(), truth.config.get("lock")), ("pve1", true, None), "{flavour:?} {kind}");
    }
}

#[test]
fn g2_migrated_guest_is_not_deleted() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let way = prepare_lab(flavour, kind, ClientChange::Delete);
        let write = build_write(&way, kind, ClientChange::Delete);
        let pledge = SentPromise::before_send(&way, &write);
        way.lock_lab().inject_event(WorldEvent::Move(100, "pve3".to_owned()));
        let failure = call_command(&way, ProxmoxCommand::Write(write.clone())).expect_err("it is not there");
        assert_eq!((failure.cause, failure.delivery), (FailureCause::NoSuchGuest, Delivery::Rejected), "{flavour:?} {kind}");
        let kept = pledge.check_kept(&way, &write);
        assert!(matches!(kept, PromiseCheck::Unclear(_)), "{flavour:?} {kind}: {kept:?}");
        // The list behind the ids is empty without an error: the id is free, and the old node does not have the guest.
        way.lock_lab().inject_event(WorldEvent::Blind("pve2".to_owned()));
        let kept = pledge.check_kept(&way, &write);
        assert!(matches!(&kept, PromiseCheck::NotKept(seen) if seen.get("node") == Some(&"pve3".into())), "{flavour:?} {kind}: {kept:?}");
    }
}

#[test]
fn g2_absence_needs_quorum_and_a_reachable_node() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let way = prepare_lab(flavour, kind, ClientChange::Delete);
        let write = build_write(&way, kind, ClientChange::Delete);
        let pledge = SentPromise::before_send(&way, &write);
        call_command(&way, ProxmoxCommand::Write(write.clone())).unwrap_or_else(|failure| panic!("{flavour:?} {kind}: {failure}"));
        way.lock_lab().advance(120_000);
        assert!(way.lock_lab().world.guest_truth(100).is_none(), "it is really gone");
        let unclear = |acts: &[WorldEvent], undo: &[WorldEvent]| {
            acts.iter().for_each(|act| way.lock_lab().inject_event(act.clone()));
            way.lock_lab().advance(60_000);
            let kept = pledge.check_kept(&way, &write);
            assert!(matches!(kept, PromiseCheck::Unclear(_)), "{flavour:?} {kind} {acts:?}: {kept:?}");
            undo.iter().for_each(|act| way.lock_lab().inject_event(act.clone()));
            way.lock_lab().advance(60_000);
            let kept = pledge.check_kept(&way, &write);
            assert!(matches!(kept, PromiseCheck::Kept(_)), "{flavour:?} {kind} after {acts:?}: {kept:?}");
        };
        // The partition of the endpoint has the old node and this one, or this one alone.
        unclear(&[WorldEvent::Isolate(vec!["pve2".to_owned()])], &[WorldEvent::Heal]);
        unclear(&[WorldEvent::Isolate(vec!["pve3".to_owned()])], &[WorldEvent::Heal]);
        unclear(&[WorldEvent::NodeDown("pve3".to_owned())], &[WorldEvent::NodeUp("pve3".to_owned())]);
        unclear(&[WorldEvent::NodeDown("pve1".to_owned())], &[WorldEvent::NodeUp("pve1".to_owned())]);
    }
}
