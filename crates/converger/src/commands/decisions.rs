//! Recorded decisions: reproduce, explain and compare them, or evaluate them under other rules, from the ledger alone.
//!
//! Nothing here reads an environment or makes a new decision.

mod admission;
mod backtest;
mod diff;
mod outcome;
mod plan_name;
mod refusal;
mod source;
mod stored_plan;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use converger_core::apply::{OperationHistory, OperationId, RunId, RunStart, Slug};
use converger_core::artifact::{Digest, Provenance, write_plan};
use converger_core::evidence::{
    Admissibility, AdmissionTracker, Decision, DecisionInputs, DecisionPart, LedgerEntry, RecordedAdmission, ReplayableDecision,
    ReproduceError, reproduce,
};
use converger_core::failure::FailureCode;
use converger_core::plan::PLANNER_VERSION;
use converger_core::timestamp;
use converger_runtime::LedgerReader;
use serde_json::{Value as Json, json};

use super::ledger::broken;
use super::{CommandError, finish_output};
use crate::cli::ReproduceArgs;
use crate::exit_status::ExitStatus;
use crate::files::{OwnFile, Replaces};
use crate::render::{self, ReportOptions, apply_style, quote_untrusted};
use crate::verbosity::{self, Verbosity};
use crate::{config, files, line_wrap, output};
use outcome::PlanOutcome;
use refusal::RecordedRefusal;
use source::BlobReader;
use stored_plan::StoredPlan;

pub(super) use admission::admission_json;
pub(super) use backtest::run_backtest;
pub(super) use diff::run_diff;
pub(super) use plan_name::DigestPrefix;
pub(super) use source::{DecisionLocation, DecisionSource};

/// The decision of one run.
#[derive(Clone)]
pub(super) struct RunDecision {
    pub(super) run: RunStart,
    pub(super) decision: Decision,
    /// The digest of what a person confirms. Plans with other observations can have the same one.
    proposal: Digest,
    /// The ledger entry of its plan.
    pub(super) index: u64,
    /// Each recorded answer to whether it may be applied.
    admissions: Vec<RecordedAdmission>,
    /// The codes of refusals that concern the whole run.
    run_refusals: Vec<Slug>,
}

/// All recorded decisions.
#[derive(Default)]
pub(super) struct DecisionIndex {
    /// In the order of the ledger.
    pub(super) decisions: Vec<RunDecision>,
    /// Pruned blobs: by whom, and when.
    pruned: BTreeMap<Digest, (Box<str>, u64)>,
    /// Runs without an end, with the index of their decision once there is one.
    started: BTreeMap<RunId, (RunStart, DecisionInputs, Option<usize>)>,
    admissions: AdmissionTracker,
    /// The entry that is wanted by its index, once it is found.
    sought_entry: Option<(u64, Option<LedgerEntry>)>,
}

impl DecisionIndex {
    /// An empty index that also collects one entry.
    fn for_entry(index: Option<u64>) -> Self {
        Self { sought_entry: index.map(|index| (index, None)), ..Self::default() }
    }

    /// Adds every entry of a ledger.
    fn read_ledger(mut self, ledger: &LedgerReader) -> Result<Self, CommandError> {
        ledger.for_each_entry::<CommandError>(0, ledger.heads()?.all.size, |index, bytes| {
            self.add_entry(index, ledger.parse_entry(index, bytes)?);
            Ok(())
        })?;
        Ok(self)
    }

    /// Adds one entry.
    fn add_entry(&mut self, index: u64, entry: LedgerEntry) {
        if let Some((sought, found)) = &mut self.sought_entry
            && *sought == index
        {
            *found = Some(entry.clone());
        }
        if let Some(admission) = self.admissions.apply_entry(index, &entry)
            && let Some(run_decision) = self.open_decision(&admission.run)
        {
            run_decision.admissions.push(admission);
        }
        match entry {
            LedgerEntry::RunStarted { run, inputs } => drop(self.started.insert(run.id.clone(), (run, inputs, None))),
            LedgerEntry::PlanMade { run, plan, judgement, proposal, .. } => {
                if let Some((run, inputs, decision_index)) = self.started.get_mut(&run) {
                    *decision_index = Some(self.decisions.len());
                    let decision = Decision { inputs: inputs.clone(), plan, judgement };
                    self.decisions.push(RunDecision {
                        run: run.clone(),
                        decision,
                        proposal,
                        index,
                        admissions: Vec::new(),
                        run_refusals: Vec::new(),
                    });
                }
            }
            LedgerEntry::Refused { run, guest: None, code, .. } => {
                if let Some(run_decision) = self.open_decision(&run) {
                    run_decision.run_refusals.push(code);
                }
            }
            LedgerEntry::RunEnded { run, .. } => drop(self.started.remove(&run)),
            LedgerEntry::Pruned { by, digests, at_ms, .. } => {
                self.pruned.extend(digests.iter().map(|digest| (*digest, (by.clone(), at_ms))));
            }
            _ => {}
        }
    }

    /// The decision of a run without an end.
    fn open_decision(&mut self, run: &RunId) -> Option<&mut RunDecision> {
        let (_, _, decision_index) = self.started.get(run)?;
        self.decisions.get_mut((*decision_index)?)
    }

    /// Makes a decision again from its recorded inputs.
    pub(super) fn reproduce_decision(
        &self,
        source: &DecisionSource<'_>,
        run_decision: &RunDecision,
    ) -> Result<ReplayableDecision, CommandError> {
        self.try_reproduce(source, run_decision)?.map_err(|error| self.reproduce_error(run_decision, error))
    }

    /// The same, with the cause if it cannot be made again.
    fn try_reproduce(
        &self,
        source: &DecisionSource<'_>,
        run_decision: &RunDecision,
    ) -> Result<Result<ReplayableDecision, ReproduceError>, CommandError> {
        let blobs = BlobReader::new(source);
        let reproduced = reproduce(&run_decision.decision, |digest| blobs.blob(digest), config::parse_config_snapshot);
        blobs.check_reads()?;
        Ok(reproduced)
    }

    /// A part of a decision as it was recorded, by any version of the program.
    fn read_part_json(&self, source: &DecisionSource<'_>, run_decision: &RunDecision, part: DecisionPart) -> Result<Json, CommandError> {
        let digest = run_decision.decision.digest(part);
        let bytes = source.blob(digest)?.ok_or_else(|| self.reproduce_error(run_decision, ReproduceError::Missing { part, digest }))?;
        serde_json::from_slice(&bytes).map_err(|error| broken(format!("the {part} {digest} is not JSON: {error}")))
    }

    fn reproduce_error(&self, run_decision: &RunDecision, error: ReproduceError) -> CommandError {
        let run = run_decision.run.id.as_str();
        if let ReproduceError::Missing { part, digest } = &error
            && let Some((by, at_ms)) = self.pruned.get(digest)
        {
            let when = timestamp::format_timestamp(at_ms / 1000);
            return CommandError::failure(format!("the {part} of run {run} was pruned by {} at {when}", quote_untrusted(by)))
                .with_code(FailureCode::EvidencePruned)
                .with_help(FailureCode::EvidencePruned.entry().remedy);
        }
        match Admissibility::from(error) {
            Admissibility::Broken(broken) => {
                CommandError::evidence_error(broken.code, format!("the decision of run {run}: {}", broken.what))
            }
            Admissibility::Undecidable(ReproduceError::OtherPlanner { then, now }) => {
                let program = quote_untrusted(&run_decision.decision.inputs.program);
                CommandError::failure(format!("run {run} was decided by planner {then} of converger {program}, and this is planner {now}"))
                    .with_code(FailureCode::OtherPlanner)
                    .with_help(format!("use converger {program}, with a copy of the state directory"))
            }
            _ => CommandError::failure(format!("run {run} was decided with other tables of fields or actions than this version has"))
                .with_code(FailureCode::OtherPlanner)
                .with_help(format!(
                    "use converger {}, with a copy of the state directory",
                    quote_untrusted(&run_decision.decision.inputs.program)
                )),
        }
    }
}

pub(super) fn run_reproduce(arguments: &ReproduceArgs) -> Result<ExitStatus, CommandError> {
    let location = DecisionLocation::from_source(&arguments.source);
    let replaces = Replaces::own(OwnFile::PLAN, arguments.overwrite.overwrite);
    if let Some(out) = &arguments.out {
        location.check_output_path(out)?;
        super::check_output_replaceable(out, replaces)?;
    }
    let (run_decision, reproduced, others) = location.read(|source, index| {
        let run_decision = index.require_decision(&arguments.what)?;
        let reproduced = index.reproduce_decision(source, run_decision)?;
        run_decision.admissions.iter().try_for_each(|admission| admission::check_admission(source, admission))?;
        Ok((run_decision.clone(), reproduced, index.other_runs(&arguments.what, run_decision)))
    })?;
    if let Some(out) = &arguments.out {
        let judged = reproduced.decide();
        files::replace(out, replaces, |file| write_plan(file, &judged, Provenance::Replay))
            .map_err(|error| super::write_error(out, &error))?;
    }
    let written = if arguments.json {
        output::print_json(|out| writeln!(out, "{}", decision_json(&run_decision, &others)))
    } else {
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&render_reproduced(&run_decision, &others)))
    };
    finish_output(written, ExitStatus::Done)
}

fn render_reproduced(run_decision: &RunDecision, others: &[RunId]) -> String {
    let RunDecision { run, decision, index, admissions: admitted, .. } = run_decision;
    let mut text = format!("{} the same inputs give the same decision, byte for byte\n", apply_style(render::GREEN.bold(), "reproduced:"));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {} {value}", apply_style(render::CYAN, format!("{name:<12}")));
    };
    row("plan", render::short_digest(decision.plan));
    row("judgement", render::short_digest(decision.judgement));
    row("run", describe_run(run));
    row("made by", format!("converger {}, planner {}", quote_untrusted(&decision.inputs.program), decision.inputs.planner));
    row("made again", format!("converger {}, planner {PLANNER_VERSION}", env!("CARGO_PKG_VERSION")));
    row("entry", index.to_string());
    if admitted.is_empty() {
        row("admission", "none: the run ended before it".to_owned());
    }
    admitted.iter().for_each(|admission| row("admission", admission::describe_rechecked_admission(admission)));
    if let Some(text) = describe_other_runs(others) {
        row("also", text);
    }
    text
}

/// A note about other runs that made the same plan: each has its own observation.
fn describe_other_runs(others: &[RunId]) -> Option<String> {
    let last = others.last()?.as_str();
    let count = render::count_with_noun(others.len() as u64, "other run");
    Some(format!("{count} made a plan with the same body, the last of them {last}; their judgements may differ: name a run to see it"))
}

fn decision_json(run_decision: &RunDecision, others: &[RunId]) -> Json {
    let RunDecision { run, decision, index, admissions: admitted, .. } = run_decision;
    let admissions: Vec<Json> = admitted.iter().map(admission::admission_json).collect();
    json!({
        "schema": "converger.reproduced/1", "same": true, "run": run.id.as_str(), "environment": run.environment, "entry": index,
        "plan": decision.plan, "judgement": decision.judgement, "program": decision.inputs.program, "planner": decision.inputs.planner,
        "by": env!("CARGO_PKG_VERSION"), "admissions": admissions, "also": others.iter().map(RunId::as_str).collect::<Vec<_>>(),
    })
}

/// Explains what was recorded under a name: a plan, by its digest or its run, made again; an operation; or a refusal, by its entry.
/// None if nothing was recorded, or if the name is not one of these.
pub(super) fn explain_recorded(location: &DecisionLocation<'_>, name: &str, as_json: bool) -> Result<Option<ExitStatus>, CommandError> {
    let item = location.read_if_present(name.parse().ok(), |source, decided| {
        if let Some((index, Some(entry))) = &decided.sought_entry {
            return RecordedRefusal::from_entry(*index, entry, decided).map(ExplainedItem::Refusal);
        }
        let operation = OperationId::new(name).map(|id| source.operation(&id)).transpose()?.flatten();
        match (operation, decided.find_decision(name)?) {
            (Some(history), _) => {
                let run_decision = decided.find_run(&history.operation.run).cloned();
                Ok(ExplainedItem::Operation(Box::new(history), run_decision))
            }
            (None, Some(run_decision)) => {
                let plan = match decided.reproduce_decision(source, run_decision) {
                    Ok(reproduced) => ShownPlan::Reproduced(reproduced),
                    Err(error) if error.is_broken() => return Err(error),
                    Err(error) => ShownPlan::Stored(StoredPlan::load(source, decided, run_decision, &error)?),
                };
                Ok(ExplainedItem::Plan(
                    plan,
                    run_decision.clone(),
                    PlanOutcome::load(source, run_decision, decided.other_runs(name, run_decision))?,
                ))
            }
            (None, None) if DigestPrefix::parse(name).is_some() && name.parse::<u64>().is_err() => Err(decided.unknown_plan_error(name)),
            (None, None) => Ok(ExplainedItem::Nothing),
        }
    })?;
    let written = match item {
        None | Some(ExplainedItem::Nothing) => return Ok(None),
        Some(ExplainedItem::Refusal(refusal)) if as_json => output::print_json(|out| writeln!(out, "{}", refusal.json)),
        Some(ExplainedItem::Refusal(refusal)) => write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&refusal.render())),
        Some(ExplainedItem::Operation(history, _)) if as_json => {
            output::print_json(|out| writeln!(out, "{}", super::ops::history_json(&history)))
        }
        Some(ExplainedItem::Operation(history, run_decision)) => {
            let text = super::ops::render_with_reason(&history, run_decision.as_ref().map(describe_origin).as_deref());
            write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text))
        }
        Some(ExplainedItem::Plan(plan, run_decision, outcome)) if as_json => {
            plan.to_json(&run_decision).and_then(|plan| output::print_json(|out| writeln!(out, "{}", outcome.to_json(&run_decision, plan))))
        }
        Some(ExplainedItem::Plan(plan, run_decision, outcome)) => {
            let written = match plan {
                ShownPlan::Reproduced(reproduced) => {
                    let options = ReportOptions::new(verbosity::current().max(Verbosity::Normal));
                    super::print_report(&reproduced.decide(), &describe_origin(&run_decision), options)
                }
                ShownPlan::Stored(stored) => {
                    write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&stored.render(&describe_origin(&run_decision))))
                }
            };
            written.and_then(|()| write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&outcome.render(&run_decision))))
        }
    };
    finish_output(written, ExitStatus::Done).map(Some)
}

/// What a name stands for.
enum ExplainedItem {
    Nothing,
    Refusal(RecordedRefusal),
    Operation(Box<OperationHistory>, Option<RunDecision>),
    Plan(ShownPlan, RunDecision, PlanOutcome),
}

/// A recorded plan.
enum ShownPlan {
    /// Made again from its inputs.
    Reproduced(ReplayableDecision),
    /// As far as it is stored: its inputs are gone, or another planner made it.
    Stored(StoredPlan),
}

impl ShownPlan {
    fn to_json(&self, run_decision: &RunDecision) -> io::Result<Json> {
        match self {
            Self::Reproduced(reproduced) => {
                let mut bytes = Vec::new();
                write_plan(&mut bytes, &reproduced.decide(), Provenance::Replay)?;
                serde_json::from_slice(&bytes).map_err(io::Error::from)
            }
            Self::Stored(stored) => Ok(stored.to_json(run_decision)),
        }
    }
}

fn describe_origin(run_decision: &RunDecision) -> String {
    format!("decided {} by {}", timestamp::format_timestamp(run_decision.run.at_ms / 1000), quote_untrusted(&run_decision.run.by))
}

/// A run with its environment, start and requester.
fn describe_run(run: &RunStart) -> String {
    let started_at = timestamp::format_timestamp(run.at_ms / 1000);
    format!("{} in {} at {started_at} by {}", run.id.as_str(), run.environment, quote_untrusted(&run.by))
}
