//! One environment, locked for this process: recovers what an earlier process left in flight, and starts runs.
//!
//! The command line opens it for the length of one command, a daemon for as long as it runs. All runs of an environment share one executor: its lanes,
//! its limits, and its stop.

use std::sync::Arc;

use converger_adapters::proxmox::actuator::ProxmoxActuator as ProxmoxHand;
use converger_adapters::proxmox::client::ProxmoxClient;
use converger_adapters::proxmox::observe::ReadSet;
use converger_core::apply::{OperationEnd, OperationHistory, RunId};
use converger_core::approve::ApprovalMode;
use converger_core::artifact::Provenance;
use converger_core::contract;
use converger_core::desired::Scope;
use converger_core::refusal::Refusal;
use converger_engine::executor::{EngineError, ExecutionReport, RecoverySubmission, RunSignal};
use converger_store::StoreConditions;
use tokio::sync::watch;

use crate::error::RuntimeError;
use crate::event::RunEvent;
use crate::executor::{EnvironmentActuator, EnvironmentExecutor, publish_to};
use crate::reader::{EnvironmentReader, Observed, find_undeclared_pending};
use crate::record::{self, RunRecord};
use crate::report::HeldBefore;
use crate::run::{Run, RunRequest};
use crate::run_clock::RunClock;
use crate::slow_response::SlowResponseNotice;
use crate::state_dir::{LockOutcome, StateDirectory, store_error};
use crate::{cluster_identity, host};

/// An environment that this process drives until it is closed, or until the last clone is dropped and nothing is in flight.
#[derive(Clone)]
pub struct Environment {
    inner: Arc<Inner>,
}

struct Inner {
    reader: EnvironmentReader,
    state: StateDirectory,
    mode: ApprovalMode,
    clock: RunClock,
    slow_response: Arc<SlowResponseNotice>,
    stop: watch::Sender<RunSignal>,
    executor: EnvironmentExecutor,
}

/// The result of opening an environment. A refusal is a decision: it cannot be passed on with `?`.
pub enum Opened {
    /// It is open.
    Ready(Environment),
    /// Another process drives it.
    Refused(Refusal),
}

/// The result of starting a run. A refusal is a decision: it cannot be passed on with `?`.
pub enum StartedRun {
    /// Its plan waits for confirmation.
    Run(Box<Run>),
    /// The environment name does not stand for the cluster that answers, or the cluster does not say who it is.
    Refused(Refusal),
}

impl Environment {
    /// Takes the environment's lock and starts its executor, for which it is called within a runtime. Sends no request: opening works while the cluster is
    /// down.
    ///
    /// # Errors
    /// The program does not keep its contract, the environment is not configured for applying, or the lock cannot be taken.
    pub fn open(state: StateDirectory, reader: EnvironmentReader) -> Result<Opened, RuntimeError> {
        check_contract()?;
        let (mode, clock) = (reader.approval_mode()?, RunClock::new(reader.connection()?.clock));
        let lock = match state.lock_environment(reader.name())? {
            LockOutcome::Taken(lock) => lock,
            LockOutcome::Refused(refusal) => return Ok(Opened::Refused(refusal)),
        };
        let slow_response = Arc::new(SlowResponseNotice::new(Arc::clone(reader.events()), clock.is_real()));
        let stop = watch::Sender::new(RunSignal::Continue);
        let limits = reader.config().at_once;
        let executor = EnvironmentExecutor::start(reader.name().clone(), &state, &clock, limits, stop.subscribe(), lock);
        let inner = Inner { reader, state, mode, clock, slow_response, stop, executor };
        Ok(Opened::Ready(Self { inner: Arc::new(inner) }))
    }

    /// Read access to the same environment.
    #[must_use]
    pub fn reader(&self) -> &EnvironmentReader {
        &self.inner.reader
    }

    /// The open state directory.
    #[must_use]
    pub fn state(&self) -> &StateDirectory {
        &self.inner.state
    }

    /// The clock of its runs.
    #[must_use]
    pub fn clock(&self) -> &RunClock {
        &self.inner.clock
    }

    pub(crate) fn mode(&self) -> ApprovalMode {
        self.inner.mode
    }

    /// Who may ask for a stop, and who listens for one.
    #[must_use]
    pub fn stop_sender(&self) -> &watch::Sender<RunSignal> {
        &self.inner.stop
    }

    pub(crate) fn executor(&self) -> &EnvironmentExecutor {
        &self.inner.executor
    }

    /// `Drain` starts nothing new and waits for operations in flight. `Quit` stops waiting; the next start recovers them.
    pub fn request_stop(&self, signal: RunSignal) {
        self.inner.stop.send_replace(signal);
    }

    /// Starts nothing new of one run and lets its operations in flight end. Other runs go on.
    pub fn stop_run(&self, run: RunId) {
        self.inner.executor.stop_run(run);
    }

    /// Observes, recovers, plans, judges and records. Sends no change.
    ///
    /// # Errors
    /// Too many runs are open or a stop was asked for, there is no observation, or the journal cannot be used.
    pub async fn start_run(&self, request: RunRequest) -> Result<StartedRun, RuntimeError> {
        let Inner { reader, state, executor, .. } = &*self.inner;
        // Held until the run has ended: the number of open runs is bounded before anything is read for them.
        let slot = executor.reserve_slot().map_err(|reason| RuntimeError::not_accepting(reader.name(), reason))?;
        let scope = request.desired.scope();
        let selection = scope.clone().into();
        // An observation first: it selects the endpoint that recovery asks and that changes are sent to.
        let proxmox = reader.connect()?.with_needs(ReadSet::for_desired(&request.desired));
        let report = reader.observe_live(&proxmox, &selection).await?;
        // The cluster is the one that the name stands for, before anything is recovered, recorded or sent there.
        if let Some(refusal) = cluster_identity::bind_environment(state, reader.name(), proxmox.identity(&report).await).await? {
            return Ok(StartedRun::Refused(refusal));
        }
        let hand = proxmox.actuator(&report.endpoint).map_err(|error| RuntimeError::failed(error.to_string()))?;
        let hand = Arc::new(hand);
        // A guest whose last operation is unresolved must not be planned as if it were idle (G13).
        let recovered = Arc::new(self.recover(&hand).await?);
        let report = match recovered.operations() {
            [] => report,
            _ => reader.observe_live(&proxmox, &selection).await?,
        };
        let mut conditions = state.load_conditions(reader.name()).await?;
        conditions.writes = state.load_operations(reader.name(), find_undeclared_pending(&request.desired, &report.reading)).await?;
        let in_flight = take_in_flight(&mut conditions, &recovered);
        self.publish_held(&conditions, &recovered);
        let held_before = find_held(&recovered, &conditions, &scope);
        let observed = Observed { observation: report.reading.clone(), provenance: Provenance::Live };
        // Operations in flight are not held, and their guests get no step all the same.
        conditions.unsettled.extend(in_flight);
        let RunRequest { desired, expected, narrowed, refused, on_failure } = request;
        let planned = reader.judge(desired, observed, &conditions);
        let staleness = expected.map(|expected| expected.find_difference(planned.judged.plan(), narrowed)).transpose()?.flatten();
        // Record before returning: nobody learns of a decision that the ledger does not have (G10).
        let record = RunRecord::start(state, &planned.judged, reader.config().snapshot.clone(), host::new_run_id()?).await?;
        reader.events().publish(RunEvent::PlanRecorded { run: record.run().clone(), plan: record.plan() });
        let run = Run::new(self.clone(), slot, hand, record, planned, recovered, held_before, staleness, refused, on_failure);
        Ok(StartedRun::Run(Box::new(run)))
    }

    /// Accepts nothing more, begins nothing new, waits for operations in flight, releases the lock, and tells the witness what the ledger holds.
    /// Call it after success and after failure.
    ///
    /// # Errors
    /// The witness cannot be told, or has seen another ledger.
    pub async fn close(self) -> Result<(), RuntimeError> {
        self.inner.executor.close().await;
        self.attest_ledger().await
    }

    /// Tells the witness what the ledger holds by now. Call it after a run, whatever came of it.
    ///
    /// # Errors
    /// The witness cannot be told, or has seen another ledger.
    pub async fn attest_ledger(&self) -> Result<(), RuntimeError> {
        self.inner.state.attest_ledger().await
    }

    /// Settles operations that an earlier process left in flight, by reading only (G13). Those that this process is executing are left out.
    async fn recover(&self, hand: &Arc<ProxmoxHand<ProxmoxClient>>) -> Result<ExecutionReport, RuntimeError> {
        let Inner { reader, state, clock, slow_response, executor, .. } = &*self.inner;
        let unsettled = executor.find_unsettled().await.map_err(|error| self.engine_error(error))?;
        if unsettled.histories().is_empty() {
            return Ok(ExecutionReport::default());
        }
        let ids: Vec<_> = unsettled.histories().iter().map(|history| history.id().clone()).collect();
        record::record_recovery(state, reader.name(), &ids).await?;
        let events = reader.events();
        events.publish(RunEvent::RecoveryStarted { operations: ids.len() });
        let actuator = EnvironmentActuator::for_recovery(hand, slow_response, clock);
        let (patience, on_notice) = (reader.config().patience.for_startup(), publish_to(events, true));
        let recovery = executor.recover(RecoverySubmission { unsettled, actuator, patience, on_notice });
        let report = recovery.wait().await.map_err(|error| self.engine_error(error))?;
        events.publish(RunEvent::RecoveryEnded(Arc::new(report.clone())));
        Ok(report)
    }

    fn publish_held(&self, conditions: &StoreConditions, recovered: &ExecutionReport) {
        let is_new = |history: &&OperationHistory| !recovered.operations().iter().any(|told| told.operation.id == *history.id());
        let held: Vec<OperationHistory> = conditions.unsettled.iter().filter(is_new).cloned().collect();
        if !held.is_empty() {
            self.inner.reader.events().publish(RunEvent::OperationsHeld(held.into()));
        }
    }

    /// An actuator for a run that was observed over this endpoint.
    pub(crate) fn actuator(&self, hand: &Arc<ProxmoxHand<ProxmoxClient>>) -> Arc<EnvironmentActuator> {
        EnvironmentActuator::for_apply(hand, &self.inner.slow_response)
    }

    pub(crate) fn engine_error(&self, error: EngineError) -> RuntimeError {
        match error {
            EngineError::Store(error) => store_error(&error),
            EngineError::NotAccepting(reason) => RuntimeError::not_accepting(self.inner.reader.name(), reason),
            EngineError::MissingIds | EngineError::RunMismatch(_) | EngineError::ExecutorLost => RuntimeError::failed(error.to_string()),
        }
    }
}

/// Takes out operations of other runs of this process that are in flight: the journal has no end of them, and recovery left them out.
fn take_in_flight(conditions: &mut StoreConditions, recovered: &ExecutionReport) -> Vec<OperationHistory> {
    let was_recovered = |history: &OperationHistory| recovered.operations().iter().any(|reported| reported.operation.id == *history.id());
    conditions.unsettled.extract_if(.., |history| history.progress().is_open() && !was_recovered(history)).collect()
}

/// Where operations of earlier runs are held. Guests outside of the scope are reported, and do not decide how the run ends.
fn find_held(recovered: &ExecutionReport, conditions: &StoreConditions, scope: &Scope) -> HeldBefore {
    let held = recovered.operations().iter().filter(|reported| reported.outcome.end() == OperationEnd::Held);
    let held = held.map(|reported| reported.operation.guest.vmid);
    let unsettled = conditions.unsettled.iter().map(|history| history.operation.guest.vmid);
    match held.chain(unsettled).any(|vmid| scope.contains(vmid)) {
        true => HeldBefore::InScope,
        false if conditions.unsettled.is_empty() => HeldBefore::Nowhere,
        false => HeldBefore::OutOfScope,
    }
}

/// A program that does not keep its contract may read, and may not act.
///
/// # Errors
/// The contract is broken.
pub fn check_contract() -> Result<(), RuntimeError> {
    if contract::check().holds() {
        return Ok(());
    }
    let fault = crate::error::RuntimeFault::new("the contract of this program is broken, so that it does not act");
    Err(RuntimeError::Broken { fault: fault.with_help("see `converger contract`"), entry: None })
}
