//! The report of a run: each operation with its outcome, in the order of the plan.

use converger_core::apply::{Evidence, Findings, Operation, OperationEnd, OperationHistory, Outcome, ReleaseCondition, TaskId};
use converger_core::failure::FailureCode;

use super::worst_end;
use crate::operation::{OperationState, Phase};

/// The report of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutionReport {
    operations: Vec<OperationReport>,
}

/// The report of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationReport {
    /// The operation.
    pub operation: Operation,
    /// The outcome.
    pub outcome: Outcome,
    /// Its task, if known.
    pub task: Option<TaskId>,
    /// Whether its end is in the journal. An operation that never started has none there.
    pub is_recorded: bool,
    /// Whether it was recovered from the journal.
    pub is_recovered: bool,
    /// When it started, in milliseconds since 1970.
    pub began_ms: Option<u64>,
    /// When it ended.
    pub ended_ms: Option<u64>,
}

impl ExecutionReport {
    pub(crate) fn new(reported: Vec<OperationReport>) -> Self {
        Self { operations: reported }
    }

    /// The operations of a run as the journal has them, for a run whose executor was lost. Operations without an end are in flight; operations
    /// without an intent are missing.
    #[must_use]
    pub fn from_journal(histories: Vec<OperationHistory>) -> Self {
        Self { operations: histories.into_iter().map(OperationReport::from_history).collect() }
    }

    /// All operations: recovered ones first, then those of the plan in its order.
    #[must_use]
    pub fn operations(&self) -> &[OperationReport] {
        &self.operations
    }

    /// The worst end of all.
    #[must_use]
    pub fn end(&self) -> OperationEnd {
        worst_end(self.operations.iter().map(|reported| reported.outcome.end()))
    }
}

impl OperationReport {
    pub(crate) fn new(state: &OperationState, not_run: Option<Outcome>, began_ms: Option<u64>, ended_ms: Option<u64>) -> Self {
        let outcome = not_run.or_else(|| state.outcome().cloned()).unwrap_or_else(|| interrupted_outcome(state));
        Self {
            operation: state.operation().clone(),
            outcome,
            task: state.task().cloned(),
            is_recorded: state.is_recorded(),
            is_recovered: state.is_recovered(),
            began_ms,
            ended_ms,
        }
    }

    fn from_history(history: OperationHistory) -> Self {
        let OperationHistory { operation, at_ms, task, ended, .. } = history;
        let task = task.map(|(task, _)| task);
        let ended_ms = ended.as_ref().map(|(_, at_ms)| *at_ms);
        let outcome = ended.map_or_else(|| in_flight_outcome(task.as_ref()), |(outcome, _)| outcome);
        Self { operation: *operation, outcome, task, is_recorded: ended_ms.is_some(), is_recovered: false, began_ms: Some(at_ms), ended_ms }
    }
}

/// The outcome of an operation that is in flight and that this process no longer waits for.
fn in_flight_outcome(task: Option<&TaskId>) -> Outcome {
    let evidence = task.map_or_else(Evidence::default, |task| Evidence::default().with("task", task.as_str()));
    Outcome::new_held(FailureCode::RunLeft, ReleaseCondition::Reading, Findings { evidence, ..Findings::default() })
}

/// The outcome of an operation that had not ended, or not started, when the process stopped waiting.
fn interrupted_outcome(state: &OperationState) -> Outcome {
    match state.phase() {
        // A recovered operation was started by an earlier process.
        Phase::Waiting if !state.is_recovered() => Outcome::new_not_run(FailureCode::RunStopped, Evidence::default()),
        _ => in_flight_outcome(state.task()),
    }
}
