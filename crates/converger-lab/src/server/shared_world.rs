//! Shared access to the served world.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::clock::ClockMode;
use crate::world::World;

/// Shared access to the served world.
#[derive(Clone)]
pub struct SharedWorld(Arc<SharedWorldState>);

struct SharedWorldState {
    world: Mutex<World>,
    /// The nodes whose port should be open.
    wanted_ports: watch::Sender<BTreeSet<String>>,
    /// The last reported state of each port: whether it is open. A port that should be open and is not available counts as open.
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

    /// Locks the world.
    ///
    /// A thread that panicked while it held the lock leaves the world as it was.
    pub fn lock(&self) -> WorldGuard<'_> {
        WorldGuard { world: self.0.world.lock().unwrap_or_else(PoisonError::into_inner), shared: &self.0 }
    }

    /// The nodes whose port should be open, with later changes.
    pub(super) fn subscribe_ports(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.wanted_ports.subscribe()
    }

    /// Reports that the port of a node has reached its wanted state.
    pub(super) fn report_port(&self, node: &str, is_open: bool) {
        self.0.port_states.send_if_modified(|seen| seen.insert(node.to_owned(), is_open) != Some(is_open));
    }

    /// Waits until the ports match the world: afterwards, exactly the nodes that listen accept connections.
    ///
    /// It does not wait for a port that another process uses. Ports open and close only while the server [runs](super::LabServer::run).
    pub async fn wait_for_ports(&self) {
        let mut seen = self.0.port_states.subscribe();
        let is_settled = |seen: &BTreeMap<String, bool>| {
            let open = self.0.wanted_ports.borrow();
            seen.iter().all(|(node, is_open)| open.contains(node) == *is_open)
        };
        // `self` holds the sender, so the channel cannot be closed.
        let _ = seen.wait_for(is_settled).await;
    }
}

/// The locked world. On drop, the ports are updated to match it.
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
        // If only requests advance the clock, at least one port must stay open; otherwise no later event could ever happen.
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
