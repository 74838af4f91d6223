//! The world, for everybody who serves or changes it at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::clock::ClockMode;
use crate::world::World;

/// The world, for everybody who serves or changes it.
#[derive(Clone)]
pub struct SharedWorld(Arc<SharedWorldState>);

struct SharedWorldState {
    world: Mutex<World>,
    /// The nodes whose port is to be open.
    wanted_ports: watch::Sender<BTreeSet<String>>,
    /// What the ports that are kept were last seen to be: open, or to be open and not to be had, or closed.
    port_states: watch::Sender<BTreeMap<String, bool>>,
    clock: ClockMode,
}

impl SharedWorld {
    pub(super) fn new(world: World, clock: ClockMode) -> Self {
        let doors = watch::Sender::new(BTreeSet::new());
        let seen = watch::Sender::new(BTreeMap::new());
        let shared = Self(Arc::new(SharedWorldState { world: Mutex::new(world), wanted_ports: doors, port_states: seen, clock }));
        drop(shared.lock());
        shared
    }

    /// The world itself, for as long as it is held.
    ///
    /// A thread that panicked while it held the world leaves it as it was.
    pub fn lock(&self) -> WorldGuard<'_> {
        WorldGuard { world: self.0.world.lock().unwrap_or_else(PoisonError::into_inner), shared: &self.0 }
    }

    /// Which nodes are to have their port open, now and later.
    pub(super) fn subscribe_ports(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.wanted_ports.subscribe()
    }

    /// The port of a node is now as it was told to be.
    pub(super) fn report_port(&self, node: &str, is_open: bool) {
        self.0.port_states.send_if_modified(|seen| seen.insert(node.to_owned(), is_open) != Some(is_open));
    }

    /// Waits until the ports are as the world says: whoever comes after that is let in by the nodes that listen, and by no other.
    ///
    /// It does not wait for a port that somebody else has. Ports are opened and closed while the server [runs](super::Server::run).
    pub async fn wait_for_ports(&self) {
        let mut seen = self.0.port_states.subscribe();
        let is_settled = |seen: &BTreeMap<String, bool>| {
            let open = self.0.wanted_ports.borrow();
            seen.iter().all(|(node, is_open)| open.contains(node) == *is_open)
        };
        // The sender is in `self`, so that there is always somebody who tells.
        let _ = seen.wait_for(is_settled).await;
    }
}

/// The world while it is held. Afterwards the ports are as it says.
pub struct WorldGuard<'w> {
    world: MutexGuard<'w, World>,
    shared: &'w SharedWorldState,
}

impl Deref for WorldGuard<'_> {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for WorldGuard<'_> {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Drop for WorldGuard<'_> {
    fn drop(&mut self) {
        let mut open = self.world.open_ports();
        // Where only requests move the clock somebody must be able to ask, or nothing would ever happen again.
        if open.is_empty() && matches!(self.shared.clock, ClockMode::Virtual { .. }) {
            open = self.world.node_names().map(str::to_owned).collect();
        }
        self.shared.wanted_ports.send_if_modified(|now| {
            let is_other = *now != open;
            *now = open;
            is_other
        });
    }
}
