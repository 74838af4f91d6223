//! One life of our process: it recovers open operations, plans, and executes the plan until it is done or dies.
//!
//! The program's own [`RunMachine`] decides what is done when. Here its commands are executed on a virtual clock, and the results are fed
//! back when their time has come. Must not depend on real time, sockets, threads, or rules of the engine.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use converger_adapters::proxmox::actuator::{self, CallerIdentity};
use converger_adapters::proxmox::client::TokenId;
use converger_adapters::proxmox::codec::{self, ProxmoxFailure};
use converger_core::apply::{
    CheckContext, EnvFault, EnvFaultKind, EnvRequest, EnvResponse, Freeze, GuestAddress, Hold, JournalRecord, ObservedTask, Operation,
    OperationEnd, OperationHistory, OperationId, OperationTarget, Outcome, SendResult, Slug, TaskId,
};
use converger_core::failure::FailureCode;
use converger_core::guest::Vmid;
use converger_engine::clock::MonotonicClock;
use converger_engine::executor::{check_holds, commit_event, find_task_owners};
use converger_engine::operation::{self, OperationCommand, OperationEvent, Phase, SendBlock};
use converger_engine::run_machine::{RunEffect, RunMachine, RunOptions};
use converger_store::{CommitAck, CommitFault, MemoryStore, StoreError, StoreReader as _, StoreWrite};
use futures_util::FutureExt as _;

use super::decode_cache;
use super::faults::{FaultKind, ScheduledFault};
use super::oracle::{HoldOrFreeze, Oracle, ParsedMutation};
use super::planted_bugs::{self, PlantedBug};
use super::setup::{SimulationSetup, TOKEN};
use super::stage::SimulationStage;
use super::trace::AnswerSummary;

/// A process that does more than this is in an endless loop.
const COMMANDS_MAX: u64 = 20_000;

/// The process died; only its store is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessDied;

/// What the process is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessAct {
    Read,
    Write,
    Send,
}

/// A running process.
pub(crate) struct SimulatedProcess<'l> {
    pub(crate) stage: &'l mut SimulationStage,
    pub(crate) store: MemoryStore,
    pub(crate) oracle: &'l mut Oracle,
    pub(crate) setup: &'l SimulationSetup,
    pub(crate) bug: Option<PlantedBug>,
    skew_ms: i64,
    monotonic_clock: Cell<MonotonicClock>,
    /// The machine of the process, which also recovered before it planned.
    run_machine: &'l mut RunMachine,
    caller: CallerIdentity,
    /// The operations that have begun.
    operations: BTreeMap<OperationId, Arc<Operation>>,
    sent: BTreeSet<OperationId>,
    queue: BTreeMap<(u64, u64), (OperationId, OperationEvent)>,
    event_count: u64,
    commands: u64,
    dies_after: bool,
    /// How long the machine slept between the hold check and the change that is being sent.
    slept_ms: u64,
    /// When a planted bug last read a guest, on its own clock.
    asked_ms: u64,
    /// The fault of the next commit.
    fault: Option<(FaultKind, CommitFault)>,
    /// The last commit could not be written; the queue position at which the process learns of it.
    has_failed: bool,
    failure_notice_at: Option<(u64, u64)>,
    /// A stop was requested and not noticed yet.
    is_drained: bool,
    /// There is no permit for the next change.
    is_full: bool,
    /// Records that a planted bug withholds.
    withheld: Vec<JournalRecord>,
}

impl<'l> SimulatedProcess<'l> {
    pub(crate) fn new(
        stage: &'l mut SimulationStage,
        store: MemoryStore,
        oracle: &'l mut Oracle,
        simulation_setup: &'l SimulationSetup,
        bug: Option<PlantedBug>,
        drive: &'l mut RunMachine,
    ) -> Self {
        oracle.on_run_start();
        Self {
            stage,
            store,
            oracle,
            setup: simulation_setup,
            bug,
            skew_ms: 0,
            monotonic_clock: Cell::default(),
            run_machine: drive,
            caller: CallerIdentity { token: TokenId::new(TOKEN).unwrap_or_else(|| panic!("a token")), cluster: None },
            operations: BTreeMap::new(),
            sent: BTreeSet::new(),
            queue: BTreeMap::new(),
            event_count: 0,
            commands: 0,
            dies_after: false,
            slept_ms: 0,
            asked_ms: 0,
            fault: None,
            has_failed: false,
            failure_notice_at: None,
            is_drained: false,
            is_full: false,
            withheld: Vec::new(),
        }
    }

    /// Executes these runs together until nothing is in flight.
    pub(crate) fn execute_runs(&mut self, runs: Vec<Vec<(Operation, CheckContext)>>) -> Result<(), ProcessDied> {
        for run in runs {
            self.submit_run(run)?;
        }
        self.run_queue()
    }

    fn submit_run(&mut self, mut operations: Vec<(Operation, CheckContext)>) -> Result<(), ProcessDied> {
        for (operation, _) in &mut operations {
            self.oracle.on_planned(operation);
            planted_bugs::corrupt_operation(self.bug, operation);
        }
        let ids: Vec<OperationId> = operations.iter().map(|(operation, _)| operation.id.clone()).collect();
        let options =
            RunOptions { on_failure: planted_bugs::buggy_on_failure(self.bug, self.setup.on_failure), patience: self.setup.patience };
        let (_, effects) = self.run_machine.submit(operations, options, self.process_now_ms());
        self.apply_effects(effects)?;
        if self.bug == Some(PlantedBug::TwoAtOnce) {
            for id in ids {
                self.feed_event(&id, OperationEvent::Begin)?;
            }
        }
        Ok(())
    }

    /// Recovers these operations by reading.
    pub(crate) fn recover_operations(&mut self, unsettled: Vec<OperationHistory>) -> Result<(), ProcessDied> {
        let (patience, uptime) = (planted_bugs::buggy_patience(self.bug, self.setup.patience.for_startup()), self.stage.uptime());
        let (_, effects) = self.run_machine.recover(unsettled, patience, Some(&uptime), self.process_now_ms());
        self.apply_effects(effects)?;
        self.run_queue()
    }

    fn run_queue(&mut self) -> Result<(), ProcessDied> {
        while let Some((queue_key, (id, event))) = self.queue.pop_first() {
            if queue_key.0 > self.stage.now_ms {
                self.oracle.on_time_passed();
            }
            self.stage.advance_to(queue_key.0);
            if self.failure_notice_at.is_some_and(|failed_key| failed_key <= queue_key) {
                self.oracle.on_write_failure_reported();
            }
            if std::mem::take(&mut self.is_drained) {
                self.oracle.on_drain();
                self.stage.note_struck(FaultKind::Drained);
                let effects = self.run_machine.stop(FailureCode::RunStopped, self.process_now_ms());
                self.apply_effects(effects)?;
            }
            self.feed_event(&id, event)?;
        }
        // Ended operations are forgotten, so that a process can run for months.
        let has_forgotten = self.bug.is_some() || self.run_machine.entry_count() == 0;
        self.oracle.on_rest(self.run_machine.is_idle() && has_forgotten);
        Ok(())
    }

    fn feed_event(&mut self, id: &OperationId, event: OperationEvent) -> Result<(), ProcessDied> {
        // With the bug, everything that was read counts as current.
        let is_young = self.bug == Some(PlantedBug::OldReading) && event == OperationEvent::SendAllowed;
        let effects = self.run_machine.feed(id, event, if is_young { self.asked_ms } else { self.process_now_ms() });
        self.apply_effects(effects)
    }

    fn apply_effects(&mut self, effects: Vec<RunEffect>) -> Result<(), ProcessDied> {
        for effect in effects {
            match effect {
                RunEffect::Begun(id) => self.on_begun(&id),
                RunEffect::PhaseReached(id, Phase::Ended) => self.on_ended(&id)?,
                RunEffect::PhaseReached(..) => {}
                RunEffect::Execute(id, command) => self.execute_command(&id, command)?,
                // With a planted bug, ended operations may continue, so they are not forgotten.
                RunEffect::SubmissionEnded(submission) if self.bug.is_none() => drop(self.run_machine.take_report(submission)),
                RunEffect::SubmissionEnded(_) => {}
            }
        }
        Ok(())
    }

    /// An operation ended or will never begin.
    fn on_ended(&mut self, id: &OperationId) -> Result<(), ProcessDied> {
        let Some(state) = self.run_machine.operation_state(id) else { return Ok(()) };
        if state.outcome().is_some() {
            let state = state.clone();
            self.finish_operation(&state);
            return Ok(());
        }
        let code = self.run_machine.outcome(id).and_then(Outcome::code).map_or("", |code| code.as_str()).to_owned();
        if planted_bugs::starts_anyway(self.bug, &code, self.oracle.is_stopped()) {
            return self.feed_event(id, OperationEvent::Begin);
        }
        self.stage.trace_line(format_args!("{id}: not run, {code}"));
        self.stage.note_reached("an operation was not run");
        self.oracle.on_not_run(id, &code);
        Ok(())
    }

    /// What a planted bug does with an open operation instead of reading.
    pub(crate) fn planted_recovery(&mut self, operation: &Operation) -> Result<(), ProcessDied> {
        let id = operation.id.clone();
        self.oracle.on_begin(&id, true);
        match self.bug {
            Some(PlantedBug::ResendOnRecovery) => {
                let digest = self.stage.world.guest_truth(operation.guest.vmid.get()).map(|truth| truth.digest);
                let revision = digest.as_deref().and_then(converger_core::apply::ConfigRevision::new);
                let OperationTarget { node, kind, vmid, .. } = &operation.guest;
                let address = GuestAddress { node: node.clone(), kind: *kind, vmid: *vmid };
                let request = EnvRequest::Send { address, change: operation.step.change.clone(), revision };
                let _ = self.exchange_request(&id, operation, &request);
                Err(ProcessDied)
            }
            _ => {
                self.record_not_carried_out(&id);
                Ok(())
            }
        }
    }

    /// A planted bug records that nothing was carried out.
    fn record_not_carried_out(&mut self, id: &OperationId) {
        let outcome = Outcome::new_failed(FailureCode::NotCarriedOut, converger_core::apply::Findings::default());
        let record = JournalRecord::Ended { id: id.clone(), outcome: outcome.clone(), at_ms: self.process_now_ms() };
        let is_recorded = self.write_journal(&record) == OperationEvent::Committed;
        if is_recorded {
            self.oracle.on_acknowledged(&record);
        }
        self.oracle.on_end(id, &outcome, is_recorded, 0);
    }

    fn on_begun(&mut self, id: &OperationId) {
        let Some(state) = self.run_machine.operation_state(id) else { return };
        let operation = state.operation();
        self.stage.trace_line(format_args!("{id}: begins, {} of {}", operation.step.change.word(), operation.guest.vmid));
        self.oracle.on_begin(id, state.is_recovered());
        self.operations.insert(id.clone(), Arc::new(operation.clone()));
    }

    fn process_now_ms(&self) -> u64 {
        let mut clock = self.monotonic_clock.get();
        let now_ms = clock.advance(self.stage.now_ms.saturating_add_signed(self.skew_ms), self.stage.awake_ms());
        self.monotonic_clock.set(clock);
        now_ms
    }

    fn execute_command(&mut self, id: &OperationId, command: OperationCommand) -> Result<(), ProcessDied> {
        let Some(operation) = self.operations.get(id).cloned() else { return Ok(()) };
        match command {
            OperationCommand::Commit(record) => self.commit_record(id, *record),
            OperationCommand::Mark => {
                let up_ms = self.stage.awake_ms();
                self.commit_record(id, JournalRecord::Sending { id: id.clone(), at_ms: self.process_now_ms(), up_ms })
            }
            OperationCommand::Request(request) => self.send_request(id, &operation, request),
            // Before the hold check.
            OperationCommand::RecheckHolds if std::mem::take(&mut self.is_full) => {
                self.stage.note_struck(FaultKind::NoRoom);
                let code = Slug::new("busy").unwrap_or_else(|| panic!("a word"));
                let cause = EnvFault { kind: EnvFaultKind::Busy, word: code, text: "no answer to earlier requests yet".into() };
                self.schedule_event(self.stage.now_ms, id, OperationEvent::SendBlocked(SendBlock::NodeBusy(cause)));
                Ok(())
            }
            OperationCommand::RecheckHolds => {
                self.oracle.on_hold_check(id, self.find_hold_or_freeze(&operation), self.stage.now_ms);
                let guests = planted_bugs::buggy_held_guests(self.bug, &operation);
                let event = check_holds(&self.store, operation.environment.clone(), guests).now_or_never();
                let event = event.unwrap_or_else(|| panic!("nothing here waits"));
                self.schedule_event(self.stage.now_ms, id, planted_bugs::buggy_hold_check(self.bug, event));
                Ok(())
            }
            OperationCommand::FindTaskOwners(tasks) => {
                let event = find_task_owners(&self.store, operation.environment.clone(), id, tasks).now_or_never();
                self.schedule_event(self.stage.now_ms, id, event.unwrap_or_else(|| panic!("nothing here waits")));
                Ok(())
            }
            OperationCommand::Wait(ms) => {
                self.schedule_event(self.stage.now_ms + ms, id, OperationEvent::Woken);
                Ok(())
            }
        }
    }

    /// The holds and freezes that prevent a change, according to the journal.
    fn find_hold_or_freeze(&self, operation: &Operation) -> Option<HoldOrFreeze> {
        let environment = &operation.environment;
        let freeze = self.store.freeze(environment.clone()).now_or_never().and_then(Result::ok).flatten();
        let holds = self.store.holds(environment.clone()).now_or_never().and_then(Result::ok).unwrap_or_default();
        let is_held = holds.iter().any(|hold| operation.occupied_guests().any(|vmid| vmid == hold.vmid));
        freeze.map(|_| HoldOrFreeze::Freeze).or_else(|| is_held.then_some(HoldOrFreeze::Hold))
    }

    fn schedule_event(&mut self, at_ms: u64, id: &OperationId, event: OperationEvent) {
        self.event_count += 1;
        self.queue.insert((at_ms, self.event_count), (id.clone(), event));
    }

    /// A command to the world or to the store is about to run: the trigger of faults of the process.
    fn before_act(&mut self, action: ProcessAct) -> Result<(), ProcessDied> {
        self.commands += 1;
        if self.commands > COMMANDS_MAX {
            self.oracle.report("L3", format!("the process did {COMMANDS_MAX} things and goes on"));
            return Err(ProcessDied);
        }
        let (faults, before_ms) = (self.stage.count_command(action == ProcessAct::Send), self.stage.now_ms);
        for fault in faults {
            if fault.effect().is_some() {
                self.stage.apply_faults(vec![fault]);
                continue;
            }
            self.strike_process(&fault)?;
        }
        // Nothing but a sleeping machine takes time here.
        self.slept_ms = if action == ProcessAct::Send { self.stage.now_ms - before_ms } else { 0 };
        if self.slept_ms > 0 {
            self.stage.note_reached("the machine slept between the last word and the sending");
        }
        Ok(())
    }

    fn strike_process(&mut self, scheduled_fault: &ScheduledFault) -> Result<(), ProcessDied> {
        self.stage.trace_line(format_args!("harm: {:?}", scheduled_fault.kind));
        let environment = self.setup.desired.environment().clone();
        let (by, reason, at_ms): (Box<str>, Box<str>, u64) = ("ann".into(), "maintenance".into(), self.stage.now_ms);
        let has_struck = match scheduled_fault.kind {
            FaultKind::CrashBefore | FaultKind::CrashAfter => {
                self.dies_after = true;
                true
            }
            FaultKind::PowerLost => {
                self.stage.lose_power();
                true
            }
            FaultKind::OwnClockJump => {
                self.skew_ms = i64::try_from(scheduled_fault.number % 7_200_000).unwrap_or(0) - 3_600_000;
                self.skew_ms != 0
            }
            FaultKind::Asleep => {
                self.stage.sleep(3_600_000);
                true
            }
            FaultKind::HeldByPerson => {
                let vmid = Vmid::new(u64::from(scheduled_fault.vmid)).unwrap_or_else(|| panic!("an id"));
                self.store.commit_now(StoreWrite::Hold(Hold { environment, vmid, by, reason, at_ms }).into()).is_ok()
            }
            FaultKind::Frozen => self.store.commit_now(StoreWrite::Freeze(Freeze { environment, by, reason, at_ms }).into()).is_ok(),
            // Noticed with the next event.
            FaultKind::Drained => {
                self.is_drained = true;
                false
            }
            // Noticed when a change is to be sent.
            FaultKind::NoRoom => {
                self.is_full = true;
                false
            }
            _ => {
                self.fault = scheduled_fault.store_fault().map(|fault| (scheduled_fault.kind, fault)).or(self.fault);
                false
            }
        };
        if has_struck {
            self.stage.note_struck(scheduled_fault.kind);
        }
        if matches!(scheduled_fault.kind, FaultKind::CrashBefore | FaultKind::PowerLost) { Err(ProcessDied) } else { Ok(()) }
    }

    fn after_act(&mut self) -> Result<(), ProcessDied> {
        if self.dies_after { Err(ProcessDied) } else { Ok(()) }
    }

    /// Writes to the store besides the journal: that a run begins or ends.
    pub(crate) fn write_store(&mut self, write: StoreWrite) -> Result<bool, ProcessDied> {
        self.before_act(ProcessAct::Write)?;
        let written = self.store.commit_now(write.into());
        self.after_act()?;
        match written {
            Err(StoreError::Stopped { .. }) => Err(ProcessDied),
            other => Ok(other.is_ok()),
        }
    }

    fn commit_record(&mut self, id: &OperationId, record: JournalRecord) -> Result<(), ProcessDied> {
        self.before_act(ProcessAct::Write)?;
        let record = planted_bugs::buggy_record(self.bug, record);
        self.stage.trace_line(format_args!("{id}: commit {}", record_word(&record)));
        let event = match self.planted_commit(&record) {
            Some(event) => event,
            None => self.write_journal(&record),
        };
        self.after_act()?;
        if event == OperationEvent::Committed {
            self.oracle.on_acknowledged(&record);
        } else {
            self.stage.note_reached("a record was not taken");
            self.oracle.on_record_rejected(id);
        }
        self.schedule_event(self.stage.now_ms + 2, id, event);
        if std::mem::take(&mut self.has_failed) {
            self.failure_notice_at.get_or_insert((self.stage.now_ms + 2, self.event_count));
        }
        Ok(())
    }

    fn write_journal(&mut self, record: &JournalRecord) -> OperationEvent {
        // A mark is not synced, so its sync cannot fail.
        let fault = self.fault.take_if(|(_, fault)| record.must_be_durable() || *fault == CommitFault::Full);
        if let Some((_, fault)) = fault {
            self.store.fail_next(fault);
        }
        let answer = self.store.commit_now(record.clone().into());
        if let (Some((kind, _)), Err(StoreError::Full { .. } | StoreError::Stopped { .. })) = (fault, &answer) {
            self.stage.note_struck(kind);
        }
        match &answer {
            Ok(CommitAck::Written { .. }) => self.oracle.on_durable(record),
            Ok(CommitAck::Repeated { .. }) => self.stage.note_reached("a request was repeated"),
            Err(StoreError::Refused(refused)) => self.stage.trace_line(format_args!("store: {refused}")),
            Err(error) => {
                self.stage.trace_line(format_args!("store: {error}"));
                if matches!(error, StoreError::Stopped { .. }) {
                    self.stage.note_reached("a sync failed");
                }
                self.oracle.on_write_failed(record.id());
                self.has_failed = true;
            }
        }
        planted_bugs::buggy_commit_event(self.bug, record, commit_event(answer))
    }

    /// What a planted bug does instead of a commit.
    fn planted_commit(&mut self, record: &JournalRecord) -> Option<OperationEvent> {
        let (is_intent, is_mark) = (matches!(record, JournalRecord::Intent { .. }), matches!(record, JournalRecord::Sending { .. }));
        match self.bug? {
            PlantedBug::SkipIntent if is_intent || is_mark => Some(OperationEvent::Committed),
            PlantedBug::SkipMark if is_mark => Some(OperationEvent::Committed),
            PlantedBug::ForgetTask if matches!(record, JournalRecord::TaskStarted { .. }) => Some(OperationEvent::Committed),
            PlantedBug::SendBeforeCommit if is_intent || is_mark => {
                self.withheld.push(record.clone());
                Some(OperationEvent::Committed)
            }
            PlantedBug::SendBeforeCommit => {
                for record in std::mem::take(&mut self.withheld) {
                    self.write_journal(&record);
                }
                None
            }
            PlantedBug::AcknowledgeFirst => {
                for record in std::mem::replace(&mut self.withheld, vec![record.clone()]) {
                    self.write_journal(&record);
                }
                Some(OperationEvent::Committed)
            }
            _ => None,
        }
    }

    fn send_request(&mut self, id: &OperationId, operation: &Operation, request: EnvRequest) -> Result<(), ProcessDied> {
        self.before_act(if request.is_mutation() { ProcessAct::Send } else { ProcessAct::Read })?;
        let has_sent = self.sent.contains(id) || self.run_machine.operation_state(id).is_some_and(operation::OperationState::is_recovered);
        if self.bug == Some(PlantedBug::StaleRead) && !has_sent && matches!(request, EnvRequest::Status(_)) {
            // The bug assumes that everything is as planned.
            return self.send_without_checks(id, operation);
        }
        if matches!(request, EnvRequest::Status(_)) {
            self.asked_ms = self.process_now_ms();
        }
        let request = match self.bug {
            Some(bug) => {
                let digest = self.stage.world.guest_truth(operation.guest.vmid.get()).map(|truth| truth.digest);
                planted_bugs::buggy_request(bug, operation, request, digest.as_deref())
            }
            None => request,
        };
        let (answer, at_ms) = self.exchange_request(id, operation, &request);
        self.after_act()?;
        self.stage.trace_line(format_args!("{id}: {} -> {}", request.word(), AnswerSummary(&answer)));
        let (answer, at_ms) = match (&request, &answer, self.bug) {
            (EnvRequest::Send { change, .. }, EnvResponse::Sent(sent), bug) if planted_bugs::sends_again(bug, change, sent) => {
                self.exchange_request(id, operation, &request)
            }
            (_, EnvResponse::Unreadable(_), Some(PlantedBug::AskForEver)) => self.retry_until_answered(id, operation, &request),
            (_, EnvResponse::Tasks(tasks), Some(PlantedBug::BelieveTheList)) if tasks.is_empty() => return self.give_up_without_task(id),
            _ => (answer, at_ms),
        };
        if request.is_mutation() {
            self.sent.insert(id.clone());
        }
        let bug = planted_bugs::bug_of_response(self.bug, operation, &request);
        let answer = planted_bugs::buggy_response(bug, operation, answer, has_sent);
        self.schedule_event(at_ms, id, OperationEvent::Responded(answer));
        Ok(())
    }

    /// Sends the change right away, based on the plan.
    fn send_without_checks(&mut self, id: &OperationId, operation: &Operation) -> Result<(), ProcessDied> {
        let Ok(address) = self.run_machine.operation_state(id).map(|state| state.address().clone()).ok_or(()) else { return Ok(()) };
        let digest = self.stage.world.guest_truth(address.vmid.get()).map(|truth| truth.digest);
        let revision = digest.as_deref().and_then(converger_core::apply::ConfigRevision::new);
        let request = EnvRequest::Send { address, change: operation.step.change.clone(), revision };
        let _ = self.write_journal(&JournalRecord::Sending { id: id.clone(), at_ms: self.process_now_ms(), up_ms: self.stage.awake_ms() });
        let _ = self.exchange_request(id, operation, &request);
        Err(ProcessDied)
    }

    /// The bug concludes from the missing task that nothing was carried out.
    fn give_up_without_task(&mut self, id: &OperationId) -> Result<(), ProcessDied> {
        self.record_not_carried_out(id);
        Err(ProcessDied)
    }

    /// Retries until there is a response, up to a limit.
    fn retry_until_answered(&mut self, id: &OperationId, operation: &Operation, request: &EnvRequest) -> (EnvResponse, u64) {
        let mut response = self.exchange_request(id, operation, request);
        for _ in 0..1_000 {
            if !matches!(response.0, EnvResponse::Unreadable(_)) {
                break;
            }
            response = self.exchange_request(id, operation, request);
        }
        response
    }

    /// Sends one environment request; returns the response and its time.
    fn exchange_request(&mut self, id: &OperationId, operation: &Operation, env_request: &EnvRequest) -> (EnvResponse, u64) {
        let command = match actuator::command_for(env_request) {
            Ok(command) => command,
            Err(unsent) => return (*unsent, self.stage.now_ms),
        };
        let request = codec::encode(&command);
        let vmid = operation.sending_address().vmid.get();
        if env_request.is_mutation() {
            self.stage.note_change_sent(operation.step.change.word());
            self.check_send(id, &request, vmid);
        }
        let outcome = self.stage.carry_request(&request, vmid);
        let snapshot = self.take_snapshot(env_request, operation);
        let read = outcome.answer.and_then(|answer| decode_cache::decode_cached(&command, &answer));
        let (time, at_ms) = self.read_clock(actuator::clock_command(env_request, &read), vmid, outcome.at_ms);
        let answer = actuator::interpret_response(&self.caller, env_request, read, time);
        let answer = self.with_foreign_tasks(env_request, answer);
        if let EnvResponse::Sent(sent) = &answer {
            self.oracle.on_answer(id, sent, outcome.has_effect);
            self.note_send_result(sent);
        } else {
            self.oracle.on_read(id, env_request, &answer, snapshot);
        }
        (answer, at_ms)
    }

    /// Reads a clock if necessary; returns the result and the time at which both responses have arrived.
    fn read_clock(
        &mut self,
        clock: Option<codec::ProxmoxCommand>,
        vmid: u32,
        at_ms: u64,
    ) -> (Option<Result<codec::ProxmoxEvent, ProxmoxFailure>>, u64) {
        let Some(command) = clock else { return (None, at_ms) };
        let outcome = self.stage.carry_request(&codec::encode(&command), vmid);
        (Some(outcome.answer.and_then(|answer| decode_cache::decode_cached(&command, &answer))), at_ms.max(outcome.at_ms))
    }

    fn check_send(&mut self, id: &OperationId, request: &codec::HttpRequest, vmid: u32) {
        let history = self.load_history(id);
        let running_tasks = self.stage.tasks_at_work(vmid);
        match ParsedMutation::parse(request.method(), request.path(), request.form().unwrap_or("")) {
            Some(mutation) => self.oracle.on_send(id, &mutation, history.as_ref(), running_tasks, self.stage.now_ms),
            None => self.oracle.report("S12", format!("{id} sends {}", request.path())),
        }
        self.oracle.check_freshness(id, self.stage.now_ms - self.slept_ms);
    }

    /// The history on disk. A store that has stopped reports nothing, but its content still exists.
    fn load_history(&self, id: &OperationId) -> Option<OperationHistory> {
        let read = |store: &MemoryStore| store.operation(id.clone()).now_or_never().and_then(Result::ok);
        read(&self.store).or_else(|| read(&self.store.crash())).flatten()
    }

    fn take_snapshot(&self, request: &EnvRequest, operation: &Operation) -> Option<super::stage::TruthSnapshot> {
        match request {
            EnvRequest::Cluster => {
                let node = self.run_machine.operation_state(&operation.id).map_or(&operation.guest.node, |state| &state.address().node);
                Some(self.stage.cluster_snapshot(node.as_str()))
            }
            EnvRequest::Status(address) | EnvRequest::Config(address) => {
                Some(self.stage.guest_snapshot(address.node.as_str(), address.vmid.get()))
            }
            EnvRequest::Snapshots(address) => Some(self.stage.snapshot_list(address.node.as_str(), address.vmid.get())),
            EnvRequest::IdState(vmid) => Some(self.stage.guest_snapshot(operation.guest.node.as_str(), vmid.get())),
            _ => None,
        }
    }

    /// With the bug, every task of the guest is one of ours.
    fn with_foreign_tasks(&self, request: &EnvRequest, answer: EnvResponse) -> EnvResponse {
        let (Some(PlantedBug::AdoptForeignTask), EnvRequest::Tasks { address, .. }) = (self.bug, request) else { return answer };
        let foreign_task = self.stage.foreign_tasks(address.vmid.get()).pop().and_then(|upid| TaskId::new(&upid));
        let as_ours = |task| ObservedTask { task, ended_age_secs: None, is_ours: true };
        foreign_task.map_or(answer, |task| EnvResponse::Tasks(vec![as_ours(task)]))
    }

    fn note_send_result(&mut self, sent: &SendResult) {
        self.stage.note_reached(match sent {
            SendResult::Task(_) => "a change became a task",
            SendResult::Done => "a change was done at once",
            SendResult::Rejected(_) => "a change was turned down",
            SendResult::NotDelivered(_) => "a change was not delivered",
            SendResult::MaybeExecuted(_) => "a change may have run",
        });
    }

    fn finish_operation(&mut self, state: &operation::OperationState) {
        let (id, Some(outcome)) = (&state.operation().id, state.outcome()) else { return };
        let outcome = &planted_bugs::buggy_outcome(self.bug, outcome.clone());
        let code = outcome.code().map_or("", |code| code.as_str());
        self.stage.trace_line(format_args!("{id}: {} {code}", outcome.end().word()));
        self.stage.note_end(state.operation().step.change.word(), outcome, state.is_recovered());
        let was_held = self.load_history(id).is_some_and(|history| history.progress().end == Some(OperationEnd::Held));
        if was_held && code == "not-carried-out" {
            self.stage.note_reached("given up by a later reading");
        }
        let is_escalated = self.bug == Some(PlantedBug::Escalate) && code == "shutdown-timeout";
        if let Some(change) = planted_bugs::escalate_shutdown(&state.operation().step.change).filter(|_| is_escalated) {
            let request = EnvRequest::Send { address: state.address().clone(), change, revision: None };
            let _ = self.exchange_request(id, state.operation(), &request);
        }
        let running_tasks = if outcome.end() == OperationEnd::Failed {
            self.stage.tasks_at_work(state.operation().sending_address().vmid.get())
        } else {
            0
        };
        let vmid = state.operation().sending_address().vmid.get();
        self.oracle.on_given_up(id, outcome, || self.stage.own_tasks(vmid), self.stage.now_ms);
        self.oracle.on_end(id, outcome, state.is_recorded(), running_tasks);
    }
}

fn record_word(record: &JournalRecord) -> String {
    match record {
        JournalRecord::Intent { .. } => "intent".into(),
        JournalRecord::Sending { .. } => "mark".into(),
        JournalRecord::TaskStarted { task, .. } => format!("task {task}"),
        JournalRecord::Ended { outcome, .. } => format!("end {}", outcome.end().word()),
        JournalRecord::Resolved { resolution, .. } => format!("resolved {}", resolution.word()),
    }
}
