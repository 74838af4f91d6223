//! Tells stories of the simulation: many seeds with a tally, one seed with its trace, or the planted bugs. `cargo xtask simulate` runs it.

#[path = "../tests/simulation/sim.rs"]
mod sim;

use std::process::ExitCode;
use std::time::Instant;

use sim::{
    DECLARED_ONLY_SEEDS, FaultKind, PlantedBug, SAGAS, SimulationTally, UNPLAYED_WRITES, find_bug, run_sagas, simulate_schedules,
    simulate_seed,
};

/// A schedule makes and drops thousands of small things, a quarter of its time with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const USAGE: &str = "usage: simulate [--seed N [--bug NAME]] [--from N] [--schedules N] [--threads N] [--bugs N] [--detect N] [--sagas]";

/// So many violations are shown.
const SHOWN_VIOLATIONS_MAX: usize = 30;
/// So many schedules must have reached everything.
const FULL_COVERAGE_SCHEDULES_MIN: u64 = 2_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let name = arguments.iter().position(|argument| argument == "--bug").and_then(|at| arguments.get(at + 1));
    let bug = name.and_then(|name| PlantedBug::ALL.into_iter().find(|bug| format!("{bug:?}") == *name));
    if arguments.iter().any(|argument| argument == "--help") || name.is_some() != bug.is_some() {
        println!("{USAGE}");
        return ExitCode::from(u8::from(name.is_some()));
    }
    if arguments.iter().any(|argument| argument == "--sagas") {
        return check_sagas();
    }
    if let Some(schedules) = number("--detect") {
        count_detections(schedules);
        return ExitCode::SUCCESS;
    }
    match (number("--seed"), number("--bugs")) {
        (Some(seed), _) => replay_seed(seed, bug),
        (_, Some(schedules)) => find_planted_bugs(schedules),
        _ => {
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let threads = number("--threads").and_then(|count| usize::try_from(count).ok()).unwrap_or(cores);
            check_schedules(number("--from").unwrap_or(0), number("--schedules").unwrap_or(100_000), threads, bug)
        }
    }
}

fn replay_seed(seed: u64, bug: Option<PlantedBug>) -> ExitCode {
    let result = simulate_seed(seed, bug, true);
    for line in &result.lines {
        println!("{line}");
    }
    println!("seed {seed}: hash {:016x}, {} changes sent", result.hash, result.sends);
    match result.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("VIOLATION {}: {}", violation.rule, violation.text);
            ExitCode::FAILURE
        }
    }
}

fn check_sagas() -> ExitCode {
    let results = run_sagas();
    for what in results.wrong.iter().take(SHOWN_VIOLATIONS_MAX) {
        println!("{what}");
    }
    for (saga, effects) in &results.played {
        let effect_counts: Vec<String> = effects.iter().map(|(effect, count)| format!("{effect} {count}")).collect();
        println!("{saga:<18} {}", effect_counts.join(", "));
    }
    for (write, reason) in UNPLAYED_WRITES {
        println!("no saga of {write}: {reason}");
    }
    println!("{} stories of {} sagas, {} changes sent, {} wrong", results.stories, SAGAS.len(), results.sends, results.wrong.len());
    if results.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn find_planted_bugs(schedules: u64) -> ExitCode {
    let mut missed = 0;
    for bug in PlantedBug::ALL {
        match find_bug(bug, schedules) {
            Some((seed, violation)) => {
                println!("{:<20} found by seed {seed:>6}  {}: {}", format!("{bug:?}"), violation.rule, violation.text)
            }
            None => {
                missed += 1;
                println!("{:<20} NOT FOUND in {schedules} schedules", format!("{bug:?}"));
            }
        }
    }
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints how many schedules detect each planted bug. Use it after changing what schedules draw.
fn count_detections(schedules: u64) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let found = PlantedBug::ALL.map(|bug| {
        let tally = simulate_schedules(0, schedules, threads, Some(bug));
        let found = tally.violations.values().filter(|violation| bug.violated_rules().contains(&violation.rule)).count();
        println!("{found:>8}  {bug:?}");
        found
    });
    println!("{:>8}  in all, {schedules} schedules each", found.iter().sum::<usize>());
}

fn check_schedules(first: u64, schedules: u64, threads: usize, bug: Option<PlantedBug>) -> ExitCode {
    let began = Instant::now();
    let tally = simulate_schedules(first, schedules, threads, bug);
    let secs = began.elapsed().as_secs_f64();
    print_tally(&tally);
    let rate = tally.schedules as f64 / secs;
    println!("{} schedules from seed {first} on in {secs:.1} s on {threads} cores", tally.schedules);
    println!("{:.0} schedules per second and core", rate / threads as f64);
    println!("{} requests, {} changes sent, hash {:016x}", tally.requests, tally.sends, tally.hash);
    println!("{} of {} kinds of fault fired", tally.struck.len(), FaultKind::ALL.len());
    let missing = tally.missing_events();
    for what in &missing {
        println!("never happened: {what}");
    }
    println!("{} violations", tally.violations.len());
    for (seed, violation) in tally.violations.iter().take(SHOWN_VIOLATIONS_MAX) {
        println!("seed {seed}: {} {}; its story: cargo xtask simulate --seed {seed}", violation.rule, violation.text);
    }
    // So few schedules cannot reach everything, and neither can those without requested actions.
    let is_partial = schedules < FULL_COVERAGE_SCHEDULES_MIN || first >= DECLARED_ONLY_SEEDS;
    let is_good = tally.violations.is_empty() && (missing.is_empty() || is_partial);
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How often each fault fired and each state was reached.
fn print_tally(tally: &SimulationTally) {
    for (kind, count) in &tally.struck {
        println!("{count:>8}  fault {kind:?}");
    }
    for (what, count) in &tally.seen {
        println!("{count:>8}  state {what}");
    }
}
