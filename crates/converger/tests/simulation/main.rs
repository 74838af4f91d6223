//! The simulation's own tests: a run without violations in which everything happened, and bugs that are found.

#[path = "sim.rs"]
mod sim;

use sim::{Bug, find, run, tell};

#[test]
fn no_schedule_breaks_a_rule_and_everything_happens_sometimes() {
    let tally = run(0, 2_000, 2, None);
    let first = tally.violations.first_key_value().map(|(seed, violation)| format!("seed {seed}: {} {}", violation.rule, violation.text));
    assert_eq!(first, None, "one of {}", tally.violations.len());
    assert_eq!(tally.missing(), Vec::<String>::new());
}

#[test]
fn one_seed_is_one_story() {
    for seed in 0..50 {
        let told = tell(seed, None, true);
        assert_eq!(tell(seed, None, false).hash, told.hash, "{seed}: {:#?}", told.lines);
    }
}

#[test]
fn every_planted_bug_is_found() {
    let missed: Vec<Bug> = Bug::ALL.into_iter().filter(|bug| find(*bug, 3_000).is_none()).collect();
    assert_eq!(missed, []);
}
