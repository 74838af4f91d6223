//! Decisions that were recorded: made again, shown, compared, and weighed under other rules. All of it from what the ledger keeps.
//!
//! What never enters: the environment itself, and deciding anything new.

mod backtest;

use std::fmt::Write as _;
use std::io::Write as _;

use converger_core::apply::{Run, RunId};
use converger_core::artifact::{Digest, Provenance, write_plan};
use converger_core::evidence::{Answer, Decision, Entry, Irreproducible, Recalled, reproduce};
use converger_core::failure::Code;
use converger_core::moment;
use converger_core::plan::PLANNER;
use serde_json::{Value as Json, json};

use super::ledger::Book;
use super::{Stop, shown};
use crate::cli::{Diff, Reproducing};
use crate::exit::End;
use crate::output;
use crate::render::{self, styled, theirs};

pub(super) use backtest::backtest;

/// A run that decided something.
pub(super) struct Made {
    pub(super) run: Run,
    pub(super) decision: Decision,
    /// The entry of its plan.
    pub(super) index: u64,
}

/// Everything that was decided, in order.
pub(super) fn all(book: &Book) -> Result<Vec<Made>, Stop> {
    let (mut made, mut started) = (Vec::new(), Vec::new());
    book.each(0, book.heads()?.all.size, |index, bytes| {
        match book.entry(index, bytes)? {
            Entry::RunStarted { run, inputs } => started.push((run, inputs)),
            Entry::PlanMade { run, plan, judgement, .. } => {
                if let Some((run, inputs)) = started.iter().rfind(|(own, _)| own.id == run) {
                    made.push(Made { run: run.clone(), decision: Decision { inputs: inputs.clone(), plan, judgement }, index });
                }
            }
            Entry::RunEnded { run, .. } => started.retain(|(own, _)| own.id != run),
            _ => {}
        }
        Ok(())
    })?;
    Ok(made)
}

/// The last decision with this plan, or that of this run.
fn find(book: &Book, name: &str) -> Result<Made, Stop> {
    let unknown = || {
        Stop::input(format!("the ledger has no plan and no run `{}`", name.escape_debug()))
            .code(Code::UsageWrong)
            .help("a plan is named by its full digest, a run by its id; `converger ledger tail` shows both")
    };
    let (plan, run) = (Digest::parse(name), RunId::new(name));
    let is_meant = |made: &Made| plan.is_some_and(|plan| made.decision.plan == plan) || run.as_ref() == Some(&made.run.id);
    all(book)?.into_iter().rfind(is_meant).ok_or_else(unknown)
}

/// What a decision was made of, with the decision made again.
fn again(book: &Book, made: &Made) -> Result<Recalled, Stop> {
    reproduce(&made.decision, |digest| book.blob(digest).ok().flatten()).map_err(|found| told(made, found))
}

fn told(made: &Made, found: Irreproducible) -> Stop {
    let run = made.run.id.as_str();
    match Answer::from(found) {
        Answer::Broken(broken) => Stop::broken(broken.code, format!("the decision of the run {run}: {}", broken.what)),
        Answer::Untold(Irreproducible::OtherPlanner { then, now }) => {
            let program = theirs(&made.decision.inputs.program);
            Stop::decided(format!("the run {run} was decided by planner {then} of converger {program}, and this is planner {now}"))
                .help(format!("it would only be pretended here: take converger {program}, with a copy of the state directory"))
        }
        _ => Stop::decided(format!("the run {run} was decided with other tables of fields or actions than this program has"))
            .help(format!("take converger {}, with a copy of the state directory", theirs(&made.decision.inputs.program))),
    }
}

pub(super) fn reproduce_command(arguments: &Reproducing) -> Result<End, Stop> {
    let book = Book::open(arguments.config.as_deref())?;
    let made = find(&book, &arguments.what)?;
    let recalled = again(&book, &made)?;
    if let Some(out) = &arguments.out {
        let judged = recalled.decide();
        crate::files::replace(out, |file| write_plan(file, &judged, Provenance::Replay)).map_err(|error| super::unwritten(out, &error))?;
    }
    let written = if arguments.json {
        output::json(|out| writeln!(out, "{}", as_json(&made)))
    } else {
        write!(anstream::stdout(), "{}", text(&made))
    };
    shown(written, End::Done)
}

fn text(made: &Made) -> String {
    let Made { run, decision, index } = made;
    let mut text = format!("{} the same inputs give the same decision, byte for byte\n", styled(render::GREEN.bold(), "reproduced:"));
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {} {value}", styled(render::CYAN, format!("{name:<12}")));
    };
    row("plan", decision.plan.to_string());
    row("judgement", decision.judgement.to_string());
    row("run", format!("{} in {} at {} by {}", run.id.as_str(), run.environment, moment::written(run.at_ms / 1000), theirs(&run.by)));
    row("made by", format!("converger {}, planner {}", theirs(&decision.inputs.program), decision.inputs.planner));
    row("made again", format!("converger {}, planner {PLANNER}", env!("CARGO_PKG_VERSION")));
    row("entry", index.to_string());
    text
}

fn as_json(made: &Made) -> Json {
    let Made { run, decision, index } = made;
    json!({
        "schema": "converger.reproduced/1", "same": true, "run": run.id.as_str(), "environment": run.environment, "entry": index,
        "plan": decision.plan, "judgement": decision.judgement, "program": decision.inputs.program, "planner": decision.inputs.planner,
        "by": env!("CARGO_PKG_VERSION"),
    })
}

/// Why a plan is what it is: the plan as it was shown then, made again.
pub(super) fn explain_plan(config: Option<&std::path::Path>, name: &str) -> Result<End, Stop> {
    let book = Book::open(config)?;
    let made = find(&book, name)?;
    let judged = again(&book, &made)?.decide();
    let origin = format!("decided {} by {}", moment::written(made.run.at_ms / 1000), theirs(&made.run.by));
    shown(super::report(&judged, &origin, true), End::Done)
}

/// What two plans do differently, guest by guest.
pub(super) fn diff(arguments: &Diff) -> Result<End, Stop> {
    let book = Book::open(arguments.config.as_deref())?;
    let body = |name: &str| -> Result<Json, Stop> {
        let made = find(&book, name)?;
        let bytes = book.blob(made.decision.plan)?.ok_or_else(|| told(&made, missing(&made)))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| super::ledger::broken(format!("the plan {} is no JSON: {error}", made.decision.plan)))
    };
    let (one, other) = (body(&arguments.one)?, body(&arguments.other)?);
    let differences = super::apply::differences(&one, &other);
    let lines: String = differences.iter().map(|line| format!("{line}\n")).collect();
    let text = if lines.is_empty() { "the same steps on the same guests\n".to_owned() } else { lines };
    shown(write!(anstream::stdout(), "{text}"), if differences.is_empty() { End::Done } else { End::ChangesPending })
}

fn missing(made: &Made) -> Irreproducible {
    Irreproducible::Missing { piece: converger_core::evidence::Piece::Plan, digest: made.decision.plan }
}
