//! `converger environment rename`.

use std::io::Write as _;

use converger_runtime::environment_rename::RenameRequest;
use converger_runtime::{Author, LedgerLocation};

use super::{CommandError, finish_output, holds, inputs, ledger};
use crate::cli::{EnvironmentCommand, Renaming};
use crate::exit_status::ExitStatus;
use crate::files;

pub(super) async fn run_environment(command: &EnvironmentCommand) -> Result<ExitStatus, CommandError> {
    match command {
        EnvironmentCommand::Rename(renaming) => rename(renaming).await,
    }
}

async fn rename(renaming: &Renaming) -> Result<ExitStatus, CommandError> {
    let (from, to) = (inputs::parse_environment(&renaming.from)?, inputs::parse_environment(&renaming.to)?);
    let reason = holds::check_reason(&renaming.reason, holds::REASON_HINT)?;
    // converger.toml may have the old name, the new one or both: only its state directory is used.
    let location = LedgerLocation::from_config(renaming.config.as_deref())?;
    location.check_exists()?;
    let state = ledger::open_state(&location).await?;
    let confirmation = format!(
        "renamed {from} to {to} in the state directory {}: holds, freezes and operations are kept under the new name\n\
         write the new name into converger.toml and the declared state; the former name is refused from now on",
        files::display_path(state.path())
    );
    let request = RenameRequest { from, to, reason, author: Author::of_process() };
    holds::check_written(state.rename_environment(request).await?)?;
    finish_output(writeln!(anstream::stdout(), "{confirmation}"), ExitStatus::Done)
}
