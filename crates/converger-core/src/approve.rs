//! Decides whether a judged plan may be applied now, and who approved it. This is the last check before the engine.
//!
//! Only [`admit`] makes an [`ApprovedPlan`] from a [`SafePlan`], and the engine accepts nothing else. So far an environment is operated by
//! one person: what they type at a terminal is the approval, and the full digest of a proposal, as given by a script, covers benign steps only.
//! A plan that needs more is refused with `approval-missing`.
//!
//! Must not read a terminal or a clock; callers pass in what was typed, by whom, and the time. Limits and guarantees are judged before
//! (`safety`).

use std::io;
use std::sync::Arc;

use crate::action::{Action, ApprovalNeed, Change, ChangeClass, Impact};
use crate::apply::{
    CheckContext, DependencyCheck, GuestAddress, IdempotencyKey, Operation, OperationId, OperationSource, OperationTarget, RunId,
};
use crate::artifact::{Digest, Provenance, proposal_digest, write_body};
use crate::desired::DesiredGuest;
use crate::guest::{RunState, Vmid};
use crate::intent::Intent;
use crate::plan::{Plan, Step, Verdict};
use crate::refusal::Refusal;
use crate::safety::{JudgedVerdict, SafePlan};
use crate::timestamp;

/// Who approves plans in an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalMode {
    /// One person, who approves their own plans.
    Solo,
    /// Several people: the requester cannot approve.
    Shared,
}

/// The answer to the question whether to apply the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// No answer.
    None,
    /// A person was asked and did not confirm.
    Declined {
        /// Who.
        by: Box<str>,
    },
    /// A person confirmed at a terminal and typed these guest names.
    Typed {
        /// Who.
        by: Box<str>,
        /// The names as typed.
        names: Vec<Box<str>>,
    },
    /// A person signed the proposal.
    Signed(SignedApproval),
    /// A script gave the digest of the proposal.
    FullDigest {
        /// The user that the script runs as.
        by: Box<str>,
        /// The digest.
        digest: Digest,
    },
}

/// An approval whose signature was checked. Nothing outside the core can make one yet: signatures come with a later version, and until
/// then only tests and the simulation have them. The core makes one from evidence to check an earlier decision again, never to apply.
///
/// ```compile_fail,E0451
/// use converger_core::{approve::SignedApproval, artifact::Digest};
/// fn forge(proposal: Digest) -> SignedApproval {
///     SignedApproval { by: "me".into(), proposal }
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedApproval {
    by: Box<str>,
    proposal: Digest,
}

impl SignedApproval {
    /// An approval as the evidence has it.
    pub(crate) fn from_record(by: &str, proposal: Digest) -> Self {
        Self { by: by.into(), proposal }
    }

    /// Who signed.
    #[must_use]
    pub fn by(&self) -> &str {
        &self.by
    }

    /// The proposal that was signed.
    #[must_use]
    pub fn proposal(&self) -> Digest {
        self.proposal
    }
}

/// What must be given before a step is applied, where one person approves their own plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NeededApproval {
    /// A yes, or the full digest of the proposal.
    Confirmation,
    /// A yes of a person at a terminal.
    Terminal,
    /// The same, with the typed name of the guest.
    TypedName,
    /// One signed approval.
    Signed,
}

impl NeededApproval {
    /// What a step with this catalogue row, class and impact needs.
    #[must_use]
    pub fn of(action: &Action, class: ChangeClass, impact: Impact) -> Self {
        match (action.approvals, class, impact) {
            (ApprovalNeed::OneSigned, ..) => Self::Signed,
            (_, _, Impact::Stop | Impact::DataLoss) => Self::TypedName,
            (_, ChangeClass::Disruptive | ChangeClass::Destructive, _) => Self::Terminal,
            (_, ChangeClass::Benign, _) => Self::Confirmation,
        }
    }

    /// What this step needs.
    #[must_use]
    pub fn of_step(step: &Step) -> Self {
        let floor = if step.makes_declared_guest() { Self::TypedName } else { Self::Confirmation };
        Self::of(step.change.action(), step.class(), step.impact()).max(floor)
    }

    /// Its word in artifacts.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Confirmation => "confirmation",
            Self::Terminal => "terminal",
            Self::TypedName => "typed-name",
            Self::Signed => "signed",
        }
    }

    /// The same for people.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Confirmation => "confirmation",
            Self::Terminal => "confirmation at a terminal",
            Self::TypedName => "confirmation at a terminal, with the typed name of the guest",
            Self::Signed => "one signed approval",
        }
    }
}

/// What to do about guests that the plan refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedGuestPolicy {
    /// Apply nothing if any guest is refused.
    StopRun,
    /// Leave refused guests out and apply the plan to the others.
    LeaveOut,
}

/// What holds at the moment of an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Who approves.
    pub mode: ApprovalMode,
    /// Where the observation came from (G7).
    pub provenance: Provenance,
    /// The answer.
    pub confirmation: Confirmation,
    /// What to do about refused guests.
    pub refused: RefusedGuestPolicy,
    /// The time, in milliseconds since 1970.
    pub now_ms: u64,
    /// The maximal age of the observation.
    pub age_secs_max: u32,
}

impl Admission {
    /// The maximal age of an observation. In addition, each step is checked against the guest, read again.
    pub const AGE_SECS_MAX: u32 = 900;
    /// How far in the future, by this clock, an observation may be.
    const AHEAD_SECS_MAX: u64 = 60;
}

/// The result of an admission.
#[must_use]
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one for each run")]
pub enum Admitted {
    /// The plan may be applied.
    Approved(ApprovedPlan),
    /// The plan may not be applied, for all of these reasons.
    Refused(Vec<Refusal>),
}

/// A plan that may be applied, once. Made by [`admit`] only; the engine accepts nothing else.
///
/// ```
/// fn count(plan: &converger_core::approve::ApprovedPlan) -> usize {
///     plan.plan().verdicts().len()
/// }
/// ```
///
/// It cannot be made from a safe plan without an admission:
///
/// ```compile_fail,E0451
/// use converger_core::{approve::ApprovedPlan, artifact::Digest, safety::SafePlan};
/// fn forge(safe: SafePlan, digest: Digest) -> ApprovedPlan {
///     ApprovedPlan { safe, digest, proposal: digest, by: "me".into(), how: "typed" }
/// }
/// ```
///
/// A safe plan is not accepted in its place:
///
/// ```compile_fail,E0308
/// use converger_core::{approve::ApprovedPlan, safety::SafePlan};
/// fn carry_out(_: ApprovedPlan) {}
/// fn skip_the_admission(safe: SafePlan) {
///     carry_out(safe);
/// }
/// ```
///
/// It cannot be applied twice:
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
///     let _ = plan.into_operations(&run, id, None);
///     let _ = plan.into_operations(&run, id, None);
/// }
/// ```
///
/// It cannot be read from a file:
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
    proposal: Digest,
    by: Box<str>,
    how: &'static str,
}

/// Decides whether a plan may be applied. Collects all [`objections`] first; the confirmation matters only if there are none.
///
/// # Errors
/// The plan cannot be written as JSON, which does not happen.
pub fn admit(safe: SafePlan, admission: &Admission) -> io::Result<Admitted> {
    let digest = write_body(&mut io::sink(), safe.plan())?;
    let proposal = proposal_digest(safe.plan(), safe.judgement())?;
    let refusals = objections(&safe, admission);
    if !refusals.is_empty() {
        return Ok(Admitted::Refused(refusals));
    }
    Ok(match check_approval(&safe, admission, proposal) {
        Ok((by, how)) => Admitted::Approved(ApprovedPlan { safe, digest, proposal, by, how }),
        Err(refusal) => Admitted::Refused(vec![refusal]),
    })
}

/// Reasons against a plan that no confirmation can remove; if there are any, nobody needs to be asked.
#[must_use]
pub fn objections(safe: &SafePlan, admission: &Admission) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    if admission.provenance == Provenance::Replay {
        refusals.push(Refusal::replay_not_appliable());
    }
    refusals.extend(check_age(safe.plan(), admission));
    if admission.refused == RefusedGuestPolicy::StopRun {
        refusals.extend(guest_refusals(safe));
    }
    refusals
}

/// Checks the age of the observation. No other code does. An observation without a time has no trustworthy age.
fn check_age(plan: &Plan, admission: &Admission) -> Option<Refusal> {
    let now_secs = admission.now_ms / 1000;
    let taken_secs = plan.observation().taken_at.as_deref().and_then(timestamp::parse_timestamp);
    let Some(taken_secs) = taken_secs.filter(|taken_secs| *taken_secs <= now_secs.saturating_add(Admission::AHEAD_SECS_MAX)) else {
        return Some(Refusal::observation_undated());
    };
    let age = u32::try_from(now_secs.saturating_sub(taken_secs)).unwrap_or(u32::MAX);
    (age > admission.age_secs_max).then(|| Refusal::observation_stale(age, admission.age_secs_max))
}

fn guest_refusals(safe: &SafePlan) -> Vec<Refusal> {
    let refused = safe.guests().filter_map(|(_, verdict)| match verdict {
        JudgedVerdict::Refused(refusals) => Some(refusals.iter().cloned()),
        JudgedVerdict::Converged { .. } | JudgedVerdict::Steps(_) => None,
    });
    refused.flatten().collect()
}

/// Who approved the plan and how, or what is missing.
fn check_approval(safe: &SafePlan, admission: &Admission, proposal: Digest) -> Result<(Box<str>, &'static str), Refusal> {
    let missing = |required: &'static str, guests: Vec<Vmid>| Err(Refusal::approval_missing(required, guests));
    let changed = ids_with_step(safe, |_| true);
    if changed.is_empty() {
        // Without steps there is nothing to approve.
        return Ok(("nobody".into(), "nothing to do"));
    }
    if admission.mode == ApprovalMode::Shared {
        return missing("the approval of another person", changed);
    }
    let to_sign = guests_to_sign(safe);
    if !to_sign.is_empty() && !matches!(admission.confirmation, Confirmation::Signed(_) | Confirmation::Declined { .. }) {
        return Err(Refusal::signature_missing(to_sign));
    }
    match &admission.confirmation {
        Confirmation::None => missing("a confirmation", changed),
        Confirmation::Declined { .. } => missing("a yes from the person who was asked", changed),
        Confirmation::Typed { by, names } => {
            let unnamed = guests_not_named(safe, names);
            if unnamed.is_empty() {
                Ok((by.clone(), "typed"))
            } else {
                missing("the typed name of each guest that goes down or is made", unnamed)
            }
        }
        Confirmation::Signed(approval) if approval.proposal() == proposal => Ok((approval.by().into(), "signed")),
        Confirmation::Signed(_) => missing("a signed approval of this proposal", changed),
        Confirmation::FullDigest { by, digest: given } => {
            if *given != proposal {
                return missing("the digest of this proposal", changed);
            }
            let more = ids_with_step(safe, |step| NeededApproval::of_step(step) > NeededApproval::Confirmation);
            if more.is_empty() { Ok((by.clone(), "digest")) } else { missing("a person at a terminal", more) }
        }
    }
}

/// The guests whose name must be typed and was not. Names are not unique, so each typed name counts for one guest.
fn guests_not_named(safe: &SafePlan, names: &[Box<str>]) -> Vec<Vmid> {
    let mut left: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let mut is_named = |guest: &DesiredGuest| {
        let at = safe.plan().name_of(guest).and_then(|name| left.iter().position(|typed| *typed == name));
        at.map(|at| left.swap_remove(at)).is_some()
    };
    guests_to_name(safe).filter(|guest| !is_named(guest)).map(|guest| guest.vmid).collect()
}

/// Whether a step needs a signed approval.
#[must_use]
pub fn needs_signature(safe: &SafePlan) -> bool {
    !guests_to_sign(safe).is_empty()
}

fn guests_to_sign(safe: &SafePlan) -> Vec<Vmid> {
    ids_with_step(safe, |step| NeededApproval::of_step(step) == NeededApproval::Signed)
}

/// The guests that are stopped, lose data, or are made because they are declared. The person who confirms the plan must type the name of
/// each. A new store does not know which guests were made before and are lost, so a person says that each of them is new.
pub fn guests_to_name(safe: &SafePlan) -> impl Iterator<Item = &DesiredGuest> {
    guests_with_step(safe, |step| step.impact() >= Impact::Stop || step.makes_declared_guest())
}

fn ids_with_step(safe: &SafePlan, is_meant: impl Fn(&Step) -> bool) -> Vec<Vmid> {
    guests_with_step(safe, is_meant).map(|guest| guest.vmid).collect()
}

/// The guests that have such a step.
fn guests_with_step(safe: &SafePlan, is_meant: impl Fn(&Step) -> bool) -> impl Iterator<Item = &DesiredGuest> {
    safe.guests().filter_map(move |(guest, verdict)| match verdict {
        JudgedVerdict::Steps(steps) if steps.iter().any(&is_meant) => Some(guest),
        _ => None,
    })
}

impl ApprovedPlan {
    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        self.safe.plan()
    }

    /// Each declared guest with its judged verdict: dependencies first (`after`), otherwise by id.
    pub fn guests(&self) -> impl Iterator<Item = (&DesiredGuest, JudgedVerdict<'_>)> {
        self.safe.guests()
    }

    /// The digest of its proposal, which is what was approved.
    #[must_use]
    pub fn proposal(&self) -> Digest {
        self.proposal
    }

    /// The digest of its body.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Who approved it.
    #[must_use]
    pub fn approver(&self) -> &str {
        &self.by
    }

    /// How it was approved.
    #[must_use]
    pub fn approval_method(&self) -> &'static str {
        self.how
    }

    /// What requested the operations: the desired state, or a request with its key. `None` if a request has no key.
    fn operation_source(&self, key: Option<&IdempotencyKey>) -> Option<OperationSource> {
        match self.plan().intent() {
            Intent::Desired(_) => Some(OperationSource::Convergent),
            intent @ Intent::Request(_) => Some(OperationSource::OneShot { key: key?.clone(), request: intent.digest().ok()? }),
        }
    }

    /// The steps as operations of a run, in plan order, each with the context that it is checked against. `id` returns the id of the
    /// operation with this index, since the core generates none; `key` is the idempotency key of a request. `None` if an id or the key is
    /// missing.
    #[must_use]
    pub fn into_operations(
        self,
        run: &RunId,
        id: impl Fn(usize) -> Option<OperationId>,
        key: Option<&IdempotencyKey>,
    ) -> Option<Vec<(Operation, CheckContext)>> {
        let source = self.operation_source(key)?;
        let plan = self.safe.plan();
        let rules = Arc::new(plan.rules().clone());
        let mut operations = Vec::new();
        for (guest, verdict) in self.safe.guests() {
            let JudgedVerdict::Steps(steps) = verdict else { continue };
            let target = OperationTarget::from_plan(plan, guest)?;
            let ends = steps.iter().rev().find_map(|step| step.change.resulting_state());
            for (position, step) in (0..).zip(steps) {
                let environment = plan.desired().environment().clone();
                let id = id(operations.len())?;
                let operation =
                    Operation::new(id, run.clone(), environment, target.clone(), step.clone(), position, self.digest, source.clone());
                let relies = dependency_checks(plan, guest, &step.change, ends);
                operations.push((operation, CheckContext::new(Arc::clone(&rules), guest).with_dependencies(relies)));
            }
        }
        Some(operations)
    }
}

/// The guests that a power step depends on through `after`: if its guest ends up running, its dependencies must run; if it ends up stopped,
/// its dependents must be stopped.
///
/// The first half of a restart has the dependencies of the second half; otherwise the guest could stay down. It does not require dependents
/// to be stopped, because they are not declared so.
fn dependency_checks(plan: &Plan, guest: &DesiredGuest, change: &Change, ends: Option<RunState>) -> Vec<DependencyCheck> {
    let (others, state): (Vec<Vmid>, RunState) = match change.resulting_state().and(ends) {
        Some(RunState::Running) => (guest.after.to_vec(), RunState::Running),
        Some(RunState::Stopped) => {
            let dependents = plan.guests().filter(|(other, _)| other.after.contains(&guest.vmid));
            (dependents.map(|(other, _)| other.vmid).collect(), RunState::Stopped)
        }
        None => return Vec::new(),
    };
    others.into_iter().filter_map(|vmid| find_address(plan, vmid)).map(|address| DependencyCheck { address, state }).collect()
}

/// Where a declared guest is, or where the plan makes it.
fn find_address(plan: &Plan, vmid: Vmid) -> Option<GuestAddress> {
    if let Some(row) = plan.observation().find(vmid) {
        return Some(GuestAddress { node: plan.observation().node_of(row)?.name.clone(), kind: row.kind, vmid });
    }
    let (_, verdict) = plan.guests().find(|(guest, _)| guest.vmid == vmid)?;
    let Verdict::Steps(steps) = verdict else { return None };
    steps.iter().find_map(|step| match &step.change {
        Change::Clone(clone) => Some(GuestAddress { node: clone.node.clone(), kind: clone.source.kind, vmid }),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
