//! What happens during a run, as data: a caller shows it as a bar, a log line or a server-sent event.
//!
//! A sink is called in place and must return at once. [`EventBus`] is the sink for long-lived processes: each subscriber has a bounded queue, and one
//! that is slow loses events and learns how many; it never delays a run.

use std::sync::{Arc, Mutex, PoisonError};

use converger_adapters::proxmox::ObservationReport as Observation;
use converger_core::apply::{Operation, OperationHistory, Outcome, RunId};
use converger_core::artifact::Digest;
use converger_core::guest::EnvironmentName;
use converger_engine::executor::ExecutionReport;
use converger_engine::operation::Phase;
use tokio::sync::mpsc;

/// Something that happened during a run.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// The journal has operations without an end; an apply settles them before it plans.
    OperationsOpen(Arc<[OperationHistory]>),
    /// An environment is being read; one of these endpoints is asked.
    ObservationStarted {
        /// The environment.
        environment: EnvironmentName,
        /// Its endpoints, in the order in which they are tried.
        endpoints: Vec<String>,
    },
    /// Some of the guests that are read one by one were read: at most a hundred of these for one reading.
    ObservationAdvanced {
        /// How many were read.
        read: u64,
        /// How many are to be read.
        total: u64,
    },
    /// It was read.
    ObservationTaken(Arc<Observation>),
    /// Something that a person should know, though nothing is refused.
    Note(String),
    /// It was not: the error follows as the result of the call.
    ObservationFailed,
    /// Operations that an earlier process left in flight are being settled by reading.
    RecoveryStarted {
        /// How many.
        operations: usize,
    },
    /// That is over.
    RecoveryEnded(Arc<ExecutionReport>),
    /// Held operations that recovery did not settle.
    OperationsHeld(Arc<[OperationHistory]>),
    /// The plan and everything that it rests on is in the ledger.
    PlanRecorded {
        /// The run.
        run: RunId,
        /// The digest of the plan.
        plan: Digest,
    },
    /// The steps of an approved plan are being applied.
    ApplyStarted {
        /// How many.
        steps: usize,
    },
    /// An operation is further than before.
    OperationAdvanced(OperationProgress),
    /// No answer for some time: the request is still waited for, and not sent again.
    ResponseSlow,
    /// All operations of the plan have ended, or were left in flight.
    ApplyEnded,
    /// This subscriber was too slow and lost events.
    Skipped {
        /// How many.
        count: u64,
    },
}

/// How far an operation is.
#[derive(Clone, Debug)]
pub struct OperationProgress {
    /// The operation.
    pub operation: Arc<Operation>,
    /// How far.
    pub phase: Phase,
    /// How it ended, once it has.
    pub outcome: Option<Arc<Outcome>>,
    /// Whether it is an operation of an earlier run that is only being settled.
    pub is_recovery: bool,
}

/// Receives events as they happen. It must not block: runs wait for it.
pub trait EventSink: Send + Sync {
    /// Takes an event.
    fn publish(&self, event: RunEvent);
}

/// A sink for callers that show nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn publish(&self, _: RunEvent) {}
}

/// Hands events on to any number of subscribers.
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
    /// Subscribes from here on. `capacity` events are kept for a subscriber that does not read; later ones are lost to it.
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
    /// Queues an event; false where nobody reads any more.
    fn send(&mut self, event: RunEvent) -> bool {
        // A gap is announced before the next event, so that a reader never mistakes two events for neighbours.
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
    /// The next event; none once the bus is gone and everything was read.
    pub async fn next(&mut self) -> Option<RunEvent> {
        self.queue.recv().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn steps(event: &RunEvent) -> Result<usize, u64> {
        match event {
            RunEvent::ApplyStarted { steps } => Ok(*steps),
            RunEvent::Skipped { count } => Err(*count),
            other => panic!("not published here: {other:?}"),
        }
    }

    fn drain(stream: &mut EventStream) -> Vec<Result<usize, u64>> {
        std::iter::from_fn(|| stream.next().now_or_never().flatten()).map(|event| steps(&event)).collect()
    }

    #[test]
    fn slow_subscriber_loses_events_and_learns_how_many_while_others_lose_none() {
        let bus = EventBus::default();
        let (mut slow, mut quick) = (bus.subscribe(2), bus.subscribe(100));
        (0..5).for_each(|steps| bus.publish(RunEvent::ApplyStarted { steps }));
        assert_eq!(drain(&mut slow), [Ok(0), Ok(1)]);
        bus.publish(RunEvent::ApplyStarted { steps: 5 });
        assert_eq!(drain(&mut slow), [Err(3), Ok(5)]);
        assert_eq!(drain(&mut quick), [0, 1, 2, 3, 4, 5].map(Ok));
    }

    #[test]
    fn subscriber_that_left_is_forgotten() {
        let bus = EventBus::default();
        drop(bus.subscribe(1));
        bus.publish(RunEvent::ApplyEnded);
        assert!(bus.lock().is_empty());
    }
}
