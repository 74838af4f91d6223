//! Requests to stop an environment: the signal that its executor obeys, and the event that says why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use converger_engine::executor::RunSignal;
use tokio::sync::watch;

use crate::event::{EventSink, RunEvent};

/// Why an environment stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The caller requested it.
    Requested,
    /// The process received a signal.
    Signal,
    /// The time for the run is over.
    Timeout,
}

/// Stops one environment. Clones stop the same one. It does not keep the environment open.
#[derive(Clone)]
pub struct StopHandle {
    signal: watch::Sender<RunSignal>,
    has_sent: Arc<AtomicBool>,
    events: Arc<dyn EventSink>,
}

impl StopHandle {
    pub(crate) fn new(events: Arc<dyn EventSink>) -> Self {
        Self { signal: watch::Sender::new(RunSignal::Continue), has_sent: Arc::default(), events }
    }

    /// `Drain` starts nothing new and waits for operations in flight. `Leave` stops waiting; the next start recovers them. A request never takes
    /// back an earlier one.
    pub fn request(&self, signal: RunSignal, cause: StopCause) {
        let mut was = RunSignal::Continue;
        self.signal.send_modify(|current| {
            was = *current;
            *current = signal.max(was);
        });
        // The request comes before its event: the receiver of events may be slow.
        if was == RunSignal::Continue && signal != RunSignal::Continue {
            self.events.publish(RunEvent::Draining { cause, has_sent: self.has_sent() });
        }
    }

    /// Whether changes may have been sent since the environment was opened.
    #[must_use]
    pub fn has_sent(&self) -> bool {
        self.has_sent.load(Ordering::SeqCst)
    }

    /// The requests, to wait for one.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<RunSignal> {
        self.signal.subscribe()
    }

    /// Notes that changes may be sent from here on.
    pub(crate) fn note_sending(&self) {
        self.has_sent.store(true, Ordering::SeqCst);
    }
}
