//! May it be carried out, now and by whom: the last gate before the engine.
//!
//! [`admit`] makes an [`ApprovedPlan`] of a [`SafePlan`], and nothing else does; the engine takes nothing else. In this first
//! form an environment is driven by one person: what they type at a terminal is the approval, and the full digest of a plan,
//! as a script gives it, covers benign steps only. What needs more is refused with `check_approval-missing`.
//!
//! What never enters: who is at the terminal, what was typed there and what time it is; all of it is handed in. Limits and
//! guarantees (`safety`) are judged before.

use std::io;
use std::sync::Arc;

use crate::action::{Change, ChangeClass, Impact};
use crate::apply::{CheckContext, DependencyCheck, GuestAddress, Operation, OperationId, OperationSource, OperationTarget, RunId};
use crate::artifact::{Digest, Provenance, write_body};
use crate::desired::DesiredGuest;
use crate::guest::{RunState, Vmid};
use crate::plan::{Plan, Step, Verdict};
use crate::refusal::Refusal;
use crate::safety::SafePlan;
use crate::timestamp;

/// Who decides in an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalMode {
    /// One person, who is asked and answers.
    Solo,
    /// Several: whoever asks does not approve.
    Shared,
}

/// What was said to the question whether the plan is to be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// Nothing.
    None,
    /// A person was asked, and did not say yes.
    Declined {
        /// Who.
        by: Box<str>,
    },
    /// A person at a terminal said yes, and typed these names of guests.
    Typed {
        /// Who.
        by: Box<str>,
        /// The names, as they were typed.
        names: Vec<Box<str>>,
    },
    /// A script gave the digest of the plan's body.
    FullDigest {
        /// As whom it runs.
        by: Box<str>,
        /// The digest.
        digest: Digest,
    },
}

/// What to do about guests that the plan refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedGuestPolicy {
    /// Nothing is carried out while there is one.
    StopRun,
    /// They are left out, and the others are carried out.
    LeaveOut,
}

/// What holds at the moment of an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Who decides.
    pub mode: ApprovalMode,
    /// Where the reading came from (G7).
    pub provenance: Provenance,
    /// What was said.
    pub confirmation: Confirmation,
    /// What to do about guests that are refused.
    pub refused: RefusedGuestPolicy,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// How old the reading may be.
    pub age_secs_max: u32,
}

impl Admission {
    /// How old a reading may be. Every step is checked on a reading of its own besides.
    pub const AGE_SECS_MAX: u32 = 900;
    /// How far ahead the clock of the reading may be.
    const AHEAD_SECS_MAX: u64 = 60;
}

/// The outcome of an admission.
#[must_use]
#[derive(Debug)]
pub enum Admitted {
    /// It may be carried out.
    Approved(ApprovedPlan),
    /// It may not, for all of these causes.
    Refused(Vec<Refusal>),
}

/// A plan that may be carried out, once. Made by [`admit`] only; the engine takes nothing else.
///
/// ```
/// fn count(plan: &converger_core::approve::ApprovedPlan) -> usize {
///     plan.plan().verdicts().len()
/// }
/// ```
///
/// It cannot be made of a safe plan without an admission:
///
/// ```compile_fail,E0451
/// use converger_core::{approve::ApprovedPlan, artifact::Digest, safety::SafePlan};
/// fn forge(safe: SafePlan, digest: Digest) -> ApprovedPlan {
///     ApprovedPlan { safe, digest, by: "me".into(), how: "typed" }
/// }
/// ```
///
/// a safe plan does not pass for one:
///
/// ```compile_fail,E0308
/// use converger_core::{approve::ApprovedPlan, safety::SafePlan};
/// fn carry_out(_: ApprovedPlan) {}
/// fn skip_the_admission(safe: SafePlan) {
///     carry_out(safe);
/// }
/// ```
///
/// it is not carried out twice:
///
/// ```compile_fail,E0308
/// fn twice(plan: &converger_core::approve::ApprovedPlan) -> converger_core::approve::ApprovedPlan {
///     plan.clone()
/// }
/// ```
///
/// ```compile_fail,E0382
/// use converger_core::{apply::{OperationId, RunId}, approve::ApprovedPlan};
/// fn twice(plan: ApprovedPlan, run: RunId, id: fn(usize) -> Option<OperationId>) {
///     let _ = plan.into_operations(&run, id);
///     let _ = plan.into_operations(&run, id);
/// }
/// ```
///
/// and none comes from a file:
///
/// ```compile_fail,E0277
/// fn load(text: &str) -> converger_core::approve::ApprovedPlan {
///     serde_json::from_str(text).unwrap()
/// }
/// ```
#[must_use]
#[derive(Debug)]
pub struct ApprovedPlan {
    safe: SafePlan,
    digest: Digest,
    by: Box<str>,
    how: &'static str,
}

/// Decides whether a plan may be carried out. All that stands against it whatever is said is collected; what is said counts where nothing does.
///
/// # Errors
/// The plan cannot be written as JSON; none of ours is one.
pub fn admit(safe: SafePlan, admission: &Admission) -> io::Result<Admitted> {
    let digest = write_body(&mut io::sink(), safe.plan())?;
    let refusals = objections(&safe, admission);
    if !refusals.is_empty() {
        return Ok(Admitted::Refused(refusals));
    }
    Ok(match check_approval(safe.plan(), admission, digest) {
        Ok((by, how)) => Admitted::Approved(ApprovedPlan { safe, digest, by, how }),
        Err(refusal) => Admitted::Refused(vec![refusal]),
    })
}

/// What stands against a plan whatever is said to the question: nobody needs to be asked then.
#[must_use]
pub fn objections(safe: &SafePlan, admission: &Admission) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if admission.provenance == Provenance::Replay {
        refusals.push(Refusal::replay_not_appliable());
    }
    refusals.extend(check_age(safe.plan(), admission));
    if admission.refused == RefusedGuestPolicy::StopRun {
        refusals.extend(guest_refusals(safe.plan()));
    }
    refusals
}

/// Age is judged here and nowhere else; what does not say when it was taken has none that could be trusted.
fn check_age(plan: &Plan, admission: &Admission) -> Option<Refusal> {
    let now_secs = admission.now_ms / 1000;
    let taken = plan.observation().taken_at.as_deref().and_then(timestamp::parse_timestamp);
    let Some(taken) = taken.filter(|taken| *taken <= now_secs.saturating_add(Admission::AHEAD_SECS_MAX)) else {
        return Some(Refusal::observation_undated());
    };
    let age = u32::try_from(now_secs.saturating_sub(taken)).unwrap_or(u32::MAX);
    (age > admission.age_secs_max).then(|| Refusal::observation_stale(age, admission.age_secs_max))
}

fn guest_refusals(plan: &Plan) -> Vec<Refusal> {
    let refused = plan.verdicts().iter().filter_map(|verdict| match verdict {
        Verdict::Refused(refusals) => Some(refusals.iter().cloned()),
        Verdict::Converged { .. } | Verdict::Steps(_) => None,
    });
    refused.flatten().collect()
}

/// Who approved it and how, or what is missing.
fn check_approval(plan: &Plan, admission: &Admission, digest: Digest) -> Result<(Box<str>, &'static str), Refusal> {
    let missing = |needs: &'static str, guests: Vec<Vmid>| Err(Refusal::approval_missing(needs, guests));
    let changed = ids_with_step(plan, |_| true);
    if changed.is_empty() {
        // Nothing is carried out, so that nothing has to be approved.
        return Ok(("nobody".into(), "nothing to do"));
    }
    if admission.mode == ApprovalMode::Shared {
        return missing("somebody else's approval", changed);
    }
    match &admission.confirmation {
        Confirmation::None => missing("a confirmation", changed),
        Confirmation::Declined { .. } => missing("a yes of whoever was asked", changed),
        Confirmation::Typed { by, names } => {
            let unnamed = guests_not_named(plan, names);
            if unnamed.is_empty() { Ok((by.clone(), "typed")) } else { missing("the typed name of each guest that goes down", unnamed) }
        }
        Confirmation::FullDigest { by, digest: given } => {
            if *given != digest {
                return missing("the digest of this plan", changed);
            }
            let more = ids_with_step(plan, |step| step.class() > ChangeClass::Benign);
            if more.is_empty() { Ok((by.clone(), "digest")) } else { missing("a person at a terminal", more) }
        }
    }
}

/// The guests that go down and were not named. Names are not unique: each was typed for one guest.
fn guests_not_named(plan: &Plan, names: &[Box<str>]) -> Vec<Vmid> {
    let mut left: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let mut is_named = |guest: &DesiredGuest| {
        let at = plan.name_of(guest).and_then(|name| left.iter().position(|typed| *typed == name));
        at.map(|at| left.swap_remove(at)).is_some()
    };
    guests_to_stop(plan).filter(|guest| !is_named(guest)).map(|guest| guest.vmid).collect()
}

/// The guests that are stopped, or worse: each is named by whoever confirms the plan.
pub fn guests_to_stop(plan: &Plan) -> impl Iterator<Item = &DesiredGuest> {
    guests_with_step(plan, |step| step.impact() >= Impact::Stop)
}

fn ids_with_step(plan: &Plan, is_meant: impl Fn(&Step) -> bool) -> Vec<Vmid> {
    guests_with_step(plan, is_meant).map(|guest| guest.vmid).collect()
}

/// The guests of which a step is meant.
fn guests_with_step(plan: &Plan, is_meant: impl Fn(&Step) -> bool) -> impl Iterator<Item = &DesiredGuest> {
    plan.guests().filter_map(move |(guest, verdict)| match verdict {
        Verdict::Steps(steps) if steps.iter().any(&is_meant) => Some(guest),
        _ => None,
    })
}

impl ApprovedPlan {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.safe.plan()
    }

    /// The digest of its body, which is what was approved.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Who approved it.
    #[must_use]
    pub fn approver(&self) -> &str {
        &self.by
    }

    /// How, in a word.
    #[must_use]
    pub fn approval_method(&self) -> &'static str {
        self.how
    }

    /// Its steps as operations of a run, in the order of the plan, with the terms that each is held against. `id` makes the id
    /// of the operation with this number; ids are never made here. `None`: an id is missing.
    #[must_use]
    pub fn into_operations(self, run: &RunId, id: impl Fn(usize) -> Option<OperationId>) -> Option<Vec<(Operation, CheckContext)>> {
        let plan = self.safe.plan();
        let rules = Arc::new(plan.rules().clone());
        let mut operations = Vec::new();
        for (guest, verdict) in plan.guests() {
            let Verdict::Steps(steps) = verdict else { continue };
            let target = OperationTarget::from_plan(plan, guest)?;
            let ends = steps.iter().rev().find_map(|step| step.change.resulting_state());
            for (position, step) in (0..).zip(steps) {
                let environment = plan.desired().environment().clone();
                let id = id(operations.len())?;
                let operation = Operation::new(
                    id,
                    run.clone(),
                    environment,
                    target.clone(),
                    step.clone(),
                    position,
                    self.digest,
                    OperationSource::Convergent,
                );
                let relies = dependency_checks(plan, guest, &step.change, ends);
                operations.push((operation, CheckContext::new(Arc::clone(&rules), guest).with_dependencies(relies)));
            }
        }
        Some(operations)
    }
}

/// The guests that a power step relies on by `after`: where its guest runs in the end, those that it comes after run; where it stays
/// down, those that come after it are down.
///
/// The first half of a restart relies on what the second relies on: it would leave the guest down otherwise. It does not ask for those
/// that come after to be down, because nobody declared them so.
fn dependency_checks(plan: &Plan, guest: &DesiredGuest, change: &Change, ends: Option<RunState>) -> Vec<DependencyCheck> {
    let (others, state): (Vec<Vmid>, RunState) = match change.resulting_state().and(ends) {
        Some(RunState::Running) => (guest.after.to_vec(), RunState::Running),
        Some(RunState::Stopped) => {
            let dependents = plan.guests().filter(|(other, _)| other.after.contains(&guest.vmid));
            (dependents.map(|(other, _)| other.vmid).collect(), RunState::Stopped)
        }
        None => return Vec::new(),
    };
    let placed = others.into_iter().filter_map(|vmid| {
        let row = plan.observation().find(vmid)?;
        Some(GuestAddress { node: plan.observation().node_of(row)?.name.clone(), kind: row.kind, vmid })
    });
    placed.map(|place| DependencyCheck { address: place, state }).collect()
}

#[cfg(test)]
mod tests;
