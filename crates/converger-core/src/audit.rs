//! What a judged plan comes to: the counts, and how a command that shows it ends.

use serde::Serialize;

use crate::plan::Verdict;
use crate::safety::Judged;

/// The counts of a plan. Members stand in the order of their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlanSummary {
    /// Guests with nothing to do.
    pub converged: u64,
    /// Guests in scope.
    pub guests: u64,
    /// Guests that are refused.
    pub refused: u64,
    /// Steps of all guests together.
    pub steps: u64,
    /// Guests that were seen and are not declared.
    pub unmanaged: u64,
}

/// How an audit ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditConclusion {
    /// All is as declared.
    Converged,
    /// Something would be done.
    ChangesPending,
    /// Something is refused.
    Refused,
}

/// Counts what is in a plan.
#[must_use]
pub fn summarize_plan(judged: &Judged) -> PlanSummary {
    let plan = judged.plan();
    let mut summary = PlanSummary { unmanaged: plan.observation().unmanaged, ..PlanSummary::default() };
    for verdict in plan.verdicts() {
        summary.guests += 1;
        match verdict {
            Verdict::Converged { .. } => summary.converged += 1,
            Verdict::Refused(_) => summary.refused += 1,
            Verdict::Steps(steps) => summary.steps += u64::try_from(steps.len()).unwrap_or(u64::MAX),
        }
    }
    summary
}

/// How a command ends that shows this plan: a refusal outweighs pending changes.
#[must_use]
pub fn conclude_audit(judged: &Judged) -> AuditConclusion {
    let summary = summarize_plan(judged);
    if matches!(judged, Judged::Refused(_)) || summary.refused > 0 {
        AuditConclusion::Refused
    } else if summary.steps > 0 {
        AuditConclusion::ChangesPending
    } else {
        AuditConclusion::Converged
    }
}
