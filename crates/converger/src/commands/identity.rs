//! Which cluster an environment name stands for, as commands ask it: `apply` compares before it sends anything, `hold` and `freeze` before they
//! record anything, `plan` and `audit` only say what an apply would refuse.
//!
//! The store decides, in its transaction. What never enters: reading certificates (adapters), and the rules (core).

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

/// What a person says of an environment, with the binding that it rests on and what could not be checked.
pub(super) struct CheckedWrite {
    binding: Option<StoreWrite>,
    notes: Vec<String>,
}

impl CheckedWrite {
    /// What the person says, behind the binding that it rests on.
    pub(super) fn batch(self, word: StoreWrite) -> Batch {
        self.notes.iter().for_each(|note| say(note));
        self.binding.map_or_else(Batch::default, Batch::from).with(word)
    }
}

/// Takes a quick look at the cluster before a hold or a freeze is recorded.
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

/// Another environment of the same file with the same address or cluster name. It may be the same cluster, and two clusters may share both: it is
/// only worth a note.
fn other_name(config: Option<&Path>, environment: &EnvironmentName) -> Option<String> {
    let survey = config::load_environments(config).ok()?;
    let (other, shared) = survey.find_same_cluster(environment)?;
    Some(format!("`{other}` has {shared} too: if it is the same cluster, this does not bind whoever uses that name"))
}

fn say(note: &str) {
    output::print_warning(note);
}

pub(super) async fn environment(command: &EnvironmentCommand) -> Result<ExitStatus, CommandError> {
    match command {
        EnvironmentCommand::Rename(renaming) => rename(renaming).await,
    }
}

/// Renames an environment in the state directory, while no process drives it under either name.
async fn rename(renaming: &Renaming) -> Result<ExitStatus, CommandError> {
    let (from, to) = (inputs::parse_environment(&renaming.from)?, inputs::parse_environment(&renaming.to)?);
    let reason = holds::check_reason(&renaming.reason, "why: others will ask")?;
    // converger.toml may have the former name, the new one or both: it only says where the state directory is.
    let shelf = LedgerLocation::from_config(renaming.config.as_deref())?;
    shelf.check_exists()?;
    let state = ledger::open_state(&shelf).await?;
    if from == to {
        // Its own lock would be taken for that of another process.
        return Err(CommandError::refusal_error(&Refusal::name_in_use(&to)));
    }
    let _locks = [lock(&state, &from)?, lock(&state, &to)?];
    let rename = EnvironmentRename { from: from.clone(), to: to.clone(), by: host::actor().into(), reason, at_ms: host::now_ms() };
    if let WriteOutcome::Refused(refusal) = state.write(Batch::from(StoreWrite::Rename(rename))).await? {
        return Err(CommandError::refusal_error(&refusal));
    }
    state.attest_ledger().await?;
    let said = format!(
        "{from} is {to} now in the state directory {}: holds, freezes and operations are kept under the new name\n\
         write the new name into converger.toml and the declared state; the former one is refused from now on",
        files::display_path(state.path())
    );
    finish_output(writeln!(anstream::stdout(), "{said}"), ExitStatus::Done)
}

fn lock(state: &converger_runtime::StateDirectory, environment: &EnvironmentName) -> Result<EnvironmentLock, CommandError> {
    match state.lock_environment(environment)? {
        LockOutcome::Taken(lock) => Ok(lock),
        LockOutcome::Refused(refusal) => Err(CommandError::refusal_error(&refusal)),
    }
}
