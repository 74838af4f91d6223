//! The simulation: the real spine, the real machines and the real hand against the lab, on a virtual clock, with everything going wrong
//! that can, from a seed. One seed is one story, byte for byte.
//!
//! What never enters: threads, real time, sockets and files inside of a story; a run spreads seeds over threads.

mod book;
mod bugs;
mod harm;
mod oracle;
mod process;
mod recall;
mod saga;
mod scene;
mod stage;
mod story;
mod trace;
mod turns;
#[path = "../../../converger-adapters/tests/lab/wire.rs"]
mod wire;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(test)]
pub(crate) use book::found_in_wrong_ones;
pub(crate) use bugs::Bug;
pub(crate) use harm::Kind;
#[cfg(test)]
pub(crate) use harm::drawn;
pub(crate) use oracle::Violation;
#[cfg(test)]
pub(crate) use saga::finds_wrong_ways_back;
pub(crate) use saga::{NOT_PLAYED, SAGAS, sagas};
pub(crate) use stage::ENDS;
pub(crate) use story::Told;
use story::{CLOSELY_ONE_IN, tell};
use turns::{IN_TURNS, alone, in_turns};

/// What came of many schedules.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) schedules: u64,
    /// All hashes, in an order-free sum.
    pub(crate) hash: u64,
    pub(crate) sends: u64,
    pub(crate) requests: u64,
    pub(crate) struck: BTreeMap<Kind, u64>,
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// What went wrong, by seed.
    pub(crate) violations: BTreeMap<u64, Violation>,
}

impl Tally {
    fn add(&mut self, seed: u64, told: Told) {
        self.schedules += 1;
        self.hash = self.hash.wrapping_add(told.hash.wrapping_mul(seed | 1));
        self.sends += told.sends;
        self.requests += told.requests;
        for kind in told.struck {
            *self.struck.entry(kind).or_default() += 1;
        }
        for what in told.seen {
            *self.seen.entry(what).or_default() += 1;
        }
        if let Some(violation) = told.violation {
            self.violations.insert(seed, violation);
        }
    }

    fn join(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.hash = self.hash.wrapping_add(other.hash);
        self.sends += other.sends;
        self.requests += other.requests;
        self.violations.extend(other.violations);
        for (kind, count) in other.struck {
            *self.struck.entry(kind).or_default() += count;
        }
        for (what, count) in other.seen {
            *self.seen.entry(what).or_default() += count;
        }
    }

    /// What never happened and should have.
    pub(crate) fn missing(&self) -> Vec<String> {
        let kinds = Kind::ALL.iter().filter(|kind| !self.struck.contains_key(kind)).map(|kind| format!("harm {kind:?}"));
        let states = STATES.iter().chain(ENDS).filter(|state| !self.seen.contains_key(*state)).map(|state| format!("state `{state}`"));
        let closely = self.seen.get(PLAYED_AGAIN).copied().unwrap_or(0) + self.violations.len() as u64;
        let too_few = self.schedules / CLOSELY_ONE_IN;
        let looks = (closely < too_few).then(|| format!("a close look at one in {CLOSELY_ONE_IN}: {closely} of {}", self.schedules));
        kinds.chain(states).chain(looks).collect()
    }
}

/// The rule that a story ends.
const PANIC: &str = "panic";

/// What is told of a schedule that was looked at closely.
pub(crate) const PLAYED_AGAIN: &str = "a ledger played again";

/// States that a long run must have reached.
const STATES: &[&str] = &[
    "done",
    "failed",
    "refused",
    "held",
    "recovered as done",
    "recovered as failed",
    "recovered as held",
    "recovery with a task",
    "recovery without a task",
    "a task was adopted",
    "found so",
    "never sent",
    "may still come",
    "given up by a later reading",
    "done although its task failed",
    "done with warnings",
    "the start after a reboot failed",
    "an operation was not run",
    "a change became a task",
    "a change was done at once",
    "a change was turned down",
    "a change was not delivered",
    "a change may have run",
    "a record was not taken",
    "a sync failed",
    "the process died",
    "the machine slept between the last word and the sending",
    "the plan is refused",
    "the plan is over its limits",
    "no reading",
    "a guest converged after healing",
    PLAYED_AGAIN,
    "a guest is refused after healing",
];

/// The story of a seed. One that ends in a panic broke a rule too, and its seed is told.
pub(crate) fn told(seed: u64, bug: Option<Bug>, keeps_lines: bool) -> Told {
    caught(seed, || alone(tell(seed, bug, keeps_lines)))
}

/// What is left of a story that may end in a panic: nothing of it is used any more, so that it does not matter how it was left.
pub(crate) fn caught(seed: u64, story: impl FnOnce() -> Told) -> Told {
    catch_unwind(AssertUnwindSafe(story)).unwrap_or_else(|cause| panicked(seed, &*cause))
}

fn panicked(seed: u64, cause: &(dyn Any + Send)) -> Told {
    let said = cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied());
    let text = said.unwrap_or("without a word").to_owned();
    eprintln!("seed {seed} ended in a panic: {text}");
    Told { violation: Some(Violation { rule: PANIC, text }), ..Told::default() }
}

/// Tells the stories of these seeds, on so many threads.
pub(crate) fn run(first: u64, schedules: u64, threads: usize, bug: Option<Bug>) -> Tally {
    let next = AtomicU64::new(first);
    let all = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut own = Tally::default();
                loop {
                    let from = next.fetch_add(IN_TURNS, Ordering::Relaxed);
                    let to = (from + IN_TURNS).min(first + schedules);
                    if from >= to {
                        break;
                    }
                    in_turns(from..to, bug, &mut own);
                }
                if let Ok(mut all) = all.lock() {
                    all.join(own);
                }
            });
        }
    });
    all.into_inner().unwrap_or_default()
}

/// The first seed whose story shows the bug by a rule that it breaks, within so many.
pub(crate) fn find(bug: Bug, schedules: u64) -> Option<(u64, Violation)> {
    let shows = |seed: u64| told(seed, Some(bug), false).violation.filter(|violation| bug.rules().contains(&violation.rule));
    (0..schedules).find_map(|seed| shows(seed).map(|violation| (seed, violation)))
}
