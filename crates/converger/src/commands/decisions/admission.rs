//! Recorded admissions: checks one again, and describes it. What it must agree with is defined by `evidence::RecordedAdmission`.

use converger_core::artifact::Digest;
use converger_core::evidence::{Approval, RecordedAdmission};
use serde_json::{Value as Json, json};

use super::super::CommandError;
use super::source::{BlobReader, DecisionSource};
use crate::config;
use crate::render::{self, quote_untrusted};

/// Checks that an admission belongs to the decision of its run, and that its evidence gives the recorded answer.
pub(super) fn check_admission(source: &DecisionSource<'_>, admission: &RecordedAdmission) -> Result<(), CommandError> {
    let bytes = source.blob(admission.bundle)?.ok_or_else(|| admission.missing_bundle_fault())?;
    let blobs = BlobReader::new(source);
    let checked = admission.recheck(&bytes, |digest| blobs.blob(digest), config::parse_config_snapshot);
    blobs.check_reads()?;
    Ok(checked?)
}

/// An admission in a few words.
pub(super) fn describe_admission(RecordedAdmission { index, answer, approvals, proposal, .. }: &RecordedAdmission) -> String {
    format!("{} in entry {index}{}", answer.as_str(), describe_approvals(", ", approvals, *proposal))
}

/// An admission that was checked again.
pub(super) fn describe_rechecked_admission(RecordedAdmission { index, answer, approvals, proposal, .. }: &RecordedAdmission) -> String {
    format!("{} in entry {index} and again now{}", answer.as_str(), describe_approvals("; ", approvals, *proposal))
}

/// Who approved this proposal, and who another one.
fn describe_approvals(separator: &str, approvals: &[Approval], proposal: Option<Digest>) -> String {
    let describe = |approval: &Approval| match Some(approval.proposal) == proposal {
        true => format!("{separator}approved by {} ({})", quote_untrusted(&approval.by), approval.how),
        false => {
            let (by, other) = (quote_untrusted(&approval.by), render::short_digest(approval.proposal));
            format!("{separator}where {by} approved another proposal ({}, {other})", approval.how)
        }
    };
    approvals.iter().map(describe).collect()
}

pub(in super::super) fn admission_json(RecordedAdmission { index, answer, bundle, approvals, .. }: &RecordedAdmission) -> Json {
    let approval =
        |approval: &Approval| json!({ "by": approval.by, "how": approval.how, "names": approval.names, "proposal": approval.proposal });
    let approvals: Vec<Json> = approvals.iter().map(approval).collect();
    json!({ "answer": answer.as_str(), "approvals": approvals, "bundle": bundle, "entry": index })
}
