//! `converger apply`: show the plan, ask for confirmation, apply it, report the result.
//!
//! `converger-runtime` and the engine decide what a run is, and what is sent when.

mod confirmation;
mod next_steps;
mod progress_board;
mod result;
mod stop;

use std::io::{self, IsTerminal as _, Write as _};

use converger_core::apply::OperationEnd as RunEnd;
use converger_core::approve::{Confirmation, RefusedGuestPolicy};
use converger_core::artifact::GuestOmission;
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use converger_engine::schedule::OnFailure;
use converger_runtime::environment::StartedRun;
use converger_runtime::environment::check_contract;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::report::HeldBefore;
use converger_runtime::{
    ConfigSource, Environment, EnvironmentReader, ExpectedPlan, Opened, Planned, Question, Run, RunAdmission, RunReport, RunRequest,
};

use super::display::Display;
use super::inputs::{self, RunInputs};
use super::{CommandError, finish_output};
use crate::cli::ApplyArgs;
use crate::exit_status::ExitStatus;
use crate::render::ReportOptions;
use crate::{line_wrap, render, verbosity};
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
        desired,
        expected,
        narrowed: if arguments.filter.only.is_empty() { GuestOmission::Forbidden } else { GuestOmission::Allowed },
        refused: if arguments.partial { RefusedGuestPolicy::LeaveOut } else { RefusedGuestPolicy::StopRun },
        on_failure: if arguments.fail_fast { OnFailure::Stop } else { OnFailure::Continue },
    };
    let run_result = run(arguments, &environment, request).await;
    // Close after an error too: recovery may have written entries that the witness must learn of.
    match (run_result, environment.close().await.map_err(CommandError::from)) {
        (Ok(end), attested) => attested.map(|()| end),
        (Err(stop), Ok(())) => Err(stop),
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
    // A held guest outweighs a refusal: the outcome of its operation is unknown.
    let refused = if run.held_before() == HeldBefore::InScope { ExitStatus::Held } else { ExitStatus::Refused };
    if run.staleness().is_some() {
        return end_stale(arguments, run, refused).await;
    }
    show_plan(arguments, &run)?;
    if let Some(stop) = blocked_by_refused(&run, arguments) {
        return end_without_asking(arguments, run, Some(stop), refused).await;
    }
    let steps = match &run.planned().judged {
        Judged::Safe(safe) => NextSteps::for_plan(arguments, safe, run.mode())?,
        Judged::Refused(_) => return end_without_asking(arguments, run, None, refused).await,
    };
    if !arguments.json && !verbosity::is_quiet() && run.question() != Question::Refused {
        print(&steps.digest_line())?;
    }
    let Answer { confirmation, declined } = confirmation::request_confirmation(arguments, &run, environment).await?;
    match run.admit(confirmation).await {
        RunAdmission::Approved(run) => finish(arguments, run.apply().await, refused),
        RunAdmission::Ended(report) => {
            if report.error.is_none() && declined.is_none() {
                let text: String = report.causes.iter().map(render::render_refusal).collect();
                let _ = write!(anstream::stderr(), "\n{}", line_wrap::wrap_for_stderr(&format!("{text}{}", steps.after(&report.causes))));
            }
            result::write_not_sent(arguments, &report)?;
            if let Some(error) = report.error {
                return Err(CommandError::from(error).or_held(refused));
            }
            if let Some(stop) = declined {
                return Err(stop.or_held(refused));
            }
            Ok(refused)
        }
    }
}

/// Ends a run whose plan is not the expected one. Only the difference is shown.
async fn end_stale(arguments: &ApplyArgs, run: Run, refused: ExitStatus) -> Result<ExitStatus, CommandError> {
    match run.admit(Confirmation::None).await {
        RunAdmission::Approved(_) => {
            Err(CommandError::failure("a plan that differs from the expected one was approved; this is a defect of the program"))
        }
        RunAdmission::Ended(report) => {
            result::write_not_sent(arguments, &report)?;
            let stop = match (report.error, report.causes.first()) {
                (Some(error), _) => error.into(),
                (None, Some(stale)) => CommandError::refusal_error(stale),
                (None, None) => CommandError::uncoded_refusal_error("the plan differs from the expected one"),
            };
            Err(stop.or_held(refused))
        }
    }
}

/// Ends a run that no confirmation could approve, and records that.
async fn end_without_asking(
    arguments: &ApplyArgs,
    run: Run,
    stop: Option<CommandError>,
    refused: ExitStatus,
) -> Result<ExitStatus, CommandError> {
    match run.admit(Confirmation::None).await {
        RunAdmission::Approved(_) => Err(CommandError::failure("a refused plan was approved; this is a defect of the program")),
        RunAdmission::Ended(report) => {
            result::write_not_sent(arguments, &report)?;
            match (report.error, stop) {
                (Some(error), _) => Err(CommandError::from(error).or_held(refused)),
                (None, Some(stop)) => Err(stop.or_held(refused)),
                (None, None) => Ok(refused),
            }
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

fn finish(arguments: &ApplyArgs, report: RunReport, refused: ExitStatus) -> Result<ExitStatus, CommandError> {
    if report.error.is_some() {
        let _ = result::write_not_sent(arguments, &report);
    } else {
        result::write_applied(arguments, &report)?;
    }
    let (end, left_out) = (report.end(), report.left_out);
    if let Some(error) = report.error {
        return Err(CommandError::from(error).or_held(refused));
    }
    // Guests that were left out are refused, however the others ended.
    match end {
        RunEnd::Done if left_out > 0 => Ok(ExitStatus::Refused),
        end => Ok(exit_end(end)),
    }
}

fn exit_end(end: RunEnd) -> ExitStatus {
    match end {
        RunEnd::Done => ExitStatus::Done,
        RunEnd::Failed | RunEnd::NotRun => ExitStatus::Failed,
        RunEnd::Refused => ExitStatus::Refused,
        RunEnd::Held => ExitStatus::Held,
    }
}

fn print(text: &str) -> Result<(), CommandError> {
    finish_output(write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(text)), ExitStatus::Done).map(drop)
}
