//! Stories of single operations, told as what happened and what was done about it.

use converger_core::apply::{Answer, Cause, Fact, History, Live, Outcome, Place, Record, Release, Sent, TaskSeen, TaskState, Trouble};

use super::*;
use crate::testing::*;

mod random;
mod recovery;
mod refusals;

/// One moment, 1,000,000 s after 1970.
pub(super) const NOW_MS: u64 = 1_000_000_000;

/// What a command is, in a word or two.
pub(super) fn shown(command: Option<&Command>) -> String {
    match command {
        None => "-".into(),
        Some(Command::Commit(record)) => match &**record {
            Record::Intent { .. } => "commit intent".into(),
            Record::Sending { .. } => "commit sending".into(),
            Record::Tasked { .. } => "commit tasked".into(),
            Record::Ended { .. } => "commit ended".into(),
            Record::Resolved { .. } => "commit resolved".into(),
        },
        Some(Command::Ask(ask)) => ask.word().into(),
        Some(Command::Mark) => "mark".into(),
        Some(Command::Clear) => "clear".into(),
        Some(Command::Whose(_)) => "whose".into(),
        Some(Command::Wait(_)) => "wait".into(),
    }
}

/// How it ended: `done`, or the end with its code and what releases it.
pub(super) fn end(state: &State) -> String {
    match state.ended() {
        None => "under way".into(),
        Some(Outcome::Done(_)) => "done".into(),
        Some(Outcome::Held { code, release, .. }) => format!("held {code} ({})", release.word()),
        Some(outcome) => format!("{} {}", outcome.end().word(), outcome.code().expect("a code")),
    }
}

pub(super) fn fresh(word: &str) -> State {
    let (operation, terms) = step_of(word);
    State::new(operation, terms, Patience::default())
}

/// Feeds these events, and gives what was done about each.
pub(super) fn feed(mut state: State, events: &[Event]) -> (State, Vec<String>) {
    let mut trace = Vec::new();
    for event in events {
        let (next, command) = step(state, event.clone(), NOW_MS);
        trace.push(shown(command.as_ref()));
        state = next;
    }
    (state, trace)
}

/// Answers to each question in turn; commits succeed, nobody says anything against sending, and waits end by themselves.
pub(super) fn play(state: State, answers: &[Answer]) -> (State, Vec<String>) {
    play_at(NOW_MS, state, answers)
}

/// The same at another moment.
pub(super) fn play_at(now_ms: u64, state: State, answers: &[Answer]) -> (State, Vec<String>) {
    let (mut state, mut command) = step(state, Event::Begin, now_ms);
    let mut answers = answers.iter();
    let mut trace = vec![shown(command.as_ref())];
    while let Some(next) = command {
        let event = match next {
            Command::Commit(_) | Command::Mark => Event::Committed,
            Command::Clear => Event::Cleared,
            Command::Whose(_) => Event::Taken(Vec::new()),
            Command::Wait(_) => Event::Woken,
            Command::Ask(_) => match answers.next() {
                Some(answer) => Event::Answered(answer.clone()),
                None => break,
            },
        };
        let (after, made) = step(state, event, now_ms);
        state = after;
        command = made;
        if !matches!(command, Some(Command::Wait(_) | Command::Mark | Command::Clear | Command::Whose(_))) {
            trace.push(shown(command.as_ref()));
        }
    }
    (state, trace)
}

#[track_caller]
pub(super) fn check_story(word: &str, answers: &[Answer], trace: &str, ends: &str) -> State {
    let (state, told) = play(fresh(word), answers);
    assert_eq!((told.join(", ").as_str(), end(&state).as_str()), (trace, ends), "{word}");
    state
}

const CHECK: &str = "commit intent, cluster, status, config, send";

/// The answers before a change is sent, and more.
pub(super) fn checked(state: &str, more: &[Answer]) -> Vec<Answer> {
    [&[cluster(), status(state), config(2)], more].concat()
}

#[test]
fn a_start_is_recorded_checked_sent_tasked_settled_and_verified() {
    let answers = checked("stopped", &[sent_task(), Answer::Task(TaskState::Running), ended(), status("running")]);
    let told = format!("{CHECK}, commit tasked, task, task, status, commit ended, -");
    let state = check_story("start", &answers, &told, "done");
    assert_eq!(state.ended().expect("ended").findings().evidence.get("task"), Some(&Fact::from("T1")));
    assert_eq!(state.ended().expect("ended").findings().observed.get("run_state"), Some(&Fact::from("running")));
    assert!(state.is_recorded());
}

#[test]
fn g11_nothing_is_asked_before_the_intent_is_durable() {
    let (state, trace) = feed(fresh("start"), &[Event::Begin, Event::Woken, Event::Answered(cluster()), Event::Begin]);
    assert_eq!(trace, ["commit intent", "-", "-", "-"]);
    let (_, trace) = feed(state, &[Event::Committed]);
    assert_eq!(trace, ["cluster"]);
}

#[test]
fn g11_an_intent_that_is_not_durable_ends_it_before_anything_is_asked() {
    let repeated = NotCommitted::Repeated(step_of("start").0.id);
    for (why, ends) in [
        (NotCommitted::Failed("disk full".into()), "not-run journal-unwritable"),
        (NotCommitted::Refused(Refusal::guest_held_by("ann", "maintenance")), "refused guest-held"),
        (NotCommitted::Refused(Refusal::frozen("audit week")), "refused frozen"),
        (repeated, "not-run request-repeated"),
    ] {
        let (state, trace) = feed(fresh("start"), &[Event::Begin, Event::NotCommitted(why), Event::Committed]);
        assert_eq!((trace.join(", ").as_str(), end(&state).as_str()), ("commit intent, -, -", ends));
        assert!(!state.is_recorded(), "nothing was written: {ends}");
    }
}

/// Decision 0016: what was not marked was not sent.
#[test]
fn nothing_is_sent_before_it_is_marked_and_what_is_checked_anew_is_marked_anew() {
    let (state, _) = play(fresh("start"), &[cluster(), status("stopped")]);
    let checked = Event::Answered(config(2));
    for event in [Event::Cleared, Event::Woken, Event::Answered(sent_task())] {
        let (_, trace) = feed(state.clone(), &[checked.clone(), event.clone()]);
        assert_eq!(trace, ["mark", "-"], "{event:?}");
    }
    let busy = Event::Answered(Answer::Sent(Sent::NotDelivered(cause(Trouble::Busy))));
    let again = [Event::Answered(cluster()), Event::Answered(status("stopped")), checked.clone()];
    let story = [&[checked.clone(), Event::Committed, Event::Cleared, busy], &again[..], &[Event::Committed, Event::Cleared]].concat();
    let (_, trace) = feed(state.clone(), &story);
    assert_eq!(trace, ["mark", "clear", "send", "cluster", "status", "config", "mark", "clear", "send"]);
    let failed = Event::NotCommitted(NotCommitted::Failed("disk full".into()));
    let (state, trace) = feed(state, &[checked, failed, Event::Committed]);
    assert_eq!((trace.join(", ").as_str(), end(&state).as_str()), ("mark, commit ended, -", "not-run journal-unwritable"));
}

#[test]
fn a_config_write_is_synchronous_and_carries_the_revision_that_was_checked() {
    let (state, _) = play(fresh("config.set"), &[cluster(), status("stopped")]);
    let (state, command) = step(state, Event::Answered(config(2)), NOW_MS);
    assert_eq!(command, Some(Command::Mark));
    let (state, command) = step(state, Event::Committed, NOW_MS);
    assert_eq!(command, Some(Command::Clear));
    let (_, command) = step(state, Event::Cleared, NOW_MS);
    let Some(Command::Ask(Ask::Send { revision, .. })) = command else { panic!("{command:?}") };
    assert_eq!(revision.as_ref().map(Revision::as_str), Some("0fe8"));
    let answers = checked("stopped", &[Answer::Sent(Sent::Done), config(4)]);
    check_story("config.set", &answers, &format!("{CHECK}, config, commit ended, -"), "done");
}

#[test]
fn config_that_cannot_be_plugged_is_done_while_it_waits_for_a_restart() {
    let answers = checked("running", &[Answer::Sent(Sent::Done), config_waiting()]);
    let state = check_story("config.set running", &answers, &format!("{CHECK}, config, commit ended, -"), "done");
    let observed = &state.ended().expect("ended").findings().observed;
    assert_eq!(observed.get("pending_restart"), Some(&Fact::Words(Box::new(["cores".into()]))));
}

#[test]
fn a_write_that_waits_although_it_should_not_is_a_broken_promise() {
    let mut answers = checked("stopped", &[Answer::Sent(Sent::Done)]);
    answers.extend(std::iter::repeat_n(config_waiting(), 100));
    let (state, _) = play(fresh("config.set"), &answers);
    assert_eq!(end(&state), "failed promise-broken");
    let observed = &state.ended().expect("ended").findings().observed;
    assert_eq!(observed.get("pending_restart"), Some(&Fact::Words(Box::new(["cores".into()]))), "it was written, and where it is");
}

#[test]
fn a_reboot_is_done_when_the_guest_is_up_again_and_nothing_waits() {
    let up = |secs| Answer::Status(live("running", secs));
    let before = [cluster(), up(1000), config_waiting(), sent_task(), ended()];
    let cases: [(&[Answer], &str); 3] = [
        (&[status("stopped"), config_waiting(), up(3), config(4)], "done"),
        (&[up(3), config_waiting()], "under way"),
        (&[up(1001), config(4)], "under way"),
    ];
    for (after, ends) in cases {
        let (state, _) = play(fresh("reboot"), &[&before, after].concat());
        assert_eq!(end(&state), ends, "{after:?}");
    }
}

#[test]
fn a_reboot_that_left_the_guest_as_it_was_is_a_broken_promise() {
    let up = Answer::Status(live("running", 5000));
    let mut answers = vec![cluster(), status("running"), config_waiting(), sent_task(), ended()];
    answers.extend(std::iter::repeat_n([up, config(4)], 200).flatten());
    let (state, _) = play(fresh("reboot"), &answers);
    assert_eq!(end(&state), "failed promise-broken");
}

/// A guest that is down after its reboot, with these start tasks in its list, and what the last of them said.
fn down_after_reboot(starts: &[TaskSeen], start: Option<TaskState>) -> (State, Vec<String>) {
    let up = Answer::Status(live("running", 1000));
    let reboot = Answer::Task(TaskState::Ended { warnings: 0, age_secs: Some(5) });
    let mut answers = vec![cluster(), up, config_waiting(), sent_task(), reboot];
    answers.extend(std::iter::repeat_n([status("stopped"), config(4)], 8).flatten());
    for _ in 0..200 {
        answers.extend([status("stopped"), config(4), Answer::Tasks(starts.to_vec())]);
        answers.extend(start.clone().map(Answer::Task));
    }
    play(fresh("reboot"), &answers)
}

/// The node starts a rebooted guest by a task of its own. Where that fails the guest is down, and waiting for it would not help.
#[test]
fn a_reboot_whose_guest_cannot_start_again_names_the_start_that_failed() {
    let by_the_node = |name: &str, age_secs| TaskSeen { is_ours: false, ..over(name, age_secs) };
    let too_many = Cause::new(Trouble::Other, "other", "MAX 2 vcpus allowed per VM on this node");
    let failed = || Some(TaskState::Failed { cause: too_many.clone(), age_secs: None });
    let (state, trace) = down_after_reboot(&[by_the_node("T0", 90), by_the_node("T2", 3)], failed());
    assert_eq!(end(&state), "failed guest-left-down");
    assert_eq!(trace.iter().filter(|word| *word == "tasks").count(), 1, "it is told at once: {trace:?}");
    let findings = state.ended().expect("ended").findings();
    let expected = Evidence::default().with("task", "T1").with("start_task", "T2").with("cause", "other");
    assert_eq!(findings.evidence, expected.with("said", "MAX 2 vcpus allowed per VM on this node"));
    assert_eq!(findings.observed.get("run_state"), Some(&"stopped".into()));
}

/// A start of before the reboot says nothing about it, and one at work or one that ended well is not why the guest is down.
#[test]
fn a_guest_that_stays_down_without_a_failed_start_is_waited_for_and_left_down() {
    for (starts, start) in [
        (vec![over("T0", 90)], None),
        (vec![], None),
        (vec![at_work("T2"), over("T0", 3)], None),
        (vec![over("T2", 3)], Some(TaskState::Ended { warnings: 0, age_secs: None })),
        (vec![over("T2", 3)], Some(TaskState::Lost(cause(Trouble::Other)))),
    ] {
        let (state, trace) = down_after_reboot(&starts, start);
        assert_eq!(end(&state), "failed guest-left-down", "{starts:?}");
        assert!(trace.iter().filter(|word| *word == "tasks").count() > 20, "{starts:?}: all the patience");
        assert_eq!(state.ended().expect("ended").findings().evidence.get("start_task"), None);
    }
}

/// The second half of a restart by a stop and a start.
#[test]
fn a_start_that_fails_in_a_restart_says_that_the_guest_was_left_down() {
    let (mut operation, terms) = step_of("start");
    operation.step.reason = step_of("reboot").0.step.reason;
    let failed = Answer::Task(TaskState::Failed { cause: cause(Trouble::Other), age_secs: None });
    let answers = [cluster(), status("stopped"), config(2), sent_task(), failed, status("stopped"), config(2)];
    let (state, _) = play(State::new(operation, terms, Patience::default()), &answers);
    assert_eq!(end(&state), "failed guest-left-down");
}

#[test]
fn a_promise_is_read_and_not_believed() {
    let mut answers = checked("stopped", &[sent_task(), ended()]);
    answers.extend(std::iter::repeat_n(status("stopped"), 100));
    let (state, _) = play(fresh("start"), &answers);
    assert_eq!(end(&state), "failed promise-broken");
    let mut paused = checked("stopped", &[sent_task(), ended()]);
    paused.extend(std::iter::repeat_n(status("io-error"), 100));
    assert_eq!(end(&play(fresh("start"), &paused).0), "failed promise-broken");
}

#[test]
fn a_failed_task_is_done_where_the_promise_holds_and_failed_where_not() {
    let failed = |trouble| Answer::Task(TaskState::Failed { cause: cause(trouble), age_secs: None });
    let answers = checked("stopped", &[sent_task(), failed(Trouble::Other), status("running")]);
    let state = check_story("start", &answers, &format!("{CHECK}, commit tasked, task, status, commit ended, -"), "done");
    assert_eq!(state.ended().expect("ended").findings().evidence.get("task_error"), Some(&Fact::from("some words")));
    let answers = checked("stopped", &[sent_task(), failed(Trouble::Locked), status("stopped")]);
    check_story("start", &answers, &format!("{CHECK}, commit tasked, task, status, commit ended, -"), "failed task-failed");
}

#[test]
fn a_shutdown_that_times_out_is_held_until_it_is_read_and_never_escalates() {
    let timeout = Answer::Task(TaskState::Failed { cause: cause(Trouble::ShutdownTimeout), age_secs: None });
    let answers = checked("running", &[sent_task(), timeout, status("running")]);
    let told = format!("{CHECK}, commit tasked, task, status, commit ended, -");
    check_story("shutdown", &answers, &told, "held shutdown-timeout (reading)");
}

#[test]
fn a_task_that_takes_too_long_is_held_after_bounded_asking() {
    for (word, from) in [("start", "stopped"), ("shutdown", "running"), ("stop", "running")] {
        let mut answers = checked(from, &[sent_task()]);
        answers.extend(std::iter::repeat_n(Answer::Task(TaskState::Running), 1000));
        let (state, trace) = play(fresh(word), &answers);
        assert_eq!(end(&state), "held task-overdue (reading)", "{word}");
        assert!(trace.len() < 200, "{word}: {} transitions", trace.len());
    }
}

#[test]
fn a_lost_task_is_done_only_where_the_promise_holds_and_twice_is_once() {
    let lost = Answer::Task(TaskState::Lost(cause(Trouble::Other)));
    let told = format!("{CHECK}, commit tasked, task, status, commit ended, -");
    check_story("start", &checked("stopped", &[sent_task(), lost.clone(), status("running")]), &told, "done");
    check_story("start", &checked("stopped", &[sent_task(), lost.clone(), status("stopped")]), &told, "held task-lost (reading)");
    let fresh_boot = [Answer::Status(live("running", 3)), config(4)];
    let answers = [&[cluster(), status("running"), config_waiting(), sent_task(), lost], &fresh_boot[..]].concat();
    assert_eq!(end(&play(fresh("reboot"), &answers).0), "held task-lost (person)");
}

#[test]
fn what_reached_nobody_failed_and_what_was_turned_down_is_refused_or_failed() {
    let told = format!("{CHECK}, commit ended, -");
    for (trouble, ends) in [
        (Trouble::Changed, "refused plan-stale"),
        (Trouble::Locked, "refused guest-locked"),
        (Trouble::LockFile, "refused guest-locked"),
        (Trouble::Protected, "refused protected-guest"),
        (Trouble::NotQuorate, "refused not-quorate"),
        (Trouble::NotThere, "refused guest-unknown"),
        (Trouble::Template, "refused guest-template"),
        (Trouble::HaOwned, "refused ha-owned"),
        (Trouble::Unsupported, "refused unsupported-change"),
        (Trouble::ShutdownTimeout, "failed change-rejected"),
        (Trouble::Other, "failed change-rejected"),
    ] {
        check_story("start", &checked("stopped", &[Answer::Sent(Sent::No(cause(trouble)))]), &told, ends);
    }
    let lost = Answer::Sent(Sent::NotDelivered(cause(Trouble::Other)));
    check_story("start", &checked("stopped", &[lost]), &told, "failed not-delivered");
}

#[test]
fn a_guest_that_cannot_be_read_afterwards_is_held() {
    let unread = Answer::Unread(cause(Trouble::Other));
    for told in [&[sent_task(), ended()][..], &[sent_task()][..]] {
        let mut answers = checked("stopped", told);
        answers.extend(std::iter::repeat_n(unread.clone(), 1000));
        let (state, trace) = play(fresh("start"), &answers);
        assert_eq!(end(&state), "held outcome-unread (reading)");
        assert!(trace.len() < 100, "{} transitions", trace.len());
    }
}

#[test]
fn a_guest_that_moved_afterwards_is_found_on_its_new_node() {
    let gone = Answer::NotThere(cause(Trouble::NotThere));
    let answers = checked("stopped", &[sent_task(), ended(), gone, Answer::Where(Some(place("pve2"))), status("running")]);
    let told = format!("{CHECK}, commit tasked, task, status, where, status, commit ended, -");
    let state = check_story("start", &answers, &told, "done");
    assert_eq!(state.place(), &place("pve2"));
}

#[test]
fn a_task_that_cannot_be_written_down_is_left_to_the_next_start() {
    let (state, _) = play(fresh("start"), &checked("stopped", &[]));
    let events = [Event::Answered(sent_task()), Event::NotCommitted(NotCommitted::Failed("disk full".into())), Event::Woken];
    let (state, trace) = feed(state, &events);
    assert_eq!((trace.join(", ").as_str(), end(&state).as_str()), ("commit tasked, -, -", "held journal-unwritable (reading)"));
    assert!(!state.is_recorded());
}

/// A person said what became of it while it was read: what was read is told, and nobody is told that it was written down.
#[test]
fn what_a_person_resolved_meanwhile_is_not_told_as_recorded() {
    let (state, _) = play(fresh("start"), &checked("stopped", &[sent_task(), ended()]));
    let (state, trace) = feed(state, &[Event::Answered(status("running")), Event::Resolved]);
    assert_eq!((trace.join(", ").as_str(), end(&state).as_str(), state.is_recorded()), ("commit ended, -", "done", false));
    let observed = &state.ended().expect("ended").findings().observed;
    assert_eq!(observed.get("resolved"), Some(&"by a person meanwhile, whose word stands".into()), "{observed:?}");
}

#[test]
fn s19_an_end_that_cannot_be_written_down_is_told_to_nobody_as_one() {
    let (state, _) = play(fresh("start"), &checked("stopped", &[sent_task(), ended()]));
    let events = [Event::Answered(status("running")), Event::NotCommitted(NotCommitted::Failed("disk full".into()))];
    let (state, trace) = feed(state, &events);
    let told = "held journal-unwritable (reading)";
    assert_eq!((trace.join(", ").as_str(), end(&state).as_str(), state.is_recorded()), ("commit ended, -", told, false));
    let findings = state.ended().expect("ended").findings();
    assert_eq!(findings.evidence, Evidence::default().with("found", "done").with("said", "disk full").with("task", "T1"));
    assert_eq!(findings.observed, Evidence::default().with("run_state", "running"));
}
