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

pub(super) async fn freeze(freezing: &FreezeArgs) -> Result<ExitStatus, CommandError> {
    let (environment, connection) = configured_environment(&freezing.target)?;
    let reason = check_reason(&freezing.reason, "why, for other people")?;
    let freeze = Freeze { environment: environment.clone(), by: host::actor().into(), reason, at_ms: host::now_ms() };
    let said =
        format!("{environment} is frozen: no new change starts there until `converger thaw {environment}`; operations in flight continue");
    let checked = identity::check(freezing.target.config.as_deref(), &environment, &connection, None, freezing.offline).await?;
    let directory = commit_write(&freezing.target, checked.batch(StoreWrite::Freeze(freeze))).await?;
    print_confirmation(&format!("{said}\n{}", describe_reach(&directory)))
}

pub(super) async fn thaw(place: &EnvironmentArgs) -> Result<ExitStatus, CommandError> {
    let (environment, _) = configured_environment(place)?;
    let thaw = StoreWrite::Thaw { environment: environment.clone(), by: host::actor().into(), at_ms: host::now_ms() };
    commit_write(place, thaw).await?;
    print_confirmation(&format!("{environment} is thawed"))
}

pub(super) async fn hold(holding: &HoldArgs) -> Result<ExitStatus, CommandError> {
    let (environment, connection) = configured_environment(&holding.target)?;
    let reason = check_reason(&holding.reason, "why, for other people")?;
    let hold = Hold { environment: environment.clone(), vmid: holding.vmid, by: host::actor().into(), reason, at_ms: host::now_ms() };
    let said = format!(
        "guest {} of {environment} is held: it is not changed until `converger release {environment} {}`",
        holding.vmid, holding.vmid
    );
    let checked = identity::check(holding.target.config.as_deref(), &environment, &connection, Some(holding.vmid), holding.offline).await?;
    let directory = commit_write(&holding.target, checked.batch(StoreWrite::Hold(hold))).await?;
    print_confirmation(&format!("{said}\n{}", describe_reach(&directory)))
}

pub(super) async fn release(holding: &ReleaseArgs) -> Result<ExitStatus, CommandError> {
    let (environment, _) = configured_environment(&holding.target)?;
    let (by, at_ms) = (host::actor().into(), host::now_ms());
    let release = StoreWrite::Release { environment: environment.clone(), vmid: holding.vmid, by, at_ms };
    commit_write(&holding.target, release).await?;
    print_confirmation(&format!("guest {} of {environment} is released", holding.vmid))
}

/// An environment of converger.toml: freezing a misspelt name would have no effect, unnoticed.
fn configured_environment(place: &EnvironmentArgs) -> Result<(EnvironmentName, ConnectionConfig), CommandError> {
    let environment = inputs::resolve_environment(place)?;
    let config = inputs::load_config(place.config.as_deref(), &environment)?;
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
async fn commit_write(place: &EnvironmentArgs, batch: impl Into<Batch>) -> Result<PathBuf, CommandError> {
    let environment = inputs::resolve_environment(place)?;
    let state = inputs::open_state(place.config.as_deref(), &environment).await?;
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

fn print_confirmation(said: &str) -> Result<ExitStatus, CommandError> {
    finish_output(writeln!(anstream::stdout(), "{said}"), ExitStatus::Done)
}
