//! Decisions that were recorded: made again, shown, compared, and weighed under other rules. All of it from what the ledger keeps.
//!
//! What never enters: the environment itself, and deciding anything new.

mod admission;
mod backtest;
mod diff;
mod outcome;
mod refusal;
mod source;
mod stored_plan;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use converger_core::apply::{OperationHistory, OperationId, RunId, RunStart};
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
use crate::render::{self, apply_style, quote_untrusted};
use crate::{config, files, line_wrap, output};
use outcome::PlanOutcome;
use refusal::RecordedRefusal;
use source::BlobReader;
use stored_plan::StoredPlan;

pub(super) use admission::admission_json;
pub(super) use backtest::run_backtest;
pub(super) use diff::run_diff;
pub(super) use source::{DecisionLocation, DecisionSource};

/// A run that decided something.
#[derive(Clone)]
pub(super) struct RunDecision {
    pub(super) run: RunStart,
    pub(super) decision: Decision,
    /// The entry of its plan.
    pub(super) index: u64,
    /// Whether it may be carried out, each time that was weighed.
    admissions: Vec<RecordedAdmission>,
}

/// Everything that was decided.
#[derive(Default)]
pub(super) struct DecisionIndex {
    /// In order.
    pub(super) decisions: Vec<RunDecision>,
    /// What a person let go: who, and when.
    pruned: BTreeMap<Digest, (Box<str>, u64)>,
    /// Runs that have not ended, with their places among the decisions once they made one.
    started: BTreeMap<RunId, (RunStart, DecisionInputs, Option<usize>)>,
    admissions: AdmissionTracker,
    /// An entry that is looked for by its index.
    sought_entry: Option<(u64, Option<LedgerEntry>)>,
}

impl DecisionIndex {
    /// Nothing yet, and an entry that is looked for by its index.
    fn for_entry(index: Option<u64>) -> Self {
        Self { sought_entry: index.map(|index| (index, None)), ..Self::default() }
    }

    /// With all that a ledger has.
    fn read_ledger(mut self, book: &LedgerReader) -> Result<Self, CommandError> {
        book.for_each_entry::<CommandError>(0, book.heads()?.all.size, |index, bytes| {
            self.add_entry(index, book.parse_entry(index, bytes)?);
            Ok(())
        })?;
        Ok(self)
    }

    /// One entry more.
    fn add_entry(&mut self, index: u64, entry: LedgerEntry) {
        if let Some((sought, found)) = &mut self.sought_entry
            && *sought == index
        {
            *found = Some(entry.clone());
        }
        if let Some(weighed) = self.admissions.apply_entry(index, &entry)
            && let Some(made) = self.open_decision(&weighed.run)
        {
            made.admissions.push(weighed);
        }
        match entry {
            LedgerEntry::RunStarted { run, inputs } => drop(self.started.insert(run.id.clone(), (run, inputs, None))),
            LedgerEntry::PlanMade { run, plan, judgement, .. } => {
                if let Some((run, inputs, place)) = self.started.get_mut(&run) {
                    *place = Some(self.decisions.len());
                    let decision = Decision { inputs: inputs.clone(), plan, judgement };
                    self.decisions.push(RunDecision { run: run.clone(), decision, index, admissions: Vec::new() });
                }
            }
            LedgerEntry::RunEnded { run, .. } => drop(self.started.remove(&run)),
            LedgerEntry::Pruned { by, digests, at_ms, .. } => {
                self.pruned.extend(digests.iter().map(|digest| (*digest, (by.clone(), at_ms))));
            }
            _ => {}
        }
    }

    /// What a run decided that has not ended.
    fn open_decision(&mut self, run: &RunId) -> Option<&mut RunDecision> {
        let (_, _, place) = self.started.get(run)?;
        self.decisions.get_mut((*place)?)
    }

    /// The last decision with this plan, or that of this run.
    fn find_decision(&self, name: &str) -> Option<&RunDecision> {
        let (plan, run) = (Digest::parse(name), RunId::new(name));
        let is_meant = |made: &&RunDecision| plan.is_some_and(|plan| made.decision.plan == plan) || run.as_ref() == Some(&made.run.id);
        self.decisions.iter().rfind(is_meant)
    }

    /// The other runs whose decision has the same name: they made the same plan.
    fn other_runs(&self, name: &str, taken: &RunDecision) -> Vec<RunId> {
        let plan = Digest::parse(name);
        let is_other = |made: &&RunDecision| plan == Some(made.decision.plan) && made.run.id != taken.run.id;
        self.decisions.iter().filter(is_other).map(|made| made.run.id.clone()).collect()
    }

    fn require_decision(&self, name: &str) -> Result<&RunDecision, CommandError> {
        self.find_decision(name).ok_or_else(|| {
            CommandError::input_error(format!("the ledger has no plan and no run `{}`", name.escape_debug())).with_help(
                "a plan is named by its full digest, a run by its id; `converger ledger tail` shows both, with --from those of an export",
            )
        })
    }

    /// What a decision was made of, with the decision made again.
    pub(super) fn reproduce_decision(&self, record: &DecisionSource<'_>, made: &RunDecision) -> Result<ReplayableDecision, CommandError> {
        self.try_reproduce(record, made)?.map_err(|found| self.reproduce_error(made, found))
    }

    /// The same, with what stands in the way as it was found.
    fn try_reproduce(
        &self,
        record: &DecisionSource<'_>,
        made: &RunDecision,
    ) -> Result<Result<ReplayableDecision, ReproduceError>, CommandError> {
        let keeper = BlobReader::new(record);
        let recalled = reproduce(&made.decision, |digest| keeper.blob(digest), config::parse_config_snapshot);
        keeper.check_reads()?;
        Ok(recalled)
    }

    /// A part of a decision as it was written, by this or another program.
    fn read_part_json(&self, record: &DecisionSource<'_>, made: &RunDecision, piece: DecisionPart) -> Result<Json, CommandError> {
        let digest = made.decision.digest(piece);
        let bytes = record.blob(digest)?.ok_or_else(|| self.reproduce_error(made, ReproduceError::Missing { part: piece, digest }))?;
        serde_json::from_slice(&bytes).map_err(|error| broken(format!("the {piece} {digest} is no JSON: {error}")))
    }

    fn reproduce_error(&self, made: &RunDecision, found: ReproduceError) -> CommandError {
        let run = made.run.id.as_str();
        if let ReproduceError::Missing { part: piece, digest } = &found
            && let Some((by, at_ms)) = self.pruned.get(digest)
        {
            let when = timestamp::format_timestamp(at_ms / 1000);
            return CommandError::failure(format!("the {piece} of the run {run} was let go by {} at {when}", quote_untrusted(by)))
                .with_code(FailureCode::EvidencePruned)
                .with_help(FailureCode::EvidencePruned.entry().remedy);
        }
        match Admissibility::from(found) {
            Admissibility::Broken(broken) => {
                CommandError::evidence_error(broken.code, format!("the decision of the run {run}: {}", broken.what))
            }
            Admissibility::Undecidable(ReproduceError::OtherPlanner { then, now }) => {
                let program = quote_untrusted(&made.decision.inputs.program);
                CommandError::failure(format!(
                    "the run {run} was decided by planner {then} of converger {program}, and this is planner {now}"
                ))
                .with_code(FailureCode::OtherPlanner)
                .with_help(format!("it would only be pretended here: take converger {program}, with a copy of the state directory"))
            }
            _ => CommandError::failure(format!("the run {run} was decided with other tables of fields or actions than this program has"))
                .with_code(FailureCode::OtherPlanner)
                .with_help(format!(
                    "take converger {}, with a copy of the state directory",
                    quote_untrusted(&made.decision.inputs.program)
                )),
        }
    }
}

pub(super) fn run_reproduce(arguments: &ReproduceArgs) -> Result<ExitStatus, CommandError> {
    let place = DecisionLocation::from_source(&arguments.source);
    let replaces = Replaces::own(OwnFile::PLAN, arguments.overwrite.overwrite);
    if let Some(out) = &arguments.out {
        place.check_output_path(out)?;
        super::check_output_replaceable(out, replaces)?;
    }
    let (made, recalled, others) = place.read(|record, decided| {
        let made = decided.require_decision(&arguments.what)?;
        let recalled = decided.reproduce_decision(record, made)?;
        made.admissions.iter().try_for_each(|weighed| admission::check_admission(record, weighed))?;
        Ok((made.clone(), recalled, decided.other_runs(&arguments.what, made)))
    })?;
    if let Some(out) = &arguments.out {
        let judged = recalled.decide();
        files::replace(out, replaces, |file| write_plan(file, &judged, Provenance::Replay))
            .map_err(|error| super::write_error(out, &error))?;
    }
    let written = if arguments.json {
        output::print_json(|out| writeln!(out, "{}", decision_json(&made, &others)))
    } else {
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&render_reproduced(&made, &others)))
    };
    finish_output(written, ExitStatus::Done)
}

fn render_reproduced(made: &RunDecision, others: &[RunId]) -> String {
    let RunDecision { run, decision, index, admissions: admitted, .. } = made;
    let mut text = format!("{} the same inputs give the same decision, byte for byte\n", apply_style(render::GREEN.bold(), "reproduced:"));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {} {value}", apply_style(render::CYAN, format!("{name:<12}")));
    };
    row("plan", decision.plan.to_string());
    row("judgement", decision.judgement.to_string());
    row(
        "run",
        format!(
            "{} in {} at {} by {}",
            run.id.as_str(),
            run.environment,
            timestamp::format_timestamp(run.at_ms / 1000),
            quote_untrusted(&run.by)
        ),
    );
    row("made by", format!("converger {}, planner {}", quote_untrusted(&decision.inputs.program), decision.inputs.planner));
    row("made again", format!("converger {}, planner {PLANNER_VERSION}", env!("CARGO_PKG_VERSION")));
    row("entry", index.to_string());
    if admitted.is_empty() {
        row("admission", "none: the run ended before it was weighed".to_owned());
    }
    admitted.iter().for_each(|weighed| row("admission", admission::describe_rechecked_admission(weighed)));
    if let Some(told) = describe_other_runs(others) {
        row("also", told);
    }
    text
}

/// The other runs that made the same plan: each has its own reading, and its own name to be asked for.
fn describe_other_runs(others: &[RunId]) -> Option<String> {
    let last = others.last()?.as_str();
    let count = render::count_with_noun(others.len() as u64, "earlier run");
    Some(format!("{count} made the same plan, the last of them {last}; this is the newest: name a run to take another"))
}

fn decision_json(made: &RunDecision, others: &[RunId]) -> Json {
    let RunDecision { run, decision, index, admissions: admitted, .. } = made;
    let admissions: Vec<Json> = admitted.iter().map(admission::admission_json).collect();
    json!({
        "schema": "converger.reproduced/1", "same": true, "run": run.id.as_str(), "environment": run.environment, "entry": index,
        "plan": decision.plan, "judgement": decision.judgement, "program": decision.inputs.program, "planner": decision.inputs.planner,
        "by": env!("CARGO_PKG_VERSION"), "admissions": admissions, "also": others.iter().map(RunId::as_str).collect::<Vec<_>>(),
    })
}

/// Why something that was recorded is what it is: a plan, by its digest or its run, made again and shown as it was then; an operation; or a
/// refusal, by its entry.
/// Nothing, where nothing has that name, or nothing was recorded.
pub(super) fn explain_recorded(place: &DecisionLocation<'_>, name: &str, as_json: bool) -> Result<Option<ExitStatus>, CommandError> {
    let told = place.read_if_present(name.parse().ok(), |record, decided| {
        if let Some((index, Some(entry))) = &decided.sought_entry {
            return RecordedRefusal::from_entry(*index, entry, decided).map(ExplainedItem::Refusal);
        }
        let operation = OperationId::new(name).map(|id| record.operation(&id)).transpose()?.flatten();
        match (operation, decided.find_decision(name)) {
            (Some(history), _) => {
                let made = decided.find_decision(history.operation.run.as_str()).cloned();
                Ok(ExplainedItem::Operation(Box::new(history), made))
            }
            (None, Some(made)) => {
                let plan = match decided.try_reproduce(record, made)?.map_err(|found| decided.reproduce_error(made, found)) {
                    Ok(recalled) => ShownPlan::Reproduced(recalled),
                    Err(told) if told.is_broken() => return Err(told),
                    Err(told) => ShownPlan::Stored(StoredPlan::load(record, decided, made, &told)?),
                };
                Ok(ExplainedItem::Plan(plan, made.clone(), PlanOutcome::load(record, made, decided.other_runs(name, made))?))
            }
            (None, None) => Ok(ExplainedItem::Nothing),
        }
    })?;
    let written = match told {
        None | Some(ExplainedItem::Nothing) => return Ok(None),
        Some(ExplainedItem::Refusal(refusal)) if as_json => output::print_json(|out| writeln!(out, "{}", refusal.json)),
        Some(ExplainedItem::Refusal(refusal)) => write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&refusal.render())),
        Some(ExplainedItem::Operation(history, _)) if as_json => {
            output::print_json(|out| writeln!(out, "{}", super::ops::history_json(&history)))
        }
        Some(ExplainedItem::Operation(history, made)) => {
            let text = super::ops::render_with_reason(&history, made.as_ref().map(describe_origin).as_deref());
            write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text))
        }
        Some(ExplainedItem::Plan(plan, made, fate)) if as_json => {
            plan.to_json(&made).and_then(|plan| output::print_json(|out| writeln!(out, "{}", fate.to_json(&made, plan))))
        }
        Some(ExplainedItem::Plan(plan, made, fate)) => {
            let told = match plan {
                ShownPlan::Reproduced(recalled) => super::print_report(&recalled.decide(), &describe_origin(&made), true),
                ShownPlan::Stored(kept) => {
                    write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&kept.render(&describe_origin(&made))))
                }
            };
            told.and_then(|()| write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&fate.render(&made))))
        }
    };
    finish_output(written, ExitStatus::Done).map(Some)
}

/// What is told about a name.
enum ExplainedItem {
    Nothing,
    Refusal(RecordedRefusal),
    Operation(Box<OperationHistory>, Option<RunDecision>),
    Plan(ShownPlan, RunDecision, PlanOutcome),
}

/// A plan that was recorded.
enum ShownPlan {
    /// Made again.
    Reproduced(ReplayableDecision),
    /// It can no longer be made again: as far as it is kept.
    Stored(StoredPlan),
}

impl ShownPlan {
    fn to_json(&self, made: &RunDecision) -> io::Result<Json> {
        match self {
            Self::Reproduced(recalled) => {
                let mut bytes = Vec::new();
                write_plan(&mut bytes, &recalled.decide(), Provenance::Replay)?;
                serde_json::from_slice(&bytes).map_err(io::Error::from)
            }
            Self::Stored(kept) => Ok(kept.to_json(made)),
        }
    }
}

fn describe_origin(made: &RunDecision) -> String {
    format!("decided {} by {}", timestamp::format_timestamp(made.run.at_ms / 1000), quote_untrusted(&made.run.by))
}
