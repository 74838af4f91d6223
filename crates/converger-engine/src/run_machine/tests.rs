//! Several submissions in one machine: each ends on its own and is forgotten, and the journal may be read and written in the meantime.

use converger_core::apply::{ClusterMembership, EnvRequest, EnvResponse, IdState, LiveConfig, OperationEnd, TaskId, TaskState};
use converger_core::guest::GuestKind;
use converger_core::testing::RequestWorld;

use super::*;
use crate::testing;

/// The start of a guest, as an operation of this run.
fn start_of(run: &str, vmid: u32) -> (Operation, CheckContext) {
    let guest = serde_json::json!({ "vmid": vmid, "kind": "qemu", "name": "web", "state": "running" });
    let plan = testing::plan_guests(&[guest], &[testing::guest_row(vmid, "stopped")]);
    let (mut operation, context) = testing::plan_operations(&plan).pop().expect("a step");
    operation.run = RunId::new(run).expect("an id");
    operation.id = OperationId::new(&format!("{run}-{vmid}")).expect("an id");
    (operation, context)
}

fn id(text: &str) -> OperationId {
    OperationId::new(text).expect("an id")
}

fn submit(drive: &mut RunMachine, operations: Vec<(Operation, CheckContext)>) -> (SubmissionId, Vec<RunEffect>) {
    drive.submit(operations, RunOptions::default(), 1_000)
}

fn failed() -> OperationEvent {
    OperationEvent::NotCommitted(CommitFailure::Failed("no room".into()))
}

/// The history of an operation with only its intent in the journal.
fn history_of((operation, _): (Operation, CheckContext)) -> OperationHistory {
    OperationHistory::from_intent(Box::new(operation), 1_000)
}

#[test]
fn submission_ends_on_its_own_and_is_forgotten_when_its_report_is_taken() {
    let mut drive = RunMachine::new(ConcurrencyLimits::default());
    let (first, _) = submit(&mut drive, vec![start_of("r", 100)]);
    let (second, _) = submit(&mut drive, vec![start_of("s", 101)]);
    assert_eq!((drive.submission_of(&id("r-100")), drive.submission_of(&id("s-101"))), (Some(first), Some(second)));
    let repeated = OperationEvent::NotCommitted(CommitFailure::Repeated(id("earlier")));
    let effects = drive.feed(&id("r-100"), repeated, 1_001);
    assert_eq!(effects, [RunEffect::PhaseReached(id("r-100"), Phase::Ended), RunEffect::SubmissionEnded(first)]);
    let report = drive.take_report(first);
    assert_eq!(report.operations().iter().map(|reported| reported.outcome.end()).collect::<Vec<_>>(), [OperationEnd::NotRun]);
    assert_eq!((drive.operation_state(&id("r-100")), drive.operation_count()), (None, 1));
    let effects = drive.stop(FailureCode::RunStopped, 1_002);
    assert_eq!(effects, [], "operations in flight continue");
    drop(drive.feed(&id("s-101"), failed(), 1_003));
    drop(drive.take_report(second));
    assert_eq!(drive.entry_count(), 0);
}

#[test]
fn empty_or_duplicate_submission_ends_at_once() {
    let mut drive = RunMachine::new(ConcurrencyLimits::default());
    let (empty, effects) = submit(&mut drive, Vec::new());
    assert_eq!(effects, [RunEffect::SubmissionEnded(empty)]);
    let (first, _) = submit(&mut drive, vec![start_of("r", 100)]);
    let (known, effects) = submit(&mut drive, vec![start_of("r", 100)]);
    assert_eq!(effects, [RunEffect::SubmissionEnded(known)]);
    assert_eq!((drive.take_report(known).operations().len(), drive.submission_of(&id("r-100"))), (0, Some(first)));
}

/// Design 6.13, for an executor that outlives a full disk.
#[test]
fn unwritable_journal_stops_open_submissions_but_not_later_ones() {
    let mut drive = RunMachine::new(ConcurrencyLimits { per_node: 2, overall: 2 });
    let (first, _) = submit(&mut drive, vec![start_of("r", 100), start_of("r", 101)]);
    let (second, _) = submit(&mut drive, vec![start_of("s", 102)]);
    let effects = drive.feed(&id("r-100"), failed(), 1_001);
    let is_begun = |effects: &[RunEffect], name: &str| effects.contains(&RunEffect::Begun(id(name)));
    assert!(!is_begun(&effects, "s-102") && effects.contains(&RunEffect::SubmissionEnded(second)), "{effects:?}");
    // It was started before, and its intent is written after all: it is never sent.
    drop(drive.feed(&id("r-101"), OperationEvent::Committed, 1_002));
    assert!(drive.is_journal_lost(&id("r-101")));
    let (third, effects) = submit(&mut drive, vec![start_of("t", 103)]);
    assert!(is_begun(&effects, "t-103") && !drive.is_journal_lost(&id("t-103")), "{effects:?}");
    let effects = drive.feed(&id("t-103"), OperationEvent::Committed, 1_003);
    assert!(matches!(effects.last(), Some(RunEffect::Execute(_, OperationCommand::Request(_)))), "{effects:?}");
    assert_eq!(drive.outcome(&id("s-102")).and_then(Outcome::code).map(|code| code.to_string()), Some("journal-unwritable".to_owned()));
    assert!([first, third].iter().all(|submission| drive.submissions.contains_key(submission)));
}

#[test]
fn g13_journal_reading_leaves_out_operations_that_were_here_at_any_time_while_it_was_read() {
    let repeated = || OperationEvent::NotCommitted(CommitFailure::Repeated(id("earlier")));
    let mut drive = RunMachine::new(ConcurrencyLimits::default());
    let (before, _) = submit(&mut drive, vec![start_of("r", 100)]);
    drive.start_journal_reading();
    let (during, _) = submit(&mut drive, vec![start_of("s", 101)]);
    // Both end and are forgotten during the reading, in which their intents have no end.
    for (name, submission) in [("r-100", before), ("s-101", during)] {
        drop(drive.feed(&id(name), repeated(), 1_001));
        drop(drive.take_report(submission));
    }
    submit(&mut drive, vec![start_of("t", 102)]);
    let found = [start_of("r", 100), start_of("s", 101), start_of("t", 102), start_of("old", 103)].map(history_of);
    let left = drive.end_journal_reading(found.to_vec());
    assert_eq!(left.iter().map(|history| history.id().as_str()).collect::<Vec<_>>(), ["old-103"]);
    // The next reading starts after both have ended, so operations that it shows without an end must be settled.
    drive.start_journal_reading();
    assert_eq!(drive.end_journal_reading(found.to_vec()).len(), 3);
}

/// The operations of a request that makes, configures and starts a guest.
fn provisioning_steps() -> Vec<(Operation, CheckContext)> {
    let parameters = [("newid", "120"), ("name", "web-7"), ("bridge", "vmbr1"), ("start", "true")];
    let plan = RequestWorld::default().plan_action("vm.clone", GuestKind::Qemu, 900, &parameters);
    testing::plan_operations(&plan)
}

fn born_as(identity: &GuestIdentity) -> EnvResponse {
    let config = LiveConfig { name: "web-7".into(), identity: identity.clone(), ..testing::live_config(2) };
    EnvResponse::Config(Box::new(config))
}

/// Answers the commands of an operation until it ends, and returns the requests that it made.
fn drive_to_end(drive: &mut RunMachine, id: &OperationId, effects: Vec<RunEffect>, identity: &GuestIdentity) -> Vec<EnvRequest> {
    let (mut requests, mut effects) = (Vec::new(), effects);
    for now_ms in 1_001..1_100 {
        let command = effects.iter().find_map(|effect| match effect {
            RunEffect::Execute(own, command) if own == id => Some(command.clone()),
            _ => None,
        });
        let Some(command) = command else { break };
        let event = match command {
            OperationCommand::Commit(_) | OperationCommand::Mark => OperationEvent::Committed,
            OperationCommand::RecheckHolds => OperationEvent::SendAllowed,
            OperationCommand::FindTaskOwners(_) => OperationEvent::TaskOwnersFound(Vec::new()),
            OperationCommand::Wait(_) => OperationEvent::Woken,
            OperationCommand::Request(request) => {
                requests.push(request.clone());
                OperationEvent::Responded(respond(&request, identity))
            }
        };
        effects = drive.feed(id, event, now_ms);
        if drive.outcome(id).is_some() {
            break;
        }
    }
    requests
}

/// A cluster in which guest 900 is a template, and guest 120 was made with these marks.
fn respond(request: &EnvRequest, identity: &GuestIdentity) -> EnvResponse {
    let task = TaskId::new("UPID:pve1:1").expect("an id");
    match request {
        EnvRequest::Cluster => {
            EnvResponse::Cluster(ClusterMembership { quorate: true, nodes: [(testing::address_on("pve1").node, true)].into() })
        }
        EnvRequest::Status(_) => testing::status_response("stopped"),
        EnvRequest::Config(address) if address.vmid.get() == 900 => {
            let source = GuestIdentity::Qemu { uuid: Some("0000000900-0000-4000-8000-000000000000".into()), ctime: Some(1_700_000_900) };
            let config = LiveConfig {
                name: "debian-template".into(),
                identity: source,
                template: true,
                digest: Some("90c9867238def2fe4d646be13e412474af227aee".into()),
                ..testing::live_config(2)
            };
            EnvResponse::Config(Box::new(config))
        }
        EnvRequest::Config(_) => born_as(identity),
        EnvRequest::IdState(vmid) => EnvResponse::IdState(if vmid.get() == 900 { IdState::Taken } else { IdState::Free }),
        EnvRequest::Send { .. } => EnvResponse::Sent(SendResult::Task(task)),
        EnvRequest::Task(_) => EnvResponse::Task(TaskState::Ended { warnings: 0, age_secs: None }),
        other => panic!("not expected: {other:?}"),
    }
}

fn marks_of_operation(drive: &RunMachine, id: &OperationId) -> Option<GuestIdentity> {
    drive.operation_state(id).and_then(|state| state.operation().guest.identity.clone())
}

#[test]
fn later_steps_of_a_new_guest_take_its_birth_marks_from_the_clone() {
    let steps = provisioning_steps();
    let ids: Vec<OperationId> = steps.iter().map(|(operation, _)| operation.id.clone()).collect();
    let mut drive = RunMachine::new(ConcurrencyLimits::default());
    let (_, effects) = submit(&mut drive, steps);
    assert_eq!(marks_of_operation(&drive, &ids[1]), None, "before the clone nobody knows them");
    let born = GuestIdentity::Qemu { uuid: Some("0b0c".into()), ctime: Some(1_700_000_900) };
    drive_to_end(&mut drive, &ids[0], effects, &born);
    assert_eq!(drive.outcome(&ids[0]).map(Outcome::end), Some(OperationEnd::Done));
    assert_eq!([&ids[1], &ids[2]].map(|id| marks_of_operation(&drive, id)), [Some(born.clone()), Some(born)]);
    // The intent that is written next has them.
    let intent = drive.operation_state(&ids[1]).expect("known").operation().clone();
    assert_eq!(intent.step.change.word(), "provision");
}

/// An id that another user has taken in the meantime, or a clone without marks, gets no further change.
#[test]
fn g13_a_later_step_without_birth_marks_sends_nothing() {
    let (mut operation, context) = provisioning_steps().swap_remove(1);
    assert_eq!((operation.step.change.word(), &operation.guest.identity), ("provision", &None));
    let other = GuestIdentity::Qemu { uuid: Some("0b0d".into()), ctime: Some(1_700_000_900) };
    let born = GuestIdentity::Qemu { uuid: Some("0b0c".into()), ctime: Some(1_700_000_900) };
    for (known, code) in [(None, "guard-unread"), (Some(born), "identity-mismatch")] {
        operation.guest.identity = known;
        let id = operation.id.clone();
        let mut drive = RunMachine::new(ConcurrencyLimits::default());
        let (_, effects) = submit(&mut drive, vec![(operation.clone(), context.clone())]);
        let requests = drive_to_end(&mut drive, &id, effects, &other);
        assert!(!requests.iter().any(EnvRequest::is_mutation), "{requests:?}");
        assert_eq!(drive.outcome(&id).and_then(Outcome::code).map(|own| own.as_str()), Some(code));
    }
}
