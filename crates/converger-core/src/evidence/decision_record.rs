//! The inputs and results of a decision in the form that is stored beside the ledger: bytes that lead to the same decision again, each
//! referenced by an entry through its digest.
//!
//! Must not contain secrets. A configuration only names where secrets are; the caller has removed everything beyond that.

use std::io;

use serde::Serialize;

use super::DecisionInputs;
use crate::artifact::{DecisionTables, Digest, OWN_TABLES, UsedRows, proposal_digest, write_body_with, write_judgement, write_observation};
use crate::normalize::FieldRule;
use crate::plan::PLANNER_VERSION;
use crate::policy::{MachineIdentity, Rules};
use crate::safety::Judged;

/// A decision with its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// The digests of its inputs.
    pub inputs: DecisionInputs,
    /// The digest of the plan body. Approvals bind the digest of the proposal.
    pub plan: Digest,
    /// The digest of the proposal.
    pub proposal: Digest,
    /// The digest of the judgement.
    pub judgement: Digest,
    /// The bytes of all of these.
    pub blobs: Vec<Vec<u8>>,
}

/// The stored rules: protection, the rows of the table of fields that the plan uses, and the machine that the program ran on. The machine
/// is not part of a plan's digest, but affects the verdicts.
#[derive(Serialize)]
struct RecordedRules<'r> {
    fields: &'r [&'r FieldRule],
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'r MachineIdentity>,
    protect: &'r Rules,
}

/// Collects the inputs of a judged plan, made by a program of this version under this configuration.
///
/// # Errors
/// A value cannot be written as JSON, which does not happen.
pub fn record_decision(judged: &Judged, program: &str, config: Vec<u8>) -> io::Result<DecisionRecord> {
    record_decision_with(judged, program, config, OWN_TABLES)
}

/// Collects the inputs of a judged plan, made under these tables.
pub(super) fn record_decision_with(
    judged: &Judged,
    program: &str,
    config: Vec<u8>,
    tables: DecisionTables<'_>,
) -> io::Result<DecisionRecord> {
    let plan = judged.plan();
    let proposal = proposal_digest(plan, judged.judgement())?;
    let (mut blobs, mut body, mut judgement, mut observation) = (vec![config], Vec::new(), Vec::new(), Vec::new());
    write_body_with(&mut body, plan, tables)?;
    write_judgement(&mut judgement, judged.judgement())?;
    write_observation(&mut observation, plan.observation())?;
    let used = UsedRows::of_plan(plan, tables);
    let rules = RecordedRules { fields: &used.fields, host: plan.rules().machine(), protect: plan.rules() };
    blobs.extend([serde_json::to_vec(plan.intent())?, observation, serde_json::to_vec(&rules)?, serde_json::to_vec(&used.catalogue)?]);
    blobs.extend([body, judgement]);
    let mut digests = blobs.iter().map(|bytes| Digest::of_bytes(bytes));
    let mut next = || digests.next().ok_or_else(|| io::Error::other("one digest for each"));
    let (config, intent, observation, rules, catalogue, plan, judgement) = (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    let inputs = DecisionInputs { program: program.into(), planner: PLANNER_VERSION, config, intent, observation, rules, catalogue };
    Ok(DecisionRecord { inputs, plan, proposal, judgement, blobs })
}
