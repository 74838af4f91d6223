//! `converger freeze`, `thaw`, `hold` and `release`.
//!
//! Each is durable in the store before the command ends, and a running apply checks the store before its next intent.

use std::io::Write as _;
use std::path::Path;

use converger_runtime::holds::{CheckedHold, HoldCheckOutcome, HoldRequest, HoldSubject};
use converger_runtime::reader::unconfigured_error;
use converger_runtime::state_dir::WriteOutcome;
use converger_runtime::{Author, Config, Reason, StateDirectory};

use super::inputs::{self, TargetEnvironment};
use super::{CommandError, finish_output};
use crate::cli::{EnvironmentArgs, FreezeArgs, HoldArgs, ReleaseArgs};
use crate::exit_status::ExitStatus;
use crate::{files, output};

pub(super) async fn freeze(arguments: &FreezeArgs) -> Result<ExitStatus, CommandError> {
    let TargetEnvironment { name, config } = resolve_reachable(&arguments.target)?;
    let confirmation = format!("{name} is frozen: no new change starts there until `converger thaw {name}`; operations in flight continue");
    let reason = check_reason(&arguments.reason, REASON_HINT)?;
    let request = HoldRequest { environment: name, subject: HoldSubject::Environment, reason, author: Author::of_process() };
    let state = record_hold(request, &config, arguments.offline).await?;
    print_confirmation(&format!("{confirmation}\n{}", describe_reach(state.path())))
}

pub(super) async fn thaw(target: &EnvironmentArgs) -> Result<ExitStatus, CommandError> {
    let TargetEnvironment { name, config } = resolve_reachable(target)?;
    let state = inputs::open_state(&config).await?;
    check_written(state.thaw_environment(name.clone(), Author::of_process()).await?)?;
    print_confirmation(&format!("{name} is thawed"))
}

pub(super) async fn hold(arguments: &HoldArgs) -> Result<ExitStatus, CommandError> {
    let TargetEnvironment { name, config } = resolve_reachable(&arguments.target)?;
    let vmid = arguments.vmid;
    let confirmation = format!("guest {vmid} of {name} is held: it is not changed until `converger release {name} {vmid}`");
    let reason = check_reason(&arguments.reason, REASON_HINT)?;
    let request = HoldRequest { environment: name, subject: HoldSubject::Guest(vmid), reason, author: Author::of_process() };
    let state = record_hold(request, &config, arguments.offline).await?;
    print_confirmation(&format!("{confirmation}\n{}", describe_reach(state.path())))
}

pub(super) async fn release(arguments: &ReleaseArgs) -> Result<ExitStatus, CommandError> {
    let TargetEnvironment { name, config } = resolve_reachable(&arguments.target)?;
    let state = inputs::open_state(&config).await?;
    check_written(state.release_guest(name.clone(), arguments.vmid, Author::of_process()).await?)?;
    print_confirmation(&format!("guest {} of {name} is released", arguments.vmid))
}

/// An environment with a connection: freezing a misspelt name would have no effect, unnoticed.
fn resolve_reachable(target: &EnvironmentArgs) -> Result<TargetEnvironment, CommandError> {
    let environment = inputs::resolve_environment(target)?;
    if environment.config.connection.is_none() {
        return Err(unconfigured_error(&environment.name).into());
    }
    Ok(environment)
}

/// What to write with `--reason`.
pub(super) const REASON_HINT: &str = "why, for other people";

/// Checks a reason, which is recorded. `hint` says what to write with `--reason`.
pub(super) fn check_reason(reason: &str, hint: &str) -> Result<Reason, CommandError> {
    Reason::new(reason).ok_or_else(|| {
        CommandError::input_error("the reason is empty or longer than 4096 bytes").with_help(format!("write with --reason {hint}"))
    })
}

/// Checks the cluster, prints what could not be checked, and records the hold or freeze.
async fn record_hold(request: HoldRequest, config: &Config, is_offline: bool) -> Result<StateDirectory, CommandError> {
    let hold = check_hold(request, config, is_offline).await?;
    hold.notes().iter().for_each(|note| output::print_warning(note));
    let state = inputs::open_state(config).await?;
    check_written(state.record_hold(hold).await?)?;
    Ok(state)
}

async fn check_hold(request: HoldRequest, config: &Config, is_offline: bool) -> Result<CheckedHold, CommandError> {
    if is_offline {
        return Ok(request.skip_check(config, "--offline was given"));
    }
    match request.check(config).await? {
        HoldCheckOutcome::Checked(hold) => Ok(hold),
        HoldCheckOutcome::Refused(refusal) => Err(CommandError::refusal_error(&refusal)),
    }
}

/// A refused write ends the command.
pub(super) fn check_written(outcome: WriteOutcome) -> Result<(), CommandError> {
    match outcome {
        WriteOutcome::Written(_) => Ok(()),
        WriteOutcome::Refused(refusal) => Err(CommandError::refusal_error(&refusal)),
    }
}

/// Who is affected: other users and machines have other state directories unless one is configured.
fn describe_reach(directory: &Path) -> String {
    format!("this applies to everyone who uses the state directory {}, and to no one else", files::display_path(directory))
}

fn print_confirmation(confirmation: &str) -> Result<ExitStatus, CommandError> {
    finish_output(writeln!(anstream::stdout(), "{confirmation}"), ExitStatus::Done)
}
