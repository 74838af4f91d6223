//! The driver: carries out what a [`Drive`] wants done, over a [`Hand`], a store and a [`Clock`], and feeds back what came of it.
//!
//! It decides nothing. One task of the runtime holds the drive; only what takes time (a request, a commit, a wait) runs beside
//! it, at most one for each operation. What it sees to itself is the journal of the run.
//!
//! What never enters: Proxmox, text for people, and signals of the system; whoever has those says [`Signal`].

mod report;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use converger_core::apply::{
    Answer, Ask, Cause, End, History, Illegal, Operation, OperationId, Outcome, Place, Record, Release, RunId, TaskId, Terms, Trouble,
};
use converger_core::approve::ApprovedPlan;
use converger_core::evidence::Entry;
use converger_core::failure::Code;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::refusal::Refusal;
use converger_store::{Batch, Filter, LIST_MAX, Receipt, Refused, Standing, Store, StoreError, Write};
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock::{Clock, Steady};
use crate::drive::{Drive, Effect};
use crate::operation::{self, NotCleared, NotCommitted, Patience, Phase};
use crate::schedule::{Limits, OnFailure};

pub use report::{Report, Reported};

#[cfg(test)]
mod tests;

/// Something that asks an environment one thing at a time, once.
pub trait Hand: Send + Sync + 'static {
    /// The right to send one change. Whoever has it waits for nobody any more.
    type Turn: Send + 'static;

    /// Waits for the turn of a change to this guest, for a bounded time.
    fn turn(&self, place: Place) -> impl Future<Output = Result<Self::Turn, Cause>> + Send;

    /// Sends a change in a turn that was taken before.
    fn send(&self, turn: Self::Turn, ask: Ask) -> impl Future<Output = Answer> + Send;

    /// Asks. It never fails: what could not be asked or read is an answer too.
    fn ask(&self, ask: Ask) -> impl Future<Output = Answer> + Send;
}

/// What whoever started the run says while it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// Go on.
    #[default]
    GoOn,
    /// Begin nothing new; what is under way goes on to its end.
    Drain,
    /// Leave everything as it is. The journal knows what was under way, and the next start finds out what became of it.
    Quit,
}

/// How a run is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How much at once.
    pub limits: Limits,
    /// What a failure does to the rest.
    pub on_failure: OnFailure,
    /// How long is waited for what.
    pub patience: Patience,
}

impl Default for Settings {
    fn default() -> Self {
        Self { limits: Limits::default(), on_failure: OnFailure::GoOn, patience: Patience::default() }
    }
}

/// An operation is further than before.
#[derive(Clone, Copy, Debug)]
pub struct Notice<'n> {
    /// Which.
    pub operation: &'n Operation,
    /// How far.
    pub phase: Phase,
    /// How it ended, once it has.
    pub outcome: Option<&'n Outcome>,
}

/// Why nothing was carried out.
#[derive(Debug, Error)]
pub enum EngineError {
    /// The journal does not take the run, or cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The run was started for another plan, or not at all, or is over.
    #[error("the run `{0}` was not started for this plan, or is over; this is a defect of the program")]
    OtherRun(RunId),
    /// No ids were given for the operations of the plan.
    #[error("the operations of the plan have no ids; this is a defect of the program")]
    NoIds,
}

/// What carries plans out. All mutation in the program goes through one of these.
#[derive(Debug)]
pub struct Engine<H, S, C> {
    hand: Arc<H>,
    store: Arc<S>,
    clock: Arc<C>,
    settings: Settings,
}

impl<H: Hand, S: Store + 'static, C: Clock> Engine<H, S, C> {
    /// An engine over these.
    pub fn new(hand: Arc<H>, store: Arc<S>, clock: Arc<C>, settings: Settings) -> Self {
        Self { hand, store, clock, settings }
    }

    /// See [`unsettled`].
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn unsettled(&self, environment: &EnvironmentName) -> Result<Vec<History>, StoreError> {
        unsettled(&*self.store, environment).await
    }

    /// Finds out what became of these, by reading only. Whatever is still at work is held until the next reading: nobody waits for one
    /// guest before the others are looked at (L4).
    pub async fn recover(&self, unsettled: Vec<History>, signal: watch::Receiver<Signal>, notice: impl FnMut(Notice<'_>) + Send) -> Report {
        let mut work = Work::new(self, notice, signal);
        work.recover(unsettled, self.settings.patience.brief());
        work.go().await
    }

    /// Carries out a plan as this run, which the journal has as started for it, and beside it finds out what became of these: a guest whose past is not known comes later.
    ///
    /// # Errors
    /// Nothing was begun, because the journal has no such run or cannot be read.
    pub async fn apply(
        &self,
        plan: ApprovedPlan,
        run: RunId,
        ids: impl Fn(usize) -> Option<OperationId>,
        unsettled: Vec<History>,
        signal: watch::Receiver<Signal>,
        notice: impl FnMut(Notice<'_>) + Send,
    ) -> Result<Report, EngineError> {
        self.is_started(&plan, &run).await?;
        let operations = plan.into_operations(&run, ids).ok_or(EngineError::NoIds)?;
        let mut work = Work::new(self, notice, signal);
        work.recover(unsettled, self.settings.patience);
        work.submit(operations);
        let report = work.go().await;
        // A run whose end cannot be written down has ended all the same, and each of its operations says how.
        let _ = self.store.commit(Batch::from(Write::RunEnded { id: run, end: report.end(), at_ms: self.clock.now_ms() })).await;
        Ok(report)
    }

    /// What the run decides on is durable before anything of it is done; without it every intent would be refused.
    async fn is_started(&self, plan: &ApprovedPlan, run: &RunId) -> Result<(), EngineError> {
        let found = self.store.run(run.clone()).await?;
        let is_its_own = found.is_some_and(|found| found.run.plan == plan.digest() && found.ended.is_none());
        if is_its_own { Ok(()) } else { Err(EngineError::OtherRun(run.clone())) }
    }
}

/// A last word that is older than this is none: whoever was stopped in between is told what was said meanwhile (0017).
const LAST_WORD_MS: u64 = 2_000;

/// What came of something that took time.
enum Came<T> {
    Event(OperationId, operation::Event),
    /// There is room to send it, and this is the last word about that, asked for when the clock that nobody sets said this.
    Cleared(OperationId, operation::Event, T, u64),
    Signal(Signal, watch::Receiver<Signal>),
}

/// A run under way.
struct Work<'e, H: Hand, S, C, N> {
    engine: &'e Engine<H, S, C>,
    notice: N,
    drive: Drive,
    steady: Steady,
    /// Of those that are about to be sent.
    turns: BTreeMap<OperationId, H::Turn>,
    under_way: JoinSet<Came<H::Turn>>,
    is_left: bool,
}

impl<'e, H: Hand, S: Store + 'static, C: Clock, N: FnMut(Notice<'_>) + Send> Work<'e, H, S, C, N> {
    /// What was said before counts for the first step already, so that it is heard before anything is submitted.
    fn new(engine: &'e Engine<H, S, C>, notice: N, signal: watch::Receiver<Signal>) -> Self {
        let Settings { limits, on_failure, .. } = engine.settings;
        let mut work = Self {
            engine,
            notice,
            drive: Drive::new(limits, on_failure),
            steady: Steady::default(),
            turns: BTreeMap::new(),
            under_way: JoinSet::new(),
            is_left: false,
        };
        work.listen(signal);
        work
    }

    fn now_ms(&mut self) -> u64 {
        self.steady.read(self.engine.clock.now_ms(), self.engine.clock.awake_ms())
    }

    fn recover(&mut self, unsettled: Vec<History>, patience: Patience) {
        let (uptime, now_ms) = (self.engine.clock.uptime(), self.now_ms());
        let effects = self.drive.recover(unsettled, patience, uptime.as_ref(), now_ms);
        self.follow(effects);
    }

    fn submit(&mut self, operations: Vec<(Operation, Terms)>) {
        let now_ms = self.now_ms();
        let effects = self.drive.submit(operations, self.engine.settings.patience, now_ms);
        self.follow(effects);
    }

    async fn go(mut self) -> Report {
        while !self.drive.is_idle() && !self.is_left {
            match self.under_way.join_next().await {
                Some(Ok(Came::Event(id, event))) => {
                    let now_ms = self.now_ms();
                    let effects = self.drive.feed(&id, event, now_ms);
                    self.follow(effects);
                }
                Some(Ok(Came::Cleared(id, event, turn, asked_ms))) => {
                    let age_ms = self.engine.clock.awake_ms().saturating_sub(asked_ms);
                    self.turns.insert(id.clone(), turn);
                    let now_ms = self.now_ms();
                    let effects = self.drive.feed(&id, if age_ms > LAST_WORD_MS { outlived(event) } else { event }, now_ms);
                    self.follow(effects);
                    // Who does not send gives it on.
                    self.turns.remove(&id);
                }
                Some(Ok(Came::Signal(signal, receiver))) => self.obey(signal, receiver),
                // A panic beside us is a defect: nothing is known about its operation, and the journal makes stopping safe.
                Some(Err(_)) => self.is_left = true,
                None => break,
            }
        }
        // What is under way is let go: a request that is dropped may have arrived, and the journal has its intent.
        self.under_way.abort_all();
        self.drive.report()
    }

    fn follow(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Begun(_) => {}
                Effect::Reached(id, phase) => self.tell(&id, phase),
                Effect::Do(id, command) => self.carry_out(id, command),
            }
        }
    }

    fn tell(&mut self, id: &OperationId, phase: Phase) {
        let Some(state) = self.drive.state(id) else { return };
        let outcome = self.drive.outcome(id).filter(|_| phase == Phase::Ended);
        (self.notice)(Notice { operation: state.operation(), phase, outcome });
    }

    /// What takes time runs beside us.
    fn carry_out(&mut self, id: OperationId, command: operation::Command) {
        let Engine { hand, store, clock, .. } = self.engine;
        match command {
            operation::Command::Commit(record) => {
                let store = Arc::clone(store);
                self.under_way.spawn(async move { Came::Event(id, recorded(&*store, *record).await) });
            }
            operation::Command::Mark => {
                let (store, mark) = (Arc::clone(store), mark(&**clock, id.clone()));
                self.under_way.spawn(async move { Came::Event(id, committed(store.commit(Batch::from(mark)).await)) });
            }
            operation::Command::Clear => self.clear(id),
            operation::Command::Whose(tasks) => {
                let Some(operation) = self.drive.state(&id).map(operation::State::operation) else { return };
                let (store, environment) = (Arc::clone(store), operation.environment.clone());
                self.under_way.spawn(async move {
                    let event = taken(&*store, environment, &id, tasks).await;
                    Came::Event(id, event)
                });
            }
            operation::Command::Ask(ask) => {
                // Who reads once more in its turn gives that on.
                let (hand, turn) = (Arc::clone(hand), self.turns.remove(&id).filter(|_| ask.is_mutation()));
                self.under_way.spawn(async move {
                    let answer = match turn {
                        Some(turn) => hand.send(turn, ask).await,
                        None => hand.ask(ask).await,
                    };
                    Came::Event(id, operation::Event::Answered(answer))
                });
            }
            operation::Command::Wait(ms) => {
                let clock = Arc::clone(clock);
                self.under_way.spawn(async move {
                    clock.wait(ms).await;
                    Came::Event(id, operation::Event::Woken)
                });
            }
        }
    }

    /// The last word before a change is sent: what people said since its intent was taken. It is asked for once there is room to send,
    /// so that nothing is waited for between both (0017).
    fn clear(&mut self, id: OperationId) {
        let Some(state) = self.drive.state(&id) else { return };
        let (hand, store, clock) = (Arc::clone(&self.engine.hand), Arc::clone(&self.engine.store), Arc::clone(&self.engine.clock));
        let (place, environment, vmid) = (state.place().clone(), state.operation().environment.clone(), state.operation().guest.vmid);
        self.under_way.spawn(async move {
            match hand.turn(place).await {
                Ok(turn) => {
                    let asked_ms = clock.awake_ms();
                    Came::Cleared(id, cleared(&*store, environment, vmid).await, turn, asked_ms)
                }
                Err(cause) => Came::Event(id, operation::Event::NotCleared(NotCleared::NoRoom(cause))),
            }
        });
    }

    fn listen(&mut self, mut signal: watch::Receiver<Signal>) {
        let now = *signal.borrow_and_update();
        if now != Signal::GoOn {
            return self.obey(now, signal);
        }
        self.wait_for(signal);
    }

    fn wait_for(&mut self, mut signal: watch::Receiver<Signal>) {
        self.under_way.spawn(async move {
            // Whoever could say something is gone: then nobody will.
            if signal.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let said = *signal.borrow_and_update();
            Came::Signal(said, signal)
        });
    }

    fn obey(&mut self, signal: Signal, receiver: watch::Receiver<Signal>) {
        // Both may be heard at once, and what was not begun is told either way.
        if signal != Signal::GoOn {
            let now_ms = self.now_ms();
            let effects = self.drive.stop(Code::RunStopped, now_ms);
            self.follow(effects);
        }
        self.is_left |= signal == Signal::Quit;
        self.wait_for(receiver);
    }
}

/// What the journal has of an environment that must be found out by reading: what has no end, and what is held until a reading
/// tells. The earliest first.
///
/// # Errors
/// The journal cannot be read.
pub async fn unsettled(store: &impl Store, environment: &EnvironmentName) -> Result<Vec<History>, StoreError> {
    let mut found = store.open_operations(environment.clone()).await?;
    let mut before = None;
    loop {
        let filter =
            Filter { environment: Some(environment.clone()), standing: Some(Standing::Held), before: before.clone(), ..Filter::default() };
        let page = store.operations(filter, LIST_MAX).await?;
        before = page.last().map(|history| history.operation.id.clone());
        let is_last = page.len() < LIST_MAX as usize;
        let is_readable = |history: &History| matches!(&history.ended, Some((Outcome::Held { release: Release::Reading, .. }, _)));
        found.extend(page.into_iter().filter(is_readable));
        if is_last {
            break;
        }
    }
    found.sort_by_key(|history| history.at_ms);
    Ok(found)
}

/// What a store says about sending a change to a guest: whether somebody holds it or froze the environment.
pub async fn cleared(store: &impl Store, environment: EnvironmentName, vmid: Vmid) -> operation::Event {
    let said = async {
        let freeze = store.freeze(environment.clone()).await?.map(|freeze| Refusal::frozen(&freeze.reason));
        let hold = store.holds(environment).await?.into_iter().find(|hold| hold.vmid == vmid);
        Ok::<_, StoreError>(freeze.or_else(|| hold.map(|hold| Refusal::guest_held_by(&hold.by, &hold.reason))))
    };
    match said.await {
        Ok(None) => operation::Event::Cleared,
        Ok(Some(refusal)) => operation::Event::NotCleared(NotCleared::Refused(refusal)),
        Err(error) => operation::Event::NotCleared(NotCleared::Failed(error.to_string().into())),
    }
}

/// What a last word is worth that is heard late: a no stays one, and everything else is asked anew.
fn outlived(event: operation::Event) -> operation::Event {
    match event {
        operation::Event::Cleared => {
            let cause = Cause::new(Trouble::Busy, "too-slow", "the last word before it was sent was old when it was heard");
            operation::Event::NotCleared(NotCleared::NoRoom(cause))
        }
        no => no,
    }
}

/// Which of these tasks a store has as those of other operations than this one.
pub async fn taken(store: &impl Store, environment: EnvironmentName, id: &OperationId, tasks: Vec<TaskId>) -> operation::Event {
    match store.tasked(environment, tasks).await {
        Ok(known) => operation::Event::Taken(known.into_iter().filter(|(_, by)| by != id).map(|(task, _)| task).collect()),
        Err(error) => operation::Event::NotTold(error.to_string().into()),
    }
}

/// The mark that an operation may have been sent from here on.
fn mark(clock: &impl Clock, id: OperationId) -> Record {
    Record::Sending { id, at_ms: clock.now_ms(), up_ms: clock.uptime().map_or(0, |uptime| uptime.ms) }
}

/// Writes a record down. What the journal decides against is a decision too, and has its entry.
async fn recorded(store: &impl Store, record: Record) -> operation::Event {
    let intended = match &record {
        Record::Intent { operation, at_ms } => Some((operation.run.clone(), operation.guest.vmid, *at_ms)),
        _ => None,
    };
    let event = committed(store.commit(Batch::from(record)).await);
    let (Some((run, vmid, at_ms)), operation::Event::NotCommitted(NotCommitted::Refused(refusal))) = (intended, &event) else {
        return event;
    };
    // Nobody is told of a decision that is not written down (G10).
    match store.commit(Batch::from(Write::decision(Entry::refused(run, Some(vmid), refusal, at_ms)))).await {
        Ok(_) => event,
        Err(error) => operation::Event::NotCommitted(NotCommitted::Failed(error.to_string().into())),
    }
}

/// What a store's answer to a record means to the operation that it is of.
pub fn committed(answer: Result<Receipt, StoreError>) -> operation::Event {
    match answer {
        Ok(Receipt::Written { .. }) => operation::Event::Committed,
        Ok(Receipt::Repeated { first }) => operation::Event::NotCommitted(NotCommitted::Repeated(first)),
        Err(StoreError::Refused(Refused::Record { illegal: Illegal::AlreadyResolved(_), .. })) => operation::Event::Resolved,
        Err(error) => operation::Event::NotCommitted(not_committed(&error)),
    }
}

fn not_committed(error: &StoreError) -> NotCommitted {
    match error {
        StoreError::Refused(Refused::GuestHeld(hold)) => NotCommitted::Refused(Refusal::guest_held_by(&hold.by, &hold.reason)),
        StoreError::Refused(Refused::GuestTaken { by, .. }) => NotCommitted::Refused(Refusal::guest_taken_by(by.as_str())),
        StoreError::Refused(Refused::Frozen { reason, .. }) => NotCommitted::Refused(Refusal::frozen(reason)),
        StoreError::Refused(Refused::Name(conflict)) => NotCommitted::Refused(Refusal::name_conflict(conflict)),
        // Under this key another request was carried out: nothing is wrong with the journal, and others go on.
        StoreError::Refused(Refused::KeyReused { first, .. }) => NotCommitted::Repeated(first.clone()),
        other => NotCommitted::Failed(other.to_string().into()),
    }
}

/// The worst of several ends, as the exit code has it: failed, held, refused, not run, done.
pub fn worst(ends: impl Iterator<Item = End>) -> End {
    let rank = |end: &End| match end {
        End::Failed => 4,
        End::Held => 3,
        End::Refused => 2,
        End::NotRun => 1,
        End::Done => 0,
    };
    ends.max_by_key(rank).unwrap_or(End::Done)
}
