//! The world, for everybody who serves or changes it at the same time.

use std::collections::BTreeSet;
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
    /// The nodes whose port is open.
    doors: watch::Sender<BTreeSet<String>>,
    clock: Clock,
}

impl Shared {
    pub(super) fn new(world: World, clock: Clock) -> Self {
        let doors = watch::Sender::new(BTreeSet::new());
        let shared = Self(Arc::new(Inner { world: Mutex::new(world), doors, clock }));
        drop(shared.lock());
        shared
    }

    /// The world itself, for as long as it is held.
    ///
    /// A thread that panicked while it held the world leaves it as it was.
    pub fn lock(&self) -> Held<'_> {
        Held { world: self.0.world.lock().unwrap_or_else(PoisonError::into_inner), shared: &self.0 }
    }

    /// Which nodes have their port open, now and later.
    pub(super) fn doors(&self) -> watch::Receiver<BTreeSet<String>> {
        self.0.doors.subscribe()
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
