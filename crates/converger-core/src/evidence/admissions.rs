//! Admissions as recorded by the entries of their runs, and whether the bundle of each one agrees with them.
//!
//! Must not decide an admission again; [`check_admissibility`] does. This module compares its result with the recorded one.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Admissibility, AdmissionBundle, AdmissionGate, Decision, DecisionInputs, LedgerEntry, LedgerFault, ParseConfig, ReproduceError,
    check_admissibility,
};
use crate::apply::{RunId, Slug};
use crate::approve::Confirmation;
use crate::artifact::{Digest, RecordedPlan};
use crate::failure::FailureCode;
use crate::guest::Vmid;

/// An admission with the evidence that the entries before it contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedAdmission {
    /// The index of its entry.
    pub index: u64,
    /// Its run.
    pub run: RunId,
    /// The digest of the bundle that was considered.
    pub bundle: Digest,
    /// The result.
    pub answer: Slug,
    /// The approvals before it, in order.
    pub approvals: Vec<Approval>,
    /// When.
    at_ms: u64,
    /// Who requested the run.
    by: Box<str>,
    /// The decision of the run, if it made one.
    decision: Option<Decision>,
    /// The plan of the admission.
    pub plan: Digest,
    /// The proposal that the run made, if an entry says so.
    pub proposal: Option<Digest>,
    /// Codes of refusals of the whole run.
    refusals: BTreeSet<Slug>,
    /// Codes of refusals of guests in its plan.
    guests: BTreeSet<(Vmid, Slug)>,
}

/// A plan and its judgement, by digest.
pub(super) type JudgedPlanKey = (Digest, Option<Digest>);

/// An approval of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// The proposal that the approval covers.
    pub proposal: Digest,
    /// Who.
    pub by: Box<str>,
    /// How: by typing, by giving the digest, or with a signature.
    pub how: Box<str>,
    /// The guest names that were typed.
    pub names: Box<[Box<str>]>,
}

impl Approval {
    /// The approval that the ledger has for this confirmation of a proposal.
    fn from_confirmation(confirmation: Confirmation, proposal: Digest) -> Option<Self> {
        match confirmation {
            // A person who declined approved nothing. The bundle has their name, and an entry has the refusal.
            Confirmation::None | Confirmation::Declined { .. } => None,
            Confirmation::Typed { by, names } => Some(Self { proposal, by, how: "typed".into(), names: names.into() }),
            Confirmation::FullDigest { by, digest } => Some(Self { proposal: digest, by, how: "digest".into(), names: Box::default() }),
            Confirmation::Signed(approval) => {
                let (by, proposal) = (approval.by().into(), approval.proposal());
                Some(Self { proposal, by, how: "signed".into(), names: Box::default() })
            }
        }
    }
}

/// The evidence of all active runs so far.
#[derive(Clone, Debug, Default)]
pub struct AdmissionTracker(BTreeMap<RunId, RunEvidence>);

#[derive(Clone, Debug)]
struct RunEvidence {
    by: Box<str>,
    inputs: DecisionInputs,
    plan_and_judgement: Option<(Digest, Digest)>,
    proposal: Option<Digest>,
    approvals: Vec<Approval>,
    refusals: BTreeSet<Slug>,
    guests: BTreeSet<(Vmid, Slug)>,
    is_admitted: bool,
}

impl AdmissionTracker {
    /// Adds an entry; returns an admission if it is one.
    pub fn apply_entry(&mut self, index: u64, entry: &LedgerEntry) -> Option<RecordedAdmission> {
        match entry {
            LedgerEntry::RunStarted { run, inputs } => {
                let (by, inputs) = (run.by.clone(), inputs.clone());
                let (approvals, refusals, guests) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
                self.0.insert(
                    run.id.clone(),
                    RunEvidence { by, inputs, plan_and_judgement: None, proposal: None, approvals, refusals, guests, is_admitted: false },
                );
            }
            LedgerEntry::PlanMade { run, plan, proposal, judgement, .. } => {
                let evidence = self.0.get_mut(run)?;
                (evidence.plan_and_judgement, evidence.proposal) = (Some((*plan, *judgement)), Some(*proposal));
            }
            LedgerEntry::Refused { run, code, guest: None, .. } => drop(self.0.get_mut(run)?.refusals.replace(code.clone())),
            LedgerEntry::Refused { run, code, guest: Some(guest), .. } => drop(self.0.get_mut(run)?.guests.replace((*guest, code.clone()))),
            LedgerEntry::Approved { run, proposal, by, how, names, .. } => {
                let approval = Approval { proposal: *proposal, by: by.clone(), how: how.as_str().into(), names: names.clone() };
                self.0.get_mut(run)?.approvals.push(approval);
            }
            LedgerEntry::Admitted { run, plan, bundle, answer, at_ms } => {
                let evidence = self.0.get_mut(run)?;
                evidence.is_admitted = answer.as_str() == Admissibility::Admissible.word();
                let RunEvidence { by, inputs, plan_and_judgement, proposal, approvals, refusals, guests, .. } = evidence.clone();
                let decision = plan_and_judgement.map(|(plan, judgement)| Decision { inputs, plan, judgement });
                let (run, bundle, answer, at_ms, plan) = (run.clone(), *bundle, answer.clone(), *at_ms, *plan);
                return Some(RecordedAdmission {
                    index,
                    run,
                    bundle,
                    answer,
                    approvals,
                    at_ms,
                    by,
                    decision,
                    plan,
                    proposal,
                    refusals,
                    guests,
                });
            }
            LedgerEntry::RunEnded { run, .. } => drop(self.0.remove(run)),
            _ => {}
        }
        None
    }

    /// Whether a run may apply its plan.
    #[must_use]
    pub fn is_admitted(&self, run: &RunId) -> bool {
        self.0.get(run).is_some_and(|evidence| evidence.is_admitted)
    }
}

impl RecordedAdmission {
    /// Checks that a bundle agrees with the entries of the run and with the recorded result.
    ///
    /// # Errors
    /// How it disagrees.
    pub fn check_bundle(&self, bytes: &[u8]) -> Result<(), LedgerFault> {
        let unlike = |what: &str| Err(self.fault(FailureCode::IntegrityViolation, what));
        match &self.decision {
            None => return unlike("no earlier entry says which plan the run made"),
            Some(recorded) if recorded.plan != self.plan => return unlike("it is for another plan than that of the run"),
            Some(_) => {}
        }
        let bundle = match AdmissionBundle::parse(bytes) {
            Ok(bundle) => bundle,
            Err(why) => return unlike(&format!("its bundle {why}")),
        };
        let approvals: Vec<Approval> =
            bundle.approvals().filter_map(|given| Approval::from_confirmation(given.clone(), bundle.proposal)).collect();
        if self.proposal != Some(bundle.proposal) {
            return unlike("its bundle is for another proposal than that of the run");
        }
        let AdmissionBundle { by, decision, admission, gates, .. } = bundle;
        if Some(&decision) != self.decision.as_ref() {
            return unlike("its bundle is for another decision");
        }
        if by != self.by {
            return unlike("its bundle names another requester than the run");
        }
        if admission.now_ms != self.at_ms {
            return unlike("the time in its bundle is not that of the entry");
        }
        if self.approvals != approvals {
            return unlike("the approvals in its bundle are not those before it in the ledger");
        }
        let refused: Vec<_> = gates.into_iter().filter(AdmissionGate::is_refused).collect();
        let [yes, no] = [Admissibility::Admissible.word(), Admissibility::Inadmissible(Vec::new()).word()];
        let expected = if refused.is_empty() { yes } else { no };
        // If evidence was broken or undecidable, the gates decided nothing.
        if [yes, no].contains(&self.answer.as_str()) && self.answer.as_str() != expected {
            return unlike(&format!("its gates give `{expected}`, but `{}` is recorded", self.answer.as_str()));
        }
        let of_run: BTreeSet<&str> = refused.iter().filter(|gate| gate.concerns_run()).map(|gate| gate.id.as_str()).collect();
        let recorded_codes: BTreeSet<&str> = self.refusals.iter().map(Slug::as_str).collect();
        if let Some(gate) = of_run.difference(&recorded_codes).next() {
            return unlike(&format!("gate `{gate}` refused it, but no earlier entry says so"));
        }
        // If evidence was broken or undecidable, no gate was evaluated.
        match recorded_codes.difference(&of_run).next().filter(|_| [yes, no].contains(&self.answer.as_str())) {
            Some(code) => unlike(&format!("an earlier entry refuses the run with `{code}`, but that gate did not refuse it")),
            None => Ok(()),
        }
    }

    /// The plan of the admission and the judgement of it, if an entry names one.
    pub(super) fn judged_plan(&self) -> JudgedPlanKey {
        (self.plan, self.decision.as_ref().map(|decision| decision.judgement))
    }

    /// Checks that the entries before it refuse the same guests with the same codes as the plan and its judgement.
    ///
    /// # Errors
    /// The first refusal that only one of them has.
    pub(super) fn check_guest_refusals(&self, plan: &RecordedPlan) -> Result<(), LedgerFault> {
        let recorded_refusals: BTreeSet<(u64, &str)> =
            self.guests.iter().map(|(guest, code)| (guest.get().into(), code.as_str())).collect();
        let (planned, unlike) = (plan.refusals(), |what: String| Err(self.fault(FailureCode::IntegrityViolation, &what)));
        if let Some((guest, code)) = planned.difference(&recorded_refusals).next() {
            return unlike(format!("its plan refuses guest {guest} with `{code}`, but no earlier entry says so"));
        }
        match recorded_refusals.difference(&planned).next() {
            Some((guest, code)) => unlike(format!("an earlier entry refuses guest {guest} with `{code}`, but its plan does not")),
            None => Ok(()),
        }
    }

    /// Checks the bundle, and that the evidence gives the recorded result again. `load_blob` returns the stored bytes of a digest;
    /// `understood` parses a configuration.
    ///
    /// # Errors
    /// What differs from the record.
    pub fn recheck(&self, bytes: &[u8], load_blob: impl Fn(Digest) -> Option<Vec<u8>>, understood: ParseConfig) -> Result<(), LedgerFault> {
        self.check_bundle(bytes)?;
        match check_admissibility(bytes, load_blob, understood) {
            found if found.word() == self.answer.as_str() => Ok(()),
            Admissibility::Broken(found) => Err(self.fault(found.code, &found.what)),
            Admissibility::Undecidable(ReproduceError::UnknownGate { gate }) => {
                let gate = gate.escape_debug();
                let what =
                    format!("its bundle has the gate `{gate}`, which this version does not have, so it cannot be decided again here");
                Err(self.fault(FailureCode::OtherPlanner, &what))
            }
            Admissibility::Undecidable(ReproduceError::UnknownPolicy { digest }) => {
                let what = format!("it depended on the policy {digest}, and this version evaluates no policy");
                Err(self.fault(FailureCode::OtherPlanner, &what))
            }
            found => {
                let what = format!("the evidence gives `{}`, but `{}` is recorded", found.word(), self.answer.as_str());
                Err(self.fault(FailureCode::DeterminismBreach, &what))
            }
        }
    }

    /// The fault if the bundle is not stored.
    #[must_use]
    pub fn missing_bundle_fault(&self) -> LedgerFault {
        self.fault(FailureCode::EvidenceMissing, &format!("the bundle {} that it refers to is not stored", self.bundle))
    }

    fn fault(&self, code: FailureCode, what: &str) -> LedgerFault {
        let Self { index, run, .. } = self;
        LedgerFault { code, index: *index, what: format!("entry {index}, the admission of the run {}: {what}", run.as_str()) }
    }
}
