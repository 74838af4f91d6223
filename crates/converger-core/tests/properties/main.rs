//! Properties of planning, judging and recording over many random worlds, whatever is declared and observed.
//!
//! Every case has its own seed, made from the seed of its module and the case number, and a failure prints both. `CONVERGER_CASES` scales
//! the counts (in percent), for a longer search than in CI.

mod admission;
mod admission_record;
mod canonical;
mod determinism;
mod fixpoint;
mod generator;
mod hidden_parts;
mod holds;
mod out_of_scope;
mod permutation;
mod pin;
mod platform_model;
mod proposal;
mod protection;
mod reproduce;
mod robustness;
mod round_trip;
mod scaffold;
mod totality;

use converger_core::testing::{Rng, TestInputs, TestWorld};

/// The number of cases to run instead of `default`.
#[expect(clippy::disallowed_methods, reason = "the environment sets how many cases run, never their result")]
fn case_count(default: u64) -> u64 {
    let percent = std::env::var("CONVERGER_CASES").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(100);
    (default * percent / 100).max(1)
}

/// One random case: its origin and its own random numbers.
struct PropertyCase {
    seed: u64,
    number: u64,
    rng: Rng,
    world: TestWorld,
}

impl PropertyCase {
    fn inputs(&self) -> TestInputs {
        self.world.parse().unwrap_or_else(|faults| panic!("{self}: the random world does not parse: {faults:#?}"))
    }
}

impl std::fmt::Display for PropertyCase {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "case {} of seed {}", self.number, self.seed)
    }
}

/// Prints the world together with the case that it came from.
impl std::fmt::Debug for PropertyCase {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TestWorld { desired, observation, rules } = &self.world;
        write!(formatter, "{self}\ndesired: {desired}\nobservation: {observation}\nrules: {rules:?}")
    }
}

/// The cases of one module.
fn random_cases(seed: u64, count: u64) -> impl Iterator<Item = PropertyCase> {
    (0..case_count(count)).map(move |number| {
        let mut rng = Rng::new(seed.wrapping_mul(0x1_0000_0000).wrapping_add(number));
        let world = TestWorld::random_small(&mut rng);
        PropertyCase { seed, number, rng, world }
    })
}
