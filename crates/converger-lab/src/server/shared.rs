//! The world, for everybody who serves or changes it at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::clock::Clock;
use crate::world::World;

/// The world, for everybody who serves or changes it.
#[derive(Clone)]
pub struct Shared(Arc<Inner>);

struct Inner {
    world: Mutex<World>,
    /// The nodes whose port is to be open.
    doors: watch::Sender<BTreeSet<String>>,
    /// What the ports that are kept were last seen to be: open, or to be open and not to be had, or closed.
    seen: watch::Sender<BTreeMap<String, bool>>,
    clock: Clock,
}

impl Shared {
    pub(super) fn new(world: World, clock: Clock) -> Self {
        let doors = watch::Sender::new(BTreeSet::new());
        let seen = watch::Sender::new(BTreeMap::new());
        let shared = Self(Arc::new(Inner { world: Mutex::new(world), doors, seen, clock }));
        drop(shared.lock());
        shared
    }

    /// The world itself, for as long as it is held.
    ///
    /// A thread that panicked while it held the world leaves it as it was.
    pub fn lock(&self) -> Held<'_> {
        Held { world: self.0.world.lock().unwrap_or_else(PoisonError::into_inner), shared: &self.0 }
    }

    /// Which nodes are to have their port open, now and later.
    pub(super) fn doors(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.doors.subscribe()
    }

    /// The port of a node is now as it was told to be.
    pub(super) fn door_is(&self, node: &str, is_open: bool) {
        self.0.seen.send_if_modified(|seen| seen.insert(node.to_owned(), is_open) != Some(is_open));
    }

    /// Waits until the ports are as the world says: whoever comes after that is let in by the nodes that listen, and by no other.
    ///
    /// It does not wait for a port that somebody else has. Ports are opened and closed while the server [runs](super::Server::run).
    pub async fn settled(&self) {
        let mut seen = self.0.seen.subscribe();
        let is_settled = |seen: &BTreeMap<String, bool>| {
            let open = self.0.doors.borrow();
            seen.iter().all(|(node, is_open)| open.contains(node) == *is_open)
        };
        // The sender is in `self`, so that there is always somebody who tells.
        let _ = seen.wait_for(is_settled).await;
    }
}

/// The world while it is held. Afterwards the ports are as it says.
pub struct Held<'w> {
    world: MutexGuard<'w, World>,
    shared: &'w Inner,
}

impl Deref for Held<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut open = self.world.open_doors();
        // Where only requests move the clock somebody must be able to ask, or nothing would ever happen again.
        if open.is_empty() && matches!(self.shared.clock, Clock::Virtual { .. }) {
            open = self.world.node_names().map(str::to_owned).collect();
        }
        self.shared.doors.send_if_modified(|now| {
            let is_other = *now != open;
            *now = open;
            is_other
        });
    }
}
