//! What a run decides on, in the form that is kept beside the ledger: bytes that lead to the same decision again, each named in an entry by its
//! digest.
//!
//! What never enters: secrets. A configuration names where they are; whoever hands it in has taken everything else out.

use std::io;

use serde::Serialize;

use super::DecisionInputs;
use crate::action::CATALOGUE;
use crate::artifact::{Digest, write_body, write_judgement, write_observation};
use crate::normalize::TABLE;
use crate::plan::PLANNER_VERSION;
use crate::policy::{MachineIdentity, Rules};
use crate::safety::Judged;

/// A decision with all that it rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRecord {
    /// What it rests on.
    pub inputs: DecisionInputs,
    /// The body of the plan, which is what an approval binds.
    pub plan: Digest,
    /// What the plan was held against, and what was found.
    pub judgement: Digest,
    /// The bytes of each of these, under their digests.
    pub blobs: Vec<Vec<u8>>,
}

/// The rules as they were: those of protection, the table of fields, and the machine that the program ran on, which is not part of a plan's
/// digest but decides about its guests.
#[derive(Serialize)]
struct RecordedRules<'r> {
    fields: &'r [crate::normalize::FieldRule],
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'r MachineIdentity>,
    protect: &'r Rules,
}

/// Everything that a judged plan rests on, made by a program of this version under this configuration.
///
/// # Errors
/// A value that cannot be written as JSON; none of ours is one.
pub fn record_decision(judged: &Judged, program: &str, config: Vec<u8>) -> io::Result<DecisionRecord> {
    let plan = judged.plan();
    let (mut blobs, mut body, mut judgement, mut observation) = (vec![config], Vec::new(), Vec::new(), Vec::new());
    write_body(&mut body, plan)?;
    write_judgement(&mut judgement, judged.judgement())?;
    write_observation(&mut observation, plan.observation())?;
    let rules = RecordedRules { fields: &TABLE, host: plan.rules().machine(), protect: plan.rules() };
    blobs.extend([serde_json::to_vec(plan.desired())?, observation, serde_json::to_vec(&rules)?, serde_json::to_vec(&CATALOGUE)?]);
    blobs.extend([body, judgement]);
    let mut digests = blobs.iter().map(|bytes| Digest::of_bytes(bytes));
    let mut next = || digests.next().ok_or_else(|| io::Error::other("one digest for each"));
    let (config, desired, observation, rules, catalogue, plan, judgement) = (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
    let inputs = DecisionInputs { program: program.into(), planner: PLANNER_VERSION, config, desired, observation, rules, catalogue };
    Ok(DecisionRecord { inputs, plan, judgement, blobs })
}
