//! What can be said about the record: the ledger, what checks it, and decisions made again.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use converger_core::apply::{OperationId, RunId};
use converger_core::evidence::ENTRY_KINDS;
use converger_core::guest::Vmid;

use super::Overwrite;

/// Which ledger.
#[derive(Args, Debug)]
pub(crate) struct LedgerArgs {
    /// Where the state directory is written [default: converger.toml where it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Which ledger, where it is only read: that of a state directory, or an export of one.
#[derive(Args, Debug)]
pub(crate) struct LedgerSourceArgs {
    #[command(flatten)]
    pub(crate) copy: LedgerCopyArgs,
    /// Where the state directory is written [default: converger.toml where it exists]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "db"])]
    pub(crate) config: Option<PathBuf>,
}

/// What is asked of the ledger.
#[derive(Debug, Subcommand)]
pub(crate) enum LedgerCommand {
    /// Show the last entries
    #[command(after_help = "\
Examples:
  converger ledger tail -n 50                      the last 50
  converger ledger tail --run 6afb4282-98434845    a run, and what it did
  converger ledger tail --guest 101 --since 7d     a guest, in a week
  converger ledger tail --kind refusal --from DIR  refusals of an export

Each filter leaves entries out; what passes all of them is shown.")]
    Tail(TailArgs),
    /// Show one entry whole
    Show(ShowEntryArgs),
    /// Print a checkpoint of what is durable, signed
    Checkpoint(LedgerArgs),
    /// Print the key that others check the ledger with
    Key(LedgerArgs),
    /// Write the ledger as files that any web server can serve, and anybody can check
    Export(ExportArgs),
    /// Write a receipt of an operation or of one entry, which is checked alone
    #[command(after_help = "\
Examples:
  converger ledger prove 6afb4282-98434845-0 --out FILE  an operation that ended
  converger ledger prove 17                              one entry
  converger verify FILE --key KEY                        anywhere, alone

The receipt of an operation has every entry about it and those that its run was admitted by, with the evidence of that \
admission, under one signed checkpoint. That there is nothing else about it in the ledger no receipt can prove: an export can.")]
    Prove(ProveArgs),
    /// Take a state directory back into service that is shorter than its witness has seen, or another one
    #[command(after_help = "\
Examples:
  converger ledger resync --reason \"restored the backup of Sunday, ticket 4711\"

What happened between that copy and the restore is lost here and not in the environment: look there first. The \
reason is recorded.")]
    Resync(ResyncArgs),
    /// Replace the key that signs checkpoints, because it was lost or must not be used any more
    #[command(after_help = "\
Examples:
  converger ledger rekey --reason \"the disk with the key broke\"
  converger ledger rekey --reason \"...\" --checkpoint web/checkpoint
  converger ledger rekey --reason \"it leaked\" --replace-key

A new key is made, and an entry names it with who replaced the old one and why. The last checkpoint of the old key stays \
in that entry as evidence: that of --checkpoint or of the witness, or one that the old key signs now where it is still there. \
Whoever checks this ledger needs the new key from you: a ledger that names its own new key proves nothing to them.")]
    Rekey(Rekeying),
    /// Let go of old readings that no open decision needs; entries stay for ever
    #[command(after_help = "\
Examples:
  converger ledger prune --before 2026-06-30 --dry-run   only says what would go
  converger ledger prune --before 90d                    older than 90 days

A reading is the largest part of what a decision rests on. Without it the decision is shown and proven as before, and \
cannot be made again. Who let it go, and when, is an entry. The room is used again; the file does not become smaller.")]
    Prune(PruneArgs),
}

/// Which readings are let go.
#[derive(Args, Debug)]
pub(crate) struct PruneArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// Only decisions of before this: a day (2026-06-30), a time (2026-06-30T12:00:00Z), or an age (90d)
    #[arg(long, value_name = "TIME")]
    pub(crate) before: String,
    /// Only say what would be let go
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Why the key is replaced.
#[derive(Args, Debug)]
pub(crate) struct Rekeying {
    #[command(flatten)]
    pub(crate) place: LedgerArgs,
    /// Why, for those who ask
    #[arg(long)]
    pub(crate) reason: String,
    /// The last checkpoint of the old key that somebody kept, such as that of an export
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Replace a key that is still there
    #[arg(long)]
    pub(crate) replace_key: bool,
}

/// Why a state directory is taken back into service.
#[derive(Args, Debug)]
pub(crate) struct ResyncArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// Why, for those who ask
    #[arg(long)]
    pub(crate) reason: String,
}

/// Which entries are shown.
#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    #[command(flatten)]
    pub(crate) source: LedgerSourceArgs,
    /// Only those of this run, and of what it did
    #[arg(long, value_name = "ID", value_parser = parse_run_id)]
    pub(crate) run: Option<RunId>,
    /// Only those about this guest
    #[arg(long, value_name = "VMID", value_parser = super::parse_vmid)]
    pub(crate) guest: Option<Vmid>,
    /// Only those of this kind, such as intent, outcome or refusal
    #[arg(long, value_parser = ENTRY_KINDS, hide_possible_values = true)]
    pub(crate) kind: Option<String>,
    /// Only those of this time or later: a day (2026-06-30), a time (2026-06-30T12:00:00Z), or an age (90d)
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
    /// How many, the last ones
    #[arg(long, short = 'n', default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// Print a line of JSON for each
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which entry is shown.
#[derive(Args, Debug)]
pub(crate) struct ShowEntryArgs {
    #[command(flatten)]
    pub(crate) source: LedgerSourceArgs,
    /// Its place, counted from 0
    pub(crate) index: u64,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the ledger is written to.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// The directory; an earlier export of the same ledger is extended
    pub(crate) directory: PathBuf,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
}

/// What is proven.
#[derive(Args, Debug)]
pub(crate) struct ProveArgs {
    #[command(flatten)]
    pub(crate) ledger: LedgerArgs,
    /// An operation that has ended, or the place of an entry
    pub(crate) what: String,
    /// The file to write [default: standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
}

/// What is checked, and with what.
#[derive(Args, Debug)]
pub(crate) struct VerifyArgs {
    /// An export or a receipt, or with --db a state directory [default: the state directory of converger.toml]
    pub(crate) path: Option<PathBuf>,
    /// The path is a state directory
    #[arg(long, requires = "path")]
    pub(crate) db: bool,
    /// The key of the ledger, or a file that has it
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// The operation that a receipt has to be about; a receipt of another one is no evidence of it
    #[arg(long, value_name = "ID", requires = "path", value_parser = operation_id)]
    pub(crate) operation: Option<OperationId>,
    /// A checkpoint that was seen before: the record must be that one, or have grown out of it
    #[arg(long, value_name = "FILE")]
    pub(crate) since: Option<PathBuf>,
    /// Where the state directory is written [default: converger.toml where it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "path")]
    pub(crate) config: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is read in place of the state directory that converger.toml leads to: another one, or an export.
#[derive(Args, Debug)]
pub(crate) struct LedgerCopyArgs {
    /// Read this state directory, which may be a copy on a disk that cannot be written to
    #[arg(long, value_name = "DIR", conflicts_with = "from")]
    pub(crate) db: Option<PathBuf>,
    /// Read an export instead of the state directory; its signature and hashes are checked first
    #[arg(long, value_name = "DIR")]
    pub(crate) from: Option<PathBuf>,
    /// The key of the ledger that was exported, or a file that has it [default: the one that lies beside the log]
    #[arg(long, value_name = "KEY", requires = "from")]
    pub(crate) key: Option<String>,
}

/// Which decision is made again.
#[derive(Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// The digest of a plan or at least 6 of its first digits, or the id of a run
    pub(crate) what: String,
    /// Write the plan that came out to this file
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

/// Which plans are compared.
#[derive(Args, Debug)]
pub(crate) struct DiffArgs {
    /// The digest of a plan or at least 6 of its first digits, or the id of a run
    pub(crate) one: String,
    /// Another
    pub(crate) other: String,
    #[command(flatten)]
    pub(crate) source: LedgerSourceArgs,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Under what recorded decisions are weighed.
#[derive(Args, Debug)]
pub(crate) struct BacktestArgs {
    /// The candidate: a converger.toml with other protection or limits
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) copy: LedgerCopyArgs,
    /// The converger.toml whose state directory is meant [default: converger.toml where it exists]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "db"])]
    pub(crate) state: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn operation_id(text: &str) -> Result<OperationId, String> {
    OperationId::new(text).ok_or_else(|| "this is not the id of an operation; `ops list` shows them".to_owned())
}

fn parse_run_id(text: &str) -> Result<RunId, String> {
    RunId::new(text).ok_or_else(|| "this is not the id of a run; `ledger tail` and `ops list` show them".to_owned())
}
