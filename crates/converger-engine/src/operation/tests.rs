//! Stories about single operations: events, and the commands that follow.

use converger_core::apply::{
    EnvFault, EnvFaultKind, EnvResponse, Fact, GuestAddress, JournalRecord, LiveStatus, ObservedTask, OperationHistory, Outcome,
    ReleaseCondition, SendResult, TaskState,
};

use super::*;
use crate::testing::*;

mod clones;
mod random;
mod recovery;
mod refusals;

/// A fixed time, 1,000,000 s after 1970.
pub(super) const NOW_MS: u64 = 1_000_000_000;

/// A short name for a command.
pub(super) fn command_word(command: Option<&OperationCommand>) -> String {
    match command {
        None => "-".into(),
        Some(OperationCommand::Commit(record)) => match &**record {
            JournalRecord::Intent { .. } => "commit intent".into(),
            JournalRecord::Sending { .. } => "commit sending".into(),
            JournalRecord::TaskStarted { .. } => "commit tasked".into(),
            JournalRecord::Ended { .. } => "commit ended".into(),
            JournalRecord::Resolved { .. } => "commit resolved".into(),
        },
        Some(OperationCommand::Request(request)) => request.word().into(),
        Some(OperationCommand::Mark) => "mark".into(),
        Some(OperationCommand::RecheckHolds) => "clear".into(),
        Some(OperationCommand::FindTaskOwners(_)) => "whose".into(),
        Some(OperationCommand::Wait(_)) => "wait".into(),
    }
}

/// The end: `done`, or the end with its code and release condition.
pub(super) fn render_end(state: &OperationState) -> String {
    match state.outcome() {
        None => "in flight".into(),
        Some(Outcome::Done(_)) => "done".into(),
        Some(Outcome::Held { code, release, .. }) => format!("held {code} ({})", release.word()),
        Some(outcome) => format!("{} {}", outcome.end().word(), outcome.code().expect("a code")),
    }
}

pub(super) fn new_operation(change: &str) -> OperationState {
    let (operation, context) = last_step_for(change);
    OperationState::new(operation, context, Patience::default())
}

/// Feeds these events, and returns the command after each.
pub(super) fn feed_events(mut state: OperationState, events: &[OperationEvent]) -> (OperationState, Vec<String>) {
    let mut trace = Vec::new();
    for event in events {
        let (next, command) = step(state, event.clone(), NOW_MS);
        trace.push(command_word(command.as_ref()));
        state = next;
    }
    (state, trace)
}

/// Answers each request in turn. Commits succeed, nothing prevents sending, and waits end at once.
pub(super) fn play_responses(state: OperationState, answers: &[EnvResponse]) -> (OperationState, Vec<String>) {
    play_responses_at(NOW_MS, state, answers)
}

/// The same at another time.
pub(super) fn play_responses_at(now_ms: u64, state: OperationState, answers: &[EnvResponse]) -> (OperationState, Vec<String>) {
    let (mut state, mut command) = step(state, OperationEvent::Begin, now_ms);
    let mut answers = answers.iter();
    let mut trace = vec![command_word(command.as_ref())];
    while let Some(next) = command {
        let event = match next {
            OperationCommand::Commit(_) | OperationCommand::Mark => OperationEvent::Committed,
            OperationCommand::RecheckHolds => OperationEvent::SendAllowed,
            OperationCommand::FindTaskOwners(_) => OperationEvent::TaskOwnersFound(Vec::new()),
            OperationCommand::Wait(_) => OperationEvent::Woken,
            OperationCommand::Request(_) => match answers.next() {
                Some(answer) => OperationEvent::Responded(answer.clone()),
                None => break,
            },
        };
        let (after, next_command) = step(state, event, now_ms);
        state = after;
        command = next_command;
        if !matches!(
            command,
            Some(OperationCommand::Wait(_) | OperationCommand::Mark | OperationCommand::RecheckHolds | OperationCommand::FindTaskOwners(_))
        ) {
            trace.push(command_word(command.as_ref()));
        }
    }
    (state, trace)
}

#[track_caller]
pub(super) fn check_story(change: &str, answers: &[EnvResponse], trace: &str, ends: &str) -> OperationState {
    let (state, actual_trace) = play_responses(new_operation(change), answers);
    assert_eq!((actual_trace.join(", ").as_str(), render_end(&state).as_str()), (trace, ends), "{change}");
    state
}

const CHECK_TRACE: &str = "commit intent, cluster, status, config, send";

/// The responses before a change is sent, and more.
pub(super) fn check_responses(state: &str, more: &[EnvResponse]) -> Vec<EnvResponse> {
    [&[cluster_response(), status_response(state), config_response(2)], more].concat()
}

#[test]
fn start_is_recorded_checked_sent_polled_and_verified() {
    let answers = check_responses(
        "stopped",
        &[task_sent_response(), EnvResponse::Task(TaskState::Running), task_ended_response(), status_response("running")],
    );
    let expected_trace = format!("{CHECK_TRACE}, commit tasked, task, task, status, commit ended, -");
    let state = check_story("start", &answers, &expected_trace, "done");
    assert_eq!(state.outcome().expect("ended").findings().evidence.get("task"), Some(&Fact::from("T1")));
    assert_eq!(state.outcome().expect("ended").findings().observed.get("run_state"), Some(&Fact::from("running")));
    assert!(state.is_recorded());
}

#[test]
fn g11_requests_nothing_before_the_intent_is_durable() {
    let (state, trace) = feed_events(
        new_operation("start"),
        &[OperationEvent::Begin, OperationEvent::Woken, OperationEvent::Responded(cluster_response()), OperationEvent::Begin],
    );
    assert_eq!(trace, ["commit intent", "-", "-", "-"]);
    let (_, trace) = feed_events(state, &[OperationEvent::Committed]);
    assert_eq!(trace, ["cluster"]);
}

#[test]
fn g11_failed_intent_ends_the_operation_before_any_request() {
    let repeated = CommitFailure::Repeated(last_step_for("start").0.id);
    for (why, ends) in [
        (CommitFailure::Failed("disk full".into()), "not-run journal-unwritable"),
        (CommitFailure::Refused(Refusal::guest_held_by_person("ann", "maintenance")), "refused guest-held"),
        (CommitFailure::Refused(Refusal::changes_frozen("audit week")), "refused frozen"),
        (repeated, "not-run request-repeated"),
    ] {
        let (state, trace) =
            feed_events(new_operation("start"), &[OperationEvent::Begin, OperationEvent::NotCommitted(why), OperationEvent::Committed]);
        assert_eq!((trace.join(", ").as_str(), render_end(&state).as_str()), ("commit intent, -, -", ends));
        assert!(!state.is_recorded(), "nothing was written: {ends}");
    }
}

/// Decision 0016: a change without a mark was not sent.
#[test]
fn sends_nothing_before_its_mark_and_marks_again_after_a_recheck() {
    let (state, _) = play_responses(new_operation("start"), &[cluster_response(), status_response("stopped")]);
    let checked = OperationEvent::Responded(config_response(2));
    for event in [OperationEvent::SendAllowed, OperationEvent::Woken, OperationEvent::Responded(task_sent_response())] {
        let (_, trace) = feed_events(state.clone(), &[checked.clone(), event.clone()]);
        assert_eq!(trace, ["mark", "-"], "{event:?}");
    }
    let busy = OperationEvent::Responded(EnvResponse::Sent(SendResult::NotDelivered(test_fault(EnvFaultKind::Busy))));
    let again = [OperationEvent::Responded(cluster_response()), OperationEvent::Responded(status_response("stopped")), checked.clone()];
    let events = [
        &[checked.clone(), OperationEvent::Committed, OperationEvent::SendAllowed, busy],
        &again[..],
        &[OperationEvent::Committed, OperationEvent::SendAllowed],
    ]
    .concat();
    let (_, trace) = feed_events(state.clone(), &events);
    assert_eq!(trace, ["mark", "clear", "send", "cluster", "status", "config", "mark", "clear", "send"]);
    let failed = OperationEvent::NotCommitted(CommitFailure::Failed("disk full".into()));
    let (state, trace) = feed_events(state, &[checked, failed, OperationEvent::Committed]);
    assert_eq!((trace.join(", ").as_str(), render_end(&state).as_str()), ("mark, commit ended, -", "not-run journal-unwritable"));
}

#[test]
fn config_write_is_synchronous_and_carries_the_checked_revision() {
    let (state, _) = play_responses(new_operation("config.set"), &[cluster_response(), status_response("stopped")]);
    let (state, command) = step(state, OperationEvent::Responded(config_response(2)), NOW_MS);
    assert_eq!(command, Some(OperationCommand::Mark));
    let (state, command) = step(state, OperationEvent::Committed, NOW_MS);
    assert_eq!(command, Some(OperationCommand::RecheckHolds));
    let (_, command) = step(state, OperationEvent::SendAllowed, NOW_MS);
    let Some(OperationCommand::Request(EnvRequest::Send { revision, .. })) = command else { panic!("{command:?}") };
    assert_eq!(revision.as_ref().map(ConfigRevision::as_str), Some("0fe8"));
    let answers = check_responses("stopped", &[EnvResponse::Sent(SendResult::Done), config_response(4)]);
    check_story("config.set", &answers, &format!("{CHECK_TRACE}, config, commit ended, -"), "done");
}

#[test]
fn config_pending_restart_is_done() {
    let answers = check_responses("running", &[EnvResponse::Sent(SendResult::Done), pending_config_response()]);
    let state = check_story("config.set running", &answers, &format!("{CHECK_TRACE}, config, commit ended, -"), "done");
    let observed = &state.outcome().expect("ended").findings().observed;
    assert_eq!(observed.get("pending_restart"), Some(&Fact::Words(Box::new(["cores".into()]))));
}

#[test]
fn unexpected_pending_config_is_a_broken_promise() {
    let mut answers = check_responses("stopped", &[EnvResponse::Sent(SendResult::Done)]);
    answers.extend(std::iter::repeat_n(pending_config_response(), 100));
    let (state, _) = play_responses(new_operation("config.set"), &answers);
    assert_eq!(render_end(&state), "failed promise-broken");
    let observed = &state.outcome().expect("ended").findings().observed;
    assert_eq!(observed.get("pending_restart"), Some(&Fact::Words(Box::new(["cores".into()]))), "it was written and is pending");
}

#[test]
fn reboot_is_done_when_the_guest_is_up_and_nothing_is_pending() {
    let up = |secs| EnvResponse::Status(live_status("running", secs));
    let before = [cluster_response(), up(1000), pending_config_response(), task_sent_response(), task_ended_response()];
    let cases: [(&[EnvResponse], &str); 3] = [
        (&[status_response("stopped"), pending_config_response(), up(3), config_response(4)], "done"),
        (&[up(3), pending_config_response()], "in flight"),
        (&[up(1001), config_response(4)], "in flight"),
    ];
    for (after, ends) in cases {
        let (state, _) = play_responses(new_operation("reboot"), &[&before, after].concat());
        assert_eq!(render_end(&state), ends, "{after:?}");
    }
}

#[test]
fn reboot_without_effect_is_a_broken_promise() {
    let up = EnvResponse::Status(live_status("running", 5000));
    let mut answers =
        vec![cluster_response(), status_response("running"), pending_config_response(), task_sent_response(), task_ended_response()];
    answers.extend(std::iter::repeat_n([up, config_response(4)], 200).flatten());
    let (state, _) = play_responses(new_operation("reboot"), &answers);
    assert_eq!(render_end(&state), "failed promise-broken");
}

/// A guest that is down after its reboot, with these start tasks in the list, and the result of the last one.
fn down_after_reboot(starts: &[ObservedTask], start: Option<TaskState>) -> (OperationState, Vec<String>) {
    let up = EnvResponse::Status(live_status("running", 1000));
    let reboot = EnvResponse::Task(TaskState::Ended { warnings: 0, age_secs: Some(5) });
    let mut answers = vec![cluster_response(), up, pending_config_response(), task_sent_response(), reboot];
    answers.extend(std::iter::repeat_n([status_response("stopped"), config_response(4)], 8).flatten());
    for _ in 0..200 {
        answers.extend([status_response("stopped"), config_response(4), EnvResponse::Tasks(starts.to_vec())]);
        answers.extend(start.clone().map(EnvResponse::Task));
    }
    play_responses(new_operation("reboot"), &answers)
}

/// The node starts a rebooted guest with another task. If that fails the guest stays down, and waiting does not help.
#[test]
fn reboot_names_the_failed_start_task() {
    let by_the_node = |name: &str, age_secs| ObservedTask { is_ours: false, ..ended_task(name, age_secs) };
    let too_many = EnvFault::new(EnvFaultKind::Other, "other", "MAX 2 vcpus allowed per VM on this node");
    let failed = || Some(TaskState::Failed { cause: too_many.clone(), age_secs: None });
    let (state, trace) = down_after_reboot(&[by_the_node("T0", 90), by_the_node("T2", 3)], failed());
    assert_eq!(render_end(&state), "failed guest-left-down");
    assert_eq!(trace.iter().filter(|command| *command == "tasks").count(), 1, "it is reported at once: {trace:?}");
    let findings = state.outcome().expect("ended").findings();
    let expected = Evidence::default().with("task", "T1").with("start_task", "T2").with("cause", "other");
    assert_eq!(findings.evidence, expected.with("said", "MAX 2 vcpus allowed per VM on this node"));
    assert_eq!(findings.observed.get("run_state"), Some(&"stopped".into()));
}

/// A start from before the reboot says nothing about it, and one that is running or succeeded is not the reason why the guest is down.
#[test]
fn waits_for_a_guest_that_is_down_without_a_failed_start() {
    for (starts, start) in [
        (vec![ended_task("T0", 90)], None),
        (vec![], None),
        (vec![running_task("T2"), ended_task("T0", 3)], None),
        (vec![ended_task("T2", 3)], Some(TaskState::Ended { warnings: 0, age_secs: None })),
        (vec![ended_task("T2", 3)], Some(TaskState::Lost(test_fault(EnvFaultKind::Other)))),
    ] {
        let (state, trace) = down_after_reboot(&starts, start);
        assert_eq!(render_end(&state), "failed guest-left-down", "{starts:?}");
        assert!(trace.iter().filter(|command| *command == "tasks").count() > 20, "{starts:?}: until the timeout");
        assert_eq!(state.outcome().expect("ended").findings().evidence.get("start_task"), None);
    }
}

/// The second half of a restart by stop and start.
#[test]
fn failed_start_in_a_restart_reports_guest_left_down() {
    let (mut operation, context) = last_step_for("start");
    operation.step.reason = last_step_for("reboot").0.step.reason;
    let failed = EnvResponse::Task(TaskState::Failed { cause: test_fault(EnvFaultKind::Other), age_secs: None });
    let answers = [
        cluster_response(),
        status_response("stopped"),
        config_response(2),
        task_sent_response(),
        failed,
        status_response("stopped"),
        config_response(2),
    ];
    let (state, _) = play_responses(OperationState::new(operation, context, Patience::default()), &answers);
    assert_eq!(render_end(&state), "failed guest-left-down");
}

#[test]
fn verifies_the_promise_by_reading() {
    let mut answers = check_responses("stopped", &[task_sent_response(), task_ended_response()]);
    answers.extend(std::iter::repeat_n(status_response("stopped"), 100));
    let (state, _) = play_responses(new_operation("start"), &answers);
    assert_eq!(render_end(&state), "failed promise-broken");
    let mut paused = check_responses("stopped", &[task_sent_response(), task_ended_response()]);
    paused.extend(std::iter::repeat_n(status_response("io-error"), 100));
    assert_eq!(render_end(&play_responses(new_operation("start"), &paused).0), "failed promise-broken");
}

#[test]
fn failed_task_is_done_if_the_promise_holds() {
    let failed = |fault_kind| EnvResponse::Task(TaskState::Failed { cause: test_fault(fault_kind), age_secs: None });
    let answers = check_responses("stopped", &[task_sent_response(), failed(EnvFaultKind::Other), status_response("running")]);
    let state = check_story("start", &answers, &format!("{CHECK_TRACE}, commit tasked, task, status, commit ended, -"), "done");
    assert_eq!(state.outcome().expect("ended").findings().evidence.get("task_error"), Some(&Fact::from("some words")));
    let answers = check_responses("stopped", &[task_sent_response(), failed(EnvFaultKind::Locked), status_response("stopped")]);
    check_story("start", &answers, &format!("{CHECK_TRACE}, commit tasked, task, status, commit ended, -"), "failed task-failed");
}

#[test]
fn timed_out_shutdown_is_held_and_never_escalates() {
    let timeout = EnvResponse::Task(TaskState::Failed { cause: test_fault(EnvFaultKind::ShutdownTimeout), age_secs: None });
    let answers = check_responses("running", &[task_sent_response(), timeout, status_response("running")]);
    let expected_trace = format!("{CHECK_TRACE}, commit tasked, task, status, commit ended, -");
    check_story("shutdown", &answers, &expected_trace, "held shutdown-timeout (reading)");
}

#[test]
fn overdue_task_is_held_after_bounded_polling() {
    for (change, from) in [("start", "stopped"), ("shutdown", "running"), ("stop", "running")] {
        let mut answers = check_responses(from, &[task_sent_response()]);
        answers.extend(std::iter::repeat_n(EnvResponse::Task(TaskState::Running), 1000));
        let (state, trace) = play_responses(new_operation(change), &answers);
        assert_eq!(render_end(&state), "held task-overdue (reading)", "{change}");
        assert!(trace.len() < 200, "{change}: {} transitions", trace.len());
    }
}

#[test]
fn lost_task_is_done_only_if_an_idempotent_promise_holds() {
    let lost_response = EnvResponse::Task(TaskState::Lost(test_fault(EnvFaultKind::Other)));
    let expected_trace = format!("{CHECK_TRACE}, commit tasked, task, status, commit ended, -");
    check_story(
        "start",
        &check_responses("stopped", &[task_sent_response(), lost_response.clone(), status_response("running")]),
        &expected_trace,
        "done",
    );
    check_story(
        "start",
        &check_responses("stopped", &[task_sent_response(), lost_response.clone(), status_response("stopped")]),
        &expected_trace,
        "held task-lost (reading)",
    );
    let fresh_boot = [EnvResponse::Status(live_status("running", 3)), config_response(4)];
    let answers = [
        &[cluster_response(), status_response("running"), pending_config_response(), task_sent_response(), lost_response],
        &fresh_boot[..],
    ]
    .concat();
    assert_eq!(render_end(&play_responses(new_operation("reboot"), &answers).0), "held task-lost (person)");
}

#[test]
fn undelivered_change_fails_and_rejected_change_is_refused_or_fails() {
    let expected_trace = format!("{CHECK_TRACE}, commit ended, -");
    for (fault_kind, ends) in [
        (EnvFaultKind::ConfigChanged, "refused plan-stale"),
        (EnvFaultKind::Locked, "refused guest-locked"),
        (EnvFaultKind::LockFile, "refused guest-locked"),
        (EnvFaultKind::Protected, "refused protected-guest"),
        (EnvFaultKind::NotQuorate, "refused not-quorate"),
        (EnvFaultKind::GuestNotFound, "refused guest-unknown"),
        (EnvFaultKind::Template, "refused guest-template"),
        (EnvFaultKind::HaOwned, "refused ha-owned"),
        (EnvFaultKind::Unsupported, "refused unsupported-change"),
        (EnvFaultKind::ShutdownTimeout, "failed change-rejected"),
        (EnvFaultKind::Other, "failed change-rejected"),
    ] {
        check_story(
            "start",
            &check_responses("stopped", &[EnvResponse::Sent(SendResult::Rejected(test_fault(fault_kind)))]),
            &expected_trace,
            ends,
        );
    }
    let lost_response = EnvResponse::Sent(SendResult::NotDelivered(test_fault(EnvFaultKind::Other)));
    check_story("start", &check_responses("stopped", &[lost_response]), &expected_trace, "failed not-delivered");
}

#[test]
fn guest_unreadable_after_sending_is_held() {
    let unread = EnvResponse::Unreadable(test_fault(EnvFaultKind::Other));
    for responses in [&[task_sent_response(), task_ended_response()][..], &[task_sent_response()][..]] {
        let mut answers = check_responses("stopped", responses);
        answers.extend(std::iter::repeat_n(unread.clone(), 1000));
        let (state, trace) = play_responses(new_operation("start"), &answers);
        assert_eq!(render_end(&state), "held outcome-unread (reading)");
        assert!(trace.len() < 100, "{} transitions", trace.len());
    }
}

#[test]
fn finds_a_guest_that_moved_after_sending() {
    let not_found = EnvResponse::GuestNotFound(test_fault(EnvFaultKind::GuestNotFound));
    let answers = check_responses(
        "stopped",
        &[
            task_sent_response(),
            task_ended_response(),
            not_found,
            EnvResponse::Located(Some(address_on("pve2"))),
            status_response("running"),
        ],
    );
    let expected_trace = format!("{CHECK_TRACE}, commit tasked, task, status, where, status, commit ended, -");
    let state = check_story("start", &answers, &expected_trace, "done");
    assert_eq!(state.address(), &address_on("pve2"));
}

#[test]
fn unrecorded_task_is_held_for_recovery() {
    let (state, _) = play_responses(new_operation("start"), &check_responses("stopped", &[]));
    let events = [
        OperationEvent::Responded(task_sent_response()),
        OperationEvent::NotCommitted(CommitFailure::Failed("disk full".into())),
        OperationEvent::Woken,
    ];
    let (state, trace) = feed_events(state, &events);
    assert_eq!((trace.join(", ").as_str(), render_end(&state).as_str()), ("commit tasked, -, -", "held journal-unwritable (reading)"));
    assert!(!state.is_recorded());
}

/// A person resolved the operation while it was being read: the findings are reported, but not as recorded.
#[test]
fn end_resolved_by_a_person_is_not_reported_as_recorded() {
    let (state, _) = play_responses(new_operation("start"), &check_responses("stopped", &[task_sent_response(), task_ended_response()]));
    let (state, trace) = feed_events(state, &[OperationEvent::Responded(status_response("running")), OperationEvent::Resolved]);
    assert_eq!((trace.join(", ").as_str(), render_end(&state).as_str(), state.is_recorded()), ("commit ended, -", "done", false));
    let observed = &state.outcome().expect("ended").findings().observed;
    assert_eq!(observed.get("resolved"), Some(&"by a person meanwhile, whose word stands".into()), "{observed:?}");
}

#[test]
fn s19_unrecorded_end_is_never_reported_as_final() {
    let (state, _) = play_responses(new_operation("start"), &check_responses("stopped", &[task_sent_response(), task_ended_response()]));
    let events =
        [OperationEvent::Responded(status_response("running")), OperationEvent::NotCommitted(CommitFailure::Failed("disk full".into()))];
    let (state, trace) = feed_events(state, &events);
    let expected_end = "held journal-unwritable (reading)";
    assert_eq!((trace.join(", ").as_str(), render_end(&state).as_str(), state.is_recorded()), ("commit ended, -", expected_end, false));
    let findings = state.outcome().expect("ended").findings();
    assert_eq!(findings.evidence, Evidence::default().with("found", "done").with("said", "disk full").with("task", "T1"));
    assert_eq!(findings.observed, Evidence::default().with("run_state", "running"));
}
