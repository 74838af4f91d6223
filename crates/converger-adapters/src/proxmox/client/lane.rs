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
pub(super) struct Lane(Mutex<Queue>);

#[derive(Debug)]
struct Queue {
    free: usize,
    changes: VecDeque<Sender<Turn>>,
    readings: VecDeque<Sender<Turn>>,
}

/// Who waits for a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Change,
    Reading,
}

/// The right to have one request under way. It is given on when it is dropped, also where nobody took it out of the hands of the one who
/// gave it.
#[derive(Debug)]
pub struct Turn(Arc<Lane>);

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.0.queue().next();
        if let Some(next) = next {
            // Who left in this very moment drops it, and it comes back here.
            drop(next.send(Self(self.0.clone())));
        }
    }
}

impl Queue {
    /// Whoever is next and still there; nobody leaves the place free.
    fn next(&mut self) -> Option<Sender<Turn>> {
        while let Some(next) = self.changes.pop_front().or_else(|| self.readings.pop_front()) {
            if !next.is_closed() {
                return Some(next);
            }
        }
        self.free += 1;
        None
    }

    /// Where there is no room, a place in the queue.
    fn queue_up(&mut self, who: Who) -> Option<Receiver<Turn>> {
        if self.free > 0 {
            self.free -= 1;
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        match who {
            Who::Change => self.changes.push_back(sender),
            Who::Reading => self.readings.push_back(sender),
        }
        Some(receiver)
    }
}

impl Lane {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Queue { free: REQUESTS_PER_NODE_MAX, changes: VecDeque::new(), readings: VecDeque::new() })))
    }

    /// A turn for whoever reads, however long it takes.
    pub(super) async fn reading(self: &Arc<Self>) -> Turn {
        let place = self.queue().queue_up(Who::Reading);
        match place {
            // INVARIANT: the sender is in the queue of this lane until it sends, and who waits keeps the lane.
            Some(place) => place.await.unwrap_or_else(|_| Turn(self.clone())),
            None => Turn(self.clone()),
        }
    }

    /// A turn for a change; none where it would have to wait for too long.
    pub(super) async fn change(self: &Arc<Self>) -> Option<Turn> {
        let place = self.queue().queue_up(Who::Change);
        match place {
            Some(place) => tokio::time::timeout(CHANGE_WAIT_MAX, place).await.ok()?.ok(),
            None => Some(Turn(self.clone())),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
