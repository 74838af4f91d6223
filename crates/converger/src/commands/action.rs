//! `converger action`: one requested action on one guest, planned, confirmed and applied like a declared state.

pub(super) mod catalogue;
pub(super) mod completion;
mod request;

use converger_core::approve::RefusedGuestPolicy;
use converger_core::artifact::GuestOmission;
use converger_core::intent::ActionRequest;
use converger_engine::schedule::OnFailure;
use converger_runtime::environment::check_contract;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::{ConfigSource, EnvironmentReader, Planned, RunRequest, scope_key};

use super::display::Display;
use super::inputs::{self, TargetEnvironment};
use super::run::{self, RunArguments};
use super::{CommandError, apply};
use crate::cli::{ActionArgs, ActionCommand, RequestArgs};
use crate::exit_status::ExitStatus;
use crate::files::{OwnFile, Replaces};
use crate::render::ReportOptions;
use crate::{host, render, verbosity};

/// The endpoint in the scope of idempotency keys.
const ENDPOINT: &str = "cli";

const REFUSED_HELP: &str = "the plan says why; resolve that, then request the action again";

pub(super) async fn run_action(arguments: &ActionArgs) -> Result<ExitStatus, CommandError> {
    match &arguments.command {
        Some(ActionCommand::List(list)) => catalogue::list_actions(list),
        None if arguments.request.plan => show_request_plan(&arguments.request).await,
        None => apply_request(&arguments.request).await,
    }
}

/// Plans the request and sends nothing.
async fn show_request_plan(arguments: &RequestArgs) -> Result<ExitStatus, CommandError> {
    let replaces = Replaces::own(OwnFile::PLAN, arguments.overwrite.overwrite);
    let (request, target, config) = read_request(arguments)?;
    if let Some(path) = &arguments.out {
        super::check_output_is_no_input(path, &[arguments.observation.replay.as_ref()], &config)?;
        super::check_output_replaceable(path, replaces)?;
    }
    let (reader, planned) = plan_request(arguments, request, target).await?;
    if let Some(path) = &arguments.out {
        super::write_plan_file(path, replaces, &planned)?;
    }
    if arguments.record {
        super::record_plan(&reader, &planned).await?;
    }
    let options = ReportOptions::new(verbosity::current());
    let end = super::show_plan_outcome(&planned, arguments.json, options)?;
    if end == ExitStatus::ChangesPending && !arguments.json && !verbosity::is_quiet() {
        // The full one: `--confirm` needs it.
        let digest = format!("digest: {}", super::proposal_of(&planned.judged)?);
        run::print(&format!("{}\n", render::apply_style(render::DIM, digest)))?;
    }
    Ok(end)
}

async fn apply_request(arguments: &RequestArgs) -> Result<ExitStatus, CommandError> {
    check_contract()?;
    let run_arguments = run_arguments(arguments);
    run_arguments.check_confirmation()?;
    let key = arguments.key.as_deref().map(|key| scope_key(ENDPOINT, key)).transpose()?;
    let (request, target, config) = read_request(arguments)?;
    run_arguments.check_result_file(&[arguments.observation.replay.as_ref()], &config)?;
    if arguments.observation.replay.is_some() {
        let (_, planned) = plan_request(arguments, request, target).await?;
        return apply::show_refused_recording(planned, arguments.json);
    }
    if target.config.connection.is_none() {
        return Err(unconfigured_error(&target.name).into());
    }
    let display = Display::for_apply(arguments.json);
    let reader = inputs::open_reader(target.name, target.config, &display);
    reader.approval_mode()?;
    let request = RunRequest {
        intent: request.into(),
        key,
        expected: None,
        narrowed: GuestOmission::Forbidden,
        refused: RefusedGuestPolicy::StopRun,
        on_failure: OnFailure::Stop,
        requested_by: host::actor().into(),
    };
    run::execute(&run_arguments, reader, &display, request).await
}

/// The request and its environment. Faults of the request are reported before the environment is looked for.
fn read_request(arguments: &RequestArgs) -> Result<(ActionRequest, TargetEnvironment, ConfigSource), CommandError> {
    let request = request::check_request(arguments)?;
    let config = ConfigSource::read(arguments.observation.config.as_deref());
    let target = inputs::select_environment(arguments.environment.as_deref(), &config, arguments.observation.replay.is_some())?;
    Ok((request.in_environment(&target.name)?, target, config))
}

async fn plan_request(
    arguments: &RequestArgs,
    request: ActionRequest,
    target: TargetEnvironment,
) -> Result<(EnvironmentReader, Planned), CommandError> {
    let reader = inputs::open_reader(target.name, target.config, &Display::new());
    let planned = inputs::plan_intent(request.into(), &reader, &arguments.observation).await?;
    Ok((reader, planned))
}

fn run_arguments(arguments: &RequestArgs) -> RunArguments {
    let command = request::repeat_command_line(arguments);
    RunArguments {
        confirm: arguments.confirm.clone(),
        json: arguments.json,
        out: arguments.out.clone(),
        overwrite: arguments.overwrite.overwrite,
        timeout: arguments.timeout,
        refused_help: Some(REFUSED_HELP),
        plan_command: format!("{command} --plan"),
        apply_command: request::repeat_with_options(command, arguments),
    }
}
