//! The simulation: the real runtime, state machines and actuator with the lab, on a virtual clock, with all possible faults, from a seed.
//! One seed gives one schedule, byte for byte.
//!
//! There are no threads, real time, sockets or files inside a simulation; only the seeds are distributed over threads.

mod decode_cache;
mod faults;
mod interleaving;
mod ledger_agreement;
mod oracle;
mod planted_bugs;
mod process;
mod requests;
mod saga;
mod setup;
mod simulation;
mod stage;
mod trace;
#[path = "../../../converger-adapters/tests/lab/wire.rs"]
mod wire;

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use faults::FaultKind;
#[cfg(test)]
pub(crate) use faults::drawn_fault_names;
use interleaving::{INTERLEAVED_SCHEDULES, run_alone, run_interleaved};
#[cfg(test)]
pub(crate) use ledger_agreement::check_altered_ledgers;
pub(crate) use oracle::RuleViolation;
pub(crate) use planted_bugs::PlantedBug;
#[cfg(test)]
pub(crate) use saga::detects_wrong_inverses;
pub(crate) use saga::{SAGAS, UNPLAYED_WRITES, run_sagas};
#[allow(unused_imports, reason = "the example that plays schedules uses it")]
pub(crate) use simulation::DECLARED_ONLY_SEEDS;
pub(crate) use simulation::SimulationResult;
use simulation::{AUDIT_INTERVAL, simulate};
pub(crate) use stage::{CHANGE_STATES, ENDS};

/// The results of many schedules.
#[derive(Default)]
pub(crate) struct SimulationTally {
    pub(crate) schedules: u64,
    /// A sum of all hashes, independent of their order.
    pub(crate) hash: u64,
    pub(crate) sends: u64,
    pub(crate) requests: u64,
    pub(crate) struck: BTreeMap<FaultKind, u64>,
    pub(crate) seen: BTreeMap<&'static str, u64>,
    /// Violations by seed.
    pub(crate) violations: BTreeMap<u64, RuleViolation>,
}

impl SimulationTally {
    fn add(&mut self, seed: u64, result: SimulationResult) {
        self.schedules += 1;
        self.hash = self.hash.wrapping_add(result.hash.wrapping_mul(seed | 1));
        self.sends += result.sends;
        self.requests += result.requests;
        for kind in result.struck {
            *self.struck.entry(kind).or_default() += 1;
        }
        for what in result.seen {
            *self.seen.entry(what).or_default() += 1;
        }
        if let Some(violation) = result.violation {
            self.violations.insert(seed, violation);
        }
    }

    fn merge(&mut self, other: Self) {
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

    /// Expected events that never occurred.
    pub(crate) fn missing_events(&self) -> Vec<String> {
        let kinds = FaultKind::ALL.iter().filter(|kind| !self.struck.contains_key(kind)).map(|kind| format!("harm {kind:?}"));
        let of_changes = CHANGE_STATES.iter().flat_map(|(_, states)| states);
        let states = STATES
            .iter()
            .chain(ENDS)
            .chain(of_changes)
            .filter(|state| !self.seen.contains_key(*state))
            .map(|state| format!("state `{state}`"));
        let closely = self.seen.get(LEDGER_REPLAYED).copied().unwrap_or(0) + self.violations.len() as u64;
        let too_few = self.schedules / AUDIT_INTERVAL;
        let audit_shortfall =
            (closely < too_few).then(|| format!("a close look at one in {AUDIT_INTERVAL}: {closely} of {}", self.schedules));
        kinds.chain(states).chain(audit_shortfall).collect()
    }
}

/// The rule that a simulation must not panic.
const PANIC: &str = "panic";

/// Counted for each audited schedule.
pub(crate) const LEDGER_REPLAYED: &str = "a ledger played again";

/// States that a long run must reach.
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
    "a request is refused",
    "the plan is refused",
    "the plan is over its limits",
    "no reading",
    "a guest converged after healing",
    LEDGER_REPLAYED,
    "a guest is refused after healing",
];

/// Runs the simulation of a seed. A panic counts as a violation and is reported with its seed.
pub(crate) fn simulate_seed(seed: u64, bug: Option<PlantedBug>, keeps_lines: bool) -> SimulationResult {
    catch_panic(seed, || run_alone(simulate(seed, bug, keeps_lines)))
}

/// Catches a panic of a simulation. Nothing of it is used afterwards, so its state does not matter.
pub(crate) fn catch_panic(seed: u64, run_simulation: impl FnOnce() -> SimulationResult) -> SimulationResult {
    catch_unwind(AssertUnwindSafe(run_simulation)).unwrap_or_else(|cause| panic_result(seed, &*cause))
}

fn panic_result(seed: u64, cause: &(dyn Any + Send)) -> SimulationResult {
    let message = cause.downcast_ref::<String>().map(String::as_str).or_else(|| cause.downcast_ref::<&str>().copied());
    let text = message.unwrap_or("without a word").to_owned();
    eprintln!("seed {seed} ended in a panic: {text}");
    SimulationResult { violation: Some(RuleViolation { rule: PANIC, text }), ..SimulationResult::default() }
}

/// Runs the simulations of these seeds on this many threads.
pub(crate) fn simulate_schedules(first: u64, schedules: u64, threads: usize, bug: Option<PlantedBug>) -> SimulationTally {
    let next = AtomicU64::new(first);
    let all = Mutex::new(SimulationTally::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let mut own = SimulationTally::default();
                loop {
                    let from = next.fetch_add(INTERLEAVED_SCHEDULES, Ordering::Relaxed);
                    let to = (from + INTERLEAVED_SCHEDULES).min(first + schedules);
                    if from >= to {
                        break;
                    }
                    run_interleaved(from..to, bug, &mut own);
                }
                if let Ok(mut all) = all.lock() {
                    all.merge(own);
                }
            });
        }
    });
    all.into_inner().unwrap_or_default()
}

/// The first seed, within this many, whose simulation reveals the bug by a rule that it violates.
pub(crate) fn find_bug(bug: PlantedBug, schedules: u64) -> Option<(u64, RuleViolation)> {
    let shows =
        |seed: u64| simulate_seed(seed, Some(bug), false).violation.filter(|violation| bug.violated_rules().contains(&violation.rule));
    (0..schedules).find_map(|seed| shows(seed).map(|violation| (seed, violation)))
}
