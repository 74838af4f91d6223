//! `converger apply`: show the plan, ask for confirmation, apply it, report the result.
//!
//! What a run is, and what is sent and when, is decided by `converger-runtime` and the engine below it.

mod ask;
mod board;
mod next_steps;
mod result;
mod stop;

use std::io::{self, IsTerminal as _, Write as _};
use std::path::Path;

use converger_core::apply::End as RunEnd;
use converger_core::approve::{Confirmation, Refused};
use converger_core::artifact::{Narrowed, RecordedPlan};
use converger_core::refusal::Refusal;
use converger_core::safety::Judged;
use converger_engine::schedule::OnFailure;
use converger_runtime::environment::StartedRun;
use converger_runtime::environment::check_contract;
use converger_runtime::expected_plan::ExpectedPlanError;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::report::HeldBefore;
use converger_runtime::{
    Environment, EnvironmentReader, ExpectedPlan, Opened, Planned, Question, Run, RunAdmission, RunReport, RunRequest,
};

use super::display::Display;
use super::inputs::{self, RunInputs};
use super::{Stop, shown};
use crate::cli::Apply;
use crate::exit::End;
use crate::{diagnose, files, render, screen};
use ask::Answer;
use next_steps::NextSteps;

pub(super) use board::{Board, Subject, UNDER_WAY};
pub(super) use result::recovered_text;
pub(super) use stop::mention;

pub(super) async fn apply(arguments: &Apply) -> Result<End, Stop> {
    check_contract()?;
    ask::check_digest(arguments)?;
    if let Some(path) = &result::path(arguments) {
        super::not_an_input(path, &arguments.source, arguments.plan.as_ref())?;
        result::check_path(path, arguments)?;
    }
    if arguments.source.look.replay.is_some() {
        return show_recorded(arguments).await;
    }
    let inputs = RunInputs::read(&arguments.source, &arguments.choice)?;
    if inputs.config.connection.is_none() {
        return Err(unconfigured_error(inputs.desired.environment()).into());
    }
    let display = Display::for_apply(arguments.json);
    let (desired, reader) = inputs.into_reader(&display);
    reader.approval_mode()?;
    // What cannot be used is found before anything is asked of the cluster.
    let expected = arguments.plan.as_deref().map(read_expected).transpose()?;
    let environment = open(reader).await?;
    stop::listen_once_observed(&environment, &display, arguments.timeout);
    let request = RunRequest {
        desired,
        expected,
        narrowed: if arguments.choice.only.is_empty() { Narrowed::No } else { Narrowed::Yes },
        refused: if arguments.partial { Refused::IsLeftOut } else { Refused::StopsAll },
        on_failure: if arguments.fail_fast { OnFailure::Stop } else { OnFailure::GoOn },
    };
    let ended = run(arguments, &environment, request).await;
    // After an error too: recovery may have written entries that the witness must learn of.
    match (ended, environment.close().await.map_err(Stop::from)) {
        (Ok(end), attested) => attested.map(|()| end),
        (Err(stop), Ok(())) => Err(stop),
        // Both are shown; the worse one decides.
        (Err(stop), Err(attested)) => Err(attested.after(stop)),
    }
}

/// A recording shows how things were, and is never acted on (G7).
async fn show_recorded(arguments: &Apply) -> Result<End, Stop> {
    let Planned { judged, origin, provenance } = inputs::plan(&arguments.source, &arguments.choice).await?;
    let judged = judged.refused_for(Refusal::replay_not_appliable());
    super::show_outcome(&Planned { judged, origin, provenance }, arguments.json, false)
}

async fn open(reader: EnvironmentReader) -> Result<Environment, Stop> {
    let state = inputs::open_state_of(reader.config()).await?;
    match Environment::open(state, reader)? {
        Opened::Ready(environment) => Ok(environment),
        Opened::Refused(refusal) => Err(Stop::refused(&refusal)),
    }
}

fn read_expected(path: &Path) -> Result<ExpectedPlan, Stop> {
    let name = files::shown(path);
    let text = files::read(path).map_err(|error| inputs::unreadable(&name, &error))?;
    ExpectedPlan::parse(&text.bytes).map_err(|error| match error {
        ExpectedPlanError::Invalid { why, help } => Stop::input(format!("{name} is not a plan: {why}")).help(help),
        ExpectedPlanError::RepeatedKeys(faults) => {
            Stop::faults(diagnose::render(&name, &text.bytes, &faults)).help("save it again, and read that")
        }
        ExpectedPlanError::Recorded(refusal) => Stop::refused(&refusal),
    })
}

/// One run, from plan to report.
async fn run(arguments: &Apply, environment: &Environment, request: RunRequest) -> Result<End, Stop> {
    let run = match environment.start_run(request).await? {
        StartedRun::Run(run) => *run,
        StartedRun::Refused(refusal) => return Err(Stop::refused(&refusal)),
    };
    // A held guest outweighs a refusal: what is refused is known.
    let refused = if run.held_before() == HeldBefore::InScope { End::Held } else { End::Refused };
    if run.staleness().is_some() {
        return end_stale(arguments, run, refused).await;
    }
    show_plan(arguments, &run)?;
    if let Some(stop) = blocked_by_refused(&run, arguments) {
        return end_without_asking(arguments, run, Some(stop), refused).await;
    }
    let steps = match &run.planned().judged {
        Judged::Safe(safe) => NextSteps::of(arguments, safe, run.mode())?,
        Judged::Refused(_) => return end_without_asking(arguments, run, None, refused).await,
    };
    if !arguments.json && run.question() != Question::Refused {
        print(&steps.digest_line())?;
    }
    let Answer { confirmation, declined } = ask::confirmation(arguments, &run, environment).await?;
    match run.admit(confirmation).await {
        RunAdmission::Approved(run) => finish(arguments, run.apply().await, refused),
        RunAdmission::Ended(report) => {
            if report.error.is_none() && declined.is_none() {
                let text: String = report.causes.iter().map(render::refusal).collect();
                let _ = write!(anstream::stderr(), "\n{}", screen::err(&format!("{text}{}", steps.after(&report.causes))));
            }
            result::write_not_sent(arguments, &report)?;
            if let Some(error) = report.error {
                return Err(Stop::from(error).beside(refused));
            }
            if let Some(stop) = declined {
                return Err(stop.beside(refused));
            }
            Ok(refused)
        }
    }
}

/// The plan of now is not the one that was expected: nothing is shown but the difference.
async fn end_stale(arguments: &Apply, run: Run, refused: End) -> Result<End, Stop> {
    match run.admit(Confirmation::None).await {
        RunAdmission::Approved(_) => {
            Err(Stop::failed("a plan that differs from the expected one was approved; this is a defect of the program"))
        }
        RunAdmission::Ended(report) => {
            result::write_not_sent(arguments, &report)?;
            let stop = match (report.error, report.causes.first()) {
                (Some(error), _) => error.into(),
                (None, Some(stale)) => Stop::refused(stale),
                (None, None) => Stop::decided("the plan differs from the expected one"),
            };
            Err(stop.beside(refused))
        }
    }
}

/// Records that nothing is applied, whatever anybody would say.
async fn end_without_asking(arguments: &Apply, run: Run, stop: Option<Stop>, refused: End) -> Result<End, Stop> {
    match run.admit(Confirmation::None).await {
        RunAdmission::Approved(_) => Err(Stop::failed("a refused plan was approved; this is a defect of the program")),
        RunAdmission::Ended(report) => {
            result::write_not_sent(arguments, &report)?;
            match (report.error, stop) {
                (Some(error), _) => Err(Stop::from(error).beside(refused)),
                (None, Some(stop)) => Err(stop.beside(refused)),
                (None, None) => Ok(refused),
            }
        }
    }
}

/// Nothing is applied while a guest is refused, unless it is to be left out. Its cause is in the plan.
fn blocked_by_refused(run: &Run, arguments: &Apply) -> Option<Stop> {
    let is_safe = matches!(run.planned().judged, Judged::Safe(_));
    let ids: Vec<String> = run.refused_guests().iter().map(ToString::to_string).collect();
    if ids.is_empty() || arguments.partial || !is_safe {
        return None;
    }
    let guests = if ids.len() == 1 { "guest" } else { "guests" };
    Some(
        Stop::decided(format!("nothing is carried out, because of {guests} {}", ids.join(", ")))
            .help("the plan says why; resolve that, leave out what is refused with --partial, or name the others with --only"),
    )
}

fn show_plan(arguments: &Apply, run: &Run) -> Result<(), Stop> {
    let planned = run.planned();
    if !arguments.json {
        super::show_outcome(planned, false, false)?;
    }
    // Standard output may be for the result, or lead into a file; nobody confirms what was not shown where the question is.
    let is_asked = ask::is_asked(arguments, run);
    if is_asked && (arguments.json || !io::stdout().is_terminal()) {
        let text = render::report_text(&planned.judged, &planned.origin, false);
        let shown = text.and_then(|text| write!(anstream::stderr(), "{}", screen::err(&text)));
        shown.map_err(|error| Stop::failed(format!("the plan cannot be shown, so that nobody is asked: {error}")))?;
    }
    Ok(())
}

fn finish(arguments: &Apply, report: RunReport, refused: End) -> Result<End, Stop> {
    if report.error.is_some() {
        let _ = result::write_not_sent(arguments, &report);
    } else {
        result::write_applied(arguments, &report)?;
    }
    let (end, left_out) = (report.end(), report.left_out);
    if let Some(error) = report.error {
        return Err(Stop::from(error).beside(refused));
    }
    // Guests that were left out were refused before anything began: that says nothing about how the others ended.
    match end {
        RunEnd::Done if left_out > 0 => Ok(End::Refused),
        end => Ok(exit_end(end)),
    }
}

fn exit_end(end: RunEnd) -> End {
    match end {
        RunEnd::Done => End::Done,
        RunEnd::Failed | RunEnd::NotRun => End::Failed,
        RunEnd::Refused => End::Refused,
        RunEnd::Held => End::Held,
    }
}

fn print(text: &str) -> Result<(), Stop> {
    shown(write!(anstream::stdout(), "{}", screen::out(text)), End::Done).map(drop)
}

/// What two bodies of plans do differently, guest by guest.
pub(super) fn differences(one: &serde_json::Value, other: &serde_json::Value) -> Vec<String> {
    RecordedPlan::read(one).differences(&RecordedPlan::read(other), Narrowed::No)
}
