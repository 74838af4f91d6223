//! All runs of one executor, as pure as the two machines that it ties together: what happened goes in, and what is to be carried out comes out.
//!
//! What it sees to itself is what concerns more than one operation: that an operation whose guest moved waits for room there, that nothing is sent
//! once the journal cannot be written (design 6.13) or a stop was asked for, and what is reported of each operation in the end. The driver
//! puts an actuator, a store and a clock around it; a simulation puts others around the very same.
//!
//! Work is accepted while other work is in flight. A submission is one run, or one recovery: once its last operation has ended, [`Effect::SubmissionEnded`]
//! says so, and [`Drive::take_report`] forgets it. Memory is bounded by what is in flight and what waits.
//!
//! What never enters: clocks, stores, actuators, and threads.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::apply::{Answer, Cause, Evidence, History, Operation, OperationId, Outcome, RunId, Sent, Terms, Trouble, Uptime};
use converger_core::failure::Code;

use crate::driver::{Report, Reported};
use crate::operation::{self, Command, Event, NotCleared, NotCommitted, Patience, Phase};
use crate::schedule::{self, Item, Limits, OnFailure, StopScope};

#[cfg(test)]
mod tests;

/// A run or a recovery that was handed to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SubmissionId(u64);

/// How the operations of one run are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// What a failure means for the rest of the run.
    pub on_failure: OnFailure,
    /// How long is waited for what.
    pub patience: Patience,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { on_failure: OnFailure::GoOn, patience: Patience::default() }
    }
}

/// What follows from something that happened, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The turn of an operation has come.
    Begun(OperationId),
    /// An operation is so far. It has ended, too, where its turn will never come.
    Reached(OperationId, Phase),
    /// This is to be carried out for an operation, and what came of it fed back.
    Do(OperationId, Command),
    /// All operations of a submission have ended: [`Drive::take_report`] has its report.
    SubmissionEnded(SubmissionId),
}

/// Everything that is in flight or waits.
#[derive(Clone, Debug)]
pub struct Drive {
    schedule: schedule::State,
    /// How many submissions there were.
    made: u64,
    submissions: BTreeMap<SubmissionId, Submission>,
    held: BTreeMap<OperationId, Held>,
    /// Operations of this process that the journal may show without an end although it is being read to find those of others: all that were here
    /// since the reading began. None while it is not read.
    own: Option<BTreeSet<OperationId>>,
    /// What follows from what is being fed.
    effects: Vec<Effect>,
}

/// What was handed in together and is reported together.
#[derive(Clone, Debug, Default)]
struct Submission {
    /// In the order in which they were added, which is that of the plan.
    order: Vec<OperationId>,
    /// How many of them have not ended.
    open: usize,
    /// A record could not be written while it was open: nothing of it is sent from then on, whether or not a later write succeeds.
    is_journal_lost: bool,
}

/// One operation in the drive's hands.
#[derive(Clone, Debug)]
struct Held {
    state: operation::State,
    submission: SubmissionId,
    /// It has ended, or its turn will never come, and its submission knows.
    is_closed: bool,
    began_ms: Option<u64>,
    ended_ms: Option<u64>,
    /// Its turn never came, for this reason.
    not_run: Option<Outcome>,
    /// What it does once there is room for it on the node that its guest moved to.
    parked: Option<Command>,
}

impl Drive {
    /// Nothing yet, below these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let (submissions, held) = (BTreeMap::new(), BTreeMap::new());
        Self { schedule: schedule::State::new(limits), made: 0, submissions, held, own: None, effects: Vec::new() }
    }

    /// The journal is read from here on for operations that an earlier process left in flight.
    pub fn start_journal_reading(&mut self) {
        self.own = Some(self.held.keys().cloned().collect());
    }

    /// It was read: what is left without the operations that this process was executing in the meantime. Their intents may have no end in what was read,
    /// and recovery would take them for operations of a process that died.
    #[must_use]
    pub fn end_journal_reading(&mut self, mut found: Vec<History>) -> Vec<History> {
        let own = self.own.take().unwrap_or_default();
        found.retain(|history| !own.contains(history.id()) && !self.held.contains_key(history.id()));
        found
    }

    /// What became of these is to be found out by reading. Those that are here already are left out: this process is executing them.
    #[must_use]
    pub fn recover(
        &mut self,
        unsettled: Vec<History>,
        patience: Patience,
        uptime: Option<&Uptime>,
        now_ms: u64,
    ) -> (SubmissionId, Vec<Effect>) {
        let recover = |history| operation::State::recover(history, patience, uptime);
        let states = unsettled.into_iter().filter_map(recover).collect();
        self.accept(states, Item::of_recovered, now_ms)
    }

    /// These are to be carried out.
    #[must_use]
    pub fn submit(&mut self, operations: Vec<(Operation, Terms)>, options: RunOptions, now_ms: u64) -> (SubmissionId, Vec<Effect>) {
        let RunOptions { on_failure, patience } = options;
        let states = operations.into_iter().map(|(operation, terms)| operation::State::new(operation, terms, patience)).collect();
        self.accept(states, |operation| Item::of(operation, on_failure), now_ms)
    }

    /// Something came of what was to be carried out for an operation.
    #[must_use]
    pub fn feed(&mut self, id: &OperationId, event: Event, now_ms: u64) -> Vec<Effect> {
        self.step(id, event, now_ms);
        self.taken()
    }

    /// Nothing new of any run is begun from now on.
    #[must_use]
    pub fn stop(&mut self, code: Code, now_ms: u64) -> Vec<Effect> {
        self.scheduled(schedule::Event::Stop { scope: StopScope::Everything, code }, now_ms);
        self.taken()
    }

    /// Nothing new of this run is begun from now on.
    #[must_use]
    pub fn stop_run(&mut self, run: RunId, code: Code, now_ms: u64) -> Vec<Effect> {
        self.scheduled(schedule::Event::Stop { scope: StopScope::Run(run), code }, now_ms);
        self.taken()
    }

    /// Whether nothing is under way and nothing waits.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.schedule.is_idle()
    }

    /// How many are under way.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.schedule.under_way()
    }

    /// An operation as it is now.
    #[must_use]
    pub fn state(&self, id: &OperationId) -> Option<&operation::State> {
        self.held.get(id).map(|held| &held.state)
    }

    /// How an operation ended, once it has, or why its turn will never come.
    #[must_use]
    pub fn outcome(&self, id: &OperationId) -> Option<&Outcome> {
        let held = self.held.get(id)?;
        held.not_run.as_ref().or_else(|| held.state.ended())
    }

    /// The submission that an operation belongs to.
    #[must_use]
    pub fn submission_of(&self, id: &OperationId) -> Option<SubmissionId> {
        self.held.get(id).map(|held| held.submission)
    }

    /// How each operation of a submission ended, after which it is forgotten. Whatever has not ended is left as it is.
    #[must_use]
    pub fn take_report(&mut self, submission: SubmissionId) -> Report {
        let Submission { order, .. } = self.submissions.remove(&submission).unwrap_or_default();
        let mut reported = Vec::with_capacity(order.len());
        for id in order {
            let Some(Held { state, began_ms, ended_ms, not_run, .. }) = self.held.remove(&id) else { continue };
            reported.push(Reported::new(&state, not_run, began_ms, ended_ms));
        }
        Report::new(reported)
    }

    /// How many operations are known: those that wait, are in flight, or belong to a submission that has not ended.
    #[must_use]
    pub fn operation_count(&self) -> usize {
        self.held.len()
    }

    /// How many entries all its collections have together: none once every report was taken.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        let own = self.own.as_ref().map_or(0, BTreeSet::len);
        self.schedule.entry_count() + self.submissions.len() + self.held.len() + own + self.effects.len()
    }

    fn taken(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Takes operations in; ids that are known already are left out.
    fn accept(&mut self, states: Vec<operation::State>, item: impl Fn(&Operation) -> Item, now_ms: u64) -> (SubmissionId, Vec<Effect>) {
        let submission = SubmissionId(self.made);
        self.made += 1;
        self.submissions.insert(submission, Submission::default());
        let mut items = Vec::with_capacity(states.len());
        for state in states {
            let item = item(state.operation());
            if self.add(state, submission) {
                items.push(item);
            }
        }
        self.scheduled(schedule::Event::Submit(items), now_ms);
        // A submission of nothing has ended as soon as it was made.
        if self.submissions.get(&submission).is_some_and(|submission| submission.order.is_empty()) {
            self.effects.push(Effect::SubmissionEnded(submission));
        }
        (submission, self.taken())
    }

    fn add(&mut self, state: operation::State, submission: SubmissionId) -> bool {
        let id = state.operation().id.clone();
        let Some(own) = self.submissions.get_mut(&submission).filter(|_| !self.held.contains_key(&id)) else { return false };
        own.order.push(id.clone());
        own.open += 1;
        self.own.as_mut().map(|own| own.insert(id.clone()));
        let held = Held { state, submission, is_closed: false, began_ms: None, ended_ms: None, not_run: None, parked: None };
        self.held.insert(id, held);
        true
    }

    /// An operation has ended, or its turn will never come.
    fn close(&mut self, id: &OperationId) {
        let Some(held) = self.held.get_mut(id).filter(|held| !held.is_closed) else { return };
        held.is_closed = true;
        let Some(submission) = self.submissions.get_mut(&held.submission) else { return };
        submission.open = submission.open.saturating_sub(1);
        if submission.open == 0 {
            self.effects.push(Effect::SubmissionEnded(held.submission));
        }
    }

    fn scheduled(&mut self, event: schedule::Event, now_ms: u64) {
        let state = std::mem::replace(&mut self.schedule, schedule::State::new(Limits::default()));
        let (state, commands) = schedule::step(state, event);
        self.schedule = state;
        for command in commands {
            match command {
                schedule::Command::Begin(id) => self.step(&id, Event::Begin, now_ms),
                schedule::Command::Resume(id) => {
                    if let Some(command) = self.held.get_mut(&id).and_then(|held| held.parked.take()) {
                        self.carry_out(&id, command, now_ms);
                    }
                }
                schedule::Command::NotRun { id, code, evidence } => self.not_run(id, code, evidence),
            }
        }
    }

    fn not_run(&mut self, id: OperationId, code: Code, evidence: Evidence) {
        let Some(held) = self.held.get_mut(&id) else { return };
        held.not_run = Some(Outcome::not_run(code, evidence));
        self.effects.push(Effect::Reached(id.clone(), Phase::Ended));
        self.close(&id);
    }

    /// One transition of an operation, and what it commands.
    fn step(&mut self, id: &OperationId, event: Event, now_ms: u64) {
        let event = self.heard(id, event);
        let Some(held) = self.held.get_mut(id) else { return };
        let is_journal_lost = matches!(&event, Event::NotCommitted(NotCommitted::Failed(_)));
        if is_journal_lost {
            // Later submissions find out by their own intents whether it can be written again.
            self.submissions.values_mut().for_each(|submission| submission.is_journal_lost = true);
        }
        if held.began_ms.is_none() {
            held.began_ms = Some(now_ms);
            self.effects.push(Effect::Begun(id.clone()));
        }
        let before = held.state.phase();
        let command = held.state.on(event, now_ms);
        if held.state.phase() != before {
            self.effects.push(Effect::Reached(id.clone(), held.state.phase()));
        }
        let end = held.state.ended().map(Outcome::end);
        held.ended_ms = end.map(|_| now_ms);
        let moved = self.schedule.node_of(id).and_then(|counted| held.state.moved_from(counted));
        match (command, moved) {
            (Some(command), Some(node)) => {
                held.parked = Some(command);
                self.scheduled(schedule::Event::Moved { id: id.clone(), node }, now_ms);
            }
            (Some(command), None) => self.carry_out(id, command, now_ms),
            (None, _) => {}
        }
        if is_journal_lost {
            self.scheduled(schedule::Event::Stop { scope: StopScope::OpenRuns, code: Code::JournalUnwritable }, now_ms);
        }
        if let Some(end) = end {
            self.scheduled(schedule::Event::Ended { id: id.clone(), end }, now_ms);
            self.close(id);
        }
    }

    fn is_journal_lost(&self, id: &OperationId) -> bool {
        let submission = self.submission_of(id).and_then(|submission| self.submissions.get(&submission));
        submission.is_some_and(|submission| submission.is_journal_lost)
    }

    /// A stop that came while the last word was waited for counts as much as one before it, and so does a journal that was lost.
    fn heard(&self, id: &OperationId, event: Event) -> Event {
        let lost = self.is_journal_lost(id).then_some(Code::JournalUnwritable);
        match (&event, lost.or_else(|| self.stopped(id))) {
            (Event::Cleared, Some(code)) => Event::NotCleared(NotCleared::Stopped(code)),
            _ => event,
        }
    }

    /// What is known here already is not asked for.
    fn carry_out(&mut self, id: &OperationId, command: Command, now_ms: u64) {
        let known = match &command {
            Command::Clear => self.stopped(id).map(|code| Event::NotCleared(NotCleared::Stopped(code))),
            Command::Ask(ask) if ask.is_mutation() && self.is_journal_lost(id) => {
                let cause = Cause::new(Trouble::Other, Code::JournalUnwritable.word(), "");
                Some(Event::Answered(Answer::Sent(Sent::NotDelivered(cause))))
            }
            Command::Commit(_) | Command::Mark | Command::Whose(_) | Command::Ask(_) | Command::Wait(_) => None,
        };
        match known {
            Some(event) => self.step(id, event, now_ms),
            None => self.effects.push(Effect::Do(id.clone(), command)),
        }
    }

    /// Why an operation that is ready is not sent any more. The second half of a restart goes on after a stop: without it the guest
    /// would stay down.
    fn stopped(&self, id: &OperationId) -> Option<Code> {
        let operation = self.state(id)?.operation();
        self.schedule.stop_code(id).filter(|_| !schedule::completes(operation))
    }
}
