//! Progress of runs as data. A caller shows it as a bar, a log line or a server-sent event.
//!
//! A sink is called in place and must return at once. [`EventBus`] is the sink for long-lived processes: each subscriber has a bounded queue. A slow
//! subscriber loses events and receives their count; it never delays a run.

use std::sync::{Arc, Mutex, PoisonError};

use converger_adapters::proxmox::ObservationReport as Observation;
use converger_core::apply::{Operation, OperationHistory, Outcome, RunId};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, NodeName};
use converger_engine::operation::Phase;
use tokio::sync::mpsc;

use crate::report::{RecoveryReport, RunEnd};
use crate::stop::StopCause;

/// Progress of a run.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// The journal has operations in flight; an apply settles them before it plans.
    OperationsOpen(Arc<[OperationHistory]>),
    /// An observation has started; it reads from one of these endpoints.
    ObservationStarted {
        /// The environment.
        environment: EnvironmentName,
        /// Its endpoints, in the order in which they are tried.
        endpoints: Vec<String>,
    },
    /// More guests were read. At most a hundred of these are published per reading.
    ObservationAdvanced {
        /// Guests read so far.
        read: u64,
        /// Guests to be read one by one.
        total: u64,
    },
    /// The observation ended.
    ObservationTaken(Arc<Observation>),
    /// A note for people. Nothing is refused because of it.
    Note(String),
    /// The observation failed; the call returns the error.
    ObservationFailed,
    /// Recovery has started: it settles operations that an earlier process left in flight, by reading.
    RecoveryStarted {
        /// How many.
        operations: usize,
    },
    /// Recovery ended.
    RecoveryEnded(RecoveryReport),
    /// Held operations that recovery did not settle.
    OperationsHeld(Arc<[OperationHistory]>),
    /// The ledger has the plan and its inputs.
    PlanRecorded {
        /// The run.
        run: RunId,
        /// The digest of the plan.
        plan: Digest,
        /// The digest of its proposal, which approvals bind.
        proposal: Digest,
    },
    /// The plan is approved, and the ledger has that.
    Admitted {
        /// The run.
        run: RunId,
        /// Who confirmed the plan; if there was nothing to confirm, who requested the run.
        by: Box<str>,
    },
    /// An approved plan is being applied.
    ApplyStarted {
        /// The run.
        run: RunId,
        /// How many steps it has.
        steps: usize,
    },
    /// An operation reached another phase.
    OperationAdvanced(OperationProgress),
    /// No response for some time. The request is still waited for, and not sent again.
    ResponseSlow {
        /// The run; none during recovery.
        run: Option<RunId>,
        /// The node that should answer, if only one can.
        node: Option<NodeName>,
    },
    /// All operations of the plan have ended, or were left in flight.
    ApplyEnded {
        /// The run.
        run: RunId,
    },
    /// A stop was requested: nothing new is started, and operations in flight are waited for.
    Draining {
        /// Why.
        cause: StopCause,
        /// Whether changes may have been sent since the environment was opened.
        has_sent: bool,
    },
    /// The run is over, and the ledger has what it decided. A run that is dropped before its admission has no such event.
    RunEnded {
        /// The run.
        run: RunId,
        /// How it ended.
        end: RunEnd,
    },
    /// The disk of the state directory is full: `start_run` fails until there is room, and open runs send nothing more.
    StoreFull,
    /// The state directory could be written again. The next `recover` or `start_run` settles what the full disk left in flight.
    StoreWritable,
    /// This subscriber read too slowly and lost events.
    Skipped {
        /// How many.
        count: u64,
    },
}

/// The progress of one operation.
#[derive(Clone, Debug)]
pub struct OperationProgress {
    /// The operation.
    pub operation: Arc<Operation>,
    /// Its phase.
    pub phase: Phase,
    /// Its outcome, once it has ended.
    pub outcome: Option<Arc<Outcome>>,
    /// Whether recovery settles it: it belongs to an earlier run.
    pub is_recovery: bool,
}

/// Receives events in place. It must not block: runs wait for it.
pub trait EventSink: Send + Sync {
    /// Receives an event.
    fn publish(&self, event: RunEvent);
}

/// A sink for callers that show nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn publish(&self, _: RunEvent) {}
}

/// The events of one environment: for its caller in place, and for those who watch it.
pub(crate) struct EnvironmentEvents {
    caller: Arc<dyn EventSink>,
    watchers: EventBus,
}

impl EnvironmentEvents {
    /// Events are kept for a watcher that does not read.
    const CAPACITY: usize = 1024;

    pub(crate) fn new(caller: Arc<dyn EventSink>) -> Self {
        Self { caller, watchers: EventBus::default() }
    }

    pub(crate) fn watch(&self) -> EventStream {
        self.watchers.subscribe(Self::CAPACITY)
    }
}

impl EventSink for EnvironmentEvents {
    fn publish(&self, event: RunEvent) {
        self.watchers.publish(event.clone());
        self.caller.publish(event);
    }
}

/// Forwards events to any number of subscribers.
#[derive(Debug, Default)]
pub struct EventBus {
    subscribers: Mutex<Vec<Subscriber>>,
}

#[derive(Debug)]
struct Subscriber {
    queue: mpsc::Sender<RunEvent>,
    skipped: u64,
}

/// The events of one subscription.
#[derive(Debug)]
pub struct EventStream {
    queue: mpsc::Receiver<RunEvent>,
}

impl EventBus {
    /// Subscribes to all later events. Up to `capacity` events are kept for a subscriber that does not read; it loses the others.
    pub fn subscribe(&self, capacity: usize) -> EventStream {
        let (sender, queue) = mpsc::channel(capacity.max(1));
        self.lock().push(Subscriber { queue: sender, skipped: 0 });
        EventStream { queue }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Subscriber>> {
        self.subscribers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventSink for EventBus {
    fn publish(&self, event: RunEvent) {
        self.lock().retain_mut(|subscriber| subscriber.send(event.clone()));
    }
}

impl Subscriber {
    /// Queues an event; false if the subscriber is gone.
    fn send(&mut self, event: RunEvent) -> bool {
        // A gap is announced before the next event, so that a reader never takes two events for consecutive ones.
        if self.skipped > 0 {
            match self.queue.try_send(RunEvent::Skipped { count: self.skipped }) {
                Ok(()) => self.skipped = 0,
                Err(mpsc::error::TrySendError::Full(_)) => {
                    self.skipped += 1;
                    return true;
                }
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
            }
        }
        match self.queue.try_send(event) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                self.skipped += 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        }
    }
}

impl EventStream {
    /// The next event; `None` once the bus is gone and all events were read.
    pub async fn next(&mut self) -> Option<RunEvent> {
        self.queue.recv().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn number(event: &RunEvent) -> Result<usize, u64> {
        match event {
            RunEvent::RecoveryStarted { operations } => Ok(*operations),
            RunEvent::Skipped { count } => Err(*count),
            other => panic!("not published here: {other:?}"),
        }
    }

    fn drain(stream: &mut EventStream) -> Vec<Result<usize, u64>> {
        std::iter::from_fn(|| stream.next().now_or_never().flatten()).map(|event| number(&event)).collect()
    }

    #[test]
    fn slow_subscriber_loses_events_and_learns_how_many_while_others_lose_none() {
        let bus = EventBus::default();
        let (mut slow, mut quick) = (bus.subscribe(2), bus.subscribe(100));
        (0..5).for_each(|operations| bus.publish(RunEvent::RecoveryStarted { operations }));
        assert_eq!(drain(&mut slow), [Ok(0), Ok(1)]);
        bus.publish(RunEvent::RecoveryStarted { operations: 5 });
        assert_eq!(drain(&mut slow), [Err(3), Ok(5)]);
        assert_eq!(drain(&mut quick), [0, 1, 2, 3, 4, 5].map(Ok));
    }

    #[test]
    fn subscriber_that_left_is_forgotten() {
        let bus = EventBus::default();
        drop(bus.subscribe(1));
        bus.publish(RunEvent::StoreFull);
        assert!(bus.lock().is_empty());
    }
}
