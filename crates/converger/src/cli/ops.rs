//! Arguments of `ops`.

use clap::{Args, Subcommand};
use converger_core::guest::Vmid;

use super::EnvironmentArgs;
use super::guest_ids::parse_vmid;

/// The subcommands of `ops`.
#[derive(Debug, Subcommand)]
pub(crate) enum OpsCommand {
    /// List operations, newest first
    List(OpsListArgs),
    /// Show one operation in detail
    Show(OpsShowArgs),
    /// Record the outcome of a held operation
    #[command(after_help = "\
Examples:
  converger ops resolve lab 7f3a-2 --as done --reason \"the guest runs\"
  converger ops resolve 7f3a-2 --as not-run --reason \"checked the task log\"

Look at the guest and its tasks first: the next plan relies on what you record.")]
    Resolve(OpsResolveArgs),
}

/// The arguments of `ops list`.
#[derive(Args, Debug)]
pub(crate) struct OpsListArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// Only held operations
    #[arg(long)]
    pub(crate) held: bool,
    /// Only operations in flight, or left open by a killed process
    #[arg(long, conflicts_with = "held")]
    pub(crate) open: bool,
    /// Only operations on this guest
    #[arg(long, value_parser = parse_vmid)]
    pub(crate) vmid: Option<Vmid>,
    /// Only operations of this run
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
    /// Only operations older than this one
    #[arg(long, value_name = "OPERATION")]
    pub(crate) before: Option<String>,
    /// Show at most LIMIT operations
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Print a line of JSON for each operation
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `ops show`.
#[derive(Args, Debug)]
#[command(allow_missing_positional = true)]
pub(crate) struct OpsShowArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// The id of the operation
    pub(crate) id: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `ops resolve`.
#[derive(Args, Debug)]
#[command(allow_missing_positional = true)]
pub(crate) struct OpsResolveArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// The id of the operation
    pub(crate) id: String,
    /// The outcome
    #[arg(long, value_parser = ["done", "failed", "not-run"])]
    pub(crate) r#as: String,
    /// How you know the outcome; recorded with your name
    #[arg(long)]
    pub(crate) reason: String,
}
