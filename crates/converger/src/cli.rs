//! The command line: what can be said, with help that teaches by example.

mod evidence;
mod verbosity_args;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use converger_core::guest::Vmid;

pub(crate) use evidence::{
    BacktestArgs, DiffArgs, ExportArgs, LedgerArgs, LedgerCommand, LedgerCopyArgs, LedgerSourceArgs, ProveArgs, PruneArgs, Rekeying,
    ReproduceArgs, ResyncArgs, ShowEntryArgs, TailArgs, VerifyArgs,
};
pub(crate) use verbosity_args::VerbosityArgs;

const ABOUT: &str = "\
Brings Proxmox VE guests to a declared state, and refuses whatever it cannot prove safe.

    desired.yaml -> observe -> plan -> safety -> [ audit | apply ]";

const EXAMPLES: &str = "\
Examples:
  converger demo                                   the whole story in a minute
  converger lab                                    a look-alike to try things on
  converger doctor                                 what works, what is missing
  converger init --vmid 100,101 --environment lab  declare guests as they are
  converger pin desired.yaml                       write birth marks into it
  converger audit desired.yaml                     what would be done or refused
  converger plan desired.yaml                      the same, and write plan.json
  converger apply desired.yaml                     show the plan, ask, carry out
  converger explain protected-guest                what a refusal code means
  converger contract                               what is guaranteed, checked

Exit codes:
  0 done or converged      1 failed      2 bad usage or input
  3 refused                4 changes pending      5 held      6 broken evidence

--verbose and --quiet are accepted by every command. --quiet leaves out progress and notes; `audit`, `plan` and `apply` then print \
refusals, failures and the summary only. A plan that a person has to confirm is always shown with every step. JSON is the same with either.

Colours: none where NO_COLOR is set, whatever else is; otherwise where \
CLICOLOR_FORCE is set, or where a terminal reads.";

/// Brings Proxmox VE guests to a declared state.
#[derive(Debug, Parser)]
#[command(name = "converger", version, about = ABOUT, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) verbosity: VerbosityArgs,
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Show what would be done, what is right and what is refused; write nothing
    #[command(after_help = "\
Examples:
  converger audit desired.yaml                        reads its environment
  converger audit desired.yaml --only 101,102         only these guests
  converger audit desired.yaml --replay current.json  judges a recording
  converger audit desired.yaml --replay current.json --json | jq .summary
  ssh pve1 cat current.json | converger audit desired.yaml --replay -

Exit codes: 0 converged, 3 something is refused, 4 changes pending.")]
    Audit(PlanArgs),
    /// The same as audit, and write the plan to a file
    #[command(after_help = "\
Examples:
  converger plan desired.yaml                       writes plan.json
  converger plan desired.yaml --out lab.json        another file
  converger plan desired.yaml --only 101,102        only these guests
  converger plan desired.yaml --json | jq .digest   standard output, no file

The digest in plan.json is the SHA-256 of its body in canonical JSON (RFC 8785). A script hands it to \
`converger apply --confirm`, with the same --only.

Exit codes: 0 converged, 3 something is refused, 4 changes pending.")]
    Plan {
        #[command(flatten)]
        arguments: PlanArgs,
        /// The file to write [default: plan.json, or none with --json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        overwrite: Overwrite,
    },
    /// Take a reading of the declared guests and write it to a file
    #[command(after_help = "\
Examples:
  converger observe desired.yaml                             writes current.json
  converger observe desired.yaml --replay - --json < r.json  to standard output

What is outside of the declared list is dropped and only counted.")]
    Observe {
        #[command(flatten)]
        source: DesiredArgs,
        /// The file to write [default: current.json, or none with --json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        overwrite: Overwrite,
        /// Print the observation as JSON on standard output
        #[arg(long)]
        json: bool,
    },
    /// Carry the plan out: show it, ask, act, and say what became of it
    #[command(after_help = "\
Examples:
  converger apply desired.yaml                       shows, asks, carries out
  converger apply desired.yaml --only 101,102        only these guests
  converger apply desired.yaml --partial             leaves out what is refused
  converger apply desired.yaml --plan plan.json      only those very steps
  converger apply desired.yaml --confirm sha256:...  for scripts: benign steps

Each step is recorded before it is sent, checked on a fresh reading, and proven by another one. Being \
killed at any moment loses nothing and repeats nothing: the next apply finds out what became of what was \
under way. It keeps a guest back whose change was just being sent, for 131 seconds at most (longer by as \
much as `timeout` is above 60 seconds), because that may still arrive; a restart that was cut off may need a person's word (`converger ops resolve`). Ctrl-C, \
SIGTERM and a terminal that is closed begin nothing new and wait for what is under way; a second signal \
leaves at once. One apply at a time drives an environment. A plan from a recorded observation is never \
carried out.

Exit codes: 0 done, 1 something failed or was not begun, 3 refused (also what --partial leaves out), 5 an operation on a guest in scope is held.")]
    Apply(ApplyArgs),
    /// Show what was done and what is under way, and say what became of what is held
    #[command(
        subcommand,
        after_help = "\
Examples:
  converger ops list lab --held
  converger ops show lab 7f3a-0
  converger ops resolve lab 7f3a-0 --as done --reason \"the guest runs\"

Exit codes: 0 done, 5 the list has operations that are held."
    )]
    Ops(OpsCommand),
    /// Rename an environment, with all that the state directory keeps of it
    #[command(
        subcommand,
        after_help = "\
Examples:
  converger environment rename lab site-a --reason \"one name for all teams\"

The first apply, hold or freeze records which cluster a name stands for, by the fingerprint of its root CA. A second name for the same cluster is \
refused, and so is the same name for another cluster. Two state directories do not know of each other: use one for each cluster."
    )]
    Environment(EnvironmentCommand),
    /// Let nothing be changed in an environment until it is thawed
    #[command(after_help = "\
Examples:
  converger freeze lab --reason \"storage move until Friday\"
  converger thaw lab

It is kept in the state directory and binds whoever uses that: by default each user has their own. `[store]` in \
converger.toml names one for all; `[freeze]` there binds whoever uses that file.")]
    Freeze(FreezeArgs),
    /// End a freeze
    #[command(after_help = "\
Examples:
  converger thaw lab")]
    Thaw(EnvironmentArgs),
    /// Leave a guest alone until it is released
    #[command(after_help = "\
Examples:
  converger hold lab 101 --reason \"debugging, ask Ann\"
  converger release lab 101

It is kept in the state directory and binds whoever uses that: by default each user has their own. The tag \
`converger-hold` on the guest itself binds everybody.")]
    Hold(HoldArgs),
    /// End a hold
    #[command(after_help = "\
Examples:
  converger release lab 101")]
    Release(ReleaseArgs),
    /// Show the whole story on a lab in this process: audit, refusal, plan, apply, kill -9, recovery, convergence
    #[command(after_help = "\
Examples:
  converger demo

It runs this program on a lab of its own, which listens on the loopback, and shows each command line. It \
needs no configuration and leaves nothing behind.

Exit codes: 0 everything ran exactly once, 1 it did not, or the demo was ended.")]
    Demo(DemoArgs),
    /// Serve a Proxmox VE look-alike on this machine, to try things on
    #[command(after_help = "\
Examples:
  converger lab                              20 guests made from a seed
  converger lab --seed 7 --guests 200 --flavour 8
  converger lab --bad-day 3                  the same on a bad day
  converger lab world.yaml --into lab        the file, and how to reach it
  converger lab world.yaml --clock 1000      each request is a second

It listens on the loopback only and ends with Ctrl-C. The certificate is its own. docs/lab.md says how a world is \
written, and what can go wrong in it.")]
    Lab(LabArgs),
    /// Say whether environments can be reached and read, what is missing, and how to grant it
    #[command(after_help = "\
Examples:
  converger doctor                       every environment of converger.toml
  converger doctor --environment lab     one of them
  converger doctor desired.yaml          and what its guests need
  converger doctor --json | jq .summary  a line of JSON for each environment

It reads and changes nothing. Exit codes: 0 nothing failed, 1 something does not work.")]
    Doctor(DoctorArgs),
    /// Declare existing guests as they are: write a desired.yaml that plans nothing
    #[command(after_help = "\
Examples:
  converger init --vmid 100,101                         writes desired.yaml
  converger init --vmid 100 --environment lab --out web.yaml
  converger init --vmid 100 --environment lab --dry-run   only prints it

Only the named guests are declared, pinned by their birth marks. What cannot be declared or is not \
this program's to hold is left out with a reason. A file that is there is never written over. One \
guest that cannot be seen, and nothing is written.

Exit codes: 0 written, 3 something is refused.")]
    Init(InitArgs),
    /// Write the birth marks of declared guests into the declared state
    #[command(after_help = "\
Examples:
  converger pin desired.yaml                 all declared guests
  converger pin desired.yaml --vmid 100,101  these
  converger pin desired.yaml --check         only show what would be written
  converger pin desired.yaml --repin 100     after a restore of 100

A pinned guest is known by its birth marks: a guest that was made anew under the same id is refused. \
A container without a network card has the name of its volume alone, which another one under its id may have too. \
Comments and layout of the file are kept. A pin that does not hold is replaced only with --repin.

Exit codes: 0 done, 3 something is refused, 4 something would be written (--check).")]
    Pin(PinArgs),
    /// Look at the ledger: every decision as it was recorded, and what strangers need to check it
    #[command(
        subcommand,
        after_help = "\
Examples:
  converger ledger tail                            the last entries
  converger ledger key                             what others check it with
  converger ledger export /srv/ledger              files for any web server
  converger ledger prove 6afaf0b3-43690ad2-4 --out receipt.txt
  converger ledger prune --before 90d              lets old readings go"
    )]
    Ledger(LedgerCommand),
    /// Say whether the record is whole, and where it is not: offline, and without trusting who kept it
    #[command(after_help = "\
Examples:
  converger verify                                 the own state directory
  converger verify --db /backup/converger          a copy of one
  converger verify /srv/ledger --key KEY           an export
  converger verify receipt.txt --key KEY           a receipt alone
  converger verify /srv/ledger --since checkpoint.old --key KEY

Exit codes: 0 whole, 6 broken.")]
    Verify(VerifyArgs),
    /// Make a recorded decision again, out of what was recorded for it, and compare it byte for byte
    #[command(after_help = "\
Examples:
  converger reproduce 2f6c91                       a plan, by its digest
  converger reproduce 6afaf0b3-43690ad2            a run
  converger reproduce 6afaf0b3-43690ad2 --from evidence --key KEY
                                                   out of an export, anywhere

Exit codes: 0 the same, 1 another planner made it or what it rests on was let go, 6 it is another decision, or the record \
is broken.")]
    Reproduce(ReproduceArgs),
    /// Show what two recorded plans do differently, guest by guest
    #[command(after_help = "\
Examples:
  converger diff 6afaf0b3-43690ad2 6afaf1c0-8d2e1f00

Exit codes: 0 the same steps, 4 others.")]
    Diff(DiffArgs),
    /// Weigh every recorded decision under other protection rules and limits, and list what would have changed
    #[command(after_help = "\
Examples:
  converger backtest --config candidate.toml

Exit codes: 0 nothing would have changed, 1 something cannot be weighed (whatever else changed), 4 something would have changed, \
6 the record is broken.")]
    Backtest(BacktestArgs),
    /// Explain a refusal code, or list them all; or a plan, an operation or a refusal that was recorded
    #[command(after_help = "\
Examples:
  converger explain                    all codes
  converger explain guest-locked       one of them
  converger explain 2f6c91             a recorded plan, by its digest
  converger explain 6afaf0b3-43690ad2  the same by its run, and what came of it
  converger explain 6afaf0b3-43690ad2-4  an operation: why, and what came of it
  converger explain 17                 a recorded refusal, by its entry
  converger explain fields             which config keys can be declared
  converger explain steps              impact, risk and class of a step")]
    Explain {
        /// A code, `fields`, `steps`, the digest (or 6 of its first digits) or run of a recorded plan, an operation, or the entry of a refusal
        topic: Option<String>,
        #[command(flatten)]
        source: LedgerSourceArgs,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the guarantees of this program, and check them now
    #[command(after_help = "\
Examples:
  converger contract
  converger contract --json | jq .holds

Compares the text of the guarantees with the pinned digest, plans the built-in vectors again and \
compares them byte by byte. A mismatch is exit code 6 and keeps apply from running. With --verbose it names the tests of each guarantee.")]
    Contract {
        /// Print it as JSON, with the names of the tests
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of a file format
    #[command(after_help = "\
Examples:
  converger schema desired > desired.schema.json    for your editor")]
    Schema {
        /// The format
        #[arg(value_enum)]
        format: SchemaFormat,
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
pub(crate) struct DesiredArgs {
    /// The declared state: desired.yaml, or the same as .json
    pub(crate) desired: PathBuf,
    #[command(flatten)]
    pub(crate) observation: ObservationArgs,
}

/// Where a reading comes from.
#[derive(Args, Debug)]
pub(crate) struct ObservationArgs {
    /// A recorded observation (current.json) instead of the environment itself, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// Environments, protection, limits and freeze [default: converger.toml where it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Which of the declared guests are meant.
#[derive(Args, Debug)]
pub(crate) struct GuestFilterArgs {
    /// Only these guests: ids, joined by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_vmid)]
    pub(crate) only: Vec<Vmid>,
}

/// What is planned on and held to.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) source: DesiredArgs,
    #[command(flatten)]
    pub(crate) filter: GuestFilterArgs,
    /// Print the plan as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// List every converged guest, however many there are; --verbose lists all guests
    #[arg(long, conflicts_with = "json")]
    pub(crate) all: bool,
}

/// Whether a file of another kind is replaced.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Overwrite {
    /// Replace a file even if this command did not write it
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// How the story is told.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {}

/// A world, and how it is served.
#[derive(Args, Debug)]
pub(crate) struct LabArgs {
    /// What there is, as YAML; left out, a world is made from the seed
    pub(crate) world: Option<PathBuf>,
    /// Where chance comes from
    #[arg(long, default_value_t = 1, conflicts_with = "world")]
    pub(crate) seed: u64,
    /// How many nodes
    #[arg(long, default_value_t = 3, conflicts_with = "world", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) nodes: u32,
    /// How many guests
    #[arg(long, default_value_t = 20, conflicts_with = "world", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) guests: u32,
    /// The release that is played: 7, 8 or 9 [default: what the file says, or 9]
    #[arg(long, value_parser = clap::value_parser!(u8).range(7..=9))]
    pub(crate) flavour: Option<u8>,
    /// The port of the first node; each further one has the next. 0 is any that is free
    #[arg(long, default_value_t = 8006)]
    pub(crate) port: u16,
    /// Ten bad minutes from this seed: nodes fail, guests vanish, answers are lost; then all is well
    #[arg(long, value_name = "SEED")]
    pub(crate) bad_day: Option<u64>,
    /// Milliseconds by which each request moves the clock, and nobody waits; left out, time runs as it does
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=86_400_000))]
    pub(crate) clock: Option<u64>,
    /// How many times as fast time runs
    #[arg(long, value_name = "TIMES", default_value_t = 1, conflicts_with = "clock", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) speed: u32,
    /// Keep the certificate in this directory, and leave there what leads here: converger.toml for this program, lab.json and ca.pem
    /// for others
    #[arg(long, value_name = "DIR")]
    pub(crate) into: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
    /// Write every request to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

/// Which guests are adopted, and where to.
#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// The guests: ids, joined by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_vmid, required = true)]
    pub(crate) vmid: Vec<Vmid>,
    /// The environment that they are in [default: the only one of converger.toml]
    #[arg(long, value_name = "NAME")]
    pub(crate) environment: Option<String>,
    #[command(flatten)]
    pub(crate) observation: ObservationArgs,
    /// The file to write, which must not be there without --overwrite [default: desired.yaml, or none with --json]
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
    /// Print the declared state on standard output and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print what was done, and the declared state, as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which guests are pinned, and how.
#[derive(Args, Debug)]
pub(crate) struct PinArgs {
    #[command(flatten)]
    pub(crate) source: DesiredArgs,
    /// Only these guests: ids, joined by commas [default: all that are declared]
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_vmid)]
    pub(crate) vmid: Vec<Vmid>,
    /// Replace the pin of these guests where it does not hold; others only where --vmid names them
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_vmid)]
    pub(crate) repin: Vec<Vmid>,
    /// Show what would be written and write nothing
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) check: bool,
    /// Print what was done as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_vmid(text: &str) -> Result<Vmid, String> {
    let number = text.parse().ok().and_then(Vmid::new);
    number.ok_or_else(|| format!("an id of a guest is a number between {} and {}", Vmid::MIN, Vmid::MAX))
}

/// An environment, and where it is written.
#[derive(Args, Debug)]
pub(crate) struct EnvironmentArgs {
    /// The environment
    pub(crate) environment: String,
    /// Environments, limits and the state directory [default: converger.toml where it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Why an environment is frozen.
#[derive(Args, Debug)]
pub(crate) struct FreezeArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// Why, for those who ask
    #[arg(long)]
    pub(crate) reason: String,
    /// Do not ask the cluster whether it is the recorded one
    #[arg(long)]
    pub(crate) offline: bool,
}

/// A guest that is held.
#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// The guest's id
    #[arg(value_parser = parse_vmid)]
    pub(crate) vmid: Vmid,
    /// Why, for those who ask
    #[arg(long)]
    pub(crate) reason: String,
    /// Do not ask the cluster whether the guest is there
    #[arg(long)]
    pub(crate) offline: bool,
}

/// What is done with the name of an environment.
#[derive(Debug, Subcommand)]
pub(crate) enum EnvironmentCommand {
    /// Rename an environment in the state directory; holds, freezes and operations go with it
    #[command(after_help = "\
Examples:
  converger environment rename lab site-a --reason \"one name for all teams\"

The cluster keeps its identity (the fingerprint of its root CA), its holds, freezes, and operations that are open or held; past runs keep the \
name that they ran under and are listed with the new one. Refused while a process drives the environment, and where the new name is in use. \
Write the new name into converger.toml and desired.yaml; the former one stays reserved. A rename can be taken back.")]
    Rename(Renaming),
}

/// An environment that gets another name.
#[derive(Args, Debug)]
pub(crate) struct Renaming {
    /// The name so far
    #[arg(value_name = "OLD")]
    pub(crate) from: String,
    /// The new name
    #[arg(value_name = "NEW")]
    pub(crate) to: String,
    /// Why, for those who ask
    #[arg(long)]
    pub(crate) reason: String,
    /// converger.toml, which names the state directory
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// A guest that is released.
#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// The guest's id
    #[arg(value_parser = parse_vmid)]
    pub(crate) vmid: Vmid,
}

/// What is asked of the journal.
#[derive(Debug, Subcommand)]
pub(crate) enum OpsCommand {
    /// List operations, newest first
    List(OpsListArgs),
    /// Show one with all that is known of it
    Show(OpsShowArgs),
    /// Say what became of one that is held
    #[command(after_help = "\
Examples:
  converger ops resolve lab 7f3a-2 --as done --reason \"the guest runs\"")]
    Resolve(OpsResolveArgs),
}

/// Which operations are listed.
#[derive(Args, Debug)]
pub(crate) struct OpsListArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// Only those that are held
    #[arg(long)]
    pub(crate) held: bool,
    /// Only those without an end
    #[arg(long, conflicts_with = "held")]
    pub(crate) open: bool,
    /// Only those of this guest
    #[arg(long, value_parser = parse_vmid)]
    pub(crate) vmid: Option<Vmid>,
    /// Only those of this run
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
    /// Only those that are older than this one
    #[arg(long, value_name = "OPERATION")]
    pub(crate) before: Option<String>,
    /// At most so many, the newest first
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Print a line of JSON for each
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which operation is shown.
#[derive(Args, Debug)]
pub(crate) struct OpsShowArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// Its id
    pub(crate) id: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What became of an operation.
#[derive(Args, Debug)]
pub(crate) struct OpsResolveArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// Its id
    pub(crate) id: String,
    /// What became of it
    #[arg(long, value_parser = ["done", "failed", "not-run"])]
    pub(crate) r#as: String,
    /// How you know
    #[arg(long)]
    pub(crate) reason: String,
}

/// What is examined.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// A declared state: only its guests are looked at, and only what its fields can need
    pub(crate) desired: Option<PathBuf>,
    /// One environment [default: that of the declared state, or all]
    #[arg(long, value_name = "NAME", conflicts_with = "desired")]
    pub(crate) environment: Option<String>,
    /// Where the environments are written [default: converger.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print a line of JSON for each environment
    #[arg(long)]
    pub(crate) json: bool,
}

/// What is carried out, and how.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) source: DesiredArgs,
    #[command(flatten)]
    pub(crate) filter: GuestFilterArgs,
    /// Leave out guests that are refused, and carry out the rest
    #[arg(long)]
    pub(crate) partial: bool,
    /// Begin nothing new once a step has failed, or was refused or held
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Begin nothing new after so many seconds, counted from the start of the program
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,
    /// A saved plan: what is planned now must be the same steps
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// The full digest of the plan, instead of an answer at a terminal; covers benign steps only
    #[arg(long, value_name = "DIGEST")]
    pub(crate) confirm: Option<String>,
    /// The file to write [default: result.json, or none with --json]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
    /// Print the result as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// A file format.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum SchemaFormat {
    /// desired.yaml and desired.json
    Desired,
    /// current.json
    Observation,
    /// plan.json
    Plan,
    /// result.json and `apply --json`
    Result,
    /// `ops list --json` and `ops show --json`
    History,
    /// What people said against acting, in `ops list --json`
    Said,
    /// `doctor --json`
    Doctor,
    /// `pin --json`
    Pin,
    /// `init --json`
    Init,
    /// `ledger tail --json` and `ledger show --json`
    Entry,
    /// `verify --json`
    Verified,
    /// `reproduce --json`
    Reproduced,
    /// `explain PLAN --json` and `explain RUN --json`
    Explained,
    /// `backtest --json`
    Backtest,
    /// `diff --json`
    Diff,
    /// `ledger prune --json`
    Pruned,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn help_pages(command: &clap::Command) -> Vec<(String, String)> {
        let own = command.get_after_help().map(|text| (command.get_name().to_owned(), text.to_string()));
        own.into_iter().chain(command.get_subcommands().flat_map(help_pages)).collect()
    }

    #[test]
    fn help_text_has_no_manual_line_breaks() {
        let pages = help_pages(&Cli::command());
        assert!(pages.len() > 15, "{} pages", pages.len());
        for (command, text) in pages {
            let lines: Vec<&str> = text.lines().collect();
            for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
                let is_laid_out = line.starts_with(' ');
                assert!(!is_laid_out || line.chars().count() <= 80, "{command}: a line of a table is too long for a terminal: {line}");
                let goes_on = !is_laid_out && !line.is_empty() && !line.ends_with(':') && !next.is_empty();
                assert!(!goes_on, "{command}: a paragraph is broken by hand after: {line}");
            }
        }
    }

    #[test]
    fn lab_clock_step_is_at_most_a_day() {
        let parsed = |step: &str| Cli::try_parse_from(["converger", "lab", "--clock", step]).is_ok();
        assert!(parsed("0") && parsed("1000") && parsed("86400000"));
        assert!(!parsed("86400001") && !parsed("18446744073709551615"), "a clock that runs over is none");
    }
}
