//! After a lost response or a crash: the result is found by reading, and the change is never sent again.

use converger_core::action::Change;
use converger_core::apply::{BootId, ObservedTask, OperationEnd, OperationId};
use converger_core::guest::GuestIdentity;

use super::*;

/// The history of an operation with its intent, and its task if one is given.
fn open_history(change: &str, task: Option<&str>) -> OperationHistory {
    let (operation, _) = last_step_for(change);
    let id = operation.id.clone();
    let mut history = OperationHistory::from_intent(Box::new(operation), NOW_MS);
    if let Some(task) = task {
        history.add_record(JournalRecord::TaskStarted { id, task: test_task_id(task), at_ms: NOW_MS }).expect("legal");
    }
    history
}

fn held_history(change: &str, task: Option<&str>, release: ReleaseCondition) -> OperationHistory {
    let mut history = open_history(change, task);
    let outcome = Outcome::new_held(FailureCode::OutcomeUnread, release, Findings::default());
    let id: OperationId = history.operation.id.clone();
    history.add_record(JournalRecord::Ended { id, outcome, at_ms: NOW_MS }).expect("legal");
    history
}

/// The machine was restarted since, and has been up for a long time.
fn uptime_after_reboot() -> Uptime {
    uptime_of_boot("boot-2", u64::MAX)
}

fn uptime_of_boot(boot: &str, ms: u64) -> Uptime {
    Uptime { boot: BootId::new(boot).expect("an id"), ms }
}

#[track_caller]
fn check_recovery(history: OperationHistory, answers: &[EnvResponse], trace: &str, ends: &str) -> OperationState {
    let state =
        OperationState::recover(history, Patience::default(), Some(&uptime_after_reboot())).expect("there is something to find out");
    let (state, actual_trace) = play_responses(state, answers);
    assert_eq!((actual_trace.join(", ").as_str(), render_end(&state).as_str()), (trace, ends));
    assert!(!actual_trace.contains(&"send".to_owned()));
    state
}

fn tasks_response(tasks: &[ObservedTask]) -> EnvResponse {
    EnvResponse::Tasks(tasks.to_vec())
}

#[test]
fn s2_never_resends_after_a_lost_response() {
    let lost_response = || EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other)));
    let found = tasks_response(&[running_task("T1")]);
    let answers = check_responses("stopped", &[lost_response(), found, task_ended_response(), status_response("running")]);
    let expected_trace = "commit intent, cluster, status, config, send, tasks, commit tasked, task, status, commit ended, -";
    let state = check_story("start", &answers, expected_trace, "done");
    assert_eq!(state.task(), Some(&test_task_id("T1")));
    let answers = check_responses("stopped", &[lost_response(), tasks_response(&[]), status_response("running")]);
    check_story("start", &answers, "commit intent, cluster, status, config, send, tasks, status, commit ended, -", "done");
}

#[test]
fn mismatched_response_counts_as_lost() {
    let answers = check_responses("stopped", &[status_response("running"), tasks_response(&[]), status_response("running")]);
    check_story("start", &answers, "commit intent, cluster, status, config, send, tasks, status, commit ended, -", "done");
}

#[test]
fn change_without_trace_fails_after_repeated_lookups() {
    let mut answers = check_responses("stopped", &[EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other)))]);
    answers.extend(std::iter::repeat_n([tasks_response(&[]), status_response("stopped")], 20).flatten());
    let (state, trace) = play_responses(new_operation("start"), &answers);
    assert_eq!(render_end(&state), "failed not-carried-out");
    assert_eq!(trace.iter().filter(|command| *command == "tasks").count(), Patience::default().lookup_waits_ms.len() + 1);
    assert!(Patience::default().lookup_waits_ms.iter().sum::<u64>() > 30_000, "a hung daemon acts half a minute late");
}

/// The first operation on a guest failed a moment ago, and the response to the next one is lost: the recent task of the first is not
/// adopted.
#[test]
fn s2_does_not_adopt_a_task_of_another_operation() {
    let lost_response = EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other)));
    let both = tasks_response(&[ended_task("T1", 0), running_task("T2")]);
    let play_with_owners = |answers: &[EnvResponse], tasks_of_others: &[&str]| {
        let (mut state, mut answers) = (new_operation("start"), answers.iter());
        let (mut event, mut owner_queries) = (OperationEvent::Begin, Vec::new());
        loop {
            let (next, command) = step(state, event, NOW_MS);
            state = next;
            event = match command {
                Some(OperationCommand::FindTaskOwners(tasks)) => {
                    owner_queries.push(tasks);
                    OperationEvent::TaskOwnersFound(tasks_of_others.iter().map(|name| test_task_id(name)).collect())
                }
                Some(OperationCommand::Commit(_) | OperationCommand::Mark) => OperationEvent::Committed,
                Some(OperationCommand::RecheckHolds) => OperationEvent::SendAllowed,
                Some(OperationCommand::Wait(_)) => OperationEvent::Woken,
                Some(OperationCommand::Request(_)) => match answers.next() {
                    Some(answer) => OperationEvent::Responded(answer.clone()),
                    None => return (state, owner_queries),
                },
                None => return (state, owner_queries),
            };
        }
    };
    let (state, owner_queries) = play_with_owners(
        &check_responses("stopped", &[lost_response.clone(), both.clone(), task_ended_response(), status_response("running")]),
        &["T1"],
    );
    assert_eq!((state.task(), render_end(&state).as_str()), (Some(&test_task_id("T2")), "done"));
    assert_eq!(owner_queries, [[test_task_id("T1"), test_task_id("T2")]]);
    let (state, _) = play_with_owners(&check_responses("stopped", &[lost_response.clone(), both.clone()]), &[]);
    assert_eq!(render_end(&state), "held outcome-unclear (person)", "two tasks without an owner cannot be distinguished");
    let only = tasks_response(&[ended_task("T1", 0)]);
    let mut answers = check_responses("stopped", &[lost_response]);
    answers.extend(std::iter::repeat_n([only, status_response("stopped")], 20).flatten());
    let (state, owner_queries) = play_with_owners(&answers, &["T1"]);
    assert_eq!((state.task(), render_end(&state).as_str()), (None, "failed not-carried-out"));
    assert_eq!(owner_queries.len(), Patience::default().lookup_waits_ms.len() + 1, "the search takes as long as without these tasks");
}

#[test]
fn adopts_no_task_while_the_journal_is_unreadable() {
    let found = tasks_response(&[running_task("T1")]);
    let mut state = OperationState::recover(open_history("start", None), Patience::default(), Some(&uptime_after_reboot())).expect("open");
    let mut event = OperationEvent::Begin;
    let mut waited = 0;
    while state.outcome().is_none() {
        let (next, command) = step(state, event, NOW_MS + waited);
        state = next;
        event = match command {
            Some(OperationCommand::FindTaskOwners(_)) => OperationEvent::TaskOwnersUnreadable("the file is locked".into()),
            Some(OperationCommand::Wait(ms)) => {
                waited += ms;
                OperationEvent::Woken
            }
            Some(OperationCommand::Request(_)) => OperationEvent::Responded(found.clone()),
            _ => OperationEvent::Committed,
        };
    }
    assert_eq!((state.task(), render_end(&state).as_str()), (None, "held outcome-unread (reading)"));
}

#[test]
fn adopts_a_task_that_appears_late() {
    let mut answers = check_responses("stopped", &[EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other)))]);
    answers.extend([
        tasks_response(&[]),
        status_response("stopped"),
        tasks_response(&[]),
        status_response("stopped"),
        tasks_response(&[ended_task("T9", 0)]),
    ]);
    answers.extend([task_ended_response(), status_response("running")]);
    let (state, _) = play_responses(new_operation("start"), &answers);
    assert_eq!((render_end(&state).as_str(), state.task()), ("done", Some(&test_task_id("T9"))));
}

#[test]
fn verifies_a_lost_config_write_by_its_values() {
    let lost_response = || EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other)));
    let answers = check_responses("stopped", &[lost_response(), status_response("stopped"), config_response(4)]);
    check_story("config.set", &answers, "commit intent, cluster, status, config, send, status, config, commit ended, -", "done");
    let mut answers = check_responses("stopped", &[lost_response()]);
    answers.extend(std::iter::repeat_n([status_response("stopped"), config_response(2)], 20).flatten());
    let (state, _) = play_responses(new_operation("config.set"), &answers);
    assert_eq!(render_end(&state), "failed not-carried-out");
}

#[test]
fn several_matching_tasks_are_held_for_a_person() {
    let two = tasks_response(&[ended_task("T1", 0), ended_task("T2", 0)]);
    check_recovery(open_history("start", None), &[two], "tasks, commit ended, -", "held outcome-unclear (person)");
    let duplicate_tasks = tasks_response(&[running_task("T1"), ended_task("T1", 0)]);
    check_recovery(
        open_history("start", None),
        &[duplicate_tasks, task_ended_response(), status_response("running"), config_response(2)],
        RECOVERY_TRACE,
        "done",
    );
}

/// The token may have changed since the crash, so a task of another user may be the change that was sent.
#[test]
fn g13_foreign_task_prevents_the_verdict_not_carried_out() {
    let of_others = |has_ended: bool| {
        let task = if has_ended { ended_task("T1", 0) } else { running_task("T1") };
        tasks_response(&[ObservedTask { is_ours: false, ..task }])
    };
    let recovery_end = |task: &dyn Fn() -> EnvResponse, state: &str| {
        let responses =
            std::iter::repeat_with(|| [task(), status_response(state), config_response(2)]).take(20).flatten().collect::<Vec<_>>();
        let state = OperationState::recover(open_history("start", None), Patience::default(), Some(&uptime_after_reboot()))
            .expect("there is something to find out");
        let (state, trace) = play_responses_at(NOW_MS + LATE_ARRIVAL_MS, state, &responses);
        assert!(!trace.contains(&"send".to_owned()) && state.task().is_none(), "{trace:?}");
        render_end(&state)
    };
    assert_eq!(recovery_end(&|| of_others(false), "stopped"), "held outcome-unclear (reading)");
    assert_eq!(recovery_end(&|| of_others(true), "stopped"), "held outcome-unclear (person)");
    assert_eq!(recovery_end(&|| of_others(false), "running"), "done");
    assert_eq!(
        recovery_end(&|| tasks_response(&[ObservedTask { is_ours: false, ..ended_task("T1", 200) }]), "stopped"),
        "failed not-carried-out"
    );
    let both = tasks_response(&[ObservedTask { is_ours: false, ..running_task("T1") }, running_task("T2")]);
    let state = check_recovery(
        open_history("start", None),
        &[both, task_ended_response(), status_response("running"), config_response(2)],
        RECOVERY_TRACE,
        "done",
    );
    assert_eq!(state.task(), Some(&test_task_id("T2")), "a task that is provably ours is adopted");
}

#[test]
fn live_process_adopts_no_foreign_task() {
    let mut answers = check_responses("stopped", &[EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other)))]);
    let of_others = || tasks_response(&[ObservedTask { is_ours: false, ..ended_task("T1", 0) }]);
    answers.extend(std::iter::repeat_with(|| [of_others(), status_response("stopped")]).take(20).flatten());
    let (state, _) = play_responses(new_operation("start"), &answers);
    assert_eq!((render_end(&state).as_str(), state.task()), ("failed not-carried-out", None));
}

const RECOVERY_TRACE: &str = "tasks, commit tasked, task, status, config, commit ended, -";

#[test]
fn adopts_a_running_task_but_not_one_that_ended_before_the_intent() {
    let old = tasks_response(&[ended_task("T1", 60)]);
    check_recovery(
        open_history("start", None),
        &[old, status_response("running"), config_response(2)],
        "tasks, status, config, commit ended, -",
        "done",
    );
    let running_response = tasks_response(&[running_task("T1")]);
    check_recovery(
        open_history("start", None),
        &[running_response, task_ended_response(), status_response("running"), config_response(2)],
        RECOVERY_TRACE,
        "done",
    );
}

/// A guest with a long history has more tasks than a list returns: only tasks that can be ours are requested.
#[test]
fn lists_tasks_from_the_intent_on() {
    let state =
        OperationState::recover(open_history("start", None), Patience::default(), Some(&uptime_after_reboot())).expect("it is open");
    let (_, command) = step(state, OperationEvent::Begin, NOW_MS + 86_400_000);
    let Some(OperationCommand::Request(EnvRequest::Tasks { age_secs_max, .. })) = command else { panic!("{command:?}") };
    assert_eq!(age_secs_max, 86_410, "includes the clock skew");
}

/// The age is measured by the clock of the node, however far it is from ours.
#[test]
fn adopts_an_ended_task_no_older_than_the_intent() {
    for (age_secs, expected_trace) in [
        (0, RECOVERY_TRACE),
        (10, RECOVERY_TRACE),
        (11, "tasks, status, config, commit ended, -"),
        (3600, "tasks, status, config, commit ended, -"),
    ] {
        let rest = if expected_trace == RECOVERY_TRACE {
            vec![task_ended_response(), status_response("running"), config_response(2)]
        } else {
            vec![status_response("running"), config_response(2)]
        };
        check_recovery(
            open_history("start", None),
            &[vec![tasks_response(&[ended_task("T1", age_secs)])], rest].concat(),
            expected_trace,
            "done",
        );
    }
}

#[test]
fn waits_for_the_task_of_an_open_operation() {
    let answers = [EnvResponse::Task(TaskState::Running), task_ended_response(), status_response("running"), config_response(2)];
    check_recovery(open_history("start", Some("T1")), &answers, "task, task, status, config, commit ended, -", "done");
}

#[test]
fn unknown_reboot_is_held_for_a_person() {
    let answers = [tasks_response(&[]), status_response("running"), config_response(4)];
    check_recovery(open_history("reboot", None), &answers, "tasks, status, config, commit ended, -", "held outcome-unclear (person)");
    let lost_response = || EnvResponse::Sent(SendResult::MaybeExecuted(test_fault(EnvFaultKind::Other)));
    let sent = [cluster_response(), status_response("running"), pending_config_response(), lost_response(), tasks_response(&[])];
    let done = [EnvResponse::Status(live_status("running", 1)), config_response(4)];
    assert_eq!(render_end(&play_responses(new_operation("reboot"), &[&sent[..], &done].concat()).0), "held outcome-unclear (person)");
}

fn task_ended_with_age(age_secs: u64) -> EnvResponse {
    EnvResponse::Task(TaskState::Ended { warnings: 0, age_secs: Some(age_secs) })
}

/// The task succeeded, and the uptime of the guest is shorter than the age of the task: the guest was restarted by it. Readings from
/// before the crash are not needed.
#[test]
fn known_reboot_task_is_verified_by_a_shorter_uptime() {
    let up = |secs| EnvResponse::Status(live_status("running", secs));
    let responses = [task_ended_with_age(60), up(59), config_response(4)];
    let state = check_recovery(open_history("reboot", Some("T1")), &responses, "task, status, config, commit ended, -", "done");
    let observed = &state.outcome().expect("ended").findings().observed;
    assert_eq!((observed.get("uptime_secs"), observed.get("task_age_secs")), (Some(&Fact::from(59)), Some(&Fact::from(60))));
    let found = [tasks_response(&[ended_task("T1", 0)]), task_ended_with_age(60), up(3), config_response(4)];
    check_recovery(open_history("reboot", None), &found, RECOVERY_TRACE, "done");
}

/// If the uptime is as long as the age of the task or longer, the restart is not proven. Without a task another user may have restarted
/// the guest, and after a lost task the effect is unknown.
#[test]
fn unproven_reboot_is_held_for_a_person() {
    let up = |secs| EnvResponse::Status(live_status("running", secs));
    let expected_trace = "task, status, config, commit ended, -";
    let tasked = || open_history("reboot", Some("T1"));
    for responses in [[task_ended_with_age(60), up(60), config_response(4)], [task_ended_with_age(60), up(1000), config_response(4)]] {
        check_recovery(tasked(), &responses, expected_trace, "held outcome-unclear (person)");
    }
    let nobodys = [tasks_response(&[]), up(3), config_response(4)];
    check_recovery(open_history("reboot", None), &nobodys, "tasks, status, config, commit ended, -", "held outcome-unclear (person)");
    let lost_response = EnvResponse::Task(TaskState::Lost(test_fault(EnvFaultKind::Other)));
    check_recovery(tasked(), &[lost_response, up(3), config_response(4)], expected_trace, "held task-lost (person)");
    let mut waiting = vec![task_ended_with_age(60)];
    waiting.extend(std::iter::repeat_n([up(3), pending_config_response()], 200).flatten());
    let state = OperationState::recover(tasked(), Patience::default(), Some(&uptime_after_reboot())).expect("open");
    assert_eq!(render_end(&play_responses(state, &waiting).0), "failed promise-broken", "the config of the restart is still pending");
    let mut taken_back = vec![task_ended_with_age(60)];
    taken_back.extend(std::iter::repeat_n([up(3), config_response(2)], 200).flatten());
    let state = OperationState::recover(tasked(), Patience::default(), Some(&uptime_after_reboot())).expect("open");
    assert_eq!(
        render_end(&play_responses(state, &taken_back).0),
        "failed promise-broken",
        "the config of the restart is neither pending nor in effect"
    );
}

fn failed_of_age(fault_kind: EnvFaultKind, age_secs: Option<u64>) -> EnvResponse {
    EnvResponse::Task(TaskState::Failed { cause: test_fault(fault_kind), age_secs })
}

/// What this recovery cannot read the next one may: a person is not needed yet.
#[test]
fn partly_unreadable_reboot_is_read_again() {
    let expected_trace = "task, status, config, commit ended, -";
    let no_uptime = || EnvResponse::Status(LiveStatus { uptime_secs: None, ..live_status("running", 0) });
    let (clock, uptime) = ("age of the task: the clock of its node", "uptime of the guest");
    for (task, status, missing) in [
        (task_ended_response(), EnvResponse::Status(live_status("running", 3)), clock),
        (failed_of_age(EnvFaultKind::Other, None), EnvResponse::Status(live_status("running", 3)), clock),
        (task_ended_with_age(60), no_uptime(), uptime),
        (failed_of_age(EnvFaultKind::Other, Some(60)), no_uptime(), uptime),
    ] {
        let answers = [task, status, config_response(4)];
        let state = check_recovery(open_history("reboot", Some("T1")), &answers, expected_trace, "held outcome-unclear (reading)");
        let observed = &state.outcome().expect("ended").findings().observed;
        assert_eq!(observed.get("unread"), Some(&missing.into()), "{answers:?}");
    }
}

/// A failed reboot that is found after a crash: only its task was recorded.
#[test]
fn failed_reboot_is_settled_by_its_task_age() {
    let expected_trace = "task, status, config, commit ended, -";
    let up = |secs| EnvResponse::Status(live_status("running", secs));
    let restarted = [failed_of_age(EnvFaultKind::ShutdownTimeout, Some(60)), up(3), config_response(4)];
    let state = check_recovery(open_history("reboot", Some("T1")), &restarted, expected_trace, "done");
    assert_eq!(state.outcome().expect("ended").findings().evidence.get("task_error"), Some(&"some words".into()));
    for (fault_kind, ends) in
        [(EnvFaultKind::Locked, "failed task-failed"), (EnvFaultKind::ShutdownTimeout, "held shutdown-timeout (reading)")]
    {
        let responses = [failed_of_age(fault_kind, Some(60)), up(1000), pending_config_response()];
        check_recovery(open_history("reboot", Some("T1")), &responses, expected_trace, ends);
    }
}

/// A reboot that timed out, as its run left it in the journal.
fn reboot_that_timed_out() -> OperationHistory {
    let up = |secs| EnvResponse::Status(live_status("running", secs));
    let timeout = failed_of_age(EnvFaultKind::ShutdownTimeout, Some(60));
    let answers =
        [cluster_response(), up(1000), pending_config_response(), task_sent_response(), timeout, up(1060), pending_config_response()];
    let (state, _) = play_responses(new_operation("reboot"), &answers);
    assert_eq!(render_end(&state), "held shutdown-timeout (reading)");
    let (mut history, id) = (open_history("reboot", Some("T1")), state.operation().id.clone());
    let outcome = state.outcome().expect("ended").clone();
    history.add_record(JournalRecord::Ended { id, outcome, at_ms: NOW_MS }).expect("legal");
    history
}

/// The uptime before the reboot was recorded, and the task has ended: a later reading settles it without a person.
#[test]
fn timed_out_reboot_is_settled_by_uptimes() {
    let timeout = |age_secs| failed_of_age(EnvFaultKind::ShutdownTimeout, age_secs);
    let up = |secs| EnvResponse::Status(live_status("running", secs));
    let cases = [
        // It was restarted: shown by the age of the task, or without that by the uptime before.
        ([timeout(Some(300)), up(30), config_response(4)], "done"),
        ([timeout(Some(9000)), up(2000), config_response(4)], "done"),
        ([timeout(None), up(30), config_response(4)], "done"),
        // It was not restarted, or its pending config is still pending, or it went down and stayed down.
        ([timeout(Some(300)), up(1300), pending_config_response()], "failed shutdown-timeout"),
        ([timeout(Some(300)), up(30), pending_config_response()], "failed shutdown-timeout"),
        ([timeout(Some(300)), status_response("stopped"), config_response(4)], "failed shutdown-timeout"),
    ];
    for (answers, ends) in cases {
        check_recovery(reboot_that_timed_out(), &answers, "task, status, config, commit resolved, -", ends);
    }
    let unread = [timeout(None), up(1300), pending_config_response()];
    let state = check_recovery(reboot_that_timed_out(), &unread, "task, status, config, -", "held outcome-unclear (reading)");
    let observed = &state.outcome().expect("ended").findings().observed;
    assert_eq!(observed.get("unread"), Some(&"age of the task: the clock of its node".into()));
    assert_eq!(observed.get("uptime_before_secs"), Some(&Fact::from(1000)));
}

/// A guest that is migrated while running has a new process: its short uptime proves no restart.
#[test]
fn timed_out_reboot_is_not_done_because_the_guest_moved() {
    let not_found = EnvResponse::GuestNotFound(test_fault(EnvFaultKind::GuestNotFound));
    let moved_responses =
        [not_found, EnvResponse::Located(Some(address_on("pve2"))), EnvResponse::Status(live_status("running", 30)), config_response(4)];
    let answers = [&[failed_of_age(EnvFaultKind::ShutdownTimeout, Some(300))], &moved_responses[..]].concat();
    let expected_trace = "task, status, where, status, config, -";
    let state = check_recovery(reboot_that_timed_out(), &answers, expected_trace, "held outcome-unclear (person)");
    assert!(state.outcome().expect("ended").findings().observed.get("moved").is_some());
}

/// Even if the task outlives all patience, the run records the uptime before the reboot.
#[test]
fn overdue_reboot_records_the_uptime_before_it() {
    let mut answers =
        vec![cluster_response(), EnvResponse::Status(live_status("running", 1000)), pending_config_response(), task_sent_response()];
    answers.extend(std::iter::repeat_n(EnvResponse::Task(TaskState::Running), 1000));
    let (state, _) = play_responses(new_operation("reboot"), &answers);
    assert_eq!(render_end(&state), "held task-overdue (reading)");
    assert_eq!(state.outcome().expect("ended").findings().observed.get("uptime_before_secs"), Some(&Fact::from(1000)));
}

/// A guest takes a minute to boot. Recovery does not wait for that and reports no result; the next reading finds it up, with an uptime
/// shorter than the age of the task.
#[test]
fn l4_startup_recovery_does_not_wait_for_a_booting_guest() {
    // No start task is listed.
    let down = || [status_response("stopped"), config_response(2), tasks_response(&[])];
    let mut responses = vec![task_ended_with_age(2)];
    responses.extend(std::iter::repeat_with(|| [status_response("stopped"), config_response(2)]).take(5).flatten());
    responses.push(tasks_response(&[]));
    let brief = |history| OperationState::recover(history, Patience::default().for_startup(), Some(&uptime_after_reboot())).expect("open");
    let (ms, ends) = wait_with_responses(brief(open_history("reboot", Some("T1"))), &responses);
    assert!((1_000..2_000).contains(&ms) && ends == "held task-at-work (reading)", "{ms} {ends}");
    let again = [vec![task_ended_with_age(2)], down().into()].concat();
    let (ms, ends) = wait_with_responses(brief(held_history("reboot", Some("T1"), ReleaseCondition::Reading)), &again);
    assert_eq!((ms, ends.as_str()), (0, "held task-at-work (reading)"), "a held operation is not waited for again");
    let up = [task_ended_with_age(64), EnvResponse::Status(live_status("running", 2)), config_response(4)];
    let expected_trace = "task, status, config, commit resolved, -";
    check_recovery(held_history("reboot", Some("T1"), ReleaseCondition::Reading), &up, expected_trace, "done");
    // The shutdown timeout of the guest, a minute, and the time that it may take to boot: after that it is left down.
    let Change::Reboot { timeout_secs } = last_step_for("reboot").0.step.change else { panic!("a reboot") };
    let late_secs = u64::from(timeout_secs) + (Patience::default().slack_ms + Patience::default().reboot_ms) / 1000;
    for (age, ends) in [(late_secs - 1, "held task-at-work (reading)"), (late_secs, "failed guest-left-down")] {
        let (_, found) = wait_with_responses(
            brief(held_history("reboot", Some("T1"), ReleaseCondition::Reading)),
            &[vec![task_ended_with_age(age)], down().into()].concat(),
        );
        assert_eq!(found, ends, "{age}");
    }
    let (_, ends) = wait_with_responses(
        brief(held_history("reboot", Some("T1"), ReleaseCondition::Reading)),
        &[vec![task_ended_response()], down().into()].concat(),
    );
    assert_eq!(ends, "held task-at-work (reading)", "without the time of the environment its age is unknown");
}

/// The age of the task was read before the guest was up: the time waited since is added to it.
#[test]
fn task_age_grows_while_waiting_for_its_guest() {
    let mut responses = vec![task_ended_with_age(2)];
    responses.extend(std::iter::repeat_with(|| [status_response("stopped"), config_response(2)]).take(20).flatten());
    responses.extend([EnvResponse::Status(live_status("running", 2)), config_response(4)]);
    let state =
        OperationState::recover(open_history("reboot", Some("T1")), Patience::default(), Some(&uptime_after_reboot())).expect("open");
    let (state, _) = play_responses(state, &responses);
    let observed = &state.outcome().expect("ended").findings().observed;
    assert_eq!((render_end(&state).as_str(), observed.get("task_age_secs")), ("done", Some(&Fact::from(7))), "twenty waits of 250 ms");
    let unread = [
        task_ended_with_age(2),
        EnvResponse::Unreadable(test_fault(EnvFaultKind::Other)),
        EnvResponse::Status(live_status("running", 2)),
        config_response(4),
    ];
    let state =
        OperationState::recover(open_history("reboot", Some("T1")), Patience::default(), Some(&uptime_after_reboot())).expect("open");
    assert_eq!(render_end(&play_responses(state, &unread).0), "held outcome-unclear (person)", "250 ms do not add a second");
}

#[test]
fn different_guest_with_the_same_id_is_held_for_a_person() {
    let other = altered_config_response(|config| config.identity = GuestIdentity::Qemu { uuid: Some("other".into()), ctime: None });
    let answers = [tasks_response(&[]), status_response("running"), other];
    check_recovery(open_history("start", None), &answers, "tasks, status, config, commit ended, -", "held outcome-unclear (person)");
}

#[test]
fn reading_resolves_a_held_operation() {
    let done = [task_ended_response(), status_response("running"), config_response(2)];
    check_recovery(held_history("start", Some("T1"), ReleaseCondition::Reading), &done, "task, status, config, commit resolved, -", "done");
    let found = [tasks_response(&[ended_task("T1", 0)]), task_ended_response(), status_response("running"), config_response(2)];
    check_recovery(
        held_history("start", None, ReleaseCondition::Reading),
        &found,
        "tasks, task, status, config, commit resolved, -",
        "done",
    );
    let failed = EnvResponse::Task(TaskState::Failed { cause: test_fault(EnvFaultKind::Other), age_secs: None });
    let failed = [failed, status_response("stopped"), config_response(2)];
    check_recovery(
        held_history("start", Some("T1"), ReleaseCondition::Reading),
        &failed,
        "task, status, config, commit resolved, -",
        "failed task-failed",
    );
}

#[test]
fn unknown_outcome_stays_held_and_writes_nothing() {
    let running_responses = [EnvResponse::Task(TaskState::Running)];
    check_recovery(
        held_history("start", Some("T1"), ReleaseCondition::Reading),
        &running_responses,
        "task, -",
        "held task-at-work (reading)",
    );
    check_recovery(
        held_history("shutdown", Some("T1"), ReleaseCondition::Reading),
        &running_responses,
        "task, -",
        "held task-at-work (reading)",
    );
    let unread = vec![EnvResponse::Unreadable(test_fault(EnvFaultKind::Other)); 50];
    let state = OperationState::recover(
        held_history("config.set", None, ReleaseCondition::Reading),
        Patience::default(),
        Some(&uptime_after_reboot()),
    )
    .expect("held");
    let (state, trace) = play_responses(state, &unread);
    assert_eq!(render_end(&state), "held outcome-unread (reading)");
    assert!(trace.iter().all(|command| matches!(command.as_str(), "status" | "-")), "{trace:?}");
}

/// The total time waited until it ends, if every response is the same.
fn wait_with_one_response(state: OperationState, answer: &EnvResponse) -> (u64, String) {
    wait_with_responses(state, &vec![answer.clone(); 10_000])
}

/// The total time waited until it ends, with these responses.
fn wait_with_responses(state: OperationState, answers: &[EnvResponse]) -> (u64, String) {
    elapsed_with_responses(state, answers, 0)
}

/// The total time until it ends, if each of these responses takes `asked_ms`.
fn elapsed_with_responses(mut state: OperationState, answers: &[EnvResponse], asked_ms: u64) -> (u64, String) {
    let (mut waited, mut answers) = (0, answers.iter());
    let mut event = OperationEvent::Begin;
    loop {
        let (next, command) = step(state, event, NOW_MS + waited);
        state = next;
        event = match command {
            Some(OperationCommand::Request(_)) => {
                waited += asked_ms;
                OperationEvent::Responded(answers.next().expect("there are enough").clone())
            }
            Some(OperationCommand::Commit(_)) => OperationEvent::Committed,
            Some(OperationCommand::FindTaskOwners(_)) => OperationEvent::TaskOwnersFound(Vec::new()),
            Some(OperationCommand::Mark | OperationCommand::RecheckHolds) => panic!("a recovered operation is never sent"),
            Some(OperationCommand::Wait(ms)) => {
                waited += ms;
                OperationEvent::Woken
            }
            None => return (waited, render_end(&state)),
        };
    }
}

#[test]
fn l4_startup_recovery_bounds_waits_for_tasks_and_silent_nodes() {
    // A task is overdue only if it was waited for as long as it may take.
    let unread = "held outcome-unread (reading)";
    for (answer, ends, briefly) in [
        (EnvResponse::Task(TaskState::Running), "held task-overdue (reading)", "held task-at-work (reading)"),
        (EnvResponse::Unreadable(test_fault(EnvFaultKind::Other)), unread, unread),
    ] {
        for change in ["start", "shutdown", "reboot", "stop"] {
            let whole =
                OperationState::recover(open_history(change, Some("T1")), Patience::default(), Some(&uptime_after_reboot())).expect("open");
            let (ms, end) = wait_with_one_response(whole, &answer);
            assert!(ms >= 60_000 && end == ends, "a full patience waits at least a minute: {change} {ms} {end}");
            let brief =
                OperationState::recover(open_history(change, Some("T1")), Patience::default().for_startup(), Some(&uptime_after_reboot()))
                    .expect("open");
            let (ms, end) = wait_with_one_response(brief, &answer);
            assert!((1_000..2_000).contains(&ms) && end == briefly, "{change} {ms} {end}");
        }
    }
}

/// With a hung daemon each reading takes half a minute: the guest is held before sixty readings, and recovery reads once.
#[test]
fn l4_time_spent_on_failed_readings_counts_as_waiting() {
    let unreadable_responses = vec![EnvResponse::Unreadable(test_fault(EnvFaultKind::Other)); 10_000];
    for (task, change) in [(Some("T1"), "start"), (None, "start"), (None, "config.set"), (Some("T1"), "reboot")] {
        for (asked_ms, most_ms, briefly_ms) in [(30_000, 91_000, 30_000), (60_000, 122_000, 60_000), (1_500, 64_000, 1_500)] {
            let recovered =
                |patience| OperationState::recover(open_history(change, task), patience, Some(&uptime_after_reboot())).expect("open");
            let (ms, end) = elapsed_with_responses(recovered(Patience::default()), &unreadable_responses, asked_ms);
            assert!((60_000..=most_ms).contains(&ms) && end == "held outcome-unread (reading)", "{change} {asked_ms}: {ms} {end}");
            let (ms, end) = elapsed_with_responses(recovered(Patience::default().for_startup()), &unreadable_responses, asked_ms);
            assert!(ms == briefly_ms && end == "held outcome-unread (reading)", "{change} {asked_ms}: {ms} {end}");
        }
    }
}

/// A machine that is suspended during a request has waited for one response, and reads again when it wakes.
#[test]
fn one_hour_long_response_ends_nothing() {
    let answers =
        [EnvResponse::Unreadable(test_fault(EnvFaultKind::Other)), task_ended_response(), status_response("running"), config_response(2)];
    let state =
        OperationState::recover(open_history("start", Some("T1")), Patience::default(), Some(&uptime_after_reboot())).expect("open");
    assert_eq!(elapsed_with_responses(state, &answers, 3_600_000).1, "done");
}

#[test]
fn later_reading_fails_an_unfinished_shutdown() {
    let timeout = EnvResponse::Task(TaskState::Failed { cause: test_fault(EnvFaultKind::ShutdownTimeout), age_secs: None });
    let expected_trace = "task, status, config, commit resolved, -";
    let still_up = [timeout, status_response("running"), config_response(2)];
    check_recovery(held_history("shutdown", Some("T1"), ReleaseCondition::Reading), &still_up, expected_trace, "failed shutdown-timeout");
    let ended_trace = "task, status, config, commit ended, -";
    check_recovery(open_history("shutdown", Some("T1")), &still_up, ended_trace, "held shutdown-timeout (reading)");
}

#[test]
fn s17_lost_task_never_becomes_a_failure() {
    let lost_task_responses =
        |found: &str| [EnvResponse::Task(TaskState::Lost(test_fault(EnvFaultKind::Other))), status_response(found), config_response(2)];
    let ended_trace = "task, status, config, commit ended, -";
    check_recovery(open_history("start", Some("T1")), &lost_task_responses("stopped"), ended_trace, "held task-lost (reading)");
    check_recovery(
        held_history("start", Some("T1"), ReleaseCondition::Reading),
        &lost_task_responses("stopped"),
        "task, status, config, -",
        "held task-lost (reading)",
    );
    let resolved = "task, status, config, commit resolved, -";
    check_recovery(held_history("start", Some("T1"), ReleaseCondition::Reading), &lost_task_responses("running"), resolved, "done");
}

#[test]
fn recovers_neither_ended_operations_nor_those_held_for_a_person() {
    assert!(OperationState::recover(held_history("start", None, ReleaseCondition::Person), Patience::default(), None).is_none());
    let mut ended_history = open_history("start", None);
    let id = ended_history.operation.id.clone();
    ended_history.add_record(JournalRecord::Ended { id, outcome: Outcome::Done(Findings::default()), at_ms: NOW_MS }).expect("legal");
    assert_eq!(ended_history.ended.as_ref().map(|(outcome, _)| outcome.end()), Some(OperationEnd::Done));
    assert!(OperationState::recover(ended_history, Patience::default(), None).is_none());
}

#[test]
fn s20_recovery_is_idempotent() {
    // The first recovery adopts the task and crashes; the second one continues from there.
    let first = OperationState::recover(open_history("start", None), Patience::default(), Some(&uptime_after_reboot())).expect("open");
    let (first, trace) = play_responses(first, &[tasks_response(&[running_task("T1")])]);
    assert_eq!((trace.join(", ").as_str(), render_end(&first).as_str()), ("tasks, commit tasked, task", "in flight"));
    check_recovery(
        open_history("start", Some("T1")),
        &[task_ended_response(), status_response("running"), config_response(2)],
        "task, status, config, commit ended, -",
        "done",
    );
}

/// Recovers a start on this machine, `after_ms` later; returns the first command and the end.
fn recover_after(history: OperationHistory, uptime: Option<Uptime>, after_ms: u64) -> (String, String) {
    let responses: Vec<EnvResponse> =
        std::iter::repeat_n([tasks_response(&[]), status_response("stopped"), config_response(2)], 20).flatten().collect();
    let state = OperationState::recover(history, Patience::default(), uptime.as_ref()).expect("there is something to find out");
    let (state, trace) = play_responses_at(NOW_MS + after_ms, state, &responses);
    (trace.first().expect("a command").clone(), render_end(&state))
}

fn with_boot_1(history: OperationHistory) -> OperationHistory {
    OperationHistory { boot: BootId::new("boot-1"), ..history }
}

fn with_mark(mut history: OperationHistory) -> OperationHistory {
    let id = history.operation.id.clone();
    history.add_record(JournalRecord::Sending { id, at_ms: NOW_MS, up_ms: 5_000 }).expect("legal");
    history
}

const NOTHING_RAN: &str = "failed not-carried-out";
const MAY_ARRIVE: &str = "held outcome-unclear (reading)";

/// Decision 0016, 1: without a mark, and if the machine did not reboot, the change was never sent. Nothing is requested.
#[test]
fn unmarked_change_was_never_sent_unless_the_machine_rebooted() {
    for change in ["start", "shutdown", "stop", "config.set", "reboot"] {
        let (first_command, ends) = recover_after(with_boot_1(open_history(change, None)), Some(uptime_of_boot("boot-1", 0)), 0);
        assert_eq!((first_command.as_str(), ends.as_str()), ("commit ended", NOTHING_RAN), "{change}");
    }
    let open = || open_history("start", None);
    for (history, uptime) in [
        (with_boot_1(open()), Some(uptime_of_boot("boot-2", 1_000))),
        (with_boot_1(open()), None),
        (open(), Some(uptime_of_boot("boot-1", u64::MAX))),
        (open(), None),
        (with_mark(with_boot_1(open())), Some(uptime_of_boot("boot-1", 6_000))),
    ] {
        let (first_command, ends) = recover_after(history.clone(), uptime.clone(), 1_000);
        assert_eq!((first_command.as_str(), ends.as_str()), ("tasks", MAY_ARRIVE), "{:?} {:?} {uptime:?}", history.boot, history.sending);
    }
    check_recovery(
        with_boot_1(open()),
        &[tasks_response(&[]), status_response("running"), config_response(2)],
        "tasks, status, config, commit ended, -",
        "done",
    );
}

/// How long a live process waits for a response and then searches for the task, plus the time by which a mark may precede the sending.
const LATE_ARRIVAL_MS: u64 = 60_000 + 60_500 + 10_000;

/// Decision 0016, 2: a change that may have been sent may still arrive for this long after its mark, by the clock that gives more time.
#[test]
fn gives_up_a_possibly_sent_change_only_after_the_late_arrival_time() {
    assert_eq!(Patience::default().late_arrival_ms, LATE_ARRIVAL_MS);
    let sent = || with_mark(with_boot_1(open_history("start", None)));
    let unmarked = || with_boot_1(open_history("start", None));
    let cases = [
        // The lookups of the recovery itself take one second of it.
        (sent(), Some(uptime_of_boot("boot-1", 3_999 + LATE_ARRIVAL_MS)), LATE_ARRIVAL_MS, MAY_ARRIVE),
        (sent(), Some(uptime_of_boot("boot-1", 4_000 + LATE_ARRIVAL_MS)), LATE_ARRIVAL_MS, NOTHING_RAN),
        (sent(), Some(uptime_of_boot("boot-1", 5_000 + LATE_ARRIVAL_MS)), LATE_ARRIVAL_MS - 1, MAY_ARRIVE),
        // A time of day that jumped proves nothing.
        (sent(), Some(uptime_of_boot("boot-1", 6_000)), 3_600_000, MAY_ARRIVE),
        // An uptime shorter than at the mark is impossible.
        (sent(), Some(uptime_of_boot("boot-1", 0)), 3_600_000, MAY_ARRIVE),
        // After a reboot of the machine the mark is at least as old as the uptime.
        (sent(), Some(uptime_of_boot("boot-2", LATE_ARRIVAL_MS - 2_000)), 3_600_000, MAY_ARRIVE),
        (sent(), Some(uptime_of_boot("boot-2", LATE_ARRIVAL_MS - 1_000)), 3_600_000, NOTHING_RAN),
        (unmarked(), Some(uptime_of_boot("boot-2", LATE_ARRIVAL_MS - 2_000)), 3_600_000, MAY_ARRIVE),
        (unmarked(), Some(uptime_of_boot("boot-2", LATE_ARRIVAL_MS - 1_000)), LATE_ARRIVAL_MS, NOTHING_RAN),
        (unmarked(), Some(uptime_of_boot("boot-2", 3_600_000)), LATE_ARRIVAL_MS - 1, MAY_ARRIVE),
        // If the system does not report its uptime, only the time of day is left.
        (sent(), None, LATE_ARRIVAL_MS - 1, MAY_ARRIVE),
        (sent(), None, LATE_ARRIVAL_MS, NOTHING_RAN),
    ];
    for (number, (history, uptime, after_ms, ends)) in cases.into_iter().enumerate() {
        assert_eq!(recover_after(history, uptime, after_ms).1, ends, "case {number}");
    }
    let reboot = recover_after(with_mark(with_boot_1(open_history("reboot", None))), Some(uptime_of_boot("boot-1", u64::MAX)), 3_600_000).1;
    assert_eq!(reboot, "held outcome-unclear (person)", "a change that is not idempotent is never given up by a clock");
}

#[test]
fn next_start_after_the_late_arrival_time_settles_the_change() {
    let outcome = Outcome::new_held(FailureCode::OutcomeUnclear, ReleaseCondition::Reading, Findings::default());
    let held = || {
        let mut history = with_mark(with_boot_1(open_history("start", None)));
        let id = history.operation.id.clone();
        history.add_record(JournalRecord::Ended { id, outcome: outcome.clone(), at_ms: NOW_MS }).expect("legal");
        history
    };
    let responses: Vec<EnvResponse> =
        std::iter::repeat_n([tasks_response(&[]), status_response("stopped"), config_response(2)], 20).flatten().collect();
    let settle = |ms| {
        let state = OperationState::recover(held(), Patience::default(), Some(&uptime_of_boot("boot-1", 5_000 + ms)))
            .expect("it waits for a reading");
        let (state, trace) = play_responses_at(NOW_MS + ms, state, &responses);
        (trace.last().expect("a command").clone(), trace.contains(&"commit resolved".to_owned()), render_end(&state))
    };
    assert_eq!(settle(60_000), ("-".into(), false, MAY_ARRIVE.into()));
    assert_eq!(settle(LATE_ARRIVAL_MS), ("-".into(), true, NOTHING_RAN.into()));
    let state = OperationState::recover(
        with_mark(with_boot_1(open_history("start", None))),
        Patience::default(),
        Some(&uptime_of_boot("boot-1", 15_000)),
    )
    .expect("open");
    let (state, _) = play_responses_at(NOW_MS + 20_000, state, &responses);
    // Eleven seconds by the uptime, one of which was spent on lookups.
    let until = state.outcome().expect("ended").findings().evidence.get("may_come_until").cloned();
    assert_eq!(
        until,
        Some(Fact::from(&*converger_core::timestamp::format_timestamp((NOW_MS + 20_000 + LATE_ARRIVAL_MS - 11_000).div_ceil(1000))))
    );
}
