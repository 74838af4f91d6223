//! Stories that take turns: each by itself, none knows of the others, and a story that is told alone is the same.
//!
//! What they pass through is more than a processor has room for near at hand; whoever goes through the same part of it right after another
//! finds it there. A turn is one part of a life: finding out what is open, reading, planning, judging, acting.
//! Turns of one request each were tried: what the stories carry with them is then more than there is room for, and nothing is gained.

use std::future::poll_fn;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::planted_bugs::PlantedBug;
use super::simulation::{SCHEDULES_PER_WORLD, simulate};
use super::{SimulationTally, panic_result};

/// One part of a story is over: others may have their turn.
pub(crate) async fn yield_turn() {
    let mut had_turn = false;
    poll_fn(|_| if std::mem::replace(&mut had_turn, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

/// A story that is told with no others beside it.
pub(crate) fn run_alone<T>(story: impl Future<Output = T>) -> T {
    let mut story = pin!(story);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(told) = story.as_mut().poll(&mut context) {
            return told;
        }
    }
}

/// So many stories are told in turns: those of one world, whose beginning they have in common.
pub(super) const INTERLEAVED_SCHEDULES: u64 = SCHEDULES_PER_WORLD;

/// Tells the stories of these seeds in turns, each by itself: none knows of the others.
pub(super) fn run_interleaved(seeds: Range<u64>, bug: Option<PlantedBug>, tally: &mut SimulationTally) {
    let mut stories: Vec<_> = seeds.map(|seed| (seed, Box::pin(simulate(seed, bug, false)))).collect();
    let mut context = Context::from_waker(Waker::noop());
    while !stories.is_empty() {
        stories.retain_mut(|(seed, story)| {
            let told = match catch_unwind(AssertUnwindSafe(|| story.as_mut().poll(&mut context))) {
                Ok(Poll::Pending) => return true,
                Ok(Poll::Ready(told)) => told,
                Err(cause) => panic_result(*seed, &*cause),
            };
            tally.add(*seed, told);
            false
        });
    }
}
