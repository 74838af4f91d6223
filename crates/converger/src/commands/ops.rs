//! `converger ops`: what was done, what is under way, what is held, and a person's word on that.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use converger_core::apply::{
    Fact, Findings, History, Operation, OperationId, Outcome, Record, Release, Resolution, RunId, write_operation, write_outcome,
};
use converger_core::failure::Code;
use converger_core::guest::Vmid;
use converger_core::moment;
use converger_core::refusal::Refusal;
use converger_runtime::state_dir::{self, LockOutcome, WriteOutcome, store_error};
use converger_runtime::{LedgerLocation, LedgerReader, StateDirectory, StateLocation};
use converger_store::{Batch, EnvironmentLock, Filter, Standing, Write};
use serde_json::{Value as Json, json};

use super::apply::UNDER_WAY;
use super::people::remark;
use super::{Stop, inputs, shown};
use crate::cli::{Listing, Ops, Place, Resolving, Showing};
use crate::exit::End;
use crate::render::{self, styled, theirs};
use crate::{files, host, output, screen};

pub(super) async fn ops(ops: &Ops) -> Result<End, Stop> {
    match ops {
        Ops::List(listing) => list(listing),
        Ops::Show(showing) => show(showing),
        Ops::Resolve(resolving) => resolve(resolving).await,
    }
}

/// Where it is looked: nothing is made or opened for writing, so that it can be looked at on a disk that is full or cannot be written to.
fn shelf(place: &Place) -> Result<LedgerLocation, Stop> {
    let config = inputs::load_config(place.config.as_deref(), &inputs::parse_environment(&place.environment)?)?;
    Ok(LedgerLocation::from_directory(&StateLocation::from_config(&config)?.directory))
}

fn list(listing: &Listing) -> Result<End, Stop> {
    let environment = Some(inputs::parse_environment(&listing.place.environment)?);
    let standing = match (listing.held, listing.open) {
        (true, _) => Some(Standing::Held),
        (_, true) => Some(Standing::Open),
        _ => None,
    };
    let unknown = |what: &str, id: &str| {
        Stop::input(format!("`{}` is not the id of {what}", id.escape_debug())).help("ids stand in `ops list` and in result.json")
    };
    let run = listing.run.as_deref().map(|id| RunId::new(id).ok_or_else(|| unknown("a run", id))).transpose()?;
    let before = listing.before.as_deref().map(|id| OperationId::new(id).ok_or_else(|| unknown("an operation", id))).transpose()?;
    let filter = Filter { environment, run, vmid: listing.vmid, standing, before };
    let read = |book: &LedgerReader| book.looked().operations(&filter, listing.limit).map_err(|error| Stop::from(store_error(&error)));
    let shelf = shelf(&listing.place)?;
    let histories = shelf.read_if_there(read)?.unwrap_or_default();
    let said = said(listing)?;
    let written = if listing.json {
        let lines: Vec<Json> = said.iter().map(Said::json).chain(histories.iter().map(as_json)).collect();
        output::json(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))
    } else {
        let said: String = said.iter().map(|said| format!("{}\n", styled(render::YELLOW, said.line()))).collect();
        let said = if said.is_empty() { said } else { format!("{said}\n") };
        let widths = Widths::of(&histories);
        let lines: String = histories.iter().map(|history| line(history, &widths)).collect();
        let lines = if lines.is_empty() { none(listing, &shelf.directory) } else { lines };
        write!(anstream::stdout(), "{}", screen::out(&format!("{said}{lines}{}", older(&histories, listing))))
    };
    // Also of those that have no room in the list.
    let held = Filter { standing: Some(Standing::Held), before: None, ..filter.clone() };
    let any = |book: &LedgerReader| book.looked().operations(&held, 1).map_err(|error| Stop::from(store_error(&error)));
    let is_held = !listing.open && shelf.read_if_there(any)?.is_some_and(|histories| !histories.is_empty());
    shown(written, if is_held { End::Held } else { End::Done })
}

/// That there is nothing of what was asked for, and where else to look.
fn none(listing: &Listing, directory: &Path) -> String {
    let journal = files::shown(directory);
    match (listing.held, listing.open) {
        (true, _) => format!(
            "no operation is held, by the journal in {journal}; `--open` shows those that are under way, or were left by a process that died\n"
        ),
        (_, true) => format!("no operation is under way, by the journal in {journal}; `--held` shows those that wait for somebody\n"),
        _ => format!("no operations in the journal in {journal}\n"),
    }
}

/// Where the list ends, though there may be more.
fn older(histories: &[History], listing: &Listing) -> String {
    let last = histories.last().filter(|_| histories.len() == listing.limit as usize);
    last.map_or_else(String::new, |last| format!("the newest {}; `--before {}` shows older ones\n", listing.limit, last.id().as_str()))
}

/// What somebody said that keeps the program from acting, as long as it lasts: a freeze, or the hold of a guest.
struct Said {
    /// The guest that is held; none: everything is frozen.
    guest: Option<Vmid>,
    reason: Box<str>,
    /// Who said it and when; none: it stands in converger.toml.
    by: Option<(Box<str>, u64)>,
}

impl Said {
    fn line(&self) -> String {
        let what = self.guest.map_or_else(|| "frozen".to_owned(), |guest| format!("guest {guest} held"));
        match &self.by {
            Some((by, at_ms)) => format!("{what} {}", word_of(by, &self.reason, *at_ms)),
            None => format!("{what} by converger.toml: {}", theirs(&self.reason)),
        }
    }

    fn json(&self) -> Json {
        let by = self.by.as_ref().map(|(by, at_ms)| json!({ "who": by, "at_ms": at_ms }));
        let word = if self.guest.is_some() { "hold" } else { "freeze" };
        json!({ "schema": "converger.said/1", "said": word, "guest": self.guest, "reason": self.reason, "by": by })
    }
}

/// All of it that concerns what is listed.
fn said(listing: &Listing) -> Result<Vec<Said>, Stop> {
    if listing.open {
        return Ok(Vec::new());
    }
    let environment = inputs::parse_environment(&listing.place.environment)?;
    let config = inputs::load_config(listing.place.config.as_deref(), &environment)?;
    let remembered = state_dir::peek_conditions(&config, &environment)?;
    let frozen = remembered.freeze.map(|freeze| Said { guest: None, reason: freeze.reason, by: Some((freeze.by, freeze.at_ms)) });
    let written = config.circumstances.freeze.map(|reason| Said { guest: None, reason: reason.into(), by: None });
    let holds = remembered.holds.into_iter().filter(|hold| listing.vmid.is_none_or(|vmid| vmid == hold.vmid));
    let held = holds.map(|hold| Said { guest: Some(hold.vmid), reason: hold.reason, by: Some((hold.by, hold.at_ms)) });
    Ok(frozen.into_iter().chain(written).chain(held).collect())
}

/// Who said something, when and why.
pub(super) fn word_of(by: &str, reason: &str, at_ms: u64) -> String {
    format!("by {} since {}: {}", theirs(by), utc(at_ms), theirs(reason))
}

fn show(showing: &Showing) -> Result<End, Stop> {
    let history = find(&showing.place, &showing.id)?;
    let written = if showing.json {
        output::json(|out| writeln!(out, "{}", as_json(&history)))
    } else {
        write!(anstream::stdout(), "{}", screen::out(&text(&history)))
    };
    shown(written, End::Done)
}

/// An operation of this environment. One of another is not there: whoever names the wrong one has the wrong guest in mind.
fn find(place: &Place, id: &str) -> Result<History, Stop> {
    let environment = inputs::parse_environment(&place.environment)?;
    let unknown = || {
        let stop = Stop::input(format!("there is no operation `{}` in `{environment}`", id.escape_debug()));
        stop.help(format!("`converger ops list {environment}` shows them"))
    };
    let id = OperationId::new(id).ok_or_else(unknown)?;
    let history = shelf(place)?.read_if_there(|book| book.operation(&id))?.flatten().ok_or_else(unknown)?;
    let own = &history.operation.environment;
    if *own != environment {
        return Err(unknown().help(format!("it is one of `{own}`; if that is meant, name that environment")));
    }
    Ok(history)
}

/// A person says what became of an operation that is held; it is kept with their name and their reason.
async fn resolve(resolving: &Resolving) -> Result<End, Stop> {
    let reason = remark(&resolving.reason, "how you know")?;
    let environment = inputs::parse_environment(&resolving.place.environment)?;
    let state = inputs::open_state(resolving.place.config.as_deref(), &environment).await?;
    let history = find(&resolving.place, &resolving.id)?;
    let id = history.id().clone();
    let progress = history.progress();
    if !progress.is_held() && !progress.is_open() {
        return Err(Stop::refused(&Refusal::operation_not_held(id.as_str(), standing(&history))));
    }
    // What has no end is somebody's as long as a process drives the environment; afterwards a person may know what no reading can tell.
    // Its environment is driven by nobody until all of it is written.
    let (_lock, left) = progress.is_open().then(|| left(&state, &resolving.place, &id)).transpose()?.unzip();
    let resolution = Resolution::ALL.into_iter().find(|own| own.word() == resolving.r#as);
    let resolution = resolution.ok_or_else(|| Stop::input("an operation is resolved as `done`, `failed` or `not-run`"))?;
    let record = Record::Resolved { id, resolution, by: host::actor().into(), reason, at_ms: host::now_ms() };
    let records = left.into_iter().chain([record]);
    if let WriteOutcome::Refused(refusal) = state.write(Batch::new(records.map(Write::Record).collect())).await? {
        return Err(Stop::refused(&refusal));
    }
    state.attest_ledger().await?;
    let guest = history.operation.guest.vmid;
    let holds = state.load_conditions(&history.operation.environment).await?.holds;
    let then = match holds.iter().find(|hold| hold.vmid == guest) {
        Some(hold) => format!("guest {guest} stays held {}", word_of(&hold.by, &hold.reason, hold.at_ms)),
        None => format!("guest {guest} is free again"),
    };
    let late = may_come(&history).filter(|_| resolution != Resolution::Done).map_or_else(String::new, |until| {
        format!("{} what was sent may still come until {until}: look at the guest again after that\n", styled(render::YELLOW, "note:"))
    });
    let said = format!("{}operation {} is resolved as {}; {then}\n{late}", text(&history), resolving.id, resolution.word());
    shown(write!(anstream::stdout(), "{}", screen::out(&said)), End::Done)
}

/// Until when a change may still come, where that is not over.
fn may_come(history: &History) -> Option<String> {
    let (outcome, _) = history.ended.as_ref()?;
    let Fact::Text(until) = outcome.findings().evidence.get("may_come_until")? else { return None };
    moment::read(until).filter(|until| *until > host::now_ms() / 1000).map(moment::written)
}

/// The end of an operation that was left without one, for a person to resolve: nobody drives its environment, and nobody will meanwhile.
fn left(state: &StateDirectory, place: &Place, id: &OperationId) -> Result<(EnvironmentLock, Record), Stop> {
    let lock = match state.lock_environment(&inputs::parse_environment(&place.environment)?)? {
        LockOutcome::Taken(lock) => lock,
        LockOutcome::Refused(refusal) => return Err(Stop::refused(&refusal)),
    };
    // It may have ended until now.
    let history = find(place, id.as_str())?;
    if !history.progress().is_open() {
        return Err(Stop::refused(&Refusal::operation_not_held(id.as_str(), standing(&history))));
    }
    let outcome = Outcome::held(Code::RunLeft, Release::Person, Findings::default());
    Ok((lock, Record::Ended { id: id.clone(), outcome, at_ms: host::now_ms() }))
}

fn utc(at_ms: u64) -> String {
    moment::written(at_ms / 1000)
}

/// How it stands, in a word.
fn standing(history: &History) -> &'static str {
    match (&history.resolved, &history.ended) {
        (Some(resolved), _) => resolved.resolution.word(),
        (None, Some((outcome, _))) => outcome.end().word(),
        (None, None) => UNDER_WAY,
    }
}

/// How wide the columns of a list are.
#[derive(Default)]
struct Widths {
    id: usize,
    guest: usize,
    change: usize,
}

impl Widths {
    fn of(histories: &[History]) -> Self {
        let widest = |text: fn(&Operation) -> String| histories.iter().map(|history| text(&history.operation).chars().count()).max();
        let id = |operation: &Operation| operation.id.as_str().to_owned();
        let change = |operation: &Operation| operation.step.change.word().to_owned();
        Self { id: widest(id).unwrap_or(0), guest: widest(guest).unwrap_or(0), change: widest(change).unwrap_or(0) }
    }
}

fn guest(operation: &Operation) -> String {
    format!("{} {} {}", operation.guest.vmid, operation.guest.kind, theirs(&operation.guest.name))
}

fn line<'h>(history: &'h History, widths: &Widths) -> String {
    let operation = &history.operation;
    let &Widths { id, guest: wide, change } = widths;
    // Why it was held is over where somebody or a reading settled it.
    let ended = history.ended.as_ref().filter(|_| history.resolved.is_none());
    let reason = |outcome: &'h Outcome| outcome.code().map(|code| code.as_str()).or_else(|| render::nothing_sent(operation, outcome));
    let code = ended.and_then(|(outcome, _)| reason(outcome)).map(|reason| format!(" ({reason})")).unwrap_or_default();
    let style = if history.progress().is_held() { render::RED } else { render::BOLD };
    format!(
        "{}  {:<id$}  {:<wide$}  {:<change$}  {}{code}\n",
        utc(history.at_ms),
        operation.id.as_str(),
        guest(operation),
        operation.step.change.word(),
        styled(style, standing(history)),
    )
}

/// Operations in lines, as a part of something else.
pub(super) fn lines(histories: &[History]) -> String {
    let widths = Widths::of(histories);
    histories.iter().map(|history| format!("  {}", line(history, &widths))).collect()
}

/// An operation with why it was begun, and when that was decided and by whom.
pub(super) fn explained(history: &History, decided: Option<&str>) -> String {
    let row = |name: &str, value: &str| format!("  {} {value}\n", styled(render::CYAN, format!("{name:<10}")));
    let decided = decided.map(|decided| row("decision", decided)).unwrap_or_default();
    format!("{}{}{decided}", text(history), row("why", &history.operation.step.why()))
}

fn text(history: &History) -> String {
    let operation = &history.operation;
    let mut text = line(history, &Widths::default());
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {} {value}", styled(render::CYAN, format!("{name:<10}")));
    };
    row("plan", operation.plan.to_string());
    row("run", operation.run.as_str().to_owned());
    row("node", operation.guest.node.as_str().to_owned());
    if let Some(sending) = history.sending.filter(|_| history.task.is_none()) {
        row("sent", format!("at {}, or about to be", utc(sending.at_ms)));
    }
    if let Some((task, at_ms)) = &history.task {
        row("task", format!("{} since {}", theirs(task.as_str()), utc(*at_ms)));
    }
    if let Some((outcome, at_ms)) = &history.ended {
        row("ended", format!("{} at {}", outcome.end().word(), utc(*at_ms)));
        render::facts(&outcome.findings().evidence).into_iter().for_each(|fact| row("because", fact));
        render::facts(&outcome.findings().observed).into_iter().for_each(|fact| row("observed", fact));
        if let (Outcome::Held { release, .. }, None) = (outcome, &history.resolved) {
            row("next", next(*release, operation));
        }
    }
    if let Some(resolved) = &history.resolved {
        let by = format!("{} by {}: {}", resolved.resolution.word(), theirs(&resolved.by), theirs(&resolved.reason));
        row("resolved", by);
    }
    text
}

/// What releases an operation that is held.
fn next(release: Release, operation: &Operation) -> String {
    let (environment, id) = (&operation.environment, operation.id.as_str());
    let person = format!("look at the guest, then `converger ops resolve {environment} {id} --as done|failed|not-run --reason \"...\"`");
    match release {
        Release::Reading => {
            format!("the next apply reads the guest again, and settles it where that shows what became of it; otherwise {person}")
        }
        Release::Person => person,
    }
}

/// The operation and its end as they are stored, and what the journal has beside them.
pub(super) fn as_json(history: &History) -> Json {
    let stored = |bytes: io::Result<Vec<u8>>| bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or(Json::Null);
    let resolved = history.resolved.as_ref().map(|resolved| {
        json!({ "resolution": resolved.resolution.word(), "by": resolved.by, "reason": resolved.reason, "at_ms": resolved.at_ms })
    });
    json!({
        "schema": "converger.history/1",
        "operation": stored(write_operation(&history.operation)),
        "at_ms": history.at_ms,
        "sending": history.sending.map(|sending| json!({ "at_ms": sending.at_ms })),
        "task": history.task.as_ref().map(|(task, at_ms)| json!({ "id": task.as_str(), "at_ms": at_ms })),
        "ended": history.ended.as_ref().map(|(outcome, at_ms)| json!({ "outcome": stored(write_outcome(outcome)), "at_ms": at_ms })),
        "resolved": resolved,
    })
}
