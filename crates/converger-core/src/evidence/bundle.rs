//! The evidence that an apply is admitted on: who asks and under which rules, what is proposed, every gate with its result, what was said to it,
//! and what all of that rests on; and the question whether it is enough.
//!
//! [`check_admissibility`] believes nothing: it hashes every byte that it is given, plans, judges and admits once more, and compares each gate with what came of
//! that. A "no" that the evidence carries is a decision; evidence that does not hold together is something else, and has a code of its own.
//!
//! What never enters: where the bytes are kept, and carrying anything out.

use std::collections::BTreeSet;
use std::io;

use serde::{Deserialize, Serialize};

use super::{Decision, DecisionInputs, ParseConfig, ReproduceError, reproduce};
use crate::approve::{Admission, Admitted, ApprovalMode, Confirmation, RefusedGuestPolicy, admit};
use crate::artifact::{Digest, Provenance};
use crate::failure;
use crate::refusal::{self, Refusal, RefusalCode, RefusalReach};
use crate::safety::Judged;

/// The schema id of a bundle.
pub const BUNDLE_SCHEMA: &str = "converger.bundle/1";

/// The gate that no guest is refused, unless those are to be left out.
const GUESTS_GATE: &str = "no-guest-refused";
const PASSED: &str = "passed";
const REFUSED: &str = "refused";
/// Of the approval, where something stands against the plan whatever is said: nobody is asked then.
const UNASKED: &str = "unasked";
/// Codes that no plan is held against: who drives an environment, which cluster its name stands for, and what a person may end. They are decided
/// before there is a plan.
const CODES_WITHOUT_GATE: [RefusalCode; 8] = [
    RefusalCode::EnvironmentBusy,
    RefusalCode::NotFrozen,
    RefusalCode::EnvironmentAlias,
    RefusalCode::EnvironmentRenamed,
    RefusalCode::ClusterMismatch,
    RefusalCode::ClusterUnidentified,
    RefusalCode::NameInUse,
    RefusalCode::EnvironmentUnrecorded,
];

/// What an admission weighs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionBundle {
    /// Who asks, as the journal names them.
    pub by: Box<str>,
    /// What was proposed, and what it rests on; the rules among it are those of the authority.
    pub decision: Decision,
    /// What held at that moment, with what was said.
    pub admission: Admission,
    /// Every gate with its result, in the order of their ids.
    pub gates: Vec<AdmissionGate>,
}

/// A gate that was passed or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmissionGate {
    /// Its id: the code that it refuses with.
    pub id: String,
    /// `passed` or `refused`; of the approval also `unasked`.
    pub result: String,
}

impl AdmissionGate {
    pub(super) fn is_refused(&self) -> bool {
        self.result == REFUSED
    }

    /// Whether it is about the whole run, and not about its guests.
    pub(super) fn concerns_run(&self) -> bool {
        self.id != GUESTS_GATE
    }
}

/// Whether a bundle is enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admissibility {
    /// Everything was found as it says, and nothing stands against it.
    Admissible,
    /// Everything was found as it says, and these gates say no.
    Inadmissible(Vec<String>),
    /// The evidence does not hold together.
    Broken(EvidenceFault),
    /// Another planner made it, or other tables were in force: this program cannot tell.
    Undecidable(ReproduceError),
}

/// What of the evidence is broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceFault {
    /// Its code.
    pub code: failure::FailureCode,
    /// What and where.
    pub what: String,
}

impl Admissibility {
    /// The word for it: `admitted`, `refused`, `untold`, or the code of what is broken.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Admissible => "admitted",
            Self::Inadmissible(_) => "refused",
            Self::Broken(broken) => broken.code.word(),
            Self::Undecidable(_) => "untold",
        }
    }
}

impl From<ReproduceError> for Admissibility {
    fn from(found: ReproduceError) -> Self {
        let broken = |code, what| Self::Broken(EvidenceFault { code, what });
        match found {
            ReproduceError::Missing { part: piece, digest } => {
                broken(failure::FailureCode::EvidenceMissing, format!("the {piece} {digest} is not kept"))
            }
            ReproduceError::Changed { part: piece, named, found } => {
                broken(failure::FailureCode::IntegrityViolation, format!("the {piece} that is kept as {named} has the digest {found}"))
            }
            ReproduceError::Unreadable { part: piece, why } => {
                broken(failure::FailureCode::IntegrityViolation, format!("the {piece} is none that this program writes: {why}"))
            }
            ReproduceError::Breach { part: piece, then, now, at } => broken(
                failure::FailureCode::DeterminismBreach,
                format!("the same inputs gave the {piece} {then} then and {now} now, from byte {at} on"),
            ),
            other @ (ReproduceError::OtherPlanner { .. } | ReproduceError::OtherTables { .. }) => Self::Undecidable(other),
        }
    }
}

impl AdmissionBundle {
    /// The evidence of an admission that found these causes against it; none: it was approved.
    #[must_use]
    pub fn new(by: &str, decision: Decision, admission: Admission, causes: &[Refusal]) -> Self {
        let gates = build_gates(&causes.iter().map(Refusal::code).collect());
        Self { by: by.into(), decision, admission, gates }
    }

    /// Its canonical form, under whose digest it is kept.
    ///
    /// # Errors
    /// A value that cannot be written as JSON; none of ours is one.
    pub fn to_canonical_json(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(&BundleRow::from_bundle(self)).map_err(io::Error::from)
    }

    /// Reads one strictly: what is not byte for byte as this program writes it is none.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bundle = serde_json::from_slice::<BundleRow>(bytes).ok()?.into_bundle()?;
        bundle.to_canonical_json().is_ok_and(|written| written == bytes).then_some(bundle)
    }
}

/// Every gate, by the codes that were raised.
fn build_gates(raised: &BTreeSet<RefusalCode>) -> Vec<AdmissionGate> {
    let result = |is_raised: bool| if is_raised { REFUSED } else { PASSED };
    let of_run = refusal::TABLE.iter().filter(|entry| entry.reach == RefusalReach::Run && !CODES_WITHOUT_GATE.contains(&entry.code));
    let gate = |entry: &refusal::RefusalEntry| {
        let is_unasked = entry.code == RefusalCode::ApprovalMissing && !raised.is_empty() && !raised.contains(&entry.code);
        AdmissionGate { id: entry.word.into(), result: if is_unasked { UNASKED } else { result(raised.contains(&entry.code)) }.into() }
    };
    let mut gates: Vec<AdmissionGate> = of_run.map(gate).collect();
    let of_guests = raised.iter().any(|code| code.entry().reach != RefusalReach::Run);
    gates.push(AdmissionGate { id: GUESTS_GATE.into(), result: result(of_guests).into() });
    gates.sort();
    gates
}

/// Whether an apply may be admitted on this evidence. `kept` gives the bytes under a digest, where they are kept; `understood` says what a
/// configuration put in force.
#[must_use]
pub fn check_admissibility(bundle: &[u8], kept: impl Fn(Digest) -> Option<Vec<u8>>, understood: ParseConfig) -> Admissibility {
    let broken = |code, what: &str| Admissibility::Broken(EvidenceFault { code, what: what.into() });
    let Some(bundle) = AdmissionBundle::parse(bundle) else {
        return broken(failure::FailureCode::IntegrityViolation, "the bundle is none that this program writes");
    };
    let recalled = match reproduce(&bundle.decision, kept, understood) {
        Ok(recalled) => recalled,
        Err(found) => return found.into(),
    };
    let causes = match recalled.decide() {
        Judged::Refused(refused) => {
            let judged = Judged::Refused(refused);
            judged.judgement().refusals().iter().chain(judged.plan().refusals()).map(Refusal::code).collect()
        }
        Judged::Safe(safe) => match admit(safe, &bundle.admission) {
            Ok(Admitted::Approved(_)) => BTreeSet::new(),
            Ok(Admitted::Refused(refusals)) => refusals.iter().map(Refusal::code).collect(),
            Err(_) => return broken(failure::FailureCode::IntegrityViolation, "the plan cannot be written"),
        },
    };
    // Without a mode nothing is carried out: a configuration that says none is not the one that an admission was weighed under.
    if recalled.mode() != Some(bundle.admission.mode) {
        return broken(
            failure::FailureCode::IntegrityViolation,
            "the configuration has another mode than the admission was weighed in, or none",
        );
    }
    if bundle.admission.age_secs_max > Admission::AGE_SECS_MAX {
        return broken(failure::FailureCode::IntegrityViolation, "a reading may have been older than any admission allows");
    }
    if build_gates(&causes) != bundle.gates {
        return broken(failure::FailureCode::IntegrityViolation, "a gate has another result than the evidence gives, or is missing");
    }
    let refused: Vec<String> = bundle.gates.into_iter().filter(AdmissionGate::is_refused).map(|gate| gate.id).collect();
    if refused.is_empty() { Admissibility::Admissible } else { Admissibility::Inadmissible(refused) }
}

/// The form in which a bundle is kept: members in the order of their names.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BundleRow {
    approvals: Vec<ApprovalRow>,
    authority: AuthorityRow,
    circumstances: AdmissionCircumstancesRow,
    gates: Vec<AdmissionGate>,
    proposal: ProposalRow,
    schema: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalRow {
    by: String,
    how: String,
    names: Vec<String>,
    /// What it binds, where it binds something.
    plan: Option<String>,
}

/// Who asks, and under what.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorityRow {
    by: String,
    config: String,
    mode: String,
    rules: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AdmissionCircumstancesRow {
    age_secs_max: u32,
    now_ms: u64,
    provenance: String,
    refused_guests: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProposalRow {
    catalogue: String,
    desired: String,
    judgement: String,
    observation: String,
    plan: String,
    planner: u32,
    program: String,
}

const SOLO: &str = "solo";
const SHARED: &str = "shared";
const LIVE: &str = "live";
const REPLAY: &str = "replay";
const STOP_ALL: &str = "stop-all";
const LEFT_OUT: &str = "left-out";
const TYPED: &str = "typed";
const DIGEST: &str = "digest";
const DECLINED: &str = "declined";

impl BundleRow {
    fn from_bundle(bundle: &AdmissionBundle) -> Self {
        let AdmissionBundle { by, decision: Decision { inputs, plan, judgement }, admission, gates } = bundle;
        let approval = match &admission.confirmation {
            Confirmation::None => None,
            Confirmation::Declined { by } => Some(ApprovalRow { by: by.to_string(), how: DECLINED.into(), names: Vec::new(), plan: None }),
            Confirmation::Typed { by, names } => {
                let names = names.iter().map(|name| name.to_string()).collect();
                Some(ApprovalRow { by: by.to_string(), how: TYPED.into(), names, plan: None })
            }
            Confirmation::FullDigest { by, digest } => {
                Some(ApprovalRow { by: by.to_string(), how: DIGEST.into(), names: Vec::new(), plan: Some(digest.to_string()) })
            }
        };
        let mode = if admission.mode == ApprovalMode::Solo { SOLO } else { SHARED };
        let provenance = if admission.provenance == Provenance::Live { LIVE } else { REPLAY };
        let refused_guests = if admission.refused == RefusedGuestPolicy::StopRun { STOP_ALL } else { LEFT_OUT };
        let Admission { age_secs_max, now_ms, .. } = *admission;
        Self {
            approvals: approval.into_iter().collect(),
            authority: AuthorityRow {
                by: by.to_string(),
                config: inputs.config.to_string(),
                mode: mode.into(),
                rules: inputs.rules.to_string(),
            },
            circumstances: AdmissionCircumstancesRow {
                age_secs_max,
                now_ms,
                provenance: provenance.into(),
                refused_guests: refused_guests.into(),
            },
            gates: gates.clone(),
            proposal: ProposalRow {
                catalogue: inputs.catalogue.to_string(),
                desired: inputs.desired.to_string(),
                judgement: judgement.to_string(),
                observation: inputs.observation.to_string(),
                plan: plan.to_string(),
                planner: inputs.planner,
                program: inputs.program.to_string(),
            },
            schema: BUNDLE_SCHEMA.into(),
        }
    }

    fn into_bundle(self) -> Option<AdmissionBundle> {
        let Self { mut approvals, authority, circumstances, gates, proposal, schema } = self;
        let digest = |text: &str| Digest::parse(text);
        let one_of = |word: &str, yes: &str, no: &str| (word == yes || word == no).then_some(word == yes);
        let is_solo = one_of(&authority.mode, SOLO, SHARED)?;
        let is_live = one_of(&circumstances.provenance, LIVE, REPLAY)?;
        let is_stopped = one_of(&circumstances.refused_guests, STOP_ALL, LEFT_OUT)?;
        let confirmation = match (approvals.pop(), approvals.is_empty()) {
            (None, _) => Confirmation::None,
            (Some(approval), true) => approval.into_confirmation()?,
            (Some(_), false) => return None,
        };
        let inputs = DecisionInputs {
            program: proposal.program.into(),
            planner: proposal.planner,
            config: digest(&authority.config)?,
            desired: digest(&proposal.desired)?,
            observation: digest(&proposal.observation)?,
            rules: digest(&authority.rules)?,
            catalogue: digest(&proposal.catalogue)?,
        };
        let decision = Decision { inputs, plan: digest(&proposal.plan)?, judgement: digest(&proposal.judgement)? };
        let admission = Admission {
            mode: if is_solo { ApprovalMode::Solo } else { ApprovalMode::Shared },
            provenance: if is_live { Provenance::Live } else { Provenance::Replay },
            confirmation,
            refused: if is_stopped { RefusedGuestPolicy::StopRun } else { RefusedGuestPolicy::LeaveOut },
            now_ms: circumstances.now_ms,
            age_secs_max: circumstances.age_secs_max,
        };
        (schema == BUNDLE_SCHEMA).then(|| AdmissionBundle { by: authority.by.into(), decision, admission, gates })
    }
}

impl ApprovalRow {
    fn into_confirmation(self) -> Option<Confirmation> {
        let by = self.by.into();
        match (self.how.as_str(), self.plan) {
            (DECLINED, None) if self.names.is_empty() => Some(Confirmation::Declined { by }),
            (TYPED, None) => Some(Confirmation::Typed { by, names: self.names.into_iter().map(Into::into).collect() }),
            (DIGEST, Some(plan)) => Some(Confirmation::FullDigest { by, digest: Digest::parse(&plan)? }),
            _ => None,
        }
    }
}
