//! Interleaved simulations. They are independent of each other, and a simulation that runs alone gives the same result.
//!
//! The code and data of a phase exceed the processor's caches; running the same phase of several simulations in a row reuses them. A turn
//! is one phase of a process: recovering, reading, planning, judging, acting. Turns of one request each were tried without gain, because
//! the state of all simulations then exceeds the caches.

use std::future::poll_fn;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::planted_bugs::PlantedBug;
use super::simulation::{SCHEDULES_PER_WORLD, simulate};
use super::{SimulationTally, panic_result};

/// Ends a phase, so that other simulations can run.
pub(crate) async fn yield_turn() {
    let mut had_turn = false;
    poll_fn(|_| if std::mem::replace(&mut had_turn, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// Runs a simulation alone.
pub(crate) fn run_alone<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            return result;
        }
    }
}

/// The number of interleaved simulations: those of one world, which share their beginning.
pub(super) const INTERLEAVED_SCHEDULES: u64 = SCHEDULES_PER_WORLD;

/// Runs the simulations of these seeds interleaved; they are independent of each other.
pub(super) fn run_interleaved(seeds: Range<u64>, bug: Option<PlantedBug>, tally: &mut SimulationTally) {
    let mut simulations: Vec<_> = seeds.map(|seed| (seed, Box::pin(simulate(seed, bug, false)))).collect();
    let mut context = Context::from_waker(Waker::noop());
    while !simulations.is_empty() {
        simulations.retain_mut(|(seed, simulation)| {
            let result = match catch_unwind(AssertUnwindSafe(|| simulation.as_mut().poll(&mut context))) {
                Ok(Poll::Pending) => return true,
                Ok(Poll::Ready(result)) => result,
                Err(cause) => panic_result(*seed, &*cause),
            };
            tally.add(*seed, result);
            false
        });
    }
}
