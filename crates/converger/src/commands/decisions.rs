//! Decisions that were recorded: made again, shown, compared, and weighed under other rules. All of it from what the ledger keeps.
//!
//! What never enters: the environment itself, and deciding anything new.

mod backtest;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use converger_core::apply::{History, OperationId, Run, RunId};
use converger_core::artifact::{Digest, Provenance, write_plan};
use converger_core::evidence::{Answer, Decision, Entry, Irreproducible, Piece, Recalled, reproduce};
use converger_core::failure::Code;
use converger_core::moment;
use converger_core::plan::PLANNER;
use serde_json::{Value as Json, json};

use super::ledger::{Book, Shelf, broken};
use super::{Stop, shown};
use crate::cli::{Diff, Reproducing};
use crate::exit::End;
use crate::render::{self, styled, theirs};
use crate::{files, output, screen};

pub(super) use backtest::backtest;

/// A run that decided something.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) run: Run,
    pub(super) decision: Decision,
    /// The entry of its plan.
    pub(super) index: u64,
}

/// Everything that was decided.
#[derive(Default)]
pub(super) struct Decided {
    /// In order.
    pub(super) made: Vec<Made>,
    /// What a person let go: who, and when.
    pruned: BTreeMap<Digest, (Box<str>, u64)>,
}

impl Decided {
    pub(super) fn all(book: &Book) -> Result<Self, Stop> {
        let (mut decided, mut started) = (Self::default(), BTreeMap::new());
        book.each(0, book.heads()?.all.size, |index, bytes| {
            match book.entry(index, bytes)? {
                Entry::RunStarted { run, inputs } => drop(started.insert(run.id.clone(), (run, inputs))),
                Entry::PlanMade { run, plan, judgement, .. } => {
                    if let Some((run, inputs)) = started.get(&run).cloned() {
                        decided.made.push(Made { run, decision: Decision { inputs, plan, judgement }, index });
                    }
                }
                Entry::RunEnded { run, .. } => drop(started.remove(&run)),
                Entry::Pruned { by, digests, at_ms, .. } => {
                    decided.pruned.extend(digests.iter().map(|digest| (*digest, (by.clone(), at_ms))));
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(decided)
    }

    /// The last decision with this plan, or that of this run.
    fn find(&self, name: &str) -> Option<&Made> {
        let (plan, run) = (Digest::parse(name), RunId::new(name));
        let is_meant = |made: &&Made| plan.is_some_and(|plan| made.decision.plan == plan) || run.as_ref() == Some(&made.run.id);
        self.made.iter().rfind(is_meant)
    }

    fn named(&self, name: &str) -> Result<&Made, Stop> {
        self.find(name).ok_or_else(|| {
            Stop::input(format!("the ledger has no plan and no run `{}`", name.escape_debug()))
                .code(Code::UsageWrong)
                .help("a plan is named by its full digest, a run by its id; `converger ledger tail` shows both")
        })
    }

    /// What a decision was made of, with the decision made again.
    pub(super) fn again(&self, book: &Book, made: &Made) -> Result<Recalled, Stop> {
        // What is kept and cannot be read is told as that, and not as missing.
        let unread = RefCell::new(None);
        let kept = |digest| book.blob(digest).unwrap_or_else(|stop| unread.replace(Some(stop)).and(None));
        reproduce(&made.decision, kept).map_err(|found| unread.take().unwrap_or_else(|| self.told(made, found)))
    }

    fn told(&self, made: &Made, found: Irreproducible) -> Stop {
        let run = made.run.id.as_str();
        if let Irreproducible::Missing { piece, digest } = &found
            && let Some((by, at_ms)) = self.pruned.get(digest)
        {
            let when = moment::written(at_ms / 1000);
            return Stop::failed(format!("the {piece} of the run {run} was let go by {} at {when}", theirs(by)))
                .code(Code::EvidencePruned)
                .help(Code::EvidencePruned.entry().remedy);
        }
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
}

pub(super) fn reproduce_command(arguments: &Reproducing) -> Result<End, Stop> {
    let (made, recalled) = Shelf::of(arguments.config.as_deref())?.read(|book| {
        let decided = Decided::all(book)?;
        let made = decided.named(&arguments.what)?;
        Ok((made.clone(), decided.again(book, made)?))
    })?;
    if let Some(out) = &arguments.out {
        super::not_kept(out, arguments.config.as_deref())?;
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

/// Why something that was recorded is what it is: a plan, by its digest or its run, made again and shown as it was then; or an operation.
/// Nothing, where nothing has that name, or nothing was recorded.
pub(super) fn explain_recorded(config: Option<&Path>, name: &str, as_json: bool) -> Result<Option<End>, Stop> {
    let shelf = match Shelf::of(config) {
        // A machine on which nothing says where records would be has none; codes are explained there too.
        Err(_) if config.is_none() => return Ok(None),
        shelf => shelf?,
    };
    let told = shelf.read_if_there(|book| {
        let decided = Decided::all(book)?;
        let operation = OperationId::new(name).map(|id| book.operation(&id)).transpose()?.flatten();
        match (operation, decided.find(name)) {
            (Some(history), _) => Ok(Told::Operation(Box::new(history.clone()), decided.find(history.operation.run.as_str()).cloned())),
            (None, Some(made)) => Ok(Told::Plan(decided.again(book, made)?, made.clone())),
            (None, None) => Ok(Told::Nothing),
        }
    })?;
    let written = match told {
        None | Some(Told::Nothing) => return Ok(None),
        Some(Told::Operation(history, _)) if as_json => output::json(|out| writeln!(out, "{}", super::ops::as_json(&history))),
        Some(Told::Operation(history, made)) => {
            let text = super::ops::explained(&history, made.as_ref().map(origin).as_deref());
            write!(anstream::stdout(), "{}", screen::out(&text))
        }
        Some(Told::Plan(recalled, _)) if as_json => output::json(|out| write_plan(out, &recalled.decide(), Provenance::Replay).map(drop)),
        Some(Told::Plan(recalled, made)) => super::report(&recalled.decide(), &origin(&made), true),
    };
    shown(written, End::Done).map(Some)
}

/// What is told about a name.
enum Told {
    Nothing,
    Operation(Box<History>, Option<Made>),
    Plan(Recalled, Made),
}

fn origin(made: &Made) -> String {
    format!("decided {} by {}", moment::written(made.run.at_ms / 1000), theirs(&made.run.by))
}

/// What two plans do differently, guest by guest.
pub(super) fn diff(arguments: &Diff) -> Result<End, Stop> {
    let (one, other) = Shelf::of(arguments.config.as_deref())?.read(|book| {
        let decided = Decided::all(book)?;
        let body = |name: &str| -> Result<Json, Stop> {
            let made = decided.named(name)?;
            let digest = made.decision.plan;
            let bytes = book.blob(digest)?.ok_or_else(|| decided.told(made, Irreproducible::Missing { piece: Piece::Plan, digest }))?;
            serde_json::from_slice(&bytes).map_err(|error| broken(format!("the plan {digest} is no JSON: {error}")))
        };
        Ok((body(&arguments.one)?, body(&arguments.other)?))
    })?;
    let differences = super::apply::differences(&one, &other);
    let lines: String = differences.iter().map(|line| format!("{}\n", files::plain(line))).collect();
    let text = if lines.is_empty() { "the same steps on the same guests\n".to_owned() } else { lines };
    shown(write!(anstream::stdout(), "{text}"), if differences.is_empty() { End::Done } else { End::ChangesPending })
}
