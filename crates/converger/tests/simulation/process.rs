//! One life of our process: it recovers what is open, plans, and carries the plan out, until it is done or dies.
//!
//! What is done when is decided by the program's own [`Drive`]; here it is carried out on a virtual clock, and what came of it is fed back
//! when its time has come. What never enters: real time, sockets, threads, and any rule of the engine.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use converger_adapters::proxmox::client::TokenId;
use converger_adapters::proxmox::codec::{self, Failure};
use converger_adapters::proxmox::hand::{self, Caller};
use converger_core::apply::{
    Answer, Ask, Cause, End, Freeze, History, Hold, Operation, OperationId, Outcome, Place, Record, Sent, Target, TaskId, TaskSeen, Terms,
    Trouble, Word,
};
use converger_core::failure::Code;
use converger_core::guest::Vmid;
use converger_engine::clock::Steady;
use converger_engine::drive::{Drive, Effect, RunOptions};
use converger_engine::driver::{cleared, committed, taken};
use converger_engine::operation::{self, Command, Event, NotCleared, Phase};
use converger_store::{Fault, MemoryStore, Receipt, Store as _, StoreError, Write};
use futures_util::FutureExt as _;

use super::bugs::{self, Bug};
use super::harm::{Harm, Kind};
use super::oracle::{Against, Mutation, Oracle};
use super::recall;
use super::scene::{Scene, TOKEN};
use super::stage::Stage;
use super::trace::Brief;

/// A process that does more than this goes round in circles.
const COMMANDS_MAX: u64 = 20_000;

/// The process is gone, and nothing of it is left but its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Died;

/// What the process is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Read,
    Write,
    Send,
}

/// A process at work.
pub(crate) struct Life<'l> {
    pub(crate) stage: &'l mut Stage,
    pub(crate) store: MemoryStore,
    pub(crate) oracle: &'l mut Oracle,
    pub(crate) scene: &'l Scene,
    pub(crate) bug: Option<Bug>,
    skew_ms: i64,
    steady: Cell<Steady>,
    /// That of the process, which also recovered before it planned.
    drive: &'l mut Drive,
    caller: Caller,
    /// What was begun.
    shapes: BTreeMap<OperationId, Arc<Operation>>,
    sent: BTreeSet<OperationId>,
    queue: BTreeMap<(u64, u64), (OperationId, Event)>,
    made: u64,
    commands: u64,
    dies_after: bool,
    /// What the machine slept between the last word and the change that is being sent.
    slept_ms: u64,
    /// When a planted bug last read a guest, by its own clock.
    asked_ms: u64,
    /// What happens to the next commit.
    fault: Option<(Kind, Fault)>,
    /// The last commit could not be written; the place in the queue at which the process is told so.
    has_failed: bool,
    told_failed: Option<(u64, u64)>,
    /// Somebody asked for a stop, and nobody has heard it yet.
    is_drained: bool,
    /// There is no room to send the next change in.
    is_full: bool,
    /// Records that a planted bug keeps back.
    kept_back: Vec<Record>,
}

impl<'l> Life<'l> {
    pub(crate) fn new(
        stage: &'l mut Stage,
        store: MemoryStore,
        oracle: &'l mut Oracle,
        scene: &'l Scene,
        bug: Option<Bug>,
        drive: &'l mut Drive,
    ) -> Self {
        oracle.drives();
        Self {
            stage,
            store,
            oracle,
            scene,
            bug,
            skew_ms: 0,
            steady: Cell::default(),
            drive,
            caller: Caller { token: TokenId::new(TOKEN).unwrap_or_else(|| panic!("a token")), cluster: None },
            shapes: BTreeMap::new(),
            sent: BTreeSet::new(),
            queue: BTreeMap::new(),
            made: 0,
            commands: 0,
            dies_after: false,
            slept_ms: 0,
            asked_ms: 0,
            fault: None,
            has_failed: false,
            told_failed: None,
            is_drained: false,
            is_full: false,
            kept_back: Vec::new(),
        }
    }

    /// Carries these out, and goes on until nothing is under way.
    pub(crate) fn carry_out(&mut self, mut operations: Vec<(Operation, Terms)>) -> Result<(), Died> {
        for (operation, _) in &mut operations {
            self.oracle.planned(operation);
            bugs::operation(self.bug, operation);
        }
        let ids: Vec<OperationId> = operations.iter().map(|(operation, _)| operation.id.clone()).collect();
        let options = RunOptions { on_failure: bugs::on_failure(self.bug, self.scene.on_failure), patience: self.scene.patience };
        let (_, effects) = self.drive.submit(operations, options, self.clock());
        self.follow(effects)?;
        if self.bug == Some(Bug::TwoAtOnce) {
            for id in ids {
                self.feed(&id, Event::Begin)?;
            }
        }
        self.go()
    }

    /// Finds out what became of these by reading.
    pub(crate) fn resolve(&mut self, unsettled: Vec<History>) -> Result<(), Died> {
        let (patience, uptime) = (bugs::patience(self.bug, self.scene.patience.brief()), self.stage.uptime());
        let (_, effects) = self.drive.recover(unsettled, patience, Some(&uptime), self.clock());
        self.follow(effects)?;
        self.go()
    }

    fn go(&mut self) -> Result<(), Died> {
        while let Some((place, (id, event))) = self.queue.pop_first() {
            if place.0 > self.stage.now_ms {
                self.oracle.time_passes();
            }
            self.stage.pass_to(place.0);
            if self.told_failed.is_some_and(|told| told <= place) {
                self.oracle.told_unwritten();
            }
            if std::mem::take(&mut self.is_drained) {
                self.oracle.drained();
                self.stage.has_struck(Kind::Drained);
                let effects = self.drive.stop(Code::RunStopped, self.clock());
                self.follow(effects)?;
            }
            self.feed(&id, event)?;
        }
        // What has ended is forgotten, so that a process may go on for months.
        let has_forgotten = self.bug.is_some() || self.drive.entry_count() == 0;
        self.oracle.rests(self.drive.is_idle() && has_forgotten);
        Ok(())
    }

    fn feed(&mut self, id: &OperationId, event: Event) -> Result<(), Died> {
        // With the bug, whatever was read is as young as if it had been read now.
        let is_young = self.bug == Some(Bug::OldReading) && event == Event::Cleared;
        let effects = self.drive.feed(id, event, if is_young { self.asked_ms } else { self.clock() });
        self.follow(effects)
    }

    fn follow(&mut self, effects: Vec<Effect>) -> Result<(), Died> {
        for effect in effects {
            match effect {
                Effect::Begun(id) => self.begun(&id),
                Effect::Reached(id, Phase::Ended) => self.reached_its_end(&id)?,
                Effect::Reached(..) => {}
                Effect::Do(id, command) => self.carry(&id, command)?,
                // With a planted bug operations that have ended may go on: they are not forgotten then.
                Effect::SubmissionEnded(submission) if self.bug.is_none() => drop(self.drive.take_report(submission)),
                Effect::SubmissionEnded(_) => {}
            }
        }
        Ok(())
    }

    /// Its story is over, or never begins.
    fn reached_its_end(&mut self, id: &OperationId) -> Result<(), Died> {
        let Some(state) = self.drive.state(id) else { return Ok(()) };
        if state.ended().is_some() {
            let state = state.clone();
            self.ended(&state);
            return Ok(());
        }
        let code = self.drive.outcome(id).and_then(Outcome::code).map_or("", |code| code.as_str()).to_owned();
        if bugs::begins_all_the_same(self.bug, &code, self.oracle.is_stopped()) {
            return self.feed(id, Event::Begin);
        }
        self.stage.tell(format_args!("{id}: not run, {code}"));
        self.stage.sometimes("an operation was not run");
        self.oracle.not_run(id, &code);
        Ok(())
    }

    /// What a planted bug does about what is found open, in the place of reading.
    pub(crate) fn planted_recovery(&mut self, operation: &Operation) -> Result<(), Died> {
        let id = operation.id.clone();
        self.oracle.begun(&id, true);
        match self.bug {
            Some(Bug::ResendOnRecovery) => {
                let digest = self.stage.world.truth(operation.guest.vmid.get()).map(|truth| truth.digest);
                let revision = digest.as_deref().and_then(converger_core::apply::Revision::new);
                let Target { node, kind, vmid, .. } = &operation.guest;
                let place = Place { node: node.clone(), kind: *kind, vmid: *vmid };
                let ask = Ask::Send { place, change: operation.step.change.clone(), revision };
                let _ = self.exchange(&id, operation, &ask);
                Err(Died)
            }
            _ => {
                self.give_up(&id);
                Ok(())
            }
        }
    }

    /// A planted bug writes down that nothing was carried out, and says so.
    fn give_up(&mut self, id: &OperationId) {
        let outcome = Outcome::failed(Code::NotCarriedOut, converger_core::apply::Findings::default());
        let record = Record::Ended { id: id.clone(), outcome: outcome.clone(), at_ms: self.clock() };
        let is_recorded = self.journal(&record) == Event::Committed;
        if is_recorded {
            self.oracle.acknowledged(&record);
        }
        self.oracle.ended(id, &outcome, is_recorded, 0);
    }

    fn begun(&mut self, id: &OperationId) {
        let Some(state) = self.drive.state(id) else { return };
        let operation = state.operation();
        self.stage.tell(format_args!("{id}: begins, {} of {}", operation.step.change.word(), operation.guest.vmid));
        self.oracle.begun(id, state.is_recovered());
        self.shapes.insert(id.clone(), Arc::new(operation.clone()));
    }

    fn clock(&self) -> u64 {
        let mut steady = self.steady.get();
        let now_ms = steady.read(self.stage.now_ms.saturating_add_signed(self.skew_ms), self.stage.awake_ms());
        self.steady.set(steady);
        now_ms
    }

    fn carry(&mut self, id: &OperationId, command: Command) -> Result<(), Died> {
        let Some(operation) = self.shapes.get(id).cloned() else { return Ok(()) };
        match command {
            Command::Commit(record) => self.commit(id, *record),
            Command::Mark => {
                let up_ms = self.stage.awake_ms();
                self.commit(id, Record::Sending { id: id.clone(), at_ms: self.clock(), up_ms })
            }
            Command::Ask(ask) => self.ask(id, &operation, ask),
            // Before anybody is asked for the last word.
            Command::Clear if std::mem::take(&mut self.is_full) => {
                self.stage.has_struck(Kind::NoRoom);
                let word = Word::new("busy").unwrap_or_else(|| panic!("a word"));
                let cause = Cause { trouble: Trouble::Busy, word, text: "no answer to earlier requests yet".into() };
                self.later(self.stage.now_ms, id, Event::NotCleared(NotCleared::NoRoom(cause)));
                Ok(())
            }
            Command::Clear => {
                self.oracle.last_word(id, self.against(&operation), self.stage.now_ms);
                let said = cleared(&self.store, operation.environment.clone(), operation.guest.vmid).now_or_never();
                let said = said.unwrap_or_else(|| panic!("nothing here waits"));
                self.later(self.stage.now_ms, id, bugs::cleared(self.bug, said));
                Ok(())
            }
            Command::Whose(tasks) => {
                let said = taken(&self.store, operation.environment.clone(), id, tasks).now_or_never();
                self.later(self.stage.now_ms, id, said.unwrap_or_else(|| panic!("nothing here waits")));
                Ok(())
            }
            Command::Wait(ms) => {
                self.later(self.stage.now_ms + ms, id, Event::Woken);
                Ok(())
            }
        }
    }

    /// What people have said against a change, as the journal has it.
    fn against(&self, operation: &Operation) -> Option<Against> {
        let environment = &operation.environment;
        let freeze = self.store.freeze(environment.clone()).now_or_never().and_then(Result::ok).flatten();
        let holds = self.store.holds(environment.clone()).now_or_never().and_then(Result::ok).unwrap_or_default();
        let is_held = holds.iter().any(|hold| hold.vmid == operation.guest.vmid);
        freeze.map(|_| Against::Freeze).or_else(|| is_held.then_some(Against::Hold))
    }

    fn later(&mut self, at_ms: u64, id: &OperationId, event: Event) {
        self.made += 1;
        self.queue.insert((at_ms, self.made), (id.clone(), event));
    }

    /// Something is about to be done to the world or to the store: the moment for whatever strikes the process.
    fn about_to_act(&mut self, act: Act) -> Result<(), Died> {
        self.commands += 1;
        if self.commands > COMMANDS_MAX {
            self.oracle.broken_by("L3", format!("the process did {COMMANDS_MAX} things and goes on"));
            return Err(Died);
        }
        let (harms, before_ms) = (self.stage.command(act == Act::Send), self.stage.now_ms);
        for harm in harms {
            self.struck(&harm)?;
        }
        // Nothing but a machine that sleeps takes time here.
        self.slept_ms = if act == Act::Send { self.stage.now_ms - before_ms } else { 0 };
        if self.slept_ms > 0 {
            self.stage.sometimes("the machine slept between the last word and the sending");
        }
        Ok(())
    }

    fn struck(&mut self, harm: &Harm) -> Result<(), Died> {
        self.stage.tell(format_args!("harm: {:?}", harm.kind));
        let environment = self.scene.desired.environment().clone();
        let (by, reason, at_ms): (Box<str>, Box<str>, u64) = ("ann".into(), "maintenance".into(), self.stage.now_ms);
        let has_struck = match harm.kind {
            Kind::CrashBefore | Kind::CrashAfter => {
                self.dies_after = true;
                true
            }
            Kind::PowerLost => {
                self.stage.lose_power();
                true
            }
            Kind::OwnClockJump => {
                self.skew_ms = i64::try_from(harm.number % 7_200_000).unwrap_or(0) - 3_600_000;
                self.skew_ms != 0
            }
            Kind::Asleep => {
                self.stage.sleep(3_600_000);
                true
            }
            Kind::HeldByPerson => {
                let vmid = Vmid::new(u64::from(harm.vmid)).unwrap_or_else(|| panic!("an id"));
                self.store.commit_now(Write::Hold(Hold { environment, vmid, by, reason, at_ms }).into()).is_ok()
            }
            Kind::Frozen => self.store.commit_now(Write::Freeze(Freeze { environment, by, reason, at_ms }).into()).is_ok(),
            // Heard when the next thing comes back.
            Kind::Drained => {
                self.is_drained = true;
                false
            }
            // Noticed when a change is to be sent.
            Kind::NoRoom => {
                self.is_full = true;
                false
            }
            _ => {
                self.fault = harm.store_fault().map(|fault| (harm.kind, fault)).or(self.fault);
                false
            }
        };
        if has_struck {
            self.stage.has_struck(harm.kind);
        }
        if matches!(harm.kind, Kind::CrashBefore | Kind::PowerLost) { Err(Died) } else { Ok(()) }
    }

    fn has_acted(&mut self) -> Result<(), Died> {
        if self.dies_after { Err(Died) } else { Ok(()) }
    }

    /// Writes beside the journal: that a run begins or ends.
    pub(crate) fn write(&mut self, write: Write) -> Result<bool, Died> {
        self.about_to_act(Act::Write)?;
        let written = self.store.commit_now(write.into());
        self.has_acted()?;
        match written {
            Err(StoreError::Stopped { .. }) => Err(Died),
            other => Ok(other.is_ok()),
        }
    }

    fn commit(&mut self, id: &OperationId, record: Record) -> Result<(), Died> {
        self.about_to_act(Act::Write)?;
        let record = bugs::record(self.bug, record);
        self.stage.tell(format_args!("{id}: commit {}", word(&record)));
        let event = match self.planted_commit(&record) {
            Some(event) => event,
            None => self.journal(&record),
        };
        self.has_acted()?;
        if event == Event::Committed {
            self.oracle.acknowledged(&record);
        } else {
            self.stage.sometimes("a record was not taken");
            self.oracle.turned_down(id);
        }
        self.later(self.stage.now_ms + 2, id, event);
        if std::mem::take(&mut self.has_failed) {
            self.told_failed.get_or_insert((self.stage.now_ms + 2, self.made));
        }
        Ok(())
    }

    fn journal(&mut self, record: &Record) -> Event {
        // A mark is not synced, so that no sync of it can fail.
        let fault = self.fault.take_if(|(_, fault)| record.must_be_durable() || *fault == Fault::Full);
        if let Some((_, fault)) = fault {
            self.store.fail_next(fault);
        }
        let answer = self.store.commit_now(record.clone().into());
        if let (Some((kind, _)), Err(StoreError::Full { .. } | StoreError::Stopped { .. })) = (fault, &answer) {
            self.stage.has_struck(kind);
        }
        match &answer {
            Ok(Receipt::Written { .. }) => self.oracle.durable(record),
            Ok(Receipt::Repeated { .. }) => self.stage.sometimes("a request was repeated"),
            Err(StoreError::Refused(refused)) => self.stage.tell(format_args!("store: {refused}")),
            Err(error) => {
                self.stage.tell(format_args!("store: {error}"));
                if matches!(error, StoreError::Stopped { .. }) {
                    self.stage.sometimes("a sync failed");
                }
                self.oracle.unwritten(record.id());
                self.has_failed = true;
            }
        }
        bugs::committed(self.bug, record, committed(answer))
    }

    /// What a planted bug does in the place of a commit.
    fn planted_commit(&mut self, record: &Record) -> Option<Event> {
        let (is_intent, is_mark) = (matches!(record, Record::Intent { .. }), matches!(record, Record::Sending { .. }));
        match self.bug? {
            Bug::SkipIntent if is_intent || is_mark => Some(Event::Committed),
            Bug::SkipMark if is_mark => Some(Event::Committed),
            Bug::ForgetTask if matches!(record, Record::Tasked { .. }) => Some(Event::Committed),
            Bug::SendBeforeCommit if is_intent || is_mark => {
                self.kept_back.push(record.clone());
                Some(Event::Committed)
            }
            Bug::SendBeforeCommit => {
                for record in std::mem::take(&mut self.kept_back) {
                    self.journal(&record);
                }
                None
            }
            Bug::AcknowledgeFirst => {
                for record in std::mem::replace(&mut self.kept_back, vec![record.clone()]) {
                    self.journal(&record);
                }
                Some(Event::Committed)
            }
            _ => None,
        }
    }

    fn ask(&mut self, id: &OperationId, operation: &Operation, ask: Ask) -> Result<(), Died> {
        self.about_to_act(if ask.is_mutation() { Act::Send } else { Act::Read })?;
        let has_sent = self.sent.contains(id) || self.drive.state(id).is_some_and(operation::State::is_recovered);
        if self.bug == Some(Bug::StaleRead) && !has_sent && matches!(ask, Ask::Status(_)) {
            // Everything is as it was planned on, it thinks.
            return self.believe_the_plan(id, operation);
        }
        if matches!(ask, Ask::Status(_)) {
            self.asked_ms = self.clock();
        }
        let ask = match self.bug {
            Some(bug) => {
                let digest = self.stage.world.truth(operation.guest.vmid.get()).map(|truth| truth.digest);
                bugs::ask(bug, operation, ask, digest.as_deref())
            }
            None => ask,
        };
        let (answer, at_ms) = self.exchange(id, operation, &ask);
        self.has_acted()?;
        self.stage.tell(format_args!("{id}: {} -> {}", ask.word(), Brief(&answer)));
        let (answer, at_ms) = match (&ask, &answer, self.bug) {
            (Ask::Send { .. }, Answer::Sent(Sent::MayHaveRun(_)), Some(Bug::RetryLostAnswer)) => self.exchange(id, operation, &ask),
            (_, Answer::Unread(_), Some(Bug::AskForEver)) => self.until_answered(id, operation, &ask),
            (_, Answer::Tasks(tasks), Some(Bug::BelieveTheList)) if tasks.is_empty() => return self.believe_the_list(id),
            _ => (answer, at_ms),
        };
        if ask.is_mutation() {
            self.sent.insert(id.clone());
        }
        let answer = bugs::answer(self.bug, operation, answer, has_sent);
        self.later(at_ms, id, Event::Answered(answer));
        Ok(())
    }

    /// Goes straight to the change, on what the plan says.
    fn believe_the_plan(&mut self, id: &OperationId, operation: &Operation) -> Result<(), Died> {
        let Ok(place) = self.drive.state(id).map(|state| state.place().clone()).ok_or(()) else { return Ok(()) };
        let digest = self.stage.world.truth(place.vmid.get()).map(|truth| truth.digest);
        let revision = digest.as_deref().and_then(converger_core::apply::Revision::new);
        let ask = Ask::Send { place, change: operation.step.change.clone(), revision };
        let _ = self.journal(&Record::Sending { id: id.clone(), at_ms: self.clock(), up_ms: self.stage.awake_ms() });
        let _ = self.exchange(id, operation, &ask);
        Err(Died)
    }

    /// No list has its task, so that nothing was carried out, it thinks.
    fn believe_the_list(&mut self, id: &OperationId) -> Result<(), Died> {
        self.give_up(id);
        Err(Died)
    }

    /// Asks until something comes, or nobody can bear it any longer.
    fn until_answered(&mut self, id: &OperationId, operation: &Operation, ask: &Ask) -> (Answer, u64) {
        let mut came = self.exchange(id, operation, ask);
        for _ in 0..1_000 {
            if !matches!(came.0, Answer::Unread(_)) {
                break;
            }
            came = self.exchange(id, operation, ask);
        }
        came
    }

    /// One ask, as one request, and what came of it when.
    fn exchange(&mut self, id: &OperationId, operation: &Operation, ask: &Ask) -> (Answer, u64) {
        let command = match hand::command(ask) {
            Ok(command) => command,
            Err(unsent) => return (*unsent, self.stage.now_ms),
        };
        let request = codec::encode(&command);
        let vmid = operation.guest.vmid.get();
        if ask.is_mutation() {
            self.check_send(id, &request, vmid);
        }
        let came = self.stage.carry(&request, vmid);
        let snapshot = self.snapshot(ask, operation);
        let read = came.answer.and_then(|answer| recall::decode(&command, &answer));
        let (time, at_ms) = self.time(hand::clock(ask, &read), vmid, came.at_ms);
        let answer = hand::answer(&self.caller, ask, read, time);
        let answer = self.with_foreign_tasks(ask, answer);
        if let Answer::Sent(sent) = &answer {
            self.oracle.answered(id, sent, came.has_effect);
            self.saw_sent(sent);
        } else {
            self.oracle.read(id, ask, &answer, snapshot);
        }
        (answer, at_ms)
    }

    /// What came of reading a clock, where one has to be read, and when both answers are there.
    fn time(&mut self, clock: Option<codec::Command>, vmid: u32, at_ms: u64) -> (Option<Result<codec::Event, Failure>>, u64) {
        let Some(command) = clock else { return (None, at_ms) };
        let came = self.stage.carry(&codec::encode(&command), vmid);
        (Some(came.answer.and_then(|answer| recall::decode(&command, &answer))), at_ms.max(came.at_ms))
    }

    fn check_send(&mut self, id: &OperationId, request: &codec::HttpRequest, vmid: u32) {
        let history = self.history(id);
        let at_work = self.stage.tasks_at_work(vmid);
        match Mutation::of(request.path(), request.form().unwrap_or("")) {
            Some(mutation) => self.oracle.sends(id, &mutation, history.as_ref(), at_work, self.stage.now_ms),
            None => self.oracle.broken_by("S12", format!("{id} sends {}", request.path())),
        }
        self.oracle.rests_on(id, self.stage.now_ms - self.slept_ms);
    }

    /// What is on the disk. A store that has stopped tells nobody, and what it has is there all the same.
    fn history(&self, id: &OperationId) -> Option<History> {
        let read = |store: &MemoryStore| store.operation(id.clone()).now_or_never().and_then(Result::ok);
        read(&self.store).or_else(|| read(&self.store.crash())).flatten()
    }

    fn snapshot(&self, ask: &Ask, operation: &Operation) -> Option<super::stage::Snapshot> {
        let vmid = operation.guest.vmid.get();
        match ask {
            Ask::Cluster => {
                let node = self.drive.state(&operation.id).map_or(&operation.guest.node, |state| &state.place().node);
                Some(self.stage.membership(node.as_str()))
            }
            Ask::Status(place) | Ask::Config(place) => Some(self.stage.snapshot(place.node.as_str(), vmid)),
            _ => None,
        }
    }

    /// With the bug, every task of the guest is one of ours.
    fn with_foreign_tasks(&self, ask: &Ask, answer: Answer) -> Answer {
        let (Some(Bug::AdoptForeignTask), Ask::Tasks { place, .. }) = (self.bug, ask) else { return answer };
        let foreign = self.stage.foreign_tasks(place.vmid.get()).pop().and_then(|upid| TaskId::new(&upid));
        let as_ours = |task| TaskSeen { task, ended_age_secs: None, is_ours: true };
        foreign.map_or(answer, |task| Answer::Tasks(vec![as_ours(task)]))
    }

    fn saw_sent(&mut self, sent: &Sent) {
        self.stage.sometimes(match sent {
            Sent::Task(_) => "a change became a task",
            Sent::Done => "a change was done at once",
            Sent::No(_) => "a change was turned down",
            Sent::NotDelivered(_) => "a change was not delivered",
            Sent::MayHaveRun(_) => "a change may have run",
        });
    }

    fn ended(&mut self, state: &operation::State) {
        let (id, Some(outcome)) = (&state.operation().id, state.ended()) else { return };
        let outcome = &bugs::outcome(self.bug, outcome.clone());
        let code = outcome.code().map_or("", |code| code.as_str());
        self.stage.tell(format_args!("{id}: {} {code}", outcome.end().word()));
        self.stage.ended(outcome, state.is_recovered());
        let was_held = self.history(id).is_some_and(|history| history.progress().end == Some(End::Held));
        if was_held && code == "not-carried-out" {
            self.stage.sometimes("given up by a later reading");
        }
        let is_escalated = self.bug == Some(Bug::Escalate) && code == "shutdown-timeout";
        if let Some(change) = bugs::escalated(&state.operation().step.change).filter(|_| is_escalated) {
            let ask = Ask::Send { place: state.place().clone(), change, revision: None };
            let _ = self.exchange(id, state.operation(), &ask);
        }
        let at_work = if outcome.end() == End::Failed { self.stage.tasks_at_work(state.operation().guest.vmid.get()) } else { 0 };
        let vmid = state.operation().guest.vmid.get();
        self.oracle.given_up(id, outcome, || self.stage.own_tasks(vmid), self.stage.now_ms);
        self.oracle.ended(id, outcome, state.is_recorded(), at_work);
    }
}

fn word(record: &Record) -> String {
    match record {
        Record::Intent { .. } => "intent".into(),
        Record::Sending { .. } => "mark".into(),
        Record::Tasked { task, .. } => format!("task {task}"),
        Record::Ended { outcome, .. } => format!("end {}", outcome.end().word()),
        Record::Resolved { resolution, .. } => format!("resolved {}", resolution.word()),
    }
}
