//! What would be done: the difference between wanted and seen, as steps or as refusals, for every declared guest.
//!
//! [`plan`] is pure and total: it never fails, it reads no clock, and the same inputs give the same plan. It does not
//! know whether a reading is live or recorded. A step exists only where everything that it depends on was read.
//!
//! What never enters: limits, time and freezes (`safety`), and the carrying out of steps.

mod config;
mod dependency;
mod guest;

use std::sync::Arc;

use crate::action::{Change, ChangeClass, Impact, Risk};
use crate::classify;
use crate::desired::{Desired, DesiredGuest};
use crate::guest::{RunState, Vmid};
use crate::normalize::{Field, FieldValue};
use crate::observe::{ObservedGuest, Scoped};
use crate::policy::Rules;
use crate::refusal::Refusal;

/// The version of the planner: it changes when the same inputs may give another plan.
pub const PLANNER_VERSION: u32 = 1;

/// What would be done, with what it was derived from. Made by [`plan`] only.
///
/// A plan is not a permission: [`crate::safety::judge`] makes a [`crate::safety::SafePlan`] of it.
///
/// ```
/// fn show(plan: &converger_core::plan::Plan) -> usize {
///     plan.verdicts().len()
/// }
/// ```
///
/// Nobody else can make one:
///
/// ```compile_fail,E0451
/// fn forge(plan: converger_core::plan::Plan) -> converger_core::plan::Plan {
///     converger_core::plan::Plan { verdicts: Box::new([]), ..plan }
/// }
/// ```
///
/// and it cannot be read from a file:
///
/// ```compile_fail,E0277
/// fn load(text: &str) -> converger_core::plan::Plan {
///     serde_json::from_str(text).unwrap()
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    desired: Arc<Desired>,
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
        /// Declared config is written and waits for a restart.
        pending_restart: bool,
    },
    /// These steps, in this order.
    Steps(Vec<Step>),
    /// Nothing is done, for all of these causes.
    Refused(Vec<Refusal>),
}

/// One change of one guest, with what must hold before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The change.
    pub change: Change,
    /// Why.
    pub reason: StepReason,
    /// The run-state in which the guest must be found.
    pub from: RunState,
    /// Guests whose power step comes first (`after`).
    pub wait: Box<[Vmid]>,
}

/// Why a step is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepReason {
    /// Declared config is not in effect.
    ConfigDiffers,
    /// The run-state is not the declared one.
    StateDiffers,
    /// These fields wait for a restart, and `restart: when-needed` allows it.
    RestartForConfig(Box<[RestartField]>),
}

/// A field that takes effect by a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartField {
    /// The field.
    pub field: Field,
    /// The declared value that waits for it, where it is known: records of before this was kept have none. `Some(None)`: a removal.
    pub value: Option<Option<FieldValue>>,
}

impl Step {
    /// What it does to the guest while it is carried out.
    #[must_use]
    pub fn impact(&self) -> Impact {
        classify::impact(&self.change)
    }

    /// How much can go wrong.
    #[must_use]
    pub fn risk(&self) -> Risk {
        classify::risk(&self.change)
    }

    /// What it amounts to.
    #[must_use]
    pub fn class(&self) -> ChangeClass {
        classify::class(&self.change)
    }

    /// Whether the guest goes down by it, if only for a moment.
    #[must_use]
    pub fn interrupts(&self) -> bool {
        self.impact() >= Impact::Reboot
    }

    /// The reason in words.
    #[must_use]
    pub fn reason_text(&self) -> String {
        match &self.reason {
            StepReason::ConfigDiffers => "the config is not as declared".into(),
            StepReason::StateDiffers => {
                let wanted = self.change.resulting_state().map_or("", RunState::word);
                format!("declared {wanted}, observed {}", self.from.word())
            }
            StepReason::RestartForConfig(fields) => {
                let words: Vec<&str> = fields.iter().map(|awaited| awaited.field.word()).collect();
                format!("a restart lets {} take effect, and `restart: when-needed` allows it", words.join(", "))
            }
        }
    }
}

/// Plans. Total and deterministic: a verdict for every declared guest, whatever was read.
#[must_use]
pub fn plan(desired: Arc<Desired>, observation: Arc<Scoped>, rules: Arc<Rules>) -> Plan {
    let observation = restrict_to_scope(&desired, observation);
    let refusals = observation_refusals(&observation);
    let mut verdicts = Vec::with_capacity(desired.guests().len());
    for (guest, listed) in join_rows(&desired, &observation) {
        let local = guest::verdict(guest, listed, &observation, &rules);
        verdicts.push(if refusals.is_empty() { local } else { guest::add_refusals(local, &refusals) });
    }
    dependency::settle_dependencies(&desired, &observation, &mut verdicts);
    Plan { desired, observation, rules, refusals, verdicts: verdicts.into() }
}

/// The reading itself where it holds nothing that is not declared, which is always so in a run; otherwise without the rest (G8).
fn restrict_to_scope(desired: &Desired, observation: Arc<Scoped>) -> Arc<Scoped> {
    let listed = join_rows(desired, &observation).filter(|(_, row)| row.is_some()).count();
    if listed == observation.guests.len() {
        return observation;
    }
    Arc::new(Scoped::clone(&observation).into_observation().into_scoped(&desired.scope()))
}

/// Why the guest under a declared id cannot be taken for the declared one, or not be looked at.
pub(crate) fn check_guest(guest: &DesiredGuest, row: &ObservedGuest, observation: &Scoped) -> Option<Vec<Refusal>> {
    guest::check_guest(guest, row, observation)
}

/// The guards of a guest that were not read.
pub(crate) fn unread_guards(row: &ObservedGuest) -> Vec<String> {
    guest::unread_guards(row)
}

/// What concerns the whole reading.
pub(crate) fn observation_refusals(observation: &Scoped) -> Vec<Refusal> {
    let quorum = (!observation.quorate).then(Refusal::not_quorate);
    let whole = (!observation.complete).then(Refusal::observation_incomplete);
    quorum.into_iter().chain(whole).collect()
}

/// Each declared guest with its row, if it has one. Both lists are sorted by id.
fn join_rows<'p>(desired: &'p Desired, observation: &'p Scoped) -> impl Iterator<Item = (&'p DesiredGuest, Option<&'p ObservedGuest>)> {
    let mut rows = observation.guests.iter().peekable();
    desired.guests().iter().map(move |guest| {
        while rows.next_if(|row| row.vmid < guest.vmid).is_some() {}
        (guest, rows.next_if(|row| row.vmid == guest.vmid))
    })
}

impl Plan {
    /// What was wanted.
    #[must_use]
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// What was seen.
    #[must_use]
    pub fn observation(&self) -> &Scoped {
        &self.observation
    }

    /// What was protected.
    #[must_use]
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Causes that concern the whole reading; each guest's refusals repeat them.
    #[must_use]
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// The verdicts, beside [`Desired::guests`].
    #[must_use]
    pub fn verdicts(&self) -> &[Verdict] {
        &self.verdicts
    }

    /// Each declared guest with its verdict: what is named in `after` first, otherwise by id.
    pub fn guests(&self) -> impl Iterator<Item = (&DesiredGuest, &Verdict)> {
        self.desired.order().filter_map(|index| Some((self.desired.guests().get(index)?, self.verdicts.get(index)?)))
    }

    /// The name of a guest: the declared one or, where only its birth marks are declared, the observed one.
    #[must_use]
    pub fn name_of<'p>(&'p self, guest: &'p DesiredGuest) -> Option<&'p str> {
        match &guest.name {
            Some(name) => Some(name.as_str()),
            None => self.observation.find(guest.vmid).and_then(|row| row.name.as_deref()),
        }
    }

    /// A plan with other verdicts, to show that the judgement finds what a broken planner would do.
    #[cfg(test)]
    pub(crate) fn with_verdicts(mut self, verdicts: Vec<Verdict>) -> Self {
        self.verdicts = verdicts.into();
        self
    }
}
