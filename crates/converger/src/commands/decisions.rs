//! Decisions that were recorded: made again, shown, compared, and weighed under other rules. All of it from what the ledger keeps.
//!
//! What never enters: the environment itself, and deciding anything new.

mod admission;
mod backtest;
mod fate;
mod kept;
mod record;
mod refusal;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use converger_core::apply::{History, OperationId, Run, RunId};
use converger_core::artifact::{Digest, Provenance, write_plan};
use converger_core::evidence::{Admissions, Answer, Decision, Entry, Inputs, Irreproducible, Piece, Recalled, Weighed, reproduce};
use converger_core::failure::Code;
use converger_core::moment;
use converger_core::plan::PLANNER;
use converger_runtime::LedgerReader;
use serde_json::{Value as Json, json};

use super::ledger::broken;
use super::{Stop, shown};
use crate::cli::{Diff, Reproducing};
use crate::exit::End;
use crate::files::{OwnFile, Replaces};
use crate::render::{self, styled, theirs};
use crate::{config, files, output, screen};
use fate::Fate;
use kept::Kept;
use record::Keeper;
use refusal::Refusal;

pub(super) use admission::as_json as admission_json;
pub(super) use backtest::backtest;
pub(super) use record::{Place, Record};

/// A run that decided something.
#[derive(Clone)]
pub(super) struct Made {
    pub(super) run: Run,
    pub(super) decision: Decision,
    /// The entry of its plan.
    pub(super) index: u64,
    /// Whether it may be carried out, each time that was weighed.
    admitted: Vec<Weighed>,
}

/// Everything that was decided.
#[derive(Default)]
pub(super) struct Decided {
    /// In order.
    pub(super) made: Vec<Made>,
    /// What a person let go: who, and when.
    pruned: BTreeMap<Digest, (Box<str>, u64)>,
    /// Runs that have not ended, with their places among the decisions once they made one.
    started: BTreeMap<RunId, (Run, Inputs, Option<usize>)>,
    admissions: Admissions,
    /// An entry that is looked for by its index.
    sought: Option<(u64, Option<Entry>)>,
}

impl Decided {
    /// Nothing yet, and an entry that is looked for by its index.
    fn seeking(index: Option<u64>) -> Self {
        Self { sought: index.map(|index| (index, None)), ..Self::default() }
    }

    /// With all that a ledger has.
    fn with(mut self, book: &LedgerReader) -> Result<Self, Stop> {
        book.each::<Stop>(0, book.heads()?.all.size, |index, bytes| {
            self.take(index, book.entry(index, bytes)?);
            Ok(())
        })?;
        Ok(self)
    }

    /// One entry more.
    fn take(&mut self, index: u64, entry: Entry) {
        if let Some((sought, found)) = &mut self.sought
            && *sought == index
        {
            *found = Some(entry.clone());
        }
        if let Some(weighed) = self.admissions.hear(index, &entry)
            && let Some(made) = self.under_way(&weighed.run)
        {
            made.admitted.push(weighed);
        }
        match entry {
            Entry::RunStarted { run, inputs } => drop(self.started.insert(run.id.clone(), (run, inputs, None))),
            Entry::PlanMade { run, plan, judgement, .. } => {
                if let Some((run, inputs, place)) = self.started.get_mut(&run) {
                    *place = Some(self.made.len());
                    let decision = Decision { inputs: inputs.clone(), plan, judgement };
                    self.made.push(Made { run: run.clone(), decision, index, admitted: Vec::new() });
                }
            }
            Entry::RunEnded { run, .. } => drop(self.started.remove(&run)),
            Entry::Pruned { by, digests, at_ms, .. } => {
                self.pruned.extend(digests.iter().map(|digest| (*digest, (by.clone(), at_ms))));
            }
            _ => {}
        }
    }

    /// What a run decided that has not ended.
    fn under_way(&mut self, run: &RunId) -> Option<&mut Made> {
        let (_, _, place) = self.started.get(run)?;
        self.made.get_mut((*place)?)
    }

    /// The last decision with this plan, or that of this run.
    fn find(&self, name: &str) -> Option<&Made> {
        let (plan, run) = (Digest::parse(name), RunId::new(name));
        let is_meant = |made: &&Made| plan.is_some_and(|plan| made.decision.plan == plan) || run.as_ref() == Some(&made.run.id);
        self.made.iter().rfind(is_meant)
    }

    /// The other runs whose decision has the same name: they made the same plan.
    fn others(&self, name: &str, taken: &Made) -> Vec<RunId> {
        let plan = Digest::parse(name);
        let is_other = |made: &&Made| plan == Some(made.decision.plan) && made.run.id != taken.run.id;
        self.made.iter().filter(is_other).map(|made| made.run.id.clone()).collect()
    }

    fn named(&self, name: &str) -> Result<&Made, Stop> {
        self.find(name).ok_or_else(|| {
            Stop::input(format!("the ledger has no plan and no run `{}`", name.escape_debug())).help(
                "a plan is named by its full digest, a run by its id; `converger ledger tail` shows both, with --from those of an export",
            )
        })
    }

    /// What a decision was made of, with the decision made again.
    pub(super) fn again(&self, record: &Record<'_>, made: &Made) -> Result<Recalled, Stop> {
        self.recalled(record, made)?.map_err(|found| self.told(made, found))
    }

    /// The same, with what stands in the way as it was found.
    fn recalled(&self, record: &Record<'_>, made: &Made) -> Result<Result<Recalled, Irreproducible>, Stop> {
        let keeper = Keeper::of(record);
        let recalled = reproduce(&made.decision, |digest| keeper.blob(digest), config::understood);
        keeper.read()?;
        Ok(recalled)
    }

    /// A piece of a decision as it was written, whoever wrote it.
    fn written(&self, record: &Record<'_>, made: &Made, piece: Piece) -> Result<Json, Stop> {
        let digest = made.decision.digest(piece);
        let bytes = record.blob(digest)?.ok_or_else(|| self.told(made, Irreproducible::Missing { piece, digest }))?;
        serde_json::from_slice(&bytes).map_err(|error| broken(format!("the {piece} {digest} is no JSON: {error}")))
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
                Stop::failed(format!("the run {run} was decided by planner {then} of converger {program}, and this is planner {now}"))
                    .code(Code::OtherPlanner)
                    .help(format!("it would only be pretended here: take converger {program}, with a copy of the state directory"))
            }
            _ => Stop::failed(format!("the run {run} was decided with other tables of fields or actions than this program has"))
                .code(Code::OtherPlanner)
                .help(format!("take converger {}, with a copy of the state directory", theirs(&made.decision.inputs.program))),
        }
    }
}

pub(super) fn reproduce_command(arguments: &Reproducing) -> Result<End, Stop> {
    let place = Place::of(&arguments.source);
    let replaces = Replaces::own(OwnFile::PLAN, arguments.overwrite.overwrite);
    if let Some(out) = &arguments.out {
        place.keeps_clear(out)?;
        super::may_replace(out, replaces)?;
    }
    let (made, recalled, others) = place.read(|record, decided| {
        let made = decided.named(&arguments.what)?;
        let recalled = decided.again(record, made)?;
        made.admitted.iter().try_for_each(|weighed| admission::again(record, weighed))?;
        Ok((made.clone(), recalled, decided.others(&arguments.what, made)))
    })?;
    if let Some(out) = &arguments.out {
        let judged = recalled.decide();
        files::replace(out, replaces, |file| write_plan(file, &judged, Provenance::Replay))
            .map_err(|error| super::unwritten(out, &error))?;
    }
    let written = if arguments.json {
        output::json(|out| writeln!(out, "{}", as_json(&made, &others)))
    } else {
        write!(anstream::stdout(), "{}", screen::out(&text(&made, &others)))
    };
    shown(written, End::Done)
}

fn text(made: &Made, others: &[RunId]) -> String {
    let Made { run, decision, index, admitted, .. } = made;
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
    if admitted.is_empty() {
        row("admission", "none: the run ended before it was weighed".to_owned());
    }
    admitted.iter().for_each(|weighed| row("admission", admission::again_now(weighed)));
    if let Some(told) = also(others) {
        row("also", told);
    }
    text
}

/// The other runs that made the same plan: each has its own reading, and its own name to be asked for.
fn also(others: &[RunId]) -> Option<String> {
    let last = others.last()?.as_str();
    let count = render::counted(others.len() as u64, "earlier run");
    Some(format!("{count} made the same plan, the last of them {last}; this is the newest: name a run to take another"))
}

fn as_json(made: &Made, others: &[RunId]) -> Json {
    let Made { run, decision, index, admitted, .. } = made;
    let admissions: Vec<Json> = admitted.iter().map(admission::as_json).collect();
    json!({
        "schema": "converger.reproduced/1", "same": true, "run": run.id.as_str(), "environment": run.environment, "entry": index,
        "plan": decision.plan, "judgement": decision.judgement, "program": decision.inputs.program, "planner": decision.inputs.planner,
        "by": env!("CARGO_PKG_VERSION"), "admissions": admissions, "also": others.iter().map(RunId::as_str).collect::<Vec<_>>(),
    })
}

/// Why something that was recorded is what it is: a plan, by its digest or its run, made again and shown as it was then; an operation; or a
/// refusal, by its entry.
/// Nothing, where nothing has that name, or nothing was recorded.
pub(super) fn explain_recorded(place: &Place<'_>, name: &str, as_json: bool) -> Result<Option<End>, Stop> {
    let told = place.read_if_there(name.parse().ok(), |record, decided| {
        if let Some((index, Some(entry))) = &decided.sought {
            return Refusal::of(*index, entry, decided).map(Told::Refusal);
        }
        let operation = OperationId::new(name).map(|id| record.operation(&id)).transpose()?.flatten();
        match (operation, decided.find(name)) {
            (Some(history), _) => {
                let made = decided.find(history.operation.run.as_str()).cloned();
                Ok(Told::Operation(Box::new(history), made))
            }
            (None, Some(made)) => {
                let plan = match decided.recalled(record, made)?.map_err(|found| decided.told(made, found)) {
                    Ok(recalled) => Shown::Again(recalled),
                    Err(told) if told.is_broken() => return Err(told),
                    Err(told) => Shown::Kept(Kept::of(record, decided, made, &told)?),
                };
                Ok(Told::Plan(plan, made.clone(), Fate::of(record, made, decided.others(name, made))?))
            }
            (None, None) => Ok(Told::Nothing),
        }
    })?;
    let written = match told {
        None | Some(Told::Nothing) => return Ok(None),
        Some(Told::Refusal(refusal)) if as_json => output::json(|out| writeln!(out, "{}", refusal.as_json)),
        Some(Told::Refusal(refusal)) => write!(anstream::stdout(), "{}", screen::out(&refusal.text())),
        Some(Told::Operation(history, _)) if as_json => output::json(|out| writeln!(out, "{}", super::ops::as_json(&history))),
        Some(Told::Operation(history, made)) => {
            let text = super::ops::explained(&history, made.as_ref().map(origin).as_deref());
            write!(anstream::stdout(), "{}", screen::out(&text))
        }
        Some(Told::Plan(plan, made, fate)) if as_json => {
            plan.as_json(&made).and_then(|plan| output::json(|out| writeln!(out, "{}", fate.as_json(&made, plan))))
        }
        Some(Told::Plan(plan, made, fate)) => {
            let told = match plan {
                Shown::Again(recalled) => super::report(&recalled.decide(), &origin(&made), true),
                Shown::Kept(kept) => write!(anstream::stdout(), "{}", screen::out(&kept.text(&origin(&made)))),
            };
            told.and_then(|()| write!(anstream::stdout(), "{}", screen::out(&fate.text(&made))))
        }
    };
    shown(written, End::Done).map(Some)
}

/// What is told about a name.
enum Told {
    Nothing,
    Refusal(Refusal),
    Operation(Box<History>, Option<Made>),
    Plan(Shown, Made, Fate),
}

/// A plan that was recorded.
enum Shown {
    /// Made again.
    Again(Recalled),
    /// It can no longer be made again: as far as it is kept.
    Kept(Kept),
}

impl Shown {
    fn as_json(&self, made: &Made) -> io::Result<Json> {
        match self {
            Self::Again(recalled) => {
                let mut bytes = Vec::new();
                write_plan(&mut bytes, &recalled.decide(), Provenance::Replay)?;
                serde_json::from_slice(&bytes).map_err(io::Error::from)
            }
            Self::Kept(kept) => Ok(kept.as_json(made)),
        }
    }
}

fn origin(made: &Made) -> String {
    format!("decided {} by {}", moment::written(made.run.at_ms / 1000), theirs(&made.run.by))
}

/// What two plans do differently, guest by guest.
pub(super) fn diff(arguments: &Diff) -> Result<End, Stop> {
    let (one, other) = Place::of(&arguments.source).read(|record, decided| {
        let found = |name: &str| {
            let made = decided.named(name)?;
            Ok::<_, Stop>((made.clone(), decided.written(record, made, Piece::Plan)?))
        };
        Ok((found(&arguments.one)?, found(&arguments.other)?))
    })?;
    let differences = super::apply::differences(&one.1, &other.1);
    let end = if differences.is_empty() { End::Done } else { End::ChangesPending };
    if arguments.json {
        let named = |Made { run, decision, index, .. }: &Made| json!({ "entry": index, "plan": decision.plan, "run": run.id.as_str() });
        let row = json!({
            "schema": "converger.diff/1", "one": named(&one.0), "other": named(&other.0), "differences": differences,
            "same": differences.is_empty(),
        });
        return shown(output::json(|out| writeln!(out, "{row}")), end);
    }
    let lines: String = differences.iter().map(|line| format!("{}\n", files::plain(line))).collect();
    let text = if lines.is_empty() { "the same steps on the same guests\n".to_owned() } else { lines };
    shown(write!(anstream::stdout(), "{text}"), end)
}
