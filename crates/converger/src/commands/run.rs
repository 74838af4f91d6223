//! One run on the command line, for `apply` and `action`: shows the plan, asks for confirmation, applies it, reports the result.
//!
//! `converger-runtime` and the engine decide what a run is, and what is sent when.

mod confirmation;
mod next_steps;
mod progress_board;
mod result;
mod stop;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use converger_core::approve::Confirmation;
use converger_core::safety::Judged;
use converger_runtime::environment::StartedRun;
use converger_runtime::{
    ConfigSource, Environment, EnvironmentReader, Opened, Question, RepeatedRequest, Run, RunAdmission, RunEnd, RunReport, RunRequest,
};

use super::display::Display;
use super::{CommandError, finish_output, inputs};
use crate::exit_status::ExitStatus;
use crate::render::{self, ReportOptions};
use crate::{line_wrap, output, verbosity};
use confirmation::Answer;
use next_steps::NextSteps;

pub(super) use progress_board::{BoardSubject, ProgressBoard};
pub(super) use result::recovered_text;
pub(super) use stop::mention;

/// How a command line wants its run to be confirmed, stopped and reported.
#[derive(Debug)]
pub(super) struct RunArguments {
    /// The digest that `--confirm` was given.
    pub(super) confirm: Option<String>,
    /// Whether standard output is for JSON.
    pub(super) json: bool,
    /// The file that `--out` names.
    pub(super) out: Option<PathBuf>,
    /// Whether a file of another kind may be replaced.
    pub(super) overwrite: bool,
    /// After this many seconds nothing new is started.
    pub(super) timeout: Option<u64>,
    /// What to do if a refused guest stops the run; `None` if refused guests are left out.
    pub(super) refused_help: Option<&'static str>,
    /// The command line that shows the same plan.
    pub(super) plan_command: String,
    /// The command line that applies the same plan, without a confirmation.
    pub(super) apply_command: String,
}

impl RunArguments {
    /// Checks `--confirm` before anything is read.
    pub(super) fn check_confirmation(&self) -> Result<(), CommandError> {
        confirmation::parse_digest(self).map(drop)
    }

    /// Checks that the result can be written to its file, which is none of these inputs.
    pub(super) fn check_result_file(&self, inputs: &[Option<&PathBuf>], config: &ConfigSource) -> Result<(), CommandError> {
        let Some(path) = result::path(self) else { return Ok(()) };
        super::check_output_is_no_input(&path, inputs, config)?;
        result::check_path(&path, self)
    }
}

/// Opens the environment, executes the run, and closes the environment.
pub(super) async fn execute(
    arguments: &RunArguments,
    reader: EnvironmentReader,
    display: &Arc<Display>,
    request: RunRequest,
) -> Result<ExitStatus, CommandError> {
    let environment = open(reader).await?;
    stop::listen_once_observed(&environment, display, arguments.timeout);
    let run_result = run(arguments, &environment, request).await;
    // Close after an error too: recovery may have written entries that the witness must learn of.
    match (run_result, environment.close().await.map_err(CommandError::from)) {
        (Ok(end), attested) => attested.map(|()| end),
        (Err(stop), Ok(())) => Err(stop),
        // The run has reported the same fault of the witness.
        (Err(stop), Err(attested)) if stop.message_text() == attested.message_text() => Err(stop),
        // Both errors are shown; the worse one decides the exit status.
        (Err(stop), Err(attested)) => Err(attested.report_earlier(stop)),
    }
}

async fn open(reader: EnvironmentReader) -> Result<Environment, CommandError> {
    let state = inputs::open_state(reader.config()).await?;
    match Environment::open(state, reader)? {
        Opened::Ready(environment) => Ok(environment),
        Opened::Refused(refusal) => Err(CommandError::refusal_error(&refusal)),
    }
}

/// One run, from plan to report.
async fn run(arguments: &RunArguments, environment: &Environment, request: RunRequest) -> Result<ExitStatus, CommandError> {
    let run = match environment.start_run(request).await? {
        StartedRun::Run(run) => *run,
        StartedRun::Refused(refusal) => return Err(CommandError::refusal_error(&refusal)),
        StartedRun::Repeated(repeated) => return end_repeated(arguments, *repeated),
    };
    if run.staleness().is_some() {
        return end_stale(arguments, run).await;
    }
    show_plan(arguments, &run)?;
    if let Some(stop) = blocked_by_refused(&run, arguments) {
        return end_without_asking(arguments, run, Some(stop)).await;
    }
    let steps = match &run.planned().judged {
        Judged::Safe(safe) => NextSteps::for_plan(arguments, safe, run.mode())?,
        Judged::Refused(_) => return end_without_asking(arguments, run, None).await,
    };
    if !arguments.json && !verbosity::is_quiet() && run.question() != Question::Refused {
        print(&steps.digest_line())?;
    }
    let Answer { confirmation, declined } = confirmation::request_confirmation(arguments, &run, environment).await?;
    match run.admit(confirmation).await {
        RunAdmission::Approved(run) => finish(arguments, run.apply().await),
        RunAdmission::Ended(report) => {
            if report.error.is_none() && declined.is_none() {
                let text: String = report.causes.iter().map(render::render_refusal).collect();
                let _ = write!(anstream::stderr(), "\n{}", line_wrap::wrap_for_stderr(&format!("{text}{}", steps.after(&report.causes))));
            }
            result::write_not_sent(arguments, &report)?;
            conclude(report, declined)
        }
    }
}

/// Ends a run whose plan is not the expected one. Only the difference is shown.
async fn end_stale(arguments: &RunArguments, run: Run) -> Result<ExitStatus, CommandError> {
    match run.admit(Confirmation::None).await {
        RunAdmission::Approved(_) => {
            Err(CommandError::failure("a plan that differs from the expected one was approved; this is a defect of the program"))
        }
        RunAdmission::Ended(report) => {
            result::write_not_sent(arguments, &report)?;
            let stop = match report.causes.first() {
                Some(stale) => CommandError::refusal_error(stale),
                None => CommandError::uncoded_refusal_error("the plan differs from the expected one"),
            };
            conclude(report, Some(stop))
        }
    }
}

/// Ends a run that no confirmation could approve, and records that.
async fn end_without_asking(arguments: &RunArguments, run: Run, stop: Option<CommandError>) -> Result<ExitStatus, CommandError> {
    match run.admit(Confirmation::None).await {
        RunAdmission::Approved(_) => Err(CommandError::failure("a refused plan was approved; this is a defect of the program")),
        RunAdmission::Ended(report) => {
            result::write_not_sent(arguments, &report)?;
            conclude(report, stop)
        }
    }
}

/// Reports what an earlier run with the same key did. The exit status is the one that this run has by its operations.
fn end_repeated(arguments: &RunArguments, repeated: RepeatedRequest) -> Result<ExitStatus, CommandError> {
    let RepeatedRequest { key, report } = repeated;
    let run = report.run.as_str();
    output::print_warning(&format!("run {run} executed this request before with the same key ({}); nothing is sent", key.as_str()));
    result::write_repeated(arguments, &report)?;
    if report.end() != RunEnd::Done {
        let help = format!("to request it again, use another key; `converger explain {run}` says more about the first run");
        let _ = write!(anstream::stderr(), "{}", line_wrap::wrap_for_stderr(&render::render_help(&help)));
    }
    conclude(report, None)
}

/// The refusal of a run because some of its guests are refused, unless they are left out. The plan has the causes.
fn blocked_by_refused(run: &Run, arguments: &RunArguments) -> Option<CommandError> {
    let is_safe = matches!(run.planned().judged, Judged::Safe(_));
    let ids = run.refused_guests();
    let help = arguments.refused_help.filter(|_| is_safe && !ids.is_empty())?;
    let refused = if ids.len() == 1 { "guest {} is refused" } else { "guests {} are refused" };
    let refused = refused.replace("{}", &render::join_ids(&ids));
    Some(CommandError::uncoded_refusal_error(format!("nothing is applied, because {refused}")).with_help(help))
}

fn show_plan(arguments: &RunArguments, run: &Run) -> Result<(), CommandError> {
    let planned = run.planned();
    let is_asked = confirmation::asks_person(arguments, run);
    let is_read_from_stdout = !arguments.json && io::stdout().is_terminal();
    let (normal, whole) = (ReportOptions::new(verbosity::current()), ReportOptions::for_question(verbosity::current()));
    if !arguments.json {
        super::show_plan_outcome(planned, false, if is_asked && is_read_from_stdout { whole } else { normal })?;
    }
    // Standard output is not what the person reads: it has the result, or goes into a file. Nobody confirms a plan that they did not see.
    if is_asked && !is_read_from_stdout {
        let text = render::render_report(&planned.judged, &planned.origin, whole);
        let written = write!(anstream::stderr(), "{}", line_wrap::wrap_for_stderr(&text));
        written.map_err(|error| CommandError::failure(format!("cannot show the plan on the terminal, so nothing was asked: {error}")))?;
    }
    Ok(())
}

fn finish(arguments: &RunArguments, report: RunReport) -> Result<ExitStatus, CommandError> {
    if report.error.is_some() && report.operations.operations().is_empty() {
        let _ = result::write_not_sent(arguments, &report);
    } else {
        result::write_applied(arguments, &report)?;
    }
    conclude(report, None)
}

/// The exit status of a run, or why it ended: its own error or else this one, and a fault of the witness. Earlier errors are reported here.
fn conclude(report: RunReport, stop: Option<CommandError>) -> Result<ExitStatus, CommandError> {
    let end = report.end();
    let stop = report.error.map(CommandError::from).or(stop);
    let unattested = report.attested.err().map(CommandError::from);
    match stop.into_iter().chain(unattested).reduce(|first, second| second.report_earlier(first)) {
        Some(last) => Err(last.with_end(end)),
        None => Ok(end.into()),
    }
}

/// Prints text for people on standard output.
pub(super) fn print(text: &str) -> Result<(), CommandError> {
    finish_output(write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(text)), ExitStatus::Done).map(drop)
}
