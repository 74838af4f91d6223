//! The simulation's own tests: a run without violations in which everything happened, sagas, one story per seed in any process, and
//! bugs that are found.

#[path = "sim.rs"]
mod sim;

use std::process::Command;

use sim::{Bug, find, run, sagas, tell};

/// A few of them in every build; `cargo xtask simulate` tells as many as one likes.
#[test]
fn no_schedule_breaks_a_rule_and_everything_happens_sometimes() {
    let tally = run(0, 2_000, 2, None);
    let first = tally.violations.first_key_value().map(|(seed, violation)| format!("seed {seed}: {} {}", violation.rule, violation.text));
    assert_eq!(first, None, "one of {}; `cargo xtask simulate --seed N` tells the story of a seed", tally.violations.len());
    assert_eq!(tally.missing(), Vec::<String>::new(), "seeds 0 to 1999");
}

#[test]
fn g13_every_step_of_every_kind_of_operation_may_fail_crash_and_be_recovered_twice() {
    let sagas = sagas();
    assert_eq!(sagas.wrong, Vec::<String>::new(), "of {} stories", sagas.stories);
    assert!(sagas.stories > 3_000 && sagas.sends > 3_000, "{} stories, {} changes", sagas.stories, sagas.sends);
}

#[test]
fn one_seed_is_one_story() {
    for seed in SEEDS {
        let told = tell(seed, None, true);
        assert_eq!(tell(seed, None, false).hash, told.hash, "{seed}: {:#?}", told.lines);
    }
}

const SEEDS: std::ops::Range<u64> = 0..50;

/// The hash of each seed's story, one line each.
fn hashes() -> Vec<String> {
    SEEDS.map(|seed| format!("seed {seed} {:016x}", tell(seed, None, false).hash)).collect()
}

/// What the other process of the next test tells.
#[test]
fn every_seed_has_a_story_of_its_own() {
    let hashes = hashes();
    let mut stories: Vec<&str> = hashes.iter().filter_map(|line| line.rsplit(' ').next()).collect();
    stories.sort_unstable();
    stories.dedup();
    // Worlds of which nothing is wanted are alike.
    assert!(stories.len() > hashes.len() / 2, "{hashes:#?}");
    println!("\n{}", hashes.join("\n"));
}

#[test]
fn one_seed_is_one_story_in_another_process_too() {
    let own = std::env::current_exe().expect("this test is a program");
    let arguments = ["--exact", "every_seed_has_a_story_of_its_own", "--nocapture"];
    let output = Command::new(own).args(arguments).output().expect("it can be started again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let told: Vec<&str> = text.lines().filter(|line| line.starts_with("seed ")).collect();
    assert_eq!(told, hashes(), "{text}");
}

#[test]
fn every_planted_bug_is_found() {
    assert!(Bug::ALL.len() >= 20);
    let missed: Vec<Bug> = Bug::ALL.into_iter().filter(|bug| find(*bug, 10_000).is_none()).collect();
    assert_eq!(missed, []);
}
