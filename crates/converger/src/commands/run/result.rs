//! The result of an apply: result.json in canonical JSON, and the same in a few lines for people.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use converger_core::apply::OperationEnd;
use converger_core::guest::EnvironmentName;
use converger_engine::executor::{ExecutionReport, OperationReport};
use converger_runtime::operation_resolution::IN_FLIGHT;
use converger_runtime::report::{HeldBefore, RESULT_SCHEMA};
use converger_runtime::{RecoveryReport, RunEnd, RunReport};
use serde_json::Value as Json;

use super::super::CommandError;
use super::{RunArguments, progress_board};
use crate::files::{self, OwnFile, Replaces};
use crate::output;
use crate::render::{self, apply_style, count_with_noun};
use crate::verbosity::Verbosity;

/// Writes the result to its file and to standard output.
pub(super) fn write_applied(arguments: &RunArguments, report: &RunReport) -> Result<(), CommandError> {
    let document = report.document();
    let written = write_file(arguments, &document).map_err(|(path, error)| result_lost_error(&report.environment, &path, &error));
    // Printed even if the file could not be written.
    if arguments.json {
        super::super::finish_output(writeln!(io::stdout(), "{document}"), crate::exit_status::ExitStatus::Done)?;
    } else {
        super::print(&render_result(report))?;
    }
    written
}

/// Writes the result of a run that sent nothing, so that an older result is not mistaken for it.
pub(super) fn write_not_sent(arguments: &RunArguments, report: &RunReport) -> Result<(), CommandError> {
    let document = report.document();
    let written = write_file(arguments, &document).map_err(|(path, error)| super::super::write_error(&path, &error));
    if arguments.json {
        super::super::finish_output(writeln!(io::stdout(), "{document}"), crate::exit_status::ExitStatus::Done)?;
    }
    written
}

/// Writes the result of an earlier run of the same request, with each of its operations.
pub(super) fn write_repeated(arguments: &RunArguments, report: &RunReport) -> Result<(), CommandError> {
    write_not_sent(arguments, report)?;
    if arguments.json {
        return Ok(());
    }
    let render = |reported: &OperationReport| match reported.outcome.end() {
        OperationEnd::Done => {
            format!("{}    {}\n", render_operation(&report.environment, reported), describe_more(&report.environment, reported))
        }
        _ => render_operation(&report.environment, reported),
    };
    super::print(&report.operations.operations().iter().map(render).collect::<String>())
}

/// Writes result.json, if this run has a file for it.
fn write_file(arguments: &RunArguments, document: &Json) -> Result<(), (PathBuf, io::Error)> {
    let Some(path) = path(arguments) else { return Ok(()) };
    // One write: each further one would be a place where the process may be killed.
    let text = format!("{document}\n");
    match files::replace(&path, replaces(arguments), |file| file.write_all(text.as_bytes())) {
        Ok(()) => {
            output::print_notice(&render::render_written_file(&path, None));
            Ok(())
        }
        Err(error) => Err((path, error)),
    }
}

/// Every operation that is not done with its cause, and the summary. Operations that are done were shown as they ended.
fn render_result(run: &RunReport) -> String {
    let mut text = String::new();
    let report = &run.operations;
    let not_done = report.operations().iter().filter(|reported| reported.outcome.end() != OperationEnd::Done);
    let not_done: String = not_done.map(|reported| render_operation(&run.environment, reported)).collect();
    if !not_done.is_empty() {
        let _ = write!(text, "\n{not_done}");
    }
    let style = if run.end() == RunEnd::Done { render::GREEN } else { render::RED };
    let _ = writeln!(text, "\n{}", apply_style(style.bold(), describe_result(run)));
    text
}

fn describe_result(run: &RunReport) -> String {
    let (report, environment) = (&run.operations, &run.environment);
    let steps = u64::try_from(report.operations().len()).unwrap_or(u64::MAX);
    let mut text =
        if steps == 0 { "Nothing to do".to_owned() } else { format!("{}: {}", count_with_noun(steps, "step"), describe_ends(report)) };
    if run.left_out > 0 {
        let _ = write!(text, "; {} refused and left out", count_with_noun(run.left_out, "guest"));
    }
    let _ = match run.held_before {
        HeldBefore::Nowhere => Ok(()),
        HeldBefore::OutOfScope => {
            write!(text, "; operations on other guests are held: `converger ops list {environment} --held`")
        }
        HeldBefore::InScope => write!(text, "; operations held before are still held: `converger ops list {environment} --held`"),
    };
    text
}

/// Operations of earlier runs that recovery settled or held. Quiet: only those that are not done.
pub(in crate::commands) fn recovered_text(recovered: &RecoveryReport, verbosity: Verbosity) -> String {
    let is_shown = |reported: &&OperationReport| verbosity != Verbosity::Quiet || reported.outcome.end() != OperationEnd::Done;
    let shown = recovered.operations().iter().filter(is_shown);
    let lines: String = shown.map(|reported| render_operation(&reported.operation.environment, reported)).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("{}\n{lines}\n", apply_style(render::BOLD, "Recovered from an earlier run"))
}

/// The file of the result, if there is one.
pub(super) fn path(arguments: &RunArguments) -> Option<PathBuf> {
    arguments.out.clone().or_else(|| (!arguments.json).then(|| "result.json".into()))
}

/// Checks that the result can be written, before the run has one.
pub(super) fn check_path(path: &Path, arguments: &RunArguments) -> Result<(), CommandError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_some() && !directory.is_dir() {
        return Err(CommandError::input_error(format!(
            "cannot write {}: there is no directory {}",
            files::display_path(path),
            files::display_path(directory)
        ))
        .with_help("create it, or name another file with --out"));
    }
    files::check_replaceable(path, replaces(arguments)).map_err(|error| match files::is_taken(&error) {
        true => super::super::write_error(path, &error),
        false => CommandError::input_error(format!("cannot write {}: {error}", files::display_path(path)))
            .with_help("name another file with --out"),
    })
}

/// Only the result of an earlier run is replaced, unless `--overwrite` allows more.
fn replaces(arguments: &RunArguments) -> Replaces<'static> {
    Replaces::own(OwnFile::Json(RESULT_SCHEMA), arguments.overwrite)
}

/// The result could not be written after the run. The journal has what was done.
fn result_lost_error(environment: &EnvironmentName, path: &Path, error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot write {}: {error}", files::display_path(path)))
        .with_help(format!("the journal has every operation of the run: `converger ops list {environment}`"))
}

/// The end of one operation; if it is not done, with cause and remedy.
fn render_operation(environment: &EnvironmentName, reported: &OperationReport) -> String {
    let mut text = format!(
        "{}: {}\n",
        progress_board::operation_title(&reported.operation),
        progress_board::outcome_text(&reported.operation, &reported.outcome)
    );
    if reported.outcome.end() == OperationEnd::Done {
        return text;
    }
    for line in render::describe_outcome(&reported.outcome).lines() {
        let _ = writeln!(text, "    {line}");
    }
    // An operation without a recorded intent is not in the journal.
    if reported.is_recorded || reported.outcome.end() == OperationEnd::Held {
        let _ = writeln!(text, "      {}", describe_more(environment, reported));
    }
    text
}

/// The command that shows an operation in detail.
fn describe_more(environment: &EnvironmentName, reported: &OperationReport) -> String {
    format!("{} converger ops show {environment} {}", apply_style(render::CYAN, "more:"), reported.operation.id.as_str())
}

/// The number of operations by how they ended.
fn describe_ends(report: &ExecutionReport) -> String {
    let count =
        |outcome: &str| report.operations().iter().filter(|reported| progress_board::outcome_word(&reported.outcome) == outcome).count();
    let outcomes = OperationEnd::ALL.into_iter().map(OperationEnd::word).chain([IN_FLIGHT]);
    let counts = outcomes.map(|outcome| (outcome, count(outcome))).filter(|(_, count)| *count > 0);
    counts.map(|(outcome, count)| format!("{count} {outcome}")).collect::<Vec<_>>().join(", ")
}
