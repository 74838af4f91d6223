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
    let transport = prepare_lab(flavour, kind, action);
    if fate == ChangeFate::Locked {
        // Before the change is bound to a digest, because a lock alone changes the digest.
        transport.lock_lab().inject_event(WorldEvent::Lock(100, "backup".to_owned()));
    }
    let write = build_write(&transport, kind, action);
    check_same_request(&transport, &write);
    let promise = SentPromise::before_send(&transport, &write);
    assert!(matches!(promise.check_kept_before(), PromiseCheck::NotKept(_)), "{case:?} holds before it is done: {:?}", promise.before);
    let old = transport.lock_lab().world.clone();
    plant_faults(&transport, fate);
    let sent_at = transport.lock_lab().now_ms / 1_000;
    let accepted = call_command(&transport, ProxmoxCommand::Write(write.clone()));
    pass_time(&transport, fate);
    check_task_listed(&transport, &write, sent_at, case);
    let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
    let promise_check = promise.check_kept(&transport, &write);
    let is_done = is_done(action, &old, &transport.lock_lab().world);
    (transport, ActuatorResult { write, accepted, task, promise_check, is_done })
}

/// A change that a plan can contain gives the same request through the engine's environment request.
fn check_same_request(transport: &LabTransport<()>, write: &ProxmoxWrite) {
    let change = match write {
        ProxmoxWrite::Start(_) => Change::Start,
        ProxmoxWrite::Shutdown { timeout_secs, .. } => Change::Shutdown { timeout_secs: *timeout_secs },
        ProxmoxWrite::Stop(_) => Change::Stop,
        ProxmoxWrite::RebootQemu { timeout_secs, .. } => Change::Reboot { timeout_secs: *timeout_secs },
        ProxmoxWrite::ConfigSet(set) => Change::ConfigSet(set.changes().into()),
        _ => return,
    };
    let guest = write.guest();
    let address = GuestAddress { node: guest.node, kind: guest.kind, vmid: guest.vmid };
    let revision = match block_on(new_actuator(transport).request(&EnvRequest::Config(address.clone()))) {
        EnvResponse::Config(config) => config.revision,
        other => panic!("no config: {other:?}"),
    };
    assert_eq!(command_for(&EnvRequest::Send { address, change, revision }), Ok(ProxmoxCommand::Write(write.clone())));
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

fn accepted_task(accepted: &Result<ProxmoxEvent, ProxmoxFailure>) -> Option<converger_adapters::proxmox::codec::Upid> {
    match accepted {
        Ok(ProxmoxEvent::Accepted(AcceptedChange::Task(upid))) => Some(upid.clone()),
        _ => None,
    }
}

/// After a lost response, the node's task list shows whether there is a task; otherwise the task is listed too.
fn check_task_listed(transport: &LabTransport<()>, write: &ProxmoxWrite, sent_at: u64, case: ActuatorCase) {
    let guest = write.guest();
    let Ok(ProxmoxEvent::Tasks(mut tasks)) = call_read(transport, ProxmoxRead::Tasks { node: guest.node, vmid: guest.vmid }) else {
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
        let transport = prepare_lab(flavour, kind, ClientChange::Shutdown);
        // A paused guest does not notice the request; an unresponsive container is busy for longer than the timeout.
        let write = build_write(&transport, kind, ClientChange::Shutdown);
        let promise = SentPromise::before_send(&transport, &write);
        let short = ProxmoxWrite::Shutdown { guest: write.guest(), timeout_secs: 2 };
        let accepted = call_command(&transport, ProxmoxCommand::Write(short));
        transport.lock_lab().advance(60_000);
        let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
        let timed_out = |cause: &FailureCause| *cause == FailureCause::ShutdownTimeout;
        assert!(
            matches!(&task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { cause, .. }))) if timed_out(cause)),
            "{flavour:?} {kind}: {task:?}"
        );
        assert!(matches!(promise.check_kept(&transport, &write), PromiseCheck::NotKept(_)));
        transport.lock_lab().inject_event(WorldEvent::Stop(100));
        assert!(matches!(promise.check_kept(&transport, &write), PromiseCheck::Kept(_)), "it went down after all");
    }
}

#[test]
fn repeated_snapshot_rollback_or_clone_proves_nothing() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let transport = prepare_lab(flavour, kind, ClientChange::Clone);
        for action in [ClientChange::Clone, ClientChange::SnapshotCreate, ClientChange::SnapshotRollback] {
            let write = build_write(&transport, kind, action);
            let judge = || {
                let promise = SentPromise::before_send(&transport, &write);
                let accepted = call_command(&transport, ProxmoxCommand::Write(write.clone()));
                transport.lock_lab().advance(60_000);
                (promise.check_kept(&transport, &write), accepted)
            };
            assert!(matches!(judge().0, PromiseCheck::Kept(_)), "{flavour:?} {kind} {action:?}");
            let (promise_check, accepted) = judge();
            assert!(
                matches!(promise_check, PromiseCheck::NotKept(_) | PromiseCheck::Unclear(_)),
                "{flavour:?} {kind} {action:?}: {promise_check:?} {accepted:?}"
            );
        }
    }
}

#[test]
fn refused_clone_has_no_promise() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let transport = prepare_lab(flavour, kind, ClientChange::Clone);
        let guest = || guest_path("pve1", kind, 100);
        // A linked clone of a guest that is not a template, a clone to another node with disks on local storage, and one to a storage that
        // does not exist.
        for (write, expected_text) in [
            (clone_write(guest(), None, CloneDisks::Linked), "Linked clone feature"),
            (clone_write(guest(), Some("pve3"), CloneDisks::Full(Some(storage_name("local")))), "non-shared storage 'local'"),
            (clone_write(guest(), None, CloneDisks::Full(Some(storage_name("nowhere")))), "storage 'nowhere' does not exist"),
            (clone_write(guest(), Some("pve9"), CloneDisks::Full(None)), "no such cluster node 'pve9'"),
        ] {
            let promise = SentPromise::before_send(&transport, &write);
            let refused = call_command(&transport, ProxmoxCommand::Write(write.clone())).expect_err("Proxmox says no at once");
            // Only for few texts it is known that they precede a task; for the others the promise decides.
            assert!(matches!(refused.delivery, Delivery::Rejected | Delivery::MayHaveRun), "{flavour:?} {kind}: {refused}");
            assert!(refused.text.contains(expected_text), "{flavour:?} {kind}: {refused}");
            transport.lock_lab().advance(60_000);
            let promise_check = promise.check_kept(&transport, &write);
            // A node that does not exist cannot be read, so nothing is claimed.
            assert!(
                matches!(promise_check, PromiseCheck::NotKept(_))
                    || expected_text.contains("pve9") && matches!(promise_check, PromiseCheck::Unclear(_)),
                "{flavour:?} {kind}: {promise_check:?}"
            );
            assert!(transport.lock_lab().world.guest_truth(200).is_none(), "{flavour:?} {kind}: {expected_text}");
        }
    }
}

/// A running virtual machine on local storage, and a container that does not shut down in time, stay where they are.
#[test]
fn refused_migration_is_not_kept() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let transport = prepare_lab(flavour, kind, ClientChange::MigrateRunning);
        let mode = match kind {
            GuestKind::Qemu => MigrationMode::QemuLive,
            GuestKind::Lxc => MigrationMode::LxcRestart { timeout_secs: 2 },
        };
        if kind == GuestKind::Qemu {
            transport.lock_lab().inject_event(WorldEvent::Set(100, "scsi0".to_owned(), "local:100/vm-100-disk-0.qcow2,size=1G".to_owned()));
        }
        let guest = guest_path("pve1", kind, 100);
        let write = ProxmoxWrite::Migrate { node: guest.node, vmid: guest.vmid, target: node_name("pve3"), mode };
        let promise = SentPromise::before_send(&transport, &write);
        let accepted = call_command(&transport, ProxmoxCommand::Write(write.clone()));
        transport.lock_lab().advance(60_000);
        let task = accepted_task(&accepted).map(|upid| call_read(&transport, ProxmoxRead::TaskStatus(upid)));
        assert!(
            matches!(&task, Some(Ok(ProxmoxEvent::Task(ProxmoxTaskState::Failed { .. })))),
            "{flavour:?} {kind}: {accepted:?} {task:?}"
        );
        assert!(matches!(promise.check_kept(&transport, &write), PromiseCheck::NotKept(_)), "{flavour:?} {kind}");
        let truth = transport.lock_lab().world.guest_truth(100).unwrap_or_else(|| panic!("it is there"));
        assert_eq!((truth.node.as_str(), truth.process.is_some(), truth.config.get("lock")), ("pve1", true, None), "{flavour:?} {kind}");
    }
}

#[test]
fn g2_migrated_guest_is_not_deleted() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let transport = prepare_lab(flavour, kind, ClientChange::Delete);
        let write = build_write(&transport, kind, ClientChange::Delete);
        let promise = SentPromise::before_send(&transport, &write);
        transport.lock_lab().inject_event(WorldEvent::Move(100, "pve3".to_owned()));
        let failure = call_command(&transport, ProxmoxCommand::Write(write.clone())).expect_err("it is not there");
        assert_eq!((failure.cause, failure.delivery), (FailureCause::NoSuchGuest, Delivery::Rejected), "{flavour:?} {kind}");
        let promise_check = promise.check_kept(&transport, &write);
        assert!(matches!(promise_check, PromiseCheck::Unclear(_)), "{flavour:?} {kind}: {promise_check:?}");
        // The list behind the ids is empty without an error: the id is free, and the old node does not have the guest.
        transport.lock_lab().inject_event(WorldEvent::Blind("pve2".to_owned()));
        let promise_check = promise.check_kept(&transport, &write);
        assert!(
            matches!(&promise_check, PromiseCheck::NotKept(seen) if seen.get("node") == Some(&"pve3".into())),
            "{flavour:?} {kind}: {promise_check:?}"
        );
    }
}

#[test]
fn g2_absence_needs_quorum_and_a_reachable_node() {
    for (flavour, kind) in FLAVOURS.into_iter().flat_map(|flavour| GuestKind::ALL.map(|kind| (flavour, kind))) {
        let transport = prepare_lab(flavour, kind, ClientChange::Delete);
        let write = build_write(&transport, kind, ClientChange::Delete);
        let promise = SentPromise::before_send(&transport, &write);
        call_command(&transport, ProxmoxCommand::Write(write.clone())).unwrap_or_else(|failure| panic!("{flavour:?} {kind}: {failure}"));
        transport.lock_lab().advance(120_000);
        assert!(transport.lock_lab().world.guest_truth(100).is_none(), "it is really gone");
        let unclear = |events: &[WorldEvent], undo: &[WorldEvent]| {
            events.iter().for_each(|event| transport.lock_lab().inject_event(event.clone()));
            transport.lock_lab().advance(60_000);
            let promise_check = promise.check_kept(&transport, &write);
            assert!(matches!(promise_check, PromiseCheck::Unclear(_)), "{flavour:?} {kind} {events:?}: {promise_check:?}");
            undo.iter().for_each(|event| transport.lock_lab().inject_event(event.clone()));
            transport.lock_lab().advance(60_000);
            let promise_check = promise.check_kept(&transport, &write);
            assert!(matches!(promise_check, PromiseCheck::Kept(_)), "{flavour:?} {kind} after {events:?}: {promise_check:?}");
        };
        // The partition of the endpoint has the old node and this one, or this one alone.
        unclear(&[WorldEvent::Isolate(vec!["pve2".to_owned()])], &[WorldEvent::Heal]);
        unclear(&[WorldEvent::Isolate(vec!["pve3".to_owned()])], &[WorldEvent::Heal]);
        unclear(&[WorldEvent::NodeDown("pve3".to_owned())], &[WorldEvent::NodeUp("pve3".to_owned())]);
        unclear(&[WorldEvent::NodeDown("pve1".to_owned())], &[WorldEvent::NodeUp("pve1".to_owned())]);
    }
}
