//! The command line: what can be said, with help that teaches by example.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

const ABOUT: &str = "\
Brings Proxmox VE guests to a declared state, and refuses whatever it cannot prove safe.

    desired.yaml -> observe -> plan -> safety -> [ audit | apply ]";

const EXAMPLES: &str = "\
Examples:
  converger audit desired.yaml --replay current.json   what would be done, what is refused
  converger plan desired.yaml --replay current.json    the same, and write plan.json
  converger explain protected-guest                    what a refusal code means
  converger contract                                   what is guaranteed, checked just now

Exit codes:
  0 done or converged      1 failed      2 bad usage or input
  3 refused                4 changes pending      6 broken contract";

/// Brings Proxmox VE guests to a declared state.
#[derive(Debug, Parser)]
#[command(name = "converger", version, about = ABOUT, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show what would be done, what is right and what is refused; write nothing
    #[command(after_help = "\
Examples:
  converger audit desired.yaml --replay current.json
  converger audit desired.yaml --replay current.json --json | jq .summary
  ssh pve1 cat current.json | converger audit desired.yaml --replay -

Exit codes: 0 converged, 3 something is refused, 4 changes pending.")]
    Audit(Reading),
    /// The same as audit, and write the plan to a file
    #[command(after_help = "\
Examples:
  converger plan desired.yaml --replay current.json                  writes plan.json
  converger plan desired.yaml --replay current.json --out lab.json
  converger plan desired.yaml --replay current.json --json           to standard output, no file

The digest in plan.json is the SHA-256 of its body in canonical JSON (RFC 8785).
Exit codes: 0 converged, 3 something is refused, 4 changes pending.")]
    Plan {
        #[command(flatten)]
        reading: Reading,
        /// The file to write [default: plan.json, or none with --json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Take a reading of the declared guests and write it to a file
    #[command(after_help = "\
Examples:
  converger observe desired.yaml --replay yesterday.json     writes current.json
  converger observe desired.yaml --replay - --json < r.json  to standard output

What is outside of the declared list is dropped and only counted.")]
    Observe {
        #[command(flatten)]
        source: Source,
        /// The file to write [default: current.json, or none with --json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Print the observation as JSON on standard output
        #[arg(long)]
        json: bool,
    },
    /// Carry the plan out (a recorded observation is refused)
    #[command(after_help = "\
Examples:
  converger apply desired.yaml --replay current.json     shows the plan, refuses to carry it out

A plan that was made from a recorded observation is never carried out: a recording shows how
things were and not how they are. Exit code 3.")]
    Apply(Reading),
    /// Explain a refusal code, or list them all
    #[command(after_help = "\
Examples:
  converger explain                    all codes
  converger explain guest-locked       one of them
  converger explain fields             which config keys can be declared")]
    Explain {
        /// A refusal code, or `fields`
        topic: Option<String>,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the guarantees of this program, and check them now
    #[command(after_help = "\
Examples:
  converger contract
  converger contract --json | jq .holds

Compares the text of the guarantees with the pinned digest, plans the built-in vectors again and
compares them byte by byte. A mismatch is exit code 6 and keeps apply from running.")]
    Contract {
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of a file format
    #[command(after_help = "\
Examples:
  converger schema desired > desired.schema.json    for the completion of your editor")]
    Schema {
        /// The format
        #[arg(value_enum)]
        format: Format,
    },
    /// Print a completion script for a shell
    #[command(after_help = "\
Examples:
  converger completions bash > /etc/bash_completion.d/converger
  converger completions fish > ~/.config/fish/completions/converger.fish")]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
}

/// What is planned on.
#[derive(Args, Debug)]
pub(crate) struct Source {
    /// The declared state: desired.yaml, or the same as .json
    pub(crate) desired: PathBuf,
    /// A recorded observation (current.json), or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: PathBuf,
}

/// What is planned on and held to.
#[derive(Args, Debug)]
pub(crate) struct Reading {
    #[command(flatten)]
    pub(crate) source: Source,
    /// Limits, freeze and protection [default: converger.toml where it exists, otherwise the built-in ones]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the plan as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// List every converged guest, however many there are
    #[arg(long, conflicts_with = "json")]
    pub(crate) all: bool,
}

/// A file format.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Format {
    /// desired.yaml and desired.json
    Desired,
    /// current.json
    Observation,
    /// plan.json
    Plan,
}
