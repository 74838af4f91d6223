//! One operation on its way, as a pure state machine. One external request or one durable commit per transition.
//!
//! ```text
//! recorded -> checked -> marked -> cleared -> sent -> tasked -> settled -> verified -> done | failed | refused | held
//! ```
//!
//! How to drive it: make a [`State`], then feed [`Event::Begin`] to [`step`]. Carry out the [`Command`] that comes back, and
//! feed what came of it: `Commit` and `Mark` give `Committed` or `NotCommitted`, the end of what was held also `Resolved`, `Clear` gives `Cleared` or `NotCleared`, `Whose` gives
//! `Taken` or `NotTold`, `Ask` gives `Answered`, `Wait` gives `Woken`. Go on
//! until [`State::ended`] says how it ended; every run ends in bounded steps. An event that does not belong to what was asked
//! for changes nothing.
//!
//! What holds in every order of events: nothing is asked before the intent is durable (G11), the change is sent at most once and never
//! without its mark, and a recovered operation never sends it.
//!
//! Time: waits are commands, and patience is counted in what was waited and in what answers took that told nothing, half a minute each at most. There is no clock here
//! that could end it, so that one that jumps, or a machine that sleeps, ends nothing too early. `now_ms` dates records, and shows that what was read
//! before a change is too old to send it: a clock that jumps makes it be read once more.
//!
//! What never enters: Proxmox, sockets, clocks, and which operation comes next (`schedule`).

mod checking;
mod patience;
mod proving;
mod sending;
mod settling;

use converger_core::apply::check;
use converger_core::apply::{
    Answer, Ask, Cause, End, Evidence, Fact, Findings, History, Operation, OperationId, Outcome, Place, Record, Release, Resolution,
    Revision, Sent, TaskId, TaskSeen, Terms, Trouble, Uptime,
};
use converger_core::failure::Code;
use converger_core::guest::NodeName;
use converger_core::refusal::Refusal;

use checking::{Checking, Clearing};
use proving::{Proving, Why};
use sending::Sending;
use settling::Settling;

pub use patience::{ANSWER_MS_MAX, Patience};

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its turn has come.
    Begin,
    /// The record that was to be committed is durable.
    Committed,
    /// It is not.
    NotCommitted(NotCommitted),
    /// It is not either: a person said meanwhile what became of the operation, and what they said stands.
    Resolved,
    /// Nothing that was said meanwhile is against sending it.
    Cleared,
    /// Something is.
    NotCleared(NotCleared),
    /// These of the tasks are those of other operations, and no others are.
    Taken(Vec<TaskId>),
    /// Whose they are cannot be read; these are the words for it.
    NotTold(Box<str>),
    /// What came of what was asked.
    Answered(Answer),
    /// The wait is over.
    Woken,
}

/// Why a record is not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotCommitted {
    /// The journal decided against it: the guest is held or taken, or the environment frozen.
    Refused(Refusal),
    /// The same request was recorded before, as this operation (G13).
    Repeated(OperationId),
    /// It cannot be written; these are the words for it.
    Failed(Box<str>),
}

/// Why a change is not sent although its guest is ready for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotCleared {
    /// Somebody holds the guest, or froze the environment, since the intent was taken.
    Refused(Refusal),
    /// Nothing new is begun any more.
    Stopped(Code),
    /// The node has no room for it, and nothing was sent.
    NoRoom(Cause),
    /// Whether somebody did cannot be read; these are the words for it.
    Failed(Box<str>),
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make this durable.
    Commit(Box<Record>),
    /// Write down that it may have been sent from here on, so that whoever comes after this process knows it. It need not be durable.
    Mark,
    /// Look whether anything was said against sending it since the intent was taken: a hold, a freeze, a stop.
    Clear,
    /// Look into the journal which of these tasks are those of other operations.
    Whose(Vec<TaskId>),
    /// Ask this, once.
    Ask(Ask),
    /// Let so many milliseconds go by.
    Wait(u64),
}

/// How far an operation is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Phase {
    Waiting,
    Recorded,
    Checked,
    Sent,
    Tasked,
    Settled,
    Ended,
}

/// An operation on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    operation: Box<Operation>,
    /// None for what was found in the journal: it is never sent.
    terms: Option<Terms>,
    patience: Patience,
    origin: Origin,
    /// Where the guest is looked for.
    place: Place,
    /// How often it was followed to another node.
    moves: u32,
    intent_ms: u64,
    /// When it last heard of anything.
    now_ms: u64,
    /// What the last answer took, as far as that counts.
    asked_ms: u64,
    /// When the guest's own readings of the last check were begun, and how often it was checked.
    checked_ms: u64,
    checks: u32,
    task: Option<TaskId>,
    uptime_before_secs: Option<u64>,
    /// The same as an earlier run recorded it.
    recorded_uptime_secs: Option<u64>,
    /// What was waited since the guest was checked.
    passed_ms: u64,
    /// What is known of whether it was sent.
    sending: Sending,
    /// What is to be known beside the outcome.
    evidence: Evidence,
    stage: Stage,
}

/// Where an operation comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// It is new.
    Fresh,
    /// The journal has it without an end.
    Open,
    /// The journal has it as held until a reading tells.
    Held,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    New,
    /// The intent is being written.
    Recording,
    /// What it was planned on is read again.
    Checking(Checking),
    /// It is ready, and the mark before the sending is being written.
    Marking(Box<Clearing>),
    /// It is ready, and the last word about it is waited for.
    Clearing(Box<Clearing>),
    /// The change is under way to the environment.
    Sending,
    /// The task is being written down.
    Tasking(TaskId),
    /// The task is at work.
    Settling(Settling),
    /// What became of it is read.
    Proving(Proving),
    /// Tasks were found that may be its own, and the journal is asked whose they are.
    Telling(Proving, Vec<TaskSeen>),
    /// The end is being written.
    Ending(Outcome),
    Ended {
        outcome: Outcome,
        is_recorded: bool,
    },
}

impl State {
    /// A new operation, held against these terms when its turn comes.
    #[must_use]
    pub fn new(operation: Operation, terms: Terms, patience: Patience) -> Self {
        Self::with(Box::new(operation), Some(terms), patience, Origin::Fresh, 0, Sending::NotYet)
    }

    /// An operation that the journal has without an end, or held until a reading tells; `None`: nothing is to be found out.
    ///
    /// It only reads: what became of it is found out, and it is never sent (S2). `uptime` is that of this machine, where it can be told.
    #[must_use]
    pub fn recover(history: History, patience: Patience, uptime: Option<&Uptime>) -> Option<Self> {
        let origin = match &history.ended {
            None => Origin::Open,
            Some((Outcome::Held { release: Release::Reading, .. }, _)) if history.resolved.is_none() => Origin::Held,
            Some(_) => return None,
        };
        let patience = if origin == Origin::Held { patience.for_held() } else { patience.for_recovery() };
        let sending = Sending::found(&history, uptime);
        let recorded_uptime_secs = history.ended.as_ref().and_then(|(outcome, _)| recorded_uptime(outcome));
        let mut state = Self::with(history.operation, None, patience, origin, history.at_ms, sending);
        state.recorded_uptime_secs = recorded_uptime_secs;
        state.task = history.task.map(|(task, _)| task);
        Some(state)
    }

    fn with(operation: Box<Operation>, terms: Option<Terms>, patience: Patience, origin: Origin, intent_ms: u64, sending: Sending) -> Self {
        let guest = &operation.guest;
        let place = Place { node: guest.node.clone(), kind: guest.kind, vmid: guest.vmid };
        let (task, uptime_before_secs, evidence) = (None, None, Evidence::default());
        Self {
            operation,
            terms,
            patience,
            origin,
            place,
            moves: 0,
            intent_ms,
            now_ms: intent_ms,
            asked_ms: 0,
            checked_ms: intent_ms,
            checks: 0,
            task,
            uptime_before_secs,
            recorded_uptime_secs: None,
            passed_ms: 0,
            sending,
            evidence,
            stage: Stage::New,
        }
    }

    /// The operation.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// How it ended, once it has.
    #[must_use]
    pub fn ended(&self) -> Option<&Outcome> {
        match &self.stage {
            Stage::Ended { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// Whether its end is in the journal. What is not is found out by reading at the next start.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        matches!(&self.stage, Stage::Ended { is_recorded: true, .. })
    }

    /// The task that carries it out, once it is known.
    #[must_use]
    pub fn task(&self) -> Option<&TaskId> {
        self.task.as_ref()
    }

    /// The node that it works on at the moment.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The node that it works on, where that is another one than it was counted on and nothing was sent yet.
    #[must_use]
    pub fn moved_from(&self, counted: &NodeName) -> Option<NodeName> {
        let is_before = matches!(self.stage, Stage::Checking(_) | Stage::Marking(_) | Stage::Clearing(_));
        (is_before && self.place.node != *counted).then(|| self.place.node.clone())
    }

    /// Whether it was found in the journal, so that it only reads.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.origin != Origin::Fresh
    }

    /// Whether this is the later reading that it was held for: what a task that ended left undone stays so.
    fn is_read_again(&self) -> bool {
        self.origin == Origin::Held
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match &self.stage {
            Stage::New | Stage::Recording => Phase::Waiting,
            Stage::Checking(_) | Stage::Marking(_) | Stage::Clearing(_) => Phase::Recorded,
            Stage::Sending => Phase::Checked,
            Stage::Tasking(_) => Phase::Sent,
            Stage::Settling(_) => Phase::Tasked,
            Stage::Proving(_) | Stage::Telling(..) if self.task.is_none() => Phase::Sent,
            Stage::Proving(_) | Stage::Telling(..) | Stage::Ending(_) => Phase::Settled,
            Stage::Ended { .. } => Phase::Ended,
        }
    }
}

/// One transition. `now_ms` is the time of day in milliseconds since 1970, for the records.
///
/// `None`: there is nothing to do, because it has ended or because the event is not one that was waited for.
#[must_use]
pub fn step(mut state: State, event: Event, now_ms: u64) -> (State, Option<Command>) {
    let command = state.on(event, now_ms);
    (state, command)
}

impl State {
    /// [`step`] in place. The stage is taken out and not copied; each of these puts the next one in its place.
    pub(crate) fn on(&mut self, event: Event, now_ms: u64) -> Option<Command> {
        let before = (self.now_ms, self.asked_ms);
        // It was asked for when anything was last heard of.
        (self.now_ms, self.asked_ms) = (now_ms, patience::asked_ms(self.now_ms, now_ms));
        match (std::mem::replace(&mut self.stage, Stage::New), event) {
            (Stage::New, Event::Begin) => self.begin(now_ms),
            (Stage::Recording, Event::Committed) => self.check(),
            (Stage::Recording, Event::NotCommitted(why)) => self.not_recorded(why),
            (Stage::Checking(checking), Event::Answered(answer)) if !checking.is_waiting() => self.checked(checking, answer, now_ms),
            (Stage::Checking(checking), Event::Woken) if checking.is_waiting() => self.check_again(checking),
            (Stage::Marking(clearing), Event::Committed) => self.marked(clearing),
            (Stage::Marking(_), Event::NotCommitted(why)) => self.not_marked(why, now_ms),
            (Stage::Clearing(clearing), Event::Cleared) => self.cleared(*clearing, now_ms),
            (Stage::Clearing(_), Event::NotCleared(why)) => self.not_cleared(why, now_ms),
            (Stage::Sending, Event::Answered(answer)) => self.sent(answer, now_ms),
            (Stage::Tasking(task), Event::Committed) => self.settle(task),
            (Stage::Tasking(_), Event::NotCommitted(why)) => self.left(&why),
            (Stage::Settling(settling), Event::Answered(answer)) if !settling.is_waiting() => self.settled(settling, answer, now_ms),
            (Stage::Settling(settling), Event::Woken) if settling.is_waiting() => self.poll(settling),
            (Stage::Proving(proving), Event::Answered(answer)) if !proving.is_waiting() => self.proved(proving, answer, now_ms),
            (Stage::Proving(proving), Event::Woken) if proving.is_waiting() => self.prove_again(proving),
            (Stage::Telling(proving, tasks), Event::Taken(taken)) => self.told(proving, &tasks, &taken, now_ms),
            (Stage::Telling(proving, _), Event::NotTold(why)) => self.not_told(proving, &why, now_ms),
            (Stage::Ending(outcome), Event::Committed) => self.close(outcome, true),
            (Stage::Ending(outcome), Event::NotCommitted(why)) => self.not_ended(&outcome, &why),
            (Stage::Ending(outcome), Event::Resolved) => self.resolved(outcome),
            (stage, _) => {
                (self.stage, (self.now_ms, self.asked_ms)) = (stage, before);
                None
            }
        }
    }

    fn begin(&mut self, now_ms: u64) -> Option<Command> {
        if self.origin == Origin::Fresh {
            self.intent_ms = now_ms;
            self.stage = Stage::Recording;
            return Some(Command::Commit(Box::new(Record::Intent { operation: self.operation.clone(), at_ms: now_ms })));
        }
        match self.task.clone() {
            Some(task) => self.settle(task),
            None if self.sending == Sending::Never => self.never_sent(now_ms),
            None => self.resolve(Cause::new(Trouble::Other, "program-ended", "")),
        }
    }

    /// Nothing was sent, and nothing will be.
    fn not_recorded(&mut self, why: NotCommitted) -> Option<Command> {
        let outcome = match why {
            NotCommitted::Refused(refusal) => Outcome::refused(&refusal),
            NotCommitted::Repeated(first) => Outcome::not_run(Code::RequestRepeated, Evidence::default().with("operation", first.as_str())),
            NotCommitted::Failed(text) => Outcome::not_run(Code::JournalUnwritable, Evidence::default().with("said", &*text)),
        };
        self.close(outcome, false)
    }

    /// It was sent, and the journal does not take its task: from here on only a new start may touch it (design 6.13).
    fn left(&mut self, why: &NotCommitted) -> Option<Command> {
        let evidence = match why {
            NotCommitted::Failed(text) => self.evidence.clone().with("said", &**text),
            NotCommitted::Refused(_) | NotCommitted::Repeated(_) => self.evidence.clone(),
        };
        let evidence = self.with_task(evidence);
        let findings = Findings { evidence, ..Findings::default() };
        self.close(Outcome::held(Code::JournalUnwritable, Release::Reading, findings), false)
    }

    /// It is known what became of it, and the journal does not take it: nobody is told of an end that a crash would take back (S19).
    /// The next start reads the guest once more.
    fn not_ended(&mut self, outcome: &Outcome, why: &NotCommitted) -> Option<Command> {
        let Findings { evidence, observed } = outcome.findings().clone();
        let evidence = evidence.with("found", outcome.end().word());
        let evidence = match why {
            NotCommitted::Failed(text) => evidence.with("said", &**text),
            NotCommitted::Refused(_) | NotCommitted::Repeated(_) => evidence,
        };
        self.close(Outcome::held(Code::JournalUnwritable, Release::Reading, Findings { evidence, observed }), false)
    }

    /// A person was faster than the reading: what was read is told, and the journal has their word.
    fn resolved(&mut self, outcome: Outcome) -> Option<Command> {
        let observed = outcome.findings().observed.clone().with("resolved", "by a person meanwhile, whose word stands");
        self.close(outcome.with_observed(observed), false)
    }

    /// The one place from which the change is sent.
    fn send(&mut self, uptime_secs: Option<u64>, revision: Option<Revision>) -> Option<Command> {
        self.uptime_before_secs = uptime_secs;
        self.passed_ms = 0;
        self.stage = Stage::Sending;
        Some(Command::Ask(Ask::Send { place: self.place.clone(), change: self.operation.step.change.clone(), revision }))
    }

    fn sent(&mut self, answer: Answer, now_ms: u64) -> Option<Command> {
        match answer {
            Answer::Sent(Sent::Task(task)) => self.tasked(task, now_ms),
            Answer::Sent(Sent::Done) => self.prove(Why::Sent),
            Answer::Sent(Sent::No(cause)) => self.rejected(&cause, now_ms),
            Answer::Sent(Sent::NotDelivered(cause)) => self.not_delivered(&cause, now_ms),
            Answer::Sent(Sent::MayHaveRun(cause)) => self.resolve(cause),
            // Whatever that was, it does not say that nothing was done.
            other => self.resolve(cause_of(&other)),
        }
    }

    /// Nothing left this machine. Where there was no room what was read grows old: it is checked anew before it is tried again.
    fn not_delivered(&mut self, cause: &Cause, now_ms: u64) -> Option<Command> {
        if cause.trouble == Trouble::Busy && self.may_check_again() {
            return self.check();
        }
        let findings = Findings { evidence: cause.onto(Evidence::default()), ..Findings::default() };
        self.end(Outcome::failed(Code::NotDelivered, findings), now_ms)
    }

    /// The environment decided against it and nothing changed: a refusal where its cause is one of ours, otherwise a failure.
    fn rejected(&mut self, cause: &Cause, now_ms: u64) -> Option<Command> {
        let outcome = match check::rejection(&self.operation, cause) {
            Some(refusal) => Outcome::refused(&refusal),
            None => {
                let findings = Findings { evidence: cause.onto(Evidence::default()), ..Findings::default() };
                Outcome::failed(Code::ChangeRejected, findings)
            }
        };
        self.end(outcome, now_ms)
    }

    /// The task is known: it is written down before it is asked about.
    fn tasked(&mut self, task: TaskId, now_ms: u64) -> Option<Command> {
        self.task = Some(task.clone());
        self.stage = Stage::Tasking(task.clone());
        // What was held keeps its records: a task that turns up now is asked about without one.
        if self.origin == Origin::Held {
            return self.settle(task);
        }
        Some(Command::Commit(Box::new(Record::Tasked { id: self.operation.id.clone(), task, at_ms: now_ms })))
    }

    /// The answer was lost, or there was a crash: what became of it is found out by reading, never by sending again.
    fn resolve(&mut self, cause: Cause) -> Option<Command> {
        self.evidence = cause.onto(std::mem::take(&mut self.evidence));
        self.prove(Why::Unknown { looks: 0 })
    }

    fn wait(&mut self, ms: u64) -> Option<Command> {
        self.passed_ms = self.passed_ms.saturating_add(ms);
        Some(Command::Wait(ms))
    }

    fn with_task(&self, evidence: Evidence) -> Evidence {
        match &self.task {
            Some(task) => evidence.with("task", task.as_str()),
            None => evidence,
        }
    }

    /// The outcome is known: it is written down before anybody is told.
    fn end(&mut self, outcome: Outcome, now_ms: u64) -> Option<Command> {
        let id = self.operation.id.clone();
        let record = match (self.origin, outcome.end()) {
            (Origin::Fresh | Origin::Open, _) => Record::Ended { id, outcome: outcome.clone(), at_ms: now_ms },
            // Still nobody knows: what was held stays held, as it was.
            (Origin::Held, End::Held | End::Refused | End::NotRun) => return self.close(outcome, true),
            (Origin::Held, end) => {
                let resolution = if end == End::Done { Resolution::Done } else { Resolution::Failed };
                let reason = format!("read again: {}", outcome.code().map_or("it is as promised", |code| code.as_str()));
                Record::Resolved { id, resolution, by: "converger".into(), reason: reason.into(), at_ms: now_ms }
            }
        };
        self.stage = Stage::Ending(outcome);
        Some(Command::Commit(Box::new(record)))
    }

    fn close(&mut self, outcome: Outcome, is_recorded: bool) -> Option<Command> {
        self.stage = Stage::Ended { outcome, is_recorded };
        None
    }
}

/// The uptime of a guest before its reboot, as the held end of an earlier run has it.
fn recorded_uptime(outcome: &Outcome) -> Option<u64> {
    match outcome.findings().observed.get("uptime_before_secs") {
        Some(Fact::Number(secs)) => Some(*secs),
        _ => None,
    }
}

/// The cause that an answer to something else amounts to.
fn cause_of(answer: &Answer) -> Cause {
    match answer {
        Answer::Unread(cause) | Answer::NotThere(cause) => cause.clone(),
        _ => Cause::new(Trouble::Other, "other-answer", "the answer belongs to another question"),
    }
}

#[cfg(test)]
mod tests;
