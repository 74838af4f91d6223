//! Properties of the spine over many random worlds: what must hold whatever is declared and whatever was read.
//!
//! Every case has a seed of its own, made of the theme's seed and the number of the case, and a failure names both.
//! `CONVERGER_CASES` multiplies the counts (in percent), for a longer search than CI makes.

mod admission;
mod admission_record;
mod canonical;
mod determinism;
mod fixpoint;
mod generator;
mod hidden_parts;
mod out_of_scope;
mod permutation;
mod pin;
mod platform_model;
mod protection;
mod reproduce;
mod robustness;
mod round_trip;
mod scaffold;
mod totality;

use converger_core::testing::{Rng, TestInputs, TestWorld};

/// How many cases are run where `default` would be.
#[expect(clippy::disallowed_methods, reason = "the length of a search is asked of the environment, never what it finds")]
fn case_count(default: u64) -> u64 {
    let percent = std::env::var("CONVERGER_CASES").ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(100);
    (default * percent / 100).max(1)
}

/// One random case: where it came from, and its own source of numbers.
struct PropertyCase {
    seed: u64,
    number: u64,
    rng: Rng,
    world: TestWorld,
}

impl PropertyCase {
    fn inputs(&self) -> TestInputs {
        self.world.parse().unwrap_or_else(|faults| panic!("{self}: the drawn world does not parse: {faults:#?}"))
    }
}

impl std::fmt::Display for PropertyCase {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "case {} of seed {}", self.number, self.seed)
    }
}

/// Shows a world together with the case that it came from.
impl std::fmt::Debug for PropertyCase {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TestWorld { desired, observation, rules } = &self.world;
        write!(formatter, "{self}\ndesired: {desired}\nobservation: {observation}\nrules: {rules:?}")
    }
}

/// The cases of a theme.
fn random_cases(seed: u64, count: u64) -> impl Iterator<Item = PropertyCase> {
    (0..case_count(count)).map(move |number| {
        let mut rng = Rng::new(seed.wrapping_mul(0x1_0000_0000).wrapping_add(number));
        let world = TestWorld::random_small(&mut rng);
        PropertyCase { seed, number, rng, world }
    })
}
