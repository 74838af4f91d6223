//! result.json: what became of every step, in canonical JSON, and the same in a few lines for people.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use converger_core::apply::OperationEnd as Fate;
use converger_core::guest::EnvironmentName;
use converger_engine::executor::{ExecutionReport, OperationReport};
use converger_runtime::report::{HeldBefore, RESULT_SCHEMA};
use converger_runtime::{RecoveryReport, RunReport};
use serde_json::Value as Json;

use super::super::CommandError;
use super::progress_board;
use crate::cli::ApplyArgs;
use crate::files::{self, OwnFile, Replaces};
use crate::render::{self, apply_style, count_with_noun};

/// Writes the result where it is wanted, and says what became of the steps.
pub(super) fn write_applied(arguments: &ApplyArgs, report: &RunReport) -> Result<(), CommandError> {
    let document = report.document();
    let kept = keep(arguments, &document).map_err(|(path, error)| lost(&report.environment, &path, &error));
    // A file that could not be written takes nothing from what is printed.
    if arguments.json {
        super::super::finish_output(writeln!(io::stdout(), "{document}"), crate::exit_status::ExitStatus::Done)?;
    } else {
        super::print(&text(report))?;
    }
    kept
}

/// Writes the result of a run that sent nothing, so that nobody takes an older result for this one.
pub(super) fn write_not_sent(arguments: &ApplyArgs, report: &RunReport) -> Result<(), CommandError> {
    let document = report.document();
    let kept = keep(arguments, &document).map_err(|(path, error)| super::super::write_error(&path, &error));
    if arguments.json {
        super::super::finish_output(writeln!(io::stdout(), "{document}"), crate::exit_status::ExitStatus::Done)?;
    }
    kept
}

fn keep(arguments: &ApplyArgs, document: &Json) -> Result<(), (PathBuf, io::Error)> {
    let Some(path) = path(arguments) else { return Ok(()) };
    // In one piece: written word by word it would be a thousand calls, and as many places to be interrupted at.
    let text = format!("{document}\n");
    match files::replace(&path, replaces(arguments), |file| file.write_all(text.as_bytes())) {
        Ok(()) => {
            let _ = writeln!(anstream::stderr(), "{}", render::render_written_file(&path, None));
            Ok(())
        }
        Err(error) => Err((path, error)),
    }
}

fn text(run: &RunReport) -> String {
    let mut text = String::new();
    let report = &run.operations;
    // What is done was shown while it was; the others need more words.
    let open = report.operations().iter().filter(|reported| reported.outcome.end() != Fate::Done);
    let open: String = open.map(|reported| line(&run.environment, reported)).collect();
    if !open.is_empty() {
        let _ = write!(text, "\n{open}");
    }
    let is_well = report.end() == Fate::Done && run.left_out == 0 && run.held_before != HeldBefore::InScope;
    let style = if is_well { render::GREEN } else { render::RED };
    let _ = writeln!(text, "\n{}", apply_style(style.bold(), summary(run)));
    text
}

fn summary(run: &RunReport) -> String {
    let (report, environment) = (&run.operations, &run.environment);
    let steps = u64::try_from(report.operations().len()).unwrap_or(u64::MAX);
    let mut text = if steps == 0 { "Nothing to do".to_owned() } else { format!("{}: {}", count_with_noun(steps, "step"), counts(report)) };
    if run.left_out > 0 {
        let _ = write!(text, "; {} refused and left out", count_with_noun(run.left_out, "guest"));
    }
    let _ = match run.held_before {
        HeldBefore::Nowhere => Ok(()),
        HeldBefore::OutOfScope => {
            write!(text, "; operations on guests outside of the scope are held: `converger ops list {environment} --held`")
        }
        HeldBefore::InScope => write!(text, "; what was held before still is: `converger ops list {environment} --held`"),
    };
    text
}

/// What recovery found, before anything new is asked.
pub(in crate::commands) fn recovered_text(recovered: &RecoveryReport) -> String {
    if recovered.operations().is_empty() {
        return String::new();
    }
    let lines: String = recovered.operations().iter().map(|reported| line(&reported.operation.environment, reported)).collect();
    format!("{}\n{lines}\n", apply_style(render::BOLD, "What was left of an earlier run"))
}

/// Where the result goes, if to a file.
pub(super) fn path(arguments: &ApplyArgs) -> Option<PathBuf> {
    arguments.out.clone().or_else(|| (!arguments.json).then(|| "result.json".into()))
}

/// Whether a result can be written there: found out before there is one.
pub(super) fn check_path(path: &Path, arguments: &ApplyArgs) -> Result<(), CommandError> {
    let room = path.parent().filter(|room| !room.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_some() && !room.is_dir() {
        return Err(CommandError::input_error(format!(
            "{} cannot be written: there is no directory {}",
            files::display_path(path),
            files::display_path(room)
        ))
        .with_help("make it, or name another file with --out"));
    }
    files::check_replaceable(path, replaces(arguments)).map_err(|error| match files::is_taken(&error) {
        true => super::super::write_error(path, &error),
        false => CommandError::input_error(format!("{} cannot be written: {error}", files::display_path(path)))
            .with_help("name another file with --out"),
    })
}

/// The result of an earlier run is replaced, and nothing else.
fn replaces(arguments: &ApplyArgs) -> Replaces<'static> {
    Replaces::own(OwnFile::Json(RESULT_SCHEMA), arguments.overwrite.overwrite)
}

/// What was done is done, and the journal has it.
fn lost(environment: &EnvironmentName, path: &Path, error: &io::Error) -> CommandError {
    CommandError::failure(format!("cannot write {}: {error}", files::display_path(path)))
        .with_help(format!("what was carried out stays so, and the journal has it: `converger ops list {environment}`"))
}

/// How one operation ended, and where that is not well, why, what to do, and where there is more.
fn line(environment: &EnvironmentName, reported: &OperationReport) -> String {
    let mut text = format!(
        "{}: {}\n",
        progress_board::operation_title(&reported.operation),
        progress_board::outcome_text(&reported.operation, &reported.outcome)
    );
    if reported.outcome.end() == Fate::Done {
        return text;
    }
    for line in render::describe_outcome(&reported.outcome).lines() {
        let _ = writeln!(text, "    {line}");
    }
    // What never began, or was refused before its intent was taken, is not in the journal.
    if reported.is_recorded || reported.outcome.end() == Fate::Held {
        let more = format!("converger ops show {environment} {}", reported.operation.id.as_str());
        let _ = writeln!(text, "      {} {more}", apply_style(render::CYAN, "more:"));
    }
    text
}

/// How many ended in which way.
fn counts(report: &ExecutionReport) -> String {
    let count = |word: &str| report.operations().iter().filter(|reported| progress_board::outcome_word(&reported.outcome) == word).count();
    let words = Fate::ALL.into_iter().map(Fate::word).chain([progress_board::IN_FLIGHT]);
    let counts = words.map(|word| (word, count(word))).filter(|(_, count)| *count > 0);
    counts.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}
