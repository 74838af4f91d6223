//! `converger ledger rekey`: replaces a lost or compromised signing key.

use std::io::Write as _;
use std::path::Path;

use converger_core::failure::FailureCode;
use converger_runtime::ledger_rekey::{CHECKPOINT_BYTES_MAX, ExistingKey, NamedCheckpoint, RekeyRequest};
use converger_runtime::{Author, LedgerLocation};

use super::super::{CommandError, finish_output, holds};
use crate::cli::Rekeying;
use crate::exit_status::ExitStatus;
use crate::files;

pub(super) async fn rekey(rekeying: &Rekeying) -> Result<ExitStatus, CommandError> {
    let reason = holds::check_reason(&rekeying.reason, "why")?;
    let location = LedgerLocation::from_config(rekeying.place.config.as_deref())?;
    location.check_exists()?;
    let checkpoint = rekeying.checkpoint.as_deref().map(read_checkpoint).transpose()?;
    let existing = if rekeying.replace_key { ExistingKey::Replace } else { ExistingKey::Keep };
    let state = super::open_state(&location).await?;
    let replaced = state.replace_key(RekeyRequest { existing, checkpoint, reason, author: Author::of_process() }).await?;
    let checkpoint_note = match replaced.covered_entries {
        Some(size) => format!("the last checkpoint of the old key is recorded, and covers the first {size} entries"),
        None => "no checkpoint of the old key was found or recorded".to_owned(),
    };
    let text = format!(
        "{}\nsigns this ledger from now on; {checkpoint_note}\nsend this key and a new export to everyone who verifies the ledger\n",
        replaced.verifier
    );
    finish_output(write!(anstream::stdout(), "{text}"), ExitStatus::Done)
}

fn read_checkpoint(path: &Path) -> Result<NamedCheckpoint, CommandError> {
    let name = files::display_path(path);
    match files::read_at_most(path, CHECKPOINT_BYTES_MAX) {
        Ok(text) => Ok(NamedCheckpoint { name, bytes: text.bytes }),
        Err(error) => Err(CommandError::input_error(format!("cannot read {name}: {error}")).with_code(FailureCode::FileUnreadable)),
    }
}
