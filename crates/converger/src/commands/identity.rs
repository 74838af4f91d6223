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
use converger_store::{Batch, EnvironmentLock, Write};

use super::{Stop, inputs, ledger, people, shown};
use crate::cli::{EnvironmentCommand, Renaming};
use crate::config::Connection;
use crate::exit::End;
use crate::{config, files, host, screen};

/// What a person says of an environment, with the binding that it rests on and what could not be checked.
pub(super) struct CheckedWrite {
    binding: Option<Write>,
    notes: Vec<String>,
}

impl CheckedWrite {
    /// What the person says, behind the binding that it rests on.
    pub(super) fn batch(self, word: Write) -> Batch {
        self.notes.iter().for_each(|note| say(note));
        self.binding.map_or_else(Batch::default, Batch::from).with(word)
    }
}

/// Takes a quick look at the cluster before a hold or a freeze is recorded.
pub(super) async fn check(
    config: Option<&Path>,
    environment: &EnvironmentName,
    connection: &Connection,
    guest: Option<Vmid>,
    is_offline: bool,
) -> Result<CheckedWrite, Stop> {
    let checked = match is_offline {
        true => Checked::unchecked(environment, guest, "--offline was given"),
        false => match check_guest(environment, connection, guest).await {
            GuestCheck::Checked(checked) => checked,
            GuestCheck::Absent(refusal) => return Err(Stop::refused(&refusal)),
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
    let survey = config::survey(config).ok()?;
    let (other, shared) = survey.same_cluster(environment)?;
    Some(format!("`{other}` has {shared} too: if it is the same cluster, this does not bind whoever uses that name"))
}

fn say(note: &str) {
    let _ = writeln!(anstream::stderr(), "{}", screen::err(&format!("note: {note}")));
}

pub(super) async fn environment(command: &EnvironmentCommand) -> Result<End, Stop> {
    match command {
        EnvironmentCommand::Rename(renaming) => rename(renaming).await,
    }
}

/// Renames an environment in the state directory, while no process drives it under either name.
async fn rename(renaming: &Renaming) -> Result<End, Stop> {
    let (from, to) = (inputs::parse_environment(&renaming.from)?, inputs::parse_environment(&renaming.to)?);
    let reason = people::remark(&renaming.reason, "why: others will ask")?;
    // converger.toml may have the former name, the new one or both: it only says where the state directory is.
    let shelf = LedgerLocation::from_config(renaming.config.as_deref())?;
    shelf.must_be_there()?;
    let state = ledger::open_state(&shelf).await?;
    if from == to {
        // Its own lock would be taken for that of another process.
        return Err(Stop::refused(&Refusal::name_in_use(&to)));
    }
    let _locks = [lock(&state, &from)?, lock(&state, &to)?];
    let rename = EnvironmentRename { from: from.clone(), to: to.clone(), by: host::actor().into(), reason, at_ms: host::now_ms() };
    if let WriteOutcome::Refused(refusal) = state.write(Batch::from(Write::Rename(rename))).await? {
        return Err(Stop::refused(&refusal));
    }
    state.attest_ledger().await?;
    let said = format!(
        "{from} is {to} now in the state directory {}: holds, freezes and operations are kept under the new name\n\
         write the new name into converger.toml and the declared state; the former one is refused from now on",
        files::shown(state.path())
    );
    shown(writeln!(anstream::stdout(), "{said}"), End::Done)
}

fn lock(state: &converger_runtime::StateDirectory, environment: &EnvironmentName) -> Result<EnvironmentLock, Stop> {
    match state.lock_environment(environment)? {
        LockOutcome::Taken(lock) => Ok(lock),
        LockOutcome::Refused(refusal) => Err(Stop::refused(&refusal)),
    }
}
