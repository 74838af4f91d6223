//! Connects the engine to an environment: the one place where the two meet, and the only `impl Hand` of the program.
//!
//! What is sent and when is decided by the engine; this only carries requests there and responses back.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use converger_adapters::proxmox::actuator::ProxmoxActuator as ProxmoxHand;
use converger_adapters::proxmox::client::{NodePermit, ProxmoxClient};
use converger_core::apply::{EnvFault, EnvRequest, EnvResponse, GuestAddress};
use converger_core::guest::EnvironmentName;
use converger_engine::executor::{Actuator, Executor, OnNotice, OperationNotice, RunSignal};
use converger_engine::schedule::ConcurrencyLimits;
use converger_store::EnvironmentLock;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::event::{EventSink, OperationProgress, RunEvent};
use crate::recovery_timeout::{UnresponsiveNodes, answering_node};
use crate::run_clock::RunClock;
use crate::slow_response::SlowResponseNotice;
use crate::state_dir::{StateDirectory, wait_for_task};

/// Sends requests of the engine to the endpoint that the observation came from.
pub(crate) struct EnvironmentActuator {
    hand: Arc<ProxmoxHand<ProxmoxClient>>,
    slow_response: Arc<SlowResponseNotice>,
    /// During recovery: nodes that are not asked again.
    unresponsive: Option<UnresponsiveNodes>,
}

impl EnvironmentActuator {
    /// An actuator for applying a plan.
    pub(crate) fn for_apply(hand: &Arc<ProxmoxHand<ProxmoxClient>>, slow_response: &Arc<SlowResponseNotice>) -> Arc<Self> {
        Arc::new(Self { hand: Arc::clone(hand), slow_response: Arc::clone(slow_response), unresponsive: None })
    }

    /// An actuator for recovery, which gives up on a node that does not answer. On a lab's clock nothing is waited for.
    pub(crate) fn for_recovery(
        hand: &Arc<ProxmoxHand<ProxmoxClient>>,
        slow_response: &Arc<SlowResponseNotice>,
        clock: &RunClock,
    ) -> Arc<Self> {
        let unresponsive = clock.is_real().then(UnresponsiveNodes::default);
        Arc::new(Self { hand: Arc::clone(hand), slow_response: Arc::clone(slow_response), unresponsive })
    }
}

impl Actuator for EnvironmentActuator {
    type Permit = NodePermit;

    async fn acquire_permit(&self, place: GuestAddress) -> Result<NodePermit, EnvFault> {
        self.hand.acquire_permit(&place).await
    }

    async fn send(&self, turn: NodePermit, ask: EnvRequest) -> EnvResponse {
        self.slow_response.watch(self.hand.send_with_permit(turn, &ask)).await
    }

    async fn request(&self, ask: EnvRequest) -> EnvResponse {
        let answer = self.slow_response.watch(self.hand.request(&ask));
        match &self.unresponsive {
            Some(nodes) => nodes.bound_response(answering_node(&ask), answer).await,
            None => answer.await,
        }
    }
}

/// The executor of one environment and its task, for as long as this process drives the environment.
pub(crate) struct EnvironmentExecutor {
    executor: Executor<EnvironmentActuator>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl EnvironmentExecutor {
    /// Starts it, within a runtime. The lock belongs to its task: operations may be in flight after the last caller has gone.
    pub(crate) fn start(
        name: EnvironmentName,
        state: &StateDirectory,
        clock: &RunClock,
        limits: ConcurrencyLimits,
        signal: watch::Receiver<RunSignal>,
        lock: EnvironmentLock,
    ) -> Self {
        let (store, clock) = (Arc::new(state.store().clone()), Arc::new(clock.clone()));
        let (executor, work) = Executor::new(name, store, clock, limits, signal);
        let task = tokio::spawn(async move {
            work.await;
            drop(lock);
        });
        Self { executor, task: Mutex::new(Some(task)) }
    }

    /// Accepts nothing more, begins nothing new, and returns once everything in flight has ended and the lock is released.
    pub(crate) async fn close(&self) {
        self.executor.close();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            wait_for_task(task).await;
        }
    }
}

impl Deref for EnvironmentExecutor {
    type Target = Executor<EnvironmentActuator>;

    fn deref(&self) -> &Self::Target {
        &self.executor
    }
}

/// A callback that publishes the progress of operations.
pub(crate) fn publish_to(events: &Arc<dyn EventSink>, is_recovery: bool) -> OnNotice {
    let events = Arc::clone(events);
    Box::new(move |notice| publish_progress(&*events, &notice, is_recovery))
}

/// Publishes the progress of an operation.
fn publish_progress(events: &dyn EventSink, notice: &OperationNotice<'_>, is_recovery: bool) {
    events.publish(RunEvent::OperationAdvanced(OperationProgress {
        operation: Arc::new(notice.operation.clone()),
        phase: notice.phase,
        outcome: notice.outcome.map(|outcome| Arc::new(outcome.clone())),
        is_recovery,
    }));
}
