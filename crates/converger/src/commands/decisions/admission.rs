//! The admission of a decision that was recorded, weighed once more and told.
//!
//! What never enters: admitting anything, and what an admission must agree with (`evidence::Weighed`).

use converger_core::artifact::Digest;
use converger_core::evidence::{Approval, Weighed};
use serde_json::{Value as Json, json};

use super::super::Stop;
use super::record::{Keeper, Record};
use crate::config;
use crate::render::theirs;

/// Whether it is the admission of its run's decision, and the evidence gives the answer that was recorded.
pub(super) fn again(record: &Record<'_>, weighed: &Weighed) -> Result<(), Stop> {
    let bytes = record.blob(weighed.bundle)?.ok_or_else(|| weighed.missing())?;
    let keeper = Keeper::of(record);
    let found = weighed.again(&bytes, |digest| keeper.blob(digest), config::understood);
    keeper.read()?;
    Ok(found?)
}

/// In a few words.
pub(super) fn shown(Weighed { index, answer, approvals, plan, .. }: &Weighed) -> String {
    format!("{} in entry {index}{}", answer.as_str(), agreed(approvals, *plan))
}

/// The same where it was weighed once more.
pub(super) fn again_now(Weighed { index, answer, approvals, plan, .. }: &Weighed) -> String {
    format!("{} in entry {index}, and again now{}", answer.as_str(), agreed(approvals, *plan))
}

/// Who agreed to this plan, and who to another one.
fn agreed(approvals: &[Approval], plan: Digest) -> String {
    let told = |approval: &Approval| match approval.plan == plan {
        true => format!(", agreed to by {} ({})", theirs(&approval.by), approval.how),
        false => format!(", where {} agreed to another plan ({}, {})", theirs(&approval.by), approval.how, approval.plan),
    };
    approvals.iter().map(told).collect()
}

pub(in super::super) fn as_json(Weighed { index, answer, bundle, approvals, .. }: &Weighed) -> Json {
    let approval = |approval: &Approval| json!({ "by": approval.by, "how": approval.how, "names": approval.names, "plan": approval.plan });
    let approvals: Vec<Json> = approvals.iter().map(approval).collect();
    json!({ "answer": answer.as_str(), "approvals": approvals, "bundle": bundle, "entry": index })
}
