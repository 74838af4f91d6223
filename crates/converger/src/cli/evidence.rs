//! The command line of the ledger: showing, exporting, verifying and reproducing recorded decisions.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use converger_core::apply::{OperationId, RunId};
use converger_core::evidence::ENTRY_KINDS;
use converger_core::guest::Vmid;

use super::Overwrite;

/// The ledger of a state directory.
#[derive(Args, Debug)]
pub(crate) struct LedgerArgs {
    /// Read the location of the state directory from FILE [default: converger.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// A ledger that is only read: that of a state directory, or an export.
#[derive(Args, Debug)]
pub(crate) struct LedgerSourceArgs {
    #[command(flatten)]
    pub(crate) copy: LedgerCopyArgs,
    /// Read the location of the state directory from FILE [default: converger.toml if it exists]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "db"])]
    pub(crate) config: Option<PathBuf>,
}

/// The subcommands of `ledger`.
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Show the last entries
    #[command(after_help = "\
Examples:
  converger ledger tail -n 50                      the last 50
  converger ledger tail --run 6afb4282-98434845    a run and its operations
  converger ledger tail --guest 101 --since 7d     a guest, in the last week
  converger ledger tail --kind refusal --from DIR  refusals in an export

Entries that match all filters are shown.")]
    Tail(TailArgs),
    /// Show one entry in full
    Show(ShowEntryArgs),
    /// Print a signed checkpoint of the durable entries
    Checkpoint(LedgerArgs),
    /// Print the public key of the ledger
    Key(LedgerArgs),
    /// Write the ledger as files that any web server can serve and anyone can verify
    #[command(after_help = "\
The first use of `ledger export`, `ledger checkpoint`, `ledger key` or `ledger prove` creates the key of the ledger and appends one entry with it. Nothing else \
is appended.")]
    Export(ExportArgs),
    /// Write a receipt of an operation or entry that can be verified on its own
    #[command(after_help = "\
Examples:
  converger ledger prove 6afb4282-98434845-0 --out FILE  an ended operation
  converger ledger prove 17                              one entry
  converger verify FILE --key KEY                        verify it anywhere

The receipt of an operation contains every entry about it, the entries that admitted its run, and their evidence, under one signed \
checkpoint. It cannot prove that the ledger has no other entry about the operation; an export can.")]
    Prove(ProveArgs),
    /// Accept a restored state directory that is older than its witness
    #[command(after_help = "\
Examples:
  converger ledger resync --reason \"restored the backup of Sunday, ticket 4711\"

Entries written after the backup are lost from the ledger, but their changes are in the environment: look there first. The reason is recorded.")]
    Resync(ResyncArgs),
    /// Replace a lost or compromised signing key
    #[command(after_help = "\
Examples:
  converger ledger rekey --reason \"the disk with the key broke\"
  converger ledger rekey --reason \"...\" --checkpoint web/checkpoint
  converger ledger rekey --reason \"it leaked\" --replace-key

Creates a new key and records it in an entry, with your name and the reason. The entry keeps the last checkpoint of the old key \
as evidence: that of --checkpoint, that of the witness, or one that the old key signs now if it still exists.

Send the new key to everyone who verifies this ledger: a ledger that names its own new key proves nothing to them.")]
    Rekey(Rekeying),
    /// Remove old observations that no open decision needs; keep all entries
    #[command(after_help = "\
Examples:
  converger ledger prune --before 2026-06-30 --dry-run   only show the result
  converger ledger prune --before 90d                    older than 90 days

An observation is the largest input of a decision. Without it the decision can still be shown and proven, but not reproduced. An entry \
records who pruned it and when. The disk space is reused; the file does not shrink.")]
    Prune(PruneArgs),
}

/// The arguments of `ledger prune`.
#[derive(Args, Debug)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// Prune decisions older than this: a day (2026-06-30), a time (2026-06-30T12:00:00Z), or an age (90d)
    #[arg(long, value_name = "TIME")]
    pub(crate) before: String,
    /// Show what would be removed; remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `ledger rekey`.
#[derive(Args, Debug)]
pub(crate) struct Rekeying {
    #[command(flatten)]
    pub(crate) place: LedgerArgs,
    /// Why; recorded with your name
    #[arg(long)]
    pub(crate) reason: String,
    /// The last known checkpoint of the old key, such as that of an export
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Replace a key that still exists
    #[arg(long)]
    pub(crate) replace_key: bool,
}

/// The arguments of `ledger resync`.
#[derive(Args, Debug)]
pub(crate) struct ResyncArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// Why; recorded with your name
    #[arg(long)]
    pub(crate) reason: String,
}

/// The arguments of `ledger tail`.
#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    #[command(flatten)]
    pub(crate) source: LedgerSourceArgs,
    /// Only entries of this run and its operations
    #[arg(long, value_name = "ID", value_parser = parse_run_id)]
    pub(crate) run: Option<RunId>,
    /// Only entries about this guest
    #[arg(long, value_name = "VMID", value_parser = super::parse_vmid)]
    pub(crate) guest: Option<Vmid>,
    /// Only entries of this kind, such as intent, outcome or refusal
    #[arg(long, value_parser = ENTRY_KINDS, hide_possible_values = true)]
    pub(crate) kind: Option<String>,
    /// Only entries since this day (2026-06-30), time (2026-06-30T12:00:00Z), or age (90d)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// Show the last COUNT entries
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Print a line of JSON for each entry
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `ledger show`.
#[derive(Args, Debug)]
pub(crate) struct ShowEntryArgs {
    #[command(flatten)]
    pub(crate) source: LedgerSourceArgs,
    /// The index of the entry, from 0
    pub(crate) index: u64,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `ledger export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// The directory to write; an earlier export of the same ledger is extended
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
}

/// The arguments of `ledger prove`.
#[derive(Args, Debug)]
pub(crate) struct ProveArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// The id of an ended operation or of a run, or the index of an entry
    pub(crate) what: String,
    /// Write the receipt to FILE [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
}

/// The arguments of `verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// An export, a receipt, or with --db a state directory [default: the state directory of converger.toml]
    pub(crate) path: Option<PathBuf>,
    /// Treat the path as a state directory, or as a backup of its store
    #[arg(long, requires = "path")]
    pub(crate) db: bool,
    /// The public key of the ledger, or a file that contains it
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Require the receipt to be about this operation
    #[arg(long, value_name = "ID", requires = "path", value_parser = operation_id)]
    pub(crate) operation: Option<OperationId>,
    /// Require the ledger to be an extension of this earlier checkpoint
    #[arg(long, value_name = "FILE")]
    pub(crate) since: Option<PathBuf>,
    /// Read the location of the state directory from FILE [default: converger.toml if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    pub(crate) config: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A ledger other than that of converger.toml: another state directory, or an export.
#[derive(Args, Debug)]
pub(crate) struct LedgerCopyArgs {
    /// Read this state directory, which may be a copy on a read-only disk
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    pub(crate) db: Option<PathBuf>,
    /// Read an export instead of the state directory, after verifying its signature and hashes
    #[arg(long, value_name = "DIR")]
    pub(crate) from: Option<PathBuf>,
    /// The public key of the exported ledger, or a file that contains it [default: the key in the export]
    #[arg(long, value_name = "KEY", requires = "from")]
    pub(crate) key: Option<String>,
}

/// The arguments of `reproduce`.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// The digest of a plan or at least its first 6 digits, or the id of a run
    pub(crate) what: String,
    /// Write the reproduced plan to FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
    #[command(flatten)]
    pub(crate) source: LedgerSourceArgs,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `diff`.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The digest of a plan (at least its first 6 digits), the id of a run, or the path of a plan file (with a dot or a slash in it)
    pub(crate) one: String,
    /// The later plan, in the same way
    pub(crate) other: String,
    #[command(flatten)]
    pub(crate) source: LedgerSourceArgs,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `backtest`.
#[derive(Args, Debug)]
pub(crate) struct BacktestArgs {
    /// A converger.toml with the protection rules and limits to try
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) copy: LedgerCopyArgs,
    /// Read the location of the state directory from FILE [default: converger.toml if it exists]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "db"])]
    pub(crate) state: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn operation_id(text: &str) -> Result<OperationId, String> {
    OperationId::new(text).ok_or_else(|| "this is not the id of an operation; `converger ops list` shows them".to_owned())
}

fn parse_run_id(text: &str) -> Result<RunId, String> {
    RunId::new(text).ok_or_else(|| "this is not the id of a run; `converger ledger tail` and `converger ops list` show them".to_owned())
}
