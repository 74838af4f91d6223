//! Compares an intent and an observation, and gives every declared guest a verdict: steps, refusals, or converged.
//!
//! [`plan`] is pure and total: it never fails, it reads no clock, and the same inputs give the same plan. It does not know whether an
//! observation is live or recorded. A step exists only if everything that it depends on was read.
//!
//! Must not depend on limits, time, freezes or holds (`safety`), or on how steps are executed.

mod birth;
mod clone;
mod config;
mod dependency;
mod guest;
mod migration;
mod placement;
mod request;

use std::sync::Arc;

use crate::action::{Change, ChangeClass, Impact, Risk};
use crate::classify;
use crate::desired::{Desired, DesiredGuest};
use crate::guest::{RunState, Vmid};
use crate::intent::Intent;
use crate::normalize::{Field, FieldValue};
use crate::observe::{ObservedGuest, Scoped};
use crate::policy::Rules;
use crate::refusal::Refusal;

/// Version of the planner. It changes when the same inputs may give a different plan.
pub const PLANNER_VERSION: u32 = 2;

/// The verdicts for all declared guests, with the inputs that they were derived from. Made by [`plan`] only.
///
/// A plan is not a permission: [`crate::safety::judge`] makes a [`crate::safety::SafePlan`] of it.
///
/// ```
/// fn show(plan: &converger_core::plan::Plan) -> usize {
///     plan.verdicts().len()
/// }
/// ```
///
/// No other code can make one:
///
/// ```compile_fail,E0451
/// fn forge(plan: converger_core::plan::Plan) -> converger_core::plan::Plan {
///     converger_core::plan::Plan { verdicts: Box::new([]), ..plan }
/// }
/// ```
///
/// It cannot be read from a file:
///
/// ```compile_fail,E0277
/// fn load(text: &str) -> converger_core::plan::Plan {
///     serde_json::from_str(text).unwrap()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    intent: Intent,
    observation: Arc<Scoped>,
    rules: Arc<Rules>,
    refusals: Vec<Refusal>,
    verdicts: Box<[Verdict]>,
}

/// What is decided about one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is nothing to do.
    Converged {
        /// Declared config is written and takes effect at the next restart.
        pending_restart: bool,
    },
    /// The guest needs these steps, in this order.
    Steps(Vec<Step>),
    /// Nothing is done, for all of these reasons.
    Refused(Vec<Refusal>),
}

/// One change of one guest, with its preconditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// Why.
    pub reason: StepReason,
    /// The run-state that the guest must be in before the step.
    pub from: RunState,
    /// Guests whose power step must come first (`after`).
    pub wait: Box<[Vmid]>,
}

/// Why a step is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepReason {
    /// Declared config is not in effect.
    ConfigDiffers,
    /// The run-state is not the declared one.
    StateDiffers,
    /// These fields are pending until a restart, and `restart: when-needed` allows one.
    RestartForConfig(Box<[RestartField]>),
    /// It was requested.
    Requested,
    /// The guest is declared with `from` and was never made, or not completely.
    MadeFromTemplate,
}

/// A field that takes effect at a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartField {
    /// The field.
    pub field: Field,
    /// The declared value that is pending; `None` in records from before values were stored, `Some(None)` for a removal.
    pub value: Option<Option<FieldValue>>,
}

impl Step {
    /// What the step does to the guest while it is executed.
    #[must_use]
    pub fn impact(&self) -> Impact {
        classify::impact(&self.change)
    }

    /// How much can go wrong.
    #[must_use]
    pub fn risk(&self) -> Risk {
        classify::risk(&self.change)
    }

    /// Its class. A declared state never makes a guest by itself: a person confirms that.
    #[must_use]
    pub fn class(&self) -> ChangeClass {
        let floor = if self.makes_declared_guest() { ChangeClass::Disruptive } else { ChangeClass::Benign };
        classify::class(&self.change).max(floor)
    }

    /// Whether it makes a guest because desired.yaml declares it with `from`.
    #[must_use]
    pub fn makes_declared_guest(&self) -> bool {
        self.reason == StepReason::MadeFromTemplate && matches!(self.change, Change::Clone(_))
    }

    /// Whether it takes the guest down, even if only for a moment.
    #[must_use]
    pub fn interrupts(&self) -> bool {
        self.impact() >= Impact::Reboot
    }

    /// The reason as a sentence.
    #[must_use]
    pub fn reason_text(&self) -> String {
        match &self.reason {
            StepReason::ConfigDiffers => "the config is not as declared".into(),
            StepReason::StateDiffers => {
                let wanted = self.change.resulting_state().map_or("", RunState::word);
                format!("declared {wanted}, observed {}", self.from.word())
            }
            StepReason::RestartForConfig(fields) => {
                let field_names: Vec<&str> = fields.iter().map(|restart_field| restart_field.field.word()).collect();
                format!("a restart lets {} take effect, and `restart: when-needed` allows it", field_names.join(", "))
            }
            StepReason::Requested => "requested".into(),
            StepReason::MadeFromTemplate => match self.change {
                Change::Clone(_) => "declared with `from`, and missing".into(),
                _ => "declared, for a guest that is made from a template".into(),
            },
        }
    }
}

/// Plans. Total and deterministic: every guest of the intent gets a verdict, whatever was read.
#[must_use]
pub fn plan(intent: impl Into<Intent>, observation: Arc<Scoped>, rules: Arc<Rules>) -> Plan {
    let intent = intent.into();
    let observation = restrict_to_scope(&intent, observation);
    let refusals = observation_refusals(&observation);
    let desired = intent.guests();
    let mut verdicts = Vec::with_capacity(desired.guests().len());
    for (guest, listed) in join_rows(desired, &observation) {
        let local = match &intent {
            Intent::Desired(_) => {
                birth::verdict(guest, listed, &observation, &rules).unwrap_or_else(|| guest::verdict(guest, listed, &observation, &rules))
            }
            Intent::Request(request) => request::verdict(request, guest, listed, &observation, &rules),
        };
        verdicts.push(if refusals.is_empty() { local } else { guest::add_refusals(local, &refusals) });
    }
    dependency::settle_dependencies(desired, &observation, &mut verdicts);
    Plan { intent, observation, rules, refusals, verdicts: verdicts.into() }
}

/// Removes guests that the intent does not name (G8). In a run there are none, and the observation is returned unchanged.
fn restrict_to_scope(intent: &Intent, observation: Arc<Scoped>) -> Arc<Scoped> {
    let is_in_scope = match intent {
        Intent::Desired(desired) if desired.templates().next().is_none() => {
            join_rows(desired, &observation).filter(|(_, row)| row.is_some()).count() == observation.guests.len()
        }
        Intent::Desired(_) | Intent::Request(_) => {
            let scope = intent.scope();
            observation.guests.iter().all(|row| scope.contains(row.vmid))
        }
    };
    if is_in_scope {
        return observation;
    }
    Arc::new(Scoped::clone(&observation).into_observation().into_scoped(&intent.scope()))
}

/// Why the guest with a declared id cannot be identified as the declared one, or cannot be read.
pub(crate) fn check_guest(guest: &DesiredGuest, row: &ObservedGuest, observation: &Scoped) -> Option<Vec<Refusal>> {
    guest::check_guest(guest, row, observation)
}

/// The guards of a guest that were not read.
pub(crate) fn unread_guards(row: &ObservedGuest) -> Vec<String> {
    guest::unread_guards(row)
}

/// Refusals that concern the whole observation.
pub(crate) fn observation_refusals(observation: &Scoped) -> Vec<Refusal> {
    let quorum = (!observation.quorate).then(Refusal::not_quorate);
    let whole = (!observation.complete).then(Refusal::observation_incomplete);
    quorum.into_iter().chain(whole).collect()
}

/// Each declared guest with its observed row, if there is one. Both lists are sorted by id.
fn join_rows<'p>(desired: &'p Desired, observation: &'p Scoped) -> impl Iterator<Item = (&'p DesiredGuest, Option<&'p ObservedGuest>)> {
    let mut rows = observation.guests.iter().peekable();
    desired.guests().iter().map(move |guest| {
        while rows.next_if(|row| row.vmid < guest.vmid).is_some() {}
        (guest, rows.next_if(|row| row.vmid == guest.vmid))
    })
}

impl Plan {
    /// What was asked for.
    #[must_use]
    pub fn intent(&self) -> &Intent {
        &self.intent
    }

    /// The guests that may get steps, with what is declared of them.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        self.intent.guests()
    }

    /// The observation.
    #[must_use]
    pub fn observation(&self) -> &Scoped {
        &self.observation
    }

    /// The protection rules.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Refusals that concern the whole observation; each guest's refusals repeat them.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// The verdicts, in the order of [`Desired::guests`].
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// The steps of a guest; empty if it has none.
    #[must_use]
    pub fn steps_of(&self, vmid: Vmid) -> &[Step] {
        let verdict = self.desired().find(vmid).and_then(|(index, _)| self.verdicts.get(index));
        match verdict {
            Some(Verdict::Steps(steps)) => steps,
            _ => &[],
        }
    }

    /// Each declared guest with its verdict: dependencies first (`after`), otherwise by id.
    pub fn guests(&self) -> impl Iterator<Item = (&DesiredGuest, &Verdict)> {
        self.desired().order().filter_map(|index| Some((self.desired().guests().get(index)?, self.verdicts.get(index)?)))
    }

    /// The name of a guest: the declared one, or the observed one if only birth marks are declared.
    #[must_use]
    pub fn name_of<'p>(&'p self, guest: &'p DesiredGuest) -> Option<&'p str> {
        match &guest.name {
            Some(name) => Some(name.as_str()),
            None => self.observation.find(guest.vmid).and_then(|row| row.name.as_deref()),
        }
    }

    /// Replaces the verdicts, to test that the judgement detects what a broken planner would do.
    #[cfg(test)]
    pub(crate) fn with_verdicts(mut self, verdicts: Vec<Verdict>) -> Self {
        self.verdicts = verdicts.into();
        self
    }
}

#[cfg(test)]
mod birth_tests;
#[cfg(test)]
mod request_tests;
