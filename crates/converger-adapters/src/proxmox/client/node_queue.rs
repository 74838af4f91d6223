//! The lane of one node: at most two requests at once, and whoever changes something goes before everybody who reads.
//!
//! A change was checked a moment ago, and what was read for that grows old while it waits behind slow readings of other guests. It
//! waits for a short time only, and then it is not sent at all: whoever checked it checks again. What never enters: requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot::{self, Receiver, Sender};

use super::REQUESTS_PER_NODE_MAX;

/// A change that has not got its turn after this is not sent.
pub(super) const CHANGE_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct NodeQueue(Mutex<NodeQueueState>);

#[derive(Debug)]
struct NodeQueueState {
    free_permits: usize,
    changes: VecDeque<Sender<NodePermit>>,
    readings: VecDeque<Sender<NodePermit>>,
}

/// Who waits for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestClass {
    Change,
    Reading,
}

/// The right to have one request under way. It is given on when it is dropped, also where nobody took it out of the hands of the one who
/// gave it.
#[derive(Debug)]
pub struct NodePermit(Arc<NodeQueue>);

impl Drop for NodePermit {
    fn drop(&mut self) {
        let next = self.0.lock_state().next_waiter();
        if let Some(next) = next {
            // Who left in this very moment drops it, and it comes back here.
            drop(next.send(Self(self.0.clone())));
        }
    }
}

impl NodeQueueState {
    /// Whoever is next and still there; nobody leaves the place free.
    fn next_waiter(&mut self) -> Option<Sender<NodePermit>> {
        while let Some(next) = self.changes.pop_front().or_else(|| self.readings.pop_front()) {
            if !next.is_closed() {
                return Some(next);
            }
        }
        self.free_permits += 1;
        None
    }

    /// Where there is no room, a place in the queue.
    fn enqueue(&mut self, who: RequestClass) -> Option<Receiver<NodePermit>> {
        if self.free_permits > 0 {
            self.free_permits -= 1;
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        match who {
            RequestClass::Change => self.changes.push_back(sender),
            RequestClass::Reading => self.readings.push_back(sender),
        }
        Some(receiver)
    }
}

impl NodeQueue {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(NodeQueueState {
            free_permits: REQUESTS_PER_NODE_MAX,
            changes: VecDeque::new(),
            readings: VecDeque::new(),
        })))
    }

    /// A turn for whoever reads, however long it takes.
    pub(super) async fn acquire_for_reading(self: &Arc<Self>) -> NodePermit {
        let place = self.lock_state().enqueue(RequestClass::Reading);
        match place {
            // INVARIANT: the sender is in the queue of this lane until it sends, and who waits keeps the lane.
            Some(place) => place.await.unwrap_or_else(|_| NodePermit(self.clone())),
            None => NodePermit(self.clone()),
        }
    }

    /// A turn for a change; none where it would have to wait for too long.
    pub(super) async fn acquire_for_change(self: &Arc<Self>) -> Option<NodePermit> {
        let place = self.lock_state().enqueue(RequestClass::Change);
        match place {
            Some(place) => tokio::time::timeout(CHANGE_WAIT_MAX, place).await.ok()?.ok(),
            None => Some(NodePermit(self.clone())),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, NodeQueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
