//! Arguments of `action`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::{ObservationArgs, Overwrite};

/// The arguments of `action`: a request, or `list`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, arg_required_else_help = true)]
pub(crate) struct ActionArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ActionCommand>,
    #[command(flatten)]
    pub(crate) request: RequestArgs,
}

/// The subcommands of `action`.
#[derive(Debug, Subcommand)]
pub(crate) enum ActionCommand {
    /// List the actions, or the parameters of one
    #[command(after_help = "\
Examples:
  converger action list
  converger action list vm.clone")]
    List(ActionListArgs),
}

/// The arguments of `action list`.
#[derive(Args, Debug)]
pub(crate) struct ActionListArgs {
    /// Show the parameters of this action
    #[arg(value_name = "ACTION")]
    pub(crate) name: Option<String>,
    /// Print the list as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// A requested action, and how it is confirmed and reported.
#[derive(Args, Debug)]
pub(crate) struct RequestArgs {
    /// The action; `converger action list` shows all
    #[arg(value_name = "ACTION")]
    pub(crate) name: Option<String>,
    /// The guest: vm/101 for a virtual machine, ct/101 for a container
    pub(crate) target: Option<String>,
    /// The parameters of the action, as NAME=VALUE
    #[arg(value_name = "NAME=VALUE")]
    pub(crate) parameters: Vec<String>,
    /// The environment of the guest [default: the only one of converger.toml]
    #[arg(long, visible_alias = "env", value_name = "NAME")]
    pub(crate) environment: Option<String>,
    #[command(flatten)]
    pub(crate) observation: ObservationArgs,
    /// Show the plan; apply nothing
    #[arg(long)]
    pub(crate) plan: bool,
    /// With --plan: keep the plan in the ledger, so that it can be explained, reproduced and proven later
    #[arg(long, requires = "plan", conflicts_with = "replay")]
    pub(crate) record: bool,
    /// Confirm the plan with this full digest instead of asking; covers benign steps only
    #[arg(long, value_name = "DIGEST", conflicts_with = "plan")]
    pub(crate) confirm: Option<String>,
    /// Execute the request once for this key, however often the command is run
    #[arg(long, conflicts_with = "plan")]
    pub(crate) key: Option<String>,
    /// Start nothing new SECONDS after launch; wait for operations in flight
    #[arg(long, value_name = "SECONDS", conflicts_with = "plan", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,
    /// Write the result to FILE [default: result.json, or none with --json]; with --plan, write the plan to FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
    /// Print the result as JSON on standard output; with --plan, the plan
    #[arg(long)]
    pub(crate) json: bool,
}
