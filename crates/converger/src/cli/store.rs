//! Arguments of `store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::LedgerArgs;

/// The subcommands of `store`.
#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Write a verified copy of the store to a new file, while it is in use
    #[command(after_help = "\
Examples:
  converger store backup /backup/converger-2026-11-18.db
  converger store backup FILE --json | jq .entries
  converger verify --db FILE                       verify it again later

The copy is the store of one moment: journal, ledger, holds and freezes. It is verified as `converger verify` does before it gets its name. \
The signing key (`ledger.key`), the witness and converger.toml are not in it: keep copies of them, too.

Exit codes: 0 written, 1 not written, 2 the file exists or there is no store, 6 the store is not intact.")]
    Backup(StoreBackupArgs),
    /// Put a backup in place of the store, for a recorded reason
    #[command(after_help = "\
Examples:
  converger store restore FILE --reason \"the disk broke, ticket 4711\"

What was recorded after the backup is lost from the store, but its changes are in the environment: look there first. Holds and freezes set after \
the backup are gone, too, and so are idempotency keys used after it. A new epoch begins: plans and approvals of earlier epochs are void. The replaced store is kept \
beside the new one.

Nothing is asked: the reason is required and recorded, as with `converger ledger resync`.

Exit codes: 0 restored, 1 failed, 2 bad input, 3 refused (an environment is in use, or operations are in flight or held), 6 the backup is not intact.")]
    Restore(StoreRestoreArgs),
}

/// The arguments of `store backup`.
#[derive(Args, Debug)]
pub(crate) struct StoreBackupArgs {
    /// The file to write, which must not exist
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) place: LedgerArgs,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `store restore`.
#[derive(Args, Debug)]
pub(crate) struct StoreRestoreArgs {
    /// The backup
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) place: LedgerArgs,
    /// Why; recorded with your name
    #[arg(long)]
    pub(crate) reason: String,
    /// Replace a store that cannot be read, although it may have operations in flight
    #[arg(long)]
    pub(crate) replace_unreadable: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
