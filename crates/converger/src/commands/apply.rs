//! `converger apply`: show the plan, ask for confirmation, apply it, report the result.
//!
//! `converger-runtime` and the engine decide what a run is, and what is sent when.

mod confirmation;
mod next_steps;
mod progress_board;
mod result;
mod stop;

use std::io::{self, IsTerminal as _, Write as _};

use converger_core::approve::{Confirmation, RefusedGuestPolicy};
use converger_core::artifact::GuestOmission;
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use converger_engine::schedule::OnFailure;
use converger_runtime::environment::StartedRun;
use converger_runtime::environment::check_contract;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::{
    ConfigSource, Environment, EnvironmentReader, ExpectedPlan, Opened, Planned, Question, Run, RunAdmission, RunReport, RunRequest,
};

use super::display::Display;
use super::inputs::{self, RunInputs};
use super::{CommandError, finish_output};
use crate::cli::ApplyArgs;
use crate::exit_status::ExitStatus;
use crate::render::ReportOptions;
use crate::{host, line_wrap, render, verbosity};
use confirmation::Answer;
use next_steps::NextSteps;

pub(super) use progress_board::{BoardSubject, ProgressBoard};
pub(super) use result::recovered_text;
pub(super) use stop::mention;

pub(super) async fn apply(arguments: &ApplyArgs) -> Result<ExitStatus, CommandError> {
    check_contract()?;
    confirmation::check_digest(arguments)?;
    let config = ConfigSource::read(arguments.source.observation.config.as_deref());
    if let Some(path) = &result::path(arguments) {
        super::check_output_is_no_input(path, &arguments.source, arguments.plan.as_ref(), &config)?;
        result::check_path(path, arguments)?;
    }
    if arguments.source.observation.replay.is_some() {
        return show_recorded(arguments, &config).await;
    }
    let inputs = RunInputs::read(&arguments.source, &arguments.filter, &config)?;
    if inputs.config.connection.is_none() {
        return Err(unconfigured_error(inputs.desired.environment()).into());
    }
    let display = Display::for_apply(arguments.json);
    let (desired, reader) = inputs.into_reader(&display);
    reader.approval_mode()?;
    // An unusable plan file is reported before any request is sent.
    let expected = arguments.plan.as_deref().map(|path| inputs::read_plan_file(path, ExpectedPlan::parse)).transpose()?;
    let environment = open(reader).await?;
    stop::listen_once_observed(&environment, &display, arguments.timeout);
    let request = RunRequest {
        intent: desired.into(),
        key: None,
        expected,
        narrowed: if arguments.filter.only.is_empty() { GuestOmission::Forbidden } else { GuestOmission::Allowed },
        refused: if arguments.partial { RefusedGuestPolicy::LeaveOut } else { RefusedGuestPolicy::StopRun },
        on_failure: if arguments.fail_fast { OnFailure::Stop } else { OnFailure::Continue },
        requested_by: host::actor().into(),
    };
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

/// Shows the plan of a recorded observation, which is never applied (G7).
async fn show_recorded(arguments: &ApplyArgs, config: &ConfigSource) -> Result<ExitStatus, CommandError> {
    let Planned { judged, origin, provenance } = inputs::plan(&arguments.source, &arguments.filter, config).await?;
    let judged = judged.refuse(Refusal::replay_not_appliable());
    super::show_plan_outcome(&Planned { judged, origin, provenance }, arguments.json, ReportOptions::new(verbosity::current()))
}

async fn open(reader: EnvironmentReader) -> Result<Environment, CommandError> {
    let state = inputs::open_state(reader.config()).await?;
    match Environment::open(state, reader)? {
        Opened::Ready(environment) => Ok(environment),
        Opened::Refused(refusal) => Err(CommandError::refusal_error(&refusal)),
    }
}

/// One run, from plan to report.
async fn run(arguments: &ApplyArgs, environment: &Environment, request: RunRequest) -> Result<ExitStatus, CommandError> {
    let run = match environment.start_run(request).await? {
        StartedRun::Run(run) => *run,
        StartedRun::Refused(refusal) => return Err(CommandError::refusal_error(&refusal)),
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
async fn end_stale(arguments: &ApplyArgs, run: Run) -> Result<ExitStatus, CommandError> {
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
async fn end_without_asking(arguments: &ApplyArgs, run: Run, stop: Option<CommandError>) -> Result<ExitStatus, CommandError> {
    match run.admit(Confirmation::None).await {
        RunAdmission::Approved(_) => Err(CommandError::failure("a refused plan was approved; this is a defect of the program")),
        RunAdmission::Ended(report) => {
            result::write_not_sent(arguments, &report)?;
            conclude(report, stop)
        }
    }
}

/// The refusal of a run because some of its guests are refused, unless `--partial` leaves them out. The plan has the causes.
fn blocked_by_refused(run: &Run, arguments: &ApplyArgs) -> Option<CommandError> {
    let is_safe = matches!(run.planned().judged, Judged::Safe(_));
    let ids = run.refused_guests();
    if ids.is_empty() || arguments.partial || !is_safe {
        return None;
    }
    let refused = if ids.len() == 1 { "guest {} is refused" } else { "guests {} are refused" };
    let refused = refused.replace("{}", &render::join_ids(&ids));
    Some(
        CommandError::uncoded_refusal_error(format!("nothing is applied, because {refused}"))
            .with_help("the plan says why; resolve that, leave refused guests out with --partial, or name the others with --only"),
    )
}

fn show_plan(arguments: &ApplyArgs, run: &Run) -> Result<(), CommandError> {
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

fn finish(arguments: &ApplyArgs, report: RunReport) -> Result<ExitStatus, CommandError> {
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

fn print(text: &str) -> Result<(), CommandError> {
    finish_output(write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(text)), ExitStatus::Done).map(drop)
}
