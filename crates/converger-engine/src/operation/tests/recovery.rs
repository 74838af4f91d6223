//! After a lost answer or a crash: what became of it is found out by reading, and the change is never sent again.

use converger_core::action::Change;
use converger_core::apply::{BootId, End, OperationId, TaskSeen};
use converger_core::guest::Identity;

use super::*;

/// The history of an operation whose intent is recorded, and its task where one is named.
fn open(word: &str, task: Option<&str>) -> History {
    let (operation, _) = step_of(word);
    let id = operation.id.clone();
    let mut history = History::begin(Box::new(operation), NOW_MS);
    if let Some(task) = task {
        history.add(Record::Tasked { id, task: task_id(task), at_ms: NOW_MS }).expect("legal");
    }
    history
}

fn held(word: &str, task: Option<&str>, release: Release) -> History {
    let mut history = open(word, task);
    let outcome = Outcome::held(Code::OutcomeUnread, release, Findings::default());
    let id: OperationId = history.operation.id.clone();
    history.add(Record::Ended { id, outcome, at_ms: NOW_MS }).expect("legal");
    history
}

/// The machine was started since, and has been up for long.
fn started_since() -> Uptime {
    up("boot-2", u64::MAX)
}

fn up(boot: &str, ms: u64) -> Uptime {
    Uptime { boot: BootId::new(boot).expect("an id"), ms }
}

#[track_caller]
fn check_recovery(history: History, answers: &[Answer], trace: &str, ends: &str) -> State {
    let state = State::recover(history, Patience::default(), Some(&started_since())).expect("there is something to find out");
    let (state, told) = play(state, answers);
    assert_eq!((told.join(", ").as_str(), end(&state).as_str()), (trace, ends));
    assert!(!told.contains(&"send".to_owned()));
    state
}

fn tasks(tasks: &[TaskSeen]) -> Answer {
    Answer::Tasks(tasks.to_vec())
}

#[test]
fn s2_a_lost_answer_is_never_sent_again() {
    let lost = || Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other)));
    let found = tasks(&[at_work("T1")]);
    let answers = checked("stopped", &[lost(), found, ended(), status("running")]);
    let told = "commit intent, cluster, status, config, send, tasks, commit tasked, task, status, commit ended, -";
    let state = check_story("start", &answers, told, "done");
    assert_eq!(state.task(), Some(&task_id("T1")));
    let answers = checked("stopped", &[lost(), tasks(&[]), status("running")]);
    check_story("start", &answers, "commit intent, cluster, status, config, send, tasks, status, commit ended, -", "done");
}

#[test]
fn an_answer_to_something_else_is_a_lost_answer() {
    let answers = checked("stopped", &[status("running"), tasks(&[]), status("running")]);
    check_story("start", &answers, "commit intent, cluster, status, config, send, tasks, status, commit ended, -", "done");
}

#[test]
fn what_left_no_trace_has_failed_after_it_was_looked_for_several_times() {
    let mut answers = checked("stopped", &[Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other)))]);
    answers.extend(std::iter::repeat_n([tasks(&[]), status("stopped")], 20).flatten());
    let (state, trace) = play(fresh("start"), &answers);
    assert_eq!(end(&state), "failed not-carried-out");
    assert_eq!(trace.iter().filter(|word| *word == "tasks").count(), Patience::default().looks_ms.len() + 1);
    assert!(Patience::default().looks_ms.iter().sum::<u64>() > 30_000, "a hung daemon acts half a minute late");
}

/// The first operation on a guest failed a moment ago, and the answer to the next one is lost: its task is not the first one's, however
/// young that is.
#[test]
fn s2_a_task_that_the_journal_has_under_another_operation_is_not_adopted() {
    let lost = Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other)));
    let both = tasks(&[over("T1", 0), at_work("T2")]);
    let told = |answers: &[Answer], taken: &[&str]| {
        let (mut state, mut answers) = (fresh("start"), answers.iter());
        let (mut event, mut asked) = (Event::Begin, Vec::new());
        loop {
            let (next, command) = step(state, event, NOW_MS);
            state = next;
            event = match command {
                Some(Command::Whose(tasks)) => {
                    asked.push(tasks);
                    Event::Taken(taken.iter().map(|name| task_id(name)).collect())
                }
                Some(Command::Commit(_) | Command::Mark) => Event::Committed,
                Some(Command::Clear) => Event::Cleared,
                Some(Command::Wait(_)) => Event::Woken,
                Some(Command::Ask(_)) => match answers.next() {
                    Some(answer) => Event::Answered(answer.clone()),
                    None => return (state, asked),
                },
                None => return (state, asked),
            };
        }
    };
    let (state, asked) = told(&checked("stopped", &[lost.clone(), both.clone(), ended(), status("running")]), &["T1"]);
    assert_eq!((state.task(), end(&state).as_str()), (Some(&task_id("T2")), "done"));
    assert_eq!(asked, [[task_id("T1"), task_id("T2")]]);
    let (state, _) = told(&checked("stopped", &[lost.clone(), both.clone()]), &[]);
    assert_eq!(end(&state), "held outcome-unclear (person)", "nobody can tell two apart that nobody has");
    let only = tasks(&[over("T1", 0)]);
    let mut answers = checked("stopped", &[lost]);
    answers.extend(std::iter::repeat_n([only, status("stopped")], 20).flatten());
    let (state, asked) = told(&answers, &["T1"]);
    assert_eq!((state.task(), end(&state).as_str()), (None, "failed not-carried-out"));
    assert_eq!(asked.len(), Patience::default().looks_ms.len() + 1, "it is looked for as long as if there were none");
}

#[test]
fn a_task_is_nobodys_while_the_journal_cannot_be_read() {
    let found = tasks(&[at_work("T1")]);
    let mut state = State::recover(open("start", None), Patience::default(), Some(&started_since())).expect("open");
    let mut event = Event::Begin;
    let mut waited = 0;
    while state.ended().is_none() {
        let (next, command) = step(state, event, NOW_MS + waited);
        state = next;
        event = match command {
            Some(Command::Whose(_)) => Event::NotTold("the file is locked".into()),
            Some(Command::Wait(ms)) => {
                waited += ms;
                Event::Woken
            }
            Some(Command::Ask(_)) => Event::Answered(found.clone()),
            _ => Event::Committed,
        };
    }
    assert_eq!((state.task(), end(&state).as_str()), (None, "held outcome-unread (reading)"));
}

#[test]
fn a_task_that_turns_up_late_is_adopted() {
    let mut answers = checked("stopped", &[Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other)))]);
    answers.extend([tasks(&[]), status("stopped"), tasks(&[]), status("stopped"), tasks(&[over("T9", 0)])]);
    answers.extend([ended(), status("running")]);
    let (state, _) = play(fresh("start"), &answers);
    assert_eq!((end(&state).as_str(), state.task()), ("done", Some(&task_id("T9"))));
}

#[test]
fn a_lost_config_write_is_told_by_its_values() {
    let lost = || Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other)));
    let answers = checked("stopped", &[lost(), config(4)]);
    check_story("config.set", &answers, "commit intent, cluster, status, config, send, config, commit ended, -", "done");
    let mut answers = checked("stopped", &[lost()]);
    answers.extend(std::iter::repeat_n(config(2), 20));
    let (state, _) = play(fresh("config.set"), &answers);
    assert_eq!(end(&state), "failed not-carried-out");
}

#[test]
fn several_tasks_that_fit_are_for_a_person() {
    let two = tasks(&[over("T1", 0), over("T2", 0)]);
    check_recovery(open("start", None), &[two], "tasks, commit ended, -", "held outcome-unclear (person)");
    let twice = tasks(&[at_work("T1"), over("T1", 0)]);
    check_recovery(open("start", None), &[twice, ended(), status("running"), config(2)], RECOVERED, "done");
}

/// The token may have been another one before the crash: what others began since may be what was sent.
#[test]
fn g13_a_task_of_others_keeps_anybody_from_saying_that_nothing_was_carried_out() {
    let of_others = |has_ended: bool| {
        let task = if has_ended { over("T1", 0) } else { at_work("T1") };
        tasks(&[TaskSeen { is_ours: false, ..task }])
    };
    let looked = |task: &dyn Fn() -> Answer, state: &str| {
        let looks = std::iter::repeat_with(|| [task(), status(state), config(2)]).take(20).flatten().collect::<Vec<_>>();
        let state =
            State::recover(open("start", None), Patience::default(), Some(&started_since())).expect("there is something to find out");
        let (state, told) = play_at(NOW_MS + LATE_MS, state, &looks);
        assert!(!told.contains(&"send".to_owned()) && state.task().is_none(), "{told:?}");
        end(&state)
    };
    assert_eq!(looked(&|| of_others(false), "stopped"), "held outcome-unclear (reading)");
    assert_eq!(looked(&|| of_others(true), "stopped"), "held outcome-unclear (person)");
    assert_eq!(looked(&|| of_others(false), "running"), "done");
    assert_eq!(looked(&|| tasks(&[TaskSeen { is_ours: false, ..over("T1", 200) }]), "stopped"), "failed not-carried-out");
    let both = tasks(&[TaskSeen { is_ours: false, ..at_work("T1") }, at_work("T2")]);
    let state = check_recovery(open("start", None), &[both, ended(), status("running"), config(2)], RECOVERED, "done");
    assert_eq!(state.task(), Some(&task_id("T2")), "what is provably ours is adopted");
}

#[test]
fn who_still_runs_takes_no_task_of_others_for_its_own() {
    let mut answers = checked("stopped", &[Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other)))]);
    let of_others = || tasks(&[TaskSeen { is_ours: false, ..over("T1", 0) }]);
    answers.extend(std::iter::repeat_with(|| [of_others(), status("stopped")]).take(20).flatten());
    let (state, _) = play(fresh("start"), &answers);
    assert_eq!((end(&state).as_str(), state.task()), ("failed not-carried-out", None));
}

const RECOVERED: &str = "tasks, commit tasked, task, status, config, commit ended, -";

#[test]
fn a_task_that_ended_before_the_intent_is_not_ours_and_one_at_work_is() {
    let old = tasks(&[over("T1", 60)]);
    check_recovery(open("start", None), &[old, status("running"), config(2)], "tasks, status, config, commit ended, -", "done");
    let at_work = tasks(&[at_work("T1")]);
    check_recovery(open("start", None), &[at_work, ended(), status("running"), config(2)], RECOVERED, "done");
}

/// A guest with a past has more tasks than a list holds: only what can be ours is asked for.
#[test]
fn tasks_are_looked_for_from_the_intent_on() {
    let state = State::recover(open("start", None), Patience::default(), Some(&started_since())).expect("it is open");
    let (_, command) = step(state, Event::Begin, NOW_MS + 86_400_000);
    let Some(Command::Ask(Ask::Tasks { age_secs_max, .. })) = command else { panic!("{command:?}") };
    assert_eq!(age_secs_max, 86_410, "as far as clocks of nodes may differ");
}

/// By the clock of whoever dates tasks, however far from ours it is.
#[test]
fn a_task_that_ended_is_ours_if_it_is_no_older_than_the_intent() {
    for (age_secs, told) in
        [(0, RECOVERED), (10, RECOVERED), (11, "tasks, status, config, commit ended, -"), (3600, "tasks, status, config, commit ended, -")]
    {
        let rest = if told == RECOVERED { vec![ended(), status("running"), config(2)] } else { vec![status("running"), config(2)] };
        check_recovery(open("start", None), &[vec![tasks(&[over("T1", age_secs)])], rest].concat(), told, "done");
    }
}

#[test]
fn an_open_operation_with_a_task_is_waited_for() {
    let answers = [Answer::Task(TaskState::Running), ended(), status("running"), config(2)];
    check_recovery(open("start", Some("T1")), &answers, "task, task, status, config, commit ended, -", "done");
}

#[test]
fn a_reboot_of_which_nothing_is_known_is_for_a_person() {
    let answers = [tasks(&[]), status("running"), config(4)];
    check_recovery(open("reboot", None), &answers, "tasks, status, config, commit ended, -", "held outcome-unclear (person)");
    let lost = || Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other)));
    let sent = [cluster(), status("running"), config_waiting(), lost(), tasks(&[])];
    let done = [Answer::Status(live("running", 1)), config(4)];
    assert_eq!(end(&play(fresh("reboot"), &[&sent[..], &done].concat()).0), "held outcome-unclear (person)");
}

fn ended_of_age(age_secs: u64) -> Answer {
    Answer::Task(TaskState::Ended { warnings: 0, age_secs: Some(age_secs) })
}

/// Its own task ended well, and the guest has been up for less time than the task is old: it was restarted, and by this. What was read
/// before the crash is not needed for that.
#[test]
fn a_reboot_whose_task_is_known_is_proven_by_a_guest_that_came_up_since() {
    let up = |secs| Answer::Status(live("running", secs));
    let story = [ended_of_age(60), up(59), config(4)];
    let state = check_recovery(open("reboot", Some("T1")), &story, "task, status, config, commit ended, -", "done");
    let observed = &state.ended().expect("ended").findings().observed;
    assert_eq!((observed.get("uptime_secs"), observed.get("task_age_secs")), (Some(&Fact::from(59)), Some(&Fact::from(60))));
    let found = [tasks(&[over("T1", 0)]), ended_of_age(60), up(3), config(4)];
    check_recovery(open("reboot", None), &found, RECOVERED, "done");
}

/// Up for as long as its task is old or longer, it is not shown to have been restarted; without a task it may have been somebody else; after
/// a lost one nobody knows what comes.
#[test]
fn a_reboot_that_nothing_proves_is_still_for_a_person() {
    let up = |secs| Answer::Status(live("running", secs));
    let told = "task, status, config, commit ended, -";
    let tasked = || open("reboot", Some("T1"));
    for story in [[ended_of_age(60), up(60), config(4)], [ended_of_age(60), up(1000), config(4)]] {
        check_recovery(tasked(), &story, told, "held outcome-unclear (person)");
    }
    let nobodys = [tasks(&[]), up(3), config(4)];
    check_recovery(open("reboot", None), &nobodys, "tasks, status, config, commit ended, -", "held outcome-unclear (person)");
    let lost = Answer::Task(TaskState::Lost(cause(Trouble::Other)));
    check_recovery(tasked(), &[lost, up(3), config(4)], told, "held task-lost (person)");
    let mut waiting = vec![ended_of_age(60)];
    waiting.extend(std::iter::repeat_n([up(3), config_waiting()], 200).flatten());
    let state = State::recover(tasked(), Patience::default(), Some(&started_since())).expect("open");
    assert_eq!(end(&play(state, &waiting).0), "failed promise-broken", "what the restart was for still waits");
    let mut taken_back = vec![ended_of_age(60)];
    taken_back.extend(std::iter::repeat_n([up(3), config(2)], 200).flatten());
    let state = State::recover(tasked(), Patience::default(), Some(&started_since())).expect("open");
    assert_eq!(end(&play(state, &taken_back).0), "failed promise-broken", "what the restart was for waits no more and is not in effect");
}

fn failed_of_age(trouble: Trouble, age_secs: Option<u64>) -> Answer {
    Answer::Task(TaskState::Failed { cause: cause(trouble), age_secs })
}

/// What a recovery could not read this time the next one reads: nobody is asked for a person's word before that.
#[test]
fn a_reboot_of_which_something_could_not_be_read_is_read_again() {
    let told = "task, status, config, commit ended, -";
    let no_uptime = || Answer::Status(Live { uptime_secs: None, ..live("running", 0) });
    let (clock, uptime) = ("age of the task: the clock of its node", "uptime of the guest");
    for (task, status, missing) in [
        (ended(), Answer::Status(live("running", 3)), clock),
        (failed_of_age(Trouble::Other, None), Answer::Status(live("running", 3)), clock),
        (ended_of_age(60), no_uptime(), uptime),
        (failed_of_age(Trouble::Other, Some(60)), no_uptime(), uptime),
    ] {
        let answers = [task, status, config(4)];
        let state = check_recovery(open("reboot", Some("T1")), &answers, told, "held outcome-unclear (reading)");
        let observed = &state.ended().expect("ended").findings().observed;
        assert_eq!(observed.get("unread"), Some(&missing.into()), "{answers:?}");
    }
}

/// A reboot whose task failed, found after a crash: nothing was recorded of it but its task.
#[test]
fn a_failed_reboot_is_settled_by_the_age_of_its_task() {
    let told = "task, status, config, commit ended, -";
    let up = |secs| Answer::Status(live("running", secs));
    let restarted = [failed_of_age(Trouble::ShutdownTimeout, Some(60)), up(3), config(4)];
    let state = check_recovery(open("reboot", Some("T1")), &restarted, told, "done");
    assert_eq!(state.ended().expect("ended").findings().evidence.get("task_error"), Some(&"some words".into()));
    for (trouble, ends) in [(Trouble::Locked, "failed task-failed"), (Trouble::ShutdownTimeout, "held shutdown-timeout (reading)")] {
        let story = [failed_of_age(trouble, Some(60)), up(1000), config_waiting()];
        check_recovery(open("reboot", Some("T1")), &story, told, ends);
    }
}

/// A reboot that timed out, as the run that sent it left it in the journal.
fn reboot_that_timed_out() -> History {
    let up = |secs| Answer::Status(live("running", secs));
    let timeout = failed_of_age(Trouble::ShutdownTimeout, Some(60));
    let answers = [cluster(), up(1000), config_waiting(), sent_task(), timeout, up(1060), config_waiting()];
    let (state, _) = play(fresh("reboot"), &answers);
    assert_eq!(end(&state), "held shutdown-timeout (reading)");
    let (mut history, id) = (open("reboot", Some("T1")), state.operation().id.clone());
    let outcome = state.ended().expect("ended").clone();
    history.add(Record::Ended { id, outcome, at_ms: NOW_MS }).expect("legal");
    history
}

/// The uptime before it was recorded, and its task has an end: a later reading settles it without a person.
#[test]
fn a_reboot_that_timed_out_is_settled_by_the_uptimes() {
    let timeout = |age_secs| failed_of_age(Trouble::ShutdownTimeout, age_secs);
    let up = |secs| Answer::Status(live("running", secs));
    let cases = [
        // It was restarted since: by the age of the task, and without it by the uptime before.
        ([timeout(Some(300)), up(30), config(4)], "done"),
        ([timeout(Some(9000)), up(2000), config(4)], "done"),
        ([timeout(None), up(30), config(4)], "done"),
        // It was not, or it was and what the restart was for still waits, or it went down and stayed down.
        ([timeout(Some(300)), up(1300), config_waiting()], "failed shutdown-timeout"),
        ([timeout(Some(300)), up(30), config_waiting()], "failed shutdown-timeout"),
        ([timeout(Some(300)), status("stopped"), config(4)], "failed shutdown-timeout"),
    ];
    for (answers, ends) in cases {
        check_recovery(reboot_that_timed_out(), &answers, "task, status, config, commit resolved, -", ends);
    }
    let unread = [timeout(None), up(1300), config_waiting()];
    let state = check_recovery(reboot_that_timed_out(), &unread, "task, status, config, -", "held outcome-unclear (reading)");
    let observed = &state.ended().expect("ended").findings().observed;
    assert_eq!(observed.get("unread"), Some(&"age of the task: the clock of its node".into()));
    assert_eq!(observed.get("uptime_before_secs"), Some(&Fact::from(1000)));
}

/// A guest that is moved while it runs has a new process elsewhere: its young uptime shows no restart.
#[test]
fn a_reboot_that_timed_out_is_not_done_because_the_guest_moved() {
    let gone = Answer::NotThere(cause(Trouble::NotThere));
    let moved = [gone, Answer::Where(Some(place("pve2"))), Answer::Status(live("running", 30)), config(4)];
    let answers = [&[failed_of_age(Trouble::ShutdownTimeout, Some(300))], &moved[..]].concat();
    let told = "task, status, where, status, config, -";
    let state = check_recovery(reboot_that_timed_out(), &answers, told, "held outcome-unclear (person)");
    assert!(state.ended().expect("ended").findings().observed.get("moved").is_some());
}

/// Also where the task outlived all patience: the run that sent it records the uptime before.
#[test]
fn a_reboot_that_is_overdue_records_the_uptime_before_it() {
    let mut answers = vec![cluster(), Answer::Status(live("running", 1000)), config_waiting(), sent_task()];
    answers.extend(std::iter::repeat_n(Answer::Task(TaskState::Running), 1000));
    let (state, _) = play(fresh("reboot"), &answers);
    assert_eq!(end(&state), "held task-overdue (reading)");
    assert_eq!(state.ended().expect("ended").findings().observed.get("uptime_before_secs"), Some(&Fact::from(1000)));
}

/// A guest takes a minute to come up. Who finds its reboot in the journal does not wait for that, and says nothing about how it ends; the
/// next reading finds it up, for less time than its task is old by then.
#[test]
fn l4_who_comes_back_waits_for_no_guest_that_is_on_its_way_up() {
    // No start of it is listed.
    let down = || [status("stopped"), config(2), tasks(&[])];
    let mut story = vec![ended_of_age(2)];
    story.extend(std::iter::repeat_with(|| [status("stopped"), config(2)]).take(5).flatten());
    story.push(tasks(&[]));
    let brief = |history| State::recover(history, Patience::default().brief(), Some(&started_since())).expect("open");
    let (ms, ends) = waited_for(brief(open("reboot", Some("T1"))), &story);
    assert!((1_000..2_000).contains(&ms) && ends == "held task-at-work (reading)", "{ms} {ends}");
    let again = [vec![ended_of_age(2)], down().into()].concat();
    let (ms, ends) = waited_for(brief(held("reboot", Some("T1"), Release::Reading)), &again);
    assert_eq!((ms, ends.as_str()), (0, "held task-at-work (reading)"), "nobody waits a second time");
    let up = [ended_of_age(64), Answer::Status(live("running", 2)), config(4)];
    let told = "task, status, config, commit resolved, -";
    check_recovery(held("reboot", Some("T1"), Release::Reading), &up, told, "done");
    // The time that the guest was given to go down, a minute, and what it may take to come up: after that it comes no more.
    let Change::Reboot { timeout_secs } = step_of("reboot").0.step.change else { panic!("a reboot") };
    let late_secs = u64::from(timeout_secs) + (Patience::default().slack_ms + Patience::default().reboot_ms) / 1000;
    for (age, ends) in [(late_secs - 1, "held task-at-work (reading)"), (late_secs, "failed guest-left-down")] {
        let (_, found) =
            waited_for(brief(held("reboot", Some("T1"), Release::Reading)), &[vec![ended_of_age(age)], down().into()].concat());
        assert_eq!(found, ends, "{age}");
    }
    let (_, ends) = waited_for(brief(held("reboot", Some("T1"), Release::Reading)), &[vec![ended()], down().into()].concat());
    assert_eq!(ends, "held task-at-work (reading)", "without the environment's time nobody knows how late it is");
}

/// The age of the task was read before the guest came up: what was waited since belongs to it.
#[test]
fn a_task_grows_older_while_its_guest_comes_up() {
    let mut story = vec![ended_of_age(2)];
    story.extend(std::iter::repeat_with(|| [status("stopped"), config(2)]).take(20).flatten());
    story.extend([Answer::Status(live("running", 2)), config(4)]);
    let state = State::recover(open("reboot", Some("T1")), Patience::default(), Some(&started_since())).expect("open");
    let (state, _) = play(state, &story);
    let observed = &state.ended().expect("ended").findings().observed;
    assert_eq!(
        (end(&state).as_str(), observed.get("task_age_secs")),
        ("done", Some(&Fact::from(7))),
        "twenty waits of a quarter of a second"
    );
    let unread = [ended_of_age(2), Answer::Unread(cause(Trouble::Other)), Answer::Status(live("running", 2)), config(4)];
    let state = State::recover(open("reboot", Some("T1")), Patience::default(), Some(&started_since())).expect("open");
    assert_eq!(end(&play(state, &unread).0), "held outcome-unclear (person)", "a quarter of a second is none");
}

#[test]
fn another_guest_under_the_same_id_says_nothing_about_ours() {
    let other = changed(|config| config.identity = Identity::Qemu { uuid: Some("other".into()), ctime: None });
    let answers = [tasks(&[]), status("running"), other];
    check_recovery(open("start", None), &answers, "tasks, status, config, commit ended, -", "held outcome-unclear (person)");
}

#[test]
fn what_was_held_until_a_reading_is_resolved_by_one() {
    let done = [ended(), status("running"), config(2)];
    check_recovery(held("start", Some("T1"), Release::Reading), &done, "task, status, config, commit resolved, -", "done");
    let found = [tasks(&[over("T1", 0)]), ended(), status("running"), config(2)];
    check_recovery(held("start", None, Release::Reading), &found, "tasks, task, status, config, commit resolved, -", "done");
    let failed = Answer::Task(TaskState::Failed { cause: cause(Trouble::Other), age_secs: None });
    let failed = [failed, status("stopped"), config(2)];
    check_recovery(held("start", Some("T1"), Release::Reading), &failed, "task, status, config, commit resolved, -", "failed task-failed");
}

#[test]
fn what_is_still_not_known_stays_held_and_nothing_is_written() {
    let at_work = [Answer::Task(TaskState::Running)];
    check_recovery(held("start", Some("T1"), Release::Reading), &at_work, "task, -", "held task-at-work (reading)");
    check_recovery(held("shutdown", Some("T1"), Release::Reading), &at_work, "task, -", "held task-at-work (reading)");
    let unread = vec![Answer::Unread(cause(Trouble::Other)); 50];
    let state = State::recover(held("config.set", None, Release::Reading), Patience::default(), Some(&started_since())).expect("held");
    let (state, trace) = play(state, &unread);
    assert_eq!(end(&state), "held outcome-unread (reading)");
    assert!(trace.iter().all(|word| matches!(word.as_str(), "config" | "-")), "{trace:?}");
}

/// What is waited in all until it ends, where every answer is the same.
fn waited_ms(state: State, answer: &Answer) -> (u64, String) {
    waited_for(state, &vec![answer.clone(); 10_000])
}

/// What is waited in all until it ends, with these answers.
fn waited_for(state: State, answers: &[Answer]) -> (u64, String) {
    passed_by(state, answers, 0)
}

/// What goes by in all until it ends, where each of these answers takes so long.
fn passed_by(mut state: State, answers: &[Answer], asked_ms: u64) -> (u64, String) {
    let (mut waited, mut answers) = (0, answers.iter());
    let mut event = Event::Begin;
    loop {
        let (next, command) = step(state, event, NOW_MS + waited);
        state = next;
        event = match command {
            Some(Command::Ask(_)) => {
                waited += asked_ms;
                Event::Answered(answers.next().expect("there are enough").clone())
            }
            Some(Command::Commit(_)) => Event::Committed,
            Some(Command::Whose(_)) => Event::Taken(Vec::new()),
            Some(Command::Mark | Command::Clear) => panic!("what was found in the journal is never sent"),
            Some(Command::Wait(ms)) => {
                waited += ms;
                Event::Woken
            }
            None => return (waited, end(&state)),
        };
    }
}

#[test]
fn l4_who_comes_back_waits_for_no_task_and_no_silent_node_longer_than_a_restart_may_take() {
    // A task is called late only by whoever has waited for as long as it may take.
    let unread = "held outcome-unread (reading)";
    for (answer, ends, briefly) in [
        (Answer::Task(TaskState::Running), "held task-overdue (reading)", "held task-at-work (reading)"),
        (Answer::Unread(cause(Trouble::Other)), unread, unread),
    ] {
        for change in ["start", "shutdown", "reboot", "stop"] {
            let whole = State::recover(open(change, Some("T1")), Patience::default(), Some(&started_since())).expect("open");
            let (ms, end) = waited_ms(whole, &answer);
            assert!(ms >= 60_000 && end == ends, "beside others there is time: {change} {ms} {end}");
            let brief = State::recover(open(change, Some("T1")), Patience::default().brief(), Some(&started_since())).expect("open");
            let (ms, end) = waited_ms(brief, &answer);
            assert!((1_000..2_000).contains(&ms) && end == briefly, "{change} {ms} {end}");
        }
    }
}

/// A daemon that hangs lets each reading wait for half a minute: nobody reads sixty times before the guest is held, and whoever comes back reads once.
#[test]
fn l4_what_a_silent_node_takes_to_say_nothing_counts() {
    let silent = vec![Answer::Unread(cause(Trouble::Other)); 10_000];
    for (task, change) in [(Some("T1"), "start"), (None, "start"), (None, "config.set"), (Some("T1"), "reboot")] {
        for (asked_ms, most_ms, briefly_ms) in [(30_000, 91_000, 30_000), (60_000, 122_000, 60_000), (1_500, 64_000, 1_500)] {
            let recovered = |patience| State::recover(open(change, task), patience, Some(&started_since())).expect("open");
            let (ms, end) = passed_by(recovered(Patience::default()), &silent, asked_ms);
            assert!((60_000..=most_ms).contains(&ms) && end == "held outcome-unread (reading)", "{change} {asked_ms}: {ms} {end}");
            let (ms, end) = passed_by(recovered(Patience::default().brief()), &silent, asked_ms);
            assert!(ms == briefly_ms && end == "held outcome-unread (reading)", "{change} {asked_ms}: {ms} {end}");
        }
    }
}

/// A machine that sleeps while it is asked has waited for one answer, and reads again when it wakes.
#[test]
fn one_answer_that_took_an_hour_ends_nothing() {
    let answers = [Answer::Unread(cause(Trouble::Other)), ended(), status("running"), config(2)];
    let state = State::recover(open("start", Some("T1")), Patience::default(), Some(&started_since())).expect("open");
    assert_eq!(passed_by(state, &answers, 3_600_000).1, "done");
}

#[test]
fn the_later_reading_releases_what_did_not_come_about() {
    let timeout = Answer::Task(TaskState::Failed { cause: cause(Trouble::ShutdownTimeout), age_secs: None });
    let story = "task, status, config, commit resolved, -";
    let still_up = [timeout, status("running"), config(2)];
    check_recovery(held("shutdown", Some("T1"), Release::Reading), &still_up, story, "failed shutdown-timeout");
    let ended = "task, status, config, commit ended, -";
    check_recovery(open("shutdown", Some("T1")), &still_up, ended, "held shutdown-timeout (reading)");
}

#[test]
fn s17_a_lost_task_is_never_called_a_failure_however_often_it_is_read() {
    let lost = |found: &str| [Answer::Task(TaskState::Lost(cause(Trouble::Other))), status(found), config(2)];
    let ended = "task, status, config, commit ended, -";
    check_recovery(open("start", Some("T1")), &lost("stopped"), ended, "held task-lost (reading)");
    check_recovery(held("start", Some("T1"), Release::Reading), &lost("stopped"), "task, status, config, -", "held task-lost (reading)");
    let resolved = "task, status, config, commit resolved, -";
    check_recovery(held("start", Some("T1"), Release::Reading), &lost("running"), resolved, "done");
}

#[test]
fn what_ended_or_waits_for_a_person_is_left_alone() {
    assert!(State::recover(held("start", None, Release::Person), Patience::default(), None).is_none());
    let mut ended = open("start", None);
    let id = ended.operation.id.clone();
    ended.add(Record::Ended { id, outcome: Outcome::Done(Findings::default()), at_ms: NOW_MS }).expect("legal");
    assert_eq!(ended.ended.as_ref().map(|(outcome, _)| outcome.end()), Some(End::Done));
    assert!(State::recover(ended, Patience::default(), None).is_none());
}

#[test]
fn s20_recovering_twice_is_recovering_once() {
    // The first recovery adopts the task and crashes; the second one goes on from there.
    let first = State::recover(open("start", None), Patience::default(), Some(&started_since())).expect("open");
    let (first, told) = play(first, &[tasks(&[at_work("T1")])]);
    assert_eq!((told.join(", ").as_str(), end(&first).as_str()), ("tasks, commit tasked, task", "under way"));
    check_recovery(open("start", Some("T1")), &[ended(), status("running"), config(2)], "task, status, config, commit ended, -", "done");
}

/// What is found of a start that was marked or not, on this machine so long after it: what was asked, and how it ended.
fn found(history: History, uptime: Option<Uptime>, after_ms: u64) -> (String, String) {
    let looks: Vec<Answer> = std::iter::repeat_n([tasks(&[]), status("stopped"), config(2)], 20).flatten().collect();
    let state = State::recover(history, Patience::default(), uptime.as_ref()).expect("there is something to find out");
    let (state, told) = play_at(NOW_MS + after_ms, state, &looks);
    (told.first().expect("a command").clone(), end(&state))
}

fn on_boot_1(history: History) -> History {
    History { boot: BootId::new("boot-1"), ..history }
}

fn marked(mut history: History) -> History {
    let id = history.operation.id.clone();
    history.add(Record::Sending { id, at_ms: NOW_MS, up_ms: 5_000 }).expect("legal");
    history
}

const NOTHING_RAN: &str = "failed not-carried-out";
const MAY_COME: &str = "held outcome-unclear (reading)";

/// Decision 0016, 1: without a mark, and as long as the machine did not die, it was never sent. Nothing is asked.
#[test]
fn what_was_not_marked_was_never_sent_unless_the_machine_died() {
    for word in ["start", "shutdown", "stop", "config.set", "reboot"] {
        let (told, ends) = found(on_boot_1(open(word, None)), Some(up("boot-1", 0)), 0);
        assert_eq!((told.as_str(), ends.as_str()), ("commit ended", NOTHING_RAN), "{word}");
    }
    let open = || open("start", None);
    for (history, uptime) in [
        (on_boot_1(open()), Some(up("boot-2", 1_000))),
        (on_boot_1(open()), None),
        (open(), Some(up("boot-1", u64::MAX))),
        (open(), None),
        (marked(on_boot_1(open())), Some(up("boot-1", 6_000))),
    ] {
        let (told, ends) = found(history.clone(), uptime.clone(), 1_000);
        assert_eq!((told.as_str(), ends.as_str()), ("tasks", MAY_COME), "{:?} {:?} {uptime:?}", history.boot, history.sending);
    }
    check_recovery(on_boot_1(open()), &[tasks(&[]), status("running"), config(2)], "tasks, status, config, commit ended, -", "done");
}

/// What a living process waits for an answer, and looks for after that; and by so much a mark may be older than the sending.
const LATE_MS: u64 = 60_000 + 60_500 + 10_000;

/// Decision 0016, 2: what may have been sent may still come for as long after its mark, by whichever clock says longer.
#[test]
fn what_may_have_been_sent_is_given_up_after_its_time_and_not_before() {
    assert_eq!(Patience::default().late_ms, LATE_MS);
    let sent = || marked(on_boot_1(open("start", None)));
    let unmarked = || on_boot_1(open("start", None));
    let cases = [
        // The looks of the restart itself are a second of it.
        (sent(), Some(up("boot-1", 3_999 + LATE_MS)), LATE_MS, MAY_COME),
        (sent(), Some(up("boot-1", 4_000 + LATE_MS)), LATE_MS, NOTHING_RAN),
        (sent(), Some(up("boot-1", 5_000 + LATE_MS)), LATE_MS - 1, MAY_COME),
        // A clock of the day that jumped proves nothing.
        (sent(), Some(up("boot-1", 6_000)), 3_600_000, MAY_COME),
        // Up for less than when it was marked: that cannot be.
        (sent(), Some(up("boot-1", 0)), 3_600_000, MAY_COME),
        // After another start of the machine it is as old as that, at least.
        (sent(), Some(up("boot-2", LATE_MS - 2_000)), 3_600_000, MAY_COME),
        (sent(), Some(up("boot-2", LATE_MS - 1_000)), 3_600_000, NOTHING_RAN),
        (unmarked(), Some(up("boot-2", LATE_MS - 2_000)), 3_600_000, MAY_COME),
        (unmarked(), Some(up("boot-2", LATE_MS - 1_000)), LATE_MS, NOTHING_RAN),
        (unmarked(), Some(up("boot-2", 3_600_000)), LATE_MS - 1, MAY_COME),
        // Where the system does not tell, the clock of the day is all there is.
        (sent(), None, LATE_MS - 1, MAY_COME),
        (sent(), None, LATE_MS, NOTHING_RAN),
    ];
    for (number, (history, uptime, after_ms, ends)) in cases.into_iter().enumerate() {
        assert_eq!(found(history, uptime, after_ms).1, ends, "case {number}");
    }
    let reboot = found(marked(on_boot_1(open("reboot", None))), Some(up("boot-1", u64::MAX)), 3_600_000).1;
    assert_eq!(reboot, "held outcome-unclear (person)", "what is not the same twice is never given up by a clock");
}

#[test]
fn what_may_still_come_is_settled_by_the_next_start_after_its_time() {
    let outcome = Outcome::held(Code::OutcomeUnclear, Release::Reading, Findings::default());
    let held = || {
        let mut history = marked(on_boot_1(open("start", None)));
        let id = history.operation.id.clone();
        history.add(Record::Ended { id, outcome: outcome.clone(), at_ms: NOW_MS }).expect("legal");
        history
    };
    let looks: Vec<Answer> = std::iter::repeat_n([tasks(&[]), status("stopped"), config(2)], 20).flatten().collect();
    let settle = |ms| {
        let state = State::recover(held(), Patience::default(), Some(&up("boot-1", 5_000 + ms))).expect("it waits for a reading");
        let (state, told) = play_at(NOW_MS + ms, state, &looks);
        (told.last().expect("a command").clone(), told.contains(&"commit resolved".to_owned()), end(&state))
    };
    assert_eq!(settle(60_000), ("-".into(), false, MAY_COME.into()));
    assert_eq!(settle(LATE_MS), ("-".into(), true, NOTHING_RAN.into()));
    let state = State::recover(marked(on_boot_1(open("start", None))), Patience::default(), Some(&up("boot-1", 15_000))).expect("open");
    let (state, _) = play_at(NOW_MS + 20_000, state, &looks);
    // Eleven seconds by the uptime, of which one went by looking.
    let until = state.ended().expect("ended").findings().evidence.get("may_come_until").cloned();
    assert_eq!(until, Some(Fact::from(&*converger_core::moment::written((NOW_MS + 20_000 + LATE_MS - 11_000).div_ceil(1000)))));
}
