//! The request queue of one node: at most two requests in flight, and changes before reads.
//!
//! A change was checked a moment ago, and the check grows stale while the change waits behind slow reads of other guests. It waits for a
//! short time only. After that it is not sent, and the caller has to check again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot::{self, Receiver, Sender};

use super::REQUESTS_PER_NODE_MAX;

/// A change that has no permit after this time is not sent.
pub(super) const CHANGE_WAIT_MAX: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct NodeQueue(Mutex<NodeQueueState>);

#[derive(Debug)]
struct NodeQueueState {
    free_permits: usize,
    changes: VecDeque<Sender<NodePermit>>,
    readings: VecDeque<Sender<NodePermit>>,
}

/// The kind of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestClass {
    Change,
    Reading,
}

/// Permission to have one request in flight. Released on drop, even if the receiver never took it out of its channel.
#[derive(Debug)]
pub struct NodePermit(Arc<NodeQueue>);

impl Drop for NodePermit {
    fn drop(&mut self) {
        let next = self.0.lock_state().next_waiter();
        if let Some(next) = next {
            // If the waiter went away in this moment, the permit is dropped here and passed on again.
            drop(next.send(Self(self.0.clone())));
        }
    }
}

impl NodeQueueState {
    /// The next waiter that still waits. If there is none, the permit becomes free.
    fn next_waiter(&mut self) -> Option<Sender<NodePermit>> {
        while let Some(next) = self.changes.pop_front().or_else(|| self.readings.pop_front()) {
            if !next.is_closed() {
                return Some(next);
            }
        }
        self.free_permits += 1;
        None
    }

    /// Takes a free permit, or enqueues a waiter if none is free.
    fn enqueue(&mut self, class: RequestClass) -> Option<Receiver<NodePermit>> {
        if self.free_permits > 0 {
            self.free_permits -= 1;
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        match class {
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

    /// Acquires a permit for a read, however long it takes.
    pub(super) async fn acquire_for_reading(self: &Arc<Self>) -> NodePermit {
        let receiver = self.lock_state().enqueue(RequestClass::Reading);
        match receiver {
            // INVARIANT: the sender stays in this queue until it sends, and the waiter keeps the queue alive.
            Some(receiver) => receiver.await.unwrap_or_else(|_| NodePermit(self.clone())),
            None => NodePermit(self.clone()),
        }
    }

    /// Acquires a permit for a change; `None` if that takes too long.
    pub(super) async fn acquire_for_change(self: &Arc<Self>) -> Option<NodePermit> {
        let receiver = self.lock_state().enqueue(RequestClass::Change);
        match receiver {
            Some(receiver) => tokio::time::timeout(CHANGE_WAIT_MAX, receiver).await.ok()?.ok(),
            None => Some(NodePermit(self.clone())),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, NodeQueueState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
