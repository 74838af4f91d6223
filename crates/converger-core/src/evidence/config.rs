//! What a configuration put in force, as far as a decision rests on it: a decision that was held against something else was not made under
//! it.
//!
//! What never enters: how a configuration is written or kept. Whoever keeps one says what it put in force ([`ParseConfig`]).

use crate::approve::ApprovalMode;
use crate::guest::EnvironmentName;
use crate::policy::{Circumstances, Limits, Rules};

/// What was in force.
#[derive(Clone, Debug)]
pub struct EffectiveConfig {
    /// Which environment it configures, where it configures one.
    pub environment: Option<EnvironmentName>,
    /// How much a run may change.
    pub limits: Limits,
    /// What is protected; nobody who holds a guest is among it.
    pub rules: Rules,
    /// Whether nothing may be changed.
    pub is_frozen: bool,
    /// Who decides, where that is said.
    pub mode: Option<ApprovalMode>,
}

/// What a configuration put in force, read from the bytes that it is kept as; or why they are none.
pub type ParseConfig = fn(&[u8]) -> Result<EffectiveConfig, String>;

impl EffectiveConfig {
    /// Whether a decision was held against this.
    ///
    /// # Errors
    /// What is another.
    pub(super) fn check_agreement(
        &self,
        environment: &EnvironmentName,
        rules: &Rules,
        limits: Limits,
        circumstances: &Circumstances,
    ) -> Result<(), &'static str> {
        let protection = |rules: &Rules| (rules.ids().to_vec(), rules.names().to_vec(), rules.tags().to_vec());
        if self.environment.as_ref().is_some_and(|own| own != environment) {
            // What protects there, and who decides there, was in force elsewhere.
            Err("it configures another environment than the decision is about")
        } else if limits != self.limits {
            Err("it has other limits than the decision was held against")
        } else if protection(rules) != protection(&self.rules) {
            Err("it protects other guests than the decision was held against")
        } else if self.is_frozen && circumstances.freeze.is_none() {
            // The other way round a person may have said it.
            Err("it freezes the environment, and the decision was made as if it did not")
        } else {
            Ok(())
        }
    }
}
