//! The outcome of a recorded plan: its approvals, its admission, and its operations.

use converger_core::apply::{OperationHistory, RunId, Slug};
use serde_json::{Value as Json, json};

use super::super::{CommandError, ops};
use super::source::DecisionSource;
use super::{RunDecision, admission, describe_other_runs};
use crate::render::{self, apply_style};

/// The outcome of the plan of one run.
pub(super) struct PlanOutcome {
    operations: Vec<OperationHistory>,
    /// Other runs that made the same plan.
    others: Vec<RunId>,
}

impl PlanOutcome {
    pub(super) fn load(source: &DecisionSource<'_>, run_decision: &RunDecision, others: Vec<RunId>) -> Result<Self, CommandError> {
        Ok(Self { operations: source.operations(&run_decision.run.id)?, others })
    }

    pub(super) fn render(&self, run_decision: &RunDecision) -> String {
        let mut text = format!("\n{} {}\n", apply_style(render::CYAN, "run"), run_decision.run.id.as_str());
        text.extend(run_decision.admissions.iter().map(|admission| format!("  admission: {}\n", admission::describe_admission(admission))));
        if !run_decision.run_refusals.is_empty() {
            let codes: Vec<&str> = run_decision.run_refusals.iter().map(Slug::as_str).collect();
            text.push_str(&format!("  refused: {}\n", codes.join(", ")));
        }
        if run_decision.admissions.is_empty() {
            text.push_str("  admission: none, the run ended before it\n");
        }
        text.push_str(&ops::render_lines(&self.operations));
        if self.operations.is_empty() {
            text.push_str("  no operation was started\n");
        }
        text.extend(describe_other_runs(&self.others).map(|text| format!("  {text}\n")));
        text
    }

    /// The same as JSON, with the plan as its own document.
    pub(super) fn to_json(&self, run_decision: &RunDecision, plan: Json) -> Json {
        let RunDecision { run, index, admissions: admitted, .. } = run_decision;
        json!({
            "schema": "converger.explained/1", "run": run.id.as_str(), "environment": run.environment, "entry": index, "at_ms": run.at_ms,
            "by": run.by, "admissions": admitted.iter().map(admission::admission_json).collect::<Vec<_>>(),
            "operations": self.operations.iter().map(ops::history_json).collect::<Vec<_>>(),
            "also": self.others.iter().map(RunId::as_str).collect::<Vec<_>>(), "plan": plan,
        })
    }
}
