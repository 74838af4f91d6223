//! What a configuration put into effect, as far as decisions depend on it. A decision that used other values was not made under it.
//!
//! Must not depend on how a configuration is written or stored; the caller passes a [`ParseConfig`].

use crate::approve::ApprovalMode;
use crate::guest::EnvironmentName;
use crate::policy::{Circumstances, Limits, Rules};

/// The values that were in effect.
#[derive(Clone, Debug)]
pub struct EffectiveConfig {
    /// The environment that it configures, if it configures one.
    pub environment: Option<EnvironmentName>,
    /// The limits of a run.
    pub limits: Limits,
    /// The protection rules, without holds.
    pub rules: Rules,
    /// Whether changes are frozen.
    pub is_frozen: bool,
    /// The approval mode, if there is one.
    pub mode: Option<ApprovalMode>,
}

/// Parses the stored bytes of a configuration; the error says why they are invalid.
pub type ParseConfig = fn(&[u8]) -> Result<EffectiveConfig, String>;

impl EffectiveConfig {
    /// Checks that a decision was made under this configuration.
    ///
    /// # Errors
    /// What differs.
    pub(super) fn check_agreement(
        &self,
        environment: &EnvironmentName,
        rules: &Rules,
        limits: Limits,
        circumstances: &Circumstances,
    ) -> Result<(), &'static str> {
        let protection = |rules: &Rules| (rules.ids().to_vec(), rules.names().to_vec(), rules.tags().to_vec());
        if self.environment.as_ref().is_some_and(|own| own != environment) {
            // Protection and approval mode of one environment do not apply to another.
            Err("it configures another environment than that of the decision")
        } else if limits != self.limits {
            Err("its limits are not those of the decision")
        } else if protection(rules) != protection(&self.rules) {
            Err("its protection rules are not those of the decision")
        } else if self.is_frozen && circumstances.freeze.is_none() {
            // The opposite is fine: a person may have frozen the environment.
            Err("it freezes the environment, but the decision was made as if it did not")
        } else {
            Ok(())
        }
    }
}
