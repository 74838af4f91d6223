//! One run: a recorded and judged plan that waits for a confirmation, then one that is applied.
//!
//! Confirmation is a value and not a callback: the caller asks a person where [`Run::question`] says so, for as long as that takes, and hands in the answer.

use std::sync::Arc;

use converger_adapters::proxmox::actuator::ProxmoxActuator as ProxmoxHand;
use converger_adapters::proxmox::client::ProxmoxClient;
use converger_core::apply::{OperationEnd, OperationId};
use converger_core::approve::{
    Admission, Admitted, ApprovalMode, ApprovedPlan, Confirmation, RefusedGuestPolicy, admit, guests_to_stop, objections,
};
use converger_core::artifact::GuestOmission;
use converger_core::desired::Desired;
use converger_core::guest::Vmid;
use converger_core::plan::Verdict;
use converger_core::refusal::Refusal;
use converger_core::safety::{Judged, SafePlan};
use converger_engine::executor::{EngineError, ExecutionReport, RunOptions, RunSlot, RunSubmission};
use converger_engine::schedule::OnFailure;

use crate::environment::Environment;
use crate::error::RuntimeError;
use crate::event::RunEvent;
use crate::executor::publish_to;
use crate::expected_plan::ExpectedPlan;
use crate::host;
use crate::reader::Planned;
use crate::record::RunRecord;
use crate::report::{HeldBefore, RunReport};
use crate::state_dir::wait_for_task;

/// What to do, and how.
#[derive(Debug)]
pub struct RunRequest {
    /// The declared state, narrowed to what is meant.
    pub desired: Desired,
    /// A plan that was saved before: the same steps must come out now.
    pub expected: Option<ExpectedPlan>,
    /// Whether the declared state was narrowed.
    pub narrowed: GuestOmission,
    /// What a refused guest means for the others.
    pub refused: RefusedGuestPolicy,
    /// What a failed operation means for the others.
    pub on_failure: OnFailure,
}

/// A recorded and judged plan that waits for confirmation. Dropping it is safe: nothing was sent.
pub struct Run {
    environment: Environment,
    slot: RunSlot,
    hand: Arc<ProxmoxHand<ProxmoxClient>>,
    record: RunRecord,
    planned: Planned,
    recovered: Arc<ExecutionReport>,
    held_before: HeldBefore,
    staleness: Option<Refusal>,
    refused: RefusedGuestPolicy,
    on_failure: OnFailure,
}

/// What has to be confirmed, and by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// The plan has no steps.
    NotNeeded,
    /// It is refused whatever anybody says.
    Refused,
    /// Somebody other than the caller has to approve it.
    AnotherPerson,
    /// The caller confirms it.
    Confirm {
        /// Guests that go down and stay down; the name of each is typed.
        going_down: Vec<GoingDown>,
        /// Refused guests that are left out.
        left_out: Vec<Vmid>,
    },
}

/// A guest that goes down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoingDown {
    /// The guest.
    pub vmid: Vmid,
    /// Its name, which is typed.
    pub name: Box<str>,
}

/// The result of an admission.
#[allow(clippy::large_enum_variant)]
pub enum RunAdmission {
    /// It may be applied.
    Approved(ApprovedRun),
    /// Nothing is applied; the report says why.
    Ended(RunReport),
}

/// An approved run. Dropping it is safe: nothing was sent.
pub struct ApprovedRun {
    environment: Environment,
    slot: RunSlot,
    hand: Arc<ProxmoxHand<ProxmoxClient>>,
    record: RunRecord,
    plan: ApprovedPlan,
    recovered: Arc<ExecutionReport>,
    held_before: HeldBefore,
    on_failure: OnFailure,
}

impl Run {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        environment: Environment,
        slot: RunSlot,
        hand: Arc<ProxmoxHand<ProxmoxClient>>,
        record: RunRecord,
        planned: Planned,
        recovered: Arc<ExecutionReport>,
        held_before: HeldBefore,
        staleness: Option<Refusal>,
        refused: RefusedGuestPolicy,
        on_failure: OnFailure,
    ) -> Self {
        Self { environment, slot, hand, record, planned, recovered, held_before, staleness, refused, on_failure }
    }

    /// The judged plan.
    #[must_use]
    pub fn planned(&self) -> &Planned {
        &self.planned
    }

    /// How the plan differs from the one that was expected. Then it is not applied whatever anybody says.
    #[must_use]
    pub fn staleness(&self) -> Option<&Refusal> {
        self.staleness.as_ref()
    }

    /// Who approves plans here.
    #[must_use]
    pub fn mode(&self) -> ApprovalMode {
        self.environment.mode()
    }

    /// Where operations of earlier runs are held.
    #[must_use]
    pub fn held_before(&self) -> HeldBefore {
        self.held_before
    }

    /// The guests that the plan refuses.
    #[must_use]
    pub fn refused_guests(&self) -> Vec<Vmid> {
        let refused = self.planned.judged.plan().guests().filter(|(_, verdict)| matches!(verdict, Verdict::Refused(_)));
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
        if !plan.verdicts().iter().any(|verdict| matches!(verdict, Verdict::Steps(_))) {
            return Question::NotNeeded;
        }
        if self.mode() == ApprovalMode::Shared {
            return Question::AnotherPerson;
        }
        let named = |guest: &converger_core::desired::DesiredGuest| Some(GoingDown { vmid: guest.vmid, name: plan.name_of(guest)?.into() });
        Question::Confirm { going_down: guests_to_stop(plan).filter_map(named).collect(), left_out: self.refused_guests() }
    }

    fn admission(&self, confirmation: Confirmation) -> Admission {
        Admission {
            mode: self.mode(),
            provenance: self.planned.provenance,
            confirmation,
            refused: self.refused,
            // Read now: the confirmation may have taken an hour, and the observation may be too old.
            now_ms: host::now_ms(),
            age_secs_max: Admission::AGE_SECS_MAX,
        }
    }

    /// Decides whether the plan may be applied, and records that with its evidence.
    pub async fn admit(mut self, confirmation: Confirmation) -> RunAdmission {
        let admission = self.admission(confirmation);
        let end =
            if matches!(admission.confirmation, Confirmation::Declined { .. }) { OperationEnd::NotRun } else { OperationEnd::Refused };
        let (admitted, recorded) = match (self.staleness.take(), self.planned.judged) {
            (Some(stale), _) => {
                let recorded = self.record.write_refusals(std::slice::from_ref(&stale)).await;
                (Admitted::Refused(vec![stale]), recorded)
            }
            (None, Judged::Refused(plan)) => {
                let judged = Judged::Refused(plan);
                let causes: Vec<Refusal> = judged.judgement().refusals().iter().chain(judged.plan().refusals()).cloned().collect();
                let recorded = self.record.write_admission(&admission, &causes).await;
                (Admitted::Refused(causes), recorded)
            }
            (None, Judged::Safe(safe)) => match admit_safe(safe, &admission) {
                Ok(Admitted::Approved(plan)) => {
                    let recorded = self.record.write_admission(&admission, &[]).await;
                    (Admitted::Approved(plan), recorded)
                }
                Ok(Admitted::Refused(causes)) => {
                    let recorded = self.record.write_admission(&admission, &causes).await;
                    (Admitted::Refused(causes), recorded)
                }
                Err(error) => (Admitted::Refused(Vec::new()), Err(error)),
            },
        };
        let Self { environment, slot, hand, record, recovered, held_before, on_failure, .. } = self;
        match (admitted, recorded) {
            (Admitted::Approved(plan), Ok(())) => {
                RunAdmission::Approved(ApprovedRun { environment, slot, hand, record, plan, recovered, held_before, on_failure })
            }
            (Admitted::Refused(causes), Ok(())) => {
                record.end_without_sending(end).await;
                RunAdmission::Ended(RunReport::not_sent(&environment, &record, &recovered, held_before, end, causes, None))
            }
            (_, Err(error)) => {
                record.end_without_sending(OperationEnd::Failed).await;
                RunAdmission::Ended(RunReport::not_sent(
                    &environment,
                    &record,
                    &recovered,
                    held_before,
                    OperationEnd::Failed,
                    Vec::new(),
                    Some(error),
                ))
            }
        }
    }
}

fn admit_safe(safe: SafePlan, admission: &Admission) -> Result<Admitted, RuntimeError> {
    admit(safe, admission).map_err(|error| RuntimeError::failed(format!("the plan cannot be written: {error}")))
}

impl ApprovedRun {
    /// Applies the plan, once, and reports every operation. Dropping the future after it was polled cancels nothing: the operations go on, and the end of the
    /// run is recorded.
    pub async fn apply(self) -> RunReport {
        wait_for_task(tokio::spawn(self.apply_to_end())).await
    }

    async fn apply_to_end(self) -> RunReport {
        let Self { environment, slot, hand, record, plan, recovered, held_before, on_failure } = self;
        // Attest before sending: a state directory restored from an older copy must not be able to hide this run (decision 0020).
        if let Err(error) = environment.attest_ledger().await {
            record.end_without_sending(OperationEnd::Failed).await;
            return RunReport::not_sent(&environment, &record, &recovered, held_before, OperationEnd::Failed, Vec::new(), Some(error));
        }
        let left_out = count_refused(&plan);
        let events = Arc::clone(environment.reader().events());
        events.publish(RunEvent::ApplyStarted { steps: count_steps(&plan) });
        let run = record.run().clone();
        let prefix = run.as_str().to_owned();
        let submission = RunSubmission {
            // INVARIANT: the plan is moved, so it cannot be applied twice (G13).
            plan,
            run,
            ids: Box::new(move |number| OperationId::new(&format!("{prefix}-{number}"))),
            actuator: environment.actuator(&hand),
            options: RunOptions { on_failure, patience: environment.reader().config().patience },
            on_notice: publish_to(&events, false),
        };
        let applied = environment.executor().submit(slot, submission).wait().await;
        events.publish(RunEvent::ApplyEnded);
        match applied {
            Ok(report) => RunReport::applied(&environment, &record, &recovered, held_before, report, left_out),
            Err(error) => {
                if matches!(error, EngineError::NotAccepting(_)) {
                    record.end_without_sending(OperationEnd::Failed).await;
                }
                let error = environment.engine_error(error);
                RunReport::not_sent(&environment, &record, &recovered, held_before, OperationEnd::Failed, Vec::new(), Some(error))
            }
        }
    }
}

/// How many guests are refused and left out.
fn count_refused(approved: &ApprovedPlan) -> u64 {
    let refused = approved.plan().verdicts().iter().filter(|verdict| matches!(verdict, Verdict::Refused(_)));
    u64::try_from(refused.count()).unwrap_or(u64::MAX)
}

fn count_steps(approved: &ApprovedPlan) -> usize {
    let steps = approved.plan().verdicts().iter().map(|verdict| if let Verdict::Steps(steps) = verdict { steps.len() } else { 0 });
    steps.sum()
}
