//! Connects the engine to an environment, and has the only `impl Actuator for` of the program.
//!
//! The engine decides what is sent and when; this module only forwards requests and responses.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use converger_adapters::proxmox::actuator::ProxmoxActuator;
use converger_adapters::proxmox::client::{NodePermit, ProxmoxClient};
use converger_core::apply::{EnvFault, EnvRequest, EnvResponse, GuestAddress, RunId};
use converger_core::guest::EnvironmentName;
use converger_engine::executor::{Actuator, Executor, OnNotice, OperationNotice, RunSignal};
use converger_engine::schedule::ConcurrencyLimits;
use converger_store::EnvironmentLock;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::event::{EventSink, OperationProgress, RunEvent};
use crate::recovery_timeout::{UnresponsiveNodes, answering_node};
use crate::run_clock::RunClock;
use crate::slow_response::{RequestSource, SlowResponseNotice};
use crate::state_dir::{StateDirectory, wait_for_task};

/// Sends requests to one endpoint of a Proxmox cluster.
pub(crate) type EndpointActuator = ProxmoxActuator<ProxmoxClient>;

/// Sends requests of the engine to the endpoint that the observation came from.
pub(crate) struct EnvironmentActuator {
    endpoint: Arc<EndpointActuator>,
    slow_response: Arc<SlowResponseNotice>,
    /// The run; none during recovery.
    run: Option<RunId>,
    /// During recovery: nodes that get no more requests.
    unresponsive: Option<UnresponsiveNodes>,
}

impl EnvironmentActuator {
    /// An actuator for applying a plan.
    pub(crate) fn for_apply(endpoint: &Arc<EndpointActuator>, slow_response: &Arc<SlowResponseNotice>, run: RunId) -> Arc<Self> {
        let (endpoint, slow_response) = (Arc::clone(endpoint), Arc::clone(slow_response));
        Arc::new(Self { endpoint, slow_response, run: Some(run), unresponsive: None })
    }

    /// An actuator for recovery, which gives up on a node that does not answer in time. With a lab's clock there is no such timeout.
    pub(crate) fn for_recovery(endpoint: &Arc<EndpointActuator>, slow_response: &Arc<SlowResponseNotice>, clock: &RunClock) -> Arc<Self> {
        let unresponsive = clock.is_real().then(UnresponsiveNodes::default);
        Arc::new(Self { endpoint: Arc::clone(endpoint), slow_response: Arc::clone(slow_response), run: None, unresponsive })
    }
}

impl EnvironmentActuator {
    /// Where a request comes from and goes to, for a notice.
    fn source_of(&self, request: &EnvRequest) -> RequestSource {
        let node = request.guest_address().map(|address| address.node.clone()).or_else(|| answering_node(request));
        RequestSource { run: self.run.clone(), node }
    }
}

impl Actuator for EnvironmentActuator {
    type Permit = NodePermit;

    async fn acquire_permit(&self, address: GuestAddress) -> Result<NodePermit, EnvFault> {
        self.endpoint.acquire_permit(&address).await
    }

    async fn send(&self, permit: NodePermit, request: EnvRequest) -> EnvResponse {
        self.slow_response.watch(self.source_of(&request), self.endpoint.send_with_permit(permit, &request)).await
    }

    async fn request(&self, request: EnvRequest) -> EnvResponse {
        let response = self.slow_response.watch(self.source_of(&request), self.endpoint.request(&request));
        match &self.unresponsive {
            Some(nodes) => nodes.bound_response(answering_node(&request), response).await,
            None => response.await,
        }
    }
}

/// The executor of one environment and its task, for as long as this process drives the environment.
pub(crate) struct EnvironmentExecutor {
    executor: Executor<EnvironmentActuator>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl EnvironmentExecutor {
    /// Starts the executor; call it within a runtime. Its task owns the lock: operations may be in flight after the last caller has gone.
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

    /// Accepts nothing more, starts nothing new, and returns once all operations in flight have ended and the lock is released.
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
