//! What became of a plan that was recorded: who agreed to it, whether it was admitted, and what came of each of its operations.
//!
//! What never enters: what the plan says.

use converger_core::apply::{History, RunId};
use serde_json::{Value as Json, json};

use super::super::{Stop, ops};
use super::record::Record;
use super::{Made, admission, also};
use crate::render::{self, styled};

/// The fate of a run's plan.
pub(super) struct Fate {
    operations: Vec<History>,
    /// Other runs that made the same plan.
    others: Vec<RunId>,
}

impl Fate {
    pub(super) fn of(record: &Record<'_>, made: &Made, others: Vec<RunId>) -> Result<Self, Stop> {
        Ok(Self { operations: record.operations(&made.run.id)?, others })
    }

    pub(super) fn text(&self, made: &Made) -> String {
        let mut text = format!("\n{} {}\n", styled(render::CYAN, "run"), made.run.id.as_str());
        text.extend(made.admitted.iter().map(|weighed| format!("  admission: {}\n", admission::shown(weighed))));
        if made.admitted.is_empty() {
            text.push_str("  admission: none, the run ended before it was weighed\n");
        }
        text.push_str(&ops::lines(&self.operations));
        if self.operations.is_empty() {
            text.push_str("  nothing was begun\n");
        }
        text.extend(also(&self.others).map(|told| format!("  {told}\n")));
        text
    }

    /// The same for programs, with the plan as a document of its own.
    pub(super) fn as_json(&self, made: &Made, plan: Json) -> Json {
        let Made { run, index, admitted, .. } = made;
        json!({
            "schema": "converger.explained/1", "run": run.id.as_str(), "environment": run.environment, "entry": index, "at_ms": run.at_ms,
            "by": run.by, "admissions": admitted.iter().map(admission::as_json).collect::<Vec<_>>(),
            "operations": self.operations.iter().map(ops::as_json).collect::<Vec<_>>(),
            "also": self.others.iter().map(RunId::as_str).collect::<Vec<_>>(), "plan": plan,
        })
    }
}
