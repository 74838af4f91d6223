//! The evidence for an admission: who requested it under which rules, what is proposed, the result of every gate, the confirmation, and the
//! inputs of all of that; and the check whether it is sufficient.
//!
//! [`check_admissibility`] trusts nothing: it hashes all bytes that it is given, plans, judges and admits again, and compares each gate
//! with the result. A refusal that the evidence supports is a decision. Evidence that contradicts itself is a fault with its own code.
//!
//! Must not depend on where the bytes are stored, or on execution.

use std::collections::BTreeSet;
use std::io;

use serde::{Deserialize, Serialize};

use super::{Decision, DecisionInputs, ParseConfig, ReproduceError, reproduce};
use crate::approve::{Admission, Admitted, ApprovalMode, Confirmation, RefusedGuestPolicy, admit};
use crate::artifact::{Digest, Provenance};
use crate::failure;
use crate::refusal::{self, Refusal, RefusalCode, RefusalReach};
use crate::safety::Judged;

/// Schema id of a bundle.
pub const BUNDLE_SCHEMA: &str = "converger.bundle/1";

/// The gate that refuses if a guest is refused and refused guests are not left out.
const GUESTS_GATE: &str = "no-guest-refused";
const PASSED: &str = "passed";
const REFUSED: &str = "refused";
/// Result of the approval gate if other gates refuse whatever is confirmed, so that nobody is asked.
const UNASKED: &str = "unasked";
/// Refusal codes that have no gate because they are decided before there is a plan: who operates an environment, which cluster its name is
/// bound to, and what a person may end.
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

/// The evidence for one admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionBundle {
    /// Who requested it, as named in the journal.
    pub by: Box<str>,
    /// The proposal and its inputs; the rules among them are those of the authority.
    pub decision: Decision,
    /// What held at that moment, with the confirmation.
    pub admission: Admission,
    /// The result of every gate, sorted by id.
    pub gates: Vec<AdmissionGate>,
}

/// The result of one gate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdmissionGate {
    /// Its id: the code that it refuses with.
    pub id: String,
    /// `passed` or `refused`; for the approval gate also `unasked`.
    pub result: String,
}

impl AdmissionGate {
    pub(super) fn is_refused(&self) -> bool {
        self.result == REFUSED
    }

    /// Whether it concerns the whole run, not its guests.
    pub(super) fn concerns_run(&self) -> bool {
        self.id != GUESTS_GATE
    }
}

/// Whether a bundle is sufficient evidence for an admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admissibility {
    /// The evidence is consistent, and no gate refuses.
    Admissible,
    /// The evidence is consistent, and these gates refuse.
    Inadmissible(Vec<String>),
    /// The evidence is inconsistent.
    Broken(EvidenceFault),
    /// Another planner made the plan, or other tables were in effect, so this program cannot decide.
    Undecidable(ReproduceError),
}

/// A fault in the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceFault {
    /// Its code.
    pub code: failure::FailureCode,
    /// What is wrong, and where.
    pub what: String,
}

impl Admissibility {
    /// Its name: `admitted`, `refused`, `untold`, or the code of the fault.
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
            ReproduceError::Missing { part, digest } => {
                broken(failure::FailureCode::EvidenceMissing, format!("the {part} {digest} is not kept"))
            }
            ReproduceError::Changed { part, named, found } => {
                broken(failure::FailureCode::IntegrityViolation, format!("the {part} that is kept as {named} has the digest {found}"))
            }
            ReproduceError::Unreadable { part, why } => {
                broken(failure::FailureCode::IntegrityViolation, format!("the {part} is not valid: {why}"))
            }
            ReproduceError::Breach { part, then, now, at } => broken(
                failure::FailureCode::DeterminismBreach,
                format!("the same inputs gave the {part} {then} then and {now} now; they differ at byte {at}"),
            ),
            other @ (ReproduceError::OtherPlanner { .. } | ReproduceError::OtherTables { .. }) => Self::Undecidable(other),
        }
    }
}

impl AdmissionBundle {
    /// The evidence for an admission that was refused for these reasons, or approved if there are none.
    #[must_use]
    pub fn new(by: &str, decision: Decision, admission: Admission, causes: &[Refusal]) -> Self {
        let gates = build_gates(&causes.iter().map(Refusal::code).collect());
        Self { by: by.into(), decision, admission, gates }
    }

    /// Its canonical form; the bundle is stored under the digest of it.
    ///
    /// # Errors
    /// The value cannot be written as JSON, which does not happen for a bundle.
    pub fn to_canonical_json(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(&BundleRow::from_bundle(self)).map_err(io::Error::from)
    }

    /// Parses a bundle strictly: `None` unless this program would write exactly these bytes.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bundle = serde_json::from_slice::<BundleRow>(bytes).ok()?.into_bundle()?;
        bundle.to_canonical_json().is_ok_and(|written| written == bytes).then_some(bundle)
    }
}

/// The result of every gate, given the refusal codes that were raised.
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

/// Checks whether a plan may be admitted on this evidence. `kept` returns the stored bytes of a digest; `understood` parses a
/// configuration.
#[must_use]
pub fn check_admissibility(bundle: &[u8], load_blob: impl Fn(Digest) -> Option<Vec<u8>>, understood: ParseConfig) -> Admissibility {
    let broken = |code, what: &str| Admissibility::Broken(EvidenceFault { code, what: what.into() });
    let Some(bundle) = AdmissionBundle::parse(bundle) else {
        return broken(failure::FailureCode::IntegrityViolation, "the bundle is not valid");
    };
    let reproduced = match reproduce(&bundle.decision, load_blob, understood) {
        Ok(reproduced) => reproduced,
        Err(found) => return found.into(),
    };
    let causes = match reproduced.decide() {
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
    // Nothing is applied without a mode, so a configuration without one is not that of an admission.
    if reproduced.mode() != Some(bundle.admission.mode) {
        return broken(failure::FailureCode::IntegrityViolation, "the configuration has no mode, or another one than the admission");
    }
    if bundle.admission.age_secs_max > Admission::AGE_SECS_MAX {
        return broken(failure::FailureCode::IntegrityViolation, "the bundle allows an older observation than any admission does");
    }
    if build_gates(&causes) != bundle.gates {
        return broken(failure::FailureCode::IntegrityViolation, "a gate is missing, or has another result than the evidence gives");
    }
    let refused: Vec<String> = bundle.gates.into_iter().filter(AdmissionGate::is_refused).map(|gate| gate.id).collect();
    if refused.is_empty() { Admissibility::Admissible } else { Admissibility::Inadmissible(refused) }
}

/// The stored form of a bundle; members are sorted by name.
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
    /// The digest that it covers, if it covers one.
    plan: Option<String>,
}

/// Who requested the run, and under which configuration.
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
        let one_of = |keyword: &str, yes: &str, no: &str| (keyword == yes || keyword == no).then_some(keyword == yes);
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
