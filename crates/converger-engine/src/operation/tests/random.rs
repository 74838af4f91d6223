//! Random events: whatever comes, in whatever order, the promises of the machine hold. Seeds are printed on failure.

use std::sync::LazyLock;

use converger_core::apply::{BootId, Membership};
use converger_core::testing::Rng;

use super::*;

/// One new operation of every kind.
static FRESH: LazyLock<Vec<State>> =
    LazyLock::new(|| ["start", "shutdown", "stop", "config.set", "config.set running", "reboot"].map(fresh).into());
static ANSWERS: LazyLock<Vec<Answer>> = LazyLock::new(answers);
static EVENTS: LazyLock<Vec<Event>> = LazyLock::new(events);
static NOT_CLEARED: LazyLock<[NotCleared; 4]> = LazyLock::new(|| {
    let refused = NotCleared::Refused(converger_core::refusal::Refusal::frozen("audit"));
    let no_room = NotCleared::NoRoom(cause(Trouble::Busy));
    [refused, NotCleared::Stopped(Code::RunStopped), NotCleared::Failed("no store".into()), no_room]
});

/// Every kind of answer, good and bad.
fn answers() -> Vec<Answer> {
    let mut answers = vec![
        cluster(),
        Answer::Cluster(Membership::default()),
        config(2),
        config(4),
        config_waiting(),
        changed(|config| config.lock = Some("backup".into())),
        changed(|config| config.name = "other".into()),
        changed(|config| config.identity = converger_core::guest::Identity::Qemu { uuid: None, ctime: None }),
        owned(Some("started"), "running"),
        Answer::Where(None),
        Answer::Where(Some(place("pve1"))),
        Answer::Where(Some(place("pve2"))),
        Answer::Tasks(Vec::new()),
        Answer::Tasks(vec![at_work("T1")]),
        Answer::Tasks(vec![at_work("T1"), over("T2", 0)]),
        Answer::Task(TaskState::Running),
        ended(),
        Answer::Task(TaskState::Failed { cause: cause(Trouble::ShutdownTimeout), age_secs: None }),
        Answer::Task(TaskState::Failed { cause: cause(Trouble::Other), age_secs: None }),
        Answer::Task(TaskState::Lost(cause(Trouble::Other))),
        sent_task(),
        Answer::Sent(Sent::Done),
        Answer::Sent(Sent::No(cause(Trouble::Changed))),
        Answer::Sent(Sent::NotDelivered(cause(Trouble::Other))),
        Answer::Sent(Sent::MayHaveRun(cause(Trouble::Other))),
        Answer::NotThere(cause(Trouble::NotThere)),
        Answer::Unread(cause(Trouble::Other)),
    ];
    answers.extend(["running", "stopped", "paused"].map(status));
    answers.push(Answer::Status(live("running", 1)));
    answers
}

fn events() -> Vec<Event> {
    let mut events = vec![
        Event::Begin,
        Event::Committed,
        Event::NotCommitted(NotCommitted::Failed("disk full".into())),
        Event::NotCommitted(NotCommitted::Refused(Refusal::frozen("audit week"))),
        Event::Woken,
    ];
    events.push(Event::Cleared);
    events.extend(NOT_CLEARED.iter().cloned().map(Event::NotCleared));
    events.extend(answers().into_iter().map(Event::Answered));
    events
}

/// What has become of one operation so far, and what must hold of it.
#[derive(Default)]
struct Witness {
    history: Option<History>,
    pending: Option<Record>,
    sends: u32,
}

impl Witness {
    /// Checks a command against everything before it.
    fn saw(&mut self, command: Option<&Command>, is_recovered: bool) {
        match command {
            Some(Command::Commit(record)) => self.pending = Some(Record::clone(record)),
            Some(Command::Mark) => {
                let id = self.history.as_ref().expect("marked before the intent was durable").operation.id.clone();
                self.pending = Some(Record::Sending { id, at_ms: NOW_MS, up_ms: 0 });
            }
            Some(Command::Ask(ask)) => {
                assert!(self.history.is_some(), "{} was asked before the intent was durable", ask.word());
                assert!(self.history.as_ref().is_some_and(|history| history.ended.is_none()) || is_recovered, "asked after its end");
                self.sends += u32::from(ask.is_mutation());
                assert!(
                    !ask.is_mutation() || self.history.as_ref().is_some_and(|history| history.sending.is_some()),
                    "sent without a mark"
                );
                assert!(self.sends <= 1 && !(is_recovered && ask.is_mutation()), "sent twice");
            }
            Some(Command::Clear) => assert!(self.history.is_some() && !is_recovered, "cleared before the intent was durable"),
            Some(Command::Whose(tasks)) => assert!(!tasks.is_empty(), "nobody is asked about nothing"),
            Some(Command::Wait(ms)) => assert!((1..=60_000).contains(ms), "a wait of {ms} ms"),
            None => {}
        }
    }

    /// The journal takes what was to be committed, or refuses it as a store would.
    fn committed(&mut self) {
        match (self.pending.take(), &mut self.history) {
            (Some(Record::Intent { operation, at_ms }), None) => self.history = Some(History::begin(operation, at_ms)),
            (Some(record), Some(history)) => history.add(record).expect("records follow each other legally"),
            (record, _) => panic!("not a first record: {record:?}"),
        }
    }
}

/// Drives one operation with answers that are random but belong to what was asked for, now and then something else.
fn drive(rng: &mut Rng, mut state: State, witness: &mut Witness) -> State {
    let mut event = Event::Begin;
    for _ in 0..2000 {
        if event == Event::Committed {
            witness.committed();
        }
        let (next, command) = step(state, event, NOW_MS);
        witness.saw(command.as_ref(), next.is_recovered());
        state = next;
        event = match command {
            None if state.ended().is_some() => return state,
            // An event that nobody waited for: the next one will be.
            None => rng.pick(&EVENTS).expect("events").clone(),
            Some(Command::Commit(_) | Command::Mark) if rng.one_in(12) => Event::NotCommitted(NotCommitted::Failed("disk full".into())),
            Some(Command::Commit(_) | Command::Mark) => Event::Committed,
            Some(Command::Clear) if rng.one_in(8) => Event::NotCleared(rng.pick(&*NOT_CLEARED).expect("reasons").clone()),
            Some(Command::Clear) => Event::Cleared,
            Some(Command::Whose(_)) if rng.one_in(8) => Event::NotTold("locked".into()),
            Some(Command::Whose(tasks)) => Event::Taken(tasks.into_iter().filter(|_| rng.one_in(3)).collect()),
            Some(Command::Wait(_)) => Event::Woken,
            Some(Command::Ask(ask)) => answer_to(rng, &ask),
        };
    }
    panic!("it did not end: {state:?}");
}

fn drive_new(rng: &mut Rng, witness: &mut Witness) -> State {
    let state = any(rng);
    drive(rng, state, witness)
}

fn answer_to(rng: &mut Rng, ask: &Ask) -> Event {
    let fits = |answer: &&Answer| match ask {
        Ask::Cluster => matches!(answer, Answer::Cluster(_) | Answer::Unread(_)),
        Ask::Status(_) => matches!(answer, Answer::Status(_) | Answer::NotThere(_) | Answer::Unread(_)),
        Ask::Config(_) => matches!(answer, Answer::Config(_) | Answer::NotThere(_) | Answer::Unread(_)),
        Ask::Where(_) => matches!(answer, Answer::Where(_) | Answer::Unread(_)),
        Ask::Send { .. } => matches!(answer, Answer::Sent(_)),
        Ask::Task(_) => matches!(answer, Answer::Task(_) | Answer::Unread(_)),
        Ask::Tasks { .. } => matches!(answer, Answer::Tasks(_) | Answer::Unread(_)),
    };
    let fitting: Vec<&Answer> = if rng.one_in(20) { ANSWERS.iter().collect() } else { ANSWERS.iter().filter(fits).collect() };
    Event::Answered(Answer::clone(rng.pick(&fitting).expect("answers")))
}

fn any(rng: &mut Rng) -> State {
    rng.pick(&FRESH).expect("operations").clone()
}

#[test]
fn whatever_is_answered_it_sends_once_records_legally_and_ends() {
    for seed in 0..20_000 {
        check_seed(seed, |rng| {
            let mut witness = Witness::default();
            let state = drive_new(rng, &mut witness);
            let is_ended = witness.history.as_ref().is_some_and(|history| history.ended.is_some());
            assert_eq!(state.is_recorded(), is_ended, "what is said to be recorded is");
        });
    }
}

#[test]
fn whatever_was_left_open_is_recovered_without_sending_and_ends() {
    for seed in 0..20_000 {
        check_seed(seed, |rng| {
            let mut witness = Witness::default();
            drive_new(rng, &mut witness);
            // Crash after crash: each recovery starts from what the journal has.
            for _ in 0..3 {
                let uptime = Uptime { boot: BootId::new(rng.word(&["boot-1", "boot-2"])).expect("an id"), ms: rng.below(100_000) };
                let uptime = (!rng.one_in(4)).then_some(&uptime);
                let begun = witness.history.clone().map(|history| History { boot: BootId::new("boot-1"), ..history });
                let Some(state) = begun.and_then(|history| State::recover(history, Patience::default(), uptime)) else { return };
                witness.sends = 0;
                let state = drive(rng, state, &mut witness);
                assert!(state.ended().is_some() && witness.sends == 0, "a recovered operation ends and sends nothing: {state:?}");
            }
        });
    }
}

#[test]
fn an_event_that_does_not_belong_changes_nothing() {
    for seed in 0..200 {
        check_seed(seed, |rng| {
            let mut state = any(rng);
            for _ in 0..60 {
                for event in EVENTS.iter() {
                    let (after, command) = step(state.clone(), event.clone(), NOW_MS);
                    let is_next = command.is_some() || after.ended().is_some();
                    assert!(is_next || after == state, "{event:?} was ignored and changed {state:?}");
                    assert!(state.ended().is_none() || command.is_none(), "{event:?} woke what has ended");
                }
                let event = rng.pick(&EVENTS).expect("events").clone();
                state = step(state, event, NOW_MS).0;
            }
        });
    }
}
