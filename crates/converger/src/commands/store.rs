//! `converger store`: backs up the store, and restores a backup.

use std::fmt::Write as _;
use std::io::Write as _;

use converger_core::apply::OperationId;
use converger_runtime::state_check::CheckedState;
use converger_runtime::state_dir::run_blocking;
use converger_runtime::store_backup::{StoreBackup, back_up};
use converger_runtime::store_restore::{RestoreOutcome, RestoreRequest, RestoredStore, UnreadableStore, restore};
use converger_runtime::{Author, LedgerLocation};
use serde_json::json;

use super::{CommandError, finish_output, holds, ledger};
use crate::cli::{StoreBackupArgs, StoreCommand, StoreRestoreArgs};
use crate::exit_status::ExitStatus;
use crate::render::{self, apply_style, count_with_noun};
use crate::{fatal, files, line_wrap, output};

pub(super) async fn run_store(command: &StoreCommand) -> Result<ExitStatus, CommandError> {
    match command {
        StoreCommand::Backup(arguments) => run_backup(arguments).await,
        StoreCommand::Restore(arguments) => run_restore(arguments).await,
    }
}

async fn run_backup(arguments: &StoreBackupArgs) -> Result<ExitStatus, CommandError> {
    let location = LedgerLocation::from_config(arguments.place.config.as_deref())?;
    let (file, directory) = (arguments.file.clone(), location.directory.clone());
    let witness = location.witness.clone();
    let backup = run_blocking(move || back_up(&location, &file)).await?;
    if arguments.json {
        return print_report(&backup_json(&backup));
    }
    let mut text = format!(
        "backed up {} to {}: {} KiB, verified\n",
        files::display_path(&directory),
        files::display_path(&backup.file),
        backup.bytes.div_ceil(1024)
    );
    describe_content(&mut text, &backup.checked, backup.checked.epoch);
    let key_file = directory.join(converger_store::KEY_FILE);
    let has_key = backup.checked.verifier.is_some() || key_file.exists();
    let (key, are, copies) = if has_key {
        (format!("{} (the signing key) and ", files::display_path(&key_file)), "are", "copies of both")
    } else {
        (String::new(), "is", "a copy")
    };
    let witness = witness.map(|witness| format!(", and leave the witness {} where it is", files::display_path(&witness)));
    let rest = format!("{key}converger.toml {are} not in it: keep {copies}{}", witness.unwrap_or_default());
    let _ = writeln!(text, "  {}   {rest}", apply_style(render::CYAN, "keep"));
    finish_output(write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text)), ExitStatus::Done)
}

async fn run_restore(arguments: &StoreRestoreArgs) -> Result<ExitStatus, CommandError> {
    let reason = holds::check_reason(&arguments.reason, "why")?;
    let location = LedgerLocation::from_config(arguments.place.config.as_deref())?;
    let unreadable = if arguments.replace_unreadable { UnreadableStore::Replace } else { UnreadableStore::Keep };
    let request = RestoreRequest { file: arguments.file.clone(), unreadable, reason, author: Author::of_process() };
    let place = ledger::state_location(&location);
    let restored = match run_blocking(move || restore(&place, request, fatal::end_process)).await? {
        RestoreOutcome::Restored(restored) => restored,
        RestoreOutcome::Refused(refusal) => return Err(CommandError::refusal_error(&refusal)),
    };
    if arguments.json {
        return print_report(&restore_json(&restored));
    }
    let directory = files::display_path(&location.directory);
    let mut text = format!("restored {} into {directory}\n", files::display_path(&arguments.file));
    describe_content(&mut text, &restored.checked, restored.epoch);
    let _ = match &restored.replaced {
        Some(replaced) => {
            writeln!(text, "  {}    the replaced store is {}", apply_style(render::CYAN, "old"), files::display_path(replaced))
        }
        None => writeln!(
            text,
            "  {}   {directory} had no store: if another directory is in use, name it with `--config`",
            apply_style(render::CYAN, "note")
        ),
    };
    let _ = writeln!(text, "  {}   {}", apply_style(render::CYAN, "note"), RESTORED_NOTE);
    if !restored.has_key {
        let _ = writeln!(text, "  {}   {}", apply_style(render::CYAN, "note"), KEY_NOTE);
    }
    finish_output(write!(anstream::stdout(), "{}", line_wrap::wrap_for_stdout(&text)), ExitStatus::Done)
}

const RESTORED_NOTE: &str = "plans and approvals of earlier epochs are void; what was recorded after the backup is lost, with holds, freezes and idempotency keys, but its changes are in the environment: look there before the next apply";
const KEY_NOTE: &str = "the signing key of this ledger is missing: copy `ledger.key` into the state directory, or run `converger ledger rekey --reason \"...\"`";

/// The ledger, the epoch and the operations that are not settled.
fn describe_content(text: &mut String, checked: &CheckedState, epoch: u64) {
    let _ = writeln!(text, "  {} {} entries, root {}", apply_style(render::CYAN, "ledger"), checked.entries, checked.root);
    let _ = writeln!(text, "  {}  {epoch}", apply_style(render::CYAN, "epoch"));
    let list = |ids: &[OperationId]| ids.iter().map(OperationId::as_str).collect::<Vec<_>>().join(", ");
    if !checked.open.is_empty() {
        let count = count_with_noun(checked.open.len() as u64, "operation");
        let _ = writeln!(
            text,
            "  {}   {count} in flight, which the next apply recovers: {}",
            apply_style(render::CYAN, "open"),
            list(&checked.open)
        );
    }
    if !checked.held.is_empty() {
        let count = count_with_noun(checked.held.len() as u64, "operation");
        let _ = writeln!(
            text,
            "  {}   {count}, which `converger ops resolve` settles: {}",
            apply_style(render::CYAN, "held"),
            list(&checked.held)
        );
    }
}

fn ids(all: &[OperationId]) -> Vec<&str> {
    all.iter().map(OperationId::as_str).collect()
}

fn backup_json(StoreBackup { file, bytes, checked }: &StoreBackup) -> serde_json::Value {
    json!({
        "schema": "converger.backup/1", "file": file.to_string_lossy(), "bytes": bytes, "entries": checked.entries,
        "root": checked.root.to_string(), "epoch": checked.epoch, "open": ids(&checked.open), "held": ids(&checked.held),
    })
}

fn restore_json(RestoredStore { checked, epoch, replaced, has_key }: &RestoredStore) -> serde_json::Value {
    json!({
        "schema": "converger.restored/1", "entries": checked.entries, "root": checked.root.to_string(), "epoch": epoch,
        "open": ids(&checked.open), "held": ids(&checked.held), "has_key": has_key,
        "replaced": replaced.as_ref().map(|path| path.to_string_lossy()),
    })
}

fn print_report(report: &serde_json::Value) -> Result<ExitStatus, CommandError> {
    finish_output(output::print_json(|out| writeln!(out, "{report}")), ExitStatus::Done)
}
