//! Checks which cluster an environment name stands for: `hold` and `freeze` before they record anything; and renames environments.
//!
//! The store decides in its transaction. Certificates are read by the adapters, and the rules are in the core.

use std::io::Write as _;
use std::path::Path;

use converger_core::apply::EnvironmentRename;
use converger_core::guest::{EnvironmentName, Vmid};
use converger_core::refusal::Refusal;
use converger_runtime::LedgerLocation;
use converger_runtime::cluster_identity::{Checked, GuestCheck, check_guest};
use converger_runtime::state_dir::{LockOutcome, WriteOutcome};
use converger_store::{Batch, EnvironmentLock, StoreWrite};

use super::{CommandError, finish_output, holds, inputs, ledger};
use crate::cli::{EnvironmentCommand, Renaming};
use crate::config::ConnectionConfig;
use crate::exit_status::ExitStatus;
use crate::{config, files, host, output};

/// The binding to record together with a hold or freeze, and notes about what could not be checked.
pub(super) struct CheckedWrite {
    binding: Option<StoreWrite>,
    notes: Vec<String>,
}

impl CheckedWrite {
    /// The hold or freeze, after the binding.
    pub(super) fn batch(self, write: StoreWrite) -> Batch {
        self.notes.iter().for_each(|note| say(note));
        self.binding.map_or_else(Batch::default, Batch::from).with(write)
    }
}

/// Checks the cluster before a hold or a freeze is recorded.
pub(super) async fn check(
    config: Option<&Path>,
    environment: &EnvironmentName,
    connection: &ConnectionConfig,
    guest: Option<Vmid>,
    is_offline: bool,
) -> Result<CheckedWrite, CommandError> {
    let checked = match is_offline {
        true => Checked::unchecked(environment, guest, "--offline was given"),
        false => match check_guest(environment, connection, guest).await {
            GuestCheck::Checked(checked) => checked,
            GuestCheck::Absent(refusal) => return Err(CommandError::refusal_error(&refusal)),
        },
    };
    let mut notes = checked.notes;
    if checked.binding.is_none() {
        notes.extend(other_name(config, environment));
    }
    Ok(CheckedWrite { binding: checked.binding, notes })
}

/// A note about another environment of the same file with the same address or cluster name. It may be the same cluster; two clusters may share
/// both.
fn other_name(config: Option<&Path>, environment: &EnvironmentName) -> Option<String> {
    let environments = config::load_environments(config).ok()?;
    let (other, shared) = environments.find_same_cluster(environment)?;
    Some(format!("`{other}` has {shared} too: if it is the same cluster, this does not apply under that name"))
}

fn say(note: &str) {
    output::print_warning(note);
}

pub(super) async fn environment(command: &EnvironmentCommand) -> Result<ExitStatus, CommandError> {
    match command {
        EnvironmentCommand::Rename(renaming) => rename(renaming).await,
    }
}

/// Renames an environment in the state directory while no apply runs under either name.
async fn rename(renaming: &Renaming) -> Result<ExitStatus, CommandError> {
    let (from, to) = (inputs::parse_environment(&renaming.from)?, inputs::parse_environment(&renaming.to)?);
    let reason = holds::check_reason(&renaming.reason, "why, for other people")?;
    // converger.toml may have the old name, the new one or both: only its state directory is used.
    let location = LedgerLocation::from_config(renaming.config.as_deref())?;
    location.check_exists()?;
    let state = ledger::open_state(&location).await?;
    if from == to {
        // The second lock would be refused because of the first.
        return Err(CommandError::refusal_error(&Refusal::name_in_use(&to)));
    }
    let _locks = [lock(&state, &from)?, lock(&state, &to)?];
    let rename = EnvironmentRename { from: from.clone(), to: to.clone(), by: host::actor().into(), reason, at_ms: host::now_ms() };
    if let WriteOutcome::Refused(refusal) = state.write(Batch::from(StoreWrite::Rename(rename))).await? {
        return Err(CommandError::refusal_error(&refusal));
    }
    state.attest_ledger().await?;
    let confirmation = format!(
        "renamed {from} to {to} in the state directory {}: holds, freezes and operations are kept under the new name\n\
         write the new name into converger.toml and the declared state; the former name is refused from now on",
        files::display_path(state.path())
    );
    finish_output(writeln!(anstream::stdout(), "{confirmation}"), ExitStatus::Done)
}

fn lock(state: &converger_runtime::StateDirectory, environment: &EnvironmentName) -> Result<EnvironmentLock, CommandError> {
    match state.lock_environment(environment)? {
        LockOutcome::Taken(lock) => Ok(lock),
        LockOutcome::Refused(refusal) => Err(CommandError::refusal_error(&refusal)),
    }
}
