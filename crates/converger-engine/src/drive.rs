//! A run, as pure as the two machines that it ties together: what happened goes in, and what is to be carried out comes out.
//!
//! What it sees to itself is what concerns the whole run: that an operation whose guest moved waits for room there, that nothing is sent
//! once the journal cannot be written (design 6.13) or a stop was asked for, and what is told of each operation in the end. The driver
//! puts a hand, a store and a clock around it; a simulation puts others around the very same.
//!
//! What never enters: clocks, stores, hands, and threads.

use std::collections::BTreeMap;

use converger_core::apply::{Answer, Cause, Evidence, History, Operation, OperationId, Outcome, Sent, Terms, Trouble, Uptime};
use converger_core::failure::Code;

use crate::driver::{Report, Reported};
use crate::operation::{self, Command, Event, NotCleared, NotCommitted, Patience, Phase};
use crate::schedule::{self, Item, Limits, OnFailure};

/// What follows from something that happened, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The turn of an operation has come.
    Begun(OperationId),
    /// An operation is so far. It has ended, too, where its turn will never come.
    Reached(OperationId, Phase),
    /// This is to be carried out for an operation, and what came of it fed back.
    Do(OperationId, Command),
}

/// A run under way.
#[derive(Debug)]
pub struct Drive {
    schedule: schedule::State,
    /// In the order in which they were added, which is that of the plan.
    order: Vec<OperationId>,
    held: BTreeMap<OperationId, Held>,
    /// A record could not be written: nothing is sent from then on.
    is_journal_lost: bool,
    /// What follows from what is being fed.
    effects: Vec<Effect>,
}

/// One operation in the drive's hands.
#[derive(Debug)]
struct Held {
    state: operation::State,
    began_ms: Option<u64>,
    ended_ms: Option<u64>,
    /// Its turn never came, for this reason.
    not_run: Option<Outcome>,
    /// What it does once there is room for it on the node that its guest moved to.
    parked: Option<Command>,
}

impl Drive {
    /// A run of nothing yet.
    #[must_use]
    pub fn new(limits: Limits, on_failure: OnFailure) -> Self {
        let schedule = schedule::State::new(limits, on_failure);
        Self { schedule, order: Vec::new(), held: BTreeMap::new(), is_journal_lost: false, effects: Vec::new() }
    }

    /// What became of these is to be found out by reading.
    #[must_use]
    pub fn recover(&mut self, unsettled: Vec<History>, patience: Patience, uptime: Option<&Uptime>, now_ms: u64) -> Vec<Effect> {
        let recover = |history| operation::State::recover(history, patience, uptime);
        let states: Vec<operation::State> = unsettled.into_iter().filter_map(recover).collect();
        let items = states.iter().map(|state| Item::of_recovered(state.operation())).collect();
        for state in states {
            self.add(state);
        }
        self.scheduled(schedule::Event::Submit(items), now_ms);
        self.taken()
    }

    /// These are to be carried out.
    #[must_use]
    pub fn submit(&mut self, operations: Vec<(Operation, Terms)>, patience: Patience, now_ms: u64) -> Vec<Effect> {
        let items = operations.iter().map(|(operation, _)| Item::of(operation)).collect();
        for (operation, terms) in operations {
            self.add(operation::State::new(operation, terms, patience));
        }
        self.scheduled(schedule::Event::Submit(items), now_ms);
        self.taken()
    }

    /// Something came of what was to be carried out for an operation.
    #[must_use]
    pub fn feed(&mut self, id: &OperationId, event: Event, now_ms: u64) -> Vec<Effect> {
        self.step(id, event, now_ms);
        self.taken()
    }

    /// Nothing new is begun from now on.
    #[must_use]
    pub fn stop(&mut self, code: Code, now_ms: u64) -> Vec<Effect> {
        self.scheduled(schedule::Event::Stop(code), now_ms);
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

    /// What became of each operation. Whatever has not ended is left as it is.
    #[must_use]
    pub fn report(mut self) -> Report {
        let mut reported = Vec::with_capacity(self.order.len());
        for id in std::mem::take(&mut self.order) {
            let Some(Held { state, began_ms, ended_ms, not_run, .. }) = self.held.remove(&id) else { continue };
            reported.push(Reported::new(&state, not_run, began_ms, ended_ms));
        }
        Report::new(reported)
    }

    fn taken(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    fn add(&mut self, state: operation::State) {
        let id = state.operation().id.clone();
        let held = Held { state, began_ms: None, ended_ms: None, not_run: None, parked: None };
        if self.held.insert(id.clone(), held).is_none() {
            self.order.push(id);
        }
    }

    fn scheduled(&mut self, event: schedule::Event, now_ms: u64) {
        let (limits, on_failure) = (Limits::default(), OnFailure::GoOn);
        let state = std::mem::replace(&mut self.schedule, schedule::State::new(limits, on_failure));
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
        self.effects.push(Effect::Reached(id, Phase::Ended));
    }

    /// One transition of an operation, and what it commands.
    fn step(&mut self, id: &OperationId, event: Event, now_ms: u64) {
        let event = self.heard(id, event);
        let Some(held) = self.held.get_mut(id) else { return };
        self.is_journal_lost |= matches!(&event, Event::NotCommitted(NotCommitted::Failed(_)));
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
        if self.is_journal_lost {
            self.scheduled(schedule::Event::Stop(Code::JournalUnwritable), now_ms);
        }
        if let Some(end) = end {
            self.scheduled(schedule::Event::Ended { id: id.clone(), end }, now_ms);
        }
    }

    /// A stop that came while the last word was waited for counts as much as one before it, and so does a journal that was lost.
    fn heard(&self, id: &OperationId, event: Event) -> Event {
        let lost = self.is_journal_lost.then_some(Code::JournalUnwritable);
        match (&event, lost.or_else(|| self.stopped(id))) {
            (Event::Cleared, Some(code)) => Event::NotCleared(NotCleared::Stopped(code)),
            _ => event,
        }
    }

    /// What is known here already is not asked for.
    fn carry_out(&mut self, id: &OperationId, command: Command, now_ms: u64) {
        let known = match &command {
            Command::Clear => self.stopped(id).map(|code| Event::NotCleared(NotCleared::Stopped(code))),
            Command::Ask(ask) if ask.is_mutation() && self.is_journal_lost => {
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
        self.schedule.stopped().filter(|_| !schedule::completes(operation))
    }
}
