//! One environment, locked for this process: recovers what an earlier process left in flight, and starts runs.
//!
//! The command line opens it for the length of one command, a daemon for as long as it runs. All runs of an environment share one executor, with its
//! queues, its limits and its stop signal.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use converger_adapters::proxmox::actuator::check_password_reference;
use converger_adapters::proxmox::observe::ReadSet;
use converger_adapters::proxmox::{ObservationReport, ProxmoxObserver};
use converger_core::action::Change;
use converger_core::apply::{OperationEnd, OperationHistory, RunId};
use converger_core::approve::ApprovalMode;
use converger_core::artifact::Provenance;
use converger_core::contract;
use converger_core::desired::Scope;
use converger_core::failure::FailureCode;
use converger_core::guest::ClusterIdentity;
use converger_core::refusal::Refusal;
use converger_core::safety::JudgedVerdict;
use converger_engine::executor::{EngineError, RecoverySubmission, RunSignal, Unsettled};
use converger_store::{StoreCapacity, StoreConditions};
use tokio::task::JoinHandle;

use crate::cluster_identity;
use crate::config::Config;
use crate::error::RuntimeError;
use crate::event::{EnvironmentEvents, EventSink, EventStream, RunEvent};
use crate::executor::{EndpointActuator, EnvironmentActuator, EnvironmentExecutor, publish_to};
use crate::reader::{EnvironmentReader, Observed, Planned, find_remembered_guests};
use crate::record::{self, RunOrigin, RunRecord};
use crate::report::{HeldBefore, RecoveryReport, RunReport};
use crate::request_key::{KeyUse, RepeatedRequest, find_key_use, key_of_run};
use crate::run::{Run, RunContext, RunRequest};
use crate::run_clock::RunClock;
use crate::slow_response::SlowResponseNotice;
use crate::state_dir::{LockOutcome, StateDirectory, StateStore, store_error};
use crate::stop::{StopCause, StopHandle};

/// An environment that this process drives until it is closed, or until the last clone is dropped and nothing is in flight.
#[derive(Clone)]
pub struct Environment {
    shared: Arc<OpenEnvironment>,
}

/// What the clones of an [`Environment`] share.
struct OpenEnvironment {
    settings: RwLock<RunSettings>,
    state: StateDirectory,
    clock: RunClock,
    slow_response: Arc<SlowResponseNotice>,
    events: Arc<EnvironmentEvents>,
    stop: StopHandle,
    executor: EnvironmentExecutor,
    _capacity: CapacityEvents,
}

/// The configuration of one run. A run keeps the settings that it started with.
#[derive(Clone)]
pub(crate) struct RunSettings {
    pub(crate) reader: EnvironmentReader,
    pub(crate) mode: ApprovalMode,
}

/// The result of opening an environment. A refusal is a decision: it cannot be passed on with `?`.
pub enum Opened {
    /// The environment is open.
    Ready(Environment),
    /// Another process drives it.
    Refused(Refusal),
}

/// The result of starting a run. A refusal is a decision: it cannot be passed on with `?`.
pub enum StartedRun {
    /// Its plan waits for confirmation.
    Run(Box<Run>),
    /// The environment name does not stand for the cluster that answers, the cluster cannot be identified, or the key of the request is that of another
    /// one.
    Refused(Refusal),
    /// The request was executed before with the same key. Nothing was planned or sent.
    Repeated(Box<RepeatedRequest>),
}

/// The result of a recovery. A refusal is a decision: it cannot be passed on with `?`.
#[derive(Debug)]
pub enum Recovered {
    /// Operations that an earlier process left in flight are settled or held; none is the usual case.
    Settled(RecoveryReport),
    /// The environment name does not stand for the cluster that answers, or the cluster cannot be identified. Nothing was settled.
    Refused(Refusal),
}

/// The endpoint of a cluster that the environment name stands for.
enum SelectedEndpoint {
    Verified(Arc<EndpointActuator>, ClusterIdentity),
    Refused(Refusal),
}

impl Environment {
    /// Takes the environment's lock and starts its executor; call it within a runtime. It sends no request: opening works while the cluster is down.
    ///
    /// # Errors
    /// The program does not keep its contract, the environment is not configured for applying, or the lock cannot be taken.
    pub fn open(state: StateDirectory, reader: EnvironmentReader) -> Result<Opened, RuntimeError> {
        check_contract()?;
        let (mode, clock) = (reader.approval_mode()?, RunClock::new(reader.connection()?.clock, reader.host().clock.clone()));
        let lock = match state.lock_environment(reader.name())? {
            LockOutcome::Taken(lock) => lock,
            LockOutcome::Refused(refusal) => return Ok(Opened::Refused(refusal)),
        };
        let events = Arc::new(EnvironmentEvents::new(Arc::clone(reader.events())));
        let reader = reader.with_events(Arc::clone(&events) as Arc<dyn EventSink>);
        let slow_response = Arc::new(SlowResponseNotice::new(Arc::clone(reader.events()), clock.is_real()));
        let stop = StopHandle::new(Arc::clone(reader.events()));
        let limits = reader.config().at_once;
        let executor = EnvironmentExecutor::start(reader.name().clone(), &state, &clock, limits, stop.subscribe(), lock);
        let capacity = CapacityEvents::start(state.store(), Arc::clone(reader.events()));
        let settings = RwLock::new(RunSettings { reader, mode });
        let shared = OpenEnvironment { settings, state, clock, slow_response, events, stop, executor, _capacity: capacity };
        Ok(Opened::Ready(Self { shared: Arc::new(shared) }))
    }

    /// Read access to the same environment, under the configuration of the next run.
    #[must_use]
    pub fn reader(&self) -> EnvironmentReader {
        self.settings().reader
    }

    /// The open state directory.
    #[must_use]
    pub fn state(&self) -> &StateDirectory {
        &self.shared.state
    }

    /// The clock of its runs.
    #[must_use]
    pub fn clock(&self) -> &RunClock {
        &self.shared.clock
    }

    /// Requests to stop the environment.
    #[must_use]
    pub fn stop_handle(&self) -> &StopHandle {
        &self.shared.stop
    }

    /// All later events of the environment, for display. A slow subscriber loses events and receives [`RunEvent::Skipped`]; it never delays a run.
    #[must_use]
    pub fn watch(&self) -> EventStream {
        self.shared.events.watch()
    }

    pub(crate) fn executor(&self) -> &EnvironmentExecutor {
        &self.shared.executor
    }

    fn settings(&self) -> RunSettings {
        self.shared.settings.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Uses `config` from the next run on. Runs in progress keep theirs.
    ///
    /// # Errors
    /// The configuration cannot be used for applying, or changes something that is fixed while the environment is open: its state directory, its
    /// witness or its clock. The old configuration stays in force.
    pub fn reload(&self, config: Arc<Config>) -> Result<(), RuntimeError> {
        let mut settings = self.shared.settings.write().unwrap_or_else(PoisonError::into_inner);
        let reader = settings.reader.with_config(config);
        let mode = reader.approval_mode()?;
        check_reloadable(&settings.reader, &reader)?;
        *settings = RunSettings { reader, mode };
        Ok(())
    }

    /// `Drain` starts nothing new and waits for operations in flight. `Leave` stops waiting; the next start recovers them.
    pub fn request_stop(&self, signal: RunSignal) {
        self.shared.stop.request(signal, StopCause::Requested);
    }

    /// Starts nothing new of one run and waits for its operations in flight. Other runs are not affected.
    pub fn stop_run(&self, run: RunId) {
        self.shared.executor.stop_run(run);
    }

    /// Settles operations that an earlier process left in flight, by reading only (G13). Skips operations that this process is executing.
    ///
    /// It sends no request if there is nothing to recover. Otherwise it observes first, to select an endpoint and to identify the cluster.
    ///
    /// # Errors
    /// There is no observation, or the journal cannot be used.
    pub async fn recover(&self) -> Result<Recovered, RuntimeError> {
        let reader = self.reader();
        let unsettled = self.find_unsettled().await?;
        if unsettled.histories().is_empty() {
            return Ok(Recovered::Settled(RecoveryReport::default()));
        }
        let guests = unsettled.histories().iter().map(|history| history.operation.guest.vmid).collect();
        // No guest is read in full: settling reads each guest itself.
        let proxmox = reader.connect()?.with_needs(ReadSet::Declared(BTreeMap::new()));
        let report = reader.observe_live(&proxmox, &Scope::new(guests).into()).await?;
        match self.select_endpoint(&reader, &proxmox, &report).await? {
            SelectedEndpoint::Verified(actuator, _) => Ok(Recovered::Settled(self.settle(&reader, unsettled, &actuator).await?)),
            SelectedEndpoint::Refused(refusal) => Ok(Recovered::Refused(refusal)),
        }
    }

    /// Observes, recovers, plans, judges and records. Sends no change. A request that was executed before with the same key is not planned again.
    ///
    /// # Errors
    /// Too many runs are open, a stop was requested, there is no observation, or the journal cannot be used.
    pub async fn start_run(&self, request: RunRequest) -> Result<StartedRun, RuntimeError> {
        let settings = self.settings();
        let (reader, executor) = (&settings.reader, &self.shared.executor);
        // Held until the run has ended: the number of open runs is bounded before anything is read for them.
        let slot = executor.reserve_slot().map_err(|reason| RuntimeError::not_accepting(reader.name(), reason))?;
        executor.set_limits(reader.config().at_once);
        // Nothing is read for a request whose outcome is known. If it may be in flight, recovery settles it first.
        let key_use = self.find_key_use(reader, &request).await?;
        if !key_use.is_open()
            && let Some(ended) = end_by_key(reader, &request, key_use, RecoveryReport::default())
        {
            return Ok(ended);
        }
        let selection = request.intent.scope().into();
        // Observe first: it selects the endpoint that recovery reads from and that changes are sent to.
        let proxmox = reader.connect()?.with_needs(request.intent.read_set());
        let report = reader.observe_live(&proxmox, &selection).await?;
        let (actuator, cluster) = match self.select_endpoint(reader, &proxmox, &report).await? {
            SelectedEndpoint::Verified(actuator, cluster) => (actuator, cluster),
            SelectedEndpoint::Refused(refusal) => return Ok(StartedRun::Refused(refusal)),
        };
        // A guest whose last operation is unresolved must not be planned as if it were idle (G13).
        let recovered = self.settle(reader, self.find_unsettled().await?, &actuator).await?;
        if let Some(ended) = end_by_key(reader, &request, self.find_key_use(reader, &request).await?, recovered.clone()) {
            return Ok(ended);
        }
        let report = if recovered.operations().is_empty() { report } else { reader.observe_live(&proxmox, &selection).await? };
        let (conditions, held_before) = self.load_conditions(reader, &request, &report, &recovered).await?;
        let observed = Observed { observation: report.reading.clone(), provenance: Provenance::Live, cluster: Some(cluster) };
        let RunRequest { intent, key, expected, narrowed: omission, refused, on_failure, requested_by } = request;
        let is_request = intent.request().is_some();
        let planned = reader.judge(intent, observed, &conditions);
        check_passwords(&planned)?;
        let staleness = expected.map(|expected| expected.find_difference(&planned.judged, omission)).transpose()?.flatten();
        // Record before returning: no caller sees a decision that the ledger does not have (G10).
        let origin = RunOrigin { run: reader.host().new_run_id()?, requested_by, host: Arc::clone(reader.host()) };
        let key = if is_request { Some(key.map_or_else(|| key_of_run(&origin.run), Ok)?) } else { None };
        let record = RunRecord::start(&self.shared.state, &planned.judged, reader.config().snapshot.clone(), origin).await?;
        reader.events().publish(RunEvent::PlanRecorded { run: record.run().clone(), plan: record.plan(), proposal: record.proposal() });
        let context = RunContext { environment: self.clone(), settings, actuator, record, recovered, held_before, on_failure, key };
        Ok(StartedRun::Run(Box::new(Run { context, slot, planned, staleness, refused })))
    }

    /// Accepts nothing more, starts nothing new, waits for operations in flight, releases the lock, and attests the ledger to the witness. Call it
    /// after success and after failure.
    ///
    /// # Errors
    /// The witness cannot be written, or has a checkpoint of another ledger.
    pub async fn close(self) -> Result<(), RuntimeError> {
        self.shared.executor.close().await;
        self.attest_ledger().await
    }

    /// Attests the ledger to the witness. Call it after a run, whatever its result.
    ///
    /// # Errors
    /// The witness cannot be written, or has a checkpoint of another ledger.
    pub async fn attest_ledger(&self) -> Result<(), RuntimeError> {
        self.shared.state.attest_ledger().await
    }

    /// Checks that the cluster is the one that the name stands for, before anything is recovered, recorded or sent there.
    async fn select_endpoint(
        &self,
        reader: &EnvironmentReader,
        proxmox: &ProxmoxObserver,
        report: &ObservationReport,
    ) -> Result<SelectedEndpoint, RuntimeError> {
        let cluster =
            match cluster_identity::bind_environment(&self.shared.state, reader.host(), reader.name(), proxmox.identity(report).await)
                .await?
            {
                Ok(cluster) => cluster,
                Err(refusal) => return Ok(SelectedEndpoint::Refused(refusal)),
            };
        let actuator = proxmox.actuator(&report.endpoint).map_err(|error| RuntimeError::failed(error.to_string()))?;
        Ok(SelectedEndpoint::Verified(Arc::new(actuator), cluster))
    }

    /// What the journal has under the key that the caller chose.
    async fn find_key_use(&self, reader: &EnvironmentReader, request: &RunRequest) -> Result<KeyUse, RuntimeError> {
        match &request.key {
            Some(key) => find_key_use(self.shared.state.store(), reader.name(), key, &request.intent).await,
            None => Ok(KeyUse::Unused),
        }
    }

    async fn find_unsettled(&self) -> Result<Unsettled, RuntimeError> {
        self.shared.executor.find_unsettled().await.map_err(|error| self.engine_error(error))
    }

    /// Settles operations by reading, and records before that it does.
    async fn settle(
        &self,
        reader: &EnvironmentReader,
        unsettled: Unsettled,
        actuator: &Arc<EndpointActuator>,
    ) -> Result<RecoveryReport, RuntimeError> {
        if unsettled.histories().is_empty() {
            return Ok(RecoveryReport::default());
        }
        let OpenEnvironment { state, clock, slow_response, executor, .. } = &*self.shared;
        let ids: Vec<_> = unsettled.histories().iter().map(|history| history.id().clone()).collect();
        record::record_recovery(state, reader.name(), &ids, reader.host().now_ms()).await?;
        let events = reader.events();
        events.publish(RunEvent::RecoveryStarted { operations: ids.len() });
        let actuator = EnvironmentActuator::for_recovery(actuator, slow_response, clock);
        let (patience, on_notice) = (reader.config().patience.for_startup(), publish_to(events, true));
        let recovery = executor.recover(RecoverySubmission { unsettled, actuator, patience, on_notice });
        let report = RecoveryReport::new(recovery.wait().await.map_err(|error| self.engine_error(error))?);
        events.publish(RunEvent::RecoveryEnded(report.clone()));
        Ok(report)
    }

    /// What the journal holds that decides about the plan of a run, and where operations of earlier runs are held.
    async fn load_conditions(
        &self,
        reader: &EnvironmentReader,
        request: &RunRequest,
        report: &ObservationReport,
        recovered: &RecoveryReport,
    ) -> Result<(StoreConditions, HeldBefore), RuntimeError> {
        let state = &self.shared.state;
        let mut conditions = state.load_conditions(reader.name()).await?;
        conditions.writes = state.load_operations(reader.name(), find_remembered_guests(&request.intent, &report.reading)).await?;
        let in_flight = take_in_flight(&mut conditions, recovered);
        publish_held(reader.events(), &conditions, recovered);
        let held_before = find_held(recovered, &conditions, &request.intent.scope());
        // Operations in flight are not held, but their guests get no step either.
        conditions.unsettled.extend(in_flight);
        Ok((conditions, held_before))
    }

    /// An actuator for a run that was observed over this endpoint.
    pub(crate) fn actuator(&self, endpoint: &Arc<EndpointActuator>, run: RunId) -> Arc<EnvironmentActuator> {
        EnvironmentActuator::for_apply(endpoint, &self.shared.slow_response, run)
    }

    pub(crate) fn engine_error(&self, error: EngineError) -> RuntimeError {
        match error {
            EngineError::Store(error) => store_error(&error),
            EngineError::NotAccepting(reason) => RuntimeError::not_accepting(self.settings().reader.name(), reason),
            EngineError::MissingIds | EngineError::RunMismatch(_) | EngineError::ExecutorLost => RuntimeError::failed(error.to_string()),
        }
    }
}

/// Ends a run whose key was used before.
fn end_by_key(reader: &EnvironmentReader, request: &RunRequest, key_use: KeyUse, recovered: RecoveryReport) -> Option<StartedRun> {
    match key_use {
        KeyUse::Unused | KeyUse::CutOff => None,
        KeyUse::Reused(refusal) => Some(StartedRun::Refused(refusal)),
        KeyUse::Repeated(histories) => {
            let report = RunReport::for_repeated(reader, histories, recovered)?;
            Some(StartedRun::Repeated(Box::new(RepeatedRequest { key: request.key.clone()?, report })))
        }
    }
}

/// Publishes [`RunEvent::StoreFull`] and [`RunEvent::StoreWritable`] for as long as it lives.
struct CapacityEvents(JoinHandle<()>);

impl CapacityEvents {
    fn start(store: &StateStore, events: Arc<dyn EventSink>) -> Self {
        let mut capacity = store.watch_capacity();
        // Another environment may have found the disk full before this one was opened.
        capacity.mark_changed();
        Self(tokio::spawn(async move {
            let mut was_full = false;
            while capacity.changed().await.is_ok() {
                let is_full = matches!(*capacity.borrow_and_update(), StoreCapacity::Full { .. });
                if is_full != was_full {
                    events.publish(if is_full { RunEvent::StoreFull } else { RunEvent::StoreWritable });
                }
                was_full = is_full;
            }
        }))
    }
}

impl Drop for CapacityEvents {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Checks that a new configuration changes nothing that is fixed while an environment is open.
fn check_reloadable(old: &EnvironmentReader, new: &EnvironmentReader) -> Result<(), RuntimeError> {
    let (before, after) = (old.config(), new.config());
    let changed = if before.state != after.state {
        "`directory` in `[store]`"
    } else if before.witness != after.witness {
        "`witness` in `[ledger]`"
    } else if old.connection()?.clock != new.connection()?.clock {
        "the clock of the environment"
    } else {
        return Ok(());
    };
    let text =
        format!("environment `{}` cannot use the new configuration: it changes {changed}, which is fixed while it is open", old.name());
    Err(RuntimeError::input(text)
        .with_code(FailureCode::ConfigInvalid)
        .with_help("restart the program to use it; until then the old configuration stays in force"))
}

fn publish_held(events: &Arc<dyn EventSink>, conditions: &StoreConditions, recovered: &RecoveryReport) {
    let is_new = |history: &&OperationHistory| !recovered.contains(history.id());
    let held: Vec<OperationHistory> = conditions.unsettled.iter().filter(is_new).cloned().collect();
    if !held.is_empty() {
        events.publish(RunEvent::OperationsHeld(held.into()));
    }
}

/// Takes out operations of other runs of this process that are in flight: they have no end in the journal, and recovery skipped them.
fn take_in_flight(conditions: &mut StoreConditions, recovered: &RecoveryReport) -> Vec<OperationHistory> {
    conditions.unsettled.extract_if(.., |history| history.progress().is_open() && !recovered.contains(history.id())).collect()
}

/// Where operations of earlier runs are held. Guests outside the scope are reported, but do not decide how the run ends.
fn find_held(recovered: &RecoveryReport, conditions: &StoreConditions, scope: &Scope) -> HeldBefore {
    let held = recovered.operations().iter().filter(|reported| reported.outcome.end() == OperationEnd::Held);
    let held = held.map(|reported| reported.operation.guest.vmid);
    let unsettled = conditions.unsettled.iter().map(|history| history.operation.guest.vmid);
    match held.chain(unsettled).any(|vmid| scope.contains(vmid)) {
        true => HeldBefore::InScope,
        false if conditions.unsettled.is_empty() => HeldBefore::Nowhere,
        false => HeldBefore::OutOfScope,
    }
}

/// Checks that every password of the plan can be read. If it were missing later, the guest would be made and stay without its configuration.
fn check_passwords(planned: &Planned) -> Result<(), RuntimeError> {
    for (guest, verdict) in planned.judged.guests() {
        let JudgedVerdict::Steps(steps) = verdict else { continue };
        for step in steps {
            let Change::Provision(provisioning) = &step.change else { continue };
            let Some(reference) = &provisioning.password else { continue };
            check_password_reference(reference).map_err(|error| {
                RuntimeError::input(format!("cannot read the password of guest {}: {error}", guest.vmid))
                    .with_code(FailureCode::ClientSetup)
                    .with_help("correct the reference, or let this program read it; nothing was sent")
            })?;
        }
    }
    Ok(())
}

/// Checks the contract of the program. A program that does not keep it may read, but not act.
///
/// # Errors
/// The contract is broken.
pub fn check_contract() -> Result<(), RuntimeError> {
    if contract::check().holds() {
        return Ok(());
    }
    let fault = crate::error::RuntimeFault::new("the contract of this program is broken, so it does not act");
    Err(RuntimeError::Broken { fault: fault.with_help("see `converger contract`"), entry: None })
}
