//! The command line: commands, options and their help texts.

mod action;
mod evidence;
mod guest_ids;
mod ops;
mod store;
mod verbosity_args;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use converger_core::guest::{GuestKind, Vmid};

pub(crate) use action::{ActionArgs, ActionCommand, ActionListArgs, RequestArgs};
pub(crate) use evidence::{
    BacktestArgs, DiffArgs, ExportArgs, LedgerArgs, LedgerCommand, LedgerCopyArgs, LedgerSourceArgs, ProveArgs, PruneArgs, Rekeying,
    ReproduceArgs, ResyncArgs, ShowEntryArgs, TailArgs, VerifyArgs,
};
pub(crate) use guest_ids::{IdItem, select_guests};
use guest_ids::{parse_id_item, parse_vmid};
pub(crate) use ops::{OpsCommand, OpsListArgs, OpsResolveArgs, OpsShowArgs};
pub(crate) use store::{StoreBackupArgs, StoreCommand, StoreRestoreArgs};
pub(crate) use verbosity_args::VerbosityArgs;

const ABOUT: &str = "\
Converge Proxmox VE guests to a declared state; refuse every change that is not proven safe.

    desired.yaml -> observe -> plan -> safety -> [ audit | apply ]";

const EXAMPLES: &str = "\
Examples:
  converger demo                                   see everything in a minute
  converger lab                                    serve a simulated cluster
  converger doctor                                 check access and privileges
  converger guests                                 list the guests
  converger init --vmid 100-120 --environment lab  declare guests as they are
  converger pin desired.yaml                       write birth marks into it
  converger audit desired.yaml                     show what would change
  converger plan desired.yaml                      the same, and write plan.json
  converger apply desired.yaml                     show the plan, ask, apply it
  converger action list                            actions on one guest
  converger explain protected-guest                explain a refusal code
  converger contract                               check the guarantees

Exit codes:
  0 done or converged      1 failed      2 bad usage or input
  3 refused                4 changes pending      5 held      6 broken evidence

Every command accepts --verbose and --quiet. --quiet hides progress and notes; `audit`, `plan` and `apply` then print \
only refusals, failures and the summary. A plan that needs confirmation is always shown in full. JSON does not change.

Colours are used on a terminal or if CLICOLOR_FORCE is set, and never if NO_COLOR is set.";

/// Converge Proxmox VE guests to a declared state.
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
    /// Show what would change and what is refused; change nothing
    #[command(after_help = "\
Examples:
  converger audit desired.yaml                        read its environment
  converger audit desired.yaml --only 101-120,130     only these guests
  converger audit desired.yaml --replay current.json  use a recording
  converger audit desired.yaml --replay current.json --json | jq .summary
  ssh pve1 cat current.json | converger audit desired.yaml --replay -

Exit codes: 0 converged, 3 something is refused, 4 changes pending.")]
    Audit(PlanArgs),
    /// Show what would change and write the plan to a file
    #[command(after_help = "\
Examples:
  converger plan desired.yaml                       write plan.json
  converger plan desired.yaml --out lab.json        write another file
  converger plan desired.yaml --only 101,102        only these guests
  converger plan desired.yaml --json | jq .proposal standard output, no file
  converger plan desired.yaml --record              keep it in the ledger too

`proposal` in plan.json is the digest of what a person confirms: each guest with steps, and the steps. A script passes it to \
`converger apply --confirm`, with the same --only. `digest` covers the whole body.

Exit codes: 0 converged, 3 something is refused, 4 changes pending.")]
    Plan {
        #[command(flatten)]
        arguments: PlanArgs,
        /// Write the plan to FILE [default: plan.json, or none with --json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        record: RecordArgs,
        #[command(flatten)]
        overwrite: Overwrite,
    },
    /// Read the declared guests and write the observation to a file
    #[command(after_help = "\
Examples:
  converger observe desired.yaml                             write current.json
  converger observe desired.yaml --replay - --json < r.json  to standard output

Guests that are not declared are counted and not recorded.")]
    Observe {
        #[command(flatten)]
        source: DesiredArgs,
        /// Write the observation to FILE [default: current.json, or none with --json]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        overwrite: Overwrite,
        /// Print the observation as JSON on standard output
        #[arg(long)]
        json: bool,
    },
    /// Show the plan, ask for confirmation, apply it, report the result
    #[command(after_help = "\
Examples:
  converger apply desired.yaml                       show, ask, apply
  converger apply desired.yaml --only 101,102        only these guests
  converger apply desired.yaml --partial             skip refused guests
  converger apply desired.yaml --plan plan.json      exactly these steps
  converger apply desired.yaml --confirm sha256:...  for scripts: benign steps

Each step is recorded before it is sent, checked against the guest read again, and verified by reading it once more. If apply is killed, \
the next one recovers the operations in flight; nothing is lost or repeated. A change that may still arrive holds its \
guest for up to 131 seconds (more if `timeout` exceeds 60 seconds); a restart that was cut off may need `converger ops resolve`.

Ctrl-C, SIGTERM and a closed terminal start nothing new and wait for operations in flight; a second signal exits within two seconds. \
Only one apply runs in an environment at a time. A plan made from a recording is never applied.

Exit codes: 0 done, 1 a step failed or was not started, 2 bad input, 3 refused (also guests that --partial skips), 5 an operation on a guest in scope is held, 6 broken evidence.")]
    Apply(ApplyArgs),
    /// Show the plan of one action on one guest, ask for confirmation, apply it
    #[command(after_help = "\
Examples:
  converger action list                               all actions
  converger action list vm.clone                      parameters of one
  converger action vm.start vm/101                    show, ask, apply
  converger action vm.snapshot.create vm/101 name=pre-upgrade
  converger action vm.disk.grow ct/102 disk=rootfs size=40GiB --plan
  converger action vm.start vm/101 --confirm sha256:...

An action is planned, refused, confirmed, recorded and verified like a step of `converger apply`. \
--confirm takes the digest that --plan prints and covers benign steps only.

With --key, the request is executed once: a second command with the same key and request sends nothing and reports what the first did, \
with its exit code. The same key with another request is refused. A key belongs to your user.

Exit codes: as for apply; with --plan: 0 nothing to do, 3 refused, 4 changes pending.")]
    Action(ActionArgs),
    /// List operations, show one, or resolve a held one
    #[command(
        subcommand,
        after_help = "\
Examples:
  converger ops list --held
  converger ops show 7f3a-0
  converger ops resolve lab 7f3a-0 --as done --reason \"the guest runs\"

The environment can be left out if converger.toml has only one.

Exit codes: 0 done, 5 the list has held operations."
    )]
    Ops(OpsCommand),
    /// Rename an environment in the state directory
    #[command(
        subcommand,
        after_help = "\
Examples:
  converger environment rename lab site-a --reason \"one name for all teams\"

The first apply, hold or freeze records which cluster a name stands for, by the fingerprint of its root CA. A second name for \
the same cluster is refused, and so is the same name for a different cluster. Use one state directory for each cluster: two do not know of each other."
    )]
    Environment(EnvironmentCommand),
    /// Start no change in an environment until it is thawed
    #[command(after_help = "\
Examples:
  converger freeze lab --reason \"storage move until Friday\"
  converger thaw lab

The freeze is recorded in the state directory and applies to everyone who uses that directory. Another user or \
machine does not see it. If several people apply, run as one user. `[freeze]` in converger.toml applies to everyone who uses that file.

The environment can be left out if converger.toml has only one.")]
    Freeze(FreezeArgs),
    /// End a freeze
    #[command(after_help = "\
Examples:
  converger thaw lab")]
    Thaw(EnvironmentArgs),
    /// Change nothing on a guest until it is released
    #[command(after_help = "\
Examples:
  converger hold lab 101 --reason \"debugging, ask Ann\"
  converger release lab 101

The hold is recorded in the state directory and applies to everyone who uses that directory. Another user or \
machine does not see it. If several people apply, run as one user. The tag `converger-hold` on the guest applies to everyone.

The environment can be left out if converger.toml has only one.")]
    Hold(HoldArgs),
    /// End a hold
    #[command(after_help = "\
Examples:
  converger release lab 101")]
    Release(ReleaseArgs),
    /// Demonstrate audit, refusal, apply, kill -9 and recovery on a built-in lab
    #[command(after_help = "\
Examples:
  converger demo

The demo starts a lab on the loopback, runs this program on it and shows each command line. It needs no configuration and \
removes its files at the end.

Exit codes: 0 every change ran exactly once, 1 otherwise.")]
    Demo(DemoArgs),
    /// Serve a simulated Proxmox VE cluster on this machine
    #[command(after_help = "\
Examples:
  converger lab                              20 guests from a seed
  converger lab --seed 7 --guests 200 --flavour 8
  converger lab --bad-day 3                  with failing nodes and answers
  converger lab world.yaml --into lab        a file; write converger.toml
  converger lab world.yaml --clock 1000      each request takes a second

The lab listens on the loopback only, with a certificate of its own. Stop it with Ctrl-C. docs/lab.md describes the \
format of the file and the faults that it can contain.")]
    Lab(LabArgs),
    /// Check access to environments; show missing privileges and how to grant them
    #[command(after_help = "\
Examples:
  converger doctor                       every environment of converger.toml
  converger doctor --environment lab     one of them
  converger doctor desired.yaml          only what its guests need
  converger doctor --json | jq .summary  a line of JSON for each environment

The doctor only reads. Exit codes: 0 no check failed, 1 a check failed.")]
    Doctor(DoctorArgs),
    /// List the guests that the token can see; declare nothing, write nothing
    #[command(after_help = "\
Examples:
  converger guests                              list the only environment
  converger guests --environment lab --node pve1
  converger guests --tag web --state stopped
  converger guests --json | jq '.guests[].vmid'

Run-states come from the lists of the nodes, with no request per guest. If a node does not report a guest, its state is unknown; older \
reports are not used. Guests that the token may not see are not listed.

Exit codes: 0 listed (also with unknown states), 1 the environment cannot be read.")]
    Guests(GuestsArgs),
    /// Write a desired.yaml that declares existing guests as they are
    #[command(after_help = "\
Examples:
  converger init --vmid 100,101                         write desired.yaml
  converger init --vmid 100-120                         those that exist
  converger init --vmid 100 --environment lab --out web.yaml
  converger init --vmid 100 --environment lab --dry-run   only print it

Only the selected guests are declared, pinned by their birth marks. A single id must exist. A range selects the \
guests that exist and notes the missing ids. Fields that cannot be declared are left out, with a reason. An existing file is never \
replaced without --overwrite. If one of the guests cannot be read, nothing is written.

Exit codes: 0 written, 3 a guest is refused.")]
    Init(InitArgs),
    /// Write the birth marks of guests into the declared state
    #[command(after_help = "\
Examples:
  converger pin desired.yaml                 all declared guests
  converger pin desired.yaml --vmid 100-120  only these
  converger pin desired.yaml --check         show what would be written
  converger pin desired.yaml --repin 100     after a restore of 100

A pinned guest is recognised by its birth marks: a guest that was created again under the same id is refused. \
A container without a network card has only the name of its volume, which a later container may have too. \
Comments and layout of the file are kept. A pin that does not match is replaced only with --repin.

Exit codes: 0 done, 3 a guest is refused, 4 changes would be written (--check).")]
    Pin(PinArgs),
    /// Show, export, prove and maintain the ledger of recorded decisions
    #[command(
        subcommand,
        after_help = "\
Examples:
  converger ledger tail                            show the last entries
  converger ledger key                             print the public key
  converger ledger export /srv/ledger              files for any web server
  converger ledger prove 6afaf0b3-43690ad2-4 --out receipt.txt
  converger ledger prune --before 90d              remove old observations"
    )]
    Ledger(LedgerCommand),
    /// Back up the store of the state directory, or restore a backup
    #[command(
        subcommand,
        after_help = "\
Examples:
  converger store backup /backup/converger.db
  converger store restore /backup/converger.db --reason \"the disk broke\""
    )]
    Store(StoreCommand),
    /// Verify the ledger offline; report the first broken entry or file
    #[command(after_help = "\
Examples:
  converger verify                                 your state directory
  converger verify --db /backup/converger          a copy or backup of one
  converger verify /srv/ledger --key KEY           an export
  converger verify receipt.txt --key KEY           a receipt
  converger verify /srv/ledger --since checkpoint.old --key KEY

Exit codes: 0 intact, 6 broken.")]
    Verify(VerifyArgs),
    /// Reproduce a recorded decision from its inputs and compare it byte for byte
    #[command(after_help = "\
Examples:
  converger reproduce 2f6c91                       a plan, by its digest
  converger reproduce 6afaf0b3-43690ad2            a run
  converger reproduce 6afaf0b3-43690ad2 --from evidence --key KEY
                                                   from an export

Exit codes: 0 identical, 1 a different planner made it or its inputs were pruned, 6 the decision differs, or the ledger is broken.")]
    Reproduce(ReproduceArgs),
    /// Compare two plans, recorded or in files, by guest and step
    #[command(after_help = "\
Examples:
  converger diff 6afaf0b3-43690ad2 6afaf1c0-8d2e1f00  two recorded runs
  converger diff monday.json tuesday.json             two plan files
  converger diff plan.json 6afaf0b3-43690ad2          a file and a run

An argument with a dot or a slash is the path of a plan file; files need no state directory. In the output, + is added by the second plan, \
- is removed and ~ is changed.

Exit codes: 0 the same steps on the same guests, 4 the plans differ.")]
    Diff(DiffArgs),
    /// Re-evaluate recorded decisions under different rules and limits
    #[command(after_help = "\
Examples:
  converger backtest --config candidate.toml

Exit codes: 0 no decision changes, 1 a decision cannot be evaluated, 4 a decision changes, 6 the ledger is broken.")]
    Backtest(BacktestArgs),
    /// Explain a code, a recorded plan, an operation or a refusal
    #[command(after_help = "\
Examples:
  converger explain                    list all codes
  converger explain guest-locked       one code
  converger explain 2f6c91             a recorded plan, by its digest
  converger explain 6afaf0b3-43690ad2  the plan of a run, and its outcome
  converger explain 6afaf0b3-43690ad2-4  an operation: reason and outcome
  converger explain 17                 a recorded refusal, by its entry
  converger explain fields             which config keys can be declared
  converger explain steps              impact, risk and class of a step")]
    Explain {
        /// A code, `fields`, `steps`, the digest (at least its first 6 digits) or run of a recorded plan, an operation, or the index of a refusal
        topic: Option<String>,
        #[command(flatten)]
        source: LedgerSourceArgs,
        /// Print it as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the guarantees of this program and check them
    #[command(after_help = "\
Examples:
  converger contract
  converger contract --json | jq .holds

Compares the text of the guarantees with the pinned digest, and the plans of the built-in vectors byte by byte. \
After a mismatch the exit code is 6, and apply refuses to run. With --verbose it names the tests of each guarantee.")]
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

/// The declared state, and the observation to plan from.
#[derive(Args, Debug)]
pub(crate) struct DesiredArgs {
    /// The declared state (desired.yaml, or the same as JSON)
    pub(crate) desired: PathBuf,
    #[command(flatten)]
    pub(crate) observation: ObservationArgs,
}

impl DesiredArgs {
    /// The files that it reads.
    pub(crate) fn files(&self) -> [Option<&PathBuf>; 2] {
        [Some(&self.desired), self.observation.replay.as_ref()]
    }
}

/// The source of an observation.
#[derive(Args, Debug)]
pub(crate) struct ObservationArgs {
    /// Use a recorded observation (current.json) instead of the environment; - is standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// Read environments, protection, limits and freeze from FILE [default: converger.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// A selection of the declared guests.
#[derive(Args, Debug)]
pub(crate) struct GuestFilterArgs {
    /// Use only these guests: ids and ranges, separated by commas (100-120,130); a range selects only declared guests
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_id_item)]
    pub(crate) only: Vec<IdItem>,
}

/// The arguments of `audit` and `plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) source: DesiredArgs,
    #[command(flatten)]
    pub(crate) filter: GuestFilterArgs,
    /// Print the plan as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// List converged guests too (--verbose also shows details)
    #[arg(long, conflicts_with = "json")]
    pub(crate) all: bool,
}

/// Whether to keep the plan in the ledger.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct RecordArgs {
    /// Keep the plan in the ledger, so that it can be explained, reproduced and proven later
    #[arg(long, conflicts_with = "replay")]
    pub(crate) record: bool,
}

/// Whether to replace files of another kind.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Overwrite {
    /// Replace an existing file even if this command did not write it
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// The arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {}

/// The arguments of `lab`.
#[derive(Args, Debug)]
pub(crate) struct LabArgs {
    /// Nodes, guests, users and faults as YAML [default: generated from the seed]
    pub(crate) world: Option<PathBuf>,
    /// Seed of the generated guests
    #[arg(long, default_value_t = 1, conflicts_with = "world")]
    pub(crate) seed: u64,
    /// Number of nodes
    #[arg(long, default_value_t = 3, conflicts_with = "world", value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) nodes: u32,
    /// Number of guests
    #[arg(long, default_value_t = 20, conflicts_with = "world", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(crate) guests: u32,
    /// Proxmox VE release to simulate: 7, 8 or 9 [default: that of the file, or 9]
    #[arg(long, value_parser = clap::value_parser!(u8).range(7..=9))]
    pub(crate) flavour: Option<u8>,
    /// Port of the first node; further nodes use the next ones. 0 takes any free ports
    #[arg(long, default_value_t = 8006)]
    pub(crate) port: u16,
    /// Inject ten minutes of faults from this seed: nodes fail, guests vanish, responses are lost
    #[arg(long, value_name = "SEED")]
    pub(crate) bad_day: Option<u64>,
    /// Advance the clock by MS milliseconds with each request [default: real time]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(0..=86_400_000))]
    pub(crate) clock: Option<u64>,
    /// Run the clock TIMES as fast as real time
    #[arg(long, value_name = "TIMES", default_value_t = 1, conflicts_with = "clock", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) speed: u32,
    /// Keep the certificate in DIR, and write converger.toml, lab.json and ca.pem there
    #[arg(long, value_name = "DIR")]
    pub(crate) into: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
    /// Write every request to FILE, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
}

/// The arguments of `guests`.
#[derive(Args, Debug)]
pub(crate) struct GuestsArgs {
    /// The environment to list [default: the only one of converger.toml]
    #[arg(long, value_name = "NAME")]
    pub(crate) environment: Option<String>,
    /// List only guests on this node
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    /// List only guests with this tag; repeat to require several tags
    #[arg(long, value_name = "TAG")]
    pub(crate) tag: Vec<String>,
    /// List only guests of this kind
    #[arg(long, value_parser = GuestKind::WORDS)]
    pub(crate) kind: Option<String>,
    /// List only guests in this run-state
    #[arg(long, value_parser = ["running", "stopped", "unknown"])]
    pub(crate) state: Option<String>,
    /// The configuration file [default: converger.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the list as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `init`.
#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// Declare these guests: ids and ranges, separated by commas (100-120,130); a range selects only existing guests
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_id_item, required = true)]
    pub(crate) vmid: Vec<IdItem>,
    /// The environment of the guests [default: the only one of converger.toml]
    #[arg(long, value_name = "NAME")]
    pub(crate) environment: Option<String>,
    #[command(flatten)]
    pub(crate) observation: ObservationArgs,
    /// Write the declared state to FILE [default: desired.yaml, or none with --json]
    #[arg(long, value_name = "FILE", conflicts_with = "dry_run")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overwrite: Overwrite,
    /// Print the declared state on standard output; write no file
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the report and the declared state as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `pin`.
#[derive(Args, Debug)]
pub(crate) struct PinArgs {
    #[command(flatten)]
    pub(crate) source: DesiredArgs,
    /// Pin only these guests: ids and ranges, separated by commas (100-120,130) [default: all declared guests]
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_id_item)]
    pub(crate) vmid: Vec<IdItem>,
    /// Replace pins of these guests that do not match; pin others only if --vmid names them
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = parse_vmid)]
    pub(crate) repin: Vec<Vmid>,
    /// Show what would be written; write nothing
    #[arg(long, visible_alias = "dry-run")]
    pub(crate) check: bool,
    /// Print the report as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

/// An environment, and the file that configures it.
#[derive(Args, Debug)]
pub(crate) struct EnvironmentArgs {
    /// The environment [default: the only one of converger.toml]
    pub(crate) environment: Option<String>,
    /// Read environments, limits and the state directory from FILE [default: converger.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The arguments of `freeze`.
#[derive(Args, Debug)]
pub(crate) struct FreezeArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// Why; recorded with your name
    #[arg(long)]
    pub(crate) reason: String,
    /// Do not check that the cluster is the recorded one
    #[arg(long)]
    pub(crate) offline: bool,
}

/// The arguments of `hold`.
#[derive(Args, Debug)]
#[command(allow_missing_positional = true)]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// The guest's id
    #[arg(value_parser = parse_vmid)]
    pub(crate) vmid: Vmid,
    /// Why; recorded with your name
    #[arg(long)]
    pub(crate) reason: String,
    /// Do not check that the guest exists
    #[arg(long)]
    pub(crate) offline: bool,
}

/// The subcommands of `environment`.
#[derive(Debug, Subcommand)]
pub(crate) enum EnvironmentCommand {
    /// Rename an environment in the state directory, with its holds, freezes and operations
    #[command(after_help = "\
Examples:
  converger environment rename lab site-a --reason \"one name for all teams\"

Holds, freezes, open and held operations and the recorded cluster move to the new name; past runs keep the name that they ran \
under and are listed with the new one. The rename is refused while an apply runs and if the new name is in use.

Write the new name into converger.toml and desired.yaml. The former name stays reserved, so an old file cannot bypass holds. \
A rename can be reversed.")]
    Rename(Renaming),
}

/// The arguments of `environment rename`.
#[derive(Args, Debug)]
pub(crate) struct Renaming {
    /// The current name
    #[arg(value_name = "OLD")]
    pub(crate) from: String,
    /// The new name
    #[arg(value_name = "NEW")]
    pub(crate) to: String,
    /// Why; recorded with your name
    #[arg(long)]
    pub(crate) reason: String,
    /// Read the state directory from FILE [default: converger.toml if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The arguments of `release`.
#[derive(Args, Debug)]
#[command(allow_missing_positional = true)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) target: EnvironmentArgs,
    /// The guest's id
    #[arg(value_parser = parse_vmid)]
    pub(crate) vmid: Vmid,
}

/// The arguments of `doctor`.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Check only the guests of this declared state, and the privileges that its fields need
    pub(crate) desired: Option<PathBuf>,
    /// Check one environment [default: that of the declared state, or all]
    #[arg(long, value_name = "NAME", conflicts_with = "desired")]
    pub(crate) environment: Option<String>,
    /// Read environments from FILE [default: converger.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print a line of JSON for each environment
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `apply`.
#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub(crate) source: DesiredArgs,
    #[command(flatten)]
    pub(crate) filter: GuestFilterArgs,
    /// Skip refused guests and apply the rest
    #[arg(long)]
    pub(crate) partial: bool,
    /// Start nothing new after a step failed, was refused or is held
    #[arg(long)]
    pub(crate) fail_fast: bool,
    /// Start nothing new SECONDS after launch; wait for operations in flight
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout: Option<u64>,
    /// Require the steps to be those of this saved plan
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Confirm the plan with this full digest instead of asking; covers benign steps only
    #[arg(long, value_name = "DIGEST")]
    pub(crate) confirm: Option<String>,
    /// Write the result to FILE [default: result.json, or none with --json]
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
    /// `action list --json`
    Actions,
    /// `ops list --json` and `ops show --json`
    History,
    /// Freezes and holds in `ops list --json`
    Said,
    /// `doctor --json`
    Doctor,
    /// `pin --json`
    Pin,
    /// `init --json`
    Init,
    /// `guests --json`
    Guests,
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
    /// `store backup --json`
    Backup,
    /// `store restore --json`
    Restored,
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
                assert!(!is_laid_out || line.chars().count() <= 80, "{command}: this line of a table is too long for a terminal: {line}");
                let goes_on = !is_laid_out && !line.is_empty() && !line.ends_with(':') && !next.is_empty();
                assert!(!goes_on, "{command}: this paragraph has a manual line break after: {line}");
            }
        }
    }

    #[test]
    fn lab_clock_step_is_at_most_a_day() {
        let parsed = |step: &str| Cli::try_parse_from(["converger", "lab", "--clock", step]).is_ok();
        assert!(parsed("0") && parsed("1000") && parsed("86400000"));
        assert!(!parsed("86400001") && !parsed("18446744073709551615"), "a larger step would overflow the clock");
    }
}
