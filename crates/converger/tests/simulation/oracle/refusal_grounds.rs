//! Which refusals the world justifies (L2): once everything has healed, a guest is refused only for what somebody did to it or declared
//! about it, and not for something that has passed.
//!
//! Judged by the truth and by the declared state. Must not depend on how the planner came to a refusal.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::RunState;
use converger_lab::GuestTruth;

use super::super::setup::WantedGuest;
use super::truth;

/// Everything that a refusal may be based on.
pub(crate) struct RefusalGrounds<'g> {
    pub(crate) wanted: &'g BTreeMap<u32, WantedGuest>,
    /// The true state of the guests.
    pub(crate) real: &'g BTreeMap<u32, GuestTruth>,
    /// Guests that the same plan refuses.
    pub(crate) refused: &'g BTreeSet<u32>,
    /// Whether the same plan is within the limits of a run.
    pub(crate) is_within_limits: bool,
}

impl RefusalGrounds<'_> {
    /// Whether the state of a guest justifies a refusal with this code.
    pub(crate) fn justifies(&self, vmid: u32, code: &str) -> bool {
        let Some(wanted) = self.wanted.get(&vmid) else { return false };
        let is_below_refused = wanted.after.iter().any(|on| self.refused.contains(on));
        // A person deleted it.
        let Some(real) = self.real.get(&vmid) else {
            return code == "guest-missing" || (code == "dependency-refused" && is_below_refused);
        };
        let has_come =
            |on: &u32| self.is_running(*on) && !self.wants_state(*on, RunState::Stopped) || self.wants_state(*on, RunState::Running);
        match code {
            "name-mismatch" => real.name.as_deref() != Some(&*wanted.name),
            // A guest without drift must not be refused.
            _ if !has_drift(real, wanted) => false,
            "guest-held" => truth::all_tags(real).any(|tag| tag == "converger-hold"),
            "ha-owned" => is_ha_owned(real) && (changes_power(real, wanted) || !is_in_ha_state(real)),
            "config-pending" => real.pending.keys().chain(&real.pending_delete).any(|key| !wanted.config.contains_key(key.as_str())),
            "protected-guest" => truth::is_protected(real) && goes_down(real, wanted),
            "protection-change" => loses_protection(real, wanted),
            "dependency-refused" => is_below_refused,
            "dependency-not-running" => comes_up(real, wanted) && !wanted.after.iter().all(has_come),
            "dependent-running" => is_to_stop(real, wanted) && self.dependents(vmid).any(|own| self.stays_up(own)),
            _ => false,
        }
    }

    fn is_running(&self, vmid: u32) -> bool {
        self.real.get(&vmid).is_some_and(|real| real.process.is_some())
    }

    fn wants_state(&self, vmid: u32, state: RunState) -> bool {
        self.wanted.get(&vmid).is_some_and(|wanted| wanted.state == Some(state))
    }

    fn dependents(&self, vmid: u32) -> impl Iterator<Item = u32> {
        self.wanted.iter().filter(move |(_, wanted)| wanted.after.contains(&vmid)).map(|(own, _)| *own)
    }

    fn stays_up(&self, vmid: u32) -> bool {
        let is_up = self.is_running(vmid) && (!self.wants_state(vmid, RunState::Stopped) || self.refused.contains(&vmid));
        is_up || self.wants_state(vmid, RunState::Running) || self.refused.contains(&vmid)
    }
}

fn is_running(real: &GuestTruth) -> bool {
    real.process.is_some()
}

fn is_to_stop(real: &GuestTruth, wanted: &WantedGuest) -> bool {
    is_running(real) && wanted.state == Some(RunState::Stopped)
}

/// Whether a change is pending that a permitted restart would apply.
fn needs_restart(real: &GuestTruth, wanted: &WantedGuest) -> bool {
    let is_pending = |key: &&'static str| real.pending.contains_key(*key) || !truth::has_value(real, key, wanted.config[*key].as_deref());
    is_running(real) && wanted.restarts && wanted.config.keys().any(is_pending)
}

fn goes_down(real: &GuestTruth, wanted: &WantedGuest) -> bool {
    is_to_stop(real, wanted) || needs_restart(real, wanted)
}

fn comes_up(real: &GuestTruth, wanted: &WantedGuest) -> bool {
    (!is_running(real) && wanted.state == Some(RunState::Running)) || needs_restart(real, wanted)
}

fn changes_power(real: &GuestTruth, wanted: &WantedGuest) -> bool {
    goes_down(real, wanted) || comes_up(real, wanted)
}

/// Whether there is something to do about the guest.
fn has_drift(real: &GuestTruth, wanted: &WantedGuest) -> bool {
    !truth::is_as_wanted(real, wanted) || needs_restart(real, wanted)
}

fn is_ha_owned(real: &GuestTruth) -> bool {
    real.ha.as_ref().is_some_and(|own| own.wanted != "ignored")
}

fn is_in_ha_state(real: &GuestTruth) -> bool {
    real.ha.as_ref().is_some_and(|own| (own.wanted == "started") == is_running(real) && own.believed.as_deref() == Some(&*own.wanted))
}

/// Whether a protecting tag would be removed, by the write or by a pending change.
fn loses_protection(real: &GuestTruth, wanted: &WantedGuest) -> bool {
    let declared = wanted.config.get("tags").map(|tags| tags.as_deref().unwrap_or_default());
    let after = declared.or_else(|| real.pending.get("tags").map(String::as_str));
    truth::all_tags(real).any(|tag| tag == "prod") && after.is_some_and(|tags| !tags.split(';').any(|tag| tag == "prod"))
}
