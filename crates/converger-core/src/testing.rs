//! Seeded random inputs for tests and benches. Nothing here is linked into the program.
//!
//! A [`TestWorld`] is a desired state and an observation of it, both as the trees of their files; it goes through the real parsers like any
//! file. Worlds are drawn so that verdicts, refusals and changes of every kind are frequent: an observation that is random in every part
//! would mostly be refused for its first fault and prove little.
//!
//! Must not know how the planner decides; the tests define what a world should lead to.

mod operation;
mod random_world;
mod request_world;
mod text;
mod values;

use std::sync::Arc;

use serde_json::Value;

use crate::approve::SignedApproval;
use crate::artifact;
use crate::desired::{self, Desired};
use crate::document::{Diagnostics, Notation};
use crate::observe::{self, Observation};
use crate::plan::{Plan, plan};
use crate::policy::Rules;

pub use operation::{
    operations_of_plan, parse_config, random_outcome, random_outcome_with_end, some_binding, some_config, some_inputs, some_operations,
};
pub use request_world::RequestWorld;
pub use text::{mutate, to_json, to_random_yaml, to_shuffled_json};
pub use values::{HOSTILE_TEXTS, default_of, observed_values, to_declared_form, wanted_values};

/// A small deterministic generator (SplitMix64): the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }

    /// An index of something with this length.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }

    /// True with a probability of one in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// True with a probability of `percent`.
    pub fn with_chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`.
    pub fn pick<'c, T>(&mut self, choices: &'c [T]) -> Option<&'c T> {
        choices.get(self.index(choices.len()))
    }

    /// One of `words`; empty if there are none.
    pub fn pick_word<'w>(&mut self, words: &[&'w str]) -> &'w str {
        self.pick(words).copied().unwrap_or("")
    }

    /// Puts `list` into a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            list.swap(end, self.index(end + 1));
        }
    }
}

/// A desired state, an observation and the protection rules, as files and configuration would give them.
#[derive(Clone, Debug, PartialEq)]
pub struct TestWorld {
    /// The tree of desired.yaml.
    pub desired: Value,
    /// The tree of current.json.
    pub observation: Value,
    /// The protection rules.
    pub rules: Rules,
}

/// The parsed form of a [`TestWorld`].
#[derive(Clone, Debug)]
pub struct TestInputs {
    /// The desired state.
    pub desired: Arc<Desired>,
    /// The observation, including rows outside the scope.
    pub observation: Observation,
    /// The protection rules.
    pub rules: Arc<Rules>,
}

impl TestWorld {
    /// A world with this many declared guests.
    #[must_use]
    pub fn random(rng: &mut Rng, guests: usize) -> Self {
        random_world::random_world(rng, guests)
    }

    /// A world with few guests: enough to interact, and few enough to read a failing case.
    #[must_use]
    pub fn random_small(rng: &mut Rng) -> Self {
        let guests = 1 + rng.index(7);
        Self::random(rng, guests)
    }

    /// desired.json.
    #[must_use]
    pub fn desired_json(&self) -> String {
        to_json(&self.desired)
    }

    /// desired.yaml in a random style.
    #[must_use]
    pub fn desired_yaml(&self, rng: &mut Rng) -> String {
        to_random_yaml(&self.desired, rng)
    }

    /// current.json.
    #[must_use]
    pub fn observation_json(&self) -> String {
        to_json(&self.observation)
    }

    /// Parses the world with the real parsers.
    ///
    /// # Errors
    /// A random world has no faults; one that a test changed may have some.
    pub fn parse(&self) -> Result<TestInputs, Diagnostics> {
        Ok(TestInputs {
            desired: Arc::new(desired::parse(self.desired_json().as_bytes(), Notation::Json)?),
            observation: observe::parse(self.observation_json().as_bytes())?,
            rules: Arc::new(self.rules.clone()),
        })
    }
}

impl TestInputs {
    /// The plan, made as in a run.
    #[must_use]
    pub fn plan(&self) -> Plan {
        self.plan_on(self.observation.clone())
    }

    /// The plan on another observation.
    #[must_use]
    pub fn plan_on(&self, observation: Observation) -> Plan {
        let scoped = observation.into_scoped(&self.desired.scope());
        plan(Arc::clone(&self.desired), Arc::new(scoped), Arc::clone(&self.rules))
    }
}

/// The bytes of a plan's body.
#[must_use]
pub fn plan_body(plan: &Plan) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory does not fail; if it did, the empty result would not pass as a body.
    let written = artifact::write_body(&mut bytes, plan);
    if written.is_ok() { bytes } else { Vec::new() }
}

/// A signed approval of a proposal, as a checked signature will give one.
#[must_use]
pub fn sign_approval(by: &str, proposal: artifact::Digest) -> SignedApproval {
    SignedApproval::from_record(by, proposal)
}
