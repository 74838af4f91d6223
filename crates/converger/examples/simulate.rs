//! Tells stories of the simulation: many seeds with a tally, one seed with its trace, or the planted bugs. `cargo xtask simulate` runs it.

#[path = "../tests/simulation/sim.rs"]
mod sim;

use std::process::ExitCode;
use std::time::Instant;

use sim::{Bug, Tally, find, run, sagas, tell};

const USAGE: &str = "usage: simulate [--seed N [--bug NAME]] [--from N] [--schedules N] [--threads N] [--bugs N] [--sagas]";

/// So many violations are shown.
const SHOWN_MAX: usize = 30;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let name = arguments.iter().position(|argument| argument == "--bug").and_then(|at| arguments.get(at + 1));
    let bug = name.and_then(|name| Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == *name));
    if arguments.iter().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    if arguments.iter().any(|argument| argument == "--sagas") {
        return every_saga();
    }
    match (number("--seed"), number("--bugs")) {
        (Some(seed), _) => replay(seed, bug),
        (_, Some(schedules)) => bugs(schedules),
        _ => {
            let threads = usize::try_from(number("--threads").unwrap_or(2)).unwrap_or(2);
            many(number("--from").unwrap_or(0), number("--schedules").unwrap_or(100_000), threads, bug)
        }
    }
}

fn replay(seed: u64, bug: Option<Bug>) -> ExitCode {
    let told = tell(seed, bug, true);
    for line in &told.lines {
        println!("{line}");
    }
    println!("seed {seed}: hash {:016x}, {} changes sent", told.hash, told.sends);
    match told.violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("VIOLATION {}: {}", violation.rule, violation.text);
            ExitCode::FAILURE
        }
    }
}

fn every_saga() -> ExitCode {
    let told = sagas();
    for what in told.wrong.iter().take(SHOWN_MAX) {
        println!("{what}");
    }
    println!("{} stories of sagas, {} changes sent, {} wrong", told.stories, told.sends, told.wrong.len());
    if told.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn bugs(schedules: u64) -> ExitCode {
    let mut missed = 0;
    for bug in Bug::ALL {
        match find(bug, schedules) {
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

fn many(first: u64, schedules: u64, threads: usize, bug: Option<Bug>) -> ExitCode {
    let began = Instant::now();
    let tally = run(first, schedules, threads, bug);
    let secs = began.elapsed().as_secs_f64();
    show(&tally);
    println!("{} schedules in {secs:.1} s on {threads} threads: {:.0}/s", tally.schedules, tally.schedules as f64 / secs);
    println!("hash {:016x}, {} requests, {} changes sent, {} violations", tally.hash, tally.requests, tally.sends, tally.violations.len());
    for (seed, violation) in tally.violations.iter().take(SHOWN_MAX) {
        println!("seed {seed}: {} {}; replay: cargo xtask simulate --seed {seed}", violation.rule, violation.text);
    }
    if !tally.violations.is_empty() {
        return ExitCode::FAILURE;
    }
    let missing = tally.missing();
    for what in &missing {
        println!("never reached: {what}");
    }
    if missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn show(tally: &Tally) {
    for (kind, count) in &tally.struck {
        println!("{count:>8}  {kind:?}");
    }
    for (what, count) in &tally.seen {
        println!("{count:>8}  {what}");
    }
}
