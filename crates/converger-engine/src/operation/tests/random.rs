//! Random events: the rules of the machine hold in any order. Seeds are printed on failure.

use std::sync::LazyLock;

use converger_core::apply::{BootId, ClusterMembership};
use converger_core::testing::Rng;

use super::*;

/// One new operation of every kind.
static NEW_OPERATIONS: LazyLock<Vec<OperationState>> =
    LazyLock::new(|| ["start", "shutdown", "stop", "config.set", "config.set running", "reboot"].map(new_operation).into());
static RESPONSES: LazyLock<Vec<EnvResponse>> = LazyLock::new(all_responses);
static EVENTS: LazyLock<Vec<OperationEvent>> = LazyLock::new(all_events);
static SEND_BLOCKS: LazyLock<[SendBlock; 4]> = LazyLock::new(|| {
    let refused = SendBlock::Refused(converger_core::refusal::Refusal::changes_frozen("audit"));
    let no_room = SendBlock::NodeBusy(test_fault(EnvFaultKind::Busy));
    [refused, SendBlock::Stopped(FailureCode::RunStopped), SendBlock::Failed("no store".into()), no_room]
});

/// Every kind of response, good and bad.
fn all_responses() -> Vec<EnvResponse> {
    let mut answers = vec![
        cluster_response(),
        EnvResponse::Cluster(ClusterMembership::default()),
        config_response(2),
        config_response(4),
        pending_config_response(),
        altered_config_response(|config| config.lock = Some("backup".into())),
        altered_config_response(|config| config.name = "other".into()),
        altered_config_response(|config| config.identity = converger_core::guest::GuestIdentity::Qemu { uuid: None, ctime: None }),
        ha_status_response(Some("started"), "running"),
        EnvResponse::Located(None),
        EnvResponse::Located(Some(address_on("pve1"))),
        EnvResponse::Located(Some(address_on("pve2"))),
        EnvResponse::Tasks(Vec::new()),
        EnvResponse::Tasks(vec![running_task("T1")]),
        EnvResponse::Tasks(vec![running_task("T1"), ended_task("T2", 0)]),
        EnvResponse::Task(TaskState::Running),
        task_ended_response(),
        EnvResponse::Task(TaskState::Failed { cause: test_fault(EnvFaultKind::ShutdownTimeout), age_secs: None }),
        EnvResponse::Task(TaskState::Failed { cause: test_fault(EnvFaultKind::Other), age_secs: None }),
        EnvResponse::Task(TaskState::Lost(test_fault(EnvFaultKind::Other))),
        task_sent_response(),
        EnvResponse::Sent(SendResult::Done),
        EnvResponse::Sent(SendResult::Rejected(test_fault(EnvFaultKind::ConfigChanged))),
        EnvResponse::Sent(SendResult::NotDelivered(test_fault(EnvFaultKind::Other))),
        EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other))),
        EnvResponse::GuestNotFound(test_fault(EnvFaultKind::GuestNotFound)),
        EnvResponse::Unreadable(test_fault(EnvFaultKind::Other)),
    ];
    answers.extend(["running", "stopped", "paused"].map(status_response));
    answers.push(EnvResponse::Status(live_status("running", 1)));
    answers
}

fn all_events() -> Vec<OperationEvent> {
    let mut events = vec![
        OperationEvent::Begin,
        OperationEvent::Committed,
        OperationEvent::NotCommitted(CommitFailure::Failed("disk full".into())),
        OperationEvent::NotCommitted(CommitFailure::Refused(Refusal::changes_frozen("audit week"))),
        OperationEvent::Woken,
    ];
    events.push(OperationEvent::SendAllowed);
    events.extend(SEND_BLOCKS.iter().cloned().map(OperationEvent::SendBlocked));
    events.extend(all_responses().into_iter().map(OperationEvent::Responded));
    events
}

/// The history of one operation so far, and what must hold for it.
#[derive(Default)]
struct OperationInvariants {
    history: Option<OperationHistory>,
    pending: Option<JournalRecord>,
    send_count: u32,
}

impl OperationInvariants {
    /// Checks a command against the history.
    fn check_command(&mut self, command: Option<&OperationCommand>, is_recovered: bool) {
        match command {
            Some(OperationCommand::Commit(record)) => self.pending = Some(JournalRecord::clone(record)),
            Some(OperationCommand::Mark) => {
                let id = self.history.as_ref().expect("marked before the intent was durable").operation.id.clone();
                self.pending = Some(JournalRecord::Sending { id, at_ms: NOW_MS, up_ms: 0 });
            }
            Some(OperationCommand::Request(request)) => {
                assert!(self.history.is_some(), "{} was requested before the intent was durable", request.word());
                assert!(self.history.as_ref().is_some_and(|history| history.ended.is_none()) || is_recovered, "requested after its end");
                self.send_count += u32::from(request.is_mutation());
                assert!(
                    !request.is_mutation() || self.history.as_ref().is_some_and(|history| history.sending.is_some()),
                    "sent without a mark"
                );
                assert!(self.send_count <= 1 && !(is_recovered && request.is_mutation()), "sent twice");
            }
            Some(OperationCommand::RecheckHolds) => {
                assert!(self.history.is_some() && !is_recovered, "holds were rechecked before the intent was durable")
            }
            Some(OperationCommand::FindTaskOwners(tasks)) => assert!(!tasks.is_empty(), "the list of tasks is empty"),
            Some(OperationCommand::Wait(ms)) => assert!((1..=60_000).contains(ms), "a wait of {ms} ms"),
            None => {}
        }
    }

    /// The journal accepts the pending record, or rejects it as a store would.
    fn apply_commit(&mut self) {
        match (self.pending.take(), &mut self.history) {
            (Some(JournalRecord::Intent { operation, at_ms }), None) => {
                self.history = Some(OperationHistory::from_intent(operation, at_ms))
            }
            (Some(record), Some(history)) => history.add_record(record).expect("records follow each other legally"),
            (record, _) => panic!("not a first record: {record:?}"),
        }
    }
}

/// Runs one operation with random responses that mostly match the request.
fn drive_to_end(rng: &mut Rng, mut state: OperationState, witness: &mut OperationInvariants) -> OperationState {
    let mut event = OperationEvent::Begin;
    for _ in 0..2000 {
        if event == OperationEvent::Committed {
            witness.apply_commit();
        }
        let (next, command) = step(state, event, NOW_MS);
        witness.check_command(command.as_ref(), next.is_recovered());
        state = next;
        event = match command {
            None if state.outcome().is_some() => return state,
            // An unexpected event was ignored; the next one will match.
            None => rng.pick(&EVENTS).expect("events").clone(),
            Some(OperationCommand::Commit(_) | OperationCommand::Mark) if rng.one_in(12) => {
                OperationEvent::NotCommitted(CommitFailure::Failed("disk full".into()))
            }
            Some(OperationCommand::Commit(_) | OperationCommand::Mark) => OperationEvent::Committed,
            Some(OperationCommand::RecheckHolds) if rng.one_in(8) => {
                OperationEvent::SendBlocked(rng.pick(&*SEND_BLOCKS).expect("reasons").clone())
            }
            Some(OperationCommand::RecheckHolds) => OperationEvent::SendAllowed,
            Some(OperationCommand::FindTaskOwners(_)) if rng.one_in(8) => OperationEvent::TaskOwnersUnreadable("locked".into()),
            Some(OperationCommand::FindTaskOwners(tasks)) => {
                OperationEvent::TaskOwnersFound(tasks.into_iter().filter(|_| rng.one_in(3)).collect())
            }
            Some(OperationCommand::Wait(_)) => OperationEvent::Woken,
            Some(OperationCommand::Request(request)) => random_response(rng, &request),
        };
    }
    panic!("it did not end: {state:?}");
}

fn drive_new_operation(rng: &mut Rng, witness: &mut OperationInvariants) -> OperationState {
    let state = random_operation(rng);
    drive_to_end(rng, state, witness)
}

fn random_response(rng: &mut Rng, request: &EnvRequest) -> OperationEvent {
    let fits = |answer: &&EnvResponse| match request {
        EnvRequest::Cluster => matches!(answer, EnvResponse::Cluster(_) | EnvResponse::Unreadable(_)),
        EnvRequest::Status(_) => matches!(answer, EnvResponse::Status(_) | EnvResponse::GuestNotFound(_) | EnvResponse::Unreadable(_)),
        EnvRequest::Config(_) => matches!(answer, EnvResponse::Config(_) | EnvResponse::GuestNotFound(_) | EnvResponse::Unreadable(_)),
        EnvRequest::Snapshots(_) => {
            matches!(answer, EnvResponse::Snapshots(_) | EnvResponse::GuestNotFound(_) | EnvResponse::Unreadable(_))
        }
        EnvRequest::IdState(_) => matches!(answer, EnvResponse::IdState(_) | EnvResponse::Unreadable(_)),
        EnvRequest::Locate(_) => matches!(answer, EnvResponse::Located(_) | EnvResponse::Unreadable(_)),
        EnvRequest::Send { .. } => matches!(answer, EnvResponse::Sent(_)),
        EnvRequest::Task(_) => matches!(answer, EnvResponse::Task(_) | EnvResponse::Unreadable(_)),
        EnvRequest::Tasks { .. } => matches!(answer, EnvResponse::Tasks(_) | EnvResponse::Unreadable(_)),
    };
    let fitting: Vec<&EnvResponse> = if rng.one_in(20) { RESPONSES.iter().collect() } else { RESPONSES.iter().filter(fits).collect() };
    OperationEvent::Responded(EnvResponse::clone(rng.pick(&fitting).expect("answers")))
}

fn random_operation(rng: &mut Rng) -> OperationState {
    rng.pick(&NEW_OPERATIONS).expect("operations").clone()
}

#[test]
fn any_responses_send_once_record_legally_and_end() {
    for seed in 0..20_000 {
        check_seed(seed, |rng| {
            let mut witness = OperationInvariants::default();
            let state = drive_new_operation(rng, &mut witness);
            let is_ended = witness.history.as_ref().is_some_and(|history| history.ended.is_some());
            assert_eq!(state.is_recorded(), is_ended, "is_recorded must match the journal");
        });
    }
}

#[test]
fn recovery_of_any_open_operation_sends_nothing_and_ends() {
    for seed in 0..20_000 {
        check_seed(seed, |rng| {
            let mut witness = OperationInvariants::default();
            drive_new_operation(rng, &mut witness);
            // Crash after crash: each recovery starts from what the journal has.
            for _ in 0..3 {
                let uptime = Uptime { boot: BootId::new(rng.pick_word(&["boot-1", "boot-2"])).expect("an id"), ms: rng.below(100_000) };
                let uptime = (!rng.one_in(4)).then_some(&uptime);
                let recorded_history = witness.history.clone().map(|history| OperationHistory { boot: BootId::new("boot-1"), ..history });
                let Some(state) = recorded_history.and_then(|history| OperationState::recover(history, Patience::default(), uptime)) else {
                    return;
                };
                witness.send_count = 0;
                let state = drive_to_end(rng, state, &mut witness);
                assert!(state.outcome().is_some() && witness.send_count == 0, "a recovered operation ends and sends nothing: {state:?}");
            }
        });
    }
}

#[test]
fn unexpected_event_changes_nothing() {
    for seed in 0..200 {
        check_seed(seed, |rng| {
            let mut state = random_operation(rng);
            for _ in 0..60 {
                for event in EVENTS.iter() {
                    let (after, command) = step(state.clone(), event.clone(), NOW_MS);
                    let is_next = command.is_some() || after.outcome().is_some();
                    assert!(is_next || after == state, "{event:?} was ignored and changed {state:?}");
                    assert!(state.outcome().is_none() || command.is_none(), "{event:?} restarted an ended operation");
                }
                let event = rng.pick(&EVENTS).expect("events").clone();
                state = step(state, event, NOW_MS).0;
            }
        });
    }
}
