//! What a process intends: a run of the declared state, requested actions, or both, each planned, judged and admitted by itself.

use std::sync::Arc;

use converger_adapters::proxmox::client::ProxmoxSession;
use converger_adapters::proxmox::observe::{self, ObservationRequest};
use converger_core::apply::{CheckContext, IdempotencyKey, Operation, OperationEnd, OperationId, OperationSource, RunId, RunStart};
use converger_core::approve::{self, Admission, Admitted, ApprovalMode, Confirmation, RefusedGuestPolicy};
use converger_core::artifact::{Digest, Provenance, proposal_digest};
use converger_core::intent::Intent;
use converger_core::observe::Observation;
use converger_core::plan::{self, Plan, Verdict};
use converger_core::policy::Circumstances;
use converger_core::safety::{self, Judged, SafePlan};
use converger_core::testing::sign_approval;
use converger_core::timestamp;
use converger_store::StoreWrite;
use futures_util::FutureExt as _;

use super::super::interleaving::yield_turn;
use super::super::planted_bugs::{self, PlantedBug};
use super::super::process::{ProcessDied, SimulatedProcess};
use super::super::requests::DesiredRun;
use super::super::setup::TOKEN;
use super::super::stage::SimulatedTransport;
use super::{INPUTS, Simulation};

/// The planned operations of a process, by run.
pub(super) type IntendedRuns = Vec<IntendedRun>;

/// The planned operations of one run.
pub(super) type IntendedRun = Vec<(Operation, CheckContext)>;

impl Simulation {
    /// Plans what this process is asked for.
    pub(super) async fn plan_runs(&mut self) -> IntendedRuns {
        let job = self.setup.jobs.get(self.lives).filter(|_| !self.is_healed).cloned();
        self.lives += 1;
        let Some(job) = job else { return self.plan_rest().await };
        let mut runs = IntendedRuns::new();
        if job.desired == DesiredRun::Before {
            runs.extend(self.plan_desired().await);
        }
        for number in job.requests {
            runs.extend(self.plan_request(number));
            yield_turn().await;
        }
        if job.desired == DesiredRun::After {
            runs.extend(self.plan_desired().await);
        }
        runs
    }

    /// The declared state, and after it is reached what was requested and cut off. Each is planned by a process of its own: the other one
    /// changes its source.
    async fn plan_rest(&mut self) -> IntendedRuns {
        let desired: IntendedRuns = self.plan_desired().await.into_iter().collect();
        if !self.is_healed || desired.iter().any(|run| !run.is_empty()) {
            return desired;
        }
        self.plan_continued_requests()
    }

    async fn plan_desired(&mut self) -> Option<IntendedRun> {
        let intent = Intent::Desired(self.desired_state());
        let seen = self.observe(&intent);
        yield_turn().await;
        let plan = seen.and_then(|seen| self.plan_if_needed(&intent, seen));
        yield_turn().await;
        let run = plan.and_then(|plan| self.admit_plan(plan, None));
        yield_turn().await;
        run
    }

    /// Plans a request. One that is refused or needs nothing has no run.
    fn plan_request(&mut self, number: usize) -> Option<IntendedRun> {
        let request = self.setup.requests.get(number)?.clone();
        let seen = self.observe(&request.intent)?;
        let plan = self.make_plan(&request.intent, seen);
        self.note_request_verdict(&plan);
        self.admit_plan(plan, Some(&request.key))
    }

    pub(super) fn note_request_verdict(&mut self, plan: &Plan) {
        for (guest, verdict) in plan.guests() {
            let text = match verdict {
                Verdict::Refused(refusals) => refusals.iter().map(|refusal| refusal.code().word()).collect::<Vec<_>>().join(" "),
                Verdict::Steps(steps) => steps.iter().map(|step| step.change.word()).collect::<Vec<_>>().join(" "),
                Verdict::Converged { .. } => "nothing to do".to_owned(),
            };
            let action = plan.intent().request().map_or("", |request| request.action().name());
            let vmid = guest.vmid;
            self.stage_mut().trace_line(format_args!("request {action} {vmid}: {text}"));
            if matches!(verdict, Verdict::Refused(_)) {
                self.stage_mut().note_reached("a request is refused");
            }
        }
    }

    /// Observes the world. A process that was told to stop begins no run.
    pub(super) fn observe(&mut self, intent: &Intent) -> Option<Observation> {
        if self.oracle.is_stopped() {
            return None;
        }
        if intent.request().is_none() {
            self.verdicts.clear();
        }
        let seen = self.take_reading(intent);
        if seen.is_none() {
            assert!(self.bug != Some(PlantedBug::Unwrap), "nobody thought of a reading that there is not");
            self.require_reading();
        }
        seen
    }

    /// Plans; `None` if there is nothing to do.
    fn plan_if_needed(&mut self, intent: &Intent, seen: Observation) -> Option<Plan> {
        let plan = self.make_plan(intent, seen);
        self.verdicts = plan.guests().map(|(guest, verdict)| (guest.vmid.get(), verdict.clone())).collect();
        self.require_presence();
        // A converged plan needs no admission.
        let is_at_rest = plan.guests().all(|(_, verdict)| matches!(verdict, Verdict::Converged { .. }));
        (!is_at_rest).then_some(plan)
    }

    /// Takes an observation, if possible.
    pub(super) fn take_reading(&mut self, intent: &Intent) -> Option<Observation> {
        let stage = self.stage.take().unwrap_or_else(|| panic!("the stage is there"));
        let taken_at = timestamp::format_timestamp(stage.now_ms / 1000);
        let transport = SimulatedTransport::new(stage);
        let (environment, scope, read_set) = (intent.environment().clone(), intent.scope(), intent.read_set());
        let question = ObservationRequest { environment: &environment, cluster: None, token: TOKEN, scope: &scope, needs: &read_set };
        let session = ProxmoxSession::new(transport.clone());
        let reading = observe::take_reading(&session, &question).now_or_never().unwrap_or_else(|| panic!("nothing here waits"));
        drop(session);
        self.stage = transport.into_stage();
        let mut observation = match reading {
            Ok(reading) => reading.observation,
            Err(unread) => {
                self.stage_mut().trace_line(format_args!("no reading: {unread}"));
                self.stage_mut().note_reached("no reading");
                return None;
            }
        };
        if self.bug == Some(PlantedBug::LockForever) {
            planted_bugs::keep_locks_forever(&mut self.locked, &mut observation);
        }
        if self.bug == Some(PlantedBug::AbsentIsMissing) {
            planted_bugs::claim_complete_list(&mut observation);
        }
        observation.taken_at = Some(taken_at.into());
        if self.bug == Some(PlantedBug::OldPlan) {
            observation = self.first_reading.get_or_insert(observation).clone();
        }
        Some(observation)
    }

    /// Plans on an observation.
    pub(super) fn make_plan(&mut self, intent: &Intent, seen: Observation) -> Plan {
        let scoped = seen.into_scoped(&intent.scope());
        let rules = self.rules_with_births(&scoped);
        let plan = plan::plan(intent.clone(), Arc::new(scoped), rules);
        self.oracle.on_plan(plan.observation().taken_at.as_deref().and_then(timestamp::parse_timestamp));
        plan
    }

    fn judge_plan(&mut self, plan: Plan) -> Option<SafePlan> {
        let is_request = plan.intent().request().is_some();
        let is_within = is_request || self.is_within_limits();
        match safety::judge(plan, planted_bugs::buggy_budget(self.bug, self.setup.budget), Circumstances::default()) {
            Judged::Safe(safe) => Some(safe),
            Judged::Refused(_) => {
                self.stage_mut().trace_line(format_args!("the plan is refused"));
                self.stage_mut().note_reached(if is_within { "the plan is refused" } else { "the plan is over its limits" });
                if self.is_healed && is_within {
                    self.oracle.report("L2", "the whole plan is refused although everything has healed".into());
                }
                None
            }
        }
    }

    pub(super) fn admit_plan(&mut self, plan: Plan, key: Option<&IdempotencyKey>) -> Option<IntendedRun> {
        let has_steps = plan.guests().any(|(_, verdict)| matches!(verdict, Verdict::Steps(_)));
        let names = plan.guests().filter_map(|(guest, _)| plan.name_of(guest).map(Into::into)).collect();
        let safe = self.judge_plan(plan)?;
        if !has_steps {
            return None;
        }
        let confirmation = if approve::needs_signature(&safe) {
            let proposal = proposal_digest(safe.plan(), safe.judgement()).unwrap_or_else(|error| panic!("{error}"));
            Confirmation::Signed(sign_approval("eve", proposal))
        } else {
            Confirmation::Typed { by: "ann".into(), names }
        };
        let admission = Admission {
            mode: ApprovalMode::Solo,
            provenance: Provenance::Live,
            confirmation,
            refused: RefusedGuestPolicy::LeaveOut,
            now_ms: self.stage_mut().now_ms,
            age_secs_max: Admission::AGE_SECS_MAX,
        };
        let approved = match approve::admit(safe, &admission) {
            Ok(Admitted::Approved(approved)) => approved,
            // The observation took so long that it is too old.
            Ok(Admitted::Refused(refusals)) => {
                if self.is_healed {
                    self.oracle.report("L2", format!("nothing is admitted although everything has healed: {refusals:?}"));
                }
                return None;
            }
            Err(error) => panic!("everything was typed: {error:?}"),
        };
        self.runs += 1;
        let runs = self.runs;
        let run = RunId::new(&format!("run-{runs}")).unwrap_or_else(|| panic!("an id"));
        let operations = approved.into_operations(&run, |number| OperationId::new(&format!("op-{runs}-{number}")), key)?;
        let is_once = self.setup.is_one_shot && !self.is_healed && key.is_none();
        Some(if is_once { operations.into_iter().map(to_one_shot).collect() } else { operations })
    }

    /// Executes runs that are in flight at the same time.
    pub(super) fn execute_runs(&mut self, runs: IntendedRuns) -> Result<(), ProcessDied> {
        let runs: IntendedRuns = runs.into_iter().filter(|run| !run.is_empty()).collect();
        if runs.is_empty() {
            return Ok(());
        }
        let (boot, at_ms) = (Some(self.stage_mut().uptime().boot), self.stage_mut().now_ms);
        let Self { stage, store, oracle, setup: simulation_setup, bug, drive, .. } = self;
        let stage = stage.as_mut().unwrap_or_else(|| panic!("the stage is there"));
        let mut process = SimulatedProcess::new(stage, store.clone(), oracle, simulation_setup, *bug, drive);
        let mut started = Vec::new();
        let mut submitted = Vec::new();
        for run in runs {
            let Some((first, _)) = run.first() else { continue };
            let (id, environment, plan) = (first.run.clone(), first.environment.clone(), first.plan);
            let start = RunStart { id: id.clone(), environment, plan, by: "ann".into(), at_ms, boot: boot.clone() };
            if process.write_store(StoreWrite::RunStarted { run: start, inputs: Box::new(INPUTS.clone()) })? {
                started.push(id);
                submitted.push(run);
            }
        }
        process.execute_runs(submitted)?;
        for id in started {
            process.write_store(StoreWrite::RunEnded { id, end: OperationEnd::Done, at_ms })?;
        }
        Ok(())
    }
}

/// The same step of the same guest is the same request.
fn to_one_shot((mut operation, context): (Operation, CheckContext)) -> (Operation, CheckContext) {
    let text = format!("{}-{}", operation.guest.vmid, operation.step.change.word());
    let key = IdempotencyKey::new(&text).unwrap_or_else(|| panic!("a key"));
    operation.source = OperationSource::OneShot { key, request: Digest::of_bytes(text.as_bytes()) };
    (operation, context)
}
