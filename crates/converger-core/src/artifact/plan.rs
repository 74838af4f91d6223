//! Writes plan.json: the body, which an approval covers, and around it what may change without changing the plan.

use std::io::{self, BufWriter, Write};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use super::{BUFFER_BYTES, DecisionTables, Digest, HASH_BUFFER_BYTES, OWN_TABLES, TeeHashWriter, UsedRows, write_json};
use crate::action::{Change, ChangeParams, FieldChanges, InverseChange};
use crate::apply::{GuestGuards, OperationTarget};
use crate::approve::NeededApproval;
use crate::audit::{PlanSummary, summarize_plan};
use crate::desired::DesiredGuest;
use crate::guest::{EnvironmentName, Vmid};
use crate::intent::ActionRequest;
use crate::observe::{Note, ObservedGuest, Reading};
use crate::plan::{PLANNER_VERSION, Plan, Step, Verdict};
use crate::policy::{Circumstances, Limits};
use crate::refusal::Refusal;
use crate::safety::{GuestJudgement, Judged, JudgedVerdict, Judgement};

/// Schema id of plan.json.
pub const SCHEMA: &str = "converger.plan/1";

/// Where the observation came from. Not part of the body: a plan does not depend on it (G7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// The environment itself, just now.
    Live,
    /// A recorded observation.
    Replay,
}

/// The body comes first in name order, so its digest is known when the rest is written.
const BODY_PREFIX: &str = "{\"body\":";

/// Writes plan.json as one line of canonical JSON and returns the digest of its body.
///
/// # Errors
/// An error of the writer.
pub fn write_plan(out: &mut impl Write, judged: &Judged, provenance: Provenance) -> io::Result<Digest> {
    let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, out);
    buffered.write_all(BODY_PREFIX.as_bytes())?;
    let digest = write_body(&mut buffered, judged.plan())?;
    let (judgement, notes) = (JudgementRow::from_judgement(judged.judgement())?, &*judged.plan().observation().notes);
    let proposal = super::proposal_digest(judged.plan(), judged.judgement())?;
    let needs = needed_approvals(judged);
    let rest = PlanTrailerRow { digest, judgement, needs, notes, proposal, provenance, schema: SCHEMA, summary: summarize_plan(judged) };
    let rest = serde_json::to_vec(&rest).map_err(io::Error::from)?;
    buffered.write_all(b",")?;
    buffered.write_all(rest.strip_prefix(b"{").unwrap_or(&rest))?;
    buffered.write_all(b"\n")?;
    buffered.flush()?;
    Ok(digest)
}

/// Whether plan.json contains the body with this digest, byte for byte.
#[must_use]
pub fn has_body_digest(plan_json: &str, digest: &Digest) -> bool {
    let rest = format!(",\"digest\":\"{digest}\",\"judgement\":");
    let body = plan_json.strip_prefix(BODY_PREFIX).and_then(|text| text.split_once(&rest));
    body.is_some_and(|(body, _)| Digest::of_bytes(body.as_bytes()) == *digest)
}

/// Writes the body alone and returns its digest.
///
/// # Errors
/// An error of the writer.
pub fn write_body(out: &mut impl Write, plan: &Plan) -> io::Result<Digest> {
    write_body_with(out, plan, OWN_TABLES)
}

/// Writes the body with the rows of these tables and returns its digest.
pub(crate) fn write_body_with(out: &mut impl Write, plan: &Plan, tables: DecisionTables<'_>) -> io::Result<Digest> {
    let mut tee = BufWriter::with_capacity(HASH_BUFFER_BYTES, TeeHashWriter { hash: Sha256::new(), out });
    write_json(&mut tee, &PlanBodyRow::from_plan(plan, tables)?)?;
    let tee = tee.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(Digest(tee.hash.finalize().into()))
}

/// Writes the judgement of a plan and returns its digest, which is part of plan.json.
///
/// # Errors
/// An error of the writer.
pub fn write_judgement(out: &mut impl Write, judgement: &Judgement) -> io::Result<Digest> {
    let (circumstances, limits, refusals) = (judgement.circumstances(), judgement.limits(), judgement.refusals());
    let mut tee = BufWriter::with_capacity(HASH_BUFFER_BYTES, TeeHashWriter { hash: Sha256::new(), out });
    write_json(&mut tee, &JudgementContent { circumstances, guests: judgement.guests(), limits, refusals })?;
    let tee = tee.into_inner().map_err(io::IntoInnerError::into_error)?;
    Ok(Digest(tee.hash.finalize().into()))
}

/// Everything but the body, in name order.
#[derive(Serialize)]
struct PlanTrailerRow<'p> {
    digest: Digest,
    judgement: JudgementRow<'p>,
    /// What must be given before each step is applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    needs: Vec<NeededApprovalRow>,
    /// Notes about the observation.
    #[serde(skip_serializing_if = "<[Note]>::is_empty")]
    notes: &'p [Note],
    proposal: Digest,
    provenance: Provenance,
    schema: &'static str,
    summary: PlanSummary,
}

/// What must be given before one step is applied.
#[derive(Serialize)]
struct NeededApprovalRow {
    approval: &'static str,
    change: &'static str,
    vmid: Vmid,
}

fn needed_approvals(judged: &Judged) -> Vec<NeededApprovalRow> {
    let steps = judged.guests().filter_map(|(guest, verdict)| match verdict {
        JudgedVerdict::Steps(steps) => Some(steps.iter().map(|step| (guest.vmid, step))),
        JudgedVerdict::Converged { .. } | JudgedVerdict::Refused(_) => None,
    });
    let row = |(vmid, step): (Vmid, &Step)| NeededApprovalRow {
        approval: NeededApproval::of_step(step).word(),
        change: step.change.word(),
        vmid,
    };
    steps.flatten().map(row).collect()
}

#[derive(Serialize)]
struct JudgementContent<'p> {
    circumstances: &'p Circumstances,
    #[serde(skip_serializing_if = "<[GuestJudgement]>::is_empty")]
    guests: &'p [GuestJudgement],
    limits: &'p Limits,
    refusals: &'p [Refusal],
}

#[derive(Serialize)]
struct JudgementRow<'p> {
    circumstances: &'p Circumstances,
    digest: Digest,
    #[serde(skip_serializing_if = "<[GuestJudgement]>::is_empty")]
    guests: &'p [GuestJudgement],
    limits: &'p Limits,
    refusals: &'p [Refusal],
}

impl<'p> JudgementRow<'p> {
    fn from_judgement(judgement: &'p Judgement) -> io::Result<Self> {
        let (circumstances, limits, refusals) = (judgement.circumstances(), judgement.limits(), judgement.refusals());
        let digest = write_judgement(&mut io::sink(), judgement)?;
        Ok(Self { circumstances, digest, guests: judgement.guests(), limits, refusals })
    }
}

/// The body, in name order.
#[derive(Serialize)]
struct PlanBodyRow<'p> {
    catalogue_digest: Digest,
    environment: &'p EnvironmentName,
    guests: PlanGuestRows<'p>,
    intent: IntentRow<'p>,
    observation_digest: Digest,
    planner: u32,
    refusals: &'p [Refusal],
    rules_digest: Digest,
}

impl<'p> PlanBodyRow<'p> {
    fn from_plan(plan: &'p Plan, tables: DecisionTables<'_>) -> io::Result<Self> {
        let used = UsedRows::of_plan(plan, tables);
        Ok(Self {
            catalogue_digest: super::catalogue_digest(&used.catalogue)?,
            environment: plan.intent().environment(),
            guests: PlanGuestRows(plan),
            intent: IntentRow { digest: plan.intent().digest()?, kind: plan.intent().word(), request: plan.intent().request() },
            observation_digest: super::observation_digest(plan.observation())?,
            planner: PLANNER_VERSION,
            refusals: plan.refusals(),
            rules_digest: super::rules_digest(plan.rules(), &used.fields)?,
        })
    }
}

/// What was asked for: a desired state by digest, or the whole request.
#[derive(Serialize)]
struct IntentRow<'p> {
    digest: Digest,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<&'p ActionRequest>,
}

struct PlanGuestRows<'p>(&'p Plan);

impl Serialize for PlanGuestRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.guests().map(|(guest, verdict)| PlanGuestRow { plan: self.0, guest, verdict }))
    }
}

struct PlanGuestRow<'p> {
    plan: &'p Plan,
    guest: &'p DesiredGuest,
    verdict: &'p Verdict,
}

impl Serialize for PlanGuestRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", &self.guest.kind)?;
        if let Some(name) = self.plan.name_of(self.guest) {
            map.serialize_entry("name", name)?;
        }
        match self.verdict {
            Verdict::Converged { pending_restart } => {
                if *pending_restart {
                    map.serialize_entry("pending_restart", &true)?;
                }
                map.serialize_entry("verdict", "converged")?;
            }
            Verdict::Steps(steps) => {
                if let Some(row) = self.plan.observation().find(self.guest.vmid) {
                    map.serialize_entry("precondition", &GuestPreconditionRow(row))?;
                } else if let Some(target) = OperationTarget::from_plan(self.plan, self.guest) {
                    // A guest that is about to be made has the guards of a new guest.
                    map.serialize_entry("precondition", &TargetRow(&target))?;
                }
                map.serialize_entry("steps", &PlanStepRows(steps))?;
                map.serialize_entry("verdict", "steps")?;
            }
            Verdict::Refused(refusals) => {
                map.serialize_entry("refusals", refusals)?;
                map.serialize_entry("verdict", "refused")?;
            }
        }
        map.serialize_entry("vmid", &self.guest.vmid)?;
        map.end()
    }
}

/// What must still hold before any step of the guest: its identity and its guards.
struct GuestPreconditionRow<'p>(&'p ObservedGuest);

impl Serialize for GuestPreconditionRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ha", &row.ha.as_ref().into_option())?;
        if let Reading::Read(identity) = &row.identity {
            map.serialize_entry("identity", identity)?;
        }
        map.serialize_entry("lock", &row.lock.as_ref().into_option())?;
        map.serialize_entry("name", &row.name)?;
        map.serialize_entry("protection", &row.protection.as_ref().into_option())?;
        map.serialize_entry("tags", &row.tags.as_ref().into_option())?;
        map.serialize_entry("template", &row.template.as_ref().into_option())?;
        map.end()
    }
}

/// The target of an operation in the form of the plan body, as canonical JSON. All of it was read; otherwise the guest has no step (G1).
pub(super) fn target_text(target: &OperationTarget) -> serde_json::Result<String> {
    serde_json::to_string(&TargetRow(target))
}

struct TargetRow<'p>(&'p OperationTarget);

impl Serialize for TargetRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let OperationTarget { name, identity, guards: GuestGuards { ha, lock, protection, tags, template }, .. } = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ha", ha)?;
        if let Some(identity) = identity {
            map.serialize_entry("identity", identity)?;
        }
        map.serialize_entry("lock", lock)?;
        map.serialize_entry("name", name)?;
        map.serialize_entry("protection", protection)?;
        map.serialize_entry("tags", tags)?;
        map.serialize_entry("template", template)?;
        map.end()
    }
}

/// Steps as a proposal has them: without the reason sentence.
pub(super) struct ProposedSteps<'p>(pub(super) &'p [Step]);

impl Serialize for ProposedSteps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|step| PlanStepRow { step, why: ReasonText::Omitted }))
    }
}

struct PlanStepRows<'p>(&'p [Step]);

impl Serialize for PlanStepRows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(|step| PlanStepRow { step, why: ReasonText::Included }))
    }
}

struct PlanStepRow<'p> {
    step: &'p Step,
    why: ReasonText,
}

/// Whether a step includes its reason as a sentence.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReasonText {
    Included,
    Omitted,
}

/// A step in the form of the plan body, as canonical JSON, without the reason sentence. That sentence is for people; an operation stores
/// the reason as a word.
pub(super) fn step_text(step: &Step) -> serde_json::Result<String> {
    serde_json::to_string(&PlanStepRow { step, why: ReasonText::Omitted })
}

#[derive(Serialize)]
struct StepPreconditionRow {
    status: &'static str,
}

impl Serialize for PlanStepRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { step, why } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("change", step.change.word())?;
        map.serialize_entry("class", &step.class())?;
        if let Change::ConfigSet(fields) = &step.change {
            map.serialize_entry("fields", &FieldChanges(fields))?;
        }
        map.serialize_entry("impact", &step.impact())?;
        if let Some(params) = ChangeParams::of(&step.change) {
            map.serialize_entry("params", &params)?;
        }
        map.serialize_entry("precondition", &StepPreconditionRow { status: step.from.word() })?;
        if *why == ReasonText::Included {
            map.serialize_entry("reason", &step.reason_text())?;
        }
        map.serialize_entry("risk", &step.risk())?;
        if let Change::Shutdown { timeout_secs } | Change::Reboot { timeout_secs } = &step.change {
            map.serialize_entry("timeout_secs", timeout_secs)?;
        }
        map.serialize_entry("undo", &InverseChange(&step.change))?;
        if !step.wait.is_empty() {
            map.serialize_entry("wait", &step.wait)?;
        }
        map.end()
    }
}
