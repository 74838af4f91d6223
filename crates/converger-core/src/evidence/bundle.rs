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
use crate::approve::{Admission, Admitted, ApprovalMode, Confirmation, RefusedGuestPolicy, SignedApproval, admit};
use crate::artifact::{Digest, Provenance, proposal_digest};
use crate::failure;
use crate::refusal::{self, Refusal, RefusalCode, RefusalReach};
use crate::safety::Judged;

/// Schema id of a bundle.
pub const BUNDLE_SCHEMA: &str = "converger.bundle/2";

/// The gate that refuses if a guest is refused and refused guests are not left out.
const GUESTS_GATE: &str = "no-guest-refused";
const PASSED: &str = "passed";
const REFUSED: &str = "refused";
/// Result of the approval gate if other gates refuse whatever is confirmed, so that nobody is asked.
const UNASKED: &str = "unasked";
/// Refusal codes that have no gate because they are decided before there is a plan: who operates an environment, which cluster its name is
/// bound to, what a person may end, and which store may be replaced.
const CODES_WITHOUT_GATE: [RefusalCode; 11] = [
    RefusalCode::EnvironmentBusy,
    RefusalCode::NotFrozen,
    RefusalCode::EnvironmentAlias,
    RefusalCode::EnvironmentRenamed,
    RefusalCode::ClusterMismatch,
    RefusalCode::ClusterUnidentified,
    RefusalCode::NameInUse,
    RefusalCode::EnvironmentUnrecorded,
    RefusalCode::OperationsUnsettled,
    RefusalCode::StoreUnreadable,
    RefusalCode::KeyReused,
];

/// The evidence for one admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionBundle {
    /// Who requested it, as named in the journal.
    pub by: Box<str>,
    /// The proposal and its inputs; the rules among them are those of the authority.
    pub decision: Decision,
    /// The digest of the proposal, which approvals bind.
    pub proposal: Digest,
    /// What held at that moment, with the confirmation.
    pub admission: Admission,
    /// Approvals besides that confirmation.
    pub further_approvals: Vec<Confirmation>,
    /// The result of every gate that the program had, sorted by id.
    pub gates: Vec<AdmissionGate>,
    /// The policy that was evaluated, if there was one.
    pub policy: Option<PolicyDecision>,
}

/// The result of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyDecision {
    /// What it decided.
    pub decision: String,
    /// The digest of the policy.
    pub digest: String,
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
    /// Another planner made the plan, or rows or gates that it used are not those of this program, which therefore cannot decide.
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
            other @ (ReproduceError::OtherPlanner { .. }
            | ReproduceError::OtherTables { .. }
            | ReproduceError::UnknownGate { .. }
            | ReproduceError::UnknownPolicy { .. }) => Self::Undecidable(other),
        }
    }
}

impl AdmissionBundle {
    /// The evidence for an admission that was refused for these reasons, or approved if there are none.
    #[must_use]
    pub fn new(by: &str, decision: Decision, proposal: Digest, admission: Admission, causes: &[Refusal]) -> Self {
        let gates = build_gates(&causes.iter().map(Refusal::code).collect());
        Self { by: by.into(), decision, proposal, admission, further_approvals: Vec::new(), gates, policy: None }
    }

    /// All approvals, in order, without a missing confirmation.
    pub fn approvals(&self) -> impl Iterator<Item = &Confirmation> {
        let all = std::iter::once(&self.admission.confirmation).chain(&self.further_approvals);
        all.filter(|confirmation| **confirmation != Confirmation::None)
    }

    /// Its canonical form; the bundle is stored under the digest of it.
    ///
    /// # Errors
    /// The value cannot be written as JSON, which does not happen for a bundle.
    pub fn to_canonical_json(&self) -> io::Result<Vec<u8>> {
        serde_json::to_vec(&BundleRow::from_bundle(self)).map_err(io::Error::from)
    }

    /// Parses a bundle strictly: this program would write exactly these bytes.
    ///
    /// # Errors
    /// Why it is not a bundle, as the end of a sentence about it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let invalid = || "is not valid".to_owned();
        check_bundle_schema(bytes)?;
        let bundle = serde_json::from_slice::<BundleRow>(bytes).ok().and_then(BundleRow::into_bundle).ok_or_else(invalid)?;
        let is_canonical = bundle.to_canonical_json().is_ok_and(|written| written == bytes);
        let is_sorted = bundle.gates.is_sorted_by(|one, other| one.id < other.id);
        if is_canonical && is_sorted { Ok(bundle) } else { Err(invalid()) }
    }
}

/// Says so if the bytes are a bundle of another format.
fn check_bundle_schema(bytes: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct SchemaRow {
        schema: String,
    }
    match serde_json::from_slice::<SchemaRow>(bytes) {
        Ok(SchemaRow { schema }) if schema.starts_with("converger.bundle/") && schema != BUNDLE_SCHEMA => {
            Err(format!("has the format `{}`, and this version reads only `{BUNDLE_SCHEMA}`", schema.escape_debug()))
        }
        _ => Ok(()),
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
    let bundle = match AdmissionBundle::parse(bundle) {
        Ok(bundle) => bundle,
        Err(why) => return broken(failure::FailureCode::IntegrityViolation, &format!("the bundle {why}")),
    };
    let reproduced = match reproduce(&bundle.decision, load_blob, understood) {
        Ok(reproduced) => reproduced,
        Err(found) => return found.into(),
    };
    let judged = reproduced.decide();
    if proposal_digest(judged.plan(), judged.judgement()).ok() != Some(bundle.proposal) {
        return broken(failure::FailureCode::IntegrityViolation, "the proposal in the bundle is not the one that the evidence gives");
    }
    let causes = match judged {
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
    match compare_gates(&build_gates(&causes), &bundle.gates) {
        Ok(()) => {}
        Err(GateMismatch::Unknown(gate)) => return ReproduceError::UnknownGate { gate }.into(),
        Err(GateMismatch::Differs(what)) => return broken(failure::FailureCode::IntegrityViolation, &what),
    }
    if let Some(PolicyDecision { digest, .. }) = bundle.policy {
        return ReproduceError::UnknownPolicy { digest }.into();
    }
    let refused: Vec<String> = bundle.gates.into_iter().filter(AdmissionGate::is_refused).map(|gate| gate.id).collect();
    if refused.is_empty() { Admissibility::Admissible } else { Admissibility::Inadmissible(refused) }
}

/// Why recorded gates do not agree with the evidence.
#[derive(Debug, PartialEq, Eq)]
enum GateMismatch {
    /// This program does not have the gate.
    Unknown(String),
    /// The evidence gives another result; a description.
    Differs(String),
}

/// Compares recorded gates with those that the evidence gives here. Only recorded gates have to agree: a gate that was added later was not
/// recorded, and must not refuse. A contradiction outweighs a gate that is unknown here.
fn compare_gates(given: &[AdmissionGate], recorded: &[AdmissionGate]) -> Result<(), GateMismatch> {
    let find = |gates: &[AdmissionGate], id: &str| gates.iter().position(|gate| gate.id == id);
    let mut unknown = None;
    for gate in recorded {
        match find(given, &gate.id).and_then(|at| given.get(at)) {
            None => unknown = unknown.or(Some(gate.id.clone())),
            Some(own) if own == gate => {}
            Some(own) => {
                let result = gate.result.escape_debug();
                let what = format!("gate `{}` is recorded as `{result}`, but the evidence gives `{}`", own.id, own.result);
                return Err(GateMismatch::Differs(what));
            }
        }
    }
    if let Some(gate) = given.iter().find(|gate| gate.is_refused() && find(recorded, &gate.id).is_none()) {
        return Err(GateMismatch::Differs(format!("gate `{}` refuses, but the bundle does not have it", gate.id)));
    }
    unknown.map_or(Ok(()), |gate| Err(GateMismatch::Unknown(gate)))
}

/// The stored form of a bundle; members are sorted by name.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BundleRow {
    approvals: Vec<ApprovalRow>,
    authority: AuthorityRow,
    circumstances: AdmissionCircumstancesRow,
    gates: Vec<AdmissionGate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyDecision>,
    proposal: BundleDecisionRow,
    schema: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalRow {
    by: String,
    how: String,
    names: Vec<String>,
    /// The digest that it covers, if it covers one.
    proposal: Option<String>,
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
struct BundleDecisionRow {
    catalogue: String,
    /// The digest of the proposal, which approvals bind.
    digest: String,
    intent: String,
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
const SIGNED: &str = "signed";

impl BundleRow {
    fn from_bundle(bundle: &AdmissionBundle) -> Self {
        let AdmissionBundle { by, decision: Decision { inputs, plan, judgement }, proposal, admission, gates, policy, .. } = bundle;
        let mode = if admission.mode == ApprovalMode::Solo { SOLO } else { SHARED };
        let provenance = if admission.provenance == Provenance::Live { LIVE } else { REPLAY };
        let refused_guests = if admission.refused == RefusedGuestPolicy::StopRun { STOP_ALL } else { LEFT_OUT };
        let Admission { age_secs_max, now_ms, .. } = *admission;
        Self {
            approvals: bundle.approvals().filter_map(ApprovalRow::from_confirmation).collect(),
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
            policy: policy.clone(),
            proposal: BundleDecisionRow {
                catalogue: inputs.catalogue.to_string(),
                digest: proposal.to_string(),
                intent: inputs.intent.to_string(),
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
        let Self { approvals, authority, circumstances, gates, policy, proposal, schema } = self;
        let digest = |text: &str| Digest::parse(text);
        let one_of = |keyword: &str, yes: &str, no: &str| (keyword == yes || keyword == no).then_some(keyword == yes);
        let is_solo = one_of(&authority.mode, SOLO, SHARED)?;
        let is_live = one_of(&circumstances.provenance, LIVE, REPLAY)?;
        let is_stopped = one_of(&circumstances.refused_guests, STOP_ALL, LEFT_OUT)?;
        let mut approvals = approvals.into_iter().map(ApprovalRow::into_confirmation);
        let confirmation = approvals.next().unwrap_or(Some(Confirmation::None))?;
        let further_approvals = approvals.collect::<Option<Vec<_>>>()?;
        let is_digest_valid = policy.as_ref().is_none_or(|policy| Digest::parse(&policy.digest).is_some());
        let inputs = DecisionInputs {
            program: proposal.program.into(),
            planner: proposal.planner,
            config: digest(&authority.config)?,
            intent: digest(&proposal.intent)?,
            observation: digest(&proposal.observation)?,
            rules: digest(&authority.rules)?,
            catalogue: digest(&proposal.catalogue)?,
        };
        let proposed = digest(&proposal.digest)?;
        let decision = Decision { inputs, plan: digest(&proposal.plan)?, judgement: digest(&proposal.judgement)? };
        let admission = Admission {
            mode: if is_solo { ApprovalMode::Solo } else { ApprovalMode::Shared },
            provenance: if is_live { Provenance::Live } else { Provenance::Replay },
            confirmation,
            refused: if is_stopped { RefusedGuestPolicy::StopRun } else { RefusedGuestPolicy::LeaveOut },
            now_ms: circumstances.now_ms,
            age_secs_max: circumstances.age_secs_max,
        };
        let by = authority.by.into();
        (schema == BUNDLE_SCHEMA && is_digest_valid).then_some(AdmissionBundle {
            by,
            decision,
            proposal: proposed,
            admission,
            further_approvals,
            gates,
            policy,
        })
    }
}

impl ApprovalRow {
    fn from_confirmation(confirmation: &Confirmation) -> Option<Self> {
        let row = |by: &str, how: &str, names: Vec<String>, proposal| Some(Self { by: by.into(), how: how.into(), names, proposal });
        match confirmation {
            Confirmation::None => None,
            Confirmation::Declined { by } => row(by, DECLINED, Vec::new(), None),
            Confirmation::Typed { by, names } => row(by, TYPED, names.iter().map(|name| name.to_string()).collect(), None),
            Confirmation::FullDigest { by, digest } => row(by, DIGEST, Vec::new(), Some(digest.to_string())),
            Confirmation::Signed(approval) => row(approval.by(), SIGNED, Vec::new(), Some(approval.proposal().to_string())),
        }
    }

    fn into_confirmation(self) -> Option<Confirmation> {
        let by = self.by.into();
        match (self.how.as_str(), self.proposal) {
            (DECLINED, None) if self.names.is_empty() => Some(Confirmation::Declined { by }),
            (TYPED, None) => Some(Confirmation::Typed { by, names: self.names.into_iter().map(Into::into).collect() }),
            (DIGEST, Some(proposal)) => Some(Confirmation::FullDigest { by, digest: Digest::parse(&proposal)? }),
            (SIGNED, Some(proposal)) if self.names.is_empty() => {
                Some(Confirmation::Signed(SignedApproval::from_record(&by, Digest::parse(&proposal)?)))
            }
            _ => None,
        }
    }
}
