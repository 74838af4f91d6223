//! One environment, locked for this process: recovers what an earlier process left in flight, and starts runs.
//!
//! The command line opens it for the length of one command, a daemon for as long as it runs.

use std::sync::Arc;

use converger_adapters::proxmox::client::Client;
use converger_adapters::proxmox::hand::Hand as ProxmoxHand;
use converger_adapters::proxmox::observe::Needs;
use converger_core::apply::{End, History};
use converger_core::approve::Mode;
use converger_core::artifact::Provenance;
use converger_core::contract;
use converger_core::desired::Scope;
use converger_core::refusal::Refusal;
use converger_engine::driver::{Report, Signal};
use converger_engine::schedule::OnFailure;
use converger_store::{EnvironmentLock, Remembered};
use tokio::sync::watch;

use crate::error::RuntimeError;
use crate::event::RunEvent;
use crate::executor::{self, EnvironmentActuator};
use crate::host;
use crate::reader::{EnvironmentReader, Observed};
use crate::record::{self, RunRecord};
use crate::report::HeldBefore;
use crate::run::{Run, RunRequest};
use crate::run_clock::RunClock;
use crate::slow_response::SlowResponseNotice;
use crate::state_dir::{LockOutcome, StateDirectory, store_error};

/// An environment that this process drives until the last clone is dropped.
#[derive(Clone)]
pub struct Environment {
    inner: Arc<Inner>,
}

struct Inner {
    reader: EnvironmentReader,
    state: StateDirectory,
    mode: Mode,
    clock: RunClock,
    slow_response: Arc<SlowResponseNotice>,
    stop: watch::Sender<Signal>,
    _lock: EnvironmentLock,
}

/// The result of opening an environment. A refusal is a decision: it cannot be passed on with `?`.
pub enum Opened {
    /// It is open.
    Ready(Environment),
    /// Another process drives it.
    Refused(Refusal),
}

impl Environment {
    /// Takes the environment's lock. Sends no request: opening works while the cluster is down.
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
        let inner = Inner { reader, state, mode, clock, slow_response, stop: watch::Sender::new(Signal::GoOn), _lock: lock };
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

    pub(crate) fn mode(&self) -> Mode {
        self.inner.mode
    }

    /// Who may ask for a stop, and who listens for one.
    #[must_use]
    pub fn stop_sender(&self) -> &watch::Sender<Signal> {
        &self.inner.stop
    }

    pub(crate) fn stop_receiver(&self) -> watch::Receiver<Signal> {
        self.inner.stop.subscribe()
    }

    /// `Drain` starts nothing new and waits for operations in flight. `Quit` stops waiting; the next start recovers them.
    pub fn request_stop(&self, signal: Signal) {
        self.inner.stop.send_replace(signal);
    }

    /// Observes, recovers, plans, judges and records. Sends no change.
    ///
    /// # Errors
    /// There is no observation, or the journal cannot be used.
    pub async fn start_run(&self, request: RunRequest) -> Result<Run, RuntimeError> {
        let Inner { reader, state, .. } = &*self.inner;
        let scope = request.desired.scope();
        // An observation first: it selects the endpoint that recovery asks and that changes are sent to.
        let proxmox = reader.connect()?.with_needs(Needs::of(&request.desired));
        let report = reader.observe_live(&proxmox, &scope).await?;
        let hand = proxmox.hand(&report.place).map_err(|error| RuntimeError::failed(error.to_string()))?;
        let hand = Arc::new(hand);
        // A guest whose last operation is unresolved must not be planned as if it were idle (G13).
        let recovered = Arc::new(self.recover(&hand, request.on_failure).await?);
        let report = match recovered.operations() {
            [] => report,
            _ => reader.observe_live(&proxmox, &scope).await?,
        };
        let conditions = state.load_conditions(reader.name()).await?;
        self.publish_held(&conditions, &recovered);
        let held_before = find_held(&recovered, &conditions, &scope);
        let observed = Observed { observation: report.reading.clone(), provenance: Provenance::Live };
        let RunRequest { desired, expected, narrowed, refused, on_failure } = request;
        let planned = reader.judge(desired, observed, &conditions);
        let staleness = expected.map(|expected| expected.find_difference(planned.judged.plan(), narrowed)).transpose()?.flatten();
        // Record before returning: nobody learns of a decision that the ledger does not have (G10).
        let record = RunRecord::start(state, &planned.judged, reader.config().snapshot.clone(), host::new_run_id()?).await?;
        reader.events().publish(RunEvent::PlanRecorded { run: record.run().clone(), plan: record.plan() });
        Ok(Run::new(self.clone(), hand, record, planned, recovered, held_before, staleness, refused, on_failure))
    }

    /// Tells the witness what the ledger holds by now. Call it after a run, whatever came of it.
    ///
    /// # Errors
    /// The witness cannot be told, or has seen another ledger.
    pub async fn attest_ledger(&self) -> Result<(), RuntimeError> {
        self.inner.state.attest_ledger().await
    }

    /// Settles operations that an earlier process left in flight, by reading only (G13).
    async fn recover(&self, hand: &Arc<ProxmoxHand<Client>>, on_failure: OnFailure) -> Result<Report, RuntimeError> {
        let Inner { reader, state, clock, slow_response, .. } = &*self.inner;
        let actuator = EnvironmentActuator::for_recovery(hand, slow_response, clock);
        let engine = executor::engine(actuator, state, reader.config(), clock.clone(), on_failure);
        let unsettled = engine.unsettled(reader.name()).await.map_err(|error| store_error(&error))?;
        if unsettled.is_empty() {
            return Ok(Report::default());
        }
        let ids: Vec<_> = unsettled.iter().map(|history| history.id().clone()).collect();
        record::record_recovery(state, reader.name(), &ids).await?;
        let events = reader.events();
        events.publish(RunEvent::RecoveryStarted { operations: unsettled.len() });
        let report = engine.recover(unsettled, self.stop_receiver(), |notice| executor::publish_progress(&**events, &notice, true)).await;
        events.publish(RunEvent::RecoveryEnded(Arc::new(report.clone())));
        Ok(report)
    }

    fn publish_held(&self, conditions: &Remembered, recovered: &Report) {
        let is_new = |history: &&History| !recovered.operations().iter().any(|told| told.operation.id == *history.id());
        let held: Vec<History> = conditions.unsettled.iter().filter(is_new).cloned().collect();
        if !held.is_empty() {
            self.inner.reader.events().publish(RunEvent::OperationsHeld(held.into()));
        }
    }

    pub(crate) fn apply_engine(&self, hand: &Arc<ProxmoxHand<Client>>, on_failure: OnFailure) -> executor::RunEngine {
        let Inner { reader, state, clock, slow_response, .. } = &*self.inner;
        executor::engine(EnvironmentActuator::for_apply(hand, slow_response), state, reader.config(), clock.clone(), on_failure)
    }
}

/// Where operations of earlier runs are held. Guests outside of the scope are reported, and do not decide how the run ends.
fn find_held(recovered: &Report, conditions: &Remembered, scope: &Scope) -> HeldBefore {
    let held = recovered.operations().iter().filter(|reported| reported.outcome.end() == End::Held);
    let held = held.map(|reported| reported.operation.guest.vmid);
    let unsettled = conditions.unsettled.iter().map(|history| history.operation.guest.vmid);
    match held.chain(unsettled).any(|vmid| scope.has(vmid)) {
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
