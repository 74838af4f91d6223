//! `converger freeze`, `thaw`, `hold` and `release`.
//!
//! Each is durable in the store before the command ends, and a running apply checks the store before its next intent.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use converger_core::apply::{Freeze, Hold, is_valid_remark};
use converger_core::guest::EnvironmentName;
use converger_runtime::reader::unconfigured_error;
use converger_runtime::state_dir::WriteOutcome;
use converger_store::{Batch, StoreWrite};

use super::{CommandError, finish_output, identity, inputs};
use crate::cli::{EnvironmentArgs, FreezeArgs, HoldArgs, ReleaseArgs};
use crate::config::ConnectionConfig;
use crate::exit_status::ExitStatus;
use crate::{files, host};

pub(super) async fn freeze(arguments: &FreezeArgs) -> Result<ExitStatus, CommandError> {
    let (environment, connection) = configured_environment(&arguments.target)?;
    let reason = check_reason(&arguments.reason, "why, for other people")?;
    let freeze = Freeze { environment: environment.clone(), by: host::actor().into(), reason, at_ms: host::now_ms() };
    let confirmation =
        format!("{environment} is frozen: no new change starts there until `converger thaw {environment}`; operations in flight continue");
    let checked = identity::check(arguments.target.config.as_deref(), &environment, &connection, None, arguments.offline).await?;
    let directory = commit_write(&arguments.target, checked.batch(StoreWrite::Freeze(freeze))).await?;
    print_confirmation(&format!("{confirmation}\n{}", describe_reach(&directory)))
}

pub(super) async fn thaw(target: &EnvironmentArgs) -> Result<ExitStatus, CommandError> {
    let (environment, _) = configured_environment(target)?;
    let thaw = StoreWrite::Thaw { environment: environment.clone(), by: host::actor().into(), at_ms: host::now_ms() };
    commit_write(target, thaw).await?;
    print_confirmation(&format!("{environment} is thawed"))
}

pub(super) async fn hold(arguments: &HoldArgs) -> Result<ExitStatus, CommandError> {
    let (environment, connection) = configured_environment(&arguments.target)?;
    let reason = check_reason(&arguments.reason, "why, for other people")?;
    let hold = Hold { environment: environment.clone(), vmid: arguments.vmid, by: host::actor().into(), reason, at_ms: host::now_ms() };
    let confirmation = format!(
        "guest {} of {environment} is held: it is not changed until `converger release {environment} {}`",
        arguments.vmid, arguments.vmid
    );
    let checked =
        identity::check(arguments.target.config.as_deref(), &environment, &connection, Some(arguments.vmid), arguments.offline).await?;
    let directory = commit_write(&arguments.target, checked.batch(StoreWrite::Hold(hold))).await?;
    print_confirmation(&format!("{confirmation}\n{}", describe_reach(&directory)))
}

pub(super) async fn release(arguments: &ReleaseArgs) -> Result<ExitStatus, CommandError> {
    let (environment, _) = configured_environment(&arguments.target)?;
    let (by, at_ms) = (host::actor().into(), host::now_ms());
    let release = StoreWrite::Release { environment: environment.clone(), vmid: arguments.vmid, by, at_ms };
    commit_write(&arguments.target, release).await?;
    print_confirmation(&format!("guest {} of {environment} is released", arguments.vmid))
}

/// An environment of converger.toml: freezing a misspelt name would have no effect, unnoticed.
fn configured_environment(target: &EnvironmentArgs) -> Result<(EnvironmentName, ConnectionConfig), CommandError> {
    let environment = inputs::resolve_environment(target)?;
    let config = inputs::load_config(target.config.as_deref(), &environment)?;
    let connection = config.connection.ok_or_else(|| unconfigured_error(&environment))?;
    Ok((environment, connection))
}

/// Checks a reason, which is recorded.
pub(super) fn check_reason(reason: &str, what: &str) -> Result<Box<str>, CommandError> {
    if is_valid_remark(reason) {
        return Ok(reason.into());
    }
    Err(CommandError::input_error("the reason is empty or longer than 4096 bytes").with_help(format!("write with --reason {what}")))
}

/// Writes the batch durably. Gives the path of the state directory.
async fn commit_write(target: &EnvironmentArgs, batch: impl Into<Batch>) -> Result<PathBuf, CommandError> {
    let environment = inputs::resolve_environment(target)?;
    let state = inputs::open_state(target.config.as_deref(), &environment).await?;
    if let WriteOutcome::Refused(refusal) = state.write(batch.into()).await? {
        return Err(CommandError::refusal_error(&refusal));
    }
    state.attest_ledger().await?;
    Ok(state.path().to_owned())
}

/// Who is affected: other users and machines have other state directories unless one is configured.
fn describe_reach(directory: &Path) -> String {
    format!("this applies to everyone who uses the state directory {}, and to no one else", files::display_path(directory))
}

fn print_confirmation(confirmation: &str) -> Result<ExitStatus, CommandError> {
    finish_output(writeln!(anstream::stdout(), "{confirmation}"), ExitStatus::Done)
}
