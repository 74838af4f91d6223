//! The admission of a decision that was recorded, weighed once more and told.
//!
//! What never enters: admitting anything, and what an admission must agree with (`evidence::RecordedAdmission`).

use converger_core::artifact::Digest;
use converger_core::evidence::{Approval, RecordedAdmission};
use serde_json::{Value as Json, json};

use super::super::CommandError;
use super::source::{BlobReader, DecisionSource};
use crate::config;
use crate::render::quote_untrusted;

/// Whether it is the admission of its run's decision, and the evidence gives the answer that was recorded.
pub(super) fn check_admission(record: &DecisionSource<'_>, weighed: &RecordedAdmission) -> Result<(), CommandError> {
    let bytes = record.blob(weighed.bundle)?.ok_or_else(|| weighed.missing_bundle_fault())?;
    let keeper = BlobReader::new(record);
    let found = weighed.recheck(&bytes, |digest| keeper.blob(digest), config::parse_config_snapshot);
    keeper.check_reads()?;
    Ok(found?)
}

/// In a few words.
pub(super) fn describe_admission(RecordedAdmission { index, answer, approvals, plan, .. }: &RecordedAdmission) -> String {
    format!("{} in entry {index}{}", answer.as_str(), describe_approvals(approvals, *plan))
}

/// The same where it was weighed once more.
pub(super) fn describe_rechecked_admission(RecordedAdmission { index, answer, approvals, plan, .. }: &RecordedAdmission) -> String {
    format!("{} in entry {index}, and again now{}", answer.as_str(), describe_approvals(approvals, *plan))
}

/// Who agreed to this plan, and who to another one.
fn describe_approvals(approvals: &[Approval], plan: Digest) -> String {
    let told = |approval: &Approval| match approval.plan == plan {
        true => format!(", agreed to by {} ({})", quote_untrusted(&approval.by), approval.how),
        false => format!(", where {} agreed to another plan ({}, {})", quote_untrusted(&approval.by), approval.how, approval.plan),
    };
    approvals.iter().map(told).collect()
}

pub(in super::super) fn admission_json(RecordedAdmission { index, answer, bundle, approvals, .. }: &RecordedAdmission) -> Json {
    let approval = |approval: &Approval| json!({ "by": approval.by, "how": approval.how, "names": approval.names, "plan": approval.plan });
    let approvals: Vec<Json> = approvals.iter().map(approval).collect();
    json!({ "answer": answer.as_str(), "approvals": approvals, "bundle": bundle, "entry": index })
}
