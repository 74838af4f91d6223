//! The promise of the first config write of a new guest: the config has everything that was written.

use super::{PromiseCheck, effective_value, pending_value, shown_in_effect};
use crate::action::Provisioning;
use crate::apply::env_request::LiveConfig;
use crate::apply::outcome::Evidence;
use crate::normalize;

/// Compares what was written with the config. A password is only seen to exist.
pub(super) fn check_provisioned(provisioning: &Provisioning, config: &LiveConfig) -> PromiseCheck {
    let (mut seen, mut is_kept, mut is_clear) = (Evidence::default(), true, true);
    for setting in &provisioning.fields {
        let field = setting.field;
        seen = seen.with(field.word(), &*shown_in_effect(field, config));
        let rule = normalize::rule_of(provisioning.kind, field);
        let value = effective_value(field, config);
        let is_met = rule.is_some_and(|rule| normalize::is_met(rule, setting.wanted.as_ref(), value.as_ref()));
        match config.values.not_understood(field) {
            Some(_) => is_clear = false,
            None => is_kept &= is_met && pending_value(field, config).is_none(),
        }
    }
    let found = config.day_one.attributes.entries();
    for (name, wanted) in provisioning.attributes.entries() {
        let text = found.iter().find(|(own, _)| *own == name).map(|(_, text)| text.as_str());
        seen = seen.with(name, text.unwrap_or("absent"));
        is_kept &= text == Some(wanted.as_str());
    }
    if provisioning.password.is_some() {
        seen = seen.with("password", if config.day_one.has_password { "set" } else { "absent" });
        is_kept &= config.day_one.has_password;
    }
    match (is_kept, is_clear) {
        (false, _) => PromiseCheck::NotKept(seen),
        (true, false) => PromiseCheck::Unclear(seen),
        (true, true) => PromiseCheck::Kept(seen),
    }
}
