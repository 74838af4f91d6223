//! The report of a run or a recovery, and the `converger.result/1` document. Pure: nothing is read or written here.

use std::sync::Arc;

use converger_core::apply::{OperationHistory, OperationId, RunId, write_outcome};
use converger_core::artifact::Digest;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::refusal::Refusal;
use converger_core::timestamp;
use converger_engine::executor::{ExecutionReport, OperationReport};
use converger_engine::schedule::ConcurrencyLimits;
use serde_json::{Value as Json, json};

use crate::error::RuntimeError;
use crate::reader::EnvironmentReader;
use crate::run::RunContext;

pub use converger_core::status::RunEnd;

/// The schema id of the document.
pub const RESULT_SCHEMA: &str = "converger.result/1";

/// Where operations of earlier runs are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBefore {
    /// No operation is held.
    Nowhere,
    /// On guests outside the scope: reported, but they do not decide how the run ends.
    OutOfScope,
    /// On a guest in scope.
    InScope,
}

/// Operations that an earlier process left in flight, as recovery settled or held them. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport(Arc<ExecutionReport>);

impl RecoveryReport {
    pub(crate) fn new(report: ExecutionReport) -> Self {
        Self(Arc::new(report))
    }

    /// The operations, oldest first.
    #[must_use]
    pub fn operations(&self) -> &[OperationReport] {
        self.0.operations()
    }

    /// Whether it reports this operation.
    #[must_use]
    pub fn contains(&self, id: &OperationId) -> bool {
        self.operations().iter().any(|reported| reported.operation.id == *id)
    }
}

/// The report of a run.
#[derive(Debug)]
pub struct RunReport {
    /// The environment.
    pub environment: EnvironmentName,
    /// The run.
    pub run: RunId,
    /// The digest of its plan.
    pub plan: Digest,
    /// How many operations could be in flight at once.
    pub at_once: ConcurrencyLimits,
    /// Operations that an earlier process left in flight, as recovery settled them.
    pub recovered: RecoveryReport,
    /// All refusals, of a guest or of the whole run.
    pub refusals: Vec<(Option<Vmid>, Refusal)>,
    /// The operations of the plan. If the executor was lost: those that the journal has.
    pub operations: ExecutionReport,
    /// How many refused guests were left out.
    pub left_out: u64,
    /// Where operations of earlier runs are held.
    pub held_before: HeldBefore,
    /// Why the admission refused the plan, if it did.
    pub causes: Vec<Refusal>,
    /// The error that ended the run. Nothing was sent, unless the report has operations.
    pub error: Option<RuntimeError>,
    /// Whether an earlier run executed the same request with the same key. The run, its plan and its operations are those of the earlier one.
    pub is_repeated: bool,
    /// Whether the witness has what the run recorded.
    pub attested: Result<(), RuntimeError>,
    /// What the admission decided: `Done` if it approved the plan.
    admission_end: RunEnd,
}

impl RunReport {
    /// The report of a run whose plan was applied.
    pub(crate) fn for_applied(context: &RunContext, operations: ExecutionReport, left_out: u64) -> Self {
        Self { operations, left_out, ..Self::without_operations(context) }
    }

    /// The report of a run that was refused or declined.
    pub(crate) fn for_refused(context: &RunContext, admission_end: RunEnd, causes: Vec<Refusal>) -> Self {
        Self { causes, admission_end, ..Self::without_operations(context) }
    }

    /// The report of a run that an error ended before it sent anything.
    pub(crate) fn for_error(context: &RunContext, error: RuntimeError) -> Self {
        Self { error: Some(error), ..Self::without_operations(context) }
    }

    /// The report of a run whose executor was lost: changes may have been sent, and the next start recovers operations in flight.
    pub(crate) fn for_lost_executor(context: &RunContext, operations: ExecutionReport, error: RuntimeError) -> Self {
        Self { operations, error: Some(error), ..Self::without_operations(context) }
    }

    /// The report on an earlier run that executed the same request with the same key. `None` if it has no operation.
    pub(crate) fn for_repeated(reader: &EnvironmentReader, histories: Vec<OperationHistory>, recovered: RecoveryReport) -> Option<Self> {
        let first = &histories.first()?.operation;
        Some(Self {
            environment: reader.name().clone(),
            run: first.run.clone(),
            plan: first.plan,
            at_once: reader.config().at_once,
            recovered,
            refusals: Vec::new(),
            operations: ExecutionReport::from_journal(histories),
            left_out: 0,
            held_before: HeldBefore::Nowhere,
            causes: Vec::new(),
            error: None,
            is_repeated: true,
            attested: Ok(()),
            admission_end: RunEnd::Done,
        })
    }

    fn without_operations(context: &RunContext) -> Self {
        let RunContext { settings, record, recovered, held_before, .. } = context;
        Self {
            environment: settings.reader.name().clone(),
            run: record.run().clone(),
            plan: record.plan(),
            at_once: settings.reader.config().at_once,
            recovered: recovered.clone(),
            refusals: record.refusals().to_vec(),
            operations: ExecutionReport::default(),
            left_out: 0,
            held_before: *held_before,
            causes: Vec::new(),
            error: None,
            is_repeated: false,
            attested: Ok(()),
            admission_end: RunEnd::Done,
        }
    }

    /// How the run ended: the worst of its operations, its refusals, its errors, its evidence, and of what is still held in its scope.
    #[must_use]
    pub fn end(&self) -> RunEnd {
        let left_out = (self.left_out > 0).then_some(RunEnd::Refused);
        let held = (self.held_before == HeldBefore::InScope).then_some(RunEnd::Held);
        let errors = self.error.iter().chain(self.attested.as_ref().err()).map(RuntimeError::end);
        errors.chain([self.admission_end]).chain(left_out).chain(held).fold(self.operations.end().into(), RunEnd::max)
    }

    /// The document, as `result.json` has it.
    #[must_use]
    pub fn document(&self) -> Json {
        let refusal = |(guest, refusal): &(Option<Vmid>, Refusal)| json!({ "guest": guest, "refusal": refusal });
        let mut document = json!({
            "schema": RESULT_SCHEMA, "environment": self.environment, "plan": self.plan.to_string(), "run": self.run.as_str(),
            "recovered": self.recovered.operations().iter().map(operation_row).collect::<Vec<_>>(),
            "refused": self.refusals.iter().map(refusal).collect::<Vec<_>>(),
            "steps": self.operations.operations().iter().map(operation_row).collect::<Vec<_>>(),
            "end": self.end().word(), "left_out": self.left_out,
            "at_once": { "overall": self.at_once.overall, "per_node": self.at_once.per_node },
        });
        if self.is_repeated {
            document["repeated"] = true.into();
        }
        document
    }
}

fn operation_row(reported: &OperationReport) -> Json {
    let operation = &reported.operation;
    let time = |at_ms: Option<u64>| at_ms.map(|at_ms| timestamp::format_timestamp(at_ms / 1000));
    let outcome = write_outcome(&reported.outcome).ok().and_then(|bytes| serde_json::from_slice::<Json>(&bytes).ok());
    json!({
        "operation": operation.id.as_str(), "vmid": operation.guest.vmid, "kind": operation.guest.kind, "name": operation.guest.name,
        "change": operation.step.change.word(), "outcome": outcome, "task": reported.task.as_ref().map(|task| task.as_str()),
        "began": time(reported.began_ms), "ended": time(reported.ended_ms), "recorded": reported.is_recorded,
    })
}
