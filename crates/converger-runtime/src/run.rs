//! One run: a recorded and judged plan that waits for a confirmation, then one that is applied.
//!
//! Confirmation is a value and not a callback: the caller asks a person if [`Run::question`] says so, however long that takes, and passes the answer in.

use std::sync::Arc;

use converger_core::apply::{IdempotencyKey, OperationEnd, OperationId};
use converger_core::approve::{
    Admission, Admitted, ApprovalMode, ApprovedPlan, Confirmation, RefusedGuestPolicy, admit, guests_to_name, needs_signature, objections,
};
use converger_core::artifact::GuestOmission;
use converger_core::failure::FailureCode;
use converger_core::guest::Vmid;
use converger_core::intent::Intent;
use converger_core::refusal::Refusal;
use converger_core::safety::{Judged, JudgedVerdict, SafePlan};
use converger_engine::executor::{EngineError, ExecutionReport, RunOptions, RunSlot, RunSubmission};
use converger_engine::schedule::OnFailure;

use crate::environment::{Environment, RunSettings};
use crate::error::RuntimeError;
use crate::event::RunEvent;
use crate::executor::{EndpointActuator, publish_to};
use crate::expected_plan::ExpectedPlan;
use crate::reader::Planned;
use crate::record::RunRecord;
use crate::report::{HeldBefore, RecoveryReport, RunEnd, RunReport};
use crate::request_key::load_run_operations;
use crate::state_dir::wait_for_task;

/// What to do, and how.
#[derive(Debug)]
pub struct RunRequest {
    /// The desired state, narrowed to the guests of this run, or a requested action.
    pub intent: Intent,
    /// The idempotency key of a request, as [`scope_key`](crate::scope_key) makes it; without one, the run gets a key of its own. A desired state has
    /// none.
    pub key: Option<IdempotencyKey>,
    /// A plan that was saved earlier: the new plan must have the same steps.
    pub expected: Option<ExpectedPlan>,
    /// Whether the desired state was narrowed.
    pub narrowed: GuestOmission,
    /// What a refused guest means for the others.
    pub refused: RefusedGuestPolicy,
    /// What a failed operation means for the others.
    pub on_failure: OnFailure,
    /// Who requests the run, for the record.
    pub requested_by: Box<str>,
}

/// What every stage of one run needs.
pub(crate) struct RunContext {
    pub(crate) environment: Environment,
    pub(crate) settings: RunSettings,
    pub(crate) actuator: Arc<EndpointActuator>,
    pub(crate) record: RunRecord,
    pub(crate) recovered: RecoveryReport,
    pub(crate) held_before: HeldBefore,
    pub(crate) on_failure: OnFailure,
    pub(crate) key: Option<IdempotencyKey>,
}

/// A recorded and judged plan that waits for confirmation. Dropping it is safe: nothing was sent.
pub struct Run {
    pub(crate) context: RunContext,
    pub(crate) slot: RunSlot,
    pub(crate) planned: Planned,
    pub(crate) staleness: Option<Refusal>,
    pub(crate) refused: RefusedGuestPolicy,
}

/// What has to be confirmed, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The plan has no steps.
    NotNeeded,
    /// The plan is refused, whatever anyone confirms.
    Refused,
    /// Someone other than the caller has to approve it.
    AnotherPerson,
    /// A step needs a signed approval, which a confirmation does not replace.
    Signature,
    /// The caller confirms it.
    Confirm {
        /// Guests that the plan stops or makes; the caller types the name of each.
        to_name: Vec<NamedGuest>,
        /// Refused guests that are left out.
        left_out: Vec<Vmid>,
    },
}

/// A guest whose name the caller types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedGuest {
    /// The guest.
    pub vmid: Vmid,
    /// Its name, which the caller types.
    pub name: Box<str>,
}

/// The result of an admission.
#[allow(clippy::large_enum_variant)]
pub enum RunAdmission {
    /// The plan may be applied.
    Approved(ApprovedRun),
    /// Nothing is applied; the report says why.
    Ended(RunReport),
}

/// An approved run. Dropping it is safe: nothing was sent.
pub struct ApprovedRun {
    context: RunContext,
    slot: RunSlot,
    plan: ApprovedPlan,
}

/// The decision about a plan, and whether the ledger has it.
type RecordedDecision = (Admitted, Result<(), RuntimeError>);

impl Run {
    /// The judged plan.
    #[must_use]
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// How the plan differs from the expected one. Such a plan is not applied, whatever anyone confirms.
    #[must_use]
    pub fn staleness(&self) -> Option<&Refusal> {
        self.staleness.as_ref()
    }

    /// Who approves plans of this environment.
    #[must_use]
    pub fn mode(&self) -> ApprovalMode {
        self.context.settings.mode
    }

    /// Who requests the run.
    #[must_use]
    pub fn requested_by(&self) -> &str {
        self.context.record.requested_by()
    }

    /// Where operations of earlier runs are held.
    #[must_use]
    pub fn held_before(&self) -> HeldBefore {
        self.context.held_before
    }

    /// The guests that the plan refuses.
    #[must_use]
    pub fn refused_guests(&self) -> Vec<Vmid> {
        let refused = self.planned.judged.guests().filter(|(_, verdict)| matches!(verdict, JudgedVerdict::Refused(_)));
        refused.map(|(guest, _)| guest.vmid).collect()
    }

    /// What has to be confirmed, and by whom.
    #[must_use]
    pub fn question(&self) -> Question {
        let Judged::Safe(safe) = &self.planned.judged else { return Question::Refused };
        if self.staleness.is_some() || !objections(safe, &self.admission(Confirmation::None)).is_empty() {
            return Question::Refused;
        }
        let plan = safe.plan();
        if !safe.guests().any(|(_, verdict)| matches!(verdict, JudgedVerdict::Steps(_))) {
            return Question::NotNeeded;
        }
        if self.mode() == ApprovalMode::Shared {
            return Question::AnotherPerson;
        }
        if needs_signature(safe) {
            return Question::Signature;
        }
        let named =
            |guest: &converger_core::desired::DesiredGuest| Some(NamedGuest { vmid: guest.vmid, name: plan.name_of(guest)?.into() });
        Question::Confirm { to_name: guests_to_name(safe).filter_map(named).collect(), left_out: self.refused_guests() }
    }

    fn admission(&self, confirmation: Confirmation) -> Admission {
        Admission {
            mode: self.mode(),
            provenance: self.planned.provenance,
            confirmation,
            refused: self.refused,
            // Read the clock now: the confirmation may have taken an hour, and the observation may be too old.
            now_ms: self.context.settings.reader.host().now_ms(),
            age_secs_max: Admission::AGE_SECS_MAX,
        }
    }

    /// Decides whether the plan may be applied, and records the decision with its evidence.
    pub async fn admit(self, confirmation: Confirmation) -> RunAdmission {
        let admission = self.admission(confirmation);
        let Self { mut context, slot, planned, staleness, .. } = self;
        let report = match decide(&mut context.record, staleness, planned.judged, &admission).await {
            (Admitted::Approved(plan), Ok(())) => {
                let by = confirmed_by(&admission.confirmation).unwrap_or(context.record.requested_by()).into();
                context.publish(RunEvent::Admitted { run: context.record.run().clone(), by });
                return RunAdmission::Approved(ApprovedRun { context, slot, plan });
            }
            (Admitted::Refused(causes), Ok(())) => {
                let (recorded, end) = match admission.confirmation {
                    Confirmation::Declined { .. } => (OperationEnd::NotRun, RunEnd::Declined),
                    _ => (OperationEnd::Refused, RunEnd::Refused),
                };
                context.record.end_without_sending(recorded).await;
                RunReport::for_refused(&context, end, causes)
            }
            (_, Err(error)) => {
                context.record.end_without_sending(OperationEnd::Failed).await;
                RunReport::for_error(&context, error)
            }
        };
        RunAdmission::Ended(context.finish(report).await)
    }
}

/// Decides about a plan and records the decision.
async fn decide(record: &mut RunRecord, staleness: Option<Refusal>, judged: Judged, admission: &Admission) -> RecordedDecision {
    let safe = match (staleness, judged) {
        (Some(stale), _) => {
            let recorded = record.write_refusals(std::slice::from_ref(&stale)).await;
            return (Admitted::Refused(vec![stale]), recorded);
        }
        (None, Judged::Refused(plan)) => {
            let judged = Judged::Refused(plan);
            let causes: Vec<Refusal> = judged.judgement().refusals().iter().chain(judged.plan().refusals()).cloned().collect();
            let recorded = record.write_admission(admission, &causes).await;
            return (Admitted::Refused(causes), recorded);
        }
        (None, Judged::Safe(safe)) => safe,
    };
    match admit_safe(safe, admission) {
        Ok(admitted) => {
            let causes = if let Admitted::Refused(causes) = &admitted { causes.as_slice() } else { &[] };
            let recorded = record.write_admission(admission, causes).await;
            (admitted, recorded)
        }
        Err(error) => (Admitted::Refused(Vec::new()), Err(error)),
    }
}

fn admit_safe(safe: SafePlan, admission: &Admission) -> Result<Admitted, RuntimeError> {
    admit(safe, admission).map_err(|error| RuntimeError::failed(format!("cannot encode the plan: {error}")))
}

impl ApprovedRun {
    /// Applies the plan, once, and reports every operation. Dropping the future after its first poll cancels nothing: the operations continue, and the
    /// end of the run is recorded.
    pub async fn apply(self) -> RunReport {
        wait_for_task(tokio::spawn(self.apply_to_end())).await
    }

    async fn apply_to_end(self) -> RunReport {
        let Self { context, slot, plan } = self;
        // Attest before sending: a state directory restored from an older copy must not be able to hide this run (decision 0020).
        if let Err(error) = context.environment.attest_ledger().await {
            context.record.end_without_sending(OperationEnd::Failed).await;
            return context.publish_end(RunReport::for_error(&context, error));
        }
        let left_out = count_refused(&plan);
        let report = match context.execute(slot, plan).await {
            Ok(report) => RunReport::for_applied(&context, report, left_out),
            // Changes may have been sent: the run gets no end, as after a crash, and the next start recovers its operations.
            Err(EngineError::ExecutorLost) => context.report_lost_executor().await,
            Err(error) => {
                if matches!(error, EngineError::NotAccepting(_)) {
                    context.record.end_without_sending(OperationEnd::Failed).await;
                }
                RunReport::for_error(&context, context.environment.engine_error(error))
            }
        };
        context.finish(report).await
    }
}

impl RunContext {
    fn publish(&self, event: RunEvent) {
        self.settings.reader.events().publish(event);
    }

    /// Publishes how the run ended.
    fn publish_end(&self, report: RunReport) -> RunReport {
        self.publish(RunEvent::RunEnded { run: report.run.clone(), end: report.end() });
        report
    }

    /// Attests what the run recorded, and publishes how it ended.
    async fn finish(&self, mut report: RunReport) -> RunReport {
        report.attested = self.environment.attest_ledger().await;
        self.publish_end(report)
    }

    /// The report of a run whose executor was lost, with the operations that the journal has.
    async fn report_lost_executor(&self) -> RunReport {
        let name = self.settings.reader.name();
        let loaded = load_run_operations(self.environment.state().store(), self.record.run()).await;
        let cause = loaded.as_ref().err().map(|error| format!("; the journal could not be read either: {error}")).unwrap_or_default();
        let message = format!(
            "the executor of environment `{name}` ended while run `{}` was being applied, and operations may be in flight; this is a defect \
             of the program{cause}",
            self.record.run().as_str()
        );
        let help = format!("apply again: it recovers them before anything else; `converger ops list {name}` shows them");
        let error = RuntimeError::failed(message).with_code(FailureCode::RunLeft).with_help(help);
        RunReport::for_lost_executor(self, ExecutionReport::from_journal(loaded.unwrap_or_default()), error)
    }

    /// Submits the plan to the executor and waits for all its operations.
    async fn execute(&self, slot: RunSlot, plan: ApprovedPlan) -> Result<ExecutionReport, EngineError> {
        let Self { environment, settings, actuator, record, on_failure, key, .. } = self;
        let events = settings.reader.events();
        let run = record.run().clone();
        environment.stop_handle().note_sending();
        events.publish(RunEvent::ApplyStarted { run: run.clone(), steps: count_steps(&plan) });
        let prefix = run.as_str().to_owned();
        let submission = RunSubmission {
            // INVARIANT: the plan is moved, so it cannot be applied twice (G13).
            plan,
            run: run.clone(),
            ids: Box::new(move |number| OperationId::new(&format!("{prefix}-{number}"))),
            actuator: environment.actuator(actuator, run.clone()),
            options: RunOptions { on_failure: *on_failure, patience: settings.reader.config().patience },
            key: key.clone(),
            on_notice: publish_to(events, false),
        };
        let applied = environment.executor().submit(slot, submission).wait().await;
        events.publish(RunEvent::ApplyEnded { run });
        applied
    }
}

/// Who confirmed, if anyone did.
fn confirmed_by(confirmation: &Confirmation) -> Option<&str> {
    match confirmation {
        Confirmation::None | Confirmation::Declined { .. } => None,
        Confirmation::Typed { by, .. } | Confirmation::FullDigest { by, .. } => Some(by),
        Confirmation::Signed(approval) => Some(approval.by()),
    }
}

/// Counts the guests that are refused and left out.
fn count_refused(approved: &ApprovedPlan) -> u64 {
    let refused = approved.guests().filter(|(_, verdict)| matches!(verdict, JudgedVerdict::Refused(_)));
    u64::try_from(refused.count()).unwrap_or(u64::MAX)
}

fn count_steps(approved: &ApprovedPlan) -> usize {
    let steps = approved.guests().map(|(_, verdict)| if let JudgedVerdict::Steps(steps) = verdict { steps.len() } else { 0 });
    steps.sum()
}
