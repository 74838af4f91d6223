//! `converger ops`: lists operations, shows one, and resolves a held one.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;

use converger_core::apply::{
    Fact, Operation, OperationHistory, OperationId, Outcome, ReleaseCondition, Resolution, RunId, write_operation, write_outcome,
};
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::timestamp;
use converger_runtime::operation_resolution::{
    MissingOperation, OperationLookup, ResolutionOutcome, ResolutionRequest, ResolvedOperation, status_word,
};
use converger_runtime::state_dir::{self, store_error};
use converger_runtime::{Author, Config, LedgerLocation, LedgerReader, StateLocation};
use converger_store::{OperationFilter, OperationStatus, StoreReader as _, wait_for};
use serde_json::{Value as Json, json};

use super::holds::check_reason;
use super::inputs::{self, TargetEnvironment};
use super::{CommandError, finish_output};
use crate::cli::{OpsCommand, OpsListArgs, OpsResolveArgs, OpsShowArgs};
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style, quote_untrusted};
use crate::{files, host, line_wrap, output};

pub(super) async fn run_ops(ops: &OpsCommand) -> Result<ExitStatus, CommandError> {
    match ops {
        OpsCommand::List(listing) => list_operations(listing),
        OpsCommand::Show(showing) => show_operation(showing),
        OpsCommand::Resolve(resolving) => resolve_operation(resolving).await,
    }
}

/// The ledger to read. Nothing is created or opened for writing, so this works on a full or read-only disk.
fn ledger_location(config: &Config) -> Result<LedgerLocation, CommandError> {
    Ok(LedgerLocation::from_directory(&StateLocation::from_config(config)?.directory))
}

fn list_operations(listing: &OpsListArgs) -> Result<ExitStatus, CommandError> {
    let target = inputs::resolve_environment(&listing.target)?;
    let status = match (listing.held, listing.open) {
        (true, _) => Some(OperationStatus::Held),
        (_, true) => Some(OperationStatus::Open),
        _ => None,
    };
    let unknown = |what: &str, id: &str| {
        CommandError::input_error(format!("`{}` is not the id of {what}", id.escape_debug()))
            .with_help("`converger ops list` and result.json show ids")
    };
    let run = listing.run.as_deref().map(|id| RunId::new(id).ok_or_else(|| unknown("a run", id))).transpose()?;
    let before = listing.before.as_deref().map(|id| OperationId::new(id).ok_or_else(|| unknown("an operation", id))).transpose()?;
    let filter = OperationFilter { environment: Some(target.name.clone()), run, vmid: listing.vmid, status, before };
    let list = |reader: &LedgerReader, filter: &OperationFilter, limit: u32| {
        let listed = wait_for(reader.store_view().operations(filter.clone(), limit));
        listed.map_err(|error| CommandError::from(store_error(&error)))
    };
    let location = ledger_location(&target.config)?;
    let histories = location.read_if_present(|reader| list(reader, &filter, listing.limit))?.unwrap_or_default();
    let notices = load_hold_notices(listing, target)?;
    let written = if listing.json {
        let lines: Vec<Json> = notices.iter().map(HoldNotice::to_json).chain(histories.iter().map(history_json)).collect();
        output::print_json(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")))
    } else {
        let notice_lines: String = notices.iter().map(|notice| format!("{}\n", apply_style(render::YELLOW, notice.render()))).collect();
        let notice_lines = if notice_lines.is_empty() { notice_lines } else { format!("{notice_lines}\n") };
        let widths = ColumnWidths::measure(&histories);
        let lines: String = histories.iter().map(|history| render_line(history, &widths)).collect();
        let lines = if lines.is_empty() { describe_empty_list(listing, &location.directory) } else { lines };
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&format!("{notice_lines}{lines}{}", older_hint(&histories, listing))))
    };
    // Also operations beyond the limit of the list.
    let held = OperationFilter { status: Some(OperationStatus::Held), before: None, ..filter.clone() };
    let is_held =
        !listing.open && location.read_if_present(|reader| list(reader, &held, 1))?.is_some_and(|histories| !histories.is_empty());
    finish_output(written, if is_held { ExitStatus::Held } else { ExitStatus::Done })
}

/// The message for an empty list.
fn describe_empty_list(listing: &OpsListArgs, directory: &Path) -> String {
    let journal = files::display_path(directory);
    match (listing.held, listing.open) {
        (true, _) => format!(
            "no operation is held in the state directory {journal}; `--open` shows operations in flight, or left open by a killed process\n"
        ),
        (_, true) => format!("no operation is in flight in the state directory {journal}; `--held` shows held operations\n"),
        _ => format!("no operations in the state directory {journal}\n"),
    }
}

/// A hint that the list may be truncated.
fn older_hint(histories: &[OperationHistory], listing: &OpsListArgs) -> String {
    let last = histories.last().filter(|_| histories.len() == listing.limit as usize);
    last.map_or_else(String::new, |last| format!("the newest {}; `--before {}` shows older ones\n", listing.limit, last.id().as_str()))
}

/// A freeze, or the hold of a guest.
struct HoldNotice {
    /// The held guest; none for a freeze.
    guest: Option<Vmid>,
    reason: Box<str>,
    /// Who set it and when; none if converger.toml sets it.
    by: Option<(Box<str>, u64)>,
}

impl HoldNotice {
    fn render(&self) -> String {
        let what = self.guest.map_or_else(|| "frozen".to_owned(), |guest| format!("guest {guest} held"));
        match &self.by {
            Some((by, at_ms)) => format!("{what} {}", describe_author(by, &self.reason, *at_ms)),
            None => format!("{what} by converger.toml: {}", quote_untrusted(&self.reason)),
        }
    }

    fn to_json(&self) -> Json {
        let by = self.by.as_ref().map(|(by, at_ms)| json!({ "who": by, "at_ms": at_ms }));
        let kind = if self.guest.is_some() { "hold" } else { "freeze" };
        json!({ "schema": "converger.said/1", "said": kind, "guest": self.guest, "reason": self.reason, "by": by })
    }
}

/// The freezes and holds that concern the list.
fn load_hold_notices(listing: &OpsListArgs, target: TargetEnvironment) -> Result<Vec<HoldNotice>, CommandError> {
    if listing.open {
        return Ok(Vec::new());
    }
    let TargetEnvironment { name, config } = target;
    let remembered = state_dir::peek_conditions(&config, &name)?;
    let frozen = remembered.freeze.map(|freeze| HoldNotice { guest: None, reason: freeze.reason, by: Some((freeze.by, freeze.at_ms)) });
    let written = config.circumstances.freeze.map(|reason| HoldNotice { guest: None, reason: reason.into(), by: None });
    let holds = remembered.holds.into_iter().filter(|hold| listing.vmid.is_none_or(|vmid| vmid == hold.vmid));
    let held = holds.map(|hold| HoldNotice { guest: Some(hold.vmid), reason: hold.reason, by: Some((hold.by, hold.at_ms)) });
    Ok(frozen.into_iter().chain(written).chain(held).collect())
}

/// Who set a hold or freeze, when and why.
pub(super) fn describe_author(by: &str, reason: &str, at_ms: u64) -> String {
    format!("by {} since {}: {}", quote_untrusted(by), format_utc(at_ms), quote_untrusted(reason))
}

fn show_operation(showing: &OpsShowArgs) -> Result<ExitStatus, CommandError> {
    let history = find_operation(&inputs::resolve_environment(&showing.target)?, &showing.id)?;
    let written = if showing.json {
        output::print_json(|out| writeln!(out, "{}", history_json(&history)))
    } else {
        write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&render_history(&history)))
    };
    finish_output(written, ExitStatus::Done)
}

/// An operation of this environment. One of another environment is an error: it is about another guest.
fn find_operation(target: &TargetEnvironment, id: &str) -> Result<OperationHistory, CommandError> {
    let environment = &target.name;
    let missing = |missing: MissingOperation| missing_operation_error(environment, id, missing);
    let parsed = OperationId::new(id).ok_or_else(|| missing(MissingOperation::Unrecorded))?;
    let history = ledger_location(&target.config)?.read_if_present(|reader| reader.operation(&parsed))?.flatten();
    match OperationLookup::new(environment, history) {
        OperationLookup::Found(history) => Ok(*history),
        OperationLookup::Missing(why) => Err(missing(why)),
    }
}

fn missing_operation_error(environment: &EnvironmentName, id: &str, missing: MissingOperation) -> CommandError {
    let stop = CommandError::input_error(format!("there is no operation `{}` in `{environment}`", id.escape_debug()));
    stop.with_help(match missing {
        MissingOperation::Unrecorded => format!("`converger ops list {environment}` shows them"),
        MissingOperation::OfEnvironment(own) => format!("it belongs to the environment `{own}`; name that environment to use it"),
    })
}

/// Records a person's resolution of a held operation, with their name and reason.
async fn resolve_operation(resolving: &OpsResolveArgs) -> Result<ExitStatus, CommandError> {
    let reason = check_reason(&resolving.reason, "how you know the outcome")?;
    let TargetEnvironment { name: environment, config } = inputs::resolve_environment(&resolving.target)?;
    let missing = |missing: MissingOperation| missing_operation_error(&environment, &resolving.id, missing);
    let id = OperationId::new(&resolving.id).ok_or_else(|| missing(MissingOperation::Unrecorded))?;
    let resolution = Resolution::ALL.into_iter().find(|own| own.word() == resolving.r#as);
    let resolution = resolution.ok_or_else(|| CommandError::input_error("--as must be `done`, `failed` or `not-run`"))?;
    let state = inputs::open_state(&config).await?;
    let request = ResolutionRequest { environment: environment.clone(), id, resolution, reason, author: Author::of_process() };
    let resolved = match state.resolve_operation(request).await? {
        ResolutionOutcome::Resolved(resolved) => resolved,
        ResolutionOutcome::Missing(why) => return Err(missing(why)),
        ResolutionOutcome::Refused(refusal) => return Err(CommandError::refusal_error(&refusal)),
    };
    let text = render_resolved(&resolved, resolution);
    finish_output(write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text)), ExitStatus::Done)
}

fn render_resolved(ResolvedOperation { before, hold }: &ResolvedOperation, resolution: Resolution) -> String {
    let guest = before.operation.guest.vmid;
    let then = match hold {
        Some(hold) => format!("guest {guest} stays held {}", describe_author(&hold.by, &hold.reason, hold.at_ms)),
        None => format!("guest {guest} is released"),
    };
    let late = late_change_deadline(before).filter(|_| resolution != Resolution::Done).map_or_else(String::new, |until| {
        format!("{} the change may still arrive until {until}: look at the guest again after that\n", apply_style(render::YELLOW, "note:"))
    });
    format!("{}operation {} is resolved as {}; {then}\n{late}", render_history(before), before.id().as_str(), resolution.word())
}

/// Until when a change may still arrive, if that is in the future.
fn late_change_deadline(history: &OperationHistory) -> Option<String> {
    let (outcome, _) = history.ended.as_ref()?;
    let Fact::Text(until) = outcome.findings().evidence.get("may_come_until")? else { return None };
    timestamp::parse_timestamp(until).filter(|until| *until > host::now_ms() / 1000).map(timestamp::format_timestamp)
}

fn format_utc(at_ms: u64) -> String {
    timestamp::format_timestamp(at_ms / 1000)
}

/// The widths of the columns of a list.
#[derive(Default)]
struct ColumnWidths {
    id: usize,
    guest: usize,
    change: usize,
}

impl ColumnWidths {
    fn measure(histories: &[OperationHistory]) -> Self {
        let widest = |text: fn(&Operation) -> String| histories.iter().map(|history| text(&history.operation).chars().count()).max();
        let id = |operation: &Operation| operation.id.as_str().to_owned();
        let change = |operation: &Operation| operation.step.change.word().to_owned();
        Self { id: widest(id).unwrap_or(0), guest: widest(describe_guest).unwrap_or(0), change: widest(change).unwrap_or(0) }
    }
}

fn describe_guest(operation: &Operation) -> String {
    format!("{} {} {}", operation.guest.vmid, operation.guest.kind, quote_untrusted(&operation.guest.name))
}

fn render_line<'h>(history: &'h OperationHistory, widths: &ColumnWidths) -> String {
    let operation = &history.operation;
    let &ColumnWidths { id, guest: wide, change } = widths;
    // The cause of a hold is not shown once it is resolved.
    let ended = history.ended.as_ref().filter(|_| history.resolved.is_none());
    let reason = |outcome: &'h Outcome| outcome.code().map(|code| code.as_str()).or_else(|| render::nothing_sent(operation, outcome));
    let code = ended.and_then(|(outcome, _)| reason(outcome)).map(|reason| format!(" ({reason})")).unwrap_or_default();
    let style = if history.progress().is_held() { render::RED } else { render::BOLD };
    format!(
        "{}  {:<id$}  {:<wide$}  {:<change$}  {}{code}\n",
        format_utc(history.at_ms),
        operation.id.as_str(),
        describe_guest(operation),
        operation.step.change.word(),
        apply_style(style, status_word(history)),
    )
}

/// Operations in lines, as a part of another report.
pub(super) fn render_lines(histories: &[OperationHistory]) -> String {
    let widths = ColumnWidths::measure(histories);
    histories.iter().map(|history| format!("  {}", render_line(history, &widths))).collect()
}

/// An operation with its reason, and when and by whom it was decided.
pub(super) fn render_with_reason(history: &OperationHistory, decided: Option<&str>) -> String {
    let row = |name: &str, value: &str| format!("  {} {value}\n", apply_style(render::CYAN, format!("{name:<10}")));
    let decided = decided.map(|decided| row("decision", decided)).unwrap_or_default();
    format!("{}{}{decided}", render_history(history), row("why", &history.operation.step.reason_text()))
}

fn render_history(history: &OperationHistory) -> String {
    let operation = &history.operation;
    let mut text = render_line(history, &ColumnWidths::default());
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {} {value}", apply_style(render::CYAN, format!("{name:<10}")));
    };
    row("plan", render::short_digest(operation.plan));
    row("run", operation.run.as_str().to_owned());
    row("node", operation.guest.node.as_str().to_owned());
    if let Some(sending) = history.sending.filter(|_| history.task.is_none()) {
        row("sent", format!("at {}, or about to be sent", format_utc(sending.at_ms)));
    }
    if let Some((task, at_ms)) = &history.task {
        row("task", format!("{} since {}", quote_untrusted(task.as_str()), format_utc(*at_ms)));
    }
    if let Some((outcome, at_ms)) = &history.ended {
        row("ended", format!("{} at {}", outcome.end().word(), format_utc(*at_ms)));
        render::describe_facts(&outcome.findings().evidence).into_iter().for_each(|fact| row("because", fact));
        render::describe_facts(&outcome.findings().observed).into_iter().for_each(|fact| row("observed", fact));
        if let (Outcome::Held { release, .. }, None) = (outcome, &history.resolved) {
            row("next", release_hint(*release, operation));
        }
    }
    if let Some(resolved) = &history.resolved {
        let by = format!("{} by {}: {}", resolved.resolution.word(), quote_untrusted(&resolved.by), quote_untrusted(&resolved.reason));
        row("resolved", by);
    }
    text
}

/// What releases a held operation.
fn release_hint(release: ReleaseCondition, operation: &Operation) -> String {
    let (environment, id) = (&operation.environment, operation.id.as_str());
    let person = format!("look at the guest, then `converger ops resolve {environment} {id} --as done|failed|not-run --reason \"...\"`");
    match release {
        ReleaseCondition::Reading => {
            format!("the next apply reads the guest again and settles it if possible; otherwise {person}")
        }
        ReleaseCondition::Person => person,
    }
}

/// The operation and its outcome as stored, with the times of the journal.
pub(super) fn history_json(history: &OperationHistory) -> Json {
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
