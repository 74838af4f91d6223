//! Connects the engine to an environment: the one place where the two meet, and the only `impl Hand` of the program.
//!
//! What is sent and when is decided by the engine; this only carries requests there and responses back.

use std::sync::Arc;

use converger_adapters::proxmox::client::{Client, Turn};
use converger_adapters::proxmox::hand::Hand as ProxmoxHand;
use converger_core::apply::{Answer, Ask, Cause, Place};
use converger_engine::driver::{Engine, Hand, Notice, Settings};
use converger_engine::schedule::OnFailure;
use converger_store::SqliteStore;

use crate::config::Config;
use crate::event::{EventSink, OperationProgress, RunEvent};
use crate::recovery_timeout::{UnresponsiveNodes, answering_node};
use crate::run_clock::RunClock;
use crate::slow_response::SlowResponseNotice;
use crate::state_dir::StateDirectory;

/// The engine of one environment.
pub(crate) type RunEngine = Engine<EnvironmentActuator, SqliteStore, RunClock>;

/// Sends requests of the engine to the endpoint that the observation came from.
pub(crate) struct EnvironmentActuator {
    hand: Arc<ProxmoxHand<Client>>,
    slow_response: Arc<SlowResponseNotice>,
    /// During recovery: nodes that are not asked again.
    unresponsive: Option<UnresponsiveNodes>,
}

impl EnvironmentActuator {
    /// An actuator for applying a plan.
    pub(crate) fn for_apply(hand: &Arc<ProxmoxHand<Client>>, slow_response: &Arc<SlowResponseNotice>) -> Arc<Self> {
        Arc::new(Self { hand: Arc::clone(hand), slow_response: Arc::clone(slow_response), unresponsive: None })
    }

    /// An actuator for recovery, which gives up on a node that does not answer. On a lab's clock nothing is waited for.
    pub(crate) fn for_recovery(hand: &Arc<ProxmoxHand<Client>>, slow_response: &Arc<SlowResponseNotice>, clock: &RunClock) -> Arc<Self> {
        let unresponsive = clock.is_real().then(UnresponsiveNodes::default);
        Arc::new(Self { hand: Arc::clone(hand), slow_response: Arc::clone(slow_response), unresponsive })
    }
}

impl Hand for EnvironmentActuator {
    type Turn = Turn;

    async fn turn(&self, place: Place) -> Result<Turn, Cause> {
        self.hand.turn(&place).await
    }

    async fn send(&self, turn: Turn, ask: Ask) -> Answer {
        self.slow_response.watch(self.hand.send(turn, &ask)).await
    }

    async fn ask(&self, ask: Ask) -> Answer {
        let answer = self.slow_response.watch(self.hand.ask(&ask));
        match &self.unresponsive {
            Some(nodes) => nodes.bound_response(answering_node(&ask), answer).await,
            None => answer.await,
        }
    }
}

/// An engine over this actuator, with the limits of the configuration.
pub(crate) fn engine(
    actuator: Arc<EnvironmentActuator>,
    state: &StateDirectory,
    config: &Config,
    clock: RunClock,
    on_failure: OnFailure,
) -> RunEngine {
    let settings = Settings { limits: config.at_once, on_failure, patience: config.patience };
    Engine::new(actuator, Arc::new(state.store().clone()), Arc::new(clock), settings)
}

/// Publishes the progress of an operation.
pub(crate) fn publish_progress(events: &dyn EventSink, notice: &Notice<'_>, is_recovery: bool) {
    events.publish(RunEvent::OperationAdvanced(OperationProgress {
        operation: Arc::new(notice.operation.clone()),
        phase: notice.phase,
        outcome: notice.outcome.map(|outcome| Arc::new(outcome.clone())),
        is_recovery,
    }));
}
