//! Every change of the client in every release, with different fates: whatever the responses and tasks say, the verdict on the promise
//! agrees with the truth of the lab.

use converger_adapters::proxmox::codec::{
    AcceptedChange, Delivery, FailureCause, ProxmoxCommand, ProxmoxEvent, ProxmoxFailure, ProxmoxRead, ProxmoxTaskState, Upid,
};
use converger_core::action::{Change, ClonedDisks};
use converger_core::apply::promise::{PromiseCheck, TaskEnd};
use converger_core::guest::GuestKind;
use converger_lab::{Flavour, RequestFault, ResponseFault, TaskFault, TaskFaultEffect, WorldEvent};

use crate::changes::{
    ClientChange, address, build_change, clone_change, guest_setting, is_done, migration, prepare_lab, prepare_lab_with, running_mode,
};
use crate::claims::ClaimTally;
use crate::client::{SentPromise, call_command, call_read, node_name, vmid};
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
    command: ProxmoxCommand,
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
    let transport = prepare_lab(flavour, kind, action);
    if fate == ChangeFate::Locked {
        // Before the change is bound to a digest, because a lock alone changes the digest.
        transport.lock_lab().inject_event(WorldEvent::Lock(100, "backup".to_owned()));
    }
    let promise = SentPromise::before_send(&transport, &address(kind), build_change(&transport, kind, action));
    let before = promise.check_kept_before();
    assert!(matches!(before, PromiseCheck::NotKept(_)), "{case:?} holds before it is done: {before:?}");
    let command = promise.command(&transport);
    let old = transport.lock_lab().world.clone();
    plant_faults(&transport, fate);
    let sent_at = transport.lock_lab().now_ms / 1_000;
    let accepted = call_command(&transport, command.clone());
    pass_time(&transport, fate);
    check_task_listed(&transport, sent_at, case);
    let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
    let promise_check = promise.check_kept(&transport, None);
    let is_done = is_done(action, &old, &transport.lock_lab().world);
    (transport, ActuatorResult { command, accepted, task, promise_check, is_done })
}

fn plant_faults(transport: &LabTransport<()>, fate: ChangeFate) {
    let mut lab = transport.lock_lab();
    if let Some(effect) = fate.task_fault() {
        lab.world.add_task_fault(TaskFault { about: Some("100".to_owned()), nth: Some(1), effect: Some(effect), ..TaskFault::default() });
    }
    for method in ["POST", "PUT", "DELETE"] {
        if let Some(response_fault) = fate.request_fault() {
            let fault =
                RequestFault { method: Some(method.to_owned()), nth: Some(1), fault: Some(response_fault), ..RequestFault::default() };
            lab.world.add_request_fault(fault);
        }
    }
}

fn pass_time(transport: &LabTransport<()>, fate: ChangeFate) {
    let mut lab = transport.lock_lab();
    if fate == ChangeFate::NodeReboots {
        lab.advance(20);
        lab.inject_event(WorldEvent::NodeDown("pve1".to_owned()));
        lab.advance(60_000);
        lab.inject_event(WorldEvent::NodeUp("pve1".to_owned()));
    }
    lab.advance(120_000);
}

fn accepted_task(accepted: &Result<ProxmoxEvent, ProxmoxFailure>) -> Option<Upid> {
    match accepted {
        Ok(ProxmoxEvent::Accepted(AcceptedChange::Task(upid))) => Some(upid.clone()),
        _ => None,
    }
}

/// After a lost response, the node's task list shows whether there is a task; otherwise the task is listed too.
fn check_task_listed(transport: &LabTransport<()>, sent_at: u64, case: ActuatorCase) {
    let Ok(ProxmoxEvent::Tasks(mut tasks)) = call_read(transport, ProxmoxRead::Tasks { node: node_name("pve1"), vmid: vmid(100) }) else {
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
    let ended_with = |warnings| outcome.task == Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Ended { warnings })));
    let failed = |wanted| matches!(&outcome.task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, .. }))) if *cause == wanted);
    match case.fate {
        ChangeFate::Good => is_taken && (!has_task || ended_with(0)),
        ChangeFate::TaskWarns => is_taken && ended_with(2),
        ChangeFate::TaskFails => is_taken && failed(FailureCause::Other),
        ChangeFate::TaskHangs => is_taken && outcome.task == Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Running))),
        ChangeFate::NodeReboots => is_taken && (!has_task || failed(FailureCause::TaskKilled)),
        ChangeFate::LostBefore | ChangeFate::LostAfter | ChangeFate::GivesUp | ChangeFate::Truncated => is_lost,
        ChangeFate::Locked => says_locked(outcome),
    }
}

fn check_case(case: ActuatorCase, tally: &mut ClaimTally) -> LabTransport<()> {
    let (transport, outcome) = run_case(case);
    let ActuatorResult { accepted, task, promise_check, is_done, .. } = &outcome;
    let describe_case = || {
        format!("{case:?}: {accepted:?}, {task:?}, {promise_check:?}, really {is_done}: {:?}", transport.lock_lab().world.guest_truth(100))
    };
    assert!(is_response_expected(case, &outcome), "{}", describe_case());
    assert!(case.fate.expected_done().is_none_or(|does| does == *is_done), "{}", describe_case());
    match promise_check {
        PromiseCheck::Kept(_) => assert!(is_done, "{}", describe_case()),
        PromiseCheck::NotKept(_) => assert!(!is_done, "{}", describe_case()),
        PromiseCheck::Unclear(_) => panic!("{}", describe_case()),
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
    transport
}

/// The methods that are used without faults, and the changes that were sent.
pub(crate) fn run_undisturbed(flavour: Flavour) -> (CheckedMethods, Vec<ProxmoxCommand>) {
    let cases = all_cases().into_iter().filter(|case| case.flavour == flavour && case.fate == ChangeFate::Good);
    let (mut checked, mut sent) = (CheckedMethods::new(), Vec::new());
    for case in cases {
        let (transport, outcome) = run_case(case);
        checked.extend(transport.lock_lab().checked.iter());
        sent.push(outcome.command);
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

fn is_failed_task(task: Option<&Result<ProxmoxEvent, ProxmoxFailure>>) -> bool {
    matches!(task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { .. }))))
}

fn every_release_and_kind() -> impl Iterator<Item = (Flavour, GuestKind)> {
    FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind)))
}

#[test]
fn unresponsive_guest_is_not_shut_down_and_may_be_later() {
    for (flavour, kind) in every_release_and_kind() {
        let transport = prepare_lab(flavour, kind, ClientChange::Shutdown);
        // A paused guest does not notice the request; an unresponsive container is busy for longer than the timeout.
        let promise = SentPromise::before_send(&transport, &address(kind), Change::Shutdown { timeout_secs: 2 });
        let accepted = call_command(&transport, promise.command(&transport));
        transport.lock_lab().advance(60_000);
        let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
        let timed_out = |cause: &FailureCause| *cause == FailureCause::ShutdownTimeout;
        assert!(
            matches!(&task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, .. }))) if timed_out(cause)),
            "{flavour:?} {kind}: {task:?}"
        );
        assert!(matches!(promise.check_kept(&transport, None), PromiseCheck::NotKept(_)));
        transport.lock_lab().inject_event(WorldEvent::Stop(100));
        assert!(matches!(promise.check_kept(&transport, None), PromiseCheck::Kept(_)), "it went down after all");
    }
}

/// A rollback to the snapshot that the guest continues from looks the same before and after, so only its own task shows it.
#[test]
fn repeated_rollback_is_shown_by_its_task_only() {
    for (flavour, kind) in every_release_and_kind() {
        let transport = prepare_lab(flavour, kind, ClientChange::SnapshotRollback);
        let send = |task_fault: Option<TaskFaultEffect>| {
            let change = build_change(&transport, kind, ClientChange::SnapshotRollback);
            let promise = SentPromise::before_send(&transport, &address(kind), change);
            let command = promise.command(&transport);
            if let Some(effect) = task_fault {
                transport.lock_lab().world.add_task_fault(TaskFault { effect: Some(effect), ..TaskFault::default() });
            }
            let accepted = call_command(&transport, command);
            transport.lock_lab().advance(60_000);
            let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
            let end = TaskEnd { is_failed: is_failed_task(task.as_ref()), age_secs: None, is_moved: false };
            (promise.check_kept(&transport, None), promise.check_kept(&transport, Some(end)))
        };
        assert!(matches!(send(None).0, PromiseCheck::Kept(_)), "{flavour:?} {kind}: it continued from another one");
        let (without_task, with_task) = send(None);
        assert!(matches!(without_task, PromiseCheck::Unclear(_)), "{flavour:?} {kind}: {without_task:?}");
        assert!(matches!(with_task, PromiseCheck::Kept(_)), "{flavour:?} {kind}: {with_task:?}");
        let (without_task, with_task) = send(Some(TaskFaultEffect::Fail("storage 'tank' is not online".to_owned())));
        assert!(matches!(without_task, PromiseCheck::Unclear(_)), "{flavour:?} {kind}: {without_task:?}");
        assert!(matches!(with_task, PromiseCheck::Unclear(_)), "{flavour:?} {kind}: {with_task:?}");
    }
}

/// A second snapshot or clone with the same name fails in its task or at once. The promise cannot tell it from the first one, which is why
/// both are checked right before they are sent, and why a clone whose task failed is held.
#[test]
fn repeated_snapshot_or_clone_fails_and_changes_nothing() {
    for (flavour, kind) in every_release_and_kind() {
        let transport = prepare_lab(flavour, kind, ClientChange::Clone);
        for action in [ClientChange::Clone, ClientChange::SnapshotCreate] {
            let send = || {
                let promise = SentPromise::before_send(&transport, &address(kind), build_change(&transport, kind, action));
                let accepted = call_command(&transport, promise.command(&transport));
                transport.lock_lab().advance(60_000);
                let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
                (promise, accepted.is_err() || is_failed_task(task.as_ref()))
            };
            let (first, is_refused) = send();
            assert!(!is_refused && matches!(first.check_kept(&transport, None), PromiseCheck::Kept(_)), "{flavour:?} {kind} {action:?}");
            let digests = || [100, 200].map(|id| transport.lock_lab().world.guest_truth(id).map(|truth| truth.digest));
            let old = digests();
            let (second, is_refused) = send();
            assert!(is_refused, "{flavour:?} {kind} {action:?}");
            assert_eq!(digests(), old, "{flavour:?} {kind} {action:?}");
            assert!(matches!(second.check_kept_before(), PromiseCheck::Kept(_)), "{flavour:?} {kind} {action:?}: it exists already");
        }
    }
}

#[test]
fn refused_clone_has_no_promise() {
    for (flavour, kind) in every_release_and_kind() {
        let transport = prepare_lab(flavour, kind, ClientChange::Clone);
        // A linked clone of a guest that is not a template, a clone to another node with disks on local storage, and one to a storage that
        // does not exist.
        for (node, disks, storage, expected_text) in [
            ("pve1", ClonedDisks::Linked, None, "Linked clone feature"),
            ("pve3", ClonedDisks::Full, Some("local"), "non-shared storage 'local'"),
            ("pve1", ClonedDisks::Full, Some("nowhere"), "storage 'nowhere' does not exist"),
            ("pve9", ClonedDisks::Full, None, "no such cluster node 'pve9'"),
        ] {
            let change = clone_change(&transport, kind, node, disks, storage);
            let promise = SentPromise::before_send(&transport, &address(kind), change);
            let refused = call_command(&transport, promise.command(&transport)).expect_err("Proxmox says no at once");
            // Only for few texts it is known that they precede a task; for the others the promise decides.
            assert!(matches!(refused.delivery, Delivery::Rejected | Delivery::MayHaveRun), "{flavour:?} {kind}: {refused}");
            assert!(refused.text.contains(expected_text), "{flavour:?} {kind}: {refused}");
            transport.lock_lab().advance(60_000);
            let promise_check = promise.check_kept(&transport, None);
            // A node that does not exist cannot be read, so nothing is claimed.
            assert!(
                matches!(promise_check, PromiseCheck::NotKept(_)) || node == "pve9" && matches!(promise_check, PromiseCheck::Unclear(_)),
                "{flavour:?} {kind}: {promise_check:?}"
            );
            assert!(transport.lock_lab().world.guest_truth(200).is_none(), "{flavour:?} {kind}: {expected_text}");
        }
    }
}

/// A running virtual machine whose local disks are not to be copied, and a container that does not shut down in time, stay where they are.
#[test]
fn refused_migration_is_not_kept() {
    for (flavour, kind) in every_release_and_kind() {
        let mut guest = guest_setting(kind, ClientChange::MigrateRunning);
        guest.ignores_shutdown = kind == GuestKind::Lxc;
        let transport = prepare_lab_with(flavour, kind, ClientChange::MigrateRunning, guest);
        let change = migration(&transport, kind, running_mode(kind));
        if kind == GuestKind::Qemu {
            transport.lock_lab().inject_event(WorldEvent::Set(100, "scsi0".to_owned(), "local:100/vm-100-disk-0.qcow2,size=1G".to_owned()));
        }
        let promise = SentPromise::before_send(&transport, &address(kind), change);
        let accepted = call_command(&transport, promise.command(&transport));
        transport.lock_lab().advance(240_000);
        let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
        assert!(is_failed_task(task.as_ref()), "{flavour:?} {kind}: {accepted:?} {task:?}");
        assert!(matches!(promise.check_kept(&transport, None), PromiseCheck::NotKept(_)), "{flavour:?} {kind}");
        let truth = transport.lock_lab().world.guest_truth(100).unwrap_or_else(|| panic!("it is there"));
        assert_eq!((truth.node.as_str(), truth.process.is_some(), truth.config.get("lock")), ("pve1", true, None), "{flavour:?} {kind}");
    }
}

/// A guest that was moved is read on its new node; what its old node says proves nothing.
#[test]
fn g2_migrated_guest_is_followed_and_not_taken_for_gone() {
    for (flavour, kind) in every_release_and_kind() {
        for action in [ClientChange::SnapshotDelete, ClientChange::SnapshotCreate, ClientChange::Stop, ClientChange::ConfigSet] {
            let transport = prepare_lab(flavour, kind, action);
            let promise = SentPromise::before_send(&transport, &address(kind), build_change(&transport, kind, action));
            let command = promise.command(&transport);
            transport.lock_lab().inject_event(WorldEvent::Move(100, "pve3".to_owned()));
            if action == ClientChange::ConfigSet {
                let failure = call_command(&transport, command).expect_err("it is not there");
                assert_eq!((failure.cause, failure.delivery), (FailureCause::NoSuchGuest, Delivery::Rejected), "{flavour:?} {kind}");
            }
            let promise_check = promise.check_kept(&transport, None);
            assert!(matches!(promise_check, PromiseCheck::NotKept(_)), "{flavour:?} {kind} {action:?}: {promise_check:?}");
            if action == ClientChange::Stop {
                transport.lock_lab().inject_event(WorldEvent::Stop(100));
                assert!(matches!(promise.check_kept(&transport, None), PromiseCheck::Kept(_)), "{flavour:?} {kind}: down on its new node");
            }
        }
    }
}

/// A guest that is gone, hidden or out of reach keeps no promise: a missing snapshot is no deleted one.
#[test]
fn g2_missing_or_unreachable_guest_keeps_no_promise() {
    for (flavour, kind) in every_release_and_kind() {
        for action in [ClientChange::SnapshotDelete, ClientChange::Stop, ClientChange::MigrateStopped, ClientChange::Grow] {
            for event in [
                WorldEvent::DeleteGuest(100),
                WorldEvent::Vanish(100),
                WorldEvent::NodeDown("pve1".to_owned()),
                WorldEvent::Isolate(vec!["pve1".to_owned()]),
            ] {
                let transport = prepare_lab(flavour, kind, action);
                let promise = SentPromise::before_send(&transport, &address(kind), build_change(&transport, kind, action));
                transport.lock_lab().inject_event(event.clone());
                transport.lock_lab().advance(60_000);
                let promise_check = promise.check_kept(&transport, None);
                assert!(matches!(promise_check, PromiseCheck::Unclear(_)), "{flavour:?} {kind} {action:?} {event:?}: {promise_check:?}");
            }
        }
    }
}

/// A clone is absent only if its node says so.
#[test]
fn g2_unreachable_clone_is_not_absent() {
    for (flavour, kind) in every_release_and_kind() {
        let transport = prepare_lab(flavour, kind, ClientChange::CloneAway);
        let promise = SentPromise::before_send(&transport, &address(kind), build_change(&transport, kind, ClientChange::CloneAway));
        call_command(&transport, promise.command(&transport)).unwrap_or_else(|failure| panic!("{flavour:?} {kind}: {failure}"));
        transport.lock_lab().advance(120_000);
        transport.lock_lab().inject_event(WorldEvent::NodeDown("pve3".to_owned()));
        transport.lock_lab().advance(60_000);
        let promise_check = promise.check_kept(&transport, None);
        assert!(matches!(promise_check, PromiseCheck::Unclear(_)), "{flavour:?} {kind}: {promise_check:?}");
        transport.lock_lab().inject_event(WorldEvent::NodeUp("pve3".to_owned()));
        transport.lock_lab().advance(60_000);
        assert!(matches!(promise.check_kept(&transport, None), PromiseCheck::Kept(_)), "{flavour:?} {kind}");
    }
}

/// A worker that is killed half way leaves something behind: an unfinished snapshot, a locked half guest, a lock, a volume that is larger
/// than its config says. None of it passes for what was promised.
#[test]
fn half_done_change_is_not_kept() {
    for (flavour, kind) in every_release_and_kind() {
        for action in ClientChange::of_kind(kind).filter(|action| action.has_task(flavour, kind)) {
            let transport = prepare_lab(flavour, kind, action);
            let promise = SentPromise::before_send(&transport, &address(kind), build_change(&transport, kind, action));
            let command = promise.command(&transport);
            let old = transport.lock_lab().world.clone();
            transport.lock_lab().world.add_task_fault(TaskFault { effect: Some(TaskFaultEffect::Killed), ..TaskFault::default() });
            let accepted = call_command(&transport, command);
            transport.lock_lab().advance(120_000);
            let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
            let is_killed = |cause: &FailureCause| *cause == FailureCause::TaskKilled;
            assert!(
                matches!(&task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, .. }))) if is_killed(cause)),
                "{flavour:?} {kind} {action:?}: {accepted:?} {task:?}"
            );
            let is_done = is_done(action, &old, &transport.lock_lab().world);
            let promise_check = promise.check_kept(&transport, None);
            assert_eq!(
                matches!(promise_check, PromiseCheck::Kept(_)),
                is_done,
                "{flavour:?} {kind} {action:?}: {promise_check:?}, {:?}",
                transport.lock_lab().world.guest_truth(100)
            );
        }
    }
}
