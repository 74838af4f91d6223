//! The counts of a judged plan, and the conclusion that a command draws from it.

use serde::Serialize;

use crate::safety::{Judged, JudgedVerdict};

/// The counts of a plan. Members are sorted by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PlanSummary {
    /// Converged guests.
    pub converged: u64,
    /// Guests in scope.
    pub guests: u64,
    /// Refused guests.
    pub refused: u64,
    /// Steps of all guests.
    pub steps: u64,
    /// Observed guests that are not declared.
    pub unmanaged: u64,
}

/// The conclusion of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditConclusion {
    /// Everything is as declared.
    Converged,
    /// At least one step is planned.
    ChangesPending,
    /// At least one refusal.
    Refused,
}

/// Counts the verdicts and steps of a plan.
#[must_use]
pub fn summarize_plan(judged: &Judged) -> PlanSummary {
    let plan = judged.plan();
    let mut summary = PlanSummary { unmanaged: plan.observation().unmanaged, ..PlanSummary::default() };
    for (_, verdict) in judged.guests() {
        summary.guests += 1;
        match verdict {
            JudgedVerdict::Converged { .. } => summary.converged += 1,
            JudgedVerdict::Refused(_) => summary.refused += 1,
            JudgedVerdict::Steps(steps) => summary.steps += u64::try_from(steps.len()).unwrap_or(u64::MAX),
        }
    }
    summary
}

/// The conclusion from a plan: a refusal outweighs pending changes.
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
