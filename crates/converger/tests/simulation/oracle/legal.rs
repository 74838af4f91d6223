//! Which refusals the world itself gives cause for (L2): once everything has healed, a guest is refused for what somebody did to it or
//! declared about it, and for nothing that has passed.
//!
//! Judged on what really is so and on what is wanted. What never enters: how the planner came to a refusal.

use std::collections::{BTreeMap, BTreeSet};

use converger_core::guest::RunState;
use converger_lab::Truth;

use super::super::scene::Wanted;
use super::truth;

/// Everything that a refusal may rest on.
pub(crate) struct Grounds<'g> {
    pub(crate) wanted: &'g BTreeMap<u32, Wanted>,
    /// The guests as they really are.
    pub(crate) real: &'g BTreeMap<u32, Truth>,
    /// Guests that the same plan refuses.
    pub(crate) refused: &'g BTreeSet<u32>,
    /// Whether a run may do all that the same plan has.
    pub(crate) is_within_limits: bool,
}

impl Grounds<'_> {
    /// Whether a guest gives cause to be refused with this code.
    pub(crate) fn has(&self, vmid: u32, code: &str) -> bool {
        let (Some(wanted), Some(real)) = (self.wanted.get(&vmid), self.real.get(&vmid)) else { return false };
        let has_come = |on: &u32| self.runs(*on) && !self.is_wanted(*on, RunState::Stopped) || self.is_wanted(*on, RunState::Running);
        match code {
            "name-mismatch" => real.name.as_deref() != Some(&*wanted.name),
            // Whoever has nothing to do about a guest has nothing to refuse.
            _ if !differs(real, wanted) => false,
            "guest-held" => truth::tags(real).any(|tag| tag == "converger-hold"),
            "ha-owned" => is_owned(real) && (turns(real, wanted) || !is_as_its_owner_wants(real)),
            "config-pending" => real.pending.keys().chain(&real.pending_delete).any(|key| !wanted.config.contains_key(key.as_str())),
            "protected-guest" => truth::is_protected(real) && goes_down(real, wanted),
            "protection-change" => loses_protection(real, wanted),
            "dependency-refused" => wanted.after.iter().any(|on| self.refused.contains(on)),
            "dependency-not-running" => comes_up(real, wanted) && !wanted.after.iter().all(has_come),
            "dependent-running" => is_to_stop(real, wanted) && self.dependents(vmid).any(|own| self.stays_up(own)),
            _ => false,
        }
    }

    fn runs(&self, vmid: u32) -> bool {
        self.real.get(&vmid).is_some_and(|real| real.process.is_some())
    }

    fn is_wanted(&self, vmid: u32, state: RunState) -> bool {
        self.wanted.get(&vmid).is_some_and(|wanted| wanted.state == Some(state))
    }

    fn dependents(&self, vmid: u32) -> impl Iterator<Item = u32> {
        self.wanted.iter().filter(move |(_, wanted)| wanted.after.contains(&vmid)).map(|(own, _)| *own)
    }

    fn stays_up(&self, vmid: u32) -> bool {
        let is_up = self.runs(vmid) && (!self.is_wanted(vmid, RunState::Stopped) || self.refused.contains(&vmid));
        is_up || self.is_wanted(vmid, RunState::Running) || self.refused.contains(&vmid)
    }
}

fn runs(real: &Truth) -> bool {
    real.process.is_some()
}

fn is_to_stop(real: &Truth, wanted: &Wanted) -> bool {
    runs(real) && wanted.state == Some(RunState::Stopped)
}

/// Whether something waits for a restart that is allowed.
fn restarts(real: &Truth, wanted: &Wanted) -> bool {
    let waits = |key: &&'static str| real.pending.contains_key(*key) || !truth::has(real, key, wanted.config[*key].as_deref());
    runs(real) && wanted.restarts && wanted.config.keys().any(waits)
}

fn goes_down(real: &Truth, wanted: &Wanted) -> bool {
    is_to_stop(real, wanted) || restarts(real, wanted)
}

fn comes_up(real: &Truth, wanted: &Wanted) -> bool {
    (!runs(real) && wanted.state == Some(RunState::Running)) || restarts(real, wanted)
}

fn turns(real: &Truth, wanted: &Wanted) -> bool {
    goes_down(real, wanted) || comes_up(real, wanted)
}

/// Whether there is something to do about it.
fn differs(real: &Truth, wanted: &Wanted) -> bool {
    !truth::is_as_wanted(real, wanted) || restarts(real, wanted)
}

fn is_owned(real: &Truth) -> bool {
    real.ha.as_ref().is_some_and(|own| own.wanted != "ignored")
}

fn is_as_its_owner_wants(real: &Truth) -> bool {
    real.ha.as_ref().is_some_and(|own| (own.wanted == "started") == runs(real) && own.believed.as_deref() == Some(&*own.wanted))
}

/// Whether a protecting tag would go, by what is written or by what waits.
fn loses_protection(real: &Truth, wanted: &Wanted) -> bool {
    let declared = wanted.config.get("tags").map(|tags| tags.as_deref().unwrap_or_default());
    let after = declared.or_else(|| real.pending.get("tags").map(String::as_str));
    truth::tags(real).any(|tag| tag == "prod") && after.is_some_and(|tags| !tags.split(';').any(|tag| tag == "prod"))
}
